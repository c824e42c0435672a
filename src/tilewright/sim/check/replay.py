"""Blocks of records that one actor accesses one after another, as the rows of boxes and tiles.

May import `sim.engine` and the modules of `sim.check` below it. Neighbours are mostly alike: what
holds for one block does for the next, once the two have been compared.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import late, rows, state
from tilewright.sim.check.judge import WHO, WORDS, owner_of, tick_of, written_at
from tilewright.sim.check.lines import LANES, RECORDS, line_at, of_record, settle
from tilewright.sim.check.rows import Routine, routine, run
from tilewright.sim.check.shadow import Access

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_NOTHING = f"splat (i64 {(1 << 64) - 1})"  # no entry is this


def _records(writes: bool) -> Routine:
    """Give the function for all bytes of records that follow one another.

    Those that are written are a line, whose records may be of lanes of their own.
    """

    def body(f: NativeMachine) -> None:
        access = Access(f, writes)
        first, count, lane = (f.lanes(UINT64, f"%{n}", 0) for n in ("number", "count", "lane"))
        with f.function.loop(str(count.value)) as counter:
            index = f.lanes(UINT64, counter, 0)
            own = of_record(f, lane | state.BYTES, index) & ~state.BYTES if writes else lane
            access.record(first + index, own, f.constant(state.BYTES, UINT64))

    name = f"check_{'write' if writes else 'read'}_records"
    parameters = f"ptr %ctx, i64 %number, i64 %count, i64 %lane, {Access.PARAMETERS}"
    return routine(name, parameters)(body)


_RECORDS = {writes: _records(writes) for writes in (False, True)}


class Replay:
    """Blocks of records that one actor reads alike, one after another.

    What an access makes of a block depends on what stands there only. Where that is what stood in
    the block before, so is the outcome, which is written without another look. `ways` outcomes
    are remembered.
    """

    def __init__(self, access: Access, count: int, ways: int) -> None:
        self.access = access
        self.count = count
        self.ways = ways
        f = access.f
        self.vector = f"<{count * WORDS} x i64>"
        self.before, self.after = (f.function.slot(f"[{ways} x {self.vector}]") for _ in range(2))
        for way in range(ways):
            at = f.op(f"getelementptr {self.vector}, ptr {self.before}, i64 {way}")
            f.function.emit(f"store {self.vector} {_NOTHING}, ptr {at}, align 64")

    def block(self, first: Lanes, way: Lanes | int, lane: Lanes) -> None:
        """Access all bytes of the records from `first` on."""
        access, f = self.access, self.access.f
        settle(f, first)
        kind, bits = self.vector, 16 * self.count
        at, written = self._places(first)
        index: object = way if isinstance(way, int) else f.cast(way, UINT64).value
        before, after = (
            f.op(f"getelementptr {kind}, ptr {each}, i64 {index}")
            for each in (self.before, self.after)
        )
        here = f.op(f"load {kind}, ptr {at}, align 8")
        there = f.op(f"load {kind}, ptr {before}, align 64")
        same = access.none(f"icmp ne {kind} {here}, {there}", self.count * WORDS)
        whole = f.op(f"icmp eq i{bits} {f.op(f'load i{bits}, ptr {written}, align 2')}, -1")
        again, anew, done = (f.function.new_label(s) for s in ("again", "anew", "done"))
        f.function.branch_if(f.op(f"and i1 {same}, {whole}"), again, anew)
        f.function.label(again)
        outcome = f.op(f"load {kind}, ptr {after}, align 64")
        f.function.emit(f"store {kind} {outcome}, ptr {at}, align 8")
        f.function.branch(done)
        f.function.label(anew)
        self._each(first, lane)
        f.function.emit(f"store {kind} {here}, ptr {before}, align 64")
        outcome = f.op(f"load {kind}, ptr {at}, align 8")
        f.function.emit(f"store {kind} {outcome}, ptr {after}, align 64")
        f.function.branch(done)
        f.function.label(done)

    def _places(self, first: Lanes) -> tuple[str, str]:
        """Address the records from a number on, and what of them is written."""
        access, f = self.access, self.access.f
        at = f.op(f"getelementptr i8, ptr {access.shadow}, i64 {(first << 5).value}")
        return at, written_at(f, access.written, first)

    def _each(self, first: Lanes, lane: Lanes) -> None:
        """Access one record after another."""
        f = self.access.f
        words = (("i64", first), ("i64", str(self.count)), ("i64", lane))
        run(f, _RECORDS[self.access.writes], *words, *self.access.actor)


class Overwriting(Replay):
    """Lines that one actor writes.

    All that matters of what stands there is that it comes before: who has done it, and when. That
    of the last line that was looked at is remembered.
    """

    def __init__(self, access: Access) -> None:
        super().__init__(access, RECORDS, 1)
        self.line_before = access.f.function.slot("i64", 8)
        access.f.function.emit(f"store i64 1, ptr {self.line_before}")  # is nobody

    def block(self, first: Lanes, way: Lanes | int, lane: Lanes) -> None:
        """Write all bytes of the line of the records from `first` on."""
        f = self.access.f
        line = line_at(f, first >> 3)
        entry = f.get_word(line, 0)
        names = ("line", "records", "new", "good", "bad", "done")
        as_line, as_records, new, good, bad, done = (f.function.new_label(n) for n in names)
        f.function.branch_if(str((entry != state.SETTLED).value), as_line, as_records)
        f.function.label(as_line)
        before = f.lanes(UINT64, f.op(f"load i64, ptr {self.line_before}"), 0)
        f.function.branch_if(str(((entry & WHO) == before).value), good, new)
        f.function.label(new)
        known = rows.ask_known(f, self.access.quick, owner_of(entry), tick_of(entry))
        f.function.emit(f"store i64 {(entry & WHO).value}, ptr {self.line_before}")
        f.function.branch_if(str((known | (entry == state.EMPTY)).value), good, bad)
        f.function.label(as_records)
        self._records(first, good, bad)
        f.function.label(good)
        f.set_word(line, 0, self.access.who | lane | state.BYTES)
        f.function.branch(done)
        f.function.label(bad)
        f.function.emit(f"store i64 1, ptr {self.line_before}")
        self._each(first, lane)
        f.function.branch(done)
        f.function.label(done)

    def _records(self, first: Lanes, good: str, bad: str) -> None:
        """Go where all is known that stands in the records of a line, or where it is not."""
        access, f = self.access, self.access.f
        kind = self.vector
        at, _ = self._places(first)
        words = f.op(f"load {kind}, ptr {at}, align 8")
        here = f.op(f"and {kind} {words}, splat (i64 {WHO})")
        there = f.op(f"load {kind}, ptr {self.before}, align 64")
        anew, known = (f.function.new_label(each) for each in ("anew", "known"))
        f.function.branch_if(
            access.none(f"icmp ne {kind} {here}, {there}", self.count * WORDS), good, anew
        )
        f.function.label(anew)
        f.function.branch_if(access.all_known(at, self.count), known, bad)
        f.function.label(known)
        f.function.emit(f"store {kind} {here}, ptr {self.before}, align 64")
        f.function.branch(good)


def blocks(access: Access) -> Replay:
    """Prepare accesses to lines of shared memory."""
    return Overwriting(access) if access.writes else Replay(access, RECORDS, 8)


def overwrite_by_warp(access: Access, offset: Lanes) -> None:
    """Write a record per lane, by its uint32 offset in shared memory; and return.

    Where lanes do not fill lines that follow one another, eight lanes each, this does not return.
    """
    f = access.f
    number = offset >> 4
    leading = [lane & ~(RECORDS - 1) for lane in range(WARP)]
    first = f.lanes(UINT32, f.permute(str(number.value), "i32", WARP, leading), WARP)
    neat = f.bits(number == (first ^ (f.lane_id() & (RECORDS - 1)))) == (1 << WARP) - 1
    lines = [f.pick(number, f.constant(lane, UINT32)) >> 3 for lane in range(0, WARP, RECORDS)]
    for one, following in pairwise(lines):
        neat = neat & (following == one + 1)
    with f.function.when(str(neat.value)):
        start = f.cast(lines[0], UINT64) << 3
        words = (("i64", start), ("i64", start + (WARP - 1)), ("i1", "true"))
        run(f, late.overwrite, *words, ("ptr", access.quick))
        numbers = f.spill(number)
        overwriting = Overwriting(access)
        with f.function.loop(str(WARP // RECORDS)) as counter:
            lane = f.lanes(UINT64, counter, 0) * RECORDS
            here = f.cast(
                f.lanes(UINT32, f.load_element(numbers, UINT32, str(lane.value)), 0), UINT64
            )
            whose = (lane | (here & (RECORDS - 1))) << state.LANE_SHIFT
            overwriting.block(here & ~(RECORDS - 1), 0, whose | (LANES << state.STEP_SHIFT))
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))
