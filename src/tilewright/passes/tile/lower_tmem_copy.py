"""Lower copies between Tensor Memory and fragments to loads and stores by warpgroups.

May import `base`, `layout`, `isa`, `ir` and the modules of this folder above. Each warp reaches the
32 lanes of its number in the warpgroup; several warpgroups have blocks of rows, or columns, of
their own.

    T.copy(c_tmem, c)   ->   tcgen05.ld … for each run of columns; tcgen05.wait::ld
"""

from __future__ import annotations

from tilewright.base.dtypes import UINT32
from tilewright.base.errors import FrontendError, TileContractError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, SpecialRegister, Var, binary, int32
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply, Block, If, Instruct, Stmt
from tilewright.ir.tile import CopyTile
from tilewright.ir.visit import root
from tilewright.isa import named, tensor_memory
from tilewright.layout import TileLayout, m
from tilewright.layout.axes import laneid, tid_in_wg, wid_in_wg
from tilewright.layout.fragment import Fragment
from tilewright.layout.spec import Iter
from tilewright.passes.tile.fragments import same_places
from tilewright.passes.tile.scene import TileScene
from tilewright.passes.tile.tensor_memory import WARPGROUP, Share, share, tmem_fragment
from tilewright.passes.tile.views import box, extents_of, held, matrix, split, words

_WARPGROUP = SpecialRegister("warpgroup_id")
# The registers of one instruction: more of them would all be taken at once.
_MOST = 64


def copied_fragment(stmt: CopyTile, scene: TileScene) -> Fragment:
    """Give the fragment that a copy from or to Tensor Memory has on its other side."""
    cells = stmt.source if tensor_type(stmt.source).space is Space.TMEM else stmt.target
    found = tmem_fragment(extents_of(matrix(cells)), tensor_type(cells).dtype, scene.threads)
    assert found is not None
    return found


def lower_tmem_copy(stmt: CopyTile, scene: TileScene) -> Block:
    """Write a copy between Tensor Memory and a fragment as what each warpgroup does.

    Raises `FrontendError` (layout-conflict) for a fragment that is laid out otherwise,
    `TileContractError` (tile-operand) for one of another type, or a part of one.
    """
    loads = tensor_type(stmt.source).space is Space.TMEM
    cells, fragment = (stmt.source, stmt.target) if loads else (stmt.target, stmt.source)
    where = stmt.location
    registers = _registers(stmt, cells, fragment, scene)
    kind = tensor_type(cells).dtype
    cells = matrix(cells)
    own = share(extents_of(cells), kind, scene.threads)
    assert own is not None
    view, array, shape, number = _views(cells, registers, own, scene.first // WARPGROUP)
    declaration = tensor_memory.ld if loads else tensor_memory.st
    instruction = named.form(declaration, shape=shape, num=f"x{number}")
    operands = (array, view) if loads else (view, array)
    done = named.TMEM_WAIT_LOAD if loads else named.TMEM_WAIT_STORE
    body: list[Stmt] = [
        Instruct(named.TENSOR_FENCE_AFTER, (), location=where),
        Apply(instruction, operands, "warpgroup", location=where),
        Instruct(done, (), location=where),
        Instruct(named.TENSOR_FENCE_BEFORE, (), location=where),
    ]
    holders = WARPGROUP * own.down * own.across * (own.copies if loads else 1)
    if holders < scene.threads:
        return (If(binary("lt", scene.thread, holders), tuple(body), location=where),)
    return tuple(body)


def _registers(stmt: CopyTile, cells: Expr, fragment: Expr, scene: TileScene) -> Var:
    buffer = root(fragment)
    assert isinstance(buffer, Var)
    whole = extents_of(fragment) == extents_of(buffer)
    if not whole or tensor_type(cells).dtype != buffer.dtype:
        raise TileContractError(
            "a copy from or to Tensor Memory takes the whole of a fragment, of the same type",
            code="tile-operand",
            location=stmt.location,
            expected=f"a fragment {extents_of(cells)} of {tensor_type(cells).dtype}",
            found=f"{extents_of(fragment)} of {buffer.name!r}, {tensor_type(buffer)}",
            hint="copy by way of such a fragment: T.copy between fragments converts",
        )
    own, wanted = scene.fragments[buffer.name], copied_fragment(stmt, scene)
    if scene.homes[buffer.name] != scene.first or not same_places(own, wanted):
        raise FrontendError(
            f"the fragment {buffer.name!r} is not laid out as Tensor Memory is copied",
            code="layout-conflict",
            location=stmt.location,
            expected=f"(thread:register)\n    {wanted.drawn()}",
            found=f"(thread:register)\n    {own.drawn()}",
            hint="copy by way of a fragment of its own",
        )
    return scene.registers[buffer.name]


def _views(cells: Expr, registers: Var, own: Share, first: int) -> tuple[Expr, Expr, str, int]:
    """View both sides as (4 warps, blocks, runs of columns, rows, columns), in words.

    `first` is the first warpgroup. Also give the shape of the instruction, and how many of it
    there are side by side.
    """
    per = 32 // registers.dtype.bits
    cells = words(cells, UINT32) if per > 1 else cells
    columns = own.columns // per
    part = box(cells, _start(own, columns, first), (own.blocks * own.rows, columns))
    if own.rows == WARPGROUP:
        shape, width, rows = "32x32b", 1, 32
    else:
        shape, width, rows = ("16x256b", 8, 16) if per == 1 else ("16x128b", 4, 16)
    count = columns // width
    number = min(count & -count, _MOST * 32 // (width * rows))
    run = number * width
    runs = columns // run
    view = split(part, (own.blocks, 4, rows, runs, run), (1, 0, 3, 2, 4))
    if own.rows == WARPGROUP:
        digits = (
            *(Iter(4, 32, tid_in_wg), Iter(own.blocks, columns, m), Iter(runs, run, m)),
            *(Iter(32, 1, tid_in_wg), Iter(run, 1, m)),
        )
    else:
        pairs = width // 4  # the words of a row that a thread has of one shape
        digits = (
            *(Iter(4, 1, wid_in_wg), Iter(own.blocks, columns // 2, m), Iter(runs, run // 2, m)),
            *(Iter(2, pairs, m), Iter(8, 4, laneid)),
            *(Iter(number, 2 * pairs, m), Iter(4, 1, laneid), Iter(pairs, 1, m)),
        )
    kind = tensor_type(part).dtype
    array = held(registers, extents_of(view), TileLayout.from_iters(digits), kind)
    return view, array, shape, number


def _start(own: Share, columns: int, first: int) -> tuple[Expr, Expr]:
    """Give the row and the column at which a warpgroup's part begins."""
    row: Expr = int32(0)
    column: Expr = int32(0)
    group: Expr = _WARPGROUP - first if first else _WARPGROUP
    part = group % (own.down * own.across) if own.copies > 1 else group
    if own.down > 1:
        row = part // own.across * (own.blocks * own.rows)
    if own.across > 1:
        column = part % own.across * columns
    return row, column
