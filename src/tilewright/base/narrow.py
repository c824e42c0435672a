"""The floating formats of at most 16 bits: their fields, and numbers rounded into them.

Imports `base.dtypes`. Rounding is what conversions of PTX do (PTX ISA, "cvt"): to nearest even,
for formats of at most 8 bits with `.satfinite`. A scale, `float8_e8m0fnu`, has neither sign nor
zero: it takes the magnitude of a number, rounded up to a power of two (`cvt.rp` there).

    >>> encode(300.0, dtype("float8_e4m3fn")), encode(0.3, dtype("float8_e8m0fnu"))
    (121, 126)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from tilewright.base.dtypes import DType

Specials = Literal["ieee", "nan", "minus zero", "none"]


@dataclass(frozen=True, slots=True)
class Format:
    """The fields of a floating format, from the top: a sign, an exponent, a fraction.

    `specials` tells what stands for infinities and NaNs: "ieee" the highest exponent, as in
    IEEE 754; "nan" all ones for NaN, without infinities; "minus zero" what would be -0 for NaN,
    likewise; "none" nothing. With `scale` there is no sign, and exponent 0 is as any other.
    """

    exponent: int
    fraction: int
    bias: int
    specials: Specials
    scale: bool = False

    @property
    def sign(self) -> int:
        """Give the bit of the sign; 0 if there is none."""
        return 0 if self.scale else 1 << (self.exponent + self.fraction)

    @property
    def negates(self) -> bool:
        """Tell the formats in which the sign alone makes of every number its opposite."""
        return not self.scale and self.specials != "minus zero"

    @property
    def ones(self) -> int:
        """Give the bits of exponent and fraction."""
        return (1 << (self.exponent + self.fraction)) - 1

    @property
    def infinity(self) -> int:
        """Give the bits above the largest finite magnitude: of infinity, where there is one."""
        match self.specials:
            case "ieee":
                return self.ones - (1 << self.fraction) + 1
            case "nan":
                return self.ones
            case _:
                return self.ones + 1

    @property
    def largest(self) -> int:
        """Give the bits of the largest finite number."""
        return self.infinity - 1

    @property
    def nan(self) -> int:
        """Give the bits that a NaN becomes: the largest number where there is no NaN."""
        return self.sign if self.specials == "minus zero" else self.ones

    @property
    def saturates(self) -> bool:
        """Tell the formats in which what is too large becomes the largest number."""
        return self.exponent + self.fraction < 15


FORMATS: dict[str, Format] = {
    "float16": Format(5, 10, 15, "ieee"),
    "bfloat16": Format(8, 7, 127, "ieee"),
    "float8_e3m4": Format(3, 4, 3, "ieee"),
    "float8_e4m3": Format(4, 3, 7, "ieee"),
    "float8_e4m3fn": Format(4, 3, 7, "nan"),
    "float8_e4m3b11fnuz": Format(4, 3, 11, "minus zero"),
    "float8_e4m3fnuz": Format(4, 3, 8, "minus zero"),
    "float8_e5m2": Format(5, 2, 15, "ieee"),
    "float8_e5m2fnuz": Format(5, 2, 16, "minus zero"),
    "float8_e8m0fnu": Format(8, 0, 127, "nan", scale=True),
    "float6_e2m3fn": Format(2, 3, 1, "none"),
    "float6_e3m2fn": Format(3, 2, 3, "none"),
    "float4_e2m1fn": Format(2, 1, 1, "none"),
}


def format_of(dtype: DType) -> Format | None:
    """Describe an element type; `None` for what is no float of at most 16 bits."""
    return FORMATS.get(dtype.name)


def is_narrow(dtype: DType) -> bool:
    """Tell the floating types that are computed with in float32: those of at most 16 bits."""
    return dtype.name in FORMATS


def rounded(value: float, dtype: DType) -> float:
    """Round a number to a floating type."""
    if is_narrow(dtype):
        bits = np.array(encode(value, dtype), f"u{dtype.bytes}")
        return float(bits.view(dtype.numpy).astype(np.float64))
    with np.errstate(over="ignore"):
        return float(dtype.numpy.type(value))


def overflows(value: float, dtype: DType) -> bool:
    """Tell whether a finite number is beyond the largest one of a floating type, once rounded."""
    format = format_of(dtype)
    if not math.isfinite(value):
        return False
    if format is None:
        return math.isinf(rounded(value, dtype))
    magnitude = _power_above(value, format) if format.scale else _magnitude(value, format)
    return magnitude > format.largest


def encode(value: float, dtype: DType) -> int:
    """Round a number to a format of at most 16 bits, once, and give its bits."""
    format = FORMATS[dtype.name]
    if math.isnan(value):
        return format.nan
    if math.isinf(value):
        magnitude = format.infinity
    elif format.scale:
        magnitude = _power_above(value, format)
    else:
        magnitude = _magnitude(value, format)
    magnitude = min(magnitude, format.largest if format.saturates else format.infinity)
    negative = math.copysign(1.0, value) < 0
    if magnitude == 0 and format.specials == "minus zero":
        negative = False
    return magnitude | (format.sign if negative else 0)


def _magnitude(value: float, format: Format) -> int:
    """Round to nearest even, without a bound."""
    if value == 0:
        return 0
    lowest = 1 - format.bias - format.fraction  # the exponent of the last bit of a subnormal
    last = max(math.frexp(value)[1] - 1 - format.fraction, lowest)
    # A carry out of the fraction goes into the exponent, as it should.
    return ((last - lowest) << format.fraction) + round(abs(Fraction(value)) / Fraction(2) ** last)


def _power_above(value: float, format: Format) -> int:
    if value == 0:
        return 0
    fraction, exponent = math.frexp(abs(value))
    return max(exponent - (fraction == 0.5) + format.bias, 0)
