"""Reductions along an axis: in each thread, across lanes, across warps.

May import `base`, `layout`, `isa`, `ir` and the modules of this folder above. A reduction becomes
one of a whole fragment into a *part*, a fragment that all threads with something of it hold
whole; what the target gets of it is a parallel loop.

    T.reduce_sum(x, s, dim=1)
    # -> part[i] += x[i, j] …; shuffles; s[i] = part[i]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tilewright.base.dtypes import INT32, UINT32
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    Expr,
    Load,
    Var,
    as_expr,
    binary,
    cast,
    constant,
    int32,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Allocate, Block, For, Stmt, Store
from tilewright.ir.tile import CopyTile, ParallelTile, ReduceTile
from tilewright.ir.types import ScalarType, TensorType
from tilewright.isa import named
from tilewright.layout import default_layout
from tilewright.layout.fragment import Digit, Fragment, digit_of
from tilewright.passes.tile.as_parallel import copy_as_parallel, counters, element
from tilewright.passes.tile.combining import Combination, combination, exchanged
from tilewright.passes.tile.division import along
from tilewright.passes.tile.lower_parallel import emitted
from tilewright.passes.tile.points import Points
from tilewright.passes.tile.scene import TileScene

_INDEX = ScalarType(INT32)
_WARP = 32


def reduce_as_parts(stmt: ReduceTile, scene: TileScene) -> Block:
    """Write a reduction as one of a fragment into a part, and a loop over the target."""
    where = stmt.location
    source, before = stmt.source, tuple[Stmt, ...]()
    if not isinstance(source, Var) or tensor_type(source).space is not Space.FRAGMENT:
        kind = tensor_type(source)
        held = fragment(scene, "source", kind.shape, kind.dtype)
        copy = copy_as_parallel(CopyTile(source, held, location=where), scene)
        source, before = held, (Allocate(held, location=where), copy)
    goal = tensor_type(stmt.target)
    how = combination(stmt.op, goal.dtype, stmt.nan_propagate)
    shape = list(tensor_type(source).shape)
    shape[stmt.axis] = int32(1)
    part = fragment(scene, "part", tuple(shape), how.kind)
    vars, extents = counters(stmt.target, scene)
    tensor, indices = element(stmt.target, vars)
    value: Expr = Load(*element(part, vars), ScalarType(how.kind))
    if not stmt.clear:
        value = how(how.of(Load(tensor, indices, ScalarType(goal.dtype), location=where)), value)
    store = Store(tensor, indices, cast(value, goal.dtype), location=where)
    return (
        *before,
        Allocate(part, location=where),
        ReduceTile(stmt.op, source, part, stmt.axis, True, stmt.nan_propagate, location=where),
        ParallelTile(vars, extents, (store,), relays=True, location=where),
    )


def fragment(scene: TileScene, name: str, shape: tuple[Expr, ...], dtype: Any) -> Var:
    """Name a new fragment."""
    return scene.names.variable(name, TensorType(shape, dtype, Space.FRAGMENT, None))


def lower_reduce(stmt: ReduceTile, scene: TileScene) -> Block:
    """Reduce a fragment into its part."""
    assert isinstance(stmt.source, Var) and isinstance(stmt.target, Var)
    source, part = stmt.source, stmt.target
    held, whole = scene.fragments[source.name], scene.fragments[part.name]
    home = scene.homes[source.name]
    how = Combination(stmt.op, part.dtype, stmt.nan_propagate)
    across = [part for each in held.digits[0] if each.dim == stmt.axis for part in _at_warps(each)]
    lanes = [each for each in across if _shuffles(each, scene, home)]
    rest = [each for each in across if each not in lanes]
    registers = scene.registers[part.name]
    found: list[Stmt] = [_all_registers(registers, whole, scene, how)]
    found += _in_thread(stmt, held, home, how, scene)
    if lanes:
        found.append(_across_lanes(registers, whole, lanes, how, scene, stmt))
    if rest:
        found += _across_warps(part, whole, home, lanes, rest, how, scene, stmt)
    return tuple(found)


def _all_registers(array: Var, whole: Fragment, scene: TileScene, how: Combination) -> Stmt:
    turn = scene.names.variable("r", _INDEX)
    body = (Store(array, (turn,), how.identity),)
    return For(turn, int32(0), int32(whole.registers), int32(1), body, "unroll")


def _in_thread(
    stmt: ReduceTile, held: Fragment, home: int, how: Combination, scene: TileScene
) -> Block:
    """Combine what each thread holds."""
    assert isinstance(stmt.source, Var) and isinstance(stmt.target, Var)
    vars = tuple(scene.names.variable(name, _INDEX) for name in "ijklmn"[: len(held.shape)])
    indices = tuple(int32(0) if at == stmt.axis else var for at, var in enumerate(vars))
    before = Load(stmt.target, indices, ScalarType(how.kind))
    value = how.of(Load(stmt.source, vars, ScalarType(stmt.source.dtype)))
    body: Block = (Store(stmt.target, indices, how(before, value), location=stmt.location),)
    loop = ParallelTile(vars, tuple(map(int32, held.shape)), body, location=stmt.location)
    return emitted(loop, Points.of(vars, along(held, vars, home), scene))


def _at_warps(digit: Digit) -> list[Digit]:
    """Split a digit where it leaves a warp."""
    inner = _WARP // digit.stride if _WARP % digit.stride == 0 else 0
    if not inner or digit.extent <= inner or digit.extent % inner:
        return [digit]
    weight = digit.weight
    outer = Digit(digit.extent // inner, _WARP, digit.dim, weight * inner)
    return [outer, Digit(inner, digit.stride, digit.dim, weight)]


def _shuffles(digit: Digit, scene: TileScene, home: int) -> bool:
    """Tell whether the threads that a digit counts are lanes that shuffles reach."""
    reach = digit.stride * digit.extent
    plain = all(each & (each - 1) == 0 for each in (digit.stride, digit.extent))
    aligned = home % _WARP == 0 and scene.first % _WARP == 0
    return plain and reach <= _WARP and aligned and scene.threads % reach == 0


def _across_lanes(
    array: Var,
    whole: Fragment,
    lanes: Sequence[Digit],
    how: Combination,
    scene: TileScene,
    stmt: ReduceTile,
) -> Stmt:
    """Combine the parts of the lanes of a warp, so that all of them have the whole."""
    turn = scene.names.variable("r", _INDEX)
    place = Load(array, (turn,), ScalarType(how.kind))
    body: list[Stmt] = []
    for each in lanes:
        distance = each.stride
        while distance < each.stride * each.extent:
            lane, segments = constant(distance, UINT32), constant(_WARP - 1, UINT32)
            statements, other = exchanged(
                named.SHFL_BFLY,
                place,
                lane,
                segments,
                scene.full_mask,
                scene.names.variable,
                stmt.location,
            )
            body += [*statements, Store(array, (turn,), how(place, other))]
            distance *= 2
    return For(turn, int32(0), int32(whole.registers), int32(1), tuple(body), "unroll")


def _across_warps(
    part: Var,
    whole: Fragment,
    home: int,
    lanes: Sequence[Digit],
    rest: Sequence[Digit],
    how: Combination,
    scene: TileScene,
    stmt: ReduceTile,
) -> Block:
    """Combine the parts of threads that shuffles do not reach, through shared memory."""
    where = stmt.location
    count = prod(each.extent for each in rest)
    shape = (count, *whole.shape)
    kind = TensorType(tuple(map(int32, shape)), how.kind, Space.SHARED, default_layout(shape), 16)
    scratch = scene.names.variable("parts", kind)
    vars = tuple(scene.names.variable(name, _INDEX) for name in "ijklmn"[: len(whole.shape)])
    extents = tuple(map(int32, whole.shape))
    points = Points.of(vars, along(whole, vars, home), scene)
    own: Any = 0
    for each in rest:
        own = own * each.extent + digit_of(scene.thread, each, whole.threads)
    value = Load(part, vars, ScalarType(how.kind))
    written = Store(scratch, (as_expr(own), *vars), value, location=where)
    # Of the threads that have combined their parts already, or hold the same, the first writes.
    others = [e for e in whole.digits[0] if e.dim is None and not _among(e, rest)]
    tests = [
        binary("eq", digit_of(scene.thread, each, whole.threads), 0)
        for each in _apart(others, rest)
    ]
    first: Expr | None = None
    for each in tests:
        first = each if first is None else binary("logical_and", first, each)
    number = scene.names.variable("w", _INDEX)
    taken = Load(scratch, (number, *vars), ScalarType(how.kind), location=where)
    start = Load(scratch, (int32(0), *vars), ScalarType(how.kind), location=where)
    combine = Store(part, vars, how(value, taken), location=where)
    read: Block = (
        Store(part, vars, start, location=where),
        For(number, int32(1), int32(count), int32(1), (combine,), "unroll"),
    )
    sync = scene.sync(where)
    return (
        Allocate(scratch, location=where),
        *emitted(ParallelTile(vars, extents, (written,), location=where), points, (first,)),
        sync,
        *emitted(ParallelTile(vars, extents, read, location=where), points),
        sync,
    )


def _among(digit: Digit, rest: Sequence[Digit]) -> bool:
    return any((digit.stride, digit.extent) == (each.stride, each.extent) for each in rest)


def _apart(digits: Sequence[Digit], rest: Sequence[Digit]) -> list[Digit]:
    """Leave out of digits the parts that others count."""
    found: list[Digit] = []
    for each in digits:
        low, top = each.stride, each.stride * each.extent
        inside = sorted((o for o in rest if low <= o.stride < top), key=lambda o: o.stride)
        for other in inside:
            if other.stride > low:
                found.append(Digit(other.stride // low, low, None, 0))
            low = other.stride * other.extent
        if low < top:
            found.append(Digit(top // low, low, None, 0))
    return found
