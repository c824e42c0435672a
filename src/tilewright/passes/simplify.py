"""Simplify index arithmetic and conditions, with what is known of the ranges of values.

May import `base`, `ir` and the analyses. Holds for wrapping integers: every step that needs a sum
as a whole number asks whether it can leave its type.

    before: a[(i * 8 + j) // 8, (i * 8 + j) % 8]      for j in 0 … 7
    after:  a[i, j]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from tilewright.ir.expressions import (
    COMPARISONS,
    Binary,
    Cast,
    Constant,
    Expr,
    Load,
    Select,
    SpecialRegister,
    Unary,
    Var,
    as_constant,
    binary,
    cast,
    constant,
)
from tilewright.ir.rewrite import block_of, keep_location, map_children
from tilewright.ir.statements import Block, For, If, Kernel, Program, Stmt, While
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import Node
from tilewright.passes.analysis.facts import Fact, whole
from tilewright.passes.analysis.linear import Linear, linear, linear_of
from tilewright.passes.analysis.ranges import Ranges, analyse_ranges

_SUMS = ("add", "sub", "mul", "shl")
_QUOTIENTS = ("floordiv", "truncdiv", "shr")
_REMAINDERS = ("mod", "truncmod", "and")
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def simplify(program: Program) -> Program:
    """Simplify every expression of a program's kernels, and drop arms that are never taken."""
    return replace(program, kernels=tuple(map(simplify_kernel, program.kernels)))


def simplify_kernel(kernel: Kernel) -> Kernel:
    """Simplify every expression of a kernel, and drop arms that are never taken."""
    return replace(kernel, body=_block(kernel.body, analyse_ranges(kernel)))


def simplify_expression(expr: Expr, ranges: Ranges) -> Expr:
    """Simplify an expression; its value is the same wherever `ranges` holds."""
    return _Simplifier(ranges).expr(expr)


# ---------------------------------------------------------------------------- statements


def _block(block: Block, ranges: Ranges) -> Block:
    changed: list[Stmt] = []
    for stmt in block:
        changed += _statement(stmt, ranges)
    return block_of(changed, block)


def _statement(stmt: Stmt, ranges: Ranges) -> Block:
    match stmt:
        case If():
            return _branch(stmt, ranges)
        case While():
            condition = simplify_expression(stmt.condition, ranges)
            if condition == constant(False, condition.dtype):
                return ()
            body = _block(stmt.body, ranges.assuming(condition))
            same = condition is stmt.condition and body is stmt.body
            return (stmt if same else replace(stmt, condition=condition, body=body),)
        case _:
            return (_plain(stmt, ranges),)


def _branch(stmt: If, ranges: Ranges) -> Block:
    condition = simplify_expression(stmt.condition, ranges)
    if isinstance(condition, Constant):
        return _block(stmt.then if condition.value else stmt.orelse, ranges)
    then = _block(stmt.then, ranges.assuming(condition))
    orelse = _block(stmt.orelse, ranges.assuming(condition, False))
    same = condition is stmt.condition and then is stmt.then and orelse is stmt.orelse
    return (stmt if same else replace(stmt, condition=condition, then=then, orelse=orelse),)


def _plain(stmt: Stmt, ranges: Ranges) -> Stmt:
    simplifier = _Simplifier(ranges)

    def visit(node: Node) -> Node | Block:
        match node:
            case Expr():
                return simplifier.expr(node)
            case Stmt():
                return _statement(node, ranges)
            case _:
                return node

    assert isinstance(stmt, For) or not isinstance(stmt, If | While)
    return map_children(stmt, visit)


# ---------------------------------------------------------------------------- expressions


@dataclass(frozen=True)
class _Simplifier:
    ranges: Ranges

    def expr(self, node: Expr) -> Expr:
        """Simplify an expression, inner ones first."""
        match node:
            case Constant() | Load(tensor=Var(), indices=(Constant(),)):
                return node
            case Var() | SpecialRegister():
                known = self._known(node)
                new = node if known is None else known
            case Select():
                return self._select(node)
            case _:
                new = self._settle(map_children(node, self._child))
        if new is node or new == node:
            return node
        located = keep_location(new, node.location)
        assert isinstance(located, Expr)
        return located

    def _child(self, node: Node) -> Node:
        return self.expr(node) if isinstance(node, Expr) else node

    def _settle(self, node: Expr) -> Expr:
        known = self._known(node)
        if known is not None:
            return known
        match node:
            case Binary():
                return self._binary(node)
            case Unary(op="neg") if node.dtype.is_integer:
                return linear_of(node).expression()
            case Unary(op="not", operand=Binary(op=op) as inner) if _is_integral(inner, op):
                return binary(_OPPOSITE[op], inner.left, inner.right)
            case Unary(op="not", operand=Unary(op="not") as inner):
                return inner.operand
            case Cast(operand=Cast() as inner):
                return self._twice_cast(node, inner)
            case _:
                return node

    def _known(self, node: Expr) -> Constant | None:
        """Replace what has one value by that value."""
        if isinstance(node, Constant) or not isinstance(node.type, ScalarType):
            return None
        fact = self.ranges.fact(node)
        if fact is None or fact.low != fact.high:
            return None
        return constant(fact.low, node.dtype)

    def _select(self, node: Select) -> Expr:
        condition = self.expr(node.condition)
        if isinstance(condition, Constant):
            return self.expr(node.true if condition.value else node.false)
        true = _Simplifier(self.ranges.assuming(condition)).expr(node.true)
        false = _Simplifier(self.ranges.assuming(condition, False)).expr(node.false)
        if true == false:
            return true
        parts = ((condition, node.condition), (true, node.true), (false, node.false))
        if all(new is old for new, old in parts):
            return node
        return replace(node, condition=condition, true=true, false=false)

    def _twice_cast(self, node: Cast, inner: Cast) -> Expr:
        # int32 -> int64 -> int32  ->  nothing, if the first step keeps every value
        source, middle = inner.operand, inner.dtype
        integers = all(each.is_integer for each in (source.dtype, middle, node.dtype))
        return cast(source, node.dtype) if integers and middle.bits >= node.dtype.bits else node

    def _binary(self, node: Binary) -> Expr:
        if node.op in ("logical_and", "logical_or"):
            return self._logical(node)
        if not node.left.dtype.is_integer:
            return node
        if node.op in _SUMS:
            return self._sum(node)
        if node.op in _QUOTIENTS:
            return self._quotient(node)
        if node.op in _REMAINDERS:
            return self._remainder(node)
        if node.op in ("min", "max"):
            return self._extreme(node)
        if node.op in COMPARISONS:
            return self._comparison(node)
        # A side may have become a constant with which there is nothing left to do.
        return binary(node.op, node.left, node.right)

    def _logical(self, node: Binary) -> Expr:
        neutral = node.op == "logical_and"
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(side, Constant):
                return other if side.value == neutral else side
        return node

    def _extreme(self, node: Binary) -> Expr:
        left_less = self.ranges.truth(binary("le", node.left, node.right))
        if left_less is None:
            right_less = self.ranges.truth(binary("le", node.right, node.left))
            left_less = None if right_less is None else not right_less
        if left_less is None:
            return node
        return node.left if left_less == (node.op == "min") else node.right

    def _comparison(self, node: Binary) -> Expr:
        # i * 8 + j < i * 8 + 4  ->  j < 4, if neither side can wrap
        left, right = linear_of(node.left), linear_of(node.right)
        if not left.terms.keys() & right.terms.keys():
            return node
        if left.exact(self.ranges) is None or right.exact(self.ranges) is None:
            return node
        terms = dict.fromkeys((*left.terms, *right.terms))
        gaps = {term: left.terms.get(term, 0) - right.terms.get(term, 0) for term in terms}
        gap = left.constant - right.constant
        wanted = (
            Linear({term: by for term, by in gaps.items() if by > 0}, max(gap, 0), left.dtype),
            Linear({term: -by for term, by in gaps.items() if by < 0}, max(-gap, 0), left.dtype),
        )
        sides = tuple(linear(each.terms, each.constant, each.dtype) for each in wanted)
        if sides != wanted or any(each.exact(self.ranges) is None for each in sides):
            return node
        new = binary(node.op, sides[0].expression(), sides[1].expression())
        known = self._known(new)
        return new if known is None else known

    # ---- sums, quotients, remainders

    def _sum(self, node: Binary) -> Expr:
        return self._rejoined(linear_of(node)).expression()

    def _rejoined(self, total: Linear) -> Linear:
        """Undo a split: x // c * c + x % c  ->  x."""
        for term, by in total.terms.items():
            if not (isinstance(term, Binary) and term.op in _QUOTIENTS):
                continue
            divisor = _divisor(term.op, term.right)
            if divisor is None or by % divisor:
                continue
            op = "truncmod" if term.op == "truncdiv" else "mod"
            rest = binary(op, term.left, divisor)
            if total.terms.get(rest) == by // divisor:
                whole_part = linear({term: -by, rest: -(by // divisor)}, 0, total.dtype)
                joined = linear_of(term.left).times(by // divisor)
                return self._rejoined(total.plus(whole_part).plus(joined))
        return total

    def _quotient(self, node: Binary) -> Expr:
        """Take what divides evenly out of a quotient: (a * 8 + b) // 8  ->  a + b // 8."""
        divisor = _divisor(node.op, node.right)
        if divisor is None:
            return node
        total = linear_of(node.left)
        exact = total.exact(self.ranges)
        if exact is None or (node.op == "truncdiv" and exact.low < 0):
            return self._nested_quotient(node, divisor)
        outside = {term: by // divisor for term, by in total.terms.items() if by % divisor == 0}
        inside = {term: by for term, by in total.terms.items() if by % divisor}
        taken = linear(outside, total.constant // divisor, total.dtype)
        rest = linear(inside, total.constant % divisor, total.dtype)
        fact = rest.exact(self.ranges)
        if fact is None:
            return self._nested_quotient(node, divisor)
        if fact.low // divisor == fact.high // divisor:
            constant_part = linear({}, fact.low // divisor, total.dtype)
            return taken.plus(constant_part).expression()
        if node.op == "truncdiv" and fact.low < 0:
            return self._nested_quotient(node, divisor)
        common = _common(rest, divisor)
        if common == 1 and taken == linear({}, 0, total.dtype):
            return self._nested_quotient(node, divisor)
        quotient = _divide(node.op, _reduced(rest, common).expression(), divisor // common)
        return taken.plus(linear_of(self._settle(quotient))).expression()

    def _nested_quotient(self, node: Binary, divisor: int) -> Expr:
        # x // a // b  ->  x // (a * b)
        inner = node.left
        if not (isinstance(inner, Binary) and inner.op == node.op):
            return node
        first = _divisor(inner.op, inner.right)
        if first is None or first * divisor > whole(node.dtype).high:
            return node
        return self._settle(_divide(node.op, inner.left, first * divisor))

    def _remainder(self, node: Binary) -> Expr:
        """Drop multiples of the divisor: (a * 8 + b) % 8  ->  b % 8."""
        modulus = _modulus(node)
        if modulus is None:
            return node
        total = linear_of(node.left)
        exact = total.exact(self.ranges)
        # A power of two divides the span of the type: wrapping does not change the remainder.
        wraps = node.op != "truncmod" and modulus & (modulus - 1) == 0
        if not wraps and (exact is None or (node.op == "truncmod" and exact.low < 0)):
            return node
        kept = {term: by for term, by in total.terms.items() if by % modulus}
        rest = linear(kept, total.constant % modulus, total.dtype)
        fact = rest.exact(self.ranges)
        if fact is not None and fact.low // modulus == fact.high // modulus:
            shift = linear({}, -(fact.low // modulus) * modulus, total.dtype)
            return rest.plus(shift).expression()
        if not wraps and not _may_take_remainder(node.op, fact):
            return node
        return self._remainder_of(node, rest, modulus, fact)

    def _remainder_of(self, node: Binary, rest: Linear, modulus: int, fact: Fact | None) -> Expr:
        common = 1 if fact is None else _common(rest, modulus)
        if common > 1:
            inner = _reduced(rest, common).expression()
            kept = self._settle(_remain(node.op, inner, modulus // common))
            low = linear({}, rest.constant % common, rest.dtype)
            return linear_of(kept).times(common).plus(low).expression()
        inner = rest.expression()
        # x % 32 % 8  ->  x % 8
        if isinstance(inner, Binary) and inner.op == node.op:
            outer = _modulus(inner)
            if outer is not None and outer % modulus == 0:
                return self._settle(_remain(node.op, inner.left, modulus))
        return node if inner == node.left else _remain(node.op, inner, modulus)


def _is_integral(node: Binary, op: str) -> bool:
    return op in _OPPOSITE and not node.left.dtype.is_float


def _may_take_remainder(op: str, fact: Fact | None) -> bool:
    return fact is not None and (op != "truncmod" or fact.low >= 0)


def _divisor(op: str, right: Expr) -> int | None:
    """Give the positive constant that a quotient divides by; a shift divides by a power."""
    value = as_constant(right)
    if value is None or value < (0 if op == "shr" else 1):
        return None
    if op == "shr":
        return 1 << int(value) if value < right.dtype.bits - 1 else None
    return int(value)


def _modulus(node: Binary) -> int | None:
    value = as_constant(node.right)
    if value is None or value < 1:
        return None
    if node.op != "and":
        return int(value)
    mask = int(value)
    fits = mask & (mask + 1) == 0 and mask < whole(node.dtype).high
    return mask + 1 if fits else None


def _divide(op: str, left: Expr, divisor: int) -> Expr:
    return binary(op, left, divisor.bit_length() - 1 if op == "shr" else divisor)


def _remain(op: str, left: Expr, modulus: int) -> Expr:
    return binary(op, left, modulus - 1 if op == "and" else modulus)


def _common(rest: Linear, by: int) -> int:
    """Give the greatest factor common to a divisor and all factors of a sum."""
    return gcd(rest.common_factor(), by)


def _reduced(rest: Linear, common: int) -> Linear:
    """Divide a sum by a common factor of its terms, rounding the constant down."""
    terms = {term: by // common for term, by in rest.terms.items()}
    return linear(terms, rest.constant // common, rest.dtype)
