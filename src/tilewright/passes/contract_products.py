"""Contract products with sums: the one place where it is decided what is rounded twice.

May import `base` and `ir`. The backends never contract by themselves. A product that is an
operand of an addition or subtraction of its own type is rounded with it, as `fma`, if nothing
else uses it: where it stands in the same expression, or has a name that is used once, later in
the same straight-line block. Never across a conversion, an instruction or `T.no_contract`; of
two products the left one is taken.

    y = a * b + c    ->    y = fma(a, b, c)
    y = c - a * b    ->    y = fma(-a, b, c)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property

from tilewright.ir.expressions import (
    Binary,
    Expr,
    Intrinsic,
    Load,
    Read,
    Var,
    unary,
)
from tilewright.ir.rewrite import block_of, map_blocks, rewrite, substitute
from tilewright.ir.statements import (
    Assign,
    Bind,
    Block,
    Declare,
    For,
    Instruct,
    Kernel,
    Program,
    Stmt,
    Store,
    Write,
)
from tilewright.ir.visit import walk_kinds, walk_statements, written

# What the dialect's `T.no_contract(x)` is in the IR; it vanishes here.
NO_CONTRACT = "no_contract"


def contract_products(program: Program) -> Program:
    """Turn sums of products into `fma`, by the rule above."""
    return replace(program, kernels=tuple(map(_contract_kernel, program.kernels)))


def allow_no_contraction(program: Program) -> Program:
    """Only drop the marks of `T.no_contract`: what a program without contraction needs."""
    return rewrite(program, no_contract_rules)


def _contract_kernel(kernel: Kernel) -> Kernel:
    body = rewrite(_Names(kernel).inline(kernel.body), contract_rules)
    return replace(kernel, body=rewrite(body, no_contract_rules))


def _contract(expr: Binary) -> Expr | None:
    """Contract one sum, whose operands are done."""
    if expr.op not in ("add", "sub"):
        return None
    if not expr.dtype.is_float or expr.dtype.lanes != 1:
        return None
    left, right = expr.left, expr.right
    # a * b + c  ->  fma(a, b, c);  a * b - c  ->  fma(a, b, -c)
    if (product := _product(left)) is not None:
        added = right if expr.op == "add" else unary("neg", right)
        return Intrinsic("fma", (product.left, product.right, added), expr.type)
    # c + a * b  ->  fma(a, b, c);  c - a * b  ->  fma(-a, b, c)
    if (product := _product(right)) is not None:
        factor = product.left if expr.op == "add" else unary("neg", product.left)
        return Intrinsic("fma", (factor, product.right, left), expr.type)
    return None


def _product(expr: Expr) -> Binary | None:
    return expr if isinstance(expr, Binary) and expr.op == "mul" else None


def _unmarked(call: Intrinsic) -> Expr | None:
    return call.operands[0] if call.name == NO_CONTRACT else None


contract_rules = ((Binary, _contract),)
# no_contract(x)  ->  x
no_contract_rules = ((Intrinsic, _unmarked),)


class _Names:
    """Puts products that have a name where that is used, if the rule allows it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    @cached_property
    def uses(self) -> Counter[str]:
        """Count how often each name occurs."""
        return Counter(each.name for each in walk_kinds(self.kernel.body, Var))

    @cached_property
    def mutable(self) -> set[str]:
        """Name what is written more than once."""
        return {
            var.name
            for stmt in walk_statements(self.kernel.body)
            if not isinstance(stmt, Bind | For)
            for var in written(stmt)
        }

    def inline(self, block: Block) -> Block:
        """Inline in a block and in those below it."""
        statements: list[Stmt | None] = [map_blocks(stmt, self.inline) for stmt in block]
        for index, stmt in enumerate(statements):
            if not isinstance(stmt, Bind) or not self._is_candidate(stmt):
                continue
            target = self._use(statements, index, stmt)
            if target is not None:
                user = statements[target]
                assert user is not None
                statements[target] = substitute(user, {stmt.var.name: stmt.value})
                statements[index] = None
        return block_of([stmt for stmt in statements if stmt is not None], block)

    def _is_candidate(self, bind: Bind) -> bool:
        product = _product(bind.value)
        # The definition itself names the variable once.
        return product is not None and product.dtype.is_float and self.uses[bind.var.name] == 2

    def _use(self, statements: list[Stmt | None], index: int, bind: Bind) -> int | None:
        """Find the statement that adds a product to something, if it can be moved there."""
        moves_freely = self._is_immutable(bind.value)
        for later in range(index + 1, len(statements)):
            stmt = statements[later]
            if stmt is None:
                continue
            if _straight(stmt) and _adds(stmt, bind.var):
                return later
            if not isinstance(stmt, Bind) and not (moves_freely and _is_plain(stmt)):
                return None
        return None

    def _is_immutable(self, value: Expr) -> bool:
        """Tell a value that nothing between its name and its use can change."""
        return not any(
            not isinstance(each, Var) or each.name in self.mutable
            for each in walk_kinds(value, Load, Read, Var)
        )


def _is_plain(stmt: Stmt) -> bool:
    return isinstance(stmt, Bind | Declare | Assign | Store | Write)


def _straight(stmt: Stmt) -> bool:
    return _is_plain(stmt) or isinstance(stmt, Instruct)


def _adds(stmt: Stmt, name: Var) -> bool:
    """Tell whether a statement uses a name as an operand of a sum of its type."""
    return any(
        each.op in ("add", "sub") and each.dtype == name.dtype and name in (each.left, each.right)
        for each in walk_kinds(stmt, Binary)
    )
