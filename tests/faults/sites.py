"""Places of a program at which it can be edited, and the editing.

A `Site` is a statement as it stands in the source: what loops of Python or a tile operation have
made of one line is one site, edited everywhere at once. Its name says what stands there and tells
it from others like it, and stays the same when lines move.

    >>> [site.name for site in sites_of(program)]
    ['elect.sync', 'if warp == 0 and leader', 'mbarrier.init full', …]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright.base.locations import Location
from tilewright.ir.expressions import AddressOf, Expr, SpecialRegister, Var
from tilewright.ir.operands import paired_operands
from tilewright.ir.printer import print_expr
from tilewright.ir.statements import (
    Allocate,
    Assign,
    Bind,
    Block,
    EncodeTensorMap,
    For,
    If,
    Instruct,
    Kernel,
    Program,
    Stmt,
    Store,
    While,
)
from tilewright.ir.visit import root, variables, walk, walk_expressions, walk_statements
from tilewright.isa.declaration import Operand

# From the program down to a statement: the field of each node on the way, and the index there.
Path = tuple[tuple[str, int], ...]
Edit = Callable[[Any], tuple[Any, ...]]
_BLOCKS = {
    Program: ("host", "kernels"),
    Kernel: ("body",),
    For: ("body",),
    While: ("body",),
    If: ("then", "orelse"),
}


@dataclass(frozen=True)
class Site:
    """A statement of the source, and every place in the program where it stands.

    `above` are the statements around the first place, outermost first.
    """

    name: str
    statement: Stmt
    paths: tuple[Path, ...]
    above: tuple[Stmt, ...]

    @property
    def location(self) -> Location | None:
        """Say where it stands in the source."""
        return self.statement.location

    @property
    def path(self) -> Path | None:
        """Give the place, if there is one only."""
        first, *others = self.paths
        return None if others else first


def _walk(node: Any, path: Path, above: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, Path, Any]]:
    for field in _BLOCKS.get(type(node), ()):
        for index, child in enumerate(getattr(node, field)):
            here = (*path, (field, index))
            inner = above
            if isinstance(child, Stmt):
                yield child, here, above
                inner = (*above, child)
            yield from _walk(child, here, inner)


def edited(node: Any, edits: Mapping[Path, Edit]) -> Any:
    """Replace statements by what their edits give, each by a block, which may be empty."""
    changes: dict[str, Any] = {}
    for field in {path[0][0] for path in edits}:
        block: list[Any] = []
        for index, child in enumerate(getattr(node, field)):
            step = (field, index)
            here = {path[1:]: edit for path, edit in edits.items() if path[0] == step}
            if () in here:
                block.extend(here[()](child))
            else:
                block.append(edited(child, here) if here else child)
        changes[field] = tuple(block)
    return replace(node, **changes)


def at(node: Any, path: Path) -> Any:
    """Find the node at the end of a path."""
    for field, index in path:
        node = getattr(node, field)[index]
    return node


def block_around(program: Program, path: Path) -> Block:
    """Give the block that a statement stands in."""
    *way, (field, _) = path
    return getattr(at(program, tuple(way)), field)


def moved(program: Program, path: Path, target: int) -> Program:
    """Move a statement within its block: to the index `target`, once it is there."""
    *way, (field, index) = path

    def edit(node: Any) -> Any:
        block = getattr(node, field)
        rest = [*block[:index], *block[index + 1 :]]
        return (replace(node, **{field: (*rest[:target], block[index], *rest[target:])}),)

    return edited(program, {tuple(way): edit})


# ---------------------------------------------------------------------------- names


def is_wait_loop(stmt: Stmt) -> bool:
    """Tell a loop that polls until it is told to go on: a wait, as it is written."""
    if not isinstance(stmt, While):
        return False
    asked = {each.name for each in variables(stmt.condition)}
    polls = [each for each in stmt.body if isinstance(each, Instruct)]
    written = {
        place.name
        for each in polls
        for declared, place in paired_operands(each.form, each.operands)
        if declared.role != "in" and isinstance(place, Var)
    }
    return len(polls) == len(stmt.body) and bool(asked & written)


def poll_of(stmt: While) -> Instruct:
    """Give the instruction by which a wait loop polls."""
    polls = [each for each in stmt.body if isinstance(each, Instruct) and each.operands]
    return polls[0]


def issued(stmt: Stmt) -> Instruct | None:
    """Give an instruction, or that by which a wait loop polls; `None` for what is neither."""
    if isinstance(stmt, While) and is_wait_loop(stmt):
        return poll_of(stmt)
    return stmt if isinstance(stmt, Instruct) else None


def reissued(stmt: Stmt, change: Callable[[Instruct], Instruct]) -> Block:
    """Change an instruction, or that by which a wait loop polls."""
    if isinstance(stmt, Instruct):
        return (change(stmt),)
    assert isinstance(stmt, While)
    poll = poll_of(stmt)
    return (
        replace(stmt, body=tuple(change(poll) if each is poll else each for each in stmt.body)),
    )


def operands_of(stmt: Instruct) -> Iterator[tuple[int, Operand, Expr]]:
    """Yield the operands of an instruction: position, what is declared, what is given."""
    pairs = paired_operands(stmt.form, stmt.operands)
    yield from ((at, declared, given) for at, (declared, given) in enumerate(pairs))


def _buffer(stmt: Instruct) -> str:
    """Name the buffer that an instruction works on first."""
    for _, _, given in operands_of(stmt):
        for each in walk(given):
            if isinstance(each, AddressOf) and isinstance(found := root(each.tensor), Var):
                return f" {found.name}"
    return ""


def _plain(name: str) -> str:
    return name.partition("_map")[0]


def _title(stmt: Stmt) -> str:
    match stmt:
        case Instruct():
            return ".".join(stmt.form.text.split(".")[:4]) + _buffer(stmt)
        case While() if is_wait_loop(stmt):
            return f"wait for{_buffer(poll_of(stmt))}"
        case If():
            return f"if {print_expr(stmt.condition)}"
        case For():
            return f"for {stmt.var.name}"
        case EncodeTensorMap():
            return f"map of {_plain(stmt.var.name)}"
        case Allocate() | Bind() | Assign():
            return f"{type(stmt).__name__.lower()} {stmt.var.name}"
        case Store():
            found = root(stmt.tensor)
            return f"store {found.name}" if isinstance(found, Var) else "store"
        case _:
            return type(stmt).__name__.lower()


def sites_of(program: Program) -> tuple[Site, ...]:
    """List the sites of a program, in its order; polls are part of the loops around them."""
    groups: dict[Any, list[tuple[Stmt, Path, tuple[Stmt, ...]]]] = {}
    for stmt, path, above in _walk(program, (), ()):
        if above and is_wait_loop(above[-1]):
            continue
        title = _title(stmt)
        # One line of the source, whatever has become of it.
        line = stmt.location or path
        groups.setdefault((title, line, type(stmt)), []).append((stmt, path, above))
    seen: Counter[str] = Counter()
    found: list[Site] = []
    for (title, _, _), group in groups.items():
        number = seen[title]
        seen[title] += 1
        name = f"{title} #{number + 1}" if number else title
        first, _, above = group[0]
        found.append(Site(name, first, tuple(path for _, path, _ in group), above))
    return tuple(found)


# ---------------------------------------------------------------------------- the whole


@dataclass(frozen=True)
class Source:
    """A program as mutators see it: its sites, and what its names stand for."""

    program: Program

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """List its sites."""
        return sites_of(self.program)

    @cached_property
    def bindings(self) -> dict[str, Expr]:
        """Give what names are bound to."""
        bound = walk_statements(self.program)
        return {each.var.name: each.value for each in bound if isinstance(each, Bind)}

    @cached_property
    def elected(self) -> frozenset[str]:
        """Name the cells that hold whether a lane has been elected."""
        return frozenset(
            place.name
            for each in walk_statements(self.program)
            if isinstance(each, Instruct) and each.form.declaration.family == "elect.sync"
            for _, declared, place in operands_of(each)
            if declared.type == "pred" and isinstance(place, Var)
        )

    def is_id(self, expr: Expr, *names: str) -> bool:
        """Tell whether an expression is a thread's number of one of the kinds."""
        if isinstance(expr, Var):
            expr = self.bindings.get(expr.name, expr)
        return isinstance(expr, SpecialRegister) and expr.name in names

    def resolved(self, expr: Expr) -> Iterator[Expr]:
        """Yield an expression and all below it, and below what its names are bound to."""
        for each in walk_expressions(expr):
            yield each
            if isinstance(each, Var) and each.name in self.bindings:
                yield from self.resolved(self.bindings[each.name])
