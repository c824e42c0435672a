"""Choose which copies out of shared memory are bulk copies, without being asked.

May import `base`, `layout`, `isa`, `ir` and the modules of this folder above. A copy is one if that
is sure to work: all threads come to it, a tensor map describes the tensor whatever its sizes
are, and nothing else in the kernel depends on how the tile lies in shared memory.

    T.copy(c, C[i, j])   ->   way="tma", from sm_90 on
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import (
    Var,
    as_constant,
)
from tilewright.ir.rewrite import map_blocks
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Block, For, If, Kernel, Stmt, While
from tilewright.ir.tile import CopyTile, ParallelTile
from tilewright.ir.types import TensorType
from tilewright.ir.visit import root, walk
from tilewright.isa.tensor_map import FORMATS, GRANULE
from tilewright.layout import TileLayout
from tilewright.passes.tile.lower_tma import has_bulk_copies, place_of, refusal
from tilewright.passes.tile.parting import divergent, parts
from tilewright.passes.tile.shared_layouts import fixed_buffers, is_whole


def with_bulk_stores(kernel: Kernel, target: Target) -> Kernel:
    """Let the copies of a kernel that can be bulk stores be that, on targets that have them."""
    stores = [each for each in walk(kernel.body) if _is_open(each)]
    if not stores or not has_bulk_copies(target):
        return kernel
    fixed = fixed_buffers(kernel)
    tensors = {each.name for each in kernel.params if isinstance(each.type, TensorType)}
    chosen = {id(each) for each in stores if _fits(each, fixed, tensors)}
    body = _Choice(chosen, divergent(kernel)).block(kernel.body) if chosen else kernel.body
    return replace(kernel, body=body)


def _is_open(stmt: object) -> bool:
    return (
        isinstance(stmt, CopyTile)
        and stmt.way is None
        and stmt.waits
        and not dict(stmt.options).get("disable_tma")
        and tensor_type(stmt.source).space is Space.SHARED
        and tensor_type(stmt.target).space is Space.GLOBAL
    )


@dataclass(frozen=True)
class _Choice:
    """Goes through a kernel, where all threads come."""

    chosen: set[int]
    divergent: set[str]

    def block(self, block: Block) -> Block:
        return tuple(map(self.statement, block))

    def statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case CopyTile() if id(stmt) in self.chosen:
                return replace(stmt, way="tma")
            case If() | For() | While() if parts(stmt, self.divergent):
                return stmt
            case ParallelTile():
                return stmt
            case _:
                return map_blocks(stmt, self.block)


def _fits(stmt: object, fixed: set[str], tensors: set[str]) -> bool:
    assert isinstance(stmt, CopyTile)
    buffer = root(stmt.source)
    if not isinstance(buffer, Var) or buffer.name in fixed or not is_whole(stmt.source):
        return False
    if refusal(stmt) is not None or tensor_type(buffer).layout is not None:
        return False
    tensor, _, _ = place_of(stmt.target)
    if not isinstance(tensor, Var) or tensor.name not in tensors or tensor.name in fixed:
        return False
    kind = tensor_type(tensor)
    # Of unknown rows it is not known whether a map can describe them.
    known = as_constant(kind.shape[-1]) is not None and kind.dtype.name in FORMATS
    compact = not isinstance(kind.layout, TileLayout) or kind.layout.canonicalize().is_trivial()
    return known and compact and kind.align % GRANULE == 0
