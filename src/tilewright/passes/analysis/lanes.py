"""Expressions that number the lanes of a warp in order, such as `tid.x * 4 + 1`.

May import `base`, `ir` and `passes.analysis.ranges`.

    >>> lane_form(thread_idx_x * 4, (128, 1, 1), …)
    LaneForm(scale=4, extra=0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilewright.base.dtypes import DType
from tilewright.ir.expressions import (
    Binary,
    Cast,
    Constant,
    Expr,
    SpecialRegister,
    Var,
    as_constant,
)
from tilewright.ir.types import ScalarType
from tilewright.passes.analysis.ranges import Ranges

_WARP = 32
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class LaneForm:
    """The form `scale * (32 * u + lane) + extra`, with a `u` that is uniform.

    `scale` is a power of two and `0 <= extra < scale`, so that a warp's values lie in one
    aligned run of `width` numbers. Holds modulo the width of the type.
    """

    scale: int = 1
    extra: int = 0

    @property
    def width(self) -> int:
        """Give the length of the aligned run of numbers that a warp's values lie in."""
        return _WARP * self.scale


@dataclass(frozen=True)
class _Finder:
    block: tuple[int | None, int | None, int | None]
    is_uniform: Callable[[Expr], bool]
    ranges: Ranges
    forms: Mapping[str, LaneForm]

    def find(self, expr: Expr) -> LaneForm | None:
        if not isinstance(expr.type, ScalarType) or not expr.type.dtype.is_integer:
            return None
        match expr:
            case SpecialRegister():
                return LaneForm() if self._numbers_lanes(expr.name) else None
            case Var():
                return self.forms.get(expr.name)
            case Cast():
                found = self.find(expr.operand)
                return found if found and _holds(found, expr.type) else None
            case Binary():
                found = self._binary(expr)
                return found if found and _holds(found, expr.type) else None
            case _:
                return None

    def _numbers_lanes(self, name: str) -> bool:
        if name in ("laneid", "linear_tid", "thread_in_warpgroup"):
            return True
        x, y, z = self.block
        return name == "tid.x" and ((x is not None and x % _WARP == 0) or (y == 1 and z == 1))

    def _binary(self, expr: Binary) -> LaneForm | None:
        if self._is_linear_thread(expr):
            return LaneForm()
        left, right = expr.left, expr.right
        if expr.op in ("add", "mul") and isinstance(left, Constant):
            left, right = right, left
        match expr.op:
            case "add":
                return self._sum(left, right) or self._sum(right, left)
            case "mul" | "shl":
                return self._scaled(expr.op, left, as_constant(right))
            case "mod" | "truncmod" | "and":
                return self._reduced(expr.op, left, as_constant(right))
            case _:
                return None

    def _sum(self, lanes: Expr, other: Expr) -> LaneForm | None:
        form = self.find(lanes)
        if form is None or not self.is_uniform(other):
            return None
        number = as_constant(other)
        if number is None:
            return form if self.ranges.divisor(other) % form.width == 0 else None
        extra = form.extra + int(number) % form.width
        return replace(form, extra=extra) if extra < form.scale else None

    def _scaled(self, op: str, lanes: Expr, factor: float | None) -> LaneForm | None:
        form = self.find(lanes)
        if form is None or factor is None or not 0 < factor <= _MOST:
            return None
        by = int(factor) if op == "mul" else 1 << min(int(factor), 31)
        if by & (by - 1) or form.scale * by > _MOST:
            return None
        return LaneForm(form.scale * by, form.extra * by)

    def _reduced(self, op: str, lanes: Expr, by: float | None) -> LaneForm | None:
        form = self.find(lanes)
        if form is None or by is None or by <= 0:
            return None
        modulus = int(by) + 1 if op == "and" else int(by)
        if op == "and" and modulus & int(by):
            return None
        if op == "truncmod" and not self.ranges.is_non_negative(lanes):
            return None
        return form if modulus % form.width == 0 else None

    def _is_linear_thread(self, expr: Expr) -> bool:
        """Recognise the number of a thread in its CTA, for blocks of two or three dimensions."""
        x, y, z = self.block
        if x is None or y is None:
            return expr in _LINEAR_THREAD or (z == 1 and expr == _PLANE_THREAD)
        strides = {"tid.x": (x, 1), "tid.y": (y, x), "tid.z": (z, x * y)}
        wanted = {name: stride for name, (extent, stride) in strides.items() if extent != 1}
        found = _terms(expr)
        return found is not None and wanted == {
            name: stride for name, stride in found.items() if strides.get(name, (0,))[0] != 1
        }


_TID = [SpecialRegister(f"tid.{axis}") for axis in "xyz"]
_NTID = [SpecialRegister(f"ntid.{axis}") for axis in "xyz"]
_PLANE_THREAD = _TID[0] + _NTID[0] * _TID[1]
_LINEAR_THREAD = (
    _TID[0] + _NTID[0] * (_TID[1] + _NTID[1] * _TID[2]),
    _PLANE_THREAD + _NTID[0] * _NTID[1] * _TID[2],
)


def _terms(expr: Expr, factor: int = 1) -> dict[str, int] | None:
    """Read a sum of multiples of special registers; `None` for anything else."""
    match expr:
        case SpecialRegister():
            return {expr.name: factor}
        case Binary(op="mul"):
            for by, other in ((expr.left, expr.right), (expr.right, expr.left)):
                if isinstance(by, Constant):
                    return _terms(other, factor * int(by.value))
            return None
        case Binary(op="add"):
            left, right = _terms(expr.left, factor), _terms(expr.right, factor)
            if left is None or right is None or left.keys() & right.keys():
                return None
            return {**left, **right}
        case _:
            return None


def _holds(form: LaneForm, type: ScalarType) -> bool:
    """Tell whether wrapping into a type keeps the form."""
    dtype: DType = type.dtype
    return dtype.is_integer and form.width <= 1 << (dtype.bits - 1)


def lane_form(
    expr: Expr,
    block: tuple[int | None, int | None, int | None],
    is_uniform: Callable[[Expr], bool],
    ranges: Ranges,
    forms: Mapping[str, LaneForm],
) -> LaneForm | None:
    """Find whether an integer expression numbers the lanes of a warp in order, and how.

    `block` has the extents of the CTA where they are constants; `forms` what is known of names.
    """
    return _Finder(block, is_uniform, ranges, forms).find(expr)
