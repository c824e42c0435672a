"""Variables that some lanes have not set: told where they go to memory, or decide.

So are those in which a shuffle has put what no lane has given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, found

import tilewright
from tilewright import simt as T


def zeros(*shape: int) -> Any:
    return np.zeros(shape, "int32")


def partly(sets: str = "some", use: str = "store") -> Any:
    """Set a variable in some lanes, and use it in all."""

    @T.function
    def kernel(A: T.Tensor((64,), "int32"), Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid, lane = T.cuda.thread_idx("x"), T.cuda.lane_id()
        value: T.int32
        if T.constexpr(sets == "some") and lane != 5:
            value = A[tid]
        if T.constexpr(sets == "warp") and T.cuda.warp_id() == 1:
            value = A[tid]
        if T.constexpr(sets == "both"):
            if lane != 5:
                value = A[tid]
            else:
                value = 1
                value += A[0]
        if T.constexpr(sets == "loop"):
            for step in range(3):
                value = A[tid] + step
        if T.constexpr(sets == "turns"):
            for step in range(A[0]):
                value = A[tid] + step
        if T.constexpr(use == "store"):
            Out[tid] = value + 1
        if T.constexpr(use == "branch") and value > 3:
            Out[tid] = 1
        if T.constexpr(use == "address"):
            T.ptx["st.global.u32"](Out.ptr_to([value]), T.uint32(1))
        if T.constexpr(use == "guarded"):
            double = value * 2
            if lane != 5:
                Out[tid] = double
        if T.constexpr(use == "chosen"):
            Out[tid] = T.if_then_else(lane != 5, value, 0)
        if T.constexpr(use == "vote"):
            Out[tid] = T.cast(T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), value > 0), "int32")

    return kernel


@pytest.mark.parametrize("sets", ["some", "warp", "turns"])
@pytest.mark.parametrize("use", ["store", "branch"])
def test_what_some_lanes_have_not_set_is_told_where_it_matters(sets: str, use: str) -> None:
    ex = tilewright.compile(partly(sets, use), target="sm_80", backend="sim", check=True)
    with pytest.raises(tilewright.CheckError) as caught:
        ex(zeros(64), zeros(64))
    (finding,) = caught.value.findings
    assert finding.kind == "uninitialised"
    assert (finding.warp, finding.lanes) == (0, 1 << 5 if sets == "some" else (1 << 32) - 1)
    assert finding.actor.startswith("value, by warp 0")
    assert finding.missing.startswith("nothing has written value before")
    assert finding.location is not None
    assert finding.location.source_line().strip() in (
        "Out[tid] = value + 1",
        'if T.constexpr(use == "branch") and value > 3:',
    )


def test_an_address_that_is_not_set_is_told() -> None:
    ex = tilewright.compile(partly(use="address"), target="sm_80", backend="sim", check=True)
    with pytest.raises(tilewright.CheckError) as caught:
        ex(zeros(64), zeros(64))
    assert caught.value.kind == "uninitialised"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("sets", "use"),
    [
        ("both", "store"),
        ("loop", "store"),
        ("loop", "branch"),
        ("some", "guarded"),
        ("some", "chosen"),
        ("some", "vote"),
    ],
)
def test_what_is_set_on_every_way_or_harms_nobody_is_not_told(
    sets: str, use: str, schedule: str
) -> None:
    kernel = partly(sets, use)
    arrays = (zeros(64), zeros(64))
    faults = found(kernel, *arrays, target="sm_80", schedule=schedule)
    assert [each for each in faults if each[0] == "uninitialised"] == []


# ---------------------------------------------------------------------------- local arrays


def elements(sets: str = "all", use: str = "store") -> Any:
    """Set elements of a local array in some lanes, and use one in all."""

    @T.function
    def kernel(A: T.Tensor((64,), "int32"), Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid, lane = T.cuda.thread_idx("x"), T.cuda.lane_id()
        v = T.alloc_local((4,), "int32")
        last: T.int32 = 3 if T.constexpr(sets == "fewer") else 4
        if T.constexpr(sets == "all"):
            for i in range(4):
                v[i] = 0
        if T.constexpr(sets == "each"):
            if lane == 5:
                for i in range(4):
                    v[i] = 1
            else:
                for i in range(4):
                    v[i] = 2
        if T.constexpr(sets == "own"):
            for i in range(4):
                v[(i + lane) % 4] = i
        if lane != 5:
            for i in range(last):
                v[i] = A[tid]
        if T.constexpr(use == "store"):
            Out[tid] = v[3] + 1
        if T.constexpr(use == "branch") and v[3] > 3:
            Out[tid] = 1
        if T.constexpr(use == "guarded"):
            double = v[3] * 2
            if lane != 5:
                Out[tid] = double + v[3]

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("sets", "use", "lanes"),
    [
        ("some", "store", 1 << 5),
        ("some", "branch", 1 << 5),
        ("fewer", "store", 0xFFFFFFFF),
    ],
)
def test_an_element_that_lanes_have_not_set_is_told(
    sets: str, use: str, lanes: int, schedule: str
) -> None:
    ex = tilewright.compile(elements(sets, use), target="sm_80", check=True, schedule=schedule)
    with pytest.raises(tilewright.CheckError) as caught:
        ex(zeros(64), zeros(64))
    (finding,) = caught.value.findings
    assert (finding.kind, finding.lanes) == ("uninitialised", lanes)
    assert finding.actor.startswith("v[3], by warp ")
    assert finding.location is not None and "v[3]" in finding.location.source_line()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("sets", "use"),
    [("all", "store"), ("all", "branch"), ("each", "store"), ("own", "store"), ("some", "guarded")],
)
def test_an_element_that_each_lane_has_set_or_that_harms_nobody_is_not_told(
    sets: str, use: str, schedule: str
) -> None:
    kernel = elements(sets, use)
    assert found(kernel, zeros(64), zeros(64), target="sm_80", schedule=schedule) == []


# ---------------------------------------------------------------------------- shuffles

HALF = 0xFFFF


def summed(mask: int = HALF, use: str = "one", first: int = 8) -> Any:
    """Add up the values of the first half of a warp, by shuffles, and use sums of some lanes."""

    @T.function
    def kernel(A: T.Tensor((32,), "int32"), Out: T.Tensor((32,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        value: T.int32 = A[lane]
        offset: T.int32 = first
        if lane < 16:
            while offset > 0:
                other = T.cuda.__shfl_down_sync(T.uint32(mask), value, offset, 32)
                if T.constexpr(use == "guarded"):
                    if lane + offset < 16 and other > 0:
                        value = value + other
                else:
                    value = value + other
                offset = offset // 2
            if T.constexpr(use == "one"):
                if lane == 0:
                    Out[lane] = value
            elif T.constexpr(use == "branch"):
                if value > 3:
                    Out[lane] = 1
            else:
                Out[lane] = value

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("use", "line"), [("all", "Out[lane] = value"), ("branch", "value > 3")])
def test_what_a_shuffle_reads_from_a_lane_that_it_does_not_name_is_not_used(
    use: str, line: str, schedule: str
) -> None:
    run = tilewright.compile(summed(use=use), target="sm_80", check=True, schedule=schedule)
    with pytest.raises(tilewright.CheckError) as caught:
        run(zeros(32), zeros(32))
    (finding,) = caught.value.findings
    assert finding.kind == "undefined-operation"
    assert finding.lanes == 0xFFFE  # only the sum of lane 0 is of lanes that are there
    assert finding.location is not None and line in finding.location.source_line()


def test_a_lane_that_is_left_out_of_the_sum_of_one_is_told() -> None:
    kernel = summed(first=16)
    told = found(kernel, zeros(32), zeros(32), target="sm_80")
    assert told == [("undefined-operation", "Out[lane] = value", "")]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("use", ["one", "guarded"])
def test_what_no_lane_has_given_may_be_computed_with(use: str, schedule: str) -> None:
    values = np.arange(1, 33, dtype="int32")
    out = zeros(32)
    assert found(summed(use=use), values, out, target="sm_80", schedule=schedule) == []
    assert out[0] == sum(range(1, 17))


@pytest.mark.parametrize("mode", ["down", "up", "xor"])
def test_a_lane_that_is_out_of_range_reads_its_own(mode: str) -> None:
    @T.function
    def kernel(A: T.Tensor((32,), "int32"), Out: T.Tensor((32,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        value: T.int32 = A[lane]
        if lane < 8:
            if T.constexpr(mode == "down"):
                value = T.cuda.__shfl_down_sync(T.uint32(0xFF), value, 3, 8)
            if T.constexpr(mode == "up"):
                value = T.cuda.__shfl_up_sync(T.uint32(0xFF), value, 3, 8)
            if T.constexpr(mode == "xor"):
                value = T.cuda.__shfl_xor_sync(T.uint32(0xFF), value, 3, 8)
        Out[lane] = value

    assert found(kernel, zeros(32), zeros(32), target="sm_80") == []


# ---------------------------------------------------------------------------- turns of loops


def accumulated(begins: str, of: str = "variable", turns: int = 4) -> Any:
    """Sum up in a loop, of a variable or an element of an array, and store the sum."""

    @T.function
    def kernel(A: T.Tensor((64,), "int32"), Out: T.Tensor((64,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        total: T.int32
        totals = T.alloc_local((2,), "int32", layout="default")
        if T.constexpr(begins == "before"):
            total = 0
            totals[0] = 0
        for turn in range(turns):
            if T.constexpr(begins == "first turn") and turn == 0:
                total = 0
                totals[0] = 0
            if T.constexpr(of == "variable"):
                if T.constexpr(begins == "later arm"):
                    if turn > 0:
                        total += A[tid]
                    else:
                        total = A[tid]
                elif T.constexpr(begins == "choice"):
                    total = T.if_then_else(turn == 0, 0, total) + A[tid]
                else:
                    total += A[tid]
            else:
                if T.constexpr(begins == "later arm"):
                    if turn > 0:
                        totals[0] += A[tid]
                    else:
                        totals[0] = A[tid]
                elif T.constexpr(begins == "choice"):
                    totals[0] = T.if_then_else(turn == 0, 0, totals[0]) + A[tid]
                else:
                    totals[0] += A[tid]
        if T.constexpr(of == "variable"):
            Out[tid] = total
        else:
            Out[tid] = totals[0]

    return kernel


@pytest.mark.parametrize("of", ["variable", "array"])
@pytest.mark.parametrize("schedule", SCHEDULES[:3])
def test_a_sum_that_nothing_has_cleared_is_told_where_it_is_added_to(
    of: str, schedule: str
) -> None:
    (fault,) = found(accumulated("never", of), zeros(64), zeros(64), schedule=schedule)
    assert fault[0] == "uninitialised" and "+= A[tid]" in fault[1]


@pytest.mark.parametrize("of", ["variable", "array"])
@pytest.mark.parametrize("begins", ["before", "first turn", "later arm", "choice"])
def test_a_sum_that_begins_in_some_way_is_not_told(begins: str, of: str) -> None:
    a, out = np.arange(64, dtype="int32"), zeros(64)
    assert found(accumulated(begins, of), a, out) == []
    assert out.tolist() == (4 * a).tolist()


def begun(how: str) -> Any:
    """Sum up in a loop what is cleared in some turns, or read there what an earlier turn left."""

    @T.function
    def kernel(
        A: T.Tensor((64,), "int32"), N: T.Tensor((3,), "int32"), Out: T.Tensor((4, 64), "int32")
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        total: T.int32
        held = T.alloc_local((2,), "int32", layout="default")
        if N[1] > 0:
            total = 0
        for _ in range(N[0] if T.constexpr(how == "no turn") else 1):
            if T.constexpr(how == "no turn"):
                total = 0
        for turn in range(N[2]):
            if T.constexpr(how == "second turn") and turn == 1:
                total = 0
            if T.constexpr(how == "within"):
                inner = T.alloc_local((1,), "int32", layout="default")
                if turn == 0:
                    inner[0] = 0
                for _ in range(2):
                    inner[0] += A[tid]
                Out[turn, tid] = inner[0]
            elif T.constexpr(how == "kept"):
                before = held[0] * 2
                held[1] = held[0]
                if turn > 0:
                    Out[turn, tid] = before - held[1]
                held[0] = A[tid]
            else:
                total += A[tid]
        if T.constexpr(how != "within" and how != "kept"):
            Out[0, tid] = total

    return kernel


@pytest.mark.parametrize(
    "how, kinds",
    [
        *((each, ["uninitialised"]) for each in ("arm", "no turn", "second turn", "within")),
        *((each, []) for each in ("before", "kept")),
    ],
)
def test_what_the_turns_of_a_loop_begin_with(how: str, kinds: list[str]) -> None:
    """Sums that are cleared on other paths only are told; what nobody uses then is not."""
    count = np.array([0, how == "before", 4], "int32")
    told = found(begun(how), np.arange(64, dtype="int32"), count, np.zeros((4, 64), "int32"))
    assert [kind for kind, _, _ in told] == kinds
