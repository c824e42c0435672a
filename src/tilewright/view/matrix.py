"""The part of a layout that a picture shows, as a matrix of elements.

May import `base` and `layout`.

    >>> matrix(TileLayout(S[(4, 2, 8) : (16, 8, 1)]), None).shape
    (8, 8)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log, prod

import numpy as np
import numpy.typing as npt

from tilewright.layout import Axis, ComposeLayout, Layout, TileLayout, images, m
from tilewright.layout.refusal import bad_layout
from tilewright.layout.shapes import extents_of
from tilewright.view.page import span

Values = npt.NDArray[np.int64]

# A picture shows no more rows, nor more cells of one, than can be read.
MOST_ROWS = 64
MOST_CELLS = 32
_MOST_COLUMNS = 1024
_FOLD = 32
# NumPy's integers have 63 bits; addresses are multiplied by the bits of an element.
_MOST_REACH = 1 << 48
# Places are told apart by numbering them, which takes a while.
_MOST_COMPARED = 1 << 20


@dataclass(frozen=True)
class Matrix:
    """The elements of a layout, taken in a shape: the last axis across, the others down.

    `down` counts the axes that go down, another number than all but the last if need be.
    """

    layout: Layout
    shape: tuple[int, ...]
    down: int = -1

    @property
    def axes(self) -> tuple[Axis, ...]:
        """List the axes of the layout, those of its replicas included; `m` if there is none."""
        return _plain(self.layout).axes_with_replica() or (m,)

    @property
    def rows(self) -> int:
        """Count all rows."""
        return prod(self.shape[: self.down])

    @property
    def columns(self) -> int:
        """Count all columns."""
        return prod(self.shape[self.down :])

    def values(self, rows: int = MOST_ROWS) -> dict[str, Values]:
        """Map the elements of the first rows: for each axis an array of rows × columns.

        There are at most so many rows, and at most 1024 columns.
        """
        down = np.arange(min(rows, self.rows), dtype=np.int64)[:, None]
        across = np.arange(min(_MOST_COLUMNS, self.columns), dtype=np.int64)
        number = down * self.columns + across
        found = {axis.name: 0 for axis in self.axes} | self.layout.apply(number)
        return {name: np.broadcast_to(each, number.shape) for name, each in found.items()}

    def row_labels(self, rows: int) -> tuple[str, ...]:
        """Name the first rows, by their coordinates on the axes that go down."""
        coordinates = np.unravel_index(np.arange(rows), self.shape[: self.down])
        return tuple(",".join(map(str, each)) for each in zip(*coordinates, strict=True))

    def notes(self, rows: int, columns: int) -> Iterator[str]:
        """Say what a picture of so many rows and columns leaves out, and what is amiss."""
        parts = (("rows", rows, self.rows), ("columns", columns, self.columns))
        cut = [f"{what} {span(0, now - 1)} of {all}" for what, now, all in parts if now < all]
        if cut:
            yield f"Only {' and '.join(cut)} are shown."
        for each in _plain(self.layout).replica:
            yield f"Each element is there {each.extent} times, {each.spell_stride()} apart."
        yield from _warnings(self.layout)


def matrix(layout: Layout, shape: Sequence[int] | None) -> Matrix:
    """Take a layout in a shape, or in one that suits it.

    Raises `FrontendError` (bad-layout) for a shape with another number of elements.
    """
    if _reach(layout) >= _MOST_REACH:
        raise bad_layout("the layout is too large for a picture", expected="numbers below 2^48")
    if shape is None:
        return Matrix(layout, _own_shape(layout))
    extents = list(extents_of(shape, "a layout"))
    if prod(extents) != layout.size():
        raise bad_layout(
            f"the shape {tuple(extents)} does not fit the layout",
            expected=f"{layout.size()} elements",
            found=f"{prod(extents)} elements",
        )
    return Matrix(layout, tuple(extents) if len(extents) > 1 else _folded(extents[0]))


def longest_run(values: dict[str, Values], most: int, *, aligned: bool = False) -> int:
    """Count how many neighbours of a row always lie one after another on the axis `m`.

    Their other values are the same. The count divides the columns and is at most `most`; if
    `aligned`, it divides the address of the first as well.
    """
    columns = next(iter(values.values())).shape[1] if values else 1
    counts = (n for n in range(min(most, columns), 1, -1) if columns % n == 0)
    return next((n for n in counts if _is_run(values, n, aligned)), 1)


def first_of_each(values: dict[str, Values], run: int) -> dict[str, Values]:
    """Give the values of the first element of every run, as many as a picture shows."""
    return {name: each[:, ::run][:, :MOST_CELLS] for name, each in values.items()}


def column_labels(count: int, run: int) -> tuple[str, ...]:
    """Name columns of so many elements each."""
    return tuple(span(i * run, i * run + run - 1) for i in range(count))


def rows_of(values: dict[str, Values]) -> Iterator[Iterator[dict[str, int]]]:
    """Walk over the elements, row by row: the value of each along every axis."""
    names = list(values)
    table = np.stack([values[name] for name in names], axis=-1)
    for row in table.tolist():
        yield (dict(zip(names, element, strict=True)) for element in row)


def _is_run(values: dict[str, Values], count: int, aligned: bool) -> bool:
    for name, each in values.items():
        rows = each.reshape(each.shape[0], -1, count)
        step = 1 if name == "m" else 0
        if not np.array_equal(rows, rows[..., :1] + step * np.arange(count)):
            return False
        if aligned and step and (rows[..., 0] % count).any():
            return False
    return "m" in values


def _warnings(layout: Layout) -> Iterator[str]:
    """Say what no tensor can have: places that are not there, elements in one place."""
    for axis in _plain(layout).axes_with_replica():
        low, high = layout.lowest(axis), layout.span(axis) - 1
        if low < 0:
            yield f"Warning: {axis} reaches down to {low}, below the start."
        if axis.extent and high >= axis.extent:
            yield f"Warning: {axis} reaches up to {high}; a {axis.group} has 0–{axis.extent - 1}."
    copies = prod(each.extent for each in _plain(layout).replica)
    count = layout.size() * copies
    if count <= _MOST_COMPARED and (places := _places(layout)) < count:
        what = f"{count} elements{' and copies' * (copies > 1)}"
        yield f"Warning: elements overlap: {what} lie in {places} place{'s' * (places > 1)}."


def _places(layout: Layout) -> int:
    """Count the places in which elements lie, those of copies too."""
    numbers: list[Values] = []
    for each in images(layout, (layout.size(),)):
        number = np.zeros(layout.size(), np.int64)
        for axis in _plain(layout).axes_with_replica():
            low, high = layout.lowest(axis), layout.span(axis)
            number = number * (high - low) + (each.get(axis.name, 0) - low)
        numbers.append(number)
    return len(np.unique(np.concatenate(numbers)))


def _plain(layout: Layout) -> TileLayout:
    return layout.tile_layout if isinstance(layout, ComposeLayout) else layout


def _reach(layout: Layout) -> int:
    """Bound the numbers that come up when the layout is evaluated."""
    tile = _plain(layout)
    digits = sum(abs(each.reach) for each in (*tile.shard, *tile.replica))
    return max(layout.size(), digits + sum(abs(term.value) for term in tile.offset))


def _own_shape(layout: Layout) -> tuple[int, ...]:
    extents = list(layout.shard_shape or (1,))
    if len(extents) > 1:
        return min(_splits(extents), key=lambda each: abs(log(each[0] / each[1])))
    if isinstance(layout, ComposeLayout):
        row = 1 << (layout.per_element + layout.swizzle_len)
        if extents[0] % row == 0:
            return extents[0] // row, row
    return _folded(extents[0])


def _splits(extents: Sequence[int]) -> Iterable[tuple[int, int]]:
    """List the matrices that the axes make, split into those down and those across."""
    return ((prod(extents[:k]), prod(extents[k:])) for k in range(1, len(extents)))


def _folded(count: int) -> tuple[int, int]:
    width = max(n for n in range(1, _FOLD + 1) if count % n == 0)
    return (1, count) if width < min(count, 4) else (count // width, width)
