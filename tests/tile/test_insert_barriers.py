"""Barriers between statements: as many as the memory that they share asks for, and no more.

What is expected is the text of the kernel: `S` a barrier of all threads, `F` a proxy fence, and
the statements by their first letters. That it is enough is seen by running under the checker.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import tile as T
from tilewright.base.targets import target
from tilewright.passes.tile.insert_barriers import insert_barriers

N = 128


def _marks(kernel: Any) -> str:
    """Write the statements of a kernel, one letter each, loops and branches in brackets."""
    found: list[str] = []
    depth = [0]
    text = str(insert_barriers(kernel.program, target("sm_90a")))
    for line in text.split("device_entry")[1].splitlines()[1:]:
        indent = len(line) - len(line.lstrip())
        while indent < depth[-1]:
            depth.pop()
            found.append("]")
        text = line.strip()
        if "T.Parallel" in text:
            found.append("P")
        elif text.startswith(("for", "if", "else", "while")):
            found.append("[")
            depth.append(indent + 4)
        elif text.startswith(("T.copy", "T.fill", "T.reduce")):
            found.append(text[2].upper())
        elif "bar.sync" in text:
            found.append("S")
        elif "fence.proxy" in text:
            found.append("F")
    return "".join(found) + "]" * (len(depth) - 1)


def _run(kernel: Any, *arguments: Any) -> None:
    for schedule in ("late", "random:1"):
        tilewright.compile(kernel, "sm_90a", schedule=schedule, check=True)(*arguments)


def test_what_is_written_is_read_after_a_barrier() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=N):
            a = T.alloc_shared((N,), "float32")
            T.copy(A, a)
            for i in T.Parallel(N):
                B[i] = a[N - 1 - i]

    assert _marks(kernel) == "CSP"
    a, b = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    _run(kernel, a, b)
    np.testing.assert_array_equal(b, a[::-1])


def test_buffers_apart_need_no_barrier_between_them() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, N), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=N):
            a = T.alloc_shared((N,), "float32")
            b = T.alloc_shared((N,), "float32")
            T.copy(A[0, 0], a)
            T.copy(A[1, 0], b)
            for i in T.Parallel(N):
                B[i] = a[N - 1 - i] + b[i]

    assert _marks(kernel) == "CCSP"


def test_a_buffer_is_written_again_after_all_have_read_it() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, N), "float32"), B: T.Tensor((2, N), "float32")):
        with T.Kernel(1, threads=N):
            a = T.alloc_shared((N,), "float32")
            for k in T.serial(2):
                T.copy(A[k, 0], a)
                for i in T.Parallel(N):
                    B[k, i] = a[N - 1 - i]

    assert _marks(kernel) == "[SCSP]"
    a, b = np.random.rand(2, N).astype(np.float32), np.zeros((2, N), np.float32)
    _run(kernel, a, b)
    np.testing.assert_array_equal(b, a[:, ::-1])


def test_reads_alone_need_none() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((2, N), "float32")):
        with T.Kernel(1, threads=N):
            a = T.alloc_shared((N,), "float32")
            T.copy(A, a)
            for k in T.serial(2):
                for i in T.Parallel(N):
                    B[k, i] = a[N - 1 - i]

    assert _marks(kernel) == "CS[P]"


def test_the_barrier_of_a_program_counts() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=N):
            a = T.alloc_shared((N,), "float32")
            T.copy(A, a)
            T.sync_threads()
            for i in T.Parallel(N):
                B[i] = a[N - 1 - i]

    assert _marks(kernel) == "CSP"


def test_threads_that_part_meet_before_and_after() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=N):
            a = T.alloc_shared((N,), "float32")
            T.copy(A, a)
            if T.get_thread_binding() < 32:
                a[N - 1 - T.get_thread_binding()] = 0
            for i in T.Parallel(N):
                B[i] = a[N - 1 - i]

    assert _marks(kernel) == "CS[]SP"
    a, b = np.arange(1, N + 1, dtype=np.float32), np.zeros(N, np.float32)
    _run(kernel, a, b)
    np.testing.assert_array_equal(b, np.where(np.arange(N) < 32, 0, a[::-1]))


def test_a_name_that_depends_on_the_thread_makes_threads_part() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=N):
            a = T.alloc_shared((N,), "float32")
            thread = T.get_thread_binding()
            half = thread // 64
            T.copy(A, a)
            if half == 1:
                B[thread] = a[N - 1 - thread]
            else:
                B[thread] = a[thread]

    assert _marks(kernel) == "CS[][]"


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_branch_that_all_take_or_leave_has_its_own(turns: int) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), n: T.int32):
        with T.Kernel(1, threads=N):
            a = T.alloc_shared((N,), "float32")
            b = T.alloc_shared((N,), "float32")
            T.copy(A, a)
            T.copy(A, b)
            if n > 1:
                for i in T.Parallel(N):
                    b[i] = a[N - 1 - i]
            for i in T.Parallel(N):
                B[i] = b[N - 1 - i]

    assert _marks(kernel) == "CCS[P]SP"
    a, b = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    _run(kernel, a, b, turns)
    np.testing.assert_array_equal(b, a if turns > 1 else a[::-1])


def test_a_turn_that_ends_early_leaves_what_it_has_read() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((4, N), "float32"), B: T.Tensor((4, N), "float32")):
        with T.Kernel(1, threads=N):
            a = T.alloc_shared((N,), "float32")
            T.clear(a)
            for k in T.serial(4):
                for i in T.Parallel(N):
                    B[k, i] = a[N - 1 - i]
                if k % 2 == 1:
                    continue
                T.copy(A[k, 0], a)

    a, b = np.random.rand(4, N).astype(np.float32), np.zeros((4, N), np.float32)
    _run(kernel, a, b)
    before = [np.zeros(N), a[0], a[0], a[2]]
    np.testing.assert_array_equal(b, np.stack(before)[:, ::-1].astype(np.float32))


def test_threads_that_write_a_tensor_by_themselves_do_not_meet() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((4, N), "float32"), B: T.Tensor((4, N), "float32")):
        with T.Kernel(1, threads=N):
            t = T.get_thread_binding()
            for k in T.serial(4):
                B[k, t] = A[k, t]
                B[k, t] = B[k, t] + 1

    assert _marks(kernel) == "[]"


def test_warpgroups_that_part_meet_among_themselves() -> None:
    """What a warpgroup copies is ready before it reads it, and read before it copies again."""

    @T.prim_func
    def kernel(A: T.Tensor((4, 2, N), "float32"), B: T.Tensor((4, 2, N), "float32")):
        with T.Kernel(1, threads=2 * N):
            first = T.alloc_shared((N,), "float32")
            second = T.alloc_shared((N,), "float32")
            for k in T.serial(4):
                with T.ws(0):
                    T.copy(A[k, 0, :], first)
                    for i in T.Parallel(N):
                        B[k, 0, i] = first[N - 1 - i]
                with T.ws(1):
                    T.copy(A[k, 1, :], second)
                    for i in T.Parallel(N):
                        B[k, 1, i] = second[N - 1 - i] + 1.0

    text = str(insert_barriers(kernel.program, target("sm_90a")))
    barriers = [line.strip() for line in text.splitlines() if "bar.sync" in line]
    assert len({line for line in barriers if "128" in line}) == 2
    a, b = np.random.rand(4, 2, N).astype(np.float32), np.zeros((4, 2, N), np.float32)
    _run(kernel, a, b)
    np.testing.assert_array_equal(b, a[..., ::-1] + np.array([0, 1], np.float32)[None, :, None])


def test_all_that_a_condition_lets_in_wait_where_it_is_of_one_value() -> None:
    """A cell that all threads count alike parts nobody, nor an element that all read."""

    @T.prim_func
    def kernel(A: T.Tensor((4, N), "float32"), B: T.Tensor((4, N), "float32")):
        with T.Kernel(1, threads=N):
            shared = T.alloc_shared((N,), "float32")
            at = T.alloc_local((1,), "int32")
            at[0] = 0
            while at[0] < 4:
                T.copy(A[at[0], :], shared)
                for i in T.Parallel(N):
                    B[at[0], i] = shared[N - 1 - i]
                at[0] = at[0] + 1

    a, b = np.random.rand(4, N).astype(np.float32), np.zeros((4, N), np.float32)
    _run(kernel, a, b)
    np.testing.assert_array_equal(b, a[:, ::-1])


@pytest.mark.parametrize("first", ["producer", "consumer"])
def test_warpgroups_that_hand_on_by_mbarriers_do_not_meet_between(first: str) -> None:
    """A barrier of all threads would wait for those that wait for the other warpgroup."""

    @T.prim_func
    def kernel(A: T.Tensor((8, N), "float32"), B: T.Tensor((8, N), "float32")):
        with T.Kernel(1, threads=2 * N):
            held = T.alloc_shared((2, N), "float32")
            full = T.alloc_barrier([N] * 2)
            empty = T.alloc_barrier([N] * 2)

            def consume():
                with T.ws(0):
                    for k in T.serial(8):
                        T.mbarrier_wait_parity(full[k % 2], (k // 2) % 2)
                        for i in T.Parallel(N):
                            B[k, i] = held[k % 2, N - 1 - i]
                        T.mbarrier_arrive(empty[k % 2])

            if first == "consumer":
                consume()
            with T.ws(1):
                for k in T.serial(8):
                    T.mbarrier_wait_parity(empty[k % 2], (k // 2) % 2 ^ 1)
                    T.copy(A[k, :], held[k % 2, :])
                    T.mbarrier_arrive(full[k % 2])
            if first == "producer":
                consume()

    a, b = np.random.rand(8, N).astype(np.float32), np.zeros((8, N), np.float32)
    _run(kernel, a, b)
    np.testing.assert_array_equal(b, a[:, ::-1])


def test_what_warpgroups_have_handed_on_all_threads_wait_for() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((2 * N,), "float32")):
        with T.Kernel(1, threads=2 * N):
            held = T.alloc_shared((N,), "float32")
            full = T.alloc_barrier(N)
            with T.ws(1):
                T.copy(A, held)
                T.mbarrier_arrive(full)
            with T.ws(0):
                T.mbarrier_wait_parity(full, 0)
                for i in T.Parallel(N):
                    held[i] = held[i] + 1
            for i in T.Parallel(2 * N):
                B[i] = held[i % N]

    a, b = np.random.rand(N).astype(np.float32), np.zeros(2 * N, np.float32)
    _run(kernel, a, b)
    np.testing.assert_array_equal(b, np.tile(a + np.float32(1), 2))
