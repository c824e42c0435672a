"""Pictures of layouts of Tensor Memory: which lanes and columns the parts of a matrix lie in.

May import `base`, `layout` and the modules of this folder below it. Tensor Memory has 128
lanes and 512 columns of 32 bits; the warps of a warpgroup reach 32 lanes each (PTX ISA,
"Tensor Memory").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.view.matrix import MOST_CELLS, MOST_ROWS, Matrix, Values
from tilewright.view.page import PLACES, Cell, Page, Panel, span

_LANES = 128
_LANES_OF_WARP = 32
_COLUMN_BITS = 32
# Rows that a picture of blocks looks at: a matrix has at most as many as there are lanes.
_ROWS = 4096


@dataclass(frozen=True)
class _Block:
    """A part of the matrix that lies in one rectangle of Tensor Memory."""

    number: int
    row: int
    column: int
    rows: int
    columns: int
    lane: int
    cell: int
    step: int


def tensor_memory_page(title: str, matrix: Matrix, dtype: DType | None) -> Page:
    """Show the blocks of a matrix, and the same blocks in Tensor Memory."""
    matrix, blocks = _fewest_blocks(matrix)
    places = [
        (block, moved.get("TLane", 0), moved.get("TCol", 0))
        for moved in matrix.layout.displacements()
        for block in blocks.all
    ]
    bits = _COLUMN_BITS if dtype is None else dtype.bits * dtype.lanes
    counted = "columns" if dtype else "columns, counted in elements"
    shape = " × ".join(map(str, matrix.shape))
    return Page(
        title,
        f"{shape} {dtype or 'elements'} in Tensor Memory",
        (
            _matrix_panel(blocks, bits),
            _memory_panel(places, bits),
        ),
        of_drawing=("A block has the same colour in both panels.",),
        notes=(
            f"L: lanes. C: {counted}{' of 32 bits' if dtype else ''}.",
            *matrix.notes(blocks.down[-1], blocks.across[-1]),
        ),
    )


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a matrix, row by row, and where it is cut into them."""

    all: tuple[_Block, ...]
    down: tuple[int, ...]
    across: tuple[int, ...]


def _fewest_blocks(matrix: Matrix) -> tuple[Matrix, _Blocks]:
    """Take a tensor of several axes as the matrix that has the fewest blocks."""
    splits = (replace(matrix, down=down) for down in range(len(matrix.shape) - 1, 0, -1))
    cut = ((each, _blocks(each.values(_ROWS))) for each in splits)
    return min(cut, key=lambda each: len(each[1].all))


def _blocks(values: dict[str, Values]) -> _Blocks:
    """Cut the matrix where neighbours are no neighbours in memory."""
    shape = next(iter(values.values())).shape
    lane = values.get("TLane", np.zeros(shape, np.int64))
    cell = values.get("TCol", np.zeros(shape, np.int64))
    step = _step(cell)
    down = _cuts(lane, cell, 0, (1, 0))
    across = _cuts(lane, cell, 1, (0, step))
    found: list[_Block] = []
    for row, below in pairwise(down):
        for column, beyond in pairwise(across):
            first = int(lane[row, column]), int(cell[row, column])
            extents = below - row, beyond - column
            found.append(_Block(len(found), row, column, *extents, *first, step))
    return _Blocks(tuple(found), down, across)


def _step(cell: Values) -> int:
    """Find the distance of neighbours in a row: the smallest there is, but at least 1."""
    steps = np.diff(cell, axis=1)
    return int(steps[steps > 0].min(initial=1 << 20)) if (steps > 0).any() else 1


def _cuts(lane: Values, cell: Values, axis: int, step: tuple[int, int]) -> tuple[int, ...]:
    other = 1 - axis
    goes_on = (np.diff(lane, axis=axis) == step[0]) & (np.diff(cell, axis=axis) == step[1])
    inner = np.flatnonzero(~goes_on.all(axis=other)) + 1
    return (0, *inner.tolist(), lane.shape[axis])


def _matrix_panel(blocks: _Blocks, bits: int) -> Panel:
    cells = [Cell(_place(each, bits), _tint(each)) for each in blocks.all]
    rows = list(pairwise(blocks.down))[:MOST_ROWS]
    columns = list(pairwise(blocks.across))
    first = range(0, len(rows) * len(columns), len(columns))
    shown = columns[:MOST_CELLS]
    return Panel(
        "The matrix: where each of its blocks lies",
        tuple(span(a, b - 1) for a, b in rows),
        tuple(span(a, b - 1) for a, b in shown),
        tuple(tuple(cells[at : at + len(shown)]) for at in first),
    )


def _place(block: _Block, bits: int) -> tuple[str, str]:
    return (
        f"L {span(block.lane, block.lane + block.rows - 1)}",
        f"C {span(*_columns(block, block.cell, bits))}",
    )


def _columns(block: _Block, start: int, bits: int) -> tuple[int, int]:
    """Give the first and the last column that a block touches, from where it starts."""
    last = start + (block.columns - 1) * block.step
    return start * bits // _COLUMN_BITS, ((last + 1) * bits - 1) // _COLUMN_BITS


_Place = tuple[_Block, int, int]


def _memory_panel(places: Sequence[_Place], bits: int) -> Panel:
    """Lay the blocks out by lanes and columns, cut at all their edges."""
    lanes = {
        edge
        for block, moved, _ in places
        for edge in (block.lane + moved, block.lane + moved + block.rows)
    }
    columns: set[int] = set()
    for block, _, moved in places:
        first, last = _columns(block, block.cell + moved, bits)
        columns |= {first, last + 1}
    down = list(pairwise(sorted({0, _LANES, *lanes})))[:MOST_ROWS]
    across = list(pairwise(sorted(columns)))[:MOST_CELLS]
    return Panel(
        "Tensor Memory: lanes down, columns across; the rows of the matrix that lie there",
        tuple(f"L {span(a, b - 1)}" for a, b in down),
        tuple(f"C {span(a, b - 1)}" for a, b in across),
        tuple(tuple(_held(places, at, column, bits) for column in across) for at in down),
        tuple(_warps(a, b) for a, b in down),
    )


def _held(
    places: Iterable[_Place], lanes: tuple[int, int], columns: tuple[int, int], bits: int
) -> Cell | None:
    for block, moved, shifted in places:
        lane = block.lane + moved
        first, last = _columns(block, block.cell + shifted, bits)
        if lane <= lanes[0] < lane + block.rows and first <= columns[0] <= last:
            row = block.row + lanes[0] - lane
            rows = span(row, row + lanes[1] - lanes[0] - 1)
            part = span(block.column, block.column + block.columns - 1)
            return Cell((f"rows {rows}", f"of columns {part}"), _tint(block))
    return None


def _tint(block: _Block) -> int:
    """Give neighbouring blocks tints of different hues."""
    return (block.number * 4 + block.number // 8) % PLACES


def _warps(first: int, end: int) -> str:
    warps = span(first // _LANES_OF_WARP, (end - 1) // _LANES_OF_WARP)
    return f"reached by warp{'s' if '–' in warps else ''} {warps} of a warpgroup"
