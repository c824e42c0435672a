"""What kernels print: formats, applied to recorded values, and the state at breakpoints.

May import `base`, `ir` and the rest of `sim`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.formats import formatted
from tilewright.ir.statements import Breakpoint, Print
from tilewright.ir.visit import walk_statements
from tilewright.sim.breakpoints import state_text
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine.frame import value_dtype

_WARP = 32


def format_records(simulated: CompiledKernel, cta: Any, where: str, words: np.ndarray) -> str:
    """Render a buffer of records: per statement executed, its site, its lanes, its values.

    A breakpoint's record is the last one, and the state of the CTA, whose name is `where`, is
    still that at the breakpoint.
    """
    shown = _statements(simulated)
    pieces: list[str] = []
    at = 0
    while at < len(words):
        site, mask = int(words[at]), int(words[at + 1])
        stmt = shown[site]
        kinds = [value_dtype(each) for each in stmt.operands]
        values = words[at + 2 : at + 2 + _WARP * len(kinds)].reshape(-1, _WARP)
        if isinstance(stmt, Breakpoint):
            readers = [partial(_value, dtype=kind) for kind in kinds]
            recorded = list(zip(values, readers, strict=True))
            pieces.append(state_text(simulated, cta, where, stmt, mask, recorded))
        else:
            pieces += _printed(stmt, mask, values, kinds)
        at += 2 + values.size
    return "".join(pieces)


def _printed(stmt: Print, mask: int, values: np.ndarray, kinds: list[DType]) -> Iterator[str]:
    for lane in range(_WARP):
        if mask >> lane & 1:
            row = [_value(v[lane], kind) for v, kind in zip(values, kinds, strict=True)]
            yield formatted(stmt.format, row)


def prints(simulated: CompiledKernel) -> bool:
    """Tell whether a kernel may print anything."""
    return bool(_statements(simulated))


def _statements(simulated: CompiledKernel) -> dict[int, Print | Breakpoint]:
    """Find the statements that print, by the numbers of their sites."""
    known = {
        (stmt.format if isinstance(stmt, Print) else stmt.text, stmt.location): stmt
        for stmt in walk_statements(simulated.kernel.body)
        if isinstance(stmt, Print | Breakpoint)
    }
    sites = enumerate(simulated.sites.sites)
    found = ((number, known.get((site.text, site.location))) for number, site in sites)
    return {number: stmt for number, stmt in found if stmt is not None}


def _value(word: Any, dtype: DType) -> int | float:
    bits = np.uint64(word)
    if dtype.is_float:
        return float(bits.astype(f"u{dtype.bytes}").view(dtype.numpy))
    if dtype.kind == "int":
        return int(bits.view(np.int64))
    return int(bits)
