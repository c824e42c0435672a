"""Overlaps: which accesses to global memory touch the same bytes, and lack an order.

May import `base`, `sim.engine` and the modules of `sim.check` below it. After a launch the runs of
each CTA are held against one another by what its warps knew, and those of different CTAs: where
nothing can order CTAs, any overlap with a write is a race; where something can, `between.py` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.spaces import Space
from tilewright.isa.machine import WARP
from tilewright.sim.check import moments, regions, signals, state
from tilewright.sim.check.raw import OWNERS, RawFinding
from tilewright.sim.engine.sites import Site

Array = np.ndarray
_GRANULE = 16  # bytes that are looked at together at first
_PART_BYTES, _MOST_PARTS = 1 << 22, 16  # of memory for copies, and how many parts are kept
_MOST_EVENTS = 1 << 22  # pieces of runs that are held against one another at a time
ALL_LANES = (1 << WARP) - 1


@dataclass(frozen=True)
class Log:
    """What a CTA has kept: runs of bytes, signals, and rows of what was known.

    `cut` is the turn in which a table was full, -1 if none was.
    """

    runs: Array
    signals: Array
    moments: Array
    cut: int


class Shelf:
    """Memory for copies of tables, one after another; what a system gives anew costs far more."""

    def __init__(self) -> None:
        self.parts: list[Array] = []
        self.used = [0, 0]  # parts that are full, and bytes of the next one

    def copy(self, table: Array) -> Array:
        """Copy a table, for as long as nothing is cleared."""
        if table.nbytes > _PART_BYTES:
            return table.copy()
        number, start = self.used
        if start + table.nbytes > _PART_BYTES:
            number, start = number + 1, 0
        if number == len(self.parts):
            self.parts.append(np.empty(_PART_BYTES, np.uint8))
        self.used = [number, start + -(-table.nbytes // 64) * 64]
        kept = self.parts[number][start : start + table.nbytes].view(table.dtype)
        kept = kept.reshape(table.shape)
        kept[...] = table
        return kept

    def clear(self) -> None:
        """Let the memory be used again, and keep what is worth keeping."""
        del self.parts[_MOST_PARTS:]
        self.used = [0, 0]


def log_of(special: Mapping[str, Array], shelf: Shelf) -> Log:
    """Copy what a CTA has kept to a shelf."""
    memory = special["check"]

    def table(name: str, count: str, kind: str, words: int) -> Array:
        used = state.number_of(memory, count)
        return shelf.copy(special[name].view(kind).reshape(-1, words)[:used])

    return Log(
        runs=table("check_log", "log_count", "u8", state.LOG_WORDS),
        signals=table("check_signals", "signal_count", "u8", state.SIGNAL_WORDS),
        moments=table("check_moments", "moment_count", "u4", state.ROW),
        cut=state.number_of(memory, "cut") - 1,
    )


def is_partial(logs: Mapping[int, Log]) -> bool:
    """Tell whether a CTA has had no room to keep all that it has done."""
    return any(log.cut >= 0 or len(log.runs) == state.LOG_ENTRIES for log in logs.values())


@dataclass(frozen=True)
class Runs:
    """Runs of bytes as columns: of one CTA, or of several."""

    words: Array
    ctas: Array

    @staticmethod
    def of(logs: Mapping[int, Log], numbers: Sequence[int]) -> Runs:
        words = [logs[index].runs for index in numbers]
        ctas = np.repeat(np.array(numbers, np.int64), [len(each) for each in words])
        return Runs(np.concatenate(words) if words else np.zeros((0, 4), np.uint64), ctas)

    def at(self, chosen: Array) -> Runs:
        return Runs(self.words[chosen], self.ctas[chosen])

    def __len__(self) -> int:
        return len(self.words)

    @property
    def start(self) -> Array:
        return self.words[:, 0].astype(np.int64)

    @property
    def end(self) -> Array:
        return self.words[:, 1].astype(np.int64)

    def _field(self, shift: int, bits: int) -> Array:
        return (self.words[:, 2] >> np.uint64(shift) & np.uint64((1 << bits) - 1)).astype(np.int64)

    @property
    def site(self) -> Array:
        return self._field(0, 32)

    @property
    def wrote(self) -> Array:
        return (self.words[:, 2] & np.uint64(regions.WRITES)) != 0

    @property
    def read_only(self) -> Array:
        return (self.words[:, 2] & np.uint64(regions.READ_ONLY)) != 0

    @property
    def scope(self) -> Array:
        return self._field(regions.SCOPE_SHIFT, 3)

    @property
    def warp(self) -> Array:
        return self._field(regions.WARP_SHIFT, 5)

    @property
    def group(self) -> Array:
        return self._field(regions.OWNER_SHIFT, 3)

    @property
    def owner(self) -> Array:
        return self.group * 32 + self._field(regions.SLOT_SHIFT, 5)

    @property
    def step(self) -> Array:
        return self._field(regions.STEP_SHIFT, 3)

    @property
    def turn(self) -> Array:
        return (self.words[:, 3] >> np.uint64(32)).astype(np.int64)

    @property
    def moment(self) -> Array:
        low = self.words[:, 3] & np.uint64(0xFFFFFFFF)
        return (low >> np.uint64(moments.TICK_BITS)).astype(np.int64)

    @property
    def tick(self) -> Array:
        low = self.words[:, 3] & np.uint64((1 << moments.TICK_BITS) - 1)
        return low.astype(np.int64)

    @property
    def known(self) -> Array:
        return self.moment != moments.UNKNOWN

    def lane(self, address: Array) -> Array:
        """Give the lanes that bytes are of; of several lanes the first."""
        step, phase = self.step, self._field(regions.LANE_SHIFT, 5)
        spread = (phase + (address >> step)) & 31
        return np.where(step < regions.ONE, spread, phase)

    def lanes(self, start: Array, last: Array) -> Array:
        """Give the lanes that the bytes of a run from one to another are of, as sets."""
        step = self.step
        several = (last >> step) - (start >> step) + 1
        count = np.where(step < regions.ONE, np.minimum(several, WARP), 1)
        bits = ((np.int64(1) << count) - 1) << self.lane(start)
        return np.where(step == regions.MANY, ALL_LANES, (bits | bits >> WARP) & ALL_LANES)


# ---------------------------------------------------------------------------- findings


class Found:
    """Findings about global memory, one for all that is of one kind at one pair of places."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = sites
        self.kept: dict[tuple[object, ...], RawFinding] = {}

    def told(self) -> list[RawFinding]:
        """List them; what CTAs do to one another stands for the same inside each of them."""
        known = {key[2:] for key in self.kept if key[0] == "global-race"}
        found = self.kept.items()
        return [each for key, each in found if key[0] != "race" or key[2:] not in known]

    def enter(self, kind: str, runs: Runs, here: int, there: int) -> None:
        """Enter a pair of runs; the first one is where it is told."""
        one, two = runs.at(np.array([here])), runs.at(np.array([there]))
        numbers = int(one.site[0]), int(two.site[0])
        key = (kind, int(one.ctas[0]) if kind == "race" else -1, min(numbers), max(numbers))
        known = self.kept.get(key)
        if known is not None:
            self.kept[key] = replace(known, count=known.count + 1)
            return
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


def pairs(runs: Runs) -> tuple[Array, Array]:
    """Pair each access with the last write before, and with what was read since the one before.

    Atomic accesses are pairs of others only. Of bytes that are touched all too often the
    beginning is left out.
    """
    none = np.zeros(0, np.int64)
    points = np.unique(np.concatenate([runs.start, runs.end]))
    low, high = np.searchsorted(points, runs.start), np.searchsorted(points, runs.end)
    count = high - low
    if not len(runs) or count.sum() > _MOST_EVENTS:
        return none, none
    which = np.repeat(np.arange(len(runs)), count)
    piece = np.repeat(low - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
    wrote = runs.wrote
    touched = np.bincount(piece, minlength=len(points))
    written = np.bincount(piece, weights=wrote[which], minlength=len(points))
    useful = ((touched > 1) & (written > 0))[piece]
    which, piece = which[useful], piece[useful]
    if not len(which):
        return none, none
    order = np.lexsort((which, runs.turn[which], piece))
    which, piece = which[order], piece[order]
    strong = (runs.scope > signals.SCOPES["cluster"])[which]
    found = [
        _next_to(which, piece, chosen, others, backwards=backwards)
        for chosen, others, backwards in (
            (wrote[which] & ~strong, np.ones_like(strong), False),
            (wrote[which] & strong, ~strong, False),
            (wrote[which] & ~strong, ~wrote[which], True),
            (wrote[which] & strong, ~wrote[which] & ~strong, True),
        )
    ]
    earlier = np.concatenate([each[0] for each in found])
    later = np.concatenate([each[1] for each in found])
    key = np.unique(earlier * len(runs) + later)
    earlier, later = key // len(runs), key % len(runs)
    apart = earlier != later
    return earlier[apart], later[apart]


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


def covers(rows: Array, runs: Runs, start: Array, last: Array) -> Array:
    """Tell what rows of clocks know of accesses of their CTA; a row for each."""
    places = np.arange(len(runs))
    known = rows[places, runs.owner].astype(np.int64) >= runs.tick
    warp = np.where(runs.group == 0, runs.warp, 0)
    part = rows[places, state.PART_TICK + warp].astype(np.int64) >= runs.tick
    lanes = rows[places, state.PART_LANES + warp].astype(np.int64)
    many = runs.step == regions.MANY
    mine = many | ((runs.lanes(start, last) & ~lanes) == 0)
    return known | ((runs.group == 0) & part & mine & (lanes != 0))


# ---------------------------------------------------------------------------- inside a CTA


def inside(log: Log, runs: Runs, found: Found) -> None:
    """Find races of the warps of one CTA, and of the lanes of one warp."""
    runs = runs.at(runs.known & ~runs.read_only)
    earlier, later = pairs(runs)
    if not len(earlier):
        return
    one, two = runs.at(earlier), runs.at(later)
    start = np.maximum(one.start, two.start)
    last = np.minimum(one.end, two.end) - 1
    good = (one.scope != 0) & (two.scope != 0)
    threads = (one.group == 0) & (two.group == 0)
    own = one.warp == two.warp
    at_once = threads & own & (one.site == two.site) & (one.tick == two.tick)
    good |= at_once & one.wrote & two.wrote
    lanes = (one.lane(start) == two.lane(start)) & (one.lane(last) == two.lane(last))
    several = [each.step == regions.MANY for each in (one, two)]
    # What every thread stores at one place is taken to be the same.
    good |= threads & (one.site == two.site) & one.wrote & two.wrote & several[0] & several[1]
    # What all lanes have written each of them finds as it has written it.
    lanes &= ~several[0] & ~several[1]
    lanes |= several[0] & one.wrote & (several[1] | ~two.wrote)
    good |= (one.group == 0) & own & lanes
    good |= covers(log.moments[two.moment], one, start, last)
    good |= covers(log.moments[one.moment], two, start, last)
    for index in np.nonzero(~good)[0]:
        kind = "race" if threads[index] else "missing-wait"
        found.enter(kind, runs, int(later[index]), int(earlier[index]))


def crowded(runs: Runs) -> Array:
    """List the CTAs in which different lanes touch the same bytes, and somebody writes.

    What the same lanes do to the same bytes, as often as they like, is in order.
    """
    runs = runs.at(runs.known & ~runs.read_only)
    if len(runs) < 2 or not runs.wrote.any():
        return np.zeros(0, np.int64)
    actor = runs.words[:, 2] >> np.uint64(regions.WARP_SHIFT)
    order = np.lexsort((actor, runs.end, runs.start, runs.ctas))
    runs, actor = runs.at(order), actor[order]
    start, end, ctas = runs.start, runs.end, runs.ctas
    many = (runs.step == regions.MANY) | (runs.group != 0)
    again = (start[1:] == start[:-1]) & (end[1:] == end[:-1]) & (ctas[1:] == ctas[:-1])
    again &= (actor[1:] == actor[:-1]) & ~many[1:]
    first = np.append(True, ~again)
    start, end, ctas = start[first], end[first], ctas[first]
    # As ranks, so that those of each CTA come after all of the one before.
    points = np.unique(np.concatenate([start, end]))
    base = np.searchsorted(np.unique(ctas), ctas) * (len(points) + 1)
    low: Array = np.searchsorted(points, start) + base
    high: Array = np.maximum.accumulate(np.searchsorted(points, end) + base)
    return np.unique(ctas[1:][low[1:] < high[:-1]])


# ---------------------------------------------------------------------------- CTAs in no order


def unordered(runs: Runs, found: Found) -> None:
    """Find the bytes that CTAs touch which cannot be ordered, one of them writing."""
    runs = runs.at(~runs.read_only)
    if len(runs) < 2:
        return
    order = np.lexsort((runs.ctas, runs.start))
    _sweep(runs.at(order), found)


def shared(runs: Runs, bounds: Sequence[tuple[int, int]]) -> Array:
    """Tell the runs that touch a granule which one CTA writes and another one touches."""
    chosen = np.zeros(len(runs), bool)
    for low, high in bounds:
        inside = np.nonzero((runs.start >= low) & (runs.start < high))[0]
        size = (high - low) // _GRANULE + 2
        writer, other = np.full(size, -1, np.int64), np.zeros(size, bool)
        for writes in (True, False):
            some = inside[runs.wrote[inside] == writes]
            which, granules = _granules(runs.at(some), low, high)
            ctas = runs.ctas[some][which]
            if writes:
                writer[granules] = ctas
            other[granules[(writer[granules] >= 0) & (writer[granules] != ctas)]] = True
        which, granules = _granules(runs.at(inside), low, high)
        chosen[inside[which[other[granules]]]] = True
    return chosen


def _granules(runs: Runs, low: int, high: int) -> tuple[Array, Array]:
    """Number all granules of an allocation that runs touch; a fault may lead beyond its end."""
    first = (runs.start - low) // _GRANULE
    count = (np.minimum(runs.end, high) - 1 - low) // _GRANULE - first + 1
    starts = np.cumsum(count) - count
    which = np.repeat(np.arange(len(runs)), count)
    return which, np.repeat(first - starts, count) + np.arange(int(count.sum()))


def _sweep(runs: Runs, found: Found) -> None:
    """Hold each run against the write that reaches furthest before it, and all against writes."""
    start, end, ctas, wrote = runs.start, runs.end, runs.ctas, runs.wrote
    for writers, others in ((wrote, np.ones_like(wrote)), (np.ones_like(wrote), wrote)):
        # Of the runs before each, the one of `writers` that ends last, of one CTA and of another.
        reach = np.where(writers, end, 0)
        furthest = np.maximum.accumulate(reach)
        before = np.maximum.accumulate(np.where(reach == furthest, np.arange(len(runs)), 0))
        last = np.concatenate([[0], before[:-1]])
        meets = others & (furthest[last] > start) & writers[last]
        meets[0] = False
        for index in np.nonzero(meets & (ctas[last] != ctas))[0]:
            _enter(runs, int(index), int(last[index]), found)
        # Where that one is of the same CTA, another of those that overlap may not be.
        for index in np.nonzero(meets & (ctas[last] == ctas))[0]:
            for back in range(int(index) - 1, max(int(index) - 64, -1), -1):
                alike = ctas[back] == ctas[index] or not writers[back]
                if not alike and end[back] > start[index]:
                    _enter(runs, int(index), back, found)
                    break


def _enter(runs: Runs, one: int, two: int, found: Found) -> None:
    """Enter a race of two runs: at the CTA of the higher number, after that of the lower."""
    here, there = sorted((one, two), key=lambda index: (-int(runs.ctas[index]), index))
    found.enter("global-race", runs, here, there)
