"""Launches: shapes, many CTAs, what they print, which fault is told, several threads at once.

Bytes, text and reports are the same on any number of workers.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.base.dtypes import dtype
from tilewright.frontend import parse_function

TARGET = "sm_90a"


def run(kernel, *arguments, **options):
    tilewright.compile(kernel, target=TARGET, **options)(*arguments)


# ---------------------------------------------------------------------------- shapes


@T.function
def thread_numbers(Out: T.Tensor((2, 3, 2, 210), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(2, 3, 2), block=(7, 5, 6)))
    x, y, z = T.cuda.thread_idx("x"), T.cuda.thread_idx("y"), T.cuda.thread_idx("z")
    i, j, k = T.cuda.block_idx("x"), T.cuda.block_idx("y"), T.cuda.block_idx("z")
    Out[i, j, k, x + 7 * y + 35 * z] = x + 10 * y + 100 * z + 1000 * i + 10000 * j + 100000 * k


@pytest.mark.parametrize("workers", [1, 2])
def test_blocks_and_grids_of_three_dimensions(workers):
    out = np.full((2, 3, 2, 210), -1, np.int32)
    run(thread_numbers, out, workers=workers)
    i, j, k, t = np.indices(out.shape)
    x, y, z = t % 7, t // 7 % 5, t // 35
    assert np.array_equal(out, x + 10 * y + 100 * z + 1000 * i + 10000 * j + 100000 * k)


@T.function
def odd_block(Out: T.Tensor((45,), "uint32"), Sum: T.Tensor((45,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=45))
    i = T.cuda.thread_idx("x")
    a = T.alloc_shared((45,), "int32", layout="default", align=16)
    a[i] = i
    T.cuda.cta_sync()
    mask: T.uint32
    T.ptx["activemask.b32"](mask)
    Out[i] = mask
    Sum[i] = a[44 - i]


def test_a_block_with_part_of_a_warp():
    out, total = np.zeros(45, np.uint32), np.zeros(45, np.int32)
    run(odd_block, out, total)
    assert out.tolist() == [0xFFFFFFFF] * 32 + [0x1FFF] * 13
    assert total.tolist() == list(range(44, -1, -1))


@T.function
def one_number_each(Out: T.Tensor((10_000,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=10_000, block=1))
    Out[T.cuda.block_idx("x")] = T.cuda.block_idx("x")


@pytest.mark.parametrize("workers", [1, 2])
def test_ten_thousand_ctas(workers):
    out = np.zeros(10_000, np.int32)
    run(one_number_each, out, workers=workers)
    assert np.array_equal(out, np.arange(10_000))


# ---------------------------------------------------------------------------- determinism


@T.function
def reads_what_nobody_wrote(Out: T.Tensor((40, 8, 32), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=40, block=32))
    cta, lane = T.cuda.block_idx("x"), T.cuda.lane_id()
    shared = T.alloc_shared((64,), "uint32", layout="default", align=16)
    local = T.alloc_local((4,), "uint32", layout="default")
    cell: T.uint32
    if lane % 2 == 1:
        cell = lane
    time = T.cuda.clock64()
    Out[cta, 0, lane] = shared[lane]
    Out[cta, 1, lane] = shared[lane + 32]
    Out[cta, 2, lane] = local[0]
    Out[cta, 3, lane] = local[lane % 4]
    Out[cta, 4, lane] = cell
    Out[cta, 5, lane] = T.cast(time, "uint32")
    shared[lane] = cta + 1
    for j in range(4):
        local[j] = cta + 2
    T.cuda.warp_sync()
    Out[cta, 6, lane] = shared[31 - lane] + local[lane % 4]


@pytest.mark.parametrize("schedule", ["late", "random:1"])
def test_what_was_never_written_is_the_same_in_every_cta(schedule):
    found = []
    for workers in (1, 2):
        out = np.zeros((40, 8, 32), np.uint32)
        run(reads_what_nobody_wrote, out, workers=workers, schedule=schedule)
        found.append(out)
    assert np.array_equal(*found)
    assert np.array_equal(found[0][:, :6], np.broadcast_to(found[0][0, :6], (40, 6, 32)))
    # It is no useful number either.
    assert np.all(found[0][:, :4] == 0xFFFFFFFF)


# ---------------------------------------------------------------------------- faults


@T.function
def faults_from(Out: T.Tensor((64,), "int32"), first: T.int32, slow: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=64, block=32))
    cta = T.cuda.block_idx("x")
    turns: T.int32 = 0
    if cta == first:
        # The first CTA at fault meets its fault last of all.
        while turns < slow:
            turns += 1
    if cta >= first:
        Out[64 + cta] = turns
    Out[cta] = 1


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("first", [0, 9, 63])
def test_the_fault_of_the_first_cta_is_told(workers, first):
    out = np.zeros(64, np.int32)
    with pytest.raises(tilewright.MemoryFault) as caught:
        run(faults_from, out, first, 2_000_000, workers=workers)
    assert f"CTA ({first}, 0, 0)" in str(caught.value)
    assert out[:first].all()
    assert not out[first:].any()


@T.function
def one_faults_others_are_endless(Out: T.Tensor((4,), "int32"), at: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=8, block=32))
    cta = T.cuda.block_idx("x")
    x: T.int32 = 1
    if cta == at:
        Out[at + 4] = 1
    if cta > at:
        while x != 0:
            x += 2


@pytest.mark.parametrize("at", [0, 1, 5])
def test_ctas_after_the_one_at_fault_need_not_end(at):
    with pytest.raises(tilewright.MemoryFault) as caught:
        run(one_faults_others_are_endless, np.zeros(4, np.int32), at, workers=3)
    assert f"CTA ({at}, 0, 0)" in str(caught.value)


@T.function
def many_long_ctas(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1000, block=32))
    x: T.int32 = 1
    for _ in range(100_000_000):
        x += x // 3
    Out[0] = x


def test_an_interrupt_ends_many_ctas():
    script = (
        "import _thread, threading, time, numpy as np, tilewright\n"
        "from test_launches import many_long_ctas\n"
        "executable = tilewright.compile(many_long_ctas, target='sm_80')\n"
        "for delay in (1.0, 1.05, 1.1):\n"
        "    threading.Timer(delay, _thread.interrupt_main).start()\n"
        "try:\n"
        "    executable(np.zeros(1, np.int32))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', [t.name for t in threading.enumerate() if not t.daemon][:1])\n"
        "try:\n    time.sleep(1)\nexcept KeyboardInterrupt:\n    pass\n"
    )
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("interrupted"), done.stderr
    assert time.monotonic() - start < 30


# ---------------------------------------------------------------------------- several at once


def test_one_executable_in_several_threads():
    executable = tilewright.compile(thread_numbers, target=TARGET, workers=2)
    outs = [np.full((2, 3, 2, 210), -1, np.int32) for _ in range(4)]

    def launch(out):
        for _ in range(5):
            executable(out)

    threads = [threading.Thread(target=launch, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = np.full((2, 3, 2, 210), -1, np.int32)
    executable(expected)
    assert all(np.array_equal(out, expected) for out in outs)


def _launch_in_child(executable, queue):
    out = np.zeros(10_000, np.int32)
    executable(out)
    again = np.zeros(45, np.uint32)
    run(odd_block, again, np.zeros(45, np.int32))
    queue.put((int(out.sum()), int(again[-1])))


def test_a_forked_process_launches_too():
    executable = tilewright.compile(one_number_each, target=TARGET)
    executable(np.zeros(10_000, np.int32))
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        queue = context.SimpleQueue()
        child = context.Process(target=_launch_in_child, args=(executable, queue))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        assert queue.get() == (10_000 * 9_999 // 2, 0x1FFF)


# ---------------------------------------------------------------------------- printing


@T.function
def prints_much():
    T.device_entry(launch=T.cuda.LaunchConfig(grid=100, block=33))
    cta, i = T.cuda.block_idx("x"), T.cuda.thread_idx("x")
    turns: T.int32 = 1
    if cta == 50:
        turns = 90  # 90 records of two warps, beyond the 64 KiB of the buffer
    for j in range(turns):
        T.cuda.printf("%d %d %d\n", cta, j, i)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctas_print_in_order_and_lose_nothing(workers, capsys):
    run(prints_much, workers=workers)
    lines = capsys.readouterr().out.splitlines()
    expected = []
    for cta in range(100):
        turns = 90 if cta == 50 else 1
        first = [f"{cta} {j} {i}" for j in range(turns) for i in range(32)]
        second = [f"{cta} {j} 32" for j in range(turns)]
        expected.append((first, second))
    for first, second in expected:
        mine, lines = lines[: len(first) + len(second)], lines[len(first) + len(second) :]
        assert [line for line in mine if not line.endswith(" 32")] == first
        assert [line for line in mine if line.endswith(" 32")] == second
    assert not lines


@T.function
def prints_then_faults(Out: T.Tensor((4,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=20, block=1))
    cta = T.cuda.block_idx("x")
    T.cuda.printf("%d\n", cta)
    if cta >= 7:
        Out[cta] = 1


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_what_is_printed_before_a_fault_is_always_the_same(workers, capsys):
    for _ in range(5):
        with pytest.raises(tilewright.MemoryFault):
            run(prints_then_faults, np.zeros(4, np.int32), workers=workers)
        assert capsys.readouterr().out.split() == [str(cta) for cta in range(8)]


# ---------------------------------------------------------------------------- clusters


@T.function
def cluster_ids(Out: T.Tensor((8, 4), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=8, block=32, cluster=4))
    cta = T.cuda.block_idx("x")
    Out[cta, 0] = T.cuda.cluster_id("x")
    Out[cta, 1] = T.cuda.cluster_cta_id("x")
    Out[cta, 2] = T.cuda.cluster_dim("x")


def test_ctas_know_their_cluster():
    out = np.zeros((8, 4), np.int32)
    run(cluster_ids, out)
    assert out[:, :3].tolist() == [[cta // 4, cta % 4, 4] for cta in range(8)]


@T.function
def endless_ctas(Out: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=8, block=32))
    x: T.int32 = 1
    if T.cuda.block_idx("x") >= 3:
        while x != 0:
            x += 2


@pytest.mark.parametrize("workers", [1, 3])
def test_the_step_limit_names_the_first_cta(workers):
    with pytest.raises(tilewright.StepLimit) as caught:
        run(endless_ctas, np.zeros(1, np.int32), workers=workers, step_limit=1_000_000)
    assert "CTA (3, 0, 0)" in str(caught.value)


# ---------------------------------------------------------------------------- nothing written yet

NUMBERS = ["int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("kind", [*NUMBERS, "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("place", ["x: T.{}", "x = T.local_scalar('{}')", "x: T.{}[1]"])
def test_what_is_not_written_yet_has_all_bits_set(kind: str, place: str) -> None:
    of_array = place.endswith("[1]")
    name = "x[0]" if of_array else "x"
    bits = dtype(kind).bits
    text = f"""
from tilewright import simt as T

@T.function
def k(O: T.Tensor((2, 32), "uint{bits}")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    i = T.cuda.lane_id()
    for j in range(2):
        {place.format(kind)}
        O[j, i] = T.reinterpret("uint{bits}", {name})
        {"" if of_array else name + f" = T.cast(i, '{kind}')"}
"""
    out = np.zeros((2, 32), f"uint{bits}")
    tilewright.compile(parse_function(text), target="sm_90a", backend="sim")(out)
    assert set(out.ravel().tolist()) == {2**bits - 1}
