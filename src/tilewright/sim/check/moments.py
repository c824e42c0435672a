"""Moments: what a warp knew when it touched global memory, or signalled there, kept for later.

May import `sim.engine` and the modules of `sim.check` below it. CTAs are held against one another
after the launch, and what a warp knows by then has changed. So rows of clocks are put into a table
of the CTA, each once while it stays the same. Where the table is full nothing is kept any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32
from tilewright.isa.machine import Lanes
from tilewright.sim.check import rows, state
from tilewright.sim.check.lanes import hand_on
from tilewright.sim.check.rows import end_if, routine

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

NUMBER_BITS, TICK_BITS = 12, 20
UNKNOWN = (1 << NUMBER_BITS) - 1  # stands for a moment that was not kept
assert state.MOMENTS < UNKNOWN and state.MOST_TICKS < 1 << TICK_BITS


def close(f: NativeMachine) -> None:
    """Keep nothing from now on, and note in which turn of the CTA that was."""
    state.put(f, "cut", 0, state.get(f, "turn") + 1)


def _row(f: NativeMachine, index: Lanes) -> str:
    words = f.cast(index, UINT32) * state.ROW
    return state.clock_at(f, f.pointer("check_moments"), words)


def _put(f: NativeMachine, row: str, place: Lanes, value: Lanes) -> None:
    f.function.emit(f"store i32 {value.value}, ptr {state.clock_at(f, row, place)}")


@routine("check_moment", "ptr %ctx, i32 %lanes", "i32")
def moment(f: NativeMachine) -> None:
    """Give the number of the row of what lanes of the warp that acts know now."""
    end_if(f, state.get(f, "cut") != 0, f"i32 {UNKNOWN}")
    lanes, index, tick = f.lanes(UINT32, "%lanes", 0), rows.warp(f), state.now(f)
    ahead = f.select(rows.knows_ahead(f, lanes), f.constant(1, UINT32), f.constant(0, UINT32))
    place = index * 2 + ahead
    last = state.get(f, "moment", place)
    end_if(f, state.get(f, "moment_tick", place) == tick, f"i32 {(last - 1).value}")
    count = state.get(f, "moment_count")
    full = count >= state.MOMENTS
    with f.function.when(str(full.value)):
        close(f)
    end_if(f, full, f"i32 {UNKNOWN}")
    row = _row(f, f.cast(count, UINT32))
    rows.copy_out(f, row, rows.acting_row(f, lanes))
    # Of its own warp a lane knows what was done before the warp, or some lanes of it, have met;
    # here all that have met count as one set, as the row is of them all.
    _put(f, row, index, state.get(f, "sync_tick", index))
    met, more = (state.get(f, name, index) for name in ("met_lanes", "more_lanes"))
    when = state.get(f, "met_tick", index)
    later = f.binary("max", when, state.get(f, "more_tick", index))
    _put(f, row, index + state.PART_TICK, f.select(more != 0, later, when))
    _put(f, row, index + state.PART_LANES, met | more)
    state.put(f, "moment_tick", place, tick)
    with f.function.when(str((last != 0).value)):
        alike = rows.alike(f, row, _row(f, last - 1))
        end_if(f, alike, f"i32 {(last - 1).value}")
    floor = f.select(ahead != 0, *(state.get(f, n, index) for n in ("ahead_floor", "floor")))
    state.put(f, "moment_floor", count, floor)
    state.put(f, "moment_count", 0, count + 1)
    state.put(f, "moment", place, f.cast(count + 1, UINT32))
    f.function.emit(f"ret i32 {f.cast(count, UINT32).value}")


@routine("check_handed", "ptr %ctx, i32 %lanes", "i32")
def handed(f: NativeMachine) -> None:
    """Give the number of a new row of what a release by lanes of the warp that acts hands on."""
    count = state.get(f, "moment_count")
    full = (count >= state.MOMENTS) | (state.get(f, "cut") != 0)
    with f.function.when(str((full & (state.get(f, "cut") == 0)).value)):
        close(f)
    end_if(f, full, f"i32 {UNKNOWN}")
    row, lanes = _row(f, f.cast(count, UINT32)), f.lanes(UINT32, "%lanes", 0)
    rows.copy_out(f, row, rows.acting_row(f, lanes))
    hand_on(f, row, lanes)
    state.put(f, "moment_count", 0, count + 1)
    f.function.emit(f"ret i32 {f.cast(count, UINT32).value}")


@routine("check_hand_more", "ptr %ctx, i32 %number, i32 %lanes")
def hand_more(f: NativeMachine) -> None:
    """Add to such a row what further lanes hand on."""
    hand_on(f, _row(f, f.lanes(UINT32, "%number", 0)), f.lanes(UINT32, "%lanes", 0))
