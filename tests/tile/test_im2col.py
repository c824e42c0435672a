"""T.im2col: patches of images as rows of a matrix, and products of them, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tile_running import TARGETS, builds, integers, run

from tilewright import tile as T
from tilewright.base.errors import FrontendError


def _patches(a: np.ndarray, size: int, stride: int, dilation: int, pad: int) -> np.ndarray:
    """Give the patches one by one, as the definition says."""
    n, height, width = a.shape[:3]
    padded = np.pad(a, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    reach = dilation * (size - 1) + 1
    rows = [
        padded[i, y : y + reach : dilation, x : x + reach : dilation].reshape(-1)
        for i in range(n)
        for y in range(0, height + 2 * pad - reach + 1, stride)
        for x in range(0, width + 2 * pad - reach + 1, stride)
    ]
    return np.stack(rows)


def _kernel(
    shape: tuple[int, ...], size: int, stride: int, dilation: int, pad: int, block: int
) -> Any:
    n, height, width, channels = shape
    reach = dilation * (size - 1) + 1
    out = ((height + 2 * pad - reach) // stride + 1) * ((width + 2 * pad - reach) // stride + 1) * n
    count = size * size * channels

    @T.prim_func
    def kernel(A: T.Tensor(shape, "float16"), B: T.Tensor((out, count), "float16")):
        with T.Kernel(T.ceildiv(out, 16), T.ceildiv(count, block), threads=64) as (bx, by):
            patches = T.alloc_shared((16, block), "float16")
            T.im2col(A, patches, bx, by, size, stride, dilation, pad)
            T.copy(patches, B[bx * 16, by * block])

    return kernel


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize(
    ("shape", "size", "stride", "dilation", "pad", "block"),
    [
        ((2, 6, 7, 8), 3, 1, 1, 1, 32),
        ((1, 9, 8, 3), 2, 2, 3, 0, 8),
        ((3, 5, 5, 4), 1, 1, 1, 0, 4),
        ((1, 4, 4, 16), 3, 1, 2, 2, 64),
    ],
)
def test_patches(
    shape: tuple[int, ...],
    size: int,
    stride: int,
    dilation: int,
    pad: int,
    block: int,
    arch: str,
) -> None:
    a = integers(1, *shape, dtype=np.float16)
    expected = _patches(a, size, stride, dilation, pad)
    b = np.full(expected.shape, -1, np.float16)
    run(_kernel(shape, size, stride, dilation, pad, block), a, b, arch=arch)
    np.testing.assert_array_equal(b, expected)


def _convolution(stages: int) -> Any:
    @T.prim_func
    def kernel(
        A: T.Tensor((1, 8, 8, 16), "float16"),
        W: T.Tensor((144, 16), "float16"),
        C: T.Tensor((64, 16), "float32"),
    ):
        with T.Kernel(2, threads=64) as bx:
            patches = T.alloc_shared((32, 48), "float16")
            weights = T.alloc_shared((48, 16), "float16")
            sums = T.alloc_fragment((32, 16), "float32")
            T.clear(sums)
            for k in T.Pipelined(3, num_stages=stages):
                T.im2col(A, patches, bx, k, 3, 1, 1, 1)
                T.copy(W[k * 48, 0], weights)
                T.gemm(patches, weights, sums)
            T.copy(sums, C[bx * 32, 0])

    return kernel


@pytest.mark.parametrize("stages", (0, 2))
def test_a_convolution_is_a_product_of_patches(stages: int) -> None:
    a = integers(1, 1, 8, 8, 16, dtype=np.float16)
    w = integers(2, 144, 16, dtype=np.float16)
    c = np.zeros((64, 16), np.float32)
    run(_convolution(stages), a, w, c)
    np.testing.assert_array_equal(c, _patches(a, 3, 1, 1, 1).astype(np.float32) @ w)


def test_cubins() -> None:
    builds(_convolution(2), "sm_80", "sm_100a")


def test_images_have_four_axes() -> None:
    with pytest.raises(FrontendError, match="patches of images") as caught:

        @T.prim_func
        def kernel(A: T.Tensor((8, 8, 16), "float16")):
            with T.Kernel(1, threads=64):
                patches = T.alloc_shared((32, 48), "float16")
                T.im2col(A, patches, 0, 0, 3, 1, 1, 1)

    assert caught.value.code == "tile-operand"
