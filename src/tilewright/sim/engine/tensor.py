"""Tensor Memory, and products of tiles in memory, as native code.

May import `base`, `isa` and the rest of `sim.engine`. Tensor Memory is kept column after column,
the 128 lanes of a column side by side, so that a column of the accumulator is a run of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, UINT32, UINT64, DType
from tilewright.base.spaces import Space
from tilewright.isa.descriptors import PAIRED
from tilewright.isa.machine import WARP, Lanes, SharedTile, Update
from tilewright.sim.engine import context
from tilewright.sim.engine.context import TMEM_COLUMNS, TMEM_LANES
from tilewright.sim.engine.spelling import llvm_type, scalar_type

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

# Where an element of a row and a k goes, counted in elements.
Place = Callable[[Lanes, Lanes | int], Lanes]
_CODE = "tensor-memory"
_OUTSIDE = "an access to Tensor Memory outside its lanes, or in columns that are not allocated"
_BLOCK = 16  # rows of a vector in a product
_COLUMNS = 8  # columns of the accumulator that are held in registers
_B_START = 1 << 15  # where the second operand lies in the scratch memory
_CHUNK = 16  # bytes that a swizzle moves as one
_MASK_WORDS = TMEM_LANES // WARP
_HALF_WORD = DType("uint16", "uint", 16)


def load_cells(m: NativeMachine, cells: Lanes) -> Lanes:
    """Load a cell per active lane."""
    name = "load_cells"
    if name not in m.module.functions:
        f = m.module.machine(name, "%site")
        pointers = _cell_pointers(f)
        for lane in range(WARP):
            pointer = f.op(f"extractelement <32 x ptr> {pointers}, i32 {lane}")
            at = f.op(f"getelementptr i32, ptr %out, i64 {lane}")
            f.function.emit(f"store i32 {f.op(f'load i32, ptr {pointer}')}, ptr {at}")
        f.function.emit("ret void")
        f.function.finish(
            "void", "ptr %ctx, <32 x i32> %cells, i32 %mask, i32 %site, ptr %out", "noinline"
        )
    out = m.function.slot("<32 x i32>")
    where = m.spread(m.cast(cells, UINT32))
    m.function.emit(
        f"call void @{name}(ptr %ctx, <32 x i32> {where}, i32 {m.active().value}, "
        f"i32 {m.site}, ptr {out})"
    )
    return m.restore(out, UINT32)


def store_cells(m: NativeMachine, cells: Lanes, value: Lanes) -> None:
    """Store a cell per active lane."""
    name = "store_cells"
    if name not in m.module.functions:
        f = m.module.machine(name, "%site")
        pointers = _cell_pointers(f)
        for lane in range(WARP):
            pointer = f.op(f"extractelement <32 x ptr> {pointers}, i32 {lane}")
            element = f.op(f"extractelement <32 x i32> %value, i32 {lane}")
            f.function.emit(f"store i32 {element}, ptr {pointer}")
        f.bump("progress")
        f.function.emit("ret void")
        f.function.finish(
            "void",
            "ptr %ctx, <32 x i32> %cells, i32 %mask, i32 %site, <32 x i32> %value",
            "noinline",
        )
    where = m.spread(m.cast(cells, UINT32))
    bits = m.spread(m.bitcast(value, UINT32))
    m.function.emit(
        f"call void @{name}(ptr %ctx, <32 x i32> {where}, i32 {m.active().value}, "
        f"i32 {m.site}, <32 x i32> {bits})"
    )


def _cell_pointers(f: NativeMachine) -> str:
    """Check the cells of a warp and give their host addresses, dummy bytes for bad lanes."""
    cells = f.lanes(UINT32, "%cells", WARP)
    f.mask = f.unpack(f.lanes(UINT32, "%mask", 0))
    lane, column = cells >> 16, cells & 0xFFFF
    allocated = (f.cta_state("tmem_columns") >> (column >> 5)) & 1
    inside = (lane < TMEM_LANES) & (column < TMEM_COLUMNS) & (allocated != 0)
    bad = f.ballot(~inside)
    with f.function.when(str((bad != 0).value)):
        first = f.lowest(bad)
        f.fault(_CODE, _OUTSIDE, first, f.constant(0, UINT64))
    offset = f.cast(column * TMEM_LANES + lane, UINT64) * 4
    host = offset + f.field("tmem")
    safe = f.select(f.mask & inside, host, f.field("dummy"))
    return f.op(f"inttoptr <32 x i64> {safe.value} to <32 x ptr>")


# ---------------------------------------------------------------------------- products


def product_tiles(
    m: NativeMachine,
    d: Lanes,
    a: SharedTile | Lanes,
    b: SharedTile,
    shape: tuple[Lanes, Lanes, int],
    types: tuple[DType, DType],
    update: Update,
) -> None:
    """Multiply tiles in memory into Tensor Memory."""
    rows, columns, depth = shape
    kind, result = types
    where = "cells" if isinstance(a, Lanes) else "shared"
    masked = "_masked" if update.kept else ""
    name = f"product_{where}_{kind.name}_{result.name}_{depth}{masked}"
    if name not in m.module.functions:
        _Product(m, name, where, kind, result, depth, bool(update.kept)).emit()
    words = [d, *_fields(a), *_fields(b), rows, columns]
    words += [update.accumulate, update.negated, m.bitcast(update.scale, UINT32), *update.kept]
    listed = ", ".join(f"i32 {m.cast(each, UINT32).value}" for each in words)
    m.function.emit(f"call void @{name}(ptr %ctx, i32 {m.site}, {listed})")


def _fields(tile: SharedTile | Lanes) -> tuple[Lanes, ...]:
    if isinstance(tile, Lanes):
        return (tile,)
    return (
        *(tile.start, tile.leading, tile.stride, tile.swizzle, tile.base_offset),
        tile.transposed,
    )


def _chunks(tile: SharedTile) -> Lanes:
    """Count the 16-byte chunks of a span, less one."""
    return tile.swizzle | (tile.swizzle >> 1)


class _Product:
    """Emits the product of one kind of operands: unpack both to float32, then multiply."""

    def __init__(
        self,
        m: NativeMachine,
        name: str,
        where: str,
        kind: DType,
        result: DType,
        depth: int,
        masked: bool,
    ) -> None:
        self.f = m.module.machine(name, "%site")
        self.where = where
        self.kind = kind
        self.result = result
        self.depth = depth
        self.masked = masked
        self.per_chunk = _CHUNK * 8 // kind.bits
        self.parameters: list[str] = []

    def emit(self) -> None:
        """Emit the function."""
        f = self.f
        d = self._parameter()
        a = self._parameter() if self.where == "cells" else self._tile()
        b = self._tile()
        rows, columns = self._parameter(), self._parameter()
        accumulate, negated = self._parameter() != 0, self._parameter() != 0
        scale = f.bitcast(self._parameter(), FLOAT32)
        kept = tuple(self._parameter() for _ in range(_MASK_WORDS if self.masked else 0))
        self._stop_after_fault()
        scratch = f.pointer("scratch")
        right = f.op(f"getelementptr i8, ptr {scratch}, i64 {_B_START}")
        if isinstance(a, Lanes):
            self._unpack_cells(a, rows, scratch)
        else:
            self._unpack(a, rows, lambda row, k: rows * k + row, scratch, along_rows=True)
        with f.function.when(str(negated.value)):
            self._negate(scratch, rows)
        self._unpack(b, columns, lambda row, k: row * self.depth + k, right, along_rows=False)
        update = Update(accumulate, scale, negated, kept)
        self._multiply(d, rows, columns, update, scratch, right)
        f.bump("progress")
        f.function.emit("ret void")
        f.function.finish(
            "void", ", ".join(["ptr %ctx", "i32 %site", *self.parameters]), "noinline"
        )

    def _parameter(self) -> Lanes:
        name = f"%p{len(self.parameters)}"
        self.parameters.append(f"i32 {name}")
        return self.f.lanes(UINT32, name, 0)

    def _tile(self) -> SharedTile:
        start, leading, stride, swizzle, base, transposed = (self._parameter() for _ in range(6))
        return SharedTile(start, leading, stride, swizzle, base, transposed != 0)

    def _stop_after_fault(self) -> None:
        """Do nothing where the operands may not lie in what is allocated."""
        f = self.f
        with f.function.when(str((f.field("error") != 0).value)):
            f.function.emit("ret void")
            f.function.label(f.function.new_label("dead"))

    # ---- operands to float32

    def _single(self, value: Lanes) -> Lanes:
        """Widen elements; of a tf32 operand the low 13 bits do not count."""
        f = self.f
        if self.kind in (FLOAT16, BFLOAT16):
            return f.cast(value, FLOAT32)
        return f.bitcast(f.bitcast(value, UINT32) & 0xFFFFE000, FLOAT32)

    def _unpack(
        self, tile: SharedTile, rows: Lanes, place: Place, into: str, *, along_rows: bool
    ) -> None:
        """Unpack a tile in shared memory; `place(row, k)` is where an element goes."""
        f = self.f
        plain, turned, after = (f.function.new_label(s) for s in ("plain", "turned", "after"))
        f.function.branch_if(str(tile.transposed.value), turned, plain)
        f.function.label(plain)
        chunks = self.depth // self.per_chunk
        with f.function.loop(str(rows.value), "i32") as counter:
            row = f.lanes(UINT32, counter, 0)
            for chunk in range(chunks):
                values = self._chunk(tile, self._k_major(tile, row, chunk))
                first = chunk * self.per_chunk
                if along_rows:
                    self._scatter(
                        values, into, [place(row, first + i) for i in range(self.per_chunk)]
                    )
                else:
                    self._put(values, into, place(row, f.constant(first, UINT32)))
        f.function.branch(after)
        f.function.label(turned)
        groups = f.binary("floordiv", rows, f.constant(self.per_chunk, UINT32))
        with f.function.loop(str(groups.value), "i32") as counter:
            group = f.lanes(UINT32, counter, 0)
            row = group * self.per_chunk
            for k in range(self.depth):
                values = self._chunk(tile, self._mn_major(tile, group, k))
                if along_rows:
                    self._put(values, into, place(row, f.constant(k, UINT32)))
                else:
                    self._scatter(values, into, [place(row + i, k) for i in range(self.per_chunk)])
        f.function.branch(after)
        f.function.label(after)

    def _k_major(self, tile: SharedTile, row: Lanes, chunk: int) -> Lanes:
        """Give the address of a 16-byte chunk of a row, before the swizzle."""
        span = (_chunks(tile) + 1) << 4
        step = self.f.select(tile.swizzle == 0, tile.leading, self.f.constant(_CHUNK, UINT32))
        return tile.start + (row >> 3) * tile.stride + (row & 7) * span + step * chunk

    def _mn_major(self, tile: SharedTile, group: Lanes, k: int) -> Lanes:
        """Give the address of 16 bytes of neighbouring rows at one k, before the swizzle."""
        f = self.f
        chunks = _chunks(tile)
        width = f.cast(f.intrinsic("popcount", chunks), UINT32)
        # Where chunks move in pairs an atom is four spans, else eight.
        paired = tile.swizzle == PAIRED
        atom, row = (
            f.select(paired, f.constant(a, UINT32), f.constant(b, UINT32))
            for a, b in ((k >> 2, k >> 3), (k & 3, k & 7))
        )
        swizzled = (group >> width) * tile.leading + ((group & chunks) << 4) + tile.stride * atom
        plain = group * tile.stride + tile.leading * atom
        where = f.select(tile.swizzle == 0, plain, swizzled)
        return tile.start + where + ((chunks + 1) << 4) * row

    def _chunk(self, tile: SharedTile, address: Lanes) -> Lanes:
        """Read 16 bytes at a swizzled address of shared memory as float32."""
        f = self.f
        row = (address >> 7) - tile.base_offset
        turn = f.select(tile.swizzle == PAIRED, row << 1, row) & tile.swizzle
        where = address ^ (turn << 4)
        offset = f.cast(where, UINT64) - context.SHARED_START
        outside = offset + _CHUNK > f.field("shared_size")
        with f.function.when(str(outside.value)):
            text = "a matrix descriptor leads outside the shared memory of the CTA"
            first, at = f.constant(0, UINT32), f.cast(where, UINT64)
            f.fault("out-of-bounds", text, first, at, Space.SHARED)
        safe = f.select(outside, f.constant(0, UINT64), offset)
        pointer = f.op(f"getelementptr i8, ptr {f.pointer('shared')}, i64 {safe.value}")
        vector = f"<{self.per_chunk} x {scalar_type(self.kind)}>"
        return self._single(
            f.lanes(self.kind, f.op(f"load {vector}, ptr {pointer}, align 1"), self.per_chunk)
        )

    def _unpack_cells(self, start: Lanes, rows: Lanes, into: str) -> None:
        """Unpack an operand in Tensor Memory, packed elements per cell."""
        f = self.f
        per_cell = 32 // self.kind.bits
        with f.function.loop(str((rows >> 4).value), "i32") as counter:
            block = f.lanes(UINT32, counter, 0)
            lane = (start >> 16) + self._block_lane(block, rows)
            for cell in range(self.depth // per_cell):
                word = self._column((start & 0xFFFF) + cell, lane)
                for part in range(per_cell):
                    if per_cell == 1:
                        value = f.bitcast(word, FLOAT32)
                    else:
                        value = f.bitcast(f.cast(word >> (16 * part), _HALF_WORD), self.kind)
                    k = cell * per_cell + part
                    self._put(self._single(value), into, rows * k + block * _BLOCK)

    def _block_lane(self, block: Lanes, rows: Lanes) -> Lanes:
        """Give the first lane of 16 rows: of 64 rows, a block lies in one half of each quarter."""
        return self.f.select(rows == 64, block * WARP, block * _BLOCK)

    def _negate(self, at: str, rows: Lanes) -> None:
        """Change the sign of an unpacked operand."""
        f = self.f
        with f.function.loop(str((rows * self.depth >> 4).value), "i32") as counter:
            index = f.lanes(UINT32, counter, 0) * _BLOCK
            self._put(-self._vector(at, index), at, index)

    def _cell(self, column: Lanes, lane: Lanes) -> str:
        f = self.f
        index = f.cast((column & 511) * TMEM_LANES + (lane & 127), UINT64)
        return f.op(f"getelementptr i32, ptr {f.pointer('tmem')}, i64 {index.value}")

    def _column(self, column: Lanes, lane: Lanes) -> Lanes:
        return self._word(self._cell(column, lane))

    def _word(self, cell: str) -> Lanes:
        """Load a column of 16 lanes."""
        loaded = self.f.op(f"load <{_BLOCK} x i32>, ptr {cell}, align 4")
        return self.f.lanes(UINT32, loaded, _BLOCK)

    def _at(self, base: str, index: Lanes) -> str:
        wide = self.f.cast(index, UINT64)
        return self.f.op(f"getelementptr float, ptr {base}, i64 {wide.value}")

    def _put(self, values: Lanes, into: str, index: Lanes) -> None:
        kind = llvm_type(FLOAT32, values.width)
        self.f.function.emit(f"store {kind} {values.value}, ptr {self._at(into, index)}, align 4")

    def _scatter(self, values: Lanes, into: str, indices: list[Lanes]) -> None:
        kind = llvm_type(FLOAT32, values.width)
        for number, index in enumerate(indices):
            element = self.f.op(f"extractelement {kind} {values.value}, i32 {number}")
            self.f.function.emit(f"store float {element}, ptr {self._at(into, index)}, align 4")

    # ---- the product

    def _multiply(
        self, d: Lanes, rows: Lanes, columns: Lanes, update: Update, left: str, right: str
    ) -> None:
        f = self.f
        with f.function.loop(str((columns >> 3).value), "i32") as outer:
            group = f.lanes(UINT32, outer, 0) * _COLUMNS
            with f.function.loop(str((rows >> 4).value), "i32") as inner:
                block = f.lanes(UINT32, inner, 0)
                lane = (d >> 16) + self._block_lane(block, rows)
                cells = [
                    self._cell((d & 0xFFFF) + group + column, lane) for column in range(_COLUMNS)
                ]
                words = [self._word(cell) for cell in cells]
                sums = [self._start(word, update) for word in words]
                for k in range(self.depth):
                    x = self._vector(left, rows * k + block * _BLOCK)
                    for column in range(_COLUMNS):
                        y = self._element(right, (group + column) * self.depth + k)
                        sums[column] = f.chained_fma(x, y, sums[column])
                stays = self._stays(update.kept, lane) if update.kept else None
                for cell, word, total in zip(cells, words, sums, strict=True):
                    found = self._finished(total)
                    word = found if stays is None else f.select(stays, word, found)
                    f.function.emit(f"store <{_BLOCK} x i32> {word.value}, ptr {cell}, align 4")

    def _start(self, word: Lanes, update: Update) -> Lanes:
        f = self.f
        if self.result == FLOAT32:
            held = f.bitcast(word, FLOAT32)
        else:
            held = f.cast(f.bitcast(f.cast(word, _HALF_WORD), FLOAT16), FLOAT32)
        return f.select(update.accumulate, held * update.scale, f.constant(0.0, FLOAT32))

    def _finished(self, total: Lanes) -> Lanes:
        f = self.f
        if self.result == FLOAT32:
            return f.bitcast(f.canonical(total), UINT32)
        return f.cast(f.bitcast(f.cast(total, FLOAT16), _HALF_WORD), UINT32)

    def _stays(self, kept: tuple[Lanes, ...], lane: Lanes) -> Lanes:
        """Tell of 16 lanes which are kept as they are."""
        f = self.f
        word = kept[0]
        for index, each in enumerate(kept[1:], 1):
            word = f.select((lane >> 5) == index, each, word)
        half = f.cast(word >> (lane & (WARP - 1)), _HALF_WORD)
        bits = f.op(f"bitcast i16 {half.value} to <{_BLOCK} x i1>")
        return f.lanes(BOOL, bits, _BLOCK)

    def _vector(self, base: str, index: Lanes) -> Lanes:
        kind = llvm_type(FLOAT32, _BLOCK)
        loaded = self.f.op(f"load {kind}, ptr {self._at(base, index)}, align 4")
        return self.f.lanes(FLOAT32, loaded, _BLOCK)

    def _element(self, base: str, index: Lanes) -> Lanes:
        loaded = self.f.op(f"load float, ptr {self._at(base, index)}, align 4")
        return self.f.lanes(FLOAT32, loaded, 0)
