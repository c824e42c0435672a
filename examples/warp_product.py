"""Multiply matrices with the tensor cores of a warp: `ldmatrix` loads, `mma.sync` multiplies.

Each warp computes 16 × 8 elements of A · Bᵀ, sixteen columns of A and B at a time. A fragment
layout says which lane of the warp holds which element in which register, as the figures of the
PTX ISA do; Tilewright proves that the tiles given to an instruction are laid out as it requires.

Run it by `python examples/warp_product.py`.
"""

import numpy as np

import tilewright
from tilewright import simt as T
from tilewright.layout import S, TileLayout, laneid

M, N, K = 64, 32, 64

# (8 × 8 matrix, row, pair of columns): register, lane.
A_LOADED = TileLayout(S[(4, 8, 4) : (1, 4 @ laneid, 1 @ laneid)])
B_LOADED = TileLayout(S[(2, 8, 4) : (1, 4 @ laneid, 1 @ laneid)])
# The same registers as the operands of one product, element by element.
A_TILE = TileLayout(S[(1, 1, 2, 8, 2, 4) : (4, 4, 1, 4 @ laneid, 2, 1 @ laneid)])
B_TILE = TileLayout(S[(1, 1, 8, 2, 4) : (2, 2, 4 @ laneid, 1, 1 @ laneid)])
D_TILE = TileLayout(S[(1, 1, 2, 8, 4, 2) : (4, 4, 2, 4 @ laneid, 1 @ laneid, 1)])


@T.function
def warp_product(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((N, K), "float16"),
    Out: T.Tensor((M, N), "float32"),
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(M // 16, N // 8), block=32))
    lane = T.cuda.lane_id()
    top = T.cuda.block_idx("x") * 16
    left = T.cuda.block_idx("y") * 8
    a = T.alloc_shared((16, 16), "float16", layout="default", align=16)
    b = T.alloc_shared((8, 16), "float16", layout="default", align=16)
    a_registers = T.alloc_local((4,), "uint32", layout="default")
    b_registers = T.alloc_local((2,), "uint32", layout="default")
    sums = T.alloc_local((4,), "float32", layout="default")
    for r in range(4):
        sums[r] = T.float32(0)
    for step in range(K // 16):
        for q in range(8):
            row = (lane + 32 * q) // 16
            a[row, lane % 16] = A[top + row, step * 16 + lane % 16]
        for q in range(4):
            row = (lane + 32 * q) // 16
            b[row, lane % 16] = B[left + row, step * 16 + lane % 16]
        T.cuda.cta_sync()
        T.cuda.tile.apply(
            T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
            a_registers.view(4, 8, 4, layout=A_LOADED),
            a.view("uint32").rearrange(
                "(half row) (chunk word) -> (chunk half) row word", half=2, chunk=2
            ),
            scope="warp",
        )
        T.cuda.tile.apply(
            T.ptx["ldmatrix.sync.aligned.m8n8.x2.shared.b16"],
            b_registers.view(2, 8, 4, layout=B_LOADED),
            b.view("uint32").rearrange("row (chunk word) -> chunk row word", chunk=2),
            scope="warp",
        )
        T.cuda.tile.apply(
            T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"],
            sums.view(1, 1, 16, 8, layout=D_TILE),
            a_registers.view(1, 1, 16, 8, layout=A_TILE),
            b_registers.view(1, 1, 8, 8, layout=B_TILE),
            sums.view(1, 1, 16, 8, layout=D_TILE),
            scope="warp",
        )
        T.cuda.cta_sync()
    for r in range(4):
        Out[top + lane // 4 + 8 * (r // 2), left + 2 * (lane % 4) + r % 2] = sums[r]


def main() -> None:
    """Run the kernel on the simulator and compare with NumPy."""
    random = np.random.default_rng(0)
    a = random.standard_normal((M, K)).astype(np.float16)
    b = random.standard_normal((N, K)).astype(np.float16)
    out = np.zeros((M, N), np.float32)
    compiled = tilewright.compile(warp_product)
    compiled(a, b, out)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    print(f"{compiled!r}: the largest difference from NumPy is {abs(out - expected).max():.1e}")


if __name__ == "__main__":
    main()
