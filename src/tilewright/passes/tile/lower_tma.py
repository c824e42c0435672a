"""Lower bulk copies of tiles: one thread issues them, as boxes of the tensor in global memory.

May import `base`, `layout`, `isa`, `ir` and the modules of this folder above. A box is as wide as
the swizzle of the tile in shared memory, or as the tile where it has none; the map of the tensor is
made by `lower_tiles`. What lies beyond the tensor is read as 0, and not written.

    T.copy(A[i, k], a, prefer_instruction="tma")
    # -> in one lane: expect the bytes of a; cp.async.bulk.tensor a, [A's map, k, i], [barrier]
    #    all wait for the phase of the barrier
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.base.dtypes import UINT32
from tilewright.base.errors import TargetError, TileContractError
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import Expr, Subview, Var, as_constant, binary, constant, int32
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Apply, Block, Instruct, Stmt
from tilewright.ir.tile import CopyTile
from tilewright.ir.visit import root
from tilewright.isa import named
from tilewright.isa.tensor_copy import tensor_load, tensor_store
from tilewright.isa.tensor_map import GRANULE, MAX_RANK
from tilewright.layout import ComposeLayout, Layout, TileLayout
from tilewright.passes.tile.issuing import address_of, by_issuer, next_phase, wait_for_phase
from tilewright.passes.tile.scene import TileScene
from tilewright.passes.tile.views import joined, split

_WIDEST = 256  # elements of a box along an axis
_CORE = 16  # bytes of a row of what is not swizzled, but laid out for products


def sides(stmt: CopyTile) -> tuple[Expr, Expr]:
    """Tell the tile in shared memory from the other one."""
    loads = tensor_type(stmt.target).space is Space.SHARED
    return (stmt.target, stmt.source) if loads else (stmt.source, stmt.target)


def has_bulk_copies(target: Target) -> bool:
    """Tell whether a target copies boxes of tensors."""
    return target in named.form(tensor_load, dim="2d", space="shared::cta").targets


def check_tma(stmt: CopyTile, target: Target) -> None:
    """Require that a bulk copy can do what it is asked for.

    Raises `TargetError` (missing-instruction) before sm_90, `TileContractError` (tile-operand,
    tile-alignment) for what no tensor map describes.
    """
    if not has_bulk_copies(target):
        raise TargetError(
            f"{target} has no bulk copies of tensors",
            code="missing-instruction",
            location=stmt.location,
            expected=str(named.form(tensor_load, dim="2d", space="shared::cta").targets),
            found=str(target),
            hint="copy by T.copy(…) without prefer_instruction=, or by T.async_copy(…)",
        )
    error = refusal(stmt)
    if error is not None:
        raise error


def refusal(stmt: CopyTile) -> TileContractError | None:
    """Say why a copy cannot be a bulk copy, if it cannot."""
    shared, tensor = sides(stmt)
    kinds = [tensor_type(each) for each in (shared, tensor)]
    if (kinds[0].space, kinds[1].space) != (Space.SHARED, Space.GLOBAL):
        return _refuse(stmt, "a tile of shared memory and one of global memory", _spaces(stmt))
    if kinds[0].dtype != kinds[1].dtype:
        found = f"{kinds[1].dtype} in global memory, {kinds[0].dtype} in shared memory"
        return _refuse(stmt, "elements of one type", found, "leave prefer_instruction= out")
    if stmt.outside is not None and as_constant(stmt.outside) != 0:
        return _refuse(stmt, "0 beyond the end of the tensor", "another value")
    if static_shape(kinds[1].shape) is None:
        return _refuse(stmt, "a tile whose extents are known", str(kinds[1]))
    base, _, extents = place_of(tensor)
    whole = tensor_type(base)
    if not 1 <= len(whole.shape) <= MAX_RANK or static_shape(whole.shape[-1:]) == ():
        return _refuse(stmt, f"a tensor of at most {MAX_RANK} axes", str(whole))
    row = extents[-1] * whole.dtype.bits // 8
    pitch = as_constant(whole.shape[-1])
    if row % GRANULE or (pitch is not None and int(pitch) * whole.dtype.bits // 8 % GRANULE):
        found = f"{row} bytes of rows of {whole.shape[-1]} elements of {whole.dtype}"
        return _refuse(stmt, f"rows that are multiples of {GRANULE} bytes", found)
    return None


def _spaces(stmt: CopyTile) -> str:
    return " to ".join(tensor_type(each).space.value for each in (stmt.source, stmt.target))


def _refuse(
    stmt: CopyTile, expected: str, found: str, hint: str | None = None
) -> TileContractError:
    return TileContractError(
        "this copy cannot be a bulk copy",
        code="tile-operand",
        location=stmt.location,
        expected=expected,
        found=found,
        hint=hint,
    )


def place_of(tile: Expr) -> tuple[Expr, list[Expr], list[int]]:
    """Give the tensor that a tile is a box of, where it begins, and its extents there."""
    chain: list[Subview] = []
    while isinstance(tile, Subview):
        chain.append(tile)
        tile = tile.source
    shape = static_shape(tensor_type(chain[0] if chain else tile).shape)
    assert shape is not None
    extents = list(shape)
    starts: list[Expr] = [int32(0)] * len(extents)
    for each in chain:
        kept, sizes = iter(starts), iter(extents)
        inner = [
            (start, 1) if gone else (binary("add", start, next(kept)), next(sizes))
            for start, gone in zip(each.starts, each.dropped, strict=True)
        ]
        starts, extents = [start for start, _ in inner], [size for _, size in inner]
    return tile, starts, extents


# ---------------------------------------------------------------------------- boxes


@dataclass(frozen=True)
class _Boxes:
    """The boxes of a tile: the extents of one, how many there are along each axis, the swizzle."""

    box: tuple[int, ...]
    counts: tuple[int, ...]
    swizzle: int


def _boxes(stmt: CopyTile, extents: list[int]) -> _Boxes:
    shared, _ = sides(stmt)
    buffer = root(shared)
    assert isinstance(buffer, Var)
    kind = tensor_type(buffer)
    width, swizzle = _span(kind.layout, kind.dtype.bits // 8, extents[-1])
    box = [next(n for n in range(_WIDEST, 0, -1) if each % n == 0) for each in extents]
    if swizzle or width < extents[-1]:
        box[-1] = min(width, extents[-1])
    elif box[-1] < extents[-1]:
        # A part of a row: rows that are not boxed together lie wherever they do.
        box[:-1] = [1] * (len(box) - 1)
    if any(extent % size for extent, size in zip(extents, box, strict=True)):
        found = f"a tile of {tuple(extents)}, boxes of {tuple(box)}"
        raise _refuse(stmt, "a tile that whole boxes make up", found)
    counts = [extent // size for extent, size in zip(extents, box, strict=True)]
    return _Boxes(tuple(box), tuple(counts), swizzle)


def _span(layout: Layout | None, size: int, row: int) -> tuple[int, int]:
    """Give the elements of a box's row, and the swizzle's number, by the layout of the tile."""
    match layout:
        case ComposeLayout(swizzle_len=bits):
            return (GRANULE << bits) // size, bits
        case TileLayout() if not layout.canonicalize().is_trivial():
            return _CORE // size, 0
        case _:
            return row, 0


def lower_tma(stmt: CopyTile, scene: TileScene) -> Block:
    """Write a bulk copy as what one thread issues, and what all wait for.

    A load arrives at its barrier, by the bytes; a store is a group of the thread.
    """
    where = stmt.location
    shared, tile = sides(stmt)
    tensor, starts, extents = place_of(tile)
    boxes = _boxes(stmt, extents)
    rank = len(extents)
    view = joined(shared, extents)
    digits = [each for pair in zip(boxes.counts, boxes.box, strict=True) for each in pair]
    order = (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
    view = split(view, digits, order)
    steps = tuple(
        tuple(boxes.box[axis] if other == axis else 0 for other in range(rank))
        for axis in range(rank)
    )
    parameters = (
        ("box", boxes.box),
        ("coords", tuple(starts)),
        ("coord_steps", steps),
        ("swizzle", boxes.swizzle),
    )
    if tensor_type(stmt.target).space is Space.SHARED:
        return _load(stmt, view, tensor, parameters, prod(extents), scene)
    form = named.form(tensor_store, dim=f"{rank}d", mode="tile")
    body: list[Stmt] = [
        Apply(form, (tensor, view), "thread", parameters, location=where),
        Instruct(named.BULK_COMMIT, (), location=where),
    ]
    if stmt.waits:
        body.append(Instruct(named.BULK_WAIT, (constant(0, UINT32),), location=where))
    return by_issuer(stmt.issuer, tuple(body), scene, where)


def _load(
    stmt: CopyTile,
    view: Expr,
    tensor: Expr,
    parameters: tuple[tuple[str, object], ...],
    count: int,
    scene: TileScene,
) -> Block:
    where = stmt.location
    assert stmt.barrier is not None
    barrier = address_of(stmt.barrier, where)
    rank = len(tensor_type(tensor).shape)
    form = named.form(tensor_load, dim=f"{rank}d", space="shared::cta", mode="tile")
    bytes = constant(count * tensor_type(tensor).dtype.bits // 8, UINT32)
    expects = named.MBARRIER_ARRIVE_EXPECT_TX if stmt.waits else named.MBARRIER_EXPECT_TX
    body: Block = (
        Instruct(expects, (barrier, bytes), location=where),
        Apply(form, (view, tensor), "thread", (*parameters, ("mbar", barrier)), location=where),
    )
    issued = by_issuer(stmt.issuer, body, scene, where)
    if not stmt.waits:
        return issued
    assert stmt.phase is not None
    waits = wait_for_phase(stmt.barrier, stmt.phase, scene, where)
    return (*issued, *waits, next_phase(stmt.barrier, stmt.phase, where))
