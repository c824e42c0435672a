"""From what native code has noted to what a user is told.

May import `base` and the rest of `sim`.

    found = findings(raw, Launched(simulated, grid, regions, tensors))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.base.errors import SimulationError
from tilewright.base.findings import Finding, merged
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.sim.check.causes import Cause, cause_of, causes, places
from tilewright.sim.check.faults import after_freeing, fault
from tilewright.sim.check.kinds import BY_KEY
from tilewright.sim.check.memory import Launched, memory_texts
from tilewright.sim.check.raw import FREED, THREADS, RawFinding
from tilewright.sim.check.state import FINDINGS
from tilewright.sim.engine.sites import Site
from tilewright.sim.reports import Stopped, coordinates, lanes_text


def findings(raw: Iterable[RawFinding], launched: Launched) -> tuple[Finding, ...]:
    """Make findings, one for all that is of one fault.

    Errors come first, then those of the first CTA, in the order in which it met them.
    """
    told = sorted((each for each in raw if each.kind != FREED), key=lambda each: each.cta)
    found = [_finding(each, launched) for each in causes(told)]
    if found and (beyond := sum(each.beyond for each in told)):
        note = (
            f"a CTA tells of {FINDINGS} findings at most: {beyond} more were met, and are not told"
        )
        found[-1] = replace(found[-1], notes=(*found[-1].notes, note))
    return tuple(sorted(found, key=lambda each: each.severity))


def ended(error: SimulationError, launched: Launched) -> tuple[Finding, ...]:
    """Make the findings of a launch that a fault has ended; its own comes last in its CTA.

    What other CTAs after it have noted by then depends on chance, and is not told.
    """
    stopped = error.stopped
    assert isinstance(stopped, Stopped), error
    x, y, z = stopped.cta
    last = x + launched.grid[0] * (y + launched.grid[1] * z)
    noted = [each for each in error.noted if isinstance(each, RawFinding) and each.cta <= last]
    before = findings(noted, launched)
    last_one = fault(error, launched)
    for each in noted:
        if each.kind == FREED and each.cta == last:
            last_one = after_freeing(last_one, error, each.site)
    if any((e.kind, e.location) == (last_one.kind, last_one.location) for e in before):
        return before
    if cause := cause_of(last_one, before):
        note = _effect(last_one.kind, last_one.message, last_one.location)
        told = replace(cause, notes=(*cause.notes, note))
        return tuple(told if each is cause else each for each in before)
    return merged((*before, last_one))


def _finding(cause: Cause, launched: Launched) -> Finding:
    group, first, kind = cause.group, cause.first, BY_KEY[cause.first.kind]
    name, memory = _memory(first, launched)
    part = first.owner == THREADS and first.acting & ~first.lanes
    lanes = first.acting if part else first.lanes
    if part and memory:
        memory += f", of {lanes_text(first.lanes)}"
    now = _who(first.owner, first.warp, lanes)
    before = _who(first.other_owner, first.other_warp, first.other_lanes)
    here, there = (first.site, now), (first.other, before)
    swapped = kind.blames_earlier and first.other is not None
    if swapped:
        here, there = there, here
    return Finding(
        kind.name,
        kind.severity,
        kind.title,
        location=None if here[0] is None else here[0].location,
        other_location=None if there[0] is None else there[0].location,
        actor=_doing(*here),
        other_actor=_doing(*there),
        other_is_later=swapped,
        memory=memory,
        missing=kind.missing.format(now=now, before=before, memory=name),
        hint=kind.mend,
        notes=_notes(cause),
        kernel=launched.simulated.kernel.name,
        cta=coordinates(first.cta, launched.grid),
        warp=first.other_warp if swapped else first.warp,
        lanes=first.other_lanes if swapped else lanes,
        count=sum(each.count for each in group),
        ctas=len({each.cta for each in group}),
    )


def _notes(cause: Cause) -> tuple[str, ...]:
    """Say where else a fault was met, each place once, and what may come of it."""
    known = places(cause.first)
    alike = {
        site: f"it is met at {_at(site)} too"
        for each in cause.alike
        for site in (each.site, each.other)
        if site is not None and not places(replace(each, site=site, other=site)) & known
    }
    effects = (
        _effect(each.kind.partition("/")[0], BY_KEY[each.kind].title, each.site.location)
        for each in cause.effects
    )
    return (*dict.fromkeys(alike.values()), *dict.fromkeys(effects))


def _at(site: Site) -> str:
    return site.text if site.location is None else f"{site.location.header()}: {site.text}"


def _effect(kind: str, title: str, location: Location | None) -> str:
    place = "" if location is None else f" at {location.header()}"
    return f"it may lead to this{place}: {title} [{kind}]"


def _memory(first: RawFinding, launched: Launched) -> tuple[str, str]:
    """Name what a finding is about, if it is memory, or a barrier."""
    if BY_KEY[first.kind].name == "named-barrier":
        return "", f"barrier {first.address}"
    if first.space is Space.LOCAL:
        return first.site.text, ""
    if not first.size:
        return "", ""
    return memory_texts(first.space, first.address, first.size, launched)


def _who(owner: str, warp: int, lanes: int) -> str:
    if not owner:
        return ""
    threads = f"warp {warp}, {lanes_text(lanes)}" if lanes else f"warp {warp}"
    return threads if owner == THREADS else f"{owner}, for {threads}"


def _doing(site: Site | None, who: str) -> str:
    if site is None:
        return ""
    return f"{site.text}, by {who}" if who else site.text
