"""Arguments that are arrays, whatever library they come from: one description of them all.

Imports `base` and `runtime.dlpack`. NumPy arrays are read through NumPy, everything else
through DLPack; no other library is imported.

    >>> describe(np.zeros((2, 3), "float32")).dtype.name
    'float32'
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import LaunchError
from tilewright.runtime import dlpack

Raw = npt.NDArray[Any]
# The alignment that the GPU's allocator gives (CUDA C++ Programming Guide, "Device Memory
# Accesses"); copies made here have it too.
ALIGNMENT = 256


@dataclass(frozen=True)
class Array:
    """An array as bytes: `raw` sees it as unsigned integers of the element's width.

    `raw` has the argument's shape and strides and shares its memory. `dtype` is `None` for
    element types that the dialects do not have; `type_name` says what it is. On a `device`
    other than "cpu" there is no `raw`.
    """

    raw: Raw | None
    dtype: DType | None
    type_name: str
    device: str = "cpu"
    owner: Any = field(default=None, repr=False, compare=False)


def describe(value: Any) -> Array | None:
    """Describe an array, or give `None` for a value that is none.

    Raises `LaunchError` (`argument-kind`) if it is one that does not let its data be seen.
    """
    if isinstance(value, np.ndarray):
        return _from_numpy(cast(Raw, value))
    if not (hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")):
        return None
    try:
        device = dlpack.device_of(value)
        if device != "cpu":
            return Array(None, None, "", device, value)
        return _from_exchange(dlpack.read(value))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise LaunchError(
            f"an argument of type {type(value).__name__} does not let its data be seen",
            code="argument-kind",
            expected="a NumPy array, or an array on the CPU that supports DLPack",
            found=str(error),
        ) from error


def aligned_empty(size: int) -> npt.NDArray[np.uint8]:
    """Allocate bytes with the alignment of the GPU's allocator, not initialised."""
    storage = np.empty(size + ALIGNMENT, np.uint8)
    start = -address_of(storage) % ALIGNMENT
    return storage[start : start + size]


def address_of(raw: Raw) -> int:
    """Give the address of an array's first element."""
    return int(raw.__array_interface__["data"][0])


def _from_numpy(array: Raw) -> Array:
    # A view of the base class: subclasses may give indexing and copying other meanings.
    plain = array.view(np.ndarray)
    kind = dtypes.from_numpy(plain.dtype) if plain.dtype.isnative else None
    name = kind.name if kind is not None else str(plain.dtype)
    raw = plain if kind is None else plain.view(_unsigned(plain.dtype.itemsize))
    return Array(raw, kind, name, owner=array)


class _Memory:
    """Memory that is not NumPy's, as NumPy's array interface (version 3) describes it."""

    def __init__(self, source: dlpack.Exchanged) -> None:
        size = max(source.bits // 8, 1)
        self.capsule = source.capsule
        self.__array_interface__ = {
            "version": 3,
            "typestr": _unsigned(size).str,
            "shape": source.shape,
            "strides": tuple(stride * size for stride in source.strides),
            "data": (source.address, not source.writable),
        }


def _from_exchange(source: dlpack.Exchanged) -> Array:
    base, _, lanes = source.dtype.partition("x")
    kind = dtypes.SCALARS.get(base)
    if kind is not None and lanes:
        kind = kind.vector(int(lanes))
    if kind is None or source.bits not in (8, 16, 32, 64):
        return Array(None, None, source.dtype, owner=source)
    return Array(np.asarray(_Memory(source)), kind, source.dtype, owner=source)


def _unsigned(size: int) -> np.dtype[Any]:
    return np.dtype(f"u{size}")
