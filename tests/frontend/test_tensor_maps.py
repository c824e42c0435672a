"""Tensor maps in source: how they are made on the host and used in a kernel, and refused."""

from __future__ import annotations

import textwrap

import pytest
from reading import read_text, refused

from tilewright.base.dtypes import INT64
from tilewright.base.errors import TilewrightError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import AddressOf, Expr, Var, as_constant, cast, constant
from tilewright.ir.printer import print_kernel
from tilewright.ir.statements import EncodeTensorMap, Instruct
from tilewright.ir.types import PointerType, TensorMapType
from tilewright.ir.visit import walk_expressions

PARAMS = 'A: T.Tensor((n, 64), "float16"), Out: T.Tensor((64,), "int32"), rows: T.int32'
ROOM = 'amap = T.stack_alloca("tensormap", 1)\n'
NUMBERS = "64, n, 128, 64, 8, 1, 1"
ENTRY = "T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))\n"
USE = "T.ptx.prefetch.tensormap(T.address_of(amap))\n"


def encode(numbers: str = NUMBERS, target: str = "amap", data: str = "A.data", **options: str):
    """Write the call that makes a map."""
    given = {"descriptor_dtype": '"float16"', "rank": "2"} | options
    named = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"T.cuda.tensormap_encode_tiled({target}, {data}, {numbers}, {named})\n"


def whole(body: str, params: str = PARAMS) -> str:
    """Write a function of that body."""
    head = f'n = T.dynamic("n")\n@T.function\ndef k({params}):\n'
    return head + textwrap.indent(body, "    ")


def made(body: str, params: str = PARAMS) -> list[EncodeTensorMap]:
    """Read a function of that body, and give the statements that make maps."""
    program = read_text(whole(body, params)).program
    return [stmt for stmt in program.host if isinstance(stmt, EncodeTensorMap)]


def refuse(body: str, code: str) -> TilewrightError:
    return refused(whole(body), code, whole=True)


def numbers(exprs: tuple[Expr, ...]) -> list[int | float | None]:
    return [as_constant(each) for each in exprs]


# ---------------------------------------------------------------------------- made and used


@pytest.mark.parametrize(
    "room",
    [
        'amap: T.let[T.Ptr(T.TensorMap)] = T.stack_alloca("tensormap", 1)\n',
        'amap: T.let[T.Ptr(T.TensorMap())] = T.stack_alloca("tensormap", 1)\n',
        'amap: T.let[T.handle("tensormap")] = T.stack_alloca("tensormap", 1)\n',
        'amap: T.let = T.stack_alloca("tensormap", 1)\n',
        'amap: T.Ptr(T.TensorMap) = T.stack_alloca("tensormap", 1)\n',
        'amap: T.TensorMap() = T.stack_alloca("tensormap", 1)\n',
        'amap: "T.let[T.Ptr(T.TensorMap)]" = T.stack_alloca("tensormap")\n',
        ROOM,
    ],
)
def test_a_map_is_made_on_the_host_and_passed_to_the_kernel(room: str) -> None:
    program = read_text(whole(room + encode(swizzle="3") + ENTRY + USE)).program
    amap = Var("amap", TensorMapType())
    stmt = program.host[0]
    assert isinstance(stmt, EncodeTensorMap) and stmt.var == amap
    rows = cast(Var("n", program.kernels[0].symbols[0].type), INT64)
    assert stmt.extents == (constant(64, INT64), rows) and stmt.strides == (constant(128, INT64),)
    assert (numbers(stmt.box), numbers(stmt.steps)) == ([64, 8], [1, 1])
    assert (stmt.format, stmt.swizzle, stmt.oob_fill) == ("float16", 3, 0)
    (kernel,) = program.kernels
    assert [var.name for var in kernel.params] == ["A", "Out", "rows", "amap"]
    (issued,) = kernel.body
    assert isinstance(issued, Instruct)
    (address,) = issued.operands
    assert isinstance(address, AddressOf) and address.tensor == amap and address.indices == ()
    assert isinstance(address.type, PointerType)
    assert (address.type.space, address.type.align) == (Space.GENERIC, 64)


def test_the_pointer_may_be_anywhere_in_global_memory() -> None:
    starts = {
        "A.ptr_to([8, 0])": "A.ptr_to([8, 0])",
        "A.view(n * 64).data": "A.view(n * 64).ptr_to([0])",
        "T.address_of(A[rows, 32])": "A.ptr_to([rows, 32])",
        "T.address_of(A)": "A.ptr_to([0, 0])",
    }
    for written, printed in starts.items():
        (stmt,) = made(ROOM + encode(data=written) + ENTRY + USE)
        assert str(stmt.pointer) == printed
    params = "p: T.handle, q: T.Ptr(T.float16)"
    for name in "pq":
        (stmt,) = made(ROOM + encode("64, 64, 1", data=name, rank="1") + ENTRY + USE, params)
        assert str(stmt.pointer) == name


def test_numbers_are_computed_in_64_bits() -> None:
    (stmt,) = made(ROOM + encode("64, n, rows * n * 2 - 16, 64, 8, 1, 1") + ENTRY + USE)
    assert str(stmt.strides[0]) == (
        'T.cast(rows, "int64") * T.cast(n, "int64") * T.int64(2) - T.int64(16)'
    )
    (stmt,) = made(ROOM + encode(f"{1 << 32}, 64, 1", rank="1") + ENTRY + USE)
    assert numbers(stmt.extents) == [1 << 32]


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        *((f'"{name}"', name) for name in ("float16", "bfloat16", "float32", "float64", "tf32")),
        *((f'"{name}"', name) for name in ("uint8", "uint16", "int32", "int64", "float32_ftz")),
        *((f'"{name}"', "uint8") for name in ("int8", "float8_e4m3fn", "float8_e5m2")),
        ('"int16"', "uint16"),
        ("T.bfloat16", "bfloat16"),
        ("A.dtype", "float16"),
        ('"f16"', "float16"),
    ],
)
def test_element_types(kind: str, format: str) -> None:
    (stmt,) = made(
        ROOM + encode("64, 64, 1", rank="1", descriptor_dtype=kind) + ENTRY + USE,
    )
    assert stmt.format == format


def test_the_number_of_the_driver_goes_before_the_element_type() -> None:
    # CUDA Driver API, CUtensorMapDataType: TFLOAT32 is 11, UINT8 is 0.
    for number, format in ((11, "tf32"), (0, "uint8"), (10, "float32_ftz")):
        text = encode("64, 64, 1", rank="1", descriptor_dtype='"any"', force_cu_dtype=str(number))
        (stmt,) = made(ROOM + text + ENTRY + USE)
        assert stmt.format == format


def test_every_option_is_kept() -> None:
    text = encode(swizzle="2", l2_promotion="3", oob_fill="1", numbers="32, n, 64, 32, 8, 1, 2")
    (stmt,) = made(ROOM + text + ENTRY + USE)
    assert (stmt.swizzle, stmt.l2_promotion, stmt.oob_fill, stmt.interleave) == (2, 3, 1, 0)
    assert numbers(stmt.steps) == [1, 2]


def test_helpers_and_other_names_of_a_map() -> None:
    text = """\
from tilewright import simt as T
from tilewright.layout import SwizzleMode
@T.inline
def tile_map(tensor, rows):
    made = T.stack_alloca("tensormap", 1)
    T.cuda.tensormap_encode_tiled(
        made, tensor.data, 64, rows, 128, 64, 8, 1, 1,
        descriptor_dtype="float16", rank=2, swizzle=SwizzleMode.SWIZZLE_128B_ATOM,
    )
    return made
@T.function
def k(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
    amap = tile_map(A, 64)
    bmap: T.let = tile_map(B, 32)
    maps = [amap, bmap]
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    for each in maps:
        T.ptx.prefetch.tensormap(T.address_of(each))
    p = T.address_of(bmap)
    T.ptx.prefetch.tensormap(p)
"""
    made = read_text("from __future__ import annotations\n" + text)
    (kernel,) = made.program.kernels
    assert print_kernel(kernel).splitlines() == [
        'T.ptx["prefetch.tensormap"](T.address_of(made))',
        'T.ptx["prefetch.tensormap"](T.address_of(made_1))',
        "p = T.address_of(made_1)",
        'T.ptx["prefetch.tensormap"](p)',
    ]


def test_kernels_take_the_maps_that_they_use() -> None:
    regions = f"with {ENTRY.strip()}:\n    {USE}" * 2
    program = read_text(whole(ROOM + encode() + regions)).program
    assert [kernel.params[-1].name for kernel in program.kernels] == ["amap", "amap"]
    unused = read_text(whole(ROOM + encode() + ENTRY + "Out[0] = 1\n")).program
    assert [var.name for var in unused.kernels[0].params] == ["A", "Out", "rows"]


def test_a_map_may_be_a_parameter() -> None:
    program = read_text(whole(ENTRY + USE, "amap: T.TensorMap()")).program
    assert program.params == (Var("amap", TensorMapType()),) == program.kernels[0].params
    (address,) = (e for e in walk_expressions(program) if isinstance(e, AddressOf))
    assert address.tensor == program.params[0]


# ---------------------------------------------------------------------------- refused


def test_a_map_is_made_once() -> None:
    twice = ROOM + encode() + encode(target="«amap»") + ENTRY + USE
    assert "made at" in refuse(twice, "bad-call").notes[0]
    given = whole(encode(target="«amap»") + ENTRY + USE, PARAMS + ", amap: T.TensorMap()")
    assert "it is a parameter" in refused(given, "bad-call", whole=True).message


def test_a_map_is_made_before_the_kernel_that_uses_it() -> None:
    use = USE.replace("T.address_of(amap)", "«T.address_of(amap)»")
    error = refuse(ROOM + ENTRY + use, "unbound-name")
    assert "'amap'" in error.message and "tensormap_encode_tiled(amap" in (error.hint or "")
    late = ROOM + f"with {ENTRY.strip()}:\n    {use}" + encode()
    refuse(late, "unbound-name")


def test_a_map_is_made_on_the_host() -> None:
    inside = ROOM + ENTRY + f"«{encode().strip()}»\n" + USE
    assert "T.device_entry" in (refuse(inside, "bad-call").hint or "")
    refuse(ENTRY + 'amap = «T.stack_alloca("tensormap", 1)»\n' + USE, "bad-call")
    branch = ROOM + f"if rows > 1:\n    «{encode().strip()}»\n" + ENTRY + USE
    assert "a branch or a loop" in refuse(branch, "bad-call").message
    loop = f'for i in range(rows):\n    amap = «T.stack_alloca("tensormap", 1)»\n{ENTRY}'
    refuse(loop, "bad-call")


def test_a_map_is_only_pointed_at() -> None:
    start = ROOM + encode()
    refuse(start + "p = «T.address_of(amap)»\n" + ENTRY, "bad-call")
    error = refuse(start + ENTRY + "T.ptx.prefetch.tensormap(«amap»)\n", "operand-type")
    assert error.hint == "take its address: T.address_of(amap)"
    refuse(start + ENTRY + "Out[0] = «amap + 1»\n", "type-mismatch")
    refuse(start + ENTRY + "«Out[0]» = amap\n", "type-mismatch")
    refuse(start + ENTRY + "if «amap»:\n    Out[0] = 1\n", "type-mismatch")
    refuse(start + ENTRY + "x = «-amap»\n", "type-mismatch")


def test_what_room_there_is() -> None:
    refuse('amap = «T.stack_alloca("tensormap", 2)»\n' + ENTRY, "bad-call")
    refuse('amap = «T.stack_alloca("array", 1)»\n' + ENTRY, "bad-call")
    refuse("«amap»: T.let[T.Ptr(T.TensorMap)] = A.data\n" + ENTRY, "type-mismatch")
    refuse('«amap»: T.let[T.handle] = T.stack_alloca("tensormap", 1)\n' + ENTRY, "type-mismatch")


def test_the_number_of_operands() -> None:
    error = refuse(ROOM + "«" + encode("64, n, 128, 64, 8").strip() + "»\n", "operand-count")
    assert (error.expected or "").startswith("9 for rank 2") and error.found == "7"
    assert "1 byte strides" in (error.expected or "")
    three = refuse(ROOM + "«" + encode(rank="3").strip() + "»\n", "operand-count")
    assert (three.expected or "").startswith("13 for rank 3")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (encode(target="«A»"), "operand-type"),
        (encode(data="«A»"), "operand-type"),
        (encode(data="«rows»"), "operand-type"),
        (encode(rank="«6»"), "bad-call"),
        (encode(rank="«0»"), "bad-call"),
        (encode(rank="«rows»"), "not-constant"),
        (encode(swizzle="«n»"), "not-constant"),
        (encode(descriptor_dtype='«"float128"»'), "unknown-name"),
        (encode(descriptor_dtype='«"float4_e2m1fn"»'), "unknown-name"),
        (encode(descriptor_dtype="«[16]»"), "unknown-name"),
        (encode(force_cu_dtype="«13»"), "bad-call"),
        (encode("64, «n / 2», 128, 64, 8, 1, 1"), "bad-index"),
        (encode("64, n, 128, 64, «1.5», 1, 1"), "bad-index"),
    ],
)
def test_operands_that_are_none(call: str, code: str) -> None:
    refuse(ROOM + call + ENTRY + USE, code)


def test_a_map_describes_global_memory() -> None:
    text = ROOM + ENTRY + 'tile = T.alloc_shared((64, 64), "float16")\n'
    assert "part of the kernel" in refuse(text + f"«{encode().strip()}»\n", "bad-call").message
    shared = whole(
        ROOM + encode(data="«p»") + ENTRY, 'n: T.int32, p: T.Ptr("float16", space="shared")'
    )
    refused(shared, "operand-type", whole=True)


@pytest.mark.parametrize(
    ("numbers", "options", "what"),
    [
        ("64, n, 128, 128, 8, 1, 1", {"swizzle": "3"}, "rows of the box"),
        ("64, n, 128, 60, 8, 1, 1", {}, "rows of the box"),
        ("64, n, 128, 64, 257, 1, 1", {}, "box"),
        ("64, n, 128, 64, 0, 1, 1", {}, "box"),
        ("64, n, 128, 64, rows, 1, 9", {}, "element strides"),
        ("64, n, 120, 64, 8, 1, 1", {}, "strides of the tensor"),
        ("64, n, -128, 64, 8, 1, 1", {}, "strides of the tensor"),
        ("0, n, 128, 64, 8, 1, 1", {}, "shape of the tensor"),
        (NUMBERS, {"swizzle": "4"}, "swizzle"),
        (NUMBERS, {"interleave": "1"}, "interleave"),
        (NUMBERS, {"l2_promotion": "4"}, "L2 promotion"),
        (NUMBERS, {"oob_fill": "2"}, "fill of what is out of bounds"),
        (NUMBERS, {"oob_fill": "1", "descriptor_dtype": '"int16"'}, "fill of what is out of"),
    ],
)
def test_constants_that_no_map_can_have(numbers: str, options: dict[str, str], what: str) -> None:
    text = ROOM + "«" + encode(numbers, **options).strip() + "»\n" + ENTRY
    assert f"because of the {what}" in refuse(text, "tensor-map-shape").message


def test_a_kernel_does_not_use_a_pointer_of_the_host() -> None:
    refuse("p = A.data\n«" + ENTRY.strip() + "»\nT.write(p, T.float16(1))\n", "unbound-name")
