"""Arithmetic of the lowered IR in C++.

May import `base`, `ir` and `passes`. Signed additions, subtractions and products are written
plainly where the ranges prove that they cannot overflow, else in unsigned arithmetic, which
wraps; a sum of products is brought back to its type once.

    int(blockIdx.x * 128u + threadIdx.x)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tilewright.base.dtypes import DType
from tilewright.codegen.overflow import cannot_wrap, interval
from tilewright.codegen.spelling import bug, scalar_type, unsigned_literal, unsigned_type
from tilewright.ir.expressions import (
    Binary,
    Constant,
    Expr,
    Intrinsic,
    SpecialRegister,
    Unary,
    as_constant,
)
from tilewright.ir.types import Type
from tilewright.passes.analysis.ranges import Ranges

# How tightly operators bind, as in C++; an operand of a lower level is parenthesised.
PRIMARY, UNARY, PRODUCT, SUM, SHIFT, RELATION, EQUALITY = (
    16,
    15,
    13,
    12,
    11,
    10,
    9,
)
AND, XOR, OR, LOGICAL_AND, LOGICAL_OR, CONDITION = 8, 7, 6, 5, 4, 3

_OPERATORS: dict[str, tuple[str, int]] = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "and": ("&", AND),
    "xor": ("^", XOR),
    "or": ("|", OR),
    "eq": ("==", EQUALITY),
    "ne": ("!=", EQUALITY),
    "lt": ("<", RELATION),
    "le": ("<=", RELATION),
    "gt": (">", RELATION),
    "ge": (">=", RELATION),
    "logical_and": ("&&", LOGICAL_AND),
    "logical_or": ("||", LOGICAL_OR),
}
_WRAPPING = ("add", "sub", "mul")
_BITWISE = ("and", "or", "xor")
_DIVISIONS = {
    "truncdiv": ("divide", "divide"),
    "truncmod": ("modulo", "divide"),
    "floordiv": ("floor_divide", "floor_divide"),
    "mod": ("floor_modulo", "floor_divide"),
}


@dataclass(frozen=True, slots=True)
class Text:
    """A C++ expression and how tightly its outermost operator binds."""

    text: str
    level: int = PRIMARY

    def at(self, level: int) -> str:
        """Give the text as an operand where at least that level is needed."""
        return self.text if self.level >= level else f"({self.text})"

    def __str__(self) -> str:
        return self.text


class Arithmetic(ABC):
    """Writes operations; `ranges` may be narrowed where more is known."""

    ranges: Ranges

    @abstractmethod
    def need(self, *snippets: str) -> None:
        """Ask for pieces of the prelude."""

    @abstractmethod
    def spell(self, type: Type, pointer: Expr | None = None) -> str:
        """Spell a type and ask for what defines it."""

    @abstractmethod
    def write(self, node: Expr) -> Text:
        """Write an expression."""

    @abstractmethod
    def register(self, node: SpecialRegister) -> str:
        """Write a special register as the unsigned number that it is."""

    def text(self, node: Expr) -> str:
        """Write an expression where nothing binds more tightly than a comma."""
        return self.write(node).text

    # ---- operations

    def unary(self, node: Unary) -> Text:
        operand = node.operand
        if node.op == "not":
            return Text(f"!{self.write(operand).at(UNARY)}", UNARY)
        if node.dtype.is_integer and not self._is_plain(node):
            return self._wrapped(node)
        sign = "-" if node.op == "neg" else "~"
        inner = self.write(operand).at(UNARY)
        space = " " if inner.startswith(sign) else ""
        return self._exact(Text(f"{sign}{space}{inner}", UNARY), node.dtype)

    def binary(self, node: Binary) -> Text:
        kind = node.left.dtype
        if node.op in ("min", "max"):
            return self.write(Intrinsic(node.op, (node.left, node.right), node.type))
        if kind.is_bool and node.op in _BITWISE:
            return Text(f"bool({self._infix(node)})")
        if kind.is_integer:
            return self._integer(node)
        if node.op not in _OPERATORS:
            raise bug(f"no {node.op} of {kind}", node.location)
        return self._infix(node)

    def _infix(self, node: Binary) -> Text:
        symbol, level = _OPERATORS[node.op]
        left, right = self.write(node.left), self.write(node.right)
        # Operators of unlike kinds are parenthesised where C++'s order is little known.
        floor = SHIFT if OR <= level <= EQUALITY else level
        same = isinstance(node.left, Binary) and node.left.op == node.op
        outer = level if same else floor
        return Text(f"{left.at(outer)} {symbol} {right.at(max(floor, level + 1))}", level)

    def _integer(self, node: Binary) -> Text:
        match node.op:
            case "shl" | "shr":
                return self._shift(node)
            case "truncdiv" | "truncmod" | "floordiv" | "mod":
                return self._division(node)
            case _ if node.op in _WRAPPING and not self._is_plain(node):
                return self._wrapped(node)
            case _ if node.op in _WRAPPING or node.op in _BITWISE:
                return self._exact(self._infix(node), node.dtype)
            case _:
                return self._infix(node)

    def _exact(self, text: Text, dtype: DType) -> Text:
        """Bring what C++ has promoted to int back to its type."""
        if dtype.is_integer and dtype.bits < 32:
            return Text(f"{scalar_type(dtype)}({text})")
        return text

    def _is_plain(self, node: Binary | Unary) -> bool:
        """Tell whether C++'s own arithmetic gives the result: unsigned, or proven not to wrap."""
        dtype = node.dtype
        if dtype.kind == "uint" and dtype.bits >= 32:
            return True
        if node.op == "invert" or node.op in _BITWISE:
            return True
        return cannot_wrap(self.ranges, node)

    # ---- wrapping arithmetic, in unsigned numbers

    def _wrapped(self, node: Expr) -> Text:
        return Text(f"{self.spell(node.type)}({self.wrapping(node)})")

    def wrapping(self, node: Expr) -> Text:
        """Write an integer modulo the width of the unsigned type that it is computed in."""
        dtype = node.dtype
        match node:
            case Constant(value=value):
                return Text(unsigned_literal(int(value), dtype))
            case SpecialRegister() if dtype.bits == 32:
                return Text(self.register(node))
            case Binary(op=op, left=left, right=right) if op in _WRAPPING:
                if self._is_plain(node) and dtype.kind == "int":
                    return self._as_unsigned(node)
                symbol, level = _OPERATORS[op]
                a, b = self.wrapping(left), self.wrapping(right)
                return Text(f"{a.at(level)} {symbol} {b.at(level + 1)}", level)
            case Unary(op="neg", operand=operand):
                zero = "0ull" if dtype.bits == 64 else "0u"
                return Text(f"{zero} - {self.wrapping(operand).at(PRODUCT)}", SUM)
            case _:
                return self._as_unsigned(node)

    def _as_unsigned(self, node: Expr) -> Text:
        if node.dtype.kind == "uint" and node.dtype.bits >= 32:
            return self.write(node)
        return Text(f"{unsigned_type(node.dtype)}({self.write(node)})")

    # ---- shifts and divisions

    def _shift(self, node: Binary) -> Text:
        dtype = node.dtype
        low, high = interval(self.ranges, node.right)
        if low >= 0 and high < dtype.bits:
            right = self.write(node.right).at(SUM)
            if node.op == "shr":
                return self._exact(
                    Text(f"{self.write(node.left).at(SUM)} >> {right}", SHIFT), dtype
                )
            if dtype.kind == "uint" and dtype.bits >= 32:
                return Text(f"{self.write(node.left).at(SUM)} << {right}", SHIFT)
            return Text(f"{scalar_type(dtype)}({self.wrapping(node.left).at(SUM)} << {right})")
        self.need("shift")
        name = "shift_left" if node.op == "shl" else "shift_right"
        return Text(f"{name}({self.text(node.left)}, {self.text(node.right)})")

    def _division(self, node: Binary) -> Text:
        dtype = node.dtype
        a, b = interval(self.ranges, node.left), interval(self.ranges, node.right)
        same_sign = a[0] >= 0 and b[0] > 0
        smallest = -(1 << (dtype.bits - 1))
        defined = not b[0] <= 0 <= b[1] and (
            dtype.kind == "uint" or not b[0] <= -1 <= b[1] or a[0] > smallest
        )
        if (defined and node.op.startswith("trunc")) or same_sign:
            symbol = "/" if node.op.endswith("div") else "%"
            left, right = self.write(node.left), self.write(node.right)
            text = Text(f"{left.at(PRODUCT)} {symbol} {right.at(UNARY)}", PRODUCT)
            return self._exact(text, dtype)
        divisor = as_constant(node.right)
        if isinstance(divisor, int) and divisor > 0 and divisor & (divisor - 1) == 0:
            return self._power_of_two(node, divisor)
        name, snippet = _DIVISIONS[node.op]
        self.need(snippet)
        return Text(f"{name}({self.text(node.left)}, {self.text(node.right)})")

    def _power_of_two(self, node: Binary, divisor: int) -> Text:
        """Divide by a power of two, rounding down: an arithmetic shift, or a mask."""
        left = self.write(node.left).at(SUM)
        if node.op == "floordiv":
            return self._exact(Text(f"{left} >> {divisor.bit_length() - 1}", SHIFT), node.dtype)
        return self._exact(Text(f"{left} & {divisor - 1}", AND), node.dtype)
