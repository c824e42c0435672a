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
from tilewright.codegen.arithmetic import (
    CONDITION,
    LOGICAL_OR,
    PRIMARY,
    PRODUCT,
    SUM,
    UNARY,
    Arithmetic,
    Text,
)
from tilewright.codegen.casts import conversion
from tilewright.codegen.intrinsics import template
from tilewright.codegen.pointers import ADDRESS_FUNCTIONS, address_space, elements
from tilewright.codegen.registers import BUILTINS, reader
from tilewright.codegen.spelling import (
    Names,
    bug,
    c_type,
    is_numeric_address,
    literal,
    snippet_of,
)
from tilewright.codegen.vectors import element, joined
from tilewright.ir.expressions import (
    AddressOf,
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
    Shuffle,
    SpecialRegister,
    Unary,
    Var,
)
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, Type
from tilewright.passes.analysis.ranges import Ranges
from tilewright.passes.analysis.read_only import base_pointer


@dataclass
class Uses:
    """What a translation unit stands on, collected while it is written."""

    snippets: set[str] = field(default_factory=set[str])
    registers: dict[str, int] = field(default_factory=dict[str, int])
    shared: bool = False


class Expressions(Arithmetic):
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
                return Text(f"{spelled}({self.register(node)})")
            case Unary():
                return self.unary(node)
            case Binary():
                return self.binary(node)
            case Select(condition=condition, true=true, false=false):
                parts = self.write(condition), self.write(true), self.write(false)
                text = f"{parts[0].at(LOGICAL_OR)} ? {parts[1].at(LOGICAL_OR)}"
                return Text(f"{text} : {parts[2].at(CONDITION)}", CONDITION)
            case Cast():
                return self._cast(node)
            case Bitcast():
                return self._bitcast(node)
            case Shuffle():
                return self._shuffle(node)
            case Intrinsic():
                return self._intrinsic(node)
            case Load(tensor=Var(name=name), indices=(index,)):
                return Text(f"{self.names(name)}[{self.text(index)}]")
            case Read(pointer=pointer):
                return Text(self.memory(pointer))
            case AddressOf(tensor=Var(name=name, type=TensorMapType())):
                return Text(f"({self.spell(node.type)})&{self.names(name)}", UNARY)
            case SharedBase():
                self._uses.shared = True
                spelled = self.spell(node.type)
                return Text(f"({spelled})shared_memory", UNARY)
            case Offset():
                return self._offset(node)
            case _:
                raise bug(f"a {type(node).__name__} was left to the backend", node.location)

    # ---- leaves

    def _constant(self, value: float | bool, dtype: DType) -> Text:
        self.spell(ScalarType(dtype))
        text = literal(value, dtype)
        return Text(text, UNARY if text.startswith("-") else PRIMARY)

    def register(self, node: SpecialRegister) -> str:
        """Write a special register as the unsigned number that it is."""
        if node.name in BUILTINS:
            return BUILTINS[node.name]
        wide = node.dtype.bits == 64
        self._uses.registers[node.name] = 64 if wide else 32
        return f"{reader(node.name)}()"

    # ---- functions and conversions

    def _shuffle(self, node: Shuffle) -> Text:
        sources = [
            (self.text(each) if each.dtype.lanes == 1 else self.write(each).at(PRIMARY), each.dtype)
            for each in node.sources
        ]
        for each in (node, *node.sources):
            self.spell(each.type)
            self.spell(ScalarType(each.dtype.scalar))
        elements = [(text, kind, lane) for text, kind in sources for lane in range(kind.lanes)]
        chosen = [element(*elements[place]) for place in node.places]
        return Text(chosen[0] if node.dtype.lanes == 1 else joined(chosen, node.dtype))

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
        result = found.text.format(*operands)
        if found.through_float and not node.dtype.is_bool:
            result = f"narrow<{node.dtype.base}>({result})"
        return Text(result)

    def _cast(self, node: Cast) -> Text:
        if isinstance(node.operand.type, PointerType):
            return Text(f"{self.spell(node.type)}({self.address(node.operand)})")
        source, target = node.operand.dtype, node.dtype
        self.spell(node.operand.type)
        spelled = self.spell(node.type)
        if isinstance(node.operand, SpecialRegister) and target.name == "uint32":
            return Text(self.register(node.operand))
        found = conversion(self.text(node.operand), source, target)
        if found is None:
            raise bug(f"no conversion from {source} to {spelled}", node.location)
        self.need(*found.needs)
        return Text(found.text)

    def _bitcast(self, node: Bitcast) -> Text:
        source, target = node.operand.type, node.type
        spelled = self.spell(target)
        if isinstance(source, PointerType) and isinstance(target, PointerType):
            return Text(f"({spelled}){self.write(node.operand).at(UNARY)}", UNARY)
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
            return Text(f"({spelled})__cvta_shared_to_generic({number})", UNARY)
        return Text(f"({spelled})uint64_t({number})", UNARY)

    # ---- pointers

    def _offset(self, node: Offset) -> Text:
        if is_numeric_address(node.type.space):
            base, distance = self.write(node.pointer), self.wrapping(node.bytes)
            return Text(f"{base.at(SUM)} + {distance.at(PRODUCT)}", SUM)
        base, index = self._element(node)
        if index is None or index.text == "0":
            return base
        return Text(f"{base.at(SUM)} + {index.at(PRODUCT)}", SUM)

    def _element(self, node: Offset) -> tuple[Text, Text | None]:
        """Split a moved pointer into a base and a count of elements, where that is possible.

        Byte offsets do not wrap (the passes choose their width so), so a multiple of the
        element size in bytes is a number of elements.
        """
        spelled = self.spell(node.type, node)
        size = node.dtype.bytes
        index = elements(node.bytes, size)
        base = self.write(node.pointer)
        if index is None:
            byte = "const char" if spelled.startswith("const ") else "char"
            distance = self.write(node.bytes).at(PRODUCT)
            return Text(f"({spelled})(({byte} *){base.at(UNARY)} + {distance})", UNARY), None
        if self.spell(node.pointer.type, node.pointer) != spelled:
            base = self._retyped(node.pointer, spelled)
        return base, self.write(index)

    def _retyped(self, pointer: Expr, spelled: str) -> Text:
        if isinstance(pointer, SharedBase):
            self._uses.shared = True
            return Text(f"({spelled})shared_memory", UNARY)
        return Text(f"({spelled}){self.write(pointer).at(UNARY)}", UNARY)

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
                return f"{base.at(PRIMARY)}[{index}]"
            return f"*{base.at(UNARY)}"
        return f"{self.write(pointer).at(PRIMARY)}[0]"

    def address(self, node: Expr, space: Space | None = None) -> str:
        """Write an address as the number that an instruction takes, in the operand's space."""
        match node.type:
            case PointerType(space=own) if is_numeric_address(own):
                return self.text(node)
            case PointerType(space=own):
                name = ADDRESS_FUNCTIONS[address_space(own, space)]
                self.need(name)
                return f"{name}({self.text(node)})"
            case _:
                return self.text(node)
