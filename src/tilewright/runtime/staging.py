"""Arguments that lie elsewhere than their kernel runs: copied there, and back.

May import `base` and the rest of `runtime`. Arrays that share memory share their copy. Both ways
wait: for what was started before on the GPU, and for the kernel.

    staged = stage(arguments)                  # from a GPU, for the simulator
    run(staged.arguments); staged.copy_back({2})

    with moved(bound.memories, gpu) as addresses:      # from the CPU, for a GPU
        run(addresses)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from tilewright.base.targets import GLOBAL_ALIGNMENT
from tilewright.runtime.arguments import Memory
from tilewright.runtime.arrays import (
    Access,
    Array,
    Raw,
    Unseen,
    address_of,
    aligned_empty,
    describe,
)
from tilewright.runtime.cuda_driver import Gpu, require_gpu

Key = TypeVar("Key")

# ---------------------------------------------------------------------------- from a GPU


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
        if (array := _on_gpu(argument, find)) is not None
    }
    if not found:
        return None
    staged = list(arguments)
    blocks = tuple(_blocks(found, find))
    for block in blocks:
        for position in block.positions:
            staged[position] = _moved(found[position], block)
    return Staged(tuple(staged), blocks)


def _on_gpu(argument: Any, find: Callable[[int], Gpu]) -> Array | None:
    """Describe an argument if it is an array on a GPU; what cannot be seen is refused later."""
    if isinstance(argument, np.ndarray | int | float):
        return None
    try:
        array = describe(argument, Access(locate=lambda address: find(0).ordinal_of(address)))
    except Unseen:
        return None
    if array is None or array.raw is None or not array.device.startswith("cuda:"):
        return None
    return array


def _blocks(found: dict[int, Array], find: Callable[[int], Gpu]) -> list[_Block]:
    blocks: list[_Block] = []
    for device in sorted({each.device for each in found.values()}):
        gpu = find(int(device.partition(":")[2]))
        spans = {n: _span(each.raw) for n, each in found.items() if each.device == device}
        for start, end, positions in _joined(spans):
            shift = _shift(start)
            copy = aligned_empty(end - start + shift)[shift:]
            if end > start:
                gpu.read(start, end - start, address_of(copy))
            blocks.append(_Block(gpu, start, copy, positions))
    return blocks


def _joined(spans: Mapping[Key, tuple[int, int]]) -> list[tuple[int, int, frozenset[Key]]]:
    """Join pieces of memory, each from an address to before another, where they overlap."""
    joined: list[tuple[int, int, frozenset[Key]]] = []
    for key, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        if joined and start < joined[-1][1]:
            first, last, keys = joined.pop()
            joined.append((first, max(last, end), keys | {key}))
        else:
            joined.append((start, end, frozenset({key})))
    return joined


def _shift(start: int) -> int:
    """Say how far into aligned memory a copy begins: it is aligned as the original is."""
    return start % GLOBAL_ALIGNMENT


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


# ---------------------------------------------------------------------------- to a GPU


@contextmanager
def moved(memories: Sequence[Memory], written: Set[str], gpu: Gpu) -> Generator[dict[str, int]]:
    """Copy memory of the CPU to a GPU while a block runs; give the addresses there, by name.

    If the block ends without an exception, what is named in `written` is copied back, once the
    GPU has finished. Raises `LaunchError`: launch-memory if the GPU has too little,
    gpu-fault for what goes wrong on it.
    """
    addresses = {each.name: 0 for each in memories}
    spans = {each: (each.address, each.address + each.size) for each in memories if each.size}
    with ExitStack() as allocated:
        for start, end, pieces in _joined(spans):
            shift = _shift(start)
            base = gpu.allocate(end - start + shift)
            allocated.callback(gpu.free, base)
            gpu.write(base + shift, end - start, start)
            addresses.update({each.name: base + shift + each.address - start for each in pieces})
        yield addresses
        gpu.synchronize()
        for each in spans:
            if each.name in written:
                gpu.read(addresses[each.name], each.size, each.address)
