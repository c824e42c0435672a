"""Global memory: what each CTA reads and writes of what the kernel may write.

May import `isa`, `ir`, `passes`, `sim.engine` and the modules of `sim.check` below it. Every CTA
keeps a list of runs of bytes, with who accessed them and what was known then; `overlaps.py` holds
them against one another after the launch. A list that is full takes no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, INT64, UINT32, UINT64
from tilewright.ir.statements import Kernel
from tilewright.ir.types import PointerType
from tilewright.isa.machine import WARP, Box, Lanes
from tilewright.passes.analysis.read_only import read_only_pointers
from tilewright.passes.analysis.tensor_maps import written_tensor_maps
from tilewright.sim.check import moments, rows, scattered, state
from tilewright.sim.check.lanes import note
from tilewright.sim.check.rows import each_bit, end_if, routine, run
from tilewright.sim.options import Region

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_WORDS = state.LOG_WORDS  # of an entry: first byte, byte after the last one, who, and when
# Who: the place, how the bytes are accessed, the warp, its lane, the owner. A step says whose bytes
# are: each lane has 1 << step, one after another, or one lane has all, or all have.
ONE, MANY = state.LOG_ONE_LANE, 7
WRITES, READ_ONLY = state.LOG_WRITES, state.LOG_READ_ONLY
SCOPE_SHIFT, SLOT_SHIFT = state.LOG_SCOPE_SHIFT, 53
WARP_SHIFT, LANE_SHIFT = state.LOG_WARP_SHIFT, state.LOG_LANE_SHIFT
OWNER_SHIFT, STEP_SHIFT = state.LOG_OWNER_SHIFT, state.LOG_STEP_SHIFT


@dataclass(frozen=True)
class Written:
    """The pointers and the tensor maps among a kernel's parameters that it may write by."""

    pointers: frozenset[str]
    maps: frozenset[str]


def written(kernel: Kernel) -> Written:
    """Find what a kernel may write."""
    pointers = {each.name for each in kernel.params if isinstance(each.type, PointerType)}
    return Written(frozenset(pointers - read_only_pointers(kernel)), written_tensor_maps(kernel))


def watched(kernel: Written, regions: Sequence[Region]) -> list[tuple[int, int]]:
    """Give the bounds of what a kernel may write.

    They are in order; arguments that overlap, as of two views of an array, are one.
    """
    described = [each.described for each in regions if each.name in kernel.maps]
    found = [
        (each.address, each.address + each.size)
        for each in regions
        if each.writable
        and (
            each.name in kernel.pointers
            or any(0 <= place - each.address < each.size for place in described)
        )
    ]
    joined: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if joined and low < joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


# ---------------------------------------------------------------------------- in native code

_ACTOR = "i64 %how, i32 %lanes, i32 %site, i32 %owner"


def how(*, write: bool, scope: int, read_only: bool, alike: bool = False) -> int:
    """Say how bytes are accessed, as in an entry; `scope` is that of an atomic access.

    `alike` tells that a constant is stored.
    """
    return write * WRITES | scope << SCOPE_SHIFT | read_only * READ_ONLY | alike * state.LOG_ALIKE


class _Actor:
    """Who accesses global memory, in a function with the parameters `_ACTOR`, and when."""

    def __init__(self, f: NativeMachine) -> None:
        self.f = f
        self.lanes, site, owner = (f.lanes(UINT32, f"%{n}", 0) for n in ("lanes", "site", "owner"))
        self.index = rows.warp(f)
        who = f.cast(site, UINT64) | f.lanes(UINT64, "%how", 0)
        for value, shift in (
            (self.index, WARP_SHIFT),
            (owner >> 5, OWNER_SHIFT),
            (owner & 31, SLOT_SHIFT),
        ):
            who = who | (f.cast(value, UINT64) << shift)
        self.who = who
        self.tick = state.now(f)
        state.put(f, "last", owner, self.tick)
        none = f.constant(0, UINT32)
        note(f, f.select(owner < state.TENSOR, self.lanes, none))
        knows = f.lanes(UINT32, rows.ask(f, moments.moment, "i32", ("i32", self.lanes)), 0)
        self.when = state.get(f, "turn") << 32
        self.when = self.when | f.cast((knows << moments.TICK_BITS) | self.tick, UINT64)

    def enter(self, low: Lanes, high: Lanes, lane: Lanes, step: int | Lanes) -> None:
        """Enter a run of bytes of which each lane has as many as a step says, one after another."""
        f = self.f
        step = f.lift(step, UINT32)
        # The lane of a byte follows from its address, so that runs can be put together.
        before = f.cast(low >> f.cast(step & 7, UINT64), UINT32)
        lane = f.select(step < ONE, lane - before, lane) & 31
        lane = f.select(step == MANY, f.constant(0, UINT32), lane)
        who = self.who | (f.cast(lane, UINT64) << LANE_SHIFT)
        who = who | (f.cast(step, UINT64) << STEP_SHIFT)
        run(f, _log, *(("i64", each) for each in (low, high, who, self.when)))


@routine("check_log", "ptr %ctx, i64 %low, i64 %high, i64 %who, i64 %when")
def _log(f: NativeMachine) -> None:
    """Enter a run of bytes; where another one of the same place ends it makes that longer."""
    start, end, who, when = (f.lanes(UINT64, f"%{n}", 0) for n in ("low", "high", "who", "when"))
    log = f.pointer("check_log")

    def known(place: Lanes) -> tuple[Lanes, str, Lanes]:
        # What another CTA has left there is no number of an entry, or not of such a one.
        last = state.get(f, "last_run", _place(f, place))
        there = (last != 0) & (f.cast(last, UINT64) <= state.get(f, "log_count"))
        number = f.select(there, last, f.constant(1, UINT32)) - 1
        at = f.op(f"getelementptr i64, ptr {log}, i64 {(f.cast(number, UINT64) * _WORDS).value}")
        same = (f.get_word(at, 2) == who) & there
        now = ((f.get_word(at, 3) ^ when) & 0xFFFFFFFF) == 0
        return last, at, same & now & (f.get_word(at, 1) == place)

    last, at, goes_on = known(start)
    with f.function.when(str(goes_on.value)):
        f.set_word(at, 1, end)
        state.put(f, "last_run", _place(f, end), last)
    end_if(f, goes_on)
    _, at, again = known(end)
    end_if(f, again & (f.get_word(at, 0) <= start))
    count = state.get(f, "log_count")
    end_if(f, count >= state.LOG_ENTRIES)
    at = f.op(f"getelementptr i64, ptr {log}, i64 {(count * _WORDS).value}")
    for index, value in enumerate((start, end, who, when)):
        f.set_word(at, index, value)
    state.put(f, "log_count", 0, count + 1)
    state.put(f, "last_run", _place(f, end), f.cast(count + 1, UINT32))


@routine("check_log_fence", "ptr %ctx, i32 %lanes, i32 %site")
def fence(f: NativeMachine) -> None:
    """Enter a proxy fence."""
    count = state.get(f, "log_count")
    end_if(f, (count >= state.LOG_ENTRIES) | (f.field("error") != 0))
    lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("lanes", "site"))
    knows = f.lanes(UINT32, rows.ask(f, moments.moment, "i32", ("i32", lanes)), 0)
    who = f.cast(site, UINT64) | (f.cast(rows.warp(f), UINT64) << WARP_SHIFT) | state.LOG_FENCE
    when = f.cast((knows << moments.TICK_BITS) | state.now(f), UINT64)
    at = f.op(f"getelementptr i64, ptr {f.pointer('check_log')}, i64 {(count * _WORDS).value}")
    bounds = f.cast(lanes, UINT64)
    for index, value in enumerate((bounds, bounds, who, when | (state.get(f, "turn") << 32))):
        f.set_word(at, index, value)
    state.put(f, "log_count", 0, count + 1)


def _place(f: NativeMachine, end: Lanes) -> Lanes:
    """Find where the last run is noted that ends at an address, or another one."""
    return f.cast((end * 0x9E3779B97F4A7C15) >> 32, UINT32) & (state.LAST_RUNS - 1)


@routine("check_watched", "ptr %ctx, i64 %address", "i1")
def is_watched(f: NativeMachine) -> None:
    """Tell whether an address lies in what the kernel may write."""
    address = f.lanes(UINT64, "%address", 0)
    with f.function.loop(str(state.get(f, "watched_count").value)) as counter:
        number = f.lanes(UINT64, counter, 0) * 2
        low, high = (state.get(f, "watched", number + side) for side in range(2))
        end_if(f, (address >= low) & (address < high), "i1 true")
    f.function.emit("ret i1 false")


@routine("check_global", f"ptr %ctx, <32 x i64> %address, i64 %size, i32 %step, {_ACTOR}")
def _vector(f: NativeMachine) -> None:
    """Enter what the lanes of a warp access: as one run if they follow one another."""
    address = f.lanes(UINT64, "%address", WARP)
    lanes, size = f.lanes(UINT32, "%lanes", 0), f.lanes(UINT64, "%size", 0)
    step = f.lanes(UINT32, "%step", 0)
    end_if(f, (lanes == 0) | (f.field("error") != 0))
    first = f.lowest(lanes)
    start = f.pick(address, first)
    seen = rows.ask(f, is_watched, "i1", ("i64", start))
    end_if(f, ~f.lanes(BOOL, seen, 0))
    actor = _Actor(f)
    one_place = f.lanes(UINT64, f.spread(start), WARP)
    apart = f.bits(one_place != address) & lanes
    several = (lanes & (lanes - 1)) != 0
    with f.function.when(str(((apart == 0) & several).value)):
        actor.enter(start, start + size, first, MANY)
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))
    steps = f.cast(f.lane_id() - first, UINT64) * size + start
    apart = f.bits(steps != address) & lanes
    count = f.cast(f.intrinsic("popcount", lanes), UINT64)
    together = (apart == 0) & (
        (lanes >> first) == f.cast((f.constant(1, UINT64) << count) - 1, UINT32)
    )
    with f.function.when(str(together.value)):
        actor.enter(start, start + size * count, first, step)
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))
    with f.function.when(str((step < ONE).value)):
        listed = (("<32 x i64>", address), ("i64", size), ("i32", lanes))
        who = actor.who | (ONE << STEP_SHIFT | state.LOG_SCATTERED)
        done = rows.ask(f, scattered.enter, "i1", *listed, ("i64", who), ("i64", actor.when))
        end_if(f, f.lanes(BOOL, done, 0))
    # Neighbours that follow one another are one run.
    places = f.spill(address)
    bounds = [f.function.slot("i64", 8) for _ in range(2)]
    holder, following, remaining = (f.function.slot("i32", 4) for _ in range(3))
    for slot, value in zip(bounds, (start, start), strict=True):
        f.function.emit(f"store i64 {value.value}, ptr {slot}")
    for slot, value in ((holder, first), (following, first), (remaining, lanes)):
        f.function.emit(f"store i32 {value.value}, ptr {slot}")

    def enter() -> None:
        low, high = (f.lanes(UINT64, f.op(f"load i64, ptr {slot}"), 0) for slot in bounds)
        actor.enter(low, high, f.lanes(UINT32, f.op(f"load i32, ptr {holder}"), 0), step)

    with each_bit(f, remaining) as lane:
        index = str(f.cast(lane, UINT64).value)
        where = f.lanes(UINT64, f.load_element(places, UINT64, index), 0)
        high = f.lanes(UINT64, f.op(f"load i64, ptr {bounds[1]}"), 0)
        expected = f.lanes(UINT32, f.op(f"load i32, ptr {following}"), 0)
        with f.function.when(str(((where != high) | (lane != expected)).value)):
            enter()
            f.function.emit(f"store i64 {where.value}, ptr {bounds[0]}")
            f.function.emit(f"store i32 {lane.value}, ptr {holder}")
        f.function.emit(f"store i64 {(where + size).value}, ptr {bounds[1]}")
        f.function.emit(f"store i32 {(lane + 1).value}, ptr {following}")
    enter()


@routine("check_global_run", f"ptr %ctx, i64 %address, i64 %size, {_ACTOR}")
def RUN(f: NativeMachine) -> None:
    start, size = (f.lanes(UINT64, f"%{n}", 0) for n in ("address", "size"))
    end_if(f, (size == 0) | (f.field("error") != 0))
    with f.function.when(rows.ask(f, is_watched, "i1", ("i64", start))):
        actor = _Actor(f)
        one = (actor.lanes & (actor.lanes - 1)) == 0
        step = f.select(one, f.constant(ONE, UINT32), f.constant(MANY, UINT32))
        actor.enter(start, start + size, f.lowest(actor.lanes) & 31, step)


def lanes_access(
    m: NativeMachine, address: Lanes, size: int, how: int, lanes: Lanes, owner: Lanes
) -> None:
    """Watch an access of the lanes of a warp, each of `size` bytes."""
    power = size.bit_length() - 1
    step = power if size == 1 << power and power < ONE else MANY
    words = (("i64", m.constant(size, UINT64)), ("i32", m.constant(step, UINT32)))
    actor = (("i64", m.constant(how, UINT64)), ("i32", lanes), ("i32", m.site), ("i32", owner))
    run(m, _vector, ("<32 x i64>", address), *words, *actor)


def run_access(
    m: NativeMachine, address: Lanes, size: Lanes, how: int, lanes: Lanes, owner: Lanes
) -> None:
    """Watch an access to a run of bytes."""
    words = [("i64", m.cast(each, UINT64)) for each in (address, size)]
    actor = (("i64", m.constant(how, UINT64)), ("i32", lanes), ("i32", m.site), ("i32", owner))
    run(m, RUN, *words, *actor)


def box_access(m: NativeMachine, box: Box, how: int, lanes: Lanes, owner: Lanes) -> None:
    """Watch an access to the rows of a box, as far as they lie in its tensor."""
    size = box.strides[0]
    zero = m.constant(0, INT64)
    first = m.cast(box.origin[0], INT64)
    low = m.binary("max", first, zero)
    end = m.binary("min", first + m.cast(box.sizes[0], INT64), m.cast(box.extents[0], INT64))

    def axis(number: int, base: Lanes) -> None:
        if number == 0:
            start = base + m.cast(low, UINT64) * size
            run_access(m, start, m.cast(end - low, UINT64) * size, how, lanes, owner)
            return
        with m.function.loop(str(m.cast(box.sizes[number], UINT64).value)) as counter:
            step = m.lanes(UINT64, counter, 0) * box.steps[number]
            at = m.cast(m.cast(box.origin[number], INT64), UINT64) + step
            with m.function.when(str((at < box.extents[number]).value)):
                axis(number - 1, base + at * box.strides[number])

    # A tensor lies in one allocation.
    with (
        m.function.when(rows.ask(m, is_watched, "i1", ("i64", m.cast(box.address, UINT64)))),
        m.function.when(str((end > low).value)),
    ):
        axis(len(box.sizes) - 1, box.address)
