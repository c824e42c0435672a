"""T.Parallel and copies: any width and number of threads, any index that leads to one thread."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tile_running import TARGETS, builds, integers, lowered, run

import tilewright
from tilewright import tile as T
from tilewright.base.errors import FrontendError
from tilewright.layout import S, TileLayout, tx
from tilewright.layout.fragment import Fragment

WIDTHS = (1, 48, 96, 100, 127, 192, 229, 257)
THREADS = (32, 48, 96, 128, 384)


def _scaled(count: int, threads: int) -> Any:
    @T.prim_func
    def scaled(A: T.Tensor((count,), "float32"), B: T.Tensor((count,), "float32")):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((count,), "float32")
            T.copy(A, x)
            for i in T.Parallel(count):
                x[i] = x[i] * 2.0 + 1.0
            T.copy(x, B)

    return scaled


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("count", WIDTHS)
def test_any_width_is_divided_among_any_number_of_threads(count: int, threads: int) -> None:
    a, b = integers(1, count), np.zeros(count, np.float32)
    run(_scaled(count, threads), a, b)
    assert np.array_equal(b, a * 2 + 1)


@pytest.mark.parametrize("arch", TARGETS)
def test_every_target_divides_alike(arch: str) -> None:
    a, b = integers(1, 1000), np.zeros(1000, np.float32)
    run(_scaled(1000, 128), a, b, arch=arch)
    assert np.array_equal(b, a * 2 + 1)


def test_cubins() -> None:
    builds(_scaled(229, 96), "sm_80", "sm_100a")


def test_rows_are_scaled_by_a_vector() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((32, 48), "float32"),
        S: T.Tensor((32,), "float32"),
        B: T.Tensor((32, 48), "float32"),
    ):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((32, 48), "float32")
            s = T.alloc_fragment((32,), "float32")
            T.copy(A, x)
            T.copy(S, s)
            for i, j in T.Parallel(32, 48):
                x[i, j] = x[i, j] * s[i]
            T.copy(x, B)

    a, s, b = integers(1, 32, 48), integers(2, 32), np.zeros((32, 48), np.float32)
    run(kernel, a, s, b)
    assert np.array_equal(b, a * s[:, None])


def test_a_row_that_few_threads_hold_is_written_by_all_that_do() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8, 64), "float32"), B: T.Tensor((8, 64), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((8, 64), "float32")
            s = T.alloc_fragment((8,), "float32")
            T.copy(A, x)
            T.reduce_max(x, s, dim=1)
            for i, j in T.Parallel(8, 64):
                B[i, j] = s[i]

    a, b = integers(1, 8, 64), np.zeros((8, 64), np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, np.broadcast_to(a.max(1, keepdims=True), a.shape))


def test_elements_are_repeated_by_a_divided_index() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8, 32), "float32"), B: T.Tensor((8, 64), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((8, 32), "float32")
            T.copy(A, x)
            for i, j in T.Parallel(8, 64):
                B[i, j] = x[i, j // 2]

    a, b = integers(1, 8, 32), np.zeros((8, 64), np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, np.repeat(a, 2, axis=1))


def test_a_fragment_is_reversed() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((100,), "float32"), B: T.Tensor((100,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((100,), "float32")
            y = T.alloc_fragment((100,), "float32")
            T.copy(A, x)
            for i in T.Parallel(100):
                y[i] = x[99 - i] + 1.0
            T.copy(y, B)

    a, b = integers(1, 100), np.zeros(100, np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, a[::-1] + 1)


def test_a_loop_over_a_part_leaves_the_rest() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((64,), "float32")
            T.copy(A, x)
            for i in T.Parallel(20):
                x[i + 30] = x[i + 30] * 3.0
            T.copy(x, B)

    a, b = integers(1, 64), np.zeros(64, np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, np.where((np.arange(64) >= 30) & (np.arange(64) < 50), a * 3, a))


def test_slices_of_one_fragment_meet_in_another() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((64,), "float32")
            y = T.alloc_fragment((32,), "float32")
            T.copy(A, x)
            T.copy(x[16:48], y)
            for i in T.Parallel(32):
                y[i] = y[i] + x[i + 32]
            T.copy(y, B)

    a, b = integers(1, 64), np.zeros(32, np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, a[16:48] + a[32:])


@pytest.mark.parametrize("scope", ["shared", "fragment"])
def test_a_serial_loop_adds_columns_up(scope: str) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((48, 33), "float32"), B: T.Tensor((48,), "float32")):
        with T.Kernel(1, threads=128):
            if scope == "shared":
                x = T.alloc_shared((48, 33), "float32")
            else:
                x = T.alloc_fragment((48, 33), "float32")
            total = T.alloc_fragment((48,), "float32")
            T.copy(A, x)
            T.clear(total)
            for k in T.serial(33):
                for i in T.Parallel(48):
                    total[i] += x[i, k]
            T.copy(total, B)

    a, b = integers(1, 48, 33), np.zeros(48, np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, a.sum(1))


def test_conditions_and_cells_of_each_point() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((100,), "float32"), B: T.Tensor((100,), "float32")):
        with T.Kernel(1, threads=96):
            x = T.alloc_fragment((100,), "float32")
            T.copy(A, x)
            for i in T.Parallel(100):
                v = T.alloc_var("float32")
                v = x[i]
                if v > 0:
                    v = v * 2.0
                elif v < -10:
                    v = -v
                B[i] = T.if_then_else(i < 50, v, 0.0)

    a, b = integers(1, 100), np.ones(100, np.float32)
    wanted = np.where(a > 0, 2 * a, np.where(a < -10, -a, a))
    run(kernel, a, b)
    assert np.array_equal(b, np.where(np.arange(100) < 50, wanted, 0))


def test_local_arrays_of_each_point() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 4), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                t = T.alloc_local((4,), "float32")
                for k in T.serial(4):
                    t[k] = A[i, k] * 2.0
                B[i] = t[0] + t[1] + t[2] + t[3]

    a, b = integers(1, 64, 4), np.zeros(64, np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, 2 * a.sum(1))


def test_all_threads_hold_what_conditions_and_fixed_indices_read() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((100,), "float32"), F: T.Tensor((4,), "int32"), B: T.Tensor((100,), "float32")
    ):
        with T.Kernel(1, threads=96):
            x = T.alloc_fragment((100,), "float32")
            flags = T.alloc_fragment((4,), "int32")
            T.copy(A, x)
            T.copy(F, flags)
            if flags[1] > 0:
                for i in T.Parallel(100):
                    x[i] = x[i] + 1.0
            for i in T.Parallel(100):
                B[i] = x[i] * T.cast(flags[2], "float32")

    a, b = integers(1, 100), np.zeros(100, np.float32)
    run(kernel, a, np.array([0, 1, 7, 0], np.int32), b)
    assert np.array_equal(b, (a + 1) * 7)


def test_axes_are_permuted_flattened_and_split() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((4, 6, 10), "float32"),
        B: T.Tensor((10, 4, 6), "float32"),
        C: T.Tensor((240,), "float32"),
    ):
        with T.Kernel(1, threads=96):
            x = T.alloc_fragment((4, 6, 10), "float32")
            y = T.alloc_fragment((10, 4, 6), "float32")
            T.copy(A, x)
            for i, j, k in T.Parallel(4, 6, 10):
                y[k, i, j] = x[i, j, k] * 2.0
            for n in T.Parallel(240):
                C[n] = x[n // 60, n // 10 % 6, n % 10]
            T.copy(y, B)

    a, b, c = integers(1, 4, 6, 10), np.zeros((10, 4, 6), np.float32), np.zeros(240, np.float32)
    run(kernel, a, b, c)
    assert np.array_equal(b, 2 * a.transpose(2, 0, 1)) and np.array_equal(c, a.ravel())


def test_rows_are_gathered_by_a_fragment_of_numbers() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((64, 8), "float32"),
        N: T.Tensor((16,), "int32"),
        B: T.Tensor((16, 8), "float32"),
    ):
        with T.Kernel(1, threads=64):
            rows = T.alloc_fragment((16,), "int32")
            T.copy(N, rows)
            for i, j in T.Parallel(16, 8):
                B[i, j] = A[rows[i], j]

    a, b = integers(1, 64, 8), np.zeros((16, 8), np.float32)
    rows = np.random.default_rng(2).integers(0, 64, 16).astype(np.int32)
    run(kernel, a, rows, b)
    assert np.array_equal(b, a[rows])


def test_views_of_fragments_are_indexed_as_the_fragment_is() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8, 16), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((8, 16), "float32")
            T.copy(A, x)
            y = T.reshape(x, (128,))
            for k in T.Parallel(128):
                B[k] = y[k]

    a, b = integers(1, 8, 16), np.zeros(128, np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, a.ravel())


def test_memory_is_updated_in_place_once() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((48,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(48):
                A[i] = A[i] + 1.0

    a = integers(1, 48)
    wanted = a + 1
    run(kernel, a)
    assert np.array_equal(a, wanted)


def test_some_threads_have_a_fragment_of_their_own() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            if T.get_thread_binding() >= 64:
                x = T.alloc_fragment((64,), "float32")
                s = T.alloc_fragment((1,), "float32")
                T.copy(A, x)
                T.reduce_sum(x, s)
                for i in T.Parallel(64):
                    B[i] = x[i] + s[0]

    a, b = integers(1, 64), np.zeros(64, np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, a + a.sum())


def test_copies_convert() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((64, 64), "bfloat16"),
        B: T.Tensor((64, 64), "float32"),
        C: T.Tensor((64, 64), "float16"),
    ):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64, 64), "bfloat16")
            x = T.alloc_fragment((64, 64), "float32")
            T.copy(A, s)
            T.copy(s, x)
            T.copy(x, B)
            T.copy(x, C)

    a = integers(1, 64, 64, dtype=ml_dtypes.bfloat16)
    b, c = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float16)
    run(kernel, a, b, c)
    assert np.array_equal(b, a.astype(np.float32)) and np.array_equal(c, a.astype(np.float16))


def test_a_tile_of_one_element_is_copied_by_one_thread() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 32), "float32"), B: T.Tensor((1, 1), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((1, 1), "float32")
            T.copy(A[3, 4], s)
            T.copy(s, B)

    a, b = integers(1, 64, 32), np.zeros((1, 1), np.float32)
    run(kernel, a, b)
    assert b[0, 0] == a[3, 4]


def test_a_program_divides_a_loop_itself() -> None:
    layout = Fragment((4, 64), TileLayout(S[(4, 32, 2) : (2, 1 @ tx, 1)]))

    @T.prim_func
    def kernel(A: T.Tensor((4, 64), "float32"), B: T.Tensor((4, 64), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((4, 64), "float32")
            for i, j in T.Parallel(4, 64, loop_layout=layout):
                x[i, j] = A[i, j]
            T.copy(x, B)

    a, b = integers(1, 4, 64), np.zeros((4, 64), np.float32)
    run(kernel, a, b)
    assert np.array_equal(a, b)
    assert "float32x2" in lowered(kernel)


def test_the_width_of_a_loop_is_bounded() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(1024, coalesced_width=2):
                B[i] = A[i]

    assert "float32x2" in lowered(kernel) and "float32x4" not in lowered(kernel)


def test_what_all_keep_and_memory_that_changes_do_not_mix() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((48,), "float32"), B: T.Tensor((48,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((48,), "float32")
            for i in T.Parallel(48):
                x[i] = A[i]
                A[i] = 0.0
            if x[0] > 0:
                T.copy(x, B)

    with pytest.raises(FrontendError) as raised:
        lowered(kernel)
    assert raised.value.code == "not-supported"
    assert "x[i] = A[i]" in str(raised.value)


@pytest.mark.parametrize("few", (1, 48, 63))
def test_a_loop_with_more_points_than_a_fragment_has_elements(few: int) -> None:
    @T.prim_func
    def beyond(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((few,), "float32")
            for i in T.Parallel(64):
                x[i] = A[i]

    with pytest.raises(FrontendError, match=r"elements that x does not have") as caught:
        run(beyond, integers(1, 64))
    assert caught.value.code == "bad-index"
    assert f"below {few}" in (caught.value.expected or "")


@pytest.mark.parametrize(("few", "threads"), ((48, 128), (1, 32), (40, 96)))
def test_what_a_guard_leaves_out_leaves_the_rest_of_the_loop(few: int, threads: int) -> None:
    """Two fragments of different widths in one loop: each point does what its guards let it."""

    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((2, 64), "float32")):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((few,), "float32")
            y = T.alloc_fragment((64,), "float32")
            T.copy(A, y)
            for i in T.Parallel(64):
                if i < few:
                    x[i] = A[i] * 2.0
                y[i] = y[i] + 1.0
            for i in T.Parallel(64):
                B[0, i] = T.if_then_else(i < few, x[i], -1.0)
            T.copy(y, B[1, :])

    a, b = integers(1, 64), np.zeros((2, 64), np.float32)
    run(kernel, a, b)
    assert np.array_equal(b[1], a + 1)
    assert np.array_equal(b[0], np.where(np.arange(64) < few, a * 2, -1))


def test_a_guard_of_the_whole_loop_may_leave_out_points() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((48,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((48,), "float32")
            for i in T.Parallel(64):
                if i < 48:
                    x[i] = A[i] * 2.0
            T.copy(x, B)

    a, b = integers(1, 64), np.zeros(48, np.float32)
    run(kernel, a, b)
    assert np.array_equal(b, a[:48] * 2)


def test_every_thread_copies_and_clears_registers_of_its_own() -> None:
    threads, width = 64, 4

    @T.prim_func
    def own(A: T.Tensor((threads, width), "float32"), B: T.Tensor((threads, width), "float32")):
        with T.Kernel(1, threads=threads):
            thread = T.get_thread_binding()
            total = T.alloc_local((width,), "float32")
            part = T.alloc_local((width,), "float32")
            T.clear(total)
            T.copy(A[thread, 0:width], part)
            for _ in T.serial(3):
                for i in T.serial(width):
                    total[i] += part[i]
            T.fill(part, 1)
            for i in T.serial(width):
                total[i] += part[i]
            T.copy(total, B[thread, 0:width])

    a, b = np.random.rand(threads, width).astype(np.float32), np.zeros((threads, width), np.float32)
    tilewright.compile(own, "sm_80", check=True)(a, b)
    np.testing.assert_allclose(b, 3 * a + 1, rtol=1e-6)
