"""A product of two matrices by Blackwell's tensor core: the whole way of the data in one tile.

The copy engine (TMA) brings A and B to shared memory, swizzled as the tensor core reads them; one
thread starts the products, which gather in Tensor Memory; each warp loads its 32 rows of the
result into registers and writes them out. Every step is asynchronous and is waited for.

Run it by `python examples/blackwell_product.py`; it needs no GPU.
"""

import numpy as np

import tilewright
from tilewright import simt as T
from tilewright.layout import S, TileLayout, mma_shared_layout, tid_in_wg, tmem_mma_operand_layout

M, N, K = 128, 128, 64
BYTES = (M + N) * K * 2

a_layout = mma_shared_layout("float16", 3, (M, K))
b_layout = mma_shared_layout("float16", 3, (N, K))
d_layout = tmem_mma_operand_layout("D", (M, N), "float32", M=M, cta_group=1)
rows = TileLayout(S[(M, N) : (1 @ tid_in_wg, 1)])
load = T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"]


@T.function
def product(
    A: T.Tensor((M, K), "float16", align=16),
    B: T.Tensor((N, K), "float16", align=16),
    D: T.Tensor((M, N), "float32"),
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    thread = T.cuda.thread_idx("x")
    warp = T.cuda.warp_id()
    a = T.alloc_shared((M, K), "float16", layout=a_layout, align=1024)
    b = T.alloc_shared((N, K), "float16", layout=b_layout, align=1024)
    address = T.alloc_shared((1,), "uint32", layout="default")
    landed = T.alloc_shared((1,), "uint64", layout="default", align=8)
    multiplied = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if warp == 0:
        T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
            T.address_of(address), T.uint32(N)
        )
    if thread == 0:
        T.ptx.mbarrier.init.shared.b64(landed.ptr_to([0]), T.uint32(1))
        T.ptx.mbarrier.init.shared.b64(multiplied.ptr_to([0]), T.uint32(1))
        T.ptx.fence.mbarrier_init.release.cluster()
    T.ptx.tcgen05.fence__before_thread_sync()
    T.cuda.cta_sync()
    T.ptx.tcgen05.fence__after_thread_sync()
    d = T.cuda.decl_tmem(
        address[0], ty_args=[T.Tensor((M, N), "float32", scope="tmem", layout=d_layout)]
    )
    if thread == 0:
        bar = landed.ptr_to([0])
        T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(bar, T.uint32(BYTES))
        T.cuda.tile.apply(load, a, A, box=(M, K), coords=(0, 0), swizzle=3, mbar=bar)
        T.cuda.tile.apply(load, b, B, box=(N, K), coords=(0, 0), swizzle=3, mbar=bar)
        T.cuda.mbarrier_wait(bar, 0)
        T.cuda.tile.apply(
            T.ptx["tcgen05.mma.cta_group::1.kind::f16"],
            d.view(1, 1, M, N),
            a.rearrange("m (kr k) -> kr m k", k=16).view(1, K // 16, M, 16),
            b.rearrange("n (kr k) -> kr n k", k=16).view(1, K // 16, N, 16),
            instruction_shape=(M, N, 16),
            accum=False,
        )
        T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
            multiplied.ptr_to([0])
        )
    T.cuda.mbarrier_wait(multiplied.ptr_to([0]), 0)
    T.ptx.tcgen05.fence__after_thread_sync()
    fragment = T.alloc_local((M, N), "float32", layout=rows)
    T.cuda.tile.apply(
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x128.b32"],
        fragment.view(4, 32, N),
        d.view(4, 32, N),
        scope="warpgroup",
    )
    T.ptx.tcgen05.wait__ld.sync.aligned()
    row = fragment.view(N, layout="default")
    for j in range(N):
        D[thread, j] = row[j]
    T.ptx.tcgen05.fence__before_thread_sync()
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx.tcgen05.fence__after_thread_sync()
        T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
        T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(N))


def main() -> None:
    """Run the kernel and hold its result against NumPy's."""
    random = np.random.default_rng(0)
    a = random.standard_normal((M, K)).astype(np.float16)
    b = random.standard_normal((N, K)).astype(np.float16)
    d = np.zeros((M, N), np.float32)
    executable = tilewright.compile(product, target="sm_100a")
    executable(a, b, d)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    error = np.abs(d - expected).max()
    np.testing.assert_allclose(d, expected, rtol=1e-5, atol=1e-5)
    print(executable)
    print(f"D[{M}, {N}] = A[{M}, {K}] · Bᵀ by TMA and tcgen05.mma; largest error {error:.2g}")


if __name__ == "__main__":
    main()
