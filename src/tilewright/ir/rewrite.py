"""The rewrite engine: maps over expressions and statements that share what does not change.

May import `base`, `isa` and the nodes of `ir`. A rule is data: a class of nodes and a function
of a node, which gives its replacement, or `None` for no change. In a block a statement may be
replaced by several, or by none (an empty tuple).

    # x * 2  ->  x + x
    doubling_rules = ((Binary, lambda e: e.left + e.left if e.op == "mul" … else None),)
    rewrite(kernel, doubling_rules)

A replacement without a location takes that of the node it replaces. Types are not entered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, TypeVar, cast

from tilewright.base.locations import Location
from tilewright.ir.expressions import Expr, Var
from tilewright.ir.statements import Block, Stmt
from tilewright.ir.visit import (
    Node,
    bits_of,
    block_fields,
    by_class,
    child_fields,
    children,
    forget,
    kinds,
)

AnyNode = TypeVar("AnyNode", bound="Node | Block")
OneNode = TypeVar("OneNode", bound=Node)
Replacement = Node | Block
Function = Callable[[Any], Replacement | None]
Rule = tuple[type, Function]
_REPEATS = 1000


# ---------------------------------------------------------------------------- one node


def _mapped_tuple(nodes: tuple[Any, ...], fn: Callable[[Any], Replacement]) -> tuple[Any, ...]:
    """Map a tuple of nodes, splicing in blocks; the tuple itself if nothing changed."""
    mapped = [fn(each) for each in nodes]
    if all(map(is_, mapped, nodes)):
        return nodes
    flat: list[Any] = []
    for new in mapped:
        flat.extend(new) if isinstance(new, tuple) else flat.append(new)
    return tuple(flat)


def _mapped_pairs(
    pairs: tuple[tuple[str, Any], ...], fn: Callable[[Any], Replacement]
) -> tuple[tuple[str, Any], ...]:
    mapped = tuple((key, _mapped_value(value, fn)) for key, value in pairs)
    same = all(new[1] is old[1] for new, old in zip(mapped, pairs, strict=True))
    return pairs if same else mapped


def _mapped_value(value: Any, fn: Callable[[Any], Replacement]) -> Any:
    if isinstance(value, tuple):
        old = cast("tuple[Any, ...]", value)
        new = tuple(_mapped_value(each, fn) for each in old)
        return old if all(map(is_, new, old)) else new
    return fn(value) if isinstance(value, Expr) else value


def _only_variable(old: Var, fn: Callable[[Any], Replacement]) -> Var:
    """Map a variable that a statement names: it can be renamed, not replaced by a value."""
    new = fn(old)
    return new if isinstance(new, Var) else old


def _mapped_field(value: Any, holds: str, fn: Callable[[Any], Replacement]) -> Any:
    match holds:
        case "var":
            return _only_variable(value, fn)
        case "vars":
            return _mapped_tuple(value, partial(_only_variable, fn=fn))
        case _:
            return _mapped_pairs(value, fn)


def map_children(node: AnyNode, fn: Callable[[Any], Replacement]) -> AnyNode:
    """Apply a function to each node directly below a node (or to each of a block).

    Returns the node itself if every child is returned as it was.
    """
    if isinstance(node, tuple):
        return cast(AnyNode, _mapped_tuple(node, fn))
    changes: dict[str, Any] = {}
    for name, holds in child_fields(type(node)):
        old = getattr(node, name)
        if holds == "node":
            new = None if old is None else fn(old)
        elif holds == "nodes":
            new = _mapped_tuple(old, fn)
        else:
            new = _mapped_field(old, holds, fn)
        if new is not old:
            changes[name] = new
    return cast(AnyNode, changed(cast(Node, node), changes)) if changes else node


def changed(node: OneNode, fields: Mapping[str, Any]) -> OneNode:
    """Copy a node with other values in some fields: `dataclasses.replace`, in less time."""
    new = object.__new__(type(node))
    new.__dict__.update(node.__dict__)
    forget(new)
    new.__dict__.update(fields)
    return new


def keep_location(new: Replacement, location: Location | None) -> Replacement:
    """Give a replacement, or each statement of one, a location if it has none."""
    if location is None:
        return new
    if isinstance(new, tuple):
        return tuple(cast(Stmt, keep_location(each, location)) for each in new)
    return new if new.location is not None else changed(new, {"location": location})


# ---------------------------------------------------------------------------- whole trees


class Rewriter:
    """Applies rules to trees. Expressions that occur in several places are mapped once.

    What has no node that a rule is for is not entered.
    """

    def __init__(self, rules: Sequence[Rule], top_down: bool = False) -> None:
        self.functions = by_class(rules)
        self.wanted = bits_of(*(kind for kind, _ in rules))
        self.top_down = top_down
        self.expressions: dict[int, tuple[Expr, Replacement]] = {}

    def __call__(self, node: AnyNode) -> AnyNode:
        """Apply the rules everywhere in a node or block; see `rewrite`."""
        if isinstance(node, tuple):
            return map_children(node, self.visit)
        return cast(AnyNode, self.visit(node))

    def once(self, node: Node) -> Replacement | None:
        """Apply the first rule that changes a node."""
        for function in self.functions(type(node)):
            new = function(node)
            if new is not None and new is not node:
                return keep_location(new, node.location)
        return None

    def visit(self, node: Node) -> Replacement:
        """Apply the rules at and below a node."""
        if not kinds(node) & self.wanted:
            return node
        if not isinstance(node, Expr):
            return self.visit_new(node)
        known = self.expressions.get(id(node))
        if known is None:
            # The node is kept with the result so that its id stays taken.
            known = self.expressions[id(node)] = (node, self.visit_new(node))
        return known[1]

    def visit_new(self, node: Node) -> Replacement:
        """Apply the rules at and below a node that was not met before."""
        if self.top_down:
            new = self.once(node)
            return self.inside(node) if new is None else new
        return self.settle(self.inside(node))

    def inside(self, node: OneNode) -> OneNode:
        """Apply the rules below a node, and not to itself."""
        below = any(kinds(each) & self.wanted for each in children(node))
        return map_children(node, self.visit) if below else node

    def settle(self, node: Node) -> Replacement:
        """Apply rules to a node whose children are done, until none changes it."""
        for _ in range(_REPEATS):
            new = self.once(node)
            if new is None:
                return node
            if isinstance(new, tuple):
                return new
            node = new
        raise AssertionError(f"rewrite rules do not come to an end at {node!r}")


def rewrite(node: AnyNode, rules: Sequence[Rule], *, top_down: bool = False) -> AnyNode:
    """Apply rules everywhere in a program, kernel, block, statement or expression.

    Bottom-up, a node meets the rules after its children, again and again until none changes
    it. With `top_down` it meets them before its children, and what a rule gives is not entered.
    """
    return Rewriter(rules, top_down)(node)


def map_statements(node: AnyNode, fn: Callable[[Stmt], Stmt | Block | None]) -> AnyNode:
    """Apply a function once to every statement, inner before outer, in program order.

    `None` means no change, an empty tuple removes the statement. Expressions are not entered.
    """

    def visit(each: Node) -> Replacement:
        if isinstance(each, Expr):
            return each
        new = map_children(each, visit)
        if not isinstance(new, Stmt):
            return new
        changed = fn(new)
        return new if changed is None else keep_location(changed, each.location)

    return cast(AnyNode, map_children(node, visit) if isinstance(node, tuple) else visit(node))


def map_blocks(stmt: Stmt, fn: Callable[[Block], Block]) -> Stmt:
    """Apply a function to each block of a statement."""
    changes: dict[str, Any] = {}
    for name in block_fields(type(stmt)):
        old: Block = getattr(stmt, name)
        new = fn(old)
        if new is not old:
            changes[name] = new
    return changed(stmt, changes) if changes else stmt


def block_of(statements: Sequence[Stmt], old: Block) -> Block:
    """Make a block of statements: the old one, if they are its own."""
    same = len(statements) == len(old) and all(map(is_, statements, old))
    return old if same else tuple(statements)


def substitute(node: AnyNode, values: Mapping[str, Expr]) -> AnyNode:
    """Replace variables, found by name, by expressions of the same type."""
    return rewrite(node, ((Var, lambda var: values.get(var.name)),), top_down=True)
