"""What a kernel is written into while its source is read: blocks, names, and where we are.

May import `base` and `ir`. Functions of the dialect act on the builder that is current; only the
reader makes one current. Outside a kernel there is none.

    >>> with builder.activate(), builder.block() as body:
    ...     current().emit(Break())
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.base.errors import FrontendError, TilewrightError
from tilewright.base.locations import Location
from tilewright.frontend.splitting import parts, split
from tilewright.ir.expressions import Expr, Load, Read, SpecialRegister, Var
from tilewright.ir.statements import Allocate, Bind, Declare, Stmt
from tilewright.ir.types import ScalarType, TensorType, Type

_current: ContextVar[Builder | None] = ContextVar("tilewright_builder", default=None)

# Names that printed programs use themselves.
_RESERVED = ("T", "range")
_CLOCKS = ("clock", "clock64", "globaltimer")


@dataclass
class Builder:
    """The state of one reading of one function.

    `where` is the place of the code that is being read, `arguments` the places of the arguments
    of the call that is being made, by position or keyword. `cells` are the names of mutable
    cells, `taken` those of variables that hold what a place held (see `frontend.taking`), and
    `exposed` says where the address of such a place was taken, in a later loop. `hint` is the
    name that the value of the current expression is about to get; `depth` counts the branches
    and loops of the kernel that are open, `loops` only these; `counters` are the variables of
    open loops; `bound` says what immutable names stand for; `reader` is who reads. In a `lenient`
    dialect a float that goes into an integer loses its fraction, and constant indices may count
    from the end.
    """

    blocks: list[list[Stmt]] = field(default_factory=list[list[Stmt]])
    names: set[str] = field(default_factory=lambda: set(_RESERVED))
    cells: set[str] = field(default_factory=set[str])
    taken: set[str] = field(default_factory=set[str])
    exposed: dict[str, Location | None] = field(default_factory=dict[str, "Location | None"])
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    where: Location | None = None
    arguments: dict[int | str, Location] = field(default_factory=dict[int | str, Location])
    hint: str | None = None
    depth: int = 0
    loops: int = 0
    counters: list[Var] = field(default_factory=list[Var])
    bound: dict[str, Expr] = field(default_factory=dict[str, Expr])
    lenient: bool = False
    reader: Any = None

    @contextmanager
    def activate(self) -> Generator[Builder]:
        """Make this builder the one that functions of the dialect act on."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    @contextmanager
    def block(self) -> Generator[list[Stmt]]:
        """Open a block: statements go into it until it is closed."""
        opened: list[Stmt] = []
        self.blocks.append(opened)
        try:
            yield opened
        finally:
            self.blocks.pop()

    def emit(self, statement: Stmt) -> None:
        """Add a statement to the innermost block, after the parts of what is too large in it."""
        self.blocks[-1].append(split(statement, self))

    def fresh(self, name: str) -> str:
        """Claim a name: the one wished for, or it with a number where it is taken."""
        chosen, number = name, 0
        while chosen in self.names:
            number += 1
            chosen = f"{name}_{number}"
        self.names.add(chosen)
        return chosen

    @property
    def in_kernel(self) -> bool:
        """Tell whether what is read now runs on the device."""
        return self.reader is not None and self.reader.opened is not None

    def variable(self, name: str, type: Type) -> Var:
        """Make a variable of a name that is not taken."""
        return Var(self.fresh(name), type, location=self.where)

    def bind(self, name: str, value: Expr) -> Var:
        """Bind a value to a new name."""
        var = self.variable(name, value.type)
        if not self.reads_state(value):
            self.bound[var.name] = value
        self.emit(Bind(var, value, location=self.where))
        return var

    def declare(self, name: str, dtype: DType, value: Expr | None = None) -> Var:
        """Declare a mutable cell."""
        var = self.variable(name, ScalarType(dtype))
        self.cells.add(var.name)
        self.emit(Declare(var, value, location=self.where))
        return var

    def allocate(
        self, type: TensorType, name: str | None = None, over: tuple[Var, ...] = ()
    ) -> Var:
        """Allocate a buffer, under the name that it is about to get."""
        var = self.variable(self.named(name, "buffer"), type)
        self.emit(Allocate(var, over, location=self.where))
        return var

    def named(self, name: str | None, otherwise: str) -> str:
        """Choose the name of what a call makes: as asked, or that of the assignment's target."""
        hint, self.hint = self.hint, None
        return name or hint or otherwise

    def result(self, name: str, dtype: DType) -> Var:
        """Declare a cell that one instruction writes and that then stays as it is."""
        var = self.declare(self.named(None, name), dtype)
        self.cells.discard(var.name)
        return var

    def reads_state(self, value: Expr) -> bool:
        """Tell whether a later evaluation of an expression may give another value."""
        return any(self._is_state(each) for each in parts(value))

    def _is_state(self, value: Expr) -> bool:
        match value:
            case Var():
                return value.name in self.cells
            case SpecialRegister():
                return value.name in _CLOCKS
            case _:
                return isinstance(value, Load | Read)

    def argument(self, *keys: int | str) -> Location | None:
        """Give the place of an argument of the call that is being made, under any of its keys."""
        places = (self.arguments[key] for key in keys if key in self.arguments)
        return next(places, self.where)


def active() -> Builder | None:
    """Give the current builder, or `None` outside a kernel."""
    return _current.get()


def current() -> Builder:
    """Give the current builder.

    Raises `FrontendError` (`bad-call`) outside a kernel.
    """
    builder = _current.get()
    if builder is None:
        raise FrontendError(
            "this function of the dialect has a meaning only inside a kernel",
            code="bad-call",
            hint="call it from a function under @T.function, @T.jit or @T.inline",
        )
    return builder


def here() -> Location | None:
    """Give the place of the code that is being read."""
    builder = _current.get()
    return None if builder is None else builder.where


def argument_place(*keys: int | str) -> Location | None:
    """Give the place of an argument of the call that is being made, under any of its keys."""
    builder = _current.get()
    return None if builder is None else builder.argument(*keys)


def placed(error: TilewrightError, location: Location | None) -> TilewrightError:
    """Give an error a location, if it has none."""
    if error.location is not None or location is None:
        return error
    return type(error)(
        error.message,
        code=error.code,
        location=location,
        expected=error.expected,
        found=error.found,
        hint=error.hint,
        notes=error.notes,
    )
