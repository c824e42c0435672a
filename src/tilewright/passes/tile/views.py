"""Views of tiles that lowerings hand to instructions.

May import `base`, `ir` and `layout`. What is asked for fits: these are for the compiler, and check
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.dtypes import DType
from tilewright.ir.expressions import (
    Expr,
    Permute,
    Reinterpret,
    Relayout,
    Reshape,
    Subview,
    as_constant,
    int32,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.layout import Layout


def extents_of(tile: Expr) -> tuple[int, ...]:
    """Give the extents of a tile, which are constant."""
    found = static_shape(tensor_type(tile).shape)
    assert found is not None, tile
    return found


def matrix(tile: Expr) -> Expr:
    """Drop axes of extent 1 of a tile that has more axes than a matrix: leading ones first."""
    kind = tensor_type(tile)
    shape = [as_constant(each) for each in kind.shape]
    gone = [False] * len(shape)
    for axis in range(len(shape)):
        gone[axis] = shape[axis] == 1 and gone.count(False) > 2
    if not any(gone):
        return tile
    kept = tuple(each for each, drop in zip(kind.shape, gone, strict=True) if not drop)
    rank = len(shape)
    view = replace(kind, shape=kept, layout=None)
    starts = (int32(0),) * rank
    return Subview(tile, starts, (1,) * rank, tuple(gone), view, location=tile.location)


def box(tile: Expr, starts: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """Take a box of a tile."""
    rank = len(starts)
    kind = replace(tensor_type(tile), shape=tuple(map(int32, extents)), layout=None)
    kept = (False,) * rank
    return Subview(tile, tuple(starts), (1,) * rank, kept, kind, location=tile.location)


def split(tile: Expr, shape: Sequence[int], order: Sequence[int]) -> Expr:
    """Split the axes of a tile into digits, row by row, and put these in another order."""
    kind = replace(tensor_type(tile), shape=tuple(map(int32, shape)))
    view = Reshape(tile, kind, location=tile.location)
    moved = replace(kind, shape=tuple(kind.shape[axis] for axis in order), layout=None)
    return Permute(view, tuple(order), moved, location=tile.location)


def joined(tile: Expr, shape: Sequence[int]) -> Expr:
    """View a tile under another shape, row by row."""
    kind = replace(tensor_type(tile), shape=tuple(map(int32, shape)))
    return Reshape(tile, kind, location=tile.location)


def words(tile: Expr, dtype: DType) -> Expr:
    """View the bits of a tile as elements of another width: the last axis is rescaled.

    Parts are taken of what is viewed so, where that begins at whole elements: this can be proven.
    """
    kind = tensor_type(tile)
    if kind.dtype == dtype:
        return tile
    ratio = dtype.bits // kind.dtype.bits
    shape = (*kind.shape[:-1], int32(extents_of(tile)[-1] // ratio))
    result = replace(kind, shape=shape, dtype=dtype, layout=None)
    if isinstance(tile, Subview) and not tile.dropped[-1]:
        first = as_constant(tile.starts[-1])
        whole = as_constant(tensor_type(tile.source).shape[-1])
        if first is not None and whole is not None and first % ratio == whole % ratio == 0:
            starts = (*tile.starts[:-1], int32(int(first) // ratio))
            return replace(tile, source=words(tile.source, dtype), starts=starts, type=result)
    return Reinterpret(tile, result, location=tile.location)


def held(registers: Expr, shape: Sequence[int], layout: Layout, dtype: DType) -> Expr:
    """View a thread's registers as the part of a tile that it holds."""
    source = words(registers, dtype)
    kind = replace(tensor_type(source), shape=tuple(map(int32, shape)), layout=layout)
    return Relayout(source, kind, location=registers.location)
