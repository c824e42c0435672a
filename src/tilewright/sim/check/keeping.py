"""What a thread keeps of the CTAs that it runs, one after another, once their memory is needed.

May import `sim.engine` and the modules of `sim.check` below it. Native code readies the checker's
memory for a CTA and looks at it when that has ended, since both happen for every CTA, while there
is mostly nothing to tell. Python and native code share a *keeper*: words, of which `_FIELDS` are
the names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import Lanes
from tilewright.sim.check import apart, rows, state
from tilewright.sim.check.logs import Log
from tilewright.sim.check.rows import end_if, routine

if TYPE_CHECKING:
    from tilewright.sim.engine.jit import Code
    from tilewright.sim.engine.native import NativeMachine

MOST_CTAS = (1 << 32) - 1  # that a map tells apart
_PART_BYTES, _MOST_PARTS = 1 << 22, 16  # of memory for copies, and how many parts are kept
_FIELDS = (
    "part",  # host address of memory for copies,
    "part_size",
    "part_used",
    "places",  # of who has touched what (`apart`),
    "past",  # CTAs of past launches by now,
    "count",  # and those of this one,
    "notes",  # and of uses of descriptors in which nothing is to be found: so many
    "notes_good",
    "listed",  # how many bytes of lists the last CTA has had
    "flags",  # what is true of some CTA
    "watched_count",
    "watched",  # and more: bounds of watched memory
)
_FIELD = {name: index for index, name in enumerate(_FIELDS)}
# A CTA's lists are copied together, behind these words. Counts are of entries.
_HEAD = ("number", "flags", "log_count", "signal_count", "moment_count", "cut")
_LISTS = (
    ("log_count", "check_log", 8 * state.LOG_WORDS),
    ("signal_count", "check_signals", 8 * state.SIGNAL_WORDS),
    ("moment_count", "check_moments", state.ROW_BYTES),
)
# What is found of a CTA beside the flags of `apart`: there is no room for its lists, and it is not
# looked at; there is something to report, or may be; a list was full.
FULL, TELLS, PARTIAL = 8, 16, 32
_BEGIN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_END = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
_MEET = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)


class Keeper:
    """What one thread keeps; the memory is used again by other launches."""

    def __init__(self) -> None:
        self._words = np.zeros(len(_FIELDS) + 2 * state.WATCHED, np.uint64)
        self._notes = np.zeros(state.NOTES * state.NOTE_WORDS, np.uint32)
        self._places = np.zeros(0, np.uint8)
        self._parts: list[np.ndarray] = []
        self._full: list[int] = []  # how much of each part but the last one is in use
        self._put("notes", self._notes.ctypes.data)

    def begin(self, code: Code, watched: Sequence[tuple[int, int]], count: int) -> None:
        """Prepare for a launch of so many CTAs that accesses some of global memory."""
        self._size = apart.map_bytes(watched)
        past = self._get("past") + self._get("count") + 1
        if self._places.nbytes < self._size or past + count >= MOST_CTAS:
            self._places = np.zeros(max(self._places.nbytes, self._size), np.uint8)
            past = 0
        self._full = []
        self._open(0)
        for name, value in (
            *(("places", self._places.ctypes.data), ("past", past), ("count", count)),
            *(("flags", 0), ("notes_good", 0), ("watched_count", len(watched))),
        ):
            self._put(name, value)
        start = _FIELD["watched"]
        self._words[start : start + 2 * len(watched)] = [each for pair in watched for each in pair]
        self._address = self._words.ctypes.data
        self._begin: Any = _BEGIN(code.address(BEGIN))
        self._end: Any = _END(code.address(END))
        self._run: Any = _END(code.address(RUN))
        self._meet: Any = _MEET(code.address(MEET))

    def start(self, context: int) -> None:
        """Ready the checker's memory of a CTA, whose context lies at an address."""
        self._begin(context, self._address)

    def run(self, context: int, number: int) -> tuple[int, bool]:
        """Run a CTA from its beginning until it stops, and give its status and what `end` does."""
        found = self._run(context, self._address, number)
        return found & 0xFF, self._ended(found >> 8, context, number)

    def end(self, context: int, number: int) -> bool:
        """Keep what a CTA has done; tell whether there may be something to report of it."""
        return self._ended(self._end(context, self._address, number), context, number)

    def _ended(self, found: int, context: int, number: int) -> bool:
        if found & FULL:
            self._full.append(self._get("part_used"))
            self._open(self._get("part_size"))
            found = self._end(context, self._address, number)
        return bool(found & TELLS)

    def is_good(self, notes: bytes) -> None:
        """Note that there is nothing to find in uses of descriptors: mostly CTAs are alike."""
        words = np.frombuffer(notes, np.uint32)
        self._notes[: len(words)] = words
        self._put("notes_good", len(words) // state.NOTE_WORDS)

    @property
    def listed(self) -> int:
        """Give how many bytes of lists the last CTA has had."""
        return self._get("listed")

    @property
    def flags(self) -> int:
        """Give what is true of some CTA, as of bits."""
        return self._get("flags")

    def logs(self) -> Iterator[tuple[int, Log, bool]]:
        """List the CTAs: their numbers, their lists, whether they touch a byte twice."""
        for part, used in zip(self._parts, [*self._full, self._get("part_used")], strict=False):
            at = 0
            while at < used:
                size = 8 * len(_HEAD)
                head: dict[str, int] = dict(
                    zip(_HEAD, part[at : at + size].view(np.uint64).tolist(), strict=True)
                )
                at += size
                lists: list[np.ndarray] = []
                for count, _, bytes in _LISTS:
                    words = part[at : at + head[count] * bytes]
                    lists.append(words)
                    at += len(words)
                entries, signals, moments = lists
                log = Log(
                    entries.view(np.uint64).reshape(-1, state.LOG_WORDS),
                    signals.view(np.uint64).reshape(-1, state.SIGNAL_WORDS),
                    moments.view(np.uint32).reshape(-1, state.ROW),
                    head["cut"] - 1,
                )
                yield head["number"], log, bool(head["flags"] & apart.AGAIN)

    def meets(self, others: Sequence[Keeper]) -> bool:
        """Tell whether a CTA of one thread touches what one of another thread has written."""
        maps = [(each._get("places"), each._get("past")) for each in (self, *others)]
        table = np.array(maps, np.uint64)
        places = self._size // apart.PLACE_BYTES
        return bool(self._meet(table.ctypes.data, len(maps), places))

    def forget(self) -> None:
        """Give back what memory is more than is worth keeping."""
        del self._parts[_MOST_PARTS:]

    def _open(self, needed: int) -> None:
        number = len(self._full)
        if number < len(self._parts) and self._parts[number].nbytes < needed:
            del self._parts[number:]
        if number == len(self._parts):
            self._parts.append(np.empty(max(needed, _PART_BYTES), np.uint8))
        part = self._parts[number]
        for name, value in (("part", part.ctypes.data), ("part_size", part.nbytes)):
            self._put(name, value)
        self._put("part_used", 0)

    def _put(self, name: str, value: int) -> None:
        self._words[_FIELD[name]] = value

    def _get(self, name: str) -> int:
        return int(self._words[_FIELD[name]])


def are_apart(keepers: Sequence[Keeper]) -> bool:
    """Tell whether no CTA touches what another one has written."""
    if any(each.flags & apart.MEETS for each in keepers):
        return False
    return len(keepers) == 1 or not keepers[0].meets(keepers[1:])


# ---------------------------------------------------------------------------- in native code

BEGIN, END, RUN, MEET = "check_begin", "check_end", "check_run", "check_meet"


def _field(f: NativeMachine, name: str) -> Lanes:
    return f.get_word("%keeper", _FIELD[name])


@routine(BEGIN, "ptr %ctx, ptr %keeper", seldom=True)
def begin(f: NativeMachine) -> None:
    """Forget what the CTA before has done; watch accesses to some of global memory."""
    rows.clear_state(f)
    rows.clear_cells(f)
    records = (f.field("shared_size") + 127) >> 7 << 3
    rows.clear(f, f.pointer("check_slots"), records * 2)
    rows.clear(f, f.pointer("check_lines"), records, -1)
    state.put(f, "tick", 0, 1)
    count = _field(f, "watched_count")
    state.put(f, "watched_count", 0, count)
    with f.function.loop(str((count * 2).value)) as counter:
        index = f.lanes(UINT64, counter, 0)
        bound = f.get_word("%keeper", str((index + _FIELD["watched"]).value))
        state.put(f, "watched", index, bound)


@routine(END, "ptr %ctx, ptr %keeper, i32 %number", "i32", seldom=True)
def end(f: NativeMachine) -> None:
    """Copy the lists of a CTA, and give what is found of it."""
    used, size = _field(f, "part_used"), f.constant(8 * len(_HEAD), UINT64)
    counts = {name: state.get(f, name) for name, _, _ in _LISTS}
    for name, _, bytes in _LISTS:
        size = size + counts[name] * bytes
    full = size > _field(f, "part_size") - used
    with f.function.when(str(full.value)):
        # What is left of the part is too little: the next one is to be as large as this at least.
        f.set_word("%keeper", _FIELD["part_size"], size)
    end_if(f, full, f"i32 {FULL}")
    f.set_word("%keeper", _FIELD["part_used"], used + size)
    f.set_word("%keeper", _FIELD["listed"], size)
    base = f.op(f"load ptr, ptr {f.word('%keeper', _FIELD['part'])}")
    head = f.op(f"getelementptr i8, ptr {base}, i64 {used.value}")
    at = f.op(f"getelementptr i8, ptr {head}, i64 {8 * len(_HEAD)}")
    for name, field, bytes in _LISTS:
        length = counts[name] * bytes
        _copy(f, at, f.pointer(field), length)
        at = f.op(f"getelementptr i8, ptr {at}, i64 {length.value}")
    number, cut = f.lanes(UINT32, "%number", 0), state.get(f, "cut")
    places = f.op(f"load ptr, ptr {f.word('%keeper', _FIELD['places'])}")
    past, count = (f.cast(_field(f, name), UINT32) for name in ("past", "count"))
    # Those of this launch have the numbers after `past`, and what comes after them all is several.
    whose = (("i32", past), ("i32", past + count + 1), ("i32", past + number + 1))
    found = f.lanes(UINT32, rows.ask(f, apart.enter, "i32", ("ptr", places), *whose), 0)
    none = f.constant(0, UINT32)
    permit = (f.field("tmem_permit") | f.field("tmem_columns")) == 0
    tells = (state.get(f, "found_count") != 0) | ((state.get(f, "allocated") != 0) & permit)
    tells = tells | f.lanes(BOOL, rows.ask(f, _noted, "i1", ("ptr", "%keeper")), 0)
    partial = (cut != 0) | (counts["log_count"] >= state.LOG_ENTRIES)
    for condition, bit in ((tells, TELLS), (partial, PARTIAL)):
        found = found | f.select(condition, f.constant(bit, UINT32), none)
    values = (number, found, *counts.values(), cut)
    for index, value in enumerate(values):
        f.set_word(head, index, value)
    flags = _field(f, "flags") | f.cast(found, UINT64)
    f.set_word("%keeper", _FIELD["flags"], flags)
    f.function.emit(f"ret i32 {found.value}")


def _copy(f: NativeMachine, to: str, source: str, size: Lanes) -> None:
    name = "llvm.memcpy.p0.p0.i64"
    f.module.declare(name, f"declare void @{name}(ptr, ptr, i64, i1)")
    f.function.emit(f"call void @{name}(ptr {to}, ptr {source}, i64 {size.value}, i1 false)")


@routine(RUN, "ptr %ctx, ptr %keeper, i32 %number", "i32", seldom=True)
def whole(f: NativeMachine) -> None:
    """Run a CTA from its beginning until it stops; give its status, and what is found of it."""
    rows.run(f, begin, ("ptr", "%keeper"))
    status = f.lanes(UINT32, f.op("call i32 @run_cta(ptr %ctx)"), 0)
    number = f.lanes(UINT32, "%number", 0)
    found = f.lanes(UINT32, rows.ask(f, end, "i32", ("ptr", "%keeper"), ("i32", number)), 0)
    f.function.emit(f"ret i32 {(status | (found << 8)).value}")


@routine("check_noted", "ptr %ctx, ptr %keeper", "i1", seldom=True)
def _noted(f: NativeMachine) -> None:
    """Tell whether a CTA has used other descriptors than those known to be good."""
    count = state.get(f, "note_count")
    end_if(f, count != _field(f, "notes_good"), "i1 true")
    good = f.op(f"load ptr, ptr {f.word('%keeper', _FIELD['notes'])}")
    with f.function.loop(str((count * (state.NOTE_WORDS // 2)).value)) as counter:
        differs = f.get_word(state.at(f, "note"), counter) != f.get_word(good, counter)
        end_if(f, differs, "i1 true")
    f.function.emit("ret i1 false")
