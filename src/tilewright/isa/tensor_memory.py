"""Tensor Memory: loads and stores by a warp, waits and fences (PTX ISA 9.7.16).

May import `base`, `isa.declaration` and `isa.machine`. Tensor Memory has 128 lanes (rows here) of
512 columns of 32 bits; an address has the lane in bits 31-16 and the column in bits 15-0. A warp
reaches the 32 lanes from 32·(warp % 4) on.

    tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r0, %r1, %r2, %r3}, [%r4];
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilewright.base.spaces import Space
from tilewright.base.targets import only
from tilewright.isa.declaration import (
    Access,
    Declaration,
    Form,
    Operand,
    Order,
    Role,
    TileContract,
    TileOperand,
    Time,
    address,
    declare,
    immediate,
    register,
)
from tilewright.isa.machine import WARP, Lanes, Machine, uint32

# PTX ISA, tcgen05, "Target ISA Notes".
TARGETS = only("sm_100a", "sm_103a", "sm_110a", families=(100, 110))
LANES = 128
COLUMNS = 512
CELL = 4  # bytes of a column in one lane
LANE_SHIFT = 16  # an address has the lane from this bit on
_CODE = "tensor-memory"

# ---------------------------------------------------------------------------- shapes


@dataclass(frozen=True, slots=True)
class Shape:
    """How a warp's registers hold a block of Tensor Memory.

    The block has `rows` rows and `columns` columns, in `registers` registers; `.xN` puts N of
    them side by side, at most `most`. `place(lane, register)` gives row and column in a block;
    lanes may be numbers, arrays or `Lanes`. In a `halved` shape the rows from `rows` on are those
    of a second block, at the address of the first plus an immediate.
    """

    rows: int
    columns: int
    registers: int
    most: int
    place: Callable[[Any, int], tuple[Any, Any]]
    halved: bool = False


def _64b(lane: Any, register: int) -> tuple[Any, Any]:
    return (lane >> 2) + ((lane & 1) << 3), (lane >> 1) & 1


def _128b(lane: Any, register: int) -> tuple[Any, Any]:
    return (lane >> 2) + 8 * register, lane & 3


def _256b(lane: Any, register: int) -> tuple[Any, Any]:
    return (lane >> 2) + 8 * (register // 2), ((lane & 3) << 1) + register % 2


def _row(lane: Any, register: int) -> tuple[Any, Any]:
    return lane, lane & 0


# PTX ISA, "Data movement shape" and the figures of each.
SHAPES = {
    "32x32b": Shape(32, 1, 1, 128, _row),
    "16x64b": Shape(16, 2, 1, 128, _64b),
    "16x128b": Shape(16, 4, 2, 64, _128b),
    "16x256b": Shape(16, 8, 4, 32, _256b),
    "16x32bx2": Shape(16, 1, 1, 128, _row, halved=True),
}
_PLAIN = tuple(name for name, shape in SHAPES.items() if not shape.halved)
_HALVED = tuple(name for name, shape in SHAPES.items() if shape.halved)
_NUMBERS = tuple(f"x{1 << power}" for power in range(8))


def shape_of(form: Form) -> Shape:
    """Give the shape of a load or store."""
    return SHAPES[form["shape"]]


def repeats(form: Form) -> int:
    """Give the N of `.xN`."""
    return int(form["num"][1:])


def is_packed(form: Form) -> bool:
    """Tell the forms that hold the low halves of two neighbouring columns in a register."""
    return bool(form["pack"])


@cache
def _owners(form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Invert the places: the lane and the register of each row and column."""
    shape, lane = shape_of(form), np.arange(WARP)
    rows = 2 * shape.rows if shape.halved else shape.rows
    lanes = np.zeros((rows, shape.columns * repeats(form)), np.int64)
    registers = np.zeros_like(lanes)
    for number in range(shape.registers * repeats(form)):
        block, register = divmod(number, shape.registers)
        row, column = shape.place(lane, register)
        lanes[row, column + shape.columns * block] = lane
        registers[row, column + shape.columns * block] = number
    return lanes, registers


# ---------------------------------------------------------------------------- loads and stores


def _many(form: Form) -> str | None:
    most = shape_of(form).most
    return None if repeats(form) <= most else f".{form['shape']} has at most .x{most}"


def _registers(form: Form, role: Role) -> Operand:
    count = shape_of(form).registers * repeats(form)
    return register("r", "b32", role=role, count=count, grouped=True)


def _cell_address(form: Form, access: Access) -> Operand:
    cells = shape_of(form).columns * repeats(form) * (2 if is_packed(form) else 1)
    return address("taddr", Space.TMEM, access, 4 * cells, align=1)


def _offset(form: Form) -> tuple[Operand, ...]:
    halved = shape_of(form).halved
    return (immediate("immHalfSplitoff", "u32", range(COLUMNS)),) if halved else ()


def _cells(m: Machine, form: Form, taddr: Lanes, offset: Sequence[Lanes]) -> Iterator[Lanes]:
    """Give the cells of each register, of packed ones the first; checks the address."""
    shape = shape_of(form)
    base = m.first(taddr)
    m.require(taddr == base, _CODE, "the lanes of a warp give different addresses")
    m.require(
        base >> LANE_SHIFT + 5 == (m.first(m.special("warpid")) & 3),
        _CODE,
        "a warp reaches only its own quarter of Tensor Memory, lanes 32·(warp % 4) to … + 31",
    )
    m.require(
        ((base >> LANE_SHIFT) & (shape.rows - 1)) == 0,
        _CODE,
        f"a block of .{form['shape']} begins at a multiple of {shape.rows} lanes",
    )
    wide = 2 if is_packed(form) else 1
    firsts = [_first(m, shape, base, register, wide) for register in range(shape.registers)]
    if shape.halved:
        second = m.select(m.lane_id() >= shape.rows, offset[0], uint32(m, 0))
        firsts = [each + second for each in firsts]
    for block in range(repeats(form)):
        for first in firsts:
            yield first + block * shape.columns * wide


def _first(m: Machine, shape: Shape, base: Lanes, register: int, wide: int) -> Lanes:
    """Give the cells of a register of the first block."""
    row, column = shape.place(m.lane_id(), register)
    return base + ((row & (shape.rows - 1)) << LANE_SHIFT) + column * wide


def _load(m: Machine, form: Form, taddr: Lanes, *offset: Lanes) -> list[Lanes]:
    found: list[Lanes] = []
    for cells in _cells(m, form, taddr, offset):
        value = m.load_cells(cells)
        if is_packed(form):
            value = (value & 0xFFFF) | (m.load_cells(cells + 1) << 16)
        found.append(value)
    return found


def _store(m: Machine, form: Form, taddr: Lanes, *rest: Lanes) -> None:
    offset = len(_offset(form))
    values = rest[offset:]
    for cells, value in zip(_cells(m, form, taddr, rest[:offset]), values, strict=True):
        if is_packed(form):
            m.store_cells(cells, value & 0xFFFF)
            m.store_cells(cells + 1, value >> 16)
        else:
            m.store_cells(cells, value)


def _contract(form: Form, loads: bool) -> TileContract:
    """State the tile contract: blocks of cells, at a lane that is a multiple of their rows.

    Both sides count 32-bit words; with packing the memory side has 16-bit elements and an axis of
    two more. Of two half blocks each has an operand, and the address of the second must be that
    of the first plus `immHalfSplitoff`.
    """
    shape = shape_of(form)
    block = (shape.rows, shape.columns * repeats(form))
    lanes, registers = _owners(form)

    def whole(row: Any, column: Any) -> tuple[Any, Any]:
        return lanes[row, column], registers[row, column]

    def half(part: Any, row: Any, column: Any) -> tuple[Any, Any]:
        return whole(part * shape.rows + row, column)

    atom, bits = ((*block, 2), 16) if is_packed(form) else (block, 32)
    cells = [TileOperand("taddr", (Space.TMEM,), atom, bits)]
    if shape.halved:
        held = TileOperand("r", (Space.LOCAL,), (2, *block), 32, owner=half)
        cells.append(TileOperand("immHalfSplitoff", (Space.TMEM,), atom, bits))
    else:
        held = TileOperand("r", (Space.LOCAL,), block, 32, owner=whole)
    return TileContract("warp", (held, *cells) if loads else (*cells, held))


def _loading(shapes: tuple[str, ...]) -> Declaration:
    return declare(
        "tcgen05",
        "ld.sync.aligned.{shape}{num}{pack}b32",
        slots={"shape": shapes, "num": _NUMBERS, "pack": ("", "pack::16b")},
        summary="Load a block of Tensor Memory into the registers of a warp, later.",
        section='9.7.16.8.3 "tcgen05.ld"',
        targets=TARGETS,
        operands=lambda form: (
            _registers(form, "out"),
            _cell_address(form, "read"),
            *_offset(form),
        ),
        compute=_load,
        legal=_many,
        lanes="warp",
        aligned=True,
        result="lanes",
        time=Time("tensor_memory", "tmem_load"),
        tile=lambda form: _contract(form, loads=True),
    )


def _storing(shapes: tuple[str, ...]) -> Declaration:
    return declare(
        "tcgen05",
        "st.sync.aligned.{shape}{num}{pack}b32",
        slots={"shape": shapes, "num": _NUMBERS, "pack": ("", "unpack::16b")},
        summary="Store the registers of a warp to a block of Tensor Memory, later.",
        section='9.7.16.8.4 "tcgen05.st"',
        targets=TARGETS,
        operands=lambda form: (
            _cell_address(form, "write"),
            *_offset(form),
            _registers(form, "in"),
        ),
        compute=_store,
        legal=_many,
        lanes="warp",
        aligned=True,
        time=Time("tensor_memory", "tmem_store"),
        tile=lambda form: _contract(form, loads=False),
    )


ld = _loading(_PLAIN)
ld_halves = _loading(_HALVED)
st = _storing(_PLAIN)
st_halves = _storing(_HALVED)

# ---------------------------------------------------------------------------- waits, fences


def _nothing(m: Machine, form: Form) -> None:
    """Do nothing: the instruction stands for a point in the order of others."""


def _waiting(token: str, completes: Time, what: str) -> Declaration:
    return declare(
        "tcgen05",
        f"{token}.sync.aligned",
        summary=f"Wait until this thread's {what} of Tensor Memory are done.",
        section='9.7.16.8.5 "tcgen05.wait"',
        targets=TARGETS,
        compute=_nothing,
        lanes="warp",
        aligned=True,
        time=completes,
    )


wait_ld = _waiting("wait::ld", Time(completes="tmem_load"), "loads")
wait_st = _waiting("wait::st", Time(completes="tmem_store"), "stores")


def _fence(token: str, summary: str) -> Declaration:
    return declare(
        "tcgen05",
        token,
        summary=summary,
        section='9.7.16.11.1 "tcgen05.fence"',
        targets=TARGETS,
        compute=_nothing,
        order=Order(proxy="none"),
    )


fence_before = _fence(
    "fence::before_thread_sync",
    "Order earlier asynchronous tensor operations before a synchronisation of threads.",
)
fence_after = _fence(
    "fence::after_thread_sync",
    "Order later asynchronous tensor operations after a synchronisation of threads.",
)
