"""The host's part of a program, evaluated in Python: arithmetic, branches, launches.

May import `base`, `isa`, `ir` and `passes.analysis`. Both backends run host statements here.

    >>> evaluate(n // 2 + 1, {"n": 9})
    5
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import LaunchError, VerifyError
from tilewright.base.formats import formatted
from tilewright.base.targets import Target, launch_problem, shared_problem
from tilewright.ir.expressions import (
    FOLDED,
    AddressOf,
    Binary,
    Cast,
    Constant,
    Expr,
    Intrinsic,
    Offset,
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
    EncodeTensorMap,
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
from tilewright.ir.types import TensorType
from tilewright.isa.tensor_map import GRANULE, Problem, TensorMap, refusal
from tilewright.passes.analysis.tensor_maps import tensor_map_bases

Number = int | float | bool
# What a name of the host stands for; pointers are their addresses.
Value = Number | TensorMap
Values = Mapping[str, Value]
Extents = tuple[int, int, int]


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
            return number(values, expr.name)
        case AddressOf(tensor=Var(name=name, type=TensorType())):
            return number(values, name)
        case Offset():
            return evaluate(expr.pointer, values) + evaluate(expr.bytes, values)
        case Unary():
            return fit(_UNARY[expr.op](evaluate(expr.operand, values)), expr.dtype)
        case Select():
            chosen = expr.true if evaluate(expr.condition, values) else expr.false
            return evaluate(chosen, values)
        case Cast():
            return fit(evaluate(expr.operand, values), expr.dtype)
        case Binary():
            return _binary(expr, values)
        case Intrinsic(name="abs"):
            return fit(abs(evaluate(expr.operands[0], values)), expr.dtype)
        case _:
            raise VerifyError(
                f"{type(expr).__name__} has no meaning in the host's part of a program",
                code="invalid-program",
                location=expr.location,
            )


def number(values: Values, name: str) -> Number:
    """Give the number or the address that a name stands for."""
    value = values[name]
    assert not isinstance(value, TensorMap)
    return value


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
    """A run of the host's part of a lowered program.

    `launch` is called for each kernel that is started, with the values of all names; `sizes` are
    the bytes of the arrays, by the names of their parameters. A grid that is empty because an array
    is starts nothing.
    """

    program: Program
    launch: Callable[[Kernel, Values], None]
    output: Callable[[str], None]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    kernels: dict[str, Kernel] = field(init=False)
    bases: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernels", {each.name: each for each in self.program.kernels})
        object.__setattr__(self, "bases", tensor_map_bases(self.program.host))

    def __call__(self, values: Values) -> None:
        """Run the host statements on the values of the parameters."""
        self._block(self.program.host, dict(values))

    def _block(self, block: Block, values: dict[str, Value]) -> type[Stmt] | None:
        """Run a block; give `Break`, `Continue` or `Return` if it ended by one."""
        for statement in block:
            ended = self._statement(statement, values)
            if ended is not None:
                return ended
        return None

    def _statement(self, statement: Stmt, values: dict[str, Value]) -> type[Stmt] | None:
        match statement:
            case LaunchKernel():
                kernel = self.kernels[statement.kernel]
                if not self._has_nothing_to_do(kernel, values):
                    self.launch(kernel, values)
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
            case EncodeTensorMap():
                values[statement.var.name] = self._tensor_map(statement, values)
            case _:
                raise VerifyError(
                    f"{type(statement).__name__} has no meaning in the host's part of a program",
                    code="invalid-program",
                    location=statement.location,
                )
        return None

    def _has_nothing_to_do(self, kernel: Kernel, values: Values) -> bool:
        """Tell a launch without CTAs because an array has no elements: it is none.

        Where no array is empty, a grid of no CTAs is a mistake, which the launch refuses.
        """
        if 0 not in self.sizes.values():
            return False
        return 0 in (int(evaluate(extent, values)) for extent in kernel.launch.grid)

    def _for(self, loop: For, values: dict[str, Value]) -> type[Stmt] | None:
        bounds = (loop.start, loop.stop, loop.step)
        for value in range(*(int(evaluate(each, values)) for each in bounds)):
            values[loop.var.name] = value
            ended = self._block(loop.body, values)
            if ended in (Break, Return):
                return Return if ended is Return else None
        return None

    def _tensor_map(self, statement: EncodeTensorMap, values: Values) -> TensorMap:
        """Make a tensor map, of a tensor that lies in the memory of its argument."""

        def numbers(exprs: Iterable[Expr]) -> tuple[int, ...]:
            return tuple(int(evaluate(each, values)) for each in exprs)

        made = TensorMap(
            int(evaluate(statement.pointer, values)),
            statement.format,
            numbers(statement.extents),
            numbers(statement.strides),
            numbers(statement.box),
            numbers(statement.steps),
            statement.interleave,
            statement.swizzle,
            statement.l2_promotion,
            statement.oob_fill,
        )
        base = self.bases[statement.var.name]
        start = int(number(values, base))
        problem = made.problem() or self._overrun(made, base, start)
        if problem is not None:
            hint = f"declare {base!r} with align={GRANULE}" if start % GRANULE else None
            raise refusal(statement.var.name, problem, statement.location, hint)
        return made

    def _overrun(self, made: TensorMap, base: str, start: int) -> Problem | None:
        """Say where a tensor leaves the memory of the argument that it lies in."""
        if base not in self.sizes:
            return None
        size = self.sizes[base]
        first = made.address - start
        last = first + made.reach - 1
        if first >= 0 and last < size:
            return None
        found = (
            f"bytes {first} to {last}, of which byte {first if first < 0 else size} is not in it"
        )
        return "shape of the tensor", f"a tensor inside the {size} bytes of {base!r}", found

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


_NOTHING_TO_DO = (
    "skip the call where there is nothing to do; a grid may be empty if an array has no elements"
)


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
    required = dict(kernel.attributes).get("required_block_size")
    if required not in (None, shape.block):
        raise LaunchError(
            f"the block of {kernel.name} is not the one that the kernel requires",
            code="launch-shape",
            location=where,
            expected=str(required),
            found=str(shape.block),
        )
    if problem := launch_problem(shape.grid, shape.block, shape.cluster, target):
        what, expected, found = problem
        raise LaunchError(
            f"the {what} of {kernel.name} cannot be launched on {target}",
            code="launch-shape",
            location=where,
            expected=expected,
            found=found,
            hint=_NOTHING_TO_DO if 0 in shape.grid else None,
        )
    if problem := shared_problem(kernel.shared_bytes, shape.dynamic_shared_bytes, target):
        expected, found = problem
        raise LaunchError(
            f"{kernel.name} cannot have the shared memory that it asks for on {target}",
            code="launch-shape",
            location=where,
            expected=expected,
            found=found,
        )
    return shape
