"""T.gemm by warps: fragments, shared memory in every order, chained products, and refusals.

Values are small integers, whose products and sums float32 holds exactly.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright import tile as T
from tilewright.base.errors import FrontendError, TileContractError
from tilewright.passes.tile.warp_grid import feasible_warps, warp_grid

TARGETS = ("sm_80", "sm_90a", "sm_100a")
NUMPY: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
}


def _integers(seed: int, *shape: int, dtype: str = "float16") -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(NUMPY[dtype])


def _plain(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def _gemm(
    shape: tuple[int, int, int],
    tile: tuple[int, int, int],
    transposed: tuple[bool, bool] = (False, False),
    *,
    threads: int = 128,
    stages: int = 0,
    policy: str = "square",
    dtype: str = "float16",
    sums: str = "float32",
) -> Any:
    (M, N, K), (m, n, k) = shape, tile
    ta, tb = transposed

    @T.prim_func
    def gemm(
        A: T.Tensor((K, M) if ta else (M, K), dtype),
        B: T.Tensor((N, K) if tb else (K, N), dtype),
        C: T.Tensor((M, N), sums),
    ):
        with T.Kernel(T.ceildiv(N, n), T.ceildiv(M, m), threads=threads) as (bx, by):
            a = T.alloc_shared((k, m) if ta else (m, k), dtype)
            b = T.alloc_shared((n, k) if tb else (k, n), dtype)
            c = T.alloc_fragment((m, n), sums)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(K, k), num_stages=stages):
                if ta:
                    T.copy(A[ko * k, by * m], a)
                else:
                    T.copy(A[by * m, ko * k], a)
                if tb:
                    T.copy(B[bx * n, ko * k], b)
                else:
                    T.copy(B[ko * k, bx * n], b)
                T.gemm(a, b, c, ta, tb, policy=policy)
            T.copy(c, C[by * m, bx * n])

    return gemm


def _check(kernel: Any, shape: tuple[int, int, int], ta: bool, tb: bool, **options: Any) -> None:
    M, N, K = shape
    dtype = options.pop("dtype", "float16")
    a = _integers(1, *((K, M) if ta else (M, K)), dtype=dtype)
    b = _integers(2, *((N, K) if tb else (K, N)), dtype=dtype)
    c = np.zeros((M, N), np.float32)
    tilewright.compile(kernel, check=True, **options)(a, b, c)
    left, right = _plain(a), _plain(b)
    np.testing.assert_array_equal(c, (left.T if ta else left) @ (right.T if tb else right))


@pytest.mark.parametrize(
    ("target", "transposed"),
    [
        ("sm_80", (False, False)),
        ("sm_80", (False, True)),
        ("sm_90a", (True, False)),
        ("sm_100a", (True, True)),
    ],
)
def test_operands_stored_in_either_order(target: str, transposed: tuple[bool, bool]) -> None:
    shape = (64, 96, 64)
    kernel = _gemm(shape, (64, 32, 32), transposed)
    _check(kernel, shape, *transposed, target=target)


@pytest.mark.parametrize(
    ("stages", "schedule"), [(2, "late"), (2, "eager"), (3, "late"), (3, "random:3")]
)
def test_pipelined_products(stages: int, schedule: str) -> None:
    shape = (128, 64, 160)
    kernel = _gemm(shape, (64, 64, 32), (False, True), stages=stages, dtype="bfloat16")
    _check(kernel, shape, False, True, target="sm_80", schedule=schedule, dtype="bfloat16")


@pytest.mark.parametrize(
    ("tile", "threads", "policy"),
    [
        ((16, 8, 16), 32, "square"),
        ((48, 40, 16), 96, "square"),
        ((16, 128, 48), 128, "full_row"),
        ((80, 24, 32), 32, "full_col"),
        ((64, 64, 64), 256, "full_col"),
        ((64, 64, 64), 256, "full_row"),
        ((32, 16, 144), 64, "square"),
    ],
)
def test_tiles_of_any_multiple_of_an_instructions(
    tile: tuple[int, int, int], threads: int, policy: str
) -> None:
    m, n, k = tile
    shape = (m + 16, 2 * n, k)  # the last row of tiles reaches beyond the tensors
    kernel = _gemm(shape, tile, (False, True), threads=threads, policy=policy)
    _check(kernel, shape, False, True, target="sm_80")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_sums_of_float16_are_rounded(target: str) -> None:
    """Sums that float16 holds are exact; others are rounded after each step of 16 of K."""
    shape = (32, 48, 80)
    kernel = _gemm(shape, (32, 16, 16), (False, True), threads=64, sums="float16")
    a, b = _integers(1, 32, 80), _integers(2, 48, 80)
    c = np.zeros((32, 48), np.float16)
    tilewright.compile(kernel, target, check=True)(a, b, c)
    np.testing.assert_array_equal(c, _plain(a) @ _plain(b).T)
    # 4096 and, in each of five steps, 1 more: the next number that float16 has is 4100.
    a, b = np.zeros((32, 80), np.float16), np.full((48, 80), 2048, np.float16)
    a[:, :2], a[:, 2::16] = 1, 2.0**-11
    for numerics in ("fast", "exact"):
        tilewright.compile(kernel, target, numerics=numerics)(a, b, c)
        np.testing.assert_array_equal(c, np.full_like(c, 4096))


@pytest.mark.parametrize("transposed", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integers_are_multiplied_exactly(dtype: str, transposed: tuple[bool, bool]) -> None:
    shape = (48, 32, 96)
    random = np.random.default_rng(3)
    limits = np.iinfo(dtype)
    a = random.integers(limits.min, limits.max + 1, (96, 48) if transposed[0] else (48, 96))
    b = random.integers(limits.min, limits.max + 1, (32, 96) if transposed[1] else (96, 32))
    kernel = _gemm(shape, (48, 32, 32), transposed, threads=32, dtype=dtype, sums="int32")
    c = np.zeros((48, 32), np.int32)
    tilewright.compile(kernel, "sm_80", check=True)(a.astype(dtype), b.astype(dtype), c)
    expected = (a.T if transposed[0] else a) @ (b.T if transposed[1] else b)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("transposed", [(False, True), (True, False)])
def test_float32_is_multiplied_as_tf32(transposed: tuple[bool, bool]) -> None:
    """Integers are exact in tf32; what is beyond its 10 bits of fraction is dropped."""
    shape = (48, 24, 40)
    kernel = _gemm(shape, (48, 24, 8), transposed, threads=96, dtype="float32")
    _check(kernel, shape, *transposed, target="sm_80", dtype="float32")
    a = np.full((40, 48) if transposed[0] else (48, 40), 1 + 2.0**-10 + 2.0**-11, np.float32)
    b = np.ones((24, 40) if transposed[1] else (40, 24), np.float32)
    c = np.zeros((48, 24), np.float32)
    tilewright.compile(kernel, "sm_90a")(a, b, c)
    np.testing.assert_array_equal(c, np.full_like(c, 40 * (1 + 2.0**-10)))


def test_clear_accum_is_an_expression() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((16, 64), "float16"),
        B: T.Tensor((64, 16), "float16"),
        C: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((16, 16), "float16")
            b = T.alloc_shared((16, 16), "float16")
            c = T.alloc_fragment((16, 16), "float32")
            for k in T.serial(4):
                T.copy(A[0, k * 16], a)
                T.copy(B[k * 16, 0], b)
                T.gemm(a, b, c, clear_accum=(k == 0) or (k == 2))
            T.copy(c, C)

    a, b, c = _integers(1, 16, 64), _integers(2, 64, 16), np.zeros((16, 16), np.float32)
    tilewright.compile(kernel, "sm_80", check=True)(a, b, c)
    np.testing.assert_array_equal(c, _plain(a[:, 32:]) @ _plain(b[32:]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("policy", ["full_row", "square"])
def test_a_products_result_is_the_next_ones_operand(target: str, policy: str) -> None:
    """As in attention: the accumulator, converted, is A of the next product."""
    M, N, K, D = 64, 64, 32, 48

    @T.prim_func
    def chain(
        Q: T.Tensor((M, K), "float16"),
        R: T.Tensor((N, K), "float16"),
        V: T.Tensor((N, D), "float16"),
        Out: T.Tensor((M, D), "float32"),
    ):
        with T.Kernel(1, threads=128):
            q = T.alloc_shared((M, K), "float16")
            r = T.alloc_shared((N, K), "float16")
            v = T.alloc_shared((N, D), "float16")
            s = T.alloc_fragment((M, N), "float32")
            p = T.alloc_fragment((M, N), "float16")
            o = T.alloc_fragment((M, D), "float32")
            T.copy(Q, q)
            T.copy(R, r)
            T.copy(V, v)
            T.gemm(q, r, s, transpose_B=True, policy="full_row", clear_accum=True)
            T.copy(s, p)
            T.gemm(p, v, o, policy="full_row", clear_accum=True)
            T.copy(o, Out)

    q, r, v = _integers(1, M, K), _integers(2, N, K), _integers(3, N, D)
    o = np.zeros((M, D), np.float32)
    tilewright.compile(chain, target, check=True)(q, r, v, o)
    s = (_plain(q) @ _plain(r).T).astype(np.float16)
    np.testing.assert_array_equal(o, _plain(s) @ _plain(v))


@pytest.mark.parametrize("which", ["A", "B"])
@pytest.mark.parametrize("transposed", [False, True])
def test_an_operand_held_in_registers(which: str, transposed: bool) -> None:
    M, N, K = 32, 32, 32

    @T.prim_func
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            if which == "A":
                a = T.alloc_fragment((M, K), "float16")
                b = T.alloc_shared((K, N), "float16")
            else:
                a = T.alloc_shared((M, K), "float16")
                b = T.alloc_fragment((K, N), "float16")
            c = T.alloc_fragment((M, N), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transposed, transposed, clear_accum=True)
            T.copy(c, C)

    a, b, c = _integers(1, M, K), _integers(2, K, N), np.zeros((M, N), np.float32)
    tilewright.compile(kernel, "sm_80", check=True)(a, b, c)
    left, right = _plain(a), _plain(b)
    np.testing.assert_array_equal(c, left.T @ right.T if transposed else left @ right)


def test_operands_that_are_parts_of_larger_buffers() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((3, 32, 64), "float16"),
        B: T.Tensor((64, 32), "float16"),
        C: T.Tensor((3, 32, 16), "float32"),
    ):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((3, 32, 64), "float16")
            b = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((32, 16), "float32")
            T.copy(A, a)
            T.copy(B, b)
            for i in T.serial(3):
                T.gemm(a[i, :, 16:48], b[32:64, 16:32], c, clear_accum=True)
                T.copy(c, C[i, :, :])

    a, b, c = _integers(1, 3, 32, 64), _integers(2, 64, 32), np.zeros((3, 32, 16), np.float32)
    tilewright.compile(kernel, "sm_80", check=True)(a, b, c)
    np.testing.assert_array_equal(c, _plain(a[:, :, 16:48]) @ _plain(b[32:64, 16:32]))


def test_some_of_the_warps_multiply() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((32, 32), "float16"),
        B: T.Tensor((32, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 32), "float16")
            T.copy(A, a)
            T.copy(B, b)
            if T.get_thread_binding() >= 64:
                c = T.alloc_fragment((32, 32), "float32")
                T.gemm(a, b, c, clear_accum=True)
                T.copy(c, C)

    a, b, c = _integers(1, 32, 32), _integers(2, 32, 32), np.zeros((32, 32), np.float32)
    tilewright.compile(kernel, "sm_80", check=True)(a, b, c)
    np.testing.assert_array_equal(c, _plain(a) @ _plain(b))


def test_random_numbers_are_as_near_as_float32_sums() -> None:
    shape = (64, 64, 256)
    kernel = _gemm(shape, (64, 64, 32), dtype="bfloat16")
    generator = np.random.default_rng(7)
    a = generator.standard_normal((64, 256)).astype(ml_dtypes.bfloat16)
    b = generator.standard_normal((256, 64)).astype(ml_dtypes.bfloat16)
    c = np.zeros((64, 64), np.float32)
    tilewright.compile(kernel, "sm_80")(a, b, c)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # 256 terms, each rounding by at most 2^-24 of what is there.
    bound = 256 * 2.0**-24 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))
    assert (np.abs(c - exact) <= bound).all()


@pytest.mark.parametrize("target", TARGETS)
def test_builds(target: str) -> None:
    kernel = _gemm((128, 128, 64), (128, 128, 32), (False, True), stages=2)
    assert tilewright.compile(kernel, target).cubin()


# ---------------------------------------------------------------------------- text


def test_shared_memory_is_read_by_matrices_that_meet_no_bank_twice() -> None:
    from tilewright.base.targets import target
    from tilewright.passes.pipeline import stages

    program = _gemm((64, 64, 64), (64, 64, 64), (False, True)).program
    text = str(stages(program, target("sm_80"))["lower_operations"])
    assert "ComposeLayout(3, 3, 3" in text
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in text
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in text
    assert "for k_step in T.unroll(4)" in text


@pytest.mark.parametrize(
    ("tile", "warps", "policy", "grid"),
    [
        ((128, 128), 4, "square", (2, 2)),
        ((128, 128), 4, "full_row", (4, 1)),
        ((128, 128), 4, "full_col", (1, 4)),
        ((64, 128), 8, "full_row", (4, 2)),
        ((16, 256), 4, "square", (1, 4)),
        ((256, 16), 4, "square", (4, 1)),
        ((16, 8), 2, "square", None),
        ((96, 24), 3, "square", (3, 1)),
    ],
)
def test_warps_divide_a_tile(
    tile: tuple[int, int], warps: int, policy: str, grid: tuple[int, int] | None
) -> None:
    assert warp_grid(*tile, warps, policy) == grid


def test_numbers_of_warps_that_divide_a_tile() -> None:
    assert feasible_warps(32, 16) == [1, 2, 4]


# ---------------------------------------------------------------------------- refusals


def _refused(kernel: Any, target: str = "sm_80") -> Any:
    with pytest.raises((TileContractError, FrontendError)) as caught:
        tilewright.compile(kernel, target)
    assert caught.value.location is not None
    return caught.value


def _product(a: Any, b: Any, c: Any, dtype: str, result: str, threads: int = 128) -> Any:
    @T.prim_func
    def kernel(A: T.Tensor((64, 64), dtype)):
        with T.Kernel(1, threads=threads):
            x = T.alloc_shared(a, dtype)
            y = T.alloc_shared(b, dtype)
            z = T.alloc_fragment(c, result)
            T.fill(x, 0)
            T.fill(y, 0)
            T.gemm(x, y, z, clear_accum=True)

    return kernel


def test_a_tile_that_the_warps_cannot_divide() -> None:
    error = _refused(_product((16, 16), (16, 16), (16, 16), "float16", "float32", threads=128))
    assert error.code == "tile-shape"
    assert "threads=32 or 64" in error.expected
    assert "128 threads" in error.found


def test_types_that_are_not_multiplied() -> None:
    error = _refused(_product((64, 64), (64, 64), (64, 64), "float64", "float64"))
    assert error.code == "tile-operand"
    assert "A and B float16, C float32" in error.expected
    assert "float64" in error.found


def test_extents_that_no_instruction_takes() -> None:
    error = _refused(_product((64, 24), (24, 64), (64, 64), "float16", "float32"))
    assert (error.code, error.found) == ("tile-shape", "K = 24")


def test_an_accumulator_in_shared_memory() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((16, 16), "float16")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((16, 16), "float16")
            z = T.alloc_shared((16, 16), "float32")
            T.copy(A, x)
            T.gemm(x, x, z)

    error = _refused(kernel)
    assert error.code == "tile-operand"
    assert "T.alloc_fragment" in error.expected


def test_two_products_that_need_one_fragment_in_different_threads() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((64, 64), "float16")
            z = T.alloc_fragment((64, 64), "float32")
            T.copy(A, x)
            T.gemm(x, x, z, clear_accum=True, policy="full_row")
            T.gemm(x, x, z, policy="full_col")

    assert _refused(kernel).code == "layout-conflict"


@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize("cleared", [True, False])
def test_sums_that_nothing_has_cleared_are_told(turns: int, cleared: bool) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((32, 64), "float16"), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((32, 16), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            if cleared:
                T.clear(c)
            for k in T.Pipelined(turns, num_stages=2):
                T.copy(A[0, k * 16], a)
                T.gemm(a, a, c, transpose_B=True)
            T.copy(c, C)

    executable = tilewright.compile(kernel, "sm_80", check=True)
    arrays = np.ones((32, 64), np.float16), np.zeros((32, 32), np.float32)
    if cleared:
        executable(*arrays)
        assert (arrays[1] == 16 * turns).all()
        return
    with pytest.raises(tilewright.CheckError) as error:
        executable(*arrays)
    (fault,) = error.value.findings
    assert fault.kind == "uninitialised" and "T.gemm(a, a, c" in str(fault)
