"""Intervals of integer expressions: where signed arithmetic cannot overflow.

May import `base` and `ir`. Signed overflow is undefined in C++ but wraps in the IR, so code is
written in plain signed arithmetic only where an interval proves that the result fits.

    >>> Ranges({}).of(int32(3) + int32(4))
    (7, 7)
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.dtypes import DType
from tilewright.ir.expressions import (
    Binary,
    Cast,
    Constant,
    Expr,
    Select,
    SpecialRegister,
    Unary,
    Var,
)

Interval = tuple[int, int]


def full(dtype: DType) -> Interval:
    """Give the interval of all values of an integer or boolean type."""
    if dtype.is_bool:
        return 0, 1
    if dtype.kind == "int":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def fits(interval: Interval, dtype: DType) -> bool:
    """Tell whether all of an interval can be held in a type."""
    low, high = full(dtype)
    return low <= interval[0] and interval[1] <= high


class Ranges:
    """What is known of the integer variables and special registers of a kernel.

    `registers` bounds special registers by name. Bindings are added as they are met.
    """

    def __init__(self, registers: Mapping[str, Interval]) -> None:
        self._registers = dict(registers)
        self._variables: dict[str, Interval] = {}

    def know(self, variable: Var, interval: Interval) -> None:
        """Record that an immutable variable lies in an interval."""
        self._variables[variable.name] = interval

    def of(self, expression: Expr) -> Interval:
        """Give an interval that holds every value of an integer or boolean scalar."""
        whole = full(expression.dtype)
        found = self._exact(expression, whole)
        # A result that may wrap may be anything.
        return found if whole[0] <= found[0] and found[1] <= whole[1] else whole

    def result(self, expression: Binary | Unary) -> Interval:
        """Give the interval of an operation's result before it wraps."""
        return self._exact(expression, full(expression.dtype))

    def _exact(self, expression: Expr, whole: Interval) -> Interval:
        match expression:
            case Constant(value=value):
                return int(value), int(value)
            case Var(name=name):
                return self._variables.get(name, whole)
            case SpecialRegister(name=name):
                return self._registers.get(name, whole)
            case Cast(operand=operand) if operand.dtype.is_integer or operand.dtype.is_bool:
                return self.of(operand)
            case Select(true=true, false=false):
                a, b = self.of(true), self.of(false)
                return min(a[0], b[0]), max(a[1], b[1])
            case Unary(op="neg", operand=operand):
                low, high = self.of(operand)
                return -high, -low
            case Binary(op=op, left=left, right=right) if left.dtype.is_integer:
                return _binary(op, self.of(left), self.of(right), whole)
            case _:
                return whole


def _binary(op: str, a: Interval, b: Interval, whole: Interval) -> Interval:
    match op:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "truncdiv" | "floordiv" if a[0] >= 0 and b[0] > 0:
            return a[0] // b[1], a[1] // b[0]
        case "floordiv" if b[0] == b[1] > 0:
            return a[0] // b[0], a[1] // b[0]
        case "truncmod" | "mod" if a[0] >= 0 and b[0] > 0:
            return 0, min(a[1], b[1] - 1)
        case "mod" if b[0] > 0:
            return 0, b[1] - 1
        case "and" if a[0] >= 0 or b[0] >= 0:
            bounds = [side[1] for side in (a, b) if side[0] >= 0]
            return 0, min(bounds)
        case "or" | "xor" if a[0] >= 0 and b[0] >= 0:
            return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1
        case "shl" if b[0] == b[1] and 0 <= b[0] < 64:
            return a[0] << b[0], a[1] << b[0]
        case "shr" if b[0] == b[1] and 0 <= b[0] < 64:
            return a[0] >> b[0], a[1] >> b[0]
        case _:
            return whole
