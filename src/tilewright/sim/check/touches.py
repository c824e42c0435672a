"""Accesses by one address, wherever it leads: held against the buffer that it is computed from.

May import `sim.engine` and the modules of `sim.check` below it. They are functions, as what an
instruction reads of a tensor map is many of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import Lanes
from tilewright.sim.check import accesses, regions, state, strays
from tilewright.sim.check.rows import Routine, routine, run
from tilewright.sim.check.shadow import Access
from tilewright.sim.engine import context

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_ACTOR = ("lanes", "site", "owner", "flags")
_SPAN = ("low", "room")
_RUN = f"i64 %address, i64 %size, {Access.PARAMETERS}, i32 %low, i32 %room, i1 %strong"


def pattern(f: NativeMachine, lanes: Lanes, strong: Lanes) -> Lanes:
    """Say whose bytes a run of them are, as in an entry of shadow memory."""
    alone, many = (
        f.select(strong, *(f.constant(each, UINT64) for each in steps))
        for steps in ((state.ATOMIC, state.ONE_LANE), (state.ANY_ATOMIC, state.ANY_LANE))
    )
    step = f.select((lanes & (lanes - 1)) == 0, alone, many)
    lane = f.cast(f.lowest(lanes) & 31, UINT64) << state.LANE_SHIFT
    return lane | (step << state.STEP_SHIFT)


def _shared(writes: bool) -> Routine:
    """Give the function for a run of shared memory that must not leave its buffer."""

    def body(f: NativeMachine) -> None:
        address, size = (f.lanes(UINT64, f"%{n}", 0) for n in ("address", "size"))
        actor = [f.lanes(UINT32, f"%{n}", 0) for n in _ACTOR]
        low, room = (f.lanes(UINT32, f"%{n}", 0) for n in _SPAN)
        good = strays.is_within(f, (low, room), address, size, actor[0], actor[1])
        with f.function.when(str(good.value)):
            whose = pattern(f, actor[0], f.lanes(BOOL, "%strong", 0))
            words = (("i64", address), ("i64", size), ("i64", whose))
            run(f, accesses.RUNS[writes], *words, *(("i32", each) for each in actor))

    return routine(f"check_{'write' if writes else 'read'}_within", f"ptr %ctx, {_RUN}")(body)


SHARED = {writes: _shared(writes) for writes in (False, True)}


def _generic(writes: bool) -> Routine:
    """Give the function for a run of global or of shared memory, which `how` is of the former."""

    def body(f: NativeMachine) -> None:
        address, size, how = (f.lanes(UINT64, f"%{n}", 0) for n in ("address", "size", "how"))
        actor = [("i32", f.lanes(UINT32, f"%{n}", 0)) for n in (*_ACTOR, *_SPAN)]
        run(f, regions.RUN, ("i64", address), ("i64", size), ("i64", how), *actor[:3])
        start = address - context.SHARED_WINDOW
        run(f, SHARED[writes], ("i64", start), ("i64", size), *actor, ("i1", "%strong"))

    name = f"check_{'write' if writes else 'read'}_generic"
    return routine(name, f"ptr %ctx, {_RUN}, i64 %how")(body)


GENERIC = {writes: _generic(writes) for writes in (False, True)}
