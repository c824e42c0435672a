"""Expressions of a kernel, and elements of its local arrays.

May import `base`, `isa`, `ir` and the modules of `sim.engine` below it.
"""

from __future__ import annotations

from tilewright.base.dtypes import UINT32, UINT64
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
)
from tilewright.ir.print_expressions import print_expr
from tilewright.ir.statements import Stmt
from tilewright.ir.types import PointerType, ScalarType, TensorMapType
from tilewright.ir.visit import walk
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine import context, vectors
from tilewright.sim.engine.frame import Array, Frame, value_dtype
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.plan import Plan
from tilewright.sim.engine.spelling import llvm_type
from tilewright.sim.engine.vectors import plain
from tilewright.sim.engine.written import Written


class Expressions(Frame):
    """Emits expressions."""

    def __init__(self, module: Module, plan: Plan) -> None:
        super().__init__(module, plan)
        self.written = Written(self) if module.observer.watches_registers else None

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
        if constant_index(index) is None:
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

    # ---- registers that are watched

    def _look(self, place: Expr, location: Location | None) -> None:
        """Tell an observer that registers are read, if they may not be written yet."""
        self._touch(place, location)
        if self.written is not None and register(place)[0] in self.written.unset:
            with self.blaming(location, print_expr(place)):
                self.module.observer.reads_unset(self.m, self.active())

    def _touch(self, place: Expr, location: Location | None) -> None:
        """Tell an observer that registers are touched, if an instruction may write them late."""
        name, index = register(place)
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
        known = constant_index(number)
        if known is not None:
            return self.m.constant(array.offset + known * size, UINT64), size
        return self.m.cast(number, UINT64) * size + array.offset, size


def register(place: Expr) -> tuple[str, Expr | None]:
    """Name a variable, or a local array and which of its elements."""
    if isinstance(place, Var):
        return place.name, None
    assert isinstance(place, Load) and isinstance(place.tensor, Var)
    return place.tensor.name, place.indices[0]


def touches_memory(expr: Expr) -> bool:
    """Tell whether evaluating an expression may fault."""
    return any(isinstance(node, Read | Load) for node in walk(expr))


def constant_index(index: Lanes) -> int | None:
    """Give an index that is a constant."""
    text = str(index.value)
    return None if text.startswith("%") else int(text)
