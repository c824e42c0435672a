"""The eager executor's arithmetic against exact rational arithmetic and the words of PTX."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    UINT32,
    UINT64,
)
from tilewright.sim import eager_arithmetic as arithmetic

singles = st.floats(width=32, allow_nan=False, allow_infinity=False)


def rounded(exact, mantissa, lowest):
    """Round a fraction to nearest even at a precision, with subnormals below 2**lowest."""
    if exact == 0:
        return 0.0
    exponent = lowest - mantissa + 1
    while abs(exact) / Fraction(2) ** exponent >= 1 << mantissa:
        exponent += 1
    return float(round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent)


@given(singles, singles, singles)
def test_fma_rounds_once(x, y, z):
    a, b, c = (np.array(each, np.float32) for each in (x, y, z))
    found = float(arithmetic.fma(a, b, c, FLOAT32))
    expected = rounded(Fraction(x) * Fraction(y) + Fraction(z), 24, -126)
    assert found == expected or (np.isinf(found) and abs(expected) > 3.4e38)


def test_fma_where_two_roundings_differ():
    # 1·1 + 2^-24 + a sliver: the sum in double precision would tie to even.
    x = np.array(1 + 2.0**-12, np.float32)
    y = np.array(1 - 2.0**-12, np.float32)
    for c in (2.0**24, -(2.0**24), 2.0**-30, 2.0**25 + 4):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(c)
        found = float(arithmetic.fma(x, y, np.array(c, np.float32), FLOAT32))
        assert found == rounded(exact, 24, -126)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_half_fma_rounds_once(dtype):
    random = np.random.default_rng(1)
    a, b, c = (random.standard_normal(500).astype(dtype.numpy) for _ in range(3))
    found = arithmetic.fma(a, b, c, dtype)
    mantissa, lowest = (11, -14) if dtype == FLOAT16 else (8, -126)
    for x, y, z, got in zip(a, b, c, found, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert float(got) == rounded(exact, mantissa, lowest)


def test_double_fma():
    x, y = np.array(1 + 2.0**-30), np.array(1 - 2.0**-30)
    assert float(arithmetic.fma(x, y, np.array(-1.0), FLOAT64)) == -(2.0**-60)


@pytest.mark.parametrize(
    ("op", "left", "right", "dtype", "expected"),
    [
        ("shl", 1, 31, UINT32, 1 << 31),
        ("shl", 1, 32, UINT32, 0),
        ("shr", -8, 100, INT32, -1),
        ("shr", 8, 32, UINT32, 0),
        ("truncdiv", -7, 2, INT32, -3),
        ("truncmod", -7, 2, INT32, -1),
        ("floordiv", -7, 2, INT32, -4),
        ("mod", -7, 2, INT32, 1),
        ("truncdiv", 7, 0, UINT32, 0xFFFFFFFF),
        ("mod", 7, 0, INT32, 7),
        ("truncdiv", -(1 << 31), -1, INT32, -(1 << 31)),
        ("add", 0xFFFFFFFF, 2, UINT32, 1),
        ("mul", 1 << 31, 2, UINT32, 0),
        ("min", -1, 1, INT32, -1),
        ("max", 0.0, -0.0, FLOAT32, 0.0),
        ("min", float("nan"), 3.0, FLOAT32, 3.0),
    ],
)
def test_operations(op, left, right, dtype, expected):
    a, b = (arithmetic.constant(each, dtype) for each in (left, right))
    found = arithmetic.binary(op, a, b, dtype)
    assert found == expected
    assert np.asarray(found).dtype == dtype.numpy


def test_signed_zeros():
    plus, minus = (arithmetic.constant(each, FLOAT32) for each in (0.0, -0.0))
    assert np.signbit(arithmetic.binary("min", plus, minus, FLOAT32))
    assert not np.signbit(arithmetic.binary("max", minus, plus, FLOAT32))


def test_no_number_is_canonical():
    infinity = arithmetic.constant(float("inf"), FLOAT32)
    found = arithmetic.binary("sub", infinity, infinity, FLOAT32)
    assert found.view(np.uint32) == 0x7FFFFFFF


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (300, UINT32, UINT8, 44),
        (-1, INT32, UINT64, (1 << 64) - 1),
        (-1.9, FLOAT32, INT32, -1),
        (1e20, FLOAT32, INT32, (1 << 31) - 1),
        (-5.0, FLOAT32, UINT32, 0),
        (float("nan"), FLOAT32, INT32, 0),
        (1e30, FLOAT64, UINT64, (1 << 64) - 1),
        (16777217, INT32, FLOAT32, 16777216.0),
        ((1 << 62) + (1 << 38) + 1, INT64, FLOAT32, 2.0**62 + 2.0**39),
        (1 + 2.0**-8 + 2.0**-40, FLOAT64, BFLOAT16, 1 + 2.0**-7),
        (65520, UINT32, FLOAT16, float("inf")),
    ],
)
def test_conversions(value, source, target, expected):
    found = arithmetic.convert(arithmetic.constant(value, source), source, target)
    assert np.asarray(found).dtype == target.numpy
    assert float(found) == float(expected)


@given(st.floats(-3.3e38, 3.3e38))
def test_bfloat16_rounds_once(x):
    found = arithmetic.convert(np.array(x), FLOAT64, BFLOAT16)
    assert found.dtype == ml_dtypes.bfloat16
    assert float(found) == rounded(Fraction(x), 8, -126)


@pytest.mark.parametrize(
    ("name", "value", "dtype", "expected"),
    [
        ("popcount", 0xF0F0, UINT32, 8),
        ("clz", 1, UINT32, 31),
        ("clz", 0, UINT64, 64),
        ("ctz", 8, UINT32, 3),
        ("brev", 1, UINT32, 1 << 31),
        ("abs", -5, INT32, 5),
        ("sqrt", 2.0, FLOAT32, np.sqrt(np.float32(2))),
        ("nearbyint", 2.5, FLOAT32, 2.0),
        ("round", 2.5, FLOAT32, 3.0),
        ("round", -2.5, FLOAT32, -3.0),
        ("exp2", 3.0, FLOAT32, 8.0),
    ],
)
def test_functions(name, value, dtype, expected):
    found, _ = arithmetic.function(name, [arithmetic.constant(value, dtype)], dtype)
    assert found == expected
