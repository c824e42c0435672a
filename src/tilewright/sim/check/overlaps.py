"""Overlaps: which accesses to global memory touch the same bytes, and lack an order.

May import `base`, `sim.engine` and the modules of `sim.check` below it. After a launch the runs of
each CTA are held against one another by what its warps knew, and those of different CTAs: where
nothing can order CTAs, any overlap with a write is a race; where something can, `between.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.base.spaces import Space
from tilewright.sim.check import state
from tilewright.sim.check.logs import Array, Log, Runs, distinct, moments_of, spread
from tilewright.sim.check.proxies import MISPLACED, MISSING, Fences, concerns
from tilewright.sim.check.raw import OWNERS, RawFinding
from tilewright.sim.engine.sites import Site

_GRANULE = 16  # bytes that are looked at together at first
_MOST_EVENTS = 1 << 22  # pieces of runs that are held against one another at a time
_MOST_RUNS = 1 << 16  # of several CTAs that are looked at together


# ---------------------------------------------------------------------------- findings


class Found:
    """Findings about global memory, one for all that is of one kind at one pair of places."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = sites
        self.kept: dict[tuple[object, ...], RawFinding] = {}

    def told(self) -> list[RawFinding]:
        """List them; what CTAs do to one another stands for the same inside each of them.

        Where some who write have a fence too early, or somebody else has, that is told of all.
        """
        stand = {"race": "global-race", MISSING: MISPLACED}
        places = {(key[0], *key[2:]) for key in self.kept}
        found = self.kept.items()
        return [each for key, each in found if (stand.get(each.kind), *key[2:]) not in places]

    def enter(self, kind: str, runs: Runs, here: int, there: int) -> None:
        """Enter a pair of runs; the first one is where it is told."""
        numbers = int(runs.site[here]), int(runs.site[there])
        key = (kind, int(runs.ctas[here]) if kind == "race" else -1, min(numbers), max(numbers))
        known = self.kept.get(key)
        if known is not None:
            self.kept[key] = replace(known, count=known.count + 1)
            return
        one, two = runs.at(np.array([here])), runs.at(np.array([there]))
        start = np.maximum(one.start, two.start)
        size = np.minimum(one.end, two.end) - start
        self.kept[key] = RawFinding(
            kind=kind,
            cta=int(one.ctas[0]),
            site=self.sites[numbers[0]],
            other=self.sites[numbers[1]],
            owner=OWNERS[int(one.group[0])],
            other_owner=OWNERS[int(two.group[0])],
            warp=int(one.warp[0]),
            lanes=1 << int(one.lane(start)[0]),
            other_warp=int(two.warp[0]),
            other_lanes=1 << int(two.lane(start)[0]),
            space=Space.GLOBAL,
            address=int(start[0]),
            size=int(size[0]),
            count=1,
        )


def read_only(runs: Runs, found: Found) -> None:
    """Find what is read as read-only that the launch writes, before or after."""
    reads = np.nonzero(runs.read_only)[0]
    if not len(reads):
        return
    writes = np.nonzero(runs.wrote)[0]
    order = writes[np.argsort(runs.start[writes], kind="stable")]
    starts, ends = runs.start[order], np.maximum.accumulate(runs.end[order])
    counts: Array = np.searchsorted(starts, runs.end)
    for index in reads:
        before = int(counts[index])
        if not before or ends[before - 1] <= runs.start[index]:
            continue
        meets = order[:before][runs.end[order[:before]] > runs.start[index]]
        found.enter("read-only-load", runs, int(index), int(meets[0]))


# ---------------------------------------------------------------------------- pairs


def pairs(runs: Runs, who: Array, base: Array | None = None) -> tuple[Array, Array] | None:
    """Pair each access with the last write before, and with what was read since the one before.

    What one alone touches is left out: `who` numbers them. What is added to addresses, `base`,
    keeps runs apart. Atomic accesses are pairs of others only. Gives nothing where bytes are
    touched all too often.
    """
    none = np.zeros(0, np.int64)
    strong = runs.strong
    if strong.all() or not runs.wrote.any():
        return none, none
    start, end = (runs.start, runs.end) if base is None else (runs.start + base, runs.end + base)
    points, places = distinct(np.concatenate([start, end]))
    low, high = places[: len(runs)], places[len(runs) :]
    count = np.maximum(high - low, 0)
    if count.sum() > _MOST_EVENTS:
        return None
    which, piece = spread(low, count)
    useful = _marked(piece[runs.wrote[which]], len(points))
    useful &= _marked(piece[~strong[which]], len(points))
    useful &= _marked(_met(piece, who[which], len(points)), len(points))
    chosen = np.flatnonzero(useful[piece])
    if not len(chosen):
        return none, none
    which, piece = which[chosen], piece[chosen]
    order = np.lexsort((runs.turn[which], piece))
    which, piece = which[order], piece[order]
    wrote, strong = runs.wrote[which], strong[which]
    sides = [(wrote & ~strong, np.ones_like(strong), False), (wrote & ~strong, ~wrote, True)]
    if strong.any():
        sides += [(wrote & strong, ~strong, False), (wrote & strong, ~wrote & ~strong, True)]
    found = [_next_to(which, piece, one, others, backwards=back) for one, others, back in sides]
    earlier, later = (np.concatenate([each[side] for each in found]) for side in range(2))
    key = distinct(earlier * len(runs) + later)[0]
    earlier, later = key // len(runs), key % len(runs)
    apart = earlier != later
    return earlier[apart], later[apart]


def _marked(places: Array, count: int) -> Array:
    marks = np.zeros(count, bool)
    marks[places] = True
    return marks


def _met(places: Array, who: Array, count: int) -> Array:
    """List places of which not all are the same one's: enough of them to have each."""
    last = np.empty(count, np.int64)
    last[places] = who
    return places[last[places] != who]


def _next_to(
    which: Array, piece: Array, chosen: Array, others: Array, *, backwards: bool
) -> tuple[Array, Array]:
    """Pair others with the chosen access next to them in time, to the same piece."""
    places = np.arange(len(which))
    if backwards:
        near = np.where(chosen, places, len(which))
        near = np.minimum.accumulate(near[::-1])[::-1]
        near = np.append(near[1:], len(which))
    else:
        near = np.maximum.accumulate(np.where(chosen, places, -1))
        near = np.concatenate([[-1], near[:-1]])
    good = others & (near >= 0) & (near < len(which))
    good[good] = piece[near[good]] == piece[good]
    here, there = which[good], which[near[good]]
    return (here, there) if backwards else (there, here)


def same_value(one: Runs, two: Runs) -> Array:
    """Tell pairs that store the same constant, at one place of the kernel."""
    return one.constant & two.constant & (one.site == two.site)


def covers(table: Array, places: Array, runs: Runs, start: Array, last: Array) -> Array:
    """Tell what rows of clocks know of accesses of their CTA; a place in the table for each."""
    known = table[places, runs.owner] >= runs.tick
    if known.all():
        return known
    warps = runs.group == 0
    warp = np.where(warps, runs.warp, 0)
    part = table[places, state.PART_TICK + warp] >= runs.tick
    lanes = table[places, state.PART_LANES + warp].astype(np.int64)
    mine = runs.together | ((runs.lanes(start, last) & ~lanes) == 0)
    return known | (warps & part & mine & (lanes != 0))


# ---------------------------------------------------------------------------- inside a CTA


def inside(logs: Mapping[int, Log], numbers: Sequence[int], found: Found) -> None:
    """Find races of the warps of a CTA, and of the lanes of a warp."""
    for some in _batches(logs, numbers):
        if not _inside(logs, some, found):
            for index in some:
                _inside(logs, [index], found)


def _batches(logs: Mapping[int, Log], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Put CTAs together that have done little each."""
    some: list[int] = []
    count = 0
    for index in numbers:
        more = len(logs[index].runs)
        if some and count + more > _MOST_RUNS:
            yield some
            some, count = [], 0
        some.append(index)
        count += more + 1
    if some:
        yield some


def _inside(logs: Mapping[int, Log], numbers: Sequence[int], found: Found) -> bool:
    """Find races inside each of some CTAs; tell whether they have not done too much for that."""
    runs = Runs.of(logs, numbers)
    runs = runs.at(runs.known & ~runs.read_only)
    if len(runs) < 2:
        return True
    # What the same lanes do to the same bytes, as often as they like, is in order. Others that
    # touch bytes all together, and agents, may be of any lane.
    several = runs.together | (runs.group != 0)
    who = np.where(several, -1 - np.arange(len(runs)), runs.actor)
    first = runs.start.min()
    span = runs.end.max() - first + 1
    chosen = pairs(runs, who, np.searchsorted(numbers, runs.ctas) * span - first)
    if chosen is None:
        return False
    earlier, later = chosen
    one, two = runs.at(earlier), runs.at(later)
    start = np.maximum(one.start, two.start)
    last = np.minimum(one.end, two.end) - 1
    good = (one.scope != 0) & (two.scope != 0)
    threads = (one.group == 0) & (two.group == 0)
    own = one.warp == two.warp
    at_once = threads & own & (one.site == two.site) & (one.tick == two.tick)
    good |= at_once & one.wrote & two.wrote
    lanes = (one.lane(start) == two.lane(start)) & (one.lane(last) == two.lane(last))
    # What every thread stores at one place is taken to be the same.
    all_alike = threads & (one.site == two.site) & one.wrote & two.wrote
    good |= (all_alike & one.together & two.together) | same_value(one, two)
    # What all lanes have written each of them finds as it has written it.
    lanes &= ~one.together & ~two.together
    lanes |= one.together & one.wrote & (two.together | ~two.wrote)
    good |= (one.group == 0) & own & lanes
    rest = np.flatnonzero(~good)
    _unfenced(logs, runs, earlier, later, found)
    if not len(rest):
        return True
    one, two, start, last = one.at(rest), two.at(rest), start[rest], last[rest]
    ctas, when = (np.concatenate([one.ctas, two.ctas]), np.concatenate([one.moment, two.moment]))
    table, places = moments_of(logs, ctas, when)
    before = covers(table, places[len(rest) :], one, start, last)
    for index in rest[~(before | covers(table, places[: len(rest)], two, start, last))].tolist():
        kind = "race" if threads[index] else "missing-wait"
        found.enter(kind, runs, int(later[index]), int(earlier[index]))
    return True


def _unfenced(
    logs: Mapping[int, Log], runs: Runs, earlier: Array, later: Array, found: Found
) -> None:
    """Find what threads write and an agent of their CTA accesses, without a proxy fence."""
    through = concerns(runs.at(earlier), runs.at(later))
    earlier, later = earlier[through], later[through]
    if not len(earlier):
        return

    def orders(first: Runs, second: Runs) -> Array:
        start, last = np.maximum(first.start, second.start), np.minimum(first.end, second.end) - 1
        table, places = moments_of(logs, second.ctas, second.moment)
        own = (first.warp == second.warp) & (first.tick <= second.tick)
        own &= first.lanes(start, last) == second.lanes(start, last)
        return own | covers(table, places, first, start, last)

    chosen = np.flatnonzero(orders(runs.at(earlier), runs.at(later)))
    earlier, later = earlier[chosen], later[chosen]
    one, two = runs.at(earlier), runs.at(later)
    for index, kind in Fences(logs).lacking(one, two, orders):
        found.enter(kind, runs, int(later[index]), int(earlier[index]))


# ---------------------------------------------------------------------------- CTAs in no order


def unordered(runs: Runs, found: Found) -> None:
    """Find the bytes that CTAs touch which cannot be ordered, one of them writing."""
    runs = runs.at(~runs.read_only)
    if len(runs) < 2:
        return
    # What a CTA does at one place of the kernel again and again counts once.
    alike = np.stack([runs.start, runs.end, runs.ctas, runs.site << 1 | runs.wrote], axis=1)
    order = np.lexsort(alike.T[::-1])
    news = (alike[order[1:]] != alike[order[:-1]]).any(axis=1)
    runs = runs.at(order[np.append(True, news)])
    _sweep(runs.at(np.lexsort((runs.ctas, runs.start))), found)


def shared(runs: Runs, bounds: Sequence[tuple[int, int]]) -> Array:
    """Tell the runs that touch a granule which one CTA writes and another one touches.

    Where all that is done to a granule is atomic for all CTAs, it is of no account.
    """
    lows, highs = np.array(bounds, np.int64).T
    sizes = (highs - lows) // _GRANULE + 2
    firsts = np.cumsum(sizes) - sizes
    region = np.maximum(np.searchsorted(lows, runs.start, side="right") - 1, 0)
    low, high = lows[region], highs[region]
    # A fault may lead to what lies before or beyond.
    inside = (runs.start >= low) & (runs.start < high)
    first = (runs.start - low) // _GRANULE
    count = (np.minimum(runs.end, high) - 1 - low) // _GRANULE - first + 1
    count = np.where(inside, np.maximum(count, 0), 0)
    which, granule = spread(first + firsts[region], count)
    everywhere = int(sizes.sum())
    writes = runs.wrote[which]
    writer = np.zeros(everywhere, np.int64)
    writer[granule[writes]] = runs.ctas[which[writes]] + 1
    before = writer[granule]
    met = _marked(granule[(before != 0) & (before != runs.ctas[which] + 1)], everywhere)
    met &= _marked(granule[~runs.strong[which]], everywhere)
    return _marked(which[met[granule]], len(runs))


def _sweep(runs: Runs, found: Found) -> None:
    """Hold each run against the write that reaches furthest before it, and all against writes."""
    wrote, ctas = runs.wrote, runs.ctas
    everyone = np.ones_like(wrote)
    for writers, others in ((wrote, everyone), (everyone, wrote)):
        last = _reaching(runs, writers, others)
        met = np.flatnonzero(last >= 0)
        good = (ctas[last[met]] == ctas[met]) | same_value(runs.at(last[met]), runs.at(met))
        # Where that one does no harm, another of those that overlap may.
        rest = np.zeros_like(wrote)
        rest[met[good]] = True
        chosen = np.where(rest, _reaching_of_others(runs, writers, rest), last)
        for index in np.flatnonzero(chosen >= 0).tolist():
            _enter(runs, index, int(chosen[index]), found)


def _reaching(runs: Runs, writers: Array, others: Array) -> Array:
    """Give, for each of `others`, that of `writers` before it which ends last, if it overlaps.

    It is -1 where none does.
    """
    places = np.arange(len(runs))
    reach = np.where(writers, runs.end, 0)
    furthest = np.maximum.accumulate(reach)
    before = np.maximum.accumulate(np.where(writers & (reach == furthest), places, -1))
    last = np.concatenate([[-1], before[:-1]])
    return np.where(others & (last >= 0) & (runs.end[last] > runs.start), last, -1)


def _reaching_of_others(runs: Runs, writers: Array, others: Array) -> Array:
    """Give, for each of `others`, a writer before it that overlaps and does harm, or -1.

    That is one of another CTA, unless both store the same constant, at one place of the kernel.
    """
    constant, site = runs.constant, runs.site
    kinds = [(writers & ~constant, others), (writers & constant, others & ~constant)]
    for each in np.unique(site[writers & constant]):
        here = constant & (site == each)
        kinds.append((writers & constant & ~here, others & here))
    found = np.full(len(runs), -1)
    for some, held in kinds:
        if not held.any() or not some.any():
            continue
        # Numbers of two CTAs differ in some bit.
        for bit in range(int(runs.ctas.max()).bit_length()):
            is_set = (runs.ctas >> bit & 1) != 0
            for one, other in ((is_set, ~is_set), (~is_set, is_set)):
                found = np.maximum(found, _reaching(runs, some & one, held & other))
    return found


def _enter(runs: Runs, one: int, two: int, found: Found) -> None:
    """Enter a race of two runs: at the CTA of the higher number, after that of the lower."""
    here, there = sorted((one, two), key=lambda index: (-int(runs.ctas[index]), index))
    found.enter("global-race", runs, here, there)
