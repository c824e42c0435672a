"""Lower products into Tensor Memory: one thread issues them, an mbarrier says when they are done.

May import `base`, `isa`, `ir` and the modules of this folder above. Shared memory that threads have
written is fenced by them before the barrier in front (`insert_barriers`).

    T.gemm(a, b, c, clear_accum=k == 0, mbar=mbar)
    # -> in one lane of warp 0: tcgen05.mma …, accum=k != 0; tcgen05.commit [mbar]
    #    wait for the phase of mbar; the next one has the other parity
"""

from __future__ import annotations

from tilewright.base.dtypes import BOOL
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, as_constant, constant, unary
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply, Block, Instruct, Stmt
from tilewright.ir.tile import GemmTile
from tilewright.isa import named
from tilewright.isa.declaration import Form
from tilewright.passes.tile.gemm_shapes import problem, tensor_kind, tensor_shape
from tilewright.passes.tile.issuing import address_of, by_issuer, next_phase, wait_for_phase
from tilewright.passes.tile.scene import TileScene
from tilewright.passes.tile.views import extents_of, matrix, split

_FORMS: dict[tuple[str, Space], Form] = {
    ("f16", Space.SHARED): named.MMA_F16,
    ("f16", Space.TMEM): named.MMA_F16_TMEM,
    ("tf32", Space.SHARED): named.MMA_TF32,
    ("tf32", Space.TMEM): named.MMA_TF32_TMEM,
}


def lower_tcgen05(stmt: GemmTile, scene: TileScene) -> Block:
    """Write a product as instructions of the tensor core, a commit, and a wait if it waits."""
    where = stmt.location
    found = problem(stmt)
    rows, columns, depth = shape = tensor_shape(found)
    parameters = (
        ("instruction_shape", shape),
        ("a_major", "mn" if stmt.transpose_a else "k"),
        ("b_major", "k" if stmt.transpose_b else "mn"),
        ("accum", _not(stmt.clear)),
    )
    form = _FORMS[tensor_kind(found), tensor_type(stmt.a).space]
    views = (
        _blocks(stmt.c, rows, columns, False),
        _blocks(stmt.a, rows, depth, stmt.transpose_a),
        _blocks(stmt.b, columns, depth, not stmt.transpose_b),
    )
    issue: list[Stmt] = [
        Instruct(named.TENSOR_FENCE_AFTER, (), location=where),
        Apply(form, views, "thread", parameters, location=where),
    ]
    place, phase = stmt.barrier, stmt.phase
    if place is not None:
        issue.append(Instruct(named.TENSOR_COMMIT, (address_of(place, where),), location=where))
    issued = by_issuer(stmt.issuer, tuple(issue), scene, where)
    if place is None or phase is None:
        return issued
    waits = wait_for_phase(place, phase, scene, where) if stmt.waits else ()
    return (*issued, *waits, next_phase(place, phase, where))


def _not(condition: Expr) -> Expr:
    known = as_constant(condition)
    return unary("not", condition) if known is None else constant(not known, BOOL)


def _blocks(tile: Expr, rows: int, columns: int, transposed: bool) -> Expr:
    """View a matrix as blocks (…, rows, columns), row by row; `transposed` is how it is stored."""
    tile = matrix(tile)
    down, across = extents_of(tile)
    if transposed:
        return split(tile, (down // columns, columns, across // rows, rows), (2, 0, 3, 1))
    return split(tile, (down // rows, rows, across // columns, columns), (0, 2, 1, 3))
