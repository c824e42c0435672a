"""Tensor Memory on the simulator: what is asynchronous there is late, and products are products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.frontend import parse_function
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


# ---------------------------------------------------------------------------- allocation

PROGRAM = """
from tilewright import simt as T

def alloc(place, columns):
    T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(place, T.uint32(columns))

def dealloc(taddr, columns):
    T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(taddr, T.uint32(columns))

@T.function
def k(Out: T.Tensor((8,), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    tid = T.cuda.thread_idx("x")
    warp = T.cuda.warp_id()
    at = T.alloc_shared((8,), "uint32", layout="default")
"""


def outcome(body: str, schedule: str = "late") -> list[int]:
    """Run a program with this body, and give what it leaves in `Out`."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    out = np.zeros(8, np.uint32)
    run(parse_function(PROGRAM + lines), out, schedule=schedule)
    return out.tolist()


def failure(body: str) -> tuple[Any, str]:
    """Run a program that fails; give the error, and the line of the program that it shows."""
    with pytest.raises(tilewright.TilewrightError) as caught:
        outcome(body)
    error = caught.value
    assert error.location is not None
    return error, (PROGRAM + body.strip("\n")).splitlines()[error.location.line - 1].strip()


WAITING = """
if warp == 0:
    alloc(at.ptr_to([0]), 512)
T.cuda.cta_sync()
if warp == 1:
    alloc(at.ptr_to([1]), 256)
    Out[1] = at[1]
    dealloc(at[1], 256)
if warp == 0:
    Out[0] = at[0]
    FREE
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_allocation_waits_until_another_warp_has_freed_enough(schedule):
    assert outcome(WAITING.replace("FREE", "dealloc(at[0], 512)"), schedule)[:2] == [0, 0]


def test_an_allocation_that_nobody_makes_room_for_is_a_deadlock():
    error, line = failure(WAITING.replace("FREE", "pass"))
    assert error.code == "deadlock"
    assert line == "alloc(at.ptr_to([1]), 256)"
    assert "waits for 256 free columns of Tensor Memory; columns 0-511 are allocated" in str(error)


def test_columns_are_given_again():
    body = """
if warp == 2:
    alloc(at.ptr_to([0]), 128)
    alloc(at.ptr_to([1]), 128)
    alloc(at.ptr_to([2]), 64)
    dealloc(at[1], 128)
    alloc(at.ptr_to([3]), 32)
    alloc(at.ptr_to([4]), 64)
    for j in range(5):
        Out[j] = at[j]
    dealloc(at[0], 128)
    dealloc(at[2], 64)
    dealloc(at[3], 32)
    dealloc(at[4], 64)
"""
    assert outcome(body)[:5] == [0, 128, 256, 128, 192]


def test_what_is_not_freed_is_told_at_its_allocation():
    body = """
if warp == 0:
    alloc(at.ptr_to([0]), 64)
    alloc(at.ptr_to([1]), 32)
    dealloc(at[0], 64)
"""
    error, line = failure(body)
    assert error.code == "tensor-memory"
    assert "without freeing" in error.message and line == "alloc(at.ptr_to([0]), 64)"
    assert error.notes[1].startswith("memory is also allocated at")
    assert error.found == "columns 64-95 are still allocated"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("dealloc(T.uint32(0), 32)", "no allocation begins"),
        ("alloc(at.ptr_to([0]), 64)\ndealloc(at[0], 32)", "number of columns that it has"),
        ("alloc(at.ptr_to([0]), 64)\ndealloc(at[0], 128)", "number of columns that it has"),
        ("alloc(at.ptr_to([0]), 64)\ndealloc(at[0] + T.uint32(32), 32)", "no allocation begins"),
        ("alloc(at.ptr_to([0]), 64)\n" + "dealloc(at[0], 64)\n" * 2, "no allocation begins"),
        ("size: T.uint32 = 48\nalloc(at.ptr_to([0]), size)", "32, 64, 128, 256 or 512"),
        (
            "T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()\n"
            "alloc(at.ptr_to([0]), 32)",
            "after the permit to allocate was relinquished",
        ),
    ],
)
def test_allocation_against_the_rules(body, says):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    error, line = failure(f"if warp == 0:\n{lines}")
    assert error.code == "tensor-memory" and says in error.message
    assert line == body.splitlines()[-1]


ACCESS = """
if warp == 0:
    alloc(at.ptr_to([0]), 64)
T.cuda.cta_sync()
x: T.uint32
MOVE
T.ptx["tcgen05.wait::ld.sync.aligned"]()
T.ptx["tcgen05.wait::st.sync.aligned"]()
T.cuda.cta_sync()
if warp == 0:
    dealloc(at[0], 64)
"""


@pytest.mark.parametrize(
    ("move", "says"),
    [
        ("ld.sync.aligned.32x32b.x1.b32(x, at[0])", "only its own quarter"),
        ("st.sync.aligned.32x32b.x1.b32(at[0], x)", "only its own quarter"),
        ("ld.sync.aligned.32x32b.x1.b32(x, at[0] + own + T.uint32(64))", "not allocated"),
        ("st.sync.aligned.32x32b.x1.b32(at[0] + own + T.uint32(64), x)", "not allocated"),
        ("ld.sync.aligned.32x32b.x1.b32(x, at[0] + own + T.uint32(16 << 16))", "multiple of 32"),
        ("ld.sync.aligned.16x64b.x1.b32(x, at[0] + own + T.uint32(8 << 16))", "multiple of 16"),
        ("ld.sync.aligned.16x32bx2.x1.b32(x, at[0] + own, 64)", "not allocated"),
        (
            "ld.sync.aligned.32x32b.x1.b32(x, at[0] + own + T.cast(tid % 2, 'uint32'))",
            "different addresses",
        ),
    ],
)
def test_an_access_that_is_not_allowed_is_told_at_its_line(move, says):
    name, _, operands = move.partition("(")
    own = f"own = T.cast(warp, 'uint32') * T.uint32({QUARTER})\n"
    error, _ = failure(ACCESS.replace("MOVE", f'{own}T.ptx["tcgen05.{name}"]({operands}'))
    assert error.code == "tensor-memory" and says in error.message
    assert f'T.ptx["tcgen05.{name}"]' in error.location.excerpt()
