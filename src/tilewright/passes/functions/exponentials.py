"""Exponentials, and the hyperbolic functions, which are made of them.

May import `base`, `ir` and the modules of this folder below it. e ** x is 2 ** n e ** r with an
integer n and |r| <= ln 2 / 2. Errors are in units in the last place (ulp).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from tilewright.ir.expressions import Expr
from tilewright.passes.functions.constants import LN_2, LN_10, polynomial, split
from tilewright.passes.functions.notation import (
    Layout,
    Steps,
    at_least,
    choose,
    clamped,
    equal,
    fma,
    layout,
    less,
    magnitude,
    nearest,
    power_of_two,
    scaled,
    series,
    with_sign,
)

_LOG2_E, _LOG2_10 = float(1 / LN_2), float(LN_10 / LN_2)
_REACH = 0.3471  # of r: ln 2 / 2, and what rounding may add


def _inverse_factorials(start: int, step: int = 1) -> Iterator[Fraction]:
    for n in itertools.count(start, step):
        yield Fraction(1, math.factorial(n))


@cache
def _exponential(fields: Layout) -> list[float]:
    """List coefficients of e ** r; the first two are exact."""
    tolerance = fields.tolerance(0.5) / _REACH**2
    return [1.0, 1.0, *polynomial(_inverse_factorials(2), _REACH, tolerance, signed=True)]


@cache
def _power_of_two(fields: Layout) -> list[float]:
    """List coefficients of 2 ** f for |f| <= ½; the first is exact."""

    def terms() -> Iterator[Fraction]:
        for n, term in enumerate(_inverse_factorials(1), 1):
            yield LN_2**n * term

    reach = 0.501
    return [1.0, *polynomial(terms(), reach, fields.tolerance(0.5) / reach, signed=True)]


@cache
def _hyperbolic_sine(fields: Layout) -> list[float]:
    """List coefficients of (sinh x - x) / x³, in x², for |x| <= 1."""
    return polynomial(_inverse_factorials(3, 2), 1, fields.tolerance())


def _least(fields: Layout) -> float:
    """Give the exponent of a power of two that rounds to 0, and all below it too."""
    return -float(fields.bias + fields.fraction + 2)


def reduced(steps: Steps, x: Expr) -> tuple[Expr, Expr]:
    """Write x as n ln 2 + r, with n an integer and |r| <= ln 2 / 2."""
    high, low = split(LN_2, 2, x.dtype)
    n = nearest(steps, x * _LOG2_E)
    return n, steps("r", fma(-n, low, fma(-n, high, x)))


def exp(steps: Steps, x: Expr) -> Expr:
    """Compute e ** x; 1 ulp."""
    return _exp_halved(steps, x, 0)


def _exp_halved(steps: Steps, x: Expr, times: int) -> Expr:
    """Compute e ** x, halved so many times without overflow in between; 1 ulp."""
    fields = layout(x)
    low, high = _least(fields), fields.bias + 1.5 + times
    x = clamped(steps, x, low * float(LN_2), high * float(LN_2))
    n, r = reduced(steps, x)
    return scaled(steps, series(steps, r, _exponential(fields)), n - float(times) if times else n)


def exp2(steps: Steps, x: Expr) -> Expr:
    """Compute 2 ** x; 1 ulp, exact for integers."""
    fields = layout(x)
    x = clamped(steps, x, _least(fields), fields.bias + 2.0)
    n = nearest(steps, x)
    return scaled(steps, series(steps, steps("f", x - n), _power_of_two(fields)), n)


def exp2_of_sum(steps: Steps, high: Expr, low: Expr) -> Expr:
    """Compute 2 ** (high + low), for a high part that `exp2` takes and a low part below 1."""
    n = nearest(steps, high)
    f = steps("f", (high - n) + low)
    return scaled(steps, series(steps, f, _power_of_two(layout(high))), n)


def exp10(steps: Steps, x: Expr) -> Expr:
    """Compute 10 ** x; 2 ulp."""
    fields = layout(x)
    log10_2 = LN_2 / LN_10
    high, low = split(log10_2, 2, x.dtype)
    least, most = _least(fields) * float(log10_2), (fields.bias + 1.5) * float(log10_2)
    x = clamped(steps, x, least, most)
    n = nearest(steps, x * _LOG2_10)
    r = steps("r", fma(-n, low, fma(-n, high, x)) * float(LN_10))
    return scaled(steps, series(steps, r, _exponential(fields)), n)


def expm1(steps: Steps, x: Expr) -> Expr:
    """Compute e ** x - 1; 3 ulp."""
    x = steps("x", x)
    return with_sign(_expm1(steps, x), x)


def _expm1(steps: Steps, x: Expr) -> Expr:
    """Compute e ** x - 1, but for the sign of zero; 3 ulp."""
    fields = layout(x)
    low, high = -float(fields.precision + 1.5), fields.bias + 1.5
    n, r = reduced(steps, clamped(steps, x, low * float(LN_2), high * float(LN_2)))
    tail = steps("tail", fma(r * r, series(steps, r, _exponential(fields)[2:]), r))
    half = steps("half", power_of_two(n - 1.0, x))
    value = fma(half, tail, half - 0.5) * 2.0
    return steps("expm1", choose(equal(n, 0.0), tail, value))


def sigmoid(steps: Steps, x: Expr) -> Expr:
    """Compute 1 / (1 + e ** -x), below 0 as e ** x / (1 + e ** x); 3 ulp."""
    x = steps("x", x)
    power = steps("power", exp(steps, -magnitude(x)))
    return choose(at_least(x, 0.0), 1.0, power) / (power + 1.0)


def tanh(steps: Steps, x: Expr) -> Expr:
    """Compute the hyperbolic tangent; 3 ulp."""
    x = steps("x", x)
    twice = steps("twice", clamped(steps, magnitude(x), 0.0, 22.0) * 2.0)
    t = _expm1(steps, twice)
    return with_sign(t / (t + 2.0), x)


def sinh(steps: Steps, x: Expr) -> Expr:
    """Compute the hyperbolic sine; 2 ulp."""
    x = steps("x", x)
    a = steps("a", magnitude(x))
    half = steps("half", _exp_halved(steps, a, 1))
    z = steps("z", a * a)
    small = fma(a * z, series(steps, z, _hyperbolic_sine(layout(x))), a)
    return with_sign(choose(less(a, 1.0), small, half - 0.25 / half), x)


def cosh(steps: Steps, x: Expr) -> Expr:
    """Compute the hyperbolic cosine; 2 ulp."""
    half = steps("half", _exp_halved(steps, magnitude(x), 1))
    return half + 0.25 / half
