"""A product of matrices in tiles: what a CTA does, without a word about threads.

The accumulator lies in Tensor Memory; copies of the next tiles are under way while one is
multiplied. Run it with `tilewright run examples/tile_product.py`: no GPU is needed.
"""

import numpy as np

import tilewright
from tilewright import tile as T
from tilewright.jit import jit


@jit
def product(A, B, rows, columns, depth):
    """Compute C = A @ B.T, in tiles of `rows` × `columns`, `depth` elements of K at a time."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((N, K), T.float16)
    C = T.empty((M, N), T.float32)

    with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=128) as (x, y):
        a = T.alloc_shared((rows, depth), T.float16)
        b = T.alloc_shared((columns, depth), T.float16)
        total = T.alloc_tmem((rows, columns), T.float32)
        done = T.alloc_barrier(1)
        registers = T.alloc_fragment((rows, columns), T.float32)
        for k in T.Pipelined(T.ceildiv(K, depth), num_stages=2):
            T.copy(A[y * rows, k * depth], a)
            T.copy(B[x * columns, k * depth], b)
            T.gemm(a, b, total, transpose_B=True, clear_accum=k == 0, mbar=done)
        T.copy(total, registers)
        T.copy(registers, C[y * rows, x * columns])
    return C


def main(m=256, n=384, k=256):
    """Compare with NumPy."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 4, (each, k)).astype(np.float16) for each in (m, n))
    c = product(a, b, 128, 128, 64)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    print(f"tilewright {tilewright.__version__}: the product of {m} × {k} and {k} × {n} is right")


if __name__ == "__main__":
    main()
