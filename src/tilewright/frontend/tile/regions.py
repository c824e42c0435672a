"""The operands of tile operations: whole buffers, slices, and points where a tile begins.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, here
from tilewright.frontend.taking import as_place
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.values import Value
from tilewright.ir.expressions import Expr, Load, Subview, as_constant, int32
from tilewright.ir.shapes import tensor_type

__all__ = ["Operand", "element", "operand", "paired", "shape_text", "tile"]


@dataclass(frozen=True)
class Operand:
    """A tensor or a view, and where in it a tile begins whose extents the partner tells."""

    tensor: Expr
    starts: tuple[Expr, ...] | None
    location: Location | None

    @property
    def extents(self) -> tuple[Expr, ...] | None:
        """Give the extents of the tile, `None` while only its start is known."""
        return tensor_type(self.tensor).shape if self.starts is None else None

    def with_extents(self, extents: Sequence[Expr]) -> Expr:
        """Give the tile of those extents, right-aligned; raises `FrontendError` (`bad-view`)."""
        if self.starts is None:
            return self.tensor
        rank = len(self.starts)
        own = tuple(extents)
        while len(own) > rank and as_constant(own[0]) == 1:
            own = own[1:]
        if len(own) > rank:
            raise FrontendError(
                "a tile has more axes than the tensor that it begins in",
                code="bad-view",
                location=self.location,
                expected=f"at most {rank} axes that are not 1",
                found=f"the extents {', '.join(map(str, extents))}",
            )
        own = (int32(1),) * (rank - len(own)) + own
        type = replace(tensor_type(self.tensor), shape=own, layout=None)
        made = Subview(
            self.tensor, self.starts, (1,) * rank, (False,) * rank, type, location=self.location
        )
        _check_inside(made, self.location)
        return made


def operand(value: Any, *keys: int | str) -> Operand:
    """Read an operand of a tile operation; `keys` name the argument.

    Raises `FrontendError` (`operand-type`; `bad-index` for a slice that leaves its buffer).
    """
    where = argument_place(*keys)
    place = value.expr if isinstance(value, Tensor) else as_place(value)
    match place:
        case Expr() if isinstance(value, Tensor):
            _check_inside(place, where)
            return Operand(place, None, where)
        case Load():
            return Operand(place.tensor, place.indices, where)
        case _:
            raise FrontendError(
                "this is no tile",
                code="operand-type",
                location=where,
                expected="a buffer, a slice of one, or an element at which a tile begins",
                found=str(value.expr.type) if isinstance(value, Value) else repr(value),
            )


def element(value: Any) -> Load | None:
    """Give the element that a value stands for, `None` for anything else."""
    place = None if isinstance(value, Tensor) else as_place(value)
    return place if isinstance(place, Load) else None


def _check_inside(view: Expr, where: Location | None) -> None:
    """Refuse a tile that leaves its buffer; what lies beyond a tensor's end is skipped."""
    while isinstance(view, Subview):
        if any(step != 1 for step in view.steps):
            raise FrontendError(
                "a tile takes all elements from its first to its last",
                code="bad-index",
                location=where,
                expected="a slice without a step",
                found=f"steps of {max(view.steps)}",
            )
        inner = tensor_type(view.source)
        kept = iter(tensor_type(view).shape)
        for axis, (start, dropped) in enumerate(zip(view.starts, view.dropped, strict=True)):
            count = 1 if dropped else as_constant(next(kept))
            first, whole = as_constant(start), as_constant(inner.shape[axis])
            if inner.space is Space.GLOBAL or first is None or count is None or whole is None:
                continue
            if first < 0 or first + count > whole:
                raise FrontendError(
                    f"the tile leaves axis {axis} of its buffer",
                    code="bad-index",
                    location=where,
                    expected=f"elements 0 … {int(whole) - 1}",
                    found=f"{first} … {int(first) + int(count) - 1}",
                )
        view = view.source


def tile(value: Any, *keys: int | str) -> Expr:
    """Read an operand whose extents no partner tells: a point is a tile of one element."""
    found = operand(value, *keys)
    return found.with_extents([int32(1)] * len(tensor_type(found.tensor).shape))


def paired(source: Operand, target: Operand) -> tuple[Expr, Expr]:
    """Bring two tiles to the same extents, but for axes of extent 1.

    Raises `FrontendError` (`bad-view`) for ranges that do not match.
    """
    extents = source.extents or target.extents
    if extents is None:
        extents = (int32(1),)
    pair = source.with_extents(extents), target.with_extents(extents)
    shapes = [_without_ones(tensor_type(each).shape) for each in pair]
    known = all(as_constant(each) is not None for shape in shapes for each in shape)
    if len(shapes[0]) != len(shapes[1]) or (known and shapes[0] != shapes[1]):
        raise FrontendError(
            "the two sides of a copy do not have the same extents",
            code="bad-view",
            location=here(),
            expected=f"{shape_text(pair[1])}, as in the target",
            found=f"{shape_text(pair[0])} in the source",
            hint="give the start of the tile alone, and its extents follow from the other side",
        )
    return pair


def shape_text(tile: Expr) -> str:
    """Write the extents of a tile."""
    return "(" + ", ".join(map(str, tensor_type(tile).shape)) + ")"


def _without_ones(shape: Sequence[Expr]) -> list[Expr]:
    return [each for each in shape if as_constant(each) != 1]
