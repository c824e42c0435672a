"""Loops whose statements a program gives a stage and a rank each: `T.Pipelined(stage=, order=)`.

May import `base`, `isa`, `ir`, `passes.analysis` and the modules of this folder above. In a turn of
the loop that is made, a statement of stage s does the work of the turn s before, and statements
stand by rank. A shared buffer that is filled in one stage and used in a later one gets versions. A
schedule that would change what a statement finds is refused.

    for k in T.Pipelined(n, stage=[0, 1], order=[1, 0]): T.copy(A[k * 64], a); use(a)
    # -> for k in range(n + 1):
    #        if k >= 1: use(a[(k - 1) % 2])
    #        if k < n: begin T.copy(A[k * 64], a[k % 2])
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from tilewright.base.dtypes import INT32, UINT32
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Var, as_constant, binary, constant, int32
from tilewright.ir.rewrite import substitute
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Assign, Bind, Block, For, If, Instruct, Stmt, Store
from tilewright.ir.tile import (
    AtomicTile,
    CopyTile,
    FillTile,
    GemmTile,
    ParallelTile,
    PipelinedTile,
    ReduceTile,
    ScanTile,
)
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import root, walk, walk_statements, written
from tilewright.isa import named
from tilewright.passes.analysis.ranges import Ranges
from tilewright.passes.tile.copy_async import run_bytes
from tilewright.passes.tile.effects import touched
from tilewright.passes.tile.scene import Names
from tilewright.passes.tile.versions import Versions, covers, laid_out, used_outside

_INDEX = ScalarType(INT32)
# Statements that may move past others, as far as what they touch allows.
_MOVABLE = (
    *(CopyTile, FillTile, GemmTile, ReduceTile, ScanTile, AtomicTile, ParallelTile),
    *(Assign, Bind, For, If, Store),
)


@dataclass(frozen=True)
class Surroundings:
    """What is known of the kernel around a loop; `cells` are its mutable variables."""

    names: Names
    versions: Versions
    ranges: Ranges
    cells: frozenset[str]
    has_copies: bool


@dataclass(frozen=True)
class _Step:
    """A statement of a loop: its place in the program's order, and in the schedule's.

    `touches` are the names that it reads (false) and writes (true).
    """

    stmt: Stmt
    number: int
    stage: int
    rank: int
    touches: frozenset[tuple[str, bool]]

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.touches}

    def before(self, other: _Step, turns: int) -> bool:
        """Tell whether it runs before another one's work of so many turns later."""
        return (self.stage, self.rank) < (other.stage + turns, other.rank)

    def conflicts(self, other: _Step) -> set[str]:
        """Name what both touch, and one of them writes."""
        return {
            name
            for name, writes in self.touches
            for again, writes_too in other.touches
            if name == again and (writes or writes_too)
        }


def schedule_loop(stmt: PipelinedTile, kernel: Block, around: Surroundings) -> Block:
    """Write a loop as its schedule says; `kernel` is the body that it stands in.

    Raises `FrontendError` (`bad-call`) for a schedule that does not keep what statements find.
    """
    steps = _steps(stmt, around)
    counts = _versions(stmt, kernel, steps)
    _check_order(stmt, steps, counts)
    for name, count in counts.items():
        if count > 1:
            around.versions.add(_buffer(name, steps), count)
    return (_Writing(stmt, steps, counts, around).loop(),)


# ---------------------------------------------------------------------------- what there is


def _steps(stmt: PipelinedTile, around: Surroundings) -> list[_Step]:
    """Pair statements with their stages and ranks; bound values are computed where they are used.

    Raises `FrontendError` (`bad-call`).
    """
    values: dict[str, Expr] = {}
    statements: list[Stmt] = []
    for each in stmt.body:
        if isinstance(each, Bind):
            values[each.var.name] = substitute(each.value, values)
        else:
            _check_movable(each)
            statements.append(substitute(each, values))
    stages, ranks = stmt.stage or (), stmt.order or ()
    if not len(stages) == len(ranks) == len(statements):
        lines = ", ".join(str(each.location.line) for each in statements if each.location)
        raise FrontendError(
            "a schedule says of each statement of its loop which stage it is of, and its rank",
            code="bad-call",
            location=stmt.location,
            expected=f"{len(statements)} stages and ranks: of the statements at lines {lines}",
            found=f"{len(stages)} stages, {len(ranks)} ranks",
        )
    cells = around.cells
    steps = [
        _Step(each, at, stage, rank, _touches(each, cells))
        for at, (each, stage, rank) in enumerate(zip(statements, stages, ranks, strict=True))
    ]
    changed = {name for step in steps for name, writes in step.touches if writes}
    for each in stmt.body:
        if isinstance(each, Bind) and (
            wrong := sorted(name for name, _ in _touches(each, cells) if name in changed)
        ):
            raise FrontendError(
                f"{each.var.name} is computed anew in each stage, and depends on {wrong[0]}, "
                "which the loop changes",
                code="bad-call",
                location=each.location,
                hint="leave out stage= and order=: num_stages= finds a schedule",
            )
    return steps


def _check_movable(stmt: Stmt) -> None:
    for each in walk_statements(stmt):
        waits = not isinstance(each, CopyTile | GemmTile) or each.waits
        if not isinstance(each, _MOVABLE) or not waits:
            raise FrontendError(
                "this orders what threads do by itself, or declares something, and so has no "
                "place in a schedule",
                code="bad-call",
                location=each.location or stmt.location,
                expected="operations on tiles that wait, assignments, and branches and loops "
                "over those",
                hint="leave out stage= and order=, or declare it before the loop",
            )


def _touches(stmt: Stmt, cells: frozenset[str]) -> frozenset[tuple[str, bool]]:
    found: set[tuple[str, bool]] = set()
    for each in walk_statements(stmt):
        found |= {(access.buffer.name, access.mode == "write") for access in touched(each)}
        found |= {(var.name, True) for var in written(each) if var.name in cells}
    found |= {(e.name, False) for e in walk(stmt) if isinstance(e, Var) and e.name in cells}
    return frozenset(found)


def _buffer(name: str, steps: Iterable[_Step]) -> Var:
    return next(
        each
        for step in steps
        for each in walk(step.stmt)
        if isinstance(each, Var) and each.name == name
    )


# ---------------------------------------------------------------------------- what must hold


def _versions(stmt: PipelinedTile, kernel: Block, steps: list[_Step]) -> dict[str, int]:
    """Count the versions of the buffers that each turn fills before it uses them.

    Raises `FrontendError` (`bad-call`) where the schedule needs more than the loop is to have.
    """
    fixed = laid_out(kernel) | used_outside(kernel, stmt.var)
    found: dict[str, int] = {}
    for step in steps:
        filled = _filled(step.stmt)
        if filled is None or filled.name in fixed or filled.name in found:
            continue
        users = [each for each in steps if filled.name in each.names and each is not step]
        if any(each.number < step.number for each in users):
            continue
        needed = 1
        while not all(each.before(step, needed) for each in users):
            needed += 1
        if 0 < stmt.stages < needed:
            raise FrontendError(
                f"the schedule needs {needed} versions of {filled.name}",
                code="bad-call",
                location=stmt.location,
                expected=f"num_stages={needed}, or none: then there are as many as are needed",
                found=f"num_stages={stmt.stages}",
            )
        found[filled.name] = max(needed, stmt.stages)
    return found


def _filled(stmt: Stmt) -> Var | None:
    """Give the shared buffer that a statement fills whole, if it does."""
    if not isinstance(stmt, CopyTile | FillTile):
        return None
    buffer = root(stmt.target)
    if not isinstance(buffer, Var) or tensor_type(buffer).space is not Space.SHARED:
        return None
    return buffer if covers(stmt.target, buffer) else None


def _check_order(stmt: PipelinedTile, steps: list[_Step], versions: dict[str, int]) -> None:
    """Refuse a schedule in which a statement finds something else than in the program's order."""
    for one in steps:
        for other in steps:
            names = one.conflicts(other)
            if one.number < other.number and names and not one.before(other, 0):
                raise _reordered(stmt, one, other, min(names), "of the same turn")
            left = names - versions.keys()
            if left and not one.before(other, 1):
                raise _reordered(stmt, one, other, min(left), "of the next turn")


def _reordered(
    stmt: PipelinedTile, one: _Step, other: _Step, name: str, turn: str
) -> FrontendError:
    def shown(step: _Step) -> str:
        line = f" (line {step.stmt.location.line})" if step.stmt.location else ""
        return f"statement {step.number}{line}, of stage {step.stage} and rank {step.rank}"

    return FrontendError(
        f"the schedule lets a statement come before another that it depends on by {name}",
        code="bad-call",
        location=other.stmt.location or stmt.location,
        expected=f"{shown(one)}, before {shown(other)}, {turn}",
        hint="only shared buffers that a turn fills whole, before it uses them, have versions",
    )


# ---------------------------------------------------------------------------- the loop


class _Writing:
    """Writes the loop of a schedule that holds."""

    def __init__(
        self,
        stmt: PipelinedTile,
        steps: list[_Step],
        versions: dict[str, int],
        around: Surroundings,
    ) -> None:
        self.stmt = stmt
        self.steps = sorted(steps, key=lambda step: step.rank)
        self.last = max((step.stage for step in steps), default=0)
        self.counts = versions
        self.around = around
        # What turns later the results of copies are first used, for copies that land meanwhile.
        self.early = {step.number: ahead for step in steps if (ahead := self._ahead(step))}
        self.turns: dict[int, Expr] = {}

    def loop(self) -> For:
        """Give the loop, of as many turns more as there are stages after the first."""
        stmt = self.stmt
        found: list[Stmt] = []
        for stage in sorted({step.stage for step in self.steps}):
            self.turns[stage] = stmt.var
            if stage:
                turn = self.around.names.variable(f"{stmt.var.name}_before", _INDEX)
                value = binary("sub", stmt.var, stage)
                found.append(Bind(turn, value, location=stmt.location))
                self.turns[stage] = turn
        issued = [at for at, step in enumerate(self.steps) if step.number in self.early]
        waited = False
        at = 0
        for stage, group in groupby(self.steps, key=lambda step: step.stage):
            parts: list[Stmt] = []
            for step in group:
                if self._is_waiting(step) and not waited:
                    found += self._guarded(stage, parts)
                    parts, waited = [], True
                    pending = min(self.early.values()) - 1 + (at > issued[-1])
                    found.append(self._wait(pending))
                parts += self._step(step)
                if issued and at == issued[-1]:
                    found += self._guarded(stage, parts)
                    parts = []
                    found.append(Instruct(named.COPIES_COMMIT, (), location=stmt.location))
                at += 1
            found += self._guarded(stage, parts)
        stop = binary("add", stmt.stop, self.last)
        return For(stmt.var, stmt.start, stop, int32(1), tuple(found), location=stmt.location)

    def _ahead(self, step: _Step) -> int:
        """Count the turns for which a copy may be under way; 0 for what is complete at once."""
        copy = step.stmt
        filled = _filled(copy)
        if not isinstance(copy, CopyTile) or filled is None or filled.name not in self.counts:
            return 0
        asynchronous = copy.way in (None, "cp_async") and self.around.has_copies
        if not asynchronous or run_bytes(copy, self.around.ranges) is None:
            return 0
        users = [each for each in self.steps if filled.name in each.names and each is not step]
        return min((each.stage - step.stage for each in users), default=0)

    def _is_waiting(self, step: _Step) -> bool:
        landing = {_name(each.stmt) for each in self.steps if each.number in self.early}
        return bool(landing & step.names) and step.number not in self.early

    def _wait(self, pending: int) -> Stmt:
        left = constant(pending, UINT32)
        return Instruct(named.COPIES_WAIT, (left,), location=self.stmt.location)

    def _step(self, step: _Step) -> Block:
        """Write a statement for the turn of its stage, with the versions of that turn."""
        turn, stmt = self.turns[step.stage], step.stmt
        if step.number in self.early:
            assert isinstance(stmt, CopyTile)
            stmt = replace(stmt, way="cp_async", waits=False)
        block: Block = (substitute(stmt, {self.stmt.var.name: turn}),)
        since = binary("sub", turn, self.stmt.start)
        for count in sorted({self.counts[name] for name in step.names & self.counts.keys()}):
            if count > 1:
                some = [name for name, own in self.counts.items() if own == count]
                version = binary("mod", since, count)
                block = self.around.versions.select(block, version, some)
        return block

    def _guarded(self, stage: int, block: list[Stmt]) -> Block:
        """Let statements of a stage run in the turns that there are."""
        if not block:
            return ()
        turn = self.turns[stage]
        tests: list[Expr] = []
        if stage:
            tests.append(binary("ge", turn, self.stmt.start))
        if stage < self.last:
            tests.append(binary("lt", turn, self.stmt.stop))
        if not tests:
            return tuple(block)
        whole = tests[0] if len(tests) == 1 else binary("logical_and", tests[0], tests[1])
        if as_constant(whole) is True:
            return tuple(block)
        return (If(whole, tuple(block), location=self.stmt.location),)


def _name(stmt: Stmt) -> str:
    filled = _filled(stmt)
    assert filled is not None
    return filled.name
