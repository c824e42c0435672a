"""The C++ spelling of types, names and literals.

May import `base` and `ir`.

    >>> c_type(ScalarType(UINT32)), literal(1.5, FLOAT32)
    ('unsigned', '1.5f')
"""

from __future__ import annotations

import math
import re
import struct
import textwrap

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import CompilerBug
from tilewright.base.locations import Location
from tilewright.base.narrow import encode
from tilewright.base.spaces import Space
from tilewright.codegen.prelude import RESERVED
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, Type

# The longest line that is written where it can be broken.
WIDTH = 100

_SCALARS = {
    "bool": "bool",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "unsigned",
    "uint64": "uint64_t",
    "uint128": "uint128_t",
    "float32": "float",
    "float64": "double",
}

_CPP_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
    class compl const const_cast constexpr continue decltype default delete do double dynamic_cast
    else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual
    void volatile wchar_t while xor xor_eq
"""
_KEYWORDS = frozenset(_CPP_KEYWORDS.split())
# What opens the arguments of a call, or the elements of a vector.
_OPENING = re.compile(r"\(|\{\{")


def bug(message: str, location: Location | None = None) -> CompilerBug:
    """Build the error for a program that no pass should have left to the backend."""
    return CompilerBug(message, code="compiler-bug", location=location)


def broken(line: str, depth: int = 0) -> list[str]:
    """Indent a line of C++, and break it between arguments or elements where it is too long."""
    pad = "  " * depth
    if len(pad) + len(line) <= WIDTH or '"' in line:
        return [pad + line]
    opened = _OPENING.search(line)
    if opened is None:
        return [pad + line]
    inner = f"{pad}    "
    return [
        pad + line[: opened.end()],
        *textwrap.wrap(
            line[opened.end() :],
            WIDTH,
            initial_indent=inner,
            subsequent_indent=inner,
            break_long_words=False,
            break_on_hyphens=False,
        ),
    ]


class Names:
    """The C++ names of a scope: the user's own, changed only where C++ cannot have them."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self._taken = set(taken)
        self._chosen: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """Give the C++ name for a name of the program, the same one each time."""
        if name not in self._chosen:
            self._chosen[name] = self.fresh(name)
        return self._chosen[name]

    def fresh(self, name: str) -> str:
        """Reserve a name like the one given that nothing else has."""
        base = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
        base = f"_{base}" if base[0].isdigit() else base
        # Double underscores belong to the implementation.
        base = re.sub(r"__+", "_", base) if "__" in base else base
        chosen, count = base, 0
        while chosen in self._taken or chosen in _KEYWORDS or chosen in RESERVED:
            count += 1
            chosen = f"{base}_{count}"
        self._taken.add(chosen)
        return chosen


def snippet_of(dtype: DType) -> str | None:
    """Name the piece of the prelude that defines a scalar type; `None` for C++'s own."""
    if dtype.base in _SCALARS:
        return "uint128" if dtype.base == "uint128" else None
    return dtype.base


def scalar_type(dtype: DType) -> str:
    """Spell an element type; a vector of sub-byte elements is a vector of bytes."""
    if dtype.lanes == 1:
        return _SCALARS.get(dtype.base, dtype.base)
    if dtype.bits < 8:
        return f"vector<uint8_t, {dtype.bytes}>"
    return f"vector<{scalar_type(dtype.scalar)}, {dtype.lanes}>"


def is_numeric_address(space: Space) -> bool:
    """Tell the spaces that C++ has no pointers into: addresses there are plain numbers."""
    return space in (Space.SHARED_CLUSTER, Space.TMEM)


def c_type(type: Type, *, constant: bool = False) -> str:
    """Spell a type of the IR; `constant` adds `const` to what a pointer points to."""
    match type:
        case ScalarType(dtype):
            return scalar_type(dtype)
        case PointerType(space=space) if is_numeric_address(space):
            return "unsigned"
        case PointerType(dtype=dtype):
            return f"{'const ' if constant else ''}{scalar_type(dtype)} *"
        case TensorMapType():
            return "tensor_map"
        case _:
            raise bug(f"a {type} was left to the backend")


# ---------------------------------------------------------------------------- literals


def unsigned_type(dtype: DType) -> str:
    """Spell the type in which integers of a type are computed with wrapping."""
    return "uint64_t" if dtype.bits == 64 else "unsigned"


def unsigned_literal(value: int, dtype: DType) -> str:
    """Spell an integer modulo the width that its type is computed in."""
    return f"{value % (1 << 64)}ull" if dtype.bits == 64 else f"{value % (1 << 32)}u"


def literal(value: float | bool, dtype: DType) -> str:
    """Spell a value of an element type as an expression of exactly its C++ type."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_integer:
        return _integer(int(value), dtype)
    return _float(float(value), dtype)


def _integer(value: int, dtype: DType) -> str:
    if dtype.bits == 128:
        return f"(uint128_t({value >> 64}ull) << 64 | {value % (1 << 64)}ull)"
    if dtype.name == "int32":
        return str(value) if value != -(1 << 31) else "int(0x80000000u)"
    if dtype.name == "int64":
        return f"{value}ll" if value != -(1 << 63) else "int64_t(0x8000000000000000ull)"
    if dtype.kind == "uint" and dtype.bits >= 32:
        return unsigned_literal(value, dtype)
    return f"{scalar_type(dtype)}({value})"


def _float(value: float, dtype: DType) -> str:
    if dtype.base == "float64":
        return _double(value)
    if dtype.base == "float32":
        return _single(value)
    return f"{scalar_type(dtype)}{{{encode(value, dtype):#x} /* {value:g} */}}"


def _double(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return f"__longlong_as_double({struct.unpack('<Q', struct.pack('<d', value))[0]:#x})"


def _single(value: float) -> str:
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if not np.isfinite(rounded):
        return f"__int_as_float({rounded.view(np.uint32):#x})"
    text = np.format_float_positional(rounded, unique=True, trim="0")
    if len(text) > 16:
        text = np.format_float_scientific(rounded, unique=True, trim="0")
    return f"{text}f"
