"""Let shared buffers that are never in use together lie over one another.

May import `base`, `ir` and the modules of this folder above. A buffer is in use from the first
statement of the kernel's body that has it to the last; a loop is one statement. The barriers
between the uses of two such buffers are `insert_barriers`'.

    T.gemm(a, b, c); T.copy(c, out)   ->   out = T.alloc_shared(…, over=(a, b))
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Var
from tilewright.ir.rewrite import map_statements
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Allocate, Block, Kernel, Program, Stmt
from tilewright.ir.tile import TileStmt
from tilewright.ir.visit import variables, walk_kinds

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
    uses = _uses(kernel.body)
    below: dict[str, tuple[Var, ...]] = {}
    for at, var in enumerate(allocated):
        below[var.name] = tuple(
            each for each in allocated[:at] if _apart(uses.get(each.name), uses.get(var.name))
        )

    def over(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Allocate) and below.get(stmt.var.name):
            return replace(stmt, over=below[stmt.var.name])
        return None

    return replace(kernel, body=map_statements(kernel.body, over))


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


def _apart(one: Use | None, other: Use | None) -> bool:
    """Tell whether two buffers are not in use together; one that nobody uses is apart from all."""
    return one is None or other is None or one[1] < other[0] or other[1] < one[0]
