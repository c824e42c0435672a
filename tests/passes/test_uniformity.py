"""Uniformity: what differs between the lanes of a warp, over small lowered kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from programs import in_kernel, load, scalar, tensor

from tilewright.base.dtypes import FLOAT32, UINT32, dtype
from tilewright.base.spaces import Space
from tilewright.base.targets import since
from tilewright.ir.expressions import (
    Expr,
    Intrinsic,
    Offset,
    Read,
    SpecialRegister,
    Var,
    binary,
    cast,
    constant,
    int32,
    select,
)
from tilewright.ir.statements import (
    Allocate,
    Assign,
    Bind,
    Break,
    Continue,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Return,
    Store,
    While,
)
from tilewright.ir.types import PointerType, ScalarType
from tilewright.isa.declaration import Declaration, Form, register
from tilewright.passes.analysis.uniformity import analyse_uniformity

TID, TID_Y, LANE = SpecialRegister("tid.x"), SpecialRegister("tid.y"), SpecialRegister("laneid")
CTA = SpecialRegister("ctaid.x")
POINTER = Var("A", PointerType(Space.GLOBAL, FLOAT32, 4))
n, c, d, i, b = (scalar(name) for name in "ncdib")
ODD = binary("lt", TID, 3)


def kernel(*body: object, block: tuple[int, int, int] = (128, 1, 1)) -> Kernel:
    return in_kernel(*body, params=(POINTER, n), block=block)


def divergent(*body: object, block: tuple[int, int, int] = (128, 1, 1)) -> set[str]:
    return set(analyse_uniformity(kernel(*body, block=block)).divergent_vars)


UNIFORM = [
    int32(3),
    n,
    CTA * 128 + n,
    TID // 32,
    binary("truncdiv", TID, 64),
    TID >> 5,
    (TID * 4 + 3) // 128,
    (TID + 32 * CTA) // 32,
    TID % 64 // 32,
    (TID & 63) >> 5,
    TID & 96,
    binary("lt", TID, 32),
    binary("ge", TID, 64),
    binary("le", TID, 31),
    binary("gt", int32(32), TID),
    binary("eq", TID // 32, 2),
    cast(TID, UINT32) // 32,
    SpecialRegister("warp_id"),
    Intrinsic("sqrt", (cast(n, FLOAT32),), ScalarType(FLOAT32)),
    Read(Offset(POINTER, n * 4, PointerType(Space.GLOBAL, FLOAT32, 4)), ScalarType(FLOAT32)),
    select(binary("lt", n, 3), n, 4),
]
DIVERGENT = [
    TID,
    LANE,
    TID % 32,
    TID // 16,
    (TID + 1) // 32,
    (TID * 4 + 4) // 128,
    (TID + n) // 32,
    binary("truncdiv", TID - 64, 32),
    binary("lt", TID, 33),
    binary("eq", TID, 32),
    binary("lt", TID, n),
    TID & 16,
    SpecialRegister("lanemask_lt"),
    SpecialRegister("clock"),
    Read(Offset(POINTER, TID * 4, PointerType(Space.GLOBAL, FLOAT32, 4)), ScalarType(FLOAT32)),
    select(ODD, n, 4),
]


@pytest.mark.parametrize("expr", UNIFORM, ids=range(len(UNIFORM)))
def test_uniform_expressions(expr: Expr) -> None:
    assert analyse_uniformity(kernel()).is_uniform(expr)


@pytest.mark.parametrize("expr", DIVERGENT, ids=range(len(DIVERGENT)))
def test_divergent_expressions(expr: Expr) -> None:
    assert not analyse_uniformity(kernel()).is_uniform(expr)


@pytest.mark.parametrize(
    ("block", "expr", "uniform"),
    [
        ((64, 2, 1), TID_Y, True),
        ((16, 8, 1), TID_Y, False),
        ((16, 8, 1), TID // 32, False),
        ((16, 8, 1), (TID + 16 * TID_Y) // 32, True),
        ((16, 8, 1), (TID + 8 * TID_Y) // 32, False),
        ((16, 2, 4), (TID + 16 * (TID_Y + 2 * SpecialRegister("tid.z"))) // 32, True),
        ((16, 2, 4), SpecialRegister("tid.z"), True),
        ((16, 2, 4), SpecialRegister("linear_tid") // 32, True),
        ((1, 128, 1), TID, True),
        ((48, 1, 1), TID // 32, True),
        ((48, 2, 1), TID // 32, False),
    ],
)
def test_shape_of_the_block(block: tuple[int, int, int], expr: Expr, uniform: bool) -> None:
    assert analyse_uniformity(kernel(block=block)).is_uniform(expr) is uniform


def test_dynamic_block() -> None:
    fixed = kernel()
    launch = replace(fixed.launch, block=(n, int32(2), int32(1)))
    linear = TID + SpecialRegister("ntid.x") * TID_Y
    uniformity = analyse_uniformity(replace(fixed, launch=launch))
    assert uniformity.is_uniform(linear // 32)
    assert not uniformity.is_uniform(TID // 32)


def test_bindings_carry_their_form() -> None:
    warp = scalar("warp")
    assert divergent(Bind(b, TID), Bind(warp, b // 32)) == {"b"}


def test_assignment_under_divergent_control() -> None:
    assert divergent(Declare(c, int32(0)), If(ODD, (Assign(c, int32(1)),))) == {"c"}


def test_assignment_under_uniform_control() -> None:
    uniform = binary("lt", TID, 64)
    assert divergent(Declare(c, int32(0)), If(uniform, (Assign(c, int32(1)),))) == set()


def test_cells_of_a_divergent_arm_are_seen_by_its_lanes_only() -> None:
    arm = (Declare(c, int32(0)), Assign(c, c + 1), Bind(b, c))
    assert divergent(If(ODD, arm)) == set()


def test_divergence_spreads_through_cells() -> None:
    body = (Assign(d, d + c), Assign(c, c + TID))
    assert divergent(Declare(c, n), Declare(d, n), For(i, int32(0), n, int32(1), body)) == {
        "c",
        "d",
    }


def test_temporal_divergence() -> None:
    body = (Assign(c, c + 1), If(ODD, (Break(),)))
    loop = For(i, int32(0), n, int32(1), body)
    assert divergent(Declare(c, int32(0)), loop) == {"c"}
    assert divergent(Declare(c, int32(0)), While(binary("lt", c, TID), (Assign(c, c + 1),))) == {
        "c"
    }
    uniformity = analyse_uniformity(kernel(Declare(c, int32(0)), loop))
    assert uniformity.is_divergent(loop)


def test_loop_of_divergent_length() -> None:
    loop = For(i, int32(0), TID, int32(1), (Bind(b, i + 1),))
    assert divergent(loop) == set()
    assert divergent(For(i, TID, n, int32(1), (Bind(b, i + 1),))) == {"b", "i"}


def test_divergent_continue() -> None:
    early = If(ODD, (Continue(),))
    body = (Assign(d, d + 1), early, Assign(c, c + 1), Bind(b, i))
    loop = For(i, int32(0), n, int32(1), body)
    assert divergent(Declare(c, int32(0)), Declare(d, int32(0)), loop) == {"c"}


def test_break_behind_a_nested_divergent_continue() -> None:
    nested = If(binary("lt", n, 3), (If(ODD, (Continue(),)),))
    loop = For(i, int32(0), n, int32(1), (nested, Break()))
    assert analyse_uniformity(kernel(loop)).is_divergent(loop)
    whole = For(i, int32(0), n, int32(1), (Break(),))
    assert not analyse_uniformity(kernel(whole)).is_divergent(whole)


def test_return_leaves_the_others_alike() -> None:
    assert divergent(Declare(c, int32(0)), If(ODD, (Return(),)), Assign(c, int32(1))) == set()


def test_local_arrays() -> None:
    r = tensor("r", (4,), "int32", Space.LOCAL)
    store = Store(r, (int32(0),), n)
    assert divergent(Allocate(r), store) == set()
    assert divergent(Allocate(r), Store(r, (int32(0),), TID)) == {"r"}
    assert divergent(Allocate(r), Store(r, (TID % 4,), n)) == {"r"}
    assert divergent(Allocate(r), If(ODD, (store,))) == {"r"}
    assert divergent(Allocate(r), store, Bind(b, load(r, TID % 4)), Bind(d, load(r, 1))) == {"b"}


def instruction(result: Any) -> Form:
    nothing: Any = None
    operands = (register("d", "u32", role="out"), register("a", "u32"))
    return Form(
        Declaration(
            "test", (), "", "", lambda f: since(80), lambda f: operands, None, lambda f: None,
            "any", False, False, result, nothing, nothing, None, None, None, None, None, True,
            False,
        ),
        (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("result", "source", "predicate", "is_divergent"),
    [
        ("as operands", constant(1, UINT32), None, False),
        ("as operands", cast(TID, UINT32), None, True),
        ("as operands", constant(1, UINT32), ODD, True),
        ("as operands", constant(1, UINT32), binary("lt", TID, 32), False),
        ("uniform", cast(TID, UINT32), None, False),
        ("uniform", cast(TID, UINT32), ODD, True),
        ("lanes", constant(1, UINT32), None, True),
    ],
)
def test_instructions(
    result: str, source: Expr, predicate: Expr | None, is_divergent: bool
) -> None:
    place = Var("w", ScalarType(dtype("uint32")))
    issue = Instruct(instruction(result), (place, source), predicate)
    assert divergent(Declare(place, None), issue) == ({"w"} if is_divergent else set())
