"""A matrix product for Ampere: every thread copies ahead of the products that it takes part in.

Eight warps share a tile of 128 × 128, of which each multiplies 64 × 32 by `mma.sync`. All their
threads bring the next tiles of A and B to a ring of three stages by `cp.async`, swizzled so that
`ldmatrix` reads without bank conflicts. One wait and one barrier per step hand the ring around:
a thread's own copies for this step have landed, then everybody's have, and nobody reads the
stage any more that is filled next.

Run it by `python examples/ampere_pipeline.py [SIZE]`.
"""

import sys
from typing import Any

import numpy as np

import tilewright
from tilewright import simt as T
from tilewright.layout import S, TileLayout, laneid, mma_shared_layout

M, N, K = 128, 128, 32  # the tile of one CTA, and how much of it a stage holds
STAGES = 3
DOWN, ACROSS = 2, 4  # warps
THREADS = 32 * DOWN * ACROSS
TILES = M // DOWN // 16  # of a warp: pieces of sixteen rows
GROUPS = N // ACROSS // 8  # and groups of eight columns
CHUNKS = K * 2 // 16  # copies of 16 bytes in a row

a_layout = mma_shared_layout("float16", 2, (STAGES, M, K))
b_layout = mma_shared_layout("float16", 2, (STAGES, N, K))
# (…, 8 × 8 matrix, row, pair of columns): register, lane; B's for two groups at a time.
A_LOADED = TileLayout(S[(TILES, 4, 8, 4) : (4, 1, 4 @ laneid, 1 @ laneid)])
B_LOADED = TileLayout(S[(GROUPS // 2, 4, 8, 4) : (4, 1, 4 @ laneid, 1 @ laneid)])
# The same registers as the operands of the products, element by element.
A_TILE = TileLayout(S[(TILES, 1, 2, 8, 2, 4) : (4, 4, 1, 4 @ laneid, 2, 1 @ laneid)])
B_TILE = TileLayout(S[(GROUPS, 1, 8, 2, 4) : (2, 2, 4 @ laneid, 1, 1 @ laneid)])
D_TILE = TileLayout(S[(TILES, GROUPS, 2, 8, 4, 2) : (4 * GROUPS, 4, 2, 4 @ laneid, 1 @ laneid, 1)])

copy = T.ptx["cp.async.cg.shared.global"]
load = T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"]
store = T.ptx["st.global.v2.f32"]


def pipelined_product(m: int, n: int, k: int) -> Any:
    """Write the kernel for D[m, n] = A[m, k] · Bᵀ, with B as [n, k]."""
    steps = k // K

    @T.function
    def product(
        A: T.Tensor((m, k), "float16", align=16),
        B: T.Tensor((n, k), "float16", align=16),
        D: T.Tensor((m, n), "float32", align=16),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=(n // N, m // M), block=THREADS))
        column = T.cuda.block_idx("x") * N
        row = T.cuda.block_idx("y") * M
        thread = T.cuda.thread_idx("x")
        lane = T.cuda.lane_id()
        down, across = T.cuda.warp_id() // ACROSS, T.cuda.warp_id() % ACROSS
        a = T.alloc_shared((STAGES, M, K), "float16", layout=a_layout, align=1024)
        b = T.alloc_shared((STAGES, N, K), "float16", layout=b_layout, align=1024)

        @T.inline
        def fetch(step):
            """Begin to copy the tiles of a step, or of none behind the last; a group either way."""
            if step < steps:
                stage = step % STAGES
                for turn in range(M * CHUNKS // THREADS):
                    line = (thread + THREADS * turn) // CHUNKS
                    at = (thread + THREADS * turn) % CHUNKS * 8
                    copy(a.ptr_to([stage, line, at]), A.ptr_to([row + line, step * K + at]), 16)
                    copy(b.ptr_to([stage, line, at]), B.ptr_to([column + line, step * K + at]), 16)
            T.ptx["cp.async.commit_group"]()

        a_words = a.view("uint32").rearrange(
            "s (warp tile half row) (step chunk word) -> s warp step tile (chunk half) row word",
            warp=DOWN,
            half=2,
            row=8,
            chunk=2,
            word=4,
        )
        b_words = b.view("uint32").rearrange(
            "s (warp pair half row) (step chunk word) -> s warp step pair (half chunk) row word",
            warp=ACROSS,
            half=2,
            row=8,
            chunk=2,
            word=4,
        )
        a_registers = T.alloc_local((4 * TILES,), "uint32", layout="default")
        b_registers = T.alloc_local((2 * GROUPS,), "uint32", layout="default")
        sums = T.alloc_local((4 * TILES * GROUPS,), "float32", layout="default")
        for r in range(4 * TILES * GROUPS):
            sums[r] = T.float32(0)

        for step in range(STAGES - 1):
            fetch(step)
        for step in range(steps):
            T.ptx["cp.async.wait_group"](STAGES - 2)
            T.cuda.cta_sync()
            fetch(step + STAGES - 1)
            for inner in range(K // 16):
                T.cuda.tile.apply(
                    load,
                    a_registers.view(TILES, 4, 8, 4, layout=A_LOADED),
                    a_words.sub[step % STAGES, down, inner],
                    scope="warp",
                )
                T.cuda.tile.apply(
                    load,
                    b_registers.view(GROUPS // 2, 4, 8, 4, layout=B_LOADED),
                    b_words.sub[step % STAGES, across, inner],
                    scope="warp",
                )
                T.cuda.tile.apply(
                    T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"],
                    sums.view(TILES, GROUPS, 16, 8, layout=D_TILE),
                    a_registers.view(TILES, 1, 16, 8, layout=A_TILE),
                    b_registers.view(GROUPS, 1, 8, 8, layout=B_TILE),
                    sums.view(TILES, GROUPS, 16, 8, layout=D_TILE),
                    scope="warp",
                )

        top = row + M // DOWN * down + lane // 4
        left = column + N // ACROSS * across + 2 * (lane % 4)
        for r in range(0, 4 * TILES * GROUPS, 2):
            line = top + 16 * (r // (4 * GROUPS)) + 8 * (r // 2 % 2)
            store(D.ptr_to([line, left + 8 * (r // 4 % GROUPS)]), sums[r], sums[r + 1])

    return product


def main(size: int) -> None:
    """Multiply square matrices and hold the result against NumPy's."""
    random = np.random.default_rng(0)
    a = random.standard_normal((size, size)).astype(np.float16)
    b = random.standard_normal((size, size)).astype(np.float16)
    d = np.zeros((size, size), np.float32)
    executable = tilewright.compile(pipelined_product(size, size, size), target="sm_80")
    executable(a, b, d)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(d, expected, rtol=1e-4, atol=1e-3)
    print(executable)
    print(f"{size} x {size} x {size}: largest error {np.abs(d - expected).max():.2g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
