"""`T.cuda.wait_until`: waiting for a word of global memory that other threads write.

May import `base`, `ir`, `isa.named` and the modules of this folder below it.

    T.cuda.wait_until(seen, T.address_of(count[0]), lambda value: value >= 4)
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import BOOL
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.issuing import issue, uint32
from tilewright.frontend.taking import Taken, as_place
from tilewright.frontend.tensors import Pointer, pointer_type
from tilewright.frontend.values import Value, wrap
from tilewright.ir.expressions import Expr, Load, Var, constant, truth, unary
from tilewright.ir.statements import Assign, Break, If, Stmt, Store, While
from tilewright.isa import named

_SCOPES = ("cta", "cluster", "gpu", "sys")
_WIDTHS = (32, 64)


def wait_until(
    dst: Any,
    ptr: Any,
    predicate: Any,
    scope: str = "gpu",
    space: str = "global",
    ptx_type: str | None = None,
    backoff_ns: Any = None,
) -> None:
    """Read the word at `ptr` into `dst` until a function of it holds.

    `dst` is a cell, or an element of a local array, of 32 or 64 bits; it gets the value that
    `predicate` has accepted. What the threads that wrote the word had written before is visible
    afterwards: the word is polled by relaxed loads of `scope` and then loaded once to acquire.
    `backoff_ns` is slept before each retry. `ptx_type` may state the word's type, of which only the
    width counts. Raises `FrontendError` (`operand-type`, `bad-call`).
    """
    _known("scope", scope, _SCOPES)
    _known("space", space, ("global",))
    place, word = _destination(dst), _word(ptr)
    bits = _width(place, word, ptx_type)
    builder = current()
    value = builder.result("word", place.dtype)
    poll = named.load_word("relaxed", scope, bits)
    issue(poll, value, word)
    with builder.block() as before:
        condition = _holds(predicate, wrap(value))
    with builder.block() as again:
        if backoff_ns is not None:
            issue(named.NANOSLEEP, uint32(backoff_ns))
        issue(poll, value, word)
    builder.emit(_loop(condition, before, again))
    # What this loads may be newer: what was accepted stays.
    issue(named.load_word("acquire", scope, bits), builder.result("seen", place.dtype), word)
    _leave(dst, place, value)


def _loop(condition: Expr, before: list[Stmt], again: list[Stmt]) -> Stmt:
    """Repeat a load until a condition holds, for which statements may have to be run."""
    where = here()
    if not before:
        return While(unary("not", condition, where), tuple(again), location=where)
    leave = If(condition, (Break(location=where),), location=where)
    return While(constant(True, BOOL), (*before, leave, *again), location=where)


def _holds(predicate: Any, value: Any) -> Expr:
    found = predicate(value) if callable(predicate) else predicate
    if callable(predicate) and isinstance(found, Value):
        return truth(found.expr, here())
    raise FrontendError(
        "the predicate is a function of the word, asked anew whenever that is read",
        code="bad-call",
        location=argument_place(2),
        expected="such as lambda value: value >= 4",
        found=str(found.expr) if isinstance(found, Value) else repr(found),
    )


def _leave(dst: Any, place: Expr, value: Expr) -> None:
    """Write the value to its place."""
    builder, where = current(), here()
    match place:
        case Load():
            builder.emit(Store(place.tensor, place.indices, value, location=where))
        case Var():
            builder.emit(Assign(place, value, location=where))
        case _:
            raise AssertionError(place)
    if isinstance(dst, Taken):
        builder.blocks[-1].extend(dst.updates())


def _destination(dst: Any) -> Expr:
    place = as_place(dst)
    cell = isinstance(place, Var) and place.name in current().cells
    local = isinstance(place, Load) and place.tensor.type.space is Space.LOCAL
    if place is None or not (cell or local) or place.dtype.bits * place.dtype.lanes not in _WIDTHS:
        raise FrontendError(
            "the word is read into a cell",
            code="operand-type",
            location=argument_place(0),
            expected="a cell such as `seen: T.uint32`, or an element of a local array, "
            "of 32 or 64 bits",
            found=repr(dst),
        )
    return place


def _word(ptr: Any) -> Expr:
    if isinstance(ptr, Pointer) and pointer_type(ptr.expr).space is Space.GLOBAL:
        return ptr.expr
    raise FrontendError(
        "a word of global memory is waited for",
        code="operand-type",
        location=argument_place(1),
        expected="T.address_of(t[i]) of a tensor in global memory",
        found=str(ptr.expr.type) if isinstance(ptr, Value) else repr(ptr),
        hint="in shared memory an mbarrier is waited for: T.cuda.mbarrier_wait",
    )


def _width(place: Expr, word: Expr, ptx_type: str | None) -> int:
    """Give the bits of the word, which are those of its place; of bytes the place says it."""
    bits = place.dtype.bits * place.dtype.lanes
    stated = "" if ptx_type is None else ptx_type.lstrip("bufs")
    wrong = ptx_type is not None and stated != str(bits)
    known = word.dtype.name != "uint8" and word.dtype.bits * word.dtype.lanes != bits
    if wrong or known:
        raise FrontendError(
            "the word and the cell that it is read into differ in width",
            code="operand-type",
            location=argument_place("ptx_type" if wrong else 0),
            expected=f"{stated if wrong else word.dtype.bits * word.dtype.lanes} bits",
            found=str(place.type),
        )
    return bits


def _known(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise FrontendError(
            f"words are not waited for with the {name} {value!r}",
            code="bad-call",
            location=argument_place(name),
            expected=", ".join(choices),
            found=repr(value),
        )
