"""The functions of the dialect, in operations that every backend rounds alike.

May import `base` and `ir`. Everything is float32 arithmetic: sums, products, quotients, square
roots and `fma`, rounded to nearest even, and operations on bits. The errors stated are in units
in the last place (ulp), largest seen over all of the function's range; tests hold to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tilewright.base.dtypes import FLOAT32, INT32
from tilewright.ir.expressions import (
    Bitcast,
    Expr,
    Intrinsic,
    Operand,
    binary,
    cast,
    constant,
    select,
    unary,
)
from tilewright.ir.types import ScalarType

Bound = Callable[[str, Expr], Expr]
Function = Callable[..., Expr]

_INFINITY = float("inf")
_LOG2_E, _LOG2_10 = math.log2(math.e), math.log2(10)
# Terms of the series that are used: the first one left out is below 2 ** -27 of the sum.
_EXPONENTIAL = [1 / math.factorial(n) for n in range(8)]
_LOGARITHM = [2 / n for n in (3, 5, 7, 9)]
_SINE = [(-1) ** n / math.factorial(2 * n + 1) for n in range(5)]
_COSINE = [(-1) ** n / math.factorial(2 * n) for n in range(6)]


def _split(value: Fraction | float, parts: int) -> list[float]:
    """Write a number as a sum of float32s, each the nearest to what is left."""
    found: list[float] = []
    left = Fraction(value)
    for _ in range(parts):
        found.append(float(np.float32(float(left))))
        left -= Fraction(found[-1])
    return found


# π / 2 to 100 bits, ln 2 and log10 2 to the bits of a double and beyond.
_HALF_PI = _split(Fraction(884279719003555, 562949953421312) + Fraction(6.123233995736766e-17), 3)
_LN_2 = _split(Fraction(math.log(2)) + Fraction(2.3190468138462996e-17), 2)
_LOG10_2 = _split(math.log10(2), 2)
_TWO_OVER_LN_2 = _split(2 / math.log(2), 2)


# ---------------------------------------------------------------------------- notation


def _float(value: float) -> Expr:
    return constant(value, FLOAT32)


def _lifted(value: Operand) -> Expr:
    return value if isinstance(value, Expr) else _float(value)


def _call(name: str, *operands: Expr) -> Expr:
    return Intrinsic(name, operands, operands[0].type)


def _fma(a: Operand, b: Operand, c: Operand) -> Expr:
    return _call("fma", _lifted(a), _lifted(b), _lifted(c))


def _test(op: str, left: Expr, right: Operand) -> Expr:
    return binary(op, left, right)


def _choose(condition: Expr, true: Operand, false: Operand) -> Expr:
    return select(condition, _lifted(true), _lifted(false))


def _both(left: Expr, right: Expr) -> Expr:
    return binary("logical_and", left, right)


def _either(left: Expr, right: Expr) -> Expr:
    return binary("logical_or", left, right)


def _bits(value: Expr) -> Expr:
    return Bitcast(value, ScalarType(INT32))


def _from_bits(value: Expr) -> Expr:
    return Bitcast(value, ScalarType(FLOAT32))


def _clamp(x: Expr, low: float, high: float) -> Expr:
    """Bring a number between two bounds; NaN stays."""
    return _choose(_test("gt", x, high), high, _choose(_test("lt", x, low), low, x))


def _series(bound: Bound, x: Expr, coefficients: list[float]) -> Expr:
    """Sum a power series, by Horner's rule; each step has a name, so that none is repeated."""
    total: Expr = _float(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = bound("sum", _fma(total, x, coefficient))
    return total


def _nearest(bound: Bound, x: Expr) -> Expr:
    return bound("n", _call("nearbyint", x))


def _scaled(bound: Bound, value: Expr, n: Expr) -> Expr:
    """Multiply by 2 ** n, in two steps, so that only the last may round; |n| <= 252."""
    power = bound("power", cast(n, INT32))
    half = bound("half", power >> 1)
    return value * _from_bits((half + 127) << 23) * _from_bits((power - half + 127) << 23)


# ---------------------------------------------------------------------------- exponentials


def exp(bound: Bound, x: Expr) -> Expr:
    """Compute e ** x; 1 ulp."""
    x = bound("x", _clamp(x, -105.0, 89.0))
    n, r = _reduced(bound, x)
    return _scaled(bound, _series(bound, r, _EXPONENTIAL), n)


def exp2(bound: Bound, x: Expr) -> Expr:
    """Compute 2 ** x; 1 ulp, exact for integers."""
    x = bound("x", _clamp(x, -152.0, 129.0))
    return _power_of_two(bound, x, _float(0.0))


def exp10(bound: Bound, x: Expr) -> Expr:
    """Compute 10 ** x; 2 ulp."""
    x = bound("x", _clamp(x, -46.0, 39.0))
    n = _nearest(bound, x * _LOG2_10)
    r = bound("r", _fma(-n, _LOG10_2[1], _fma(-n, _LOG10_2[0], x)))
    return _scaled(bound, _series(bound, bound("r", r * math.log(10)), _EXPONENTIAL), n)


def _reduced(bound: Bound, x: Expr) -> tuple[Expr, Expr]:
    """Write x as n ln 2 + r, with n an integer and |r| <= ln 2 / 2."""
    n = _nearest(bound, x * _LOG2_E)
    return n, bound("r", _fma(-n, _LN_2[1], _fma(-n, _LN_2[0], x)))


def _power_of_two(bound: Bound, high: Expr, low: Expr) -> Expr:
    """Compute 2 ** (high + low), for a low part below 1."""
    n = _nearest(bound, high)
    f = bound("f", (high - n) + low)
    terms = [term * math.log(2) ** n for n, term in enumerate(_EXPONENTIAL)]
    return _scaled(bound, _series(bound, f, terms), n)


def _expm1(bound: Bound, x: Expr) -> Expr:
    """Compute e ** x - 1 for 0 <= x <= 44; 2 ulp."""
    n, r = _reduced(bound, x)
    tail = bound("tail", _fma(r * r, _series(bound, r, _EXPONENTIAL[2:]), r))
    power = bound("scale", _from_bits((cast(n, INT32) + 127) << 23))
    return bound("expm1", _fma(power, tail, power - 1.0))


def sigmoid(bound: Bound, x: Expr) -> Expr:
    """Compute 1 / (1 + e ** -x), below 0 as e ** x / (1 + e ** x); 3 ulp."""
    x = bound("x", x)
    power = bound("power", exp(bound, -_call("abs", x)))
    return _choose(_test("ge", x, 0.0), 1.0, power) / (1.0 + power)


def tanh(bound: Bound, x: Expr) -> Expr:
    """Compute the hyperbolic tangent; 3 ulp."""
    x = bound("x", x)
    magnitude = bound("magnitude", _clamp(_call("abs", x), 0.0, 22.0))
    t = _expm1(bound, bound("twice", magnitude * 2.0))
    return _call("copysign", t / (t + 2.0), x)


# ---------------------------------------------------------------------------- logarithms


def _parts(bound: Bound, x: Expr) -> tuple[Expr, Expr]:
    """Write a positive x as m 2 ** e with m in [√½, √2); gives m and, as a float, e."""
    small = bound("small", _test("lt", x, 2.0**-126))
    bits = bound("bits", _bits(_choose(small, x * 2.0**23, x)))
    shift = bound("shift", (bits - 0x3F3504F3) >> 23)
    m = bound("m", _from_bits(bits - (shift << 23)))
    return m, bound("e", cast(shift, FLOAT32) - _choose(small, 23.0, 0.0))


def _logarithm(bound: Bound, m: Expr) -> tuple[Expr, Expr]:
    """Compute ln m for m in [√½, √2) as the difference of two numbers: m - 1 and another."""
    f = bound("f", m - 1.0)
    s = bound("s", f / (f + 2.0))
    z = bound("z", s * s)
    half = bound("half", (f * 0.5) * f)
    rest = _series(bound, z, _LOGARITHM) * z
    return f, bound("rest", half - s * (half + rest))


def _of_positive(x: Expr, value: Expr) -> Expr:
    """Complete a logarithm with its values at 0, at infinity and below 0."""
    value = _choose(_test("eq", x, _INFINITY), _INFINITY, value)
    value = _choose(_test("eq", x, 0.0), -_INFINITY, value)
    return _choose(_test("ge", x, 0.0), value, float("nan"))


def log(bound: Bound, x: Expr) -> Expr:
    """Compute the natural logarithm; 1 ulp."""
    x = bound("x", x)
    m, e = _parts(bound, x)
    f, rest = _logarithm(bound, m)
    low = bound("low", _fma(e, _LN_2[1], -rest))
    return _of_positive(x, bound("log", _fma(e, _LN_2[0], low + f)))


def log2(bound: Bound, x: Expr) -> Expr:
    """Compute the logarithm to the base 2; 2 ulp, exact for powers of two."""
    x = bound("x", x)
    m, e = _parts(bound, x)
    f, rest = _logarithm(bound, m)
    return _of_positive(x, bound("log2", _fma(f - rest, _LOG2_E, e)))


def log10(bound: Bound, x: Expr) -> Expr:
    """Compute the logarithm to the base 10; 2 ulp."""
    x = bound("x", x)
    m, e = _parts(bound, x)
    f, rest = _logarithm(bound, m)
    low = bound("low", _fma(e, _LOG10_2[1], (f - rest) * math.log10(math.e)))
    return _of_positive(x, bound("log10", _fma(e, _LOG10_2[0], low)))


def log1p(bound: Bound, x: Expr) -> Expr:
    """Compute ln(1 + x); 3 ulp."""
    x = bound("x", x)
    u = bound("u", x + 1.0)
    whole = bound("whole", log(bound, u))
    corrected = whole * (x / (u - 1.0))
    plain = _either(_test("eq", u, _INFINITY), _test("le", u, 0.0))
    return _choose(_test("eq", u, 1.0), x, _choose(plain, whole, corrected))


def pow(bound: Bound, x: Expr, y: Expr) -> Expr:
    """Compute x ** y with the special cases of C's `pow`; 4 ulp."""
    x, y = bound("x", x), bound("y", y)
    a = bound("a", _call("abs", x))
    high, low = _log2_in_two(bound, a)
    product = bound("product", y * high)
    exact = _both(_test("lt", product, 129.0), _test("gt", product, -152.0))
    rest = bound("rest", _choose(exact, _fma(y, high, -product) + y * low, 0.0))
    value = bound("value", _power_of_two(bound, bound("c", _clamp(product, -152.0, 129.0)), rest))
    return _with_cases_of_pow(bound, x, y, a, value)


def _log2_in_two(bound: Bound, a: Expr) -> tuple[Expr, Expr]:
    """Compute log2 of a number that is not negative as a sum of two, to some 2 ** -31."""
    m, e = _parts(bound, a)
    f = bound("f", m - 1.0)
    d = bound("d", m + 1.0)
    s = bound("s", f / d)
    missing = bound("missing", (_fma(-s, d, f) - s * (m - (d - 1.0))) / d)
    z = bound("z", s * s)
    third = bound("third", _series(bound, z, [1 / n for n in (3, 5, 7, 9, 11)]) * z * s)
    t = bound("t", s + third)
    t_low = bound("t_low", ((s - t) + third) + missing)
    product = bound("product", t * _TWO_OVER_LN_2[0])
    low = _fma(t, _TWO_OVER_LN_2[0], -product) + _fma(
        t, _TWO_OVER_LN_2[1], t_low * _TWO_OVER_LN_2[0]
    )
    total = bound("total", e + product)
    low = bound("low", ((e - total) + product) + low)
    high = _choose(_test("eq", a, 0.0), -_INFINITY, total)
    high = bound("high", _choose(_test("eq", a, _INFINITY), _INFINITY, high))
    return high, _choose(_test("ne", a, a), float("nan"), low)


def _with_cases_of_pow(bound: Bound, x: Expr, y: Expr, a: Expr, value: Expr) -> Expr:
    half = bound("half", y * 0.5)
    whole = bound("whole", _test("eq", _call("trunc", y), y))
    odd = _both(whole, _test("ne", _call("trunc", half), half))
    below = _both(_test("lt", x, 0.0), _test("lt", a, _INFINITY))
    value = bound("signed", _choose(odd, _call("copysign", value, x), value))
    value = _choose(_both(below, unary("not", whole)), float("nan"), value)
    value = _choose(_test("ne", x, x), x, _choose(_test("ne", y, y), y, value))
    at_minus_one = _both(_test("eq", x, -1.0), _test("eq", _call("abs", y), _INFINITY))
    one = _either(_either(_test("eq", y, 0.0), _test("eq", x, 1.0)), at_minus_one)
    return _choose(one, 1.0, value)


# ---------------------------------------------------------------------------- others


def sin(bound: Bound, x: Expr) -> Expr:
    """Compute the sine; 2 ulp for |x| <= 10 000, beyond that an error that grows with x."""
    n, r, z = _quadrant(bound, x)
    return _turned(bound, n, *_sine_and_cosine(bound, r, z))


def cos(bound: Bound, x: Expr) -> Expr:
    """Compute the cosine; 2 ulp for |x| <= 10 000, beyond that an error that grows with x."""
    n, r, z = _quadrant(bound, x)
    return _turned(bound, bound("n", n + 1), *_sine_and_cosine(bound, r, z))


def tan(bound: Bound, x: Expr) -> Expr:
    """Compute the tangent; 4 ulp for |x| <= 10 000, beyond that an error that grows with x."""
    n, r, z = _quadrant(bound, x)
    sine, cosine = _sine_and_cosine(bound, r, z)
    odd = _test("ne", n & 1, 0)
    return _choose(odd, -(cosine / sine), sine / cosine)


def _quadrant(bound: Bound, x: Expr) -> tuple[Expr, Expr, Expr]:
    """Write x as n π / 2 + r; gives n, r and r²."""
    x = bound("x", x)
    n = _nearest(bound, x * (2 / math.pi))
    r = x
    for part in _HALF_PI:
        r = bound("r", _fma(-n, part, r))
    # Where x has no digits for the remainder, the result still is the sine of some number.
    r = bound("r", _clamp(r, -0.8, 0.8))
    return bound("n", cast(n, INT32)), r, bound("z", r * r)


def _sine_and_cosine(bound: Bound, r: Expr, z: Expr) -> tuple[Expr, Expr]:
    tail = _series(bound, z, _SINE[1:]) * z
    return bound("sine", _fma(tail, r, r)), _series(bound, z, _COSINE)


def _turned(bound: Bound, n: Expr, sine: Expr, cosine: Expr) -> Expr:
    """Give the sine of n quarter turns more."""
    turned = bound("turned", _choose(_test("ne", n & 1, 0), cosine, sine))
    return _choose(_test("ne", n & 2, 0), -turned, turned)


def rsqrt(bound: Bound, x: Expr) -> Expr:
    """Compute 1 / √x, both steps correctly rounded; 2 ulp."""
    return 1.0 / _call("sqrt", x)


def round_away(bound: Bound, x: Expr) -> Expr:
    """Round to the nearest integer, halves away from zero; exact."""
    x = bound("x", x)
    whole = bound("whole", _call("trunc", x))
    up = _test("ge", _call("abs", x - whole), 0.5)
    one = _call("copysign", _float(1.0), x)
    return _choose(up, whole + one, _call("copysign", whole, x))


FUNCTIONS: dict[str, Function] = {
    "cos": cos,
    "exp": exp,
    "exp10": exp10,
    "exp2": exp2,
    "log": log,
    "log10": log10,
    "log1p": log1p,
    "log2": log2,
    "pow": pow,
    "round": round_away,
    "rsqrt": rsqrt,
    "sigmoid": sigmoid,
    "sin": sin,
    "tan": tan,
    "tanh": tanh,
}
# What both backends have, and round alike.
PRIMITIVES = frozenset(
    {
        *("abs", "ceil", "copysign", "floor", "fma", "max", "min", "nearbyint", "sqrt", "trunc"),
        *("isfinite", "isinf", "isnan"),
        *("brev", "clz", "popcount"),
    }
)
