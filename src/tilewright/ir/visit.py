"""Walking over nodes of the IR: children, descendants, variables.

May import `base`, `isa` and the nodes of `ir`. What the children of a node are is read off the
fields of its class, once per class: no node has code here. Types are not walked into.

    >>> [str(each) for each in children(Var("x", ScalarType(INT32)) * 2)]
    ['x', '2']
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any, Literal

from tilewright.ir.expressions import Expr, Var
from tilewright.ir.operands import written_places
from tilewright.ir.statements import (
    Allocate,
    Assign,
    Bind,
    Block,
    Declare,
    EncodeTensorMap,
    For,
    Instruct,
    Kernel,
    Launch,
    Program,
    Stmt,
    Store,
)

Node = Expr | Stmt | Launch | Kernel | Program
NODES = (Expr, Stmt, Launch, Kernel, Program)
# What a field holds: a node, a tuple of nodes, a variable that the node names, a tuple of
# such variables, or (name, value) pairs whose values may be, or hold in tuples, expressions.
Holds = Literal["node", "nodes", "var", "vars", "pairs"]


def _is_node(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, NODES)


def _holds(hint: Any) -> Holds | None:
    """Say what a field of that annotation holds; `None` if nothing that is walked."""
    if hint is Var:
        return "var"
    if _is_node(hint):
        return "node"
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType and all(kind is type(None) or _is_node(kind) for kind in inner):
        return "node"
    if origin is not tuple:
        return None
    if inner[0] is Var:
        return "vars"
    if _is_node(inner[0]):
        return "nodes"
    return "pairs" if typing.get_origin(inner[0]) is tuple else None


@cache
def child_fields(kind: type) -> tuple[tuple[str, Holds], ...]:
    """List the fields of a node's class that hold nodes, in order, with what they hold."""
    hints = typing.get_type_hints(kind)
    found: list[tuple[str, Holds]] = []
    for each in fields(kind):
        holds = _holds(hints[each.name])
        if holds is not None:
            found.append((each.name, holds))
    return tuple(found)


def _expressions(value: Any) -> Iterator[Expr]:
    """Yield the expressions of a pair's value: itself, or what a tuple holds."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, tuple):
        for each in typing.cast("tuple[Any, ...]", value):
            yield from _expressions(each)


def children(node: Node) -> Iterator[Node]:
    """Yield the nodes directly below a node, in the order of its fields."""
    for name, holds in child_fields(type(node)):
        value = getattr(node, name)
        if holds in ("node", "var"):
            if value is not None:
                yield value
        elif holds == "pairs":
            for _, held in value:
                yield from _expressions(held)
        else:
            yield from value


def walk(node: Node | Block) -> Iterator[Node]:
    """Yield a node and all below it, parents first, in the order of the program."""
    if isinstance(node, tuple):
        for each in node:
            yield from walk(each)
        return
    yield node
    for child in children(node):
        yield from walk(child)


def walk_expressions(node: Node | Block) -> Iterator[Expr]:
    """Yield every expression at or below a node."""
    return (each for each in walk(node) if isinstance(each, Expr))


def walk_statements(node: Node | Block) -> Iterator[Stmt]:
    """Yield every statement at or below a node, parents first; expressions are not entered."""
    if isinstance(node, Expr | Launch):
        return
    if isinstance(node, Stmt):
        yield node
    below = node if isinstance(node, tuple) else children(node)
    for each in below:
        yield from walk_statements(each)


def variables(node: Node | Block) -> tuple[Var, ...]:
    """List the variables that occur at or below a node, each once, in order of occurrence."""
    found = (each for each in walk(node) if isinstance(each, Var))
    return tuple({each.name: each for each in found}.values())


def defined_by(stmt: Stmt) -> Var | None:
    """Give the variable that a statement brings into being, if it does."""
    made = isinstance(stmt, Bind | Declare | Allocate | For | EncodeTensorMap)
    return stmt.var if made else None


def defined(node: Node | Block) -> tuple[Var, ...]:
    """List the variables defined by statements at or below a node."""
    found = (defined_by(stmt) for stmt in walk_statements(node))
    return tuple(each for each in found if each is not None)


def free_variables(node: Node | Block) -> tuple[Var, ...]:
    """List the variables that occur at or below a node and are not defined there."""
    inside = {each.name for each in defined(node)}
    return tuple(each for each in variables(node) if each.name not in inside)


def root(tensor: Expr) -> Expr:
    """Follow views down to the buffer that they are taken of."""
    while (source := getattr(tensor, "source", None)) is not None:
        tensor = source
    return tensor


def written(stmt: Stmt) -> tuple[Var, ...]:
    """List the cells and buffers that a statement itself writes, blocks below it left out."""
    match stmt:
        case Bind() | Declare() | Assign():
            return (stmt.var,)
        case For():
            return (stmt.var,)
        case Store():
            places: tuple[Expr, ...] = (stmt.tensor,)
        case Instruct():
            places = written_places(stmt)
        case _:
            return ()
    roots = (root(getattr(place, "tensor", place)) for place in places)
    return tuple(each for each in roots if isinstance(each, Var))
