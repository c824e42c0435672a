"""Branches and loops of a kernel, which some lanes may take and others not.

May import `base`, `isa`, `ir` and the modules of `sim.engine` below it. Where lanes part, either
the others are masked out meanwhile, or, if what they do may suspend, each part is a path of its
own until they meet again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.base.dtypes import UINT32
from tilewright.ir.expressions import Var, as_constant
from tilewright.ir.statements import Block, Break, Continue, For, If, While
from tilewright.ir.types import TensorType
from tilewright.ir.visit import walk
from tilewright.isa.machine import Lanes
from tilewright.passes.analysis.uniformity import leaves_early
from tilewright.sim.engine import context
from tilewright.sim.engine.context import PATH, PATH_HEAD
from tilewright.sim.engine.frame import STOPPED
from tilewright.sim.engine.instructions import Instructions
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.plan import Plan, loop_bounds, used_names


@dataclass
class Loop:
    """The loop around a statement: where its exits lead, or the masks that they change.

    Where they change masks, `empty` is where to go on when a jump has left no lane active: the
    end of the arm of a branch, in which other lanes may take over, or of the body.
    """

    exit: str = ""
    latch: str = ""
    alive: str = ""
    turn: str = ""
    empty: str = ""
    exit_level: int | None = None


class Flow(Instructions, ABC):
    """Emits branches and loops."""

    def __init__(self, module: Module, plan: Plan) -> None:
        super().__init__(module, plan)
        self.loops: list[Loop] = []

    @abstractmethod
    def block(self, block: Block) -> None:
        """Emit statements."""

    # ---- branches

    def _if(self, stmt: If) -> None:
        condition = self.expr(stmt.condition)
        if not self.plan.diverges(stmt):
            self._uniform_if(stmt, condition)
        elif self.plan.suspends(stmt):
            self._parting_if(stmt, condition)
        else:
            self._masked_if(stmt, condition)
        if self.loops and self.loops[-1].turn and leaves_early((stmt,)):
            # Nothing may run while no lane is active.
            on = self.f.new_label("on")
            self.f.branch_if(str((self.active() != 0).value), on, self.loops[-1].empty)
            self.f.label(on)

    def _uniform_if(self, stmt: If, condition: Lanes) -> None:
        condition = self.m.first(condition)
        then, orelse, after = (self.f.new_label(s) for s in ("then", "else", "after"))
        self.f.branch_if(str(condition.value), then, orelse)
        self.f.label(then)
        self.block(stmt.then)
        self.f.branch(after)
        self.f.label(orelse)
        self.block(stmt.orelse)
        self.f.branch(after)
        self.f.label(after)

    def _masked_if(self, stmt: If, condition: Lanes) -> None:
        outer = self.active()
        chosen = self.bits_of(condition)
        for lanes, block in ((outer & chosen, stmt.then), (outer & ~chosen, stmt.orelse)):
            if not block:
                continue
            with self.f.when(str((lanes != 0).value)):
                self.set_mask(lanes)
                self._arm(block)
        # Lanes that left a loop by a jump stay away until the loop's next turn.
        stay = outer
        if self.loops and self.loops[-1].turn:
            stay = outer & self.cell(self.loops[-1].turn)
        self.set_mask(stay)

    def _arm(self, block: Block) -> None:
        """Emit what some lanes do while the others wait."""
        if not self.loops or not self.loops[-1].turn:
            self.block(block)
            return
        loop = self.loops[-1]
        outer, loop.empty = loop.empty, self.f.new_label("empty")
        self.block(block)
        self.f.branch(loop.empty)
        self.f.label(loop.empty)
        loop.empty = outer

    def _parting_if(self, stmt: If, condition: Lanes) -> None:
        after = self.plan.live[id(stmt)]
        lanes = self.active()
        level = self._enter(lanes)
        chosen = lanes & self.bits_of(condition)
        rest = lanes & ~self.bits_of(condition)
        then, orelse, both, one, meet = (
            self.f.new_label(s) for s in ("then", "else", "both", "one", "meet")
        )
        parts = (chosen != 0) & (rest != 0)
        self.f.branch_if(str(parts.value), both, one)
        self.f.label(one)
        self.f.branch_if(str((chosen != 0).value), then, orelse)
        self.f.label(both)
        live = after | self._needs(stmt.orelse) | used_names((stmt.condition,))
        live = frozenset(name for name in live if name in self.variables)
        self._fork(rest, live, orelse)
        self.set_mask(chosen)
        self.f.branch(then)
        self.f.label(then)
        self.block(stmt.then)
        self.f.branch(meet)
        self.f.label(orelse)
        self.block(stmt.orelse)
        self.f.branch(meet)
        self.f.label(meet)
        self._meet(level, after)
        self.level -= 1

    def _needs(self, block: Block) -> frozenset[str]:
        return frozenset(
            node.name
            for node in walk(block)
            if isinstance(node, Var) and not isinstance(node.type, TensorType)
        )

    # ---- lanes that part and meet

    def _enter(self, lanes: Lanes) -> int:
        """Note the lanes that are to meet again at the end of a construct."""
        level = self.level
        self.level += 1
        self.m.set_word("%path", PATH_HEAD + level, lanes)
        return level

    def _fork(self, lanes: Lanes, live: frozenset[str], target: str) -> None:
        """Make a path of some lanes, which begins at a label; this path keeps the others."""
        self._save(live)
        number = self._resume(live, target)
        self.f.emit(f"call void @fork(ptr %ctx, ptr %path, i32 {lanes.value}, i64 {number})")

    def _meet(self, level: int, live: frozenset[str]) -> None:
        """Wait for the lanes that parted at a construct; go on if they are all here."""
        after, wait = self.f.new_label("after"), self.f.new_label("wait")
        live = frozenset(name for name in live if name in self.variables)
        expected = self._low_word(PATH_HEAD + level)
        exited = self._warp_word(context.EXITED_START)
        missing = expected & ~exited & ~self.active()
        self.f.branch_if(str((missing == 0).value), after, wait)
        self.f.label(wait)
        self.m.set_word("%path", PATH["key"], PATH_HEAD + level)
        self._suspend(live, after, "arrive", state=context.JOINING, need=expected, level=level)
        self.f.label(after)
        self.refresh()

    def _return(self) -> None:
        self.f.emit("call void @finish(ptr %ctx, ptr %path)")
        self.f.emit(f"ret i32 {context.FINISHED}")

    # ---- loops

    def _for(self, stmt: For) -> None:
        stop, step = loop_bounds(stmt)
        width = self.width_of(stmt.var)
        self.define(stmt.var.name, self.expr(stmt.start), width)
        for name, bound in ((stop, stmt.stop), (step, stmt.step)):
            value = self.expr(bound)
            self.define(name, value, value.width)

        def condition() -> Lanes:
            counter, limit = self.get(stmt.var.name), self.get(stop)
            known = as_constant(stmt.step)
            if known is not None:
                return counter < limit if known > 0 else counter > limit
            by = self.get(step)
            return self.m.select(by > 0, counter < limit, counter > limit)

        def advance() -> None:
            counter, by = self.get(stmt.var.name), self.get(step)
            following = counter + by
            if as_constant(stmt.step) not in (1, -1):
                # A step beyond the range of the type ends the loop.
                ends = self.m.select(by > 0, following <= counter, following >= counter)
                following = self.m.select(ends, self.get(stop), following)
            self.assign(stmt.var.name, following)

        self._loop(stmt, condition, advance)

    def _while(self, stmt: While) -> None:
        self._loop(stmt, lambda: self.expr(stmt.condition), lambda: None)

    def _loop(
        self, stmt: For | While, condition: Callable[[], Lanes], advance: Callable[[], None]
    ) -> None:
        if self.written is not None:
            self.written.enter(stmt)
        if self.plan.runs_masked(stmt):
            self._masked_loop(stmt, condition, advance)
        elif self.plan.suspends(stmt) and self._parts(stmt):
            self._parting_loop(stmt, condition, advance)
        else:
            self._plain_loop(stmt, condition, advance)

    def _parts(self, stmt: For | While) -> bool:
        return self.plan.diverges(stmt) or self.plan.has_parted_exit(stmt)

    def _plain_loop(
        self, stmt: For | While, condition: Callable[[], Lanes], advance: Callable[[], None]
    ) -> None:
        head, body, latch, after = (self.f.new_label(s) for s in ("head", "body", "latch", "after"))
        self.f.branch(head)
        self.f.label(head)
        self.refresh()
        self.f.branch_if(str(self.m.first(condition()).value), body, after)
        self.f.label(body)
        self.loops.append(Loop(exit=after, latch=latch))
        self.block(stmt.body)
        self.loops.pop()
        self.f.branch(latch)
        self.f.label(latch)
        self.refresh()
        advance()
        if isinstance(stmt, For):
            # With its exit a join, LLVM does not look behind the loop for what precedes it.
            self._count_step(stmt)
            self.f.branch_if(str(self.m.first(condition()).value), body, after)
        else:
            self._back_edge(stmt, head)
        self.f.label(after)
        self.refresh()

    def _masked_loop(
        self, stmt: For | While, condition: Callable[[], Lanes], advance: Callable[[], None]
    ) -> None:
        alive, turn = self.f.slot("i32", 4), self.f.slot("i32", 4)
        outer = self.f.slot("i32", 4)
        start = self.active()
        self.set_cell(outer, start)
        self.set_cell(alive, start)
        head, body, latch, after = (self.f.new_label(s) for s in ("head", "body", "latch", "after"))
        self.f.branch(head)
        self.f.label(head)
        self.set_mask(self.cell(alive))
        going = self.cell(alive) & self.bits_of(condition())
        self.set_cell(alive, going)
        self.set_cell(turn, going)
        self.f.branch_if(str((going != 0).value), body, after)
        self.f.label(body)
        self.set_mask(going)
        self.loops.append(Loop(alive=alive, turn=turn, latch=latch, empty=latch))
        self.block(stmt.body)
        self.loops.pop()
        self.f.branch(latch)
        self.f.label(latch)
        self.set_mask(self.cell(alive))
        advance()
        self._back_edge(stmt, head)
        self.f.label(after)
        self.set_mask(self.cell(outer))

    def _parting_loop(
        self, stmt: For | While, condition: Callable[[], Lanes], advance: Callable[[], None]
    ) -> None:
        after = frozenset(n for n in self.plan.live[id(stmt)])
        inside = (
            after | self._needs((stmt,)) | {*(loop_bounds(stmt) if isinstance(stmt, For) else ())}
        )
        exit_level = self._enter(self.active())
        latch_level = self.level
        self.level += 1
        head, body, latch, leave, both, one, done = (
            self.f.new_label(s) for s in ("head", "body", "latch", "leave", "both", "one", "done")
        )
        self.f.branch(head)
        self.f.label(head)
        self.refresh()
        lanes = self.active()
        self.m.set_word("%path", PATH_HEAD + latch_level, lanes)
        chosen = lanes & self.bits_of(condition())
        rest = lanes & ~chosen
        self.f.branch_if(str(((chosen != 0) & (rest != 0)).value), both, one)
        self.f.label(one)
        self.f.branch_if(str((chosen != 0).value), body, leave)
        self.f.label(both)
        self._fork(rest, frozenset(n for n in inside if n in self.variables), leave)
        self.set_mask(chosen)
        # Those that leave are not expected at the latch of this turn.
        self.m.set_word("%path", PATH_HEAD + latch_level, chosen)
        self.f.branch(body)
        self.f.label(body)
        self.loops.append(Loop(exit=leave, latch=latch, exit_level=exit_level))
        self.block(stmt.body)
        self.loops.pop()
        self.f.branch(latch)
        self.f.label(latch)
        self.refresh()
        self._meet(latch_level, inside)
        advance()
        self._back_edge(stmt, head)
        self.f.label(leave)
        self.refresh()
        self._meet(exit_level, after)
        self.f.branch(done)
        self.f.label(done)
        self.level -= 2

    def _jump(self, stmt: Break | Continue) -> None:
        loop = self.loops[-1]
        if loop.turn:
            gone = ~self.active()
            if isinstance(stmt, Break):
                self.set_cell(loop.alive, self.cell(loop.alive) & gone)
            self.set_cell(loop.turn, self.cell(loop.turn) & gone)
            self.set_mask(self.m.constant(0, UINT32))
            return
        if loop.exit_level is not None:
            # Nobody is to wait for these lanes at the meetings that the jump passes over.
            first = loop.exit_level + (1 if isinstance(stmt, Break) else 2)
            self._leave(first)
        self.f.branch(loop.exit if isinstance(stmt, Break) else loop.latch)
        self.f.label(self.f.new_label("dead"))

    def _leave(self, first: int) -> None:
        words = f"i64 {PATH_HEAD + first}, i64 {PATH_HEAD + self.level}"
        self.f.emit(f"call void @leave(ptr %ctx, ptr %path, {words})")

    def _count_step(self, stmt: For | While) -> None:
        """Count a turn of a loop; the path ends here if the launch must end."""
        left = self.m.field("steps") - 1
        self.m.set_field("steps", left)
        with self.f.when(str((left == 0).value)):
            number = self.module.site(stmt.location, "loop")
            stop = self.f.value(f"call i1 @tick(ptr %ctx, i32 {number})")
            on = self.f.new_label("on")
            self.f.branch_if(stop, STOPPED, on)
            self.f.label(on)

    def _back_edge(self, stmt: For | While, head: str) -> None:
        """Jump back, counting the step; a loop that polls lets others run first."""
        self._count_step(stmt)
        if id(stmt) in self.plan.spinning:
            self.at(stmt, "polling loop")
            live = self.plan.live[id(stmt)] | self._needs((stmt,))
            live = frozenset(name for name in live if name in self.variables)
            self._suspend(live, head, "yield", state=context.POLLING)
            self.f.label(self.f.new_label("dead"))
        self.f.branch(head)
