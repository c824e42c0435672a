"""Layouts that a program gives by functions of indices: of buffers, fragments and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tile_running import TARGETS, builds, integers, lowered, run

import tilewright
from tilewright import tile as T
from tilewright.base.errors import FrontendError
from tilewright.base.targets import target
from tilewright.layout import SwizzleMode, mma_shared_layout
from tilewright.layout.image import image
from tilewright.layout.recognise import recognised, recognised_fragment
from tilewright.passes.pipeline import stages

F = np.float32

MAPS: dict[str, Callable[[Any, Any], Any]] = {
    "padded rows": lambda i, j: i * 35 + j,
    "columns": lambda i, j: j * 64 + i,
    "blocks": lambda i, j: (i // 8) * 256 + (j // 8) * 64 + (i % 8) * 8 + j % 8,
    "swizzled": lambda i, j: i * 32 + ((j // 8) ^ (i // 2 % 4)) * 8 + j % 8,
    "words swizzled": lambda i, j: i * 32 + (j ^ (i % 8)),
    "places of two axes": lambda i, j: (j, i),
}


def _addresses(function: Any) -> np.ndarray:
    """Number the places by hand: the last axis of places counts one by one."""
    i, j = np.meshgrid(np.arange(64), np.arange(32), indexing="ij")
    found = function(i, j)
    return found[0] * 64 + found[1] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", MAPS)
def test_a_map_is_recognised_element_by_element(name: str) -> None:
    addresses = _addresses(MAPS[name])
    found = recognised(addresses)
    assert found is not None
    assert np.array_equal(image(found, (64, 32))["m"], addresses)


def test_the_swizzle_of_the_tensor_core_is_one() -> None:
    layout = mma_shared_layout("float16", SwizzleMode.SWIZZLE_128B_ATOM, (64, 64))
    addresses = image(layout, (64, 64))["m"]
    found = recognised(addresses)
    assert found is not None and np.array_equal(image(found, (64, 64))["m"], addresses)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("arch", TARGETS)
def test_a_buffer_lies_as_the_program_says(name: str, arch: str) -> None:
    """What is copied in by rows and out by columns is right, wherever it lies."""

    @T.prim_func
    def kernel(A: T.Tensor((64, 32), "float32"), C: T.Tensor((32, 64), "float32")):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((64, 32), "float32")
            T.annotate_layout({a: T.Layout((64, 32), MAPS[name])})
            T.copy(A, a)
            for i, j in T.Parallel(32, 64):
                C[i, j] = a[j, i]

    a, c = integers(1, 64, 32), np.zeros((32, 64), F)
    run(kernel, a, c, arch=arch)
    np.testing.assert_array_equal(c, a.T)
    builds(kernel, arch)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("arch", TARGETS)
def test_products_read_operands_where_the_program_lays_them(name: str, arch: str) -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((64, 32), "float16"),
        B: T.Tensor((32, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.annotate_layout({a: T.Layout((64, 32), MAPS[name])})
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    a, b = integers(2, 64, 32, dtype=np.float16), integers(3, 32, 64, dtype=np.float16)
    c = np.zeros((64, 64), F)
    run(kernel, a, b, c, arch=arch)
    np.testing.assert_array_equal(c, a.astype(F) @ b.astype(F))


@pytest.mark.parametrize("pitch", [32, 35, 36])
@pytest.mark.parametrize("stages", [0, 3])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_copies_go_where_the_program_lays_a_buffer(
    pitch: int, stages: int, asynchronous: bool
) -> None:
    """Runs of an asynchronous copy are as long as the layout leaves them aligned."""

    @T.prim_func
    def kernel(A: T.Tensor((256, 32), "float32"), C: T.Tensor((256, 32), "float32")):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((64, 32), "float32")
            T.annotate_layout({a: T.Layout((64, 32), lambda i, j: i * pitch + j)})
            for k in T.Pipelined(4, num_stages=stages):
                if asynchronous:
                    T.async_copy(A[k * 64, 0], a)
                    T.ptx_wait_group(0)
                else:
                    T.copy(A[k * 64, 0], a)
                T.copy(a, C[k * 64, 0])

    for arch in ("sm_80", "sm_90a"):
        a, c = integers(6, 256, 32), np.zeros((256, 32), F)
        run(kernel, a, c, arch=arch)
        np.testing.assert_array_equal(c, a)


def test_an_asynchronous_copy_is_one_of_the_threads_that_come_to_it() -> None:
    """Of more threads than runs the first of each share copies, numbered from the warpgroup's."""

    @T.prim_func
    def kernel(A: T.Tensor((32, 4), "float32"), C: T.Tensor((32, 4), "float32")):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((32, 4), "float32")
            with T.ws(1):
                T.async_copy(A, a)
                T.ptx_wait_group(0)
                T.sync_threads(3, 128)
                T.copy(a, C)

    a, c = integers(7, 32, 4), np.zeros((32, 4), F)
    run(kernel, a, c, arch="sm_80")
    np.testing.assert_array_equal(c, a)


def test_padding_takes_memory() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((64, 32), "float32")
            T.annotate_layout({a: T.Layout((64, 32), lambda i, j: i * 35 + j)})
            T.copy(A, a)
            T.copy(a, A)

    program = stages(kernel.program, target("sm_80"))["lower_division"]
    assert program.kernels[0].shared_bytes >= (63 * 35 + 32) * 4


# ---------------------------------------------------------------------------- who holds what


def test_a_fragment_is_held_by_the_threads_that_the_program_names() -> None:
    """Thread `i % 32` has rows i and i + 32; a loop over the fragment is divided alike."""

    @T.prim_func
    def kernel(A: T.Tensor((64, 4), "float32"), C: T.Tensor((64, 4), "int32")):
        with T.Kernel(1, threads=32):
            held = T.alloc_fragment((64, 4), "float32")
            rows = T.Fragment((64, 4), forward_fn=lambda i, j: (i % 32, i // 32 * 4 + j))
            T.annotate_layout({held: rows})
            T.copy(A, held)
            for i, j in T.Parallel(64, 4):
                C[i, j] = T.cast(held[i, j], "int32") * 100 + T.get_thread_binding()

    a, c = integers(4, 64, 4), np.zeros((64, 4), np.int32)
    run(kernel, a, c)
    owner = np.arange(64).reshape(-1, 1) % 32
    np.testing.assert_array_equal(c, a.astype(np.int32) * 100 + owner)


def test_replicas_hold_the_same() -> None:
    fragment = T.Fragment((16,), forward_thread_fn=lambda i, copy: i + 16 * copy, replicate=2)
    found = recognised_fragment(*fragment.image)
    assert found is not None and found.replicas == 2
    assert {int(each) for each in found.owners[0][:, 5]} == {5, 21}


def test_a_loop_is_divided_as_the_program_says() -> None:
    """By columns: neighbouring threads do neighbouring rows."""

    @T.prim_func
    def kernel(C: T.Tensor((32, 8), "int32")):
        with T.Kernel(1, threads=32):
            columns = T.Fragment((32, 8), forward_fn=lambda i, j: (i, j))
            for i, j in T.Parallel(32, 8, loop_layout=columns):
                C[i, j] = T.get_thread_binding()

    c = np.zeros((32, 8), np.int32)
    run(kernel, c)
    np.testing.assert_array_equal(c, np.repeat(np.arange(32), 8).reshape(32, 8))


def test_a_copy_is_divided_as_the_program_says() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((32, 8), "float32"), C: T.Tensor((32, 8), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((32, 8), "float32")
            T.copy(A, a, loop_layout=T.Fragment((32, 8), forward_fn=lambda i, j: (i, j)))
            T.copy(a, C)

    a, c = integers(5, 32, 8), np.zeros((32, 8), F)
    run(kernel, a, c)
    np.testing.assert_array_equal(c, a)
    text = lowered(kernel, "sm_80")
    assert 'A.view("float32x4")[T.cuda.linear_thread_id(), j_turn_part]' in text


# ---------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda i, j: i + j, "an address of its own"),
        (lambda i, j: i * 32 + j - 1, "an address of its own"),
        (lambda i, j: (i * 32 + j) * 5 % 2048, "no name here"),
    ],
)
def test_maps_that_are_no_layouts_are_refused_at_their_place(function: Any, text: str) -> None:
    with pytest.raises(FrontendError, match=text) as error:

        @T.prim_func
        def kernel(A: T.Tensor((64, 32), "float32")):
            with T.Kernel(1, threads=64):
                a = T.alloc_shared((64, 32), "float32")
                T.annotate_layout({a: T.Layout((64, 32), function)})
                T.copy(A, a)

    assert error.value.code == "bad-layout"
    assert "T.annotate_layout({a: T.Layout((64, 32), function)})" in str(error.value)


def test_fragments_have_threads_and_buffers_have_addresses() -> None:
    with pytest.raises(FrontendError, match="have addresses, not threads"):

        @T.prim_func
        def kernel(A: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                a = T.alloc_shared((32,), "float32")
                T.annotate_layout({a: T.Fragment((32,), forward_fn=lambda i: (i, 0))})


def test_more_threads_than_the_kernel_has_hold_nothing() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            held = T.alloc_fragment((64,), "float32")
            T.annotate_layout({held: T.Fragment((64,), forward_fn=lambda i: (i, 0))})
            T.copy(A, held)
            T.copy(held, A)

    with pytest.raises(FrontendError) as error:
        tilewright.compile(kernel, "sm_80")
    assert error.value.code == "layout-conflict" and "64 threads" in str(error.value)


def test_the_layout_of_a_loop_has_its_extents() -> None:
    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(64, loop_layout=T.Fragment((32,), forward_fn=lambda i: (i, 0))):
                    A[i] = 0

    assert error.value.code == "bad-layout" and "(64,)" in str(error.value)
