"""The instructions of a tile operation, once its contract is proven.

May import `base`, `isa`, `ir`, NumPy and the modules of this folder above. Registers are named as
elements of the thread's own storage, under the layout "default"; addresses stay views, which
`lower_views` turns into numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Load, Relayout, as_expr, constant, int32
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply, Block, Instruct
from tilewright.ir.types import ScalarType, TensorType
from tilewright.isa.declaration import Operand, TileContract, accepted_types, accepts
from tilewright.isa.tensor_core import is_product
from tilewright.layout import default_layout
from tilewright.passes.places import Place, locate, locate_all, root_of, storage_bytes
from tilewright.passes.tiles.cells import HALVES_APART, check_block, halves_apart
from tilewright.passes.tiles.groups import Group, group_of
from tilewright.passes.tiles.memory import address_at, check_memory
from tilewright.passes.tiles.parameters import require_known
from tilewright.passes.tiles.products import emit_product
from tilewright.passes.tiles.registers import Coordinates, register_coordinates
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import Operands, Tile, read_operands, refuse
from tilewright.passes.wide_views import require_whole_elements

_MODIFIERS = ("pred", "preserve_dst")


class _Registers:
    """The registers of a tile, as elements of the thread's own storage."""

    def __init__(self, tile: Tile, coordinates: Coordinates) -> None:
        self.tile = tile
        self.coordinates = coordinates
        self.storage = _own_storage(tile)
        self.type = ScalarType(tensor_type(tile.view).dtype)
        place = locate_all(tile.view)
        self.all = None if place is None else np.broadcast_to(self._index(place), tile.shape)

    def at(self, step: dict[str, int]) -> list[Expr]:
        """Name the registers of the operand at a repetition."""
        own = tuple(step[axis] for axis in self.tile.repeats)
        return [self._element(each) for each in self.coordinates[own]]

    def _element(self, coordinate: tuple[int, ...]) -> Load:
        if self.all is None:
            index = as_expr(self._index(locate(self.tile.view, coordinate)))
        else:
            index = int32(self.all.item(*coordinate))
        return Load(self.storage, (index,), self.type)

    def _index(self, place: Place) -> Any:
        """Count the elements up to a place, or up to all of several."""
        size = self.type.dtype.bytes
        index: Any = 0
        for value, scale in place.terms:
            exact, rest = divmod(scale, size)
            index = (value * scale // size if rest else value * exact) + index
        return index


@dataclass(frozen=True)
class _Operation:
    """A tile operation whose contract is proven."""

    apply: Apply
    contract: TileContract
    group: Group
    operands: Operands
    registers: dict[str, _Registers]
    parameters: dict[str, Any]
    distance: int = 0

    def values(self, operand: Operand, step: dict[str, int]) -> list[Expr]:
        """Give the IR operands of one declared operand at a repetition; none if it is absent."""
        name = self._chained_from(operand.name, step)
        if name in self.operands.scalars:
            return [self.operands.scalars[name]] * operand.count
        if name in self.registers:
            return self.registers[name].at(step)
        if operand.kind == "immediate" and name in self.operands.tiles:
            return [constant(self.distance, operand.dtype)]
        if name in self.operands.tiles:
            return [address_at(self.contract, self.operands.tiles[name], self.group, step)]
        return self._parameter(operand)

    def _chained_from(self, name: str, step: dict[str, int]) -> str:
        chained = name == self.contract.chained and step.get("k", 0) > 0
        return self.contract.chain_to or name if chained else name

    def _parameter(self, operand: Operand) -> list[Expr]:
        if operand.name in self.parameters:
            value = self.parameters[operand.name]
            return [as_expr(value)]
        if operand.optional:
            return []
        raise refuse(
            self.apply,
            "tile-operand",
            f"{self.apply.form.text} needs the operand {operand.name}",
            f"{operand.name}= as a keyword of the call",
            "no such keyword",
        )


def emit(apply: Apply, scene: Scene) -> Block:
    """Prove the contract of a tile operation, and write it as instructions.

    Raises `TileContractError` with the code of the rule that is broken.
    """
    if is_product(apply.form):
        return emit_product(apply, scene)
    operation = _proven(apply, scene)
    predicate = operation.parameters.get("pred")
    preserve = bool(operation.parameters.get("preserve_dst", False))
    return tuple(
        Instruct(
            apply.form,
            tuple(
                value
                for operand in apply.form.operands
                for value in operation.values(operand, step)
            ),
            None if predicate is None else as_expr(predicate),
            preserve,
            location=apply.location,
        )
        for step in operation.operands.steps()
    )


def _own_storage(tile: Tile) -> Expr:
    root, dtype = root_of(tile.view), tensor_type(tile.view).dtype
    storage = tensor_type(root)
    count = storage_bytes(storage) // dtype.bytes
    flat = TensorType((int32(count),), dtype, Space.LOCAL, default_layout((count,)), storage.align)
    return root if flat == storage else Relayout(root, flat)


def _proven(apply: Apply, scene: Scene) -> _Operation:
    contract = apply.form.tile
    if contract is None:
        raise refuse(
            apply,
            "tile-unsupported",
            f"{apply.form.text} has no tile form",
            "an instruction with a tile contract",
            apply.form.text,
            hint="call the instruction on registers and addresses instead",
        )
    parameters = _parameters(apply, contract)
    group = group_of(apply, contract.issuer, scene)
    operands = read_operands(apply, contract, group)
    _check_scalars(apply, operands)
    roles = {operand.name: operand for operand in apply.form.operands}
    registers: dict[str, _Registers] = {}
    for name, tile in operands.tiles.items():
        there = apply.at(name)
        require_whole_elements(tile.view, scene.ranges, there.location)
        if Space.TMEM in tile.operand.spaces:
            check_block(there, tile, group, scene)
        elif roles[name].kind == "address":
            check_memory(there, tile, scene)
        else:
            _check_type(there, roles[name], tile.view, tile.name)
            written = roles[name].role != "in"
            found = register_coordinates(there, tile, group, scene, written)
            registers[name] = _Registers(tile, found)
    distance = halves_apart(apply, [*operands.tiles.values()], scene)
    return _Operation(apply, contract, group, operands, registers, parameters, distance)


def _parameters(apply: Apply, contract: TileContract) -> dict[str, Any]:
    tiles = {each.operand for each in contract.operands}
    known = {each.name for each in apply.form.operands} - tiles
    if sum(Space.TMEM in each.spaces for each in contract.operands) > 1:
        known.add(HALVES_APART)
    require_known(apply, sorted({*known, *_MODIFIERS}))
    return dict(apply.parameters)


def _check_scalars(apply: Apply, operands: Operands) -> None:
    declared = {operand.name: operand for operand in apply.form.operands}
    for name, value in operands.scalars.items():
        _check_type(apply.at(name), declared[name], value, f"operand {name}")


def _check_type(apply: Apply, declared: Operand, value: Expr, name: str) -> None:
    """Hold the elements of a register operand, or its one value, to the declared type."""
    typed = isinstance(value.type, ScalarType | TensorType)
    if not typed or not accepts(declared.type, value.type.dtype):
        types = " or ".join(accepted_types(declared.type))
        found = str(value.type.dtype if typed else value.type)
        message = f"{name} has the wrong type"
        raise refuse(apply, "tile-operand", message, f"{types}, because of .{declared.type}", found)
