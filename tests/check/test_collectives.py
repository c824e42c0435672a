"""Who comes to a collective: all lanes and warps that it names, and nobody else in their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

import tilewright
from tilewright import simt as T

EVERYONE = 0xFFFFFFFF


def zeros(*shape: int, dtype: str = "int32") -> Any:
    return np.zeros(shape, dtype)


# ---------------------------------------------------------------------------- lanes that pass by


def met(who: int = 64, form: str = "cta") -> Any:
    """Let the first threads of a CTA, or of a warp, meet in a branch; all go on behind it."""

    @T.function
    def kernel(Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        seen: T.int32 = 1
        if tid < who:
            if T.constexpr(form == "cta"):
                T.cuda.cta_sync()
            if T.constexpr(form == "aligned"):
                T.ptx["barrier.sync.aligned"](T.uint32(0))
            if T.constexpr(form == "warp"):
                T.cuda.warp_sync()
            if T.constexpr(form == "vote"):
                seen = T.cast(T.cuda.ballot_sync(T.uint32(EVERYONE), tid > 2), "int32")
            if T.constexpr(form == "shuffle"):
                seen = T.cuda.__shfl_xor_sync(T.uint32(EVERYONE), seen, 1, 32)
            if T.constexpr(form == "elect") and T.cuda.elect_sync():
                seen = 2
        Out[tid] = seen

    return kernel


FORMS = {
    "cta": "cta_sync",
    "aligned": "barrier.sync.aligned",
    "warp": "warp_sync",
    "vote": "ballot_sync",
    "shuffle": "shfl_xor_sync",
    "elect": "elect_sync",
}


@pytest.mark.parametrize("form", FORMS)
def test_lanes_that_a_collective_names_do_not_go_on_behind_its_branch(form: str) -> None:
    def make(who: int = 64) -> Any:
        return met(who, form)

    fault = {"who": 50}
    expect(make, fault, "divergent-collective", FORMS[form], "", zeros(64), target="sm_90a")


def turned(trips: str = "alike", stop: str = "") -> Any:
    """Meet in each turn of a loop, of which lanes make as many, or differently many."""

    @T.function
    def kernel(Out: T.Tensor((32,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        count: T.int32 = 0
        for turn in range(2 if T.constexpr(trips == "alike") else 1 + lane % 2):
            if T.constexpr(stop == "break") and lane == 3:
                break
            if T.constexpr(stop == "return") and lane == 3:
                return
            if T.constexpr(stop == "continue") and lane == 3:
                continue
            T.cuda.warp_sync()
            count += turn
        Out[lane] = count

    return kernel


@pytest.mark.parametrize("fault", [{"trips": "own"}, {"stop": "break"}, {"stop": "continue"}])
def test_lanes_do_not_leave_a_loop_in_which_others_meet_them(fault: dict[str, str]) -> None:
    expect(turned, fault, "divergent-collective", "warp_sync", "", zeros(32), target="sm_90a")


def test_lanes_may_return_before_others_meet() -> None:
    for schedule in SCHEDULES:
        kernel = turned(stop="return")
        assert found(kernel, zeros(32), target="sm_90a", schedule=schedule) == []


def test_lanes_may_come_to_a_collective_by_paths_of_their_own() -> None:
    @T.function
    def kernel(A: T.Tensor((32,), "int32"), Out: T.Tensor((32,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        value: T.int32 = A[lane]
        turn: T.int32 = 0
        while turn < 4:
            # A lane comes one turn after its neighbour, from another iteration of the loop.
            if turn % 2 == lane % 2:
                T.ptx["bar.warp.sync"](T.uint32(0x55555555) << T.cast(lane % 2, "uint32"))
                value += 1
            turn += 1
        if lane < 16:
            value = T.cuda.__shfl_xor_sync(T.uint32(0xFFFF), value, 1, 32)
        if lane >= 20:
            return
        T.cuda.warp_sync()
        Out[lane] = value

    for schedule in SCHEDULES:
        assert found(kernel, zeros(32), zeros(32), target="sm_90a", schedule=schedule) == []


@pytest.mark.parametrize("schedule", [*SCHEDULES, "random:4"])
def test_one_lane_is_elected_each_time(schedule: str) -> None:
    """Copy by one election, and make and await the groups by others."""

    @T.function
    def kernel(Out: T.Tensor((3, 32), "int32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((3, 32), "int32", layout="default", align=128)
        for turn in range(3):
            s[turn, lane] = 10 * turn + lane
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.warp_sync()
            if T.cuda.elect_sync():
                T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                    Out.ptr_to([turn, 0]), s.ptr_to([turn, 0]), T.uint32(128)
                )
            if T.cuda.elect_sync():
                T.ptx["cp.async.bulk.commit_group"]()
        if T.cuda.elect_sync():
            T.ptx["cp.async.bulk.wait_group"](0)

    out = zeros(3, 32)
    assert found(kernel, out, target="sm_90a", schedule=schedule) == []
    assert out.tolist() == [[10 * turn + lane for lane in range(32)] for turn in range(3)]


# ---------------------------------------------------------------------------- groups of lanes


def tiled(fault: str = "", some: bool = False) -> Any:
    """Sum up eights of lanes, each by a member mask of its own; or every other eight only."""

    @T.function
    def kernel(A: T.Tensor((64,), "int32"), Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid, lane = T.cuda.thread_idx("x"), T.cuda.lane_id()
        s = T.alloc_shared((64,), "int32", layout="default")
        mask: T.uint32 = T.uint32(0xFF) << T.cast(lane // 8 * 8, "uint32")
        if lane == 3:
            if T.constexpr(fault == "fewer"):
                mask = T.uint32(0x0F)
            if T.constexpr(fault == "others"):
                mask = T.uint32(0xFF00)
        total: T.int32 = A[tid]
        if lane // 8 % 2 == 0 or not some or (fault == "alone" and lane == 31):
            for step in range(3):
                total += T.cuda.__shfl_xor_sync(mask, total, 4 >> step, 8)
            s[tid] = total + lane
            if T.constexpr(fault != "no meeting"):
                T.ptx["bar.warp.sync"](mask)
            Out[tid] = s[tid ^ 7]

    return kernel


@pytest.mark.parametrize("some", [False, True])
def test_lanes_may_come_in_groups_each_with_its_own_mask(some: bool) -> None:
    values = np.arange(64, dtype="int32")
    expected = np.repeat(values.reshape(8, 8).sum(1), 8) + (np.arange(64) % 32 ^ 7)
    here = np.arange(64) // 8 % 2 == 0 if some else np.ones(64, bool)
    for schedule in SCHEDULES:
        out = zeros(64)
        assert found(tiled(some=some), values, out, target="sm_80", schedule=schedule) == []
        assert out.tolist() == np.where(here, expected, 0).tolist()
    arrays = values, zeros(64)
    out, s = "Out[tid] =", "s[tid] ="
    expect(
        lambda **fault: tiled(some=some, **fault), {"fault": "no meeting"}, "race", out, s, *arrays
    )


@pytest.mark.parametrize("fault", ["fewer", "others", "alone"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_groups_of_lanes_agree_and_are_whole(fault: str, schedule: str) -> None:
    kernel = tiled(fault=fault, some=True)
    run = tilewright.compile(kernel, target="sm_80", check=True, schedule=schedule)
    with pytest.raises(tilewright.CheckError) as caught:
        run(zeros(64), zeros(64))
    finding = caught.value.findings[0]
    assert finding.kind == "divergent-collective"
    assert finding.location is not None and "shfl_xor" in finding.location.source_line()


def test_a_value_of_a_lane_of_another_group_is_told() -> None:
    def taken(distance: int = 4) -> Any:
        @T.function
        def kernel(A: T.Tensor((32,), "int32"), Out: T.Tensor((32,), "int32")):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            lane = T.cuda.lane_id()
            mask = T.uint32(0xFF) << T.cast(lane // 8 * 8, "uint32")
            other = T.cuda.__shfl_xor_sync(mask, A[lane], distance, 32)
            Out[lane] = other

        return kernel

    arrays = zeros(32), zeros(32)
    expect(taken, {"distance": 8}, "undefined-operation", "Out[lane] = other", "", *arrays)


# ---------------------------------------------------------------------------- named barriers


def paired(ids: str = "own", kept: str = "") -> Any:
    """Let two pairs of warps exchange halves of a buffer, each at a barrier."""

    @T.function
    def kernel(A: T.Tensor((128,), "int32"), Out: T.Tensor((128,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((128,), "int32", layout="default")
        s[tid] = A[tid]
        if T.cuda.warp_id() < 2:
            T.ptx["bar.sync"](T.uint32(1), T.uint32(64))
            Out[tid] = s[63 - tid]
        if T.constexpr(kept == "apart"):
            T.cuda.cta_sync()
        if T.cuda.warp_id() >= 2:
            T.ptx["bar.sync"](T.uint32(2 if T.constexpr(ids == "own") else 1), T.uint32(64))
            Out[tid] = s[191 - tid]

    return kernel


def test_two_groups_of_warps_do_not_share_a_named_barrier() -> None:
    arrays = (zeros(128), zeros(128))
    fault = {"ids": "shared"}
    expect(paired, fault, "named-barrier", "bar.sync", "bar.sync", *arrays, target="sm_90a")


def test_groups_that_are_kept_apart_may_share_a_named_barrier() -> None:
    for schedule in SCHEDULES:
        kernel = paired(ids="shared", kept="apart")
        told = found(kernel, zeros(128), zeros(128), target="sm_90a", schedule=schedule)
        assert told == [], schedule


def test_warps_may_take_turns_at_named_barriers() -> None:
    """Three warps have their turns one after another, as consumers of one tensor core do."""

    @T.function
    def kernel(Out: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
        warp = T.cuda.warp_id()
        s = T.alloc_shared((1,), "int32", layout="default")
        following = T.cast((warp + 1) % 3 + 1, "uint32")
        if warp == 0 and T.cuda.lane_id() == 0:
            s[0] = 0
        if warp == 2:
            T.ptx["bar.arrive"](T.uint32(1), T.uint32(64))
        for _ in range(4):
            T.ptx["bar.sync"](T.cast(warp + 1, "uint32"), T.uint32(64))
            if T.cuda.lane_id() == 0:
                s[0] = s[0] + 1
            T.cuda.warp_sync()
            T.ptx["bar.arrive"](following, T.uint32(64))
        if warp == 0:
            T.ptx["bar.sync"](T.uint32(1), T.uint32(64))
            Out[0] = s[0]

    for schedule in SCHEDULES:
        out = zeros(1)
        assert found(kernel, out, target="sm_90a", schedule=schedule) == [], schedule
        assert out[0] == 12
