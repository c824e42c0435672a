"""Arguments that are arrays, whatever library they come from: one description of them all.

Imports `base` and `runtime.dlpack`. NumPy arrays are read through NumPy, PyTorch's on a GPU by
their own attributes, everything else through DLPack or `__cuda_array_interface__`; no other
library is imported.

    >>> describe(np.zeros((2, 3), "float32")).dtype.name
    'float32'
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tilewright.base import dtypes, lazy
from tilewright.base.dtypes import DType
from tilewright.base.errors import LaunchError
from tilewright.base.targets import GLOBAL_ALIGNMENT
from tilewright.runtime import dlpack

Raw = npt.NDArray[Any]
# PyTorch's types of several elements, as DLPack spells them.
_PACKED = {"float4_e2m1fn_x2": "float4_e2m1fnx2"}


@dataclass(frozen=True)
class Array:
    """An array as bytes: `raw` sees it as unsigned integers of the element's width.

    `raw` has the argument's shape and strides and shares its memory. `dtype` is `None` for
    element types that the dialects do not have; `type_name` says what it is. On a GPU, whose
    `device` is "cuda:0" and so on, `raw` tells where the memory lies and cannot be read; on
    other devices there is none.
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
    if isinstance(value, Array):
        return value
    if isinstance(value, np.ndarray):
        return _from_numpy(cast(Raw, value))
    own = is_torch(value)
    if own:
        _require_carried_out(value)
    elif not (hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")):
        return _from_cuda_interface(value)
    try:
        if own and value.is_cuda:
            return _from_torch(value)
        device = dlpack.device_of(value)
        if device == "cpu":
            return _from_exchange(dlpack.read(value))
        if not device.startswith("cuda:"):
            return Array(None, None, "", device, value)
        return _from_device(value, device)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise LaunchError(
            f"an argument of type {type(value).__name__} does not let its data be seen",
            code="argument-kind",
            expected="a NumPy array, or an array on the CPU that supports DLPack",
            found=str(error),
        ) from error


def is_torch(value: Any) -> bool:
    """Tell whether a value is a tensor of PyTorch."""
    torch = lazy.loaded("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def aligned_empty(size: int) -> npt.NDArray[np.uint8]:
    """Allocate bytes with the alignment of the GPU's allocator, not initialised."""
    storage = np.empty(size + GLOBAL_ALIGNMENT, np.uint8)
    start = -address_of(storage) % GLOBAL_ALIGNMENT
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


def _require_carried_out(tensor: Any) -> None:
    """Refuse a tensor that PyTorch has yet to negate or conjugate: its memory is of another."""
    for pending, resolve in ((tensor.is_neg(), "resolve_neg"), (tensor.is_conj(), "resolve_conj")):
        if pending:
            raise LaunchError(
                "an argument's memory does not hold its values",
                code="argument-kind",
                expected="a tensor whose values are those in its memory",
                found="one that PyTorch negates or conjugates only when it reads it",
                hint=f"pass tensor.{resolve}(), a copy where it is needed",
            )


def _from_torch(tensor: Any) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    source = dlpack.Exchanged(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        _PACKED.get(name, name),
        8 * tensor.element_size(),
        True,
        tensor,
    )
    return _from_exchange(source, f"cuda:{tensor.get_device()}")


def _from_device(value: Any, device: str) -> Array:
    # Of what other streams still do, the caller takes care, as with any launch.
    try:
        return _from_exchange(dlpack.read(value, stream=-1), device)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        return Array(None, None, f"data that cannot be seen: {error}", device, value)


def _from_cuda_interface(value: Any) -> Array | None:
    """Read what CUDA packages for Python agreed on before DLPack (version 3)."""
    found = getattr(value, "__cuda_array_interface__", None)
    if found is None:
        return None
    kind = np.dtype(found["typestr"])
    shape = tuple(found["shape"])
    strides = found.get("strides")
    address, read_only = found["data"]
    source = dlpack.Exchanged(
        address,
        shape,
        dlpack.compact(shape)
        if strides is None
        else tuple(stride // kind.itemsize for stride in strides),
        kind.name,
        8 * kind.itemsize,
        not read_only,
        value,
    )
    return _from_exchange(source, "cuda:0")


def _from_exchange(source: dlpack.Exchanged, device: str = "cpu") -> Array:
    base, _, lanes = source.dtype.partition("x")
    kind = dtypes.SCALARS.get(base)
    if kind is not None and lanes:
        kind = kind.vector(int(lanes))
    if kind is None or source.bits not in (8, 16, 32, 64):
        return Array(None, None, source.dtype, device, source)
    return Array(np.asarray(_Memory(source)), kind, source.dtype, device, source)


def _unsigned(size: int) -> np.dtype[Any]:
    return np.dtype(f"u{size}")
