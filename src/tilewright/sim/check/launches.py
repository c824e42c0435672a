"""Launches under the checker: what is kept of their CTAs, and what is found in the end.

May import everything up to `sim.engine` and the rest of `sim.check`. It is all of the checker that
launches know, and loaded only for those that are checked.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.ir.statements import Kernel
from tilewright.sim.check import apart, between, descriptors, keeping, raw, regions, rules, state
from tilewright.sim.check.hooks import Checker
from tilewright.sim.check.keeping import Keeper
from tilewright.sim.check.logs import is_partial
from tilewright.sim.check.raw import RawFinding
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine.module import Module
from tilewright.sim.options import Region

Grid = tuple[int, int, int]
Special = Mapping[str, np.ndarray]


def observer(module: Module, kernel: Kernel, *, interacts: bool) -> Checker:
    """Make what has a kernel's code watch itself."""
    return Checker(module, kernel, interacts=interacts)


@dataclass(frozen=True)
class KernelFacts:
    """What launches of a kernel ask about it, and the memory that past ones have left."""

    written: regions.Written
    claims: descriptors.Claims
    pairs: tuple[RawFinding, ...]
    keepers: list[Keeper] = field(default_factory=list[Keeper])


def facts(kernel: Kernel) -> KernelFacts:
    """Find what launches of a kernel ask."""
    pairs = tuple(rules.pairs(kernel))
    return KernelFacts(regions.written(kernel), descriptors.claims(kernel), pairs)


class Checking:
    """A launch that is checked; `found` has what CTAs have shown by their numbers."""

    def __init__(
        self,
        simulated: CompiledKernel,
        known: KernelFacts,
        touched: Sequence[Region],
        grid: Grid,
        cluster: Grid,
        *,
        threads: int,
        shared: int,
    ) -> None:
        self._simulated = simulated
        self._known = known
        self._grid = grid
        self._cluster = cluster
        watched = regions.watched(known.written, touched)
        self._watched = watched[: state.WATCHED]
        self._unwatched = len(watched) > state.WATCHED
        self._has_room = rules.has_room(simulated.target, threads, shared)
        self._lock = threading.Lock()
        self._keepers: list[Keeper] = []
        self._turn = 0  # of all that CTAs have taken which can see one another
        self.found: dict[int, list[RawFinding]] = {}

    def keeper(self) -> Keeper:
        """Give a thread what it keeps of its CTAs."""
        try:
            keeper = self._known.keepers.pop()
        except IndexError:
            keeper = Keeper()
        keeper.begin(self._simulated.code, self._watched, math.prod(self._grid))
        with self._lock:
            self._keepers.append(keeper)
        return keeper

    def number_turn(self, special: Special) -> None:
        """Number the turn that a CTA is about to take."""
        self._turn += 1
        state.take_turn(special["check"], self._turn)

    def judge(
        self, keeper: Keeper, special: Special, index: int, *, permit: bool, stuck: bool
    ) -> None:
        """Note what is found in a CTA, which has ended; it may have kept a permit, or be stuck."""
        sites = self._simulated.sites.sites
        found = raw.collect(special, index, sites, stuck=stuck)
        notes = state.notes(special["check"])
        uses = list(descriptors.judge(notes, index, sites, self._known.claims))
        if not uses:
            keeper.is_good(notes)
        if permit and self._has_room:
            found += rules.permit(special, index, sites)
        self.found[index] = found + uses

    def note_fault(self, special: Special, index: int) -> None:
        """Note what a fault that has ended a CTA may come of."""
        freed = raw.freed(special["check"], index, self._simulated.sites.sites)
        self.found[index] = [*self.found.get(index, ()), *freed]

    def noted(self, end: int, *, together: bool, failed: bool) -> list[RawFinding]:
        """List what is found in CTAs up to `end`, one by one, and between them.

        They may have run `together`, able to see one another, and one may have `failed`.
        """
        ended = [index for index in sorted(self.found) if index <= end]
        found = [each for index in ended for each in self.found[index]]
        if math.prod(self._cluster) % 2:
            found += self._known.pairs
        flags = 0
        for keeper in self._keepers:
            flags |= keeper.flags
        # What CTAs have signalled that a fault has stopped is not known.
        unknown = not self._keepers or (together and failed)
        if self._unwatched:
            self._warn("writes too many arguments")
        alone = unknown or keeping.are_apart(self._keepers)
        reads = bool(flags & apart.READ_ONLY)
        if alone and not reads and not flags & (keeping.PARTIAL | apart.AGAIN):
            return found
        kept = sorted(each for keeper in self._keepers for each in keeper.logs())
        logs = {index: log for index, log, _ in kept if index <= end}
        again = {index for index, _, twice in kept if twice}
        if is_partial(logs):
            self._warn("does too much")
        clusters = {index: self._cluster_of(index) for index in logs} if together else None
        return found + between.findings(
            logs,
            self._watched,
            self._simulated.sites.sites,
            clusters,
            apart=alone,
            again=again,
            read_only_loads=reads,
        )

    def give_back(self) -> None:
        """Leave the memory to other launches."""
        for keeper in self._keepers:
            keeper.forget()
        self._known.keepers.extend(self._keepers)
        self._keepers.clear()

    def _warn(self, why: str) -> None:
        name = self._simulated.kernel.name
        text = f"{name} {why} for the checker: global memory is watched in part only"
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _cluster_of(self, index: int) -> int:
        number, scale, rest = 0, 1, index
        for extent, size in zip(self._grid, self._cluster, strict=True):
            number += rest % extent // size * scale
            scale *= extent // size
            rest //= extent
        return number
