"""Atomic operations of the tile dialect, on elements and on tiles.

May import `base`, `ir`, `isa` and the modules of `frontend`. On an element each thread that comes
here acts once; on a tile each element is combined once.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import BOOL, DType, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.issuing import issue, result
from tilewright.frontend.tensors import Tensor, address_of
from tilewright.frontend.tile.options import hints
from tilewright.frontend.tile.regions import element, operand, paired, tile
from tilewright.frontend.values import stored, wrap
from tilewright.ir.expressions import (
    Bitcast,
    Expr,
    Load,
    binary,
    cast,
    constant,
    int32,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Assign, While
from tilewright.ir.tile import AtomicTile
from tilewright.ir.types import ScalarType
from tilewright.isa import atomics, memory, named
from tilewright.isa.declaration import Form

_ORDERS = {
    None: "relaxed",
    **{name: name for name in ("relaxed", "acquire", "release", "acq_rel")},
    "consume": "acquire",
    "seq_cst": "acq_rel",
}
_LETTERS = {"int": "s", "uint": "u", "float": "f"}
_HALVES = {"float16": "f16", "bfloat16": "bf16"}


def _order(name: Any) -> str:
    if name not in _ORDERS:
        raise FrontendError(
            f"there is no memory order {name!r}",
            code="bad-call",
            location=argument_place("memory_order"),
            expected=", ".join(repr(each) for each in _ORDERS if each),
        )
    return _ORDERS[name]


def _form(op: str, space: str, kind: DType, order: str) -> Form | None:
    """Find the instruction for an operation on an element type, if there is one."""
    letter = "b" if op == "or" else _LETTERS.get(kind.kind, "b")
    names = [f"{letter}{kind.bits}"]
    if op == "add" and kind.name == "int64":
        names = ["u64"]  # addition is the same for either sign
    sem = "" if order == "relaxed" else order
    for name in names:
        try:
            return named.form(atomics.atom, sem=sem, space=space, op=op, type=name)
        except AssertionError:
            continue
    return None


def _space(place: Load) -> str:
    space = tensor_type(place.tensor).space
    if space not in (Space.GLOBAL, Space.SHARED):
        raise FrontendError(
            "atomic operations act on global or shared memory",
            code="operand-type",
            location=argument_place("dst", 0),
            found=str(place.tensor.type),
        )
    return space.value


def combining(op: str) -> Any:
    """Make the function of an atomic operation."""

    def combine(
        dst: Any,
        value: Any,
        memory_order: str | None = None,
        return_prev: bool = False,
        use_tma: bool = False,
        annotations: Any = None,
    ) -> Any:
        hints(annotations)
        order, place = _order(memory_order), element(dst)
        if place is not None and not _is_tile(value):
            if not return_prev and op == "add" and order == "relaxed" and _adds(place, value):
                return None
            old = _on_element(op, place, value, order)
            return old if return_prev else None
        if return_prev:
            raise FrontendError(
                "what a tile held before is not given back",
                code="not-supported",
                location=argument_place("return_prev", 3),
                hint="combine its elements in a loop over T.Parallel(…)",
            )
        _on_tile(op, dst, value, order)
        return None

    combine.__name__ = f"atomic_{op}"
    combine.__doc__ = (
        f"Combine memory with a value by {op}, at once.\n\n"
        "An element may give what it held before, with `return_prev`."
    )
    return combine


def _is_tile(value: Any) -> bool:
    return isinstance(value, Tensor)


def _on_tile(op: str, dst: Any, value: Any, order: str) -> None:
    if not _is_tile(value) and element(value) is None:
        target = tile(dst, "dst", 0)
        source = stored(value, tensor_type(target).dtype)
    else:
        source, target = paired(operand(value, "value", 1), operand(dst, "dst", 0))
    current().emit(AtomicTile(op, target, source, order, location=here()))


def _on_element(op: str, place: Load, value: Any, order: str) -> Any:
    space, kind = _space(place), place.dtype
    held = stored(value, kind)
    pointer = address_of(place.tensor, place.indices)
    form = _form(op, space, kind, order)
    if form is None:
        return _by_exchange(op, place, held, order)
    if op == "or":
        bits = dtype(f"uint{kind.bits}")
        held = held if kind == bits else Bitcast(held, ScalarType(bits), location=here())
        old = result("old", bits, form, pointer, held)
        return wrap(Bitcast(old.expr, ScalarType(kind), location=here())) if kind != bits else old
    return result("old", kind, form, pointer, held)


def _adds(place: Load, value: Any) -> bool:
    """Add to an element of a floating type, and ask for nothing; tell if that was one."""
    kind, space = place.dtype, _space(place)
    if kind.name == "float32":
        form = named.form(atomics.red, space=space, op="add", type="f32")
    elif kind.name in _HALVES:
        form = named.form(atomics.red_halves, space=space, type=_HALVES[kind.name])
    else:
        return False
    issue(form, address_of(place.tensor, place.indices), stored(value, kind))
    return True


def _by_exchange(op: str, place: Load, value: Expr, order: str) -> Any:
    """Combine by trying: no instruction does it, but one replaces what is as expected."""
    kind, builder, where = place.dtype, current(), here()
    if kind.bits not in (16, 32, 64):
        raise FrontendError(
            f"there is no atomic {op} on {kind}",
            code="operand-type",
            location=argument_place("dst", 0),
            expected="elements of 16, 32 or 64 bits",
            found=str(kind),
        )
    bits = dtype(f"uint{kind.bits}")
    sem = "" if order == "relaxed" else order
    form = named.form(atomics.atom_cas, sem=sem, space=_space(place), type=f"b{kind.bits}")
    pointer = address_of(place.tensor, place.indices)
    held = builder.bind("value", value)
    # The first value is a guess: what is there an atomic operation tells, never a plain read.
    old = builder.declare("old", bits, constant(0, bits))
    again = builder.declare("again", BOOL, constant(True, BOOL))
    with builder.block() as body:
        expected = builder.bind("expected", old)
        now = Bitcast(expected, ScalarType(kind), location=where)
        combined = cast(binary(op, now, held, where), kind)
        new = builder.bind("new", Bitcast(combined, ScalarType(bits), location=where))
        issue(form, old, pointer, expected, new)
        builder.emit(Assign(again, binary("ne", old, expected, where), location=where))
    builder.emit(While(again, tuple(body), location=where))
    return wrap(Bitcast(old, ScalarType(kind), location=where))


def adding(count: int) -> Any:
    """Make the function that adds to neighbouring elements, each by itself."""

    def add(dst: Any, value: Any, return_prev: bool = False) -> None:
        place, source = element(dst), element(value)
        if place is None or source is None or return_prev:
            raise FrontendError(
                f"{count} neighbours are added to {count} others, from the elements that are named",
                code="operand-type",
                location=here(),
                expected=f"T.atomic_addx{count}(dst[i], src[j]), without return_prev",
            )
        for offset in range(count):
            own, value = _beside(place, offset), wrap(_beside(source, offset))
            if not _adds(own, value):
                _on_element("add", own, value, "relaxed")

    add.__name__, add.__doc__ = f"atomic_addx{count}", f"Add to {count} neighbouring elements."
    return add


def _beside(place: Load, offset: int) -> Load:
    *outer, last = place.indices
    moved = binary("add", last, int32(offset), here()) if offset else last
    return Load(place.tensor, (*outer, moved), place.type, location=here())


def atomic_load(src: Any, memory_order: str = "seq_cst") -> Any:
    """Read an element of global memory at once, in an order with other memory accesses."""
    place, order = _word(src, "src"), _order(memory_order)
    if memory_order == "seq_cst":
        issue(named.THREAD_FENCE)
    kind = "relaxed" if order == "relaxed" else "acquire"
    bits = place.dtype.bits
    form = named.form(memory.ld, sem=kind, scope="gpu", space=_space(place), type=f"b{bits}")
    pointer = address_of(place.tensor, place.indices)
    return result("word", place.dtype, form, pointer)


def atomic_store(dst: Any, src: Any, memory_order: str = "seq_cst") -> None:
    """Write an element of memory at once, in an order with other memory accesses."""
    place, order = _word(dst, "dst"), _order(memory_order)
    if memory_order == "seq_cst":
        issue(named.THREAD_FENCE)
    kind = "relaxed" if order == "relaxed" else "release"
    form = named.form(
        memory.st, sem=kind, scope="gpu", space=_space(place), type=f"b{place.dtype.bits}"
    )
    pointer = address_of(place.tensor, place.indices)
    value = current().bind("value", stored(src, place.dtype))
    issue(form, pointer, value)


def _word(value: Any, name: str) -> Load:
    place = element(value)
    if place is None or place.dtype.bits not in (32, 64):
        raise FrontendError(
            "an element of 32 or 64 bits is expected",
            code="operand-type",
            location=argument_place(name, 0),
            found=repr(value),
        )
    return place


FUNCTIONS: dict[str, Any] = {
    **{f"atomic_{op}": combining(op) for op in ("add", "max", "min", "or")},
    "atomic_addx2": adding(2),
    "atomic_addx4": adding(4),
    "atomic_load": atomic_load,
    "atomic_store": atomic_store,
}
