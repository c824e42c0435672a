"""Random integer expressions over bounded variables, and their values."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from tilewright.base.dtypes import BOOL, INT32, INT64, UINT8, UINT32, DType
from tilewright.ir.expressions import (
    Binary,
    Cast,
    Constant,
    Expr,
    Intrinsic,
    Select,
    Unary,
    Var,
    binary,
    cast,
    constant,
    select,
    unary,
    wrap,
)
from tilewright.ir.types import ScalarType
from tilewright.passes.analysis.facts import Fact, congruent
from tilewright.passes.analysis.ranges import Ranges

# Variables: their type and what is known of them.
KNOWN: dict[str, tuple[DType, Fact]] = {
    "lane": (INT32, Fact(0, 31)),
    "warp": (INT32, Fact(0, 3)),
    "small": (INT32, Fact(0, 7)),
    "eights": (INT32, congruent(-64, 120, 8, 0)),
    "odd": (INT32, congruent(-7, 33, 4, 1)),
    "any": (INT32, Fact(-(2**31), 2**31 - 1)),
    "word": (UINT32, Fact(0, 2**32 - 1)),
    "short": (UINT32, Fact(0, 100)),
    "byte": (UINT8, Fact(0, 255)),
    "long": (INT64, Fact(-(2**40), 2**40)),
    "flag": (BOOL, Fact(0, 1)),
}
VARIABLES = {name: Var(name, ScalarType(dtype)) for name, (dtype, _) in KNOWN.items()}
RANGES = Ranges({name: fact for name, (_, fact) in KNOWN.items()})
_OPERATIONS = (
    *("add", "sub", "mul", "floordiv", "mod", "truncdiv", "truncmod", "min", "max"),
    *("and", "or", "xor", "shl", "shr", "add", "mul", "floordiv", "mod", "and", "shr"),
)
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 31, 32, 33, 64, 127, 1000, -1, -8])


def _value(name: str) -> st.SearchStrategy[int]:
    fact = KNOWN[name][1]
    near = st.sampled_from([fact.low, fact.high, 0, 1, 5, 7, 8])
    number = st.one_of(st.integers(fact.low, fact.high), near)
    return number.map(lambda v: v - (v - fact.residue) % fact.modulus).filter(
        lambda v: fact.low <= v <= fact.high
    )


def environments() -> st.SearchStrategy[dict[str, int]]:
    """Draw a value that the facts allow for each variable."""
    return st.fixed_dictionaries({name: _value(name) for name in KNOWN})


_LEAVES = st.one_of(
    st.sampled_from([var for var in VARIABLES.values() if not var.dtype.is_bool]),
    _NUMBERS.map(lambda value: constant(value, INT32)),
)
_KINDS = st.sampled_from(["leaf", "binary", "number", "number", "select", "unary", "cast", "bool"])


@st.composite
def expressions(draw: st.DrawFn, depth: int = 5) -> Expr:
    """Draw an integer expression."""
    kind = draw(_KINDS) if depth else "leaf"
    if kind == "leaf":
        return draw(_LEAVES)
    inner = draw(expressions(depth - 1))
    match kind:
        case "binary":
            return binary(draw(st.sampled_from(_OPERATIONS)), inner, draw(expressions(depth - 1)))
        case "number":
            return binary(draw(st.sampled_from(_OPERATIONS)), inner, draw(_NUMBERS))
        case "select":
            return select(draw(_conditions(depth - 1)), inner, draw(expressions(depth - 1)))
        case "unary":
            return unary(draw(st.sampled_from(["neg", "invert"])), inner)
        case "cast":
            return cast(inner, draw(st.sampled_from([INT32, UINT32, INT64, UINT8])))
        case _:
            return cast(draw(_conditions(depth - 1)), INT32)


@st.composite
def _conditions(draw: st.DrawFn, depth: int) -> Expr:
    left, right = draw(expressions(depth)), draw(st.one_of(expressions(depth), _NUMBERS))
    compared = binary(draw(st.sampled_from(_COMPARISONS)), left, right)
    return unary("not", compared) if draw(st.booleans()) else compared


class Undefined(Exception):
    """A division by zero."""


def evaluate(expr: Expr, values: Mapping[str, int]) -> int:
    """Compute the value of an expression, as the IR defines it."""
    match expr:
        case Constant():
            return int(expr.value)
        case Var():
            return values[expr.name]
        case Select():
            chosen = expr.true if evaluate(expr.condition, values) else expr.false
            return evaluate(chosen, values)
        case Cast():
            return _into(evaluate(expr.operand, values), expr.dtype)
        case Unary():
            operand = evaluate(expr.operand, values)
            results = {"neg": -operand, "invert": ~operand, "not": int(not operand)}
            return _into(results[expr.op], expr.dtype)
        case Binary():
            left, right = evaluate(expr.left, values), evaluate(expr.right, values)
            return _into(_compute(expr.op, left, right, expr.left.dtype), expr.dtype)
        case Intrinsic():
            raise NotImplementedError
        case _:
            raise AssertionError(expr)


def _into(value: int, dtype: DType) -> int:
    return int(bool(value)) if dtype.is_bool else wrap(value, dtype)


def _compute(op: str, a: int, b: int, dtype: DType) -> int:
    if op in ("floordiv", "mod", "truncdiv", "truncmod") and b == 0:
        raise Undefined
    count = b if 0 <= b < dtype.bits else dtype.bits
    quotient = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    results = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "floordiv": lambda: a // b,
        "mod": lambda: a % b,
        "truncdiv": lambda: quotient,
        "truncmod": lambda: a - b * quotient,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "shl": lambda: a << count,
        "shr": lambda: a >> count,
        "lt": lambda: a < b,
        "le": lambda: a <= b,
        "gt": lambda: a > b,
        "ge": lambda: a >= b,
        "eq": lambda: a == b,
        "ne": lambda: a != b,
        "logical_and": lambda: bool(a and b),
        "logical_or": lambda: bool(a or b),
    }
    return int(results[op]())
