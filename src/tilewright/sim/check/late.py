"""Reads of shared memory that are entered only if somebody may have to be told of them.

May import `sim.engine` and the modules of `sim.check` below it. A stage of a pipeline is written
in whole lines, read by warps and tensor cores, and written anew once that is known. As long as all
goes well nobody asks which lane has read which bytes: an owner's reads of such lines are listed,
each with the records that it may have read, and struck off when the copy engine has overwritten
all of these, knowing of them. What somebody else writes, or does not know of, is entered first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.descriptors import PAIRED
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import rows, state
from tilewright.sim.check.judge import ASYNC, WHO, owner_of, tick_of
from tilewright.sim.check.lines import BYTES, RECORDS, line_at, settle
from tilewright.sim.check.rows import each_bit, routine, run
from tilewright.sim.check.shadow import Access, enter_read
from tilewright.sim.engine import context

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_SLOTS = state.LATE_READS
_NUMBERS = f"<{_SLOTS} x i16>"  # of records: the first, or the last, of each read of an owner
_TICKS = f"<{_SLOTS} x i32>"
_PLACES = f"<{WARP} x i16>"  # the records of a warp's read
_TOGETHER = state.LINES_TOGETHER  # lines that are looked at together
_MOST_LINES = 32  # of a warp's read that is listed
_BOUNDS = (("i64", "%first"), ("i64", "%last"))  # of what is overwritten
_PAIR = 2 * state.RECORD_BYTES
_TILE = ("start", "stride", "span", "swizzle", "base_offset", "rows")  # words of a core's read


class _Look:
    """Looks at lines that are read: whether who has written each of them as a whole is known."""

    def __init__(self, access: Access) -> None:
        f = access.f
        self.access = access
        self.good = f.function.slot("i1", 1)
        self.before = f.function.slot("i64", 8)
        f.function.emit(f"store i1 true, ptr {self.good}")
        f.function.emit(f"store i64 1, ptr {self.before}")  # is nobody

    def at(self, lines: Sequence[Lanes]) -> None:
        """Look at some lines, mostly of one writer."""
        f = self.access.f
        first, *others = (f.get_word(line_at(f, f.cast(each, UINT64)), 0) for each in lines)
        apart = f.constant(0, UINT64)
        for each in others:
            apart = apart | (each ^ first)
        self.hear(first, (apart & WHO) == 0)

    def hear(self, writer: Lanes, one: Lanes) -> None:
        """Note whether the writer of some lines is known, who must be the only one."""
        access, f = self.access, self.access.f
        before = f.lanes(UINT64, f.op(f"load i64, ptr {self.before}"), 0)
        with f.function.when(str((((writer & WHO) != before) | ~one).value)):
            known = rows.ask_known(f, access.quick, owner_of(writer), tick_of(writer))
            self.note(known & (writer != state.SETTLED) & one)
            f.function.emit(f"store i64 {(writer & WHO).value}, ptr {self.before}")

    def note(self, condition: Lanes) -> None:
        """Note what must hold."""
        f = self.access.f
        good = f.op(f"and i1 {f.op(f'load i1, ptr {self.good}')}, {condition.value}")
        f.function.emit(f"store i1 {good}, ptr {self.good}")


def _are_known(access: Access, first: Lanes, count: Lanes) -> Lanes:
    """Tell whether who has written a line, and so many after it, is known; both are uint32.

    They may be other lines too than those that are read. Some that follow one another are mostly
    of one writer: where they are not this tells nothing.
    """
    f = access.f
    kind, width = f"<{_TOGETHER} x i64>", _TOGETHER
    start, count = (f.cast(each, UINT64) for each in (first, count))
    numbers = ", ".join(f"i64 {number}" for number in range(width))
    index = f.lanes(UINT64, f"<{numbers}>", width)
    nothing = f.lanes(UINT64, f.spread(f.constant(0, UINT64), width), width)
    look = _Look(access)
    with f.function.loop(str(((count >> (width.bit_length() - 1)) + 1).value)) as counter:
        step = f.lanes(UINT64, counter, 0) * width
        lines = f.op(f"load {kind}, ptr {line_at(f, start + step)}, align 8")
        writer = f.lanes(UINT64, f.op(f"extractelement {kind} {lines}, i32 0"), 0)
        others = f.lanes(UINT64, lines, width) ^ f.lanes(UINT64, f.spread(writer, width), width)
        left = f.lanes(UINT64, f.spread(count - step, width), width)
        others = f.select(index <= left, others, nothing)
        apart = f.op(f"and {kind} {others.value}, splat (i64 {WHO})")
        one = f.lanes(BOOL, access.none(f"icmp ne {kind} {apart}, zeroinitializer", width), 0)
        look.hear(writer, one)
    return f.lanes(BOOL, f.op(f"load i1, ptr {look.good}"), 0)


def read_by_warp(access: Access, offset: Lanes) -> None:
    """Read a record per lane, by its uint32 offset in shared memory; and return.

    Where what has been written there is not known, or not by whole lines, this does not return.
    """
    f = access.f
    line = f.cast(f.pick(offset, f.constant(0, UINT32)) >> 7, UINT64)
    mine = (access.flags == 0) & (access.owner == rows.warp(f))
    mine = mine & (f.get_word(line_at(f, line), 0) != state.SETTLED)
    with f.function.when(str(mine.value)):
        number = f.op(f"trunc <{WARP} x i32> {(offset >> 4).value} to {_PLACES}")
        low, high = (_reduced(f, name, number) for name in ("umin", "umax"))
        first, count = low >> 3, (high >> 3) - (low >> 3)
        with f.function.when(str((count < _MOST_LINES).value)):
            look = _Look(access)
            with f.function.when(str((~_are_known(access, first, count)).value)):
                lines = f.spill(offset >> 7)
                with f.function.loop(str(WARP // _TOGETHER)) as counter:
                    base = f.lanes(UINT64, counter, 0) * _TOGETHER
                    numbers = [str((base + index).value) for index in range(_TOGETHER)]
                    look.at([f.lanes(UINT32, f.load_element(lines, UINT32, n), 0) for n in numbers])
            with f.function.when(f.op(f"load i1, ptr {look.good}")):
                one = f.constant(state.ONE_LANE << state.STEP_SHIFT | state.BYTES, UINT64)
                left = f.constant(-1, UINT32) >> ((_MOST_LINES - 1) - count)
                place = _list(access, access.who | one, low, high, left)
                f.function.emit(f"store {_PLACES} {number}, ptr {place}, align 64")
                f.function.emit("ret void")
                f.function.label(f.function.new_label("dead"))


def _reduced(f: NativeMachine, name: str, numbers: str) -> Lanes:
    found = f.call("i16", f"llvm.vector.reduce.{name}.v{WARP}i16", (_PLACES, numbers))
    return f.lanes(UINT32, f.op(f"zext i16 {found} to i32"), 0)


def read_by_core(access: Access, tile: dict[str, Lanes], pattern: Lanes) -> None:
    """Read two chunks of each row of a swizzled tile, by uint32 numbers of it; and return.

    Where what has been written there is not known, or not by whole lines, this does not return.
    """
    f = access.f
    start, stride, span, count = (tile[name] for name in ("start", "stride", "span", "rows"))
    owned = (access.flags == ASYNC) & (access.owner == rows.warp(f) + state.TENSOR)
    small = (stride < 1 << 20) & (count != 0) & ((count & 7) == 0)
    last = start + ((count - 1) >> 3) * stride + 7 * span
    inside = (start >= context.SHARED_START) & (start < 1 << 20)
    end = f.cast(last - context.SHARED_START, UINT64) + BYTES
    inside = inside & (end <= f.field("shared_size"))
    with f.function.when(str((owned & small & inside).value)):
        look = _Look(access)
        with f.function.loop(str((count >> 2).value), "i32") as counter:
            row = f.lanes(UINT32, counter, 0) << 2
            base = start + (row >> 3) * stride + (row & 7) * span - context.SHARED_START
            look.at([(base + span * index) >> 7 for index in range(_TOGETHER)])
        with f.function.when(f.op(f"load i1, ptr {look.good}")):
            low, high = ((each - context.SHARED_START) >> 7 << 3 for each in (start, last))
            entry = access.who | pattern | state.BYTES
            place = _list(access, entry, low, high + (RECORDS - 1), f.constant(0, UINT32))
            for index, name in enumerate(_TILE):
                at = f.op(f"getelementptr i32, ptr {place}, i64 {index}")
                f.function.emit(f"store i32 {tile[name].value}, ptr {at}")
            f.function.emit("ret void")
            f.function.label(f.function.new_label("dead"))


def place_in_tile(f: NativeMachine, address: Lanes, swizzle: Lanes, base_offset: Lanes) -> Lanes:
    """Find where a swizzle has a chunk, as an offset in shared memory, uint64."""
    row = (address >> 7) - base_offset
    turn = f.select(swizzle == PAIRED, row << 1, row) & swizzle
    return f.cast((address ^ (turn << 4)) - context.SHARED_START, UINT64)


# ---------------------------------------------------------------------------- the list


def _slot_at(f: NativeMachine, name: str, owner: Lanes, slot: Lanes | int) -> str:
    return state.at(f, name, f.cast(owner, UINT64) * _SLOTS + slot)


def _list(access: Access, entry: Lanes, low: Lanes, high: Lanes, left: Lanes) -> str:
    """List a read of records; give the address of what else is to be kept of it.

    `left` has a bit per line that it may have read, from the first on, or is 0 for too many.
    """
    f, owner = access.f, access.owner
    full = state.get(f, "late_live", owner) == (1 << 64) - 1
    with f.function.when(str(full.value)):
        run(f, _enter_all, ("i32", owner))
    live = state.get(f, "late_live", owner)
    slot = f.cast(f.intrinsic("ctz", ~live), UINT64)
    state.put(f, "late_live", owner, live | (f.constant(1, UINT64) << slot))
    one = f.constant(1, UINT64) << f.cast(owner, UINT64)
    state.put(f, "late_owners", 0, state.get(f, "late_owners") | one)
    for name, bound in (("late_low", low), ("late_high", high)):
        narrow = f.op(f"trunc i32 {bound.value} to i16")
        f.function.emit(f"store i16 {narrow}, ptr {_slot_at(f, name, owner, slot)}")
    for name, value in (("late_tick", access.tick), ("late_left", left)):
        f.function.emit(f"store i32 {value.value}, ptr {_slot_at(f, name, owner, slot)}")
    f.function.emit(f"store i64 {entry.value}, ptr {_slot_at(f, 'late_entry', owner, slot)}")
    return _slot_at(f, "late_place", owner, slot)


def _strike(f: NativeMachine, owner: Lanes, slots: Lanes) -> None:
    left = state.get(f, "late_live", owner) & ~slots
    state.put(f, "late_live", owner, left)
    with f.function.when(str((left == 0).value)):
        one = f.constant(1, UINT64) << f.cast(owner, UINT64)
        state.put(f, "late_owners", 0, state.get(f, "late_owners") & ~one)


@routine("check_late_enter", "ptr %ctx, i32 %owner, i64 %slots")
def _enter(f: NativeMachine) -> None:
    """Enter reads of an owner, and strike them off."""
    owner, slots = f.lanes(UINT32, "%owner", 0), f.lanes(UINT64, "%slots", 0)
    remaining = f.function.slot("i64", 8)
    f.function.emit(f"store i64 {slots.value}, ptr {remaining}")
    with each_bit(f, remaining, UINT64) as slot:
        entry = f.lanes(UINT64, f.op(f"load i64, ptr {_slot_at(f, 'late_entry', owner, slot)}"), 0)
        place = _slot_at(f, "late_place", owner, slot)
        of_warp, of_core, after = (f.function.new_label(s) for s in ("warp", "core", "after"))
        f.function.branch_if(str((owner < state.TENSOR).value), of_warp, of_core)
        f.function.label(of_warp)
        first = _number(f, _slot_at(f, "late_low", owner, slot)) >> 3
        left = f.lanes(UINT32, f.op(f"load i32, ptr {_slot_at(f, 'late_left', owner, slot)}"), 0)
        with f.function.loop(str(WARP)) as counter:
            number = _number(f, f.op(f"getelementptr i16, ptr {place}, i64 {counter}"))
            lane = f.lanes(UINT64, counter, 0) << state.LANE_SHIFT
            line = f.cast((number >> 3) - first, UINT32)
            with f.function.when(str(((left >> line) & 1 != 0).value)):
                _enter_record(f, number, entry | lane)
        f.function.branch(after)
        f.function.label(of_core)
        _enter_tile(f, place, entry)
        f.function.branch(after)
        f.function.label(after)
    _strike(f, owner, slots)


def _number(f: NativeMachine, at: str) -> Lanes:
    return f.lanes(UINT64, f.op(f"zext i16 {f.op(f'load i16, ptr {at}')} to i64"), 0)


def _enter_tile(f: NativeMachine, place: str, entry: Lanes) -> None:
    start, stride, span, swizzle, base_offset, count = (
        f.lanes(
            UINT32, f.op(f"load i32, ptr {f.op(f'getelementptr i32, ptr {place}, i64 {n}')}"), 0
        )
        for n in range(len(_TILE))
    )
    with f.function.loop(str(count.value), "i32") as counter:
        row = f.lanes(UINT32, counter, 0)
        address = start + (row >> 3) * stride + (row & 7) * span
        number = (place_in_tile(f, address, swizzle, base_offset) & ~(_PAIR - 1)) >> 4
        for index in range(2):
            _enter_record(f, number + index, entry)


def _enter_record(f: NativeMachine, number: Lanes, entry: Lanes) -> None:
    settle(f, number)
    at = f.op(f"getelementptr i8, ptr {f.pointer('check_shadow')}, i64 {(number << 5).value}")
    enter_read(f, at, entry)


@routine("check_late_enter_all", "ptr %ctx, i32 %owner", seldom=True)
def _enter_all(f: NativeMachine) -> None:
    """Enter all reads of an owner that are listed."""
    owner = f.lanes(UINT32, "%owner", 0)
    run(f, _enter, ("i32", owner), ("i64", state.get(f, "late_live", owner)))


@routine("check_late_all", "ptr %ctx", seldom=True)
def _enter_everything(f: NativeMachine) -> None:
    remaining = f.function.slot("i64", 8)
    f.function.emit(f"store i64 {state.get(f, 'late_owners').value}, ptr {remaining}")
    with each_bit(f, remaining, UINT64) as owner:
        run(f, _enter_all, ("i32", owner))


def enter_everything(f: NativeMachine) -> None:
    """Enter all reads that are listed, before somebody writes what they may have read."""
    with f.function.when(str((state.get(f, "late_owners") != 0).value)):
        run(f, _enter_everything)


@routine("check_late_overwrite", "ptr %ctx, i64 %first, i64 %last, i1 %all, ptr %row")
def overwrite(f: NativeMachine) -> None:
    """Strike off reads of records that are overwritten by who has the row, and knows of them.

    `all` says that all records from the first to the last are. Other reads of them are entered.
    """
    remaining = f.function.slot("i64", 8)
    f.function.emit(f"store i64 {state.get(f, 'late_owners').value}, ptr {remaining}")
    first, last = (f.op(f"trunc i64 %{name} to i16") for name in ("first", "last"))
    bounds = [_spread(f, each) for each in (first, last)]
    with each_bit(f, remaining, UINT64) as owner:
        low, high = (
            f.op(f"load {_NUMBERS}, ptr {_slot_at(f, name, owner, 0)}, align 64")
            for name in ("late_low", "late_high")
        )
        live = state.get(f, "late_live", owner)
        hit = live & _where(f, "ule", low, bounds[1]) & _where(f, "uge", high, bounds[0])
        with f.function.when(str((hit != 0).value)):
            within = _where(f, "uge", low, bounds[0]) & _where(f, "ule", high, bounds[1])
            none = f.constant(0, UINT64)
            known = f.select(f.lanes(BOOL, "%all", 0), hit & _known(f, owner), none)
            _strike(f, owner, known & within)
            for slots, called, more in (
                (known & ~within, _shorten, _BOUNDS),
                (hit & ~known, _enter, ()),
            ):
                with f.function.when(str((slots != 0).value)):
                    run(f, called, ("i32", owner), ("i64", slots), *more)


@routine("check_late_shorten", "ptr %ctx, i32 %owner, i64 %slots, i64 %first, i64 %last")
def _shorten(f: NativeMachine) -> None:
    """Take lines that are overwritten from reads of an owner that have others too."""
    owner, slots = f.lanes(UINT32, "%owner", 0), f.lanes(UINT64, "%slots", 0)
    first, last = (f.cast(f.lanes(UINT64, f"%{n}", 0) >> 3, UINT32) for n in ("first", "last"))
    remaining = f.function.slot("i64", 8)
    f.function.emit(f"store i64 {slots.value}, ptr {remaining}")
    with each_bit(f, remaining, UINT64) as slot:
        at = _slot_at(f, "late_left", owner, slot)
        left = f.lanes(UINT32, f.op(f"load i32, ptr {at}"), 0)
        base = f.cast(_number(f, _slot_at(f, "late_low", owner, slot)) >> 3, UINT32)
        every, none = f.constant(-1, UINT32), f.constant(0, UINT32)
        low = f.select(first > base, first - base, none)
        high = f.binary("min", last - base, f.constant(_MOST_LINES - 1, UINT32))
        after = left & ~((every << low) & (every >> ((_MOST_LINES - 1) - high)))
        f.function.emit(f"store i32 {after.value}, ptr {at}")
        one = f.constant(1, UINT64) << f.cast(slot, UINT64)
        with f.function.when(str((left == 0).value)):
            run(f, _enter, ("i32", owner), ("i64", one))
        with f.function.when(str(((left != 0) & (after == 0)).value)):
            _strike(f, owner, one)


def _spread(f: NativeMachine, number: str) -> str:
    one = f.op(f"insertelement {_NUMBERS} zeroinitializer, i16 {number}, i32 0")
    zeros = f"<{_SLOTS} x i32> zeroinitializer"
    return f.op(f"shufflevector {_NUMBERS} {one}, {_NUMBERS} zeroinitializer, {zeros}")


def _known(f: NativeMachine, owner: Lanes) -> Lanes:
    """Tell which reads of an owner the row `%row` knows of."""
    ticks = f.op(f"load {_TICKS}, ptr {_slot_at(f, 'late_tick', owner, 0)}, align 64")
    clock = f.lanes(UINT32, f.spread(state.clock(f, "%row", owner), _SLOTS), _SLOTS)
    known = f.lanes(UINT32, ticks, _SLOTS) <= clock
    return f.lanes(UINT64, f.op(f"bitcast <{_SLOTS} x i1> {known.value} to i{_SLOTS}"), 0)


def _where(f: NativeMachine, how: str, left: str, right: str) -> Lanes:
    found = f.op(f"icmp {how} {_NUMBERS} {left}, {right}")
    return f.lanes(UINT64, f.op(f"bitcast <{_SLOTS} x i1> {found} to i{_SLOTS}"), 0)
