"""Loads and stores (PTX ISA 9.7.9, "Data Movement and Conversion Instructions").

May import `base`, `isa.declaration` and `isa.machine`.

    ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%r4];
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.declaration import (
    Form,
    Operand,
    Order,
    Scope,
    TileContract,
    TileOperand,
    address,
    declare,
    register,
)
from tilewright.isa.machine import Lanes, Machine

SCOPES = ("cta", "cluster", "gpu", "sys")
TYPES = (
    *("b8", "b16", "b32", "b64"),
    *("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"),
)
VECTORS = ("", "v2", "v4", "v8")

_SPACES = {
    "": Space.GENERIC,
    "global": Space.GLOBAL,
    "shared": Space.SHARED,
    "shared::cta": Space.SHARED,
    "shared::cluster": Space.SHARED_CLUSTER,
}


def space_of(form: Form) -> Space:
    """Give the state space that a form's `space` modifier names; none is generic addressing."""
    return _SPACES[form["space"]]


def elements(form: Form) -> int:
    """Count the elements that a form's `vec` modifier makes."""
    return int(form["vec"][1:] or 1) if form["vec"] else 1


def element_bytes(form: Form) -> int:
    """Count the bytes of an element of a form's `type` modifier."""
    return int(form["type"][1:]) // 8


def scope_rule(form: Form, unordered: tuple[str, ...]) -> str | None:
    """Hold a scope to the orderings that take one: all but `unordered`."""
    if form["sem"] in unordered and form["scope"]:
        return f".{form['scope']} needs an ordering such as .relaxed"
    if form["sem"] not in unordered and not form["scope"]:
        return f".{form['sem']} needs a scope: .cta, .cluster, .gpu or .sys"
    return None


def vector_rule(form: Form, space: Space) -> str | None:
    """Hold vectors to 16 bytes, or to 32 in global memory (PTX ISA 9.7.9.8, `.vec`)."""
    total = elements(form) * element_bytes(form)
    if form["vec"] == "v8" and element_bytes(form) != 4:
        return ".v8 takes elements of 32 bits"
    if total > 32:
        return f"a vector of {total} bytes is wider than 32 bytes"
    if total > 16 and space is not Space.GLOBAL:
        return "a vector of 32 bytes needs .global"
    return None


def _availability(form: Form) -> Availability:
    if elements(form) * element_bytes(form) > 16:
        return since(100)
    return since(90) if form["scope"] == "cluster" else since(75)


# ---------------------------------------------------------------------------- loads

_LOAD_ORDERS = ("", "weak", "volatile", "relaxed", "acquire")
_LOAD_CACHING = ("", "ca", "cg", "cs")
_STORE_CACHING = ("", "wb", "cg", "cs", "wt")
_EVICTION = ("", "L1::evict_normal", "L1::evict_first", "L1::evict_last", "L1::no_allocate")


def _cache_rule(form: Form, space: Space) -> str | None:
    if form["cop"] and form["evict"]:
        return f".{form['cop']} and .{form['evict']} exclude each other"
    if form["cop"] and form["sem"] not in ("", "weak"):
        return f".{form['cop']} needs a weak access"
    if form["evict"] and (space is not Space.GLOBAL or form["sem"] == "volatile"):
        return f".{form['evict']} needs .global, and no .volatile"
    return None


def _load_rule(form: Form) -> str | None:
    return (
        scope_rule(form, ("", "weak", "volatile"))
        or vector_rule(form, space_of(form))
        or _cache_rule(form, space_of(form))
    )


def _load_operands(form: Form) -> Sequence[Operand]:
    count, size = elements(form), element_bytes(form)
    return (
        register("d", form["type"], role="out", count=count),
        address("a", space_of(form), "read", count * size),
    )


def _load(m: Machine, form: Form, a: Lanes) -> list[Lanes]:
    return m.load(space_of(form), a, form.operands[0].dtype, elements(form))


def _order(form: Form) -> Order:
    sem = form["sem"]
    return Order(
        acquires=sem == "acquire",
        releases=sem == "release",
        scope="sys" if sem == "volatile" else cast(Scope, form["scope"]),
    )


def _tile_memory(form: Form, name: str, space: Space) -> TileOperand:
    count, size = elements(form), element_bytes(form)
    return TileOperand(name, (space,), (count,), 8 * size, contiguous=count, align=count * size)


def _tile_registers(form: Form, name: str) -> TileOperand:
    return TileOperand(name, (Space.LOCAL,), (elements(form),), 8 * element_bytes(form))


def _load_tile(form: Form) -> TileContract | None:
    if space_of(form) is Space.GENERIC:
        return None
    sides = (_tile_registers(form, "d"), _tile_memory(form, "a", space_of(form)))
    return TileContract("thread", sides)


ld = declare(
    "ld",
    "{sem}{scope}{space}{cop}{evict}{vec}{type}",
    slots={
        "sem": _LOAD_ORDERS,
        "scope": ("", *SCOPES),
        "space": ("", "global", "shared", "shared::cta"),
        "cop": _LOAD_CACHING,
        "evict": _EVICTION,
        "vec": VECTORS,
        "type": TYPES,
    },
    summary="Load a scalar or a vector from memory.",
    section='9.7.9.8 "ld"',
    targets=_availability,
    operands=_load_operands,
    compute=_load,
    legal=_load_rule,
    order=_order,
    tile=_load_tile,
)


def _nc_operands(form: Form) -> Sequence[Operand]:
    count, size = elements(form), element_bytes(form)
    return (
        register("d", form["type"], role="out", count=count),
        address("a", Space.GLOBAL, "read", count * size),
    )


def _load_nc(m: Machine, form: Form, a: Lanes) -> list[Lanes]:
    return m.load(Space.GLOBAL, a, form.operands[0].dtype, elements(form))


def _nc_tile(form: Form) -> TileContract:
    sides = (_tile_registers(form, "d"), _tile_memory(form, "a", Space.GLOBAL))
    return TileContract("thread", sides)


def _nc_availability(form: Form) -> Availability:
    return since(100) if elements(form) * element_bytes(form) > 16 else since(75)


def _nc_rule(form: Form) -> str | None:
    if form["cop"] and form["evict"]:
        return f".{form['cop']} and .{form['evict']} exclude each other"
    return vector_rule(form, Space.GLOBAL)


ld_nc = declare(
    "ld",
    "global.{cop}nc.{evict}{vec}{type}",
    slots={"cop": _LOAD_CACHING, "evict": _EVICTION, "vec": VECTORS, "type": TYPES},
    summary="Load global memory that nobody writes while the kernel runs.",
    section='9.7.9.9 "ld.global.nc"',
    targets=_nc_availability,
    operands=_nc_operands,
    compute=_load_nc,
    legal=_nc_rule,
    tile=_nc_tile,
)

# ---------------------------------------------------------------------------- stores


def _store_rule(form: Form) -> str | None:
    return (
        scope_rule(form, ("", "weak", "volatile"))
        or vector_rule(form, space_of(form))
        or _cache_rule(form, space_of(form))
    )


def _store_operands(form: Form) -> Sequence[Operand]:
    count, size = elements(form), element_bytes(form)
    return (
        address("a", space_of(form), "write", count * size),
        register("b", form["type"], count=count),
    )


def _store(m: Machine, form: Form, a: Lanes, *b: Lanes) -> None:
    m.store(space_of(form), a, b)


def _store_tile(form: Form) -> TileContract | None:
    if space_of(form) is Space.GENERIC:
        return None
    sides = (_tile_memory(form, "a", space_of(form)), _tile_registers(form, "b"))
    return TileContract("thread", sides)


st = declare(
    "st",
    "{sem}{scope}{space}{cop}{evict}{vec}{type}",
    slots={
        "sem": ("", "weak", "volatile", "relaxed", "release"),
        "scope": ("", *SCOPES),
        "space": ("", "global", "shared", "shared::cta"),
        "cop": _STORE_CACHING,
        "evict": _EVICTION,
        "vec": VECTORS,
        "type": TYPES,
    },
    summary="Store a scalar or a vector to memory.",
    section='9.7.9.11 "st"',
    targets=_availability,
    operands=_store_operands,
    compute=_store,
    legal=_store_rule,
    order=_order,
    tile=_store_tile,
)
