"""`T.cuda`, functions of numbers, and the nodes that lowering leaves."""

from __future__ import annotations

import pytest
from reading import body_of, printed, read, read_text, refused

from tilewright.base.dtypes import FLOAT32
from tilewright.base.spaces import Space
from tilewright.ir.statements import Instruct
from tilewright.ir.types import PointerType


def line(text: str) -> str:
    """Print the value that an expression became, as int32."""
    return printed(f"B[0] = T.cast({text}, 'int32')")[-1].removeprefix("B[0] = ")


@pytest.mark.parametrize(
    "text",
    [
        *(f'T.cuda.{name}("{axis}")' for name in ("thread_idx", "block_idx") for axis in "xyz"),
        *(f'T.cuda.{name}("x")' for name in ("block_dim", "grid_dim", "cluster_id")),
        *(f'T.cuda.{name}("y")' for name in ("cluster_cta_id", "cluster_dim")),
        *("T.cuda.lane_id()", "T.cuda.warp_id()", "T.cuda.warpgroup_id()"),
        *("T.cuda.warp_in_warpgroup()", "T.cuda.thread_in_warpgroup()"),
        "T.cuda.linear_thread_id()",
        'T.special_register("cta_pair_id")',
    ],
)
def test_ids(text: str) -> None:
    assert line(text) == text


def test_synchronisation() -> None:
    body = """
    T.cuda.cta_sync()
    T.cuda.warp_sync()
    T.cuda.warpgroup_sync(n)
    T.cuda.thread_fence()
    T.cuda.nano_sleep(20)
    a = T.cuda.syncthreads_and(n > 1)
    b = T.cuda.syncthreads_or(a)
    """
    assert printed(body) == [
        'T.ptx["bar.sync"](T.uint32(0))',
        'T.ptx["bar.warp.sync"](T.uint32(4294967295))',
        'T.ptx["bar.sync"](T.cast(n, "uint32"), T.uint32(128))',
        'T.ptx["fence.acq_rel.gpu"]()',
        'T.ptx["nanosleep.u32"](T.uint32(20))',
        "a: T.bool",
        'T.ptx["bar.red.and.pred"](a, T.uint32(0), n > 1)',
        "b: T.bool",
        'T.ptx["bar.red.or.pred"](b, T.uint32(0), a)',
    ]


def test_waiting_for_an_mbarrier() -> None:
    body = 'bar = T.alloc_shared((2,), "uint64", align=8)\nT.cuda.mbarrier_wait(bar.ptr_to([n]), n)'
    assert printed(body)[1:] == [
        "done: T.bool = False",
        "while not done:",
        '    T.ptx["mbarrier.try_wait.parity.shared::cta.b64"]'
        '(done, bar.ptr_to([n]), T.cast(n, "uint32"))',
    ]


def test_across_a_warp() -> None:
    body = """
    mask = T.cuda.ballot_sync(0xffffffff, n > 3)
    some = T.cuda.any_sync(mask, n)
    down = T.cuda.__shfl_down_sync(mask, n, 2, 8)
    active = T.cuda.__activemask()
    total = T.cuda.reduce_add_sync_u32(active, 3)
    """
    assert printed(body) == [
        "mask: T.uint32",
        'T.ptx["vote.sync.ballot.b32"](mask, n > 3, T.uint32(4294967295))',
        "some: T.bool",
        'T.ptx["vote.sync.any.pred"](some, n != 0, mask)',
        "down: T.int32",
        'T.ptx["shfl.sync.down.b32"](down, n, T.uint32(2), T.uint32(6175), mask)',
        "active: T.uint32",
        'T.ptx["activemask.b32"](active)',
        "total: T.uint32",
        'T.ptx["redux.sync.add.u32"](total, T.uint32(3), active)',
    ]


def test_wide_and_narrow_values_are_shuffled_in_words() -> None:
    body = (
        "x: T.float64 = n\ny = T.cuda.__shfl_sync(0xffffffff, x, 0)\nz: T.float16 = n\n"
        "w = T.cuda.__shfl_sync(0xffffffff, z, 0)"
    )
    text = printed(body)
    assert sum('T.ptx["shfl' in each for each in text) == 3


def test_reductions_and_atomics() -> None:
    body = """
    scratch = T.alloc_shared((4,), "float32")
    m = T.cuda.warp_max(A[0, n], 4)
    total = T.cuda.cta_sum(A[0, n], 4, scratch)
    old = T.cuda.atomic_add(B.ptr_to([n]), 2)
    was = T.cuda.atomic_cas(T.address_of(B[n]), 0, old)
    """
    text = printed(body)
    assert text[-4:] == [
        "old: T.int32",
        'T.ptx["atom.global.add.s32"](old, B.ptr_to([n]), 2)',
        "was: T.int32",
        'T.ptx["atom.global.cas.b32"](was, B.ptr_to([n]), 0, old)',
    ]
    assert "m = T.max(partial_1, shuffled_1)" in text
    assert "total = scratch[0] + scratch[1] + scratch[2] + scratch[3]" in text


def test_debugging() -> None:
    assert printed('T.cuda.printf("%d %f\\n", n, A[0, 0])\nT.cuda.trap_when_assert_failed(n)') == [
        'T.cuda.printf("%d %f\\n", n, A[0, 0])',
        'assert n != 0, "n != 0"',
    ]


def test_values_are_printed_as_they_are() -> None:
    printed(
        'T.cuda.printf("%d %u %x %c %lld %f %f %p %%\\n", n, T.uint32(n), T.int8(n), n > 1, '
        "T.int64(n), A[0, 0], T.float16(n), B.ptr_to([0]))"
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("«'%d', n, n»", "operand-count"),
        ("«'%d %d', n»", "operand-count"),
        ("'%d', «A[0, 0]»", "operand-type"),
        ("'%f', «n»", "operand-type"),
        ("'%d', «T.int64(n)»", "operand-type"),
        ("'%lld', «n»", "operand-type"),
        ("'%p', «n»", "operand-type"),
        ("«'%s'», n", "bad-call"),
        ("«'%q'», n", "bad-call"),
        ("«n»", "not-constant"),
    ],
)
def test_formats_that_do_not_fit(arguments: str, code: str) -> None:
    text = f"T.cuda.printf({arguments})"
    if code == "operand-count":
        text = f"«{text.replace('«', '').replace('»', '')}»"
    refused(text, code)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("T.ceildiv(n, 16)", "(n + 16 - 1) // 16"),
        ("T.ceildiv(7, 2)", "4"),
        ("T.min(n, 3, 4)", "T.min(T.min(n, 3), 4)"),
        ("T.max(2, 3)", "3"),
        ("T.truncdiv(n, 3)", "T.truncdiv(n, 3)"),
        ("T.floormod(n, 3)", "n % 3"),
        ("T.shift_left(n, 3)", "n << 3"),
        ("T.popcount(n)", "T.popcount(n)"),
        ("T.if_then_else(n > 1, n, 2)", "T.select(n > 1, n, 2)"),
        ("T.select(True, n, 2)", "n"),
        ("abs(n)", "T.abs(n)"),
        ("T.abs(-3)", "3"),
        ("T.min_value('int8')", "-128"),
        ("T.reinterpret(n, 'int32')", "n"),
        ("-n + ~n", "-n + ~n"),
        ("T.int8(n)", 'T.cast(T.cast(n, "int8"), "int32")'),
    ],
)
def test_functions_of_integers(text: str, becomes: str) -> None:
    assert line(text) == becomes


@pytest.mark.parametrize(
    "text",
    [
        "T.sqrt(x)",
        "T.exp2(x)",
        "T.fma(x, x, T.float32(1.0))",
        "T.pow(x, T.float32(2.0))",
        *(f"T.{name}(x)" for name in ("acosh", "cbrt", "erf", "expm1", "log1p")),
        *(f"T.{name}(x, x)" for name in ("atan2", "fmod", "hypot", "nextafter")),
        "T.isnan(x)",
        "T.abs(x)",
        "T.ldexp(x, n)",
        'T.reinterpret(x, "uint32")',
        'T.float32("inf")',
        'T.float32("-inf")',
        "T.max(x, T.float32(3.4028234663852886e+38))",
    ],
)
def test_functions_of_floats_are_printed_as_they_are_read(text: str) -> None:
    assert printed(f"x: T.float32 = n\ny: T.let = {text}")[-1].endswith(f"= {text}")


def test_limits_and_literals_of_floats() -> None:
    body = """
    x: T.float32 = T.infinity("float32")
    x = T.max_value("float16")
    x = T.rsqrt(n)
    x = x ** 2
    """
    assert printed(body) == [
        'x: T.float32 = T.float32("inf")',
        "x = T.float32(65504.0)",
        'x = T.rsqrt(T.cast(n, "float32"))',
        "x = T.pow(x, T.float32(2.0))",
    ]


def test_literals_are_rounded_before_they_are_converted() -> None:
    body = """
    x: T.float32 = T.cast(T.float16(0.1), "float32")
    x = T.cast(T.cast(T.float8_e8m0fnu(0.3), "float32"), "float64")
    """
    assert printed(body) == [
        "x: T.float32 = T.float32(0.0999755859375)",
        "x = T.float32(0.5)",
    ]


def test_infinity_is_that_of_the_type() -> None:
    line = printed('x: T.float32 = T.cast(T.infinity("float8_e5m2"), "float32")')[-1]
    assert line == 'x: T.float32 = T.cast(T.reinterpret(T.uint8(124), "float8_e5m2"), "float32")'
    refused("x = «T.infinity('float8_e4m3fn')»", "type-mismatch")
    refused("x = «T.infinity('int32')»", "type-mismatch")


def test_what_is_not_computed_with_integers_of_128_bits_and_vectors() -> None:
    refused("x = «T.cast(T.cast(n, 'uint128'), 'float32')»", "type-mismatch")
    refused("x = «T.cast(T.float32(n), 'uint128')»", "type-mismatch")
    refused("x = «T.cast(n, 'uint128') // T.cast(n, 'uint128')»", "type-mismatch")
    refused("x = «T.popcount(T.cast(n, 'uint128'))»", "type-mismatch")
    refused("v: T.float32x4\nx = «T.sqrt(v)»", "type-mismatch")
    refused("v: T.float32x4\nx = «T.cast(v, 'float16x2')»", "type-mismatch")
    refused("v: T.int32x4\nx = «T.popcount(v)»", "type-mismatch")


def test_names_that_are_not_there() -> None:
    error = refused("x = T.cuda.«grid_synch»()", "unknown-name")
    assert "cta_sync" in (error.expected or "")
    refused("x = T.cuda.thread_idx(«'w'»)", "bad-call")
    refused("T.cuda.mbarrier_wait(«A.ptr_to([0, 0])», 0)", "operand-type")
    refused("T.cuda.warp_reduce(n, «'prod'»)", "bad-call")
    refused("T.cuda.printf(«n»)", "not-constant")
    refused("x = «T.popcount(A[0, 0])»", "type-mismatch")
    refused("x = «T.reinterpret(n, 'float64')»", "type-mismatch")


def test_the_lowered_form_is_read_too() -> None:
    made = read_text(
        """
    @T.function
    def k(A: T.Tensor((16, 16), "float16"), n: T.int32):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=n, block=32))
        T.kernel_params(A=T.Ptr("float16", space="global", align=16), n=T.int32)
        T.func_attr({"shared_bytes": 1024, "name": "other"})
        r = T.alloc_local((4,), "uint32", layout=None)
        value = T.read(T.offset(A, n * 2, "float16", 2))
        T.write(T.offset(T.shared_base(), 16 + n, "float16", 2), value)
        T.ptx["ld.shared.b32"](r[0], T.shared_base())
        T.ptx["ld.shared.b32"](r[1], T.offset(T.shared_base("uint32", 16), 4, "uint32", 4))
    """,
        "lowered",
    )
    (kernel,) = made.program.kernels
    assert (kernel.name, kernel.shared_bytes) == ("other", 1024)
    assert [str(each.type) for each in kernel.params] == [
        "pointer to float16 in global memory",
        "int32",
    ]


def test_marks_and_clocks() -> None:
    body = "x: T.float32 = T.no_contract(A[0, 0] * 2) + 1\ny = T.cuda.clock64()"
    assert printed(body) == [
        "x: T.float32 = T.no_contract(A[0, 0] * T.float32(2.0)) + T.float32(1.0)",
        'y = T.special_register("clock64", "uint64")',
    ]


def test_a_pointer_of_known_alignment() -> None:
    made = read("x: T.float32\nT.ptx.ld.global_.f32(x, A.ptr_to([n, 0], align=16))", check=False)
    call = body_of(made)[-1]
    assert isinstance(call, Instruct)
    assert call.operands[1].type == PointerType(Space.GLOBAL, FLOAT32, 16)
