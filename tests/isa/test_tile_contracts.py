"""Tile contracts and fragments against explicit formulas, lane by lane and register by register.

The formulas are restated from the figures of the PTX ISA; no map of `isa/` is used for them.
"""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.base.spaces import Space
from tilewright.isa.declaration import Form, TileContract, TileOperand, spell


def only(text: str) -> Form:
    (form,) = spell(text).forms()
    return form


def contract(text: str) -> TileContract:
    found = only(text).tile
    assert found is not None
    return found


def owned(operand: TileOperand, *place: int) -> tuple[int, int]:
    assert operand.owner is not None
    lane, register = operand.owner(*place)
    return int(lane), int(register)


def operands(text: str) -> dict[str, TileOperand]:
    return {each.operand: each for each in contract(text).operands}


# ---------------------------------------------------------------------------- mma


@pytest.mark.parametrize("k", [8, 16])
def test_mma_fragments(k: int) -> None:
    tiles = operands(f"mma.sync.aligned.m16n8k{k}.row.col.f32.f16.f16.f32")
    for lane in range(32):
        for r in range(k // 4):
            place = (lane // 4 + 8 * (r % 2), lane % 4 + 4 * (r // 2))
            assert owned(tiles["a"], *place) == (lane, r)
        for r in range(k // 8):
            assert owned(tiles["b"], lane // 4, lane % 4 + 4 * r) == (lane, r)
        for r in range(4):
            place = (lane // 4 + 8 * (r // 2), 2 * (lane % 4) + r % 2)
            assert owned(tiles["c"], *place) == owned(tiles["d"], *place) == (lane, r)


def test_fragments_of_integers_and_of_packed_sums() -> None:
    """Words of integers lie as those of halves do; sums of float16 are pairs of columns."""
    text = "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32"
    halves = operands("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
    integers = operands(text)
    for name in "abcd":
        assert integers[name].atom == halves[name].atom
        for row in range(halves[name].atom[0]):
            for word in range(8):
                assert owned(integers[name], row, word) == owned(halves[name], row, word)
    packed = operands("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")["d"]
    assert packed.atom == (16, 4)
    for lane in range(32):
        for r in range(2):
            assert owned(packed, lane // 4 + 8 * r, lane % 4) == (lane, r)


def test_mma_contract() -> None:
    text = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    tiles = operands(text)
    assert [each.operand for each in contract(text).operands] == ["d", "a", "b", "c"]
    assert {name: tile.atom for name, tile in tiles.items()} == {
        "d": (16, 8),
        "a": (16, 8),
        "b": (8, 8),
        "c": (16, 8),
    }
    assert {name: tile.repeats for name, tile in tiles.items()} == {
        "d": ("*", "m", "n"),
        "a": ("*", "m", "k"),
        "b": ("*", "n", "k"),
        "c": ("*", "m", "n"),
    }
    assert {tile.bits for tile in tiles.values()} == {32}
    assert tiles["c"].scalar and not tiles["a"].scalar
    assert (contract(text).chained, contract(text).chain_to) == ("c", "d")
    assert contract(text).issuer == "warp"


# ---------------------------------------------------------------------------- matrix moves


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("family", ["ldmatrix", "stmatrix"])
def test_matrix_moves(family: str, count: int) -> None:
    found = contract(f"{family}.sync.aligned.m8n8.x{count}.shared.b16")
    registers, memory = found.operands if family == "ldmatrix" else found.operands[::-1]
    assert registers.atom == memory.atom == (count, 8, 4)
    assert (registers.spaces, memory.spaces) == ((Space.LOCAL,), (Space.SHARED,))
    assert (memory.contiguous, memory.align, memory.bits) == (4, 16, 32)
    for matrix in range(count):
        for row in range(8):
            for word in range(4):
                assert owned(registers, matrix, row, word) == (4 * row + word, matrix)
    address: Any = found.lane_address
    for lane in range(32):
        assert tuple(address(lane)) == (lane // 8 % count, lane % 8, 0)


# ---------------------------------------------------------------------------- loads and stores


@pytest.mark.parametrize(
    ("text", "count", "bits"),
    [
        ("ld.global.b32", 1, 32),
        ("ld.shared::cta.v4.f32", 4, 32),
        ("ld.global.nc.v2.b64", 2, 64),
        ("ld.global.v8.u32", 8, 32),
        ("ld.shared.b8", 1, 8),
    ],
)
def test_loads(text: str, count: int, bits: int) -> None:
    registers, memory = contract(text).operands
    assert registers.spaces == (Space.LOCAL,)
    assert memory.spaces == ((Space.GLOBAL if "global" in text else Space.SHARED),)
    assert registers.atom == memory.atom == (count,)
    assert registers.bits == memory.bits == bits
    assert (memory.contiguous, memory.align) == (count, count * bits // 8)
    assert contract(text).issuer == "thread"


def test_stores_name_memory_first() -> None:
    assert [each.operand for each in contract("st.global.v4.b32").operands] == ["a", "b"]


@pytest.mark.parametrize("text", ["ld.b32", "st.v2.b32"])
def test_generic_accesses_have_no_tile_form(text: str) -> None:
    assert only(text).tile is None


def test_register_instructions() -> None:
    d, a, b = contract("cvt.rn.f16x2.f32").operands
    assert (d.atom, a.atom, b.atom) == ((1,), (1,), (1,))
    assert (d.bits, a.bits) == (32, 32)
    assert a.scalar and b.scalar and not d.scalar
