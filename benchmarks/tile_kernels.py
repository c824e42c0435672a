"""The kernels of `tile_compile.py`, in the dialect of the module that is given as `T`."""

from __future__ import annotations

import math
from typing import Any


def product(T: Any, m: int = 4096, n: int = 4096, k: int = 8192) -> Any:
    """Multiply bfloat16 matrices, C = A @ B.T, with the sums in Tensor Memory."""
    tile, depth, threads = 128, 128, 256

    @T.prim_func
    def product(
        A: T.Tensor((m, k), "bfloat16"),
        B: T.Tensor((n, k), "bfloat16"),
        C: T.Tensor((m, n), "bfloat16"),
    ):
        with T.Kernel(n // tile, m // tile, threads=threads) as (x, y):
            a = T.alloc_shared((tile, depth), "bfloat16")
            b = T.alloc_shared((tile, depth), "bfloat16")
            cells = T.alloc_tmem((tile, tile), "float32")
            come = T.alloc_barrier(1)
            sums = T.alloc_fragment((tile, tile), "float32")
            out = T.alloc_shared((tile, tile), "bfloat16")
            for step in T.Pipelined(k // depth, num_stages=2):
                T.copy(A[y * tile, step * depth], a)
                T.copy(B[x * tile, step * depth], b)
                T.gemm(a, b, cells, transpose_B=True, mbar=come, clear_accum=step == 0)
            T.copy(cells, sums)
            T.copy(sums, out)
            T.copy(out, C[y * tile, x * tile])

    return product


def attention(T: Any, heads: int = 32, length: int = 4096, width: int = 128) -> Any:
    """Attend forward, each row to those up to its own: softmax(Q @ K.T / sqrt(width)) @ V."""
    rows, columns = 128, 64
    scale = math.log2(math.e) / math.sqrt(width)

    @T.prim_func
    def attention(
        Q: T.Tensor((heads, length, width), "float16"),
        K: T.Tensor((heads, length, width), "float16"),
        V: T.Tensor((heads, length, width), "float16"),
        Out: T.Tensor((heads, length, width), "float16"),
    ):
        with T.Kernel(length // rows, heads, threads=256) as (x, head):
            q = T.alloc_shared((rows, width), "float16")
            k = T.alloc_shared((columns, width), "float16")
            v = T.alloc_shared((columns, width), "float16")
            scores = T.alloc_fragment((rows, columns), "float32")
            weights = T.alloc_fragment((rows, columns), "float16")
            total = T.alloc_fragment((rows, width), "float32")
            most = T.alloc_fragment((rows,), "float32")
            before = T.alloc_fragment((rows,), "float32")
            shrunk = T.alloc_fragment((rows,), "float32")
            part = T.alloc_fragment((rows,), "float32")
            whole = T.alloc_fragment((rows,), "float32")
            T.copy(Q[head, x * rows : (x + 1) * rows, :], q)
            T.fill(total, 0)
            T.fill(whole, 0)
            T.fill(most, -T.infinity("float32"))
            for step in T.Pipelined((x + 1) * rows // columns, num_stages=2):
                T.copy(K[head, step * columns : (step + 1) * columns, :], k)
                for i, j in T.Parallel(rows, columns):
                    scores[i, j] = T.if_then_else(
                        x * rows + i >= step * columns + j, 0, -T.infinity("float32")
                    )
                T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(most, before)
                T.reduce_max(scores, most, dim=1, clear=False)
                for i in T.Parallel(rows):
                    shrunk[i] = T.exp2((before[i] - most[i]) * scale)
                for i, j in T.Parallel(rows, columns):
                    scores[i, j] = T.exp2((scores[i, j] - most[i]) * scale)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(rows):
                    whole[i] = whole[i] * shrunk[i] + part[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(rows, width):
                    total[i, j] *= shrunk[i]
                T.copy(V[head, step * columns : (step + 1) * columns, :], v)
                T.gemm(weights, v, total, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(rows, width):
                total[i, j] /= whole[i]
            T.copy(total, Out[head, x * rows : (x + 1) * rows, :])

    return attention
