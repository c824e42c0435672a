"""Powers and roots.

May import `base`, `ir` and the modules of this folder below it. Errors are in units in the last
place (ulp).
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from tilewright.base.dtypes import INT32
from tilewright.ir.expressions import Expr, cast, select
from tilewright.passes.functions.constants import LN_2, polynomial, split
from tilewright.passes.functions.exponentials import exp2_of_sum
from tilewright.passes.functions.logarithms import odd_parts, parts
from tilewright.passes.functions.notation import (
    INFINITY,
    Layout,
    Steps,
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
    negation,
    no_number,
    power_of_two,
    series,
    with_sign,
)

Pair = tuple[Expr, Expr]  # an unevaluated sum, the lesser part second


def pow(steps: Steps, x: Expr, y: Expr) -> Expr:
    """Compute x ** y with the special cases of C's `pow`; 2 ulp."""
    x, y = steps("x", x), steps("y", y)
    fields = layout(x)
    a = steps("a", magnitude(x))
    high, low = _log2(steps, a)
    product = steps("product", y * high)
    least, most = -float(fields.bias + fields.fraction + 2), fields.bias + 2.0
    inside = both(less(product, most), greater(product, least))
    rest = steps("rest", choose(inside, fma(y, high, -product) + y * low, 0.0))
    value = exp2_of_sum(steps, clamped(steps, product, least, most), rest)
    return _with_cases_of_pow(steps, x, y, a, steps("value", value))


@cache
def _beyond_third(fields: Layout) -> list[float]:
    """List coefficients of (artanh s - s - s³/3) / s⁵, in s², for s as in `logarithms`."""
    reach = 0.02945
    return polynomial(odd_parts(5), reach, fields.tolerance() / 64)


def _log2(steps: Steps, a: Expr) -> Pair:
    """Compute log2 of a number that is not negative, to some bits more than two floats' half."""
    m, e = parts(steps, a)
    f, d = steps("f", m - 1.0), steps("d", m + 1.0)
    s = steps("s", f / d)
    s = s, steps("s_low", (fma(-s, d, f) - s * (m - (d - 1.0))) / d)
    arc = _arc_tangent(steps, s)
    factor = split(2 / LN_2, 2, a.dtype)
    product = steps("product", arc[0] * factor[0])
    low = fma(arc[0], factor[0], -product) + fma(arc[0], factor[1], arc[1] * factor[0])
    total = steps("total", e + product)
    low = steps("low", ((e - total) + product) + low)
    high = choose(equal(a, 0.0), -INFINITY, total)
    high = steps("high", choose(equal(a, INFINITY), INFINITY, high))
    return high, low


def _arc_tangent(steps: Steps, s: Pair) -> Pair:
    """Compute artanh s = s + s³ (1/3 + s² …)."""
    z = _product(steps, s, s)
    tail = steps("tail", series(steps, z[0], _beyond_third(layout(z[0]))) * z[0])
    third = split(Fraction(1, 3), 2, tail.dtype)
    factor = steps("factor", tail + third[0])
    factor = factor, steps("factor_low", ((third[0] - factor) + tail) + third[1])
    cubic = _product(steps, s, _product(steps, z, factor))
    total = steps("arc", s[0] + cubic[0])
    return total, steps("arc_low", ((s[0] - total) + cubic[0]) + (s[1] + cubic[1]))


def _product(steps: Steps, a: Pair, b: Pair) -> Pair:
    high = steps("high", a[0] * b[0])
    low = fma(a[0], b[0], -high) + fma(a[0], b[1], a[1] * b[0])
    return high, steps("low", low)


def _with_cases_of_pow(steps: Steps, x: Expr, y: Expr, a: Expr, value: Expr) -> Expr:
    half = steps("half", y * 0.5)
    whole = steps("whole", equal(call("trunc", y), y))
    odd = both(whole, negation(equal(call("trunc", half), half)))
    below = both(less(x, 0.0), less(a, INFINITY))
    value = steps("signed", choose(odd, with_sign(value, x), value))
    # Only a finite power of a negative number can be missing: ∞ counts as an even integer.
    value = choose(both(below, negation(whole)), no_number(x), value)
    value = choose(either(is_nan(x), is_nan(y)), no_number(x), value)
    at_minus_one = both(equal(x, -1.0), equal(magnitude(y), INFINITY))
    one = either(either(equal(y, 0.0), equal(x, 1.0)), at_minus_one)
    return choose(one, 1.0, value)


# ---------------------------------------------------------------------------- roots


def rsqrt(steps: Steps, x: Expr) -> Expr:
    """Compute 1 / √x, both steps correctly rounded; 2 ulp."""
    return 1.0 / call("sqrt", x)


def cbrt(steps: Steps, x: Expr) -> Expr:
    """Compute the cube root; 1 ulp."""
    x = steps("x", x)
    m, e = parts(steps, magnitude(x))
    # m 2 ** e is c 8 ** third with c in [√½, 4 √2).
    exponent = cast(e, INT32)
    third = steps("third", (exponent * 21846 + 10923) >> 16)  # rounded down
    c = steps("c", m * power_of_two(exponent - third * 3, x))
    t = steps("t", _near_cube_root(steps, c))
    for _ in range(2):
        # Halley's method makes an error of ε one of 2/3 ε³.
        cube = steps("cube", t * t * t)
        t = steps("t", t * ((cube + (c + c)) / ((cube + cube) + c)))
    square = steps("square", t * t)
    left = fma(square, t, -c) + fma(t, t, -square) * t
    root = (t - left / (square * 3.0)) * power_of_two(third, x)
    special = either(equal(x, 0.0), negation(less(magnitude(x), INFINITY)))
    return choose(special, x + x, with_sign(root, x))


def _near_cube_root(steps: Steps, c: Expr) -> Expr:
    """Guess a cube root between 0.89 and 1.79, to about 2 %."""
    return fma(fma(c, -0.0173, 0.2858), c, 0.7304)


def hypot(steps: Steps, x: Expr, y: Expr) -> Expr:
    """Compute √(x² + y²) without overflow in between; 2 ulp."""
    fields = layout(x)
    a, b = steps("a", magnitude(x)), steps("b", magnitude(y))
    larger = steps("larger", choose(greater(a, b), a, b))
    smaller = steps("smaller", choose(greater(a, b), b, a))
    middle = fields.bias // 2
    up, down = middle + fields.fraction, -(middle + 3)
    scale = select(less(larger, 2.0**-middle), up, select(greater(larger, 2.0**middle), down, 0))
    scale = steps("scale", scale)
    factor = steps("factor", power_of_two(scale, x))
    larger, smaller = steps("larger", larger * factor), steps("smaller", smaller * factor)
    root = call("sqrt", fma(larger, larger, smaller * smaller)) * power_of_two(-scale, x)
    infinite = either(equal(a, INFINITY), equal(b, INFINITY))
    return choose(infinite, INFINITY, root)


def ldexp(steps: Steps, x: Expr, n: Expr) -> Expr:
    """Compute x * 2 ** n; rounded once."""
    fields = layout(x)
    most, least = fields.bias, 1 - fields.bias
    value, left = steps("x", x), steps("n", n)
    for _ in range(2):
        # Downwards by less than the whole range: what is rounded here is rounded to zero later.
        down = least + fields.precision
        step = select(greater(left, most), most, select(less(left, least), down, 0))
        step = steps("step", step)
        value = steps("value", value * power_of_two(step, x))
        left = steps("left", left - step)
    left = select(greater(left, most), most, select(less(left, least), least, left))
    return value * power_of_two(steps("left", left), x)
