"""What a path of a warp has while a kernel runs: variables, lanes that are active, and its record.

May import `base`, `isa`, `ir` and the modules of `sim.engine` below it. Variables are stack slots;
what lives across a suspension is saved in the warp's frame and in the path's record.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.base.dtypes import UINT32, UINT64, DType
from tilewright.base.errors import CompilerBug
from tilewright.base.locations import Location
from tilewright.ir.expressions import Expr, Var
from tilewright.ir.statements import Stmt
from tilewright.ir.types import PointerType, ScalarType, TensorMapType
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine import context
from tilewright.sim.engine.calls import Calls
from tilewright.sim.engine.context import PATH, PATH_HEAD
from tilewright.sim.engine.flight import Flight
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.plan import Plan
from tilewright.sim.engine.spelling import llvm_type, memory_type
from tilewright.sim.engine.vectors import plain

_ALL = (1 << WARP) - 1
SCALARS = "@SCALAR_BYTES@"  # stands for the bytes of a record's uniform values until they are known
# What LLVM does with a basic block takes time that grows with the square of its length.
_BLOCK_LINES = 512
STOPPED = "stopped"  # the label where a path ends that is not to go on


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


class Frame:
    """Emits what a kernel's code needs of the frame and of the path's record."""

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
        self.level: int = 0
        self.resumes: list[str] = []
        self.here: Location | None = None  # the statement that is emitted
        self.mask_slot = self.f.slot("i32", 4)
        # The basic block in which the mask was set or read last, and what it is there.
        self._known = (-1, self.m.constant(0, UINT32))

    @property
    def path_words(self) -> int:
        """Count the words of a path's record."""
        return PATH_HEAD + self.plan.depth + len(self.scalar_slots)

    # ---- variables

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

    def reserve(self, size: int) -> int:
        """Set bytes of the warp's frame aside: give their offset."""
        offset = -(-self.frame_bytes // 64) * 64
        self.frame_bytes = offset + size
        return offset

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

    def cell(self, slot: str) -> Lanes:
        """Read a set of lanes in memory."""
        return self.m.lanes(UINT32, self.f.value(f"load i32, ptr {slot}"), 0)

    def set_cell(self, slot: str, bits: Lanes) -> None:
        """Write a set of lanes to memory."""
        self.f.emit(f"store i32 {bits.value}, ptr {slot}")

    # ---- places

    def at(self, stmt: Stmt, text: str) -> None:
        """Make a statement the place to blame for what comes next."""
        self.m.site = str(self.module.site(stmt.location, text))

    @contextmanager
    def blaming(self, location: Location | None, text: str) -> Generator[None]:
        """Make an expression the place to blame while it is evaluated."""
        outer, self.m.site = self.m.site, str(self.module.site(location, text))
        yield
        self.m.site = outer

    # ---- words of the warp and of the path

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
        number = self._resume(live, target)
        self.m.set_word("%path", PATH["resume"], number)
        if how == "arrive":
            self.f.emit(f"call void @arrive(ptr %ctx, ptr %path, i64 {state})")
        else:
            self.m.set_word("%path", PATH["state"], state)
        self.f.emit(f"ret i32 {context.SUSPENDED}")

    def _seam(self) -> None:
        """End a basic block that has become long: after a fault the path goes no further."""
        if self.f.block_lines < _BLOCK_LINES:
            return
        on = self.f.new_label("on")
        self.f.branch_if(str((self.m.field("error") == 0).value), on, STOPPED)
        self.f.label(on)

    def _resume(self, live: frozenset[str], target: str) -> int:
        """Emit, out of line, the way back to a label: restore what is live, and jump.

        Gives the number by which a path is resumed there.
        """
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
        return len(self.resumes)

    def _forget(self, level: int) -> None:
        """Clear what is dead in the path's record, so that equal paths are seen to be equal."""
        for dead in range(level, self.plan.depth):
            self.m.set_word("%path", PATH_HEAD + dead, 0)
        name = "llvm.memset.p0.i64"
        self.module.declare(name, f"declare void @{name}(ptr, i8, i64, i1)")
        scalars = self.m.word("%path", PATH_HEAD + self.plan.depth)
        self.f.emit(f"call void @{name}(ptr {scalars}, i8 0, i64 {SCALARS}, i1 false)")

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
