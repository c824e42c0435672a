"""Copies and fills as parallel loops: what threads do where no instruction does it.

May import `base`, `ir` and the modules of this folder above.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.dtypes import INT32
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    Expr,
    Load,
    Select,
    Subview,
    Var,
    as_constant,
    binary,
    cast,
    constant,
    int32,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Block, If, Store
from tilewright.ir.tile import CopyTile, FillTile, ParallelTile
from tilewright.ir.types import ScalarType
from tilewright.passes.tile.scene import TileScene


def copy_as_parallel(stmt: CopyTile, scene: TileScene) -> ParallelTile:
    """Write a copy as a loop over the elements of its target.

    What lies beyond the end of a tensor in global memory is read as `outside`, and not written.
    """
    vars, extents = _counters(stmt.target, scene)
    own = tuple(each for each, extent in zip(vars, extents, strict=True) if extent != 1)
    target = _element(stmt.target, own)
    source = _element(stmt.source, own)
    kind = tensor_type(stmt.target).dtype
    value: Expr = Load(*source, ScalarType(tensor_type(stmt.source).dtype), location=stmt.location)
    if (inside := beyond(*source)) is not None:
        outside = constant(0, value.dtype) if stmt.outside is None else cast(stmt.outside, value.dtype)
        value = Select(inside, value, outside, value.type, location=stmt.location)
    body: Block = (Store(*target, cast(value, kind, stmt.location), location=stmt.location),)
    if (inside := beyond(*target)) is not None:
        body = (If(inside, body, location=stmt.location),)
    return ParallelTile(own, tuple(int32(e) for e in extents if e != 1), body, location=stmt.location)


def fill_as_parallel(stmt: FillTile, scene: TileScene) -> ParallelTile:
    """Write a fill as a loop over the elements of its target."""
    vars, extents = _counters(stmt.target, scene)
    own = tuple(each for each, extent in zip(vars, extents, strict=True) if extent != 1)
    tensor, indices = _element(stmt.target, own)
    body: Block = (Store(tensor, indices, stmt.value, location=stmt.location),)
    if (inside := beyond(tensor, indices)) is not None:
        body = (If(inside, body, location=stmt.location),)
    return ParallelTile(own, tuple(int32(e) for e in extents if e != 1), body, location=stmt.location)


def _counters(tile: Expr, scene: TileScene) -> tuple[tuple[Var, ...], tuple[int, ...]]:
    extents = static_shape(tensor_type(tile).shape)
    if extents is None:
        raise FrontendError(
            "the extents of a tile are not known", code="not-constant", location=tile.location
        )
    if all(each == 1 for each in extents):
        extents = (*extents[:-1], 1)
    vars = tuple(scene.names.variable(name, ScalarType(INT32)) for name in _names(len(extents)))
    return vars, extents


def _names(count: int) -> list[str]:
    return [chr(ord("i") + at) if count <= 6 else f"i{at}" for at in range(count)]


def _element(tile: Expr, counters: tuple[Var, ...]) -> tuple[Expr, tuple[Expr, ...]]:
    """Name the element of a tile that counters along its axes which are not 1 stand for."""
    rest = list(counters)
    indices: list[Expr] = [
        int32(0) if as_constant(extent) == 1 else rest.pop(0) for extent in tensor_type(tile).shape
    ]
    while isinstance(tile, Subview):
        inner = iter(indices)
        indices = [
            start if gone else binary("add", start, next(inner))
            for start, gone in zip(tile.starts, tile.dropped, strict=True)
        ]
        tile = tile.source
    return tile, tuple(indices)


def beyond(tensor: Expr, indices: tuple[Expr, ...]) -> Expr | None:
    """Say when an element is inside a tensor in global memory; `None` if it is in another."""
    if tensor_type(tensor).space is not Space.GLOBAL:
        return None
    found: Expr | None = None
    for index, extent in zip(indices, tensor_type(tensor).shape, strict=True):
        test = binary("lt", index, extent)
        found = test if found is None else binary("logical_and", found, test)
    return found


__all__ = ["beyond", "copy_as_parallel", "fill_as_parallel", "replace"]
