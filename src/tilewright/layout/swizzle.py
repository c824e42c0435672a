"""`ComposeLayout`: a tile layout whose addresses are swizzled.

Imports `layout.tile` and below. A swizzle is an XOR of some bits of the address into others; it
permutes each block of `2 ** (per_element + atom_len + swizzle_len)` addresses (PTX ISA,
"Swizzling modes").

    >>> ComposeLayout(3, 3, 3, TileLayout(S[512 : 1])).apply(9, 17, shape=(16, 32))
    {'m': 273}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.layout.arguments import checked
from tilewright.layout.axes import Axis, OffsetLike, OffsetMap, axis_named, m
from tilewright.layout.refusal import bad_layout
from tilewright.layout.shapes import tile_counts
from tilewright.layout.tile import TileLayout, compact


@checked
@dataclass(frozen=True, repr=False)
class ComposeLayout:
    """A tile layout followed by a swizzle of its address on the axis `m`.

    `2 ** per_element` elements stay together; `swizzle_len` bits of the address above them are
    XORed with the bits `atom_len` higher (or, if not `swizzle_inner`, those into these).
    """

    per_element: int
    swizzle_len: int
    atom_len: int
    tile_layout: TileLayout
    swizzle_inner: bool = True

    def __post_init__(self) -> None:
        # Bits that are XORed with themselves would all become 0.
        erased = self.swizzle_len > 0 and self.atom_len == 0
        if erased or min(self.per_element, self.swizzle_len, self.atom_len) < 0:
            raise bad_layout(
                "the parameters of a swizzle are numbers of bits",
                expected="0 or more, and an atom_len of 1 or more",
                found=f"{self.per_element}, {self.swizzle_len}, {self.atom_len}",
            )

    def __repr__(self) -> str:
        inner = "" if self.swizzle_inner else ", swizzle_inner=False"
        bits = f"{self.per_element}, {self.swizzle_len}, {self.atom_len}"
        return f"ComposeLayout({bits}, {self.tile_layout!r}{inner})"

    @property
    def period(self) -> int:
        """Count the addresses after which the swizzle repeats, in elements."""
        return 1 << (self.per_element + self.atom_len + self.swizzle_len)

    @property
    def block(self) -> int:
        """Count the addresses of an aligned block that the swizzle does not leave."""
        low = self.per_element + (0 if self.swizzle_inner else self.atom_len)
        return 1 << (low + self.swizzle_len)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """List the axes of the tile layout."""
        return self.tile_layout.axes

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Give the extents of the tile layout's shards."""
        return self.tile_layout.shard_shape

    def swizzle(self, address: Any) -> Any:
        """Swizzle an address: an integer, a NumPy array or a symbolic expression."""
        if self.swizzle_len == 0:
            return address
        mask = (1 << self.swizzle_len) - 1
        if self.swizzle_inner:
            picked = address & (mask << (self.per_element + self.atom_len))
            return address ^ (picked >> self.atom_len)
        picked = address & (mask << self.per_element)
        return address ^ (picked << self.atom_len)

    def apply(self, *coordinates: Any, shape: Sequence[int] | None = None) -> dict[str, Any]:
        """Map a coordinate to the value along each axis; see `TileLayout.apply`."""
        values = self.tile_layout.apply(*coordinates, shape=shape)
        return {k: self.swizzle(v) if k == m.name else v for k, v in values.items()}

    def size(self, axis: str | Axis | None = None) -> int:
        """Count the elements; see `TileLayout.size`."""
        return self.tile_layout.size(axis)

    def span(self, axis: str | Axis = m) -> int:
        """Count the cells that a layout needs along an axis: whole blocks of the swizzle."""
        cells = self.tile_layout.span(axis)
        return cells if axis_named(axis) != m else -(-cells // self.block) * self.block

    def lowest(self, axis: str | Axis = m) -> int:
        """Give what no value along an axis is below: the start of a block of the swizzle."""
        value = self.tile_layout.lowest(axis)
        return value if axis_named(axis) != m else value // self.block * self.block

    def displacements(self) -> list[dict[str, int]]:
        """List the displacements of the tile layout, which apply before the swizzle."""
        return self.tile_layout.displacements()

    def canonicalize(self) -> ComposeLayout | TileLayout:
        """Write the tile layout canonically; without swizzled bits, it is the result."""
        plain = self.tile_layout.canonicalize()
        return self._over(plain) if self.swizzle_len else plain

    def group(self, shape: Sequence[int]) -> tuple[ComposeLayout, tuple[int, ...]]:
        """Group the tile layout; see `TileLayout.group`."""
        grouped, separators = self.tile_layout.group(shape)
        return self._over(grouped), separators

    def shift(self, offset: OffsetLike | OffsetMap) -> ComposeLayout:
        """Add to the offset of the tile layout, before the swizzle."""
        return self._over(self.tile_layout.shift(offset))

    def tile(
        self, outer: TileLayout, outer_shape: Sequence[int], inner_shape: Sequence[int]
    ) -> ComposeLayout:
        """Lay copies of this layout out as `outer` says; see `TileLayout.tile`.

        Raises `FrontendError` if a copy would not begin where the swizzle repeats.
        """
        width = self.tile_layout.width(m)
        if width % self.period and outer.width(m) > 1:
            raise bad_layout(
                "copies of a swizzled layout do not begin where the swizzle repeats",
                expected=f"a multiple of {self.period} elements",
                found=f"{width} elements",
            )
        return self._over(self.tile_layout.tile(outer, outer_shape, inner_shape))

    def tile_to(self, to_shape: Sequence[int], current_shape: Sequence[int]) -> ComposeLayout:
        """Repeat this layout, of `current_shape`, row by row until it covers `to_shape`."""
        counts = tile_counts(to_shape, current_shape)
        return self.tile(compact(counts), counts, current_shape)

    def direct_sum(
        self, left: TileLayout, left_shape: Sequence[int], right_shape: Sequence[int]
    ) -> ComposeLayout:
        """Add the values of `left` before the swizzle; see `TileLayout.direct_sum`."""
        return self._over(self.tile_layout.direct_sum(left, left_shape, right_shape))

    def slice(self, shape: Sequence[int], region: Sequence[tuple[int, int]]) -> ComposeLayout:
        """Restrict the layout to a box; see `TileLayout.slice`."""
        return self._over(self.tile_layout.slice(shape, region))

    def pack(self, count: int, axis: str | Axis = m) -> ComposeLayout:
        """Take `count` neighbours as one; a power of two of those that stay together."""
        bits = _bits_of(count)
        if axis_named(axis) != m:
            return self._over(self.tile_layout.pack(count, axis))
        if bits > self.per_element:
            raise bad_layout(
                f"elements of a swizzled layout cannot be packed by {count}",
                expected=f"at most the {1 << self.per_element} that stay together",
                found=str(count),
            )
        return replace(
            self, per_element=self.per_element - bits, tile_layout=self.tile_layout.pack(count)
        )

    def unpack(self, count: int, axis: str | Axis = m) -> ComposeLayout:
        """Take each element as `count` neighbours, a power of two."""
        if axis_named(axis) != m:
            return self._over(self.tile_layout.unpack(count, axis))
        wider = self.per_element + _bits_of(count)
        return replace(self, per_element=wider, tile_layout=self.tile_layout.unpack(count))

    def permute_dims(self, order: Sequence[int]) -> ComposeLayout:
        """Reorder the shards; see `TileLayout.permute_dims`."""
        return self._over(self.tile_layout.permute_dims(order))

    def permute_by_groups(self, separators: Sequence[int], order: Sequence[int]) -> ComposeLayout:
        """Reorder groups of shards; see `TileLayout.permute_by_groups`."""
        return self._over(self.tile_layout.permute_by_groups(separators, order))

    def is_trivial(self) -> bool:
        """Tell the identity: no swizzled bits over a trivial layout."""
        return self.swizzle_len == 0 and self.tile_layout.is_trivial()

    def is_contiguous(self, axis: str | Axis = m) -> bool:
        """Tell whether the addresses fill an interval, in whatever order."""
        if not self.tile_layout.is_contiguous(axis) or axis_named(axis) != m:
            return self.tile_layout.is_contiguous(axis)
        whole = self.size(m) % self.block == 0
        return whole and self.tile_layout.offset_map().get(m.name, 0) % self.block == 0

    def get_scope(self) -> tuple[str, str] | None:
        """Name the unit and the group of the thread axes; see `TileLayout.get_scope`."""
        return self.tile_layout.get_scope()

    def check_well_formed(self) -> None:
        """Raise `FrontendError` if the thread axes do not number one group of threads."""
        self.tile_layout.check_well_formed()

    def _over(self, tile: TileLayout) -> ComposeLayout:
        return replace(self, tile_layout=tile)


Layout = TileLayout | ComposeLayout


def _bits_of(count: int) -> int:
    if count < 1 or count & (count - 1):
        raise bad_layout(
            "a swizzled layout is packed by powers of two", expected="1, 2, 4, …", found=str(count)
        )
    return count.bit_length() - 1
