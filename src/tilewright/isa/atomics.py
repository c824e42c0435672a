"""Atomic operations on memory (PTX ISA 9.7.13.5 `atom`, 9.7.13.7 `red`).

May import `base`, `isa.declaration`, `isa.machine` and `isa.memory`.

    atom.global.add.u32 %r0, [%rd1], 1;
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tilewright.base.dtypes import FLOAT32, UINT32
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.declaration import Form, Operand, Order, Scope, address, declare, register
from tilewright.isa.machine import Lanes, Machine
from tilewright.isa.memory import SCOPES, element_bytes, space_of

# operation: the types that it takes
_TYPES: dict[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
}
_SLOTS = {"scope": ("", *SCOPES), "space": ("", "global", "shared", "shared::cta")}
_ALL = ("u32", "s32", "u64", "s64", "b32", "b64", "f32", "f64")


def _flush(m: Machine, form: Form, value: Lanes) -> Lanes:
    """Flush single-precision subnormals, as atomics in global memory do and in shared do not."""
    if value.dtype != FLOAT32 or space_of(form) is Space.SHARED:
        return value
    bits = m.bitcast(value, UINT32)
    subnormal = (bits & 0x7F800000) == 0
    return m.bitcast(m.select(subnormal, bits & 0x80000000, bits), FLOAT32)


def _combine(m: Machine, form: Form, old: Lanes, b: Lanes) -> Lanes:
    match form["op"]:
        case "exch":
            return b
        case "inc":
            return m.select(old >= b, b - b, old + 1)
        case "dec":
            return m.select((old == 0) | (old > b), b, old - 1)
        case "add":
            return _flush(m, form, _flush(m, form, old) + _flush(m, form, b))
        case op:
            return m.binary(op, old, b)


def _update(m: Machine, form: Form, a: Lanes, b: Lanes) -> Sequence[Lanes]:
    space = space_of(form)

    def one(a: Lanes, b: Lanes) -> Sequence[Lanes]:
        (old,) = m.load(space, a, b.dtype)
        m.store(space, a, [_combine(m, form, old, b)])
        return (old,)

    return m.each_lane(one, a, b)


def _order(form: Form) -> Order:
    return Order(
        acquires=form["sem"] in ("acquire", "acq_rel"),
        releases=form["sem"] in ("release", "acq_rel"),
        scope=cast(Scope, form["scope"] or "gpu"),
    )


def _availability(form: Form) -> Availability:
    return since(90) if form["scope"] == "cluster" else since(75)


def _rule(form: Form) -> str | None:
    if form["type"] not in _TYPES[form["op"]]:
        return f".{form['op']} does not take .{form['type']}"
    return None


def _place(form: Form) -> Operand:
    return address("a", space_of(form), "update", element_bytes(form))


atom = declare(
    "atom",
    "{sem}{scope}{space}{op}{type}",
    slots={
        "sem": ("", "relaxed", "acquire", "release", "acq_rel"),
        **_SLOTS,
        "op": tuple(_TYPES),
        "type": _ALL,
    },
    summary="Update memory atomically, giving the value that was there before.",
    section='9.7.13.5 "atom"',
    targets=_availability,
    operands=lambda form: (
        register("d", form["type"], role="out"),
        _place(form),
        register("b", form["type"]),
    ),
    compute=_update,
    legal=_rule,
    result="lanes",
    order=_order,
)


def _exchange(m: Machine, form: Form, a: Lanes, b: Lanes, c: Lanes) -> Sequence[Lanes]:
    space = space_of(form)

    def one(a: Lanes, b: Lanes, c: Lanes) -> Sequence[Lanes]:
        (old,) = m.load(space, a, b.dtype)
        m.store(space, a, [m.select(old == b, c, old)])
        return (old,)

    return m.each_lane(one, a, b, c)


atom_cas = declare(
    "atom",
    "{sem}{scope}{space}cas.{type}",
    slots={
        "sem": ("", "relaxed", "acquire", "release", "acq_rel"),
        **_SLOTS,
        "type": ("b16", "b32", "b64"),
    },
    summary="Replace the value in memory by another if it is as expected, atomically.",
    section='9.7.13.5 "atom"',
    targets=_availability,
    operands=lambda form: (
        register("d", form["type"], role="out"),
        _place(form),
        register("b", form["type"]),
        register("c", form["type"]),
    ),
    compute=_exchange,
    result="lanes",
    order=_order,
)


def _reduce(m: Machine, form: Form, a: Lanes, b: Lanes) -> None:
    _update(m, form, a, b)


red = declare(
    "red",
    "{sem}{scope}{space}{op}{type}",
    slots={
        "sem": ("", "relaxed", "release"),
        **_SLOTS,
        "op": tuple(op for op in _TYPES if op != "exch"),
        "type": _ALL,
    },
    summary="Update memory atomically.",
    section='9.7.13.6 "red"',
    targets=_availability,
    operands=lambda form: (_place(form), register("b", form["type"])),
    compute=_reduce,
    legal=_rule,
    order=_order,
)
