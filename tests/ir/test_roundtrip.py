"""Printing and reading: the text of a program gives an equal program."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integers import VARIABLES, expressions
from programs import ALL, program, scalar

from tilewright.base.dtypes import BOOL, FLOAT32, INT32, dtype
from tilewright.frontend import parse
from tilewright.ir.expressions import Expr, Var, binary, constant, int32
from tilewright.ir.printer import print_program
from tilewright.ir.statements import Assert, Bind, LaunchKernel, Print, Program
from tilewright.ir.verify import verify


@pytest.mark.parametrize("name", ALL)
def test_hand_built_programs(name: str) -> None:
    before = ALL[name]()
    verify(before, "lowered" if name == "lowered" else "high")
    text = print_program(before)
    after = parse(text)
    assert print_program(after) == text
    assert after == before


def test_several_kernels() -> None:
    n, x = scalar("n"), scalar("x")
    single = program(Print("%d", (n,)), params=(n,))
    first = single.kernels[0]
    second = replace(first, name="f_kernel_1", body=(Bind(x, n + 1), Print("%d", (x,))))
    third = replace(first, name="own_name", shared_bytes=64, body=())
    host = tuple(LaunchKernel(each.name) for each in (first, second, third))
    before = Program("f", (n,), host, (first, second, third))
    assert parse(print_program(before)) == before


def test_launch_options_and_attributes() -> None:
    single = program(params=(scalar("n"),))
    kernel = single.kernels[0]
    launch = replace(
        kernel.launch,
        grid=(int32(4), scalar("n") * 2, int32(1)),
        block=(int32(8), int32(1), int32(4)),
        cluster=(int32(2), int32(1), int32(1)),
        dynamic_shared_bytes=int32(1024),
        options=(("cooperative", True),),
    )
    attributes = (("min_blocks_per_sm", 2),)
    before = replace(single, kernels=(replace(kernel, launch=launch, attributes=attributes),))
    assert parse(print_program(before)) == before


FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize("kind", FLOATS)
def test_every_kind_of_float_literal(kind: str) -> None:
    values = (math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5)
    literals = [constant(value, dtype(kind)) for value in values]
    binds = [Bind(Var(f"v{i}", each.type), each) for i, each in enumerate(literals)]
    before = program(*binds)
    assert parse(print_program(before)) == before


def test_equal_literals_are_the_same_value() -> None:
    nan = constant(math.nan, FLOAT32)
    assert nan == constant(float("nan"), FLOAT32)
    assert hash(nan) == hash(constant(float("nan"), FLOAT32))
    assert constant(0.0, FLOAT32) != constant(-0.0, FLOAT32)
    assert constant(0, INT32) != constant(0.0, FLOAT32)
    assert nan != constant(math.nan, dtype("float64"))


@pytest.mark.parametrize("message", ["n is below 4", ""])
@pytest.mark.parametrize("known", [True, False, None])
def test_assertions_of_what_is_known(known: bool | None, message: str) -> None:
    condition = binary("lt", scalar("n"), 4) if known is None else constant(known, BOOL)
    before = program(Assert(condition, message), params=(scalar("n"),))
    assert parse(print_program(before)) == before


@settings(max_examples=60, deadline=None)
@given(st.lists(expressions(), min_size=1, max_size=12))
def test_random_expressions(exprs: list[Expr]) -> None:
    binds = [Bind(Var(f"v{i}", each.type), each) for i, each in enumerate(exprs)]
    before = program(*binds, params=tuple(VARIABLES.values()))
    assert parse(print_program(before)) == before
