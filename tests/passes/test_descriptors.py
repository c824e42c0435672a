"""Descriptors of matrices in shared memory: what is read off addresses, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.dtypes import UINT32
from tilewright.isa.descriptors import SWIZZLES
from tilewright.isa.machine import SharedTile
from tilewright.layout import (
    Layout,
    S,
    SwizzleMode,
    TileLayout,
    default_layout,
    image,
    mma_atom_shape,
    mma_shared_layout,
)
from tilewright.passes.extract_descriptors import SharedMatrix, Unfit, extract, modes
from tilewright.sim.eager import EagerMachine
from tilewright.sim.eager_tensor import element_addresses

DATA = Path(__file__).parent.parent / "data" / "descriptor_vectors.json"


def matrices(
    layout: Layout, shape: tuple[int, int], step: int, size: int, major: str
) -> np.ndarray:
    """Give the addresses of the matrices that a product takes of a buffer along K, in turn."""
    bytes = image(layout, shape)["m"] * size
    bytes = bytes if major == "k" else bytes.T
    rows, depth = bytes.shape
    return bytes.reshape(rows, depth // step, step).transpose(1, 0, 2)


def found(
    layout: Layout,
    shape: tuple[int, int],
    size: int = 2,
    major: str = "k",
    align: int = 1024,
) -> SharedMatrix | Unfit:
    step = 32 // size
    bytes = matrices(layout, shape, step, size, major)
    return extract(bytes, size, major, modes(layout, size, major), align)


# ---------------------------------------------------------------------------- what is found


@pytest.mark.parametrize(
    ("mode", "leading", "stride"), [(0, 2048, 128), (1, 16, 256), (2, 16, 512), (3, 16, 1024)]
)
def test_k_major(mode: int, leading: int, stride: int) -> None:
    matrix = found(mma_shared_layout("float16", mode, (128, 64)), (128, 64))
    assert matrix == SharedMatrix(leading, stride, SwizzleMode(mode))


def test_the_constants_of_the_reference() -> None:
    matrix = found(mma_shared_layout("float16", 3, (128, 64)), (128, 64))
    assert isinstance(matrix, SharedMatrix)
    assert (matrix.constant >> 32, matrix.constant & 0xFFFFFFFF) == (1073758272, 65536)
    matrix = found(mma_shared_layout("float16", 2, (128, 64)), (128, 64))
    assert isinstance(matrix, SharedMatrix)
    assert matrix.constant >> 32 == 2147500064


def test_the_packed_words_are_those_of_the_vectors() -> None:
    for each in json.loads(DATA.read_text()):
        if each["fn"] == "smem_base":
            args = each["args"]
            matrix = SharedMatrix(16 * args["ldo"], 16 * args["sdo"], SwizzleMode(args["swizzle"]))
            assert matrix.constant == each["value"]


def test_a_stride_that_nothing_shows_is_zero() -> None:
    matrix = found(mma_shared_layout("float16", 3, (8, 64)), (8, 64))
    assert matrix == SharedMatrix(16, 0, SwizzleMode.SWIZZLE_128B_ATOM)


@pytest.mark.parametrize(("element", "size", "mode"), [
    *(("float16", 2, mode) for mode in range(4)),
    *(("float32", 4, mode) for mode in (0, 1, 2, 3)),
])  # fmt: skip
def test_k_major_is_found_where_the_core_looks(element: str, size: int, mode: int) -> None:
    layout = mma_shared_layout(element, mode, (64, 64))
    _require_core_agrees(layout, size, "k")


@pytest.mark.parametrize(("element", "size", "mode"), [
    *(("float16", 2, mode) for mode in range(4)),
    ("float32", 4, 4),
])  # fmt: skip
def test_mn_major_is_found_where_the_core_looks(element: str, size: int, mode: int) -> None:
    layout = mma_shared_layout(element, mode, (64, 64))
    _require_core_agrees(layout, size, "mn")


def _require_core_agrees(layout: Layout, size: int, major: str) -> None:
    """Compare with the addresses that the simulator takes from a descriptor."""
    bytes = matrices(layout, (64, 64), 32 // size, size, major)
    matrix = extract(bytes, size, major, modes(layout, size, major), 1024)
    assert isinstance(matrix, SharedMatrix), matrix
    machine = EagerMachine()
    for each in bytes:
        fields = (
            *(4096 + int(each[0, 0]), matrix.leading, matrix.stride),
            *(SWIZZLES[matrix.mode], 0, int(major == "mn")),
        )
        tile = SharedTile(*(machine.constant(field, UINT32) for field in fields))
        rows, depth = each.shape
        expected = element_addresses(tile, rows, depth, 8 * size)
        assert np.array_equal(expected, 4096 + each)


def test_the_own_mode_is_tried_first() -> None:
    assert modes(mma_shared_layout("float16", 2, (64, 64)), 2, "k")[0] == 2
    assert modes(default_layout((64, 64)), 2, "k")[0] == 0
    assert modes(mma_shared_layout("float32", 4, (64, 64)), 4, "mn") == (4,)


# ---------------------------------------------------------------------------- what is refused


def reasons(matrix: SharedMatrix | Unfit) -> dict[int, str]:
    assert isinstance(matrix, Unfit)
    return {int(mode): reason for mode, reason in matrix.reasons}


def test_a_row_major_matrix_fits_no_mode() -> None:
    why = reasons(found(default_layout((128, 128)), (128, 128)))
    assert list(why) == [0, 1, 2, 3]
    assert why[0] == "element [1, 0] is 256 bytes from the first before the swizzle, not 16"


@pytest.mark.parametrize(("mode", "period"), [(1, 256), (2, 512), (3, 1024)])
def test_the_base_covers_the_swizzle(mode: int, period: int) -> None:
    layout = mma_shared_layout("float16", mode, (64, 64))
    assert isinstance(found(layout, (64, 64), align=period), SharedMatrix)
    why = reasons(found(layout, (64, 64), align=period // 2))
    assert f"not of {period}" in why[mode]


def test_a_matrix_begins_at_a_chunk() -> None:
    layout = TileLayout(S[(16, 2, 8) : (8, 128, 1)])
    bytes = image(layout, (16, 16))["m"][None] * 2 + 8
    why = extract(bytes, 2, "k", [SwizzleMode.SWIZZLE_NONE], 16)
    assert "a matrix begins 8 bytes after the start" in reasons(why)[0]


def test_strides_count_chunks() -> None:
    bytes = np.arange(16)[:, None] // 8 * 1000 + np.arange(16)[:, None] % 8 * 16
    bytes = bytes + np.arange(16) // 8 * 128 + np.arange(16) % 8 * 2
    why = reasons(extract(bytes[None], 2, "k", [SwizzleMode.SWIZZLE_NONE], 16))
    assert why[0] == "the stride offset would be 1000 bytes"


def test_every_origin_is_looked_at() -> None:
    bytes = matrices(mma_shared_layout("float16", 3, (64, 64)), (64, 64), 16, 2, "k").copy()
    bytes[3, 40, 5] += 2
    why = reasons(extract(bytes, 2, "k", [SwizzleMode.SWIZZLE_128B_ATOM], 1024))
    assert why[3].startswith("element [40, 5]")


def test_mn_major_words_need_the_swizzle_of_pairs() -> None:
    why = reasons(found(mma_shared_layout("float32", 3, (64, 64)), (64, 64), 4, "mn"))
    assert list(why) == [4]


# ---------------------------------------------------------------------------- drawn at random


def where_the_core_looks(
    matrix: SharedMatrix, start: int, rows: int, depth: int, size: int, major: str
) -> np.ndarray:
    """Give the address of every element, by the canonical layouts of the PTX ISA."""
    row, k = np.indices((rows, depth))
    span, chunk = (16, 32, 64, 128, 128)[matrix.mode], 16 // size
    wide, deep = span // size, 4 if matrix.mode == 4 else 8
    if major == "k" and matrix.mode == 0:
        place = row % 8 * 16 + row // 8 * matrix.stride
        place += k % chunk * size + k // chunk * matrix.leading
    elif major == "k":
        place = row % 8 * span + row // 8 * matrix.stride + k * size
    elif matrix.mode == 0:
        place = row % chunk * size + row // chunk * matrix.stride
        place += k % 8 * 16 + k // 8 * matrix.leading
    else:
        place = row % wide * size + row // wide * matrix.leading
        place += k % deep * span + k // deep * matrix.stride
    place = place + start
    if matrix.mode == 4:
        return place ^ (place >> 7 & 3) << 5
    return place ^ (place >> 7 & span // 16 - 1) << 4


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize(("element", "size"), [("int8", 1), ("float16", 2), ("float32", 4)])
def test_random_buffers(element: str, size: int, major: str) -> None:
    """Matrices cut out of a buffer of any shape that fits the swizzle, wherever it lies."""
    random = np.random.default_rng(size)
    step = 32 // size
    for _ in range(60):
        legal = (4,) if major == "mn" and size == 4 else (0, 1, 2, 3)
        mode = int(random.choice(legal))
        wide, deep = mma_atom_shape(element, mode)[1], 4 if mode == 4 else 8
        if major == "k":
            rows, depth = 8 * int(random.integers(1, 33)), np.lcm(wide, step)
            depth *= int(random.integers(1, 5))
        else:
            rows, depth = wide * int(random.integers(1, 5)), np.lcm(deep, step)
            depth *= int(random.integers(1, 5))
        shape = (rows, int(depth)) if major == "k" else (int(depth), rows)
        layout = mma_shared_layout(element, mode, shape)
        bytes = image(layout, shape)["m"] * size
        bytes = bytes if major == "k" else bytes.T
        unit = 8 if major == "k" else wide
        height = unit * int(random.integers(1, rows // unit + 1))
        height = next(each for each in range(height, 0, -unit) if rows % each == 0)
        blocks = bytes.reshape(rows // height, height, depth // step, step)
        blocks = blocks.transpose(0, 2, 1, 3).reshape(-1, height, step)
        matrix = extract(blocks, size, major, modes(layout, size, major), 1024)
        assert isinstance(matrix, SharedMatrix), (element, mode, shape, matrix)
        start = 1024 * int(random.integers(0, 64))
        for block in blocks:
            origin = start + int(block[0, 0])
            expected = where_the_core_looks(matrix, origin, height, step, size, major)
            assert np.array_equal(start + block, expected), (element, mode, shape)


@pytest.mark.parametrize("major", ["k", "mn"])
def test_whatever_is_found_is_where_the_core_looks(major: str) -> None:
    """For layouts that nobody made for the core, most of which it cannot read."""
    random = np.random.default_rng(3)
    count = 0
    for _ in range(400):
        size = int(random.choice([2, 4]))
        step = 32 // size
        rows = 8 * int(random.integers(1, 9))
        strides = [16 * int(random.integers(1, 40)) for _ in range(2)]
        row, k = np.indices((rows, step))
        fast, slow = (k, row) if major == "k" else (row, k)
        chunk = int(random.choice([16, 32, 64, 128])) // size
        bytes = fast % chunk * size + fast // chunk * strides[0]
        bytes = bytes + slow % 8 * chunk * size + slow // 8 * strides[1]
        if random.integers(2):
            bytes = bytes ^ (bytes >> 7 & chunk * size // 16 - 1) << 4
        tried = [mode for mode in SwizzleMode if (mode == 4) == (major == "mn" and size == 4)]
        matrix = extract(bytes[None], size, major, tried, 1024)
        if isinstance(matrix, SharedMatrix):
            count += 1
            expected = where_the_core_looks(matrix, 4096, rows, step, size, major)
            assert np.array_equal(4096 + bytes, expected)
    assert count > 20
