"""Votes, shuffles and reductions across the lanes of a warp (PTX ISA 9.7.9.6, 9.7.13).

May import `base`, `isa.declaration` and `isa.machine`. All of these meet the lanes that their
`membermask` names.

    shfl.sync.bfly.b32 %r0, %r1, 16, 31, 0xffffffff;
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import BOOL, INT32, UINT32
from tilewright.base.targets import since
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Operand,
    Wait,
    declare,
    predicate,
    register,
)
from tilewright.isa.machine import Lanes, Machine, uint32

_MASK = register("membermask", "b32")

# ---------------------------------------------------------------------------- shfl


def source_lane(m: Machine, mode: str, b: Lanes, c: Lanes) -> tuple[Lanes, Lanes]:
    """Give the lane to read from and whether it is in range (PTX ISA, the code of `shfl.sync`).

    `b` and `c` are uint32; out of range a lane reads its own value.
    """
    lane = m.lane_id()
    offset, clamp, segment = b & 31, c & 31, (c >> 8) & 31
    low = lane & segment
    high = low | (clamp & ~segment)
    if mode == "up":
        source = m.bitcast(lane, INT32) - m.bitcast(offset, INT32)
        inside = source >= m.bitcast(high, INT32)
        return m.select(inside, m.bitcast(source, UINT32), lane), inside
    if mode == "down":
        source = lane + offset
    elif mode == "bfly":
        source = lane ^ offset
    else:
        source = low | (offset & ~segment)
    inside = source <= high
    return m.select(inside, source, lane), inside


def _shuffle(m: Machine, form: Form, a: Lanes, b: Lanes, c: Lanes, mask: Lanes) -> Sequence[Lanes]:
    source, inside = source_lane(m, form["mode"], b, c)
    # What a lane that is not here would give is not defined; one that is named should be.
    gone = m.warp_state("exited") & mask
    m.require(
        ((gone >> source) & 1) == 0,
        "divergent-collective",
        "this reads a lane that its member mask names, but that has exited",
    )
    present = ((m.active() >> source) & 1) != 0
    value = m.select(present, m.shuffle(a, source), uint32(m, 0xFFFFFFFF))
    return (value, inside) if len(form.operands) == 6 else (value,)


def _shfl(operands: Sequence[Operand], asm: str | None, summary: str) -> Declaration:
    return declare(
        "shfl.sync",
        "{mode}b32",
        slots={"mode": ("up", "down", "bfly", "idx")},
        summary=summary,
        section='9.7.9.6 "shfl.sync"',
        targets=since(75),
        operands=operands,
        compute=_shuffle,
        lanes="warp",
        result="lanes",
        asm=asm,
    )


_SHFL_IN = (register("a", "b32"), register("b", "b32"), register("c", "b32"), _MASK)

shfl_sync = _shfl(
    (register("d", "b32", role="out"), *_SHFL_IN), None, "Read a register of another lane."
)
shfl_sync_predicate = _shfl(
    (register("d", "b32", role="out"), predicate("p", role="out"), *_SHFL_IN),
    "{d}|{p}, {a}, {b}, {c}, {membermask}",
    "Read a register of another lane, and tell whether that lane was in range.",
)
SHUFFLES = (shfl_sync, shfl_sync_predicate)

# ---------------------------------------------------------------------------- vote


def _vote(m: Machine, form: Form, a: Lanes, mask: Lanes) -> Sequence[Lanes]:
    ayes = m.ballot(a) & mask
    noes = m.ballot(m.unary("not", a)) & mask
    if form["mode"] == "any":
        return (ayes != 0,)
    if form["mode"] == "all":
        return (noes == 0,)
    return ((ayes == 0) | (noes == 0),)


vote_sync = declare(
    "vote.sync",
    "{mode}pred",
    slots={"mode": ("all", "any", "uni")},
    summary="Reduce a predicate over the lanes of a mask: all, any, or all alike.",
    section='9.7.13.5 "vote.sync"',
    targets=since(75),
    operands=(predicate("d", role="out"), predicate("a"), _MASK),
    compute=_vote,
    lanes="warp",
    result="uniform",
)


def _ballot(m: Machine, form: Form, a: Lanes, mask: Lanes) -> Sequence[Lanes]:
    return (m.ballot(a) & mask,)


vote_sync_ballot = declare(
    "vote.sync",
    "ballot.b32",
    summary="Collect a predicate of the lanes of a mask into bits.",
    section='9.7.13.5 "vote.sync"',
    targets=since(75),
    operands=(register("d", "b32", role="out"), predicate("a"), _MASK),
    compute=_ballot,
    lanes="warp",
    result="uniform",
)

# ---------------------------------------------------------------------------- redux

# operation: (operation of the IR, identity by type)
_REDUCTIONS: dict[str, tuple[str, dict[str, int]]] = {
    "add": ("add", {"u32": 0, "s32": 0}),
    "min": ("min", {"u32": 0xFFFFFFFF, "s32": 0x7FFFFFFF}),
    "max": ("max", {"u32": 0, "s32": -0x80000000}),
    "and": ("and", {"b32": 0xFFFFFFFF}),
    "or": ("or", {"b32": 0}),
    "xor": ("xor", {"b32": 0}),
}


def _reduce(m: Machine, form: Form, src: Lanes, mask: Lanes) -> Sequence[Lanes]:
    everyone = m.first(mask)
    m.require(
        mask == everyone,
        "divergent-collective",
        "the lanes of a reduction name different member masks",
    )
    op, identities = _REDUCTIONS[form["op"]]
    member = ((m.active() & everyone) >> m.lane_id()) & 1
    neutral = m.constant(identities[form["type"]], src.dtype)
    value = m.select(member != 0, src, neutral)
    lane = m.lane_id()
    for distance in (16, 8, 4, 2, 1):
        value = m.binary(op, value, m.shuffle(value, lane ^ distance))
    return (m.first(value),)


redux_sync = declare(
    "redux.sync",
    "{op}{type}",
    slots={"op": tuple(_REDUCTIONS), "type": ("u32", "s32", "b32")},
    summary="Reduce an integer over the lanes of a mask.",
    section='9.7.13.8 "redux.sync"',
    targets=since(80),
    operands=lambda form: (
        register("dst", form["type"], role="out"),
        register("src", form["type"]),
        _MASK,
    ),
    compute=_reduce,
    legal=lambda form: (
        None
        if form["type"] in _REDUCTIONS[form["op"]][1]
        else f".{form['op']} does not take .{form['type']}"
    ),
    lanes="warp",
    result="uniform",
)

# ---------------------------------------------------------------------------- elect, activemask


def _elect(m: Machine, form: Form, mask: Lanes) -> Sequence[Lanes]:
    leader = m.elect(m.active() & m.first(mask))
    return leader, m.lane_id() == leader


elect_sync = declare(
    "elect.sync",
    "",
    summary="Choose one lane out of a mask.",
    section='9.7.13.16 "elect.sync"',
    targets=since(90),
    operands=(register("d", "b32", role="out"), predicate("p", role="out"), _MASK),
    compute=_elect,
    lanes="warp",
    asm="{d}|{p}, {membermask}",
)


def _elect_sink(m: Machine, form: Form, mask: Lanes) -> Sequence[Lanes]:
    return _elect(m, form, mask)[1:]


elect_sync_sink = declare(
    "elect.sync",
    "",
    summary="Choose one lane out of a mask, telling each only whether it is the one.",
    section='9.7.13.16 "elect.sync"',
    targets=since(90),
    operands=(predicate("p", role="out"), _MASK),
    compute=_elect_sink,
    lanes="warp",
    result="lanes",
    asm="_|{p}, {membermask}",
)


def _activemask(m: Machine, form: Form) -> Sequence[Lanes]:
    return (m.active(),)


activemask = declare(
    "activemask",
    "b32",
    summary="Collect the lanes that execute this together.",
    section='9.7.13.7 "activemask"',
    targets=since(75),
    operands=(register("d", "b32", role="out"),),
    compute=_activemask,
    result="uniform",
)

# ---------------------------------------------------------------------------- nanosleep


def _sleep(m: Machine, form: Form, t: Lanes) -> None:
    """Do nothing but let others run."""


def _never(m: Machine, form: Form, t: Lanes) -> Lanes:
    return m.constant(False, BOOL)


def _time(m: Machine, form: Form, t: Lanes) -> tuple[str, Lanes]:
    return "time", uint32(m, 0)


nanosleep = declare(
    "nanosleep",
    "u32",
    summary="Suspend the thread for about a number of nanoseconds.",
    section='9.7.20.3 "nanosleep"',
    targets=since(75),
    operands=(register("t", "u32"),),
    compute=_sleep,
    wait=Wait(
        "time",
        poll=_never,
        awaits=_time,
        gives_up=True,
    ),
)
