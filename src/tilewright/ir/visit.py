"""Walking over nodes of the IR: children, descendants, variables.

May import `base`, `isa` and the nodes of `ir`. What the children of a node are is read off the
fields of its class, once per class: no node has code here. Types are not walked into.

    >>> [str(each) for each in children(Var("x", ScalarType(INT32)) * 2)]
    ['x', '2']
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Literal, TypeVar

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
from tilewright.ir.tile import AllocateBarriers, PipelinedTile

Node = Expr | Stmt | Launch | Kernel | Program
Nodes = tuple[Node, ...]
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


@cache
def block_fields(kind: type) -> tuple[str, ...]:
    """List the fields of a node's class that hold statements, or kernels, in order."""
    hints = typing.get_type_hints(kind)
    inner = {
        name: typing.get_args(hints[name])[0]
        for name, holds in child_fields(kind)
        if holds == "nodes"
    }
    return tuple(name for name, each in inner.items() if issubclass(each, Stmt | Kernel))


def children(node: Node) -> Nodes:
    """List the nodes directly below a node, in the order of its fields.

    A node remembers them, for it never changes.
    """
    known = node.__dict__.get("_children")
    if known is None:
        known = node.__dict__["_children"] = tuple(_read_children(node))
    return known


def _read_children(node: Node) -> list[Node]:
    found: list[Node] = []
    for name, holds in child_fields(type(node)):
        value = getattr(node, name)
        if holds in ("node", "var"):
            if value is not None:
                found.append(value)
        elif holds == "pairs":
            for _, held in value:
                _collect(held, found)
        else:
            found += value
    return found


def _collect(value: Any, found: list[Node]) -> None:
    """Add the expressions of a pair's value: itself, or what a tuple holds."""
    if isinstance(value, Expr):
        found.append(value)
    elif isinstance(value, tuple):
        for each in typing.cast("tuple[Any, ...]", value):
            _collect(each, found)


# ---------------------------------------------------------------------------- classes of nodes

Row = TypeVar("Row")
AnyNode = TypeVar("AnyNode", bound=Node)


def by_class(table: Sequence[tuple[type | tuple[type, ...], Row]]) -> Callable[[type], list[Row]]:
    """Give a function that lists, for a class, what a table has for it and for its bases."""

    @cache
    def rows(kind: type) -> list[Row]:
        return [row for wanted, row in table if issubclass(kind, wanted)]

    return rows


def _derived(kind: type) -> list[type]:
    """List a class and those that are derived from it."""
    return [kind, *(each for below in kind.__subclasses__() for each in _derived(below))]


_BITS = {kind: 1 << n for n, kind in enumerate(each for one in NODES for each in _derived(one))}


@cache
def bits_of(*wanted: type) -> int:
    """Give the bits that stand in `kinds` for some classes, and for those derived from them."""
    return sum({_BITS[each] for kind in wanted for each in _derived(kind)})


def kinds(node: Node) -> int:
    """Tell the classes of a node and of all below it, by a bit for each.

    A node remembers them, for it never changes: what has nothing of a kind is passed over.
    """
    known = node.__dict__.get("_kinds")
    if known is None:
        known = _BITS[type(node)]
        for each in children(node):
            known |= each.__dict__.get("_kinds") or kinds(each)
        node.__dict__["_kinds"] = known
    return known


def forget(node: Node) -> None:
    """Drop what a node remembers: one that is copied, before it is given other children."""
    node.__dict__.pop("_children", None)
    node.__dict__.pop("_kinds", None)


# ---------------------------------------------------------------------------- whole trees


def walk(node: Node | Nodes) -> Iterator[Node]:
    """Yield a node and all below it, parents first, in the order of the program."""
    pending = list(reversed(node)) if isinstance(node, tuple) else [node]
    while pending:
        each = pending.pop()
        yield each
        pending += children(each)[::-1]


def walk_kinds(node: Node | Nodes, *wanted: type[AnyNode]) -> Iterator[AnyNode]:
    """Yield what is of some classes at or below a node, parents first, in the program's order."""
    bits = bits_of(*wanted)
    pending = list(reversed(node)) if isinstance(node, tuple) else [node]
    while pending:
        each = pending.pop()
        if kinds(each) & bits:
            if isinstance(each, wanted):
                yield each
            pending += children(each)[::-1]


def walk_expressions(node: Node | Nodes) -> Iterator[Expr]:
    """Yield every expression at or below a node."""
    return (each for each in walk(node) if isinstance(each, Expr))


def walk_statements(node: Node | Block) -> Iterator[Stmt]:
    """Yield every statement at or below a node, parents first; expressions are not entered."""
    pending: list[Node] = list(reversed(node)) if isinstance(node, tuple) else [node]
    while pending:
        each = pending.pop()
        if isinstance(each, Stmt):
            yield each
        for name in reversed(block_fields(type(each))):
            pending += reversed(getattr(each, name))


def variables(node: Node | Block) -> tuple[Var, ...]:
    """List the variables that occur at or below a node, each once, in order of occurrence."""
    return tuple({each.name: each for each in walk_kinds(node, Var)}.values())


def defined_by(stmt: Stmt) -> Var | None:
    """Give the variable that a statement brings into being, if it does."""
    made = isinstance(
        stmt,
        Bind | Declare | Allocate | For | EncodeTensorMap | AllocateBarriers | PipelinedTile,
    )
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
