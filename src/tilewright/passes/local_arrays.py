"""Elements of views of local tensors, as elements of the arrays that lowering leaves.

May import `base`, `ir`, NumPy and `passes.places`. An array keeps the element type that its
tensor was declared with; a view of wider elements reads and writes several of its elements, one
of narrower elements a part of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.base.dtypes import INT32, DType, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    Bitcast,
    Expr,
    Load,
    Var,
    as_constant,
    as_expr,
    cast,
    constant,
    int32,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Block, Store
from tilewright.ir.types import ScalarType, TensorType
from tilewright.passes.places import Place, locate, locate_all, storage_bytes

Values = npt.NDArray[np.int64]

_WIDEST = 8
_INDEX = ScalarType(INT32)


def array_of(buffer: Var) -> Var:
    """Give the array that holds a local tensor's registers."""
    kind = tensor_type(buffer)
    count = storage_bytes(kind) // kind.dtype.bytes
    return Var(buffer.name, TensorType((int32(count),), kind.dtype, Space.LOCAL, None, kind.align))


@dataclass(frozen=True)
class Element:
    """An element of a view of a local tensor.

    It begins at `array[index]`; if it is narrower than that, at its part number `part`.
    """

    array: Var
    dtype: DType
    index: Expr
    part: Expr

    @property
    def fits(self) -> bool:
        """Tell whether the element is one element of the array."""
        return self.dtype.bytes == self.array.dtype.bytes

    def place(self) -> Load:
        """Name the array's element that this one is, or begins in."""
        return Load(self.array, (self.index,), ScalarType(self.array.dtype))

    def read(self) -> Expr:
        """Give the value."""
        own = self.array.dtype
        if self.fits:
            return bitcast(self.place(), self.dtype)
        if self.dtype.bytes < own.bytes:
            moved = bitcast(self.place(), _bits(own)) >> self._shift()
            return bitcast(cast(moved, _bits(self.dtype)), self.dtype)
        joined: Expr | None = None
        for number, each in enumerate(self._covered()):
            widened = cast(bitcast(each, _bits(own)), _bits(self.dtype)) << number * 8 * own.bytes
            joined = widened if joined is None else joined | widened
        assert joined is not None
        return bitcast(joined, self.dtype)

    def write(self, value: Expr) -> Block:
        """Store a value of the element's type."""
        own = self.array.dtype
        if self.fits:
            return (self._store(self.index, bitcast(value, own)),)
        bits = bitcast(value, _bits(self.dtype))
        if self.dtype.bytes < own.bytes:
            mask = constant((1 << 8 * self.dtype.bytes) - 1, _bits(own)) << self._shift()
            kept = bitcast(self.place(), _bits(own)) & ~mask
            merged = kept | cast(bits, _bits(own)) << self._shift()
            return (self._store(self.index, bitcast(merged, own)),)
        return tuple(
            self._store(
                each.indices[0], bitcast(cast(bits >> number * 8 * own.bytes, _bits(own)), own)
            )
            for number, each in enumerate(self._covered())
        )

    def _shift(self) -> Expr:
        return cast(self.part * (8 * self.dtype.bytes), _bits(self.array.dtype))

    def _covered(self) -> list[Load]:
        count = self.dtype.bytes // self.array.dtype.bytes
        kind = ScalarType(self.array.dtype)
        return [Load(self.array, (self.index + number,), kind) for number in range(count)]

    def _store(self, index: Expr, value: Expr) -> Store:
        return Store(self.array, (index,), value)


class LocalView:
    """A view of a local tensor, which `array` holds; its elements are asked for one by one.

    Those at constant indices are found all at once, if the view itself is constant.
    """

    def __init__(self, view: Expr, array: Var) -> None:
        self.view = view
        self.dtype = tensor_type(view).dtype
        self.array = array
        self.table: tuple[Values, Values] | None = None

    @cached_property
    def all(self) -> Place | None:
        """Locate all elements."""
        return locate_all(self.view)

    def element(self, indices: Sequence[Expr], location: Location | None) -> Element:
        """Find the element of the tensor's array that an index of the view names.

        Raises `FrontendError`: bad-index for a view whose elements other threads own, bad-view
        for elements that the array's cannot be read as.
        """
        # What is known is computed with numbers: it is faster than with expressions.
        known = [as_constant(each) if each.type == _INDEX else None for each in indices]
        found = None if None in known else self._look_up(known, location)
        if found is None:
            at = [e if k is None else k for e, k in zip(indices, known, strict=True)]
            found = self._split(locate(self.view, at), location)
        whole, part = found
        return Element(self.array, self.dtype, as_expr(whole), as_expr(part))

    def _look_up(self, at: list[Any], location: Location | None) -> tuple[int, int] | None:
        """Find an element among all, if they are known and it is one of them."""
        if self.all is None:
            return None
        if self.table is None:
            shape = static_shape(tensor_type(self.view).shape) or ()
            whole, part = self._split(self.all, location)
            self.table = (np.broadcast_to(whole, shape), np.broadcast_to(part, shape))
        whole, part = self.table
        if not all(0 <= index < extent for index, extent in zip(at, whole.shape, strict=True)):
            return None
        return whole.item(*at), part.item(*at)

    def _split(self, place: Place, location: Location | None) -> tuple[Any, Any]:
        """Give the element of the array, or all that places lie in, and the part of it."""
        if place.axes:
            raise self._refuse_owner(place, location)
        own, wanted = self.array.dtype.bytes, self.dtype.bytes
        unit = min(own, wanted)
        if max(own, wanted) > _WIDEST and own != wanted:
            raise self._refuse_width(location)
        if own % unit or wanted % unit or any(scale % unit for _, scale in place.terms):
            raise self._refuse_width(location)
        whole = _sum([(value, scale // own) for value, scale in place.terms if scale % own == 0])
        rest = _sum([(value, scale // unit) for value, scale in place.terms if scale % own])
        ratio = own // unit
        return whole + rest // ratio, rest % ratio

    def _refuse_owner(self, place: Place, location: Location | None) -> FrontendError:
        return FrontendError(
            f"elements of this view of {self.array.name} lie in the registers of other threads",
            code="bad-index",
            location=location,
            expected="a view of the thread's own registers",
            found=f"a layout over {', '.join(place.axes)}",
            hint='index a view with layout="default", or use the view as a tile operand',
        )

    def _refuse_width(self, location: Location | None) -> FrontendError:
        name, wanted = self.array.name, self.dtype
        return FrontendError(
            f"elements of the local tensor {name} cannot be taken as {wanted}",
            code="bad-view",
            location=location,
            expected=f"elements of at most {8 * _WIDEST} bits, that do not lie across its own",
            found=f"a tensor of {self.array.dtype}",
            hint=f"declare {name} with elements of {wanted}",
        )


def bitcast(value: Expr, to: DType) -> Expr:
    """Read the bits of a value as another type of the same width."""
    if value.dtype == to:
        return value
    if value.dtype.is_integer and to.is_integer and value.dtype.lanes == to.lanes == 1:
        return cast(value, to)
    return Bitcast(value, ScalarType(to))


def _sum(terms: Sequence[tuple[Any, int]]) -> Any:
    """Add multiples up: numbers and arrays to one of them, expressions to an expression."""
    known = sum(value * factor for value, factor in terms if not isinstance(value, Expr))
    unknown = [value * factor for value, factor in terms if isinstance(value, Expr)]
    return sum(unknown, int32(0)) + known if unknown else known


def _bits(kind: DType) -> DType:
    return dtype(f"uint{8 * kind.bytes}")
