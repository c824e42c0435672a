"""The special function unit: five functions of float32, rounded correctly or as on a chip.

May import `base` and `isa.machine`. What is here was read off one Hopper chip. `data/mufu.npz` has
its results for every significand, of both parities of the exponent where that matters: by how many
units in the last place they differ from the correctly rounded ones. Logarithms, which near 1 have
more digits than that, are in `data/lg2.npz` as the chip computes them: 64 segments, of each the
coefficients of a square polynomial. What a function gives elsewhere follows from these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.dtypes import FLOAT32, FLOAT64, INT32, INT64, UINT32, UINT64
from tilewright.isa.machine import Lanes, Machine

Array = np.ndarray[Any, Any]
LookUp = Callable[[Lanes], Lanes]
_DATA = Path(__file__).parent / "data"
_SIGN, _INFINITY, _NAN = 0x80000000, 0x7F800000, 0x7FFFFFFF
_FRACTION = 23
_ONES = (1 << _FRACTION) - 1
_BIAS = 127
_WITHIN = 17  # bits of a significand that count within a segment
_UNIT = 36  # bits below the point of a logarithm


# How the file names the functions of which it has results.
_KEYS = {"exp2": "ex2", "rcp": "rcp", "rsqrt": "rsqrt", "sqrt": "sqrt"}


def is_wide(name: str) -> bool:
    """Tell whether the results of a function are kept in 64 bits, else they are in 32."""
    return name == "log2"


@cache
def table(name: str) -> Array:
    """List a chip's results in the order of the operands' bits, from 1 on.

    They are the bits of float32 (uint32), for "log2" multiples of 2^-36 (uint64).
    """
    if is_wide(name):
        return _logarithms()
    key = _KEYS[name]
    with np.load(_DATA / "mufu.npz") as file:
        first, end = (int(file[f"{key}.{side}"]) for side in ("lo", "hi"))
        operands = np.arange(first, end, dtype=np.uint32).view(np.float32)
        return _correct(name, operands).view(np.uint32) + file[f"{key}.diff"].astype(np.uint32)


def _correct(name: str, operands: Array) -> Array:
    """Round correctly: in double precision a second rounding never matters for these operands."""
    wide = operands.astype(np.float64)
    match name:
        case "exp2":
            found = np.exp2(wide)
        case "rcp":
            found = 1 / wide
        case _:
            found = np.sqrt(wide)
    return (1 / found if name == "rsqrt" else found).astype(np.float32)


def _logarithms() -> Array:
    with np.load(_DATA / "lg2.npz") as file:
        constant, linear, square = file["segments"].T[..., None]
    at = np.arange(1 << _WITHIN, dtype=np.int64)
    quarters = constant + linear * at - 2 * square * _squares(at)
    return (quarters >> 2).astype(np.uint64).reshape(-1)


def _squares(x: Array) -> Array:
    """Square in units of 2^19, leaving out each product of two bits that is less by itself."""
    total = np.zeros_like(x)
    for low in range(_WITHIN):
        for high in range(low, _WITHIN):
            place = low + high + (low != high) - 19
            if place >= 0:
                total += (x >> low & x >> high & 1) << place
    return total


# ---------------------------------------------------------------------------- correctly rounded


def rounded(m: Machine, name: str, x: Lanes) -> Lanes:
    """Apply a function, and round correctly, or very nearly so; subnormals count as zeros."""
    x = _flushed(m, x)
    if name == "sqrt":
        return m.intrinsic("sqrt", x)
    wide = m.cast(x, FLOAT64)
    if name in ("rcp", "rsqrt"):
        found = m.constant(1.0, FLOAT64) / (wide if name == "rcp" else m.intrinsic("sqrt", wide))
    else:
        found = m.intrinsic(name, wide)
    # A product has the canonical NaN.
    return _flushed(m, m.cast(found, FLOAT32) * 1.0)


def _flushed(m: Machine, x: Lanes) -> Lanes:
    bits = m.bitcast(x, UINT32)
    small = (bits & _INFINITY) == 0
    return m.bitcast(m.select(small, bits & _SIGN, bits), FLOAT32)


# ---------------------------------------------------------------------------- as on a chip


def reduced(m: Machine, name: str, x: Lanes, look_up: LookUp) -> Lanes:
    """Apply a function as a chip does; `look_up` reads its table at an index (uint32)."""
    step = {
        "exp2": _exponential,
        "log2": _logarithm,
        "rcp": _reciprocal,
        "rsqrt": _reciprocal_root,
        "sqrt": _root,
    }[name]
    bits = m.bitcast(x, UINT32)
    magnitude = bits & ~_SIGN & _NAN
    found = step(m, bits & _SIGN, magnitude, look_up)
    found = m.select(magnitude > _INFINITY, m.constant(_NAN, UINT32), found)
    return m.bitcast(found, FLOAT32)


def _small(magnitude: Lanes) -> Lanes:
    """Tell zeros, and subnormal numbers, which count as such."""
    return magnitude <= _ONES


def _exponential(m: Machine, sign: Lanes, magnitude: Lanes, look_up: LookUp) -> Lanes:
    """Split into a whole number and a fraction, which is cut off; below zero it is inverted."""
    infinite, zero = (m.constant(each, UINT32) for each in (_INFINITY, 0))
    size = m.binary("min", m.bitcast(magnitude, FLOAT32), m.constant(256.0, FLOAT32))
    whole = m.intrinsic("trunc", size)
    fraction = m.cast((size - whole) * 2.0**_FRACTION, UINT32)
    power = m.cast(whole, INT32)
    below, between = sign != 0, fraction != 0
    fraction = m.select(below & between, fraction ^ _ONES, fraction)
    power = m.select(below, -power - m.cast(between, INT32), power)
    # What is looked up is the power of 1 and the fraction.
    found = look_up(fraction) + (m.bitcast(power - 1, UINT32) << _FRACTION)
    found = m.select(power > _BIAS, infinite, found)
    return m.select(power <= -_BIAS, zero, found)


def _reciprocal(m: Machine, sign: Lanes, magnitude: Lanes, look_up: LookUp) -> Lanes:
    infinite, zero = (m.constant(each, UINT32) for each in (_INFINITY, 0))
    power = (magnitude >> _FRACTION) - _BIAS
    found = look_up(magnitude & _ONES) - (power << _FRACTION)
    smallest = (_BIAS + 126) << _FRACTION  # that has a normal reciprocal
    found = m.select(magnitude > smallest, zero, found)
    return m.select(_small(magnitude), infinite, found) | sign


def _halved(magnitude: Lanes) -> tuple[Lanes, Lanes]:
    """Split into a power of 4, and where the table has what is left."""
    field = magnitude >> _FRACTION
    odd = (field + 1) & 1
    return ((field + 1) >> 1) - (_BIAS + 1) // 2, (odd << _FRACTION) | (magnitude & _ONES)


def _reciprocal_root(m: Machine, sign: Lanes, magnitude: Lanes, look_up: LookUp) -> Lanes:
    infinite, zero, nan = (m.constant(each, UINT32) for each in (_INFINITY, 0, _NAN))
    power, index = _halved(magnitude)
    found = look_up(index) - (power << _FRACTION)
    found = m.select(magnitude == _INFINITY, zero, found)
    found = m.select(sign != 0, nan, found)
    return m.select(_small(magnitude), infinite | sign, found)


def _root(m: Machine, sign: Lanes, magnitude: Lanes, look_up: LookUp) -> Lanes:
    infinite, nan = (m.constant(each, UINT32) for each in (_INFINITY, _NAN))
    power, index = _halved(magnitude)
    found = look_up(index) + (power << _FRACTION)
    found = m.select(magnitude == _INFINITY, infinite, found)
    found = m.select(sign != 0, nan, found)
    return m.select(_small(magnitude), sign, found)


def _logarithm(m: Machine, sign: Lanes, magnitude: Lanes, look_up: LookUp) -> Lanes:
    """Add the exponent in fixed point, and cut off; a negative sum is inverted, not negated."""
    infinite, nan = (m.constant(each, UINT32) for each in (_INFINITY, _NAN))
    power = m.bitcast(magnitude >> _FRACTION, INT32) - _BIAS
    total = (m.cast(power, INT64) << _UNIT) + m.bitcast(look_up(magnitude & _ONES), INT64)
    below = total < 0
    wide = m.bitcast(m.cast(m.select(below, ~total, total), FLOAT64), UINT64)
    single = m.cast(m.bitcast(wide >> 29 << 29, FLOAT64), FLOAT32) * 2.0**-_UNIT
    found = m.bitcast(m.select(below, -single, single), UINT32)
    found = m.select(magnitude == _BIAS << _FRACTION, m.constant(0, UINT32), found)
    found = m.select(magnitude == _INFINITY, infinite, found)
    found = m.select(sign != 0, nan, found)
    return m.select(_small(magnitude), infinite | _SIGN, found)
