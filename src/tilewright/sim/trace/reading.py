"""From the events of a CTA to its timeline.

May import `base`, `ir`, `isa`, `sim.reports` and the rest of `sim.trace`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.ir.statements import Instruct
from tilewright.ir.visit import walk_statements
from tilewright.isa import mbarrier
from tilewright.isa.declaration import Form
from tilewright.isa.machine import GROUPS
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine.context import WAITS
from tilewright.sim.engine.flight import awaited_group, is_late
from tilewright.sim.engine.sites import Site
from tilewright.sim.reports import shared_name
from tilewright.sim.trace import events
from tilewright.sim.trace.events import Event
from tilewright.sim.trace.recorder import Grid, Recorded, Recording
from tilewright.sim.trace.timeline import Arrow, Kind, Row, Slice, Timeline, packed, with_turns

# The agents, in the order of their rows.
_AGENTS = {
    "bulk_copy": "copy engine (TMA)",
    "copy": "copies of threads",
    "tensor": "tensor core",
    "tensor_memory": "Tensor Memory",
}
_UNSAID = frozenset({"sync", "aligned", "shared", "global", "tile", "b32", "b64"})
_GROUPS = {
    "bulk_group": "bulk copies",
    "cp_async_group": "copies of threads",
    "tmem_load": "loads of Tensor Memory",
    "tmem_store": "stores of Tensor Memory",
}


def read(recording: Recording) -> list[Timeline]:
    """Make the timelines of a launch of what has been recorded, a CTA each."""
    readers = {index: _Reader(recording.simulated) for index in sorted(recording.ctas)}
    timelines = [_read(readers[index], recording.ctas[index]) for index in readers]
    clusters: dict[Grid, list[tuple[Grid, _Reader]]] = {}
    for index, reader in readers.items():
        cta = recording.ctas[index].cta
        x, y, z = (at // size for at, size in zip(cta, recording.cluster, strict=True))
        clusters.setdefault((x, y, z), []).append((cta, reader))
    for members in clusters.values():
        for _, reader in members:
            reader.explain(members)
    return timelines


def _read(reader: _Reader, recorded: Recorded) -> Timeline:
    simulated = reader.simulated
    time = 0
    for piece in recorded.pieces:
        for event in events.read(piece):
            reader.read(event)
            time = event.time
    if not recorded.dropped:
        time = recorded.time
    reader.close(time, whole=not recorded.dropped)
    options = simulated.options
    schedule = f"random:{options.seed}" if options.schedule == "random" else options.schedule
    return Timeline(
        *(simulated.kernel.name, recorded.cta, simulated.target.arch, schedule),
        *(list(reader.rows()), reader.arrows, time, recorded.dropped),
    )


@dataclass(frozen=True)
class _Moment:
    """What happens now: a slice, and a unit of it; an event of the same unit belongs to it."""

    slice: Slice
    at: int
    site: Site


@dataclass
class _Waiting:
    """A wait that has begun: where, and what for (its kind, key and detail)."""

    site: Site
    slice: Slice
    what: tuple[str, int, int] = ("none", 0, 0)


@dataclass(frozen=True)
class _Operation:
    """An operation in flight."""

    slice: Slice
    form: Form
    warp: int
    site: Site


class _Reader:
    """Reads the events of a CTA in order."""

    def __init__(self, simulated: CompiledKernel) -> None:
        self.simulated = simulated
        self.sites = simulated.sites.sites
        statements = walk_statements(simulated.kernel.body)
        self.forms = {s.form.text: s.form for s in statements if isinstance(s, Instruct)}
        self.arrows: list[Arrow] = []
        self.warps: dict[int, list[Slice]] = {}
        self.turns: dict[int, list[Slice]] = {}
        self.agents: dict[str, list[Slice]] = {}
        self.operations: dict[int, _Operation] = {}
        self.late: dict[tuple[int, str], list[_Operation]] = {}
        self.waiting: dict[tuple[int, int], _Waiting] = {}  # by the warp and lanes of a path
        self.phases: dict[int, int] = {}  # of each mbarrier, its number
        # Who has completed a barrier of a kind and key last, and what of a group landed last.
        self.causes: dict[tuple[str, int], _Moment] = {}
        self.landed: dict[tuple[int, str, bool], _Moment] = {}
        # Waits at the barrier of the cluster that another of its CTAs has completed: how often it
        # has been by then, and when they have ended.
        self.unexplained: list[tuple[Slice, int, int]] = []
        self.moment: _Moment | None = None
        self.turn: Slice | None = None

    def read(self, event: Event) -> None:
        """Take an event into account."""
        match event.kind:
            case "turn":
                self._turn(event)
            case "arrive":
                self._arrive(event)
            case "issue":
                self._issue(event)
            case "block":
                self._block(event)
            case "queue":
                self._queue(event)
            case "land" | "take":
                self._land(event)
            case "mbarrier":
                self._mbarrier(event)
            case "complete":
                self._complete(event)
            case _:
                self._exit(event)

    def close(self, time: int, *, whole: bool) -> None:
        """End what has not ended: waits of those who are stuck, operations in flight."""
        self._end_turn(time)
        for wait in self.waiting.values():
            wait.slice.name = self._waits_for(wait)
            wait.slice.end = max(time, wait.slice.begin + 1)
            if whole:
                wait.slice.kind = "stuck"
                wait.slice.facts["state"] = "this wait does not end"
        late = [each for operations in self.late.values() for each in operations]
        for each in [*self.operations.values(), *late]:
            each.slice.end = max(time, each.slice.begin + 1)
            if whole:
                each.slice.facts["state"] = "still in flight at the end"

    def rows(self) -> Iterator[Row]:
        """List the rows: warps, then agents."""
        for warp in sorted(self.warps.keys() | self.turns.keys()):
            title = f"warp {warp}"
            first, *others = packed(title, self.warps.get(warp, ())) or [Row(title, ())]
            yield with_turns(first, self.turns.get(warp, ()))
            yield from others
        for agent in sorted(self.agents, key=[*_AGENTS, *self.agents].index):
            yield from packed(_AGENTS.get(agent, agent), self.agents[agent])

    def _site(self, event: Event) -> Site:
        """Give the place of an event; one place may have several numbers."""
        return self.sites[event.site]

    # ---- turns

    def _turn(self, event: Event) -> None:
        self._end_turn(event.time)
        if event.a:
            warp = event.a - 1
            self.turn = Slice("turn", f"warp {warp} runs", event.time, event.time)
            self.turns.setdefault(warp, []).append(self.turn)

    def _end_turn(self, time: int) -> None:
        if self.turn is not None:
            self.turn.end = time
        self.turn = None

    # ---- instructions and waits

    def _slice(self, event: Event, kind: Kind, begin: int) -> Slice:
        """Begin a slice of a warp, which is what happens now."""
        site = self._site(event)
        made = Slice(kind, _short(site.text), begin, event.time, event.lanes, site.location)
        made.facts["instruction"] = site.text
        self.warps.setdefault(event.warp, []).append(made)
        return made

    def _now(self, event: Event, made: Slice) -> None:
        self.moment = _Moment(made, event.time - 1, self._site(event))

    def _wait(self, event: Event, begin: int) -> _Waiting:
        """Give the wait of a path that an event is of: it goes on, or begins."""
        path = event.warp, event.lanes
        known = self.waiting.get(path)
        if known is None or known.site != self._site(event):
            self._give_up(path, begin)
            known = _Waiting(self._site(event), self._slice(event, "wait", begin))
            self.waiting[path] = known
        return known

    def _give_up(self, path: tuple[int, int], time: int) -> None:
        """End a wait that a path has left without what it waited for."""
        wait = self.waiting.pop(path, None)
        if wait is not None:
            wait.slice.name = self._waits_for(wait)
            wait.slice.end = max(time, wait.slice.begin + 1)
            wait.slice.facts["state"] = "gives up, and goes on"

    def _exit(self, event: Event) -> None:
        self.moment = None
        for warp, lanes in list(self.waiting):
            if warp == event.warp and lanes & event.a:
                self._give_up((warp, lanes), event.time)

    def _arrive(self, event: Event) -> None:
        self._now(event, self._wait(event, event.time - 1).slice)

    def _block(self, event: Event) -> None:
        self._wait(event, event.time).what = WAITS[event.a], event.b, event.c

    def _issue(self, event: Event) -> None:
        form = self.forms[self._site(event).text]
        if form.declaration.wait is None:
            made = self._slice(event, _kind(form), event.time - 1)
            self._now(event, made)
            self._give_up((event.warp, event.lanes), event.time - 1)
            self._touch_registers(event, form, made)
            return
        wait = self._wait(event, event.time - 1)
        wait.what = WAITS[event.a], event.b, event.c
        wait.slice.end = event.time
        wait.slice.name = self._waits_for(wait)
        self._now(event, wait.slice)
        del self.waiting[event.warp, event.lanes]
        cause = self._cause(wait, event.warp)
        if cause is not None and cause.slice is not wait.slice:
            wait.slice.facts["ended by"] = cause.slice.name
            self.arrows.append(Arrow("wake", cause.slice, cause.at, wait.slice, event.time - 1))
        if cause is None and wait.what[0] == "cluster":
            self.unexplained.append((wait.slice, wait.what[1], event.time - 1))

    def _cause(self, wait: _Waiting, warp: int) -> _Moment | None:
        """Find what a wait has waited for."""
        kind, key, _ = wait.what
        if kind == "group":
            return self.landed.get((warp, GROUPS[key >> 1], bool(key & 1)))
        return self.causes.get((kind, key))

    def explain(self, members: Sequence[tuple[Grid, _Reader]]) -> None:
        """Find in the CTAs of the cluster what has ended waits at its barrier."""
        for waiting, count, time in self.unexplained:
            for cta, peer in members:
                cause = peer.causes.get(("cluster", count))
                if cause is not None:
                    waiting.facts["ended by"] = f"{cause.slice.name} of CTA {cta}"
                    self.arrows.append(Arrow("wake", cause.slice, cause.at, waiting, time))

    def _waits_for(self, wait: _Waiting) -> str:
        kind, key, detail = wait.what
        match kind:
            case "mbarrier":
                return f"wait {self._name(key)} phase {self._awaited(key, detail)}"
            case "barrier":
                return f"barrier {key}"
            case "cluster":
                return "barrier of the cluster"
            case "group":
                read = ", to have read" if key & 1 else ""
                return f"wait for {_GROUPS[GROUPS[key >> 1]]}{read}"
            case "columns":
                return f"allocate {key} columns"
            case _:
                return wait.slice.name

    def _awaited(self, address: int, parity: int) -> int:
        """Number the phase of a parity that is the present one or the one before."""
        phase = self.phases.get(address, 0)
        return phase if (phase ^ parity) & 1 == 0 else phase - 1

    # ---- operations

    def _queue(self, event: Event) -> None:
        site = self._site(event)
        operation = self._operation(event, self.forms[site.text])
        if event.b:
            operation.slice.facts["seen through"] = self._name(event.b)
        self.operations[event.a] = operation

    def _operation(self, event: Event, form: Form) -> _Operation:
        """Begin an operation, which what happens now hands to its agent."""
        site, begin = self._site(event), event.time - 1
        made = Slice("flight", _short(form.text), begin, event.time, event.lanes, site.location)
        made.facts["instruction"] = form.text
        made.facts["issued by"] = f"warp {event.warp}"
        self.agents.setdefault(form.time.agent, []).append(made)
        if self._is_now(event):
            assert self.moment is not None
            self.arrows.append(Arrow("issue", self.moment.slice, begin, made, begin))
        return _Operation(made, form, event.warp, site)

    def _land(self, event: Event) -> None:
        """Let an operation land, or have read what it reads."""
        operation = self.operations.get(event.a)
        self.moment = None
        if operation is None:
            return
        self.moment = _Moment(operation.slice, event.time - 1, operation.site)
        group = operation.form.time.completes
        self.landed[operation.warp, group, True] = self.moment
        if event.kind == "take":
            operation.slice.facts["has read"] = f"in unit {event.time - 1}"
            return
        self.landed[operation.warp, group, False] = self.moment
        operation.slice.end = event.time
        del self.operations[event.a]

    def _touch_registers(self, event: Event, form: Form, made: Slice) -> None:
        """Follow instructions whose registers are touched later, and those that wait for them."""
        if is_late(form):
            key = event.warp, form.time.completes
            self.late.setdefault(key, []).append(self._operation(event, form))
        group = awaited_group(form)
        operations = self.late.pop((event.warp, group), []) if group else []
        for each in operations:
            each.slice.end = event.time
        if operations:
            self.arrows.append(
                Arrow("wake", operations[-1].slice, event.time - 1, made, event.time - 1)
            )

    # ---- barriers

    def _is_now(self, event: Event) -> bool:
        now = self.moment
        return now is not None and now.at == event.time - 1 and now.site == self._site(event)

    def _mbarrier(self, event: Event) -> None:
        """Follow the phases of an mbarrier: what changes it is an instruction, or what lands."""
        if not self._is_now(event):
            self._now(event, self._slice(event, "sync", event.time - 1))
        now, address = self.moment, event.a
        assert now is not None
        name, before = self._name(address), self.phases.get(address)
        if now.slice.kind == "sync":
            now.slice.lanes |= event.lanes
            if not now.slice.name.endswith(name):
                now.slice.name += f" {name}"
        contents = mbarrier.contents(event.b)
        form = self.forms.get(self._site(event).text)
        if contents is None:
            self.phases.pop(address, None)
            now.slice.facts[name] = "is none any more"
        elif before is None or (form is not None and form.declaration is mbarrier.init):
            self.phases[address] = contents.phase
            now.slice.facts[name] = f"phase {contents.phase}, {contents.expected} arrivals expected"
        elif (before ^ contents.phase) & 1:
            self.phases[address] = before + 1
            self.causes["mbarrier", address] = now
            now.slice.facts[name] = f"phase {before} ends"
        else:
            arrived = f"{contents.arrived} of {contents.expected} arrivals"
            now.slice.facts[name] = f"phase {before}, {arrived}"

    def _complete(self, event: Event) -> None:
        """Note who has completed a barrier; that of a cluster is known by how often it has.

        Another CTA of the cluster may have completed it the next time.
        """
        kind = WAITS[event.a]
        key = kind, event.c if kind == "cluster" else event.b
        if self.moment is not None and self.moment.at == event.time - 1:
            self.causes[key] = self.moment
        else:
            self.causes.pop(key, None)

    def _name(self, address: int) -> str:
        return shared_name(address, self.simulated)


def _kind(form: Form) -> Kind:
    if form.time.agent:
        return "issue"
    order = form.order
    return "sync" if order.releases or order.acquires or order.fence else "instruction"


def _short(text: str) -> str:
    """Leave out of an instruction's name where its operands are, their types, who takes part."""
    first, *rest = text.split(".")
    kept = [each for each in rest[1:] if "::" not in each and each not in _UNSAID]
    return ".".join([first, *rest[:1], *kept])
