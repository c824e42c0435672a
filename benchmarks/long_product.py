"""A product of 128 x 256 elements over 256 in one tile: a kernel that is long when lowered.

A and B come as slabs of 64 columns, the widest that a swizzle takes; the tensor core multiplies
them in 16 steps of 16 columns, and each thread takes one row of the result, in 256 registers.

    executable = tilewright.compile(long_product.product, target="sm_100a")
"""

from __future__ import annotations

from typing import Any

from tilewright import simt
from tilewright.layout import S, TileLayout, mma_shared_layout, tid_in_wg, tmem_mma_operand_layout

T: Any = simt
M, N, K = 128, 256, 256
SLAB, STEP = 64, 16
NAME = f"{M} x {N} with {K // STEP} K-steps"
BYTES = (M + N) * K * 2
HALF = N // 2  # columns that one load takes out of Tensor Memory

load = T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"]
multiply = T.ptx["tcgen05.mma.cta_group::1.kind::f16"]
fetch = T.ptx["tcgen05.ld.sync.aligned.32x32b.x128.b32"]
A_LAYOUT, B_LAYOUT = (mma_shared_layout("float16", 3, (rows, K)) for rows in (M, N))
D_LAYOUT = tmem_mma_operand_layout("D", (M, N), "float32", M=M, cta_group=1)
ROW_EACH = TileLayout(S[(M, N) : (1 @ tid_in_wg, 1)])


@T.function
def product(
    A: T.Tensor((M, K), "float16", align=16),
    B: T.Tensor((N, K), "float16", align=16),
    D: T.Tensor((M, N), "float32"),
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=M))
    thread = T.cuda.thread_idx("x")
    warp = T.cuda.warp_id()
    a = T.alloc_shared((M, K), "float16", layout=A_LAYOUT, align=1024)
    b = T.alloc_shared((N, K), "float16", layout=B_LAYOUT, align=1024)
    column = T.alloc_shared((1,), "uint32", layout="default")
    come = T.alloc_shared((1,), "uint64", layout="default", align=8)
    done = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if warp == 0:
        T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
            T.address_of(column), T.uint32(N)
        )
    if thread == 0:
        T.ptx.mbarrier.init.shared.b64(come.ptr_to([0]), T.uint32(1))
        T.ptx.mbarrier.init.shared.b64(done.ptr_to([0]), T.uint32(1))
        T.ptx.fence.mbarrier_init.release.cluster()
    T.ptx.tcgen05.fence__before_thread_sync()
    T.cuda.cta_sync()
    T.ptx.tcgen05.fence__after_thread_sync()
    d = T.cuda.decl_tmem(
        column[0], ty_args=[T.Tensor((M, N), "float32", scope="tmem", layout=D_LAYOUT)]
    )
    if thread == 0:
        T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(come.ptr_to([0]), T.uint32(BYTES))
        for tile, tensor, rows in ((a, A, M), (b, B, N)):
            T.cuda.tile.apply(
                load,
                tile.rearrange("rows (slab k) -> slab rows k", k=SLAB),
                tensor,
                box=(rows, SLAB),
                coords=(0, 0),
                coord_steps=((0, SLAB),),
                swizzle=3,
                mbar=come.ptr_to([0]),
            )
        T.cuda.mbarrier_wait(come.ptr_to([0]), 0)
        T.cuda.tile.apply(
            multiply,
            d.view(1, 1, M, N),
            a.rearrange("rows (step k) -> step rows k", k=STEP).view(1, K // STEP, M, STEP),
            b.rearrange("rows (step k) -> step rows k", k=STEP).view(1, K // STEP, N, STEP),
            instruction_shape=(M, N, STEP),
            accum=False,
        )
        T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
            done.ptr_to([0])
        )
    T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
    T.ptx.tcgen05.fence__after_thread_sync()
    held = T.alloc_local((M, N), "float32", layout=ROW_EACH)
    T.cuda.tile.apply(
        fetch,
        held.view(4, 32, 2, HALF).permute(0, 2, 1, 3),
        d.view(4, 32, 2, HALF).permute(0, 2, 1, 3),
        scope="warpgroup",
    )
    T.ptx.tcgen05.wait__ld.sync.aligned()
    row = held.view(N, layout="default")
    for j in range(N):
        D[thread, j] = row[j]
    T.ptx.tcgen05.fence__before_thread_sync()
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx.tcgen05.fence__after_thread_sync()
        T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
        T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(column[0], T.uint32(N))
