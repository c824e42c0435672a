"""Products with `exact` numerics: as chips compute them, on both executors.

`tests/data/mma_vectors.npz` has products as a model of the chips, `mmasim`, computes them
(`tools/write_mma_vectors.py`). Others are held against the rule itself, in exact fractions here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.base.targets import target
from tilewright.isa.declaration import spell
from tilewright.sim.eager import EagerMachine, execute

Array = np.ndarray[Any, Any]
VECTORS = Path(__file__).parent.parent / "data" / "mma_vectors.npz"
FORMATS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "f32": np.float32,
}


# ---------------------------------------------------------------------------- forms


@dataclass(frozen=True)
class Form:
    """A matrix instruction: its shape, and the types of its inputs and of its result."""

    family: str
    shape: tuple[int, int, int]
    inputs: str
    result: str

    @staticmethod
    def named(name: str) -> Form:
        family, shape, inputs, result = name.split()
        m, _, rest = shape.removeprefix("m").partition("n")
        n, _, k = rest.partition("k")
        return Form(family, (int(m), int(n), int(k)), inputs, result)


def bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.itemsize}")


def of_bits(values: Array, kind: str) -> Array:
    return np.ascontiguousarray(values).view(FORMATS[kind])


# ---------------------------------------------------------------------------- by a warp


def warp_registers(a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    """Deal bits out over registers × lanes, as the figures of mma.m16n8k8 and m16n8k16 do."""
    k = a.shape[1]
    lane = np.arange(32)
    group, member = lane >> 2, lane % 4
    halves_a = [
        a[group + (8 if i % 4 >= 2 else 0), 2 * member + (i & 1) + (8 if i >= 4 else 0)]
        for i in range(k // 2)
    ]
    halves_b = [b[group, 2 * member + (i & 1) + (8 if i >= 2 else 0)] for i in range(k // 4)]
    cells = [c[group + (8 if i >= 2 else 0), 2 * member + (i & 1)] for i in range(4)]

    def words(halves: list[Array]) -> Array:
        pairs = zip(halves[::2], halves[1::2], strict=True)
        return np.stack([low | high.astype(np.uint32) << 16 for low, high in pairs])

    return words(halves_a), words(halves_b), np.stack(cells)


def warp_result(registers: Array) -> Array:
    result = np.zeros((16, 8), np.uint32)
    lane = np.arange(32)
    for i, each in enumerate(registers):
        result[(lane >> 2) + (8 if i >= 2 else 0), 2 * (lane % 4) + (i & 1)] = each
    return result


def warp_text(form: Form) -> str:
    k = form.shape[2]
    return f"mma.sync.aligned.m16n8k{k}.row.col.f32.{form.inputs}.{form.inputs}.f32"


def warp_eagerly(form: Form, where: str, a: Array, b: Array, c: Array) -> Array:
    (instruction,) = spell(warp_text(form)).forms()
    words_a, words_b, singles = warp_registers(a, b, c)
    operands = [*words_a, *words_b, *singles.view(np.float32)]
    found = execute(instruction, operands, EagerMachine(exact=target(where)))
    return warp_result(np.stack([bits(each.value) for each in found]))


@cache
def warp_program(form: Form, where: str, count: int) -> Any:
    k = form.shape[2]

    @T.function
    def kernel(
        A: T.Tensor((count, k // 4, 32), "uint32"),
        B: T.Tensor((count, k // 8, 32), "uint32"),
        C: T.Tensor((count, 4, 32), "float32"),
        D: T.Tensor((count, 4, 32), "float32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=count, block=32))
        at = T.cuda.block_idx("x")
        lane = T.cuda.lane_id()
        a = T.alloc_local((k // 4,), "uint32", layout="default")
        b = T.alloc_local((k // 8,), "uint32", layout="default")
        d = T.alloc_local((4,), "float32", layout="default")
        for i in range(k // 4):
            a[i] = A[at, i, lane]
        for i in range(k // 8):
            b[i] = B[at, i, lane]
        for i in range(4):
            d[i] = C[at, i, lane]
        T.ptx[warp_text(form)](
            *[d[i] for i in range(4)],
            *[a[i] for i in range(k // 4)],
            *[b[i] for i in range(k // 8)],
            *[d[i] for i in range(4)],
        )
        for i in range(4):
            D[at, i, lane] = d[i]

    return tilewright.compile(kernel, target=where, backend="sim", numerics="exact")


def warp_natively(form: Form, where: str, a: Array, b: Array, c: Array) -> Array:
    dealt = [warp_registers(*each) for each in zip(a, b, c, strict=True)]
    given = [np.stack(each) for each in zip(*dealt, strict=True)]
    found = np.zeros((len(a), 4, 32), np.float32)
    warp_program(form, where, len(a))(given[0], given[1], given[2].view(np.float32), found)
    return np.stack([warp_result(bits(each)) for each in found])


# ---------------------------------------------------------------------------- by the tensor core

# A tile has rows of two 16-byte chunks; eight rows of a chunk lie together (no swizzle).
_LEADING, _STRIDE = 128, 256
_WIDTH = 64  # columns of Tensor Memory that are looked at
_A_BYTES, _B_BYTES = 128 // 8 * _STRIDE, _WIDTH // 8 * _STRIDE


def tile_bytes(values: Array, size: int) -> Array:
    """Lay a tile (rows, k) out in shared memory."""
    rows, depth = values.shape
    row, k = np.indices((rows, depth))
    per_chunk = 16 // values.itemsize
    where = row // 8 * _STRIDE + k // per_chunk * _LEADING + row % 8 * 16
    where += k % per_chunk * values.itemsize
    memory = np.zeros(size, np.uint8)
    for byte, each in enumerate(np.moveaxis(values[..., None].view(np.uint8), -1, 0)):
        memory[where + byte] = each
    return memory


def descriptor(start: int) -> int:
    return start >> 4 | _LEADING >> 4 << 16 | _STRIDE >> 4 << 32 | 1 << 46


def lanes_of(rows: int) -> Array:
    return np.arange(128) if rows == 128 else np.arange(64) // 16 * 32 + np.arange(64) % 16


def instruction_descriptor(form: Form, *, negate: bool = False) -> int:
    m, n, _ = form.shape
    number = {"f16": 0, "bf16": 1, "tf32": 2}[form.inputs]
    formats = (form.result == "f32") << 4 | number << 7 | number << 10
    return formats | negate << 13 | n // 8 << 17 | m // 16 << 24


def cells_of(form: Form, c: Array) -> Array:
    """Put C into Tensor Memory."""
    m, n, _ = form.shape
    cells = np.zeros((128, _WIDTH), np.uint32)
    cells[lanes_of(m)[:, None], np.arange(n)] = c
    return cells


def tile_result(form: Form, cells: Array, like: Array) -> Array:
    m, n, _ = form.shape
    found = cells[lanes_of(m)[:, None], np.arange(n)]
    assert form.result == "f32" or not (found >> 16).any()
    return found.astype(like.dtype)


def tile_text(form: Form) -> str:
    return f"tcgen05.mma.cta_group::1.kind::{'tf32' if form.inputs == 'tf32' else 'f16'}"


def tile_eagerly(
    form: Form, where: str, a: Array, b: Array, c: Array, *, negate: bool = False, shift: int = 0
) -> Array:
    scaled = {"scale_input_d"} if shift else set[str]()
    (instruction,) = (
        each
        for each in spell(tile_text(form)).forms()
        if each.operands[1].name == "a_desc"
        and {o.name for o in each.operands} & {"disable_output_lane", "scale_input_d"} == scaled
    )
    memory = np.concatenate([tile_bytes(a, _A_BYTES), tile_bytes(b, _B_BYTES)])
    machine = EagerMachine(
        shared=np.concatenate([np.zeros(1024, np.uint8), memory]),
        active=1,
        special={"warpid": 0},
        exact=target(where),
    )
    machine.state["tmem_columns"] = 0xFFFF
    machine.cells[:, :_WIDTH] = cells_of(form, c)
    idesc = instruction_descriptor(form, negate=negate)
    operands = [0, descriptor(1024), descriptor(1024 + _A_BYTES), idesc, True]
    execute(instruction, operands + ([shift] if shift else []), machine)
    return tile_result(form, machine.cells[:, :_WIDTH], c)


@cache
def tile_program(text: str, where: str, count: int, shift: int) -> Any:
    words = (_A_BYTES + _B_BYTES) // 4

    @T.function
    def kernel(
        Memory: T.Tensor((count, words), "uint32"),
        Cells: T.Tensor((count, 128, _WIDTH), "uint32"),
        idesc: T.uint32,
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=count, block=128))
        tid = T.cuda.thread_idx("x")
        at = T.cuda.block_idx("x")
        warp = T.cuda.warp_id()
        memory = T.alloc_shared((words,), "uint32", layout="default", align=1024)
        address = T.alloc_shared((1,), "uint32", layout="default")
        done = T.alloc_shared((1,), "uint64", layout="default", align=8)
        cells = T.alloc_local((_WIDTH,), "uint32", layout="default")
        if warp == 0:
            T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
                T.address_of(address), T.uint32(_WIDTH)
            )
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(done.ptr_to([0]), T.uint32(1))
        for j in range(words // 128):
            memory[128 * j + tid] = Memory[at, 128 * j + tid]
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        quarter = address[0] + T.cast(warp, "uint32") * T.uint32(1 << 21)
        for j in range(_WIDTH):
            cells[j] = Cells[at, tid, j]
        T.ptx["tcgen05.st.sync.aligned.32x32b.x64.b32"](quarter, *[cells[j] for j in range(_WIDTH)])
        T.ptx["tcgen05.wait::st.sync.aligned"]()
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        T.ptx["tcgen05.fence::after_thread_sync"]()
        base = T.cast(T.cuda.cvta_generic_to_shared(memory.ptr_to([0])), "uint64") >> 4
        a = base + T.uint64(descriptor(0))
        b = base + T.uint64(descriptor(_A_BYTES))
        scale = [shift] if shift else []
        if tid == 0:
            T.ptx[text](address[0], a, b, idesc, T.bool(True), *scale)
            T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
                done.ptr_to([0])
            )
        T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x64.b32"](*[cells[j] for j in range(_WIDTH)], quarter)
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        for j in range(_WIDTH):
            Cells[at, tid, j] = cells[j]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(_WIDTH))

    return tilewright.compile(kernel, target=where, backend="sim", numerics="exact")


def tile_natively(
    form: Form, where: str, a: Array, b: Array, c: Array, *, negate: bool = False, shift: int = 0
) -> Array:
    memory = np.stack(
        [
            np.concatenate([tile_bytes(x, _A_BYTES), tile_bytes(y, _B_BYTES)]).view(np.uint32)
            for x, y in zip(a, b, strict=True)
        ]
    )
    cells = np.stack([cells_of(form, each) for each in c])
    program = tile_program(tile_text(form), where, len(a), shift)
    program(memory, cells, instruction_descriptor(form, negate=negate))
    return np.stack([tile_result(form, each, c) for each in cells])


# ---------------------------------------------------------------------------- recorded products


def eagerly(form: Form, where: str, a: Array, b: Array, c: Array) -> Array:
    run: Callable[..., Array] = warp_eagerly if form.family == "mma" else tile_eagerly
    return np.stack([run(form, where, *each) for each in zip(a, b, c, strict=True)])


def natively(form: Form, where: str, a: Array, b: Array, c: Array) -> Array:
    run = warp_natively if form.family == "mma" else tile_natively
    return run(form, where, a, b, c)


def recorded() -> list[tuple[str, str]]:
    with np.load(VECTORS) as file:
        listed = [name.split("/D ") for name in file.files if "/D " in name]
    return [(form, where) for form, targets in listed for where in targets.split()]


@pytest.mark.parametrize(("name", "where"), recorded())
def test_chips_compute_what_the_model_of_them_does(name: str, where: str) -> None:
    with np.load(VECTORS) as file:
        a, b, c = (file[f"{name}/{letter}"] for letter in "ABC")
        (wanted,) = (
            file[each]
            for each in file.files
            if each.startswith(f"{name}/D ") and where in each.split()
        )
    form = Form.named(name)
    np.testing.assert_array_equal(natively(form, where, a, b, c), wanted)
    np.testing.assert_array_equal(eagerly(form, where, a, b, c), wanted)


# ---------------------------------------------------------------------------- the rule itself

# By generation: the bits that are kept below the greatest exponent, the bytes of a group, and the
# exponent that a zero counts with, for results of float32 and float16.
RULES = {
    "sm_80": (24, 16, {"f32": -132, "f16": -20}),
    "sm_90a": (25, 32, {"f32": -133, "f16": -21}),
    "sm_100a": (25, 32, {"f32": -133, "f16": -21}),
}
LEAST = {"f16": -14, "bf16": -126, "tf32": -126, "f32": -126}
SIZES = {"f16": 2, "bf16": 2, "tf32": 4}


def exponent(value: float, kind: str) -> int:
    """Give floor(log2 |value|), for subnormal numbers that of the least normal one."""
    return max(int(np.frexp(value)[1]) - 1, LEAST[kind])


def truncated(value: Fraction) -> int:
    return int(value)  # towards zero


def rounded(total: Fraction, kind: str) -> Any:
    """Round to float32 towards zero, or to float16 to nearest even; there is no -0."""
    if total == 0:
        return FORMATS[kind](0)
    scale = 0  # floor(log2 |total|)
    while abs(total) >= Fraction(2) ** (scale + 1):
        scale += 1
    while abs(total) < Fraction(2) ** scale:
        scale -= 1
    digits, most = (23, Fraction(2) ** 128) if kind == "f32" else (10, Fraction(2) ** 16)
    unit = Fraction(2) ** (max(scale, LEAST[kind]) - digits)
    whole = truncated(total / unit) if kind == "f32" else round(total / unit)
    if abs(whole * unit) >= most:
        return FORMATS[kind](np.inf if whole > 0 else -np.inf)
    return FORMATS[kind](float(whole * unit))


def sum_of_special(terms: list[float]) -> float | None:
    """Add infinities and NaNs; `None` if there are none."""
    if all(np.isfinite(terms)):
        return None
    infinite = {each for each in terms if np.isinf(each)}
    return infinite.pop() if len(infinite) == 1 and not any(np.isnan(terms)) else np.nan


def element(form: Form, where: str, a: Array, b: Array, c: Any) -> Any:
    """Compute one element of D, from a row of A, one of B, and C."""
    bits_kept, group_bytes, zeros = RULES[where]
    length = group_bytes // SIZES[form.inputs]
    zero, total = zeros[form.result], float(c)
    for first in range(0, len(a), length):
        pairs = [
            (float(x), float(y))
            for x, y in zip(a[first : first + length], b[first : first + length], strict=True)
        ]
        with np.errstate(invalid="ignore"):
            special = sum_of_special([float(np.float64(x) * y) for x, y in pairs] + [total])
        if special is not None:
            total = special
            continue
        terms = [
            (Fraction(x) * Fraction(y), exponent(x, form.inputs) + exponent(y, form.inputs))
            for x, y in pairs
        ] + [(Fraction(total), exponent(total, form.result))]
        top = max(own if value else zero for value, own in terms)
        unit = Fraction(2) ** (top - bits_kept)
        exact = sum(truncated(value / unit) for value, _ in terms) * unit
        total = float(rounded(exact, form.result))
    return FORMATS[form.result](total)


def by_the_rule(form: Form, where: str, a: Array, b: Array, c: Array) -> Array:
    """Multiply numbers (m × k by n × k, plus m × n) and give bits; a NaN is the canonical one."""
    found = np.array(
        [[element(form, where, a[i], b[j], c[i, j]) for j in range(len(b))] for i in range(len(a))]
    )
    canonical = 0x7FFFFFFF if form.result == "f32" else 0x7FFF
    return np.where(np.isnan(found), canonical, bits(found))


def drawn(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    """Draw numbers: moderate ones, any at all, zeros, and rarely what is no number."""
    size = np.dtype(FORMATS[kind]).itemsize
    anything = random.integers(0, 1 << 8 * size, shape, dtype=np.uint64).astype(f"u{size}")
    values = of_bits(anything, kind).copy()
    moderate = random.standard_normal(shape).astype(FORMATS[kind])
    choice = random.integers(0, 100, shape)
    with np.errstate(invalid="ignore"):
        keep = (choice < 30) & np.isfinite(values.astype(np.float64))
    values = np.where(keep, values, moderate).astype(FORMATS[kind])
    values[(choice >= 30) & (choice < 40)] = random.choice([0.0, -0.0])
    rare = random.choice(np.array([np.inf, -np.inf, np.nan]), shape).astype(FORMATS[kind])
    return np.where(choice == 99, rare, values).astype(FORMATS[kind])


def tf32(values: Array) -> Array:
    """Drop the bits of a float32 that a product does not see."""
    return (bits(values) & np.uint32(0xFFFFE000)).view(np.float32)


DRAWN = [
    *((f"mma m16n8k{k} {kind} f32", "sm_80") for k in (8, 16) for kind in ("f16", "bf16")),
    *((f"mma m16n8k{k} {kind} f32", "sm_90a") for k in (8, 16) for kind in ("f16", "bf16")),
    *((f"tcgen05 m64n24k16 {kind} f32", "sm_100a") for kind in ("f16", "bf16")),
    ("tcgen05 m64n24k16 f16 f16", "sm_100a"),
    ("tcgen05 m64n24k8 tf32 f32", "sm_100a"),
]


@pytest.mark.parametrize(("name", "where"), DRAWN)
def test_any_numbers_are_multiplied_by_the_rule(name: str, where: str) -> None:
    form = Form.named(name)
    m, n, k = form.shape
    random = np.random.default_rng(DRAWN.index((name, where)))
    for _ in range(3 if form.family == "mma" else 1):
        a, b = (drawn(random, form.inputs, shape) for shape in ((m, k), (n, k)))
        c = drawn(random, form.result, (m, n))
        seen = (tf32(a), tf32(b)) if form.inputs == "tf32" else (a, b)
        wanted = by_the_rule(form, where, *seen, c)
        given = [bits(each)[None] for each in (a, b, c)]
        np.testing.assert_array_equal(natively(form, where, *given)[0], wanted)
        np.testing.assert_array_equal(eagerly(form, where, *given)[0], wanted)


def small_numbers(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    """Draw numbers around the least normal ones of a format, and smaller."""
    scale = LEAST[kind] + random.integers(-10, 4, shape)
    values = np.ldexp(random.uniform(-2, 2, shape), scale)
    return values.astype(FORMATS[kind])


@pytest.mark.parametrize(("name", "where"), DRAWN)
def test_results_that_are_subnormal(name: str, where: str) -> None:
    """The products are about the least numbers that the result can be."""
    form = Form.named(name)
    m, n, k = form.shape
    random = np.random.default_rng(7)
    a = small_numbers(random, form.inputs, (m, k))
    b = (random.standard_normal((n, k)) * 2.0**-8).astype(FORMATS[form.inputs])
    c = small_numbers(random, form.result, (m, n))
    c[random.random((m, n)) < 0.5] = 0
    seen = (tf32(a), tf32(b)) if form.inputs == "tf32" else (a, b)
    wanted = by_the_rule(form, where, *seen, c)
    given = [bits(each)[None] for each in (a, b, c)]
    np.testing.assert_array_equal(natively(form, where, *given)[0], wanted)
    np.testing.assert_array_equal(eagerly(form, where, *given)[0], wanted)


# ---------------------------------------------------------------------------- tiles of other kinds


@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize("n", [16, 64])
@pytest.mark.parametrize("inputs", ["f16", "bf16", "tf32"])
def test_tiles_of_every_height_on_both_executors(m: int, n: int, inputs: str) -> None:
    form = Form("tcgen05", (m, n, 8 if inputs == "tf32" else 16), inputs, "f32")
    random = np.random.default_rng(m + n)
    a, b = (drawn(random, inputs, (rows, form.shape[2])) for rows in (m, n))
    c = drawn(random, "f32", (m, n))
    given = [bits(each)[None] for each in (a, b, c)]
    native = natively(form, "sm_100a", *given)
    np.testing.assert_array_equal(native, eagerly(form, "sm_100a", *given))
    chosen = random.integers(0, (m, n), (40, 2))
    for i, j in chosen:
        x, y = (tf32(each) if inputs == "tf32" else each for each in (a[i], b[j]))
        one = by_the_rule(form, "sm_100a", x[None], y[None], c[i : i + 1, j : j + 1])
        assert native[0, i, j] == one[0, 0]


@pytest.mark.parametrize("result", ["f32", "f16"])
def test_the_product_may_be_subtracted(result: str) -> None:
    form = Form("tcgen05", (64, 8, 16), "f16", result)
    random = np.random.default_rng(3)
    a, b = (drawn(random, "f16", (rows, 16)) for rows in (64, 8))
    c = drawn(random, result, (64, 8))
    wanted = by_the_rule(form, "sm_100a", -a, b, c)
    native = tile_natively(form, "sm_100a", *(bits(each)[None] for each in (a, b, c)), negate=True)
    np.testing.assert_array_equal(native[0], wanted)
    eager = tile_eagerly(form, "sm_100a", *map(bits, (a, b, c)), negate=True)
    np.testing.assert_array_equal(eager, wanted)


@pytest.mark.parametrize("shift", [1, 15])
def test_what_is_added_may_be_divided_by_a_power_of_two(shift: int) -> None:
    form = Form("tcgen05", (64, 8, 16), "bf16", "f32")
    random = np.random.default_rng(4)
    a, b = (random.standard_normal((rows, 16)).astype(ml_dtypes.bfloat16) for rows in (64, 8))
    c = random.standard_normal((64, 8)).astype(np.float32) * np.float32(1 << shift)
    wanted = by_the_rule(form, "sm_100a", a, b, c * np.float32(2.0**-shift))
    native = tile_natively(form, "sm_100a", *(bits(each)[None] for each in (a, b, c)), shift=shift)
    np.testing.assert_array_equal(native[0], wanted)
    eager = tile_eagerly(form, "sm_100a", *map(bits, (a, b, c)), shift=shift)
    np.testing.assert_array_equal(eager, wanted)


def test_generations_differ() -> None:
    """Half a unit below what Ampere keeps is lost there, and kept by Hopper."""
    form = Form.named("mma m16n8k16 f16 f32")
    a, b = (np.zeros((rows, 16), np.float16) for rows in (16, 8))
    c = np.zeros((16, 8), np.float32)
    a[0, :3], b[0, :3] = [1, 2.0**-12, 2.0**-12], [1, 2.0**-13, 2.0**-13]
    c[0, 0] = -1  # what is left is 2 · 2^-25
    given = [bits(each)[None] for each in (a, b, c)]
    found = {where: natively(form, where, *given)[0, 0, 0] for where in ("sm_80", "sm_90a")}
    assert found == {"sm_80": 0, "sm_90a": bits(np.array([2.0**-24], np.float32))[0]}
