"""`T.cuda.tile`: instructions applied to tiles.

May import `base`, `ir`, `isa` and the modules of this folder below it. Whether the tiles fit the
instruction is for the pass that takes them apart to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.errors import FrontendError, TileContractError
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.namespaces import Namespace
from tilewright.frontend.ptx import complete
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.values import ScalarKind, Value, as_tuple, lift
from tilewright.ir.statements import Apply
from tilewright.isa.declaration import Form
from tilewright.isa.tensor_core import is_product, left_space, product_tiles

SCOPES = ("thread", "warp", "warpgroup", "cta", "cluster")


def apply(instruction: Any, *operands: Any, scope: str = "thread", **params: Any) -> None:
    """Apply an instruction to tiles, by the threads of a scope together.

    Operands are views or regions of tensors, or scalars, in the instruction's order.
    Raises `TileContractError` (`tile-scope`, `tile-unsupported`).
    """
    if scope not in SCOPES:
        raise TileContractError(
            f"there is no scope {scope!r}",
            code="tile-scope",
            location=argument_place("scope"),
            expected=", ".join(SCOPES),
            found=repr(scope),
        )
    form = _form(complete(instruction), operands)
    expected = tiles_of(form)
    if len(expected) != len(operands):
        raise FrontendError(
            f"{form.text} is applied to the wrong number of tiles",
            code="operand-count",
            location=here(),
            expected=f"{len(expected)} ({', '.join(expected)})",
            found=f"{len(operands)} operands",
        )
    parameters = tuple((name, _parameter(value)) for name, value in params.items())
    lifted = tuple(lift(each) for each in operands)
    current().emit(Apply(form, lifted, scope, parameters, location=here()))


def _form(forms: Sequence[Form], operands: Sequence[Any]) -> Form:
    """Choose the form with tiles that takes the operands' spaces, or else the first with tiles."""
    tiled = [form for form in forms if form.tile is not None or is_product(form)]
    if not tiled:
        raise TileContractError(
            f"{forms[0].text} has no tile form",
            code="tile-unsupported",
            location=argument_place(0),
        )
    left = operands[1] if len(operands) > 1 else None
    for form in tiled:
        if is_product(form) and isinstance(left, Tensor) and left.type.space is left_space(form):
            return form
    return tiled[0]


def tiles_of(form: Form) -> tuple[str, ...]:
    """Name the operands of an instruction that are tiles, in call order."""
    if is_product(form):
        return product_tiles(form)
    assert form.tile is not None
    return tuple(each.operand for each in form.tile.operands)


def _parameter(value: Any) -> Any:
    match value:
        case Value():
            return value.expr
        case ScalarKind():
            return value.dtype.name
        case list() | tuple():
            return tuple(_parameter(each) for each in as_tuple(value))
        case _:
            return value


TILE = Namespace("T.cuda.tile", {"apply": apply})
