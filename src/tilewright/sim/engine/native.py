"""The machine as native code: what instructions do, emitted as LLVM text.

May import `base`, `isa` and the rest of `sim.engine`. Implements `isa.machine.Machine`;
instructions are traced through it into functions of their own or into the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.base.dtypes import BOOL, FLOAT32, UINT32, UINT64, DType
from tilewright.base.errors import CompilerBug
from tilewright.base.spaces import Space
from tilewright.isa.declaration import Form, Fragment
from tilewright.isa.machine import GROUPS, WARP, Box, Lanes, SharedTile, Update, packed
from tilewright.sim.engine import (
    boxes,
    context,
    groups,
    memory,
    queue,
    special_functions,
    tensor,
)
from tilewright.sim.engine.context import BARRIER_FIELDS, BARRIER_START, CLUSTER, FIELD
from tilewright.sim.engine.fragments import multiply
from tilewright.sim.engine.module import Function, Module
from tilewright.sim.engine.sites import Message
from tilewright.sim.engine.spelling import llvm_type, memory_type, scalar_type
from tilewright.sim.engine.values import Values


class NativeMachine(Values):
    """The machine at one point of native code: `mask` tells the active lanes.

    `mask` is a vector of booleans, or `None` where code runs for one lane or for no lane in
    particular (`each_lane` bodies, agents, the scheduler). `site` is the LLVM value that
    numbers the place to blame for a fault. `seen` is what an operation that has read its source
    sees of shared memory, in place of what is there by now.
    """

    def __init__(self, module: Module, name: str, site: str = "0") -> None:
        super().__init__(Function(module, name))
        self.module = module
        self.mask: Lanes | None = None
        self.site = site
        self.seen: memory.Shared | None = None
        self.homes: dict[str, str] = {}
        self._bits: dict[str, str] = {}  # what vectors of booleans were unpacked from

    # ---- the context

    def word(self, base: str, index: int | str) -> str:
        """Address a word of a record."""
        return self.op(f"getelementptr i64, ptr {base}, i64 {index}")

    def get_word(self, base: str, index: int | str) -> Lanes:
        """Read a word of a record, uint64."""
        return self.lanes(UINT64, self.op(f"load i64, ptr {self.word(base, index)}"), 0)

    def set_word(self, base: str, index: int | str, value: Lanes | int) -> None:
        """Write a word of a record."""
        word = self.cast(self.lift(value, UINT64), UINT64)
        self.function.emit(f"store i64 {word.value}, ptr {self.word(base, index)}")

    def field(self, name: str) -> Lanes:
        """Read a field of the context, uint64."""
        return self.get_word("%ctx", FIELD[name])

    def low_field(self, name: str) -> Lanes:
        """Read the low half of a field of the context, uint32."""
        return self.lanes(UINT32, self.op(f"load i32, ptr {self.word('%ctx', FIELD[name])}"), 0)

    def set_field(self, name: str, value: Lanes | int) -> None:
        """Write a field of the context."""
        self.set_word("%ctx", FIELD[name], value)

    def pointer(self, name: str) -> str:
        """Read a field of the context that is a host address."""
        return self.op(f"load ptr, ptr {self.word('%ctx', FIELD[name])}")

    def bump(self, name: str) -> None:
        """Count a field of the context up."""
        self.set_field(name, self.field(name) + 1)

    def from_word(self, word: Lanes, dtype: DType) -> Lanes:
        """Take a scalar out of a 64-bit word."""
        if dtype.is_bool:
            return word != 0
        return self.bitcast(self.cast(word, _bits(dtype)), dtype)

    def to_word(self, value: Lanes) -> Lanes:
        """Put a scalar into a 64-bit word."""
        if not value.dtype.is_bool:
            value = self.bitcast(value, _bits(value.dtype))
        return self.cast(value, UINT64)

    # ---- lanes

    def approximate(self, name: str, value: Lanes) -> Lanes:
        """Apply a function as the special function unit does, to float32."""
        return special_functions.approximate(self, name, value)

    def active(self) -> Lanes:
        """Give the set of active lanes as a uniform uint32."""
        if self.mask is None:
            return self.constant(1, UINT32)
        return self.bits(self.mask)

    def bits(self, predicate: Lanes) -> Lanes:
        """Pack a vector of booleans into a uint32, whatever lanes are active."""
        known = self._bits.get(str(predicate.value))
        if known is None:
            known = self.op(f"bitcast <32 x i1> {self.spread(predicate)} to i32")
        return self.lanes(UINT32, known, 0)

    def unpack(self, bits: Lanes) -> Lanes:
        """Spread a uniform uint32 over the lanes as booleans."""
        word = self.cast(bits, UINT32)
        found = self.op(f"bitcast i32 {word.value} to <32 x i1>")
        self._bits[found] = str(word.value)
        return self.lanes(BOOL, found, WARP)

    def ballot(self, predicate: Lanes) -> Lanes:
        """Collect a predicate of the active lanes into a uniform uint32."""
        if self.mask is None:
            return self.cast(predicate, UINT32)
        return self.bits(self.lanes(BOOL, self.spread(predicate), WARP) & self.mask)

    def lowest(self, bits: Lanes) -> Lanes:
        """Find the lowest set bit of a uniform uint32; 32 if there is none."""
        return self.cast(self._function_ctz(bits), UINT32)

    def first(self, value: Lanes) -> Lanes:
        """Give the value of the lowest active lane, uniformly."""
        if not value.width:
            return value
        return self.pick(value, self.lowest(self.active()) & 31)

    def elect(self, members: Lanes) -> Lanes:
        """Choose one lane of a set: the lowest, or any of them where the schedule is random.

        That is the same one each time (PTX ISA, "elect.sync").
        """
        lowest = self.lowest(members) & 31
        slot = self.function.slot("i32", 4)
        self.function.emit(f"store i32 {lowest.value}, ptr {slot}")
        random = self.field("schedule") == context.SCHEDULES["random"]
        with self.function.when(str(random.value)):
            mixed = (members ^ self.cast(self.field("elections"), UINT32)) * 0x9E3779B1
            start = mixed >> 27
            # The first lane of the set at or after a random one, around the warp.
            after = (members >> start) << start
            chosen = self.select(after != 0, self.lowest(after), lowest)
            self.function.emit(f"store i32 {(chosen & 31).value}, ptr {slot}")
        return self.lanes(UINT32, self.op(f"load i32, ptr {slot}"), 0)

    def last(self, value: Lanes) -> Lanes:
        """Give the value of the highest active lane, uniformly."""
        if not value.width:
            return value
        leading = self.cast(self._function_clz(self.active()), UINT32)
        return self.pick(value, (31 - leading) & 31)

    def pick(self, value: Lanes, lane: Lanes) -> Lanes:
        """Give the value of one lane, chosen at run time."""
        kind = llvm_type(value.dtype, value.width)
        text = f"extractelement {kind} {value.value}, i32 {lane.value}"
        return self.lanes(value.dtype, self.op(text), 0)

    def permute(self, value: str, kind: str, width: int, indices: Sequence[int]) -> str:
        """Shuffle a vector by constant indices."""
        listed = ", ".join(f"i32 {index}" for index in indices)
        vector = f"<{width} x {kind}>"
        return self.op(
            f"shufflevector {vector} {value}, {vector} {value}, <{len(indices)} x i32> <{listed}>"
        )

    def concatenate(self, values: Sequence[str], kind: str, width: int) -> tuple[str, int]:
        """Join vectors of one width end to end; their number is padded to a power of two."""
        parts = list(values)
        while len(parts) & (len(parts) - 1):
            parts.append(parts[-1])
        while len(parts) > 1:
            listed = ", ".join(f"i32 {index}" for index in range(2 * width))
            vector = f"<{width} x {kind}>"
            parts = [
                self.op(f"shufflevector {vector} {a}, {vector} {b}, <{2 * width} x i32> <{listed}>")
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
            width *= 2
        return parts[0], width

    def gather(self, registers: Sequence[Lanes], which: np.ndarray, lane: np.ndarray) -> Lanes:
        """Collect a register: lane l gets lane `lane[l]` of `registers[which[l]]`."""
        dtype = registers[0].dtype
        used = sorted({int(each) for each in which})
        position = {each: index for index, each in enumerate(used)}
        kind = scalar_type(dtype)
        vector, width = self.concatenate([self.spread(registers[r]) for r in used], kind, WARP)
        rows = np.asarray([position[int(each)] for each in which])
        indices = _positions(rows, lane, WARP)
        return self.lanes(dtype, self.permute(vector, kind, width, indices), WARP)

    def shuffle(self, value: Lanes, lane: Lanes) -> Lanes:
        """Give each lane the value of the lane that it names."""
        if not value.width:
            return value
        if not lane.width:
            return self.pick(value, lane & 31)
        slot = self.spill(value)
        index = self.cast(lane & 31, UINT64)
        kind = scalar_type(value.dtype)
        result = "zeroinitializer"
        for each in range(WARP):
            at = self.op(f"extractelement <32 x i64> {index.value}, i32 {each}")
            got = self.load_element(slot, value.dtype, at)
            result = self.op(f"insertelement <32 x {kind}> {result}, {kind} {got}, i32 {each}")
        return self.lanes(value.dtype, result, WARP)

    def spill(self, value: Lanes) -> str:
        """Put a vector on the stack, element by element addressable."""
        element = memory_type(value.dtype)
        slot = self.function.scratch(f"[{value.width} x {element}]")
        vector = self.to_memory(value)
        self.function.emit(f"store <{value.width} x {element}> {vector}, ptr {slot}, align 64")
        return slot

    def in_memory(self, value: Lanes) -> str:
        """Address a vector of the warp in memory: where it came from, or a copy."""
        if value.value not in self.homes:
            self.homes[value.value] = self.spill(self.lanes(value.dtype, self.spread(value), WARP))
        return self.homes[value.value]

    def to_memory(self, value: Lanes) -> str:
        """Give a value in the type that memory holds it in: booleans as bytes."""
        if not value.dtype.is_bool:
            return str(value.value)
        wide = f"<{value.width} x i8>" if value.width else "i8"
        return self.op(f"zext {llvm_type(BOOL, value.width)} {value.value} to {wide}")

    def from_memory(self, value: str, dtype: DType, width: int) -> Lanes:
        """Take a value from the type that memory holds it in."""
        if not dtype.is_bool:
            return self.lanes(dtype, value, width)
        kind = f"<{width} x i8>" if width else "i8"
        zero = "zeroinitializer" if width else "0"
        return self.lanes(BOOL, self.op(f"icmp ne {kind} {value}, {zero}"), width)

    def load_element(self, base: str, dtype: DType, index: str) -> str:
        """Read an element of an array on the stack, as a register value."""
        element = memory_type(dtype)
        at = self.op(f"getelementptr {element}, ptr {base}, i64 {index}")
        return str(self.from_memory(self.op(f"load {element}, ptr {at}"), dtype, 0).value)

    def each_lane(
        self, body: Callable[..., Sequence[Lanes] | None], *operands: Lanes
    ) -> list[Lanes]:
        """Run `body` on scalars for one active lane after another."""
        if self.mask is None:
            return list(body(*operands) or ())
        slots = [self.spill(each) if each.width else None for each in operands]
        remaining = self.function.slot("i32", 4)
        self.function.emit(f"store i32 {self.active().value}, ptr {remaining}")
        head, turn, after = (self.function.new_label(s) for s in ("lanes", "lane", "after"))
        results: list[tuple[str, DType]] = []
        outer, self.mask = self.mask, None
        self.function.branch(head)
        self.function.label(head)
        left = self.op(f"load i32, ptr {remaining}")
        self.function.branch_if(self.op(f"icmp ne i32 {left}, 0"), turn, after)
        self.function.label(turn)
        lane = self.cast(self.lowest(self.lanes(UINT32, left, 0)), UINT64)
        fewer = self.op(f"and i32 {left}, {self.op(f'sub i32 {left}, 1')}")
        self.function.emit(f"store i32 {fewer}, ptr {remaining}")
        self.set_field("acting", lane + 1)
        scalars = [
            each
            if slot is None
            else self.lanes(each.dtype, self.load_element(slot, each.dtype, lane.value), 0)
            for each, slot in zip(operands, slots, strict=True)
        ]
        for value in body(*scalars) or ():
            element = memory_type(value.dtype)
            slot = self.function.slot(f"[{WARP} x {element}]")
            self.function.entry.append(f"  store [{WARP} x {element}] zeroinitializer, ptr {slot}")
            at = self.op(f"getelementptr {element}, ptr {slot}, i64 {lane.value}")
            self.function.emit(f"store {element} {self.to_memory(value)}, ptr {at}")
            results.append((slot, value.dtype))
        self.function.branch(head)
        self.function.label(after)
        self.set_field("acting", 0)
        self.mask = outer
        return [self.restore(slot, dtype) for slot, dtype in results]

    def restore(self, slot: str, dtype: DType) -> Lanes:
        """Read back a vector from memory."""
        vector = f"<{WARP} x {memory_type(dtype)}>"
        return self.from_memory(self.op(f"load {vector}, ptr {slot}, align 64"), dtype, WARP)

    def when(self, condition: Lanes, body: Callable[[], None]) -> None:
        """Run `body` if a uniform condition holds."""
        with self.function.when(str(condition.value)):
            body()

    def special(self, name: str) -> Lanes:
        """Read a special register."""
        if name == "laneid":
            return self.lane_id()
        if name == "tid.x" or name == "tid.y" or name == "tid.z":
            return self._thread_index(name[-1])
        if name == "warpid":
            return self.low_field("warp")
        if name == "clock" or name == "clock64":
            self.bump("clock")
            return self.cast(self.field("clock"), UINT64 if name == "clock64" else UINT32)
        if name in FIELD:
            return self.low_field(name)
        raise CompilerBug(f"the simulator has no special register {name!r}", code="compiler-bug")

    def _thread_index(self, axis: str) -> Lanes:
        linear = self.low_field("warp") * WARP + self.lane_id()
        if self.module.block is None:
            width, height = (self.low_field(f"ntid.{each}") for each in "xy")
        else:
            x, y, z = self.module.block
            if y == z == 1:
                return linear if axis == "x" else self.constant(0, UINT32)
            width, height = (self.constant(each, UINT32) for each in (x, y))
        if axis == "x":
            return self.binary("mod", linear, width)
        rows = self.binary("floordiv", linear, width)
        return self.binary("mod" if axis == "y" else "floordiv", rows, height)

    # ---- memory

    def load(
        self, space: Space, address: Lanes, dtype: DType, count: int = 1, *, lanes: int = WARP
    ) -> list[Lanes]:
        """Load `count` consecutive elements in each active lane below `lanes`."""
        return memory.load(self, space, address, dtype, count, lanes)

    def store(
        self, space: Space, address: Lanes, values: Sequence[Lanes], *, lanes: int = WARP
    ) -> None:
        """Store consecutive elements in each active lane below `lanes`."""
        memory.store(self, space, address, values, lanes)

    def load_matrix(
        self,
        space: Space,
        address: Lanes,
        dtype: DType,
        count: int,
        which: np.ndarray,
        lane: np.ndarray,
    ) -> list[Lanes]:
        """Load a row of `count` elements per lane, and deal the elements out over the warp."""
        rows = int(lane.max()) + 1
        raw, width = memory.load_rows(self, space, address, dtype, count, rows)
        kind = scalar_type(dtype)
        return [
            self.lanes(
                dtype,
                self.permute(raw, kind, width, _positions(ls, ws, count)),
                WARP,
            )
            for ws, ls in zip(which, lane, strict=True)
        ]

    def store_matrix(
        self,
        space: Space,
        address: Lanes,
        registers: Sequence[Lanes],
        which: np.ndarray,
        lane: np.ndarray,
    ) -> None:
        """Store a row per address, collected from the registers of the warp."""
        kind = scalar_type(registers[0].dtype)
        vector, width = self.concatenate([self.spread(each) for each in registers], kind, WARP)
        rows = [
            self.permute(vector, kind, width, _positions(ws, ls, WARP))
            for ws, ls in zip(which, lane, strict=True)
        ]
        memory.store_rows(self, space, address, registers[0].dtype, which.shape[1], rows)

    def copy(
        self, to: Space, target: Lanes, source_space: Space, source: Lanes, size: Lanes
    ) -> None:
        """Copy a run of bytes between memories; all operands are uniform."""
        length = self.cast(size, UINT64)
        into = memory.run_pointer(self, to, target, length, write=True)
        out_of = memory.run_pointer(self, source_space, source, length, write=False)
        good = (self.field("error") == 0).value
        with self.function.when(good):
            name = "llvm.memmove.p0.p0.i64"
            self.module.declare(name, f"declare void @{name}(ptr, ptr, i64, i1)")
            self.function.emit(
                f"call void @{name}(ptr {into}, ptr {out_of}, i64 {length.value}, i1 false)"
            )
        self.bump("progress")

    def load_box(self, box: Box, fill: Lanes, rounds: Lanes) -> None:
        """Copy a box of a tensor to shared memory, for an agent."""
        boxes.load_box(self, box, fill, rounds)

    def store_box(self, box: Box) -> None:
        """Copy a box from shared memory to where the tensor has elements, for an agent."""
        boxes.store_box(self, box)

    # ---- block primitives

    def product(
        self,
        a: Sequence[Lanes],
        b: Sequence[Lanes],
        c: Sequence[Lanes],
        fragments: tuple[Fragment, Fragment, Fragment],
        types: tuple[DType, DType, DType],
    ) -> list[Lanes]:
        """Multiply warp fragments: D = A·B + C."""
        sums = self._elements(c, types[2])
        places = fragment_places(fragments[2])
        outputs = multiply(self, a, b, sums, fragments[:2], (types[0], types[2]), places)
        return self._packed(outputs, c, types[2])

    def _elements(self, registers: Sequence[Lanes], dtype: DType) -> list[Lanes]:
        """Unpack registers into their elements, as float32."""
        found: list[Lanes] = []
        for each in registers:
            vector = self.lanes(each.dtype, self.spread(each), WARP)
            found += [self.cast(piece, FLOAT32) for piece in packed(self, vector, dtype.name)]
        return found

    def _packed(self, values: Sequence[Lanes], like: Sequence[Lanes], dtype: DType) -> list[Lanes]:
        """Pack float32 results into registers of the accumulator's kind."""
        per = like[0].dtype.bits // dtype.bits
        if per == 1:
            return [self.bitcast(self.cast(each, dtype), like[0].dtype) for each in values]
        packed_registers: list[Lanes] = []
        kind = UINT32
        for start in range(0, len(values), per):
            word = self.constant(0, kind)
            for position, each in enumerate(values[start : start + per]):
                narrow = self.cast(each, dtype)
                bits = self.cast(self.bitcast(narrow, _bits(dtype)), kind)
                word = word | (bits << (position * dtype.bits))
            packed_registers.append(self.bitcast(word, like[0].dtype))
        return packed_registers

    def load_cells(self, cells: Lanes) -> Lanes:
        """Load a 32-bit cell of Tensor Memory per active lane."""
        return tensor.load_cells(self, cells)

    def store_cells(self, cells: Lanes, value: Lanes) -> None:
        """Store a 32-bit cell of Tensor Memory per active lane."""
        tensor.store_cells(self, cells, value)

    def product_tiles(
        self,
        d: Lanes,
        a: SharedTile | Lanes,
        b: SharedTile,
        shape: tuple[Lanes, Lanes, int],
        types: tuple[DType, DType],
        update: Update,
    ) -> None:
        """Multiply tiles in memory into Tensor Memory."""
        tensor.product_tiles(self, d, a, b, shape, types, update)

    # ---- barriers, agents, faults

    def cta_state(self, field: str) -> Lanes:
        """Read a word of the CTA's state, uint32."""
        return self.low_field(field)

    def set_cta_state(self, field: str, value: Lanes) -> None:
        """Write a word of the CTA's state."""
        if field == "tmem_columns":
            tensor.clear_columns(self, value & ~self.cta_state(field))
        self.set_field(field, value)
        self.bump("progress")

    def cluster_state(self, field: str) -> Lanes:
        """Read a word of the state that the CTAs of a cluster share, uint32."""
        return self.cast(self.get_word(self.pointer("cluster"), CLUSTER[field]), UINT32)

    def set_cluster_state(self, field: str, value: Lanes) -> None:
        """Write a word of the cluster's state."""
        if field == "generation":
            number = self.constant(0, UINT32)
            self.module.observer.completes(self, "cluster", number, value)
        self.set_word(self.pointer("cluster"), CLUSTER[field], value)
        self.bump("progress")

    def _warp_word(self, field: str) -> str:
        start = context.WARP_START + context.WARPS * context.WARP_FIELDS.index(field)
        return str((self.field("warp") + start).value)

    def warp_state(self, field: str) -> Lanes:
        """Read a word of the warp's state, uint32."""
        return self.cast(self.get_word("%ctx", self._warp_word(field)), UINT32)

    def set_warp_state(self, field: str, value: Lanes) -> None:
        """Write a word of the warp's state."""
        self.set_word("%ctx", self._warp_word(field), value)

    def _barrier_word(self, barrier: Lanes, field: str) -> str:
        wide = self.cast(barrier & (context.BARRIERS - 1), UINT64)
        index = wide * len(BARRIER_FIELDS) + (BARRIER_START + BARRIER_FIELDS.index(field))
        return str(index.value)

    def barrier_state(self, barrier: Lanes, field: str) -> Lanes:
        """Read a field of a named barrier, uint32."""
        return self.cast(self.get_word("%ctx", self._barrier_word(barrier, field)), UINT32)

    def set_barrier_state(self, barrier: Lanes, field: str, value: Lanes) -> None:
        """Write a field of a named barrier."""
        if field == "generation":
            self.module.observer.completes(self, "barrier", barrier, value)
        self.set_word("%ctx", self._barrier_word(barrier, field), value)
        self.bump("progress")

    def issue(
        self,
        form: Form,
        operands: Sequence[Lanes],
        barrier: Lanes | None = None,
        lane: Lanes | None = None,
    ) -> None:
        """Hand an asynchronous operation to the form's agent."""
        queue.issue(self, form, operands, barrier, lane)

    def mbarrier_word(self, address: Lanes) -> Lanes:
        """Read the eight bytes of an mbarrier."""
        return self.load(Space.SHARED, address, UINT64)[0]

    def set_mbarrier_word(self, address: Lanes, word: Lanes) -> None:
        """Write the eight bytes of an mbarrier."""
        self.module.observer.updates_mbarrier(self, address, word)
        self.store(Space.SHARED, address, [word])

    def mbarrier_in_use(self, barrier: Lanes) -> Lanes:
        """Tell whether somebody waits at an mbarrier, or something in flight is seen there."""
        number = self.cast(barrier, UINT32).value
        return self.lanes(BOOL, self.op(f"call i1 @mbarrier_in_use(ptr %ctx, i32 {number})"), 0)

    def tally(self, barrier: Lanes, expected: Lanes, come: Lanes) -> None:
        """Count bytes that an mbarrier is to expect, and bytes that have come."""
        for index, count in enumerate((expected, come)):
            self._set_tally(barrier, index, self._tally(barrier, index) + count)

    def clear_tally(self, barrier: Lanes) -> None:
        """Count the bytes of an mbarrier from zero."""
        self.module.observer.phase_begins(self, barrier)
        for index in range(2):
            self._set_tally(barrier, index, self.constant(0, UINT32))

    def _tally_word(self, barrier: Lanes, index: int) -> str:
        """Address a count of bytes; that of an address outside shared memory is the first one."""
        self.module.memories.add("tally")
        offset = self.cast(barrier, UINT64) - context.SHARED_START
        inside = offset < self.field("shared_size")
        safe = self.select(inside, offset, self.constant(0, UINT64)) >> 3
        return self.op(
            f"getelementptr [2 x i32], ptr {self.pointer('tally')}, i64 {safe.value}, i64 {index}"
        )

    def _tally(self, barrier: Lanes, index: int) -> Lanes:
        at = self._tally_word(barrier, index)
        return self.lanes(UINT32, self.op(f"load i32, ptr {at}"), 0)

    def _set_tally(self, barrier: Lanes, index: int, count: Lanes) -> None:
        at = self._tally_word(barrier, index)
        self.function.emit(f"store i32 {count.value}, ptr {at}")

    def commit_group(self, group: str) -> None:
        """Make a group of what each active lane has issued since its last group."""
        groups.commit(self, group)

    def groups_done(self, group: str, keep: Lanes, *, read: bool = False) -> Lanes:
        """Tell whether all but the last `keep` groups of every active lane have landed."""
        key = self.constant(2 * GROUPS.index(group) + read, UINT32)
        return ~groups.pending(self, key, self.field("warp"), self.active(), keep, land=False)

    def require(self, condition: Lanes, code: str, message: str) -> None:
        """Report a located fault unless the condition holds in every active lane."""
        if condition.value == "true":
            return
        bad = self.ballot(~condition)
        with self.function.when(str((bad != 0).value)):
            self.fault(code, message, self.lowest(bad), self.constant(0, UINT64))

    def fault(
        self,
        code: str,
        text: str,
        lane: Lanes,
        address: Lanes,
        space: Space | None = None,
        *,
        mbarrier: bool = False,
    ) -> None:
        """Record a fault; the first one counts.

        An address counts if its space is given, or if it is that of an `mbarrier`.
        """
        number = self.module.message(Message(code, text, space, mbarrier))
        wide = self.cast(address, UINT64)
        self.function.emit(
            f"call void @fault(ptr %ctx, i64 {number}, i32 {self.site}, "
            f"i32 {lane.value}, i64 {wide.value})"
        )

    def trap(self) -> None:
        """End the launch with a fault of the code `trap`."""
        lane = self.lowest(self.active())
        self.fault("trap", "the kernel trapped", lane, self.constant(0, UINT64))


def _positions(rows: np.ndarray, columns: np.ndarray, width: int) -> list[int]:
    """Number elements of a table, row after row."""
    return [int(each) for each in rows * width + columns]


def _bits(dtype: DType) -> DType:
    return DType(f"uint{dtype.bits}", "uint", dtype.bits)


def fragment_places(fragment: Fragment) -> list[tuple[np.ndarray, np.ndarray]]:
    """Invert a fragment: for each element register the row and column that every lane holds."""
    rows, columns = np.meshgrid(
        np.arange(fragment.rows), np.arange(fragment.columns), indexing="ij"
    )
    lane, register = (np.broadcast_to(each, rows.shape) for each in fragment.owner(rows, columns))
    element = register * fragment.packed + columns % fragment.packed
    count = int(element.max()) + 1
    row_of = np.zeros((count, WARP), np.int64)
    column_of = np.zeros((count, WARP), np.int64)
    row_of[element, lane], column_of[element, lane] = rows, columns
    return [(row_of[index], column_of[index]) for index in range(count)]
