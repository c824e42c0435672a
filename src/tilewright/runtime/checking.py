"""Calls under the checker: what is asked of it, what it has found, who is told.

May import `base`, `sim` and the rest of `runtime`.

    checking = Checking(strict=True, allow=frozenset({"race"}))
    checking.judge(findings, "kernel")
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilewright.base.errors import CheckError
from tilewright.base.findings import Finding, merged
from tilewright.runtime.arguments import Memory
from tilewright.runtime.simulator import Simulator

Findings = tuple[Finding, ...]
# Gives what a run on a simulator has shown; whether it prints is the last argument.
Run = Callable[[Simulator, bool], Findings]


@dataclass(frozen=True)
class Checking:
    """What is asked of the checker.

    Findings of the kinds `allow` are not told. Errors are raised, warnings if `strict`. Beside its
    own schedule a call runs by "late", by "eager" and by the seeds 1 to `schedules`, if that is
    not 0. With `raises` they are raised even where a session collects them.
    """

    strict: bool = False
    allow: frozenset[str] = frozenset()
    schedules: int = 0
    raises: bool = False

    def told(self, findings: Iterable[Finding]) -> Findings:
        """Give the findings that are not allowed, each fault once, errors first."""
        return merged(each for each in findings if each.kind not in self.allow)

    def fails(self, findings: Sequence[Finding]) -> bool:
        """Tell whether findings are an error."""
        return any(self.strict or each.severity == "error" for each in findings)


def explored(simulator: Simulator, count: int) -> list[tuple[str, Simulator]]:
    """List a simulator by its own schedule, and by all others if `count` are to be explored."""
    own = simulator.options
    if not count:
        return [(_schedule_text(own.schedule, own.seed), simulator)]
    schedules = [("late", 0), ("eager", 0), *(("random", seed) for seed in range(1, count + 1))]
    this = (own.schedule, own.seed)
    others = [each for each in schedules if each != this]
    return [
        (_schedule_text(*this), simulator),
        *((_schedule_text(*each), simulator.by(*each)) for each in others),
    ]


def _schedule_text(schedule: str, seed: int) -> str:
    return f"{schedule}:{seed}" if schedule == "random" else schedule


def checked(
    run: Run, simulator: Simulator, schedules: int, written: Sequence[Memory]
) -> tuple[Findings, CheckError | None]:
    """Run a call under the checker; give what it found, and the fault that ended it, if one did.

    With `schedules`, it runs by other schedules before, on memory that is put back each time; of
    their findings those are added that its own schedule did not show.
    """
    (own, first), *others = explored(simulator, schedules)
    found: list[Finding] = []
    for name, other in others:
        with put_back(written):
            findings, _ = _run(run, other, prints=False)
            found += [replace(each, schedule=name) for each in findings]
    findings, fault = _run(run, first, prints=True)
    told: dict[object, Finding] = {}
    for each in [*(replace(each, schedule=own) for each in findings), *found]:
        told.setdefault(each.fault, each)
    return tuple(told.values()), fault


def _run(run: Run, simulator: Simulator, *, prints: bool) -> tuple[Findings, CheckError | None]:
    try:
        return run(simulator, prints), None
    except CheckError as fault:
        return fault.findings, fault


@contextmanager
def put_back(memories: Sequence[Memory]) -> Generator[None]:
    """Let what is written to memory meanwhile be undone at the end."""
    before = [ctypes.string_at(each.address, each.size) for each in memories]
    try:
        yield
    finally:
        for memory, data in zip(memories, before, strict=True):
            ctypes.memmove(memory.address, data, memory.size)
