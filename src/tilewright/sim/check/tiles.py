"""Tiles of matrices in shared memory that a product reads, chunk by chunk.

May import `isa`, `sim.engine` and the modules of `sim.check` below it. The chunks are those that
`engine.tiles` unpacks.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64, DType
from tilewright.isa.descriptors import PAIRED
from tilewright.isa.machine import Lanes, SharedTile
from tilewright.sim.check import state
from tilewright.sim.check.late import place_in_tile, read_by_core
from tilewright.sim.check.replay import Replay
from tilewright.sim.check.rows import end_if, routine, run
from tilewright.sim.check.shadow import Access

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_CHUNK = 16
_NAMES = tuple(each.name for each in fields(SharedTile))
_WORDS = tuple(f"tile_{name}" for name in _NAMES)


def read(
    m: NativeMachine,
    tile: SharedTile,
    kind: DType,
    rows: Lanes,
    depth: int,
    pattern: Lanes,
    actor: tuple[tuple[str, Lanes | str], ...],
) -> None:
    """Watch a tile being read, of `rows` rows and `depth` elements of a kind each."""
    words = [getattr(tile, name) for name in _NAMES]
    words += [rows, m.constant(depth, UINT32), m.constant(_CHUNK * 8 // kind.bits, UINT32)]
    listed = [("i32", m.cast(each, UINT32)) for each in words]
    run(m, _tile, *listed, ("i64", pattern), *actor)


@routine(
    "check_read_tile",
    "ptr %ctx, "
    + ", ".join(f"i32 %{name}" for name in (*_WORDS, "rows", "depth", "per_chunk"))
    + f", i64 %pattern, {Access.PARAMETERS}",
)
def _tile(f: NativeMachine) -> None:
    end_if(f, f.field("error") != 0)
    access = Access(f, writes=False)
    tile = SharedTile(*(f.lanes(UINT32, f"%{name}", 0) for name in _WORDS))
    rows, depth, per_chunk = (f.lanes(UINT32, f"%{n}", 0) for n in ("rows", "depth", "per_chunk"))
    pattern = f.lanes(UINT64, "%pattern", 0)
    small = (rows <= 1 << 10) & (depth <= 1 << 10)
    end_if(f, ~small)
    span = ((tile.swizzle | (tile.swizzle >> 1)) + 1) << 4
    chunks = f.binary("truncdiv", depth, per_chunk)
    plain = tile.transposed == 0
    with f.function.when(str(plain.value)):
        _pairs(f, access, tile, rows, chunks, span, pattern)
    outer = f.select(plain, rows, f.binary("truncdiv", rows, per_chunk))
    with _count(f, outer) as one, _count(f, f.select(plain, chunks, depth)) as other:
        where = f.select(
            plain, _in_row(f, tile, span, one, other), _turned(f, tile, span, one, other)
        )
        _chunk(f, access, tile, tile.start + where, pattern)


def _in_row(f: NativeMachine, tile: SharedTile, span: Lanes, row: Lanes, chunk: Lanes) -> Lanes:
    """Place a chunk of a row of a tile, before the swizzle, as seen from its start."""
    step = f.select(tile.swizzle == 0, tile.leading, f.constant(_CHUNK, UINT32))
    return (row >> 3) * tile.stride + (row & 7) * span + step * chunk


def _turned(f: NativeMachine, tile: SharedTile, span: Lanes, group: Lanes, k: Lanes) -> Lanes:
    """Place a chunk of rows that follow one another, at one k, of a tile that is transposed."""
    chunks = (span >> 4) - 1
    width = f.cast(f.intrinsic("popcount", chunks), UINT32)
    high = f.select(tile.swizzle == PAIRED, f.constant(2, UINT32), f.constant(3, UINT32))
    atom = k >> high
    row = k - (atom << high)
    swizzled = (group >> width) * tile.leading + ((group & chunks) << 4)
    swizzled = swizzled + atom * tile.stride
    straight = group * tile.stride + atom * tile.leading
    return f.select(tile.swizzle == 0, straight, swizzled) + row * span


def _pairs(
    f: NativeMachine,
    access: Access,
    tile: SharedTile,
    rows: Lanes,
    chunks: Lanes,
    span: Lanes,
    pattern: Lanes,
) -> None:
    """Read a tile of two chunks a row that a swizzle leaves side by side, and return."""
    apart = (tile.start | tile.stride | span) & (2 * _CHUNK - 1)
    plain = (tile.swizzle != 0) & (chunks == 2) & (apart == 0)
    with f.function.when(str(plain.value)):
        numbers = {
            name: getattr(tile, name) for name in ("start", "stride", "swizzle", "base_offset")
        }
        read_by_core(access, numbers | {"span": span, "rows": rows}, pattern)
        replay = Replay(access, 2, 1)
        with _count(f, rows) as row:
            start = tile.start + (row >> 3) * tile.stride + (row & 7) * span
            offset = _place(f, tile, start) & ~(2 * _CHUNK - 1)
            inside = offset + 2 * _CHUNK <= f.field("shared_size")
            with f.function.when(str(inside.value)):
                replay.block(offset >> 4, 0, pattern)
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))


def _place(f: NativeMachine, tile: SharedTile, address: Lanes) -> Lanes:
    return place_in_tile(f, address, tile.swizzle, tile.base_offset)


class _count:
    """Loop over the numbers below a uint32."""

    def __init__(self, f: NativeMachine, count: Lanes) -> None:
        self.f = f
        self.loop = f.function.loop(str(count.value), "i32")

    def __enter__(self) -> Lanes:
        return self.f.lanes(UINT32, self.loop.__enter__(), 0)

    def __exit__(self, *exception: object) -> None:
        self.loop.__exit__(None, None, None)


def _chunk(
    f: NativeMachine, access: Access, tile: SharedTile, address: Lanes, pattern: Lanes
) -> None:
    """Read 16 bytes at an address, before the swizzle."""
    offset = _place(f, tile, address)
    inside = offset + _CHUNK <= f.field("shared_size")
    with f.function.when(str(inside.value)):
        # Descriptors count 16 bytes: a chunk is a record.
        access.record(offset >> 4, pattern, f.constant(state.BYTES, UINT64))
