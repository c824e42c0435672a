"""The host's part of a program, evaluated in Python: arithmetic, branches, launches.

May import `base` and `ir`. Both backends run host statements here.

    >>> evaluate(n // 2 + 1, {"n": 9})
    5
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import LaunchError, TilewrightError, VerifyError
from tilewright.base.formats import formatted
from tilewright.base.locations import Location
from tilewright.base.targets import Target
from tilewright.ir.expressions import (
    FOLDED,
    Binary,
    Cast,
    Constant,
    Expr,
    Select,
    Unary,
    Var,
    wrap,
)
from tilewright.ir.statements import (
    Assert,
    Assign,
    Bind,
    Block,
    Break,
    Continue,
    Declare,
    For,
    If,
    Kernel,
    LaunchKernel,
    Print,
    Program,
    Return,
    Stmt,
    While,
)

Number = int | float | bool
Values = Mapping[str, Number]
Extents = tuple[int, int, int]

# CUDA C++ Programming Guide, "Compute Capabilities", the limits common to all of them.
MAX_GRID: Extents = (2**31 - 1, 65535, 65535)
MAX_BLOCK: Extents = (1024, 1024, 64)
MAX_THREADS = 1024
MAX_CLUSTER = 16
CLUSTER_SINCE = 90


# ---------------------------------------------------------------------------- expressions

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    **FOLDED,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": operator.mod,
    "truncdiv": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "truncmod": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": operator.neg,
    "invert": operator.invert,
    "not": operator.not_,
}


def evaluate(expr: Expr, values: Values) -> Number:
    """Evaluate an expression of the host.

    Raises `LaunchError` (`launch-shape`) for a division by zero, and `VerifyError` for a node
    that has no meaning on the host.
    """
    match expr:
        case Constant():
            return expr.value
        case Var() if expr.name in values:
            return values[expr.name]
        case Unary():
            return fit(_UNARY[expr.op](evaluate(expr.operand, values)), expr.dtype)
        case Select():
            chosen = expr.true if evaluate(expr.condition, values) else expr.false
            return evaluate(chosen, values)
        case Cast():
            return fit(evaluate(expr.operand, values), expr.dtype)
        case Binary():
            return _binary(expr, values)
        case _:
            raise VerifyError(
                f"{type(expr).__name__} has no meaning in the host's part of a program",
                code="invalid-program",
                location=expr.location,
            )


def fit(value: Number, dtype: DType) -> Number:
    """Bring a number into a type: integers wrap, floats round, casts to integers truncate."""
    if dtype.is_bool:
        return bool(value)
    if dtype.is_integer:
        return wrap(int(value), dtype)
    return float(np.asarray(value, dtype.numpy))


def _binary(expr: Binary, values: Values) -> Number:
    left = evaluate(expr.left, values)
    if expr.op == "logical_and":
        return bool(left) and bool(evaluate(expr.right, values))
    if expr.op == "logical_or":
        return bool(left) or bool(evaluate(expr.right, values))
    right = evaluate(expr.right, values)
    if expr.op in ("shl", "shr"):
        count = min(int(right), 2 * expr.dtype.bits)
        shifted = int(left) << count if expr.op == "shl" else int(left) >> count
        return fit(shifted, expr.dtype)
    if right == 0 and expr.op in ("div", "floordiv", "mod", "truncdiv", "truncmod"):
        raise LaunchError(
            "the host's part of a program divides by zero",
            code="launch-shape",
            location=expr.location,
        )
    return fit(_OPERATIONS[expr.op](left, right), expr.dtype)


# ---------------------------------------------------------------------------- statements


@dataclass(frozen=True)
class HostRun:
    """A run of the host's part of a program.

    `launch` is called for each kernel that is started, with the values of all names.
    """

    program: Program
    launch: Callable[[Kernel, Values], None]
    output: Callable[[str], None]
    kernels: dict[str, Kernel] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernels", {each.name: each for each in self.program.kernels})

    def __call__(self, values: Values) -> None:
        """Run the host statements on the values of the parameters."""
        self._block(self.program.host, dict(values))

    def _block(self, block: Block, values: dict[str, Number]) -> type[Stmt] | None:
        """Run a block; give `Break`, `Continue` or `Return` if it ended by one."""
        for statement in block:
            ended = self._statement(statement, values)
            if ended is not None:
                return ended
        return None

    def _statement(self, statement: Stmt, values: dict[str, Number]) -> type[Stmt] | None:
        match statement:
            case LaunchKernel():
                self.launch(self.kernels[statement.kernel], values)
            case Bind() | Assign():
                values[statement.var.name] = evaluate(statement.value, values)
            case Declare():
                if statement.value is not None:
                    values[statement.var.name] = evaluate(statement.value, values)
            case If():
                taken = evaluate(statement.condition, values)
                return self._block(statement.then if taken else statement.orelse, values)
            case For():
                return self._for(statement, values)
            case While():
                while evaluate(statement.condition, values):
                    ended = self._block(statement.body, values)
                    if ended in (Break, Return):
                        return Return if ended is Return else None
            case Break() | Continue() | Return():
                return type(statement)
            case Assert():
                self._check(statement, values)
            case Print():
                operands = [evaluate(each, values) for each in statement.operands]
                self.output(formatted(statement.format, operands))
            case _:
                raise VerifyError(
                    f"{type(statement).__name__} has no meaning in the host's part of a program",
                    code="invalid-program",
                    location=statement.location,
                )
        return None

    def _for(self, loop: For, values: dict[str, Number]) -> type[Stmt] | None:
        bounds = (loop.start, loop.stop, loop.step)
        for value in range(*(int(evaluate(each, values)) for each in bounds)):
            values[loop.var.name] = value
            ended = self._block(loop.body, values)
            if ended in (Break, Return):
                return Return if ended is Return else None
        return None

    def _check(self, statement: Assert, values: Values) -> None:
        if not evaluate(statement.condition, values):
            raise LaunchError(
                f"an assertion of the host's part of {self.program.name} does not hold: "
                f"{statement.message}",
                code="host-assertion",
                location=statement.location,
            )


# ---------------------------------------------------------------------------- launches


@dataclass(frozen=True)
class LaunchShape:
    """The numbers of a launch: CTAs, threads of one, CTAs of a cluster, dynamic shared bytes."""

    grid: Extents
    block: Extents
    cluster: Extents
    dynamic_shared_bytes: int


def launch_shape(kernel: Kernel, values: Values, target: Target) -> LaunchShape:
    """Evaluate the shape of a launch and hold it against what can be launched.

    Raises `LaunchError` (`launch-shape`) if it cannot.
    """
    launch = kernel.launch
    where = launch.location or kernel.location

    def extents(entries: tuple[Expr, Expr, Expr]) -> Extents:
        x, y, z = (int(evaluate(entry, values)) for entry in entries)
        return x, y, z

    shape = LaunchShape(
        extents(launch.grid),
        extents(launch.block),
        extents(launch.cluster),
        int(evaluate(launch.dynamic_shared_bytes, values)),
    )
    if problem := _problem(shape, target):
        what, expected, found = problem
        raise _unlaunchable(kernel.name, what, expected, found, where)
    return shape


def _problem(shape: LaunchShape, target: Target) -> tuple[str, str, str] | None:
    """Say what is wrong with a shape: what, expected, found."""
    for what, extents, limits in (
        ("grid", shape.grid, MAX_GRID),
        ("block", shape.block, MAX_BLOCK),
        ("cluster", shape.cluster, (MAX_CLUSTER,) * 3),
    ):
        if any(not 1 <= e <= limit for e, limit in zip(extents, limits, strict=True)):
            return what, f"each extent from 1 to {limits}", str(extents)
    if _product(shape.block) > MAX_THREADS:
        found = f"{shape.block}, which are {_product(shape.block)}"
        return "block", f"at most {MAX_THREADS} threads", found
    cluster = _product(shape.cluster)
    if cluster > 1 and target.capability < CLUSTER_SINCE:
        expected = f"a target from sm_{CLUSTER_SINCE} on, or no cluster"
        return "cluster", expected, f"{shape.cluster} for {target}"
    if cluster > MAX_CLUSTER:
        return "cluster", f"at most {MAX_CLUSTER} CTAs", str(shape.cluster)
    if any(g % c for g, c in zip(shape.grid, shape.cluster, strict=True)):
        return "grid", f"whole clusters of {shape.cluster}", str(shape.grid)
    return None


def _product(extents: Extents) -> int:
    x, y, z = extents
    return x * y * z


def _unlaunchable(
    name: str, what: str, expected: str, found: str, where: Location | None
) -> TilewrightError:
    return LaunchError(
        f"the {what} of {name} cannot be launched",
        code="launch-shape",
        location=where,
        expected=expected,
        found=found,
    )
