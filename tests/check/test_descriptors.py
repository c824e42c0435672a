"""Descriptors of matrices and tensor maps, against the layouts of the buffers that they are for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

from tilewright import simt as T
from tilewright.layout import mma_shared_layout

M, N, K = 128, 16, 16
A_LAYOUT = mma_shared_layout("float16", 1, (M, K))
B_LAYOUT = mma_shared_layout("float16", 1, (N, K))
BOX_LAYOUT = mma_shared_layout("float16", 3, (64, 64))
MMA = "tcgen05.mma.cta_group::1.kind::f16"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
COPY = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x16.b32"


def product(swizzle: int = 1, stride: int = 16, start: int = 0, elsewhere: bool = False) -> Any:
    """Multiply by descriptors of rows of 32 bytes, swizzled; strides count 16 bytes."""

    @T.function
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        Out: T.Tensor((M, N), "float32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
        thread, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
        b = T.alloc_shared((N, K), "float16", layout=B_LAYOUT, align=1024)
        a = T.alloc_shared((M, K), "float16", layout=A_LAYOUT, align=1024)
        more = T.alloc_shared((4 * M, K), "float16", layout="default", align=1024)
        address = T.alloc_shared((1,), "uint32", layout="default")
        done = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if warp == 0:
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](
                T.address_of(address), T.uint32(32)
            )
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
        if thread == 0:
            T.ptx.mbarrier.init.shared.b64(done.ptr_to([0]), T.uint32(1))
        for j in range(K):
            a[thread, j] = A[thread, j]
            for part in range(4):
                more[part * M + thread, j] = A[thread, j]
            if thread < N:
                b[thread, j] = B[thread, j]
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        a_desc: T.uint64 = 0
        b_desc: T.uint64 = 0
        idesc: T.uint32 = 0
        if T.constexpr(elsewhere):
            T.cuda.tcgen05.encode_matrix_descriptor(
                T.address_of(a_desc), more.ptr_to([0, 0]), 1, stride, swizzle
            )
        else:
            T.cuda.tcgen05.encode_matrix_descriptor(
                T.address_of(a_desc), a.ptr_to([0, 0]), 1, stride, swizzle
            )
        T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(b_desc), b.ptr_to([0, 0]), 1, 16, 1)
        T.cuda.tcgen05.encode_instr_descriptor(
            T.address_of(idesc), "float32", "float16", "float16", M, N, K, False, False
        )
        if thread == 0:
            T.ptx[MMA](address[0], a_desc + T.uint64(start), b_desc, idesc, False)
            T.ptx[COMMIT](done.ptr_to([0]))
        T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        row = T.alloc_local((N,), "uint32", layout="default")
        T.ptx[LOAD](
            *[row[j] for j in range(N)], address[0] + T.cast(warp, "uint32") * T.uint32(1 << 21)
        )
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        for j in range(N):
            Out[thread, j] = T.reinterpret(row[j], "float32")
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](address[0], T.uint32(32))

    return kernel


def matrices() -> tuple[np.ndarray, ...]:
    return np.ones((M, K), "f2"), np.ones((N, K), "f2"), np.zeros((M, N), "f4")


@pytest.mark.parametrize(
    "fault",
    [{"swizzle": 0}, {"swizzle": 2}, {"swizzle": 3}, {"stride": 17}, {"start": 1}],
    ids=str,
)
def test_a_descriptor_is_that_of_the_layout(fault: dict[str, Any]) -> None:
    expect(product, fault, "descriptor", "T.ptx[MMA]", "", *matrices())


def test_rows_may_be_apart_and_other_buffers_claim_nothing() -> None:
    choices: list[dict[str, Any]] = [{"swizzle": 3, "stride": 64, "elsewhere": True}, {"stride": 0}]
    for schedule in SCHEDULES:
        for choice in choices:
            assert found(product(**choice), *matrices(), schedule=schedule) == []


def box(swizzle: int = 3, group: str = "", relaid: bool = False) -> Any:
    """Copy a box to a buffer whose layout swizzles 128 bytes."""
    copy = f"{COPY}.{group}" if group else COPY

    @T.function
    def kernel(A: T.Tensor((64, 64), "float16", align=16), Out: T.Tensor((64,), "float16")):
        amap: T.let[T.Ptr(T.TensorMap)] = T.stack_alloca("tensormap", 1)
        T.cuda.tensormap_encode_tiled(
            amap,
            A.ptr_to([0, 0]),
            *(64, 64, 128, 64, 64, 1, 1),
            descriptor_dtype="float16",
            rank=2,
            swizzle=swizzle,
        )
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        tile = T.alloc_shared((64, 64), "float16", layout=BOX_LAYOUT, align=1024)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        lane = T.cuda.lane_id()
        if lane == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        if lane == 0:
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.ptx.SINK, bar.ptr_to([0]), 8192)
            T.ptx[copy](tile.data, T.address_of(amap), 0, 0, bar.ptr_to([0]))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        if T.constexpr(relaid):
            flat = tile.view(4096, layout="default")
            Out[lane] = flat[lane]
        else:
            Out[lane] = tile[lane, 0]

    return kernel


IMAGE = (np.ones((64, 64), "f2"), np.zeros(64, "f2"))


def test_a_tensor_map_has_the_swizzle_of_the_layout() -> None:
    expect(box, {"swizzle": 0}, "descriptor", "T.ptx[copy]", "", *IMAGE)


def test_a_buffer_that_is_seen_under_two_layouts_claims_nothing() -> None:
    assert found(box(swizzle=0, relaid=True), *map(np.copy, IMAGE)) == []


def test_a_copy_for_a_pair_of_ctas_needs_a_cluster() -> None:
    expect(box, {"group": "cta_group::2"}, "cta-group", "T.ptx[copy]", "", *IMAGE)
