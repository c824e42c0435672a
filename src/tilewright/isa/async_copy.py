"""Copies that end later: of a few bytes per thread, and of runs by the asynchronous proxy.

May import `base`, `isa.declaration`, `isa.machine` and `isa.mbarrier`. PTX ISA 9.7.9.25.3, .4 and
.6. A thread collects its copies into groups and waits for all but its last ones; copies to shared
memory by the asynchronous proxy are counted by an mbarrier.

    cp.async.cg.shared.global [%r0], [%rd1], 16;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%rd1], %r2, [%r3];
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r0], %r2;
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from tilewright.base.dtypes import UINT32
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Operand,
    Order,
    Time,
    Wait,
    address,
    declare,
    immediate,
    predicate,
    register,
)
from tilewright.isa.machine import GROUPS, Lanes, Machine, uint32
from tilewright.isa.mbarrier import arrive_at, complete_transaction, expect_arrival

# The hint at what a cache should keep, which takes an operand of its own; it changes no values.
HINT = ("", "L2::cache_hint")
POLICY = register("cachePolicy", "b64")


def policy(form: Form) -> tuple[Operand, ...]:
    """List the operand of a cache hint, if the form has one."""
    return (POLICY,) if form["hint"] else ()


def without_policy(form: Form, operands: Sequence[Lanes]) -> Sequence[Lanes]:
    """Leave out the operand of a cache hint, which comes last."""
    return operands[:-1] if form["hint"] else operands


def nothing(m: Machine, form: Form, *operands: Lanes) -> None:
    """Do nothing: the instruction stands for what happened before it, or is a hint."""


# ---------------------------------------------------------------------------- groups


def _commit(group: str) -> Callable[[Machine, Form], None]:
    return lambda m, form: m.commit_group(group)


def _done(group: str) -> Callable[..., Lanes]:
    def poll(m: Machine, form: Form, *keep: Lanes) -> Lanes:
        return m.groups_done(group, keep[0] if keep else uint32(m, 0), read=_reads(form))

    return poll


def _reads(form: Form) -> bool:
    return dict(form.modifiers).get("read") == "read"


def _awaited(group: str) -> Callable[..., tuple[str, Lanes]]:
    """Name what a wait is for: the kind of group, and whether reading suffices."""
    number = GROUPS.index(group)

    def awaits(m: Machine, form: Form, *keep: Lanes) -> tuple[str, Lanes]:
        return "group", uint32(m, 2 * number + _reads(form))

    return awaits


_KEPT = immediate("N", "u32", range(1 << 31))
_Group = Literal["bulk_group", "cp_async_group"]


def _waiting(
    syntax: str,
    group: _Group,
    summary: str,
    section: str,
    availability: Availability,
    *,
    operands: tuple[Operand, ...] = (_KEPT,),
    slots: dict[str, tuple[str, ...]] | None = None,
    arrive: Callable[..., Sequence[Lanes]] | None = None,
) -> Declaration:
    return declare(
        "cp",
        syntax,
        slots=slots,
        summary=summary,
        section=section,
        targets=availability,
        operands=operands,
        compute=nothing,
        time=Time(completes=group),
        wait=Wait("group", poll=_done(group), awaits=_awaited(group), arrive=arrive),
    )


def _committing(
    syntax: str, group: _Group, section: str, availability: Availability
) -> Declaration:
    return declare(
        "cp",
        syntax,
        summary="Make a group of the copies that the thread has issued since its last group.",
        section=section,
        targets=availability,
        compute=_commit(group),
    )


# ---------------------------------------------------------------------------- a few bytes

_SIZES = (4, 8, 16)


def _start(m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes, *rest: Lanes) -> None:
    taken = without_policy(form, rest)
    given = taken[0] if taken else size
    text = "a copy takes at most as many bytes from its source as it writes"
    m.require(given <= size, "undefined-operation", text)
    m.issue(form, (dst, src, size, given))


def _start_ignoring(
    m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes, ignored: Lanes, *hint: Lanes
) -> None:
    m.issue(form, (dst, src, size, m.select(ignored, uint32(m, 0), size)))


def _land_few(m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes, given: Lanes) -> None:
    whole = m.ballot(given != size) == 0

    def copy(words: int) -> None:
        m.store(Space.SHARED, dst, m.load(Space.GLOBAL, src, UINT32, words))

    def fill(words: int) -> None:
        m.store(Space.SHARED, dst, [uint32(m, 0)] * words)
        m.each_lane(part, dst, src, given)

    def part(dst: Lanes, src: Lanes, given: Lanes) -> None:
        # Nothing is read where no byte is taken: the address may be that of nothing.
        m.when(given != 0, lambda: m.copy(Space.SHARED, dst, Space.GLOBAL, src, given))

    for each in _SIZES:
        words, chosen = each // 4, size == each
        m.when(chosen & whole, lambda words=words: copy(words))
        m.when(chosen & ~whole, lambda words=words: fill(words))


def _few_bytes(
    rest: tuple[Operand, ...], compute: Callable[..., None], summary: str
) -> Declaration:
    def operands(form: Form) -> tuple[Operand, ...]:
        sizes = _SIZES if form["cop"] == "ca" else _SIZES[-1:]
        return (
            address("dst", Space.SHARED, "write", 4),
            address("src", Space.GLOBAL, "read", 4),
            immediate("cpSize", "u32", sizes),
            *rest,
            *policy(form),
        )

    return declare(
        "cp",
        "async.{cop}{space}global{hint}{prefetch}",
        slots={
            "cop": ("ca", "cg"),
            "space": ("shared", "shared::cta"),
            "hint": HINT,
            "prefetch": ("", "L2::64B", "L2::128B", "L2::256B"),
        },
        summary=summary,
        section='9.7.9.25.3.1 "cp.async"',
        targets=since(80),
        operands=operands,
        compute=compute,
        time=Time(agent="copy", completes="cp_async_group"),
        lands=_land_few,
    )


copy = _few_bytes(
    (register("srcSize", "b32", optional=True),),
    _start,
    "Copy 4, 8 or 16 bytes from global to shared memory, later; what is not taken is zeros.",
)
copy_ignoring = _few_bytes(
    (predicate("ignoreSrc"),),
    _start_ignoring,
    "Copy 4, 8 or 16 bytes from global to shared memory, later, or zeros.",
)

commit_group = _committing(
    "async.commit_group", "cp_async_group", '9.7.9.25.3.2 "cp.async.commit_group"', since(80)
)
_WAITS = '9.7.9.25.3.3 "cp.async.wait_group, cp.async.wait_all"'
wait_group = _waiting(
    "async.wait_group",
    "cp_async_group",
    "Wait until all but the last N groups of the thread's copies are done.",
    _WAITS,
    since(80),
)


def _commit_all(m: Machine, form: Form) -> Sequence[Lanes]:
    m.commit_group("cp_async_group")
    return ()


wait_all = _waiting(
    "async.wait_all",
    "cp_async_group",
    "Wait until all copies of the thread are done.",
    _WAITS,
    since(80),
    operands=(),
    arrive=_commit_all,
)


def _start_arrival(m: Machine, form: Form, where: Lanes) -> None:
    def expect(where: Lanes) -> None:
        expect_arrival(m, where)

    if not form["noinc"]:
        m.each_lane(expect, where)
    m.issue(form, (where,), where)


def _land_arrival(m: Machine, form: Form, where: Lanes) -> None:
    def arrive(where: Lanes) -> None:
        arrive_at(m, where)

    m.each_lane(arrive, where)


mbarrier_arrive = declare(
    "cp",
    "async.mbarrier.arrive.{noinc}{space}b64",
    slots={"noinc": ("", "noinc"), "space": ("shared", "shared::cta")},
    summary="Have an mbarrier arrive when the copies that the thread has issued are done.",
    section='9.7.13.15.15 "cp.async.mbarrier.arrive"',
    targets=since(80),
    operands=(address("addr", Space.SHARED, "update", 8),),
    compute=_start_arrival,
    time=Time(agent="copy", completes="mbarrier"),
    lands=_land_arrival,
)

# ---------------------------------------------------------------------------- runs of bytes

GRANULE = 16
_SIZE = register("size", "u32", values=range(0, 1 << 32, GRANULE))


def require_run(m: Machine, size: Lanes, *addresses: Lanes) -> None:
    """Report a fault unless a run of bytes is one that bulk copies take."""
    last = GRANULE - 1
    for each in addresses:
        m.require((each & last) == 0, "misaligned", "a bulk copy is aligned to 16 bytes")
    m.require((size & last) == 0, "misaligned", "the size of a bulk copy is a multiple of 16 bytes")


def _start_load(
    m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes, mbar: Lanes, *hint: Lanes
) -> None:
    require_run(m, size, dst, src)

    def one(dst: Lanes, src: Lanes, size: Lanes, mbar: Lanes) -> None:
        # A copy of nothing is nothing that could be in flight.
        m.when(size != 0, lambda: m.issue(form, (dst, src, size, mbar), mbar))

    m.each_lane(one, dst, src, size, mbar)


def _land_load(m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes, mbar: Lanes) -> None:
    m.copy(Space.SHARED, dst, Space.GLOBAL, src, size)
    complete_transaction(m, mbar, size)


bulk_load = declare(
    "cp",
    "async.bulk.{space}global.mbarrier::complete_tx::bytes{hint}",
    slots={"space": ("shared::cta", "shared::cluster"), "hint": HINT},
    summary="Copy a run of bytes from global to shared memory, counted by an mbarrier.",
    section='9.7.9.25.4.1 "cp.async.bulk"',
    targets=since(90),
    operands=lambda form: (
        address("dstMem", Space.SHARED, "write", 0, align=GRANULE),
        address("srcMem", Space.GLOBAL, "read", 0, align=GRANULE),
        _SIZE,
        address("mbar", Space.SHARED, "update", 8),
        *policy(form),
    ),
    compute=_start_load,
    order=Order(proxy="async"),
    time=Time(agent="bulk_copy", completes="mbarrier"),
    lands=_land_load,
)


def _start_store(m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes, *hint: Lanes) -> None:
    require_run(m, size, dst, src)

    def one(dst: Lanes, src: Lanes, size: Lanes, lane: Lanes) -> None:
        m.when(size != 0, lambda: m.issue(form, (dst, src, size), lane=lane))

    m.each_lane(one, dst, src, size, m.lane_id())


def _land_store(m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes) -> None:
    m.copy(Space.GLOBAL, dst, Space.SHARED, src, size)


def _read_store(m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes) -> tuple[Lanes, Lanes]:
    return src, size


bulk_store = declare(
    "cp",
    "async.bulk.global.shared::cta.bulk_group{hint}",
    slots={"hint": HINT},
    summary="Copy a run of bytes from shared to global memory, as one of the thread's groups.",
    section='9.7.9.25.4.1 "cp.async.bulk"',
    targets=since(90),
    operands=lambda form: (
        address("dstMem", Space.GLOBAL, "write", 0, align=GRANULE),
        address("srcMem", Space.SHARED, "read", 0, align=GRANULE),
        _SIZE,
        *policy(form),
    ),
    compute=_start_store,
    order=Order(proxy="async"),
    time=Time(agent="bulk_copy", completes="bulk_group"),
    lands=_land_store,
    reads=_read_store,
)


def _prefetch(m: Machine, form: Form, src: Lanes, size: Lanes, *hint: Lanes) -> None:
    require_run(m, size, src)


bulk_prefetch = declare(
    "cp",
    "async.bulk.prefetch.L2.global{hint}",
    slots={"hint": HINT},
    summary="Ask for a run of global memory to be brought closer; it changes no values.",
    section='9.7.9.25.4.3 "cp.async.bulk.prefetch"',
    targets=since(90),
    operands=lambda form: (
        address("srcMem", Space.GLOBAL, "", 0, align=GRANULE),
        _SIZE,
        *policy(form),
    ),
    compute=_prefetch,
    order=Order(proxy="async"),
)

bulk_commit_group = _committing(
    "async.bulk.commit_group",
    "bulk_group",
    '9.7.9.25.6.1 "cp.async.bulk.commit_group"',
    since(90),
)
bulk_wait_group = _waiting(
    "async.bulk.wait_group{read}",
    "bulk_group",
    "Wait until all but the last N groups of the thread's bulk copies are done, or have read.",
    '9.7.9.25.6.2 "cp.async.bulk.wait_group"',
    since(90),
    slots={"read": ("", "read")},
)
