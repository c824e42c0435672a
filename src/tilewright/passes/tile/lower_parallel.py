"""Lower parallel loops: to the turns of each thread.

May import `base`, `layout`, `ir` and the modules of this folder above.

    for i, j in T.Parallel(64, 64): c[i, j] = a[i, j] * 2.0
    # -> for r in unroll(…): for v in vectorized(4): c[r * 4 + v] = a[i_first + r * …, …] * 2.0
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import INT32
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Load, Var, binary, constant, int32
from tilewright.base.dtypes import BOOL
from tilewright.ir.rewrite import map_statements, rewrite, substitute
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Bind, Block, For, If, Stmt, Store
from tilewright.ir.tile import ParallelTile
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import root
from tilewright.layout.fragment import Fragment, digit_of
from tilewright.passes.tile.points import Points
from tilewright.passes.tile.scene import THREAD, TileScene

_MEMORY = (Space.SHARED, Space.GLOBAL)


def lower_parallel(stmt: ParallelTile, layout: Fragment, scene: TileScene) -> Block:
    """Divide a parallel loop among the threads as a layout of its points says.

    Raises `FrontendError` (`bad-layout`) where a thread would need an element of a fragment that
    it does not hold.
    """
    counters = tuple(
        scene.names.variable(f"{stmt.vars[each.dim or 0].name}_turn", ScalarType(INT32))
        for each in layout.digits[1]
    )
    points = Points(stmt.vars, layout, counters)
    firsts, binds = _firsts(points, scene)
    coordinates = [
        binary("add", first, turn) for first, turn in zip(firsts, points.of_turn(), strict=True)
    ]
    body = _with_registers(stmt, points, scene)
    names = [each.name for each in stmt.vars]
    body = substitute(body, dict(zip(names, coordinates, strict=True)))
    body = _once(body, layout)
    if (inside := _inside(coordinates, layout)) is not None:
        body = (If(inside, body, location=stmt.location),)
    for counter, digit in reversed(list(zip(counters, points.turns, strict=True))):
        last = len(layout.shape) - 1
        kind = "vectorized" if digit.stride == 1 and (digit.dim, digit.weight) == (last, 1) else "unroll"
        body = (
            For(counter, int32(0), int32(digit.extent), int32(1), body, kind, location=stmt.location),
        )
    if layout.threads < scene.threads:
        body = (If(binary("lt", THREAD, layout.threads), body, location=stmt.location),)
    return (*binds, *body)


def _firsts(points: Points, scene: TileScene) -> tuple[list[Expr], Block]:
    """Bind the first point of a thread to names."""
    firsts: list[Expr] = []
    binds: list[Stmt] = []
    for var, value in zip(points.vars, points.of_thread(), strict=True):
        if not isinstance(value, Var) and not _is_plain(value):
            bound = scene.names.variable(f"{var.name}_first", ScalarType(INT32))
            binds.append(Bind(bound, value))
            value = bound
        firsts.append(value)
    return firsts, tuple(binds)


def _is_plain(value: Expr) -> bool:
    return not any(True for _ in getattr(value, "operands", ())) and not hasattr(value, "op")


def _inside(coordinates: list[Expr], layout: Fragment) -> Expr | None:
    """Say which points are in the box, if a thread may have others."""
    found: Expr | None = None
    for value, extent, reach in zip(coordinates, layout.shape, layout.domain, strict=True):
        if extent < reach:
            test = binary("lt", value, extent)
            found = test if found is None else binary("logical_and", found, test)
    return found


def _once(body: Block, layout: Fragment) -> Block:
    """Let one of the threads that have the same point store to memory."""
    first: Expr = constant(True, BOOL)
    for each in layout.digits[0]:
        if each.dim is None:
            test = binary("eq", digit_of(THREAD, each, layout.threads), 0)
            first = test if first == constant(True, BOOL) else binary("logical_and", first, test)
    if first == constant(True, BOOL):
        return body

    def guarded(stmt: Stmt) -> Block | None:
        if isinstance(stmt, Store) and tensor_type(stmt.tensor).space in _MEMORY:
            return (If(first, (stmt,), location=stmt.location),)
        return None

    return map_statements(body, guarded)


def _with_registers(stmt: ParallelTile, points: Points, scene: TileScene) -> Block:
    """Replace elements of fragments by the registers that hold them."""

    def register(tensor: Expr, indices: tuple[Expr, ...], where: Location | None) -> tuple[Var, Expr] | None:
        buffer = root(tensor)
        if not isinstance(buffer, Var) or tensor_type(buffer).space is not Space.FRAGMENT:
            return None
        held = scene.fragments[buffer.name]
        found = points.register(held, indices, scene)
        if found is None:
            raise FrontendError(
                f"a thread does not hold the element of {buffer.name!r} that it would need here",
                code="bad-layout",
                location=where or stmt.location,
                expected=f"the parallel loop divided as {buffer.name} is: {held.layout!r}",
                found=f"the loop's points as {points.fragment.layout!r}",
            )
        return scene.registers[buffer.name], found

    def load(node: Load) -> Expr | None:
        found = register(node.tensor, node.indices, node.location)
        return None if found is None else Load(found[0], (found[1],), node.type, location=node.location)

    def store(node: Store) -> Any:
        found = register(node.tensor, node.indices, node.location)
        return None if found is None else Store(found[0], (found[1],), node.value, location=node.location)

    return rewrite(stmt.body, ((Load, load), (Store, store)))
