"""Runs of consecutive numbers at an address, as the functions of `T.cuda` that take `void *` do.

May import `base`, `ir` and the modules of this folder below it. The numbers may be of another type
than the storage has: their bits are read and written.

    run = run_at(T.address_of(words[0]), FLOAT16, 8, 0)
    run.write(0, run.read(7))
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend import views
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.tensors import Pointer, pointer_type
from tilewright.frontend.values import lift_index
from tilewright.ir.expressions import (
    AddressOf,
    Expr,
    Load,
    Offset,
    Read,
    as_constant,
    binary,
    int32,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Store, Write
from tilewright.ir.types import PointerType, ScalarType


@dataclass(frozen=True)
class Run:
    """Numbers of a type, one after another: elements of a local array, or memory at a pointer.

    `start` is the number of the first one in the array, or `None` for memory.
    """

    base: Expr
    dtype: DType
    start: Expr | None = None

    def read(self, index: int) -> Expr:
        """Read a number, now."""
        kind = ScalarType(self.dtype)
        if self.start is None:
            value: Expr = Read(self._pointer(index), kind, location=here())
        else:
            value = Load(self.base, (self._place(index),), kind, location=here())
        return current().bind("element", value)

    def write(self, index: int, value: Expr) -> None:
        """Write a number."""
        if self.start is None:
            current().emit(Write(self._pointer(index), value, location=here()))
        else:
            current().emit(Store(self.base, (self._place(index),), value, location=here()))

    def _place(self, index: int) -> Expr:
        assert self.start is not None
        return binary("add", self.start, index, here())

    def _pointer(self, index: int) -> Expr:
        known = pointer_type(self.base)
        size = self.dtype.bytes
        type = PointerType(known.space, self.dtype, size)
        return Offset(self.base, int32(index * size), type, location=here())


def run_at(pointer: Any, kind: DType, count: int, position: int) -> Run:
    """Find the numbers at a pointer that is an argument of the call, at a position.

    Raises `FrontendError` (`operand-type`) for what is no pointer, or one into too small an array.
    """
    if not isinstance(pointer, Pointer):
        raise _refuse(position, f"{count} {kind} numbers are at a pointer", repr(pointer))
    place = pointer.expr
    if pointer_type(place).space is not Space.LOCAL:
        return Run(place, kind)
    if not isinstance(place, AddressOf):
        raise _refuse(position, "registers have no address", str(place.type))
    return _in_registers(place, kind, count, position)


def _in_registers(place: AddressOf, kind: DType, count: int, position: int) -> Run:
    """See a local array as one of the numbers, all along one axis."""
    shape = static_shape(tensor_type(place.tensor).shape)
    assert shape is not None, "local arrays have constant shapes"
    first: Expr = int32(0)
    for index, extent in zip(place.indices, shape, strict=True):
        first = binary("add", binary("mul", first, extent, here()), lift_index(index), here())
    have, want = tensor_type(place.tensor).dtype.bytes, kind.bytes
    flat = views.reshape(place.tensor, [int32(prod(shape))], here())
    if tensor_type(flat).dtype != kind:
        flat = views.reinterpret(flat, kind, here())
    scale = binary("mul", first, have, here())
    start = binary("floordiv", scale, want, here())
    end, whole = as_constant(start), as_constant(tensor_type(flat).shape[0])
    if end is not None and whole is not None and int(end) + count > int(whole):
        found = f"{int(whole) - int(end)} from there on"
        raise _refuse(position, f"{count} {kind} numbers lie in a local array", found)
    return Run(flat, kind, start)


def _refuse(position: int, message: str, found: str) -> FrontendError:
    return FrontendError(
        message,
        code="operand-type",
        location=argument_place(position),
        expected="t.ptr_to([i]) or T.address_of(t[i]), of an element before so many",
        found=found,
    )
