"""The algebra on lists of digits that `TileLayout` is built on.

Imports only `layout.spec` and `layout.refusal`. A list of digits maps a row-major coordinate to
values along axes; two rules carry everything: a digit may be split into two without changing
the map, and two that continue one another may be fused.

    >>> fuse((Iter(4, 8, m), Iter(8, 1, m)))
    (Iter(32, 1, m),)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from tilewright.layout.axes import Axis, m
from tilewright.layout.refusal import bad_layout
from tilewright.layout.spec import Iter, Iters


def fuse(iters: Iters) -> Iters:
    """Drop digits of extent 1, and fuse neighbours that continue one another along an axis."""
    fused: list[Iter] = []
    for each in iters:
        if each.extent == 1:
            continue
        if fused and fused[-1].axis == each.axis and fused[-1].stride == each.extent * each.stride:
            each = Iter(fused.pop().extent * each.extent, each.stride, each.axis)
        fused.append(each)
    return tuple(fused)


def canonical_shard(shard: Iters) -> Iters:
    """Fuse what can be fused; of digits that are all of extent 1, one remains."""
    return fuse(shard) or tuple(Iter(1, 1, each.axis) for each in shard[:1])


def canonical_replica(replica: Iters) -> Iters:
    """Order and fuse the digits of a replica, whose order has no meaning."""
    moving = (each for each in replica if each.stride)
    return fuse(tuple(sorted(moving, key=lambda e: (e.axis.name, -abs(e.stride), e.extent))))


def group_digits(iters: Iters, shape: Sequence[int]) -> tuple[Iters, tuple[int, ...]]:
    """Split digits so that consecutive groups of them multiply to the extents of a shape.

    Returns the digits and the separators: group `i` is `[separators[i] : separators[i + 1]]`,
    empty for an extent of 1. Raises `FrontendError` if no splitting does it.
    """
    rest = [each for each in iters if each.extent != 1]
    if prod(each.extent for each in rest) != prod(shape):
        raise _no_grouping(iters, shape)
    rest.reverse()
    grouped: list[Iter] = []
    separators = [0]
    for extent in shape:
        while extent > 1:
            outer, inner = _cut(rest.pop(), extent, (iters, shape))
            grouped.append(outer)
            extent //= outer.extent
            if inner is not None:
                rest.append(inner)
        separators.append(len(grouped))
    return tuple(grouped), tuple(separators)


def groups_of(iters: Iters, shape: Sequence[int]) -> list[Iters]:
    """Group digits by a shape and give the groups; see `group_digits`."""
    grouped, separators = group_digits(iters, shape)
    return [grouped[start:stop] for start, stop in pairwise(separators)]


def interleave(outer: Sequence[Iters], inner: Sequence[Iters]) -> Iters:
    """Concatenate outer and inner groups, axis by axis."""
    return tuple(each for pair in zip(outer, inner, strict=True) for part in pair for each in part)


def slice_group(group: Iters, begin: int, count: int) -> tuple[Iters, dict[Axis, int]]:
    """Restrict the digits of one axis to the coordinates `[begin : begin + count]`.

    Returns the digits that remain, and the offset of the first coordinate. Raises
    `FrontendError` where the part is no list of digits.
    """
    start: dict[Axis, int] = {}
    kept: list[Iter] = []
    for each in reversed(fuse(group)):
        begin, digit = divmod(begin, each.extent)
        start[each.axis] = start.get(each.axis, 0) + digit * each.stride
        if count > 1:
            count = _keep(kept, each, digit, count)
    if count > 1:
        raise _no_slice(group)
    return tuple(reversed(kept)), start


def span_of(iters: Iters, axis: Axis) -> int:
    """Count the values from the lowest to the highest that digits reach along an axis."""
    return 1 + sum(abs(each.reach) for each in iters if each.axis == axis)


def is_compact(iters: Iters) -> bool:
    """Tell digits that reach, in whatever order, 0, 1, 2, … without a gap or a repetition."""
    following = 1
    for each in sorted(fuse(iters), key=lambda each: each.stride):
        if each.stride != following:
            return False
        following *= each.extent
    return True


def pack_digits(shard: Iters, count: int, axis: Axis) -> Iters:
    """Take `count` neighbours along an axis, which the last digit numbers, as one element."""
    *outer, last = shard or (Iter(1, 1, m),)
    if last.axis != axis or last.stride != 1 or last.extent % count:
        raise bad_layout(
            f"elements of the layout cannot be packed by {count} along {axis}",
            expected=f"a last digit of stride 1 along {axis} whose extent is a multiple of {count}",
            found=repr(last),
        )
    narrow = Iter(last.extent // count, 1, axis)
    return (*(_packed(each, count, axis) for each in outer), narrow)


def divide_exactly(value: int, count: int, axis: Axis) -> int:
    """Divide a stride or an offset by a packing factor; raises `FrontendError` if it leaves one."""
    if value % count:
        raise bad_layout(
            f"elements of the layout cannot be packed by {count} along {axis}",
            expected=f"strides and offsets along {axis} that are multiples of {count}",
            found=str(value),
        )
    return value // count


def _packed(each: Iter, count: int, axis: Axis) -> Iter:
    if each.axis != axis:
        return each
    return Iter(each.extent, divide_exactly(each.stride, count, axis), axis)


def _cut(each: Iter, extent: int, asked: tuple[Iters, Sequence[int]]) -> tuple[Iter, Iter | None]:
    if extent % each.extent == 0:
        return each, None
    if each.extent % extent:
        raise _no_grouping(*asked)
    inner = each.extent // extent
    return Iter(extent, each.stride * inner, each.axis), Iter(inner, each.stride, each.axis)


def _keep(kept: list[Iter], each: Iter, digit: int, count: int) -> int:
    """Keep a whole digit, or the last part that is needed; give how many are left to cover."""
    if digit == 0 and count % each.extent == 0:
        kept.append(each)
        return count // each.extent
    if digit + count > each.extent:
        raise _no_slice((each,))
    kept.append(Iter(count, each.stride, each.axis))
    return 1


def _no_grouping(iters: Iters, shape: Sequence[int]) -> Exception:
    extents = tuple(each.extent for each in iters)
    return bad_layout(
        f"a layout of extents {extents} cannot be grouped by the shape {tuple(shape)}",
        expected="extents whose products meet at every axis of the shape",
        found=f"{prod(extents)} elements in the layout, {prod(shape)} in the shape",
    )


def _no_slice(group: Iters) -> Exception:
    return bad_layout(
        "the region is not a layout of its own: it wraps around inside a digit",
        expected="along each axis, a whole number of inner digits, or a part of one",
        found=", ".join(map(repr, group)),
        hint="take the region as a view, or split it where the digit ends",
    )
