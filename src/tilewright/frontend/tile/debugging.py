"""Printing and checking inside kernels of the tile dialect.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import FLOAT32, INT32, DType
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.tile.buffers import alloc_shared
from tilewright.frontend.tile.operations import copy
from tilewright.frontend.values import Value, lift, wrap
from tilewright.ir.expressions import Expr, SpecialRegister, as_constant, binary, cast, int32, truth
from tilewright.ir.statements import Assert, For, If, Print, Stmt
from tilewright.ir.types import ScalarType


def print_value(obj: Any = None, msg: str = "", warp_group_id: int = 0, warp_id: int = 0) -> None:
    """Print a text, a number of each thread, or a buffer's elements by one thread.

    That thread is the first of a warp: `warp_id` of the warpgroup `warp_group_id`.
    """
    match obj:
        case None:
            _emit(msg, ())
        case str():
            _emit(f"{msg}{obj}", ())
        case Tensor():
            _print_buffer(obj, msg, warp_group_id * 4 + warp_id)
        case _:
            value = lift(obj)
            _emit(f"{msg}{_WHERE} {_directive(value.dtype)}", (*_place(), _passed(value)))


_WHERE = "block (%d, %d, %d) thread (%d, %d, %d):"


def _place() -> tuple[Expr, ...]:
    return tuple(
        SpecialRegister(f"{name}.{axis}", location=here())
        for name in ("ctaid", "tid")
        for axis in "xyz"
    )


def _directive(kind: DType) -> str:
    if kind.is_float:
        return "%f"
    signed = "d" if kind.kind != "uint" else "u"
    return f"%ll{signed}" if kind.bits == 64 else f"%{signed}"


def _passed(value: Expr) -> Expr:
    """Convert a number to what a format takes."""
    if value.dtype.is_float and value.dtype.bits < 32:
        return cast(value, FLOAT32, here())
    if value.dtype.is_bool:
        return cast(value, INT32, here())
    return value


def _emit(text: str, operands: tuple[Expr, ...]) -> None:
    escaped = text if operands else text.replace("%", "%%")
    current().emit(Print(escaped + "\n", operands, location=here()))


def _print_buffer(buffer: Tensor, msg: str, warp: int) -> None:
    """Print all elements, in a loop that one thread runs; a fragment by way of shared memory."""
    builder, where = current(), here()
    name = msg or str(getattr(buffer.expr, "name", "buffer"))
    if buffer.type.space is Space.FRAGMENT:
        builder.hint = f"{name}_printed" if name.isidentifier() else "printed"
        held = alloc_shared([as_constant(each) for each in buffer.type.shape], buffer.dtype)
        copy(buffer, held)
        buffer = held
    indices: list[Any] = [
        builder.variable(f"i{axis}", ScalarType(INT32)) for axis in range(buffer.ndim)
    ]
    element = lift(buffer.at(tuple(map(wrap, indices))))
    marks = ", ".join(["%d"] * len(indices))
    text = f"{name}[{marks}] = {_directive(element.dtype)}\n"
    inner: Stmt = Print(text, (*indices, _passed(element)), location=where)
    for var, extent in zip(reversed(indices), reversed(buffer.type.shape), strict=True):
        inner = For(var, int32(0), extent, int32(1), (inner,), location=where)
    first = binary("eq", SpecialRegister("linear_tid", location=where), warp * 32, where)
    builder.emit(If(first, (inner,), location=where))


def device_assert(condition: Any, msg: str = "", no_stack_info: bool = False) -> None:
    """Trap, with a message, where a condition does not hold."""
    if not isinstance(condition, Value):
        condition = wrap(lift(bool(condition)))
    test = truth(lift(condition), argument_place(0))
    current().emit(Assert(test, msg or str(test), location=here()))


FUNCTIONS: dict[str, Any] = {
    "print": print_value,
    "device_assert": device_assert,
    "Assert": device_assert,
}
