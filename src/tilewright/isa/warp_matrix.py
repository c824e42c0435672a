"""Matrix multiply-accumulate by a warp (PTX ISA 9.7.14, `mma`).

May import `base`, `isa.declaration` and `isa.machine`. The fragments are stated here once: a
register of A holds consecutive k of one row, of B consecutive k of one column, and C and D are
held in pairs of columns; lane l stands for row (or column) l // 4 and position l % 4.

    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0…d3}, {a0…a3}, {b0, b1}, {c0…c3};
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {d0, d1}, {a0…a3}, {b0, b1}, {c0, c1};
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {d0…d3}, {a0…a3}, {b0, b1}, {c0…c3};
    mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {d0…d3}, {a0…a3}, {b0, b1}, {c0…c3};
    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {d0, d1}, {a0}, {b0}, {c0, c1};
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import FLOAT32, INT32, INT64, DType, dtype
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Fragment,
    Operand,
    TileContract,
    TileOperand,
    declare,
    register,
)
from tilewright.isa.machine import WARP, Lanes, Machine, packed

# The types of elements, by their names in instructions. Of a tf32, a float32, not all bits count.
_TYPES: dict[str, DType] = {
    "f16": dtype("float16"),
    "bf16": dtype("bfloat16"),
    "tf32": FLOAT32,
    "f32": FLOAT32,
    "s8": dtype("int8"),
    "u8": dtype("uint8"),
    "s32": INT32,
    "f64": dtype("float64"),
}
# The bits of a float32 that count as a tf32 (PTX ISA, "Alternate floating point data formats").
_TF32 = ~((1 << 13) - 1) & ((1 << 32) - 1)


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


_HALVES_C = Fragment(16, 8, 16, lambda row, column: (4 * (row % 8) + column // 2, row // 8), 2)
# m8n8k4 of float64: an element of A and B in each lane, two of C.
_DOUBLES_A = Fragment(8, 4, 64, lambda row, column: (4 * row + column, 0 * row))
_DOUBLES_C = Fragment(8, 8, 64, lambda row, column: (4 * row + column // 2, column % 2))


def _kinds(form: Form) -> tuple[str, str, str]:
    """Name the types of A, B, and of C and D."""
    if form.declaration is mma_sync:
        return form["type"], form["btype"], "f32"
    if form.declaration is mma_integer:
        return form["type"], form["btype"], "s32"
    if form.declaration is mma_half:
        return "f16", "f16", "f16"
    return ("f64", "f64", "f64") if form.declaration is mma_double else ("tf32", "tf32", "f32")


def _depth(form: Form) -> int:
    return int(form["shape"].rpartition("k")[2])


def _fragments(form: Form) -> tuple[Fragment, Fragment, Fragment]:
    if form.declaration is mma_double:
        return _DOUBLES_A, _DOUBLES_A, _DOUBLES_C
    k, bits = _depth(form), _TYPES[_kinds(form)[0]].bits
    c = _HALVES_C if form.declaration is mma_half else FRAGMENT_C
    return fragment_a(k, bits), fragment_b(k, bits), c


def _registers(fragment: Fragment) -> int:
    return fragment.rows * fragment.columns // fragment.packed // WARP


def _operands(form: Form) -> Sequence[Operand]:
    fragments, kinds = _fragments(form), _kinds(form)
    a, b, c = (_registers(each) for each in fragments)
    # Elements that fill a register are told by their type, others by its bits.
    inner = kinds[0] if kinds[0] == "f64" else "b32"
    outer = "b32" if fragments[2].packed > 1 else kinds[2]
    return (
        register("d", outer, role="out", count=c),
        register("a", inner, count=a, grouped=True),
        register("b", inner, count=b, grouped=True),
        register("c", outer, count=c),
    )


def _multiply(m: Machine, form: Form, *registers: Lanes) -> list[Lanes]:
    fragments = _fragments(form)
    count, other, _ = (_registers(each) for each in fragments)
    a, b, c = registers[:count], registers[count : count + other], registers[count + other :]
    one, two, result = (_TYPES[each] for each in _kinds(form))
    if one == FLOAT32:
        a, b = ([each & _TF32 for each in some] for some in (a, b))
    return m.product(a, b, c, fragments, (one, two, result))


def _pairs(
    m: Machine, a: Sequence[Lanes], b: Sequence[Lanes], fragments: Sequence[Fragment], k: int
) -> list[tuple[Lanes, Lanes]]:
    """Bring each lane the factors of its elements of C: registers that begin with column k."""
    lane = np.arange(WARP)
    count = _registers(fragments[2])
    rows = [lane // 4 + 8 * (each // 2) for each in range(count)]
    columns = [2 * (lane % 4) + each % 2 for each in range(count)]
    wanted = [(*fragments[0].owner(row, k), a) for row in rows]
    others = [(*fragments[1].owner(column, k), b) for column in columns]
    found = [
        [m.gather(of, np.broadcast_to(which, WARP), owner) for owner, which, of in each]
        for each in (wanted, others)
    ]
    return list(zip(*found, strict=True))


def _multiply_integers(m: Machine, form: Form, *registers: Lanes) -> list[Lanes]:
    """Multiply integers, exactly; sums wrap around, or end at the greatest and least numbers."""
    fragments = _fragments(form)
    count, other, _ = (_registers(each) for each in fragments)
    a, b, c = registers[:count], registers[count : count + other], registers[count + other :]
    one, two, _ = (_TYPES[each].name for each in _kinds(form))
    sums = [m.constant(0, INT32)] * len(c)
    for k in range(0, _depth(form), fragments[0].packed):
        for index, (left, right) in enumerate(_pairs(m, a, b, fragments, k)):
            factors = zip(packed(m, left, one), packed(m, right, two), strict=True)
            for x, y in factors:
                sums[index] = sums[index] + m.cast(x, INT32) * m.cast(y, INT32)
    if not form["satfinite"]:
        return [before + each for before, each in zip(c, sums, strict=True)]
    least, most = (m.constant(each, INT64) for each in (-(1 << 31), (1 << 31) - 1))
    wide = [m.cast(x, INT64) + m.cast(y, INT64) for x, y in zip(c, sums, strict=True)]
    clamped = (m.intrinsic("min", m.intrinsic("max", each, least), most) for each in wide)
    return [m.cast(each, INT32) for each in clamped]


def _multiply_doubles(m: Machine, form: Form, *registers: Lanes) -> list[Lanes]:
    """Multiply float64 numbers: an FMA chain in ascending k for each element of C."""
    a, b, *sums = registers
    for k in range(_depth(form)):
        for index, (left, right) in enumerate(_pairs(m, [a], [b], _fragments(form), k)):
            sums[index] = m.intrinsic("fma", left, right, sums[index])
    return sums


def _in_words(fragment: Fragment) -> Callable[[Any, Any], tuple[Any, Any]]:
    return lambda row, word: fragment.owner(row, fragment.packed * word)


def _tile(form: Form) -> TileContract:
    def operand(
        name: str, fragment: Fragment, repeats: tuple[str, ...], scalar: bool = False
    ) -> TileOperand:
        atom = (fragment.rows, fragment.columns // fragment.packed)
        local, owner = (Space.LOCAL,), _in_words(fragment)
        return TileOperand(name, local, atom, 32, repeats, owner, scalar=scalar)

    a, b, c = _fragments(form)
    return TileContract(
        "warp",
        (
            operand("d", c, ("*", "m", "n")),
            operand("a", a, ("*", "m", "k")),
            operand("b", b, ("*", "n", "k")),
            operand("c", c, ("*", "m", "n"), scalar=True),
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
    return since(75 if _kinds(form)[0] == "f16" and form["shape"] == "m16n8k8" else 80)


def _declare(
    syntax: str,
    slots: dict[str, tuple[str, ...]],
    summary: str,
    compute: Callable[..., list[Lanes]] = _multiply,
    tile: Callable[[Form], TileContract] | None = _tile,
    legal: Callable[[Form], str | None] = lambda form: None,
) -> Declaration:
    return declare(
        "mma",
        syntax,
        slots=slots,
        summary=summary,
        section='9.7.14.5.14 "mma"',
        targets=_availability,
        operands=_operands,
        compute=compute,
        legal=legal,
        lanes="warp",
        aligned=True,
        result="lanes",
        tile=tile,
        volatile=False,
    )


mma_sync = _declare(
    "sync.aligned.{shape}row.col.f32.{type}{btype}f32",
    {"shape": ("m16n8k8", "m16n8k16"), "type": ("f16", "bf16"), "btype": ("f16", "bf16")},
    "Multiply half-precision matrices held by a warp, accumulating in single precision.",
    legal=_rule,
)

mma_half = _declare(
    "sync.aligned.{shape}row.col.f16.f16.f16.f16",
    {"shape": ("m16n8k8", "m16n8k16")},
    "Multiply half-precision matrices held by a warp, accumulating in half precision.",
)

mma_tf32 = _declare(
    "sync.aligned.{shape}row.col.f32.tf32.tf32.f32",
    {"shape": ("m16n8k4", "m16n8k8")},
    "Multiply matrices of tf32 held by a warp, accumulating in single precision.",
)

mma_integer = _declare(
    "sync.aligned.{shape}row.col.{satfinite}s32.{type}{btype}s32",
    {
        "shape": ("m16n8k16", "m16n8k32"),
        "satfinite": ("", "satfinite"),
        "type": ("s8", "u8"),
        "btype": ("s8", "u8"),
    },
    "Multiply matrices of 8-bit integers held by a warp, accumulating in 32-bit integers.",
    compute=_multiply_integers,
)

mma_double = _declare(
    "sync.aligned.{shape}row.col.f64.f64.f64.f64",
    {"shape": ("m8n8k4",)},
    "Multiply double-precision matrices held by a warp.",
    compute=_multiply_doubles,
    tile=None,
)
