"""Stages that are written in whole lines and read by warps: who reads, and who writes them again.

A line is 128 bytes. Reads of such lines are entered late, so what is tested here is that nothing
is forgotten that a fault comes of: of many reads, of a stage of which a part is written anew, of
lines whose chunks are dealt out to lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, found

from tilewright import simt as T

LINES, N = 4, 32  # a stage, of which a warp reads 16 bytes per lane
BYTES = LINES * N * 4
LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
READ = "T.ptx.ld.shared.v4.f32(v[0]"


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def refilled(
    wait: bool = True, reads: int = 1, parts: int = 1, again: str = "", threads: bool = False
) -> Any:
    """Fill a stage, read it, and fill it again, in parts or by threads.

    `again` says when its second half is read once more: before the readers tell, or after.
    """
    size = BYTES // parts

    @T.function
    def kernel(A: T.Tensor((2, LINES, N), "float32", align=128), Out: T.Tensor((N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
        s = T.alloc_shared((LINES, N), "float32", layout="default", align=128)
        bars = T.alloc_shared((3,), "uint64", layout="default", align=8)
        v = T.alloc_local((4,), "float32", layout="default")
        state: T.uint64 = 0
        if warp == 1 and lane == 0:
            for bar in range(3):
                T.ptx.mbarrier.init.shared.b64(bars.ptr_to([bar]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        if warp == 1:
            if lane == 0:
                T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(bars.ptr_to([0]), T.uint32(BYTES))
                T.ptx[LOAD](
                    s.ptr_to([0, 0]), A.ptr_to([0, 0, 0]), T.uint32(BYTES), bars.ptr_to([0])
                )
                T.cuda.mbarrier_wait(bars.ptr_to([0]), 0)
                if T.constexpr(wait):
                    T.cuda.mbarrier_wait(bars.ptr_to([1]), 0)
                if T.constexpr(threads):
                    s[1, 3] = T.float32(1)
                else:
                    bar = bars.ptr_to([2])
                    T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(bar, T.uint32(BYTES))
                    for part in range(parts):
                        first = LINES // parts * part
                        again_from = A.ptr_to([1, first, 0])
                        T.ptx[LOAD](s.ptr_to([first, 0]), again_from, T.uint32(size), bar)
                    T.cuda.mbarrier_wait(bar, 0)
        else:
            T.cuda.mbarrier_wait(bars.ptr_to([0]), 0)
            for _ in range(reads):
                T.ptx.ld.shared.v4.f32(v[0], v[1], v[2], v[3], s.ptr_to([lane // 8, lane % 8 * 4]))
            if T.constexpr(again == "before"):
                Out[lane] = s[3, lane]
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.warp_sync()
            if lane == 0:
                T.ptx.mbarrier.arrive.shared__cta.b64(state, bars.ptr_to([1]))
            if T.constexpr(again == "after"):
                T.ptx.ld.shared.v4.f32(v[0], v[1], v[2], v[3], s.ptr_to([lane // 8, lane % 8 * 4]))
            Out[lane] = v[0] + v[1] + v[2] + v[3]

    return kernel


REFILL = "again_from, T.uint32(size)"


@pytest.mark.parametrize("reads", [1, 200])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_is_filled_again_once_all_have_read_it(schedule: str, reads: int) -> None:
    arrays = zeros(2, LINES, N), zeros(N)
    assert found(refilled(reads=reads), *arrays, schedule=schedule) == []
    ((kind, *lines),) = found(refilled(reads=reads, wait=False), *arrays, schedule=schedule)
    # Which of them comes first is chance.
    assert kind in ("stage-overwritten", "missing-wait")
    assert [any(text in line for line in lines) for text in (READ, REFILL)] == [True, True]


def test_a_part_may_be_filled_while_another_is_read() -> None:
    arrays = zeros(2, LINES, N), zeros(N)
    for parts in (1, 2, 4):
        assert found(refilled(parts=parts, again="before"), *arrays) == []
        faults = found(refilled(parts=parts, again="after"), *arrays)
        assert {each[0] for each in faults} == {"stage-overwritten"}
        assert all(REFILL in each[1] or REFILL in each[2] for each in faults)


def test_threads_that_write_a_stage_wait_as_well() -> None:
    arrays = zeros(2, LINES, N), zeros(N)
    for schedule in SCHEDULES:
        assert found(refilled(threads=True), *arrays, schedule=schedule) == []
    faults = found(refilled(threads=True, wait=False), *arrays)
    assert {"race"} <= {each[0] for each in faults}
    assert any(READ in " ".join(each[1:]) for each in faults)


def dealt(other: int = 0, turn: int = 3) -> Any:
    """Let each lane copy a chunk of a line, in the order of a swizzle, and read one back."""

    @T.function
    def kernel(A: T.Tensor((4, 8, 4), "float32", align=128), Out: T.Tensor((N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((4, 8, 4), "float32", layout="default", align=128)
        line, chunk = lane // 8, lane % 8
        T.ptx["cp.async.cg.shared.global"](
            s.ptr_to([line, chunk ^ turn, 0]), A.ptr_to([line, chunk, 0]), 16
        )
        T.ptx["cp.async.commit_group"]()
        T.ptx["cp.async.wait_group"](0)
        Out[lane] = s[line, chunk ^ turn ^ other, 1]

    return kernel


def test_a_lane_knows_of_its_own_copies() -> None:
    for turn in range(8):
        assert found(dealt(turn=turn), zeros(4, 8, 4), zeros(N)) == []
        for other in (1, 4):
            ((kind, _, there),) = found(dealt(other, turn), zeros(4, 8, 4), zeros(N))
            assert kind == "missing-wait"
            assert "cp.async" in there or "s.ptr_to" in there
