"""Atomic operations on memory (PTX ISA 9.7.13.5 `atom`, 9.7.13.7 `red`).

May import `base`, `isa.declaration`, `isa.machine`, `isa.arithmetic` and `isa.memory`.

    atom.global.add.u32 %r0, [%rd1], 1;
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from tilewright.base.dtypes import FLOAT32, UINT32
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.arithmetic import PACKED, elementwise, operation, register_type
from tilewright.isa.declaration import Form, Operand, Order, Scope, address, declare, register
from tilewright.isa.machine import Lanes, Machine
from tilewright.isa.memory import SCOPES, element_bytes, elements, space_of

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


def _sum(m: Machine, form: Form, old: Lanes, b: Lanes) -> Lanes:
    return _flush(m, form, _flush(m, form, old) + _flush(m, form, b))


def _combine(m: Machine, form: Form, old: Lanes, b: Lanes) -> Lanes:
    match form["op"]:
        case "exch":
            return b
        case "inc":
            return m.select(old >= b, b - b, old + 1)
        case "dec":
            return m.select((old == 0) | (old > b), b, old - 1)
        case "add":
            return _sum(m, form, old, b)
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


# ---------------------------------------------------------------------------- several elements


def _add_each(
    m: Machine, form: Form, a: Lanes, values: Sequence[Lanes], add: Callable[..., Lanes]
) -> None:
    """Add values to neighbouring words, each for itself."""
    space = space_of(form)

    def one(a: Lanes, *values: Lanes) -> None:
        old = m.load(space, a, values[0].dtype, len(values))
        m.store(space, a, [add(each, value) for each, value in zip(old, values, strict=True)])

    m.each_lane(one, a, *values)


def _reduce_vector(m: Machine, form: Form, a: Lanes, *b: Lanes) -> None:
    _add_each(m, form, a, b, partial(_sum, m, form))


def _vector_operands(form: Form) -> Sequence[Operand]:
    count = elements(form)
    place = address("a", Space.GLOBAL, "update", 4 * count)
    return (place, register("b", "f32", count=count))


red_vector = declare(
    "red",
    "{scope}{space}add.{vec}f32",
    slots={"scope": ("", *SCOPES), "space": ("global",), "vec": ("v2", "v4")},
    summary="Add to neighbouring elements, to each atomically.",
    section='9.7.13.6 "red"',
    targets=since(90),
    operands=_vector_operands,
    compute=_reduce_vector,
    order=lambda form: Order(scope=cast(Scope, form["scope"] or "gpu")),
)


def _half_bytes(form: Form) -> int:
    return 4 if form["type"] in PACKED else 2


def _half_operands(form: Form) -> Sequence[Operand]:
    count = elements(form)
    place = address("a", space_of(form), "update", count * _half_bytes(form))
    return (place, register("b", register_type(form["type"]), count=count))


def _reduce_halves(m: Machine, form: Form, a: Lanes, *b: Lanes) -> None:
    add = operation("add")

    def joined(old: Lanes, value: Lanes) -> Lanes:
        (found,) = elementwise(m, form, add, old, value)
        return found

    _add_each(m, form, a, b, joined)


def _half_rule(form: Form) -> str | None:
    if form["vec"] and form["space"] != "global":
        return f".{form['vec']} needs .global"
    return None


def _half_availability(form: Form) -> Availability:
    newer = form["vec"] or form["scope"] == "cluster" or form["type"].startswith("bf16")
    return since(90 if newer else 75)


red_halves = declare(
    "red",
    "{scope}{space}add.noftz.{vec}{type}",
    slots={**_SLOTS, "vec": ("", "v2", "v4"), "type": ("f16", "bf16", "f16x2", "bf16x2")},
    summary="Add to elements of 16 bits, to each atomically.",
    section='9.7.13.6 "red"',
    targets=_half_availability,
    operands=_half_operands,
    compute=_reduce_halves,
    legal=_half_rule,
    order=lambda form: Order(scope=cast(Scope, form["scope"] or "gpu")),
)
