"""What a report says of mbarriers: whose, by which name, how many bytes, and who is to blame."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt as T

SCHEDULES = ["late", "eager", "random:1", "random:2"]


def error_of(kernel: Any, *arguments: Any, schedule: str = "late") -> tilewright.TilewrightError:
    with pytest.raises(tilewright.TilewrightError) as caught:
        tilewright.compile(kernel, target="sm_100a", schedule=schedule)(*arguments)
    return caught.value


def line_of(kernel: Any, text: str) -> int:
    lines, start = inspect.getsourcelines(kernel.function)
    return start + next(number for number, line in enumerate(lines) if text in line)


# ---------------------------------------------------------------------------- bytes


def exchange(phases: list[tuple[int, int]]) -> Any:
    """Write a kernel whose mbarrier expects and gets bytes, phase by phase; the last one hangs."""

    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if T.cuda.lane_id() == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
            for expected, come in phases:
                T.ptx.mbarrier.expect_tx.relaxed.cta.shared__cta.b64(
                    full.ptr_to([0]), T.uint32(expected)
                )
                T.ptx.mbarrier.complete_tx.relaxed.cta.shared__cta.b64(
                    full.ptr_to([0]), T.uint32(come)
                )
                T.ptx.mbarrier.arrive.shared__cta.b64(T.ptx.SINK, full.ptr_to([0]))
        T.cuda.warp_sync()
        T.cuda.mbarrier_wait(full.ptr_to([0]), (len(phases) - 1) % 2)

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "phases",
    [
        [(31744, 32768)],
        [(4096, 1024)],
        [(64, 64), (4096, 0)],
        [(1 << 19, 1 << 19), (48, 48), (16, 32)],
    ],
    ids=str,
)
def test_a_deadlock_tells_bytes_expected_and_come_of_the_phase(
    phases: list[tuple[int, int]], schedule: str
) -> None:
    error = error_of(exchange(phases), np.zeros(1, np.int32), schedule=schedule)
    expected, come = phases[-1]
    assert error.code == "deadlock"
    assert f"{expected} bytes expected, {come} have come" in str(error)


def test_bytes_of_copies_count_when_they_have_come() -> None:
    @T.function
    def kernel(A: T.Tensor((64,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        held = T.alloc_shared((64,), "uint32", layout="default", align=128)
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if T.cuda.lane_id() == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(full.ptr_to([0]), T.uint32(256))
            for half in range(3):
                T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](
                    held.ptr_to([16 * half]), A.ptr_to([0]), T.uint32(64), full.ptr_to([0])
                )
        T.cuda.warp_sync()
        T.cuda.mbarrier_wait(full.ptr_to([0]), 0)

    for schedule in SCHEDULES:
        error = error_of(kernel, np.zeros(64, np.uint32), schedule=schedule)
        assert "1 of 1 arrivals, 256 bytes expected, 192 have come" in str(error)


# ---------------------------------------------------------------------------- names


@T.inline
def waits_at(bar):
    if T.cuda.thread_idx("x") == 0:
        T.ptx.mbarrier.init.shared.b64(bar, T.uint32(7))
    T.cuda.cta_sync()
    T.cuda.mbarrier_wait(bar, 0)


@T.function
def one_of_a_list(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    full = [T.alloc_shared((1,), "uint64", layout="default", align=8) for stage in range(2)]
    waits_at(full[1].ptr_to([0]))


@T.function
def one_of_a_display(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    full = (T.alloc_shared((1,), "uint64"), T.alloc_shared((4,), "uint64"))
    waits_at(full[1].ptr_to([2]))


@T.function
def one_of_two_names(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    full, empty = T.alloc_shared((1,), "uint64"), T.alloc_shared((1,), "uint64")
    waits_at(empty.ptr_to([0]))
    waits_at(full.ptr_to([0]))


@T.function
def one_of_a_table(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    two = T.alloc_shared((2, 3), "uint64", layout="default", align=8)
    waits_at(two.ptr_to([1, 2]))


@T.function
def one_in_bytes(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    first = T.alloc_shared((64,), "float32", layout="default", align=8)
    pool = T.alloc_shared((64,), "uint8", layout="default", align=8)
    first[0] = 1.0
    bars = T.decl_tensor(
        pool.ptr_to([16]), ty_args=[T.Tensor((2,), "uint64", scope="shared", layout="default")]
    )
    waits_at(bars.ptr_to([1]))


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (one_of_a_list, "full_1[0]"),
        (one_of_a_display, "full_1[2]"),
        (one_of_two_names, "empty[0]"),
        (one_of_a_table, "two[1, 2]"),
        (one_in_bytes, "byte 24 of pool"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_mbarrier_has_the_users_name(kernel: Any, name: str) -> None:
    error = error_of(kernel, np.zeros(1, np.int32))
    assert f"waits for phase parity 0 of {name}: phase 0, 0 of 7 arrivals" in str(error)


def test_a_report_names_the_calls_that_lead_to_a_wait() -> None:
    text = str(error_of(one_of_a_table, np.zeros(1, np.int32)))
    called = line_of(one_of_a_table, "waits_at")
    assert f"called from {__file__}:{called}:5" in text
    note = next(each for each in text.splitlines() if "warp 0" in each)
    assert f"called from {__file__}:{called}:5" in note


@pytest.mark.parametrize("form", ["parity", "hint", "state"])
def test_a_report_tells_the_phase_that_is_waited_for(form: str) -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        done: T.bool = False
        state: T.uint64
        if T.cuda.lane_id() == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(2))
            T.ptx["mbarrier.arrive.shared::cta.b64"](state, full.ptr_to([0]))
            T.ptx["mbarrier.arrive.shared::cta.b64"](state, full.ptr_to([0]))
            T.ptx["mbarrier.arrive.shared::cta.b64"](state, full.ptr_to([0]))
            while not done:
                if form == "state":
                    T.ptx["mbarrier.try_wait.shared::cta.b64"](done, full.ptr_to([0]), state)
                elif form == "hint":
                    T.ptx["mbarrier.try_wait.parity.shared::cta.b64"](
                        done, full.ptr_to([0]), T.uint32(1), T.uint32(1000)
                    )
                else:
                    T.ptx["mbarrier.try_wait.parity.shared::cta.b64"](
                        done, full.ptr_to([0]), T.uint32(1)
                    )

    error = error_of(kernel, np.zeros(1, np.int32))
    assert "phase parity 1 of full[0]: phase 1, 1 of 2 arrivals" in str(error)


# ---------------------------------------------------------------------------- who is to blame


@T.function
def copies_from_outside(A: T.Tensor((64,), "uint32"), start: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    thread = T.cuda.thread_idx("x")
    held = T.alloc_shared((64,), "uint32", layout="default", align=128)
    full = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if thread == 0:
        T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
    T.cuda.cta_sync()
    if thread == 71:
        T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(full.ptr_to([0]), T.uint32(64))
        T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](
            held.ptr_to([0]), A.ptr_to([start]), T.uint32(64), full.ptr_to([0])
        )
    T.cuda.mbarrier_wait(full.ptr_to([0]), 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_fault_of_an_operation_in_flight_blames_who_issued_it(schedule: str) -> None:
    error = error_of(copies_from_outside, np.zeros(64, np.uint32), 4096, schedule=schedule)
    assert error.code == "out-of-bounds"
    assert "thread 71 (warp 2, lane 7)" in str(error)


@T.function
def arrives_too_often(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    full = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if T.cuda.thread_idx("x") == 0:
        T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
    T.cuda.cta_sync()
    if T.cuda.thread_idx("x") == 45:
        T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, full.ptr_to([0]), T.uint32(2))


def test_a_fault_of_one_lane_blames_that_lane() -> None:
    error = error_of(arrives_too_often, np.zeros(1, np.int32))
    assert "thread 45 (warp 1, lane 13)" in str(error)


@T.function
def waits_for_one_of_two(A: T.Tensor((64,), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    thread = T.cuda.thread_idx("x")
    held = T.alloc_shared((64,), "uint32", layout="default", align=128)
    full = T.alloc_shared((2,), "uint64", layout="default", align=8)
    if thread == 40:
        for stage in range(2):
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([stage]), T.uint32(1))
            T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(full.ptr_to([stage]), T.uint32(64))
            T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](
                held.ptr_to([0]), A.ptr_to([0]), T.uint32(64), full.ptr_to([stage])
            )
    T.cuda.cta_sync()
    T.cuda.mbarrier_wait(full.ptr_to([0]), 0)


def test_what_is_in_flight_at_the_end_names_its_mbarrier_and_who_issued_it() -> None:
    text = str(error_of(waits_for_one_of_two, np.zeros(64, np.uint32)))
    assert "[mbarrier-protocol]" in text
    assert "no wait that is still to end needs it" in text
    state = "phase 0, 1 of 1 arrivals, 64 bytes expected, 0 have come"
    assert f"its mbarrier is full[1]: {state}" in text
    assert "thread 40 (warp 1, lane 8)" in text


@T.function
def leaves_early(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
    full = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if T.cuda.thread_idx("x") == 0:
        T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(96))
    T.cuda.cta_sync()
    if T.cuda.thread_idx("x") < 32:
        T.cuda.mbarrier_wait(full.ptr_to([0]), 0)


def test_a_wait_for_an_mbarrier_tells_of_threads_that_have_exited() -> None:
    text = str(error_of(leaves_early, np.zeros(1, np.int32)))
    assert "0 of 96 arrivals, no bytes expected, 64 threads have exited" in text


# ---------------------------------------------------------------------------- initialised again


def initialised_again(awaited: bool, flying: bool, invalidated: bool = False) -> Any:
    @T.function
    def kernel(A: T.Tensor((64,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        thread = T.cuda.thread_idx("x")
        held = T.alloc_shared((64,), "uint32", layout="default", align=128)
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        go = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if thread == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(go.ptr_to([0]), T.uint32(1))
        T.cuda.cta_sync()
        if thread == 32 and flying:
            T.ptx.mbarrier.expect_tx.relaxed.cta.shared__cta.b64(full.ptr_to([0]), T.uint32(64))
            T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](
                held.ptr_to([0]), A.ptr_to([0]), T.uint32(64), full.ptr_to([0])
            )
        T.cuda.cta_sync()
        if thread == 0:
            if awaited:
                # Others come to their wait meanwhile: this one lets them by waiting itself.
                T.cuda.nano_sleep(100)
                T.cuda.nano_sleep(100)
            if invalidated:
                T.ptx.mbarrier.inval.shared.b64(full.ptr_to([0]))
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))  # again
            T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, full.ptr_to([0]))
        if thread >= 32 and awaited:
            T.cuda.mbarrier_wait(full.ptr_to([0]), 0)

    return kernel


@pytest.mark.parametrize(("awaited", "flying"), [(True, False), (False, True)])
def test_an_mbarrier_in_use_is_not_initialised_again(awaited: bool, flying: bool) -> None:
    kernel = initialised_again(awaited, flying)
    error = error_of(kernel, np.zeros(64, np.uint32))
    assert error.code == "mbarrier-protocol"
    assert error.location is not None
    assert error.location.line == line_of(kernel, "# again")


@pytest.mark.parametrize("invalidated", [True, False])
def test_an_mbarrier_that_nobody_uses_may_be(invalidated: bool) -> None:
    for schedule in SCHEDULES:
        kernel = initialised_again(False, False, invalidated)
        tilewright.compile(kernel, target="sm_100a", schedule=schedule)(np.zeros(64, np.uint32))


# ---------------------------------------------------------------------------- other waits


@T.function
def sleeps_in_a_poll(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    flag = T.alloc_shared((1,), "int32", layout="default")
    flag[0] = 0
    T.cuda.warp_sync()
    while flag[0] == 0:
        T.cuda.nano_sleep(20)


def test_a_loop_that_sleeps_polls_memory_that_does_not_change() -> None:
    error = error_of(sleeps_in_a_poll, np.zeros(1, np.int32))
    assert error.code == "deadlock"
    assert "polls memory that does not change" in str(error)


@T.function
def barrier_of_some(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    if T.cuda.lane_id() < 7:
        T.cuda.cta_sync()  # here
    T.cuda.warp_sync()


@T.function
def vote_of_some(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    if T.cuda.lane_id() % 2 == 0:
        T.cuda.cta_sync()  # here
    else:
        T.cuda.any_sync(T.uint32(0xFFFFFFFF), True)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", [barrier_of_some, vote_of_some])
def test_a_collective_in_a_branch_that_the_others_never_take(kernel: Any, schedule: str) -> None:
    error = error_of(kernel, np.zeros(1, np.int32), schedule=schedule)
    assert error.code == "divergent-collective"
    assert isinstance(error, tilewright.DeadlockError)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("size", [0, 16])
def test_a_copy_of_no_bytes_leaves_nothing_in_flight(size: int, schedule: str) -> None:
    @T.function
    def kernel(A: T.Tensor((64,), "uint32"), bytes: T.uint32):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        held = T.alloc_shared((64,), "uint32", layout="default", align=128)
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if T.cuda.lane_id() == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(full.ptr_to([0]), bytes)
            T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](
                held.ptr_to([0]), A.ptr_to([0]), bytes, full.ptr_to([0])
            )
            if bytes != T.uint32(0):
                T.cuda.mbarrier_wait(full.ptr_to([0]), 0)

    tilewright.compile(kernel, target="sm_100a", schedule=schedule)(np.zeros(64, np.uint32), size)
