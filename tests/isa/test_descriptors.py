"""Descriptors of the tensor core, against values that another implementation packed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.base.errors import SimulationError
from tilewright.isa import descriptors
from tilewright.isa.tensor_core import shapes
from tilewright.sim.eager import EagerMachine

DATA = Path(__file__).parent.parent / "data" / "descriptor_vectors.json"
VECTORS: list[dict[str, Any]] = json.loads(DATA.read_text())


def chosen(function: str) -> list[dict[str, Any]]:
    return [each for each in VECTORS if each["fn"] == function]


def dense(args: dict[str, Any]) -> int | None:
    """Pack a descriptor, or refuse the shape."""
    a, b = args["a_dtype"], args["b_dtype"]
    shape = (args["M"], args["N"], args["K"])
    if shape not in shapes(descriptors.kind_of(a), args["cta_group"]):
        return None
    for transposed, format in ((args["trans_a"], a), (args["trans_b"], b)):
        if transposed and not descriptors.transposable(format):
            return None
    return descriptors.encode_instruction(
        args["d_dtype"],
        a,
        b,
        args["M"],
        args["N"],
        transpose_a=args["trans_a"],
        transpose_b=args["trans_b"],
        negate_a=args["neg_a"],
    )


def test_dense() -> None:
    for each in chosen("dense"):
        expected = None if isinstance(each["value"], str) else each["value"]
        assert dense(each["args"]) == expected, each


def test_negated() -> None:
    found = descriptors.encode_instruction(
        "float32", "bfloat16", "bfloat16", 64, 128, negate_a=True
    )
    assert found == 69215376


def scaled(args: dict[str, Any]) -> int | None:
    """Pack a descriptor of a product with scales, or refuse the shape."""
    kind = "mxf8f6f4"
    if args["a_dtype"] == args["b_dtype"] == "float4_e2m1fn":
        kind = "mxf4" if args["sf_dtype"] == "float8_e8m0fnu" else "mxf4nvf4"
    if (args["M"], args["N"], args["K"]) not in shapes(kind, args["cta_group"]):
        return None
    return descriptors.encode_scaled_instruction(
        kind,
        args["a_dtype"],
        args["b_dtype"],
        args["sf_dtype"],
        args["M"],
        args["N"],
        transpose_a=args["trans_a"],
        transpose_b=args["trans_b"],
        deep=args["K"] == 96,
    )


def test_block_scaled() -> None:
    for each in chosen("block_scaled"):
        expected = None if isinstance(each["value"], str) else each["value"]
        assert scaled(each["args"]) == expected, each


def test_every_vector_is_looked_at() -> None:
    count = {name: len(chosen(name)) for name in ("dense", "block_scaled", "smem_base")}
    assert sum(count.values()) == len(VECTORS) and min(count.values()) > 0


def test_scale_ids() -> None:
    plain, both = (
        descriptors.encode_scaled_instruction(
            *("mxf4", "float4_e2m1fn", "float4_e2m1fn", "float8_e8m0fnu", 128, 8),
            scale_a_id=a_id,
            scale_b_id=b_id,
        )
        for a_id, b_id in ((0, 0), (3, 2))
    )
    assert both == plain | 3 << 29 | 2 << 4


def test_shared() -> None:
    for each in chosen("smem_base"):
        args = each["args"]
        found = descriptors.encode_shared(0, 16 * args["ldo"], 16 * args["sdo"], args["swizzle"])
        assert found == each["value"], each


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(AssertionError, match="stride"):
        descriptors.encode_shared(0, 16, 1 << 18, 3)
    with pytest.raises(AssertionError, match="'N'"):
        descriptors.encode_instruction("float32", "float16", "float16", 128, 12)


# ---------------------------------------------------------------------------- reading


def test_instructions_are_read_back() -> None:
    m = EagerMachine()
    for each in chosen("dense"):
        if isinstance(each["value"], str):
            continue
        fields = descriptors.decode_instruction(m, m.constant(each["value"], UINT32))
        values = {name: int(value.value) for name, value in fields.items()}
        args = each["args"]
        assert (values["M"], values["N"]) == (args["M"], args["N"])
        assert values["transpose_a"] == args["trans_a"]
        assert values["d_format"] == descriptors.D_FORMATS[args["d_dtype"]]
        assert not values["sparse"] and not values["negate_b"]


def test_reserved_bits_are_refused() -> None:
    m = EagerMachine()
    for bit in (6, 23, 29):
        with pytest.raises(SimulationError, match="reserved"):
            descriptors.decode_instruction(m, m.constant(1 << bit, UINT32))


@pytest.mark.parametrize("bit", [14, 15, 30, 31, *range(53, 61)])
def test_bits_of_a_matrix_descriptor_that_mean_nothing_are_refused(bit: int) -> None:
    word = descriptors.encode_shared(1024, 16, 1024, 3)
    with pytest.raises(SimulationError, match="reserved") as caught:
        shared(EagerMachine(), word | 1 << bit, 0, 16)
    assert caught.value.code == "undefined-operation"
    shared(EagerMachine(), word, 0, 16)


def shared(machine: EagerMachine, desc: int, transposed: int, bits: int) -> list[int]:
    tile = descriptors.decode_shared(
        machine, machine.constant(desc, UINT64), machine.constant(transposed, UINT32), bits
    )
    fields = (tile.start, tile.leading, tile.stride, tile.swizzle, tile.base_offset)
    return [int(each.value) for each in (*fields, tile.transposed)]


@pytest.mark.parametrize(("mode", "swizzle"), [(0, 0), (1, 1), (2, 3), (3, 7), (4, 6)])
def test_shared_descriptors_are_read_back(mode: int, swizzle: int) -> None:
    random = np.random.default_rng(mode)
    for _ in range(20):
        start, leading, stride = (16 * int(each) for each in random.integers(0, 1 << 14, 3))
        base = int(random.integers(0, 8))
        desc = descriptors.encode_shared(start, leading, stride, mode, base)
        found = shared(EagerMachine(), desc, 1, 32 if mode == 4 else 16)
        assert found == [start, leading, stride, swizzle, base, 1]


@pytest.mark.parametrize(
    ("desc", "message"),
    [
        (descriptors.encode_shared(0, 16, 1024, 3, version=0), "version 1"),
        (descriptors.encode_shared(0, 16, 1024, 3) | 1 << 52, "relative offsets"),
        (descriptors.encode_shared(0, 16, 1024, 0) | 3 << 61, "no layout"),
        (descriptors.encode_shared(0, 16, 1024, 4), "units of 32 bytes"),
    ],
)
def test_bad_shared_descriptors(desc: int, message: str) -> None:
    with pytest.raises(SimulationError, match=message) as caught:
        shared(EagerMachine(), desc, 0, 32)
    assert caught.value.code == "undefined-operation"


def test_swizzles_by_the_width_of_elements() -> None:
    """Only MN-major matrices of 32-bit elements move in units of 32 bytes, and only so."""
    for bits in (8, 16, 32):
        for transposed in (0, 1):
            for mode in range(5):
                desc = descriptors.encode_shared(0, 16, 1024, mode)
                if (mode == 4) == (bits == 32 and bool(transposed)):
                    assert shared(EagerMachine(), desc, transposed, bits)[-1] == transposed
                else:
                    with pytest.raises(SimulationError, match="units of 32 bytes"):
                        shared(EagerMachine(), desc, transposed, bits)
