"""Arguments that are arrays, whatever library they come from: one description of them all.

Imports `base` and `runtime.dlpack`. NumPy arrays are read through NumPy, PyTorch's by their own
attributes, everything else through DLPack or `__cuda_array_interface__`; no other library is
imported.

    >>> describe(np.zeros((2, 3), "float32")).dtype.name
    'float32'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tilewright.base import dtypes, lazy
from tilewright.base.dtypes import DType
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
    other devices there is none. `stream` is where its owner works with it, if that is said.
    `recorded` tells that PyTorch must learn of every change, to compute gradients.
    """

    raw: Raw | None
    dtype: DType | None
    type_name: str
    device: str = "cpu"
    owner: Any = field(default=None, repr=False, compare=False)
    stream: int | None = None
    recorded: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Give the shape, as tensors of PyTorch do."""
        return () if self.raw is None else self.raw.shape

    def data_ptr(self) -> int:
        """Give the address, as tensors of PyTorch do."""
        assert self.raw is not None
        return address_of(self.raw)


@dataclass(frozen=True)
class Access:
    """How arrays of a GPU are asked for.

    `stream` is where they will be used, as DLPack counts streams. `locate` tells which GPU's
    memory an address is of, `None` if of none.
    """

    stream: int = 1
    locate: Callable[[int], int | None] = lambda address: 0


class Unseen(Exception):
    """Say why the data of an array cannot be seen; `problem` goes on after "argument A"."""

    def __init__(self, problem: str, expected: str, found: str, hint: str = "") -> None:
        self.problem, self.expected, self.found, self.hint = problem, expected, found, hint
        super().__init__(f"{problem}: {found}")


_FAILURES = (AttributeError, BufferError, KeyError, RuntimeError, TypeError, ValueError)


def describe(value: Any, access: Access = Access()) -> Array | None:
    """Describe an array, or give `None` for a value that is none.

    Raises `Unseen` if it is one that does not let its data be seen.
    """
    if isinstance(value, Array):
        return value
    if isinstance(value, Unseen):
        raise value
    if isinstance(value, np.ndarray):
        return _from_numpy(cast(Raw, value))
    try:
        if is_torch(value):
            return _from_torch(value)
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            return _from_dlpack(value, access)
        return _from_cuda_interface(value, access)
    except _FAILURES as error:
        raise Unseen(
            "does not let its data be seen",
            "a NumPy array, or one that shows its memory by DLPack or __cuda_array_interface__",
            f"a {type(value).__name__}: {error}",
        ) from error


def is_torch(value: Any) -> bool:
    """Tell whether a value is a tensor of PyTorch."""
    torch = lazy.loaded("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def gpu_of(value: Any, locate: Callable[[int], int | None]) -> int | None:
    """Give the number of the GPU on which a value is an array; `None` for all else."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float):
        return None
    try:
        if is_torch(value):
            return value.get_device() if value.is_cuda else None
        if hasattr(value, "__dlpack_device__"):
            kind, _, number = dlpack.device_of(value).partition(":")
            return int(number) if kind == "cuda" else None
        found = getattr(value, "__cuda_array_interface__", None)
        return None if found is None else locate(found["data"][0])
    except _FAILURES:
        return None  # `describe` says what is wrong


def named_stream(value: Any) -> int | None:
    """Give the stream on which an array's owner works with it, if it says so (CUDA's interface)."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float) or is_torch(value):
        return None
    try:
        return value.__cuda_array_interface__.get("stream")
    except _FAILURES:
        return None


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


def _from_torch(tensor: Any) -> Array:
    if not (tensor.is_cuda or tensor.is_cpu or tensor.is_meta):
        return Array(None, None, "", str(tensor.device), tensor)
    _require_memory(tensor)
    _require_carried_out(tensor)
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
    device = f"cuda:{tensor.get_device()}" if tensor.is_cuda else "cpu"
    return _from_exchange(source, device, recorded=is_recorded(tensor))


def is_recorded(tensor: Any) -> bool:
    """Tell whether PyTorch must learn of what a tensor is changed to: one that wants a gradient."""
    torch: Any = lazy.loaded("torch")
    return tensor.requires_grad and torch.is_grad_enabled()


def _require_memory(tensor: Any) -> None:
    """Refuse a tensor of PyTorch whose elements do not lie at its address."""
    torch: Any = lazy.loaded("torch")
    kind, expected = type(tensor).__name__, "a tensor whose elements lie in memory of its own"
    if tensor.layout is not torch.strided:
        found = f"one of the layout {tensor.layout}"
        raise Unseen(
            "does not let its data be seen",
            expected,
            found,
            "pass a dense one, as to_dense() gives",
        )
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        storage = None
    if storage is not None and storage.device.type == "meta":
        raise Unseen("has no memory", expected, f"a {kind} that only stands for one")
    if storage is None or (tensor.numel() and not tensor.data_ptr() and storage.nbytes()):
        raise _without_memory(tensor, kind, expected)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((extent - 1) * step for extent, step in steps)
    size = (last + 1) * tensor.element_size()
    if tensor.numel() and storage.nbytes() < size:
        raise Unseen(
            "has lost its memory",
            f"storage of at least {size} bytes",
            f"storage of {storage.nbytes()} bytes, as after untyped_storage().resize_(0)",
        )


def _without_memory(tensor: Any, kind: str, expected: str) -> Unseen:
    """Say what a tensor is that has elements and shows no memory."""
    torch: Any = lazy.loaded("torch")
    own = cast(Any, type(tensor))
    if own.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        hint = "pass the tensors that it is made of"
        return Unseen("has no memory of its own", expected, f"a {kind}, which wraps others", hint)
    return Unseen(
        "is not a plain tensor here, as a transformation of PyTorch is under way",
        expected,
        f"a {kind} inside torch.vmap, torch.func.grad or the like",
        "call the kernel outside, or from an operator of your own (torch.library.custom_op, "
        "with register_vmap or register_autograd)",
    )


def _require_carried_out(tensor: Any) -> None:
    """Refuse a tensor that PyTorch has yet to negate or conjugate: its memory is of another."""
    for pending, resolve in ((tensor.is_neg(), "resolve_neg"), (tensor.is_conj(), "resolve_conj")):
        if pending:
            raise Unseen(
                "does not have its values in its memory",
                "a tensor whose values are those in its memory",
                "one that PyTorch negates or conjugates only when it reads it",
                f"pass tensor.{resolve}(), a copy where it is needed",
            )


def _from_dlpack(value: Any, access: Access) -> Array:
    device = dlpack.device_of(value)
    if device == "cpu":
        return _from_exchange(dlpack.read(value))
    if not device.startswith("cuda:"):
        return Array(None, None, "", device, value)
    read = dlpack.read(value, stream=access.stream)
    return _from_exchange(read, device, _stream(named_stream(value)))


def _from_cuda_interface(value: Any, access: Access) -> Array | None:
    """Read what CUDA packages for Python agreed on before DLPack (version 3)."""
    found = getattr(value, "__cuda_array_interface__", None)
    if found is None:
        return None
    if found.get("mask") is not None:
        raise Unseen("has a mask", "an array of which every element counts", "a masked one")
    (name, size), shape = _kind(found["typestr"]), tuple(found["shape"])
    strides = found.get("strides")
    address, read_only = found["data"]
    if strides is None:
        steps = dlpack.compact(shape)
    elif any(stride % size for stride in strides):
        raise ValueError(f"strides of {tuple(strides)} bytes, of elements of {size}")
    else:
        steps = tuple(stride // size for stride in strides)
    gpu = access.locate(address) if address else 0
    if gpu is None:
        raise ValueError(f"{address:#x} is no address that CUDA knows")
    source = dlpack.Exchanged(address, shape, steps, name, 8 * size, not read_only, value)
    return _from_exchange(source, f"cuda:{gpu}", _stream(found.get("stream")))


@cache
def _kind(typestr: str) -> tuple[str, int]:
    """Name an element type of CUDA's interface, and say how many bytes it has."""
    kind = np.dtype(typestr)
    return (kind.name if kind.isnative else str(kind)), kind.itemsize


def _stream(named: Any) -> int | None:
    """Read the stream that an array names: 0 would be ambiguous, and is not allowed."""
    if named is None:
        return None
    if int(named) <= 0:
        raise ValueError(f"it names the stream {named!r}, where 1 is the default stream")
    return int(named)


def _from_exchange(
    source: dlpack.Exchanged,
    device: str = "cpu",
    stream: int | None = None,
    recorded: bool = False,
) -> Array:
    if not source.address and 0 not in source.shape:
        raise Unseen("has no memory", "an array with memory", "the address 0")
    base, _, lanes = source.dtype.partition("x")
    kind = dtypes.SCALARS.get(base)
    if kind is not None and lanes:
        kind = kind.vector(int(lanes))
    if kind is None or source.bits not in (8, 16, 32, 64):
        return Array(None, None, source.dtype, device, source)
    raw = np.asarray(_Memory(source))
    return Array(raw, kind, source.dtype, device, source, stream, recorded)


def _unsigned(size: int) -> np.dtype[Any]:
    return np.dtype(f"u{size}")
