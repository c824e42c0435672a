"""Which variables may be unset where it matters: where they go to memory, or decide.

May import `ir` and the analyses of `passes`. What is unset and only computed with harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.ir.expressions import Expr, Select, Var, as_constant
from tilewright.ir.operands import read_operands
from tilewright.ir.statements import (
    Block,
    Break,
    Continue,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Return,
    Stmt,
    While,
    Write,
)
from tilewright.ir.visit import children, written
from tilewright.passes.analysis.uniformity import leaves_early

_Names = frozenset[str]
_NONE: _Names = frozenset()


def needed(stmt: Stmt) -> tuple[Var, ...]:
    """List the variables that must be set when a statement is come to.

    Of a choice between values only the condition counts.
    """
    match stmt:
        case Write():
            found: tuple[Expr, ...] = (stmt.pointer, stmt.value)
        case If() | While():
            found = (stmt.condition,)
        case Instruct() if stmt.form.declaration.lanes == "any":
            touches = any(each.kind == "address" for each in stmt.form.operands)
            found = read_operands(stmt) if touches else ()
        case _:
            return ()
    return tuple({var.name: var for each in found for var in _variables(each)}.values())


def _variables(expr: Expr) -> Iterator[Var]:
    if isinstance(expr, Var):
        yield expr
    below = (expr.condition,) if isinstance(expr, Select) else children(expr)
    for each in below:
        if isinstance(each, Expr):
            yield from _variables(each)


def partly_set(kernel: Kernel) -> _Names:
    """Name the variables that something needs and some path to there has not set."""
    search = _Search()
    search.block(kernel.body, _NONE)
    return frozenset(search.found)


@dataclass
class _Search:
    """Follows which variables may be unset, statement by statement."""

    found: set[str] = field(default_factory=set[str])

    def block(self, block: Block, unset: _Names) -> _Names:
        for stmt in block:
            unset = self.statement(stmt, unset)
        return unset

    def statement(self, stmt: Stmt, unset: _Names) -> _Names:
        self.found |= {each.name for each in needed(stmt)} & unset
        match stmt:
            case Declare(value=None):
                return unset | {stmt.var.name}
            case If():
                return self.block(stmt.then, unset) | self.block(stmt.orelse, unset)
            case For() | While():
                after = self.block(stmt.body, unset)
                return after if _runs_through(stmt) else unset
            case Break() | Continue() | Return():
                return _NONE
            case _:
                return unset - {each.name for each in written(stmt)}


def _runs_through(loop: For | While) -> bool:
    """Tell whether all of a loop's body is sure to be executed."""
    if isinstance(loop, While) or leaves_early(loop.body):
        return False
    bounds = [as_constant(each) for each in (loop.start, loop.stop, loop.step)]
    numbers = [each for each in bounds if isinstance(each, int)]
    return len(numbers) == len(bounds) and len(range(*numbers)) > 0
