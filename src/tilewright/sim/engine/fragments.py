"""Products of the fragments of a warp as native code.

May import `base`, `isa` and the modules of `engine` below it. Sums are kept as columns of D, in an
order of rows that interleaving leads to and back from. Factors of A come to that order by the
transposition of the 16-byte runs of K that lanes hold; those of B are read from memory one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.dtypes import FLOAT16, FLOAT32, DType
from tilewright.isa.declaration import Fragment
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine import exact
from tilewright.sim.engine.microkernel import added, make_canonical
from tilewright.sim.engine.spelling import llvm_type, scalar_type
from tilewright.sim.engine.tiles import interleaved, single, transposed

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_QUAD = 4  # lanes that hold neighbours in a row of D, elements of 16 bytes
_WORD = 4  # bytes
_RUN = 16  # bytes

# For each register of outputs, the rows and the columns that its lanes hold.
Places = Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class _Part:
    """Four pieces of registers of outputs, (register, first lane), and the columns they hold."""

    pieces: tuple[tuple[int, int], ...]
    columns: tuple[int, ...]


def multiply(
    m: NativeMachine,
    a: Sequence[Lanes],
    b: Sequence[Lanes],
    sums: Sequence[Lanes],
    fragments: tuple[Fragment, Fragment],
    types: tuple[DType, DType],
    places: Places,
) -> list[Lanes]:
    """Add the products of fragments of A and B to sums: float32 FMA chains in ascending k.

    `types` are those of the factors and of what the sums, float32 here, become.
    """
    kind = types[0]
    width = 16 if "avx512f" in m.module.cpu_features else 8
    factors = _Factors(m, b, fragments[1], kind)
    slots = [m.function.slot(llvm_type(FLOAT32, WARP)) for _ in sums]
    for rows, parts in _passes(places, width).items():
        _Pass(m, width, types, factors).emit(
            _columns(m, a, fragments[0], kind, rows), parts, sums, slots
        )
    return [m.restore(slot, FLOAT32) for slot in slots]


def _passes(places: Places, width: int) -> dict[tuple[int, ...], list[_Part]]:
    """Find what goes through together: by the order of rows in a vector, the parts of outputs."""
    alike: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for register, (_, columns) in enumerate(places):
        for first in range(0, WARP, width):
            quads = columns[first : first + width].reshape(-1, _QUAD)
            assert (quads == quads[0]).all(), "lanes hold the same columns in all rows"
            alike.setdefault(tuple(quads[0].tolist()), []).append((register, first))
    passes: dict[tuple[int, ...], list[_Part]] = {}
    for columns, pieces in alike.items():
        for start in range(0, len(pieces), _QUAD):
            part = _Part(tuple(pieces[start : start + _QUAD]), columns)
            rows = [
                places[register][0][first : first + width : _QUAD]
                for register, first in part.pieces
            ]
            passes.setdefault(tuple(np.stack(rows, 1).reshape(-1).tolist()), []).append(part)
    return passes


def _columns(
    m: NativeMachine, a: Sequence[Lanes], fragment: Fragment, kind: DType, rows: Sequence[int]
) -> list[Lanes]:
    """Bring A to vectors of such rows, for every k."""
    per = _RUN * 8 // kind.bits
    found: list[Lanes] = []
    for first in range(0, fragment.columns, per):
        runs = [_run(m, a, fragment, row, range(first, first + per)) for row in rows]
        vector = llvm_type(kind, per)
        chunks = [m.op(f"load {vector}, ptr {run}, align {_RUN}") for run in runs]
        for each in transposed(m, chunks, kind):
            found.append(single(m, m.lanes(kind, each, len(rows)), kind))
    return found


def _run(m: NativeMachine, a: Sequence[Lanes], fragment: Fragment, row: int, ks: range) -> str:
    """Address 16 bytes of a row of A in memory."""
    owners = [fragment.owner(row, k) for k in ks]
    lanes, registers = [int(lane) for lane, _ in owners], [int(each) for _, each in owners]
    size = _WORD // fragment.packed
    places = [lane * _WORD + k % fragment.packed * size for lane, k in zip(lanes, ks, strict=True)]
    whole = list(range(places[0], places[0] + _RUN, size))
    assert places == whole and len(set(registers)) == 1, "lanes hold runs of K"
    return m.op(f"getelementptr i8, ptr {m.in_memory(a[registers[0]])}, i64 {places[0]}")


class _Factors:
    """B as float32 in memory, in the order of registers, lanes, and elements in a register."""

    def __init__(
        self, m: NativeMachine, b: Sequence[Lanes], fragment: Fragment, kind: DType
    ) -> None:
        self.m = m
        self.fragment = fragment
        self.count = WARP * fragment.packed
        vector = llvm_type(FLOAT32, self.count)
        self.size = len(b) * self.count
        self.place = m.function.slot(f"[{len(b)} x {vector}]")
        for index, each in enumerate(b):
            given = f"{llvm_type(each.dtype, WARP)} {m.spread(each)}"
            elements = m.op(f"bitcast {given} to <{self.count} x {scalar_type(kind)}>")
            wide = single(m, m.lanes(kind, elements, self.count), kind)
            at = m.op(f"getelementptr {vector}, ptr {self.place}, i64 {index}")
            # Volatile, lest LLVM keeps them in registers and takes them out one by one.
            m.function.emit(f"store volatile {vector} {wide.value}, ptr {at}, align 64")

    def index(self, column: int, k: int) -> int:
        """Tell where a factor is."""
        lane, register = self.fragment.owner(column, k)
        packed = self.fragment.packed
        return register * self.count + lane * packed + k % packed

    def repeated(self, column: int, k: int, width: int) -> Lanes:
        """Load a factor into all elements of a vector."""
        m = self.m
        at = m.op(f"getelementptr float, ptr {self.place}, i64 {self.index(column, k)}")
        factor = m.lanes(FLOAT32, m.op(f"load float, ptr {at}, align 4"), 0)
        return m.lanes(FLOAT32, m.spread(factor, width), width)


class _Pass:
    """Emits the sums of some rows."""

    def __init__(
        self, m: NativeMachine, width: int, types: tuple[DType, DType], factors: _Factors
    ) -> None:
        self.m = m
        self.width = width
        self.kind, self.result = types
        self.factors = factors
        self.vector = llvm_type(FLOAT32, width)

    def emit(
        self,
        left: Sequence[Lanes],
        parts: Sequence[_Part],
        sums: Sequence[Lanes],
        slots: Sequence[str],
    ) -> None:
        """Add products to parts of sums, and put what they become into slots."""
        m = self.m
        places: dict[int, str] = {}
        for part in parts:
            vectors = [self._piece(sums[register], first) for register, first in part.pieces]
            turned = interleaved(m, vectors, scalar_type(FLOAT32), self.width)
            for column, total in zip(part.columns, turned, strict=True):
                places[column] = m.function.slot(self.vector)
                self._put(total, places[column])
        if m.module.exact is None:
            self._add(left, places)
        else:
            exact.Columns(m, self.kind, self.result, left).add(self.factors, places)
        for part in parts:
            totals = [str(self._sum(places[column]).value) for column in part.columns]
            turned = interleaved(m, totals, scalar_type(FLOAT32), self.width)
            for (register, first), piece in zip(part.pieces, turned, strict=True):
                self._put(piece, m.op(f"getelementptr float, ptr {slots[register]}, i64 {first}"))

    def _add(self, left: Sequence[Lanes], places: Mapping[int, str]) -> None:
        """Add the products of columns of B, by FMA chains, to sums."""
        m = self.m
        for k, factor in enumerate(left):
            for column, place in places.items():
                other = self.factors.repeated(column, k, self.width)
                total = added(m, factor, other, self._sum(place), exact=self.kind == FLOAT16)
                self._put(str(total.value), place)
        make_canonical(m, list(places.values()), self.width)

    def _piece(self, register: Lanes, first: int) -> str:
        order = range(first, first + self.width)
        return self.m.permute(str(register.value), scalar_type(FLOAT32), WARP, order)

    def _sum(self, place: str) -> Lanes:
        loaded = self.m.op(f"load {self.vector}, ptr {place}, align 4")
        return self.m.lanes(FLOAT32, loaded, self.width)

    def _put(self, value: str, place: str) -> None:
        self.m.function.emit(f"store {self.vector} {value}, ptr {place}, align 4")
