"""Types of IR values: scalars, pointers, tensors (buffers and views) and tensor maps.

May import `base`, `layout` and `isa`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.base.dtypes import UINT8, DType
from tilewright.base.spaces import Space
from tilewright.isa.tensor_map import ALIGN

if TYPE_CHECKING:
    from tilewright.ir.expressions import Expr


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A value of an element type, vectors and booleans (predicates) included."""

    dtype: DType

    def __str__(self) -> str:
        return self.dtype.name


@dataclass(frozen=True, slots=True)
class PointerType:
    """An address in a space, with the element type there and the alignment known, in bytes."""

    space: Space
    dtype: DType
    align: int = 1

    def __str__(self) -> str:
        return f"pointer to {self.dtype} in {self.space.value} memory"


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor: a buffer that a parameter or an allocation names, or a view of one.

    Shape entries are int32 expressions, constants where they are known. `layout` maps
    coordinates to elements of the storage; `None` leaves it unspecified. `align` is the
    declared alignment of the storage in bytes, 0 for that of the element type.
    """

    shape: tuple[Expr, ...]
    dtype: DType
    space: Space
    layout: Any = None
    align: int = 0

    def __str__(self) -> str:
        extents = ", ".join(str(extent) for extent in self.shape)
        return f"{self.dtype} tensor ({extents}) in {self.space.value} memory"


@dataclass(frozen=True, slots=True)
class TensorMapType:
    """A tensor map (`CUtensorMap`), which a launch passes by value."""

    def __str__(self) -> str:
        return "tensor map"


Type = ScalarType | PointerType | TensorType | TensorMapType
# What a kernel has of a tensor map: its generic address.
TENSOR_MAP_POINTER = PointerType(Space.GENERIC, UINT8, ALIGN)


def bits_of(type: Type) -> int | None:
    """Give the width of a scalar or a pointer, `None` for anything else."""
    match type:
        case ScalarType():
            return type.dtype.bits * type.dtype.lanes
        case PointerType():
            return type.space.address_bits
        case _:
            return None
