"""Where the points of a parallel loop, and the elements of fragments at them, are.

May import `base`, `layout`, `ir`, NumPy, `passes.analysis` and `passes.tile.scene`. What an index
means for registers is proven over all threads and registers, by enumeration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.ir.expressions import Expr, Var, as_expr, int32
from tilewright.ir.rewrite import substitute
from tilewright.layout.fragment import Digit, Fragment, digit_of
from tilewright.passes.analysis.evaluation import Bools, Environment, Values, evaluate
from tilewright.passes.tile.scene import THREAD, TileScene


@dataclass(frozen=True)
class Points:
    """The points of a box, divided among threads: `vars` count along the axes of `fragment`.

    `counters` are the variables of the loops over the digits of a thread's own number of points.
    """

    vars: tuple[Var, ...]
    fragment: Fragment
    counters: tuple[Var, ...]

    @property
    def turns(self) -> tuple[Digit, ...]:
        """List the loops of each thread, outermost first."""
        return self.fragment.digits[1]

    def of_thread(self) -> list[Expr]:
        """Give the first point of a thread: an expression of its number for each axis."""
        values: list[Any] = [0] * len(self.vars)
        for each in self.fragment.digits[0]:
            if each.dim is not None:
                value = digit_of(THREAD, each, self.fragment.threads) * each.weight
                values[each.dim] = value + values[each.dim]
        return [as_expr(each) for each in values]

    def of_turn(self) -> list[Expr]:
        """Give how far from its first point a thread is: an expression of the counters."""
        values: list[Any] = [0] * len(self.vars)
        for counter, each in zip(self.counters, self.turns, strict=True):
            assert each.dim is not None
            values[each.dim] = values[each.dim] + counter * each.weight
        return [as_expr(each) for each in values]

    # ---- all of them at once, as arrays over (thread, register)

    @cached_property
    def all(self) -> tuple[Values, ...]:
        """Give the coordinates of all points."""
        threads = np.arange(self.fragment.threads, dtype=np.int64)[:, None]
        registers = np.arange(self.fragment.registers, dtype=np.int64)[None, :]
        found = self.fragment.coordinates(threads, registers)
        shape = (threads.size, registers.size)
        return tuple(np.broadcast_to(np.asarray(each), shape) for each in found)

    @cached_property
    def inside(self) -> Bools:
        """Tell the points that are in the box."""
        kept = np.ones((self.fragment.threads, self.fragment.registers), dtype=np.bool_)
        for values, extent in zip(self.all, self.fragment.shape, strict=True):
            kept &= values < extent
        return kept

    def register(
        self, held: Fragment, indices: Sequence[Expr], scene: TileScene
    ) -> Expr | None:
        """Say in which register a thread has an element, at every point; `None` if it has not.

        The result is an expression of the counters.
        """
        if not self.holds(held, indices, scene):
            return None
        # No thread's register differs from that of thread 0, whose first point is 0.
        turn = dict(zip((each.name for each in self.vars), self.of_turn(), strict=True))
        _, register = held.place([substitute(each, turn) for each in indices])
        return as_expr(register)

    def holds(self, held: Fragment, indices: Sequence[Expr], scene: TileScene) -> bool:
        """Tell whether each thread has the element at its points, in the same register as others."""
        environment = Environment(dict(zip(self.vars, self.all, strict=True)), {}, scene.bindings)
        found = [evaluate(each, environment) for each in indices]
        if any(each is None for each in found):
            return False
        wanted = np.broadcast_arrays(*found, self.inside)[:-1]
        for values, extent in zip(wanted, held.shape, strict=True):
            if np.any(self.inside & ((values < 0) | (values >= extent))):
                return False
        wanted = [np.where(self.inside, values, 0) for values in wanted]
        _, registers = held.place(wanted)
        registers = np.broadcast_to(np.asarray(registers), self.inside.shape)
        if self.fragment.threads > held.threads:
            return False
        threads = np.arange(self.fragment.threads, dtype=np.int64)[:, None]
        there = held.coordinates(threads, registers)
        for values, found_there in zip(wanted, there, strict=True):
            if np.any(self.inside & (values != found_there)):
                return False
        first = registers[0]
        return not np.any(self.inside & (registers != first))


def environment_of(values: Mapping[Var, Any], scene: TileScene) -> Environment:
    """Give an environment in which some variables have values."""
    return Environment(dict(values), {}, scene.bindings)


ZERO = int32(0)
