"""Loads and stores of Tensor Memory, of every shape, as programs: raw and as tiles.

Where a register of a lane lies in Tensor Memory is stated here anew, as the PTX ISA's figures
("Matrix fragments") show it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt as T
from tilewright.frontend import parse_function

TARGET = "sm_100a"
QUARTER = 1 << 21  # 32 lanes of Tensor Memory, in an address
# The registers that `.x1` of each shape has.
REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
SPLIT = 256  # columns from the first half of a block to the second
Array = np.ndarray[Any, Any]


def place(shape: str, lane: int, register: int) -> tuple[int, int]:
    """Give the row and the column of a register in its block, in the shape's 32-bit elements."""
    match shape:
        case "32x32b":  # a lane each
            return lane, register
        case "16x64b":  # four lanes hold two rows, eight apart, of two columns
            group, within = divmod(lane, 4)
            column, lower = divmod(within, 2)
            return group + 8 * lower, 2 * register + column
        case "16x128b":  # four lanes hold a row of four columns, then the row eight below
            block, lower = divmod(register, 2)
            return lane // 4 + 8 * lower, 4 * block + lane % 4
        case "16x256b":  # four lanes hold a row of eight columns in pairs, then the one eight below
            block, within = divmod(register, 4)
            lower, second = divmod(within, 2)
            return lane // 4 + 8 * lower, 8 * block + 2 * (lane % 4) + second
        case _:  # 16x32bx2: the upper lanes hold a block of their own, some columns away
            return lane % 16, register


def cells(shape: str, number: int, packed: bool) -> Array:
    """List row and columns (two, if packed) of registers × lanes, from the block's first cell."""
    found = []
    for register in range(number * REGISTERS[shape]):
        for lane in range(32):
            row, column = place(shape, lane, register)
            away = SPLIT if shape == "16x32bx2" and lane >= 16 else 0
            columns = (2 * column, 2 * column + 1) if packed else (column, column)
            found.append((row, columns[0] + away, columns[1] + away))
    return np.array(found).reshape(-1, 32, 3)


def numbers(shape: str) -> list[int]:
    """List the N of every `.xN` that a shape has: at most 128 registers."""
    return [1 << p for p in range(8) if (1 << p) * REGISTERS[shape] <= 128]


def moving(shape: str, repeats: list[int], packed: bool, column: int) -> Any:
    """Make a kernel: for each N it fills Tensor Memory, loads a block, stores another one there.

    The block begins in the last lane that it may, and at a column.
    """
    pack, unpack = (".pack::16b", ".unpack::16b") if packed else ("", "")
    starts = [sum(repeats[:index]) * REGISTERS[shape] for index in range(len(repeats))]
    total = sum(repeats) * REGISTERS[shape]
    most = max(repeats) * REGISTERS[shape]
    split = [SPLIT] if shape == "16x32bx2" else []
    first = (0 if shape == "32x32b" else 16 << 16) + column

    @T.function
    def kernel(
        Cells: T.Tensor((128, 512), "uint32"),
        Given: T.Tensor((128, total), "uint32"),
        Taken: T.Tensor((128, total), "uint32"),
        Left: T.Tensor((len(repeats), 128, 512), "uint32"),
    ):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
        tid = T.cuda.thread_idx("x")
        warp = T.cuda.warp_id()
        address = T.alloc_shared((1,), "uint32", layout="default")
        if warp == 0:
            T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
                T.address_of(address), T.uint32(512)
            )
        T.cuda.cta_sync()
        quarter = address[0] + T.cast(warp, "uint32") * T.uint32(QUARTER)
        words = T.alloc_local((32,), "uint32", layout="default")
        held = T.alloc_local((most,), "uint32", layout="default")
        for index, number in enumerate(repeats):
            count = number * REGISTERS[shape]
            for c in range(16):
                for j in range(32):
                    words[j] = Cells[tid, 32 * c + j]
                T.ptx["tcgen05.st.sync.aligned.32x32b.x32.b32"](
                    quarter + T.cast(32 * c, "uint32"), *[words[j] for j in range(32)]
                )
                T.ptx["tcgen05.wait::st.sync.aligned"]()
            T.ptx[f"tcgen05.ld.sync.aligned.{shape}.x{number}{pack}.b32"](
                *[held[j] for j in range(count)], quarter + T.uint32(first), *split
            )
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
            for j in range(count):
                Taken[tid, starts[index] + j] = held[j]
                held[j] = Given[tid, starts[index] + j]
            T.ptx[f"tcgen05.st.sync.aligned.{shape}.x{number}{unpack}.b32"](
                quarter + T.uint32(first), *split, *[held[j] for j in range(count)]
            )
            T.ptx["tcgen05.wait::st.sync.aligned"]()
            for c in range(16):
                T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"](
                    *[words[j] for j in range(32)], quarter + T.cast(32 * c, "uint32")
                )
                T.ptx["tcgen05.wait::ld.sync.aligned"]()
                for j in range(32):
                    Left[index, tid, 32 * c + j] = words[j]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(512))

    return kernel


CASES = [
    (shape, packed, schedule)
    for shape in REGISTERS
    for packed in (False, True)
    for schedule in ("late", "eager", "random:1")
]


@pytest.mark.parametrize(("shape", "packed", "schedule"), CASES)
def test_every_register_has_its_cell(shape: str, packed: bool, schedule: str) -> None:
    repeats = numbers(shape) if schedule == "late" else [1, 8]
    widest = cells(shape, max(repeats), packed)[..., 1:].max() + 1
    column = int(512 - widest)
    kernel = moving(shape, repeats, packed, column)
    random = np.random.default_rng(len(shape) + packed)
    before = random.integers(0, 1 << 32, (128, 512), np.uint32)
    given = random.integers(0, 1 << 32, (128, sum(repeats) * REGISTERS[shape]), np.uint32)
    taken, left = np.zeros_like(given), np.zeros((len(repeats), 128, 512), np.uint32)
    tilewright.compile(kernel, target=TARGET, schedule=schedule)(before, given, taken, left)
    start = 0
    for number, after in zip(repeats, left, strict=True):
        where = cells(shape, number, packed)
        registers = slice(start, start + len(where))
        start += len(where)
        expected = before.copy()
        for warp in range(4):
            row = where[..., 0] + 32 * warp + (0 if shape == "32x32b" else 16)
            low, high = where[..., 1] + column, where[..., 2] + column
            words = given[32 * warp :][:32, registers].T
            if packed:
                found = before[row, low] & 0xFFFF | before[row, high] << 16
                expected[row, low], expected[row, high] = words & 0xFFFF, words >> 16
            else:
                found = before[row, low]
                expected[row, low] = words
            assert np.array_equal(taken[32 * warp :][:32, registers].T, found)
        assert np.array_equal(after, expected)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", REGISTERS)
def test_every_form_compiles_for_the_chip(shape: str, packed: bool) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    kernel = moving(shape, numbers(shape), packed, 0)
    assert tilewright.compile(kernel, target=TARGET).cubin().startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ld.sync.aligned.16x256b.x64.b32", "at most .x32"),
        ("st.sync.aligned.16x128b.x128.b32", "at most .x64"),
        ("ld.sync.aligned.16x64b.x256.b32", "no modifier"),
        ("ld.sync.aligned.16x64b.x1.unpack::16b.b32", "no modifier"),
        ("st.sync.aligned.32x32b.x1.pack::16b.b32", "no modifier"),
        # Pairs of CTAs are not there yet, nor what belongs to them.
        ("alloc.cta_group::2.sync.aligned.shared::cta.b32", "no modifier .cta_group::2"),
        ("dealloc.cta_group::2.sync.aligned.b32", "no modifier .cta_group::2"),
        ("relinquish_alloc_permit.cta_group::2.sync.aligned", "no modifier .cta_group::2"),
        ("mma.cta_group::2.kind::f16", "no modifier .cta_group::2"),
        (
            "commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64",
            "no modifier .cta_group::2",
        ),
    ],
)
def test_there_are_no_other_forms(text: str, says: str) -> None:
    program = f"""
from tilewright import simt as T

@T.function
def k():
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    T.ptx["tcgen05.{text}"]()
"""
    with pytest.raises(tilewright.TilewrightError, match=says) as caught:
        parse_function(program)
    assert caught.value.code == "unknown-modifier"
    assert caught.value.location is not None and caught.value.location.line == 7


# ---------------------------------------------------------------------------- tiles

# How a warp's registers are laid out over a block of `.x8`: extents and strides per axis of the
# block, rows first; of the halved shape there is an axis of two before.
FRAGMENTS = {
    "32x32b": ("(32, 8)", "1 @ laneid, 1", (4, 32, 8)),
    "16x64b": ("(2, 8, 8, 2)", "1 @ laneid, 4 @ laneid, 1, 2 @ laneid", (4, 2, 16, 16)),
    "16x128b": ("(2, 8, 8, 4)", "1, 4 @ laneid, 2, 1 @ laneid", (4, 2, 16, 32)),
    "16x256b": ("(2, 8, 8, 4, 2)", "2, 4 @ laneid, 4, 1 @ laneid, 1", (4, 2, 16, 64)),
    "16x32bx2": ("(2, 16, 8)", "16 @ laneid, 1 @ laneid, 1", (4, 2, 2, 16, 8)),
}
TILES = """
from tilewright import simt as T
from tilewright.layout import *

@T.function
def k(Cells: T.Tensor((128, 256), "uint32"), Back: T.Tensor((128, 256), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    tid = T.cuda.thread_idx("x")
    warp = T.cuda.warp_id()
    address = T.alloc_shared((1,), "uint32", layout="default")
    if warp == 0:
        T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
            T.address_of(address), T.uint32(512)
        )
    T.cuda.cta_sync()
    every = T.cuda.decl_tmem(
        address[0], ty_args=[T.Tensor((128, 512), "uint32", scope="tmem", layout=EVERY)]
    )
    row = T.alloc_local((128, 128), "uint32", layout=ROW)
    own = row.view(128, layout="default")
    for half in range(2):
        for j in range(128):
            own[j] = Cells[tid, 128 * half + j]
        T.cuda.tile.apply(
            T.ptx["tcgen05.st.sync.aligned.32x32b.x128.b32"],
            every.view(4, 32, 512).sub[:, :, 128 * half : 128 * half + 128],
            row.view(4, 32, 128), scope="warpgroup",
        )
    T.ptx["tcgen05.wait::st.sync.aligned"]()
    held = T.alloc_local(FRAGMENT_SHAPE, "uint32", layout=FRAGMENT)
    cells = T.cuda.decl_tmem(
        address[0], ty_args=[T.Tensor(BLOCK_SHAPE, ELEMENT, scope="tmem", layout=BLOCK)]
    )
    moved = T.cuda.decl_tmem(
        address[0] + T.uint32(256),
        ty_args=[T.Tensor(BLOCK_SHAPE, ELEMENT, scope="tmem", layout=BLOCK)],
    )
    LOAD
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    STORE
    T.ptx["tcgen05.wait::st.sync.aligned"]()
    for half in range(2):
        T.cuda.tile.apply(
            T.ptx["tcgen05.ld.sync.aligned.32x32b.x128.b32"], row.view(4, 32, 128),
            every.view(4, 32, 512).sub[:, :, 256 + 128 * half : 384 + 128 * half],
            scope="warpgroup",
        )
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        for j in range(128):
            Back[tid, 128 * half + j] = own[j]
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(512))
"""


def tiled(shape: str, packed: bool) -> str:
    """Write a program that moves 256 columns up by 256, block by block, as tiles."""
    extents, strides, tile = FRAGMENTS[shape]
    repeated = "4, 2, " if shape != "32x32b" else "4, "
    registers = REGISTERS[shape] * 8
    own = f"1 @ wid_in_wg, {registers}, " if shape != "32x32b" else "1 @ wid_in_wg, "
    # Of every lane, 16-bit elements lie in the low half of a column each.
    columns = tile[-1] * (2 if packed else 1)
    element, step = ("uint16", "2 @ TCol") if packed else ("uint32", "1 @ TCol")
    pack, unpack = (".pack::16b", ".unpack::16b") if packed else ("", "")
    halved = shape == "16x32bx2"
    width = columns * (2 if halved else 1)
    rows = (4, 32) if shape == "32x32b" else (4, 2, 16)
    names = ", ".join(
        f"@.view{(*rows, width)}.sub[..., {at} : {at + columns}]"
        + (f".view{(*rows, tile[-1], 2)}" if packed else "")
        for at in ((0, columns) if halved else (0,))
    ).replace("...", ", ".join(":" * len(rows)))
    instruction = 'T.ptx["tcgen05.{}.sync.aligned.' + shape + '.x8{}.b32"]'
    load = f"""T.cuda.tile.apply({instruction.format("ld", pack)},
        held, {names.replace("@", "cells")}, scope="warpgroup")"""
    store = f"""T.cuda.tile.apply({instruction.format("st", unpack)},
        {names.replace("@", "moved")}, held, scope="warpgroup")"""
    return (
        TILES.replace("LOAD", load)
        .replace("STORE", store)
        .replace("FRAGMENT_SHAPE", str(tile))
        .replace("FRAGMENT", f"TileLayout(S[({repeated}{extents[1:]} : ({own}{strides})])")
        .replace("BLOCK_SHAPE", f"(128, {width})")
        .replace("BLOCK", f"TileLayout(S[(128, {width}) : (1 @ TLane, {step})])")
        .replace("ELEMENT", repr(element))
        .replace("EVERY", "TileLayout(S[(128, 512) : (1 @ TLane, 1 @ TCol)])")
        .replace("ROW", "TileLayout(S[(128, 128) : (1 @ tid_in_wg, 1)])")
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", REGISTERS)
def test_tiles_are_moved(shape: str, packed: bool) -> None:
    before = np.random.default_rng(7).integers(0, 1 << 32, (128, 256), np.uint32)
    back = np.zeros_like(before)
    kernel = parse_function(tiled(shape, packed))
    tilewright.compile(kernel, target=TARGET)(before, back)
    width = FRAGMENTS[shape][2][-1] * (2 if packed else 1) * (2 if shape == "16x32bx2" else 1)
    expected = before[:, :width] & (0xFFFF if packed else 0xFFFFFFFF)
    assert np.array_equal(back[:, :width], expected)
    # What was not written was never loaded either.
    assert (back[:, width:] == 0xFFFFFFFF).all()
