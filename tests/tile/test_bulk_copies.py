"""Bulk copies of tiles: those that a program asks for, and stores that need no asking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import tile as T
from tilewright.base.errors import TargetError, TileContractError
from tilewright.base.targets import target
from tilewright.passes.pipeline import stages

SCHEDULES = ("late", "eager", "random:2")


def _through(shape: tuple[int, int], tile: tuple[int, int], dtype: str = "float32") -> Any:
    """Make a kernel that adds 1 to tiles that come and go in bulk."""
    M, N = shape
    m, n = tile

    @T.prim_func
    def kernel(A: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, n), T.ceildiv(M, m), threads=128) as (bx, by):
            a = T.alloc_shared((m, n), dtype)
            c = T.alloc_shared((m, n), dtype)
            T.copy(A[by * m, bx * n], a, prefer_instruction="tma")
            for i, j in T.Parallel(m, n):
                c[i, j] = a[i, j] + 1
            T.copy(c, C[by * m, bx * n], prefer_instruction="tma")

    return kernel


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("shape", "tile", "dtype"),
    [
        ((64, 64), (64, 64), "float32"),
        ((96, 40), (32, 16), "float16"),
        ((300, 8), (288, 8), "float32"),
        ((50, 36), (32, 32), "float32"),  # tiles reach beyond the tensor
    ],
)
def test_tiles_come_and_go(
    target: str, shape: tuple[int, int], tile: tuple[int, int], dtype: str
) -> None:
    a = np.arange(np.prod(shape)).reshape(shape).astype(dtype) % 1000
    for schedule in SCHEDULES:
        c = np.zeros_like(a)
        executable = tilewright.compile(
            _through(shape, tile, dtype), target, check=True, schedule=schedule
        )
        executable(a, c)
        np.testing.assert_array_equal(c, a + 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loads_in_a_loop_that_products_read(schedule: str) -> None:
    M, N, K, k = 64, 64, 192, 64

    @T.prim_func
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((M, k), "float16")
            b = T.alloc_shared((N, k), "float16")
            c = T.alloc_fragment((M, N), "float32")
            out = T.alloc_shared((M, N), "float32")
            T.clear(c)
            for i in T.serial(K // k):
                T.copy(A[0, i * k], a, prefer_instruction="tma")
                T.copy(B[0, i * k], b, prefer_instruction="tma")
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, out)
            T.copy(out, C, prefer_instruction="tma")

    generator = np.random.default_rng(5)
    a, b = (generator.integers(-4, 5, (64, K)).astype(np.float16) for _ in range(2))
    c = np.zeros((M, N), np.float32)
    executable = tilewright.compile(kernel, "sm_90a", check=True, schedule=schedule)
    executable(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("read", [True, False])
def test_a_program_waits_for_its_loads_and_stores_itself(read: bool) -> None:
    """A buffer is loaded anew once its store has read it; every thread waits for its own groups."""

    @T.prim_func
    def kernel(A: T.Tensor((3, 64, 64), "float16"), C: T.Tensor((3, 64, 64), "float16")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((64, 64), "float16")
            landed = T.alloc_barrier(1)
            for k in T.serial(3):
                if T.get_thread_binding() == 0:
                    T.tma_copy(A[k, 0, 0], held, barrier=landed)
                    T.mbarrier_arrive(landed)
                T.mbarrier_wait_parity(landed, k % 2)
                T.tma_copy(held, C[k, 0, 0])
                T.tma_store_wait(0, read=read)
                T.sync_threads()

    a = np.random.default_rng(0).integers(-9, 9, (3, 64, 64)).astype(np.float16)
    for arch in ("sm_90a", "sm_100a"):
        for schedule in ("late", "eager", "random:1"):
            c = np.zeros_like(a)
            tilewright.compile(kernel, arch, schedule=schedule, check=True)(a, c)
            np.testing.assert_array_equal(c, a)


@pytest.mark.parametrize("load", [False, True])
def test_threads_and_bulk_copies_use_one_tensor_in_turn(load: bool) -> None:
    """What threads write to global memory is behind a proxy fence when a bulk copy comes to it."""

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((64, 64), "float32")
            sums = T.alloc_fragment((64, 64), "float32")
            T.fill(C, 7)
            if load:
                T.copy(C, held, prefer_instruction="tma")
            else:
                T.copy(A, held)
                T.copy(held, C)
            T.copy(C, sums)
            for i, j in T.Parallel(64, 64):
                C[i, j] = sums[i, j] + held[j, i]

    a = np.random.default_rng(2).integers(-9, 9, (64, 64)).astype(np.float32)
    expected = np.full((64, 64), 14) if load else a + a.T
    for arch in ("sm_90a", "sm_100a"):
        for schedule in ("late", "eager", "random:1"):
            c = np.zeros_like(a)
            tilewright.compile(kernel, arch, schedule=schedule, check=True)(a, c)
            np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_copy_that_prefers_short_runs_has_landed_at_its_end(arch: str) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((64, 64), "float16")
            T.copy(A, held, prefer_instruction="cp_async")
            T.copy(held, C)

    a = np.random.default_rng(1).integers(-9, 9, (64, 64)).astype(np.float16)
    c = np.zeros_like(a)
    executable = tilewright.compile(kernel, arch, check=True)
    executable(a, c)
    np.testing.assert_array_equal(c, a)
    assert "cp.async.cg.shared" in str(executable.ir)


@pytest.mark.parametrize("start", [0, 1])
def test_a_copy_in_short_runs_that_cannot_be_one(start: int) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 65), "float16")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((64, 64), "float16")
            T.async_copy(A[0, start], held)
            T.ptx_wait_group(0)

    with pytest.raises(TileContractError, match="runs of 4, 8 or 16 bytes") as caught:
        tilewright.compile(kernel, "sm_80")
    assert caught.value.code == "tile-operand"


def test_builds() -> None:
    assert tilewright.compile(_through((64, 64), (64, 64)), "sm_90a").cubin()


def test_targets_without_bulk_copies() -> None:
    with pytest.raises(TargetError) as caught:
        tilewright.compile(_through((64, 64), (64, 64)), "sm_80")
    assert caught.value.code == "missing-instruction"
    assert caught.value.location is not None


def test_rows_that_no_tensor_map_has() -> None:
    with pytest.raises(TileContractError) as caught:
        tilewright.compile(_through((64, 33), (64, 32)), "sm_90a")
    assert "16 bytes" in (caught.value.expected or "")


def test_types_are_not_converted_on_the_way() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            T.copy(A, a, prefer_instruction="tma")

    with pytest.raises(TileContractError) as caught:
        tilewright.compile(kernel, "sm_90a")
    assert caught.value.expected == "elements of one type"


# ---------------------------------------------------------------------------- without being asked


def _stored(
    shape: tuple[int, int],
    tile: tuple[int, int],
    dtype: str = "float16",
    result: str | None = None,
    versions: int = 2,
    **options: Any,
) -> Any:
    """Make a kernel whose tiles leave by way of a buffer that each turn of a loop uses again."""
    M, N = shape
    m, n = tile

    @T.prim_func
    def kernel(
        A: T.Tensor((versions, M, N), dtype), C: T.Tensor((versions, M, N), result or dtype)
    ):
        with T.Kernel(T.ceildiv(N, n), T.ceildiv(M, m), threads=128) as (bx, by):
            c = T.alloc_shared((m, n), dtype)
            for k in T.serial(versions):
                T.copy(A[k, by * m, bx * n], c)
                for i, j in T.Parallel(m, n):
                    c[i, j] = c[i, j] + 1
                T.copy(c, C[k, by * m, bx * n], **options)

    return kernel


def _ways(kernel: Any, arch: str = "sm_90a") -> int:
    return str(stages(kernel.program, target(arch))["choose_instructions"]).count('way="tma"')


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("shape", "tile", "dtype"),
    [
        ((64, 64), (64, 64), "float16"),
        ((100, 72), (32, 64), "float16"),  # beyond the tensor along both axes
        ((3, 1024), (2, 1024), "float32"),  # rows longer than a box
        ((8, 4096), (1, 2048), "uint8"),
    ],
)
def test_tiles_leave_shared_memory_in_bulk(
    arch: str, shape: tuple[int, int], tile: tuple[int, int], dtype: str
) -> None:
    kernel = _stored(shape, tile, dtype)
    assert _ways(kernel, arch) == 1
    a = (np.arange(2 * np.prod(shape)).reshape(2, *shape) % 200).astype(dtype)
    for schedule in SCHEDULES:
        c = np.zeros_like(a)
        tilewright.compile(kernel, arch, check=True, schedule=schedule)(a, c)
        np.testing.assert_array_equal(c, a + 1)


def test_what_threads_store_themselves() -> None:
    """Before sm_90, where it is forbidden, and where no tensor map is sure to do it."""
    square = ((64, 64), (64, 64))
    assert _ways(_stored(*square), "sm_80") == 0
    assert _ways(_stored(*square, disable_tma=True)) == 0
    assert _ways(_stored(*square, prefer_instruction="sync")) == 0
    assert _ways(_stored(*square, result="float32")) == 0
    assert _ways(_stored((64, 60), (64, 60))) == 0  # rows of 120 bytes


def test_sizes_that_are_told_at_the_launch() -> None:
    """Of rows of any length it is not known that a map describes them; of their number it is."""

    def made(rows: Any, columns: Any) -> Any:
        @T.prim_func
        def kernel(C: T.Tensor((rows, columns), "float32")):
            with T.Kernel(T.ceildiv(rows, 32), threads=64) as x:
                c = T.alloc_shared((32, 32), "float32")
                for i, j in T.Parallel(32, 32):
                    c[i, j] = x * 32 + i
                T.copy(c, C[x * 32, 0])

        return kernel

    assert _ways(made(64, T.dynamic("n"))) == 0
    kernel = made(T.dynamic("m"), 32)
    assert _ways(kernel) == 1
    c = np.zeros((50, 32), np.float32)
    tilewright.compile(kernel, "sm_90a", check=True)(c)
    np.testing.assert_array_equal(c, np.broadcast_to(np.arange(50)[:, None], (50, 32)))


def test_where_threads_part_they_store_themselves() -> None:
    @T.prim_func
    def kernel(C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=256):
            c = T.alloc_shared((64, 64), "float32")
            T.fill(c, 3)
            if T.get_thread_binding() < 128:
                T.copy(c, C)

    assert _ways(kernel) == 0
    c = np.zeros((64, 64), np.float32)
    tilewright.compile(kernel, "sm_90a", check=True)(c)
    np.testing.assert_array_equal(c, np.full_like(c, 3))


def test_a_part_of_a_buffer_is_stored_by_threads() -> None:
    @T.prim_func
    def kernel(C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=128):
            c = T.alloc_shared((64, 64), "float32")
            for i, j in T.Parallel(64, 64):
                c[i, j] = i * 64 + j
            T.copy(c[16:48, 32:64], C)

    assert _ways(kernel) == 0
    c = np.zeros((32, 32), np.float32)
    tilewright.compile(kernel, "sm_90a", check=True)(c)
    np.testing.assert_array_equal(c, np.arange(4096).reshape(64, 64)[16:48, 32:64])


def test_a_buffer_that_the_program_lays_out_or_views_otherwise() -> None:
    @T.prim_func
    def kernel(C: T.Tensor((64, 64), "float32"), D: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            c = T.alloc_shared((64, 64), "float32")
            d = T.alloc_shared((64, 64), "float32")
            T.annotate_layout({c: T.make_swizzled_layout(c)})
            flat = T.reshape(d, (4096,))
            for i, j in T.Parallel(64, 64):
                c[i, j] = i * 64 + j
            for i in T.Parallel(4096):
                flat[i] = i
            T.copy(c, C)
            T.copy(d, D)

    assert _ways(kernel) == 0
    c, d = np.zeros((2, 64, 64), np.float32)
    tilewright.compile(kernel, "sm_90a", check=True)(c, d)
    np.testing.assert_array_equal(c, np.arange(4096).reshape(64, 64))
    np.testing.assert_array_equal(d, c)


def test_products_leave_by_swizzled_tiles() -> None:
    """The accumulator is written to shared memory without bank conflicts, and stored as boxes."""
    M, N, K = 128, 128, 64

    @T.prim_func
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((M, K), "float16")
            b = T.alloc_shared((N, K), "float16")
            c = T.alloc_fragment((M, N), "float32")
            out = T.alloc_shared((M, N), "float16")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, out)
            T.copy(out, C)

    generator = np.random.default_rng(5)
    a, b = (generator.integers(-4, 5, (128, K)).astype(np.float16) for _ in range(2))
    for schedule in SCHEDULES:
        c = np.zeros((M, N), np.float16)
        executable = tilewright.compile(kernel, "sm_90a", check=True, schedule=schedule)
        executable(a, b, c)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    assert "cp.async.bulk.tensor.2d.global" in executable.source
    assert executable.cubin()
