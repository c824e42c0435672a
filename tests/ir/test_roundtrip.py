"""Printing and reading: the text of a program gives an equal program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integers import VARIABLES, expressions
from programs import ALL, program, scalar

from tilewright.frontend import parse
from tilewright.ir.expressions import Expr, Var, int32
from tilewright.ir.printer import print_program
from tilewright.ir.statements import Bind, LaunchKernel, Print, Program
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


@settings(max_examples=60, deadline=None)
@given(st.lists(expressions(), min_size=1, max_size=12))
def test_random_expressions(exprs: list[Expr]) -> None:
    binds = [Bind(Var(f"v{i}", each.type), each) for i, each in enumerate(exprs)]
    before = program(*binds, params=tuple(VARIABLES.values()))
    assert parse(print_program(before)) == before
