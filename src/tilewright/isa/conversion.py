"""Moves, choices, comparisons and conversions of scalar registers (PTX ISA 9.7.7, 9.7.9).

May import `base`, `isa.declaration`, `isa.machine` and `isa.arithmetic`.

    cvt.rn.f16x2.f32 %r0, %f1, %f2;
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import DType, dtype
from tilewright.base.targets import Availability, since
from tilewright.isa.arithmetic import FLOATS, HALVES, INTEGERS, pack, registers_tile
from tilewright.isa.declaration import Form, Operand, accepted_types, declare, predicate, register
from tilewright.isa.machine import Lanes, Machine, packed

_BITS = ("b16", "b32", "b64")
_ALL = (*_BITS, *INTEGERS, *FLOATS)

# ---------------------------------------------------------------------------- mov


def _same(m: Machine, form: Form, a: Lanes) -> Sequence[Lanes]:
    return (a,)


mov = declare(
    "mov",
    "{type}",
    slots={"type": _ALL},
    summary="Copy a register.",
    section='9.7.9.3 "mov"',
    targets=since(75),
    operands=lambda form: (
        register("d", form["type"], role="out"),
        register("a", form["type"]),
    ),
    compute=_same,
    tile=registers_tile,
    volatile=False,
)

_HALF_OF = {"b32": "b16", "b64": "b32"}


def _pack_operands(form: Form) -> Sequence[Operand]:
    half = _HALF_OF[form["type"]]
    return register("d", form["type"], role="out"), register("a", half, count=2)


def _unpack_operands(form: Form) -> Sequence[Operand]:
    half = _HALF_OF[form["type"]]
    return register("d", half, role="out", count=2), register("a", form["type"])


def _pack(m: Machine, form: Form, low: Lanes, high: Lanes) -> Sequence[Lanes]:
    return (pack(m, (low, high)),)


def _unpack(m: Machine, form: Form, a: Lanes) -> Sequence[Lanes]:
    return packed(m, a, accepted_types(_HALF_OF[form["type"]])[0])


mov_pack = declare(
    "mov",
    "{type}",
    slots={"type": tuple(_HALF_OF)},
    summary="Pack two registers into one of twice the width.",
    section='9.7.9.4 "mov"',
    targets=since(75),
    operands=_pack_operands,
    compute=_pack,
    tile=registers_tile,
    volatile=False,
)
mov_unpack = declare(
    "mov",
    "{type}",
    slots={"type": tuple(_HALF_OF)},
    summary="Unpack a register into two of half the width.",
    section='9.7.9.4 "mov"',
    targets=since(75),
    operands=_unpack_operands,
    compute=_unpack,
    tile=registers_tile,
    volatile=False,
)

# ---------------------------------------------------------------------------- selp, setp


def _choose(m: Machine, form: Form, a: Lanes, b: Lanes, c: Lanes) -> Sequence[Lanes]:
    return (m.select(c, a, b),)


selp = declare(
    "selp",
    "{type}",
    slots={"type": _ALL},
    summary="Choose one of two registers by a predicate.",
    section='9.7.7.3 "selp"',
    targets=since(75),
    operands=lambda form: (
        register("d", form["type"], role="out"),
        register("a", form["type"]),
        register("b", form["type"]),
        predicate("c"),
    ),
    compute=_choose,
    volatile=False,
)

_ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
_UNORDERED = {f"{op}u": op for op in _ORDERED}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _compare(m: Machine, form: Form, a: Lanes, b: Lanes) -> Sequence[Lanes]:
    op = form["op"]
    if not a.dtype.is_float:
        return (m.binary(_UNSIGNED.get(op, op), a, b),)
    no_number = m.intrinsic("isnan", a) | m.intrinsic("isnan", b)
    if op == "nan":
        return (no_number,)
    if op == "num":
        return (m.unary("not", no_number),)
    if op in _UNORDERED:
        return (m.binary(_UNORDERED[op], a, b) | no_number,)
    return (m.binary(op, a, b) & m.unary("not", no_number),)


def _comparison_rule(form: Form) -> str | None:
    op, type = form["op"], form["type"]
    if type in FLOATS:
        return f".{op} compares unsigned integers" if op in _UNSIGNED else None
    if op in _UNORDERED or op in ("num", "nan"):
        return f".{op} compares floating numbers"
    if type.startswith("b") and op not in ("eq", "ne"):
        return f".{op} does not take .{type}, only .eq and .ne do"
    if op in _UNSIGNED and not type.startswith("u"):
        return f".{op} compares unsigned integers"
    return None


setp = declare(
    "setp",
    "{op}{type}",
    slots={"op": (*_ORDERED, *_UNSIGNED, *_UNORDERED, "num", "nan"), "type": _ALL},
    summary="Compare; with a NaN only the unordered comparisons hold.",
    section='9.7.7.2 "setp"',
    targets=since(75),
    operands=lambda form: (
        predicate("p", role="out"),
        register("a", form["type"]),
        register("b", form["type"]),
    ),
    compute=_compare,
    legal=_comparison_rule,
    volatile=False,
)

# ---------------------------------------------------------------------------- cvt

_NUMBERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", *HALVES, *FLOATS)


def _element(type: str) -> DType:
    return dtype(accepted_types(type)[0])


def _float(type: str) -> bool:
    return "f" in type


def _convert(m: Machine, form: Form, a: Lanes) -> Sequence[Lanes]:
    target = _element(form["type"])
    value = m.cast(a, target)
    if a.dtype.is_float and target.is_integer and 64 in (a.dtype.bits, target.bits):
        # A NaN gives 0, but for 64 bits on either side the top bit (PTX ISA, `cvt`).
        top = m.constant(1 << (target.bits - 1), target)
        value = m.select(m.intrinsic("isnan", a), top, value)
    return (value,)


def _rounding_rule(form: Form) -> str | None:
    """Hold a conversion to the rounding that it needs, and to widths that PTX has."""
    rounding, target, source = form["rnd"], form["type"], form["atype"]
    needed = ""
    if _float(source) and not _float(target):
        needed = "rzi"
    elif _float(target) and (not _float(source) or _bits(target) < _bits(source)):
        needed = "rn"
    if rounding != needed:
        return f".{target}.{source} needs " + (f".{needed}" if needed else "no rounding")
    if target == source:
        return "a conversion changes the type"
    if _float(target) and _float(source) and _bits(target) == _bits(source):
        return f"there is no conversion of .{source} to .{target}"
    if "bf16" in (target, source) and "f32" not in (target, source):
        return "bf16 converts from and to .f32 only, here"
    return None


def _bits(type: str) -> int:
    return _element(type).bits


def _convert_availability(form: Form) -> Availability:
    return since(80) if "bf16" in (form["type"], form["atype"]) else since(75)


cvt = declare(
    "cvt",
    "{rnd}{type}{atype}",
    slots={"rnd": ("", "rn", "rzi"), "type": _NUMBERS, "atype": _NUMBERS},
    summary="Convert a number: to floats to nearest even, to integers towards zero.",
    section='9.7.9.21 "cvt"',
    targets=_convert_availability,
    operands=lambda form: (
        register("d", form["type"], role="out"),
        register("a", form["atype"]),
    ),
    compute=_convert,
    legal=_rounding_rule,
    tile=registers_tile,
    volatile=False,
)


def _convert_two(m: Machine, form: Form, a: Lanes, b: Lanes) -> Sequence[Lanes]:
    half = _element(form["type"].removesuffix("x2"))
    return (pack(m, (m.cast(b, half), m.cast(a, half))),)


cvt_packed = declare(
    "cvt",
    "rn.{type}f32",
    slots={"type": ("f16x2", "bf16x2")},
    summary="Convert two numbers to half precision, the first into the high half.",
    section='9.7.9.21 "cvt"',
    targets=since(80),
    operands=(register("d", "b32", role="out"), register("a", "f32"), register("b", "f32")),
    compute=_convert_two,
    tile=registers_tile,
    volatile=False,
)
