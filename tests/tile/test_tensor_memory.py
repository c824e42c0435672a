"""Tensor Memory in the tile dialect: products, copies, allocation and mbarriers.

Values are small integers, whose products and sums float32 holds exactly.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright import tile as T
from tilewright.base.dtypes import BFLOAT16, FLOAT32, DType
from tilewright.base.errors import TargetError, TileContractError
from tilewright.base.targets import target
from tilewright.layout import TCol, TLane, image
from tilewright.passes.pipeline import stages
from tilewright.passes.tile.tensor_memory import buffer_layout, columns_of, tmem_fragment

TARGET = "sm_100a"
BF16 = ml_dtypes.bfloat16
SCHEDULES = ("late", "eager", "random:1")


def _integers(seed: int, *shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def _plain(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def _gemm(
    shape: tuple[int, int, int],
    tile: tuple[int, int, int],
    transposed: tuple[bool, bool] = (False, True),
    *,
    threads: int = 256,
    stages: int = 0,
    dtype: str = "bfloat16",
) -> Any:
    """Make the product of the seed program: to Tensor Memory, registers, shared memory, and out."""
    (M, N, K), (m, n, k) = shape, tile
    ta, tb = transposed

    @T.prim_func
    def gemm(
        A: T.Tensor((K, M) if ta else (M, K), dtype),
        B: T.Tensor((N, K) if tb else (K, N), dtype),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, n), T.ceildiv(M, m), threads=threads) as (bx, by):
            a = T.alloc_shared((k, m) if ta else (m, k), dtype)
            b = T.alloc_shared((n, k) if tb else (k, n), dtype)
            cells = T.alloc_tmem([m, n], "float32")
            mbar = T.alloc_barrier(1)
            local = T.alloc_fragment((m, n), "float32")
            out = T.alloc_shared((m, n), "float32")
            for ko in T.Pipelined(T.ceildiv(K, k), num_stages=stages):
                if ta:
                    T.copy(A[ko * k, by * m], a)
                else:
                    T.copy(A[by * m, ko * k], a)
                if tb:
                    T.copy(B[bx * n, ko * k], b)
                else:
                    T.copy(B[ko * k, bx * n], b)
                T.gemm(a, b, cells, ta, tb, clear_accum=(ko == 0), mbar=mbar)
            T.copy(cells, local)
            T.copy(local, out)
            T.copy(out, C[by * m, bx * n])

    return gemm


def _check(
    kernel: Any, shape: tuple[int, int, int], ta: bool, tb: bool, schedule: str = "late"
) -> None:
    M, N, K = shape
    a, b = _integers(1, *((K, M) if ta else (M, K))), _integers(2, *((N, K) if tb else (K, N)))
    c = np.zeros((M, N), np.float32)
    tilewright.compile(kernel, TARGET, check=True, schedule=schedule)(a, b, c)
    left, right = _plain(a), _plain(b)
    np.testing.assert_array_equal(c, (left.T if ta else left) @ (right.T if tb else right))


# ---------------------------------------------------------------------------- products


@pytest.mark.parametrize("transposed", [(x, y) for x in (False, True) for y in (False, True)])
def test_operands_stored_in_either_order(transposed: tuple[bool, bool]) -> None:
    shape = (128, 64, 96)
    _check(_gemm(shape, (128, 64, 32), transposed), shape, *transposed)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [0, 2, 3])
def test_pipelined_products(stages: int, schedule: str) -> None:
    shape = (256, 128, 320)
    _check(_gemm(shape, (128, 128, 64), stages=stages), shape, False, True, schedule)


@pytest.mark.parametrize(
    ("tile", "threads"),
    [
        ((64, 64, 64), 128),
        ((64, 24, 16), 128),
        ((64, 128, 32), 256),
        ((128, 16, 64), 128),
        ((128, 256, 64), 512),
        ((256, 96, 32), 256),
        ((192, 32, 32), 128),
        ((128, 64, 64), 384),
    ],
)
def test_tiles_and_threads(tile: tuple[int, int, int], threads: int) -> None:
    m, n, k = tile
    shape = (m, 2 * n, 2 * k)
    _check(_gemm(shape, tile, threads=threads), shape, False, True)


def test_products_into_several_buffers_and_one_mbarrier() -> None:
    """Two products in a row wait at one mbarrier: no thread may miss a phase of it."""

    @T.prim_func
    def kernel(
        A: T.Tensor((128, 64), "bfloat16"),
        B: T.Tensor((2, 64, 64), "bfloat16"),
        C: T.Tensor((2, 128, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128, 64), "bfloat16")
            b = T.alloc_shared((2, 64, 64), "bfloat16")
            one = T.alloc_tmem((128, 64), "float32")
            other = T.alloc_tmem((128, 64), "float32")
            mbar = T.alloc_barrier(1)
            local = T.alloc_fragment((128, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b[0, :, :], one, clear_accum=True, mbar=mbar)
            T.gemm(a, b[1, :, :], other, clear_accum=True, mbar=mbar)
            T.copy(one, local)
            T.copy(local, C[0, :, :])
            T.copy(other, local)
            T.copy(local, C[1, :, :])

    a, b = _integers(1, 128, 64), _integers(2, 2, 64, 64)
    for schedule in SCHEDULES:
        c = np.zeros((2, 128, 64), np.float32)
        tilewright.compile(kernel, TARGET, check=True, schedule=schedule)(a, b, c)
        np.testing.assert_array_equal(c, _plain(a) @ _plain(b))


def test_a_product_of_what_lies_in_tensor_memory() -> None:
    """As in attention: the accumulator goes to registers, and back as the next product's A."""

    @T.prim_func
    def kernel(
        Q: T.Tensor((128, 64), "bfloat16"),
        R: T.Tensor((32, 64), "bfloat16"),
        V: T.Tensor((32, 64), "bfloat16"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            q = T.alloc_shared((128, 64), "bfloat16")
            r = T.alloc_shared((32, 64), "bfloat16")
            v = T.alloc_shared((32, 64), "bfloat16")
            s_cells = T.alloc_tmem((128, 32), "float32")
            p_cells = T.alloc_tmem((128, 32), "bfloat16")
            o_cells = T.alloc_tmem((128, 64), "float32")
            s = T.alloc_fragment((128, 32), "float32")
            p = T.alloc_fragment((128, 32), "bfloat16")
            o = T.alloc_fragment((128, 64), "float32")
            mbar = T.alloc_barrier(1)
            T.copy(Q, q)
            T.copy(R, r)
            T.copy(V, v)
            T.gemm(q, r, s_cells, transpose_B=True, clear_accum=True, mbar=mbar)
            T.copy(s_cells, s)
            T.copy(s, p)
            T.copy(p, p_cells)
            T.gemm(p_cells, v, o_cells, clear_accum=True, mbar=mbar)
            T.copy(o_cells, o)
            T.copy(o, C)

    q, r, v = _integers(1, 128, 64), _integers(2, 32, 64), _integers(3, 32, 64)
    s = (_plain(q) @ _plain(r).T).astype(BF16)
    for schedule in SCHEDULES:
        c = np.zeros((128, 64), np.float32)
        tilewright.compile(kernel, TARGET, check=True, schedule=schedule)(q, r, v, c)
        np.testing.assert_array_equal(c, _plain(s) @ _plain(v))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_producer_an_issuer_and_all_for_the_result(schedule: str) -> None:
    """Bulk copies, explicit products and parities, by warps that the program tells apart."""
    M, N, K, k = 128, 64, 256, 64

    @T.prim_func
    def kernel(
        A: T.Tensor((M, K), "bfloat16"),
        B: T.Tensor((N, K), "bfloat16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((2, M, k), "bfloat16")
            b = T.alloc_shared((2, N, k), "bfloat16")
            cells = T.alloc_tmem((M, N), "float32")
            local = T.alloc_fragment((M, N), "float32")
            full = T.alloc_barrier([32] * 2)
            free = T.alloc_barrier([1] * 2)
            done = T.alloc_barrier(1)
            tx = T.get_thread_binding()
            if tx < 32:
                for i in T.serial(K // k):
                    T.mbarrier_wait_parity(free[i % 2], (i // 2 + 1) & 1)
                    T.tma_copy(A[0, i * k], a[i % 2, :, :], barrier=full[i % 2])
                    T.tma_copy(B[0, i * k], b[i % 2, :, :], barrier=full[i % 2])
                    T.mbarrier_arrive(full[i % 2])
            elif tx < 64:
                for i in T.serial(K // k):
                    T.mbarrier_wait_parity(full[i % 2], (i // 2) & 1)
                    T.tcgen05_gemm(
                        a[i % 2, :, :],
                        b[i % 2, :, :],
                        cells,
                        transpose_B=True,
                        clear_accum=i == 0,
                        mbar=free[i % 2],
                    )
                T.tcgen05_mma_arrive(done)
            T.mbarrier_wait_parity(done, 0)
            T.copy(cells, local)
            T.copy(local, C)

    a, b, c = _integers(1, M, K), _integers(2, N, K), np.zeros((M, N), np.float32)
    tilewright.compile(kernel, TARGET, check=True, schedule=schedule)(a, b, c)
    np.testing.assert_array_equal(c, _plain(a) @ _plain(b).T)


def test_builds() -> None:
    assert tilewright.compile(_gemm((256, 256, 256), (128, 128, 64), stages=2), TARGET).cubin()


# ---------------------------------------------------------------------------- layouts


def _cells(shape: tuple[int, ...], dtype: DType, accumulates: bool) -> tuple[Any, Any]:
    layout = buffer_layout(shape, dtype, accumulates, None)
    found = image(layout, shape)
    return found[TLane.name], found[TCol.name]


def test_128_rows_are_the_lanes() -> None:
    lanes, columns = _cells((128, 32), FLOAT32, True)
    row, column = np.indices((128, 32))
    np.testing.assert_array_equal(lanes, row)
    np.testing.assert_array_equal(columns, column)


def test_64_rows_are_16_of_each_32_lanes() -> None:
    lanes, _ = _cells((64, 32), FLOAT32, True)
    row, _ = np.indices((64, 32))
    np.testing.assert_array_equal(lanes, row // 16 * 32 + row % 16)


def test_further_rows_and_leading_axes_lie_in_further_columns() -> None:
    lanes, columns = _cells((2, 256, 16), FLOAT32, True)
    number, row, column = np.indices((2, 256, 16))
    np.testing.assert_array_equal(lanes, row % 128)
    np.testing.assert_array_equal(columns, number * 32 + row // 128 * 16 + column)


def test_columns_of_16_bits_are_half_as_many() -> None:
    assert columns_of(buffer_layout((128, 64), BFLOAT16, False, None), BFLOAT16) == 32


@pytest.mark.parametrize(
    ("shape", "dtype", "threads"),
    [
        ((128, 64), FLOAT32, 128),
        ((128, 64), FLOAT32, 256),
        ((256, 32), FLOAT32, 256),
        ((64, 64), BFLOAT16, 128),
        ((128, 8), FLOAT32, 1024),
        ((128, 2), BFLOAT16, 512),
    ],
)
def test_a_warp_holds_what_it_can_reach(shape: tuple[int, int], dtype: DType, threads: int) -> None:
    """A warp reaches the 32 lanes of its number in the warpgroup (PTX ISA, tcgen05.ld)."""
    fragment = tmem_fragment(shape, dtype, threads)
    assert fragment is not None
    lanes, _ = _cells(shape, dtype, False)
    holders, _ = fragment.owners
    np.testing.assert_array_equal(holders // 32 % 4, np.broadcast_to(lanes // 32, holders.shape))


# ---------------------------------------------------------------------------- allocation


def _lowered(kernel: Any) -> str:
    return str(stages(kernel.program, target(TARGET))["allocate_tensor_memory"])


def test_one_warp_allocates_before_all_else_and_frees_when_all_are_done() -> None:
    lines = [line.strip() for line in _lowered(_gemm((128, 64, 64), (128, 64, 64))).splitlines()]
    events = [
        word
        for line in lines
        for word in ("alloc.cta", "relinquish", "mbarrier.init", "bar.sync", "dealloc", "mma.cta")
        if word in line and f"de{word}" not in line
    ]
    assert events[:4] == ["alloc.cta", "relinquish", "mbarrier.init", "bar.sync"]
    assert events[-2:] == ["bar.sync", "dealloc"]
    before = lines[: next(at for at, line in enumerate(lines) if "dealloc" in line)]
    assert "if T.cuda.linear_thread_id() < 32:" in before[-2:]


def test_buffers_share_a_power_of_two_of_columns() -> None:
    @T.prim_func
    def kernel(C: T.Tensor((128, 128), "float32")):
        with T.Kernel(1, threads=128):
            one = T.alloc_tmem((128, 128), "float32")
            other = T.alloc_tmem((128, 32), "float32")
            wide = T.alloc_fragment((128, 128), "float32")
            narrow = T.alloc_fragment((128, 32), "float32")
            for i, j in T.Parallel(128, 128):
                wide[i, j] = i * 128 + j
            for i, j in T.Parallel(128, 32):
                narrow[i, j] = -i
            T.copy(wide, one)
            T.copy(narrow, other)
            T.clear(wide)
            T.copy(one, wide)
            T.copy(wide, C)

    text = _lowered(kernel)
    assert text.count("tcgen05.alloc") == 1
    assert "T.uint32(256)" in text
    assert "+ T.uint32(128)" in text
    c = np.zeros((128, 128), np.float32)
    tilewright.compile(kernel, TARGET, check=True)(c)
    np.testing.assert_array_equal(c.ravel(), np.arange(128 * 128))


def test_a_buffer_that_is_given_back_makes_room() -> None:
    @T.prim_func
    def kernel(C: T.Tensor((128, 32), "float32")):
        with T.Kernel(1, threads=128):
            one = T.alloc_tmem((128, 32), "float32")
            local = T.alloc_fragment((128, 32), "float32")
            T.fill(local, 3)
            T.copy(local, one)
            T.clear(local)
            T.copy(one, local)
            T.deallocate_tmem(one)
            T.copy(local, C)

    assert _lowered(kernel).count("tcgen05.dealloc") == 1
    c = np.zeros((128, 32), np.float32)
    tilewright.compile(kernel, TARGET, check=True)(c)
    assert (c == 3).all()


def test_too_many_columns() -> None:
    @T.prim_func
    def kernel(C: T.Tensor((128, 256), "float32")):
        with T.Kernel(1, threads=128):
            one = T.alloc_tmem((128, 256), "float32")
            other = T.alloc_tmem((256, 256), "float32")
            local = T.alloc_fragment((128, 256), "float32")
            T.fill(local, 0)
            T.copy(local, one)
            T.copy(other[0:128, :], local)
            T.copy(local, C)

    with pytest.raises(TargetError) as caught:
        tilewright.compile(kernel, TARGET)
    assert caught.value.code == "resource-limit"
    assert caught.value.location is not None
    assert caught.value.location.line == _line_of(kernel, "other = ")
    assert "512" in (caught.value.expected or "")


def _line_of(kernel: Any, text: str) -> int:
    import inspect

    source, first = inspect.getsourcelines(kernel.function)
    return first + next(at for at, line in enumerate(source) if text in line)


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_targets_without_tensor_memory(name: str) -> None:
    with pytest.raises(TargetError) as caught:
        tilewright.compile(_gemm((128, 64, 64), (128, 64, 64)), name)
    assert caught.value.code == "missing-instruction"
    assert "T.alloc_fragment" in (caught.value.hint or "")
    assert caught.value.location is not None


def test_a_product_without_an_mbarrier() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((128, 64), "bfloat16")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128, 64), "bfloat16")
            cells = T.alloc_tmem((128, 128), "float32")
            T.copy(A, a)
            T.gemm(a, a, cells, transpose_B=True)

    with pytest.raises(TileContractError) as caught:
        tilewright.compile(kernel, TARGET)
    assert caught.value.code == "tile-operand"
    assert "T.alloc_barrier(1)" in (caught.value.hint or "")


def test_fewer_threads_than_a_warpgroup() -> None:
    with pytest.raises(TileContractError) as caught:
        tilewright.compile(_gemm((128, 64, 64), (128, 64, 64), threads=64), TARGET)
    assert caught.value.code == "tile-scope"
    assert "64 threads" in (caught.value.found or "")


def test_rows_that_no_product_has() -> None:
    with pytest.raises(TileContractError) as caught:
        tilewright.compile(_gemm((32, 64, 64), (32, 64, 64), threads=128), TARGET)
    assert caught.value.code == "tile-shape"
    assert "64 or 128 rows" in (caught.value.hint or "")


def test_types_that_are_not_multiplied() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((128, 64), "float8_e4m3fn")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128, 64), "float8_e4m3fn")
            cells = T.alloc_tmem((128, 128), "float32")
            mbar = T.alloc_barrier(1)
            T.copy(A, a)
            T.gemm(a, a, cells, transpose_B=True, mbar=mbar)

    with pytest.raises(TileContractError) as caught:
        tilewright.compile(kernel, TARGET)
    assert caught.value.code == "tile-operand"
    assert "bfloat16" in (caught.value.expected or "")


def test_tensor_memory_is_copied_by_way_of_registers() -> None:
    @T.prim_func
    def kernel(C: T.Tensor((128, 64), "float32")):
        with T.Kernel(1, threads=128):
            cells = T.alloc_tmem((128, 64), "float32")
            T.copy(cells, C)

    with pytest.raises(TileContractError) as caught:
        tilewright.compile(kernel, TARGET)
    assert "fragment" in (caught.value.hint or "")


# ---------------------------------------------------------------------------- instructions


def test_instructions_are_chosen_by_where_tiles_are() -> None:
    """Before and after `choose_instructions`: ways, layouts of Tensor Memory, cells of phases."""
    found = stages(_gemm((128, 64, 64), (128, 64, 64)).program, target(TARGET))
    before, after = str(found["pipeline_loops"]), str(found["choose_instructions"])
    assert "way=" not in before
    assert 'way="tcgen05"' in after
    assert 'T.copy(cells, local, way="tmem"' in after
    assert after.count('way="simt"') == 3
    assert "T.copy(out, C.sub[" in after and after.count('way="tma"') == 1
    assert "layout=layout_0" in after and "1 @ TLane" in after
    assert "mbar_phase: T.uint32 = T.uint32(0)" in after
