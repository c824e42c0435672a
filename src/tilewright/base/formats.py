"""The formats of C's `printf`: what their directives ask for, and what they make of values.

Imports nothing from this package.

    >>> formatted("%5.2f|%llx", [1.0, 255])
    ' 1.00|ff'
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

Number = int | float | bool

# CUDA C++ Programming Guide, "Format Specifiers", without the width `*`.
_DIRECTIVE = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d*)(?:\.(?P<precision>\d+))?"
    r"(?P<size>hh|h|ll|l|z|j|t)?(?P<type>[diouxXeEfFgGaAcsp])|%%"
)
# The bits of an integer of each size; those of the others are 64.
_BITS = {"hh": 8, "h": 16, None: 32}
_KINDS = {**dict.fromkeys("diouxXc", "int"), **dict.fromkeys("eEfFgGaA", "float"), "p": "pointer"}


@dataclass(frozen=True)
class Directive:
    """What a format asks for: its text, and "int", "float", "pointer" or "text" of some bits."""

    text: str
    kind: str
    bits: int


def directives(text: str) -> list[Directive] | None:
    """List the directives of a format, or `None` if a `%` begins none."""
    if "%" in _DIRECTIVE.sub("", text):
        return None
    return [_directive(each) for each in _DIRECTIVE.finditer(text) if each[0] != "%%"]


def formatted(text: str, values: Iterable[Number]) -> str:
    """Apply a format to values, as C does; missing ones print as the directive itself.

    Integers are taken by as many of their bits as the directive says.
    """
    rest = iter(values)

    def render(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        value = next(rest, None)
        return match[0] if value is None else _render(match, value)

    return _DIRECTIVE.sub(render, text)


def _directive(match: re.Match[str]) -> Directive:
    kind = _KINDS.get(match["type"], "text")
    # Narrower integers are passed as `int`.
    bits = max(_BITS.get(match["size"], 64), 32) if kind == "int" else 64
    return Directive(match[0], kind, bits)


def _render(match: re.Match[str], value: Number) -> str:
    flags, width, kind = match["flags"], match["width"], match["type"]
    match kind:
        case "d" | "i" | "o" | "u" | "x" | "X":
            return _integer(match, int(value))
        case "c":
            return f"%{flags}{width}c" % chr(int(value) & 0xFF)
        case "p":
            return hex(int(value))
        case "a" | "A":
            text = _hexadecimal(float(value), match["precision"])
            return f"%{flags}{width}s" % (text.upper() if kind == "A" else text)
        case _:
            padding = flags if math.isfinite(value) else flags.replace("0", "")
            return f"%{padding}{width}{_point(match['precision'])}{kind}" % value


def _integer(match: re.Match[str], value: int) -> str:
    flags, precision, kind = match["flags"], match["precision"], match["type"]
    span = 1 << _BITS.get(match["size"], 64)
    value %= span
    if kind in "di":
        value -= span if value >= span // 2 else 0
    else:
        flags = flags.replace("+", "").replace(" ", "")
    if precision is not None:
        flags = flags.replace("0", "")
    if kind == "o" and "#" in flags:
        # C's alternate form has a leading zero, Python's the letter o too.
        flags = flags.replace("#", "")
        precision = str(max(int(precision or 0), len(f"{value:o}") + (value != 0)))
    if value == 0:
        flags = flags.replace("#", "")
    return f"%{flags}{match['width']}{_point(precision)}{'d' if kind == 'u' else kind}" % value


def _point(precision: str | None) -> str:
    return "" if precision is None else f".{precision}"


def _hexadecimal(value: float, precision: str | None) -> str:
    """Write a number in hexadecimal: as many digits as it needs, or so many after the point."""
    match = re.fullmatch(r"(-?0x)(\d)\.(\w+)(p.+)", value.hex())
    if match is None:
        return str(value)
    prefix, digits, exponent = match[1], match[2] + match[3], match[4]
    if precision is None:
        digits = match[2] + match[3].rstrip("0")
    else:
        kept = round(Fraction(int(digits, 16), 1 << 4 * len(match[3])) * (1 << 4 * int(precision)))
        digits = f"{kept:0{int(precision) + 1}x}"
    return prefix + digits[0] + ("." if digits[1:] else "") + digits[1:] + exponent
