"""Tensor Memory and products of tiles in NumPy: the readable reference.

May import `base`, `isa.machine` and `sim.eager_arithmetic`. The layouts are stated as the PTX ISA
does, element by element: `element_addresses` gives the address of every element of a matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.dtypes import BOOL, FLOAT16, FLOAT32, DType
from tilewright.base.spaces import Space
from tilewright.isa.machine import Lanes, SharedTile, Update
from tilewright.sim import eager_arithmetic as arithmetic
from tilewright.sim.eager_arithmetic import Array

if TYPE_CHECKING:
    from tilewright.sim.eager import EagerMachine

LANES, COLUMNS = 128, 512
_CODE = "tensor-memory"
_OUTSIDE = "an access to Tensor Memory outside its lanes, or in columns that are not allocated"
_PAIRED = 6  # the swizzle that moves chunks in pairs
_TF32 = 0xFFFFE000  # the bits of a float32 that count


def _cells_at(m: EagerMachine, cells: Array, mask: Array | None = None) -> tuple[Array, Array]:
    """Index cells by their addresses, and those outside the mask by any.

    Faults (`tensor-memory`) if one is not allocated.
    """
    lane, column = cells >> 16, cells & 0xFFFF
    inside = (lane < LANES) & (column < COLUMNS)
    lane, column = np.where(inside, lane, 0), np.where(inside, column, 0)
    held = (m.state["tmem_columns"] >> (column >> 5).astype(np.int64)) & 1
    bad = ~inside | (held == 0)
    m.require(m.constant(not np.any(bad if mask is None else bad & mask), BOOL), _CODE, _OUTSIDE)
    return lane, column


def load_cells(m: EagerMachine, cells: Lanes) -> Array:
    """Load a cell per active lane."""
    where = _cells_at(m, m.spread(cells), m.mask)
    return np.where(m.mask, m.cells[where], np.uint32(0))


def store_cells(m: EagerMachine, cells: Lanes, value: Lanes) -> None:
    """Store a cell per active lane."""
    lane, column = _cells_at(m, m.spread(cells), m.mask)
    m.cells[lane[m.mask], column[m.mask]] = m.spread(value)[m.mask]


# ---------------------------------------------------------------------------- products


def product_tiles(
    m: EagerMachine,
    d: Lanes,
    a: SharedTile | Lanes,
    b: SharedTile,
    shape: tuple[Lanes, Lanes, int],
    types: tuple[DType, DType],
    update: Update,
) -> None:
    """Multiply, from D · scale or from 0."""
    rows, columns, depth = int(shape[0].value), int(shape[1].value), shape[2]
    kind, result = types
    if isinstance(a, Lanes):
        left = _cell_matrix(m, int(a.value), rows, depth, kind)
    else:
        left = _shared_matrix(m, a, rows, depth, kind)
    left = -left if update.negated.value else left
    right = _shared_matrix(m, b, columns, depth, kind)
    where = _cells_at(m, matrix_cells(int(d.value), rows, columns))
    total = np.zeros((rows, columns), np.float32)
    if update.accumulate.value:
        held, scale = _numbers(m.cells[where], result), update.scale.value
        total = arithmetic.binary("mul", held, scale, FLOAT32)
    total = m.multiplied(left, right, total, types)
    stays = _stays(update)[where[0]]
    m.cells[where] = np.where(stays, m.cells[where], _as_cells(total, result))


def _stays(update: Update) -> Array:
    """Tell of each lane of Tensor Memory whether it is kept as it is."""
    words = [int(word.value) for word in update.kept]
    bits = [word >> lane & 1 for word in words for lane in range(32)]
    return np.array(bits or [0] * LANES, np.bool_)


def element_addresses(tile: SharedTile, rows: int, depth: int, bits: int) -> Array:
    """Give the addresses of the elements (row, k) of a matrix that a descriptor describes.

    PTX ISA, "Canonical layouts": of a K-major matrix a span holds neighbours in k, of an MN-major
    one neighbouring rows; a span is a 16-byte chunk if nothing is swizzled.
    """
    start, leading, stride, swizzle, base = (
        int(each.value)
        for each in (tile.start, tile.leading, tile.stride, tile.swizzle, tile.base_offset)
    )
    row, k = np.indices((rows, depth))
    width = 128 // bits  # elements of a chunk
    chunks = {0: 1, 1: 2, 3: 4, 7: 8, _PAIRED: 8}[swizzle]
    span = 16 * chunks
    if not tile.transposed.value:
        inner, element = divmod(k, width)
        where = (row // 8) * stride + (row % 8) * span
        where += inner * (16 if swizzle else leading)
    else:
        inner, element = divmod(row, width)
        deep = 4 if swizzle == _PAIRED else 8
        outer, chunk = divmod(inner, chunks)
        down, across = (stride, leading) if swizzle else (leading, stride)
        where = outer * across + chunk * 16 + (k // deep) * down + (k % deep) * span
    where = where + start + element * (bits // 8)
    line = (where >> 7) - base
    if swizzle == _PAIRED:
        return where ^ ((line & 3) << 5)
    return where ^ ((line & swizzle) << 4)


def _shared_matrix(m: EagerMachine, tile: SharedTile, rows: int, depth: int, kind: DType) -> Array:
    """Read a matrix out of shared memory as float32."""
    size = kind.bits // 8
    data = b"".join(
        m.bytes_at(Space.SHARED, int(where), size, align=1, write=False).tobytes()
        for where in element_addresses(tile, rows, depth, kind.bits).flat
    )
    return _single(np.frombuffer(data, kind.numpy).reshape(rows, depth))


def _cell_matrix(m: EagerMachine, start: int, rows: int, depth: int, kind: DType) -> Array:
    """Read a matrix out of Tensor Memory as float32, packed elements in a cell."""
    cells = m.cells[_cells_at(m, matrix_cells(start, rows, depth * kind.bits // 32))]
    return _single(np.ascontiguousarray(cells).view(kind.numpy).reshape(rows, depth))


def _single(values: Array) -> Array:
    """Widen elements to float32; of a float32 (tf32) the low 13 bits do not count."""
    if values.dtype != np.float32:
        return values.astype(np.float32)
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(_TF32)).view(np.float32)


def matrix_cells(start: int, rows: int, columns: int) -> Array:
    """Give the cells of a matrix: 128 rows in their lanes, 64 in one half of each 32."""
    row, column = np.indices((rows, columns))
    lane = row if rows == LANES else 32 * (row // 16) + row % 16
    return start + (lane << 16) + column


def _numbers(cells: Array, kind: DType) -> Array:
    """Take the numbers out of the cells of D, as float32."""
    if kind == FLOAT16:
        return cells.astype(np.uint16).view(np.float16).astype(np.float32)
    return cells.view(np.float32)


def _as_cells(values: Array, kind: DType) -> Array:
    """Put numbers into cells of D; a narrow one leaves the upper half zero."""
    if kind == FLOAT16:
        rounded = arithmetic.convert(values, FLOAT32, FLOAT16)
        return rounded.view(np.uint16).astype(np.uint32)
    return np.ascontiguousarray(values).view(np.uint32)
