"""The proof that a tile in Tensor Memory lies where an instruction finds it.

May import `base`, `isa`, `ir`, `layout`, NumPy and the modules of this folder above. Lanes and
columns are counted from the address that the tensor was declared at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, as_constant
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply
from tilewright.isa.tensor_memory import CELL, COLUMNS, LANES
from tilewright.layout import TCol, TileLayout, TLane, image
from tilewright.passes.analysis.evaluation import Values
from tilewright.passes.analysis.threads import WARP, WARPS_PER_WARPGROUP
from tilewright.passes.places import laid_out_by
from tilewright.passes.tiles.groups import Group
from tilewright.passes.tiles.images import image_of
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import Tile, refuse

# The parameter that states how many columns the second of two blocks is after the first.
HALVES_APART = "imm_half_splitoff"


@dataclass(frozen=True)
class Cells:
    """The lane of every element of a tile, and the byte in it, for all starts.

    Arrays have one axis for the values of the starts, then those of the tile; bytes are counted
    from an unknown start that is at a whole cell.
    """

    lanes: Values
    bytes: Values


def cells_of(apply: Apply, tile: Tile, scene: Scene) -> Cells:
    """Map the elements of a tile in Tensor Memory, and prove that they are there.

    Raises `TileContractError` (tile-layout) for lanes that cannot be told, or that there are
    not; for columns that there are not; for a tile that begins inside a cell.
    """
    found = image_of(tile, scene)
    if found is None or TLane.name in found.unknown:
        raise refuse(
            apply,
            "tile-layout",
            f"the lanes of {tile.name} cannot be told",
            "starts along the lanes that are constant, or counters with a constant range",
            "a start that is not known",
        )
    if len(laid_out_by(tile.view).layout.displacements()) > 1:
        expected = "a layout without replicas"
        raise _refuse_layout(apply, tile, expected, repr(laid_out_by(tile.view).layout))
    lanes = np.broadcast_to(found.axes.get(TLane.name, np.zeros((), np.int64)), found.bytes.shape)
    _require_range(apply, tile, int(lanes.min()), int(lanes.max()), LANES, "lanes")
    low, high = (0, 0) if found.start is None else scene.ranges.bounds(found.start)
    if low is None or high is None:
        expected = f"a start within the {COLUMNS} columns"
        raise _refuse_layout(apply, tile, expected, f"the start {found.start}, of which no bound")
    first, last = int(found.bytes.min()) + low, int(found.bytes.max()) + high
    _require_range(apply, tile, first // CELL, last // CELL, COLUMNS, "columns")
    origins = found.bytes.reshape(-1, int(np.prod(tile.operand.atom)))[:, 0]
    if found.divisor % CELL or (origins % CELL).any():
        expected = "a start at a whole column of 32 bits"
        raise _refuse_layout(apply, tile, expected, "one that may lie between two columns")
    return Cells(lanes, found.bytes)


def check_block(apply: Apply, tile: Tile, group: Group, scene: Scene) -> None:
    """Prove that a tile is blocks of neighbouring lanes and columns, each in its warp's reach.

    A warp reaches the lanes from 32 · (warp % 4) on. Raises `TileContractError` (tile-layout,
    tile-scope).
    """
    cells = cells_of(apply, tile, scene)
    rows, *rest = tile.operand.atom
    lanes, bytes = (
        each.reshape(-1, rows, int(np.prod(rest))) for each in (cells.lanes, cells.bytes)
    )
    expected_lanes = lanes[:, :1, :1] + np.arange(rows)[:, None]
    expected_bytes = bytes[:, :1, :1] + CELL * np.arange(lanes.shape[2])
    wrong = (lanes != expected_lanes) | (bytes != expected_bytes)
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        expected = f"element {list(at[1:])} of its block in " + _spell(
            int(expected_lanes[at[0], at[1], 0]), int(expected_bytes[at[0], 0, at[2]])
        )
        raise _refuse_layout(apply, tile, expected, _spell(int(lanes[at]), int(bytes[at])))
    warps = _quarters(apply, group, scene)
    repeats = (1,) * len(tile.repeats)
    firsts = lanes[:, 0, 0].reshape(-1, *tile.shape[: len(tile.shape) - len(tile.operand.atom)])
    quarters = np.broadcast_to(warps.reshape((*group.extents, *repeats)), firsts.shape)
    wrong = (firsts // WARP != quarters) | (firsts % rows != 0)
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        own = WARP * int(quarters[at])
        raise _refuse_layout(
            apply,
            tile,
            f"blocks that begin at a multiple of {rows} lanes, for warp {quarters[at]} of a "
            f"warpgroup in lanes {own} to {own + WARP - 1}",
            f"the block {list(at[1:])} from lane {firsts[at]} on",
        )


def _quarters(apply: Apply, group: Group, scene: Scene) -> Values:
    """Give the number of each issuing warp within its warpgroup."""
    if apply.scope != "warp":
        return np.asarray(group.numbers // WARP % WARPS_PER_WARPGROUP)
    active = None if scene.threads is None else scene.threads.lanes_by_warp().any(axis=1)
    found = np.arange(WARPS_PER_WARPGROUP) if active is None else np.flatnonzero(active)
    quarters = np.unique(found % WARPS_PER_WARPGROUP)
    if quarters.size != 1:
        raise refuse(
            apply,
            "tile-scope",
            "each warp reaches lanes of its own, and it is not known which warp comes here",
            "one warp, or warps with the same number in their warpgroups",
            f"warps {', '.join(map(str, found))}",
            hint='select a warp by an `if`, or use scope="warpgroup" with a group axis of 4',
        )
    return quarters.reshape(())


def halves_apart(apply: Apply, tiles: Sequence[Tile], scene: Scene) -> int:
    """Give the columns from the first block to the second where an instruction has two.

    The program may state the number, as the parameter `HALVES_APART`. Raises
    `TileContractError` (tile-layout) if they are not always as far apart, or not so far.
    """
    blocks = [each for each in tiles if Space.TMEM in each.operand.spaces]
    if len(blocks) < 2:
        return 0
    one, other = (cells_of(apply, each, scene) for each in blocks)
    apart = np.unique(other.bytes - one.bytes)
    starts = [image_of(each, scene) for each in blocks]
    same = len({None if each is None else each.start for each in starts}) == 1
    if not same or apart.size != 1 or apart[0] < 0 or (one.lanes != other.lanes).any():
        raise _refuse_layout(
            apply,
            blocks[1],
            "the lanes of the first block, a constant number of columns further on",
            "blocks whose distance is not constant, or in other lanes",
        )
    columns = int(apart[0]) // CELL
    stated = dict(apply.parameters).get(HALVES_APART, columns)
    stated = as_constant(stated) if isinstance(stated, Expr) else stated
    if stated != columns:
        expected = f"a block {stated} columns after the first, by {HALVES_APART}"
        raise _refuse_layout(apply, blocks[1], expected, f"one {columns} columns after it")
    return columns


def check_operand(
    apply: Apply, tile: Tile, scene: Scene, expected: TileLayout, starts: Sequence[int], hint: str
) -> Values:
    """Prove that each matrix of a tile is laid out as a product finds it, from a column on.

    Gives the lane in which each begins, one of `starts`, with an axis for the values of the
    starts and then those of the tile before the atom. Raises `TileContractError` (tile-layout).
    """
    cells = cells_of(apply, tile, scene)
    atom = tile.operand.atom
    wanted = image(expected, atom)
    lanes, bytes = (each.reshape(-1, *atom) for each in (cells.lanes, cells.bytes))
    size = tensor_type(tile.view).dtype.bytes
    zeros = np.zeros(atom, np.int64)
    first = lanes[:, 0, 0]
    begins = np.where(np.isin(first, starts), first, starts[0])[:, None, None]
    right_lanes = begins + wanted.get(TLane.name, zeros)
    right_bytes = bytes[:, :1, :1] + size * wanted.get(TCol.name, zeros)
    wrong = (lanes != right_lanes) | (bytes != right_bytes)
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        place = _spell(int(right_lanes[at]), int(right_bytes[at]))
        raise _refuse_layout(
            apply,
            tile,
            f"element {list(at[1:])} in {place}, as in {expected!r}",
            _spell(int(lanes[at]), int(bytes[at])),
            hint,
        )
    return first.reshape(cells.lanes.shape[: -len(atom)])


def _require_range(apply: Apply, tile: Tile, first: int, last: int, count: int, unit: str) -> None:
    if first < 0 or last >= count:
        expected = f"{unit} 0 to {count - 1} of Tensor Memory"
        raise _refuse_layout(apply, tile, expected, f"{unit} {first} to {last}")


def _spell(lane: int, byte: int) -> str:
    """Name a place as the ISA does, by lane and column."""
    half = "" if byte % CELL == 0 else f" and {8 * (byte % CELL)} bits"
    return f"lane {lane}, column {byte // CELL}{half}"


def _refuse_layout(
    apply: Apply, tile: Tile, expected: str, found: str, hint: str | None = None
) -> Exception:
    message = f"{tile.name} does not lie in Tensor Memory as {apply.form.text} finds it"
    at = apply.at(tile.operand.operand)
    return refuse(at, "tile-layout", message, expected, found, hint)
