"""Tensor copies and bulk copies, one at a time, against formulas of the tests' own.

The eager executor runs here; kernels, which have a schedule, are in `tests/sim`.
"""

from __future__ import annotations

from typing import Any

import boxes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.errors import TilewrightError
from tilewright.base.spaces import Space
from tilewright.base.targets import target
from tilewright.isa.declaration import Form, families, spell
from tilewright.isa.tensor_map import TensorMap
from tilewright.sim.eager import EagerMachine, execute

LOAD = "cp.async.bulk.tensor.{}d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"
PREFETCH = "cp.async.bulk.prefetch.tensor.{}d.L2.global.tile"
COMMIT = "cp.async.bulk.commit_group"
WAIT, WAIT_READ = "cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read"
SHARED = 1 << 16
TENSOR, MAP, BARRIER = 1 << 40, 1 << 41, 8


def only(text: str) -> Form:
    (form,) = spell(text).forms()
    return form


def map_of(case: boxes.Case, address: int = TENSOR) -> TensorMap:
    return TensorMap(
        address,
        case.format,
        case.extents,
        case.strides,
        case.box,
        case.steps or (1,) * case.rank,
        swizzle=case.swizzle,
        oob_fill=case.fill,
    )


def machine(case: boxes.Case, tensor: boxes.Array, **options: Any) -> EagerMachine:
    """Make a machine with a tensor, its map and an mbarrier that expects one arrival."""
    assert map_of(case).problem() is None
    words = map_of(case).words().view(np.uint8)
    memories = {TENSOR: tensor, MAP: words}
    made = EagerMachine(shared=SHARED, memories=memories, active=1, **options)
    made.shared[:] = boxes.some_bytes(3, SHARED)
    execute(only("mbarrier.init.shared.b64"), [BARRIER, 1], made)
    return made


def load(m: EagerMachine, case: boxes.Case, start: int, modifiers: str = "") -> None:
    extra = [0x1234] if "cache_hint" in modifiers else []
    form = only(LOAD.format(case.rank) + modifiers)
    execute(form, [start, MAP, *case.origin, BARRIER, *extra], m)


def store(m: EagerMachine, case: boxes.Case, start: int) -> None:
    execute(only(STORE.format(case.rank)), [MAP, *case.origin, start], m)


def phase(m: EagerMachine) -> bool:
    """Tell whether the first phase of the mbarrier has completed."""
    (done,) = execute(only("mbarrier.test_wait.parity.shared.b64"), [BARRIER, 0], m)
    return bool(done.value)


def check_load(case: boxes.Case, start: int) -> None:
    tensor = boxes.some_bytes(4, case.bytes)
    m = machine(case, tensor)
    execute(
        spell("mbarrier.arrive.expect_tx.shared.b64").forms()[0], [BARRIER, case.transferred], m
    )
    expected = boxes.loaded(case, tensor, m.shared, start)
    expected[BARRIER : BARRIER + 8] = 0
    load(m, case, start)
    assert phase(m)
    m.shared[BARRIER : BARRIER + 8] = 0
    assert np.array_equal(m.shared, expected)


def check_store(case: boxes.Case, start: int, beyond: int) -> None:
    tensor = boxes.some_bytes(5, case.bytes + beyond)
    m = machine(case, tensor.copy())
    store(m, case, start)
    expected = boxes.stored(case, tensor, m.shared, start)
    assert np.array_equal(m.memories[TENSOR], expected)


# ---------------------------------------------------------------------------- boxes


@pytest.mark.parametrize("case", boxes.SHAPES, ids=str)
@pytest.mark.parametrize("start", [1024, 1152, 4096 + 896])
def test_loads(case: boxes.Case, start: int) -> None:
    check_load(case, start)


@settings(deadline=None, max_examples=60)
@given(boxes.cases(), st.integers(1, 20))
def test_random_loads(case: boxes.Case, line: int) -> None:
    check_load(case, 128 * line)


@pytest.mark.parametrize("case", [boxes.inward(each) for each in boxes.SHAPES], ids=str)
@pytest.mark.parametrize("beyond", [0, 16])
def test_stores(case: boxes.Case, beyond: int) -> None:
    check_store(case, 1152, beyond)


@settings(deadline=None, max_examples=60)
@given(boxes.cases(stores=True), st.integers(0, 20))
def test_random_stores(case: boxes.Case, line: int) -> None:
    check_store(case, 128 * line, 16)


def test_a_store_goes_into_the_padding_of_a_row_by_whole_chunks() -> None:
    case = boxes.Case("uint16", (11, 3), (16, 3), (0, 0), padding=(1,))
    assert case.strides == (48,)
    tensor = np.full(case.bytes, 0xEE, np.uint8)
    m = machine(case, tensor)
    m.shared[:] = 0x11
    store(m, case, 1024)
    rows = np.resize(tensor, 3 * 48).reshape(3, 48)
    assert (rows[:, :22] == 0x11).all()
    assert (rows[:2, 22:32] == 0x11).all()
    assert (rows[:2, 32:] == 0xEE).all()


@pytest.mark.parametrize("modifiers", ["", ".L2::cache_hint", ".cta_group::1", ".cta_group::2"])
def test_modifiers_that_change_no_values(modifiers: str) -> None:
    case = boxes.SHAPES[3]
    tensor = boxes.some_bytes(4, case.bytes)
    m = machine(case, tensor)
    expected = boxes.loaded(case, tensor, m.shared, 1024)
    load(m, case, 1024, modifiers)
    assert np.array_equal(m.shared[1024:], expected[1024:])
    store_form = only(STORE.format(2) + ".L2::cache_hint")
    execute(store_form, [MAP, 0, 0, 1024, 99], m)


def test_the_bytes_of_a_whole_box_are_counted() -> None:
    case = boxes.Case("float16", (8, 2), (16, 7), (24, -6), steps=(1, 2), swizzle=2)
    assert case.transferred == 16 * 4 * 2
    check_load(case, 2048)


# ---------------------------------------------------------------------------- what is refused

PLAIN = boxes.Case("float16", (64, 16), (8, 4), (0, 0))


def refused(code: str, text: str, operands: list[Any], m: EagerMachine) -> str:
    with pytest.raises(TilewrightError) as caught:
        execute(only(text), operands, m)
    assert caught.value.code == code
    return str(caught.value)


def test_boxes_begin_at_whole_chunks() -> None:
    m = machine(PLAIN, np.zeros(PLAIN.bytes, np.uint8))
    for text, operands in (
        (LOAD.format(2), [1024, MAP, 4, 0, BARRIER]),
        (STORE.format(2), [MAP, 4, 0, 1024]),
        (PREFETCH.format(2), [MAP, 4, 0]),
    ):
        assert "16 bytes" in refused("tensor-map", text, operands, m)


def test_stores_begin_inside() -> None:
    m = machine(PLAIN, np.zeros(PLAIN.bytes, np.uint8))
    for origin in ([-8, 0], [0, -1]):
        found = refused("tensor-map", STORE.format(2), [MAP, *origin, 1024], m)
        assert "negative" in found
    execute(only(STORE.format(2)), [MAP, 640, 1 << 30, 1024], m)
    execute(only(PREFETCH.format(2)), [MAP, -8, -1], m)


def test_alignment() -> None:
    m = machine(PLAIN, np.zeros(PLAIN.bytes, np.uint8))
    for start in (16, 64, 1024 + 32):
        refused("misaligned", LOAD.format(2), [start, MAP, 0, 0, BARRIER], m)
        refused("misaligned", STORE.format(2), [MAP, 0, 0, start], m)
    assert "64 bytes" in refused("misaligned", STORE.format(2), [MAP + 16, 0, 0, 1024], m)


def test_maps() -> None:
    m = machine(PLAIN, np.zeros(PLAIN.bytes, np.uint8))
    assert "rank" in refused("tensor-map", LOAD.format(3), [1024, MAP, 0, 0, 0, BARRIER], m)
    assert "rank" in refused("tensor-map", STORE.format(1), [MAP, 0, 1024], m)
    assert "not that of" in refused("tensor-map", STORE.format(2), [TENSOR, 0, 0, 1024], m)
    assert "not that of" in refused("tensor-map", "prefetch.tensormap", [TENSOR], m)
    execute(only("prefetch.tensormap"), [MAP], m)


def test_the_mbarrier_must_be_one() -> None:
    m = machine(PLAIN, np.zeros(PLAIN.bytes, np.uint8))
    m.shared[BARRIER : BARRIER + 8] = 0xFF
    refused("mbarrier-protocol", LOAD.format(2), [1024, MAP, 0, 0, BARRIER], m)


def test_boxes_stay_in_memory() -> None:
    m = machine(PLAIN, np.zeros(PLAIN.bytes, np.uint8))
    refused("out-of-bounds", LOAD.format(2), [SHARED - 128, MAP, 0, 0, 8], machine_of_rows(8))
    refused("out-of-bounds", STORE.format(2), [MAP, 0, 0, SHARED - 128], machine_of_rows(8))
    m = machine(PLAIN, np.zeros(PLAIN.bytes - 64, np.uint8))
    refused("out-of-bounds", LOAD.format(2), [1024, MAP, 56, 12, BARRIER], m)
    execute(only(LOAD.format(2)), [1024, MAP, 0, 0, BARRIER], m)
    tensor = np.zeros(PLAIN.bytes, np.uint8)
    tensor.setflags(write=False)
    refused("read-only", STORE.format(2), [MAP, 0, 0, 1024], machine(PLAIN, tensor))


def machine_of_rows(rows: int) -> EagerMachine:
    """Make a machine whose boxes have so many rows of 32 bytes."""
    case = boxes.Case("float16", (64, 16), (16, rows), (0, 0))
    return machine(case, np.zeros(case.bytes, np.uint8))


# ---------------------------------------------------------------------------- groups


def held(case: boxes.Case = PLAIN) -> EagerMachine:
    return machine(case, np.zeros(case.bytes, np.uint8), hold=True)


def tensor_of(m: EagerMachine) -> boxes.Array:
    return m.memories[TENSOR].reshape(16, 128)


def test_what_has_been_read_may_be_overwritten() -> None:
    m = held()
    m.shared[1024:1088] = 1
    store(m, PLAIN, 1024)
    execute(only(COMMIT), [], m)
    execute(only(WAIT_READ), [0], m)
    m.shared[1024:1088] = 2
    assert not tensor_of(m).any()
    execute(only(WAIT), [0], m)
    assert (tensor_of(m)[:4, :16] == 1).all()


def test_what_has_not_been_read_may_not() -> None:
    for missing in (COMMIT, WAIT_READ):
        m = held()
        m.shared[1024:1088] = 1
        store(m, PLAIN, 1024)
        if missing != COMMIT:
            execute(only(COMMIT), [], m)
        if missing != WAIT_READ:
            execute(only(WAIT_READ), [0], m)
        m.shared[1024:1088] = 2
        m.land()
        assert (tensor_of(m)[:4, :16] == 2).all()


def test_a_wait_leaves_the_last_groups_alone() -> None:
    m = held()
    for row in range(4):
        m.shared[1024 + 128 * row :][:64] = row + 1
        execute(only(STORE.format(2)), [MAP, 0, 4 * row, 1024 + 128 * row], m)
        execute(only(COMMIT), [], m)
    expected = [0, 0, 0, 0]
    for keep in (5, 4, 3, 1, 0):
        execute(only(WAIT), [keep], m)
        done = max(4 - keep, 0)
        expected[:done] = range(1, done + 1)
        assert tensor_of(m)[::4, 0].tolist() == expected


def test_groups_belong_to_their_thread() -> None:
    m = held()
    m.shared[1024:1088] = 1
    store(m, PLAIN, 1024)
    execute(only(COMMIT), [], m)
    m.mask = np.arange(32) == 7
    execute(only(WAIT), [0], m)
    assert not tensor_of(m).any()
    m.mask = np.arange(32) == 0
    execute(only(WAIT), [0], m)
    assert tensor_of(m).any()


# ---------------------------------------------------------------------------- runs of bytes


def test_bulk_stores() -> None:
    m = held()
    m.shared[1024:1056] = range(32)
    form = only("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint")
    execute(form, [TENSOR + 16, 1024, 32, 5], m)
    m.land()
    assert m.memories[TENSOR][:64].tolist() == [0] * 16 + [*range(32)] + [0] * 16
    form = "cp.async.bulk.global.shared::cta.bulk_group"
    for operands in ([TENSOR + 8, 1024, 32], [TENSOR, 1032, 32], [TENSOR, 1024, 24]):
        refused("misaligned", form, operands, m)
    execute(only("cp.async.bulk.prefetch.L2.global"), [TENSOR + 16, 32], m)
    refused("misaligned", "cp.async.bulk.prefetch.L2.global", [TENSOR, 24], m)


# ---------------------------------------------------------------------------- what is stated


def test_targets() -> None:
    plain, paired = only(LOAD.format(2)), only(LOAD.format(2) + ".cta_group::2")
    names = ("sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_120a")
    assert [target(each) in plain.targets for each in names] == [False] + [True] * 7
    found = [target(each) in paired.targets for each in names]
    assert found == [False, False, False, False, True, True, True, False]
    assert target("sm_80") in only("cp.async.commit_group").targets


def test_coordinates_stand_one_by_one() -> None:
    for axes in range(1, 6):
        form = only(LOAD.format(axes))
        assert [each.count for each in form.operands] == [1, 1, axes, 1]
        assert form.operands[1].space is Space.GENERIC
        assert (form.operands[1].bytes, form.operands[1].align) == (128, 64)


def test_there_is_every_form() -> None:
    texts = {form.text for each in families()["cp"] for form in each.forms()}
    for axes in range(1, 6):
        for space in ("shared::cta", "shared::cluster"):
            for tail in ("", ".L2::cache_hint", ".cta_group::1.L2::cache_hint"):
                text = f"cp.async.bulk.tensor.{axes}d.{space}.global"
                assert f"{text}.mbarrier::complete_tx::bytes{tail}" in texts
                assert f"{text}.tile.mbarrier::complete_tx::bytes{tail}" in texts
