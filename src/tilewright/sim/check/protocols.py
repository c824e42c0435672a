"""Protocols: how mbarriers are initialised and arrived at, and who arrives at named barriers.

May import `isa`, `sim.engine` and the modules of `sim.check` below it. What the engine itself
refuses is no matter of this module: here is what runs on, and is wrong all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.isa import mbarrier
from tilewright.isa.machine import Lanes
from tilewright.sim.check import clocks, rows, state
from tilewright.sim.check.judge import found, owner_of
from tilewright.sim.check.kinds import NUMBER
from tilewright.sim.check.lines import settle
from tilewright.sim.check.raw import SPACE_CODE
from tilewright.sim.check.rows import Routine, ask, end_if, routine, run
from tilewright.sim.engine import context

if TYPE_CHECKING:
    from tilewright.sim.check.watch import WatchMachine
    from tilewright.sim.engine.native import NativeMachine

_WORD_BYTES = mbarrier.BYTES
# What an mbarrier is: one, or one of whose arrivals something has been told.
_LIVE, _TOLD = 1, 2


def entry(f: NativeMachine, lanes: Lanes, site: Lanes, warp: Lanes | None = None) -> Lanes:
    """Say who acts and where, as an entry of shadow memory does: the warp, and its lowest lane."""
    who = rows.warp(f) if warp is None else warp
    most = f.constant(state.MOST_SITES, UINT32)
    place = f.cast(f.binary("min", site, most), UINT64) << state.SITE_SHIFT
    lane = f.cast(f.lowest(lanes) & 31, UINT64) << state.LANE_SHIFT
    one = (lanes & (lanes - 1)) == 0
    steps = (f.constant(each, UINT64) for each in (state.ONE_LANE, state.ANY_LANE))
    step = f.select(one, next(steps), next(steps)) << state.STEP_SHIFT
    return place | lane | step | (f.cast(who, UINT64) << state.OWNER_SHIFT)


def tell(
    f: NativeMachine,
    kind: str,
    old: Lanes,
    new: Lanes,
    address: Lanes | int = 0,
    size: Lanes | int = 0,
    space: Lanes | int = SPACE_CODE[Space.SHARED],
) -> None:
    """Record a finding, about bytes of memory or, with a size of 0, about none."""
    space = f.lift(space, UINT32)
    where, count = (f.cast(f.lift(each, UINT64), UINT64) for each in (address, size))
    words = (("i32", f.constant(NUMBER[kind], UINT32)), ("i64", old), ("i64", new))
    every = f.constant(state.BYTES, UINT64)
    run(f, found, *words, ("i64", every), ("i32", space), ("i64", where), ("i64", count))


def _nobody(f: NativeMachine) -> Lanes:
    return f.constant(0, UINT64)


# ---------------------------------------------------------------------------- life of an mbarrier


def _place(f: NativeMachine, address: Lanes) -> tuple[Lanes, Lanes]:
    """Give the number of an mbarrier, and whether that is its alone."""
    place = clocks.slot(f, address)
    return place, state.get(f, "slot_address", place) == f.cast(address, UINT32)


@routine("check_birth", "ptr %ctx, i32 %address, i32 %lanes, i32 %site", "i1", seldom=True)
def begin(f: NativeMachine) -> None:
    """Let an mbarrier live, from its initialisation by one lane on; tell whether it did not yet."""
    address, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("address", "lanes", "site"))
    place, own = _place(f, address)
    end_if(f, ~own, "i1 true")
    who = entry(f, lanes, site)
    living = state.get(f, "slot_live", place) != 0
    several = (lanes & (lanes - 1)) != 0
    with f.function.when(str((living | several).value)):
        before = f.select(living, state.get(f, "slot_made", place), _nobody(f))
        tell(f, "mbarrier-init", before, who, address, _WORD_BYTES)
    state.put(f, "slot_live", place, _LIVE)
    state.put(f, "slot_made", place, who)
    state.put(f, "slot_last", place, 0)
    f.function.emit(f"ret i1 {(~living).value}")


@routine("check_end_of_life", "ptr %ctx, i32 %address, i32 %lanes, i32 %site", seldom=True)
def end(f: NativeMachine) -> None:
    """Let an mbarrier be one no more, by one lane: its memory may be used for something else."""
    address, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("address", "lanes", "site"))
    place, own = _place(f, address)
    end_if(f, ~own | (state.get(f, "slot_live", place) == 0))
    made = state.get(f, "slot_made", place)
    with f.function.when(str(((lanes & (lanes - 1)) != 0).value)):
        tell(f, "mbarrier-init", made, entry(f, lanes, site), address, _WORD_BYTES)
    _balance(f, place)
    state.put(f, "slot_live", place, 0)


# ---------------------------------------------------------------------------- arrivals


@routine("check_touch", "ptr %ctx, i32 %address, i32 %lanes, i32 %site")
def touch(f: NativeMachine) -> None:
    """Note who last arrived at an mbarrier, counted bytes there, or has an agent do so."""
    address, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("address", "lanes", "site"))
    place, _ = _place(f, address)
    state.put(f, "slot_last", place, entry(f, lanes, site))


@routine("check_has_come", "ptr %ctx, i32 %address, i32 %lanes, i32 %site")
def note_arrival(f: NativeMachine) -> None:
    """Note who has arrived at an mbarrier in its phase, for a deadlock to tell."""
    address, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("address", "lanes", "site"))
    place, _ = _place(f, address)
    index = place * state.WARPS + rows.warp(f)
    last = state.get(f, "came_tick", index)
    again = (last != 0) & (last >= state.get(f, "slot_ended", place))
    others = f.select(again, state.get(f, "came_lanes", index), f.constant(0, UINT32))
    for name, value in (("tick", state.now(f)), ("lanes", others | lanes), ("site", site)):
        state.put(f, f"came_{name}", index, value)


@routine("check_arrivals", "ptr %ctx, i32 %address, i64 %count, i32 %lanes, i32 %site")
def count_arrivals(f: NativeMachine) -> None:
    """See that the arrivals of one instruction fit into one phase, as lanes do not wait between."""
    address, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("address", "lanes", "site"))
    place, own = _place(f, address)
    offset = f.cast(address - context.SHARED_START, UINT64)
    end_if(f, ~own | (offset + _WORD_BYTES > f.field("shared_size")))
    pending = f.cast(_contents(f, offset).pending, UINT64)
    live = state.get(f, "slot_live", place) == _LIVE
    with f.function.when(str((live & (f.lanes(UINT64, "%count", 0) > pending)).value)):
        who = entry(f, lanes, site)
        again = (pending == 0) & _same_actor(who, state.get(f, "slot_came", place))
        _tell_surplus(f, place, who, address, again)


@routine("check_in_turn", "ptr %ctx, i32 %address, i32 %lanes, i32 %site")
def arrive_in_turn(f: NativeMachine) -> None:
    """See that who arrives knows that the phase before has ended.

    Else its arrival may fall into either phase. It need not have waited for that phase itself.
    """
    address, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("address", "lanes", "site"))
    place, own = _place(f, address)
    waited = state.get(f, "waited", place * state.WARPS + rows.warp(f))
    ended = state.get(f, "slot_ended", place)
    end_if(f, ~own)
    who, before = entry(f, lanes, site), state.get(f, "slot_came", place)
    state.put(f, "slot_came", place, who)
    end_if(f, (waited >= ended) | (state.get(f, "slot_live", place) != _LIVE))
    known = knows(f, state.at(f, "slot_row", place * 2 + 1))
    with f.function.when(str((~known).value)):
        _tell_surplus(f, place, who, address, _same_actor(who, before))


def _tell_surplus(f: NativeMachine, place: Lanes, who: Lanes, address: Lanes, ahead: Lanes) -> None:
    """Record an arrival that its phase does not expect, once for an mbarrier.

    Who arrives for a whole phase, and then again, has not waited as it should: it is ahead. Else
    there are too many arrivals.
    """
    with f.function.when(str(ahead.value)):
        wait = state.get(f, "idle_wait", rows.warp(f))
        tell(f, "mbarrier-phase/ahead", wait, who, address, _WORD_BYTES)
    with f.function.when(str((~ahead).value)):
        made = state.get(f, "slot_made", place)
        tell(f, "mbarrier-arrival", made, who, address, _WORD_BYTES)
    state.put(f, "slot_live", place, _TOLD)


def _same_actor(one: Lanes, other: Lanes) -> Lanes:
    """Tell whether entries are of one warp at one place."""
    fields = 0xFF << state.OWNER_SHIFT | state.MOST_SITES << state.SITE_SHIFT
    return ((one ^ other) & fields) == 0


def knows(f: NativeMachine, completed: str, *, of_all: bool = False) -> Lanes:
    """Tell whether the warp that acts, or some of its lanes, know of a phase that has ended.

    That is of the warps which have arrived there, or `of_all` that they knew.
    """
    common, own = (state.at(f, name, rows.warp(f)) for name in ("warp_row", "ahead_row"))
    some = state.get(f, "ahead_lanes", rows.warp(f)) != 0
    ahead = f.op(f"select i1 {some.value}, ptr {own}, ptr {common}")
    known = f.constant(False, BOOL)
    for row in (common, ahead):
        covers = ask(f, _COVERS[of_all], "i1", ("ptr", row), ("ptr", completed))
        known = known | f.lanes(BOOL, covers, 0)
    return known


def _covers(owners: int) -> Routine:
    """Give the function that tells whether a row knows what another one knows of owners.

    What the warp that acts does itself, or its agents for it, does not count.
    """

    def body(f: NativeMachine) -> None:
        missing = f.constant(0, UINT32)
        own = f.constant(1, UINT32) << rows.warp(f)
        for group in range(0, owners, state.WARPS):
            some = f.constant(0, UINT32)
            for start in range(0, state.WARPS, rows.WIDTH):
                here, there = (rows.chunk(f, row, group + start) for row in ("%row", "%other"))
                bits = f.op(f"bitcast <{rows.WIDTH} x i1> {(here < there).value} to i{rows.WIDTH}")
                some = some | (
                    f.lanes(UINT32, f.op(f"zext i{rows.WIDTH} {bits} to i32"), 0) << start
                )
            missing = missing | (some if group == state.BARRIER_OWNER else some & ~own)
        f.function.emit(f"ret i1 {(missing == 0).value}")

    return routine(f"check_covers_{owners}", "ptr %ctx, ptr %row, ptr %other", "i1")(body)


_COVERS = {of_all: _covers(state.OWNERS if of_all else state.TENSOR) for of_all in (False, True)}


def arrive(m: WatchMachine, address: Lanes, count: Lanes | None) -> None:
    """Watch lanes arrive together: at the mbarrier of the first of them, once or `count` times."""
    lanes = m.active()
    first = m.lowest(lanes) & 31
    where = m.pick(address, first) if address.width else address
    alike = m.bits(address == where) & lanes if address.width else lanes
    times = m.constant(1, UINT32)
    if count is not None:
        times = m.pick(count, first) if count.width else count
    total = m.cast(m.intrinsic("popcount", alike), UINT64) * m.cast(times, UINT64)
    words = (("i32", lanes), ("i32", m.lanes(UINT32, m.site, 0)))
    where = m.cast(where, UINT32)
    with m.function.when(str((lanes != 0).value)):
        run(m, count_arrivals, ("i32", where), ("i64", total), *words)


@routine("check_ignored", "ptr %ctx, i32 %address, i32 %lanes, i32 %site", seldom=True)
def ignore(f: NativeMachine) -> None:
    """Note a wait whose result nobody looks at, which tells nothing.

    It may be a hint, if another one follows.
    """
    address, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("address", "lanes", "site"))
    state.put(f, "ignored", rows.warp(f), clocks.slot(f, address) + 1)
    state.put(f, "ignored_wait", rows.warp(f), entry(f, lanes, site))


@routine("check_heeded", "ptr %ctx, i32 %address")
def heed(f: NativeMachine) -> None:
    """Note that a warp looks at the result of a wait at an mbarrier."""
    place = clocks.slot(f, f.lanes(UINT32, "%address", 0))
    same = state.get(f, "ignored", rows.warp(f)) == place + 1
    with f.function.when(str(same.value)):
        state.put(f, "ignored", rows.warp(f), 0)


# ---------------------------------------------------------------------------- barriers of the CTA


@routine("check_come", "ptr %ctx, i32 %barrier, i32 %generation, i32 %site")
def come(f: NativeMachine) -> None:
    """See that a warp comes to a barrier of the CTA once until that completes.

    Who does not wait there must know that it has, before it comes again. So must who has not come
    to the last turn: it might have come there for one of those who did.
    """
    barrier, turn, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("barrier", "generation", "site"))
    barrier = barrier & (context.BARRIERS - 1)
    index = barrier * state.WARPS + rows.warp(f)
    last = state.get(f, "come_turn", index)
    row = state.at(f, "barrier_row", barrier * 2 + ((turn - 1) & 1))
    unknown = (turn != 0) & ~knows(f, row)
    with f.function.when(str(((last == turn + 1) | (unknown & (last == turn))).value)):
        lanes = f.constant(-1, UINT32)
        before = entry(f, lanes, state.get(f, "come_site", index))
        tell(f, "named-barrier", before, entry(f, lanes, site), barrier)
    apart = unknown & (last < turn) & (state.get(f, "loose") == 0)
    with f.function.when(str(apart.value)):
        run(f, _collide, ("i32", barrier), ("i32", turn), ("i32", site))
    state.put(f, "come_turn", index, turn + 1)
    state.put(f, "come_site", index, site)


@routine("check_collide", "ptr %ctx, i32 %barrier, i32 %generation, i32 %site", seldom=True)
def _collide(f: NativeMachine) -> None:
    """Tell of a warp that comes to a barrier, and of one that met others there before.

    If it can be, that is one which came from another place.
    """
    barrier, turn, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("barrier", "generation", "site"))
    other = f.function.slot("i64", 8)
    lanes = f.constant(-1, UINT32)
    f.function.emit(f"store i64 0, ptr {other}")
    with f.function.loop(str(state.WARPS)) as counter:
        who = f.cast(f.lanes(UINT64, counter, 0), UINT32)
        index = barrier * state.WARPS + who
        place = state.get(f, "come_site", index)
        none = f.lanes(UINT64, f.op(f"load i64, ptr {other}"), 0) == 0
        better = (state.get(f, "come_turn", index) == turn) & (none | (place != site))
        with f.function.when(str(better.value)):
            f.function.emit(f"store i64 {entry(f, lanes, place, who).value}, ptr {other}")
    before = f.lanes(UINT64, f.op(f"load i64, ptr {other}"), 0)
    tell(f, "named-barrier/shared", before, entry(f, lanes, site), barrier)


# ---------------------------------------------------------------------------- who issues


@routine("check_elected", "ptr %ctx, i32 %lanes, i32 %site")
def _many(f: NativeMachine) -> None:
    lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("lanes", "site"))
    tell(f, "not-elected", _nobody(f), entry(f, lanes, site))


def issue(m: WatchMachine, operands: Sequence[Lanes]) -> None:
    """Watch what one lane is to hand to an agent: no other lane hands it the same.

    What is repeated is told of once, and from there on it is that of one lane.
    """
    lanes = m.active()
    first = m.lowest(lanes) & 31
    alike = lanes
    for each in operands:
        if each.width:
            alike = alike & m.bits(each == m.pick(each, first))
    repeated = alike & (alike - 1)
    with m.function.when(str((repeated != 0).value)):
        run(m, _many, ("i32", alike), ("i32", m.lanes(UINT32, m.site, 0)))
    m.mask = m.unpack(lanes & ~repeated)


@routine("check_passed_by", "ptr %ctx, i32 %lanes, i32 %passed, i32 %site", seldom=True)
def pass_by(f: NativeMachine) -> None:
    """Tell of lanes that wait in a collective for others, which are gone."""
    lanes, passed, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("lanes", "passed", "site"))
    with rows.naming(f, lanes=lanes, other_warp=rows.warp(f), other_lanes=passed):
        tell(f, "divergent-collective/passed", _nobody(f), entry(f, lanes, site))


# ---------------------------------------------------------------------------- the end of a CTA


@routine("check_finally", "ptr %ctx", seldom=True)
def finish(f: NativeMachine) -> None:
    """See that each mbarrier of a CTA that ends is as a phase begins, and still one."""
    end_if(f, f.field("error") != 0)
    count = f.binary("min", state.get(f, "slot_count"), f.constant(state.SLOTS, UINT64))
    with f.function.loop(str(count.value)) as counter:
        place = f.cast(f.lanes(UINT64, counter, 0), UINT32)
        with f.function.when(str((state.get(f, "slot_live", place) != 0).value)):
            _finish(f, place)
    # Where data were used, that has been told.
    with f.function.loop(str(state.WARPS)) as counter:
        warp = f.cast(f.lanes(UINT64, counter, 0), UINT32)
        ignored = state.get(f, "ignored", warp)
        bad = (ignored != 0) & (state.get(f, "found_count") == 0)
        with f.function.when(str(bad.value)):
            address = state.get(f, "slot_address", (ignored - 1) & (state.SLOTS - 1))
            wait = state.get(f, "ignored_wait", warp)
            tell_for(f, "ignored-try-wait", _nobody(f), wait, address)


def _finish(f: NativeMachine, place: Lanes) -> None:
    address, made = (state.get(f, name, place) for name in ("slot_address", "slot_made"))
    over = _overwritten(f, f.cast(address - context.SHARED_START, UINT64), made)
    with f.function.when(str((over != 0).value)):
        tell_for(f, "mbarrier-init", made, over, address)
    with f.function.when(str((over == 0).value)):
        _balance(f, place)


def _balance(f: NativeMachine, place: Lanes) -> None:
    """See that nothing of a phase has come that is not complete."""
    names = ("slot_address", "slot_made", "slot_last")
    address, made, last = (state.get(f, name, place) for name in names)
    held = _contents(f, f.cast(address - context.SHARED_START, UINT64))
    bytes_left = held.transactions != 0
    some_left = ~bytes_left & (held.pending != held.expected)
    for left, kind in ((bytes_left, "mbarrier-tx"), (some_left, "mbarrier-arrival")):
        untold = state.get(f, "slot_live", place) == _LIVE
        with f.function.when(str((left & untold & (last != 0)).value)):
            tell_for(f, kind, made, last, address)


def tell_for(f: NativeMachine, kind: str, old: Lanes, new: Lanes, address: Lanes) -> None:
    """Record a finding of who acted by an entry, not of who acts."""
    before = f.field("warp")
    f.set_field("warp", f.cast(owner_of(new) & 31, UINT64))
    tell(f, kind, old, new, address, _WORD_BYTES)
    f.set_field("warp", before)


def _contents(f: NativeMachine, offset: Lanes) -> mbarrier.State:
    at = f.op(f"getelementptr i8, ptr {f.pointer('shared')}, i64 {offset.value}")
    return mbarrier.decode(f, f.get_word(at, 0))


def _overwritten(f: NativeMachine, offset: Lanes, made: Lanes) -> Lanes:
    """Give the entry of the last write to the bytes of an mbarrier, 0 if that initialised it."""
    number = offset >> 4
    settle(f, number)
    at = f.op(f"getelementptr i8, ptr {f.pointer('check_shadow')}, i64 {(number << 5).value}")
    bytes = f.constant((1 << _WORD_BYTES) - 1, UINT64) << (offset & 8)
    none = _nobody(f)
    newest, older = (f.get_word(at, index) for index in range(2))
    last = f.select((newest & bytes) != 0, newest, f.select((older & bytes) != 0, older, none))
    site = f.constant(state.MOST_SITES << state.SITE_SHIFT, UINT64)
    return f.select(((last ^ made) & site) == 0, none, last)
