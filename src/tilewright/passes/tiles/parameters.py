"""The keyword parameters of a tile operation.

May import `base`, `ir` and `passes.tiles.shapes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tilewright.base.dtypes import BOOL
from tilewright.ir.expressions import Constant, Expr, constant, truth
from tilewright.ir.statements import Apply
from tilewright.passes.tiles.shapes import refuse


def require_known(apply: Apply, known: Sequence[str]) -> None:
    """Require that there are no other parameters.

    Raises `TileContractError` (tile-operand), listing those that there are.
    """
    for name, _ in apply.parameters:
        if name not in known:
            raise refuse(
                apply.at(name),
                "tile-operand",
                f"{apply.form.text} has no parameter {name!r} in its tile form",
                ", ".join(known),
                name,
            )


def plain_parameters(apply: Apply, known: Sequence[str]) -> dict[str, Any]:
    """Give the parameters that are not `None`, constants as Python's values.

    Raises as `require_known` does.
    """
    require_known(apply, known)
    return {name: _plain(value) for name, value in apply.parameters if value is not None}


def flag(value: Any) -> Expr:
    """Make a condition of a parameter."""
    return truth(value) if isinstance(value, Expr) else constant(bool(value), BOOL)


def entries(value: Any) -> tuple[Any, ...]:
    """Give the entries of a tuple; of anything else, none."""
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else ()


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in entries(value))
    return value.value if isinstance(value, Constant) else value
