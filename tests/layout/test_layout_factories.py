"""The factories, against values of the public package and against formulas of the PTX ISA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tilewright import layout as package
from tilewright.base.dtypes import dtype
from tilewright.base.errors import FrontendError
from tilewright.layout import (
    ComposeLayout,
    Iter,
    R,
    S,
    SwizzleMode,
    TCol,
    TileLayout,
    TLane,
    image,
    is_injective,
    mma_atom_layout,
    mma_atom_shape,
    mma_shared_layout,
    same_map,
    tmem_datapath_layout,
    tmem_mma_operand_layout,
)

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "layout_vectors.json").read_text())
NAMES = {name: getattr(package, name) for name in package.__all__}


def read(record):
    """Rebuild a layout from its record."""
    if record["kind"] == "compose":
        bits = (record["per_element"], record["swizzle_len"], record["atom_len"])
        return ComposeLayout(*bits, read(record["tile"]), record["swizzle_inner"])
    shard, replica = ([Iter(*each) for each in record[k]] for k in ("shard", "replica"))
    return TileLayout.from_iters(shard, replica, record["offset"])


def build(record):
    """Call what the record calls."""
    args = dict(record["args"])
    match record["factory"]:
        case "TileLayout":
            return eval(f"TileLayout({args['spec']})", dict(NAMES))
        case "ComposeLayout":
            tile = eval(f"TileLayout({args.pop('tile')})", dict(NAMES))
            return ComposeLayout(**args, tile_layout=tile)
        case name:
            return NAMES[name](**args)


@pytest.mark.parametrize("record", VECTORS, ids=lambda r: f"{r['factory']}-{r['args']}")
def test_layouts_are_those_of_the_public_package(record):
    layout = build(record)
    assert layout == read(record["layout"])
    assert layout.size() == record["size"]
    for coordinate, values in record["samples"]:
        assert layout.apply(*coordinate, shape=record["shape"]) == values


def swizzled_bytes(row, byte, mode):
    """The byte within a column of the swizzle's width, as the ISA's figures have it."""
    width = {1: 32, 2: 64, 3: 128, 4: 128}[mode]
    linear = row * width + byte
    if mode == 4:
        return linear ^ (linear >> 7 & 3) << 5
    return linear ^ (linear >> 7 & (width // 16 - 1)) << 4


@pytest.mark.parametrize("mode", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["float4_e2m1fn", "int8", "float16", "float32", "float64"])
def test_swizzles_permute_the_units_of_a_row_by_address_bits(name, mode):
    bits = dtype(name).bits
    width = {1: 32, 2: 64, 3: 128, 4: 128}[mode]
    shape = (2, 24, 3 * width * 8 // bits)
    layout = mma_shared_layout(name, mode, shape)
    stage, row, column = np.indices(shape)
    part, byte = np.divmod(column * bits // 8, width)
    expected = (stage * 3 + part) * 24 * width + swizzled_bytes(row, byte, mode)
    assert np.array_equal(image(layout, shape)["m"] * bits // 8, expected)
    assert is_injective(layout, shape)


@pytest.mark.parametrize("mode", list(SwizzleMode))
@pytest.mark.parametrize("name", ["float4_e2m1fn", "int8", "bfloat16", "float32"])
def test_an_atom_is_the_smallest_matrix_of_its_swizzle(name, mode):
    shape = mma_atom_shape(name, mode)
    atom = mma_atom_layout(name, mode)
    assert same_map(atom, mma_shared_layout(name, mode, shape), shape)
    assert atom.size() == np.prod(shape) == atom.span()


def test_swizzle_names_are_the_numbers_of_tensor_maps():
    assert [mma_atom_shape("float16", mode) for mode in (1, 2, 3)] == [[8, 16], [8, 32], [8, 64]]
    assert mma_shared_layout("float16", SwizzleMode.SWIZZLE_128B_ATOM, (8, 64)) == (
        mma_shared_layout("float16", 3, (8, 64))
    )


def test_rows_need_not_fill_the_last_atom():
    assert is_injective(mma_shared_layout("float16", 3, (9, 128)), (9, 128))


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (lambda: mma_shared_layout("float16", 3, (8, 96)), r"K, the last axis, a multiple of 64"),
        (lambda: mma_shared_layout("float16", 3, (8, 32)), r"K, the last axis, a multiple of 64"),
        (lambda: mma_shared_layout("float32", 4, (8, 48)), r"a multiple of 32"),
        (lambda: mma_shared_layout("float16", 3, (4, 64)), r"8 or more"),
        (lambda: mma_shared_layout("float16", 3, (64,)), r"two axes or more"),
        (lambda: mma_shared_layout("float16", 3, (2, 4, 64)), r"8 or more"),
        (lambda: mma_shared_layout("float16", 4, (3, 64)), r"4 or more"),
        (lambda: mma_shared_layout("float16", 1, (8, 24)), r"a multiple of 16"),
        (lambda: mma_shared_layout("int8", 2, (8, 32)), r"a multiple of 64"),
        (lambda: mma_shared_layout("float4_e2m1fn", 3, (8, 128)), r"a multiple of 256"),
        (lambda: mma_shared_layout("float16", 3, (8, 0)), r"positive integers"),
        (lambda: mma_shared_layout("float16", 0, (-8, 64)), r"positive integers"),
        (lambda: mma_shared_layout("float16", 0, cast(Any, (8, 64.0))), r"positive integers"),
        (lambda: mma_shared_layout("float16", 0, cast(Any, 64)), r"positive integers"),
        (lambda: mma_shared_layout("float16", 5, (8, 64)), r"no swizzle mode 5"),
        (lambda: mma_atom_shape("float16", 5), r"no swizzle mode 5"),
        (lambda: mma_atom_layout("float16", -1), r"no swizzle mode -1"),
        (lambda: mma_atom_shape("float6_e3m2fn", 1), r"do not fill 16 bytes"),
        (lambda: mma_atom_layout("float16x2", 1), r"do not fill 16 bytes"),
        (lambda: mma_shared_layout("float6_e2m3fn", 3, (8, 64)), r"do not fill 16 bytes"),
        (lambda: tmem_datapath_layout("H", 128, 32), r"one of the letters"),
        (lambda: tmem_datapath_layout("D", 64, 32), r"128 rows"),
        (lambda: tmem_datapath_layout("B", 64, 33), r"2 equal parts"),
        (lambda: tmem_datapath_layout("D", 128, 32, sub_slab=1), r"sub_slab 0"),
        (lambda: tmem_datapath_layout("G", 32, 66), r"4 equal parts"),
        (lambda: tmem_datapath_layout("F", 64, 32, sub_slab=2), r"sub_slab 0"),
        (lambda: tmem_datapath_layout("F", 64, 0), r"positive"),
        (lambda: operand("D", (128, 513)), r"at most 512 columns"),
        (lambda: operand("D", (128, 513), "float16"), r"at most 512 columns"),
        (lambda: operand("A", (128, 1025), "float16"), r"at most 512 columns"),
        (lambda: operand("D", (128, 64), "float8_e4m3fn"), r"float32, float16 or int32"),
        (lambda: operand("D", (128, 0)), r"positive integers"),
        (lambda: operand("D", 128), r"positive integers"),
        (lambda: operand("C", (128, 64)), r'"A" or "D"'),
        (lambda: operand("D", (64, 64)), r"128 rows"),
        (lambda: operand("D", (2, 64, 64)), r"cannot have the shape"),
        (lambda: operand("A", (64, 64), M=64, ws=True), r"\(2, m, K\)"),
        (lambda: operand("A", (128, 64), sparse=True), r"dense"),
        (lambda: operand("D", (32, 64), M=32, ws=True), r"no layout for this form"),
        (lambda: operand("D", (128, 64), group=(2, 2, 16)), r"cannot be folded"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_and_told_why(refused, says):
    with pytest.raises(FrontendError, match=says) as error:
        refused()
    assert error.value.code == "bad-layout"


def test_the_widest_operands_fill_tensor_memory():
    assert operand("D", (128, 512), "float16").span(TCol) == 1023
    assert operand("A", (128, 1024), "float16").span(TCol) == 1024
    assert operand("D", (64, 1024), cta_group=2).span(TCol) == 512


def operand(role, shape, element="float32", M=128, cta_group=1, **more):
    return tmem_mma_operand_layout(role, shape, element, M=M, cta_group=cta_group, **more)


def test_the_upper_half_of_a_spread_data_path_is_sixteen_lanes_higher():
    low, high = (image(tmem_datapath_layout("F", 64, 8, half)) for half in (0, 1))
    assert np.array_equal(low["TLane"] + 16, high["TLane"])


def test_a_pair_without_batches_reads_its_operand_a_from_both_halves_of_the_lanes():
    found = operand("A", (64, 32), "float16", cta_group=2)
    assert found == TileLayout(S[(64, 32) : (1 @ TLane, 1 @ TCol)] + R[2 : 64 @ TLane])


def test_a_batched_accumulator_is_the_folded_one_by_halves():
    batched = image(operand("D", (2, 64, 32), cta_group=2), (2, 64, 32))
    folded = image(operand("D", (64, 64), cta_group=2), (64, 2, 32))
    for name, values in batched.items():
        assert np.array_equal(values, folded[name].swapaxes(0, 1))


@pytest.mark.parametrize(("element", "step"), [("float16", 2), ("float32", 1), ("int32", 1)])
def test_each_value_of_a_sixteen_bit_accumulator_takes_a_cell(element, step):
    assert operand("D", (128, 64), element) == TileLayout(S[(128, 64) : (1 @ TLane, step @ TCol)])
    assert operand("A", (128, 64), element).shard[1].stride == 1
