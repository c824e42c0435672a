"""Shadow of memory as native code: who last wrote and read each byte, and when.

May import `sim.engine` and the modules of `sim.check` below it. For every 16 bytes there is a
record of four entries; where more would be needed the oldest is forgotten. An access is held
against the entries that have some of its bytes. It is quickly good if those are older than the
floor of who acts, or known to its row; else `judge` decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import Lanes
from tilewright.sim.check import rows, state
from tilewright.sim.check.judge import (
    ASYNC,
    ENTRIES,
    PATTERN,
    WORDS,
    WRITTEN_CELLS,
    owner_of,
    set_written,
    tick_of,
    written_at,
    written_of,
)
from tilewright.sim.check.rows import run

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine


class Access:
    """Accesses by one actor to records of shared memory, in a function under construction.

    The function has the parameters `PARAMETERS` beside others.
    """

    PARAMETERS = "i32 %lanes, i32 %site, i32 %owner, i32 %flags"

    def __init__(self, f: NativeMachine, writes: bool, *, cells: bool = False) -> None:
        self.f = f
        self.writes = writes
        lanes, site, owner, flags = (
            f.lanes(UINT32, f"%{n}", 0) for n in ("lanes", "site", "owner", "flags")
        )
        self.flags, self.lanes = flags, lanes
        self.tick = state.now(f)
        most = f.constant(state.MOST_SITES, UINT32)
        place = f.cast(f.binary("min", site, most), UINT64) << state.SITE_SHIFT
        self.who = f.cast(self.tick, UINT64) << state.TICK_SHIFT
        self.who = self.who | (f.cast(owner, UINT64) << state.OWNER_SHIFT) | place
        state.put(f, "last", owner, self.tick)
        self.row = rows.acting_row(f, lanes)
        index = rows.warp(f)
        ahead = rows.knows_ahead(f, lanes)
        floor = f.select(ahead, *(state.get(f, n, index) for n in ("ahead_floor", "floor")))
        through = (flags & ASYNC) != 0
        if writes:
            generic = f.select(owner < state.TENSOR, lanes, f.constant(0, UINT32))
            state.put(f, "dirty", index, state.get(f, "dirty", index) | generic)
        # Through the asynchronous proxy it is not enough to know of an access.
        self.quick_row = f.function.slot("ptr", 8)
        f.function.emit(f"store ptr {self.row}, ptr {self.quick_row}")
        with f.function.when(str(through.value)):
            seen = state.at(f, "seen_row")
            run(f, rows.see, ("ptr", seen), ("ptr", self.row))
            f.function.emit(f"store ptr {seen}, ptr {self.quick_row}")
        self.quick = f.op(f"load ptr, ptr {self.quick_row}")
        low = f.select(through, f.constant(0, UINT32), floor)
        self.limit = ((f.cast(low, UINT64) + 1) << state.TICK_SHIFT) - 1
        self.shadow = f.pointer("check_cells" if cells else "check_shadow")
        self.written = f.pointer("check_written")
        if cells:
            self.written = f.op(f"getelementptr i8, ptr {self.shadow}, i64 {WRITTEN_CELLS}")

    def lane(self, lane: Lanes | int, step: int | Lanes) -> Lanes:
        """Say whose bytes are, as bits of an entry."""
        f = self.f
        first = f.cast(f.lift(lane, UINT32), UINT64) << state.LANE_SHIFT
        return first | (f.cast(f.lift(step, UINT32), UINT64) << state.STEP_SHIFT)

    def record(self, number: Lanes, lane: Lanes, bytes: Lanes) -> None:
        """Access bytes of a record."""
        f = self.f
        at = f.op(f"getelementptr i8, ptr {self.shadow}, i64 {(number << 5).value}")
        entry = self.who | lane | bytes
        (self._write if self.writes else self._read)(at, number, entry, bytes)

    def whole(self, number: Lanes, lane: Lanes) -> None:
        """Access all bytes of a record."""
        f = self.f
        every = f.constant(state.BYTES, UINT64)
        if self.writes:
            self.record(number, lane, every)
            return
        at = f.op(f"getelementptr i8, ptr {self.shadow}, i64 {(number << 5).value}")
        entry = self.who | lane | every
        newest = f.get_word(at, 0)
        known = rows.ask_known(f, self.quick, owner_of(newest), tick_of(newest))
        plain, other, after = (f.function.new_label(s) for s in ("plain", "other", "after"))
        # Where the last write was of all bytes, nothing before it counts.
        covers = (newest & state.BYTES) == state.BYTES
        f.function.branch_if(str((known & covers).value), plain, other)
        f.function.label(plain)
        last, before = f.get_word(at, 2), f.get_word(at, 3)
        alike = ((last ^ entry) & PATTERN) == 0
        f.set_word(at, 2, entry)
        f.set_word(at, 3, f.select(alike, before, last))
        f.function.branch(after)
        f.function.label(other)
        self._read(at, number, entry, every)
        f.function.branch(after)
        f.function.label(after)

    def _quick(self, old: Lanes, entry: Lanes) -> Lanes:
        """Tell whether an entry is known to come before, or has other bytes."""
        f = self.f
        known = rows.ask_known(f, self.quick, owner_of(old), tick_of(old))
        return known | ((old & entry & state.BYTES) == 0)

    def _look(self, at: str, number: Lanes, entry: Lanes, bad: Lanes) -> None:
        f = self.f
        with f.function.when(str(bad.value)):
            words = (("ptr", at), ("i64", entry), ("i64", number), ("i32", self.flags))
            run(f, ENTRIES[self.writes], *words, ("ptr", self.row))

    def _read(self, at: str, number: Lanes, entry: Lanes, bytes: Lanes) -> None:
        f = self.f
        first, second = f.get_word(at, 0), f.get_word(at, 1)
        written = written_of(f, written_at(f, self.written, number))
        missing = (bytes & ~written) != 0
        late = f.binary("max", first, second) > self.limit
        with f.function.when(str((late | missing).value)):
            good = self._quick(first, entry) & self._quick(second, entry)
            self._look(at, number, entry, ~good | missing)
        last, before = f.get_word(at, 2), f.get_word(at, 3)
        alike = ((last ^ entry) & PATTERN) == 0
        covered = (last & ~entry & state.BYTES) == 0
        replaces = (alike & covered) | (last == 0)
        f.set_word(at, 3, f.select(replaces, before, last))
        f.set_word(at, 2, entry)

    def _write(self, at: str, number: Lanes, entry: Lanes, bytes: Lanes) -> None:
        f = self.f
        entries = [f.get_word(at, index) for index in range(WORDS)]
        newest = f.binary("max", f.binary("max", *entries[:2]), f.binary("max", *entries[2:]))
        with f.function.when(str((newest > self.limit).value)):
            good = f.constant(True, BOOL)
            for old in entries:
                good = good & self._quick(old, entry)
            self._look(at, number, entry, ~good)
        whole, part, after = (f.function.new_label(s) for s in ("whole", "part", "after"))
        f.function.branch_if(str((bytes == state.BYTES).value), whole, part)
        f.function.label(whole)
        vector = f"<{WORDS} x i64>"
        alone = f.op(f"insertelement {vector} zeroinitializer, i64 {entry.value}, i32 0")
        f.function.emit(f"store {vector} {alone}, ptr {at}, align 8")
        f.function.emit(f"store i16 -1, ptr {written_at(f, self.written, number)}")
        f.function.branch(after)
        f.function.label(part)
        self._write_part(at, number, entries, entry, bytes)
        f.function.branch(after)
        f.function.label(after)

    def _write_part(
        self, at: str, number: Lanes, entries: list[Lanes], entry: Lanes, bytes: Lanes
    ) -> None:
        """Take bytes out of the entries that have them, and enter a write of them."""
        f = self.f
        none = f.constant(0, UINT64)
        left: list[Lanes] = []
        for old in entries:
            fewer = old & ~bytes
            left.append(f.select((fewer & state.BYTES) == 0, none, fewer))
        same = ((entries[0] ^ entry) & ~f.constant(state.BYTES, UINT64)) == 0
        joined = f.select(same, entries[0] | bytes, entry)
        older = f.select(same | (left[0] == 0), left[1], left[0])
        for index, value in enumerate((joined, older, *left[2:])):
            f.set_word(at, index, value)
        place = written_at(f, self.written, number)
        set_written(f, place, written_of(f, place) | bytes)


class Replay:
    """Blocks of records that one actor accesses alike, one after another.

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
        nothing = f"splat (i64 {(1 << 64) - 1})"
        for way in range(ways):
            at = f.op(f"getelementptr {self.vector}, ptr {self.before}, i64 {way}")
            f.function.emit(f"store {self.vector} {nothing}, ptr {at}, align 64")

    def block(self, first: Lanes, way: Lanes | int, lane: Lanes) -> None:
        """Access all bytes of the records from `first` on."""
        access, f = self.access, self.access.f
        kind, bits = self.vector, 16 * self.count
        at = f.op(f"getelementptr i8, ptr {access.shadow}, i64 {(first << 5).value}")
        written = written_at(f, access.written, first)
        index: object = way if isinstance(way, int) else f.cast(way, UINT64).value
        before, after = (
            f.op(f"getelementptr {kind}, ptr {each}, i64 {index}")
            for each in (self.before, self.after)
        )
        here = f.op(f"load {kind}, ptr {at}, align 8")
        there = f.op(f"load {kind}, ptr {before}, align 64")
        differs = f.op(f"icmp ne {kind} {here}, {there}")
        width = self.count * WORDS
        same = f.op(f"icmp eq i{width} {f.op(f'bitcast <{width} x i1> {differs} to i{width}')}, 0")
        if not access.writes:
            whole = f.op(f"icmp eq i{bits} {f.op(f'load i{bits}, ptr {written}, align 2')}, -1")
            same = f.op(f"and i1 {same}, {whole}")
        again, anew, done = (f.function.new_label(s) for s in ("again", "anew", "done"))
        f.function.branch_if(same, again, anew)
        f.function.label(again)
        outcome = f.op(f"load {kind}, ptr {after}, align 64")
        f.function.emit(f"store {kind} {outcome}, ptr {at}, align 8")
        if access.writes:
            f.function.emit(f"store i{bits} -1, ptr {written}, align 2")
        f.function.branch(done)
        f.function.label(anew)
        with f.function.loop(str(self.count)) as counter:
            number = first + f.lanes(UINT64, counter, 0)
            access.record(number, lane, f.constant(state.BYTES, UINT64))
        f.function.emit(f"store {kind} {here}, ptr {before}, align 64")
        outcome = f.op(f"load {kind}, ptr {at}, align 8")
        f.function.emit(f"store {kind} {outcome}, ptr {after}, align 64")
        f.function.branch(done)
        f.function.label(done)
