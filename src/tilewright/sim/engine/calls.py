"""Instructions as functions of their own, one per form and kinds of operands.

May import `base`, `isa` and the rest of `sim.engine`. Code of more than a few lines is emitted
once and called: register allocation, not optimisation, is what long straight code costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.dtypes import UINT32, DType
from tilewright.isa.declaration import Form
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.spelling import memory_type, scalar_type

_ALIGN = 64  # bytes: of vectors in memory

Kind = tuple[DType, int]


@dataclass(frozen=True)
class Row:
    """A vector of the warp in memory, and what a function is to take it for."""

    pointer: str
    dtype: DType


Operand = Lanes | Row


class Calls:
    """The instruction functions of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._results: dict[str, list[Kind]] = {}
        self._names: dict[object, str] = {}

    def issue(
        self, m: NativeMachine, form: Form, operands: Sequence[Operand], into: Row | None = None
    ) -> list[Lanes] | None:
        """Issue an instruction for the active lanes, giving its results.

        `into` is the first of as many rows as it has results, one after another: results that are
        rows of such elements are put there, and none are given.
        """
        declaration = form.declaration
        assert declaration.compute is not None
        if not outlined(form):
            return list(declaration.compute(m, form, *(_loaded(m, o) for o in operands)) or ())
        name = self.function(form, operands)
        results = self._results[name]
        words = [passed(m, each) for each in operands if not is_literal(each)]
        if into is not None and self.fills_rows(name, into.dtype):
            self._call(m, name, words, into.pointer)
            return None
        out = m.function.scratch(f"[{max(_size(results), 1)} x i8]")
        self._call(m, name, words, out)
        return [_take(m, out, at, kind) for at, kind in zip(_places(results), results, strict=True)]

    def _call(self, m: NativeMachine, name: str, passed: Sequence[str], out: str) -> None:
        words = [f"ptr %ctx, i32 {m.active().value}, i32 {m.site}", *passed, f"ptr {out}"]
        m.function.emit(f"call void @{name}({', '.join(words)})")

    def function(self, form: Form, operands: Sequence[Operand]) -> str:
        """Name the function of an instruction with such operands, emitting it at first.

        It takes the context, the active lanes, the site, the operands that are no literals
        (vectors by address), and where results go: whole rows, of which it writes active lanes.
        """
        key = (form, tuple(map(kind_of, operands)))
        if key not in self._names:
            self._names[key] = self._emit(form, operands)
        return self._names[key]

    def fills_rows(self, name: str, dtype: DType) -> bool:
        """Tell whether all results of a function are rows of elements as wide as a type's."""
        wide = not dtype.is_bool and WARP * dtype.bytes >= _ALIGN
        return wide and all(
            width == WARP and kind.bits == dtype.bits and not kind.is_bool
            for kind, width in self._results[name]
        )

    def _emit(self, form: Form, operands: Sequence[Operand]) -> str:
        stem = "".join(c if c.isalnum() else "_" for c in form.text)
        f = self.module.machine(f"issue_{stem}", "%site")
        f.mask = f.unpack(f.lanes(UINT32, "%mask", 0))
        inside, parameters = taken(f, operands)
        assert form.declaration.compute is not None
        results = list(form.declaration.compute(f, form, *inside) or ())
        if form.declaration.result == "uniform":
            results = [f.first(each) for each in results]
        kinds = [(each.dtype, each.width) for each in results]
        for place, each in zip(_places(kinds), results, strict=True):
            at = f.op(f"getelementptr i8, ptr %out, i64 {place}")
            if each.width:
                each = f.select(f.mask, each, f.restore(at, each.dtype))
            f.function.emit(f"store {_held(each)} {f.to_memory(each)}, ptr {at}, align 8")
        f.function.emit("ret void")
        listed = ", ".join(["ptr %ctx, i32 %mask, i32 %site", *parameters, "ptr %out"])
        name = f.function.finish("void", listed, "noinline", by_content=True)
        self._results[name] = kinds
        return name

    def gather_elements(self, m: NativeMachine, base: str, offsets: str, dtype: DType) -> Lanes:
        """Read, in each lane, the element at its own byte offset."""
        element = memory_type(dtype)
        name = f"gather_elements_{element}"
        if name not in self.module.functions:
            f = self.module.machine(name)
            for lane in range(WARP):
                pointer = self._lane_pointer(f, lane)
                value = f.op(f"load {element}, ptr {pointer}")
                at = f.op(f"getelementptr {element}, ptr %out, i64 {lane}")
                f.function.emit(f"store {element} {value}, ptr {at}")
            f.function.emit("ret void")
            f.function.finish("void", "ptr %base, <32 x i64> %offsets, ptr %out", "noinline")
        out = m.function.scratch(f"<{WARP} x {element}>")
        m.function.emit(f"call void @{name}(ptr {base}, <32 x i64> {offsets}, ptr {out})")
        return m.restore(out, dtype)

    def scatter_elements(self, m: NativeMachine, base: str, offsets: str, value: Lanes) -> None:
        """Write, in each active lane, the element at its own byte offset."""
        element = memory_type(value.dtype)
        name = f"scatter_elements_{element}"
        if name not in self.module.functions:
            f = self.module.machine(name)
            for lane in range(WARP):
                pointer = self._lane_pointer(f, lane)
                at = f.op(f"getelementptr {element}, ptr %in, i64 {lane}")
                old, new = (f.op(f"load {element}, ptr {p}") for p in (pointer, at))
                mask = f.unpack(f.lanes(UINT32, "%mask", 0))
                on = f.op(f"extractelement <32 x i1> {mask.value}, i32 {lane}")
                chosen = f.op(f"select i1 {on}, {element} {new}, {element} {old}")
                f.function.emit(f"store {element} {chosen}, ptr {pointer}")
            f.function.emit("ret void")
            f.function.finish(
                "void", "ptr %base, <32 x i64> %offsets, i32 %mask, ptr %in", "noinline"
            )
        slot = m.spill(m.lanes(value.dtype, m.spread(value), WARP))
        mask = m.active().value
        m.function.emit(
            f"call void @{name}(ptr {base}, <32 x i64> {offsets}, i32 {mask}, ptr {slot})"
        )

    @staticmethod
    def _lane_pointer(f: NativeMachine, lane: int) -> str:
        offset = f.op(f"extractelement <32 x i64> %offsets, i32 {lane}")
        return f.op(f"getelementptr i8, ptr %base, i64 {offset}")


def literal(value: Lanes) -> str | None:
    """Give the text of a uniform constant, `None` for what is known at run time."""
    text = str(value.value)
    return None if value.width or text.startswith("%") else text


def outlined(form: Form) -> bool:
    """Tell whether an instruction is a function, not code in place."""
    return form.declaration.lanes != "any" or form.declaration.volatile


def is_literal(operand: Operand) -> bool:
    """Tell whether an operand is in the text of a function, not passed to it."""
    return isinstance(operand, Lanes) and literal(operand) is not None


def kind_of(operand: Operand) -> tuple[DType, int, str | None]:
    """Say what an operand is for a function: its type, its lanes, its text if it is a literal."""
    if isinstance(operand, Row):
        return operand.dtype, WARP, None
    return operand.dtype, operand.width, literal(operand)


def taken(f: NativeMachine, operands: Sequence[Operand]) -> tuple[list[Lanes], list[str]]:
    """Take operands inside a function: those that are no literals are its parameters."""
    inside: list[Lanes] = []
    parameters: list[str] = []
    for index, each in enumerate(operands):
        dtype, width, text = kind_of(each)
        if text is not None:
            inside.append(f.lanes(dtype, text, 0))
        elif width:
            parameters.append(f"ptr %p{index}")
            inside.append(f.restore(f"%p{index}", dtype))
            f.homes[str(inside[-1].value)] = f"%p{index}"
        else:
            parameters.append(f"{scalar_type(dtype)} %p{index}")
            inside.append(f.lanes(dtype, f"%p{index}", 0))
    return inside, parameters


def _loaded(m: NativeMachine, operand: Operand) -> Lanes:
    return m.restore(operand.pointer, operand.dtype) if isinstance(operand, Row) else operand


def passed(m: NativeMachine, operand: Operand) -> str:
    """Spell an operand as an argument: a vector by its address."""
    if isinstance(operand, Row):
        return f"ptr {operand.pointer}"
    if operand.width:
        return f"ptr {m.spill(operand)}"
    return f"{scalar_type(operand.dtype)} {operand.value}"


def _places(results: Sequence[Kind]) -> list[int]:
    """Place results one after another: those of one type are rows of an array."""
    sizes = [max(dtype.bytes * max(width, 1), _ALIGN) for dtype, width in results]
    return [sum(sizes[:index]) for index in range(len(sizes))]


def _size(results: Sequence[Kind]) -> int:
    return sum(max(dtype.bytes * max(width, 1), _ALIGN) for dtype, width in results)


def _held(value: Lanes) -> str:
    element = memory_type(value.dtype)
    return f"<{value.width} x {element}>" if value.width else element


def _take(m: NativeMachine, out: str, place: int, kind: Kind) -> Lanes:
    dtype, width = kind
    at = m.op(f"getelementptr i8, ptr {out}, i64 {place}")
    element = memory_type(dtype)
    vector = f"<{width} x {element}>" if width else element
    return m.from_memory(m.op(f"load {vector}, ptr {at}, align 8"), dtype, width)
