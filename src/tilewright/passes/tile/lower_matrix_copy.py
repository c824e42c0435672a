"""Lower copies between shared memory and fragments by moves of 8 × 8 matrices, where these fit.

May import `base`, `layout`, `isa`, `ir` and the modules of this folder above. They fit a fragment
that is made of such matrices as products hold them: of 8 rows a warp's lanes have a word each,
four lanes to a row. Which words these are is read off the fragment's digits.

    for i, j in T.Parallel(64, 64): out[i, j] = T.cast(c[i, j], "float16")
    # -> each thread converts its c; stmatrix … of what a warp has
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.base.dtypes import UINT32, DType
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Cast, Expr, Load, Relayout, Subview, Var, as_constant, int32
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Allocate, Apply, Block, Store
from tilewright.ir.tile import ParallelTile
from tilewright.ir.visit import root, variables, walk_kinds
from tilewright.isa import matrix_moves
from tilewright.isa.declaration import Form
from tilewright.isa.named import form
from tilewright.layout import ComposeLayout, TileLayout, default_layout, laneid, m
from tilewright.layout.axes import tx
from tilewright.layout.fragment import Fragment
from tilewright.layout.spec import Iter
from tilewright.passes.tile.lower_parallel import lower_parallel
from tilewright.passes.tile.scene import TileScene, registers_of
from tilewright.passes.tile.shared_layouts import is_whole, shared_layout
from tilewright.passes.tile.views import box, extents_of, held, joined, split, words

_WARP = 32
_ROW = 16  # bytes of a row of a matrix
_WORDS = 4  # of a row of a matrix


@dataclass(frozen=True)
class _Move:
    """A loop that does nothing but move a whole fragment to a tile of shared memory, or back."""

    fragment: Var
    tile: Expr
    stores: bool
    dtype: DType


@dataclass(frozen=True)
class _Matrices:
    """A fragment as matrices: the digits of its axes but for those of a matrix, outermost first.

    `turned` says that lanes hold runs of a column each.
    """

    rows: tuple[Iter, ...]
    columns: tuple[Iter, ...]
    turned: bool


def with_swizzles(body: Block, scene: TileScene, fixed: set[str]) -> TileScene:
    """Let tiles that are moved as matrices lie so that no bank conflicts arise.

    Those named by `fixed` stay where they are, and those that something else has laid out.
    """
    found = dict(scene.layouts)
    for stmt in walk_kinds(body, ParallelTile):
        fit = _fit(stmt, scene)
        if fit is None or not is_whole(fit[0].tile):
            continue
        buffer = _buffer(fit[0].tile)
        if buffer.name not in fixed and tensor_type(buffer).layout is None:
            found.setdefault(buffer.name, shared_layout(buffer))
    return replace(scene, layouts=found)


def lower_matrix_copy(stmt: ParallelTile, scene: TileScene) -> Block | None:
    """Write a loop as moves of matrices; `None` if it is none, or they do not fit."""
    fit = _fit(stmt, scene)
    if fit is None or not _in_rows(fit[0]):
        return None
    move, found = fit
    registers = scene.registers[move.fragment.name]
    before: Block = ()
    if move.dtype != tensor_type(move.fragment).dtype:
        before, registers = _converted(stmt, move, scene)
    sides = (_of_warp(move, found, scene), _held(registers, found))
    order = sides if move.stores else sides[::-1]
    return (*before, Apply(_instruction(move, found), order, "warp", location=stmt.location))


def _fit(stmt: ParallelTile, scene: TileScene) -> tuple[_Move, _Matrices] | None:
    """Read a loop as a move of matrices that all threads here hold, by the target's means."""
    move = _move_of(stmt)
    if move is None or scene.first % _WARP or scene.threads % _WARP:
        return None
    fragment = scene.fragments[move.fragment.name]
    if scene.homes[move.fragment.name] != scene.first or fragment.threads != scene.threads:
        return None
    found = _matrices(fragment, move.dtype)
    if found is None or (move.stores and fragment.replicas > 1):
        return None
    return (move, found) if scene.target in _instruction(move, found).targets else None


# ---------------------------------------------------------------------------- what is moved


def _move_of(stmt: ParallelTile) -> _Move | None:
    match stmt:
        case ParallelTile(
            vars=(_, _),
            body=(Store(tensor=Var() as target, value=value) as store,),
            layout=None,
            width=None,
        ):
            pass
        case _:
            return None
    load = value.operand if isinstance(value, Cast) else value
    if not isinstance(load, Load) or not isinstance(load.tensor, Var):
        return None
    into, dtype = tensor_type(target), tensor_type(target).dtype
    out_of = tensor_type(load.tensor)
    stores = (out_of.space, into.space) == (Space.FRAGMENT, Space.SHARED)
    loads = (out_of.space, into.space) == (Space.SHARED, Space.FRAGMENT)
    if not (stores or (loads and out_of.dtype == dtype)):
        return None
    # A byte that is converted would be stored just as well.
    if dtype.bits * dtype.lanes not in ((16,) if out_of.dtype != dtype else (8, 16)):
        return None
    held_there, there = (load, store) if stores else (store, load)
    tile = _tile(there.tensor, there.indices, stmt)
    whole = _tile(held_there.tensor, held_there.indices, stmt)
    if tile is None or whole != held_there.tensor or not isinstance(whole, Var):
        return None
    return _Move(whole, tile, stores, dtype)


def _tile(buffer: Expr, indices: tuple[Expr, ...], stmt: ParallelTile) -> Expr | None:
    """Give the matrix of a buffer whose elements a loop goes through, if it is a whole one."""
    kind = tensor_type(buffer)
    first = len(indices) - 2
    outer = indices[:first]
    through = {each.name for each in stmt.vars}
    alike = indices[first:] == stmt.vars and kind.shape[first:] == stmt.extents
    if not alike or any(var.name in through for each in outer for var in variables(each)):
        return None
    if not outer:
        return buffer
    starts = (*outer, int32(0), int32(0))
    dropped = (*(True for _ in outer), False, False)
    view = replace(kind, shape=kind.shape[first:], layout=None)
    return Subview(buffer, starts, (1,) * len(indices), dropped, view, location=stmt.location)


def _buffer(tile: Expr) -> Var:
    buffer = root(tile)
    assert isinstance(buffer, Var)
    return buffer


def _in_rows(move: _Move) -> bool:
    """Tell whether every 16 bytes of a row lie together, at a multiple of 16 bytes."""
    if not is_whole(move.tile):
        return False
    kind = tensor_type(_buffer(move.tile))
    run = _ROW * 8 // move.dtype.bits
    row = as_constant(kind.shape[-1])
    if row is None or int(row) % run or kind.align % _ROW:
        return False
    match kind.layout:
        case ComposeLayout():
            # Swizzles move chunks of 16 bytes.
            return True
        case TileLayout():
            return kind.layout.canonicalize().is_trivial()
        case None:
            return True
        case _:
            return False


# ---------------------------------------------------------------------------- matrices


def _matrices(fragment: Fragment, dtype: DType) -> _Matrices | None:
    """Read a fragment as matrices; `None` if it is not made of them."""
    if fragment.domain != fragment.shape or len(fragment.shape) != 2 or fragment.layout.offset:
        return None
    pack = 32 // dtype.bits
    rows, columns = fragment.groups
    # What is turned are elements of 16 bits: others would come apart.
    for turned in (False, True) if dtype.bits == 16 else (False,):
        across, along = (columns, rows) if turned else (rows, columns)
        lanes = _peeled(across, 8, _WORDS, tx)
        runs = _peeled(_peeled(along, pack, 1, m), _WORDS, 1, tx)
        if lanes is None or runs is None or not _are_outer((*lanes, *runs), pack):
            continue
        return _Matrices(*((runs, lanes) if turned else (lanes, runs)), turned)
    return None


def _peeled(digits: tuple[Iter, ...] | None, extent: int, stride: int, axis: Any) -> Any:
    """Take the innermost digit away, which has to be one, or a part of one."""
    if not digits or digits[-1].axis != axis or digits[-1].stride != stride:
        return None
    *outer, last = digits
    if last.extent % extent:
        return None
    if last.extent > extent:
        outer.append(Iter(last.extent // extent, stride * extent, axis))
    return tuple(outer)


def _are_outer(digits: tuple[Iter, ...], pack: int) -> bool:
    """Tell whether digits are of warps and of words, and these follow one another."""
    stride = pack
    for each in sorted((each for each in digits if each.axis == m), key=lambda each: each.stride):
        if each.stride != stride:
            return False
        stride *= each.extent
    return all(each.axis == m or each.stride % _WARP == 0 for each in digits)


def _count(found: _Matrices) -> int:
    """Count the matrices of a thread."""
    count = 1
    for each in (*found.rows, *found.columns):
        count *= each.extent if each.axis == m else 1
    return count


def _group(found: _Matrices) -> int:
    return next(each for each in (4, 2, 1) if _count(found) % each == 0)


def _instruction(move: _Move, found: _Matrices) -> Form:
    declaration = matrix_moves.stmatrix if move.stores else matrix_moves.ldmatrix
    trans = "trans" if found.turned else ""
    return form(declaration, num=f"x{_group(found)}", trans=trans, space="shared")


# ---------------------------------------------------------------------------- both sides


def _of_warp(move: _Move, found: _Matrices, scene: TileScene) -> Expr:
    """View what a warp has of the tile as matrices, in the order of its registers."""
    digits = [*found.rows, Iter(8, 0, laneid), *found.columns, Iter(_WORDS, 0, laneid)]
    order = sorted(range(len(digits)), key=lambda at: _rank(digits[at]))
    view = split(words(_laid_out(move.tile), UINT32), [each.extent for each in digits], order)
    starts: list[Expr] = []
    extents: list[int] = []
    for each in (digits[at] for at in order):
        of_warps = each.axis == tx
        starts.append(scene.thread // each.stride % each.extent if of_warps else int32(0))
        extents.append(1 if of_warps else each.extent)
    group = _group(found)
    shape = (_count(found) // group, group, 8, _WORDS)
    return joined(box(view, starts, extents), shape)


def _laid_out(tile: Expr) -> Expr:
    """View a buffer that is not laid out otherwise row by row."""
    buffer = _buffer(tile)
    kind, extents = tensor_type(buffer), extents_of(buffer)
    if kind.layout is not None:
        return tile
    plain = Relayout(buffer, replace(kind, layout=default_layout(extents)), location=tile.location)
    return replace(tile, source=plain) if isinstance(tile, Subview) else plain


def _rank(digit: Iter) -> tuple[int, int]:
    """Order digits: those of warps, of words by their registers, of a matrix."""
    return ((tx, m, laneid).index(digit.axis), -digit.stride)


def _held(registers: Var, found: _Matrices) -> Expr:
    count, group = _count(found), _group(found)
    digits = (Iter(count // group, group, m), Iter(group, 1, m))
    layout = TileLayout.from_iters((*digits, Iter(8, 4, laneid), Iter(_WORDS, 1, laneid)))
    return held(registers, (count // group, group, 8, _WORDS), layout, UINT32)


def _converted(stmt: ParallelTile, move: _Move, scene: TileScene) -> tuple[Block, Var]:
    """Convert a fragment into registers of their own."""
    own = scene.fragments[move.fragment.name]
    kind = replace(tensor_type(move.fragment), dtype=move.dtype)
    buffer = scene.names.variable(f"{move.fragment.name}_cast", kind)
    registers = registers_of(buffer, own)
    store = stmt.body[0]
    assert isinstance(store, Store)
    copy = replace(store, tensor=buffer, indices=stmt.vars)
    known = scene.holding(buffer.name, own, scene.first)
    known = replace(known, registers={**known.registers, buffer.name: registers})
    loop = replace(stmt, body=(copy,))
    return (Allocate(registers, location=stmt.location), *lower_parallel(loop, known)), registers
