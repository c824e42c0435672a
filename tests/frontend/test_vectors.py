"""Vectors: made, taken apart, computed with, read and written under a mask."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reading import kernel_text, printed, read, refused

import tilewright

IN = 'A: T.Tensor((32,), "{0}"), B: T.Tensor((32,), "{0}"), Out: T.Tensor((32,), "{1}")'


def run(body: str, params: str, *arguments: Any) -> None:
    """Run a kernel of one warp, whose lane is `i`, and compile it for two chips."""
    made = read("i = T.cuda.thread_idx()\nif i < 32:\n" + indented(body), params)
    for arch in ("sm_90a", "sm_100a"):
        assert tilewright.compile(made, target=arch, backend="sim").cubin()
    tilewright.compile(made, target="sm_90a", backend="sim")(*arguments)


def indented(body: str) -> str:
    return "".join(f"    {line}\n" for line in body.strip().splitlines())


def vectors(lanes: int, kind: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-9, 9, (32, lanes)).astype(kind)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("A[i] + B[i] * 2.0", lambda a, b: a + b * 2),
        ("-A[i] - 1", lambda a, b: -a - 1),
        ("abs(A[i]) + B[i] ** 2", lambda a, b: np.abs(a) + b**2),
        ("T.max(A[i], 0.0) + T.min(B[i], 3.0)", lambda a, b: np.maximum(a, 0) + np.minimum(b, 3)),
        ("T.select(A[i] < B[i], A[i], B[i])", lambda a, b: np.minimum(a, b)),
        ("A[i] if i < 7 else B[i]", lambda a, b: np.where(np.arange(32)[:, None] < 7, a, b)),
        ("T.broadcast(2.0, 4) * A[i]", lambda a, b: 2 * a),
        ("T.cast(T.ramp(i, 3, 4), 'float32x4') + A[i]", None),
        ("T.shuffle([A[i], B[i]], [7, 0, 0, 5])", None),
        ("T.vector_combine(T.vector_high(A[i]), T.vector_low(B[i]))", None),
        ("T.vector_combine(T.shuffle([A[i]], [1]), 5.0) * T.vector_low(A[i])", "pair"),
    ],
)
def test_arithmetic_is_element_by_element(expression: str, expected: Any) -> None:
    a, b = vectors(4), vectors(4, seed=1)
    lanes = 2 if expected == "pair" else 4
    out = np.zeros((32, lanes), np.float32)
    run(f"Out[i] = {expression}", IN.format("float32x4", f"float32x{lanes}"), a, b, out)
    if expected is None:
        expected = {
            "T.cas": lambda a, b: a + np.arange(32)[:, None] + 3 * np.arange(4),
            "T.shu": lambda a, b: np.concatenate([a, b], 1)[:, [7, 0, 0, 5]],
            "T.vec": lambda a, b: np.concatenate([a[:, 2:], b[:, :2]], 1),
        }[expression[:5]]
    if expected == "pair":
        wanted = np.stack([a[:, 1], np.full(32, 5)], 1) * a[:, :2]
    else:
        wanted = expected(a, b)
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize(
    "kind",
    [
        *("float16x2", "bfloat16x4", "float32x2", "float64x2", "float32x8", "int8x4", "uint8x16"),
        *("int32x4", "uint64x2", "boolx4", "float8_e4m3fnx4", "float4_e2m1fnx8", "float6_e2m3fnx4"),
    ],
)
def test_elements_are_taken_out_and_put_together(kind: str) -> None:
    base, _, count = kind.rpartition("x")
    lanes = int(count)
    numpy: Any = getattr(ml_dtypes, base, None) or np.dtype(base)
    a = np.random.default_rng(2).integers(0, 7, (32, lanes)).astype(np.float32).astype(numpy)
    out = np.zeros((32, lanes), numpy)
    body = f"v = A[31 - i]\nOut[i] = T.shuffle([v], [*range({lanes})][::-1])"
    run(body, IN.format(kind, kind), a, a, out)
    assert np.array_equal(out.astype(np.float32), a[::-1, ::-1].astype(np.float32))


def test_vectors_in_cells_arrays_and_shared_memory() -> None:
    a, b = vectors(8), vectors(8, seed=1)
    out = np.zeros((32, 8), np.float32)
    body = """
        r = T.alloc_local((2,), "float32x8")
        s = T.alloc_shared((32,), "float32x8")
        r[i % 2] = A[i]
        s[i] = r[i % 2]
        T.cuda.warp_sync()
        x: T.float32x8 = 0.5
        if i < 16:
            x = s[31 - i]
        x += B[i]
        Out[i] = x
    """
    lines = "\n".join(line[8:] for line in body.splitlines())
    run(lines, IN.format("float32x8", "float32x8"), a, b, out)
    first = np.arange(32)[:, None] < 16
    assert np.array_equal(out, np.where(first, a[::-1], np.float32(0.5)) + b)


def test_elements_convert_one_by_one() -> None:
    a = vectors(4)
    out = np.zeros((32, 4), np.int8)
    run("Out[i] = T.cast(A[i], 'int8x4') & 7", IN.format("float32x4", "int8x4"), a, a, out)
    assert np.array_equal(out, a.astype(np.int8) & 7)


def test_a_mask_keeps_an_access_from_what_it_must_not_touch() -> None:
    x, out = np.arange(40, dtype=np.float32), np.zeros((32, 4), np.float32)
    params = 'X: T.Tensor((40,), "float32"), Out: T.Tensor((32,), "float32x4")'
    run("Out[i] = T.masked_load(X, 2 * i, T.ramp(2 * i, 1, 4) < 40) + 1", params, x, out)
    at = 2 * np.arange(32)[:, None] + np.arange(4)
    assert np.array_equal(out, np.where(at < 40, at, 0) + 1)
    run("T.masked_store(X, Out[i], T.ramp(39 - i, 10, 4), T.ramp(i, -20, 4) >= 0)", params, x, out)
    wanted = np.arange(40, dtype=np.float32)
    for lane in range(32):
        for element in range(4):
            if lane - 20 * element >= 0:
                wanted[39 - lane + 10 * element] = out[lane, element]
    assert np.array_equal(x, wanted)


def test_a_masked_store_takes_what_was_there_before_it() -> None:
    x = np.arange(40, dtype=np.float32)
    mask = "T.broadcast(X[0] < 1.0, 4)"
    body = f"if i == 0:\n    T.masked_store(X, T.masked_load(X, 0, {mask}), 1, {mask})"
    run(body, 'X: T.Tensor((40,), "float32")', x)
    assert x[:6].tolist() == [0, 0, 1, 2, 3, 5]


def test_a_vector_is_read_once_for_all_its_elements() -> None:
    params = 'A: T.Tensor((32,), "float32x4")'
    lines = printed("A[1] = A[0] * 2.0", params)
    assert sum("A[0]" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("x = «A[0] + T.broadcast(1.0, 2)»", "type-mismatch"),
        ("x = T.broadcast(1.0, «3»)", "bad-call"),
        ("x = T.ramp(«A[0]», 1, 4)", "operand-type"),
        ("x = T.shuffle([A[0]], «[4]»)", "bad-index"),
        ("x = T.shuffle(«[A[0], 1]», [0])", "type-mismatch"),
        ("x = T.shuffle([A[0]], «[0, 1, 2]»)", "bad-call"),
        ("x = T.vector_low(«1.0»)", "operand-type"),
        ("x = T.vector_combine(A[0], «1.0»)", "type-mismatch"),
        ('x = T.vector_low(A[0], ty=«"float32x4"»)', "type-mismatch"),
        ("x = T.masked_load(X, 0, «A[0]»)", "operand-type"),
        ("x = T.masked_load(X, «T.ramp(0, 1, 2)», T.ramp(0, 1, 4) < 2)", "operand-type"),
        ("x = T.masked_load(«n», 0, T.ramp(0, 1, 4) < 2)", "operand-type"),
        ("x = «X[T.ramp(0, 1, 4)]»", "bad-index"),
        ("x = «T.exp(A[0])»", "type-mismatch"),
    ],
)
def test_refusals(line: str, code: str) -> None:
    params = 'A: T.Tensor((32,), "float32x4"), X: T.Tensor((32,), "float32"), n: T.int32'
    refused(kernel_text(line, params), code, whole=True)
