"""Buffers of the tile dialect: shared memory, fragments, registers, barriers, Tensor Memory.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import UINT64
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend import views
from tilewright.frontend.annotations import tensor_type
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.storage import local_scalar
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.tile.options import only
from tilewright.frontend.values import Cell, as_dtype, as_tuple, lift_index, not_constant, wrap
from tilewright.ir.expressions import Var, as_constant, int32
from tilewright.ir.tile import AllocateBarriers, FreeTile
from tilewright.ir.types import TensorType
from tilewright.layout import default_layout

_SHARED = ("shared.dyn", "shared")
# What an mbarrier can count (PTX ISA, "Contents of the mbarrier object").
_MOST_ARRIVALS = (1 << 20) - 1


def _allocate(shape: Any, dtype: Any, space: Space, layout: Any = None) -> Tensor:
    for extent in map(lift_index, as_tuple(shape)):
        if as_constant(extent) is None:
            raise not_constant(
                "the shape of a buffer is constant",
                extent,
                hint="take a tile of a size that is known, and go through all of it by a loop",
            )
    return Tensor(current().allocate(tensor_type(shape, dtype, space, 0, layout)))


def alloc_shared(shape: Any, dtype: Any, scope: str = "shared.dyn") -> Tensor:
    """Allocate a tile in shared memory; how it is laid out is inferred, or annotated."""
    only("scope", scope, *_SHARED, place=2)
    return _allocate(shape, dtype, Space.SHARED)


def alloc_fragment(shape: Any, dtype: Any, scope: str = "local.fragment") -> Tensor:
    """Allocate a tile that the threads of the CTA hold in registers together.

    One whose scope is that of another buffer is what `alloc_shared` or `alloc_local` gives.
    """
    if scope in _SHARED:
        return alloc_shared(shape, dtype, scope)
    if scope == "local":
        return alloc_local(shape, dtype, scope)
    only("scope", scope, "local.fragment", "local", *_SHARED, place=2)
    return _allocate(shape, dtype, Space.FRAGMENT)


def alloc_local(shape: Any, dtype: Any, scope: str = "local") -> Tensor:
    """Allocate registers of each thread for itself."""
    only("scope", scope, "local", place=2)
    return _allocate(shape, dtype, Space.LOCAL, "default")


def alloc_tmem(shape: Any, dtype: Any) -> Tensor:
    """Allocate a tile in Tensor Memory, given back at the end of the kernel.

    Raises `FrontendError` (`bad-call`) for a shape of one axis.
    """
    if len(as_tuple(shape)) < 2:
        raise FrontendError(
            "a tile in Tensor Memory has two axes or more",
            code="bad-call",
            location=argument_place("shape", 0),
            expected="(rows, columns)",
        )
    return _allocate(shape, dtype, Space.TMEM)


def deallocate_tmem(tmem: Any) -> None:
    """Give Tensor Memory back before the end of the kernel."""
    place = tmem.expr if isinstance(tmem, Tensor) else None
    if not isinstance(place, Var) or not _lies_in(place, Space.TMEM):
        raise FrontendError(
            "this is no buffer in Tensor Memory",
            code="operand-type",
            location=argument_place("tmem", 0),
            expected="what T.alloc_tmem(…) has given",
        )
    current().emit(FreeTile(place, location=here()))


def _lies_in(var: Var, space: Space) -> bool:
    return isinstance(var.type, TensorType) and var.type.space is space


def alloc_var(dtype: Any, *given: Any, init: Any = None, scope: str = "local.var") -> Cell:
    """Declare a number that is assigned to, of each thread for itself."""
    for each in given:
        if isinstance(each, str) and each.startswith("local"):
            scope = each
        else:
            init = each
    only("scope", scope, "local.var", "local")
    return local_scalar(dtype, init)


def alloc_barrier(arrive_count: Any) -> Tensor:
    """Allocate an mbarrier, or one for each of several counts of arrivals."""
    counts = tuple(map(lift_index, as_tuple(arrive_count)))
    for each in map(as_constant, counts):
        if each is not None and not 1 <= each <= _MOST_ARRIVALS:
            raise FrontendError(
                "an mbarrier counts at least one arrival",
                code="bad-call",
                location=argument_place("arrive_count", 0),
                expected=f"a number from 1 to {_MOST_ARRIVALS}, or a list of such",
                found=str(each),
            )
    type = TensorType(
        (int32(len(counts)),), UINT64, Space.SHARED, default_layout((len(counts),)), 8
    )
    builder = current()
    var = builder.variable(builder.named(None, "barrier"), type)
    builder.emit(AllocateBarriers(var, counts, location=here()))
    return Tensor(var)


# ---------------------------------------------------------------------------- views


def reshape(src: Any, shape: Any) -> Any:
    """View a buffer under another shape, of as many elements."""
    return _tensor(src).view(*as_tuple(shape))


def view(src: Any, shape: Any = None, dtype: Any = None, strides: Any = None) -> Any:
    """View a buffer under another shape, or as elements of another type.

    The bits are as many as before. Raises `FrontendError` (`bad-view`, `not-supported`).
    """
    if strides is not None:
        raise FrontendError(
            "a view has no strides of its own",
            code="not-supported",
            location=argument_place("strides", 3),
            hint="slice the buffer, or view it under another shape",
        )
    found = _tensor(src)
    if dtype is not None and as_dtype(dtype) != found.type.dtype:
        found = wrap(views.reinterpret(found.expr, as_dtype(dtype), here()))
    return found if shape is None else found.view(*as_tuple(shape))


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    raise FrontendError(
        "this is no buffer",
        code="operand-type",
        location=argument_place("src", 0),
        found=repr(value),
    )


FUNCTIONS: dict[str, Any] = {
    each.__name__: each
    for each in (
        *(alloc_shared, alloc_fragment, alloc_local, alloc_tmem, deallocate_tmem),
        *(alloc_var, alloc_barrier, reshape, view),
    )
}
