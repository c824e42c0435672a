"""What CTAs know of one another: clocks over CTAs, made of what they have signalled.

May import the modules of `sim.check` below it. A release hands on a row of clocks of its CTA, and
what that CTA knows of others; who acquires at the same address knows of it from then on, and so
does whoever synchronises with that warp later. What is known is a set of releases, as the bits of
a number. Of those by the same lanes the last one tells all that the ones before do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tilewright.sim.check import moments, signals, state
from tilewright.sim.check.logs import ALL_LANES, Array, Log, Runs, distinct, moments_of, spread
from tilewright.sim.check.overlaps import covers

_LOW = (1 << 32) - 1
_MOST_PAIRS = 1 << 12  # that are judged at a time
# Who learns, in a word: the CTA, the warp, whether all lanes do together, the moment and the tick.
_CTA_SHIFT, _WARP_SHIFT, _TOGETHER = 38, 33, 1 << 32
_CTA_BITS = 64 - _CTA_SHIFT
_CTA_MASK = (1 << _CTA_BITS) - 1
_Lanes = tuple[int, int]  # a warp, and a set of its lanes
_Made = TypeVar("_Made")
_ALL, _GONE = -1, -1  # stand for a cluster, and for the number of a barrier


class _Signal(NamedTuple):
    cta: int
    warp: int
    lanes: int
    tick: int
    knows: int
    hands: int = 0
    kind: int = 0
    scope: int = 0
    address: int = 0


@dataclass
class _Speaker:
    """The releases of lanes of a warp: all, the last one, and the rows that they hand on.

    Rows are found by how many bits the number of a release has; `row` is the last one.
    """

    releases: int = 0
    last: int = 0
    row: int = -1
    rows: dict[int, int] = field(default_factory=dict[int, int])


@dataclass
class _Flag:
    """What a write to an address tells: everybody, or CTAs of the same cluster."""

    wide: int = 0
    near: dict[int, int] = field(default_factory=dict[int, int])


@dataclass
class _Steps:
    """What lanes of a warp have done, one after another: when, and what was known or told then.

    `near` is what is known besides of CTAs of the same cluster.
    """

    ticks: list[int] = field(default_factory=list[int])
    known: list[int] = field(default_factory=list[int])
    near: list[int] = field(default_factory=list[int])


def _of_each(make: Callable[[], _Made]) -> dict[Any, dict[Any, _Made]]:
    """Make something for each CTA, and each key, when it is first asked for."""
    return defaultdict(lambda: defaultdict(make))


class Knowledge:
    """What CTAs know of one another, and when."""

    def __init__(
        self, logs: Mapping[int, Log], clusters: Mapping[int, int], cut: int | None
    ) -> None:
        self.logs = logs
        self.clusters = clusters
        # Rows of what was known, as memory of which single numbers are read fast.
        self.rows = {cta: log.moments.data for cta, log in logs.items()}
        # Of each CTA, by warp and lanes, its releases, what it has acquired, its fences (those that
        # reach beyond its cluster apart), and its reads that a fence may make an acquire. Those of
        # an address a later read may, too, of which nobody looks at the result.
        self.speakers: dict[int, dict[_Lanes, _Speaker]] = _of_each(_Speaker)
        self.acquired: dict[int, dict[_Lanes, _Steps]] = _of_each(_Steps)
        self.fences: dict[int, dict[tuple[int, int, bool], _Steps]] = _of_each(_Steps)
        self.looks: dict[int, dict[_Lanes, _Steps]] = _of_each(_Steps)
        self.looks_at: dict[tuple[int, int], dict[_Lanes, _Steps]] = _of_each(_Steps)
        self.flags: dict[int, _Flag] = defaultdict(_Flag)
        self.meetings: dict[tuple[int, int], int] = defaultdict(int)
        # What actors are found to know, each once, by number.
        self.kept: dict[int, int] = {}
        played = list(_in_order(logs, cut))
        self.unread = any(each.kind & signals.UNREAD for each in played)
        # Clusters that do not hear of one another count their releases apart, from 0 on.
        self.apart = all(each.kind & signals.CLUSTER for each in played)
        self.counts: dict[int, int] = defaultdict(int)
        for each in played:
            self._play(each)

    # ---- what was signalled

    def _play(self, each: _Signal) -> None:
        if each.kind & signals.CLUSTER:
            self._at_cluster(each)
        elif each.kind & signals.FENCE:
            self._fence(each)
        else:
            self._access(each)

    def _at_cluster(self, each: _Signal) -> None:
        home = self.clusters[each.cta]
        place = home, each.address
        if not each.kind & signals.WRITE:
            self._acquire(each, self.meetings[place])
            return
        told = 0 if each.kind & signals.EXIT else self._told_by_fences(each, near=True)
        if each.kind & signals.RELEASES:
            told |= self._tell(each, 0)
        if each.kind & signals.EXIT:
            # That is an arrival at whatever barrier comes later, too.
            self.meetings[home, _GONE] |= told
        self.meetings[place] |= told | self.meetings[home, _GONE]

    def _fence(self, each: _Signal) -> None:
        wide = each.scope > signals.SCOPES["cluster"]
        learnt = 0
        if each.kind & signals.ACQUIRES:
            learnt = self._looked(each, self.looks[each.cta], wide=wide)
            self._acquire(each, learnt)
        if each.kind & signals.RELEASES:
            fences = self.fences[each.cta][each.warp, each.lanes, wide]
            fences.known.append(self._tell(each, learnt))
            fences.ticks.append(each.tick)

    def _looked(self, each: _Signal, places: Mapping[_Lanes, _Steps], *, wide: bool) -> int:
        """Give what reads that an actor knows of would have told, had they been acquires."""
        learnt = 0
        for (warp, lanes), looks in places.items():
            last = self._last(each, warp, lanes, looks.ticks, inclusive=True)
            if last >= 0:
                learnt |= looks.near[last] | (looks.known[last] if wide else 0)
        return learnt

    def _access(self, each: _Signal) -> None:
        flag = self.flags[each.address]
        home = self.clusters[each.cta]
        near, learnt = flag.near.get(home, 0), 0
        if each.kind & signals.UNREAD:
            wide = each.scope > signals.SCOPES["cluster"]
            learnt = self._looked(each, self.looks_at[each.cta, each.address], wide=wide)
            self._acquire(each, learnt)
        elif each.kind & signals.ACQUIRES:
            learnt = flag.wide | near
            self._acquire(each, learnt)
        elif each.kind & signals.READ:
            places = [self.looks[each.cta]]
            places += [self.looks_at[each.cta, each.address]] if self.unread else []
            for place in places:
                looks = place[each.warp, each.lanes]
                looks.known.append(flag.wide | (looks.known[-1] if looks.known else 0))
                looks.near.append(near | (looks.near[-1] if looks.near else 0))
                looks.ticks.append(each.tick)
        if each.kind & signals.WRITE:
            mine = self._tell(each, learnt) if each.kind & signals.RELEASES else 0
            flag.wide |= mine | self._told_by_fences(each, near=False)
            flag.near[home] = near | mine | self._told_by_fences(each, near=True)

    def _tell(self, each: _Signal, learnt: int) -> int:
        """Hand a row on: give it, and what its CTA knows of others and has just learnt."""
        speaker = self.speakers[each.cta][each.warp, each.lanes]
        if speaker.row != each.hands:
            group = self.clusters[each.cta] if self.apart else _ALL
            speaker.last = 1 << self.counts[group]
            speaker.releases |= speaker.last
            self.counts[group] += 1
            speaker.row = speaker.rows[self.counts[group]] = each.hands
        return self._known(each) | learnt | speaker.last

    def _acquire(self, each: _Signal, learnt: int) -> None:
        if learnt:
            steps = self.acquired[each.cta][each.warp, each.lanes]
            steps.ticks.append(each.tick)
            steps.known.append(learnt | (steps.known[-1] if steps.known else 0))

    def _told_by_fences(self, each: _Signal, *, near: bool) -> int:
        """Give what fences before a write hand on by it, of those that the writer knows of."""
        told = 0
        for (warp, lanes, wide), fences in self.fences[each.cta].items():
            if wide or near:
                last = self._last(each, warp, lanes, fences.ticks, inclusive=True)
                told |= fences.known[last] if last >= 0 else 0
        return told

    # ---- what was known

    def _last(
        self, who: _Signal, warp: int, lanes: int, ticks: list[int], *, inclusive: bool
    ) -> int:
        """Find the last of what lanes of a warp have done that an actor knows of, -1 if none."""
        row, knows = self.rows[who.cta], who.knows
        bound = row[knows, warp]
        if warp == who.warp and lanes & who.lanes:
            own = who.tick if inclusive else who.tick - 1
            bound = own if own > bound else bound
        else:
            together = row[knows, state.PART_LANES + warp]
            if lanes & together and (warp != who.warp or who.lanes & together):
                bound = max(bound, row[knows, state.PART_TICK + warp])
        return bisect_right(ticks, bound) - 1

    def _known(self, who: _Signal) -> int:
        """Tell what lanes of a warp have learnt of other CTAs before a tick."""
        known = 0
        for (warp, lanes), steps in self.acquired[who.cta].items():
            last = self._last(who, warp, lanes, steps.ticks, inclusive=False)
            if last >= 0:
                known |= steps.known[last]
        return known

    def _known_by_lanes(self, actor: int) -> list[tuple[int, int]]:
        """Tell what an actor has learnt: sets of lanes, and what each of a set knows."""
        cta, warp = actor >> _CTA_SHIFT, actor >> _WARP_SHIFT & 31
        knows, tick = divmod(actor & _LOW, 1 << moments.TICK_BITS)
        if actor & _TOGETHER:
            return [(ALL_LANES, self._known(_Signal(cta, warp, ALL_LANES, tick, knows)))]
        # Lanes differ in what they know if they are not always of the same sets.
        sets = {lanes for other, lanes in self.acquired[cta] if other == warp}
        sets.add(self.rows[cta][knows, state.PART_LANES + warp])
        classes = [ALL_LANES]
        for some in sets - {0, ALL_LANES}:
            parts = [part for each in classes for part in (each & some, each & ~some)]
            classes = [part for part in parts if part]
        return [
            (each, self._known(_Signal(cta, warp, each & -each, tick, knows))) for each in classes
        ]

    # ---- what is ordered

    def orders(self, first: Runs, second: Runs) -> Array:
        """Tell which accesses come before others of other CTAs, pair by pair."""
        parts = [slice(at, at + _MOST_PAIRS) for at in range(0, len(first), _MOST_PAIRS)]
        ordered = [self._orders(first.at(part), second.at(part)) for part in parts]
        return np.concatenate(ordered) if ordered else np.zeros(0, bool)

    def _orders(self, first: Runs, second: Runs) -> Array:
        start = np.maximum(first.start, second.start)
        last = np.minimum(first.end, second.end) - 1
        pair, known = self._asked(first, second, start, last)
        # Each of these must have learnt of a row that knows of the access.
        which, ctas, rows = self._told(first.ctas[pair], known)
        table, places = moments_of(self.logs, ctas, rows)
        chosen = pair[which]
        covered = covers(table, places, first.at(chosen), start[chosen], last[chosen])
        good = np.zeros(len(pair), bool)
        good[which[covered]] = True
        ordered = np.ones(len(first), bool)
        ordered[pair[~good]] = False
        if self.apart:
            # The releases of another cluster have the same numbers, and nobody here hears of them.
            ordered &= near(first, second, self.clusters)
        return ordered

    def _asked(self, first: Runs, second: Runs, start: Array, last: Array) -> tuple[Array, Array]:
        """List who makes the second accesses, sets of lanes: the pair, and what they know."""
        # What a flag tells does not order the flag itself.
        flags = (first.scope != 0) & (second.scope != 0)
        actor = second.ctas << _CTA_SHIFT | second.warp << _WARP_SHIFT | second.when - flags
        actor |= np.where(second.together, _TOGETHER, 0)
        actors, places = distinct(actor)
        known = [self._known_by_lanes(each) for each in actors.tolist()]
        counts = np.array([len(each) for each in known], np.int64)
        sets = np.array([lanes for each in known for lanes, _ in each], np.int64)
        kept = self.kept
        numbers = [kept.setdefault(learnt, len(kept)) for each in known for _, learnt in each]
        pair, asked = spread((np.cumsum(counts) - counts)[places], counts[places])
        needed = (sets[asked] & second.lanes(start, last)[pair]) != 0
        return pair[needed], np.array(numbers, np.int64)[asked[needed]]

    def _told(self, origins: Array, known: Array) -> tuple[Array, Array, Array]:
        """List the rows of CTAs that are part of what is known: whose, the CTA, and the row."""
        combined, places = distinct(known << _CTA_BITS | origins)
        kept, told = list(self.kept), list[list[int]]()
        asked: list[int] = combined.tolist()
        for each in asked:
            learnt, speakers = kept[each >> _CTA_BITS], self.speakers[each & _CTA_MASK].values()
            last = [(speaker, (learnt & speaker.releases).bit_length()) for speaker in speakers]
            told.append([speaker.rows[bits] for speaker, bits in last if bits])
        counts = np.array([len(each) for each in told], np.int64)
        rows = np.array([row for each in told for row in each], np.int64)
        which, chosen = spread((np.cumsum(counts) - counts)[places], counts[places])
        return which, origins[which], rows[chosen]


def near(one: Runs, two: Runs, clusters: Mapping[int, int]) -> Array:
    """Tell pairs of accesses by CTAs of one cluster."""
    homes = np.zeros(max(clusters) + 1, np.int64)
    homes[list(clusters)] = list(clusters.values())
    return homes[one.ctas] == homes[two.ctas]


def _in_order(logs: Mapping[int, Log], cut: int | None) -> Iterator[_Signal]:
    """Give the signals of all CTAs as they were made; what was repeated, at its first and last."""
    numbers = sorted(logs)
    words = np.concatenate([logs[cta].signals for cta in numbers]).astype(np.int64)
    ctas = np.repeat(np.array(numbers, np.int64), [len(logs[cta].signals) for cta in numbers])
    repeated = np.flatnonzero(words[:, 1] != words[:, 0])
    which = np.concatenate([np.arange(len(words)), repeated])
    when = np.concatenate([words[:, 0], words[repeated, 1]])
    chosen = np.lexsort((which, when))
    if cut is not None:
        chosen = chosen[when[chosen] >> 32 < cut]
    which = which[chosen]
    words, what = words[which], words[which, 4]
    columns = (
        ctas[which],
        what >> signals.WARP_SHIFT & 31,
        words[:, 3] >> 32 & _LOW,
        what >> signals.TICK_SHIFT,
        words[:, 5] & _LOW,
        words[:, 5] >> 32,
        what & 0xFF,
        what >> signals.SCOPE_SHIFT & 7,
        words[:, 2],
    )
    return map(_Signal, *(each.tolist() for each in columns))
