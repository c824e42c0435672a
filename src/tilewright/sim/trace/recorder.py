"""What a timeline is made of: the events of launches, kept as they come.

May import `sim.compiled`, `sim.options` and `sim.trace.events`.

    recorder = Recorder(ctas=[(0, 0, 0)])
    simulated.launch(arguments, regions, grid, output, recorder=recorder)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.trace import events

Grid = tuple[int, int, int]
LIMIT = 100_000


@dataclass(eq=False)
class Recorded:
    """What a CTA has done: its events, its time at the end, how many events are lost."""

    cta: Grid
    pieces: list[np.ndarray] = field(default_factory=list[np.ndarray])
    time: int = 0
    dropped: int = 0

    def take(self, buffer: np.ndarray) -> None:
        """Take events over from the CTA's buffer, and how far it has come."""
        self.pieces.append(events.take(buffer))
        self.time, self.dropped = events.ended(buffer)

    @property
    def count(self) -> int:
        """Count the events that are kept."""
        return sum(map(len, self.pieces))


@dataclass(eq=False)
class Recording:
    """A launch that is recorded: which of its CTAs, and how many events of each may be kept.

    CTAs that take turns have one time, which is `time` between their turns. `cluster` is how many
    CTAs there are in a cluster, along each axis.
    """

    simulated: CompiledKernel
    limit: int
    ctas: dict[int, Recorded]
    cluster: Grid = (1, 1, 1)
    time: int = 0

    def limit_of(self, index: int) -> int:
        """Tell how many events of a CTA are kept."""
        return self.limit if index in self.ctas else 0

    def take(self, index: int, buffer: np.ndarray) -> None:
        """Take over the events that a CTA has in its buffer, if it is recorded."""
        if index in self.ctas:
            self.ctas[index].take(buffer)

    def resume(self, index: int, buffer: np.ndarray) -> None:
        """Let a CTA that takes turns go on, if it is recorded."""
        if index in self.ctas:
            events.resume(buffer, self.time)

    def pause(self, index: int, buffer: np.ndarray) -> None:
        """End a turn of a CTA."""
        if index in self.ctas:
            self.ctas[index].take(buffer)
            self.time = events.pause(buffer)

    def forget_after(self, index: int) -> None:
        """Forget the CTAs of higher numbers."""
        for each in [each for each in self.ctas if each > index]:
            del self.ctas[each]


class Recorder:
    """Keeps the events of every launch that it is given to, `limit` of them in all.

    `ctas` are the coordinates of those that are recorded, as far as a launch has them.
    """

    def __init__(self, ctas: Iterable[Grid] = ((0, 0, 0),), limit: int = LIMIT) -> None:
        self.ctas = tuple(sorted(set(ctas), key=lambda each: each[::-1]))
        self.limit = limit
        self.recordings: list[Recording] = []
        self._lock = threading.Lock()

    def begin(self, simulated: CompiledKernel, grid: Grid, cluster: Grid = (1, 1, 1)) -> Recording:
        """Begin with a launch."""
        inside = [each for each in self.ctas if all(a < b for a, b in zip(each, grid, strict=True))]
        chosen = {x + grid[0] * (y + grid[1] * z): Recorded((x, y, z)) for x, y, z in inside}
        with self._lock:
            kept = sum(each.count for one in self.recordings for each in one.ctas.values())
            left = max(self.limit - kept, 0)
            # The same for each, however many run at a time.
            recording = Recording(simulated, left // max(len(chosen), 1), chosen, cluster)
            self.recordings.append(recording)
        return recording
