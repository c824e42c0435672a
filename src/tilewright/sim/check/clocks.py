"""Clocks: how a warp hands on what it knows and has done, and how it learns more.

May import `sim.engine` and the modules of `sim.check` below it. Every function is called with the
context of a CTA. A release joins the row of the acting lanes into another row and moves the tick
on, so that what comes later is told from what came before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import state
from tilewright.sim.check.lanes import are_all, fence, hand_on, synchronise, wait_for_copies
from tilewright.sim.check.rows import (
    WIDTH,
    acting_row,
    advance,
    alive,
    ask,
    chunk,
    clear,
    copy,
    each_bit,
    end_if,
    find_floors,
    join,
    routine,
    run,
    set_chunk,
    warp,
)
from tilewright.sim.engine import context

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

# ---------------------------------------------------------------------------- release, acquire


@routine("check_release", "ptr %ctx, ptr %to, i32 %lanes")
def release(f: NativeMachine) -> None:
    """Hand on what lanes of the warp that acts know and have done."""
    hand_on(f, "%to", f.lanes(UINT32, "%lanes", 0))
    advance(f)


@routine("check_acquire", "ptr %ctx, ptr %from, i32 %lanes")
def acquire(f: NativeMachine) -> None:
    """Let lanes of the warp that acts know what a row does."""
    _tell(f, lambda row: run(f, join, ("ptr", row), ("ptr", "%from")))


@routine("check_learn", "ptr %ctx, i32 %owner, i32 %tick, i32 %lanes")
def learn(f: NativeMachine) -> None:
    """Let lanes of the warp that acts know what an agent has done up to a tick."""
    owner, tick = (f.lanes(UINT32, f"%{n}", 0) for n in ("owner", "tick"))
    _tell(f, lambda row: state.set_clock(f, row, owner, tick))


def _tell(f: NativeMachine, what: Callable[[str], None]) -> None:
    """Tell rows of the warp that acts what its `%lanes` learn.

    What only some lanes know all know once the warp synchronises, or once the others learn as
    much.
    """
    lanes, index = f.lanes(UINT32, "%lanes", 0), warp(f)
    ahead = state.get(f, "ahead_lanes", index)
    common, own = (state.at(f, name, index) for name in ("warp_row", "ahead_row"))
    everyone = (alive(f) & ~lanes) == 0
    with f.function.when(str((~everyone & (ahead == 0)).value)):
        run(f, copy, ("ptr", own), ("ptr", common))
    known = f.select(everyone, ahead, ahead | lanes)
    with f.function.when(str(everyone.value)):
        what(common)
    with f.function.when(str((known != 0).value)):
        what(own)
    together = (alive(f) & ~known) == 0
    with f.function.when(str(together.value)):
        run(f, join, ("ptr", common), ("ptr", own))
    state.put(f, "ahead_lanes", index, f.select(together, f.constant(0, UINT32), known))
    find_floors(f)


# ---------------------------------------------------------------------------- Tensor Memory


@routine("check_cells_done", "ptr %ctx, i32 %owner, i32 %lanes")
def end_cells(f: NativeMachine) -> None:
    """Let lanes know of the loads or stores of their own warp; no fence is needed for them."""
    owner, lanes = (f.lanes(UINT32, f"%{n}", 0) for n in ("owner", "lanes"))
    tick = state.now(f)
    run(f, learn, ("i32", owner), ("i32", tick), ("i32", lanes))
    state.set_clock(f, state.at(f, "fenced_row", warp(f)), owner, tick)
    advance(f)


@routine("check_cells_fence", "ptr %ctx, i32 %lanes")
def fence_cells(f: NativeMachine) -> None:
    """Let what a warp does in Tensor Memory follow what lanes know that others did there."""
    row = acting_row(f, f.lanes(UINT32, "%lanes", 0))
    run(f, join, ("ptr", state.at(f, "fenced_row", warp(f))), ("ptr", row))


# ---------------------------------------------------------------------------- barriers of the CTA


def _note_use(f: NativeMachine, barrier: Lanes) -> None:
    """Make the rows of a barrier zero at its first use."""
    used, own = state.get(f, "barriers_used"), f.constant(1, UINT64) << f.cast(barrier, UINT64)
    with f.function.when(str(((used & own) == 0).value)):
        state.put(f, "barriers_used", 0, used | own)
        clear(f, state.at(f, "barrier_row", barrier * 2), 2 * state.ROW_BYTES)


def _parity_word(f: NativeMachine, name: str, bit: Lanes) -> Lanes:
    return (state.get(f, name, warp(f)) >> bit) & 1


def _set_parity(f: NativeMachine, name: str, bit: Lanes, parity: Lanes) -> None:
    word = state.get(f, name, warp(f))
    one = f.constant(1, UINT32) << bit
    state.put(f, name, warp(f), (word & ~one) | ((parity & 1) << bit))


@routine("check_arrive", "ptr %ctx, i32 %barrier, i32 %generation, i32 %lanes")
def arrive(f: NativeMachine) -> None:
    """Arrive at a barrier of the CTA, in the turn that `generation` numbers."""
    barrier, turn, lanes = (f.lanes(UINT32, f"%{n}", 0) for n in ("barrier", "generation", "lanes"))
    barrier = barrier & (context.BARRIERS - 1)
    _note_use(f, barrier)
    _set_parity(f, "parities", barrier, turn)
    row = state.at(f, "barrier_row", barrier * 2 + (turn & 1))
    run(f, release, ("ptr", row), ("i32", lanes))


@routine("check_excuse", "ptr %ctx, i32 %barrier", seldom=True)
def excuse(f: NativeMachine) -> None:
    """Count who has exited as arrived at a barrier of the CTA: one that is told no count."""
    barrier = f.lanes(UINT32, "%barrier", 0) & (context.BARRIERS - 1)
    _note_use(f, barrier)
    turn = f.barrier_state(barrier, "generation") & 1
    row = state.at(f, "barrier_row", barrier * 2 + turn)
    run(f, join, ("ptr", row), ("ptr", state.at(f, "exited_row")))


@routine("check_pass", "ptr %ctx, i32 %barrier, i32 %lanes")
def pass_barrier(f: NativeMachine) -> None:
    """Leave a barrier of the CTA, knowing all that was done before the arrivals."""
    barrier, lanes = (f.lanes(UINT32, f"%{n}", 0) for n in ("barrier", "lanes"))
    barrier = barrier & (context.BARRIERS - 1)
    parity = _parity_word(f, "parities", barrier)
    row = state.at(f, "barrier_row", barrier * 2 + parity)
    run(f, acquire, ("ptr", row), ("i32", lanes))
    _share_floor(f, barrier * 2 + parity, lanes)
    run(f, synchronise, ("i32", lanes))


def _share_floor(f: NativeMachine, place: Lanes, lanes: Lanes) -> None:
    """Give a warp that leaves a barrier the floor of those that have left it before.

    The first one has found it while nobody had done anything else, and by what all learn there.
    """
    index = warp(f)
    everyone = ((alive(f) & ~lanes) == 0) & (state.get(f, "ahead_lanes", index) == 0)
    with f.function.when(str(everyone.value)):
        floors = (state.get(f, "floor", index), state.get(f, "barrier_floor", place))
        floor = f.binary("max", *floors)
        for name, number in (("floor", index), ("barrier_floor", place)):
            state.put(f, name, number, floor)


@routine("check_exit", "ptr %ctx, i32 %lanes", seldom=True)
def leave(f: NativeMachine) -> None:
    """Hand on what lanes have done that exit: to barriers this is an arrival."""
    lanes = f.lanes(UINT32, "%lanes", 0)
    exited = state.at(f, "exited_row")
    run(f, release, ("ptr", exited), ("i32", lanes))
    with f.function.loop(str(context.BARRIERS)) as counter:
        barrier = f.cast(f.lanes(UINT64, counter, 0), UINT32)
        expected, counted = (f.barrier_state(barrier, name) for name in ("expected", "counted"))
        with f.function.when(str(((expected != 0) & (counted == 0)).value)):
            run(f, excuse, ("i32", barrier))
    turn = f.cluster_state("generation") & 1
    run(f, join, ("ptr", state.at(f, "cluster_row", turn)), ("ptr", exited))


@routine("check_cluster_arrive", "ptr %ctx, i32 %generation, i32 %lanes, i1 %releases")
def arrive_at_cluster(f: NativeMachine) -> None:
    """Arrive at the barrier of the cluster; of its CTAs each has clocks of its own."""
    turn, lanes = (f.lanes(UINT32, f"%{n}", 0) for n in ("generation", "lanes"))
    _set_parity(f, "cluster_parity", f.constant(0, UINT32), turn)
    run(f, join, ("ptr", state.at(f, "cluster_row", turn & 1)), ("ptr", state.at(f, "exited_row")))
    with f.function.when("%releases"):
        row = state.at(f, "cluster_row", turn & 1)
        run(f, release, ("ptr", row), ("i32", lanes))


@routine("check_cluster_pass", "ptr %ctx, i32 %lanes")
def pass_cluster(f: NativeMachine) -> None:
    """Leave the barrier of the cluster."""
    row = state.at(f, "cluster_row", _parity_word(f, "cluster_parity", f.constant(0, UINT32)))
    run(f, acquire, ("ptr", row), ("i32", f.lanes(UINT32, "%lanes", 0)))
    run(f, synchronise, ("i32", f.lanes(UINT32, "%lanes", 0)))


# ---------------------------------------------------------------------------- flags in memory


@routine("check_set_flag", "ptr %ctx, i32 %lanes, i1 %releases")
def set_flag(f: NativeMachine) -> None:
    """Write what others look at: after a fence, or with one in it, that hands on what was done.

    All flags of a CTA share a row.
    """
    releases = f.lanes(BOOL, "%releases", 0) | (state.get(f, "fenced", warp(f)) != 0)
    with f.function.when(str(releases.value)):
        row = state.at(f, "flag_row")
        run(f, release, ("ptr", row), ("i32", f.lanes(UINT32, "%lanes", 0)))


@routine("check_look", "ptr %ctx, i32 %lanes, i1 %acquires")
def look_at_flag(f: NativeMachine) -> None:
    """Read what others write; with a fence, now or later, that tells what they have done."""
    lanes = f.lanes(UINT32, "%lanes", 0)
    state.put(f, "looked", warp(f), 1)
    with f.function.when("%acquires"):
        run(f, acquire, ("ptr", state.at(f, "flag_row")), ("i32", lanes))


@routine("check_memory_fence", "ptr %ctx, i32 %lanes")
def fence_memory(f: NativeMachine) -> None:
    """Make what a warp writes next a release, and what it has read an acquire."""
    state.put(f, "fenced", warp(f), 1)
    run(f, acquire_read, ("i32", f.lanes(UINT32, "%lanes", 0)))


@routine("check_acquire_read", "ptr %ctx, i32 %lanes")
def acquire_read(f: NativeMachine) -> None:
    """Make what a warp has read an acquire."""
    with f.function.when(str((state.get(f, "looked", warp(f)) != 0).value)):
        row, lanes = state.at(f, "flag_row"), f.lanes(UINT32, "%lanes", 0)
        run(f, acquire, ("ptr", row), ("i32", lanes))


# ---------------------------------------------------------------------------- mbarriers


@routine("check_slot", "ptr %ctx, i32 %address", "i32")
def slot_of(f: NativeMachine) -> None:
    """Number an mbarrier, in the order of first use; far more of them share numbers."""
    offset = f.lanes(UINT32, "%address", 0) - context.SHARED_START
    inside = f.cast(offset, UINT64) < f.field("shared_size")
    end_if(f, ~inside, "i32 0")
    place = f.cast(f.cast(offset, UINT64) >> 3, UINT64)
    at = f.op(f"getelementptr i8, ptr {f.pointer('check_slots')}, i64 {place.value}")
    kept = f.op(f"load i8, ptr {at}")
    known = f.lanes(UINT32, f.op(f"zext i8 {kept} to i32"), 0)
    end_if(f, known != 0, f"i32 {(known - 1).value}")
    count = state.get(f, "slot_count")
    slot = f.cast(count, UINT32) & (state.SLOTS - 1)
    state.put(f, "slot_count", 0, count + 1)
    f.function.emit(f"store i8 {f.op(f'trunc i32 {(slot + 1).value} to i8')}, ptr {at}")
    state.put(f, "slot_address", slot, f.lanes(UINT32, "%address", 0))
    state.put(f, "slot_live", slot, 0)
    with f.function.when(str((count < state.SLOTS).value)):
        # No row of a CTA has anything before it began.
        clear(f, state.at(f, "slot_row", slot * 2), 2 * state.ROW_BYTES)
        clear(f, state.at(f, "extra_row", slot), state.ROW_BYTES)
        for area in state.OF_SLOTS:
            clear(f, state.at(f, area, slot * state.WARPS), 4 * state.WARPS)
    f.function.emit(f"ret i32 {slot.value}")


def slot(f: NativeMachine, address: Lanes) -> Lanes:
    """Give the number of the mbarrier at a uniform address, uint32."""
    return f.lanes(UINT32, ask(f, slot_of, "i32", ("i32", f.cast(address, UINT32))), 0)


@routine("check_count", "ptr %ctx, i32 %address, i32 %lanes")
def arrive_at_mbarrier(f: NativeMachine) -> None:
    """Arrive at an mbarrier: in its phase, and not before that has ended, others will know."""
    place = slot(f, f.lanes(UINT32, "%address", 0))
    row = state.at(f, "slot_row", place * 2)
    run(f, release, ("ptr", row), ("i32", f.lanes(UINT32, "%lanes", 0)))


@routine("check_phase", "ptr %ctx, i32 %address")
def end_phase(f: NativeMachine) -> None:
    """End a phase of an mbarrier: who waits for it knows of all that has arrived."""
    place = slot(f, f.lanes(UINT32, "%address", 0))
    arriving, complete = (state.at(f, "slot_row", place * 2 + half) for half in range(2))
    _take_extra(f, place, arriving)
    run(f, copy, ("ptr", complete), ("ptr", arriving))
    state.put(f, "slot_ended", place, state.now(f))


def _take_extra(f: NativeMachine, place: Lanes, arriving: str) -> None:
    """Have a phase tell of arrivals that it has not expected from the start.

    It cannot have ended before if another arrival that it expects comes after their issue.
    """
    none = f.constant(False, BOOL)
    late = f.lanes(BOOL, f.spread(none, WIDTH), WIDTH)
    for start in range(0, state.WARPS, WIDTH):
        issued = chunk(f, state.at(f, "extra_tick", place * state.WARPS + start), 0)
        whole, part = (chunk(f, arriving, row + start) for row in (0, state.PART_TICK))
        late = late | (issued > f.binary("max", whole, part))
    some = f.op(f"bitcast <{WIDTH} x i1> {late.value} to i{WIDTH}")
    with f.function.when(f.op(f"icmp eq i{WIDTH} {some}, 0")):
        run(f, join, ("ptr", arriving), ("ptr", state.at(f, "extra_row", place)))


@routine("check_extra", "ptr %ctx, i32 %address")
def expect_arrival(f: NativeMachine) -> None:
    """Note that what is issued now is an arrival that an mbarrier expects from now on."""
    state.put(f, "extra", 0, slot(f, f.lanes(UINT32, "%address", 0)) + 1)


@routine("check_wait", "ptr %ctx, i32 %address, i32 %lanes, i1 %acquires")
def wait_at_mbarrier(f: NativeMachine) -> None:
    """Let lanes know of the last phase of an mbarrier that has ended."""
    place = slot(f, f.lanes(UINT32, "%address", 0))
    with f.function.when("%acquires"):
        row = state.at(f, "slot_row", place * 2 + 1)
        run(f, acquire, ("ptr", row), ("i32", f.lanes(UINT32, "%lanes", 0)))


@routine("check_initialise", "ptr %ctx, i32 %address, i32 %lanes, i32 %site", seldom=True)
def initialise(f: NativeMachine) -> None:
    """Note who initialises an mbarrier: nobody else sees it yet."""
    place = slot(f, f.lanes(UINT32, "%address", 0))
    state.put(f, "slot_warp", place, warp(f))
    state.put(f, "slot_lanes", place, f.lanes(UINT32, "%lanes", 0))
    state.put(f, "slot_site", place, f.lanes(UINT32, "%site", 0) + 1)
    state.put(f, "slot_visible", place, 0)


# ---------------------------------------------------------------------------- operations


@routine("check_core", "ptr %ctx, i32 %lanes")
def use_core(f: NativeMachine) -> None:
    """Note when threads have the tensor core do something that a commit of theirs tells of."""
    remaining = f.function.slot("i32", 4)
    f.function.emit(f"store i32 %lanes, ptr {remaining}")
    with each_bit(f, remaining) as lane:
        state.put(f, "core_tick", warp(f) * WARP + lane, state.now(f))


@routine("check_issue", "ptr %ctx, i64 %number, i32 %owner, i32 %lanes")
def issue(f: NativeMachine) -> None:
    """Keep what the issuer of an operation in flight knows, which its completion hands on."""
    lanes, owner = (f.lanes(UINT32, f"%{n}", 0) for n in ("lanes", "owner"))
    queued = f.lanes(UINT64, "%number", 0) & (context.QUEUE_RECORDS - 1)
    row = state.at(f, "issue_row", queued)
    hand_on(f, row, lanes, anew=True)
    tick = state.now(f)
    # Lanes tell of their own copies only.
    copies = (owner >> 5 == state.COPIES >> 5) & ~are_all(f, lanes)
    place = f.select(copies, warp(f) + state.PART_COPIES, owner)
    # A commit tells of what its own thread has had the tensor core do.
    done = state.get(f, "core_tick", warp(f) * WARP + (f.lowest(lanes) & 31))
    state.set_clock(f, row, place, f.select(owner >> 5 == state.TENSOR >> 5, done, tick))
    state.put(f, "last", owner, tick)
    extra = f.cast(state.get(f, "extra"), UINT32)
    state.put(f, "issue_extra", queued, extra)
    with f.function.when(str((extra != 0).value)):
        state.put(f, "extra", 0, 0)
        state.put(f, "extra_tick", (extra - 1) * state.WARPS + warp(f), tick)
    advance(f)


@routine("check_land", "ptr %ctx, i64 %number, i32 %address")
def land(f: NativeMachine) -> None:
    """Hand on what an operation has done to who waits for an mbarrier."""
    place = slot(f, f.lanes(UINT32, "%address", 0))
    queued = f.lanes(UINT64, "%number", 0) & (context.QUEUE_RECORDS - 1)
    counted, extra = (
        state.at(f, name, n) for name, n in (("slot_row", place * 2), ("extra_row", place))
    )
    is_extra = state.get(f, "issue_extra", queued) != 0
    to = f.op(f"select i1 {is_extra.value}, ptr {extra}, ptr {counted}")
    run(f, join, ("ptr", to), ("ptr", state.at(f, "issue_row", queued)))


@routine("check_commit", "ptr %ctx, i32 %kind, i32 %made")
def commit(f: NativeMachine) -> None:
    """Note when a group of a warp is made."""
    kind, made = (f.lanes(UINT32, f"%{n}", 0) for n in ("kind", "made"))
    state.put(f, "ring", _ring(f, kind, made), state.now(f))
    advance(f)


def _ring(f: NativeMachine, kind: Lanes, number: Lanes) -> Lanes:
    return (kind * state.WARPS + warp(f)) * state.RING + (number & (state.RING - 1))


@routine("check_groups", "ptr %ctx, i32 %kind, i32 %owner, i32 %made, i32 %keep, i32 %lanes")
def wait_for_groups(f: NativeMachine) -> None:
    """Let lanes know of the operations of all groups but the last ones."""
    names = ("kind", "owner", "made", "keep", "lanes")
    kind, owner, made, keep, lanes = (f.lanes(UINT32, f"%{n}", 0) for n in names)
    with f.function.when(str((made > keep).value)):
        tick = state.get(f, "ring", _ring(f, kind, made - keep - 1))
        copies = owner >> 5 == state.COPIES >> 5
        with f.function.when(str(copies.value)):
            wait_for_copies(f, tick, lanes)
        with f.function.when(str((~copies).value)):
            run(f, learn, ("i32", owner), ("i32", tick), ("i32", lanes))


# ---------------------------------------------------------------------------- proxy fences


@routine("check_proxy_fence", "ptr %ctx, i32 %lanes")
def fence_proxy(f: NativeMachine) -> None:
    """Let the asynchronous proxy see what lanes have done; if all that did fence, the warp has."""
    lanes, index = f.lanes(UINT32, "%lanes", 0), warp(f)
    for name in ("warp_row", "ahead_row"):
        row = state.at(f, name, index)
        _loosen(f, row)
        state.set_clock(f, row, index + state.SEEN_LOOSELY, state.now(f))
    fence(f, lanes)
    run(f, show_mbarriers, ("i32", lanes))
    advance(f)


def _loosen(f: NativeMachine, row: str) -> None:
    """Count what others have done, that a row knows of, as seen: the fence is by somebody else."""
    for start in range(0, state.WARPS, WIDTH):
        known = chunk(f, row, state.WARP_OWNER + start)
        place = state.SEEN_LOOSELY + start
        set_chunk(f, row, place, f.binary("max", known, chunk(f, row, place)))
        state.use(f, place)


@routine("check_show", "ptr %ctx, i32 %lanes", seldom=True)
def show_mbarriers(f: NativeMachine) -> None:
    """Make the mbarriers visible that lanes of the warp that acts have initialised."""
    lanes = f.lanes(UINT32, "%lanes", 0)
    count = f.binary("min", state.get(f, "slot_count"), f.constant(state.SLOTS, UINT64))
    with f.function.loop(str(count.value)) as counter:
        place = f.cast(f.lanes(UINT64, counter, 0), UINT32)
        mine = state.get(f, "slot_warp", place) == warp(f)
        mine = mine & ((state.get(f, "slot_lanes", place) & ~lanes) == 0)
        with f.function.when(str(mine.value)):
            state.put(f, "slot_visible", place, 1)
