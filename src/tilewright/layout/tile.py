"""`TileLayout`: a map from coordinates to addresses, lanes, warps and columns.

Imports `base` and the modules of this folder below it. The shards are the row-major digits of a
coordinate, each with a stride along an axis; a replica says where else the same element is
stored; the offset is added to all.

    >>> TileLayout(S[(8, 4, 2) : (4 @ laneid, 1 @ laneid, 1)]).apply(3, 5, shape=(8, 8))
    {'laneid': 14, 'm': 1}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from tilewright.layout.arguments import checked
from tilewright.layout.axes import (
    Axis,
    Offset,
    OffsetLike,
    OffsetMap,
    Term,
    as_offset,
    axis_named,
    m,
    scope_of,
)
from tilewright.layout.digits import (
    canonical_replica,
    canonical_shard,
    divide_exactly,
    fuse,
    group_digits,
    groups_of,
    interleave,
    is_compact,
    pack_digits,
    slice_group,
    span_of,
)
from tilewright.layout.refusal import bad_layout
from tilewright.layout.shapes import check_order, check_region, tile_counts
from tilewright.layout.spec import Iter, Iters, LayoutSpec, compact_strides, spell_iters
from tilewright.layout.split import add, aligned_runs, flatten, scale, split_digits


@checked
@dataclass(frozen=True, init=False, repr=False)
class TileLayout:
    """A layout made of shards, replicas and an offset; immutable, compared by structure.

    `offset` holds the terms that are not zero, in the order of the axes' names. Raises
    `FrontendError` (bad-layout) for parts that are not constants.
    """

    shard: Iters
    replica: Iters
    offset: tuple[Term, ...]

    def __init__(self, spec: LayoutSpec) -> None:
        terms = (Term(value, axis) for axis, value in spec.offset.by_axis().items())
        object.__setattr__(self, "shard", spec.shard)
        object.__setattr__(self, "replica", spec.replica)
        object.__setattr__(self, "offset", tuple(sorted(terms, key=lambda t: t.axis.name)))

    @staticmethod
    def from_iters(
        shard: Iterable[Iter] = (), replica: Iterable[Iter] = (), offset: OffsetMap | None = None
    ) -> TileLayout:
        """Build a layout from its digits, and an offset for each axis."""
        return TileLayout(LayoutSpec(tuple(shard), tuple(replica), as_offset(offset or {})))

    def __repr__(self) -> str:
        parts = [f"S[{spell_iters(self.shard)}]"]
        if self.replica:
            parts.append(f"R[{spell_iters(self.replica)}]")
        parts += [str(t.value) if t.axis == m else repr(t) for t in self.offset]
        return f"TileLayout({' + '.join(parts)})"

    # What a layout maps, and where to

    @property
    def axes(self) -> tuple[Axis, ...]:
        """List the axes of the shards and of the offset, in the order in which they occur."""
        found = [each.axis for each in self.shard] + [term.axis for term in self.offset]
        return tuple(dict.fromkeys(found))

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Give the extents of the shards."""
        return tuple(each.extent for each in self.shard)

    def offset_map(self) -> dict[str, int]:
        """Give the offset along each axis that has one."""
        return {term.axis.name: term.value for term in self.offset}

    def apply(self, *coordinates: Any, shape: Sequence[int] | None = None) -> dict[str, Any]:
        """Map a coordinate to the value along each axis.

        The coordinate is numbered row by row in `shape` and split again over the shards.
        Without a shape there is either one coordinate, which numbers all elements, or one for
        each shard. Coordinates are integers, NumPy arrays or symbolic expressions, and are not
        checked against their range. An axis that depends on no coordinate gets an integer.
        Raises `FrontendError` if the shape has another number of elements.
        """
        values: dict[str, Any] = dict.fromkeys((axis.name for axis in self.axes), 0)
        for dims, extents, digits in _plan(self, self._shape_for(len(coordinates), shape)):
            linear = flatten([coordinates[dim] for dim in dims], extents)
            parts = split_digits(linear, [each.extent for each in digits])
            for part, each in zip(parts, digits, strict=True):
                if each.stride:
                    name = each.axis.name
                    values[name] = add(values[name], scale(part, each.stride))
        for term in self.offset:
            values[term.axis.name] = add(values[term.axis.name], term.value)
        return values

    def size(self, axis: str | Axis | None = None) -> int:
        """Count the elements, or only those that the shards along one axis tell apart.

        This is the product of the extents of all shards, or of those along `axis`; replicas
        are not counted, shards of stride 0 are.
        """
        where = None if axis is None else axis_named(axis)
        return prod(each.extent for each in self.shard if where in (None, each.axis))

    def span(self, axis: str | Axis = m) -> int:
        """Count the cells that a layout needs along an axis, from 0 to the highest it reaches.

        Shards, replicas and the offset count.
        """
        where = axis_named(axis)
        digits = (*self.shard, *self.replica)
        top = sum(max(each.reach, 0) for each in digits if each.axis == where)
        return 1 + top + self.offset_map().get(where.name, 0)

    def lowest(self, axis: str | Axis = m) -> int:
        """Give the lowest value along an axis: below 0 where strides or the offset are.

        Shards, replicas and the offset count.
        """
        where = axis_named(axis)
        digits = (*self.shard, *self.replica)
        bottom = sum(min(each.reach, 0) for each in digits if each.axis == where)
        return bottom + self.offset_map().get(where.name, 0)

    def displacements(self) -> list[dict[str, int]]:
        """List where each element is stored, as displacements from where `apply` puts it.

        The first is no displacement; without replicas it is the only one.
        """
        steps = [range(each.extent) for each in self.replica]
        return [self._displacement(at) for at in product(*steps)]

    # The same map, written otherwise

    def canonicalize(self) -> TileLayout:
        """Write the layout with as few digits as its order of elements allows.

        The map is the same, except that an axis all of whose values were 0 may be gone.
        """
        return self._with(canonical_shard(self.shard), canonical_replica(self.replica))

    def group(self, shape: Sequence[int]) -> tuple[TileLayout, tuple[int, ...]]:
        """Split shards so that groups of them multiply to the extents of a shape.

        Returns the layout, which maps as before, and the separators: group `i` is made of the
        shards `[separators[i] : separators[i + 1]]`, none for an extent of 1. Raises
        `FrontendError` if no splitting does it.
        """
        grouped, separators = group_digits(self.shard, shape)
        return self._with(grouped), separators

    # Other maps made of this one

    def shift(self, offset: OffsetLike | OffsetMap) -> TileLayout:
        """Add to the offset: every value along an axis grows by `offset[axis]`."""
        moved = Offset(self.offset) + as_offset(offset)
        return TileLayout(LayoutSpec(self.shard, self.replica, moved))

    def tile(
        self, outer: TileLayout, outer_shape: Sequence[int], inner_shape: Sequence[int]
    ) -> TileLayout:
        """Lay copies of this layout out as `outer` says; this one is the inner layout.

        Along each axis, at outer coordinate `x` and inner coordinate `y`:
        `value = outer(x) * width + self(y)`, where the width is the distance from the lowest to
        the highest value of this layout, plus 1. The result's coordinates are
        `x[i] * inner_shape[i] + y[i]`.
        """
        scaled = outer.scaled({axis: self.width(axis) for axis in outer.axes_with_replica()})
        return self.direct_sum(scaled, outer_shape, inner_shape)

    def tile_to(self, to_shape: Sequence[int], current_shape: Sequence[int]) -> TileLayout:
        """Repeat this layout, of `current_shape`, row by row until it covers `to_shape`."""
        counts = tile_counts(to_shape, current_shape)
        return self.tile(compact(counts), counts, current_shape)

    def direct_sum(
        self, left: TileLayout, left_shape: Sequence[int], right_shape: Sequence[int]
    ) -> TileLayout:
        """Add the values of `left`, as the outer coordinates, to those of this layout.

        `value = left(x) + self(y)` at the coordinates `x[i] * right_shape[i] + y[i]`.
        """
        outer, inner = (groups_of(left.shard, left_shape), groups_of(self.shard, right_shape))
        if len(outer) != len(inner):
            raise bad_layout(
                "two layouts are combined axis by axis",
                expected=f"{len(inner)} axes, as in {tuple(right_shape)}",
                found=f"{len(outer)} axes, in {tuple(left_shape)}",
            )
        combined = self._with(interleave(outer, inner), (*left.replica, *self.replica))
        return combined.shift(left.offset_map())

    def slice(self, shape: Sequence[int], region: Sequence[tuple[int, int]]) -> TileLayout:
        """Restrict the layout, taken in `shape`, to a box of `(begin, end)` for each axis.

        `sliced(c) == self(c + begin)`. Raises `FrontendError` for a box that leaves the shape,
        or that is no layout: one that wraps around inside a digit.
        """
        check_region(shape, region)
        shards: Iters = ()
        sliced = self
        for group, (begin, end) in zip(groups_of(self.shard, shape), region, strict=True):
            kept, start = slice_group(group, begin, end - begin)
            shards += kept
            sliced = sliced.shift(start)
        return sliced._with(shards)

    def pack(self, count: int, axis: str | Axis = m) -> TileLayout:
        """Take `count` neighbouring elements as one, along an axis.

        `packed(c) * count == self(c * count)` along `axis`; other axes keep their values. Raises
        `FrontendError` where neighbours do not lie side by side.
        """
        where = axis_named(axis)
        offset = {
            term.axis: divide_exactly(term.value, count, where)
            if term.axis == where
            else term.value
            for term in self.offset
        }
        replica = pack_digits((*self.replica, Iter(count, 1, where)), count, where)[:-1]
        return TileLayout.from_iters(pack_digits(self.shard, count, where), replica, offset)

    def unpack(self, count: int, axis: str | Axis = m) -> TileLayout:
        """Take each element as `count` neighbours along an axis.

        `unpacked(c * count + j) == self(c) * count + j` along `axis`.
        """
        where = axis_named(axis)
        wide = self.scaled({where: count})
        return wide._with((*wide.shard, Iter(count, 1, where)))

    def permute_dims(self, order: Sequence[int]) -> TileLayout:
        """Reorder the shards: shard `i` of the result is shard `order[i]` of this layout."""
        check_order(order, len(self.shard))
        return self._with(tuple(self.shard[i] for i in order))

    def permute_by_groups(self, separators: Sequence[int], order: Sequence[int]) -> TileLayout:
        """Reorder groups of shards, as `group` separates them.

        Group `i` of the result is group `order[i]` of this layout.
        """
        check_order(order, len(separators) - 1)
        return self.permute_dims(
            [k for i in order for k in range(separators[i], separators[i + 1])]
        )

    # Questions

    def is_trivial(self) -> bool:
        """Tell the identity: element number `i` lies at address `i`, and nowhere else."""
        plain = self.canonicalize()
        same = all(each == Iter(each.extent, 1, m) for each in fuse(plain.shard))
        return same and len(plain.shard) < 2 and not plain.replica and not plain.offset

    def is_contiguous(self, axis: str | Axis = m) -> bool:
        """Tell whether the values along an axis fill an interval, each `size(axis)` once.

        What the other axes tell apart, such as lanes, is not looked at.
        """
        where = axis_named(axis)
        return is_compact(tuple(each for each in self.shard if each.axis == where))

    def get_scope(self) -> tuple[str, str] | None:
        """Name the smallest unit and the largest group that the thread axes number.

        `laneid` gives ("thread", "warp"), `laneid` with `warpid` ("thread", "cta"). `None` where
        there is no thread axis, or where they leave a gap or number the same threads twice.
        """
        return scope_of(self.axes_with_replica())

    def check_well_formed(self) -> None:
        """Raise `FrontendError` if the thread axes do not number one group of threads."""
        threads = [axis.name for axis in self.axes_with_replica() if axis.is_thread]
        if threads and self.get_scope() is None:
            raise bad_layout(
                "the thread axes of a layout do not fit together",
                expected="axes that number a unit in a group, that group in a larger one, …",
                found=", ".join(threads),
                hint="laneid goes with warpid or wid_in_wg, tid_in_wg with wgid, tx stands alone",
            )

    # For the layouts that hold one

    def axes_with_replica(self) -> tuple[Axis, ...]:
        """List every axis of the layout, those of replicas only last."""
        return tuple(dict.fromkeys((*self.axes, *(each.axis for each in self.replica))))

    def width(self, axis: Axis) -> int:
        """Measure from the lowest to the highest value along an axis, plus 1."""
        return span_of((*self.shard, *self.replica), axis)

    def scaled(self, factors: Mapping[Axis, int]) -> TileLayout:
        """Multiply the values along each axis by a factor."""
        scaled = (
            tuple(each.scaled(factors.get(each.axis, 1)) for each in iters)
            for iters in (self.shard, self.replica)
        )
        offset = {term.axis: term.value * factors.get(term.axis, 1) for term in self.offset}
        return TileLayout.from_iters(*scaled, offset=offset)

    def _with(self, shard: Iters, replica: Iters | None = None) -> TileLayout:
        kept = self.replica if replica is None else replica
        return TileLayout(LayoutSpec(shard, kept, Offset(self.offset)))

    def _shape_for(self, count: int, shape: Sequence[int] | None) -> tuple[int, ...]:
        extents = self.shard_shape if shape is None else tuple(shape)
        if shape is None and count == 1:
            extents = (self.size(),)
        if len(extents) != count:
            raise bad_layout(
                f"a coordinate of {count} does not fit the shape {extents}",
                expected=f"{len(extents)} coordinates",
                found=f"{count} coordinates",
            )
        return extents

    def _displacement(self, at: Sequence[int]) -> dict[str, int]:
        moved: dict[str, int] = {}
        for position, each in zip(at, self.replica, strict=True):
            moved[each.axis.name] = moved.get(each.axis.name, 0) + position * each.stride
        return moved


def compact(shape: Sequence[int]) -> TileLayout:
    """Give the compact row-major layout of a shape, with one shard for each axis."""
    return TileLayout.from_iters(map(Iter, shape, compact_strides(shape)))


Plan = tuple[tuple[range, tuple[int, ...], Iters], ...]


@lru_cache(maxsize=4096)
def _plan(layout: TileLayout, shape: tuple[int, ...]) -> Plan:
    """Say which axes of a shape are flattened together, and which digits they are split into."""
    if layout.size() != prod(shape):
        raise bad_layout(
            f"the shape {shape} does not fit the layout {layout!r}",
            expected=f"{layout.size()} elements",
            found=f"{prod(shape)} elements",
        )
    digits = fuse(layout.shard)
    runs = aligned_runs(shape, [each.extent for each in digits])
    extents = [tuple(shape[dim] for dim in run) for run in runs]
    groups = groups_of(digits, [prod(each) for each in extents])
    return tuple(zip(runs, extents, groups, strict=True))
