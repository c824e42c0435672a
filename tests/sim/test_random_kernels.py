"""Random kernels give what their threads do in plain Python, whatever runs them, and how."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from random_kernels import Maker, expected

import tilewright
from tilewright import sim
from tilewright.base.targets import target
from tilewright.frontend import parse

RUNS = (("late", 1), ("eager", 1), ("random", 1), ("random", 2), ("late", 2))
SPECIAL = (0, 1, -1, 127, 128, 255, -128, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 32, 64)


def inputs(seed: int, threads: int) -> np.ndarray:
    """Make the numbers that a kernel begins with: small, special and any."""
    random = np.random.default_rng(seed)
    given = random.integers(-(2**63), 2**63 - 1, (2, 5, threads))
    kind = random.integers(0, 3, given.shape)
    given = np.where(kind == 0, random.integers(-9, 10, given.shape), given)
    return np.where(kind == 1, random.choice(np.array(SPECIAL), given.shape), given)


def launched(
    built: sim.SimulatedKernel, options: sim.Options, given: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Run a kernel that is compiled already under other options."""
    wanted = np.zeros((2, 24, given.shape[2]), np.int64)
    integers, floats = wanted, wanted.astype(np.float32)
    arrays = (("Given", given), ("Integers", integers), ("Floats", floats))
    regions = [
        sim.Region(name, array.ctypes.data, array.nbytes, name != "Given") for name, array in arrays
    ]
    arguments = [*(array.ctypes.data for _, array in arrays), n]
    text: list[str] = []
    replace(built, options=options).launch(arguments, regions, (2, 1, 1), text.append)
    return integers, floats


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # to shrink a failure would take minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.randoms(use_true_random=False), st.integers(0, 2**16), st.booleans())
def test_random_kernels(random: Any, seed: int, warps_wait: bool) -> None:
    maker = Maker(random, warps_wait=warps_wait)
    text, body = maker.kernel()
    note(text)
    given, n = inputs(seed, maker.threads), seed % 7
    integers, floats = expected(body, given, n)
    kernel = tilewright.compile(parse(text), target="sm_90a").ir.kernels[0]
    # Every third kernel also as code for a processor without AVX and FMA.
    for cpu in (None, "x86-64-v2") if seed % 3 == 0 else (None,):
        built = sim.build(kernel, target("sm_90a"), sim.Options(cpu=cpu))
        for schedule, workers in RUNS:
            options = sim.Options(schedule, seed, workers=workers)
            found = launched(built, options, given, n)
            where = f"{schedule}, {workers} workers, {cpu}"
            np.testing.assert_array_equal(found[0], integers, where)
            bits, wanted = (each.view(np.uint32) for each in (found[1], floats))
            np.testing.assert_array_equal(bits, wanted, where)
