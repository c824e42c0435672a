"""Sine, cosine and tangent, and their inverses.

May import `base`, `ir` and the modules of this folder below it. An angle is n quarter turns and a
rest r, |r| <= π/4: found by subtraction of π/2 in parts, or, where a float32 is large, from those
digits of 2/π that matter (M. Payne and R. Hanek, "Radian reduction for trigonometric functions",
1983). Errors are in units in the last place (ulp).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from tilewright.base.dtypes import FLOAT32, FLOAT64, INT32, INT64, UINT64
from tilewright.ir.expressions import Expr, cast, constant, select
from tilewright.passes.functions.constants import PI, polynomial, split
from tilewright.passes.functions.logarithms import odd_parts
from tilewright.passes.functions.notation import (
    INFINITY,
    Layout,
    Steps,
    bits_of,
    both,
    call,
    choose,
    clamped,
    either,
    equal,
    fma,
    greater,
    is_nan,
    layout,
    less,
    magnitude,
    nearest,
    no_number,
    number,
    series,
    with_sign,
)

_NEAR = 2.0**16  # float32s up to this are reduced by subtraction
_ANGLE = (math.pi / 4 * 1.01) ** 2  # the reach of r²
_EIGHTH = math.sqrt(2) - 1  # the tangent of π/8


def _alternating(terms: Iterator[Fraction]) -> Iterator[Fraction]:
    for n, term in enumerate(terms):
        yield -term if n % 2 == 0 else term


def _inverse_factorials(start: int) -> Iterator[Fraction]:
    for n in itertools.count(start, 2):
        yield Fraction(1, math.factorial(n))


@cache
def _sine(fields: Layout) -> list[float]:
    """List coefficients of (sin r - r) / r³, in r²."""
    return polynomial(_alternating(_inverse_factorials(3)), _ANGLE, fields.tolerance() / _ANGLE)


@cache
def _cosine(fields: Layout) -> list[float]:
    """List coefficients of cos r in r²; the first two are exact."""
    terms = _alternating(_inverse_factorials(4))
    rest = polynomial(terms, _ANGLE, fields.tolerance(0.5) / _ANGLE**2)
    return [1.0, -0.5, *(-each for each in rest)]


# ---------------------------------------------------------------------------- of an angle


def sin(steps: Steps, x: Expr) -> Expr:
    """Compute the sine; 2 ulp, of float64 up to 2 ** 30."""
    x = steps("x", x)
    n, r = _quarters(steps, x)
    return choose(equal(x, 0.0), x, _turned(steps, n, *_sine_and_cosine(steps, r)))


def cos(steps: Steps, x: Expr) -> Expr:
    """Compute the cosine; 2 ulp, of float64 up to 2 ** 30."""
    n, r = _quarters(steps, steps("x", x))
    return _turned(steps, steps("n", n + 1), *_sine_and_cosine(steps, r))


def tan(steps: Steps, x: Expr) -> Expr:
    """Compute the tangent; 4 ulp, of float64 up to 2 ** 30."""
    x = steps("x", x)
    n, r = _quarters(steps, x)
    sine, cosine = _sine_and_cosine(steps, r)
    odd = steps("odd", equal(n & 1, 1))
    quotient = choose(odd, -cosine, sine) / choose(odd, sine, cosine)
    return choose(equal(x, 0.0), x, quotient)


def _quarters(steps: Steps, x: Expr) -> tuple[Expr, Expr]:
    """Write x as n π/2 + r; gives n, modulo a multiple of 4, and r."""
    n = nearest(steps, x * float(2 / PI))
    r = x
    for part in split(PI / 2, 3, x.dtype):
        r = steps("r", fma(-n, part, r))
    whole = steps("whole", cast(n, INT32))
    # Where x has no digits for the rest, the result still is the sine of some number.
    r = clamped(steps, r, -0.8, 0.8)
    return _far(steps, x, whole, r) if x.dtype == FLOAT32 else (whole, r)


def _far(steps: Steps, x: Expr, n: Expr, r: Expr) -> tuple[Expr, Expr]:
    """Reduce a large float32 by the digits of 2/π, 94 of them behind the point."""
    turns, rest = steps.cell("turns", n), steps.cell("rest", r)
    size = steps("size", magnitude(x))
    with steps.when(both(greater(size, _NEAR), less(size, INFINITY))):
        bits = steps("bits", bits_of(size))
        integer = steps("integer", cast((bits & 0x7FFFFF) | 0x800000, UINT64))
        high, low = _digits(steps, (bits >> 23) - 127 - 23)
        # Quarter turns, modulo 4: two bits before the point, 62 behind.
        product = steps("product", high * integer + (((low >> 32) * integer) >> 32))
        whole = steps("whole", (product + (1 << 61)) >> 62)
        behind = steps("behind", cast(product - (whole << 62), INT64))
        angle = steps("angle", cast(behind, FLOAT64) * float(PI / 2 / 2**62))
        negative = less(x, 0.0)
        count = steps("count", cast(whole, INT32))
        steps.assign(turns, select(negative, -count, count))
        steps.assign(rest, with_sign(number(1.0, x), x) * cast(angle, FLOAT32))
    return turns, rest


def _digits(steps: Steps, shift: Expr) -> tuple[Expr, Expr]:
    """Take 128 bits of 2 ** shift * 2/π, from the bit for 2 down, as two uint64."""
    shown = int(2 / PI * 2**256)
    words = [0, *(shown >> (192 - 64 * n) & (2**64 - 1) for n in range(4))]
    start = steps("start", shift + 62)
    first, within = start >> 6, steps("within", cast(start & 63, UINT64))
    first = steps("first", first)
    chosen = [
        steps("word", select(equal(first, 0), a, select(equal(first, 1), b, c)))
        for a, b, c in ([constant(words[at + n], UINT64) for n in range(3)] for at in range(3))
    ]
    # A shift by 64 gives 0.
    high, low = (
        steps("digits", (before << within) | (after >> (64 - within)))
        for before, after in itertools.pairwise(chosen)
    )
    return high, low


def _sine_and_cosine(steps: Steps, r: Expr) -> tuple[Expr, Expr]:
    z = steps("z", r * r)
    fields = layout(r)
    tail = series(steps, z, _sine(fields)) * z
    return steps("sine", fma(tail, r, r)), series(steps, z, _cosine(fields))


def _turned(steps: Steps, n: Expr, sine: Expr, cosine: Expr) -> Expr:
    """Give the sine of n quarter turns more."""
    turned = choose(equal(n & 1, 1), cosine, sine)
    return turned * choose(equal(n & 2, 2), number(-1.0, sine), 1.0)


# ---------------------------------------------------------------------------- inverses


@cache
def _arc_tangent(fields: Layout) -> list[float]:
    """List coefficients of (arctan t - t) / t³, in t², up to the tangent of π/8."""
    reach = _EIGHTH**2 * 1.0001
    return polynomial(_alternating(odd_parts(3)), reach, fields.tolerance() / reach)


def _arc_sine_terms() -> Iterator[Fraction]:
    factor = Fraction(1)
    for n in itertools.count(1):
        factor *= Fraction(2 * n - 1, 2 * n)
        yield factor / (2 * n + 1)


@cache
def _arc_sine(fields: Layout) -> list[float]:
    """List coefficients of (arcsin s - s) / s³, in s², for s up to ½."""
    return polynomial(_arc_sine_terms(), 0.25, fields.tolerance() / 0.25)


def _arc(steps: Steps, ratio: Expr) -> Expr:
    """Compute arctan of a number from 0 to 1; 2 ulp."""
    steep = steps("steep", greater(ratio, _EIGHTH))
    # arctan t is π/4 + arctan((t - 1) / (t + 1)).
    t = steps("t", choose(steep, (ratio - 1.0) / (ratio + 1.0), ratio))
    z = steps("z", t * t)
    high, low = split(PI / 4, 2, t.dtype)
    tail = steps("tail", series(steps, z, _arc_tangent(layout(t))) * z * t)
    return steps("arc", choose(steep, (t + (tail + low)) + high, t + tail))


def atan(steps: Steps, x: Expr) -> Expr:
    """Compute the inverse tangent; 2 ulp."""
    x = steps("x", x)
    a = steps("a", magnitude(x))
    large = steps("large", greater(a, 1.0))
    arc = _arc(steps, steps("ratio", choose(large, 1.0 / a, a)))
    return with_sign(choose(large, _less_than_right(arc), arc), x)


def _less_than_right(arc: Expr) -> Expr:
    """Compute π/2 - arc."""
    high, low = split(PI / 2, 2, arc.dtype)
    return high - (arc - low)


def atan2(steps: Steps, y: Expr, x: Expr) -> Expr:
    """Compute the angle of the point (x, y) with the special cases of C's `atan2`; 3 ulp."""
    x, y = steps("x", x), steps("y", y)
    across, along = steps("across", magnitude(y)), steps("along", magnitude(x))
    upright = steps("upright", greater(across, along))
    a = steps("a", choose(upright, along, across))
    b = steps("b", choose(upright, across, along))
    same = choose(equal(a, 0.0), a, 1.0)  # of zeros, and of infinities
    ratio = steps("ratio", choose(equal(a, b), same, a / b))
    arc = _arc(steps, ratio)
    arc = steps("arc", choose(upright, _less_than_right(arc), arc))
    high, low = split(PI, 2, x.dtype)
    left = less(with_sign(number(1.0, x), x), 0.0)
    arc = with_sign(choose(left, high - (arc - low), arc), y)
    return choose(either(is_nan(x), is_nan(y)), no_number(x), arc)


def asin(steps: Steps, x: Expr) -> Expr:
    """Compute the inverse sine; 3 ulp."""
    x = steps("x", x)
    near, s, more = _near_or_half(steps, steps("a", magnitude(x)))
    high, low = split(PI / 2, 2, x.dtype)
    far = (high - (s + s)) - ((more + more) - low)
    return with_sign(choose(near, s + more, far), x)


def acos(steps: Steps, x: Expr) -> Expr:
    """Compute the inverse cosine; 2 ulp."""
    x = steps("x", x)
    near, s, more = _near_or_half(steps, steps("a", magnitude(x)))
    arc = steps("arc", s + more)
    high, low = split(PI / 2, 2, x.dtype)
    right = high - (with_sign(arc, x) - low)
    twice = steps("twice", arc + arc)
    straight = 2.0 * high - (twice - 2.0 * low)
    return choose(near, right, choose(less(x, 0.0), straight, twice))


def _near_or_half(steps: Steps, a: Expr) -> tuple[Expr, Expr, Expr]:
    """Tell a below ½, and compute its arc sine; else half its arc cosine, past 1 a NaN.

    The arc is the sum of two parts.
    """
    near = steps("near", less(a, 0.5))
    square = steps("square", choose(near, a * a, (1.0 - a) * 0.5))
    s = steps("s", choose(near, a, call("sqrt", square)))
    tail = series(steps, square, _arc_sine(layout(a))) * square
    return near, s, steps("more", tail * s)
