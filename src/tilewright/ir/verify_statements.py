"""The rules of statements: what each must be, whatever stands around it.

May import `base`, `isa` and the nodes of `ir`; see `verify_expressions`.
"""

from __future__ import annotations

from tilewright.base.dtypes import INT32, INT64, DType
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Constant, Expr, Load, Var, as_constant
from tilewright.ir.operands import declared_operands
from tilewright.ir.statements import (
    Allocate,
    Apply,
    Assert,
    Assign,
    Bind,
    Breakpoint,
    Declare,
    EncodeTensorMap,
    For,
    If,
    Instruct,
    Print,
    Store,
    While,
    Write,
)
from tilewright.ir.tile import TileStmt
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType
from tilewright.ir.verify_expressions import (
    Rule,
    indexing,
    is_condition,
    is_index,
    is_local_array,
)
from tilewright.isa.declaration import Operand, accepts
from tilewright.isa.tensor_map import FORMATS
from tilewright.isa.tile_forms import tile_operands

_KINDS = ("serial", "unroll", "vectorized", "parallel")
_SCOPES = ("thread", "warp", "warpgroup", "cta", "cluster")
_ALLOCATED = (Space.SHARED, Space.LOCAL, Space.TMEM)
# Spaces whose addresses an operand in another space takes.
_WITHIN = {Space.SHARED_CLUSTER: (Space.SHARED,)}


def _bind(stmt: Bind) -> str | None:
    if stmt.var.type != stmt.value.type:
        return f"a {stmt.value.type} is bound to a name of a {stmt.var.type}"
    return None


def _cell(stmt: Declare | Assign) -> str | None:
    if not isinstance(stmt.var.type, ScalarType | PointerType):
        return f"a cell holds a scalar or a pointer, not a {stmt.var.type}"
    if stmt.value is not None and stmt.value.type != stmt.var.type:
        return f"a {stmt.value.type} is put into a cell of {stmt.var.type}"
    return None


def _allocated_tile(stmt: Allocate) -> str | None:
    return _allocated(stmt, (*_ALLOCATED, Space.FRAGMENT, Space.TMEM))


def _allocate(stmt: Allocate) -> str | None:
    return _allocated(stmt, _ALLOCATED)


def _allocated(stmt: Allocate, spaces: tuple[Space, ...]) -> str | None:
    type = stmt.var.type
    if not isinstance(type, TensorType) or type.space not in spaces:
        return f"a {type} is not allocated"
    known = all(isinstance(each, Constant) for each in type.shape)
    return None if known else "a buffer is allocated with a shape of constants"


def _store(stmt: Store) -> str | None:
    message = indexing(stmt.tensor, stmt.indices)
    if message is None and stmt.value.type != ScalarType(stmt.tensor.dtype):
        return f"a {stmt.value.type} is stored into a {stmt.tensor.type}"
    return message


def _write(stmt: Write) -> str | None:
    pointer = stmt.pointer.type
    if not isinstance(pointer, PointerType):
        return f"a {pointer} is written through, which is no pointer"
    if stmt.value.type != ScalarType(pointer.dtype):
        return f"a {stmt.value.type} is written through a {pointer}"
    return None


def _loop(stmt: For) -> str | None:
    bounds = (stmt.start, stmt.stop, stmt.step)
    if not is_index(stmt.var) or any(each.type != stmt.var.type for each in bounds):
        return "a loop's variable and bounds are integers of one type"
    if as_constant(stmt.step) == 0:
        return "a loop's step is not zero"
    return None if stmt.kind in _KINDS else f"there is no loop of the kind {stmt.kind!r}"


def _condition(stmt: If | While | Assert) -> str | None:
    condition = stmt.condition
    return None if is_condition(condition) else f"a {condition.type} is no condition"


def _print(stmt: Print | Breakpoint) -> str | None:
    wrong = [e.type for e in stmt.operands if not isinstance(e.type, ScalarType | PointerType)]
    return f"a {wrong[0]} is not printed" if wrong else None


def _apply(stmt: Apply) -> str | None:
    if stmt.scope not in _SCOPES:
        return f"there is no scope {stmt.scope!r}"
    return None if tile_operands(stmt.form) else f"{stmt.form.text} has no tile form"


def _encode(stmt: EncodeTensorMap) -> str | None:
    pointer = stmt.pointer.type
    if not isinstance(stmt.var.type, TensorMapType):
        return f"a tensor map is given to a {stmt.var.type}"
    if not isinstance(pointer, PointerType) or pointer.space not in (Space.GLOBAL, Space.GENERIC):
        return f"a tensor map describes a tensor in global memory, not at a {pointer}"
    if stmt.format not in FORMATS:
        return f"a tensor map has no elements of {stmt.format!r}"
    rank = len(stmt.box)
    if (len(stmt.extents), len(stmt.strides), len(stmt.steps)) != (rank, rank - 1, rank):
        return "a tensor map has extents, boxes and steps of every axis, strides of all but one"
    return _all_of(INT64, *stmt.extents, *stmt.strides) or _all_of(INT32, *stmt.box, *stmt.steps)


def _all_of(dtype: DType, *numbers: Expr) -> str | None:
    wrong = [each.type for each in numbers if each.type != ScalarType(dtype)]
    return f"a {wrong[0]} stands where an {dtype} is needed" if wrong else None


# ---------------------------------------------------------------------------- instructions


def _instruct(stmt: Instruct) -> str | None:
    declared = declared_operands(stmt.form, len(stmt.operands))
    if declared is None:
        wanted = ", ".join(each.name for each in stmt.form.operands)
        return f"{stmt.form.text} takes {wanted}, not {len(stmt.operands)} operands"
    if stmt.predicate is not None and not is_condition(stmt.predicate):
        return f"a {stmt.predicate.type} is no predicate"
    if stmt.preserve and stmt.predicate is None:
        return "outputs are preserved only under a predicate"
    for each, operand in zip(declared, stmt.operands, strict=True):
        message = _operand(each, operand)
        if message is not None:
            return f"operand {each.name!r} of {stmt.form.text}: {message}"
    return None


def _operand(declared: Operand, operand: Expr) -> str | None:
    if declared.role != "in" and not isinstance(operand, Var | Load):
        return "the instruction writes it, and it is no cell or element"
    match declared.kind:
        case "immediate":
            return _immediate(declared, operand)
        case "address":
            return _address(declared, operand)
        case _:
            return _register(declared, operand)


def _immediate(declared: Operand, operand: Expr) -> str | None:
    value = as_constant(operand)
    if value is None:
        return "an immediate is a constant"
    if declared.values is not None and value not in declared.values:
        return f"{value} is none of its values"
    return None


def _address(declared: Operand, operand: Expr) -> str | None:
    space = declared.space
    assert space is not None
    match operand.type:
        case PointerType():
            allowed = (space, Space.GENERIC, *_WITHIN.get(space, ()))
            fits = space is Space.GENERIC or operand.type.space in allowed
            return None if fits else f"a {operand.type} is no address in {space.value} memory"
        case ScalarType() if is_index(operand):
            fits = operand.dtype.bits == space.address_bits
            return None if fits else f"an address has {space.address_bits} bits"
        case _:
            return None if space is Space.PARAM else f"a {operand.type} is no address"


def _register(declared: Operand, operand: Expr) -> str | None:
    type = operand.type
    match type:
        case ScalarType():
            fits = accepts(declared.type, type.dtype)
        case PointerType():
            fits = declared.type in (f"{kind}{type.space.address_bits}" for kind in "bu")
        case _:
            fits = False
    return None if fits else f"a {type} is no .{declared.type}"


STATEMENT_RULES: tuple[Rule, ...] = (
    (Bind, _bind),
    ((Declare, Assign), _cell),
    (Store, _store),
    (Write, _write),
    (For, _loop),
    ((If, While, Assert), _condition),
    ((Print, Breakpoint), _print),
    (EncodeTensorMap, _encode),
    (Apply, _apply),
    (Instruct, _instruct),
)


# ---------------------------------------------------------------------------- dialects


def _no_tile(stmt: TileStmt) -> str | None:
    return "a simt program has no statements about tiles"


TILE_RULES: tuple[Rule, ...] = ((Allocate, _allocated_tile),)
SIMT_RULES: tuple[Rule, ...] = ((Allocate, _allocate), (TileStmt, _no_tile))


# ---------------------------------------------------------------------------- lowered


def _no_apply(stmt: Apply) -> str | None:
    return "a lowered program applies no instruction to tiles"


def _local_array(stmt: Allocate) -> str | None:
    if is_local_array(stmt.var):
        return None
    return "a lowered program allocates only local arrays of rank 1 without a layout"


def _binds_a_value(stmt: Bind) -> str | None:
    wrong = isinstance(stmt.var.type, TensorType)
    return "a lowered program gives no names to tensors" if wrong else None


LOWERED_STATEMENT_RULES: tuple[Rule, ...] = (
    (TileStmt, _no_tile),
    (Apply, _no_apply),
    (Allocate, _local_array),
    (Bind, _binds_a_value),
)
