"""Lower parallel loops: to the turns of each thread.

May import `base`, `layout`, `ir` and the modules of this folder above.

    for i, j in T.Parallel(64, 64): c[i, j] = a[i, j] * 2.0
    # -> for r in unroll(…): for v in vectorized(4): c[r * 4 + v] = a[i_first + r * …, …] * 2.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from tilewright.base.dtypes import INT32
from tilewright.base.errors import CompilerBug, FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    Binary,
    Expr,
    Load,
    Var,
    as_constant,
    binary,
    int32,
)
from tilewright.ir.rewrite import map_statements, rewrite, substitute
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import (
    Allocate,
    Assign,
    Bind,
    Block,
    Declare,
    For,
    If,
    Instruct,
    Stmt,
    Store,
)
from tilewright.ir.tile import ParallelTile
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import root, variables, walk, walk_statements
from tilewright.layout import default_layout
from tilewright.layout.fragment import digit_of
from tilewright.passes.analysis.facts import Fact
from tilewright.passes.analysis.ranges import Ranges
from tilewright.passes.simplify import simplify_expression
from tilewright.passes.tile.divide_loops import Conflict, Use, accesses_of, conflicting, divide
from tilewright.passes.tile.division import AXIS
from tilewright.passes.tile.points import Access, Points
from tilewright.passes.tile.scene import TileScene

_INDEX = ScalarType(INT32)
_MEMORY = (Space.SHARED, Space.GLOBAL)
# What is worth a name.
_COSTLY = ("floordiv", "mod", "truncdiv", "truncmod", "shr", "and")


def lower_parallel(stmt: ParallelTile, scene: TileScene) -> Block:
    """Divide a parallel loop among the threads that execute it.

    Raises `FrontendError` (`layout-conflict`) where a thread would need an element of a fragment
    that it does not hold.
    """
    accesses = accesses_of(stmt)
    points = divide(Use(stmt, scene, accesses), scene)
    if isinstance(points, Conflict) and stmt.relays:
        return _relayed(stmt, accesses, scene)
    if isinstance(points, Conflict):
        raise conflicting(points, scene)
    return emitted(stmt, points.refined(accesses))


def _relayed(stmt: ParallelTile, accesses: Sequence[Access], scene: TileScene) -> Block:
    """Pass the fragments that a loop reads through shared memory, since other threads hold them."""
    where = stmt.location
    written = {each.buffer.name for each in accesses if each.writes}
    before: list[Stmt] = []
    held: dict[str, Var] = {}
    for each in accesses:
        name = each.buffer.name
        if name in written or name in held:
            continue
        kind = tensor_type(each.buffer)
        extents = tuple(int(as_constant(extent) or 1) for extent in kind.shape)
        plain = replace(kind, space=Space.SHARED, layout=default_layout(extents), align=16)
        held[name] = scene.names.variable(f"{name}_held", plain)
        vars = tuple(scene.names.variable("i", _INDEX) for _ in extents)
        value = Load(each.buffer, vars, ScalarType(kind.dtype), location=where)
        store = Store(held[name], vars, value, location=where)
        copy = ParallelTile(vars, kind.shape, (store,), location=where)
        before += [Allocate(held[name], location=where), *lower_parallel(copy, scene)]

    def load(node: Load) -> Load | None:
        buffer = root(node.tensor)
        found = held.get(buffer.name) if isinstance(buffer, Var) else None
        return None if found is None else replace(node, tensor=found)

    body = rewrite(stmt.body, ((Load, load),))
    sync = scene.sync(where)
    loop = replace(stmt, body=body, relays=False)
    return (*before, sync, *lower_parallel(loop, scene), sync)


def emitted(stmt: ParallelTile, points: Points, first: tuple[Expr | None] | None = None) -> Block:
    """Write the loops of each thread.

    `first` says which of the threads that have the same point change memory, if it is given;
    otherwise one does.
    """
    scene, division = points.scene, points.division
    counters = tuple(
        scene.names.variable(f"{_name(division.axes[each.dim or 0])}_turn", _INDEX)
        for each in points.turns
    )
    firsts, binds, ranges = _firsts(points)
    ranges = ranges.with_facts(
        {
            counter.name: Fact(0, each.extent - 1)
            for counter, each in zip(counters, points.turns, strict=True)
        }
    )
    places = {
        axis.name: simplify_expression(binary("add", first, turn), ranges)
        for axis, first, turn in zip(division.axes, firsts, points.of_turn(counters), strict=True)
    }
    values = {
        var.name: simplify_expression(substitute(value, places), ranges)
        for var, value in zip(stmt.vars, division.values, strict=True)
    }
    body = substitute(_with_registers(stmt, points, counters), values)
    chosen = _first(points) if first is None else first[0]
    body = body if chosen is None else _once(body, chosen)
    guards = [*_inside(points, places), *(substitute(each, places) for each in division.guards)]
    body = _loops(stmt, points, counters, body, _needed(guards, ranges))
    if division.box.threads < scene.threads:
        test = binary("lt", scene.thread, division.box.threads)
        body = (If(test, body, location=stmt.location),)
    used = {each.name for each in variables(body)}
    return (*(each for each in binds if each.var.name in used), *body)


def _name(axis: Var) -> str:
    return "k" if axis.name.startswith(AXIS) else axis.name


def _loops(
    stmt: ParallelTile,
    points: Points,
    counters: Sequence[Var],
    body: Block,
    guards: Sequence[Expr],
) -> Block:
    """Put a body into the loops of a thread, and each guard as far out as it goes."""
    rest = list(guards)
    for at in range(len(counters), -1, -1):
        inner = set(counters[at - 1 : at])
        own = [each for each in rest if at == 0 or inner & set(_mentioned(each))]
        rest = [each for each in rest if each not in own]
        for each in reversed(own):
            body = (If(each, body, location=stmt.location),)
        if at == 0:
            break
        digit = points.turns[at - 1]
        kind = "vectorized" if at == len(counters) and digit.weight == 1 else "unroll"
        extent = int32(digit.extent)
        loop = For(counters[at - 1], int32(0), extent, int32(1), body, kind, location=stmt.location)
        body = (loop,)
    return body


def _mentioned(value: Expr) -> list[Var]:
    return [each for each in walk(value) if isinstance(each, Var)]


def _firsts(points: Points) -> tuple[list[Expr], list[Bind], Ranges]:
    """Bind the first point of a thread to names."""
    scene = points.scene
    ranges = scene.ranges
    firsts: list[Expr] = []
    binds: list[Bind] = []
    for axis, value in zip(points.division.axes, points.of_thread(), strict=True):
        value = simplify_expression(value, ranges)
        if any(isinstance(each, Binary) and each.op in _COSTLY for each in walk(value)):
            bound = scene.names.variable(f"{_name(axis)}_first", _INDEX)
            binds.append(Bind(bound, value))
            fact = ranges.fact(value)
            ranges = ranges.with_facts({} if fact is None else {bound.name: fact})
            value = bound
        firsts.append(value)
    return firsts, binds, ranges


def _inside(points: Points, places: dict[str, Expr]) -> list[Expr]:
    """Say which points are in the box, if a thread may have others."""
    division = points.division
    box = zip(division.axes, division.box.shape, division.box.domain, strict=True)
    return [
        binary("lt", places[axis.name], extent) for axis, extent, reach in box if extent < reach
    ]


def _needed(guards: Sequence[Expr], ranges: Ranges) -> list[Expr]:
    """Leave out the guards that always hold."""
    simple = [simplify_expression(each, ranges) for each in guards]
    return [each for each in dict.fromkeys(simple) if as_constant(each) is not True]


# ---------------------------------------------------------------------------- replicas


def _first(points: Points) -> Expr | None:
    """Say which of the threads that have the same point is the first, if there are several."""
    box = points.division.box
    found: Expr | None = None
    for each in box.digits[0]:
        if each.dim is None:
            test = binary("eq", digit_of(points.scene.thread, each, box.threads), 0)
            found = test if found is None else binary("logical_and", found, test)
    return found


def _once(body: Block, first: Expr) -> Block:
    """Let one of the threads that have the same point change memory."""
    statements = list(walk_statements(body))
    if not any(map(_changes_memory, statements)):
        return body
    own = {each.var.name for each in statements if isinstance(each, Declare | Bind)}
    if not any(_keeps(each, own) for each in statements):
        return (If(first, body),)
    changed = {root(each.tensor) for each in statements if _is_store_to_memory(each)}
    for each in walk(body):
        if isinstance(each, Load) and root(each.tensor) in changed:
            raise FrontendError(
                "several threads hold what this loop keeps, and it changes what they read for it",
                code="not-supported",
                location=each.location,
                hint="write to memory in a T.Parallel of its own, after this one",
            )

    def guarded(stmt: Stmt) -> Block | None:
        return (If(first, (stmt,), location=stmt.location),) if _changes_memory(stmt) else None

    return map_statements(body, guarded)


def _changes_memory(stmt: Stmt) -> bool:
    return _is_store_to_memory(stmt) or isinstance(stmt, Instruct)


def _is_store_to_memory(stmt: Stmt) -> TypeGuard[Store]:
    return isinstance(stmt, Store) and tensor_type(stmt.tensor).space in _MEMORY


def _keeps(stmt: Stmt, own: set[str]) -> bool:
    """Tell whether a statement changes registers that outlive the loop."""
    match stmt:
        case Store():
            return tensor_type(stmt.tensor).space not in _MEMORY
        case Assign():
            return stmt.var.name not in own
        case _:
            return False


# ---------------------------------------------------------------------------- registers


def _with_registers(stmt: ParallelTile, points: Points, counters: Sequence[Var]) -> Block:
    """Replace elements of fragments by the registers that hold them."""
    scene = points.scene

    def register(
        tensor: Expr, indices: tuple[Expr, ...], where: Location | None
    ) -> tuple[Var, Expr] | None:
        buffer = root(tensor)
        if not isinstance(buffer, Var) or tensor_type(buffer).space is not Space.FRAGMENT:
            return None
        name = buffer.name
        found = points.register(scene.fragments[name], scene.homes[name], indices)
        if found is None:
            raise CompilerBug(
                f"the element of {name} is not where it was found to be",
                code="compiler-bug",
                location=where or stmt.location,
            )
        return scene.registers[name], found.expression(counters)

    def load(node: Load) -> Expr | None:
        found = register(node.tensor, node.indices, node.location)
        if found is None:
            return None
        return Load(found[0], (found[1],), node.type, location=node.location)

    def store(node: Store) -> Any:
        found = register(node.tensor, node.indices, node.location)
        if found is None:
            return None
        return Store(found[0], (found[1],), node.value, location=node.location)

    return rewrite(stmt.body, ((Load, load), (Store, store)))


__all__ = ["emitted", "lower_parallel"]
