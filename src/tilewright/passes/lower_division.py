"""Lower Python's division and remainder to C's, where nothing is negative.

May import `base`, `ir` and `passes.analysis`.

    # with 0 <= i:  i // 16  ->  truncdiv(i, 16)
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expressions import Binary, Expr
from tilewright.ir.rewrite import rewrite
from tilewright.ir.statements import Kernel, Program
from tilewright.passes.analysis.ranges import analyse_ranges

_TRUNCATING = {"floordiv": "truncdiv", "mod": "truncmod"}


def lower_division(program: Program) -> Program:
    """Replace `floordiv` and `mod` of operands that are proven to be non-negative."""
    return replace(program, kernels=tuple(map(_lower_kernel, program.kernels)))


def _lower_kernel(kernel: Kernel) -> Kernel:
    ranges = analyse_ranges(kernel)

    # a // b  ->  truncdiv(a, b), where 0 <= a and 0 <= b
    def truncate(division: Binary) -> Expr | None:
        if division.op not in _TRUNCATING or not division.dtype.is_integer:
            return None
        both = (division.left, division.right)
        if not all(ranges.is_non_negative(each) for each in both):
            return None
        return replace(division, op=_TRUNCATING[division.op])

    return replace(kernel, body=rewrite(kernel.body, ((Binary, truncate),)))
