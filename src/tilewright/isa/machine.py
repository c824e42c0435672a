"""The machine that instructions act on: values of a warp, memories, barriers, agents.

May import `base`. Declarations state what an instruction means by these operations only; `sim`
implements them twice, in NumPy (eager, the readable reference) and as LLVM code (native).

Meaning is written over `Lanes`: one value per lane of a warp, or one for all (uniform).

    def add(m: Machine, form: Form, a: Lanes, b: Lanes) -> Lanes:
        return a + b
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.base.dtypes import BOOL, UINT32, DType, dtype
from tilewright.base.spaces import Space
from tilewright.isa.declaration import Form, Fragment

WARP = 32
# The kinds of groups that a thread collects its operations into (`Time.completes`).
GROUPS = ("bulk_group", "cp_async_group")


class Lanes:
    """A value of each lane, or one value of all: `width` is the number of lanes, 0 if uniform.

    `value` belongs to the machine: a NumPy array or scalar, or the name of an LLVM value.
    Operators take Python numbers as constants of the other side's type. Operands of two
    integer types take the wider; integers wrap; a shift at or beyond the width gives 0 (the
    sign, for a signed right shift), as PTX defines. There is no truth value: use `m.select`.
    """

    __slots__ = ("dtype", "machine", "value", "width")

    def __init__(self, machine: Machine, dtype: DType, value: Any, width: int) -> None:
        self.machine = machine
        self.dtype = dtype
        self.value = value
        self.width = width

    def __bool__(self) -> bool:
        raise TypeError("lanes have no truth value: use machine.select or machine.when")

    def _binary(self, op: str, other: Lanes | int | float, swap: bool = False) -> Lanes:
        lifted = self.machine.lift(other, self.dtype)
        return self.machine.binary(op, *((lifted, self) if swap else (self, lifted)))

    def __add__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("add", other)

    def __radd__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("add", other, swap=True)

    def __sub__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("sub", other)

    def __rsub__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("sub", other, swap=True)

    def __mul__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("mul", other)

    def __rmul__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("mul", other, swap=True)

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._binary("div", other)

    def __and__(self, other: Lanes | int) -> Lanes:
        return self._binary("and", other)

    def __or__(self, other: Lanes | int) -> Lanes:
        return self._binary("or", other)

    def __xor__(self, other: Lanes | int) -> Lanes:
        return self._binary("xor", other)

    def __lshift__(self, other: Lanes | int) -> Lanes:
        return self._binary("shl", other)

    def __rshift__(self, other: Lanes | int) -> Lanes:
        return self._binary("shr", other)

    def __invert__(self) -> Lanes:
        return self.machine.unary("invert", self)

    def __neg__(self) -> Lanes:
        return self.machine.unary("neg", self)

    # A comparison of lanes is lanes, where Python has a bool; there is no hash either.
    def __eq__(self, other: Lanes | int | float) -> Lanes:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._binary("eq", other)

    def __ne__(self, other: Lanes | int | float) -> Lanes:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._binary("ne", other)

    def __lt__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("lt", other)

    def __le__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("le", other)

    def __gt__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("gt", other)

    def __ge__(self, other: Lanes | int | float) -> Lanes:
        return self._binary("ge", other)


@dataclass(frozen=True)
class SharedTile:
    """A matrix operand in shared memory, as its descriptor describes it (all uniform uint32).

    In a K-major tile, eight rows of one swizzle span (16, 32, 64 or 128 bytes) are an atom;
    atoms that follow in M or N are `stride` bytes apart, those that follow in K `leading`. In an
    MN-major one (`transposed`) the spans run along M or N. Of the number of a 16-byte chunk in
    its span the bits `swizzle` are XORed with those of the 128-byte row: 0, 1, 3, 7, or, where
    chunks move in pairs, 6 (then an atom is four spans of 128 bytes). PTX ISA, "Shared memory
    matrix layout".
    """

    start: Lanes
    leading: Lanes
    stride: Lanes
    swizzle: Lanes
    base_offset: Lanes
    transposed: Lanes


@dataclass(frozen=True)
class Box:
    """A box of a tensor in global memory and its image in shared memory (all uniform).

    Axes are listed innermost first. The tensor's first element lies at `address` (uint64), its
    axes have `extents` elements (uint64), `strides` bytes apart (uint64; the innermost is the size
    of an element). The box begins at `origin` (int32; it may lie outside) and has `sizes` elements
    (uint64), `steps` apart on all axes but the innermost. In shared memory its rows lie one after
    another, `pitch` bytes apart, from `shared` (uint32) on; of the number of a 16-byte chunk in
    its 128-byte row the bits `swizzle` are XORed with those of the number of the row (0, 1, 3 or
    7), both of the address itself. CUDA C++ Programming Guide, "Tensor Memory Access Swizzle".
    """

    address: Lanes
    extents: tuple[Lanes, ...]
    strides: tuple[Lanes, ...]
    origin: tuple[Lanes, ...]
    sizes: tuple[Lanes, ...]
    steps: tuple[Lanes, ...]
    shared: Lanes
    pitch: Lanes
    swizzle: Lanes


@dataclass(frozen=True)
class Update:
    """What a product does to D: D = ±A·B (+ D · scale), except in lanes that stay (all uniform).

    D is added if `accumulate`, times a float32 `scale` that is a power of two; A·B is `negated`.
    Bit l of word w of `kept` (four uint32) keeps lane 32·w + l of Tensor Memory as it is; no word
    keeps none.
    """

    accumulate: Lanes
    scale: Lanes
    negated: Lanes
    kept: tuple[Lanes, ...] = ()


class Machine(Protocol):
    """What an instruction may do.

    Addresses are the chip's numbers (uint32 in shared memory, uint64 in global memory).
    Memory operations act for the active lanes only, check bounds and alignment, and report a
    located fault. A uniform address stands for one access of the whole warp.
    """

    # ---- values

    def constant(self, value: int | float | bool, dtype: DType) -> Lanes:
        """Give a uniform constant."""
        ...

    def lift(self, value: Lanes | int | float, dtype: DType) -> Lanes:
        """Make a constant of a Python number; lanes pass unchanged."""
        ...

    def lane_id(self) -> Lanes:
        """Give each lane its number, uint32."""
        ...

    def special(self, name: str) -> Lanes:
        """Read a special register by its PTX name without the percent sign, such as `tid.x`."""
        ...

    def active(self) -> Lanes:
        """Give the set of active lanes as a uniform uint32, lane 0 in bit 0."""
        ...

    def binary(self, op: str, left: Lanes, right: Lanes) -> Lanes:
        """Apply an operation of the IR (`ir.expressions.Binary`), by its name there."""
        ...

    def unary(self, op: str, operand: Lanes) -> Lanes:
        """Apply "neg", "invert" or "not"."""
        ...

    def intrinsic(self, name: str, *operands: Lanes) -> Lanes:
        """Apply a pure function by its name in the IR: "fma", "sqrt", "popcount", "min", …"""
        ...

    def approximate(self, name: str, value: Lanes) -> Lanes:
        """Apply a function as the special function unit does, to float32.

        `name` is "exp2", "log2", "rcp", "rsqrt" or "sqrt". Subnormal operands count as zeros, and
        subnormal results become zeros. With `fast` numerics results are rounded correctly, or
        nearly so; with `exact` ones they are a chip's.
        """
        ...

    def select(self, condition: Lanes, true: Lanes, false: Lanes) -> Lanes:
        """Choose lane by lane; both sides have one type."""
        ...

    def cast(self, value: Lanes, dtype: DType) -> Lanes:
        """Convert values as `ir.expressions.Cast` does."""
        ...

    def bitcast(self, value: Lanes, dtype: DType) -> Lanes:
        """Take the same bits as another type of the same width."""
        ...

    # ---- across lanes

    def gather(self, registers: Sequence[Lanes], which: np.ndarray, lane: np.ndarray) -> Lanes:
        """Collect a register: lane l gets lane `lane[l]` of `registers[which[l]]` (static maps)."""
        ...

    def shuffle(self, value: Lanes, lane: Lanes) -> Lanes:
        """Give each lane the value of the lane that it names (taken modulo 32)."""
        ...

    def ballot(self, predicate: Lanes) -> Lanes:
        """Collect a predicate of the active lanes into a uniform uint32."""
        ...

    def elect(self, members: Lanes) -> Lanes:
        """Choose a lane out of a uniform, non-empty set of lanes: its number, uniformly.

        The lowest, unless the schedule is one that chooses at random.
        """
        ...

    def first(self, value: Lanes) -> Lanes:
        """Give the value of the lowest active lane, uniformly."""
        ...

    def each_lane(
        self, body: Callable[..., Sequence[Lanes] | None], *operands: Lanes
    ) -> list[Lanes]:
        """Run `body` on scalars for one active lane after another, in ascending order.

        Uniform operands are passed as they are. Scalars that the body returns are collected
        into lanes; inactive lanes get 0.
        """
        ...

    def when(self, condition: Lanes, body: Callable[[], None]) -> None:
        """Run `body` if a uniform condition holds."""
        ...

    # ---- memory

    def load(
        self, space: Space, address: Lanes, dtype: DType, count: int = 1, *, lanes: int = WARP
    ) -> list[Lanes]:
        """Load `count` consecutive elements in each active lane below `lanes`.

        The address must be aligned to the whole access, count × element size.
        """
        ...

    def store(
        self, space: Space, address: Lanes, values: Sequence[Lanes], *, lanes: int = WARP
    ) -> None:
        """Store consecutive elements in each active lane below `lanes`."""
        ...

    def load_matrix(
        self,
        space: Space,
        address: Lanes,
        dtype: DType,
        count: int,
        which: np.ndarray,
        lane: np.ndarray,
    ) -> list[Lanes]:
        """Load a row of `count` elements per lane, and deal the elements out over the warp.

        Output register r of lane l is element `which[r, l]` of the row at the address that
        lane `lane[r, l]` supplies. Only rows that are named are accessed.
        """
        ...

    def store_matrix(
        self,
        space: Space,
        address: Lanes,
        registers: Sequence[Lanes],
        which: np.ndarray,
        lane: np.ndarray,
    ) -> None:
        """Store a row per address: element e of the row of lane l is register `which[l, e]` of
        lane `lane[l, e]`. Rows beyond the maps' first axis are not stored."""
        ...

    def copy(
        self, to: Space, target: Lanes, source_space: Space, source: Lanes, size: Lanes
    ) -> None:
        """Copy a run of bytes between memories; all operands are uniform."""
        ...

    def load_box(self, box: Box, fill: Lanes, rounds: Lanes) -> None:
        """Copy a box to shared memory, for an agent.

        Where the tensor has no element, bytes are those of `fill` (uint16), over and over. If
        `rounds` is 1, float32 elements are rounded to tf32 (nearest, NaN to 0x7fffe000).
        """
        ...

    def store_box(self, box: Box) -> None:
        """Copy a box from shared memory to where the tensor has elements, for an agent.

        On the innermost axis whole chunks of 16 bytes are written, also where the tensor ends
        within one.
        """
        ...

    # ---- block primitives

    def product(
        self,
        a: Sequence[Lanes],
        b: Sequence[Lanes],
        c: Sequence[Lanes],
        fragments: tuple[Fragment, Fragment, Fragment],
        types: tuple[DType, DType, DType],
    ) -> list[Lanes]:
        """Multiply warp fragments: D = A·B + C, with A as m × k, B as n × k, C as m × n.

        Registers hold packed elements as the fragments say. With `fast` numerics each output
        is a float32 FMA chain in ascending k from C, with `exact` ones see `numerics`.
        """
        ...

    def load_cells(self, cells: Lanes) -> Lanes:
        """Load a 32-bit cell of Tensor Memory per active lane, uint32.

        Addresses are the chip's: the lane of Tensor Memory in bits 31-16, the column in bits
        15-0. Cells outside the 128 × 512, or in columns that are not allocated, are a fault.
        """
        ...

    def store_cells(self, cells: Lanes, value: Lanes) -> None:
        """Store a 32-bit cell of Tensor Memory per active lane."""
        ...

    def product_tiles(
        self,
        d: Lanes,
        a: SharedTile | Lanes,
        b: SharedTile,
        shape: tuple[Lanes, Lanes, int],
        types: tuple[DType, DType],
        update: Update,
    ) -> None:
        """Multiply tiles in memory into Tensor Memory, for an agent.

        `d` is the cell of row 0, column 0 of D; of 128 rows, row i lies in lane i from there on,
        of 64 rows in lane 32·(i // 16) + i % 16 (PTX ISA, tcgen05 data path layouts D and F);
        columns are columns, one cell each. `a` is a tile in shared memory, or the cell of its
        first row, with rows as those of D and packed elements, in Tensor Memory. `shape` is
        (M, N, K), `types` those of the inputs and of D. What is asked for must have been checked
        (`require`) to lie in lanes and columns that are allocated. With `fast` numerics each
        output is a float32 FMA chain in ascending k, from D · scale or from 0; with `exact` ones
        see `numerics`.
        """
        ...

    # ---- barriers of the CTA, agents, faults

    def cta_state(self, field: str) -> Lanes:
        """Read a word of the CTA's state, uint32.

        "tmem_columns" has bit i set while columns 32·i to 32·i + 31 are allocated, "tmem_starts"
        while an allocation begins there; "tmem_permit" is 1 once the permit to allocate has been
        given up; "exited_warps" counts the warps of which every lane has returned.
        """
        ...

    def set_cta_state(self, field: str, value: Lanes) -> None:
        """Write a word of the CTA's state."""
        ...

    def cluster_state(self, field: str) -> Lanes:
        """Read a word of the state that the CTAs of a cluster share, uint32; all uniform.

        Of the cluster's barrier: "generation", how often it has completed; "arrived" and
        "expected", threads. "threads" is how many the cluster has, "exited" how many have.
        """
        ...

    def set_cluster_state(self, field: str, value: Lanes) -> None:
        """Write a word of the cluster's state."""
        ...

    def warp_state(self, field: str) -> Lanes:
        """Read a word of the warp's state, uint32: a set of lanes, none at the start.

        "exited" have returned. "cluster_arrived" have arrived at the cluster's barrier and not
        waited yet; of these, "cluster_parity" are those that did when its generation was odd.
        """
        ...

    def set_warp_state(self, field: str, value: Lanes) -> None:
        """Write a word of the warp's state."""
        ...

    def barrier_state(self, barrier: Lanes, field: str) -> Lanes:
        """Read a field of a named barrier, uint32; all uniform, all zero at the start.

        "arrived" and "expected" (threads, rounded up to warps), "counted" (1 if an arrival gave
        a count), "generation" (the number of times it completed), "reducing" and "reduced"
        (votes of `bar.red`, see `barriers`).
        """
        ...

    def set_barrier_state(self, barrier: Lanes, field: str, value: Lanes) -> None:
        """Write a field of a named barrier; uniform."""
        ...

    def issue(
        self,
        form: Form,
        operands: Sequence[Lanes],
        barrier: Lanes | None = None,
        lane: Lanes | None = None,
    ) -> None:
        """Hand an asynchronous operation to the form's agent.

        Operands are given to the declaration's `lands` when it lands; `barrier` is the shared
        address of the mbarrier that its completion is seen through. In `each_lane` they are
        scalars, and `lane` is the lane whose groups the operation belongs to. Elsewhere they
        are one operation of each active lane, of its own groups, which may land together:
        `lands` has lanes then, as many as issued it.

        If the declaration has `reads`, it lands in two steps: first what it reads is taken, and
        only later does it write.
        """
        ...

    def mbarrier_word(self, address: Lanes) -> Lanes:
        """Read the eight bytes of an mbarrier, uint64: as a load does, but these are no data."""
        ...

    def set_mbarrier_word(self, address: Lanes, word: Lanes) -> None:
        """Write the eight bytes of an mbarrier, as a store does."""
        ...

    def mbarrier_in_use(self, barrier: Lanes) -> Lanes:
        """Tell whether somebody waits at the mbarrier at a shared address, or something in flight
        is seen through it; uniform."""
        ...

    def tally(self, barrier: Lanes, expected: Lanes, come: Lanes) -> None:
        """Count bytes (uint32) that an mbarrier is to expect, and bytes that have come.

        For reports only: an mbarrier itself keeps no more than the difference. Uniform.
        """
        ...

    def clear_tally(self, barrier: Lanes) -> None:
        """Count the bytes of an mbarrier from zero, as for a phase that begins. Uniform."""
        ...

    def commit_group(self, group: str) -> None:
        """Make a group of what each active lane has issued since its last group.

        `group` is one of `GROUPS`.
        """
        ...

    def groups_done(self, group: str, keep: Lanes, *, read: bool = False) -> Lanes:
        """Tell whether all but the last `keep` groups of every active lane have landed.

        With `read` it is enough that they have read their sources. Uniform.
        """
        ...

    def require(self, condition: Lanes, code: str, message: str) -> None:
        """Report a located fault of that code unless the condition holds in every active lane."""
        ...

    def trap(self) -> None:
        """End the launch with a fault of the code `trap`."""
        ...


def uint32(machine: Machine, value: int) -> Lanes:
    """Give a uniform uint32 constant."""
    return machine.constant(value, UINT32)


def always(machine: Machine) -> Lanes:
    """Give the condition that holds in every lane."""
    return machine.constant(True, BOOL)


def packed(machine: Machine, value: Lanes, element: str) -> list[Lanes]:
    """Split a register into the elements packed in it, lowest bits first."""
    kind = dtype(element)
    bits = dtype(f"uint{kind.bits}")
    whole = machine.bitcast(value, dtype(f"uint{value.dtype.bits}"))
    pieces = range(0, whole.dtype.bits, kind.bits)
    return [machine.bitcast(machine.cast(whole >> shift, bits), kind) for shift in pieces]
