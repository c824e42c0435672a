"""The layouts of matrices in shared memory that tensor-core instructions read.

Imports `base.dtypes` and `layout.swizzle` and below. The swizzles are those of the PTX ISA,
"Shared memory matrix layout" and "Swizzling modes".

    >>> mma_shared_layout("float16", 3, (128, 64))
    ComposeLayout(3, 3, 3, TileLayout(S[8192 : 1]))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tilewright.base.dtypes import DType, dtype
from tilewright.layout.refusal import bad_layout
from tilewright.layout.shapes import extents_of
from tilewright.layout.spec import Iter, compact_strides
from tilewright.layout.swizzle import ComposeLayout, Layout
from tilewright.layout.tile import TileLayout, compact


class SwizzleMode(IntEnum):
    """A swizzle of shared memory, by the width of its rows and the size of what it moves.

    Modes 0 to 3 are the numbers of tensor maps and move 16-byte units. Mode 4 moves 32-byte
    units; it is what MN-major operands of 32-bit elements need (tcgen05, `tf32`).
    """

    SWIZZLE_NONE = 0
    SWIZZLE_32B_ATOM = 1
    SWIZZLE_64B_ATOM = 2
    SWIZZLE_128B_ATOM = 3
    SWIZZLE_128B_ATOM_32B = 4


@dataclass(frozen=True, slots=True)
class _Swizzle:
    """A mode in bytes: the row, the unit that moves, and log2 of how many units are permuted.

    The units of a row are XORed with address bits `shift` higher than theirs.
    """

    row: int
    unit: int
    bits: int
    shift: int


# The 128-byte swizzle of 32-byte units takes its pattern from the row modulo 4, not 8, so it
# repeats after 512 bytes.
_SWIZZLES = {
    SwizzleMode.SWIZZLE_32B_ATOM: _Swizzle(row=32, unit=16, bits=1, shift=3),
    SwizzleMode.SWIZZLE_64B_ATOM: _Swizzle(row=64, unit=16, bits=2, shift=3),
    SwizzleMode.SWIZZLE_128B_ATOM: _Swizzle(row=128, unit=16, bits=3, shift=3),
    SwizzleMode.SWIZZLE_128B_ATOM_32B: _Swizzle(row=128, unit=32, bits=2, shift=2),
}


def _mode(mode: int | SwizzleMode) -> SwizzleMode:
    """Read a swizzle mode; raises `FrontendError` if there is none of that number."""
    if mode not in tuple(SwizzleMode):
        known = ", ".join(f"{each.value} ({each.name})" for each in SwizzleMode)
        raise bad_layout(f"there is no swizzle mode {mode!r}", expected=f"one of {known}")
    return SwizzleMode(mode)


def mma_atom_shape(dtype: str | DType, swizzle_mode: int | SwizzleMode) -> list[int]:
    """Give the rows and columns, in elements, of the smallest matrix that a swizzle permutes.

    In modes 1 to 3 these are 8 rows of 32, 64 or 128 bytes, in mode 4 four of 128 bytes;
    without a swizzle, the core matrix of 8 rows of 16 bytes.
    """
    bits, mode = _bits(dtype), _mode(swizzle_mode)
    if mode == SwizzleMode.SWIZZLE_NONE:
        return [8, 128 // bits]
    swizzle = _SWIZZLES[mode]
    return [4 if swizzle.unit == 32 else 8, swizzle.row * 8 // bits]


def mma_atom_layout(dtype: str | DType, swizzle_mode: int | SwizzleMode) -> Layout:
    """Lay one atom out, row by row, and swizzle it; its shape is `mma_atom_shape`."""
    shape = mma_atom_shape(dtype, swizzle_mode)
    return _swizzled(_bits(dtype), _mode(swizzle_mode), compact(shape))


def mma_shared_layout(
    dtype: str | DType, swizzle_mode: int | SwizzleMode, shape: Sequence[int]
) -> Layout:
    """Lay a matrix out in shared memory as a tensor-core instruction reads it.

    `shape` is (…, M, K) in elements, K the axis that is contiguous in an atom; leading axes are
    outermost and compact. The matrix is a row of columns as wide as the swizzle (in mode 0: 16
    bytes), each with all its M rows one after another. In mode 0 a K that is no multiple of 16
    bytes gives the plain row-major layout.

    Mode 4 is that of 128 bytes in which runs of 32 stay together, with 4 rows to an atom. It lays
    any elements out; instructions read it only where elements have 32 bits and the contiguous
    axis is M or N (PTX ISA, "Valid combinations of type-size, major-ness and swizzling").
    Raises `FrontendError` (bad-layout) for a shape that does not fit the swizzle.
    """
    bits, mode = _bits(dtype), _mode(swizzle_mode)
    shape = extents_of(shape, "a matrix in shared memory")
    rows, columns = _matrix(shape)
    atom_rows, width = mma_atom_shape(dtype, mode)
    if mode == SwizzleMode.SWIZZLE_NONE:
        fits = columns % width == 0
        return _columns(shape, width if fits else columns)
    if columns % width:
        hint = "pad the matrix, or take a narrower swizzle"
        raise _unfit(shape, dtype, mode, f"K, the last axis, a multiple of {width}", columns, hint)
    if rows < atom_rows:
        least = f"M, the axis before the last, {atom_rows} or more"
        raise _unfit(shape, dtype, mode, least, rows, "pad the matrix, or leave it unswizzled")
    return _swizzled(bits, mode, _columns(shape, width))


def _columns(shape: Sequence[int], width: int) -> TileLayout:
    """Place columns of that width one after another, each row by row."""
    *outer, rows, columns = shape
    leading = map(Iter, shape, (*compact_strides(shape)[: len(outer)],))
    matrix = (Iter(rows, width), Iter(columns // width, rows * width), Iter(width, 1))
    return TileLayout.from_iters((*leading, *matrix)).canonicalize()


def _swizzled(bits: int, mode: SwizzleMode, tile: TileLayout) -> Layout:
    if mode == SwizzleMode.SWIZZLE_NONE:
        return tile.canonicalize()
    swizzle = _SWIZZLES[mode]
    per_element = (swizzle.unit * 8 // bits).bit_length() - 1
    return ComposeLayout(per_element, swizzle.bits, swizzle.shift, tile.canonicalize())


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) < 2:
        raise bad_layout(
            "a matrix in shared memory has two axes or more",
            expected="a shape (…, M, K)",
            found=str(tuple(shape)),
        )
    return shape[-2], shape[-1]


def _bits(element: str | DType) -> int:
    bits = dtype(element).bits
    if 128 % bits or dtype(element).lanes != 1:
        raise bad_layout(
            f"elements of type {dtype(element)} do not fill 16 bytes",
            expected="an element of 4, 8, 16, 32 or 64 bits",
            hint="lay out the bytes that hold them, as uint8",
        )
    return bits


def _unfit(
    shape: Sequence[int],
    element: str | DType,
    mode: SwizzleMode,
    expected: str,
    found: int,
    hint: str,
) -> Exception:
    row = _SWIZZLES[mode].row
    return bad_layout(
        f"the shape {tuple(shape)} of {dtype(element)} does not fit the swizzle {mode.name}",
        expected=expected + f" (rows of the swizzle are {row} bytes)",
        found=str(found),
        hint=hint,
    )
