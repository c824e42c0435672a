"""Operations in flight: how they are issued, what they have read, how they land.

May import `base`, `isa` and the rest of `sim.engine`. A record in the CTA's queue is an operation
of one lane, or of several lanes of a warp that issued it together. Each agent, a form with kinds
of operands, is a function that reads its operands from the record.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64, DType
from tilewright.base.spaces import Space
from tilewright.isa.declaration import Form
from tilewright.isa.machine import GROUPS, WARP, Lanes
from tilewright.sim.engine import context, memory
from tilewright.sim.engine.context import QUEUE_RECORDS, RECORD, RECORD_HEAD, RECORD_WORDS
from tilewright.sim.engine.spelling import memory_type

if TYPE_CHECKING:
    from tilewright.sim.engine.module import Module
    from tilewright.sim.engine.native import NativeMachine

# The agent that keeps the order in which a thread issues, and the one whose arrivals land after
# what their lanes gave it before.
_ORDERED, _COPYING = "tensor", "copy"
IN_ORDER, AFTER_COPIES, READS, WIDE, ARRIVES = 1, 2, 4, 8, 16

Kinds = tuple[tuple[DType, int], ...]


@dataclass(frozen=True)
class Agent:
    """Who carries out operations of a form: the functions that do it, and its record's flags.

    `wide` tells that an operation is one of lanes, which may have operands of their own.
    """

    name: str
    reader: str | None
    flags: int
    wide: bool


def _flags(form: Form, wide: bool) -> int:
    time = form.time
    flags = WIDE if wide else 0
    if time.agent == _ORDERED:
        flags |= IN_ORDER | (ARRIVES if time.completes == "mbarrier" else 0)
    if time.agent == _COPYING and time.completes == "mbarrier":
        flags |= AFTER_COPIES
    return flags | (READS if form.declaration.reads is not None else 0)


# ---------------------------------------------------------------------------- agents


def _agent(module: Module, form: Form, kinds: Kinds, wide: bool) -> Agent:
    """Give the agent of a form, emitting its functions at its first use."""
    key = (form, kinds, wide)
    if key not in module.agents:
        stem = "".join(c if c.isalnum() else "_" for c in form.text)
        flags = _flags(form, wide)
        lander = _lander(module, f"land_{stem}", form, kinds, wide)
        reader = _reader(module, f"take_{stem}", form, kinds) if flags & READS else None
        if reader is not None:
            module.memories.add("staging")
        if wide:
            module.memories.add("rows")
        module.agents[key] = Agent(lander, reader, flags, wide)
    return module.agents[key]


def _operands(f: NativeMachine, kinds: Kinds) -> list[Lanes]:
    """Take the operands out of a record: from its words, those of lanes from its rows."""
    found: list[Lanes] = []
    rows = 0
    for index, (dtype, width) in enumerate(kinds):
        if width:
            at = f.op(f"getelementptr i8, ptr %rows, i64 {rows * context.ROW_BYTES}")
            found.append(f.restore(at, dtype))
            rows += 1
        else:
            found.append(f.from_word(f.get_word("%record", RECORD_HEAD + index), dtype))
    return found


def _lander(module: Module, name: str, form: Form, kinds: Kinds, wide: bool) -> str:
    f = module.machine(name, "%site")
    operands = _operands(f, kinds)
    if wide:
        f.mask = f.unpack(f.cast(f.get_word("%record", RECORD["lanes"]), UINT32))
    if form.declaration.reads is not None:
        f.seen = _seen(f)
    assert form.declaration.lands is not None
    form.declaration.lands(f, form, *operands)
    f.function.emit("ret void")
    parameters = "ptr %ctx, i32 %site, ptr %record, ptr %rows"
    return f.function.finish("void", parameters, "noinline", by_content=True)


def _seen(f: NativeMachine) -> memory.Shared:
    """Choose what an operation sees of shared memory: what it has read, or what is there."""
    taken, run = (f.get_word("%record", RECORD[name]) for name in ("taken", "run"))
    read = taken != 0
    whole = memory.shared_of(f)
    return memory.Shared(
        f.select(read, taken, whole.host),
        f.select(read, run & 0xFFFFFFFF, whole.start),
        f.select(read, run >> 32, whole.size),
    )


def _reader(module: Module, name: str, form: Form, kinds: Kinds) -> str:
    """Emit the function that says which run of shared memory an operation reads."""
    f = module.machine(name, "%site")
    assert form.declaration.reads is not None
    address, size = form.declaration.reads(f, form, *_operands(f, kinds))
    f.set_word("%out", 0, address)
    f.set_word("%out", 1, size)
    f.function.emit("ret void")
    parameters = "ptr %ctx, i32 %site, ptr %record, ptr %out"
    return f.function.finish("void", parameters, "noinline", by_content=True)


# ---------------------------------------------------------------------------- issue


def issue(
    m: NativeMachine,
    form: Form,
    operands: Sequence[Lanes],
    barrier: Lanes | None,
    lane: Lanes | None,
) -> None:
    """Queue an operation of one lane, or, where lanes are active, of each of them."""
    wide = m.mask is not None
    kinds = tuple((each.dtype, each.width) for each in operands)
    agent = _agent(m.module, form, kinds, wide)
    key = m.constant(0, UINT32) if barrier is None else barrier
    if wide:
        _issue_wide(m, agent, form, operands, key)
        return
    lanes, group = (
        m.constant(1, UINT32) << (m.cast(m.field("acting"), UINT32) - 1),
        m.constant(0, UINT32),
    )
    if form.time.completes in GROUPS:
        assert lane is not None, f"{form.text} belongs to no lane"
        made = _made(m, form)
        at = m.op(f"getelementptr i32, ptr {made}, i64 {m.cast(lane, UINT64).value}")
        group = m.lanes(UINT32, m.op(f"load i32, ptr {at}"), 0)
    _enqueue(m, agent, form, operands, key, lanes, group)


def _issue_wide(
    m: NativeMachine, agent: Agent, form: Form, operands: Sequence[Lanes], key: Lanes
) -> None:
    """Queue the operations of lanes, together those of one group number and one mbarrier."""
    for declared, value in zip(form.operands, operands, strict=False):
        if declared.space is Space.GLOBAL and declared.access == "read" and value.width:
            memory.prefetch(m, value)
    numbers = m.constant(0, UINT32)
    if form.time.completes in GROUPS:
        numbers = m.restore(_made(m, form), UINT32)
    remaining = m.function.slot("i32", 4)
    m.function.emit(f"store i32 {m.active().value}, ptr {remaining}")
    head, turn, after = (m.function.new_label(s) for s in ("lanes", "lane", "after"))
    m.function.branch(head)
    m.function.label(head)
    left = m.lanes(UINT32, m.op(f"load i32, ptr {remaining}"), 0)
    m.function.branch_if(str((left != 0).value), turn, after)
    m.function.label(turn)
    first = m.lowest(left)
    together = left
    common: list[Lanes] = []
    for each in (numbers, key):
        common.append(m.pick(each, first) if each.width else each)
        if each.width:
            together = together & m.bits(each == common[-1])
    m.function.emit(f"store i32 {(left & ~together).value}, ptr {remaining}")
    _enqueue(m, agent, form, operands, common[1], together, common[0])
    m.function.branch(head)
    m.function.label(after)


def _enqueue(
    m: NativeMachine,
    agent: Agent,
    form: Form,
    operands: Sequence[Lanes],
    barrier: Lanes,
    lanes: Lanes,
    group: Lanes,
) -> None:
    kind = GROUPS.index(form.time.completes) + 1 if form.time.completes in GROUPS else 0
    m.function.emit("call void @make_room(ptr %ctx)")
    tail = m.field("queue_tail")
    record = record_of(m, tail)
    fields = {
        "agent": _address(m, agent.name),
        "reader": 0 if agent.reader is None else _address(m, agent.reader),
        "barrier": barrier,
        "site": m.lanes(UINT32, m.site, 0),
        "flags": agent.flags,
        "group": kind,
        "warp": m.field("warp"),
        "lanes": lanes,
        "number": group,
        "taken": 0,
    }
    for name, value in fields.items():
        m.set_word(record, RECORD[name], value)
    assert len(operands) <= RECORD_WORDS - RECORD_HEAD, f"{form.text} has too many operands"
    rows = 0
    for index, value in enumerate(operands):
        if value.width:
            kind_of = f"<{WARP} x {memory_type(value.dtype)}>"
            at = m.op(f"getelementptr i8, ptr {rows_of(m, tail)}, i64 {rows * context.ROW_BYTES}")
            m.function.emit(f"store {kind_of} {m.to_memory(value)}, ptr {at}, align 64")
            rows += 1
        else:
            m.set_word(record, RECORD_HEAD + index, m.to_word(value))
    assert rows <= context.ROWS, f"{form.text} has too many operands of lanes"
    m.module.observer.queues(m, form, tail, barrier)
    m.set_field("queue_tail", tail + 1)
    m.bump("progress")
    eager = m.field("schedule") == context.SCHEDULES["eager"]
    with m.function.when(str(eager.value)):
        m.function.emit("call void @land_all(ptr %ctx)")


def _address(m: NativeMachine, name: str) -> Lanes:
    return m.lanes(UINT64, f"ptrtoint (ptr @{name} to i64)", 0)


# ---------------------------------------------------------------------------- records


@contextmanager
def as_issuer(f: NativeMachine, record: str) -> Generator[None]:
    """Have faults blame who issued an operation, not whose turn it is when it lands."""
    before = {name: f.field(name) for name in ("warp", "acting")}
    wide = (f.get_word(record, RECORD["flags"]) & WIDE) != 0
    lane = f.cast(f.lowest(f.cast(f.get_word(record, RECORD["lanes"]), UINT32)), UINT64)
    f.set_field("warp", f.get_word(record, RECORD["warp"]))
    f.set_field("acting", f.select(wide, f.constant(0, UINT64), lane + 1))
    yield
    for name, value in before.items():
        f.set_field(name, value)


def record_of(f: NativeMachine, number: Lanes) -> str:
    """Address the record of an operation, by its number in the order of issue."""
    start = (number & (QUEUE_RECORDS - 1)) * RECORD_WORDS
    return f.op(f"getelementptr i64, ptr {f.pointer('queue')}, i64 {start.value}")


def rows_of(f: NativeMachine, number: Lanes) -> str:
    """Address the operands of lanes of an operation."""
    start = (number & (QUEUE_RECORDS - 1)) * (context.ROWS * context.ROW_BYTES)
    return f.op(f"getelementptr i8, ptr {f.pointer('rows')}, i64 {start.value}")


@contextmanager
def each_pending(f: NativeMachine, until: Lanes | None = None) -> Generator[tuple[Lanes, str]]:
    """Loop over what is in flight, oldest first; yields the number and the record."""
    head = f.field("queue_head")
    end = f.field("queue_tail") if until is None else until
    with f.function.loop(str((end - head).value)) as step:
        number = head + f.lanes(UINT64, step, 0)
        record = record_of(f, number)
        with f.function.when(str((f.get_word(record, RECORD["agent"]) != 0).value)):
            yield number, record


def _made(m: NativeMachine, form: Form) -> str:
    """Address how many groups of a form's kind the lanes of the running warp have made."""
    m.module.memories.add("groups")
    return made_of(m, m.constant(GROUPS.index(form.time.completes), UINT64), m.field("warp"))


def made_of(f: NativeMachine, kind: Lanes, warp: Lanes) -> str:
    """Address how many groups the lanes of a warp have made: 32 numbers of 32 bits."""
    start = (kind * context.WARPS + warp) * (WARP * 4)
    return f.op(f"getelementptr i8, ptr {f.pointer('groups')}, i64 {start.value}")
