"""Registers that are touched too early: before the wait for a load, or before any write.

May import `sim.engine` and the modules of `sim.check` below it. A warp has a list of runs of its
frame that loads in flight write to; of more than `state.HELD` runs the last ones are not kept.
What a store takes is its own from the issue on, so its registers may be written at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.isa.machine import Lanes
from tilewright.sim.check import state
from tilewright.sim.check.judge import found
from tilewright.sim.check.kinds import NUMBER
from tilewright.sim.check.raw import SPACE_CODE
from tilewright.sim.check.rows import Routine, naming, routine, run, warp

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_SPAN = "i64 %first, i64 %size, i32 %site"


def _place(f: NativeMachine, number: Lanes) -> Lanes:
    return warp(f) * state.HELD + f.cast(number, UINT32)


def _span(f: NativeMachine) -> tuple[Lanes, Lanes]:
    first = f.cast(f.lanes(UINT64, "%first", 0), UINT32)
    return first, first + f.cast(f.lanes(UINT64, "%size", 0), UINT32)


@routine("check_hold", f"ptr %ctx, {_SPAN}")
def hold(f: NativeMachine) -> None:
    """Note bytes of the frame of the warp that acts, which a load of it writes later."""
    first, end = _span(f)
    count = state.get(f, "held_count", warp(f))
    with f.function.when(str((count < state.HELD).value)):
        place = _place(f, count)
        values = (first, end, f.lanes(UINT32, "%site", 0))
        for name, value in zip(("held_first", "held_end", "held_site"), values, strict=True):
            state.put(f, name, place, value)
        state.put(f, "held_count", warp(f), count + 1)


@routine("check_release_held", "ptr %ctx")
def release(f: NativeMachine) -> None:
    """Forget the loads of the warp that acts: it has waited for them."""
    state.put(f, "held_count", warp(f), 0)


@routine("check_registers", f"ptr %ctx, {_SPAN}, i32 %lanes")
def _touch(f: NativeMachine) -> None:
    """Look for a load that has yet to write what is touched; one is told once."""
    first, end = _span(f)
    lanes = f.lanes(UINT32, "%lanes", 0)
    with f.function.loop(str(f.cast(state.get(f, "held_count", warp(f)), UINT64).value)) as step:
        place = _place(f, f.lanes(UINT64, step, 0))
        hit = (first < state.get(f, "held_end", place)) & (state.get(f, "held_first", place) < end)
        with f.function.when(str(hit.value)):
            owner = warp(f) + state.CELL_LOADS
            old = _entry(f, state.get(f, "held_site", place), owner, f.constant(-1, UINT32))
            new = _entry(f, f.lanes(UINT32, "%site", 0), warp(f), lanes)
            words = (("i32", str(NUMBER["missing-wait"])), ("i64", old), ("i64", new), ("i64", "1"))
            space, size = SPACE_CODE[Space.LOCAL], f.lanes(UINT64, "%size", 0)
            at = f.lanes(UINT64, "%first", 0)
            run(f, found, *words, ("i32", str(space)), ("i64", at), ("i64", size))
            state.put(f, "held_end", place, 0)


@routine("check_unset", "ptr %ctx, i32 %site, i32 %lanes, i32 %kind", seldom=True)
def read_unset(f: NativeMachine) -> None:
    """Record that lanes read a register which nothing has written, or no lane has given."""
    site, lanes, kind = (f.lanes(UINT32, f"%{n}", 0) for n in ("site", "lanes", "kind"))
    new = _entry(f, site, warp(f), lanes)
    words = (("i32", kind), ("i64", "0"), ("i64", new), ("i64", "1"))
    space = SPACE_CODE[Space.LOCAL]
    with naming(f, lanes=lanes):
        run(f, found, *words, ("i32", str(space)), ("i64", "0"), ("i64", "1"))


def _entry(f: NativeMachine, site: Lanes, owner: Lanes, lanes: Lanes) -> Lanes:
    """Say who touches registers and where, as an entry of shadow memory does."""
    one = (lanes & (lanes - 1)) == 0
    step = f.select(one, *(f.constant(s, UINT64) for s in (state.ONE_LANE, state.ANY_LANE)))
    place = f.cast(f.binary("min", site, f.constant(state.MOST_SITES, UINT32)), UINT64)
    entry = (f.cast(owner, UINT64) << state.OWNER_SHIFT) | (place << state.SITE_SHIFT)
    lane = f.cast(f.lowest(lanes) & 31, UINT64)
    return entry | (lane << state.LANE_SHIFT) | (step << state.STEP_SHIFT)


def touch(m: NativeMachine, first: Lanes, size: int, site: int) -> None:
    """Watch registers being read or written, while a load is in flight."""
    with m.function.when(str((state.get(m, "held_count", warp(m)) != 0).value)):
        _run(m, _touch, first, size, site, ("i32", m.active()))


def hold_run(m: NativeMachine, first: Lanes, size: int, site: int) -> None:
    """Watch registers from here on until the warp waits."""
    _run(m, hold, first, size, site)


def _run(
    m: NativeMachine,
    called: Routine,
    first: Lanes,
    size: int,
    site: int,
    *more: tuple[str, Lanes | str],
) -> None:
    words = (("i64", m.cast(first, UINT64)), ("i64", str(size)), ("i32", str(site)))
    run(m, called, *words, *more)
