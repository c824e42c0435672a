"""Loads, stores, atomics, warp operations and arithmetic in the eager executor."""

import numpy as np
import pytest

from tilewright.base.errors import MemoryFault, SimulationError
from tilewright.isa.declaration import spell
from tilewright.sim.eager import EagerMachine, execute

LANE = np.arange(32, dtype=np.uint32)
FULL = 0xFFFFFFFF
BASE = 1 << 40


def run(machine, text, *operands, results=None):
    """Execute the form with that many results (the least, if not said) that fits the inputs."""
    fitting = []
    for form in spell(text).forms():
        inputs = sum(each.count for each in form.operands if each.role != "out")
        outputs = sum(each.count for each in form.operands if each.role == "out")
        if inputs == len(operands) and results in (None, outputs):
            fitting.append((outputs, form))
    found = execute(min(fitting, key=lambda pair: pair[0])[1], operands, machine)
    return [np.broadcast_to(each.value, 32) for each in found]


# ---------------------------------------------------------------------------- memory


@pytest.mark.parametrize(("vec", "count"), [("", 1), (".v2", 2), (".v4", 4)])
@pytest.mark.parametrize("space", ["shared", "global"])
def test_load_and_store(space, vec, count):
    memory = np.zeros(32 * 16, np.uint8)
    machine = EagerMachine(shared=memory, memories={BASE: memory}, active=0x0F0F0F0F)
    base = 0 if space == "shared" else BASE
    kind = np.uint32 if space == "shared" else np.uint64
    where = (base + 4 * count * LANE.astype(np.uint64)).astype(kind)
    values = [LANE * 10 + i for i in range(count)]
    run(machine, f"st.{space}{vec}.b32", where, *values)
    words = memory.view(np.uint32)
    for lane in range(32):
        for i in range(count):
            expected = lane * 10 + i if lane % 8 < 4 else 0
            assert words[lane * count + i] == expected
    loaded = run(machine, f"ld.{space}{vec}.u32", where)
    for i, register in enumerate(loaded):
        assert np.array_equal(register[machine.mask], values[i][machine.mask])


def test_uniform_load_is_uniform():
    machine = EagerMachine(shared=np.arange(16, dtype=np.uint8))
    (form,) = spell("ld.shared.b16").forms()
    (value,) = execute(form, [4], machine)
    assert value.width == 0
    assert value.value == 0x0504


@pytest.mark.parametrize(
    ("where", "code"), [(64, "out-of-bounds"), (60, "out-of-bounds"), (12, "misaligned")]
)
def test_bad_accesses(where, code):
    with pytest.raises(MemoryFault) as caught:
        run(EagerMachine(shared=64), "ld.shared.v2.b32", where)
    assert caught.value.code == code


def test_inactive_lanes_access_nothing():
    machine = EagerMachine(shared=4, active=1)
    run(machine, "st.shared.b32", LANE * 4, LANE)


def test_read_only_memory():
    memory = np.zeros(64, np.uint8)
    memory.flags.writeable = False
    machine = EagerMachine(memories={BASE: memory})
    run(machine, "ld.global.nc.v4.f32", BASE)
    with pytest.raises(MemoryFault) as caught:
        run(machine, "st.global.b32", BASE, 1)
    assert caught.value.code == "read-only"


@pytest.mark.parametrize(
    ("op", "start", "operand", "expected"),
    [
        ("add.u32", 5, 2, 5 + 64),
        ("min.s32", 5, -3 & FULL, -3 & FULL),
        ("max.u32", 5, 9, 9),
        ("and.b32", 0xFF, 0xF0, 0xF0),
        ("xor.b32", 1, 3, 1),
        ("inc.u32", 0, 5, 32 % 6),
        ("dec.u32", 3, 5, (3 - 32) % 6),
        ("exch.b32", 5, 7, 7),
    ],
)
def test_atomics_count_every_lane(op, start, operand, expected):
    machine = EagerMachine(shared=np.array([start], np.uint32).view(np.uint8).copy())
    (old,) = run(machine, f"atom.shared.{op}", 0, operand)
    assert old[0] == start
    assert machine.shared.view(np.uint32)[0] == expected


def test_atomics_give_the_value_before():
    machine = EagerMachine(shared=4)
    (old,) = run(machine, "atom.shared.add.u32", 0, LANE)
    assert np.array_equal(old, np.cumsum(LANE) - LANE)


def test_compare_and_swap():
    machine = EagerMachine(shared=4)
    (old,) = run(machine, "atom.shared.cas.b32", 0, LANE, LANE + 1)
    assert np.array_equal(old, LANE)
    assert machine.shared.view(np.uint32)[0] == 32


def test_single_precision_atomics_flush_in_global_memory_only():
    tiny = np.float32(1e-40)
    memory = np.zeros(4, np.uint8)
    machine = EagerMachine(shared=4, memories={BASE: memory}, active=1)
    run(machine, "red.shared.add.f32", 0, tiny)
    run(machine, "red.global.add.f32", BASE, tiny)
    assert machine.shared.view(np.float32)[0] == tiny
    assert memory.view(np.float32)[0] == 0


def test_vectors_are_added_element_by_element():
    """All 32 lanes add 1, 2, 3, 4 to four neighbours; subnormals are flushed as alone."""
    memory = np.zeros(16, np.uint8)
    machine = EagerMachine(memories={BASE: memory})
    run(machine, "red.global.add.v4.f32", BASE, *(np.float32(each) for each in (1, 2, 3, 1e-40)))
    assert memory.view(np.float32).tolist() == [32, 64, 96, 0]


def test_halves_are_added_and_rounded_one_by_one():
    """2048 + 1 is a tie of float16, and goes to the even 2048; subnormals stay (.noftz)."""
    memory = np.array([2048, 2**-24], np.float16).view(np.uint8).copy()
    machine = EagerMachine(memories={BASE: memory}, active=1)
    pair = np.array([1, 2**-24], np.float16).view(np.uint32)[0]
    run(machine, "red.global.add.noftz.f16x2", BASE, pair)
    assert memory.view(np.float16).tolist() == [2048, 2**-23]


# ---------------------------------------------------------------------------- shuffles


def shuffled(mode, b, c):
    """Follow the code of `shfl.sync` in the ISA, lane by lane."""
    sources, inside = [], []
    for lane in range(32):
        bval, cval, segment = b[lane] & 31, c & 31, c >> 8 & 31
        maximum, minimum = (lane & segment) | (cval & ~segment), lane & segment
        j = {
            "up": lane - bval,
            "down": lane + bval,
            "bfly": lane ^ bval,
            "idx": minimum | (bval & ~segment),
        }[mode]
        holds = j >= maximum if mode == "up" else j <= maximum
        inside.append(holds)
        sources.append(j if holds else lane)
    return sources, inside


@pytest.mark.parametrize("clamp", [0x1F, 0, 0x181F, 0x1C00, 0x1E01, 0x100F])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(mode, clamp):
    b = np.random.default_rng(clamp).integers(0, 32, 32).astype(np.uint32)
    value = np.random.default_rng(1).integers(0, 1 << 32, 32, dtype=np.uint32)
    sources, inside = shuffled(mode, [int(each) for each in b], clamp)
    found, holds = run(EagerMachine(), f"shfl.sync.{mode}.b32", value, b, clamp, FULL, results=2)
    assert np.array_equal(found, value[sources])
    assert np.array_equal(holds, inside)


def test_votes():
    machine = EagerMachine()
    odd = LANE % 2 == 1
    assert run(machine, "vote.sync.ballot.b32", odd, FULL)[0][0] == 0xAAAAAAAA
    assert run(machine, "vote.sync.any.pred", odd, FULL)[0].all()
    assert not run(machine, "vote.sync.all.pred", odd, FULL)[0].any()
    assert not run(machine, "vote.sync.uni.pred", odd, FULL)[0].any()
    assert run(machine, "vote.sync.uni.pred", False, FULL)[0].all()


def test_votes_among_some():
    machine = EagerMachine(active=0xAAAAAAAA)
    assert run(machine, "vote.sync.all.pred", LANE % 2 == 1, 0xAAAAAAAA)[0].all()
    # Two groups that execute one instruction together keep apart.
    masks = np.where(LANE < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32)
    (ballot,) = run(EagerMachine(), "vote.sync.ballot.b32", True, masks)
    assert np.array_equal(ballot, masks)


def test_members_must_be_together():
    for active, mask in ((0xFFFF, FULL), (FULL, 0xFFFF)):
        with pytest.raises(SimulationError) as caught:
            run(EagerMachine(active=active), "vote.sync.any.pred", True, mask)
        assert caught.value.code == "divergent-collective"


@pytest.mark.parametrize(
    ("op", "reduce"),
    [
        ("add.u32", lambda x: int(x.sum()) & FULL),
        ("min.u32", lambda x: int(x.min())),
        ("max.s32", lambda x: int(x.view(np.int32).max()) & FULL),
        ("min.s32", lambda x: int(x.view(np.int32).min()) & FULL),
        ("and.b32", lambda x: int(np.bitwise_and.reduce(x))),
        ("xor.b32", lambda x: int(np.bitwise_xor.reduce(x))),
    ],
)
@pytest.mark.parametrize("active", [FULL, 0x00F0F001])
def test_redux(op, reduce, active):
    machine = EagerMachine(active=active)
    value = np.random.default_rng(7).integers(0, 1 << 32, 32, dtype=np.uint32)
    (found,) = run(machine, f"redux.sync.{op}", value, active)
    assert int(found[0]) & FULL == reduce(value[machine.mask])


def test_elect():
    leader, elected = run(EagerMachine(active=0xF0), "elect.sync", 0xF0, results=2)
    assert leader[0] == 4
    assert list(np.flatnonzero(elected)) == [4]


def test_activemask():
    assert run(EagerMachine(active=0x30), "activemask.b32")[0][0] == 0x30


# ---------------------------------------------------------------------------- arithmetic


def halves(low, high):
    return np.array([low, high], np.float16).view(np.uint32)[0]


@pytest.mark.parametrize(
    ("text", "operands", "expected"),
    [
        ("add.s32", (-1 & FULL, 3), 2),
        ("mul.hi.u32", (0x80000000, 6), 3),
        ("mul.wide.s32", (np.int32(-2), 3), np.int64(-6)),
        ("mad.lo.s32", (5, 6, 7), 37),
        ("div.s32", (np.int32(-7), 2), np.int32(-3)),
        ("rem.s32", (np.int32(-7), 2), np.int32(-1)),
        ("fma.rn.f32", (2.0, 3.0, 4.0), 10.0),
        ("add.rn.f16x2", (halves(1, 2), halves(3, 4)), halves(4, 6)),
        ("min.f32", (float("nan"), 1.0), 1.0),
        ("neg.f32", (0.0,), -0.0),
        ("shl.b32", (1, 40), 0),
        ("shr.s32", (np.int32(-8), 40), np.int32(-1)),
        ("popc.b32", (0xFF,), 8),
        ("clz.b64", (1,), 63),
        ("lop3.b32", (0b1100, 0b1010, 0b0110, 0x96), 0b1100 ^ 0b1010 ^ 0b0110),
        ("lop3.b32", (0b1100, 0b1010, 0b0110, 0xE8), 0b1110),
        ("prmt.b32", (0x33221100, 0x77665544, 0x7531), 0x77553311),
        ("prmt.b32", (0x80, 0, 0x1118), 0xFF),
        ("shf.l.wrap.b32", (0x80000000, 1, 33), 3),
        ("shf.r.clamp.b32", (5, 9, 40), 9),
        ("selp.b32", (1, 2, False), 2),
        ("setp.lo.u32", (1, 2), True),
        ("setp.ne.f32", (float("nan"), 1.0), False),
        ("setp.neu.f32", (float("nan"), 1.0), True),
        ("cvt.rzi.s32.f32", (-1.7,), np.int32(-1)),
        ("cvt.rzi.u32.f32", (float("nan"),), 0),
        ("cvt.rzi.s64.f32", (float("nan"),), np.int64(-(1 << 63))),
        ("cvt.rn.f16x2.f32", (1.0, 2.0), halves(2, 1)),
        ("cvt.f32.f16", (np.float16(1.5),), 1.5),
        ("mov.b32", (np.uint16(1), np.uint16(2)), 0x20001),
        ("rcp.rn.f32", (3.0,), np.float32(1) / np.float32(3)),
        ("sqrt.rn.f32", (2.0,), np.sqrt(np.float32(2))),
    ],
)
def test_arithmetic(text, operands, expected):
    operands = [np.asarray(x) if isinstance(x, np.generic) else x for x in operands]
    found = run(EagerMachine(), text, *operands)[0][0]
    if isinstance(expected, np.generic):
        found = found.view(expected.dtype)
    assert found == expected
    assert np.signbit(float(found)) == np.signbit(float(expected))


def test_unpacking():
    low, high = run(EagerMachine(), "mov.b64", 0x1122334455667788, results=2)
    assert (low[0], high[0]) == (0x55667788, 0x11223344)
