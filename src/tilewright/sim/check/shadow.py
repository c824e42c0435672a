"""Shadow of memory as native code: who last wrote and read each byte, and when.

May import `sim.engine` and the modules of `sim.check` below it. For every 16 bytes there is a
record of four entries; where more would be needed the oldest is forgotten. An access is held
against the entries that have some of its bytes. It is quickly good if those are older than the
floor of who acts, or known to its row; else `judge` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import rows, state
from tilewright.sim.check.judge import (
    ASYNC,
    ENTRIES,
    FREES,
    MBARRIER,
    PATTERN,
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
from tilewright.sim.check.rows import run

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_AT_ONCE = 8  # records of a warp's access


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
        self._read_again(at, entry)
        f.function.branch(after)
        f.function.label(other)
        self._read(at, number, entry, every)
        f.function.branch(after)
        f.function.label(after)

    def warp(self, offset: Lanes) -> None:
        """Access all bytes of a record per lane, by its offset in shared memory; and return.

        It is done at a stroke where neighbours are alike, as the rows of a matrix mostly are, and
        nothing in them is news: else this does nothing, and does not return.
        """
        f = self.f
        places = f.spill((offset & ~15) << 1)
        lanes = f.cast(f.lane_id(), UINT64) << state.LANE_SHIFT
        entries = f.spill(lanes | (self.who | (state.ONE_LANE << state.STEP_SHIFT) | state.BYTES))
        with f.function.when(self._are_old(places)):
            with f.function.loop(str(WARP // _AT_ONCE)) as counter:
                for index in range(_AT_ONCE):
                    at, number = self._at(places, index, counter)
                    entry = f.lanes(UINT64, f.load_element(entries, UINT64, number), 0)
                    (self._write_over if self.writes else self._read_again)(at, entry)
            if self.writes:
                with f.function.loop(str(WARP)) as counter:
                    place = f.lanes(UINT64, f.load_element(places, UINT64, counter), 0)
                    self._set_all_written(place >> 5)
            f.function.emit("ret void")
            f.function.label(f.function.new_label("dead"))

    def _are_old(self, places: str) -> str:
        """Tell whether the records of a warp are known to come before."""
        f = self.f
        slot = f.function.slot("i1", 1)
        f.function.emit(f"store i1 true, ptr {slot}")
        # Rows of a matrix that are read together were written together, as a rule; chunks of a row
        # were read in pairs.
        together = 2 if self.writes else _AT_ONCE
        with f.function.loop(str(WARP // _AT_ONCE)) as counter:
            good = f.lanes(BOOL, f.op(f"load i1, ptr {slot}"), 0)
            records = [self._at(places, index, counter)[0] for index in range(_AT_ONCE)]
            for start in range(0, _AT_ONCE, together):
                good = good & self._group_is_old(records[start : start + together])
            f.function.emit(f"store i1 {good.value}, ptr {slot}")
        return f.op(f"load i1, ptr {slot}")

    def _group_is_old(self, records: Sequence[str]) -> Lanes:
        """Tell whether records are alike, as far as it matters, and known."""
        f = self.f
        words = WORDS if self.writes else 1
        kind = f"<{words} x i64>"
        first, *others = (f.op(f"load {kind}, ptr {at}, align 8") for at in records)
        found = "zeroinitializer"
        for each in others:
            found = f.op(f"or {kind} {found}, {f.op(f'xor {kind} {each}, {first}')}")
        good = f.constant(True, BOOL)
        for index in range(words):
            old, differs = (
                f.lanes(UINT64, f.op(f"extractelement {kind} {each}, i32 {index}"), 0)
                for each in (first, found)
            )
            good = good & rows.ask_known(f, self.quick, owner_of(old), tick_of(old))
            if self.writes:
                good = good & ((differs & WHO) == 0)
            else:
                # Where the last write was of all bytes, nothing before it counts.
                good = good & ((differs & (WHO | state.BYTES)) == 0)
                good = good & ((old & state.BYTES) == state.BYTES)
        return good

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

    def _at(self, places: str, index: int, counter: str) -> tuple[str, str]:
        """Address the record of a lane, which is numbered too."""
        f = self.f
        number = f.op(f"add i64 {f.op(f'mul i64 {counter}, {_AT_ONCE}')}, {index}")
        place = f.load_element(places, UINT64, number)
        return f.op(f"getelementptr i8, ptr {self.shadow}, i64 {place}"), number

    def _read_again(self, at: str, entry: Lanes) -> None:
        """Enter a read of all bytes."""
        f = self.f
        last, before = f.get_word(at, 2), f.get_word(at, 3)
        alike = ((last ^ entry) & PATTERN) == 0
        f.set_word(at, 2, entry)
        f.set_word(at, 3, f.select(alike, before, last))

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
