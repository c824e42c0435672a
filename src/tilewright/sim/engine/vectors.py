"""Vectors of numbers, which the engine keeps as one integer of their bits, the first in the lowest.

May import `base`, `isa` and the modules of `engine` below it. The integer has a power of two of
bits; in memory a vector has as many bytes as its elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import UINT8, DType
from tilewright.base.spaces import Space
from tilewright.isa.machine import Lanes
from tilewright.sim.engine.native import NativeMachine

_WIDEST = 16  # bytes that are moved as one number


def plain(dtype: DType) -> DType:
    """Give the integer that holds a vector's bits; scalars stay as they are."""
    if dtype.lanes == 1:
        return dtype
    return _integer(1 << (dtype.bits * dtype.lanes - 1).bit_length())


def shuffle(
    m: NativeMachine, sources: Sequence[tuple[Lanes, DType]], places: Sequence[int], dtype: DType
) -> Lanes:
    """Take elements of vectors and numbers, laid end to end, by their places."""
    elements = [(value, kind, lane) for value, kind in sources for lane in range(kind.lanes)]
    chosen = [_element(m, *elements[place]) for place in places]
    return chosen[0] if dtype.lanes == 1 else _joined(m, chosen, plain(dtype))


def load(m: NativeMachine, space: Space, address: Lanes, dtype: DType) -> Lanes:
    """Load a number, or a vector, in each active lane."""
    if dtype.lanes == 1:
        return m.load(space, address, dtype)[0]
    unit, count = _units(dtype)
    if dtype.bytes & (dtype.bytes - 1):
        parts = [m.load(space, address + at * unit.bytes, unit)[0] for at in range(count)]
    else:
        parts = m.load(space, address, unit, count)
    return _joined(m, parts, plain(dtype))


def store(m: NativeMachine, space: Space, address: Lanes, value: Lanes, dtype: DType) -> None:
    """Store a number, or a vector, in each active lane."""
    if dtype.lanes == 1:
        m.store(space, address, [value])
        return
    unit, count = _units(dtype)
    pieces = unit.vector(count)
    whole = m.cast(value, unit) if count == 1 else value
    parts = [_element(m, whole, pieces, at) for at in range(count)]
    if dtype.bytes & (dtype.bytes - 1):
        for at, part in enumerate(parts):
            m.store(space, address + at * unit.bytes, [part])
    else:
        m.store(space, address, parts)


def _units(dtype: DType) -> tuple[DType, int]:
    """Say in what numbers a vector is moved, and how many."""
    size = dtype.bytes
    width = min(size & -size, _WIDEST)
    return _integer(8 * width), size // width


def _element(m: NativeMachine, value: Lanes, kind: DType, lane: int) -> Lanes:
    if kind.lanes == 1:
        return value
    raw = m.cast(value >> lane * kind.bits, _bits(kind))
    if kind.bits < 8:
        raw = raw & ((1 << kind.bits) - 1)
    return raw != 0 if kind.is_bool else m.bitcast(raw, kind.scalar)


def _joined(m: NativeMachine, elements: Sequence[Lanes], whole: DType) -> Lanes:
    found = m.constant(0, whole)
    for lane, each in enumerate(elements):
        kind = each.dtype
        raw = m.cast(each, UINT8) if kind.is_bool else m.bitcast(each, _bits(kind))
        found = found | (m.cast(raw, whole) << lane * kind.bits)
    return found


def _bits(kind: DType) -> DType:
    """Give the integer that holds the bits of an element in a register."""
    return _integer(max(kind.bits, 8))


def _integer(bits: int) -> DType:
    return DType(f"uint{bits}", "uint", bits)
