"""Phases of mbarriers: a wait must be sure of its own, by its parity, whatever the run shows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

import tilewright
from tilewright import simt as T

ARRIVE, WAIT = "mbarrier.arrive", "mbarrier_wait"


def zeros(*shape: int) -> Any:
    return np.zeros(shape, "int32")


def answered(
    answer: str = "sync", looks: str = "warp", arrival: str = "", pause: bool = False
) -> Any:
    """Let one warp end a phase, and the next one after the other has waited for the first."""
    arrive = f"mbarrier.arrive{arrival}.shared::cta.b64"

    @T.function
    def kernel(Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid, lane = T.cuda.thread_idx("x"), T.cuda.lane_id()
        bar = T.alloc_shared((2,), "uint64", layout="default", align=8)
        flag = T.alloc_shared((1,), "uint32", layout="default", align=16)
        state: T.uint64 = 0
        seen: T.uint32 = 0
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([1]), T.uint32(1))
            flag[0] = T.uint32(0)
        T.cuda.cta_sync()
        if T.cuda.warp_id() == 1:
            if T.constexpr(looks == "warp"):
                T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
            else:
                if lane == 5:
                    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
                T.cuda.warp_sync()
            if T.constexpr(answer == "sync"):
                T.ptx["bar.sync"](T.uint32(1), T.uint32(64))
            if T.constexpr(answer == "arrive"):
                T.ptx["bar.arrive"](T.uint32(1), T.uint32(64))
            if T.constexpr(answer == "mbarrier") and lane == 0:
                T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([1]))
            if T.constexpr(answer == "flag") and lane == 0:
                T.ptx["st.release.cta.shared.u32"](flag.ptr_to([0]), T.uint32(1))
        else:
            if lane == 0:
                T.ptx[arrive](state, bar.ptr_to([0]))
            if T.constexpr(answer == "sync" or answer == "arrive"):
                T.ptx["bar.sync"](T.uint32(1), T.uint32(64))
            if lane == 0:
                if T.constexpr(answer == "mbarrier"):
                    T.cuda.mbarrier_wait(bar.ptr_to([1]), 0)
                if T.constexpr(answer == "flag"):
                    while seen == T.uint32(0):
                        T.ptx["ld.acquire.cta.shared.u32"](seen, flag.ptr_to([0]))
                T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
                if T.constexpr(pause):
                    T.ptx["nanosleep.u32"](T.uint32(20))
                T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([0]))
        Out[tid] = tid

    return kernel


@pytest.mark.parametrize("answer", ["sync", "arrive", "mbarrier", "flag"])
@pytest.mark.parametrize("looks", ["warp", "lane"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_next_phase_may_end_when_its_waiters_have_looked(
    answer: str, looks: str, schedule: str
) -> None:
    kernel = answered(answer, looks)
    assert found(kernel, zeros(64), target="sm_90a", schedule=schedule) == []


@pytest.mark.parametrize("looks", ["warp", "lane"])
def test_a_phase_that_may_end_before_a_waiter_has_looked_at_the_last_one_is_told(
    looks: str,
) -> None:
    ends: set[str] = set()
    for schedule, pause in itertools.product(SCHEDULES, (False, True)):
        options: Any = {"target": "sm_90a", "backend": "sim", "schedule": schedule}
        kernel = answered("", looks, pause=pause)
        with pytest.raises(tilewright.CheckError) as caught:
            tilewright.compile(kernel, check=True, **options)(zeros(64))
        (finding,) = caught.value.findings
        assert finding.kind == "mbarrier-phase"
        assert finding.location is not None and WAIT in finding.location.source_line()
        # Where the waiter has looked in time all seems well, and the arrival is told that need
        # not have come after it.
        late = caught.value.__cause__ is not None
        ends.add("deadlock" if late else finding.other_actor.partition(",")[0])
    assert ends == {"deadlock", "mbarrier.arrive.shared::cta.b64"}


def test_arrivals_that_order_no_memory_leave_phases_unjudged() -> None:
    for schedule in SCHEDULES:
        kernel = answered("mbarrier", arrival=".relaxed.cta")
        assert found(kernel, zeros(64), target="sm_90a", schedule=schedule) == []


def turns(skips: bool = False, again: bool = False, told: bool = True) -> Any:
    """Let warp 0 end three phases, each when warp 1 has heard of the one before."""

    @T.function
    def kernel(Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid, lane = T.cuda.thread_idx("x"), T.cuda.lane_id()
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        state: T.uint64 = 0
        done: T.bool = False
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
        T.cuda.cta_sync()
        for turn in range(3):
            if tid == 0:
                T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([0]))
                T.cuda.mbarrier_wait(bar.ptr_to([0]), turn % 2)
            if T.cuda.warp_id() == 1:
                if T.constexpr(not skips) or turn != 1:
                    T.cuda.mbarrier_wait(bar.ptr_to([0]), turn % 2)
                if T.constexpr(again):
                    # What has ended is asked for again, and what has not.
                    T.cuda.mbarrier_wait(bar.ptr_to([0]), turn % 2)
                    T.ptx["mbarrier.test_wait.parity.shared::cta.b64"](
                        done, bar.ptr_to([0]), T.cast((turn + 1) % 2, "uint32")
                    )
                    if done:
                        Out[tid] = 1
            if T.constexpr(told):
                T.cuda.cta_sync()
        if lane == 0:
            Out[tid] = tid

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("options", [{}, {"again": True}, {"skips": True}])
def test_who_hears_of_each_phase_may_wait_again_or_leave_one_out(
    options: dict[str, bool], schedule: str
) -> None:
    assert found(turns(**options), zeros(64), target="sm_90a", schedule=schedule) == []


def test_who_waits_for_a_phase_must_know_of_the_one_before() -> None:
    kernel = turns(skips=True, told=False)
    for schedule in SCHEDULES:
        kinds = [each[0] for each in found(kernel, zeros(64), target="sm_90a", schedule=schedule)]
        assert "mbarrier-phase" in kinds, schedule


def test_a_waiter_that_has_been_overtaken_is_at_the_root_of_a_deadlock() -> None:
    @T.function
    def kernel(Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid, warp, lane = T.cuda.thread_idx("x"), T.cuda.warp_id(), T.cuda.lane_id()
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        state: T.uint64 = 0
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
        T.cuda.cta_sync()
        if warp == 0 and lane == 0:
            for turn in range(2):
                T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([0]))
                T.cuda.mbarrier_wait(bar.ptr_to([0]), turn)
        if warp == 1:
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        Out[tid] = tid

    ex = tilewright.compile(kernel, target="sm_90a", backend="sim", check=True, schedule="late")
    with pytest.raises(tilewright.CheckError) as caught:
        ex(zeros(64))
    assert isinstance(caught.value.__cause__, tilewright.DeadlockError)
    finding = caught.value.findings[-1]
    assert (finding.kind, finding.warp) == ("mbarrier-phase", 1)
    assert any("does not know that the phase before has ended" in each for each in finding.notes)
    (came,) = (each for each in finding.notes if "came before" in each)
    assert came.startswith("warp 0, lane 0 came before, by mbarrier.arrive")
    assert came.endswith("and not again: it has ended")


def test_many_mbarriers_share_clocks_and_nothing_is_invented() -> None:
    count = 80

    @T.function
    def kernel(Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
        bars = T.alloc_shared((count,), "uint64", layout="default", align=8)
        state: T.uint64 = 0
        if tid == 0:
            for each in range(count):
                T.ptx.mbarrier.init.shared.b64(bars.ptr_to([each]), T.uint32(1))
        T.cuda.cta_sync()
        for turn in range(3):
            for each in range(count):
                if tid % 32 == 0 and warp == each % 2:
                    T.ptx["mbarrier.arrive.shared::cta.b64"](state, bars.ptr_to([each]))
                if warp != each % 2:
                    T.cuda.mbarrier_wait(bars.ptr_to([each]), turn % 2)
        Out[tid] = tid

    for schedule in SCHEDULES:
        assert found(kernel, zeros(64), target="sm_90a", schedule=schedule) == []


def test_lanes_wait_at_an_mbarrier_after_they_have_met_the_one_that_made_it() -> None:
    def make(meet: bool = True) -> Any:
        @T.function
        def kernel(Out: T.Tensor((32,), "int32")):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            lane = T.cuda.lane_id()
            bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
            state: T.uint64 = 0
            if lane == 0:
                T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
                T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([0]))
            if T.constexpr(meet):
                T.cuda.warp_sync()
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
            Out[lane] = lane

        return kernel

    expect(
        make, {"meet": False}, "mbarrier-init", WAIT, "mbarrier.init", zeros(32), target="sm_90a"
    )


@pytest.mark.parametrize("written", [True, False])
def test_a_wait_that_ends_at_once_explains_what_is_written_after_the_read_only(
    written: bool,
) -> None:
    @T.function
    def kernel(Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid, warp, lane = T.cuda.thread_idx("x"), T.cuda.warp_id(), T.cuda.lane_id()
        s = T.alloc_shared((32,), "int32", layout="default", align=16)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        state: T.uint64 = 0
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
        T.cuda.cta_sync()
        if warp == 0:
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 1)
            Out[lane] = s[lane]
        T.cuda.cta_sync()
        if warp == 1:
            if T.constexpr(written):
                s[lane] = lane
            T.cuda.warp_sync()
            if lane == 0:
                T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([0]))

    kind = "mbarrier-phase" if written else "uninitialised"
    for schedule in SCHEDULES:
        faults = found(kernel, zeros(64), target="sm_90a", schedule=schedule)
        assert [each[0] for each in faults] == [kind], schedule
        assert (WAIT in faults[0][1]) == written
