"""Products in Tensor Memory: what reads and overwrites them, and when it may be freed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

import tilewright
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
    after: bool = True,
    waits_late: bool = False,
    relinquished: bool = True,
    columns: int = 64,
    commits: int = 0,
) -> Any:
    """Multiply into the same columns, and read the result, once or more often.

    Thread 0 multiplies, and thread `commits` commits.
    """

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
                T.address_of(address), T.uint32(columns)
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
            if tid == commits:
                T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
                    mbar.ptr_to([0])
                )
            if T.constexpr(commit_wait):
                T.cuda.mbarrier_wait(mbar.ptr_to([0]), turn % 2)
            if T.constexpr(after):
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
        if T.constexpr(waits_late):
            Out[tid, 0] = local[0] * 2
        T.ptx.tcgen05.wait__ld.sync.aligned()
        for j in range(64):
            Out[tid, j] = local[j]
        if T.constexpr(end_barrier):
            T.cuda.cta_sync()
        if warp == 0:
            if T.constexpr(relinquished):
                T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(columns))

    return kernel


ARRAYS = (np.ones((128, 64), np.float16), np.ones((64, 64), np.float16), np.zeros((128, 64), "f4"))


def kinds(**choices: Any) -> list[set[str]]:
    """Give the kinds that each schedule finds."""
    result: list[set[str]] = []
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


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("thread", [5, 40])
def test_a_commit_tells_of_what_its_own_thread_has_multiplied(thread: int, schedule: str) -> None:
    kernel = products(turns=1, commits=thread)
    run = tilewright.compile(kernel, target="sm_100a", check=True, schedule=schedule)
    with pytest.raises(tilewright.CheckError) as caught:
        run(*map(np.copy, ARRAYS))
    # The columns may be freed too early as well, which ends the launch.
    assert "missing-wait" in {each.kind for each in caught.value.findings}


def one_turn(**choices: Any) -> Any:
    return products(**{"turns": 1, **choices})


def test_a_load_needs_the_fence_after_the_wait_for_what_others_multiplied() -> None:
    apply = "T.cuda.tile.apply"
    expect(one_turn, {"after": False}, "missing-wait", apply, apply, *ARRAYS)


def test_registers_are_read_after_the_wait_for_their_load() -> None:
    fault = {"load_wait": False, "waits_late": True}
    expect(one_turn, fault, "missing-wait", "local[0] * 2", "T.cuda.tile.apply", *ARRAYS)


def test_the_permit_to_allocate_is_given_up() -> None:
    expect(one_turn, {"relinquished": False}, "tmem-lifecycle", "tcgen05.alloc", "", *ARRAYS)


def test_who_has_all_columns_may_keep_the_permit() -> None:
    assert kinds(relinquished=False, columns=512) == [set()] * len(SCHEDULES)


ST = "tcgen05.st.sync.aligned.32x32b.x1.b32"
LD = "tcgen05.ld.sync.aligned.32x32b.x1.b32"


def cells(wait: bool = True, load_wait: bool = True) -> Any:
    """Store a cell per lane, and load it."""

    @T.function
    def kernel(Out: T.Tensor((32,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        address = T.alloc_shared((1,), "uint32", layout="default")
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](
            T.address_of(address), T.uint32(32)
        )
        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
        T.cuda.cta_sync()
        value: T.uint32 = T.cast(lane, "uint32")
        T.ptx[ST](address[0], value)
        # What a store takes is its own: registers may be written at once.
        value = T.uint32(5)
        if T.constexpr(wait):
            T.ptx["tcgen05.wait::st.sync.aligned"]()
        taken: T.uint32 = value
        T.ptx[LD](taken, address[0])
        if T.constexpr(load_wait):
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Out[lane] = taken + 1
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        T.cuda.cta_sync()
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](address[0], T.uint32(32))

    return kernel


@pytest.mark.parametrize(
    ("fault", "here", "there"),
    [("wait", "T.ptx[LD]", "T.ptx[ST]"), ("load_wait", "taken + 1", "T.ptx[LD]")],
)
def test_loads_and_stores_of_a_warp_are_waited_for(fault: str, here: str, there: str) -> None:
    out = np.zeros(32, np.uint32)
    expect(cells, {fault: False}, "missing-wait", here, there, out)


def lifetime(quarter: int = 0, freed: int = 1, before: bool = False, barrier: bool = True) -> Any:
    """Let two warps store to columns that the first of them allocates and frees."""

    @T.function
    def kernel(Out: T.Tensor((64,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        warp = T.cuda.warp_id()
        address = T.alloc_shared((1,), "uint32", layout="default")
        if warp == 0:
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](
                T.address_of(address), T.uint32(32)
            )
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
        T.cuda.cta_sync()
        own = address[0] + T.cast((warp + quarter) % 4, "uint32") * T.uint32(1 << 21)
        if T.constexpr(before):
            if warp == 0:
                T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](address[0], T.uint32(32))
            T.cuda.cta_sync()
        T.ptx[ST](own, T.uint32(7))
        T.ptx["tcgen05.wait::st.sync.aligned"]()
        if T.constexpr(barrier):
            T.cuda.cta_sync()
        if warp == 0:
            for _ in range(freed):
                T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](address[0], T.uint32(32))

    return kernel


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"quarter": 1}, "tmem-access"),
        ({"freed": 0}, "tmem-lifecycle"),
        ({"freed": 2}, "tmem-lifecycle"),
        ({"before": True}, "tmem-lifecycle"),
    ],
    ids=str,
)
def test_a_fault_of_tensor_memory_ends_the_launch(fault: dict[str, Any], kind: str) -> None:
    out = np.zeros(64, np.uint32)
    assert found(lifetime(), np.copy(out)) == []
    run = tilewright.compile(lifetime(**fault), target="sm_100a", backend="sim", check=True)
    with pytest.raises(tilewright.CheckError) as caught:
        run(out)
    assert [each.kind for each in caught.value.findings] == [kind]


def test_who_uses_columns_after_they_are_freed_is_told_where_that_was() -> None:
    run = tilewright.compile(lifetime(before=True), target="sm_100a", backend="sim", check=True)
    with pytest.raises(tilewright.CheckError) as caught:
        run(np.zeros(64, np.uint32))
    (finding,) = caught.value.findings
    assert finding.location and "tcgen05.dealloc" in finding.location.source_line()
    assert finding.other_location and "T.ptx[ST]" in finding.other_location.source_line()
    assert finding.other_is_later and "barrier" in finding.hint


def test_columns_are_freed_after_the_last_access_of_another_warp() -> None:
    for schedule in ("late", "eager"):  # in which it comes after them, by chance
        out = np.zeros(64, np.uint32)
        ((kind, here, there),) = found(lifetime(barrier=False), out, schedule=schedule)
        assert kind == "tmem-lifecycle" and "tcgen05.dealloc" in here and "T.ptx[ST]" in there


def counted(written: bool = True, late: bool = False) -> Any:
    @T.function
    def kernel(Out: T.Tensor((32,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        votes = T.alloc_local((1,), "uint32", layout="default")
        for turn in range(2):
            if T.constexpr(late) and turn > 0:
                Out[lane] = votes[0]
            if T.constexpr(written):
                T.ptx["bar.red.popc.u32"](votes[0], T.uint32(0), lane > 5)
        Out[lane] = votes[0] + 1

    return kernel


def test_a_register_that_nothing_writes_is_not_read() -> None:
    out = np.zeros(32, np.uint32)
    expect(counted, {"written": False}, "uninitialised", "votes[0] + 1", "", out)
    assert found(counted(late=True), out) == []
