"""Pairs of numbers in one register, conversions of several numbers, words that are waited for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reading import kernel_text, printed, read, refused

import tilewright
from tilewright.frontend import parse_function

BF16: Any = ml_dtypes.bfloat16
E4M3: Any = ml_dtypes.float8_e4m3fn
PARAMS = 'X: T.Tensor((32, 4), "float32"), Out: T.Tensor((32, 4), "{}")'
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1000.0, -449.0, 3.3e38, 1e-40, 1.0]


def numbers() -> Any:
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32) * np.float32(4)
    for column in range(4):
        x[column : column + len(SPECIAL), column] = SPECIAL
    return x


def run(body: str, kind: str, columns: int = 4, arch: str = "sm_90a") -> Any:
    """Run a kernel of one warp on numbers of all kinds; gives them, and what it leaves."""
    body = "i = T.cuda.thread_idx()\nif i < 32:\n" + "".join(
        f"    {line.strip()}\n" for line in body.strip().splitlines()
    )
    made = read(body, PARAMS.format(kind))
    for each in (arch, "sm_100a"):
        assert tilewright.compile(made, target=each, backend="sim").cubin()
    x, out = numbers(), np.zeros((32, 4), kind)
    tilewright.compile(made, target=arch, backend="sim")(x, out)
    return x, out[:, :columns].copy()


def pair(first: int = 0) -> str:
    return f"T.cuda.make_float2(X[i, {first}], X[i, {first + 1}])"


def test_two_singles_in_one_register() -> None:
    x, out = run(f"Out[i, 0] = {pair()}", "uint64", 1)
    assert np.array_equal(out.view(np.float32), x[:, :2], equal_nan=True)
    x, out = run(
        f"p = {pair(2)}\nOut[i, 0] = T.cuda.float2_y(p) - T.cuda.float2_x(p)", "float32", 1
    )
    with np.errstate(all="ignore"):
        assert np.array_equal(out[:, 0], x[:, 3] - x[:, 2], equal_nan=True)


def test_packed_sums_and_products_round_by_themselves() -> None:
    body = f"a = {pair()}\nb = {pair(2)}\nOut[i, 0] = T.cuda.fadd2_rn(a, T.cuda.fmul2_rn(a, b))"
    x, out = run(body, "uint64", 1)
    with np.errstate(all="ignore"):
        wanted = x[:, :2] + x[:, :2] * x[:, 2:]
        fused = (np.float64(x[:, :2]) + np.float64(x[:, :2]) * x[:, 2:]).astype(np.float32)
    assert np.array_equal(out.view(np.float32), wanted, equal_nan=True)
    assert not np.array_equal(fused, wanted, equal_nan=True)


@pytest.mark.parametrize(
    "expression",
    [
        "T.cuda.float22bfloat162_rn(X[i, 0], X[i, 1])",
        f"T.cuda.float22bfloat162_rn_from_float2({pair()})",
    ],
)
def test_two_singles_become_a_pair_of_bfloat16(expression: str) -> None:
    x, out = run(f"Out[i, 0] = {expression}", "uint32", 1, "sm_80")
    with np.errstate(all="ignore"):
        wanted = x[:, :2].astype(BF16).astype(np.float32)
    assert np.array_equal(out.view(BF16).astype(np.float32), wanted, equal_nan=True)


def test_a_pair_of_bfloat16_widens() -> None:
    x, out = run(
        "p = T.cuda.bfloat1622float2(T.cuda.float22bfloat162_rn(X[i, 0], X[i, 1]))\n"
        "Out[i, 0] = T.cuda.float2_x(p)\nOut[i, 1] = T.cuda.float2_y(p)",
        "float32",
        2,
        "sm_80",
    )
    with np.errstate(all="ignore"):
        assert np.array_equal(out, x[:, :2].astype(BF16).astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(("name", "choose"), [("hmin2", np.fmin), ("hmax2", np.fmax)])
def test_the_lesser_and_the_greater_of_pairs(name: str, choose: Any) -> None:
    halves = "T.cuda.float22bfloat162_rn(X[i, {}], X[i, {}])"
    one, other = halves.format(0, 1), halves.format(2, 3)
    x, out = run(f"Out[i, 0] = T.cuda.{name}({one}, {other})", "uint32", 1, "sm_80")
    with np.errstate(all="ignore"):
        rounded = x.astype(BF16).astype(np.float32)
        wanted = choose(rounded[:, :2], rounded[:, 2:])
    assert np.array_equal(out.view(BF16).astype(np.float32), wanted, equal_nan=True)


def test_four_singles_become_bytes_that_saturate() -> None:
    arguments = ", ".join(f"X[i, {at}]" for at in range(4))
    x, out = run(f"Out[i, 0] = T.cuda.fp8x4_e4m3_from_float4({arguments})", "uint32", 1, "sm_89")
    wanted = np.clip(x, -448, 448).astype(E4M3)
    found = out.view(E4M3)
    same = found.astype(np.float32) == wanted.astype(np.float32)
    assert (same | np.isnan(x)).all() and np.isnan(found.astype(np.float32)[np.isnan(x)]).all()


@pytest.mark.parametrize("storage", ["float16", "uint32"])
def test_eight_singles_become_eight_halves_and_back(storage: str) -> None:
    body = f"""
        f = T.alloc_local((8,), "float32")
        h = T.alloc_local((2, {4 if storage == "float16" else 2}), "{storage}")
        for j in range(8): f[j] = X[i, j % 4] + T.cast(j // 4, "float32")
        T.cuda.float8tohalf8(f.ptr_to([0]), T.address_of(h[0, 0]))
        T.cuda.half8tofloat8(h.ptr_to([0, 0]), T.address_of(f))
        for j in range(4): Out[i, j] = f[j + 4]
    """
    x, out = run(body, "float32")
    with np.errstate(all="ignore"):
        wanted = (x + np.float32(1)).astype(np.float16).astype(np.float32)
    assert np.array_equal(out, wanted, equal_nan=True)


def test_two_singles_in_memory_become_halves_there() -> None:
    x, out = run("T.cuda.float22half2(Out.ptr_to([i, 2]), X.ptr_to([i, 1]))", "float16")
    with np.errstate(all="ignore"):
        wanted = x[:, 1:3].astype(np.float16)
    assert np.array_equal(out[:, 2:], wanted, equal_nan=True) and not out[:, :2].any()


def test_runs_that_are_one_are_read_before_they_are_written() -> None:
    body = """
        w = T.alloc_local((4,), "uint32")
        for j in range(4): w[j] = T.reinterpret(X[i, j], "uint32")
        T.cuda.float22half2(w.ptr_to([0]), w.ptr_to([0]))
        for j in range(4): Out[i, j] = w[j]
    """
    x, out = run(body, "uint32")
    with np.errstate(all="ignore"):
        halves = x[:, :2].astype(np.float16)
    assert np.array_equal(out[:, :1].view(np.float16), halves, equal_nan=True)
    assert np.array_equal(out[:, 1:], x[:, 1:].view(np.uint32))


def test_registers_and_addresses() -> None:
    body = """
        s = T.alloc_shared((4,), "uint32")
        start = T.cuda.cvta_generic_to_shared(s.ptr_to([0]))
        Out[i, 0] = T.cuda.mov_sreg(32, "laneid") + 100 * T.cuda.mov_sreg(32, "ntid.x")
        Out[i, 1] = T.cuda.smem_addr_from_uint64(T.uint64(0x700000004))
        Out[i, 2] = T.cuda.sm100_2sm_leader_smem_addr(s.ptr_to([3])) - start
        Out[i, 3] = T.bitwise_not(i)
    """
    _, out = run(body, "int32")
    lanes = np.arange(32)
    assert np.array_equal(out.T, [lanes + 12800, lanes * 0 + 4, lanes * 0 + 12, ~lanes])


def test_a_clock_is_read_where_it_stands() -> None:
    lines = printed('a = T.cuda.mov_sreg(64, "clock64")\nB[0] = T.cast(a - a, "int32")')
    assert sum("clock64" in line for line in lines) == 1


def test_scales_are_chosen_in_a_descriptor() -> None:
    body = """
        d: T.uint32 = 0xFFFFFFFF
        T.cuda.runtime_instr_desc(T.address_of(d), i % 4)
        Out[i, 0] = d
        r = T.alloc_local((1,), "uint32")
        r[0] = 0
        T.cuda.runtime_instr_desc(r.ptr_to([0]), i % 4)
        Out[i, 1] = r[0]
    """
    _, out = run(body, "uint32", 2)
    chosen = np.arange(32, dtype=np.uint32) % 4
    fields = chosen << 29 | chosen << 4
    assert np.array_equal(out[:, 0], (0xFFFFFFFF & ~0x60000030) | fields)
    assert np.array_equal(out[:, 1], fields)


# ---------------------------------------------------------------------------- words

COUNTED = """
i = T.cuda.lane_id()
block = T.cuda.block_idx("x")
if T.cuda.thread_idx() == 0:
    D[block] = T.cast(block, "float32") + 1.0
    T.cuda.thread_fence()
    T.cuda.atomic_add(C.ptr_to([0]), 1)
T.cuda.cta_sync()
seen: T.{kind} = 0
T.cuda.wait_until({target}, C.ptr_to([0]), {predicate}, backoff_ns=20)
total: T.float32 = 0.0
for j in range(6):
    total += D[j]
Out[block] = total + T.cast({target}, "float32")
"""


@pytest.mark.parametrize("schedule", ["late", "random:4"])
@pytest.mark.parametrize(
    ("kind", "target", "predicate"),
    [
        ("uint32", "seen", "lambda v: v >= 6"),
        ("uint64", "seen", "lambda v: v == 6"),
        ("uint32", "r[1]", "lambda v: v >= 6 and D[5] > 0.0"),
    ],
)
def test_a_word_is_waited_for(schedule: str, kind: str, target: str, predicate: str) -> None:
    body = COUNTED.format(kind=kind, target=target, predicate=predicate)
    body = f'r = T.alloc_local((2,), "{kind}")\n' + body
    params = f'C: T.Tensor((1,), "{kind}"), D: T.Tensor((6,), "float32"), Out: T.Tensor((6,))'
    text = str(read(body, params)).replace("grid=1", "grid=6")
    made = parse_function(text)
    ex = tilewright.compile(made, target="sm_90a", backend="sim", schedule=schedule)
    assert ex.cubin()
    d, out = np.zeros(6, np.float32), np.zeros(6, np.float32)
    ex(np.zeros(1, kind), d, out)
    assert (out == 21 + 6).all()


WORDS = 'C: T.Tensor((4,), "uint32"), L: T.Tensor((4,), "uint64"), H: T.Tensor((4,), "float16")'


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("T.cuda.wait_until(x, C.ptr_to([0]), «x > 4»)", "bad-call"),
        ("T.cuda.wait_until(x, C.ptr_to([0]), «lambda v: True»)", "bad-call"),
        ("T.cuda.wait_until(«x», L.ptr_to([0]), lambda v: v > 4)", "operand-type"),
        ("T.cuda.wait_until(«h», H.ptr_to([0]), lambda v: v > 4)", "operand-type"),
        ("T.cuda.wait_until(x, «C», lambda v: v > 4)", "operand-type"),
        ("T.cuda.wait_until(x, «s.ptr_to([0])», lambda v: v > 4)", "operand-type"),
        ('T.cuda.wait_until(x, C.ptr_to([0]), lambda v: v > 4, space=«"shared"»)', "bad-call"),
        ('T.cuda.wait_until(x, C.ptr_to([0]), lambda v: v > 4, scope=«"all"»)', "bad-call"),
        (
            'T.cuda.wait_until(x, C.ptr_to([0]), lambda v: v > 4, ptx_type=«"u64"»)',
            "operand-type",
        ),
        ('y = T.cuda.mov_sreg(«64», "tid.x")', "bad-call"),
        ('y = T.cuda.mov_sreg(32, «"envreg3"»)', "bad-call"),
        ("T.cuda.float22half2(«H», C.ptr_to([0]))", "operand-type"),
        ("T.cuda.half8tofloat8(«r.ptr_to([0])», C.ptr_to([0]))", "operand-type"),
        ("T.cuda.runtime_instr_desc(«L.ptr_to([0])», 1)", "operand-type"),
        ("y = T.cuda.sm100_2sm_leader_smem_addr(«C.ptr_to([0])»)", "operand-type"),
    ],
)
def test_refusals(line: str, code: str) -> None:
    before = (
        "x: T.uint32 = 0\nh: T.float16 = 0.0\n"
        's = T.alloc_shared((4,), "uint32")\nr = T.alloc_local((2,), "float32")\n'
    )
    refused(kernel_text(before + line, WORDS), code, whole=True)
