"""Values as they are at one point, whatever happens later to the places that they are read from.

May import `base`, `ir`, `frontend.builder`, `frontend.values`. An expression such as `v[0]` is
evaluated where it is used, which may be after `v[0]` has changed. What a function is given, what
a Python container holds and what Python code reads that runs by itself are values: they are
taken, into a variable of the kernel.

    >>> taken(wrap(Load(v, (int32(0),), …)), "x")  # x: T.float32 = v[0]

A variable that nothing uses, or nothing writes, is cleared up by `tidied`.
"""

from __future__ import annotations

import typing
from collections import Counter
from dataclasses import replace
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import Builder, current
from tilewright.frontend.values import Cell, Scalar, Value, wrap
from tilewright.ir.expressions import Expr, Load, Read, Subview, Var
from tilewright.ir.rewrite import map_statements
from tilewright.ir.statements import Assign, Bind, Block, Declare, For, Stmt, While
from tilewright.ir.types import TensorType
from tilewright.ir.visit import free_variables, walk_expressions, walk_statements


class Taken(Scalar):
    """The value that a place had when it was taken, in a variable of its own.

    An instruction that gets it as a destination writes to the place, and `cells` follow. When
    its address is taken, it becomes the place. It is `shared` if it is the argument of a function,
    which may do so to it.
    """

    __slots__ = ("cells", "loops", "place", "shared")

    def __init__(self, cells: tuple[Var, ...], place: Expr, loops: int) -> None:
        super().__init__(cells[0])
        self.cells = cells
        self.place = place
        self.loops = loops
        self.shared = False

    @property
    def is_place(self) -> bool:
        """Tell whether it has become the place."""
        return self.expr is self.place

    def updates(self) -> list[Stmt]:
        """Give what follows a write to the place."""
        where = current().where
        return [Assign(cell, self.place, location=where) for cell in self.cells]

    def exposed(self) -> Any:
        """Become the place: what happens to it through its address is not seen otherwise."""
        builder = current()
        if builder.loops > self.loops:
            builder.exposed[self.cells[0].name] = builder.where
        self.expr = self.place
        return wrap(self.place)


def as_place(value: Any) -> Expr | None:
    """Give the place that an instruction writes to, `None` if a value stands for none."""
    if isinstance(value, Taken):
        return value.place
    return value.expr if isinstance(value, Scalar) else None


def taken(value: Any, name: str = "value") -> Any:
    """Give a value as it is now, under a name if it could change; containers likewise."""
    match value:
        case Cell() | Taken(shared=False):
            return value
        case Scalar() if current().reads_state(value.expr):
            return _taken_scalar(value, name)
        case Scalar():
            return value
        case Value() if isinstance(value.expr.type, TensorType):
            view = _View().taken(value.expr)
            return value if view is value.expr else type(value)(view)
        case Value():
            bound = _bound(value.expr, name)
            return value if bound is value.expr else wrap(bound)
        case _:
            return _taken_entries(value, name)


def settled(value: Any, name: str = "value") -> Any:
    """Give a value as it is now, which no longer stands for a place."""
    found = taken(value, name)
    if not isinstance(found, Taken):
        return found
    current().cells.discard(found.cells[0].name)
    return wrap(found.cells[0])


def _taken_scalar(value: Scalar, name: str) -> Scalar:
    builder = current()
    place = as_place(value)
    match place:
        case Var():
            pass
        case Load():
            indices = tuple(_bound(each, "index") for each in place.indices)
            place = replace(place, tensor=_View().taken(place.tensor), indices=indices)
        case Read():
            place = replace(place, pointer=_bound(place.pointer, "pointer"))
        case _:
            return wrap(_bound(value.expr, name))
    source = value.expr if isinstance(value, Taken) else place
    var = builder.variable(name, source.type)
    builder.emit(Declare(var, source, location=source.location))
    builder.taken.add(var.name)
    builder.cells.add(var.name)
    older = value.cells if isinstance(value, Taken) else ()
    return Taken((var, *older), place, builder.loops)


def _bound(expr: Expr, name: str) -> Expr:
    """Bind an expression that a later evaluation may find changed."""
    builder = current()
    if not builder.reads_state(expr):
        return expr
    var = builder.variable(name, expr.type)
    builder.emit(Bind(var, expr, location=expr.location))
    builder.taken.add(var.name)
    return var


class _View:
    """Takes where a view begins, and how large it is."""

    def __init__(self) -> None:
        self.known: dict[Expr, Expr] = {}

    def taken(self, view: Expr) -> Expr:
        source: Expr | None = getattr(view, "source", None)
        if source is None:
            return view
        shape = tuple(self.number(each) for each in view.type.shape)
        changes: dict[str, Any] = {}
        if shape != view.type.shape:
            changes["type"] = replace(view.type, shape=shape)
        if isinstance(view, Subview):
            starts = tuple(self.number(each) for each in view.starts)
            if starts != view.starts:
                changes["starts"] = starts
        if (inner := self.taken(source)) is not source:
            changes["source"] = inner
        return replace(typing.cast("Any", view), **changes) if changes else view

    def number(self, value: Expr) -> Expr:
        if value not in self.known:
            self.known[value] = _bound(value, "start")
        return self.known[value]


# The containers whose entries are taken; classes made from these are the user's own.
_SEQUENCES: Any = (list, tuple)
_MAPPINGS: Any = (dict,)
_ITERATORS: Any = (type(iter([])),)


def _taken_entries(held: Any, name: str) -> Any:
    """Take what a container holds; the container itself stays if nothing in it could change."""
    kind = typing.cast("Any", type(held))
    if kind in _MAPPINGS:
        found = {key: taken(each, name) for key, each in held.items()}
        return found if any(found[key] is not held[key] for key in held) else held
    if kind in _SEQUENCES:
        new = [taken(each, name) for each in held]
        changed = any(a is not b for a, b in zip(new, held, strict=True))
        return kind(new) if changed else held
    return iter([taken(each, name) for each in held]) if kind in _ITERATORS else held


# ---------------------------------------------------------------------------- clearing up


def tidied(body: Block, builder: Builder) -> Block:
    """Drop variables that were taken in vain; those that nothing writes become bindings.

    Raises `FrontendError` (`unbound-name`) where a turn of a loop reads what was taken before the
    loop, and what an earlier turn may have changed through its address.
    """
    while unused := _unused(body, builder.taken):
        builder.taken -= unused
        body = map_statements(body, lambda stmt: () if _of(stmt) in unused else None)
    _check_exposed(body, builder)
    written = {each.var.name for each in walk_statements(body) if isinstance(each, Assign)}

    def bind(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Declare(var=var, value=Expr() as value) if (
                var.name in builder.taken and var.name not in written
            ):
                return Bind(var, value, location=stmt.location)
            case _:
                return None

    return map_statements(body, bind) if builder.taken else body


def _of(stmt: Stmt) -> str | None:
    """Name the variable that a statement does no more than give a value to."""
    return stmt.var.name if isinstance(stmt, Bind | Declare | Assign) else None


def _unused(body: Block, names: set[str]) -> set[str]:
    if not names:
        return set()
    mentions = Counter(each.name for each in walk_expressions(body) if isinstance(each, Var))
    mentions.subtract(Counter(filter(None, map(_of, walk_statements(body)))))
    return {name for name in names & mentions.keys() if not mentions[name]}


def _check_exposed(body: Block, builder: Builder) -> None:
    if not builder.exposed:
        return
    for loop in walk_statements(body):
        if not isinstance(loop, For | While):
            continue
        for var in free_variables(loop):
            if var.name in builder.exposed:
                raise FrontendError(
                    "a loop reads a value that was taken before it, and takes its address",
                    code="unbound-name",
                    location=builder.exposed[var.name],
                    found=f"{var.name}, a copy",
                    hint="give the function the tensor and the index, or the address",
                )
