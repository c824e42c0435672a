"""A lowered kernel as one native function, entered with a path of a warp.

May import `base`, `isa`, `ir` and the rest of `sim.engine`.

`@kernel(ctx, path, frame, warp)` runs a path until it finishes or cannot go on. Variables are
stack slots, which LLVM turns into registers; what lives across a suspension is saved in the
warp's frame (values of lanes) and in the path's record (uniform values), and a switch on entry
leads back to where the path stopped. At every such point the active lanes are the path's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.base.dtypes import BOOL, UINT32, UINT64, DType
from tilewright.base.errors import CompilerBug
from tilewright.base.locations import Location
from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expr,
    Intrinsic,
    Load,
    Offset,
    Read,
    Select,
    SharedBase,
    Shuffle,
    SpecialRegister,
    Unary,
    Var,
    as_constant,
)
from tilewright.ir.operands import declared_operands
from tilewright.ir.print_expressions import print_expr
from tilewright.ir.statements import (
    Allocate,
    Assert,
    Assign,
    Bind,
    Block,
    Break,
    Breakpoint,
    Continue,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Print,
    Return,
    Stmt,
    Store,
    While,
    Write,
)
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType
from tilewright.ir.visit import walk
from tilewright.isa import barriers, warp_ops
from tilewright.isa.declaration import Operand, Wait
from tilewright.isa.machine import WARP, Lanes
from tilewright.passes.analysis.uniformity import leaves_early
from tilewright.sim.engine import context, vectors
from tilewright.sim.engine.calls import Calls, Row, outlined
from tilewright.sim.engine.context import PATH, PATH_HEAD
from tilewright.sim.engine.flight import Flight, awaited_group, is_late
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.plan import Plan, loop_bounds, used_names
from tilewright.sim.engine.spelling import llvm_type, memory_type
from tilewright.sim.engine.vectors import plain
from tilewright.sim.engine.written import Written

_ALL = (1 << WARP) - 1
_SCALARS = "@SCALAR_BYTES@"
# What LLVM does with a basic block takes time that grows with the square of its length.
_BLOCK_LINES = 512
_STOPPED = "stopped"  # the label where a path ends that is not to go on
# Collectives to which lanes may come in groups, each group by a member mask of its own.
_BY_GROUPS = (*warp_ops.SHUFFLES, barriers.bar_warp_sync)


@dataclass(frozen=True)
class Variable:
    """A variable's stack slot and kind."""

    slot: str
    dtype: DType
    width: int
    offset: int | None = None

    @property
    def resident(self) -> bool:
        """Tell one that is kept in the warp's frame, at the offset."""
        return self.offset is not None


@dataclass(frozen=True)
class Array:
    """A local array: where its rows of lanes lie in the warp's frame."""

    offset: int
    dtype: DType
    length: int


@dataclass
class Loop:
    """The loop around a statement: where its exits lead, or the masks that they change.

    Where they change masks, `empty` is where to go on when a jump has left no lane active: the
    end of the arm of a branch, in which other lanes may take over, or of the body.
    """

    exit: str = ""
    latch: str = ""
    alive: str = ""
    turn: str = ""
    empty: str = ""
    exit_level: int | None = None


class KernelCode:
    """Emits a kernel; after `emit`, `path_words` and `frame_bytes` say what its paths need."""

    def __init__(self, module: Module, plan: Plan) -> None:
        self.module = module
        self.plan = plan
        self.m: NativeMachine = module.machine("kernel")
        self.f = self.m.function
        self.calls = Calls(module)
        self.flight = Flight(module, self.calls)
        self.variables: dict[str, Variable] = {}
        self.parameters: frozenset[str] = frozenset()
        self.arrays: dict[str, Array] = {}
        self.frame_slots: dict[str, int] = {}
        self.scalar_slots: dict[str, int] = {}
        self.frame_bytes = 0
        self.level = 0
        self.resumes: list[str] = []
        self.loops: list[Loop] = []
        self.here: Location | None = None  # the statement that is emitted
        self.written = Written(self) if module.observer.watches_registers else None
        self.mask_slot = self.f.slot("i32", 4)
        # The basic block in which the mask was set or read last, and what it is there.
        self._known = (-1, self.m.constant(0, UINT32))

    @property
    def path_words(self) -> int:
        """Count the words of a path's record."""
        return PATH_HEAD + self.plan.depth + len(self.scalar_slots)

    def emit(self) -> None:
        """Emit the function."""
        kernel = self.plan.kernel
        self._parameters(kernel)
        self._warp_words()
        self.set_mask(self._low_word(PATH["lanes"]))
        resume = self.m.get_word("%path", PATH["resume"])
        self.m.set_word("%path", PATH["state"], context.READY)
        switch = len(self.f.lines)
        self.f.label("begin")
        self.block(kernel.body)
        self._return()
        self.f.label(_STOPPED)
        self.f.emit(f"ret i32 {context.STOPPED}")
        cases = " ".join(f"i64 {n} , label %{label}" for n, label in enumerate(self.resumes, 1))
        self.f.lines.insert(switch, f"  switch i64 {resume.value}, label %begin [ {cases} ]")
        size = str(8 * len(self.scalar_slots))
        self.f.lines[:] = [line.replace(_SCALARS, size) for line in self.f.lines]
        self.f.finish("i32", "ptr %ctx, ptr %path, ptr %frame, i32 %warp", "noinline")

    # ---- variables

    def _parameters(self, kernel: Kernel) -> None:
        words = self.m.pointer("parameters")
        variables = (*kernel.params, *kernel.symbols)
        # They are read whenever the function is entered.
        self.parameters = frozenset(var.name for var in variables)
        for index, var in enumerate(variables):
            word = self.m.get_word(words, index)
            self.define(var.name, self.m.from_word(word, value_dtype(var)))

    def declare(self, name: str, dtype: DType, width: int) -> Variable:
        """Give a variable a slot: zero at first, where a path may be resumed before it is set."""
        if name not in self.variables and name in self.plan.late:
            self.variables[name] = self._resident(dtype)
        if name not in self.variables:
            kind = llvm_type(dtype, width)
            slot = self.f.slot(kind)
            if self.plan.suspending:
                self.f.entry.append(f"  store {kind} zeroinitializer, ptr {slot}")
            self.variables[name] = Variable(slot, dtype, width)
        return self.variables[name]

    def _resident(self, dtype: DType) -> Variable:
        """Keep a variable in the warp's frame, where an instruction may write it later."""
        offset = self.reserve(WARP * dtype.bytes)
        slot = f"%late{offset}"
        self.f.entry.append(f"  {slot} = getelementptr i8, ptr %frame, i64 {offset}")
        return Variable(slot, dtype, WARP, offset)

    def define(self, name: str, value: Lanes, width: int = 0) -> None:
        """Set a variable in all lanes; it is made at its first definition."""
        variable = self.declare(name, value.dtype, width)
        self._put(variable, value)

    def _put(self, variable: Variable, value: Lanes) -> None:
        kind = llvm_type(variable.dtype, variable.width)
        text = self.m.spread(value) if variable.width else self.m.first(value).value
        self.f.emit(f"store {kind} {text}, ptr {variable.slot}")

    def get(self, name: str) -> Lanes:
        """Read a variable."""
        variable = self.variables[name]
        kind = llvm_type(variable.dtype, variable.width)
        value = self.f.value(f"load {kind}, ptr {variable.slot}")
        return self.m.lanes(variable.dtype, value, variable.width)

    def assign(self, name: str, value: Lanes) -> None:
        """Set a variable in the active lanes."""
        variable = self.variables[name]
        if variable.width:
            value = self.m.select(self.mask_of(), value, self.get(name))
        elif value.width:
            value = self.m.first(value)
        self._put(variable, value)

    def width_of(self, var: Var) -> int:
        """Count the lanes that a variable is kept for: none if it is uniform."""
        return 0 if self.plan.uniformity.is_uniform(var) else WARP

    # ---- masks

    def set_mask(self, bits: Lanes) -> None:
        """Make these the active lanes."""
        self.f.emit(f"store i32 {bits.value}, ptr {self.mask_slot}")
        self._know_mask(bits)

    def _know_mask(self, bits: Lanes) -> None:
        self.m.mask = self.m.unpack(bits)
        self._known = (self.f.basic_block, bits)

    def active(self) -> Lanes:
        """Give the set of active lanes: read it, or as it was set or read in this basic block."""
        block, bits = self._known
        if block == self.f.basic_block:
            return bits
        return self.m.lanes(UINT32, self.f.value(f"load i32, ptr {self.mask_slot}"), 0)

    def refresh(self) -> None:
        """Read the mask again after control has come together."""
        if self._known[0] != self.f.basic_block:
            self._know_mask(self.active())

    def mask_of(self) -> Lanes:
        """Give the active lanes as booleans."""
        assert self.m.mask is not None
        return self.m.mask

    def bits_of(self, condition: Lanes) -> Lanes:
        """Pack a condition into bits, whatever lanes are active."""
        if condition.width:
            return self.m.bits(condition)
        return self.m.select(condition, self.m.constant(_ALL, UINT32), self.m.constant(0, UINT32))

    # ---- statements

    def block(self, block: Block) -> None:
        """Emit statements; what follows a jump is not reached."""
        for stmt in block:
            self._seam()
            self.f.forget_scratch()
            self.refresh()
            self.statement(stmt)
            if isinstance(stmt, Break | Continue | Return):
                return

    def _seam(self) -> None:
        """End a basic block that has become long: after a fault the path goes no further."""
        if self.f.block_lines < _BLOCK_LINES:
            return
        on = self.f.new_label("on")
        self.f.branch_if(str((self.m.field("error") == 0).value), on, _STOPPED)
        self.f.label(on)

    def statement(self, stmt: Stmt) -> None:
        """Emit a statement."""
        self.here = stmt.location
        if self.written is not None:
            self.written.before(stmt)
        self._emit(stmt)
        if self.written is not None:
            self.written.after(stmt)

    def _emit(self, stmt: Stmt) -> None:
        match stmt:
            case Bind():
                self.define(stmt.var.name, self.expr(stmt.value), self.width_of(stmt.var))
            case Declare():
                self._declare(stmt)
            case Assign():
                value = self.expr(stmt.value)
                self._touch(stmt.var, stmt.location)
                self.assign(stmt.var.name, value)
            case Allocate():
                self._allocate(stmt.var)
            case Store():
                value = self.expr(stmt.value)
                element = Load(stmt.tensor, stmt.indices, stmt.value.type, location=stmt.location)
                self._touch(element, stmt.location)
                self._store(stmt.tensor, stmt.indices[0], value, stmt)
            case Write():
                self._write(stmt)
            case If():
                self._if(stmt)
            case For():
                self._for(stmt)
            case While():
                self._while(stmt)
            case Break() | Continue():
                self._jump(stmt)
            case Return():
                self._return()
                self.f.label(self.f.new_label("dead"))
            case Instruct():
                self._instruct(stmt)
            case Print():
                self._print(stmt)
            case Breakpoint():
                self._breakpoint(stmt)
            case Assert():
                self._assert(stmt)
            case _:
                raise CompilerBug(f"the engine meets {type(stmt).__name__}", code="compiler-bug")

    def _declare(self, stmt: Declare) -> None:
        if stmt.value is None:
            # Like memory that nothing has written yet: all bits are set.
            value = self.m.from_word(self.m.constant(-1, UINT64), value_dtype(stmt.var))
        else:
            value = self.expr(stmt.value)
        self.define(stmt.var.name, value, self.width_of(stmt.var))

    def _allocate(self, var: Var) -> None:
        assert isinstance(var.type, TensorType)
        length = as_constant(var.type.shape[0])
        assert isinstance(length, int)
        element = plain(var.type.dtype)
        rows = max(length, 1) * WARP * element.bytes
        self.arrays[var.name] = Array(self.reserve(rows), element, length)

    def reserve(self, size: int) -> int:
        """Set bytes of the warp's frame aside: give their offset."""
        offset = -(-self.frame_bytes // 64) * 64
        self.frame_bytes = offset + size
        return offset

    def _write(self, stmt: Write) -> None:
        assert isinstance(stmt.pointer.type, PointerType)
        value = self.expr(stmt.value)
        address = self.expr(stmt.pointer)
        self.at(stmt, f"write {print_expr(stmt.pointer)}")
        kind, space = stmt.pointer.type.dtype, stmt.pointer.type.space
        self.module.observer.comes_to(stmt)
        self.module.observer.accesses(self.m, space, address, kind.bytes, write=True)
        if value.width:
            self.module.observer.stores_at_once(self.m, space, address, value)
        vectors.store(self.m, space, address, value, kind)

    def _assert(self, stmt: Assert) -> None:
        condition = self.expr(stmt.condition)
        self.at(stmt, "assert")
        self.m.require(condition, "trap", f"an assertion failed: {stmt.message}")

    def _print(self, stmt: Print) -> None:
        """Record values to print; nothing is printed any more once a fault has been met."""
        values = [self.expr(each) for each in stmt.operands]
        number = self.module.site(stmt.location, stmt.format)
        with self.f.when(str((self.m.field("error") == 0).value)):
            self._record(number, values)

    def _breakpoint(self, stmt: Breakpoint) -> None:
        """Record values, and have the host show them now: memory is as it is at this point."""
        values = [self.expr(each) for each in stmt.operands]
        number = self.module.site(stmt.location, stmt.text)
        with self.f.when(str((self.m.field("error") == 0).value)):
            self._record(number, values)
            self.f.emit(f"call void {self.m.pointer('drain')}(ptr %ctx)")

    def _record(self, number: int, values: list[Lanes]) -> None:
        size = 16 + 8 * WARP * len(values)
        used = self.m.field("print_used")
        full = used + size > self.m.field("print_size")
        with self.f.when(str(full.value)):
            self.f.emit(f"call void {self.m.pointer('drain')}(ptr %ctx)")
        start = self.m.field("print_used")
        record = self.f.value(
            f"getelementptr i8, ptr {self.m.pointer('print_buffer')}, i64 {start.value}"
        )
        self.m.set_word(record, 0, number)
        self.m.set_word(record, 1, self.active())
        for index, value in enumerate(values):
            vector = self._words_of(value)
            at = self.f.value(f"getelementptr i64, ptr {record}, i64 {2 + WARP * index}")
            self.f.emit(f"store <32 x i64> {vector}, ptr {at}, align 8")
        self.m.set_field("print_used", start + size)

    def _words_of(self, value: Lanes) -> str:
        dtype = value.dtype
        if not dtype.is_bool and not dtype.is_integer:
            bits = DType(f"uint{dtype.bits}", "uint", dtype.bits)
            value = self.m.bitcast(value, bits)
        return self.m.spread(self.m.cast(value, UINT64))

    def at(self, stmt: Stmt, text: str) -> None:
        """Make a statement the place to blame for what comes next."""
        self.m.site = str(self.module.site(stmt.location, text))

    @contextmanager
    def blaming(self, location: Location | None, text: str) -> Generator[None]:
        """Make an expression the place to blame while it is evaluated."""
        outer, self.m.site = self.m.site, str(self.module.site(location, text))
        yield
        self.m.site = outer

    # ---- branches

    def _if(self, stmt: If) -> None:
        condition = self.expr(stmt.condition)
        if not self.plan.diverges(stmt):
            self._uniform_if(stmt, condition)
        elif self.plan.suspends(stmt):
            self._parting_if(stmt, condition)
        else:
            self._masked_if(stmt, condition)
        if self.loops and self.loops[-1].turn and leaves_early((stmt,)):
            # Nothing may run while no lane is active.
            on = self.f.new_label("on")
            self.f.branch_if(str((self.active() != 0).value), on, self.loops[-1].empty)
            self.f.label(on)

    def _uniform_if(self, stmt: If, condition: Lanes) -> None:
        condition = self.m.first(condition)
        then, orelse, after = (self.f.new_label(s) for s in ("then", "else", "after"))
        self.f.branch_if(str(condition.value), then, orelse)
        self.f.label(then)
        self.block(stmt.then)
        self.f.branch(after)
        self.f.label(orelse)
        self.block(stmt.orelse)
        self.f.branch(after)
        self.f.label(after)

    def _masked_if(self, stmt: If, condition: Lanes) -> None:
        outer = self.active()
        chosen = self.bits_of(condition)
        for lanes, block in ((outer & chosen, stmt.then), (outer & ~chosen, stmt.orelse)):
            if not block:
                continue
            with self.f.when(str((lanes != 0).value)):
                self.set_mask(lanes)
                self._arm(block)
        # Lanes that left a loop by a jump stay away until the loop's next turn.
        stay = outer
        if self.loops and self.loops[-1].turn:
            stay = outer & self.cell(self.loops[-1].turn)
        self.set_mask(stay)

    def _arm(self, block: Block) -> None:
        """Emit what some lanes do while the others wait."""
        if not self.loops or not self.loops[-1].turn:
            self.block(block)
            return
        loop = self.loops[-1]
        outer, loop.empty = loop.empty, self.f.new_label("empty")
        self.block(block)
        self.f.branch(loop.empty)
        self.f.label(loop.empty)
        loop.empty = outer

    def _parting_if(self, stmt: If, condition: Lanes) -> None:
        after = self.plan.live[id(stmt)]
        lanes = self.active()
        level = self._enter(lanes)
        chosen = lanes & self.bits_of(condition)
        rest = lanes & ~self.bits_of(condition)
        then, orelse, both, one, meet = (
            self.f.new_label(s) for s in ("then", "else", "both", "one", "meet")
        )
        parts = (chosen != 0) & (rest != 0)
        self.f.branch_if(str(parts.value), both, one)
        self.f.label(one)
        self.f.branch_if(str((chosen != 0).value), then, orelse)
        self.f.label(both)
        live = after | self._needs(stmt.orelse) | used_names((stmt.condition,))
        live = frozenset(name for name in live if name in self.variables)
        self._fork(rest, live, orelse)
        self.set_mask(chosen)
        self.f.branch(then)
        self.f.label(then)
        self.block(stmt.then)
        self.f.branch(meet)
        self.f.label(orelse)
        self.block(stmt.orelse)
        self.f.branch(meet)
        self.f.label(meet)
        self._meet(level, after)
        self.level -= 1

    def _needs(self, block: Block) -> frozenset[str]:
        return frozenset(
            node.name
            for node in walk(block)
            if isinstance(node, Var) and not isinstance(node.type, TensorType)
        )

    def _enter(self, lanes: Lanes) -> int:
        """Note the lanes that are to meet again at the end of a construct."""
        level = self.level
        self.level += 1
        self.m.set_word("%path", PATH_HEAD + level, lanes)
        return level

    def _fork(self, lanes: Lanes, live: frozenset[str], target: str) -> None:
        """Make a path of some lanes, which begins at a label; this path keeps the others."""
        self._save(live)
        number, _ = self._resume(live, target)
        self.f.emit(f"call void @fork(ptr %ctx, ptr %path, i32 {lanes.value}, i64 {number})")

    def _resume(self, live: frozenset[str], target: str) -> tuple[int, str]:
        """Emit, out of line, the way back to a label: restore what is live, and jump."""
        label = self.f.new_label("resume")
        self.resumes.append(label)
        skip = self.f.new_label("skip")
        mask = self.m.mask
        self.f.branch(skip)
        self.f.label(label)
        self._restore(live)
        self.f.branch(target)
        self.f.label(skip)
        self.m.mask = mask
        return len(self.resumes), label

    def _meet(self, level: int, live: frozenset[str]) -> None:
        """Wait for the lanes that parted at a construct; go on if they are all here."""
        after, wait = self.f.new_label("after"), self.f.new_label("wait")
        live = frozenset(name for name in live if name in self.variables)
        expected = self._low_word(PATH_HEAD + level)
        exited = self._warp_word(context.EXITED_START)
        missing = expected & ~exited & ~self.active()
        self.f.branch_if(str((missing == 0).value), after, wait)
        self.f.label(wait)
        self.m.set_word("%path", PATH["key"], PATH_HEAD + level)
        self._suspend(live, after, "arrive", state=context.JOINING, need=expected, level=level)
        self.f.label(after)
        self.refresh()

    def _warp_words(self) -> None:
        """Address the words that the context has for the warp."""
        self.f.entry.append("  %wide_warp = zext i32 %warp to i64")
        for start in (context.LANES_START, context.EXITED_START):
            self.f.entry.append(f"  %all{start} = getelementptr i64, ptr %ctx, i64 {start}")
            own = f"%own{start} = getelementptr i64, ptr %all{start}, i64 %wide_warp"
            self.f.entry.append(f"  {own}")

    def _warp_word(self, start: int) -> Lanes:
        return self.m.lanes(UINT32, self.f.value(f"load i32, ptr %own{start}"), 0)

    def _low_word(self, index: int) -> Lanes:
        """Read a word of the path's record, uint32."""
        return self.m.lanes(UINT32, self.f.value(f"load i32, ptr {self.m.word('%path', index)}"), 0)

    # ---- suspension

    def _suspend(
        self,
        live: frozenset[str],
        target: str,
        how: str,
        *,
        state: int,
        need: Lanes | int = 0,
        level: int | None = None,
    ) -> None:
        """Stop the path here; it goes on at `target` when the scheduler lets it."""
        self.m.set_word("%path", PATH["need"], self.m.lift(need, UINT32))
        self.m.set_word("%path", PATH["site"], self.m.lanes(UINT32, self.m.site, 0))
        if how == "arrive":
            self._forget(self.level if level is None else level + 1)
        self._save(live)
        number, _ = self._resume(live, target)
        self.m.set_word("%path", PATH["resume"], number)
        if how == "arrive":
            self.f.emit(f"call void @arrive(ptr %ctx, ptr %path, i64 {state})")
        else:
            self.m.set_word("%path", PATH["state"], state)
        self.f.emit(f"ret i32 {context.SUSPENDED}")

    def _forget(self, level: int) -> None:
        """Clear what is dead in the path's record, so that equal paths are seen to be equal."""
        for dead in range(level, self.plan.depth):
            self.m.set_word("%path", PATH_HEAD + dead, 0)
        name = "llvm.memset.p0.i64"
        self.module.declare(name, f"declare void @{name}(ptr, i8, i64, i1)")
        scalars = self.m.word("%path", PATH_HEAD + self.plan.depth)
        self.f.emit(f"call void @{name}(ptr {scalars}, i8 0, i64 {_SCALARS}, i1 false)")

    def _kept(self, live: frozenset[str]) -> list[str]:
        """List what of the living a suspension loses: not what is in memory, nor parameters."""
        lost = live - self.parameters
        return sorted(name for name in lost if not self.variables[name].resident)

    def _save(self, live: frozenset[str]) -> None:
        mask = self.m.unpack(self.active())
        for name in self._kept(live):
            variable = self.variables[name]
            if variable.width:
                slot = self._frame_slot(name, variable)
                kept = self._row(slot, variable.dtype)
                value = self.m.select(mask, self.get(name), kept)
                self._set_row(slot, value)
            else:
                word = self.m.word("%path", self._scalar_word(name))
                value = self.m.to_memory(self.get(name))
                self.f.emit(f"store {memory_type(variable.dtype)} {value}, ptr {word}")

    def _restore(self, live: frozenset[str]) -> None:
        self.set_mask(self._low_word(PATH["lanes"]))
        for name in self._kept(live):
            variable = self.variables[name]
            if variable.width:
                self._put(variable, self._row(self._frame_slot(name, variable), variable.dtype))
            else:
                word = self.m.word("%path", self._scalar_word(name))
                value = self.f.value(f"load {memory_type(variable.dtype)}, ptr {word}")
                self._put(variable, self.m.from_memory(value, variable.dtype, 0))

    def _scalar_word(self, name: str) -> int:
        index = self.scalar_slots.setdefault(name, len(self.scalar_slots))
        return PATH_HEAD + self.plan.depth + index

    def _frame_slot(self, name: str, variable: Variable) -> str:
        if name not in self.frame_slots:
            self.frame_slots[name] = self.reserve(WARP * variable.dtype.bytes)
        return self.f.value(f"getelementptr i8, ptr %frame, i64 {self.frame_slots[name]}")

    def _row(self, pointer: str, dtype: DType) -> Lanes:
        return self.m.restore(pointer, dtype)

    def _set_row(self, pointer: str, value: Lanes) -> None:
        spread = self.m.lanes(value.dtype, self.m.spread(value), WARP)
        vector = f"<{WARP} x {memory_type(value.dtype)}>"
        self.f.emit(f"store {vector} {self.m.to_memory(spread)}, ptr {pointer}, align 64")

    def _return(self) -> None:
        self.f.emit("call void @finish(ptr %ctx, ptr %path)")
        self.f.emit(f"ret i32 {context.FINISHED}")

    # ---- loops

    def cell(self, slot: str) -> Lanes:
        """Read a set of lanes in memory."""
        return self.m.lanes(UINT32, self.f.value(f"load i32, ptr {slot}"), 0)

    def set_cell(self, slot: str, bits: Lanes) -> None:
        """Write a set of lanes to memory."""
        self.f.emit(f"store i32 {bits.value}, ptr {slot}")

    def _for(self, stmt: For) -> None:
        stop, step = loop_bounds(stmt)
        width = self.width_of(stmt.var)
        self.define(stmt.var.name, self.expr(stmt.start), width)
        for name, bound in ((stop, stmt.stop), (step, stmt.step)):
            value = self.expr(bound)
            self.define(name, value, value.width)

        def condition() -> Lanes:
            counter, limit = self.get(stmt.var.name), self.get(stop)
            known = as_constant(stmt.step)
            if known is not None:
                return counter < limit if known > 0 else counter > limit
            by = self.get(step)
            return self.m.select(by > 0, counter < limit, counter > limit)

        def advance() -> None:
            counter, by = self.get(stmt.var.name), self.get(step)
            following = counter + by
            if as_constant(stmt.step) not in (1, -1):
                # A step beyond the range of the type ends the loop.
                ends = self.m.select(by > 0, following <= counter, following >= counter)
                following = self.m.select(ends, self.get(stop), following)
            self.assign(stmt.var.name, following)

        self._loop(stmt, condition, advance)

    def _while(self, stmt: While) -> None:
        self._loop(stmt, lambda: self.expr(stmt.condition), lambda: None)

    def _loop(
        self, stmt: For | While, condition: Callable[[], Lanes], advance: Callable[[], None]
    ) -> None:
        if self.written is not None:
            self.written.enter(stmt)
        if self.plan.runs_masked(stmt):
            self._masked_loop(stmt, condition, advance)
        elif self.plan.suspends(stmt) and self._parts(stmt):
            self._parting_loop(stmt, condition, advance)
        else:
            self._plain_loop(stmt, condition, advance)

    def _parts(self, stmt: For | While) -> bool:
        return self.plan.diverges(stmt) or self.plan.has_parted_exit(stmt)

    def _plain_loop(
        self, stmt: For | While, condition: Callable[[], Lanes], advance: Callable[[], None]
    ) -> None:
        head, body, latch, after = (self.f.new_label(s) for s in ("head", "body", "latch", "after"))
        self.f.branch(head)
        self.f.label(head)
        self.refresh()
        self.f.branch_if(str(self.m.first(condition()).value), body, after)
        self.f.label(body)
        self.loops.append(Loop(exit=after, latch=latch))
        self.block(stmt.body)
        self.loops.pop()
        self.f.branch(latch)
        self.f.label(latch)
        self.refresh()
        advance()
        if isinstance(stmt, For):
            # With its exit a join, LLVM does not look behind the loop for what precedes it.
            self._count_step(stmt)
            self.f.branch_if(str(self.m.first(condition()).value), body, after)
        else:
            self._back_edge(stmt, head)
        self.f.label(after)
        self.refresh()

    def _masked_loop(
        self, stmt: For | While, condition: Callable[[], Lanes], advance: Callable[[], None]
    ) -> None:
        alive, turn = self.f.slot("i32", 4), self.f.slot("i32", 4)
        outer = self.f.slot("i32", 4)
        start = self.active()
        self.set_cell(outer, start)
        self.set_cell(alive, start)
        head, body, latch, after = (self.f.new_label(s) for s in ("head", "body", "latch", "after"))
        self.f.branch(head)
        self.f.label(head)
        self.set_mask(self.cell(alive))
        going = self.cell(alive) & self.bits_of(condition())
        self.set_cell(alive, going)
        self.set_cell(turn, going)
        self.f.branch_if(str((going != 0).value), body, after)
        self.f.label(body)
        self.set_mask(going)
        self.loops.append(Loop(alive=alive, turn=turn, latch=latch, empty=latch))
        self.block(stmt.body)
        self.loops.pop()
        self.f.branch(latch)
        self.f.label(latch)
        self.set_mask(self.cell(alive))
        advance()
        self._back_edge(stmt, head)
        self.f.label(after)
        self.set_mask(self.cell(outer))

    def _parting_loop(
        self, stmt: For | While, condition: Callable[[], Lanes], advance: Callable[[], None]
    ) -> None:
        after = frozenset(n for n in self.plan.live[id(stmt)])
        inside = (
            after | self._needs((stmt,)) | {*(loop_bounds(stmt) if isinstance(stmt, For) else ())}
        )
        exit_level = self._enter(self.active())
        latch_level = self.level
        self.level += 1
        head, body, latch, leave, both, one, done = (
            self.f.new_label(s) for s in ("head", "body", "latch", "leave", "both", "one", "done")
        )
        self.f.branch(head)
        self.f.label(head)
        self.refresh()
        lanes = self.active()
        self.m.set_word("%path", PATH_HEAD + latch_level, lanes)
        chosen = lanes & self.bits_of(condition())
        rest = lanes & ~chosen
        self.f.branch_if(str(((chosen != 0) & (rest != 0)).value), both, one)
        self.f.label(one)
        self.f.branch_if(str((chosen != 0).value), body, leave)
        self.f.label(both)
        self._fork(rest, frozenset(n for n in inside if n in self.variables), leave)
        self.set_mask(chosen)
        # Those that leave are not expected at the latch of this turn.
        self.m.set_word("%path", PATH_HEAD + latch_level, chosen)
        self.f.branch(body)
        self.f.label(body)
        self.loops.append(Loop(exit=leave, latch=latch, exit_level=exit_level))
        self.block(stmt.body)
        self.loops.pop()
        self.f.branch(latch)
        self.f.label(latch)
        self.refresh()
        self._meet(latch_level, inside)
        advance()
        self._back_edge(stmt, head)
        self.f.label(leave)
        self.refresh()
        self._meet(exit_level, after)
        self.f.branch(done)
        self.f.label(done)
        self.level -= 2

    def _jump(self, stmt: Break | Continue) -> None:
        loop = self.loops[-1]
        if loop.turn:
            gone = ~self.active()
            if isinstance(stmt, Break):
                self.set_cell(loop.alive, self.cell(loop.alive) & gone)
            self.set_cell(loop.turn, self.cell(loop.turn) & gone)
            self.set_mask(self.m.constant(0, UINT32))
            return
        if loop.exit_level is not None:
            # Nobody is to wait for these lanes at the meetings that the jump passes over.
            first = loop.exit_level + (1 if isinstance(stmt, Break) else 2)
            self._leave(first)
        self.f.branch(loop.exit if isinstance(stmt, Break) else loop.latch)
        self.f.label(self.f.new_label("dead"))

    def _leave(self, first: int) -> None:
        words = f"i64 {PATH_HEAD + first}, i64 {PATH_HEAD + self.level}"
        self.f.emit(f"call void @leave(ptr %ctx, ptr %path, {words})")

    def _count_step(self, stmt: For | While) -> None:
        """Count a turn of a loop; the path ends here if the launch must end."""
        left = self.m.field("steps") - 1
        self.m.set_field("steps", left)
        with self.f.when(str((left == 0).value)):
            number = self.module.site(stmt.location, "loop")
            stop = self.f.value(f"call i1 @tick(ptr %ctx, i32 {number})")
            on = self.f.new_label("on")
            self.f.branch_if(stop, _STOPPED, on)
            self.f.label(on)

    def _back_edge(self, stmt: For | While, head: str) -> None:
        """Jump back, counting the step; a loop that polls lets others run first."""
        self._count_step(stmt)
        if id(stmt) in self.plan.spinning:
            self.at(stmt, "polling loop")
            live = self.plan.live[id(stmt)] | self._needs((stmt,))
            live = frozenset(name for name in live if name in self.variables)
            self._suspend(live, head, "yield", state=context.POLLING)
            self.f.label(self.f.new_label("dead"))
        self.f.branch(head)

    # ---- instructions

    def _instruct(self, stmt: Instruct) -> None:
        form = stmt.form
        self.at(stmt, form.text)
        declared = declared_operands(form, len(stmt.operands))
        assert declared is not None
        pairs = list(zip(declared, stmt.operands, strict=True))
        inputs = [(each, place) for each, place in pairs if each.role != "out"]
        places = [place for each, place in pairs if each.role != "in"]
        live = self.plan.live[id(stmt)] | used_names(place for _, place in inputs)
        live = frozenset(name for name in live if name in self.variables)
        if form.declaration.lanes in ("warp", "warpgroup"):
            self._gather(stmt, inputs, live)
        wait = form.declaration.wait
        operands: Sequence[Row | Lanes]
        if wait is not None:
            operands = self._wait(stmt, wait, inputs, live)
        elif outlined(form) and not is_late(form):
            operands = [self._argument(each, expr) for each, expr in inputs]
        else:
            operands = [self.operand(each, expr) for each, expr in inputs]
        self.module.observer.comes_to(stmt, unread=self._is_unread(stmt, places))
        self.module.observer.issues(self.m, form, operands)
        group = awaited_group(form)
        if group is not None:
            self.flight.wait(self.m, group)
        if not is_late(form):
            self._issue(stmt, operands, places)
            return
        self._hold(places)
        values = [each for each in operands if isinstance(each, Lanes)]
        now, later, after = (self.f.new_label(s) for s in ("now", "later", "after"))
        eager = self.m.field("schedule") == context.SCHEDULES["eager"]
        self.f.branch_if(str(eager.value), now, later)
        self.f.label(now)
        self._issue(stmt, values, places)
        self.f.branch(after)
        self.f.label(later)
        rows = [self._place_row(each) for each in places]
        self.flight.record(self.m, form, values, rows, self._rows(places))
        self.f.branch(after)
        self.f.label(after)

    # ---- registers that are written late

    def _hold(self, places: Sequence[Expr]) -> None:
        """Tell an observer which registers an instruction writes late: runs of the frame."""
        runs: list[tuple[Lanes, int]] = []
        for place in places if self.written is not None else ():
            first, size = self._span(*_register(place))
            before, known = (None if not runs else _known(runs[-1][0])), _known(first)
            if before is not None and known == before + runs[-1][1]:
                runs[-1] = (runs[-1][0], runs[-1][1] + size)
            else:
                runs.append((first, size))
        for first, size in runs:
            self.module.observer.holds(self.m, first, size)

    def _look(self, place: Expr, location: Location | None) -> None:
        """Tell an observer that registers are read, if they may not be written yet."""
        self._touch(place, location)
        if self.written is not None and _register(place)[0] in self.written.unset:
            with self.blaming(location, print_expr(place)):
                self.module.observer.reads_unset(self.m, self.active())

    def _touch(self, place: Expr, location: Location | None) -> None:
        """Tell an observer that registers are touched, if an instruction may write them late."""
        name, index = _register(place)
        if self.written is not None and name in self.plan.late:
            with self.blaming(location, print_expr(place)):
                self.module.observer.touches(self.m, *self._span(name, index))

    def _span(self, name: str, index: Expr | None) -> tuple[Lanes, int]:
        """Give the bytes of the frame that a resident variable has, or elements of an array.

        Of lanes that may have indices of their own, these are all elements.
        """
        if index is None:
            variable = self.variables[name]
            assert variable.offset is not None
            return self.m.constant(variable.offset, UINT64), WARP * variable.dtype.bytes
        array = self.arrays[name]
        size, number = WARP * array.dtype.bytes, self.expr(index)
        if number.width:
            return self.m.constant(array.offset, UINT64), size * array.length
        known = _known(number)
        if known is not None:
            return self.m.constant(array.offset + known * size, UINT64), size
        return self.m.cast(number, UINT64) * size + array.offset, size

    def _is_unread(self, stmt: Instruct, places: list[Expr]) -> bool:
        """Tell whether an instruction has results, and nothing looks at any."""
        live = self.plan.live[id(stmt)]
        unread = all(isinstance(each, Var) and each.name not in live for each in places)
        return bool(places) and unread

    def _issue(self, stmt: Instruct, operands: Sequence[Row | Lanes], places: list[Expr]) -> None:
        self.at(stmt, stmt.form.text)
        results = self.calls.issue(self.m, stmt.form, operands, self._rows(places))
        if results is not None:
            for place, result in zip(places, results, strict=True):
                self._set_place(place, result, stmt)

    def _argument(self, declared: Operand, expr: Expr) -> Row | Lanes:
        """Give an operand of a function: where it is, if that is a row of a local array."""
        if isinstance(expr, Load) and declared.kind == "register":
            assert isinstance(expr.tensor, Var)
            array = self.arrays[expr.tensor.name]
            alike = array.dtype.bits == declared.dtype.bits and not array.dtype.is_bool
            if alike and self.plan.uniformity.is_uniform(expr.indices[0]):
                self._look(expr, expr.location)
                return Row(self._element(array, self.expr(expr.indices[0])), declared.dtype)
        return self.operand(declared, expr)

    def _rows(self, places: list[Expr]) -> Row | None:
        """Give the first of places that are rows of a local array, one after another."""
        loads = [each for each in places if isinstance(each, Load)]
        if not loads or len(loads) < len(places) or any(x.tensor != loads[0].tensor for x in loads):
            return None
        tensor, numbers = loads[0].tensor, [as_constant(each.indices[0]) for each in loads]
        assert isinstance(tensor, Var)
        array, first = self.arrays[tensor.name], numbers[0]
        if first is None or numbers != list(range(int(first), int(first) + len(loads))):
            return None
        return Row(self._element(array, self.m.constant(first, UINT32)), array.dtype)

    def _place_row(self, place: Expr) -> str:
        """Address the row of the warp's frame that a late result goes to."""
        if isinstance(place, Var):
            return self.variables[place.name].slot
        assert isinstance(place, Load) and isinstance(place.tensor, Var)
        return self._element(self.arrays[place.tensor.name], self.expr(place.indices[0]))

    def operand(self, declared: Operand, expr: Expr) -> Lanes:
        """Evaluate an operand in the type that the instruction's meaning takes."""
        value = self.expr(expr)
        if declared.kind == "address":
            return self.m.cast(value, declared.dtype)
        if declared.kind == "predicate":
            return self.m.cast(value, BOOL)
        if value.dtype.bits == declared.dtype.bits and not value.dtype.is_bool:
            return self.m.bitcast(value, declared.dtype)
        return self.m.cast(value, declared.dtype)

    def _set_place(self, place: Expr, result: Lanes, stmt: Stmt) -> None:
        dtype = value_dtype(place)
        if result.dtype.is_bool or dtype.is_bool or result.dtype.bits != dtype.bits:
            value = self.m.cast(result, dtype)
        else:
            value = self.m.bitcast(result, dtype)
        if isinstance(place, Var):
            self.assign(place.name, value)
        else:
            assert isinstance(place, Load)
            self._store(place.tensor, place.indices[0], value, stmt)

    def _gather(
        self, stmt: Instruct, inputs: list[tuple[Operand, Expr]], live: frozenset[str]
    ) -> None:
        """See that the lanes which a collective names are here; wait for those that are not."""
        named = [expr for each, expr in inputs if each.name == "membermask"]
        ready, missing, retry = (self.f.new_label(s) for s in ("ready", "missing", "retry"))
        self.f.branch(retry)
        self.f.label(retry)
        self.refresh()
        all_lanes = self._warp_word(context.LANES_START)
        need = all_lanes
        groups: Lanes | None = None
        if named:
            members = self.m.cast(self.expr(named[0]), UINT32)
            if stmt.form.declaration in _BY_GROUPS and members.width:
                groups = members
                need = self._any_of(members) & all_lanes
                inside = ((members >> self.m.lane_id()) & 1) != 0
            else:
                need = self.m.first(members) & all_lanes
                inside = (self.active() & ~need) == 0
            self.m.require(
                inside,
                "divergent-collective",
                "a lane that the member mask does not name executes this",
            )
        exited = self._warp_word(context.EXITED_START)
        excused = bool(named) or stmt.form.declaration.excuses_exited
        lacking = need & ~self.active() & (~exited if excused else need)
        self.f.branch_if(str((lacking == 0).value), ready, missing)
        self.f.label(missing)
        if not excused:
            self.m.require(
                (need & exited) == 0,
                "divergent-collective",
                "this needs all lanes of the warp, and some have exited",
            )
        self.m.set_word("%path", PATH["wait"], context.WAITS.index("warp"))
        self.m.set_word("%path", PATH["detail"], 0)
        again = self.f.new_label("again") if self.module.observer.watches_lanes else retry
        self._suspend(live, again, "arrive", state=context.GATHERING, need=need)
        if again != retry:
            mask, known = self.m.mask, self._known
            self._go_without(again)
            self.f.branch(retry)
            self.m.mask, self._known = mask, known
        self.f.label(ready)
        if groups is not None:
            self._see_that_groups_agree(groups)

    def _any_of(self, sets: Lanes) -> Lanes:
        """Unite what the active lanes have."""
        assert self.m.mask is not None
        united = self.m.select(self.m.mask, sets, self.m.constant(0, UINT32))
        for distance in (16, 8, 4, 2, 1):
            united = united | self.m.shuffle(united, self.m.lane_id() ^ distance)
        return self.m.pick(united, self.m.constant(0, UINT32))

    def _see_that_groups_agree(self, members: Lanes) -> None:
        """See that lanes that come in groups all name those of their own group, and no others."""
        active, lane = self.active(), self.m.lane_id()
        differs = self.m.constant(0, UINT32)
        for distance in range(1, WARP):
            other = lane ^ distance
            meets = ((members & active) >> other) & 1
            apart = self.m.shuffle(members, other) != members
            differs = differs | self.m.select(apart, meets, self.m.constant(0, UINT32))
        self.m.require(
            differs == 0,
            "divergent-collective",
            "lanes that a member mask names have another one",
        )

    def _go_without(self, label: str) -> None:
        """Tell an observer of lanes that a collective has waited for in vain, if there are any."""
        self.f.label(label)
        self.refresh()
        passed = self._low_word(PATH["need"]) & self._low_word(PATH["detail"])
        passed = passed & self._warp_word(context.EXITED_START)
        with self.f.when(str((passed != 0).value)):
            self.module.observer.goes_without(self.m, passed)

    def _wait(
        self,
        stmt: Instruct,
        wait: Wait,
        inputs: list[tuple[Operand, Expr]],
        live: frozenset[str],
    ) -> list[Lanes]:
        """Emit a wait: arrive once, poll, and suspend as long as the poll fails."""
        form = stmt.form
        kept: list[str] = []
        if wait.arrive is not None:
            operands = [self.operand(each, expr) for each, expr in inputs]
            self.module.observer.comes_to(stmt)
            self.module.observer.arrives(self.m, form, operands)
            for index, value in enumerate(wait.arrive(self.m, form, *operands)):
                name = f"wait.{self.m.site}.{index}"
                self.define(name, value, value.width)
                kept.append(name)
        poll, blocked, ready = (self.f.new_label(s) for s in ("poll", "blocked", "ready"))
        self.f.branch(poll)
        self.f.label(poll)
        self.refresh()
        operands = [self.operand(each, expr) for each, expr in inputs]
        state = [self.get(name) for name in kept]
        holds = wait.poll(self.m, form, *operands, *state)
        passes = holds
        if wait.gives_up:
            passes = holds | (self.m.field("give_up") != 0)
        self.f.branch_if(str(passes.value), ready, blocked)
        self.f.label(blocked)
        kind, key = wait.awaits(self.m, form, *operands, *state)
        detail = operands[-1] if operands else self.m.constant(0, UINT32)
        if wait.detail is not None:
            detail = wait.detail(self.m, form, *operands, *state)
        self.module.observer.blocks(self.m, kind, key, detail)
        self.m.set_word("%path", PATH["wait"], context.WAITS.index(kind))
        self.m.set_word("%path", PATH["key"], self.m.first(key))
        self.m.set_word("%path", PATH["detail"], self.m.to_word(self.m.first(detail)))
        self._suspend(live | frozenset(kept), poll, "block", state=context.BLOCKED)
        self.f.label(ready)
        self.module.observer.passes(self.m, holds)
        if wait.gives_up:
            self.m.set_field("give_up", 0)
        with self.f.when(str(holds.value)):
            self.m.bump("progress")
        return operands + state

    # ---- expressions

    def expr(self, expr: Expr) -> Lanes:
        """Emit an expression; its memory is read by the active lanes."""
        match expr:
            case Constant():
                return self.m.constant(expr.value, expr.dtype)
            case Var():
                self._look(expr, self.here)
                return self.get(expr.name)
            case AddressOf(tensor=Var(type=TensorMapType()) as var):
                return self.get(var.name)
            case SpecialRegister():
                return self.m.cast(self.m.special(expr.name), expr.dtype)
            case Unary():
                return self.m.unary(expr.op, self.expr(expr.operand))
            case Binary():
                return self._binary(expr)
            case Select():
                return self._select(expr)
            case Cast():
                return self.m.cast(self.expr(expr.operand), expr.dtype)
            case Bitcast():
                return self._bitcast(expr)
            case Shuffle():
                sources = [(self.expr(each), each.dtype) for each in expr.sources]
                return vectors.shuffle(self.m, sources, expr.places, expr.dtype)
            case Intrinsic():
                found = self.m.intrinsic(expr.name, *(self.expr(each) for each in expr.operands))
                return self.m.cast(found, expr.dtype)
            case Load():
                return self._load(expr)
            case SharedBase():
                return self.m.constant(context.SHARED_START, UINT32)
            case Offset():
                return self._offset(expr)
            case Read():
                return self._read(expr)
            case _:
                raise CompilerBug(f"the engine meets {type(expr).__name__}", code="compiler-bug")

    def _bitcast(self, expr: Bitcast) -> Lanes:
        value = self.expr(expr.operand)
        if isinstance(expr.type, ScalarType):
            return self.m.bitcast(value, plain(expr.dtype))
        return self.m.cast(value, value_dtype(expr))

    def _binary(self, expr: Binary) -> Lanes:
        left = self.expr(expr.left)
        if expr.op in ("logical_and", "logical_or") and touches_memory(expr.right):
            wanted = left if expr.op == "logical_and" else ~left
            right = self._guarded(wanted, expr.right)
            return left & right if expr.op == "logical_and" else left | right
        return self.m.binary(expr.op, left, self.expr(expr.right))

    def _select(self, expr: Select) -> Lanes:
        condition = self.expr(expr.condition)
        if not (touches_memory(expr.true) or touches_memory(expr.false)):
            return self.m.select(condition, self.expr(expr.true), self.expr(expr.false))
        true = self._guarded(condition, expr.true)
        return self.m.select(condition, true, self._guarded(~condition, expr.false))

    def _guarded(self, condition: Lanes, expr: Expr) -> Lanes:
        """Evaluate an expression only in the lanes in which a condition holds; others get 0."""
        outer = self.active()
        inner = outer & self.bits_of(condition)
        dtype = value_dtype(expr)
        uniform = self.plan.uniformity.is_uniform(expr)
        width = 0 if uniform else WARP
        kind = llvm_type(dtype, width)
        slot = self.f.slot(kind)
        self.f.emit(f"store {kind} zeroinitializer, ptr {slot}")
        with self.f.when(str((inner != 0).value)):
            self.set_mask(inner)
            value = self.expr(expr)
            text = self.m.spread(value) if width else self.m.first(value).value
            self.f.emit(f"store {kind} {text}, ptr {slot}")
        self.set_mask(outer)
        return self.m.lanes(dtype, self.f.value(f"load {kind}, ptr {slot}"), width)

    def _offset(self, expr: Offset) -> Lanes:
        pointer = self.expr(expr.pointer)
        return pointer + self.m.cast(self.expr(expr.bytes), pointer.dtype)

    def _read(self, expr: Read) -> Lanes:
        assert isinstance(expr.pointer.type, PointerType)
        self._seam()
        address = self.expr(expr.pointer)
        location = expr.location or expr.pointer.location
        text = f"read {print_expr(expr.pointer)}"
        space = expr.pointer.type.space
        with self.blaming(location, text):
            self.module.observer.comes_to(expr)
            self.module.observer.accesses(self.m, space, address, expr.dtype.bytes, write=False)
            return vectors.load(self.m, space, address, expr.dtype)

    # ---- local arrays

    def _element(self, array: Array, index: Lanes) -> str:
        """Check a uniform index of a local array, and address its row of lanes."""
        wide = self.m.cast(index, UINT64)
        if _known(index) is None:
            bad = wide >= array.length
            self.m.require(~bad, "out-of-bounds", "an index lies outside a local array")
            wide = self.m.select(bad, self.m.constant(0, UINT64), wide)
        at = wide * (WARP * array.dtype.bytes) + array.offset
        return self.f.value(f"getelementptr i8, ptr %frame, i64 {at.value}")

    def _lane_pointers(self, array: Array, index: Lanes) -> tuple[str, str]:
        """Address an element per lane, in this function and by its base and offsets."""
        bad = self.m.cast(index, UINT64) >= array.length
        self.m.require(~bad, "out-of-bounds", "an index lies outside a local array")
        safe = self.m.select(bad, self.m.constant(0, index.dtype), index)
        row = self.m.cast(safe, UINT64) * WARP + self.m.cast(self.m.lane_id(), UINT64)
        offsets = row * array.dtype.bytes + array.offset
        return "%frame", str(offsets.value)

    def _load(self, expr: Load) -> Lanes:
        assert isinstance(expr.tensor, Var)
        self._look(expr, expr.location)
        array = self.arrays[expr.tensor.name]
        index = self.expr(expr.indices[0])
        with self.blaming(expr.location, f"element of {expr.tensor.name}"):
            if not index.width:
                return self._row(self._element(array, index), array.dtype)
            base, offsets = self._lane_pointers(array, index)
            return self.calls.gather_elements(self.m, base, offsets, array.dtype)

    def _store(self, tensor: Expr, index: Expr, value: Lanes, stmt: Stmt) -> None:
        assert isinstance(tensor, Var)
        array = self.arrays[tensor.name]
        at = self.expr(index)
        self.at(stmt, f"element of {tensor.name}")
        if at.width:
            base, offsets = self._lane_pointers(array, at)
            self.calls.scatter_elements(self.m, base, offsets, value)
            return
        pointer = self._element(array, at)
        kept = self._row(pointer, array.dtype)
        self._set_row(pointer, self.m.select(self.mask_of(), value, kept))


def value_dtype(expr: Expr) -> DType:
    """Give the element type in which the engine keeps a value; pointers are numbers.

    What it has of a tensor map is its address.
    """
    match expr.type:
        case PointerType(space=space):
            return UINT32 if space.address_bits == 32 else UINT64
        case ScalarType(dtype=dtype):
            return plain(dtype)
        case TensorMapType():
            return UINT64
        case _:
            raise CompilerBug(f"the engine meets a value of {expr.type}", code="compiler-bug")


def _register(place: Expr) -> tuple[str, Expr | None]:
    """Name a variable, or a local array and which of its elements."""
    if isinstance(place, Var):
        return place.name, None
    assert isinstance(place, Load) and isinstance(place.tensor, Var)
    return place.tensor.name, place.indices[0]


def touches_memory(expr: Expr) -> bool:
    """Tell whether evaluating an expression may fault."""
    return any(isinstance(node, Read | Load) for node in walk(expr))


def _known(index: Lanes) -> int | None:
    text = str(index.value)
    return None if text.startswith("%") else int(text)
