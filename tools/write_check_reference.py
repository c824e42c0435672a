"""Write `docs/check-kinds.md` from the kinds of findings that the checker knows.

Run it by `python tools/write_check_reference.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright.sim.check.kinds import KINDS, Kind

PATH = Path(__file__).parent.parent / "docs" / "check-kinds.md"
_HEAD = """\
# Kinds of findings

What the [checker](checker.md) tells apart. The names do not change between versions: they are
`finding.kind`, the rule of a SARIF log, and what `allow` takes. This page is written from
`tilewright.sim.check.kinds` by `tools/write_check_reference.py`.
"""
_RESERVED = """\
Reserved

These are never found yet: their instructions are not supported."""


def text() -> str:
    """Lay the kinds out as Markdown: errors, warnings, and those of what is not there yet."""
    found = [each for each in KINDS if not each.reserved]
    sections = [
        _HEAD,
        _section("Errors", [each for each in found if each.severity == "error"]),
        _section("Warnings", [each for each in found if each.severity == "warning"]),
        _section(_RESERVED, [each for each in KINDS if each.reserved]),
    ]
    return "\n".join(sections)


def _section(title: str, kinds: Sequence[Kind]) -> str:
    rows = [f"| `{each.name}` | {each.title} | {each.effect} | {each.mend} |" for each in kinds]
    head = ["| kind | what is wrong | on a GPU | the usual mend |", "|---|---|---|---|"]
    return "\n".join([f"## {title}\n", *head, *rows]) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
