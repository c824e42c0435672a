"""What kernels print: formats, applied to recorded values.

May import `base`, `ir` and the rest of `sim`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.formats import formatted
from tilewright.ir.statements import Print
from tilewright.ir.visit import walk_statements
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine.kernel import value_dtype

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
                pieces.append(formatted(text, row))
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
