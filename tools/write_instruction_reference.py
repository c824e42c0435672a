"""Write `docs/instruction-table.md` from the declarations of instructions.

Run it by `python tools/write_instruction_reference.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import tilewright.simt  # noqa: F401 (declares every instruction)
from tilewright.base.targets import Availability, known_targets, target
from tilewright.isa.declaration import Declaration, Slot, families

PATH = Path(__file__).parent.parent / "docs" / "instruction-table.md"
_HEAD = """\
# Table of instructions

Every instruction that Tilewright has. This page is written from the declarations in
`tilewright.isa` by `tools/write_instruction_reference.py`; how an instruction is called from a
kernel stands in [Instructions](instructions.md).

`{.a, .b}` is a choice of one, `{.a, .b}?` one that may be left out. *Forms* counts the legal
combinations. *Targets* are those of the form that the most targets have. A ✓ under *tile* says
that `T.cuda.tile.apply` takes the instruction; under *confirmed*, that its meaning in the simulator
is known to be the chip's.
"""
_COLUMNS = ("instruction", "what it does", "forms", "targets", "tile", "confirmed")
# Chapters of the PTX ISA.
_CHAPTERS: dict[tuple[int, ...], str] = {
    (9, 7, 1): "Integer arithmetic",
    (9, 7, 3): "Floating-point arithmetic",
    (9, 7, 7): "Comparison and selection",
    (9, 7, 8): "Logic and shifts",
    (9, 7, 9): "Data movement and conversion",
    (9, 7, 13): "Synchronization and communication",
    (9, 7, 14): "Matrices held by a warp",
    (9, 7, 15): "Matrices held by a warpgroup",
    (9, 7, 16): "The tensor core and Tensor Memory",
    (9, 7, 19): "Stack manipulation",
    (9, 7, 20): "Miscellaneous",
}


def text() -> str:
    """Lay the declarations out as Markdown, chapter by chapter of the ISA."""
    chapters: dict[tuple[int, ...], list[str]] = {}
    for declared in families().values():
        for each in declared:
            chapters.setdefault(_chapter(each), []).append(_row(each))
    sections = [_HEAD]
    for chapter in sorted(chapters):
        number = ".".join(map(str, chapter))
        title = _CHAPTERS.get(chapter, "Other instructions")
        head = [f"## {title} ({number})\n", f"| {' | '.join(_COLUMNS)} |", "|---" * 6 + "|"]
        rows = sorted(dict.fromkeys(chapters[chapter]))
        sections.append("\n".join([*head, *rows]) + "\n")
    return "\n".join(sections)


def _chapter(declaration: Declaration) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", declaration.section)
    return tuple(map(int, match.groups())) if match else (0,)


def _row(declaration: Declaration) -> str:
    forms = list(declaration.forms())
    targets = max(dict.fromkeys(form.targets for form in forms), key=_count)
    cells = (
        f"`{_syntax(declaration)}`",
        declaration.summary,
        str(len(forms)),
        str(targets),
        "✓" if any(form.tile for form in forms) else "",
        "✓" if declaration.exact else "",
    )
    return f"| {' | '.join(cells)} |"


def _count(available: Availability) -> int:
    return sum(target(name) in available for name in known_targets())


def _syntax(declaration: Declaration) -> str:
    return declaration.family + "".join(map(_part, declaration.parts))


def _part(part: str | Slot) -> str:
    if isinstance(part, str):
        return f".{part}"
    tokens = [f".{choice}" for choice in part.choices if choice]
    if part.required and len(tokens) == 1:
        return tokens[0]
    return f"{{{', '.join(tokens)}}}" + ("" if part.required else "?")


if __name__ == "__main__":
    PATH.write_text(text())
