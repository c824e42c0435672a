"""Copies between shared memory and fragments that products hold: by moves of 8 × 8 matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import tile as T
from tilewright.base.targets import target
from tilewright.passes.pipeline import stages

SCHEDULES = ("late", "eager", "random:4")


def _lowered(kernel: Any, arch: str) -> str:
    return str(stages(kernel.program, target(arch))["lower_operations"])


def _moves(kernel: Any, arch: str) -> tuple[int, int]:
    text = _lowered(kernel, arch)
    return text.count('T.ptx["ldmatrix'), text.count('T.ptx["stmatrix')


def _product(
    shape: tuple[int, int, int],
    orders: tuple[bool, bool] = (False, True),
    *,
    threads: int = 128,
    types: tuple[str, str, str] = ("float16", "float32", "float16"),
    policy: str = "square",
    **options: Any,
) -> Any:
    """Make a product whose operands are copied to fragments, and C to shared memory."""
    (M, N, K), (ta, tb), (inputs, sums, result) = shape, orders, types
    left, right = (K, M) if ta else (M, K), (N, K) if tb else (K, N)

    @T.prim_func
    def kernel(
        A: T.Tensor(left, inputs),
        B: T.Tensor(right, inputs),
        C: T.Tensor((M, N), result),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared(left, inputs)
            b = T.alloc_shared(right, inputs)
            held_a = T.alloc_fragment(left, inputs)
            held_b = T.alloc_fragment(right, inputs)
            c = T.alloc_fragment((M, N), sums)
            out = T.alloc_shared((M, N), result)
            T.copy(A, a)
            T.copy(B, b)
            T.copy(a, held_a)
            T.copy(b, held_b)
            T.gemm(held_a, held_b, c, ta, tb, policy=policy, clear_accum=True)
            T.copy(c, out)
            T.copy(out, C, **options)

    return kernel


def _check(kernel: Any, shape: tuple[int, int, int], orders: tuple[bool, bool], arch: str) -> None:
    (M, N, K), (ta, tb) = shape, orders
    types = [each.type.dtype.numpy for each in kernel.program.params]
    random = np.random.default_rng(3)
    a = random.integers(-4, 5, (K, M) if ta else (M, K)).astype(types[0])
    b = random.integers(-4, 5, (N, K) if tb else (K, N)).astype(types[1])
    left, right = (np.asarray(each, np.float32) for each in (a, b))
    for schedule in SCHEDULES:
        c = np.zeros((M, N), types[2])
        tilewright.compile(kernel, arch, check=True, schedule=schedule)(a, b, c)
        np.testing.assert_array_equal(c, (left.T if ta else left) @ (right.T if tb else right))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("orders", [(False, True), (True, False)])
def test_operands_and_results_move_as_matrices(arch: str, orders: tuple[bool, bool]) -> None:
    """Those that are stored the other way are turned; before sm_90 there are no stores."""
    shape = (64, 48, 32)
    kernel = _product(shape, orders, policy="full_row")
    assert _moves(kernel, arch) == (2, 1 if arch == "sm_90a" else 0)
    assert _lowered(kernel, arch).count(".trans.shared") == (0 if orders == (False, True) else 2)
    _check(kernel, shape, orders, arch)


@pytest.mark.parametrize(
    ("shape", "threads", "types"),
    [
        ((16, 8, 16), 32, ("bfloat16", "float32", "bfloat16")),
        ((48, 40, 16), 96, ("float16", "float16", "float16")),
        ((32, 32, 64), 64, ("int8", "int32", "int32")),
    ],
)
def test_of_any_extents_and_types(
    shape: tuple[int, int, int], threads: int, types: tuple[str, str, str]
) -> None:
    """Words of four bytes are a matrix's too; results of 32 bits are stored by threads."""
    kernel = _product(shape, threads=threads, types=types)
    assert _moves(kernel, "sm_90a") == (2, 0 if types[2] == "int32" else 1)
    _check(kernel, shape, (False, True), "sm_90a")


def test_a_tile_without_a_swizzle_is_stored_as_it_lies() -> None:
    """A view of another shape keeps a buffer plain, row by row."""

    @T.prim_func
    def kernel(
        A: T.Tensor((32, 16), "float16"),
        B: T.Tensor((32, 16), "float16"),
        C: T.Tensor((1024,), "float16"),
    ):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((32, 16), "float16")
            b = T.alloc_shared((32, 16), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            out = T.alloc_shared((32, 32), "float16")
            flat = T.reshape(out, (1024,))
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, out)
            for i in T.Parallel(1024):
                C[i] = flat[i]

    text = _lowered(kernel, "sm_90a")
    assert 'T.ptx["stmatrix' in text
    assert 'out = T.alloc_shared((32, 32), "float16", layout=None' in text
    random = np.random.default_rng(3)
    a, b = (random.integers(-4, 5, (32, 16)).astype(np.float16) for _ in range(2))
    c = np.zeros(1024, np.float16)
    tilewright.compile(kernel, "sm_90a", check=True)(a, b, c)
    np.testing.assert_array_equal(c.reshape(32, 32), a.astype(np.float32) @ b.astype(np.float32).T)


def test_parts_and_other_fragments_are_moved_by_threads() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float16"), C: T.Tensor((32, 64), "float16")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            rows = T.alloc_fragment((32, 64), "float16")
            T.copy(A, a)
            T.copy(a[16:48, :], rows)
            T.copy(rows, C)

    assert _moves(kernel, "sm_90a") == (0, 0)
    a = np.arange(4096).reshape(64, 64).astype(np.float16)
    c = np.zeros((32, 64), np.float16)
    tilewright.compile(kernel, "sm_90a", check=True)(a, c)
    np.testing.assert_array_equal(c, a[16:48])


def test_versions_of_a_pipelined_buffer() -> None:
    """A tile of several stages is moved from the stage that is due."""
    M, K, k = 64, 128, 32

    @T.prim_func
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((M, K), "float16"),
        C: T.Tensor((M, M), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((M, k), "float16")
            b = T.alloc_shared((M, k), "float16")
            held_a = T.alloc_fragment((M, k), "float16")
            c = T.alloc_fragment((M, M), "float32")
            T.clear(c)
            for i in T.Pipelined(K // k, num_stages=2):
                T.copy(A[0, i * k], a)
                T.copy(B[0, i * k], b)
                T.copy(a, held_a)
                T.gemm(held_a, b, c, transpose_B=True)
            T.copy(c, C)

    random = np.random.default_rng(3)
    a, b = (random.integers(-4, 5, (M, K)).astype(np.float16) for _ in range(2))
    for schedule in SCHEDULES:
        c = np.zeros((M, M), np.float32)
        executable = tilewright.compile(kernel, "sm_80", check=True, schedule=schedule)
        executable(a, b, c)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    assert executable.source.count("ldmatrix") > 1
    assert executable.cubin()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float32"])
def test_operands_of_any_width_move_from_shared_memory_to_registers(
    dtype: str, transposed: bool
) -> None:
    """Matrices are turned by elements of 16 bits only: others would come apart."""
    M, N, K = 32, 16, 64
    result = "int32" if dtype.endswith("int8") else "float32"

    @T.prim_func
    def kernel(
        A: T.Tensor((K, M) if transposed else (M, K), dtype),
        B: T.Tensor((N, K), dtype),
        C: T.Tensor((M, N), result),
    ):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared(A.shape, dtype)
            held = T.alloc_fragment(A.shape, dtype)
            b = T.alloc_shared((N, K), dtype)
            c = T.alloc_fragment((M, N), result)
            T.copy(A, a)
            T.copy(a, held)
            T.copy(B, b)
            T.gemm(held, b, c, transpose_A=transposed, transpose_B=True, clear_accum=True)
            T.copy(c, C)

    random = np.random.default_rng(5)
    a = random.integers(0, 5, (K, M) if transposed else (M, K)).astype(dtype)
    b = random.integers(0, 5, (N, K)).astype(dtype)
    expected = (a.T if transposed else a).astype(result) @ b.astype(result).T
    for arch in ("sm_80", "sm_90a", "sm_100a"):
        c = np.zeros((M, N), result)
        tilewright.compile(kernel, arch, check=True)(a, b, c)
        np.testing.assert_array_equal(c, expected)
