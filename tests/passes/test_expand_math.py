"""Where the functions of the dialect go; their values are tested on the simulator."""

from __future__ import annotations

import pytest
from pass_programs import ONE, body_of, line, load, param, program, scalar

from tilewright.base.dtypes import FLOAT16, FLOAT32, FLOAT64, INT32, DType
from tilewright.base.errors import FrontendError
from tilewright.ir.expressions import (
    Cast,
    Expr,
    Intrinsic,
    Var,
    as_expr,
    binary,
    int32,
    select,
)
from tilewright.ir.printer import print_stmt
from tilewright.ir.statements import Assign, Bind, Break, Declare, For, If, Store, While
from tilewright.ir.types import ScalarType
from tilewright.passes.expand_math import expand_math

X, Y = scalar("x", FLOAT32), scalar("y", FLOAT32)
RESULT = scalar("result", FLOAT32)
M, N = scalar("m"), scalar("n")


def call(name: str, *operands: Expr) -> Intrinsic:
    return Intrinsic(name, operands, operands[0].type, location=line(4))


def test_before_and_after() -> None:
    found = expand_math(program((Assign(RESULT, call("rsqrt", X)),)))
    assert [print_stmt(stmt) for stmt in body_of(found)] == [
        "rsqrt_value = T.float32(1.0) / T.sqrt(x)",
        "result = rsqrt_value",
    ]


def test_primitives_stay() -> None:
    before = program((Assign(RESULT, call("sqrt", call("abs", X))),))
    assert expand_math(before) == before


def test_narrow_floats_are_computed_in_float32() -> None:
    half = scalar("h", FLOAT16)
    (*_, last) = body_of(expand_math(program((Assign(scalar("r", FLOAT16), call("exp", half)),))))
    assert isinstance(last, Assign) and isinstance(last.value, Cast)
    assert last.value.dtype == FLOAT16


def test_an_arm_is_evaluated_only_if_it_is_chosen() -> None:
    a = param("A", (4,), FLOAT32)
    i = scalar("i")
    chosen = select(binary("lt", i, 4), call("exp", load(a, i)), as_expr(0.0))
    (declared, branch, assigned) = body_of(expand_math(program((Assign(RESULT, chosen),), (a,))))
    assert isinstance(declared, Declare) and isinstance(branch, If)
    assert isinstance(assigned, Assign) and assigned.value == declared.var
    assert len(branch.then) > 2 and len(branch.orelse) == 1


def test_the_condition_of_a_loop_is_evaluated_before_each_turn() -> None:
    body = (Assign(X, X + 1.0),)
    (loop,) = body_of(expand_math(program((While(binary("lt", call("exp", X), 9.0), body),))))
    assert isinstance(loop, While) and loop.condition == as_expr(True)
    assert loop.body[-1] == body[0]
    stop = loop.body[-2]
    assert isinstance(stop, If) and isinstance(stop.then[0], Break)


def test_bounds_of_a_loop_are_evaluated_once() -> None:
    i = scalar("i")
    stop = Cast(call("exp", X), ScalarType(INT32))
    (*_, loop) = body_of(expand_math(program((For(i, int32(0), stop, ONE, ()),))))
    assert isinstance(loop, For) and isinstance(loop.stop, Cast)


def test_a_float64_is_computed_in_float64() -> None:
    value = scalar("v", FLOAT64)
    (first, *_) = body_of(expand_math(program((Assign(value, call("rsqrt", value)),))))
    assert isinstance(first, Bind) and first.value.dtype == FLOAT64


def test_steps_of_a_function_may_be_loops_and_branches() -> None:
    found = body_of(expand_math(program((Assign(RESULT, call("fmod", X, Y)),))))
    assert any(isinstance(stmt, While) for stmt in found)
    found = body_of(expand_math(program((Assign(RESULT, call("sin", X)),))))
    assert any(isinstance(stmt, If) for stmt in found)


@pytest.mark.parametrize("op", ["floordiv", "mod", "truncdiv", "truncmod"])
def test_division_of_floats_that_rounds_is_a_function(op: str) -> None:
    integers = program((Assign(M, binary(op, M, N)),))
    assert expand_math(integers) == integers
    (*_, last) = body_of(expand_math(program((Assign(RESULT, binary(op, X, Y)),))))
    assert isinstance(last, Assign) and isinstance(last.value, Var)


@pytest.mark.parametrize(
    ("name", "dtype"), [("lgamma", FLOAT32), ("exp", FLOAT32.vector(4)), ("exp", INT32)]
)
def test_what_has_no_expansion_is_refused(name: str, dtype: DType) -> None:
    value = scalar("v", dtype)
    a = param("A", (4,), dtype)
    with pytest.raises(FrontendError) as caught:
        expand_math(program((Store(a, (int32(0),), call(name, value)),), (a,)))
    assert caught.value.code == "unsupported-expression" and caught.value.location == line(4)
