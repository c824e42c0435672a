"""Groups of asynchronous operations: a thread makes them, and waits for all but its last ones.

May import `base`, `isa` and `engine.queue`. An operation has the number of the group that it will
belong to when that is made; what is in no group yet has the number of the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa.machine import GROUPS, WARP, Lanes
from tilewright.sim.engine.context import RECORD
from tilewright.sim.engine.queue import each_pending, made_of
from tilewright.sim.engine.spelling import llvm_type

if TYPE_CHECKING:
    from tilewright.sim.engine.module import Module
    from tilewright.sim.engine.native import NativeMachine


def commit(m: NativeMachine, group: str) -> None:
    """Count a group of each active lane."""
    m.module.memories.add("groups")
    made = made_of(m, m.constant(GROUPS.index(group), UINT64), m.field("warp"))
    assert m.mask is not None
    one = m.select(m.mask, m.constant(1, UINT32), m.constant(0, UINT32))
    counted = m.restore(made, UINT32) + one
    kind = llvm_type(UINT32, WARP)
    m.function.emit(f"store {kind} {counted.value}, ptr {made}, align 64")


def pending(
    f: NativeMachine, key: Lanes, warp: Lanes, lanes: Lanes, keep: Lanes, *, land: bool
) -> Lanes:
    """Tell whether operations stand in the way of a wait for groups; `land` has them land.

    `key` is what the wait says it is for: twice the kind of group, plus 1 if reading suffices.
    """
    if not land:
        f.module.memories.add("groups")
    name = "land_groups" if land else "groups_pending"
    words = [f"i32 {f.cast(each, UINT32).value}" for each in (key, warp, lanes, keep)]
    return f.lanes(BOOL, f.op(f"call i1 @{name}(ptr %ctx, {', '.join(words)})"), 0)


def emit(module: Module) -> None:
    """Emit the functions that look for what a wait for groups needs, and that have it land."""
    for land in (False, True):
        f = module.machine("land_groups" if land else "groups_pending")
        key, warp, lanes, keep = (
            f.lanes(UINT32, f"%{name}", 0) for name in ("key", "warp", "lanes", "keep")
        )
        kind, reading = key >> 1, (key & 1) != 0
        made = f.restore(made_of(f, f.cast(kind, UINT64), f.cast(warp, UINT64)), UINT32)
        limit = f.select(made > keep, made - keep, f.constant(0, UINT32))
        found = f.function.slot("i1", 1)
        f.function.emit(f"store i1 false, ptr {found}")
        with each_pending(f) as (number, record):
            group, owner, taken = (
                f.get_word(record, RECORD[name]) for name in ("group", "warp", "taken")
            )
            mine = (group == f.cast(kind, UINT64) + 1) & (owner == f.cast(warp, UINT64))
            with f.function.when(str((mine & ~(reading & (taken != 0))).value)):
                of_record = f.cast(f.get_word(record, RECORD["lanes"]), UINT32)
                own = f.cast(f.get_word(record, RECORD["number"]), UINT32)
                stands = (f.bits(limit > own) & of_record & lanes) != 0
                with f.function.when(str(stands.value)):
                    if land:
                        land_or_take(f, number, reading)
                        f.function.emit(f"store i1 true, ptr {found}")
                    else:
                        f.function.emit("ret i1 true")
                        f.function.label(f.function.new_label("dead"))
        f.function.emit(f"ret i1 {f.op(f'load i1, ptr {found}')}")
        f.function.finish("i1", "ptr %ctx, i32 %key, i32 %warp, i32 %lanes, i32 %keep", "noinline")


def land_or_take(f: NativeMachine, number: Lanes, reading: Lanes) -> None:
    """Have an operation land, or only read."""
    takes, lands, after = (f.function.new_label(s) for s in ("takes", "lands", "after"))
    f.function.branch_if(str(reading.value), takes, lands)
    f.function.label(takes)
    f.function.emit(f"call void @take(ptr %ctx, i64 {number.value})")
    f.function.branch(after)
    f.function.label(lands)
    f.function.emit(f"call void @land(ptr %ctx, i64 {number.value})")
    f.function.branch(after)
    f.function.label(after)
