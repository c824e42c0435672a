"""Schedules of pipelined loops that a program gives: `T.Pipelined(stage=, order=)`.

A schedule says when statements run, and never what they find.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import tile as T
from tilewright.base.errors import FrontendError
from tilewright.base.targets import target
from tilewright.passes.tile.pipeline_loops import pipeline_loops

TURNS, EXTENT = 6, 32


def _summed(stage: Any, order: Any, versions: int = 0, turns: int = TURNS) -> Any:
    @T.prim_func
    def summed(
        A: T.Tensor((EXTENT, TURNS * EXTENT), "float32"), C: T.Tensor((EXTENT, EXTENT), "float32")
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((EXTENT, EXTENT), "float32")
            b = T.alloc_shared((EXTENT, EXTENT), "float32")
            c = T.alloc_fragment((EXTENT, EXTENT), "float32")
            T.clear(c)
            for k in T.Pipelined(turns, num_stages=versions, stage=stage, order=order):
                T.copy(A[0, k * EXTENT], a)
                for i, j in T.Parallel(EXTENT, EXTENT):
                    b[i, j] = a[i, j] * 2
                for i, j in T.Parallel(EXTENT, EXTENT):
                    c[i, j] += b[i, j]
            T.copy(c, C)

    return summed


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(-8, 8, shape).astype(np.float32)


@pytest.mark.parametrize("schedule", ["late", "eager", "random:3"])
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_100a"])
@pytest.mark.parametrize(
    ("stage", "order", "versions"),
    [
        ([0, 0, 0], [0, 1, 2], 0),
        ([0, 1, 1], [0, 1, 2], 0),
        ([0, 1, 1], [2, 0, 1], 0),
        ([0, 2, 2], [0, 1, 2], 0),
        ([0, 3, 3], [2, 0, 1], 5),
    ],
)
def test_a_schedule_changes_no_result(
    stage: list[int], order: list[int], versions: int, arch: str, schedule: str
) -> None:
    a, c = _numbers(EXTENT, TURNS * EXTENT), np.zeros((EXTENT, EXTENT), np.float32)
    kernel = _summed(stage, order, versions)
    tilewright.compile(kernel, arch, schedule=schedule, check=True)(a, c)
    np.testing.assert_array_equal(c, 2 * a.reshape(EXTENT, TURNS, EXTENT).sum(1))


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_loop_may_have_fewer_turns_than_stages(turns: int) -> None:
    a, c = _numbers(EXTENT, TURNS * EXTENT), np.zeros((EXTENT, EXTENT), np.float32)
    tilewright.compile(_summed([0, 3, 3], [0, 1, 2], turns=turns), "sm_80", check=True)(a, c)
    expected = 2 * a.reshape(EXTENT, TURNS, EXTENT)[:, :turns].sum(1)
    np.testing.assert_array_equal(c, expected)


def _written(kernel: Any) -> tuple[str, str]:
    text = str(pipeline_loops(kernel.program, target("sm_80")))
    before, _, inside = text.partition("for k in range(")
    return before, inside


def test_statements_stand_by_rank_and_work_for_the_turn_of_their_stage() -> None:
    before, inside = _written(_summed([0, 2, 2], [2, 0, 1]))
    assert "a = T.alloc_shared((2, 32, 32)" in before  # read, two turns late, and then filled anew
    assert inside.startswith("8):")
    assert inside.index("k_before = k - 2") < inside.index("if k_before >= 0:")
    assert inside.index("a[k_before % 2, i, j]") < inside.index("if k < 6:")
    # The group of the turn before may still be under way, as this turn's begins after its use.
    wait, commit = inside.index('cp.async.wait_group"](T.uint32(1)'), inside.index("commit_group")
    assert wait < inside.index("a[k_before % 2") < inside.index("T.copy(") < commit


def test_a_copy_that_is_ranked_first_needs_one_version_more() -> None:
    before, inside = _written(_summed([0, 2, 2], [0, 1, 2]))
    assert "a = T.alloc_shared((3, 32, 32)" in before
    assert inside.index("T.copy(") < inside.index('cp.async.wait_group"](T.uint32(2)')


def test_num_stages_may_ask_for_more_versions() -> None:
    before, _ = _written(_summed([0, 1, 1], [0, 1, 2], versions=4))
    assert "a = T.alloc_shared((4, 32, 32)" in before


# ---------------------------------------------------------------------------- refused


def _refused(make: Any, *texts: str) -> None:
    with pytest.raises(FrontendError) as error:
        pipeline_loops(make().program, target("sm_80"))
    assert error.value.location is not None and error.value.location.file == __file__
    assert error.value.code in ("bad-call", "not-supported")
    assert all(text in str(error.value) for text in texts), str(error.value)


def test_fewer_versions_than_a_schedule_needs_are_refused() -> None:
    _refused(lambda: _summed([0, 3, 3], [0, 1, 2], versions=2), "4 versions of a", "num_stages=2")


@pytest.mark.parametrize(
    ("stage", "order", "name"),
    [
        ([1, 0, 0], [0, 1, 2], "by a"),  # used before it is copied
        ([0, 0, 0], [1, 0, 2], "by a"),
        ([0, 0, 0], [0, 2, 1], "by b"),
        ([0, 0, 1], [0, 1, 2], "by b"),  # written again by threads before it is used: one version
    ],
)
def test_a_schedule_that_changes_what_a_statement_finds_is_refused(
    stage: list[int], order: list[int], name: str
) -> None:
    _refused(lambda: _summed(stage, order), f"depends on {name}", "rank")


@pytest.mark.parametrize(
    ("stage", "order", "text"),
    [
        ([0, 1], [0, 1], "3 stages and ranks"),
        ([0, 1, 1], None, "order= where it has stage="),
        (None, [0, 1, 2], "stage= where it has order="),
        ([0, 1, 1], [0, 1, 1], "the same rank"),
        ([-1, 0, 0], [0, 1, 2], "from 0 on"),
    ],
)
def test_a_schedule_that_is_none_is_refused(stage: Any, order: Any, text: str) -> None:
    _refused(lambda: _summed(stage, order), text)


def test_what_orders_threads_by_itself_has_no_place_in_a_schedule() -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((4, 128), "float32"), C: T.Tensor((4, 128), "float32")):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((128,), "float32")
                for k in T.Pipelined(4, stage=[0, 0, 1], order=[0, 1, 2]):
                    T.copy(A[k, 0], a)
                    T.sync_threads()
                    T.copy(a, C[k, 0])

        return kernel

    _refused(make, "T.sync_threads()", "no place in a schedule")


def test_a_value_that_the_loop_changes_is_not_computed_in_other_turns() -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((8, 128), "float32"), C: T.Tensor((4, 128), "float32")):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((128,), "float32")
                count = T.alloc_var("int32")
                count = 0
                for k in T.Pipelined(4, stage=[0, 1, 1], order=[0, 1, 2]):
                    row = count * 2
                    T.copy(A[row, 0], a)
                    T.copy(a, C[k, 0])
                    count = count + 1

        return kernel

    _refused(make, "depends on count")


@pytest.mark.parametrize("name", ["sync", "group"])
def test_other_parts_of_schedules_are_refused(name: str) -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(C: T.Tensor((4, 128), "float32")):
            with T.Kernel(1, threads=128):
                for k in T.Pipelined(4, **{name: [[0]]}):
                    for i in T.Parallel(128):
                        C[k, i] = 0

        return kernel

    _refused(make, f"{name}= has no meaning here")
