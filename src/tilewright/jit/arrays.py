"""Arrays for the outputs of a call, of the library that its arguments are of.

May import `base`, `ir`, `runtime`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.lazy import loaded
from tilewright.ir.expressions import Var
from tilewright.ir.types import ScalarType, TensorType, Type
from tilewright.runtime.host import evaluate

# What PyTorch has no type for is held in bytes.
_BYTES = "uint8"


def sizes(types: Mapping[str, Type], given: Mapping[str, Any]) -> dict[str, int]:
    """Take the symbols of shapes from arguments, by name; numbers are symbols, too."""
    found: dict[str, int] = {}
    for name, value in given.items():
        match types[name]:
            case ScalarType():
                found[name] = value
            case TensorType(shape=shape):
                actual = tuple(getattr(value, "shape", ()))
                for extent, length in zip(shape, actual, strict=False):
                    if isinstance(extent, Var):
                        found.setdefault(extent.name, int(length))
            case _:
                continue
    return found


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
    """Give PyTorch's type for an element type, bytes where there is none."""
    return getattr(torch, kind.name, None) or getattr(torch, _BYTES)


def _torch(torch: Any, shape: tuple[int, ...], kind: DType, device: Any) -> Any:
    made = torch.empty(shape, dtype=torch_dtype(torch, kind), device=device)
    if made.numel():
        made.view(-1).view(torch.uint8).fill_(1 if kind.is_bool else 255)
    return made
