"""What programs of the tile dialect may write, and how they are refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import tile as T
from tilewright.base.errors import CheckError, FrontendError, LaunchError

F = np.float32


def run(kernel: Any, *arguments: np.ndarray, target: str = "sm_90a") -> None:
    """Run a kernel under the checker, which is to find nothing."""
    tilewright.compile(kernel, target, check="strict")(*arguments)


def refused(error: pytest.ExceptionInfo[FrontendError], code: str, text: str) -> None:
    """Hold an error to its code, to a word of it, and to having a place in this file."""
    assert error.value.code == code
    assert error.value.location is not None and error.value.location.file == __file__
    assert re.search(text, str(error.value)), str(error.value)


# ---------------------------------------------------------------------------- types


def test_element_types_have_many_names() -> None:
    torch = pytest.importorskip("torch")
    names = (T.float16, "float16", "half", T.half, torch.float16, torch.half, np.float16)
    assert all(T.dtype(each) == "float16" for each in names)
    assert T.float == "float32" and T.long == "int64"
    assert {"float16": 1}[T.float16] == 1
    assert (T.dtype("bfloat16").bits, T.dtype("float32").itemsize) == (16, 4)
    assert T.bfloat16.as_torch() is torch.bfloat16


def test_tensors_are_described_by_calls_and_in_brackets() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((4, 32), T.float16),
        B: T.Tensor[[4, 32], T.half],  # pyright: ignore[reportGeneralTypeIssues]
        C: T.Tensor[(4, 32), np.float16],  # pyright: ignore[reportGeneralTypeIssues]
        D: T.StridedTensor((4, 32), (64, 1), T.float16),
    ):
        with T.Kernel(1, threads=32):
            T.copy(A, B)

    types = list(kernel.params.values())
    assert len({str(each) for each in types}) == 1
    assert str(types[0]) == "float16 tensor (4, 32) in global memory"


def test_a_strided_tensor_has_a_stride_for_each_axis() -> None:
    with pytest.raises(FrontendError, match="a stride for each axis"):
        T.StridedTensor((4, 32), (1,), "float32")


# ---------------------------------------------------------------------------- launches


def test_indices_of_one_to_three_axes() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, 3, 4), "int32"), B: T.Tensor((4,), "int32")):
        with T.Kernel(4, 3, 2, threads=(32, 1, 1)) as (x, y, z):
            if T.get_thread_binding() == 0:
                A[z, y, x] = x + 10 * y + 100 * z
        with T.Kernel(4, threads=32) as x:
            if T.get_thread_binding() == 0:
                B[x] = x
        with T.Kernel(4, threads=32) as (x,):
            if T.get_thread_binding() == 0:
                B[x] = B[x] + 1

    a, b = np.zeros((2, 3, 4), np.int32), np.zeros(4, np.int32)
    run(kernel, a, b)
    z, y, x = np.indices(a.shape)
    assert (a == x + 10 * y + 100 * z).all()
    assert b.tolist() == [1, 2, 3, 4]


def test_extents_and_the_default_number_of_threads() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "int32")):
        with T.Kernel(2, 3):
            A[0] = T.get_thread_extent(0)
            A[1] = T.get_block_extent(0)
            A[2] = T.get_block_extent(1)
            A[3] = len(T.get_thread_extents())

    text = str(kernel.program)
    assert "block=128" in text
    assert [line.strip() for line in text.splitlines() if "A[" in line] == [
        *("A[0] = 128", "A[1] = 2", "A[2] = 3", "A[3] = 3")
    ]


def test_a_kernel_has_at_most_three_axes() -> None:
    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((8,), "int32")):
            with T.Kernel(1, 1, 1, 1):
                A[0] = 1

    refused(error, "bad-call", "one to three extents")


def test_warpgroups_have_bodies_of_their_own() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((384,), "int32")):
        with T.Kernel(1, threads=384):
            tx = T.get_thread_binding()
            with T.ws(0):
                A[tx] = 1
            with T.ws(1, 2):
                A[tx] = 2

    a = np.zeros(384, np.int32)
    run(kernel, a)
    assert a.tolist() == [1] * 128 + [2] * 256


# ---------------------------------------------------------------------------- Python in kernels


def test_python_statements_of_a_kernel() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((6,), "int32")):
        with T.Kernel(1, threads=1):
            total = T.alloc_var("int32", init=0)
            count = T.alloc_var(T.int32, 3)
            for i in T.serial(1, 10, 2):  # 1 3 5 7 9
                if i == 5:
                    continue
                if i > 7:
                    break
                total += i
            A[0] = total
            while count > 0:
                count -= 1
                total += 1
            A[1] = total
            for step in [10, 20]:  # a Python list is unrolled
                A[2] += step
            A[-1] = 7  # from the end
            A[3] = 2.75  # a float loses its fraction
            a: T.int32 = 1
            b: T.int32 = a
            a = 5
            A[4] = b * 10 + a

    a = np.zeros(6, np.int32)
    run(kernel, a)
    assert a.tolist() == [11, 14, 30, 2, 15, 7]


def test_values_change_places() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=1):
            a = T.alloc_var(T.float32, A[0])
            b = T.alloc_var(T.float32, A[1])
            a, b = b, a
            A[0], A[1] = a, b
            A[2], A[3] = A[3], A[2]

    a = np.arange(4, dtype=F)
    run(kernel, a)
    assert a.tolist() == [1, 0, 3, 2]


def test_macros_take_values_and_references() -> None:
    @T.macro
    def add(x: T.Ref, step):
        x += step

    @T.macro
    def doubled(x):
        return x * 2

    @T.prim_func
    def kernel(A: T.Tensor((3,), "int32")):
        with T.Kernel(1, threads=1):
            v = T.alloc_var("int32", init=1)
            add(v, 4)
            A[0] = v
            add(A[1], doubled(v))

            @T.macro
            def inner(x: T.Ref):
                x = 9  # noqa: F841

            inner(A[2])

    a = np.zeros(3, np.int32)
    run(kernel, a)
    assert a.tolist() == [5, 10, 9]


def test_a_reference_is_one_to_a_place() -> None:
    @T.macro
    def set_to_one(x: T.Ref):
        x = 1  # noqa: F841

    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((3,), "int32")):
            with T.Kernel(1, threads=1):
                set_to_one(3)

    refused(error, "operand-type", "neither")


def test_macros_have_kernels() -> None:
    @T.macro
    def fill(A, value):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                A[i] = value

    @T.prim_func
    def kernel(A: T.Tensor((32,), "int32"), B: T.Tensor((32,), "int32")):
        fill(A, 3)
        fill(B, 4)

    assert len(kernel.program.kernels) == 2
    a, b = np.zeros(32, np.int32), np.zeros(32, np.int32)
    run(kernel, a, b)
    assert (a == 3).all() and (b == 4).all()


# ---------------------------------------------------------------------------- operands of tiles


def test_a_point_takes_its_extents_from_the_other_side() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, 3, 64, 32), "float32"), B: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((32, 32), "float32")
            T.copy(A[1, 2, 32, 0], tile)
            T.copy(tile, B)

    a, b = np.random.default_rng(0).random((2, 3, 64, 32), F), np.zeros((32, 32), F)
    run(kernel, a, b)
    assert (b == a[1, 2, 32:]).all()


def test_axes_of_extent_one_do_not_count() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, 64, 3, 32), "float32"), B: T.Tensor((64, 32), "float32")):
        with T.Kernel(2, threads=128) as half:
            tile = T.alloc_fragment((32, 32), "float32")
            T.copy(A[1, half * 32 : (half + 1) * 32, 2, :], tile)
            T.copy(tile, B[half * 32 : (half + 1) * 32, :])

    a, b = np.random.default_rng(0).random((2, 64, 3, 32), F), np.zeros((64, 32), F)
    run(kernel, a, b)
    assert (b == a[1, :, 2]).all()


def test_ranges_that_do_not_match() -> None:
    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((64, 64), "float32")):
            with T.Kernel(1):
                tile = T.alloc_shared((32, 32), "float32")
                T.copy(A[0:64, 0:32], tile)

    refused(error, "bad-view", "the same extents")


@pytest.mark.parametrize("what", ["fill", "clear", "copy"])
def test_slices_stay_inside_their_buffer(what: str) -> None:
    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                tile = T.alloc_shared((8,), "float32")
                if what == "fill":
                    T.fill(tile[4:12], 1.0)
                elif what == "clear":
                    T.clear(tile[4:12])
                else:
                    T.copy(A, tile[4:12])

    refused(error, "bad-index", "leaves its tensor(.|\n)*4 … 11")


def test_points_stay_inside_their_buffer() -> None:
    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                tile = T.alloc_shared((2, 12), "float32")
                T.copy(A, tile[1, 6])

    refused(error, "bad-index", "leaves axis 1(.|\n)*6 … 13")


def test_a_tile_may_reach_beyond_a_tensor() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((40,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_fragment((64,), "float32")
            T.copy(A[0:64], tile)
            T.copy(tile, B)
            T.copy(tile[-4:], B[0:4])

    b = np.ones(64, F)
    run(kernel, np.ones(40, F), b)
    assert b.tolist() == [0] * 4 + [1] * 36 + [0] * 24


def test_slices_have_no_step() -> None:
    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                tile = T.alloc_shared((4,), "float32")
                T.copy(A[0:8:2], tile)

    refused(error, "bad-index", "slice without a step")


def test_products_fit_together() -> None:
    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                a = T.alloc_shared((64, 32), "float16")
                b = T.alloc_shared((64, 32), "float16")
                c = T.alloc_fragment((64, 64), "float32")
                T.gemm(a, b, c)

    refused(error, "bad-view", r"\(64, 32\) times \(64, 32\)")


def test_reductions_leave_what_is_left() -> None:
    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                a = T.alloc_fragment((64, 32), "float32")
                b = T.alloc_fragment((32,), "float32")
                T.reduce_sum(a, b, dim=1)

    refused(error, "bad-view", r"\(64,\)")


# ---------------------------------------------------------------------------- threads


def test_barriers_order_what_threads_do() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            ready = T.alloc_barrier(64)
            held = T.alloc_shared((64,), "int32")
            if tx < 64:
                held[tx] = tx
                T.mbarrier_arrive(ready)
            else:
                T.mbarrier_wait_parity(ready, 0)
                A[tx] = held[127 - tx]

    a = np.zeros(128, np.int32)
    run(kernel, a)
    assert a[64:].tolist() == list(range(63, -1, -1))


def test_lanes_exchange_values() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((4, 32), "int32")):
        with T.Kernel(1, threads=32):
            lane = T.get_lane_idx()
            A[0, lane] = T.shfl_xor(lane, 1)
            A[1, lane] = T.shfl_down(lane, 4)
            A[2, lane] = T.warp_reduce_sum(lane)
            A[3, lane] = T.any_sync(lane == 31)

    a = np.zeros((4, 32), np.int32)
    run(kernel, a)
    lanes = np.arange(32)
    assert (a[0] == lanes ^ 1).all() and (a[1] == np.where(lanes < 28, lanes + 4, lanes)).all()
    assert (a[2] == lanes.sum()).all() and (a[3] == 1).all()


def test_atomics_on_elements() -> None:
    @T.prim_func
    def kernel(
        A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "int32"), H: T.Tensor((2,), "float16")
    ):
        with T.Kernel(2, threads=64) as block:
            tx = T.get_thread_binding() + 64 * block
            T.atomic_add(A[0], 1.0)
            T.atomic_max(A[1], T.cast(tx, "float32"))
            T.atomic_min(A[2], -T.cast(tx, "float32"))
            old = T.atomic_add(B[0], 1, return_prev=True)
            T.atomic_max(B[1], old)
            T.atomic_or(B[2], 1 << (tx % 4))
            T.atomic_add(H[0], 1.0)

    a, b, h = np.zeros(4, F), np.zeros(4, np.int32), np.zeros(2, np.float16)
    run(kernel, a, b, h)
    assert a.tolist() == [128, 127, -127, 0]
    assert b.tolist() == [128, 127, 15, 0]
    assert h[0] == 128


def test_atomics_without_order_race() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((1,), "int32")):
        with T.Kernel(2, threads=1):
            A[0] += 1

    with pytest.raises(CheckError):
        run(kernel, np.zeros(1, np.int32))


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            held = T.alloc_fragment((4,), "float32")
            T.copy(A, held)
            T.print(held, msg="held")
            if T.get_thread_binding() == 3:
                T.print(A[1] + 1.0, msg="value ")

    run(kernel, np.array([1, 2, 3, 4], F))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [f"held[{at}] = {at + 1:.6f}" for at in range(4)]
    assert lines[4] == "value block (0, 0, 0) thread (3, 0, 0): 3.000000"


def test_assertions_of_a_kernel() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=4):
            T.device_assert(A[T.get_thread_binding()] < 3, "too large")

    executable = tilewright.compile(kernel, "sm_90a", backend="sim")
    executable(np.arange(3).repeat(2)[:4].astype(np.int32))
    with pytest.raises(tilewright.SimulationError, match="too large"):
        executable(np.arange(4, dtype=np.int32))


# ---------------------------------------------------------------------------- persistent kernels


def test_each_tile_of_a_domain_is_taken_once() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((5, 7), "int32"), B: T.Tensor((5, 7), "int32")):
        with T.Kernel(4, threads=1) as worker:
            for i, j in T.Persistent([5, 7], 4, worker, group_size=2):
                A[i, j] += 1
            tiles = T.PersistentTileScheduler(5, 7, swizzle_size=3)
            tiles.init(worker)
            while tiles.valid():
                B[tiles.m_idx, tiles.n_idx] += 1
                tiles.next_tile()

    a, b = np.zeros((5, 7), np.int32), np.zeros((5, 7), np.int32)
    run(kernel, a, b)
    assert (a == 1).all() and (b == 1).all()


# ---------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["call_extern", "comm_reducer", "gemm_sp", "rng_init"])
def test_names_without_a_meaning_say_why(name: str) -> None:
    with pytest.raises(FrontendError) as error:

        @T.prim_func
        def kernel(A: T.Tensor((4,), "int32")):
            with T.Kernel(1):
                getattr(T, name)(A)

    refused(error, "not-supported", f"T.{name} is not supported: ")


def test_unknown_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="did you mean alloc_shared"):
        T.aloc_shared  # noqa: B018


def test_the_extents_of_slices_are_told_by_what_names_stand_for() -> None:
    """A fragment that a product divides cannot be stored row by row, as with unknown extents."""

    @T.prim_func
    def kernel(A: T.Tensor((64, 32), "float16"), C: T.Tensor((2, 64, 64), "float32")):
        with T.Kernel(2, threads=128) as block:
            a = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            first = block * 64 - block * 64
            last = first + 32 + 32
            T.copy(A[first:last, :], a)
            T.gemm(a, a, c, transpose_B=True, clear_accum=True)
            T.copy(c, C[block, first:last, :])

    a = np.random.default_rng(3).integers(-4, 5, (64, 32)).astype(np.float16)
    c = np.zeros((2, 64, 64), F)
    run(kernel, a, c)
    np.testing.assert_array_equal(c, np.stack([a.astype(F) @ a.astype(F).T] * 2))


# ---------------------------------------------------------------------------- options


def test_annotations_are_hints_that_are_known() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((64,), "float32")
            T.copy(A, a, annotations={T.WSID: "in"})
            for i in T.Parallel(64, prefer_async=True, annotations={T.WSID: "out"}):
                C[i] = a[63 - i]

    a, c = np.arange(64, dtype=F), np.zeros(64, F)
    run(kernel, a, c)
    np.testing.assert_array_equal(c, a[::-1])


def test_blocks_that_an_sm_is_to_hold_are_told_to_the_compiler() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            T.annotate_min_blocks_per_sm(2)
            T.fill(A, 1)

    assert "__launch_bounds__(32, 2)" in tilewright.compile(kernel, "sm_90a").source


def test_blocks_that_no_sm_holds_are_refused() -> None:
    with pytest.raises(LaunchError, match="'min_blocks_per_sm'") as error:

        @T.prim_func
        def kernel(A: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=32):
                T.annotate_min_blocks_per_sm(33)
                T.fill(A, 1)

    assert error.value.location is not None and error.value.location.file == __file__


def test_a_fragment_whose_scope_is_that_of_another_buffer_is_one() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_fragment((64,), "float32", scope="shared")
            own = T.alloc_fragment((1,), "float32", "local")
            T.copy(A, a)
            own[0] = a[63 - T.get_thread_binding()]
            B[T.get_thread_binding()] = own[0]

    assert "T.alloc_shared((64,)" in str(kernel.program)
    a, b = np.arange(64, dtype=F), np.zeros(32, F)
    run(kernel, a, b)
    np.testing.assert_array_equal(b, a[:31:-1])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: T.fill(a, 0, annotations={"coalesced_width": 2}), "'coalesced_width'"),
        (lambda a: T.fill(a, 0, annotations=["x"]), "annotations are a dictionary"),
        (lambda a: T.alloc_fragment((4,), "float32", "global"), "scope= is not 'global'"),
        (lambda a: T.alloc_local((4,), "float32", scope="global"), "scope= is not 'global'"),
        (lambda a: T.alloc_shared((4,), "float32", scope="global"), "scope= is not 'global'"),
        (lambda a: T.func_attr({"tir.is_scheduled": 1}), "'tir.is_scheduled'"),
    ],
)
def test_options_that_nothing_carries_out_are_refused(call: Any, text: str) -> None:
    with pytest.raises(FrontendError, match=text) as error:

        @T.prim_func
        def kernel(A: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=32):
                a = T.alloc_shared((64,), "float32")
                call(a)

    assert error.value.code in ("not-supported", "bad-call")
    assert error.value.location is not None and error.value.location.file == __file__
