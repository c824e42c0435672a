"""Statements of the lowered IR as lines of C++.

May import `base`, `isa`, `ir` and `passes`.

    for (int q = 0; q < 8; ++q) {
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tilewright.base.dtypes import BOOL, UINT32, UINT64, DType
from tilewright.base.narrow import is_narrow
from tilewright.base.spaces import Space
from tilewright.codegen.expressions import Expressions
from tilewright.codegen.instructions import Argument, helper, overload_key
from tilewright.codegen.overflow import full, interval
from tilewright.codegen.spelling import broken, bug
from tilewright.ir.expressions import (
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
)
from tilewright.ir.operands import declared_operands
from tilewright.ir.statements import (
    Allocate,
    Assert,
    Assign,
    Bind,
    Block,
    Break,
    Breakpoint,
    Continue,
    Declare,
    For,
    If,
    Instruct,
    Print,
    Return,
    Stmt,
    Store,
    While,
    Write,
)
from tilewright.ir.types import PointerType, ScalarType, TensorType
from tilewright.ir.visit import variables, walk, walk_statements
from tilewright.isa.declaration import Form, Operand

# Nodes whose value depends on nothing but what they mention.
_STABLE = (Constant, Var, Unary, Binary, Select, Cast, SpecialRegister)
# Loops of more turns are not unrolled only to keep a local array in registers.
_MOST_TURNS_UNROLLED = 256


class Helpers:
    """The helpers of a translation unit, made when they are first used.

    `names` gives the function name of each form's text.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = frozenset(
            f"{name}{suffix}" for name in names.values() for suffix in ("", "_if", "_if_keep")
        )
        self._names = names
        self._made: dict[tuple[object, ...], str] = {}
        self.needs: set[str] = set()

    def call(
        self,
        form: Form,
        arguments: Sequence[Argument],
        *,
        predicated: bool,
        preserve: bool,
    ) -> str:
        """Give the name of the function that issues a form with operands of those types."""
        suffix = ("_if" if predicated else "") + ("_keep" if predicated and preserve else "")
        name = self._names[form.text] + suffix
        key = (name, overload_key(arguments))
        if key not in self._made:
            made = helper(form, arguments, name, predicated=predicated, preserve=preserve)
            self._made[key] = made.text
            self.needs |= made.needs
        return name

    @property
    def texts(self) -> tuple[str, ...]:
        """List the functions made so far."""
        return tuple(self._made.values())


class Statements:
    """Writes the statements of one kernel; `cells` names its mutable variables."""

    def __init__(self, expressions: Expressions, helpers: Helpers, cells: frozenset[str]) -> None:
        self._write = expressions
        self._helpers = helpers
        self._cells = cells

    def block(self, block: Block, depth: int) -> Iterator[str]:
        """Write the statements of a block, indented by a depth."""
        for stmt in block:
            yield from self._lines(stmt, depth)

    def _lines(self, stmt: Stmt, depth: int) -> Iterable[str]:
        match stmt:
            case For():
                return self._for(stmt, depth)
            case While():
                return self._while(stmt, depth)
            case If():
                return self._if(stmt, depth)
            case Assert():
                return self._assert(stmt, depth)
            case _:
                return broken(self._simple(stmt), depth)

    def _simple(self, stmt: Stmt) -> str:
        write = self._write
        match stmt:
            case Bind(var=var, value=value):
                return self._bind(var, value)
            case Declare(var=var, value=None):
                return f"{self._declarator(var)};"
            case Declare(var=var, value=Expr() as value):
                return f"{self._declarator(var)} = {write.text(value)};"
            case Assign(var=var, value=value):
                return f"{write.names(var.name)} = {write.text(value)};"
            case Allocate(var=var):
                return self._allocate(var, stmt)
            case Store(tensor=tensor, indices=indices, value=value):
                place = write.text(Load(tensor, indices, value.type, location=stmt.location))
                return f"{place} = {write.text(value)};"
            case Write(pointer=pointer, value=value):
                return f"{write.memory(pointer)} = {write.text(value)};"
            case Instruct():
                return self._instruct(stmt)
            case Print(format=format, operands=operands):
                return _call("printf", [string_literal(format), *map(self._printed, operands)])
            case Breakpoint():
                return "// a breakpoint: the simulator shows the state here"
            case Break():
                return "break;"
            case Continue():
                return "continue;"
            case Return():
                return "return;"
            case _:
                raise bug(f"a {type(stmt).__name__} was left to the backend", stmt.location)

    def _is_stable(self, node: Expr) -> bool:
        """Tell the expressions whose value cannot change while their names are in scope."""
        return all(
            isinstance(each, _STABLE) and not (isinstance(each, Var) and each.name in self._cells)
            for each in walk(node)
        )

    # ---- names and storage

    def _declarator(self, var: Var, pointer: Expr | None = None) -> str:
        spelled = self._write.spell(var.type, pointer)
        space = "" if spelled.endswith("*") else " "
        return f"{spelled}{space}{self._write.names(var.name)}"

    def _bind(self, var: Var, value: Expr) -> str:
        text = self._write.text(value)
        if isinstance(var.type, PointerType):
            return f"{self._declarator(var, var)} = {text};"
        return f"const {self._declarator(var)} = {text};"

    def _allocate(self, var: Var, stmt: Allocate) -> str:
        kind = var.type
        if not isinstance(kind, TensorType) or kind.space is not Space.LOCAL:
            raise bug(f"the allocation of {var} was left to the backend", stmt.location)
        extents = [as_constant(extent) for extent in kind.shape]
        if len(extents) != 1 or not isinstance(extents[0], int):
            raise bug(f"the local array {var} was not flattened", stmt.location)
        spelled = self._write.spell(ScalarType(kind.dtype))
        return f"{spelled} {self._write.names(var.name)}[{max(extents[0], 1)}];"

    # ---- control flow

    def _for(self, stmt: For, depth: int) -> Iterator[str]:
        pad = "  " * depth
        name = self._write.names(stmt.var.name)
        kind = self._write.spell(stmt.var.type)
        stop = self._write.text(stmt.stop)
        if not self._is_stable(stmt.stop):
            stop = self._write.names.fresh(f"{stmt.var.name}_stop")
            yield f"{pad}const {kind} {stop} = {self._write.text(stmt.stop)};"
        if _unrolls(stmt):
            yield f"{pad}#pragma unroll"
        start = self._write.text(stmt.start)
        condition = self._loop_condition(stmt, name, stop)
        advance = self._loop_advance(stmt, name, stop)
        yield f"{pad}for ({kind} {name} = {start}; {condition}; {advance}) {{"
        yield from self.block(stmt.body, depth + 1)
        yield f"{pad}}}"

    def _loop_condition(self, stmt: For, name: str, stop: str) -> str:
        low, high = interval(self._write.ranges, stmt.step)
        bound = stop if _is_atom(stop) else f"({stop})"
        if low > 0:
            return f"{name} < {bound}"
        if high < 0:
            return f"{name} > {bound}"
        step = self._write.write(stmt.step).at(16)
        return f"{step} > 0 ? {name} < {bound} : {name} > {bound}"

    def _loop_advance(self, stmt: For, name: str, stop: str) -> str:
        step = self._write.text(stmt.step)
        first, last = full(stmt.var.dtype)
        steps = interval(self._write.ranges, stmt.step)
        stops = interval(self._write.ranges, stmt.stop)
        if stops[1] - 1 + max(steps[1], 0) > last or stops[0] + 1 + min(steps[0], 0) < first:
            self._write.need("advance")
            return f"{name} = advance({name}, {step}, {stop})"
        return {"1": f"++{name}", "-1": f"--{name}"}.get(step.rstrip("ul"), f"{name} += {step}")

    def _while(self, stmt: While, depth: int) -> Iterator[str]:
        pad = "  " * depth
        yield f"{pad}while ({self._write.text(stmt.condition)}) {{"
        yield from self.block(stmt.body, depth + 1)
        yield f"{pad}}}"

    def _if(self, stmt: If, depth: int, opening: str = "") -> Iterator[str]:
        pad = "  " * depth
        yield f"{pad}{opening}if ({self._write.text(stmt.condition)}) {{"
        yield from self._assuming(stmt, stmt.then, depth + 1, holds=True)
        match stmt.orelse:
            case ():
                yield f"{pad}}}"
            case (If() as inner,):
                yield from self._if(inner, depth, "} else ")
            case _:
                yield f"{pad}}} else {{"
                yield from self._assuming(stmt, stmt.orelse, depth + 1, holds=False)
                yield f"{pad}}}"

    def _assuming(self, stmt: If, block: Block, depth: int, *, holds: bool) -> list[str]:
        """Write an arm, in which the condition is known to hold or not to hold."""
        outside = self._write.ranges
        if self._is_stable(stmt.condition):
            self._write.ranges = outside.assuming(stmt.condition, holds)
        lines = list(self.block(block, depth))
        self._write.ranges = outside
        return lines

    def _assert(self, stmt: Assert, depth: int) -> Iterator[str]:
        pad = "  " * depth
        message = f"assertion failed: {stmt.message}\n".replace("%", "%%")
        yield f"{pad}if ({self._write.text(Unary('not', stmt.condition, ScalarType(BOOL)))}) {{"
        yield f"{pad}  {_call('printf', [string_literal(message)])}"
        yield f"{pad}  __trap();"
        yield f"{pad}}}"

    def _printed(self, operand: Expr) -> str:
        """Write an argument of printf, which C passes as int, 64-bit integer, double or pointer."""
        text = self._write.text(operand)
        if isinstance(operand.type, PointerType) or not is_narrow(operand.dtype):
            return text
        return f"widen({text})"

    # ---- instructions

    def _instruct(self, stmt: Instruct) -> str:
        declared = declared_operands(stmt.form, len(stmt.operands))
        if declared is None:
            given = len(stmt.operands)
            raise bug(f"{stmt.form.text} is given {given} operands", stmt.location)
        pairs = zip(declared, stmt.operands, strict=True)
        groups = [
            (operand, tuple(value for _, value in group))
            for operand, group in groupby(pairs, key=lambda pair: pair[0])
        ]
        arguments = [Argument(operand, _types(operand, values)) for operand, values in groups]
        for _, values in groups:
            for value in values:
                self._write.spell(value.type)
        name = self._helpers.call(
            stmt.form,
            arguments,
            predicated=stmt.predicate is not None,
            preserve=stmt.preserve,
        )
        values = [] if stmt.predicate is None else [self._write.text(stmt.predicate)]
        templates: list[str] = []
        for operand, group in groups:
            if operand.kind == "immediate":
                templates.append(self._immediate(operand, group[0]))
            else:
                values += [self._passed(operand, value) for value in group]
        return _call(f"{name}<{', '.join(templates)}>" if templates else name, values)

    def _immediate(self, operand: Operand, value: Expr) -> str:
        number = as_constant(value)
        if number is None:
            raise bug(f"the immediate operand {operand.name} is not constant", value.location)
        return str(int(number))

    def _passed(self, operand: Operand, value: Expr) -> str:
        if operand.kind == "address":
            return self._write.address(value, operand.space)
        if isinstance(value.type, PointerType):
            return self._write.address(value)
        return self._write.text(value)


def _types(operand: Operand, values: Sequence[Expr]) -> tuple[DType, ...]:
    """Give the element types of the parameters that an operand's values are passed as."""
    if operand.kind in ("address", "immediate"):
        return ()
    return tuple(_register_type(operand, value) for value in values)


def _register_type(operand: Operand, value: Expr) -> DType:
    match value.type:
        case PointerType(space=space):
            return UINT32 if space is Space.SHARED or space.address_bits == 32 else UINT64
        case _ if operand.kind == "predicate" and operand.role == "in":
            return BOOL
        case _:
            return value.dtype


def _call(name: str, arguments: Iterable[str]) -> str:
    return f"{name}({', '.join(arguments)});"


def string_literal(text: str) -> str:
    """Spell a string as C++ does, bytes outside ASCII in octal."""
    escapes = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\", "?": "\\?"}
    spelled = ""
    for character in text:
        if character in escapes:
            spelled += escapes[character]
        elif " " <= character <= "~":
            spelled += character
        else:
            spelled += "".join(f"\\{byte:03o}" for byte in character.encode())
    return f'"{spelled}"'


# ---------------------------------------------------------------------------- loops


def _is_atom(text: str) -> bool:
    return text.replace("_", "").isalnum()


def turns(stmt: For) -> int | None:
    """Count the turns of a loop whose bounds are constant."""
    start, stop, step = (as_constant(each) for each in (stmt.start, stmt.stop, stmt.step))
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int) and step:
        return len(range(start, stop, step))
    return None


def _unrolls(stmt: For) -> bool:
    """Tell whether a loop is unrolled: by wish, or since it indexes an array held in registers."""
    count = turns(stmt)
    if stmt.kind in ("unroll", "vectorized"):
        return True
    return count is not None and count <= _MOST_TURNS_UNROLLED and _indexes_registers(stmt)


def _indexes_registers(stmt: For) -> bool:
    """Tell whether an index into a local array depends on the variable of a loop."""
    dependent = {stmt.var.name}
    for inner in walk_statements(stmt.body):
        if isinstance(inner, Bind) and _mentions(inner.value, dependent):
            dependent.add(inner.var.name)
    for node in walk(stmt.body):
        match node:
            case Load(indices=indices) | Store(indices=indices):
                if any(_mentions(index, dependent) for index in indices):
                    return True
            case _:
                continue
    return False


def _mentions(node: Expr, names: set[str]) -> bool:
    return any(var.name in names for var in variables(node))
