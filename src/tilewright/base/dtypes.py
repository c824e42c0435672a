"""Element types: integers, booleans and floating formats down to four bits, and their vectors.

Imports only `base.errors`.

    >>> dtype("float16").bits, dtype("bf16").name, dtype("float32x4").lanes
    (16, 'bfloat16', 4)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import ml_dtypes
import numpy as np

from tilewright.base.errors import FrontendError


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar or vector element type.

    `kind` is "int", "uint", "float" or "bool"; `bits` is the width of one lane.
    """

    base: str
    kind: str
    bits: int
    lanes: int = 1

    @property
    def name(self) -> str:
        """Spell the type as the dialects do, such as `float16` or `float32x4`."""
        return self.base if self.lanes == 1 else f"{self.base}x{self.lanes}"

    @property
    def bytes(self) -> int:
        """Count the bytes of one element; sub-byte scalars take one byte."""
        return max(self.bits * self.lanes // 8, 1)

    @property
    def scalar(self) -> DType:
        """Give the type of one lane."""
        return replace(self, lanes=1)

    @property
    def is_integer(self) -> bool:
        """Tell integers of either sign (booleans are none)."""
        return self.kind in ("int", "uint")

    @property
    def is_float(self) -> bool:
        """Tell floating formats."""
        return self.kind == "float"

    @property
    def is_bool(self) -> bool:
        """Tell the boolean type."""
        return self.kind == "bool"

    @property
    def numpy(self) -> np.dtype:
        """Give the NumPy type of one scalar, from `ml_dtypes` where NumPy has none."""
        return _numpy(self.base)

    def vector(self, lanes: int) -> DType:
        """Give the vector type of that many lanes."""
        return replace(self, lanes=lanes)

    def __str__(self) -> str:
        return self.name


def _scalars() -> dict[str, DType]:
    table = {"bool": DType("bool", "bool", 8)}
    for bits in (8, 16, 32, 64):
        table[f"int{bits}"] = DType(f"int{bits}", "int", bits)
        table[f"uint{bits}"] = DType(f"uint{bits}", "uint", bits)
    table["uint128"] = DType("uint128", "uint", 128)
    for name, bits in (
        ("float16", 16),
        ("bfloat16", 16),
        ("float32", 32),
        ("float64", 64),
        ("float8_e3m4", 8),
        ("float8_e4m3", 8),
        ("float8_e4m3fn", 8),
        ("float8_e4m3b11fnuz", 8),
        ("float8_e4m3fnuz", 8),
        ("float8_e5m2", 8),
        ("float8_e5m2fnuz", 8),
        ("float8_e8m0fnu", 8),
        ("float6_e2m3fn", 6),
        ("float6_e3m2fn", 6),
        ("float4_e2m1fn", 4),
    ):
        table[name] = DType(name, "float", bits)
    return table


SCALARS: dict[str, DType] = _scalars()
ALIASES: dict[str, str] = {
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "float": "float32",
    "f64": "float64",
    "double": "float64",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "int": "int32",
    "uint": "uint32",
}
VECTOR_LANES = (2, 4, 8, 16, 32, 64)
_VECTOR = re.compile(r"(.+?)x(\d+)$")


@cache
def _numpy(base: str) -> np.dtype:
    own = getattr(np, base + ("_" if base == "bool" else ""), None)
    if own is not None:
        return np.dtype(own)
    return np.dtype(getattr(ml_dtypes, base))


def dtype(name: str | DType) -> DType:
    """Look a type up by its name or alias.

    Raises `FrontendError` if there is none.
    """
    if isinstance(name, DType):
        return name
    match = _VECTOR.match(str(name))
    base, lanes = (match[1], int(match[2])) if match else (str(name), 1)
    found = SCALARS.get(ALIASES.get(base, base))
    if found is None or (lanes != 1 and lanes not in VECTOR_LANES):
        raise FrontendError(
            f"there is no element type {name!r}",
            code="unknown-name",
            expected="one of " + ", ".join(SCALARS) + ", or one of these followed by x2 … x64",
        )
    return found.vector(lanes)


def from_numpy(kind: np.dtype) -> DType | None:
    """Find the element type of a NumPy array, or `None` where there is no such type here."""
    return _from_numpy().get(np.dtype(kind))


@cache
def _from_numpy() -> dict[np.dtype, DType]:
    table: dict[np.dtype, DType] = {}
    for each in SCALARS.values():
        try:
            table[each.numpy] = each
        except (AttributeError, TypeError):
            continue
    return table


BOOL = SCALARS["bool"]
INT32, INT64 = SCALARS["int32"], SCALARS["int64"]
UINT8, UINT16 = SCALARS["uint8"], SCALARS["uint16"]
UINT32, UINT64 = SCALARS["uint32"], SCALARS["uint64"]
FLOAT16, BFLOAT16 = SCALARS["float16"], SCALARS["bfloat16"]
FLOAT32, FLOAT64 = SCALARS["float32"], SCALARS["float64"]
