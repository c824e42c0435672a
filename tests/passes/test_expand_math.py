"""The functions of the dialect: their stated errors, their special cases, where they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pass_programs import ONE, body_of, line, load, param, program, scalar

from tilewright.base.dtypes import FLOAT16, FLOAT32, FLOAT64, INT32, DType
from tilewright.base.errors import FrontendError
from tilewright.ir.expressions import (
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expr,
    Intrinsic,
    Select,
    Unary,
    Var,
    as_expr,
    binary,
    int32,
    select,
)
from tilewright.ir.printer import print_stmt
from tilewright.ir.statements import Assign, Bind, Block, Break, Declare, For, If, Store, While
from tilewright.ir.types import ScalarType
from tilewright.passes.expand_math import expand_math

F32 = np.float32
X, Y = scalar("x", FLOAT32), scalar("y", FLOAT32)
RESULT = scalar("result", FLOAT32)


# ---- an evaluator of straight code over arrays

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "and": np.bitwise_and,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}
UNARY: dict[str, Callable[[Any], Any]] = {"neg": np.negative, "not": np.logical_not}


def fma(a: Any, b: Any, c: Any) -> Any:
    """Multiply and add; the product is exact, the sum has 11 bits more than the result."""
    wide = [np.asarray(each).astype(np.longdouble) for each in (a, b, c)]
    return (wide[0] * wide[1] + wide[2]).astype(F32)


INTRINSICS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "copysign": np.copysign,
    "fma": fma,
    "nearbyint": np.rint,
    "sqrt": np.sqrt,
    "trunc": np.trunc,
}


def value_of(expr: Expr, names: dict[Var, Any]) -> Any:
    def inner(each: Expr) -> Any:
        return value_of(each, names)

    match expr:
        case Constant():
            return expr.dtype.numpy.type(expr.value)
        case Var():
            return names[expr]
        case Unary():
            return UNARY[expr.op](inner(expr.operand))
        case Binary():
            return BINARY[expr.op](inner(expr.left), inner(expr.right))
        case Select():
            return np.where(inner(expr.condition), inner(expr.true), inner(expr.false))
        case Bitcast():
            return np.asarray(inner(expr.operand)).view(expr.dtype.numpy)
        case Cast():
            return np.asarray(inner(expr.operand)).astype(expr.dtype.numpy)
        case Intrinsic():
            return INTRINSICS[expr.name](*map(inner, expr.operands))
        case _:
            raise AssertionError(expr)


def run(block: Block, names: dict[Var, Any]) -> Any:
    with np.errstate(all="ignore"):
        for stmt in block:
            assert isinstance(stmt, Bind | Assign)
            names[stmt.var] = value_of(stmt.value, names)
    return names[RESULT]


def call(name: str, *operands: Expr) -> Intrinsic:
    return Intrinsic(name, operands, operands[0].type, location=line(4))


def computed(name: str, *arguments: np.ndarray) -> np.ndarray:
    """Expand a function and evaluate what it is expanded to."""
    variables = (X, Y)[: len(arguments)]
    found = expand_math(program((Assign(RESULT, call(name, *variables)),)))
    return run(body_of(found), dict(zip(variables, arguments, strict=True)))


def all_exponents(rng: np.random.Generator, count: int = 400_000) -> np.ndarray:
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    values = bits.view(F32)
    return values[np.isfinite(values)]


def error_in_ulp(found: np.ndarray, exact: np.ndarray) -> float:
    """Measure the largest error in units in the last place of the exact value's float32."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(F32)
        good = np.isfinite(rounded)
        assert np.array_equal(found[~good], rounded[~good], equal_nan=True)
        found, exact, rounded = found[good], exact[good], rounded[good]
        ulp = np.spacing(np.abs(rounded)).astype(np.longdouble)
        return float((np.abs(found.astype(np.longdouble) - exact) / ulp).max())


def sample(low: float, high: float, count: int = 400_000) -> np.ndarray:
    return np.random.default_rng(0).uniform(low, high, count).astype(F32)


LOGS = {"log": np.log, "log2": np.log2, "log10": np.log10}
CASES: list[tuple[str, Callable[[Any], Any], float, float, float]] = [
    ("exp", np.exp, -104, 89, 1.0),
    ("exp2", np.exp2, -150, 129, 1.0),
    ("exp10", lambda x: np.power(np.longdouble(10), x), -45, 39, 2.0),
    ("tanh", np.tanh, -12, 12, 3.0),
    ("tanh", np.tanh, -0.01, 0.01, 3.0),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), -104, 90, 3.0),
    ("rsqrt", lambda x: 1 / np.sqrt(x), 0.25, 4, 2.0),
    ("log", np.log, 0.5, 2, 1.0),
    ("log2", np.log2, 0.5, 2, 2.0),
    ("log10", np.log10, 0.5, 2, 2.0),
    ("log1p", np.log1p, -0.9, 10, 3.0),
    ("log1p", np.log1p, -0.001, 0.001, 3.0),
    ("sin", np.sin, -10, 10, 2.0),
    ("cos", np.cos, -10, 10, 2.0),
    ("tan", np.tan, -10, 10, 4.0),
    ("sin", np.sin, -10_000, 10_000, 2.0),
    ("cos", np.cos, -10_000, 10_000, 2.0),
    ("tan", np.tan, -10_000, 10_000, 4.0),
]


@pytest.mark.parametrize(("name", "exact", "low", "high", "bound"), CASES)
def test_errors_are_as_stated(
    name: str, exact: Callable[[Any], Any], low: float, high: float, bound: float
) -> None:
    x = sample(low, high)
    with np.errstate(all="ignore"):
        assert error_in_ulp(computed(name, x), exact(x.astype(np.longdouble))) <= bound


@pytest.mark.parametrize(("name", "bound"), [("log", 1.0), ("log2", 2.0), ("log10", 2.0)])
def test_logarithms_of_all_magnitudes(name: str, bound: float) -> None:
    x = np.abs(all_exponents(np.random.default_rng(2)))
    x = x[x > 0]
    assert error_in_ulp(computed(name, x), LOGS[name](x.astype(np.longdouble))) <= bound


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_a_sine_stays_within_one(name: str) -> None:
    x = all_exponents(np.random.default_rng(4))
    found = computed(name, x[np.isfinite(x)])
    assert np.abs(found).max() <= 1


def test_power_of_random_numbers() -> None:
    rng = np.random.default_rng(3)
    x = np.exp2(rng.uniform(-30, 30, 300_000)).astype(F32)
    y = (rng.uniform(-140, 126, x.size) / np.log2(x)).astype(F32)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    assert error_in_ulp(computed("pow", x, y), exact) <= 4.0


def test_powers_that_are_exact() -> None:
    x = np.arange(-60, 61, dtype=F32)
    for y in (0, 1, 2, 3):
        found = computed("pow", x, np.full_like(x, y))
        assert error_in_ulp(found, x.astype(np.longdouble) ** y) <= 2.0
    n = np.arange(-149, 128, dtype=F32)
    assert np.array_equal(computed("exp2", n), np.ldexp(F32(1), n.astype(int)))
    assert np.array_equal(computed("log2", np.ldexp(F32(1), n.astype(int))), n)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, np.inf, -np.inf, np.nan])


def test_special_cases_of_pow_are_those_of_c() -> None:
    x, y = (each.ravel().astype(F32) for each in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    found = computed("pow", x, y)
    # Values need not be correctly rounded, special ones must be right.
    special = ~np.isfinite(expected) | (expected == 0) | (expected == 1)
    np.testing.assert_array_equal(found[special], expected[special])
    assert np.array_equal(
        np.signbit(found[special & ~np.isnan(found)]),
        np.signbit(expected[special & ~np.isnan(expected)]),
    )


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("exp", np.exp),
        ("exp2", np.exp2),
        ("log", np.log),
        ("log2", np.log2),
        ("log10", np.log10),
        ("log1p", np.log1p),
        ("tanh", np.tanh),
        ("sin", np.sin),
        ("cos", np.cos),
    ],
)
def test_special_values(name: str, exact: Callable[[Any], Any]) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1e-40, 1e-40], dtype=F32)
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.longdouble)).astype(F32)
    np.testing.assert_allclose(computed(name, x), expected, rtol=1e-6, atol=0)


def test_rounding_takes_halves_away_from_zero() -> None:
    x = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388609.0, -0.2, np.inf], dtype=F32)
    found = computed("round", x)
    np.testing.assert_array_equal(found, [1, -1, 2, 3, -3, 0, 8388609, -0.0, np.inf])


# ---- where it goes


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


@pytest.mark.parametrize(("name", "dtype"), [("atan2", FLOAT32), ("exp", FLOAT64)])
def test_what_has_no_expansion_is_refused(name: str, dtype: DType) -> None:
    value = scalar("v", dtype)
    a = param("A", (4,), dtype)
    with pytest.raises(FrontendError) as caught:
        expand_math(program((Store(a, (int32(0),), call(name, value)),), (a,)))
    assert caught.value.code == "unsupported-expression" and caught.value.location == line(4)
