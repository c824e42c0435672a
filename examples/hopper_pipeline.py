"""A matrix product for Hopper: the copy engine fills a ring of stages, four warps multiply.

One thread brings tiles of A and B to shared memory (TMA), swizzled so that `ldmatrix` reads
without bank conflicts; four warps multiply them by `mma.sync`, sixteen rows each. Two barriers
per stage hand the ring around: `full` when a stage's bytes have landed, `empty` when every warp
has read them.

Run it by `python examples/hopper_pipeline.py [SIZE]`, where there is a Hopper GPU on that.
"""

import sys
from typing import Any

import numpy as np

import tilewright
from tilewright import simt as T
from tilewright.layout import S, TileLayout, laneid, mma_shared_layout

M, N, K = 64, 64, 64  # the tile of one CTA, and how much of it a stage holds
STAGES = 3
STAGE_BYTES = (M + N) * K * 2
WARPS = M // 16
GROUPS = N // 8  # groups of eight columns, one for each product

a_layout = mma_shared_layout("float16", 3, (STAGES, M, K))
b_layout = mma_shared_layout("float16", 3, (STAGES, N, K))
# (8 × 8 matrix, row, pair of columns): register, lane; B's for two groups of columns at a time.
A_LOADED = TileLayout(S[(4, 8, 4) : (1, 4 @ laneid, 1 @ laneid)])
B_LOADED = TileLayout(S[(GROUPS // 2, 4, 8, 4) : (4, 1, 4 @ laneid, 1 @ laneid)])
# The same registers as the operands of the products, element by element.
A_TILE = TileLayout(S[(1, 1, 2, 8, 2, 4) : (4, 4, 1, 4 @ laneid, 2, 1 @ laneid)])
B_TILE = TileLayout(S[(GROUPS, 1, 8, 2, 4) : (2, 2, 4 @ laneid, 1, 1 @ laneid)])
D_TILE = TileLayout(S[(1, GROUPS, 2, 8, 4, 2) : (4 * GROUPS, 4, 2, 4 @ laneid, 1 @ laneid, 1)])

load = T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"]


def pipelined_product(m: int, n: int, k: int) -> Any:
    """Write the kernel for D[m, n] = A[m, k] · Bᵀ, with B as [n, k]."""

    @T.function
    def product(
        A: T.Tensor((m, k), "float16", align=16),
        B: T.Tensor((n, k), "float16", align=16),
        D: T.Tensor((m, n), "float32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=(n // N, m // M), block=32 * (WARPS + 1)))
        column = T.cuda.block_idx("x") * N
        row = T.cuda.block_idx("y") * M
        warp = T.cuda.warp_id()
        lane = T.cuda.lane_id()
        a = T.alloc_shared((STAGES, M, K), "float16", layout=a_layout, align=1024)
        b = T.alloc_shared((STAGES, N, K), "float16", layout=b_layout, align=1024)
        full = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
        empty = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
        if warp == WARPS and lane == 0:
            for stage in range(STAGES):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([stage]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([stage]), T.uint32(WARPS))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        if warp == WARPS and lane == 0:
            for step in range(k // K):
                stage = step % STAGES
                # The first time round a stage is empty already: its phase -1 has ended.
                T.cuda.mbarrier_wait(empty.ptr_to([stage]), (step // STAGES + 1) % 2)
                bar = full.ptr_to([stage])
                T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(bar, T.uint32(STAGE_BYTES))
                at = step * K
                T.cuda.tile.apply(
                    load, a.sub[stage], A, box=(M, K), coords=(row, at), swizzle=3, mbar=bar
                )
                T.cuda.tile.apply(
                    load, b.sub[stage], B, box=(N, K), coords=(column, at), swizzle=3, mbar=bar
                )
        if warp < WARPS:
            a_words = a.view("uint32").rearrange(
                "s (warp half row) (step chunk word) -> s warp step (chunk half) row word",
                warp=WARPS,
                half=2,
                chunk=2,
                word=4,
            )
            b_words = b.view("uint32").rearrange(
                "s (pair half row) (step chunk word) -> s step pair (half chunk) row word",
                half=2,
                row=8,
                chunk=2,
                word=4,
            )
            a_registers = T.alloc_local((4,), "uint32", layout="default")
            b_registers = T.alloc_local((2 * GROUPS,), "uint32", layout="default")
            sums = T.alloc_local((4 * GROUPS,), "float32", layout="default")
            state: T.uint64 = 0
            for r in range(4 * GROUPS):
                sums[r] = T.float32(0)
            for step in range(k // K):
                stage = step % STAGES
                T.cuda.mbarrier_wait(full.ptr_to([stage]), step // STAGES % 2)
                for inner in range(K // 16):
                    T.cuda.tile.apply(
                        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
                        a_registers.view(4, 8, 4, layout=A_LOADED),
                        a_words.sub[stage, warp, inner],
                        scope="warp",
                    )
                    T.cuda.tile.apply(
                        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
                        b_registers.view(GROUPS // 2, 4, 8, 4, layout=B_LOADED),
                        b_words.sub[stage, inner],
                        scope="warp",
                    )
                    T.cuda.tile.apply(
                        T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"],
                        sums.view(1, GROUPS, 16, 8, layout=D_TILE),
                        a_registers.view(1, 1, 16, 8, layout=A_TILE),
                        b_registers.view(GROUPS, 1, 8, 8, layout=B_TILE),
                        sums.view(1, GROUPS, 16, 8, layout=D_TILE),
                        scope="warp",
                    )
                # The copy engine, another proxy, may now overwrite what the lanes have read.
                T.ptx.fence.proxy.async_.shared__cta()
                T.cuda.warp_sync()
                if lane == 0:
                    T.ptx.mbarrier.arrive.shared__cta.b64(state, empty.ptr_to([stage]))
            top = row + 16 * warp + lane // 4
            left = column + 2 * (lane % 4)
            for r in range(4 * GROUPS):
                D[top + 8 * (r // 2 % 2), left + 8 * (r // 4) + r % 2] = sums[r]

    return product


def main(size: int) -> None:
    """Multiply square matrices and hold the result against NumPy's."""
    random = np.random.default_rng(0)
    a = random.standard_normal((size, size)).astype(np.float16)
    b = random.standard_normal((size, size)).astype(np.float16)
    d = np.zeros((size, size), np.float32)
    executable = tilewright.compile(pipelined_product(size, size, size), target="sm_90a")
    executable(a, b, d)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(d, expected, rtol=1e-4, atol=1e-3)
    print(executable)
    print(f"{size} x {size} x {size}: largest error {np.abs(d - expected).max():.2g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
