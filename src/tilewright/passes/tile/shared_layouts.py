"""How tiles lie in shared memory where instructions read or write them in bulk.

May import `base`, `layout`, `isa` and `ir`.
"""

from __future__ import annotations

from tilewright.base.dtypes import DType
from tilewright.ir.expressions import Expr
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.isa.tensor_copy import BOX_ALIGN
from tilewright.layout import (
    ComposeLayout,
    Layout,
    SwizzleMode,
    default_layout,
    mma_shared_layout,
)

# The widest swizzle whose rows divide a row of a matrix.
_ROWS = (
    (128, SwizzleMode.SWIZZLE_128B_ATOM),
    (64, SwizzleMode.SWIZZLE_64B_ATOM),
    (32, SwizzleMode.SWIZZLE_32B_ATOM),
)


def shared_layout(buffer: Expr, across: bool = False) -> Layout:
    """Lay a shared buffer, or its matrices, out as products read them: by the bytes of a row.

    `across` says that the tensor core reads it along its rows: MN-major.
    """
    kind = tensor_type(buffer)
    shape = static_shape(kind.shape)
    assert shape is not None
    mode = _mode(shape[-1] * kind.dtype.bits // 8, shape[-2] if len(shape) > 1 else 1)
    if across and kind.dtype.bits == 32:
        mode = SwizzleMode.SWIZZLE_128B_ATOM_32B
    return mma_shared_layout(kind.dtype, mode, shape)


def boxes_layout(buffer: Expr) -> Layout:
    """Lay a shared buffer out for bulk copies: swizzled if rows are wide enough, or plain."""
    kind = tensor_type(buffer)
    shape = static_shape(kind.shape)
    assert shape is not None
    found = shared_layout(buffer) if len(shape) > 1 else default_layout(shape)
    return found if isinstance(found, ComposeLayout) else default_layout(shape)


def _mode(row: int, rows: int) -> SwizzleMode:
    fits = (mode for width, mode in _ROWS if row % width == 0 and rows >= 8)
    return next(fits, SwizzleMode.SWIZZLE_NONE)


def shared_align(layout: Layout, dtype: DType) -> int:
    """Give the bytes that a shared buffer of a layout is aligned to: where its swizzle repeats.

    Without a swizzle it is what bulk copies need.
    """
    return layout.period * dtype.bytes if isinstance(layout, ComposeLayout) else BOX_ALIGN
