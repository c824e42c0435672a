"""CTAs that touch the same bytes of global memory, where nothing can order them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watching import SCHEDULES, expect, found

import tilewright
from tilewright import simt as T
from tilewright.sim.check import keeping, state

N = 64


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


def rows(step: int = N) -> Any:
    @T.function
    def kernel(A: T.Tensor((4 * N,), "float32"), Out: T.Tensor((4 * N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=N))
        place = T.cuda.block_idx("x") * step + T.cuda.thread_idx("x")
        Out[place] = A[place] + T.float32(1)

    return kernel


def test_two_ctas_that_write_the_same_bytes() -> None:
    line = "Out[place] ="
    expect(rows, {"step": N - 1}, "global-race", line, line, zeros(4 * N), zeros(4 * N))


def shifted(reads: int = 0) -> Any:
    @T.function
    def kernel(Out: T.Tensor((5 * N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=N))
        place = T.cuda.block_idx("x") * N + T.cuda.thread_idx("x")
        before = Out[place + reads]
        Out[place] = before + T.float32(1)

    return kernel


def test_a_cta_that_reads_what_another_one_writes() -> None:
    fault = {"reads": 1}
    expect(shifted, fault, "global-race", "before = Out", "Out[place] = before", zeros(5 * N))


def test_what_is_only_read_may_be_read_by_all() -> None:
    @T.function
    def kernel(A: T.Tensor((N,), "float32"), Out: T.Tensor((4 * N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=N))
        tid = T.cuda.thread_idx("x")
        Out[T.cuda.block_idx("x") * N + tid] = A[tid]

    for schedule in SCHEDULES:
        assert found(kernel, zeros(N), zeros(4 * N), schedule=schedule) == []


def test_atomic_operations_are_no_race() -> None:
    @T.function
    def kernel(Out: T.Tensor((1,), "uint32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=N))
        T.ptx["red.global.add.u32"](Out.ptr_to([0]), T.uint32(1))

    for schedule in SCHEDULES:
        assert found(kernel, zeros(1, dtype="uint32"), schedule=schedule) == []


# ---------------------------------------------------------------------------- inside a CTA


def through_memory(fault: bool = False) -> Any:
    @T.function
    def kernel(Held: T.Tensor((N,), "int32"), Out: T.Tensor((N,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        Held[tid] = 3 * tid
        if not fault:
            T.cuda.cta_sync()
        Out[tid] = Held[N - 1 - tid]

    return kernel


def test_warps_of_a_cta() -> None:
    arrays = zeros(N, dtype="int32"), zeros(N, dtype="int32")
    expect(through_memory, {"fault": True}, "race", "Out[tid] =", "Held[tid] =", *arrays)


def lanes_of_a_warp(fault: bool = False) -> Any:
    @T.function
    def kernel(Held: T.Tensor((32,), "int32"), Out: T.Tensor((32,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        lane = T.cuda.lane_id()
        Held[lane] = 3 * lane
        if not fault:
            T.cuda.warp_sync()
        Out[lane] = Held[31 - lane]

    return kernel


def test_lanes_of_a_warp() -> None:
    arrays = zeros(32, dtype="int32"), zeros(32, dtype="int32")
    expect(lanes_of_a_warp, {"fault": True}, "race", "Out[lane] =", "Held[lane] =", *arrays)


def counts_up(fault: bool = False) -> Any:
    @T.function
    def kernel(Sum: T.Tensor((1,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        if fault or T.cuda.lane_id() == 0:
            Sum[0] = Sum[0] + 1

    return kernel


def test_all_lanes_read_and_write_a_sum() -> None:
    expect(counts_up, {"fault": True}, "race", "Sum[0]", "Sum[0]", zeros(1, dtype="int32"))


def read_only(fault: bool = False) -> Any:
    @T.function
    def kernel(A: T.Tensor((N,), "int32"), Out: T.Tensor((N,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        word: T.int32 = 0
        T.ptx["ld.global.nc.s32"](word, (Out if fault else A).ptr_to([tid]))
        Out[tid] = word + 1

    return kernel


def test_what_is_read_as_read_only_is_not_written() -> None:
    arrays = zeros(N, dtype="int32"), zeros(N, dtype="int32")
    expect(read_only, {"fault": True}, "read-only-load", "ld.global.nc", "Out[tid] =", *arrays)


def stored(fault: bool = False) -> Any:
    @T.function
    def kernel(Out: T.Tensor((N,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        held = T.alloc_shared((N,), "int32", layout="default", align=128)
        held[tid] = tid
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if tid == 0:
            T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                Out.ptr_to([0]), held.ptr_to([0]), T.uint32(4 * N)
            )
            T.ptx["cp.async.bulk.commit_group"]()
            if not fault:
                T.ptx["cp.async.bulk.wait_group.read"](0)

    return kernel


def test_a_copy_has_read_shared_memory_when_the_cta_ends() -> None:
    for schedule in SCHEDULES:
        assert found(stored(), zeros(N, dtype="int32"), schedule=schedule) == []
        faults = found(stored(fault=True), zeros(N, dtype="int32"), schedule=schedule)
        assert [each[0] for each in faults] == ["missing-wait"]
        assert "cp.async.bulk.global" in faults[0][1]


def raised(reads: bool = False, own: bool = False, counts: bool = False) -> Any:
    """Raise a flag by any CTA that has something to tell; where some count, they take turns."""

    @T.function
    def kernel(
        A: T.Tensor((4 * N,), "int32"),
        Flag: T.Tensor((1,), "int32"),
        Count: T.Tensor((1,), "int32"),
        Out: T.Tensor((4 * N,), "int32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=N))
        tid, block = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
        if counts and tid == 0:
            T.cuda.atomic_add(Count.ptr_to([0]), T.int32(1))
        if A[block * N + tid] % 5 == 0:
            if own:
                Flag[0] = block + 1
            else:
                Flag[0] = 1
        if reads:
            Out[block * N + tid] = Flag[0]

    return kernel


@pytest.mark.parametrize("counts", [False, True])
def test_ctas_may_store_the_same_constant(counts: bool) -> None:
    for schedule in SCHEDULES:
        arrays = np.arange(4 * N, dtype="int32"), *(zeros(n, dtype="int32") for n in (1, 1, 4 * N))
        assert found(raised(counts=counts), *arrays, schedule=schedule) == []
        assert arrays[1][0] == 1
        for fault in ({"reads": True}, {"own": True}):
            told = found(raised(counts=counts, **fault), *arrays, schedule=schedule)
            assert "global-race" in {kind for kind, _, _ in told}, (schedule, fault, told)


def boxes(rows: int = 8) -> Any:
    """Store a box of each CTA by a tensor map, `rows` apart; the other map is only read by."""

    @T.function
    def kernel(
        A: T.Tensor((32, 32), "float32", align=16), Out: T.Tensor((32, 32), "float32", align=16)
    ):
        source, target = T.stack_alloca("tensormap", 1), T.stack_alloca("tensormap", 1)
        for made, tensor in ((source, A), (target, Out)):
            T.cuda.tensormap_encode_tiled(
                made, tensor.data, *(32, 32, 128, 32, 8, 1, 1), descriptor_dtype="float32", rank=2
            )
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32))
        lane, block = T.cuda.lane_id(), T.cuda.block_idx("x")
        held = T.alloc_shared((8, 32), "float32", layout="default", align=128)
        T.ptx["prefetch.tensormap"](T.address_of(source))
        for row in range(8):
            held[row, lane] = A[row, lane]
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.warp_sync()
        if lane == 0:
            T.ptx["cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"](
                T.address_of(target), 0, rows * block, held.ptr_to([0, 0])
            )
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


@pytest.mark.parametrize("rows", [0, 4])
def test_boxes_that_ctas_store_by_a_tensor_map_lie_apart(rows: int) -> None:
    line = "T.ptx["
    expect(boxes, {"rows": rows}, "global-race", line, line, zeros(32, 32), zeros(32, 32))


def test_what_there_is_no_room_for_is_said() -> None:
    @T.function
    def kernel(Out: T.Tensor((1 << 14, 64), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        for row in range(1 << 14):
            Out[row, 2 * T.cuda.lane_id()] = row

    with pytest.warns(RuntimeWarning, match="global memory .* in part"):
        assert found(kernel, zeros(1 << 14, 64, dtype="int32")) == []


def test_lanes_that_store_side_by_side_are_told_apart() -> None:
    """Two stores of every lane, next to one another; the second time another lane's are read."""

    def stores(fault: bool = False) -> Any:
        @T.function
        def kernel(Out: T.Tensor((8, 16), "int32"), Sum: T.Tensor((32,), "int32")):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            lane = T.cuda.lane_id()
            for element in range(2):
                Out[lane // 4, lane % 4 * 4 + element] = lane
            first = lane ^ 1 if T.constexpr(fault) else lane
            Sum[lane] = Out[first // 4, first % 4 * 4 + 1]

        return kernel

    arrays = zeros(8, 16, dtype="int32"), zeros(32, dtype="int32")
    expect(stores, {"fault": True}, "race", "Out[first", "Out[lane // 4", *arrays)


# ---------------------------------------------------------------------------- turns


def in_turns(between: bool = True, third: bool = True) -> Any:
    """Let two warps meet by themselves, and a third with them; all touch the same 64 bytes."""

    @T.function
    def kernel(Data: T.Tensor((96,), "int32"), Out: T.Tensor((96,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=96))
        tid, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
        if T.cuda.block_idx("x") == 0:
            for turn in range(3):
                if warp == 0 and tid < 8:
                    Data[tid] = turn
                if warp < 2:
                    if between:
                        T.ptx.bar.sync(2, 64)
                    if tid >= 32 and tid < 40:
                        Data[tid - 24] = Data[39 - tid]
                if third:
                    T.cuda.cta_sync()
                if tid >= 64 and tid < 72:
                    Out[tid] = Data[tid - 64]
                T.cuda.cta_sync()

    return kernel


@pytest.mark.parametrize(
    ("fault", "here"),
    [({"between": False}, "Data[tid - 24] ="), ({"third": False}, "Out[tid] =")],
)
def test_who_has_met_others_does_not_speak_for_a_third(fault: dict[str, bool], here: str) -> None:
    arrays = np.zeros(96, "int32"), np.zeros(96, "int32")
    expect(in_turns, fault, "race", here, "Data[tid] = turn", *arrays)


def permuted(meet: bool = True) -> Any:
    """Write all of a tensor again and again, by other threads each time."""

    @T.function
    def kernel(Data: T.Tensor((4, 128), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=128))
        tid = T.cuda.thread_idx("x")
        for turn in range(8):
            Data[T.cuda.block_idx("x"), (tid * 5 + turn * 31) % 128] = turn
            if meet or turn != 6:
                T.cuda.cta_sync()

    return kernel


def test_threads_that_write_in_turns_meet_in_between() -> None:
    for schedule in SCHEDULES:
        assert found(permuted(), np.zeros((4, 128), "int32"), schedule=schedule) == []
        faults = found(permuted(False), np.zeros((4, 128), "int32"), schedule=schedule)
        assert {each[0] for each in faults} == {"race"}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("known", [200, None])
def test_ctas_of_other_launches(
    workers: int, known: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of a launch neither hides what another one does nor is held against it."""
    if known is not None:
        # Numbers of CTAs begin again.
        monkeypatch.setattr(keeping, "MOST_CTAS", known)
    ctas = 60

    @T.function
    def kernel(Out: T.Tensor((ctas * N,), "float32"), turn: T.int32, step: T.int32):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=ctas, block=N))
        place = (T.cuda.block_idx("x") + turn) % ctas * step + T.cuda.thread_idx("x")
        Out[place] = T.cast(place, "float32")

    executable = tilewright.compile(kernel, backend="sim", check=True, workers=workers)
    array = zeros(ctas * N)
    for turn in range(9):
        executable(array, turn, N)
        if turn % 3 == 2:
            with pytest.raises(tilewright.CheckError) as raised:
                executable(array, turn, N - 1)
            assert raised.value.kind == "global-race"
    assert (array == np.arange(ctas * N)).all()


def gathered(ctas: int, writer: int, gathers: int) -> Any:
    """Read a row, gather from its first half, and have one CTA write its last element."""

    @T.function
    def kernel(
        D: T.Tensor((32,), "int32"),
        Places: T.Tensor((gathers, 32), "int32"),
        Out: T.Tensor((ctas, 32), "int32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=ctas, block=32))
        block, lane = T.cuda.block_idx("x"), T.cuda.lane_id()
        total: T.int32 = D[lane]
        for number in range(gathers):
            total += D[Places[number, lane]]
        T.cuda.cta_sync()
        if block == writer and lane == 7:
            D[31] = total
        Out[block, lane] = total

    return kernel


@pytest.mark.parametrize("gathers", [1, 4])
@pytest.mark.parametrize("ctas", [4, 16])
def test_a_write_among_many_runs_of_its_own_cta(ctas: int, gathers: int) -> None:
    """However much of its own lies between, a write meets what another CTA has read."""
    places = np.tile(np.arange(32, dtype="int32") // 2, (gathers, 1))
    places = np.random.default_rng(0).permuted(places, axis=1)
    for writer in (0, ctas - 1):
        for workers in (1, 2):
            arrays = np.zeros(32, "int32"), places, np.zeros((ctas, 32), "int32")
            told = found(gathered(ctas, writer, gathers), *arrays, workers=workers)
            assert {kind for kind, _, _ in told} == {"global-race"}, (writer, workers)


def test_arguments_beyond_those_that_are_watched_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @T.function
    def kernel(One: T.Tensor((N,), "float32"), Two: T.Tensor((N,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
        tid = T.cuda.thread_idx("x")
        One[tid] = T.float32(1)
        Two[tid] = T.float32(2)

    monkeypatch.setattr(state, "WATCHED", 1)
    executable = tilewright.compile(kernel, backend="sim", check=True)
    with pytest.warns(RuntimeWarning, match="too many arguments .* in part"):
        executable(zeros(N), zeros(N))
