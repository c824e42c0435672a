"""Overlap the copies of later turns of a loop with what a turn computes.

May import `base`, `isa`, `ir` and the modules of this folder above. A copy from global into shared
memory is begun some turns early, into one of several versions of its buffer, where the
dependences allow it: `_Loop.refusal` has what does not. Everything else stays where it is. What
runs when may also be decided by the program: see `schedule_loops`.

    for k in T.Pipelined(n, num_stages=3): T.copy(A[k * 64], a); use(a)
    # -> begin turns 0 and 1; for k in range(n): wait for turn k; begin turn k + 2; use(a[k % 3])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from tilewright.base.dtypes import INT32, UINT32
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import (
    Expr,
    Load,
    Read,
    SpecialRegister,
    Var,
    as_constant,
    binary,
    constant,
    int32,
)
from tilewright.ir.rewrite import map_statements, substitute
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import (
    Bind,
    Block,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Program,
    Stmt,
)
from tilewright.ir.tile import CopyTile, PipelinedTile
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import root, walk, walk_kinds, walk_statements, written
from tilewright.isa import named
from tilewright.passes.analysis.ranges import analyse_ranges
from tilewright.passes.tile.copy_async import run_bytes
from tilewright.passes.tile.effects import Access, accesses
from tilewright.passes.tile.notes import Note
from tilewright.passes.tile.scene import Names
from tilewright.passes.tile.schedule_loops import Surroundings, schedule_loop
from tilewright.passes.tile.versions import Versions, covers, laid_out, used_outside

_INDEX = ScalarType(INT32)


def pipeline_loops(program: Program, target: Target, notes: list[Note] | None = None) -> Program:
    """Replace pipelined loops by plain ones, whose copies are begun early where they can be.

    `notes` gets what is not done, and why.
    """
    kept: list[Note] = [] if notes is None else notes
    kernels = tuple(_Pipelining(each, target, kept).kernel() for each in program.kernels)
    return replace(program, kernels=kernels)


class _Pipelining:
    """Goes through one kernel, inner loops first."""

    def __init__(self, kernel: Kernel, target: Target, notes: list[Note]) -> None:
        self.given = kernel
        self.names = Names(kernel)
        self.has_copies = target in named.COPIES_COMMIT.targets
        self.notes = notes
        self.ranges = analyse_ranges(kernel)
        self.versions = Versions()
        self.surroundings = Surroundings(
            self.names,
            self.versions,
            self.ranges,
            frozenset(each.var.name for each in walk_kinds(kernel.body, Declare)),
            self.has_copies,
        )

    def kernel(self) -> Kernel:
        """Give the kernel without pipelined loops."""
        if not any(True for _ in walk_kinds(self.given.body, PipelinedTile)):
            return self.given
        body = map_statements(
            self.given.body,
            lambda stmt: self.loop(stmt) if isinstance(stmt, PipelinedTile) else None,
        )
        body = map_statements(body, self.versions.allocation)
        return replace(self.given, body=body)

    def loop(self, stmt: PipelinedTile) -> Block:
        """Replace a pipelined loop, whose inner ones are replaced already."""
        if stmt.stage is not None:
            return schedule_loop(stmt, self.given.body, self.surroundings)
        early = self.early(stmt) if stmt.stages > 1 else []
        if not early:
            return (_plain(stmt, stmt.body),)
        for each in early:
            buffer = root(each.target)
            assert isinstance(buffer, Var)
            self.versions.add(buffer, stmt.stages)
        return self.pipelined(stmt, early)

    # ---- what may be begun early

    def early(self, stmt: PipelinedTile) -> list[CopyTile]:
        """List the copies of a loop that may be begun in an earlier turn."""
        copies = [each for each in stmt.body if isinstance(each, CopyTile)]
        loop = _Loop(stmt, self.given.body)
        found: list[CopyTile] = []
        for each in copies:
            into = tensor_type(root(each.target)).space
            if tensor_type(each.source).space is not Space.GLOBAL or into is not Space.SHARED:
                continue
            reason = loop.refusal(each)
            if not self.has_copies:
                reason = "the target has no asynchronous copies"
            if reason is None:
                found.append(each)
            else:
                self.notes.append(Note(each.location, "the copy is not begun early", reason))
        return found

    # ---- the loop that begins them

    def pipelined(self, stmt: PipelinedTile, early: Sequence[CopyTile]) -> Block:
        """Write the turns that begin copies before the loop, and the loop."""
        where, ahead = stmt.location, stmt.stages - 1
        before: list[Stmt] = []
        for turn in range(ahead):
            begun = self.begin(stmt, early, binary("add", stmt.start, turn))
            before += (*begun, _commit(stmt))
        version = self.names.variable(f"{stmt.var.name}_version", _INDEX)
        bound = Bind(version, self.version(stmt, stmt.var), location=where)
        wait = Instruct(named.COPIES_WAIT, (constant(ahead - 1, UINT32),), location=where)
        following = self.begin(stmt, early, binary("add", stmt.var, ahead))
        rest = tuple(each for each in stmt.body if not any(each is copy for copy in early))
        rest = self.versions.select(rest, version)
        body = (bound, wait, *following, _commit(stmt), *rest)
        return (*before, _plain(stmt, body))

    def version(self, stmt: PipelinedTile, turn: Expr) -> Expr:
        """Say which version of the buffers a turn uses."""
        return binary("mod", binary("sub", turn, stmt.start), stmt.stages)

    def begin(self, stmt: PipelinedTile, early: Sequence[CopyTile], turn: Expr) -> Block:
        """Begin the copies of a turn, if there is one."""
        if isinstance(turn, Var) or as_constant(turn) is not None:
            binds: Block = ()
        else:
            bound = self.names.variable(f"{stmt.var.name}_ahead", _INDEX)
            binds, turn = (Bind(bound, turn, location=stmt.location),), bound
        values = {stmt.var.name: turn}
        copies: list[Stmt] = []
        for each in stmt.body:
            if isinstance(each, Bind):
                values[each.var.name] = substitute(each.value, values)
            elif any(each is copy for copy in early):
                assert isinstance(each, CopyTile)
                way = "simt" if run_bytes(each, self.ranges) is None else "cp_async"
                source = substitute(each.source, values)
                moved = replace(each, source=source, waits=False, way=way)
                copies += self.versions.select((moved,), self.version(stmt, turn))
        exists = binary("lt", turn, stmt.stop)
        if as_constant(exists) is False:
            return ()
        if as_constant(exists) is True:
            return (*binds, *copies)
        return (*binds, If(exists, tuple(copies), location=stmt.location))


def _plain(stmt: PipelinedTile, body: Block) -> For:
    return For(stmt.var, stmt.start, stmt.stop, int32(1), body, location=stmt.location)


def _commit(stmt: PipelinedTile) -> Instruct:
    return Instruct(named.COPIES_COMMIT, (), location=stmt.location)


class _Loop:
    """The dependences of a pipelined loop."""

    def __init__(self, stmt: PipelinedTile, kernel: Block) -> None:
        self.stmt = stmt
        self.body = stmt.body
        self.laid_out = laid_out(kernel)
        self.outside = used_outside(kernel, stmt.var)
        self.accessed: list[list[Access]] = [
            [
                access
                for inner in walk(each)
                if isinstance(inner, Stmt)
                for access in accesses(inner)
            ]
            for each in self.body
        ]
        # What the turn itself computes, beyond names that can be computed anew for another turn.
        self.own = {
            var.name
            for each in chain.from_iterable(map(walk_statements, self.body))
            if not isinstance(each, Bind)
            for var in written(each)
        }
        self.replayed = {each.var.name: each.value for each in self.body if isinstance(each, Bind)}

    def refusal(self, copy: CopyTile) -> str | None:
        """Say why a copy cannot be begun in an earlier turn; `None` if it can."""
        buffer, source = root(copy.target), root(copy.source)
        assert isinstance(buffer, Var) and isinstance(source, Var)
        at = next(i for i, each in enumerate(self.body) if each is copy)
        if tensor_type(copy.source).dtype != tensor_type(buffer).dtype:
            return "it converts elements"
        if not covers(copy.target, buffer):
            return f"it writes a part of {buffer.name} only"
        if not copy.waits or copy.way not in (None, "simt", "cp_async"):
            return "the program says how it is carried out"
        if buffer.name in self.laid_out:
            return f"the program lays {buffer.name} out, and not its versions"
        if buffer.name in self.outside:
            return f"{buffer.name} is used outside the loop too"
        for i, accessed in enumerate(self.accessed):
            for each in accessed:
                if each.buffer == buffer and i < at:
                    return f"{buffer.name} is used in the turn before it is copied"
                if each.buffer == source and each.mode == "write":
                    return f"the loop writes {source.name}, which it copies from"
        return self._start_refusal(copy.source)

    def _start_refusal(self, value: Expr) -> str | None:
        """Say why where a copy reads cannot be told for a later turn."""
        written = {
            each.buffer.name for some in self.accessed for each in some if each.mode == "write"
        }
        pending: list[Expr] = [value]
        while pending:
            for each in walk(pending.pop()):
                match each:
                    case Var() if each.name in self.own:
                        return f"where it reads depends on {each.name}, which the turn computes"
                    case Var() if each.name in self.replayed:
                        pending.append(self.replayed[each.name])
                    case Load() if tensor_type(each.tensor).space is not Space.GLOBAL:
                        return "where it reads depends on what is in registers or shared memory"
                    case Load() if _name(each.tensor) in written:
                        return f"where it reads depends on {_name(each.tensor)}, which is written"
                    case Read() | SpecialRegister(name="clock" | "clock64" | "globaltimer"):
                        return "where it reads may be another place in an earlier turn"
                    case _:
                        continue
        return None


def _name(tensor: Expr) -> str:
    buffer = root(tensor)
    return buffer.name if isinstance(buffer, Var) else ""
