"""The special function unit as native code.

May import `base`, `isa`, `sim.approximations` and the rest of `sim.engine`. With `exact` numerics a
function is outlined, and reads the chip's results from a table whose address the context has.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tilewright.base.dtypes import FLOAT32, UINT32, UINT64
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim import approximations
from tilewright.sim.engine.context import TABLES
from tilewright.sim.engine.spelling import llvm_type, scalar_type

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine


def approximate(m: NativeMachine, name: str, value: Lanes) -> Lanes:
    """Apply a function to float32."""
    if m.module.exact is None:
        return approximations.rounded(m, name, value)
    stem = f"approximate_{name}_{value.width}"
    kind = llvm_type(FLOAT32, value.width)
    if stem not in m.module.functions:
        m.module.memories.add(TABLES[name])
        f = m.module.machine(stem)
        given = f.lanes(FLOAT32, f.op(f"load {kind}, ptr %at, align 4"), value.width)
        found = approximations.reduced(f, name, given, partial(_look_up, f, name))
        f.function.emit(f"store {kind} {found.value}, ptr %at, align 4")
        f.function.emit("ret void")
        f.function.finish("void", "ptr %ctx, ptr %at", "noinline")
    at = m.function.scratch(kind)
    m.function.emit(f"store {kind} {value.value}, ptr {at}, align 4")
    m.function.emit(f"call void @{stem}(ptr %ctx, ptr {at})")
    return m.lanes(FLOAT32, m.op(f"load {kind}, ptr {at}, align 4"), value.width)


def _look_up(f: NativeMachine, name: str, index: Lanes) -> Lanes:
    """Read the table of a function; the index of each lane is within it."""
    dtype = UINT64 if approximations.is_wide(name) else UINT32
    kind = scalar_type(dtype)
    base = f.pointer(TABLES[name])

    def read(at: str) -> str:
        wide = f.op(f"zext i32 {at} to i64")
        return f.op(f"load {kind}, ptr {f.op(f'getelementptr {kind}, ptr {base}, i64 {wide}')}")

    if not index.width:
        return f.lanes(dtype, read(str(index.value)), 0)
    found = "zeroinitializer"
    for lane in range(WARP):
        value = read(f.op(f"extractelement <{WARP} x i32> {index.value}, i32 {lane}"))
        found = f.op(f"insertelement <{WARP} x {kind}> {found}, {kind} {value}, i32 {lane}")
    return f.lanes(dtype, found, WARP)
