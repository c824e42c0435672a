"""`T.cuda.tile`: instructions applied to tiles.

May import `base`, `ir`, `isa` and the modules of this folder below it. Whether the tiles fit the
instruction is for the pass that takes them apart to say.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import FrontendError, TileContractError
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.namespaces import Namespace
from tilewright.frontend.ptx import complete
from tilewright.frontend.values import ScalarKind, Value, as_tuple, lift
from tilewright.ir.statements import Apply

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
    forms = complete(instruction)
    tiled = [form for form in forms if form.tile is not None]
    if not tiled:
        raise TileContractError(
            f"{forms[0].text} has no tile form",
            code="tile-unsupported",
            location=argument_place(0),
        )
    form = tiled[0]
    expected = [each.operand for each in form.tile.operands]  # type: ignore[union-attr]
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
