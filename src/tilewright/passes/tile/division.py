"""How the points of a parallel loop are divided among the threads that execute it.

May import `base`, `layout`, `ir`, `passes.analysis` and `passes.tile.scene`.

    for i in T.Parallel(32): x[i + 32] = …     # x has 64 elements, in pairs over 32 threads
    # the box is that of x, over k; i = k - 32, where 32 <= k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.base.dtypes import INT32
from tilewright.ir.expressions import Binary, Expr, Var, as_constant, binary, equal
from tilewright.ir.rewrite import substitute
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import variables
from tilewright.layout import TileLayout, m
from tilewright.layout.fragment import Fragment, divided
from tilewright.layout.spec import Iter
from tilewright.passes.analysis.linear import linear_of

INDEX = ScalarType(INT32)
# What the names of axes begin with that are no variables of a loop; no program has such names.
AXIS = "."


@dataclass(frozen=True)
class Division:
    """The points of a loop, as points of a box that is divided among threads.

    `axes` name the coordinates of `box`, `values` the loop's variables in terms of them, in the
    order of the loop; where a guard does not hold a point of the box is none of the loop. The
    threads are those from `first` on.
    """

    box: Fragment
    axes: tuple[Var, ...]
    values: tuple[Expr, ...]
    guards: tuple[Expr, ...] = ()
    first: int = 0


def freely(
    vars: Sequence[Var],
    extents: Sequence[int],
    threads: int,
    width: int,
    first: int,
    lanes: int | None = None,
) -> Division:
    """Divide points row by row, in runs of `width`; see `divided`."""
    if not vars:
        return Division(divided((1,), threads), (Var(AXIS, INDEX),), (), (), first)
    return along(divided(extents, threads, width, lanes), vars, first)


def along(box: Fragment, vars: Sequence[Var], first: int) -> Division:
    """Divide points as the elements of a fragment of that shape are."""
    return Division(box, tuple(vars), tuple(vars), (), first)


def inlined(index: Expr, bindings: Mapping[Var, Expr]) -> Expr:
    """Replace immutable names by what they stand for."""
    while known := {v.name: bindings[v] for v in variables(index) if v in bindings}:
        index = substitute(index, known)
    return index


def depends(index: Expr, vars: Sequence[Var]) -> bool:
    """Tell whether an expression mentions one of some variables."""
    return any(each in vars for each in variables(index))


# ---------------------------------------------------------------------------- along a fragment


class _Solving:
    """Finds the point of a loop at which an element of a fragment is accessed."""

    def __init__(self, vars: Sequence[Var], extents: Sequence[int], names: Sequence[Var]) -> None:
        self.extents = dict(zip(vars, extents, strict=True))
        self.names = list(names)
        self.values: dict[Var, Expr] = {}
        self.guards: list[Expr] = []
        # Digits that nothing but the loop counts: (axis, extent).
        self.more: list[tuple[Var, int]] = []

    def solve(self, index: Expr, axis: Var, extent: int) -> bool:
        """Find the variables of an index from the coordinate that it has; tell if it worked."""
        if not depends(index, list(self.extents)) or self.known(index):
            self.guards.append(equal(axis, substitute(index, self.by_name())))
            return True
        total = linear_of(index)
        match list(total.terms.items()):
            case [(Binary(op="floordiv", left=left, right=right), 1)] if as_constant(right):
                return self.quotient(left, int(as_constant(right) or 1), axis - total.constant)
            case _:
                return self.digits(total.terms, axis, total.constant, extent)

    def known(self, index: Expr) -> bool:
        return all(each in self.values or each not in self.extents for each in variables(index))

    def by_name(self) -> dict[str, Expr]:
        return {each.name: value for each, value in self.values.items()}

    def quotient(self, inner: Expr, divisor: int, axis: Expr) -> bool:
        """Solve `(v + c) // d` by a further digit, which counts to d."""
        total = linear_of(inner)
        match list(total.terms.items()):
            case [(Var() as var, 1)] if var in self.extents and var not in self.values:
                digit = self.names.pop(0)
                self.more.append((digit, divisor))
                self.set(var, axis * divisor + digit - total.constant)
                return True
            case _:
                return False

    def digits(self, terms: Mapping[Expr, int], axis: Expr, constant: int, extent: int) -> bool:
        """Solve a sum of variables that count in steps, each past what the smaller ones reach."""
        steps = sorted(terms.items(), key=lambda each: abs(each[1]))
        for var, _ in steps:
            if not isinstance(var, Var) or var not in self.extents or var in self.values:
                return False
        if len(steps) == 1:
            ((var, step),) = steps
            assert isinstance(var, Var)
            moved = axis - constant if step > 0 else constant - axis
            if abs(step) > 1:
                self.guards.append(equal(moved % abs(step), 0))
                moved = moved // abs(step)
            self.set(var, moved)
            return True
        reach = 1
        for var, step in steps:
            assert isinstance(var, Var)
            if step < reach or step % reach:
                return False
            reach = step * self.extents[var]
        rest: Expr = axis - constant
        if steps[0][1] != 1 or constant:
            return False
        for at, (var, step) in enumerate(steps):
            assert isinstance(var, Var)
            value = rest // step
            if at + 1 < len(steps):
                value = value % (steps[at + 1][1] // step)
            self.set(var, value)
        return True

    def set(self, var: Var, value: Expr) -> None:
        self.values[var] = value


@dataclass(frozen=True)
class _Axis:
    """An axis of a box: its name, its extent, and the digits that it is made of."""

    var: Var
    extent: int
    digits: tuple[Iter, ...]


def following(
    held: Fragment,
    home: int,
    indices: Sequence[Expr],
    vars: Sequence[Var],
    extents: Sequence[int],
    names: Sequence[Var],
    serial: bool,
) -> Division | None:
    """Divide a loop such that each thread has the points whose element of a fragment it holds.

    `names` are fresh variables for coordinates; with `serial` a thread has all the points of an
    element, else the threads that hold it share them. `None` where the indices do not lead back
    to points.
    """
    solving = _Solving(vars, extents, names)
    axes: list[_Axis] = []
    for dim, index in enumerate(indices):
        if not depends(index, vars) and held.is_whole(dim):
            continue
        plain = isinstance(index, Var) and index in vars and index not in solving.values
        axis = index if plain and isinstance(index, Var) else solving.names.pop(0)
        if not solving.solve(index, axis, held.shape[dim]):
            return None
        extent = min(held.shape[dim], solving.extents.get(axis, held.shape[dim]))
        axes.append(_Axis(axis, extent, held.groups[dim]))
    stride = held.registers
    for axis, extent in solving.more:
        axes.append(_Axis(axis, extent, (Iter(extent, stride, m),)))
        stride *= extent
    replicas = [each for each in held.layout.replica if each.extent > 1]
    replicas.sort(key=lambda each: -each.stride)
    for var in reversed(vars):
        if var not in solving.values:
            shares: list[Iter] = []
            extent = solving.extents[var]
            while replicas and not serial and prod(each.extent for each in shares) < extent:
                shares.insert(0, replicas.pop())
            turns = -(-extent // prod(each.extent for each in shares))
            axes.append(_Axis(var, extent, (Iter(turns, stride, m), *shares)))
            stride *= turns
            solving.set(var, var)
    return _assembled(axes or [_Axis(solving.names.pop(0), 1, ())], replicas, solving, home)


def _assembled(
    axes: Sequence[_Axis], replicas: Sequence[Iter], solving: _Solving, home: int
) -> Division:
    reach = {each.var: each.extent for each in axes}
    guards = list(solving.guards)
    for var, extent in solving.extents.items():
        value = solving.values[var]
        if value != var:
            guards += [binary("le", 0, value), binary("lt", value, extent)]
        assert value != var or reach[var] <= extent
    digits = [digit for each in axes for digit in each.digits if digit.extent > 1]
    layout = TileLayout.from_iters(digits or [Iter(1, 1, m)], replicas)
    box = Fragment(
        tuple(each.extent for each in axes),
        layout,
        tuple(prod(digit.extent for digit in each.digits) for each in axes),
    )
    values = tuple(solving.values[each] for each in solving.extents)
    return Division(box, tuple(each.var for each in axes), values, tuple(guards), home)
