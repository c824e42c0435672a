"""Arrays for the outputs of a call, of the library that its arguments are of.

May import `base`, `ir`, `runtime`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import LaunchError
from tilewright.base.lazy import loaded
from tilewright.ir.expressions import Var
from tilewright.ir.types import ScalarType, TensorType, Type
from tilewright.runtime.arrays import describe
from tilewright.runtime.host import evaluate
from tilewright.runtime.storage import holding


def sizes(types: Mapping[str, Type], given: Mapping[str, Any]) -> dict[str, int]:
    """Take the symbols of shapes from arguments, by name; numbers are symbols, too."""
    found: dict[str, int] = {}
    for name, value in given.items():
        match types[name]:
            case ScalarType():
                found[name] = value
            case TensorType(shape=shape) as type:
                actual = extents(type, value) or ()
                for extent, length in zip(shape, actual, strict=False):
                    if isinstance(extent, Var):
                        found.setdefault(extent.name, int(length))
            case _:
                continue
    return found


def extents(type: TensorType, value: Any) -> tuple[int, ...] | None:
    """Give the shape of an argument, in elements of its parameter; `None` for what has none.

    Two numbers of four bits may be one entry of an array.
    """
    shape = getattr(value, "shape", None)
    if shape is None or type.dtype.bits % 8 == 0:
        return None if shape is None else tuple(shape)
    array = describe(value)
    held = None if array is None else holding(type, array)
    found = None if held is None else held.element_shape(tuple(shape), len(type.shape))
    return tuple(shape) if found is None else found


def allocated(type: TensorType, values: Mapping[str, int], like: Sequence[Any]) -> Any:
    """Allocate an array of a type: PyTorch's if an argument is, or nothing tells; else NumPy's.

    All its bits are set, as in memory that nothing has written.
    """
    shape = tuple(int(evaluate(each, values)) for each in type.shape)
    torch = loaded("torch")
    tensors = [] if torch is None else [each for each in like if isinstance(each, torch.Tensor)]
    if torch is None or (not tensors and any(isinstance(each, np.ndarray) for each in like)):
        return _numpy(shape, type.dtype)
    device = tensors[0].device if tensors else _default_device(torch)
    return _torch(torch, shape, type.dtype, device)


def as_memory(value: Any) -> Any:
    """Give an argument without what PyTorch records of it, in the same memory.

    A kernel of this dialect is no operation that PyTorch differentiates: it is the inside of one.
    """
    torch = loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.requires_grad:
        return value.detach()
    return value


def _default_device(torch: Any) -> Any:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _numpy(shape: tuple[int, ...], kind: DType) -> Any:
    made = np.empty(shape, dtype=kind.numpy)
    made.reshape(-1).view(np.uint8)[...] = 255 if kind.bits != 8 or not kind.is_bool else 1
    return made


def torch_dtype(torch: Any, kind: DType) -> Any:
    """Give PyTorch's type of the entries that hold elements of a type; bytes if it has none."""
    name = f"{kind.name}_x2" if kind.bits == 4 else kind.name
    return getattr(torch, name, None) or torch.uint8


def torch_shape(shape: tuple[int, ...], kind: DType) -> tuple[int, ...]:
    """Give the shape of a tensor of PyTorch whose entries hold elements: bytes, if these are less.

    Raises `LaunchError` (`argument-shape`) if rows are no whole bytes.
    """
    if kind.bits % 8 == 0 or not shape:
        return shape
    if shape[-1] * kind.bits % 8:
        raise LaunchError(
            f"rows of {shape[-1]} elements are no whole bytes, and a tensor of PyTorch has those",
            code="argument-shape",
            expected=f"a multiple of {8 // gcd(kind.bits, 8)}",
            found=str(shape),
        )
    return (*shape[:-1], shape[-1] * kind.bits // 8)


def _torch(torch: Any, shape: tuple[int, ...], kind: DType, device: Any) -> Any:
    made = torch.empty(torch_shape(shape, kind), dtype=torch_dtype(torch, kind), device=device)
    if made.numel():
        made.view(-1).view(torch.uint8).fill_(1 if kind.is_bool else 255)
    return made
