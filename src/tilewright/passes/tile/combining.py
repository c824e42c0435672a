"""How reductions and scans combine values, and how lanes exchange them.

May import `base`, `isa` and `ir`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.base.dtypes import FLOAT32, INT32, UINT32, UINT64, DType, dtype
from tilewright.base.locations import Location
from tilewright.ir.expressions import (
    Bitcast,
    Expr,
    Intrinsic,
    Var,
    binary,
    cast,
    constant,
    select,
    wrap,
)
from tilewright.ir.statements import Declare, Instruct, Stmt
from tilewright.ir.types import ScalarType
from tilewright.isa.declaration import Form

_OPERATIONS = {
    "sum": "add",
    "abssum": "add",
    "max": "max",
    "absmax": "max",
    "min": "min",
    "bitand": "and",
    "bitor": "or",
    "bitxor": "xor",
}


@dataclass(frozen=True)
class Combination:
    """A reduction of numbers, in the type in which it is computed."""

    op: str
    kind: DType
    nan_propagate: bool = False

    @property
    def identity(self) -> Expr:
        """Give what changes nothing when it is combined."""
        if self.op in ("max", "min") and self.kind.is_float:
            return constant(-math.inf if self.op == "max" else math.inf, self.kind)
        if self.op in ("max", "min"):
            low, high = _range(self.kind)
            return constant(low if self.op == "max" else high, self.kind)
        return constant(wrap(-1, self.kind) if self.op == "bitand" else 0, self.kind)

    def of(self, value: Expr) -> Expr:
        """Take an element as what is combined: converted, and its size for "abs" operations."""
        value = cast(value, self.kind)
        if not self.op.startswith("abs") or self.kind.kind == "uint":
            return value
        return Intrinsic("abs", (value,), value.type)

    def __call__(self, one: Expr, other: Expr) -> Expr:
        """Combine two values."""
        found = binary(_OPERATIONS[self.op], one, other)
        if self.nan_propagate and self.kind.is_float:
            for each in (other, one):
                found = select(binary("ne", each, each), each, found)
        return found


def combination(op: str, kind: DType, nan_propagate: bool = False) -> Combination:
    """Choose the type in which values that go into elements of a type are combined.

    Floats of less than 32 bits are combined as float32, shorter integers as 32 bits.
    """
    if kind.is_float and kind.bits < FLOAT32.bits:
        kind = FLOAT32
    elif kind.is_bool or (kind.is_integer and kind.bits < INT32.bits):
        kind = INT32 if kind.kind == "int" else UINT32
    return Combination(op, kind, nan_propagate)


def _range(kind: DType) -> tuple[int, int]:
    if kind.kind == "uint":
        return 0, (1 << kind.bits) - 1
    return -(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1


def exchanged(
    form: Form,
    value: Expr,
    lane: Expr,
    segments: Expr,
    mask: Expr,
    variable: Callable[[str, ScalarType], Var],
    location: Location | None,
) -> tuple[list[Stmt], Expr]:
    """Read a value of 32 or 64 bits in another lane: the statements, and the value."""
    words = _words(value)
    statements: list[Stmt] = []
    found: list[Expr] = []
    for word in words:
        cell = variable("other", ScalarType(word.dtype))
        operands = (cell, word, lane, segments, mask)
        statements += [Declare(cell, None), Instruct(form, operands, location=location)]
        found.append(cell)
    if len(found) == 1:
        return statements, found[0]
    whole = binary("or", cast(found[0], UINT64), binary("shl", cast(found[1], UINT64), 32))
    return statements, _bits(whole, value.dtype)


def _words(value: Expr) -> list[Expr]:
    if value.dtype.bits == 32:
        return [value]
    whole = _bits(value, dtype(f"uint{value.dtype.bits}"))
    return [cast(binary("shr", whole, shift), UINT32) for shift in (0, 32)]


def _bits(value: Expr, kind: DType) -> Expr:
    return value if value.dtype == kind else Bitcast(value, ScalarType(kind))
