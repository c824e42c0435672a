"""Layouts, products and reductions: what users of the dialect report of other compilers.

Numbers are those of reports in the issue tracker of `tile-ai/tilelang`. Every kernel runs under the
checker as well, which must find nothing.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tile_running import TARGETS, builds, integers, run

from tilewright import tile as T

F = np.float32
BF16 = ml_dtypes.bfloat16


def _everywhere(kernel: Any, *arguments: np.ndarray, expected: np.ndarray) -> None:
    """Run a kernel that writes its last argument, on each target."""
    for arch in TARGETS:
        inputs = [array.copy() for array in arguments]
        run(kernel, *inputs, arch=arch)
        np.testing.assert_array_equal(inputs[-1], expected)


# ---------------------------------------------------------------------------- products


def _product(
    m: int, n: int, k: int, *, threads: int, policy: Any = "square", whole: int = 0
) -> Any:
    @T.prim_func
    def product(
        A: T.Tensor((m, whole or k), "float16"),
        B: T.Tensor((whole or k, n), "float16"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((m, k), "float16")
            b = T.alloc_shared((k, n), "float16")
            c = T.alloc_fragment((m, n), "float32")
            T.clear(c)
            for turn in T.Pipelined(T.ceildiv(whole or k, k), num_stages=2):
                T.copy(A[0, turn * k], a)
                T.copy(B[turn * k, 0], b)
                T.gemm(a, b, c, policy=policy)
            T.copy(c, C)

    return product


def _multiplied(kernel: Any, m: int, n: int, k: int) -> None:
    a, b = integers(1, m, k, dtype=np.float16), integers(2, k, n, dtype=np.float16)
    expected = a.astype(F) @ b.astype(F)
    _everywhere(kernel, a, b, np.zeros((m, n), F), expected=expected)


@pytest.mark.parametrize("threads", [128, 256, 512])
def test_2522_rows_of_256_divided_among_all_warps(threads: int) -> None:
    policy = T.GemmWarpPolicy.FullRow
    _multiplied(_product(256, 32, 32, threads=threads, policy=policy), 256, 32, 32)


@pytest.mark.parametrize(("k", "whole"), [(48, 96), (16, 80), (80, 160), (32, 72)])
def test_2381_steps_of_k_that_are_no_power_of_two_or_do_not_divide(k: int, whole: int) -> None:
    _multiplied(_product(64, 64, k, threads=128, whole=whole), 64, 64, whole)


def test_2547_two_products_into_one_fragment() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        P: T.Tensor((64, 32), "float16"),
        Q: T.Tensor((64, 32), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            p, q = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(P, p)
            T.copy(Q, q)
            T.clear(c)
            T.gemm(a, b, c, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
            T.gemm(p, q, c, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
            T.copy(c, C)

    a, b = integers(3, 64, 64, dtype=np.float16), integers(4, 64, 64, dtype=np.float16)
    p, q = integers(5, 64, 32, dtype=np.float16), integers(6, 64, 32, dtype=np.float16)
    expected = a.astype(F) @ b.astype(F).T + p.astype(F) @ q.astype(F).T
    _everywhere(kernel, a, b, p, q, np.zeros((64, 64), F), expected=expected)


@pytest.mark.parametrize("pad", [1, 3, 8])
def test_2642_operands_that_the_program_lays_out_in_its_own_way(pad: int) -> None:
    """Rows that are padded by an odd number lie at addresses that no matrix can be read from."""

    @T.prim_func
    def kernel(
        A: T.Tensor((64, 32), "float16"),
        B: T.Tensor((32, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.annotate_layout({a: T.Layout((64, 32), lambda i, j: i * (32 + pad) + j)})
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    a, b = integers(7, 64, 32, dtype=np.float16), integers(8, 32, 64, dtype=np.float16)
    expected = a.astype(F) @ b.astype(F)
    _everywhere(kernel, a, b, np.zeros((64, 64), F), expected=expected)


@pytest.mark.parametrize("columns", [16, 32, 128])
def test_2877_accumulators_of_64_rows_in_tensor_memory(columns: int) -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((64, 128), "bfloat16"),
        B: T.Tensor((columns, 128), "bfloat16"),
        C: T.Tensor((64, columns), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "bfloat16")
            b = T.alloc_shared((columns, 64), "bfloat16")
            cells = T.alloc_tmem([64, columns], "float32")
            done = T.alloc_barrier(1)
            held = T.alloc_fragment((64, columns), "float32")
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, cells, transpose_B=True, clear_accum=(k == 0), mbar=done)
            T.copy(cells, held)
            T.copy(held, C)

    a, b = integers(9, 64, 128, dtype=BF16), integers(10, columns, 128, dtype=BF16)
    c = np.zeros((64, columns), F)
    run(kernel, a, b, c, arch="sm_100a")
    np.testing.assert_array_equal(c, a.astype(F) @ b.astype(F).T)


# ---------------------------------------------------------------------------- any widths


@pytest.mark.parametrize("width", [3, 48, 96, 100, 120, 127, 192, 229, 257])
def test_2398_sums_of_any_width(width: int) -> None:
    """Also 2399 and 2394: widths that neither divide the threads nor are divided by them."""

    @T.prim_func
    def kernel(A: T.Tensor((4, width), "float32"), C: T.Tensor((4, width), "float32")):
        with T.Kernel(4, threads=128) as block:
            held = T.alloc_fragment((width,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(A[block, 0], held)
            for i in T.Parallel(width):
                held[i] = held[i] * 2 + i
            T.reduce_sum(held, total, dim=0)
            for i in T.Parallel(width):
                C[block, i] = held[i] - total[0]

    a = integers(11, 4, width)
    held = 2 * a + np.arange(width, dtype=F)
    _everywhere(kernel, a, np.zeros_like(a), expected=held - held.sum(1, keepdims=True))


@pytest.mark.parametrize(("rows", "width"), [(12, 40), (33, 17), (100, 6)])
def test_2883_planes_of_any_extents(rows: int, width: int) -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((rows, width), "float32"),
        S: T.Tensor((rows,), "float32"),
        C: T.Tensor((width, rows), "float32"),
    ):
        with T.Kernel(1, threads=128):
            held = T.alloc_fragment((rows, width), "float32")
            most = T.alloc_fragment((rows,), "float32")
            scale = T.alloc_shared((rows,), "float32")
            T.copy(A, held)
            T.copy(S, scale)
            T.reduce_max(held, most, dim=1)
            for i, j in T.Parallel(rows, width):
                held[i, j] = (held[i, j] - most[i]) * scale[i]
            for i, j in T.Parallel(rows, width):
                C[j, i] = held[i, j]

    a, s = integers(12, rows, width), integers(13, rows)
    expected = ((a - a.max(1, keepdims=True)) * s[:, None]).T
    _everywhere(kernel, a, s, np.zeros((width, rows), F), expected=expected)


def test_1374_what_all_threads_hold_meets_what_they_divide() -> None:
    """A vector of rows is read along both axes, so threads hold it in two ways."""

    @T.prim_func
    def kernel(
        A: T.Tensor((32, 32), "float32"),
        V: T.Tensor((32,), "float32"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=64):
            held = T.alloc_fragment((32, 32), "float32")
            vector = T.alloc_fragment((32,), "float32")
            sums = T.alloc_fragment((32,), "float32")
            T.copy(A, held)
            T.copy(V, vector)
            for i, j in T.Parallel(32, 32):
                held[i, j] += vector[i] * vector[j]
            T.reduce_sum(held, sums, dim=0)
            for i in T.Parallel(32):
                vector[i] = vector[i] + sums[i]
            for i, j in T.Parallel(32, 32):
                held[i, j] -= vector[j]
            T.copy(held, C)

    a, v = integers(14, 32, 32), integers(15, 32)
    held = a + np.outer(v, v)
    _everywhere(kernel, a, v, np.zeros((32, 32), F), expected=held - (v + held.sum(0)))


def test_1374_a_program_lets_all_threads_hold_a_vector() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8, 32), "float32"), V: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=64):
            vector = T.alloc_fragment((32,), "float32")
            T.annotate_layout({vector: T.make_fully_replicated_layout_fragment(vector, 64)})
            T.copy(V, vector)
            total = T.alloc_var("float32", init=0)
            for i in T.serial(32):
                total += vector[i]
            for i, j in T.Parallel(8, 32):
                A[i, j] = vector[j] * total

    v = integers(24, 32)
    for arch in TARGETS:
        a = np.zeros((8, 32), F)
        run(kernel, a, v, arch=arch)
        np.testing.assert_array_equal(a, np.tile(v * v.sum(), (8, 1)))


@pytest.mark.parametrize(
    ("wide", "narrow"), [("uint32", "uint16"), ("int32", "int8"), ("float32", "float16")]
)
def test_3040_a_fragment_seen_as_elements_of_another_width(wide: str, narrow: str) -> None:
    count = 128
    many = count * np.dtype(wide).itemsize // np.dtype(narrow).itemsize

    @T.prim_func
    def kernel(A: T.Tensor((count,), wide), C: T.Tensor((many,), narrow)):
        with T.Kernel(1, threads=64):
            held = T.alloc_fragment((count,), wide)
            T.copy(A, held)
            parts = T.view(held, (many,), narrow)
            for i in T.Parallel(many):
                C[i] = parts[i]

    a = np.random.default_rng(16).integers(0, 2**30, count).astype(np.uint32).view(wide)
    if wide == "float32":
        a = integers(16, count)
    inputs = a.view(narrow)
    for arch in TARGETS:
        c = np.zeros(many, narrow)
        run(kernel, a.copy(), c, arch=arch)
        np.testing.assert_array_equal(c.view(np.uint8), inputs.view(np.uint8))


@pytest.mark.parametrize(
    ("narrow", "wide"), [("uint8", "uint32"), ("float16", "uint32"), ("float32", "int32")]
)
def test_3040_elements_are_read_and_written_as_wider_ones(narrow: str, wide: str) -> None:
    ratio = np.dtype(wide).itemsize // np.dtype(narrow).itemsize

    @T.prim_func
    def kernel(
        A: T.Tensor((256,), narrow), C: T.Tensor((256 // ratio,), wide), D: T.Tensor((256,), narrow)
    ):
        with T.Kernel(1, threads=32):
            held = T.alloc_fragment((256,), narrow)
            other = T.alloc_fragment((256,), narrow)
            T.copy(A, held)
            words = T.view(held, dtype=wide)
            T.copy(words, C)
            flipped = T.view(other, dtype=wide)
            for i in T.Parallel(256 // ratio):
                flipped[i] = words[i] ^ 1
            T.copy(other, D)

    a = integers(23, 256, dtype=narrow)
    for arch in TARGETS:
        c, d = np.zeros(256 // ratio, wide), np.zeros(256, narrow)
        run(kernel, a, c, d, arch=arch)
        np.testing.assert_array_equal(c, a.view(wide))
        np.testing.assert_array_equal(d.view(wide), a.view(wide) ^ 1)


def test_3040_elements_of_views_outside_of_parallel_loops() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, 2), "uint32"), C: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            held = T.alloc_fragment((2, 2), "uint32")
            T.copy(A, held)
            row = T.view(held, (4,), "float32")
            if T.get_thread_binding() == 0 and row[3] > 0:
                for i in T.serial(4):
                    C[i] = row[i]

    a = np.array([[1, -2], [0.5, 7]], F)
    _everywhere(kernel, a.view(np.uint32), np.zeros(4, F), expected=a.ravel())


@pytest.mark.parametrize("view", [(64, 4, 16), (8, 8, 64), (64, 1, 64), (4096,)])
def test_3040_axes_that_are_split_and_joined(view: tuple[int, ...]) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            held = T.alloc_fragment((64, 64), "float32")
            total = T.alloc_fragment((64,), "float32")
            T.copy(A, held)
            other = T.reshape(held, view)
            if len(view) == 3:
                for i, j, k in T.Parallel(*view):
                    other[i, j, k] = other[i, j, k] * 2 + k
            else:
                for i in T.Parallel(*view):
                    other[i] = other[i] * 2 + i
            T.reduce_sum(held, total, dim=1)
            T.copy(total, C)

    a = integers(25, 64, 64)
    held = a.reshape(view) * 2 + np.arange(view[-1], dtype=F)
    _everywhere(kernel, a, np.zeros(64, F), expected=held.reshape(64, 64).sum(1))


# ---------------------------------------------------------------------------- reductions, functions


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_2524_reductions_of_several_rows_at_once(batch: int, op: str) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((16, 128), "float32"), C: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_fragment((16, 128), "float32")
            total = T.alloc_fragment((16,), "float32")
            T.copy(A, held)
            if op == "sum":
                T.reduce_sum(held, total, dim=1, batch=batch)
            else:
                T.reduce_max(held, total, dim=1, batch=batch)
            T.copy(total, C)

    a = integers(17, 16, 128)
    _everywhere(kernel, a, np.zeros(16, F), expected=getattr(np, op)(a, axis=1))


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "tanh"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_2383_functions_of_16_bits(name: str, dtype: str) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((256,), dtype), C: T.Tensor((256,), dtype)):
        with T.Kernel(1, threads=128):
            held = T.alloc_fragment((256,), dtype)
            T.copy(A, held)
            for i in T.Parallel(256):
                held[i] = getattr(T, name)(held[i])
            T.copy(held, C)

    numpy_type = BF16 if dtype == "bfloat16" else np.float16
    a = np.random.default_rng(18).uniform(0.01, 4, 256).astype(numpy_type)
    exact = getattr(np, name)(a.astype(np.float64)).astype(numpy_type).astype(F)
    for arch in TARGETS:
        c = np.zeros(256, numpy_type)
        run(kernel, a, c, arch=arch)
        # A float32 result within two units of its last place is rounded once more.
        np.testing.assert_allclose(
            c.astype(F), exact, rtol=2.0**-7 if dtype == "bfloat16" else 2.0**-10
        )


@pytest.mark.parametrize("axis", [0, 1])
def test_2393_a_serial_loop_reduces_a_fragment(axis: int) -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((32, 16), "float32"), C: T.Tensor((16 if axis == 0 else 32,), "float32")
    ):
        with T.Kernel(1, threads=64):
            held = T.alloc_fragment((32, 16), "float32")
            total = T.alloc_fragment((16 if axis == 0 else 32,), "float32")
            T.copy(A, held)
            T.clear(total)
            if axis == 0:
                for i in range(32):
                    for j in T.Parallel(16):
                        total[j] += held[i, j]
            else:
                for j in range(16):
                    for i in T.Parallel(32):
                        total[i] += held[i, j]
            T.copy(total, C)

    a = integers(19, 32, 16)
    _everywhere(kernel, a, np.zeros(16 if axis == 0 else 32, F), expected=a.sum(axis))


# ---------------------------------------------------------------------------- edges


@pytest.mark.parametrize("scope", ["shared", "fragment"])
def test_2543_whole_tiles_take_the_value_that_is_safe(scope: str) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((3, 50), "float32"), C: T.Tensor((4, 64), "float32")):
        with T.Kernel(1, threads=128):
            held = (
                T.alloc_shared((4, 64), "float32")
                if scope == "shared"
                else T.alloc_fragment((4, 64), "float32")
            )
            T.annotate_safe_value({A: -1.5})
            T.copy(A[0:4, 0:64], held)
            T.copy(held, C)

    a = integers(20, 3, 50)
    expected = np.full((4, 64), -1.5, F)
    expected[:3, :50] = a
    _everywhere(kernel, a, np.zeros((4, 64), F), expected=expected)


@pytest.mark.parametrize("sizes", [(64, 64, 64), (70, 50, 40), (1, 129, 33)])
def test_1069_sizes_that_a_launch_tells(sizes: tuple[int, int, int]) -> None:
    m, n, k = (T.dynamic(name) for name in "mnk")

    @T.prim_func
    def product(
        A: T.Tensor((m, k), "float16"),
        B: T.Tensor((k, n), "float16"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=64) as (x, y):
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for turn in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[y * 32, turn * 32], a)
                T.copy(B[turn * 32, x * 32], b)
                T.gemm(a, b, c)
            T.copy(c, C[y * 32, x * 32])

    M, N, K = sizes
    a, b = integers(21, M, K, dtype=np.float16), integers(22, K, N, dtype=np.float16)
    expected = a.astype(F) @ b.astype(F)
    _everywhere(product, a, b, np.zeros((M, N), F), expected=expected)


@pytest.mark.parametrize("columns", [20, 32, 40])
@pytest.mark.parametrize("scope", ["shared", "fragment"])
def test_2979_a_tensor_of_any_size_is_written_as_far_as_the_tile_goes(
    columns: int, scope: str
) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((16, 32), "float32"), C: T.Tensor((16, T.dynamic("n")), "float32")):
        with T.Kernel(1, threads=64):
            if scope == "shared":
                held = T.alloc_shared((16, 32), "float32")
            else:
                held = T.alloc_fragment((16, 32), "float32")
            T.copy(A, held)
            T.copy(held, C)

    a, c = integers(26, 16, 32), np.full((16, columns), -1, F)
    expected = c.copy()
    expected[:, : min(columns, 32)] = a[:, :columns]
    _everywhere(kernel, a, c, expected=expected)


def test_cubins_of_widths_that_are_no_powers_of_two() -> None:
    builds(_product(96, 48, 48, threads=128, whole=96), *TARGETS)
