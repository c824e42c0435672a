"""Copies and fills as parallel loops: what threads do where no instruction does it.

May import `base`, `ir` and the modules of this folder above.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tilewright.base.dtypes import INT32
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    Expr,
    Load,
    Permute,
    Reshape,
    Select,
    Subview,
    Var,
    as_constant,
    as_expr,
    binary,
    cast,
    int32,
)
from tilewright.ir.rewrite import rewrite
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Block, For, If, Store
from tilewright.ir.tile import CopyTile, FillTile, ParallelTile
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import root
from tilewright.layout.split import flatten, split_digits
from tilewright.passes.tile.element_bits import load_element, store_element
from tilewright.passes.tile.scene import TileScene

_INDEX = ScalarType(INT32)
_NAMES = "ijklmn"


def copy_as_parallel(stmt: CopyTile, scene: TileScene) -> ParallelTile:
    """Write a copy as a loop over the elements of its target.

    What lies beyond the end of a tensor in global memory is read as `outside`, where that is given.
    """
    vars, extents = counters(stmt.target, scene)
    target, source = element(stmt.target, vars), element(stmt.source, vars)
    kind = tensor_type(stmt.target).dtype
    value: Expr = Load(*source, ScalarType(tensor_type(stmt.source).dtype), location=stmt.location)
    if stmt.outside is not None and (inside := within(*source)) is not None:
        outside = cast(stmt.outside, value.dtype)
        value = Select(inside, value, outside, value.type, location=stmt.location)
    body: Block = (Store(*target, cast(value, kind, stmt.location), location=stmt.location),)
    extents, guards = _within_source(extents, tensor_type(stmt.source).shape, vars)
    for each in guards:
        body = (If(each, body, location=stmt.location),)
    options = dict(stmt.options)
    relays = all(map(_is_fragment, (stmt.source, stmt.target)))
    return ParallelTile(
        vars,
        extents,
        body,
        options.get("loop_layout"),
        options.get("coalesced_width"),
        relays,
        location=stmt.location,
    )


def _within_source(
    extents: tuple[Expr, ...], shape: Sequence[Expr], vars: Sequence[Var]
) -> tuple[tuple[Expr, ...], list[Expr]]:
    """Count along axes of the target that are not known no further than the source goes.

    Also gives what says that a point is one of the target.
    """
    there = [each for each in shape if as_constant(each) != 1]
    if len(there) != len(extents):
        return extents, []
    found: list[Expr] = []
    guards: list[Expr] = []
    for own, other, var in zip(extents, there, vars, strict=True):
        shorter = as_constant(own) is None and as_constant(other) is not None
        found.append(other if shorter else own)
        guards += [binary("lt", var, own)] * shorter
    return tuple(found), guards


def fill_as_parallel(stmt: FillTile, scene: TileScene) -> ParallelTile:
    """Write a fill as a loop over the elements of its target."""
    vars, extents = counters(stmt.target, scene)
    tensor, indices = element(stmt.target, vars)
    body: Block = (Store(tensor, indices, stmt.value, location=stmt.location),)
    return ParallelTile(vars, extents, body, location=stmt.location)


def is_own(stmt: CopyTile | FillTile) -> bool:
    """Tell what each thread does for itself: with registers of its own, and with no fragment."""
    tiles = (stmt.source, stmt.target) if isinstance(stmt, CopyTile) else (stmt.target,)
    spaces = {tensor_type(root(each)).space for each in tiles}
    return Space.LOCAL in spaces and Space.FRAGMENT not in spaces


def by_each_thread(loop: ParallelTile) -> Block:
    """Write a parallel loop as one that every thread goes through whole."""
    body = loop.body
    for var, extent in reversed([*zip(loop.vars, loop.extents, strict=True)]):
        body = (For(var, int32(0), extent, int32(1), body, "unroll", location=loop.location),)
    return body


def counters(tile: Expr, scene: TileScene) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
    """Make counters along the axes of a tile that are not of extent 1, and give their extents."""
    extents = tuple(each for each in tensor_type(tile).shape if as_constant(each) != 1)
    wished = [_NAMES[at] if at < len(_NAMES) else f"i{at}" for at in range(len(extents))]
    return tuple(scene.names.variable(name, _INDEX) for name in wished), extents


def element(tile: Expr, counters: Sequence[Expr]) -> tuple[Expr, tuple[Expr, ...]]:
    """Name the element of a tile that counters along its axes which are not 1 stand for."""
    rest = list(counters)
    shape = tensor_type(tile).shape
    return through(tile, [int32(0) if as_constant(each) == 1 else rest.pop(0) for each in shape])


def through(tile: Expr, indices: Sequence[Expr]) -> tuple[Expr, tuple[Expr, ...]]:
    """Follow an index of a view to what it is a view of, as far as elements stay elements."""
    at = tuple(indices)
    while True:
        match tile:
            case Subview():
                inner = iter(at)
                pairs = zip(tile.starts, tile.steps, tile.dropped, strict=True)
                at = tuple(
                    start if gone else binary("add", start, next(inner) * step)
                    for start, step, gone in pairs
                )
            case Permute():
                order = dict(zip(tile.axes, at, strict=True))
                at = tuple(order[axis] for axis in range(len(order)))
            case Reshape():
                outer, shape = (
                    static_shape(tile.type.shape),
                    static_shape(tensor_type(tile.source).shape),
                )
                if outer is None or shape is None or prod(outer) != prod(shape):
                    return tile, at
                at = _reshaped(at, outer, shape)
            case _:
                return tile, at
        tile = tile.source


def _reshaped(
    indices: Sequence[Expr], outer: Sequence[int], inner: Sequence[int]
) -> tuple[Expr, ...]:
    """Give the indices of an element under another shape, by axes that make up others alone."""
    found: list[Expr] = []
    at = into = 0
    while at < len(outer) and into < len(inner):
        first, start = at, into
        at, into = at + 1, into + 1
        while (own := prod(outer[first:at])) != (other := prod(inner[start:into])):
            at, into = (at + 1, into) if own < other else (at, into + 1)
        number = as_expr(flatten(indices[first:at], outer[first:at]))
        found += map(as_expr, split_digits(number, inner[start:into]))
    return (*found, *(int32(0) for _ in inner[into:]))


def of_buffers(stmt: ParallelTile) -> ParallelTile:
    """Write elements of views of fragments as those of the fragments."""
    return rewrite(stmt, _element_rules(stmt.location))


def elements_of_buffers(block: Block) -> Block:
    """Write elements of views of fragments as those of the fragments, wherever they stand."""
    return rewrite(block, _element_rules(None))


def _element_rules(where: Location | None) -> tuple[tuple[Any, Any], ...]:
    def load(node: Load) -> Expr | None:
        if not _is_fragment(node.tensor) or isinstance(node.tensor, Var):
            return None
        return load_element(node.tensor, node.indices, through, node.location or where)

    def store(node: Store) -> tuple[Store, ...] | None:
        if not _is_fragment(node.tensor) or isinstance(node.tensor, Var):
            return None
        place = node.location or where
        return store_element(node.tensor, node.indices, node.value, through, place)

    return (Load, load), (Store, store)


def _is_fragment(tensor: Expr) -> bool:
    return tensor_type(root(tensor)).space is Space.FRAGMENT


def within(tensor: Expr, indices: tuple[Expr, ...]) -> Expr | None:
    """Say when an element is inside a tensor in global memory; `None` if it is in another."""
    if tensor_type(tensor).space is not Space.GLOBAL:
        return None
    found: Expr | None = None
    for index, extent in zip(indices, tensor_type(tensor).shape, strict=True):
        for test in (binary("le", 0, index), binary("lt", index, extent)):
            found = test if found is None else binary("logical_and", found, test)
    return found


def in_blocks(stmt: ParallelTile, scene: TileScene) -> ParallelTile | For:
    """Count an axis whose extent is not constant in blocks: those that all threads take at once."""
    open_axes = [at for at, each in enumerate(stmt.extents) if as_constant(each) is None]
    if not open_axes:
        return stmt
    at = open_axes[-1]
    others = [int(as_constant(each) or 1) for each in stmt.extents]
    size = max(scene.threads // prod(others), 1)
    var, extent = stmt.vars[at], stmt.extents[at]
    block = scene.names.variable(f"{var.name}_block", _INDEX)
    within_block = scene.names.variable(var.name, _INDEX)
    value = binary("add", block * size, within_block)
    named = rewrite(
        stmt.body, ((Var, lambda each: value if each.name == var.name else None),), top_down=True
    )
    body: Block = (If(binary("lt", value, extent), named, location=stmt.location),)
    vars = (*stmt.vars[:at], within_block, *stmt.vars[at + 1 :])
    extents = (*stmt.extents[:at], int32(size), *stmt.extents[at + 1 :])
    inner = ParallelTile(vars, extents, body, stmt.layout, stmt.width, location=stmt.location)
    turns = (extent + (size - 1)) // size
    return For(block, int32(0), turns, int32(1), (in_blocks(inner, scene),), location=stmt.location)
