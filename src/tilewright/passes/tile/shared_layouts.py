"""How tiles lie in shared memory where instructions read or write them in bulk.

May import `base`, `layout`, `isa` and `ir`.
"""

from __future__ import annotations

from tilewright.base.dtypes import DType
from tilewright.ir.expressions import (
    AddressOf,
    Expr,
    Permute,
    Reinterpret,
    Relayout,
    Reshape,
    Subview,
    Var,
    as_constant,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Apply, Instruct, Kernel
from tilewright.ir.tile import AnnotateTile
from tilewright.ir.visit import root, walk
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
_REPEATS = 8  # rows after which a swizzle repeats


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
    fits = (mode for width, mode in _ROWS if row % width == 0 and rows >= _REPEATS)
    return next(fits, SwizzleMode.SWIZZLE_NONE)


def shared_align(layout: Layout, dtype: DType) -> int:
    """Give the bytes that a shared buffer of a layout is aligned to: where its swizzle repeats.

    Without a swizzle it is what bulk copies need.
    """
    return layout.period * dtype.bytes if isinstance(layout, ComposeLayout) else BOX_ALIGN


def is_whole(tile: Expr) -> bool:
    """Tell whether a tile is a buffer, or one of its versions, each where a swizzle begins anew."""
    if isinstance(tile, Var):
        return True
    if not isinstance(tile, Subview) or not isinstance(tile.source, Var):
        return False
    kept = tile.dropped.count(False)
    own, whole = tensor_type(tile).shape, tensor_type(tile.source).shape
    first = len(whole) - kept
    if any(tile.dropped[first:]) or own != whole[first:] or kept < 2:
        return False
    rows = as_constant(own[-2])
    starts = [as_constant(each) for each in tile.starts[first:]]
    return rows is not None and int(rows) % _REPEATS == 0 and not any(each != 0 for each in starts)


def fixed_buffers(kernel: Kernel) -> set[str]:
    """List the buffers that the program lays out, addresses, or views under another shape."""
    found: set[str] = set()
    for each in walk(kernel.body):
        match each:
            case AnnotateTile(kind="layout"):
                found |= set(dict(each.values))
            case Instruct() | Apply():
                found |= {var.name for var in map(root, each.operands) if isinstance(var, Var)}
            case AddressOf(tensor=tile) | Reshape(source=tile) | Permute(source=tile):
                found |= _names(tile)
            case Reinterpret(source=tile) | Relayout(source=tile):
                found |= _names(tile)
            case _:
                pass
    return found


def _names(tile: Expr) -> set[str]:
    buffer = root(tile)
    return {buffer.name} if isinstance(buffer, Var) else set()
