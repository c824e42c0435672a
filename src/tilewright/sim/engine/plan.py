"""What the engine must know of a kernel before it emits code: where paths part, wait and meet.

May import `base`, `isa`, `ir` and the analyses of `passes`.

A statement *suspends* if a path may stop in it and be resumed there: a wait, a collective under
divergent control, a loop that polls memory, a `return` of some lanes. Where control diverges
around it the lanes part into paths; elsewhere divergent control runs under masks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tilewright.ir.expressions import Expr, Load, Read, Var
from tilewright.ir.operands import written_places
from tilewright.ir.rewrite import rewrite
from tilewright.ir.statements import (
    Bind,
    Block,
    Break,
    Continue,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Return,
    Stmt,
    While,
)
from tilewright.ir.types import TensorType
from tilewright.ir.visit import children, walk, walk_statements
from tilewright.passes.analysis.uniformity import Uniformity, analyse_uniformity
from tilewright.sim.engine.flight import is_late

Names = frozenset[str]


@dataclass(frozen=True)
class Plan:
    """Facts about the statements of a kernel; statements are told apart by identity.

    `suspending` may suspend; `spinning` are loops that poll memory; `live` are the names of the
    variables whose value is needed after a statement; `late` are those that an instruction
    writes after its issue, and local arrays of which it writes elements; `depth` is how deeply
    constructs nest in which paths part.
    """

    kernel: Kernel
    uniformity: Uniformity
    suspending: frozenset[int]
    spinning: frozenset[int]
    live: dict[int, Names]
    depth: int
    late: Names

    def suspends(self, stmt: Stmt) -> bool:
        """Tell whether a path may stop in a statement."""
        return id(stmt) in self.suspending

    def diverges(self, stmt: If | While | For) -> bool:
        """Tell whether lanes may part at a branch or leave a loop at different times."""
        return self.uniformity.is_divergent(stmt)

    def runs_masked(self, loop: While | For) -> bool:
        """Tell whether a loop's lanes take different turns, so that it runs under masks."""
        if self.suspends(loop):
            return False
        return self.diverges(loop) or self.has_parted_exit(loop)

    def has_parted_exit(self, loop: While | For) -> bool:
        """Tell whether a `break` or `continue` of a loop is for some of its lanes."""
        return _parts_by_jump(loop.body, self.uniformity)


def _parts_by_jump(block: Block, uniformity: Uniformity, *, parted: bool = False) -> bool:
    """Tell whether a `break` or `continue` of a loop's body is for some of its lanes."""
    for stmt in block:
        match stmt:
            case Break() | Continue() if parted:
                return True
            case If():
                inner = parted or uniformity.is_divergent(stmt)
                if _parts_by_jump(stmt.then + stmt.orelse, uniformity, parted=inner):
                    return True
            case _:
                continue
    return False


def plan_kernel(kernel: Kernel) -> Plan:
    """Analyse a lowered kernel; predicated instructions become branches in `plan.kernel`."""
    plain = rewrite(kernel, ((Instruct, _branch_on_predicate),))
    uniformity = analyse_uniformity(plain)
    search = _Suspensions(uniformity)
    search.block(plain.body, _Around())
    lives = _Liveness()
    lives.block(plain.body, frozenset())
    suspending = frozenset(search.found)
    return Plan(
        plain,
        uniformity,
        suspending,
        frozenset(search.spinning),
        lives.after,
        _depth(plain.body, suspending),
        frozenset(_late_names(plain)),
    )


def _late_names(kernel: Kernel) -> Iterable[str]:
    for stmt in walk_statements(kernel.body):
        if isinstance(stmt, Instruct) and is_late(stmt.form):
            for each in written_places(stmt):
                named = each.tensor if isinstance(each, Load) else each
                if isinstance(named, Var):
                    yield named.name


def _branch_on_predicate(stmt: Instruct) -> If | None:
    if stmt.predicate is None:
        return None
    bare = replace(stmt, predicate=None, preserve=False)
    return If(stmt.predicate, (bare,), location=stmt.location)


# ---------------------------------------------------------------------------- suspensions


@dataclass(frozen=True)
class _Around:
    """What surrounds a statement: whether lanes have parted, in all and since the loop began."""

    parted: bool = False
    parted_in_loop: bool = False
    loop_suspends: bool = False


@dataclass
class _Suspensions:
    """Finds what suspends. Whether a loop does is asked before its jumps are looked at."""

    uniformity: Uniformity
    found: set[int] = field(default_factory=set[int])
    spinning: set[int] = field(default_factory=set[int])
    known: dict[tuple[int, bool], bool] = field(default_factory=dict[tuple[int, bool], bool])

    def block(self, block: Block, around: _Around) -> bool:
        # Every statement is looked at, not only the first that suspends.
        found = [self.statement(stmt, around) for stmt in block]
        return any(found)

    def statement(self, stmt: Stmt, around: _Around) -> bool:
        suspends = self._suspends(stmt, around)
        if suspends:
            self.found.add(id(stmt))
        return suspends

    def _suspends(self, stmt: Stmt, around: _Around) -> bool:
        match stmt:
            case Break() | Continue():
                return around.parted_in_loop and around.loop_suspends
            case If():
                parts = self.uniformity.is_divergent(stmt)
                inner = replace(
                    around,
                    parted=around.parted or parts,
                    parted_in_loop=around.parted_in_loop or parts,
                )
                return self.block(stmt.then + stmt.orelse, inner)
            case While() | For():
                if isinstance(stmt, While) and polls(stmt):
                    self.spinning.add(id(stmt))
                jumps = _parts_by_jump(stmt.body, self.uniformity)
                parted = around.parted or self.uniformity.is_divergent(stmt) or jumps
                suspends = self.stops(stmt, around.parted)
                self.block(stmt.body, _Around(parted, loop_suspends=suspends))
                return suspends
            case _:
                return self.stops(stmt, around.parted)

    def stops(self, stmt: Stmt, parted: bool) -> bool:
        """Tell whether a path may stop in a statement, jumps out of it left aside."""
        key = (id(stmt), parted)
        if key not in self.known:
            self.known[key] = self._stops(stmt, parted)
        return self.known[key]

    def _stops(self, stmt: Stmt, parted: bool) -> bool:
        match stmt:
            case Instruct():
                declaration = stmt.form.declaration
                collective = declaration.lanes in ("warp", "warpgroup")
                return declaration.wait is not None or (collective and parted)
            case Return():
                return parted
            case If():
                inner = parted or self.uniformity.is_divergent(stmt)
                return any(self.stops(each, inner) for each in stmt.then + stmt.orelse)
            case While() | For():
                if isinstance(stmt, While) and polls(stmt):
                    return True
                # Behind a jump that some lanes make the others are on their own.
                jumps = _parts_by_jump(stmt.body, self.uniformity)
                inner = parted or self.uniformity.is_divergent(stmt) or jumps
                return any(self.stops(each, inner) for each in stmt.body)
            case _:
                return False


def polls(loop: While) -> bool:
    """Tell whether a loop looks at memory, so that it may wait for another thread's write.

    A loop with a wait in it stops there.
    """
    looks = False
    for node in walk(loop):
        if isinstance(node, Instruct):
            if node.form.declaration.wait is not None:
                return False
            looks |= any(each.access in ("read", "update") for each in node.form.operands)
        looks |= isinstance(node, Read)
    return looks


def _depth(block: Block, suspending: frozenset[int]) -> int:
    """Count how deeply parting constructs nest; a loop takes two levels: its exit, its latch."""
    deepest = 0
    for stmt in block:
        if id(stmt) not in suspending:
            continue
        match stmt:
            case If():
                deepest = max(deepest, 1 + _depth(stmt.then + stmt.orelse, suspending))
            case While() | For():
                deepest = max(deepest, 2 + _depth(stmt.body, suspending))
            case _:
                continue
    return deepest


# ---------------------------------------------------------------------------- liveness


def used_names(nodes: Iterable[Expr]) -> Names:
    """List the scalar variables that expressions mention."""
    return frozenset(
        node.name
        for each in nodes
        for node in walk(each)
        if isinstance(node, Var) and not isinstance(node.type, TensorType)
    )


def loop_bounds(loop: For) -> tuple[str, str]:
    """Name the hidden variables that hold a loop's stop and step."""
    return f"{loop.var.name}.stop", f"{loop.var.name}.step"


@dataclass
class _Liveness:
    """Finds what is needed after each statement. A loop needs what its body needs, once more."""

    after: dict[int, Names] = field(default_factory=dict[int, Names])
    inside: dict[int, Names] = field(default_factory=dict[int, Names])

    def block(self, block: Block, out: Names) -> Names:
        for stmt in reversed(block):
            self.after[id(stmt)] = out
            out = self.statement(stmt, out)
        return out

    def statement(self, stmt: Stmt, out: Names) -> Names:
        match stmt:
            case Bind() | Declare():
                out = out - {stmt.var.name}
                return out if stmt.value is None else out | used_names((stmt.value,))
            case If():
                arms = self.block(stmt.then, out) | self.block(stmt.orelse, out)
                return arms | used_names((stmt.condition,))
            case For():
                hidden = frozenset((stmt.var.name, *loop_bounds(stmt)))
                inside = self._turns(stmt, out | hidden)
                return (inside - hidden) | used_names((stmt.start, stmt.stop, stmt.step))
            case While():
                return self._turns(stmt, out | used_names((stmt.condition,)))
            case _:
                return out | used_names(each for each in children(stmt) if isinstance(each, Expr))

    def _turns(self, loop: For | While, out: Names) -> Names:
        around = out | self._needs(loop)
        return around | self.block(loop.body, around)

    def _needs(self, loop: For | While) -> Names:
        """List what a turn of a loop needs of what was there before it."""
        if id(loop) not in self.inside:
            self.inside[id(loop)] = self.block(loop.body, frozenset())
        return self.inside[id(loop)]
