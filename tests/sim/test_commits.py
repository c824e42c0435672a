"""A commit tracks what its own thread has issued, nothing of others (PTX ISA 9.7.16.12.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt as T

MMA = "tcgen05.mma.cta_group::1.kind::f16"
ONES = 16.0  # an element of the product of ones over a K of 16
COLUMNS = 64


def program(first: int, second: int, committer: int, columns: tuple[int, int]) -> Any:
    """Write a kernel in which two threads issue a product each, the second later, and one commits.

    Out is a row of Tensor Memory after the wait for that commit: whichever products must have
    landed by then are seen in it, and the others need not be.
    """

    @T.function
    def kernel(Out: T.Tensor((COLUMNS,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
        thread = T.cuda.thread_idx("x")
        ones = T.alloc_shared((128 * 16,), "float16", layout="default", align=1024)
        address = T.alloc_shared((1,), "uint32", layout="default")
        bars = T.alloc_shared((2,), "uint64", layout="default", align=8)
        for i in range(16):
            ones[thread * 16 + i] = T.float16(1)
        if T.cuda.warp_id() == 0:
            T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
                T.address_of(address), T.uint32(COLUMNS)
            )
        if thread == 0:
            T.ptx.mbarrier.init.shared.b64(bars.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(bars.ptr_to([1]), T.uint32(2))
        T.ptx.fence.proxy.async_.shared__cta()
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        desc: T.uint64
        idesc: T.uint32
        T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(desc), ones.ptr_to([0]), 8, 16, 0)
        T.cuda.tcgen05.encode_instr_descriptor(
            T.address_of(idesc), "float32", "float16", "float16", 128, 16, 16, False, False
        )
        for issuer, column, fresh in ((first, columns[0], True), (second, columns[1], False)):
            if thread == issuer:
                T.ptx[MMA](address[0] + T.uint32(column), desc, desc, idesc, not fresh)
            T.ptx.tcgen05.fence__before_thread_sync()
            T.cuda.cta_sync()
            T.ptx.tcgen05.fence__after_thread_sync()
        if thread == committer:
            commit(bars.ptr_to([0]))
        T.cuda.mbarrier_wait(bars.ptr_to([0]), 0)
        row = T.alloc_local((COLUMNS,), "uint32", layout="default")
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x64.b32"](
            *[row[j] for j in range(COLUMNS)],
            address[0] + T.cast(T.cuda.warp_id(), "uint32") * T.uint32(1 << 21),
        )
        T.ptx.tcgen05.wait__ld.sync.aligned()
        if thread == 0:
            for j in range(COLUMNS):
                Out[j] = T.reinterpret(row[j], "float32")
        T.cuda.cta_sync()
        for issuer in (first, second):
            if thread == issuer:
                commit(bars.ptr_to([1]))
        T.cuda.mbarrier_wait(bars.ptr_to([1]), 0)
        T.cuda.cta_sync()
        if T.cuda.warp_id() == 0:
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(COLUMNS))

    return kernel


@T.inline
def commit(barrier):
    T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(barrier)


def seen(schedule: str, *choices: Any) -> np.ndarray:
    out = np.zeros(COLUMNS, np.float32)
    tilewright.compile(program(*choices), target="sm_100a", schedule=schedule)(out)
    return out


def landed(values: np.ndarray, sum: float) -> bool:
    return bool((values == sum).all())


@pytest.mark.parametrize("committer", [64, 1], ids=["another warp", "another lane"])
def test_a_commit_waits_for_no_other_threads_products(committer: int) -> None:
    out = seen("late", 0, 0, committer, (0, 16))
    assert np.isnan(out[:32]).all()


def test_a_commit_waits_for_all_products_of_its_thread() -> None:
    for schedule in ("late", "eager", "random:1", "random:2"):
        out = seen(schedule, 0, 96, 96, (0, 16))
        # What was there is not a number; the second product adds to it.
        assert np.isnan(out[16:32]).all()
        out = seen(schedule, 96, 0, 96, (0, 16))
        assert landed(out[:16], ONES)


def test_a_commit_leaves_another_threads_product_into_other_columns() -> None:
    assert np.isnan(seen("late", 0, 32, 32, (0, 16))[:16]).all()


@pytest.mark.parametrize("schedule", ["late", "eager", "random:3", "random:4", "random:5"])
@pytest.mark.parametrize(("first", "second"), [(0, 32), (32, 0), (5, 5)])
def test_products_into_one_accumulator_stay_in_order(
    schedule: str, first: int, second: int
) -> None:
    """PTX ISA, "Pipelined tcgen05 instructions": also those of threads that have synchronized."""
    assert landed(seen(schedule, first, second, second, (0, 0))[:16], 2 * ONES)
