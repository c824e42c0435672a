"""How operations in flight land: what they have read, and what must land before them.

May import `base`, `isa` and the rest of `sim.engine`. Where an operation may read before it
writes, it copies what it reads to the CTA's staging memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.isa.machine import GROUPS, Lanes
from tilewright.sim.engine import groups, memory
from tilewright.sim.engine.context import QUEUE_RECORDS, RECORD, RECORD_HEAD
from tilewright.sim.engine.queue import (
    AFTER_COPIES,
    ARRIVES,
    IN_ORDER,
    READS,
    as_issuer,
    each_pending,
    record_of,
    rows_of,
)

if TYPE_CHECKING:
    from tilewright.sim.engine.module import Module
    from tilewright.sim.engine.native import NativeMachine

_LINE = 128  # bytes within which a swizzle moves chunks


def emit(module: Module) -> None:
    """Emit what the scheduler and `issue` call."""
    _land_record(module)
    _land(module)
    _room(module)
    _take(module)
    _land_taken(module)
    groups.emit(module)


def _land_record(module: Module) -> None:
    """Carry out one queued operation, and take it out of the queue."""
    f = module.machine("land_record")
    number = f.lanes(UINT64, "%index", 0)
    record = record_of(f, number)
    agent = f.get_word(record, RECORD["agent"])
    site = f.cast(f.get_word(record, RECORD["site"]), UINT32)
    f.set_word(record, RECORD["agent"], 0)
    lander, rows = _pointer(f, agent), rows_of(f, number)
    module.observer.lands(f, number, record)
    with as_issuer(f, record):
        f.function.emit(f"call void {lander}(ptr %ctx, i32 {site.value}, ptr {record}, ptr {rows})")
    _forget(f, record)
    f.bump("progress")
    f.bump("landed")
    _advance(f)
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, i64 %index", "noinline")


def _pointer(f: NativeMachine, address: Lanes) -> str:
    return f.op(f"inttoptr i64 {address.value} to ptr")


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
    ordered = str(((flags & IN_ORDER) != 0).value)
    with f.function.when(ordered), each_pending(f, number) as (earlier, record):
        # That one may have some before it in turn, which this need not have.
        before = str(_comes_before(f, record, this).value)
        with f.function.when(before):
            f.function.emit(f"call void @land(ptr %ctx, i64 {earlier.value})")
    waits = str(((flags & AFTER_COPIES) != 0).value)
    with f.function.when(waits), each_pending(f, number) as (earlier, record):
        _land_if(f, _is_copy_of(f, record, this), earlier)
    f.function.emit(f"call void @land_record(ptr %ctx, i64 {number.value})")
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, i64 %index", "noinline")


def _land_if(f: NativeMachine, condition: Lanes, number: Lanes) -> None:
    with f.function.when(str(condition.value)):
        f.function.emit(f"call void @land_record(ptr %ctx, i64 {number.value})")


def _comes_before(f: NativeMachine, record: str, this: str) -> Lanes:
    """Tell an earlier operation of the tensor core that must land before another one.

    Those of one thread keep their order. A commit waits for no other thread's operations; of
    products those into one accumulator stay in order, whoever issued them (PTX ISA, "Pipelined
    tcgen05 instructions" and "tcgen05.commit").
    """
    flags = [f.get_word(each, RECORD["flags"]) for each in (record, this)]
    in_order = (flags[0] & IN_ORDER) != 0
    products = ((flags[0] | flags[1]) & ARRIVES) == 0
    return in_order & (
        _same(f, record, this, "warp", "lanes") | (products & _one_target(f, record, this))
    )


def _same(f: NativeMachine, one: str, other: str, *fields: str) -> Lanes:
    alike = f.constant(True, BOOL)
    for name in fields:
        alike = alike & (f.get_word(one, RECORD[name]) == f.get_word(other, RECORD[name]))
    return alike


def _one_target(f: NativeMachine, one: str, other: str) -> Lanes:
    """Tell whether two products have one accumulator, which is their first operand."""
    return f.get_word(one, RECORD_HEAD) == f.get_word(other, RECORD_HEAD)


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


def require_none_awaited(f: NativeMachine) -> None:
    """Record a fault if at the CTA's end something is in flight that an mbarrier is to see."""
    text = "this was not done when its CTA ended: no wait that is still to end needs it"
    with each_pending(f) as (_, record):
        f.site = str(f.cast(f.get_word(record, RECORD["site"]), UINT32).value)
        barrier = f.get_word(record, RECORD["barrier"])
        with f.function.when(str((barrier != 0).value)), as_issuer(f, record):
            lane = f.cast(f.get_word(record, RECORD["lanes"]), UINT32)
            f.fault("mbarrier-protocol", text, f.lowest(lane), barrier, mbarrier=True)


def land_at_random(f: NativeMachine, number: Lanes) -> None:
    """Let an operation that may have landed already do its next step."""
    record = record_of(f, number)
    with f.function.when(str((f.get_word(record, RECORD["agent"]) != 0).value)):
        reads = (f.get_word(record, RECORD["flags"]) & READS) != 0
        groups.land_or_take(f, number, reads & (f.get_word(record, RECORD["taken"]) == 0))


# ---------------------------------------------------------------------------- reading first


def _take(module: Module) -> None:
    """Copy the run of shared memory that an operation reads, so that it may be overwritten."""
    f = module.machine("take")
    number = f.lanes(UINT64, "%index", 0)
    record = record_of(f, number)
    site = f.get_word(record, RECORD["site"])
    f.site = str(f.cast(site, UINT32).value)
    module.observer.takes(f, number)
    out = f.function.slot("[2 x i64]")
    reader = _pointer(f, f.get_word(record, RECORD["reader"]))
    with as_issuer(f, record):
        f.function.emit(f"call void {reader}(ptr %ctx, i32 {f.site}, ptr {record}, ptr {out})")
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
