"""Functions of numbers that the tile dialect spells in its own way.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend import math
from tilewright.frontend.builder import argument_place, here
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.values import Value, as_dtype, lift, wrap
from tilewright.ir.expressions import as_constant, binary, truth, unary


def cast(value: Any, dtype: Any, round: Any = None, sat: Any = None, rbits: Any = None) -> Any:
    """Convert a value to an element type, rounded to nearest.

    Raises `FrontendError` (`not-supported`) for another way to round.
    """
    if (round not in (None, "rn", "rni")) or rbits is not None:
        raise FrontendError(
            "conversions round to nearest only",
            code="not-supported",
            location=argument_place("round", 2),
            expected='round=None or "rn"',
            found=repr(round),
        )
    return math.cast(value, dtype)


def cast_to(dtype: Any, value: Any) -> Any:
    """Convert a value to an element type, which is named first."""
    return math.cast(value, dtype)


def reinterpret(value: Any, dtype: Any) -> Any:
    """Take the bits of a value as another type of the same width, in either order of arguments."""
    if isinstance(dtype, Value) or not isinstance(value, Value | int | float):
        value, dtype = dtype, value
    return math.reinterpret(value, as_dtype(dtype))


def clamp(dst: Any, min_val: Any, max_val: Any) -> Any:
    """Bring a number into a range."""
    return math.FUNCTIONS["min"](math.FUNCTIONS["max"](dst, min_val), max_val)


def align_up(x: Any, y: Any) -> Any:
    """Round up to a multiple."""
    return math.ceildiv(x, y) * y


def quotient(x: Any, y: Any) -> Any:
    """Divide a number by another."""
    return x / y


def fast_rcp(x: Any) -> Any:
    """Divide 1 by a number."""
    return 1.0 / x


def product(x: Any, y: Any) -> Any:
    """Multiply two numbers, rounded by itself."""
    return math.no_contract(lift_value(x) * y)


def lift_value(x: Any) -> Any:
    """Make a value of the kernel of a number."""
    return x if isinstance(x, Value) else wrap(lift(x))


def exactly(op: str) -> Callable[..., Any]:
    """Make an operation of IEEE 754; it rounds to nearest."""

    def apply(*values: Any) -> Any:
        *operands, mode = values if isinstance(values[-1], str) else (*values, "rn")
        if mode != "rn":
            raise FrontendError(
                "operations round to nearest only",
                code="not-supported",
                location=argument_place("rounding_mode", len(operands)),
                expected='"rn"',
                found=repr(mode),
            )
        return math.no_contract(_IEEE[op](*map(lift_value, operands)))

    def call(*operands: Any, rounding_mode: str = "rn") -> Any:
        return apply(*operands) if rounding_mode == "rn" else apply(*operands, rounding_mode)

    call.__name__, call.__doc__ = f"ieee_{op}", f"Compute {op} as IEEE 754 says."
    return call


_IEEE: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "fdiv": quotient,
    "fmaf": math.fma,
    "frcp": fast_rcp,
    "fsqrt": math.FUNCTIONS["sqrt"],
    "frsqrt": math.FUNCTIONS["rsqrt"],
}


def _joined(op: str, empty: bool) -> Callable[[Any], Any]:
    def test(buffer: Any) -> Any:
        if not isinstance(buffer, Tensor):
            return buffer
        shape = [as_constant(each) for each in buffer.type.shape]
        if None in shape or any(each != 1 for each in shape[:-1]):
            raise FrontendError(
                "the elements of one row are tested",
                code="operand-type",
                location=argument_place(0),
                expected="a slice of a buffer of constant extents",
                found=str(buffer.expr.type),
            )
        found: Any = None
        lead = [0] * (len(shape) - 1)
        tensor = buffer.view(*[int(each) for each in shape if each is not None])
        for at in range(int(shape[-1] or 0)):
            each = truth(lift(Tensor.at(Tensor(tensor.expr), (*lead, at))), here())
            found = each if found is None else binary(op, found, each, here())
        return wrap(found) if found is not None else empty

    return test


def joined(op: str) -> Callable[[Any, Any], Any]:
    """Make a logical operation of two conditions."""

    def join(a: Any, b: Any) -> Any:
        left, right = (truth(lift(each), here()) for each in (a, b))
        return wrap(binary(op, left, right, here()))

    join.__name__, join.__doc__ = op, f"Compute {op} of two conditions."
    return join


def negated(a: Any) -> Any:
    """Tell whether a condition does not hold."""
    return wrap(unary("not", truth(lift(a), here()), here()))


def loaded(place: Any, index: Any = None) -> Any:
    """Read an element of memory that nothing writes meanwhile."""
    return place if index is None else place[index]


def linear_index(*given: Any) -> Any:
    """Number an element row by row: its indices, and the extents after the first axis."""
    count = (len(given) + 1) // 2
    indices, extents = given[:count], given[count:]
    found = indices[0]
    for index, extent in zip(indices[1:], extents, strict=True):
        found = found * extent + index
    return found


def constant_of(value: Any, dtype: Any = None) -> Any:
    """Make a number of a type, by default that which the number has by itself."""
    return lift_value(value) if dtype is None else math.cast(value, dtype)


FUNCTIONS: dict[str, Any] = {
    "cast": cast,
    "Cast": cast_to,
    "reinterpret": reinterpret,
    "Select": math.select,
    "clamp": clamp,
    "cdiv": math.ceildiv,
    "align_up": align_up,
    "fmul": product,
    "fast_rcp": fast_rcp,
    "And": joined("logical_and"),
    "Or": joined("logical_or"),
    "Not": negated,
    "any_of": _joined("logical_or", False),
    "all_of": _joined("logical_and", True),
    "__ldg": loaded,
    "linear_index": linear_index,
    **{f"__{name}": math.FUNCTIONS[name] for name in ("exp", "exp10", "log", "log2", "log10")},
    **{f"__{name}": math.FUNCTIONS[name] for name in ("sin", "cos", "tan")},
    **{f"ieee_{op}": exactly(op) for op in _IEEE},
    "power": math.FUNCTIONS["pow"],
}
