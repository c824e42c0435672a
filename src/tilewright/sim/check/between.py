"""Order between CTAs: accesses of different CTAs to the same bytes that nothing orders.

May import the modules of `sim.check` below it. What orders CTAs is what they have signalled to one
another (`knowledge.py`); where they cannot signal, any two that meet are a race (`overlaps.py`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np

from tilewright.sim.check import signals
from tilewright.sim.check.knowledge import Knowledge, near
from tilewright.sim.check.logs import Array, Log, Runs
from tilewright.sim.check.overlaps import (
    Found,
    inside,
    pairs,
    read_only,
    same_value,
    shared,
    unordered,
)
from tilewright.sim.check.proxies import Fences, concerns
from tilewright.sim.check.raw import RawFinding
from tilewright.sim.engine.sites import Site

_MOST_PAIRS = 1 << 17


def findings(
    logs: Mapping[int, Log],
    bounds: Sequence[tuple[int, int]],
    sites: Sequence[Site],
    clusters: Mapping[int, int] | None,
    *,
    apart: bool,
    again: Container[int],
    read_only_loads: bool,
) -> list[RawFinding]:
    """Find what is wrong with global memory, of what CTAs have kept.

    `clusters` numbers the cluster of each CTA, if CTAs can order one another; `apart` tells that
    none has touched what another one writes. `again` has the CTAs that touch a byte twice, a write
    among them; `read_only_loads` tells that something was read as read-only.
    """
    found = Found(sites)
    numbers = sorted(logs)
    inside(logs, [each for each in numbers if each in again], found)
    runs = Runs.of(logs, numbers if read_only_loads or not apart else [])
    read_only(runs, found)
    if not apart:
        if clusters is None:
            unordered(runs, found)
        else:
            races(runs, logs, bounds, clusters, found)
    return found.told()


def races(
    runs: Runs,
    logs: Mapping[int, Log],
    bounds: Sequence[tuple[int, int]],
    clusters: Mapping[int, int],
    found: Found,
) -> None:
    """Find accesses of different CTAs to the same bytes that no release and acquire order."""
    # What was done once somebody had no room to keep more is not judged.
    cuts = [log.cut for log in logs.values() if log.cut >= 0]
    judged = runs.known & ~runs.read_only
    if cuts:
        judged &= runs.turn < min(cuts)
    runs = runs.at(judged)
    if runs.strong.all():
        return
    runs = runs.at(shared(runs, bounds))
    met = pairs(runs, runs.ctas)
    if met is None:
        return
    apart = runs.ctas[met[0]] != runs.ctas[met[1]]
    earlier, later = (each[apart][:_MOST_PAIRS] for each in met)
    one, two = runs.at(earlier), runs.at(later)
    good = _morally_strong(one, two, clusters) | same_value(one, two)
    good |= _observed(one, two, runs, (earlier, later))
    rest = np.flatnonzero(~good)
    if not len(rest):
        return
    knowledge = Knowledge(logs, clusters, min(cuts, default=None))
    ordered = knowledge.orders(one.at(rest), two.at(rest))
    through = rest[ordered & concerns(one.at(rest), two.at(rest))]
    lacking = Fences(logs).lacking(one.at(through), two.at(through), knowledge.orders)
    for index, kind in lacking:
        found.enter(kind, runs, int(later[through[index]]), int(earlier[through[index]]))
    rest = rest[~ordered]
    rest = rest[~knowledge.orders(two.at(rest), one.at(rest))]
    # Where a flag itself is at fault, what it should have ordered is no fault of its own.
    flags = rest[(one.scope[rest] != 0) | (two.scope[rest] != 0)]
    for index in (flags if len(flags) else rest).tolist():
        pair = int(earlier[index]), int(later[index])
        here, there = sorted(pair, key=lambda each: (-int(runs.ctas[each]), each))
        found.enter("global-race", runs, here, there)


def _observed(one: Runs, two: Runs, runs: Runs, places: tuple[Array, Array]) -> Array:
    """Tell pairs of an atomic access and a later one, by a CTA that has had the flag in between.

    What is read from a chain of atomic writes is after all of them, and so is what its CTA does
    later; within the CTA that is looked at by itself (PTX ISA, "Causality Order"). `places` are
    those of the pairs among all runs, which each CTA has in its order.
    """
    seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for index in np.flatnonzero(runs.strong & ~runs.wrote).tolist():
        key = int(runs.ctas[index]), int(runs.start[index])
        seen.setdefault(key, []).append((int(runs.turn[index]), index))
    # What reads and writes has an entry for each.
    writers = np.unique(runs.site[runs.strong & runs.wrote])
    found = np.zeros(len(one), bool)
    for first, second, place in ((one, two, places[1]), (two, one, places[0])):
        later = first.strong & np.isin(first.site, writers)
        later &= ~second.strong & (first.turn < second.turn)
        for index in np.flatnonzero(later).tolist():
            own = seen.get((int(second.ctas[index]), int(first.start[index])), ())
            low, high = int(first.turn[index]), (int(second.turn[index]), int(place[index]))
            found[index] = any(low < turn and (turn, at) < high for turn, at in own)
    return found


def _morally_strong(one: Runs, two: Runs, clusters: Mapping[int, int]) -> Array:
    """Tell pairs of atomic accesses each of whose scopes has the CTA of the other one."""
    here, narrow = near(one, two, clusters), signals.SCOPES["cluster"]
    reach = [each.strong | ((each.scope == narrow) & here) for each in (one, two)]
    return reach[0] & reach[1]
