"""How expressions and types are written: the lower half of the printer.

May import `base`, `layout`, `isa` and the nodes of `ir`. Expressions come out such that reading
them with the builders of `ir.expressions` gives the same tree: a nested operation is in
parentheses wherever Python would group it otherwise, and literals carry their type unless they
are int32 or booleans.

    >>> print_expr((x + 1) * 2)
    '(x + 1) * 2'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tilewright.base.dtypes import INT32, UINT8, DType
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    COMPARISONS,
    SIGNS,
    AddressOf,
    Binary,
    Bitcast,
    Cast,
    Constant,
    Declared,
    Expr,
    Intrinsic,
    Load,
    Offset,
    Permute,
    Read,
    Reinterpret,
    Relayout,
    Reshape,
    Select,
    SharedBase,
    Shuffle,
    SpecialRegister,
    Subview,
    Unary,
    Var,
)
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType, Type
from tilewright.layout import default_layout

# Python's operators, loosest first: what they bind, how tightly.
_OR, _AND, _NOT, _COMPARE, _UNARY, _ATOM = 1, 2, 3, 4, 11, 13
_LEVELS = {
    "logical_or": _OR,
    "logical_and": _AND,
    **dict.fromkeys(COMPARISONS, _COMPARE),
    "or": 5,
    "xor": 6,
    "and": 7,
    **dict.fromkeys(("shl", "shr"), 8),
    **dict.fromkeys(("add", "sub"), 9),
    **dict.fromkeys(("mul", "div", "floordiv", "mod"), 10),
}
_OPERATORS = {op: (SIGNS[op], level) for op, level in _LEVELS.items()}
# Operators that Python does not group from the left in twos: `a < b < c`, `a and b and c`.
_NOT_ASSOCIATIVE = (_OR, _AND, _COMPARE)
_UNARY_OPERATORS = {
    "neg": (SIGNS["neg"], _UNARY),
    "invert": (SIGNS["invert"], _UNARY),
    "not": (SIGNS["not"] + " ", _NOT),
}

_AXIS_REGISTERS = {
    "tid": "thread_idx",
    "ctaid": "block_idx",
    "ntid": "block_dim",
    "nctaid": "grid_dim",
    "clusterid": "cluster_id",
    "cluster_ctaid": "cluster_cta_id",
    "cluster_nctaid": "cluster_dim",
}
_REGISTERS = {
    "laneid": "lane_id",
    "warp_id": "warp_id",
    "warpgroup_id": "warpgroup_id",
    "warp_in_warpgroup": "warp_in_warpgroup",
    "thread_in_warpgroup": "thread_in_warpgroup",
    "linear_tid": "linear_thread_id",
}


def register_function(name: str) -> str | None:
    """Spell the call of `T.cuda` that reads a special register, if there is one."""
    if name in _REGISTERS:
        return f"T.cuda.{_REGISTERS[name]}()"
    base, _, axis = name.rpartition(".")
    return f'T.cuda.{_AXIS_REGISTERS[base]}("{axis}")' if base in _AXIS_REGISTERS else None


# Of a buffer allocated without saying, in bytes.
DEFAULT_ALIGNMENT = 64
SHARED_BASE_TYPE = PointerType(Space.SHARED, UINT8, 1024)


def quote(text: str) -> str:
    """Write a string literal, in double quotes if it contains none."""
    # A single quote in front makes `repr` choose double ones.
    return repr(text) if '"' in text else '"' + repr("'" + text)[2:]


def print_tuple(parts: list[str]) -> str:
    """Write a tuple, with the comma that a single entry needs."""
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def compact_layout(type: TensorType) -> Any:
    """Give the compact row-major layout of a tensor of constant shape, `None` for any other."""
    extents = [each.value for each in type.shape if isinstance(each, Constant)]
    if len(extents) != len(type.shape) or not all(extents):
        return None
    return default_layout([int(extent) for extent in extents])


@dataclass
class Writer:
    """Writes expressions and types; collects the names of layouts that need a definition.

    `layout_name` gives the text that stands for a layout; by default its own notation.
    """

    layout_name: Callable[[Any], str] = field(default=repr)

    # ---- expressions

    def expr(self, node: Expr, above: int = 0) -> str:
        """Write an expression, in parentheses if it binds no tighter than `above`."""
        text, binds = self._written(node)
        return f"({text})" if binds <= above else text

    def exprs(self, nodes: tuple[Expr, ...]) -> str:
        """Write expressions, separated by commas."""
        return ", ".join(self.expr(each) for each in nodes)

    def number(self, node: Expr) -> str:
        """Write an integer where whatever is given becomes one of the type that is asked for."""
        return repr(node.value) if isinstance(node, Constant) else self.expr(node)

    def _written(self, node: Expr) -> tuple[str, int]:
        match node:
            case Constant():
                return self._constant(node)
            case Binary(op=op) if op in _OPERATORS:
                return self._operation(node)
            case Unary(op=op) if op in _UNARY_OPERATORS:
                sign, binds = _UNARY_OPERATORS[node.op]
                return sign + self.expr(node.operand, binds - 1), binds
            case _:
                return self._atom(node), _ATOM

    def _operation(self, node: Binary) -> tuple[str, int]:
        sign, binds = _OPERATORS[node.op]
        left_above = binds if binds in _NOT_ASSOCIATIVE else binds - 1
        # Python would compute with two bare literals itself, and turn comparisons around that
        # begin with one.
        typed = isinstance(node.left, Constant) and (
            isinstance(node.right, Constant) or binds in _NOT_ASSOCIATIVE
        )
        left = self.literal(node.left) if typed else self.expr(node.left, left_above)
        return f"{left} {sign} {self.expr(node.right, binds)}", binds

    def _constant(self, node: Constant) -> tuple[str, int]:
        if node.dtype.is_bool or node.dtype == INT32:
            return repr(node.value), _ATOM if node.value >= 0 else _UNARY
        return self.literal(node), _ATOM

    def literal(self, node: Expr) -> str:
        """Write a literal with its type, as an expression that Python does not compute with."""
        if not isinstance(node, Constant):
            return self.expr(node)
        value = node.value
        if isinstance(value, float) and not math.isfinite(value):
            return f'T.{node.dtype}("{value}")'
        return f"T.{node.dtype}({value!r})"

    def _atom(self, node: Expr) -> str:
        match node:
            case Var():
                return node.name
            case Unary():
                return f"T.{node.op}({self.literal(node.operand)})"
            case Binary():
                both = isinstance(node.left, Constant) and isinstance(node.right, Constant)
                left = self.literal(node.left) if both else self.expr(node.left)
                return f"T.{node.op}({left}, {self.expr(node.right)})"
            case Select():
                return f"T.select({self.exprs((node.condition, node.true, node.false))})"
            case Cast():
                return f"T.cast({self.literal(node.operand)}, {self.type_argument(node.type)})"
            case Bitcast():
                operand = self.literal(node.operand)
                return f"T.reinterpret({operand}, {self.type_argument(node.type)})"
            case Shuffle():
                sources, places = self.exprs(node.sources), ", ".join(map(str, node.places))
                return f"T.shuffle([{sources}], [{places}])"
            case Intrinsic():
                return f"T.{node.name}({', '.join(self.literal(e) for e in node.operands)})"
            case SpecialRegister():
                return self._register(node)
            case Load():
                return f"{node_text(self, node.tensor)}[{self.exprs(node.indices)}]"
            case AddressOf(tensor=Var(type=TensorMapType()) as tensor_map):
                return f"T.address_of({tensor_map.name})"
            case AddressOf():
                known = node.type.align
                align = "" if known == node.type.dtype.bytes else f", align={known}"
                indices = self.exprs(node.indices)
                return f"{node_text(self, node.tensor)}.ptr_to([{indices}]{align})"
            case Declared():
                return f"T.decl_tensor({self.expr(node.pointer)}, ty_args=[{self.type(node.type)}])"
            case SharedBase():
                return f"T.shared_base({self._pointee(node.type, SHARED_BASE_TYPE)})"
            case Offset():
                place = f"{self.expr(node.pointer)}, {self.expr(node.bytes)}"
                return f"T.offset({place}, {self._pointee(node.type)})"
            case Read():
                return f"T.read({self.expr(node.pointer)})"
            case _:
                return self._view(node)

    def _register(self, node: SpecialRegister) -> str:
        function = register_function(node.name)
        int32 = node.type.dtype == INT32
        if function is not None and int32:
            return function
        kind = "" if int32 else f", {quote(node.type.dtype.name)}"
        return f"T.special_register({quote(node.name)}{kind})"

    def _view(self, node: Expr) -> str:
        match node:
            case Reshape():
                return f"{node_text(self, node.source)}.view({self.exprs(node.type.shape)})"
            case Permute():
                axes = ", ".join(map(str, node.axes))
                return f"{node_text(self, node.source)}.permute({axes})"
            case Reinterpret():
                return f"{node_text(self, node.source)}.view({quote(node.type.dtype.name)})"
            case Relayout():
                shape = self.exprs(node.type.shape)
                layout = self.layout(node.type)
                return f"{node_text(self, node.source)}.view({shape}, layout={layout})"
            case Subview():
                return f"{node_text(self, node.source)}.sub[{self._box(node)}]"
            case _:
                raise AssertionError(f"the printer does not know {type(node).__name__}")

    def _box(self, node: Subview) -> str:
        extents = iter(node.type.shape)
        axes: list[str] = []
        for start, step, dropped in zip(node.starts, node.steps, node.dropped, strict=True):
            if dropped:
                axes.append(self.expr(start))
                continue
            extent = next(extents)
            stop = start + extent if step == 1 else start + ((extent - 1) * step + 1)
            axes.append(f"{self.expr(start)}:{self.expr(stop)}" + (f":{step}" * (step != 1)))
        return ", ".join(axes)

    # ---- types

    def _pointee(self, type: PointerType, default: PointerType | None = None) -> str:
        return "" if type == default else f"{quote(type.dtype.name)}, {type.align}"

    def type(self, type: Type) -> str:
        """Write a type as an annotation."""
        match type:
            case ScalarType():
                return f"T.{type.dtype}"
            case PointerType():
                space = quote(type.space.value)
                return f"T.Ptr({quote(type.dtype.name)}, space={space}, align={type.align})"
            case TensorMapType():
                return "T.TensorMap()"
            case TensorType():
                return f"T.Tensor({', '.join(self._tensor(type))})"

    def type_argument(self, type: Type) -> str:
        """Write a type as an argument: the name of an element type, or an annotation."""
        return quote(type.dtype.name) if isinstance(type, ScalarType) else self.type(type)

    def _tensor(self, type: TensorType) -> list[str]:
        parts = [print_tuple([self.expr(e) for e in type.shape]), quote(type.dtype.name)]
        if type.space is not Space.GLOBAL:
            parts.append(f"scope={quote(type.space.value)}")
        if type.align:
            parts.append(f"align={type.align}")
        if type.layout is not None:
            parts.append(f"layout={self.layout(type)}")
        return parts

    def layout(self, type: TensorType) -> str:
        """Write a tensor's layout: `"default"` if it is compact and row-major, or `None`."""
        if type.layout is None:
            return "None"
        return '"default"' if type.layout == compact_layout(type) else self.layout_name(type.layout)

    def value(self, value: Any) -> str:
        """Write the value of a keyword argument: an expression, a type or Python data."""
        match value:
            case Expr():
                return self.expr(value)
            case DType():
                return quote(value.name)
            case str():
                return quote(value)
            case tuple():
                entries = cast(tuple[Any, ...], value)
                return print_tuple([self.value(each) for each in entries])
            case _:
                return repr(value)


def node_text(writer: Writer, node: Expr) -> str:
    """Write an expression that an index or an attribute follows."""
    return writer.expr(node, _ATOM - 1)


def print_expr(node: Expr) -> str:
    """Write an expression as it stands in a program."""
    return Writer().expr(node)


def print_type(type: Type) -> str:
    """Write a type as it stands in a program."""
    return Writer().type(type)


# An expression shows itself as source. The nodes cannot import their printer, so they get it here.
Expr.__str__ = lambda self: print_expr(self)
