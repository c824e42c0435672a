"""Shared memory that is used twice: buffers that are never in use together lie over one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt, tile
from tilewright.passes.tile.merge_shared import merge_shared

N = 128


def _staged() -> Any:
    """Make a kernel with two stages: a and b are in use, then c."""

    @tile.prim_func
    def staged(A: tile.Tensor((2, N), "float32"), B: tile.Tensor((2, N), "float32")):
        with tile.Kernel(1, threads=N):
            a = tile.alloc_shared((N,), "float32")
            b = tile.alloc_shared((N,), "float32")
            c = tile.alloc_shared((2 * N,), "float32")
            f = tile.alloc_fragment((N,), "float32")
            tile.copy(A[0, 0], a)
            tile.copy(A[1, 0], b)
            for i in tile.Parallel(N):
                f[i] = a[N - 1 - i] * b[i]
            for i in tile.Parallel(N):
                c[i] = f[i]
                c[N + i] = f[i] + 1
            for i, j in tile.Parallel(2, N):
                B[i, j] = c[i * N + N - 1 - j]

    return staged


def test_what_is_used_later_lies_over_what_was_used_before() -> None:
    text = str(merge_shared(_staged().program))
    assert text.count("over=") == 1
    assert "over=(a, b)" in text
    executable = tilewright.compile(_staged(), "sm_80")
    [resources] = executable.resources.values()
    assert resources.dynamic_shared_bytes == 2 * N * 4


@pytest.mark.parametrize("schedule", ["late", "random:1", "random:2"])
def test_their_uses_are_kept_apart_by_barriers(schedule: str) -> None:
    a, b = np.random.rand(2, N).astype(np.float32), np.zeros((2, N), np.float32)
    tilewright.compile(_staged(), "sm_80", schedule=schedule, check=True)(a, b)
    product = a[0, ::-1] * a[1]
    np.testing.assert_array_equal(b, np.stack([product, product + 1])[:, ::-1])


def test_buffers_of_one_loop_are_in_use_together() -> None:
    @tile.prim_func
    def both(A: tile.Tensor((2, N), "float32"), B: tile.Tensor((2, N), "float32")):
        with tile.Kernel(1, threads=N):
            a = tile.alloc_shared((N,), "float32")
            b = tile.alloc_shared((N,), "float32")
            for k in tile.serial(2):
                tile.copy(A[k, 0], a)
                tile.copy(a, b)
                tile.copy(b, B[k, 0])

    assert "over=" not in str(merge_shared(both.program))


TURNS = 5


def _turns(early: bool = False, whole: bool = True) -> Any:
    """Make a kernel whose turns use b after a; `early` reads b first, else a part stays unset."""
    count = N if whole else N // 2

    @tile.prim_func
    def turns(A: tile.Tensor((TURNS, N), "float32"), B: tile.Tensor((TURNS, N), "float32")):
        with tile.Kernel(1, threads=N):
            a = tile.alloc_shared((N,), "float32")
            b = tile.alloc_shared((N,), "float32")
            f = tile.alloc_fragment((N,), "float32")
            if not whole:
                tile.clear(b)
            for k in tile.serial(TURNS):
                if early and k > 0:
                    tile.copy(b, f)
                    tile.copy(f, B[k, 0])
                tile.copy(A[k, 0], a)
                for i in tile.Parallel(N):
                    f[i] = a[N - 1 - i] * 2
                for i in tile.Parallel(count):
                    b[i] = f[i]
                if not early:
                    for i in tile.Parallel(N):
                        B[k, i] = b[N - 1 - i] + 1

    return turns


def test_buffers_that_a_turn_uses_one_after_the_other_share_memory() -> None:
    assert "over=(a,)" in str(merge_shared(_turns().program))


@pytest.mark.parametrize("schedule", ["late", "random:1", "random:2"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_turns_are_kept_apart_by_barriers(arch: str, schedule: str) -> None:
    """Also the next turn's fill of a, from this turn's reads of b."""
    a = np.random.default_rng(0).random((TURNS, N)).astype(np.float32)
    b = np.zeros((TURNS, N), np.float32)
    tilewright.compile(_turns(), arch, schedule=schedule, check=True)(a, b)
    np.testing.assert_array_equal(b, a * 2 + 1)


@pytest.mark.parametrize(("early", "whole"), [(True, True), (False, False)])
def test_what_a_turn_leaves_for_the_next_one_keeps_its_memory(early: bool, whole: bool) -> None:
    kernel = _turns(early, whole)
    assert "over=" not in str(merge_shared(kernel.program))
    a = np.random.default_rng(1).random((TURNS, N)).astype(np.float32)
    b = np.zeros((TURNS, N), np.float32)
    tilewright.compile(kernel, "sm_80", check=True)(a, b)
    doubled = 2 * a[:, ::-1]
    if early:
        expected = np.concatenate([np.zeros((1, N), np.float32), doubled[:-1]])
    else:
        expected = np.where(np.arange(N) < N // 2, doubled, 0)[:, ::-1] + 1
    np.testing.assert_array_equal(b, expected.astype(np.float32))


# ---------------------------------------------------------------------------- as simt spells it


def test_a_program_says_what_a_buffer_lies_over() -> None:
    @simt.function
    def reuse(Out: simt.Tensor((32,), "int32")):
        simt.device_entry(launch=simt.cuda.LaunchConfig(grid=1, block=32))
        lane = simt.cuda.lane_id()
        a = simt.alloc_shared((64,), "int32")
        b = simt.alloc_shared((8,), "int32")
        c = simt.alloc_shared((96,), "int32", over=(a, b))
        d = simt.alloc_shared((32,), "int32", over=a)
        a[lane] = lane
        b[lane % 8] = 1
        simt.cuda.cta_sync()
        d[lane] = a[31 - lane] + 1
        simt.cuda.cta_sync()
        Out[lane] = d[lane]
        c[lane] = 0

    executable = tilewright.compile(reuse, "sm_80")
    [resources] = executable.resources.values()
    # a 0 … 255, b 256 … 287, c over both, 0 … 383, d after b and c, though it may lie over a.
    assert resources.dynamic_shared_bytes == 384 + 128
    out = np.zeros(32, np.int32)
    executable(out)
    np.testing.assert_array_equal(out, 32 - np.arange(32))
    assert "over=(a, b)" in str(reuse.program)


def test_only_shared_buffers_lie_over_others() -> None:
    with pytest.raises(tilewright.FrontendError, match="lies over other buffers") as caught:

        @simt.function
        def wrong(Out: simt.Tensor((32,), "int32")):
            simt.device_entry(launch=simt.cuda.LaunchConfig(grid=1, block=32))
            simt.alloc_shared((4,), "int32", over=Out)

    assert caught.value.code == "operand-type"
