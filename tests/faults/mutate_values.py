"""Mutators of the numbers that an instruction is given: counts, parities, stages, bytes, masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

from mutate_order import form_of, is_arrival, is_barrier, is_wait
from mutations import (
    BOUNDS,
    HANGS,
    LIFETIME,
    MBARRIER,
    PROXY,
    UNORDERED,
    Change,
    everywhere,
    mutator,
    with_operand,
    without,
)
from sites import Site, Source, issued, operands_of

from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Constant,
    Expr,
    Load,
    Subview,
    Var,
    as_constant,
    binary,
    constant,
)
from tilewright.ir.rewrite import rewrite
from tilewright.ir.statements import Assign, Bind, Instruct, Stmt, Store
from tilewright.ir.types import TensorType
from tilewright.ir.visit import root, walk
from tilewright.isa import async_copy, mbarrier, tensor_allocation

FULL = 0xFFFFFFFF
_ORDER = UNORDERED | HANGS | PROXY | LIFETIME


def _named(stmt: Stmt, *names: str) -> Iterator[tuple[int, Expr]]:
    """Yield the operands of an instruction that are declared by one of the names."""
    if isinstance(stmt, Instruct):
        for position, declared, given in operands_of(stmt):
            if declared.name in names:
                yield position, given


def _plus(amount: int) -> Callable[[Expr], Expr]:
    return lambda value: constant(cast(int, _number(value)) + amount, value.dtype, value.location)


def _number(value: Expr) -> int | None:
    return value.value if isinstance(value, Constant) and isinstance(value.value, int) else None


# ---------------------------------------------------------------------------- counts


def _counts(stmt: Stmt) -> Iterator[tuple[int, Expr, tuple[int, ...]]]:
    """Yield operands that count: where, what is given, and what may be added to it."""
    form = form_of(stmt)
    if form is None:
        return
    if form.declaration.family == mbarrier.init.family:
        steps: tuple[int, ...] = (1, -1)
    elif is_barrier(form):
        steps = (32, -32)
    elif is_wait(form):
        steps = (1,)  # to wait for more groups than needed is no fault
    else:
        return
    for position, given in _named(stmt, "count", "b", "N"):
        yield position, given, steps


@mutator("count")
def another_count(source: Source, site: Site) -> Iterator[Change]:
    """Count one more, or one less."""
    for position, given, steps in _counts(site.statement):
        for step in steps if _number(given) is not None else ():
            if cast(int, _number(given)) + step >= 0:
                program = with_operand(source, site, position, _plus(step))
                yield Change(f"count {step:+}", program, _ORDER)


# ---------------------------------------------------------------------------- parities, bytes


@mutator("parity")
def other_parity(source: Source, site: Site) -> Iterator[Change]:
    """Wait for the phase before or after."""
    stmt = issued(site.statement)
    for position, _ in _named(stmt, "phaseParity") if stmt else ():
        program = with_operand(source, site, position, lambda value: binary("xor", value, 1))
        yield Change("flipped", program, _ORDER)


@mutator("bytes")
def other_bytes(source: Source, site: Site) -> Iterator[Change]:
    """Expect other bytes than come, or send others."""
    form = form_of(site.statement)
    if form is None or not isinstance(site.statement, Instruct):
        return
    counted = form.time.completes == "mbarrier"
    for position, given in _named(site.statement, "txCount", *(("size",) * counted)):
        for step in (16, -16) if _number(given) is not None else ():
            if cast(int, _number(given)) + step >= 0:
                program = with_operand(source, site, position, _plus(step))
                yield Change(f"bytes {step:+}", program, MBARRIER | BOUNDS | _ORDER)
    for position, given in _named(site.statement, "cpSize"):
        size = cast(int, _number(given))
        if size > 4 and form["cop"] == "ca":
            program = with_operand(source, site, position, _plus(-size // 2))
            yield Change("half the bytes", program, UNORDERED)


# ---------------------------------------------------------------------------- stages

_MOST_STAGES = 4
_RING_NODES = (AddressOf, Load, Subview)


def _parts(node: AddressOf | Load | Subview | Store) -> tuple[Expr, tuple[Expr, ...]]:
    """Give the buffer that an expression or a store names a part of, and where in it."""
    if isinstance(node, Subview):
        return node.source, node.starts
    return node.tensor, node.indices


def _stages(source: Source, node: AddressOf | Load | Subview | Store) -> int | None:
    """Count the stages, if it is one of a ring in shared memory that is gone round."""
    named, where = _parts(node)
    view, kind = named.type, root(named).type
    if not isinstance(kind, TensorType) or kind.space is not Space.SHARED or not where:
        return None
    stages = as_constant(kind.shape[0])
    if not isinstance(stages, int) or view.shape[0] != kind.shape[0]:
        return None
    round = any(isinstance(each, Binary) and each.op == "mod" for each in source.resolved(where[0]))
    return stages if round and 2 <= stages <= _MOST_STAGES else None


def _advanced(source: Source, node: AddressOf | Load | Subview | Store) -> Any:
    """Take the next stage, if it is one of a ring; else `None`."""
    stages = _stages(source, node)
    if stages is None:
        return None
    _, (first, *rest) = _parts(node)
    where = (binary("mod", binary("add", first, 1), stages), *rest)
    if isinstance(node, Subview):
        return replace(node, starts=where)
    return replace(node, indices=where)


@mutator("stage")
def next_stage(source: Source, site: Site) -> Iterator[Change]:
    """Work on the next stage of a ring, or at the barrier of the next stage."""
    kinds = _ORDER | {"out-of-bounds"}
    rules = tuple((kind, partial(_advanced, source)) for kind in _RING_NODES)

    def advanced(expr: Expr) -> Expr:
        return rewrite(expr, rules, top_down=True)

    stmt = issued(site.statement)
    if stmt is not None:
        for position, declared, _ in operands_of(stmt):
            program = with_operand(source, site, position, advanced)
            yield Change(f"next stage in {declared.name}", program, kinds)
    elif isinstance(site.statement, Store):
        program = everywhere(source, site, lambda store: (_advanced(source, store) or store,))
        yield Change("next stage written", program, kinds)
    if isinstance(site.statement, Store | Bind):
        program = everywhere(
            source, site, lambda each: (replace(each, value=advanced(each.value)),)
        )
        yield Change("next stage read", program, kinds)


# ---------------------------------------------------------------------------- masks, lanes


@mutator("mask")
def other_mask(source: Source, site: Site) -> Iterator[Change]:
    """Name a lane too few, or lanes that do not come."""
    for position, given in _named(site.statement, "membermask"):
        mask = _number(given)
        if mask is None:
            continue
        kinds = frozenset(("divergent-collective", "deadlock")) | UNORDERED
        fewer = mask & ~(1 << (mask.bit_length() - 1))
        for name, other in (("a lane less", fewer), ("all lanes", FULL)):
            if other != mask:
                change = _constant(other)
                yield Change(name, with_operand(source, site, position, change), kinds)


def _constant(value: int) -> Callable[[Expr], Expr]:
    return lambda given: constant(value, given.dtype, given.location)


# ---------------------------------------------------------------------------- overruns


def _beyond(node: AddressOf | Load | Store) -> Any:
    """Index a tensor by its whole extent too far, along its first axis; `None` if it cannot be.

    A constant that leaves a tensor is refused when a kernel is read.
    """
    tensor, indices = node.tensor, node.indices
    kind = tensor.type
    if not isinstance(tensor, Var) or not isinstance(kind, TensorType) or not indices:
        return None
    extent = as_constant(kind.shape[0])
    known = extent is None or as_constant(indices[0]) is not None
    if known or kind.space not in (Space.SHARED, Space.GLOBAL):
        return None
    return replace(node, indices=(binary("add", indices[0], cast(int, extent)), *indices[1:]))


_BEYOND = ((Load, _beyond), (AddressOf, _beyond))


@mutator("overrun")
def overrun(source: Source, site: Site) -> Iterator[Change]:
    """Index a whole tensor too far."""
    kinds = BOUNDS | HANGS | UNORDERED
    stmt = issued(site.statement)
    if stmt is not None:
        for position, declared, _ in operands_of(stmt):
            if declared.kind != "address" or declared.access:
                program = with_operand(
                    source, site, position, lambda each: rewrite(each, _BEYOND, top_down=True)
                )
                yield Change(f"{declared.name} beyond", program, kinds)
    elif isinstance(site.statement, Store):
        program = everywhere(source, site, lambda store: (_beyond(store) or store,))
        yield Change("beyond", program, BOUNDS)
    if isinstance(site.statement, Store | Bind | Assign):
        program = everywhere(
            source,
            site,
            lambda each: (replace(each, value=rewrite(each.value, _BEYOND, top_down=True)),),
        )
        yield Change("reads beyond", program, kinds)


@mutator("misaligned")
def misaligned(source: Source, site: Site) -> Iterator[Change]:
    """Begin a wide access one element further."""
    stmt = site.statement
    if not isinstance(stmt, Instruct):
        return
    for position, declared, given in operands_of(stmt):
        if not isinstance(given, AddressOf) or declared.kind != "address" or not given.indices:
            continue
        kind = given.tensor.type
        size = kind.dtype.bits // 8 if isinstance(kind, TensorType) else declared.align
        if size >= declared.align or not isinstance(given.tensor, Var):
            continue

        def shifted(value: Expr) -> Expr:
            address = cast(AddressOf, value)
            *rest, last = address.indices
            return replace(address, indices=(*rest, binary("add", last, 1)))

        program = with_operand(source, site, position, shifted)
        yield Change(f"{declared.name} off by one element", program, BOUNDS | UNORDERED)


# ---------------------------------------------------------------------------- never written


_NO_DATA = (
    *(tensor_allocation.alloc, async_copy.mbarrier_arrive),
    *(mbarrier.init, mbarrier.inval),
)


def _written(stmt: Stmt) -> str:
    """Name the shared buffer that a statement is the one to fill; Tensor Memory is one buffer."""
    if isinstance(stmt, Store):
        kind, buffer = stmt.tensor.type, root(stmt.tensor)
        shared = isinstance(kind, TensorType) and kind.space is Space.SHARED
        return buffer.name if shared and isinstance(buffer, Var) else ""
    form = form_of(stmt)
    if form is None or not isinstance(stmt, Instruct) or is_arrival(form):
        return ""
    for _, declared, given in operands_of(stmt):
        if declared.access not in ("write", "update") or declared.name == "mbar":
            continue
        if declared.space is Space.TMEM:
            return "Tensor Memory"
        if declared.space is Space.SHARED:
            found = (each for each in walk(given) if isinstance(each, Var))
            return next((each.name for each in found if isinstance(each.type, TensorType)), "")
    return ""


@mutator("write dropped")
def never_written(source: Source, site: Site) -> Iterator[Change]:
    """Leave a shared buffer unwritten, or Tensor Memory: what writes it first is not there.

    What writes later may only leave what was there, which no rule forbids.
    """
    buffer, form = _written(site.statement), form_of(site.statement)
    if form is not None and form.declaration in _NO_DATA:
        return
    if buffer and site is next(each for each in source.sites if _written(each.statement) == buffer):
        yield Change("dropped", without(source, site), UNORDERED | HANGS | LIFETIME)
