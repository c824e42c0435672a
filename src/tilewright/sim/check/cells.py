"""Shadow of Tensor Memory: loads, stores, products, allocation.

May import `isa`, `sim.engine` and the modules of `sim.check` below it. A record is a column of a
quarter of the lanes; of its sixteen bits each stands for two lanes. Products that follow one
another into one accumulator are entered once: what comes between them enters the last one first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import state
from tilewright.sim.check.judge import CELLS, FREES, WRITTEN_CELLS
from tilewright.sim.check.rows import Routine, clear, each_bit, end_if, routine, run
from tilewright.sim.check.shadow import Access
from tilewright.sim.engine.context import TMEM_COLUMNS

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_QUARTERS = 4
_GRANULE = 32  # columns that are allocated together
_ALL = state.BYTES
Actor = Sequence[tuple[str, "Lanes | str"]]


def _alone(f: NativeMachine) -> Lanes:
    """Say that an access is one of all lanes, in an entry."""
    return f.constant(state.ANY_LANE << state.STEP_SHIFT, UINT64)


def _vector(writes: bool) -> Routine:
    """Give the function for a cell of each lane."""

    def body(f: NativeMachine) -> None:
        end_if(f, f.field("error") != 0)
        run(f, _enter_last)
        cells = f.lanes(UINT32, "%cells", WARP)
        row, column = cells >> 16, cells & 0xFFFF
        inside = (row < 128) & (column < TMEM_COLUMNS)
        lanes = f.lanes(UINT32, "%lanes", 0) & f.bits(inside)
        number = (column << 2) | (row >> 5)
        pair = f.constant(1, UINT32) << ((row & 31) >> 1)
        access = Access(f, writes, cells=True)
        numbers = f.spill(number)
        # As a rule the lanes of a warp have one column of their quarter, whole.
        first = f.pick(number, f.constant(0, UINT32))
        whole = f.bits(number == first) & f.bits((row & 31) == f.lane_id()) & lanes
        with f.function.when(str((whole == (1 << WARP) - 1).value)):
            access.record(f.cast(first, UINT64), _alone(f), f.constant(_ALL, UINT64))
            f.function.emit("ret void")
            f.function.label(f.function.new_label("dead"))
        remaining = f.function.slot("i32", 4)
        f.function.emit(f"store i32 {lanes.value}, ptr {remaining}")
        with each_bit(f, remaining) as lane:
            wide = str(f.cast(lane, UINT64).value)
            here = f.lanes(UINT32, f.load_element(numbers, UINT32, wide), 0)
            same = f.bits(number == here) & lanes
            left = f.lanes(UINT32, f.op(f"load i32, ptr {remaining}"), 0)
            f.function.emit(f"store i32 {(left & ~same).value}, ptr {remaining}")
            zero = f.lanes(UINT32, f.spread(f.constant(0, UINT32)), WARP)
            mine = f.select(f.unpack(same), pair, zero)
            name = f"llvm.vector.reduce.or.v{WARP}i32"
            found = f.call("i32", name, (f"<{WARP} x i32>", str(mine.value)))
            bits = f.cast(f.lanes(UINT32, found, 0), UINT64)
            access.record(f.cast(here, UINT64), _alone(f), bits)

    name = f"check_{'write' if writes else 'read'}_cells"
    return routine(name, f"ptr %ctx, <32 x i32> %cells, {Access.PARAMETERS}")(body)


VECTORS = {writes: _vector(writes) for writes in (False, True)}


def _block(writes: bool) -> Routine:
    """Give the function for columns of rows: all lanes of `rows`, or sixteen of each quarter."""

    def body(f: NativeMachine) -> None:
        end_if(f, f.field("error") != 0)
        first, rows, columns = (f.lanes(UINT32, f"%{n}", 0) for n in ("first", "rows", "columns"))
        access = Access(f, writes, cells=True)
        _each_record(f, first, rows, columns, access.record)

    name = f"check_{'write' if writes else 'read'}_block"
    parameters = f"ptr %ctx, i32 %first, i32 %rows, i32 %columns, {Access.PARAMETERS}"
    return routine(name, parameters)(body)


def _each_record(
    f: NativeMachine,
    first: Lanes,
    rows: Lanes,
    columns: Lanes,
    body: Callable[[Lanes, Lanes, Lanes], None],
) -> None:
    """Call for the number of each record, whose lanes, and which of them."""
    half = f.constant(0xFF, UINT64) << f.cast((first >> 20 & 1) << 3, UINT64)
    bits = f.select(rows == 64, half, f.constant(_ALL, UINT64))
    start = f.cast(first & (TMEM_COLUMNS - 1), UINT64) << 2
    count = f.cast(columns, UINT64) << 2
    room = f.constant(TMEM_COLUMNS * _QUARTERS, UINT64) - start
    with f.function.loop(str(f.binary("min", count, room).value)) as counter:
        body(start + f.lanes(UINT64, counter, 0), _alone(f), bits)


_BLOCKS = {writes: _block(writes) for writes in (False, True)}


@routine("check_enter_last", "ptr %ctx")
def _enter_last(f: NativeMachine) -> None:
    """Enter the last of the products that were into one accumulator, and forget that one."""
    end_if(f, state.get(f, "core_shape") == 0)
    late = state.get(f, "core_late") != 0
    shape = state.get(f, "core_shape")
    entry = state.get(f, "core_entry")
    target = f.cast(state.get(f, "core_target"), UINT32)
    state.put(f, "core_shape", 0, 0)
    end_if(f, ~late)
    shadow = f.pointer("check_cells")

    def enter(number: Lanes, lane: Lanes, bits: Lanes) -> None:
        at = f.op(f"getelementptr i8, ptr {shadow}, i64 {(number << 5).value}")
        f.set_word(at, 0, entry | lane | bits)

    rows, columns = f.cast(shape >> 32, UINT32), f.cast(shape, UINT32)
    _each_record(f, target, rows, columns, enter)


@routine(
    "check_accumulate",
    f"ptr %ctx, i32 %first, i32 %rows, i32 %columns, i1 %adds, {Access.PARAMETERS}",
)
def _accumulate(f: NativeMachine) -> None:
    """Let a product write its accumulator, and read it if it adds."""
    end_if(f, f.field("error") != 0)
    names = ("first", "rows", "columns", "lanes", "site", "owner", "flags")
    words = {n: f.lanes(UINT32, f"%{n}", 0) for n in names}
    shape = (f.cast(words["rows"], UINT64) << 32) | f.cast(words["columns"], UINT64)
    target = f.cast(words["first"], UINT64) | (f.cast(words["owner"], UINT64) << 32)
    most = f.constant(state.MOST_SITES, UINT32)
    entry = state.get(f, "tick") << state.TICK_SHIFT
    entry = entry | (f.cast(words["owner"], UINT64) << state.OWNER_SHIFT)
    place = f.binary("min", words["site"], most)
    entry = entry | (f.cast(place, UINT64) << state.SITE_SHIFT)
    again = (state.get(f, "core_shape") == shape) & (state.get(f, "core_target") == target)
    with f.function.when(str(again.value)):
        state.put(f, "last", words["owner"], state.now(f))
        state.put(f, "core_entry", 0, entry)
        state.put(f, "core_late", 0, 1)
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))
    run(f, _enter_last)
    listed = tuple(("i32", words[n]) for n in names)
    with f.function.when("%adds"):
        run(f, _BLOCKS[False], *listed)
    run(f, _BLOCKS[True], *listed)
    state.put(f, "core_target", 0, target)
    state.put(f, "core_shape", 0, shape)
    state.put(f, "core_late", 0, 0)


def accumulate(
    m: NativeMachine, d: Lanes, rows: Lanes, columns: Lanes, adds: Lanes, actor: Actor
) -> None:
    """Watch the accumulator of a product."""
    words = [("i32", m.cast(each, UINT32)) for each in (d, rows, columns)]
    run(m, _accumulate, *words, ("i1", adds), *actor)


def read_block(m: NativeMachine, first: Lanes, rows: Lanes, columns: int, actor: Actor) -> None:
    """Watch an operand of a product in Tensor Memory."""
    run(m, _enter_last)
    numbers = (first, rows, m.constant(columns, UINT32))
    run(m, _BLOCKS[False], *(("i32", m.cast(each, UINT32)) for each in numbers), *actor)


@routine("check_columns", f"ptr %ctx, i32 %columns, {Access.PARAMETERS}", seldom=True)
def columns(f: NativeMachine) -> None:
    """Let columns be freed, which is a write to them, or be new; bit i: 32·i to 32·i + 31."""
    after, before = f.lanes(UINT32, "%columns", 0), f.cta_state("tmem_columns")
    run(f, _enter_last)
    changed = f.function.slot("i32", 4)
    freed = before & ~after
    place = f.cast(f.lanes(UINT32, "%site", 0), UINT64) + 1
    with f.function.when(str(((after & ~before) != 0).value)):
        # Of what is taken as a whole another CTA gets nothing, whoever has the permit.
        whole = after == (1 << TMEM_COLUMNS // _GRANULE) - 1
        state.put(f, "allocated", 0, f.select(whole, f.constant(0, UINT64), place))
        state.put(f, "freed", 0, 0)
    with f.function.when(str((freed != 0).value)):
        state.put(f, "freed", 0, place)
    f.function.emit(f"store i32 {freed.value}, ptr {changed}")
    words = tuple(("i32", f.lanes(UINT32, f"%{n}", 0)) for n in ("lanes", "site", "owner", "flags"))
    with each_bit(f, changed) as granule:
        span = (granule * _GRANULE, f.constant(128, UINT32), f.constant(_GRANULE, UINT32))
        run(f, _BLOCKS[True], *(("i32", each) for each in span), *words)
    # What is freed may not be accessed anyway; what is new was not written yet either.
    for granules, first, size in ((before ^ after, 0, 32), (after & ~before, WRITTEN_CELLS, 2)):
        f.function.emit(f"store i32 {granules.value}, ptr {changed}")
        with each_bit(f, changed) as granule:
            start = f.cast(granule * (_GRANULE * _QUARTERS), UINT64) * size + first
            at = f.op(f"getelementptr i8, ptr {f.pointer('check_cells')}, i64 {start.value}")
            clear(f, at, _GRANULE * _QUARTERS * size)


FREEING, OF_CELLS = CELLS | FREES, CELLS
