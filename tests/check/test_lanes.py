"""What one lane of a warp does, waits for and hands on, and when the other lanes know of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

from tilewright import simt as T


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


# ---------------------------------------------------------------------------- releases


def handed_on(meet: str = "sync", arrivals: str = "one") -> Any:
    """Write by all lanes of a warp, and arrive for all of them at what another warp waits for."""
    count = 1 if arrivals == "one" else 32

    @T.function
    def kernel(Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default", align=16)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        state: T.uint64 = 0
        if T.cuda.thread_idx("x") == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(count))
        T.cuda.cta_sync()
        if T.cuda.warp_id() == 0:
            s[lane] = T.float32(1)
            if T.constexpr(meet == "sync"):
                T.cuda.warp_sync()
            if T.constexpr(meet == "shuffle"):
                Out[lane] = T.cuda.__shfl_xor_sync(T.uint32(0xFFFFFFFF), T.float32(2), 1, 32)
            if T.constexpr(arrivals == "all") or lane == 0:
                T.ptx["mbarrier.arrive.shared.b64"](state, bar.ptr_to([0]))
        else:
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
            Out[lane] = s[31 - lane]

    return kernel


@pytest.mark.parametrize("meet", ["", "shuffle"])
def test_a_lane_that_arrives_hands_on_what_others_did_before_they_met(meet: str) -> None:
    there, here = "s[lane] = T.float32(1)", "s[31 - lane]"
    expect(handed_on, {"meet": meet}, "race", here, there, zeros(32), target="sm_90a")


def test_lanes_that_all_arrive_hand_on_what_each_has_done() -> None:
    assert found(handed_on(meet="", arrivals="all"), zeros(32), target="sm_90a") == []


def exchanged(meet: str = "sync") -> Any:
    @T.function
    def kernel(A: T.Tensor((32,), "int32"), Out: T.Tensor((32,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "int32", layout="default", align=16)
        s[lane] = A[lane]
        if T.constexpr(meet == "sync"):
            T.cuda.warp_sync()
        else:
            Out[lane] = T.cast(T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), A[lane] > 1), "int32")
        Out[lane] = s[31 - lane]

    return kernel


def test_a_vote_orders_no_memory() -> None:
    arrays = (zeros(32, dtype="int32"), zeros(32, dtype="int32"))
    here, there = "Out[lane] = s[31 - lane]", "s[lane] = A[lane]"
    expect(exchanged, {"meet": "vote"}, "race", here, there, *arrays, target="sm_90a")


def halves(width: int = 16) -> Any:
    """Have the lower half of a warp meet, and read what lanes of `width` have written."""

    @T.function
    def kernel(Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default", align=16)
        s[lane] = T.float32(1)
        if lane < 16:
            T.cuda.warp_sync(T.uint32(0xFFFF))
            Out[lane] = s[width - 1 - lane]

    return kernel


def test_half_of_a_warp_that_meets_knows_of_that_half() -> None:
    there, here = "s[lane] = T.float32(1)", "s[width - 1 - lane]"
    expect(halves, {"width": 32}, "race", here, there, zeros(32), target="sm_90a")


def awaited(by: int = 64, down: bool = False) -> Any:
    """Bring words for all; the first threads wait for them, and the others not."""

    @T.function
    def kernel(A: T.Tensor((64,), "int32", align=16), Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((64,), "int32", layout="default", align=128)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if tid == 0:
            T.ptx["mbarrier.init.shared::cta.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        if tid == 0:
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](bar.ptr_to([0]), T.uint32(256))
            T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](
                s.ptr_to([0]), A.ptr_to([0]), T.uint32(256), bar.ptr_to([0])
            )
        if tid < by:
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        if T.constexpr(down):
            Out[tid] = s[63 - tid]
        else:
            Out[tid] = s[tid]

    return kernel


@pytest.mark.parametrize("down", [False, True])
def test_that_one_lane_waits_is_no_wait_of_the_others(down: bool) -> None:
    arrays = np.arange(64, dtype="int32"), zeros(64, dtype="int32")
    here, there = "Out[tid] =", "cp.async.bulk"
    for by in (1, 32):
        fault = {"by": by, "down": down}
        expect(awaited, fault, "missing-wait", here, there, *arrays, target="sm_90a")


def apart(other: int = 0, branch: bool = True) -> Any:
    """Have each half of a warp meet, by paths of their own or at once, and read what one wrote."""

    @T.function
    def kernel(Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default", align=16)
        s[lane] = T.float32(1)
        if T.constexpr(branch):
            if lane < 16:
                T.cuda.warp_sync(T.uint32(0xFFFF))
            else:
                T.cuda.warp_sync(T.uint32(0xFFFF0000))
        else:
            T.ptx["bar.warp.sync"](T.uint32(0xFFFF) << T.cast(lane // 16 * 16, "uint32"))
        Out[lane] = s[lane ^ 15 ^ other]
        T.cuda.warp_sync()
        s[lane] = T.float32(2)
        T.cuda.warp_sync()
        Out[lane] = s[31 - lane]

    return kernel


@pytest.mark.parametrize("branch", [True, False])
def test_halves_of_a_warp_that_meet_do_not_know_of_one_another(branch: bool) -> None:
    there, here = "s[lane] = T.float32(1)", "s[lane ^ 15 ^ other]"
    fault = {"other": 16, "branch": branch}
    expect(apart, fault, "race", here, there, zeros(32), target="sm_90a")
    for schedule in SCHEDULES:
        assert found(apart(branch=branch), zeros(32), target="sm_90a", schedule=schedule) == []


def arrived(late: bool = False) -> Any:
    """Write before the arrival at a named barrier, or after it."""

    @T.function
    def kernel(Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default", align=16)
        if T.cuda.warp_id() == 0:
            if T.constexpr(not late):
                s[lane] = T.float32(1)
            T.ptx["bar.arrive"](T.uint32(1), T.uint32(64))
            if T.constexpr(late):
                s[lane] = T.float32(2)
        else:
            T.ptx["bar.sync"](T.uint32(1), T.uint32(64))
            Out[lane] = s[31 - lane]

    return kernel


def test_that_a_warp_returns_is_no_arrival_at_a_barrier_with_a_count() -> None:
    # Whether the value is there, or what was there before, is a matter of the schedule.
    assert found(arrived(), zeros(32), target="sm_90a") == []
    kinds = {each[0] for each in found(arrived(late=True), zeros(32), target="sm_90a")}
    assert kinds & {"race", "uninitialised"}


# ---------------------------------------------------------------------------- issues and fences


STORE = "cp.async.bulk.global.shared::cta.bulk_group"


def sent(fence: str = "before", meet: bool = True) -> Any:
    """Have one lane store what all lanes have written, by the asynchronous proxy."""

    @T.function
    def kernel(Out: T.Tensor((32,), "float32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default", align=16)
        s[lane] = T.float32(1)
        if T.constexpr(fence == "before"):
            T.ptx.fence.proxy.async_.shared__cta()
        if T.constexpr(meet):
            T.cuda.warp_sync()
        if T.constexpr(fence == "after"):
            T.ptx.fence.proxy.async_.shared__cta()
        if lane == 0:
            T.ptx[STORE](Out.ptr_to([0]), s.ptr_to([0]), T.uint32(128))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


@pytest.mark.parametrize(
    ("fault", "kind"),
    [({"meet": False}, "race"), ({"fence": "after"}, "misplaced-proxy-fence")],
)
def test_one_lane_issues_for_all_once_they_have_fenced_and_met(
    fault: dict[str, Any], kind: str
) -> None:
    expect(sent, fault, kind, "T.ptx[STORE]", "s[lane] = ", zeros(32), target="sm_90a")


def sent_elsewhere(fenced: int = 4) -> Any:
    """Have another warp store what some lanes have written and fenced, while others write more."""

    @T.function
    def kernel(Out: T.Tensor((32,), "float32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default", align=16)
        if T.cuda.warp_id() == 0:
            s[lane] = T.float32(1)
            if lane < fenced:
                T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        if T.cuda.thread_idx("x") == 32:
            T.ptx[STORE](Out.ptr_to([0]), s.ptr_to([0]), T.uint32(16))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


def test_lanes_fence_what_they_have_written_themselves() -> None:
    kind, here, there = "misplaced-proxy-fence", "T.ptx[STORE]", "s[lane] = "
    expect(sent_elsewhere, {"fenced": 2}, kind, here, there, zeros(32), target="sm_90a")


# ---------------------------------------------------------------------------- copies


COPY = 'T.ptx["cp.async.ca.shared.global"]'


def copied(meet: bool = True, shift: int = 1) -> Any:
    @T.function
    def kernel(A: T.Tensor((32,), "float32", align=16), Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default", align=16)
        T.ptx["cp.async.ca.shared.global"](s.ptr_to([lane]), A.ptr_to([lane]), 4)
        T.ptx["cp.async.wait_all"]()
        if T.constexpr(meet):
            T.cuda.warp_sync()
        Out[lane] = s[(lane + shift) % 32]

    return kernel


def test_a_lane_waits_for_its_own_copies_only() -> None:
    arrays, here = (zeros(32), zeros(32)), "s[(lane + shift) % 32]"
    expect(copied, {"meet": False}, "missing-wait", here, COPY, *arrays)
    assert found(copied(meet=False, shift=0), *arrays) == []


def copied_and_sent(fence: str = "after") -> Any:
    """Copy by threads, and store by the asynchronous proxy."""

    @T.function
    def kernel(A: T.Tensor((64,), "float32", align=16), Out: T.Tensor((64,), "float32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((64,), "float32", layout="default", align=16)
        T.ptx["cp.async.ca.shared.global"](s.ptr_to([tid]), A.ptr_to([tid]), 4)
        if T.constexpr(fence == "before"):
            T.ptx.fence.proxy.async_.shared__cta()
        T.ptx["cp.async.wait_all"]()
        if T.constexpr(fence == "after"):
            T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        if tid == 0:
            T.ptx[STORE](Out.ptr_to([0]), s.ptr_to([0]), T.uint32(256))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


@pytest.mark.parametrize("fence", ["", "before"])
def test_a_fence_for_copies_follows_the_wait_for_them(fence: str) -> None:
    arrays, kind = (zeros(64), zeros(64)), "missing-proxy-fence"
    expect(copied_and_sent, {"fence": fence}, kind, "T.ptx[STORE]", COPY, *arrays, target="sm_90a")


def counted(first: str = "copies") -> Any:
    """Have an mbarrier expect the copies of threads too, from when they say so."""

    @T.function
    def kernel(A: T.Tensor((64,), "float32", align=16), Out: T.Tensor((64,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((64,), "float32", layout="default", align=16)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        state: T.uint64 = 0
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(64))
        T.cuda.cta_sync()
        T.ptx["cp.async.ca.shared.global"](s.ptr_to([tid]), A.ptr_to([tid]), 4)
        if T.constexpr(first == "threads"):
            T.ptx["mbarrier.arrive.shared.b64"](state, bar.ptr_to([0]))
        T.ptx["cp.async.mbarrier.arrive.shared.b64"](bar.ptr_to([0]))
        if T.constexpr(first == "copies"):
            T.ptx["mbarrier.arrive.shared.b64"](state, bar.ptr_to([0]))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        Out[tid] = s[63 - tid]

    return kernel


def test_a_phase_that_could_end_before_it_expects_the_copies_tells_nothing_of_them() -> None:
    arrays, here = (zeros(64), zeros(64)), "s[63 - tid]"
    assert found(counted(), *arrays) == []
    faults = found(counted(first="threads"), *arrays)
    assert [each[0] for each in faults] == ["missing-wait"]
    assert here in faults[0][1] + faults[0][2]
    assert COPY in faults[0][1] + faults[0][2]


# ---------------------------------------------------------------------------- one place for all


def shared_by_all(meet: bool = True, again: bool = True) -> Any:
    """Let one lane write what all read together, and one write it again."""

    @T.function
    def kernel(Out: T.Tensor((32,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((1,), "int32", layout="default", align=16)
        if lane == 7:
            s[0] = 1
        if T.constexpr(meet):
            T.cuda.warp_sync()
        Out[lane] = s[0]
        if T.constexpr(again):
            T.cuda.warp_sync()
        if lane == 3:
            s[0] = 2

    return kernel


@pytest.mark.parametrize(
    ("fault", "here", "there"),
    [
        ({"meet": False}, "Out[lane] = s[0]", "s[0] = 1"),
        ({"again": False}, "s[0] = 2", "Out[lane]"),
    ],
)
def test_lanes_meet_before_they_all_read_what_one_has_written_and_after(
    fault: dict[str, bool], here: str, there: str
) -> None:
    expect(shared_by_all, fault, "race", here, there, zeros(32, dtype="int32"), target="sm_80")


def stored(values: str = "one", how: str = "plain", space: str = "global") -> Any:
    """Let lanes store to one place, all at once."""
    store = {"plain": "", "instruction": "st.", "atomic": "st.relaxed.cta."}[how]

    @T.function
    def kernel(Out: T.Tensor((32,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cast(T.cuda.lane_id(), "uint32")
        s = T.alloc_shared((1,), "uint32", layout="default", align=16)
        value = lane if T.constexpr(values == "own") else lane - lane
        if T.constexpr(values == "few"):
            if lane == T.uint32(9):
                s[0] = lane
        elif T.constexpr(how == "plain"):
            if T.constexpr(space == "global"):
                Out[0] = value
            else:
                s[0] = value
        else:
            target = Out.ptr_to([0]) if T.constexpr(space == "global") else s.ptr_to([0])
            T.ptx[f"{store}{space}.u32"](target, value)

    return kernel


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("how", ["plain", "instruction", "atomic"])
@pytest.mark.parametrize("values", ["one", "few", "own"])
def test_lanes_that_store_to_one_place_at_once_store_one_value(
    values: str, how: str, space: str
) -> None:
    faults = found(stored(values, how, space), zeros(32, dtype="uint32"), target="sm_80")
    kinds = [each[0] for each in faults]
    assert kinds == ["race"] * (values == "own" and how != "atomic")


def shared_places(
    places: str = "own", values: str = "own", space: str = "global", width: int = 1
) -> Any:
    """Let lanes store to places that some of them share, in one instruction."""
    count, by_hand = 4, width == 4

    @T.function
    def kernel(Out: T.Tensor((32, count), "float32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32, count), "float32", layout="default", align=16)
        target = Out if T.constexpr(space == "global") else s
        place: T.int32 = lane
        if T.constexpr(places == "pairs"):
            place = lane // 2
        elif T.constexpr(places == "ends"):  # of lanes that are far from one another
            place = lane % 31
        elif T.constexpr(places == "back"):
            place = 31 - lane
        elif T.constexpr(places == "mixed"):
            place = lane ^ 5
        elif T.constexpr(places == "table"):  # the same bucket for most
            place = (lane * 7) % 3
        value: T.float32 = T.float32(lane)
        if T.constexpr(values == "of the place"):
            value = T.float32(place)
        if T.constexpr(values == "zero"):
            value = 0.0
        if T.constexpr(places == "half"):
            if lane < 16:
                target[lane, 0] = value
            else:
                target[lane - 16, 1] = value
        elif T.constexpr(by_hand):
            store = T.ptx["st.global.v4.f32" if space == "global" else "st.shared.v4.f32"]
            store(target.ptr_to([place, 0]), value, 1.0, 2.0, value)
        else:
            target[place, 0] = value

    return kernel


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    ("places", "values", "races"),
    [
        *((places, "own", False) for places in ("own", "half", "back", "mixed")),
        *((places, "own", True) for places in ("pairs", "ends", "table")),
        *((places, "of the place", False) for places in ("pairs", "ends", "table")),
        *((places, "zero", False) for places in ("pairs", "table")),
    ],
)
def test_lanes_that_share_places_store_one_value_there(
    space: str, width: int, places: str, values: str, races: bool
) -> None:
    out = zeros(32, 4, dtype="float32")
    faults = found(shared_places(places, values, space, width), out, target="sm_80")
    assert [each[0] for each in faults] == ["race"] * races
    assert all(each[2] == "" for each in faults)


def test_lanes_that_share_places_store_vectors() -> None:
    @T.function
    def kernel(Out: T.Tensor((32, 2), "float32x4"), Flags: T.Tensor((32,), "bool"), n: T.int32):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        value: T.float32x4 = Out[lane, 1]
        Out[lane // n, 0] = value
        Flags[lane // n] = lane // n == 3

    out = np.arange(256, dtype="float32").reshape(32, 2, 4)
    flags = np.zeros(32, bool)
    assert found(kernel, np.copy(out), flags, 1, target="sm_80") == []
    faults = found(kernel, np.copy(out), flags, 2, target="sm_80")
    assert [each[:2] for each in faults] == [("race", "Out[lane // n, 0] = value")]
    out[:, 1, :3] = 0
    faults = found(kernel, np.copy(out), flags, 2, target="sm_80")
    assert [each[:2] for each in faults] == [("race", "Out[lane // n, 0] = value")]
    out[:, 1, 3] = 0
    assert found(kernel, np.copy(out), flags, 2, target="sm_80") == []
