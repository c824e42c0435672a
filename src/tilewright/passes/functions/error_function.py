"""The error function.

May import `base`, `ir` and the modules of this folder below it. Up to 1 it is a power series;
beyond, 1 - g(x) e ** -x² with a g that changes slowly: its Taylor series about the middle follows
from g' = 2 x g - 2/√π.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from tilewright.ir.expressions import Expr
from tilewright.passes.functions.constants import PI, exponential, polynomial, root
from tilewright.passes.functions.exponentials import exp
from tilewright.passes.functions.notation import (
    Layout,
    Steps,
    choose,
    clamped,
    fma,
    greater,
    layout,
    magnitude,
    series,
    with_sign,
)

_SLOPE = 2 / root(PI)  # of erf at 0


def _near_zero() -> Iterator[Fraction]:
    """List coefficients of erf x / x in x²."""
    for n in itertools.count():
        yield _SLOPE * Fraction((-1) ** n, math.factorial(n) * (2 * n + 1))


@cache
def _small(fields: Layout) -> list[float]:
    """List coefficients of erf x / x - 1 in x², for |x| <= 1."""
    terms = _near_zero()
    first = next(terms) - 1
    return polynomial(itertools.chain([first], terms), 1, fields.tolerance(0.5))


def _end(fields: Layout) -> float:
    """Give a number from which on erf rounds to 1."""
    return 4.0 if fields.precision == 24 else 6.0


def _scaled_complement(middle: Fraction) -> Iterator[Fraction]:
    """List the Taylor coefficients of g about a place."""
    terms = itertools.takewhile(
        lambda term: abs(term) > Fraction(1, 1 << 300),
        (term * middle ** (2 * n + 1) for n, term in enumerate(_near_zero())),
    )
    before, value = Fraction(0), (1 - sum(terms)) * exponential(middle * middle)
    for n in itertools.count(1):
        yield value
        slope = 2 * middle * value + 2 * before - (_SLOPE if n == 1 else 0)
        before, value = value, Fraction(round(slope / n * (1 << 400)), 1 << 400)


@cache
def _large(fields: Layout) -> list[float]:
    """List coefficients of g in the distance from the middle between 1 and the end."""
    middle = Fraction(1 + _end(fields)) / 2
    return polynomial(_scaled_complement(middle), middle - 1, fields.tolerance(0.5), signed=True)


def erf(steps: Steps, x: Expr) -> Expr:
    """Compute the error function; 2 ulp."""
    x = steps("x", x)
    fields = layout(x)
    a = clamped(steps, magnitude(x), 0.0, _end(fields))
    small = fma(a, series(steps, steps("z", a * a), _small(fields)), a)
    g = series(steps, steps("t", a - (1 + _end(fields)) / 2), _large(fields))
    large = fma(-g, exp(steps, -(a * a)), 1.0)
    return with_sign(choose(greater(a, 1.0), large, small), x)
