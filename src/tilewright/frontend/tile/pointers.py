"""Copies of single threads, by address, in the tile dialect.

May import `base`, `ir`, `isa` and the modules of `frontend`.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import UINT32
from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import argument_place, here
from tilewright.frontend.issuing import condition, issue
from tilewright.frontend.tensors import Pointer, Tensor, address_of, pointer_type
from tilewright.frontend.tile.regions import element
from tilewright.frontend.tile.synchronisation import barrier_address
from tilewright.frontend.values import constant_int, wrap
from tilewright.ir.expressions import constant, int32, select
from tilewright.isa import async_copy, named

_SIZES = (4, 8, 16)


def access_ptr(base: Any, access_type: Any = "r", *extents: Any, **_: Any) -> Any:
    """Point at an element, or at a buffer's first; `extents` elements are accessed from there."""
    if isinstance(base, Tensor):
        return base.data
    place = element(base)
    if place is None:
        raise FrontendError(
            "this is no element of a buffer",
            code="operand-type",
            location=argument_place("base", 0),
            found=repr(base),
        )
    count = constant_int(extents[-1], "a number of elements") if extents else 1
    size = count * place.dtype.bytes
    return wrap(address_of(place.tensor, place.indices, size & -size))


def cp_async(dst: Any, src: Any, num_elems: Any, predicate: Any = None, **_: Any) -> None:
    """Copy some elements from global to shared memory, later; zeros where a predicate fails.

    Raises `FrontendError` (`operand-type`) for another number of bytes than 4, 8 or 16.
    """
    for position, each in enumerate((dst, src)):
        if not isinstance(each, Pointer):
            raise FrontendError(
                "a pointer is expected",
                code="operand-type",
                location=argument_place(position),
                expected='T.access_ptr(buffer[i, j], "w", count)',
                found=repr(each),
            )
    size = constant_int(num_elems, "a number of elements") * pointer_type(dst.expr).dtype.bytes
    if size not in _SIZES:
        raise FrontendError(
            f"{size} bytes are no copy of one thread",
            code="operand-type",
            location=argument_place("num_elems", 2),
            expected="4, 8 or 16 bytes",
            found=f"{size} bytes",
        )
    form = named.COPY_16 if size == _SIZES[-1] else named.COPY_FEW
    operands = [dst.expr, src.expr, int32(size)]
    if predicate is not None:
        whole, none = constant(size, UINT32), constant(0, UINT32)
        operands.append(select(condition(predicate, 3), whole, none, here()))
    issue(form, *operands)


def copies_arrive(barrier: Any) -> None:
    """Let this thread arrive at a barrier when the copies that it has issued are done."""
    form = named.form(async_copy.mbarrier_arrive, noinc="noinc", space="shared")
    issue(form, barrier_address(barrier).expr)


FUNCTIONS: dict[str, Any] = {
    "access_ptr": access_ptr,
    "ptx_cp_async": cp_async,
    "cp_async_barrier_noinc": copies_arrive,
}
