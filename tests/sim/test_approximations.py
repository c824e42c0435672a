"""Approximate functions with `exact` numerics: a chip's own bits, on both executors.

`tests/data/approximation_sums.npz` was read off an NVIDIA H200: for operands with the same upper 16
bits (one of `blocks`) and each lower half i, a form's sum of (2 · i + 1) times the bits of its
result, modulo 2^64.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.base.dtypes import FLOAT32
from tilewright.base.targets import target
from tilewright.isa.declaration import spell
from tilewright.sim import approximations
from tilewright.sim.eager import EagerMachine

Array = np.ndarray[Any, Any]
SUMS = Path(__file__).parent.parent / "data" / "approximation_sums.npz"
TABLES = Path(approximations.__file__).parent / "data" / "mufu.npz"
NAMES = ("ex2", "lg2", "rcp", "rsqrt", "sqrt")
FORMS = [f"{name}.approx{ftz}.f32" for ftz in (".ftz", "") for name in NAMES]
NAN, INFINITY, MINUS = 0x7FFFFFFF, 0x7F800000, 0x80000000
WHERE = "sm_90a"
_COUNT = 1 << 12  # operands of a CTA


@cache
def program(text: str, numerics: str) -> Any:
    @T.function
    def kernel(
        A: T.Tensor((T.dynamic("n"),), "float32"), B: T.Tensor((T.dynamic("n"),), "float32")
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=T.dynamic("n") // _COUNT, block=128))
        first = T.cuda.block_idx("x") * _COUNT + T.cuda.thread_idx("x")
        found: T.float32 = 0
        for j in range(_COUNT // 128):
            T.ptx[text](found, A[first + 128 * j])
            B[first + 128 * j] = found

    return tilewright.compile(kernel, target=WHERE, backend="sim", numerics=numerics)


def natively(text: str, operands: Array, numerics: str = "exact") -> Array:
    """Apply a form to the bits of operands, any number of them."""
    padded = np.zeros(-(-operands.size // _COUNT) * _COUNT, np.uint32)
    padded[: operands.size] = operands
    found = np.zeros(padded.size, np.float32)
    program(text, numerics)(padded.view(np.float32), found)
    return found.view(np.uint32)[: operands.size]


def eagerly(text: str, operands: Array, numerics: str = "exact") -> Array:
    (form,) = spell(text).forms()
    machine = EagerMachine(exact=target(WHERE) if numerics == "exact" else None)
    given = machine.lanes(FLOAT32, operands.astype(np.uint32).view(np.float32))
    assert form.declaration.compute is not None
    (found,) = form.declaration.compute(machine, form, given)
    return np.ascontiguousarray(found.value).view(np.uint32)


EXECUTORS = pytest.mark.parametrize("run", [natively, eagerly])


def bits(values: Any) -> Array:
    return np.atleast_1d(np.asarray(values, np.float32)).view(np.uint32)


# ---------------------------------------------------------------------------- what a chip gave


@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize(("run", "step"), [(natively, 1), (eagerly, 6)])
def test_results_add_up_as_on_the_chip(text: str, run: Any, step: int) -> None:
    with np.load(SUMS) as file:
        blocks, sums = file["blocks"][::step], file[text][::step]
    low = np.arange(1 << 16, dtype=np.uint32)
    odd = 2 * low.astype(np.uint64) + 1
    for block, wanted in zip(blocks, sums, strict=True):
        found = run(text, low + (block << np.uint32(16)))
        assert (found.astype(np.uint64) * odd).sum() == wanted, hex(int(block) << 16)


CORRECT: dict[str, Any] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
}


def tabulated(name: str, step: int = 61) -> tuple[Array, Array]:
    """Give the operands of which the file has a chip's results, and these."""
    with np.load(TABLES) as file:
        operands = np.arange(int(file[f"{name}.lo"]), int(file[f"{name}.hi"]), dtype=np.uint32)
        difference = file[f"{name}.diff"][::step].astype(np.int64)
    operands = operands[::step]
    nearest = CORRECT[name](operands.view(np.float32).astype(np.float64)).astype(np.float32)
    return operands, (nearest.view(np.uint32) + difference).astype(np.uint32)


@EXECUTORS
@pytest.mark.parametrize("name", NAMES)
def test_tabulated_octaves(name: str, run: Any) -> None:
    operands, wanted = tabulated(name)
    np.testing.assert_array_equal(run(f"{name}.approx.ftz.f32", operands), wanted)


# ---------------------------------------------------------------------------- what follows from it


@EXECUTORS
@pytest.mark.parametrize("power", [-126, -125, -60, -1, 0, 1, 77, 125])
@pytest.mark.parametrize("sign", [0, MINUS])
def test_reciprocals_of_other_octaves(run: Any, power: int, sign: int) -> None:
    operands, wanted = tabulated("rcp", 4001)
    operands = (operands + np.uint32((power << 23) & 0xFFFFFFFF)) | np.uint32(sign)
    wanted = (wanted - np.uint32((power << 23) & 0xFFFFFFFF)) | np.uint32(sign)
    np.testing.assert_array_equal(run("rcp.approx.ftz.f32", operands), wanted)


@EXECUTORS
@pytest.mark.parametrize("power", [-63, -20, 0, 1, 63])
def test_roots_of_other_octaves(run: Any, power: int) -> None:
    for name, change in (("sqrt", power), ("rsqrt", -power)):
        operands, wanted = tabulated(name, 4001)
        operands = operands + np.uint32((2 * power << 23) & 0xFFFFFFFF)
        wanted = wanted + np.uint32((change << 23) & 0xFFFFFFFF)
        np.testing.assert_array_equal(run(f"{name}.approx.ftz.f32", operands), wanted)


@EXECUTORS
@pytest.mark.parametrize("whole", [0, 1, 2, 5, 100, 125])
def test_powers_of_two_of_other_numbers(run: Any, whole: int) -> None:
    """Of a fraction what counts is 23 bits, below zero their complement."""
    count = 1 << 10
    drop = max(whole.bit_length() - 1, 0)  # bits that a float32 of that size has not
    fraction = np.random.default_rng(whole).integers(0, 1 << 23 - drop, count) << drop
    fraction[:3] = [0, 1 << drop, (1 << 23) - (1 << drop)]
    with np.load(TABLES) as file:
        difference = file["ex2.diff"].astype(np.int64)

    def power(at: Array) -> Array:
        nearest = np.exp2(1 + at / 2.0**23).astype(np.float32)
        return nearest.view(np.uint32) + difference[at]  # of 1 + at

    given = (whole + fraction / 2.0**23).astype(np.float32)
    above = run("ex2.approx.ftz.f32", bits(given))
    np.testing.assert_array_equal(above, power(fraction) + ((whole - 1) << 23))
    below = run("ex2.approx.ftz.f32", bits(-given))
    exact, other = fraction == 0, (1 << 23) - 1 - fraction
    wanted = np.where(exact, power(0 * other), power(other)) + ((-whole - 2 + exact) << 23)
    np.testing.assert_array_equal(below, wanted)


@EXECUTORS
@pytest.mark.parametrize("power", [2, 3, 10, 127, -2, -3, -10, -126])
def test_logarithms_of_other_octaves(run: Any, power: int) -> None:
    """They are the tabulated one, which has 23 bits, and a whole number, cut off at 24 digits."""
    operands, results = tabulated("lg2", 4001)
    fraction = (results & ((1 << 23) - 1)).astype(np.int64)
    operands = operands + np.uint32((power - 1 << 23) & 0xFFFFFFFF)
    # Below zero the digits are inverted; those that are not tabulated do not come to naught.
    size = (power << 23) + fraction if power > 0 else (-power << 23) - fraction - 1
    wanted = np.sign(power) * np.array([_cut(int(each)) for each in size], np.float64) / 2.0**23
    np.testing.assert_array_equal(run("lg2.approx.ftz.f32", operands), bits(wanted))


def _cut(whole: int) -> int:
    lost = max(whole.bit_length() - 24, 0)
    return whole >> lost << lost


@EXECUTORS
def test_what_is_known_of_logarithms(run: Any) -> None:
    given = np.array([0x7F7FFFFF, 0x00800000, 0x3F800000], np.uint32)
    assert run("lg2.approx.ftz.f32", given).tolist() == [0x42FFFFFF, 0xC2FBFFFF, 0]


# zeros, subnormals, a negative number, infinities, NaNs
SPECIAL = np.array(
    [0, MINUS, 1, MINUS | 1, 0xBF800000, INFINITY, MINUS | INFINITY, 0x7FC00000, 0xFF800001],
    np.uint32,
)
_INFINITIES = [INFINITY, MINUS | INFINITY]
SPECIAL_RESULTS = {
    "ex2": [0x3F800000] * 4 + [0x3F000000, INFINITY, 0, NAN, NAN],
    "lg2": [MINUS | INFINITY] * 4 + [NAN, INFINITY, NAN, NAN, NAN],
    "rcp": [*_INFINITIES, *_INFINITIES, 0xBF800000, 0, MINUS, NAN, NAN],
    "rsqrt": [*_INFINITIES, *_INFINITIES, NAN, 0, NAN, NAN, NAN],
    "sqrt": [0, MINUS, 0, MINUS, NAN, INFINITY, NAN, NAN, NAN],
}


@EXECUTORS
@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("name", NAMES)
def test_special_operands(name: str, run: Any, numerics: str) -> None:
    found = run(f"{name}.approx.ftz.f32", SPECIAL, numerics)
    assert [*map(hex, found)] == [*map(hex, SPECIAL_RESULTS[name])]


@EXECUTORS
def test_results_that_would_be_subnormal(run: Any) -> None:
    rcp = run("rcp.approx.ftz.f32", bits([2.0**126, 2.0**126 * 1.5, -(2.0**127)]))
    assert rcp.tolist() == [0x00800000, 0, MINUS]
    ex2 = run("ex2.approx.ftz.f32", bits([-126, -126.5, -127, -1e30, 128, 127]))
    assert ex2.tolist() == [0x00800000, 0, 0, 0, INFINITY, 0x7F000000]


# ---------------------------------------------------------------------------- without `.ftz`


@EXECUTORS
def test_subnormal_numbers_are_scaled(run: Any) -> None:
    """The assembler brings them into the unit's range, and the results back."""
    small = np.random.default_rng(0).integers(1, 1 << 23, 500).astype(np.uint32)
    single = small.view(np.float32)

    def unit(name: str, operands: Array) -> Array:
        return run(f"{name}.approx.ftz.f32", bits(operands)).view(np.float32)

    scaled = single * np.float32(2.0**24)
    for name, wanted in (
        ("rsqrt", unit("rsqrt", scaled) * np.float32(2.0**12)),
        ("sqrt", unit("sqrt", scaled) * np.float32(2.0**-12)),
        ("lg2", unit("lg2", scaled) - np.float32(24)),
        ("ex2", np.ones(500, np.float32)),
    ):
        np.testing.assert_array_equal(run(f"{name}.approx.f32", small), bits(wanted))
    with np.errstate(over="ignore"):
        reciprocal = unit("rcp", scaled) * np.float32(2.0**24)
    np.testing.assert_array_equal(run("rcp.approx.f32", small), bits(reciprocal))
    large = np.float32(2.0**126) * np.linspace(1.001, 3.99, 300, dtype=np.float32)
    quarter = unit("rcp", large * np.float32(0.25)) * np.float32(0.25)
    np.testing.assert_array_equal(run("rcp.approx.f32", bits(large)), bits(quarter))
    low = -np.linspace(126.001, 152, 300, dtype=np.float32)
    half = unit("ex2", low * np.float32(0.5))
    np.testing.assert_array_equal(run("ex2.approx.f32", bits(low)), bits(half * half))


# ---------------------------------------------------------------------------- fast


@EXECUTORS
@pytest.mark.parametrize("name", NAMES)
def test_fast_numerics_round_correctly(name: str, run: Any) -> None:
    operands, _ = tabulated(name, 8009)
    wanted = CORRECT[name](operands.view(np.float32).astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(run(f"{name}.approx.ftz.f32", operands, "fast"), bits(wanted))
