"""Issuing instructions on behalf of the functions of `T.cuda`.

May import `base`, `ir`, `isa` and the modules of this folder below it.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import UINT32, DType
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.tensors import Pointer, pointer_type
from tilewright.frontend.values import Value, lift, wrap
from tilewright.ir.expressions import Expr, as_constant, cast, truth
from tilewright.ir.statements import Instruct
from tilewright.ir.types import ScalarType
from tilewright.isa.declaration import Form


def choices(values: range | tuple[int, ...]) -> str:
    """Write the values that an operand may have."""
    if isinstance(values, range):
        step = "" if values.step == 1 else f" in steps of {values.step}"
        return f"{values.start} … {values[-1]}{step}"
    return ", ".join(map(str, values))


def instruction(form: Form, *operands: Expr) -> Instruct:
    """Make an instruction; constants are held to the values that its operands may have."""
    for operand, given in zip(form.operands, operands, strict=False):
        number = as_constant(given)
        if operand.values is not None and number is not None and number not in operand.values:
            raise FrontendError(
                f"the operand {operand.name!r} of {form.text} does not fit",
                code="operand-type",
                location=here(),
                expected=choices(operand.values),
                found=str(number),
            )
    return Instruct(form, operands, location=here())


def issue(form: Form, *operands: Expr) -> None:
    current().emit(instruction(form, *operands))


def result(name: str, kind: DType, form: Form, *operands: Expr) -> Any:
    """Issue an instruction whose first operand is its result."""
    cell = current().result(name, kind)
    issue(form, cell, *operands)
    return wrap(cell)


def uint32(value: Any) -> Expr:
    return cast(lift(value, UINT32), UINT32, here())


def condition(value: Any, position: int = 0) -> Expr:
    return truth(lift(value), argument_place(position))


def shared_address(value: Any, position: int = 0) -> Expr:
    """Take a pointer into shared memory."""
    if isinstance(value, Pointer) and pointer_type(value.expr).space is Space.SHARED:
        return value.expr
    found = lift(value) if isinstance(value, Value) else None
    if found is not None and isinstance(found.type, ScalarType) and found.dtype == UINT32:
        return found
    raise FrontendError(
        "a pointer into shared memory is expected",
        code="operand-type",
        location=argument_place(position),
        expected="t.ptr_to([i]) of a shared tensor",
        found=repr(value),
    )
