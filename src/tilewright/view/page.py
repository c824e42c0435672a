"""What is on a picture, whatever it is drawn with: panels of labelled cells, a legend, notes.

Imports nothing from this package.

    >>> span(0, 7), span(3, 3)
    ('0–7', '3')
"""

from __future__ import annotations

from dataclasses import dataclass

# The tints of places: 32 lanes of a warp, or 32 banks. Then those of a verdict.
PLACES = 32
GOOD, BAD = PLACES, PLACES + 1


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a panel: lines of text, a tint, and whether it is outlined."""

    lines: tuple[str, ...]
    tint: int | None = None
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A grid of cells under a heading, with a label for each row and column.

    A row's remark stands behind it; the corner names the columns. A `dense` panel has cells of
    a few characters.
    """

    heading: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    remarks: tuple[str, ...] = ()
    corner: str = ""
    dense: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of the legend: what a tint means."""

    tint: int
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """A picture: a title, what it is a picture of, panels, a legend and notes.

    The legend and what is said `of_drawing`, of colours and outlines, is no part of a text.
    """

    title: str
    subtitle: str
    panels: tuple[Panel, ...]
    legend: tuple[Key, ...] = ()
    of_drawing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def span(first: int, last: int) -> str:
    """Write the numbers from the first to the last."""
    return str(first) if first == last else f"{first}–{last}"


def place_legend(tints: set[int], what: str) -> tuple[Key, ...]:
    """Explain the tints of places four at a time, as they have their hues."""
    groups = sorted({tint // 4 for tint in tints})
    return tuple(Key(4 * each, f"{what} {span(4 * each, 4 * each + 3)}") for each in groups)
