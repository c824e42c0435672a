"""A trace: the timelines of a program's launches, and how they are written to a file.

May import the rest of `sim.trace`. The file is of the trace event format (JSON) that
https://ui.perfetto.dev and chrome://tracing read: a process per CTA, a thread per row, complete
events (`X`) for slices, flow events (`s`, `f`) for arrows. A unit of time is written as 1 µs.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.base.locations import Location
from tilewright.sim.reports import lanes_text
from tilewright.sim.trace.reading import read
from tilewright.sim.trace.recorder import Recorder
from tilewright.sim.trace.timeline import Slice, Timeline

GENERATOR = "tilewright"
FORMAT = 1
_LINES = 12  # of source that are shown of one place
_TIME = (
    "logical: a unit, written as 1 µs, per instruction or access of a path and per step of an "
    "operation in flight, in the order of the simulation; it says nothing about speed"
)


@dataclass(frozen=True)
class Trace:
    """What happened in the launches of a program, as far as it was recorded.

    `timelines` has one for each CTA, launch after launch. `limit` is how many events were to be
    kept in all, `dropped` how many there were beyond it.
    """

    timelines: Sequence[Timeline]
    limit: int

    @property
    def dropped(self) -> int:
        """Count the events that were not kept."""
        return sum(each.dropped for each in self.timelines)

    def json(self) -> str:
        """Write it in the trace event format: the same bytes for the same schedule and seed."""
        places = {
            each: (process, thread)
            for process, shown in enumerate(self.timelines, 1)
            for thread, row in enumerate(shown.rows, 1)
            for each in row.slices
        }
        events = [
            event
            for number, each in enumerate(self.timelines, 1)
            for event in _events(number, each, places, len(self.timelines) > 1)
        ]
        about = {"generator": GENERATOR, "format": FORMAT, "time": _TIME}
        if self.dropped:
            about["incomplete"] = (
                f"the limit of {self.limit} events was reached: {self.dropped} are not here"
            )
        lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in events)
        head = json.dumps(about, ensure_ascii=False)
        return f'{{"displayTimeUnit":"ms","otherData":{head},"traceEvents":[\n{lines}\n]}}\n'

    def save(self, path: str | Path) -> None:
        """Write it to a file, which `tilewright view` and Perfetto show."""
        Path(path).write_text(self.json(), encoding="utf-8")


def trace_of(recorder: Recorder) -> Trace:
    """Make a trace of what has been recorded."""
    timelines = [each for recording in recorder.recordings for each in read(recording)]
    return Trace(timelines, recorder.limit)


def _events(
    process: int, shown: Timeline, places: Mapping[Slice, tuple[int, int]], numbered: bool
) -> Iterator[dict[str, Any]]:
    """Write a timeline; `places` are the processes and threads of slices, of others too."""
    title = f"{shown.kernel}, CTA {shown.cta}"
    labels = f"{shown.target}, schedule {shown.schedule}"
    yield _about(process, 0, "process_name", f"{process}: {title}" if numbered else title)
    yield _about(process, 0, "process_labels", labels)
    yield _about(process, 0, "process_sort_index", process)
    for thread, row in enumerate(shown.rows, 1):
        yield _about(process, thread, "thread_name", row.title)
        yield _about(process, thread, "thread_sort_index", thread)
        for each in row.slices:
            place = {"ph": "X", "pid": process, "tid": thread, "ts": each.begin}
            what = {"dur": each.end - each.begin, "cat": each.kind, "name": each.name}
            yield {**place, **what, "args": _arguments(each)}
    for number, arrow in enumerate(shown.arrows, 1):
        common = {"cat": arrow.kind, "name": arrow.kind, "id": f"{process}.{number}"}
        ends = (("s", arrow.source, arrow.at), ("f", arrow.target, arrow.to))
        for phase, end, time in ends:
            where, thread = places[end]
            place = {"ph": phase, "pid": where, "tid": thread, "ts": time}
            yield {**place, **common, **({"bp": "e"} if phase == "f" else {})}


def _about(process: int, thread: int, what: str, value: object) -> dict[str, Any]:
    """Name or place a process or a thread: `thread_sort_index` has the argument `sort_index`."""
    argument = what.partition("_")[2]
    place = {"ph": "M", "pid": process, "tid": thread, "name": what}
    return {**place, "args": {argument: value}}


def _arguments(shown: Slice) -> dict[str, str]:
    """Say what there is to know of a slice: where it stands first."""
    found: dict[str, str] = {}
    if shown.location is not None:
        found["at"] = f"{shown.location.file}:{shown.location.line}"
        found["source"] = _source(shown.location)
        for caller in shown.location.chain()[1:]:
            found.setdefault("called from", f"{caller.file}:{caller.line}")
    if shown.lanes:
        found["lanes"] = lanes_text(shown.lanes)
    return found | shown.facts


def _source(place: Location) -> str:
    """Read the lines of a place, as far as they are not too many."""
    end = min(max(place.end_line, place.line), place.line + _LINES - 1)
    lines = [replace(place, line=line).source_line() for line in range(place.line, end + 1)]
    return textwrap.dedent("\n".join(lines))
