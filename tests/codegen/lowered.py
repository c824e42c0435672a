"""Small kernels in lowered IR, built by hand, and what is written for them."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import INT32, DType, dtype
from tilewright.base.errors import TargetError
from tilewright.base.spaces import Space
from tilewright.base.targets import target
from tilewright.codegen import Source, generate
from tilewright.ir.expressions import Expr, Offset, Read, SpecialRegister, Var, int32
from tilewright.ir.statements import Kernel, Launch, Program, Stmt
from tilewright.ir.types import PointerType, ScalarType, TensorType
from tilewright.runtime import nvrtc

TID = SpecialRegister("tid.x")
CTA = SpecialRegister("ctaid.x")
TARGETS = ("sm_80", "sm_90a", "sm_100a")


def scalar(name: str, kind: str | DType = INT32) -> Var:
    """Make a scalar variable."""
    return Var(name, ScalarType(dtype(kind)))


def pointer(name: str, kind: str | DType, space: Space = Space.GLOBAL) -> Var:
    """Make a pointer variable, aligned to 16 bytes."""
    return Var(name, PointerType(space, dtype(kind), 16))


def array(name: str, count: int, kind: str) -> Var:
    """Make a local array."""
    return Var(name, TensorType((int32(count),), dtype(kind), Space.LOCAL))


def element(base: Var, index: Expr | int, kind: str | DType | None = None) -> Offset:
    """Point to an element, counted in those of its own type."""
    assert isinstance(base.type, PointerType)
    found = base.dtype if kind is None else dtype(kind)
    type = PointerType(base.type.space, found, found.bytes)
    count = int32(index) if isinstance(index, int) else index
    return Offset(base, count * found.bytes, type)


def read(base: Var, index: Expr | int, kind: str | DType | None = None) -> Read:
    """Read an element."""
    place = element(base, index, kind)
    return Read(place, ScalarType(place.dtype))


def launch(
    block: tuple[int, int, int] = (128, 1, 1), cluster: tuple[int, int, int] = (1, 1, 1)
) -> Launch:
    """Make a launch of one CTA, or of one cluster."""
    x, y, z = (int32(each) for each in cluster)
    tx, ty, tz = (int32(each) for each in block)
    return Launch((x, y, z), (tx, ty, tz), (x, y, z), int32(0))


def program(params: tuple[Var, ...], *body: Stmt, shared_bytes: int = 0) -> Program:
    """Make a program of one kernel."""
    kernel = Kernel("kernel", params, launch(), body, shared_bytes=shared_bytes)
    return Program("kernel", (), (), (kernel,))


def source(built: Program, arch: str = "sm_80") -> Source:
    """Write a program for a target."""
    return generate(built, target(arch))


def body(params: tuple[Var, ...], *statements: Stmt) -> str:
    """Write a kernel and give the lines between its braces."""
    text = source(program(params, *statements)).text
    inside = text[text.index('extern "C" __global__') :].split("{\n", 1)[1]
    return inside.rsplit("}", 1)[0].rstrip()


def helpers(built: Program) -> str:
    """Write a program and give the functions made for its instructions."""
    text = source(built).text
    first = min(text.find(mark) for mark in ("template <int", "__device__ __forceinline__ void"))
    start = first if first >= 0 else text.index("__device__ __forceinline__ void")
    return text[start : text.index('extern "C" __global__')].rstrip()


def assemble(built: Program, arch: str) -> nvrtc.Build:
    """Compile a program; skip the test where there is no NVRTC."""
    found = target(arch)
    require_nvrtc()
    return nvrtc.build(generate(built, found).text, found, built.name)


def require_nvrtc() -> None:
    """Skip the test where there is no NVRTC."""
    try:
        nvrtc.version()
    except TargetError as error:
        pytest.skip(str(error))
