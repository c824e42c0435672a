"""Integer expressions as sums of multiples: `3*x + 8*(y // 4) - 2`.

May import `base`, `ir`, and `facts` and `ranges` of this folder. Collecting terms holds in
wrapping arithmetic whatever the ranges are; what needs the sum itself (a division) must ask
whether it is exact.

    >>> linear_of(x * 4 + y - x).terms
    {x: 3, y: 1}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import gcd

from tilewright.base.dtypes import DType
from tilewright.ir.expressions import Binary, Constant, Expr, Unary, binary, constant, wrap
from tilewright.passes.analysis.facts import Fact, exactly, whole
from tilewright.passes.analysis.facts import add as add_facts
from tilewright.passes.analysis.facts import mul as mul_facts
from tilewright.passes.analysis.ranges import Ranges


@dataclass(frozen=True)
class Linear:
    """A sum of multiples of terms, plus a constant, of one integer type.

    Factors are not zero and lie in the signed range of the type's width.
    """

    terms: Mapping[Expr, int]
    constant: int
    dtype: DType

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Add a multiple of another sum."""
        terms = dict(self.terms)
        for term, by in other.terms.items():
            terms[term] = terms.get(term, 0) + by * factor
        return linear(terms, self.constant + other.constant * factor, self.dtype)

    def times(self, factor: int) -> Linear:
        """Multiply by a number."""
        terms = {term: by * factor for term, by in self.terms.items()}
        return linear(terms, self.constant * factor, self.dtype)

    def common_factor(self) -> int:
        """Give the greatest common divisor of the factors, 0 without terms."""
        return gcd(*self.terms.values())

    def exact(self, ranges: Ranges) -> Fact | None:
        """Give what is known of the sum as a whole number; `None` if it might wrap."""
        total = exactly(self.constant)
        for term, by in self.terms.items():
            fact = ranges.fact(term)
            if fact is None:
                return None
            total = add_facts(total, mul_facts(fact, exactly(by)))
        every = whole(self.dtype)
        return total if every.low <= total.low and total.high <= every.high else None

    def expression(self) -> Expr:
        """Build the expression: terms in their order, one with a positive factor first."""
        positive = [term for term, by in self.terms.items() if by > 0]
        rest = [term for term in self.terms if term is not (positive or [None])[0]]
        if positive:
            result: Expr = self._multiple(positive[0])
        elif self.terms and not self.constant:
            result = binary("mul", rest[0], self._number(self.terms[rest[0]]))
            rest = rest[1:]
        else:
            result = self._number(self.constant)
        for term in rest:
            op = "add" if self.terms[term] > 0 else "sub"
            result = binary(op, result, self._multiple(term))
        if not positive or not self.constant:
            return result
        least = self.constant == whole(self.dtype).low
        op = "add" if self.constant > 0 or least else "sub"
        return binary(op, result, self._number(self.constant if least else abs(self.constant)))

    def _multiple(self, term: Expr) -> Expr:
        return binary("mul", term, self._number(abs(self.terms[term])))

    def _number(self, value: int) -> Constant:
        return constant(value, self.dtype)


def linear(terms: Mapping[Expr, int], constant: int, dtype: DType) -> Linear:
    """Build a sum, its numbers reduced into the signed range of the type's width."""
    signed = _signed(dtype)
    kept = {term: by for term, factor in terms.items() if (by := wrap(factor, signed))}
    return Linear(kept, wrap(constant, signed), dtype)


@cache
def _signed(dtype: DType) -> DType:
    return replace(dtype, base=f"int{dtype.bits}", kind="int")


def linear_of(expr: Expr) -> Linear:
    """Read an integer expression as a sum; what is no sum or multiple is a term."""
    dtype = expr.dtype
    match expr:
        case Constant():
            return linear({}, int(expr.value), dtype)
        case Binary(op="add"):
            return linear_of(expr.left).plus(linear_of(expr.right))
        case Binary(op="sub"):
            return linear_of(expr.left).plus(linear_of(expr.right), -1)
        case Binary(op="mul", right=Constant(value=by)):
            return linear_of(expr.left).times(int(by))
        case Binary(op="mul", left=Constant(value=by)):
            return linear_of(expr.right).times(int(by))
        case Binary(op="shl", right=Constant(value=by)) if 0 <= by < dtype.bits:
            return linear_of(expr.left).times(1 << int(by))
        case Unary(op="neg"):
            return linear_of(expr.operand).times(-1)
        case _:
            return linear({expr: 1}, 0, dtype)
