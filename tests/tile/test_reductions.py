"""Reductions, scans and atomic operations on tiles, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tile_running import TARGETS, builds, integers, lowered, run

from tilewright import tile as T

SHAPES = [
    (4, 64, 128),
    (64, 48, 128),
    (16, 100, 96),
    (3, 127, 128),
    (5, 257, 64),
    (32, 32, 32),
    (128, 8, 384),
    (7, 9, 48),
]


def _reduction(rows: int, columns: int, axis: int, threads: int, op: str) -> Any:
    count = columns if axis == 0 else rows

    @T.prim_func
    def reduction(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((count,), "float32")):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((rows, columns), "float32")
            s = T.alloc_fragment((count,), "float32")
            T.copy(A, x)
            if op == "sum":
                T.reduce_sum(x, s, dim=axis)
            elif op == "max":
                T.reduce_max(x, s, dim=axis)
            else:
                T.reduce_min(x, s, dim=axis)
            T.copy(s, B)

    return reduction


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("rows", "columns", "threads"), SHAPES)
def test_fragments(rows: int, columns: int, threads: int, axis: int, op: str) -> None:
    a = integers(1, rows, columns)
    b = np.zeros(columns if axis == 0 else rows, np.float32)
    run(_reduction(rows, columns, axis, threads, op), a, b)
    assert np.array_equal(b, getattr(a, op)(axis=axis))


@pytest.mark.parametrize("arch", TARGETS)
def test_every_target(arch: str) -> None:
    a, b = integers(1, 16, 100), np.zeros(16, np.float32)
    run(_reduction(16, 100, 1, 128, "sum"), a, b, arch=arch)
    assert np.array_equal(b, a.sum(1))


def test_lanes_exchange_by_shuffles_and_warps_by_shared_memory() -> None:
    within, across = (lowered(_reduction(*shape, 1, 128, "sum")) for shape in ((64, 32), (1, 512)))
    assert "shfl.sync.bfly" in within and "alloc_shared" not in within
    assert "shfl.sync.bfly" in across and 'alloc_shared((4, 1, 1), "float32"' in across
    builds(_reduction(1, 512, 1, 128, "sum"), "sm_80", "sm_90a")


def test_rows_that_are_reduced_stay_in_a_warp() -> None:
    wide = lowered(_reduction(8, 512, 1, 128, "sum"))
    assert "shfl.sync.bfly" in wide and "alloc_shared" not in wide
    a, b = integers(1, 8, 512), np.zeros(8, np.float32)
    run(_reduction(8, 512, 1, 128, "sum"), a, b)
    assert np.array_equal(b, a.sum(1))


@pytest.mark.parametrize("threads", [32, 128, 384])
@pytest.mark.parametrize("count", [1, 48, 96, 100, 120, 127, 192])
def test_vectors(count: int, threads: int) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((count,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((count,), "float32")
            s = T.alloc_fragment((1,), "float32")
            T.copy(A, x)
            T.reduce_sum(x, s, dim=0)
            T.copy(s, B)

    a, b = integers(1, count), np.zeros(1, np.float32)
    run(kernel, a, b)
    assert b[0] == a.sum()


def test_shared_memory_on_either_side_and_what_the_target_holds() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((16, 40), "float16"),
        B: T.Tensor((16,), "float32"),
        C: T.Tensor((40,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((16, 40), "float16")
            s = T.alloc_shared((16,), "float32")
            top = T.alloc_fragment((1, 40), "float32")
            T.copy(A, x)
            T.copy(B, s)
            T.reduce_sum(x, s, dim=1, clear=False)
            T.reduce_absmax(x, top, dim=0)
            T.copy(s, B)
            T.copy(top, C)

    a, b, c = integers(1, 16, 40, dtype=np.float16), integers(2, 16), np.zeros(40, np.float32)
    wanted = b + a.astype(np.float32).sum(1)
    run(kernel, a, b, c)
    assert np.array_equal(b, wanted) and np.array_equal(c, np.abs(a).max(0).astype(np.float32))


def test_the_middle_axis_and_sums_of_sizes() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((6, 20, 12), "float32"), B: T.Tensor((6, 12), "float32")):
        with T.Kernel(1, threads=96):
            x = T.alloc_fragment((6, 20, 12), "float32")
            s = T.alloc_fragment((6, 12), "float32")
            T.copy(A, x)
            T.reduce_abssum(x, s, dim=1)
            T.copy(s, B)

    a, b = integers(1, 6, 20, 12), np.zeros((6, 12), np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, np.abs(a).sum(1))


def test_bits() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((24, 40), "int32"),
        X: T.Tensor((24,), "int32"),
        Y: T.Tensor((24,), "int32"),
        Z: T.Tensor((24,), "int32"),
    ):
        with T.Kernel(1, threads=96):
            a = T.alloc_fragment((24, 40), "int32")
            x = T.alloc_fragment((24,), "int32")
            y = T.alloc_fragment((24,), "int32")
            z = T.alloc_fragment((24,), "int32")
            T.copy(A, a)
            T.reduce_bitand(a, x, dim=1)
            T.reduce_bitor(a, y, dim=1)
            T.reduce_bitxor(a, z, dim=1)
            T.copy(x, X)
            T.copy(y, Y)
            T.copy(z, Z)

    a = np.random.default_rng(1).integers(0, 1 << 30, (24, 40)).astype(np.int32)
    found = [np.zeros(24, np.int32) for _ in range(3)]
    run(kernel, a, *found)
    for array, op in zip(found, (np.bitwise_and, np.bitwise_or, np.bitwise_xor), strict=True):
        assert np.array_equal(array, op.reduce(a, axis=1))


def test_a_nan_is_passed_over_or_kept() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((8, 64), "bfloat16"),
        X: T.Tensor((8,), "bfloat16"),
        Y: T.Tensor((8,), "bfloat16"),
    ):
        with T.Kernel(1, threads=64):
            a = T.alloc_fragment((8, 64), "bfloat16")
            x = T.alloc_fragment((8,), "bfloat16")
            y = T.alloc_fragment((8,), "bfloat16")
            T.copy(A, a)
            T.reduce_max(a, x, dim=1)
            T.reduce_max(a, y, dim=1, nan_propagate=True)
            T.copy(x, X)
            T.copy(y, Y)

    a = integers(1, 8, 64, dtype=ml_dtypes.bfloat16)
    a[3, 17] = np.nan
    x, y = (np.zeros(8, ml_dtypes.bfloat16) for _ in range(2))
    run(kernel, a, x, y)
    plain = a.astype(np.float32)
    assert np.array_equal(x.astype(np.float32), np.nanmax(plain, axis=1))
    assert np.array_equal(y.astype(np.float32), plain.max(1), equal_nan=True)


# ---------------------------------------------------------------------------- scans


@pytest.mark.parametrize("scope", ["fragment", "shared"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("rows", "columns", "threads"), [(4, 64, 128), (3, 100, 96), (2, 257, 64), (5, 7, 16)]
)
def test_scans(
    rows: int, columns: int, threads: int, axis: int, op: str, reverse: bool, scope: str
) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            if scope == "shared":
                x = T.alloc_shared((rows, columns), "float32")
            else:
                x = T.alloc_fragment((rows, columns), "float32")
            T.copy(A, x)
            if op == "sum":
                T.cumsum(x, dim=axis, reverse=reverse)
            else:
                T.cummax(x, dim=axis, reverse=reverse)
            T.copy(x, B)

    a, b = integers(1, rows, columns), np.zeros((rows, columns), np.float32)
    run(kernel, a, b)
    scan = (np.add if op == "sum" else np.maximum).accumulate
    wanted = np.flip(scan(np.flip(a, axis), axis), axis) if reverse else scan(a, axis)
    assert np.array_equal(b, wanted)


# ---------------------------------------------------------------------------- atomic operations


def test_tiles_are_added_and_compared_atomically() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((64, 32), "float32"),
        B: T.Tensor((16, 32), "float32"),
        C: T.Tensor((16, 32), "float16"),
    ):
        with T.Kernel(4, threads=64) as bx:
            x = T.alloc_fragment((16, 32), "float32")
            T.copy(A[bx * 16, 0], x)
            T.atomic_add(B, x)
            T.atomic_max(C, x)

    a = integers(1, 64, 32)
    b, c = np.zeros((16, 32), np.float32), np.zeros((16, 32), np.float16)
    run(kernel, a, b, c)
    blocks = a.reshape(4, 16, 32)
    assert np.array_equal(b, blocks.sum(0))
    assert np.array_equal(c, np.maximum(blocks.max(0), 0).astype(np.float16))


def test_elements_beyond_the_end_are_not_added() -> None:
    @T.prim_func
    def kernel(B: T.Tensor((20, 30), "float32")):
        with T.Kernel(2, 2, threads=64) as (bx, by):
            x = T.alloc_fragment((16, 16), "float32")
            T.fill(x, 1.0)
            T.atomic_add(B[by * 16, bx * 16], x)

    b = np.zeros((20, 30), np.float32)
    run(kernel, b)
    assert (b == 1).all()


def test_each_point_of_a_loop_acts_once() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((48,), "float32"), B: T.Tensor((4,), "float32"), C: T.Tensor((4,), "float16")
    ):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(48):
                T.atomic_add(B[i % 4], A[i])
            for i in T.Parallel(48):
                T.atomic_max(C[i % 4], T.cast(A[i], "float16"))

    a, b, c = integers(1, 48), np.zeros(4, np.float32), np.full(4, -100, np.float16)
    run(kernel, a, b, c)
    assert np.array_equal(b, a.reshape(12, 4).sum(0))
    assert np.array_equal(c, a.reshape(12, 4).max(0).astype(np.float16))
