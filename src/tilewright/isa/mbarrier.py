"""The mbarrier object and its operations (PTX ISA 9.7.13.15).

May import `base`, `isa.declaration` and `isa.machine`. An mbarrier is eight bytes of shared
memory; the ISA leaves their meaning open. Here they are a number of 62 bits,

    bits  0…19   pending arrivals of the current phase
    bits 20…40   tx-count of the current phase, two's complement
    bit  41      parity of the current phase
    bits 42…61   expected arrivals of the next phase

of which the low 31 bits stand in the low half of the eight bytes and the others in the high
half. The top bit of the low half is 0 and that of the high half 1, so that no memory filled
with one byte, half-word or word passes for an mbarrier.

    mbarrier.try_wait.parity.shared::cta.b64 %p, [%r0], %r1;
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from tilewright.base.dtypes import INT32, UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Operand,
    Order,
    Scope,
    Wait,
    address,
    declare,
    predicate,
    register,
)
from tilewright.isa.machine import Lanes, Machine, uint32

BYTES = 8
LIMIT = (1 << 20) - 1
_CODE = "mbarrier-protocol"
_HALF = (1 << 31) - 1
_MARK = 1 << 63
_MARKS = _MARK | 1 << 31

# ---------------------------------------------------------------------------- the object


@dataclass(frozen=True)
class State:
    """The contents of an mbarrier: uint32 each, the tx-count int32."""

    pending: Lanes
    transactions: Lanes
    phase: Lanes
    expected: Lanes


def decode(m: Machine, word: Lanes) -> State:
    """Read the eight bytes of an mbarrier, which must be one."""
    number = (word & _HALF) | ((word >> 1) & (_HALF << 31))
    transactions = m.cast(number >> 20, UINT32) << 11
    return State(
        m.cast(number, UINT32) & LIMIT,
        m.bitcast(transactions, INT32) >> 11,
        m.cast(number >> 41, UINT32) & 1,
        m.cast(number >> 42, UINT32),
    )


def _encode(m: Machine, state: State) -> Lanes:
    transactions = m.bitcast(state.transactions, UINT32) & ((1 << 21) - 1)
    number = (
        m.cast(state.pending, UINT64)
        | (m.cast(transactions, UINT64) << 20)
        | (m.cast(state.phase, UINT64) << 41)
        | (m.cast(state.expected, UINT64) << 42)
    )
    return (number & _HALF) | ((number & (_HALF << 31)) << 1) | _MARK


def _read(m: Machine, where: Lanes) -> tuple[Lanes, State]:
    """Read the mbarrier at an address, as eight bytes and decoded, and see that it is one."""
    word = m.mbarrier_word(where)
    text = "there is no initialised mbarrier at this address"
    m.require((word & _MARKS) == _MARK, _CODE, text)
    return word, decode(m, word)


def _write(m: Machine, where: Lanes, state: State) -> None:
    """Write an mbarrier back, ending its phase if nothing is pending any more."""
    ended = (state.pending == 0) & (state.transactions == 0)
    m.when(ended, lambda: m.clear_tally(where))
    after = replace(
        state,
        pending=m.select(ended, state.expected, state.pending),
        phase=state.phase ^ m.cast(ended, UINT32),
    )
    m.set_mbarrier_word(where, _encode(m, after))


def _expect_bytes(m: Machine, where: Lanes, state: State, count: Lanes) -> State:
    """Add bytes (uint32) to the tx-count (expect-tx)."""
    m.tally(where, count, uint32(m, 0))
    return _transact(m, state, _bytes(m, count))


def _transact(m: Machine, state: State, change: Lanes) -> State:
    """Change the tx-count by an int32."""
    total = state.transactions + change
    m.require(
        (total >= -LIMIT) & (total <= LIMIT),
        _CODE,
        "the tx-count leaves its range of -(2^20 - 1) to 2^20 - 1",
    )
    return replace(state, transactions=total)


def _bytes(m: Machine, count: Lanes) -> Lanes:
    m.require(count <= LIMIT, _CODE, "a transaction counts at most 2^20 - 1 bytes")
    return m.bitcast(count, INT32)


def _decrease(m: Machine, state: State, count: Lanes) -> State:
    m.require(count != 0, _CODE, "an arrival counts at least 1")
    m.require(count <= state.pending, _CODE, "an arrival beyond what the current phase expects")
    return replace(state, pending=state.pending - count)


def complete_transaction(m: Machine, where: Lanes, count: Lanes) -> None:
    """Take bytes off the tx-count of the mbarrier at a uniform address (complete-tx)."""
    _, state = _read(m, where)
    m.tally(where, uint32(m, 0), count)
    _write(m, where, _transact(m, state, -_bytes(m, count)))


def expect_arrival(m: Machine, where: Lanes) -> None:
    """Have the current phase of the mbarrier at a uniform address wait for one more arrival."""
    _, state = _read(m, where)
    text = "the current phase waits for more than 2^20 - 1 arrivals"
    m.require(state.pending < LIMIT, _CODE, text)
    _write(m, where, replace(state, pending=state.pending + 1))


def arrive_at(m: Machine, where: Lanes, count: int = 1) -> None:
    """Arrive at the mbarrier at a uniform address, as an agent does."""
    _, state = _read(m, where)
    _write(m, where, _decrease(m, state, uint32(m, count)))


# ---------------------------------------------------------------------------- operands

_SHARED = ("shared", "shared::cta")
_ADDRESS = address("addr", Space.SHARED, "update", 8)
_POLLED = address("addr", Space.SHARED, "read", 8)
_COUNT = register("count", "u32", values=range(1, LIMIT + 1))
_TX = register("txCount", "u32", values=range(LIMIT + 1))
_STATE_OUT = register("state", "b64", role="out")
_SYNC = {"sem": ("", "release", "relaxed"), "scope": ("", "cta", "cluster")}


def _paired(form: Form) -> str | None:
    if bool(form["sem"]) != bool(form["scope"]):
        return "an ordering and a scope are written together, as in .release.cta"
    return None


def _release(form: Form) -> Order:
    return Order(releases=form["sem"] != "relaxed", scope=cast(Scope, form["scope"] or "cta"))


def _acquire(form: Form) -> Order:
    return Order(acquires=form["sem"] != "relaxed", scope=cast(Scope, form["scope"] or "cta"))


# ---------------------------------------------------------------------------- init, inval


def _init(m: Machine, form: Form, where: Lanes, count: Lanes) -> None:
    m.require((count != 0) & (count <= LIMIT), _CODE, "an mbarrier expects 1 to 2^20 - 1 arrivals")
    zero = uint32(m, 0)

    def one(where: Lanes, count: Lanes) -> None:
        word = m.mbarrier_word(where)
        live = ((word & _MARKS) == _MARK) & m.mbarrier_in_use(where)
        m.require(~live, _CODE, "an mbarrier is initialised while it is waited for or in use")
        m.clear_tally(where)
        state = State(count, m.bitcast(zero, INT32), zero, count)
        m.set_mbarrier_word(where, _encode(m, state))

    m.each_lane(one, where, count)


init = declare(
    "mbarrier",
    "init.{space}b64",
    slots={"space": _SHARED},
    summary="Initialise an mbarrier: phase 0, with `count` arrivals expected in each phase.",
    section='9.7.13.15.9 "mbarrier.init"',
    targets=since(80),
    operands=(address("addr", Space.SHARED, "write", 8), _COUNT),
    compute=_init,
)


def _inval(m: Machine, form: Form, where: Lanes) -> None:
    _read(m, where)
    m.set_mbarrier_word(where, m.constant(0, UINT64))


inval = declare(
    "mbarrier",
    "inval.{space}b64",
    slots={"space": _SHARED},
    summary="Invalidate an mbarrier, so that its memory can be used for something else.",
    section='9.7.13.15.10 "mbarrier.inval"',
    targets=since(80),
    operands=(_ADDRESS,),
    compute=_inval,
)

# ---------------------------------------------------------------------------- transactions


def _expect(m: Machine, form: Form, where: Lanes, count: Lanes) -> None:
    def one(where: Lanes, count: Lanes) -> None:
        _, state = _read(m, where)
        _write(m, where, _expect_bytes(m, where, state, count))

    m.each_lane(one, where, count)


def _complete(m: Machine, form: Form, where: Lanes, count: Lanes) -> None:
    def one(where: Lanes, count: Lanes) -> None:
        complete_transaction(m, where, count)

    m.each_lane(one, where, count)


def _transaction(op: str, section: str, summary: str, compute: Callable[..., None]) -> Declaration:
    return declare(
        "mbarrier",
        op + ".{sem}{scope}{space}b64",
        slots={"sem": ("", "relaxed"), "scope": ("", "cta", "cluster"), "space": _SHARED},
        summary=summary,
        section=section,
        targets=since(90),
        operands=(_ADDRESS, _TX),
        compute=compute,
        legal=_paired,
    )


expect_tx = _transaction(
    "expect_tx",
    '9.7.13.15.11 "mbarrier.expect_tx"',
    "Have the current phase of an mbarrier wait for more bytes.",
    _expect,
)
complete_tx = _transaction(
    "complete_tx",
    '9.7.13.15.12 "mbarrier.complete_tx"',
    "Tell an mbarrier that bytes have come, as an asynchronous copy does.",
    _complete,
)

# ---------------------------------------------------------------------------- arrivals


def _arrive_once(
    m: Machine, form: Form, where: Lanes, count: Lanes, tx: Lanes | None = None
) -> Sequence[Lanes]:
    word, state = _read(m, where)
    if form["op"] == "arrive_drop":
        m.require(count <= state.expected, _CODE, "more arrivals are dropped than are expected")
        state = replace(state, expected=state.expected - count)
    if tx is not None:
        state = _expect_bytes(m, where, state, tx)
    state = _decrease(m, state, count)
    if "noComplete" in form.declaration.parts:
        m.require(
            (state.pending != 0) | (state.transactions != 0),
            _CODE,
            "a .noComplete arrival completes the phase",
        )
    _write(m, where, state)
    return (word,)


def _arrive(m: Machine, form: Form, where: Lanes, count: Lanes | None = None) -> Sequence[Lanes]:
    """Arrive with each active lane in turn, giving the mbarrier as it was before."""

    def one(where: Lanes, count: Lanes) -> Sequence[Lanes]:
        return _arrive_once(m, form, where, count)

    each = m.each_lane(one, where, uint32(m, 1) if count is None else count)
    return each if form.operands[0].role == "out" else ()


def _arrive_expect(m: Machine, form: Form, where: Lanes, tx: Lanes) -> Sequence[Lanes]:
    def one(where: Lanes, tx: Lanes) -> Sequence[Lanes]:
        return _arrive_once(m, form, where, uint32(m, 1), tx)

    each = m.each_lane(one, where, tx)
    return each if form.operands[0].role == "out" else ()


def _count_availability(form: Form) -> Availability:
    # A count, a .cluster scope and .relaxed came with sm_90.
    named = any(operand.name == "count" for operand in form.operands)
    return since(90 if named or form["scope"] == "cluster" or form["sem"] == "relaxed" else 80)


def _arrival(
    variant: str,
    operands: Sequence[Operand],
    asm: str,
    summary: str,
    *,
    targets: Availability | Callable[[Form], Availability],
    compute: Callable[..., Sequence[Lanes]] = _arrive,
    sync: dict[str, tuple[str, ...]] = _SYNC,
) -> Declaration:
    return declare(
        "mbarrier",
        "{op}" + variant + ".{sem}{scope}{space}b64",
        slots={"op": ("arrive", "arrive_drop"), **sync, "space": _SHARED},
        summary=summary,
        section='9.7.13.15.13 "mbarrier.arrive", 9.7.13.15.14 "mbarrier.arrive_drop"',
        targets=targets,
        operands=operands,
        compute=compute,
        legal=_paired,
        order=_release,
        asm=asm,
    )


_PLAIN = "Arrive at an mbarrier"
arrive = _arrival(
    "",
    (_STATE_OUT, _ADDRESS),
    "{state}, [{addr}]",
    f"{_PLAIN}, keeping the phase that it is in.",
    targets=_count_availability,
)
arrive_count = _arrival(
    "",
    (_STATE_OUT, _ADDRESS, _COUNT),
    "{state}, [{addr}], {count}",
    f"{_PLAIN} several times, keeping the phase that it is in.",
    targets=_count_availability,
)
arrive_sink = _arrival("", (_ADDRESS,), "_, [{addr}]", f"{_PLAIN}.", targets=_count_availability)
arrive_count_sink = _arrival(
    "",
    (_ADDRESS, _COUNT),
    "_, [{addr}], {count}",
    f"{_PLAIN} several times.",
    targets=_count_availability,
)
arrive_expect_tx = _arrival(
    ".expect_tx",
    (_STATE_OUT, _ADDRESS, _TX),
    "{state}, [{addr}], {txCount}",
    f"{_PLAIN} that is to wait for more bytes, keeping the phase that it is in.",
    targets=since(90),
    compute=_arrive_expect,
)
arrive_expect_tx_sink = _arrival(
    ".expect_tx",
    (_ADDRESS, _TX),
    "_, [{addr}], {txCount}",
    f"{_PLAIN} that is to wait for more bytes.",
    targets=since(90),
    compute=_arrive_expect,
)
arrive_no_complete = _arrival(
    ".noComplete",
    (_STATE_OUT, _ADDRESS, _COUNT),
    "{state}, [{addr}], {count}",
    f"{_PLAIN} with a promise that this does not complete the phase.",
    targets=since(80),
    sync={"sem": ("", "release"), "scope": ("", "cta")},
)

# ---------------------------------------------------------------------------- waits


def _ready(m: Machine, form: Form, where: Lanes, token: Lanes) -> Lanes:
    """Tell whether the phase of a parity, or of an arrival's state, has completed."""
    _, state = _read(m, where)
    if "parity" in form.declaration.parts:
        m.require(token <= 1, _CODE, "the parity of a phase is 0 or 1")
        return state.phase != token
    return state.phase != decode(m, token).phase


def _poll(m: Machine, form: Form, where: Lanes, token: Lanes, *hint: Lanes) -> Lanes:
    ready = _ready(m, form, where, token)
    return m.ballot(ready) != 0 if ready.width else ready


def _awaits(m: Machine, form: Form, where: Lanes, *rest: Lanes) -> tuple[str, Lanes]:
    return "mbarrier", m.first(where)


def _awaited(m: Machine, form: Form, where: Lanes, token: Lanes, *hint: Lanes) -> Lanes:
    """Give the parity of the phase that is waited for."""
    return token if "parity" in form.declaration.parts else decode(m, token).phase


def _wait(m: Machine, form: Form, where: Lanes, token: Lanes, *hint: Lanes) -> Sequence[Lanes]:
    return (_ready(m, form, where, token),)


# `test_wait` never blocks on the GPU; that the scheduler may let it is what makes a loop around
# it a point where others run.
_WAIT = Wait("mbarrier", poll=_poll, awaits=_awaits, detail=_awaited, gives_up=True)
_DONE = predicate("waitComplete", role="out")
_STATE = register("state", "b64")
_PARITY = register("phaseParity", "u32", values=(0, 1))
_HINT = register("suspendTimeHint", "u32", optional=True)


def _waiting(op: str, variant: str, operands: Sequence[Operand], since_: int) -> Declaration:
    def targets(form: Form) -> Availability:
        return since(90 if form["sem"] == "relaxed" or form["scope"] == "cluster" else since_)

    blocking = "Wait a while" if op == "try_wait" else "Look"
    return declare(
        "mbarrier",
        f"{op}{variant}" + ".{sem}{scope}{space}b64",
        slots={
            "sem": ("", "acquire", "relaxed"),
            "scope": ("", "cta", "cluster"),
            "space": _SHARED,
        },
        summary=f"{blocking} whether a phase of an mbarrier has completed.",
        section='9.7.13.15.16 "mbarrier.test_wait, mbarrier.try_wait"',
        targets=targets,
        operands=operands,
        compute=_wait,
        legal=_paired,
        order=_acquire,
        wait=_WAIT,
    )


test_wait = _waiting("test_wait", "", (_DONE, _POLLED, _STATE), 80)
test_wait_parity = _waiting("test_wait", ".parity", (_DONE, _POLLED, _PARITY), 80)
try_wait = _waiting("try_wait", "", (_DONE, _POLLED, _STATE, _HINT), 90)
try_wait_parity = _waiting("try_wait", ".parity", (_DONE, _POLLED, _PARITY, _HINT), 90)


def _pending(m: Machine, form: Form, state: Lanes) -> Sequence[Lanes]:
    return (decode(m, state).pending,)


pending_count = declare(
    "mbarrier",
    "pending_count.b64",
    summary="Read the pending count out of the state that an arrival gave.",
    section='9.7.13.15.17 "mbarrier.pending_count"',
    targets=since(80),
    operands=(register("count", "u32", role="out"), _STATE),
    compute=_pending,
    volatile=False,
)

# ---------------------------------------------------------------------------- for reports


@dataclass(frozen=True)
class Contents:
    """What an mbarrier holds: its phase, arrivals in it of those expected, bytes alike."""

    phase: int
    arrived: int
    expected: int
    expected_bytes: int
    come_bytes: int

    def __str__(self) -> str:
        arrivals = f"phase {self.phase}, {self.arrived} of {self.expected} arrivals"
        if not self.expected_bytes and not self.come_bytes:
            return f"{arrivals}, no bytes expected"
        return f"{arrivals}, {self.expected_bytes} bytes expected, {self.come_bytes} have come"


def contents(word: int, expected_bytes: int = 0, come: int = 0) -> Contents | None:
    """Read the eight bytes of an mbarrier, and what `Machine.tally` counted; `None` if none is."""
    if word & _MARKS != _MARK:
        return None
    number = (word & _HALF) | ((word >> 1) & (_HALF << 31))
    pending, expected, phase = number & LIMIT, (number >> 42) & LIMIT, (number >> 41) & 1
    # A phase may have been told to wait for more arrivals than the next one will.
    expected = max(expected, pending)
    return Contents(phase, expected - pending, expected, expected_bytes, come)
