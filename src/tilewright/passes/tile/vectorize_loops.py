"""Make vector accesses of loops over neighbours.

May import `base`, `ir`, `passes.analysis` and the modules of this folder above. A loop of the kind
"vectorized" is written out, statement by statement for all its turns, if no turn depends on
another; what it reads and writes of global and shared memory side by side, and aligned, becomes
one access. Other loops stay what they are.

    for v in T.vectorized(4): x[v] = A[i * 4 + v]
    # -> a = A.view(float32x4)[i]; x[0] = a.x; …
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.ir.expressions import (
    Binary,
    Expr,
    Load,
    Select,
    Var,
    as_constant,
    binary,
    broadcast,
    constant,
    int32,
    shuffle,
)
from tilewright.ir.rewrite import map_children, map_statements, substitute
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Bind, Block, For, If, Kernel, Stmt, Store
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import root, variables, walk, walk_statements
from tilewright.passes.analysis.facts import Fact
from tilewright.passes.analysis.linear import linear_of
from tilewright.passes.analysis.ranges import Ranges, analyse_ranges
from tilewright.passes.simplify import simplify_expression
from tilewright.passes.tile.runs import MEMORY, in_vectors, widest_run
from tilewright.passes.tile.scene import Names

_MOST = 64


def vectorize_loops(kernel: Kernel) -> Kernel:
    """Write the loops over neighbours of a kernel with vector accesses, where that is possible."""
    ranges, names = analyse_ranges(kernel), Names(kernel)

    def visit(stmt: Stmt) -> Block | None:
        return _loop(stmt, ranges, names) if isinstance(stmt, For) else None

    return replace(kernel, body=map_statements(kernel.body, visit))


def _loop(loop: For, ranges: Ranges, names: Names) -> Block | None:
    turns = as_constant(loop.stop)
    plain = (as_constant(loop.start), as_constant(loop.step)) == (0, 1)
    if loop.kind != "vectorized" or not plain or not isinstance(turns, int):
        return None
    if not 1 < turns <= _MOST or not _is_independent(loop):
        return None
    accesses = [each for each in walk(loop.body) if isinstance(each, Load | Store)]
    widths = [widest_run(each, loop.var, turns, ranges) for each in accesses]
    width = min((each for each in widths if each > 1), default=1)
    if width == 1 or turns % width:
        return None
    if width < turns:
        return _in_parts(loop, turns, width, ranges, names)
    return _Writing(loop.var, width, ranges, names).block(loop.body)


def _in_parts(loop: For, turns: int, width: int, ranges: Ranges, names: Names) -> Block | None:
    part = names.variable(f"{loop.var.name}_part", loop.var.type)
    inner = names.variable(loop.var.name, loop.var.type)
    ranges = ranges.with_facts(
        {part.name: Fact(0, turns // width - 1), inner.name: Fact(0, width - 1)}
    )
    value = binary("add", binary("mul", part, int32(width)), inner)
    body = substitute(loop.body, {loop.var.name: value})
    body = _Writing(inner, width, ranges, names).block(body)
    stop = int32(turns // width)
    return (For(part, int32(0), stop, int32(1), body, "unroll", location=loop.location),)


# ---------------------------------------------------------------------------- what depends


def _is_independent(loop: For) -> bool:
    """Tell whether the turns of a loop may be mixed: what one writes, no other touches."""
    statements = list(walk_statements(loop.body))
    if not all(isinstance(each, Store | Bind) or _is_guard(each, loop.var) for each in statements):
        return False
    stored = {_name(each.tensor): each for each in statements if isinstance(each, Store)}
    for each in walk(loop.body):
        if not isinstance(each, Load | Store) or (store := stored.get(_name(each.tensor))) is None:
            continue
        if (each.tensor, each.indices) != (store.tensor, store.indices):
            return False
        if not any(linear_of(index).terms.get(loop.var) for index in store.indices):
            return False
    return True


def _is_guard(stmt: Stmt, var: Var) -> bool:
    return isinstance(stmt, If) and not stmt.orelse and var not in variables(stmt.condition)


def _name(tensor: Expr) -> str:
    buffer = root(tensor)
    return buffer.name if isinstance(buffer, Var) else ""


# ---------------------------------------------------------------------------- writing


@dataclass
class _Writing:
    """Writes the turns of one loop out; `elements` has what names stand for in each turn."""

    var: Var
    width: int
    ranges: Ranges
    names: Names
    elements: dict[str, tuple[Expr, ...]] = field(default_factory=dict[str, "tuple[Expr, ...]"])

    def block(self, block: Block) -> Block:
        """Write statements out, each for all turns."""
        return tuple(new for stmt in block for new in self.statement(stmt))

    def statement(self, stmt: Stmt) -> Block:
        match stmt:
            case If():
                # Its condition is the same in all turns.
                before, condition = self.taken(stmt.condition)
                inner = self.block(stmt.then)
                condition = self.turn(condition, 0)
                return (*before, replace(stmt, condition=condition, then=inner))
            case Bind():
                before, value = self.taken(stmt.value)
                vars = [self.names.variable(stmt.var.name, stmt.var.type) for _ in self.turns]
                self.elements[stmt.var.name] = tuple(vars)
                own = (
                    Bind(var, self.turn(value, turn), location=stmt.location)
                    for turn, var in zip(self.turns, vars, strict=True)
                )
                return (*before, *own)
            case Store():
                before, value = self.taken(stmt.value)
                return (*before, *self.store(stmt, value))
            case _:
                raise AssertionError(stmt)

    @property
    def turns(self) -> range:
        return range(self.width)

    def store(self, stmt: Store, value: Expr) -> Block:
        values = [self.turn(value, turn) for turn in self.turns]
        if widest_run(stmt, self.var, self.width, self.ranges) == self.width:
            tensor, indices = self.vector(stmt)
            return (Store(tensor, indices, shuffle(values, self.turns), location=stmt.location),)
        return tuple(
            Store(
                stmt.tensor,
                tuple(self.turn(index, turn) for index in stmt.indices),
                each,
                location=stmt.location,
            )
            for turn, each in zip(self.turns, values, strict=True)
        )

    def vector(self, access: Load | Store) -> tuple[Expr, tuple[Expr, ...]]:
        """Name the vector whose elements an access takes in turn."""
        *outer, last = access.indices
        first = simplify_expression(substitute(last, {self.var.name: int32(0)}), self.ranges)
        number = simplify_expression(first // self.width, self.ranges)
        places = tuple(self.turn(each, 0) for each in outer)
        return in_vectors(access.tensor, self.width), (*places, number)

    def turn(self, value: Expr, turn: int) -> Expr:
        """Write a value as it is in one turn."""
        names: Mapping[str, Expr] = {
            self.var.name: int32(turn),
            **{name: each[turn] for name, each in self.elements.items()},
        }
        return simplify_expression(substitute(value, names), self.ranges)

    # ---- what is read at once

    def taken(self, value: Expr) -> tuple[Block, Expr]:
        """Bind the vectors that a value reads, and give it with their elements in place of them."""
        before: list[Stmt] = []
        found: dict[tuple[Any, ...], Var] = {}

        def visit(node: Expr, guards: tuple[Expr, ...] | None) -> Expr:
            match node:
                case Load() if self.is_vector(node) and guards is not None:
                    key = (node.tensor, node.indices, guards)
                    if key not in found:
                        found[key] = self.bound(node, guards, before)
                    return found[key]
                case Select():
                    condition = visit(node.condition, guards)
                    inner = None
                    if guards is not None and self.is_shared(node.condition):
                        inner = (*guards, node.condition)
                    true = visit(node.true, inner)
                    false = visit(node.false, None)
                    return replace(node, condition=condition, true=true, false=false)
                case Binary(op="logical_and" | "logical_or"):
                    left, right = visit(node.left, guards), visit(node.right, None)
                    return replace(node, left=left, right=right)
                case Load():
                    indices = tuple(visit(each, guards) for each in node.indices)
                    return node if indices == node.indices else replace(node, indices=indices)
                case _:
                    return map_children(
                        node, lambda each: visit(each, guards) if isinstance(each, Expr) else each
                    )

        new = visit(value, ())
        for var in found.values():
            lanes = tuple(shuffle((var,), (turn,)) for turn in self.turns)
            self.elements[var.name] = lanes
        return tuple(before), new

    def is_vector(self, load: Load) -> bool:
        if tensor_type(load.tensor).space not in MEMORY:
            return False
        return widest_run(load, self.var, self.width, self.ranges) == self.width

    def is_shared(self, condition: Expr) -> bool:
        """Tell whether a condition is the same in all turns, and reads nothing."""
        names = {each.name for each in variables(condition)}
        reads = any(isinstance(each, Load) for each in walk(condition))
        return not reads and self.var.name not in names and not names & self.elements.keys()

    def bound(self, load: Load, guards: tuple[Expr, ...], before: list[Stmt]) -> Var:
        """Bind a vector to a name, read where all of some conditions hold."""
        tensor, indices = self.vector(load)
        kind = ScalarType(load.dtype.vector(self.width))
        value: Expr = Load(tensor, indices, kind, location=load.location)
        if guards:
            condition = guards[0]
            for each in guards[1:]:
                condition = binary("logical_and", condition, each)
            zeros = broadcast(constant(0, load.dtype), self.width)
            value = Select(condition, value, zeros, kind, location=load.location)
        var = self.names.variable(f"{_name(load.tensor)}_run", kind)
        before.append(Bind(var, value, location=load.location))
        return var
