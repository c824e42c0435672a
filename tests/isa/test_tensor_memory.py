"""Tensor Memory: who may have what, and where registers go, by formulas of the tests' own."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import TilewrightError
from tilewright.base.spaces import Space
from tilewright.base.targets import target
from tilewright.isa.declaration import Form, spell
from tilewright.sim.eager import EagerMachine, execute

ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"
NUMBERS = [1 << power for power in range(8)]


def only(text: str) -> Form:
    (form,) = spell(text).forms()
    return form


def machine(columns: int = 512, warp: int = 0) -> EagerMachine:
    """Make a machine in which so many columns are allocated and hold different numbers."""
    made = EagerMachine(shared=64, special={"warpid": warp})
    made.state["tmem_columns"] = (1 << columns // 32) - 1
    made.cells[:] = np.random.default_rng(1).integers(0, 1 << 32, made.cells.shape, np.uint32)
    return made


def allocate(m: EagerMachine, columns: int) -> int:
    execute(only(ALLOC), [16, columns], m)
    return int(m.shared[16:20].view(np.uint32)[0])


def refused(code: str, text: str, operands: list[Any], m: EagerMachine) -> str:
    with pytest.raises(TilewrightError) as caught:
        execute(only(text), operands, m)
    assert caught.value.code == code
    return str(caught.value)


# ---------------------------------------------------------------------------- allocation


def test_allocations_lie_apart_at_multiples_of_their_size() -> None:
    m = EagerMachine(shared=64)
    assert [allocate(m, n) for n in (32, 128, 64, 32, 256)] == [0, 128, 64, 32, 256]
    assert m.state["tmem_columns"] == 0xFFFF


def test_freed_columns_are_given_again() -> None:
    m = EagerMachine(shared=64)
    for columns in (128, 128, 256):
        allocate(m, columns)
    execute(only(DEALLOC), [128, 128], m)
    assert m.state["tmem_columns"] == 0xFF0F
    assert allocate(m, 64) == 128
    assert allocate(m, 64) == 192


def test_an_allocation_waits_for_room() -> None:
    m = EagerMachine(shared=64)
    allocate(m, 32)
    refused("deadlock", ALLOC, [16, 512], m)
    execute(only(DEALLOC), [0, 32], m)
    assert allocate(m, 512) == 0


@pytest.mark.parametrize("columns", [0, 16, 48, 96, 1024, 33])
def test_sizes(columns: int) -> None:
    assert "32, 64, 128" in refused("tensor-memory", ALLOC, [16, columns], EagerMachine(shared=64))
    assert "32, 64, 128" in refused("tensor-memory", DEALLOC, [0, columns], machine())


def test_no_allocation_without_the_permit() -> None:
    m = EagerMachine(shared=64)
    allocate(m, 64)
    execute(only(RELINQUISH), [], m)
    assert "permit" in refused("tensor-memory", ALLOC, [16, 64], m)
    execute(only(DEALLOC), [0, 64], m)
    assert (m.state["tmem_columns"], m.state["tmem_permit"]) == (0, 1)


def test_only_an_allocation_can_be_freed() -> None:
    for taddr in (0, 64, 16, 512, 1 << 16, 0xFFFF_FFFF):
        refusal = refused("tensor-memory", DEALLOC, [taddr, 64], EagerMachine(shared=64))
        assert "no allocation begins" in refusal


@pytest.mark.parametrize("sizes", [(64, 64, 128), (32, 128, 64), (256, 256), (512,), (128, 32)])
def test_an_allocation_is_freed_as_a_whole(sizes: tuple[int, ...]) -> None:
    """Whatever lies beside it: not in part, not together with others, not twice."""
    m = EagerMachine(shared=64)
    held = {allocate(m, size): size for size in sizes}
    for taddr in range(0, 512, 32):
        for columns in (32, 64, 128, 256, 512):
            if held.get(taddr) != columns:
                text = "as a whole|no allocation begins|number of columns that it has"
                assert re.search(text, refused("tensor-memory", DEALLOC, [taddr, columns], m))
    for taddr, columns in held.items():
        execute(only(DEALLOC), [taddr, columns], m)
        assert "no allocation" in refused("tensor-memory", DEALLOC, [taddr, columns], m)
    assert m.state["tmem_columns"] == m.state["tmem_starts"] == 0


def test_all_lanes_give_one_number_of_columns() -> None:
    columns = np.full(32, 64, np.uint32)
    columns[3] = 128
    m = EagerMachine(shared=64)
    assert "different numbers" in refused("tensor-memory", ALLOC, [16, columns], m)
    taddr = allocate(m, 64)
    assert "different numbers" in refused("tensor-memory", DEALLOC, [taddr, columns], m)


# ---------------------------------------------------------------------------- loads and stores

# (row, column) of lane l and register r, from the figures of the PTX ISA.
PLACES = {
    "32x32b": lambda l, r: (l, r),  # noqa: E741
    "16x64b": lambda l, r: (l // 4 + 8 * (l % 2), l // 2 % 2 + 2 * r),  # noqa: E741
    "16x128b": lambda l, r: (l // 4 + 8 * (r % 2), l % 4 + 4 * (r // 2)),  # noqa: E741
    "16x256b": lambda l, r: (  # noqa: E741
        l // 4 + 8 * (r // 2 % 2),
        r % 2 + 2 * (l % 4) + 8 * (r // 4),
    ),
}
COUNTS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


def cases() -> list[tuple[str, int]]:
    return [(s, n) for s, each in COUNTS.items() for n in NUMBERS if each * n <= 128]


def cells(shape: str, registers: int, base: tuple[int, int], split: int) -> list[list[Any]]:
    """List, register by register, the row and the column of every lane."""
    found = []
    for r in range(registers):
        if shape == "16x32bx2":
            places = [(l % 16, r + split * (l // 16)) for l in range(32)]  # noqa: E741
        else:
            places = [PLACES[shape](l, r) for l in range(32)]  # noqa: E741
        found.append([(row + base[0], column + base[1]) for row, column in places])
    return found


@pytest.mark.parametrize(("shape", "number"), cases())
@pytest.mark.parametrize("warp", [0, 3, 5])
def test_loads_and_stores(shape: str, number: int, warp: int) -> None:
    rows = 32 if shape == "32x32b" else 16
    base = (32 * (warp % 4) + (32 - rows), 5)
    split = [130] if shape == "16x32bx2" else []
    places = cells(shape, number * COUNTS[shape], base, *split or [0])
    taddr = base[0] << 16 | base[1]

    m = machine(warp=warp)
    text = f"tcgen05.ld.sync.aligned.{shape}.x{number}.b32"
    registers = execute(only(text), [taddr, *split], m)
    assert len(registers) == len(places)
    for register, place in zip(registers, places, strict=True):
        assert register.value.tolist() == [int(m.cells[each]) for each in place]

    other = machine(warp=warp)
    other.cells[:] = 0
    execute(only(text.replace(".ld.", ".st.")), [taddr, *split, *registers], other)
    expected = np.zeros_like(m.cells)
    for place in places:
        for each in place:
            expected[each] = m.cells[each]
    assert np.array_equal(other.cells, expected)


@pytest.mark.parametrize(("shape", "number"), cases())
def test_packed_loads_and_stores(shape: str, number: int) -> None:
    split = [256] if shape == "16x32bx2" else []
    places = cells(shape, number * COUNTS[shape], (0, 0), 0)
    m = machine()
    text = f"tcgen05.ld.sync.aligned.{shape}.x{number}.pack::16b.b32"
    registers = execute(only(text), [0, *split], m)
    for register, place in zip(registers, places, strict=True):
        for lane, (row, column) in enumerate(place):
            first = 2 * column + (split[0] if split and lane >= 16 else 0)
            low, high = m.cells[row, first] & 0xFFFF, m.cells[row, first + 1] & 0xFFFF
            assert register.value[lane] == int(low) | int(high) << 16

    other = machine()
    other.cells[:] = 0
    text = f"tcgen05.st.sync.aligned.{shape}.x{number}.unpack::16b.b32"
    execute(only(text), [0, *split, *registers], other)
    assert np.array_equal(other.cells[other.cells != 0], (m.cells & 0xFFFF)[other.cells != 0])
    # Every register goes to two cells per lane, none of them twice.
    assert np.count_nonzero(other.cells) == 64 * len(registers)


def test_a_warp_reaches_its_quarter_only() -> None:
    text = "tcgen05.ld.sync.aligned.32x32b.x1.b32"
    for warp in range(8):
        for quarter in range(4):
            m = machine(warp=warp)
            if quarter == warp % 4:
                execute(only(text), [32 * quarter << 16], m)
            else:
                assert "quarter" in refused("tensor-memory", text, [32 * quarter << 16], m)
    assert "quarter" in refused("tensor-memory", text, [128 << 16], machine())


def test_blocks_begin_at_multiples_of_their_rows() -> None:
    text = "tcgen05.ld.sync.aligned.{}.x1.b32"
    wide, narrow = text.format("32x32b"), text.format("16x64b")
    assert "multiple of 32" in refused("tensor-memory", wide, [16 << 16], machine())
    execute(only(narrow), [16 << 16], machine())
    assert "multiple of 16" in refused("tensor-memory", narrow, [8 << 16], machine())


def test_accesses_stay_in_allocated_columns() -> None:
    text = "tcgen05.ld.sync.aligned.32x32b.x32.b32"
    execute(only(text), [32], machine(64))
    assert "not allocated" in refused("tensor-memory", text, [33], machine(64))
    assert "not allocated" in refused("tensor-memory", text, [512 - 16], machine(512))
    store = text.replace(".ld.", ".st.")
    assert "not allocated" in refused("tensor-memory", store, [64, *[0] * 32], machine(64))


def test_all_lanes_give_one_address() -> None:
    addresses = np.full(32, 32, np.uint32)
    text = "tcgen05.ld.sync.aligned.32x32b.x1.b32"
    execute(only(text), [addresses], machine())
    addresses[7] = 33
    assert "different addresses" in refused("tensor-memory", text, [addresses], machine())


def test_whole_warps_only() -> None:
    m = EagerMachine(active=0xFFFF, special={"warpid": 0})
    refused("divergent-collective", "tcgen05.ld.sync.aligned.32x32b.x1.b32", [0], m)


# ---------------------------------------------------------------------------- what else is stated


@pytest.mark.parametrize(("shape", "number"), cases())
def test_tile_contracts(shape: str, number: int) -> None:
    rows = 32 if shape == "32x32b" else 16
    for packed in ("", ".pack::16b"):
        form = only(f"tcgen05.ld.sync.aligned.{shape}.x{number}{packed}.b32")
        assert form.tile is not None and form.tile.issuer == "warp"
        held, *memory = form.tile.operands
        assert held.operand == "r" and held.bits == 32 and held.spaces == (Space.LOCAL,)
        places = cells(shape, number * COUNTS[shape], (0, 0), 0)
        columns = 1 + max(column for place in places for _, column in place)
        for each in memory:
            assert each.spaces == (Space.TMEM,)
            assert each.atom == ((rows, columns, 2) if packed else (rows, columns))
            assert each.bits == (16 if packed else 32)
        assert len(memory) == (2 if shape == "16x32bx2" else 1)
        assert held.owner is not None
        for number_, place in enumerate(places):
            for lane, at in enumerate(place):
                part = (lane // 16,) if shape == "16x32bx2" else ()
                assert tuple(map(int, held.owner(*part, *at))) == (lane, number_)


def test_stores_name_memory_first() -> None:
    found = only("tcgen05.st.sync.aligned.16x32bx2.x2.b32").tile
    assert found is not None
    assert [each.operand for each in found.operands] == ["taddr", "immHalfSplitoff", "r"]


def test_time() -> None:
    def time(text: str) -> tuple[str, str]:
        found = only("tcgen05." + text).time
        return found.agent, found.completes

    assert time("ld.sync.aligned.32x32b.x1.b32") == ("tensor_memory", "tmem_load")
    assert time("st.sync.aligned.32x32b.x1.b32") == ("tensor_memory", "tmem_store")
    assert time("wait::ld.sync.aligned") == ("", "tmem_load")
    assert time("wait::st.sync.aligned") == ("", "tmem_store")
    for text in ("wait::ld.sync.aligned", "wait::st.sync.aligned"):
        assert execute(only("tcgen05." + text), [], EagerMachine()) == []
    for when in ("before", "after"):
        assert execute(only(f"tcgen05.fence::{when}_thread_sync"), [], EagerMachine()) == []


def test_targets() -> None:
    for text in (ALLOC, DEALLOC, RELINQUISH, "tcgen05.mma.cta_group::1.kind::f16"):
        for form in spell(text).forms():
            names = ("sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a")
            found = [target(name) in form.targets for name in names]
            assert found == [False, False, True, True, True]
            scaled = bool(form.operands) and form.operands[-1].name == "scale_input_d"
            assert (target("sm_110a") in form.targets) is not scaled
            assert target("sm_120a") not in form.targets
