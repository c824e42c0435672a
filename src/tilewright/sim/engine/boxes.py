"""Copies of boxes of tensors as native code: row after row, in chunks of 16 bytes.

May import `base`, `isa` and the rest of `sim.engine`. One function per rank and direction. Each
row is checked against the allocations of global memory and against shared memory; a chunk stays
in its line of 128 bytes of shared memory, which is allocated in whole lines. A box that lies
inside its tensor is checked as a whole and its rows are copied as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, INT64, UINT8, UINT16, UINT32, UINT64
from tilewright.isa.machine import Box, Lanes
from tilewright.sim.engine import memory

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_CHUNK = 16
_LINE = 128  # bytes within which a swizzle moves chunks
_CHUNKS = _LINE // _CHUNK
_BYTES = f"<{_CHUNK} x i8>"
_TF32_LOST = 13  # low bits of a float32 that a tf32 does not have
_TF32_NAN = 0x7FFFE000
# Bounds of what a tensor map can say, within which no size overflows.
_MOST_ROWS, _MOST_STRIDE, _MOST_PITCH = 1 << 8, 1 << 40, 1 << 16
_FIELDS = ("extents", "strides", "origin", "sizes", "steps")
_SCALARS = ("address", "shared", "pitch", "swizzle", "fill", "rounds", "host", "bottom", "size")


def load_box(m: NativeMachine, box: Box, fill: Lanes, rounds: Lanes) -> None:
    """Copy a box to shared memory; fills what the tensor does not have."""
    _call(m, "load_box", box, fill, rounds, memory.shared_of(m), _Load)


def store_box(m: NativeMachine, box: Box) -> None:
    """Copy a box from shared memory, or from what has been read of it, to the tensor."""
    zero = m.constant(0, UINT64)
    seen = m.seen or memory.shared_of(m)
    _call(m, "store_box", box, zero, zero, seen, _Store)


def _call(
    m: NativeMachine,
    stem: str,
    box: Box,
    fill: Lanes,
    rounds: Lanes,
    shared: memory.Shared,
    copy: type[_Copy],
) -> None:
    rank = len(box.sizes)
    name = f"{stem}_{rank}"
    if name not in m.module.functions:
        copy(m, name, rank).emit()
    words: list[Lanes] = [each for field in _FIELDS for each in getattr(box, field)]
    words += [box.address, box.shared, box.pitch, box.swizzle, fill, rounds]
    words += [shared.host, shared.start, shared.size]
    listed = ", ".join(f"i64 {m.cast(each, UINT64).value}" for each in words)
    m.function.emit(f"call void @{name}(ptr %ctx, i32 {m.site}, {listed})")


class _Copy:
    """Emits the copy of a box of a rank: its loops, and where its rows lie."""

    writes = False  # to the tensor

    def __init__(self, m: NativeMachine, name: str, rank: int) -> None:
        self.f = m.module.machine(name, "%site")
        self.rank = rank
        names = [f"{field}{axis}" for field in _FIELDS for axis in range(rank)] + [*_SCALARS]
        self.parameters = ", ".join(f"i64 %{name}" for name in names)

    def word(self, name: str, axis: int | str = "") -> Lanes:
        """Read a parameter, uint64."""
        return self.f.lanes(UINT64, f"%{name}{axis}", 0)

    def number(self, name: str, axis: int | str = "") -> Lanes:
        """Read a parameter, int64."""
        return self.f.lanes(INT64, f"%{name}{axis}", 0)

    def emit(self) -> None:
        """Emit the function."""
        f = self.f
        memory.end_after_fault(f)
        self._whole()
        row = self.word("sizes", 0) * self.word("strides", 0)
        first = self.number("origin", 0) * self.number("strides", 0)
        length = f.bitcast(row, INT64)
        low = self._clamped(-first, length)
        high = self._clamped(self.number("extents", 0) * self.number("strides", 0) - first, length)
        start = self.word("address") + f.bitcast(first, UINT64)
        inside = f.constant(True, BOOL)

        def row_in_part(place: Lanes, here: Lanes, number: Lanes) -> None:
            ends = (f.bitcast(each, UINT64) for each in (low, f.select(here, high, low)))
            self.row(place, number * self.word("pitch"), *ends)

        self._axis(self.rank - 1, start, inside, f.constant(0, UINT64), row_in_part)
        f.bump("progress")
        f.function.emit("ret void")
        f.function.finish("void", f"ptr %ctx, i32 %site, {self.parameters}", "noinline")

    def _clamped(self, value: Lanes, most: Lanes) -> Lanes:
        return self.f.binary(
            "max", self.f.binary("min", value, most), self.f.constant(0, value.dtype)
        )

    def _axis(
        self,
        axis: int,
        start: Lanes,
        inside: Lanes,
        number: Lanes,
        body: Callable[[Lanes, Lanes, Lanes], None],
    ) -> None:
        """Emit the loop over an axis, outermost first; on the innermost one, a row."""
        f = self.f
        if axis == 0:
            body(start, inside, number)
            return
        with f.function.loop(str(self.word("sizes", axis).value)) as counter:
            count = f.lanes(UINT64, counter, 0)
            coordinate = self.word("origin", axis) + count * self.word("steps", axis)
            # A negative coordinate is beyond every extent.
            here = inside & (coordinate < self.word("extents", axis))
            place = start + coordinate * self.word("strides", axis)
            row = number * self.word("sizes", axis) + count
            self._axis(axis - 1, place, here, row, body)

    # ---- a box inside its tensor

    def _whole(self) -> None:
        """Copy the box and return, if it is plain and inside what it is copied from and to."""
        f = self.f
        row = self.word("sizes", 0) * self.word("strides", 0)
        span = (self.word("swizzle") + 1) << 4
        place = self.word("shared")
        # The chunks of a row are turned alike: none lies in another line than its first.
        turned = (self.word("swizzle") == 0) | (
            (((place | self.word("pitch")) & (span - 1)) == 0) & (row <= span)
        )
        plain = turned & ((row & (_CHUNK - 1)) == 0) & (self.word("rounds") == 0)
        for axis in range(self.rank):
            plain = plain & self._reaches(axis)
        plain = plain & (self.word("pitch") < _MOST_PITCH)
        first, ahead, rows = self._hull()
        behind = place - self.word("bottom")
        size = (rows - 1) * self.word("pitch") + row
        plain = plain & (place >= self.word("bottom")) & (behind + size <= self.word("size"))
        plain = plain & memory.lies_in_region(f, first, ahead + row, write=self.writes)
        with f.function.when(str(plain.value)):
            start = self.word("address") + self.word("origin", 0) * self.word("strides", 0)
            zero, inside = f.constant(0, UINT64), f.constant(True, BOOL)
            self._axis(self.rank - 1, start, inside, zero, self._plain_row)
            f.bump("progress")
            f.function.emit("ret void")
            f.function.label(f.function.new_label("dead"))

    def _reaches(self, axis: int) -> Lanes:
        """Tell whether all elements along an axis are the tensor's, and sizes do not overflow."""
        origin, size = self.word("origin", axis), self.word("sizes", axis)
        extent, stride = self.word("extents", axis), self.word("strides", axis)
        step = self.word("steps", axis) if axis else self.f.constant(1, UINT64)
        small = (size != 0) & (size <= _MOST_ROWS) & (step <= _MOST_ROWS) & (stride < _MOST_STRIDE)
        last = origin + (size - 1) * step
        return small & (origin < extent) & (last < extent)

    def _hull(self) -> tuple[Lanes, Lanes, Lanes]:
        """Give the first row's address, the way from it to the last one, the number of rows."""
        first = self.word("address") + self.word("origin", 0) * self.word("strides", 0)
        ahead, rows = self.f.constant(0, UINT64), self.f.constant(1, UINT64)
        for axis in range(1, self.rank):
            stride = self.word("strides", axis)
            first = first + self.word("origin", axis) * stride
            ahead = ahead + (self.word("sizes", axis) - 1) * self.word("steps", axis) * stride
            rows = rows * self.word("sizes", axis)
        return first, ahead, rows

    def _plain_row(self, start: Lanes, inside: Lanes, number: Lanes) -> None:
        """Copy a row that is not turned out of its line."""
        place = self.word("shared") + number * self.word("pitch")
        turn = (place >> 7) & self.word("swizzle")
        base = self.word("host") + (place - self.word("bottom"))
        row = self.word("sizes", 0) * self.word("strides", 0)
        full = (row == _LINE) & (self.word("swizzle") == _CHUNKS - 1)
        self.either(
            full,
            lambda: self._line(start, base, turn),
            lambda: self._chunk_by_chunk(start, base, turn << 4, row),
        )

    def _line(self, start: Lanes, base: Lanes, turn: Lanes) -> None:
        """Copy a row of a whole line: how its chunks are turned is known in each of eight arms."""
        f = self.f
        vector = f"<{2 * _CHUNKS} x i64>"
        turns = [f.function.new_label("turn") for _ in range(_CHUNKS)]
        after = f.function.new_label("after")
        source, target = self._ends(start, base)
        arms = " ".join(f"i64 {number}, label %{label}" for number, label in enumerate(turns))
        f.function.emit(f"switch i64 {turn.value}, label %{turns[0]} [ {arms} ]")
        for number, label in enumerate(turns):
            f.function.label(label)
            data = f.op(f"load {vector}, ptr {source}, align 1")
            order = [index ^ (2 * number) for index in range(2 * _CHUNKS)]
            turned = f.permute(data, "i64", 2 * _CHUNKS, order)
            f.function.emit(f"store {vector} {turned}, ptr {target}, align 1")
            f.function.branch(after)
        f.function.label(after)

    def _chunk_by_chunk(self, start: Lanes, base: Lanes, turn: Lanes, row: Lanes) -> None:
        f = self.f
        with f.function.loop(str((row >> 4).value)) as counter:
            at = f.lanes(UINT64, counter, 0) << 4
            source, target = self._ends(start + at, base + (at ^ turn))
            data = f.op(f"load {_BYTES}, ptr {source}, align 1")
            f.function.emit(f"store {_BYTES} {data}, ptr {target}, align 1")

    def _ends(self, start: Lanes, base: Lanes) -> tuple[str, str]:
        """Give where bytes come from and go to, of their places in the tensor and in the box."""
        ends = self.pointer(start), self.pointer(base)
        return (ends[1], ends[0]) if self.writes else ends

    def row(self, start: Lanes, offset: Lanes, low: Lanes, high: Lanes) -> None:
        """Emit the copy of a row, of whose bytes the tensor has those from `low` to `high`.

        `start` is the global address of its first byte, `offset` where it lies in the box.
        """
        raise NotImplementedError

    # ---- pieces

    def return_unless(self, condition: Lanes) -> None:
        """End the function unless a condition holds."""
        with self.f.function.when(str((~condition).value)):
            self.f.function.emit("ret void")
            self.f.function.label(self.f.function.new_label("dead"))

    def row_place(self, offset: Lanes) -> Lanes:
        """Check that a row lies in shared memory, and give its address there."""
        f = self.f
        place = self.word("shared") + offset
        row = self.word("sizes", 0) * self.word("strides", 0)
        behind = place - self.word("bottom")
        inside = (place >= self.word("bottom")) & (behind + row <= self.word("size"))
        with f.function.when(str((~inside).value)):
            memory.outside_shared(f, place)
        self.return_unless(inside)
        return place

    def chunk(self, place: Lanes, at: Lanes) -> str:
        """Give the host address of a chunk of a row, where the swizzle has it."""
        address = place + at
        address = address ^ (((address >> 7) & self.word("swizzle")) << 4)
        host = self.word("host") + (address - self.word("bottom"))
        return self.pointer(host)

    def pointer(self, address: Lanes) -> str:
        """Take a number as a host address."""
        return self.f.op(f"inttoptr i64 {address.value} to ptr")

    def chunks(self, end: Lanes, body: Callable[[Lanes], None]) -> None:
        """Emit a loop over the chunks of a row that begin before a byte."""
        f = self.f
        count = (end + (_CHUNK - 1)) >> 4
        with f.function.loop(str(count.value)) as counter:
            body(f.lanes(UINT64, counter, 0) << 4)

    def either(
        self, condition: Lanes, then: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """Emit a choice."""
        f = self.f.function
        yes, no, after = (f.new_label(stem) for stem in ("yes", "no", "after"))
        f.branch_if(str(condition.value), yes, no)
        for label, body in ((yes, then), (no, otherwise)):
            f.label(label)
            body()
            f.branch(after)
        f.label(after)

    def some_bytes(self, target: str, source: Lanes, first: Lanes, end: Lanes) -> None:
        """Copy bytes `first` to `end` of a chunk, one by one; `source` is that of its byte 0."""
        f = self.f
        with f.function.loop(str(_CHUNK)) as counter:
            index = f.lanes(UINT64, counter, 0)
            with f.function.when(str(((index >= first) & (index < end)).value)):
                byte = f.op(f"load i8, ptr {self.pointer(source + index)}")
                at = f.op(f"getelementptr i8, ptr {target}, i64 {counter}")
                f.function.emit(f"store i8 {byte}, ptr {at}")


class _Load(_Copy):
    """Emits the copy of a box to shared memory."""

    def row(self, start: Lanes, offset: Lanes, low: Lanes, high: Lanes) -> None:
        f = self.f
        with f.function.when(str((high > low).value)):
            found = memory.in_region(f, start + low, high - low, write=False)
            self.return_unless(found)
        place = self.row_place(offset)
        buffer = f.function.slot(_BYTES)

        def copy(at: Lanes) -> None:
            def whole() -> None:
                data = f.op(f"load {_BYTES}, ptr {self.pointer(start + at)}, align 1")
                f.function.emit(f"store {_BYTES} {data}, ptr {buffer}, align 16")
                self._round(buffer)

            def part() -> None:
                f.function.emit(f"store {_BYTES} zeroinitializer, ptr {buffer}, align 16")
                self._part(buffer, start, at, low, high)

            self.either((at >= low) & (at + _CHUNK <= high), whole, part)
            data = f.op(f"load {_BYTES}, ptr {buffer}, align 16")
            f.function.emit(f"store {_BYTES} {data}, ptr {self.chunk(place, at)}, align 1")

        self.chunks(self.word("sizes", 0) * self.word("strides", 0), copy)

    def _part(self, buffer: str, start: Lanes, at: Lanes, low: Lanes, high: Lanes) -> None:
        """Make a chunk that lies outside the tensor, in part or whole."""
        f = self.f
        zero, whole = (f.constant(each, UINT64) for each in (0, _CHUNK))
        first = f.select(low > at, low - at, zero)
        end = f.select(high > at, f.binary("min", high - at, whole), zero)
        self.some_bytes(buffer, start + at, first, end)
        self._round(buffer)
        numbers = f.lanes(UINT64, _vector("i64", range(_CHUNK)), _CHUNK)
        inside = (numbers >= first) & (numbers < end)
        fill = f.cast(self.word("fill"), UINT16)
        halves = f.spread(fill, _CHUNK // 2)
        filler = f.op(f"bitcast <{_CHUNK // 2} x i16> {halves} to {_BYTES}")
        data = f.op(f"load {_BYTES}, ptr {buffer}, align 16")
        chosen = f.select(inside, f.lanes(UINT8, data, _CHUNK), f.lanes(UINT8, filler, _CHUNK))
        f.function.emit(f"store {_BYTES} {chosen.value}, ptr {buffer}, align 16")

    def _round(self, buffer: str) -> None:
        """Round float32 elements to tf32, to nearest, ties to even, if the map says so."""
        f = self.f
        width = _CHUNK // 4
        with f.function.when(str((self.word("rounds") != 0).value)):
            kind = f"<{width} x i32>"
            bits = f.lanes(UINT32, f.op(f"load {kind}, ptr {buffer}, align 16"), width)
            half = (1 << (_TF32_LOST - 1)) - 1
            rounded = (bits + half + ((bits >> _TF32_LOST) & 1)) & ~((1 << _TF32_LOST) - 1)
            nan = (bits & 0x7FFFFFFF) > 0x7F800000
            value = f.select(nan, f.constant(_TF32_NAN, UINT32), rounded)
            f.function.emit(f"store {kind} {value.value}, ptr {buffer}, align 16")


class _Store(_Copy):
    """Emits the copy of a box from shared memory."""

    writes = True

    def row(self, start: Lanes, offset: Lanes, low: Lanes, high: Lanes) -> None:
        f = self.f
        with f.function.when(str((high > low).value)):
            found = memory.in_region(f, start + low, high - low, write=True)
            self.return_unless(found)
            place = self.row_place(offset)
            # The chunk with the last element is written whole, as far as there is memory.
            whole = (high + (_CHUNK - 1)) & ~(_CHUNK - 1)
            end = f.binary("min", whole, memory.region_end(f) - start)

            def copy(at: Lanes) -> None:
                source = self.chunk(place, at)

                def all_of_it() -> None:
                    data = f.op(f"load {_BYTES}, ptr {source}, align 1")
                    target = self.pointer(start + at)
                    f.function.emit(f"store {_BYTES} {data}, ptr {target}, align 1")

                def part() -> None:
                    zero, size = (f.constant(each, UINT64) for each in (0, _CHUNK))
                    first = f.select(low > at, f.binary("min", low - at, size), zero)
                    host = f.lanes(UINT64, f.op(f"ptrtoint ptr {source} to i64"), 0)
                    self.some_bytes(self.pointer(start + at), host, first, end - at)

                self.either((at >= low) & (at + _CHUNK <= end), all_of_it, part)

            self.chunks(end, copy)


def _vector(kind: str, values: Sequence[int]) -> str:
    return "<" + ", ".join(f"{kind} {each}" for each in values) + ">"
