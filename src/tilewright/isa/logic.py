"""Logic, shifts and bytes of scalar registers (PTX ISA 9.7.8, and the bit counts of 9.7.1).

May import `base`, `isa.declaration`, `isa.machine` and `isa.arithmetic`.

    lop3.b32 %r0, %r1, %r2, %r3, 0xe8;
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.base.targets import since
from tilewright.isa.arithmetic import (
    INTEGERS,
    declare_plain,
    function,
    inputs,
    operation,
    registers_tile,
)
from tilewright.isa.declaration import Declaration, Form, declare, immediate, register
from tilewright.isa.machine import Lanes, Machine

_BITS = ("b16", "b32", "b64")

for _op, _symbol in (("and", "and"), ("or", "or"), ("xor", "exclusive or")):
    declare_plain(
        _op,
        "{type}",
        _BITS,
        operation(_op),
        names="ab",
        summary=f"Give the bitwise {_symbol}.",
        section=f'9.7.8 "{_op}"',
    )


def _inverse(m: Machine, a: Lanes) -> Lanes:
    return ~a


not_ = declare_plain(
    "not",
    "{type}",
    _BITS,
    _inverse,
    names="a",
    summary="Invert the bits.",
    section='9.7.8 "not"',
)
brev = declare_plain(
    "brev",
    "{type}",
    ("b32", "b64"),
    function("brev"),
    names="a",
    summary="Reverse the bits.",
    section='9.7.1 "brev"',
)


def _shift(family: str, types: Sequence[str], summary: str) -> Declaration:
    def compute(m: Machine, form: Form, a: Lanes, b: Lanes) -> Sequence[Lanes]:
        return (m.binary(family, a, b),)

    return declare(
        family,
        "{type}",
        slots={"type": tuple(types)},
        summary=summary,
        section=f'9.7.8 "{family}"',
        targets=since(75),
        operands=lambda form: (
            register("d", form["type"], role="out"),
            register("a", form["type"]),
            register("b", "u32"),
        ),
        compute=compute,
        tile=registers_tile,
        volatile=False,
    )


shl = _shift("shl", _BITS, "Shift left; by the width or more gives 0.")
shr = _shift("shr", (*_BITS, *INTEGERS), "Shift right, with the sign for signed types.")


def _count(family: str, function: str, summary: str) -> Declaration:
    def compute(m: Machine, form: Form, a: Lanes) -> Sequence[Lanes]:
        return (m.cast(m.intrinsic(function, a), UINT32),)

    return declare(
        family,
        "{type}",
        slots={"type": ("b32", "b64")},
        summary=summary,
        section=f'9.7.1 "{family}"',
        targets=since(75),
        operands=lambda form: (register("d", "u32", role="out"), register("a", form["type"])),
        compute=compute,
        tile=registers_tile,
        volatile=False,
    )


popc = _count("popc", "popcount", "Count the bits that are set.")
clz = _count("clz", "clz", "Count the leading zeros.")


def _lookup(m: Machine, form: Form, a: Lanes, b: Lanes, c: Lanes, table: Lanes) -> Sequence[Lanes]:
    result = m.constant(0, UINT32)
    for row in range(8):
        chosen = m.constant(0, UINT32) - ((m.cast(table, UINT32) >> row) & 1)
        for place, operand in ((4, a), (2, b), (1, c)):
            chosen = chosen & (operand if row & place else ~operand)
        result = result | chosen
    return (result,)


lop3 = declare(
    "lop3",
    "b32",
    summary="Apply any logical function of three operands, given by its truth table.",
    section='9.7.8.6 "lop3"',
    targets=since(75),
    operands=(
        register("d", "b32", role="out"),
        *inputs("abc", "b32"),
        immediate("immLut", "u32", range(256)),
    ),
    compute=_lookup,
    volatile=False,
)


def _permute(m: Machine, form: Form, a: Lanes, b: Lanes, c: Lanes) -> Sequence[Lanes]:
    whole = m.cast(a, UINT64) | (m.cast(b, UINT64) << 32)
    result = m.constant(0, UINT32)
    for place in range(4):
        choice = (c >> (4 * place)) & 15
        byte = m.cast(whole >> ((choice & 7) << 3), UINT32) & 255
        sign = m.constant(0, UINT32) - (byte >> 7)
        byte = m.select((choice & 8) != 0, sign & 255, byte)
        result = result | (byte << (8 * place))
    return (result,)


prmt = declare(
    "prmt",
    "b32",
    summary="Pick four bytes out of two registers.",
    section='9.7.9.7 "prmt"',
    targets=since(75),
    operands=(register("d", "b32", role="out"), *inputs("abc", "b32")),
    compute=_permute,
    volatile=False,
)


def _funnel(m: Machine, form: Form, a: Lanes, b: Lanes, c: Lanes) -> Sequence[Lanes]:
    count = c & 31 if form["mode"] == "wrap" else m.binary("min", c, m.constant(32, UINT32))
    whole = m.cast(a, UINT64) | (m.cast(b, UINT64) << 32)
    shifted = whole >> count if form["direction"] == "r" else (whole << count) >> 32
    return (m.cast(shifted, UINT32),)


shf = declare(
    "shf",
    "{direction}{mode}b32",
    slots={"direction": ("l", "r"), "mode": ("clamp", "wrap")},
    summary="Shift a pair of registers and give one half.",
    section='9.7.8.7 "shf"',
    targets=since(75),
    operands=(
        register("d", "b32", role="out"),
        *inputs("ab", "b32"),
        register("c", "u32"),
    ),
    compute=_funnel,
    volatile=False,
)
