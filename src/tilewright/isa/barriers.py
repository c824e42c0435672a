"""Barriers of a CTA and of a warp (PTX ISA 9.7.13.1 to 9.7.13.3).

May import `base`, `isa.declaration` and `isa.machine`. Counts are threads, and a warp arrives
as a whole: it counts as 32, however many of its lanes are active (PTX ISA, `barrier`). A
barrier completes when as many threads have arrived as its first arrival expects; where that is
all threads of the CTA, for want of a count, warps that have exited are not waited for.

    bar.sync 1, 128;
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import UINT32
from tilewright.base.targets import MAX_THREADS, since
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Operand,
    Order,
    Wait,
    declare,
    predicate,
    register,
)
from tilewright.isa.machine import WARP, Lanes, Machine, uint32

BARRIERS = 16
_CODE = "barrier-protocol"
_CTA = Order(acquires=True, releases=True, scope="cta")


def _threads_of_cta(m: Machine) -> Lanes:
    """Count the threads of the CTA, rounded up to warps."""
    x, y, z = (m.cast(m.special(f"ntid.{axis}"), UINT32) for axis in "xyz")
    return ((x * y * z + (WARP - 1)) >> 5) << 5


def _arrive(m: Machine, barrier: Lanes, count: Lanes | None, votes: Lanes | None = None) -> Lanes:
    """Arrive with this warp, complete the barrier if it was the last, give its generation.

    `votes` are added up in the field "reducing" and appear in "reduced" on completion.
    """
    barrier = m.first(barrier)
    expected = _threads_of_cta(m) if count is None else m.first(count)
    m.require(barrier < BARRIERS, _CODE, "there are 16 barriers, 0 to 15")
    m.require(
        (expected != 0) & ((expected & (WARP - 1)) == 0),
        _CODE,
        "a barrier's thread count must be a positive multiple of 32",
    )
    before = m.barrier_state(barrier, "expected")
    m.require(
        (before == 0) | (before == expected),
        _CODE,
        "warps arrive at one barrier with different thread counts",
    )
    generation = m.barrier_state(barrier, "generation")
    m.set_barrier_state(barrier, "arrived", m.barrier_state(barrier, "arrived") + WARP)
    m.set_barrier_state(barrier, "expected", expected)
    if count is not None:
        m.set_barrier_state(barrier, "counted", uint32(m, 1))
    if votes is not None:
        total = m.barrier_state(barrier, "reducing") + votes
        m.set_barrier_state(barrier, "reducing", total)
    complete_if_all_arrived(m, barrier)
    return generation


def complete_if_all_arrived(m: Machine, barrier: Lanes) -> None:
    """Complete a barrier at which every thread that it waits for has arrived.

    To be called after an arrival, and for every barrier when a warp has exited.
    """
    expected, arrived = (m.barrier_state(barrier, each) for each in ("expected", "arrived"))
    exited = m.cta_state("exited_warps") * WARP
    exited = m.select(m.barrier_state(barrier, "counted") != 0, uint32(m, 0), exited)
    complete = (expected != 0) & (arrived + exited >= expected)
    generation, total = (m.barrier_state(barrier, each) for each in ("generation", "reducing"))
    reduced = m.select(complete, total, m.barrier_state(barrier, "reduced"))
    m.set_barrier_state(barrier, "reduced", reduced)
    m.set_barrier_state(barrier, "generation", m.select(complete, generation + 1, generation))
    for field in ("arrived", "expected", "counted", "reducing"):
        kept = m.barrier_state(barrier, field)
        m.set_barrier_state(barrier, field, m.select(complete, uint32(m, 0), kept))


def _begin(m: Machine, form: Form, a: Lanes, b: Lanes | None = None) -> Sequence[Lanes]:
    return (_arrive(m, a, b),)


def _completed(m: Machine, form: Form, a: Lanes, *rest: Lanes) -> Lanes:
    return m.barrier_state(m.first(a), "generation") != rest[-1]


def _awaited(m: Machine, form: Form, a: Lanes, *rest: Lanes) -> tuple[str, Lanes]:
    return "barrier", m.first(a)


_WAIT = Wait("barrier", poll=_completed, awaits=_awaited, arrive=_begin)


def _nothing(m: Machine, form: Form, *operands: Lanes) -> None:
    """Do nothing: all there is to it happens while waiting."""


def _just_arrive(m: Machine, form: Form, a: Lanes, b: Lanes) -> None:
    _arrive(m, a, b)


# ---------------------------------------------------------------------------- sync and arrive

_COUNTS = range(WARP, MAX_THREADS + 1, WARP)
_A = register("a", "u32", values=range(BARRIERS))
_B = register("b", "u32", values=_COUNTS)
_B_OPTIONAL = register("b", "u32", optional=True, values=_COUNTS)


def _sync(family: str, syntax: str, aligned: bool, section: str) -> Declaration:
    return declare(
        family,
        syntax,
        slots={"level": ("", "cta")} if "{level}" in syntax else None,
        summary="Arrive at a barrier of the CTA and wait until it completes.",
        section=section,
        targets=since(75),
        operands=(_A, _B_OPTIONAL),
        compute=_nothing,
        lanes="warp",
        aligned=aligned,
        excuses_exited=True,
        order=_CTA,
        wait=_WAIT,
    )


def _arrival(family: str, syntax: str, aligned: bool, section: str) -> Declaration:
    return declare(
        family,
        syntax,
        slots={"level": ("", "cta")} if "{level}" in syntax else None,
        summary="Arrive at a barrier of the CTA without waiting.",
        section=section,
        targets=since(75),
        operands=(_A, _B),
        compute=_just_arrive,
        lanes="warp",
        aligned=aligned,
        excuses_exited=True,
        order=Order(releases=True, scope="cta"),
    )


_SECTION = '9.7.13.1 "bar, barrier"'

bar_sync = _sync("bar", "{level}sync", True, _SECTION)
bar_arrive = _arrival("bar", "{level}arrive", True, _SECTION)
barrier_sync = _sync("barrier", "{level}sync", False, _SECTION)
barrier_sync_aligned = _sync("barrier", "{level}sync.aligned", True, _SECTION)
barrier_arrive = _arrival("barrier", "{level}arrive", False, _SECTION)
barrier_arrive_aligned = _arrival("barrier", "{level}arrive.aligned", True, _SECTION)

# ---------------------------------------------------------------------------- red

# Votes of up to 2048 threads: those for in the low half of a word, those against in the high.
_AGAINST = 16


def _vote(m: Machine, a: Lanes, b: Lanes | None, vote: Lanes) -> Sequence[Lanes]:
    count, against = (
        m.cast(m.intrinsic("popcount", m.ballot(each)), UINT32)
        for each in (vote, m.unary("not", vote))
    )
    return (_arrive(m, a, b, count | (against << _AGAINST)),)


def _begin_red(m: Machine, form: Form, a: Lanes, *rest: Lanes) -> Sequence[Lanes]:
    return _vote(m, a, rest[0] if len(rest) == 2 else None, rest[-1])


def _result_red(m: Machine, form: Form, a: Lanes, *rest: Lanes) -> Sequence[Lanes]:
    reduced = m.barrier_state(m.first(a), "reduced")
    if form["op"] == "and":
        return (reduced >> _AGAINST == 0,)
    votes = reduced & ((1 << _AGAINST) - 1)
    return (votes,) if form["op"] == "popc" else (votes != 0,)


_WAIT_RED = Wait("barrier", poll=_completed, awaits=_awaited, arrive=_begin_red)


def _red_operands(form: Form) -> Sequence[Operand]:
    popc = form["op"] == "popc"
    result = register("d", "u32", role="out") if popc else predicate("p", role="out")
    return (result, _A, _B_OPTIONAL, predicate("c"))


def _red_rule(form: Form) -> str | None:
    kind = "u32" if form["op"] == "popc" else "pred"
    return None if form["type"] == kind else f".red.{form['op']} gives a .{kind}"


def _reduction(family: str, syntax: str, aligned: bool) -> Declaration:
    return declare(
        family,
        syntax,
        slots={"level": ("", "cta"), "op": ("popc", "and", "or"), "type": ("u32", "pred")},
        summary="Reduce a predicate over the threads that meet at a barrier of the CTA.",
        section=_SECTION,
        targets=since(75),
        operands=_red_operands,
        compute=_result_red,
        legal=_red_rule,
        lanes="warp",
        aligned=aligned,
        excuses_exited=True,
        result="uniform",
        order=_CTA,
        wait=_WAIT_RED,
    )


bar_red = _reduction("bar", "{level}red.{op}{type}", True)
barrier_red = _reduction("barrier", "{level}red.{op}{type}", False)
barrier_red_aligned = _reduction("barrier", "{level}red.{op}aligned.{type}", True)

# ---------------------------------------------------------------------------- warp

bar_warp_sync = declare(
    "bar.warp.sync",
    "",
    summary="Wait for the lanes of a mask, and order memory among them.",
    section='9.7.13.2 "bar.warp.sync"',
    targets=since(75),
    operands=(register("membermask", "b32"),),
    compute=_nothing,
    lanes="warp",
    order=_CTA,
)
