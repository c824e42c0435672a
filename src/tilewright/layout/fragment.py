"""Tiles that the threads of a CTA hold in registers together.

Imports NumPy and the modules of this folder below it.

    >>> rows = Fragment((4, 64), TileLayout(S[(4, 32, 2) : (2, 1 @ tx, 1)]))
    >>> rows.registers, rows.coordinates(5, 3)
    (8, (1, 11))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from tilewright.layout.axes import m, tx
from tilewright.layout.image import Values, image, images
from tilewright.layout.refusal import bad_layout
from tilewright.layout.spec import Iter, Iters
from tilewright.layout.split import add, scale
from tilewright.layout.tile import TileLayout

_WARP = 32


@dataclass(frozen=True)
class Digit:
    """A digit of a thread's number or of a register's: what it counts of an axis of the tile.

    Its value is `number // stride % extent`; each step is `weight` along the axis `dim`, which
    is `None` for a replica.
    """

    extent: int
    stride: int
    dim: int | None
    weight: int


@dataclass(frozen=True)
class Fragment:
    """Where each element of a tile is: the threads that hold it, and in which register of theirs.

    `layout` maps coordinates of `domain` to the axes `tx` (the thread's number in the CTA) and `m`
    (the register); replicas along `tx` are further threads that hold the same. The domain is
    the shape, or larger where that does not divide: what lies beyond the shape is in nobody's
    use. Raises `FrontendError` (bad-layout) for a layout that is no such map.
    """

    shape: tuple[int, ...]
    layout: TileLayout
    domain: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", self.domain or self.shape)
        fits = len(self.domain) == len(self.shape) and all(
            inner <= outer for inner, outer in zip(self.shape, self.domain, strict=True)
        )
        if not fits or self.layout.size() != prod(self.domain):
            raise bad_layout(
                f"the layout of a fragment does not fit its shape {self.shape}",
                expected=f"{prod(self.domain)} elements",
                found=f"{self.layout.size()} elements, in {self.layout!r}",
            )
        strange = [each.name for each in self.layout.axes_with_replica() if each not in (tx, m)]
        moving = [each for each in self.layout.replica if each.axis != tx]
        if strange or moving or not self._is_injective():
            raise bad_layout(
                "the layout of a fragment gives each element a thread, and a register there",
                expected="places of their own along tx and m, replicas along tx",
                found=repr(self.layout),
            )

    def _is_injective(self) -> bool:
        threads, registers = self.owners
        places = (threads * (int(registers.max()) + 1) + registers).ravel()
        return bool(places.min() >= 0 and np.bincount(places).max() <= 1)

    # ---- how many

    @property
    def threads(self) -> int:
        """Count the threads from the first to the last that hold something."""
        return self.layout.span(tx)

    @property
    def registers(self) -> int:
        """Count the registers of a thread, elements of the tile's type."""
        return self.layout.span(m)

    @property
    def replicas(self) -> int:
        """Count the threads that hold one element."""
        return prod(each.extent for each in self.layout.replica)

    # ---- from a coordinate to its place

    def place(self, coordinates: Sequence[Any]) -> tuple[Any, Any]:
        """Give the first thread that holds an element, and the register.

        Coordinates are integers, NumPy arrays or symbolic expressions.
        """
        found = self.layout.apply(*coordinates, shape=self.domain)
        return found.get(tx.name, 0), found.get(m.name, 0)

    @cached_property
    def owners(self) -> tuple[Values, Values]:
        """Map the domain: the threads, with the replicas along a first axis, and the register."""
        threads = [each.get(tx.name, 0) for each in images(self.layout, self.domain)]
        zero = np.zeros(self.domain, dtype=np.int64)
        first = image(self.layout, self.domain)
        return np.stack([zero + each for each in threads]), first.get(m.name, zero)

    # ---- from a place to the coordinate

    @cached_property
    def digits(self) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
        """List the digits of a thread's number and of a register's, largest stride first.

        Together they say which element a thread has in a register. Raises `FrontendError`
        (bad-layout) where the digits of either overlap.
        """
        grouped, separators = self.layout.group(self.domain)
        found: list[tuple[Iter, int | None, int]] = []
        for dim, (start, stop) in enumerate(pairwise(separators)):
            weight = self.domain[dim]
            for each in grouped.shard[start:stop]:
                weight //= each.extent
                found.append((each, dim, weight))
        found += [(each, None, 0) for each in self.layout.replica if each.extent > 1]
        return _ordered(found, tx.name), _ordered(found, m.name)

    def coordinates(self, thread: Any, register: Any) -> tuple[Any, ...]:
        """Give the element that a thread holds in a register.

        Both are integers, NumPy arrays or symbolic expressions. Beyond `shape` there is none.
        """
        values: list[Any] = [0] * len(self.shape)
        for number, digits in zip((thread, register), self.digits, strict=True):
            top = self.threads if number is thread else self.registers
            for each in digits:
                if each.dim is not None:
                    value = digit_of(number, each, top)
                    values[each.dim] = add(values[each.dim], scale(value, each.weight))
        return tuple(values)

    # ---- what an axis is made of

    @cached_property
    def groups(self) -> tuple[Iters, ...]:
        """List the digits of each axis, the outermost first."""
        grouped, separators = self.layout.group(self.domain)
        return tuple(grouped.shard[start:stop] for start, stop in pairwise(separators))

    def is_whole(self, dim: int) -> bool:
        """Tell whether a thread that has an element has all that differ along an axis only."""
        return all(each.axis == m for each in self.groups[dim])

    def drawn(self, beside: Fragment | None = None, rows: int = 4, columns: int = 8) -> str:
        """Draw some elements as a table of `thread:register`, for people.

        They are the first, or the first that lie elsewhere in a fragment of the same shape.
        """
        flat = (prod(self.shape[:-1]), self.shape[-1])
        owner, register = self._first_places()
        top = left = 0
        if beside is not None and beside.shape == self.shape:
            other = beside._first_places()
            apart = np.argwhere((owner != other[0]).reshape(flat))
            if apart.size:
                top, left = (int(each) for each in apart[0])
        left = max(min(left, flat[1] - columns), 0)
        owner, register = owner.reshape(flat), register.reshape(flat)
        lines = [f"from element [{top}, {left}] on:"] if top or left else []
        for i in range(top, min(flat[0], top + rows)):
            cells = [
                f"{owner[i, j]}:{register[i, j]}".rjust(6)
                for j in range(left, min(flat[1], left + columns))
            ]
            lines.append("".join(cells) + " …" * (left + columns < flat[1]))
        return "\n".join([*lines, *["  …"] * (top + rows < flat[0])])

    def _first_places(self) -> tuple[Values, Values]:
        threads, registers = self.owners
        box = tuple(slice(0, extent) for extent in self.shape)
        return threads[(slice(None), *box)].min(axis=0), registers[box]

    # ---- other fragments

    def without(self, dim: int, keep: bool = False) -> Fragment:
        """Give the fragment of what is left of a tile that is reduced along an axis.

        All threads that hold a part hold the whole then. With `keep` the axis stays, with extent 1.
        """
        shape = tuple(each for at, each in enumerate(self.shape) if at != dim)
        domain = tuple(each for at, each in enumerate(self.domain) if at != dim)
        grouped, separators = self.layout.group(self.domain)
        gone = range(separators[dim], separators[dim + 1])
        kept = [each for at, each in enumerate(grouped.shard) if at not in gone]
        more = [each for at, each in enumerate(grouped.shard) if at in gone and each.axis == tx]
        if keep:
            shape, domain = ((*given[:dim], 1, *given[dim:]) for given in (shape, domain))
        layout = TileLayout.from_iters(
            _renumbered(tuple(kept)), (*grouped.replica, *more), grouped.offset_map()
        )
        return Fragment(shape, layout, domain)


def replicated(shape: Sequence[int], threads: int) -> Fragment:
    """Give the fragment all of which each thread holds."""
    plain = [Iter(extent, prod(shape[at + 1 :]), m) for at, extent in enumerate(shape)]
    copies = (Iter(threads, 1, tx),) if threads > 1 else ()
    return Fragment(tuple(shape), TileLayout.from_iters(plain, copies))


def divided(
    shape: Sequence[int], threads: int, width: int = 1, lanes: int | None = None
) -> Fragment:
    """Divide a tile of any extents among threads, row by row, in runs of `width` elements.

    At most `lanes` threads share a row, if that is given and there are rows for all others.

    Threads that are left over hold nothing; an extent that does not divide is rounded up, in the
    domain, so that reductions meet powers of two of lanes. `width` is a power of two that divides
    the last extent, or counts as the greatest one that does.
    """
    *outer, last = shape
    while last % width:
        width //= 2
    digits: list[Iter] = [Iter(width, 1, m)]
    domain: list[int] = []
    registers, step = width, 1
    few = threads
    if lanes is not None and prod(outer) * lanes >= threads:
        few = min(lanes, threads)
    for at, extent in enumerate((last // width, *reversed(outer))):
        share = _share(extent, (few if at == 0 else threads) // step, step)
        turns = -(-extent // share)
        digits[:0] = [Iter(turns, registers, m), Iter(share, step, tx)]
        registers, step = registers * turns, step * share
        domain.insert(0, turns * share)
    domain[-1] *= width
    kept = [each for each in digits if each.extent > 1] or [Iter(1, 1, m)]
    return Fragment(tuple(shape), TileLayout.from_iters(kept), tuple(domain))


def _share(extent: int, threads: int, step: int) -> int:
    """Choose how many threads an axis is divided among, each `step` from the one before."""
    whole = 1 << (extent - 1).bit_length() if extent > 1 else 1
    if whole <= threads:
        return whole
    least = -(-extent // -(-extent // threads))
    return min(threads, -(-least // _WARP) * _WARP if step == 1 else least)


def digit_of(number: Any, digit: Digit, top: int) -> Any:
    """Read a digit of a number below `top`, with no operation that changes nothing."""
    value = number // digit.stride if digit.stride > 1 else number
    return value % digit.extent if digit.stride * digit.extent < top else value


def _ordered(found: Sequence[tuple[Iter, int | None, int]], axis: str) -> tuple[Digit, ...]:
    own = [
        Digit(each.extent, each.stride, dim, weight)
        for each, dim, weight in found
        if each.axis.name == axis and each.extent > 1
    ]
    own.sort(key=lambda each: each.stride)
    for inner, outer in pairwise(own):
        if outer.stride % (inner.stride * inner.extent):
            raise bad_layout(
                "the digits of a fragment's layout overlap",
                expected=f"strides along {axis}, each a multiple of what the smaller ones count to",
                found=f"{inner.extent} steps of {inner.stride}, and steps of {outer.stride}",
            )
    return tuple(reversed(own))


def _renumbered(shard: Iters) -> Iters:
    """Close the gaps that digits which are gone leave in the numbers of registers."""
    own = sorted((each for each in shard if each.axis == m), key=lambda each: each.stride)
    strides: dict[int, int] = {}
    following = 1
    for each in own:
        strides[id(each)] = following
        following *= each.extent
    return tuple(
        Iter(each.extent, strides[id(each)], m) if each.axis == m else each for each in shard
    ) or (Iter(1, 1, m),)
