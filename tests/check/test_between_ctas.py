"""CTAs that order one another: by flags, fences, atomic operations, and clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

import tilewright
from tilewright import simt as T


def zeros(*shape: int, dtype: str = "int32") -> Any:
    return np.zeros(shape, dtype)


# ---------------------------------------------------------------------------- a flag


def by_a_flag(
    meets: bool = True,
    store: str = "release.gpu",
    load: str = "acquire.gpu",
) -> Any:
    @T.function
    def kernel(
        Flag: T.Tensor((1,), "uint32"),
        Data: T.Tensor((32,), "int32"),
        Out: T.Tensor((32,), "int32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32))
        lane = T.cuda.lane_id()
        seen: T.uint32 = 0
        if T.cuda.block_idx("x") == 0:
            Data[lane] = lane + 7
            if meets:
                T.cuda.warp_sync()
            if lane == 0:
                T.ptx["st." + store + ".global.u32"](Flag.ptr_to([0]), T.uint32(1))
        else:
            while seen == T.uint32(0):
                T.ptx["ld." + load + ".global.u32"](seen, Flag.ptr_to([0]))
            Out[lane] = Data[31 - lane]

    return kernel


FLAG = zeros(1, dtype="uint32"), zeros(32), zeros(32)


def test_a_flag_that_is_not_released() -> None:
    fault = {"store": "relaxed.gpu"}
    expect(by_a_flag, fault, "global-race", "Out[lane] =", "Data[lane] =", *FLAG)


def test_a_flag_that_is_not_acquired() -> None:
    fault = {"load": "relaxed.gpu"}
    expect(by_a_flag, fault, "global-race", "Out[lane] =", "Data[lane] =", *FLAG)


def test_a_lane_releases_for_its_warp_before_they_meet() -> None:
    fault = {"meets": False}
    expect(by_a_flag, fault, "global-race", "Out[lane] =", "Data[lane] =", *FLAG)


def test_a_scope_that_does_not_reach_the_other_cta() -> None:
    expect(by_a_flag, {"store": "release.cta"}, "global-race", "ld.", "st.", *FLAG)
    expect(by_a_flag, {"load": "acquire.cta"}, "global-race", "ld.", "st.", *FLAG)


def by_a_word(wait: str = "wait_until", place: int = 0, warps: int = 1) -> Any:
    """Poll a word by relaxed loads, and acquire then what was read: by one CTA, or by one warp."""

    @T.function
    def kernel(
        Flag: T.Tensor((2,), "uint32"),
        Data: T.Tensor((32,), "int32"),
        Out: T.Tensor((32,), "int32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=2 // warps, block=32 * warps))
        lane = T.cuda.lane_id()
        word = Flag.ptr_to([0])
        if T.cuda.block_idx("x") + T.cuda.warp_id() == 0:
            Data[lane] = lane + 7
            T.cuda.warp_sync()
            if lane == 0:
                T.ptx["st.release.gpu.global.u32"](word, T.uint32(1))
        else:
            seen: T.uint32 = 0
            again: T.uint32 = 0
            if wait == "wait_until":
                T.cuda.wait_until(seen, word, lambda value: value == 1)
            elif wait == "one lane":
                if lane == 0:
                    T.cuda.wait_until(seen, word, lambda value: value == 1)
                T.cuda.warp_sync()
            else:
                if wait == "before":
                    T.ptx["ld.acquire.gpu.global.u32"](again, Flag.ptr_to([place]))
                while seen == T.uint32(0):
                    T.ptx["ld.relaxed.gpu.global.u32"](seen, word)
                if wait == "after":
                    T.ptx["ld.acquire.gpu.global.u32"](again, Flag.ptr_to([place]))
            Out[lane] = Data[31 - lane]

    return kernel


WORD = zeros(2, dtype="uint32"), zeros(32), zeros(32)


@pytest.mark.parametrize("wait", ["wait_until", "one lane", "after"])
def test_a_word_that_is_polled_and_then_acquired(wait: str) -> None:
    for schedule in SCHEDULES:
        for warps in (1, 2):
            arrays = [np.copy(each) for each in WORD]
            assert found(by_a_word(wait, warps=warps), *arrays, schedule=schedule) == []
            assert arrays[2].tolist() == [31 - lane + 7 for lane in range(32)]


def test_a_word_that_is_polled_and_not_acquired() -> None:
    here, there = "Out[lane] =", "Data[lane] ="
    for fault in ({"wait": "none"}, {"wait": "before"}, {"wait": "after", "place": 1}):
        expect(by_a_word, fault, "global-race", here, there, *WORD)


# ---------------------------------------------------------------------------- the last one


def last_block(first: str = "fence.acq_rel.gpu", second: str = "fence.acq_rel.gpu") -> Any:
    @T.function
    def kernel(
        Parts: T.Tensor((4, 64), "int32"),
        Count: T.Tensor((1,), "uint32"),
        Out: T.Tensor((64,), "int32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=64))
        tid, block = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
        last = T.alloc_shared((1,), "uint32", layout="default", align=4)
        Parts[block, tid] = block + tid
        T.cuda.cta_sync()
        if tid == 0:
            before: T.uint32 = 0
            T.ptx[first]()
            T.ptx["atom.relaxed.gpu.global.add.u32"](before, Count.ptr_to([0]), T.uint32(1))
            T.ptx[second]()
            last[0] = before
        T.cuda.cta_sync()
        if last[0] == T.uint32(3):
            total: T.int32 = 0
            for i in range(4):
                total += Parts[i, tid]
            Out[tid] = total

    return kernel


LAST = zeros(4, 64), zeros(1, dtype="uint32"), zeros(64)


def test_fences_around_an_atomic_operation_reach_other_ctas() -> None:
    here, there = "total += Parts", "Parts[block, tid] ="
    expect(last_block, {"first": "fence.acq_rel.cta"}, "global-race", here, there, *LAST)
    expect(last_block, {"second": "fence.acq_rel.cta"}, "global-race", here, there, *LAST)


def test_every_thread_may_fence_before_the_barrier_of_its_cta() -> None:
    @T.function
    def kernel(
        Parts: T.Tensor((4, 64), "int32"),
        Count: T.Tensor((1,), "uint32"),
        Out: T.Tensor((64,), "int32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=64))
        tid, block = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
        last = T.alloc_shared((1,), "uint32", layout="default", align=4)
        Parts[block, tid] = block + tid
        T.ptx["membar.gl"]()
        T.cuda.cta_sync()
        if tid == 0:
            before: T.uint32 = 0
            T.ptx["atom.global.add.u32"](before, Count.ptr_to([0]), T.uint32(1))
            last[0] = before
        T.cuda.cta_sync()
        T.ptx["membar.gl"]()
        if last[0] == T.uint32(3):
            total: T.int32 = 0
            for i in range(4):
                total += Parts[i, tid]
            Out[tid] = total

    for schedule in SCHEDULES:
        assert found(kernel, *map(np.copy, LAST), schedule=schedule) == []


# ---------------------------------------------------------------------------- all of the grid


def grid_barrier(turns: int = 3, wait: str = "acquire.gpu") -> Any:
    @T.function
    def kernel(
        Count: T.Tensor((1,), "uint32"),
        Data: T.Tensor((8, 64), "int32"),
        Out: T.Tensor((8, 64), "int32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=8, block=64))
        tid, block = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
        for turn in range(turns):
            Data[block, tid] = 100 * turn + tid
            for half in range(2):
                T.cuda.cta_sync()
                if tid == 0:
                    seen: T.uint32 = 0
                    T.ptx["red.release.gpu.global.add.u32"](Count.ptr_to([0]), T.uint32(1))
                    while seen < T.cast(8 * (2 * turn + half + 1), "uint32"):
                        T.ptx["ld." + wait + ".global.u32"](seen, Count.ptr_to([0]))
                T.cuda.cta_sync()
                if half == 0:
                    Out[block, tid] = Data[(block + 1) % 8, tid]

    return kernel


def test_a_barrier_of_the_grid() -> None:
    arrays = zeros(1, dtype="uint32"), zeros(8, 64), zeros(8, 64)
    here, there = "Out[block, tid] =", "Data[block, tid] ="
    expect(grid_barrier, {"wait": "relaxed.gpu"}, "global-race", here, there, *arrays)


def locked(take: str = "acquire.gpu", give: str = "release.gpu") -> Any:
    @T.function
    def kernel(Lock: T.Tensor((1,), "uint32"), Sum: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=6, block=32))
        if T.cuda.lane_id() == 0:
            taken: T.uint32 = 1
            while taken != T.uint32(0):
                T.ptx["atom." + take + ".global.cas.b32"](
                    taken, Lock.ptr_to([0]), T.uint32(0), T.uint32(1)
                )
            Sum[0] = Sum[0] + 1
            T.ptx["atom." + give + ".global.exch.b32"](taken, Lock.ptr_to([0]), T.uint32(0))

    return kernel


def test_a_lock() -> None:
    arrays = zeros(1, dtype="uint32"), zeros(1)
    for schedule in SCHEDULES:
        assert found(locked(), *map(np.copy, arrays), schedule=schedule) == []
        for fault in ({"take": "relaxed.gpu"}, {"give": "relaxed.gpu"}):
            faults = found(locked(**fault), *map(np.copy, arrays), schedule=schedule)
            # The sum is read and written, and each is a race with the write of another CTA.
            assert {each[0] for each in faults} == {"global-race"}
            assert all("Sum[0]" in line for each in faults for line in each[1:])


# ---------------------------------------------------------------------------- clusters


def in_a_cluster(arrive: str = "release") -> Any:
    @T.function
    def kernel(Data: T.Tensor((4, 32), "int32"), Out: T.Tensor((4, 32), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32, cluster=2))
        lane, block = T.cuda.lane_id(), T.cuda.block_idx("x")
        Data[block, lane] = lane
        T.ptx["barrier.cluster.arrive." + arrive]()
        T.ptx["barrier.cluster.wait.acquire"]()
        Out[block, lane] = Data[block ^ 1, lane]

    return kernel


def test_the_barrier_of_a_cluster() -> None:
    arrays = zeros(4, 32), zeros(4, 32)
    here, there = "Out[block, lane] =", "Data[block, lane] ="
    expect(in_a_cluster, {"arrive": "relaxed"}, "global-race", here, there, *arrays)


def beside_a_cluster(other: int = 1) -> Any:
    """Read what another CTA has written, of the same cluster or of another one."""

    @T.function
    def kernel(Data: T.Tensor((8, 32), "int32"), Out: T.Tensor((8, 32), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=8, block=32, cluster=2))
        lane, block = T.cuda.lane_id(), T.cuda.block_idx("x")
        Data[block, lane] = lane
        T.ptx["barrier.cluster.arrive.release"]()
        T.ptx["barrier.cluster.wait.acquire"]()
        Out[block, lane] = Data[block ^ other, lane]

    return kernel


def test_the_barrier_of_a_cluster_tells_other_clusters_nothing() -> None:
    arrays = zeros(8, 32), zeros(8, 32)
    here, there = "Out[block, lane] =", "Data[block, lane] ="
    for other in (2, 3, 4):
        expect(beside_a_cluster, {"other": other}, "global-race", here, there, *arrays)


# ---------------------------------------------------------------------------- launches


def findings_of(executable: Any, *arrays: Any) -> list[str]:
    try:
        executable(*map(np.copy, arrays))
    except tilewright.CheckError as error:
        return [str(each) for each in error.findings]
    return []


@pytest.mark.parametrize(
    ("make", "fault", "arrays"),
    [
        (grid_barrier, {"wait": "relaxed.gpu"}, (zeros(1, dtype="uint32"), *[zeros(8, 64)] * 2)),
        (in_a_cluster, {"arrive": "relaxed"}, (zeros(4, 32), zeros(4, 32))),
        (last_block, {"second": "fence.acq_rel.cta"}, LAST),
    ],
)
def test_every_launch_finds_the_same(make: Any, fault: dict[str, str], arrays: Any) -> None:
    for options in ({}, fault):
        executable = tilewright.compile(
            make(**options), target="sm_100a", backend="sim", check="strict"
        )
        told = [findings_of(executable, *arrays) for _ in range(3)]
        assert told[0] == told[1] == told[2]
        assert bool(told[0]) == bool(options)


def test_arguments_that_overlap_are_one_memory() -> None:
    @T.function
    def kernel(
        Low: T.Tensor((96,), "int32"),
        High: T.Tensor((96,), "int32"),
        Count: T.Tensor((1,), "uint32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32))
        T.ptx["red.relaxed.gpu.global.add.u32"](Count.ptr_to([0]), T.uint32(1))
        if T.cuda.block_idx("x") == 0:
            Low[24 + T.cuda.lane_id()] = 1  # beyond where the other one begins
        elif T.cuda.lane_id() == 0:
            High[8] = 2

    whole = zeros(128)
    for schedule in SCHEDULES:
        arrays = whole[:96], whole[32:], zeros(1, dtype="uint32")
        faults = found(kernel, *arrays, schedule=schedule)
        assert [each[0] for each in faults] == ["global-race"]


# ---------------------------------------------------------------------------- a counter


def by_a_counter(anybody: bool = False, early: bool = False, between: str = "") -> Any:
    """Count the CTAs; the last one, or anybody, sets the counter back, by a plain store.

    Or one does `early`, before it counts itself, with something in `between`.
    """

    @T.function
    def kernel(Count: T.Tensor((1,), "int32"), Out: T.Tensor((4,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32))
        if early and T.cuda.block_idx("x") == 3 and T.cuda.lane_id() == 0:
            Count[0] = 0
        if T.constexpr(between == "barrier"):
            T.cuda.cta_sync()
        if T.constexpr(between == "fence"):
            T.ptx["fence.acq_rel.gpu"]()
        if T.cuda.lane_id() == 0:
            old = T.cuda.atomic_add(Count.ptr_to([0]), T.int32(1))
            Out[T.cuda.block_idx("x")] = old
            if (old == 3 and not early) or anybody:
                Count[0] = 0

    return kernel


def test_the_last_to_count_may_set_the_counter_back() -> None:
    # Its atomic operation has read from a chain of all others (PTX ISA, "Causality Order").
    for schedule in SCHEDULES:
        count, out = zeros(1), zeros(4)
        tilewright.compile(by_a_counter(), schedule=schedule, check=True)(count, out)
        assert count[0] == 0 and sorted(out) == [0, 1, 2, 3]


def test_one_that_is_not_the_last_may_not() -> None:
    for schedule in SCHEDULES:
        told = found(by_a_counter(anybody=True), zeros(1), zeros(4), schedule=schedule)
        assert [kind for kind, _, _ in told] == ["global-race"]


@pytest.mark.parametrize("between", ["", "barrier", "fence"])
def test_what_one_reads_of_a_counter_after_it_has_stored_there_orders_nothing(between: str) -> None:
    for schedule in SCHEDULES:
        assert found(by_a_counter(between=between), zeros(1), zeros(4), schedule=schedule) == []
        early = by_a_counter(early=True, between=between)
        told = found(early, zeros(1), zeros(4), schedule=schedule)
        assert [kind for kind, _, _ in told] == ["global-race"], schedule
