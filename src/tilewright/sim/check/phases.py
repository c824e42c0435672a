"""Phases of an mbarrier: whether a wait may be for another one than it is meant for.

May import `sim.engine` and the modules of `sim.check` below it. A wait tells phases apart by
their parity, so it is sure of its own as long as two things are: the phase before has ended when
it begins, else it may return at once; and the next one cannot end until it has looked, else it
may wait for ever. Both are orders of clocks, whatever the run has shown. What waits or arrives
without an order of memory leaves no clocks, so that from there on neither is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.isa import mbarrier
from tilewright.isa.machine import Lanes
from tilewright.sim.check import accesses, clocks, protocols, rows, state
from tilewright.sim.check.rows import WIDTH, end_if, routine, run

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine


def loosen(f: NativeMachine) -> None:
    """Note that threads wait or arrive in an order that clocks do not have."""
    state.put(f, "loose", 0, 1)


def _is_known(f: NativeMachine, place: Lanes, address: Lanes) -> Lanes:
    """Tell whether the clocks of an mbarrier say all that there is to know of its phases."""
    own = state.get(f, "slot_address", place) == f.cast(address, UINT32)
    alone = state.get(f, "slot_count") <= state.SLOTS
    return own & alone & (state.get(f, "loose") == 0)


@routine("check_born", "ptr %ctx, i32 %address")
def begin(f: NativeMachine) -> None:
    """Have an mbarrier begin with the phase before the first: nobody has waited for any yet."""
    place = clocks.slot(f, f.lanes(UINT32, "%address", 0))
    for name in ("slot_ended", "slot_before"):
        state.put(f, name, place, 0)
    zero = f.lanes(UINT32, f.spread(f.constant(0, UINT32), WIDTH), WIDTH)
    for start in range(0, state.WARPS, WIDTH):
        rows.set_chunk(f, state.at(f, "waited", place * state.WARPS + start), 0, zero)


# ---------------------------------------------------------------------------- waits


@routine("check_look_at_phase", "ptr %ctx, i32 %address, i32 %lanes, i32 %site")
def look(f: NativeMachine) -> None:
    """See that lanes whose wait succeeds know of the phase before, and note that they have looked.

    Who has waited for that phase, or for this one before, knows of it.
    """
    address, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("address", "lanes", "site"))
    place = clocks.slot(f, address)
    index = place * state.WARPS + rows.warp(f)
    unseen = state.get(f, "waited", index) < state.get(f, "slot_before", place)
    with f.function.when(str((unseen & _is_known(f, place, address)).value)):
        known = protocols.knows(f, state.at(f, "before_row", place), of_all=True)
        with f.function.when(str((~known).value)):
            who = protocols.entry(f, lanes, site)
            none = f.constant(0, UINT64)
            protocols.tell(f, "mbarrier-phase/early", none, who, address, mbarrier.BYTES)
    # With the phase before the first, which ends as the mbarrier is made, nothing has ended yet.
    idle = state.get(f, "slot_ended", place) <= state.get(f, "waited", index)
    idle = idle | (state.get(f, "slot_before", place) == 0)
    wait = f.select(idle, protocols.entry(f, lanes, site), f.constant(0, UINT64))
    state.put(f, "idle_wait", rows.warp(f), wait)
    state.put(f, "waited", index, state.now(f))
    state.put(f, "waiting_lanes", index, lanes)
    state.put(f, "waiting_site", index, site)


# ---------------------------------------------------------------------------- ends of phases


@routine("check_phase_before", "ptr %ctx, i32 %address")
def keep(f: NativeMachine) -> None:
    """Keep what the last phase of an mbarrier has told, as another one ends now."""
    place = clocks.slot(f, f.lanes(UINT32, "%address", 0))
    state.put(f, "slot_before", place, state.get(f, "slot_ended", place))
    to, last = state.at(f, "before_row", place), state.at(f, "slot_row", place * 2 + 1)
    run(f, rows.copy, ("ptr", to), ("ptr", last))


@routine("check_overtaken", "ptr %ctx, i32 %address")
def complete(f: NativeMachine) -> None:
    """See that all who have waited for the phase before have looked before this one could end."""
    address = f.lanes(UINT32, "%address", 0)
    place = clocks.slot(f, address)
    end_if(f, ~_is_known(f, place, address) | (state.get(f, "slot_last", place) == 0))
    arrived = state.at(f, "slot_row", place * 2)
    missing = f.constant(0, UINT32)
    for start in range(0, state.WARPS, WIDTH):
        looked = rows.chunk(f, state.at(f, "waited", place * state.WARPS + start), 0)
        # Lanes that wait together have looked together.
        known = (rows.chunk(f, arrived, part + start) for part in (0, state.PART_TICK))
        bits = f.op(f"bitcast <{WIDTH} x i1> {(looked > f.binary('max', *known)).value} to i16")
        missing = missing | (f.lanes(UINT32, f.op(f"zext i16 {bits} to i32"), 0) << start)
    remaining = f.function.slot("i32", 4)
    f.function.emit(f"store i32 {missing.value}, ptr {remaining}")
    with accesses.each_bit(f, remaining) as warp:
        _tell_overtaken(f, place, address, warp)


def _tell_overtaken(f: NativeMachine, place: Lanes, address: Lanes, warp: Lanes) -> None:
    """Record that a phase may end before a warp has looked; from there on it counts as ordered."""
    index = place * state.WARPS + warp
    tick, lanes, site = (
        state.get(f, name, index) for name in ("waited", "waiting_lanes", "waiting_site")
    )
    waiter = protocols.entry(f, lanes, site, warp)
    last = state.get(f, "slot_last", place)
    protocols.tell_for(f, "mbarrier-phase/overtaken", waiter, last, address)
    for half in range(2):
        state.set_clock(f, state.at(f, "slot_row", place * 2 + half), warp, tick)
