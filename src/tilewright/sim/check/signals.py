"""Signals: what CTAs tell one another at global addresses and at the barrier of their cluster.

May import `isa`, `ir`, `sim.engine` and the modules of `sim.check` below it. Each CTA keeps a list
of its releases, its acquires, its fences and, where the kernel has fences, of what may be a release
or an acquire by one. CTAs that can see one another take turns, so the lists of all have one order;
`knowledge.py` plays them after the launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.ir.statements import Instruct, Kernel
from tilewright.ir.visit import walk_statements
from tilewright.isa.declaration import Form, Order
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import moments, regions, rows, state
from tilewright.sim.check.lanes import note
from tilewright.sim.check.rows import each_bit, end_if, routine, run

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

# What a signal is, in its fifth word, and above it the scope, the warp and the tick.
# Of an acquire whose result nobody looks at only counts what was read at the address before.
READ, WRITE, ACQUIRES, RELEASES, FENCE, CLUSTER, EXIT, UNREAD = (1 << bit for bit in range(8))
SCOPE_SHIFT, WARP_SHIFT, TICK_SHIFT = 8, 16, 32
# How far a scope reaches; what is neither atomic nor ordered has none.
SCOPES = {"": 0, "cta": 1, "cluster": 2, "gpu": 3, "sys": 4}
CTA = SCOPES["cta"]
_AT_ONCE = READ | WRITE | ACQUIRES | UNREAD


@dataclass(frozen=True)
class Signalling:
    """What of a kernel's signals must be kept.

    `relaxed`: accesses that order nothing by themselves, as there are fences; `looks`: those of
    them that read, as a load may acquire what they have read; `clusters`: what happens at the
    barrier of a cluster.
    """

    relaxed: bool
    looks: bool
    clusters: bool


def signalling(kernel: Kernel) -> Signalling:
    """Find which of a kernel's instructions may order CTAs."""
    forms = list(_forms(kernel))
    return Signalling(
        relaxed=any(_is_fence(each.order) for each in forms),
        looks=any(_acquires(each) for each in forms),
        clusters=any(each.declaration.wait and _at_cluster(each) for each in forms),
    )


def _forms(kernel: Kernel) -> Iterator[Form]:
    for each in walk_statements(kernel.body):
        if isinstance(each, Instruct):
            yield each.form


def _is_fence(order: Order) -> bool:
    return order.fence == "memory" and SCOPES[order.scope] > CTA


def _acquires(form: Form) -> bool:
    order = form.order
    reads = any(each.kind == "address" and each.access == "read" for each in form.operands)
    return reads and order.acquires and SCOPES[order.scope] > CTA


def _at_cluster(form: Form) -> bool:
    wait = form.declaration.wait
    return wait is not None and wait.kind == "cluster"


# ---------------------------------------------------------------------------- in native code


@routine("check_signal", "ptr %ctx, i64 %address, i32 %lanes, i32 %site, i32 %what")
def _signal(f: NativeMachine) -> None:
    """Enter a signal; one that is only repeated, as by who polls, is moved to now as well."""
    address = f.lanes(UINT64, "%address", 0)
    lanes, site, what = (f.lanes(UINT32, f"%{n}", 0) for n in ("lanes", "site", "what"))
    end_if(f, (lanes == 0) | (f.field("error") != 0))
    knows = f.lanes(UINT32, rows.ask(f, moments.moment, "i32", ("i32", lanes)), 0)
    end_if(f, state.get(f, "cut") != 0)
    index = rows.warp(f)
    note(f, lanes)
    stamp = state.get(f, "stamp") + 1
    state.put(f, "stamp", 0, stamp)
    when = (state.get(f, "turn") << 32) | stamp
    base = f.pointer("check_signals")
    kind = f.cast(what | (index << WARP_SHIFT), UINT64)
    kind = kind | (f.cast(state.now(f), UINT64) << TICK_SHIFT)
    last = state.get(f, "signal", index)
    with f.function.when(str((last != 0).value)):
        at = _entry(f, base, f.cast(last - 1, UINT64))
        _repeat(f, at, address, f.cast(site, UINT64), kind, f.cast(knows, UINT64), when)
    count = state.get(f, "signal_count")
    full = count >= state.SIGNALS
    with f.function.when(str(full.value)):
        moments.close(f)
    end_if(f, full)
    none = str(moments.UNKNOWN)
    holder = f.function.slot("i32", 4)
    f.function.emit(f"store i32 {none}, ptr {holder}")
    with f.function.when(str(((what & RELEASES) != 0).value)):
        row = rows.ask(f, moments.handed, "i32", ("i32", lanes))
        f.function.emit(f"store i32 {row}, ptr {holder}")
    hands = f.lanes(UINT32, f.op(f"load i32, ptr {holder}"), 0)
    end_if(f, state.get(f, "cut") != 0)
    at = _entry(f, base, count)
    rest = f.cast(knows, UINT64) | (f.cast(hands, UINT64) << 32)
    words = (when, when, address, (f.cast(lanes, UINT64) << 32) | f.cast(site, UINT64), kind, rest)
    for number, word in enumerate(words):
        f.set_word(at, number, word)
    state.put(f, "signal_count", 0, count + 1)
    state.put(f, "signal", index, f.cast(count + 1, UINT32))
    state.put(f, "signal_new", 0, 1)


def _entry(f: NativeMachine, base: str, number: Lanes) -> str:
    words = number * state.SIGNAL_WORDS
    return f.op(f"getelementptr i64, ptr {base}, i64 {words.value}")


def _repeat(
    f: NativeMachine,
    at: str,
    address: Lanes,
    site: Lanes,
    kind: Lanes,
    knows: Lanes,
    when: Lanes,
) -> None:
    """Return if a signal is that of other lanes at the same time, or the same again."""
    lanes = f.cast(f.lanes(UINT32, "%lanes", 0), UINT64)
    before = f.get_word(at, 3)
    same = (f.get_word(at, 2) == address) & ((before & 0xFFFFFFFF) == site)
    same = same & ((f.get_word(at, 5) & 0xFFFFFFFF) == knows)
    together = same & (f.get_word(at, 4) == kind)
    with f.function.when(str(together.value)):
        f.set_word(at, 3, before | (lanes << 32))
        f.set_word(at, 1, when)
        with f.function.when(str(((kind & RELEASES) != 0).value)):
            row = f.cast(f.get_word(at, 5) >> 32, UINT32)
            run(f, moments.hand_more, ("i32", row), ("i32", "%lanes"))
    end_if(f, together)
    alike = ((f.get_word(at, 4) ^ kind) & 0xFFFFFFFF) == 0
    covered = (lanes & ~(before >> 32)) == 0
    again = same & alike & covered & ((kind & (0xFF & ~_AT_ONCE)) == 0)
    with f.function.when(str(again.value)):
        f.set_word(at, 1, when)
    end_if(f, again)


@routine("check_signal_at", "ptr %ctx, i64 %address, i32 %lanes, i32 %site, i32 %what")
def _signal_at(f: NativeMachine) -> None:
    """Enter a signal at an address of what the kernel may write."""
    with f.function.when(rows.ask(f, regions.is_watched, "i1", ("i64", "%address"))):
        words = tuple(("i32", f"%{n}") for n in ("lanes", "site", "what"))
        run(f, _signal, ("i64", "%address"), *words)


@routine("check_signals", "ptr %ctx, <32 x i64> %address, i32 %lanes, i32 %site, i32 %what")
def _signals(f: NativeMachine) -> None:
    """Enter the signals of lanes, each at an address of its own."""
    places = f.spill(f.lanes(UINT64, "%address", WARP))
    remaining = f.function.slot("i32", 4)
    f.function.emit(f"store i32 %lanes, ptr {remaining}")
    with each_bit(f, remaining) as lane:
        index = str(f.cast(lane, UINT64).value)
        where = f.lanes(UINT64, f.load_element(places, UINT64, index), 0)
        one = f.constant(1, UINT32) << lane
        words = (("i32", one), ("i32", "%site"), ("i32", "%what"))
        run(f, _signal_at, ("i64", where), *words)


def signal(m: NativeMachine, address: Lanes, lanes: Lanes, what: int) -> None:
    """Keep a signal of lanes, at one address or each at its own."""
    words = (("i32", lanes), ("i32", m.site), ("i32", m.constant(what, UINT32)))
    if address.width:
        run(m, _signals, ("<32 x i64>", address), *words)
    else:
        run(m, _signal_at, ("i64", address), *words)


def _anywhere(m: NativeMachine, key: Lanes, lanes: Lanes, site: str, what: int) -> None:
    words = (("i32", lanes), ("i32", site), ("i32", m.constant(what, UINT32)))
    run(m, _signal, ("i64", key), *words)


def finish(m: NativeMachine) -> None:
    """Tell what follows an instruction from what came before it, if it has signalled."""
    new = state.get(m, "signal_new") != 0
    with m.function.when(str(new.value)):
        state.put(m, "signal_new", 0, 0)
        rows.advance(m)


def kind_of(form: Form, access: str, kept: Signalling, *, unread: bool) -> int:
    """Give what a strong access to global memory signals, 0 if nothing."""
    order = form.order
    what = READ * (access in ("read", "update")) | WRITE * (access in ("write", "update"))
    what |= ACQUIRES * order.acquires | RELEASES * order.releases
    if unread:
        what = what | UNREAD if order.acquires else what & ~READ
    needed = (ACQUIRES | RELEASES) | READ * kept.looks | (READ | WRITE) * kept.relaxed
    return what | SCOPES[order.scope] << SCOPE_SHIFT if what & needed else 0


def fence(m: NativeMachine, order: Order, lanes: Lanes) -> None:
    """Keep a fence that reaches other CTAs."""
    if not _is_fence(order):
        return
    what = FENCE | ACQUIRES * order.acquires | RELEASES * order.releases
    what |= SCOPES[order.scope] << SCOPE_SHIFT
    _anywhere(m, m.constant(0, UINT64), lanes, m.site, what)
    finish(m)


def arrive_at_cluster(m: NativeMachine, turn: Lanes, lanes: Lanes, releases: bool) -> None:
    """Keep an arrival at the barrier of the cluster, in a turn of which only parity counts."""
    what = CLUSTER | WRITE | RELEASES * releases | SCOPES["cluster"] << SCOPE_SHIFT
    _anywhere(m, m.cast(turn, UINT64) & 1, lanes, m.site, what)
    finish(m)


def pass_cluster(m: NativeMachine, lanes: Lanes) -> None:
    """Keep that lanes have waited at the barrier of the cluster."""
    what = CLUSTER | READ | ACQUIRES | SCOPES["cluster"] << SCOPE_SHIFT
    turn = state.get(m, "cluster_parity", rows.warp(m)) & 1
    _anywhere(m, m.cast(turn, UINT64), lanes, m.site, what)
    finish(m)


@routine("check_leave_cluster", "ptr %ctx, i32 %lanes", seldom=True)
def leave_cluster(f: NativeMachine) -> None:
    """Keep that lanes exit, which the barrier of the cluster does not wait for."""
    what = CLUSTER | EXIT | WRITE | RELEASES | SCOPES["cluster"] << SCOPE_SHIFT
    turn = f.cast(f.cluster_state("generation"), UINT64) & 1
    _anywhere(f, turn, f.lanes(UINT32, "%lanes", 0), "0", what)
    finish(f)
