"""Tensor Memory on the simulator: what is asynchronous there is late, and products are products."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.isa.descriptors import encode_instruction, encode_shared
from tilewright.layout import mma_shared_layout

TARGET = "sm_100a"
SCHEDULES = ("late", "eager", "random:1", "random:2")
QUARTER = 1 << 21  # 32 lanes of Tensor Memory, in an address


def run(kernel, *arguments, **options):
    tilewright.compile(kernel, target=TARGET, **options)(*arguments)


def through_tensor_memory(*, wait_for_store: bool, wait_for_load: bool):
    """Make a kernel that stores words, loads them again and writes them out."""

    @T.function
    def kernel(Out: T.Tensor((128, 4), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
        tid = T.cuda.thread_idx("x")
        warp = T.cuda.warp_id()
        address = T.alloc_shared((1,), "uint32", layout="default")
        if warp == 0:
            T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
                T.address_of(address), T.uint32(64)
            )
        T.cuda.cta_sync()
        given = T.alloc_local((4,), "uint32", layout="default")
        taken = T.alloc_local((4,), "uint32", layout="default")
        for j in range(4):
            given[j] = T.cast(tid * 10 + j, "uint32")
            taken[j] = T.uint32(7)
        base = address[0] + T.cast(warp, "uint32") * T.uint32(QUARTER)
        T.ptx["tcgen05.st.sync.aligned.32x32b.x4.b32"](base, *[given[j] for j in range(4)])
        if T.constexpr(wait_for_store):
            T.ptx["tcgen05.wait::st.sync.aligned"]()
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x4.b32"](*[taken[j] for j in range(4)], base)
        if T.constexpr(wait_for_load):
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
        for j in range(4):
            Out[tid, j] = taken[j]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(64))

    return kernel


WORDS = np.arange(128)[:, None] * 10 + np.arange(4)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_stored_is_loaded(schedule):
    out = np.zeros((128, 4), np.uint32)
    run(through_tensor_memory(wait_for_store=True, wait_for_load=True), out, schedule=schedule)
    assert np.array_equal(out, WORDS)


@pytest.mark.parametrize("missing", ["wait_for_store", "wait_for_load"])
@pytest.mark.parametrize("schedule", ["late", "random:1"])
def test_a_missing_wait_shows_in_every_value(missing, schedule):
    waits = {"wait_for_store": True, "wait_for_load": True, missing: False}
    out = np.zeros((128, 4), np.uint32)
    run(through_tensor_memory(**waits), out, schedule=schedule)
    assert not (out == WORDS).any()


A_LAYOUT = mma_shared_layout("float16", 3, (128, 64))
B_LAYOUT = mma_shared_layout("float16", 3, (64, 64))
SHARED = encode_shared(0, 16, 1024, 3)
PRODUCT = encode_instruction("float32", "float16", "float16", 128, 64)


@T.function
def two_products(
    A: T.Tensor((128, 64), "float16"),
    Words: T.Tensor((128, 32), "uint32"),
    B: T.Tensor((64, 64), "float16"),
    Out: T.Tensor((2, 128, 64), "float32"),
):
    """Multiply with A in shared memory, and again with A's packed words in Tensor Memory."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    tid = T.cuda.thread_idx("x")
    warp = T.cuda.warp_id()
    a = T.alloc_shared((128, 64), "float16", layout=A_LAYOUT, align=1024)
    b = T.alloc_shared((64, 64), "float16", layout=B_LAYOUT, align=1024)
    address = T.alloc_shared((1,), "uint32", layout="default")
    done = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if warp == 0:
        T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
            T.address_of(address), T.uint32(256)
        )
    if tid == 0:
        T.ptx.mbarrier.init.shared.b64(done.ptr_to([0]), T.uint32(1))
    for j in range(64):
        a[tid, j] = A[tid, j]
        if tid < 64:
            b[tid, j] = B[tid, j]
    T.ptx.fence.proxy.async_.shared__cta()
    T.cuda.cta_sync()
    quarter = address[0] + T.cast(warp, "uint32") * T.uint32(QUARTER)
    words = T.alloc_local((32,), "uint32", layout="default")
    for j in range(32):
        words[j] = Words[tid, j]
    T.ptx["tcgen05.st.sync.aligned.32x32b.x32.b32"](
        quarter + T.uint32(128), *[words[j] for j in range(32)]
    )
    T.ptx["tcgen05.wait::st.sync.aligned"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if tid == 0:
        first = T.uint64(SHARED) + (
            T.cast(T.cuda.cvta_generic_to_shared(a.ptr_to([0, 0])), "uint64") >> 4
        )
        second = T.uint64(SHARED) + (
            T.cast(T.cuda.cvta_generic_to_shared(b.ptr_to([0, 0])), "uint64") >> 4
        )
        for k in range(4):
            step = T.cast(k * 2, "uint64")
            T.ptx["tcgen05.mma.cta_group::1.kind::f16"](
                address[0], first + step, second + step, T.uint32(PRODUCT), k > 0
            )
            T.ptx["tcgen05.mma.cta_group::1.kind::f16"](
                address[0] + T.uint32(64),
                address[0] + T.uint32(128) + T.cast(k * 8, "uint32"),
                second + step,
                T.uint32(PRODUCT),
                k > 0,
            )
        T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
            done.ptr_to([0])
        )
    T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
    T.ptx["tcgen05.fence::after_thread_sync"]()
    sums = T.alloc_local((64,), "float32", layout="default")
    for which in [0, 1]:
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x64.b32"](
            *[sums[j] for j in range(64)], quarter + T.uint32(64 * which)
        )
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        for j in range(64):
            Out[which, tid, j] = sums[j]
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
        T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(256))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_both_forms_of_the_product_in_one_kernel(schedule):
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (n, 64)).astype(np.float16) for n in (128, 64))
    out = np.zeros((2, 128, 64), np.float32)
    run(two_products, a, a.view(np.uint32), b, out, schedule=schedule)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(out[0], expected)
    assert np.array_equal(out[1], expected)
