"""Copies of 4 to 16 bytes per thread that end later: their groups, their waits, their barriers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.isa.declaration import Form, spell
from tilewright.sim.eager import EagerMachine, execute

SCHEDULES = ("late", "eager", "random:1", "random:2", "random:3")
GONE = 0xFFFFFFFF  # what shared memory holds before it is written


def run(kernel: Any, *arguments: Any, **options: Any) -> None:
    tilewright.compile(kernel, target="sm_90", **options)(*arguments)


# ---------------------------------------------------------------------------- what is copied


def copier(size: int, given: str, modifiers: str = "ca.shared.global") -> Any:
    """Make a kernel in which lane l copies `size` bytes, of which some may not be taken."""
    words = size // 4

    @T.function
    def kernel(
        A: T.Tensor((32, words), "uint32"),
        Taken: T.Tensor((32,), "int32"),
        Out: T.Tensor((32, words), "uint32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        held = T.alloc_shared((32, words), "uint32", layout="default", align=16)
        if T.constexpr(given == "all"):
            T.ptx[f"cp.async.{modifiers}"](held.ptr_to([31 - lane, 0]), A.ptr_to([lane, 0]), size)
        elif T.constexpr(given == "size"):
            T.ptx[f"cp.async.{modifiers}"](
                held.ptr_to([31 - lane, 0]), A.ptr_to([lane, 0]), size, Taken[lane]
            )
        else:
            T.ptx[f"cp.async.{modifiers}"](
                held.ptr_to([31 - lane, 0]), A.ptr_to([lane, 0]), size, Taken[lane] == 0
            )
        T.ptx["cp.async.wait_all"]()
        T.cuda.warp_sync()
        for j in range(words):
            Out[lane, j] = held[lane, j]

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES[:3])
@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("given", ["all", "size", "ignored"])
def test_what_is_not_taken_is_zeros(size: int, given: str, schedule: str) -> None:
    a = np.arange(1, 32 * size + 1, dtype=np.uint8).reshape(32, size)
    taken = np.array([lane % (size + 1) for lane in range(32)], np.int32)
    out = np.zeros((32, size // 4), np.uint32)
    run(copier(size, given), a.view(np.uint32), taken, out, schedule=schedule)
    expected = a.copy()
    for lane in range(32):
        if given == "size":
            expected[lane, taken[lane] :] = 0
        elif given == "ignored" and taken[lane] == 0:
            expected[lane] = 0
    assert np.array_equal(out.view(np.uint8), expected[::-1])


@pytest.mark.parametrize(
    "modifiers", ["cg.shared.global", "cg.shared::cta.global.L2::128B", "ca.shared.global.L2::64B"]
)
def test_modifiers_that_change_no_values(modifiers: str) -> None:
    a = np.arange(128, dtype=np.uint32).reshape(32, 4)
    out = np.zeros_like(a)
    run(copier(16, "all", modifiers), a, np.zeros(32, np.int32), out)
    assert np.array_equal(out, a[::-1])


@T.function
def beyond(A: T.Tensor((20, 4), "uint32"), Out: T.Tensor((32, 4), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    held = T.alloc_shared((32, 4), "uint32", layout="default", align=16)
    inside = T.select(lane < 20, 16, 0)
    T.ptx["cp.async.cg.shared.global"](held.ptr_to([lane, 0]), A.ptr_to([lane, 0]), 16, inside)
    T.ptx["cp.async.wait_all"]()
    for j in range(4):
        Out[lane, j] = held[lane, j]


def test_nothing_is_read_where_nothing_is_taken() -> None:
    a = np.arange(1, 81, dtype=np.uint32).reshape(20, 4)
    out = np.full((32, 4), 9, np.uint32)
    run(beyond, a, out)
    assert np.array_equal(out[:20], a)
    assert not out[20:].any()


@T.function
def all_beyond(A: T.Tensor((20, 4), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    held = T.alloc_shared((32, 4), "uint32", layout="default", align=16)
    T.ptx["cp.async.cg.shared.global"](held.ptr_to([lane, 0]), A.ptr_to([lane, 0]), 16)
    T.ptx["cp.async.wait_all"]()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_that_leaves_its_tensor_is_a_fault_at_its_line(schedule: str) -> None:
    with pytest.raises(tilewright.MemoryFault) as caught:
        run(all_beyond, np.zeros((20, 4), np.uint32), schedule=schedule)
    assert caught.value.code == "out-of-bounds"
    assert caught.value.location is not None
    assert "cp.async.cg" in str(caught.value)


# ---------------------------------------------------------------------------- groups


def pipelined(*, keep: int = 2, commit: bool = True) -> Any:
    """Make a kernel that keeps three stages in flight, and adds up what it was brought."""

    @T.function
    def kernel(A: T.Tensor((24, 512), "float32"), Out: T.Tensor((24, 512), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
        tid = T.cuda.thread_idx("x")
        ring = T.alloc_shared((3, 512), "float32", layout="default", align=16)
        for row in range(2):
            T.ptx["cp.async.cg.shared.global"](
                ring.ptr_to([row, 4 * tid]), A.ptr_to([row, 4 * tid]), 16
            )
            if T.constexpr(commit):
                T.ptx["cp.async.commit_group"]()
        for row in range(24):
            if row + 2 < 24:
                T.ptx["cp.async.cg.shared.global"](
                    ring.ptr_to([(row + 2) % 3, 4 * tid]), A.ptr_to([row + 2, 4 * tid]), 16
                )
            if T.constexpr(commit):
                T.ptx["cp.async.commit_group"]()
            if T.constexpr(keep >= 0):
                T.ptx["cp.async.wait_group"](keep)
            T.cuda.cta_sync()
            for j in range(4):
                Out[row, tid + 128 * j] = ring[row % 3, tid + 128 * j] + T.float32(1)
            T.cuda.cta_sync()

    return kernel


A = np.arange(24 * 512, dtype=np.float32).reshape(24, 512)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("keep", [0, 1, 2])
def test_three_stages(schedule: str, keep: int) -> None:
    out = np.zeros_like(A)
    run(pipelined(keep=keep), A, out, schedule=schedule)
    assert np.array_equal(out, A + 1)


@pytest.mark.parametrize("choices", [{"keep": 3}, {"keep": -1}, {"commit": False}], ids=str)
def test_a_wait_for_too_little_shows_in_every_value(choices: dict[str, Any]) -> None:
    out = np.zeros_like(A)
    run(pipelined(**choices), A, out)
    assert not (out == A + 1).any()


@T.function
def groups_of_their_own(A: T.Tensor((8, 32), "uint32"), Out: T.Tensor((32, 8), "uint32")):
    """Lane l makes a group of every copy up to its l % 8th, and waits for all but two."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    held = T.alloc_shared((32, 8), "uint32", layout="default", align=16)
    for j in range(8):
        T.ptx["cp.async.ca.shared.global"](held.ptr_to([lane, j]), A.ptr_to([j, lane]), 4)
        if j < lane % 8:
            T.ptx["cp.async.commit_group"]()
    T.ptx["cp.async.wait_group"](2)
    for j in range(8):
        Out[lane, j] = held[lane, j]


def test_every_thread_has_groups_of_its_own() -> None:
    a = np.arange(256, dtype=np.uint32).reshape(8, 32)
    out = np.zeros((32, 8), np.uint32)
    run(groups_of_their_own, a, out)
    for lane in range(32):
        made = lane % 8
        awaited = max(made - 2, 0)
        # Of the copies that came after a wait nothing is there; lanes that copied together may
        # have what the others of them waited for.
        assert out[lane, :awaited].tolist() == a[:awaited, lane].tolist()
        assert out[lane, 5:].tolist() == [GONE] * 3
    run(groups_of_their_own, a, out, schedule="eager")
    assert np.array_equal(out, a.T)


@T.function
def many_copies(A: T.Tensor((1000, 32), "uint32"), Out: T.Tensor((1000, 32), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    held = T.alloc_shared((1000, 32), "uint32", layout="default", align=16)
    for j in range(1000):
        T.ptx["cp.async.ca.shared.global"](held.ptr_to([j, lane]), A.ptr_to([j, lane]), 4)
    T.ptx["cp.async.wait_all"]()
    for j in range(1000):
        Out[j, lane] = held[j, lane]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_copies_than_a_queue_holds(schedule: str) -> None:
    a = np.arange(32000, dtype=np.uint32).reshape(1000, 32)
    out = np.zeros_like(a)
    run(many_copies, a, out, schedule=schedule)
    assert np.array_equal(out, a)


# ---------------------------------------------------------------------------- mbarriers


def through_a_barrier(*, noinc: bool, wait: bool = True) -> Any:
    """Make a kernel in which one warp copies, and another waits for the copies by an mbarrier."""
    count = 32 if noinc else 1
    arrive = f"cp.async.mbarrier.arrive{'.noinc' if noinc else ''}.shared.b64"

    @T.function
    def kernel(A: T.Tensor((4, 128), "uint32"), Out: T.Tensor((4, 128), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        lane, warp = T.cuda.lane_id(), T.cuda.warp_id()
        held = T.alloc_shared((4, 128), "uint32", layout="default", align=16)
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        state: T.uint64
        if T.cuda.thread_idx("x") == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(count))
        T.cuda.cta_sync()
        if warp == 0:
            for j in range(4):
                T.ptx["cp.async.ca.shared.global"](
                    held.ptr_to([j, 4 * lane]), A.ptr_to([j, 4 * lane]), 16
                )
            T.ptx[arrive](full.ptr_to([0]))
            if T.constexpr(not noinc):
                T.cuda.warp_sync()
                if lane == 0:
                    T.ptx["mbarrier.arrive.shared.b64"](state, full.ptr_to([0]))
        else:
            if T.constexpr(wait):
                T.cuda.mbarrier_wait(full.ptr_to([0]), 0)
            for j in range(4):
                for k in range(4):
                    Out[j, lane + 32 * k] = held[j, lane + 32 * k]

    return kernel


B = np.arange(512, dtype=np.uint32).reshape(4, 128)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("noinc", [False, True])
def test_a_barrier_sees_all_copies_before_it(noinc: bool, schedule: str) -> None:
    out = np.zeros_like(B)
    run(through_a_barrier(noinc=noinc), B, out, schedule=schedule)
    assert np.array_equal(out, B)


@pytest.mark.parametrize("noinc", [False, True])
def test_without_the_wait_nothing_is_there(noinc: bool) -> None:
    out = np.zeros_like(B)
    with pytest.raises(tilewright.SimulationError) as caught:
        run(through_a_barrier(noinc=noinc, wait=False), B, out)
    assert caught.value.code == "mbarrier-protocol"
    assert "no wait that is still to end needs it" in str(caught.value)
    assert (out == GONE).all()


# ---------------------------------------------------------------------------- one at a time


def only(text: str, number: int = 0) -> Form:
    return spell(text).forms()[number]


def test_the_eager_executor() -> None:
    memory = np.arange(512, dtype=np.uint8)
    m = EagerMachine(shared=1024, memories={1 << 40: memory}, hold=True)
    lane = np.arange(32)
    dst, src = (16 * lane).astype(np.uint32), ((1 << 40) + 16 * lane).astype(np.uint64)
    copy = "cp.async.ca.shared.global"
    execute(only(copy), [dst, src, 8, (lane % 9).astype(np.uint32)], m)
    execute(only("cp.async.commit_group"), [], m)
    execute(only(copy, 1), [dst + np.uint32(512), src, 16, lane % 2 == 0], m)
    execute(only("cp.async.wait_group"), [1], m)
    assert not m.shared.any()
    execute(only("cp.async.wait_group"), [0], m)
    rows, source = m.shared.reshape(2, 32, 16), memory.reshape(32, 16)
    for each in range(32):
        taken = each % 9
        assert rows[0, each].tolist() == [*source[each, :taken]] + [0] * (16 - taken)
    assert not rows[1].any()
    execute(only("cp.async.wait_all"), [], m)
    assert np.array_equal(rows[1], np.where((lane % 2 == 0)[:, None], 0, source))


def test_more_than_is_written_cannot_be_taken() -> None:
    m = EagerMachine(shared=64, memories={4096: np.zeros(64, np.uint8)}, active=1)
    with pytest.raises(tilewright.SimulationError) as caught:
        execute(only("cp.async.ca.shared.global"), [0, 4096, 4, 8], m)
    assert caught.value.code == "undefined-operation"


@pytest.mark.parametrize("noinc", ["", ".noinc"])
def test_a_barrier_counts_what_is_to_come(noinc: str) -> None:
    data = np.arange(128, dtype=np.uint8)
    m = EagerMachine(shared=256, memories={4096: data}, hold=True)
    lane = np.arange(32)
    execute(only("mbarrier.init.shared.b64"), [128, 33 if noinc else 1], m)
    copy = only("cp.async.ca.shared.global")
    execute(copy, [(4 * lane).astype(np.uint32), (4096 + 4 * lane).astype(np.uint64), 4], m)
    execute(only(f"cp.async.mbarrier.arrive{noinc}.shared.b64"), [128], m)
    m.mask = lane == 0
    test = only("mbarrier.test_wait.parity.shared.b64")
    execute(only("mbarrier.arrive.shared.b64"), [128], m)
    assert not execute(test, [128, 0], m)[0].value
    m.land()
    assert execute(test, [128, 0], m)[0].value
    assert np.array_equal(m.shared[:128], data)
