"""Exits: copies out of shared memory that have not read it when their CTA ends.

May import `sim.engine` and the modules of `sim.check` below it. What was not waited for may be
read after the memory has become another CTA's; that its writes are complete nobody has to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.isa.machine import Lanes
from tilewright.sim.check import rows, state
from tilewright.sim.check.judge import found
from tilewright.sim.check.kinds import NUMBER
from tilewright.sim.check.raw import SPACE_CODE
from tilewright.sim.check.rows import end_if, routine, run

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

KIND = "missing-wait/exit"


@routine("check_taken", "ptr %ctx, i64 %address, i64 %size, i32 %lanes, i32 %site")
def _reads(f: NativeMachine) -> None:
    index = rows.warp(f)
    size = f.lanes(UINT64, "%size", 0)
    end_if(f, size == 0)
    state.put(f, "stored_tick", index, state.now(f))
    state.put(f, "stored_site", index, f.lanes(UINT32, "%site", 0))
    state.put(f, "stored_lanes", index, f.lanes(UINT32, "%lanes", 0))
    state.put(f, "stored_address", index, f.lanes(UINT64, "%address", 0))
    state.put(f, "stored_size", index, size)


def reads(m: NativeMachine, address: Lanes, size: Lanes, lanes: Lanes) -> None:
    """Note that an operation which a group is to tell of reads shared memory."""
    words = [("i64", m.cast(each, UINT64)) for each in (address, size)]
    run(m, _reads, *words, ("i32", lanes), ("i32", m.site))


@routine("check_stored", "ptr %ctx", seldom=True)
def finish(f: NativeMachine) -> None:
    """See that of each warp the last such operation was waited for."""
    end_if(f, f.field("error") != 0)
    with f.function.loop(str(state.WARPS)) as counter:
        index = f.cast(f.lanes(UINT64, counter, 0), UINT32)
        tick, owner = state.get(f, "stored_tick", index), index + state.BULK_READS
        common, own = (
            state.clock(f, state.at(f, name, index), owner) for name in ("warp_row", "ahead_row")
        )
        ahead = state.get(f, "ahead_lanes", index) != 0
        known = f.select(ahead, f.binary("max", common, own), common)
        with f.function.when(str((tick > known).value)):
            _tell(f, index, owner, tick)


def _tell(f: NativeMachine, index: Lanes, owner: Lanes, tick: Lanes) -> None:
    lane = f.lowest(state.get(f, "stored_lanes", index)) & 31
    most = f.constant(state.MOST_SITES, UINT32)
    site = f.binary("min", state.get(f, "stored_site", index), most)
    step = f.constant(state.ONE_LANE, UINT32)
    entry = f.constant(state.BYTES, UINT64)
    for value, shift in (
        (tick, state.TICK_SHIFT),
        (owner, state.OWNER_SHIFT),
        (lane, state.LANE_SHIFT),
        (step, state.STEP_SHIFT),
        (site, state.SITE_SHIFT),
    ):
        entry = entry | (f.cast(value, UINT64) << shift)
    f.set_field("warp", f.cast(index, UINT64))
    words = (f.constant(0, UINT64), entry, f.constant(state.BYTES, UINT64))
    where = (state.get(f, "stored_address", index), state.get(f, "stored_size", index))
    run(
        f,
        found,
        ("i32", str(NUMBER[KIND])),
        *(("i64", each) for each in words),
        ("i32", str(SPACE_CODE[Space.SHARED])),
        *(("i64", each) for each in where),
    )
