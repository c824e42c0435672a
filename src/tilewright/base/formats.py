"""The formats of C's `printf`: what their directives ask for, and what they make of values.

Imports nothing from this package.

    >>> formatted("%5.2f|%llx", [1.0, 255])
    ' 1.00|ff'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

Number = int | float | bool

# CUDA C++ Programming Guide, "Format Specifiers", without the width `*`.
_DIRECTIVE = re.compile(
    r"%(?P<flags>[-+ #0]*\d*(?:\.\d+)?)(?P<size>hh|h|ll|l|z|j|t)?(?P<type>[diouxXeEfFgGaAcsp])|%%"
)
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
    """Apply a format to values; missing ones print as the directive itself."""
    rest = iter(values)

    def render(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        value = next(rest, None)
        return match[0] if value is None else _render(match, value)

    return _DIRECTIVE.sub(render, text)


def _directive(match: re.Match[str]) -> Directive:
    kind = _KINDS.get(match["type"], "text")
    wide = kind != "int" or match["size"] not in (None, "h", "hh")
    return Directive(match[0], kind, 64 if wide else 32)


def _render(match: re.Match[str], value: Number) -> str:
    flags, kind, bits = match["flags"], match["type"], _directive(match).bits
    match kind:
        case "d" | "i":
            half = 1 << (bits - 1)
            return f"%{flags}d" % ((int(value) + half) % (2 * half) - half)
        case "o" | "u" | "x" | "X":
            return f"%{flags}{'d' if kind == 'u' else kind}" % (int(value) % (1 << bits))
        case "c":
            return f"%{flags}c" % chr(int(value) & 0xFF)
        case "p":
            return hex(int(value))
        case "a" | "A":
            return float(value).hex()
        case _:
            return f"%{flags}{kind}" % value
