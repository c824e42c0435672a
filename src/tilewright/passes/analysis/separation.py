"""Integers made of an unknown start and an array of constants: the form of a tile's addresses.

May import NumPy and `ir`. A layout is applied to them as to numbers.
Division, remainder and bit operations go through if the constants stay below what the start is
a multiple of; else they raise `Inseparable`.

    >>> (Separated(start, 16, np.arange(16)) % 64) // 8     # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from operator import index
from typing import Any, ClassVar

import numpy as np

from tilewright.ir.expressions import Expr

# Stands for "divisible by every power of two that matters".
_EVERY = 1 << 62


def power_of_two(number: int) -> int:
    """Give the largest power of two that divides a number, at most 2 ** 62."""
    return min(number & -number, _EVERY) if number else _EVERY


class Inseparable(Exception):
    """Say that a value depends on its unknown start and on its constants at once."""


@dataclass(frozen=True, eq=False)
class Separated:
    """The value `start + constants`; `start` is a multiple of `divisor`, which is positive."""

    __array_ufunc__: ClassVar[None] = None  # NumPy leaves `array + separated` to `__radd__`

    start: Expr
    divisor: int
    constants: Any = 0

    def __add__(self, other: Any) -> Separated:
        if isinstance(other, Separated):
            return Separated(
                self.start + other.start,
                gcd(self.divisor, other.divisor),
                self.constants + other.constants,
            )
        return Separated(self.start, self.divisor, self.constants + other)

    __radd__ = __add__

    def __mul__(self, factor: Any) -> Any:
        factor = _constant(factor)
        if factor == 0:
            return 0
        return Separated(self.start * factor, self.divisor * abs(factor), self.constants * factor)

    __rmul__ = __mul__

    def __lshift__(self, count: Any) -> Any:
        return self * (1 << _constant(count))

    def __rshift__(self, count: Any) -> Any:
        return self // (1 << _constant(count))

    def __floordiv__(self, by: Any) -> Any:
        by = _constant(by)
        if self.divisor % by == 0:
            return Separated(self.start // by, self.divisor // by, self.constants // by)
        self._require_below(by)
        return Separated(self.start // by, 1)

    def __mod__(self, by: Any) -> Any:
        by = _constant(by)
        if self.divisor % by == 0:
            return self.constants % by
        self._require_below(by)
        return Separated(self.start % by, self.divisor, self.constants)

    def __and__(self, mask: Any) -> Any:
        mask = _constant(mask)
        known = power_of_two(self.divisor)
        if known > mask:
            return self.constants & mask
        self._require_in(known)
        kept = max(known, power_of_two(mask))
        return Separated(self.start & mask, kept, self.constants & mask)

    __rand__ = __and__

    def __xor__(self, other: Any) -> Any:
        known = power_of_two(self.divisor)
        if not isinstance(other, Separated):
            _require(other, known)
            return Separated(self.start, self.divisor, self.constants ^ other)
        known = min(known, power_of_two(other.divisor))
        self._require_in(known)
        other._require_in(known)
        return Separated(self.start ^ other.start, known, self.constants ^ other.constants)

    __rxor__ = __xor__

    def _require_below(self, by: int) -> None:
        """Require the constants to fill up what the start leaves free in each block of `by`."""
        if by % self.divisor:
            raise Inseparable
        self._require_in(self.divisor)

    def _require_in(self, bound: int) -> None:
        _require(self.constants, bound)


def _require(constants: Any, bound: int) -> None:
    if np.any(np.asarray(constants) < 0) or np.any(np.asarray(constants) >= bound):
        raise Inseparable


def _constant(value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise Inseparable from None
