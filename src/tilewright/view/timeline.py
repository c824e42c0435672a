"""A recorded timeline as one HTML file: it loads nothing, and opens from disk.

Imports `base`. What is drawn is read from the file that `Trace.save` and `run --trace` write;
the page itself, with the script that draws, is `timeline.html`.
"""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.base.errors import LaunchError

_TEMPLATE = Path(__file__).with_name("timeline.html")
_GENERATOR = "tilewright"
Event = Mapping[str, Any]


def timeline_page(text: str, name: str) -> str:
    """Draw a trace as an HTML page.

    `text` is the trace, in JSON; `name` is the page's title. Raises `LaunchError` (`bad-option`)
    for a text that is no trace of ours.
    """
    trace = _parsed(text, name)
    data = json.dumps(_page_data(trace), ensure_ascii=False, separators=(",", ":"))
    page = _TEMPLATE.read_text(encoding="utf-8")
    # Nothing in a script's text may end it.
    data = data.replace("<", "\\u003c")
    return page.replace("@TITLE@", html.escape(name), 1).replace("@DATA@", data, 1)


def _parsed(text: str, name: str) -> Mapping[str, Any]:
    try:
        trace = json.loads(text)
        if trace["otherData"]["generator"] == _GENERATOR:
            return trace
    except (ValueError, KeyError, TypeError):
        pass
    raise LaunchError(
        f"{name!r} is not a trace of this package",
        code="bad-option",
        expected="a file that `tilewright run --trace FILE` has written",
        hint="https://ui.perfetto.dev shows traces of others",
    )


@dataclass
class _Numbered:
    """Values, each kept once, and known by its number."""

    values: list[Any] = field(default_factory=list[Any])
    _known: dict[str, int] = field(default_factory=dict[str, int])

    def number(self, value: Any) -> int:
        key = json.dumps(value)
        if key not in self._known:
            self._known[key] = len(self.values)
            self.values.append(value)
        return self._known[key]


def _page_data(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the page's script draws."""
    names, facts = _Numbered(), _Numbered()
    by_process: defaultdict[int, list[Event]] = defaultdict(list)
    for event in trace["traceEvents"]:
        by_process[event["pid"]].append(event)
    processes = [_process(by_process[each], names, facts) for each in sorted(by_process)]
    return {
        "processes": processes,
        "names": names.values,
        "facts": facts.values,
        "incomplete": trace["otherData"].get("incomplete", ""),
    }


def _process(events: Sequence[Event], names: _Numbered, facts: _Numbered) -> dict[str, Any]:
    about = {event["name"]: event["args"] for event in events if event["ph"] == "M"}
    titles = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {thread: index for index, thread in enumerate(sorted(titles))}
    slices: list[list[list[Any]]] = [[] for _ in order]
    for event in events:
        if event["ph"] == "X":
            span = event["ts"], event["ts"] + event["dur"], event["cat"]
            numbers = names.number(event["name"]), facts.number(event["args"])
            slices[order[event["tid"]]].append([*span, *numbers])
    rows = [
        {"title": titles[thread], "agent": any(s[2] == "flight" for s in row), "slices": row}
        for thread, row in zip(order, slices, strict=True)
    ]
    return {
        "name": about["process_name"]["name"],
        "labels": about["process_labels"]["labels"],
        "end": max((each[1] for row in slices for each in row), default=0),
        "rows": rows,
        "arrows": _arrows(events, order, slices),
    }


def _arrows(
    events: Sequence[Event], order: Mapping[int, int], rows: Sequence[Sequence[Sequence[Any]]]
) -> list[list[Any]]:
    """Give the arrows by the numbers of their rows and slices; those from other CTAs are left."""
    ends: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in ("s", "f"):
            ends[event["id"]].append(event)
    slices = {
        (row, time): number
        for row, each in enumerate(rows)
        for number, (begin, end, kind, *_) in enumerate(each)
        if kind != "turn"
        for time in {begin, end - 1}
    }
    arrows: list[list[Any]] = []
    for pair in ends.values():
        if len(pair) < 2:
            continue
        places: list[Any] = []
        for event in sorted(pair, key=lambda each: each["ph"] == "f"):
            row, time = order[event["tid"]], event["ts"]
            places += [row, slices.get((row, time), -1), time]
        arrows.append([pair[0]["cat"], *places])
    return arrows
