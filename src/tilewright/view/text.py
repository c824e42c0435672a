"""A picture as text, for a terminal.

Imports `view.page`. Panels that are wider than the terminal go on below, as many columns at a
time as fit.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from tilewright.view.page import Cell, Page, Panel

_EMPTY = "·"
_DENSE = 2


def write(page: Page, width: int = 100) -> str:
    """Write a picture in lines of at most so many characters, where that can be done."""
    lines = [page.title, page.subtitle]
    for panel in page.panels:
        lines += ["", *_panel(panel, width)]
    if page.notes:
        lines.append("")
    for note in page.notes:
        lines += textwrap.wrap(note, width)
    return "\n".join(lines) + "\n"


def _panel(panel: Panel, width: int) -> Iterator[str]:
    yield panel.heading
    gap = "" if panel.dense else "  "
    labels = max(map(len, (panel.corner, *panel.rows)))
    table = [[_text(cell) for cell in row] for row in panel.cells]
    columns = [list(each) for each in zip(panel.columns, *table, strict=True)]
    widths = [max(map(len, each)) for each in columns]
    if panel.dense:
        widths = [max(_DENSE, *widths)] * len(widths)
    for number, band in enumerate(_bands(widths, width - labels - 2, len(gap))):
        if number:
            yield ""
        yield from _band(panel, columns[band], widths[band], labels, gap, width)


def _band(
    panel: Panel,
    columns: Sequence[Sequence[str]],
    widths: Sequence[int],
    labels: int,
    gap: str,
    width: int,
) -> Iterator[str]:
    rows = zip(*columns, strict=True)
    names = (panel.corner, *panel.rows)
    for name, row, remark in zip_longest(names, rows, ("", *panel.remarks), fillvalue=""):
        cells = gap.join(each.rjust(size) for each, size in zip(row, widths, strict=True))
        line = f"{name:>{labels}}  {cells}".rstrip()
        if remark and len(line) + 2 + len(remark) > width:
            yield line
            yield f"{'':>{labels}}  {remark}"
        else:
            yield f"{line}  {remark}".rstrip()


def _bands(widths: Sequence[int], room: int, gap: int) -> Iterator[slice]:
    """Cut columns into as few runs as fit, at least one column each."""
    begin, used = 0, 0
    for index, size in enumerate(widths):
        if index > begin and used + gap + size > room:
            yield slice(begin, index)
            begin, used = index, 0
        used += size + (gap if used else 0)
    yield slice(begin, len(widths))


def _text(cell: Cell | None) -> str:
    return _EMPTY if cell is None else " ".join(cell.lines)
