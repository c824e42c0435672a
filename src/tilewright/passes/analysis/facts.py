"""What is known of an integer, and what arithmetic makes of it.

May import `base`. Facts are about whole numbers; `wrapped` brings them into a type.

    >>> add(between(0, 7), exactly(8))
    Fact(low=8, high=15, modulus=1, residue=0)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import gcd

from tilewright.base.dtypes import DType


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of an integer: `low <= x <= high`, and `x % modulus == residue`.

    A modulus of 0 says that x is the residue.
    """

    low: int
    high: int
    modulus: int = 1
    residue: int = 0

    @property
    def divisor(self) -> int:
        """Give the largest number known to divide x; 0 if x is known to be 0."""
        return gcd(self.modulus, self.residue)

    def join(self, other: Fact) -> Fact:
        """Give what holds of either of two values."""
        modulus = gcd(gcd(self.modulus, other.modulus), self.residue - other.residue)
        return congruent(
            min(self.low, other.low), max(self.high, other.high), modulus, self.residue
        )

    def meet(self, low: int, high: int) -> Fact:
        """Give what holds when x also lies between two bounds; unchanged where none could."""
        low, high = max(self.low, low), min(self.high, high)
        return replace(self, low=low, high=high) if low <= high else self


def congruent(low: int, high: int, modulus: int, residue: int) -> Fact:
    """Build a fact, its residue reduced by its modulus and its bounds moved to such numbers."""
    if modulus == 0:
        return Fact(low, high, 0, residue)
    first, last = low + (residue - low) % modulus, high - (high - residue) % modulus
    if first <= last:
        low, high = first, last
    return Fact(low, high, modulus, residue % modulus)


def exactly(value: int) -> Fact:
    """Build the fact of a known value."""
    return Fact(value, value, 0, value)


def between(low: int, high: int) -> Fact:
    """Build the fact of two bounds."""
    return exactly(low) if low == high else Fact(low, high)


@cache
def whole(dtype: DType) -> Fact:
    """Give what holds of every value of an integer or boolean type."""
    if dtype.is_bool:
        return Fact(0, 1)
    if dtype.kind == "int":
        return Fact(-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    return Fact(0, (1 << dtype.bits) - 1)


def wrapped(fact: Fact, dtype: DType) -> Fact:
    """Give what holds of a value after it is reduced into a type."""
    if dtype.is_bool:
        sure = fact.low > 0 or fact.high < 0
        return exactly(1) if sure else exactly(0) if fact.low == fact.high else Fact(0, 1)
    every = whole(dtype)
    if every.low <= fact.low and fact.high <= every.high:
        return fact
    modulus = gcd(fact.modulus, 1 << dtype.bits)
    return congruent(every.low, every.high, modulus, fact.residue)


# ---------------------------------------------------------------------------- operations


def add(a: Fact, b: Fact) -> Fact:
    """Give what holds of a sum."""
    return congruent(
        a.low + b.low, a.high + b.high, gcd(a.modulus, b.modulus), a.residue + b.residue
    )


def negate(a: Fact) -> Fact:
    """Give what holds of a negation."""
    return congruent(-a.high, -a.low, a.modulus, -a.residue)


def sub(a: Fact, b: Fact) -> Fact:
    """Give what holds of a difference."""
    return add(a, negate(b))


def mul(a: Fact, b: Fact) -> Fact:
    """Give what holds of a product."""
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    modulus = gcd(a.modulus * b.modulus, a.modulus * b.residue, b.modulus * a.residue)
    return congruent(min(ends), max(ends), modulus, a.residue * b.residue)


def known_value(fact: Fact) -> int | None:
    """Give the value, where it is known."""
    return fact.low if fact.low == fact.high else None


def floordiv(a: Fact, b: Fact) -> Fact | None:
    """Give what holds of a quotient rounded down, for a positive divisor."""
    if b.low <= 0:
        return None
    ends = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
    by = known_value(b)
    if by is not None and a.modulus % by == 0:
        return congruent(min(ends), max(ends), a.modulus // by, a.residue // by)
    return between(min(ends), max(ends))


def _mod(a: Fact, b: Fact) -> Fact | None:
    if b.low <= 0:
        return None
    if a.low >= 0 and a.high < b.low:
        return a
    by = known_value(b)
    if by is None:
        return between(0, b.high - 1)
    modulus = gcd(a.modulus, by)
    residue = a.residue % modulus
    if a.low // by == a.high // by:
        return congruent(a.low % by, a.high % by, modulus, residue)
    return congruent(residue, by - modulus + residue, modulus, residue)


def _truncdiv(a: Fact, b: Fact) -> Fact | None:
    # Where nothing is negative it is Python's.
    return floordiv(a, b) if a.low >= 0 else None


def _truncmod(a: Fact, b: Fact) -> Fact | None:
    if a.low >= 0:
        return _mod(a, b)
    if b.low <= 0:
        return None
    most = b.high - 1
    modulus = gcd(a.modulus, by) if (by := known_value(b)) is not None else 1
    # The sign follows the dividend, so only divisibility carries over, not every residue.
    divisor = gcd(modulus, a.residue)
    return congruent(max(-most, a.low), min(most, max(a.high, 0)), divisor, 0)


def _and(a: Fact, b: Fact) -> Fact | None:
    mask = known_value(b)
    if mask is not None and mask >= 0 and mask & (mask + 1) == 0:
        return _mod(a, exactly(mask + 1))
    if mask is not None and 0 <= mask < (known := a.modulus & -a.modulus):
        # All bits that are asked for are below those that are not known.
        return exactly(a.residue % known & mask)
    highs = [each.high for each in (a, b) if each.low >= 0]
    if not highs:
        return None
    divisor = max(_power_of_two(a), _power_of_two(b))
    high = min(highs)
    return congruent(0, high - high % divisor, divisor, 0)


def _power_of_two(fact: Fact) -> int:
    """Give the largest power of two known to divide a value, at most 2**62."""
    divisor = fact.divisor or 1 << 62
    return min(divisor & -divisor, 1 << 62)


def _or(a: Fact, b: Fact) -> Fact | None:
    if a.low < 0 or b.low < 0:
        return None
    divisor = min(_power_of_two(a), _power_of_two(b))
    top = (1 << max(a.high, b.high).bit_length()) - 1
    return congruent(0, top - top % divisor, divisor, 0)


def _shl(a: Fact, b: Fact) -> Fact | None:
    if b.low < 0 or b.high > 63:
        return None
    shifts = (1 << b.low, 1 << b.high)
    factor = exactly(shifts[0]) if b.low == b.high else Fact(shifts[0], shifts[1], shifts[0])
    return mul(a, factor)


def _shr(a: Fact, b: Fact) -> Fact | None:
    if b.low < 0 or b.high > 63:
        return None
    if b.low == b.high:
        return floordiv(a, exactly(1 << b.low))
    ends = [x >> n for x in (a.low, a.high) for n in (b.low, b.high)]
    return between(min(ends), max(ends))


def minimum(a: Fact, b: Fact) -> Fact:
    """Give what holds of the lesser of two values."""
    joined = a.join(b)
    return replace(joined, low=min(a.low, b.low), high=min(a.high, b.high))


def maximum(a: Fact, b: Fact) -> Fact:
    """Give what holds of the greater of two values."""
    joined = a.join(b)
    return replace(joined, low=max(a.low, b.low), high=max(a.high, b.high))


OPERATIONS: dict[str, Callable[[Fact, Fact], Fact | None]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "floordiv": floordiv,
    "mod": _mod,
    "truncdiv": _truncdiv,
    "truncmod": _truncmod,
    "min": minimum,
    "max": maximum,
    "and": _and,
    "or": _or,
    "xor": _or,
    "shl": _shl,
    "shr": _shr,
}

# Comparisons of two facts: when they certainly hold, by the fact of left minus right.
ALWAYS: dict[str, Callable[[Fact, Fact], bool]] = {
    "lt": lambda a, b: a.high < b.low,
    "le": lambda a, b: a.high <= b.low,
    "gt": lambda a, b: a.low > b.high,
    "ge": lambda a, b: a.low >= b.high,
    "eq": lambda a, b: a.low == a.high == b.low == b.high,
    "ne": lambda a, b: _never_equal(a, b),
}
OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def _never_equal(a: Fact, b: Fact) -> bool:
    if a.high < b.low or b.high < a.low:
        return True
    modulus = gcd(a.modulus, b.modulus)
    return modulus != 0 and (a.residue - b.residue) % modulus != 0
