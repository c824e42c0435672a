"""A fault ends the launch with a typed error at the user's line, and touches no host memory."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright import simt as T

TARGET = "sm_90a"


def run(kernel, *arguments, **options):
    tilewright.compile(kernel, target=TARGET, **options)(*arguments)


def line_in(error: tilewright.TilewrightError) -> int:
    assert error.location is not None
    return error.location.line


def line_of(kernel, text: str) -> int:
    lines, start = inspect.getsourcelines(kernel.function)
    return start + next(number for number, line in enumerate(lines) if text in line)


@T.function
def writes_outside(Out: T.Tensor((40,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    Out[i] = i


def test_a_write_outside_names_the_line_the_thread_and_the_byte():
    memory = np.zeros(64, np.int32)
    with pytest.raises(tilewright.MemoryFault) as caught:
        run(writes_outside, memory[:40])
    error = caught.value
    assert error.code == "out-of-bounds"
    assert line_in(error) == line_of(writes_outside, "Out[i] = i")
    assert "thread 40 (warp 1, lane 8)" in str(error)
    assert "byte 160 of Out, which has 160 bytes" in str(error)
    assert not memory[40:].any()


@T.function
def reads_outside_shared(Out: T.Tensor((32,), "int32"), shift: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    a = T.alloc_shared((32,), "int32", layout="default", align=16)
    a[lane] = lane
    Out[lane] = a[lane + shift]


@pytest.mark.parametrize("shift", [1, -1, 1 << 20])
def test_a_read_outside_shared_memory(shift):
    with pytest.raises(tilewright.MemoryFault) as caught:
        run(reads_outside_shared, np.zeros(32, np.int32), shift)
    assert caught.value.code == "out-of-bounds"


@T.function
def one_of_global(Out: T.Tensor((1,), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    Out[at] = 1


@T.function
def one_row(Out: T.Tensor((1, 4), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    Out[at, 3] = 1


@T.function
def one_column(Out: T.Tensor((4, 1), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    Out[0, 4 * at] = 1


@T.function
def one_row_of_a_view(Out: T.Tensor((4, 2), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    rows = Out.view(1, 8).sub[at]
    rows[5] = 1


@T.function
def one_of_shared(Out: T.Tensor((1,), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    a = T.alloc_shared((1,), "int32", layout="default")
    a[0] = 1
    Out[0] = a[at]


@T.function
def one_stage_of_shared(Out: T.Tensor((1,), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    a = T.alloc_shared((1, 8, 2), "int32", layout="default")
    a[0, 7, 1] = 1
    Out[0] = a[at, 7, 1]


@T.function
def one_of_local(Out: T.Tensor((1,), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    a = T.alloc_local((1,), "int32", layout="default")
    a[0] = 1
    Out[0] = a[at]


@T.function
def one_row_of_local(Out: T.Tensor((1,), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    a = T.alloc_local((1, 4), "int32", layout="default")
    a[0, 2] = 1
    Out[0] = a[at, 2]


@pytest.mark.parametrize(
    ("kernel", "shape", "line"),
    [
        (one_of_global, (1,), "Out[at]"),
        (one_row, (1, 4), "Out[at, 3]"),
        (one_column, (4, 1), "Out[0, 4 * at]"),
        (one_row_of_a_view, (4, 2), "rows[5]"),
        (one_of_shared, (1,), "a[at]"),
        (one_stage_of_shared, (1,), "a[at, 7, 1]"),
        (one_of_local, (1,), "a[at]"),
        (one_row_of_local, (1,), "a[at, 2]"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_an_index_counts_along_an_axis_of_one_element(kernel, shape, line):
    out = np.zeros(shape, np.int32)
    run(kernel, out, 0)
    assert out.sum() == 1
    for at in (1, 5, -1):
        out = np.zeros(shape, np.int32)
        with pytest.raises(tilewright.MemoryFault) as caught:
            run(kernel, out, at)
        assert caught.value.code == "out-of-bounds"
        assert line_in(caught.value) == line_of(kernel, line)
        assert not out.any()


@T.function
def misaligned_vector(A: T.Tensor((64,), "float32"), Out: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    v = T.alloc_local((4,), "float32", layout="default")
    T.ptx["ld.global.v4.f32"](v[0], v[1], v[2], v[3], A.ptr_to([1]))
    Out[0] = v[0]


def test_a_misaligned_vector_access():
    with pytest.raises(tilewright.MemoryFault) as caught:
        run(misaligned_vector, np.zeros(64, np.float32), np.zeros(64, np.float32))
    assert caught.value.code == "misaligned"
    assert line_in(caught.value) == line_of(misaligned_vector, "ld.global.v4")


@T.function
def low_address(Out: T.Tensor((1,), "uint32"), address: T.uint64):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    v = T.alloc_local((1,), "uint32", layout="default")
    T.ptx.ld.global_.b32(v[0], address)
    Out[0] = v[0]


@pytest.mark.parametrize("address", [1024, 4096, 1 << 40])
def test_the_space_of_a_fault_is_that_of_the_access(address):
    with pytest.raises(tilewright.MemoryFault) as caught:
        run(low_address, np.zeros(1, np.uint32), address)
    assert f"global address {address:#x}" in str(caught.value)


@T.function
def local_index(Out: T.Tensor((32,), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    a = T.alloc_local((4,), "int32", layout="default")
    for j in range(4):
        a[j] = j
    lane = T.cuda.lane_id()
    Out[lane] = a[at] + a[lane % 4]


def test_local_arrays_are_bounded_too():
    out = np.zeros(32, np.int32)
    run(local_index, out, 3)
    assert out.tolist() == [3 + lane % 4 for lane in range(32)]
    for at in (4, -1, 1 << 30):
        with pytest.raises(tilewright.MemoryFault) as caught:
            run(local_index, out, at)
        assert caught.value.code == "out-of-bounds"


@T.function
def never_completed(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    ready = T.alloc_shared((2,), "uint64", layout="default", align=8)
    if T.cuda.thread_idx("x") == 0:
        T.ptx.mbarrier.init.shared.b64(ready.ptr_to([0]), T.uint32(1))
        T.ptx.mbarrier.init.shared.b64(ready.ptr_to([1]), T.uint32(2))
    T.cuda.cta_sync()
    if T.cuda.warp_id() == 0:
        T.cuda.mbarrier_wait(ready.ptr_to([1]), 0)
    else:
        T.cuda.cta_sync()


@pytest.mark.parametrize("schedule", ["late", "eager", "random:4"])
def test_a_deadlock_names_every_waiter(schedule):
    with pytest.raises(tilewright.DeadlockError) as caught:
        run(never_completed, np.zeros(1, np.int32), schedule=schedule)
    text = str(caught.value)
    assert caught.value.code == "deadlock"
    assert line_in(caught.value) == line_of(never_completed, "mbarrier_wait")
    assert "phase parity 0 of ready[1]" in text
    assert "0 of 2 arrivals" in text
    assert "barrier 0: 32 of 64 threads have arrived" in text


@pytest.mark.parametrize("seed", range(4))
def test_a_deadlock_is_seen_long_before_the_step_limit(seed):
    # Chance passes every second turn over, and lets waits give up.
    with pytest.raises(tilewright.DeadlockError):
        run(never_completed, np.zeros(1, np.int32), schedule=f"random:{seed}", step_limit=100_000)


@T.function
def barrier_in_a_branch(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    if T.cuda.lane_id() < 7:
        T.cuda.cta_sync()
    T.cuda.warp_sync()


def test_a_barrier_that_some_lanes_never_reach():
    with pytest.raises(tilewright.DeadlockError) as caught:
        run(barrier_in_a_branch, np.zeros(1, np.int32))
    assert line_in(caught.value) == line_of(barrier_in_a_branch, "cta_sync")
    assert "lanes 0-6: bar.sync waits until lanes 0-31 execute it together" in str(caught.value)
    assert "lanes 7-31: bar.warp.sync waits until lanes 0-31" in str(caught.value)


@T.function
def arrives_beyond_what_is_expected(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    state: T.uint64
    bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if T.cuda.lane_id() == 0:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(2))
        T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([0]), T.uint32(3))


def test_an_arrival_beyond_what_the_phase_expects():
    with pytest.raises(tilewright.SimulationError) as caught:
        run(arrives_beyond_what_is_expected, np.zeros(1, np.int32))
    assert caught.value.code == "mbarrier-protocol"
    assert line_in(caught.value) == line_of(arrives_beyond_what_is_expected, "mbarrier.arrive")


@T.function
def waits_without_init(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)


def test_a_wait_on_an_mbarrier_that_was_never_initialised():
    with pytest.raises(tilewright.SimulationError) as caught:
        run(waits_without_init, np.zeros(1, np.int32))
    assert caught.value.code == "mbarrier-protocol"
    assert line_in(caught.value) == line_of(waits_without_init, "mbarrier_wait")


@T.function
def endless(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    x: T.int32 = 1
    while x != 0:
        x += 2


def test_the_step_limit_ends_an_endless_loop():
    with pytest.raises(tilewright.StepLimit) as caught:
        run(endless, np.zeros(1, np.int32), step_limit=1_000_000)
    assert line_in(caught.value) == line_of(endless, "while")
    assert "1000000" in (caught.value.expected or "") and caught.value.found
    assert "step_limit=" in (caught.value.hint or "")


@T.function
def takes_turns(Out: T.Tensor((64,), "int32"), turns: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64))
    i = T.cuda.thread_idx("x")
    taken: T.int32 = 0
    if i % 2 == 0:
        for _ in range(turns):
            taken += 1
    T.cuda.cta_sync()
    while taken < turns:
        taken += 1
    Out[i] = taken


@pytest.mark.parametrize("turns", [1, 3, 1000, 1 << 15, 70_000])
@pytest.mark.parametrize("schedule", ["late", "random:1"])
def test_the_step_limit_counts_turns_of_the_warps_of_a_cta(turns, schedule):
    """Two warps take the turns of even lanes, then of odd lanes; waiting is no turn."""
    out = np.zeros(64, np.int32)
    run(takes_turns, out, turns, step_limit=4 * turns, schedule=schedule)
    assert (out == turns).all()
    with pytest.raises(tilewright.StepLimit) as caught:
        run(takes_turns, out, turns, step_limit=4 * turns - 1, schedule=schedule)
    assert line_in(caught.value) == line_of(takes_turns, "while")


def test_a_step_limit_may_be_as_large_as_one_likes():
    run(takes_turns, np.zeros(64, np.int32), 3, step_limit=1 << 70)


def test_an_interrupt_ends_a_launch():
    script = (
        "import _thread, threading, numpy as np, tilewright\n"
        "from test_faults import endless\n"
        "executable = tilewright.compile(endless, target='sm_80', step_limit=1 << 50)\n"
        "threading.Timer(0.5, _thread.interrupt_main).start()\n"
        "try:\n    executable(np.zeros(1, np.int32))\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "interrupted", done.stderr
    assert time.monotonic() - start < 30


@T.function
def asserts(Out: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    assert lane < 20, "only twenty lanes"
    Out[lane] = lane


def test_an_assertion_traps():
    with pytest.raises(tilewright.SimulationError) as caught:
        run(asserts, np.zeros(32, np.int32))
    assert caught.value.code == "trap"
    assert "only twenty lanes" in str(caught.value)
    assert "lane 20" in str(caught.value)


def test_the_gil_is_released_while_a_kernel_runs():
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    with pytest.raises(tilewright.StepLimit):
        run(endless, np.zeros(1, np.int32), step_limit=100_000_000)
    elapsed = time.monotonic() - start
    stop.set()
    thread.join()
    gaps = np.diff([t for t in ticks if t >= start])
    assert elapsed < 0.05 or gaps.max() < max(0.5 * elapsed, 0.25)


@T.function
def anywhere(Out: T.Tensor((1,), "uint32"), address: T.uint64):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    pointer = T.reinterpret(address, T.Ptr("uint32"))
    Out[0] = pointer[0]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (0, "global address 0x0, of a null pointer"),
        (64, "global address 0x40, of a null pointer"),
        (1 << 20, "global address 0x100000, nowhere near a tensor of the launch"),
        (0xFFFF_FFFF_FFFF_FFF0, "nowhere near a tensor of the launch"),
    ],
)
def test_an_address_of_no_tensor_is_shown_as_it_is(address: int, text: str):
    with pytest.raises(tilewright.MemoryFault) as caught:
        run(anywhere, np.zeros(1, np.uint32), address)
    assert caught.value.code == "out-of-bounds"
    assert any(text in note for note in caught.value.notes), caught.value
    assert not any("of Out" in note for note in caught.value.notes)


@T.function
def traps(Out: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    T.cuda.trap_when_assert_failed(Out[T.cuda.lane_id()] > 3)


def test_a_trap_says_what_does_not_hold():
    with pytest.raises(tilewright.SimulationError) as caught:
        run(traps, np.zeros(32, np.int32))
    assert caught.value.code == "trap"
    assert caught.value.message == "an assertion failed: Out[T.cuda.lane_id()] > 3"
