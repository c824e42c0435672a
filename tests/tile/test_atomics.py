"""Atomic additions to one element or to neighbours: what each target has, and the same sums."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tile_running import TARGETS, builds, lowered, run

from tilewright import tile as T

F = np.float32
KINDS = {"float32": F, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _neighbours(count: int, dtype: str, columns: int = 16, scope: str = "fragment") -> Any:
    """Make a kernel of four CTAs that all add their row of B to C, `count` elements at a time."""
    add = {2: T.atomic_addx2, 4: T.atomic_addx4}[count]

    @T.prim_func
    def added(B: T.Tensor((4, columns), dtype), C: T.Tensor((columns,), dtype)):
        with T.Kernel(4, threads=32) as block:
            if scope == "shared":
                held = T.alloc_shared((columns,), dtype)
                T.copy(B[block, 0], held)
                for i in T.Parallel(columns // count):
                    add(C[i * count], held[i * count])
            else:
                for i in T.Parallel(columns // count):
                    add(C[i * count], B[block, i * count])

    return added


def _sums(kernel: Any, dtype: str, columns: int, arch: str) -> None:
    numbers = np.random.default_rng(1).integers(-8, 9, (4, columns))
    b = numbers.astype(KINDS[dtype])
    c = np.full(columns, 3, KINDS[dtype])
    run(kernel, b, c, arch=arch)
    np.testing.assert_array_equal(c.astype(F), numbers.sum(0) + 3)


@pytest.mark.parametrize("scope", ["global", "shared"])
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("count", [2, 4])
def test_neighbours_are_added_to_on_every_target(
    count: int, dtype: str, arch: str, scope: str
) -> None:
    _sums(_neighbours(count, dtype, scope=scope), dtype, 16, arch)


@pytest.mark.parametrize(
    ("count", "dtype", "arch", "instruction"),
    [
        (2, "float32", "sm_90a", "red.global.add.v2.f32"),
        (4, "float32", "sm_100a", "red.global.add.v4.f32"),
        (2, "float32", "sm_80", "red.global.add.f32"),
        (2, "float16", "sm_80", "red.global.add.noftz.f16x2"),
        (4, "float16", "sm_80", "red.global.add.noftz.f16x2"),
        (4, "float16", "sm_90a", "red.global.add.noftz.v2.f16x2"),
        (2, "bfloat16", "sm_90a", "red.global.add.noftz.bf16x2"),
        (4, "bfloat16", "sm_100a", "red.global.add.noftz.v2.bf16x2"),
        (2, "bfloat16", "sm_80", "atom.global.cas.b16"),
    ],
)
def test_one_instruction_adds_to_as_many_as_the_target_has_one_for(
    count: int, dtype: str, arch: str, instruction: str
) -> None:
    kernel = _neighbours(count, dtype)
    assert f'"{instruction}"' in lowered(kernel, arch)
    builds(kernel, arch)


def test_rows_that_are_no_multiple_are_added_to_one_by_one() -> None:
    """The last pair ends beyond the tensor, of which nothing is written."""

    @T.prim_func
    def added(B: T.Tensor((16,), "float32"), C: T.Tensor((15,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                T.atomic_addx2(C[i * 2], B[i * 2])

    assert ".v2." not in lowered(added, "sm_90a")
    b, c = np.arange(16, dtype=F), np.ones(15, F)
    run(added, b, c)
    np.testing.assert_array_equal(c, np.arange(15) + 1)


def test_pairs_that_begin_anywhere_are_added_to_one_by_one() -> None:
    @T.prim_func
    def added(B: T.Tensor((16,), "float16"), C: T.Tensor((32,), "float16"), At: T.int32):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                T.atomic_addx2(C[At + i * 2], B[i * 2])

    assert "f16x2" not in lowered(added, "sm_90a")
    b, c = np.arange(16).astype(np.float16), np.zeros(32, np.float16)
    run(added, b, c, np.int32(3))
    np.testing.assert_array_equal(c[3:19], b)


def test_what_an_addition_reads_of_its_own_tensor_is_read_in_order() -> None:
    """Each element is added to the one after it: that one has been changed before it is read."""

    @T.prim_func
    def chained(C: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=1):
            T.atomic_add(C[0], 1.0)
            T.atomic_add(C[1], C[0])

    c = np.array([1, 10, 0, 0], F)
    run(chained, c)
    np.testing.assert_array_equal(c, [2, 12, 0, 0])


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_of_a_tile_are_added(dtype: str, arch: str) -> None:
    @T.prim_func
    def added(B: T.Tensor((4, 64), dtype), C: T.Tensor((64,), dtype)):
        with T.Kernel(4, threads=32) as block:
            held = T.alloc_fragment((64,), dtype)
            T.copy(B[block, 0], held)
            T.atomic_add(C, held)

    _sums(added, dtype, 64, arch)
    builds(added, arch)


def test_old_values_of_halves_are_given_back() -> None:
    @T.prim_func
    def counted(C: T.Tensor((1,), "float16"), Old: T.Tensor((32,), "float16")):
        with T.Kernel(1, threads=32):
            own = T.get_thread_binding()
            Old[own] = T.atomic_add(C[0], 1.0, return_prev=True)

    c, old = np.zeros(1, np.float16), np.zeros(32, np.float16)
    run(counted, c, old)
    assert c[0] == 32 and sorted(old.tolist()) == list(range(32))
