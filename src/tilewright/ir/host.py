"""What the host's part of a program consists of: numbers, branches, loops, launches.

May import the nodes of `ir`. Both forms of a program hold to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Cast,
    Constant,
    Expr,
    Intrinsic,
    Offset,
    Select,
    Unary,
    Var,
)
from tilewright.ir.statements import (
    Assert,
    Assign,
    Bind,
    Break,
    Continue,
    Declare,
    EncodeTensorMap,
    For,
    If,
    LaunchKernel,
    Print,
    Program,
    Return,
    Stmt,
    While,
)
from tilewright.ir.visit import Node, children

_STATEMENTS = (
    *(Assert, Assign, Bind, Break, Continue, Declare, EncodeTensorMap, For, If, LaunchKernel),
    *(Print, Return, While),
)
_EXPRESSIONS = (AddressOf, Binary, Cast, Constant, Offset, Select, Unary, Var)
HOST_FUNCTIONS = ("abs",)


def foreign(program: Program) -> Iterator[Expr | Stmt]:
    """Yield what stands in the host's part of a program, or says how it launches, but cannot."""
    for stmt in program.host:
        yield from _foreign(stmt)
    for kernel in program.kernels:
        for each in children(kernel.launch):
            yield from _foreign(each)


def _foreign(node: Node) -> Iterator[Expr | Stmt]:
    if isinstance(node, Expr | Stmt) and not _belongs(node):
        yield node
        return
    below = node.indices if isinstance(node, AddressOf) else children(node)
    for each in below:
        yield from _foreign(each)


def _belongs(node: Expr | Stmt) -> bool:
    if isinstance(node, Intrinsic):
        return node.name in HOST_FUNCTIONS
    return isinstance(node, _STATEMENTS if isinstance(node, Stmt) else _EXPRESSIONS)
