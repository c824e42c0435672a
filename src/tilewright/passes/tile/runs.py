"""Neighbouring elements that an access of memory takes at once.

May import `base`, `ir`, `passes.analysis` and `passes.wide_views`. A run is proven: its elements
lie side by side, also where the layout is swizzled, and begin where a vector of them may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Load, Reinterpret, Var
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Store
from tilewright.ir.types import TensorType
from tilewright.ir.visit import variables
from tilewright.passes.allocate_shared import alignment_of
from tilewright.passes.analysis.linear import Linear, linear_of
from tilewright.passes.analysis.ranges import Ranges
from tilewright.passes.places import root_of
from tilewright.passes.wide_views import require_whole_elements

# Bytes that a thread moves at once.
WIDEST = 16
MEMORY = (Space.GLOBAL, Space.SHARED)


def start_of_run(indices: Sequence[Expr], var: Var) -> Linear | None:
    """Give where along the last axis neighbours begin that a variable counts, one by one.

    `None` if it counts otherwise, or along other axes too.
    """
    if not indices or any(var in variables(each) for each in indices[:-1]):
        return None
    total = linear_of(indices[-1])
    rest = {term: by for term, by in total.terms.items() if term != var}
    if total.terms.get(var) != 1 or any(var in variables(each) for each in rest):
        return None
    return Linear(rest, total.constant, total.dtype)


def widest_run(access: Load | Store, var: Var, most: int, ranges: Ranges) -> int:
    """Find how many neighbours an access takes at once: a power of two of at most `most`.

    `var` counts them, from a multiple of their number on.
    """
    kind = tensor_type(access.tensor)
    start = start_of_run(access.indices, var)
    if kind.space not in MEMORY or start is None or kind.dtype.lanes > 1 or kind.dtype.bits < 8:
        return 1
    divisor = ranges.divisor(start.expression())
    width = 1
    while (
        2 * width <= most
        and 2 * width * kind.dtype.bytes <= WIDEST
        and divisor % (2 * width) == 0
        and _is_whole(access.tensor, 2 * width, ranges)
    ):
        width *= 2
    return width


def _is_whole(tensor: Expr, width: int, ranges: Ranges) -> bool:
    if alignment_of(root_of(tensor)) % (width * tensor_type(tensor).dtype.bytes):
        return False
    try:
        require_whole_elements(in_vectors(tensor, width), ranges, None)
    except FrontendError:
        return False
    return True


def in_vectors(tensor: Expr, width: int) -> Reinterpret:
    """View a tensor as one of vectors of neighbours."""
    kind = tensor_type(tensor)
    shape = (*kind.shape[:-1], kind.shape[-1] // width)
    wide = TensorType(shape, kind.dtype.vector(width), kind.space, None, kind.align)
    return Reinterpret(tensor, replace(wide, align=0), location=tensor.location)
