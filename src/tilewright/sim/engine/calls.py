"""Instructions as functions of their own, one per form and kinds of operands.

May import `base`, `isa` and the rest of `sim.engine`. Code of more than a few lines is emitted
once and called: register allocation, not optimisation, is what long straight code costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import UINT32, DType
from tilewright.isa.declaration import Form
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.spelling import memory_type, scalar_type

_ROW = WARP * 8  # bytes kept for one result

Kind = tuple[DType, int]


class Calls:
    """The instruction functions of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._results: dict[str, list[Kind]] = {}
        self._names: dict[object, str] = {}

    def issue(self, m: NativeMachine, form: Form, operands: Sequence[Lanes]) -> list[Lanes]:
        """Issue an instruction for the active lanes, giving its results."""
        declaration = form.declaration
        assert declaration.compute is not None
        if declaration.lanes == "any" and not declaration.volatile:
            return list(declaration.compute(m, form, *operands) or ())
        name = self.function(form, operands)
        arguments = [f"ptr %ctx, i32 {m.active().value}, i32 {m.site}"]
        arguments += [_pass(m, each) for each in operands if literal(each) is None]
        results = self._results[name]
        out = m.function.scratch(f"[{max(len(results), 1) * _ROW} x i8]")
        m.function.emit(f"call void @{name}({', '.join([*arguments, f'ptr {out}'])})")
        return [_take(m, out, index, kind) for index, kind in enumerate(results)]

    def function(self, form: Form, operands: Sequence[Lanes]) -> str:
        """Name the function of an instruction with such operands, emitting it at first."""
        key = (form, tuple((o.dtype, o.width, literal(o)) for o in operands))
        if key not in self._names:
            self._names[key] = self._emit(form, operands)
        return self._names[key]

    def result(self, m: NativeMachine, out: str, index: int, name: str) -> Lanes:
        """Take a result of a function from where it left it."""
        return _take(m, out, index, self._results[name][index])

    def _emit(self, form: Form, operands: Sequence[Lanes]) -> str:
        stem = "".join(c if c.isalnum() else "_" for c in form.text)
        f = self.module.machine(f"issue_{stem}", "%site")
        f.mask = f.unpack(f.lanes(UINT32, "%mask", 0))
        parameters = ["ptr %ctx, i32 %mask, i32 %site"]
        inside: list[Lanes] = []
        for index, each in enumerate(operands):
            text = literal(each)
            if text is not None:
                inside.append(f.lanes(each.dtype, text, 0))
            elif each.width:
                parameters.append(f"ptr %p{index}")
                inside.append(f.restore(f"%p{index}", each.dtype))
                f.homes[str(inside[-1].value)] = f"%p{index}"
            else:
                parameters.append(f"{scalar_type(each.dtype)} %p{index}")
                inside.append(f.lanes(each.dtype, f"%p{index}", 0))
        assert form.declaration.compute is not None
        results = list(form.declaration.compute(f, form, *inside) or ())
        if form.declaration.result == "uniform":
            results = [f.first(each) for each in results]
        for index, each in enumerate(results):
            at = f.op(f"getelementptr i8, ptr %out, i64 {index * _ROW}")
            f.function.emit(f"store {_held(each)} {f.to_memory(each)}, ptr {at}, align 8")
        f.function.emit("ret void")
        listed = ", ".join([*parameters, "ptr %out"])
        name = f.function.finish("void", listed, "noinline", by_content=True)
        self._results[name] = [(each.dtype, each.width) for each in results]
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


def _pass(m: NativeMachine, value: Lanes) -> str:
    if value.width:
        return f"ptr {m.spill(value)}"
    return f"{scalar_type(value.dtype)} {value.value}"


def _held(value: Lanes) -> str:
    element = memory_type(value.dtype)
    return f"<{value.width} x {element}>" if value.width else element


def _take(m: NativeMachine, out: str, index: int, kind: Kind) -> Lanes:
    dtype, width = kind
    at = m.op(f"getelementptr i8, ptr {out}, i64 {index * _ROW}")
    element = memory_type(dtype)
    vector = f"<{width} x {element}>" if width else element
    return m.from_memory(m.op(f"load {vector}, ptr {at}, align 8"), dtype, width)
