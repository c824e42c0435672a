"""The shapes of a tile operation's operands: (*group, *repeat, *atom).

May import `base`, `isa` and `ir`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from tilewright.base.errors import TileContractError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Apply
from tilewright.ir.types import TensorType
from tilewright.isa.declaration import TileContract, TileOperand
from tilewright.passes.places import laid_out_by, root_of
from tilewright.passes.tiles.groups import Group

SHARED_AXES = "*"


@dataclass(frozen=True)
class Tile:
    """A view as an operand of a tile operation.

    `repeats` names the repeat axes of its shape; shared ones are numbered: ("*0", "m", "n").
    """

    operand: TileOperand
    view: Expr
    shape: tuple[int, ...]
    repeats: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name the operand as the declaration does, with the user's buffer."""
        return f"operand {self.operand.operand} ({root_of(self.view).name})"

    def repeat_shape(self) -> tuple[int, ...]:
        """Give the extents of the repeat axes."""
        last = len(self.shape) - len(self.operand.atom)
        return self.shape[last - len(self.repeats) : last]


@dataclass(frozen=True)
class Operands:
    """The operands of a tile operation: views, scalars, and the repeat axes that they share."""

    tiles: dict[str, Tile]
    scalars: dict[str, Expr]
    repeats: dict[str, int]

    def steps(self) -> list[dict[str, int]]:
        """List the repetitions, row by row, `k` innermost."""
        names = list(self.repeats)
        ranges = [range(self.repeats[name]) for name in names]
        return [dict(zip(names, at, strict=True)) for at in product(*ranges)]


def read_operands(apply: Apply, contract: TileContract, group: Group) -> Operands:
    """Match the operands of a tile operation with its contract.

    Raises `TileContractError`: tile-operand for a wrong number, kind, space or element,
    tile-shape for a shape that is not (*group, *repeat, *atom).
    """
    if len(apply.operands) != len(contract.operands):
        raise refuse(
            apply,
            "tile-operand",
            f"{apply.form.text} takes other operands",
            ", ".join(each.operand for each in contract.operands),
            f"{len(apply.operands)} operands",
        )
    tiles: dict[str, Tile] = {}
    scalars: dict[str, Expr] = {}
    for operand, value in zip(contract.operands, apply.operands, strict=True):
        there = apply.at(operand.operand)
        if isinstance(value.type, TensorType):
            tiles[operand.operand] = _tile(there, operand, value, group)
        elif operand.scalar:
            scalars[operand.operand] = value
        else:
            message = f"operand {operand.operand} must be a tile"
            expected = f"a tensor view in {_spell_spaces(operand.spaces)}"
            raise refuse(there, "tile-operand", message, expected, str(value.type))
    return Operands(tiles, scalars, _shared_repeats(apply, list(tiles.values())))


def _tile(apply: Apply, operand: TileOperand, view: Expr, group: Group) -> Tile:
    kind = tensor_type(view)
    name = f"operand {operand.operand} ({root_of(view).name})"
    if kind.space not in operand.spaces:
        message, expected = f"{name} is in the wrong space", _spell_spaces(operand.spaces)
        raise refuse(apply, "tile-operand", message, expected, f"{kind.space.value} memory")
    if kind.dtype.bits * kind.dtype.lanes != operand.bits:
        raise refuse(
            apply,
            "tile-operand",
            f"{name} has elements of the wrong width",
            f"elements of {operand.bits} bits",
            f"{kind.dtype}, {kind.dtype.bits * kind.dtype.lanes} bits",
            hint=f'view it as such elements first, as in .view("uint{operand.bits}")',
        )
    layout = laid_out_by(view)
    if layout.layout is None and layout.space is not Space.GLOBAL:
        message = f"{name} has no layout"
        hint = 'allocate it with layout="default", or take a view with a layout'
        raise refuse(apply, "tile-operand", message, "a buffer with a layout", "none", hint)
    return Tile(operand, view, *_parsed_shape(apply, operand, view, name, group))


def _parsed_shape(
    apply: Apply, operand: TileOperand, view: Expr, name: str, group: Group
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    kind = tensor_type(view)
    shape = static_shape(kind.shape)
    named = [axis for axis in operand.repeats if axis != SHARED_AXES]
    expected = _spell_shape(group.extents, operand)
    found = f"({', '.join(map(str, kind.shape))})"
    if shape is None:
        raise refuse(apply, "tile-shape", f"{name} has no constant shape", expected, found)
    head, tail = len(group.extents), len(operand.atom)
    shared = len(shape) - head - len(named) - tail
    if (
        shared < 0
        or (shared and SHARED_AXES not in operand.repeats)
        or shape[:head] != group.extents
        or shape[len(shape) - tail :] != operand.atom
    ):
        raise refuse(apply, "tile-shape", f"{name} has the wrong shape", expected, found)
    return shape, (*(f"{SHARED_AXES}{axis}" for axis in range(shared)), *named)


def _shared_repeats(apply: Apply, tiles: Sequence[Tile]) -> dict[str, int]:
    """Join the repeat axes of all operands; those of one name must agree."""
    extents: dict[str, int] = {}
    first: dict[str, Tile] = {}
    for tile in tiles:
        _require_same_rank(apply, tiles[0], tile)
        for name, extent in zip(tile.repeats, tile.repeat_shape(), strict=True):
            if extents.setdefault(name, extent) != extent:
                raise refuse(
                    apply.at(tile.operand.operand),
                    "tile-shape",
                    f"{tile.name} does not repeat as {first[name].name} does",
                    f"extent {extents[name]} along the repeat axis {name}",
                    f"extent {extent} in {tile.shape}",
                )
            first.setdefault(name, tile)
    outer = [name for name in extents if name != "k"]
    order = [*sorted(each for each in outer if each[0] == SHARED_AXES), *outer]
    return {name: extents[name] for name in (*dict.fromkeys(order), "k") if name in extents}


def _require_same_rank(apply: Apply, one: Tile, other: Tile) -> None:
    count, found = (sum(axis[0] == SHARED_AXES for axis in tile.repeats) for tile in (one, other))
    if count != found:
        raise refuse(
            apply.at(other.operand.operand),
            "tile-shape",
            f"{other.name} does not repeat as {one.name} does",
            f"{count} leading repeat axes, as in {one.shape}",
            f"{found} in {other.shape}",
        )


def _spell_shape(group: tuple[int, ...], operand: TileOperand) -> str:
    axes = ["*repeat" if axis == SHARED_AXES else axis for axis in operand.repeats]
    parts = [*map(str, group), *axes, *map(str, operand.atom)]
    return f"({', '.join(parts)})" if len(parts) != 1 else f"({parts[0]},)"


def _spell_spaces(spaces: Sequence[Space]) -> str:
    return " or ".join(space.value for space in spaces) + " memory"


def refuse(
    apply: Apply,
    code: str,
    message: str,
    expected: str,
    found: str,
    hint: str | None = None,
    notes: tuple[str, ...] = (),
) -> TileContractError:
    """Build the refusal of a tile operation, at its place; the caller raises it."""
    return TileContractError(
        message,
        code=code,
        location=apply.location,
        expected=expected,
        found=found,
        hint=hint,
        notes=notes,
    )


def region_elements(tile: Tile) -> int:
    """Count the elements of a tile."""
    return prod(tile.shape)
