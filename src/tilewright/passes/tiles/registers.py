"""The proof that a register tile is laid out as an instruction holds it.

May import `base`, `isa`, `ir`, NumPy, `passes.analysis` and the modules of this folder above.
Every element of the tile is looked at: its thread must be the owner that the declaration
gives, and all threads must keep it in the same register.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.errors import TileContractError
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply
from tilewright.passes.analysis.evaluation import Values
from tilewright.passes.analysis.threads import WARP, WARPS_PER_WARPGROUP
from tilewright.passes.places import laid_out_by
from tilewright.passes.tiles.groups import Group
from tilewright.passes.tiles.images import Image, image_of
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import Tile, refuse

# How many threads one step along each thread axis is: the equivalent spellings of an owner.
_THREADS = {
    "laneid": 1,
    "tid_in_wg": 1,
    "tx": 1,
    "warpid": WARP,
    "wid_in_wg": WARP,
    "wgid": WARP * WARPS_PER_WARPGROUP,
}

# For each repetition and each register of the operand, a coordinate of an element held there.
Coordinates = dict[tuple[int, ...], tuple[tuple[int, ...], ...]]


def register_coordinates(
    apply: Apply, tile: Tile, group: Group, scene: Scene, written: bool
) -> Coordinates:
    """Prove a register tile's ownership, and say where each register of each step is.

    The coordinates are of the tile's view, those of its first thread; the repetitions are of
    the tile's own repeat axes. Raises `TileContractError` (tile-ownership).
    """
    _require_no_replica(apply, tile, written)
    image = image_of(tile, scene)
    if image is None or image.unknown:
        axis = image.unknown[0] if image is not None else "m"
        raise refuse(
            apply,
            "tile-ownership",
            f"{tile.name} begins where its registers cannot be told",
            "starts that are constant, or loop counters with a constant range",
            f"a start that is not known along {axis}",
            hint="unroll the loop, or take the view at a constant start",
        )
    lanes, registers = _owners(tile)
    _require_owner(apply, tile, group, image, lanes)
    first = _first_elements(registers)
    _require_same_register(apply, tile, group, image, registers, first)
    if written:
        _require_disjoint(apply, tile, group, image, first)
    zeros = (0,) * len(group.extents)
    shape = tile.repeat_shape()
    return {
        step: tuple((*zeros, *step, *map(int, atom)) for atom in first)
        for step in np.ndindex(*shape)
    }


def _owners(tile: Tile) -> tuple[Values, Values]:
    """Give the lane and the register of each element of the atom."""
    atom = tile.operand.atom
    if tile.operand.owner is None:
        size = int(np.prod(atom, dtype=np.int64))
        return np.zeros(atom, dtype=np.int64), np.arange(size).reshape(atom)
    owned = tile.operand.owner(*np.indices(atom, dtype=np.int64))
    lanes, registers = (np.broadcast_to(np.asarray(each), atom) for each in owned)
    return lanes, registers


def _first_elements(registers: Values) -> list[tuple[int, ...]]:
    """Find an element in each register, in the order of the registers."""
    first = np.unique(registers.ravel(), return_index=True)[1]
    return list(zip(*np.unravel_index(first, registers.shape), strict=True))


def _require_no_replica(apply: Apply, tile: Tile, written: bool) -> None:
    layout = laid_out_by(tile.view).layout
    if written and layout is not None and len(layout.displacements()) > 1:
        raise refuse(
            apply,
            "tile-ownership",
            f"{tile.name} is written, but its elements are held in several places",
            "a layout without replicas",
            repr(layout),
        )


def _require_owner(apply: Apply, tile: Tile, group: Group, image: Image, lanes: Values) -> None:
    repeats = len(tile.repeats)
    numbers = group.numbers.reshape(*group.extents, *(1,) * (repeats + len(tile.operand.atom)))
    expected = np.broadcast_to(numbers + lanes, tile.shape)
    for axis in image.axes:
        if axis not in _THREADS and image.axes[axis].any():
            at = _first(image.axes[axis] != 0)
            found = f"{axis} {image.axes[axis][at]} at element {_spell(at[1:])}"
            raise _refuse_owner(apply, tile, f"0 along {axis}", found)
    found = np.zeros(image.bytes.shape, dtype=np.int64)
    for axis in image.axes.keys() & _THREADS.keys():
        found = found + _THREADS[axis] * image.axes[axis]
    wrong = found != expected
    if wrong.any():
        at = _first(wrong)
        raise _refuse_owner(
            apply,
            tile,
            f"element {_spell(at[1:])} on {_spell_thread(group, int(expected[at[1:]]))}",
            f"it on {_spell_thread(group, int(found[at]))}",
        )


def _require_same_register(
    apply: Apply,
    tile: Tile,
    group: Group,
    image: Image,
    registers: Values,
    first: list[tuple[int, ...]],
) -> None:
    size = tensor_type(tile.view).dtype.bytes
    # Move the atom's axes away: (…, element), and compare with the register's first element.
    flat = image.bytes.reshape(*image.bytes.shape[: -registers.ndim], -1)
    columns = [np.ravel_multi_index(each, registers.shape) for each in first]
    expected = flat[(slice(None), *(slice(0, 1),) * len(group.extents))][..., columns]
    order = np.searchsorted(np.unique(registers), registers.ravel())
    wrong = (flat != expected[..., order]).reshape(image.bytes.shape)
    if wrong.any():
        at = _first(wrong)
        expected_bytes = np.broadcast_to(expected[..., order], flat.shape).reshape(wrong.shape)
        raise _refuse_owner(
            apply,
            tile,
            f"element {_spell(at[1:])} in register {expected_bytes[at] // size}, as in other lanes",
            f"it in register {image.bytes[at] // size}",
        )
    odd = image.bytes % size != 0
    if image.divisor % size or odd.any():
        at = _first(odd) if odd.any() else (0,) * odd.ndim
        expected_text = f"elements that begin at a register of {size} bytes"
        raise _refuse_owner(apply, tile, expected_text, f"element {_spell(at[1:])} between two")


def _require_disjoint(
    apply: Apply, tile: Tile, group: Group, image: Image, first: list[tuple[int, ...]]
) -> None:
    """Require that no register is written twice."""
    zeros = (0,) * len(group.extents)
    places = image.bytes[(0, *zeros)]
    atoms = tuple(np.array(first, np.int64).reshape(len(first), -1).T)
    written = places[(..., *atoms)]
    if np.unique(written).size == written.size:
        return
    held: dict[int, tuple[int, ...]] = {}
    for step in np.ndindex(*tile.repeat_shape()):
        for atom in first:
            where = int(places[(*step, *atom)])
            if where in held:
                raise _refuse_owner(
                    apply,
                    tile,
                    "a register of its own for every element that is written",
                    f"elements {_spell(held[where])} and {_spell((*zeros, *step, *atom))} in one",
                )
            held[where] = (*zeros, *step, *atom)


def _first(wrong: Any) -> tuple[int, ...]:
    return tuple(map(int, np.argwhere(wrong)[0]))


def _spell(coordinate: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, coordinate))}]"


def _spell_thread(group: Group, number: int) -> str:
    match group.scope:
        case "thread":
            return "the executing thread" if number == 0 else f"thread {number} of others"
        case "warp" if 0 <= number < WARP:
            return f"lane {number}"
        case _:
            return f"warp {number // WARP} lane {number % WARP}"


def _refuse_owner(apply: Apply, tile: Tile, expected: str, found: str) -> TileContractError:
    message = f"{tile.name} is not held as {apply.form.text} holds it"
    return refuse(apply, "tile-ownership", message, expected, found)
