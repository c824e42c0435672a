"""Which element of a user's tensor a byte of memory belongs to.

May import `base`, `layout` and `ir`.

    element(kind, (8, 8), 20)   # (0, 5), of a float32 tensor row by row
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.ir.types import TensorType
from tilewright.layout import default_layout, image


def element(kind: TensorType, shape: tuple[int, ...], byte: int) -> tuple[int, ...] | None:
    """Give the coordinates of the element that a byte of a tensor's storage belongs to.

    `None` if it belongs to none, or if the layout does not say where in memory elements lie.
    """
    number = byte * 8 // (kind.dtype.bits * kind.dtype.lanes)
    if kind.layout is None or kind.layout == default_layout(shape):
        if not 0 <= number < prod(shape):
            return None
        return tuple(int(each) for each in np.unravel_index(number, shape))
    places = image(kind.layout, shape).get("m")
    if places is None:
        return None
    found = np.argwhere(places == number)
    return tuple(int(each) for each in found[0]) if len(found) else None
