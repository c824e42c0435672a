"""Divide parallel loops such that each thread holds what it needs of fragments.

May import `base`, `layout`, `ir` and the modules of this folder above. A loop goes along a fragment
that it writes, or else one that it reads; or freely, in vectors where memory allows.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from math import prod

import numpy as np

from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Load, Var
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Store
from tilewright.ir.tile import ParallelTile, TileStmt
from tilewright.ir.visit import root, walk_kinds
from tilewright.layout.fragment import Fragment
from tilewright.passes.analysis.facts import Fact
from tilewright.passes.tile.division import (
    AXIS,
    INDEX,
    Division,
    along,
    following,
    freely,
    inlined,
)
from tilewright.passes.tile.loop_effects import points_in_need
from tilewright.passes.tile.points import Access, Points
from tilewright.passes.tile.runs import MEMORY, WIDEST, start_of_run, widest_run
from tilewright.passes.tile.scene import TileScene


@dataclass(frozen=True)
class Use:
    """A statement that says something of fragments, in the scene of the threads that execute it.

    `lanes` is the greatest number of threads that may share a row, if it matters.
    """

    stmt: TileStmt
    scene: TileScene
    accesses: tuple[Access, ...] = ()
    lanes: int | None = None


@dataclass(frozen=True)
class Conflict:
    """Two accesses of one loop, of which no division of the loop gives each thread both."""

    stmt: ParallelTile
    one: Access
    other: Access


def is_fragment(tensor: object) -> bool:
    """Tell the buffers that are fragments."""
    kind = getattr(tensor, "type", None)
    return isinstance(tensor, Var) and getattr(kind, "space", None) is Space.FRAGMENT


def accesses_of(stmt: ParallelTile) -> tuple[Access, ...]:
    """List the accesses of fragments in a parallel loop, writes first."""
    found: dict[object, Access] = {}
    for each in walk_kinds(stmt.body, Load, Store):
        if is_fragment(buffer := root(each.tensor)):
            assert isinstance(buffer, Var)
            writes = isinstance(each, Store)
            access = Access(buffer, each.indices, writes, each.location or stmt.location)
            found.setdefault((buffer.name, each.indices, writes), access)
    return tuple(sorted(found.values(), key=lambda each: not each.writes))


def extents_of(stmt: ParallelTile) -> tuple[int, ...]:
    """Give the extents of a loop, which are constant here."""
    extents = static_shape(stmt.extents)
    assert extents is not None
    return extents


def divide(use: Use, known: TileScene) -> Points | Conflict:
    """Divide a loop such that each thread holds what it needs of the fragments that are known."""
    stmt = use.stmt
    assert isinstance(stmt, ParallelTile)
    held = [each for each in use.accesses if each.buffer.name in known.fragments]
    scene = replace(
        use.scene, fragments=known.fragments, homes=known.homes, registers=known.registers
    )
    if isinstance(stmt.layout, Fragment):
        points = Points.of(stmt.vars, along(stmt.layout, stmt.vars, scene.first), scene)
        wrong = _unfit(points, held)
        return points if wrong is None else Conflict(stmt, held[0], wrong)
    first: tuple[Access, Access] | None = None
    for driver, division in _candidates(use, held, scene):
        points = Points.of(stmt.vars, division, scene)
        if _leaves_out(points, stmt):
            continue
        wrong = _unfit(points, held)
        if wrong is None:
            return points
        if driver is not None:
            first = first or (driver, wrong)
    one, other = first or (held[0], held[-1])
    return Conflict(stmt, one, other)


def _candidates(
    use: Use, held: list[Access], scene: TileScene
) -> Iterator[tuple[Access | None, Division]]:
    stmt = use.stmt
    assert isinstance(stmt, ParallelTile)
    extents = extents_of(stmt)

    def rank(each: Access) -> tuple[bool, int]:
        return not each.writes, scene.fragments[each.buffer.name].replicas

    def everywhere(each: Access) -> bool:
        fragment = scene.fragments[each.buffer.name]
        return not each.writes and fragment.replicas >= scene.threads

    drivers = sorted(held, key=rank)
    if all(map(everywhere, drivers)):
        width = loop_width(use)
        yield (
            None,
            freely(stmt.vars, extents, scene.threads, width, scene.first, use.lanes),
        )
    written = {each.buffer.name for each in held if each.writes}
    for each in drivers:
        names = (Var(f"{AXIS}{at}", INDEX) for at in count())
        found = following(
            scene.fragments[each.buffer.name],
            scene.homes[each.buffer.name],
            [inlined(index, scene.bindings) for index in each.indices],
            stmt.vars,
            extents,
            [next(names) for _ in range(2 * len(each.indices) + 1)],
            each.buffer.name in written,
        )
        if found is not None:
            yield each, found


def _leaves_out(points: Points, stmt: ParallelTile) -> bool:
    """Tell whether something is done at a point of the loop that a fragment has no element for."""
    missing = points.missing(extents_of(stmt))
    return missing is not None and bool(np.any(points_in_need(stmt, missing)))


def _unfit(points: Points, held: list[Access]) -> Access | None:
    """Find an access whose element some thread does not hold, or holds and does not write."""
    scene = points.scene
    for each in held:
        fragment, home = scene.fragments[each.buffer.name], scene.homes[each.buffer.name]
        if points.places(fragment, home, each.indices) is None:
            return each
        if each.writes and not points.covers(fragment, home, each.indices):
            return each
    return None


def loop_width(use: Use) -> int:
    """Choose how many neighbours a thread takes at once.

    As many as all accesses of memory allow, as long as no thread is left without any.
    """
    stmt = use.stmt
    assert isinstance(stmt, ParallelTile)
    if not stmt.vars:
        return 1
    extents = extents_of(stmt)
    facts = {var.name: Fact(0, extent - 1) for var, extent in zip(stmt.vars, extents, strict=True)}
    ranges = use.scene.ranges.with_facts(facts)
    last, most = stmt.vars[-1], WIDEST
    widths: list[int] = []
    for each in walk_kinds(stmt.body, Load, Store):
        in_memory = tensor_type(each.tensor).space in MEMORY
        if in_memory and start_of_run(each.indices, last) is not None:
            widths.append(widest_run(each, last, most, ranges))
    width = min(min(widths, default=1), stmt.width or most)
    while width > 1 and prod(extents) // width < use.scene.threads:
        width //= 2
    return 1 << (width.bit_length() - 1)


# ---------------------------------------------------------------------------- errors


def conflicting(conflict: Conflict, known: TileScene) -> FrontendError:
    """Build the error for a loop whose fragments are not held by the same threads."""
    one, other = conflict.one, conflict.other
    if one.buffer.name == other.buffer.name:
        message = f"this loop uses elements of {one.buffer.name} that one thread does not hold"
    else:
        message = (
            f"no thread holds both elements of {one.buffer.name} and {other.buffer.name} "
            "that this loop uses together"
        )
    drawn = [_drawn(one, other, known)]
    if one.buffer.name != other.buffer.name:
        drawn.append(_drawn(other, one, known))
    return FrontendError(
        message,
        code="layout-conflict",
        location=other.location or conflict.stmt.location,
        expected="fragments whose elements at one point of the loop are in the same threads",
        found="two layouts (thread:register)",
        hint="T.copy one of them into a fragment of its own, or into shared memory, first",
        notes=tuple(drawn),
    )


def _drawn(access: Access, other: Access, known: TileScene) -> str:
    fragment = known.fragments[access.buffer.name]
    where = access.location
    place = "" if where is None else f", used at line {where.line}"
    table = fragment.drawn(known.fragments[other.buffer.name])
    return f"{access.buffer.name}, {fragment.shape}{place}:\n{indented(table)}"


def indented(table: str) -> str:
    """Set a drawing off from the text around it."""
    return textwrap.indent(table, "    ")
