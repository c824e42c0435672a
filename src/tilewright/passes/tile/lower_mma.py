"""Lower products into fragments: warps multiply what they load from shared memory, or hold.

May import `base`, `layout`, `isa`, `ir` and the modules of this folder above. Every warp has a part
of C; along K it takes a step at a time. Registers of A, B and C are those that the instruction's
declaration states: a lane has pairs of columns of C, and runs of K of A and B of as many elements
as fill a word.

    T.gemm(a, b, c)
    # -> for k in unroll(4): ldmatrix … a; ldmatrix … b; mma.sync … for each 16 × 8 of the warp's C
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.base.dtypes import INT32, UINT32, DType
from tilewright.base.errors import FrontendError, TileContractError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    Expr,
    Load,
    SpecialRegister,
    Var,
    as_constant,
    constant,
    int32,
)
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Allocate, Apply, Block, For, If, Stmt, Store
from tilewright.ir.tile import GemmTile
from tilewright.ir.types import ScalarType, TensorType
from tilewright.ir.visit import root
from tilewright.isa import matrix_moves
from tilewright.isa.named import form
from tilewright.layout import TileLayout, default_layout, laneid, m
from tilewright.layout.axes import tx
from tilewright.layout.fragment import Fragment
from tilewright.layout.image import image
from tilewright.layout.spec import Iter
from tilewright.passes.tile.fragments import same_places
from tilewright.passes.tile.gemm_shapes import INSTRUCTIONS, Problem, grid_of, problem
from tilewright.passes.tile.scene import TileScene
from tilewright.passes.tile.views import box, extents_of, held, joined, matrix, split, words
from tilewright.passes.tile.warp_grid import COLUMNS, ROWS

_WARP = 32
_ROW_BITS = 128  # of a matrix that one lane names
Grid = tuple[int, int]

# ---------------------------------------------------------------------------- fragments


def fragment_c(found: Problem, grid: Grid) -> Fragment:
    """Give the fragment of C: warps along its rows first, then along its columns."""
    down, across = grid
    tall, wide = found.rows // (ROWS * down), found.columns // (COLUMNS * across)
    rows = (Iter(down, _WARP, tx), Iter(tall, 4 * wide, m), Iter(2, 2, m), Iter(8, 4, tx))
    columns = (Iter(across, _WARP * down, tx), Iter(wide, 4, m), Iter(4, 1, tx), Iter(2, 1, m))
    return _fragment((found.rows, found.columns), rows, columns, None, False)


def fragment_a(found: Problem, grid: Grid, transposed: bool) -> Fragment:
    """Give the fragment of A; the warps along the columns of C hold the same.

    With `transposed` the tile is (K, M).
    """
    down, across = grid
    per, tall, deep = _pack(found), found.rows // (ROWS * down), found.depth // found.step
    rows = (Iter(down, _WARP, tx), Iter(tall, 4 * per * deep, m), Iter(2, per, m), Iter(8, 4, tx))
    depth = (Iter(deep, 4 * per, m), Iter(2, 2 * per, m), Iter(4, 1, tx), Iter(per, 1, m))
    same = Iter(across, _WARP * down, tx)
    return _fragment((found.rows, found.depth), rows, depth, same, transposed)


def fragment_b(found: Problem, grid: Grid, transposed: bool) -> Fragment:
    """Give the fragment of B as (N, K); the warps along the rows of C hold the same.

    With `transposed` the tile is (K, N).
    """
    down, across = grid
    per, wide, deep = _pack(found), found.columns // (COLUMNS * across), found.depth // found.step
    columns = (Iter(across, _WARP * down, tx), Iter(wide, 2 * per * deep, m), Iter(8, 4, tx))
    depth = (Iter(deep, 2 * per, m), Iter(2, per, m), Iter(4, 1, tx), Iter(per, 1, m))
    same = Iter(down, _WARP, tx)
    return _fragment((found.columns, found.depth), columns, depth, same, transposed)


def _pack(found: Problem) -> int:
    """Count the elements in a word."""
    return 32 // found.inputs.bits


def _fragment(
    shape: tuple[int, int],
    rows: Sequence[Iter],
    columns: Sequence[Iter],
    same: Iter | None,
    transposed: bool,
) -> Fragment:
    if transposed:
        shape, rows, columns = (shape[1], shape[0]), columns, rows
    digits = [each for each in (*rows, *columns) if each.extent > 1]
    replica = [same] if same is not None and same.extent > 1 else []
    return Fragment(shape, TileLayout.from_iters(digits, replica))


# ---------------------------------------------------------------------------- the product


@dataclass(frozen=True)
class _Operand:
    """An operand as a warp has it: `blocks` blocks of rows, each of `atoms` words per step.

    `first` is the warp's first row, `unit` the rows of a block; `transposed` that the tile is
    stored with K first.
    """

    name: str
    tile: Expr
    transposed: bool
    first: Expr
    blocks: int
    unit: int

    @property
    def words(self) -> int:
        """Count the words of a block that a thread has of a step: two for each 8 rows."""
        return 2 * self.unit // 8


def lower_mma(stmt: GemmTile, scene: TileScene) -> Block:
    """Write a product as what each warp does.

    Raises `FrontendError` (layout-conflict) where a fragment lies otherwise than products have it,
    `TileContractError` (tile-operand) for a part of one.
    """
    found = problem(stmt)
    down, across = grid = grid_of(stmt, scene.threads)
    warp = scene.thread // _WARP
    tall, wide = found.rows // (ROWS * down), found.columns // (COLUMNS * across)
    a = _Operand(
        "a",
        stmt.a,
        stmt.transpose_a,
        warp % down * (tall * ROWS) if down > 1 else int32(0),
        tall,
        ROWS,
    )
    row = warp // down if down > 1 else warp
    b = _Operand(
        "b",
        stmt.b,
        not stmt.transpose_b,
        row * (wide * COLUMNS) if across > 1 else int32(0),
        wide,
        COLUMNS,
    )
    sums = _registers(stmt, stmt.c, fragment_c(found, grid), scene)
    wanted = {
        "a": fragment_a(found, grid, stmt.transpose_a),
        "b": fragment_b(found, grid, not stmt.transpose_b),
    }
    step = scene.names.variable("k_step", ScalarType(INT32))
    allocated: list[Stmt] = []
    body: list[Stmt] = []
    views: list[Expr] = []
    for each in (a, b):
        if tensor_type(each.tile).space is Space.FRAGMENT:
            own = _registers(stmt, each.tile, wanted[each.name], scene)
            views.append(_of_step(each, own, found, step))
            continue
        # Matrices are only turned where elements have 16 bits.
        single = (each.transposed and found.inputs.bits != 16) or not _has_rows(each.tile)
        array = _array(scene, each, found.inputs if single else UINT32)
        allocated.append(Allocate(array, location=stmt.location))
        if single:
            body += _by_element(each, array, found, step, scene)
        else:
            body += _loads(each, array, found, step, stmt.location)
        views.append(_whole(each, array))
    total = _sums(sums, tall, wide, found.result)
    instruction = INSTRUCTIONS[found.inputs, found.result]
    body.append(Apply(instruction, (total, *views, total), "warp", location=stmt.location))
    count = found.depth // found.step
    loop = For(
        step, int32(0), int32(count), int32(1), tuple(body), "unroll", location=stmt.location
    )
    return (*_cleared(stmt, sums, scene), *allocated, loop)


def _cleared(stmt: GemmTile, sums: Var, scene: TileScene) -> Block:
    """Set the sums to 0 where the product is not added to what there is."""
    known = as_constant(stmt.clear)
    if known is not None and not known:
        return ()
    count = tensor_type(sums).shape[0]
    at = scene.names.variable("i_sum", ScalarType(INT32))
    zero = Store(sums, (at,), constant(0, sums.dtype), location=stmt.location)
    loop = For(at, int32(0), count, int32(1), (zero,), "unroll", location=stmt.location)
    return (loop,) if known else (If(stmt.clear, (loop,), location=stmt.location),)


def _array(scene: TileScene, operand: _Operand, dtype: DType) -> Var:
    """Name the array of the words of a step, as elements of a type."""
    count = operand.blocks * operand.words * 32 // dtype.bits
    kind = TensorType((int32(count),), dtype, Space.LOCAL, default_layout((count,)))
    return scene.names.variable(f"{operand.name}_words", kind)


def _registers(stmt: GemmTile, tile: Expr, wanted: Fragment, scene: TileScene) -> Var:
    """Give the registers of a fragment, which has to be whole and laid out as products have it."""
    buffer = root(tile)
    assert isinstance(buffer, Var)
    if extents_of(matrix(tile)) != scene.fragments[buffer.name].shape:
        raise TileContractError(
            f"a product takes the whole of a fragment, and of {buffer.name!r} a part is given",
            code="tile-operand",
            location=stmt.location,
            expected=str(tensor_type(buffer)),
            found=str(tensor_type(tile)),
            hint="allocate a fragment for each part",
        )
    own = scene.fragments[buffer.name]
    if scene.homes[buffer.name] != scene.first or not same_places(own, wanted):
        raise FrontendError(
            f"the fragment {buffer.name!r} is not laid out as this product has it",
            code="layout-conflict",
            location=stmt.location,
            expected=f"(thread:register)\n    {wanted.drawn()}",
            found=f"(thread:register)\n    {own.drawn()}",
            hint="copy it to a fragment of its own, which is laid out for the product",
        )
    return scene.registers[buffer.name]


# ---------------------------------------------------------------------------- registers


def _sums(array: Var, tall: int, wide: int, dtype: DType) -> Expr:
    """View the sums as (blocks of rows, of columns, 16, 8), in words where they fill none."""
    per = 32 // dtype.bits
    digits = (
        *(Iter(tall, 4 * wide // per, m), Iter(wide, 4 // per, m)),
        *(Iter(2, 2 // per, m), Iter(8, 4, laneid), Iter(4, 1, laneid), Iter(2 // per, 1, m)),
    )
    layout = TileLayout.from_iters([each for each in digits if each.extent > 1] or digits)
    shape = (tall, wide, ROWS, COLUMNS // per)
    return held(array, shape, layout, dtype if per == 1 else UINT32)


def _whole(operand: _Operand, array: Var) -> Expr:
    """View the words of a step as (blocks, 1, unit, 8): 8 words of K for each row."""
    halves = operand.unit // 8
    digits = (Iter(halves, 1, m), Iter(8, 4, laneid), Iter(2, halves, m), Iter(4, 1, laneid))
    layout = TileLayout.from_iters((Iter(operand.blocks, operand.words, m), *digits))
    return held(array, (operand.blocks, 1, operand.unit, 8), layout, UINT32)


def _of_step(operand: _Operand, array: Var, found: Problem, step: Var) -> Expr:
    """View the words that a fragment has of a step."""
    halves, deep = operand.unit // 8, found.depth // found.step
    digits = (
        *(Iter(operand.blocks, operand.words * deep, m), Iter(deep, operand.words, m)),
        *(Iter(halves, 1, m), Iter(8, 4, laneid), Iter(2, halves, m), Iter(4, 1, laneid)),
    )
    shape = (operand.blocks, deep, operand.unit, 8)
    view = held(array, shape, TileLayout.from_iters(digits), UINT32)
    zero = int32(0)
    return box(view, (zero, step, zero, zero), (operand.blocks, 1, operand.unit, 8))


# ---------------------------------------------------------------------------- shared memory


def _loads(
    operand: _Operand, array: Var, found: Problem, step: Var, where: Location | None
) -> Block:
    """Load a step's words: four 8 × 8 matrices at a time, or two where they are not even."""
    matrices = operand.blocks * operand.words
    group = 4 if matrices % 4 == 0 else 2
    instruction = form(
        matrix_moves.ldmatrix,
        num=f"x{group}",
        trans="trans" if operand.transposed else "",
        space="shared",
    )
    digits = (Iter(matrices // group, group, m), Iter(group, 1, m))
    lanes = TileLayout.from_iters((*digits, Iter(8, 4, laneid), Iter(4, 1, laneid)))
    registers = held(array, (matrices // group, group, 8, 4), lanes, UINT32)
    flat = joined(_matrices(operand, found, step), (matrices // group, group, 8, 4))
    return (Apply(instruction, (registers, flat), "warp", location=where),)


def _has_rows(tile: Expr) -> bool:
    """Tell whether the rows of 8 × 8 matrices lie where they can be read at once.

    Layouts of a program's own need not: a row has 16 bytes side by side, aligned to as many.
    """
    kind = tensor_type(root(tile))
    shape = static_shape(kind.shape)
    if kind.layout is None or shape is None:
        return True
    count = _ROW_BITS // kind.dtype.bits
    if shape[-1] % count:
        return False
    addresses = image(kind.layout, shape)[m.name].reshape(-1, count)
    first = addresses[:, :1]
    return not (first % count).any() and np.array_equal(addresses, first + np.arange(count))


def _by_element(
    operand: _Operand, array: Var, found: Problem, step: Var, scene: TileScene
) -> Block:
    """Load a step's elements one by one."""
    tile, where = matrix(operand.tile), operand.tile.location
    halves, pack, lane = operand.unit // 8, 32 // found.inputs.bits, SpecialRegister("laneid")
    block, deep, half, part = (
        scene.names.variable(name, ScalarType(INT32))
        for name in ("block", "k_half", "row_half", "k_part")
    )
    k = step * found.step + (deep * 4 + lane % 4) * pack + part
    row = operand.first + block * operand.unit + half * 8 + lane // 4
    indices = (k, row) if operand.transposed else (row, k)
    value = Load(tile, indices, ScalarType(found.inputs), location=where)
    index = (block * operand.words + deep * halves + half) * pack + part
    body: Block = (Store(array, (index,), value, location=where),)
    for counter, count in ((part, pack), (half, halves), (deep, 2), (block, operand.blocks)):
        zero, one = int32(0), int32(1)
        body = (For(counter, zero, int32(count), one, body, "unroll", location=where),)
    return body


def _matrices(operand: _Operand, found: Problem, step: Var) -> Expr:
    """View what a warp has of a step as its 8 × 8 matrices, in the order of its registers.

    Along a block these are: the halves of its rows, then those of K.
    """
    tile = words(matrix(operand.tile), UINT32)
    pack = 32 // tensor_type(operand.tile).dtype.bits
    count, halves = operand.blocks * operand.unit, operand.unit // 8
    if operand.transposed:
        # (K halves, 8, blocks, row halves, words)
        first = operand.first // pack
        part = box(tile, (step * found.step, first), (found.step, count // pack))
        return split(part, (2, 8, operand.blocks, halves, 4), (2, 0, 3, 1, 4))
    # (blocks, row halves, 8, K halves, words)
    part = box(tile, (operand.first, step * (found.step // pack)), (count, found.step // pack))
    return split(part, (operand.blocks, halves, 8, 2, 4), (0, 3, 1, 2, 4))
