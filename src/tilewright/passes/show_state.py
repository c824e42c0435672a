"""Say what a breakpoint shows, and put breakpoints where the command line asks for them.

May import `base` and `ir`. A breakpoint that the program gives no values shows the numbers that
have names there, and the elements of local arrays, in the form that the backends take. Products
are contracted before, so that looking on does not change what is computed.

    lowered = show_state(program, (Dump(("regs", "shared"), 12),))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Load, Var, as_constant, int32
from tilewright.ir.statements import (
    Allocate,
    Bind,
    Block,
    Breakpoint,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Program,
    Stmt,
    While,
)
from tilewright.ir.types import ScalarType, TensorType
from tilewright.ir.visit import walk_statements

# Elements of one array, and values in all, that are shown.
_ELEMENTS = 16
_VALUES = 200


@dataclass(frozen=True)
class Dump:
    """A wish to see parts of the state ("regs", "shared", "tmem") before a line is executed.

    `file` is the end of a path; without it the line is one of the file that a kernel is in.
    """

    parts: tuple[str, ...]
    line: int
    file: str | None = None

    @property
    def place(self) -> str:
        """Say which line it is."""
        return f"line {self.line}" + (f" of {self.file}" if self.file else "")


def has_breakpoint(program: Program, wish: Dump) -> bool:
    """Tell whether a lowered program has a breakpoint where one is wished for."""
    return any(
        isinstance(stmt, Breakpoint)
        and any(_holds(each, wish.line) for each in _among(stmt, wish, _file(kernel)))
        for kernel in program.kernels
        for stmt in walk_statements(kernel.body)
    )


def show_state(program: Program, dumps: Sequence[Dump] = ()) -> Program:
    """Complete the breakpoints of a lowered program, and add those that are wished for."""
    kernels = tuple(_Kernel(kernel, dumps).shown() for kernel in program.kernels)
    return replace(program, kernels=kernels)


class _Kernel:
    """Rewrites the blocks of a kernel, with what is in scope at each statement."""

    def __init__(self, kernel: Kernel, dumps: Sequence[Dump]) -> None:
        self.kernel = kernel
        self.file = _file(kernel)
        self.dumps = dumps
        self.there = {"shared"} if kernel.shared_bytes else set[str]()
        if any(map(_uses_tensor_memory, walk_statements(kernel.body))):
            self.there.add("tmem")

    def shown(self) -> Kernel:
        scope = [var for var in (*self.kernel.params, *self.kernel.symbols) if _is_number(var)]
        return replace(self.kernel, body=self.block(self.kernel.body, scope, self.dumps))

    def block(self, block: Block, around: list[Var], dumps: Sequence[Dump]) -> Block:
        scope, made = list(around), list[Stmt]()
        for stmt in block:
            due = {dump: place for dump in dumps if (place := self._place(stmt, dump))}
            for dump, place in due.items():
                made.append(self.filled(Breakpoint((), (), dump.parts, location=place), scope))
            # One for all statements of a line, and of what stands in them.
            dumps = [dump for dump in dumps if dump not in due]
            made.append(self.statement(stmt, scope, dumps))
            scope += _defined(stmt)
        return tuple(made)

    def statement(self, stmt: Stmt, scope: list[Var], dumps: Sequence[Dump]) -> Stmt:
        match stmt:
            case Breakpoint(operands=()):
                return self.filled(stmt, scope)
            case If():
                then = self.block(stmt.then, scope, dumps)
                return replace(stmt, then=then, orelse=self.block(stmt.orelse, scope, dumps))
            case For():
                return replace(stmt, body=self.block(stmt.body, [*scope, stmt.var], dumps))
            case While():
                return replace(stmt, body=self.block(stmt.body, scope, dumps))
            case _:
                return stmt

    def filled(self, stmt: Breakpoint, scope: Iterable[Var]) -> Breakpoint:
        """Give a breakpoint the values that have names where it stands.

        They are shown where they are asked for, and where there is nothing of what is.
        """
        if "regs" not in stmt.parts and self.there & {*stmt.parts}:
            return stmt
        if "regs" not in stmt.parts:
            stmt = replace(stmt, parts=("regs", *stmt.parts))
        latest = {var.name: var for var in scope}
        values = [value for var in latest.values() for value in _values(var)][:_VALUES]
        labels = tuple(label for label, _ in values)
        return replace(stmt, labels=labels, operands=tuple(value for _, value in values))

    def _place(self, stmt: Stmt, wish: Dump) -> Location | None:
        """Find where a statement stands, or a call that leads to it, at the line of a wish."""
        header = isinstance(stmt, If | For | While)
        for place in _among(stmt, wish, self.file):
            if place.line == wish.line or (not header and _holds(place, wish.line)):
                return place
        return None


def _among(stmt: Stmt, wish: Dump, own: str | None) -> list[Location]:
    """List where a statement stands, and the calls that lead to it, in the file of a wish."""
    places = () if stmt.location is None else stmt.location.chain()
    if wish.file is None:
        return [place for place in places if place.file == own]
    end = Path(wish.file).parts
    return [place for place in places if Path(place.file).parts[-len(end) :] == end]


def _file(kernel: Kernel) -> str | None:
    return None if kernel.location is None else kernel.location.file


def _uses_tensor_memory(stmt: Stmt) -> bool:
    return isinstance(stmt, Instruct) and any(
        operand.space is Space.TMEM for operand in stmt.form.operands
    )


def _holds(place: Location, line: int) -> bool:
    return place.line <= line <= max(place.line, place.end_line)


def _defined(stmt: Stmt) -> Iterator[Var]:
    if isinstance(stmt, Bind | Declare) and _is_number(stmt.var):
        yield stmt.var
    if isinstance(stmt, Allocate):
        yield stmt.var


def _is_number(var: Var) -> bool:
    kind = var.type
    return isinstance(kind, ScalarType) and kind.dtype.lanes == 1 and kind.dtype.bits <= 64


def _values(var: Var) -> Iterator[tuple[str, Expr]]:
    """List what a name stands for: itself, or the first elements of a local array."""
    kind = var.type
    if not isinstance(kind, TensorType):
        yield var.name, var
        return
    extents = [as_constant(each) for each in kind.shape]
    if kind.space is not Space.LOCAL or kind.dtype.lanes > 1 or kind.dtype.bits > 64:
        return
    for index in range(min(prod(int(each or 0) for each in extents), _ELEMENTS)):
        element = Load(var, (int32(index),), ScalarType(kind.dtype))
        yield f"{var.name}[{index}]", element
