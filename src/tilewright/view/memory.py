"""Pictures of layouts of memory: which byte and which bank an element lies in.

May import `base`, `layout` and the modules of this folder below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.base.dtypes import DType
from tilewright.view.banks import BANKS, Access, access, bank_of, lanes_together
from tilewright.view.matrix import (
    MOST_CELLS,
    Matrix,
    Values,
    column_labels,
    first_of_each,
    longest_run,
)
from tilewright.view.page import BAD, GOOD, Cell, Key, Page, Panel, place_legend, span

# The most that one lane takes at once, and what swizzles move: 16 bytes.
_UNIT_BITS = 128
_UNIT_ELEMENTS = 8


def memory_page(title: str, matrix: Matrix, dtype: DType | None) -> Page:
    """Show the address of each element; with its type, in bytes, and with banks."""
    values = matrix.values()
    if dtype is None:
        return _elements_page(title, matrix, values)
    return _bytes_page(title, matrix, values, dtype)


def _elements_page(title: str, matrix: Matrix, values: dict[str, Values]) -> Page:
    wide = matrix.columns > MOST_CELLS
    run = longest_run(values, _UNIT_ELEMENTS, aligned=True) if wide else 1
    shown = first_of_each(values, run)["m"].tolist()
    cells = tuple(
        tuple(Cell((span(at, at + run - 1),), at // run % 8 * 4) for at in row) for row in shown
    )
    count, across = len(cells), len(cells[0])
    return Page(
        title,
        f"{_times(matrix)} elements of memory",
        (_panel("Where each element lies, counted in elements", matrix, cells, run),),
        of_drawing=("Cells of one colour lie a multiple of 8 cells apart.",),
        notes=(
            *matrix.notes(count, across * run),
            "With the type of the elements, bytes and banks are shown.",
        ),
    )


def _bytes_page(title: str, matrix: Matrix, values: dict[str, Values], dtype: DType) -> Page:
    bits = dtype.bits * dtype.lanes
    run = longest_run(values, max(_UNIT_BITS // bits, 1), aligned=True)
    starts = (first_of_each(values, run)["m"] * bits).tolist()
    taken = _accesses(values["m"] * bits, bits, run)
    outlined = next((a.lanes for what, a in taken.items() if what.startswith("down")), 0)
    cells = tuple(
        tuple(
            _cell(at, run * bits, marked=column_index == 0 and row_index < outlined)
            for column_index, at in enumerate(row)
        )
        for row_index, row in enumerate(starts)
    )
    tints = {cell.tint for row in cells for cell in row if cell.tint is not None}
    size = -(-(matrix.layout.span() - min(matrix.layout.lowest(), 0)) * bits // 8)
    heading = "Where each element lies: its first byte, and its banks if it is shared memory"
    panels = (_panel(heading, matrix, cells, run), *_strips(taken))
    return Page(
        title,
        f"{_times(matrix)} {dtype} in {size} bytes of memory",
        panels,
        (*place_legend(tints, "banks"), *_verdicts(taken.values())),
        ("Outlined: what lanes take down column 0.",) if outlined else (),
        (*matrix.notes(len(cells), len(cells[0]) * run), *_explanations(bool(taken))),
    )


def _explanations(accesses: bool) -> Iterator[str]:
    yield "b: bank, one of 32, each 4 bytes wide."
    if accesses:
        yield (
            "A warp's lanes are served together, 32 with up to 4 bytes each, 16 with 8 or 8 with "
            "16; two words of one bank take two passes."
        )


def _panel(heading: str, matrix: Matrix, cells: tuple[tuple[Cell, ...], ...], run: int) -> Panel:
    labels = matrix.row_labels(len(cells))
    return Panel(heading, labels, column_labels(len(cells[0]), run), cells)


def _cell(at: int, bits: int, *, marked: bool) -> Cell:
    byte, odd = divmod(at, 8)
    first, last = bank_of(byte), bank_of((at + bits - 1) // 8)
    where = f"{byte}.{odd}" if odd else str(byte)
    return Cell((where, f"b{span(first, last)}"), first, marked)


def _accesses(addresses: Values, bits: int, run: int) -> dict[str, Access]:
    """List what a warp takes along a row and down a column, in runs and in single elements."""
    found: dict[str, Access] = {}
    for count in dict.fromkeys((run, 1)):
        size, odd = divmod(count * bits, 8)
        if odd or size > _UNIT_BITS // 8:
            continue  # no lane takes as much, or as little
        lanes = lanes_together(size)
        row = addresses[0, ::count][:lanes].tolist()
        column = addresses[:lanes, 0].tolist()
        for what, starts in (("along row 0", row), ("down column 0", column)):
            each = access([at // 8 for at in starts], size)
            found[f"{what}: {each.lanes} × {size} B"] = each
    return found


def _strips(accesses: dict[str, Access]) -> tuple[Panel, ...]:
    if not accesses:
        return ()
    rows = tuple(
        tuple(
            Cell((str(words),), GOOD if words == 1 else BAD) if words else None
            for words in each.words
        )
        for each in accesses.values()
    )
    return (
        Panel(
            "Words of each bank that lanes × bytes take at once",
            tuple(accesses),
            tuple(str(bank) if bank % 4 == 0 else "" for bank in range(BANKS)),
            rows,
            tuple(each.verdict for each in accesses.values()),
            corner="bank",
            dense=True,
        ),
    )


def _verdicts(accesses: Iterable[Access]) -> Iterator[Key]:
    words = {count for each in accesses for count in each.words}
    if 1 in words:
        yield Key(GOOD, "one word of a bank")
    if max(words, default=0) > 1:
        yield Key(BAD, "several words of a bank")


def _times(matrix: Matrix) -> str:
    return " × ".join(map(str, matrix.shape))
