"""Run kernels under the checker, and say what it finds by the lines of the source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright
from tilewright.base.locations import Location

SCHEDULES = ("late", "eager", "random:1", "random:2", "random:3")
Found = list[tuple[str, str, str]]


def found(kernel: Any, *arrays: Any, target: str = "sm_100a", **options: Any) -> Found:
    """Give the kinds of findings, with the lines of both sides."""
    executable = tilewright.compile(kernel, target=target, backend="sim", check="strict", **options)
    try:
        executable(*arrays)
    except tilewright.CheckError as error:
        assert not isinstance(error.__cause__, tilewright.SimulationError), error.__cause__
        return [
            (each.kind, _line(each.location), _line(each.other_location)) for each in error.findings
        ]
    return []


def _line(location: Location | None) -> str:
    return "" if location is None else location.source_line().strip()


def expect(
    make: Callable[..., Any],
    fault: dict[str, Any],
    kind: str,
    here: str,
    there: str,
    *arrays: Any,
    target: str = "sm_100a",
) -> None:
    """Expect nothing of a correct kernel, and one finding of its faulty sibling.

    Whichever side comes first, `here` and `there` are in the lines; under every schedule.
    """
    for schedule in SCHEDULES:
        copies = [np.copy(each) for each in arrays]
        assert found(make(), *copies, target=target, schedule=schedule) == [], schedule
    for schedule in SCHEDULES:
        copies = [np.copy(each) for each in arrays]
        faults = found(make(**fault), *copies, target=target, schedule=schedule)
        assert [each[0] for each in faults] == [kind], (schedule, faults)
        lines = faults[0][1:]
        assert any(here in a and there in b for a, b in (lines, lines[::-1])), (schedule, lines)
