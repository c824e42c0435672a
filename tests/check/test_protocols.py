"""Protocols of mbarriers and named barriers, who issues what, and buffers that accesses keep to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

import tilewright
from tilewright import simt as T

N = 128
BYTES = N * 4
LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


# ---------------------------------------------------------------------------- life of an mbarrier


def handed_on(
    count: int = 32,
    times: int = 1,
    by: str = "thread",
    inval: bool = True,
    look: bool = True,
    turns: int = 1,
    wait_each: bool = True,
) -> Any:
    """Let warp 1 write and arrive, and warp 0 wait and read; then use the mbarrier's memory."""

    @T.function
    def kernel(A: T.Tensor((64,), "float32"), Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        warp = T.cuda.warp_id()
        s = T.alloc_shared((turns, 32), "float32", layout="default")
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if (warp == 0) if T.constexpr(by == "warp") else (tid == 0):
            for _ in T.unroll(times):
                T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(count))
        T.cuda.cta_sync()
        if warp == 1:
            for turn in range(turns):
                s[turn, tid - 32] = A[tid]
                T.ptx["mbarrier.arrive.shared.b64"](bar.ptr_to([0]))
                if T.constexpr(wait_each):
                    T.cuda.mbarrier_wait(bar.ptr_to([0]), turn % 2)
        else:
            for turn in range(turns):
                if T.constexpr(look):
                    T.cuda.mbarrier_wait(bar.ptr_to([0]), turn % 2)
                else:
                    done: T.bool = False
                    T.ptx["mbarrier.try_wait.parity.shared::cta.b64"](
                        done, bar.ptr_to([0]), T.uint32(0)
                    )
                Out[tid] = s[turn, tid]
        T.cuda.cta_sync()
        if tid == 0:
            if T.constexpr(inval):
                T.ptx.mbarrier.inval.shared__cta.b64(bar.ptr_to([0]))
            bar[0] = T.uint64(77)

    return kernel


INIT, ARRIVE, READ = "mbarrier.init", "mbarrier.arrive", "Out[tid] = s[turn, tid]"


@pytest.mark.parametrize(
    ("fault", "kind", "here", "there"),
    [
        ({"times": 2}, "mbarrier-init", INIT, INIT),
        ({"by": "warp"}, "mbarrier-init", INIT, ""),
        ({"inval": False}, "mbarrier-init", "bar[0] = T.uint64(77)", INIT),
        ({"count": 31}, "mbarrier-arrival", ARRIVE, INIT),
        ({"look": False}, "ignored-try-wait", "mbarrier.try_wait", READ),
    ],
)
def test_an_mbarrier_has_one_life_and_as_many_arrivals_as_it_counts(
    fault: dict[str, Any], kind: str, here: str, there: str
) -> None:
    expect(handed_on, fault, kind, here, there, zeros(64), zeros(32), target="sm_90a")


def met_twice(wait: bool = True) -> Any:
    """Let two warps arrive for one phase after another."""

    @T.function
    def kernel(Out: T.Tensor((96,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
        tid = T.cuda.thread_idx("x")
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(64))
        T.cuda.cta_sync()
        if tid >= 32:
            for turn in range(2):
                T.ptx["mbarrier.arrive.shared.b64"](bar.ptr_to([0]))
                if T.constexpr(wait):
                    T.cuda.mbarrier_wait(bar.ptr_to([0]), turn)
        Out[tid] = T.cast(tid, "uint32")

    return kernel


def test_who_arrives_again_knows_that_the_phase_before_has_ended() -> None:
    out = zeros(96, dtype="uint32")
    expect(met_twice, {"wait": False}, "mbarrier-arrival", ARRIVE, INIT, out, target="sm_90a")


def left_over(arrivals: int = 2, more_bytes: int = 0) -> Any:
    """Leave an mbarrier with a phase that has begun."""

    @T.function
    def kernel(Out: T.Tensor((32,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        tid = T.cuda.thread_idx("x")
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(2))
            for _ in range(arrivals):
                T.ptx["mbarrier.arrive.shared.b64"](bar.ptr_to([0]))
            if T.constexpr(more_bytes):
                T.ptx["mbarrier.expect_tx.relaxed.cta.shared::cta.b64"](
                    bar.ptr_to([0]), T.uint32(more_bytes)
                )
        Out[tid] = T.cast(tid, "uint32")

    return kernel


@pytest.mark.parametrize(
    ("fault", "kind", "here"),
    [
        ({"arrivals": 1}, "mbarrier-arrival", ARRIVE),
        ({"more_bytes": 16}, "mbarrier-tx", "mbarrier.expect_tx"),
    ],
)
def test_a_cta_ends_where_no_phase_has_begun(fault: dict[str, Any], kind: str, here: str) -> None:
    expect(left_over, fault, kind, here, INIT, zeros(32, dtype="uint32"), target="sm_90a")


def committed(fence: bool = True) -> Any:
    @T.function
    def kernel(Out: T.Tensor((32,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        tid = T.cuda.thread_idx("x")
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
            if T.constexpr(fence):
                T.ptx.fence.mbarrier_init.release.cluster()
            T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](
                bar.ptr_to([0])
            )
        T.cuda.cta_sync()
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        Out[tid] = T.cast(tid, "uint32")

    return kernel


def test_a_commit_arrives_at_an_mbarrier_that_it_sees() -> None:
    fault, out = {"fence": False}, zeros(32, dtype="uint32")
    expect(committed, fault, "mbarrier-init-visibility", "tcgen05.commit", INIT, out)


# ---------------------------------------------------------------------------- named barriers


def signalled(told: bool = True) -> Any:
    """Let warp 0 tell warp 1 twice that data are there, and warp 1 that they are read."""

    @T.function
    def kernel(A: T.Tensor((2, 32), "float32"), Out: T.Tensor((2, 32), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        warp = T.cuda.warp_id()
        s = T.alloc_shared((2, 32), "float32", layout="default")
        for turn in range(2):
            if warp == 0:
                s[turn, tid] = A[turn, tid]
                T.ptx["bar.arrive"](1, 64)
                if T.constexpr(told):
                    T.ptx.bar.sync(2, 64)
            else:
                T.ptx.bar.sync(1, 64)
                Out[turn, tid - 32] = s[turn, tid - 32]
                if T.constexpr(told):
                    T.ptx["bar.arrive"](2, 64)

    return kernel


def test_a_warp_comes_to_a_named_barrier_once_until_that_completes() -> None:
    for schedule in SCHEDULES:
        options: dict[str, Any] = {"backend": "sim", "check": True, "schedule": schedule}
        arrays = (zeros(2, 32), zeros(2, 32))
        tilewright.compile(signalled(), **options)(*arrays)
        # It may hang or not: the second arrival falls into either turn of the barrier.
        with pytest.raises(tilewright.CheckError) as caught:
            tilewright.compile(signalled(told=False), **options)(*arrays)
        first = caught.value.findings[0]
        assert first.kind == "named-barrier"
        assert first.location is not None and "bar.arrive" in first.location.source_line()


# ---------------------------------------------------------------------------- who issues


def sent(by: int = 1) -> Any:
    """Store a row by one lane, or by several."""

    @T.function
    def kernel(A: T.Tensor((N,), "float32"), Out: T.Tensor((N,), "float32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default", align=16)
        s[tid] = A[tid]
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        if tid < by:
            T.ptx[STORE](Out.ptr_to([0]), s.ptr_to([0]), T.uint32(BYTES))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


@pytest.mark.parametrize("lanes", [2, 32])
def test_one_lane_issues_what_is_for_one(lanes: int) -> None:
    arrays = (zeros(N), zeros(N))
    expect(sent, {"by": lanes}, "not-elected", "T.ptx[STORE]", "", *arrays, target="sm_90a")


def test_lanes_may_issue_operations_of_their_own() -> None:
    @T.function
    def kernel(A: T.Tensor((N,), "float32"), Out: T.Tensor((N,), "float32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default", align=16)
        s[tid] = A[tid]
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        if tid < 32:
            T.ptx[STORE](Out.ptr_to([tid * 4]), s.ptr_to([tid * 4]), T.uint32(16))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)

    for schedule in SCHEDULES:
        assert found(kernel, zeros(N), zeros(N), target="sm_90a", schedule=schedule) == []


# ---------------------------------------------------------------------------- buffers


def neighbouring(beyond: int = 0) -> Any:
    """Write to one of two buffers, which follow one another."""

    @T.function
    def kernel(Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((32,), "float32", layout="default")
        other = T.alloc_shared((32,), "float32", layout="default")
        s[tid] = T.float32(1)
        s[tid + beyond] = T.float32(2)
        T.cuda.cta_sync()
        other[tid] = T.float32(3)
        Out[tid] = s[tid] + other[tid]

    return kernel


def test_an_access_keeps_to_its_own_buffer_even_where_nobody_else_is() -> None:
    line = "s[tid + beyond]"
    expect(neighbouring, {"beyond": 32}, "out-of-bounds", line, "", zeros(32))


def brought(beyond: int = 0) -> Any:
    @T.function
    def kernel(A: T.Tensor((N,), "float32", align=16), Out: T.Tensor((N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default", align=16)
        other = T.alloc_shared((N,), "float32", layout="default", align=16)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        s[tid] = T.float32(0)
        other[tid] = T.float32(0)
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        if tid == 0:
            T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(bar.ptr_to([0]), T.uint32(BYTES))
            T.ptx[LOAD](s.ptr_to([0]) + beyond, A.ptr_to([0]), T.uint32(BYTES), bar.ptr_to([0]))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        Out[tid] = s[tid] + other[tid]

    return kernel


def test_a_copy_keeps_to_the_buffer_that_it_is_given() -> None:
    arrays = (zeros(N), zeros(N))
    expect(brought, {"beyond": 4}, "out-of-bounds", "T.ptx[LOAD]", "", *arrays, target="sm_90a")
