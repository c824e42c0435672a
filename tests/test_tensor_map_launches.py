"""Tensor maps from source to launches: what the host makes of them, refuses, and passes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt
from tilewright.base.errors import LaunchError, TargetError
from tilewright.frontend import parse
from tilewright.ir.printer import print_program
from tilewright.isa.tensor_map import TensorMap
from tilewright.passes.analysis.tensor_maps import tensor_map_bases, written_tensor_maps
from tilewright.runtime import arrays
from tilewright.runtime.host import HostRun

T: Any = simt
n = T.dynamic("n")
COPY = "cp.async.bulk.tensor.2d"
LOAD = f"{COPY}.shared::cta.global.tile.mbarrier::complete_tx::bytes"
STORE = f"{COPY}.global.shared::cta.tile.bulk_group"


@T.function
def described(
    A: T.Tensor((n, 64), "float16"),
    Out: T.Tensor((32,), "int32"),
    first: T.int32,
    rows: T.int32,
    stride: T.int32,
):
    start = A.ptr_to([first, 0])
    moved: T.let[T.Ptr(T.float16)] = start + 0
    amap: T.let[T.Ptr(T.TensorMap)] = T.stack_alloca("tensormap", 1)
    T.cuda.tensormap_encode_tiled(
        amap, moved, 64, rows, stride, 64, rows // 2, 1, 1, descriptor_dtype="float16", rank=2
    )
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    T.ptx.prefetch.tensormap(T.address_of(amap))
    Out[T.cuda.lane_id()] = 1


@T.function
def through(A: T.Tensor((64, 64), "float16"), Out: T.Tensor((64, 64), "float16")):
    amap = T.stack_alloca("tensormap", 1)
    omap = T.stack_alloca("tensormap", 1)
    for made, tensor in ((amap, A), (omap, Out)):
        T.cuda.tensormap_encode_tiled(
            made, tensor.data, 64, 64, 128, 64, 64, 1, 1, descriptor_dtype="float16", rank=2
        )
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    tile = T.alloc_shared((64, 64), "float16", align=128)
    bar = T.alloc_shared((1,), "uint64")
    source = T.address_of(amap)
    if T.cuda.lane_id() == 0:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), 1)
        T.ptx.fence.mbarrier_init.release.cluster()
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.ptx.SINK, bar.ptr_to([0]), 8192)
        T.ptx[LOAD](tile.data, source, 0, 0, bar.ptr_to([0]))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        T.ptx[STORE](T.address_of(omap), 0, 0, tile.data)
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


@T.function
def swizzled(
    A: T.Tensor((n, 64), "float16", align=16),
    Out: T.Tensor((n, 64), "float16", align=16),
    Image: T.Tensor((4096,), "float16"),
    row: T.int32,
):
    """Copy a box of 64 rows by way of shared memory, and show how it lies there."""
    amap: T.let[T.Ptr(T.TensorMap)] = T.stack_alloca("tensormap", 1)
    omap: T.let[T.Ptr(T.TensorMap)] = T.stack_alloca("tensormap", 1)
    for made, tensor in ((amap, A), (omap, Out)):
        T.cuda.tensormap_encode_tiled(
            made,
            tensor.ptr_to([0, 0]),
            *(64, n, 128, 64, 64, 1, 1),
            descriptor_dtype="float16",
            rank=2,
            swizzle=3,
        )
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    tile = T.alloc_shared((4096,), "float16", align=1024)
    bar = T.alloc_shared((1,), "uint64")
    lane = T.cuda.lane_id()
    if lane == 0:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), 1)
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if lane == 0:
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.ptx.SINK, bar.ptr_to([0]), 8192)
        T.ptx[LOAD](tile.data, T.address_of(amap), 0, row, bar.ptr_to([0]))
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    for i in range(128):
        Image[i * 32 + lane] = tile[i * 32 + lane]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if lane == 0:
        T.ptx[STORE](T.address_of(omap), 0, row, tile.data)
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


def swizzled_image(rows: np.ndarray) -> np.ndarray:
    """Lay 64 rows of 128 bytes out as swizzle 3 does: 16-byte units change places by their row."""
    units = rows.reshape(64, 8, 8)
    return np.stack([units[row, np.arange(8) ^ row % 8] for row in range(64)]).ravel()


def expected_of_swizzled(a: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Give what `swizzled` leaves in `Out`, of zeros, and `Image`; beyond the tensor are zeros."""
    out, box = np.zeros_like(a), np.zeros((64, 64), np.float16)
    inside = a[row : row + 64]
    out[row : row + 64] = inside
    box[: len(inside)] = inside
    return out, swizzled_image(box)


def run(rows_of_a: int, *numbers: int, skipped: int = 0) -> TensorMap:
    """Run the host's part of `described`, and give the map that the kernel is given."""
    ex = tilewright.compile(described, target="sm_90a", backend="sim")
    storage = arrays.aligned_empty(128 * rows_of_a + skipped)[skipped:]
    sizes = {"A": 128 * rows_of_a, "Out": 128}
    names = ("first", "rows", "stride")
    values = {"A": storage.ctypes.data, "Out": 1 << 20, "n": rows_of_a}
    found: list[Any] = []
    host = HostRun(ex.ir, lambda kernel, given: found.append(given["amap"]), print, sizes)
    host({**values, **dict(zip(names, numbers, strict=True))})
    (made,) = found
    assert made.address == storage.ctypes.data + 128 * numbers[0]
    return made


def refused(rows_of_a: int, *numbers: int, skipped: int = 0) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        run(rows_of_a, *numbers, skipped=skipped)
    error = caught.value
    assert error.code == "tensor-map-shape" and "'amap'" in error.message
    assert error.location is not None
    assert "T.cuda.tensormap_encode_tiled(" in (error.location.excerpt() or "")
    return error


def test_the_host_computes_the_numbers_of_a_map() -> None:
    made = run(64, 16, 24, 256)
    assert (made.extents, made.strides, made.box) == ((64, 24), (256,), (64, 12))
    assert (made.format, made.steps, made.swizzle) == ("float16", (1, 1), 0)


def test_a_map_is_made_of_what_it_describes() -> None:
    assert refused(64, 0, 24, 120).message.endswith("because of the strides of the tensor")
    assert refused(64, 0, 0, 128).message.endswith("because of the box")
    wide = refused(64, 0, 600, 0)
    assert (wide.expected, wide.found) == ("extents from 1 to 256", "(64, 300)")
    assert wide.notes == ("axes are listed innermost first",)


def test_a_map_lies_where_maps_may() -> None:
    error = refused(64, 0, 24, 128, skipped=8)
    assert error.message.endswith("because of the address of the tensor")
    assert error.hint == "declare 'A' with align=16"


def test_a_tensor_lies_inside_its_argument() -> None:
    run(64, 0, 64, 128)
    run(64, 40, 24, 128)
    # 63 strides of 144 bytes and a row of 128 are 9200 bytes; A has 64 * 128 = 8192.
    error = refused(64, 0, 64, 144)
    assert error.expected == "a tensor inside the 8192 bytes of 'A'"
    assert error.found == "bytes 0 to 9199, of which byte 8192 is not in it"
    assert "byte 8192 is not" in (refused(64, 41, 24, 128).found or "")
    assert "bytes -128 to 2943, of which byte -128" in (refused(64, -1, 24, 128).found or "")


def test_what_is_written_through_maps() -> None:
    ex = tilewright.compile(through, target="sm_90a", backend="sim")
    (kernel,) = ex.ir.kernels
    assert tensor_map_bases(ex.ir.host) == {"amap": "A", "omap": "Out"}
    assert written_tensor_maps(kernel) == {"omap"}
    described_ir = tilewright.compile(described, target="sm_90a", backend="sim").ir
    assert tensor_map_bases(described_ir.host) == {"amap": "A"}
    assert written_tensor_maps(described_ir.kernels[0]) == frozenset()


def test_a_read_only_array_is_not_written_through_a_map() -> None:
    ex = tilewright.compile(through, target="sm_90a", backend="sim")
    a, out = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    out.flags.writeable = False
    with pytest.raises(LaunchError) as caught:
        ex(a, out)
    assert caught.value.code == "argument-read-only" and "'Out'" in caught.value.message


@pytest.mark.parametrize("kernel", [described, through], ids=["described", "through"])
def test_lowered_programs_read_back(kernel: Any) -> None:
    lowered = tilewright.compile(kernel, target="sm_90a", backend="sim").ir
    assert parse(print_program(lowered)) == lowered


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_kernels_are_compiled_with_their_maps(arch: str) -> None:
    ex = tilewright.compile(through, target=arch, backend="sim")
    assert "const __grid_constant__ tensor_map omap" in ex.source
    try:
        ptx = ex.ptx()
    except TargetError as error:
        pytest.skip(str(error))
    assert ".param .align 64 .b8 through_kernel_param_2[128]" in ptx
    # The map stays where the launch put it: no copy of it on the stack.
    assert ".local" not in ptx


@pytest.mark.parametrize("schedule", ["late", "eager", "random:3"])
@pytest.mark.parametrize("row", [0, 8, 100])
def test_a_box_goes_through_shared_memory(schedule: str, row: int) -> None:
    ex = tilewright.compile(swizzled, target="sm_90a", backend="sim", schedule=schedule)
    a = np.random.default_rng(row).standard_normal((140, 64)).astype(np.float16)
    out, image = np.zeros_like(a), np.zeros(4096, np.float16)
    ex(a, out, image, row)
    expected_out, expected_image = expected_of_swizzled(a, row)
    assert np.array_equal(out, expected_out) and np.array_equal(image, expected_image)


@T.function
def given(amap: T.TensorMap(), A: T.Tensor((64, 64), "float16"), Out: T.Tensor((64,), "float16")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    tile = T.alloc_shared((64,), "float16", align=128)
    bar = T.alloc_shared((1,), "uint64")
    T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), 1)
    T.ptx["fence.proxy.async.shared::cta"]()
    T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.ptx.SINK, bar.ptr_to([0]), 128)
    T.ptx[LOAD](tile.data, T.address_of(amap), 0, 5, bar.ptr_to([0]))
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    for i in range(64):
        Out[i] = tile[i]


def test_a_map_may_be_given_by_the_caller() -> None:
    ex = tilewright.compile(given, target="sm_90a", backend="sim")
    a = arrays.aligned_empty(8192).view(np.float16).reshape(64, 64)
    a[:] = np.arange(4096).reshape(64, 64)
    out = np.zeros(64, np.float16)
    made = tilewright.TensorMap(a.ctypes.data, "float16", (64, 64), (128,), (64, 1), (1, 1))
    ex(made, a, out)
    assert np.array_equal(out, a[5])
    with pytest.raises(LaunchError) as caught:
        ex(a, a, out)
    assert caught.value.code == "argument-kind"


def test_a_target_without_tensor_maps_is_refused() -> None:
    with pytest.raises(TargetError) as caught:
        tilewright.compile(through, target="sm_89", backend="sim")
    assert caught.value.code == "missing-instruction"
