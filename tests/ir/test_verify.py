"""The verifier: programs of both forms pass, and every rule refuses one small violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from programs import ALL, form, load, program, scalar, tensor, tensor_maps, typed

from tilewright.base.dtypes import BOOL, FLOAT32, INT32, INT64, UINT32
from tilewright.base.errors import VerifyError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expr,
    Intrinsic,
    Load,
    Offset,
    Permute,
    Read,
    Reinterpret,
    Relayout,
    Reshape,
    Select,
    SharedBase,
    SpecialRegister,
    Subview,
    Unary,
    Var,
    binary,
    constant,
    int32,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import (
    Allocate,
    Apply,
    Assert,
    Assign,
    Bind,
    Break,
    Declare,
    EncodeTensorMap,
    For,
    If,
    Instruct,
    Kernel,
    LaunchKernel,
    Print,
    Program,
    Return,
    Stmt,
    Store,
    While,
    Write,
)
from tilewright.ir.types import TENSOR_MAP_POINTER, PointerType, ScalarType, TensorMapType, Type
from tilewright.ir.verify import Stage, verify

I32, F32, B = ScalarType(INT32), ScalarType(FLOAT32), ScalarType(BOOL)
n, f, p = scalar("n"), scalar("f", "float32"), scalar("p", "bool")
A = tensor("A", (4, 8))
c = scalar("c")
shared = tensor("s", (64,), "uint32", Space.SHARED)
r = tensor("r", (4,), "uint32", Space.LOCAL)
GLOBAL = Var("g", PointerType(Space.GLOBAL, FLOAT32, 4))
WORD = PointerType(Space.SHARED, UINT32, 16)
BASE = SharedBase(WORD)
LDMATRIX = form("ldmatrix.sync.aligned.m8n8.x4.shared.b16")
PLACES = tuple(load(r, i) for i in range(4))


def made(*body: Stmt) -> Program:
    return program(*body, params=(n, f, p, A, GLOBAL))


def value(expr: Expr) -> Program:
    return made(Bind(Var("v", expr.type), expr))


def view(kind: type, source: Expr, type: Type, *rest: object) -> Program:
    return value(kind(source, *rest, type))


@pytest.mark.parametrize("name", ALL)
def test_whole_programs_pass(name: str) -> None:
    verify(ALL[name](), "lowered" if name == "lowered" else "high")


def test_tensor_maps_pass_in_both_forms() -> None:
    verify(tensor_maps(), "high")
    verify(tensor_maps(), "lowered")


EXPRESSIONS: dict[str, Program] = {
    "is no int32": value(Constant(1.0, I32)),
    "out of the range": value(Constant(1 << 31, I32)),
    "there is no operation 'abs'": value(Unary("abs", n, I32)),
    "the operand is a": value(Unary("neg", n, F32)),
    "does not take a bool": value(Unary("neg", p, B)),
    "`not` takes a boolean": value(Unary("not", n, I32)),
    "must be one type": value(Binary("add", n, f, I32)),
    "takes and gives booleans": value(Binary("logical_and", n, n, B)),
    "a comparison gives a boolean": value(Binary("lt", n, n, I32)),
    "there is no operation 'pow'": value(Binary("pow", n, n, I32)),
    "the result is float32": value(Binary("add", n, n, F32)),
    "'add' does not take booleans": value(Binary("add", p, p, B)),
    "'xor' does not take floats": value(Binary("xor", f, f, F32)),
    "'div' takes floats": value(Binary("div", n, n, I32)),
    "a choice is made by a boolean": value(Select(n, n, n, I32)),
    "a choice between": value(Select(p, n, f, I32)),
    "is not converted into": value(Cast(GLOBAL, I32)),
    "element by element": value(Cast(n, ScalarType(INT32.vector(2)))),
    "differ in width": value(Bitcast(n, ScalarType(INT64))),
    "'sqrt' does not take a": value(Intrinsic("sqrt", (A,), F32)),
    "is indexed, which is no tensor": value(Load(n, (n,), I32)),
    "is indexed by 1 numbers": value(load(A, 0)),
    "a float32 is no index": value(load(A, 0, f)),
    "lies outside an axis of 8": value(load(A, 0, 8)),
    "tensor (4, 8) in global memory is no int32": value(replace(load(A, 0, 0), type=I32)),
    "the address of an element": value(AddressOf(A, (n, n), PointerType(Space.SHARED, FLOAT32, 4))),
    "a view is taken of a int32": view(Reshape, n, typed((4,), "int32")),
    "is in shared memory": view(Reshape, A, typed((32,), "float32", Space.SHARED)),
    "has elements of int32": view(Reshape, A, typed((32,), "int32")),
    "a view of 32 elements has 16": view(Reshape, A, typed((16,))),
    "are no order": view(Permute, A, typed((8, 4)), (0, 0)),
    "in the new order": view(Permute, A, typed((4, 8)), (1, 0)),
    "a view of 1024 bits has 512": view(Reinterpret, A, typed((4, 4), "int32")),
    "has elements of float16": view(Relayout, A, typed((4, 4), "float16")),
    "a box gives": view(Subview, A, typed((4,)), (n,), (1,), (False,)),
    "shared memory begins": value(SharedBase(PointerType(Space.GLOBAL, UINT32, 4))),
    "is moved, which is no pointer": value(Offset(n, n, WORD)),
    "stays in its space": value(Offset(GLOBAL, n, WORD)),
    "is moved by a float32": value(Offset(BASE, f, WORD)),
    "is read through": value(Read(n, I32)),
    "points to is no": value(Read(BASE, F32)),
    "the variable 'c' is not defined": value(c),
    "and is used as a float32": value(Var("n", F32)),
}
STATEMENTS: dict[str, Program] = {
    "is bound to a name of a float32": made(Bind(f, n)),
    "a cell holds a scalar": made(Declare(A, None)),
    "is put into a cell of int32": made(Declare(c, f)),
    "is not allocated": made(Allocate(c)),
    "a shape of constants": made(Allocate(tensor("s", (n,), "int32", Space.SHARED))),
    "is stored into a": made(Store(A, (n, n), n)),
    "is written through, which is no pointer": made(Write(n, n)),
    "is written through a pointer": made(Write(GLOBAL, n)),
    "integers of one type": made(For(c, int32(0), constant(8, UINT32), int32(1), ())),
    "step is not zero": made(For(c, int32(0), int32(8), int32(0), ())),
    "no loop of the kind 'fast'": made(For(c, int32(0), int32(8), int32(1), (), "fast")),
    "a int32 is no condition": made(If(n, ())),
    "a float32 is no condition": made(While(f, ())),
    "a float32 tensor (4, 8) in global memory is no condition": made(Assert(A, "")),
    "is not printed": made(Print("%d", (A,))),
    "there is no scope 'block'": made(Apply(LDMATRIX, (), "block")),
    "not 2 operands": made(Allocate(r), Instruct(LDMATRIX, PLACES[:2])),
    "is no predicate": made(Allocate(r), Instruct(LDMATRIX, (*PLACES, BASE), n)),
    "only under a predicate": made(Allocate(r), Instruct(LDMATRIX, (*PLACES, BASE), None, True)),
    "is no cell or element": made(Allocate(r), Instruct(LDMATRIX, (*PLACES[:3], n + 1, BASE))),
    "is no address in shared memory": made(Allocate(r), Instruct(LDMATRIX, (*PLACES, GLOBAL))),
    "an address has 32 bits": made(Allocate(r), Instruct(LDMATRIX, (*PLACES, constant(0, INT64)))),
    "a float32 is no address": made(Allocate(r), Instruct(LDMATRIX, (*PLACES, f))),
    "a float64 is no .b32": made(
        Declare(scalar("w", "float64"), None),
        Allocate(r),
        Instruct(LDMATRIX, (*PLACES[:3], scalar("w", "float64"), BASE)),
    ),
    "is defined twice": made(Bind(c, n), Bind(c, n)),
    "is no declared cell": made(Bind(c, n), Assign(c, n)),
    "stands in no loop": made(If(p, (Break(),))),
    "there is no kernel": made(LaunchKernel("other")),
    "is not defined where": made(If(p, (Bind(c, n),)), Print("%d", (c,))),
}
LOWERED: dict[str, Program] = {
    "takes pointers to global memory": made(),
    "has no AddressOf": program(
        Bind(
            Var("v", PointerType(Space.LOCAL, UINT32, 4)),
            AddressOf(r, (int32(0),), PointerType(Space.LOCAL, UINT32, 4)),
        )
    ),
    "has no Permute": program(
        Allocate(r), Bind(replace(r, name="q"), Permute(r, (0,), tensor_type(r)))
    ),
    "loads elements only of local arrays": program(Print("%d", (load(shared, 0),))),
    "is no register of the machine": program(Print("%d", (SpecialRegister("warp_id"),))),
    "applies no instruction to tiles": program(Apply(LDMATRIX, (), "warp")),
    "allocates only local arrays": program(Allocate(shared)),
    "gives no names to tensors": program(Allocate(r), Bind(replace(r, name="q"), r)),
}


def refused(broken: Program, message: str, stage: Stage = "high") -> None:
    with pytest.raises(VerifyError) as caught:
        verify(broken, stage)
    assert message in caught.value.message
    assert caught.value.code == "invalid-program"
    assert caught.value.found


@pytest.mark.parametrize("message", EXPRESSIONS)
def test_rules_of_expressions(message: str) -> None:
    refused(EXPRESSIONS[message], message)


@pytest.mark.parametrize("message", STATEMENTS)
def test_rules_of_statements(message: str) -> None:
    refused(STATEMENTS[message], message)


@pytest.mark.parametrize("message", LOWERED)
def test_rules_of_the_lowered_form(message: str) -> None:
    refused(LOWERED[message], message, "lowered")


def _kernel(change: dict[str, Any]) -> Program:
    good = made()
    return replace(good, kernels=(replace(good.kernels[0], **change),))


def test_rules_of_kernels() -> None:
    refused(_kernel({"params": (n, n)}), "two parameters have one name")
    refused(_kernel({"shared_bytes": -1}), "no negative size")
    wide = replace(made().kernels[0].launch, grid=(constant(1, INT64), int32(1), int32(1)))
    refused(_kernel({"launch": wide}), "the shape of a launch is int32")
    good = made()
    refused(replace(good, kernels=good.kernels * 2), "two kernels of a program have one name")
    refused(replace(good, host=(Return(),)), "does not return")


def maps(**changes: Any) -> Program:
    """Change the statement that makes the first tensor map of `tensor_maps`."""
    good = tensor_maps()
    first, *rest = good.host
    assert isinstance(first, EncodeTensorMap)
    return replace(good, host=(replace(first, **changes), *rest))


MAP = Var("amap", TensorMapType())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"var": n}, "a tensor map is given to a int32"),
        ({"pointer": n}, "not at a int32"),
        ({"pointer": BASE}, "not at a pointer to uint32 in shared memory"),
        ({"format": "float16x2"}, "has no elements of 'float16x2'"),
        ({"strides": ()}, "strides of all but one"),
        ({"steps": (int32(1),)}, "steps of every axis"),
        ({"extents": (int32(64), int32(8))}, "a int32 stands where an int64 is needed"),
        ({"box": (constant(64, INT64), int32(8))}, "a int64 stands where an int32 is needed"),
    ],
)
def test_rules_of_tensor_maps(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(maps(**changes))
    assert message in caught.value.message


def test_where_tensor_maps_may_stand() -> None:
    good = tensor_maps()
    made_late = replace(good, host=(*good.host[1:], good.host[0]))
    refused(made_late, "the variable 'amap' is not defined where it is used")
    inside = replace(good.kernels[0], body=(good.host[0],), params=good.params)
    refused(replace(good, kernels=(inside,)), "a tensor map is made on the host")
    as_number = AddressOf(MAP, (), PointerType(Space.GENERIC, UINT32, 4))
    for wrong in (as_number, AddressOf(MAP, (n,), TENSOR_MAP_POINTER)):
        kernel = replace(good.kernels[0], body=(Bind(Var("q", wrong.type), wrong),))
        refused(replace(good, kernels=(kernel,)), "the address of a tensor map is a pointer")


def test_the_host_of_a_lowered_program_points_at_the_start_of_tensors() -> None:
    refused(
        maps(pointer=AddressOf(A, (int32(1), int32(0)), PointerType(Space.GLOBAL, FLOAT32, 4))),
        "points only at the start of a tensor",
        "lowered",
    )


def test_an_error_shows_the_place_and_the_node() -> None:
    where = Location("k.py", 7, 4)
    broken = value(Binary("add", n, f, I32, location=where))
    with pytest.raises(VerifyError) as caught:
        verify(broken)
    assert caught.value.location == where
    assert caught.value.found == "n + f"
    assert isinstance(broken.kernels[0], Kernel)
    assert binary("lt", n, 3).type == B
