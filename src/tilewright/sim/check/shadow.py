"""Shadow of memory as native code: who last wrote and read each byte, and when.

May import `sim.engine` and the modules of `sim.check` below it. For every 16 bytes there is a
record of four entries; where more would be needed the oldest is forgotten. An access is held
against the entries that have some of its bytes. It is quickly good if those are older than the
floor of who acts, or known to its row; else `judge` decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import rows, state
from tilewright.sim.check.hidden import pass_by
from tilewright.sim.check.judge import (
    ASYNC,
    ENTRIES,
    FREES,
    MBARRIER,
    PATTERN,
    STRONG,
    UPDATES,
    WHO,
    WORDS,
    WRITTEN_CELLS,
    owner_of,
    set_written,
    tick_of,
    written_at,
    written_of,
)
from tilewright.sim.check.lanes import note
from tilewright.sim.check.lines import settle
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
        self.flags, self.lanes, self.owner, self.cells = flags, lanes, owner, cells
        self.actor = tuple(("i32", each) for each in (lanes, site, owner, flags))
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
        generic = (owner < state.TENSOR) | (owner >> 5 == state.COPIES >> 5)
        none = f.constant(0, UINT32)
        own = f.select(generic & ((flags & MBARRIER) == 0), lanes, none)
        note(f, own)
        if writes:
            state.put(f, "dirty", index, state.get(f, "dirty", index) | own)
        # Through the asynchronous proxy it is not enough to know of an access.
        self.quick_row = f.function.slot("ptr", 8)
        f.function.emit(f"store ptr {self.row}, ptr {self.quick_row}")
        with f.function.when(str(through.value)):
            seen = state.at(f, "seen_row")
            run(f, rows.see, ("ptr", seen), ("ptr", self.row))
            f.function.emit(f"store ptr {seen}, ptr {self.quick_row}")
        if cells:
            # A fence must follow what others did, but for what they free.
            through = through | ((flags & FREES) == 0)
            fenced = state.at(f, "fenced_row", index)
            chosen = f.op(f"select i1 {through.value}, ptr {fenced}, ptr {self.row}")
            f.function.emit(f"store ptr {chosen}, ptr {self.quick_row}")
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
        if not self.cells:
            settle(f, number)
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
        settle(f, number)
        at = f.op(f"getelementptr i8, ptr {self.shadow}, i64 {(number << 5).value}")
        entry = self.who | lane | every
        newest = f.get_word(at, 0)
        known = rows.ask_known(f, self.quick, owner_of(newest), tick_of(newest))
        plain, other, after = (f.function.new_label(s) for s in ("plain", "other", "after"))
        # Where the last write was of all bytes, nothing before it counts.
        covers = (newest & state.BYTES) == state.BYTES
        f.function.branch_if(str((known & covers).value), plain, other)
        f.function.label(plain)
        enter_read(f, at, entry)
        f.function.branch(after)
        f.function.label(other)
        self._read(at, number, entry, every)
        f.function.branch(after)
        f.function.label(after)

    def warp(self, offset: Lanes) -> str:
        """Access all bytes of a record per lane, by its uint32 offset in shared memory; and return.

        What stands in the records is mostly alike: once it is known to come before, so is what is
        like it. Where some of it is news this does not return, and the records are to be accessed
        one by one. That they have been read already does no harm then. Gives the address of the
        offsets.
        """
        f = self.f
        places = f.spill(offset)
        good = f.function.slot("i1", 1)
        f.function.emit(f"store i1 true, ptr {good}")
        before = f.function.slot(f"<{WORDS} x i64>" if self.writes else "i64", 8 * WORDS)
        f.function.emit(f"store i64 -1, ptr {before}")  # no entry is this
        one = f.constant(state.ONE_LANE << state.STEP_SHIFT | state.BYTES, UINT64)
        entry = self.who | one
        with f.function.loop(str(WARP)) as counter:
            at, number = self._at(places, counter)
            settle(f, number)
            self._look_again(at, before, good)
            if not self.writes:
                lane = f.lanes(UINT64, counter, 0) << state.LANE_SHIFT
                enter_read(f, at, entry | lane)
        with f.function.when(f.op(f"load i1, ptr {good}")):
            if self.writes:
                with f.function.loop(str(WARP)) as counter:
                    at, number = self._at(places, counter)
                    lane = f.lanes(UINT64, counter, 0) << state.LANE_SHIFT
                    self._write_over(at, entry | lane)
                    self._set_all_written(number)
            f.function.emit("ret void")
            f.function.label(f.function.new_label("dead"))
        return places

    def _look_again(self, at: str, before: str, good: str) -> None:
        """Note whether all entries of a record that matter are known, if they are others."""
        (self._look_at_all if self.writes else self._look_at_newest)(at, before, good)

    def _look_at_all(self, at: str, before: str, good: str) -> None:
        f, kind = self.f, f"<{WORDS} x i64>"
        words = f.op(f"load {kind}, ptr {at}, align 8")
        here = f.op(f"and {kind} {words}, splat (i64 {WHO})")
        there = f.op(f"load {kind}, ptr {before}, align 32")
        same = self.none(f"icmp ne {kind} {here}, {there}", WORDS)
        with f.function.when(f.op(f"xor i1 {same}, true")):
            self._note(good, self.all_known(at, 1))
            f.function.emit(f"store {kind} {here}, ptr {before}, align 32")

    def _look_at_newest(self, at: str, before: str, good: str) -> None:
        f = self.f
        newest = f.get_word(at, 0)
        here = newest & (WHO | state.BYTES)
        there = f.lanes(UINT64, f.op(f"load i64, ptr {before}"), 0)
        with f.function.when(str((here != there).value)):
            # Where the last write was of all bytes, nothing before it counts.
            covers = (newest & state.BYTES) == state.BYTES
            known = rows.ask_known(f, self.quick, owner_of(newest), tick_of(newest)) & covers
            self._note(good, str(known.value))
            f.function.emit(f"store i64 {here.value}, ptr {before}")

    def _note(self, good: str, condition: str) -> None:
        f = self.f
        both = f.op(f"and i1 {f.op(f'load i1, ptr {good}')}, {condition}")
        f.function.emit(f"store i1 {both}, ptr {good}")

    def all_known(self, at: str, count: int) -> str:
        """Tell whether all entries of records that follow one another are known."""
        f = self.f
        slot = f.function.slot("i1", 1)
        f.function.emit(f"store i1 true, ptr {slot}")
        with f.function.loop(str(count)) as counter:
            good = f.lanes(BOOL, f.op(f"load i1, ptr {slot}"), 0)
            here = f.op(f"getelementptr <{WORDS} x i64>, ptr {at}, i64 {counter}")
            for index in range(WORDS):
                old = f.get_word(here, index)
                good = good & rows.ask_known(f, self.quick, owner_of(old), tick_of(old))
            f.function.emit(f"store i1 {good.value}, ptr {slot}")
        return f.op(f"load i1, ptr {slot}")

    def none(self, compared: str, width: int) -> str:
        """Tell whether a comparison of vectors holds nowhere."""
        f = self.f
        found = f.op(compared)
        return f.op(f"icmp eq i{width} {f.op(f'bitcast <{width} x i1> {found} to i{width}')}, 0")

    def _at(self, places: str, lane: str) -> tuple[str, Lanes]:
        """Address the record of a lane, and number it."""
        f = self.f
        offset = f.lanes(UINT32, f.load_element(places, UINT32, lane), 0)
        number = f.cast(offset, UINT64) >> 4
        return f.op(f"getelementptr i8, ptr {self.shadow}, i64 {(number << 5).value}"), number

    def _write_over(self, at: str, entry: Lanes) -> None:
        """Enter a write of all bytes."""
        f = self.f
        vector = f"<{WORDS} x i64>"
        alone = f.op(f"insertelement {vector} zeroinitializer, i64 {entry.value}, i32 0")
        f.function.emit(f"store {vector} {alone}, ptr {at}, align 8")

    def _set_all_written(self, number: Lanes) -> None:
        at = written_at(self.f, self.written, number)
        self.f.function.emit(f"store i16 -1, ptr {at}")

    def _quick(self, old: Lanes, entry: Lanes) -> Lanes:
        """Tell whether an entry is known to come before, or has other bytes."""
        f = self.f
        known = rows.ask_known(f, self.quick, owner_of(old), tick_of(old))
        return known | ((old & entry & state.BYTES) == 0)

    def _look(self, at: str, number: Lanes, entry: Lanes, bad: Lanes) -> None:
        f = self.f
        with f.function.when(str(bad.value)):
            words = (("ptr", at), ("i64", entry), ("i64", number), ("i32", self.flags))
            state.put(f, "acting", 0, self.lanes)
            run(f, ENTRIES[self.writes], *words, ("ptr", self.row))
            state.put(f, "acting", 0, 0)

    def _read(self, at: str, number: Lanes, entry: Lanes, bytes: Lanes) -> None:
        f = self.f
        first, second = f.get_word(at, 0), f.get_word(at, 1)
        written = written_of(f, written_at(f, self.written, number))
        missing = (bytes & ~written) != 0
        late = f.binary("max", first, second) > self.limit
        with f.function.when(str((late | missing).value)):
            good = self._quick(first, entry) & self._quick(second, entry)
            self._look(at, number, entry, ~good | missing)
        with f.function.when(str(((self.flags & UPDATES) == 0).value)):
            self._enter_part(at, entry)

    def _enter_part(self, at: str, entry: Lanes) -> None:
        f = self.f
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
        if not self.cells:
            with f.function.when(str(((self.flags & STRONG) != 0).value)):
                words = (("ptr", at), ("i64", entry), ("i64", number), ("i32", self.flags))
                run(f, pass_by, *words, ("ptr", self.row), ("i32", self.lanes))
        whole, part, after = (f.function.new_label(s) for s in ("whole", "part", "after"))
        f.function.branch_if(str((bytes == state.BYTES).value), whole, part)
        f.function.label(whole)
        self._write_over(at, entry)
        self._set_all_written(number)
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


def enter_read(f: NativeMachine, at: str, entry: Lanes) -> None:
    """Enter a read of all bytes of a record."""
    last, before = f.get_word(at, 2), f.get_word(at, 3)
    alike = ((last ^ entry) & PATTERN) == 0
    f.set_word(at, 2, entry)
    f.set_word(at, 3, f.select(alike, before, last))
