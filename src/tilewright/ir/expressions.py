"""Expressions of the IR: frozen nodes, and the arithmetic that builds them.

May import `base`, `layout` and `ir.types`. Every node has a type, and a location that takes no
part in equality. Operators on nodes build nodes: operands are brought to one type by the rules
of `promote`, and integer constants fold. `==` compares structure; `equal(a, b)` builds the
comparison.

    >>> x = Var("x", ScalarType(INT32))
    >>> x * 2 + 1
    Binary(op='add', …)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, TypeVar

from tilewright.base.dtypes import BOOL, FLOAT32, INT32, DType
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.narrow import rounded
from tilewright.ir.types import PointerType, ScalarType, TensorType, Type


class Expr:
    """A value in the IR. Nodes are frozen; operators build new ones.

    The type of a node mostly follows from the rest, so that hashes do without it.
    """

    # Every node has these fields; the type of a node may be narrower.
    type: Any
    location: Any

    @property
    def dtype(self) -> DType:
        """Give the element type of a scalar, a pointer or a tensor."""
        return self.type.dtype

    def __add__(self, other: Operand) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return binary("mul", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Expr:
        return binary("floordiv", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", other, self)

    def __mod__(self, other: Operand) -> Expr:
        return binary("mod", self, other)

    def __rmod__(self, other: Operand) -> Expr:
        return binary("mod", other, self)

    def __and__(self, other: Operand) -> Expr:
        return binary("and", self, other)

    def __rand__(self, other: Operand) -> Expr:
        return binary("and", other, self)

    def __or__(self, other: Operand) -> Expr:
        return binary("or", self, other)

    def __ror__(self, other: Operand) -> Expr:
        return binary("or", other, self)

    def __xor__(self, other: Operand) -> Expr:
        return binary("xor", self, other)

    def __rxor__(self, other: Operand) -> Expr:
        return binary("xor", other, self)

    def __lshift__(self, other: Operand) -> Expr:
        return binary("shl", self, other)

    def __rlshift__(self, other: Operand) -> Expr:
        return binary("shl", other, self)

    def __rshift__(self, other: Operand) -> Expr:
        return binary("shr", self, other)

    def __rrshift__(self, other: Operand) -> Expr:
        return binary("shr", other, self)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __invert__(self) -> Expr:
        return unary("invert", self)

    def __bool__(self) -> bool:
        raise TypeError("the truth of an IR expression is not known when a kernel is compiled")


Operand = Expr | int | float | bool
AnyExpr = TypeVar("AnyExpr", bound=Expr)


def _where() -> Any:
    return field(default=None, compare=False, kw_only=True, repr=False)


def _same(a: float, b: float) -> bool:
    if a != b:
        return a != a and b != b
    return a != 0 or math.copysign(1, a) == math.copysign(1, b)


@dataclass(frozen=True)
class Constant(Expr):
    """A literal. Integers are in the range of their type; floats are Python floats.

    Equal literals are the same value: all NaNs are one, and 0 is not -0.
    """

    value: int | float | bool
    type: ScalarType
    location: Location | None = _where()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        return self.type == other.type and _same(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self.value if self.value == self.value else "nan")

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Var(Expr):
    """A named value: a parameter, a binding, a mutable cell or a buffer. Names are unique."""

    name: str
    type: Type = field(hash=False)
    location: Location | None = _where()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Unary(Expr):
    """An operation of one operand: "neg", "invert" (bitwise) or "not" (logical)."""

    op: str
    operand: Expr
    type: Type = field(hash=False)
    location: Location | None = _where()


@dataclass(frozen=True)
class Binary(Expr):
    """An operation of two operands of one type; see `ARITHMETIC`, `COMPARISONS` and `LOGICAL`.

    `floordiv` and `mod` are Python's; `truncdiv` and `truncmod` are C's. Shifts take any count:
    at or beyond the width the result is 0, or the sign for a signed right shift (as in PTX).
    Integers wrap. "logical_and" and "logical_or" do not evaluate their right side in vain.
    """

    op: str
    left: Expr
    right: Expr
    type: Type = field(hash=False)
    location: Location | None = _where()


@dataclass(frozen=True)
class Select(Expr):
    """One of two values, by a condition; only the chosen one is evaluated."""

    condition: Expr
    true: Expr
    false: Expr
    type: Type = field(hash=False)
    location: Location | None = _where()


@dataclass(frozen=True)
class Cast(Expr):
    """A conversion of value: C's between integers, to zero into integers, out-of-range saturating
    (PTX `cvt`), to nearest even into floats; what `base.narrow` says for those of few bits."""

    operand: Expr
    type: Type = field(hash=False)
    location: Location | None = _where()


@dataclass(frozen=True)
class Bitcast(Expr):
    """The same bits as another type of the same width."""

    operand: Expr
    type: Type = field(hash=False)
    location: Location | None = _where()


@dataclass(frozen=True)
class Shuffle(Expr):
    """Elements of vectors and numbers, laid end to end, by their places there: one, or a vector.

    All arithmetic is of numbers: that of vectors is a shuffle of what their elements give.
    """

    sources: tuple[Expr, ...]
    places: tuple[int, ...]
    type: ScalarType
    location: Location | None = _where()


@dataclass(frozen=True)
class Intrinsic(Expr):
    """A pure function of the dialect, such as "sqrt", "exp2", "fma" or "popcount"."""

    name: str
    operands: tuple[Expr, ...]
    type: Type = field(hash=False)
    location: Location | None = _where()


@dataclass(frozen=True)
class SpecialRegister(Expr):
    """A PTX special register, by its name without the percent sign, such as `tid.x`."""

    name: str
    type: ScalarType = ScalarType(INT32)
    location: Location | None = _where()


@dataclass(frozen=True)
class Load(Expr):
    """An element of a tensor. On a local array of rank 1 it survives lowering, as a register."""

    tensor: Expr
    indices: tuple[Expr, ...]
    type: Type = field(hash=False)
    location: Location | None = _where()


@dataclass(frozen=True)
class AddressOf(Expr):
    """A pointer to an element of a tensor; or, without indices, to a tensor map in a kernel.

    Beside those of tensor maps, lowering leaves one kind: the host's `AddressOf(A, (0, …))` is
    the start of the parameter `A`, before any offset that its layout has.
    """

    tensor: Expr
    indices: tuple[Expr, ...]
    type: PointerType
    location: Location | None = _where()


@dataclass(frozen=True)
class Declared(Expr):
    """The storage at a pointer as a tensor; a `Bind` names it, and evaluates the pointer once.

    In Tensor Memory the pointer may be a number, uint32. Vanishes in `lower_views`.
    """

    pointer: Expr
    type: TensorType
    location: Location | None = _where()


# ---- views: the same storage under other coordinates; they vanish in `lower_views`


@dataclass(frozen=True)
class Reshape(Expr):
    """The elements in the same row-major order under another shape."""

    source: Expr
    type: TensorType
    location: Location | None = _where()


@dataclass(frozen=True)
class Permute(Expr):
    """The axes in another order: axis i of the view is axis `axes[i]` of the source."""

    source: Expr
    axes: tuple[int, ...]
    type: TensorType
    location: Location | None = _where()


@dataclass(frozen=True)
class Reinterpret(Expr):
    """The bits as elements of another width: the last axis is rescaled."""

    source: Expr
    type: TensorType
    location: Location | None = _where()


@dataclass(frozen=True)
class Relayout(Expr):
    """The storage, from where the source begins, under a shape and layout of its own."""

    source: Expr
    type: TensorType
    location: Location | None = _where()


@dataclass(frozen=True)
class Subview(Expr):
    """A box of the source: axis by axis a start and a step; dropped axes have extent 1 there.

    `type.shape` lists the extents of the axes that are kept.
    """

    source: Expr
    starts: tuple[Expr, ...]
    steps: tuple[int, ...]
    dropped: tuple[bool, ...]
    type: TensorType
    location: Location | None = _where()


# What `source` leads through to the buffer.
VIEWS = (Reshape, Permute, Reinterpret, Relayout, Subview)


# ---- what lowering leaves in their place


@dataclass(frozen=True)
class SharedBase(Expr):
    """The start of the kernel's one block of dynamic shared memory."""

    type: PointerType
    location: Location | None = _where()


@dataclass(frozen=True)
class Offset(Expr):
    """A pointer moved by a number of bytes; `type` has the alignment and element known there."""

    pointer: Expr
    bytes: Expr
    type: PointerType = field(hash=False)
    location: Location | None = _where()


@dataclass(frozen=True)
class Read(Expr):
    """The value at a pointer, read by a plain load."""

    pointer: Expr
    type: ScalarType
    location: Location | None = _where()


# ---------------------------------------------------------------------------- building

ARITHMETIC = (
    *("add", "sub", "mul", "div", "floordiv", "mod", "truncdiv", "truncmod", "min", "max"),
    *("and", "or", "xor", "shl", "shr"),
)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
# How Python writes the operations that it has a sign for.
SIGNS = {
    "logical_or": "or",
    "logical_and": "and",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "or": "|",
    "xor": "^",
    "and": "&",
    "shl": "<<",
    "shr": ">>",
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "neg": "-",
    "invert": "~",
    "not": "not",
}
LOGICAL = ("logical_and", "logical_or")
_INTEGER_ONLY = ("and", "or", "xor", "shl", "shr")
_DIVISIONS = ("floordiv", "mod", "truncdiv", "truncmod")
_INT32 = ScalarType(INT32)


def constant(value: float | bool, dtype: DType, location: Location | None = None) -> Constant:
    """Build a literal of a type; integers wrap into its range, floats round when used."""
    match dtype.kind:
        case "bool":
            number = bool(value)
        case "float":
            number = float(value)
        case _:
            number = wrap(int(value), dtype)
    return Constant(number, ScalarType(dtype), location=location)


def wrap(value: int, dtype: DType) -> int:
    """Reduce an integer into the range of an integer type, as two's complement does."""
    value &= (1 << dtype.bits) - 1
    if dtype.kind == "int" and value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    return value


@lru_cache(maxsize=4096)
def int32(value: int) -> Constant:
    """Build an int32 literal, the type of indices; one node may stand in many places."""
    return Constant(wrap(value, INT32), _INT32)


def default_dtype(value: float | bool) -> DType:
    """Choose the type of a Python literal that stands alone: int32, float32 or bool."""
    if isinstance(value, bool):
        return BOOL
    return INT32 if isinstance(value, int) else FLOAT32


def as_expr(value: Operand, dtype: DType | None = None) -> Expr:
    """Make an expression of a Python number; expressions pass unchanged."""
    if isinstance(value, Expr):
        return value
    kind = dtype or default_dtype(value)
    if kind.lanes == 1:
        return constant(value, kind)
    return broadcast(constant(value, kind.scalar), kind.lanes)


def as_constant(value: Expr) -> int | float | bool | None:
    """Give the value of a literal, `None` for anything else."""
    return value.value if isinstance(value, Constant) else None


def promote(left: DType, right: DType) -> DType:
    """Find the common type of two operands.

    Floats win over integers, wider over narrower; float16 with bfloat16 gives float32; among
    integers of one width unsigned wins (as in C); booleans count as the other operand. All are
    scalar types.
    """
    if left is right or left == right or right.is_bool:
        return left
    if left.is_bool:
        return right
    if left.is_float != right.is_float:
        return left if left.is_float else right
    if left.bits != right.bits:
        return left if left.bits > right.bits else right
    if left.is_float:
        return FLOAT32
    return left if left.kind == "uint" else right


def _literal_type(value: float | bool, other: DType) -> DType:
    """Choose the type of a Python literal beside an operand: the operand's, if it can hold it."""
    if isinstance(value, float) and not other.is_float:
        return FLOAT32
    if other.is_bool and not isinstance(value, bool):
        return default_dtype(value)
    return other


def _lift(left: Operand, right: Operand) -> tuple[Expr, Expr]:
    if not isinstance(left, Expr):
        other = right.dtype if isinstance(right, Expr) else default_dtype(left)
        left = constant(left, _literal_type(left, other))
    if not isinstance(right, Expr):
        right = constant(right, _literal_type(right, left.dtype))
    return left, right


# The operations that Python computes as they are defined, but for the width of integers.
FOLDED: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _fold_integers(op: str, left: int, right: int, dtype: DType) -> int | bool | None:
    if op in FOLDED:
        return FOLDED[op](left, right)
    if op in ("floordiv", "mod", "truncdiv", "truncmod") and right != 0:
        floor, remainder = left // right, left % right
        if op.startswith("floor") or op == "mod":
            return floor if op == "floordiv" else remainder
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if op == "truncdiv" else left - right * quotient
    if op in ("shl", "shr") and 0 <= right < dtype.bits:
        return left << right if op == "shl" else left >> right
    return None


def _identity(op: str, left: Expr, right: Expr) -> Expr | None:
    """Drop an integer operation that does nothing."""
    a, b = as_constant(left), as_constant(right)
    if op in ("add", "or", "xor", "shl", "shr", "sub") and b == 0:
        return left
    if op in ("add", "or", "xor") and a == 0:
        return right
    if op in ("mul", "floordiv", "truncdiv") and b == 1:
        return left
    if op == "mul" and a == 1:
        return right
    if op in ("mul", "and") and (a == 0 or b == 0):
        return left if a == 0 else right
    if op in ("mod", "truncmod") and b == 1:
        return constant(0, left.dtype)
    return None


def binary(op: str, left: Operand, right: Operand, location: Location | None = None) -> Expr:
    """Build an operation, bringing both operands to one type.

    Folds integer constants and drops integer identities. Raises `FrontendError`
    (`type-mismatch`) for operands that the operation does not take.
    """
    lanes = 1
    for side in (left, right):
        if isinstance(side, Expr):
            if not isinstance(side.type, ScalarType):
                raise _mismatch(op, as_expr(left), as_expr(right), location)
            lanes = max(lanes, side.type.dtype.lanes)
    if lanes > 1:
        return lanewise(partial(binary, op), location, left, right)
    left, right = _lift(left, right)
    dtype = promote(left.dtype, right.dtype)
    if op in LOGICAL:
        left, right = truth(left, location), truth(right, location)
        return Binary(op, left, right, ScalarType(BOOL), location=location)
    if dtype.is_bool and op not in ("and", "or", "xor", "eq", "ne"):
        dtype = INT32
    if op == "div" and not dtype.is_float:
        dtype = FLOAT32
    if (op in _INTEGER_ONLY and dtype.is_float) or (op in _DIVISIONS and dtype.bits > 64):
        raise _mismatch(op, left, right, location)
    if op in ("shl", "shr"):
        dtype = left.dtype
    left, right = cast(left, dtype), cast(right, dtype)
    kind = ScalarType(BOOL) if op in COMPARISONS else left.type
    a, b = as_constant(left), as_constant(right)
    if dtype.is_integer and (a is not None or b is not None):
        if isinstance(a, int) and isinstance(b, int):
            folded = _fold_integers(op, a, b, dtype)
            if folded is not None:
                return constant(folded, kind.dtype, location)
        if (simple := _identity(op, left, right)) is not None:
            return simple
    return Binary(op, left, right, kind, location=location)


_ELEMENT = "name an element, as in t[i]"


def _mismatch(op: str, left: Expr, right: Expr, location: Location | None) -> FrontendError:
    numbers = isinstance(left.type, ScalarType) and isinstance(right.type, ScalarType)
    return FrontendError(
        f"the operation {SIGNS.get(op, op)!r} does not take these operands",
        code="type-mismatch",
        location=location or left.location or right.location,
        found=f"{left.type} and {right.type}",
        hint=None if numbers else _ELEMENT,
    )


def unary(op: str, operand: Operand, location: Location | None = None) -> Expr:
    """Build "neg", "invert" or "not"; constants fold.

    Raises `FrontendError` (`type-mismatch`) for an operand that the operation does not take.
    """
    operand = as_expr(operand)
    if not isinstance(operand.type, ScalarType) or (op == "invert" and operand.dtype.is_float):
        raise FrontendError(
            f"the operation {SIGNS.get(op, op)!r} does not take this operand",
            code="type-mismatch",
            location=location or operand.location,
            found=str(operand.type),
            hint=None if isinstance(operand.type, ScalarType) else _ELEMENT,
        )
    if operand.dtype.lanes > 1:
        return lanewise(partial(unary, op), location, operand)
    if op == "not":
        operand = truth(operand, location)
        if isinstance(operand, Constant):
            return constant(not operand.value, BOOL, location)
        return Unary(op, operand, ScalarType(BOOL), location=location)
    if operand.dtype.is_bool:
        operand = cast(operand, INT32)
    value = as_constant(operand)
    if isinstance(value, int):
        return constant(-value if op == "neg" else -1 - value, operand.dtype, location)
    if isinstance(value, float) and op == "neg":
        return constant(-value, operand.dtype, location)
    return Unary(op, operand, operand.type, location=location)


def equal(left: Operand, right: Operand) -> Expr:
    """Build the comparison for equality."""
    return binary("eq", left, right)


def truth(value: Operand, location: Location | None = None) -> Expr:
    """Build the truth of a number: whether it differs from zero.

    Raises `FrontendError` (`type-mismatch`) for what is none.
    """
    value = as_expr(value)
    if not isinstance(value.type, ScalarType):
        raise FrontendError(
            "a condition is a number or a truth value",
            code="type-mismatch",
            location=location or value.location,
            found=f"{value.type} {value}",
            hint=_ELEMENT,
        )
    return value if value.dtype.is_bool else binary("ne", value, 0, location)


def select(
    condition: Expr, true: Operand, false: Operand, location: Location | None = None
) -> Expr:
    """Build a choice between two values, brought to one type."""
    if (lanes := lanes_of(condition, true, false)) > 1 and not _one_choice(condition, true, false):
        return lanewise(select, location, condition, true, false)
    for side in (true, false):
        if isinstance(side, Expr) and not isinstance(side.type, ScalarType):
            raise _mismatch("select", as_expr(true), as_expr(false), location)
    true, false = _lift(true, false)
    dtype = true.dtype if lanes > 1 else promote(true.dtype, false.dtype)
    true, false = cast(true, dtype), cast(false, dtype)
    condition = truth(condition, location)
    if isinstance(condition, Constant):
        return true if condition.value else false
    return Select(condition, true, false, ScalarType(dtype), location=location)


def _one_choice(condition: Expr, true: Operand, false: Operand) -> bool:
    """Tell a choice between two vectors of one type by one condition."""
    typed = isinstance(true, Expr) and isinstance(false, Expr) and true.type == false.type
    return typed and condition.dtype.lanes == 1


def cast(value: Operand, dtype: DType, location: Location | None = None) -> Expr:
    """Convert a value to an element type; literals convert at once, where that is exact.

    A number becomes a vector of equal elements. Raises `FrontendError` (`type-mismatch`) between
    floats and integers of more than 64 bits, and between vectors of different lengths.
    """
    value = as_expr(value)
    if value.dtype is dtype or value.dtype == dtype:
        return value
    if value.dtype.lanes > 1 or dtype.lanes > 1:
        convert = partial(cast, dtype=dtype.scalar)
        return lanewise(convert, location or value.location, value, lanes=dtype.lanes)
    if dtype.is_bool:
        return truth(value, location)
    if value.dtype.is_float != dtype.is_float and max(value.dtype.bits, dtype.bits) > 64:
        raise FrontendError(
            "integers of more than 64 bits and floats do not convert into each other",
            code="type-mismatch",
            location=location or value.location,
            expected="an integer of at most 64 bits",
            found=f"{value.dtype} to {dtype}",
        )
    if isinstance(value, Constant):
        number = value.value
        if isinstance(number, float):
            number = rounded(number, value.dtype)
        if dtype.is_float or isinstance(number, int):
            return constant(number, dtype, location or value.location)
        if math.isfinite(number) and dtype.is_integer and _fits(math.trunc(number), dtype):
            return constant(math.trunc(number), dtype, location or value.location)
    return Cast(value, ScalarType(dtype), location=location or value.location)


# ---------------------------------------------------------------------------- vectors


def lanes_of(*values: Operand) -> int:
    """Give the length of the longest vector among values; numbers have one lane."""
    kinds = [each.type for each in values if isinstance(each, Expr)]
    return max((each.dtype.lanes for each in kinds if isinstance(each, ScalarType)), default=1)


def shuffle(
    sources: Sequence[Expr], places: Sequence[int], location: Location | None = None
) -> Expr:
    """Take elements of vectors and numbers of one element type, laid end to end.

    What is itself a shuffle is looked through; a vector that is taken whole is given as it is.
    """
    elements = [(each, lane) for each in sources for lane in range(each.dtype.lanes)]
    taken = [_origin(*elements[place]) for place in places]
    first, _ = taken[0]
    kind = first.dtype.scalar.vector(len(places))
    if first.dtype == kind and all(
        _key(source) == _key(first) and lane == at for at, (source, lane) in enumerate(taken)
    ):
        return first
    whole = {_key(source): source for source, _ in taken}
    ends = accumulate((each.dtype.lanes for each in whole.values()), initial=0)
    starts = dict(zip(whole, ends, strict=False))
    chosen = tuple(starts[_key(source)] + lane for source, lane in taken)
    return Shuffle(tuple(whole.values()), chosen, ScalarType(kind), location=location)


def _key(source: Expr) -> Expr | int:
    """Tell sources apart: what is computed anew each time is never the same."""
    same = isinstance(source, Var | Constant) or source.dtype.lanes > 1
    return source if same else id(source)


def _origin(source: Expr, lane: int) -> tuple[Expr, int]:
    while isinstance(source, Shuffle):
        elements = [(each, at) for each in source.sources for at in range(each.dtype.lanes)]
        source, lane = elements[source.places[lane]]
    return source, lane


def broadcast(value: Expr, lanes: int, location: Location | None = None) -> Expr:
    """Make a vector of equal elements of a number."""
    return shuffle((value,), (0,) * lanes, location)


def lanewise(
    function: Callable[..., Expr],
    location: Location | None,
    *values: Operand,
    lanes: int | None = None,
) -> Expr:
    """Apply a function of numbers to each element of vectors; numbers go with all of them.

    The function takes `location` by keyword. `lanes` is the length of the result, by default that
    of the vectors. Raises `FrontendError` (`type-mismatch`) for vectors of other lengths.
    """
    count = lanes_of(*values) if lanes is None else lanes
    lengths = [lanes_of(each) for each in values]
    if any(each not in (1, count) for each in lengths):
        raise FrontendError(
            "vectors of different lengths do not go together",
            code="type-mismatch",
            location=location,
            expected="vectors of one length, or a number",
            found=" and ".join(map(str, sorted({*lengths, count} - {1}))) + " elements",
        )

    def element(value: Operand, lane: int) -> Operand:
        if isinstance(value, Expr) and value.dtype.lanes > 1:
            return shuffle((value,), (lane,))
        return value

    found = [
        function(*(element(each, lane) for each in values), location=location)
        for lane in range(count)
    ]
    return shuffle(found, range(count), location)


def _fits(value: int, dtype: DType) -> bool:
    return wrap(value, dtype) == value


def located(node: AnyExpr, location: Location | None) -> AnyExpr:
    """Give a node a location, if it has none."""
    if location is None or node.location is not None:
        return node
    given: Any = node
    return replace(given, location=location)
