"""One fault is one finding: it has one kind, at one line, whatever the schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, found

import tilewright
from tilewright import simt as T
from tilewright.base.findings import Finding
from tilewright.base.locations import Location

N = 128
LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64"
TILES, STAGES = 8, 2


def zeros(*shape: int) -> Any:
    return np.zeros(shape, "float32")


def ring(
    full: bool = True,
    empty: bool = True,
    early: bool = False,
    flips: bool = True,
    first: int = 0,
    elected: bool = True,
    met: bool = True,
) -> Any:
    """Copy tiles through a ring of stages: warp 0 fills them, and warp 1 reads them."""

    @T.function
    def kernel(A: T.Tensor((TILES, N), "float32", align=16), Out: T.Tensor((TILES, 32), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
        s = T.alloc_shared((STAGES, N), "float32", layout="default", align=128)
        filled = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
        freed = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
        state: T.uint64 = 0
        if T.cuda.thread_idx("x") == 0:
            for stage in range(STAGES):
                T.ptx["mbarrier.init.shared::cta.b64"](filled.ptr_to([stage]), T.uint32(1))
                T.ptx["mbarrier.init.shared::cta.b64"](freed.ptr_to([stage]), T.uint32(32))
            T.ptx.fence.mbarrier_init.release.cluster()
        if T.constexpr(met):
            T.cuda.cta_sync()
        for tile in range(TILES):
            at = tile % STAGES
            phase = (tile // STAGES) % 2 if T.constexpr(flips) else 0
            if warp == 0:
                if T.cuda.elect_sync() if T.constexpr(elected) else True:
                    if T.constexpr(empty):
                        T.cuda.mbarrier_wait(freed.ptr_to([at]), phase ^ 1)
                    T.ptx[EXPECT](filled.ptr_to([at]), T.uint32(4 * N))
                    T.ptx[LOAD](
                        s.ptr_to([at, 0]), A.ptr_to([tile, 0]), T.uint32(4 * N), filled.ptr_to([at])
                    )
            else:
                if T.constexpr(full):
                    T.cuda.mbarrier_wait(filled.ptr_to([at]), (tile // STAGES) % 2 ^ first)
                if T.constexpr(early):
                    T.ptx.fence.proxy.async_.shared__cta()
                    T.ptx["mbarrier.arrive.shared::cta.b64"](state, freed.ptr_to([at]))
                Out[tile, lane] = s[at, lane]
                if T.constexpr(not early):
                    T.ptx.fence.proxy.async_.shared__cta()
                    T.ptx["mbarrier.arrive.shared::cta.b64"](state, freed.ptr_to([at]))

    return kernel


FILL, READ, ARRIVE = "T.ptx[LOAD]", "Out[tile, lane] = s[at, lane]", "T.ptx[EXPECT]"
WAIT_FULL, WAIT_EMPTY = "mbarrier_wait(filled", "mbarrier_wait(freed"


def kinds(fault: dict[str, Any], schedule: str) -> list[tuple[str, ...]]:
    """Give the kinds that are found in a ring, and both lines, if it hangs as well."""
    kernel = ring(**fault)
    run = tilewright.compile(kernel, target="sm_90a", schedule=schedule, check="strict")
    try:
        run(np.ones((TILES, N), np.float32), zeros(TILES, 32))
    except tilewright.CheckError as error:
        return [
            (each.kind, *(place.source_line() if place else "" for place in _places(each)))
            for each in error.findings
        ]
    return []


def _places(each: Finding) -> tuple[Location | None, Location | None]:
    return each.location, each.other_location


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("fault", "kind", "here"),
    [
        # Readers arrive before they read: the copy comes too early, and not the read.
        ({"early": True}, "stage-overwritten", FILL),
        # The wait is there, and is for the wrong phase: it is to be mended.
        ({"flips": False}, "mbarrier-phase", WAIT_EMPTY),
        ({"first": 1}, "mbarrier-phase", WAIT_FULL),
        ({"elected": False}, "not-elected", FILL),
        ({"met": False}, "mbarrier-init", "mbarrier_wait"),
    ],
    ids=str,
)
def test_a_fault_of_a_ring_has_one_kind_at_one_line(
    fault: dict[str, Any], kind: str, here: str, schedule: str
) -> None:
    assert kinds({}, schedule) == []
    ((named, line, _),) = kinds(fault, schedule)
    assert (named, here in line) == (kind, True), line


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_who_fills_without_a_wait_is_ahead_or_overwrites(schedule: str) -> None:
    ((kind, line, _),) = kinds({"empty": False}, schedule)
    assert kind in ("mbarrier-phase", "stage-overwritten")
    assert ARRIVE in line or FILL in line


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_who_reads_without_a_wait_is_guilty_whichever_comes_first(schedule: str) -> None:
    ((kind, line, other),) = kinds({"full": False}, schedule)
    # If the reader runs to its end before anything is there, nobody has written that.
    assert (kind, FILL in other) in (("missing-wait", True), ("uninitialised", False))
    assert READ in line


def stored(
    met: bool = True, fence: bool = True, commit: bool = True, one: bool = True, end: bool = True
) -> Any:
    """Let all threads write, and one of them copy that out, time and again."""

    @T.function
    def kernel(A: T.Tensor((4, 64), "float32"), Out: T.Tensor((4, 64), "float32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((64,), "float32", layout="default", align=128)
        for turn in range(4):
            if tid == 0:
                T.ptx["cp.async.bulk.wait_group.read"](0)
            T.cuda.cta_sync()
            s[63 - tid] = A[turn, tid]
            if T.constexpr(fence):
                T.ptx.fence.proxy.async_.shared__cta()
            if T.constexpr(met):
                T.cuda.cta_sync()
            if tid == 0 if T.constexpr(one) else True:
                T.ptx[STORE](Out.ptr_to([turn, 0]), s.ptr_to([0]), T.uint32(256))
                if T.constexpr(commit):
                    T.ptx["cp.async.bulk.commit_group"]()
        if T.constexpr(not end):
            return
        if tid == 0:
            T.ptx["cp.async.bulk.wait_group.read"](0)

    return kernel


def finding(fault: dict[str, Any], schedule: str = "late") -> Finding:
    kernel = stored(**fault)
    run = tilewright.compile(kernel, target="sm_90a", schedule=schedule, check="strict")
    with pytest.raises(tilewright.CheckError) as caught:
        run(zeros(4, 64), zeros(4, 64))
    (only,) = caught.value.findings
    return only


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fence", [False, True])
def test_where_a_barrier_lacks_nothing_is_said_of_fences(fence: bool, schedule: str) -> None:
    assert found(stored(), zeros(4, 64), zeros(4, 64), target="sm_90a", schedule=schedule) == []
    assert finding({"met": False, "fence": fence}, schedule).kind == "race"


def test_what_several_threads_do_for_one_is_told_once() -> None:
    assert finding({"one": False}).kind == "not-elected"


def test_a_group_that_is_never_made_is_told_once_and_how_to_make_it() -> None:
    lacking = finding({"commit": False})
    assert lacking.kind == "stage-overwritten"
    assert "cp.async.bulk.commit_group" in lacking.hint


def test_a_kernel_that_ends_before_its_copy_has_read_is_told_so() -> None:
    lacking = finding({"end": False})
    assert lacking.kind == "missing-wait" and "a kernel ends before" in lacking.message
    assert "the end of the kernel" in lacking.missing
    assert "cp.async.bulk.wait_group.read" in lacking.hint


def test_the_guilty_line_of_a_race_is_the_later_one_of_the_program() -> None:
    @T.function
    def kernel(A: T.Tensor((64,), "float32"), Out: T.Tensor((64,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((64,), "float32", layout="default")
        s[tid] = A[tid]
        Out[tid] = s[63 - tid]

    for schedule in SCHEDULES:
        told = found(kernel, zeros(64), zeros(64), target="sm_90a", schedule=schedule)
        assert told == [("race", "Out[tid] = s[63 - tid]", "s[tid] = A[tid]")], schedule


def test_all_lanes_of_an_access_are_told_and_which_of_them_meet_the_other_side() -> None:
    @T.function
    def kernel(A: T.Tensor((32,), "float32", align=16), Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default", align=16)
        if lane < 8:
            T.ptx["cp.async.cg.shared.global"](s.ptr_to([4 * lane]), A.ptr_to([4 * lane]), 16)
        T.cuda.warp_sync()
        Out[lane] = s[lane]

    run = tilewright.compile(kernel, target="sm_90a", check=True)
    with pytest.raises(tilewright.CheckError) as caught:
        run(zeros(32), zeros(32))
    (lacking,) = caught.value.findings
    assert lacking.actor.endswith("by warp 0, lanes 0-31") and lacking.lanes == 0xFFFFFFFF
    assert lacking.memory.startswith("s[0], bytes 0-15 of s")
    assert lacking.memory.endswith("of lanes 0-3")


def test_a_loop_that_polls_in_vain_names_the_memory() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        ready = T.alloc_shared((1,), "int32", layout="default")
        other = T.alloc_shared((1,), "int32", layout="default")
        if T.cuda.lane_id() == 0:
            ready[0] = 0
            other[0] = 1
        T.cuda.warp_sync()
        while ready[0] == 0:
            pass
        Out[0] = other[0]

    run = tilewright.compile(kernel, target="sm_90a", check=True)
    with pytest.raises(tilewright.CheckError) as caught:
        run(np.zeros(1, np.int32))
    assert "polls memory that does not change (ready)" in caught.value.findings[0].actor


@pytest.mark.parametrize("limit", [1000, 10_000, None])
def test_a_small_step_limit_does_not_hide_what_threads_wait_for(limit: int | None) -> None:
    @T.function
    def kernel(Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(2))
            T.ptx["mbarrier.arrive.shared.b64"](bar.ptr_to([0]))
        T.cuda.cta_sync()
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        Out[tid] = tid

    run = tilewright.compile(kernel, target="sm_90a", check=True, step_limit=limit)
    with pytest.raises(tilewright.CheckError) as caught:
        run(np.zeros(64, np.int32))
    assert caught.value.kind == "mbarrier-arrival"
