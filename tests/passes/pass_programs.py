"""Small programs in IR, for the tests of passes, and an evaluator of index expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import FLOAT16, FLOAT32, INT32, UINT32, DType
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    Expr,
    Load,
    Permute,
    Reinterpret,
    Relayout,
    Reshape,
    SpecialRegister,
    Subview,
    Var,
    as_expr,
    constant,
    int32,
)
from tilewright.ir.shapes import static_shape
from tilewright.ir.statements import (
    Allocate,
    Apply,
    Bind,
    Block,
    For,
    Kernel,
    Launch,
    LaunchKernel,
    Program,
    Stmt,
    Store,
)
from tilewright.ir.types import ScalarType, TensorType
from tilewright.isa import matrix_moves, memory, warp_matrix
from tilewright.isa.declaration import Form, spell
from tilewright.layout import S, TileLayout, default_layout, laneid

assert matrix_moves and memory and warp_matrix  # their declarations are in the table now
INT = ScalarType(INT32)
ONE = int32(1)
MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"

A_LOAD = TileLayout(S[(4, 8, 4) : (1, 4 @ laneid, 1 @ laneid)])
B_LOAD = TileLayout(S[(2, 8, 4) : (1, 4 @ laneid, 1 @ laneid)])
A_MMA = TileLayout(S[(1, 1, 2, 8, 2, 4) : (4, 4, 1, 4 @ laneid, 2, 1 @ laneid)])
B_MMA = TileLayout(S[(1, 1, 8, 2, 4) : (2, 2, 4 @ laneid, 1, 1 @ laneid)])
D_MMA = TileLayout(S[(1, 1, 2, 8, 4, 2) : (4, 4, 2, 4 @ laneid, 1 @ laneid, 1)])


def form(text: str) -> Form:
    return spell(text).forms()[0]


def line(number: int) -> Location:
    return Location("kernel.py", number, 4)


def shape_of(*extents: int | Expr) -> tuple[Expr, ...]:
    return tuple(as_expr(extent) for extent in extents)


def tensor(
    name: str,
    shape: Sequence[int],
    dtype: DType,
    space: Space,
    layout: Any = "default",
    align: int = 0,
) -> Var:
    chosen = default_layout(shape) if layout == "default" else layout
    return Var(name, TensorType(shape_of(*shape), dtype, space, chosen, align))


def shared(name: str, shape: Sequence[int], dtype: DType, **options: Any) -> Var:
    return tensor(name, shape, dtype, Space.SHARED, **options)


def local(name: str, shape: Sequence[int], dtype: DType, **options: Any) -> Var:
    return tensor(name, shape, dtype, Space.LOCAL, **options)


def param(name: str, shape: Sequence[int], dtype: DType, **options: Any) -> Var:
    return tensor(name, shape, dtype, Space.GLOBAL, **options)


def scalar(name: str, dtype: DType = INT32) -> Var:
    return Var(name, ScalarType(dtype))


# ---- views


def kind_of(view: Expr) -> TensorType:
    assert isinstance(view.type, TensorType)
    return view.type


def relayout(source: Expr, shape: Sequence[int], layout: Any) -> Relayout:
    kind = kind_of(source)
    new = TensorType(shape_of(*shape), kind.dtype, kind.space, layout, kind.align)
    return Relayout(source, new)


def reshape(source: Expr, *shape: int) -> Reshape:
    kind = kind_of(source)
    new = TensorType(shape_of(*shape), kind.dtype, kind.space, kind.layout, kind.align)
    return Reshape(source, new)


def permute(source: Expr, *axes: int) -> Permute:
    kind = kind_of(source)
    shape = tuple(kind.shape[axis] for axis in axes)
    return Permute(source, axes, TensorType(shape, kind.dtype, kind.space, None, kind.align))


def reinterpret(source: Expr, dtype: DType) -> Reinterpret:
    kind = kind_of(source)
    shape = static_shape(kind.shape)
    assert shape is not None
    *outer, last = shape
    extents = shape_of(*outer, last * kind.dtype.bytes // dtype.bytes)
    return Reinterpret(source, TensorType(extents, dtype, kind.space, None, kind.align))


def box(
    source: Expr, *parts: int | Expr | tuple[int | Expr, int] | tuple[int, int, int]
) -> Subview:
    """Take a part of each axis: an index, or (start, extent), or (start, extent, step)."""
    starts: list[Expr] = []
    steps: list[int] = []
    extents: list[int] = []
    dropped: list[bool] = []
    for each in parts:
        whole: tuple[Any, ...] = (*each, 1) if isinstance(each, tuple) else (each, None, 1)
        start, extent, step = whole[:3]
        starts.append(as_expr(start))
        steps.append(int(step))
        dropped.append(extent is None)
        extents += [] if extent is None else [int(extent)]
    kind = kind_of(source)
    new = TensorType(shape_of(*extents), kind.dtype, kind.space, None, kind.align)
    return Subview(source, tuple(starts), tuple(steps), tuple(dropped), new)


def load(source: Expr, *indices: int | Expr) -> Load:
    return Load(source, shape_of(*indices), ScalarType(source.dtype))


# ---- programs


def program(
    body: Sequence[Stmt],
    params: Sequence[Var] = (),
    block: int | tuple[int, int, int] = 32,
    grid: int = 1,
    symbols: Sequence[Var] = (),
) -> Program:
    shape = block if isinstance(block, tuple) else (block, 1, 1)
    x, y, z = (int32(each) for each in shape)
    launch = Launch((int32(grid), ONE, ONE), (x, y, z), (ONE, ONE, ONE), int32(0), location=line(2))
    kernel = Kernel("kernel", tuple(params), launch, tuple(body), tuple(symbols))
    return Program("kernel", tuple(params), (LaunchKernel("kernel"),), (kernel,))


def body_of(found: Program) -> Block:
    return found.kernels[0].body


def warp_matmul(a_layout: TileLayout = A_LOAD, align: int = 16) -> Program:
    """Build the seed program: one 16 × 8 × 16 product by one warp."""
    global_a, global_b = param("A", (16, 16), FLOAT16), param("B", (8, 16), FLOAT16)
    out = param("Out", (16, 8), FLOAT32)
    a = shared("a", (16, 16), FLOAT16, align=align)
    b = shared("b", (8, 16), FLOAT16, align=16)
    ar, br = local("ar", (4,), UINT32), local("br", (2,), UINT32)
    dr = local("dr", (4,), FLOAT32)
    lane, q, p, r = scalar("lane"), scalar("q"), scalar("p"), scalar("r")
    a_words = reshape(permute(reshape(reinterpret(a, UINT32), 2, 8, 2, 4), 2, 0, 1, 3), 4, 8, 4)
    b_words = permute(reshape(reinterpret(b, UINT32), 8, 2, 4), 1, 0, 2)

    def copy(counter: Var, count: int, to: Var, source: Var) -> For:
        index = lane + 32 * counter
        at = (index // 16, index % 16)
        return For(counter, int32(0), int32(count), ONE, (Store(to, at, load(source, *at)),))

    rows = lane // 4 + 8 * (r // 2)
    columns = 2 * (lane % 4) + r % 2
    return program(
        (
            Bind(lane, SpecialRegister("laneid")),
            Allocate(a, location=line(4)),
            Allocate(b, location=line(5)),
            copy(q, 8, a, global_a),
            copy(p, 4, b, global_b),
            Allocate(ar),
            Allocate(br),
            Allocate(dr),
            Apply(
                form("ldmatrix.sync.aligned.m8n8.x4.shared.b16"),
                (relayout(ar, (4, 8, 4), a_layout), a_words),
                "warp",
                location=line(9),
            ),
            Apply(
                form("ldmatrix.sync.aligned.m8n8.x2.shared.b16"),
                (relayout(br, (2, 8, 4), B_LOAD), b_words),
                "warp",
                location=line(10),
            ),
            Apply(
                form(MMA),
                (
                    relayout(dr, (1, 1, 16, 8), D_MMA),
                    relayout(ar, (1, 1, 16, 8), A_MMA),
                    relayout(br, (1, 1, 8, 8), B_MMA),
                    constant(0.0, FLOAT32),
                ),
                "warp",
                location=line(11),
            ),
            For(r, int32(0), int32(4), ONE, (Store(out, (rows, columns), load(dr, r)),)),
        ),
        (global_a, global_b, out),
    )
