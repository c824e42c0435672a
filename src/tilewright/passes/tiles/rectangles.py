"""A view of a tensor in global memory as a rectangle: an offset, and along each axis a stride.

May import `base`, `layout`, `ir` and `passes.places`. Extents and strides need not be constant:
the host computes them. What is no such rectangle, or what nobody but the kernel knows the place
of, is refused by whoever asks.

    rectangle_of(A.sub[16:, k : k + 64], host)     # A is (n, 128) float16
    # -> offset (16 * 128 + k) * 2, axes (n - 16, 256 bytes), (64, 2 bytes)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.base.dtypes import INT32, INT64
from tilewright.ir.expressions import (
    Binary,
    Constant,
    Expr,
    Permute,
    Reinterpret,
    Relayout,
    Reshape,
    Subview,
    Var,
    as_constant,
    binary,
    cast,
    constant,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.types import TensorType
from tilewright.layout import Layout, TileLayout, m
from tilewright.layout.digits import fuse, groups_of


class NoRectangle(Exception):
    """Say why a view is no rectangle."""


@dataclass(frozen=True)
class Side:
    """An axis of a rectangle: its extent, and the bytes from one element to the next, int64."""

    extent: Expr
    stride: Expr


@dataclass(frozen=True)
class Rectangle:
    """Elements in global memory: the first is `offset` bytes (int64) after the start of `root`.

    Sides are listed outermost first, as the axes of a tensor.
    """

    root: Var
    offset: Expr
    sides: tuple[Side, ...]


def rectangle_of(view: Expr, on_host: Callable[[Expr], Expr]) -> Rectangle:
    """Find the rectangle that a view of a global tensor is.

    `on_host` gives an expression as the host can evaluate it, or refuses. Raises `NoRectangle`.
    """
    match view:
        case Var():
            return Rectangle(view, _int64(0), _sides(tensor_type(view), on_host))
        case Relayout():
            kind = tensor_type(view)
            return replace(rectangle_of(view.source, on_host), sides=_sides(kind, on_host))
        case Reshape():
            shape = [_number(extent, on_host) for extent in view.type.shape]
            source = rectangle_of(view.source, on_host)
            return replace(source, sides=_reshaped(source.sides, shape))
        case Permute():
            source = rectangle_of(view.source, on_host)
            return replace(source, sides=tuple(source.sides[axis] for axis in view.axes))
        case Subview():
            return _part(view, on_host)
        case Reinterpret():
            return _reinterpreted(view, on_host)
        case _:
            raise NoRectangle(f"a {view.type} is no view of a tensor")


def _int64(value: int) -> Expr:
    return constant(value, INT64)


def _number(value: Expr, on_host: Callable[[Expr], Expr]) -> Expr:
    return _wide(on_host(value))


def _wide(value: Expr) -> Expr:
    """Compute in 64 bits, sums and products too, of which several make up a distance."""
    match value:
        case Binary(op="add" | "sub" | "mul") if value.dtype == INT32:
            return binary(value.op, _wide(value.left), _wide(value.right), value.location)
        case _:
            return cast(value, INT64)


def _sides(kind: TensorType, on_host: Callable[[Expr], Expr]) -> tuple[Side, ...]:
    extents = [_number(extent, on_host) for extent in kind.shape]
    if kind.layout is None:
        return _compact(extents, _int64(kind.dtype.bytes))
    constants = static_shape(kind.shape)
    assert constants is not None, "a layout has a size"
    strides = _strides(kind.layout, constants)
    rows = _compact(extents, _int64(kind.dtype.bytes))
    return tuple(
        row if stride is None else Side(row.extent, _int64(stride * kind.dtype.bytes))
        for row, stride in zip(rows, strides, strict=True)
    )


def _compact(extents: Sequence[Expr], stride: Expr) -> tuple[Side, ...]:
    """Lay extents out row by row, the last with that stride."""
    found: list[Side] = []
    for extent in reversed(extents):
        found.append(Side(extent, stride))
        stride = stride * extent
    return tuple(reversed(found))


def _strides(layout: Layout, shape: Sequence[int]) -> list[int | None]:
    """Give the stride of each axis in elements, `None` where there is one element."""
    if not isinstance(layout, TileLayout):
        raise NoRectangle(f"its layout is swizzled: {layout!r}")
    if layout.axes not in ((), (m,)) or layout.replica or layout.offset:
        raise NoRectangle(f"its layout has more than strides: {layout!r}")
    groups = [fuse(group) for group in groups_of(layout.shard, shape)]
    if any(len(group) > 1 for group in groups):
        raise NoRectangle(f"an axis of its layout has several strides: {layout!r}")
    return [group[0].stride if group else None for group in groups]


def _part(view: Subview, on_host: Callable[[Expr], Expr]) -> Rectangle:
    source = rectangle_of(view.source, on_host)
    extents = iter(view.type.shape)
    offset = source.offset
    sides: list[Side] = []
    for side, start, step, dropped in zip(
        source.sides, view.starts, view.steps, view.dropped, strict=True
    ):
        offset = offset + _number(start, on_host) * side.stride
        if not dropped:
            sides.append(Side(_number(next(extents), on_host), side.stride * step))
    return replace(source, offset=offset, sides=tuple(sides))


def _reinterpreted(view: Reinterpret, on_host: Callable[[Expr], Expr]) -> Rectangle:
    source = rectangle_of(view.source, on_host)
    *outer, last = source.sides
    kind, narrow = tensor_type(view), tensor_type(view.source).dtype
    if kind.dtype.bytes == narrow.bytes:
        return source
    if as_constant(last.stride) != narrow.bytes:
        raise NoRectangle(f"elements that are read as {kind.dtype} do not lie side by side")
    extent = _number(kind.shape[-1], on_host)
    return replace(source, sides=(*outer, Side(extent, _int64(kind.dtype.bytes))))


def _reshaped(sides: Sequence[Side], shape: Sequence[Expr]) -> tuple[Side, ...]:
    """Cut the axes of a rectangle up anew; runs of axes that make up one another are matched."""
    old = [side for side in sides if as_constant(side.extent) != 1]
    new = [extent for extent in shape if as_constant(extent) != 1]
    cut: list[Side] = []
    while old or new:
        before, after = _run(old, new)
        cut += _compact(after, _joined(before))
        del old[: len(before)], new[: len(after)]
    rest = iter(cut)
    ones = _compact(shape, sides[-1].stride if sides else _int64(1))
    return tuple(one if as_constant(one.extent) == 1 else next(rest) for one in ones)


def _run(old: Sequence[Side], new: Sequence[Expr]) -> tuple[list[Side], list[Expr]]:
    """Take the fewest leading axes of either shape that have as many elements."""
    for total in range(2, len(old) + len(new) + 1):
        for count in range(max(1, total - len(new)), min(len(old), total - 1) + 1):
            before, after = old[:count], new[: total - count]
            if _factors(*(side.extent for side in before)) == _factors(*after):
                return list(before), list(after)
    raise NoRectangle("its shape is made of another that is not known to have the same axes")


def _joined(run: Sequence[Side]) -> Expr:
    """Give the stride of axes that continue one another, as one axis."""
    for outer, inner in pairwise(run):
        if _factors(outer.stride) != _factors(inner.stride, inner.extent):
            raise NoRectangle("axes that do not continue one another are joined")
    return run[-1].stride


def _factors(*values: Expr) -> tuple[int, Counter[Expr]]:
    """Write a product as a constant and the other factors, in whatever order they stand."""
    product, others = 1, Counter[Expr]()
    pending = list(values)
    while pending:
        match pending.pop():
            case Constant(value=number):
                product *= int(number)
            case Binary(op="mul", left=left, right=right):
                pending += [left, right]
            case other:
                others[other] += 1
    return product, others
