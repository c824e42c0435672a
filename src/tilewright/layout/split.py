"""How a coordinate of one shape is split over the digits of another factoring.

Imports nothing from this package. Coordinates are Python integers, NumPy arrays or symbolic
expressions: they are only combined with `+ * // %`, never compared, and no operation that
changes nothing is emitted.

    >>> split_digits(77, (3, 4, 10))
    [1, 3, 7]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any


def split_digits(coordinate: Any, extents: Sequence[int]) -> list[Any]:
    """Split a coordinate into row-major digits, outermost first.

    The outermost digit that has an extent is what is left over: what is out of range stays so.
    """
    outermost = next((axis for axis, extent in enumerate(extents) if extent != 1), 0)
    inner: list[Any] = []
    for extent in reversed(extents[outermost + 1 :]):
        inner.append(0 if extent == 1 else coordinate % extent)
        coordinate = coordinate if extent == 1 else coordinate // extent
    return [*(0,) * outermost, coordinate, *reversed(inner)] if extents else []


def flatten(coordinates: Sequence[Any], shape: Sequence[int]) -> Any:
    """Number the coordinates of a shape row by row; axes of extent 1 are not looked at."""
    linear: Any = None
    for coordinate, extent in zip(coordinates, shape, strict=True):
        if extent != 1:
            linear = coordinate if linear is None else linear * extent + coordinate
    return 0 if linear is None else linear


def carry_units(coordinates: Sequence[Any], shape: Sequence[int]) -> list[Any]:
    """Move what is counted along axes of extent 1 to the axes that a row-major number puts it in.

    Nothing is counted there in range: only 0. Anything else counts whole rounds of the axis to
    the right, or if there are only such axes, elements of the one to the left.

    >>> carry_units((1, 2, 0), (1, 4, 1))
    [0, 6, 0]
    """
    carried = list(coordinates)
    wide = [axis for axis, extent in enumerate(shape) if extent != 1] or [len(shape) - 1]
    for axis, extent in enumerate(shape):
        if extent != 1 or axis in wide:
            continue
        into = next((other for other in wide if other > axis), wide[-1])
        step = shape[into] if into > axis else 1
        carried[into] = add(scale(carried[axis], step), carried[into])
        carried[axis] = 0
    return carried


def add(left: Any, right: Any) -> Any:
    """Add, leaving out a left operand that is the integer 0."""
    return right if type(left) is int and left == 0 else left + right


def scale(value: Any, factor: int) -> Any:
    """Multiply by a constant, leaving out a multiplication by 0 or 1."""
    return 0 if factor == 0 else value if factor == 1 else value * factor


def aligned_runs(shape: Sequence[int], extents: Sequence[int]) -> list[range]:
    """Divide the axes of a shape into the shortest runs that are whole digits of `extents`.

    Both have the same product. A run ends where the extents can be split so that a digit ends
    there too; only the axes of a run of several must be flattened before they are split.
    """
    runs: list[range] = []
    start = 0
    for stop in range(1, len(shape) + 1):
        if stop == len(shape) or _can_cut(prod(shape[:stop]), extents):
            runs.append(range(start, stop))
            start = stop
    return runs


def _can_cut(count: int, extents: Sequence[int]) -> bool:
    outer = 1
    for extent in extents:
        if count <= outer * extent:
            return count % outer == 0 and outer * extent % count == 0
        outer *= extent
    return True
