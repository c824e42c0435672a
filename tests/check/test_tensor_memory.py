"""Products in Tensor Memory: what reads and overwrites them, and when it may be freed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

from tilewright import simt as T
from tilewright.layout import S, TileLayout, mma_shared_layout, tid_in_wg, tmem_mma_operand_layout

a_layout = mma_shared_layout("float16", 3, (128, 64))
b_layout = mma_shared_layout("float16", 3, (64, 64))
d_layout = tmem_mma_operand_layout("D", (128, 64), "float32", M=128, cta_group=1)
register_layout = TileLayout(S[(128, 64) : (1 @ tid_in_wg, 1)])
MMA = "tcgen05.mma.cta_group::1.kind::f16"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x64.b32"


def products(
    turns: int = 2,
    fence: bool = True,
    commit_wait: bool = True,
    load_wait: bool = True,
    turn_barrier: bool = True,
    end_barrier: bool = True,
    fresh: bool = True,
    set_up: bool = True,
) -> Any:
    """Multiply into the same columns, and read the result, once or more often."""

    @T.function
    def kernel(
        A: T.Tensor((128, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        Out: T.Tensor((128, 64), "float32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
        tid = T.cuda.thread_idx("x")
        warp = T.cuda.warp_id()
        a = T.alloc_shared((128, 64), "float16", layout=a_layout, align=1024)
        b = T.alloc_shared((64, 64), "float16", layout=b_layout, align=1024)
        address = T.alloc_shared((1,), "uint32", layout="default")
        mbar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if warp == 0:
            T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
                T.address_of(address), T.uint32(64)
            )
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(mbar.ptr_to([0]), T.uint32(1))
        for j in range(64):
            a[tid, j] = A[tid, j]
            if tid < 64:
                b[tid, j] = B[tid, j]
        if T.constexpr(fence):
            T.ptx.fence.proxy.async_.shared__cta()
        else:
            if tid == 0:
                T.ptx.fence.mbarrier_init.release.cluster()
        if T.constexpr(set_up):
            T.cuda.cta_sync()
        d = T.cuda.decl_tmem(
            address[0], ty_args=[T.Tensor((128, 64), "float32", scope="tmem", layout=d_layout)]
        )
        av = a.rearrange("m (kr k) -> kr m k", k=16).view(1, 4, 128, 16)
        bv = b.rearrange("n (kr k) -> kr n k", k=16).view(1, 4, 64, 16)
        frag = T.alloc_local((128, 64), "float32", layout=register_layout)
        for turn in range(turns):
            if tid == 0:
                T.cuda.tile.apply(
                    T.ptx[MMA],
                    d.view(1, 1, 128, 64),
                    av,
                    bv,
                    instruction_shape=(128, 64, 16),
                    accum=not fresh,
                )
                T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
                    mbar.ptr_to([0])
                )
            if T.constexpr(commit_wait):
                T.cuda.mbarrier_wait(mbar.ptr_to([0]), turn % 2)
            T.ptx.tcgen05.fence__after_thread_sync()
            T.cuda.tile.apply(
                T.ptx[LOAD], frag.view(4, 32, 64), d.view(4, 32, 64), scope="warpgroup"
            )
            if T.constexpr(load_wait):
                T.ptx.tcgen05.wait__ld.sync.aligned()
            if T.constexpr(not commit_wait):
                T.cuda.mbarrier_wait(mbar.ptr_to([0]), turn % 2)
            T.ptx.tcgen05.fence__before_thread_sync()
            if T.constexpr(turn_barrier):
                T.cuda.cta_sync()
            T.ptx.tcgen05.fence__after_thread_sync()
        local = frag.view(64, layout="default")
        T.ptx.tcgen05.wait__ld.sync.aligned()
        for j in range(64):
            Out[tid, j] = local[j]
        if T.constexpr(end_barrier):
            T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(64))

    return kernel


ARRAYS = (np.ones((128, 64), np.float16), np.ones((64, 64), np.float16), np.zeros((128, 64), "f4"))


def kinds(**choices: Any) -> list[set[tuple[str, ...]]]:
    """Give the kinds that each schedule finds."""
    result: list[set[tuple[str, ...]]] = []
    for schedule in SCHEDULES:
        arrays = [np.copy(each) for each in ARRAYS]
        result.append({each[0] for each in found(products(**choices), *arrays, schedule=schedule)})
    return result


def test_what_is_right_is_no_finding() -> None:
    assert kinds() == [set()] * len(SCHEDULES)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"fence": False}, {"missing-proxy-fence"}),
        ({"turns": 1, "commit_wait": False}, {"missing-wait"}),
        ({"load_wait": False}, {"missing-wait"}),
        ({"turns": 1, "fresh": False}, {"uninitialised"}),
    ],
)
def test_each_edge_is_needed(fault: dict[str, Any], kind: set[str]) -> None:
    assert kinds(**fault) == [kind] * len(SCHEDULES)


def test_a_load_before_the_commit_shows_both_lines() -> None:
    fault = {"turns": 1, "commit_wait": False}

    def make(**choices: Any) -> Any:
        return products(**{"turns": 1, **choices})

    here = there = "T.cuda.tile.apply"
    expect(make, fault, "missing-wait", here, there, *ARRAYS)
