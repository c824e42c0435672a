"""The LLVM spelling of element types.

May import `base` and `isa`.

    >>> llvm_type(FLOAT32, 32), overload(FLOAT32, 32)
    ('<32 x float>', 'v32f32')
"""

from __future__ import annotations

from tilewright.base.dtypes import FLOAT32, FLOAT64, DType
from tilewright.isa.machine import Lanes


def scalar_type(dtype: DType) -> str:
    """Spell the LLVM type that holds one element in a register."""
    if dtype.is_bool:
        return "i1"
    if dtype == FLOAT32:
        return "float"
    if dtype == FLOAT64:
        return "double"
    return f"i{max(dtype.bits, 8)}"


def llvm_type(dtype: DType, width: int) -> str:
    """Spell the LLVM type of a value of that many lanes, 0 for a uniform one."""
    return f"<{width} x {scalar_type(dtype)}>" if width else scalar_type(dtype)


def memory_type(dtype: DType) -> str:
    """Spell the LLVM type that holds one element in memory."""
    return "i8" if dtype.is_bool else scalar_type(dtype)


def overload(dtype: DType, width: int) -> str:
    """Spell a type as the names of LLVM's intrinsics end with it."""
    name = {"float": "f32", "double": "f64"}.get(scalar_type(dtype), scalar_type(dtype))
    return f"v{width}{name}" if width else name


def known_integer(value: Lanes) -> int | None:
    """Read a uniform integer literal; `None` for anything else."""
    if value.width or value.value.startswith("%") or value.value in ("true", "false"):
        return None
    number = int(value.value)
    if value.dtype.kind == "int" and number >> (value.dtype.bits - 1):
        number -= 1 << value.dtype.bits
    return number
