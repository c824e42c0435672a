"""A timeline: rows of slices, and arrows between them.

May import `base`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tilewright.base.locations import Location

# What a slice is: a turn of a warp, an instruction (that hands something to an agent, that is of
# barriers, any other), a wait, a wait that does not end, an operation in flight.
Kind = Literal["turn", "issue", "sync", "instruction", "wait", "stuck", "flight"]


@dataclass(eq=False)
class Slice:
    """A run of units of time, from `begin` to before `end`: an instruction, a wait, an operation.

    A wait takes the instruction in that ends it. `facts` are what else there is to know of it.
    """

    kind: Kind
    name: str
    begin: int
    end: int
    lanes: int = 0
    location: Location | None = None
    facts: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Arrow:
    """From a unit of one slice to a unit of another: "wake" ends a wait, "issue" hands over.

    The source may be of another CTA of the cluster.
    """

    kind: Literal["wake", "issue"]
    source: Slice
    at: int
    target: Slice
    to: int


@dataclass(frozen=True)
class Row:
    """Slices of a warp or of an agent: turns, and in them and beside them what does not overlap.

    What happens at the same time is in several rows of one title.
    """

    title: str
    slices: Sequence[Slice]


@dataclass(frozen=True)
class Timeline:
    """What a CTA did: rows, arrows, how long it took; how many events are not in it."""

    kernel: str
    cta: tuple[int, int, int]
    target: str
    schedule: str
    rows: Sequence[Row]
    arrows: Sequence[Arrow]
    end: int
    dropped: int


def packed(title: str, slices: Iterable[Slice]) -> list[Row]:
    """Put slices in as few rows as there must be, those of the same lanes in one if possible."""
    rows: list[list[Slice]] = []
    for each in sorted(slices, key=lambda one: (one.begin, -one.end)):
        free = [row for row in rows if row[-1].end <= each.begin]
        alike = [row for row in free if row[-1].lanes == each.lanes]
        if free:
            (alike or free)[0].append(each)
        else:
            rows.append([each])
    return [Row(title, row) for row in rows]


def with_turns(row: Row, turns: Iterable[Slice]) -> Row:
    """Add the turns of a warp to a row, but where somebody waits in it."""
    waits = [each for each in row.slices if each.kind in ("wait", "stuck")]
    pieces: list[Slice] = []
    for turn in turns:
        begin = turn.begin
        for wait in waits:
            if wait.begin < turn.end and wait.end > begin:
                if wait.begin > begin:
                    pieces.append(Slice("turn", turn.name, begin, wait.begin))
                begin = wait.end
        if begin < turn.end:
            pieces.append(Slice("turn", turn.name, begin, turn.end))
    # What encloses comes first.
    return Row(row.title, sorted([*pieces, *row.slices], key=lambda one: (one.begin, -one.end)))
