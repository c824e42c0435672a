"""Whether CTAs touch global memory apart from one another, told without sorting what they touch.

May import `sim.engine` and the modules of `sim.check` below it. Of every 64 bytes of watched memory
a launch notes which CTA has written and which has read there, in a map that each thread has of its
own. Only where CTAs meet in such a place are their lists of runs laid side by side (`regions`).

A map serves one launch after another as it is: the numbers of their CTAs grow, so that those of
*past* launches are known, and count for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import Lanes
from tilewright.sim.check import moments, rows, scattered, state
from tilewright.sim.check.rows import routine
from tilewright.sim.check.signals import SCOPES

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_SHIFT = 6  # bytes of an argument that are looked at together: 64, a bit of a word each
# Of a place: who writes there and who reads, uint32 each; which bytes the last CTA has written and
# which it has read, uint64 each, since the last one of its accesses that knew of all before; the
# ticks of the last one of those before, and of all; which lanes have had all since; whether any
# access, of whatever CTA, was not atomic.
PLACE_BYTES = 32
_NEW_SHIFT, _WHO_SHIFT = moments.TICK_BITS, 2 * moments.TICK_BITS
_TICKS, _ANYBODY, _PLAIN_SHIFT = (1 << moments.TICK_BITS) - 1, (1 << 22) - 1, 63
# What the native function finds of a CTA: it touches what another one has written, or writes what
# that one has touched; it touches a byte twice, the second time without everybody's knowing of the
# first, and by another lane perhaps; it has read something as read-only.
MEETS, AGAIN, READ_ONLY = 1, 2, 4


def map_bytes(watched: Sequence[tuple[int, int]]) -> int:
    """Size the map of watched memory."""
    return PLACE_BYTES * sum(((high - low - 1) >> _SHIFT) + 1 for low, high in watched)


# Of a launch: the greatest number of a CTA of past ones; what stands for several of this one.
_LAUNCH = "ptr %ctx, ptr %places, i32 %past, i32 %many, i32 %who"


@routine("check_apart", _LAUNCH, "i32")
def enter(f: NativeMachine) -> None:
    """Enter the runs of a CTA, and give what is found of it."""
    log = f.pointer("check_log")
    launch = (("ptr", "%places"), *(("i32", each) for each in ("%past", "%many", "%who")))
    found = f.function.slot("i32", 4)
    f.function.emit(f"store i32 0, ptr {found}")

    def touch(start: Lanes, end: Lanes, kind: Lanes, when: Lanes) -> None:
        words = (("i64", start), ("i64", end), ("i64", kind), ("i64", when))
        here = rows.ask(f, _run, "i32", *launch, *words)
        before = f.lanes(UINT32, f.op(f"load i32, ptr {found}"), 0)
        f.function.emit(f"store i32 {(before | f.lanes(UINT32, here, 0)).value}, ptr {found}")

    scattered.each_entry(f, log, state.get(f, "log_count"), touch)
    f.function.emit(f"ret i32 {f.op(f'load i32, ptr {found}')}")


@routine("check_apart_run", f"{_LAUNCH}, i64 %first, i64 %last, i64 %kind, i64 %when", "i32")
def _run(f: NativeMachine) -> None:
    """Enter a run of bytes, and give what is found of it."""
    start, end, kind = (f.lanes(UINT64, f"%{n}", 0) for n in ("first", "last", "kind"))
    found = f.function.slot("i32", 4)
    f.function.emit(f"store i32 0, ptr {found}")

    def note(condition: Lanes, what: int) -> None:
        before = f.lanes(UINT32, f.op(f"load i32, ptr {found}"), 0)
        after = f.select(condition, before | what, before)
        f.function.emit(f"store i32 {after.value}, ptr {found}")

    note((kind & state.LOG_READ_ONLY) != 0, READ_ONLY)
    place, count, skipped = _places(f, start, end)
    floor, actor = _floor(f, kind), _actor(f, kind)
    with f.function.loop(str(count.value)) as step:
        number = f.lanes(UINT64, step, 0)
        offset = (place + number) * PLACE_BYTES
        at = f.op(f"getelementptr i8, ptr %places, i64 {offset.value}")
        _touch(f, at, kind, _bytes(f, skipped, end - start, number), (floor, actor), note)
    f.function.emit(f"ret i32 {f.op(f'load i32, ptr {found}')}")


def _bytes(f: NativeMachine, skipped: Lanes, size: Lanes, number: Lanes) -> Lanes:
    """Give the bytes of a place that a run has, which skips some of its first place."""
    every, most = f.constant(-1, UINT64), f.constant(1 << _SHIFT, UINT64)
    base = number << _SHIFT
    low = f.select(skipped > base, skipped - base, f.constant(0, UINT64))
    high = f.binary("min", skipped + size - base, most)
    return (every << low) & (every >> ((most - high) & 63))


def _floor(f: NativeMachine, kind: Lanes) -> Lanes:
    """Give a tick up to which all is known that anybody has done, 0 to an agent."""
    when, none = f.lanes(UINT64, "%when", 0), f.constant(0, UINT64)
    moment = (when >> moments.TICK_BITS) & moments.UNKNOWN
    kept = (moment != moments.UNKNOWN) & (((kind >> state.LOG_OWNER_SHIFT) & 7) == 0)
    floor = state.get(f, "moment_floor", f.select(kept, moment, none))
    return f.select(kept, f.cast(floor, UINT64), none)


def _actor(f: NativeMachine, kind: Lanes) -> Lanes:
    """Number the lanes that access bytes, each its own; it may be anybody."""
    own = (((kind >> state.LOG_OWNER_SHIFT) & 7) == 0) & ((kind & state.LOG_SCATTERED) == 0)
    own = own & (((kind >> state.LOG_STEP_SHIFT) & 7) <= state.LOG_ONE_LANE)
    number = ((kind >> state.LOG_WARP_SHIFT) & 0xFFFF) + 1
    return f.select(own, number, f.constant(_ANYBODY, UINT64))


def _touch(
    f: NativeMachine,
    at: str,
    kind: Lanes,
    bytes: Lanes,
    who_knows: tuple[Lanes, Lanes],
    note: Callable[[Lanes, int], None],
) -> None:
    """Enter an access to bytes of a place."""
    floor, actor = who_knows
    who, many = (f.lanes(UINT32, f"%{name}", 0) for name in ("who", "many"))
    nobody, none = f.constant(0, UINT32), f.constant(0, UINT64)
    past = f.lanes(UINT32, "%past", 0)
    writer, reader = (_who(f, at, side, past) for side in range(2))
    writes = (kind & state.LOG_WRITES) != 0
    meets = (writer != nobody) & (writer != who)
    # Where another CTA was, what this one has done before is not known.
    meets = meets | (writes & (reader != nobody) & (reader != who))
    plain = ((kind >> state.LOG_SCOPE_SHIFT) & 7) <= SCOPES["cluster"]
    plain = plain | (((writer | reader) != nobody) & _is_plain(f, at))
    note(meets & plain, MEETS | AGAIN)
    mine = (writer == who) | (reader == who)
    last = f.select(mine, f.get_word(at, 3), none)
    base, newest, lanes = (
        (last >> shift) & most
        for shift, most in ((0, _TICKS), (_NEW_SHIFT, _TICKS), (_WHO_SHIFT, _ANYBODY))
    )
    known = newest <= floor
    base = f.select(known, newest, base)
    wrote = f.select((writer == who) & ~known, f.get_word(at, 1), none)
    read = f.select((reader == who) & ~known, f.get_word(at, 2), none)
    judged = ((kind & state.LOG_READ_ONLY) == 0) & plain
    before = f.select(writes, wrote | read, wrote)
    alone = (known | (lanes == actor)) & (actor != _ANYBODY)
    note(judged & (base > floor), AGAIN)
    note(judged & ((before & bytes) != 0) & ~alone, AGAIN)
    newest = f.binary("max", newest, f.lanes(UINT64, "%when", 0) & _TICKS)
    lanes = f.select(alone, actor, f.constant(_ANYBODY, UINT64))
    word = base | (newest << _NEW_SHIFT) | (lanes << _WHO_SHIFT)
    f.set_word(at, 3, word | f.select(plain, f.constant(1 << _PLAIN_SHIFT, UINT64), none))
    of_one = (reader == nobody) | (reader == who)
    f.function.emit(f"store i32 {f.select(writes, who, writer).value}, ptr {at}")
    readers = f.select(writes, reader, f.select(of_one, who, many))
    f.function.emit(f"store i32 {readers.value}, ptr {state.clock_at(f, at, 1)}")
    f.set_word(at, 1, f.select(writes, wrote | bytes, wrote))
    f.set_word(at, 2, f.select(writes, read, read | bytes))


def _who(f: NativeMachine, at: str, side: int, past: Lanes) -> Lanes:
    """Give the number of who writes at a place, or reads there; 0 for nobody."""
    number = state.clock(f, at, side)
    return f.select(number <= past, f.constant(0, UINT32), number)


def _is_plain(f: NativeMachine, at: str) -> Lanes:
    return (f.get_word(at, 3) >> _PLAIN_SHIFT) != 0


@routine("check_meet", "ptr %maps, i64 %threads, i64 %places", "i32")
def meet(f: NativeMachine) -> None:
    """Tell whether CTAs of several threads meet: one touches what one of another has written.

    Of each thread there are two words: the address of its map, and the number of past CTAs there.
    """
    threads, places = (f.lanes(UINT64, f"%{name}", 0) for name in ("threads", "places"))
    before = [f.function.slot("i1", 1) for _ in range(3)]
    with f.function.loop(str(places.value)) as place:
        for slot in before:
            f.function.emit(f"store i1 false, ptr {slot}")
        offset = f.lanes(UINT64, place, 0) * PLACE_BYTES
        with f.function.loop(str(threads.value)) as thread:
            entry = f.op(f"getelementptr [2 x i64], ptr %maps, i64 {thread}")
            base = f.op(f"load ptr, ptr {entry}")
            past = f.cast(f.get_word(entry, 1), UINT32)
            at = f.op(f"getelementptr i8, ptr {base}, i64 {offset.value}")
            wrote, read = (_who(f, at, side, past) != 0 for side in range(2))
            plain = (wrote | read) & _is_plain(f, at)
            others = [f.lanes(BOOL, f.op(f"load i1, ptr {slot}"), 0) for slot in before]
            meets = ((wrote & (others[0] | others[1])) | (read & others[0])) & (plain | others[2])
            rows.end_if(f, meets, "i32 1")
            for slot, one, other in zip(before, (wrote, read, plain), others, strict=True):
                f.function.emit(f"store i1 {(one | other).value}, ptr {slot}")
    f.function.emit("ret i32 0")


def _places(f: NativeMachine, start: Lanes, end: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """Find the first place of a run, how many it has, and what it skips of the first one.

    The places of all regions are in a row.
    """
    none = f.constant(0, UINT64)
    found = [f.function.slot("i64", 8) for _ in range(4)]
    first, number, skipped, base = found
    for slot in found:
        f.function.emit(f"store i64 0, ptr {slot}")
    with f.function.loop(str(state.get(f, "watched_count").value)) as counter:
        index = f.lanes(UINT64, counter, 0) * 2
        low, high = (state.get(f, "watched", index + side) for side in range(2))
        before = f.lanes(UINT64, f.op(f"load i64, ptr {base}"), 0)
        here = (start >= low) & (start < high)
        # A fault may lead beyond the end.
        last = (f.binary("min", end, high) - low - 1) >> _SHIFT
        begin = (start - low) >> _SHIFT
        with f.function.when(str(here.value)):
            at = before + begin
            f.function.emit(f"store i64 {at.value}, ptr {first}")
            length = f.select(end > start, last - begin + 1, none)
            f.function.emit(f"store i64 {length.value}, ptr {number}")
            skips = (start - low) & ((1 << _SHIFT) - 1)
            f.function.emit(f"store i64 {skips.value}, ptr {skipped}")
        following = before + (((high - low - 1) >> _SHIFT) + 1)
        f.function.emit(f"store i64 {following.value}, ptr {base}")
    at, count, skips = (f.lanes(UINT64, f.op(f"load i64, ptr {slot}"), 0) for slot in found[:3])
    return at, count, skips
