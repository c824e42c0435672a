"""How operations in flight land: what they have read, and what must land before them.

May import `base`, `isa` and the rest of `sim.engine`. Where an operation may read before it
writes, it copies what it reads to the CTA's staging memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.isa.machine import GROUPS, Lanes
from tilewright.sim.engine import groups, memory
from tilewright.sim.engine.context import QUEUE_RECORDS, RECORD
from tilewright.sim.engine.queue import (
    AFTER_COPIES,
    IN_ORDER,
    READS,
    each_pending,
    record_of,
    rows_of,
)

if TYPE_CHECKING:
    from tilewright.sim.engine.module import Module
    from tilewright.sim.engine.native import NativeMachine

_LINE = 128  # bytes within which a swizzle moves chunks


def emit(module: Module) -> None:
    """Emit what the scheduler and `issue` call, for the agents that there are by now."""
    _land_record(module)
    _land(module)
    _room(module)
    if any(agent.reader for agent in module.agents):
        _take(module)
        _land_taken(module)
    if module.waits_for_groups:
        groups.emit(module)


def _land_record(module: Module) -> None:
    """Carry out one queued operation, and take it out of the queue."""
    f = module.machine("land_record")
    number = f.lanes(UINT64, "%index", 0)
    record = record_of(f, number)
    agent = f.get_word(record, RECORD["agent"])
    site = f.cast(f.get_word(record, RECORD["site"]), UINT32)
    f.set_word(record, RECORD["agent"], 0)
    for index, each in enumerate(module.agents):
        with f.function.when(str((agent == index + 1).value)):
            rows = rows_of(f, number) if each.wide else "null"
            f.function.emit(
                f"call void @{each.name}(ptr %ctx, i32 {site.value}, ptr {record}, ptr {rows})"
            )
            if each.reader:
                _forget(f, record)
    f.bump("progress")
    f.bump("landed")
    _advance(f)
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, i64 %index", "noinline")


def _forget(f: NativeMachine, record: str) -> None:
    """Give the staging memory of an operation back; it is empty when nobody has any."""
    taken = f.get_word(record, RECORD["taken"])
    with f.function.when(str((taken != 0).value)):
        left = f.field("staged") - 1
        f.set_field("staged", left)
        with f.function.when(str((left == 0).value)):
            f.set_field("staging_used", 0)


def _advance(f: NativeMachine) -> None:
    """Let the queue's head pass over what has landed."""
    again, check, more, after = (
        f.function.new_label(s) for s in ("head", "check", "more", "after")
    )
    f.function.branch(again)
    f.function.label(again)
    head = f.field("queue_head")
    f.function.branch_if(str((head != f.field("queue_tail")).value), check, after)
    f.function.label(check)
    landed = f.get_word(record_of(f, head), RECORD["agent"]) == 0
    f.function.branch_if(str(landed.value), more, after)
    f.function.label(more)
    f.set_field("queue_head", head + 1)
    f.function.branch(again)
    f.function.label(after)


def _land(module: Module) -> None:
    """Land an operation, and before it what must land before it."""
    f = module.machine("land")
    number = f.lanes(UINT64, "%index", 0)
    this = record_of(f, number)
    flags = f.get_word(this, RECORD["flags"])
    used = {agent.flags for agent in module.agents}
    if any(each & IN_ORDER for each in used):
        ordered = str(((flags & IN_ORDER) != 0).value)
        with f.function.when(ordered), each_pending(f, number) as (earlier, record):
            before = (f.get_word(record, RECORD["flags"]) & IN_ORDER) != 0
            _land_if(f, before, earlier)
    if any(each & AFTER_COPIES for each in used):
        waits = str(((flags & AFTER_COPIES) != 0).value)
        with f.function.when(waits), each_pending(f, number) as (earlier, record):
            _land_if(f, _is_copy_of(f, record, this), earlier)
    f.function.emit(f"call void @land_record(ptr %ctx, i64 {number.value})")
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, i64 %index", "noinline")


def _land_if(f: NativeMachine, condition: Lanes, number: Lanes) -> None:
    with f.function.when(str(condition.value)):
        f.function.emit(f"call void @land_record(ptr %ctx, i64 {number.value})")


def _is_copy_of(f: NativeMachine, record: str, arrival: str) -> Lanes:
    """Tell a copy that lanes issued which have an arrival wait for it."""
    kind = f.get_word(record, RECORD["group"]) == GROUPS.index("cp_async_group") + 1
    warps = (f.get_word(each, RECORD["warp"]) for each in (record, arrival))
    lanes = (f.get_word(each, RECORD["lanes"]) for each in (record, arrival))
    first, second = lanes
    return kind & (next(warps) == next(warps)) & ((first & second) != 0)


def _room(module: Module) -> None:
    f = module.machine("make_room")
    head = f.field("queue_head")
    full = f.field("queue_tail") - head == QUEUE_RECORDS
    _land_if(f, full, head)
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx", "noinline")

    f = module.machine("land_all")
    again, body, after = (f.function.new_label(s) for s in ("again", "body", "after"))
    f.function.branch(again)
    f.function.label(again)
    head = f.field("queue_head")
    f.function.branch_if(str((head != f.field("queue_tail")).value), body, after)
    f.function.label(body)
    f.function.emit(f"call void @land_record(ptr %ctx, i64 {head.value})")
    f.function.branch(again)
    f.function.label(after)
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx", "noinline")


def end(f: NativeMachine) -> None:
    """Let what nobody waited for land when the CTA has ended and its mbarriers are gone."""
    with each_pending(f) as (_, record):
        site = f.cast(f.get_word(record, RECORD["site"]), UINT32)
        f.site = str(site.value)
        text = "this was not done when its CTA ended: nobody waited for its mbarrier"
        f.require(f.get_word(record, RECORD["barrier"]) == 0, "mbarrier-protocol", text)
    f.function.emit("call void @land_all(ptr %ctx)")


def land_at_random(f: NativeMachine, number: Lanes) -> None:
    """Let an operation that may have landed already do its next step."""
    record = record_of(f, number)
    with f.function.when(str((f.get_word(record, RECORD["agent"]) != 0).value)):
        if not any(agent.reader for agent in f.module.agents):
            f.function.emit(f"call void @land(ptr %ctx, i64 {number.value})")
            return
        reads = (f.get_word(record, RECORD["flags"]) & READS) != 0
        groups.land_or_take(f, number, reads & (f.get_word(record, RECORD["taken"]) == 0))


# ---------------------------------------------------------------------------- reading first


def _take(module: Module) -> None:
    """Copy the run of shared memory that an operation reads, so that it may be overwritten."""
    module.memories.add("staging")
    f = module.machine("take")
    number = f.lanes(UINT64, "%index", 0)
    record = record_of(f, number)
    agent = f.get_word(record, RECORD["agent"])
    site = f.get_word(record, RECORD["site"])
    f.site = str(f.cast(site, UINT32).value)
    out = f.function.slot("[2 x i64]")
    for index, each in enumerate(module.agents):
        if each.reader:
            with f.function.when(str((agent == index + 1).value)):
                f.function.emit(
                    f"call void @{each.reader}(ptr %ctx, i32 {f.site}, ptr {record}, ptr {out})"
                )
    start, size = f.get_word(out, 0), f.get_word(out, 1)
    source = memory.run_pointer(f, Space.SHARED, start, size, write=False)
    with f.function.when(str((f.field("error") != 0).value)):
        # What cannot be read ends the launch; the operation is gone.
        f.function.emit(f"call void @land_record(ptr %ctx, i64 {number.value})")
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))
    # The bytes lie in their lines as they did, whose chunks a swizzle exchanges.
    lead = start & (_LINE - 1)
    room = (lead + size + (_LINE - 1)) & ~(_LINE - 1)
    full = f.field("staging_used") + room > f.field("staging_size")
    with f.function.when(str(full.value)):
        f.function.emit("call void @land_taken(ptr %ctx)")
    at = f.field("staging") + f.field("staging_used") + lead
    name = "llvm.memcpy.p0.p0.i64"
    module.declare(name, f"declare void @{name}(ptr, ptr, i64, i1)")
    target = f.op(f"inttoptr i64 {at.value} to ptr")
    f.function.emit(f"call void @{name}(ptr {target}, ptr {source}, i64 {size.value}, i1 false)")
    f.set_word(record, RECORD["taken"], at)
    f.set_word(record, RECORD["run"], start | (size << 32))
    f.set_field("staging_used", f.field("staging_used") + room)
    f.bump("staged")
    f.bump("progress")
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, i64 %index", "noinline")


def _land_taken(module: Module) -> None:
    """Let everything that has read write, oldest first."""
    f = module.machine("land_taken")
    with each_pending(f) as (number, record):
        _land_if(f, f.get_word(record, RECORD["taken"]) != 0, number)
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx", "noinline")
