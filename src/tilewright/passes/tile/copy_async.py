"""Copies into shared memory that land later, by instructions of a few bytes.

May import `base`, `layout`, `isa`, `ir`, `passes.analysis` and the modules of this folder above.
Each thread copies runs of 16, 8 or 4 bytes, which must be contiguous and aligned on both sides:
that is proven from what is known of the start and of the strides. What lies beyond a tensor's
end is zeros.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.dtypes import INT32, UINT32
from tilewright.base.errors import TileContractError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Expr,
    Select,
    Subview,
    Var,
    as_constant,
    binary,
    constant,
    int32,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Block, If, Instruct
from tilewright.ir.tile import CopyTile, ParallelTile
from tilewright.ir.types import PointerType, ScalarType, TensorType
from tilewright.isa import named
from tilewright.layout import image
from tilewright.layout.fragment import Fragment, digit_of, divided
from tilewright.passes.analysis.ranges import Ranges
from tilewright.passes.tile.scene import TileScene

_SIZES = (16, 8, 4)


def run_bytes(stmt: CopyTile, ranges: Ranges) -> int | None:
    """Find the longest run that one instruction can copy; `None` if there is none.

    A copy that fills with something other than zeros, converts, or is not from global into shared
    memory has none.
    """
    source, target = tensor_type(stmt.source), tensor_type(stmt.target)
    spaces = (source.space, target.space) == (Space.GLOBAL, Space.SHARED)
    extents = static_shape(target.shape)
    zeros = stmt.outside is None or as_constant(stmt.outside) == 0
    if not spaces or source.dtype != target.dtype or extents is None or not zeros:
        return None
    for size in _SIZES:
        width = size * 8 // source.dtype.bits
        fits = width and extents[-1] % width == 0
        if fits and all(_aligned(each, width, ranges) for each in (stmt.source, stmt.target)):
            return size
    return None


def _aligned(tile: Expr, width: int, ranges: Ranges) -> bool:
    """Tell whether a tile's rows begin at multiples of `width` elements of its buffer."""
    while isinstance(tile, Subview):
        shape = tensor_type(tile.source).shape
        if not _divides(width, tile.starts[-1], ranges) or tile.dropped[-1]:
            return False
        if any(step != 1 for step in tile.steps) or not _divides(width, shape[-1], ranges):
            return False
        tile = tile.source
    if not isinstance(tile, Var):
        return False
    type = tensor_type(tile)
    # Buffers are laid out by this compiler; a tensor is compact, and aligned as it says.
    enough = type.space is Space.SHARED or type.align * 8 >= width * type.dtype.bits
    plain = type.layout is None or (type.space is Space.SHARED and _in_runs(type, width))
    return enough and plain and _divides(width, type.shape[-1], ranges)


def _in_runs(buffer: TensorType, width: int) -> bool:
    """Tell whether rows of a buffer in shared memory lie in aligned runs of `width` elements."""
    shape = static_shape(buffer.shape)
    if shape is None or buffer.layout is None or shape[-1] % width:
        return False
    (places,) = image(buffer.layout, shape).values()
    runs = np.asarray(places).reshape(-1, width)
    return bool(np.all(runs - runs[:, :1] == np.arange(width)) and np.all(runs[:, 0] % width == 0))


def _divides(width: int, value: Expr, ranges: Ranges) -> bool:
    return ranges.divisor(value) % width == 0


def copy_async(stmt: CopyTile, size: int, scene: TileScene) -> ParallelTile:
    """Write a copy as a loop over its runs of `size` bytes, divided among the threads."""
    target = tensor_type(stmt.target)
    extents = static_shape(target.shape)
    assert extents is not None
    width = size * 8 // target.dtype.bits
    runs = (*(each for each in extents[:-1] if each != 1), extents[-1] // width)
    layout = divided(runs, scene.threads)
    vars = tuple(
        scene.names.variable(name, ScalarType(INT32))
        for name in ("i", "j", "k", "l", "m", "n")[: len(runs)]
    )
    own = (*vars[:-1], binary("mul", vars[-1], width))
    source, read = element(stmt.source, own)
    into, written = element(stmt.target, own)
    taken = constant(size, UINT32)
    operands: list[Expr] = [
        AddressOf(into, written, PointerType(Space.SHARED, target.dtype, size)),
        AddressOf(source, read, PointerType(Space.GLOBAL, target.dtype, size)),
        taken,
    ]
    if (inside := _inside(source, read)) is not None:
        operands.append(Select(inside, taken, constant(0, UINT32), taken.type))
    form = named.COPY_16 if size == _SIZES[0] else named.COPY_FEW
    body: Block = (Instruct(form, tuple(operands), location=stmt.location),)
    if (first := _first_of_replicas(layout, scene.thread)) is not None:
        body = (If(first, body, location=stmt.location),)
    return ParallelTile(vars, tuple(map(int32, runs)), body, layout, location=stmt.location)


def landed(stmt: CopyTile) -> Block:
    """Let each thread wait for what it copies, unless the program does that."""
    if not stmt.waits:
        return ()
    where = stmt.location
    wait = Instruct(named.COPIES_WAIT, (constant(0, UINT32),), location=where)
    return (Instruct(named.COPIES_COMMIT, (), location=where), wait)


def no_runs(stmt: CopyTile) -> TileContractError:
    """Say that a copy cannot be carried out by instructions that land later."""
    return TileContractError(
        "this copy cannot be an asynchronous one",
        code="tile-operand",
        location=stmt.location,
        expected="from global into shared memory, elements of one type, in runs of 4, 8 or 16 "
        "bytes that are sure to be aligned on both sides, and zeros beyond the end",
        found=f"{tensor_type(stmt.source)} to {tensor_type(stmt.target)}",
        hint="T.copy(src, dst) copies it by the threads",
    )


def element(tile: Expr, counters: tuple[Expr, ...]) -> tuple[Expr, tuple[Expr, ...]]:
    """Name the element that counters along the axes of a tile that are not 1 stand for."""
    rest = list(counters)
    shape = tensor_type(tile).shape
    last = len(shape) - 1
    indices: list[Expr] = [
        int32(0) if as_constant(extent) == 1 and at != last else rest.pop(0)
        for at, extent in enumerate(shape)
    ]
    while isinstance(tile, Subview):
        inner = iter(indices)
        indices = [
            start if gone else binary("add", start, next(inner))
            for start, gone in zip(tile.starts, tile.dropped, strict=True)
        ]
        tile = tile.source
    return tile, tuple(indices)


def _inside(tensor: Expr, indices: tuple[Expr, ...]) -> Expr | None:
    found: Expr | None = None
    for index, extent in zip(indices, tensor_type(tensor).shape, strict=True):
        test = binary("lt", index, extent)
        found = test if found is None else binary("logical_and", found, test)
    return found


def _first_of_replicas(layout: Fragment, thread: Expr) -> Expr | None:
    """Say which of the threads that have one point is the first; `None` if each has its own."""
    found: Expr | None = None
    for each in layout.digits[0]:
        if each.dim is None:
            test = binary("eq", digit_of(thread, each, layout.threads), 0)
            found = test if found is None else binary("logical_and", found, test)
    return found
