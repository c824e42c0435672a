"""Uniformity: what has one value in all active lanes of a warp.

May import `base`, `isa`, `ir` and the other analyses. Works on a lowered kernel. What it does not
know is divergent.

A variable is divergent if it is ever given a divergent value, or if it is given any value where
fewer lanes are active than where it was declared: in an arm of a divergent branch, after a
divergent `break` or `continue`, in a loop that lanes leave at different times (then lanes that
left keep an older value). Lanes that returned never look again, so `return` does not count.

    >>> uniformity = analyse_uniformity(kernel)      # block=(128, 1, 1)
    >>> uniformity.is_uniform(thread_idx_x // 32), uniformity.is_uniform(thread_idx_x)
    (True, False)
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expr,
    Intrinsic,
    Load,
    Offset,
    Read,
    Select,
    SharedBase,
    Shuffle,
    SpecialRegister,
    Unary,
    Var,
    as_constant,
)
from tilewright.ir.operands import paired_operands, read_operands
from tilewright.ir.statements import (
    Allocate,
    Assign,
    Bind,
    Block,
    Break,
    Continue,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Stmt,
    Store,
    While,
)
from tilewright.ir.types import TensorMapType
from tilewright.ir.visit import root
from tilewright.passes.analysis.lanes import LaneForm, lane_form
from tilewright.passes.analysis.ranges import Ranges, analyse_ranges

WARP = 32
# Registers with one value in a warp; a name before the dot stands for all three axes.
_UNIFORM_REGISTERS = (
    *("ctaid", "nctaid", "ntid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"),
    *("cluster_ctarank", "cluster_nctarank", "warpid", "nwarpid", "warp_id", "warpgroup_id"),
    *("warp_in_warpgroup", "smid", "nsmid", "gridid", "dynamic_smem_size", "total_smem_size"),
)
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@dataclass(frozen=True)
class Uniformity:
    """Which values are the same in all active lanes of a warp.

    `divergent_vars` are the names of cells, bindings, loop variables and local arrays that are
    not; an array is divergent if any element is. `forms` has the bindings that number lanes.
    """

    divergent_vars: AbstractSet[str]
    block: tuple[int | None, int | None, int | None]
    ranges: Ranges = field(default_factory=Ranges)
    forms: Mapping[str, LaneForm] = field(default_factory=dict[str, LaneForm])

    def is_uniform(self, expr: Expr) -> bool:
        """Tell whether an expression has one value in all lanes that evaluate it together."""
        match expr:
            case Constant() | SharedBase() | AddressOf(tensor=Var(type=TensorMapType())):
                return True
            case Var():
                return expr.name not in self.divergent_vars
            case SpecialRegister():
                return self._register(expr.name)
            case Binary():
                operands = self.is_uniform(expr.left) and self.is_uniform(expr.right)
                return operands or self._same_in_warp(expr)
            case Load():
                buffer = root(expr.tensor)
                return isinstance(buffer, Var) and self._all((buffer, *expr.indices))
            case Unary() | Cast() | Bitcast():
                return self.is_uniform(expr.operand)
            case Select():
                return self._all((expr.condition, expr.true, expr.false))
            case Intrinsic():
                return self._all(expr.operands)
            case Shuffle():
                return self._all(expr.sources)
            case Offset():
                return self._all((expr.pointer, expr.bytes))
            case Read():
                return self.is_uniform(expr.pointer)
            case _:
                return False

    def is_divergent(self, stmt: If | While | For) -> bool:
        """Tell whether lanes may part at a branch, or leave a loop at different times."""
        if self._parts(stmt):
            return True
        return not isinstance(stmt, If) and self._breaks(stmt.body, parted=False)[0]

    def _parts(self, stmt: If | While | For) -> bool:
        if isinstance(stmt, For):
            return not self._all((stmt.start, stmt.stop, stmt.step))
        return not self.is_uniform(stmt.condition)

    def _breaks(self, body: Block, parted: bool) -> tuple[bool, bool]:
        """Tell whether a part of the lanes of a loop reaches a `break` of it.

        Also whether only a part of them may be there behind the block.
        """
        breaks = False
        for stmt in body:
            if isinstance(stmt, Break):
                breaks = breaks or parted
            elif isinstance(stmt, If):
                inner = parted or self._parts(stmt)
                then, orelse = (self._breaks(arm, inner) for arm in (stmt.then, stmt.orelse))
                breaks = breaks or then[0] or orelse[0]
                parted = parted or (leaves_early((stmt,)) and (then[1] or orelse[1]))
        return breaks, parted

    def _all(self, exprs: tuple[Expr, ...]) -> bool:
        return all(self.is_uniform(each) for each in exprs)

    # ---- threads

    def _register(self, name: str) -> bool:
        base, _, axis = name.partition(".")
        if base in _UNIFORM_REGISTERS:
            return True
        if base != "tid":
            return False
        x, y, z = self.block
        if axis == "x":
            return x == 1
        if axis == "y":
            return y == 1 or (x is not None and x % WARP == 0)
        return z == 1 or (
            x is not None and (x % WARP == 0 or (y is not None and x * y % WARP == 0))
        )

    def lanes(self, expr: Expr) -> LaneForm | None:
        """Find how an integer expression numbers the lanes of a warp, if it does."""
        return lane_form(expr, self.block, self.is_uniform, self.ranges, self.forms)

    def _same_in_warp(self, expr: Binary) -> bool:
        """Recognise what no longer tells the lanes of a warp apart, such as `tid.x // 32`."""
        lanes = self.lanes(expr.left)
        if expr.op in _MIRRORED and lanes is None:
            lanes = self.lanes(expr.right)
            return lanes is not None and self._compares(lanes, _MIRRORED[expr.op], expr.left)
        if lanes is None:
            return False
        width = lanes.width
        by = as_constant(expr.right)
        match expr.op:
            case "floordiv":
                return bool(by) and by % width == 0
            case "truncdiv":
                return bool(by) and by % width == 0 and self.ranges.is_non_negative(expr.left)
            case "shr":
                return by is not None and 0 <= by < 63 and (1 << int(by)) % width == 0
            case "and":
                return by is not None and int(by) % width == 0
            case "lt" | "le" | "gt" | "ge":
                return self._compares(lanes, expr.op, expr.right)
            case _:
                return False

    def _compares(self, lanes: LaneForm, op: str, limit: Expr) -> bool:
        """Tell whether a comparison with a limit goes one way for the whole warp."""
        if not self.is_uniform(limit):
            return False
        if op in ("lt", "ge"):
            return self.ranges.divisor(limit) % lanes.width == 0
        value = as_constant(limit)
        return value is not None and (int(value) + 1) % lanes.width == 0


def leaves_early(block: Block) -> bool:
    """Tell whether a block has a `break` or `continue` of the loop around it."""
    for stmt in block:
        match stmt:
            case Break() | Continue():
                return True
            case If() if leaves_early(stmt.then) or leaves_early(stmt.orelse):
                return True
            case _:
                continue
    return False


# ---------------------------------------------------------------------------- the analysis


def analyse_uniformity(kernel: Kernel) -> Uniformity:
    """Find the variables of a lowered kernel that may differ between active lanes of a warp."""
    values = (as_constant(each) for each in kernel.launch.block)
    x, y, z = (None if value is None else int(value) for value in values)
    visitor = _Visitor((x, y, z), analyse_ranges(kernel))
    found = -1
    while len(visitor.divergent) > found:
        found = len(visitor.divergent)
        visitor.block(kernel.body, 0)
    return replace(
        visitor.known, divergent_vars=frozenset(visitor.divergent), forms=dict(visitor.forms)
    )


analyse = analyse_uniformity


class _Visitor:
    """Passes over a kernel: collects the variables that what is known makes divergent.

    What a pass finds it knows at once, so that only what goes around loops takes more passes.
    `depth` counts the partings of lanes around a statement. A variable that is written at a
    greater depth than it was declared at is written by a part of the lanes that can see it.
    """

    def __init__(self, block: tuple[int | None, int | None, int | None], ranges: Ranges) -> None:
        self.divergent: set[str] = set()
        self.forms: dict[str, LaneForm] = {}
        self.known = Uniformity(self.divergent, block, ranges, self.forms)
        self.declared: dict[str, int] = {}

    def block(self, block: Block, depth: int) -> int:
        """Visit statements one after another; gives the depth behind the last."""
        for stmt in block:
            depth = self.statement(stmt, depth)
        return depth

    def statement(self, stmt: Stmt, depth: int) -> int:
        match stmt:
            case Bind():
                self.declared[stmt.var.name] = depth
                self.bind(stmt)
                self.write(stmt.var, (stmt.value,), depth)
            case Declare():
                self.declared[stmt.var.name] = depth
                if stmt.value is not None:
                    self.write(stmt.var, (stmt.value,), depth)
            case Allocate():
                self.declared[stmt.var.name] = depth
            case Assign():
                self.write(stmt.var, (stmt.value,), depth)
            case Store():
                self.write(stmt.tensor, (stmt.value, *stmt.indices), depth)
            case Instruct():
                self.instruction(stmt, depth)
            case If():
                return self.branch(stmt, depth)
            case For():
                inner = depth + self.known.is_divergent(stmt)
                self.declared[stmt.var.name] = inner
                self.write(stmt.var, (stmt.start, stmt.step), inner)
                self.block(stmt.body, inner)
            case While():
                self.block(stmt.body, depth + self.known.is_divergent(stmt))
            case _:
                pass
        return depth

    def bind(self, stmt: Bind) -> None:
        form = self.known.lanes(stmt.value)
        if form is None:
            self.forms.pop(stmt.var.name, None)
        else:
            self.forms[stmt.var.name] = form

    def branch(self, stmt: If, depth: int) -> int:
        parted = self.known.is_divergent(stmt)
        behind = [self.block(arm, depth + parted) for arm in (stmt.then, stmt.orelse)]
        if parted:
            # Lanes that left by `break` or `continue` are missing until the loop's next turn.
            return depth + leaves_early((stmt,))
        return max(behind)

    def write(self, place: Expr, sources: tuple[Expr, ...], depth: int) -> None:
        """Note that a place takes a value made of `sources`, at a depth."""
        var = root(place.tensor) if isinstance(place, Load) else root(place)
        if not isinstance(var, Var):
            return
        parted = depth > self.declared.get(var.name, 0)
        if parted or not all(self.known.is_uniform(each) for each in sources):
            self.divergent.add(var.name)

    def instruction(self, stmt: Instruct, depth: int) -> None:
        sources = self.sources(stmt)
        for declared, place in paired_operands(stmt.form, stmt.operands):
            if declared.role == "in":
                continue
            indices = place.indices if isinstance(place, Load) else ()
            if sources is None:
                self.write(place, (_DIVERGENT,), depth)
            else:
                self.write(place, (*sources, *indices), depth)

    def sources(self, stmt: Instruct) -> tuple[Expr, ...] | None:
        """List what decides whether the outputs are uniform; `None` if they never are."""
        predicate = () if stmt.predicate is None else (stmt.predicate,)
        match stmt.form.declaration.result:
            case "uniform":
                return predicate
            case "lanes":
                return None
            case _:
                pass
        if any(each.access == "update" for each in stmt.form.operands):
            # Lanes that update one address see one another's values.
            return None
        return (*read_operands(stmt), *predicate)


_DIVERGENT = SpecialRegister("laneid")
__all__ = ["Uniformity", "analyse", "analyse_uniformity"]
