"""Rows of clocks as native code: what a warp knows of, and functions on rows.

May import `sim.engine` and `sim.check.state`. Every function is called with the context of a CTA.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64, DType
from tilewright.isa.machine import Lanes
from tilewright.sim.check import state
from tilewright.sim.engine import context

if TYPE_CHECKING:
    from tilewright.sim.engine.module import Module
    from tilewright.sim.engine.native import NativeMachine

Routine = Callable[["Module"], str]
WIDTH = 1 << state.CHUNK_SHIFT  # numbers of a row that are joined at a time
_CHUNK = f"<{WIDTH} x i32>"


def routine(
    name: str, parameters: str, result: str = "void", *, seldom: bool = False
) -> Callable[[Callable[[NativeMachine], None]], Routine]:
    """Make a function of native code of what emits its body; it is emitted at its first use.

    What is called once per CTA, or where there is something to report, is compiled quickly.
    """
    attributes = "noinline cold" if seldom else "noinline"

    def of(body: Callable[[NativeMachine], None]) -> Routine:
        def emitted(module: Module) -> str:
            if name not in module.functions:
                f = module.machine(name, "%site")
                body(f)
                if result == "void":
                    f.function.emit("ret void")
                f.function.finish(result, parameters, attributes)
            return name

        return emitted

    return of


def run(f: NativeMachine, called: Routine, *arguments: tuple[str, Lanes | str]) -> None:
    """Call a function for its effect."""
    f.function.emit(f"call void @{called(f.module)}({_listed(arguments)})")


def ask(f: NativeMachine, called: Routine, kind: str, *arguments: tuple[str, Lanes | str]) -> str:
    """Call a function for its result."""
    return f.op(f"call {kind} @{called(f.module)}({_listed(arguments)})")


def _listed(arguments: tuple[tuple[str, Lanes | str], ...]) -> str:
    words = [
        f"{kind} {value.value if isinstance(value, Lanes) else value}" for kind, value in arguments
    ]
    return ", ".join(["ptr %ctx", *words])


def end_if(f: NativeMachine, condition: Lanes, result: str = "void") -> None:
    """Return where a condition holds."""
    with f.function.when(str(condition.value)):
        f.function.emit(f"ret {result}")
        f.function.label(f.function.new_label("dead"))


class each_bit:
    """Loop over the bits of a word on the stack, which it clears; yields their numbers, uint32."""

    def __init__(self, f: NativeMachine, remaining: str, kind: DType = UINT32) -> None:
        self.f = f
        self.remaining = remaining
        self.kind = kind

    def __enter__(self) -> Lanes:
        f = self.f
        self.head, body, self.after = (f.function.new_label(s) for s in ("bits", "bit", "after"))
        f.function.branch(self.head)
        f.function.label(self.head)
        left = f.lanes(self.kind, f.op(f"load i{self.kind.bits}, ptr {self.remaining}"), 0)
        f.function.branch_if(str((left != 0).value), body, self.after)
        f.function.label(body)
        fewer = (left & (left - 1)).value
        f.function.emit(f"store i{self.kind.bits} {fewer}, ptr {self.remaining}")
        return f.lowest(left)

    def __exit__(self, *exception: object) -> None:
        self.f.function.branch(self.head)
        self.f.function.label(self.after)


@contextmanager
def naming(f: NativeMachine, **fields: Lanes) -> Generator[None]:
    """Set fields of what is found meanwhile: an entry of shadow memory has no sets of lanes."""
    count = state.get(f, "found_count")
    yield
    with f.function.when(str((state.get(f, "found_count") != count).value)):
        row = state.at(f, "found", count)
        for name, value in fields.items():
            f.set_word(row, state.FOUND_FIELDS.index(name), f.cast(value, UINT64))


def warp(f: NativeMachine) -> Lanes:
    """Give the number of the warp that acts, uint32."""
    return f.low_field("warp")


def alive(f: NativeMachine) -> Lanes:
    """Give the lanes of the warp that acts which have not returned."""
    index = f.field("warp")
    lanes, exited = (
        f.cast(f.get_word("%ctx", (index + start).value), UINT32)
        for start in (context.LANES_START, context.EXITED_START)
    )
    return lanes & ~exited


def advance(f: NativeMachine) -> None:
    """Tell what comes from what has been: the next tick."""
    following = state.get(f, "tick") + 1
    state.put(f, "tick", 0, following)
    with f.function.when(str((following > state.MOST_TICKS).value)):
        run(f, _start_again)


def knows_ahead(f: NativeMachine, lanes: Lanes) -> Lanes:
    """Tell whether lanes of the warp that acts know more than the warp as a whole does."""
    ahead = state.get(f, "ahead_lanes", warp(f))
    return (ahead != 0) & ((lanes & ~ahead) == 0)


def acting_row(f: NativeMachine, lanes: Lanes) -> str:
    """Address the row of lanes of the warp that acts."""
    common, ahead = (state.at(f, name, warp(f)) for name in ("warp_row", "ahead_row"))
    return f.op(f"select i1 {knows_ahead(f, lanes).value}, ptr {ahead}, ptr {common}")


# ---------------------------------------------------------------------------- rows


def _in_chunks(f: NativeMachine, body: Callable[[int], None], count: int = state.ROW) -> None:
    for start in range(0, count, WIDTH):
        body(start)


def chunk(f: NativeMachine, row: str, start: Lanes | int) -> Lanes:
    text = f.op(f"load {_CHUNK}, ptr {state.clock_at(f, row, start)}, align 4")
    return f.lanes(UINT32, text, WIDTH)


def set_chunk(f: NativeMachine, row: str, start: Lanes | int, value: Lanes) -> None:
    at = state.clock_at(f, row, start)
    f.function.emit(f"store {_CHUNK} {value.value}, ptr {at}, align 4")


@routine("check_join", "ptr %ctx, ptr %to, ptr %from")
def join(f: NativeMachine) -> None:
    """Let a row know all that another one knows."""
    with _each_used(f, 0, state.PART_TICK) as start:
        later = f.binary("max", chunk(f, "%to", start), chunk(f, "%from", start))
        set_chunk(f, "%to", start, later)
    parts = _used(f, state.PART_TICK, state.ROW) != 0
    with f.function.when(str(parts.value)):
        for start in range(0, state.WARPS, WIDTH):
            _join_parts(f, start)


def _used(f: NativeMachine, first: int, end: int) -> Lanes:
    """Tell which chunks of rows are in use, of those of some clocks."""
    bits = (1 << (end // WIDTH)) - (1 << (first // WIDTH))
    return state.get(f, "used") & bits


@contextmanager
def _each_used(f: NativeMachine, first: int, end: int) -> Generator[Lanes]:
    """Loop over the chunks that are in use; yields the number of the first clock of each."""
    remaining = f.function.slot("i64", 8)
    f.function.emit(f"store i64 {_used(f, first, end).value}, ptr {remaining}")
    with each_bit(f, remaining, UINT64) as number:
        yield number << state.CHUNK_SHIFT


def _join_parts(f: NativeMachine, start: int) -> None:
    """Join what is known of some lanes of warps: what is known of all of them comes before it."""
    whole = chunk(f, "%to", start)
    none = f.lanes(UINT32, f.spread(f.constant(0, UINT32), WIDTH), WIDTH)
    ticks, lanes = (
        [chunk(f, row, place + start) for row in ("%to", "%from")]
        for place in (state.PART_TICK, state.PART_LANES)
    )
    of = [f.select(tick >= whole, some, none) for tick, some in zip(ticks, lanes, strict=True)]
    set_chunk(f, "%to", state.PART_LANES + start, of[0] | of[1])
    for part in (state.PART_TICK, state.PART_SEEN, state.PART_COPIES):
        both = (chunk(f, row, part + start) for row in ("%to", "%from"))
        set_chunk(f, "%to", part + start, f.binary("max", *both))


def alike(f: NativeMachine, one: str, other: str) -> Lanes:
    """Tell whether two rows know the same."""
    apart = [chunk(f, one, start) ^ chunk(f, other, start) for start in range(0, state.ROW, WIDTH)]
    some = apart[0]
    for each in apart[1:]:
        some = some | each
    name = f"llvm.vector.reduce.or.v{WIDTH}i32"
    return f.lanes(UINT32, f.call("i32", name, (_CHUNK, str(some.value))), 0) == 0


@routine("check_copy", "ptr %ctx, ptr %to, ptr %from")
def copy(f: NativeMachine) -> None:
    """Let a row know what another one knows, and no more."""
    with _each_used(f, 0, state.ROW) as start:
        set_chunk(f, "%to", start, chunk(f, "%from", start))


def copy_out(f: NativeMachine, to: str, row: str) -> None:
    """Copy a row to where there was none."""
    name = "llvm.memcpy.p0.p0.i64"
    f.module.declare(name, f"declare void @{name}(ptr, ptr, i64, i1)")
    f.function.emit(f"call void @{name}(ptr {to}, ptr {row}, i64 {state.ROW_BYTES}, i1 false)")


@routine("check_floor", "ptr %ctx, ptr %row", "i32")
def _floor(f: NativeMachine) -> None:
    """Find a tick up to which all that anybody has done is known to a row.

    What an owner has done that is known in full does not count, as what it does later is later.
    """
    none = f.constant(-1, UINT32)
    least: list[Lanes] = []

    def some(start: int) -> None:
        known = chunk(f, "%row", start)
        done = f.op(f"load {_CHUNK}, ptr {state.at(f, 'last', start)}, align 4")
        whole = known >= f.lanes(UINT32, done, WIDTH)
        nothing = f.lanes(UINT32, f.spread(none, WIDTH), WIDTH)
        here = f.select(whole, nothing, known)
        least[:] = [f.binary("min", least[0], here) if least else here]

    _in_chunks(f, some, state.OWNERS)
    name = f"llvm.vector.reduce.umin.v{WIDTH}i32"
    found = f.lanes(UINT32, f.call("i32", name, (_CHUNK, str(least[0].value))), 0)
    result = f.binary("min", found, state.now(f) - 1)
    f.function.emit(f"ret i32 {result.value}")


def find_floors(f: NativeMachine) -> None:
    """Find the floors of the warp that acts anew, whose rows have changed."""
    for ahead in range(2):
        state.put(f, "moment_tick", warp(f) * 2 + ahead, 0)
    for row, floor in (("warp_row", "floor"), ("ahead_row", "ahead_floor")):
        if row == "warp_row":
            found = ask(f, _floor, "i32", ("ptr", state.at(f, row, warp(f))))
            state.put(f, floor, warp(f), f.lanes(UINT32, found, 0))
        else:
            some = state.get(f, "ahead_lanes", warp(f)) != 0
            with f.function.when(str(some.value)):
                found = ask(f, _floor, "i32", ("ptr", state.at(f, row, warp(f))))
                state.put(f, floor, warp(f), f.lanes(UINT32, found, 0))


def clear(f: NativeMachine, start: str, size: Lanes | int, byte: int = 0) -> None:
    """Fill memory with a byte."""
    name = "llvm.memset.p0.i64"
    f.module.declare(name, f"declare void @{name}(ptr, i8, i64, i1)")
    length = size if isinstance(size, int) else size.value
    f.function.emit(f"call void @{name}(ptr {start}, i8 {byte}, i64 {length}, i1 false)")


def clear_cells(f: NativeMachine) -> None:
    """Forget who has accessed Tensor Memory."""
    with f.function.when(str((f.field("tmem") != 0).value)):
        clear(f, f.pointer("check_cells"), state.CELL_BYTES)


def clear_state(f: NativeMachine) -> None:
    """Make the state of a CTA what it is when that begins."""
    clear(f, f.pointer("check"), state.ZEROED_BYTES)
    for area in ("warp_row", "fenced_row"):
        clear(f, state.at(f, area), f.field("live_warps") * state.ROW_BYTES)


@routine("check_start_again", "ptr %ctx", seldom=True)
def _start_again(f: NativeMachine) -> None:
    """Forget everything, and count ticks from 1 again: what is forgotten is found no more."""
    count = (f.field("shared_size") + 127) >> 7
    lines, written = f.pointer("check_lines"), f.pointer("check_written")
    with f.function.loop(str(count.value)) as line:
        # Which bytes were written stands in the records from here on (`lines`).
        entry = f.get_word(lines, line)
        with f.function.when(str((entry != state.SETTLED).value)):
            at = f.op(f"getelementptr i128, ptr {written}, i64 {line}")
            bytes = f.op(f"select i1 {(entry == state.EMPTY).value}, i128 0, i128 -1")
            f.function.emit(f"store i128 {bytes}, ptr {at}, align 16")
            f.set_word(lines, line, state.SETTLED)
    clear(f, f.pointer("check_shadow"), count << 8)
    clear_cells(f)
    for area in state.FORGOTTEN:
        clear(f, state.at(f, area), state.area_bytes(area))
    # What was kept of global memory is in ticks too: nothing is added to it.
    with f.function.when(str((state.get(f, "cut") == 0).value)):
        state.put(f, "cut", 0, state.get(f, "turn") + 1)
    state.put(f, "tick", 0, 1)


def ask_known(f: NativeMachine, row: str, owner: Lanes, tick: Lanes) -> Lanes:
    """Tell whether a row knows of what an owner did at a tick."""
    return state.clock(f, row, owner) >= tick


@routine("check_see", "ptr %ctx, ptr %to, ptr %from")
def see(f: NativeMachine) -> None:
    """Give, of what a row knows, what the asynchronous proxy sees."""
    for start in range(0, state.OWNERS, WIDTH):
        known = chunk(f, "%from", start)
        if start >> 5 in (state.WARP_OWNER >> 5, state.COPIES >> 5):
            copies = start >> 5 == state.COPIES >> 5
            place = state.SEEN_COPIES if copies else state.SEEN
            seen = chunk(f, "%from", place + start % state.WARPS)
            known = f.binary("min", known, seen)
        set_chunk(f, "%to", start, known)
