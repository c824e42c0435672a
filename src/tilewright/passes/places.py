"""Where an element of a view lies: the chain of a view's maps, from coordinates to storage.

May import `base`, `layout`, `ir` and NumPy. The maps are evaluated over whatever stands for a
coordinate: IR expressions (to emit an address), NumPy arrays (to prove facts by enumeration),
or a start with an array of constants (`analysis.separation`). An index counts even along an
axis of extent 1: out of range, it must lead to an address that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, pairwise
from math import prod
from typing import Any

import numpy as np

from tilewright.base.errors import CompilerBug, FrontendError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    VIEWS,
    Expr,
    Permute,
    Reinterpret,
    Relayout,
    Reshape,
    Subview,
    Var,
    as_constant,
    int32,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.types import TensorType
from tilewright.layout import TCol, default_layout, m
from tilewright.layout.split import carry_units, flatten, split_digits

Valued = Callable[[Expr], Any]


@dataclass(frozen=True)
class Place:
    """The place of an element: `sum(value * bytes)` bytes into the storage that `root` names.

    `axes` are the values along the other axes of the layout, such as lanes. In Tensor Memory
    bytes are counted along the columns, of which each has four, and `TLane` is an axis.
    """

    root: Var
    terms: tuple[tuple[Any, int], ...]
    axes: dict[str, Any] = field(default_factory=dict[str, Any])


def chain(view: Expr) -> Iterator[Expr]:
    """Yield a view, what it is taken of, and so on to the buffer."""
    while not isinstance(view, Var):
        assert isinstance(view, VIEWS), view
        yield view
        view = view.source
    yield view


def root_of(view: Expr) -> Var:
    """Find the buffer that a view is taken of."""
    *_, root = chain(view)
    assert isinstance(root, Var)
    return root


def in_range(view: Expr) -> Expr:
    """Start a view at 0 along axes of extent 1, as it does in range: the view to prove facts of."""
    if not isinstance(view, VIEWS):
        return view
    source = in_range(view.source)
    if isinstance(view, Subview):
        extents = tensor_type(source).shape
        starts = tuple(
            int32(0) if as_constant(extent) == 1 else start
            for start, extent in zip(view.starts, extents, strict=True)
        )
        if starts != view.starts:
            return replace(view, source=source, starts=starts)
    return view if source is view.source else replace(view, source=source)


def laid_out_by(view: Expr) -> TensorType:
    """Find the type whose layout places a view's elements: of a `Relayout`, or of the buffer."""
    return tensor_type(next(each for each in chain(view) if isinstance(each, Relayout | Var)))


def storage_bytes(kind: TensorType) -> int:
    """Count the bytes that a buffer takes, of one thread for registers.

    Raises `FrontendError` (not-constant) for a shape that is not constant.
    """
    extents = static_shape(kind.shape)
    if extents is None:
        raise FrontendError("the shape of a buffer must be constant", code="not-constant")
    cells = prod(extents) if kind.layout is None else kind.layout.span("m")
    return cells * kind.dtype.bytes


def locate(view: Expr, coordinates: Sequence[Any], value_of: Valued = lambda value: value) -> Place:
    """Follow a coordinate of a view to its place in storage.

    `value_of` brings the expressions of starts and shapes into the domain of the coordinates.
    Raises `FrontendError` (bad-view) for a view that has no addresses of its own.
    """
    match view:
        case Var():
            axes, address = _apply(tensor_type(view), coordinates, value_of)
            return Place(view, ((address, tensor_type(view).dtype.bytes),), axes)
        case Relayout():
            kind = tensor_type(view)
            rank = len(tensor_type(view.source).shape)
            origin = locate(view.source, (0,) * rank, value_of)
            axes, address = _apply(kind, coordinates, value_of)
            if kind.space is Space.TMEM:
                for name, value in origin.axes.items():
                    axes[name] = _sum(value, axes.get(name, 0))
            return Place(origin.root, (*origin.terms, (address, kind.dtype.bytes)), axes)
        case Reshape():
            inner = _resplit(coordinates, view.type.shape, tensor_type(view.source).shape, value_of)
            return locate(view.source, inner, value_of)
        case Permute():
            inner = dict(zip(view.axes, coordinates, strict=True))
            return locate(view.source, [inner[axis] for axis in range(len(inner))], value_of)
        case Subview():
            return locate(view.source, _inside(view, coordinates, value_of), value_of)
        case Reinterpret():
            return _reinterpreted(view, coordinates, value_of)
        case _:
            raise CompilerBug(
                f"{type(view).__name__} is no view", code="compiler-bug", location=view.location
            )


def is_constant(view: Expr) -> bool:
    """Tell whether all extents and starts in the chain of a view are constant."""
    return all(
        static_shape(tensor_type(each).shape) is not None
        and (not isinstance(each, Subview) or static_shape(each.starts) is not None)
        for each in chain(view)
    )


def locate_all(view: Expr) -> Place | None:
    """Locate every element of a view, by arrays; `None` for one that is not constant."""
    shape = static_shape(tensor_type(view).shape)
    if shape is None or not is_constant(view):
        return None
    return locate(view, list(np.indices(shape, sparse=True)))


def _apply(
    kind: TensorType, coordinates: Sequence[Any], value_of: Valued
) -> tuple[dict[str, Any], Any]:
    extents = static_shape(kind.shape)
    if kind.layout is None and extents is None:
        return {}, _flatten(coordinates, [value_of(extent) for extent in kind.shape])
    layout = kind.layout
    if layout is None:
        assert extents is not None
        layout = default_layout(extents)
    carried = coordinates if extents is None else carry_units(coordinates, extents)
    axes = layout.apply(*carried, shape=extents)
    address = axes.pop(TCol.name if kind.space is Space.TMEM else m.name, 0)
    return axes, address if layout.size() > 1 else _sum(address, _only(carried))


def _only(carried: Sequence[Any]) -> Any:
    """Give what coordinates count where there is one element, after `carry_units`."""
    return carried[-1] if carried else 0


def _inside(view: Subview, coordinates: Sequence[Any], value_of: Valued) -> list[Any]:
    kept = iter(coordinates)
    inner: list[Any] = []
    for start, step, dropped in zip(view.starts, view.steps, view.dropped, strict=True):
        first = as_constant(start)
        first = value_of(start) if first is None else first
        coordinate = 0 if dropped else next(kept)
        coordinate = coordinate if step == 1 else coordinate * step
        inner.append(_sum(first, coordinate))
    return inner


def _sum(left: Any, right: Any) -> Any:
    if type(left) is int and left == 0:
        return right
    return left if type(right) is int and right == 0 else left + right


def _resplit(
    coordinates: Sequence[Any], shape: Sequence[Expr], inner: Sequence[Expr], value_of: Valued
) -> list[Any]:
    """Number a coordinate row by row in one shape, and find it again in another."""
    outer_extents, inner_extents = static_shape(shape), static_shape(inner)
    if outer_extents is None or inner_extents is None:
        return _resplit_symbolic(coordinates, shape, inner, value_of)
    coordinates = carry_units(coordinates, outer_extents)
    if prod(outer_extents) == 1:
        return split_digits(_only(coordinates), inner_extents)
    cuts = _common_digits(outer_extents, inner_extents)
    if cuts is None:
        return split_digits(flatten(coordinates, outer_extents), inner_extents)
    split, joined = cuts
    digits: list[Any] = []
    for coordinate, extents in zip(coordinates, split, strict=True):
        digits += split_digits(coordinate, extents)
    rest = iter(digits)
    return [flatten(list(islice(rest, len(extents))), extents) for extents in joined]


Runs = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=4096)
def _common_digits(outer: tuple[int, ...], inner: tuple[int, ...]) -> tuple[Runs, Runs] | None:
    """Find digits that make up the axes of both shapes: their extents, by the axes of each."""
    cuts = sorted({*_boundaries(outer), *_boundaries(inner)})
    if any(b % a for a, b in pairwise(cuts)):
        return None
    return _runs(outer, cuts), _runs(inner, cuts)


def _boundaries(shape: Sequence[int]) -> list[int]:
    """Count the elements to the left of each axis, and of all."""
    return [prod(shape[:axis]) for axis in range(len(shape) + 1)]


def _runs(shape: Sequence[int], cuts: Sequence[int]) -> Runs:
    """Give the extents of the digits between the cuts that make up each axis."""
    places = [cuts.index(boundary) for boundary in _boundaries(shape)]
    return tuple(
        tuple(cuts[digit + 1] // cuts[digit] for digit in range(start, stop))
        for start, stop in pairwise(places)
    )


def _resplit_symbolic(
    coordinates: Sequence[Any], shape: Sequence[Expr], inner: Sequence[Expr], value_of: Valued
) -> list[Any]:
    """Resplit where an extent is not constant: only axes that differ are numbered anew."""
    same = 0
    while same < min(len(shape), len(inner)) - 1 and shape[same] == inner[same]:
        same += 1
    linear = _flatten(coordinates[same:], [value_of(extent) for extent in shape[same:]])
    found: list[Any] = []
    for extent in reversed(inner[same + 1 :]):
        found.append(linear % value_of(extent))
        linear = linear // value_of(extent)
    return [*coordinates[:same], linear, *reversed(found)]


def _flatten(coordinates: Sequence[Any], extents: Sequence[Any]) -> Any:
    linear: Any = 0
    for coordinate, extent in zip(coordinates, extents, strict=True):
        linear = coordinate if type(linear) is int and linear == 0 else linear * extent + coordinate
    return linear


def _reinterpreted(view: Reinterpret, coordinates: Sequence[Any], value_of: Valued) -> Place:
    """Rescale the last coordinate by the ratio of the element widths."""
    outer, inner = tensor_type(view).dtype, tensor_type(view.source).dtype
    wide, narrow = max(outer.bytes, inner.bytes), min(outer.bytes, inner.bytes)
    if outer.bits * outer.lanes % 8 or inner.bits * inner.lanes % 8 or wide % narrow:
        raise FrontendError(
            f"elements of {inner} cannot be read as {outer}",
            code="bad-view",
            location=view.location,
            expected="whole bytes, one width a multiple of the other",
        )
    *leading, last = coordinates
    ratio = wide // narrow
    if ratio == 1:
        return locate(view.source, coordinates, value_of)
    if outer.bytes == wide:
        return locate(view.source, (*leading, last * ratio), value_of)
    place = locate(view.source, (*leading, last // ratio), value_of)
    return Place(place.root, (*place.terms, (last % ratio, narrow)), place.axes)
