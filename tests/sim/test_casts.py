"""Conversions of numbers, on every bit pattern of 16 bits and around every bound of rounding.

What is expected is computed from the definitions of the formats, which are held against ml_dtypes
where `cvt.satfinite` and ml_dtypes agree. Both executors are held to it.
"""

from __future__ import annotations

import numpy as np
import pytest
from elementwise import as_bits, evaluate, scalar, unsigned
from float_formats import (
    HALVES,
    SCALE,
    SMALL,
    decoded,
    magnitudes,
    rounded,
    sources,
)

from tilewright.base.dtypes import BOOL, SCALARS, UINT8, DType
from tilewright.base.narrow import encode
from tilewright.ir.expressions import (
    Bitcast,
    Cast,
    Expr,
    Intrinsic,
    binary,
    cast,
    unary,
)
from tilewright.ir.types import ScalarType
from tilewright.sim import eager_arithmetic

INTEGERS = [SCALARS[f"{kind}{bits}"] for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
WIDE = [SCALARS[name] for name in ("float32", "float64")]
NUMBERS = [*INTEGERS, *WIDE, *HALVES, *SMALL]


# ---------------------------------------------------------------------------- expectations


def numbers_of(bits: np.ndarray, kind: DType) -> np.ndarray:
    """Give operands as float64; integers beyond its precision rounded to odd."""
    if kind in SMALL or kind in HALVES:
        return decoded(bits, kind)
    values = bits.view(kind.numpy)
    if kind.is_float or kind.bits < 64:
        return values.astype(np.float64)
    return np.array([to_odd(int(value)) for value in values])


def to_odd(value: int) -> float:
    """Round an integer to the 53 bits of a float64, to the odd one of two if it is not exact."""
    lost = max(abs(value).bit_length() - 53, 0)
    kept = abs(value) >> lost
    kept |= bool(abs(value) & ((1 << lost) - 1))
    return float(kept << lost) * (-1 if value < 0 else 1)


def truncated(bits: np.ndarray, source: DType, kind: DType) -> np.ndarray:
    """Convert floats to integers: towards zero, within the range; a NaN gives 0."""
    low = -(1 << (kind.bits - 1)) if kind.kind == "int" else 0
    high = low + (1 << kind.bits) - 1
    values = np.trunc(np.nan_to_num(numbers_of(bits, source), nan=0.0, posinf=1e300, neginf=-1e300))
    below, above = values <= low, values >= high
    inside = np.where(below | above, 0, values).astype(kind.numpy)
    inside = np.where(below, np.array(low, kind.numpy), inside)
    return as_bits(np.where(above, np.array(high, kind.numpy), inside), kind)


def expected(bits: np.ndarray, source: DType, kind: DType) -> np.ndarray:
    """Give the bits of what a conversion gives."""
    with np.errstate(all="ignore"):
        return converted(bits, source, kind)


def converted(bits: np.ndarray, source: DType, kind: DType) -> np.ndarray:
    if kind == BOOL:
        return (numbers_of(bits, source) != 0).astype(np.uint8)
    if not kind.is_float and not source.is_float:
        return bits.view(source.numpy).astype(kind.numpy).view(unsigned(kind))
    if not kind.is_float:
        return truncated(bits, source, kind)
    if kind.name == "float64" and source.is_integer:
        return as_bits(bits.view(source.numpy).astype(np.float64), kind)
    values = numbers_of(bits, source)
    if kind in WIDE:
        return as_bits(values.astype(kind.numpy), kind)
    return rounded(values, kind).astype(unsigned(kind))


def agree(found: np.ndarray, wanted: np.ndarray, source: DType, kind: DType) -> np.ndarray:
    """Compare bits; of 32 bits and more, where a NaN was one before, a NaN is a NaN."""
    same = found == wanted
    if kind in WIDE and source.is_float:
        with np.errstate(invalid="ignore"):
            same |= np.isnan(found.view(kind.numpy)) & np.isnan(wanted.view(kind.numpy))
    return same


def difference(name: str, given: np.ndarray, found: np.ndarray, wanted: np.ndarray) -> str:
    at = int(np.flatnonzero(found != wanted)[0])
    return f"{name} of {given[at]:#x}: {found[at]:#x}, expected {wanted[at]:#x}"


@pytest.mark.parametrize("uniform", [False, True], ids=["lanes", "uniform"])
@pytest.mark.parametrize("source", [*NUMBERS, BOOL], ids=str)
def test_native_conversions(source: DType, uniform: bool) -> None:
    given = np.arange(2).astype(np.uint8) if source == BOOL else sources(source)
    if uniform:
        given = np.random.default_rng(0).permutation(given)[:256]
    x = scalar("x", source)
    targets = [each for each in (*NUMBERS, BOOL) if each != source]
    values: dict[str, Expr] = {each.name: Cast(x, ScalarType(each)) for each in targets}
    found = evaluate({x: given}, values, uniform=uniform)
    wrong: list[str] = []
    for each in targets:
        origin = UINT8 if source == BOOL else source
        wanted = given if each == origin else expected(given, origin, each)
        if not agree(found[each.name], wanted, source, each).all():
            wrong.append(difference(f"{source} to {each}", given, found[each.name], wanted))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("source", NUMBERS, ids=str)  # ml_dtypes knows nothing of bits above
def test_eager_conversions(source: DType) -> None:
    given = sources(source)[: 1 << source.bits if source.bits < 8 else None]
    wrong: list[str] = []
    for each in (*NUMBERS, BOOL):
        if each == source:
            continue
        with np.errstate(invalid="ignore"):
            values = given.view(source.numpy)
            found = as_bits(eager_arithmetic.convert(values, source, each), each)
        wanted = expected(given, source, each)
        if not agree(found, wanted, source, each).all():
            wrong.append(difference(f"{source} to {each}", given, found, wanted))
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------------------- the definitions


@pytest.mark.parametrize("kind", [*HALVES, *SMALL], ids=str)
def test_definitions_are_those_of_ml_dtypes(kind: DType) -> None:
    codes = np.arange(1 << kind.bits).astype(unsigned(kind))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(decoded(codes, kind), codes.view(kind.numpy).astype(float))
    if kind == SCALE:
        return  # ml_dtypes rounds to nearest, and has no number for those below zero
    given = sources(SCALARS["float32"]).view(np.float32)
    given = given[np.abs(given) <= magnitudes(kind.name)[-1]]  # beyond, `cvt.satfinite` saturates
    np.testing.assert_array_equal(
        rounded(given.astype(np.float64), kind), as_bits(given.astype(kind.numpy), kind)
    )


@pytest.mark.parametrize("kind", [*HALVES, *SMALL], ids=str)
def test_constants_are_rounded_as_conversions(kind: DType) -> None:
    given = sources(SCALARS["float64"]).view(np.float64)[::7]
    found = [encode(float(value), kind) for value in given]
    np.testing.assert_array_equal(found, rounded(given, kind))


@pytest.mark.parametrize(
    ("value", "kind", "bits"),
    [
        # PTX ISA, "cvt": `.satfinite` gives MAX_NORM, and a NaN becomes the canonical one.
        (1e30, "float8_e4m3fn", 0x7E),
        (-np.inf, "float8_e4m3fn", 0xFE),
        (np.nan, "float8_e4m3fn", 0x7F),
        (np.inf, "float8_e5m2", 0x7B),
        (-1e30, "float8_e5m2", 0xFB),
        (np.nan, "float8_e5m2", 0x7F),
        (np.nan, "float4_e2m1fn", 0x07),
        (-9.0, "float4_e2m1fn", 0x0F),
        (np.nan, "float6_e3m2fn", 0x1F),
        (-0.0, "float8_e4m3fnuz", 0x00),
        # CUDA Math API, "FP8 Conversion": the magnitude, rounded up, within 2^-127 and 2^127.
        (0.0, "float8_e8m0fnu", 0x00),
        (1.0, "float8_e8m0fnu", 0x7F),
        (-1.25, "float8_e8m0fnu", 0x80),
        (2.0**-126, "float8_e8m0fnu", 0x01),
        (2.0**-127 + 2.0**-149, "float8_e8m0fnu", 0x01),
        (3e38, "float8_e8m0fnu", 0xFE),
        (np.inf, "float8_e8m0fnu", 0xFE),
        (np.nan, "float8_e8m0fnu", 0xFF),
    ],
)
def test_what_is_beyond_a_format(value: float, kind: str, bits: int) -> None:
    assert encode(value, SCALARS[kind]) == bits
    assert rounded(np.array([value]), SCALARS[kind])[0] == bits


# ---------------------------------------------------------------------------- arithmetic


COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
OPERATIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.fmin,
    "max": np.fmax,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def applied(op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Apply an operation; of zeros, -0 is the lesser (PTX ISA, "min")."""
    found = OPERATIONS[op](x, y)
    if op not in ("min", "max"):
        return found
    both = np.logical_or if op == "min" else np.logical_and
    zero = np.where(both(np.signbit(x), np.signbit(y)), -0.0, 0.0)
    return np.where((x == 0) & (y == 0), zero, found)


@pytest.mark.parametrize("kind", SMALL, ids=str)
def test_arithmetic_of_small_floats(kind: DType) -> None:
    """Every pair of operands is computed with in float32, and the result is converted."""
    given = np.arange(1 << 16).astype(np.uint16)
    pair = scalar("pair", SCALARS["uint16"])
    parts = (pair, binary("shr", pair, 8))
    a, b = (Bitcast(cast(each, UINT8), ScalarType(kind)) for each in parts)
    values: dict[str, Expr] = {op: binary(op, a, b) for op in OPERATIONS}
    values["neg"] = unary("neg", a)
    values["abs"] = Intrinsic("abs", (a,), ScalarType(kind))
    values["isnan"] = Intrinsic("isnan", (a,), ScalarType(BOOL))
    values["truth"] = Cast(a, ScalarType(BOOL))
    found = evaluate({pair: given}, values)
    x, y = (decoded(bits, kind).astype(np.float32) for bits in (given & 255, given >> 8))
    with np.errstate(all="ignore"):
        for op in OPERATIONS:
            wanted = applied(op, x, y)
            bits = wanted if op in COMPARED else rounded(wanted.astype(np.float64), kind)
            np.testing.assert_array_equal(found[op], bits, err_msg=op)
    np.testing.assert_array_equal(found["isnan"], np.isnan(x))
    np.testing.assert_array_equal(found["truth"], x != 0)
    np.testing.assert_array_equal(found["abs"], rounded(np.abs(x).astype(np.float64), kind))
    opposite = np.abs(x) if kind == SCALE else -x
    np.testing.assert_array_equal(decoded(found["neg"], kind), opposite)
