"""Buffers of which several turns of a loop have a version each.

May import `base` and `ir`. A buffer that has versions gets one more axis, its first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.ir.expressions import Expr, Load, Subview, Var, as_constant, int32
from tilewright.ir.rewrite import rewrite
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Allocate, Block, Stmt, Store
from tilewright.ir.tile import AnnotateTile, PipelinedTile
from tilewright.ir.visit import Node, children, walk_kinds


class Versions:
    """The buffers of a kernel that have versions: their variables as they are then, by name."""

    def __init__(self) -> None:
        self.of: dict[str, Var] = {}

    def add(self, buffer: Var, count: int) -> None:
        """Give a buffer versions."""
        type = tensor_type(buffer)
        shape = (int32(count), *type.shape)
        self.of[buffer.name] = replace(buffer, type=replace(type, shape=shape))

    def allocation(self, stmt: Stmt) -> Stmt | None:
        """Allocate all versions of a buffer."""
        if isinstance(stmt, Allocate) and stmt.var.name in self.of:
            return replace(stmt, var=self.of[stmt.var.name])
        return None

    def select(self, block: Block, version: Expr, names: Collection[str] | None = None) -> Block:
        """Let statements use a version of the buffers that have several, all or some by name."""
        chosen = {name: var for name, var in self.of.items() if names is None or name in names}

        def element(node: Load) -> Expr | None:
            if isinstance(node.tensor, Var) and node.tensor.name in chosen:
                var = chosen[node.tensor.name]
                return replace(node, tensor=var, indices=(version, *node.indices))
            return None

        def store(node: Store) -> Stmt | None:
            if isinstance(node.tensor, Var) and node.tensor.name in chosen:
                var = chosen[node.tensor.name]
                indices = (version, *(rewrite(each, rules) for each in node.indices))
                return replace(node, tensor=var, indices=indices, value=rewrite(node.value, rules))
            return None

        def whole(node: Var) -> Expr | None:
            if node.name not in chosen or len(tensor_type(node).shape) == len(
                tensor_type(chosen[node.name]).shape
            ):
                return None
            var, type = chosen[node.name], tensor_type(node)
            rank = len(type.shape)
            starts = (version, *(int32(0) for _ in range(rank)))
            dropped = (True, *(False for _ in range(rank)))
            return Subview(var, starts, (1,) * (rank + 1), dropped, type)

        rules = ((Load, element), (Var, whole))
        return rewrite(block, (*rules, (Store, store)), top_down=True)


def laid_out(kernel: Block) -> set[str]:
    """Name the buffers whose layouts the program decides: they have one version."""
    return {
        name
        for each in walk_kinds(kernel, AnnotateTile)
        if each.kind == "layout"
        for name, _ in each.values
    }


def covers(tile: Expr, buffer: Var) -> bool:
    """Tell whether a tile is all of a buffer."""
    if isinstance(tile, Subview):
        whole = all(as_constant(each) == 0 for each in tile.starts)
        extents = [each for each in tensor_type(tile).shape if as_constant(each) != 1]
        own = [each for each in tensor_type(buffer).shape if as_constant(each) != 1]
        return whole and extents == own and tile.source == buffer
    return tile == buffer


def used_outside(block: Block, counter: Var) -> set[str]:
    """Name the variables that a kernel uses, but for allocations and the loop of a counter."""
    found: set[str] = set()
    pending: list[Node] = list(block)
    while pending:
        match pending.pop():
            case PipelinedTile(var=var) if var == counter:
                pass
            case Allocate():
                pass
            case Var() as each:
                found.add(each.name)
            case each:
                pending += children(each)
    return found
