"""Large expressions in parts: what works on the IR follows expressions recursively.

May import `base` and `ir`. Python code may build expressions of any size, as `sum` does, and use
one several times in another. A part that is too large is computed before the statement, under a
name of its own; one that reads memory only under a condition is computed in a branch.

    >>> O[i] = sum(A[i, k] for k in range(100))
    part = A[i, 0] + A[i, 1] + …
    part_1 = part + A[i, 31] + …
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL
from tilewright.base.errors import FrontendError
from tilewright.ir.expressions import LOGICAL, Binary, Expr, Load, Read, Select, constant, unary
from tilewright.ir.rewrite import map_children
from tilewright.ir.statements import Assign, Block, Break, Declare, If, Stmt, While
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import children

if TYPE_CHECKING:
    from tilewright.frontend.builder import Builder

_HIGHEST = 32
_LARGEST = 128
_NESTED = 16


def split(stmt: Stmt, builder: Builder) -> Stmt:
    """Issue what is too large in a statement before it; gives the statement that is left.

    Raises `FrontendError` (`unsupported-expression`) for conditions that nest too deeply.
    """
    if isinstance(stmt, While):
        return _split_loop(stmt, builder)
    return map_children(stmt, _Splitter(builder).node)


def _split_loop(loop: While, builder: Builder) -> While:
    """Evaluate the condition of a loop at the beginning of every turn, if that takes parts."""
    with builder.block() as issued:
        condition = _Splitter(builder).expr(loop.condition)
        if issued:
            builder.emit(If(unary("not", condition), (Break(),), location=loop.location))
    if not issued:
        return loop
    return replace(loop, condition=constant(True, BOOL), body=(*issued, *loop.body))


@dataclass(frozen=True, slots=True)
class _Size:
    """How high an expression is, how many nodes it has as a tree, and if it reads memory."""

    height: int
    nodes: int
    reads: bool

    @property
    def fits(self) -> bool:
        return self.height < _HIGHEST and self.nodes < _LARGEST


_LEAF = _Size(0, 1, False)


def _size(node: Expr, below: Iterable[_Size]) -> _Size:
    height, nodes, reads = 0, 1, isinstance(node, Load | Read)
    for each in below:
        height = max(height, each.height + 1)
        nodes += each.nodes
        reads = reads or each.reads
    return _Size(height, nodes, reads)


def _below(node: Expr) -> list[Expr]:
    return [each for each in children(node) if isinstance(each, Expr)]


def parts(expr: Expr) -> Iterable[Expr]:
    """Yield the nodes of an expression of any size, each once, after those below it."""
    return _bottom_up(expr, _below)


def _bottom_up(root: Expr, below: Callable[[Expr], list[Expr]]) -> Iterable[Expr]:
    seen: set[int] = set()
    stack = [(root, iter(below(root)))]
    while stack:
        node, remaining = stack[-1]
        for each in remaining:
            if id(each) not in seen:
                seen.add(id(each))
                stack.append((each, iter(below(each))))
                break
        else:
            stack.pop()
            yield node


class _Splitter:
    """Splits the expressions of one statement. Nodes are told apart by identity."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.sizes: dict[int, _Size] = {}

    def node(self, node: Expr | Stmt) -> Expr | Stmt:
        """Split a child of a statement; blocks are split already."""
        return self.expr(node) if isinstance(node, Expr) else node

    def expr(self, root: Expr, depth: int = 0) -> Expr:
        """Issue what is too large in an expression; gives what is left, of the same value."""
        for node in parts(root):
            self.sizes[id(node)] = _size(node, (self.sizes[id(each)] for each in _below(node)))
        return root if self.sizes[id(root)].fits else self._split(root, depth)

    def _split(self, root: Expr, depth: int) -> Expr:
        done: dict[int, Expr] = {}
        sizes = dict(self.sizes)

        def known(node: Expr) -> Expr:
            return done.get(id(node), node)

        for node in _bottom_up(root, self._unconditional):
            if any(not self.sizes[id(each)].fits for each in self._guarded(node)):
                new, size = self._branch(node, known, depth), _LEAF
            else:
                new = map_children(node, known)
                size = _size(node, (sizes[id(each)] for each in _below(node)))
            if not size.fits and node is not root and isinstance(new.type, ScalarType):
                new, size = self.builder.bind("part", new), _LEAF
            done[id(node)], sizes[id(node)] = new, size
        return done[id(root)]

    def _guarded(self, node: Expr) -> list[Expr]:
        """List the parts of a node that may only be evaluated under a condition."""
        match node:
            case Select(type=ScalarType()):
                arms = [node.true, node.false]
            case Binary() if node.op in LOGICAL:
                arms = [node.right]
            case _:
                return []
        return [each for each in arms if self.sizes[id(each)].reads]

    def _unconditional(self, node: Expr) -> list[Expr]:
        guarded = self._guarded(node)
        return [each for each in _below(node) if not any(each is arm for arm in guarded)]

    def _branch(self, node: Expr, known: Callable[[Expr], Expr], depth: int) -> Expr:
        """Make a choice a branch, so that a side of it may be split."""
        if depth == _NESTED:
            raise FrontendError(
                "conditions nest too deeply in this expression",
                code="unsupported-expression",
                location=node.location,
                expected=f"at most {_NESTED} conditions, one under another",
                hint="bind its parts to names, or write `if` statements",
            )
        condition, *sides = _choice(node)
        guarded = {id(each) for each in self._guarded(node)}
        cell = self.builder.variable("chosen", node.type)
        arms: list[Block] = []
        for side in sides:
            with self.builder.block() as arm:
                value = self.expr(side, depth + 1) if id(side) in guarded else known(side)
                self.builder.emit(Assign(cell, value, location=node.location))
            arms.append(tuple(arm))
        self.builder.emit(Declare(cell, None, location=node.location))
        self.builder.emit(If(known(condition), arms[0], arms[1], location=node.location))
        return cell


def _choice(node: Expr) -> tuple[Expr, Expr, Expr]:
    """Give the condition of a choice, and its value where that holds and where it does not."""
    match node:
        case Select():
            return node.condition, node.true, node.false
        case Binary(op="logical_and"):
            return node.left, node.right, constant(False, BOOL)
        case Binary():
            return node.left, constant(True, BOOL), node.right
        case _:
            raise AssertionError(f"no choice: {type(node).__name__}")
