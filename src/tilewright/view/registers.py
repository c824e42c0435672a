"""Pictures of layouts over threads: which lane, and which register of it, holds an element.

May import `base`, `layout` and the modules of this folder below it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.dtypes import DType
from tilewright.layout import AXES, thread_index
from tilewright.layout.axes import scope_of
from tilewright.view.matrix import (
    MOST_CELLS,
    Matrix,
    column_labels,
    first_of_each,
    longest_run,
    rows_of,
)
from tilewright.view.page import PLACES, Cell, Page, Panel, place_legend, span

_REGISTER_BITS = 32


def registers_page(title: str, matrix: Matrix, dtype: DType | None) -> Page:
    """Show the thread that holds each element, and where it holds it."""
    values = matrix.values()
    wide = matrix.columns > MOST_CELLS
    run = longest_run(values, matrix.columns) if wide else 1
    label = _Labels(tuple(values), run, dtype)
    cells = tuple(tuple(map(label.cell, row)) for row in rows_of(first_of_each(values, run)))
    tints = {cell.tint for row in cells for cell in row if cell.tint is not None}
    shape = " × ".join(map(str, matrix.shape))
    columns = column_labels(len(cells[0]), run)
    return Page(
        title,
        f"{shape} {dtype or 'elements'} held by {label.holders}",
        (Panel(label.heading, matrix.row_labels(len(cells)), columns, cells),),
        place_legend(tints, label.tinted),
        notes=(*matrix.notes(len(cells), len(cells[0]) * run), *label.notes()),
    )


class _Labels:
    """Names the holder of an element: `t5` for a thread, else each axis with its number."""

    def __init__(self, axes: tuple[str, ...], run: int, dtype: DType | None) -> None:
        self._run = run
        self._bits = 0 if dtype is None else dtype.bits * dtype.lanes
        self._has_registers = "m" in axes
        counted = [AXES[name] for name in axes if AXES[name].threads]
        scope = scope_of(counted)
        # Axes that do not fit together are shown one by one.
        self._group = scope[1] if scope and scope[0] == "thread" else ""
        self._apart = [
            name for name in axes if name != "m" and not (self._group and AXES[name].threads)
        ]

    @property
    def holders(self) -> str:
        return f"the threads of a {self._group}" if self._group else ", ".join(self._apart)

    @property
    def heading(self) -> str:
        where = "the thread that holds it" if self._group else "its holder"
        return f"For each element, {where}" + (", and where" if self._has_registers else "")

    @property
    def tinted(self) -> str:
        if self._group == "warp":
            return "lanes"
        return "t mod 32:" if self._group else f"{self._apart[0]} mod 32:"

    def notes(self) -> Iterator[str]:
        if self._group:
            lane = ", its lane" if self._group == "warp" else ""
            yield f"t: number of the thread in its {self._group}{lane}."
        if self._has_registers and not self._bits:
            yield "v: number of the value among those that the thread holds."
        elif self._has_registers:
            parts = _REGISTER_BITS // self._bits if self._bits < _REGISTER_BITS else 0
            packed = f"; r0.1 is the second of {parts} values in register 0" if parts else ""
            yield f"r: 32-bit register of the thread{packed}."

    def cell(self, values: dict[str, int]) -> Cell:
        lines = [f"{name} {values[name]}" for name in self._apart]
        number = values[self._apart[0]] if self._apart else 0
        if self._group:
            number = thread_index({name: values[name] for name in values if name != "m"})
            lines.append(f"t{number}")
        if self._has_registers:
            lines.append(self._register(values["m"]))
        return Cell(tuple(lines), number % PLACES)

    def _register(self, first: int) -> str:
        if not self._bits:
            return f"v{span(first, first + self._run - 1)}"
        low, high = first * self._bits, (first + self._run) * self._bits
        register, within = divmod(low, _REGISTER_BITS)
        if within or high % _REGISTER_BITS:
            return f"r{register}.{within // self._bits}"
        return f"r{span(register, high // _REGISTER_BITS - 1)}"
