"""Running sums and maxima along an axis, by warps over shared memory.

May import `base`, `layout`, `isa`, `ir` and the modules of this folder above. Each warp goes along
a line in steps of as many elements as it has lanes, and hands on what it has so far.

    T.cumsum(x, y, dim=1)   ->   scan = x; for each line: … shuffles …; y = scan
"""

from __future__ import annotations

from math import prod

from tilewright.base.dtypes import INT32, UINT32
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    Expr,
    Load,
    Select,
    as_expr,
    binary,
    constant,
    int32,
    select,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Allocate, Assign, Bind, Block, Declare, For, If, Stmt, Store
from tilewright.ir.tile import CopyTile, ScanTile
from tilewright.ir.types import ScalarType, TensorType
from tilewright.isa import named
from tilewright.layout import default_layout
from tilewright.layout.split import split_digits
from tilewright.passes.tile.as_parallel import copy_as_parallel
from tilewright.passes.tile.combining import combination, exchanged
from tilewright.passes.tile.scene import TileScene

_INDEX = ScalarType(INT32)
_WARP = 32


def scan_in_shared(stmt: ScanTile, scene: TileScene) -> Block:
    """Write a scan as one in place of a tile in shared memory, and the copies around it."""
    where, kind = stmt.location, tensor_type(stmt.source)
    how = combination(stmt.op, tensor_type(stmt.target).dtype)
    shape = static_shape(kind.shape)
    assert shape is not None
    plain = TensorType(kind.shape, how.kind, Space.SHARED, default_layout(shape), 16)
    work = scene.names.variable("scan", plain)
    sync = scene.sync(where)
    return (
        Allocate(work, location=where),
        copy_as_parallel(CopyTile(stmt.source, work, location=where), scene),
        sync,
        ScanTile(stmt.op, work, work, stmt.axis, stmt.reverse, location=where),
        sync,
        copy_as_parallel(CopyTile(work, stmt.target, location=where), scene),
        sync,
    )


def lower_scan(stmt: ScanTile, scene: TileScene) -> Block:
    """Scan a tile in shared memory in place."""
    where, work = stmt.location, stmt.source
    kind = tensor_type(work)
    shape = static_shape(kind.shape)
    assert shape is not None
    lanes = 1 << (min(scene.threads, _WARP).bit_length() - 1)
    warps = max(scene.threads // _WARP, 1)
    others = tuple(each for at, each in enumerate(shape) if at != stmt.axis)
    lines, length = prod(others), shape[stmt.axis]
    names = scene.names
    turn, part = names.variable("line_turn", _INDEX), names.variable("part", _INDEX)
    line, lane = names.variable("line", _INDEX), names.variable("lane", _INDEX)
    at, value = names.variable("at", _INDEX), names.variable("value", ScalarType(kind.dtype))
    so_far = names.variable("so_far", ScalarType(kind.dtype))
    how = combination(stmt.op, kind.dtype)
    inside = binary("lt", at, length)
    place = (length - 1) - at if stmt.reverse else at
    indices = list(map(as_expr, split_digits(line, others)))
    indices.insert(stmt.axis, place)
    read = Load(work, tuple(indices), ScalarType(kind.dtype), location=where)
    step: list[Stmt] = [
        Bind(at, part * lanes + lane),
        Declare(value, Select(inside, read, how.identity, read.type, location=where)),
    ]
    segments = constant((_WARP - lanes) << 8, UINT32)
    mask = constant((1 << lanes) - 1, UINT32)
    distance = 1
    while distance < lanes:
        statements, other = exchanged(
            named.SHFL_UP,
            value,
            constant(distance, UINT32),
            segments,
            mask,
            names.variable,
            where,
        )
        new = select(binary("ge", lane, distance), how(other, value), value)
        step += [*statements, Assign(value, new)]
        distance *= 2
    step.append(Assign(value, how(so_far, value)))
    store = Store(work, tuple(indices), value, location=where)
    step.append(If(inside, (store,), location=where))
    last = constant(lanes - 1, UINT32)
    all_segments = constant(((_WARP - lanes) << 8) | (_WARP - 1), UINT32)
    statements, other = exchanged(
        named.SHFL_IDX, value, last, all_segments, mask, names.variable, where
    )
    step += [*statements, Assign(so_far, other)]
    parts = -(-length // lanes)
    loop = For(part, int32(0), int32(parts), int32(1), tuple(step), location=where)
    body: Block = (Declare(so_far, how.identity), loop)
    warp: Expr = scene.thread // _WARP
    if lines % warps:
        body = (If(binary("lt", line, lines), body, location=where),)
    body = (Bind(line, turn * warps + warp), *body)
    turns = For(turn, int32(0), int32(-(-lines // warps)), int32(1), body, location=where)
    found: Block = (Bind(lane, scene.thread % _WARP), turns)
    if warps * lanes < scene.threads:
        test = binary("lt", scene.thread, warps * lanes)
        found = (If(test, found, location=where),)
    return found
