"""Accesses to shared memory: what is ordered is no finding, what lacks one edge is exactly one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

from tilewright import simt as T

N = 128


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


def exchanged(barrier: bool = True, named: bool = False) -> Any:
    @T.function
    def kernel(A: T.Tensor((N,), "float32"), Out: T.Tensor((N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default")
        s[tid] = A[tid]
        if T.constexpr(named):
            T.ptx.bar.sync(3, N)
        if T.constexpr(barrier):
            T.cuda.cta_sync()
        Out[tid] = s[N - 1 - tid]

    return kernel


def test_a_barrier_between_a_write_and_a_read() -> None:
    fault = {"barrier": False}
    expect(exchanged, fault, "race", "s[N - 1 - tid]", "s[tid] = A[tid]", zeros(N), zeros(N))


def test_a_named_barrier_orders_as_well() -> None:
    assert found(exchanged(barrier=False, named=True), zeros(N), zeros(N)) == []


def neighbours(sync: bool = True) -> Any:
    @T.function
    def kernel(A: T.Tensor((32,), "float32"), Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default")
        s[lane] = A[lane]
        if T.constexpr(sync):
            T.cuda.warp_sync()
        Out[lane] = s[lane ^ 1]

    return kernel


def test_lanes_of_a_warp_need_a_synchronisation_too() -> None:
    fault = {"sync": False}
    expect(neighbours, fault, "race", "s[lane ^ 1]", "s[lane] = A[lane]", zeros(32), zeros(32))


def reused(second: bool = True) -> Any:
    @T.function
    def kernel(A: T.Tensor((4, N), "float32"), Out: T.Tensor((4, N), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default")
        for row in range(4):
            s[tid] = A[row, tid]
            T.cuda.cta_sync()
            Out[row, tid] = s[N - 1 - tid]
            if T.constexpr(second):
                T.cuda.cta_sync()

    return kernel


def test_a_barrier_between_a_read_and_the_next_write() -> None:
    fault = {"second": False}
    expect(reused, fault, "race", "s[N - 1 - tid]", "s[tid] = A", zeros(4, N), zeros(4, N))


def partial(bound: int = N) -> Any:
    @T.function
    def kernel(Out: T.Tensor((N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default")
        if tid < bound:
            s[tid] = T.float32(1)
        T.cuda.cta_sync()
        Out[tid] = s[tid]

    return kernel


def test_what_nobody_has_written() -> None:
    expect(partial, {"bound": N - 1}, "uninitialised", "Out[tid] = s[tid]", "", zeros(N))


def elected(sync: bool = True) -> Any:
    """Let one lane wait at an mbarrier, and all of its warp read."""

    @T.function
    def kernel(A: T.Tensor((N,), "float32"), Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((32,), "float32", layout="default")
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(32))
        T.cuda.cta_sync()
        if tid >= 32:
            s[tid - 32] = A[tid]
            T.ptx["mbarrier.arrive.shared.b64"](bar.ptr_to([0]))
        if tid == 0:
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        if T.constexpr(sync):
            T.cuda.warp_sync()
        if tid < 32:
            Out[tid] = s[tid]

    return kernel


def test_what_one_lane_has_waited_for_the_others_do_not_know() -> None:
    fault = {"sync": False}
    here, there = "Out[tid] = s[tid]", "s[tid - 32] = A[tid]"
    expect(elected, fault, "race", here, there, zeros(N), zeros(32))


def counted(atomic: bool = True) -> Any:
    @T.function
    def kernel(Out: T.Tensor((1,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((1,), "uint32", layout="default")
        if tid == 0:
            s[0] = T.uint32(0)
        T.cuda.cta_sync()
        if T.constexpr(atomic):
            T.ptx["red.shared.add.u32"](s.ptr_to([0]), T.uint32(1))
        else:
            s[0] = s[0] + T.uint32(1)
        T.cuda.cta_sync()
        if tid == 0:
            Out[0] = s[0]

    return kernel


def test_atomic_operations_do_not_race_with_one_another() -> None:
    for schedule in SCHEDULES:
        assert found(counted(), zeros(1, dtype="uint32"), schedule=schedule) == []
        kinds = {each[0] for each in found(counted(False), zeros(1, dtype="uint32"))}
        assert kinds == {"race"}


def test_the_same_is_found_by_any_number_of_workers() -> None:
    @T.function
    def kernel(A: T.Tensor((16, N), "float32"), Out: T.Tensor((16, N), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=16, block=N))
        tid, cta = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default")
        s[tid] = A[cta, tid]
        if cta % 3 == 0:
            T.cuda.cta_sync()
        Out[cta, tid] = s[N - 1 - tid]

    texts: set[str] = set()
    for workers in (1, 2, 5):
        import tilewright

        ex = tilewright.compile(kernel, backend="sim", check=True, workers=workers)
        with pytest.raises(tilewright.CheckError) as caught:
            ex(zeros(16, N), zeros(16, N))
        texts.add(str(caught.value))
    assert len(texts) == 1


def flagged(release: bool = True) -> Any:
    """Let a warp hand data to another one by a flag in shared memory."""
    store = "st.release.cta.shared.u32" if release else "st.relaxed.cta.shared.u32"

    @T.function
    def kernel(A: T.Tensor((64,), "float32"), Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((32,), "float32", layout="default")
        flag = T.alloc_shared((1,), "uint32", layout="default")
        if tid == 0:
            flag[0] = T.uint32(0)
        T.cuda.cta_sync()
        if tid >= 32:
            s[tid - 32] = A[tid]
            T.cuda.warp_sync()
            T.ptx[store](flag.ptr_to([0]), T.uint32(1))
        else:
            seen: T.uint32 = T.uint32(0)
            while seen == T.uint32(0):
                T.ptx["ld.acquire.cta.shared.u32"](seen, flag.ptr_to([0]))
            Out[tid] = s[tid]

    return kernel


def test_a_flag_that_is_released_and_acquired() -> None:
    fault = {"release": False}
    here, there = "Out[tid] = s[tid]", "s[tid - 32] = A[tid]"
    expect(flagged, fault, "race", here, there, zeros(64), zeros(32))


# ---------------------------------------------------------------------------- atomic operations


def histogram(
    first: bool = True, second: bool = True, third: bool = True, init: str = "one warp"
) -> Any:
    """Count into bins, in two rounds; barriers stand around what is not atomic."""

    @T.function
    def kernel(Out: T.Tensor((2, 16), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
        tid = T.cuda.thread_idx("x")
        bins = T.alloc_shared((16,), "int32", layout="default", align=16)
        for turn in range(2):
            if init == "one warp":
                if tid < 16:
                    bins[tid] = 0
            elif init == "one lane":
                if tid == 40:
                    for bin in range(16):
                        bins[bin] = 0
            else:
                if tid % 6 == 0:
                    bins[tid // 6] = 0
            if first:
                T.cuda.cta_sync()
            for step in range(3):
                T.ptx["red.shared.add.s32"](bins.ptr_to([(tid * 5 + step) % 16]), T.int32(1))
            if second:
                T.cuda.cta_sync()
            if tid >= 80:
                Out[turn, tid - 80] = bins[tid - 80]
            if third:
                T.cuda.cta_sync()

    return kernel


@pytest.mark.parametrize("init", ["one warp", "one lane", "all warps"])
def test_bins_are_zero_before_they_are_counted_into_and_read_afterwards(init: str) -> None:
    out = zeros(2, 16, dtype="int32")
    for schedule in SCHEDULES:
        kernel = histogram(init=init)
        assert found(kernel, out, schedule=schedule) == []
        assert (out == 18).all()
        for fault in ("first", "second", "third"):
            faults = found(histogram(init=init, **{fault: False}), out, schedule=schedule)
            kinds = {each[0] for each in faults}
            assert kinds and kinds <= {"race", "uninitialised"}, (fault, schedule, faults)


def counter(
    before: str = "write",
    who: int = 0,
    own: bool = True,
    meet: str = "all",
    width: str = "u32",
) -> Any:
    """Let one thread write or read a counter, count there itself, or not, and then all others."""

    @T.function
    def kernel(Out: T.Tensor((64,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        count = T.alloc_shared((4,), "uint32", layout="default", align=16)
        at = count.ptr_to([0])
        one = T.uint32(1) if T.constexpr(width == "u32") else T.uint64(1)
        if before == "read":
            if tid == 33:
                count[0] = 0
                count[1] = 0
            T.cuda.cta_sync()
        if tid == who:
            if before == "read":
                Out[1] = count[0]
            else:
                count[0] = 0
                count[1] = 0
            if own:
                T.ptx["red.shared.add." + width](at, one)
        if meet == "all":
            T.cuda.cta_sync()
        elif meet == "warp":
            T.cuda.warp_sync()
        T.ptx["red.shared.add." + width](at, one)
        T.cuda.cta_sync()
        if tid == 5:
            Out[0] = count[0]

    return kernel


@pytest.mark.parametrize("before", ["write", "read"])
@pytest.mark.parametrize("width", ["u32", "u64"])
def test_who_counts_comes_after_whoever_has_written_or_read_the_counter(
    before: str, width: str
) -> None:
    out = zeros(64, dtype="uint32")
    for schedule in SCHEDULES[:3]:
        for own in (False, True):
            for who in (7, 63):
                make = {"before": before, "who": who, "own": own, "width": width}
                assert found(counter(**make), out, schedule=schedule) == []
                assert out[0] == 64 + own
                for meet in ("warp", "none"):
                    faults = found(counter(meet=meet, **make), out, schedule=schedule)
                    kinds = {each[0] for each in faults}
                    assert kinds in ({"race"}, {"race", "uninitialised"}), (make, schedule, faults)


# ---------------------------------------------------------------------------- one value


def raised(stores: str = "one", meets: bool = True) -> Any:
    """Raise a flag by any thread of any warp that has something to tell."""

    @T.function
    def kernel(A: T.Tensor((N,), "int32"), Out: T.Tensor((N,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        flag = T.alloc_shared((1,), "int32", layout="default")
        if tid == 0:
            flag[0] = 0
        T.cuda.cta_sync()
        if A[tid] % 3 == 0:
            if stores == "one":
                flag[0] = 1
            elif stores == "the warp's":
                flag[0] = T.cuda.warp_id()
            else:
                for value in T.unroll(2):
                    if T.cuda.warp_id() == value:
                        flag[0] = 5 + value
        if meets:
            T.cuda.cta_sync()
        Out[tid] = flag[0]

    return kernel


def test_threads_of_any_warp_may_store_the_same_constant() -> None:
    arrays = np.arange(N, dtype="int32"), np.zeros(N, "int32")
    line = "flag[0] ="
    for stores in ("the warp's", "one of two"):
        expect(raised, {"stores": stores}, "race", line, line, *arrays)
    expect(raised, {"meets": False}, "race", line, "Out[tid] =", *arrays)
