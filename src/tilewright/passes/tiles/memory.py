"""The proof that a tile in memory is contiguous and aligned, and the address of each step.

May import `base`, `isa`, `ir`, NumPy, `passes.analysis` and the modules of this folder above.
"""

from __future__ import annotations

from math import gcd, prod

import numpy as np

from tilewright.base.errors import TileContractError
from tilewright.ir.expressions import AddressOf, Expr, SpecialRegister, as_expr
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply
from tilewright.ir.types import PointerType
from tilewright.isa.declaration import TileContract
from tilewright.passes.allocate_shared import alignment_of
from tilewright.passes.places import root_of
from tilewright.passes.tiles.groups import Group
from tilewright.passes.tiles.images import Image, image_of
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import Tile, refuse


def check_memory(apply: Apply, tile: Tile, scene: Scene) -> None:
    """Prove that the runs of a memory tile are consecutive and aligned.

    Raises `TileContractError` (tile-alignment).
    """
    image = image_of(tile, scene)
    if image is None:
        raise refuse(
            apply,
            "tile-alignment",
            f"the addresses of {tile.name} cannot be shown to be consecutive",
            "starts with a constant range, or multiples of what the layout repeats after",
            "a start of which neither is known",
        )
    _require_contiguous(apply, tile, image)
    _require_aligned(apply, tile, image)


def address_at(contract: TileContract, tile: Tile, group: Group, step: dict[str, int]) -> Expr:
    """Give the address that the executing thread supplies at a repetition."""
    at: list[Expr] = list(group.coordinates)
    at += [as_expr(step[name]) for name in tile.repeats]
    atom = [as_expr(0)] * len(tile.operand.atom)
    if contract.issuer == "warp" and contract.lane_address is not None:
        lane = SpecialRegister("laneid")
        atom = [as_expr(each) for each in contract.lane_address(lane)]
    kind = tensor_type(tile.view)
    pointer = PointerType(kind.space, kind.dtype, tile.operand.align)
    return AddressOf(tile.view, (*at, *atom), pointer)


def known_alignment(tile: Tile, divisor: int) -> int:
    """Give the power of two that is known to divide where the bytes of a tile are counted from.

    `divisor` is that of its image, 0 if they are counted from the start of the buffer.
    """
    declared = alignment_of(root_of(tile.view))
    known = divisor or declared
    return min(declared & -declared, known & -known)


def _require_contiguous(apply: Apply, tile: Tile, image: Image) -> None:
    count = tile.operand.contiguous
    size = tensor_type(tile.view).dtype.bytes
    runs = image.bytes.reshape(-1, count)
    expected = runs[:, :1] + size * np.arange(count)
    wrong = runs != expected
    if not wrong.any():
        return
    at = np.unravel_index(int(np.flatnonzero(wrong.ravel())[0]), image.bytes.shape)
    element = tuple(map(int, at[1:]))
    raise refuse(
        apply,
        "tile-alignment",
        f"{tile.name} is not consecutive in memory",
        f"each {count} elements along the last axis side by side",
        f"element {list(element)} is {_distance(runs, wrong, size)} elements from the first",
    )


def _distance(runs: np.ndarray, wrong: np.ndarray, size: int) -> str:
    row, column = np.argwhere(wrong)[0]
    bytes_apart = int(runs[row, column] - runs[row, 0])
    return f"{bytes_apart // size}" if bytes_apart % size == 0 else f"{bytes_apart / size:g}"


def _require_aligned(apply: Apply, tile: Tile, image: Image) -> None:
    needed = tile.operand.align
    root = root_of(tile.view)
    storage = tensor_type(root)
    declared = storage.align or storage.dtype.bytes
    starts = image.bytes.reshape(-1, tile.operand.contiguous)[:, 0]
    misplaced = np.flatnonzero(starts % needed)
    if declared % needed:
        raise _refuse_alignment(
            apply,
            tile,
            f"{root.name} is aligned to {declared} bytes",
            f"declare it with align={_least_multiple(declared, needed)}",
        )
    if image.divisor % needed:
        shown = gcd(image.divisor, needed)
        hint = "let the start be a multiple of a constant, as in `16 * i`"
        found = f"it begins at a multiple of {shown} bytes in {root.name}, as far as is known"
        raise _refuse_alignment(apply, tile, found, hint)
    if misplaced.size:
        at = int(misplaced[0]) * tile.operand.contiguous
        element = np.unravel_index(at % prod(tile.shape), tile.shape)
        where = [int(each) for each in element]
        found = (
            f"element {where} is {int(starts[misplaced[0]])} bytes after the start of {root.name}"
        )
        raise _refuse_alignment(apply, tile, found, None)


def _least_multiple(declared: int, needed: int) -> int:
    return declared * needed // gcd(declared, needed)


def _refuse_alignment(apply: Apply, tile: Tile, found: str, hint: str | None) -> TileContractError:
    return refuse(
        apply,
        "tile-alignment",
        f"{tile.name} is not aligned as {apply.form.text} needs it",
        f"addresses that are multiples of {tile.operand.align} bytes",
        found,
        hint,
    )
