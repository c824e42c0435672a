"""Asynchronous operations and proxies: each edge that a kernel lacks is one finding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

from tilewright import simt as T

N = 128
BYTES = N * 4


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


# ---------------------------------------------------------------------------- copies in groups


def copied(wait: bool = True, barrier: bool = True, keep: int = 0) -> Any:
    @T.function
    def kernel(A: T.Tensor((N,), "float32", align=16), Out: T.Tensor((N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default", align=16)
        T.ptx["cp.async.ca.shared.global"](s.ptr_to([tid]), A.ptr_to([tid]), 4)
        T.ptx["cp.async.commit_group"]()
        if T.constexpr(wait):
            T.ptx["cp.async.wait_group"](keep)
        if T.constexpr(barrier):
            T.cuda.cta_sync()
        Out[tid] = s[N - 1 - tid]

    return kernel


COPY = 'T.ptx["cp.async.ca.shared.global"]'


@pytest.mark.parametrize("fault", [{"wait": False}, {"keep": 1}, {"barrier": False}])
def test_a_copy_is_waited_for_by_its_thread_which_tells_the_others(fault: dict[str, Any]) -> None:
    expect(copied, fault, "missing-wait", "s[N - 1 - tid]", COPY, zeros(N), zeros(N))


# ---------------------------------------------------------------------------- bulk copies


LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"


def brought(
    wait: bool = True, parity: int = 0, init_fence: bool = True, war_fence: bool = True
) -> Any:
    """Bring two rows one after the other to the same place."""

    @T.function
    def kernel(A: T.Tensor((2, N), "float32", align=16), Out: T.Tensor((2, N), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default", align=16)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
            if T.constexpr(init_fence):
                T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        for row in range(2):
            if tid == 0:
                T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(bar.ptr_to([0]), T.uint32(BYTES))
                T.ptx[LOAD](s.ptr_to([0]), A.ptr_to([row, 0]), T.uint32(BYTES), bar.ptr_to([0]))
            if T.constexpr(wait) or tid == 0:
                T.cuda.mbarrier_wait(bar.ptr_to([0]), (row + parity) % 2)
            Out[row, tid] = s[tid]
            if T.constexpr(war_fence):
                T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()

    return kernel


READ, LOADED = "Out[row, tid] = s[tid]", "T.ptx[LOAD]"


def test_a_copy_that_an_mbarrier_tells_of() -> None:
    arrays = (zeros(2, N), zeros(2, N))
    expect(brought, {"wait": False}, "missing-wait", READ, LOADED, *arrays, target="sm_90a")


def test_a_read_before_an_asynchronous_write_needs_a_fence() -> None:
    arrays, kind = (zeros(2, N), zeros(2, N)), "missing-proxy-fence-war"
    expect(brought, {"war_fence": False}, kind, LOADED, READ, *arrays, target="sm_90a")


def test_an_mbarrier_is_made_visible_to_the_asynchronous_proxy() -> None:
    arrays, kind = (zeros(2, N), zeros(2, N)), "mbarrier-init-visibility"
    fault, init = {"init_fence": False}, "T.ptx.mbarrier.init"
    # A fence for the data of the first row makes it visible too, but the copy comes before.
    expect(brought, fault, kind, LOADED, init, *arrays, target="sm_90a")


def stored(
    fence: str = "writers", barrier: bool = True, wait: str = "wait_group.read", keep: int = 0
) -> Any:
    """Store a row by the asynchronous proxy, and then another one from the same place."""

    @T.function
    def kernel(A: T.Tensor((2, N), "float32"), Out: T.Tensor((2, N), "float32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((N,), "float32", layout="default", align=16)
        for row in range(2):
            s[tid] = A[row, tid]
            if T.constexpr(fence == "writers"):
                T.ptx.fence.proxy.async_.shared__cta()
            if T.constexpr(barrier):
                T.cuda.cta_sync()
            if tid == 0:
                if T.constexpr(fence == "issuer"):
                    T.ptx.fence.proxy.async_.shared__cta()
                T.ptx[STORE](Out.ptr_to([row, 0]), s.ptr_to([0]), T.uint32(BYTES))
                T.ptx["cp.async.bulk.commit_group"]()
                if T.constexpr(wait != ""):
                    T.ptx[f"cp.async.bulk.{wait}"](keep)
            T.cuda.cta_sync()
        if tid == 0:
            T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


WRITE, STORED = "s[tid] = A[row, tid]", "T.ptx[STORE]"


@pytest.mark.parametrize(
    ("fault", "kind", "here", "there"),
    [
        ({"fence": ""}, "missing-proxy-fence", STORED, WRITE),
        ({"fence": "issuer"}, "misplaced-proxy-fence", STORED, WRITE),
        ({"wait": ""}, "stage-overwritten", WRITE, STORED),
        ({"keep": 1}, "stage-overwritten", WRITE, STORED),
        ({"barrier": False}, "race", STORED, WRITE),
    ],
)
def test_a_store_by_the_asynchronous_proxy(
    fault: dict[str, Any], kind: str, here: str, there: str
) -> None:
    arrays = (zeros(2, N), zeros(2, N))
    expect(stored, fault, kind, here, there, *arrays, target="sm_90a")


def test_a_wait_for_the_whole_store_is_enough() -> None:
    assert found(stored(wait="wait_group"), zeros(2, N), zeros(2, N), target="sm_90a") == []


# ---------------------------------------------------------------------------- global memory


def passed_on(
    writer: str = "fence.proxy.async",
    reader: str = "",
    how: str = "plain",
    ctas: int = 1,
    mended: int = 64,
) -> Any:
    """Let threads write global memory, and an agent read it, for this CTA or for another one."""

    @T.function
    def kernel(
        Data: T.Tensor((64,), "float32", align=16),
        Flag: T.Tensor((1,), "uint32"),
        Out: T.Tensor((64,), "float32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=ctas, block=64))
        tid = T.cuda.thread_idx("x")
        s = T.alloc_shared((64,), "float32", layout="default", align=128)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if T.cuda.block_idx("x") == 0:
            if how == "plain":
                Data[63 - tid] = T.float32(tid)
            elif how == "red":
                T.ptx["red.global.add.f32"](Data.ptr_to([63 - tid]), T.float32(tid))
            elif tid < 16:
                for i in range(4):
                    Data[63 - 4 * tid - i] = T.float32(4 * tid + i)
            if T.constexpr(writer != "") and tid < mended:
                T.ptx[writer]()
            T.cuda.cta_sync()
            if ctas == 2 and tid == 0:
                T.ptx["st.release.gpu.global.u32"](Flag.ptr_to([0]), T.uint32(1))
        if T.cuda.block_idx("x") == ctas - 1:
            if tid == 0:
                T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
                if ctas == 2:
                    seen: T.uint32 = 0
                    T.cuda.wait_until(seen, Flag.ptr_to([0]), lambda value: value == 1)
                if T.constexpr(reader != ""):
                    T.ptx[reader]()
                T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](bar.ptr_to([0]), T.uint32(256))
                T.ptx[LOAD](s.ptr_to([0]), Data.ptr_to([0]), T.uint32(256), bar.ptr_to([0]))
            T.cuda.cta_sync()
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
            Out[tid] = s[63 - tid]

    return kernel


ASYNC = "fence.proxy.async"


@pytest.mark.parametrize("how", ["plain", "red", "quarter"])
@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"writer": ""}, "missing-proxy-fence"),
        ({"writer": ASYNC + ".shared::cta"}, "missing-proxy-fence"),
        ({"writer": "", "reader": ASYNC}, "misplaced-proxy-fence"),
        ({"mended": 1}, "misplaced-proxy-fence"),
        ({"mended": 15, "writer": ASYNC + ".global"}, "misplaced-proxy-fence"),
    ],
)
def test_who_writes_global_memory_fences_before_an_agent_reads_it(
    how: str, ctas: int, fault: dict[str, Any], kind: str
) -> None:
    arrays = zeros(64), zeros(1, dtype="uint32"), zeros(64)
    fences: tuple[dict[str, Any], ...] = ({}, {"writer": ASYNC + ".global"}, {"reader": ASYNC})
    for good in fences:
        kernel = passed_on(how=how, ctas=ctas, **good)
        copies = [np.copy(each) for each in arrays]
        assert found(kernel, *copies, target="sm_90a") == []
        assert copies[2].tolist() == list(range(64))
    for schedule in SCHEDULES[:3]:
        kernel = passed_on(how=how, ctas=ctas, **fault)
        copies = [np.copy(each) for each in arrays]
        faults = found(kernel, *copies, target="sm_90a", schedule=schedule)
        assert [each[0] for each in faults] == [kind]
        assert "red.global" in faults[0][1] or "Data[" in faults[0][1]
        assert faults[0][2].startswith("T.ptx[LOAD]")


def test_what_only_the_writers_lane_needs_it_fences_alone() -> None:
    @T.function
    def kernel(Data: T.Tensor((64,), "float32", align=16), Out: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((32,), "float32", layout="default", align=128)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        Data[32 + lane] = 1.0  # of no interest to the agent
        if lane == 3:
            for i in range(32):
                Data[i] = T.float32(i)
            T.ptx[ASYNC]()
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](bar.ptr_to([0]), T.uint32(128))
            T.ptx[LOAD](s.ptr_to([0]), Data.ptr_to([0]), T.uint32(128), bar.ptr_to([0]))
        T.cuda.warp_sync()
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        Out[lane] = s[31 - lane]

    for schedule in SCHEDULES:
        out = zeros(32)
        assert found(kernel, zeros(64), out, target="sm_90a", schedule=schedule) == []
        assert out.tolist() == list(range(31, -1, -1))


def test_what_was_there_before_the_launch_and_what_agents_write_needs_no_fence() -> None:
    @T.function
    def first(Data: T.Tensor((32,), "float32", align=16), Out: T.Tensor((2, 32), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((2, 32), "float32", layout="default", align=128)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if lane == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](bar.ptr_to([0]), T.uint32(128))
            T.ptx[LOAD](s.ptr_to([0, 0]), Data.ptr_to([0]), T.uint32(128), bar.ptr_to([0]))
        T.cuda.warp_sync()
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        Out[0, lane] = s[0, lane]
        s[1, lane] = T.float32(lane)
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.warp_sync()
        if lane == 0:
            T.ptx[STORE](Data.ptr_to([0]), s.ptr_to([1, 0]), T.uint32(128))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)
        T.cuda.warp_sync()
        Out[1, lane] = Data[31 - lane]
        T.cuda.warp_sync()
        Data[lane] = 3.0  # for the next launch

    data, out = np.ones(32, "float32"), zeros(2, 32)
    for turn in range(3):
        assert found(first, data, out, target="sm_90a") == []
        assert (out[0] == (3 if turn else 1)).all()
        assert out[1].tolist() == list(range(31, -1, -1))


LINES = 16  # of 128 bytes each


def by_parts(first: int, both: bool = True) -> Any:
    """Bring lines by two copies, with an mbarrier each, and have a warp read one of each lane."""

    @T.function
    def kernel(A: T.Tensor((LINES, 32), "float32", align=16), Out: T.Tensor((128,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        s = T.alloc_shared((LINES, 32), "float32", layout="default", align=128)
        bars = T.alloc_shared((2,), "uint64", layout="default", align=8)
        held = T.alloc_local((4,), "uint32", layout="default")
        if lane == 0:
            for part in range(2):
                T.ptx.mbarrier.init.shared.b64(bars.ptr_to([part]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
            for part, row, count in ((0, 0, first), (1, first, LINES - first)):
                bar, size = bars.ptr_to([part]), T.uint32(128 * count)
                T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(bar, size)
                T.ptx[LOAD](s.ptr_to([row, 0]), A.ptr_to([row, 0]), size, bar)
        T.cuda.warp_sync()
        T.cuda.mbarrier_wait(bars.ptr_to([0]), 0)
        if T.constexpr(both):
            T.cuda.mbarrier_wait(bars.ptr_to([1]), 0)
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"](
            *(held[n] for n in range(4)), s.ptr_to([lane % LINES, 4 * (lane // LINES)])
        )
        T.cuda.mbarrier_wait(bars.ptr_to([1]), 0)
        for n in range(4):
            Out[4 * lane + n] = held[n]

    return kernel


@pytest.mark.parametrize("first", [1, 3, 4, 6, 8, 13, 15])
def test_lines_that_one_read_has_by_several_copies(first: int) -> None:
    arrays = zeros(LINES, 32), np.zeros(128, "uint32")

    def make(both: bool = True) -> Any:
        return by_parts(first, both)

    expect(make, {"both": False}, "missing-wait", "ldmatrix", LOADED, *arrays, target="sm_90a")
