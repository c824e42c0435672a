"""Tiles in shared memory, unpacked to float32: native code.

May import `base`, `isa` and the modules of `engine` below it. A tile is read in 16-byte chunks,
which a swizzle moves as one, sixteen at a time: their addresses are the elements of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, UINT32, UINT64, DType
from tilewright.base.spaces import Space
from tilewright.isa.descriptors import PAIRED
from tilewright.isa.machine import Lanes, SharedTile
from tilewright.sim.engine import casts, context
from tilewright.sim.engine.spelling import llvm_type, scalar_type

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

BLOCK = 16  # rows of a panel
_CHUNK = 16  # bytes
_NONE = 1 << 32
_OUTSIDE = "a matrix descriptor leads outside the shared memory of the CTA"


def unpack(
    m: NativeMachine, tile: SharedTile, kind: DType, rows: Lanes, depth: int, into: str
) -> None:
    """Unpack a tile as float32, to panels: sixteen rows at k = 0, then at k = 1, and so forth.

    In the last panel, rows that are not there repeat the last one, or are not written.
    """
    name = f"unpack_{kind.name}_{depth}"
    if name not in m.module.functions:
        _Unpack(m, name, kind, depth).emit()
    words = [getattr(tile, each.name) for each in fields(tile)]
    listed = ", ".join(f"i32 {m.cast(each, UINT32).value}" for each in (*words, rows))
    m.function.emit(f"call void @{name}(ptr %ctx, i32 {m.site}, {listed}, ptr {into})")


def single(m: NativeMachine, value: Lanes, kind: DType) -> Lanes:
    """Widen elements to float32; of a tf32 operand the low 13 bits do not count.

    A NaN keeps its payload, which no product lets through.
    """
    if kind in (FLOAT16, BFLOAT16):
        return casts.widen(m, value)
    return m.bitcast(m.bitcast(value, UINT32) & 0xFFFFE000, FLOAT32)


def transposed(m: NativeMachine, chunks: Sequence[str], kind: DType) -> list[str]:
    """Transpose rows of 16 bytes each into vectors with an element of every row."""
    per = _CHUNK * 8 // kind.bits
    element = scalar_type(kind)
    columns = [m.concatenate(chunks[row::per], element, per)[0] for row in range(per)]
    return interleaved(m, columns, element, len(chunks))


def interleaved(m: NativeMachine, vectors: Sequence[str], element: str, width: int) -> list[str]:
    """Transpose square matrices: each 16 bytes of the vectors are a row of one of them."""
    count = len(vectors)
    vector, half = f"<{width} x {element}>", count // 2
    orders: list[str] = []
    for first in (0, half):
        places = [
            each
            for lane in range(first, width, count)
            for place in range(lane, lane + half)
            for each in (place, width + place)
        ]
        orders.append(", ".join(f"i32 {place}" for place in places))
    found = list(vectors)
    for _ in range(count.bit_length() - 1):
        # In two vectors the elements alternate: as often as this halves them, all are in place.
        found = [
            m.op(f"shufflevector {vector} {a}, {vector} {b}, <{width} x i32> <{order}>")
            for a, b in zip(found[:half], found[half:], strict=True)
            for order in orders
        ]
    return found


class _Unpack:
    """Emits the function that unpacks tiles of a kind."""

    def __init__(self, m: NativeMachine, name: str, kind: DType, depth: int) -> None:
        f = self.f = m.module.machine(name, "%site")
        self.kind = kind
        self.depth = depth
        self.per_chunk = _CHUNK * 8 // kind.bits
        names = [each.name for each in fields(SharedTile)]
        self.parameters = [f"i32 %tile_{name}" for name in names] + ["i32 %rows"]
        words = [f.lanes(UINT32, f"%tile_{name}", 0) for name in names]
        self.tile = SharedTile(*words)
        self.rows = f.lanes(UINT32, "%rows", 0)
        # A chunk begins at one of so many bytes; and an address at which none does.
        size = f.cast(f.field("shared_size"), UINT32)
        none = f.constant(0, UINT32)
        self.room = f.select(size < _CHUNK, none, size - (_CHUNK - 1))
        self.stray = f.function.slot("i64", 8)

    def emit(self) -> None:
        """Emit the function."""
        f = self.f
        f.function.emit(f"store i64 {_NONE}, ptr {self.stray}")
        plain, turned, after = (f.function.new_label(s) for s in ("plain", "turned", "after"))
        f.function.branch_if(str((self.tile.transposed == 0).value), plain, turned)
        f.function.label(plain)
        self._each((self.rows + (BLOCK - 1)) >> 4, self._k_major)
        f.function.branch(after)
        f.function.label(turned)
        self._each(self.rows >> (self.per_chunk.bit_length() - 1), self._mn_major)
        f.function.branch(after)
        f.function.label(after)
        stray = f.lanes(UINT64, f.op(f"load i64, ptr {self.stray}"), 0)
        with f.function.when(str((stray != _NONE).value)):
            f.fault("out-of-bounds", _OUTSIDE, f.constant(0, UINT32), stray, Space.SHARED)
        f.function.emit("ret void")
        listed = ", ".join(["ptr %ctx", "i32 %site", *self.parameters, "ptr %into"])
        f.function.finish("void", listed, "noinline")

    def _each(self, count: Lanes, body: Callable[[Lanes], None]) -> None:
        with self.f.function.loop(str(count.value), "i32") as counter:
            body(self.f.lanes(UINT32, counter, 0))

    def _numbers(self, count: int) -> Lanes:
        listed = ", ".join(f"i32 {number}" for number in range(count))
        return self.f.lanes(UINT32, f"<{listed}>", count)

    def _span(self) -> Lanes:
        """Count the bytes of a span, of which the swizzle tells the chunks, less one."""
        swizzle = self.tile.swizzle
        return ((swizzle | (swizzle >> 1)) + 1) << 4

    # ---- K-major: a chunk holds neighbours in K

    def _k_major(self, block: Lanes) -> None:
        """Unpack sixteen rows."""
        f, tile = self.f, self.tile
        row = f.binary("min", self._numbers(BLOCK) + (block << 4), self.rows - 1)
        start = tile.start + (row >> 3) * tile.stride + (row & 7) * self._span()
        step = f.select(tile.swizzle == 0, tile.leading, f.constant(_CHUNK, UINT32))
        for chunk in range(self.depth // self.per_chunk):
            turned = transposed(f, self._chunks(start + step * chunk), self.kind)
            for index, values in enumerate(turned):
                k = chunk * self.per_chunk + index
                self._put(values, BLOCK, (block * self.depth + k) * BLOCK)

    # ---- MN-major: a chunk holds neighbouring rows

    def _mn_major(self, group: Lanes) -> None:
        """Unpack as many rows as a chunk has elements, at every k."""
        f, tile = self.f, self.tile
        k = self._numbers(self.depth)
        span = self._span()
        chunks = (span >> 4) - 1
        width = f.cast(f.intrinsic("popcount", chunks), UINT32)
        # Where chunks move in pairs an atom is four spans, else eight.
        high = f.select(tile.swizzle == PAIRED, f.constant(2, UINT32), f.constant(3, UINT32))
        atom = k >> high
        row = k - (atom << high)
        swizzled = (group >> width) * tile.leading + ((group & chunks) << 4) + atom * tile.stride
        plain = group * tile.stride + atom * tile.leading
        where = f.select(tile.swizzle == 0, plain, swizzled)
        found = self._chunks(tile.start + where + row * span)
        first = group * self.per_chunk
        block, row_in_block = first >> 4, first & (BLOCK - 1)
        for index, values in enumerate(found):
            place = (block * self.depth + index) * BLOCK + row_in_block
            self._put(values, self.per_chunk, place)

    # ---- memory

    def _chunks(self, addresses: Lanes) -> list[str]:
        """Read 16 bytes at each of the addresses, before the swizzle, of shared memory."""
        f, count = self.f, addresses.width
        row = (addresses >> 7) - self.tile.base_offset
        turn = f.select(self.tile.swizzle == PAIRED, row << 1, row) & self.tile.swizzle
        where = addresses ^ (turn << 4)
        offset = where - context.SHARED_START
        outside = offset >= self.room
        bits = f.op(f"bitcast <{count} x i1> {outside.value} to i{count}")
        with f.function.when(f.op(f"icmp ne i{count} {bits}, 0")):
            first = f.lowest(f.lanes(UINT32, f.op(f"zext i{count} {bits} to i32"), 0))
            address = f.cast(f.pick(where, first & (count - 1)), UINT64)
            f.function.emit(f"store i64 {address.value}, ptr {self.stray}")
        safe = f.select(outside, f.constant(0, UINT32), offset)
        base, vector = f.pointer("shared"), llvm_type(self.kind, self.per_chunk)
        found: list[str] = []
        for index in range(count):
            place = f.cast(f.pick(safe, f.constant(index, UINT32)), UINT64)
            at = f.op(f"getelementptr i8, ptr {base}, i64 {place.value}")
            found.append(f.op(f"load {vector}, ptr {at}, align 1"))
        return found

    def _put(self, values: str, width: int, index: Lanes) -> None:
        f = self.f
        wide = single(f, f.lanes(self.kind, values, width), self.kind)
        at = f.op(f"getelementptr float, ptr %into, i64 {f.cast(index, UINT64).value}")
        f.function.emit(f"store {llvm_type(FLOAT32, width)} {wide.value}, ptr {at}, align 4")
