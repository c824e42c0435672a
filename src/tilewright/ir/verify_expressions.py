"""The rules of expressions: what each node must be, whatever stands around it.

May import `base` and the nodes of `ir`. A rule is a class of nodes and a function that gives what
is wrong with a node, or `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tilewright.base.dtypes import UINT32
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    ARITHMETIC,
    COMPARISONS,
    LOGICAL,
    VIEWS,
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
    as_constant,
    wrap,
)
from tilewright.ir.shapes import static_shape
from tilewright.ir.types import (
    TENSOR_MAP_POINTER,
    PointerType,
    ScalarType,
    TensorMapType,
    TensorType,
    bits_of,
)

Check = Callable[[Any], str | None]
Rule = tuple[type | tuple[type, ...], Check]
# The ids that `lower_ids` expands.
NAMED_IDS = ("warp_id", "warpgroup_id", "warp_in_warpgroup", "thread_in_warpgroup", "linear_tid")
_MAP_ADDRESS = f"the address of a tensor map is a {TENSOR_MAP_POINTER}"
_BITWISE = ("and", "or", "xor")
_SHIFTS = ("shl", "shr")


def broken_rule(rules: Callable[[type], Sequence[Check]], node: object) -> str | None:
    """Give what the first broken rule for its class says of a node, `None` if all hold."""
    for rule in rules(type(node)):
        message = rule(node)
        if message is not None:
            return message
    return None


# ---------------------------------------------------------------------------- helpers


def is_condition(expr: Expr) -> bool:
    """Tell a scalar boolean."""
    return isinstance(expr.type, ScalarType) and expr.type.dtype.is_bool and expr.dtype.lanes == 1


def is_index(expr: Expr) -> bool:
    """Tell a scalar integer."""
    type = expr.type
    return isinstance(type, ScalarType) and type.dtype.is_integer and type.dtype.lanes == 1


def _elements(type: TensorType) -> int | None:
    extents = static_shape(type.shape)
    return None if extents is None else prod(extents)


def indexing(tensor: Expr, indices: tuple[Expr, ...]) -> str | None:
    """Check that indices fit a tensor: their number, types, and range where it is known."""
    if not isinstance(tensor.type, TensorType):
        return f"a {tensor.type} is indexed, which is no tensor"
    shape = tensor.type.shape
    if len(indices) != len(shape):
        return f"a tensor of {len(shape)} axes is indexed by {len(indices)} numbers"
    for index, extent in zip(indices, shape, strict=True):
        if not is_index(index):
            return f"a {index.type} is no index"
        at, end = as_constant(index), as_constant(extent)
        if at is not None and (at < 0 or (end is not None and at >= end)):
            return f"the index {at} lies outside an axis of {extent} elements"
    return None


# ---------------------------------------------------------------------------- rules


def _constant(node: Constant) -> str | None:
    dtype, value = node.type.dtype, node.value
    is_bool, is_float = dtype.kind == "bool", dtype.kind == "float"
    if is_bool != isinstance(value, bool) or is_float != isinstance(value, float):
        return f"the literal {value!r} is no {dtype}"
    if not is_bool and not is_float and wrap(int(value), dtype) != value:
        return f"the literal {value} is out of the range of {dtype}"
    return None


def _unary(node: Unary) -> str | None:
    if node.op not in ("neg", "invert", "not"):
        return f"there is no operation {node.op!r}"
    if node.operand.type != node.type or not isinstance(node.type, ScalarType):
        return f"the operand is a {node.operand.type}, the result a {node.type}"
    if node.op == "not":
        return None if is_condition(node) else "`not` takes a boolean"
    takes = not node.dtype.is_float if node.op == "invert" else not node.dtype.is_bool
    return None if takes else f"{node.op!r} does not take a {node.type}"


def _binary(node: Binary) -> str | None:
    left, right = node.left.type, node.right.type
    if not isinstance(left, ScalarType) or left != right:
        return f"the operands of {node.op!r} are a {left} and a {right}, which must be one type"
    if left.dtype.lanes != 1:
        return f"{node.op!r} takes vectors element by element"
    if node.op in LOGICAL:
        both = is_condition(node.left) and is_condition(node)
        return None if both else f"{node.op!r} takes and gives booleans"
    if node.op in COMPARISONS:
        return None if node.dtype.is_bool else "a comparison gives a boolean"
    if node.op not in ARITHMETIC:
        return f"there is no operation {node.op!r}"
    if node.type != left:
        return f"the operands are {left}, the result is {node.type}"
    return _takes(node)


def _takes(node: Binary) -> str | None:
    dtype = node.dtype
    if dtype.is_bool and node.op not in _BITWISE:
        return f"{node.op!r} does not take booleans"
    if dtype.is_float and node.op in (*_BITWISE, *_SHIFTS):
        return f"{node.op!r} does not take floats"
    if node.op == "div" and not dtype.is_float:
        return "'div' takes floats"
    return None


def _select(node: Select) -> str | None:
    if not is_condition(node.condition):
        return "a choice is made by a boolean"
    if not node.true.type == node.false.type == node.type:
        return f"a choice between {node.true.type} and {node.false.type} gives {node.type}"
    return None


def _cast(node: Cast) -> str | None:
    source, target = node.operand.type, node.type
    if not isinstance(source, ScalarType) or not isinstance(target, ScalarType):
        return f"a {source} is not converted into a {target}"
    numbers = source.dtype.lanes == target.dtype.lanes == 1
    return None if numbers else f"a {source} is converted into a {target} element by element"


def _bitcast(node: Bitcast) -> str | None:
    have, want = bits_of(node.operand.type), bits_of(node.type)
    if have is None or have != want:
        return f"a {node.operand.type} and a {node.type} differ in width"
    return None


def _shuffle(node: Shuffle) -> str | None:
    kinds = [each.type for each in node.sources]
    if not all(
        isinstance(each, ScalarType) and each.dtype.scalar == node.dtype.scalar for each in kinds
    ):
        return f"{node.dtype.scalar} elements are taken of {', '.join(map(str, kinds))}"
    count = sum(each.dtype.lanes for each in node.sources)
    if not all(0 <= place < count for place in node.places):
        return f"of {count} elements those at {node.places} are taken"
    return None if len(node.places) == node.dtype.lanes else f"{node.places} is no {node.type}"


def _intrinsic(node: Intrinsic) -> str | None:
    kinds = [each.type for each in node.operands]
    wrong = [kind for kind in kinds if isinstance(kind, TensorType)]
    wrong += [kind for kind in kinds if isinstance(kind, ScalarType) and kind.dtype.lanes != 1]
    return f"{node.name!r} does not take a {wrong[0]}" if wrong else None


def _load(node: Load) -> str | None:
    message = indexing(node.tensor, node.indices)
    if message is None and node.type != ScalarType(node.tensor.dtype):
        return f"an element of a {node.tensor.type} is no {node.type}"
    return message


def _address(node: AddressOf) -> str | None:
    if isinstance(node.tensor.type, TensorMapType):
        whole = isinstance(node.tensor, Var) and not node.indices
        return None if whole and node.type == TENSOR_MAP_POINTER else _MAP_ADDRESS
    message = indexing(node.tensor, node.indices)
    if message is not None:
        return message
    tensor = node.tensor.type
    assert isinstance(tensor, TensorType)
    if (node.type.space, node.type.dtype) != (tensor.space, tensor.dtype):
        return f"the address of an element of a {tensor} is no {node.type}"
    return None


def _declared(node: Declared) -> str | None:
    pointer, space = node.pointer.type, node.type.space
    match pointer:
        case PointerType():
            same = pointer.space is space
            return None if same else f"a {pointer} is the address of a {node.type}"
        case ScalarType(dtype=dtype):
            fits = space is Space.TMEM and dtype == UINT32
            return None if fits else f"a {pointer} is no address in {space.value} memory"
        case _:
            return f"a {pointer} is no address"


def _view(node: Reshape | Permute | Reinterpret | Relayout | Subview) -> str | None:
    source = node.source.type
    if not isinstance(source, TensorType):
        return f"a view is taken of a {source}, which is no tensor"
    if source.space is not node.type.space:
        return f"a view of {source.space.value} memory is in {node.type.space.value} memory"
    if source.dtype != node.type.dtype and not isinstance(node, Reinterpret):
        return f"a view of {source.dtype} has elements of {node.type.dtype}"
    return None


def _reshape(node: Reshape) -> str | None:
    source = node.source.type
    assert isinstance(source, TensorType)
    have, want = _elements(source), _elements(node.type)
    if have is not None and want is not None and have != want:
        return f"a view of {have} elements has {want}"
    return None


def _permute(node: Permute) -> str | None:
    source = node.source.type
    assert isinstance(source, TensorType)
    if sorted(node.axes) != list(range(len(source.shape))):
        return f"the axes {node.axes} are no order of {len(source.shape)} axes"
    if node.type.shape != tuple(source.shape[axis] for axis in node.axes):
        return "the extents of the view are not those of the source in the new order"
    return None


def _reinterpret(node: Reinterpret) -> str | None:
    source = node.source.type
    assert isinstance(source, TensorType)
    have, want = _elements(source), _elements(node.type)
    if have is None or want is None:
        return None
    old, new = have * (_width(source)), want * _width(node.type)
    return None if old == new else f"a view of {old} bits has {new}"


def _width(type: TensorType) -> int:
    return type.dtype.bits * type.dtype.lanes


def _subview(node: Subview) -> str | None:
    source = node.source.type
    assert isinstance(source, TensorType)
    axes = {len(source.shape), len(node.starts), len(node.steps), len(node.dropped)}
    if len(axes) != 1 or node.dropped.count(False) != len(node.type.shape):
        return "a box gives a start and a step for each axis, and an extent for each it keeps"
    wrong = [each for each in node.starts if not is_index(each)]
    return f"a {wrong[0].type} is no index" if wrong else None


def _shared_base(node: SharedBase) -> str | None:
    return None if node.type.space is Space.SHARED else "shared memory begins in shared memory"


def _offset(node: Offset) -> str | None:
    if not isinstance(node.pointer.type, PointerType):
        return f"a {node.pointer.type} is moved, which is no pointer"
    if node.pointer.type.space is not node.type.space:
        return "a pointer stays in its space when it is moved"
    return None if is_index(node.bytes) else f"a pointer is moved by a {node.bytes.type}"


def _read(node: Read) -> str | None:
    pointer = node.pointer.type
    if not isinstance(pointer, PointerType):
        return f"a {pointer} is read through, which is no pointer"
    if node.type != ScalarType(pointer.dtype):
        return f"what a {pointer} points to is no {node.type}"
    return None


EXPRESSION_RULES: tuple[Rule, ...] = (
    (Constant, _constant),
    (Unary, _unary),
    (Binary, _binary),
    (Select, _select),
    (Cast, _cast),
    (Bitcast, _bitcast),
    (Shuffle, _shuffle),
    (Intrinsic, _intrinsic),
    (Load, _load),
    (AddressOf, _address),
    (Declared, _declared),
    (VIEWS, _view),
    (Reshape, _reshape),
    (Permute, _permute),
    (Reinterpret, _reinterpret),
    (Subview, _subview),
    (SharedBase, _shared_base),
    (Offset, _offset),
    (Read, _read),
)


# ---------------------------------------------------------------------------- lowered


def is_local_array(expr: Expr) -> bool:
    """Tell a local array as lowering leaves it: rank 1, constant extent, no layout."""
    type = expr.type
    return (
        isinstance(expr, Var)
        and isinstance(type, TensorType)
        and type.space is Space.LOCAL
        and type.layout is None
        and len(type.shape) == 1
        and isinstance(type.shape[0], Constant)
    )


def _no_view(node: Expr) -> str | None:
    return f"a lowered program has no {type(node).__name__}"


def _known_address(node: AddressOf) -> str | None:
    match node.tensor:
        case Var(type=TensorMapType()):
            return None
        case Var(type=TensorType(space=Space.GLOBAL)):
            start = all(as_constant(each) == 0 for each in node.indices)
            return None if start else "a lowered program points only at the start of a tensor"
        case _:
            return _no_view(node)


def _local_only(node: Load) -> str | None:
    if is_local_array(node.tensor):
        return None
    return "a lowered program loads elements only of local arrays of rank 1 without a layout"


def _no_named_id(node: SpecialRegister) -> str | None:
    return f"{node.name!r} is no register of the machine" if node.name in NAMED_IDS else None


LOWERED_EXPRESSION_RULES: tuple[Rule, ...] = (
    ((Declared, *VIEWS), _no_view),
    (AddressOf, _known_address),
    (Load, _local_only),
    (SpecialRegister, _no_named_id),
)
