"""Layouts of fragments: carried from products to loops, and refused where they do not meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tile_running import TARGETS, builds, integers, lowered, run

from tilewright import tile as T
from tilewright.base.errors import FrontendError
from tilewright.layout.fragment import Fragment, divided


def _attention(m: int, n: int, d: int, policy: Any, blocks: int = 2) -> Any:
    @T.prim_func
    def attention(
        Q: T.Tensor((m, d), "float16"),
        K: T.Tensor((blocks * n, d), "float16"),
        V: T.Tensor((blocks * n, d), "float16"),
        O: T.Tensor((m, d), "float32"),  # noqa: E741
    ):
        with T.Kernel(1, threads=128):
            q = T.alloc_shared((m, d), "float16")
            k = T.alloc_shared((n, d), "float16")
            v = T.alloc_shared((n, d), "float16")
            scores = T.alloc_fragment((m, n), "float32")
            weights = T.alloc_fragment((m, n), "float16")
            out = T.alloc_fragment((m, d), "float32")
            top = T.alloc_fragment((m,), "float32")
            before = T.alloc_fragment((m,), "float32")
            scale = T.alloc_fragment((m,), "float32")
            part = T.alloc_fragment((m,), "float32")
            total = T.alloc_fragment((m,), "float32")
            T.copy(Q, q)
            T.clear(out)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            for block in T.serial(blocks):
                T.copy(K[block * n, 0], k)
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True, policy=policy)
                T.copy(top, before)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(m):
                    scale[i] = T.exp2(before[i] - top[i])
                for i, j in T.Parallel(m, n):
                    scores[i, j] = T.exp2(scores[i, j] - top[i])
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(m):
                    total[i] = total[i] * scale[i] + part[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(m, d):
                    out[i, j] *= scale[i]
                T.copy(V[block * n, 0], v)
                T.gemm(weights, v, out, policy=policy)
            for i, j in T.Parallel(m, d):
                out[i, j] /= total[i]
            T.copy(out, O)

    return attention


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("policy", ["full_row", "square"])
def test_attention(policy: str, arch: str) -> None:
    m, n, d = 64, 64, 64
    generator = np.random.default_rng(3)
    q, k, v = (
        (generator.standard_normal(shape) / 2).astype(np.float16)
        for shape in ((m, d), (2 * n, d), (2 * n, d))
    )
    out = np.zeros((m, d), np.float32)
    run(_attention(m, n, d, policy), q, k, v, out, arch=arch)
    scores = q.astype(np.float64) @ k.astype(np.float64).T
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    wanted = weights / weights.sum(1, keepdims=True) @ v.astype(np.float64)
    # Weights are rounded to float16.
    assert np.abs(out - wanted).max() < 5e-4


def test_attention_has_no_shared_memory_between_lanes_of_a_warp() -> None:
    text = lowered(_attention(64, 64, 64, "full_row"))
    assert text.count("alloc_shared") == 3
    assert "shfl.sync.bfly" in text


def test_cubin_of_attention() -> None:
    builds(_attention(64, 64, 64, "full_row"), "sm_80", "sm_90a")


def _two_products(between: str) -> Any:
    @T.prim_func
    def kernel(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            d = T.alloc_fragment((64, 64), "float32")
            e = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.clear(d)
            T.gemm(a, b, c, policy=T.GemmWarpPolicy.FullRow)
            T.gemm(a, b, d, policy=T.GemmWarpPolicy.FullCol)
            if between == "copy":
                T.copy(d, e)
                for i, j in T.Parallel(64, 64):
                    c[i, j] += e[i, j]
            else:
                for i, j in T.Parallel(64, 64):
                    c[i, j] += d[i, j]
            T.copy(c, C)

    return kernel


def test_a_copy_brings_a_fragment_to_other_threads() -> None:
    a, b = (integers(seed, 64, 64, dtype=np.float16) for seed in (1, 2))
    c = np.zeros((64, 64), np.float32)
    run(_two_products("copy"), a, b, c)
    assert np.array_equal(c, 2 * (a.astype(np.float32) @ b.astype(np.float32)))


def test_a_loop_over_two_layouts_is_refused_and_both_are_drawn() -> None:
    with pytest.raises(FrontendError) as raised:
        lowered(_two_products("loop"))
    error = raised.value
    assert error.code == "layout-conflict"
    assert error.location is not None and "c[i, j] += d[i, j]" in error.location.source_line()
    assert any(note.startswith("c, (64, 64), used at line") for note in error.notes)
    assert any(note.startswith("d, (64, 64), used at line") for note in error.notes)
    # In rows by warps column 16 is still warp 0's, in columns by warps it is warp 1's.
    assert "from element [0, 16] on:\n       0:8" in str(error)
    assert "from element [0, 16] on:\n      32:0" in str(error)


def test_an_element_of_an_accumulator_is_no_scalar() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.clear(c)
            T.gemm(a, a, c)
            if c[0, 0] > 1.0:
                T.copy(c, C)

    with pytest.raises(FrontendError, match=r"outside of T\.Parallel") as raised:
        lowered(kernel)
    assert raised.value.code == "layout-conflict"


@pytest.mark.parametrize("shape", [(1,), (48,), (229,), (3, 127), (64, 48), (5, 7, 11), (129, 2)])
@pytest.mark.parametrize("threads", [1, 32, 96, 100, 128])
@pytest.mark.parametrize("width", [1, 4])
def test_divided_fragments_hold_every_element_once(
    shape: tuple[int, ...], threads: int, width: int
) -> None:
    found = divided(shape, threads, width)
    assert isinstance(found, Fragment) and found.threads <= threads
    held = np.zeros(shape, np.int64)
    for thread in range(found.threads):
        for register in range(found.registers):
            at = found.coordinates(thread, register)
            if all(index < extent for index, extent in zip(at, shape, strict=True)):
                held[at] += 1
    assert (held == 1).all()
