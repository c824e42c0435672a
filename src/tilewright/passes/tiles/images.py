"""The map of a tile operand's elements to threads and addresses, as arrays, for proofs.

May import `ir`, NumPy, `passes.analysis` and `passes.places`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.ir.expressions import Expr, Subview
from tilewright.passes.analysis.evaluation import Values
from tilewright.passes.analysis.separation import Inseparable, Separated
from tilewright.passes.places import Place, Valued, chain, in_range, locate
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import Tile, region_elements

# How many elements, over all values of the starts, a proof looks at.
_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Image:
    """Where the elements of a tile lie, for every combination of its unknown starts.

    Arrays have one axis for the combinations, then those of the tile. `bytes` is relative to
    the unknown `start`, a multiple of `divisor` (0 and `None`: there is none). `axes` has the
    values along thread axes, or lanes of Tensor Memory; those in `unknown` could not be told.
    """

    bytes: Values
    divisor: int
    axes: dict[str, Values]
    unknown: tuple[str, ...]
    start: Expr | None = None


def image_of(tile: Tile, scene: Scene) -> Image | None:
    """Map all elements of a tile; `None` if its starts cannot be dealt with."""
    tile = replace(tile, view=in_range(tile.view))
    try:
        return _image(tile, scene.symbolic(), 1)
    except Inseparable:
        pass
    rank = len(tile.shape)
    values = scene.enumerated(_starts(tile.view), rank)
    if values is None:
        return None
    combinations = max(
        (np.asarray(values(each)).shape[0] for each in _starts(tile.view) if _varies(each, values)),
        default=1,
    )
    if combinations * region_elements(tile) > _ELEMENTS:
        return None
    try:
        return _image(tile, values, combinations)
    except Inseparable:
        return None


def _varies(start: Expr, values: Valued) -> bool:
    try:
        return bool(np.ndim(values(start)))
    except KeyError:
        return False


def _image(tile: Tile, values: Valued, combinations: int) -> Image:
    grid = np.indices(tile.shape, dtype=np.int64, sparse=True)
    place = locate(tile.view, [each[None] for each in grid], values)
    shape = (combinations, *tile.shape)
    start, constants = _split(_bytes(place), shape)
    split = {name: _split(value, shape) for name, value in place.axes.items()}
    return Image(
        constants,
        0 if start is None else start.divisor,
        {name: array for name, (_, array) in split.items()},
        tuple(name for name, (unknown, _) in split.items() if unknown is not None),
        None if start is None else start.start,
    )


def _bytes(place: Place) -> Any:
    total: Any = 0
    for value, scale in place.terms:
        if type(value) is int and value == 0:
            continue
        total = value * scale if type(total) is int and total == 0 else value * scale + total
    return total


def _split(value: Any, shape: tuple[int, ...]) -> tuple[Separated | None, Values]:
    start = value if isinstance(value, Separated) else None
    constants = value if start is None else start.constants
    return start, np.broadcast_to(np.asarray(constants, dtype=np.int64), shape)


def _starts(view: Expr) -> list[Expr]:
    """List the starts of every subview in a chain."""
    return [start for each in chain(view) if isinstance(each, Subview) for start in each.starts]
