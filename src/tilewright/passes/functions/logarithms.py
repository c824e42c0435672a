"""Logarithms, and the inverses of the hyperbolic functions, which are made of them.

May import `base`, `ir` and the modules of this folder below it. ln x is e ln 2 + ln m with an
integer e and m between √½ and √2; ln m is 2 artanh s with s = (m - 1) / (m + 1). Errors are in
units in the last place (ulp).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import numpy as np

from tilewright.ir.expressions import Expr, cast
from tilewright.passes.functions.constants import LN_2, LN_10, polynomial, split
from tilewright.passes.functions.notation import (
    INFINITY,
    Layout,
    Steps,
    at_least,
    bits_of,
    call,
    choose,
    equal,
    fma,
    from_bits,
    greater,
    layout,
    less,
    magnitude,
    no_number,
    number,
    series,
    with_sign,
)

_REACH = 0.02945  # of s²: (√2 - 1)² / (√2 + 1)², and what rounding may add


def odd_parts(start: int) -> Iterator[Fraction]:
    """List 1/n for odd n."""
    for n in itertools.count(start, 2):
        yield Fraction(1, n)


@cache
def _logarithm(fields: Layout) -> list[float]:
    """List coefficients of (2 artanh s - 2 s) / s³, in s²."""
    terms = (2 * each for each in odd_parts(3))
    return polynomial(terms, _REACH, fields.tolerance() / _REACH)


def parts(steps: Steps, x: Expr) -> tuple[Expr, Expr]:
    """Write a positive x as m 2 ** e with m in [√½, √2); gives m and, as a float, e."""
    fields = layout(x)
    up = float(fields.precision)
    least = int(np.array(math.sqrt(0.5), x.dtype.numpy).view(fields.bits.numpy))
    small = steps("small", less(x, fields.smallest))
    bits = steps("bits", bits_of(choose(small, x * 2.0**up, x)))
    shift = steps("shift", (bits - least) >> fields.fraction)
    m = steps("m", from_bits(bits - (shift << fields.fraction)))
    return m, steps("e", cast(shift, x.dtype) - choose(small, number(up, x), 0.0))


def _of_one_plus(steps: Steps, f: Expr) -> Expr:
    """Compute f - ln(1 + f), for 1 + f in [√½, √2)."""
    s = steps("s", f / (f + 2.0))
    z = steps("z", s * s)
    half = steps("half", (f * 0.5) * f)
    rest = series(steps, z, _logarithm(layout(f))) * z
    return steps("rest", half - s * (half + rest))


def _of_positive(x: Expr, value: Expr) -> Expr:
    """Complete a logarithm of x with its values at 0, at infinity and below 0."""
    value = choose(equal(x, INFINITY), INFINITY, value)
    value = choose(equal(x, 0.0), -INFINITY, value)
    return choose(at_least(x, 0.0), value, no_number(x))


def log(steps: Steps, x: Expr) -> Expr:
    """Compute the natural logarithm; 1 ulp."""
    x = steps("x", x)
    high, low = split(LN_2, 2, x.dtype)
    m, e = parts(steps, x)
    f = steps("f", m - 1.0)
    small = steps("low", fma(e, low, -_of_one_plus(steps, f)))
    return _of_positive(x, steps("log", fma(e, high, small + f)))


def log2(steps: Steps, x: Expr) -> Expr:
    """Compute the logarithm to the base 2; 2 ulp, exact for powers of two."""
    x = steps("x", x)
    m, e = parts(steps, x)
    return _of_positive(x, steps("log2", e + _times(steps, m, 1 / LN_2, number(0.0, x))))


def log10(steps: Steps, x: Expr) -> Expr:
    """Compute the logarithm to the base 10; 1 ulp."""
    x = steps("x", x)
    high, low = split(LN_2 / LN_10, 2, x.dtype)
    m, e = parts(steps, x)
    small = _times(steps, m, 1 / LN_10, e * low)
    return _of_positive(x, steps("log10", fma(e, high, small)))


def _times(steps: Steps, m: Expr, factor: Fraction, more: Expr) -> Expr:
    """Compute ln m times a number that is given exactly, and add something small."""
    high, low = split(factor, 2, m.dtype)
    f = steps("f", m - 1.0)
    rest = _of_one_plus(steps, f)
    return steps("small", fma(f, high, fma(-rest, high, fma(f, low, more))))


def log1p(steps: Steps, x: Expr) -> Expr:
    """Compute ln(1 + x); 1 ulp."""
    x = steps("x", x)
    u = steps("u", x + 1.0)
    value = _with_rest(steps, u, x, _lost(u, x))
    return choose(equal(x, 0.0), x, _of_positive(u, value))


def _lost(u: Expr, x: Expr) -> Expr:
    """Find what is lost where 1 + x is rounded to u."""
    return choose(greater(x, 1.0), 1.0 - (u - x), x - (u - 1.0))


def _with_rest(steps: Steps, u: Expr, x: Expr, lost: Expr) -> Expr:
    """Compute ln(u + lost), of a u that is positive; near 1 it is ln(1 + x)."""
    high, low = split(LN_2, 2, x.dtype)
    m, e = parts(steps, u)
    near = steps("near", equal(e, 0.0))
    f = steps("f", choose(near, x, m - 1.0))
    rest = steps("lost", choose(near, 0.0, lost / u))
    small = steps("low", fma(e, low, rest - _of_one_plus(steps, f)))
    return steps("ln", fma(e, high, small + f))


# ---------------------------------------------------------------------------- inverse hyperbolic


def asinh(steps: Steps, x: Expr) -> Expr:
    """Compute the inverse hyperbolic sine; 3 ulp."""
    x = steps("x", x)
    a = steps("a", magnitude(x))
    root = _root(steps, a, fma(a, a, 1.0))
    # ln(a + √(a² + 1)), as ln(1 + …): a² / (1 + √…) is √… - 1 without the difference.
    return with_sign(_grown(steps, a, a + a * (a / (root + 1.0))), x)


def acosh(steps: Steps, x: Expr) -> Expr:
    """Compute the inverse hyperbolic cosine; 3 ulp."""
    x = steps("x", x)
    t = steps("t", x - 1.0)
    root = _root(steps, x, t * (x + 1.0))
    return choose(at_least(x, 1.0), _grown(steps, x, t + root), no_number(x))


def _huge(a: Expr) -> Expr:
    """Tell numbers beside whose squares 1 is nothing."""
    return greater(a, 2.0 ** (layout(a).precision // 2 + 2))


def _root(steps: Steps, a: Expr, square: Expr) -> Expr:
    return steps("root", call("sqrt", choose(_huge(a), 1.0, square)))


def _grown(steps: Steps, a: Expr, growth: Expr) -> Expr:
    """Compute ln(1 + growth), or ln 2 a where a is huge."""
    huge = steps("huge", _huge(a))
    growth = steps("growth", growth)
    u = steps("u", choose(huge, a, growth + 1.0))
    value = _with_rest(steps, u, growth, choose(huge, 0.0, _lost(u, growth)))
    value = steps("value", choose(huge, value + float(LN_2), value))
    value = choose(less(a, INFINITY), value, a + a)
    return choose(equal(growth, 0.0), growth, value)


def atanh(steps: Steps, x: Expr) -> Expr:
    """Compute the inverse hyperbolic tangent; 3 ulp."""
    x = steps("x", x)
    a = steps("a", magnitude(x))
    quotient = steps("quotient", a / (1.0 - a))
    small = fma(a + a, quotient, a + a)
    growth = steps("growth", choose(less(a, 0.5), small, quotient + quotient))
    return with_sign(log1p(steps, growth) * 0.5, x)
