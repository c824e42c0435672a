"""Order and memory: what users of the dialect report of other compilers, with right values.

Numbers are those of reports in the issue tracker of `tile-ai/tilelang`. Every kernel runs under the
checker as well, which must find nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tile_running import TARGETS, integers, run

import tilewright
from tilewright import tile as T
from tilewright.base.errors import CheckError
from tilewright.jit.autotuner import autotune
from tilewright.jit.functions import jit
from tilewright.jit.kernels import compile

F = np.float32
SCHEDULES = ("late", "eager", "random:5")


def _everywhere(kernel: Any, *arguments: np.ndarray, expected: np.ndarray) -> None:
    """Run a kernel that writes its last argument, on each target and under each schedule."""
    for arch in TARGETS:
        for schedule in SCHEDULES:
            inputs = [array.copy() for array in arguments]
            tilewright.compile(kernel, arch, backend="sim", schedule=schedule, check=True)(*inputs)
            np.testing.assert_array_equal(inputs[-1], expected)


# ---------------------------------------------------------------------------- pipelined loops


@pytest.mark.parametrize("stages", [2, 3])
def test_2668_a_copy_stays_behind_the_read_that_it_overwrites(stages: int) -> None:
    @T.prim_func
    def delayed(A: T.Tensor((6, 64, 64), "float16"), C: T.Tensor((6, 64, 64), "float16")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((64, 64), "float16")
            T.clear(held)
            for k in T.Pipelined(6, num_stages=stages):
                T.copy(held, C[k, 0, 0])
                T.copy(A[k, 0, 0], held)

    a = integers(1, 6, 64, 64, dtype=np.float16)
    expected = np.concatenate([np.zeros((1, 64, 64), np.float16), a[:-1]])
    _everywhere(delayed, a, np.zeros_like(a), expected=expected)


@pytest.mark.parametrize("stages", [2, 3])
def test_2595_a_read_stays_behind_an_atomic_addition(stages: int) -> None:
    @T.prim_func
    def counted(A: T.Tensor((128,), "float32"), C: T.Tensor((5, 128), "float32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((128,), "float32")
            for k in T.Pipelined(5, num_stages=stages):
                T.copy(A, held)
                for i in T.Parallel(128):
                    C[k, i] = held[i]
                for i in T.Parallel(128):
                    T.atomic_add(A[i], 1.0)

    a = integers(2, 128)
    expected = np.stack([a + k for k in range(5)])
    _everywhere(counted, a, np.zeros((5, 128), F), expected=expected)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_2443_a_vector_that_is_copied_before_a_pipelined_loop(stages: int) -> None:
    @T.prim_func
    def biased(
        A: T.Tensor((64, 128), "float16"),
        B: T.Tensor((128, 64), "float16"),
        Bias: T.Tensor((64,), "float32"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            bias = T.alloc_shared((64,), "float32")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(Bias, bias)
            for i, j in T.Parallel(64, 64):
                c[i, j] = bias[j]
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[0, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, c)
            for i, j in T.Parallel(64, 64):
                c[i, j] *= bias[i]
            T.copy(c, C)

    a, b = integers(3, 64, 128, dtype=np.float16), integers(4, 128, 64, dtype=np.float16)
    bias, c = integers(5, 64), np.zeros((64, 64), F)
    expected = (a.astype(F) @ b.astype(F) + bias) * bias[:, None]
    _everywhere(biased, a, b, bias, c, expected=expected)


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_2566_a_pipelined_loop_of_few_turns(turns: int) -> None:
    @T.prim_func
    def summed(
        A: T.Tensor((4, 64), "float32"),
        Turns: T.Tensor((1,), "int32"),
        C: T.Tensor((64,), "float32"),
    ):
        with T.Kernel(1, threads=64):
            held = T.alloc_shared((64,), "float32")
            total = T.alloc_fragment((64,), "float32")
            T.clear(total)
            for k in T.Pipelined(Turns[0], num_stages=3):
                T.copy(A[k, 0], held)
                for i in T.Parallel(64):
                    total[i] += held[i]
            T.copy(total, C)

    a = integers(6, 4, 64)
    _everywhere(
        summed, a, np.array([turns], np.int32), np.full(64, -1, F), expected=a[:turns].sum(0)
    )


def test_2567_a_ragged_sequence_in_a_pipelined_loop() -> None:
    n, block = 250, 64

    @T.prim_func
    def summed(
        A: T.Tensor((n, 32), "float32"), S: T.Tensor((n,), "float32"), C: T.Tensor((32,), "float32")
    ):
        with T.Kernel(1, threads=128):
            rows = T.alloc_shared((block, 32), "float32")
            scale = T.alloc_shared((block,), "float32")
            products = T.alloc_fragment((block, 32), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(n, block), num_stages=2):
                T.copy(A[k * block, 0], rows)
                T.copy(S[k * block], scale)
                for i, j in T.Parallel(block, 32):
                    products[i, j] = rows[i, j] * scale[i]
                T.reduce_sum(products, total, dim=0, clear=False)
            T.copy(total, C)

    a, s = integers(7, n, 32), integers(8, n)
    _everywhere(summed, a, s, np.zeros(32, F), expected=s @ a)


def test_2643_shared_memory_is_cleared_in_a_pipelined_loop() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((4, 64, 32), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            extra = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k, 0, 0], a)
                T.clear(extra)
                for i in T.Parallel(32):
                    extra[i, i] = 1
                T.gemm(a, extra, c, transpose_B=True)
            T.copy(c, C)

    a = integers(9, 4, 64, 32, dtype=np.float16)
    expected = a.astype(F).sum(0) @ np.eye(64, 32, dtype=F).T
    _everywhere(kernel, a, np.zeros((64, 64), F), expected=expected)


@pytest.mark.parametrize("columns", [4, 8, 12, 20])
def test_1648_a_small_tile_is_stored(columns: int) -> None:
    @T.prim_func
    def stored(A: T.Tensor((8, 40), "float32"), C: T.Tensor((8, 40), "float32")):
        with T.Kernel(2, threads=128) as block:
            held = T.alloc_shared((4, columns), "float32")
            T.copy(A[block * 4, 0], held)
            T.copy(held, C[block * 4, columns])

    a = integers(10, 8, 40)
    expected = np.zeros_like(a)
    expected[:, columns : 2 * columns] = a[:, :columns]
    _everywhere(stored, a, np.zeros_like(a), expected=expected)


# ---------------------------------------------------------------------------- barriers


@pytest.mark.parametrize("active", [100, 33, 1])
def test_2556_some_threads_write_what_others_read(active: int) -> None:
    @T.prim_func
    def passed_on(A: T.Tensor((4, 128), "int32"), C: T.Tensor((4, 128), "int32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((128,), "int32")
            tx = T.get_thread_binding()
            for k in range(4):
                T.fill(held, -1)
                if tx < active:
                    held[tx] = A[k, tx]
                C[k, tx] = held[127 - tx]

    a = integers(11, 4, 128, dtype=np.int32)
    expected = np.where(np.arange(128) < active, a, -1)[:, ::-1]
    _everywhere(passed_on, a, np.zeros_like(a), expected=expected)


def test_2556_numbers_of_threads_that_fill_no_warp() -> None:
    @T.prim_func
    def reversed_(A: T.Tensor((3, 100), "float32"), C: T.Tensor((3, 100), "float32")):
        with T.Kernel(1, threads=100):
            held = T.alloc_shared((100,), "float32")
            for k in T.serial(3):
                T.copy(A[k, 0], held)
                for i in T.Parallel(100):
                    C[k, i] = held[99 - i]

    a = integers(12, 3, 100)
    _everywhere(reversed_, a, np.zeros_like(a), expected=a[:, ::-1])


def test_2612_a_barrier_of_some_threads_stays_where_it_is() -> None:
    @T.prim_func
    def halves(A: T.Tensor((128,), "int32"), C: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((64,), "int32")
            tx = T.get_thread_binding()
            C[tx] = -1
            if tx < 64:
                held[tx] = A[tx]
                T.sync_threads(1, 64)
                C[tx] = held[63 - tx]

    a = integers(13, 128, dtype=np.int32)
    expected = np.concatenate([a[63::-1], np.full(64, -1, np.int32)])
    _everywhere(halves, a, np.zeros(128, np.int32), expected=expected)


def test_2612_whole_warps_that_part_meet_among_themselves() -> None:
    """Also in a kernel whose threads do everything by themselves."""

    @T.prim_func
    def halves(A: T.Tensor((128,), "int32"), C: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((64,), "int32")
            tx = T.get_thread_binding()
            if tx < 64:
                held[tx] = A[tx]
                C[tx] = held[63 - tx]

    a = integers(13, 128, dtype=np.int32)
    expected = np.concatenate([a[63::-1], np.zeros(64, np.int32)])
    _everywhere(halves, a, np.zeros(128, np.int32), expected=expected)


def test_2612_threads_that_part_order_themselves_or_are_told() -> None:
    """Where parts of warps come nothing is inserted, and the checker shows what is missing."""

    @T.prim_func
    def some(A: T.Tensor((128,), "int32"), C: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((48,), "int32")
            tx = T.get_thread_binding()
            if tx < 48:
                held[tx] = A[tx]
                C[tx] = held[47 - tx]

    with pytest.raises(CheckError) as caught:
        run(some, integers(13, 128, dtype=np.int32), np.zeros(128, np.int32))
    assert caught.value.kind == "race"
    assert "C[tx] = held[47 - tx]" in str(caught.value)


def test_1026_a_tile_that_is_used_under_a_condition_of_each_block() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((4, 128), "float32"), C: T.Tensor((4, 128), "float32")):
        with T.Kernel(4, threads=128) as block:
            held = T.alloc_shared((128,), "float32")
            tx = T.get_thread_binding()
            if block % 2 == 0:
                T.copy(A[block, 0], held)
                for i in T.Parallel(128):
                    C[block, i] = held[127 - i]
            elif tx < 50:
                C[block, tx] = A[block, tx]

    a = integers(14, 4, 128)
    expected = a.copy()
    expected[::2] = a[::2, ::-1]
    expected[1::2, 50:] = 0
    _everywhere(kernel, a, np.zeros_like(a), expected=expected)


@pytest.mark.parametrize("shift", [1, 16, 64])
def test_2698_a_part_is_filled_after_the_copy_of_all(shift: int) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((128,), "float32"), C: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((128,), "float32")
            T.copy(A, held)
            T.fill(held[shift : shift + 48], 7)
            for i in T.Parallel(47):
                held[i + shift + 1] = i
            T.copy(held, C)

    a = integers(15, 128)
    expected = a.copy()
    expected[shift] = 7
    expected[shift + 1 : shift + 48] = np.arange(47)
    _everywhere(kernel, a, np.zeros_like(a), expected=expected)


def test_2416_buffers_that_share_memory_are_kept_apart_whatever_is_switched_off() -> None:
    @T.prim_func
    def twice(
        A: T.Tensor((128,), "float32"),
        B: T.Tensor((128,), "float32"),
        C: T.Tensor((2, 128), "float32"),
    ):
        with T.Kernel(1, threads=128):
            first = T.alloc_shared((128,), "float32")
            second = T.alloc_shared((128,), "float32")
            T.copy(A, first)
            for i in T.Parallel(128):
                C[0, i] = first[127 - i]
            T.copy(B, second)
            for i in T.Parallel(128):
                C[1, i] = second[127 - i]

    a, b = integers(16, 128), integers(17, 128)
    for configs in (
        {"tl.disable_thread_storage_sync": True},
        {"tl.disable_shared_memory_reuse": True},
    ):
        kernel = compile(twice, target="sm_90a", pass_configs=configs)
        c = np.zeros((2, 128), F)
        kernel(a, b, c)
        np.testing.assert_array_equal(c, np.stack([a, b])[:, ::-1])
    _everywhere(twice, a, b, np.zeros((2, 128), F), expected=np.stack([a, b])[:, ::-1])


# ---------------------------------------------------------------------------- atomics


@pytest.mark.parametrize("scope", ["shared", "fragment"])
def test_2959_atomics_take_whole_buffers(scope: str) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, 16, 24), "float32"), C: T.Tensor((16, 24), "float32")):
        with T.Kernel(2, threads=64) as block:
            if scope == "shared":
                held = T.alloc_shared((16, 24), "float32")
            else:
                held = T.alloc_fragment((16, 24), "float32")
            T.copy(A[block, 0, 0], held)
            T.atomic_add(C, held)

    a, c = integers(18, 2, 16, 24), integers(19, 16, 24)
    _everywhere(kernel, a, c, expected=c + a.sum(0))


# ---------------------------------------------------------------------------- kernels and others


def test_2949_kernels_of_one_name_stay_apart() -> None:
    def made(factor: int) -> Any:
        @T.prim_func
        def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=64):
                for i in T.Parallel(64):
                    C[i] = A[i] * factor

        return main

    kernels = [compile(made(factor), out_idx=[-1], target="sm_90a") for factor in (2, 3, 5)]
    a = integers(20, 64)
    for _ in range(2):
        for factor, kernel in zip((2, 3, 5), kernels, strict=True):
            np.testing.assert_array_equal(kernel(a), factor * a)


def test_2949_several_kernels_of_one_function() -> None:
    @T.prim_func
    def both(
        A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")
    ):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = A[i] + 1
        with T.Kernel(2, threads=32) as block:
            for i in T.Parallel(32):
                C[block * 32 + i] = B[63 - (block * 32 + i)] * 2

    a = integers(21, 64)
    _everywhere(both, a, np.zeros(64, F), np.zeros(64, F), expected=2 * (a[::-1] + 1))


def test_2890_a_kernel_does_not_depend_on_those_before_it() -> None:
    """Also 3071: the text of a kernel is the same first, after others, and again."""

    def made(width: int) -> Any:
        @T.prim_func
        def main(A: T.Tensor((16, width), "float32"), C: T.Tensor((16,), "float32")):
            with T.Kernel(1, threads=128):
                held = T.alloc_fragment((16, width), "float32")
                total = T.alloc_fragment((16,), "float32")
                T.copy(A, held)
                T.reduce_sum(held, total, dim=1)
                T.copy(total, C)

        return main

    def text(width: int) -> str:
        return compile(made(width), target="sm_90a").get_kernel_source()

    alone = {width: text(width) for width in (64, 96, 100)}
    assert {width: text(width) for width in (100, 64, 96)} == alone
    assert len(set(alone.values())) == 3


@pytest.mark.usefixtures("without_gpu")
def test_1250_what_was_tuned_is_taken_for_what_is_alike_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also 2791: what differs is tuned for itself; the same is not tuned again."""

    @autotune(configs=[{"threads": 4096}, {"threads": 32}])
    @jit(target="sm_90a")
    def tuned(A, factor, threads=None):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B = T.empty((N,), T.float32)
        with T.Kernel(1, threads=threads):
            for i in T.Parallel(N):
                B[i] = A[i] * factor
        return B

    def tunes(size: int, factor: int) -> bool:
        a = integers(22, size)
        np.testing.assert_array_equal(tuned(a, factor), factor * a)
        return "'threads': 32" in capsys.readouterr().err

    calls = [(64, 2), (96, 2), (64, 3), (64, 2), (96, 2)]
    assert [tunes(*call) for call in calls] == [True, True, True, False, False]
