"""mbarriers, barriers of the CTA and bulk copies in the eager executor."""

import numpy as np
import pytest

from tilewright.base.errors import DeadlockError, MemoryFault, SimulationError
from tilewright.isa.declaration import spell
from tilewright.sim.eager import EagerMachine, execute

ONE = 1  # only lane 0 is active
LIMIT = (1 << 20) - 1


def run(machine, text, *operands):
    """Execute the form that takes this many inputs; of several the one without results."""
    forms = [
        each
        for each in spell(text).forms()
        if len(operands)
        in range(
            sum(x.count for x in each.operands if x.role != "out" and not x.optional),
            sum(x.count for x in each.operands if x.role != "out") + 1,
        )
    ]
    forms.sort(key=lambda form: sum(x.role == "out" for x in form.operands))
    return execute(forms[0], operands, machine)


def run_with_state(machine, text, *operands):
    """Execute the form that gives the mbarrier's state."""
    for form in spell(text).forms():
        inputs = sum(x.role != "out" for x in form.operands)
        if form.operands[0].name == "state" and inputs == len(operands):
            return execute(form, operands, machine)[0].value
    raise AssertionError(text)


def barrier(count, active=ONE):
    machine = EagerMachine(shared=256, active=ONE)
    run(machine, "mbarrier.init.shared.b64", 8, count)
    machine.mask[:] = [active >> lane & 1 for lane in range(32)]
    return machine


def passed(machine, parity, op="try_wait"):
    return bool(run(machine, f"mbarrier.{op}.parity.shared::cta.b64", 8, parity)[0].value)


def code_of(error):
    return error.value.code


# ---------------------------------------------------------------------------- phases


@pytest.mark.parametrize("op", ["try_wait", "test_wait"])
def test_parity_follows_phases(op):
    machine = barrier(2)
    assert passed(machine, 1, op)
    for phase in (0, 1, 0, 1):
        assert not passed(machine, phase, op)
        run(machine, "mbarrier.arrive.shared::cta.b64", 8)
        assert not passed(machine, phase, op)
        run(machine, "mbarrier.arrive.shared::cta.b64", 8)
        assert passed(machine, phase, op)


def test_every_active_lane_arrives():
    machine = barrier(32, active=0xFFFFFFFF)
    run(machine, "mbarrier.arrive.shared::cta.b64", 8)
    assert passed(machine, 0)


def test_lanes_may_complete_several_phases():
    machine = barrier(8, active=0xFFFFFFFF)
    states = run_with_state(machine, "mbarrier.arrive.shared::cta.b64", 8)
    (pending,) = run(machine, "mbarrier.pending_count.b64", states)
    assert list(pending.value) == [8, 7, 6, 5, 4, 3, 2, 1] * 4
    assert not passed(machine, 0)


def test_an_arrival_may_count_more_than_one():
    machine = barrier(5)
    run(machine, "mbarrier.arrive.release.cta.shared::cta.b64", 8, 5)
    assert passed(machine, 0)


def test_state_names_a_phase():
    machine = barrier(2)
    state = run_with_state(machine, "mbarrier.arrive.shared::cta.b64", 8)
    wait = "mbarrier.test_wait.shared::cta.b64"
    assert not run(machine, wait, 8, state)[0].value.any()
    run(machine, "mbarrier.arrive.shared::cta.b64", 8)
    assert run(machine, wait, 8, state)[0].value[0]


def test_a_uniform_wait_has_a_uniform_result():
    machine = barrier(1, active=0xFFFFFFFF)
    (ready,) = run(machine, "mbarrier.try_wait.parity.shared::cta.b64", 8, 0, 1000)
    assert ready.width == 0


def test_lanes_wait_for_barriers_of_their_own():
    machine = EagerMachine(shared=256)
    where = np.arange(0, 256, 8, dtype=np.uint32)
    run(machine, "mbarrier.init.shared.b64", where, 1)
    with machine.only(3):
        run(machine, "mbarrier.arrive.shared::cta.b64", 24)
    (ready,) = run(machine, "mbarrier.try_wait.parity.shared::cta.b64", where, 0)
    assert list(np.flatnonzero(ready.value)) == [3]


def test_dropping_lowers_what_later_phases_expect():
    machine = barrier(2)
    run(machine, "mbarrier.arrive_drop.shared::cta.b64", 8)
    run(machine, "mbarrier.arrive.shared::cta.b64", 8)
    assert passed(machine, 0)
    run(machine, "mbarrier.arrive.shared::cta.b64", 8)
    assert passed(machine, 1)


# ---------------------------------------------------------------------------- transactions


def test_bytes_hold_a_phase_open():
    machine = barrier(1)
    run(machine, "mbarrier.arrive.expect_tx.shared::cta.b64", 8, 128)
    assert not passed(machine, 0)
    run(machine, "mbarrier.complete_tx.shared::cta.b64", 8, 96)
    assert not passed(machine, 0)
    run(machine, "mbarrier.complete_tx.shared::cta.b64", 8, 32)
    assert passed(machine, 0)


def test_bytes_may_come_before_they_are_expected():
    machine = barrier(1)
    run(machine, "mbarrier.complete_tx.shared::cta.b64", 8, 64)
    run(machine, "mbarrier.expect_tx.relaxed.cta.shared::cta.b64", 8, 64)
    assert not passed(machine, 0)
    run(machine, "mbarrier.arrive.shared::cta.b64", 8)
    assert passed(machine, 0)


@pytest.mark.parametrize("hold", [False, True])
def test_bulk_copy(hold):
    data = np.arange(256, dtype=np.uint8)
    machine = EagerMachine(shared=512, memories={1 << 40: data}, active=ONE, hold=hold)
    run(machine, "mbarrier.init.shared.b64", 8, 1)
    run(machine, "mbarrier.arrive.expect_tx.shared::cta.b64", 8, 64)
    copy = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
    run(machine, copy, 128, (1 << 40) + 32, 64, 8)
    assert passed(machine, 0) is not hold
    machine.land()
    assert passed(machine, 0)
    assert np.array_equal(machine.shared[128:192], data[32:96])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_bulk_copy_is_aligned(place):
    operands = [128, 1 << 40, 64, 8]
    operands[place] += 8
    machine = EagerMachine(shared=512, memories={1 << 40: np.zeros(256, np.uint8)}, active=ONE)
    copy = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
    with pytest.raises(MemoryFault) as caught:
        run(machine, copy, *operands)
    assert code_of(caught) == "misaligned"


# ---------------------------------------------------------------------------- against the protocol


@pytest.mark.parametrize("fill", [0x00, 0xFF, 0xCD, 0x80, 0x7F, 0xAA])
def test_memory_that_was_never_initialised(fill):
    machine = EagerMachine(shared=np.full(64, fill, np.uint8), active=ONE)
    for text in ("mbarrier.arrive.shared::cta.b64", "mbarrier.inval.shared.b64"):
        with pytest.raises(SimulationError) as caught:
            run(machine, text, 8)
        assert code_of(caught) == "mbarrier-protocol"


def test_use_after_invalidation():
    machine = barrier(1)
    run(machine, "mbarrier.inval.shared.b64", 8)
    with pytest.raises(SimulationError, match="no initialised mbarrier"):
        passed(machine, 0)


@pytest.mark.parametrize("count", [0, LIMIT + 1])
def test_counts_have_a_range(count):
    with pytest.raises(SimulationError, match="expects 1 to"):
        barrier(count)


def test_arrival_beyond_the_expected():
    machine = barrier(2)
    run(machine, "mbarrier.arrive.expect_tx.shared::cta.b64", 8, 16)
    run(machine, "mbarrier.arrive.shared::cta.b64", 8)
    with pytest.raises(SimulationError, match="beyond what the current phase expects"):
        run(machine, "mbarrier.arrive.shared::cta.b64", 8)
    with pytest.raises(SimulationError, match="beyond what the current phase expects"):
        run(barrier(2), "mbarrier.arrive.shared::cta.b64", 8, 3)


def test_transactions_have_a_range():
    machine = barrier(1)
    run(machine, "mbarrier.expect_tx.shared::cta.b64", 8, LIMIT)
    with pytest.raises(SimulationError, match="tx-count leaves its range"):
        run(machine, "mbarrier.expect_tx.shared::cta.b64", 8, 1)
    low = barrier(1)
    run(low, "mbarrier.complete_tx.shared::cta.b64", 8, LIMIT)
    with pytest.raises(SimulationError, match="tx-count leaves its range"):
        run(low, "mbarrier.complete_tx.shared::cta.b64", 8, 1)


def test_a_promise_not_to_complete():
    machine = barrier(2)
    run_with_state(machine, "mbarrier.arrive.noComplete.shared::cta.b64", 8, 1)
    with pytest.raises(SimulationError, match="completes the phase"):
        run_with_state(machine, "mbarrier.arrive.noComplete.shared::cta.b64", 8, 1)


def test_parity_is_a_bit():
    with pytest.raises(SimulationError, match="0 or 1"):
        passed(barrier(1), 2)


def test_alignment():
    with pytest.raises(MemoryFault) as caught:
        run(EagerMachine(shared=64, active=ONE), "mbarrier.init.shared.b64", 4, 1)
    assert code_of(caught) == "misaligned"


# ---------------------------------------------------------------------------- barriers of the CTA

BLOCK = {"ntid.x": 64, "ntid.y": 1, "ntid.z": 1}


def test_arrivals_complete_a_barrier():
    machine = EagerMachine(special=BLOCK)
    run(machine, "bar.arrive", 1, 96)
    run(machine, "bar.arrive", 1, 96)
    run(machine, "bar.sync", 1, 96)
    assert machine.barriers[1, "generation"] == 1
    assert machine.barriers[1, "arrived"] == machine.barriers[1, "expected"] == 0


def test_all_threads_of_the_cta_without_a_count():
    machine = EagerMachine(special=BLOCK)
    with pytest.raises(DeadlockError, match="barrier 0"):
        run(machine, "bar.sync", 0)
    run(machine, "bar.sync", 0)
    partial = EagerMachine(special={"ntid.x": 40, "ntid.y": 1, "ntid.z": 1})
    run(partial, "bar.arrive", 0, 64)
    run(partial, "bar.sync", 0)


@pytest.mark.parametrize(
    ("votes", "op", "type", "expected"),
    [
        (0xFFFFFFFF, "and", "pred", True),
        (0xFFFFFFFE, "and", "pred", False),
        (0, "or", "pred", False),
        (8, "or", "pred", True),
        (0xFF, "popc", "u32", 8),
    ],
)
def test_reductions(votes, op, type, expected):
    machine = EagerMachine(special={"ntid.x": 32, "ntid.y": 1, "ntid.z": 1})
    vote = np.array([votes >> lane & 1 for lane in range(32)], np.bool_)
    for _ in range(2):  # nothing is left over from the time before
        (found,) = run(machine, f"barrier.cta.red.{op}.aligned.{type}", 0, vote)
        assert found.value == expected


@pytest.mark.parametrize(("number", "count"), [(16, 32), (0, 48), (0, 0)])
def test_barrier_rules(number, count):
    with pytest.raises(SimulationError) as caught:
        run(EagerMachine(), "bar.sync", number, count)
    assert code_of(caught) == "barrier-protocol"


def test_counts_agree():
    machine = EagerMachine()
    run(machine, "bar.arrive", 3, 64)
    with pytest.raises(SimulationError, match="different thread counts"):
        run(machine, "bar.arrive", 3, 96)


def test_aligned_barriers_need_the_whole_warp():
    with pytest.raises(SimulationError) as caught:
        run(EagerMachine(active=0xFFFF), "bar.sync", 0, 32)
    assert code_of(caught) == "divergent-collective"
