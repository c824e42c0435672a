"""What lanes of a warp hand on, and when the others of their warp know of it.

May import `sim.engine` and the modules of `sim.check` below it. A row says of a warp as a whole
what is known: what its lanes do by themselves, be it an access, a fence or a wait for copies, all
know once the warp has synchronised. Of what is since then a release by all lanes that have done
something hands on everything; one by some hands on what these have done, as a *part* of the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import state
from tilewright.sim.check.rows import (
    acting_row,
    advance,
    alive,
    copy,
    each_bit,
    end_if,
    find_floors,
    join,
    knows_ahead,
    routine,
    run,
    warp,
)

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine


def note(f: NativeMachine, lanes: Lanes) -> None:
    """Note which lanes of the warp that acts do something of which the others do not know."""
    state.put(f, "acted", warp(f), state.get(f, "acted", warp(f)) | lanes)


def are_all(f: NativeMachine, lanes: Lanes) -> Lanes:
    """Tell whether nobody else has done anything since the warp has synchronised."""
    return (state.get(f, "acted", warp(f)) & ~lanes) == 0


# ---------------------------------------------------------------------------- handing on


@routine("check_own", "ptr %ctx, ptr %to, i32 %lanes")
def _own(f: NativeMachine) -> None:
    """Let a row know what lanes have done that the warp as a whole does not know of yet."""
    lanes, index, tick = f.lanes(UINT32, "%lanes", 0), warp(f), state.now(f)
    fenced, none = state.get(f, "part_lanes", index), f.constant(0, UINT32)
    seen = state.get(f, "part_tick", index)
    whole = are_all(f, lanes)
    with f.function.when(str(whole.value)):
        _all_done(f, "%to", index, tick)
        # Some have shown the proxy what they have done, and others have not.
        some = (fenced != 0) & (state.get(f, "dirty", index) != 0)
        with f.function.when(str(some.value)):
            _enter_part(f, index, fenced, (tick, seen, none))
    end_if(f, whole)
    # Lanes that have met know of one another.
    sets = [state.get(f, name, index) for name in ("met_lanes", "more_lanes")]
    for met in [f.select((met & lanes) != 0, met, none) for met in sets]:
        lanes = lanes | met
    seen = f.select((lanes & ~fenced) == 0, seen, none)
    waited = state.get(f, "copies_lanes", index)
    copies = f.select((lanes & ~waited) == 0, state.get(f, "copies_tick", index), none)
    _enter_part(f, index, lanes, (tick, seen, copies))


def _enter_part(f: NativeMachine, index: Lanes, lanes: Lanes, ticks: tuple[Lanes, ...]) -> None:
    """Let the row `%to` know of lanes: up to when, what the proxy sees, and of which copies."""
    places = (state.PART_TICK, state.PART_SEEN, state.PART_COPIES)
    place = index + state.PART_LANES
    # What is older than what is known of the warp as a whole says nothing any more.
    before, others = (state.clock(f, "%to", each) for each in (index + state.PART_TICK, place))
    others = f.select(before >= state.clock(f, "%to", index), others, f.constant(0, UINT32))
    text = (lanes | others).value
    f.function.emit(f"store i32 {text}, ptr {state.clock_at(f, '%to', place)}")
    state.use(f, place)
    for part, tick in zip(places, ticks, strict=True):
        state.set_clock(f, "%to", index + part, tick)


def _all_done(f: NativeMachine, row: str, index: Lanes, tick: Lanes) -> None:
    """Let a row know of all that lanes of the warp that acts have done by themselves."""
    state.set_clock(f, row, index, tick)
    for owner, area in (
        (state.COPIES, "copies_tick"),
        (state.SEEN, "fence_tick"),
        (state.SEEN_COPIES, "fence_copies"),
    ):
        state.set_clock(f, row, index + owner, state.get(f, area, index))


def hand_on(f: NativeMachine, to: str, lanes: Lanes, *, anew: bool = False) -> None:
    """Let a row know what lanes of the warp that acts know and have done; nothing else, if new."""
    run(f, copy if anew else join, ("ptr", to), ("ptr", acting_row(f, lanes)))
    some = (state.get(f, "ahead_lanes", warp(f)) & lanes) != 0
    with f.function.when(str((some & ~knows_ahead(f, lanes)).value)):
        run(f, join, ("ptr", to), ("ptr", state.at(f, "ahead_row", warp(f))))
    run(f, _own, ("ptr", to), ("i32", lanes))


# ---------------------------------------------------------------------------- meeting


@routine("check_sync", "ptr %ctx, i32 %lanes")
def synchronise(f: NativeMachine) -> None:
    """Let lanes of the warp that acts know of one another: they have met."""
    lanes, index = f.lanes(UINT32, "%lanes", 0), warp(f)
    ahead, before = (state.get(f, name, index) for name in ("ahead_lanes", "sync_tick"))
    everyone = (alive(f) & ~lanes) == 0
    with f.function.when(str((~everyone).value)):
        _meet(f, index, lanes, ahead)
    # Where nothing has been done since the last time there is nothing to know.
    done = (ahead | state.get(f, "acted", index)) != 0
    end_if(f, ~everyone | (~done & (state.get(f, "last", index) <= before)))
    row = state.at(f, "warp_row", index)
    tick = state.now(f)
    _all_done(f, row, index, tick)
    with f.function.when(str((ahead != 0).value)):
        run(f, join, ("ptr", row), ("ptr", state.at(f, "ahead_row", index)))
        state.put(f, "ahead_lanes", index, 0)
        find_floors(f)
    # The floor stays where it is: what the warp itself has done is quickly known by its row.
    state.put(f, "sync_tick", index, tick)
    for area in ("acted", "met_lanes", "more_lanes", "copies_lanes"):
        state.put(f, area, index, 0)
    with f.function.when(str((state.get(f, "dirty", index) == 0).value)):
        state.put(f, "part_lanes", index, 0)
    advance(f)


def _meet(f: NativeMachine, index: Lanes, lanes: Lanes, ahead: Lanes) -> None:
    """Note that some lanes have met; of sets that differ two are told apart, the rest are one."""
    none, since, now = f.constant(0, UINT32), state.get(f, "sync_tick", index), state.now(f)
    places = ("met_tick", "met_lanes"), ("more_tick", "more_lanes")
    ticks = [state.get(f, tick, index) for tick, _ in places]
    first, second = (
        f.select(tick > since, state.get(f, name, index), none)
        for tick, (_, name) in zip(ticks, places, strict=True)
    )
    meets_first, meets_second = ((each & lanes) != 0 for each in (first, second))
    other = ~meets_first & (meets_second | ((first != 0) & (second == 0)))
    both = meets_first & meets_second
    sets = (
        f.select(other, first, first | lanes | f.select(both, second, none)),
        f.select(other, second | lanes, f.select(both, none, second)),
    )
    when = f.select(other, ticks[0], now), f.select(other, now, ticks[1])
    for (tick, name), members, last in zip(places, sets, when, strict=True):
        state.put(f, name, index, members)
        state.put(f, tick, index, last)
    state.put(f, "ahead_lanes", index, f.select((ahead & lanes) != 0, ahead | lanes, ahead))
    advance(f)


@routine("check_sync_groups", f"ptr %ctx, <{WARP} x i32> %members, i32 %lanes", seldom=True)
def _synchronise_groups(f: NativeMachine) -> None:
    """Let lanes meet that come together in groups, each lane with the set of its own."""
    members, lanes = f.lanes(UINT32, "%members", WARP), f.lanes(UINT32, "%lanes", 0)
    remaining = f.function.slot("i32", 4)
    f.function.emit(f"store i32 %lanes, ptr {remaining}")
    with each_bit(f, remaining) as lane:
        group = f.pick(members, lane) & lanes
        with f.function.when(str((f.lowest(group) == lane).value)):
            run(f, synchronise, ("i32", group))


def meet(m: NativeMachine, members: Lanes) -> None:
    """Let the active lanes meet, all or each with those that it names."""
    lanes = m.active()
    if members.width:
        run(m, _synchronise_groups, (f"<{WARP} x i32>", members), ("i32", lanes))
    else:
        run(m, synchronise, ("i32", lanes))


# ---------------------------------------------------------------------------- waits and fences


def wait_for_copies(f: NativeMachine, tick: Lanes, lanes: Lanes) -> None:
    """Note that lanes have waited for copies: each for its own."""
    index = warp(f)
    done = f.binary("max", state.get(f, "copies_tick", index), tick)
    state.put(f, "copies_tick", index, done)
    state.put(f, "copies_lanes", index, state.get(f, "copies_lanes", index) | lanes)
    note(f, lanes)


def fence(f: NativeMachine, lanes: Lanes) -> None:
    """Note that lanes have shown the asynchronous proxy what they have done.

    Once all that did something have, the warp has.
    """
    index, tick = warp(f), state.now(f)
    left = state.get(f, "dirty", index) & ~lanes
    known = state.clock(f, acting_row(f, lanes), index + state.COPIES)
    copies = f.binary("max", known, state.get(f, "copies_tick", index))
    with f.function.when(str((left == 0).value)):
        state.put(f, "fence_tick", index, tick)
        state.put(f, "fence_copies", index, copies)
    state.put(f, "dirty", index, left)
    state.put(f, "part_lanes", index, state.get(f, "part_lanes", index) | lanes)
    state.put(f, "part_tick", index, tick)
    state.put(f, "part_copies", index, copies)
    note(f, lanes)
