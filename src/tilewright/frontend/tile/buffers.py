"""Buffers of the tile dialect: shared memory, fragments, registers, barriers, Tensor Memory.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import UINT64
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.annotations import tensor_type
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.storage import local_scalar
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.values import Cell, as_tuple, lift_index, not_constant
from tilewright.ir.expressions import as_constant, int32
from tilewright.ir.tile import AllocateBarriers
from tilewright.ir.types import TensorType
from tilewright.layout import default_layout

_SHARED = ("shared.dyn", "shared")


def _allocate(shape: Any, dtype: Any, space: Space, layout: Any = None) -> Tensor:
    for extent in map(lift_index, as_tuple(shape)):
        if as_constant(extent) is None:
            raise not_constant("the shape of a buffer is constant", extent)
    return Tensor(current().allocate(tensor_type(shape, dtype, space, 0, layout)))


def alloc_shared(shape: Any, dtype: Any, scope: str = "shared.dyn") -> Tensor:
    """Allocate a tile in shared memory; how it is laid out is inferred, or annotated."""
    if scope not in _SHARED:
        raise FrontendError(
            f"shared memory has no scope {scope!r}",
            code="bad-call",
            location=argument_place("scope", 2),
            expected=" or ".join(map(repr, _SHARED)),
        )
    return _allocate(shape, dtype, Space.SHARED)


def alloc_fragment(shape: Any, dtype: Any, scope: str = "local.fragment") -> Tensor:
    """Allocate a tile that the threads of the CTA hold in registers together."""
    return _allocate(shape, dtype, Space.FRAGMENT)


def alloc_local(shape: Any, dtype: Any, scope: str = "local") -> Tensor:
    """Allocate registers of each thread for itself."""
    return _allocate(shape, dtype, Space.LOCAL, "default")


def alloc_tmem(shape: Any, dtype: Any) -> Tensor:
    """Allocate a tile in Tensor Memory, given back at the end of the kernel."""
    return _allocate(shape, dtype, Space.TMEM)


def alloc_var(dtype: Any, init: Any = None, scope: str = "local.var") -> Cell:
    """Declare a number that is assigned to, of each thread for itself."""
    return local_scalar(dtype, init)


def alloc_barrier(arrive_count: Any) -> Tensor:
    """Allocate an mbarrier, or one for each of several counts of arrivals."""
    counts = tuple(map(lift_index, as_tuple(arrive_count)))
    type = TensorType(
        (int32(len(counts)),), UINT64, Space.SHARED, default_layout((len(counts),)), 8
    )
    builder = current()
    var = builder.variable(builder.named(None, "barrier"), type)
    builder.emit(AllocateBarriers(var, counts, location=here()))
    return Tensor(var)
