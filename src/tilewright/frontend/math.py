"""The part of the dialect that computes: conversions, choices, functions of numbers.

May import `base`, `ir` and the modules of this folder below it. Where all arguments are Python
numbers, what Python can compute exactly is computed now.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import ml_dtypes

from tilewright.base.dtypes import BOOL, FLOAT32, INT32, UINT8, DType
from tilewright.base.errors import FrontendError
from tilewright.base.narrow import format_of
from tilewright.frontend.annotations import PointerKind
from tilewright.frontend.builder import here
from tilewright.frontend.values import (
    Value,
    as_dtype,
    as_tuple,
    as_vector,
    has_infinity,
    lift,
    operand,
    operate,
    wrap,
)
from tilewright.ir import expressions as ir
from tilewright.ir.expressions import Bitcast, Expr, Intrinsic
from tilewright.ir.types import ScalarType, bits_of

# Functions of one number, of the number's own type if that is floating, else of float32.
UNARY = (
    *("ceil", "floor", "round", "trunc", "nearbyint", "sqrt", "rsqrt", "cbrt", "exp", "exp2"),
    *("exp10", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos"),
    *("atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid"),
)
# Functions of two numbers, brought to one floating type.
BINARY = ("pow", "atan2", "fmod", "hypot", "copysign", "nextafter")
TESTS = ("isnan", "isinf", "isfinite")
COUNTS = ("popcount", "clz")
OPERATIONS = {
    "floordiv": "floordiv",
    "floormod": "mod",
    "truncdiv": "truncdiv",
    "truncmod": "truncmod",
    "min": "min",
    "max": "max",
    "shift_left": "shl",
    "shift_right": "shr",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
}


_STATED = "; its error is stated in docs/functions.md"


def _float(value: Any, other: DType | None = None) -> Expr:
    """Make a floating expression."""
    found = lift(value, other)
    _scalar(found)
    return found if found.dtype.is_float else ir.cast(found, FLOAT32, here())


def _scalar(value: Expr) -> None:
    if not isinstance(value.type, ScalarType) or value.dtype.lanes != 1:
        raise FrontendError(
            "a number is expected",
            code="type-mismatch",
            location=here(),
            found=str(value.type),
        )


def _named(function: Callable[..., Any], name: str, summary: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = summary
    return function


def unary_function(name: str) -> Callable[[Any], Any]:
    """Make a function of one number."""

    def apply(x: Any) -> Any:
        value = _float(x)
        return wrap(Intrinsic(name, (value,), value.type, location=here()))

    return _named(apply, name, f"Compute {name} of a number{_STATED}.")


def binary_function(name: str) -> Callable[[Any, Any], Any]:
    """Make a function of two numbers."""

    def apply(x: Any, y: Any) -> Any:
        operands = _brought_together(x, y)
        return wrap(Intrinsic(name, operands, operands[0].type, location=here()))

    return _named(apply, name, f"Compute {name} of two numbers{_STATED}.")


def _brought_together(*values: Any) -> tuple[Expr, ...]:
    known = [value for value in values if isinstance(value, Value)]
    literal = known[0].expr.dtype if known else None
    lifted = [_float(value, literal) for value in values]
    dtype = lifted[0].dtype
    for each in lifted[1:]:
        dtype = ir.promote(dtype, each.dtype)
    return tuple(ir.cast(each, dtype, here()) for each in lifted)


def test_function(name: str) -> Callable[[Any], Any]:
    """Make a function that tests a floating number."""

    def apply(x: Any) -> Any:
        return wrap(Intrinsic(name, (_float(x),), ScalarType(BOOL), location=here()))

    return _named(apply, name, f"Tell {name} of a number.")


def count_function(name: str) -> Callable[[Any], Any]:
    """Make a function that counts bits of an integer."""

    def apply(x: Any) -> Any:
        value = lift(x)
        counted = isinstance(value.type, ScalarType) and value.dtype.is_integer
        if not counted or value.dtype.bits > 64 or value.dtype.lanes != 1:
            raise FrontendError(
                f"{name} counts bits of an integer",
                code="type-mismatch",
                location=here(),
                expected="an integer of at most 64 bits",
                found=str(value.type),
            )
        return wrap(Intrinsic(name, (value,), ScalarType(INT32), location=here()))

    return _named(apply, name, f"Compute {name} of an integer.")


def operation(name: str, op: str) -> Callable[[Any, Any], Any]:
    """Make a function of an operation of the IR."""

    def apply(x: Any, y: Any) -> Any:
        if isinstance(x, Value) or isinstance(y, Value):
            return operate(op, x, y)
        folded = ir.binary(op, lift(x), lift(y), here())
        number = ir.as_constant(folded)
        if number is not None and not isinstance(number, float):
            return number
        if op in ("min", "max"):
            choose: Any = min if op == "min" else max
            return choose(operand(x), operand(y))
        return wrap(folded)

    return _named(apply, name, f"Apply {name} to two numbers.")


def extremum(name: str) -> Callable[..., Any]:
    """Make `min` or `max`, of two numbers or more."""
    pair = operation(name, name)

    def apply(first: Any, second: Any, *more: Any) -> Any:
        result = pair(first, second)
        for each in more:
            result = pair(result, each)
        return result

    return _named(apply, name, f"Give the {name} of two numbers or more.")


def absolute(x: Any) -> Any:
    """Give the absolute value of a number."""
    if not isinstance(x, Value):
        return abs(x)
    _scalar(x.expr)
    return abs(x)


def fma(a: Any, b: Any, c: Any) -> Any:
    """Compute a * b + c, rounded once."""
    operands = _brought_together(a, b, c)
    return wrap(Intrinsic("fma", operands, operands[0].type, location=here()))


def ldexp(x: Any, exponent: Any) -> Any:
    """Compute x times 2 to the power of an integer."""
    value = _float(x)
    power = ir.cast(lift(exponent), INT32, here())
    return wrap(Intrinsic("ldexp", (value, power), value.type, location=here()))


def ceildiv(x: Any, y: Any) -> Any:
    """Divide, rounding up; integers by positive ones."""
    if not isinstance(x, Value) and not isinstance(y, Value):
        return -(-x // y)
    kind = operate("add", x, y).expr.dtype
    if kind.is_float:
        return -operate("floordiv", -wrap(ir.cast(lift(x, kind), kind, here())), y)
    return operate("floordiv", operate("sub", operate("add", x, y), 1), y)


def select(condition: Any, true: Any, false: Any) -> Any:
    """Choose one of two values by a condition."""
    if not isinstance(condition, Value):
        return true if condition else false
    choice = as_vector(condition.expr)
    return wrap(ir.select(choice, operand(true), operand(false), here()))


def cast(value: Any, dtype: Any) -> Any:
    """Convert a value to an element type."""
    kind = as_dtype(dtype)
    found = lift(value, kind, converts=True)
    if not isinstance(found.type, ScalarType):
        _scalar(found)
    return wrap(ir.cast(as_vector(found), kind, here()))


def reinterpret(value: Any, ty: Any = None, *, ty_args: Any = None) -> Any:
    """Take the bits of a value as another type of the same width: an element type, or `T.Ptr`."""
    kind = ty if ty_args is None else as_tuple(ty_args)[0]
    if isinstance(value, str) and not isinstance(kind, str):
        value, kind = kind, typing.cast("Any", value)
    target = kind.type if isinstance(kind, PointerKind) else ScalarType(as_dtype(kind))
    found = lift(value)
    have, want = bits_of(found.type), bits_of(target)
    if have is None or have != want:
        raise FrontendError(
            "bits are reinterpreted as a type of another width",
            code="type-mismatch",
            location=here(),
            expected="a number or a pointer" if have is None else f"a type of {have} bits",
            found=str(found.type) if have is None else f"{target}, {want} bits",
        )
    return wrap(found if found.type == target else Bitcast(found, target, location=here()))


def bitwise_not(x: Any) -> Any:
    """Invert the bits of an integer."""
    return ~x


def infinity(dtype: Any = "float32") -> Any:
    """Give the infinity of a floating type."""
    kind = as_dtype(dtype)
    format = format_of(kind)
    if not has_infinity(kind):
        raise FrontendError(
            f"{kind} has no infinity",
            code="type-mismatch",
            location=here(),
            expected="a floating type with infinities",
            found=str(kind),
        )
    if format is None or not format.saturates:
        return wrap(ir.constant(float("inf"), kind, here()))
    # A literal is converted, and conversions saturate.
    bits = ir.constant(format.infinity, UINT8, here())
    return wrap(Bitcast(bits, ScalarType(kind), location=here()))


def _limits(dtype: Any) -> tuple[DType, float, float]:
    kind = as_dtype(dtype)
    if kind.is_integer:
        top = (1 << (kind.bits - (kind.kind == "int"))) - 1
        return kind, (-top - 1 if kind.kind == "int" else 0), top
    # `ml_dtypes` describes its own types and NumPy's.
    info = typing.cast("Any", ml_dtypes.finfo(kind.numpy))
    return kind, float(info.min), float(info.max)


def min_value(dtype: Any) -> Any:
    """Give the lowest finite value of an element type."""
    kind, low, _ = _limits(dtype)
    return wrap(ir.constant(low, kind, here()))


def max_value(dtype: Any) -> Any:
    """Give the highest finite value of an element type."""
    kind, _, high = _limits(dtype)
    return wrap(ir.constant(high, kind, here()))


def no_contract(x: Any) -> Any:
    """Give a number as it is, rounded: it is not contracted into a multiply-add."""
    value = lift(x)
    _scalar(value)
    return wrap(Intrinsic("no_contract", (value,), value.type, location=here()))


def likely(condition: Any) -> Any:
    """Give the condition itself; it is expected to hold."""
    return condition


FUNCTIONS: dict[str, Any] = {
    **{name: unary_function(name) for name in UNARY},
    **{name: binary_function(name) for name in BINARY},
    **{name: test_function(name) for name in TESTS},
    **{name: count_function(name) for name in COUNTS},
    **{name: operation(name, op) for name, op in OPERATIONS.items()},
    "min": extremum("min"),
    "max": extremum("max"),
    "abs": absolute,
    "fma": fma,
    "ldexp": ldexp,
    "bitwise_not": bitwise_not,
    "ceildiv": ceildiv,
    "select": select,
    "if_then_else": select,
    "cast": cast,
    "reinterpret": reinterpret,
    "infinity": infinity,
    "min_value": min_value,
    "max_value": max_value,
    "likely": likely,
    "no_contract": no_contract,
}
