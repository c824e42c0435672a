"""Proxy fences over global memory: who makes what threads wrote visible to asynchronous agents.

May import `isa`, `ir` and the modules of `sim.check` below it. A thread's write is seen through the
asynchronous proxy once that thread has executed a proxy fence, and whoever hands the access to an
agent knows of the fence (PTX ISA, "Proxies"). So the write is put off to the first fence after it:
there, too, it must come before what the agent does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from tilewright.base.spaces import Space
from tilewright.ir.statements import Instruct, Kernel
from tilewright.ir.visit import walk_statements
from tilewright.isa.declaration import Form, Order
from tilewright.isa.machine import WARP
from tilewright.sim.check import state
from tilewright.sim.check.logs import Array, Log, Runs

MISSING, MISPLACED = "missing-proxy-fence", "misplaced-proxy-fence"
_NEVER = -1
_AGENTS = [each >> 5 for each in (state.BULK_READS, state.BULK_WRITES, state.BARRIER_OWNER)]


def needs_fences(kernel: Kernel) -> bool:
    """Tell whether agents of the asynchronous proxy access global memory."""
    forms = (each.form for each in walk_statements(kernel.body) if isinstance(each, Instruct))
    return any(map(_accesses, forms))


def _accesses(form: Form) -> bool:
    if form.order.proxy != "async" or not form.time.agent:
        return False
    spaces = (Space.GLOBAL, Space.GENERIC)
    return any(each.access and each.space in spaces for each in form.operands)


def is_fence(order: Order) -> bool:
    """Tell whether a fence is one of the asynchronous proxy that covers global memory."""
    covers = not order.spaces or Space.GLOBAL in order.spaces
    return order.fence == "proxy" and order.proxy == "async" and covers


def concerns(one: Runs, two: Runs) -> Array:
    """Tell which pairs are a write by threads, and what an agent does."""
    return (one.group == 0) & one.wrote & np.isin(two.group, _AGENTS)


class Fences:
    """The proxy fences of CTAs."""

    def __init__(self, logs: Mapping[int, Log]) -> None:
        # Of each CTA and warp the fences in their order: the tick, and which lanes.
        self._of: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for cta, log in logs.items():
            fences = log.fences
            for warp, tick, lanes in zip(
                fences.warp.tolist(), fences.tick.tolist(), fences.start.tolist(), strict=True
            ):
                self._of[cta, warp].append((tick, lanes))

    def lacking(
        self, one: Runs, two: Runs, orders: Callable[[Runs, Runs], Array]
    ) -> list[tuple[int, str]]:
        """List the pairs that lack a fence, of a write and what comes after it; and their kinds.

        `orders` tells which accesses come before others, pair by pair.
        """
        start, last = np.maximum(one.start, two.start), np.minimum(one.end, two.end) - 1
        first = self._first(one, one.lanes(start, last))
        fenced = np.flatnonzero(first != _NEVER)
        seen = np.zeros(len(one), bool)
        seen[fenced] = orders(one.at(fenced).put_off(first[fenced]), two.at(fenced))
        return [(index, self._kind(one, two, index)) for index in np.flatnonzero(~seen).tolist()]

    def _first(self, runs: Runs, lanes: Array) -> Array:
        """Find the ticks at which lanes have executed a fence after what they did."""
        columns = np.stack([runs.ctas, runs.warp, lanes, runs.tick], axis=1)
        wanted, places = np.unique(columns, axis=0, return_inverse=True)
        found = [self._after(*each) for each in wanted.tolist()]
        return np.array(found, np.int64)[places.reshape(-1)]

    def _after(self, cta: int, warp: int, lanes: int, tick: int) -> int:
        fences, left = self._of[cta, warp], lanes
        for then, fencing in fences[bisect_left(fences, (tick, 0)) :]:
            left &= ~fencing
            if not left:
                return then
        return _NEVER

    def _kind(self, one: Runs, two: Runs, index: int) -> str:
        """Tell whether somebody else than who writes has executed a fence."""
        writer, reader = int(one.ctas[index]), int(two.ctas[index])
        after, before = int(one.tick[index]), int(two.tick[index])
        for warp in range(WARP):
            of_writer, of_reader = self._of[writer, warp], self._of[reader, warp]
            if writer == reader:
                some = any(after <= tick <= before for tick, _ in of_writer)
            else:
                some = any(after <= tick for tick, _ in of_writer)
                some = some or any(tick <= before for tick, _ in of_reader)
            if some:
                return MISPLACED
        return MISSING
