"""Guard accesses of global memory that are not known to be inside their tensors.

May import `base`, `isa`, `ir`, `passes.analysis` and the modules of this folder above. An element
beyond a tensor's end is read as 0, or as what the program says of that tensor, and is not
written. A guard that neighbours share is taken out of the loop over them.

    b[i] = a[i]     ->     if i < n: b[i] = a[i]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    as_constant,
    binary,
    cast,
    constant,
    int32,
)
from tilewright.ir.operands import paired_operands
from tilewright.ir.rewrite import block_of, map_blocks, map_children
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import (
    Block,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Stmt,
    Store,
    While,
)
from tilewright.ir.visit import Node, defined, root, variables, walk, walk_kinds
from tilewright.isa import atomics
from tilewright.passes.analysis.facts import OPERATIONS, Fact, exactly
from tilewright.passes.analysis.linear import Linear, linear_of
from tilewright.passes.analysis.ranges import Ranges, analyse_ranges
from tilewright.passes.tile.as_parallel import through

_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
_ATOMICS = (
    *(atomics.atom, atomics.atom_cas, atomics.red),
    *(atomics.red_vector, atomics.red_halves),  # a vector lies in one row, aligned as its end is
)


def guard_accesses(kernel: Kernel, outside: Mapping[str, Expr]) -> Kernel:
    """Guard the accesses of a kernel; `outside` is what is read beyond some tensors, by name."""
    cells = frozenset(each.var.name for each in walk_kinds(kernel.body, Declare))
    known = _Known(analyse_ranges(kernel), cells)
    return replace(kernel, body=_Guarding(outside).block(kernel.body, known))


# ---------------------------------------------------------------------------- what is known


@dataclass(frozen=True)
class _Known:
    """What is known at a point of the program: ranges, and sums that are not negative.

    Sums are of whole numbers: an index that leaves its type is none. `vector` is the loop over
    neighbours that the point is in: its counter, and its turns.
    """

    ranges: Ranges
    cells: frozenset[str]
    positive: tuple[Linear, ...] = ()
    vector: tuple[Var, int] | None = None

    def assuming(self, condition: Expr, holds: bool = True) -> _Known:
        """Add what a condition says that holds, or does not."""
        known = replace(self, ranges=self.ranges.assuming(condition, holds))
        return replace(known, positive=(*self.positive, *self._sums(condition, holds)))

    def _sums(self, condition: Expr, holds: bool) -> list[Linear]:
        match condition:
            case Unary(op="not"):
                return self._sums(condition.operand, not holds)
            case Binary(op="logical_and") if holds:
                return self._sums(condition.left, True) + self._sums(condition.right, True)
            case Binary(op="logical_or") if not holds:
                return self._sums(condition.left, False) + self._sums(condition.right, False)
            case Binary() if condition.op in _OPPOSITE and condition.left.dtype.is_integer:
                test = condition if holds else replace(condition, op=_OPPOSITE[condition.op])
                steady = not any(
                    isinstance(each, Load) or (isinstance(each, Var) and each.name in self.cells)
                    for each in walk(test)
                )
                return [_not_negative(test)] if steady else []
            case _:
                return []

    def proves(self, test: Binary) -> bool:
        """Tell whether a comparison holds for whole numbers."""
        wanted = _not_negative(test)
        gaps = (wanted, *(wanted.plus(each, -1) for each in self.positive))
        return any(_least(each, self.ranges) >= 0 for each in gaps)

    def shared(self, test: Expr) -> Expr:
        """Write a test such that neighbours share it, if it is the same for all of them.

        Whole runs of neighbours are on one side: their first is a multiple of their number away.
        """
        match test:
            case Binary(op="logical_and"):
                left, right = self.shared(test.left), self.shared(test.right)
                same = left is test.left and right is test.right
                return test if same else replace(test, left=left, right=right)
            case Binary(op="lt" | "le" | "gt" | "ge") if self.vector is not None:
                pass
            case _:
                return test
        assert isinstance(test, Binary) and self.vector is not None
        var, count = self.vector
        total = _not_negative(test)
        # "lt" and "gt" have lost 1: what is compared with 0 is the total before.
        strict = test.op in ("lt", "gt")
        first = Linear(
            {term: by for term, by in total.terms.items() if term != var},
            total.constant + strict,
            total.dtype,
        )
        step = total.terms.get(var, 0)
        if abs(step) != 1 or any(var in variables(each) for each in first.terms):
            return test
        whole = self.ranges.divisor(first.expression()) % count == 0
        if not whole or strict != (step < 0):
            return test
        # first > var for all 0 <= var < count, or first + var >= 0 for all of them
        sides = [
            Linear(
                {t: sign * by for t, by in first.terms.items() if sign * by > 0},
                max(sign * first.constant, 0),
                first.dtype,
            ).expression()
            for sign in (1, -1)
        ]
        return binary("lt" if strict else "le", sides[1], sides[0], test.location)


def _not_negative(test: Binary) -> Linear:
    """Write a comparison as a sum that is not negative where it holds."""
    left, right = linear_of(test.left), linear_of(test.right)
    gap = right.plus(left, -1) if test.op in ("lt", "le") else left.plus(right, -1)
    return gap.plus(Linear({}, 1, gap.dtype), -1) if test.op in ("lt", "gt") else gap


def _least(total: Linear, ranges: Ranges) -> int:
    """Give the least value of a sum of whole numbers."""
    found: Fact = exactly(total.constant)
    for term, by in total.terms.items():
        fact = ranges.fact(term)
        if fact is None:
            return -1
        scaled = OPERATIONS["mul"](fact, exactly(by))
        joined = None if scaled is None else OPERATIONS["add"](found, scaled)
        if joined is None:
            return -1
        found = joined
    return found.low


# ---------------------------------------------------------------------------- guarding


class _Guarding:
    """Goes through a kernel; `outside` is what is read beyond some tensors."""

    def __init__(self, outside: Mapping[str, Expr]) -> None:
        self.outside = outside

    def block(self, block: Block, known: _Known) -> Block:
        found: list[Stmt] = []
        for stmt in block:
            for each in self.statement(stmt, known):
                _append(found, each)
        return block_of(found, block)

    def statement(self, stmt: Stmt, known: _Known) -> Block:
        match stmt:
            case If():
                return self.branch(stmt, known)
            case For():
                return self.loop(stmt, known)
            case While():
                condition = self.value(stmt.condition, known)
                body = self.block(stmt.body, known.assuming(stmt.condition))
                return (replace(stmt, condition=condition, body=body),)
            case Store():
                tests = self.tests(stmt.tensor, stmt.indices, known, stmt.location)
            case Instruct():
                return self.instruct(stmt, known)
            case _:
                inner = map_blocks(stmt, lambda block: self.block(block, known))
                return (self.expressions(inner, known),)
        for each in tests:
            known = known.assuming(each)
        return _under(tests, self.expressions(stmt, known))

    def branch(self, stmt: If, known: _Known) -> Block:
        condition = known.shared(self.value(stmt.condition, known))
        truth = _truth(condition, known)
        if truth is not None:
            return self.block(stmt.then if truth else stmt.orelse, known)
        then = self.block(stmt.then, known.assuming(condition))
        orelse = self.block(stmt.orelse, known.assuming(condition, False))
        return (replace(stmt, condition=condition, then=then, orelse=orelse),)

    def loop(self, stmt: For, known: _Known) -> Block:
        inner = replace(known, vector=None)
        turns = as_constant(stmt.stop)
        plain = (as_constant(stmt.start), as_constant(stmt.step)) == (0, 1)
        if stmt.kind == "vectorized" and plain and isinstance(turns, int):
            inner = replace(known, vector=(stmt.var, turns))
        body = self.block(stmt.body, inner)
        bounds = (self.value(each, known) for each in (stmt.start, stmt.stop, stmt.step))
        start, stop, step = bounds
        new = replace(stmt, start=start, stop=stop, step=step, body=body)
        return _hoisted(new)

    def instruct(self, stmt: Instruct, known: _Known) -> Block:
        tests: list[Binary] = []
        if stmt.form.declaration in _ATOMICS:
            for each in walk(stmt.operands):
                if isinstance(each, AddressOf):
                    tests += self.tests(each.tensor, each.indices, known, stmt.location)
        for each in tests:
            known = known.assuming(each)
        pairs = paired_operands(stmt.form, stmt.operands)
        operands = tuple(
            self.value(operand, known) if declared.role == "in" else operand
            for declared, operand in pairs
        )
        return _under(tests, replace(stmt, operands=operands))

    def tests(
        self, tensor: Expr, indices: Sequence[Expr], known: _Known, where: Location | None
    ) -> list[Binary]:
        """List what must hold for an element to be in its tensor, and is not known to."""
        tensor, at = through(tensor, indices)
        if tensor_type(tensor).space is not Space.GLOBAL:
            return []
        _check_addressed(tensor, where)
        found: list[Binary] = []
        for index, extent in zip(at, tensor_type(tensor).shape, strict=True):
            for test in (binary("le", int32(0), index), binary("lt", index, extent)):
                if isinstance(test, Binary) and not known.proves(test):
                    shared = known.shared(test)
                    assert isinstance(shared, Binary)
                    if not known.proves(shared):
                        found.append(shared)
        return found

    # ---- expressions

    def expressions(self, stmt: Stmt, known: _Known) -> Stmt:
        """Guard what a statement itself reads."""

        def visit(node: Node) -> Node:
            return self.value(node, known) if isinstance(node, Expr) else node

        return map_children(stmt, visit)

    def value(self, value: Expr, known: _Known) -> Expr:
        """Guard what an expression reads."""
        match value:
            case Select():
                condition = known.shared(self.value(value.condition, known))
                truth = _truth(condition, known)
                if truth is not None:
                    return self.value(value.true if truth else value.false, known)
                true = self.value(value.true, known.assuming(condition))
                false = self.value(value.false, known.assuming(condition, False))
                return replace(value, condition=condition, true=true, false=false)
            case Binary(op="logical_and"):
                left = self.value(value.left, known)
                right = self.value(value.right, known.assuming(value.left))
                return replace(value, left=left, right=right)
            case Load():
                inside = map_children(value, self._visit(known))
                return self.load(inside, known)
            case _:
                return map_children(value, self._visit(known))

    def _visit(self, known: _Known) -> Callable[[Any], Any]:
        return lambda node: self.value(node, known) if isinstance(node, Expr) else node

    def load(self, load: Load, known: _Known) -> Expr:
        tests = self.tests(load.tensor, load.indices, known, load.location)
        if not tests:
            return load
        buffer = root(load.tensor)
        safe = self.outside.get(buffer.name) if isinstance(buffer, Var) else None
        zero = constant(0, load.dtype) if safe is None else cast(safe, load.dtype)
        return Select(_all(tests), load, zero, load.type, location=load.location)


def _check_addressed(tensor: Expr, where: Location | None) -> None:
    """Refuse the access of an element that has no address: it is a part of a byte."""
    kind = tensor_type(tensor).dtype
    if kind.bits * kind.lanes < 8:
        buffer = root(tensor)
        name = buffer.name if isinstance(buffer, Var) else "the tensor"
        raise FrontendError(
            f"an element of {name} is accessed by itself, and is only a part of a byte",
            code="not-supported",
            location=where,
            expected="elements of 8 bits or more",
            found=f"{kind}, {8 // kind.bits} to a byte",
            hint="take the tensor as uint8, and numbers out of bytes by shifts",
        )


def _truth(condition: Expr, known: _Known) -> bool | None:
    match condition:
        case Binary(op="logical_and"):
            sides = [_truth(each, known) for each in (condition.left, condition.right)]
            return True if all(sides) else False if False in sides else None
        case Binary(op="lt" | "le" | "gt" | "ge", left=Expr(dtype=kind)) if kind.is_integer:
            return True if known.proves(condition) else known.ranges.truth(condition)
        case _:
            return known.ranges.truth(condition)


def _all(tests: Sequence[Expr]) -> Expr:
    found = tests[0]
    for each in tests[1:]:
        found = binary("logical_and", found, each)
    return found


def _under(tests: Sequence[Expr], stmt: Stmt) -> Block:
    return (If(_all(tests), (stmt,), location=stmt.location),) if tests else (stmt,)


def _append(found: list[Stmt], stmt: Stmt) -> None:
    """Add a statement; one under the same condition as the one before goes with it."""
    match (found[-1] if found else None), stmt:
        case If(orelse=()) as before, If(orelse=()) if (
            before.condition == stmt.condition and not _writes_into(before.then, before.condition)
        ):
            found[-1] = replace(before, then=(*before.then, *stmt.then))
        case _:
            found.append(stmt)


def _writes_into(body: Block, condition: Expr) -> bool:
    """Tell whether a condition may be another one after a block: if it is more than numbers."""
    return any(isinstance(each, Load) for each in walk(condition)) or any(
        isinstance(each, Stmt) and not isinstance(each, Store | If | For) for each in walk(body)
    )


def _hoisted(loop: For) -> Block:
    """Take conditions out of a loop that do not depend on its turn."""
    match loop.body:
        case (If(orelse=()) as only,):
            tests = _conjuncts(only.condition)
        case _:
            return (loop,)
    outer = [each for each in tests if not _changes(each, loop)]
    inner = [each for each in tests if each not in outer]
    if not outer:
        return (loop,)
    body = (replace(only, condition=_all(inner)),) if inner else only.then
    return _under(outer, replace(loop, body=body))


def _conjuncts(condition: Expr) -> list[Expr]:
    match condition:
        case Binary(op="logical_and"):
            return _conjuncts(condition.left) + _conjuncts(condition.right)
        case _:
            return [condition]


def _changes(test: Expr, loop: For) -> bool:
    made = set(defined(loop.body))
    return any(
        isinstance(each, Load) or (isinstance(each, Var) and (each == loop.var or each in made))
        for each in walk(test)
    )
