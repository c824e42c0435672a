"""Functions that step from number to number: remainders, quotients, neighbours, rounding.

May import `base`, `ir` and the modules of this folder below it. All are exact, but for quotients
that no float holds, which are rounded.
"""

from __future__ import annotations

from tilewright.base.dtypes import INT32
from tilewright.ir.expressions import Expr, binary, cast, select
from tilewright.passes.functions.logarithms import parts
from tilewright.passes.functions.notation import (
    INFINITY,
    Steps,
    at_least,
    bits_of,
    both,
    call,
    choose,
    either,
    equal,
    fma,
    from_bits,
    greater,
    is_nan,
    layout,
    less,
    magnitude,
    negation,
    no_number,
    number,
    power_of_two,
    scaled,
    with_sign,
)


def round_away(steps: Steps, x: Expr) -> Expr:
    """Compute the nearest integer, of two the one away from zero; exact."""
    x = steps("x", x)
    whole = steps("whole", call("trunc", x))
    up = at_least(magnitude(x - whole), 0.5)
    return choose(up, whole + with_sign(number(1.0, x), x), with_sign(whole, x))


def nextafter(steps: Steps, x: Expr, y: Expr) -> Expr:
    """Compute the float next to x on the way to y; exact."""
    x, y = steps("x", x), steps("y", y)
    fields = layout(x)
    away = binary("ne", less(x, y), less(x, 0.0))
    moved = from_bits(bits_of(x) + select(away, 1, -1))
    smallest = with_sign(number(2.0 ** (1 - fields.bias - fields.fraction), x), y)
    moved = choose(equal(x, 0.0), smallest, moved)
    return choose(either(is_nan(x), is_nan(y)), no_number(x), choose(equal(x, y), y, moved))


def fmod(steps: Steps, x: Expr, y: Expr) -> Expr:
    """Compute what is left of x after taking y away a whole number of times; exact, as C's."""
    x, y = steps("x", x), steps("y", y)
    return steps("fmod", _remainder(steps, x, y))


def _remainder(steps: Steps, x: Expr, y: Expr) -> Expr:
    """Divide as by hand, with digits of some bits: each quotient and what it leaves is exact."""
    digit = layout(x).precision - 2
    a, b = steps("a", magnitude(x)), steps("b", magnitude(y))
    (m, e), (divisor, scale) = parts(steps, a), parts(steps, b)
    proper = both(both(less(a, INFINITY), at_least(a, b)), greater(b, 0.0))
    proper = steps("proper", proper)
    rest = steps.cell("rest", choose(at_least(m, divisor), m - divisor, m))
    left = steps.cell("left", choose(proper, cast(e - scale, INT32), 0))
    with steps.turns(greater(left, 0)):
        step = steps("step", binary("min", left, digit))
        dividend = steps("dividend", rest * power_of_two(step, x))
        quotient = steps("quotient", call("trunc", dividend / divisor))
        # A quotient rounded up is one too many.
        after = steps("after", fma(-quotient, divisor, dividend))
        steps.assign(rest, choose(less(after, 0.0), after + divisor, after))
        steps.assign(left, left - step)
    found = with_sign(scaled(steps, rest, scale), x)
    # Less than y it is x itself; of infinity, or by nothing, there is none.
    none = negation(both(less(a, INFINITY), binary("ne", y, 0.0)))
    return choose(proper, found, choose(either(none, is_nan(y)), no_number(x), x))


# ---------------------------------------------------------------------------- division of floats


def truncmod(steps: Steps, x: Expr, y: Expr) -> Expr:
    """Compute the remainder of a division rounded towards zero, as C's `fmod`; exact."""
    return fmod(steps, x, y)


def truncdiv(steps: Steps, x: Expr, y: Expr) -> Expr:
    """Compute a quotient rounded towards zero; exact, or the nearest float."""
    x, y = steps("x", x), steps("y", y)
    return _quotient(steps, x, fmod(steps, x, y), y)


def mod(steps: Steps, x: Expr, y: Expr) -> Expr:
    """Compute the remainder of a division rounded down, as Python's `%`; exact, or rounded once."""
    x, y = steps("x", x), steps("y", y)
    rest = fmod(steps, x, y)
    return choose(_opposed(rest, y), rest + y, choose(equal(rest, 0.0), with_sign(rest, y), rest))


def floordiv(steps: Steps, x: Expr, y: Expr) -> Expr:
    """Compute a quotient rounded down, as Python's `//`; exact, or the nearest float."""
    x, y = steps("x", x), steps("y", y)
    rest = fmod(steps, x, y)
    quotient = _quotient(steps, x, rest, y)
    return choose(_opposed(rest, y), quotient - 1.0, quotient)


def _quotient(steps: Steps, x: Expr, rest: Expr, y: Expr) -> Expr:
    """Divide what a remainder leaves; a quotient of zero has the sign of one that is not."""
    whole = steps("quotient", call("nearbyint", (x - rest) / y))
    return steps("quotient", choose(equal(whole, 0.0), with_sign(whole, x / y), whole))


def _opposed(rest: Expr, y: Expr) -> Expr:
    """Tell a remainder that is not zero and has the other sign than the divisor."""
    return less(rest * with_sign(number(1.0, y), y), 0.0)
