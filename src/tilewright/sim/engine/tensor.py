"""Tensor Memory, and products of tiles in memory, as native code.

May import `base`, `isa` and the rest of `sim.engine`. Tensor Memory is kept column after column,
the 128 lanes of a column side by side, so that a column of the accumulator is a run of vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import FLOAT16, FLOAT32, UINT16, UINT32, UINT64, DType
from tilewright.isa.machine import WARP, Lanes, SharedTile, Update
from tilewright.sim.engine import exact
from tilewright.sim.engine.context import TMEM_COLUMNS, TMEM_LANES
from tilewright.sim.engine.microkernel import BLOCK, MASK_WORDS, Kind, Packed, multiply
from tilewright.sim.engine.spelling import llvm_type
from tilewright.sim.engine.tiles import single, unpack

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_CODE = "tensor-memory"
_OUTSIDE = "an access to Tensor Memory outside its lanes, or in columns that are not allocated"
_GRANULE = 32  # columns that are allocated together
_B_START = 1 << 15  # where the second operand lies in the scratch memory


def load_cells(m: NativeMachine, cells: Lanes) -> Lanes:
    """Load a cell per active lane."""
    m.module.memories.add("tmem")
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
    m.module.memories.add("tmem")
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


def clear_columns(m: NativeMachine, columns: Lanes) -> None:
    """Forget what columns hold that are allocated anew: bit i stands for 32·i to 32·i + 31."""
    m.module.memories.add("tmem")
    name = "clear_columns"
    if name not in m.module.functions:
        f = m.module.machine(name)
        memset = "llvm.memset.p0.i64"
        f.module.declare(memset, f"declare void @{memset}(ptr, i8, i64, i1)")
        size = _GRANULE * TMEM_LANES * 4
        with f.function.loop(str(TMEM_COLUMNS // _GRANULE)) as index:
            number = f.lanes(UINT64, index, 0)
            chosen = (f.lanes(UINT32, "%columns", 0) >> f.cast(number, UINT32)) & 1
            with f.function.when(str((chosen != 0).value)):
                offset = (number * size).value
                at = f.op(f"getelementptr i8, ptr {f.pointer('tmem')}, i64 {offset}")
                f.function.emit(f"call void @{memset}(ptr {at}, i8 -1, i64 {size}, i1 false)")
        f.function.emit("ret void")
        f.function.finish("void", "ptr %ctx, i32 %columns", "noinline")
    m.function.emit(f"call void @{name}(ptr %ctx, i32 {m.cast(columns, UINT32).value})")


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
    m.module.memories |= {"tmem", "scratch"}
    rows, columns, depth = shape
    kind, result = types
    scaled = update.scale.value != m.constant(1.0, FLOAT32).value
    form = Kind(result, scaled, bool(update.kept), kind == FLOAT16)
    where = "cells" if isinstance(a, Lanes) else "shared"
    name = f"product_{where}_{kind.name}_{depth}_{form.name}"
    if name not in m.module.functions:
        _Product(m, name, where, kind, depth, form).emit()
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


class _Product:
    """Emits the product of one kind of operands: unpack both to float32, then multiply."""

    def __init__(
        self, m: NativeMachine, name: str, where: str, kind: DType, depth: int, form: Kind
    ) -> None:
        self.f = m.module.machine(name, "%site")
        self.where = where
        self.kind = kind
        self.depth = depth
        self.result = form.result
        self.form = form
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
        kept = tuple(self._parameter() for _ in range(MASK_WORDS if self.form.masked else 0))
        self._stop_after_fault()
        scratch = f.pointer("scratch")
        right = f.op(f"getelementptr i8, ptr {scratch}, i64 {_B_START}")
        if isinstance(a, Lanes):
            self._unpack_cells(a, rows, scratch)
        else:
            unpack(f, a, self.kind, rows, self.depth, scratch)
        with f.function.when(str(negated.value)):
            self._negate(scratch, rows)
        unpack(f, b, self.kind, columns, self.depth, right)
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

    def _unpack_cells(self, start: Lanes, rows: Lanes, into: str) -> None:
        """Unpack an operand in Tensor Memory, packed elements per cell."""
        f = self.f
        per_cell = 32 // self.kind.bits
        with f.function.loop(str((rows >> 4).value), "i32") as counter:
            block = f.lanes(UINT32, counter, 0)
            lane = (start >> 16) + block * apart(rows)
            for cell in range(self.depth // per_cell):
                word = self._column((start & 0xFFFF) + cell, lane)
                for part in range(per_cell):
                    if per_cell == 1:
                        value = f.bitcast(word, FLOAT32)
                    else:
                        value = f.bitcast(f.cast(word >> (16 * part), UINT16), self.kind)
                    k = cell * per_cell + part
                    self._put(single(f, value, self.kind), into, (block * self.depth + k) * BLOCK)

    def _negate(self, at: str, rows: Lanes) -> None:
        """Change the sign of an unpacked operand."""
        f = self.f
        with f.function.loop(str((rows * self.depth >> 4).value), "i32") as counter:
            index = f.lanes(UINT32, counter, 0) * BLOCK
            self._put(-self._vector(at, index), at, index)

    def _cell(self, column: Lanes, lane: Lanes) -> str:
        f = self.f
        index = f.cast((column & 511) * TMEM_LANES + (lane & 127), UINT64)
        return f.op(f"getelementptr i32, ptr {f.pointer('tmem')}, i64 {index.value}")

    def _column(self, column: Lanes, lane: Lanes) -> Lanes:
        return self._word(self._cell(column, lane))

    def _word(self, cell: str) -> Lanes:
        """Load a column of 16 lanes."""
        loaded = self.f.op(f"load <{BLOCK} x i32>, ptr {cell}, align 4")
        return self.f.lanes(UINT32, loaded, BLOCK)

    def _at(self, base: str, index: Lanes) -> str:
        wide = self.f.cast(index, UINT64)
        return self.f.op(f"getelementptr float, ptr {base}, i64 {wide.value}")

    def _put(self, values: Lanes, into: str, index: Lanes) -> None:
        kind = llvm_type(FLOAT32, values.width)
        self.f.function.emit(f"store {kind} {values.value}, ptr {self._at(into, index)}, align 4")

    def _vector(self, base: str, index: Lanes) -> Lanes:
        kind = llvm_type(FLOAT32, BLOCK)
        loaded = self.f.op(f"load {kind}, ptr {self._at(base, index)}, align 4")
        return self.f.lanes(FLOAT32, loaded, BLOCK)

    # ---- the product

    def _multiply(
        self, d: Lanes, rows: Lanes, columns: Lanes, update: Update, left: str, right: str
    ) -> None:
        of = Packed(left, right, rows, columns, self.depth)
        column = self._cell(d & 0xFFFF, self.f.constant(0, UINT32))
        where = (column, d >> 16, apart(rows), of, update)
        if self.f.module.exact is None:
            multiply(self.f, self.form, *where)
        else:
            exact.multiply(self.f, self.kind, self.form, *where)


def apart(rows: Lanes) -> Lanes:
    """Count the lanes between blocks of 16 rows: of 64 rows, one lies in each quarter."""
    m = rows.machine
    return m.select(rows == 64, m.constant(WARP, UINT32), m.constant(BLOCK, UINT32))
