"""Verify programs: a legality spec for each stage of compilation.

May import `base`, `isa` and the nodes of `ir`. The rules are tables of (class of node, function):
`verify_expressions` and `verify_statements` hold those of every stage, and what "lowered" adds;
here is what needs the surroundings: names, loops, kernels and their launches.

    verify(program, "high")       # raises VerifyError at the user's line
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tilewright.base.dtypes import INT32
from tilewright.base.errors import VerifyError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Var
from tilewright.ir.printer import print_expr, print_stmt
from tilewright.ir.statements import (
    Assign,
    Block,
    Break,
    Continue,
    Declare,
    EncodeTensorMap,
    For,
    If,
    Kernel,
    Launch,
    LaunchKernel,
    Program,
    Return,
    Stmt,
    While,
)
from tilewright.ir.tile import ParallelTile, PipelinedTile
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType
from tilewright.ir.verify_expressions import (
    EXPRESSION_RULES,
    LOWERED_EXPRESSION_RULES,
    broken_rule,
)
from tilewright.ir.verify_statements import (
    LOWERED_STATEMENT_RULES,
    SIMT_RULES,
    STATEMENT_RULES,
    TILE_RULES,
)
from tilewright.ir.visit import by_class, children, defined_by, walk, written

Stage = Literal["tile", "high", "lowered"]
RULES = {
    "tile": (by_class(EXPRESSION_RULES), by_class((*STATEMENT_RULES, *TILE_RULES))),
    "high": (by_class(EXPRESSION_RULES), by_class((*STATEMENT_RULES, *SIMT_RULES))),
    "lowered": (
        by_class((*EXPRESSION_RULES, *LOWERED_EXPRESSION_RULES)),
        by_class((*STATEMENT_RULES, *LOWERED_STATEMENT_RULES)),
    ),
}


def verify(program: Program, stage: Stage = "high") -> None:
    """Check a program against the rules of a stage.

    "tile" takes every node, "high" what the simt dialect has, "lowered" what both backends take.
    Raises `VerifyError` (`invalid-program`) at the first node that breaks a rule.
    """
    names = [kernel.name for kernel in program.kernels]
    if len(set(names)) != len(names):
        raise _invalid("two kernels of a program have one name", program.location, str(names))
    kernels = {kernel.name: kernel for kernel in program.kernels}
    host = _Verifier(stage, _Names(dict(_typed(program.params))), host=True, kernels=kernels)
    host.names.visible |= {v.name: v for k in program.kernels for v in k.symbols}
    host.block(program.host)
    for kernel in program.kernels:
        verify_kernel(kernel, stage)


def verify_kernel(kernel: Kernel, stage: Stage = "high") -> None:
    """Check one kernel; see `verify`."""
    params = [each.name for each in kernel.params]
    if len(set(params)) != len(params):
        raise _invalid("two parameters have one name", kernel.location, ", ".join(params))
    names = _Names(dict(_typed((*kernel.symbols, *kernel.params))))
    verifier = _Verifier(stage, names)
    for var in kernel.params:
        if stage == "lowered" and not _lowered_parameter(var):
            raise _invalid(
                "a lowered kernel takes pointers to global memory, scalars and tensor maps",
                var.location or kernel.location,
                f"{var.name}: {var.type}",
            )
    if kernel.shared_bytes < 0:
        raise _invalid("shared memory has no negative size", kernel.location, kernel.name)
    verifier.launch(kernel.launch)
    verifier.block(kernel.body)


def _typed(variables: Iterable[Var]) -> Iterable[tuple[str, Var]]:
    return ((each.name, each) for each in variables)


def _lowered_parameter(var: Var) -> bool:
    if isinstance(var.type, PointerType):
        return var.type.space in (Space.GLOBAL, Space.GENERIC)
    return not isinstance(var.type, TensorType)


def _invalid(message: str, location: Location | None, found: str) -> VerifyError:
    return VerifyError(message, code="invalid-program", location=location, found=found)


@dataclass
class _Names:
    """The names that are visible, those ever defined, and which of them are cells."""

    visible: dict[str, Var]
    ever: set[str] = field(default_factory=set[str])
    cells: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.ever |= self.visible.keys()


@dataclass
class _Verifier:
    """Walks a kernel's statements (or a host's) in order, keeping what is visible."""

    stage: Stage
    names: _Names
    loops: int = 0
    host: bool = False
    kernels: dict[str, Kernel] = field(default_factory=dict[str, Kernel])

    def launch(self, launch: Launch) -> None:
        extents = (*launch.grid, *launch.block, *launch.cluster, launch.dynamic_shared_bytes)
        for extent in extents:
            if extent.type != ScalarType(INT32):
                raise self._bad("the shape of a launch is int32", extent, launch.location)
            self.expressions((extent,), launch.location)

    def block(self, block: Block) -> None:
        before = dict(self.names.visible)
        for stmt in block:
            self.statement(stmt)
        self.names.visible = before

    def statement(self, stmt: Stmt) -> None:
        own = defined_by(stmt)
        named = stmt.vars if isinstance(stmt, ParallelTile) else (own,)
        parts = (
            each
            for each in children(stmt)
            if isinstance(each, Expr) and not any(each is var for var in named)
        )
        self.expressions(tuple(parts), stmt.location)
        message = broken_rule(RULES[self.stage][1], stmt) or self._misplaced(stmt)
        if message is not None:
            raise _invalid(message, stmt.location, _head(stmt))
        self._define(stmt)
        match stmt:
            case For() | While() | PipelinedTile():
                self.loops += 1
                self.block(stmt.body)
                self.loops -= 1
            case ParallelTile():
                self.points(stmt)
            case If():
                self.block(stmt.then)
                self.block(stmt.orelse)
            case _:
                pass
        if isinstance(stmt, For | PipelinedTile):
            del self.names.visible[stmt.var.name]

    def points(self, stmt: ParallelTile) -> None:
        """Check the body of a parallel loop, whose variables are visible there only."""
        before = dict(self.names.visible)
        for var in stmt.vars:
            if var.name in self.names.ever:
                raise _invalid(
                    f"the name {var.name!r} is defined twice", stmt.location, _head(stmt)
                )
            self.names.ever.add(var.name)
            self.names.visible[var.name] = var
        self.block(stmt.body)
        self.names.visible = before

    def expressions(self, parts: tuple[Expr, ...], location: Location | None) -> None:
        rules, _ = RULES[self.stage]
        for node in walk(parts):
            assert isinstance(node, Expr)
            message = broken_rule(rules, node)
            if message is None and isinstance(node, Var):
                message = self._unknown(node)
            if message is not None:
                raise self._bad(message, node, location)

    def _bad(self, message: str, node: Expr, location: Location | None) -> VerifyError:
        return _invalid(message, node.location or location, print_expr(node))

    def _unknown(self, var: Var) -> str | None:
        known = self.names.visible.get(var.name)
        if known is None:
            return f"the variable {var.name!r} is not defined where it is used"
        if known is not var and known.type != var.type:
            return f"the variable {var.name!r} is a {known.type}, and is used as a {var.type}"
        return None

    def _define(self, stmt: Stmt) -> None:
        var = defined_by(stmt)
        if var is None:
            return
        if var.name in self.names.ever:
            raise _invalid(f"the name {var.name!r} is defined twice", stmt.location, _head(stmt))
        self.names.ever.add(var.name)
        self.names.visible[var.name] = var
        if isinstance(stmt, Declare):
            self.names.cells.add(var.name)

    def _misplaced(self, stmt: Stmt) -> str | None:
        match stmt:
            case Break() | Continue() if not self.loops:
                return "this statement stands in no loop"
            case Return() if self.host:
                return "the host part of a program does not return"
            case LaunchKernel() if not self.host or stmt.kernel not in self.kernels:
                return f"there is no kernel {stmt.kernel!r} to launch here"
            case LaunchKernel():
                return self._given(self.kernels[stmt.kernel])
            case EncodeTensorMap() if not self.host:
                return "a tensor map is made on the host"
            case _:
                return self._written(stmt)

    def _given(self, kernel: Kernel) -> str | None:
        """Check that the tensor maps that a kernel takes are made before its launch."""
        maps = [var for var in kernel.params if isinstance(var.type, TensorMapType)]
        return next((message for var in maps if (message := self._unknown(var))), None)

    def _written(self, stmt: Stmt) -> str | None:
        """Check that the scalars a statement writes are cells."""
        if defined_by(stmt) is not None:
            return None
        for var in written(stmt):
            scalar = not isinstance(var.type, TensorType)
            if scalar and var.name not in self.names.cells:
                return f"{var.name!r} is written, and is no declared cell"
        if isinstance(stmt, Assign) and isinstance(stmt.var.type, TensorType):
            return "a tensor is not assigned to as a whole"
        return None


def _head(stmt: Stmt) -> str:
    """Print the first line of a statement."""
    return print_stmt(stmt).partition("\n")[0]
