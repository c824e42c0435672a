"""Accesses of memory in tile programs: guards where they may leave, vectors where they may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tile_running import builds, integers, lowered, run

from tilewright import tile as T


def _copied(rows: int, columns: int, tile: int, dtype: str = "float32") -> Any:
    @T.prim_func
    def copied(A: T.Tensor((rows, columns), dtype), B: T.Tensor((rows, columns), dtype)):
        with T.Kernel(T.ceildiv(columns, tile), T.ceildiv(rows, tile), threads=128) as (bx, by):
            s = T.alloc_shared((tile, tile), dtype)
            T.copy(A[by * tile, bx * tile], s)
            for i, j in T.Parallel(tile, tile):
                B[by * tile + i, bx * tile + j] = s[i, j]

    return copied


def test_full_tiles_have_no_guards_and_move_vectors() -> None:
    text = lowered(_copied(128, 128, 64))
    assert "if " not in text and 'A.view("float32x4")' in text and 'B.view("float32x4")' in text


def test_ragged_edges_are_guarded_once_for_each_vector() -> None:
    kernel = _copied(100, 72, 32)
    text = lowered(kernel)
    assert 'A.view("float32x4")' in text and "< 100" in text and "< 72" in text
    a, b = integers(1, 100, 72), np.zeros((100, 72), np.float32)
    run(kernel, a, b)
    assert np.array_equal(a, b)
    builds(kernel, "sm_80", "sm_90a")


def test_rows_that_begin_between_vectors_move_element_by_element() -> None:
    kernel = _copied(33, 71, 32)
    assert "float32x" not in lowered(kernel).split("copied", 1)[1]
    a, b = integers(1, 33, 71), np.zeros((33, 71), np.float32)
    run(kernel, a, b)
    assert np.array_equal(a, b)


def test_halves_move_eight_at_a_time() -> None:
    kernel = _copied(64, 64, 64, "float16")
    assert 'A.view("float16x8")' in lowered(kernel)
    a, b = integers(1, 64, 64, dtype=np.float16), np.zeros((64, 64), np.float16)
    run(kernel, a, b)
    assert np.array_equal(a, b)


def test_swizzled_buffers_are_read_in_vectors() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(a, B)
            T.clear(c)
            T.gemm(a, a, c)
            T.copy(c, C)

    text = lowered(kernel)
    assert "ComposeLayout" in text and 'a.view("float16x8")' in text
    a = integers(1, 64, 64, dtype=np.float16) / 4
    b, c = np.zeros_like(a), np.zeros((64, 64), np.float32)
    run(kernel, a, b, c)
    assert np.array_equal(a, b)


def test_extents_that_are_known_at_launch() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def blocks(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 256), threads=128) as bx:
            for i in T.Parallel(256):
                B[bx * 256 + i] = A[bx * 256 + i] + 1.0

    @T.prim_func
    def whole(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=96):
            for i in T.Parallel(n):
                B[i] = A[i] + 1.0

    for kernel in (blocks, whole):
        for count in (1, 256, 1000):
            a, b = integers(1, count), np.zeros(count, np.float32)
            run(kernel, a, b)
            assert np.array_equal(b, a + 1)


def test_what_lies_outside_is_zero_or_what_the_program_says() -> None:
    @T.prim_func
    def neighbours(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(64):
                B[i] = A[i - 1] + A[i + 1]

    a, b = integers(1, 64), np.zeros(64, np.float32)
    run(neighbours, a, b)
    padded = np.pad(a, 1)
    assert np.array_equal(b, padded[:-2] + padded[2:])

    @T.prim_func
    def safe(A: T.Tensor((100,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=64):
            T.annotate_safe_value({A: -7.0})
            s = T.alloc_shared((128,), "float32")
            T.copy(A[0], s)
            T.copy(s, B)

    a, b = integers(1, 100), np.zeros(128, np.float32)
    run(safe, a, b)
    assert np.array_equal(b, np.pad(a, (0, 28), constant_values=-7))


def test_a_condition_of_the_program_is_the_guard() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((100,), "float32"), B: T.Tensor((100,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(128):
                if i < 100:
                    B[i] = A[i]

    text = lowered(kernel)
    assert text.count("< 100") == 1 and "T.select" not in text
    a, b = integers(1, 100), np.zeros(100, np.float32)
    run(kernel, a, b)
    assert np.array_equal(a, b)


def test_a_vectorized_loop_of_the_program() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((512,), "float32"), B: T.Tensor((512,), "float32")):
        with T.Kernel(1, threads=32):
            thread = T.get_thread_binding()
            s = T.alloc_shared((512,), "float32")
            T.copy(A, s)
            own = T.alloc_local((16,), "float32")
            for v in T.vectorized(16):
                own[v] = s[thread * 16 + v] + 1.0
            for v in T.serial(16):
                B[thread * 16 + v] = own[v]

    assert 's.view("float32x4")[thread * 4 + v_part]' in lowered(kernel)
    a, b = integers(1, 512), np.zeros(512, np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, a + 1)


@pytest.mark.parametrize("distance", [1, 4])
def test_turns_that_depend_on_one_another_stay_in_order(distance: int) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=1):
            for v in T.vectorized(32):
                A[v + distance] = A[v] + 1.0

    a = integers(1, 64)
    wanted = a.copy()
    for v in range(32):
        wanted[v + distance] = wanted[v] + 1
    run(kernel, a)
    assert np.array_equal(a, wanted)


def test_transposed_tiles() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 32), "float32"), B: T.Tensor((32, 64), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64, 32), "float32")
            T.copy(A, s)
            for i, j in T.Parallel(32, 64):
                B[i, j] = s[j, i]

    a, b = integers(1, 64, 32), np.zeros((32, 64), np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, a.T)


# ---------------------------------------------------------------------------- threads by themselves


def test_what_threads_access_by_themselves_is_guarded_too() -> None:
    """A kernel without a statement about tiles is one of the dialect all the same."""

    @T.prim_func
    def kernel(A: T.Tensor((100,), "float32"), C: T.Tensor((100,), "float32")):
        with T.Kernel(4, threads=32) as block:
            at = block * 32 + T.get_thread_binding()
            C[at] = A[at] + A[at + 1]

    a, c = integers(8, 100), np.zeros(100, np.float32)
    run(kernel, a, c)
    np.testing.assert_array_equal(c, a + np.append(a[1:], 0))
    builds(kernel, "sm_80")


def test_vectors_of_a_thread_by_itself_are_vectors() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((32, 4), "float32"), C: T.Tensor((32, 4), "float32")):
        with T.Kernel(1, threads=32):
            row = T.get_thread_binding()
            for j in T.vectorized(4):
                C[row, j] = A[row, j]

    assert 'A.view("float32x4")' in lowered(kernel)
    a, c = integers(9, 32, 4), np.zeros((32, 4), np.float32)
    run(kernel, a, c)
    np.testing.assert_array_equal(c, a)


def test_threads_by_themselves_meet_where_one_reads_what_another_wrote() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            held = T.alloc_shared((64,), "float32")
            own = T.get_thread_binding()
            held[own] = A[own]
            C[own] = held[63 - own]

    a, c = integers(10, 64), np.zeros(64, np.float32)
    run(kernel, a, c)
    np.testing.assert_array_equal(c, a[::-1])
