"""What kernels print: C's `printf` formats, applied to recorded values.

May import `base`, `ir` and the rest of `sim`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.ir.statements import Print
from tilewright.ir.visit import walk_statements
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine.kernel import value_dtype

_DIRECTIVE = re.compile(r"%(%|[-+ #0]*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j|t)?[diouxXeEfFgGaAcsp])")
_WARP = 32


def format_records(simulated: CompiledKernel, words: np.ndarray) -> str:
    """Render a buffer of records: per statement executed, its site, its lanes, its values."""
    formats = _formats(simulated)
    pieces: list[str] = []
    at = 0
    while at < len(words):
        site, mask = int(words[at]), int(words[at + 1])
        text, kinds = formats[site]
        values = words[at + 2 : at + 2 + _WARP * len(kinds)].reshape(-1, _WARP)
        for lane in range(_WARP):
            if mask >> lane & 1:
                row = [_value(v[lane], kind) for v, kind in zip(values, kinds, strict=True)]
                pieces.append(c_format(text, row))
        at += 2 + values.size
    return "".join(pieces)


def _formats(simulated: CompiledKernel) -> dict[int, tuple[str, list[DType]]]:
    prints = [s for s in walk_statements(simulated.kernel.body) if isinstance(s, Print)]
    found: dict[int, tuple[str, list[DType]]] = {}
    for number, site in enumerate(simulated.sites.sites):
        for each in prints:
            if site.text == each.format and site.location == each.location:
                found[number] = (each.format, [value_dtype(o) for o in each.operands])
                break
    return found


def _value(word: Any, dtype: DType) -> int | float:
    bits = np.uint64(word)
    if dtype.is_float:
        return float(bits.astype(f"u{dtype.bytes}").view(dtype.numpy))
    if dtype.kind == "int":
        return int(bits.view(np.int64))
    return int(bits)


def c_format(text: str, values: list[int | float]) -> str:
    """Apply a C format to values.

    Integers are taken by their 32 or 64 bits as the directive says; missing values print as
    the directive itself.
    """
    rest = iter(values)

    def render(match: re.Match[str]) -> str:
        directive = match[1]
        if directive == "%":
            return "%"
        value = next(rest, None)
        return match[0] if value is None else _render(directive, value)

    return _DIRECTIVE.sub(render, text)


def _render(directive: str, value: int | float) -> str:
    split = re.fullmatch(r"([-+ #0]*)([\d.]*)(hh|h|ll|l|z|j|t)?(.)", directive)
    assert split is not None
    flags, width, size, kind = split[1], split[2], split[3] or "", split[4]
    bits = {"": 32, "h": 16, "hh": 8}.get(size, 64)
    if kind in "di":
        return f"%{flags}{width}d" % _signed(int(value), bits)
    if kind == "u":
        flags = flags.replace("+", "").replace(" ", "")
        return f"%{flags}{width}d" % (int(value) & ((1 << bits) - 1))
    if kind in "oxX":
        # Python's alternate form of an octal number has an o in it.
        text = f"%{flags}{width}{kind}" % (int(value) & ((1 << bits) - 1))
        return text.replace("0o", "0")
    if kind == "c":
        return f"%{flags}{width}c" % chr(int(value) & 0xFF)
    if kind == "p":
        return hex(int(value))
    if kind in "aA":
        digits = re.sub(r"\.?0*p", "p", float(value).hex())
        return f"%{flags}{width}s" % (digits.upper() if kind == "A" else digits)
    if not np.isfinite(value):
        flags = flags.replace("0", "")
    return f"%{flags}{width}{kind}" % value


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
