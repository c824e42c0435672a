"""The eager executor: one instruction, on given state, in NumPy.

May import `base` and `isa`. It has no scheduler and no speed: it is the reference that is read
and that the native engine is held against. What is asynchronous lands when it is issued, unless
the machine is told to `hold` it: then it lands when it is told to `land`, or when a group is
waited for.

    >>> machine = EagerMachine(shared=1024)
    >>> execute(spell("st.shared.b32").forms()[0], [lane * 4, value], machine)
    []
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from tilewright.base.dtypes import BOOL, FLOAT32, UINT32, UINT64, DType, from_numpy
from tilewright.base.errors import CODES, TilewrightError
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.isa.declaration import Form, Fragment, Operand
from tilewright.isa.machine import GROUPS, WARP, Box, Lanes, SharedTile, Update
from tilewright.sim import approximations, eager_exact
from tilewright.sim import eager_arithmetic as arithmetic
from tilewright.sim import eager_copies as copies
from tilewright.sim import eager_tensor as tensor
from tilewright.sim.eager_arithmetic import Array

_FULL = (1 << WARP) - 1
_STATE = ("tmem_columns", "tmem_starts", "tmem_permit", "exited_warps")
Value = Lanes | Array | int | float | bool


def fault(code: str, message: str) -> TilewrightError:
    """Make the error that carries a code."""
    return CODES[code][0](message, code=code)


class EagerMachine:
    """A warp and the memory it sees, as NumPy arrays; see the `Machine` protocol.

    `shared` is a size in bytes or the bytes themselves; `memories` maps the address of a global
    allocation to its bytes (one-dimensional uint8 arrays, written in place; a read-only array is
    read-only memory). `special` gives special registers, as numbers or one per lane. Numbers are
    those of `fast` numerics, or of `exact` ones for the target that is given as `exact`.
    """

    def __init__(
        self,
        *,
        shared: int | Array = 0,
        memories: Mapping[int, Array] | None = None,
        active: int = _FULL,
        special: Mapping[str, int | Array] | None = None,
        hold: bool = False,
        exact: Target | None = None,
    ) -> None:
        self.shared = np.zeros(shared, np.uint8) if isinstance(shared, int) else shared
        self.memories = dict(memories or {})
        self.mask = np.array([active >> lane & 1 for lane in range(WARP)], np.bool_)
        self.registers = dict(special or {})
        self.barriers: dict[tuple[int, str], int] = {}
        self.state: dict[str, int] = dict.fromkeys(_STATE, 0)
        self.cluster: dict[str, int] = {}
        self.warp: dict[str, int] = {}
        # What was never written is all ones.
        self.cells = np.full((tensor.LANES, tensor.COLUMNS), 0xFFFFFFFF, np.uint32)
        self.hold = hold
        self.exact = exact
        self.pending: list[copies.Operation] = []
        # How many groups each lane has made.
        self.committed = {group: np.zeros(WARP, np.int64) for group in GROUPS}
        self._taken: tuple[int, Array] | None = None

    # ---- values

    def lanes(self, dtype: DType, value: Array) -> Lanes:
        """Wrap an array, of 32 values or of one."""
        return Lanes(self, dtype, value, WARP if value.shape else 0)

    def constant(self, value: float | bool, dtype: DType) -> Lanes:
        """Give a uniform constant."""
        return self.lanes(dtype, arithmetic.constant(value, dtype))

    def lift(self, value: Lanes | float, dtype: DType) -> Lanes:
        """Make a constant of a Python number; lanes pass unchanged."""
        return value if isinstance(value, Lanes) else self.constant(value, dtype)

    def lane_id(self) -> Lanes:
        """Give each lane its number, uint32."""
        return self.lanes(UINT32, np.arange(WARP, dtype=np.uint32))

    def special(self, name: str) -> Lanes:
        """Read a special register by its PTX name without the percent sign."""
        return self.lanes(UINT32, np.asarray(self.registers[name], np.uint32))

    def active(self) -> Lanes:
        """Give the set of active lanes as a uniform uint32, lane 0 in bit 0."""
        return self.ballot(self.constant(True, BOOL))

    def binary(self, op: str, left: Lanes, right: Lanes) -> Lanes:
        """Apply an operation of the IR, by its name there."""
        if op in ("shl", "shr"):
            dtype = left.dtype
        else:
            dtype = arithmetic.common(left.dtype, right.dtype)
            left, right = self.cast(left, dtype), self.cast(right, dtype)
        value = arithmetic.binary(op, left.value, right.value, dtype)
        return self.lanes(BOOL if arithmetic.compares(op) else dtype, value)

    def unary(self, op: str, operand: Lanes) -> Lanes:
        """Apply "neg", "invert" or "not"."""
        dtype = BOOL if op == "not" else operand.dtype
        return self.lanes(dtype, np.asarray(arithmetic.unary(op, operand.value, operand.dtype)))

    def intrinsic(self, name: str, *operands: Lanes) -> Lanes:
        """Apply a pure function by its name in the IR."""
        values = [operand.value for operand in operands]
        value, dtype = arithmetic.function(name, values, operands[0].dtype)
        return self.lanes(dtype, np.asarray(value))

    def approximate(self, name: str, value: Lanes) -> Lanes:
        """Apply a function as the special function unit does, to float32."""
        if self.exact is None:
            return approximations.rounded(self, name, value)

        def look_up(index: Lanes) -> Lanes:
            dtype = UINT64 if approximations.is_wide(name) else UINT32
            return self.lanes(dtype, np.asarray(approximations.table(name)[index.value]))

        return approximations.reduced(self, name, value, look_up)

    def select(self, condition: Lanes, true: Lanes, false: Lanes) -> Lanes:
        """Choose lane by lane; both sides have one type."""
        dtype = arithmetic.common(true.dtype, false.dtype)
        true, false = self.cast(true, dtype), self.cast(false, dtype)
        where, left, right = map(np.asarray, (condition.value, true.value, false.value))
        return self.lanes(dtype, np.where(where, left, right))

    def cast(self, value: Lanes, dtype: DType) -> Lanes:
        """Convert values as `ir.expressions.Cast` does."""
        if value.dtype == dtype:
            return value
        return self.lanes(dtype, np.asarray(arithmetic.convert(value.value, value.dtype, dtype)))

    def bitcast(self, value: Lanes, dtype: DType) -> Lanes:
        """Take the same bits as another type of the same width."""
        if value.dtype == dtype:
            return value
        whole = np.ascontiguousarray(value.value).view(dtype.numpy)
        return self.lanes(dtype, whole.reshape(value.value.shape))

    # ---- across lanes

    def spread(self, value: Lanes) -> Array:
        """Give a value as 32, repeating a uniform one."""
        return np.broadcast_to(value.value, (WARP,))

    def gather(self, registers: Sequence[Lanes], which: Array, lane: Array) -> Lanes:
        """Collect a register: lane l gets lane `lane[l]` of `registers[which[l]]`."""
        table = np.stack([self.spread(each) for each in registers])
        return self.lanes(registers[0].dtype, table[which, lane])

    def shuffle(self, value: Lanes, lane: Lanes) -> Lanes:
        """Give each lane the value of the lane that it names (taken modulo 32)."""
        return self.lanes(value.dtype, self.spread(value)[lane.value & 31])

    def ballot(self, predicate: Lanes) -> Lanes:
        """Collect a predicate of the active lanes into a uniform uint32."""
        chosen = np.flatnonzero(self.mask & predicate.value)
        return self.constant(sum(1 << int(lane) for lane in chosen), UINT32)

    def elect(self, members: Lanes) -> Lanes:
        """Choose the lowest lane of a set."""
        bits = int(members.value)
        return self.constant((bits & -bits).bit_length() - 1, UINT32)

    def first(self, value: Lanes) -> Lanes:
        """Give the value of the lowest active lane, uniformly."""
        return self.lanes(value.dtype, self.spread(value)[np.flatnonzero(self.mask)[0]])

    @contextmanager
    def only(self, lane: int) -> Generator[None]:
        """Let just one lane be active for a while."""
        before = self.mask
        self.mask = np.arange(WARP) == lane
        try:
            yield
        finally:
            self.mask = before

    def each_lane(
        self, body: Callable[..., Sequence[Lanes] | None], *operands: Lanes
    ) -> list[Lanes]:
        """Run `body` on scalars for one active lane after another, in ascending order."""
        results: list[Lanes] = []
        for lane in np.flatnonzero(self.mask):
            with self.only(int(lane)):
                scalars = [self.lanes(x.dtype, self.spread(x)[lane]) for x in operands]
                given = body(*scalars) or ()
            if not results:
                results = [self.lanes(x.dtype, np.zeros(WARP, x.dtype.numpy)) for x in given]
            for result, value in zip(results, given, strict=True):
                result.value[lane] = value.value
        return results

    def when(self, condition: Lanes, body: Callable[[], None]) -> None:
        """Run `body` if a uniform condition holds."""
        assert condition.width == 0, "the condition of `when` is uniform"
        if bool(condition.value):
            body()

    # ---- memory

    def bytes_at(self, space: Space, where: int, size: int, *, align: int, write: bool) -> Array:
        """Give the bytes of one access, to read or to write through.

        Raises `MemoryFault` (`out-of-bounds`, `misaligned`, `read-only`).
        """
        verb = "a write" if write else "a read"
        found = self.region(space, where, size, write=write)
        if found is None:
            text = f"{verb} of {size} bytes at {where:#x} leaves {space.value} memory"
            raise fault("out-of-bounds", text)
        base, region = found
        if where % align:
            raise fault("misaligned", f"{verb} at {where:#x} must be aligned to {align} bytes")
        if write and not region.flags.writeable:
            raise fault("read-only", f"{verb} at {where:#x} goes to read-only memory")
        return region[where - base : where - base + size]

    def region(
        self, space: Space, where: int, size: int, *, write: bool = False
    ) -> tuple[int, Array] | None:
        """Find the allocation that a run of bytes lies in: its address and its bytes."""
        assert space in (Space.SHARED, Space.GLOBAL, Space.GENERIC), f"no {space} here"
        regions = self.memories
        if space is Space.SHARED:
            # What an operation has read is what it sees.
            taken = None if write else self._taken
            regions = {0: self.shared} if taken is None else dict([taken])
        for base, region in regions.items():
            if base <= where and where + size <= base + len(region):
                return base, region
        return None

    def _accessing(self, address: Lanes, lanes: int) -> list[tuple[int, int]]:
        """List lane and address of each access."""
        active = [int(lane) for lane in np.flatnonzero(self.mask) if lane < lanes]
        if not address.width:
            return [(0, int(address.value))] if active else []
        return [(lane, int(address.value[lane])) for lane in active]

    def load(
        self, space: Space, address: Lanes, dtype: DType, count: int = 1, *, lanes: int = WARP
    ) -> list[Lanes]:
        """Load `count` consecutive elements in each active lane below `lanes`."""
        size = dtype.bytes * count
        found = np.zeros((address.width or 1, count), dtype.numpy)
        for lane, where in self._accessing(address, lanes):
            source = self.bytes_at(space, where, size, align=size, write=False)
            found[lane] = np.frombuffer(source.tobytes(), dtype.numpy)
        columns = found.T if address.width else found[0]
        return [self.lanes(dtype, np.asarray(column)) for column in columns]

    def store(
        self, space: Space, address: Lanes, values: Sequence[Lanes], *, lanes: int = WARP
    ) -> None:
        """Store consecutive elements in each active lane below `lanes`.

        Of lanes that write to one place the highest prevails.
        """
        size = values[0].dtype.bytes * len(values)
        if not address.width and any(value.width for value in values):
            address = self.lanes(address.dtype, self.spread(address))
        for lane, where in self._accessing(address, lanes):
            row = np.stack([self.spread(value)[lane] for value in values])
            target = self.bytes_at(space, where, size, align=size, write=True)
            target[:] = np.frombuffer(row.tobytes(), np.uint8)

    def load_matrix(
        self, space: Space, address: Lanes, dtype: DType, count: int, which: Array, lane: Array
    ) -> list[Lanes]:
        """Load a row of `count` elements per lane, and deal the elements out over the warp."""
        where, size = self.spread(address), dtype.bytes * count
        rows: dict[int, Array] = {}
        for each in np.unique(lane):
            source = self.bytes_at(space, int(where[each]), size, align=size, write=False)
            rows[int(each)] = np.frombuffer(source.tobytes(), dtype.numpy)
        dealt = np.empty(lane.shape, dtype.numpy)
        for place in np.ndindex(lane.shape):
            dealt[place] = rows[int(lane[place])][which[place]]
        return [self.lanes(dtype, register) for register in dealt]

    def store_matrix(
        self, space: Space, address: Lanes, registers: Sequence[Lanes], which: Array, lane: Array
    ) -> None:
        """Store a row per address: element e of row l is `registers[which[l, e]]`, `lane[l, e]`."""
        table = np.stack([self.spread(each) for each in registers])
        where = self.spread(address)
        for row, (registers_of, lanes_of) in enumerate(zip(which, lane, strict=True)):
            data = np.frombuffer(table[registers_of, lanes_of].tobytes(), np.uint8)
            size = len(data)
            self.bytes_at(space, int(where[row]), size, align=size, write=True)[:] = data

    def copy(
        self, to: Space, target: Lanes, source_space: Space, source: Lanes, size: Lanes
    ) -> None:
        """Copy a run of bytes between memories; all operands are uniform."""
        length = int(size.value)
        if length:
            data = self.bytes_at(
                source_space, int(source.value), length, align=1, write=False
            ).copy()
            self.bytes_at(to, int(target.value), length, align=1, write=True)[:] = data

    def load_box(self, box: Box, fill: Lanes, rounds: Lanes) -> None:
        """Copy a box of a tensor to shared memory, for an agent."""
        copies.load_box(self, box, fill, rounds)

    def store_box(self, box: Box) -> None:
        """Copy a box from shared memory to where the tensor has elements, for an agent."""
        copies.store_box(self, box)

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
        left, right, start = (
            self.matrix(registers, fragment, dtype).astype(np.float32)
            for registers, fragment, dtype in zip((a, b, c), fragments, types, strict=True)
        )
        total = self.multiplied(left, right, start, (types[0], types[2]))
        result = np.zeros((len(c), WARP, fragments[2].packed), types[2].numpy)
        result[_places(fragments[2])] = total.astype(types[2].numpy)
        whole = np.ascontiguousarray(result).view(c[0].dtype.numpy).reshape(len(c), WARP)
        return [self.lanes(c[0].dtype, register) for register in whole]

    def multiplied(
        self, left: Array, right: Array, start: Array, types: tuple[DType, DType]
    ) -> Array:
        """Multiply left (m × k) by right (n × k), and add start (m × n); all are float32.

        Per output it is an FMA chain in ascending k, or with exact numerics what the chip does
        with inputs and a result of these types.
        """
        if self.exact is not None:
            return eager_exact.product(left, right, start, types, self.exact)
        total = start
        for k in range(left.shape[1]):
            total = arithmetic.fma(left[:, k, None], right[None, :, k], total, FLOAT32)
        return total

    def matrix(self, registers: Sequence[Lanes], fragment: Fragment, dtype: DType) -> Array:
        """Assemble the matrix that registers hold."""
        table = np.ascontiguousarray(np.stack([self.spread(each) for each in registers]))
        elements = table.view(dtype.numpy).reshape(len(registers), WARP, fragment.packed)
        return elements[_places(fragment)]

    def load_cells(self, cells: Lanes) -> Lanes:
        """Load a 32-bit cell of Tensor Memory per active lane."""
        return self.lanes(UINT32, tensor.load_cells(self, cells))

    def store_cells(self, cells: Lanes, value: Lanes) -> None:
        """Store a 32-bit cell of Tensor Memory per active lane."""
        tensor.store_cells(self, cells, self.bitcast(value, UINT32))

    def product_tiles(
        self,
        d: Lanes,
        a: SharedTile | Lanes,
        b: SharedTile,
        shape: tuple[Lanes, Lanes, int],
        types: tuple[DType, DType],
        update: Update,
    ) -> None:
        """Multiply tiles in memory into Tensor Memory, for an agent."""
        tensor.product_tiles(self, d, a, b, shape, types, update)

    # ---- barriers of the CTA, agents, faults

    def cta_state(self, field: str) -> Lanes:
        """Read a word of the CTA's state, uint32."""
        return self.constant(self.state[field], UINT32)

    def set_cta_state(self, field: str, value: Lanes) -> None:
        """Write a word of the CTA's state."""
        self.state[field] = int(value.value)

    def cluster_state(self, field: str) -> Lanes:
        """Read a word of the state that the CTAs of a cluster share, uint32."""
        return self.constant(self.cluster.get(field, 0), UINT32)

    def set_cluster_state(self, field: str, value: Lanes) -> None:
        """Write a word of the cluster's state."""
        self.cluster[field] = int(value.value)

    def warp_state(self, field: str) -> Lanes:
        """Read a word of the warp's state, uint32."""
        return self.constant(self.warp.get(field, 0), UINT32)

    def set_warp_state(self, field: str, value: Lanes) -> None:
        """Write a word of the warp's state."""
        self.warp[field] = int(value.value)

    def barrier_state(self, barrier: Lanes, field: str) -> Lanes:
        """Read a field of a named barrier; all uniform."""
        return self.constant(self.barriers.get((int(barrier.value), field), 0), UINT32)

    def set_barrier_state(self, barrier: Lanes, field: str, value: Lanes) -> None:
        """Write a field of a named barrier; uniform."""
        self.barriers[int(barrier.value), field] = int(value.value)

    def issue(
        self,
        form: Form,
        operands: Sequence[Lanes],
        barrier: Lanes | None = None,
        lane: Lanes | None = None,
    ) -> None:
        """Hand an asynchronous operation to its agent, and let it land unless it is held."""
        numbers = self.committed.get(form.time.completes, np.zeros(WARP, np.int64))
        seen = () if barrier is None else self.spread(barrier)[self.mask]
        self.pending.append(
            copies.Operation(
                form,
                tuple(operands),
                self.mask,
                numbers.copy(),
                barriers=frozenset(int(each) for each in seen),
            )
        )
        if not self.hold:
            self.land()

    def land(self) -> None:
        """Let everything that is in flight land, in the order of issue."""
        while self.pending:
            self._land(self.pending[0])

    def _land(self, operation: copies.Operation) -> None:
        self.pending.remove(operation)
        form = operation.form
        assert form.declaration.lands is not None, f"{form.text} says not how it lands"
        with self.landing(operation):
            form.declaration.lands(self, form, *operation.operands)

    @contextmanager
    def landing(self, operation: copies.Operation) -> Generator[None]:
        """Let who issued an operation be active for a while, and see what it has read."""
        before = self.mask
        self.mask, self._taken = operation.mask, operation.taken
        try:
            yield
        finally:
            self.mask, self._taken = before, None

    def mbarrier_in_use(self, barrier: Lanes) -> Lanes:
        """Tell whether something in flight is seen through an mbarrier; nobody else waits here."""
        number = int(barrier.value)
        return self.constant(any(number in each.barriers for each in self.pending), BOOL)

    def mbarrier_word(self, address: Lanes) -> Lanes:
        """Read the eight bytes of an mbarrier."""
        return self.load(Space.SHARED, address, UINT64)[0]

    def set_mbarrier_word(self, address: Lanes, word: Lanes) -> None:
        """Write the eight bytes of an mbarrier."""
        self.store(Space.SHARED, address, [word])

    def tally(self, barrier: Lanes, expected: Lanes, come: Lanes) -> None:
        """Keep no counts: they are for reports of launches."""

    def clear_tally(self, barrier: Lanes) -> None:
        """Keep no counts: they are for reports of launches."""

    def commit_group(self, group: str) -> None:
        """Make a group of what each active lane has issued since its last group."""
        self.committed[group] = self.committed[group] + self.mask

    def groups_done(self, group: str, keep: Lanes, *, read: bool = False) -> Lanes:
        """Let all but the last groups of the active lanes land, or read: nobody else would."""
        for each in copies.awaited(self, self.pending, group, int(keep.value)):
            if read:
                copies.take(self, each)
            else:
                self._land(each)
        return self.constant(True, BOOL)

    def require(self, condition: Lanes, code: str, message: str) -> None:
        """Raise the error of a code unless the condition holds in every active lane."""
        if not np.all(self.spread(condition)[self.mask]):
            raise fault(code, message)

    def trap(self) -> None:
        """End the launch with a fault of the code `trap`."""
        raise fault("trap", "the kernel trapped")


def _places(fragment: Fragment) -> tuple[Array, Array, Array]:
    """Index registers × lanes × packed elements by the coordinates of a fragment's operand."""
    row, column = np.indices((fragment.rows, fragment.columns))
    lane, register = fragment.owner(row, column)
    return register, lane, column % fragment.packed


# ---------------------------------------------------------------------------- executing


def _inputs(form: Form, count: int) -> list[Operand]:
    """List what each of `count` inputs is: optional operands are left out, last first."""
    given = [operand for operand in form.operands if operand.role != "out"]
    while sum(operand.count for operand in given) > count:
        optional = [operand for operand in given if operand.optional]
        assert optional, f"{form.text} takes more than {count} inputs"
        given.remove(optional[-1])
    expanded = [operand for operand in given for _ in range(operand.count)]
    assert len(expanded) == count, f"{form.text} takes {len(expanded)} inputs, not {count}"
    return expanded


def _as_lanes(machine: EagerMachine, value: Value, dtype: DType) -> Lanes:
    if isinstance(value, np.ndarray):
        kind = from_numpy(value.dtype)
        assert kind is not None, f"no element type is like {value.dtype}"
        value = machine.lanes(kind, value)
    if isinstance(value, Lanes):
        return machine.bitcast(value, dtype)
    return machine.constant(value, dtype)


def _meet(machine: EagerMachine, form: Form, inputs: Sequence[tuple[Operand, Lanes]]) -> None:
    """See that the lanes of a collective are together."""
    if form.declaration.lanes != "warp":
        return
    active = int(machine.active().value)
    masks = [value for operand, value in inputs if operand.name == "membermask"]
    for lane in np.flatnonzero(machine.mask):
        mask = int(machine.spread(masks[0])[lane]) if masks else _FULL
        if mask & ~active or not mask >> int(lane) & 1:
            text = f"lanes {active:#010x} execute {form.text}, which needs {mask:#010x}"
            raise fault("divergent-collective", text)


def execute(form: Form, operands: Sequence[Value], machine: EagerMachine) -> list[Lanes]:
    """Execute one instruction on the machine's state and give its output registers.

    `operands` are the inputs in PTX order, bit by bit of the operands' types: lanes, arrays of
    32, or numbers. Raises the error of a fault's code; `deadlock` if the instruction would wait,
    since nobody else is there to wait for.
    """
    listed = _inputs(form, len(operands))
    pairs = [
        (operand, _as_lanes(machine, value, operand.dtype))
        for operand, value in zip(listed, operands, strict=True)
    ]
    _meet(machine, form, pairs)
    inputs = [value for _, value in pairs]
    declaration = form.declaration
    if declaration.wait is not None:
        wait = declaration.wait
        state = wait.arrive(machine, form, *inputs) if wait.arrive else ()
        if not wait.gives_up and not bool(wait.poll(machine, form, *inputs, *state).value):
            kind, number = wait.awaits(machine, form, *inputs, *state)
            raise fault("deadlock", f"{form.text} waits for {kind} {int(number.value)}")
    assert declaration.compute is not None, f"{form.text} has no meaning of its own"
    return list(declaration.compute(machine, form, *inputs) or ())
