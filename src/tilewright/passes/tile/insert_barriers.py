"""Insert the barriers and fences that make one statement's results the next one's.

May import `base`, `isa`, `ir` and the modules of this folder above. Every statement is taken in the
order in which it runs, around loops until nothing changes: what threads have accessed since they
last met is pending, and a statement that conflicts with it gets a barrier before it. Where an
agent is to read shared memory that threads have written, the writers execute a proxy fence
before that barrier; accesses of Tensor Memory by threads have the fences of `tcgen05` around it.

    T.copy(A, a); T.gemm(a, b, c)   ->   T.copy(A, a); T.cuda.cta_sync(); T.gemm(a, b, c)

Where threads part (a condition that depends on the thread), a barrier of the whole CTA would wait
for those that do not come. Where a condition holds in whole warps, in a row, these meet among
themselves; elsewhere nothing is inserted. What one part of the CTA does for another the program
orders by barriers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import (
    Expr,
    Var,
    as_constant,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import (
    Allocate,
    Block,
    Break,
    Continue,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Program,
    Return,
    Stmt,
    While,
)
from tilewright.ir.tile import AllocateBarriers, CopyTile, GemmTile, TileStmt
from tilewright.ir.types import TensorType
from tilewright.ir.visit import root, walk, walk_kinds, walk_statements
from tilewright.isa import named
from tilewright.isa.declaration import Form
from tilewright.passes.tile.boxes import Box, after_loop, apart, box_of, in_earlier_turn
from tilewright.passes.tile.effects import Access, accesses
from tilewright.passes.tile.parting import divergent, parts, varies
from tilewright.passes.tile.scene import TileScene, all_come, narrowed, scene_of

# The first of some threads of a CTA, and their number.
_Some = tuple[int, int]


@dataclass(frozen=True)
class _Pending:
    """An access since the threads last met: of a whole buffer (`None`), or of a part of it.

    `by` are the threads, where only they come and barriers of the program order what they do.
    """

    buffer: str
    write: bool
    part: Box | None
    by: _Some | None = None

    def is_handed_on(self, by: _Some | None) -> bool:
        """Tell what other threads order by barriers of the program, as these do."""
        if self.by is None or by is None:
            return False
        (first, count), (other, more) = self.by, by
        return first + count <= other or other + more <= first


@dataclass(frozen=True)
class _State:
    """What is known at a point of the program.

    `landing` are buffers that copies under way write to, `unfenced` those, and tensors, that
    threads have written since their last proxy fence, or read where agents write.
    """

    pending: frozenset[_Pending] = frozenset()
    landing: frozenset[str] = frozenset()
    unfenced: frozenset[str] = frozenset()

    def joined(self, other: _State) -> _State:
        return _State(
            self.pending | other.pending,
            self.landing | other.landing,
            self.unfenced | other.unfenced,
        )

    def moved(self, move: Callable[[Box | None, Var], Box | None], counter: Var | None) -> _State:
        """Give the state in another turn of a loop, or after it, as `boxes` moves a part there."""
        parts = (
            replace(each, part=None if counter is None else move(each.part, counter))
            for each in self.pending
        )
        return replace(self, pending=frozenset(parts))


def insert_barriers(program: Program, target: Target) -> Program:
    """Order the statements of kernels that have tiles; others stay as they are."""
    return replace(program, kernels=tuple(_insert(each, target) for each in program.kernels))


def _insert(kernel: Kernel, target: Target) -> Kernel:
    if not any(True for _ in walk_kinds(kernel.body, TileStmt)):
        return kernel
    body, _ = _Insertion(kernel, scene_of(kernel, target)).block(kernel.body, _State())
    return replace(kernel, body=body)


@dataclass
class _Leaving:
    """The states in which the turns of a loop end early."""

    breaks: list[_State] = field(default_factory=list[_State])
    continues: list[_State] = field(default_factory=list[_State])


class _Insertion:
    """Goes through one kernel; `scene` has the threads that execute what it is at."""

    def __init__(self, kernel: Kernel, scene: TileScene) -> None:
        self.scene = scene
        nodes = list(walk(kernel.body))
        self.divergent = divergent(kernel)
        self.barriers = {e.var.name for e in nodes if isinstance(e, AllocateBarriers)}
        # What agents read of memory somewhere, and what they write.
        self.read_by_agents, self.written_by_agents = (
            {
                access.buffer.name
                for each in nodes
                if isinstance(each, Stmt)
                for access in accesses(each)
                if access.by_agent and access.mode == mode
            }
            for mode in ("read", "write")
        )
        self.tensors = {each.name for each in kernel.params if isinstance(each.type, TensorType)}
        self.tensor = {
            each.var.name
            for each in nodes
            if isinstance(each, Allocate) and tensor_type(each.var).space is Space.TMEM
        }
        self.cells = {each.var.name for each in nodes if isinstance(each, Declare)}
        # The buffers that each shares memory with.
        self.same: dict[str, set[str]] = {}
        for each in nodes:
            if isinstance(each, Allocate):
                for other in each.over:
                    self.same.setdefault(each.var.name, set()).add(other.name)
                    self.same.setdefault(other.name, set()).add(each.var.name)
        self.loops: list[_Leaving] = []

    # ---- statements

    def block(self, block: Block, state: _State) -> tuple[Block, _State]:
        """Insert what a block needs; also give the state at its end."""
        found: list[Stmt] = []
        for stmt in block:
            before, new, state = self.statement(stmt, state)
            found += [*before, new]
        return tuple(found), state

    def statement(self, stmt: Stmt, state: _State) -> tuple[Sequence[Stmt], Stmt, _State]:
        """Give what goes before a statement, the statement, and the state after it."""
        if isinstance(stmt, If | For | While):
            # What conflicts inside with what is pending here meets one barrier, before it.
            inside, by = self.inside(stmt), self.ordered_apart(stmt)
            before, state = self.met(inside, state, stmt.location, by)
            if self.parts(stmt):
                if isinstance(stmt, If):
                    stmt = self.apart(stmt, state)
                return before, stmt, self.after(inside, state, by)
            return before, *self.control(stmt, state)
        match stmt:
            case Instruct() if stmt.form == named.CTA_SYNC and as_constant(stmt.operands[0]) == 0:
                return self.fences(state, stmt.location), stmt, _met(state)
            case Instruct() if stmt.form == named.COPIES_WAIT:
                return (), stmt, _landed(state)
            case Break() | Continue() if self.loops:
                leaving = self.loops[-1]
                (leaving.breaks if isinstance(stmt, Break) else leaving.continues).append(state)
                return (), stmt, _State()
            case Return():
                return (), stmt, _State()
            case _:
                pass
        own = self.of(stmt)
        before, state = self.met(own, state, stmt.location)
        return before, stmt, self.begun(stmt, own, state)

    def apart(self, stmt: If, state: _State) -> If:
        """Insert what whole warps need among themselves where only they come."""
        arms: list[Block] = []
        whole, loops = self.scene, self.loops
        for arm, holds in ((stmt.then, True), (stmt.orelse, False)):
            if arm and all_come(whole, stmt.condition, holds):
                # What happened before is ordered; a `break` there is of no loop that all are in.
                self.scene, self.loops = narrowed(whole, stmt.condition, holds), []
                arm, _ = self.block(arm, _State(landing=state.landing))
            arms.append(arm)
        self.scene, self.loops = whole, loops
        return replace(stmt, then=arms[0], orelse=arms[1])

    def ordered_apart(self, stmt: If | For | While) -> _Some | None:
        """Give the threads that come into a branch, if barriers of the program order them there.

        A barrier of the CTA would wait for those that wait, at the program's, for these.
        """
        if not isinstance(stmt, If) or stmt.orelse or not self.parts(stmt):
            return None
        if not any(self.is_own_barrier(each) for each in walk_kinds(stmt.then, Instruct)):
            return None
        inner = narrowed(self.scene, stmt.condition, True)
        return inner.first, inner.threads

    def is_own_barrier(self, stmt: Instruct) -> bool:
        """Tell an instruction on an mbarrier of the program, or on a barrier that has a number."""
        if stmt.form in (named.BARRIER_SYNC, named.BARRIER_ARRIVE):
            return as_constant(stmt.operands[0]) != 0
        return any(isinstance(each, Var) and each.name in self.barriers for each in walk(stmt))

    def control(self, stmt: If | For | While, state: _State) -> tuple[Stmt, _State]:
        """Insert what the blocks of a statement need, which all threads go through together."""
        state = self.after(self.of(stmt), state)
        if isinstance(stmt, If):
            then, after_then = self.block(stmt.then, state)
            orelse, after_else = self.block(stmt.orelse, state)
            return replace(stmt, then=then, orelse=orelse), after_then.joined(after_else)
        body, state = self.turns(stmt, state)
        return replace(stmt, body=body), state

    def turns(self, stmt: For | While, state: _State) -> tuple[Block, _State]:
        """Insert what the body of a loop needs, whatever the turn before has left."""
        counter = stmt.var if isinstance(stmt, For) else None
        while True:
            self.loops.append(_Leaving())
            new, end = self.block(stmt.body, state)
            leaving = self.loops.pop()
            joined = state
            for each in (end, *leaving.continues):
                joined = joined.joined(each.moved(in_earlier_turn, counter))
            if joined == state:
                for each in leaving.breaks:
                    joined = joined.joined(each)
                return new, joined.moved(after_loop, counter)
            state = joined

    # ---- what a statement accesses

    def of(self, stmt: Stmt) -> list[Access]:
        found = [each for each in accesses(stmt) if each.buffer.name not in self.barriers]
        if not isinstance(stmt, TileStmt):
            # What a thread does with a tensor in global memory by itself is the program's own.
            found = [e for e in found if tensor_type(e.buffer).space is not Space.GLOBAL]
        return [*found, *_waits_at(stmt)]

    def inside(self, stmt: Stmt) -> list[Access]:
        return [each for inner in walk_statements(stmt) for each in self.of(inner)]

    def met(
        self,
        own: Iterable[Access],
        state: _State,
        where: Location | None,
        by: _Some | None = None,
    ) -> tuple[Sequence[Stmt], _State]:
        """Give the barrier that accesses need before them, if they do, and the state after it."""
        if not any(self.conflicts(each, state, by) for each in own):
            return (), state
        tensor = any(each.buffer in self.tensor for each in state.pending)
        before = [*self.fences(state, where)]
        before += [_issue(named.TENSOR_FENCE_BEFORE, where)] * tensor
        before.append(self.scene.sync(where))
        before += [_issue(named.TENSOR_FENCE_AFTER, where)] * tensor
        return before, _met(state)

    def fences(self, state: _State, where: Location | None) -> Sequence[Stmt]:
        """Give the fence that orders what threads did before what agents are to do there."""
        needed = state.unfenced & (self.read_by_agents | self.written_by_agents)
        if not needed:
            return []
        everywhere = needed & self.tensors
        fence = named.FENCE_PROXY_ASYNC if everywhere else named.FENCE_PROXY_ASYNC_SHARED
        return [_issue(fence, where)]

    def conflicts(self, access: Access, state: _State, by: _Some | None) -> bool:
        """Tell whether an access has to wait until the threads have met."""
        name, part = access.buffer.name, self.part(access.tile)
        pending = [each for each in state.pending if not each.is_handed_on(by)]
        if access.by_agent and name in state.unfenced:
            return by is None or any(each.buffer == name for each in pending)
        over = self.same.get(name, ())
        return any(
            each.buffer in over
            or (
                each.buffer == name
                and (each.write or access.mode == "write")
                and not apart(each.part, part)
            )
            for each in pending
        )

    def begun(self, stmt: Stmt, own: Iterable[Access], state: _State) -> _State:
        """Give the state once a statement has been carried out."""
        match stmt:
            case CopyTile(way="cp_async", waits=False):
                into = {each.buffer.name for each in own if each.mode == "write"}
                return replace(state, landing=state.landing | into)
            case GemmTile(way="tcgen05") | CopyTile(way="tma", waits=False):
                # All threads wait for its end, or the program does.
                return self.after(_waits_at(stmt), state)
            case CopyTile(way="tma") if stmt.barrier is not None:
                return self.after(_waits_at(stmt), state)
            case _:
                return self.after(own, state)

    def after(self, own: Iterable[Access], state: _State, by: _Some | None = None) -> _State:
        """Add accesses by the threads themselves."""
        made = {_Pending(e.buffer.name, e.mode == "write", self.part(e.tile), by) for e in own}
        touched = {
            each.buffer.name
            for each in own
            if tensor_type(each.buffer).space in (Space.SHARED, Space.GLOBAL)
            and not each.by_agent
            and (each.mode == "write" or each.buffer.name in self.written_by_agents)
        }
        return replace(state, pending=state.pending | made, unfenced=state.unfenced | touched)

    def part(self, tile: Expr) -> Box | None:
        """Give the part of its buffer that a tile is, where that is the same for all threads."""
        return box_of(tile, self.is_steady)

    def is_steady(self, start: Expr) -> bool:
        return not any(
            varies(each, self.divergent) or (isinstance(each, Var) and each.name in self.cells)
            for each in walk(start)
        )

    # ---- where threads part

    def parts(self, stmt: If | For | While) -> bool:
        """Tell whether some threads may go another way than others."""
        return parts(stmt, self.divergent)


def _waits_at(stmt: Stmt) -> list[Access]:
    """Name the mbarrier that all wait at: its next phase may end once all have seen this one."""
    match stmt:
        case GemmTile(way="tcgen05", waits=True) | CopyTile(way="tma", waits=True):
            barrier = None if stmt.barrier is None else root(stmt.barrier)
        case _:
            return []
    if not isinstance(barrier, Var) or stmt.barrier is None:
        return []
    return [Access(barrier, "write", stmt.barrier)]


def _issue(form: Form, where: Location | None) -> Instruct:
    return Instruct(form, (), location=where)


def _met(state: _State) -> _State:
    return _State(landing=state.landing)


def _landed(state: _State) -> _State:
    """Count what copies under way write as written by the threads that wait for them."""
    written = frozenset(_Pending(name, True, None) for name in state.landing)
    return replace(state, pending=state.pending | written, unfenced=state.unfenced | state.landing)
