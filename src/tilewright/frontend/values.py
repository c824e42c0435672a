"""Values of a kernel as the Python code that is read meets them: wrappers of IR expressions.

May import `base`, `ir` and the modules of this folder below it. Operators build expressions,
at the place that is being read; nothing has a truth value, so Python code that needs one says
so at once.

    >>> wrap(x) + 1
    <int32 value x + 1>
"""

from __future__ import annotations

import math
import numbers
import reprlib
import sys
import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.base.dtypes import INT32, DType, dtype, from_numpy
from tilewright.base.errors import FrontendError
from tilewright.base.lazy import optional
from tilewright.base.locations import Location
from tilewright.base.narrow import format_of, overflows
from tilewright.frontend.builder import active, here
from tilewright.frontend.markers import MetaValue
from tilewright.ir.expressions import (
    Bitcast,
    Constant,
    Expr,
    Intrinsic,
    Operand,
    Shuffle,
    Var,
    as_constant,
    as_expr,
    binary,
    cast,
    default_dtype,
    lanes_of,
    lanewise,
    unary,
)
from tilewright.ir.expressions import wrap as wrapped
from tilewright.ir.types import ScalarType, TensorMapType

# Operations whose literals stand for bits, not for numbers.
_BITWISE = ("and", "or", "xor", "eq", "ne", "shl", "shr")


class ScalarKind(str):
    """An element type as programs write it: `T.int32(x)`, `x: T.int32`, `v: T.float32[4]`.

    It is its name, too, so that other libraries take it for that: `getattr(torch, T.float16)`.
    """

    __slots__ = ("dtype",)
    dtype: DType

    def __new__(cls, dtype: DType) -> ScalarKind:
        found = super().__new__(cls, dtype.name)
        found.dtype = dtype
        return found

    def __getnewargs__(self) -> Any:
        return (self.dtype,)

    def __call__(self, value: Any = 0) -> Value:
        if isinstance(value, str):
            return wrap(as_expr(float(value), self.dtype))
        return wrap(cast(lift(value, self.dtype, converts=True), self.dtype, here()))

    def __getitem__(self, count: Any) -> Any:
        extents: tuple[int, ...] = as_tuple(count)
        return VectorKind(self.dtype, extents)

    def __eq__(self, other: object) -> bool:
        return as_dtype_or_none(other) == self.dtype

    def __hash__(self) -> int:
        return hash(self.dtype.name)  # as that of the name, which it is equal to

    def __getattr__(self, name: str) -> Any:
        # `bits`, `bytes`, `lanes`, `is_float`, … are the element type's own.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.dtype, name)

    @property
    def itemsize(self) -> int:
        """Count the bytes of one element."""
        return self.dtype.bytes

    @property
    def is_floating_point(self) -> bool:
        """Tell floating formats."""
        return self.dtype.is_float

    def as_torch(self) -> Any:
        """Give PyTorch's type of that name; for numbers of four bits, that of two of them.

        Raises `TargetError` (`missing-tool`) without PyTorch.
        """
        name = f"{self.dtype.name}_x2" if self.dtype.bits == 4 else self.dtype.name
        return getattr(optional("torch", purpose="name its types"), name)

    def __repr__(self) -> str:
        return f"T.{self.dtype}"

    def __str__(self) -> str:
        return self.dtype.name


class VectorKind:
    """A local array as an annotation: `v: T.float32[4]`."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape


def hardware_type(kind: DType) -> DType:
    """Give what programs of a lenient dialect mean by an element type.

    They call the only format of four and three bits that the hardware has "float8_e4m3".
    """
    return replace(kind, base="float8_e4m3fn") if kind.base == "float8_e4m3" else kind


def as_dtype_or_none(value: object) -> DType | None:
    """Find the element type that a value names, or `None`."""
    match value:
        case ScalarKind():
            return value.dtype
        case DType():
            return value
        case str():
            try:
                found = dtype(value)
            except FrontendError:
                return None
            builder = active()
            return hardware_type(found) if builder is not None and builder.lenient else found
        case type() if value in (int, float, bool):
            return dtype(value.__name__)
        case _ if type(value).__module__ == "torch":
            return as_dtype_or_none(str(value).removeprefix("torch."))
        case np.dtype():
            return from_numpy(value)
        case type() if issubclass(value, np.generic):
            return from_numpy(np.dtype(typing.cast("Any", value)))
        case _:
            return None


def as_dtype(value: object) -> DType:
    """Find the element type that a value names: text, `T.float16`, or a type itself.

    Raises `FrontendError` (`unknown-name`) if it names none.
    """
    found = as_dtype_or_none(value)
    return found if found is not None else dtype(str(value))


# The type of an expression: what wraps such expressions.
_WRAPPERS: dict[type, type[Value]] = {}


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Give the entries of a tuple or a list; anything else is one entry."""
    if isinstance(value, tuple | list):
        return tuple(typing.cast("list[Any]", value))
    return (value,)


class Value:
    """A value of a kernel; see `Scalar`, `Pointer` and `Tensor`."""

    __slots__ = ("expr",)
    __hash__ = object.__hash__
    expr: Expr

    def __init_subclass__(cls, of: type | None = None) -> None:
        if of is not None:
            _WRAPPERS[of] = cls

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __repr__(self) -> str:
        return f"<{self.expr.type} value {self.expr}>"

    def __bool__(self) -> bool:
        raise not_constant(
            "the truth of this value is not known when the kernel is compiled",
            self.expr,
            hint="an `if` on it belongs into the kernel or a @T.inline function; "
            "in expressions use T.select, T.min, T.max, `and`, `or`",
        )

    def __iter__(self) -> Iterator[Any]:
        raise FrontendError(
            "a value of a kernel cannot be iterated over",
            code="unsupported-expression",
            location=here(),
            found=str(self.expr.type),
            hint="loop over its indices: `for i in range(n)`",
        )

    def __index__(self) -> int:
        value = as_constant(self.expr)
        if value is None:
            raise not_constant("a number is needed when the kernel is compiled", self.expr)
        return int(value)

    def __float__(self) -> float:
        value = as_constant(self.expr)
        if value is None:
            raise not_constant(
                "a number is needed when the kernel is compiled",
                self.expr,
                hint="functions of a kernel's values are the dialect's own: T.exp, T.sqrt, …",
            )
        return float(value)

    def __eq__(self, other: object) -> Any:
        return _compare("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _compare("ne", self, other)

    def __lt__(self, other: Any) -> Value:
        return operate("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return operate("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return operate("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return operate("ge", self, other)

    def __add__(self, other: Any) -> Value:
        return operate("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return operate("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return operate("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return operate("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return operate("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return operate("mul", other, self)

    def __floordiv__(self, other: Any) -> Value:
        return operate("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Value:
        return operate("floordiv", other, self)

    def __truediv__(self, other: Any) -> Value:
        return operate("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return operate("div", other, self)

    def __mod__(self, other: Any) -> Value:
        return operate("mod", self, other)

    def __rmod__(self, other: Any) -> Value:
        return operate("mod", other, self)

    def __and__(self, other: Any) -> Value:
        return operate("and", self, other)

    def __rand__(self, other: Any) -> Value:
        return operate("and", other, self)

    def __or__(self, other: Any) -> Value:
        return operate("or", self, other)

    def __ror__(self, other: Any) -> Value:
        return operate("or", other, self)

    def __xor__(self, other: Any) -> Value:
        return operate("xor", self, other)

    def __rxor__(self, other: Any) -> Value:
        return operate("xor", other, self)

    def __lshift__(self, other: Any) -> Value:
        return operate("shl", self, other)

    def __rlshift__(self, other: Any) -> Value:
        return operate("shl", other, self)

    def __rshift__(self, other: Any) -> Value:
        return operate("shr", self, other)

    def __rrshift__(self, other: Any) -> Value:
        return operate("shr", other, self)

    def __neg__(self) -> Value:
        return wrap(unary("neg", as_vector(self.expr), here()))

    def __pos__(self) -> Value:
        return self

    def __invert__(self) -> Value:
        return wrap(unary("invert", as_vector(self.expr), here()))

    def __abs__(self) -> Value:
        return _function("abs", self.expr)


class Scalar(Value, of=ScalarType):
    """A number, a vector of numbers or a truth value."""

    __slots__ = ()

    @property
    def dtype(self) -> str:
        """Name the element type."""
        return self.expr.dtype.name

    def astype(self, kind: Any) -> Value:
        """Convert to another element type."""
        return wrap(cast(as_vector(self.expr), as_dtype(kind), here()))

    def __pow__(self, other: Any) -> Value:
        return _function("pow", self.expr, cast(lift(other, self.expr.dtype), self.expr.dtype))


class Cell(Scalar):
    """A mutable cell, as the call gives it that declares it: an assignment names the cell."""

    __slots__ = ()


# ---------------------------------------------------------------------------- lifting


def wrap(expr: Expr) -> Any:
    """Wrap an expression for Python code, by its type."""
    given: object = expr.type
    return _WRAPPERS.get(type(given), Value)(expr)


def not_constant(message: str, expr: Expr, **more: Any) -> FrontendError:
    """Describe a value that should have been known when the kernel is compiled."""
    return FrontendError(
        message, code="not-constant", location=here(), found=f"{expr.type} {expr}", **more
    )


def operand(value: Any) -> Operand:
    """Give what the arithmetic of the IR takes: an expression or a Python number.

    Raises `FrontendError` (`type-mismatch`) for anything else.
    """
    match value:
        case Value(expr=Var(type=TensorMapType())):
            raise FrontendError(
                "a tensor map is no number",
                code="type-mismatch",
                location=here(),
                found=str(value.expr),
                hint=f"T.address_of({value.expr}) points at it",
            )
        case Value():
            return value.expr
        case MetaValue():
            return operand(value.value)
        case bool() | np.bool_():
            return bool(value)
        case numbers.Integral():
            return int(value)
        case numbers.Real():
            return float(value)
        case Expr():
            return value
        case _:
            raise FrontendError(
                "this is not a value of a kernel",
                code="type-mismatch",
                location=here(),
                expected="a number, or a value of a kernel",
                found=f"{type(value).__name__} {reprlib.repr(value)}",
            )


def lift(value: Any, literal: DType | None = None, *, converts: bool = False) -> Expr:
    """Make an expression; a Python number gets the type `literal` if that holds its kind.

    Where a program asks for it to be converted, it may be beyond what a floating type holds.
    Raises `FrontendError` (`type-mismatch`) for a literal that is out of range.
    """
    found = operand(value)
    if isinstance(found, Expr):
        return found
    if isinstance(found, float) and literal is not None and not literal.is_float:
        literal = None
    kind = literal or default_dtype(found)
    if not (converts and kind.is_float):
        check_range(found, kind)
    return as_expr(found, literal)


def stored(value: Any, kind: DType) -> Expr:
    """Convert a value to the element type of the place that it goes into.

    Raises `FrontendError` (`type-mismatch`) for what is no number, for a float where integers
    are held, which would lose its fraction, and for a literal that the type does not hold.
    """
    found = operand(value)
    if isinstance(found, Expr) and not isinstance(found.type, ScalarType):
        raise FrontendError(
            "what is assigned here is no number",
            code="type-mismatch",
            location=here(),
            expected=str(kind),
            found=str(found.type),
        )
    is_float = found.dtype.is_float if isinstance(found, Expr) else isinstance(found, float)
    builder = active()
    if is_float and kind.is_integer and builder is not None and builder.lenient:
        return cast(lift(value), kind, here())
    if is_float and kind.is_integer:
        raise FrontendError(
            f"a float does not become {kind} unless a program says so",
            code="type-mismatch",
            location=here(),
            expected=str(kind),
            found=f"{found.type} {found}" if isinstance(found, Expr) else str(found),
            hint=f'T.cast(…, "{kind}") drops the fraction; // divides integers',
        )
    if isinstance(found, Expr):
        return cast(found, kind, here())
    check_range(found, kind, signed=True)
    return as_expr(found, kind)


def check_range(value: Operand, kind: DType, signed: bool = False) -> None:
    """Refuse a literal that a type cannot hold; a float may be infinite.

    Literals that stand for bits may be of either sign; `signed` ones are of the type's own.
    """
    if isinstance(value, Expr | bool):
        return
    if kind.is_float:
        _check_magnitude(value, kind)
    if isinstance(value, float) or not kind.is_integer:
        return
    negative = kind.kind == "int" or not signed
    high = (1 << (kind.bits - (signed and kind.kind == "int"))) - 1
    low = -(1 << (kind.bits - 1)) if negative else 0
    if not low <= value <= high:
        raise FrontendError(
            f"the number {value} is out of the range of {kind}",
            code="type-mismatch",
            location=here(),
            expected=f"{low} … {high}",
            found=str(value),
            hint="write its type, as in T.int64(…)",
        )


def _check_magnitude(value: float, kind: DType) -> None:
    # `ml_dtypes` describes its own types and NumPy's.
    largest = float(typing.cast("Any", ml_dtypes.finfo(kind.numpy)).max)
    if abs(value) <= largest or value in (math.inf, -math.inf) or value != value:
        return
    if abs(value) > sys.float_info.max or overflows(float(value), kind.scalar):
        raise FrontendError(
            f"the number {value} is out of the range of {kind}",
            code="type-mismatch",
            location=here(),
            expected=f"{-largest} … {largest}",
            found=str(value),
            hint=f'T.infinity("{kind}") is infinity' if has_infinity(kind) else None,
        )


def has_infinity(kind: DType) -> bool:
    """Tell the element types that have infinities."""
    format = format_of(kind)
    return kind.is_float and (format is None or format.specials == "ieee")


def _integer_hint(found: Expr) -> str | None:
    if lanes_of(found) > 1:
        return "T.masked_load reads at a vector of indices"
    is_float = isinstance(found.type, ScalarType) and found.dtype.kind == "float"
    return "divide by //, or round up by T.ceildiv" if is_float else None


def lift_index(value: Any, what: str = "an index", where: Location | None = None) -> Expr:
    """Make an integer expression, int32 where it is a literal.

    Raises `FrontendError` (`bad-index`) for what is no integer.
    """
    number = operand(value)
    if isinstance(number, int) and wrapped(number, INT32) != number:
        raise FrontendError(
            f"{what} is out of the range of int32",
            code="bad-index",
            location=where or here(),
            found=str(number),
        )
    found = lift(value)
    if not isinstance(found.type, ScalarType) or not (
        (found.dtype.is_integer or found.dtype.is_bool) and found.dtype.lanes == 1
    ):
        raise FrontendError(
            f"{what} is an integer",
            code="bad-index",
            location=where or here(),
            found=f"{found.type} {found}",
            hint=_integer_hint(found),
        )
    return cast(found, INT32) if found.dtype.is_bool else found


def operate(op: str, left: Any, right: Any) -> Any:
    """Build an operation of two values at the place that is being read."""
    sides = as_vector(operand(left)), as_vector(operand(right))
    for side, other in (sides, sides[::-1]):
        if isinstance(other, Expr) and isinstance(other.type, ScalarType):
            check_range(side, other.dtype, signed=op not in _BITWISE)
    return wrap(binary(op, *sides, here()))


def as_vector(value: Any) -> Any:
    """Bind a vector that is computed or read, for its elements to be taken one by one."""
    builder = active()
    plain = isinstance(value, Var | Shuffle)
    plain |= isinstance(value, Bitcast) and isinstance(value.operand, Var)
    if lanes_of(value) == 1 or plain or builder is None:
        return value
    return builder.bind("vector", value)


def _function(name: str, *operands: Expr) -> Any:
    """Apply a pure function, to vectors element by element."""

    def apply(*values: Expr, location: Location | None) -> Expr:
        return Intrinsic(name, values, values[0].type, location=location)

    return wrap(lanewise(apply, here(), *map(as_vector, operands)))


def _compare(op: str, left: Any, right: Any) -> Any:
    if right is None or isinstance(right, str):
        return op == "ne"
    return operate(op, left, right)


def constant_int(value: Any, what: str) -> int:
    """Read a number that must be known when the kernel is compiled.

    Raises `FrontendError` (`not-constant`).
    """
    found = lift(value)
    number = as_constant(found)
    if number is None or not isinstance(found, Constant) or isinstance(number, float):
        raise not_constant(f"{what} is a constant integer", found)
    return int(number)
