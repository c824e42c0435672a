"""The tile operations of the tile dialect.

May import `base`, `ir` and the modules of `frontend`. Each function adds one statement of `ir.tile`.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import BOOL
from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.tile.regions import operand, paired, tile
from tilewright.frontend.values import lift, stored
from tilewright.ir.expressions import Expr, truth
from tilewright.ir.shapes import tensor_type
from tilewright.ir.tile import POLICIES, CopyTile, FillTile, GemmTile, ReduceTile


def copy(
    src: Any,
    dst: Any,
    *,
    coalesced_width: int | None = None,
    disable_tma: bool = False,
    eviction_policy: str | None = None,
    prefer_instruction: str | None = None,
    annotations: Any = None,
    loop_layout: Any = None,
) -> None:
    """Copy a tile, converting its elements; afterwards the target may be used."""
    source, target = paired(operand(src, "src", 0), operand(dst, "dst", 1))
    current().emit(CopyTile(source, target, prefer_instruction, location=here()))


def fill(buffer: Any, value: Any) -> None:
    """Set all elements of a tile."""
    target = tile(buffer, "buffer", 0)
    held = stored(value, tensor_type(target).dtype)
    current().emit(FillTile(target, held, location=here()))


def clear(buffer: Any) -> None:
    """Set all elements of a tile to zero."""
    fill(buffer, 0)


class GemmWarpPolicy:
    """How the tile of a product is divided among the warps."""

    Square = "square"
    FullRow = "full_row"
    FullCol = "full_col"


def gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: str = "square",
    clear_accum: Any = False,
    mbar: Any = None,
    annotations: Any = None,
) -> None:
    """Add the product of two tiles to a third; see `ir.tile.GemmTile`."""
    if policy not in POLICIES:
        raise FrontendError(
            "there is no such way to divide a product among warps",
            code="bad-call",
            location=argument_place("policy", 5),
            expected="T.GemmWarpPolicy.Square, FullRow or FullCol",
            found=repr(policy),
        )
    tiles = [tile(each, name, at) for at, (name, each) in enumerate((("A", A), ("B", B), ("C", C)))]
    condition = truth(lift(clear_accum, BOOL), here())
    current().emit(
        GemmTile(
            *tiles,
            bool(transpose_A),
            bool(transpose_B),
            condition,
            policy,
            None if mbar is None else _barrier(mbar),
            location=here(),
        )
    )


def _barrier(value: Any) -> Expr:
    """Read a barrier: one of several, or all of a buffer that has one."""
    return operand(value, "mbar").with_extents([]) if isinstance(value, Tensor) else tile(value)


def reduction(op: str) -> Any:
    """Make the function of a reduction."""

    def reduce(
        buffer: Any,
        out: Any,
        dim: int = -1,
        clear: bool = True,
        batch: int = 1,
        nan_propagate: bool = False,
        annotations: Any = None,
    ) -> None:
        source, target = tile(buffer, "buffer", 0), tile(out, "out", 1)
        rank = len(tensor_type(source).shape)
        current().emit(
            ReduceTile(op, source, target, dim % rank, clear, nan_propagate, location=here())
        )

    reduce.__name__ = f"reduce_{op}"
    reduce.__doc__ = f"Reduce a tile along an axis by {op}; see `ir.tile.ReduceTile`."
    return reduce
