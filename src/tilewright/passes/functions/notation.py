"""How the functions are written down: short names for IR, and where its statements go.

May import `base` and `ir`. A function is given `Steps` and its operands, float32 or float64, and
returns its value; what it uses more than once it binds to a name.

    def square_sum(steps, x, y):
        a = steps("a", x * x)
        return fma(y, y, a) + a
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.base.dtypes import FLOAT32, FLOAT64, INT32, INT64, DType
from tilewright.base.locations import Location
from tilewright.ir.expressions import (
    Bitcast,
    Constant,
    Expr,
    Intrinsic,
    Operand,
    Var,
    binary,
    cast,
    constant,
    select,
    unary,
)
from tilewright.ir.statements import Assign, Bind, Block, Declare, If, Stmt, While
from tilewright.ir.types import ScalarType

INFINITY = float("inf")


class Steps:
    """The statements of an expansion, in order; `steps(label, value)` names a value.

    `fresh` makes a variable that nothing else is called as; names begin with that of the
    `function`. Statements are appended to `block`, which `when` and `turns` exchange for a while.
    """

    def __init__(
        self,
        function: str,
        fresh: Callable[[str, ScalarType], Var],
        block: list[Stmt],
        location: Location | None,
    ) -> None:
        self.function = function
        self.fresh = fresh
        self.block = block
        self.location = location

    def __call__(self, label: str, value: Expr) -> Expr:
        """Bind a value to a name, so that it is computed once."""
        if isinstance(value, Constant | Var):
            return value
        var = self._variable(label, value)
        self.block.append(Bind(var, value, location=self.location))
        return var

    def cell(self, label: str, value: Expr) -> Var:
        """Declare a cell that can be assigned to."""
        var = self._variable(label, value)
        self.block.append(Declare(var, value, location=self.location))
        return var

    def assign(self, cell: Var, value: Expr) -> None:
        """Assign to a cell."""
        self.block.append(Assign(cell, value, location=self.location))

    @contextmanager
    def when(self, condition: Expr) -> Generator[None]:
        """Run the steps inside only where a condition holds."""
        with self._inside() as found:
            yield
        self.block.append(If(condition, tuple(found), location=self.location))

    @contextmanager
    def turns(self, condition: Expr) -> Generator[None]:
        """Repeat the steps inside while a condition holds."""
        with self._inside() as found:
            yield
        body: Block = tuple(found)
        self.block.append(While(condition, body, location=self.location))

    @contextmanager
    def _inside(self) -> Generator[list[Stmt]]:
        outer, self.block = self.block, list[Stmt]()
        try:
            yield self.block
        finally:
            self.block = outer

    def _variable(self, label: str, value: Expr) -> Var:
        assert isinstance(value.type, ScalarType)
        return self.fresh(f"{self.function}_{label}", value.type)


Function = Callable[..., Expr]


# ---------------------------------------------------------------------------- the bits of a float


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of float32 or float64, and the integer type of the same width."""

    dtype: DType
    bits: DType
    fraction: int
    bias: int
    nan: int  # the bits of the one NaN that functions give

    @property
    def precision(self) -> int:
        """Count the bits of a number, the hidden one included."""
        return self.fraction + 1

    @property
    def smallest(self) -> float:
        """Give the smallest normal number."""
        return 2.0 ** (1 - self.bias)

    def tolerance(self, value: float = 1.0) -> float:
        """Give an eighth of a unit in the last place of a number just below 2 × `value`."""
        return value * 2.0 ** -(self.precision + 2)


_LAYOUTS = {
    FLOAT32: Layout(FLOAT32, INT32, 23, 127, 0x7FFFFFFF),
    FLOAT64: Layout(FLOAT64, INT64, 52, 1023, 0x7FF8 << 48),
}


def layout(x: Expr) -> Layout:
    """Describe the type of an operand."""
    return _LAYOUTS[x.dtype]


def bits_of(x: Expr) -> Expr:
    """Take a float's bits as a signed integer."""
    return Bitcast(x, ScalarType(layout(x).bits))


def from_bits(bits: Expr) -> Expr:
    """Take a signed integer's bits as a float."""
    dtype = FLOAT32 if bits.dtype == INT32 else FLOAT64
    return Bitcast(bits, ScalarType(dtype))


def power_of_two(exponent: Expr, x: Expr) -> Expr:
    """Make 2 ** exponent of the type of x, of an integer within the normal range."""
    fields = layout(x)
    return from_bits((cast(exponent, fields.bits) + fields.bias) << fields.fraction)


# ---------------------------------------------------------------------------- expressions


def number(value: float, x: Expr) -> Expr:
    """Make a constant of the type of x."""
    return constant(value, x.dtype)


def no_number(x: Expr) -> Expr:
    """Make a NaN of the type of x."""
    return from_bits(constant(layout(x).nan, layout(x).bits))


def call(name: str, *operands: Expr) -> Expr:
    """Apply a primitive."""
    return Intrinsic(name, operands, operands[0].type)


def fma(a: Operand, b: Operand, c: Operand) -> Expr:
    """Compute a b + c, rounded once; at least one is an expression."""
    known = next(each for each in (a, b, c) if isinstance(each, Expr))
    lifted = (each if isinstance(each, Expr) else number(each, known) for each in (a, b, c))
    return call("fma", *lifted)


def magnitude(x: Expr) -> Expr:
    """Take the absolute value."""
    return call("abs", x)


def with_sign(value: Expr, x: Expr) -> Expr:
    """Give a value the sign of x."""
    return call("copysign", value, x)


def choose(condition: Expr, true: Operand, false: Operand) -> Expr:
    """Choose one of two values, at least one of which is an expression."""
    return select(condition, true, false)


def both(left: Expr, right: Expr) -> Expr:
    """Tell whether two conditions hold."""
    return binary("logical_and", left, right)


def either(left: Expr, right: Expr) -> Expr:
    """Tell whether one of two conditions holds."""
    return binary("logical_or", left, right)


def negation(condition: Expr) -> Expr:
    """Tell whether a condition does not hold."""
    return unary("not", condition)


def equal(left: Expr, right: Operand) -> Expr:
    """Compare for equality."""
    return binary("eq", left, right)


def less(left: Expr, right: Operand) -> Expr:
    """Tell whether the left one is less; with a NaN it is not."""
    return binary("lt", left, right)


def greater(left: Expr, right: Operand) -> Expr:
    """Tell whether the left one is greater; with a NaN it is not."""
    return binary("gt", left, right)


def at_least(left: Expr, right: Operand) -> Expr:
    """Tell whether the left one is not less; with a NaN it is not."""
    return binary("ge", left, right)


def is_nan(x: Expr) -> Expr:
    """Tell a NaN."""
    return binary("ne", x, x)


def clamped(steps: Steps, x: Expr, low: float, high: float) -> Expr:
    """Bring a number between two bounds; NaN stays."""
    x = steps("x", x)
    return steps("x", choose(greater(x, high), high, choose(less(x, low), low, x)))


def series(steps: Steps, x: Expr, coefficients: list[float]) -> Expr:
    """Evaluate a polynomial, by Horner's rule; each step has a name, so that none is repeated."""
    total: Expr = number(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        total = steps("sum", fma(total, x, coefficient))
    return total


def nearest(steps: Steps, x: Expr) -> Expr:
    """Round to an integer."""
    return steps("n", call("nearbyint", x))


def scaled(steps: Steps, value: Expr, n: Expr) -> Expr:
    """Multiply by 2 ** n, in two steps, so that only the last may round.

    |n| is at most twice the largest exponent.
    """
    power = steps("power", cast(n, INT32))
    half = steps("half", power >> 1)
    return value * power_of_two(half, value) * power_of_two(power - half, value)
