"""Moves of 8 × 8 matrices between shared memory and the registers of a warp.

May import `base`, `isa.declaration` and `isa.machine`. PTX ISA 9.7.14.5, "Matrix multiply-
accumulate operation using mma instruction": `ldmatrix`, `stmatrix`, `movmatrix`. In all of
them lane 4·row + column/2 holds the elements (row, column) and (row, column + 1) of a matrix in
one register, the even column in the low half.

    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%r4];
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import UINT16, UINT32
from tilewright.base.spaces import Space
from tilewright.base.targets import since
from tilewright.isa.declaration import (
    Form,
    Operand,
    TileContract,
    TileOperand,
    address,
    declare,
    register,
)
from tilewright.isa.machine import WARP, Lanes, Machine, packed

_SLOTS = {"num": ("x1", "x2", "x4"), "trans": ("", "trans"), "space": ("shared", "shared::cta")}
_LANE = np.arange(WARP)


def _count(form: Form) -> int:
    return int(form["num"][1:])


def _join(m: Machine, low: Lanes, high: Lanes) -> Lanes:
    return m.cast(low, UINT32) | (m.cast(high, UINT32) << 16)


def _owner(matrix: Any, row: Any, word: Any) -> tuple[Any, Any]:
    return 4 * row + word, matrix


def _contract(form: Form, names: tuple[str, str]) -> TileContract:
    """State the tile contract; `names` are the register and the memory operand."""
    count = _count(form)
    atom = (count, 8, 4)
    registers = TileOperand(names[0], (Space.LOCAL,), atom, 32, owner=_owner)
    memory = TileOperand(names[1], (Space.SHARED,), atom, 32, contiguous=4, align=16)
    operands = (registers, memory) if names[0] == "d" else (memory, registers)
    return TileContract(
        "warp", operands, lane_address=lambda lane: ((lane // 8) % count, lane % 8, 0)
    )


# ---------------------------------------------------------------------------- ldmatrix


def _load_operands(form: Form) -> Sequence[Operand]:
    count = _count(form)
    return (
        register("d", "b32", role="out", count=count, grouped=True),
        address("p", Space.SHARED, "read", 16, lanes=8 * count),
    )


def _load(m: Machine, form: Form, p: Lanes) -> list[Lanes]:
    matrix = np.arange(_count(form))[:, None]
    if not form["trans"]:
        # Word l % 4 of row l // 4.
        lane = 8 * matrix + _LANE // 4
        which = np.broadcast_to(_LANE % 4, lane.shape)
        return m.load_matrix(Space.SHARED, p, UINT32, 4, which, lane)
    # Column l // 4 of rows 2 (l % 4) and 2 (l % 4) + 1, one in each half of the register.
    half = np.arange(2 * _count(form))[:, None]
    lane = 8 * (half // 2) + 2 * (_LANE % 4) + half % 2
    which = np.broadcast_to(_LANE // 4, lane.shape)
    halves = m.load_matrix(Space.SHARED, p, UINT16, 8, which, lane)
    return [_join(m, *halves[i : i + 2]) for i in range(0, len(halves), 2)]


ldmatrix = declare(
    "ldmatrix",
    "sync.aligned.m8n8.{num}{trans}{space}b16",
    slots=_SLOTS,
    summary="Load one, two or four 8 × 8 matrices of 16-bit elements, a row per lane's address.",
    section='9.7.14.5.15 "ldmatrix"',
    targets=since(75),
    operands=_load_operands,
    compute=_load,
    lanes="warp",
    aligned=True,
    result="lanes",
    tile=lambda form: _contract(form, ("d", "p")),
)

# ---------------------------------------------------------------------------- stmatrix


def _store_operands(form: Form) -> Sequence[Operand]:
    count = _count(form)
    return (
        address("p", Space.SHARED, "write", 16, lanes=8 * count),
        register("r", "b32", count=count, grouped=True),
    )


def _store(m: Machine, form: Form, p: Lanes, *r: Lanes) -> None:
    line = np.arange(8 * _count(form))[:, None]
    matrix, row = line // 8, line % 8
    if not form["trans"]:
        lane = 4 * row + np.arange(4)
        which = np.broadcast_to(matrix, lane.shape)
        m.store_matrix(Space.SHARED, p, r, which, lane)
        return
    # Element e of row i is the matrix's element (e, i) as the registers hold it.
    halves = [half for each in r for half in packed(m, each, "uint16")]
    lane = 4 * np.arange(8) + row // 2
    which = np.broadcast_to(2 * matrix + row % 2, lane.shape)
    m.store_matrix(Space.SHARED, p, halves, which, lane)


stmatrix = declare(
    "stmatrix",
    "sync.aligned.m8n8.{num}{trans}{space}b16",
    slots=_SLOTS,
    summary="Store one, two or four 8 × 8 matrices of 16-bit elements, a row per lane's address.",
    section='9.7.14.5.16 "stmatrix"',
    targets=since(90),
    operands=_store_operands,
    compute=_store,
    lanes="warp",
    aligned=True,
    tile=lambda form: _contract(form, ("r", "p")),
)

# ---------------------------------------------------------------------------- movmatrix


def _transpose(m: Machine, form: Form, a: Lanes) -> list[Lanes]:
    halves = packed(m, a, "uint16")
    # Element (row, column) of the result is (column, row) of the source.
    row, column = _LANE // 4, 2 * (_LANE % 4)
    low, high = (
        m.gather(halves, which=row % 2, lane=4 * (column + half) + row // 2) for half in (0, 1)
    )
    return [_join(m, low, high)]


movmatrix = declare(
    "movmatrix",
    "sync.aligned.m8n8.trans.b16",
    summary="Transpose an 8 × 8 matrix of 16-bit elements held by a warp.",
    section='9.7.14.5.17 "movmatrix"',
    targets=since(75),
    operands=(register("d", "b32", role="out"), register("a", "b32")),
    compute=_transpose,
    lanes="warp",
    aligned=True,
    result="lanes",
    volatile=False,
)
