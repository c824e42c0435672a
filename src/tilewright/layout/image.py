"""Any layout as NumPy arrays: the form in which facts about layouts are proven.

Imports NumPy and `layout.swizzle` and below.

    >>> image(TileLayout(S[(2, 3) : (1, 2)]), (2, 3))["m"].tolist()
    [[0, 2, 4], [1, 3, 5]]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewright.layout.swizzle import Layout
from tilewright.layout.tile import TileLayout, compact

Values = npt.NDArray[np.int64]


def image(layout: Layout, shape: Sequence[int] | None = None) -> dict[str, Values]:
    """Map all coordinates of a shape at once.

    Returns an array of that shape for each axis of the layout; without a shape, that of its
    shards. Raises `FrontendError` if the shape has another number of elements.
    """
    extents = layout.shard_shape if shape is None else tuple(shape)
    coordinates = np.indices(extents, dtype=np.int64, sparse=True)
    values = layout.apply(*coordinates, shape=extents)
    return {name: _filled(value, extents) for name, value in values.items()}


def images(layout: Layout, shape: Sequence[int] | None = None) -> list[dict[str, Values]]:
    """Map all coordinates to every place of theirs: one image for each replica."""
    return [image(layout.shift(moved), shape) for moved in layout.displacements()]


def default_layout(shape: Sequence[int]) -> TileLayout:
    """Give the compact row-major layout of a shape, on the axis `m`."""
    return compact(shape)


def is_injective(layout: Layout, shape: Sequence[int] | None = None) -> bool:
    """Tell whether no two elements share a place, replicas of one element included."""
    places = [np.stack([v.ravel() for v in each.values()]) for each in images(layout, shape)]
    every = np.concatenate(places, axis=1)
    return np.unique(every, axis=1).shape[1] == every.shape[1]


def same_map(left: Layout, right: Layout, shape: Sequence[int]) -> bool:
    """Tell whether two layouts put every coordinate of a shape in the same place.

    An axis that one of them lacks counts as 0; replicas are not looked at.
    """
    one, other = image(left, shape), image(right, shape)
    zero = np.zeros(tuple(shape), dtype=np.int64)
    names = one.keys() | other.keys()
    return all(np.array_equal(one.get(n, zero), other.get(n, zero)) for n in names)


def _filled(value: int | Values, shape: tuple[int, ...]) -> Values:
    return np.broadcast_to(np.asarray(value, dtype=np.int64), shape).copy()
