"""Checks of shapes, orders and boxes that the layouts share.

Imports only `layout.refusal`.

    >>> tile_counts((16, 64), (8, 64))
    (2, 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, cast

from tilewright.layout.refusal import bad_layout


def tile_counts(to_shape: Sequence[int], current_shape: Sequence[int]) -> tuple[int, ...]:
    """Count how often one shape is repeated along each axis to cover another."""
    same_rank = len(to_shape) == len(current_shape)
    extents_of((*to_shape, *current_shape), "a layout that is repeated")
    if not same_rank or any(to % now for to, now in zip(to_shape, current_shape, strict=False)):
        raise bad_layout(
            f"a layout of {tuple(current_shape)} cannot be repeated to {tuple(to_shape)}",
            expected="a whole number of repetitions along each axis",
        )
    return tuple(to // now for to, now in zip(to_shape, current_shape, strict=True))


def check_order(order: Sequence[int], count: int) -> None:
    """Raise `FrontendError` unless the order is a permutation of so many axes."""
    if sorted(order) != list(range(count)):
        raise bad_layout(
            "the order is not a permutation",
            expected=f"each of 0 … {count - 1} once",
            found=str(list(order)),
        )


def check_region(shape: Sequence[int], region: Sequence[tuple[int, int]]) -> None:
    """Raise `FrontendError` unless the box of `(begin, end)` lies in the shape."""
    inside = (0 <= b < e <= n for n, (b, e) in zip(shape, region, strict=False))
    if len(shape) != len(region) or not all(inside):
        raise bad_layout(
            f"a region does not lie in the shape {tuple(shape)}",
            expected="0 <= begin < end <= extent along each axis",
            found=str(list(region)),
        )


def extents_of(shape: object, what: str) -> tuple[int, ...]:
    """Read a shape: one or more positive integers. Raises `FrontendError` (bad-layout) if not."""
    try:
        extents = tuple(index(extent) for extent in cast(Iterable[Any], shape))
    except TypeError:
        extents = ()
    if not extents or min(extents) < 1:
        expected = "a tuple of positive integers"
        raise bad_layout(f"{what} cannot have such a shape", expected=expected, found=repr(shape))
    return extents
