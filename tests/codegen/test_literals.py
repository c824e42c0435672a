"""Literals keep their value: every format is rounded to once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, SCALARS, dtype
from tilewright.base.narrow import encode
from tilewright.codegen.spelling import Names, literal


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (3, "int32", "3"),
        (-(1 << 31), "int32", "int(0x80000000u)"),
        (3, "uint32", "3u"),
        (-3, "int64", "-3ll"),
        (-(1 << 63), "int64", "int64_t(0x8000000000000000ull)"),
        (200, "uint8", "uint8_t(200)"),
        (True, "bool", "true"),
        (1.0, "float32", "1.0f"),
        (0.1, "float32", "0.1f"),
        (-0.0, "float32", "-0.0f"),
        (1e-40, "float32", "1.0e-40f"),
        (1e300, "float32", "__int_as_float(0x7f800000)"),
        (math.nan, "float64", "__longlong_as_double(0x7ff8000000000000)"),
        (0.1, "float64", "0.1"),
        (0.5, "bfloat16", "bfloat16{0x3f00 /* 0.5 */}"),
        (1000.0, "float8_e4m3fn", "float8_e4m3fn{0x7e /* 1000 */}"),
    ],
)
def test_literals(value: float, kind: str, text: str) -> None:
    assert literal(value, dtype(kind)) == text


def test_float32_literals_are_shortest() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 2000, dtype=np.uint32)
    for value in bits.view(np.float32):
        if np.isfinite(value):
            text = literal(float(value), FLOAT32)
            assert np.float32(text.removesuffix("f")) == value


def test_narrow_literals_are_rounded_once() -> None:
    # Just above a tie of float16, by less than float32 can tell.
    tie = 1.0 + 2.0**-11
    assert encode(tie, FLOAT16) == 0x3C00
    assert encode(tie + 2.0**-40, FLOAT16) == 0x3C01
    assert encode(1.0 + 2.0**-8 + 2.0**-40, BFLOAT16) == 0x3F81
    assert encode(1e30, FLOAT16) == 0x7C00


@pytest.mark.parametrize("name", [n for n in SCALARS if n.startswith(("float8", "float4"))])
def test_narrow_literals_of_representable_values(name: str) -> None:
    kind = SCALARS[name]
    bits = np.arange(1 << kind.bits).astype(np.uint8)
    values = bits.view(kind.numpy).astype(np.float64)
    for code, value in zip(bits, values, strict=True):
        if np.isfinite(value) and value != 0:
            assert encode(float(value), kind) == code


def test_double_literals() -> None:
    assert float(literal(1 / 3, FLOAT64)) == 1 / 3
    largest = 3.3895313892515355e38
    assert encode(largest, BFLOAT16) == 0x7F7F


def test_names() -> None:
    names = Names(frozenset({"taken"}))
    assert [names(n) for n in ("a", "taken", "for", "1x", "a.b", "a_b", "__c", "printf", "a")] == [
        *("a", "taken_1", "for_1", "_1x", "a_b", "a_b_1", "_c", "printf_1", "a"),
    ]
