"""At which points of a parallel loop something is done, and whether what is accessed there exists.

May import `base`, `ir`, NumPy, `passes.analysis` and `passes.tile.scene`.

    for i in T.Parallel(64):
        if i < 48:
            x[i] = 0.0      # nothing is done at 48 and after, and x may have 48 elements
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Load, Select, Var, unary
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Assign, Block, If, Instruct, Stmt, Store
from tilewright.ir.tile import ParallelTile
from tilewright.ir.visit import block_fields, children, root
from tilewright.passes.analysis.evaluation import Bools, Environment, evaluate, possible
from tilewright.passes.analysis.facts import Fact
from tilewright.passes.tile.scene import TileScene

_CHECKED = (Space.FRAGMENT, Space.SHARED)
# Points beyond which nothing is enumerated.
_MOST = 1 << 24
Guarded = tuple[Stmt | Load, tuple[Expr, ...]]


def points_in_need(stmt: ParallelTile, points: Environment) -> Bools:
    """Tell, of some points of a loop, those at which its body may do something."""
    found = np.zeros((), np.bool_)
    for node, guards in _guarded(stmt.body):
        if isinstance(node, Store | Instruct | Assign):
            found = found | _reached(guards, points)
    return np.asarray(found)


def check_elements(stmt: ParallelTile, scene: TileScene) -> None:
    """Refuse accesses of elements that a fragment, or a shared buffer, does not have.

    Raises `FrontendError` (`bad-index`).
    """
    extents = static_shape(stmt.extents)
    if extents is None or np.prod(extents) > _MOST:
        return
    facts = {v.name: Fact(0, e - 1) for v, e in zip(stmt.vars, extents, strict=True)}
    ranges = scene.ranges.with_facts(facts)
    everywhere: Environment | None = None
    for node, guards in _guarded(stmt.body):
        if not isinstance(node, Store | Load) or tensor_type(node.tensor).space not in _CHECKED:
            continue
        shape = static_shape(tensor_type(node.tensor).shape)
        for dim, (index, extent) in enumerate(zip(node.indices, shape or (), strict=False)):
            fact = ranges.fact(index)
            if fact is not None and fact.low >= 0 and fact.high < extent:
                continue
            everywhere = everywhere or _points(stmt, extents, scene)
            _require(node, dim, extent, guards, everywhere)


def _require(
    node: Store | Load, dim: int, extent: int, guards: Sequence[Expr], points: Environment
) -> None:
    values = evaluate(node.indices[dim], points)
    if values is None:
        return
    wrong = ((values < 0) | (values >= extent)) & _reached(guards, points, certainly=True)
    if not np.any(wrong):
        return
    values, wrong = np.broadcast_arrays(values, wrong)
    buffer = root(node.tensor)
    name = buffer.name if isinstance(buffer, Var) else "the buffer"
    raise FrontendError(
        f"a loop accesses elements that {name} does not have",
        code="bad-index",
        location=node.location,
        expected=f"an index below {extent} along axis {dim}",
        found=f"{int(values[wrong].flat[0])} at some point of the loop",
        hint="let the loop have as many points, or guard the access by `if`",
    )


def _points(stmt: ParallelTile, extents: Sequence[int], scene: TileScene) -> Environment:
    own = np.indices(tuple(extents), dtype=np.int64).reshape(len(extents), -1)
    return Environment(dict(zip(stmt.vars, own, strict=True)), {}, scene.bindings)


def _reached(guards: Sequence[Expr], points: Environment, certainly: bool = False) -> Bools:
    """Tell the points at which all guards may hold, or certainly do."""
    found = np.ones((), np.bool_)
    for each in guards:
        known = possible(each, points)
        found = found & (~known.false if certainly else known.true)
    return np.asarray(found)


def _guarded(block: Block, guards: tuple[Expr, ...] = ()) -> Iterator[Guarded]:
    """List statements and what they read, each with the conditions under which it is reached."""
    for stmt in block:
        inside = {id(each) for name in block_fields(type(stmt)) for each in getattr(stmt, name)}
        yield stmt, guards
        for each in children(stmt):
            if id(each) not in inside and isinstance(each, Expr):
                yield from _read(each, guards)
        if isinstance(stmt, If):
            yield from _guarded(stmt.then, (*guards, stmt.condition))
            yield from _guarded(stmt.orelse, (*guards, unary("not", stmt.condition)))
            continue
        for name in block_fields(type(stmt)):
            yield from _guarded(getattr(stmt, name), guards)


def _read(value: Expr, guards: tuple[Expr, ...]) -> Iterator[Guarded]:
    if isinstance(value, Load):
        yield value, guards
    if isinstance(value, Select):
        yield from _read(value.condition, guards)
        yield from _read(value.true, (*guards, value.condition))
        yield from _read(value.false, (*guards, unary("not", value.condition)))
        return
    for each in children(value):
        if isinstance(each, Expr):
            yield from _read(each, guards)
