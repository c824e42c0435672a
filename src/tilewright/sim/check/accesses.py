"""Accesses to shared memory as functions of native code: of a warp, of runs, of boxes.

May import `sim.engine` and the modules of `sim.check` below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import clocks, late, rows, state
from tilewright.sim.check.judge import report
from tilewright.sim.check.lines import BYTES
from tilewright.sim.check.replay import blocks, overwrite_by_warp
from tilewright.sim.check.rows import Routine, each_bit, end_if, routine, run
from tilewright.sim.check.shadow import Access
from tilewright.sim.engine import context

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine


def _over_records(access: Access) -> None:
    """Prepare for a write to anything else."""
    if access.writes:
        late.enter_everything(access.f)


# ---------------------------------------------------------------------------- of a warp


def _inside(f: NativeMachine, address: Lanes, size: Lanes | int) -> Lanes:
    offset = address - context.SHARED_START
    return (address >= context.SHARED_START) & (offset + size <= f.field("shared_size"))


def vector(writes: bool, size: int) -> Routine:
    """Give the function for accesses of a warp, each lane of `size` bytes that it is aligned to."""

    def body(f: NativeMachine) -> None:
        end_if(f, f.field("error") != 0)
        address = f.lanes(UINT32, "%address", WARP)
        offset = address - context.SHARED_START
        shared = f.cast(f.field("shared_size"), UINT32)
        room = f.select(shared < size, f.constant(0, UINT32), shared - (size - 1))
        good = (offset < room) & ((address & (size - 1)) == 0)
        lanes = f.lanes(UINT32, "%lanes", 0) & f.bits(good)
        end_if(f, lanes == 0)
        access = Access(f, writes)
        atomic = f.lanes(UINT32, "%atomic", 0)
        whole = (lanes == (1 << WARP) - 1) & (atomic == 0)
        if size == state.RECORD_BYTES and writes:
            with f.function.when(str(whole.value)):
                overwrite_by_warp(access, offset)
        _over_records(access)
        if size == state.RECORD_BYTES:
            with f.function.when(str(whole.value)):
                _whole_records(f, access, offset)
        else:
            _contiguous(f, access, offset, whole, size)
        slot = f.spill(offset)
        remaining = f.function.slot("i32", 4)
        f.function.emit(f"store i32 {lanes.value}, ptr {remaining}")
        with each_bit(f, remaining) as lane:
            index = str(f.cast(lane, UINT64).value)
            here = f.cast(f.lanes(UINT32, f.load_element(slot, UINT32, index), 0), UINT64)
            within = f.constant((1 << size) - 1, UINT64) << (here & 15)
            step = f.select(atomic != 0, atomic, f.constant(state.ONE_LANE, UINT32))
            access.record(here >> 4, access.lane(lane, step), within)

    name = f"check_{'write' if writes else 'read'}_{size}"
    return routine(name, f"ptr %ctx, <32 x i32> %address, i32 %atomic, {Access.PARAMETERS}")(body)


def _whole_records(f: NativeMachine, access: Access, offset: Lanes) -> None:
    """Access a record per lane, and return."""
    if not access.writes:
        late.read_by_warp(access, offset)
    slot = access.warp(offset)
    with f.function.loop(str(WARP)) as counter:
        here = f.lanes(UINT32, f.load_element(slot, UINT32, counter), 0)
        lane = f.lanes(UINT64, counter, 0) << state.LANE_SHIFT
        number = f.cast(here, UINT64) >> 4
        access.whole(number, lane | (state.ONE_LANE << state.STEP_SHIFT))
    f.function.emit("ret void")
    f.function.label(f.function.new_label("dead"))


def _contiguous(
    f: NativeMachine, access: Access, offset: Lanes, everyone: Lanes, size: int
) -> None:
    """Access whole records, if every lane takes part and one follows the other; and return."""
    first = f.pick(offset, f.constant(0, UINT32))
    steps = f.lane_id() * size + first
    whole = (f.bits(steps == offset) == (1 << WARP) - 1) & ((first & 15) == 0) & everyone
    with f.function.when(str(whole.value)):
        start = f.cast(first, UINT64) >> 4
        with f.function.loop(str(WARP * size // state.RECORD_BYTES)) as counter:
            number = f.lanes(UINT64, counter, 0)
            lane = f.cast(number * (state.RECORD_BYTES // size), UINT32)
            access.whole(start + number, access.lane(lane, size.bit_length() - 1))
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))


# ---------------------------------------------------------------------------- runs


def _span(f: NativeMachine, number: Lanes, start: Lanes, end: Lanes) -> Lanes:
    """Give the bytes of a record that lie in a run."""
    base = number << 4
    none, most = f.constant(0, UINT64), f.constant(state.RECORD_BYTES, UINT64)
    low = f.select(start > base, start - base, none)
    high = f.binary("min", end - base, most)
    one = f.constant(1, UINT64)
    return ((one << high) - 1) & ~((one << low) - 1)


def run_of(writes: bool) -> Routine:
    """Give the function for a run of bytes; `pattern` says whose they are, as in an entry."""

    def body(f: NativeMachine) -> None:
        address, size = (f.lanes(UINT64, f"%{n}", 0) for n in ("address", "size"))
        end_if(f, (f.field("error") != 0) | ~_inside(f, address, size) | (size == 0))
        pattern = f.lanes(UINT64, "%pattern", 0)
        lines = ((address | size) & (BYTES - 1)) == 0
        with f.function.when(str(lines.value)):
            one, none = f.constant(1, UINT64), f.constant(0, UINT64)
            words = (("i64", each) for each in (address, size, size, one, none, pattern))
            actor = (("i32", f"%{name}") for name in ("lanes", "site", "owner", "flags"))
            run(f, BOXES[writes], *words, *actor)
        end_if(f, lines)
        access = Access(f, writes)
        start = address - context.SHARED_START
        end = start + size
        first = start >> 4
        count = ((end + 15) >> 4) - first
        _over_records(access)
        with f.function.loop(str(count.value)) as counter:
            number = first + f.lanes(UINT64, counter, 0)
            access.record(number, pattern, _span(f, number, start, end))

    name = f"check_{'write' if writes else 'read'}_run"
    parameters = f"ptr %ctx, i64 %address, i64 %size, i64 %pattern, {Access.PARAMETERS}"
    return routine(name, parameters)(body)


def box_of(writes: bool) -> Routine:
    """Give the function for rows of a box, whose chunks a swizzle moves."""

    def body(f: NativeMachine) -> None:
        address, row, pitch, rows, swizzle = (
            f.lanes(UINT64, f"%{n}", 0) for n in ("address", "row", "pitch", "rows", "swizzle")
        )
        small = (row < 1 << 20) & (pitch < 1 << 20) & (rows < 1 << 20)
        end_if(f, (f.field("error") != 0) | ~small)
        access = Access(f, writes)
        pattern = f.lanes(UINT64, "%pattern", 0)
        straight = ((address | row | pitch) & (BYTES - 1)) == 0
        straight = straight & _inside(f, address, rows * pitch)
        with f.function.when(str(straight.value)):
            first = address - context.SHARED_START
            if writes:
                last = first + rows * pitch - 1
                words = (("i64", first >> 4), ("i64", last >> 4), ("i1", row == pitch))
                run(f, late.overwrite, *words, ("ptr", access.quick))
            replay = blocks(access)
            with f.function.loop(str(rows.value)) as outer:
                start = first + f.lanes(UINT64, outer, 0) * pitch
                with f.function.loop(str((row >> 7).value)) as inner:
                    at = start + (f.lanes(UINT64, inner, 0) << 7)
                    replay.block(at >> 4, (at >> 7) & (replay.ways - 1), pattern)
            f.function.emit("ret void")
            f.function.label(f.function.new_label("dead"))
        _over_records(access)
        with f.function.loop(str(rows.value)) as outer:
            place = address + f.lanes(UINT64, outer, 0) * pitch
            with f.function.loop(str(((row + 15) >> 4).value)) as inner:
                at = f.lanes(UINT64, inner, 0) << 4
                chunk = place + at
                chunk = chunk ^ (((chunk >> 7) & swizzle) << 4)
                count = f.binary("min", row - at, f.constant(state.RECORD_BYTES, UINT64))
                start = chunk - context.SHARED_START
                # Rows of fewer than 16 bytes may begin within a record.
                good = _inside(f, chunk, count) & ((start & 15) + count <= 16)
                with f.function.when(str(good.value)):
                    within = ((f.constant(1, UINT64) << count) - 1) << (start & 15)
                    access.record(start >> 4, pattern, within)

    name = f"check_{'write' if writes else 'read'}_box"
    sizes = ", ".join(f"i64 %{n}" for n in ("address", "row", "pitch", "rows", "swizzle"))
    return routine(name, f"ptr %ctx, {sizes}, i64 %pattern, {Access.PARAMETERS}")(body)


@routine("check_use", "ptr %ctx, i32 %address, i32 %lanes, i32 %site, i1 %through")
def use(f: NativeMachine) -> None:
    """Note who issues what is seen through an mbarrier, which its proxy must know of."""
    address, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("address", "lanes", "site"))
    place = clocks.slot(f, address)
    state.put(f, "issuer", place & 31, rows.warp(f))
    state.put(f, "issuer_lanes", place & 31, lanes)
    state.put(f, "slot_issue", place, state.now(f))
    made = state.get(f, "slot_site", place)
    hidden = (made != 0) & (state.get(f, "slot_visible", place) == 0)
    with f.function.when(str((hidden & f.lanes(BOOL, "%through", 0)).value)):
        lane = f.cast(f.lowest(lanes), UINT64) << state.LANE_SHIFT
        one = lane | (state.ONE_LANE << state.STEP_SHIFT)
        owners = (state.get(f, "slot_warp", place), rows.warp(f))
        old, new = (
            one
            | (f.cast(owner, UINT64) << state.OWNER_SHIFT)
            | (f.cast(where & state.MOST_SITES, UINT64) << state.SITE_SHIFT)
            for owner, where in zip(owners, (made - 1, site), strict=True)
        )
        bytes = f.constant(0xFF, UINT64) << f.cast(address & 8, UINT64)
        number = f.cast(address - context.SHARED_START, UINT64) >> 4
        report(f, "mbarrier-init-visibility", old, new, bytes, number)
        state.put(f, "slot_visible", place, 1)


VECTORS: dict[tuple[bool, int], Routine] = {
    (writes, size): vector(writes, size) for writes in (False, True) for size in (1, 2, 4, 8, 16)
}
RUNS = {writes: run_of(writes) for writes in (False, True)}
BOXES = {writes: box_of(writes) for writes in (False, True)}
