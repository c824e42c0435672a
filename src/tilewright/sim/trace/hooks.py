"""The recorder of timelines as an observer of the engine: which events are written, and when.

May import `base`, `isa`, `sim.engine` and `sim.trace.events`. What an event has beside its time,
place and lanes:

    turn       1 + the warp whose path goes on, or 0 where an operation in flight does
    issue      of an instruction that waits: kind of the wait, its key, its detail
    block      alike, when it begins to wait
    queue      number of the operation, its mbarrier
    land, take number of the operation
    mbarrier   its address, its eight bytes
    complete   kind of the barrier, its number, how often it has completed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.isa.declaration import Form, Order
from tilewright.isa.machine import Lanes
from tilewright.sim.engine.context import PATH, WAITS
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.observer import Observer
from tilewright.sim.trace import events
from tilewright.sim.trace.events import KINDS

_PLAIN = Order()


def has_place_in_time(form: Form) -> bool:
    """Tell the instructions that a timeline shows: those with a time, a wait or an order."""
    declaration = form.declaration
    timed = bool(form.time.agent or form.time.completes)
    # Without operands there is nothing but state of the machine to act on.
    commits = declaration.volatile and not form.operands
    return timed or declaration.wait is not None or form.order != _PLAIN or commits


class Tracer(Observer):
    """Has a kernel write down what it does."""

    def __init__(self, module: Module) -> None:
        # Not among the scheduler's functions, which are any kernel's.
        events.emit(module)
        self._holds: Lanes | None = None

    def accesses(
        self, m: NativeMachine, space: Space, address: Lanes, size: int, *, write: bool
    ) -> None:
        """Count an access as a unit of time."""
        _tick(m)

    def arrives(self, m: NativeMachine, form: Form, operands: Sequence[Lanes]) -> None:
        """Note that an instruction has arrived where it may have to wait."""
        _tick(m)
        _note(m, "arrive")
        _waits_no_more(m)

    def issues(self, m: NativeMachine, form: Form, operands: Sequence[Any]) -> None:
        """Note an instruction; if it waits, that what it has waited for holds.

        To give up takes no time: a path that does so in a loop just goes on waiting.
        """
        wait = form.declaration.wait
        if wait is None:
            _tick(m)
            if has_place_in_time(form):
                _note(m, "issue")
                _waits_no_more(m)
            return
        assert self._holds is not None
        ends = m.constant(True, BOOL) if wait.kind == "time" else self._holds
        with m.function.when(str(ends.value)):
            _tick(m)
            kind, key = wait.awaits(m, form, *operands)
            detail = m.constant(0, UINT32)
            if wait.detail is not None:
                detail = wait.detail(m, form, *operands)
            _note(m, "issue", _waiting(m, kind), key, detail)
            _waits_no_more(m)

    def blocks(self, m: NativeMachine, kind: str, key: Lanes, detail: Lanes) -> None:
        """Note that a path begins to wait; that it still does is nothing new."""
        site = m.lanes(UINT32, m.site, 0)
        known = m.get_word("%path", PATH["wait"]) == WAITS.index(kind)
        known = known & (m.cast(m.get_word("%path", PATH["site"]), UINT32) == site)
        with m.function.when(str((~known).value)):
            _note(m, "block", _waiting(m, kind), key, detail)

    def passes(self, m: NativeMachine, holds: Lanes) -> None:
        """Remember for `issues`, which comes next, whether what is waited for holds."""
        self._holds = holds

    def queues(self, m: NativeMachine, form: Form, number: Lanes, barrier: Lanes) -> None:
        """Note that an operation begins."""
        _note(m, "queue", number, barrier)

    def lands(self, f: NativeMachine, number: Lanes, record: str) -> None:
        """Note that an operation ends."""
        _of_agent(f, "land", number)

    def takes(self, f: NativeMachine, number: Lanes) -> None:
        """Note that an operation has read its source."""
        _of_agent(f, "take", number)

    def updates_mbarrier(self, m: NativeMachine, barrier: Lanes, word: Lanes) -> None:
        """Note what an mbarrier becomes."""
        _note(m, "mbarrier", barrier, word)

    def completes(self, m: NativeMachine, kind: str, key: Lanes, count: Lanes) -> None:
        """Note that a barrier completes, if it does."""
        if kind == "barrier":
            before = m.barrier_state(key, "generation")
        else:
            before = m.cluster_state("generation")
        with m.function.when(str((before != count).value)):
            _note(m, "complete", _waiting(m, kind), key, count)

    def exits(self, f: NativeMachine, lanes: Lanes) -> None:
        """Note that lanes return."""
        _note(f, "exit", lanes)


def _waits_no_more(m: NativeMachine) -> None:
    """Have the next wait of the path be a new one."""
    m.set_word("%path", PATH["wait"], WAITS.index("none"))


def _waiting(m: NativeMachine, kind: str) -> Lanes:
    return m.constant(WAITS.index(kind), UINT64)


def _of_agent(f: NativeMachine, kind: str, number: Lanes) -> None:
    f.function.emit("call void @trace_tick(ptr %ctx, i64 0)")
    _note(f, kind, number)


def _tick(m: NativeMachine) -> None:
    turn = m.field("warp") + 1
    m.function.emit(f"call void @trace_tick(ptr %ctx, i64 {turn.value})")


def _note(m: NativeMachine, kind: str, *words: Lanes) -> None:
    given = [*words, *[m.constant(0, UINT64)] * (3 - len(words))]
    values = [str(m.cast(m.first(each), UINT64).value) for each in given]
    lanes = "0" if m.mask is None else str(m.active().value)
    listed = ", ".join(f"i64 {each}" for each in values)
    m.function.emit(
        f"call void @trace_note(ptr %ctx, i64 {KINDS.index(kind)}, i32 {m.site}, "
        f"i32 {lanes}, {listed})"
    )
