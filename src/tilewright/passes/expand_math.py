"""Expand the functions of the dialect into operations that every backend rounds alike.

May import `base`, `ir` and `passes.functions`, which has the expansions and states their errors;
here they are put into the program. Intermediate values are bound before the statement; where an
expression is evaluated only under a condition, so is what it is expanded to. Division of floats
that rounds its quotient is such a function too.

    y[i] = T.exp(x)    ->    exp_n = nearbyint(x * 1.4427); …; y[i] = …
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from tilewright.base.dtypes import BOOL, FLOAT32, FLOAT64
from tilewright.base.errors import FrontendError
from tilewright.ir.expressions import (
    LOGICAL,
    Binary,
    Expr,
    Intrinsic,
    Select,
    Var,
    cast,
    constant,
    unary,
)
from tilewright.ir.rewrite import block_of, map_children
from tilewright.ir.statements import (
    Assign,
    Block,
    Break,
    Declare,
    If,
    Kernel,
    Program,
    Stmt,
    While,
)
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import Node, variables, walk_kinds
from tilewright.passes.functions.notation import Steps, choose, is_nan, no_number
from tilewright.passes.math_functions import FUNCTIONS, OPERATIONS, PRIMITIVES


def expand_math(program: Program) -> Program:
    """Replace every function that is no primitive of the backends.

    Raises `FrontendError` (unsupported-expression), at the call, for a function or an element
    type that has no expansion.
    """
    return replace(program, kernels=tuple(map(_expand_kernel, program.kernels)))


def _expand_kernel(kernel: Kernel) -> Kernel:
    return replace(kernel, body=_Expansion(kernel).block(kernel.body))


class _Expansion:
    """Expands in the statements of one kernel; `before` collects what goes before the next."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.before: list[Stmt] = []

    @cached_property
    def names(self) -> set[str]:
        """Collect the names that the kernel has."""
        return {each.name for each in variables(self.kernel)}

    def block(self, block: Block) -> Block:
        """Expand in a block."""
        outer, found = self.before, list[Stmt]()
        for stmt in block:
            self.before = []
            expanded = self.statement(stmt) if _has_calls(stmt) else stmt
            found += [*self.before, expanded]
        self.before = outer
        return block_of(found, block)

    def statement(self, stmt: Stmt) -> Stmt:
        """Expand in a statement and in its blocks."""
        if isinstance(stmt, While) and _has_calls(stmt.condition):
            return self.loop(stmt)
        return map_children(stmt, self.node)

    def node(self, node: Node) -> Node | Block:
        """Expand in an expression, or in a statement of a block below."""
        if isinstance(node, Expr):
            return self.expr(node)
        assert isinstance(node, Stmt)
        return self.block((node,))

    def loop(self, stmt: While) -> Stmt:
        """Evaluate the condition of a loop inside it, before each turn."""
        outer, self.before = self.before, []
        stop = If(unary("not", self.expr(stmt.condition)), (Break(),))
        body = (*self.before, stop, *self.block(stmt.body))
        self.before = outer
        return replace(stmt, condition=constant(True, BOOL), body=body)

    def expr(self, expr: Expr) -> Expr:
        """Expand in an expression; what has to be computed first goes to `before`."""
        match expr:
            case Select() if _has_calls(expr.true) or _has_calls(expr.false):
                return self.select(expr)
            case Binary() if expr.op in LOGICAL and _has_calls(expr.right):
                true, false = expr.right, constant(False, BOOL)
                if expr.op == "logical_or":
                    true, false = constant(True, BOOL), expr.right
                return self.select(Select(expr.left, true, false, expr.type))
            case Intrinsic() | Binary() if not _is_primitive(expr):
                return self.call(map_children(expr, self.node))
            case _:
                return map_children(expr, self.node)

    def select(self, expr: Select) -> Expr:
        """Make a choice, an arm of which needs computation, a branch."""
        condition = self.expr(expr.condition)
        assert isinstance(expr.type, ScalarType)
        cell = self.fresh("chosen", expr.type)
        arms: list[Block] = []
        outer = self.before
        for arm in (expr.true, expr.false):
            self.before = []
            value = self.expr(arm)
            arms.append((*self.before, Assign(cell, value, location=expr.location)))
        self.before = outer
        self.before.append(Declare(cell, None, location=expr.location))
        self.before.append(If(condition, arms[0], arms[1], location=expr.location))
        return cell

    def call(self, call: Intrinsic | Binary) -> Expr:
        """Expand a call whose operands are done; narrower floats are computed in float32."""
        name, operands = _parts(call)
        function = FUNCTIONS.get(name) or OPERATIONS.get(name)
        dtype = operands[0].dtype
        if function is None or dtype.lanes != 1 or not dtype.is_float:
            raise _unknown(call)
        wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
        steps = Steps(name, self.fresh, self.before, call.location)
        # What an expansion does not name itself is evaluated once all the same.
        given = [
            steps(f"arg{n}", cast(each, wide) if each.dtype.is_float else each)
            for n, each in enumerate(operands)
        ]
        value = steps("value", function(steps, *given))
        if wide == FLOAT64:
            # Chips differ in what float64 arithmetic makes of the payloads of NaNs.
            value = choose(is_nan(value), no_number(value), value)
        return cast(value, dtype)

    def fresh(self, name: str, kind: ScalarType) -> Var:
        """Make a variable with a name that nothing has."""
        chosen, number = name, 0
        while chosen in self.names:
            number += 1
            chosen = f"{name}_{number}"
        self.names.add(chosen)
        return Var(chosen, kind)


def _parts(call: Intrinsic | Binary) -> tuple[str, tuple[Expr, ...]]:
    if isinstance(call, Binary):
        return call.op, (call.left, call.right)
    return call.name, call.operands


def _is_primitive(call: Intrinsic | Binary) -> bool:
    if isinstance(call, Binary):
        return not call.dtype.is_float or call.op not in OPERATIONS
    return call.name in PRIMITIVES


def _has_calls(node: Node) -> bool:
    return any(not _is_primitive(each) for each in walk_kinds(node, Intrinsic, Binary))


def _unknown(call: Intrinsic | Binary) -> FrontendError:
    name, operands = _parts(call)
    known = name in FUNCTIONS or name in OPERATIONS
    given = operands[0].dtype
    return FrontendError(
        f"the function {name} is not available" + (f" for {given}" if known else ""),
        code="unsupported-expression",
        location=call.location,
        expected="a number of a floating type" if known else "one of " + _listed(),
        found=str(given) if known else name,
    )


def _listed() -> str:
    return ", ".join(sorted({*FUNCTIONS, *PRIMITIVES}))
