"""Arrays on a GPU as arguments of the simulator: copied to the CPU, and back.

May import `base` and the rest of `runtime`. Arrays that share memory share their copy.

    staged = stage(arguments)
    run(staged.arguments); staged.copy_back({2})
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.base.errors import LaunchError
from tilewright.runtime.arrays import Array, Raw, address_of, aligned_empty, describe
from tilewright.runtime.cuda_driver import Gpu, require_gpu


@dataclass(frozen=True)
class _Block:
    """A piece of a GPU's memory that holds arrays without a gap, and its copy."""

    gpu: Gpu
    start: int
    copy: Raw
    positions: frozenset[int]


@dataclass(frozen=True)
class Staged:
    """Arguments whose arrays are all on the CPU."""

    arguments: tuple[Any, ...]
    _blocks: tuple[_Block, ...]

    def copy_back(self, written: set[int]) -> None:
        """Copy the arrays at these positions back to the GPU."""
        for block in self._blocks:
            if block.copy.nbytes and block.positions & written:
                block.gpu.write(block.start, block.copy.nbytes, address_of(block.copy))


def stage(arguments: Sequence[Any], find: Callable[[int], Gpu] = require_gpu) -> Staged | None:
    """Copy the arrays that are on a GPU to the CPU; `None` if there are none."""
    found = {
        position: array
        for position, argument in enumerate(arguments)
        if (array := _on_gpu(argument)) is not None
    }
    if not found:
        return None
    staged = list(arguments)
    blocks = tuple(_blocks(found, find))
    for block in blocks:
        for position in block.positions:
            staged[position] = _moved(found[position], block)
    return Staged(tuple(staged), blocks)


def _on_gpu(argument: Any) -> Array | None:
    """Describe an argument if it is an array on a GPU; what cannot be seen is refused later."""
    if isinstance(argument, np.ndarray | int | float):
        return None
    try:
        array = describe(argument)
    except LaunchError:
        return None
    if array is None or array.raw is None or not array.device.startswith("cuda:"):
        return None
    return array


def _blocks(found: dict[int, Array], find: Callable[[int], Gpu]) -> list[_Block]:
    spans = sorted((each.device, *_span(each.raw), n) for n, each in found.items())
    merged: list[tuple[str, int, int, set[int]]] = []
    for device, start, end, position in spans:
        if merged and merged[-1][0] == device and start < merged[-1][2]:
            _, first, last, positions = merged[-1]
            merged[-1] = (device, first, max(last, end), positions | {position})
        else:
            merged.append((device, start, end, {position}))
    blocks: list[_Block] = []
    for device, start, end, positions in merged:
        gpu = find(int(device.partition(":")[2]))
        # The copy lies as the original does with respect to every alignment that is asked for.
        shift = start % 256
        copy = aligned_empty(end - start + shift)[shift:]
        if end > start:
            gpu.read(start, end - start, address_of(copy))
        blocks.append(_Block(gpu, start, copy, frozenset(positions)))
    return blocks


def _span(raw: Raw | None) -> tuple[int, int]:
    """Give the addresses of an array's first byte and of the one after its last."""
    assert raw is not None
    start = address_of(raw)
    if raw.size == 0:
        return start, start
    reaches = [s * (e - 1) for s, e in zip(raw.strides, raw.shape, strict=True)]
    first = start + sum(reach for reach in reaches if reach < 0)
    return first, start + sum(reach for reach in reaches if reach > 0) + raw.itemsize


def _moved(array: Array, block: _Block) -> Array:
    raw = array.raw
    assert raw is not None
    if raw.size == 0:
        return replace(array, raw=np.empty(raw.shape, raw.dtype), device="cpu")
    offset = address_of(raw) - block.start
    view = np.ndarray(raw.shape, raw.dtype, block.copy, offset, raw.strides)
    view.flags.writeable = bool(raw.flags.writeable)
    return replace(array, raw=view, device="cpu")
