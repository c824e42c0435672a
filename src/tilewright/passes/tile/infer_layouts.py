"""Infer where the elements of fragments are.

May import `base`, `layout`, `ir` and the modules of this folder above. What hardware or the
program has decided is known first; it is carried along loops and reductions; where nothing is
known, a loop is divided freely. A fragment that is read where all threads need it is held by all of
them, and so is a small one that no other layout suits.

    T.gemm(a, b, acc); for i, j in T.Parallel(…): acc[i, j] *= s[i]     # s follows acc
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.ir.expressions import Load, Var, as_constant
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Block, If, Stmt, Store
from tilewright.ir.tile import AnnotateTile, ParallelTile, ReduceTile, TileStmt
from tilewright.ir.visit import Node, block_fields, children, root, walk_kinds
from tilewright.layout.fragment import Fragment, divided, replicated
from tilewright.passes.tile.divide_loops import (
    Conflict,
    Use,
    accesses_of,
    conflicting,
    divide,
    indented,
    is_fragment,
    loop_width,
)
from tilewright.passes.tile.division import depends, inlined
from tilewright.passes.tile.fragments import same_places
from tilewright.passes.tile.loop_effects import check_elements
from tilewright.passes.tile.points import Access
from tilewright.passes.tile.proposals import proposed
from tilewright.passes.tile.scene import TileScene, narrowed

# Elements of a fragment that all threads may hold where nothing else suits.
_MOST_REPLICATED = 1024
_MOST_TRIES = 8
_WARP = 32

# What a statement demands of the buffers that it works on, by their names.
Demands = Callable[[TileStmt, TileScene], Mapping[str, Any]]


# ---------------------------------------------------------------------------- what there is


def fragments_of(body: Block) -> dict[str, Var]:
    """List the fragments that a body mentions, by name."""
    return {each.name: each for each in walk_kinds(body, Var) if is_fragment(each)}


def uses_of(body: Block, scene: TileScene) -> list[Use]:
    """List the statements about tiles, each with the threads that execute it."""
    found: list[Use] = []
    for stmt in body:
        match stmt:
            case ParallelTile():
                found.append(Use(stmt, scene, accesses_of(stmt)))
            case TileStmt():
                found.append(Use(stmt, scene))
            case If():
                for arm, holds in ((stmt.then, True), (stmt.orelse, False)):
                    if arm:
                        found += uses_of(arm, narrowed(scene, stmt.condition, holds))
            case _:
                for name in block_fields(type(stmt)):
                    found += uses_of(getattr(stmt, name), scene)
    return found


def _outside_loops(node: Node) -> Iterator[Node]:
    """Yield what is not part of a statement about tiles."""
    if not isinstance(node, TileStmt):
        yield node
        for each in children(node):
            yield from _outside_loops(each)


def _needed_by_all(body: Block, uses: list[Use]) -> set[str]:
    """List the fragments an element of which is accessed where no loop says by which thread."""
    found = {
        buffer.name
        for stmt in body
        for each in _outside_loops(stmt)
        if isinstance(each, Load | Store) and is_fragment(buffer := root(each.tensor))
        if isinstance(buffer, Var)
    }
    for use in uses:
        for each in use.accesses:
            assert isinstance(use.stmt, ParallelTile)
            indices = [inlined(index, use.scene.bindings) for index in each.indices]
            if not any(depends(index, use.stmt.vars) for index in indices) and use.stmt.vars:
                found.add(each.buffer.name)
    return found


# ---------------------------------------------------------------------------- the inference


class Inference:
    """Finds a layout for every fragment of a kernel."""

    def __init__(self, body: Block, scene: TileScene, demands: Demands) -> None:
        self.buffers = fragments_of(body)
        self.uses = self._within_warps(uses_of(body, scene))
        for use in self.uses:
            if isinstance(use.stmt, ParallelTile):
                check_elements(use.stmt, use.scene)
        self.scene = scene
        self.reasons: dict[str, Location | None] = {}
        # Results of reductions are where these leave them.
        self.parts = {
            each.name
            for use in self.uses
            if isinstance(use.stmt, ReduceTile) and isinstance(each := root(use.stmt.target), Var)
        }
        self.fixed = self._demanded(demands)
        self.everywhere = _needed_by_all(body, self.uses) - self.fixed.fragments.keys()
        self.order = self._ordered()

    def solve(self) -> TileScene:
        """Give the scene with the layouts of all fragments, and of shared buffers.

        Raises `FrontendError` (layout-conflict) where a loop needs two that do not go together.
        """
        replicated_ones = set(self.everywhere)
        first: tuple[Conflict, TileScene] | None = None
        for _ in range(_MOST_TRIES):
            known = self._attempt(replicated_ones)
            conflict = self._conflict(known)
            if conflict is None:
                return known
            first = first or (conflict, known)
            more = self._smallest(conflict, replicated_ones)
            if more is None:
                break
            replicated_ones.add(more)
        assert first is not None
        raise conflicting(*first)

    def _within_warps(self, uses: list[Use]) -> list[Use]:
        """Keep rows that are reduced in a warp, whose lanes need no shared memory for it."""
        shapes = {
            self._shape(each.name)
            for use in uses
            if isinstance(use.stmt, ReduceTile) and isinstance(each := root(use.stmt.source), Var)
            if use.stmt.axis == len(self._shape(each.name)) - 1
        }

        def reduced(use: Use) -> bool:
            return any(self._shape(each.buffer.name) in shapes for each in use.accesses)

        return [replace(use, lanes=_WARP) if reduced(use) else use for use in uses]

    def _demanded(self, demands: Demands) -> TileScene:
        """Collect what statements demand; what the program says of shared buffers goes first."""
        scene = self.scene
        for use in sorted(self.uses, key=lambda use: not isinstance(use.stmt, AnnotateTile)):
            for name, layout in demands(use.stmt, use.scene).items():
                if not isinstance(layout, Fragment):
                    scene = replace(scene, layouts={name: layout, **scene.layouts})
                    continue
                if layout.threads > use.scene.threads:
                    raise _too_many(name, layout, use)
                old = scene.fragments.get(name)
                if old is not None and not same_places(old, layout):
                    raise _demanded_twice(name, old, layout, use.stmt, self.reasons[name])
                scene = scene if old else scene.holding(name, layout, use.scene.first)
                self.reasons.setdefault(name, use.stmt.location)
        return scene

    def _ordered(self) -> list[tuple[Use, Access]]:
        """List the loops from which layouts may be chosen freely, the best first.

        A loop that goes through an axis of a fragment one by one decides first; then what moves
        the widest vectors.
        """
        found: list[tuple[tuple[int, int, int], Use, Access]] = []
        for at, use in enumerate(self.uses):
            if not isinstance(use.stmt, ParallelTile):
                continue
            for each in use.accesses:
                indices = [inlined(index, use.scene.bindings) for index in each.indices]
                whole = [i for i in indices if not depends(i, use.stmt.vars)]
                through = any(as_constant(i) is None for i in whole)
                rank = (0 if through else 1, -loop_width(use), at)
                found.append((rank, use, each))
        return [(use, each) for _, use, each in sorted(found, key=lambda each: each[0])]

    def _attempt(self, everywhere: set[str]) -> TileScene:
        known = self.fixed
        for name in everywhere:
            home, threads = self._span(name)
            known = known.holding(name, replicated(self._shape(name), threads), home)
        known = self._spread(known)
        for use, access in self.order:
            if access.buffer.name not in {*known.fragments, *self.parts}:
                known = self._spread(self._from_loop(use, known))
        for name in self.buffers:
            if name not in known.fragments and name not in self.parts:
                home, threads = self._span(name)
                known = known.holding(name, divided(self._shape(name), threads), home)
                known = self._spread(known)
        return known

    def _from_loop(self, use: Use, known: TileScene) -> TileScene:
        """Add what a loop says of the fragments that are not known yet."""
        points = divide(use, known)
        if isinstance(points, Conflict):
            return known
        for each in use.accesses:
            if each.buffer.name in known.fragments or each.buffer.name in self.parts:
                continue
            found = proposed(points, self._shape(each.buffer.name), each.indices)
            home = points.division.first
            if found is None or points.places(found, home, each.indices) is None:
                continue
            if not each.writes or points.covers(found, home, each.indices):
                known = known.holding(each.buffer.name, found, home)
        return known

    def _spread(self, known: TileScene) -> TileScene:
        """Carry what is known along loops and reductions, until nothing is added.

        Copies come last: they can bring a fragment to other threads.
        """
        while True:
            before = len(known.fragments)
            for relays in (False, True):
                known = self._carried(known, relays)
                if len(known.fragments) > before:
                    break
            if len(known.fragments) == before:
                return known

    def _carried(self, known: TileScene, relays: bool) -> TileScene:
        for use in self.uses:
            match use.stmt:
                case ParallelTile():
                    names = {each.buffer.name for each in use.accesses}
                    some = bool(names & known.fragments.keys())
                    more = some and names - known.fragments.keys() and use.stmt.relays == relays
                    if more and self._leads(use, known):
                        known = self._from_loop(use, known)
                case ReduceTile():
                    known = self._reduced(use.stmt, known)
                case _:
                    continue
        return known

    def _leads(self, use: Use, known: TileScene) -> bool:
        """Tell whether what is known divides a loop: not only what all threads hold anyway."""
        return any(
            each.writes or known.fragments[each.buffer.name].replicas < use.scene.threads
            for each in use.accesses
            if each.buffer.name in known.fragments
        )

    def _reduced(self, stmt: ReduceTile, known: TileScene) -> TileScene:
        source, target = root(stmt.source), root(stmt.target)
        if not isinstance(source, Var) or not isinstance(target, Var):
            return known
        if source.name not in known.fragments or target.name in known.fragments:
            return known
        found = reduced_layout(known.fragments[source.name], self._shape(target.name), stmt.axis)
        return known.holding(target.name, found, known.homes[source.name])

    def _conflict(self, known: TileScene) -> Conflict | None:
        for use in self.uses:
            if isinstance(use.stmt, ParallelTile) and not use.stmt.relays:
                found = divide(use, known)
                if isinstance(found, Conflict):
                    return found
        return None

    def _smallest(self, conflict: Conflict, everywhere: set[str]) -> str | None:
        """Choose the fragment of a conflict that all threads are to hold, if one may."""
        names = {conflict.one.buffer.name, conflict.other.buffer.name}
        sizes = {name: prod(self._shape(name)) for name in names - everywhere}
        free = [
            name
            for name, size in sizes.items()
            if name not in self.fixed.fragments and size <= _MOST_REPLICATED
        ]
        return min(free, key=lambda name: sizes[name], default=None)

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = static_shape(tensor_type(self.buffers[name]).shape)
        assert shape is not None
        return shape

    def _span(self, name: str) -> tuple[int, int]:
        """Give the threads that have to do with a fragment: the first, and how many."""
        scenes = [
            use.scene for use in self.uses if any(each.buffer.name == name for each in use.accesses)
        ]
        if not scenes or name in self.everywhere:
            return self.scene.first, self.scene.threads
        first = min(each.first for each in scenes)
        return first, max(each.first + each.threads for each in scenes) - first


def reduced_layout(source: Fragment, shape: tuple[int, ...], axis: int) -> Fragment:
    """Say where the results of a reduction are: with all threads that hold a part of it."""
    return source.without(axis, keep=len(shape) == len(source.shape))


# ---------------------------------------------------------------------------- errors


def _too_many(name: str, layout: Fragment, use: Use) -> FrontendError:
    return FrontendError(
        f"{name} is to lie in more threads than there are",
        code="layout-conflict",
        location=use.stmt.location,
        expected=f"at most {use.scene.threads} threads",
        found=f"a layout over {layout.threads} threads",
    )


def _demanded_twice(
    name: str, old: Fragment, new: Fragment, stmt: Stmt, before: Location | None
) -> FrontendError:
    tables = [indented(old.drawn(new)), indented(new.drawn(old))]
    earlier = "before" if before is None else f"at line {before.line}"
    return FrontendError(
        f"two statements need {name} to lie in different threads",
        code="layout-conflict",
        location=stmt.location,
        expected=f"the layout that is needed {earlier}",
        found="another one (thread:register)",
        hint="use a fragment for each, and T.copy from one to the other",
        notes=(f"{earlier}:\n{tables[0]}", f"here:\n{tables[1]}"),
    )
