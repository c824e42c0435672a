"""Copies by the asynchronous proxy in kernels: every box, every schedule, every needed wait.

What a box is comes from `tests/boxes.py`, a formula that a chip agrees with.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import boxes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tilewright import sim
from tilewright import simt as T
from tilewright.base.dtypes import BOOL, INT32, UINT8, UINT32, DType
from tilewright.base.errors import SimulationError
from tilewright.base.spaces import Space
from tilewright.base.targets import target
from tilewright.frontend import parse_function
from tilewright.ir.expressions import (
    AddressOf,
    Expr,
    Offset,
    Read,
    SharedBase,
    SpecialRegister,
    Unary,
    Var,
    binary,
    constant,
    int32,
)
from tilewright.ir.operands import declared_operands
from tilewright.ir.statements import Declare, For, If, Instruct, Kernel, Launch, Stmt, While, Write
from tilewright.ir.types import TENSOR_MAP_POINTER, PointerType, ScalarType, TensorMapType
from tilewright.isa.declaration import spell
from tilewright.isa.tensor_map import TensorMap

SHARED = 1 << 15
BARRIER = SHARED - 8
SCHEDULES = ("late", "eager", "random:1", "random:2", "random:3")
LOAD = "cp.async.bulk.tensor.{}d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"
_ONE = int32(1)
_LANE = SpecialRegister("laneid")


# ---------------------------------------------------------------------------- any box at all


def _at(base: Expr, offset: Expr, kind: DType, space: Space) -> Offset:
    return Offset(base, offset, PointerType(space, kind, kind.bytes))


def _shared(offset: Expr) -> Offset:
    return _at(SharedBase(PointerType(Space.SHARED, UINT8)), offset, UINT32, Space.SHARED)


def _moved(image: Var, *, back: bool) -> Stmt:
    """Copy all of shared memory from an array, or back."""
    turn = Var("back" if back else "forth", ScalarType(INT32))
    where = binary("add", binary("mul", turn, int32(128)), binary("mul", _LANE, int32(4)))
    inside, outside = _shared(where), _at(image, where, UINT32, Space.GLOBAL)
    source, place = (inside, outside) if back else (outside, inside)
    body = (Write(place, Read(source, ScalarType(UINT32))),)
    return For(turn, int32(0), int32(SHARED // 128), _ONE, body)


def _issue(text: str, *operands: Expr) -> Instruct:
    fitting = [f for f in spell(text).forms() if declared_operands(f, len(operands)) is not None]
    return Instruct(fitting[0], operands)


@cache
def _copier(rank: int, schedule: str, *, stores: bool) -> sim.SimulatedKernel:
    """Make a kernel that copies one box, wherever it is told to; and all of shared memory."""
    tensor_map = Var("tensor_map", TensorMapType())
    image = Var("image", PointerType(Space.GLOBAL, UINT8, 4))
    coordinates = [Var(f"c{axis}", ScalarType(INT32)) for axis in range(rank)]
    start, count = (Var(name, ScalarType(UINT32)) for name in ("start", "count"))
    address = AddressOf(tensor_map, (), TENSOR_MAP_POINTER)
    barrier, place = _shared(constant(BARRIER, UINT32)), _shared(start)
    ready = Var("ready", ScalarType(BOOL))
    arrival = Var("arrival", ScalarType(DType("uint64", "uint", 64)))
    if stores:
        copy: tuple[Stmt, ...] = (
            _issue(STORE.format(rank), address, *coordinates, place),
            _issue("cp.async.bulk.commit_group"),
            _issue("cp.async.bulk.wait_group", constant(0, UINT32)),
        )
        wait: tuple[Stmt, ...] = ()
    else:
        copy = (
            _issue("mbarrier.init.shared.b64", barrier, constant(1, UINT32)),
            Declare(arrival, None),
            _issue("mbarrier.arrive.expect_tx.shared.b64", arrival, barrier, count),
            _issue(LOAD.format(rank), place, address, *coordinates, barrier),
        )
        poll = _issue("mbarrier.try_wait.parity.shared.b64", ready, barrier, constant(0, UINT32))
        wait = (
            Declare(ready, constant(False, BOOL)),
            While(Unary("not", ready, ready.type), (poll,)),
        )
    leader = binary("eq", _LANE, int32(0))
    body = (_moved(image, back=False), If(leader, copy), *wait, _moved(image, back=True))
    sides = (_ONE, _ONE, _ONE)
    launch = Launch(sides, (int32(32), _ONE, _ONE), sides, int32(0))
    params = (tensor_map, image, *coordinates, start, count)
    kernel = Kernel("copier", params, launch, body, shared_bytes=SHARED)
    name, _, seed = schedule.partition(":")
    options = sim.Options(workers=1, schedule=name, seed=int(seed or 0))
    return sim.build(kernel, target("sm_90a"), options)


def _aligned(size: int) -> boxes.Array:
    raw = np.zeros(size + 64, np.uint8)
    return raw[-raw.ctypes.data % 16 :][:size]


def _copied(case: boxes.Case, start: int, schedule: str, *, stores: bool) -> None:
    """Run a copy, and hold both memories against the formula."""
    tensor, image = _aligned(case.bytes + (16 if stores else 0)), _aligned(SHARED)
    tensor[:] = boxes.some_bytes(8, len(tensor))
    image[:] = boxes.some_bytes(9, SHARED)
    after_shared, after_tensor = image.copy(), tensor.copy()
    if stores:
        after_tensor = boxes.stored(case, tensor, image, start)
    else:
        after_shared = boxes.loaded(case, tensor, image, start)
    steps = case.steps or (1,) * case.rank
    tensor_map = TensorMap(
        tensor.ctypes.data,
        case.format,
        case.extents,
        case.strides,
        case.box,
        steps,
        swizzle=case.swizzle,
        oob_fill=case.fill,
    )
    assert tensor_map.problem() is None
    regions = [
        sim.Region("image", image.ctypes.data, image.nbytes, True),
        sim.Region("tensor", tensor.ctypes.data, tensor.nbytes, stores),
    ]
    arguments = [tensor_map, image.ctypes.data, *case.origin, start]
    kernel = _copier(case.rank, schedule, stores=stores)
    kernel.launch([*arguments, case.transferred], regions, (1, 1, 1), print)
    assert np.array_equal(image[:BARRIER], after_shared[:BARRIER])
    assert np.array_equal(tensor, after_tensor)


@pytest.mark.parametrize("schedule", SCHEDULES[:3])
@pytest.mark.parametrize("case", boxes.SHAPES, ids=str)
def test_loads(case: boxes.Case, schedule: str) -> None:
    for start in (0, 128, 896):
        _copied(case, start, schedule, stores=False)


@pytest.mark.parametrize("schedule", SCHEDULES[:3])
@pytest.mark.parametrize("case", [boxes.inward(each) for each in boxes.SHAPES], ids=str)
def test_stores(case: boxes.Case, schedule: str) -> None:
    for start in (0, 128, 896):
        _copied(case, start, schedule, stores=True)


@settings(deadline=None, max_examples=300)
@given(boxes.cases(), st.integers(0, 20))
def test_random_loads(case: boxes.Case, line: int) -> None:
    _copied(case, 128 * line, "late", stores=False)


@settings(deadline=None, max_examples=300)
@given(boxes.cases(stores=True), st.integers(0, 20))
def test_random_stores(case: boxes.Case, line: int) -> None:
    _copied(case, 128 * line, "late", stores=True)


# ---------------------------------------------------------------------------- what is waited for


def run(kernel: Any, *arguments: Any, **options: Any) -> None:
    tilewright.compile(kernel, target="sm_90a", **options)(*arguments)


def doubling(*, wait: bool = True, wait_read: bool = True, commit: bool = True) -> Any:
    """Make a kernel of two buffers: rows are loaded, doubled, and stored while the next come."""

    @T.function
    def kernel(A: T.Tensor((16, 256), "float32"), Out: T.Tensor((16, 256), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
        tid = T.cuda.thread_idx("x")
        given = T.alloc_shared((2, 256), "float32", layout="default", align=128)
        made = T.alloc_shared((2, 256), "float32", layout="default", align=128)
        full = T.alloc_shared((2,), "uint64", layout="default", align=8)
        if tid == 0:
            for slot in range(2):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([slot]), T.uint32(1))
        T.cuda.cta_sync()
        for row in range(16):
            slot = row % 2
            if tid == 0:
                T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(full.ptr_to([slot]), T.uint32(1024))
                T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](
                    given.ptr_to([slot, 0]), A.ptr_to([row, 0]), T.uint32(1024), full.ptr_to([slot])
                )
                if T.constexpr(wait_read):
                    T.ptx["cp.async.bulk.wait_group.read"](1)
            if T.constexpr(wait):
                T.cuda.mbarrier_wait(full.ptr_to([slot]), row // 2 % 2)
            T.cuda.cta_sync()
            for j in range(4):
                made[slot, tid + 64 * j] = given[slot, tid + 64 * j] * T.float32(2)
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()
            if tid == 0:
                T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                    Out.ptr_to([row, 0]), made.ptr_to([slot, 0]), T.uint32(1024)
                )
                if T.constexpr(commit):
                    T.ptx["cp.async.bulk.commit_group"]()
        if tid == 0:
            T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


A = np.arange(16 * 256, dtype=np.float32).reshape(16, 256)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_of_loads_and_stores(schedule: str) -> None:
    out = np.zeros_like(A)
    run(doubling(), A, out, schedule=schedule)
    assert np.array_equal(out, 2 * A)


@pytest.mark.parametrize("schedule", ["late", "random:1"])
def test_every_wait_of_the_pipeline_is_needed(schedule: str) -> None:
    for missing in ("wait_read", "commit"):
        out = np.zeros_like(A)
        run(doubling(**{missing: False}), A, out, schedule=schedule)
        assert (out != 2 * A).any(), missing
    with pytest.raises(tilewright.SimulationError) as caught:
        run(doubling(wait=False), A, np.zeros_like(A), schedule=schedule)
    # A barrier whose phase nobody waits for is armed twice.
    assert caught.value.code == "mbarrier-protocol"


def one_way(*, wait: str, commit: bool = True, rewrite: bool = True) -> Any:
    """Make a kernel that stores two runs, and overwrites them after a wait for the first."""

    @T.function
    def kernel(Out: T.Tensor((2, 64), "uint32"), Seen: T.Tensor((2, 32), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        run = T.alloc_shared((2, 64), "uint32", layout="default", align=128)
        for j in range(4):
            run[j // 2, lane + 32 * (j % 2)] = T.cast(j // 2 + 1, "uint32")
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.warp_sync()
        if lane == 5:
            for j in range(2):
                T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                    Out.ptr_to([j, 0]), run.ptr_to([j, 0]), T.uint32(256)
                )
                if T.constexpr(commit):
                    T.ptx["cp.async.bulk.commit_group"]()
            if T.constexpr(wait != ""):
                T.ptx[f"cp.async.bulk.{wait}"](1)
        T.cuda.warp_sync()
        for j in range(2):
            Seen[j, lane] = Out[j, lane]
            if T.constexpr(rewrite):
                run[j, lane] = T.uint32(7)
                run[j, lane + 32] = T.uint32(7)

    return kernel


def stored_by(**choices: Any) -> tuple[list[int], list[int]]:
    """Give a word of each run, as it is in the end and as the kernel saw it."""
    out, seen = np.zeros((2, 64), np.uint32), np.zeros((2, 32), np.uint32)
    run(one_way(**choices), out, seen)
    assert (out == out[:, :1]).all() and (seen == seen[:, :1]).all()
    return out[:, 0].tolist(), seen[:, 0].tolist()


def test_what_nobody_waits_for_comes_last_of_all() -> None:
    """Its source is shared memory that is gone."""
    gone = 0xFFFFFFFF
    assert stored_by(wait="wait_group") == ([1, gone], [1, 0])
    assert stored_by(wait="wait_group.read") == ([1, gone], [0, 0])
    assert stored_by(wait="") == ([gone, gone], [0, 0])
    assert stored_by(wait="wait_group", commit=False) == ([gone, gone], [0, 0])


@pytest.mark.parametrize("schedule", SCHEDULES[2:])
def test_chance_decides_when_a_store_reads_and_when_it_writes(schedule: str) -> None:
    out, seen = np.zeros((2, 64), np.uint32), np.zeros((2, 32), np.uint32)
    run(one_way(wait="wait_group"), out, seen, schedule=schedule)
    assert (out[0] == 1).all() and (seen[0] == 1).all()
    assert set(out[1]) <= {2, 7, 0xFFFFFFFF}


def test_at_once_everything_is_done_at_its_issue() -> None:
    out, seen = np.zeros((2, 64), np.uint32), np.zeros((2, 32), np.uint32)
    run(one_way(wait="", commit=False), out, seen, schedule="eager")
    assert out[:, 0].tolist() == seen[:, 0].tolist() == [1, 2]


@T.function
def many_stores(Out: T.Tensor((700, 8), "uint32"), reading: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    run = T.alloc_shared((32, 8), "uint32", layout="default", align=128)
    for j in range(22):
        for word in range(8):
            run[lane, word] = T.cast(32 * j + lane, "uint32")
        T.ptx.fence.proxy.async_.shared__cta()
        if 32 * j + lane < 700:
            T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                Out.ptr_to([32 * j + lane, 0]), run.ptr_to([lane, 0]), T.uint32(32)
            )
        T.ptx["cp.async.bulk.commit_group"]()
        if reading:
            T.ptx["cp.async.bulk.wait_group.read"](0)
        else:
            T.ptx["cp.async.bulk.wait_group"](0)
    T.ptx["cp.async.bulk.wait_group"](0)


@pytest.mark.parametrize("reading", [0, 1])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_stores_than_the_chip_has_room_for(schedule: str, reading: int) -> None:
    """More than a queue holds, and more bytes than can be read ahead."""
    out = np.zeros((700, 8), np.uint32)
    run(many_stores, out, reading, schedule=schedule)
    assert np.array_equal(out, np.repeat(np.arange(700), 8).reshape(700, 8))


# ---------------------------------------------------------------------------- faults


@T.function
def to_anywhere(A: T.Tensor((64,), "uint32"), where: T.uint64, lanes: T.int32):
    """Store 16 bytes: by the asynchronous proxy, or by so many lanes."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    held = T.alloc_shared((64,), "uint32", layout="default", align=128)
    if T.cuda.lane_id() < lanes:
        zero = T.uint32(0)
        T.ptx["st.global.v4.b32"](where, zero, zero, zero, zero)
    if lanes == 0:
        T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](where, held.ptr_to([0]), T.uint32(16))
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


@pytest.mark.parametrize("lanes", [0, 1, 32])
@pytest.mark.parametrize("where", [0, 1 << 40, (1 << 56) - 16, (1 << 64) - 16])
def test_addresses_at_the_ends_of_all_memory(where: int, lanes: int) -> None:
    with pytest.raises(tilewright.MemoryFault) as caught:
        run(to_anywhere, np.zeros(64, np.uint32), where, lanes)
    assert caught.value.code == "out-of-bounds"


def tensor_copy(text: str, *, start: int = 0, origin: int = 0) -> Any:
    """Make a kernel that copies a box of eight rows of 32 bytes."""

    @T.function
    def kernel(A: T.Tensor((16, 64), "float16")):
        rows: T.let[T.Ptr(T.TensorMap)] = T.stack_alloca("tensormap", 1)
        T.cuda.tensormap_encode_tiled(
            rows, A.data, 64, 16, 128, 16, 8, 1, 1, descriptor_dtype="float16", rank=2
        )
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        held = T.alloc_shared((192,), "float16", layout="default", align=128)
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if T.cuda.lane_id() == 0:
            if T.constexpr(text == "load"):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
                T.ptx[LOAD.format(2)](
                    held.ptr_to([start]), T.address_of(rows), origin, 0, full.ptr_to([0])
                )
                T.cuda.mbarrier_wait(full.ptr_to([0]), 0)
            else:
                T.ptx[STORE.format(2)](T.address_of(rows), origin, 0, held.ptr_to([start]))
                T.ptx["cp.async.bulk.commit_group"]()
                T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES[:3])
@pytest.mark.parametrize(
    ("choices", "code"),
    [
        ({"start": 8}, "misaligned"),
        ({"start": 128}, "out-of-bounds"),
        ({"origin": 4}, "tensor-map"),
    ],
    ids=str,
)
@pytest.mark.parametrize("text", ["load", "store"])
def test_faults(text: str, choices: dict[str, int], code: str, schedule: str) -> None:
    with pytest.raises(tilewright.SimulationError) as caught:
        run(tensor_copy(text, **choices), np.zeros((16, 64), np.float16), schedule=schedule)
    assert caught.value.code == code
    assert caught.value.location is not None
    line = caught.value.location.excerpt()
    assert line is not None and ("LOAD" if text == "load" else "STORE") in line


def test_stores_begin_inside() -> None:
    with pytest.raises(tilewright.SimulationError) as caught:
        run(tensor_copy("store", origin=-8), np.zeros((16, 64), np.float16))
    assert caught.value.code == "tensor-map"
    assert "negative" in str(caught.value)


@T.function
def waits_for_nothing(A: T.Tensor((64,), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    held = T.alloc_shared((64,), "uint32", layout="default", align=128)
    full = T.alloc_shared((2,), "uint64", layout="default", align=8)
    if T.cuda.lane_id() == 0:
        for slot in range(2):
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([slot]), T.uint32(1))
        T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(full.ptr_to([1]), T.uint32(32))
        T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](
            held.ptr_to([0]), A.ptr_to([0]), T.uint32(32), full.ptr_to([0])
        )
        T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
            A.ptr_to([32]), held.ptr_to([32]), T.uint32(16)
        )
    if T.cuda.lane_id() == 3:
        for _ in range(2):
            T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                A.ptr_to([36]), held.ptr_to([32]), T.uint32(16)
            )
            T.ptx["cp.async.bulk.commit_group"]()
    T.cuda.mbarrier_wait(full.ptr_to([1]), 0)


def test_a_deadlock_tells_what_is_in_flight() -> None:
    with pytest.raises(tilewright.DeadlockError) as caught:
        run(waits_for_nothing, np.zeros(64, np.uint32))
    text = str(caught.value)
    assert (
        "phase parity 0 of full[1]: phase 0, 1 of 1 arrivals, 32 bytes expected, 0 have come"
        in text
    )
    assert "4 asynchronous operation(s) in flight that nobody waits for" in text
    assert "seen through full[0]" in text
    assert "of warp 0, lane 0, not committed to a group" in text
    assert "2 x cp.async.bulk.global.shared::cta.bulk_group at" in text
    assert "of warp 0, lane 3, committed" in text


WITHOUT_A_WAIT = """
from tilewright import simt as T

@T.function
def k(A: T.Tensor((256,), "float32", align=16), Out: T.Tensor((256,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=256))
    thread = T.cuda.thread_idx("x")
    tile = T.alloc_shared((256,), "float32", align=16)
    landed = T.alloc_shared((1,), "uint64", align=8)
    if thread == 0:
        T.ptx.mbarrier.init.shared__cta.b64(landed.ptr_to([0]), T.uint32(1))
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if thread == 0:
        T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(landed.ptr_to([0]), T.uint32(1024))
        T.ptx.cp.async_.bulk.shared__cta.global_.mbarrier__complete_tx__bytes(
            tile.ptr_to([0]), A.ptr_to([0]), T.uint32(1024), landed.ptr_to([0]))
    Out[thread] = tile[255 - thread]
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_that_its_cta_does_not_wait_for_is_reported_at_the_copy(schedule: str) -> None:
    a, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    made = tilewright.compile(parse_function(WITHOUT_A_WAIT), target="sm_90a", schedule=schedule)
    try:
        made(a, out)
    except SimulationError as error:
        assert schedule != "eager" and "CTA ended" in error.message
        assert error.location is not None and "cp.async_.bulk" in error.location.source_line()
        assert any("thread 0 (" in note for note in error.notes)
    else:
        # At once, or by chance, it was done before the CTA ended.
        assert schedule != "late"
