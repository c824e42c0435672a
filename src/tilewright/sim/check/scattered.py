"""Accesses of a warp whose lanes lie apart, as one entry each of the list of what a CTA touches.

May import `sim.engine` and the modules of `sim.check` below it. Elements of a fragment are stored
at the same distances from one another, one store after the other. So where the lanes lie, seen
from the first one, is a *pattern*, which the list has once: a head and four more rows, before the
first entry that refers to it. A store that goes on where the one before has ended makes that
longer, in every lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import state
from tilewright.sim.check.rows import each_bit, end_if, routine

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

# In place of the last byte an entry has the number of its pattern in the list, and how often it
# goes on. A pattern's head has the lanes, and the bytes of each.
_COUNT_SHIFT = 32
_SIZE_SHIFT = 32
_MOST_REACH = 1 << 30  # bytes between the first lane and the others
PATTERN_ROWS = 1 + 4 * WARP // (8 * state.LOG_WORDS)
_ROOM = PATTERN_ROWS + 1  # of the list, for a pattern and an entry
Array = np.ndarray
_OFFSETS = f"<{WARP} x i32>"


@routine(
    "check_scattered",
    f"ptr %ctx, <{WARP} x i64> %address, i64 %size, i32 %lanes, i64 %who, i64 %when",
    "i1",
)
def enter(f: NativeMachine) -> None:
    """Enter an access whose lanes lie apart; tell whether it could be entered so."""
    address, lanes = f.lanes(UINT64, "%address", WARP), f.lanes(UINT32, "%lanes", 0)
    size, who, when = (f.lanes(UINT64, f"%{n}", 0) for n in ("size", "who", "when"))
    start = f.pick(address, f.lowest(lanes))
    none = f.lanes(UINT64, f.spread(f.constant(0, UINT64)), WARP)
    offset = f.select(f.unpack(lanes), address - start, none)
    far = f.bits(offset >= _MOST_REACH)
    count = state.get(f, "log_count")
    several = state.get(f, "scattered") + f.cast(f.intrinsic("popcount", lanes), UINT64)
    full = (count + _ROOM > state.LOG_ENTRIES) | (several > state.MOST_SCATTERED)
    end_if(f, (far != 0) | full, "i1 false")
    log = f.pointer("check_log")
    pattern = _pattern(f, log, f.cast(offset, UINT32), lanes | (size << _SIZE_SHIFT), who)
    count = state.get(f, "log_count")
    last = _row(f, log, count - 1)
    first, far_end, actor, then = (f.get_word(last, word) for word in range(state.LOG_WORDS))
    times = far_end >> _COUNT_SHIFT
    goes_on = (actor == who) & (((then ^ when) & 0xFFFFFFFF) == 0)
    goes_on = goes_on & (f.cast(far_end, UINT32) == f.cast(pattern, UINT32))
    goes_on = goes_on & (first + size * times == start)
    with f.function.when(str(goes_on.value)):
        f.set_word(last, 1, far_end + (1 << _COUNT_SHIFT))
    end_if(f, goes_on, "i1 true")
    at = _row(f, log, count)
    for word, value in enumerate((start, pattern | (1 << _COUNT_SHIFT), who, when)):
        f.set_word(at, word, value)
    state.put(f, "log_count", 0, count + 1)
    state.put(f, "scattered", 0, several)
    f.function.emit("ret i1 true")


def _row(f: NativeMachine, log: str, number: Lanes) -> str:
    return f.op(f"getelementptr i64, ptr {log}, i64 {(number * state.LOG_WORDS).value}")


def _pattern(f: NativeMachine, log: str, offset: Lanes, head: Lanes, who: Lanes) -> Lanes:
    """Find the pattern of a place's last access in the list, or enter the one at hand."""
    place = f.cast(who, UINT32) & (state.PATTERNS - 1)
    found = f.function.slot("i64", 8)
    known = f.cast(state.get(f, "pattern", place), UINT64)
    f.function.emit(f"store i64 {(known - 1).value}, ptr {found}")
    number = f.select(known != 0, known - 1, f.constant(0, UINT64))
    at = _row(f, log, number)
    there = f.op(f"load {_OFFSETS}, ptr {f.word(at, state.LOG_WORDS)}, align 8")
    apart = f.bits(f.lanes(UINT32, there, WARP) != offset)
    anew = (known == 0) | (apart != 0) | (f.get_word(at, 0) != head)
    with f.function.when(str(anew.value)):
        number = state.get(f, "log_count")
        at = _row(f, log, number)
        nothing = f.constant(0, UINT64)
        for word, value in enumerate(
            (head, nothing, f.constant(state.LOG_PATTERN, UINT64), nothing)
        ):
            f.set_word(at, word, value)
        f.function.emit(
            f"store {_OFFSETS} {offset.value}, ptr {f.word(at, state.LOG_WORDS)}, align 8"
        )
        state.put(f, "log_count", 0, number + PATTERN_ROWS)
        state.put(f, "pattern", place, f.cast(number + 1, UINT32))
        f.function.emit(f"store i64 {number.value}, ptr {found}")
    return f.lanes(UINT64, f.op(f"load i64, ptr {found}"), 0)


# ---------------------------------------------------------------------------- runs


def each_entry(
    f: NativeMachine, log: str, count: Lanes, run: Callable[[Lanes, Lanes, Lanes, Lanes], None]
) -> None:
    """Call for the first byte, the byte after the last, who and when of each run of a list.

    Lanes that follow one another are one run.
    """
    place = f.function.slot("i64", 8)
    f.function.emit(f"store i64 0, ptr {place}")
    names = ("entries", "entry", "pattern", "other", "apart", "plain", "next", "after")
    head, entry, pattern, other, apart, plain, following, after = map(f.function.new_label, names)
    f.function.branch(head)
    f.function.label(head)
    number = f.lanes(UINT64, f.op(f"load i64, ptr {place}"), 0)
    f.function.branch_if(str((number < count).value), entry, after)
    f.function.label(entry)
    at = _row(f, log, number)
    start, end, kind, when = (f.get_word(at, word) for word in range(state.LOG_WORDS))

    def enter(low: Lanes, high: Lanes) -> None:
        run(low, high, kind, when)

    f.function.branch_if(str(((kind & state.LOG_PATTERN) != 0).value), pattern, other)
    f.function.label(pattern)
    f.function.emit(f"store i64 {(number + PATTERN_ROWS).value}, ptr {place}")
    f.function.branch(head)
    f.function.label(other)
    f.function.branch_if(str(((kind & state.LOG_SCATTERED) != 0).value), apart, plain)
    f.function.label(apart)
    _each_lane(f, _row(f, log, end & 0xFFFFFFFF), start, end >> _COUNT_SHIFT, enter)
    f.function.branch(following)
    f.function.label(plain)
    with f.function.when(str(((kind & state.LOG_FENCE) == 0).value)):
        enter(start, end)
    f.function.branch(following)
    f.function.label(following)
    f.function.emit(f"store i64 {(number + 1).value}, ptr {place}")
    f.function.branch(head)
    f.function.label(after)


def _each_lane(
    f: NativeMachine,
    pattern: str,
    start: Lanes,
    times: Lanes,
    run: Callable[[Lanes, Lanes], None],
) -> None:
    """Call for the runs of an access whose lanes lie apart."""
    head = f.get_word(pattern, 0)
    size = (head >> _SIZE_SHIFT) * times
    offsets = f.word(pattern, state.LOG_WORDS)
    low, high, remaining = (f.function.slot(kind, 8) for kind in ("i64", "i64", "i32"))
    for slot in (low, high):
        f.function.emit(f"store i64 {start.value}, ptr {slot}")
    f.function.emit(f"store i32 {f.cast(head, UINT32).value}, ptr {remaining}")

    def enter() -> None:
        first, last = (f.lanes(UINT64, f.op(f"load i64, ptr {slot}"), 0) for slot in (low, high))
        run(first, last)

    with each_bit(f, remaining) as lane:
        offset = f.load_element(offsets, UINT32, str(f.cast(lane, UINT64).value))
        here = start + f.lanes(UINT32, offset, 0)
        before = f.lanes(UINT64, f.op(f"load i64, ptr {high}"), 0)
        with f.function.when(str((here != before).value)):
            enter()
            f.function.emit(f"store i64 {here.value}, ptr {low}")
        f.function.emit(f"store i64 {(here + size).value}, ptr {high}")
    enter()


def expanded(table: Array) -> Array:
    """Give the runs of a list, in its order: first byte, byte after the last one, who, and when."""
    heads = np.flatnonzero(table[:, 2] & np.uint64(state.LOG_PATTERN))
    if not len(heads):
        return table
    listed = np.ones(len(table), bool)
    listed[heads[:, None] + np.arange(PATTERN_ROWS)] = False
    scattered = (table[:, 2] & np.uint64(state.LOG_SCATTERED)) != 0
    plain, apart = np.flatnonzero(listed & ~scattered), np.flatnonzero(listed & scattered)
    runs, origin = _runs(table, apart)
    order = np.argsort(np.concatenate([plain, origin]), kind="stable")
    return np.concatenate([table[plain], runs])[order]


def _runs(table: Array, rows: Array) -> tuple[Array, Array]:
    """Give the runs of entries whose lanes lie apart, and the row that each is of.

    Lanes that follow one another, each at a multiple of its bytes, are one run.
    """
    entries = table[rows]
    low_half = np.uint64((1 << 32) - 1)
    number = (entries[:, 1] & low_half).astype(np.int64)
    head = table[number, 0]
    offsets = table[number[:, None] + np.arange(1, PATTERN_ROWS)].reshape(len(rows), -1)
    lanes = (head & low_half).astype(np.int64)
    which, lane = np.nonzero(lanes[:, None] >> np.arange(WARP) & 1)
    size = ((head >> np.uint64(_SIZE_SHIFT)) * (entries[:, 1] >> np.uint64(_COUNT_SHIFT)))[which]
    size = size.astype(np.int64)
    low = entries[which, 0].astype(np.int64) + offsets.view(np.uint32)[which, lane]
    neat = ((size & (size - 1)) == 0) & (size < 1 << state.LOG_ONE_LANE) & (low % size == 0)
    step = np.where(neat, np.log2(size).astype(np.int64), state.LOG_ONE_LANE)
    goes_on = neat[1:] & neat[:-1] & (which[1:] == which[:-1])
    goes_on &= (lane[1:] == lane[:-1] + 1) & (low[1:] == (low + size)[:-1])
    first, last = np.append(True, ~goes_on), np.append(~goes_on, True)
    which, lane, step, high = which[first], lane[first], step[first], (low + size)[last]
    low, neat = low[first], neat[first]
    phase = np.where(neat, lane - (low >> step), lane) & (WARP - 1)
    who = entries[which, 2] & ~np.uint64(state.LOG_SCATTERED | 7 << state.LOG_STEP_SHIFT)
    how = phase << state.LOG_LANE_SHIFT | step << state.LOG_STEP_SHIFT
    words = (low, high, who | how.astype(np.uint64), entries[which, 3])
    return np.stack([each.astype(np.uint64) for each in words], axis=1), rows[which]
