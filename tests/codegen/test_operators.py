"""Every operator, conversion and function on every type: the assembler takes what is written."""

from __future__ import annotations

from itertools import product

import pytest
from lowered import TARGETS, TID, assemble, body, element, pointer, program, read

from tilewright.base.dtypes import BOOL, INT32, SCALARS, DType, dtype
from tilewright.ir.expressions import (
    COMPARISONS,
    Binary,
    Bitcast,
    Cast,
    Expr,
    Intrinsic,
    SpecialRegister,
    Unary,
    constant,
)
from tilewright.ir.statements import Write
from tilewright.ir.types import ScalarType
from tilewright.passes.expand_math import expand_math
from tilewright.passes.math_functions import FUNCTIONS as MATH
from tilewright.passes.math_functions import OPERATIONS

INTEGERS = [SCALARS[f"{kind}{bits}"] for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS = [SCALARS[name] for name in ("float16", "bfloat16", "float32", "float64")]
SMALL = [each for each in SCALARS.values() if each.is_float and each.bits <= 8]
IN, OUT = pointer("x", "uint8"), pointer("out", "uint8")
INTEGER_OPERATIONS = (
    *("add", "sub", "mul", "floordiv", "mod", "truncdiv", "truncmod", "min", "max"),
    *("and", "or", "xor", "shl", "shr"),
)
FLOAT_OPERATIONS = ("add", "sub", "mul", "div", "min", "max")
FUNCTIONS = {
    **dict.fromkeys(("sqrt", "rsqrt", "abs", "floor", "ceil", "trunc", "nearbyint"), 1),
    "round": 1,
    "copysign": 2,
    "fma": 3,
}


def operand(index: int, kind: DType) -> Expr:
    return read(IN, TID * 3 + index, kind)


def assembled(values: list[Expr], arch: str) -> None:
    writes = [Write(element(OUT, TID * 64 + k, v.dtype), v) for k, v in enumerate(values)]
    usage = assemble(program((IN, OUT), *writes), arch).usage["kernel"]
    assert usage.spill_load_bytes == 0


def operation(op: str, kind: DType, right: Expr | None = None) -> Binary:
    result = BOOL if op in COMPARISONS else kind
    return Binary(
        op, operand(0, kind), operand(1, kind) if right is None else right, ScalarType(result)
    )


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_integer_operators(kind: DType, arch: str) -> None:
    values: list[Expr] = [operation(op, kind) for op in (*INTEGER_OPERATIONS, *COMPARISONS)]
    values += [operation(op, kind, constant(6, kind)) for op in INTEGER_OPERATIONS]
    values += [operation(op, kind, constant(8, kind)) for op in INTEGER_OPERATIONS]
    values += [Unary(op, operand(0, kind), ScalarType(kind)) for op in ("neg", "invert")]
    functions = ("popcount", "clz", "ctz")
    values += [Intrinsic(name, (operand(0, kind),), ScalarType(INT32)) for name in functions]
    values += [Intrinsic(name, (operand(0, kind),), ScalarType(kind)) for name in ("brev", "abs")]
    assembled(values, arch)


@pytest.mark.parametrize("arch", ("sm_75", *TARGETS))
@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_float_operators(kind: DType, arch: str) -> None:
    values: list[Expr] = [operation(op, kind) for op in (*FLOAT_OPERATIONS, *COMPARISONS)]
    values += [operation(op, kind, constant(0.1, kind)) for op in FLOAT_OPERATIONS]
    values.append(Unary("neg", operand(0, kind), ScalarType(kind)))
    for name, count in FUNCTIONS.items():
        operands = tuple(operand(index, kind) for index in range(count))
        values.append(Intrinsic(name, operands, ScalarType(kind)))
    tests = ("isnan", "isinf", "isfinite")
    values += [Intrinsic(name, (operand(0, kind),), ScalarType(BOOL)) for name in tests]
    assembled(values, arch)


def test_approximate_functions() -> None:
    kind = SCALARS["float32"]
    names = ("exp2", "log2", "sin", "cos", "tanh_approx", "rsqrt_approx")
    values: list[Expr] = [Intrinsic(name, (operand(0, kind),), ScalarType(kind)) for name in names]
    for arch in TARGETS:
        assembled(values, arch)


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_functions_that_are_expanded(kind: DType, arch: str) -> None:
    second = {"ldexp": operand(1, INT32)}
    two = ("atan2", "fmod", "hypot", "nextafter", "pow")
    values: list[Expr] = [operation(name, kind) for name in OPERATIONS]
    for name in MATH:
        more = (second.get(name, operand(1, kind)),) if name in (*second, *two) else ()
        values.append(Intrinsic(name, (operand(0, kind), *more), ScalarType(kind)))
    writes = [Write(element(OUT, TID * 64 + k, kind), value) for k, value in enumerate(values)]
    built = assemble(expand_math(program((IN, OUT), *writes)), arch)
    assert built.usage["kernel"].spill_load_bytes == 0


@pytest.mark.parametrize("arch", ("sm_75", *TARGETS))
def test_conversions(arch: str) -> None:
    kinds = [*INTEGERS, *FLOATS, *SMALL, BOOL]
    values: list[Expr] = [
        Cast(operand(0, source), ScalarType(target))
        for source, target in product(kinds, kinds)
        if source != target
    ]
    for start in range(0, len(values), 100):
        assembled(values[start : start + 100], arch)


def test_logic_of_booleans() -> None:
    a, b = operand(0, BOOL), operand(1, BOOL)
    names = ("and", "or", "xor", "logical_and", "logical_or", "eq", "ne")
    values: list[Expr] = [Binary(op, a, b, ScalarType(BOOL)) for op in names]
    assembled([*values, Unary("not", a, ScalarType(BOOL))], "sm_80")


@pytest.mark.parametrize(
    "pair", ["float32 uint32", "float16 uint16", "float64 int64", "int8 uint8"]
)
def test_reinterpretation(pair: str) -> None:
    one, other = (dtype(name) for name in pair.split())
    there = Bitcast(operand(0, one), ScalarType(other))
    back = Bitcast(operand(1, other), ScalarType(one))
    assembled([there, back], "sm_80")


def test_pairs_of_halves_are_words() -> None:
    pair, word = dtype("float16x2"), dtype("uint32")
    assembled([Bitcast(operand(0, pair), ScalarType(word))], "sm_80")


def test_special_registers() -> None:
    axes = [f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    values: list[Expr] = [SpecialRegister(name) for name in (*axes, "laneid", "smid", "clock")]
    values.append(SpecialRegister("globaltimer", ScalarType(dtype("uint64"))))
    assembled(values, "sm_80")


@pytest.mark.parametrize(
    ("op", "kind", "right", "text"),
    [
        ("floordiv", "int32", 16, "x >> 4"),
        ("mod", "int32", 16, "x & 15"),
        ("mod", "int32", 6, "floor_modulo(x, 6)"),
        ("floordiv", "uint32", 6, "x / 6u"),
        ("truncdiv", "int32", 6, "x / 6"),
        ("truncdiv", "int32", -1, "divide(x, -1)"),
        ("truncmod", "int64", 0, "modulo(x, 0ll)"),
        ("shl", "int32", 3, "int(unsigned(x) << 3)"),
        ("shl", "uint32", 31, "x << 31u"),
        ("shl", "int32", 32, "shift_left(x, 32)"),
        ("shr", "int8", 2, "int8_t(x >> int8_t(2))"),
        ("add", "int32", 1, "int(unsigned(x) + 1u)"),
        ("add", "uint64", 1, "x + 1ull"),
        ("mul", "int16", 3, "int16_t(unsigned(x) * 3u)"),
        ("sub", "int64", -1, "int64_t(uint64_t(x) - 18446744073709551615ull)"),
    ],
)
def test_integers_as_text(op: str, kind: str, right: int, text: str) -> None:
    x, out = pointer("x", kind), pointer("out", kind)
    node = Binary(op, read(x, 0), constant(right, dtype(kind)), ScalarType(dtype(kind)))
    written = body((x, out), Write(element(out, 0), node))
    assert written.replace("x[0]", "x") == f"  out[0] = {text};"
