"""Programs built by hand, of every node in the high and in the lowered form."""

from __future__ import annotations

from typing import Any

import tilewright.isa.barriers
import tilewright.isa.matrix_moves
import tilewright.isa.memory
import tilewright.isa.tensor_copy
import tilewright.isa.warp_matrix  # noqa: F401  (declares the instructions)
from tilewright.base.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    INT32,
    INT64,
    UINT32,
    dtype,
)
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Bitcast,
    Expr,
    Intrinsic,
    Load,
    Offset,
    Permute,
    Read,
    Reinterpret,
    Relayout,
    Reshape,
    SharedBase,
    SpecialRegister,
    Subview,
    Var,
    binary,
    cast,
    constant,
    int32,
    select,
    unary,
)
from tilewright.ir.statements import (
    Allocate,
    Apply,
    Assert,
    Assign,
    Bind,
    Block,
    Break,
    Continue,
    Declare,
    EncodeTensorMap,
    For,
    If,
    Instruct,
    Kernel,
    Launch,
    LaunchKernel,
    Print,
    Program,
    Return,
    Store,
    While,
    Write,
)
from tilewright.ir.types import (
    TENSOR_MAP_POINTER,
    PointerType,
    ScalarType,
    TensorMapType,
    TensorType,
)
from tilewright.isa.declaration import Form, spell
from tilewright.layout import S, TileLayout, default_layout, laneid

ONE = int32(1)
LANE = SpecialRegister("laneid")


def scalar(name: str, kind: str = "int32") -> Var:
    """Build a scalar variable."""
    return Var(name, ScalarType(dtype(kind)))


def tensor(
    name: str,
    shape: tuple[int | Expr, ...],
    kind: str = "float32",
    space: Space = Space.GLOBAL,
    layout: object = None,
    align: int = 0,
) -> Var:
    """Build a tensor variable."""
    extents = tuple(each if isinstance(each, Expr) else int32(each) for each in shape)
    return Var(name, TensorType(extents, dtype(kind), space, layout, align))


def typed(*arguments: Any) -> TensorType:
    """Build a tensor type; see `tensor`."""
    type = tensor("", *arguments).type
    assert isinstance(type, TensorType)
    return type


def load(source: Expr, *indices: int | Expr) -> Load:
    """Load an element."""
    numbers = tuple(each if isinstance(each, Expr) else int32(each) for each in indices)
    return Load(source, numbers, ScalarType(source.dtype))


def form(text: str) -> Form:
    """Find an instruction by its spelling."""
    return spell(text).forms()[0]


def program(
    *body: Any,
    params: tuple[Var, ...] = (),
    kernel_params: tuple[Var, ...] | None = None,
    symbols: tuple[Var, ...] = (),
    block: tuple[int, int, int] = (32, 1, 1),
    grid: tuple[int | Expr, int | Expr, int | Expr] = (1, 1, 1),
    shared_bytes: int = 0,
    host: Block = (),
) -> Program:
    """Build a program of one kernel; `host` is what precedes its launch."""
    x, y, z = (e if isinstance(e, Expr) else int32(e) for e in grid)
    tx, ty, tz = (int32(e) for e in block)
    launch = Launch((x, y, z), (tx, ty, tz), (ONE, ONE, ONE), int32(0))
    kernel = Kernel(
        "f_kernel",
        params if kernel_params is None else kernel_params,
        launch,
        body,
        symbols,
        shared_bytes=shared_bytes,
    )
    return Program("f", params, (*host, LaunchKernel("f_kernel")), (kernel,))


def in_kernel(*body: Any, **options: Any) -> Kernel:
    """Build a kernel."""
    return program(*body, **options).kernels[0]


def operators() -> Program:
    """Build a program of every operator, nested on both sides."""
    x, y, u, f, p = (
        scalar("x"),
        scalar("y"),
        scalar("u", "uint32"),
        scalar("f", "float32"),
        scalar("p", "bool"),
    )
    cases: list[Expr] = []
    for op in ("add", "sub", "mul", "floordiv", "mod", "truncdiv", "truncmod", "min", "max"):
        cases += [binary(op, x, binary(op, y, x)), binary(op, binary(op, x, y), 3)]
    for op in ("and", "or", "xor", "shl", "shr"):
        cases += [binary(op, x, binary("add", y, x)), binary("mul", binary(op, x, y), x)]
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        cases += [binary(op, x, y), binary("eq", binary(op, x, y), p)]
    for op in ("logical_and", "logical_or"):
        cases += [binary(op, binary("lt", x, 1), p), binary(op, p, binary(op, p, p))]
        cases += [binary(op, constant(True, BOOL), p)]
    cases += [unary("neg", x + y), unary("invert", unary("neg", x)), unary("not", p)]
    cases += [unary("not", binary("logical_and", p, p)), binary("logical_and", unary("not", p), p)]
    cases += [x * -3, int32(-3) * x, x - -3, int32(-(2**31)) + x, unary("neg", unary("neg", x))]
    cases += [u * 3, u + constant(4, UINT32), f * 0.5, f / 3, x / y]
    cases += [f + float("inf"), f + float("-inf"), f * 1e-7, f - 0.1]
    cases += [cast(x, FLOAT32), cast(f, FLOAT16), cast(constant(float("inf"), FLOAT32), INT32)]
    cases += [Bitcast(f, ScalarType(UINT32)), select(p, x, 3), select(binary("lt", x, 0), f, 0.0)]
    cases += [
        Intrinsic("sqrt", (f,), f.type),
        Intrinsic("fma", (f, f, constant(1.0, FLOAT32)), f.type),
    ]
    cases += [binary("floordiv", int32(1), int32(0)), binary("shl", int32(1), int32(40))]
    cases += [
        SpecialRegister(f"{r}.{a}") for r in ("tid", "ctaid", "ntid", "nctaid") for a in "xyz"
    ]
    cases += [SpecialRegister(r) for r in ("laneid", "warp_id", "warpgroup_id", "linear_tid")]
    cases += [SpecialRegister("clock64", ScalarType(dtype("uint64")))]
    binds = [Bind(Var(f"v{i}", each.type), each) for i, each in enumerate(cases)]
    return program(*binds, params=(x, y, u, f, p))


def control() -> Program:
    """Build a program of every control statement."""
    n, i, j, c = scalar("n"), scalar("i"), scalar("j"), scalar("c")
    k, unset = scalar("k", "uint32"), scalar("unset", "float32")
    inner: Block = (If(binary("lt", i, 3), (Continue(),), (If(binary("eq", i, 4), (Break(),)),)),)
    return program(
        Declare(c, int32(0)),
        Declare(unset, None),
        Bind(scalar("same"), n),
        Bind(scalar("five"), int32(5)),
        For(i, int32(0), n, ONE, inner),
        For(j, int32(2), n + 1, int32(2), (Assign(c, c + j),), "unroll"),
        For(k, constant(0, UINT32), constant(8, UINT32), constant(1, UINT32), (Assign(c, c + 1),)),
        For(
            scalar("q"),
            int32(0),
            int32(4),
            ONE,
            (Assert(binary("gt", n, 0), "n > 0"),),
            "vectorized",
        ),
        For(scalar("r"), int32(0), int32(4), ONE, (Assert(binary("gt", n, 0), "n"),), "parallel"),
        While(binary("lt", c, n), (Assign(c, c * 2),)),
        If(binary("lt", n, 0), (Return(),), (Print("n = %d\n", (n,)),)),
        If(binary("lt", n, 1), (Print('"\\', ()),), (Print("a", ()), Print("b", ()))),
        params=(n,),
    )


def views() -> Program:
    """Build a program of shared memory, views, tiles and instructions."""
    n = scalar("n")
    source = tensor("A", (n, 16), "float16")
    out = tensor("Out", (16, 8), "float32", layout=default_layout((16, 8)), align=16)
    a = tensor("a", (16, 16), "float16", Space.SHARED, default_layout((16, 16)), 16)
    ar = tensor("ar", (4,), "uint32", Space.LOCAL, default_layout((4,)))
    loose = tensor("loose", (4,), "float32", Space.LOCAL, None, 64)
    lanes = TileLayout(S[(4, 8, 4) : (1, 4 @ laneid, 1 @ laneid)])
    fragment = Relayout(ar, typed((4, 8, 4), "uint32", Space.LOCAL, lanes))
    words = Reinterpret(a, typed((16, 8), "uint32", Space.SHARED, None, 16))
    split = Reshape(words, typed((2, 8, 2, 4), "uint32", Space.SHARED, None, 16))
    turned = Permute(split, (2, 0, 1, 3), typed((2, 2, 8, 4), "uint32", Space.SHARED, None, 16))
    whole = Reshape(turned, typed((4, 8, 4), "uint32", Space.SHARED, None, 16))
    row = typed((8,), "float16", Space.SHARED, None, 16)
    sub = Subview(a, (LANE, int32(0)), (1, 2), (True, False), row)
    block = typed((4, 16), "float16", Space.SHARED, None, 16)
    rows = Subview(a, (LANE + 1, int32(0)), (1, 1), (False, False), block)
    ldmatrix = form("ldmatrix.sync.aligned.m8n8.x4.shared.b16")
    places = tuple(load(ar, i) for i in range(4))
    pointer = AddressOf(a, (LANE, int32(0)), PointerType(Space.SHARED, FLOAT16, 2))
    aligned = AddressOf(a, (LANE, int32(8)), PointerType(Space.SHARED, FLOAT16, 16))
    return program(
        Allocate(a),
        Allocate(ar),
        Allocate(loose),
        Store(a, (LANE, int32(0)), load(source, LANE, 1)),
        Apply(ldmatrix, (fragment, whole), "warp"),
        Store(loose, (int32(0),), constant(0.0, FLOAT32)),
        Store(loose, (int32(1),), cast(load(sub, 3), FLOAT32)),
        Store(loose, (int32(2),), cast(load(rows, 3, LANE), FLOAT32)),
        Instruct(ldmatrix, (*places, pointer)),
        Instruct(ldmatrix, (*places, aligned), binary("lt", LANE, 16), True),
        Store(out, (LANE, int32(0)), load(loose, 0)),
        params=(source, out),
        symbols=(n,),
        grid=(binary("floordiv", n + 15, 16), 1, 1),
    )


def lowered() -> Program:
    """Build a program in the lowered form."""
    n = scalar("n")
    source, out = tensor("A", (n,), "float32"), tensor("B", (n,), "float32")
    a = Var("A", PointerType(Space.GLOBAL, FLOAT32, 16))
    b = Var("B", PointerType(Space.GLOBAL, FLOAT32, 4))
    r = tensor("r", (4,), "uint32", Space.LOCAL)
    base = SharedBase(PointerType(Space.SHARED, dtype("uint8"), 1024))
    tid, total = SpecialRegister("tid.x"), scalar("total", "float32")
    word = PointerType(Space.SHARED, FLOAT32, 4)
    element = Offset(b, tid * 4, PointerType(Space.GLOBAL, FLOAT32, 4))
    first = Read(Offset(a, tid * 4, PointerType(Space.GLOBAL, FLOAT32, 4)), ScalarType(FLOAT32))
    return program(
        Allocate(r),
        Declare(total, first),
        Write(Offset(base, tid * 4, word), total),
        Instruct(
            form("ldmatrix.sync.aligned.m8n8.x4.shared.b16"),
            (*(load(r, i) for i in range(4)), Offset(base, tid * 16, word)),
        ),
        Assign(total, total * 2.0),
        Write(element, total),
        params=(source, out),
        kernel_params=(a, b, n),
        symbols=(n,),
        block=(128, 1, 1),
        shared_bytes=2048,
    )


def tensor_maps() -> Program:
    """Build a program that makes tensor maps and points at them; it is of both forms."""
    n = scalar("n")
    source = tensor("A", (n, 64), "float16", align=16)
    amap, bmap = Var("amap", TensorMapType()), Var("bmap", TensorMapType())
    start = AddressOf(source, (int32(0), int32(0)), PointerType(Space.GLOBAL, FLOAT16, 16))
    moved = Offset(start, constant(1024, INT64), PointerType(Space.GLOBAL, FLOAT16, 2))
    rows, big = cast(n, INT64), constant(1 << 32, INT64)
    host = (
        EncodeTensorMap(
            amap,
            start,
            (constant(64, INT64), rows - 8),
            (rows * 128,),
            (int32(64), int32(8)),
            (ONE, int32(2)),
            "float16",
            swizzle=3,
        ),
        EncodeTensorMap(
            bmap, moved, (big,), (), (n,), (ONE,), "tf32_ftz", l2_promotion=2, oob_fill=1
        ),
    )
    prefetch = form("prefetch.tensormap")
    pointers = [AddressOf(each, (), TENSOR_MAP_POINTER) for each in (amap, bmap)]
    named = Var("p", TENSOR_MAP_POINTER)
    return program(
        Bind(named, pointers[1]),
        Instruct(prefetch, (named,)),
        Instruct(prefetch, (pointers[0],)),
        params=(source,),
        kernel_params=(bmap, amap),
        symbols=(n,),
        host=host,
    )


ALL = {
    "operators": operators,
    "control": control,
    "views": views,
    "lowered": lowered,
    "tensor_maps": tensor_maps,
}
__all__ = ["ALL", "Binary", "form", "in_kernel", "load", "program", "scalar", "tensor"]
