"""One program on three generations: the Tensor Memory GEMM, whose accumulator is a fragment."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tile_running import TARGETS, integers, run

from tilewright import tile as T
from tilewright.base.errors import TargetError
from tilewright.jit.configs import PassConfigKey
from tilewright.jit.functions import jit
from tilewright.runtime import nvrtc

F = np.float32
BF16 = ml_dtypes.bfloat16
SHAPE = (128, 128, 128, False, True, T.bfloat16, T.bfloat16, T.float, 2, 256)


def _matmul(arch: str) -> Any:
    @jit(
        target=arch,
        pass_configs={
            PassConfigKey.TL_DISABLE_TMA_LOWER: True,
            PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True,
        },
    )
    def matmul(
        A,
        B,
        block_M,
        block_N,
        block_K,
        trans_A,
        trans_B,
        in_dtype,
        out_dtype,
        accum_dtype,
        num_stages,
        threads,
    ):
        M, N, K = T.const("M, N, K")
        A: T.Tensor((K, M) if trans_A else (M, K), in_dtype)
        B: T.Tensor((N, K) if trans_B else (K, N), in_dtype)
        C = T.empty((M, N), out_dtype)
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), in_dtype)
            B_shared = T.alloc_shared((block_N, block_K), in_dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            C_shared = T.alloc_shared((block_M, block_N), out_dtype)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, trans_A, trans_B, clear_accum=(k == 0))
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])
        return C

    return matmul


@pytest.mark.parametrize("arch", TARGETS)
def test_the_result_is_right(arch: str) -> None:
    a, b = integers(1, 256, 384, dtype=BF16), integers(2, 128, 384, dtype=BF16)
    expected = (a.astype(F) @ b.astype(F).T).astype(BF16)
    kernel = _matmul(arch)
    np.testing.assert_array_equal(kernel(a, b, *SHAPE), expected)
    c = np.zeros_like(expected)
    run(kernel.compile(a, b, *SHAPE).executable.program, a, b, c, arch=arch)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("arch", TARGETS)
def test_a_cubin_is_built(arch: str) -> None:
    try:
        nvrtc.version()
    except TargetError as error:
        pytest.skip(str(error))
    a, b = np.zeros((4096, 8192), BF16), np.zeros((4096, 8192), BF16)
    executable = _matmul(arch).compile(a, b, *SHAPE).executable
    assert executable.cubin().startswith(b"\x7fELF")
    source = executable.source
    assert "mma_sync" in source and "tcgen05" not in source
