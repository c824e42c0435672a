"""How array arguments hold elements that NumPy has no types for: vectors, and numbers below a byte.

May import `base`, `ir` and `runtime.arrays`. A kernel finds the lanes of a vector side by side, and
numbers below a byte packed, the first in the lowest bits.

    held = holding(kind, array)       # None: the array is not one of such elements
    held.element_shape((32, 4), 1)    # (32,), of vectors of four
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.ir.types import PointerType, TensorType
from tilewright.runtime.arrays import Array, Raw, aligned_empty

_BYTES = ("uint8", "int8")


@dataclass(frozen=True)
class Holding:
    """What an array holds of elements of a type: `entries` of it are `elements` of them.

    `loose` is not 0 where each entry is a byte of which only so many bits count, as in arrays of
    `ml_dtypes`: the kernel is given a packed copy.
    """

    entries: int = 1
    elements: int = 1
    loose: int = 0

    def element_shape(self, shape: tuple[int, ...], rank: int) -> tuple[int, ...] | None:
        """Give the shape in elements of an array, where a parameter has `rank` axes.

        The lanes of vectors may have an axis of their own. `None` if these are no whole elements.
        """
        if self.entries == self.elements:
            return shape
        if len(shape) == rank + 1 and self.elements == 1 and shape[-1] == self.entries:
            return shape[:-1]
        if not shape or shape[-1] % self.entries:
            return None
        return (*shape[:-1], shape[-1] // self.entries * self.elements)

    def element_strides(self, raw: Raw, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Give the bytes from element to element along each axis of a shape in elements.

        `None` if elements are parts of entries, or their entries do not lie side by side.
        """
        if self.elements != 1:
            return None
        apart = raw.reshape(*shape, self.entries).strides
        return apart[:-1] if self.entries == 1 or apart[-1] == raw.itemsize else None


def holding(kind: TensorType | PointerType, array: Array) -> Holding | None:
    """Say how an array holds the elements of a parameter; `None` if they are not its own.

    A pointer to bytes, such as `T.handle`, takes any array.
    """
    own, found, wanted = array.dtype, array.raw, kind.dtype
    if found is None:
        return None
    if takes_any(kind) or (own == wanted and wanted.bits % 8 == 0):
        return Holding()
    if own is None:
        return None
    if wanted.bits % 8 == 0:
        return Holding(entries=wanted.lanes) if own == wanted.scalar else None
    if own == wanted.scalar:
        return Holding(entries=wanted.lanes, loose=wanted.bits)
    packed = own.base == wanted.base and own.lanes > 1
    if found.itemsize != 1 or not (packed or own.name in _BYTES):
        return None
    bits = wanted.bits * wanted.lanes
    common = gcd(bits, 8)
    return Holding(entries=bits // common, elements=8 // common)


def takes_any(kind: TensorType | PointerType) -> bool:
    """Tell a pointer to bytes: what lies there is for the kernel to say."""
    return isinstance(kind, PointerType) and kind.dtype.name == "uint8"


def alignment(kind: TensorType | PointerType) -> int:
    """Give the bytes to which the memory of a parameter is aligned."""
    size = 1 if takes_any(kind) else kind.dtype.bytes
    return max(kind.align, size & -size)


def unit(kind: DType) -> DType:
    """Give the type of the entries that an array of elements of a type is usually made of."""
    return DType("uint8", "uint", 8) if kind.bits % 8 else kind.scalar


def packed(raw: Raw, bits: int) -> Raw:
    """Pack the low bits of bytes, the first in the lowest bits, into aligned memory."""
    each = np.unpackbits(raw.reshape(-1, 1), axis=1, count=bits, bitorder="little")
    whole: Any = np.packbits(each.ravel(), bitorder="little")
    copied = aligned_empty(whole.size)
    np.copyto(copied, whole)
    return copied


def unpack(copied: Raw, bits: int, into: Raw) -> None:
    """Bring packed numbers back to the bytes that they were packed from."""
    each = np.unpackbits(copied, count=into.size * bits, bitorder="little").reshape(-1, bits)
    np.copyto(into, np.packbits(each, axis=1, bitorder="little").reshape(into.shape))
