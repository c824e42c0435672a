"""Descriptors of matrices and boxes of tensor maps, against the layouts of their buffers.

May import `layout`, `ir`, `isa`, `passes`, `sim.engine` and the modules of `sim.check` below it.
Native code notes what a CTA uses, each once; it is judged in Python when the CTA has ended. A
buffer whose layout has a swizzle says where its elements are: the 16 bytes that a row of a tile or
box has one after another must be neighbours in the tensor, and eight rows must have the same place
along that axis. Buffers that the program also sees under another layout say nothing; of those that
share memory it is enough that one is as a use says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.dtypes import UINT32, UINT64, DType
from tilewright.base.spaces import Space
from tilewright.ir.shapes import static_shape
from tilewright.ir.statements import Kernel
from tilewright.ir.types import TensorType
from tilewright.isa.descriptors import PAIRED
from tilewright.isa.machine import Box, Lanes, SharedTile
from tilewright.layout import ComposeLayout, image
from tilewright.passes.places import storage_bytes
from tilewright.sim.check import rows, state
from tilewright.sim.check.raw import OWNERS, RawFinding
from tilewright.sim.check.rows import end_if, routine, run
from tilewright.sim.engine import context
from tilewright.sim.engine.sites import Site

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_CHUNK = 16  # bytes that a swizzle moves as one
_ATOM = 8  # rows after which a swizzle begins again
_LINE = 7  # a swizzle takes its bits from the number of the line of 128 bytes
# What is noted of a use, in words: whether it is a box, then the numbers of either.
_TILE = ("start", "leading", "stride", "swizzle", "base_offset", "transposed", "rows", "chunks")
_BOX = ("shared", "row", "pitch", "rows", "swizzle", "size")
_KEY = 2 + len(_TILE)  # words that tell uses apart: box or not, the site, the numbers
_WHO = ("warp", "lanes")
_NUMBERS = ", ".join(f"i32 %n{index}" for index in range(len(_TILE)))

# ---------------------------------------------------------------------------- in native code


@routine("check_note", f"ptr %ctx, i32 %box, i32 %site, {_NUMBERS}, i32 %lanes")
def _note(f: NativeMachine) -> None:
    """Note a use, unless it has been before."""
    names = ("box", "site", *(f"n{index}" for index in range(len(_TILE))))
    words = [f.lanes(UINT32, f"%{each}", 0) for each in names]
    count = state.get(f, "note_count")
    with f.function.loop(str(count.value)) as counter:
        place = f.lanes(UINT64, counter, 0) * state.NOTE_WORDS
        differs = f.constant(0, UINT32)
        for index, word in enumerate(words):
            differs = differs | (state.get(f, "note", place + index) ^ word)
        end_if(f, differs == 0)
    end_if(f, count >= state.NOTES)
    for index, word in enumerate((*words, rows.warp(f), f.lanes(UINT32, "%lanes", 0))):
        state.put(f, "note", count * state.NOTE_WORDS + index, word)
    state.put(f, "note_count", 0, count + 1)


def _run(m: NativeMachine, box: int, numbers: Sequence[Lanes | int], lanes: Lanes) -> None:
    given = [*numbers, *([0] * (len(_TILE) - len(numbers)))]
    words = [m.cast(m.lift(each, UINT32), UINT32) for each in given]
    listed = (("i32", each) for each in (*words, lanes))
    run(m, _note, ("i32", str(box)), ("i32", m.site), *listed)


def note_tile(
    m: NativeMachine, tile: SharedTile, kind: DType, count: Lanes, depth: int, lanes: Lanes
) -> None:
    """Note an operand of a product: `count` rows of `depth` elements of a kind."""
    chunks = depth * kind.bits // (8 * _CHUNK)
    _run(m, 0, [*(getattr(tile, name) for name in _TILE[:-2]), count, chunks], lanes)


def note_box(m: NativeMachine, box: Box, row: Lanes, count: Lanes, lanes: Lanes) -> None:
    """Note a box that is written to shared memory: `count` rows of `row` bytes."""
    size = box.sizes[1] if len(box.sizes) > 1 else 1
    _run(m, 1, [box.shared, row, box.pitch, count, box.swizzle, size], lanes)


# ---------------------------------------------------------------------------- layouts


@dataclass(frozen=True)
class Claim:
    """Where the elements of a buffer are, by chunk of 16 bytes.

    `along` is the place of its first element on the axis along which its elements lie, `across`
    the place on all other axes together, -1 for padding; `count` elements are in a chunk.
    """

    first: int
    along: np.ndarray
    across: np.ndarray
    count: int

    def describes(self, offsets: np.ndarray, *, whole: bool) -> bool:
        """Tell whether chunks, a row of them per line, are rows of the tensor as far as is known.

        They are looked at up to the first row that leaves the buffer. `whole` says that all rows,
        not only eight that belong together, begin at the same place.
        """
        number = (offsets - self.first) // _CHUNK
        outside = ((number < 0) | (number >= len(self.along))).any(axis=1)
        number = number[: int(outside.argmax()) if outside.any() else None]
        if not len(number):
            return True
        along, across = self.along[number], self.across[number]
        steps = np.diff(along, axis=1) == self.count
        straight = steps.all() and (across == across[:, :1]).all()
        begins = (along == along[:1]).all() if whole else True
        for start in range(0, len(along) - 1, _ATOM):
            part = slice(start, start + _ATOM)
            gaps = np.diff(across[part, 0])
            begins = begins and (along[part] == along[start]).all()
            straight = straight and (gaps == gaps[:1]).all() and (gaps > 0).all()
        return bool(straight and begins)


def _claim(first: int, kind: TensorType) -> Claim | None:
    """Say where the elements of a buffer are, if its layout has a swizzle of whole chunks."""
    layout, shape, bits = kind.layout, static_shape(kind.shape), kind.dtype.bits * kind.dtype.lanes
    if not isinstance(layout, ComposeLayout) or not layout.swizzle_len or shape is None or bits < 8:
        return None
    places = image(layout, shape).get("m")
    if places is None or 8 * _CHUNK % bits:
        return None
    count = 8 * _CHUNK // bits
    cells = -(-(int(places.max()) + 1) // count) * count
    held = np.full(cells, -1, np.int64)
    held[places.ravel()] = np.arange(places.size)
    chunks = held.reshape(-1, count)
    full = chunks[(chunks >= 0).all(axis=1)]
    gaps = np.unique(np.diff(full, axis=1))
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    axes = [axis for axis, each in enumerate(strides) if gaps.tolist() == [each]]
    axes = [axis for axis in axes if shape[axis] >= count]
    if len(axes) != 1 or len(full) != len(chunks):
        return None
    stride, extent = strides[axes[0]], shape[axes[0]]
    start = chunks[:, 0]
    across = start // (stride * extent) * stride + start % stride
    return Claim(first, start // stride % extent, across, count)


@dataclass(frozen=True)
class Claims:
    """What is known of the shared buffers of a kernel: for each memory, by those that lie there.

    CTAs use them alike, as a rule: `judged` has what was found of each use, by its words.
    """

    known: tuple[tuple[Claim, ...], ...]
    judged: dict[tuple[int, ...], bool]

    def describe(self, use: tuple[int, ...]) -> bool:
        """Tell whether no buffer is known to be other than a use says: its words up to the last."""
        if use not in self.judged:
            self.judged[use] = self._judge(*use)
        return self.judged[use]

    def _judge(self, is_box: int, *numbers: int) -> bool:
        named: dict[str, int] = dict(zip(_BOX if is_box else _TILE, numbers, strict=False))
        offsets = _box_offsets(named) if is_box else _tile_offsets(named)
        # Of a box of one chunk a row, or of rows that do not belong together, nothing is known.
        vague = is_box and (named["row"] < 2 * _CHUNK or named["row"] % _CHUNK)
        if vague or (is_box and named["size"] % _ATOM) or not offsets.size:
            return True
        return all(
            any(each.describes(offsets, whole=not is_box) for each in there) for there in self.known
        )


def claims(kernel: Kernel) -> Claims:
    """List what is known of the shared buffers of a kernel."""
    placed = [
        (first, first + storage_bytes(kind), name, kind) for name, (first, kind) in kernel.buffers
    ]
    placed.sort(key=lambda each: each[:2])
    memories: list[list[Claim | None]] = []
    end = 0
    for first, stop, name, kind in placed:
        if first >= end:
            memories.append([])
        memories[-1].append(None if name in kernel.relaid else _claim(first, kind))
        end = max(end, stop)
    known = (tuple(each for each in there if each is not None) for there in memories)
    # Where a buffer says nothing, those that share its memory say nothing either.
    alike = zip(known, memories, strict=True)
    return Claims(tuple(some for some, there in alike if len(some) == len(there)), {})


# ---------------------------------------------------------------------------- judgement


def _tile_offsets(tile: dict[str, int]) -> np.ndarray:
    """Give the offset of each chunk of a tile in shared memory, a span of a row per line."""
    swizzle = tile["swizzle"]
    span = ((swizzle | swizzle >> 1) + 1) * _CHUNK
    start, leading, stride = (tile[name] for name in ("start", "leading", "stride"))
    if not tile["transposed"]:
        row, chunk = np.ogrid[: tile["rows"], : tile["chunks"]]
        step = leading if swizzle == 0 else _CHUNK
        address = start + row // _ATOM * stride + row % _ATOM * span + chunk * step
    else:
        # Rows of K = 16 · chunks / bytes are not known here: an atom of them is enough.
        row, chunk = np.ogrid[: 4 if swizzle == PAIRED else _ATOM, : span // _CHUNK]
        address = start + row * span + chunk * _CHUNK
    line = (address >> _LINE) - tile["base_offset"]
    turn = (line * 2 if swizzle == PAIRED else line) & swizzle
    return (address ^ turn * _CHUNK) - context.SHARED_START


def _box_offsets(box: dict[str, int]) -> np.ndarray:
    row, chunk = np.ogrid[: box["rows"], : box["row"] // _CHUNK]
    address = box["shared"] + row * box["pitch"] + chunk * _CHUNK
    return (address ^ (address >> _LINE & box["swizzle"]) * _CHUNK) - context.SHARED_START


def judge(notes: bytes, cta: int, sites: Sequence[Site], claims: Claims) -> Iterator[RawFinding]:
    """Find the uses of a CTA that do not describe the buffer that they begin in."""
    uses = np.frombuffer(notes, np.uint32).reshape(-1, state.NOTE_WORDS)
    for words in uses.tolist() if claims.known else ():
        is_box, site, *numbers = words[:_KEY]
        if not claims.describe((is_box, *numbers)):
            first = numbers[(_BOX if is_box else _TILE).index("shared" if is_box else "start")]
            kind, (warp, lanes) = "descriptor/map" if is_box else "descriptor", words[_KEY:]
            who = (OWNERS[0], OWNERS[0], warp, lanes, 0, 0)
            yield RawFinding(kind, cta, sites[site], None, *who, Space.SHARED, first, _CHUNK, 1)
