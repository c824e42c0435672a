"""The state of a CTA at a breakpoint, as text.

May import `base`, `ir` and the rest of `sim`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.ir.statements import Breakpoint
from tilewright.sim import reports
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine import context
from tilewright.sim.engine.context import TMEM_COLUMNS, TMEM_LANES

_WARP = 32
_ROW = 8  # lanes in a line
_EDGE = 4  # elements at the ends of a long array that are shown
_LONG = 64
_WIDTH = 96
_COLUMNS = 32  # of Tensor Memory, that are allocated together

# Takes a recorded word, and gives the number that it holds.
Reader = Callable[[Any], int | float]


def state_text(
    simulated: CompiledKernel,
    cta: Any,
    where: str,
    stmt: Breakpoint,
    lanes: int,
    values: Sequence[tuple[np.ndarray, Reader]],
) -> str:
    """Render the state at a breakpoint that some lanes of the running warp have come to.

    `values` are the words of the breakpoint's operands, lane by lane, and what reads them.
    """
    place = "" if stmt.location is None else f" at {stmt.location.header()}"
    warp = cta.get("warp")
    head = f"breakpoint{place} in {simulated.kernel.name}, {where}, warp {warp}"
    lines = [f"{head}, {reports.lanes_text(lanes)}"]
    if "regs" in stmt.parts:
        for label, (words, read) in zip(stmt.labels, values, strict=True):
            lines += _register(label, [read(word) for word in words], lanes)
    if "shared" in stmt.parts and simulated.kernel.shared_bytes:
        lines += _shared(simulated, cta)
    if "tmem" in stmt.parts and simulated.target.tensor_memory_columns:
        lines += _tensor_memory(cta)
    return "".join(f"{line}\n" for line in lines)


def _register(label: str, values: list[int | float], lanes: int) -> Iterator[str]:
    """Show a value of each lane, once if all active ones agree; `.` stands for inactive lanes."""
    active = [lane for lane in range(_WARP) if lanes >> lane & 1]
    texts = [_number(values[lane]) if lane in active else "." for lane in range(_WARP)]
    if len({texts[lane] for lane in active}) == 1:
        text = texts[active[0]]
        yield f"  {text}" if text == label else f"  {label} = {text}"
        return
    width = max(map(len, texts))
    yield f"  {label} ="
    for start in range(0, _WARP, _ROW):
        row = " ".join(text.rjust(width) for text in texts[start : start + _ROW])
        yield f"    lanes {start:2}-{start + _ROW - 1:2}  {row}"


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.7g}"


def _shared(simulated: CompiledKernel, cta: Any) -> Iterator[str]:
    """Show the buffers of shared memory by name, as they lie in it."""
    buffers = reports.shared_buffers(simulated)
    ends = [start for _, start, _ in buffers[1:]] + [simulated.kernel.shared_bytes]
    for (name, start, kind), end in zip(buffers, ends, strict=True):
        data = _elements(cta.shared[start:end], kind.dtype)
        address = start + context.SHARED_START
        yield f"  shared {name}: {len(data)} x {kind.dtype} at {address}"
        yield from _array(data)


def _elements(data: np.ndarray, dtype: DType) -> np.ndarray:
    """Take bytes as elements; those that NumPy has no type for are shown as bytes."""
    if dtype.lanes > 1 or dtype.bits % 8:
        return data
    whole = len(data) // dtype.bytes * dtype.bytes
    return data[:whole].view(dtype.numpy)


def _tensor_memory(cta: Any) -> Iterator[str]:
    """Show the columns of Tensor Memory that are allocated, as float32, a lane a row."""
    allocated = [
        granule
        for granule in range(TMEM_COLUMNS // _COLUMNS)
        if cta.get("tmem_columns") >> granule & 1
    ]
    yield f"  Tensor Memory: {reports.columns_text(cta)} allocated"
    # A kernel that touches no cell is given none.
    if allocated and "tmem" in cta.special:
        cells = cta.special["tmem"].view(np.float32).reshape(TMEM_COLUMNS, TMEM_LANES)
        first, last = allocated[0] * _COLUMNS, (allocated[-1] + 1) * _COLUMNS
        yield f"  lanes 0-127, columns {first}-{last - 1}, as float32"
        yield from _array(cells[first:last].T)


def _array(data: np.ndarray) -> list[str]:
    text = np.array2string(data, threshold=_LONG, edgeitems=_EDGE, max_line_width=_WIDTH)
    return [f"    {line}" for line in text.splitlines()]
