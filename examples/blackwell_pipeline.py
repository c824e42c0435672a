"""A matrix product on Blackwell as it is written for speed: copies, products and results overlap.

One thread brings tiles to a ring of three stages by the copy engine (TMA), another multiplies
them by the tensor core into Tensor Memory, and a warpgroup carries the result out. Two barriers
per stage hand the ring around: `full` when a stage's bytes have landed, `empty` when the tensor
core has read them. None of the waits can be left out: the simulator's schedule `late` shows it.

Run it by `python examples/blackwell_pipeline.py [SIZE]`.
"""

import sys
from typing import Any

import numpy as np

import tilewright
from tilewright import simt as T
from tilewright.layout import S, TileLayout, mma_shared_layout, tid_in_wg, tmem_mma_operand_layout

M, N, K = 128, 128, 64  # the tile of one CTA, and how much of it a stage holds
STAGES = 3
STAGE_BYTES = (M + N) * K * 2
COPIER, MULTIPLIER, ALLOCATOR = 0, 1, 2  # warps of the first warpgroup

a_layout = mma_shared_layout("float16", 3, (STAGES, M, K))
b_layout = mma_shared_layout("float16", 3, (STAGES, N, K))
d_layout = tmem_mma_operand_layout("D", (M, N), "float32", M=M, cta_group=1)
load = T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"]
store = T.ptx["st.global.v4.f32"]
rows = TileLayout(S[(M, N) : (1 @ tid_in_wg, 1)])


@T.inline
def commit(barrier):
    """Have the tensor core arrive at a barrier once all it was given is done."""
    T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(barrier)


def pipelined_product(m: int, n: int, k: int) -> Any:
    """Write the kernel for D[m, n] = A[m, k] · Bᵀ, with B as [n, k]."""

    @T.function
    def product(
        A: T.Tensor((m, k), "float16", align=16),
        B: T.Tensor((n, k), "float16", align=16),
        D: T.Tensor((m, n), "float32", align=16),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=(n // N, m // M), block=256))
        column = T.cuda.block_idx("x") * N
        row = T.cuda.block_idx("y") * M
        warp = T.cuda.warp_id()
        leader = T.cuda.elect_sync()
        a = T.alloc_shared((STAGES, M, K), "float16", layout=a_layout, align=1024)
        b = T.alloc_shared((STAGES, N, K), "float16", layout=b_layout, align=1024)
        full = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
        empty = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
        done = T.alloc_shared((1,), "uint64", layout="default", align=8)
        address = T.alloc_shared((1,), "uint32", layout="default")
        if warp == COPIER and leader:
            for stage in range(STAGES):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([stage]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([stage]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(done.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        if warp == ALLOCATOR:
            T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
                T.address_of(address), T.uint32(N)
            )
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        d = T.cuda.decl_tmem(
            address[0], ty_args=[T.Tensor((M, N), "float32", scope="tmem", layout=d_layout)]
        )

        if warp == COPIER and leader:
            for step in range(k // K):
                stage = step % STAGES
                # The first time round a stage is empty already: its phase -1 has ended.
                T.cuda.mbarrier_wait(empty.ptr_to([stage]), (step // STAGES + 1) % 2)
                T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(
                    full.ptr_to([stage]), T.uint32(STAGE_BYTES)
                )
                T.cuda.tile.apply(
                    load,
                    a.sub[stage],
                    A,
                    box=(M, K),
                    coords=(row, step * K),
                    swizzle=3,
                    mbar=full.ptr_to([stage]),
                )
                T.cuda.tile.apply(
                    load,
                    b.sub[stage],
                    B,
                    box=(N, K),
                    coords=(column, step * K),
                    swizzle=3,
                    mbar=full.ptr_to([stage]),
                )
        if warp == MULTIPLIER and leader:
            for step in range(k // K):
                stage = step % STAGES
                T.cuda.mbarrier_wait(full.ptr_to([stage]), step // STAGES % 2)
                T.ptx.tcgen05.fence__after_thread_sync()
                T.cuda.tile.apply(
                    T.ptx["tcgen05.mma.cta_group::1.kind::f16"],
                    d.view(1, 1, M, N),
                    a.sub[stage].rearrange("m (kr k) -> kr m k", k=16).view(1, K // 16, M, 16),
                    b.sub[stage].rearrange("n (kr k) -> kr n k", k=16).view(1, K // 16, N, 16),
                    instruction_shape=(M, N, 16),
                    accum=step > 0,
                )
                commit(empty.ptr_to([stage]))
            commit(done.ptr_to([0]))
        if warp >= 4:
            T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
            T.ptx.tcgen05.fence__after_thread_sync()
            fragment = T.alloc_local((M, N), "float32", layout=rows)
            T.cuda.tile.apply(
                T.ptx["tcgen05.ld.sync.aligned.32x32b.x128.b32"],
                fragment.view(4, 32, N),
                d.view(4, 32, N),
                scope="warpgroup",
            )
            T.ptx.tcgen05.wait__ld.sync.aligned()
            mine = fragment.view(N, layout="default")
            line = row + T.cuda.thread_in_warpgroup()
            for j in range(0, N, 4):
                four = mine[j], mine[j + 1], mine[j + 2], mine[j + 3]
                store(D.ptr_to([line, column + j]), *four)
            T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        if warp == ALLOCATOR:
            T.ptx.tcgen05.fence__after_thread_sync()
            T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(N))

    return product


def main(size: int) -> None:
    """Multiply square matrices and hold the result against NumPy's."""
    random = np.random.default_rng(0)
    a = random.standard_normal((size, size)).astype(np.float16)
    b = random.standard_normal((size, size)).astype(np.float16)
    d = np.zeros((size, size), np.float32)
    executable = tilewright.compile(pipelined_product(size, size, size), target="sm_100a")
    executable(a, b, d)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(d, expected, rtol=1e-4, atol=1e-3)
    print(executable)
    print(f"{size} x {size} x {size}: largest error {np.abs(d - expected).max():.2g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
