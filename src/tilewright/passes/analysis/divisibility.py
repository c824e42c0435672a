"""What an integer expression is known to be a multiple of.

May import `base` and `ir`. An index that overflows its type is taken to be none, so products
and sums are exact.

    >>> divisor(Var("i", ScalarType(INT32)) * 12 + 8)
    4
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from tilewright.ir.expressions import Binary, Cast, Constant, Expr, Select, Unary, Var, as_constant

Multiples = Mapping[Var, "int | Expr"]


def divisor(value: Expr, known: Multiples | None = None) -> int:
    """Find a number, as large as can be seen, that divides a value; 0 for the constant 0.

    `known` gives for variables what divides them, or the expression that they are bound to.
    """
    known = known or {}
    match value:
        case Constant():
            return abs(int(value.value))
        case Var():
            fact = known.get(value, 1)
            return fact if isinstance(fact, int) else divisor(fact, known)
        case Cast() | Unary(op="neg") if value.dtype.is_integer and value.operand.dtype.is_integer:
            return divisor(value.operand, known)
        case Select():
            return gcd(divisor(value.true, known), divisor(value.false, known))
        case Binary():
            return _of_operation(value, known)
        case _:
            return 1


def _of_operation(value: Binary, known: Multiples) -> int:
    left = divisor(value.left, known)
    right = as_constant(value.right)
    match value.op:
        case "add" | "sub" | "min" | "max":
            return gcd(left, divisor(value.right, known))
        case "mul":
            return left * divisor(value.right, known)
        case "shl" if isinstance(right, int) and 0 <= right < 64:
            return left << right
        case "floordiv" | "truncdiv" if isinstance(right, int) and right and left % right == 0:
            return abs(left // right)
        case "mod" | "truncmod" if isinstance(right, int) and right:
            return gcd(left, right)
        case "shr" if isinstance(right, int) and 0 <= right < 64 and left % (1 << right) == 0:
            return left >> right
        case "and":
            return max(power_of_two(left), power_of_two(divisor(value.right, known)))
        case "or" | "xor":
            return min(power_of_two(left), power_of_two(divisor(value.right, known)))
        case _:
            return 1


# More than any alignment: what stands for "divisible by every power of two".
_EVERY = 1 << 62


def power_of_two(number: int) -> int:
    """Give the largest power of two that divides a number."""
    return number & -number if number else _EVERY
