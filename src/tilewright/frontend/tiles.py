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
from tilewright.ir.expressions import Expr
from tilewright.ir.statements import Apply
from tilewright.isa.declaration import Form
from tilewright.isa.tensor_core import is_product, left_space, options
from tilewright.isa.tile_forms import tile_operands

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
    given = [name for name, value in params.items() if value is not None]
    form = _form(complete(instruction), operands, given)
    expected = tile_operands(form)
    if len(expected) != len(operands):
        raise FrontendError(
            f"{form.text} is applied to the wrong number of tiles",
            code="operand-count",
            location=here(),
            expected=f"{len(expected)} ({', '.join(expected)})",
            found=f"{len(operands)} operands",
        )
    parameters = tuple((name, _parameter(value)) for name, value in params.items())
    lifted = tuple(_lifted(each, position) for position, each in enumerate(operands, start=1))
    places = [(name, argument_place(at)) for at, name in enumerate(expected, start=1)]
    places += [(name, argument_place(name)) for name in params]
    current().emit(Apply(form, lifted, scope, parameters, tuple(places), location=here()))


def _lifted(operand: Any, position: int) -> Expr:
    try:
        return lift(operand)
    except FrontendError as error:
        raise FrontendError(
            "this is no operand of a tile operation",
            code="operand-type",
            location=argument_place(position),
            expected="a view or a region of a tensor, or a number",
            found=error.found,
            hint=error.hint,
        ) from error


def _form(forms: Sequence[Form], operands: Sequence[Any], params: Sequence[str]) -> Form:
    """Choose the form with tiles that the operands' spaces and the parameters call for.

    If there is none, it is the first with tiles.
    """
    tiled = [form for form in forms if tile_operands(form)]
    if not tiled:
        raise TileContractError(
            f"{forms[0].text} has no tile form",
            code="tile-unsupported",
            location=argument_place(0),
        )
    products = [form for form in tiled if is_product(form)]
    known = frozenset[str]().union(*map(options, products))
    tiled = [each for each in products if options(each) == known.intersection(params)] or tiled
    left = operands[1] if len(operands) > 1 else None
    for form in tiled:
        if is_product(form) and isinstance(left, Tensor) and left.type.space is left_space(form):
            return form
    return tiled[0]


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
