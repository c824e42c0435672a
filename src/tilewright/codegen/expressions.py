"""Expressions of the lowered IR as C++ expressions.

May import `base`, `isa` and `ir`. Every text is an expression of exactly the C++ type of its
node, so overloads and templates resolve. Signed additions, subtractions and products are written
plainly where intervals prove that they cannot overflow, else in unsigned arithmetic.

    out[int(blockIdx.x * 128u + threadIdx.x)]
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.base.dtypes import DType
from tilewright.base.spaces import Space
from tilewright.codegen.casts import conversion
from tilewright.codegen.intrinsics import template
from tilewright.codegen.overflow import cannot_wrap, interval
from tilewright.codegen.prelude import BUILTIN_REGISTERS, register_reader
from tilewright.codegen.read_only import base_pointer
from tilewright.codegen.spelling import (
    Names,
    bug,
    c_type,
    is_numeric_address,
    literal,
    scalar_type,
    snippet_of,
    unsigned_literal,
    unsigned_type,
)
from tilewright.ir.expressions import (
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expr,
    Intrinsic,
    Load,
    Offset,
    Read,
    Select,
    SharedBase,
    SpecialRegister,
    Unary,
    Var,
    as_constant,
)
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, Type
from tilewright.passes.analysis.ranges import Ranges

# How tightly operators bind, as in C++; an operand of a lower level is parenthesised.
_PRIMARY, _UNARY, _PRODUCT, _SUM, _SHIFT, _RELATION, _EQUALITY = (
    16,
    15,
    13,
    12,
    11,
    10,
    9,
)
_AND, _XOR, _OR, _LOGICAL_AND, _LOGICAL_OR, _CONDITION = 8, 7, 6, 5, 4, 3

_OPERATORS: dict[str, tuple[str, int]] = {
    "add": ("+", _SUM),
    "sub": ("-", _SUM),
    "mul": ("*", _PRODUCT),
    "div": ("/", _PRODUCT),
    "and": ("&", _AND),
    "xor": ("^", _XOR),
    "or": ("|", _OR),
    "eq": ("==", _EQUALITY),
    "ne": ("!=", _EQUALITY),
    "lt": ("<", _RELATION),
    "le": ("<=", _RELATION),
    "gt": (">", _RELATION),
    "ge": (">=", _RELATION),
    "logical_and": ("&&", _LOGICAL_AND),
    "logical_or": ("||", _LOGICAL_OR),
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
    level: int = _PRIMARY

    def at(self, level: int) -> str:
        """Give the text as an operand where at least that level is needed."""
        return self.text if self.level >= level else f"({self.text})"

    def __str__(self) -> str:
        return self.text


@dataclass
class Uses:
    """What a translation unit stands on, collected while it is written."""

    snippets: set[str] = field(default_factory=set)
    registers: dict[str, int] = field(default_factory=dict)
    shared: bool = False


class Expressions:
    """Writes the expressions of one kernel.

    `read_only` names the pointers to memory that it only reads; `ranges` may be narrowed while
    a part of the kernel is written in which more is known.
    """

    def __init__(self, names: Names, ranges: Ranges, uses: Uses, read_only: frozenset[str]) -> None:
        self.names = names
        self.ranges = ranges
        self._uses = uses
        self._read_only = read_only

    def need(self, *snippets: str) -> None:
        """Ask for pieces of the prelude."""
        self._uses.snippets.update(snippets)

    def spell(self, type: Type, pointer: Expr | None = None) -> str:
        """Spell a type and ask for what defines it; a pointer to read-only memory is const."""
        match type:
            case ScalarType(dtype) | PointerType(dtype=dtype):
                if dtype.lanes != 1:
                    self.need("vector")
                if (snippet := snippet_of(dtype)) is not None:
                    self.need(snippet)
            case TensorMapType():
                self.need("tensor_map")
            case _:
                pass
        constant = pointer is not None and base_pointer(pointer) in self._read_only
        return c_type(type, constant=constant)

    def text(self, node: Expr) -> str:
        """Write an expression where nothing binds more tightly than a comma."""
        return self.write(node).text

    def write(self, node: Expr) -> Text:
        """Write an expression.

        Raises `CompilerBug` for nodes that lowering should have replaced.
        """
        match node:
            case Constant(value=value):
                return self._constant(value, node.dtype)
            case Var():
                return Text(self.names(node.name))
            case SpecialRegister():
                spelled = self.spell(node.type)
                return Text(f"{spelled}({self._register(node)})")
            case Unary():
                return self._unary(node)
            case Binary():
                return self._binary(node)
            case Select(condition=condition, true=true, false=false):
                parts = self.write(condition), self.write(true), self.write(false)
                text = f"{parts[0].at(_LOGICAL_OR)} ? {parts[1].at(_LOGICAL_OR)}"
                return Text(f"{text} : {parts[2].at(_CONDITION)}", _CONDITION)
            case Cast():
                return self._cast(node)
            case Bitcast():
                return self._bitcast(node)
            case Intrinsic():
                return self._intrinsic(node)
            case Load(tensor=Var(name=name), indices=(index,)):
                return Text(f"{self.names(name)}[{self.text(index)}]")
            case Read(pointer=pointer):
                return Text(self.memory(pointer))
            case SharedBase():
                self._uses.shared = True
                spelled = self.spell(node.type)
                return Text(f"({spelled})shared_memory", _UNARY)
            case Offset():
                return self._offset(node)
            case _:
                raise bug(f"a {type(node).__name__} was left to the backend", node.location)

    # ---- leaves

    def _constant(self, value: float | bool, dtype: DType) -> Text:
        self.spell(ScalarType(dtype))
        text = literal(value, dtype)
        return Text(text, _UNARY if text.startswith("-") else _PRIMARY)

    def _register(self, node: SpecialRegister) -> str:
        """Write a special register as the unsigned number that it is."""
        if node.name in BUILTIN_REGISTERS:
            return BUILTIN_REGISTERS[node.name]
        wide = node.dtype.bits == 64
        self._uses.registers[node.name] = 64 if wide else 32
        return f"{register_reader(node.name)}()"

    # ---- operations

    def _unary(self, node: Unary) -> Text:
        operand = node.operand
        if node.op == "not":
            return Text(f"!{self.write(operand).at(_UNARY)}", _UNARY)
        if node.dtype.is_integer and not self._is_plain(node):
            return self._wrapped(node)
        sign = "-" if node.op == "neg" else "~"
        inner = self.write(operand).at(_UNARY)
        space = " " if inner.startswith(sign) else ""
        return self._exact(Text(f"{sign}{space}{inner}", _UNARY), node.dtype)

    def _binary(self, node: Binary) -> Text:
        kind = node.left.dtype
        if node.op in ("min", "max"):
            return self._intrinsic(Intrinsic(node.op, (node.left, node.right), node.type))
        if kind.is_bool and node.op in _BITWISE:
            return Text(f"bool({self._infix(node)})")
        if kind.is_integer:
            return self._integer(node)
        if node.op in ("floordiv", "mod"):
            return self._float_division(node)
        if node.op not in _OPERATORS:
            raise bug(f"no {node.op} of {kind}", node.location)
        return self._infix(node)

    def _infix(self, node: Binary) -> Text:
        symbol, level = _OPERATORS[node.op]
        left, right = self.write(node.left), self.write(node.right)
        # Operators of unlike kinds are parenthesised where C++'s order is little known.
        floor = _SHIFT if _OR <= level <= _EQUALITY else level
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
        return Text(f"{self.spell(node.type)}({self._unsigned(node)})")

    def _unsigned(self, node: Expr) -> Text:
        """Write an integer modulo the width of the unsigned type that it is computed in."""
        dtype = node.dtype
        match node:
            case Constant(value=value):
                return Text(unsigned_literal(int(value), dtype))
            case SpecialRegister() if dtype.bits == 32:
                return Text(self._register(node))
            case Binary(op=op, left=left, right=right) if op in _WRAPPING:
                if self._is_plain(node) and dtype.kind == "int":
                    return self._as_unsigned(node)
                symbol, level = _OPERATORS[op]
                a, b = self._unsigned(left), self._unsigned(right)
                return Text(f"{a.at(level)} {symbol} {b.at(level + 1)}", level)
            case Unary(op="neg", operand=operand):
                zero = "0ull" if dtype.bits == 64 else "0u"
                return Text(f"{zero} - {self._unsigned(operand).at(_PRODUCT)}", _SUM)
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
            right = self.write(node.right).at(_SUM)
            if node.op == "shr":
                return self._exact(
                    Text(f"{self.write(node.left).at(_SUM)} >> {right}", _SHIFT), dtype
                )
            if dtype.kind == "uint" and dtype.bits >= 32:
                return Text(f"{self.write(node.left).at(_SUM)} << {right}", _SHIFT)
            return Text(f"{scalar_type(dtype)}({self._unsigned(node.left).at(_SUM)} << {right})")
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
            text = Text(f"{left.at(_PRODUCT)} {symbol} {right.at(_UNARY)}", _PRODUCT)
            return self._exact(text, dtype)
        divisor = as_constant(node.right)
        if isinstance(divisor, int) and divisor > 0 and divisor & (divisor - 1) == 0:
            return self._power_of_two(node, divisor)
        name, snippet = _DIVISIONS[node.op]
        self.need(snippet)
        return Text(f"{name}({self.text(node.left)}, {self.text(node.right)})")

    def _power_of_two(self, node: Binary, divisor: int) -> Text:
        """Divide by a power of two, rounding down: an arithmetic shift, or a mask."""
        left = self.write(node.left).at(_SUM)
        if node.op == "floordiv":
            return self._exact(Text(f"{left} >> {divisor.bit_length() - 1}", _SHIFT), node.dtype)
        return self._exact(Text(f"{left} & {divisor - 1}", _AND), node.dtype)

    def _float_division(self, node: Binary) -> Text:
        """Round a quotient down, and give what is left: each operation rounds on its own."""
        quotient = Intrinsic("floor", (Binary("div", node.left, node.right, node.type),), node.type)
        if node.op == "floordiv":
            return self.write(quotient)
        product = Binary("mul", quotient, node.right, node.type)
        return self.write(Binary("sub", node.left, product, node.type))

    # ---- functions and conversions

    def _intrinsic(self, node: Intrinsic) -> Text:
        kind = node.operands[0].dtype if node.operands else node.dtype
        found = template(node.name, kind, node.dtype)
        if found is None:
            raise bug(f"no function {node.name} of {kind}", node.location)
        self.spell(node.type)
        self.need(*found.needs)
        operands = [self.text(operand) for operand in node.operands]
        if found.through_float:
            operands = [f"widen({operand})" for operand in operands]
        # A template that names an operand twice puts it in its own parentheses.
        repeated = found.text.count("{0}") > 1
        result = found.text.format(*(f"({each})" if repeated else each for each in operands))
        if found.through_float and not node.dtype.is_bool:
            result = f"narrow<{node.dtype.base}>({result})"
        return Text(result)

    def _cast(self, node: Cast) -> Text:
        if isinstance(node.operand.type, PointerType):
            return Text(f"{self.spell(node.type)}({self.address(node.operand)})")
        source, target = node.operand.dtype, node.dtype
        self.spell(node.operand.type)
        spelled = self.spell(node.type)
        if _is_native_register(node.operand) and target.name == "uint32":
            return Text(self._register(node.operand))
        found = conversion(self.text(node.operand), source, target)
        if found is None:
            raise bug(f"no conversion from {source} to {spelled}", node.location)
        self.need(*found.needs)
        return Text(found.text)

    def _bitcast(self, node: Bitcast) -> Text:
        source, target = node.operand.type, node.type
        spelled = self.spell(target)
        if isinstance(source, PointerType) and isinstance(target, PointerType):
            return Text(f"({spelled}){self.write(node.operand).at(_UNARY)}", _UNARY)
        if isinstance(source, PointerType):
            return Text(f"{spelled}({self.address(node.operand)})")
        if isinstance(target, PointerType):
            return self._pointer_from_number(node, target, spelled)
        if source == target:
            return self.write(node.operand)
        self.spell(source)
        self.need("bit_cast")
        return Text(f"bit_cast<{spelled}>({self.text(node.operand)})")

    def _pointer_from_number(self, node: Bitcast, target: PointerType, spelled: str) -> Text:
        number = self.text(node.operand)
        if is_numeric_address(target.space):
            return Text(f"unsigned({number})")
        if target.space is Space.SHARED:
            return Text(f"({spelled})__cvta_shared_to_generic({number})", _UNARY)
        return Text(f"({spelled})uint64_t({number})", _UNARY)

    # ---- pointers

    def _offset(self, node: Offset) -> Text:
        if is_numeric_address(node.type.space):
            base, distance = self.write(node.pointer), self._unsigned(node.bytes)
            return Text(f"{base.at(_SUM)} + {distance.at(_PRODUCT)}", _SUM)
        base, index = self._element(node)
        if index is None:
            return base
        return Text(f"{base.at(_SUM)} + {index.at(_PRODUCT)}", _SUM)

    def _element(self, node: Offset) -> tuple[Text, Text | None]:
        """Split a moved pointer into a base and a count of elements, where that is possible.

        Byte offsets do not wrap (the passes choose their width so), so a multiple of the
        element size in bytes is a number of elements.
        """
        spelled = self.spell(node.type, node)
        size = node.dtype.bytes
        index = _elements(node.bytes, size)
        base = self.write(node.pointer)
        if index is None:
            byte = "const char" if spelled.startswith("const ") else "char"
            distance = self.write(node.bytes).at(_PRODUCT)
            return Text(f"({spelled})(({byte} *){base.at(_UNARY)} + {distance})", _UNARY), None
        if self.spell(node.pointer.type, node.pointer) != spelled:
            base = self._retyped(node.pointer, spelled)
        if as_constant(index) == 0:
            return base, None
        return base, self.write(index)

    def _retyped(self, pointer: Expr, spelled: str) -> Text:
        if isinstance(pointer, SharedBase):
            self._uses.shared = True
            return Text(f"({spelled})shared_memory", _UNARY)
        return Text(f"({spelled}){self.write(pointer).at(_UNARY)}", _UNARY)

    def memory(self, pointer: Expr) -> str:
        """Write the place that a pointer leads to, to be read or assigned to."""
        assert isinstance(pointer.type, PointerType)
        if is_numeric_address(pointer.type.space):
            raise bug(
                f"no plain access to {pointer.type.space.value} memory",
                pointer.location,
            )
        if isinstance(pointer, Offset):
            base, index = self._element(pointer)
            if index is not None:
                return f"{base.at(_PRIMARY)}[{index}]"
            return f"*{base.at(_UNARY)}"
        return f"*{self.write(pointer).at(_UNARY)}"

    def address(self, node: Expr, space: Space | None = None) -> str:
        """Write an address as the number that an instruction takes, in the operand's space."""
        match node.type:
            case TensorMapType():
                return f"uint64_t(&{self.text(node)})"
            case PointerType(space=own) if is_numeric_address(own):
                return self.text(node)
            case PointerType(space=own):
                name = _ADDRESS_FUNCTIONS[_address_space(own, space)]
                self.need(name)
                return f"{name}({self.text(node)})"
            case _:
                return self.text(node)


_ADDRESS_FUNCTIONS = {
    Space.SHARED: "shared_address",
    Space.GLOBAL: "global_address",
    Space.GENERIC: "generic_address",
}


def _address_space(own: Space, wanted: Space | None) -> Space:
    """Choose the window that a pointer's number is in: C++ pointers themselves are generic."""
    if wanted in (Space.SHARED, Space.SHARED_CLUSTER):
        return Space.SHARED
    if wanted in (Space.GENERIC, Space.PARAM):
        return Space.GENERIC
    if wanted is Space.GLOBAL:
        return Space.GLOBAL
    return own if own in _ADDRESS_FUNCTIONS else Space.GENERIC


def _is_native_register(node: Expr) -> bool:
    return isinstance(node, SpecialRegister) and node.dtype.name == "int32"


def _elements(distance: Expr, size: int) -> Expr | None:
    """Divide a distance in bytes by the size of an element, if it is plainly a multiple of it."""
    match distance:
        case Constant(value=int(value)) if value % size == 0:
            return Constant(value // size, distance.type)
        case _ if size == 1:
            return distance
        case Binary(op="mul", left=left, right=Constant(value=int(value))) if value % size == 0:
            factor = value // size
            if factor == 1:
                return left
            return Binary("mul", left, Constant(factor, distance.right.type), distance.type)
        case Binary(op="shl", left=left, right=Constant(value=int(value))) if (
            value < 31 and (1 << value) % size == 0
        ):
            factor = (1 << value) // size
            if factor == 1:
                return left
            return Binary("mul", left, Constant(factor, left.type), distance.type)
        case Binary(op="add" | "sub" as op, left=left, right=right):
            a, b = _elements(left, size), _elements(right, size)
            if a is None or b is None:
                return None
            return Binary(op, a, b, distance.type)
        case _:
            return None
