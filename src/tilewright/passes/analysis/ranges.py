"""Integer ranges and divisibility: what values an expression can have.

May import `base` and `ir`. An analysis reads a kernel once and gives a frozen `Ranges`, which
then answers for any expression over the kernel's variables. Every answer holds for wrapping
arithmetic: an operation that might leave its type may have any value of the type.

    >>> ranges = analyse_ranges(kernel)          # block=(128, 1, 1)
    >>> ranges.bounds(thread_idx_x * 4 + 3), ranges.divisor(thread_idx_x * 4)
    ((3, 511), 4)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd

from tilewright.base.dtypes import DType
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

_AXES = ("x", "y", "z")
_MOST_THREADS = 1024
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_MOST_CTAS_OF_A_CLUSTER = 16


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of an integer: `low <= x <= high`, and `x % modulus == residue`.

    A modulus of 0 says that x is the residue.
    """

    low: int
    high: int
    modulus: int = 1
    residue: int = 0

    @property
    def divisor(self) -> int:
        """Give the largest number known to divide x; 0 if x is known to be 0."""
        return gcd(self.modulus, self.residue)

    def join(self, other: Fact) -> Fact:
        """Give what holds of either of two values."""
        modulus = gcd(gcd(self.modulus, other.modulus), self.residue - other.residue)
        return congruent(
            min(self.low, other.low), max(self.high, other.high), modulus, self.residue
        )

    def meet(self, low: int, high: int) -> Fact:
        """Give what holds when x also lies between two bounds; unchanged where none could."""
        low, high = max(self.low, low), min(self.high, high)
        return replace(self, low=low, high=high) if low <= high else self


def congruent(low: int, high: int, modulus: int, residue: int) -> Fact:
    """Build a fact, its residue reduced by its modulus and its bounds moved to such numbers."""
    if modulus == 0:
        return Fact(low, high, 0, residue)
    first, last = low + (residue - low) % modulus, high - (high - residue) % modulus
    if first <= last:
        low, high = first, last
    return Fact(low, high, modulus, residue % modulus)


def exactly(value: int) -> Fact:
    """Build the fact of a known value."""
    return Fact(value, value, 0, value)


def between(low: int, high: int) -> Fact:
    """Build the fact of two bounds."""
    return exactly(low) if low == high else Fact(low, high)


def whole(dtype: DType) -> Fact:
    """Give what holds of every value of an integer or boolean type."""
    if dtype.is_bool:
        return Fact(0, 1)
    if dtype.kind == "int":
        return Fact(-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    return Fact(0, (1 << dtype.bits) - 1)


def wrapped(fact: Fact, dtype: DType) -> Fact:
    """Give what holds of a value after it is reduced into a type."""
    if dtype.is_bool:
        sure = fact.low > 0 or fact.high < 0
        return exactly(1) if sure else exactly(0) if fact.low == fact.high else Fact(0, 1)
    every = whole(dtype)
    if every.low <= fact.low and fact.high <= every.high:
        return fact
    modulus = gcd(fact.modulus, 1 << dtype.bits)
    return congruent(every.low, every.high, modulus, fact.residue)


# ---------------------------------------------------------------------------- operations


def add(a: Fact, b: Fact) -> Fact:
    """Give what holds of a sum."""
    return congruent(
        a.low + b.low, a.high + b.high, gcd(a.modulus, b.modulus), a.residue + b.residue
    )


def _negate(a: Fact) -> Fact:
    return congruent(-a.high, -a.low, a.modulus, -a.residue)


def _sub(a: Fact, b: Fact) -> Fact:
    return add(a, _negate(b))


def mul(a: Fact, b: Fact) -> Fact:
    """Give what holds of a product."""
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    modulus = gcd(a.modulus * b.modulus, a.modulus * b.residue, b.modulus * a.residue)
    return congruent(min(ends), max(ends), modulus, a.residue * b.residue)


def _known(fact: Fact) -> int | None:
    return fact.low if fact.low == fact.high else None


def _floordiv(a: Fact, b: Fact) -> Fact | None:
    if b.low <= 0:
        return None
    ends = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
    by = _known(b)
    if by is not None and a.modulus % by == 0:
        return congruent(min(ends), max(ends), a.modulus // by, a.residue // by)
    return between(min(ends), max(ends))


def _mod(a: Fact, b: Fact) -> Fact | None:
    if b.low <= 0:
        return None
    if a.low >= 0 and a.high < b.low:
        return a
    by = _known(b)
    if by is None:
        return between(0, b.high - 1)
    modulus = gcd(a.modulus, by)
    residue = a.residue % modulus
    if a.low // by == a.high // by:
        return congruent(a.low % by, a.high % by, modulus, residue)
    return congruent(residue, by - modulus + residue, modulus, residue)


def _truncating(operation: Callable[[Fact, Fact], Fact | None]) -> Callable[..., Fact | None]:
    """Make an operation of C out of Python's: they agree where nothing is negative."""
    return lambda a, b: operation(a, b) if a.low >= 0 else None


def _truncmod(a: Fact, b: Fact) -> Fact | None:
    if a.low >= 0:
        return _mod(a, b)
    if b.low <= 0:
        return None
    most = b.high - 1
    modulus = gcd(a.modulus, by) if (by := _known(b)) is not None else 1
    # The sign follows the dividend, so only divisibility carries over, not every residue.
    divisor = gcd(modulus, a.residue)
    return congruent(max(-most, a.low), min(most, max(a.high, 0)), divisor, 0)


def _and(a: Fact, b: Fact) -> Fact | None:
    mask = _known(b)
    if mask is not None and mask >= 0 and mask & (mask + 1) == 0:
        return _mod(a, exactly(mask + 1))
    highs = [each.high for each in (a, b) if each.low >= 0]
    if not highs:
        return None
    divisor = max(_power_of_two(a), _power_of_two(b))
    high = min(highs)
    return congruent(0, high - high % divisor, divisor, 0)


def _power_of_two(fact: Fact) -> int:
    """Give the largest power of two known to divide a value, at most 2**62."""
    divisor = fact.divisor or 1 << 62
    return min(divisor & -divisor, 1 << 62)


def _or(a: Fact, b: Fact) -> Fact | None:
    if a.low < 0 or b.low < 0:
        return None
    divisor = min(_power_of_two(a), _power_of_two(b))
    top = (1 << max(a.high, b.high).bit_length()) - 1
    return congruent(0, top - top % divisor, divisor, 0)


def _shl(a: Fact, b: Fact) -> Fact | None:
    if b.low < 0 or b.high > 63:
        return None
    shifts = (1 << b.low, 1 << b.high)
    factor = exactly(shifts[0]) if b.low == b.high else Fact(shifts[0], shifts[1], shifts[0])
    return mul(a, factor)


def _shr(a: Fact, b: Fact) -> Fact | None:
    if b.low < 0 or b.high > 63:
        return None
    if b.low == b.high:
        return _floordiv(a, exactly(1 << b.low))
    ends = [x >> n for x in (a.low, a.high) for n in (b.low, b.high)]
    return between(min(ends), max(ends))


def _min(a: Fact, b: Fact) -> Fact:
    joined = a.join(b)
    return replace(joined, low=min(a.low, b.low), high=min(a.high, b.high))


def _max(a: Fact, b: Fact) -> Fact:
    joined = a.join(b)
    return replace(joined, low=max(a.low, b.low), high=max(a.high, b.high))


_OPERATIONS: dict[str, Callable[[Fact, Fact], Fact | None]] = {
    "add": add,
    "sub": _sub,
    "mul": mul,
    "floordiv": _floordiv,
    "mod": _mod,
    "truncdiv": _truncating(_floordiv),
    "truncmod": _truncmod,
    "min": _min,
    "max": _max,
    "and": _and,
    "or": _or,
    "xor": _or,
    "shl": _shl,
    "shr": _shr,
}

# Comparisons of two facts: when they certainly hold, by the fact of left minus right.
_ALWAYS: dict[str, Callable[[Fact, Fact], bool]] = {
    "lt": lambda a, b: a.high < b.low,
    "le": lambda a, b: a.high <= b.low,
    "gt": lambda a, b: a.low > b.high,
    "ge": lambda a, b: a.low >= b.high,
    "eq": lambda a, b: a.low == a.high == b.low == b.high,
    "ne": lambda a, b: _never_equal(a, b),
}
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def _never_equal(a: Fact, b: Fact) -> bool:
    if a.high < b.low or b.high < a.low:
        return True
    modulus = gcd(a.modulus, b.modulus)
    return modulus != 0 and (a.residue - b.residue) % modulus != 0


# ---------------------------------------------------------------------------- the result


@dataclass(frozen=True)
class Ranges:
    """Facts about a kernel's variables and special registers, by name; registers by `%name`.

    `known` holds whatever is not just any value of its type.
    """

    known: Mapping[str, Fact] = field(default_factory=dict[str, Fact])

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
        value = None if fact is None else _known(fact)
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
                op = condition.op if holds else _OPPOSITE[condition.op]
                narrowed = self._narrow(op, condition.left, condition.right)
                return narrowed._narrow(_MIRRORED[op], condition.right, condition.left)
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
            if _ALWAYS[expr.op](left, right):
                return exactly(1)
            return exactly(0) if _ALWAYS[_OPPOSITE[expr.op]](left, right) else None
        if expr.op in LOGICAL:
            both = expr.op == "logical_and"
            return _min(left, right) if both else _max(left, right)
        operation = _OPERATIONS.get(expr.op)
        return None if operation is None else operation(left, right)

    def _unary(self, expr: Unary) -> Fact | None:
        operand = self.fact(expr.operand)
        if operand is None:
            return None
        match expr.op:
            case "neg":
                return _negate(operand)
            case "invert":
                return _sub(exactly(-1), operand)
            case _:
                return _sub(exactly(1), operand)

    def _intrinsic(self, expr: Intrinsic) -> Fact | None:
        operands = [self.fact(each) for each in expr.operands]
        if any(each is None for each in operands):
            return None
        match expr.name, operands:
            case ("min", [Fact() as a, Fact() as b]):
                return _min(a, b)
            case ("max", [Fact() as a, Fact() as b]):
                return _max(a, b)
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
    return growing


def _loop_fact(stmt: For, ranges: Ranges) -> Fact | None:
    start, stop, step = (ranges.fact(each) for each in (stmt.start, stmt.stop, stmt.step))
    by = None if step is None else _known(step)
    if start is None or stop is None or by is None or by == 0:
        return start if start is None else whole(stmt.var.dtype)
    low, high = (start.low, stop.high - 1) if by > 0 else (stop.low + 1, start.high)
    modulus = gcd(start.modulus, by)
    residue = start.residue
    # A loop that never runs leaves no value to speak of.
    if low > high:
        return start
    known = _known(start)
    if known is not None and by > 0:
        high -= (high - known) % by
    return wrapped(congruent(low, high, modulus, residue), stmt.var.dtype)


def launch_facts(launch: Launch, ranges: Ranges) -> dict[str, Fact]:
    """Bound the special registers of threads, CTAs and clusters by the shape of a launch."""
    facts = {"%laneid": Fact(0, 31), "%warp_in_warpgroup": Fact(0, 3)}
    facts["%thread_in_warpgroup"] = Fact(0, 127)
    threads = 1
    for axis, name in enumerate(_AXES):
        block = _extent(launch.block[axis], _MOST_THREADS, ranges)
        grid = _extent(launch.grid[axis], _MOST_BLOCKS[axis], ranges)
        cluster = _extent(launch.cluster[axis], _MOST_CTAS_OF_A_CLUSTER, ranges)
        threads *= block.high
        facts[f"%ntid.{name}"], facts[f"%tid.{name}"] = block, between(0, block.high - 1)
        facts[f"%nctaid.{name}"], facts[f"%ctaid.{name}"] = grid, between(0, grid.high - 1)
        facts[f"%cluster_nctaid.{name}"] = cluster
        facts[f"%cluster_ctaid.{name}"] = between(0, cluster.high - 1)
        clusters = max(grid.high // max(cluster.low, 1), 1)
        facts[f"%clusterid.{name}"] = between(0, clusters - 1)
        facts[f"%nclusterid.{name}"] = between(1, clusters)
    last = min(threads, _MOST_THREADS) - 1
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
