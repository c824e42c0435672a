"""Where the buffers of Tensor Memory, and fragments that are copied from and to it, lie.

May import `base`, `layout`, `isa` and `ir`. A buffer's last two axes are a matrix: blocks of 128
rows, one for each lane, or of 64, which lie as a product leaves them (PTX ISA, "Data path layout
organization", D and F). Further blocks and leading axes follow in further columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from tilewright.base.dtypes import DType
from tilewright.base.errors import TileContractError
from tilewright.base.locations import Location
from tilewright.isa.tensor_memory import CELL, LANES
from tilewright.layout import TCol, TileLayout, TLane, m
from tilewright.layout.axes import tx
from tilewright.layout.fragment import Fragment
from tilewright.layout.spec import Iter

WARPGROUP = 128
_WORD = 8 * CELL
# The rows of a product whose D leaves out every second half of the warps' lanes.
SPREAD = 64


def block_rows(rows: int) -> int | None:
    """Give the rows of a block of a matrix: 128, or 64; `None` where there are no such blocks."""
    return next((each for each in (LANES, SPREAD) if rows % each == 0), None)


def buffer_layout(
    shape: Sequence[int], dtype: DType, accumulates: bool, where: Location | None
) -> TileLayout:
    """Lay a buffer out: an accumulator has a column for each value, else words are filled.

    Raises `TileContractError` (tile-shape) for rows that are no blocks.
    """
    *outer, rows, columns = shape if len(shape) > 1 else (0, 0)
    block = block_rows(rows) if rows else None
    if block is None:
        raise TileContractError(
            "a buffer in Tensor Memory has other rows than products have",
            code="tile-shape",
            location=where,
            expected="a shape (…, M, N) whose M is a multiple of 64",
            found=str(tuple(shape)),
            hint="take tiles of 64 or 128 rows, or an accumulator of T.alloc_fragment",
        )
    spacing = _WORD // dtype.bits if accumulates else 1
    step = columns * spacing
    step = -(-step * dtype.bits // _WORD) * _WORD // dtype.bits
    blocks = rows // block
    lead = [
        Iter(extent, prod(outer[at + 1 :]) * blocks * step, TCol) for at, extent in enumerate(outer)
    ]
    lanes = [Iter(LANES, 1, TLane)] if block == LANES else [Iter(4, 32, TLane), Iter(16, 1, TLane)]
    digits = [*lead, Iter(blocks, step, TCol), *lanes, Iter(columns, spacing, TCol)]
    return TileLayout.from_iters(each for each in digits if each.extent > 1)


def columns_of(layout: TileLayout, dtype: DType) -> int:
    """Count the columns that a buffer takes."""
    return -(-layout.span(TCol) * dtype.bits // _WORD)


@dataclass(frozen=True)
class Share:
    """How warpgroups divide a matrix in Tensor Memory: parts of its blocks, and of its columns.

    `copies` warpgroups hold the same. Each has `blocks` blocks of `rows` rows and `columns`
    columns of elements.
    """

    rows: int
    blocks: int
    columns: int
    down: int
    across: int
    copies: int


def share(shape: Sequence[int], dtype: DType, threads: int) -> Share | None:
    """Divide a matrix among all warpgroups of so many threads, as far as it can be divided."""
    rows, columns = shape
    groups = threads // WARPGROUP
    block = block_rows(rows)
    # What a register, or a block of spread rows, holds stays together.
    unit = _WORD // dtype.bits if block == LANES else 8
    if block is None or not groups or columns % unit:
        return None
    down = gcd(groups, rows // block)
    across = gcd(groups // down, columns // unit)
    copies = groups // (down * across)
    return Share(block, rows // block // down, columns // across, down, across, copies)


def tmem_fragment(shape: Sequence[int], dtype: DType, threads: int) -> Fragment | None:
    """Give the fragment whose copies from and to Tensor Memory are loads and stores of it.

    Of 128 rows each thread of a warpgroup has one, or a part of its columns; 64 rows lie as
    products of warps leave them. `None` for a shape, or threads, of which there is none.
    """
    own = share(shape, dtype, threads)
    if own is None:
        return None
    columns = own.columns
    groups = [Iter(own.down, WARPGROUP * own.across, tx), Iter(own.blocks, columns, m)]
    if own.rows == LANES:
        row = [Iter(LANES, 1, tx)]
        column = [Iter(own.across, WARPGROUP, tx), Iter(columns, 1, m)]
    else:
        # As the accumulators of a warp's products: `.16x256b`, of 16-bit elements `.16x128b`.
        groups[1] = Iter(own.blocks, columns // 2, m)
        row = [Iter(4, 32, tx), Iter(2, 2, m), Iter(8, 4, tx)]
        column = [
            Iter(own.across, WARPGROUP, tx),
            Iter(columns // 8, 4, m),
            Iter(4, 1, tx),
            Iter(2, 1, m),
        ]
    digits = [each for each in (*groups, *row, *column) if each.extent > 1]
    stride = WARPGROUP * own.down * own.across
    replica = [Iter(own.copies, stride, tx)] if own.copies > 1 else []
    return Fragment(tuple(shape), TileLayout.from_iters(digits, replica))
