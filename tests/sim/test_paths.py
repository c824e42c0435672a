"""Threads make progress independently, whatever way the lanes of a warp part.

Expected values come from running the same program one thread after another in Python.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.frontend import parse_function

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


# ---------------------------------------------------------------------------- lanes that exited

KERNEL = """
from tilewright import simt as T

@T.function
def k(A: T.Tensor((64,), "int32"), O: T.Tensor((64,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block={block}))
    i = T.cuda.thread_idx("x")
    s = T.alloc_shared((64,), "uint32", align=128)
    f: T.float32[4]
    u: T.uint32[4]
    r: T.uint32[1]
    O[i] = 0
"""
SHARED = "s.ptr_to([0])"
# Instructions of a whole warp of which none may have exited (PTX ISA, of each: "undefined … if
# any thread in the warp has exited").
WHOLE_WARP = {
    "ldmatrix": f"T.ptx.ldmatrix.sync.aligned.m8n8.x1.shared.b16(r[0], {SHARED})",
    "stmatrix": f"T.ptx.stmatrix.sync.aligned.m8n8.x1.shared.b16({SHARED}, T.uint32(0))",
    "movmatrix": "T.ptx.movmatrix.sync.aligned.m8n8.trans.b16(r[0], T.uint32(1))",
    "mma": "T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32("
    "f[0], f[1], f[2], f[3], u[0], u[1], u[2], u[3], u[0], u[1], f[0], f[1], f[2], f[3])",
}


def exits(body, block=32):
    """Run a kernel on the numbers from 0 on, and give what it wrote."""
    text = KERNEL.format(block=block) + "".join(f"    {line}\n" for line in body)
    out = np.full(64, -5, np.int32)
    run(parse_function(text), np.arange(64, dtype=np.int32), out)
    return out


@pytest.mark.parametrize("parting", ["if i >= 4: return", "if i == 31: return"])
@pytest.mark.parametrize("name", WHOLE_WARP)
def test_an_instruction_of_a_whole_warp_is_not_one_of_those_that_are_left(name, parting):
    instruction = WHOLE_WARP[name]
    exits([instruction])
    with pytest.raises(tilewright.SimulationError) as caught:
        exits([parting, instruction])
    assert caught.value.code == "divergent-collective"
    assert caught.value.location is not None and name in caught.value.location.source_line()


def test_lanes_that_pass_an_instruction_of_the_warp_by_and_exit_are_missed():
    with pytest.raises(tilewright.SimulationError) as caught:
        exits(["if i < 4:", "    " + WHOLE_WARP["ldmatrix"]])
    assert caught.value.code == "divergent-collective"


EXCHANGES = {
    "xor": ("T.cuda.__shfl_xor_sync(0xffffffff, A[i], 1, 32)", lambda i: i ^ 1),
    "down": ("T.cuda.__shfl_down_sync(0xffffffff, A[i], 8, 32)", lambda i: min(i + 8, 31)),
    "up": ("T.cuda.__shfl_up_sync(0xffffffff, A[i], 8, 32)", lambda i: max(i - 8, 0)),
    "idx": ("T.cuda.__shfl_sync(0xffffffff, A[i], 7, 32)", lambda i: 7),
}


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("left", [7, 8, 31])
def test_a_lane_that_exited_has_no_value_to_give(name, left):
    text, source = EXCHANGES[name]
    body = [f"if i >= {left}: return", f"O[i] = {text}"]
    readers = [i for i in range(left) if source(i) >= left and source(i) != i]
    if not readers:
        exits(body)
        return
    with pytest.raises(tilewright.SimulationError) as caught:
        exits(body)
    error = caught.value
    assert error.code == "divergent-collective"
    assert f"thread {readers[0]} (" in str(error)
    assert error.location is not None and "A[i]" in error.location.source_line()
    assert "shfl" in str(error.notes)  # not the read of an operand


def test_what_lanes_read_that_no_mask_names_is_no_value():
    out = exits(["if i < 16: O[i] = T.cuda.__shfl_down_sync(0xffff, A[i], 8, 32)"])
    assert out[:8].tolist() == list(range(8, 16)) and set(out[8:16].tolist()) == {-1}
    half = exits(["O[i] = T.cuda.__shfl_down_sync(0xffffffff, A[i], 8, 32)"], block=16)
    assert half[:16].tolist() == out[:16].tolist()


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        ("O[i] = T.cast(T.cuda.ballot_sync(0xffffffff, A[i] != 3), 'int32')", 0b11_1111_0111),
        ("T.cuda.warp_sync()\n    O[i] = 1", 1),
        ("T.cuda.cta_sync()\n    O[i] = 1", 1),
        ("O[i] = T.cast(T.cuda.reduce_add_sync_u32(0xffffffff, T.uint32(2)), 'int32')", 20),
    ],
)
def test_barriers_votes_and_reductions_are_of_the_lanes_that_are_left(collective, expected):
    assert exits(["if i >= 10: return", collective])[:10].tolist() == [expected] * 10


@T.function
def some_lanes_continue_before_the_others_vote(Out: T.Tensor((32,), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    total: T.uint32 = 0
    for turn in range(3):
        if lane % 4 == 3:
            continue
        total += T.cuda.ballot_sync(T.uint32(0x77777777), lane > turn)
    Out[lane] = total


def test_a_collective_behind_a_continue_is_of_the_lanes_that_go_on(schedule):
    out = np.zeros(32, np.uint32)
    run(some_lanes_continue_before_the_others_vote, out, schedule=schedule)
    voters = [lane for lane in range(32) if lane % 4 != 3]
    votes = sum(1 << lane for turn in range(3) for lane in voters if lane > turn)
    assert out.tolist() == [0 if lane % 4 == 3 else votes % 2**32 for lane in range(32)]
