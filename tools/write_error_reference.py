"""Write `docs/errors.md` from the table of error codes.

Run it by `python tools/write_error_reference.py`.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.base.errors import CODES

PATH = Path(__file__).parent.parent / "docs" / "errors.md"
_HEAD = """\
# Error codes

Every error that Tilewright reports to a user is a `TilewrightError` with a `code` that does not
change between versions. This page is written from `tilewright.base.errors` by
`tools/write_error_reference.py`.
"""


def text() -> str:
    """Lay the table of codes out as Markdown, class by class."""
    classes = dict.fromkeys(kind for kind, _ in CODES.values())
    sections = [_HEAD]
    for kind in classes:
        summary = (kind.__doc__ or "").strip().partition("\n")[0]
        rows = [f"| `{code}` | {what} |" for code, (owner, what) in CODES.items() if owner is kind]
        sections.append(
            "\n".join([f"## {kind.__name__}\n", f"{summary}\n", "| code | meaning |", "|---|---|"])
            + "\n"
            + "\n".join(rows)
            + "\n"
        )
    return "\n".join(sections)


if __name__ == "__main__":
    PATH.write_text(text())
