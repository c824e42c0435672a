"""Instructions whose registers are read or written later: recorded at issue, run at the wait.

May import `base`, `isa` and the rest of `sim.engine`. A warp has an arena per group ("tmem_load",
"tmem_store"), filled with records: a function that carries the instruction out, its lanes and
site, its operands, and where its results go. Until then the results are all ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.isa.declaration import Form
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine.calls import Calls, Row, literal
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.spelling import memory_type, scalar_type

GROUPS = ("tmem_load", "tmem_store")
ARENA_BYTES = 1 << 17
_HEAD = 4  # words of a record before its operands: function, lanes, site, size in bytes
_ROW = WARP * 4 // 8  # words of a vector of 32-bit lanes


def is_late(form: Form) -> bool:
    """Tell whether an instruction's registers are touched after its issue."""
    return bool(form.time.agent) and form.time.completes in GROUPS


def awaited_group(form: Form) -> str | None:
    """Give the group that an instruction waits for."""
    completes = form.time.completes
    return completes if not form.time.agent and completes in GROUPS else None


def _arena(m: NativeMachine, group: Lanes | int) -> str:
    """Give the host address of the running warp's arena: its fill in bytes, then records."""
    index = (m.field("warp") * len(GROUPS) + group) * ARENA_BYTES
    return m.op(f"getelementptr i8, ptr {m.pointer('flight')}, i64 {index.value}")


class Flight:
    """The late instructions of a kernel."""

    def __init__(self, module: Module, calls: Calls) -> None:
        self.module = module
        self.calls = calls

    def record(
        self,
        m: NativeMachine,
        form: Form,
        operands: Sequence[Lanes],
        results: Sequence[str],
        into: Row | None,
    ) -> None:
        """Record an instruction for the active lanes.

        `results` are rows of the warp's frame; if they follow each other `into` is the first.
        """
        self.module.memories.add("flight")
        name = self.calls.function(form, operands)
        together = into is not None and self.calls.fills_rows(name, into.dtype)
        rows = results[:1] if together else results
        thunk = f"late_{'rows_' if together else ''}{name}"
        if thunk not in self.module.functions:
            self._thunk(thunk, name, operands, len(results), together=together)
        passed = [each for each in operands if literal(each) is None]
        words = _HEAD + sum(_ROW if each.width else 1 for each in passed) + len(rows)
        group = GROUPS.index(form.time.completes)
        m.function.emit(f"call void @flight_room(ptr %ctx, i64 {group}, i64 {words * 8})")
        arena = _arena(m, group)
        start = m.get_word(arena, 0)
        record = m.op(f"getelementptr i8, ptr {arena}, i64 {(start + 8).value}")
        m.function.emit(f"store ptr @{thunk}, ptr {m.word(record, 0)}")
        m.set_word(record, 1, m.active())
        m.set_word(record, 2, m.lanes(UINT32, m.site, 0))
        m.set_word(record, 3, words * 8)
        at = _HEAD
        for each in passed:
            at = self._keep(m, record, at, each)
        count = len(results) if together else 1
        for row in rows:
            m.function.emit(f"store ptr {row}, ptr {m.word(record, at)}")
            at += 1
            # What is read before the wait is not what was loaded.
            mask = m.active().value
            m.function.emit(f"call void @flight_poison(ptr {row}, i64 {count}, i32 {mask})")
        m.set_word(arena, 0, start + words * 8)

    @staticmethod
    def _keep(m: NativeMachine, record: str, at: int, value: Lanes) -> int:
        if not value.width:
            m.set_word(record, at, m.cast(value, UINT64))
            return at + 1
        vector = f"<{WARP} x {memory_type(value.dtype)}>"
        m.function.emit(f"store {vector} {m.to_memory(value)}, ptr {m.word(record, at)}, align 8")
        return at + _ROW

    def _thunk(
        self, thunk: str, name: str, operands: Sequence[Lanes], results: int, *, together: bool
    ) -> None:
        """Emit the function that carries out the records of an instruction function."""
        f = self.module.machine(thunk)
        mask = f.cast(f.get_word("%record", 1), UINT32)
        site = f.cast(f.get_word("%record", 2), UINT32)
        arguments = [f"ptr %ctx, i32 {mask.value}, i32 {site.value}"]
        at = _HEAD
        for each in operands:
            if literal(each) is not None:
                continue
            if each.width:
                # Functions take vectors at aligned addresses, which records do not give.
                vector = f"<{WARP} x {memory_type(each.dtype)}>"
                kept = f.op(f"load {vector}, ptr {f.word('%record', at)}, align 8")
                slot = f.function.slot(vector)
                f.function.emit(f"store {vector} {kept}, ptr {slot}, align 64")
                arguments.append(f"ptr {slot}")
                at += _ROW
            else:
                value = f.cast(f.get_word("%record", at), each.dtype)
                arguments.append(f"{scalar_type(each.dtype)} {value.value}")
                at += 1
        if together:
            out = f.op(f"load ptr, ptr {f.word('%record', at)}")
        else:
            out = f.function.slot(f"[{max(results, 1) * _ROW * 8} x i8]")
        f.function.emit(f"call void @{name}({', '.join([*arguments, f'ptr {out}'])})")
        lanes = f.unpack(mask)
        for index in range(0 if together else results):
            row = f.op(f"load ptr, ptr {f.word('%record', at + index)}")
            bits = f.restore(f.op(f"getelementptr i64, ptr {out}, i64 {index * _ROW}"), UINT32)
            blended = f.select(lanes, bits, f.restore(row, UINT32))
            f.function.emit(f"store <32 x i32> {blended.value}, ptr {row}, align 64")
        f.function.emit("ret void")
        f.function.finish("void", "ptr %ctx, ptr %record", "noinline")

    def wait(self, m: NativeMachine, group: str) -> None:
        """Carry out what the running warp has recorded in a group."""
        self.module.memories.add("flight")
        m.function.emit(f"call void @flight_land(ptr %ctx, i64 {GROUPS.index(group)})")


def emit(module: Module) -> None:
    """Emit the functions that make room in an arena, fill rows with ones, carry out records."""
    f = module.machine("flight_poison")
    lanes = f.unpack(f.lanes(UINT32, "%mask", 0))
    ones = f.lanes(UINT32, "<" + ", ".join("i32 -1" for _ in range(WARP)) + ">", WARP)
    with f.function.loop("%count") as index:
        row = f.op(f"getelementptr <32 x i32>, ptr %first, i64 {index}")
        kept = f.select(lanes, ones, f.restore(row, UINT32))
        f.function.emit(f"store <32 x i32> {kept.value}, ptr {row}, align 64")
    f.function.emit("ret void")
    f.function.finish("void", "ptr %first, i64 %count, i32 %mask", "noinline")

    f = module.machine("flight_land")
    arena = _arena(f, f.lanes(UINT64, "%group", 0))
    end = f.get_word(arena, 0)
    done = f.function.slot("i64", 8)
    f.function.emit(f"store i64 0, ptr {done}")
    head, body, after = (f.function.new_label(s) for s in ("head", "body", "after"))
    f.function.branch(head)
    f.function.label(head)
    at = f.lanes(UINT64, f.op(f"load i64, ptr {done}"), 0)
    f.function.branch_if(str((at < end).value), body, after)
    f.function.label(body)
    record = f.op(f"getelementptr i8, ptr {arena}, i64 {(at + 8).value}")
    thunk = f.op(f"load ptr, ptr {record}")
    size = f.get_word(record, 3)
    f.function.emit(f"call void {thunk}(ptr %ctx, ptr {record})")
    f.function.emit(f"store i64 {(at + size).value}, ptr {done}")
    f.function.branch(head)
    f.function.label(after)
    f.set_word(arena, 0, 0)
    f.bump("progress")
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, i64 %group", "noinline")

    f = module.machine("flight_room")
    filled = f.get_word(_arena(f, f.lanes(UINT64, "%group", 0)), 0)
    full = filled + f.lanes(UINT64, "%size", 0) + 8 > ARENA_BYTES
    with f.function.when(str(full.value)):
        f.function.emit("call void @flight_land(ptr %ctx, i64 %group)")
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, i64 %group, i64 %size", "noinline")
