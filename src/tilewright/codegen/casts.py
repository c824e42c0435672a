"""Conversions between element types, as `ir.expressions.Cast` defines them.

May import `base`. Between integers as C's; into floats rounded once, as `base.narrow` says for
those of at most 16 bits; into integers towards zero, saturating, by the builtins that have a
defined result for every operand.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtypes import DType
from tilewright.base.narrow import is_narrow
from tilewright.codegen.spelling import scalar_type

_NARROWEST_EXACT = 16  # integers of so many bits convert to float exactly


@dataclass(frozen=True, slots=True)
class Conversion:
    """The text of a conversion and the pieces of the prelude that it needs."""

    text: str
    needs: tuple[str, ...] = ()


def conversion(value: str, source: DType, target: DType) -> Conversion | None:
    """Convert the C++ expression `value` between scalar types; `None` if there is no such cast."""
    spelled = scalar_type(target)
    if source.lanes != 1 or target.lanes != 1:
        return None
    if target.is_bool:
        zero = "0.0f" if is_narrow(source) else "0"
        return Conversion(f"({_widened(value, source)} != {zero})")
    match source.is_float, target.is_float:
        case False, False:
            return Conversion(f"{spelled}({value})")
        case False, True:
            return _to_float(value, source, target)
        case True, False:
            return _to_integer(value, source, target)
        case _:
            return _between_floats(value, source, target)


def _widened(value: str, source: DType) -> str:
    return f"widen({value})" if is_narrow(source) else value


def _to_float(value: str, source: DType, target: DType) -> Conversion:
    if not is_narrow(target):
        return Conversion(f"{scalar_type(target)}({value})")
    if source.bits <= _NARROWEST_EXACT:
        return Conversion(f"narrow<{target.base}>(float({value}))")
    wide = value if source.bits == 64 else f"double({value})"
    return Conversion(f"narrow<{target.base}>(odd_float({wide}))", ("odd",))


def _to_integer(value: str, source: DType, target: DType) -> Conversion | None:
    if target.bits > 64:
        return None
    widened = _widened(value, source)
    if source.base == "float64" or target.bits == 64:
        wide = f"to_{target.name if target.bits >= 32 else 'int32'}({widened})"
        needs: tuple[str, ...] = ("to_integer",)
    else:
        wide, needs = f"__float2{'uint' if target.name == 'uint32' else 'int'}_rz({widened})", ()
    if target.bits >= 32:
        return Conversion(wide, needs)
    low = -(1 << (target.bits - 1)) if target.kind == "int" else 0
    high = low + (1 << target.bits) - 1
    return Conversion(f"{scalar_type(target)}(clamp({wide}, {low}, {high}))", (*needs, "clamp"))


def _between_floats(value: str, source: DType, target: DType) -> Conversion:
    if not is_narrow(target):
        return Conversion(f"{scalar_type(target)}({_widened(value, source)})")
    if source.base == "float64":
        return Conversion(f"narrow<{target.base}>(odd_float({value}))", ("odd",))
    return Conversion(f"narrow<{target.base}>({_widened(value, source)})")
