"""The notation `S[shape : strides] + R[shape : strides] + offset`, and the digits it stands for.

Imports only `layout.axes` and `layout.refusal`.

    >>> (S[(8, 4) : (4 @ laneid, 1)] + R[2 : 16 @ laneid] + 5).shard[0]
    Iter(8, 4, laneid)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from operator import index
from typing import Any, SupportsIndex, cast

from tilewright.layout.axes import Axis, Offset, OffsetLike, Term, as_offset, axis_named, m
from tilewright.layout.refusal import bad_layout


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Iter:
    """One digit of a coordinate: it counts to `extent`, in steps of `stride` along `axis`."""

    extent: int
    stride: int
    axis: Axis

    def __init__(self, extent: SupportsIndex, stride: SupportsIndex, axis: Axis | str = m) -> None:
        object.__setattr__(self, "extent", _constant(extent, "extent"))
        object.__setattr__(self, "stride", _constant(stride, "stride"))
        object.__setattr__(self, "axis", axis_named(axis))
        if self.extent < 1:
            raise bad_layout(
                "an extent of a layout must be positive", expected="1 or more", found=str(extent)
            )

    @property
    def reach(self) -> int:
        """Measure the distance from the first value to the last, negative for a negative stride."""
        return (self.extent - 1) * self.stride

    def scaled(self, factor: int) -> Iter:
        """Multiply the stride."""
        return Iter(self.extent, self.stride * factor, self.axis)

    def spell_stride(self) -> str:
        """Write the stride as a program does: `4`, or `4 @ laneid`."""
        return str(self.stride) if self.axis == m else repr(Term(self.stride, self.axis))

    def __repr__(self) -> str:
        return f"Iter({self.extent}, {self.stride}, {self.axis})"


Iters = tuple[Iter, ...]


@dataclass(frozen=True, slots=True)
class LayoutSpec:
    """What `TileLayout` is built from: shards, replicas and an offset; specs add up."""

    shard: Iters = ()
    replica: Iters = ()
    offset: Offset = field(default_factory=Offset)

    def __add__(self, other: LayoutSpec | OffsetLike) -> LayoutSpec:
        more = other if isinstance(other, LayoutSpec) else LayoutSpec(offset=as_offset(other))
        return LayoutSpec(
            self.shard + more.shard, self.replica + more.replica, self.offset + more.offset
        )

    def __radd__(self, other: OffsetLike) -> LayoutSpec:
        return LayoutSpec(offset=as_offset(other)) + self


@dataclass(frozen=True, slots=True)
class SpecBuilder:
    """Give `S` and `R` their subscript notation."""

    replicates: bool

    def __getitem__(self, key: Any) -> LayoutSpec:
        extents, strides = _subscript(key)
        iters = _iters(_as_tuple(extents), None if strides is None else _as_tuple(strides))
        return LayoutSpec(replica=iters) if self.replicates else LayoutSpec(shard=iters)


S = SpecBuilder(replicates=False)
R = SpecBuilder(replicates=True)


def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Give the strides of a compact row-major array of that shape, in elements."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def spell_iters(iters: Iters) -> str:
    """Write digits as the subscript of `S` or `R`."""
    extents = [str(each.extent) for each in iters]
    strides = [each.spell_stride() for each in iters]
    if len(iters) == 1:
        return f"{extents[0]} : {strides[0]}"
    return f"({', '.join(extents)}) : ({', '.join(strides)})"


def _subscript(key: Any) -> tuple[Any, Any]:
    if not isinstance(key, slice):
        return key, None
    pair = cast("slice[Any, Any, Any]", key)
    return pair.start, pair.stop


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(cast(Sequence[Any], value)) if isinstance(value, (tuple, list)) else (value,)


def _iters(extents: tuple[Any, ...], strides: tuple[Any, ...] | None) -> Iters:
    if strides is None:
        strides = compact_strides([_constant(extent, "extent") for extent in extents])
    if len(extents) != len(strides):
        raise bad_layout(
            "a layout needs one stride for each extent",
            expected=f"{len(extents)} strides",
            found=f"{len(strides)} strides",
        )
    return tuple(map(_iter, extents, strides))


def _iter(extent: Any, stride: Any) -> Iter:
    match stride:
        case Term():
            return Iter(extent, stride.value, stride.axis)
        case Axis() | str():
            return Iter(extent, 1, stride)
        case _:
            return Iter(extent, stride, m)


def _constant(value: Any, role: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise bad_layout(
            f"the {role}s of a layout are constants",
            expected="an integer, or a stride such as 4 @ laneid",
            found=repr(value),
        ) from None
