"""Matrix multiply-accumulate by a warp (PTX ISA 9.7.14, `mma`).

May import `base`, `isa.declaration` and `isa.machine`. The fragments are stated here once: a
register of A holds consecutive k of one row, of B consecutive k of one column, and C and D are
held in pairs of columns; lane l stands for row (or column) l // 4 and position l % 4.

    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0…d3}, {a0…a3}, {b0, b1}, {c0…c3};
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.declaration import (
    Form,
    Fragment,
    Operand,
    TileContract,
    TileOperand,
    declare,
    register,
)
from tilewright.isa.machine import Lanes, Machine

_TYPES: dict[str, DType] = {"f16": FLOAT16, "bf16": BFLOAT16}


def fragment_a(k: int, bits: int) -> Fragment:
    """Give the fragment of A, 16 × k, for elements of at most 32 bits."""
    pack = 32 // bits

    def owner(row: Any, column: Any) -> tuple[Any, Any]:
        lane = 4 * (row % 8) + column % (4 * pack) // pack
        return lane, row // 8 + 2 * (column // (4 * pack))

    return Fragment(16, k, bits, owner, pack)


def fragment_b(k: int, bits: int) -> Fragment:
    """Give the fragment of B, as 8 columns × k, for elements of at most 32 bits."""
    pack = 32 // bits

    def owner(column: Any, k: Any) -> tuple[Any, Any]:
        return 4 * column + k % (4 * pack) // pack, k // (4 * pack)

    return Fragment(8, k, bits, owner, pack)


def _owner_c(row: Any, column: Any) -> tuple[Any, Any]:
    return 4 * (row % 8) + column // 2, 2 * (row // 8) + column % 2


FRAGMENT_C = Fragment(16, 8, 32, _owner_c)


def _depth(form: Form) -> int:
    return int(form["shape"].removeprefix("m16n8k"))


def _fragments(form: Form) -> tuple[Fragment, Fragment, Fragment]:
    k = _depth(form)
    return fragment_a(k, 16), fragment_b(k, 16), FRAGMENT_C


def _registers(fragment: Fragment) -> int:
    return fragment.rows * fragment.columns * fragment.bits // 32 // 32


def _operands(form: Form) -> Sequence[Operand]:
    a, b, c = (_registers(each) for each in _fragments(form))
    return (
        register("d", "f32", role="out", count=c),
        register("a", "b32", count=a),
        register("b", "b32", count=b, grouped=True),
        register("c", "f32", count=c),
    )


def _multiply(m: Machine, form: Form, *registers: Lanes) -> list[Lanes]:
    fragments = _fragments(form)
    a, b, _ = (_registers(each) for each in fragments)
    kind = _TYPES[form["type"]]
    return m.product(
        registers[:a], registers[a : a + b], registers[a + b :], fragments, (kind, kind, FLOAT32)
    )


def _in_words(fragment: Fragment) -> Callable[[Any, Any], tuple[Any, Any]]:
    return lambda row, word: fragment.owner(row, fragment.packed * word)


def _tile(form: Form) -> TileContract:
    a, b, c = _fragments(form)
    local = (Space.LOCAL,)
    words = _depth(form) // a.packed
    return TileContract(
        "warp",
        (
            TileOperand("d", local, (16, 8), 32, ("*", "m", "n"), c.owner),
            TileOperand("a", local, (16, words), 32, ("*", "m", "k"), _in_words(a)),
            TileOperand("b", local, (8, words), 32, ("*", "n", "k"), _in_words(b)),
            TileOperand("c", local, (16, 8), 32, ("*", "m", "n"), c.owner, scalar=True),
        ),
        chained="c",
        chain_to="d",
    )


def _rule(form: Form) -> str | None:
    if form["type"] != form["btype"]:
        return f"A is .{form['type']} and B .{form['btype']}: they must agree"
    return None


def _availability(form: Form) -> Availability:
    # PTX ISA, mma, "Target ISA Notes": .m16n8k8 with .f16 from sm_75, all else here from sm_80.
    return since(75 if form["type"] == "f16" and form["shape"] == "m16n8k8" else 80)


mma_sync = declare(
    "mma",
    "sync.aligned.{shape}row.col.f32.{type}{btype}f32",
    slots={"shape": ("m16n8k8", "m16n8k16"), "type": ("f16", "bf16"), "btype": ("f16", "bf16")},
    summary="Multiply half-precision matrices held by a warp, accumulating in single precision.",
    section='9.7.14.5.14 "mma"',
    targets=_availability,
    operands=_operands,
    compute=_multiply,
    legal=_rule,
    lanes="warp",
    aligned=True,
    result="lanes",
    tile=_tile,
    volatile=False,
)
