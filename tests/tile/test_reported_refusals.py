"""What cannot be done is refused at its line: mistakes that users of the dialect report and make.

Numbers are those of reports in the issue tracker of `tile-ai/tilelang`, where they get an answer of
another kind, or none. Each error is of a type and a code, names the line, and says what to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tile_running import TARGETS, integers, run

import tilewright
from tilewright import tile as T
from tilewright.base.errors import FrontendError, TargetError, TileContractError, TilewrightError

F = np.float32


def _refused(
    make: Callable[[], Any], line: str, code: str, kind: type[TilewrightError], arch: str = "sm_90a"
) -> TilewrightError:
    """Read and compile what `make` gives: the error is at a line with this text."""
    with pytest.raises(TilewrightError) as caught:
        tilewright.compile(make(), arch, backend="sim")
    error = caught.value
    assert isinstance(error, kind) and error.code == code, error
    assert error.location is not None
    assert error.location.file == inspect.getsourcefile(make)
    with open(error.location.file) as source:
        assert line in source.read().splitlines()[error.location.line - 1], error
    assert error.expected or error.hint, error
    return error


# ---------------------------------------------------------------------------- reported


@pytest.mark.parametrize("what", ["fill", "clear", "copy in", "copy out", "store"])
def test_2979_slices_that_leave_a_buffer(what: str) -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=32):
                held = T.alloc_shared((8,), "float32")
                if what == "fill":
                    T.fill(held[4:12], 1)  # here
                elif what == "clear":
                    T.clear(held[4:12])  # here
                elif what == "copy in":
                    T.copy(A[0:8], held[4:12])  # here
                elif what == "copy out":
                    T.copy(held[4:12], A[0:8])  # here
                else:
                    held[8] = 1.0  # here

        return kernel

    error = _refused(make, "# here", "bad-index", FrontendError)
    assert "7" in str(error.expected)


def test_1301_slices_with_a_step() -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((64, 64), "float32")):
            with T.Kernel(1, threads=32):
                held = T.alloc_shared((32, 64), "float32")
                T.copy(A[0:64:2, 0:64], held)  # here

        return kernel

    _refused(make, "# here", "bad-index", FrontendError)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 16, 64])
def test_3007_any_coalesced_width_gives_the_same(width: int) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((16, 96), "float32"), C: T.Tensor((16, 96), "float32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_shared((16, 96), "float32")
            T.copy(A, held, coalesced_width=width)
            for i, j in T.Parallel(16, 96, coalesced_width=width):
                C[i, j] = held[i, j] + 1

    a = integers(1, 16, 96)
    for arch in TARGETS:
        c = np.zeros_like(a)
        run(kernel, a, c, arch=arch)
        np.testing.assert_array_equal(c, a + 1)


def test_2393_an_element_of_a_divided_fragment_is_no_scalar() -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((64, 64), "float16"), C: T.Tensor((1,), "float32")):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((64, 64), "float16")
                c = T.alloc_fragment((64, 64), "float32")
                total = T.alloc_var("float32")
                T.copy(A, a)
                T.gemm(a, a, c, clear_accum=True)
                total = 0.0
                for i in range(64):
                    total = total + c[i, 0]  # here
                C[0] = total

        return kernel

    error = _refused(make, "# here", "layout-conflict", FrontendError)
    assert "T.Parallel" in str(error.expected)


def test_3040_parts_of_a_fragments_elements_are_not_written() -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((64,), "uint32")):
            with T.Kernel(1, threads=32):
                held = T.alloc_fragment((64,), "uint32")
                halves = T.view(held, (128,), "uint16")
                for i in T.Parallel(128):
                    halves[i] = i  # here
                T.copy(held, A)

        return kernel

    error = _refused(make, "# here", "not-supported", FrontendError)
    assert "allocate the fragment as uint16" in str(error.hint)


def test_3040_a_product_takes_no_view_of_a_fragment() -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((64, 16), "uint32"), C: T.Tensor((64, 64), "float32")):
            with T.Kernel(1, threads=128):
                held = T.alloc_fragment((64, 16), "uint32")
                b = T.alloc_shared((64, 32), "float16")
                c = T.alloc_fragment((64, 64), "float32")
                T.copy(A, held)
                T.clear(b)
                T.gemm(T.view(held, (64, 32), "float16"), b, c, transpose_B=True)  # here
                T.copy(c, C)

        return kernel

    error = _refused(make, "# here", "tile-operand", TileContractError)
    assert "T.copy(view, fragment)" in str(error.hint)


# ---------------------------------------------------------------------------- resources, targets


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_shared_memory_beyond_what_the_target_has(arch: str) -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((512, 512), "float32")):
            with T.Kernel(1, threads=128):
                held = T.alloc_shared((512, 512), "float32")
                T.copy(A, held)
                T.copy(held, A)

        return kernel

    with pytest.raises(TargetError) as caught:
        tilewright.compile(make(), arch, backend="sim")
    assert caught.value.code == "resource-limit"
    assert "1048576" in str(caught.value)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_tensor_memory_on_a_target_without_it(arch: str) -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((128, 64), "bfloat16"), C: T.Tensor((128, 128), "float32")):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((128, 64), "bfloat16")
                cells = T.alloc_tmem([128, 128], "float32")  # here
                held = T.alloc_fragment((128, 128), "float32")
                T.copy(A, a)
                T.gemm(a, a, cells, transpose_B=True, clear_accum=True)
                T.copy(cells, held)
                T.copy(held, C)

        return kernel

    error = _refused(make, "# here", "missing-instruction", TargetError, arch)
    assert "T.alloc_fragment" in str(error.hint)


def test_threads_of_a_block_beyond_what_there_are() -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=2048):  # here
                T.clear(A)

        return kernel

    with pytest.raises(TilewrightError) as caught:
        tilewright.compile(make(), "sm_90a", backend="sim")
    assert "1024" in str(caught.value)


# ---------------------------------------------------------------------------- typical mistakes
# Each body is one mistake, in a kernel that is right but for it.


def _in_kernel(body: Callable[..., None], threads: int = 128) -> Callable[[], Any]:
    """Make a kernel whose body does one thing with a tensor, a shared buffer and fragments."""
    statement = T.macro(body)

    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((64, 64), "float16")):
            with T.Kernel(1, threads=threads):
                a = T.alloc_shared((64, 32), "float16")
                c = T.alloc_fragment((64, 64), "float32")
                T.clear(a)
                T.clear(c)
                statement(A, a, c)

        return kernel

    return make


def _tiles_in_parallel(A, a, c):
    for _ in T.Parallel(4):
        T.gemm(a, a, c, transpose_B=True)  # here


def _loops_around_more(A, a, c):
    for i in T.Parallel(64):
        c[i, 0] = 1.0
        for j in T.Parallel(64):  # here
            c[i, j] = 2.0


def _own_array_by_point(A, a, c):
    own = T.alloc_local((64,), "float16")
    for i in T.Parallel(64):
        own[i] = A[i, 0]  # here


def _extents_of_a_copy(A, a, c):
    T.copy(A[0:64, 0:64], a)  # here


def _operands_of_a_product(A, a, c):
    T.gemm(a, a, c)  # here


def _element_type(A, a, c):
    T.alloc_shared((64,), "flot16")  # here


def _width(A, a, c):
    T.copy(A[0, 0], a, coalesced_width=0)  # here


def _bits_of_floats(A, a, c):
    rows = T.alloc_fragment((64,), "float32")
    T.reduce_bitor(c, rows, dim=1)  # here


def _warpgroup(A, a, c):
    with T.ws(1):  # here
        T.clear(a)


def _arrivals(A, a, c):
    T.alloc_barrier([1, 0])  # here


def _region(A, a, c):
    a[0:32, :] = A[0:32, 0:32]  # here


def _bulk_copy_to_registers(A, a, c):
    T.tma_copy(A, T.alloc_fragment((64, 64), "float16"), barrier=T.alloc_barrier(1))  # here


def _panel(A, a, c):
    T.use_swizzle(0)  # here


def _quotient(A, a, c):
    for k in T.Pipelined(64 / 32, num_stages=2):  # here
        T.copy(A[0, k * 32], a)


def _function_of_numpy(A, a, c):
    for i, j in T.Parallel(64, 64):
        c[i, j] = np.exp(c[i, j])  # here


@pytest.mark.parametrize(
    ("body", "code", "helps"),
    [
        (_tiles_in_parallel, "unsupported-statement", "T.serial"),
        (_loops_around_more, "unsupported-statement", "T.Parallel(m, n)"),
        (_own_array_by_point, "bad-index", "T.alloc_fragment"),
        (_extents_of_a_copy, "bad-view", "start of the tile alone"),
        (_operands_of_a_product, "bad-view", "transpose_A=False, transpose_B=True fits"),
        (_element_type, "unknown-name", "float16"),
        (_width, "bad-call", "1, 2, 4"),
        (_bits_of_floats, "operand-type", "T.view(buffer, dtype=…)"),
        (_warpgroup, "bad-call", "more threads="),
        (_arrivals, "bad-call", "from 1 to"),
        (_region, "type-mismatch", "T.copy(…)"),
        (_quotient, "bad-index", "T.ceildiv"),
        (_bulk_copy_to_registers, "operand-type", "T.copy(src, dst)"),
        (_panel, "bad-call", "1, 2, 3"),
        (_function_of_numpy, "trace-error", "T.exp"),
    ],
)
def test_a_mistake_is_told_at_its_line(body: Any, code: str, helps: str) -> None:
    error = _refused(_in_kernel(body), "# here", code, FrontendError)
    assert helps in f"{error.expected} {error.hint}"


@pytest.mark.parametrize("threads", [16, 48, 100])
def test_a_product_needs_whole_warps(threads: int) -> None:
    def body(A, a, c):
        T.gemm(a, a, c, transpose_B=True)  # here

    error = _refused(_in_kernel(body, threads), "# here", "tile-shape", TileContractError)
    assert "threads=32 or 64 or 128" in str(error.expected)


def test_a_product_of_blackwell_elsewhere() -> None:
    def body(A, a, c):
        done = T.alloc_barrier(1)
        T.tcgen05_gemm(a, a, c, transpose_B=True, mbar=done)  # here

    error = _refused(_in_kernel(body), "# here", "missing-instruction", TargetError)
    assert "T.gemm takes a fragment" in str(error.hint)


def test_a_type_in_an_annotation_is_unknown() -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((64,), "float17")):  # here
            with T.Kernel(1):
                T.clear(A)

        return kernel

    error = _refused(make, "# here", "unknown-name", FrontendError)
    assert "float16" in str(error.expected)


def test_a_function_without_a_kernel() -> None:
    def make() -> Any:
        @T.prim_func
        def kernel(A: T.Tensor((64,), "float16")):  # here
            T.clear(A)

        return kernel

    error = _refused(make, "# here", "no-entry", FrontendError)
    assert "with T.Kernel" in str(error.hint)
