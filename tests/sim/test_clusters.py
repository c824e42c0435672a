"""Clusters: their CTAs meet at the cluster's barrier, whatever the schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt
from tilewright.base.errors import DeadlockError, SimulationError, TargetError
from tilewright.isa import clusters
from tilewright.isa.named import form
from tilewright.sim.eager import EagerMachine, execute

T: Any = simt
ARRIVE, WAIT = form(clusters.cluster_arrive), form(clusters.cluster_wait)
SCHEDULES = ["late", "eager", "random:1", "random:2"]


@T.jit
def exchange(
    G: T.Tensor((24,), "int32"),
    Out: T.Tensor((24, 64), "int32"),
    cluster: T.constexpr,
    turns: T.constexpr,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(6, 4), block=64, cluster=cluster))
    x, y = T.cuda.block_idx("x"), T.cuda.block_idx("y")
    i = T.cuda.thread_idx("x")
    width, height = cluster
    for turn in range(turns):
        if i == 0:
            G[x + 6 * y] = G[x + 6 * y] + x + 10 * y + turn
        T.cuda.cluster_sync()
        total: T.int32 = 0
        for dy in range(height):
            for dx in range(width):
                total += G[x // width * width + dx + 6 * (y // height * height + dy)]
        Out[x + 6 * y, i] = total
        T.cuda.cluster_sync()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 4), (3, 2)])
def test_what_is_written_before_the_barrier_is_seen_behind_it(
    schedule: str, cluster: tuple[int, int]
) -> None:
    kernel = exchange.specialize(cluster=cluster, turns=3)
    ex = tilewright.compile(kernel, target="sm_90a", backend="sim", schedule=schedule)
    given, out = np.zeros(24, np.int32), np.zeros((24, 64), np.int32)
    ex(given, out)
    own = 3 * (np.arange(6) + 10 * np.arange(4)[:, None]) + 3
    width, height = cluster
    sums = own.reshape(4 // height, height, 6 // width, width).sum((1, 3))
    wanted = sums.repeat(height, 0).repeat(width, 1)
    assert np.array_equal(out.reshape(4, 6, 64), np.broadcast_to(wanted[..., None], (4, 6, 64)))


def test_clusters_beyond_what_fits_on_the_chip_begin_together() -> None:
    @T.function
    def wide(G: T.Tensor((3000, 2), "int32"), Out: T.Tensor((3000, 2), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=(3000, 2), block=1024, cluster=(1, 2)))
        x, y = T.cuda.block_idx("x"), T.cuda.block_idx("y")
        if T.cuda.thread_idx("x") == 0:
            G[x, y] = x + y
        T.cuda.cluster_sync()
        Out[x, y] = G[x, 1 - y]

    out = np.zeros((3000, 2), np.int32)
    ex = tilewright.compile(wide, target="sm_90a", backend="sim")
    ex(np.zeros_like(out), out)
    assert np.array_equal(out, np.arange(3000)[:, None] + [1, 0])


def test_a_cluster_may_be_known_only_at_the_launch() -> None:
    @T.function
    def neighbours(G: T.Tensor((8,), "int32"), Out: T.Tensor((8,), "int32"), size: T.int32):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=8, block=32, cluster=size))
        b = T.cuda.block_idx("x")
        if T.cuda.lane_id() == 0:
            G[b] = b * b
        T.cuda.cluster_sync()
        Out[b] = G[b // size * size + size - 1]

    ex = tilewright.compile(neighbours, target="sm_90a", backend="sim")
    for size in (1, 2, 8):
        out = np.zeros(8, np.int32)
        ex(np.zeros(8, np.int32), out, size)
        assert np.array_equal(out, (np.arange(8) // size * size + size - 1) ** 2)


def source(ex: tilewright.Executable) -> str:
    assert ex.cubin()
    return ex.source


def test_the_barrier_is_two_instructions_of_hopper() -> None:
    kernel = exchange.specialize(cluster=(2, 1), turns=1)
    text = source(tilewright.compile(kernel, target="sm_90", backend="sim"))
    assert "barrier.cluster.arrive.aligned;" in text and "barrier.cluster.wait.aligned;" in text
    assert "__cluster_dims__(2, 1, 1)" in text
    with pytest.raises(TargetError) as caught:
        tilewright.compile(kernel, target="sm_80", backend="sim")
    assert caught.value.code == "missing-instruction"


def test_nobody_waits_for_threads_that_have_exited() -> None:
    @T.function
    def leaves(Out: T.Tensor((4, 96), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=96, cluster=4))
        b, i = T.cuda.block_idx("x"), T.cuda.thread_idx("x")
        T.ptx.barrier.cluster.arrive.release()
        if b == 3 or (b == 2 and i < 40):
            return
        T.ptx.barrier.cluster.wait.acquire()
        T.ptx.barrier.cluster.arrive.relaxed()
        Out[b, i] = 1
        T.ptx.barrier.cluster.wait()

    for schedule in SCHEDULES:
        out = np.zeros((4, 96), np.int32)
        tilewright.compile(leaves, target="sm_90a", backend="sim", schedule=schedule)(out)
        stays = np.ones((4, 96), bool)
        stays[3], stays[2, :40] = False, False
        assert np.array_equal(out, stays)


def test_a_part_of_a_warp_may_arrive_later() -> None:
    @T.function
    def late(G: T.Tensor((2,), "int32"), Out: T.Tensor((2, 32), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32, cluster=2))
        b, i = T.cuda.block_idx("x"), T.cuda.lane_id()
        if i < 5:
            T.ptx.barrier.cluster.arrive()
            T.ptx.barrier.cluster.wait()
            Out[b, i] = G[1 - b]
        else:
            if i == 31:
                G[b] = 7 + b
            T.ptx.barrier.cluster.arrive()
            T.ptx.barrier.cluster.wait()
            Out[b, i] = -1

    for schedule in SCHEDULES:
        out = np.zeros((2, 32), np.int32)
        ex = tilewright.compile(late, target="sm_90a", backend="sim", schedule=schedule)
        ex(np.zeros(2, np.int32), out)
        assert out[:, :5].tolist() == [[8] * 5, [7] * 5] and (out[:, 5:] == -1).all()


# ---------------------------------------------------------------------------- faults


def fault(kernel: Any) -> SimulationError:
    with pytest.raises(SimulationError) as caught:
        tilewright.compile(kernel, target="sm_90a", backend="sim")(np.zeros(4, np.int32))
    return caught.value


def test_arriving_twice_is_a_fault() -> None:
    @T.function
    def twice(Out: T.Tensor((4,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32, cluster=2))
        T.ptx.barrier.cluster.arrive.aligned()
        T.ptx.barrier.cluster.arrive.aligned()

    error = fault(twice)
    assert error.code == "barrier-protocol" and "again before it has waited" in error.message


def test_waiting_without_arriving_is_a_fault() -> None:
    @T.function
    def never(Out: T.Tensor((4,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32, cluster=2))
        if T.cuda.lane_id() < 9:
            T.ptx.barrier.cluster.arrive()
        T.ptx.barrier.cluster.wait()

    error = fault(never)
    assert error.code == "barrier-protocol" and "without having arrived" in error.message


def test_a_deadlock_tells_of_all_the_cluster() -> None:
    @T.function
    def stuck(Out: T.Tensor((4,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=64, cluster=2))
        if T.cuda.block_idx("x") == 3:
            T.ptx.bar.sync(1, 128)
        T.cuda.cluster_sync()

    error = fault(stuck)
    assert isinstance(error, DeadlockError)
    notes = "\n".join(error.notes)
    assert "CTA (2, 0, 0)" in notes and "waits for its cluster: 64 of 128 threads" in notes
    assert "CTA (3, 0, 0)" in notes and "waits at barrier 1: 64 of 128 threads" in notes
    assert "CTA (0, 0, 0)" not in notes


# ---------------------------------------------------------------------------- the eager executor


def test_the_eager_executor_has_the_barrier_too() -> None:
    machine = EagerMachine(active=0xFF)
    machine.cluster.update(threads=40, expected=40)
    execute(ARRIVE, (), machine)
    with pytest.raises(DeadlockError):
        execute(WAIT, (), machine)
    with pytest.raises(SimulationError):
        execute(ARRIVE, (), machine)
    machine.mask[:] = ~machine.mask
    machine.set_cluster_state("arrived", machine.cluster_state("arrived") + 8)
    execute(ARRIVE, (), machine)
    assert machine.cluster == {"threads": 40, "expected": 40, "generation": 1, "arrived": 0}
    execute(WAIT, (), machine)
    assert machine.warp["cluster_arrived"] == 0xFF
