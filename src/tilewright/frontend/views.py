"""Views of tensors: the same storage under other coordinates.

May import `base`, `layout` and `ir`. Everything here takes and gives IR expressions of tensors;
a view that changes nothing is the tensor itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    Expr,
    Permute,
    Reinterpret,
    Relayout,
    Reshape,
    Subview,
    as_constant,
    binary,
    int32,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.types import TensorType
from tilewright.layout import Axis as LayoutAxis
from tilewright.layout import ComposeLayout, TCol, TileLayout, TLane, default_layout, m

Layout = TileLayout | ComposeLayout
Axis = tuple[Expr, int, int | Expr | None]


def bad_view(message: str, location: Location | None, **more: Any) -> FrontendError:
    """Describe a view that does not fit its tensor."""
    return FrontendError(message, code="bad-view", location=location, **more)


def resolve_layout(
    layout: Any, shape: Sequence[Expr], space: Space, location: Location | None
) -> Layout | None:
    """Make a layout of what a program gives: a layout, `None`, or "default" for row-major.

    Raises `FrontendError` (`bad-layout`) if it does not have the shape's number of elements, has
    axes that the space does not have, or reaches below the start of an axis or beyond its end.
    """
    extents = static_shape(shape)
    if layout is None:
        return None
    if layout == "default":
        if extents is None:
            raise FrontendError(
                'layout="default" needs a shape of constants',
                code="bad-layout",
                location=location,
                found=_spell(shape),
            )
        layout = default_layout(extents)
    if not isinstance(layout, TileLayout | ComposeLayout):
        raise FrontendError(
            "a layout is expected",
            code="bad-layout",
            location=location,
            expected='a TileLayout, a ComposeLayout, "default" or None',
            found=repr(layout),
        )
    if extents is not None and layout.size() != prod(extents):
        raise FrontendError(
            "the layout does not fit the shape",
            code="bad-layout",
            location=location,
            expected=f"{prod(extents)} elements, for the shape {extents}",
            found=f"{layout.size()} elements, in {layout!r}",
        )
    _require_axes(layout, space, location)
    _require_places(layout, location)
    return layout


# What a layout in a space may map to, and what to do about one that does not.
_AXES = {
    Space.TMEM: (
        f"{TLane.name} and {TCol.name}",
        "tmem_datapath_layout and tmem_mma_operand_layout give such layouts",
    ),
    Space.LOCAL: (f"{m.name} and the axes of threads", "Tensor Memory has a view of its own"),
}
_ADDRESSES = (m.name, "leave the layout out, or take one of addresses, as mma_shared_layout gives")


def _has_axis(space: Space, axis: LayoutAxis) -> bool:
    if space is Space.TMEM:
        return axis in (TLane, TCol)
    return axis == m or (space is Space.LOCAL and axis.is_thread)


def _require_axes(layout: Layout, space: Space, location: Location | None) -> None:
    """Require a layout over what a space has: addresses, registers of threads, or cells."""
    wrong = [axis.name for axis in layout.axes if not _has_axis(space, axis)]
    if wrong:
        expected, hint = _AXES.get(space, _ADDRESSES)
        raise FrontendError(
            f"a layout of a tensor in {space.value} memory has axes that are not there",
            code="bad-layout",
            location=location,
            expected=f"a layout over {expected}",
            found=", ".join(dict.fromkeys(wrong)),
            hint=hint,
        )


def _require_places(layout: Layout, location: Location | None) -> None:
    """Require places from 0 on, as storage begins there, and threads that their group has."""
    tile = layout.tile_layout if isinstance(layout, ComposeLayout) else layout
    for axis in tile.axes_with_replica():
        lowest, count = tile.lowest(axis), tile.span(axis)
        if lowest < 0:
            missing = str(-lowest) if axis == m else f"{-lowest} @ {axis}"
            raise FrontendError(
                "a layout of a tensor reaches below the start of its storage",
                code="bad-layout",
                location=location,
                expected=f"0 or more along the axis {axis}",
                found=f"{lowest}, in {layout!r}",
                hint=f"strides may be negative with an offset: here + {missing}",
            )
        if axis.extent and count > axis.extent:
            raise FrontendError(
                f"a layout of a tensor has more along {axis} than a {axis.group} has",
                code="bad-layout",
                location=location,
                expected=f"0 … {axis.extent - 1}",
                found=f"up to {count - 1}, in {layout!r}",
            )


def _spell(shape: Sequence[Expr]) -> str:
    return "(" + ", ".join(str(extent) for extent in shape) + ("," if len(shape) == 1 else "") + ")"


def _infer(shape: Sequence[Expr], source: Expr, location: Location | None) -> tuple[Expr, ...]:
    """Fill in one extent of -1."""
    open_axes = [axis for axis, extent in enumerate(shape) if as_constant(extent) == -1]
    if not open_axes:
        return tuple(shape)
    have = static_shape(tensor_type(source).shape)
    rest = static_shape([extent for axis, extent in enumerate(shape) if axis not in open_axes])
    if len(open_axes) > 1 or have is None or rest is None or prod(have) % max(prod(rest), 1):
        raise bad_view(
            "the extent -1 cannot be inferred",
            location,
            expected="one -1, beside constants that divide the number of elements",
            found=f"{_spell(shape)} for {_spell(tensor_type(source).shape)}",
        )
    filled = list(shape)
    filled[open_axes[0]] = int32(prod(have) // prod(rest))
    return tuple(filled)


def reshape(source: Expr, shape: Sequence[Expr], location: Location | None) -> Expr:
    """View the elements in the same row-major order under another shape.

    Raises `FrontendError` (`bad-view`) if the number of elements differs.
    """
    type = tensor_type(source)
    shape = _infer(shape, source, location)
    if shape == type.shape:
        return source
    have, want = static_shape(type.shape), static_shape(shape)
    if have is not None and want is not None and prod(have) != prod(want):
        raise bad_view(
            "the view has another number of elements than the tensor",
            location,
            expected=f"{prod(have)} elements, as in {have}",
            found=f"{prod(want)} elements, in {want}",
        )
    # The coordinate is numbered row by row before a layout is applied: it stays the same.
    result = TensorType(tuple(shape), type.dtype, type.space, type.layout, type.align)
    return Reshape(source, result, location=location)


def relayout(source: Expr, shape: Sequence[Expr], layout: Any, location: Location | None) -> Expr:
    """View the storage under a shape and a layout of its own.

    Raises `FrontendError`: `bad-layout` if shape and layout disagree, `bad-view` if the view
    would reach beyond the storage of the source.
    """
    type = tensor_type(source)
    if type.space is not Space.LOCAL:
        shape = _infer(shape, source, location)
    elif any(as_constant(extent) == -1 for extent in shape):
        shape = _infer_from_layout(shape, layout, location)
    resolved = resolve_layout(layout, shape, type.space, location)
    for axis in (TLane.name, TCol.name) if type.space is Space.TMEM else (m.name,):
        held, reached = _span(type.layout, type.shape, axis), _span(resolved, shape, axis)
        if held is not None and reached is not None and reached > held:
            raise bad_view(
                "the view reaches beyond the storage of the tensor",
                location,
                expected=f"at most {held} elements along the axis {axis}",
                found=f"{reached} elements, in {resolved!r}",
            )
    result = TensorType(tuple(shape), type.dtype, type.space, resolved, type.align)
    return Relayout(source, result, location=location)


def _infer_from_layout(
    shape: Sequence[Expr], layout: Any, location: Location | None
) -> tuple[Expr, ...]:
    rest = static_shape([extent for extent in shape if as_constant(extent) != -1])
    if len(shape) - len(rest or ()) != 1 or rest is None or layout == "default" or layout is None:
        raise bad_view("the extent -1 cannot be inferred from the layout", location)
    missing = int32(layout.size() // max(prod(rest), 1))
    return tuple(missing if as_constant(extent) == -1 else extent for extent in shape)


def _span(layout: Any, shape: Sequence[Expr], axis: str) -> int | None:
    """Count the cells of the storage that a layout reaches, where that is known."""
    if layout is None:
        extents = static_shape(shape)
        return None if extents is None else prod(extents)
    return layout.span(axis)


def permute(source: Expr, axes: Sequence[int], location: Location | None) -> Expr:
    """View the axes in another order: axis i of the view is axis `axes[i]` of the source."""
    type = tensor_type(source)
    rank = len(type.shape)
    order = tuple(axis + rank if axis < 0 else axis for axis in axes)
    if sorted(order) != list(range(rank)):
        raise bad_view(
            "the axes are no order of the tensor's",
            location,
            expected=f"each of 0 … {rank - 1} once",
            found=str(tuple(axes)),
        )
    if order == tuple(range(rank)):
        return source
    shape = tuple(type.shape[axis] for axis in order)
    result = TensorType(shape, type.dtype, type.space, None, type.align)
    return Permute(source, order, result, location=location)


def reinterpret(source: Expr, dtype: DType, location: Location | None) -> Expr:
    """View the bits as elements of another type; the last axis is rescaled."""
    type = tensor_type(source)
    if type.dtype == dtype:
        return source
    old, new = type.dtype.bits * type.dtype.lanes, dtype.bits * dtype.lanes
    last = type.shape[-1]
    extent = as_constant(last)
    if old == new:
        scaled: Expr = last
    elif extent is None:
        scaled = binary("floordiv", binary("mul", last, old, location), new, location)
    elif int(extent) * old % new:
        raise bad_view(
            f"the last axis does not hold whole elements of {dtype}",
            location,
            expected=f"a multiple of {new} bits",
            found=f"{extent} elements of {type.dtype}, {int(extent) * old} bits",
        )
    else:
        scaled = int32(int(extent) * old // new)
    result = TensorType((*type.shape[:-1], scaled), dtype, type.space, None, type.align)
    return Reinterpret(source, result, location=location)


def subview(
    source: Expr,
    axes: Sequence[tuple[Expr, int, Expr | None]],
    location: Location | None,
    inside: bool = True,
) -> Expr:
    """View a box: for each axis its start, its step, and its extent or `None` to drop it.

    Raises `FrontendError` (`bad-index`) where a constant start or end leaves the tensor, if the
    view is to lie inside.
    """
    type = tensor_type(source)
    for (start, step, extent), whole in zip(axes if inside else (), type.shape, strict=inside):
        first, total = as_constant(start), as_constant(whole)
        count = 1 if extent is None else as_constant(extent)
        if first is None or total is None or count is None:
            continue
        last = int(first) + (int(count) - 1) * step
        if first < 0 or last >= total:
            raise FrontendError(
                "a view leaves its tensor",
                code="bad-index",
                location=location,
                expected=f"elements 0 … {int(total) - 1} of an axis",
                found=f"elements {first} … {last}",
            )
    dropped = tuple(extent is None for _, _, extent in axes)
    shape = tuple(extent for _, _, extent in axes if extent is not None)
    starts = tuple(start for start, _, _ in axes)
    steps = tuple(step for _, step, _ in axes)
    whole_tensor = shape == type.shape and not any(dropped) and set(steps) <= {1}
    if whole_tensor and all(as_constant(start) == 0 for start in starts):
        return source
    result = TensorType(shape, type.dtype, type.space, None, type.align)
    return Subview(source, starts, steps, dropped, result, location=location)


# ---------------------------------------------------------------------------- einops patterns

_TOKEN = re.compile(r"\s*(\(|\)|[A-Za-z_]\w*|1\b)")


def _parse_side(text: str, location: Location | None) -> list[list[str]]:
    """Read one side of a pattern into axes, each a list of the names that it is made of."""
    axes: list[list[str]] = []
    group: list[str] | None = None
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        opens, closes = (match is not None and match[1] == bracket for bracket in "()")
        if match is None or (opens and group is not None) or (closes and group is None):
            raise bad_view(f"the pattern {text.strip()!r} cannot be read", location)
        token, position = match[1], match.end()
        if token == "(":
            group = []
        elif token == ")":
            axes.append(group or [])
            group = None
        elif group is not None:
            group.append(token)
        else:
            axes.append([] if token == "1" else [token])
    if group is not None:
        raise bad_view(f"the pattern {text.strip()!r} lacks a )", location)
    return axes


def rearrange(source: Expr, pattern: str, sizes: dict[str, int], location: Location | None) -> Expr:
    """Split, reorder and join axes as an einops pattern says: `"m (k v) -> k m v", v=4`.

    Raises `FrontendError` (`bad-view`) for a pattern that cannot be read, names that differ on
    the two sides, or sizes that do not divide the extents.
    """
    left_text, arrow, right_text = pattern.partition("->")
    if not arrow:
        raise bad_view("a pattern has the form 'before -> after'", location, found=repr(pattern))
    left, right = _parse_side(left_text, location), _parse_side(right_text, location)
    names = [name for axis in left for name in axis]
    wanted = [name for axis in right for name in axis]
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        raise bad_view(
            "both sides of a pattern name the same axes, each once",
            location,
            found=repr(pattern),
        )
    if unknown := sizes.keys() - set(names):
        raise bad_view(
            f"the pattern {pattern!r} has no axis {', '.join(sorted(unknown))}", location
        )
    extents = _extents(source, left, sizes, pattern, location)
    split = reshape(source, [extents[name] for name in names], location)
    moved = permute(split, [names.index(name) for name in wanted], location)
    joined: list[Expr] = []
    for axis in right:
        extent: Expr = int32(1)
        for name in axis:
            extent = binary("mul", extent, extents[name], location)
        joined.append(extent)
    return reshape(moved, joined, location)


def _extents(
    source: Expr,
    left: list[list[str]],
    sizes: dict[str, int],
    pattern: str,
    location: Location | None,
) -> dict[str, Expr]:
    shape = tensor_type(source).shape
    if len(left) != len(shape):
        raise bad_view(
            f"the pattern {pattern!r} does not fit the tensor",
            location,
            expected=f"{len(shape)} axes before ->, for the shape {_spell(shape)}",
            found=f"{len(left)} axes",
        )
    extents: dict[str, Expr] = {name: int32(size) for name, size in sizes.items()}
    for axis, whole in zip(left, shape, strict=True):
        known = prod(sizes[name] for name in axis if name in sizes)
        unknown = [name for name in axis if name not in sizes]
        total = as_constant(whole)
        fits = total is None or (
            int(total) % known == 0 if len(unknown) == 1 else int(total) == known
        )
        if len(unknown) > 1 or not fits or (total is None and not unknown):
            raise bad_view(
                f"the sizes of ({' '.join(axis)}) do not make up the extent {whole}",
                location,
                expected="sizes for all names of an axis but one, whose product divides it",
                found=", ".join(f"{k}={v}" for k, v in sizes.items()) or "no sizes",
            )
        if unknown and total is not None:
            extents[unknown[0]] = int32(int(total) // known)
        elif unknown:
            extents[unknown[0]] = binary("floordiv", whole, known, location)
    return extents
