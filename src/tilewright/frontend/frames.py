"""Names while source is read: what each is bound to, where, and on which ways it is bound.

May import `base`, `ir` and `frontend.source`, `frontend.values`. A frame is one call of one
function; its scopes are the open blocks of the IR. Python lets a name outlive the branch or the
loop that binds it; in the IR there may be no such value. Such a name is lost, and using it is an
error.
"""

from __future__ import annotations

import ast
import builtins
import difflib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.frontend.source import attribute_place, place
from tilewright.frontend.values import Scalar, Value
from tilewright.ir.expressions import Var, default_dtype
from tilewright.ir.types import Type


@dataclass(frozen=True)
class Binding:
    """What a name is bound to, and where; `cell` for a place that is assigned to."""

    value: Any
    location: Location | None = None
    cell: bool = False


@dataclass(frozen=True)
class Lost:
    """A name that was bound in a block of the IR that has ended, or is again in a later turn."""

    location: Location | None
    reason: str
    value: Any = None


@dataclass
class Scope:
    """The names that one open block binds, and the outer names that a loop's turn has read.

    A comprehension has a scope of its own: what it binds is another name for Python, too.
    """

    names: dict[str, Binding | Lost] = field(default_factory=dict[str, "Binding | Lost"])
    is_loop: bool = False
    is_own: bool = False
    reads: dict[str, Location] = field(default_factory=dict[str, Location])


@dataclass
class Result:
    """What a function gives that states its type, and may return from within a branch or a loop.

    `convert` makes a value one of the type. Where the function returns `early`, `cell` is to hold
    what it gives, and `left` tells loops that they are left for good.
    """

    type: Type | None
    convert: Callable[[Any, Type], Value]
    early: bool = False
    cell: Var | None = None
    left: Var | None = None


@dataclass
class Frame:
    """One call of one function that is being read.

    `outer` are the names around the function, nearest first; `site` is the call. `result` is
    known for a function that states what it gives.
    """

    file: str
    name: str
    outer: tuple[Mapping[str, Any], ...]
    parent: Frame | None = None
    site: Location | None = None
    scopes: list[Scope] = field(default_factory=lambda: [Scope()])
    # The kinds of the loops and blocks around the current statement, innermost last.
    nest: list[str] = field(default_factory=list[str])
    is_kernel: bool = False
    result: Result | None = None

    def place(self, node: ast.AST) -> Location:
        """Give the place of a node."""
        return place(self.file, node, self.site)

    def attribute_place(self, node: ast.Attribute) -> Location:
        """Give the place of the name after a dot."""
        return attribute_place(self.file, node, self.site)

    def find(self, name: str, where: Location | None = None) -> Binding | Lost | None:
        """Find what a name of this function, or of one around it, is bound to.

        With a place, loops note that their turns read the name there.
        """
        for level in range(len(self.scopes) - 1, -1, -1):
            found = self.scopes[level].names.get(name)
            if found is None:
                continue
            if where is not None and isinstance(found, Binding) and not found.cell:
                for scope in self.scopes[level + 1 :]:
                    if scope.is_loop:
                        scope.reads.setdefault(name, where)
            return found
        return self.parent.find(name, where) if self.parent is not None else None

    def bind(self, name: str, binding: Binding) -> None:
        """Bind a name in the innermost block.

        Raises `FrontendError` (`unbound-name`) in a loop whose turn has read the name before:
        the next turn would have to read what this one binds.
        """
        for scope in () if self.scopes[-1].is_own else self.scopes:
            if name in scope.reads:
                reason = "a turn of the loop binds it anew, after this"
                lost = Lost(binding.location, reason, binding.value)
                raise _lost(name, lost, scope.reads[name])
        self.scopes[-1].names[name] = binding

    @contextmanager
    def scope(self, kind: str, reason: str) -> Generator[None]:
        """Open a block of a kind; the names that it binds are lost when it ends."""
        scope = Scope(is_loop=kind in ("loop", "grid"))
        self.scopes.append(scope)
        self.nest.append(kind)
        try:
            yield
        finally:
            self.scopes.pop()
            self.nest.pop()
        for name, binding in scope.names.items():
            if isinstance(binding, Binding):
                binding = Lost(binding.location, reason, binding.value)
            self.bind_lost(name, binding)

    def bind_lost(self, name: str, lost: Lost) -> None:
        """Note that a name was bound in a block that has ended."""
        self.scopes[-1].names[name] = lost

    def look_up(self, name: str, where: Location) -> Binding:
        """Find what a name is bound to, in Python's order: local, enclosing, global, built in.

        Raises `FrontendError` (`unbound-name`).
        """
        found = self.find(name, where)
        if isinstance(found, Binding):
            return found
        if isinstance(found, Lost):
            raise _lost(name, found, where)
        for names in (*self.outer, vars(builtins)):
            if name in names:
                return Binding(names[name])
        raise self._unbound(name, where)

    def _unbound(self, name: str, where: Location) -> FrontendError:
        known: set[str] = set()
        for names in (*(scope.names for scope in self.scopes), *self.outer):
            known.update(names)
        close = difflib.get_close_matches(name, sorted(known), n=1)
        return FrontendError(
            f"the name {name!r} is not bound",
            code="unbound-name",
            location=where,
            hint=f"did you mean {close[0]!r}?" if close else None,
        )


def _lost(name: str, lost: Lost, where: Location) -> FrontendError:
    bound = f"{name!r} is bound at {lost.location.header()}" if lost.location else ""
    return FrontendError(
        f"the name {name!r} is not bound on every way to this use: {lost.reason}",
        code="unbound-name",
        location=where,
        hint=_advice(name, lost.value),
        notes=(bound,) if bound else (),
    )


def _advice(name: str, value: Any) -> str:
    """Say how a value outlives a block; `value` is what the name is bound to there."""
    match value:
        case Scalar():
            kind = value.dtype
        case bool() | int() | float():
            kind = default_dtype(value).name
        case _:
            return "bind it before the branch or the loop: there are cells for numbers only"
    return f"declare a cell before it, and assign to that: `{name}: T.{kind} = …`"
