"""Global memory: what each CTA reads and writes, and where CTAs touch the same bytes.

May import `isa`, `ir`, `passes`, `sim.engine` and the modules of `sim.check` below it. Every CTA
keeps a list of runs of bytes; after the launch those of all CTAs are laid side by side. Watched is
only what the kernel may write, and only where CTAs cannot order one another: then two accesses of
different CTAs to one byte, one of them a write, are a race. A list that is full takes no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.dtypes import INT64, UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.ir.statements import Kernel
from tilewright.ir.types import PointerType
from tilewright.isa.machine import WARP, Box, Lanes
from tilewright.passes.analysis.read_only import read_only_pointers
from tilewright.passes.analysis.tensor_maps import written_tensor_maps
from tilewright.sim.check import rows, state
from tilewright.sim.check.accesses import each_bit
from tilewright.sim.check.raw import OWNERS, RawFinding
from tilewright.sim.check.rows import end_if, routine, run
from tilewright.sim.engine.sites import Site
from tilewright.sim.options import Region

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

Array = np.ndarray
_GRANULE = 16  # bytes that are looked at together at first
_WORDS = 3  # of an entry: first byte, byte after the last one, and who
_WRITES = 1 << 32
_WARP_SHIFT, _LANE_SHIFT, _OWNER_SHIFT = 33, 38, 43


def watched(kernel: Kernel, regions: Sequence[Region]) -> list[tuple[int, int]]:
    """Give the bounds of what a kernel may write, of as many arguments as can be watched."""
    pointers = {each.name for each in kernel.params if isinstance(each.type, PointerType)}
    written = pointers - read_only_pointers(kernel)
    if written_tensor_maps(kernel):
        # A map does not say of which argument it is.
        written |= {each.name for each in regions} - pointers
    found = [
        (each.address, each.address + each.size)
        for each in regions
        if each.writable and each.name in written
    ]
    return found[: state.WATCHED]


# ---------------------------------------------------------------------------- in native code

_ACTOR = "i32 %lane, i32 %site, i32 %owner"


@routine("check_log", f"ptr %ctx, i64 %low, i64 %high, i64 %writes, {_ACTOR}")
def _log(f: NativeMachine) -> None:
    """Enter a run of bytes; where another one of the same place ends it makes that longer."""
    start, end, writes = (f.lanes(UINT64, f"%{n}", 0) for n in ("low", "high", "writes"))
    lane, site, owner = (f.lanes(UINT32, f"%{n}", 0) for n in ("lane", "site", "owner"))
    log = f.pointer("check_log")
    who = f.cast(site, UINT64) | writes
    for value, shift in (
        (rows.warp(f), _WARP_SHIFT),
        (lane, _LANE_SHIFT),
        (owner >> 5, _OWNER_SHIFT),
    ):
        who = who | (f.cast(value, UINT64) << shift)
    last = state.get(f, "last_run", _place(f, start))
    with f.function.when(str((last != 0).value)):
        at = f.op(f"getelementptr i64, ptr {log}, i64 {(f.cast(last - 1, UINT64) * _WORDS).value}")
        goes_on = (f.get_word(at, 1) == start) & (f.get_word(at, 2) == who)
        with f.function.when(str(goes_on.value)):
            f.set_word(at, 1, end)
            state.put(f, "last_run", _place(f, end), last)
        end_if(f, goes_on)
    count = state.get(f, "log_count")
    end_if(f, count >= state.LOG_ENTRIES)
    at = f.op(f"getelementptr i64, ptr {log}, i64 {(count * _WORDS).value}")
    for index, value in enumerate((start, end, who)):
        f.set_word(at, index, value)
    state.put(f, "log_count", 0, count + 1)
    state.put(f, "last_run", _place(f, end), f.cast(count + 1, UINT32))


def _place(f: NativeMachine, end: Lanes) -> Lanes:
    """Find where the last run is noted that ends at an address, or another one."""
    return f.cast((end * 0x9E3779B97F4A7C15) >> 32, UINT32) & (state.LAST_RUNS - 1)


@routine("check_watched", "ptr %ctx, i64 %address", "i1")
def _is_watched(f: NativeMachine) -> None:
    address = f.lanes(UINT64, "%address", 0)
    with f.function.loop(str(state.get(f, "watched_count").value)) as counter:
        number = f.lanes(UINT64, counter, 0) * 2
        low, high = (state.get(f, "watched", number + side) for side in range(2))
        end_if(f, (address >= low) & (address < high), "i1 true")
    f.function.emit("ret i1 false")


@routine(
    "check_global", f"ptr %ctx, <32 x i64> %address, i64 %size, i64 %writes, i32 %lanes, {_ACTOR}"
)
def _vector(f: NativeMachine) -> None:
    """Enter what the lanes of a warp access: as one run if they follow one another."""
    address = f.lanes(UINT64, "%address", WARP)
    lanes, size = f.lanes(UINT32, "%lanes", 0), f.lanes(UINT64, "%size", 0)
    end_if(f, (lanes == 0) | (f.field("error") != 0))
    first = f.lowest(lanes)
    start = f.pick(address, first)
    seen = rows.ask(f, _is_watched, "i1", ("i64", start))
    end_if(f, f.lanes((lanes == 0).dtype, seen, 0) == f.constant(False, (lanes == 0).dtype))
    words = tuple((k, f"%{n}") for k, n in (("i32", "site"), ("i32", "owner")))
    steps = f.cast(f.lane_id() - first, UINT64) * size + start
    apart = f.bits(steps != address) & lanes
    count = f.cast(f.intrinsic("popcount", lanes), UINT64)
    together = (apart == 0) & (
        (lanes >> first) == f.cast((f.constant(1, UINT64) << count) - 1, UINT32)
    )
    with f.function.when(str(together.value)):
        run_of = (("i64", start), ("i64", start + size * count), ("i64", "%writes"))
        run(f, _log, *run_of, ("i32", first), *words)
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))
    # Neighbours that follow one another are one run.
    places = f.spill(address)
    bounds = [f.function.slot("i64", 8) for _ in range(2)]
    holder, remaining = f.function.slot("i32", 4), f.function.slot("i32", 4)
    for slot, value in zip(bounds, (start, start), strict=True):
        f.function.emit(f"store i64 {value.value}, ptr {slot}")
    f.function.emit(f"store i32 {first.value}, ptr {holder}")
    f.function.emit(f"store i32 {lanes.value}, ptr {remaining}")

    def enter() -> None:
        low, high = (f.op(f"load i64, ptr {slot}") for slot in bounds)
        run_of = (("i64", low), ("i64", high), ("i64", "%writes"))
        run(f, _log, *run_of, ("i32", f.op(f"load i32, ptr {holder}")), *words)

    with each_bit(f, remaining) as lane:
        index = str(f.cast(lane, UINT64).value)
        where = f.lanes(UINT64, f.load_element(places, UINT64, index), 0)
        high = f.lanes(UINT64, f.op(f"load i64, ptr {bounds[1]}"), 0)
        with f.function.when(str((where != high).value)):
            enter()
            f.function.emit(f"store i64 {where.value}, ptr {bounds[0]}")
            f.function.emit(f"store i32 {lane.value}, ptr {holder}")
        f.function.emit(f"store i64 {(where + size).value}, ptr {bounds[1]}")
    enter()


@routine("check_global_run", f"ptr %ctx, i64 %address, i64 %size, i64 %writes, {_ACTOR}")
def _run(f: NativeMachine) -> None:
    start, size = (f.lanes(UINT64, f"%{n}", 0) for n in ("address", "size"))
    end_if(f, (size == 0) | (f.field("error") != 0))
    with f.function.when(rows.ask(f, _is_watched, "i1", ("i64", start))):
        words = tuple(("i32", f"%{n}") for n in ("lane", "site", "owner"))
        run(f, _log, ("i64", start), ("i64", start + size), ("i64", "%writes"), *words)


def lanes_access(
    m: NativeMachine, address: Lanes, size: int, write: bool, lanes: Lanes, owner: Lanes
) -> None:
    """Watch an access of the lanes of a warp."""
    writes = m.constant(_WRITES if write else 0, UINT64)
    words = (("i64", m.constant(size, UINT64)), ("i64", writes), ("i32", lanes))
    actor = (("i32", m.constant(0, UINT32)), ("i32", m.site), ("i32", owner))
    run(m, _vector, ("<32 x i64>", address), *words, *actor)


def run_access(
    m: NativeMachine, address: Lanes, size: Lanes, write: bool, lane: Lanes, owner: Lanes
) -> None:
    """Watch an access to a run of bytes."""
    writes = m.constant(_WRITES if write else 0, UINT64)
    words = [("i64", m.cast(each, UINT64)) for each in (address, size)]
    run(m, _run, *words, ("i64", writes), ("i32", lane), ("i32", m.site), ("i32", owner))


def box_access(m: NativeMachine, box: Box, write: bool, lane: Lanes, owner: Lanes) -> None:
    """Watch an access to the rows of a box, as far as they lie in its tensor."""
    size = box.strides[0]
    zero = m.constant(0, INT64)
    first = m.cast(box.origin[0], INT64)
    low = m.binary("max", first, zero)
    end = m.binary("min", first + m.cast(box.sizes[0], INT64), m.cast(box.extents[0], INT64))

    def axis(number: int, base: Lanes) -> None:
        if number == 0:
            start = base + m.cast(low, UINT64) * size
            run_access(m, start, m.cast(end - low, UINT64) * size, write, lane, owner)
            return
        with m.function.loop(str(m.cast(box.sizes[number], UINT64).value)) as counter:
            step = m.lanes(UINT64, counter, 0) * box.steps[number]
            at = m.cast(m.cast(box.origin[number], INT64), UINT64) + step
            with m.function.when(str((at < box.extents[number]).value)):
                axis(number - 1, base + at * box.strides[number])

    with m.function.when(str((end > low).value)):
        axis(len(box.sizes) - 1, box.address)


# ---------------------------------------------------------------------------- after the launch


def entries(special: Mapping[str, Array]) -> Array:
    """Read the runs that a CTA has entered."""
    count = state.log_count(special["check"])
    return special["check_log"].view(np.uint64).reshape(-1, _WORDS)[:count].copy()


def races(
    logs: Mapping[int, Array], regions: Sequence[tuple[int, int]], sites: Sequence[Site]
) -> list[RawFinding]:
    """Find the bytes that CTAs touch which cannot be ordered, one of them writing."""
    numbers = sorted(index for index, log in logs.items() if len(log))
    if len(numbers) < 2 or all(_apart(logs, numbers, *bounds) for bounds in regions):
        return []
    runs = np.concatenate([logs[index] for index in numbers])
    ctas = np.repeat(np.array(numbers), [len(logs[index]) for index in numbers])
    wrote = (runs[:, 2] & _WRITES) != 0
    found: dict[tuple[int, int], RawFinding] = {}
    order = np.lexsort((ctas, runs[:, 0]))
    _sweep(runs[order], ctas[order], wrote[order], sites, found)
    return list(found.values())


def _apart(logs: Mapping[int, Array], numbers: Sequence[int], low: int, high: int) -> bool:
    """Tell whether nobody touches a granule of an allocation that another CTA writes."""
    writer = np.zeros((high - low) // _GRANULE + 2, np.int32)
    for writes in (True, False):
        for index in numbers:
            log = logs[index]
            inside = (log[:, 0] >= low) & (log[:, 0] < high)
            chosen = log[inside & (((log[:, 2] & _WRITES) != 0) == writes)]
            granules = _granules(chosen, low, high)
            before = writer[granules]
            if ((before != 0) & (before != index + 1)).any():
                return False
            if writes:
                writer[granules] = index + 1
    return True


def _granules(runs: Array, low: int, high: int) -> Array:
    """Number all granules of an allocation that runs touch; a fault may lead beyond its end."""
    first = (runs[:, 0].astype(np.int64) - low) // _GRANULE
    count = (np.minimum(runs[:, 1].astype(np.int64), high) - 1 - low) // _GRANULE - first + 1
    starts = np.cumsum(count) - count
    return np.repeat(first - starts, count) + np.arange(int(count.sum()))


def _sweep(
    runs: Array,
    ctas: Array,
    wrote: Array,
    sites: Sequence[Site],
    found: dict[tuple[int, int], RawFinding],
) -> None:
    """Hold each run against the write that reaches furthest before it, and all against writes."""
    for writers, others in ((wrote, np.ones_like(wrote)), (np.ones_like(wrote), wrote)):
        # Of the runs before each, the one of `writers` that ends last, of one CTA and of another.
        reach = np.where(writers, runs[:, 1], 0)
        furthest = np.maximum.accumulate(reach)
        before = np.maximum.accumulate(np.where(reach == furthest, np.arange(len(runs)), 0))
        last = np.concatenate([[0], before[:-1]])
        meets = others & (furthest[last] > runs[:, 0]) & writers[last]
        meets[0] = False
        for index in np.nonzero(meets & (ctas[last] != ctas))[0]:
            _enter(runs, ctas, int(index), int(last[index]), sites, found)
        # Where that one is of the same CTA, another of those that overlap may not be.
        for index in np.nonzero(meets & (ctas[last] == ctas))[0]:
            for back in range(int(index) - 1, max(int(index) - 64, -1), -1):
                alike = ctas[back] == ctas[index] or not writers[back]
                if not alike and runs[back, 1] > runs[index, 0]:
                    _enter(runs, ctas, int(index), back, sites, found)
                    break


def _enter(
    runs: Array,
    ctas: Array,
    one: int,
    two: int,
    sites: Sequence[Site],
    found: dict[tuple[int, int], RawFinding],
) -> None:
    """Enter a race of two runs: at the CTA of the higher number, after that of the lower."""
    here, there = sorted((one, two), key=lambda index: (-int(ctas[index]), index))
    words = [int(runs[index, 2]) for index in (here, there)]
    numbers = [word & 0xFFFFFFFF for word in words]
    key = (min(numbers), max(numbers))
    known = found.get(key)
    if known is not None:
        found[key] = replace(known, count=known.count + 1)
        return
    start = max(int(runs[here, 0]), int(runs[there, 0]))
    end = min(int(runs[here, 1]), int(runs[there, 1]))
    found[key] = RawFinding(
        kind="global-race",
        cta=int(ctas[here]),
        site=sites[numbers[0]],
        other=sites[numbers[1]],
        owner=OWNERS[words[0] >> _OWNER_SHIFT & 7],
        other_owner=OWNERS[words[1] >> _OWNER_SHIFT & 7],
        warp=words[0] >> _WARP_SHIFT & 31,
        lanes=1 << (words[0] >> _LANE_SHIFT & 31),
        other_warp=words[1] >> _WARP_SHIFT & 31,
        other_lanes=1 << (words[1] >> _LANE_SHIFT & 31),
        space=Space.GLOBAL,
        address=start,
        size=end - start,
        count=1,
    )
