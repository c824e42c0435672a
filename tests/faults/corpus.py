"""The correct kernels that faults are made of: what they are given, and what they must give.

entry = corpus()["copy_ring"]
case = entry.make()
compile(case.program, target=entry.target)(*case.arguments)
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import kernels_ampere as ampere
import kernels_blackwell as blackwell
import kernels_hopper as hopper
import numpy as np

from tilewright import compat
from tilewright.ir.statements import Program

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parent.parent.parent
SEEDS = ROOT.parent / "shared" / "seeds"
GENERATIONS = {"sm_80": "Ampere", "sm_90a": "Hopper", "sm_100a": "Blackwell"}


@dataclass(frozen=True)
class Case:
    """A kernel with arguments of its own, and the arrays that they must be afterwards."""

    program: Program
    arguments: tuple[Any, ...]
    expected: dict[int, Array]

    def wrong(self) -> bool:
        """Tell whether an array is not what it must be."""
        return any(
            not np.array_equal(self.arguments[at], wanted) for at, wanted in self.expected.items()
        )


@dataclass(frozen=True)
class Entry:
    """A correct kernel. `make` gives it with fresh arguments; nothing is read before."""

    name: str
    target: str
    make: Callable[[], Case]

    @property
    def generation(self) -> str:
        """Name the generation of GPUs that it is written for."""
        return GENERATIONS[self.target]


_ENTRIES: dict[str, Entry] = {}


def entry(target: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a function that makes a case, by its name."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        _ENTRIES[make.__name__] = Entry(make.__name__, target, make)
        return make

    return register


def corpus() -> dict[str, Entry]:
    """Give every entry by its name; the seed programs only where they are."""
    return _ENTRIES


def integers(*shape: int, kind: Any = np.int32, most: int = 100, seed: int = 1) -> Array:
    """Draw small integers, whose sums and products are exact in any type here."""
    random = np.random.default_rng(seed)
    return random.integers(-most, most + 1, shape).astype(kind)


def nothing(*shape: int, kind: Any = np.int32) -> Array:
    """Make an array that is to be written, filled with what no kernel gives."""
    return np.full(shape, 99, kind)


def read(path: str) -> dict[str, Any]:
    """Run a file of the repository as an import would, once, and give its global names."""
    for folder in ("tests", str(Path(path).parent)):
        if str(ROOT / folder) not in sys.path:
            sys.path.append(str(ROOT / folder))
    return _read(path)


@cache
def _read(path: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / path))


def of_example(name: str, shape: tuple[int, int, int]) -> Case:
    """Give a product of an example, with matrices of small integers."""
    names = read(f"examples/{name}.py")
    m, n, k = shape
    kernel = names["pipelined_product"](m, n, k)
    return product(kernel.program, (m, k), (n, k))


def product(program: Program, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> Case:
    """Give a case of D = A · Bᵀ, all of whose sums are exact."""
    a = integers(*a_shape, kind=np.float16, most=4)
    b = integers(*b_shape, kind=np.float16, most=4, seed=2)
    d = np.full((a_shape[0], b_shape[0]), np.nan, np.float32)
    return Case(program, (a, b, d), {2: a.astype(np.float32) @ b.astype(np.float32).T})


# ---------------------------------------------------------------------------- examples


@entry("sm_80")
def vector_add() -> Case:
    a, b = integers(300, kind=np.float32), integers(300, kind=np.float32, seed=2)
    kernel = read("examples/vector_add.py")["vector_add"]
    return Case(kernel.program, (a, b, nothing(300, kind=np.float32)), {2: a + b})


@entry("sm_80")
def warp_product() -> Case:
    kernel = read("examples/warp_product.py")["warp_product"]
    return product(kernel.program, (64, 64), (32, 64))


@entry("sm_80")
def ampere_pipeline() -> Case:
    return of_example("ampere_pipeline", (128, 128, 192))


@entry("sm_90a")
def mbarrier_copy() -> Case:
    a = integers(256, kind=np.float32)
    kernel = read("examples/mbarrier_copy.py")["reverse"]
    return Case(kernel.program, (a, nothing(256, kind=np.float32)), {1: a[::-1]})


@entry("sm_90a")
def hopper_pipeline() -> Case:
    return of_example("hopper_pipeline", (64, 64, 512))


@entry("sm_100a")
def blackwell_product() -> Case:
    kernel = read("examples/blackwell_product.py")["product"]
    return product(kernel.program, (128, 64), (128, 64))


@entry("sm_100a")
def blackwell_pipeline() -> Case:
    return of_example("blackwell_pipeline", (128, 128, 512))


# ---------------------------------------------------------------------------- small ones, Ampere


@entry("sm_80")
def copy_ring() -> Case:
    a = integers(ampere.ROWS, 256)
    wanted = a[:, 255 - 4 * np.arange(ampere.THREADS)]
    return Case(ampere.copy_ring.program, (a, nothing(ampere.ROWS, ampere.THREADS)), {1: wanted})


@entry("sm_80")
def copies_of_a_warp() -> Case:
    a = integers(32)
    return Case(ampere.copies_of_a_warp.program, (a, nothing(32)), {1: a[::-1]})


@entry("sm_80")
def products_of_other_types() -> Case:
    # Ones times ones: as many as there are in a row.
    results = (
        np.full((32, 2), 0x4C004C00, np.uint32),  # 16, twice, in half precision
        np.full((32, 4), 32, np.int32),
        np.full((32, 4), 8, np.float32),
        np.full((32, 2), 4, np.float64),
    )
    given = tuple(np.zeros_like(each) for each in results)
    return Case(ampere.products_of_other_types.program, given, dict(enumerate(results)))


@entry("sm_80")
def copies_counted() -> Case:
    a = integers(2, 64)
    return Case(ampere.copies_counted.program, (a, nothing(2, 64)), {1: a[:, ::-1]})


@entry("sm_80")
def named_pipeline() -> Case:
    wanted = 100 * np.arange(6)[:, None] + np.arange(31, -1, -1)
    return Case(ampere.named_pipeline.program, (nothing(6, 32),), {0: wanted})


@entry("sm_80")
def barrier_spellings() -> Case:
    thread = np.arange(64)
    other = 63 - thread
    swapped = np.where(thread < 32, other + 300, other + 200)
    counted = [other + 400 + 5, other + 500 + 7, other + 600 + 9]
    wanted = np.stack([other, other + 100, swapped, *counted])
    return Case(ampere.barrier_spellings.program, (nothing(6, 64),), {0: wanted})


@entry("sm_80")
def warp_exchange() -> Case:
    a = np.arange(40, 72, dtype=np.int32)
    lane = np.arange(32)
    value = a[::-1]
    wanted = np.full((8, 32), 99)
    wanted[0] = value[lane ^ 1] + 1
    wanted[1] = value[lane ^ 3]
    wanted[2] = -1
    wanted[3] = 1
    wanted[4] = value.sum()
    # A register of an 8 × 8 matrix holds a pair of its row; the low half is the earlier one.
    halves = np.stack([value & 0xFFFF, value >> 16], 1).reshape(8, 8).T.reshape(32, 2)
    wanted[5] = halves[:, 0] | halves[:, 1] << 16
    wanted[6, :16] = value[:16].max() + 2 + value[15::-1] + 2
    wanted[7] = value[::-1] + 3
    return Case(ampere.warp_exchange.program, (a, nothing(8, 32)), {1: wanted})


@entry("sm_80")
def block_sum() -> Case:
    a = integers(128)
    return Case(ampere.block_sum.program, (a, nothing(128)), {1: np.full(128, a.sum())})


@entry("sm_80")
def histogram() -> Case:
    a = integers(256, kind=np.uint32, most=1000) % 1000
    wanted = np.bincount(a % 16, minlength=16)
    return Case(ampere.histogram.program, (a, nothing(16, kind=np.uint32)), {1: wanted})


@entry("sm_80")
def flag_in_the_cta() -> Case:
    return Case(ampere.flag_in_the_cta.program, (nothing(32),), {0: 3 * np.arange(31, -1, -1)})


@entry("sm_80")
def flags_between_ctas() -> Case:
    wanted = np.stack([np.arange(31, -1, -1) + 7, np.arange(31, -1, -1) + 50])
    arguments = (np.zeros(2, np.uint32), nothing(2, 32), nothing(2, 32))
    return Case(ampere.flag_between_ctas.program, arguments, {2: wanted})


@entry("sm_80")
def last_block() -> Case:
    a = integers(4, 64)
    arguments = (a, nothing(4), np.zeros(1, np.uint32), nothing(1))
    return Case(ampere.last_block.program, arguments, {3: a.sum(keepdims=True)[0]})


@entry("sm_80")
def read_only() -> Case:
    a = integers(64)
    return Case(ampere.read_only.program, (a, nothing(64)), {1: a[::-1]})


# ---------------------------------------------------------------------------- small ones, Hopper


@entry("sm_90a")
def bulk_round_trip() -> Case:
    a = integers(hopper.TILES, hopper.WORDS)
    return Case(hopper.bulk_round_trip.program, (a, np.zeros_like(a)), {1: a + 1000})


@entry("sm_90a")
def tensor_round_trip() -> Case:
    a = integers(32, 32, kind=np.float32)
    return Case(hopper.tensor_round_trip.program, (a, np.zeros_like(a)), {1: a + 100})


@entry("sm_90a")
def warps_apart() -> Case:
    a = integers(hopper.STEPS, hopper.WORDS)
    wanted = a.reshape(hopper.STEPS, 32, 4)[:, :, : hopper.CONSUMERS].transpose(2, 0, 1)
    arguments = (a, nothing(hopper.CONSUMERS, hopper.STEPS, 32))
    return Case(hopper.warps_apart.program, arguments, {1: wanted})


@entry("sm_90a")
def arrivals() -> Case:
    wanted = np.arange(63, -1, -1) + 100 * np.arange(5)[:, None]
    wanted[4] = 77
    return Case(hopper.arrivals.program, (nothing(5, 64),), {0: wanted})


@entry("sm_90a")
def matrix_out() -> Case:
    wanted = np.arange(256).reshape(8, 32)
    return Case(hopper.matrix_out.program, (nothing(8, 32, kind=np.uint16),), {0: wanted})


@entry("sm_90a")
def cluster_exchange() -> Case:
    block, lane = np.arange(4)[:, None] ^ 1, np.arange(31, -1, -1)
    wanted = np.stack([10 * block + lane, 100 * block + lane])
    arguments = (nothing(4, 32), nothing(2, 4, 32))
    return Case(hopper.cluster_exchange.program, arguments, {1: wanted})


# ---------------------------------------------------------------------------- small ones, Blackwell


@entry("sm_100a")
def cells() -> Case:
    words = 10 * np.arange(128)[:, None] + np.arange(4) + [0, 0, 1, 1]
    return Case(blackwell.cells.program, (nothing(128, 4, kind=np.uint32),), {0: words})


@entry("sm_100a")
def product_by_hand() -> Case:
    a = integers(2, blackwell.M, blackwell.K, kind=np.float16, most=4)
    b = integers(2, blackwell.N, blackwell.K, kind=np.float16, most=4, seed=2)
    wanted = np.einsum("smk,snk->mn", a.astype(np.float32), b.astype(np.float32))
    return Case(blackwell.product_by_hand.program, (a, b, np.zeros_like(wanted)), {2: wanted})


@entry("sm_100a")
def two_accumulators() -> Case:
    a = integers(blackwell.M, blackwell.K, kind=np.float16, most=4)
    b = integers(4, blackwell.N, blackwell.K, kind=np.float16, most=4, seed=2)
    wanted = np.einsum("mk,snk->smn", a.astype(np.float32), b.astype(np.float32))
    return Case(blackwell.two_accumulators.program, (a, b, np.zeros_like(wanted)), {2: wanted})


# ---------------------------------------------------------------------------- of other tests


def of_test(path: str, name: str, *arguments: Any, expected: dict[int, Array]) -> Case:
    """Give a kernel that another file of the repository has."""
    return Case(read(path)[name].program, arguments, expected)


@entry("sm_90a")
def lane_waits_for_the_other_arm() -> Case:
    wanted = np.array([100, *range(1, 32)])
    name = "lane_waits_for_the_other_arm"
    return of_test("tests/sim/test_paths.py", name, nothing(32), expected={0: wanted})


@entry("sm_90a")
def producer_and_consumers() -> Case:
    wanted = np.broadcast_to(2800 + 8 * np.arange(32), (4, 32))
    name = "producer_and_consumers"
    return of_test("tests/sim/test_paths.py", name, nothing(4, 32), expected={0: wanted})


@entry("sm_90a")
def waits_in_a_divergent_loop() -> Case:
    counts = np.minimum(np.arange(32) % 4, 2)
    wanted = counts + counts[np.arange(32) ^ 1]
    name = "waits_in_a_divergent_loop"
    return of_test("tests/sim/test_paths.py", name, nothing(32), expected={0: wanted})


@entry("sm_80")
def lanes_meet_at_a_shuffle() -> Case:
    lane = np.arange(32)
    wanted = np.where(lane < 16, np.minimum(lane + 1, 15) * 10, (lane ^ 3) * 100)
    name = "lanes_meet_at_a_shuffle"
    return of_test("tests/sim/test_paths.py", name, nothing(32), expected={0: wanted})


@entry("sm_80")
def flag_between_ctas() -> Case:
    arguments = (np.zeros(1, np.uint32), np.zeros(32, np.int32), nothing(32))
    wanted = 2 * (np.arange(32) + 7)
    name = "flag_between_ctas"
    return of_test("tests/sim/test_paths.py", name, *arguments, expected={2: wanted})


@entry("sm_80")
def warps_exit_before_a_barrier() -> Case:
    wanted = np.where(np.arange(4)[:, None] == 2, 10, 10 + 3 * 26)
    wanted = np.broadcast_to(wanted, (4, 32)).copy()
    wanted[3, 3] = 0
    arguments = (np.zeros((4, 32), np.int32), 0)
    name = "warps_exit_before_a_barrier"
    return of_test("tests/sim/test_paths.py", name, *arguments, expected={0: wanted})


@entry("sm_80")
def odd_block() -> Case:
    wanted = np.arange(44, -1, -1)
    arguments = (nothing(45, kind=np.uint32), nothing(45))
    return of_test("tests/sim/test_launches.py", "odd_block", *arguments, expected={1: wanted})


@entry("sm_90a")
def cluster_turns() -> Case:
    kernel = read("tests/sim/test_clusters.py")["exchange"].specialize(cluster=(3, 2), turns=2)
    own = 2 * (np.arange(6) + 10 * np.arange(4)[:, None]) + 1
    sums = own.reshape(2, 2, 2, 3).sum((1, 3)).repeat(2, 0).repeat(3, 1)
    wanted = np.broadcast_to(sums[..., None], (4, 6, 64)).reshape(24, 64)
    return Case(kernel.program, (np.zeros(24, np.int32), nothing(24, 64)), {1: wanted})


@entry("sm_80")
def three_stages() -> Case:
    kernel = read("tests/sim/test_cp_async.py")["pipelined"](keep=2)
    a = integers(24, 512, kind=np.float32)
    return Case(kernel.program, (a, np.zeros_like(a)), {1: a + 1})


@entry("sm_80")
def copies_of_some_lanes() -> Case:
    kernel = read("tests/sim/test_cp_async.py")["copier"](16, "ignored")
    a = integers(32, 4, kind=np.uint32, most=1000) % 1000
    taken = (np.arange(32, dtype=np.int32) % 3).astype(np.int32)
    wanted = np.where(taken[:, None] != 0, a, 0)[::-1]
    return Case(kernel.program, (a, taken, nothing(32, 4, kind=np.uint32)), {2: wanted})


@entry("sm_100a")
def through_tensor_memory() -> Case:
    make = read("tests/sim/test_tensor_memory.py")["through_tensor_memory"]
    kernel = make(wait_for_store=True, wait_for_load=True)
    wanted = 10 * np.arange(128)[:, None] + np.arange(4)
    return Case(kernel.program, (nothing(128, 4, kind=np.uint32),), {0: wanted})


@entry("sm_100a")
def two_products() -> Case:
    a = integers(128, 64, kind=np.float16, most=4)
    b = integers(64, 64, kind=np.float16, most=4, seed=2)
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    arguments = (a, a.view(np.uint32), b, np.zeros((2, 128, 64), np.float32))
    path = "tests/sim/test_tensor_memory.py"
    return of_test(path, "two_products", *arguments, expected={3: np.stack([wanted, wanted])})


@entry("sm_100a")
def halves_of_tensor_memory() -> Case:
    kernel = read("tests/sim/test_tensor_moves.py")["moving"]("16x32bx2", [1], False, 0)
    before = integers(128, 512, kind=np.uint32, most=1000) % 1000
    given = integers(128, 1, kind=np.uint32, most=1000) % 1000
    taken = nothing(128, 1, kind=np.uint32)
    left = nothing(1, 128, 512, kind=np.uint32)
    return Case(kernel.program, (before, given, taken, left), {})


@entry("sm_90a")
def swizzled_box() -> Case:
    names = read("tests/test_tensor_map_launches.py")
    a = integers(80, 64, kind=np.float16)
    out, image = names["expected_of_swizzled"](a, 30)
    arguments = (a, np.zeros_like(a), nothing(4096, kind=np.float16), 30)
    return Case(names["swizzled"].program, arguments, {1: out, 2: image})


_TOOL = "tools/device_kernels.py"


@entry("sm_80")
def spin_lock() -> Case:
    arguments = (np.zeros(1, np.uint32), np.zeros(1, np.int32))
    return of_test(_TOOL, "spin_lock", *arguments, expected={1: np.array([128])})


@entry("sm_90a")
def barrier_phases() -> Case:
    wanted = 10 * np.arange(63, -1, -1) + np.arange(4)[:, None]
    return of_test(_TOOL, "barrier_phases", nothing(4, 64), expected={0: wanted})


@entry("sm_80")
def named_barriers() -> Case:
    wanted = np.array([-1] * 32 + [3 * lane for lane in range(31, -1, -1)])
    return of_test(_TOOL, "named_barriers", nothing(64), expected={0: wanted})


@entry("sm_80")
def collectives() -> Case:
    a = integers(64, kind=np.float32)
    wanted = 100 * a.sum() + np.repeat(a.reshape(2, 32).max(1), 32)
    arguments = (a, nothing(64, kind=np.float32))
    return of_test(_TOOL, "collectives", *arguments, expected={1: wanted})


@entry("sm_80")
def dynamic_shared() -> Case:
    wanted = (np.arange(256) + 1) % 256 * sum(range(100))
    return of_test(_TOOL, "dynamic_shared", nothing(256), expected={0: wanted})


@entry("sm_80")
def counted() -> Case:
    values = integers(256, kind=np.uint32, most=1000) % 1000
    wanted = np.bincount(values % 8, minlength=8)
    return of_test(_TOOL, "counted", np.zeros(8, np.uint32), values, expected={0: wanted})


@entry("sm_80")
def two_kernels() -> Case:
    a = integers(64)
    wanted = 2 * (a[::-1] + 1)
    return of_test(_TOOL, "two_kernels", a, nothing(64), expected={1: wanted})


@entry("sm_90a")
def box_round_trip() -> Case:
    kernel = read(_TOOL)["boxes"]("float16", 64, 40, 1, 3, 0)
    a = integers(40, 72, kind=np.float16)
    wanted = np.zeros_like(a)
    wanted[:, :64] = a[:, :64]
    arguments = (a, np.zeros_like(a), nothing(2048, kind=np.uint32), 0, 0)
    return Case(kernel.program, arguments, {1: wanted})


# ---------------------------------------------------------------------------- seed programs


def of_seed(name: str) -> Any:
    """Read the kernel of a program that others wrote, without running the rest."""
    path = SEEDS / f"{name}.py"
    text = path.read_text().partition("\nimport torch")[0]
    compat.install(replace=True)
    try:
        names: dict[str, Any] = {"__file__": str(path), "__name__": name}
        exec(compile(text, str(path), "exec"), names)
    finally:
        compat.uninstall()
    return names[name]


if SEEDS.is_dir():

    @entry("sm_100a")
    def blackwell_matmul() -> Case:
        return product(of_seed("blackwell_matmul").program, (128, 64), (64, 64))

    @entry("sm_80")
    def warp_matmul() -> Case:
        return product(of_seed("warp_matmul").program, (16, 16), (8, 16))
