"""How fast other simulators multiply: measured where they are installed, as quoted elsewhere.

    python benchmarks/peers.py [--only "mma.sync exact"]

A peer multiplies square matrices of float16 in a process of its own, with tiles as on a GPU. Its
size is small, as a product of 1024 takes it up to minutes, at about the same speed. What it gives
has to be right: the matrices hold small integers, so that every order of sums is exact.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import os
import subprocess
import sys
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TILE, STEP = 128, 64
REPEATS = 3
MOST_SECONDS = 120.0
QUOTED_SIZE = 1024


# ------------------------------------------------------------------- how each multiplies


def triton_interpreter(a: Array, b: Array, wrap: Callable[[Any], Any] | None = None) -> Array:
    """Multiply in Triton, whose interpreter the environment asks for."""
    torch = importlib.import_module("torch")
    product, size = _triton_kernel(wrap), len(a)
    d = torch.zeros((size, size))
    programs = (size // TILE, size // TILE)
    product[programs](torch.from_numpy(a), torch.from_numpy(b), d, size, TILE, STEP)
    return d.numpy()


@functools.cache
def _triton_kernel(wrap: Callable[[Any], Any] | None) -> Any:
    product = importlib.import_module("triton_product").product
    return product if wrap is None else wrap(product)


def triton_viz(a: Array, b: Array) -> Array:
    """Multiply in the same kernel, which triton-viz traces."""
    return triton_interpreter(a, b, _traced)


def _traced(kernel: Any) -> Any:
    return importlib.import_module("triton_viz").trace("tracer")(kernel)


def pallas_interpreter(a: Array, b: Array) -> Array:
    """Multiply in JAX Pallas, as its interpreter of Mosaic GPU does."""
    return np.asarray(_pallas_kernel(len(a))(a, b))


@functools.cache
def _pallas_kernel(size: int) -> Any:
    return importlib.import_module("pallas_product").product(size, TILE, STEP)


def mmasim_blackwell(a: Array, b: Array) -> Array:
    """Sum as mmasim's tcgen05 does, all of the result at once."""
    return _mmasim("TCGen05MMA", "Blackwell", "m128n128k16.kind::f16.f32.f16.f16", a, b)


def mmasim_ampere(a: Array, b: Array) -> Array:
    """Sum as mmasim's mma does, all of the result at once."""
    return _mmasim("MMA", "Ampere", "m16n8k16.f32.f16.f16.f32", a, b)


def _mmasim(kind: str, generation: str, form: str, a: Array, b: Array) -> Array:
    torch = importlib.import_module("torch")
    multiply = getattr(importlib.import_module("mmasim.nv_ptx"), kind)(generation, form)
    zero = torch.zeros((len(a), len(a)))
    return multiply(torch.from_numpy(a), torch.from_numpy(b), zero).numpy()


# ---------------------------------------------------------------------------- the peers


@dataclass(frozen=True)
class Peer:
    """Another simulator.

    `quoted` is its speed at 1024 on two cores with AVX-512, as a share of NumPy's float32 product.
    `module` is what has to be there for `product`, which multiplies matrices of `size`.
    Without `product` there is but the quoted figure.
    """

    name: str
    quoted: float
    module: str = ""
    product: Callable[[Array, Array], Array] | None = None
    size: int = 256
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def installed(self) -> bool:
        """Tell whether this Python finds the peer, without importing it."""
        return self.product is not None and importlib.util.find_spec(self.module) is not None

    def gflops(self) -> float:
        """Measure the speed in a new process; its last line says what failed, as RuntimeError."""
        assert self.product is not None
        script = f"import peers; print(peers.seconds(peers.{self.product.__name__}, {self.size}))"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            cwd=Path(__file__).parent,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
        return 2 * self.size**3 / 1e9 / float(done.stdout.split()[-1])


INTERPRET = {"TRITON_INTERPRET": "1"}
# Instruction and numerics: those whose kernels do about the same.
PEERS = {
    ("tcgen05", "fast"): (
        # Its engine is compiled by Cargo, with crates that no Python package brings.
        Peer("tirx-harness", 0.008),
        Peer(
            "JAX Pallas Mosaic-GPU",
            0.001,
            "jax",
            pallas_interpreter,
            environment={"JAX_PLATFORMS": "cpu"},
        ),
        Peer("triton-viz", 0.0002, "triton_viz", triton_viz, environment=INTERPRET),
    ),
    ("mma.sync", "fast"): (
        Peer("Triton interpreter", 0.005, "triton", triton_interpreter, environment=INTERPRET),
    ),
    ("tcgen05", "exact"): (Peer("mmasim", 0.0003, "mmasim", mmasim_blackwell, 128),),
    ("mma.sync", "exact"): (Peer("mmasim", 0.0003, "mmasim", mmasim_ampere, 128),),
}


def seconds(product: Callable[[Array, Array], Array], size: int) -> float:
    """Time a product that is right, after one that is not counted; ValueError if it is wrong."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-8, 9, (size, size)).astype(np.float16) for _ in "ab")
    if not np.array_equal(product(a, b), a.astype(np.float32) @ b.astype(np.float32)):
        raise ValueError("the product is wrong")
    return median(timeit.repeat(lambda: product(a, b), number=1, repeat=REPEATS))


def compare(peer: Peer, numpy_gflops: float) -> dict[str, Any]:
    """Set a peer beside NumPy's GFLOP/s at 1024; one that fails is quoted, and stderr says why."""
    quoted = {"name": peer.name, "of_numpy": peer.quoted, "measured": False, "size": QUOTED_SIZE}
    if not peer.installed():
        return quoted
    try:
        share = peer.gflops() / numpy_gflops
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"{peer.name}: {error}", file=sys.stderr)
        return quoted
    return {"name": peer.name, "of_numpy": share, "measured": True, "size": peer.size}


def beside(instruction: str, numerics: str, numpy_gflops: float) -> list[dict[str, Any]]:
    """Set the peers of an instruction beside NumPy's GFLOP/s at 1024."""
    return [compare(peer, numpy_gflops) for peer in PEERS.get((instruction, numerics), ())]


def cell(peers: list[dict[str, Any]]) -> str:
    """Write what was measured or quoted in a few words."""

    def words(peer: dict[str, Any]) -> str:
        source = f"measured at {peer['size']}" if peer["measured"] else "quoted"
        return f"{peer['name']} {100 * peer['of_numpy']:.2g} % ({source})"

    return ", ".join(map(words, peers))


def main() -> None:
    """Print the peers of each instruction."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="instructions and numerics that have this text")
    given = parser.parse_args()
    names = [f"{instruction} {numerics}" for instruction, numerics in PEERS]
    if not any(given.only in name for name in names):
        parser.error(f"--only {given.only}: there are {', '.join(names)}")
    random = np.random.default_rng(0)
    a, b = (random.random((QUOTED_SIZE, QUOTED_SIZE), np.float32) for _ in "ab")
    taken = timeit.repeat(lambda: a @ b, number=1, repeat=REPEATS)
    numpy_gflops = 2 * QUOTED_SIZE**3 / 1e9 / median(taken)
    for instruction, numerics in PEERS:
        name = f"{instruction} {numerics}"
        if given.only in name:
            print(f"{name:14}  {cell(beside(instruction, numerics, numpy_gflops))}")


if __name__ == "__main__":
    main()
