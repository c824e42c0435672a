"""Constants and polynomials of the functions, computed from their definitions.

May import `base`. All is exact arithmetic of rationals, so that every machine finds the same
numbers. Polynomials are power series, shortened as far as their error allows by Chebyshev's
polynomials, of which a multiple takes away the highest power at the least cost (C. Lanczos,
"Applied Analysis", 1956, on the economization of power series).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache

import numpy as np

from tilewright.base.dtypes import FLOAT32, DType

_BITS = 320  # of the constants
_MORE = 16  # bits beyond the tolerance to which a series is summed before it is shortened


# ---------------------------------------------------------------------------- constants


def _inverse_arc(n: int, sign: int) -> Fraction:
    """Sum arctan(1/n) for a sign of -1, artanh(1/n) for +1."""
    one = 1 << (_BITS + 32)
    total, power, odd = 0, one // n, 1
    while power:
        total += power // odd if sign > 0 or odd % 4 == 1 else -(power // odd)
        power //= n * n
        odd += 2
    return Fraction(total, one)


PI = 16 * _inverse_arc(5, -1) - 4 * _inverse_arc(239, -1)  # Machin
LN_2 = 2 * _inverse_arc(3, 1)
LN_10 = 3 * LN_2 + 2 * _inverse_arc(9, 1)  # 10 = 8 (1 + 1/9) / (1 - 1/9)


def root(value: Fraction) -> Fraction:
    """Compute a square root."""
    scaled = value * (1 << (2 * _BITS))
    return Fraction(math.isqrt(int(scaled)), 1 << _BITS)


def exponential(value: Fraction) -> Fraction:
    """Compute e to a power of at most some tens."""
    total, term, n = Fraction(0), Fraction(1), 0
    while abs(term) > Fraction(1, 1 << _BITS):
        total += term
        n += 1
        term = Fraction(int(term * value / n * (1 << 2 * _BITS)), 1 << 2 * _BITS)
    return total


def split(value: Fraction, parts: int, dtype: DType) -> list[float]:
    """Write a number as a sum of floats of a type, each as near as it can be to what is left."""
    found: list[float] = []
    left = value
    for _ in range(parts):
        nearest = float(left)
        found.append(float(np.float32(nearest)) if dtype == FLOAT32 else nearest)
        left -= Fraction(found[-1])
    return found


# ---------------------------------------------------------------------------- polynomials

Series = Callable[[], Iterator[Fraction]]


def polynomial(
    series: Iterator[Fraction], reach: float | Fraction, tolerance: float, *, signed: bool = False
) -> list[float]:
    """Find coefficients, constant first, of a short polynomial near a power series.

    It differs by at most `tolerance` for arguments from 0 to `reach`, with `signed` from
    -reach. The series' terms there have to fall at last.
    """
    width = Fraction(reach)
    terms: list[Fraction] = []
    power, small = Fraction(1), 0
    while small < 3:
        term = next(series)
        terms.append(term)
        small = small + 1 if abs(term) * power < tolerance / (1 << _MORE) else 0
        power *= width
    left = Fraction(tolerance)
    while len(terms) > 1:
        chebyshev = _chebyshev(len(terms) - 1, width, signed)
        factor = terms[-1] / chebyshev[-1]
        left -= abs(factor)
        if left < 0:
            break
        terms = [a - factor * b for a, b in zip(terms[:-1], chebyshev[:-1], strict=True)]
    return [float(term) for term in terms]


@cache
def _unit(degree: int) -> tuple[int, ...]:
    """Give the coefficients of Chebyshev's polynomial."""
    if degree < 2:
        return ((1,), (0, 1))[degree]
    doubled = (0, *(2 * each for each in _unit(degree - 1)))
    before = (*_unit(degree - 2), 0, 0)
    return tuple(a - b for a, b in zip(doubled, before, strict=True))


def _chebyshev(degree: int, width: Fraction, signed: bool) -> list[Fraction]:
    """Give Chebyshev's polynomial stretched to an interval: it stays within one there."""
    if signed:
        return [each / width**n for n, each in enumerate(_unit(degree))]
    # T(2 x - 1) is T of twice the degree, of the square root of x.
    return [each / width**n for n, each in enumerate(_unit(2 * degree)[::2])]
