"""Lower products of tiles: where their operands lie, and who multiplies.

May import `base`, `layout`, `ir` and the modules of this folder above.
"""

from __future__ import annotations

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Var
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Block
from tilewright.ir.tile import GemmTile
from tilewright.ir.visit import root
from tilewright.layout import Layout
from tilewright.layout.fragment import Fragment
from tilewright.passes.tile.gemm_shapes import grid_of, problem
from tilewright.passes.tile.lower_mma import fragment_a, fragment_b, fragment_c, lower_mma
from tilewright.passes.tile.lower_tcgen05 import lower_tcgen05
from tilewright.passes.tile.scene import TileScene
from tilewright.passes.tile.shared_layouts import shared_align, shared_layout

__all__ = ["accumulator", "lower_gemm", "operands", "shared_align", "shared_layout"]


def lower_gemm(stmt: GemmTile, scene: TileScene) -> Block:
    """Write a product as the instructions of the way that was chosen for it."""
    return lower_tcgen05(stmt, scene) if stmt.way == "tcgen05" else lower_mma(stmt, scene)


def accumulator(stmt: GemmTile, scene: TileScene) -> Fragment:
    """Give the fragment that holds C of a product by warps."""
    return fragment_c(problem(stmt), grid_of(stmt, scene.threads))


def operands(stmt: GemmTile, scene: TileScene) -> dict[str, Fragment | Layout]:
    """Give the layouts in which a product finds its operands, C included, by their buffers.

    Those in shared memory are swizzled such that no bank conflicts arise. Tensor Memory is laid
    out already.
    """
    found: dict[str, Fragment | Layout] = {}
    if stmt.way != "tcgen05":
        found[_name(stmt.c)] = accumulator(stmt, scene)
    for tile, fragment, transposed in (
        (stmt.a, fragment_a, stmt.transpose_a),
        (stmt.b, fragment_b, not stmt.transpose_b),
    ):
        match tensor_type(tile).space:
            case Space.SHARED:
                buffer = root(tile)
                paired = stmt.way == "tcgen05" and transposed
                found[_name(tile)] = shared_layout(buffer, paired)
            case Space.FRAGMENT:
                grid = grid_of(stmt, scene.threads)
                found[_name(tile)] = fragment(problem(stmt), grid, transposed)
            case _:
                pass
    return found


def _name(tile: Expr) -> str:
    buffer = root(tile)
    assert isinstance(buffer, Var), tile
    return buffer.name
