"""Pipelined loops: copies are begun early where dependences allow it, and only there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import tile as T
from tilewright.base.targets import target
from tilewright.passes.tile.notes import Note
from tilewright.passes.tile.pipeline_loops import pipeline_loops

TURNS, EXTENT = 7, 64


def _summed(stages: int, first: int = 0) -> Any:
    @T.prim_func
    def summed(
        A: T.Tensor((EXTENT, TURNS * EXTENT), "float32"), C: T.Tensor((EXTENT, EXTENT), "float32")
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((EXTENT, EXTENT), "float32")
            c = T.alloc_fragment((EXTENT, EXTENT), "float32")
            T.clear(c)
            for k in T.Pipelined(first, TURNS, num_stages=stages):
                T.copy(A[0, k * EXTENT], a)
                for i, j in T.Parallel(EXTENT, EXTENT):
                    c[i, j] += a[i, j]
            T.copy(c, C)

    return summed


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(-8, 8, shape).astype(np.float32)


def _notes(kernel: Any, name: str = "sm_90a") -> list[str]:
    notes: list[Note] = []
    pipeline_loops(kernel.program, target(name), notes)
    return [each.reason for each in notes]


@pytest.mark.parametrize("schedule", ["late", "eager", "random:3"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("stages", [0, 1, 2, 3, 4, 9])
def test_any_number_of_stages_gives_the_same(stages: int, arch: str, schedule: str) -> None:
    a, c = _numbers(EXTENT, TURNS * EXTENT), np.zeros((EXTENT, EXTENT), np.float32)
    tilewright.compile(_summed(stages), arch, schedule=schedule, check=True)(a, c)
    np.testing.assert_array_equal(c, a.reshape(EXTENT, TURNS, EXTENT).sum(1))


def test_a_loop_may_begin_anywhere() -> None:
    a, c = _numbers(EXTENT, TURNS * EXTENT), np.zeros((EXTENT, EXTENT), np.float32)
    tilewright.compile(_summed(3, first=2), check=True)(a, c)
    np.testing.assert_array_equal(c, a.reshape(EXTENT, TURNS, EXTENT)[:, 2:].sum(1))


def test_copies_are_begun_as_many_turns_early_as_there_are_other_versions() -> None:
    text = str(pipeline_loops(_summed(3).program, target("sm_80")))
    before, _, inside = text.partition("for k in range(7):")
    assert "a = T.alloc_shared((3, 64, 64)" in before
    assert before.count("T.copy(") == before.count("cp.async.commit_group") == 2
    assert inside.index("cp.async.wait_group") < inside.index("if k_ahead < 7:")
    assert "a[k_version, i, j]" in inside


def test_a_target_without_asynchronous_copies_has_a_plain_loop() -> None:
    assert _notes(_summed(3), "sm_75") == ["the target has no asynchronous copies"]


# ---------------------------------------------------------------------------- dependences
# The order of the statements of a turn is that of the program, whatever is asked for: each of
# these gave other values where copies were begun early regardless.


def _run(kernel: Any, *arguments: np.ndarray) -> None:
    for schedule in ("late", "eager", "random:1"):
        tilewright.compile(kernel, "sm_90a", schedule=schedule, check=True)(*arguments)


def test_a_buffer_that_is_read_before_it_is_overwritten_keeps_the_turns_apart() -> None:
    @T.prim_func
    def delayed(A: T.Tensor((4, 128), "float32"), C: T.Tensor((4, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128,), "float32")
            T.fill(a, -1)
            for k in T.Pipelined(4, num_stages=2):
                for i in T.Parallel(128):
                    C[k, i] = a[i]
                T.copy(A[k, 0], a)

    assert _notes(delayed) == ["a is used outside the loop too"]
    a, c = _numbers(4, 128), np.zeros((4, 128), np.float32)
    _run(delayed, a, c)
    np.testing.assert_array_equal(c, np.concatenate([np.full((1, 128), -1), a[:-1]]))


def test_a_buffer_that_a_turn_reads_first_is_not_copied_early() -> None:
    @T.prim_func
    def carried(A: T.Tensor((4, 128), "float32"), C: T.Tensor((4, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128,), "float32")
            for k in T.Pipelined(4, num_stages=2):
                if k > 0:
                    for i in T.Parallel(128):
                        C[k, i] = a[i]
                T.copy(A[k, 0], a)

    assert _notes(carried) == ["a is used in the turn before it is copied"]
    a, c = _numbers(4, 128), np.zeros((4, 128), np.float32)
    _run(carried, a, c)
    np.testing.assert_array_equal(c[1:], a[:-1])


def test_what_the_loop_writes_is_not_read_early() -> None:
    @T.prim_func
    def doubled(A: T.Tensor((5, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128,), "float32")
            for k in T.Pipelined(4, num_stages=3):
                T.copy(A[k, 0], a)
                for i in T.Parallel(128):
                    A[k + 1, i] = 2 * a[i]

    assert _notes(doubled) == ["the loop writes A, which it copies from"]
    a = _numbers(5, 128)
    expected = np.stack([a[0] * 2**k for k in range(5)])
    _run(doubled, a)
    np.testing.assert_array_equal(a, expected)


def test_where_a_copy_reads_must_be_known_in_time() -> None:
    @T.prim_func
    def chased(A: T.Tensor((8, 128), "float32"), C: T.Tensor((4, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128,), "float32")
            row = T.alloc_var("int32")
            row = 0
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[row, 0], a)
                T.copy(a, C[k, 0])
                row = row + 2

    assert _notes(chased) == ["where it reads depends on row, which the turn computes"]
    a, c = _numbers(8, 128), np.zeros((4, 128), np.float32)
    _run(chased, a, c)
    np.testing.assert_array_equal(c, a[::2])


def test_an_index_that_memory_holds_may_be_read_early() -> None:
    @T.prim_func
    def gathered(
        A: T.Tensor((8, 128), "float32"),
        Row: T.Tensor((4,), "int32"),
        C: T.Tensor((4, 128), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128,), "float32")
            for k in T.Pipelined(4, num_stages=2):
                row = Row[k]
                T.copy(A[row, 0], a)
                T.copy(a, C[k, 0])

    assert _notes(gathered) == []
    a, rows, c = _numbers(8, 128), np.array([3, 7, 0, 5], np.int32), np.zeros((4, 128), np.float32)
    _run(gathered, a, rows, c)
    np.testing.assert_array_equal(c, a[rows])


def test_a_copy_of_a_part_of_a_buffer_stays_where_it_is() -> None:
    @T.prim_func
    def halves(A: T.Tensor((4, 64), "float32"), C: T.Tensor((4, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128,), "float32")
            T.clear(a)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k, 0:64], a[0:64])
                T.copy(a, C[k, 0])

    assert _notes(halves) == ["it writes a part of a only"]
    a, c = _numbers(4, 64), np.zeros((4, 128), np.float32)
    _run(halves, a, c)
    np.testing.assert_array_equal(c, np.pad(a, ((0, 0), (0, 64))))


def test_a_turn_may_change_its_own_version_in_place() -> None:
    @T.prim_func
    def squared(A: T.Tensor((6, 128), "float32"), C: T.Tensor((6, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128,), "float32")
            for k in T.Pipelined(6, num_stages=3):
                T.copy(A[k, 0], a)
                for i in T.Parallel(128):
                    a[i] = a[i] * a[i]
                for i in T.Parallel(128):
                    C[k, i] = a[127 - i]

    a, c = _numbers(6, 128), np.zeros((6, 128), np.float32)
    _run(squared, a, c)
    np.testing.assert_array_equal(c, (a * a)[:, ::-1])
