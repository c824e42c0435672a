"""Plain accesses to shared memory that stand behind atomic ones.

May import `sim.engine` and the modules of `sim.check` below it. The shadow of a record has its last
accesses. Atomic accesses do not race with one another, so who makes one would not be held against
a plain access that others, without order too, have made an atomic access after. So what an atomic
access takes out of the shadow goes to another record of four entries, as that in the shadow is:
with it further atomic accesses must be in order. A plain access comes after the atomic ones, or is
a fault, and needs not look there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import Lanes
from tilewright.sim.check import rows, state
from tilewright.sim.check.judge import ENTRIES, WORDS, is_strong, owner_of, tick_of
from tilewright.sim.check.rows import routine, run

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine


@routine(
    "check_pass_by",
    "ptr %ctx, ptr %record, i64 %new, i64 %number, i32 %flags, ptr %row, i32 %lanes",
)
def pass_by(f: NativeMachine) -> None:
    """Hold an atomic access against what stands behind others, and put more there."""
    _prepare(f)
    new, number = (f.lanes(UINT64, f"%{n}", 0) for n in ("new", "number"))
    at = f.op(f"getelementptr i8, ptr {f.pointer('check_hidden')}, i64 {(number << 5).value}")
    good = f.constant(True, BOOL)
    for index in range(WORDS):
        old = f.get_word(at, index)
        known = rows.ask_known(f, "%row", owner_of(old), tick_of(old))
        good = good & (known | ((old & new & state.BYTES) == 0))
    with f.function.when(str((~good).value)):
        words = (("ptr", at), ("i64", new), ("i64", number), ("i32", "%flags"), ("ptr", "%row"))
        state.put(f, "acting", 0, f.lanes(UINT32, "%lanes", 0))
        run(f, ENTRIES[True], *words)
        state.put(f, "acting", 0, 0)
    newest = f.get_word("%record", 0)
    joins = ((newest ^ new) & ~f.constant(state.BYTES, UINT64)) == 0
    moves = ~joins & ((newest & ~new & state.BYTES) != 0)
    for index in reversed(range(WORDS)):
        old = f.get_word("%record", index)
        taken = (old & new & state.BYTES) != 0
        if index == 1:
            # For want of room the write before goes when the newest one takes its place.
            taken = taken | (moves & (old != 0))
        taken = taken & ~is_strong(old)
        with f.function.when(str(taken.value)):
            _put(f, at, index - index % 2, old)


def _prepare(f: NativeMachine) -> None:
    """Forget what another CTA has left, at the first atomic access of this one."""
    with f.function.when(str((state.get(f, "hidden") == 0).value)):
        state.put(f, "hidden", 0, 1)
        records = (f.field("shared_size") + 127) >> 7 << 3
        rows.clear(f, f.pointer("check_hidden"), records << 5)


def _put(f: NativeMachine, at: str, place: int, old: Lanes) -> None:
    """Put an entry to the two that are of its kind; of one access there is one entry."""
    first, second = f.get_word(at, place), f.get_word(at, place + 1)
    who = ~f.constant(state.BYTES, UINT64)
    is_first, is_second = (((each ^ old) & who) == 0 for each in (first, second))
    more, known = f.select(is_first, first | old, old), is_first | is_second
    f.set_word(at, place, f.select(is_second & ~is_first, first, more))
    f.set_word(at, place + 1, f.select(known, f.select(is_second, second | old, second), first))
