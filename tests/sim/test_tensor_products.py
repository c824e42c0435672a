"""Products of the tensor core over every layout of their operands, on both executors.

The layouts are those of the PTX ISA, tcgen05, "Canonical layouts", stated here as it has them,
with strides drawn at random; descriptors are packed here, bit by bit. Numbers are small, so that
every product is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.isa.declaration import spell
from tilewright.sim.eager import EagerMachine, execute

Array = np.ndarray[Any, Any]
TARGET = "sm_100a"
QUARTER = 1 << 21  # 32 lanes of Tensor Memory, in an address
SHARED = 3 << 16  # bytes
A_START, B_START = 1 << 10, 1 << 16
FORMATS: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "tf32": np.float32,
}
SPANS = {0: 16, 1: 32, 2: 64, 3: 128, 4: 128}  # bytes of a row of a swizzle atom
LAYOUT_FIELD = {0: 0, 1: 6, 2: 4, 3: 2, 4: 1}


# ---------------------------------------------------------------------------- one product


@dataclass
class Matrix:
    """An operand in shared memory: where its elements lie, in bytes, and the two offsets."""

    where: Array
    start: int
    leading: int
    stride: int
    mode: int

    @property
    def descriptor(self) -> int:
        return (
            self.start >> 4
            | self.leading >> 4 << 16
            | self.stride >> 4 << 32
            | 1 << 46
            | LAYOUT_FIELD[self.mode] << 61
        )


def matrix(
    random: np.random.Generator, start: int, rows: int, depth: int, size: int, mode: int, mn: bool
) -> Matrix:
    """Lay a matrix out: whole atoms of the swizzle, at distances drawn at random."""
    row, k = np.indices((rows, depth))
    per_chunk, span = 16 // size, SPANS[mode]
    if not mn:
        start += 32 * int(random.integers(max(span // 32, 1)))  # a step in K, within an atom
    deep = 4 if mode == 4 else 8
    atom = deep * span

    def gap(count: int, inner: int) -> int:
        """Draw a distance for `count` things of `inner` bytes; swizzled ones stay aligned."""
        unit = 16 if mode == 0 else atom
        least = -(-inner // unit)
        return unit * int(random.integers(least, least + 3)) if count > 1 else inner

    if not mn and mode == 0:
        # ((8, m), (T, 2)) : ((1T, SBO), (1, LBO))
        if random.integers(2):
            lbo = gap(depth // per_chunk, 128)
            sbo = gap(rows // 8, lbo * (depth // per_chunk))
        else:
            sbo = gap(rows // 8, 128)
            lbo = gap(depth // per_chunk, sbo * (rows // 8))
        where = row % 8 * 16 + row // 8 * sbo + k % per_chunk * size + k // per_chunk * lbo
    elif not mn:
        # ((8, m), (T, 2k)) : ((span, SBO), (1, T))
        lbo, sbo = 16 * int(random.integers(1, 9)), gap(rows // 8, atom)
        where = row % 8 * span + row // 8 * sbo + k * size
    elif mode == 0:
        # ((T, 1, m), (8, k)) : ((1, T, SBO), (1T, LBO))
        sbo = gap(rows // per_chunk, 128)
        lbo = gap(depth // 8, sbo * (rows // per_chunk))
        where = row % per_chunk * size + row // per_chunk * sbo + k % 8 * 16 + k // 8 * lbo
    else:
        # ((T, span / 16, m), (8 or 4, k)) : ((1, T, LBO), (span, SBO))
        wide = span // size
        sbo = gap(depth // deep, atom)
        lbo = gap(-(-rows // wide), sbo * (depth // deep))
        where = row % wide * size + row // wide * lbo + k % deep * span + k // deep * sbo
    where = where + start
    if mode == 4:
        where = where ^ (where >> 7 & 3) << 5
    else:
        where = where ^ (where >> 7 & span // 16 - 1) << 4
    assert where.min() >= start and np.unique(where).size == where.size
    return Matrix(where, start, lbo, sbo, mode)


@dataclass
class Product:
    """One product: its operands as bytes and words, and what it must leave."""

    format: str
    result: str
    d: int
    a: int
    b: int
    idesc: int
    enable: bool
    memory: Array
    cells: Array
    after: Array
    in_cells: bool
    masks: tuple[int, ...] = ()
    shift: int | None = None
    text: str = field(default="")

    @property
    def kind(self) -> str:
        return "tf32" if self.format == "tf32" else "f16"


def lanes_of(rows: int) -> Array:
    """Give the lane of each row of D, and of A in Tensor Memory (data paths D and F)."""
    return np.arange(128) if rows == 128 else np.arange(64) // 16 * 32 + np.arange(64) % 16


def words(values: Array) -> Array:
    """Give the bits of numbers, a 32-bit word for each; a narrow one has zeros above."""
    return np.ascontiguousarray(values).view(f"u{values.itemsize}").astype(np.uint32)


def draw(
    seed: int, format: str, modes: tuple[int, int], majors: tuple[bool, bool], **fixed: Any
) -> Product:
    """Draw a product with operands of these modes and majors ("mn" if true).

    It may be given an M, an N and the type of the `result`; it may have A in Tensor Memory
    (`in_cells`), lanes that stay (`masked`), and D divided by a power of two (`shift`).
    """
    random = np.random.default_rng(seed)
    size = np.dtype(FORMATS[format]).itemsize
    depth = 32 // size
    in_cells, masked = bool(fixed.get("in_cells")), bool(fixed.get("masked"))
    M = fixed.get("M") or int(random.choice([64, 128]))
    # Spans that run along M or N are whole.
    step = max(8 if M == 64 else 16, SPANS[modes[1]] // size if majors[1] else 0)
    N = fixed.get("N") or step * int(random.integers(1, 256 // step + 1))
    result = "float32"
    if format == "float16":
        result = fixed.get("result") or str(random.choice(["float16", "float32"]))
    a, b = (random.integers(-4, 5, (n, depth)).astype(FORMATS[format]) for n in (M, N))
    half = 16 * int(random.integers(2)) if M == 64 else 0
    cells = random.integers(0, 1 << 32, (128, 512), np.uint32)
    memory = random.integers(0, 256, SHARED, np.uint8)
    column = int(random.integers(0, 512 - N - 8 + 1))
    lanes = lanes_of(M) + half
    start = random.integers(-64, 65, (M, N)).astype(result)
    cells[lanes[:, None], column + np.arange(N)] = words(start)
    negated = [int(each) for each in random.integers(0, 2, 2)]
    enable = bool(random.integers(2))
    right = matrix(random, B_START, N, depth, size, modes[1], majors[1])
    _put(memory, right, b)
    if in_cells:
        at = int(random.choice([column + N, *([column - 8] if column >= 8 else [])]))
        cells[lanes[:, None], at + np.arange(8)] = np.ascontiguousarray(a).view(np.uint32)
        left = half << 16 | at
    else:
        first = matrix(random, A_START, M, depth, size, modes[0], majors[0])
        assert first.where.max() < B_START
        _put(memory, first, a)
        left = first.descriptor
    number = {"float16": 0, "bfloat16": 1, "tf32": 2}[format]
    idesc = (
        (result == "float32") << 4
        | number << 7
        | number << 10
        | negated[0] << 13
        | negated[1] << 14
        | majors[0] << 15
        | majors[1] << 16
        | N // 8 << 17
        | M // 16 << 24
    )
    sign = 1 - 2 * (negated[0] ^ negated[1])
    # A sum that is zero is +0.
    shift = fixed.get("shift")
    held = np.zeros((M, N), np.float32)
    if enable:
        held = start.astype(np.float32) * np.float32(2.0 ** -(shift or 0))
    total = held + sign * (a.astype(np.float32) @ b.astype(np.float32).T)
    masks = tuple(int(each) for each in random.integers(0, 1 << 32, 4)) if masked else ()
    stays = [bool(masks) and masks[lane // 32] >> lane % 32 & 1 for lane in lanes]
    after = cells.copy()
    after[lanes[:, None], column + np.arange(N)] = np.where(
        np.array(stays)[:, None],
        cells[lanes[:, None], column + np.arange(N)],
        words(total.astype(result)),
    )
    text = f"M={M} N={N} {result} D at lane {half}, column {column}; negated {negated}"
    return Product(
        *(format, result, half << 16 | column, left, right.descriptor, idesc, enable),
        *(memory, cells, after, in_cells, masks, shift, text),
    )


def _put(memory: Array, where: Matrix, values: Array) -> None:
    data = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, -1)
    for byte in range(data.shape[-1]):
        memory[where.where + byte] = data[..., byte]


# ---------------------------------------------------------------------------- executors


def eagerly(product: Product) -> Array:
    """Carry a product out in NumPy, and give Tensor Memory as it is then."""
    wanted = {"disable_output_lane"} if product.masks else set[str]()
    wanted |= set() if product.shift is None else {"scale_input_d"}
    (form,) = (
        each
        for each in spell(f"tcgen05.mma.cta_group::1.kind::{product.kind}").forms()
        if (each.operands[1].name == "a_tmem") == product.in_cells
        and {o.name for o in each.operands} & {"disable_output_lane", "scale_input_d"} == wanted
    )
    m = EagerMachine(shared=product.memory.copy(), active=1, special={"warpid": 0})
    m.state["tmem_columns"] = 0xFFFF
    m.cells[:] = product.cells
    operands = [product.d, product.a, product.b, product.idesc, *product.masks, product.enable]
    operands += [] if product.shift is None else [product.shift]
    execute(form, operands, m)
    return m.cells


@cache
def program(
    kind: str, in_cells: bool, masked: bool, shift: int | None, schedule: str = "late"
) -> Any:
    """Compile a kernel that carries out one product, whose operands are its arguments.

    Shared memory and Tensor Memory are filled with what it is given; addresses in descriptors are
    counted from the start of the buffer.
    """

    @T.function
    def kernel(
        Memory: T.Tensor((SHARED // 4,), "uint32"),
        Cells: T.Tensor((128, 512), "uint32"),
        After: T.Tensor((128, 512), "uint32"),
        d: T.uint32,
        a: T.uint64,
        b: T.uint64,
        idesc: T.uint32,
        enable: T.uint32,
        m0: T.uint32,
        m1: T.uint32,
        m2: T.uint32,
        m3: T.uint32,
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
        tid = T.cuda.thread_idx("x")
        warp = T.cuda.warp_id()
        memory = T.alloc_shared((SHARED // 4,), "uint32", layout="default", align=1024)
        address = T.alloc_shared((1,), "uint32", layout="default")
        done = T.alloc_shared((1,), "uint64", layout="default", align=8)
        if warp == 0:
            T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
                T.address_of(address), T.uint32(512)
            )
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(done.ptr_to([0]), T.uint32(1))
        for j in range(SHARED // 512):
            memory[128 * j + tid] = Memory[128 * j + tid]
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        quarter = address[0] + T.cast(warp, "uint32") * T.uint32(QUARTER)
        words = T.alloc_local((32,), "uint32", layout="default")
        for c in range(16):
            for j in range(32):
                words[j] = Cells[tid, 32 * c + j]
            T.ptx["tcgen05.st.sync.aligned.32x32b.x32.b32"](
                quarter + T.cast(32 * c, "uint32"), *[words[j] for j in range(32)]
            )
            T.ptx["tcgen05.wait::st.sync.aligned"]()
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        T.ptx["tcgen05.fence::after_thread_sync"]()
        base = T.cast(T.cuda.cvta_generic_to_shared(memory.ptr_to([0])), "uint64") >> 4
        masks = [m0, m1, m2, m3] if masked else []
        scale = [] if shift is None else [shift]
        if tid == 0:
            left = address[0] + T.cast(a, "uint32") if in_cells else a + base
            T.ptx[f"tcgen05.mma.cta_group::1.kind::{kind}"](
                address[0] + d, left, b + base, idesc, *masks, enable != T.uint32(0), *scale
            )
            T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
                done.ptr_to([0])
            )
        T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        for c in range(16):
            T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"](
                *[words[j] for j in range(32)], quarter + T.cast(32 * c, "uint32")
            )
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
            for j in range(32):
                After[tid, 32 * c + j] = words[j]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(512))

    return tilewright.compile(kernel, target=TARGET, schedule=schedule)


def natively(product: Product, schedule: str = "late") -> Array:
    """Run a program of a product on the simulator, and give Tensor Memory as it is then."""
    after = np.zeros_like(product.cells)
    masks = product.masks or (0, 0, 0, 0)
    program(product.kind, product.in_cells, bool(product.masks), product.shift, schedule)(
        product.memory.view(np.uint32),
        product.cells,
        after,
        *(product.d, product.a, product.b, product.idesc, int(product.enable), *masks),
    )
    return after


# ---------------------------------------------------------------------------- tests


def modes_of(format: str, mn: bool) -> tuple[int, ...]:
    """List the swizzles that a matrix may have (ISA, "Valid combinations of type-size, …")."""
    return (4,) if mn and format == "tf32" else (0, 1, 2, 3)


CASES = [
    (format, (mode_a, mode_b), (mn_a, mn_b))
    for format in FORMATS
    for mn_a in (False, True)
    for mn_b in (False, True)
    for mode_a in modes_of(format, mn_a)
    for mode_b in modes_of(format, mn_b)
]


@pytest.mark.parametrize(("format", "modes", "majors"), CASES)
def test_every_pair_of_layouts(
    format: str, modes: tuple[int, int], majors: tuple[bool, bool]
) -> None:
    product = draw(CASES.index((format, modes, majors)), format, modes, majors)
    assert np.array_equal(natively(product), product.after), product.text
    assert np.array_equal(eagerly(product), product.after), product.text


KINDS = [("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32")]


@pytest.mark.parametrize(("format", "result"), [*KINDS, ("tf32", "float32")])
@pytest.mark.parametrize(("M", "step"), [(64, 8), (128, 16)])
def test_every_shape(format: str, result: str, M: int, step: int) -> None:
    for N in range(step, 257, step):
        shape = {"M": M, "N": N, "result": result}
        product = draw(N, format, (3, 3), (False, False), in_cells=bool(N & 16), **shape)
        assert np.array_equal(natively(product), product.after), product.text


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("in_cells", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_random_products(format: str, in_cells: bool, masked: bool) -> None:
    for seed in range(24):
        random = np.random.default_rng(seed)
        majors = (bool(random.integers(2)) and not in_cells, bool(random.integers(2)))
        modes = tuple(int(random.choice(modes_of(format, mn))) for mn in majors)
        product = draw(seed, format, (modes[0], modes[1]), majors, in_cells=in_cells, masked=masked)
        assert np.array_equal(natively(product), product.after), (seed, product.text)
        if seed % 4 == 0:
            assert np.array_equal(eagerly(product), product.after), (seed, product.text)


@pytest.mark.parametrize("shift", [0, 1, 6, 15])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("in_cells", [False, True])
def test_d_is_divided_by_a_power_of_two(format: str, in_cells: bool, shift: int) -> None:
    for seed in range(6):
        fixed = {"in_cells": in_cells, "masked": in_cells, "shift": shift}
        product = draw(100 + seed, format, (1, 2), (False, False), **fixed)
        assert np.array_equal(natively(product), product.after), (seed, product.text)
        assert np.array_equal(eagerly(product), product.after), (seed, product.text)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("in_cells", [False, True])
@pytest.mark.parametrize("shift", [None, 15])
def test_every_form_compiles_for_the_chip(in_cells: bool, masked: bool, shift: int | None) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    for kind in ("f16", "tf32"):
        made = program(kind, in_cells, masked, shift)
        assert made.cubin().startswith(b"\x7fELF")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("schedule", ["late", "eager", "random:1", "random:2"])
def test_every_schedule_lands_the_product_before_its_commit(schedule: str, masked: bool) -> None:
    product = draw(5, "bfloat16", (3, 2), (False, True), masked=masked)
    assert np.array_equal(natively(product, schedule), product.after), product.text


def outcome(run: Any, product: Product) -> Any:
    try:
        return run(product).tolist()
    except tilewright.TilewrightError as error:
        return error.code


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("in_cells", [False, True])
def test_operands_that_mean_anything_else_are_told_alike(format: str, in_cells: bool) -> None:
    """Bits of addresses and descriptors change at random: both executors agree on what it is."""
    random = np.random.default_rng(len(format) + in_cells)
    told = set[str]()
    for seed in range(40):
        product = draw(seed, format, (3, 3), (False, False), in_cells=in_cells)
        for name in ("d", "a", "b", "idesc"):
            bits = 64 if name == "b" or (name == "a" and not in_cells) else 32
            for _ in range(int(random.integers(3)) * int(random.integers(2))):
                changed = getattr(product, name) ^ 1 << int(random.integers(bits))
                setattr(product, name, changed)
        native, eager = outcome(natively, product), outcome(eagerly, product)
        assert native == eager, product.text
        if isinstance(native, str):
            told.add(native)
    assert {"tensor-memory", "undefined-operation"} <= told
