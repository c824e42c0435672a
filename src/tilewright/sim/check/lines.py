"""Lines of shared memory that have been written as a whole, and are entered as such.

May import `sim.engine` and the modules of `sim.check` below it. The copy engine writes lines of
128 bytes. While nobody else has written bytes of a line or read some by themselves, one entry
stands for those of its records, which say nothing then. Who is to look at the records *settles*
the line first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT64
from tilewright.isa.machine import Lanes
from tilewright.sim.check import state
from tilewright.sim.check.judge import WORDS
from tilewright.sim.check.rows import routine, run

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

RECORDS = state.LINE_RECORDS
# Within a line a swizzle moves chunks, and after eight lines it begins again.
BYTES = RECORDS * state.RECORD_BYTES
_RECORD = f"<{WORDS} x i64>"
_STEP = 7 << state.STEP_SHIFT


def line_at(f: NativeMachine, line: Lanes) -> str:
    """Address the entry of a line."""
    return f.op(f"getelementptr i64, ptr {f.pointer('check_lines')}, i64 {line.value}")


def settle(f: NativeMachine, number: Lanes) -> None:
    """Have the line that a record is of say in its records what is known of it."""
    line = number >> 3
    with f.function.when(str((f.get_word(line_at(f, line), 0) != state.SETTLED).value)):
        run(f, _settle, ("i64", line))


@routine("check_settle", "ptr %ctx, i64 %line")
def _settle(f: NativeMachine) -> None:
    line = f.lanes(UINT64, "%line", 0)
    at = line_at(f, line)
    entry = f.get_word(at, 0)
    f.set_word(at, 0, state.SETTLED)
    none = f.constant(0, UINT64)
    entry = f.select(entry == state.EMPTY, none, entry)
    records = f.op(f"getelementptr i8, ptr {f.pointer('check_shadow')}, i64 {(line << 8).value}")
    with f.function.loop(str(RECORDS)) as counter:
        own = of_record(f, entry, f.lanes(UINT64, counter, 0))
        record = f.op(f"getelementptr {_RECORD}, ptr {records}, i64 {counter}")
        alone = f.op(f"insertelement {_RECORD} zeroinitializer, i64 {own.value}, i32 0")
        f.function.emit(f"store {_RECORD} {alone}, ptr {record}, align 32")
    written = f.op(f"getelementptr i128, ptr {f.pointer('check_written')}, i64 {line.value}")
    all_of_them = f.op(f"select i1 {(entry == 0).value}, i128 0, i128 -1")
    f.function.emit(f"store i128 {all_of_them}, ptr {written}, align 16")


# ---------------------------------------------------------------------------- lanes

# What an entry of a line has in place of a step if each record is of a lane of its own: the record
# c, counted from 0, of the lane whose number is that of the entry with c added bit by bit. So
# swizzles deal chunks out.
LANES = 0


def of_record(f: NativeMachine, entry: Lanes, index: Lanes) -> Lanes:
    """Give the entry of a record of a line, of the entry of the line."""
    several = (entry != 0) & ((entry & _STEP) == LANES << state.STEP_SHIFT)
    own = entry ^ ((index << state.LANE_SHIFT) | (state.ONE_LANE << state.STEP_SHIFT))
    return f.select(several, own, entry)
