"""Kernels that `device.py pack` takes along: the examples, and what a form alone cannot show."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import simt

T: Any = simt
EXAMPLES = Path(__file__).parent.parent / "examples"
n = T.dynamic("n")


@T.function
def dynamic_shared(Out: T.Tensor((256,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=256))
    wide = T.alloc_shared((25600,), "int32", layout="default", align=16)
    thread = T.cuda.thread_idx("x")
    for step in range(100):
        wide[thread + 256 * step] = thread * step
    T.cuda.cta_sync()
    total: T.int32 = 0
    for step in range(100):
        total += wide[(thread + 1) % 256 + 256 * step]
    Out[thread] = total


@T.function
def scalars(
    Out: T.Tensor((n,), "float64"),
    small: T.int8,
    half: T.float16,
    flag: T.bool,
    wide: T.int64,
    exact: T.float64,
    word: T.uint32,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(n + 31) // 32, block=32))
    i = T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")
    if i < n:
        total: T.float64 = exact + T.float64(small) + T.float64(half)
        total += T.float64(wide) + T.float64(word)
        if flag:
            total += T.float64(i)
        Out[i] = total


@T.function
def two_kernels(A: T.Tensor((64,), "int32"), Out: T.Tensor((64,), "int32")):
    with T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32)):
        i = T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")
        Out[i] = A[63 - i] + 1
    with T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64)):
        j = T.cuda.thread_idx("x")
        Out[j] = Out[j] * 2


@T.function
def launch_options(Out: T.Tensor((64,), "int32")):
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=2,
            block=32,
            cooperative=True,
            programmatic_stream_serialization=False,
            preferred_shared_memory_carveout=50,
        )
    )
    Out[T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")] = T.cuda.block_idx("x") + 7


@T.function
def clusters(Out: T.Tensor((256,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=8, block=32, cluster=4))
    i = T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")
    Out[i] = T.cuda.cluster_id("x") * 100 + T.cuda.cluster_cta_id("x")


@T.function
def counted(Counts: T.Tensor((8,), "uint32"), Values: T.Tensor((256,), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=128))
    i = T.cuda.block_idx("x") * 128 + T.cuda.thread_idx("x")
    T.ptx["red.global.add.u32"](Counts.ptr_to([Values[i] % 8]), T.uint32(1))


@T.function
def spin_lock(Lock: T.Tensor((1,), "uint32"), Count: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64))
    old: T.uint32 = 0
    done: T.int32 = 0
    while done == 0:
        T.ptx["atom.acquire.gpu.global.cas.b32"](old, Lock.ptr_to([0]), T.uint32(0), T.uint32(1))
        if old == 0:
            T.ptx["red.relaxed.gpu.global.add.u32"](Count.ptr_to([0]), T.uint32(1))
            T.ptx["atom.release.gpu.global.exch.b32"](old, Lock.ptr_to([0]), T.uint32(0))
            done = 1


@T.function
def barrier_phases(Out: T.Tensor((4, 64), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
    data = T.alloc_shared((64,), "int32", layout="default", align=16)
    thread = T.cuda.thread_idx("x")
    if thread == 0:
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(64))
    T.cuda.cta_sync()
    for phase in range(4):
        data[thread] = thread * 10 + phase
        T.ptx["mbarrier.arrive.shared::cta.b64"](bar.ptr_to([0]))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), phase % 2)
        Out[phase, thread] = data[63 - thread]
        T.cuda.cta_sync()


@T.function
def named_barriers(Out: T.Tensor((64,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    data = T.alloc_shared((32,), "int32", layout="default", align=16)
    thread = T.cuda.thread_idx("x")
    if thread < 32:
        data[thread] = thread * 3
        T.ptx["bar.arrive"](T.uint32(1), T.uint32(64))
        Out[thread] = -1
    else:
        T.ptx["bar.sync"](T.uint32(1), T.uint32(64))
        Out[thread] = data[63 - thread]


@T.function
def collectives(A: T.Tensor((64,), "float32"), Out: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    scratch = T.alloc_shared((2,), "float32", layout="default", align=16)
    thread = T.cuda.thread_idx("x")
    total = T.cuda.cta_sum(A[thread], 2, scratch.ptr_to([0]))
    high = T.cuda.warp_max(A[thread])
    Out[thread] = total * 100 + high


def boxes(kind: str, columns: int, rows: int, step: int, swizzle: int, fill: int) -> Any:
    """Make a kernel that copies a box to shared memory, shows how it lies there, copies it on."""
    size = np.dtype(kind).itemsize

    @T.function
    def boxes(
        A: T.Tensor((40, 72), kind, align=16),
        Out: T.Tensor((40, 72), kind, align=16),
        Image: T.Tensor((2048,), "uint32"),
        x: T.int32,
        y: T.int32,
    ):
        amap = T.stack_alloca("tensormap", 1)
        omap = T.stack_alloca("tensormap", 1)
        for made, tensor in ((amap, A), (omap, Out)):
            T.cuda.tensormap_encode_tiled(
                made,
                tensor.data,
                *(72, 40, 72 * size, columns, rows, 1, step),
                descriptor_dtype=kind,
                rank=2,
                swizzle=swizzle,
                oob_fill=fill,
            )
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        tile = T.alloc_shared((2048,), "uint32", layout="default", align=1024)
        bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
        lane = T.cuda.lane_id()
        for i in range(64):
            tile[i * 32 + lane] = i
        if lane == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if lane == 0:
            count = columns * -(-rows // step) * size
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.ptx.SINK, bar.ptr_to([0]), count)
            T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"](
                tile.data, T.address_of(amap), x, y, bar.ptr_to([0])
            )
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for i in range(64):
            Image[i * 32 + lane] = tile[i * 32 + lane]
        T.cuda.cta_sync()
        if lane == 0:
            T.ptx["cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"](
                T.address_of(omap), T.max(x, 0), T.max(y, 0), tile.data
            )
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)

    return boxes


def _boxes(integers: Any, zeros: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield copies of boxes: of every swizzle, also narrow ones, and beyond the tensor's edges."""
    for kind, wide in (("float16", 64), ("float32", 32)):
        for swizzle, step, fill in ((0, 1, 0), (1, 1, 1), (2, 2, 0), (3, 1, 0), (3, 3, 1)):
            columns = {0: wide, 1: wide // 4, 2: wide // 2, 3: wide}[swizzle]
            for narrow, x, y in ((1, 0, 0), (2, -8, -3), (1, 40, 30), (2, 64, 3)):
                made = boxes(kind, columns // narrow, 40, step, swizzle, fill)
                a, out = (each(40, 72, dtype=np.dtype(kind)) for each in (integers, zeros))
                arguments = (a, out, zeros(2048, dtype=np.uint32), x, y)
                text = f"boxes of {kind}, swizzle {swizzle}, step {step}, fill {fill}"
                yield f"{text}, {columns // narrow} columns at {x}, {y}", made, arguments


def kernels() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield names, kernel functions and arguments; inputs are integers, but those of products.

    These are taken once more, and the pipelined ones only, with numbers at random.
    """
    random = np.random.default_rng(5)

    def integers(*shape: int, dtype: Any = np.float32) -> Any:
        return random.integers(-8, 9, shape).astype(dtype)

    def zeros(*shape: int, dtype: Any = np.float32) -> Any:
        return np.zeros(shape, dtype)

    example = {name: runpy.run_path(str(EXAMPLES / f"{name}.py")) for name in _EXAMPLES}
    m, columns, k = (example["warp_product"][each] for each in "MNK")
    product = (
        integers(m, k, dtype=np.float16),
        integers(columns, k, dtype=np.float16),
        zeros(m, columns),
    )
    yield "warp_product", example["warp_product"]["warp_product"], product
    vectors = (integers(1000), integers(1000), zeros(1000))
    yield from _products(example, random)
    yield "vector_add", example["vector_add"]["vector_add"], vectors
    yield "mbarrier_copy", example["mbarrier_copy"]["reverse"], (integers(256), zeros(256))
    yield "dynamic_shared", dynamic_shared, (zeros(256, dtype=np.int32),)
    numbers = (-5, 1.5, True, 2**40 + 1, -3.25, 2**32 - 1)
    yield "scalars", scalars, (zeros(70, dtype=np.float64), *numbers)
    ints = integers(64, dtype=np.int32)
    yield "two_kernels", two_kernels, (ints, zeros(64, dtype=np.int32))
    yield "launch_options", launch_options, (zeros(64, dtype=np.int32),)
    yield "clusters", clusters, (zeros(256, dtype=np.int32),)
    values = random.integers(0, 100, 256).astype(np.uint32)
    yield "counted", counted, (zeros(8, dtype=np.uint32), values)
    lock = (zeros(1, dtype=np.uint32), zeros(1, dtype=np.int32))
    yield "spin_lock", spin_lock, lock
    yield "barrier_phases", barrier_phases, (zeros(4, 64, dtype=np.int32),)
    yield "named_barriers", named_barriers, (zeros(64, dtype=np.int32),)
    yield "collectives", collectives, (integers(64), zeros(64))
    yield from _boxes(integers, zeros)


_PIPELINES = ("ampere_pipeline", "hopper_pipeline", "blackwell_pipeline")
_EXAMPLES = ("warp_product", "vector_add", "mbarrier_copy", *_PIPELINES)
_SIZE = 256


def _products(example: Any, random: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield products of numbers that round: of ordinary ones, and of very different exponents."""

    def ordinary(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float16)

    def spread(*shape: int) -> Any:
        numbers = random.standard_normal(shape) * 2.0 ** random.integers(-14, 7, shape)
        return numbers.astype(np.float16)

    m, n, k = (example["warp_product"][each] for each in "MNK")
    for numbers in (ordinary, spread):
        text = f"of {numbers.__name__} numbers"
        given = (numbers(m, k), numbers(n, k), np.zeros((m, n), np.float32))
        yield f"warp_product {text}", example["warp_product"]["warp_product"], given
        for name in _PIPELINES:
            made = example[name]["pipelined_product"](_SIZE, _SIZE, _SIZE)
            square = (_SIZE, _SIZE)
            given = (numbers(*square), numbers(*square), np.zeros(square, np.float32))
            yield f"{name} {text}", made, given
