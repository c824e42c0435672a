"""Layouts of maps that are given as arrays: what a program says by a function of indices.

Imports NumPy and the modules of this folder below it. Each index has to count places by its digits,
whatever their extents and strides; addresses may be swizzled beside. What is found is proven to
be the same map, element by element.

    >>> recognised(np.arange(8).reshape(2, 4).T)
    TileLayout(S[(4, 2) : (1, 4)])
"""

from __future__ import annotations

from itertools import product

import numpy as np

from tilewright.layout.axes import Axis, m, tx
from tilewright.layout.fragment import Fragment
from tilewright.layout.image import Values
from tilewright.layout.refusal import bad_layout
from tilewright.layout.spec import Iter
from tilewright.layout.swizzle import ComposeLayout, Layout
from tilewright.layout.tile import TileLayout

# Swizzles that are tried: elements that stay together, bits that change, and how far above
# those that change them lie, as numbers of bits.
_TOGETHER, _CHANGED, _ABOVE = range(7), range(1, 5), range(1, 8)

# Extents and strides, the outermost first.
_Digits = list[tuple[int, int]]


def recognised(addresses: Values) -> Layout | None:
    """Find the layout that gives the elements of a tile these addresses; `None` if there is none.

    Raises `FrontendError` (bad-layout) if two elements have one address, or one lies before 0.
    """
    if addresses.min() < 0 or np.unique(addresses).size < addresses.size:
        raise bad_layout(
            "a layout gives each element an address of its own, from 0 on",
            found=f"{np.unique(addresses).size} addresses from {addresses.min()} on, "
            f"for {addresses.size} elements",
        )
    plain = _tile(addresses)
    return plain if plain is not None else _swizzled(addresses)


def recognised_fragment(threads: Values, registers: Values) -> Fragment | None:
    """Find the fragment whose elements these threads hold in these registers.

    Replicas are along the first axis of `threads`. `None` if there is none. Raises
    `FrontendError` (bad-layout) where two elements share a register of a thread.
    """
    own, apart = threads[0], threads - threads[0]
    copies = apart.reshape(apart.shape[0], -1)
    if (copies != copies[:, :1]).any() or min(own.min(), registers.min()) < 0:
        return None
    most = int(registers.max()) + 1
    joined = _axes(own * most + registers)
    replicas = _digits(copies[:, 0])
    if joined is None or replicas is None:
        return None
    shard: list[Iter] = []
    for extent, stride in joined:
        by_thread, by_register = divmod(stride, most)
        if by_thread and by_register:
            return None
        shard.append(Iter(extent, by_thread or by_register, tx if by_thread else m))
    first = {tx: int(own.flat[0]), m: int(registers.flat[0])}
    layout = TileLayout.from_iters(
        shard or [Iter(1, 1, m)],
        [Iter(extent, stride, tx) for extent, stride in replicas],
        {axis: value for axis, value in first.items() if value},
    )
    return Fragment(registers.shape, layout)


def _tile(addresses: Values) -> TileLayout | None:
    digits = _axes(addresses)
    if digits is None:
        return None
    first = int(addresses.flat[0])
    offset: dict[Axis, int] = {m: first} if first else {}
    shard = [Iter(extent, stride, m) for extent, stride in digits] or [Iter(1, 1, m)]
    return TileLayout.from_iters(shard, (), offset)


def _swizzled(addresses: Values) -> ComposeLayout | None:
    """Try to undo each swizzle."""
    top = int(addresses.max()).bit_length()
    trivial = TileLayout.from_iters([Iter(1, 1, m)])
    for together, changed, above in product(_TOGETHER, _CHANGED, _ABOVE):
        if together + above + 1 > top or above < changed:
            continue
        swizzle = ComposeLayout(together, changed, above, trivial)
        before = np.asarray(swizzle.swizzle(addresses))  # undone by itself
        tile = _tile(before)
        if tile is not None:
            return ComposeLayout(together, changed, above, tile)
    return None


def _axes(values: Values) -> _Digits | None:
    """Write a map of indices as a sum over the digits of each; `None` if it is none."""
    first = values.flat[0]
    total = np.full(values.shape, first)
    found: _Digits = []
    for axis, extent in enumerate(values.shape):
        line = tuple(slice(None) if at == axis else 0 for at in range(values.ndim))
        along = values[line] - first
        digits = _digits(along)
        if digits is None:
            return None
        found += digits
        total = total + along.reshape([extent if at == axis else 1 for at in range(values.ndim)])
    return found if np.array_equal(total, values) else None


def _digits(along: Values) -> _Digits | None:
    """Write a map of one index, which is 0 at 0, as a sum over its digits."""
    count = int(along.size)
    if count == 1:
        return []
    stride = int(along[1])
    straight = along == stride * np.arange(count)
    run = count if straight.all() else int(np.argmin(straight))
    while count % run:
        run -= 1
    if run < 2 or stride < 0:
        return None
    outer = _digits(along[::run])
    inner = along.reshape(-1, run) - along[::run, None]
    if outer is None or (inner != stride * np.arange(run)).any():
        return None
    return [*outer, (run, stride)]
