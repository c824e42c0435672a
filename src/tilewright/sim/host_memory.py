"""Memory that a launch takes on the host, beside that of its arguments.

May import `base`, `ir`, `isa` and the rest of `sim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base import lazy
from tilewright.ir.expressions import Var
from tilewright.isa.machine import GROUPS
from tilewright.isa.tensor_map import ALIGN, TensorMap
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine import context, flight
from tilewright.sim.options import Region

if TYPE_CHECKING:
    from tilewright.sim.check import state
    from tilewright.sim.trace import events
else:
    state = lazy.module("tilewright.sim.check.state")
    events = lazy.module("tilewright.sim.trace.events")

# Swizzles move chunks within lines: shared memory is allocated in whole ones.
LINE = 128


def aligned(size: int, kind: str = "u1", align: int = 1024, *, zeros: bool = True) -> np.ndarray:
    """Allocate zeros, or anything, at a multiple of `align` bytes."""
    raw = (np.zeros if zeros else np.empty)(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + size].view(kind)


def lines(size: int) -> int:
    """Round a size up to whole lines."""
    return -(-size // LINE) * LINE


def special_memory(simulated: CompiledKernel, warps: int, shared: int) -> dict[str, int]:
    """Size the memory of a CTA that only some kernels need, in bytes, by the context's names."""
    sizes = {
        "groups": 4 * len(GROUPS) * context.WARPS * context.LANES,
        "rows": context.QUEUE_RECORDS * context.ROWS * context.ROW_BYTES,
        # Room for two boxes as large as all of shared memory, each with a broken line before it.
        "staging": 2 * (lines(shared) + LINE),
        # Two numbers of 32 bits for every 8 bytes that may be an mbarrier.
        "tally": lines(max(shared, 1)),
        "tmem": 4 * context.TMEM_LANES * context.TMEM_COLUMNS,
        "scratch": context.SCRATCH_BYTES,
        "flight": warps * len(flight.GROUPS) * flight.ARENA_BYTES,
    }
    if simulated.options.check:
        sizes |= state.memory(shared)
    if simulated.options.trace:
        sizes |= events.memory()
    return {name: size for name, size in sizes.items() if name in simulated.memories}


def special_arrays(simulated: CompiledKernel, warps: int, shared: int) -> dict[str, np.ndarray]:
    """Allocate that memory.

    The checker clears what it must when a CTA begins, and touches little of the rest; only its
    clocks are to be zero at first.
    """
    cleared = state.memory(shared) if simulated.options.check else {}
    sizes = special_memory(simulated, warps, shared)
    return {
        name: aligned(size, zeros=name not in cleared or name == state.ZEROED)
        for name, size in sizes.items()
    }


def place_tensor_maps(
    arguments: Sequence[Any], variables: Sequence[Var]
) -> tuple[list[int | float], list[Region], list[np.ndarray]]:
    """Put tensor maps among the arguments into memory: their addresses stand for them.

    Gives the arguments, what the kernel may read of the maps, and the memory to keep.
    """
    numbers: list[int | float] = []
    regions: list[Region] = []
    kept: list[np.ndarray] = []
    for argument, var in zip(arguments, variables, strict=True):
        if isinstance(argument, TensorMap):
            words = argument.words()
            memory = aligned(words.nbytes, "u8", ALIGN)
            memory[:] = words
            kept.append(memory)
            place = memory.ctypes.data
            regions.append(Region(var.name, place, memory.nbytes, False, argument.address))
            argument = place
        numbers.append(argument)
    return numbers, regions, kept
