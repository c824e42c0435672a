"""Where the points of a parallel loop, and the elements of fragments at them, are.

May import `base`, `layout`, `ir`, NumPy, `passes.analysis` and the modules of this folder above.
What an index means for registers is proven over all threads and turns, by enumeration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.expressions import Expr, Var, as_expr
from tilewright.layout.fragment import Digit, Fragment, digit_of
from tilewright.passes.analysis.evaluation import Bools, Environment, Values, evaluate, possible
from tilewright.passes.analysis.linear import linear_of
from tilewright.passes.tile.division import Division, depends, inlined
from tilewright.passes.tile.scene import TileScene

# Points beyond which nothing is proven.
_MOST = 1 << 24


@dataclass(frozen=True)
class Access:
    """An access of a fragment in a parallel loop."""

    buffer: Var
    indices: tuple[Expr, ...]
    writes: bool
    location: Any = None


@dataclass(frozen=True)
class Points:
    """The points of a loop: `vars` are the loop's, `turns` the loops of each thread.

    Turns are digits of the coordinates of the division's box, outermost first.
    """

    vars: tuple[Var, ...]
    division: Division
    turns: tuple[Digit, ...]
    scene: TileScene

    @staticmethod
    def of(vars: Sequence[Var], division: Division, scene: TileScene) -> Points:
        """Order the turns: neighbours along the last variable innermost."""
        turns = list(division.box.digits[1])
        for each in turns:
            if each.dim is not None and each.weight == 1 and _follows(division, each.dim):
                turns.remove(each)
                turns.append(each)
                break
        return Points(tuple(vars), division, tuple(turns), scene)

    # ---- all of them at once, as arrays over (thread, turn)

    @cached_property
    def threads(self) -> Values:
        """Number the threads, in the CTA."""
        return np.arange(self.division.box.threads, dtype=np.int64)[:, None] + self.division.first

    @cached_property
    def digits(self) -> tuple[Values, ...]:
        """Give the digits of all turns."""
        extents = [each.extent for each in self.turns]
        found = np.indices(extents, dtype=np.int64) if extents else np.zeros((0, 1), np.int64)
        return tuple(each.reshape(1, -1) for each in found)

    @cached_property
    def coordinates(self) -> tuple[Values, ...]:
        """Give the coordinates of all points in the box."""
        box = self.division.box
        values: list[Any] = [0] * len(box.shape)
        own = self.threads - self.division.first
        for each in box.digits[0]:
            if each.dim is not None:
                values[each.dim] += own // each.stride % each.extent * each.weight
        for digit, each in zip(self.digits, self.turns, strict=True):
            assert each.dim is not None
            values[each.dim] = values[each.dim] + digit * each.weight
        shape = (box.threads, prod(each.extent for each in self.turns))
        return tuple(np.broadcast_to(np.asarray(each), shape) for each in values)

    @cached_property
    def environment(self) -> Environment:
        """Say what the axes, and so the loop's variables, are at all points."""
        axes = dict(zip(self.division.axes, self.coordinates, strict=True))
        bindings = dict(self.scene.bindings)
        for var, value in zip(self.vars, self.division.values, strict=True):
            if value != var:
                bindings[var] = value
        return Environment(axes, {}, bindings)

    @cached_property
    def inside(self) -> Bools:
        """Tell the points that are points of the loop."""
        kept = np.ones(self.coordinates[0].shape, dtype=np.bool_)
        for values, extent in zip(self.coordinates, self.division.box.shape, strict=True):
            kept &= values < extent
        for guard in self.division.guards:
            kept &= possible(guard, self.environment).true
        return kept

    def missing(self, extents: Sequence[int]) -> Environment | None:
        """Say what the variables are at points of the loop that are none here, if there are any."""
        known = zip(self.vars, self.division.values, extents, strict=True)
        reach = dict(zip(self.division.axes, self.division.box.shape, strict=True))
        if not self.division.guards and all(
            value == var and reach[var] >= extent for var, value, extent in known
        ):
            return None
        values = [evaluate(each, self.environment) for each in self.division.values]
        left = np.ones(tuple(extents), dtype=np.bool_)
        if all(each is not None for each in values):
            own = [np.broadcast_to(np.asarray(each), self.inside.shape) for each in values]
            left[tuple(each[self.inside] for each in own)] = False
        if not left.any():
            return None
        points = dict(zip(self.vars, np.nonzero(left), strict=True))
        return Environment(points, {}, self.scene.bindings)

    # ---- elements of fragments

    def elements(
        self, held: Fragment, indices: Sequence[Expr]
    ) -> tuple[list[Values], Bools] | None:
        """Give the elements at all points, and where they are elements.

        An index is 0 along axes that a thread has all of, if it must; `None` where one is not
        known. One that leaves the fragment is guarded: see `loop_effects`.
        """
        found: list[Values] = []
        there = self.inside
        for dim, index in enumerate(indices):
            value = evaluate(index, self.environment)
            if value is None:
                if not held.is_whole(dim):
                    return None
                value = 0
            values = np.broadcast_to(np.asarray(value), self.inside.shape)
            there = there & (values >= 0) & (values < held.shape[dim])
            found.append(values)
        return [np.where(there, each, 0) for each in found], there

    def places(
        self, held: Fragment, home: int, indices: Sequence[Expr]
    ) -> tuple[Values, Bools] | None:
        """Give the register of each point's element, and where there is one.

        `None` if some thread has not got it.
        """
        elements = self.elements(held, indices)
        if elements is None:
            return None
        wanted, inside = elements
        registers = np.broadcast_to(np.asarray(held.place(wanted)[1]), self.inside.shape)
        own = self.threads - home
        if np.any(inside & ((own < 0) | (own >= held.threads))):
            return None
        there = held.coordinates(own, registers)
        for values, found in zip(wanted, there, strict=True):
            if np.any(inside & (values != found)):
                return None
        return registers, inside

    def register(self, held: Fragment, home: int, indices: Sequence[Expr]) -> Register | None:
        """Say in which register each thread has an element, at every point; `None` if not."""
        registers = self.places(held, home, indices)
        if registers is None:
            return None
        fitted = self._fitted(*registers)
        own: list[Expr] = []
        for index in indices:
            unknown = evaluate(index, self.environment) is None
            own.append(index if unknown else as_expr(0))
            if unknown and depends(inlined(index, self.scene.bindings), self.vars):
                fitted = None
        rest = as_expr(held.place(own)[1])
        if fitted is not None:
            return Register(fitted[0], fitted[1], rest)
        return Register(None, 0, as_expr(held.place(list(indices))[1]))

    def _fitted(self, registers: Values, inside: Bools) -> tuple[tuple[int, ...], int] | None:
        """Write registers as a sum of multiples of the turns' digits, the same in all threads."""
        some = inside.any(axis=0)
        if not some.any():
            return (0,) * len(self.turns), 0
        first = np.argmax(inside, axis=0)
        known = registers[first, np.arange(registers.shape[1])]
        if np.any(inside & (registers != known[None, :])):
            return None
        shape = [each.extent for each in self.turns]
        grid: Values = known.reshape(shape)
        there: Any = some.reshape(shape)
        factors = [_step(grid, there, dim) for dim in range(len(shape))]
        total: Any = np.zeros((1, known.size), dtype=np.int64)
        for factor, digit in zip(factors, self.digits, strict=True):
            total = total + factor * digit
        gaps = (known[None, :] - total)[0][some]
        if np.any(gaps != gaps[0]):
            return None
        return tuple(factors), int(gaps[0])

    def covers(self, held: Fragment, home: int, indices: Sequence[Expr]) -> bool:
        """Tell whether all threads that hold an element are at its point."""
        elements = self.elements(held, indices)
        if elements is None:
            return False
        if held.replicas == 1:
            return True
        wanted, inside = elements
        number = np.ravel_multi_index(tuple(wanted), held.shape)
        pairs = np.unique((number * 2048 + self.threads)[inside])
        return pairs.size == np.unique(pairs // 2048).size * held.replicas

    # ---- in the program

    def of_thread(self) -> list[Expr]:
        """Give the first point of a thread: an expression of its number for each axis."""
        values: list[Any] = [0] * len(self.division.axes)
        box = self.division.box
        for each in box.digits[0]:
            if each.dim is not None:
                value = digit_of(self.scene.thread, each, box.threads) * each.weight
                values[each.dim] = value + values[each.dim]
        return [as_expr(each) for each in values]

    def of_turn(self, counters: Sequence[Var]) -> list[Expr]:
        """Give how far from its first point a thread is: an expression of the counters."""
        values: list[Any] = [0] * len(self.division.axes)
        for counter, each in zip(counters, self.turns, strict=True):
            assert each.dim is not None
            values[each.dim] = values[each.dim] + counter * each.weight
        return [as_expr(each) for each in values]

    def refined(self, accesses: Sequence[Access]) -> Points:
        """Split turns such that the registers of accesses are sums of multiples of digits."""
        points = self
        for each in accesses:
            held, home = self.scene.fragments[each.buffer.name], self.scene.homes[each.buffer.name]
            registers = points.places(held, home, each.indices)
            if registers is not None and points._fitted(*registers) is None:
                points = points._split(held, home, each.indices) or points
        return points

    def _split(self, held: Fragment, home: int, indices: Sequence[Expr]) -> Points | None:
        for at, each in enumerate(self.turns):
            for inner in _divisors(each.extent):
                outer = replace(
                    each,
                    extent=each.extent // inner,
                    weight=each.weight * inner,
                    stride=each.stride * inner,
                )
                turns = (
                    *self.turns[:at],
                    outer,
                    replace(each, extent=inner),
                    *self.turns[at + 1 :],
                )
                points = replace(self, turns=turns)
                registers = points.places(held, home, indices)
                if registers is not None and points._fitted(*registers) is not None:
                    return points
        return None


@dataclass(frozen=True)
class Register:
    """A register: a sum of multiples of the turns' digits, and `rest`; or, without, `rest`."""

    factors: tuple[int, ...] | None
    constant: int
    rest: Expr

    def expression(self, counters: Sequence[Var]) -> Expr:
        """Write the register with the counters of the turns."""
        if self.factors is None:
            return self.rest
        total: Any = 0
        for factor, counter in zip(self.factors, counters, strict=True):
            if factor:
                total = total + counter * factor
        return as_expr(total + self.constant) + self.rest


def _follows(division: Division, dim: int) -> bool:
    """Tell whether the last variable of a loop goes up with an axis, one by one."""
    if not division.values:
        return False
    total = linear_of(division.values[-1])
    return total.terms.get(division.axes[dim]) == 1


def _step(grid: Values, there: Any, dim: int) -> int:
    """Find how far neighbours along an axis are apart."""
    if grid.shape[dim] == 1:
        return 0
    one, other = (np.take(grid, range(s, grid.shape[dim] - 1 + s), dim) for s in (0, 1))
    both = np.take(there, range(grid.shape[dim] - 1), dim) & np.take(
        there, range(1, grid.shape[dim]), dim
    )
    gaps = (other - one)[both]
    return int(gaps[0]) if gaps.size else 0


def _divisors(extent: int) -> list[int]:
    return [each for each in range(2, extent) if extent % each == 0]
