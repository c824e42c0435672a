"""The types and extents of tensors in the IR.

May import `ir.expressions` and `ir.types`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.expressions import Expr, as_constant
from tilewright.ir.types import TensorType


def tensor_type(tensor: Expr) -> TensorType:
    """Give the type of an expression that is a tensor."""
    assert isinstance(tensor.type, TensorType), tensor
    return tensor.type


def static_shape(shape: Iterable[Expr]) -> tuple[int, ...] | None:
    """Give the extents of a shape, or `None` if one of them is not constant."""
    extents: list[int] = []
    for extent in shape:
        value = as_constant(extent)
        if not isinstance(value, int):
            return None
        extents.append(int(value))
    return tuple(extents)
