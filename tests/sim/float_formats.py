"""The floating formats of at most 16 bits by their definitions, and operands that are telling.

The formats are as their specifications have them (OCP "8-bit Floating Point Specification", OCP
"Microscaling Formats", IEEE 754); rounding is that of `cvt.satfinite` (PTX ISA, "cvt").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from elementwise import as_bits, unsigned

from tilewright.base.dtypes import SCALARS, DType

HALVES = [SCALARS[name] for name in ("float16", "bfloat16")]
SMALL = [each for each in SCALARS.values() if each.is_float and each.bits <= 8]
SCALE = SCALARS["float8_e8m0fnu"]


# ---------------------------------------------------------------------------- definitions


@dataclass(frozen=True)
class Definition:
    """A format as its specification has it: widths, bias, and the codes that are no number."""

    exponent: int
    fraction: int
    bias: int
    infinity: int | None
    nans: frozenset[int]
    nan: int  # what a NaN becomes

    @property
    def largest(self) -> int:
        """Give the largest magnitude that is a finite number."""
        codes = range(1 << (self.exponent + self.fraction))
        last = self.infinity if self.infinity is not None else codes.stop
        return max(code for code in codes if code not in self.nans and code < last)

    def value(self, code: int) -> float:
        """Give the number that a code of a magnitude stands for."""
        exponent, fraction = divmod(code, 1 << self.fraction)
        if exponent == 0:
            return fraction * 2.0 ** (1 - self.bias - self.fraction)
        return (1 + fraction * 2.0**-self.fraction) * 2.0 ** (exponent - self.bias)


def _both_signs(codes: range, sign: int) -> frozenset[int]:
    return frozenset((*codes, *(code + sign for code in codes)))


def _ieee(exponent: int, fraction: int) -> Definition:
    """All ones in the exponent: infinity, and NaNs."""
    top, sign = ((1 << exponent) - 1) << fraction, 1 << (exponent + fraction)
    nans = _both_signs(range(top + 1, sign), sign)
    return Definition(exponent, fraction, (1 << (exponent - 1)) - 1, top, nans, sign - 1)


def _minus_zero(exponent: int, fraction: int, bias: int) -> Definition:
    """No infinity, and one NaN: what would be -0."""
    sign = 1 << (exponent + fraction)
    return Definition(exponent, fraction, bias, None, frozenset({sign}), sign)


def _finite(exponent: int, fraction: int, bias: int) -> Definition:
    """Only numbers; a NaN becomes the largest (PTX ISA, "cvt": positive MAX_NORM)."""
    largest = (1 << (exponent + fraction)) - 1
    return Definition(exponent, fraction, bias, None, frozenset(), largest)


DEFINITIONS = {
    "float16": _ieee(5, 10),
    "bfloat16": _ieee(8, 7),
    "float8_e3m4": _ieee(3, 4),
    "float8_e4m3": _ieee(4, 3),
    "float8_e5m2": _ieee(5, 2),
    "float8_e4m3fn": Definition(4, 3, 7, None, frozenset({0x7F, 0xFF}), 0x7F),
    "float8_e4m3b11fnuz": _minus_zero(4, 3, 11),
    "float8_e4m3fnuz": _minus_zero(4, 3, 8),
    "float8_e5m2fnuz": _minus_zero(5, 2, 16),
    "float6_e2m3fn": _finite(2, 3, 1),
    "float6_e3m2fn": _finite(3, 2, 3),
    "float4_e2m1fn": _finite(2, 1, 1),
}


@cache
def magnitudes(name: str) -> np.ndarray:
    """List the numbers that a format has, from zero up: their place is their code."""
    found = DEFINITIONS[name]
    return np.array([found.value(code) for code in range(found.largest + 1)])


def decoded(bits: np.ndarray, kind: DType) -> np.ndarray:
    """Give the numbers that bits stand for."""
    if kind == SCALE:
        return np.where(bits == 255, np.nan, np.exp2(bits.astype(np.float64) - 127))
    found = DEFINITIONS[kind.name]
    sign = 1 << (found.exponent + found.fraction)
    codes = bits.astype(np.int64) & (sign - 1)
    values = np.array([found.value(code) for code in range(sign)])[codes]
    if found.infinity is not None:
        values = np.where(codes == found.infinity, np.inf, values)
    values = np.where(bits & sign, -values, values)
    return np.where(np.isin(bits & (2 * sign - 1), list(found.nans)), np.nan, values)


def rounded(values: np.ndarray, kind: DType) -> np.ndarray:
    """Round float64s to a format and give the bits: to nearest, of two as near to the even one."""
    size = np.abs(values)
    if kind == SCALE:
        codes = np.searchsorted(np.exp2(np.arange(-127.0, 128.0)), size)
        return np.where(np.isnan(values), 255, np.minimum(codes, 254))
    found, numbers = DEFINITIONS[kind.name], magnitudes(kind.name)
    middles = (numbers[1:] + numbers[:-1]) / 2
    if kind.bits == 16:  # what rounds to the power above the largest number is infinite
        middles = np.append(middles, (numbers[-1] + found.value(found.largest + 1)) / 2)
    codes = np.searchsorted(middles, size)
    tie = (codes < middles.size) & (middles[np.minimum(codes, middles.size - 1)] == size)
    codes = np.where(tie, codes + (codes & 1), codes)
    sign = 1 << (found.exponent + found.fraction)
    negative = np.signbit(values) & ~((codes == 0) & (sign in found.nans))
    return np.where(np.isnan(values), found.nan, codes + np.where(negative, sign, 0))


# ---------------------------------------------------------------------------- sources


def bounds(kind: DType) -> np.ndarray:
    """List what rounding to a format turns on: its numbers, and those half way between."""
    if kind == SCALE:
        return np.exp2(np.arange(-149.0, 128.0))
    numbers = magnitudes(kind.name)
    above = 2 * numbers[-1] - numbers[-2]
    return np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, [(above + numbers[-1]) / 2]])


def around_bounds(kind: DType) -> np.ndarray:
    """List the bits of floats at, next to and next but one to every bound of every format."""
    with np.errstate(all="ignore"):
        numbers = np.concatenate([bounds(each) for each in (*HALVES, *SMALL)])
        near = as_bits(np.unique(numbers).astype(kind.numpy), kind).astype(np.int64)
    near = np.unique(np.concatenate([near + step for step in (-2, -1, 0, 1, 2)]))
    near = near[near >= 0]
    sign = 1 << (kind.bits - 1)
    return np.concatenate(
        [near, near | np.int64(sign - (1 << kind.bits if kind.bits == 64 else 0))]
    )


def special(kind: DType) -> np.ndarray:
    """List bits of zeros, subnormals, infinities and NaNs."""
    numbers = np.array([0.0, np.inf, np.nan], kind.numpy)
    infinity = int(as_bits(numbers, kind)[1])
    sign = 1 << (kind.bits - 1)
    codes = [0, 1, 2, infinity - 1, infinity, infinity + 1, sign - 1]
    return np.array([*codes, *(code + sign for code in codes)], np.uint64)


@cache
def sources(kind: DType) -> np.ndarray:
    """List operands of a type, as their bits: all of up to 16 bits, else what is telling."""
    if kind.bits <= 16:
        return np.arange(1 << (8 if kind.bits < 8 else kind.bits)).astype(unsigned(kind))
    random = np.random.default_rng(kind.bits)
    drawn = random.integers(0, 1 << 64, 4000, dtype=np.uint64)
    if kind.is_float:
        parts = [around_bounds(kind), special(kind), drawn]
    else:
        top = min(kind.bits, 63)
        powers = np.uint64(1) << np.arange(top, dtype=np.uint64)
        near = [powers + np.uint64(1) * step for step in np.array([0, 1, 3], np.uint64)]
        halves = powers | powers >> np.uint64(8) | np.uint64(1)  # past a tie of bfloat16 by one
        ties = powers | powers >> np.uint64(8)
        negative = [-each.astype(np.int64) for each in (*near, halves, ties)]
        small = np.arange(4096, dtype=np.uint64)
        parts = [*near, halves, ties, *(each.view(np.uint64) for each in negative), small]
        parts += [drawn, drawn >> np.uint64(32), powers - np.uint64(1)]
    found = np.concatenate([part.astype(np.uint64) for part in parts])
    return np.unique(found & np.uint64((1 << kind.bits) - 1)).astype(unsigned(kind))
