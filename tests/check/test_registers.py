"""Variables that some lanes have not set: told where they go to memory, or decide."""

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
