"""Pointers: the windows that addresses are numbers in, and distances counted in elements.

May import `base` and `ir`.
"""

from __future__ import annotations

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Binary, Constant, Expr
from tilewright.ir.types import ScalarType

ADDRESS_FUNCTIONS = {
    Space.SHARED: "shared_address",
    Space.GLOBAL: "global_address",
    Space.GENERIC: "generic_address",
}


def address_space(own: Space, wanted: Space | None) -> Space:
    """Choose the window that a pointer's number is in: C++ pointers themselves are generic."""
    if wanted in (Space.SHARED, Space.SHARED_CLUSTER):
        return Space.SHARED
    if wanted in (Space.GENERIC, Space.PARAM):
        return Space.GENERIC
    if wanted is Space.GLOBAL:
        return Space.GLOBAL
    return own if own in ADDRESS_FUNCTIONS else Space.GENERIC


def elements(distance: Expr, size: int) -> Expr | None:
    """Divide a distance in bytes by the size of an element, if it is plainly a multiple of it."""
    match distance:
        case Constant(value=int(value)) if value % size == 0:
            return Constant(value // size, distance.type)
        case _ if size == 1:
            return distance
        case Binary(op="mul", left=left, right=Constant(value=int(value))) if value % size == 0:
            return _times(left, value // size)
        case Binary(op="shl", left=left, right=Constant(value=int(value))) if (
            value < 31 and (1 << value) % size == 0
        ):
            return _times(left, (1 << value) // size)
        case Binary(op="add" | "sub" as op, left=left, right=right):
            a, b = elements(left, size), elements(right, size)
            if a is None or b is None:
                return None
            return Binary(op, a, b, distance.type)
        case _:
            return None


def _times(count: Expr, factor: int) -> Expr:
    if factor == 1:
        return count
    kind = ScalarType(count.dtype)
    return Binary("mul", count, Constant(factor, kind), kind)
