"""The product of packed float32 matrices into Tensor Memory, as native code.

May import `base`, `isa` and the modules of `engine` below it. A tile of the result stays in
registers while all of K goes by. Its shape follows from the registers that the CPU has: with one
that does not fit, sums are spilled at every step, and the product is several times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, FLOAT16, FLOAT32, UINT16, UINT32, UINT64, DType
from tilewright.isa.machine import WARP, Lanes, Update
from tilewright.sim.engine.context import TMEM_LANES
from tilewright.sim.engine.spelling import llvm_type

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

BLOCK = 16  # rows of a vector
_VECTOR = llvm_type(FLOAT32, BLOCK)
_UNROLLED = 4  # steps of K in the loop's body; every K is a multiple of it
MASK_WORDS = TMEM_LANES // WARP


@dataclass(frozen=True)
class Packed:
    """Operands in memory as panels: sixteen rows of A or columns of B at k = 0, then at k = 1, …

    `rows` and `columns` are M and N, uint32.
    """

    left: str
    right: str
    rows: Lanes
    columns: Lanes
    depth: int


@dataclass(frozen=True)
class Kind:
    """What a microkernel is made for: D's type, whether D is scaled, whether lanes may stay.

    `exact` tells that products of factors are float32 numbers: those of float16 are.
    """

    result: DType
    scaled: bool
    masked: bool
    exact: bool

    @property
    def name(self) -> str:
        """Name the function."""
        flags = (("scaled", self.scaled), ("masked", self.masked), ("exact", self.exact))
        return "_".join(["multiply", self.result.name, *(name for name, on in flags if on)])


def multiply(
    m: NativeMachine, kind: Kind, column: str, lane: Lanes, step: Lanes, of: Packed, update: Update
) -> None:
    """Multiply into Tensor Memory, from the column at a host address on.

    Row 0 lies in `lane`, blocks of 16 rows are `step` lanes apart (uint32). Per output it is a
    float32 FMA chain in ascending k, from D · scale or from 0.
    """
    kind = Kind(kind.result, kind.scaled, kind.masked, kind.exact and not fuses(m))
    if kind.name not in m.module.functions:
        _Microkernel(m, kind).emit()
    words = [lane, step, of.rows, of.columns, m.constant(of.depth, UINT32)]
    listed = [f"i64 {m.cast(each, UINT64).value}" for each in words]
    listed += [f"i1 {update.accumulate.value}", f"float {update.scale.value}"]
    listed += [f"i32 {each.value}" for each in update.kept]
    pointers = ", ".join(f"ptr {each}" for each in (column, of.left, of.right))
    m.function.emit(f"call void @{kind.name}({pointers}, {', '.join(listed)})")


def fuses(m: NativeMachine) -> bool:
    """Tell whether the CPU multiplies and adds at once."""
    return bool(m.module.cpu_features & {"fma", "neon"})


def added(m: NativeMachine, a: Lanes, b: Lanes, total: Lanes, *, exact: bool) -> Lanes:
    """Add a product to a sum, rounding once; `exact` tells that it needs no rounding itself."""
    if exact and not fuses(m):
        return m.float_operation("add", m.float_operation("mul", a, b), total)
    return m.chained_fma(a, b, total)


def make_canonical(m: NativeMachine, slots: Sequence[str], width: int) -> None:
    """Give the one NaN that there is to sums that are NaN, vectors on the stack; seldom any is."""
    vector = llvm_type(FLOAT32, width)
    values = [m.op(f"load {vector}, ptr {slot}, align 4") for slot in slots]
    pairs = zip(values[::2], values[1::2], strict=True)
    flags = [m.op(f"fcmp uno {vector} {a}, {b}") for a, b in pairs]
    found = flags[0]
    for each in flags[1:]:
        found = m.op(f"or <{width} x i1> {found}, {each}")
    bits = m.op(f"bitcast <{width} x i1> {found} to i{width}")
    with m.function.when(m.op(f"icmp ne i{width} {bits}, 0")):
        for slot, value in zip(slots, values, strict=True):
            number = m.canonical(m.lanes(FLOAT32, value, width))
            m.function.emit(f"store {vector} {number.value}, ptr {slot}, align 4")


def held(m: NativeMachine, word: Lanes, result: DType) -> Lanes:
    """Read cells of D, uint32, as float32."""
    if result == FLOAT32:
        return m.bitcast(word, FLOAT32)
    return m.cast(m.bitcast(m.cast(word, UINT16), FLOAT16), FLOAT32)


def as_word(m: NativeMachine, total: Lanes, result: DType) -> Lanes:
    """Make cells of D, uint32, of float32 numbers."""
    if result == FLOAT32:
        return m.bitcast(total, UINT32)
    return m.cast(m.bitcast(m.cast(total, FLOAT16), UINT16), UINT32)


def stays(m: NativeMachine, kept: Sequence[Lanes], lane: Lanes) -> Lanes:
    """Tell of sixteen lanes of Tensor Memory, from `lane` on, which are kept as they are."""
    word = kept[0]
    for index, each in enumerate(kept[1:], 1):
        word = m.select((lane >> 5) == index, each, word)
    half = m.cast(word >> (lane & (WARP - 1)), UINT16)
    bits = m.op(f"bitcast i16 {half.value} to <{BLOCK} x i1>")
    return m.lanes(BOOL, bits, BLOCK)


def _tile(features: frozenset[str]) -> tuple[int, int]:
    """Choose the vectors of rows and the columns of a tile, which divide every M and N."""
    if "avx512f" in features:
        return 4, 4  # 16 of 32 registers hold sums
    if "avx" in features or "neon" in features:
        return 1, 4  # 8 of 16 registers of half a vector, or 16 of 32 of a quarter
    return 1, 2  # 8 of 16 registers of a quarter


class _Microkernel:
    """Emits the function: loops over tiles, and of a tile over K."""

    def __init__(self, m: NativeMachine, kind: Kind) -> None:
        self.f = m.module.machine(kind.name)
        self.kind = kind
        self.vectors, self.columns = _tile(m.module.cpu_features)
        self.sums = [self.f.function.slot(_VECTOR) for _ in range(self.vectors * self.columns)]

    def word(self, name: str) -> Lanes:
        """Read a parameter, uint64."""
        return self.f.lanes(UINT64, f"%{name}", 0)

    def emit(self) -> None:
        """Emit the function."""
        f = self.f
        wide = self.columns.bit_length() - 1
        high = (self.vectors * BLOCK).bit_length() - 1
        with f.function.loop(str((self.word("columns") >> wide).value)) as outer:
            column = f.lanes(UINT64, outer, 0) << wide
            with f.function.loop(str((self.word("rows") >> high).value)) as inner:
                self._one(column, f.lanes(UINT64, inner, 0))
        f.function.emit("ret void")
        kept = [f"i32 %kept{index}" for index in range(MASK_WORDS if self.kind.masked else 0)]
        words = [f"i64 %{name}" for name in ("lane", "step", "rows", "columns", "depth")]
        pointers = [f"ptr noalias %{name}" for name in ("first", "left", "right")]
        listed = [*pointers, *words, "i1 %accumulate", "float %scale", *kept]
        f.function.finish("void", ", ".join(listed), "noinline")

    def _one(self, column: Lanes, tile: Lanes) -> None:
        """Emit the product of a tile, by its first column and its number among the rows."""
        f = self.f
        block = tile * self.vectors
        cells = self._cells(column, block)
        self._start(cells)
        depth = self.word("depth")
        panels = [self._at("%left", (block + i) * depth * BLOCK) for i in range(self.vectors)]
        first = (column >> 4) * depth * BLOCK + (column & (BLOCK - 1))
        with f.function.loop(str((depth >> 2).value)) as turn:
            k = f.lanes(UINT64, turn, 0) * _UNROLLED
            left = [self._at(panel, k * BLOCK) for panel in panels]
            right = self._at("%right", first + k * BLOCK)
            for each in range(_UNROLLED):
                self._step(left, right, each * BLOCK)
        make_canonical(f, self.sums, BLOCK)
        self._finish(cells, block)

    def _cells(self, column: Lanes, block: Lanes) -> list[str]:
        """Address the vectors of a tile of D, column after column."""
        lanes = [self._lane(block + i) for i in range(self.vectors)]
        rows = [self._at("%first", column * TMEM_LANES + lane) for lane in lanes]
        return [
            self.f.op(f"getelementptr float, ptr {row}, i64 {j * TMEM_LANES}")
            for j in range(self.columns)
            for row in rows
        ]

    def _lane(self, block: Lanes) -> Lanes:
        return self.word("lane") + block * self.word("step")

    def _start(self, cells: Sequence[str]) -> None:
        f = self.f
        held, none, after = (f.function.new_label(s) for s in ("held", "none", "after"))
        f.function.branch_if("%accumulate", held, none)
        f.function.label(held)
        for cell, slot in zip(cells, self.sums, strict=True):
            self._put(self._held(cell), slot)
        f.function.branch(after)
        f.function.label(none)
        for slot in self.sums:
            f.function.emit(f"store {_VECTOR} zeroinitializer, ptr {slot}")
        f.function.branch(after)
        f.function.label(after)

    def _held(self, cell: str) -> Lanes:
        f = self.f
        if self.kind.result == FLOAT32:
            found = self._vector(cell)
        else:
            found = held(f, self._word(cell), self.kind.result)
        return found * f.lanes(FLOAT32, "%scale", 0) if self.kind.scaled else found

    def _step(self, left: Sequence[str], right: str, offset: int) -> None:
        """Add the products at one k, whose factors lie so far on."""
        f = self.f
        factors = [self._vector(self._at(panel, f.constant(offset, UINT64))) for panel in left]
        for j in range(self.columns):
            at = self._at(right, f.constant(offset + j, UINT64))
            factor = f.lanes(FLOAT32, f.op(f"load float, ptr {at}, align 4"), 0)
            factor = f.lanes(FLOAT32, f.spread(factor, BLOCK), BLOCK)
            for i, vector in enumerate(factors):
                slot = self.sums[j * self.vectors + i]
                total = added(f, vector, factor, self._vector(slot), exact=self.kind.exact)
                self._put(total, slot)

    def _finish(self, cells: Sequence[str], block: Lanes) -> None:
        """Write a tile of D, except in lanes that stay."""
        f = self.f
        kept = [f.lanes(UINT32, f"%kept{index}", 0) for index in range(MASK_WORDS)]
        lanes = [f.cast(self._lane(block + i), UINT32) for i in range(self.vectors)]
        old = [stays(f, kept, lane) for lane in lanes] if self.kind.masked else []
        for index, (cell, slot) in enumerate(zip(cells, self.sums, strict=True)):
            word = as_word(f, self._vector(slot), self.kind.result)
            if old:
                word = f.select(old[index % self.vectors], self._word(cell), word)
            f.function.emit(f"store <{BLOCK} x i32> {word.value}, ptr {cell}, align 4")

    def _at(self, base: str, index: Lanes) -> str:
        return self.f.op(f"getelementptr float, ptr {base}, i64 {index.value}")

    def _vector(self, at: str) -> Lanes:
        return self.f.lanes(FLOAT32, self.f.op(f"load {_VECTOR}, ptr {at}, align 4"), BLOCK)

    def _word(self, at: str) -> Lanes:
        loaded = self.f.op(f"load <{BLOCK} x i32>, ptr {at}, align 4")
        return self.f.lanes(UINT32, loaded, BLOCK)

    def _put(self, value: Lanes, at: str) -> None:
        self.f.function.emit(f"store {_VECTOR} {value.value}, ptr {at}, align 4")
