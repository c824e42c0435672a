"""Write `docs/check-kinds.md` from the kinds of findings that the checker knows.

Run it by `python tools/write_check_reference.py`.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.sim.check.kinds import KINDS

PATH = Path(__file__).parent.parent / "docs" / "check-kinds.md"
_HEAD = """\
# Kinds of findings

What the [checker](checker.md) tells apart. The names do not change between versions: they are
`finding.kind`, the rule of a SARIF log, and what `allow` takes. This page is written from
`tilewright.sim.check.kinds` by `tools/write_check_reference.py`.
"""


def text() -> str:
    """Lay the kinds out as Markdown: errors, then warnings, each with its usual mend."""
    sections = [_HEAD]
    for severity in ("error", "warning"):
        rows = [
            f"| `{each.name}` | {each.title} | {each.effect} | {each.mend} |"
            for each in KINDS
            if each.severity == severity
        ]
        head = ["| kind | what is wrong | on a GPU | the usual mend |", "|---|---|---|---|"]
        sections.append("\n".join([f"## {severity.capitalize()}s\n", *head, *rows]) + "\n")
    return "\n".join(sections)


if __name__ == "__main__":
    PATH.write_text(text())
