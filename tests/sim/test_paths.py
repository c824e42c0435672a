"""Threads make progress independently, whatever way the lanes of a warp part.

Expected values come from running the same program one thread after another in Python.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright import simt as T

SCHEDULES = ("late", "eager", "random:1", "random:2", "random:3")
TARGET = "sm_90a"


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return request.param


def run(kernel, *arguments, **options):
    tilewright.compile(kernel, target=TARGET, **options)(*arguments)


@T.function
def lane_waits_for_the_other_arm(Out: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if lane == 0:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(31))
    T.cuda.warp_sync()
    if lane == 0:
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        Out[0] = 100
    else:
        T.ptx["mbarrier.arrive.shared::cta.b64"](bar.ptr_to([0]))
        Out[lane] = lane


def test_a_lane_waits_for_lanes_in_the_other_arm(schedule):
    out = np.zeros(32, np.int32)
    run(lane_waits_for_the_other_arm, out, schedule=schedule)
    assert out.tolist() == [100, *range(1, 32)]


@T.function
def spin_lock(Lock: T.Tensor((1,), "uint32"), Count: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64))
    old: T.uint32
    while True:
        T.ptx["atom.global.cas.b32"](old, Lock.ptr_to([0]), T.uint32(0), T.uint32(1))
        if old == 0:
            break
    Count[0] = Count[0] + 1
    T.ptx["atom.global.exch.b32"](old, Lock.ptr_to([0]), T.uint32(0))


def test_a_spin_lock_per_lane_lets_every_lane_in_once(schedule):
    lock, count = np.zeros(1, np.uint32), np.zeros(1, np.int32)
    run(spin_lock, lock, count, schedule=schedule)
    assert (lock[0], count[0]) == (0, 128)


@T.function
def lock_released_inside_the_loop(Lock: T.Tensor((1,), "uint32"), Count: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
    old: T.uint32
    done: T.int32 = 0
    while done == 0:
        T.ptx["atom.global.cas.b32"](old, Lock.ptr_to([0]), T.uint32(0), T.uint32(1))
        if old == 0:
            Count[0] = Count[0] + 1
            T.ptx["atom.global.exch.b32"](old, Lock.ptr_to([0]), T.uint32(0))
            done = 1


def test_a_lock_released_inside_its_loop(schedule):
    lock, count = np.zeros(1, np.uint32), np.zeros(1, np.int32)
    run(lock_released_inside_the_loop, lock, count, schedule=schedule)
    assert (lock[0], count[0]) == (0, 96)


@T.function
def collatz(In: T.Tensor((64,), "int32"), Out: T.Tensor((64,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    n: T.int32 = In[i]
    steps: T.int32 = 0
    odd: T.int32 = 0
    while n != 1:
        steps += 1
        if steps > 100:
            break
        if n % 2 == 0:
            n = n // 2
            continue
        n = 3 * n + 1
        odd += 1
    Out[i] = steps * 1000 + odd


def collatz_reference(n: int) -> int:
    steps = odd = 0
    while n != 1:
        steps += 1
        if steps > 100:
            break
        if n % 2 == 0:
            n //= 2
            continue
        n = 3 * n + 1
        odd += 1
    return steps * 1000 + odd


def test_lanes_take_different_turns_of_a_loop():
    given, out = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32)
    run(collatz, given, out)
    assert out.tolist() == [collatz_reference(n) for n in range(1, 65)]


@T.function
def early_return(Out: T.Tensor((64,), "int32"), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    if i >= n:
        return
    total: T.int32 = 0
    for j in range(i):
        if j == 5:
            break
        total += j
    Out[i] = total + 1


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 40, 64])
def test_some_lanes_return_early(n):
    out = np.zeros(64, np.int32)
    run(early_return, out, n)
    expected = [sum(range(min(i, 5))) + 1 if i < n else 0 for i in range(64)]
    assert out.tolist() == expected


@T.function
def producer_and_consumers(Out: T.Tensor((4, 32), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=160))
    warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
    stage = T.alloc_shared((2, 32), "int32", layout="default", align=16)
    full = T.alloc_shared((2,), "uint64", layout="default", align=8)
    empty = T.alloc_shared((2,), "uint64", layout="default", align=8)
    if T.cuda.thread_idx("x") == 0:
        for s in range(2):
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(empty.ptr_to([s]), T.uint32(128))
    T.cuda.cta_sync()
    if warp == 4:
        if lane == 0:
            for k in range(8):
                T.cuda.mbarrier_wait(empty.ptr_to([k % 2]), (k // 2 + 1) % 2)
                for j in range(32):
                    stage[k % 2, j] = k * 100 + j
                T.ptx["mbarrier.arrive.shared::cta.b64"](full.ptr_to([k % 2]))
    else:
        total: T.int32 = 0
        for k in range(8):
            T.cuda.mbarrier_wait(full.ptr_to([k % 2]), (k // 2) % 2)
            total += stage[k % 2, lane]
            T.ptx["mbarrier.arrive.shared::cta.b64"](empty.ptr_to([k % 2]))
        Out[warp, lane] = total
    T.cuda.cta_sync()


def test_a_ring_between_one_producing_lane_and_four_warps(schedule):
    out = np.zeros((4, 32), np.int32)
    run(producer_and_consumers, out, schedule=schedule)
    expected = [sum(k * 100 + j for k in range(8)) for j in range(32)]
    assert out.tolist() == [expected] * 4


@T.function
def waits_in_a_divergent_loop(Out: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    bar = T.alloc_shared((4,), "uint64", layout="default", align=8)
    if lane < 4:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([lane]), T.uint32(1))
    T.cuda.warp_sync()
    count: T.int32 = 0
    # Lane l passes l % 4 barriers, each opened by a lane that is further on.
    while count < lane % 4:
        if lane >= 8:
            T.cuda.mbarrier_wait(bar.ptr_to([count]), 0)
        if lane == 7:
            T.ptx["mbarrier.arrive.shared::cta.b64"](bar.ptr_to([count]))
        if count == 2:
            break
        count += 1
    T.cuda.warp_sync()
    Out[lane] = count + T.cuda.__shfl_xor_sync(T.uint32(0xFFFFFFFF), count, 1, 32)


def test_waits_in_a_loop_that_lanes_leave_at_different_times(schedule):
    out = np.zeros(32, np.int32)
    run(waits_in_a_divergent_loop, out, schedule=schedule)
    counts = [min(lane % 4, 2) for lane in range(32)]
    assert out.tolist() == [counts[lane] + counts[lane ^ 1] for lane in range(32)]


@T.function
def lanes_meet_at_a_shuffle(Out: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    x: T.int32 = lane
    if lane < 16:
        x = T.cuda.__shfl_down_sync(T.uint32(0x0000FFFF), x, 1, 16) * 10
    else:
        x = T.cuda.__shfl_xor_sync(T.uint32(0xFFFF0000), x, 3, 32) * 100
    Out[lane] = x


def test_collectives_of_half_a_warp():
    out = np.zeros(32, np.int32)
    run(lanes_meet_at_a_shuffle, out)
    low = [(lane + 1 if lane < 15 else lane) * 10 for lane in range(16)]
    assert out.tolist() == low + [(lane ^ 3) * 100 for lane in range(16, 32)]


@T.function
def flag_between_ctas(
    Flag: T.Tensor((1,), "uint32"), Data: T.Tensor((32,), "int32"), Out: T.Tensor((32,), "int32")
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32))
    lane = T.cuda.lane_id()
    seen: T.uint32 = 0
    if T.cuda.block_idx("x") == 0:
        # The first CTA waits for the second: both must be live.
        while seen == 0:
            T.ptx["ld.acquire.gpu.global.u32"](seen, Flag.ptr_to([0]))
        Out[lane] = Data[lane] * 2
    else:
        Data[lane] = lane + 7
        T.cuda.warp_sync()
        if lane == 0:
            T.ptx["st.release.gpu.global.u32"](Flag.ptr_to([0]), T.uint32(1))


def test_a_cta_waits_for_a_later_one(schedule):
    flag, data, out = np.zeros(1, np.uint32), np.zeros(32, np.int32), np.zeros(32, np.int32)
    run(flag_between_ctas, flag, data, out, schedule=schedule)
    assert out.tolist() == [(lane + 7) * 2 for lane in range(32)]


@T.function
def warps_exit_before_a_barrier(Out: T.Tensor((4, 32), "int32"), leaving: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
    stage = T.alloc_shared((4, 32), "int32", layout="default", align=16)
    stage[warp, lane] = warp + 1
    if warp < leaving:
        return
    if lane == 3 and warp == 3:
        return
    T.cuda.cta_sync()
    total: T.int32 = 0
    for w in range(4):
        total += stage[w, lane]
    Out[warp, lane] = total
    if warp == 2:
        return
    votes: T.uint32
    T.ptx["bar.red.popc.u32"](votes, T.uint32(0), lane > 5)
    Out[warp, lane] = total + T.cast(votes, "int32")


@pytest.mark.parametrize("leaving", [0, 1, 2, 3, 4])
def test_a_barrier_does_not_wait_for_warps_that_have_exited(leaving, schedule):
    out = np.zeros((4, 32), np.int32)
    run(warps_exit_before_a_barrier, out, leaving, schedule=schedule)
    votes = {0: 3, 1: 2, 2: 1, 3: 1}.get(leaving, 0) * 26
    expected = np.full((4, 32), 10 + votes)
    expected[2] = 10
    expected[:leaving] = 0
    expected[3, 3] = 0
    assert np.array_equal(out, expected)


@T.function
def counted_barrier_without_a_warp(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
    if T.cuda.warp_id() == 0:
        return
    T.ptx["bar.sync"](T.uint32(1), T.uint32(96))
    Out[0] = 1


def test_a_count_is_not_met_by_warps_that_have_exited():
    with pytest.raises(tilewright.DeadlockError) as caught:
        run(counted_barrier_without_a_warp, np.zeros(1, np.int32))
    assert "barrier 1: 64 of 96 threads have arrived" in str(caught.value)


@T.function
def an_arm_that_all_its_lanes_leave(Out: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    count: T.int32 = 0
    for _ in range(4):
        if lane < 16:
            if lane < 20:
                if lane % 2 == 0:
                    break
                continue
            count += 1000
        else:
            count += 10
        count += 1
    Out[lane] = count


def test_lanes_outside_an_arm_go_on_when_all_in_it_have_left():
    out = np.zeros(32, np.int32)
    run(an_arm_that_all_its_lanes_leave, out)
    assert out.tolist() == [0] * 16 + [44] * 16


@T.function
def apart_then_together_in_an_arm(Out: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    x: T.int32 = lane
    if lane == 0:
        # While this lane sleeps nobody else can go on, so they go on without it.
        T.cuda.nano_sleep(1)
    else:
        x += 100
    if lane < 4:
        x = T.cuda.__shfl_xor_sync(T.uint32(0xF), x, 3, 32)
    else:
        x = T.cuda.__shfl_xor_sync(T.uint32(0xFFFFFFF0), x, 1, 32)
    T.cuda.warp_sync()
    Out[lane] = x + T.cuda.__shfl_xor_sync(T.uint32(0xFFFFFFFF), x, 1, 32)


def test_paths_that_went_on_apart_meet_in_a_collective_of_a_branch(schedule):
    out = np.zeros(32, np.int32)
    run(apart_then_together_in_an_arm, out, schedule=schedule)
    x = [0, *range(101, 132)]
    y = [x[lane ^ 3] if lane < 4 else x[lane ^ 1] for lane in range(32)]
    assert out.tolist() == [y[lane] + y[lane ^ 1] for lane in range(32)]


@T.function
def steps_beyond_the_range(Out: T.Tensor((32, 2), "int32"), stop: T.int32, step: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    count: T.int32 = 0
    for _ in range(stop - 10, stop, step):
        count += 1
    Out[lane, 0] = count
    for _ in range(2147483600 + lane, 2147483647, 50):
        count += 1
    Out[lane, 1] = count


@pytest.mark.parametrize(("stop", "step"), [(2147483647, 7), (2147483640, 2000000000), (5, 3)])
def test_a_step_beyond_the_range_of_the_type_ends_a_loop(stop, step):
    out = np.zeros((32, 2), np.int32)
    run(steps_beyond_the_range, out, stop, step, step_limit=1_000_000)
    count = len(range(stop - 10, stop, step))
    assert out.tolist() == [[count, count + 1]] * 32


@T.function
def wide_counts(Count: T.Tensor((8,), "int64"), Out: T.Tensor((8, 3), "int64")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=8))
    i = T.cuda.thread_idx("x")
    Out[i, 0] = T.int64(-8) << Count[i]
    Out[i, 1] = T.int64(-8) >> Count[i]
    Out[i, 2] = T.cast(T.uint64(8) >> T.cast(Count[i], "uint64"), "int64")


def test_a_shift_by_a_count_of_64_bits():
    counts = np.array([0, 1, 63, 64, 1 << 32, -1, -(1 << 32), (1 << 32) + 1])
    out = np.zeros((8, 3), np.int64)
    run(wide_counts, counts, out)
    beyond = [0, -1, 0]
    assert out.tolist() == [[-8, -8, 8], [-16, -4, 4], beyond, *[beyond] * 5]
