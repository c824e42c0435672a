"""What CTAs have kept of what they did to global memory, as it is read after the launch.

May import `isa`, `sim.engine` and the modules of `sim.check` below it. A CTA's lists are copied
when it ends, as its memory is needed again. Their entries are looked at as columns, those of many
CTAs at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from tilewright.isa.machine import WARP
from tilewright.sim.check import moments, regions, signals, state
from tilewright.sim.check.scattered import expanded

Array = np.ndarray
ALL_LANES = (1 << WARP) - 1


@dataclass(frozen=True)
class Log:
    """What a CTA has kept: entries of runs of bytes, signals, and rows of what was known.

    `cut` is the turn in which a table was full, -1 if none was.
    """

    entries: Array
    signals: Array
    moments: Array
    cut: int

    @cached_property
    def _listed(self) -> tuple[Array, Array]:
        """Give the runs, and the proxy fences among them."""
        entries = expanded(self.entries)
        fences = (entries[:, 2] & np.uint64(state.LOG_FENCE)) != 0
        return (entries[~fences], entries[fences]) if fences.any() else (entries, entries[:0])

    @property
    def runs(self) -> Array:
        return self._listed[0]

    @property
    def fences(self) -> Runs:
        """Give its proxy fences; the lanes are where runs begin."""
        words = self._listed[1]
        return Runs(words, np.zeros(len(words), np.int64))


def is_partial(logs: Mapping[int, Log]) -> bool:
    """Tell whether a CTA has had no room to keep all that it has done."""
    return any(log.cut >= 0 or len(log.entries) == state.LOG_ENTRIES for log in logs.values())


def moments_of(logs: Mapping[int, Log], ctas: Array, numbers: Array) -> tuple[Array, Array]:
    """Gather rows of what was known, by CTA and number: a table, and where in it each one is."""
    wanted, places = distinct(ctas << moments.NUMBER_BITS | numbers)
    table = np.empty((len(wanted), state.ROW), np.uint32)
    owners = wanted >> moments.NUMBER_BITS
    chosen = wanted & ((1 << moments.NUMBER_BITS) - 1)
    bounds = [*np.flatnonzero(np.diff(owners, prepend=-1)).tolist(), len(wanted)]
    for low, high in pairwise(bounds):
        table[low:high] = logs[int(owners[low])].moments[chosen[low:high]]
    return table, places


def distinct(values: Array) -> tuple[Array, Array]:
    """Sort values, each once, and tell where in that each one is."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.ones(len(values), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    places = np.empty(len(values), np.int64)
    places[order] = np.cumsum(first) - 1
    return ordered[first], places


def spread(firsts: Array, counts: Array) -> tuple[Array, Array]:
    """Number from each of some first numbers on, as far as it counts: whose, and the numbers."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(len(which))


# ---------------------------------------------------------------------------- columns


@dataclass(frozen=True)
class Runs:
    """Runs of bytes as columns: of one CTA, or of several in the order of their numbers."""

    words: Array
    ctas: Array

    @staticmethod
    def of(logs: Mapping[int, Log], numbers: Sequence[int]) -> Runs:
        words = [logs[index].runs for index in numbers]
        ctas = np.repeat(np.array(numbers, np.int64), [len(each) for each in words])
        return Runs(np.concatenate(words) if words else np.zeros((0, 4), np.uint64), ctas)

    def at(self, chosen: Array | slice) -> Runs:
        return Runs(self.words[chosen], self.ctas[chosen])

    def __len__(self) -> int:
        return len(self.words)

    def put_off(self, ticks: Array) -> Runs:
        """Give the runs as they were if they had been done later."""
        words = self.words.copy()
        words[:, 3] += (ticks - self.tick).astype(np.uint64)
        return Runs(words, self.ctas)

    @cached_property
    def start(self) -> Array:
        return self.words[:, 0].astype(np.int64)

    @cached_property
    def end(self) -> Array:
        return self.words[:, 1].astype(np.int64)

    @cached_property
    def _who(self) -> Array:
        return self.words[:, 2].astype(np.int64)

    @cached_property
    def _when(self) -> Array:
        return self.words[:, 3].astype(np.int64)

    @cached_property
    def actor(self) -> Array:
        """Tell lanes apart: who touches the same bytes, and is the same actor, is the same lane."""
        return self._who >> regions.WARP_SHIFT

    @cached_property
    def site(self) -> Array:
        return self._who & 0xFFFFFFFF

    @cached_property
    def wrote(self) -> Array:
        return (self._who & regions.WRITES) != 0

    @cached_property
    def read_only(self) -> Array:
        return (self._who & regions.READ_ONLY) != 0

    @cached_property
    def constant(self) -> Array:
        """Tell what stores a constant, the same one wherever the place is the same."""
        return (self._who & state.LOG_ALIKE) != 0

    @cached_property
    def scope(self) -> Array:
        return self._who >> regions.SCOPE_SHIFT & 7

    @cached_property
    def strong(self) -> Array:
        """Tell what is atomic for CTAs of any cluster."""
        return self.scope > signals.SCOPES["cluster"]

    @cached_property
    def warp(self) -> Array:
        return self._who >> regions.WARP_SHIFT & 31

    @cached_property
    def group(self) -> Array:
        return self._who >> regions.OWNER_SHIFT & 7

    @cached_property
    def owner(self) -> Array:
        return self.group * 32 + (self._who >> regions.SLOT_SHIFT & 31)

    @cached_property
    def step(self) -> Array:
        return self._who >> regions.STEP_SHIFT & 7

    @cached_property
    def together(self) -> Array:
        """Tell what several lanes have done together, all to all of the bytes."""
        return self.step == regions.MANY

    @cached_property
    def turn(self) -> Array:
        return self._when >> 32

    @cached_property
    def moment(self) -> Array:
        return self.when >> moments.TICK_BITS

    @cached_property
    def when(self) -> Array:
        """Give moment and tick together."""
        return self._when & 0xFFFFFFFF

    @cached_property
    def tick(self) -> Array:
        return self._when & ((1 << moments.TICK_BITS) - 1)

    @cached_property
    def known(self) -> Array:
        return self.moment != moments.UNKNOWN

    def lane(self, address: Array) -> Array:
        """Give the lanes that bytes are of; of several lanes the first."""
        phase = self._who >> regions.LANE_SHIFT & 31
        spread = (phase + (address >> self.step)) & 31
        return np.where(self.step < regions.ONE, spread, phase)

    def lanes(self, start: Array, last: Array) -> Array:
        """Give the lanes that the bytes of a run from one to another are of, as sets."""
        several = (last >> self.step) - (start >> self.step) + 1
        count = np.where(self.step < regions.ONE, np.minimum(several, WARP), 1)
        bits = ((np.int64(1) << count) - 1) << self.lane(start)
        return np.where(self.together, ALL_LANES, (bits | bits >> WARP) & ALL_LANES)
