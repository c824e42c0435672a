"""Boxes of tensors, and operations in flight, in NumPy: the readable reference.

May import `base`, `isa` and `sim.eager_arithmetic`. Where the elements of a box lie is stated
element by element: `elements` gives both addresses of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.spaces import Space
from tilewright.isa.declaration import Form
from tilewright.isa.machine import Box, Lanes
from tilewright.sim.eager_arithmetic import Array

if TYPE_CHECKING:
    from tilewright.sim.eager import EagerMachine

_CHUNK = 16  # bytes that a swizzle moves, and a store writes, as one
_LINE = 128
_TF32_LOST = 13  # low bits of a float32 that a tf32 does not have
_TF32_NAN = 0x7FFFE000

# ---------------------------------------------------------------------------- in flight


@dataclass(eq=False)
class Operation:
    """An operation that has been issued: by which lanes, and of which group of each (its number).

    `taken` is what it has read: the address of a run of shared memory, and the bytes. `barriers`
    are the addresses of the mbarriers that it is seen through.
    """

    form: Form
    operands: tuple[Lanes, ...]
    mask: Array
    numbers: Array
    taken: tuple[int, Array] | None = None
    barriers: frozenset[int] = frozenset()


def take(m: EagerMachine, operation: Operation) -> None:
    """Let an operation read its source, so that it may be overwritten."""
    reads = operation.form.declaration.reads
    if reads is None or operation.taken is not None:
        return
    with m.landing(operation):
        address, size = reads(m, operation.form, *operation.operands)
    start = int(address.value)
    source = m.bytes_at(Space.SHARED, start, int(size.value), align=1, write=False)
    operation.taken = start, source.copy()


def awaited(
    m: EagerMachine, operations: Sequence[Operation], group: str, keep: int
) -> list[Operation]:
    """List what belongs to any but the last `keep` groups of an active lane."""
    last = m.committed[group] - keep
    return [
        each
        for each in operations
        if each.form.time.completes == group and np.any(m.mask & each.mask & (each.numbers < last))
    ]


# ---------------------------------------------------------------------------- boxes


def elements(box: Box) -> tuple[Array, Array, Array]:
    """Give, for each element of a box, whether the tensor has it, and its two addresses.

    The arrays have the box's axes, outermost first. PTX ISA, "Tensors"; CUDA C++ Programming
    Guide, "Tensor Memory Access Swizzle".
    """
    sizes, steps, origin, extents, strides = (
        [int(each.value) for each in listed]
        for listed in (box.sizes, box.steps, box.origin, box.extents, box.strides)
    )
    counted = np.indices(sizes[::-1])[::-1]
    inside = np.ones(sizes[::-1], np.bool_)
    where = np.full(sizes[::-1], int(box.address.value), np.int64)
    row = np.zeros(sizes[::-1], np.int64)
    for axis in reversed(range(len(sizes))):
        coordinate = origin[axis] + counted[axis] * steps[axis]
        inside &= (coordinate >= 0) & (coordinate < extents[axis])
        where += coordinate * strides[axis]
        if axis:
            row = row * sizes[axis] + counted[axis]
    place = int(box.shared.value) + row * int(box.pitch.value) + counted[0] * strides[0]
    place ^= ((place // _LINE) & int(box.swizzle.value)) * _CHUNK
    return inside, where, place


def load_box(m: EagerMachine, box: Box, fill: Lanes, rounds: Lanes) -> None:
    """Copy a box to shared memory, element by element."""
    size = int(box.strides[0].value)
    filler = np.resize(np.array([fill.value], np.uint16).view(np.uint8), size)
    inside, where, place = elements(box)
    for each in np.ndindex(inside.shape):
        data = filler
        if inside[each]:
            data = m.bytes_at(Space.GLOBAL, int(where[each]), size, align=1, write=False)
            if rounds.value:
                data = _rounded(data)
        m.bytes_at(Space.SHARED, int(place[each]), size, align=1, write=True)[:] = data


def _rounded(data: Array) -> Array:
    """Round a float32 to tf32: to nearest, ties to even; a subnormal stays."""
    bits = int(data.view(np.uint32)[0])
    if bits & 0x7FFFFFFF > 0x7F800000:
        return np.array([_TF32_NAN], np.uint32).view(np.uint8)
    half = 1 << (_TF32_LOST - 1)
    bits += half - 1 + (bits >> _TF32_LOST & 1)
    return np.array([bits >> _TF32_LOST << _TF32_LOST], np.uint32).view(np.uint8)


def store_box(m: EagerMachine, box: Box) -> None:
    """Copy a box from shared memory, element by element.

    Chunks of 16 bytes in which the tensor has an element are written whole, as far as there is
    memory.
    """
    size = int(box.strides[0].value)
    inside, where, place = elements(box)
    chunks = inside.reshape(*inside.shape[:-1], -1, _CHUNK // size)
    written = np.repeat(chunks.any(-1), _CHUNK // size, axis=-1)
    for each in np.argwhere(written):
        index = tuple(each)
        target = int(where[index])
        if inside[index] or m.region(Space.GLOBAL, target, size) is not None:
            data = m.bytes_at(Space.SHARED, int(place[index]), size, align=1, write=False)
            m.bytes_at(Space.GLOBAL, target, size, align=1, write=True)[:] = data
