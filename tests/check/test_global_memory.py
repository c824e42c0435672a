"""CTAs that touch the same bytes of global memory, where nothing can order them."""

from __future__ import annotations

from typing import Any

import numpy as np
from watching import SCHEDULES, expect, found

from tilewright import simt as T

N = 64


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


def rows(step: int = N) -> Any:
    @T.function
    def kernel(A: T.Tensor((4 * N,), "float32"), Out: T.Tensor((4 * N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=N))
        place = T.cuda.block_idx("x") * step + T.cuda.thread_idx("x")
        Out[place] = A[place] + T.float32(1)

    return kernel


def test_two_ctas_that_write_the_same_bytes() -> None:
    line = "Out[place] ="
    expect(rows, {"step": N - 1}, "global-race", line, line, zeros(4 * N), zeros(4 * N))


def shifted(reads: int = 0) -> Any:
    @T.function
    def kernel(Out: T.Tensor((5 * N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=N))
        place = T.cuda.block_idx("x") * N + T.cuda.thread_idx("x")
        before = Out[place + reads]
        Out[place] = before + T.float32(1)

    return kernel


def test_a_cta_that_reads_what_another_one_writes() -> None:
    fault = {"reads": 1}
    expect(shifted, fault, "global-race", "before = Out", "Out[place] = before", zeros(5 * N))


def test_what_is_only_read_may_be_read_by_all() -> None:
    @T.function
    def kernel(A: T.Tensor((N,), "float32"), Out: T.Tensor((4 * N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=N))
        tid = T.cuda.thread_idx("x")
        Out[T.cuda.block_idx("x") * N + tid] = A[tid]

    for schedule in SCHEDULES:
        assert found(kernel, zeros(N), zeros(4 * N), schedule=schedule) == []


def test_ctas_that_order_one_another_are_left_alone() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=N))
        T.ptx["red.global.add.u32"](Out.ptr_to([0]), T.uint32(1))

    assert found(kernel, zeros(1, dtype="uint32")) == []
