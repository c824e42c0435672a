"""What the checker has found, as users are told of it.

Imports only `base.locations`. A text is the same for the same run, on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.base.locations import Location

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One fault of a program, however often it was met, and by however many CTAs.

    `kind` is a stable name, listed in `docs/check-kinds.md`. `location` is the guilty line, and
    `actor` says who did what there; `other_location` and `other_actor` are the other side, which
    is the later one where `other_is_later` is set. `memory` names the bytes that both touch, and
    the element of the user's tensor; `missing` says what the program lacks, `hint` the usual
    mend. `cta` has the coordinates of the first CTA that met it; `warp` and `lanes` (a mask) are
    those of the guilty line. It was met `count` times in all, by `ctas` CTAs of a launch, in
    `launches` launches; `schedule` is one by which it is met again.
    """

    kind: str
    severity: Severity
    message: str
    location: Location | None = None
    other_location: Location | None = None
    actor: str = ""
    other_actor: str = ""
    other_is_later: bool = False
    memory: str = ""
    missing: str = ""
    hint: str = ""
    notes: tuple[str, ...] = ()
    kernel: str = ""
    cta: tuple[int, int, int] = (0, 0, 0)
    warp: int = 0
    lanes: int = 0
    count: int = 1
    ctas: int = 1
    launches: int = 1
    schedule: str = ""

    @property
    def fault(self) -> tuple[object, ...]:
        """Tell faults apart: by their kind and by where they are, whichever side comes first."""
        here, there = self.location or self.actor, self.other_location or self.other_actor
        return self.kind, self.kernel, frozenset((here, there))

    def __str__(self) -> str:
        """Lay the finding out: the guilty line, the other one, who, where, what to do."""
        lines = [f"{self.severity}: {self.message} [{self.kind}]"]
        lines += self.location.shown() if self.location else []
        lines += self.other_location.shown(self.relation) if self.other_location else []
        lines += [f"  {label}: {text}" for label, text in self.facts() if text]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    @property
    def relation(self) -> str:
        """Say how the other side stands to the guilty line."""
        return "and then" if self.other_is_later else "after"

    def facts(self) -> tuple[tuple[str, str], ...]:
        """List what is told beside the lines, with its labels; what there is not is empty."""
        return (
            ("here", self.actor),
            ("there", self.other_actor),
            ("memory", self.memory),
            ("missing", self.missing),
            ("hint", self.hint),
            ("met", self.met()),
        )

    def met(self) -> str:
        """Say where the fault was met first, how often in all, and how to meet it again."""
        text = f"in {self.kernel}, CTA {self.cta}"
        if self.count > 1:
            text += f"; {self.count} times"
            text += f" in {self.ctas} CTAs" if self.ctas > 1 else ""
            text += f" in {self.launches} launches" if self.launches > 1 else ""
        return f"{text}; the schedule {self.schedule} shows it again" if self.schedule else text


def counted(findings: Sequence[Finding]) -> str:
    """Count findings in words, such as `1 error and 2 warnings`."""
    errors = sum(each.severity == "error" for each in findings)
    both = ((errors, "error"), (len(findings) - errors, "warning"))
    texts = [f"{count} {what}{'s' * (count != 1)}" for count, what in both if count]
    return " and ".join(texts) or "nothing"


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Tell one fault once: findings of one kind at one pair of places are one, and counted.

    Errors come first; else the order is kept.
    """
    found: dict[tuple[object, ...], Finding] = {}
    for each in findings:
        known = found.get(each.fault)
        found[each.fault] = each if known is None else _added(known, each)
    return tuple(sorted(found.values(), key=lambda each: each.severity))


def _added(first: Finding, again: Finding) -> Finding:
    return replace(
        first,
        count=first.count + again.count,
        ctas=max(first.ctas, again.ctas),
        launches=first.launches + again.launches,
    )
