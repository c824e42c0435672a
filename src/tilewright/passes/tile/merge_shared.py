"""Let shared buffers that are never in use together lie over one another.

May import `base`, `ir` and the modules of this folder above. A buffer is in use from the first
statement of the kernel's body that has it to the last; a loop is one statement. Two buffers of one
loop are not in use together either, where each turn fills them before it uses them, one after the
other. The barriers between the uses of two such buffers are `insert_barriers`'.

    T.gemm(a, b, c); T.copy(c, out)   ->   out = T.alloc_shared(…, over=(a, b))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Var
from tilewright.ir.rewrite import map_statements
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import (
    Allocate,
    Apply,
    Block,
    For,
    Instruct,
    Kernel,
    Program,
    Stmt,
    Store,
)
from tilewright.ir.tile import CopyTile, FillTile, GemmTile, ParallelTile, TileStmt
from tilewright.ir.visit import variables, walk_kinds, walk_statements
from tilewright.passes.tile.effects import accesses
from tilewright.passes.tile.parting import divergent, parts
from tilewright.passes.tile.versions import covers

Use = tuple[int, int]


def merge_shared(program: Program) -> Program:
    """Say of each shared buffer which others it may lie over, in kernels that have tiles."""
    return replace(program, kernels=tuple(map(_merge, program.kernels)))


def _merge(kernel: Kernel) -> Kernel:
    allocated = [
        each.var
        for each in walk_kinds(kernel.body, Allocate)
        if tensor_type(each.var).space is Space.SHARED
    ]
    if len(allocated) < 2 or not any(True for _ in walk_kinds(kernel, TileStmt)):
        return kernel
    lifetimes = _Lifetimes(kernel.body, divergent(kernel), _handed_on(kernel.body))
    below: dict[str, tuple[Var, ...]] = {}
    for at, var in enumerate(allocated):
        below[var.name] = tuple(each for each in allocated[:at] if lifetimes.apart(each, var))

    def over(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Allocate) and below.get(stmt.var.name):
            return replace(stmt, over=below[stmt.var.name])
        return None

    return replace(kernel, body=map_statements(kernel.body, over))


@dataclass(frozen=True)
class _Lifetimes:
    """When buffers are in use: `divergent` are names whose values differ between threads.

    `handed_on` are buffers whose use ends with no statement that has them.
    """

    body: Block
    divergent: set[str]
    handed_on: set[str]

    def apart(self, one: Var, other: Var) -> bool:
        """Tell whether two buffers are not in use together; one that nobody uses always is."""
        body: Block = self.body
        while True:
            uses = _uses(body)
            first, second = uses.get(one.name), uses.get(other.name)
            if first is None or second is None or first[1] < second[0] or second[1] < first[0]:
                return True
            if first != second or first[0] != first[1] or self.handed_on & {one.name, other.name}:
                return False
            loop = body[first[0]]
            if not isinstance(loop, For) or parts(loop, self.divergent):
                return False
            if not all(_is_filled_first(loop.body, each) for each in (one, other)):
                return False
            body = loop.body


def _uses(body: Block) -> dict[str, Use]:
    """Find the first and the last statement that has each variable, beside its allocation."""
    found: dict[str, Use] = {}
    for at, stmt in enumerate(body):
        if isinstance(stmt, Allocate):
            continue
        for var in variables(stmt):
            first, _ = found.get(var.name, (at, at))
            found[var.name] = (first, at)
    return found


def _handed_on(body: Block) -> set[str]:
    """Name the buffers that agents, instructions or addresses have beside the statements."""
    found: set[str] = set()
    for stmt in walk_statements(body):
        own = accesses(stmt)
        later = isinstance(stmt, CopyTile | GemmTile) and not stmt.waits
        if later or isinstance(stmt, Instruct | Apply):
            found |= {each.buffer.name for each in own}
        found |= {each.buffer.name for each in own if each.by_agent}
    return found


def _is_filled_first(body: Block, buffer: Var) -> bool:
    """Tell whether the first statement of a block that has a buffer fills all of it."""
    for stmt in body:
        if any(var.name == buffer.name for var in variables(stmt)):
            return _fills(stmt, buffer)
    return False


def _fills(stmt: Stmt, buffer: Var) -> bool:
    own = [each for each in accesses(stmt) if each.buffer.name == buffer.name]
    if any(each.mode == "read" for each in own):
        return False
    match stmt:
        case CopyTile() | FillTile():
            return covers(stmt.target, buffer)
        case ParallelTile():
            shape = static_shape(stmt.extents)
            whole = shape is not None and shape == static_shape(tensor_type(buffer).shape)
            return whole and _stores_each(stmt.body, buffer, stmt.vars)
        case _:
            return False


def _stores_each(body: Block, buffer: Var, vars: Sequence[Var]) -> bool:
    """Tell whether each point of a loop stores the element of its number."""
    return any(
        isinstance(stmt, Store) and stmt.tensor == buffer and stmt.indices == tuple(vars)
        for stmt in body
    )
