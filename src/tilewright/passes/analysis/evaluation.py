"""Evaluate integer and boolean expressions over many values of their variables at once.

May import `base`, `ir` and NumPy. An environment gives arrays (or numbers) for the variables
and special registers that are known; what depends on others has no value. Conditions are
evaluated to what is possible: an unknown part may be true and may be false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.ir.expressions import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Cast,
    Constant,
    Expr,
    Select,
    SpecialRegister,
    Unary,
    Var,
)

_LIMIT = 1 << 63
Values = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Environment:
    """What is known of names: values of variables and registers, definitions of bindings."""

    variables: Mapping[Var, Any] = field(default_factory=dict[Var, Any])
    registers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    bindings: Mapping[Var, Expr] = field(default_factory=dict[Var, Expr])


def evaluate(value: Expr, environment: Environment) -> Any | None:
    """Evaluate an integer expression; `None` where something in it is unknown.

    The result is an integer or an array that broadcasts with those of the environment.
    Arithmetic is exact, not wrapped: an index that overflows its type is none. A number that
    NumPy's int64 cannot hold is unknown.
    """
    match value:
        case Constant():
            known = None if isinstance(value.value, float) else int(value.value)
            return known if known is not None and abs(known) < _LIMIT else None
        case Var():
            if value in environment.variables:
                return environment.variables[value]
            bound = environment.bindings.get(value)
            return None if bound is None else evaluate(bound, environment)
        case SpecialRegister():
            return environment.registers.get(value.name)
        case Cast():
            return evaluate(value.operand, environment) if value.dtype.is_integer else None
        case Unary(op="neg"):
            operand = evaluate(value.operand, environment)
            return None if operand is None else -operand
        case Binary() if value.op in _ARITHMETIC:
            left = evaluate(value.left, environment)
            right = evaluate(value.right, environment)
            if left is None or right is None:
                return None
            return _ARITHMETIC[value.op](left, right)
        case Select():
            condition = possible(value.condition, environment)
            true: Any = evaluate(value.true, environment)
            false: Any = evaluate(value.false, environment)
            if true is None or false is None or np.any(condition.true & condition.false):
                return None
            return condition.true * true + condition.false * false
        case _:
            return None


@dataclass(frozen=True)
class Possible:
    """Where a condition may hold, and where it may fail to; both where it is unknown."""

    true: Bools
    false: Bools


def possible(condition: Expr, environment: Environment) -> Possible:
    """Evaluate a condition to what is possible under an environment."""
    match condition:
        case Constant():
            return _known(bool(condition.value))
        case Unary(op="not"):
            inner = possible(condition.operand, environment)
            return Possible(inner.false, inner.true)
        case Binary() if condition.op in (*LOGICAL, "and", "or") and condition.dtype.is_bool:
            left = possible(condition.left, environment)
            right = possible(condition.right, environment)
            if condition.op.endswith("and"):
                return Possible(left.true & right.true, left.false | right.false)
            return Possible(left.true | right.true, left.false & right.false)
        case Binary() if condition.op in COMPARISONS:
            left = evaluate(condition.left, environment)
            right = evaluate(condition.right, environment)
            if left is None or right is None:
                return _UNKNOWN
            return _known(_COMPARISONS[condition.op](left, right))
        case Var() if condition in environment.bindings:
            return possible(environment.bindings[condition], environment)
        case _:
            return _UNKNOWN


def _known(value: Any) -> Possible:
    truth = np.asarray(value, dtype=np.bool_)
    return Possible(truth, ~truth)


_UNKNOWN = Possible(np.asarray(True), np.asarray(True))


def _guarded(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any | None]:
    """Refuse a division by zero instead of warning of it."""
    return lambda left, right: operation(left, right) if np.all(np.asarray(right) != 0) else None


def _truncdiv(left: Any, right: Any) -> Any:
    return np.sign(left) * np.sign(right) * (abs(left) // abs(right))


def _shift(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any | None]:
    def shifted(left: Any, right: Any) -> Any | None:
        count = np.asarray(right)
        return operation(left, right) if np.all((count >= 0) & (count < 63)) else None

    return shifted


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": np.minimum,
    "max": np.maximum,
    "floordiv": _guarded(lambda a, b: a // b),
    "mod": _guarded(lambda a, b: a % b),
    "truncdiv": _guarded(_truncdiv),
    "truncmod": _guarded(lambda a, b: a - b * _truncdiv(a, b)),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": _shift(lambda a, b: a << b),
    "shr": _shift(lambda a, b: a >> b),
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: np.equal(a, b),
    "ne": lambda a, b: np.not_equal(a, b),
    "lt": lambda a, b: np.less(a, b),
    "le": lambda a, b: np.less_equal(a, b),
    "gt": lambda a, b: np.greater(a, b),
    "ge": lambda a, b: np.greater_equal(a, b),
}
