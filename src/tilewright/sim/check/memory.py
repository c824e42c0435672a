"""The user's names for memory: of buffers, arguments and their elements.

May import `base`, `ir` and the rest of `sim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.spaces import Space
from tilewright.ir.shapes import static_shape
from tilewright.ir.types import TensorType
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine.context import SHARED_START
from tilewright.sim.options import Region
from tilewright.sim.places import element

_LANE_SHIFT = 16  # of an address of Tensor Memory
_COLUMN = (1 << _LANE_SHIFT) - 1
_WORDS = {Space.LOCAL: "registers", Space.PARAM: "parameters", Space.TMEM: "Tensor Memory"}


@dataclass(frozen=True)
class Launched:
    """A launch that findings are of: its kernel, its grid, the arguments that it may touch.

    `tensors` has the types and the shapes of those that are tensors, by their names.
    """

    simulated: CompiledKernel
    grid: tuple[int, int, int]
    regions: Sequence[Region] = ()
    tensors: Mapping[str, tuple[TensorType, tuple[int, ...]]] | None = None


def memory_texts(space: Space, address: int, size: int, launched: Launched) -> tuple[str, str]:
    """Name memory: shortly, for a sentence, and by its bytes and the element that has the first.

    The size counts bytes, and in Tensor Memory lanes of one column.
    """
    match space:
        case Space.SHARED | Space.SHARED_CLUSTER:
            return _shared(address, size, launched)
        case Space.GLOBAL | Space.GENERIC:
            return _global(address, size, launched)
        case Space.TMEM:
            lane, column = address >> _LANE_SHIFT, address & _COLUMN
            lanes = _run("lane", lane, size)
            return "Tensor Memory", f"Tensor Memory, {lanes} of column {column}"
        case _:
            return _WORDS[space], ""


def _shared(address: int, size: int, launched: Launched) -> tuple[str, str]:
    offset = address - SHARED_START
    where = f"shared address {address}"
    for name, (start, kind) in reversed(launched.simulated.kernel.buffers):
        if start <= offset:
            return _tensor(name, kind, static_shape(kind.shape) or (), offset - start, size, where)
    return "shared memory", f"{_run('byte', offset, size)} of shared memory, {where}"


def _global(address: int, size: int, launched: Launched) -> tuple[str, str]:
    # Where the host has put an argument differs from run to run: it is not told.
    for region in launched.regions:
        if region.address <= address < region.address + max(region.size, 1):
            offset = address - region.address
            known = (launched.tensors or {}).get(region.name)
            if known is None:
                return region.name, f"{_run('byte', offset, size)} of {region.name}"
            return _tensor(region.name, *known, offset, size, "")
    return "global memory", "global memory outside every argument"


def _tensor(
    name: str, kind: TensorType, shape: tuple[int, ...], offset: int, size: int, where: str
) -> tuple[str, str]:
    at = element(kind, shape, offset)
    parts = [f"{_run('byte', offset, size)} of {name}", where]
    if at is not None:
        parts.insert(0, f"{name}[{', '.join(map(str, at))}]")
    return name, ", ".join(part for part in parts if part)


def _run(unit: str, first: int, count: int) -> str:
    return f"{unit} {first}" if count <= 1 else f"{unit}s {first}-{first + count - 1}"
