"""Order between CTAs: clocks over CTAs, made of what they have signalled to one another.

May import the modules of `sim.check` below it. A release hands on a row of clocks of its CTA, and
what that CTA knows of others; who acquires at the same address knows of it from then on, and so
does whoever synchronises with that warp later. Releases by the same lanes are numbered, so that
what is known of all CTAs is the number of the last release per such *speaker*.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.isa.machine import WARP
from tilewright.sim.check import regions, signals, state
from tilewright.sim.check.overlaps import (
    Found,
    Log,
    Runs,
    covers,
    crowded,
    inside,
    pairs,
    read_only,
    shared,
    unordered,
)
from tilewright.sim.check.raw import RawFinding
from tilewright.sim.engine.sites import Site

# A speaker is a CTA, a warp and a set of lanes.
_Speaker = tuple[int, int, int]
_Known = Mapping[_Speaker, int]
_NOTHING: _Known = {}
_LOW = (1 << 32) - 1
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
    for index in crowded(Runs.of(logs, [each for each in numbers if each in again])).tolist():
        inside(logs[index], Runs.of(logs, [index]), found)
    runs = Runs.of(logs, numbers if read_only_loads or not apart else [])
    read_only(runs, found)
    if not apart:
        if clusters is None:
            unordered(runs, found)
        else:
            races(logs, bounds, clusters, found)
    return found.told()


def races(
    logs: Mapping[int, Log],
    bounds: Sequence[tuple[int, int]],
    clusters: Mapping[int, int],
    found: Found,
) -> None:
    """Find accesses of different CTAs to the same bytes that no release and acquire order."""
    runs = Runs.of(logs, sorted(logs))
    # What was done once somebody had no room to keep more is not judged.
    cuts = [log.cut for log in logs.values() if log.cut >= 0]
    known = runs.known & ~runs.read_only
    if cuts:
        known &= runs.turn < min(cuts)
    runs = runs.at(known)
    runs = runs.at(shared(runs, bounds))
    earlier, later = pairs(runs)
    apart = runs.ctas[earlier] != runs.ctas[later]
    earlier, later = earlier[apart][:_MOST_PAIRS], later[apart][:_MOST_PAIRS]
    apart = ~_morally_strong(runs.at(earlier), runs.at(later), clusters)
    earlier, later = earlier[apart], later[apart]
    if not len(earlier):
        return
    clocks = _Clocks(logs, clusters, min(cuts, default=None))
    lacking = [
        (int(one), int(two))
        for one, two in zip(earlier, later, strict=True)
        if not clocks.ordered(runs, int(one), int(two))
        and not clocks.ordered(runs, int(two), int(one))
    ]
    # Where a flag itself is at fault, what it should have ordered is no fault of its own.
    scope = runs.scope
    flags = [pair for pair in lacking if scope[pair[0]] or scope[pair[1]]]
    for one, two in flags or lacking:
        here, there = sorted((one, two), key=lambda index: (-int(runs.ctas[index]), index))
        found.enter("global-race", runs, here, there)


def _morally_strong(one: Runs, two: Runs, clusters: Mapping[int, int]) -> np.ndarray:
    """Tell pairs of atomic accesses each of whose scopes has the CTA of the other one."""
    narrow = signals.SCOPES["cluster"]
    homes = [np.array([clusters[int(cta)] for cta in each.ctas], np.int64) for each in (one, two)]
    near = homes[0] == homes[1]
    reach = [(each.scope > narrow) | ((each.scope == narrow) & near) for each in (one, two)]
    return reach[0] & reach[1]


@dataclass
class _Flag:
    """What a write to an address tells: everybody, or CTAs of the same cluster."""

    wide: _Known = field(default_factory=dict[_Speaker, int])
    near: dict[int, _Known] = field(default_factory=dict[int, _Known])


@dataclass(frozen=True)
class _Signal:
    cta: int
    warp: int
    lanes: int
    tick: int
    kind: int
    scope: int
    address: int
    knows: int
    hands: int


@dataclass(frozen=True)
class _Fence:
    warp: int
    lanes: int
    tick: int
    wide: bool
    told: _Known


@dataclass(frozen=True)
class _Look:
    """A read that a fence may make an acquire."""

    warp: int
    lanes: int
    tick: int
    wide: _Known
    near: _Known


def _join(one: _Known, two: _Known) -> _Known:
    """Give what is known together; where one side knows all that the other does it is kept."""
    if len(one) > len(two):
        one, two = two, one
    if all(two.get(speaker, 0) >= number for speaker, number in one.items()):
        return two
    joined = dict(two)
    for speaker, number in one.items():
        joined[speaker] = max(joined.get(speaker, 0), number)
    return joined


class _Clocks:
    """What CTAs know of one another."""

    def __init__(
        self, logs: Mapping[int, Log], clusters: Mapping[int, int], cut: int | None
    ) -> None:
        self.logs = logs
        self.clusters = clusters
        # Of each speaker the rows that it has handed on; of each CTA its speakers, what it has
        # acquired (by warp and lanes, with ticks), its fences and its reads that fences may use.
        self.handed: dict[_Speaker, list[int]] = {}
        self.speakers: dict[int, list[_Speaker]] = defaultdict(list)
        self.acquired: dict[int, dict[tuple[int, int], tuple[list[int], list[_Known]]]]
        self.acquired = defaultdict(dict)
        self.fences: dict[int, dict[tuple[int, int, bool], list[_Fence]]] = defaultdict(dict)
        self.looks: dict[int, dict[tuple[int, int], list[_Look]]] = defaultdict(dict)
        self.flags: dict[int, _Flag] = defaultdict(_Flag)
        self.meetings: dict[tuple[int, int], _Known] = {}
        self.asked: dict[tuple[int, int, int, int, int], _Known] = {}
        for each in _in_order(logs, cut):
            self._play(each)
        self.asked.clear()

    # ---- what was signalled

    def _play(self, each: _Signal) -> None:
        own = self._known(each.cta, each.warp, each.lanes, each.knows, each.tick)
        if each.kind & signals.CLUSTER:
            self._at_cluster(each, own)
        elif each.kind & signals.FENCE:
            self._fence(each, own)
        else:
            self._access(each, own)

    def _at_cluster(self, each: _Signal, own: _Known) -> None:
        home = self.clusters[each.cta]
        gone, place = (home, -1), (home, each.address)
        if each.kind & signals.WRITE:
            told = _NOTHING if each.kind & signals.EXIT else self._told_by_fences(each, near=True)
            if each.kind & signals.RELEASES:
                told = _join(told, self._tell(each, own))
            if each.kind & signals.EXIT:
                # That is an arrival at whatever barrier comes later, too.
                self.meetings[gone] = _join(self.meetings.get(gone, _NOTHING), told)
            told = _join(told, self.meetings.get(gone, _NOTHING))
            self.meetings[place] = _join(self.meetings.get(place, _NOTHING), told)
        else:
            self._acquire(each, self.meetings.get(place, _NOTHING))

    def _fence(self, each: _Signal, own: _Known) -> None:
        wide = each.scope > signals.SCOPES["cluster"]
        if each.kind & signals.ACQUIRES:
            for (warp, lanes), looks in self.looks[each.cta].items():
                ticks = [look.tick for look in looks]
                last = self._last(each.cta, each, warp, lanes, ticks, inclusive=True)
                if last >= 0:
                    learnt = looks[last].near
                    learnt = _join(learnt, looks[last].wide) if wide else learnt
                    self._acquire(each, learnt)
                    own = _join(own, learnt)
        if each.kind & signals.RELEASES:
            fences = self.fences[each.cta].setdefault((each.warp, each.lanes, wide), [])
            told = self._tell(each, own)
            fences.append(_Fence(each.warp, each.lanes, each.tick, wide, told))

    def _access(self, each: _Signal, own: _Known) -> None:
        flag = self.flags[each.address]
        home = self.clusters[each.cta]
        if each.kind & signals.READ:
            near = flag.near.get(home, _NOTHING)
            if each.kind & signals.ACQUIRES:
                learnt = _join(flag.wide, near)
                self._acquire(each, learnt)
                own = _join(own, learnt)
            else:
                looks = self.looks[each.cta].setdefault((each.warp, each.lanes), [])
                before = looks[-1] if looks else _Look(0, 0, 0, _NOTHING, _NOTHING)
                wide, near = _join(before.wide, flag.wide), _join(before.near, near)
                looks.append(_Look(each.warp, each.lanes, each.tick, wide, near))
        if each.kind & signals.WRITE:
            flag.wide = _join(flag.wide, self._told_by_fences(each, near=False))
            told = self._told_by_fences(each, near=True)
            if each.kind & signals.RELEASES:
                mine = self._tell(each, own)
                flag.wide, told = _join(flag.wide, mine), _join(told, mine)
            if told:
                flag.near[home] = _join(flag.near.get(home, _NOTHING), told)

    def _tell(self, each: _Signal, own: _Known) -> _Known:
        """Hand a row on: give what is known of it, and of what its CTA knows."""
        speaker = (each.cta, each.warp, each.lanes)
        if speaker not in self.handed:
            self.handed[speaker] = []
            self.speakers[each.cta].append(speaker)
        rows = self.handed[speaker]
        if not rows or rows[-1] != each.hands:
            rows.append(each.hands)
        return _join(own, {speaker: len(rows)})

    def _acquire(self, each: _Signal, learnt: _Known) -> None:
        if not learnt:
            return
        ticks, known = self.acquired[each.cta].setdefault((each.warp, each.lanes), ([], []))
        ticks.append(each.tick)
        known.append(_join(known[-1], learnt) if known else learnt)

    def _told_by_fences(self, each: _Signal, *, near: bool) -> _Known:
        """Give what fences before a write hand on by it, of those that the writer knows of."""
        told = _NOTHING
        for (warp, lanes, wide), fences in self.fences[each.cta].items():
            if wide or near:
                ticks = [fence.tick for fence in fences]
                last = self._last(each.cta, each, warp, lanes, ticks, inclusive=True)
                if last >= 0:
                    told = _join(told, fences[last].told)
        return told

    # ---- what was known

    def _last(
        self,
        cta: int,
        who: _Signal,
        warp: int,
        lanes: int,
        ticks: list[int],
        *,
        inclusive: bool = False,
    ) -> int:
        """Find the last of what lanes of a warp have done that an actor knows of, -1 if none."""
        row = self.logs[cta].moments[who.knows]
        bound = int(row[warp])
        together = int(row[state.PART_LANES + warp])
        part = int(row[state.PART_TICK + warp])
        if warp == who.warp:
            if lanes & who.lanes:
                bound = max(bound, who.tick if inclusive else who.tick - 1)
            elif lanes & together and who.lanes & together:
                bound = max(bound, part)
        elif lanes & together:
            bound = max(bound, part)
        return bisect_right(ticks, bound) - 1

    def _known(self, cta: int, warp: int, lanes: int, knows: int, tick: int) -> _Known:
        key = (cta, warp, lanes, knows, tick)
        known = self.asked.get(key)
        if known is None:
            known = _NOTHING
            who = _Signal(cta, warp, lanes, tick, 0, 0, 0, knows, 0)
            for (other, some), (ticks, learnt) in self.acquired[cta].items():
                last = self._last(cta, who, other, some, ticks)
                if last >= 0:
                    known = _join(known, learnt[last])
            self.asked[key] = known
        return known

    def ordered(self, runs: Runs, one: int, two: int) -> bool:
        """Tell whether an access comes before one of another CTA."""
        first, second = runs.at(np.array([one])), runs.at(np.array([two]))
        start = np.maximum(first.start, second.start)
        last = np.minimum(first.end, second.end) - 1
        # What a flag tells does not order the flag itself.
        flags = int(first.scope[0] != 0 and second.scope[0] != 0)
        cta, warp = int(second.ctas[0]), int(second.warp[0])
        moment, tick = int(second.moment[0]), int(second.tick[0]) - flags
        origin = int(first.ctas[0])
        lanes = int(second.lanes(start, last)[0])
        together = int(second.step[0]) == regions.MANY
        for some in (lanes,) if together else _each(lanes):
            known = self._known(cta, warp, some, moment, tick)
            rows = [
                self.logs[origin].moments[self.handed[speaker][known[speaker] - 1]]
                for speaker in self.speakers[origin]
                if known.get(speaker, 0)
            ]
            if not any(covers(row[None], first, start, last)[0] for row in rows):
                return False
        return True


def _each(lanes: int) -> list[int]:
    return [1 << lane for lane in range(WARP) if lanes >> lane & 1]


def _in_order(logs: Mapping[int, Log], cut: int | None) -> Iterator[_Signal]:
    """Give the signals of all CTAs as they were made; what was repeated, at its first and last."""
    events: list[tuple[int, int, int]] = []
    for cta in sorted(logs):
        for number, words in enumerate(logs[cta].signals[:, :2].tolist()):
            for when in {*words}:
                if cut is None or when >> 32 < cut:
                    events.append((when, cta, number))
    for _, cta, number in sorted(events):
        words = [int(word) for word in logs[cta].signals[number]]
        what = words[4]
        yield _Signal(
            cta=cta,
            warp=what >> signals.WARP_SHIFT & 31,
            lanes=words[3] >> 32,
            tick=what >> signals.TICK_SHIFT,
            kind=what & 0xFF,
            scope=what >> signals.SCOPE_SHIFT & 7,
            address=words[2],
            knows=words[5] & _LOW,
            hands=words[5] >> 32,
        )
