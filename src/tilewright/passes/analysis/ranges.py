"""Integer ranges and divisibility: what values an expression can have.

May import `base`, `ir` and `facts` of this folder. An analysis reads a kernel once and gives a
frozen `Ranges`, which then answers for any expression over the kernel's variables. Every answer
holds for wrapping arithmetic: an operation that might leave its type may have any value of it.

    >>> ranges = analyse_ranges(kernel)          # block=(128, 1, 1)
    >>> ranges.bounds(thread_idx_x * 4 + 3), ranges.divisor(thread_idx_x * 4)
    ((3, 511), 4)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd

from tilewright.base.dtypes import DType
from tilewright.base.targets import MAX_CLUSTER, MAX_GRID, MAX_THREADS
from tilewright.ir.expressions import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expr,
    Intrinsic,
    Select,
    SpecialRegister,
    Unary,
    Var,
)
from tilewright.ir.statements import Bind, Block, For, Kernel, Launch
from tilewright.ir.types import PointerType, ScalarType
from tilewright.ir.visit import walk_statements
from tilewright.passes.analysis.facts import (
    ALWAYS,
    MIRRORED,
    OPERATIONS,
    OPPOSITE,
    Fact,
    between,
    congruent,
    exactly,
    known_value,
    maximum,
    minimum,
    negate,
    sub,
    whole,
    wrapped,
)

_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Ranges:
    """Facts about a kernel's variables and special registers, by name; registers by `%name`.

    `known` holds whatever is not just any value of its type. What an expression is found to be
    is remembered, with the expression so that its id stays taken.
    """

    known: Mapping[str, Fact] = field(default_factory=dict[str, Fact])
    _found: dict[int, tuple[Expr, Fact | None]] = field(
        default_factory=dict[int, tuple[Expr, "Fact | None"]], init=False, repr=False, compare=False
    )

    def bounds(self, expr: Expr) -> tuple[int | None, int | None]:
        """Bound an integer expression; `(None, None)` for anything else."""
        fact = self.fact(expr)
        return (None, None) if fact is None else (fact.low, fact.high)

    def divisor(self, expr: Expr) -> int:
        """Give the largest number known to divide an expression, at least 1.

        For an expression known to be 0 this is 2**62.
        """
        fact = self.fact(expr)
        return 1 if fact is None else fact.divisor or 1 << 62

    def is_non_negative(self, expr: Expr) -> bool:
        """Tell whether an integer expression is known not to be negative."""
        fact = self.fact(expr)
        return fact is not None and fact.low >= 0

    def truth(self, condition: Expr) -> bool | None:
        """Give the value of a condition, where it is known."""
        fact = self.fact(condition)
        value = None if fact is None else known_value(fact)
        return None if value is None else bool(value)

    def with_facts(self, facts: Mapping[str, Fact]) -> Ranges:
        """Add facts, replacing what was known of the same variables."""
        return Ranges({**self.known, **facts}) if facts else self

    def assuming(self, condition: Expr, holds: bool = True) -> Ranges:
        """Add what follows for variables from a condition that holds (or does not).

        Only variables that are never assigned again may be asked about afterwards: the facts
        of a mutable cell are never narrowed, because none are kept of it.
        """
        match condition:
            case Unary(op="not"):
                return self.assuming(condition.operand, not holds)
            case Binary(op="logical_and") if holds:
                return self.assuming(condition.left).assuming(condition.right)
            case Binary(op="logical_or") if not holds:
                return self.assuming(condition.left, False).assuming(condition.right, False)
            case Binary() if condition.op in COMPARISONS:
                op = condition.op if holds else OPPOSITE[condition.op]
                narrowed = self._narrow(op, condition.left, condition.right)
                return narrowed._narrow(MIRRORED[op], condition.right, condition.left)
            case _:
                return self

    def _narrow(self, op: str, subject: Expr, other: Expr) -> Ranges:
        key = _key(subject)
        old, limit = self.fact(subject), self.fact(other)
        if key is None or key not in self.known or old is None or limit is None:
            return self
        match op:
            case "lt" | "le":
                new = old.meet(old.low, limit.high - (op == "lt"))
            case "gt" | "ge":
                new = old.meet(limit.low + (op == "gt"), old.high)
            case "eq":
                new = old.meet(limit.low, limit.high)
            case _:
                return self
        return self.with_facts({key: new})

    def fact(self, expr: Expr) -> Fact | None:
        """Give what is known of a scalar integer or boolean expression, `None` for others."""
        found = self._found.get(id(expr))
        if found is None:
            found = self._found[id(expr)] = (expr, self._fact_of_type(expr))
        return found[1]

    def _fact_of_type(self, expr: Expr) -> Fact | None:
        type = expr.type
        if not isinstance(type, ScalarType) or type.dtype.lanes != 1 or type.dtype.is_float:
            return None
        found = self._fact(expr, type.dtype)
        return whole(type.dtype) if found is None else wrapped(found, type.dtype)

    def _fact(self, expr: Expr, dtype: DType) -> Fact | None:
        match expr:
            case Constant():
                return exactly(int(expr.value))
            case Var() | SpecialRegister():
                return self.known.get(_key(expr) or "")
            case Binary():
                return self._binary(expr)
            case Unary():
                return self._unary(expr)
            case Select():
                true, false = self.fact(expr.true), self.fact(expr.false)
                return true.join(false) if true and false else None
            case Cast():
                return self.fact(expr.operand)
            case Bitcast() if not isinstance(expr.operand.type, PointerType):
                return self.fact(expr.operand)
            case Intrinsic():
                return self._intrinsic(expr)
            case _:
                return None

    def _binary(self, expr: Binary) -> Fact | None:
        left, right = self.fact(expr.left), self.fact(expr.right)
        if left is None or right is None:
            return None
        if expr.op in COMPARISONS:
            if ALWAYS[expr.op](left, right):
                return exactly(1)
            return exactly(0) if ALWAYS[OPPOSITE[expr.op]](left, right) else None
        if expr.op in LOGICAL:
            both = expr.op == "logical_and"
            return minimum(left, right) if both else maximum(left, right)
        operation = OPERATIONS.get(expr.op)
        return None if operation is None else operation(left, right)

    def _unary(self, expr: Unary) -> Fact | None:
        operand = self.fact(expr.operand)
        if operand is None:
            return None
        match expr.op:
            case "neg":
                return negate(operand)
            case "invert":
                return sub(exactly(-1), operand)
            case _:
                return sub(exactly(1), operand)

    def _intrinsic(self, expr: Intrinsic) -> Fact | None:
        operands = [self.fact(each) for each in expr.operands]
        if any(each is None for each in operands):
            return None
        match expr.name, operands:
            case ("min", [Fact() as a, Fact() as b]):
                return minimum(a, b)
            case ("max", [Fact() as a, Fact() as b]):
                return maximum(a, b)
            case ("popcount" | "clz", [_]):
                return Fact(0, expr.operands[0].dtype.bits)
            case _:
                return None


def _key(expr: Expr) -> str | None:
    match expr:
        case Var():
            return expr.name
        case SpecialRegister():
            return f"%{expr.name}"
        case _:
            return None


# ---------------------------------------------------------------------------- the analysis


def analyse_ranges(kernel: Kernel) -> Ranges:
    """Find what is known of a kernel's registers, shape symbols, bindings and loop variables."""
    scalars = [each for each in kernel.params if isinstance(each.type, ScalarType)]
    integers = [e for e in scalars if e.dtype.lanes == 1 and not e.dtype.is_float]
    facts = {each.name: whole(each.dtype) for each in integers}
    facts |= {each.name: Fact(0, whole(each.dtype).high) for each in kernel.symbols}
    ranges = Ranges(facts)
    ranges = ranges.with_facts(launch_facts(kernel.launch, ranges))
    return with_definitions(ranges, kernel.body)


def with_definitions(ranges: Ranges, block: Block) -> Ranges:
    """Add what is known of the bindings and loop variables of a block.

    A binding is a name for its value at one time: facts hold because they are all that the
    value's own parts, which may be mutable, ever allow.
    """
    facts = dict(ranges.known)
    growing = Ranges(facts)
    for stmt in walk_statements(block):
        match stmt:
            case Bind():
                fact = growing.fact(stmt.value)
            case For():
                fact = _loop_fact(stmt, growing)
            case _:
                continue
        if fact is not None:
            facts[stmt.var.name] = fact
    return Ranges(facts)


def _loop_fact(stmt: For, ranges: Ranges) -> Fact | None:
    start, stop, step = (ranges.fact(each) for each in (stmt.start, stmt.stop, stmt.step))
    by = None if step is None else known_value(step)
    if start is None or stop is None or by is None or by == 0:
        return start if start is None else whole(stmt.var.dtype)
    low, high = (start.low, stop.high - 1) if by > 0 else (stop.low + 1, start.high)
    modulus = gcd(start.modulus, by)
    residue = start.residue
    # A loop that never runs leaves no value to speak of.
    if low > high:
        return start
    known = known_value(start)
    if known is not None and by > 0:
        high -= (high - known) % by
    return wrapped(congruent(low, high, modulus, residue), stmt.var.dtype)


def launch_facts(launch: Launch, ranges: Ranges) -> dict[str, Fact]:
    """Bound the special registers of threads, CTAs and clusters by the shape of a launch."""
    facts = {"%laneid": Fact(0, 31), "%warp_in_warpgroup": Fact(0, 3)}
    facts["%thread_in_warpgroup"] = Fact(0, 127)
    threads = 1
    for axis, name in enumerate(_AXES):
        block = _extent(launch.block[axis], MAX_THREADS, ranges)
        grid = _extent(launch.grid[axis], MAX_GRID[axis], ranges)
        cluster = _extent(launch.cluster[axis], MAX_CLUSTER, ranges)
        threads *= block.high
        facts[f"%ntid.{name}"], facts[f"%tid.{name}"] = block, between(0, block.high - 1)
        facts[f"%nctaid.{name}"], facts[f"%ctaid.{name}"] = grid, between(0, grid.high - 1)
        facts[f"%cluster_nctaid.{name}"] = cluster
        facts[f"%cluster_ctaid.{name}"] = between(0, cluster.high - 1)
        clusters = max(grid.high // max(cluster.low, 1), 1)
        facts[f"%clusterid.{name}"] = between(0, clusters - 1)
        facts[f"%nclusterid.{name}"] = between(1, clusters)
    last = min(threads, MAX_THREADS) - 1
    facts["%linear_tid"] = between(0, last)
    facts["%warp_id"] = between(0, last // 32)
    facts["%warpgroup_id"] = between(0, last // 128)
    return facts


def _extent(extent: Expr, most: int, ranges: Ranges) -> Fact:
    """Bound an extent of a launch; one that is not positive cannot be launched."""
    fact = ranges.fact(extent) or Fact(1, most)
    if fact.low >= 1 and fact.high <= most:
        return fact
    high = min(max(fact.high, 1), most)
    low = min(max(fact.low, 1), high)
    return replace(fact, low=low, high=high) if fact.modulus else between(low, high)
