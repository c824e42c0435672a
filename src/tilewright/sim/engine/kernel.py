"""A lowered kernel as one native function, entered with a path of a warp.

May import `base`, `isa`, `ir` and the rest of `sim.engine`.

`@kernel(ctx, path, frame, warp)` runs a path until it finishes or cannot go on. Variables are
stack slots, which LLVM turns into registers; what lives across a suspension is saved in the
warp's frame (values of lanes) and in the path's record (uniform values), and a switch on entry
leads back to where the path stopped. At every such point the active lanes are the path's.
"""

from __future__ import annotations

from tilewright.base.dtypes import UINT64, DType
from tilewright.base.errors import CompilerBug
from tilewright.ir.expressions import Load, Var, as_constant
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
from tilewright.ir.types import PointerType, TensorType
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine import context, vectors
from tilewright.sim.engine.context import PATH
from tilewright.sim.engine.flow import Flow
from tilewright.sim.engine.frame import SCALARS, STOPPED, Array, value_dtype
from tilewright.sim.engine.vectors import plain


class KernelCode(Flow):
    """Emits a kernel; after `emit`, `path_words` and `frame_bytes` say what its paths need."""

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
        self.f.label(STOPPED)
        self.f.emit(f"ret i32 {context.STOPPED}")
        cases = " ".join(f"i64 {n} , label %{label}" for n, label in enumerate(self.resumes, 1))
        self.f.lines.insert(switch, f"  switch i64 {resume.value}, label %begin [ {cases} ]")
        size = str(8 * len(self.scalar_slots))
        self.f.lines[:] = [line.replace(SCALARS, size) for line in self.f.lines]
        self.f.finish("i32", "ptr %ctx, ptr %path, ptr %frame, i32 %warp", "noinline")

    def _parameters(self, kernel: Kernel) -> None:
        words = self.m.pointer("parameters")
        variables = (*kernel.params, *kernel.symbols)
        # They are read whenever the function is entered.
        self.parameters = frozenset(var.name for var in variables)
        for index, var in enumerate(variables):
            word = self.m.get_word(words, index)
            self.define(var.name, self.m.from_word(word, value_dtype(var)))

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

    # ---- what is shown

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
