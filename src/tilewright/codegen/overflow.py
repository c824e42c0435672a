"""Where arithmetic in C++'s own integers gives the IR's result.

May import `base`, `ir` and `passes`. Signed overflow is undefined in C++ but wraps in the IR, so
code is written in plain signed arithmetic only where the ranges prove that the result fits.

    >>> cannot_wrap(analyse_ranges(kernel), thread_idx_x * 4)
    True
"""

from __future__ import annotations

from tilewright.base.dtypes import DType
from tilewright.ir.expressions import Binary, Expr, Unary
from tilewright.passes.analysis.ranges import Ranges

Interval = tuple[int, int]


def full(dtype: DType) -> Interval:
    """Give the interval of all values of an integer or boolean type."""
    if dtype.is_bool:
        return 0, 1
    if dtype.kind == "int":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def interval(ranges: Ranges, expression: Expr) -> Interval:
    """Give an interval that holds every value of an integer or boolean scalar."""
    low, high = ranges.bounds(expression)
    whole = full(expression.dtype)
    return whole[0] if low is None else low, whole[1] if high is None else high


def cannot_wrap(ranges: Ranges, node: Binary | Unary) -> bool:
    """Tell whether an addition, subtraction, product or negation always fits in its type."""
    low, high = full(node.dtype)
    found = _before_wrapping(ranges, node)
    return low <= found[0] and found[1] <= high


def _before_wrapping(ranges: Ranges, node: Binary | Unary) -> Interval:
    match node:
        case Unary(operand=operand):
            low, high = interval(ranges, operand)
            return -high, -low
        case Binary(op="add"):
            a, b = interval(ranges, node.left), interval(ranges, node.right)
            return a[0] + b[0], a[1] + b[1]
        case Binary(op="sub"):
            a, b = interval(ranges, node.left), interval(ranges, node.right)
            return a[0] - b[1], a[1] - b[0]
        case _:
            a, b = interval(ranges, node.left), interval(ranges, node.right)
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
