"""The checker as an observer of the engine: where the code that watches is called.

May import `isa`, `ir`, `sim.engine` and the rest of `sim.check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import UINT32
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Constant, Read
from tilewright.ir.statements import Instruct, Kernel, Write
from tilewright.isa import tensor_allocation, tensor_memory
from tilewright.isa.declaration import Form
from tilewright.isa.machine import Lanes
from tilewright.sim.check import (
    apart,
    clocks,
    exits,
    judge,
    keeping,
    once,
    phases,
    protocols,
    proxies,
    regions,
    registers,
    rows,
    signals,
    state,
)
from tilewright.sim.check.bounds import ANYWHERE, Buffers
from tilewright.sim.check.kinds import NUMBER
from tilewright.sim.check.lanes import meet
from tilewright.sim.check.rows import run
from tilewright.sim.check.signals import signalling
from tilewright.sim.check.watch import WatchMachine, owner_of
from tilewright.sim.engine.calls import is_literal, kind_of, passed, taken
from tilewright.sim.engine.context import RECORD
from tilewright.sim.engine.flight import awaited_group
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.observer import Observer
from tilewright.sim.engine.sites import Site

_ENDS = (phases.keep, clocks.end_phase, phases.complete)  # of a phase of an mbarrier
_ALWAYS = (
    *(clocks.land, *_ENDS, clocks.leave, protocols.finish, exits.finish, keeping.whole),
    *(clocks.arrive, clocks.pass_barrier, *judge.ENTRIES.values(), apart.meet),
)
_CELLS = {"tmem_load": state.CELL_LOADS, "tmem_store": state.CELL_STORES}


class Checker(Observer):
    """Has a kernel keep clocks and shadow memory, and record what it finds."""

    watches_registers = True
    watches_lanes = True

    def __init__(self, module: Module, kernel: Kernel, *, interacts: bool) -> None:
        module.memories |= set(state.memory(0))
        self._names: dict[object, str] = {}
        self._sites: dict[tuple[Site, Constant | None], int] = {}
        self._buffers = Buffers(kernel)
        self._span = ANYWHERE
        self._unread = False
        self._stored: Constant | None = None
        self._signalling = signalling(kernel) if interacts else None
        self._fences = proxies.needs_fences(kernel)
        # What the scheduler calls must not be among its functions, which are any kernel's; with it
        # comes what it calls. They are the same in any kernel that is checked.
        with module.together("checker"):
            for each in _ALWAYS:
                each(module)
        if self._leaves_cluster:
            signals.leave_cluster(module)

    @property
    def _leaves_cluster(self) -> bool:
        return self._signalling is not None and self._signalling.clusters

    def comes_to(self, node: Instruct | Read | Write, *, unread: bool = False) -> None:
        """Note the buffer that is accessed, the constant that is stored, and results not read."""
        self._span = self._buffers.span(node)
        self._unread = unread
        stored = node.value if isinstance(node, Write) else None
        self._stored = stored if isinstance(stored, Constant) else None

    # ---- accesses

    def accesses(
        self, m: NativeMachine, space: Space, address: Lanes, size: int, *, write: bool
    ) -> None:
        """Watch a plain access."""
        if space not in (Space.SHARED, Space.GLOBAL, Space.GENERIC):
            return
        alike = self._stored is not None
        key = (space, address.dtype, address.width, size, write, alike)
        if key not in self._names:
            self._names[key] = self._plain(m.module, space, address, size, write)
        self._call(m, self._names[key], (address,))

    def _plain(self, module: Module, space: Space, address: Lanes, size: int, write: bool) -> str:
        stem = f"watch_{'store' if write else 'load'}_{space.value}_{size}"
        f = WatchMachine(module, stem, "%site", None)
        f.alike = self._stored is not None
        f.mask = f.unpack(f.lanes(UINT32, "%mask", 0))
        inside, parameters = _parameters(f, (address,))
        f.touch(space, inside[0], size, write=write)
        return _finish(f, parameters)

    def stores_at_once(self, m: NativeMachine, space: Space, address: Lanes, value: Lanes) -> None:
        """Watch values of lanes that are stored at one address, or at addresses of their own."""
        key = (space, *((each.dtype, each.width) for each in (address, value)))
        if key not in self._names:
            f = WatchMachine(m.module, f"watch_at_once_{space.value}", "%site", None)
            f.mask = f.unpack(f.lanes(UINT32, "%mask", 0))
            (where, what), parameters = _parameters(f, (address, value))
            once.store(f, space, where, (what,), f.lanes(UINT32, "%site", 0))
            self._names[key] = _finish(f, parameters)
        self._call(m, self._names[key], (address, value))

    def issues(self, m: NativeMachine, form: Form, operands: Sequence[Any]) -> None:
        """Watch an instruction, and what it orders."""
        declaration = form.declaration
        lanes = m.active()
        if _is_meeting(form):
            meet(m, operands[0] if len(operands) else m.constant(0, UINT32))
        order = form.order
        if self._fences and proxies.is_fence(order):
            site = ("i32", str(self._site(m.module, int(m.site))))
            run(m, regions.fence, ("i32", lanes), site)
            rows.advance(m)
        covers = not order.spaces or Space.SHARED in order.spaces
        if order.fence == "proxy" and order.proxy == "async" and covers:
            run(m, clocks.fence_proxy, ("i32", lanes))
        if order.fence == "memory":
            run(m, clocks.fence_memory, ("i32", lanes))
            if self._signalling is not None:
                signals.fence(m, order, lanes)
        if order.fence == "mbarrier_init":
            run(m, clocks.show_mbarriers, ("i32", lanes))
        group = awaited_group(form)
        if group is not None:
            who = rows.warp(m) + _CELLS[group]
            run(m, clocks.end_cells, ("i32", who), ("i32", lanes))
            if group == "tmem_load":
                run(m, registers.release)
        if declaration is tensor_memory.fence_after:
            run(m, clocks.fence_cells, ("i32", lanes))
        if _is_watched(form):
            self._call(m, self._watcher(m.module, form, operands, arrival=False), operands)

    def arrives(self, m: NativeMachine, form: Form, operands: Sequence[Lanes]) -> None:
        """Watch an arrival: by all lanes, where they are together."""
        self._call(m, self._watcher(m.module, form, operands, arrival=True), operands)

    def _call(self, m: NativeMachine, name: str, operands: Sequence[Any]) -> None:
        words = [passed(m, each) for each in operands if not is_literal(each)]
        site = self._site(m.module, int(m.site))
        low, room = self._span
        given = f"ptr %ctx, i32 {m.active().value}, i32 {site}, i32 {low}, i32 {room}"
        listed = ", ".join([given, *words])
        m.function.emit(f"call void @{name}({listed})")

    def _site(self, module: Module, number: int) -> int:
        """Number a place by the first of its kind: what is unrolled is one place.

        Those at which another constant is stored are others.
        """
        return self._sites.setdefault((module.sites[number], self._stored), number)

    def _watcher(
        self, module: Module, form: Form, operands: Sequence[Any], *, arrival: bool
    ) -> str:
        """Give the function that watches an instruction with such operands."""
        key = (form, arrival, self._unread, tuple(map(kind_of, operands)))
        if key not in self._names:
            self._names[key] = self._emit(module, form, operands, arrival=arrival)
        return self._names[key]

    def _emit(self, module: Module, form: Form, operands: Sequence[Any], *, arrival: bool) -> str:
        stem = "".join(c if c.isalnum() else "_" for c in form.text)
        f = WatchMachine(module, f"watch_{stem}", "%site", form)
        f.mask = f.unpack(f.lanes(UINT32, "%mask", 0))
        f.unread = self._unread
        f.signalling = self._signalling
        inside, parameters = _parameters(f, operands)
        wait = form.declaration.wait
        if arrival:
            assert wait is not None and wait.arrive is not None
            wait.arrive(f, form, *inside)
        elif wait is None or wait.kind in ("columns", "time"):
            assert form.declaration.compute is not None
            f.begin(inside)
            form.declaration.compute(f, form, *inside)
            f.flag()
        else:
            _pass(f, form, inside)
        return _finish(f, parameters)

    # ---- registers

    def holds(self, m: NativeMachine, first: Lanes, size: int) -> None:
        """Watch registers that a load writes later."""
        registers.hold_run(m, first, size, self._site(m.module, int(m.site)))

    def touches(self, m: NativeMachine, first: Lanes, size: int) -> None:
        """Watch registers of which a load may have some."""
        registers.touch(m, first, size, self._site(m.module, int(m.site)))

    def reads_unset(self, m: NativeMachine, lanes: Lanes, *, shuffled: bool = False) -> None:
        """Watch a register being read that nothing has written, or a shuffle with nothing."""
        site = self._site(m.module, int(m.site))
        kind = NUMBER["undefined-operation/lane" if shuffled else "uninitialised"]
        words = (("i32", str(site)), ("i32", lanes), ("i32", str(kind)))
        run(m, registers.read_unset, *words)

    def goes_without(self, m: NativeMachine, lanes: Lanes) -> None:
        """Tell of a collective that lanes have passed by which it names."""
        site = self._site(m.module, int(m.site))
        words = (m.active(), lanes, m.lanes(UINT32, str(site), 0))
        run(m, protocols.pass_by, *(("i32", each) for each in words))

    # ---- operations, phases, exits

    def queues(self, m: NativeMachine, form: Form, number: Lanes, barrier: Lanes) -> None:
        """Keep what the issuer knows of an operation that is seen through an mbarrier."""
        lanes = m.active()
        if m.mask is None:
            lanes = m.constant(1, UINT32) << (m.cast(m.field("acting"), UINT32) - 1)
        if form.time.completes != "mbarrier":
            if form.time.agent == "tensor":
                run(m, clocks.use_core, ("i32", lanes))
            rows.advance(m)
            return
        owner = owner_of(m, form, barrier, write=True)
        run(m, clocks.issue, ("i64", number), ("i32", owner), ("i32", lanes))

    def lands(self, f: NativeMachine, number: Lanes, record: str) -> None:
        """Hand on what an operation has done."""
        barrier = f.get_word(record, RECORD["barrier"])
        with f.function.when(str((barrier != 0).value)):
            run(f, clocks.land, ("i64", number), ("i32", f.cast(barrier, UINT32)))

    def phase_begins(self, m: NativeMachine, barrier: Lanes) -> None:
        """Let who waits for the phase before know of it."""
        for each in _ENDS:
            run(m, each, ("i32", m.cast(barrier, UINT32)))

    def exits(self, f: NativeMachine, lanes: Lanes) -> None:
        """Let those who go on know of those who return."""
        run(f, clocks.leave, ("i32", lanes))
        if self._leaves_cluster:
            run(f, signals.leave_cluster, ("i32", lanes))

    def ends(self, f: NativeMachine) -> None:
        """See that what has been begun is complete."""
        run(f, protocols.finish)
        run(f, exits.finish)


def _is_meeting(form: Form) -> bool:
    """Tell whether lanes of a warp meet and order what they do; where they wait they do later.

    Other instructions of a whole warp are executed together, and order nothing.
    """
    order = form.order
    orders = order.acquires and order.releases and not order.fence
    return form.declaration.lanes == "warp" and orders and form.declaration.wait is None


def _is_watched(form: Form) -> bool:
    """Tell the instructions that touch memory, hand something to an agent, or wait."""
    if form.declaration.wait is not None or form.time.agent:
        return True
    if form.declaration is tensor_allocation.dealloc:
        return True
    if any(each.kind == "address" for each in form.operands):
        return True
    return form.declaration.volatile and form.declaration.compute is not None and _orders(form)


def _orders(form: Form) -> bool:
    return (form.order.releases and not form.order.fence) or not form.operands


def _pass(f: WatchMachine, form: Form, operands: Sequence[Lanes]) -> None:
    """Watch an instruction that has waited."""
    wait = form.declaration.wait
    assert wait is not None
    lanes = f.active()
    match wait.kind:
        case "mbarrier":
            assert form.declaration.compute is not None
            (ready,) = form.declaration.compute(f, form, *operands)
            f.wait_at_mbarrier(operands[0], ready)
        case "barrier":
            _, key = wait.awaits(f, form, *operands)
            words = (f.cast(f.first(key), UINT32), lanes)
            run(f, clocks.pass_barrier, *(("i32", each) for each in words))
        case "cluster":
            run(f, clocks.pass_cluster, ("i32", lanes))
            if f.signalling is not None:
                signals.pass_cluster(f, lanes)
        case _:
            wait.poll(f, form, *operands)


def _parameters(f: WatchMachine, operands: Sequence[Any]) -> tuple[list[Lanes], list[str]]:
    """Take the operands of a function that watches, and the buffer that it must not leave."""
    f.span = (f.lanes(UINT32, "%low", 0), f.lanes(UINT32, "%room", 0))
    return taken(f, operands)


def _finish(f: WatchMachine, parameters: Sequence[str]) -> str:
    f.function.emit("ret void")
    listed = ", ".join(["ptr %ctx, i32 %mask, i32 %site, i32 %low, i32 %room", *parameters])
    return f.function.finish("void", listed, "noinline", by_content=True)
