"""A picture as SVG: one file, nothing loaded, for light and for dark pages.

Imports `view.page`. Sizes are in CSS pixels. Letters are monospaced, so that a label's width is
known; the picture brings its own ground, so that it can be read on any page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from itertools import zip_longest

from tilewright.view.page import BAD, GOOD, PLACES, Cell, Key, Page, Panel

_FONT = 11
_LETTER = 6.7  # as wide as a letter of the usual monospaced fonts, or wider
_LINE = 14
_MARGIN = 16
_GAP = 12
_SWATCH = 12
_LEAST_WIDTH = 560
_FAMILY = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"

_HUES = (2, 32, 52, 95, 160, 196, 228, 285)
_LIGHT, _DARK = (0.88, 0.82, 0.76, 0.70), (0.17, 0.21, 0.25, 0.29)


def draw(page: Page) -> str:
    """Draw a picture as an SVG document."""
    boxes = [_Box(panel) for panel in page.panels]
    inner = max([_LEAST_WIDTH, *(box.width for box in boxes)])
    parts: list[str] = []
    y = float(_MARGIN)
    for text, kind in ((page.title, "h"), (page.subtitle, "s")):
        y = _write(parts, text, kind, y, inner)
    for box in boxes:
        y = _draw_panel(parts, box, y + _GAP)
    if page.legend:
        y = _draw_legend(parts, page.legend, y + _GAP, inner)
    notes = (*page.of_drawing, *page.notes)
    y += _GAP if notes else 0
    for note in notes:
        y = _write(parts, note, "s", y, inner)
    width, height = inner + 2 * _MARGIN, y + _MARGIN - 4
    size = f'width="{_n(width)}" height="{_n(height)}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tilewright" {size} '
        f'viewBox="0 0 {_n(width)} {_n(height)}" role="img">'
    )
    ground = f'<rect class="g" x="0.5" y="0.5" width="{_n(width - 1)}" height="{_n(height - 1)}"'
    return "\n".join(
        (
            head,
            f"<title>{_escape(page.title)}</title>",
            f"<style>{_style(_tints(page))}</style>",
            f'{ground} rx="6"/>',
            *parts,
            "</svg>\n",
        )
    )


# ---------------------------------------------------------------------------- panels


@dataclass(frozen=True)
class _Box:
    """A panel with its sizes."""

    panel: Panel

    @property
    def labels(self) -> float:
        return max(map(len, (self.panel.corner, *self.panel.rows))) * _LETTER + 8

    @property
    def cell(self) -> tuple[float, float]:
        cells = [cell for row in self.panel.cells for cell in row if cell is not None]
        texts = [line for cell in cells for line in cell.lines]
        names = [] if self.panel.dense else list(self.panel.columns)
        letters = max(map(len, (*texts, *names)), default=1)
        lines = max((len(cell.lines) for cell in cells), default=1)
        return max(letters * _LETTER + 7, 19), lines * _LINE + 6

    @property
    def grid(self) -> float:
        return len(self.panel.columns) * self.cell[0]

    @property
    def width(self) -> float:
        remarks = max(map(len, self.panel.remarks), default=0)
        heading = len(self.panel.heading) * _LETTER
        return max(self.labels + self.grid + remarks * _LETTER + 8 * bool(remarks), heading)


def _draw_panel(parts: list[str], box: _Box, y: float) -> float:
    panel, (width, height) = box.panel, box.cell
    left = _MARGIN + box.labels
    parts.append(_text(_MARGIN, y + _FONT, panel.heading, "p"))
    y += 2 * _LINE + 6
    if panel.corner:
        parts.append(_text(left - 6, y - 5, panel.corner, "l e"))
    for index, name in enumerate(panel.columns):
        if name:
            parts.append(_text(left + (index + 0.5) * width, y - 5, name, "l m"))
    rows = zip_longest(panel.rows, panel.cells, panel.remarks, fillvalue="")
    for index, (name, _, remark) in enumerate(rows):
        middle = y + (index + 0.5) * height + 4
        parts.append(_text(left - 6, middle, name, "l e"))
        if remark:
            parts.append(_text(left + box.grid + 8, middle, remark, "l"))
    for row, cells in enumerate(panel.cells):
        for column, cell in enumerate(cells):
            parts += _draw_cell(cell, left + column * width, y + row * height, width, height)
    # Outlines last, or their neighbours would cover them.
    for row, cells in enumerate(panel.cells):
        for column, cell in enumerate(cells):
            if cell is not None and cell.marked:
                parts.append(_rect(left + column * width, y + row * height, width, height, "o"))
    return y + len(panel.rows) * height


def _draw_cell(cell: Cell | None, x: float, y: float, width: float, height: float) -> Iterator[str]:
    if cell is None:
        yield _rect(x, y, width, height, "c n")
        return
    yield _rect(x, y, width, height, "c" if cell.tint is None else f"c t{cell.tint}")
    top = y + height / 2 - (len(cell.lines) - 1) * _LINE / 2 + 4
    for index, line in enumerate(cell.lines):
        yield _text(x + width / 2, top + index * _LINE, line, "m")


def _draw_legend(parts: list[str], legend: Sequence[Key], y: float, room: float) -> float:
    step = max(len(key.text) for key in legend) * _LETTER + _SWATCH + 22
    across = max(int(room // step), 1)
    for index, key in enumerate(legend):
        row, column = divmod(index, across)
        x, top = _MARGIN + column * step, y + row * (_LINE + 4)
        parts.append(_rect(x, top, _SWATCH, _SWATCH, f"c t{key.tint}"))
        parts.append(_text(x + _SWATCH + 6, top + _SWATCH - 2, key.text, "l"))
    return y + -(-len(legend) // across) * (_LINE + 4)


# ---------------------------------------------------------------------------- elements


def _write(parts: list[str], text: str, kind: str, y: float, room: float) -> float:
    """Write a paragraph; give where the next one begins."""
    lines = textwrap.wrap(text, int(room / _LETTER)) or [""]
    parts += [
        _text(_MARGIN, y + _FONT + index * (_LINE + 2), line, kind)
        for index, line in enumerate(lines)
    ]
    return y + len(lines) * (_LINE + 2)


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" class="{kind}">{_escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
    return f'<rect {place} class="{kind}"/>'


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _escape(text: str) -> str:
    return text.translate({ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"})


# ---------------------------------------------------------------------------- colours


def _tints(page: Page) -> list[int]:
    cells = (cell for panel in page.panels for row in panel.cells for cell in row)
    used = {cell.tint for cell in cells if cell is not None}
    return sorted({tint for tint in used if tint is not None} | {k.tint for k in page.legend})


def _style(tints: Sequence[int]) -> str:
    """Write the style: rules hold below `.tilewright` only, as a page may hold the picture."""
    fixed = f"""
.tilewright text{{font:{_FONT}px {_FAMILY};fill:#1f2328}}
.tilewright .h{{font-weight:bold}}
.tilewright .p{{font-weight:bold;fill:#57606a}}
.tilewright .s,.tilewright .l{{fill:#424a53}}
.tilewright .m{{text-anchor:middle}}
.tilewright .e{{text-anchor:end}}
.tilewright .g{{fill:#fff;stroke:#d0d7de}}
.tilewright .c{{stroke:#8c959f;stroke-width:.6}}
.tilewright .n{{fill:none;stroke:#d0d7de}}
.tilewright .o{{fill:none;stroke:#1f2328;stroke-width:2}}
"""
    dark = """
.tilewright text{fill:#f0f3f6}
.tilewright .p,.tilewright .s,.tilewright .l{fill:#c9d1d9}
.tilewright .g{fill:#161b22;stroke:#444c56}
.tilewright .c{stroke:#768390}
.tilewright .n{stroke:#373e47}
.tilewright .o{stroke:#f0f3f6}
"""
    light_fills = "\n".join(f".tilewright .t{t}{{fill:{_colour(t, _LIGHT)}}}" for t in tints)
    dark_fills = "\n".join(f".tilewright .t{t}{{fill:{_colour(t, _DARK)}}}" for t in tints)
    return f"{fixed}{light_fills}\n@media (prefers-color-scheme:dark){{{dark}{dark_fills}\n}}\n"


def _colour(tint: int, shades: Sequence[float]) -> str:
    """Give the colour of a tint: of a place, eight hues in four shades."""
    match tint:
        case _ if tint < PLACES:
            hue, shade = _HUES[tint // 4], tint % 4
        case _ if tint == GOOD:
            hue, shade = 130, 1
        case _:
            assert tint == BAD
            hue, shade = 0, 3
    rgb = hls_to_rgb(hue / 360, shades[shade], 0.62)
    return "#" + "".join(f"{round(255 * each):02x}" for each in rgb)
