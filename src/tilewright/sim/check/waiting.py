"""What the checker knows of a deadlock: who has arrived where somebody waits, and who has before.

May import `sim.engine` and `sim.check.state`. It is read out of the memory of a CTA that is stuck.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.sim.check import state


@dataclass(frozen=True)
class Came:
    """Lanes of a warp that have arrived at a barrier, or an mbarrier, from the place of a number.

    They have in the present turn or phase, or in one before: then they have not come again.
    """

    warp: int
    lanes: int
    site: int
    now: bool


def at_mbarrier(memory: np.ndarray, address: int) -> tuple[Came, ...]:
    """List who has arrived at an mbarrier, or had an agent do so."""
    place = _slot(memory, address)
    return () if place is None else tuple(_came(memory, place))


def _came(memory: np.ndarray, place: int) -> Iterator[Came]:
    names = ("came_tick", "came_lanes", "came_site")
    ticks, lanes, sites = (_of_warps(memory, name, place) for name in names)
    ended = state.numbers(memory, "slot_ended")[place]
    for warp in np.flatnonzero(ticks):
        now = bool(ticks[warp] >= ended)
        yield Came(int(warp), int(lanes[warp]), int(sites[warp]), now)


def at_barrier(memory: np.ndarray, barrier: int, generation: int) -> tuple[Came, ...]:
    """List which warps have come to a barrier of the CTA, which has completed so many times."""
    turns, sites = (_of_warps(memory, name, barrier) for name in ("come_turn", "come_site"))
    return tuple(
        Came(int(warp), 0, int(sites[warp]), bool(turns[warp] == generation + 1))
        for warp in np.flatnonzero(turns)
    )


def is_overtaken(memory: np.ndarray, warp: int, address: int) -> bool:
    """Tell whether a warp waits at an mbarrier without knowing that its last phase has ended.

    What it waits for may have been that one's end, or the one before.
    """
    place = _slot(memory, address)
    if place is None or state.number_of(memory, "loose"):
        return False
    ended = _row(memory, "slot_row", 2 * place + 1)
    rows = [_row(memory, "warp_row", warp)]
    if state.numbers(memory, "ahead_lanes")[warp]:
        rows.append(_row(memory, "ahead_row", warp))
    return not any(_covers(row, ended, warp) for row in rows)


def _covers(row: np.ndarray, other: np.ndarray, warp: int) -> bool:
    """Tell whether a row knows what another one knows, but of what a warp does itself."""
    lacking = (row < other).reshape(-1, state.WARPS)
    lacking[: state.BARRIER_OWNER // state.WARPS, warp] = False
    return not lacking.any()


def _slot(memory: np.ndarray, address: int) -> int | None:
    """Number an mbarrier whose clocks are its own."""
    count = state.number_of(memory, "slot_count")
    if count > state.SLOTS:
        return None
    (found,) = np.nonzero(state.numbers(memory, "slot_address")[:count] == address)
    return int(found[0]) if len(found) else None


def _of_warps(memory: np.ndarray, name: str, place: int) -> np.ndarray:
    return state.numbers(memory, name)[place * state.WARPS :][: state.WARPS]


def _row(memory: np.ndarray, name: str, index: int) -> np.ndarray:
    return state.numbers(memory, name)[index * state.ROW :][: state.OWNERS]
