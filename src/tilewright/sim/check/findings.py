"""From what native code has noted to what a user is told.

May import `base` and the rest of `sim`.

    found = findings(raw, Launched(simulated, grid, regions, tensors))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.base.errors import SimulationError
from tilewright.base.findings import Finding, merged
from tilewright.sim.check.faults import fault
from tilewright.sim.check.kinds import BY_KEY
from tilewright.sim.check.memory import Launched, memory_texts
from tilewright.sim.check.raw import UNWRITTEN, RawFinding
from tilewright.sim.engine.sites import Site
from tilewright.sim.reports import Stopped, coordinates, lanes_text

_THREADS = "warp"  # the owner that is a warp itself; the others act for one


def findings(raw: Iterable[RawFinding], launched: Launched) -> tuple[Finding, ...]:
    """Make findings, one for all that is of one kind at one pair of places.

    Errors come first, then those of the first CTA, in the order in which it met them.
    """
    groups: dict[object, list[RawFinding]] = {}
    for each in sorted(raw, key=lambda each: each.cta):
        groups.setdefault(_fault(each), []).append(each)
    # What a read meets too early for want of an order is not written yet: that is one fault.
    unordered = {
        place for group in groups.values() if group[0].other for place in _places(group[0])
    }
    found = [
        _finding(group, launched)
        for group in groups.values()
        if group[0].kind != UNWRITTEN or _place(group[0].site) not in unordered
    ]
    return tuple(sorted(found, key=lambda each: each.severity))


def ended(error: SimulationError, launched: Launched) -> tuple[Finding, ...]:
    """Make the findings of a launch that a fault has ended; its own comes last in its CTA.

    What other CTAs after it have noted by then depends on chance, and is not told.
    """
    stopped = error.stopped
    assert isinstance(stopped, Stopped), error
    x, y, z = stopped.cta
    last = x + launched.grid[0] * (y + launched.grid[1] * z)
    noted = (each for each in error.noted if isinstance(each, RawFinding))
    before = findings((each for each in noted if each.cta <= last), launched)
    last_one = fault(error, launched)
    told = any((e.kind, e.location) == (last_one.kind, last_one.location) for e in before)
    return before if told else merged((*before, last_one))


def _fault(each: RawFinding) -> object:
    """Tell faults apart: by their kind and by where they are, whichever side came first."""
    return each.kind, _places(each)


def _places(each: RawFinding) -> frozenset[object]:
    return frozenset((_place(each.site), _place(each.other)))


def _place(site: Site | None) -> object:
    return None if site is None else site.location or site.text


def _finding(group: Sequence[RawFinding], launched: Launched) -> Finding:
    first, kind = group[0], BY_KEY[group[0].kind]
    name, memory = _memory(first, launched)
    now = _who(first.owner, first.warp, first.lanes)
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
        kernel=launched.simulated.kernel.name,
        cta=coordinates(first.cta, launched.grid),
        warp=first.other_warp if swapped else first.warp,
        lanes=first.other_lanes if swapped else first.lanes,
        count=sum(each.count for each in group),
        ctas=len({each.cta for each in group}),
    )


def _memory(first: RawFinding, launched: Launched) -> tuple[str, str]:
    """Name what a finding is about, if it is memory, or a barrier."""
    if first.kind == "named-barrier":
        return "", f"barrier {first.address}"
    if not first.size:
        return "", ""
    return memory_texts(first.space, first.address, first.size, launched)


def _who(owner: str, warp: int, lanes: int) -> str:
    if not owner:
        return ""
    threads = f"warp {warp}, {lanes_text(lanes)}" if lanes else f"warp {warp}"
    return threads if owner == _THREADS else f"{owner}, for {threads}"


def _doing(site: Site | None, who: str) -> str:
    if site is None:
        return ""
    return f"{site.text}, by {who}" if who else site.text
