"""What is known at the point where a tile operation stands.

May import `base`, `ir`, NumPy and `passes.analysis`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.expressions import Constant, Expr, SpecialRegister, Var, as_constant
from tilewright.ir.statements import For
from tilewright.ir.visit import walk_expressions
from tilewright.passes.analysis.evaluation import Environment, evaluate
from tilewright.passes.analysis.ranges import Ranges
from tilewright.passes.analysis.separation import Separated
from tilewright.passes.analysis.threads import Threads
from tilewright.passes.places import Valued

# How many combinations of loop counters and threads a proof goes through.
_COMBINATIONS = 1 << 20


@dataclass(frozen=True)
class Scene:
    """The threads that may be here, and what is known of variables.

    `bindings` has the values of immutable names, `loops` those that a loop counter runs
    through, `ranges` the facts of the kernel.
    """

    threads: Threads | None
    ranges: Ranges = field(default_factory=Ranges)
    bindings: Mapping[Var, Expr] = field(default_factory=dict[Var, Expr])
    loops: Mapping[Var, range] = field(default_factory=dict[Var, range])

    def bound(self, var: Var, value: Expr) -> Scene:
        """Add an immutable name."""
        return replace(self, bindings={**self.bindings, var: value})

    def counting(self, loop: For) -> Scene:
        """Add the counter of a loop."""
        bounds = [as_constant(each) for each in (loop.start, loop.stop, loop.step)]
        if all(isinstance(each, int) for each in bounds) and bounds[2]:
            start, stop, step = (int(each or 0) for each in bounds)
            return replace(self, loops={**self.loops, loop.var: range(start, stop, step)})
        return self

    def guarded(self, condition: Expr, holds: bool) -> Scene:
        """Keep the threads in which a condition may hold, or may fail to."""
        if self.threads is None:
            return self
        return replace(self, threads=self.threads.guarded(condition, holds, self.bindings))

    def without_threads(self) -> Scene:
        """Keep no thread: what follows a `return` of all."""
        return replace(self, threads=None if self.threads is None else self.threads.nobody())

    # ---- values for proofs

    def symbolic(self) -> Valued:
        """Value starts as unknown numbers of which only a divisor is known."""

        def value(start: Expr) -> Any:
            constant = evaluate(start, Environment(bindings=self.bindings))
            if isinstance(constant, int):
                return constant
            return Separated(start, self.ranges.divisor(start))

        return value

    def enumerated(self, starts: Iterable[Expr], rank: int) -> Valued | None:
        """Value starts as arrays of all the values that they take together.

        The arrays have `rank` trailing axes of extent 1. A start that depends on what has no
        constant range is an unknown number, as if it had nothing to do with the others. `None`
        if there are too many combinations, or no start has a range.
        """
        wanted = list(dict.fromkeys(each for each in starts if not isinstance(each, Constant)))
        known = [each for each in wanted if self._values([each]) is not None]
        found = self._values(known)
        if found is None or not known:
            return None
        table = np.stack([np.asarray(each).ravel() for each in np.broadcast_arrays(*found)])
        rows = np.unique(table, axis=1).reshape(len(known), -1, *(1,) * rank)
        values = dict(zip(known, rows, strict=True))
        unknown = self.symbolic()
        return lambda start: values[start] if start in values else unknown(start)

    def _values(self, wanted: list[Expr]) -> list[Any] | None:
        """Evaluate starts for all counters and threads; `None` if one of them cannot be."""
        environment = self._environment(wanted)
        if environment is None:
            return None
        found: list[Any] = [evaluate(start, environment) for start in wanted]
        return None if any(each is None for each in found) else found

    def _environment(self, wanted: list[Expr]) -> Environment | None:
        """Give every counter an axis of its own, and the threads that may be here one more."""
        loops, uses_threads = self._dependencies(wanted)
        active = None if self.threads is None else np.flatnonzero(self.threads.active)
        if uses_threads and active is None:
            return None
        sizes = [len(self.loops[var]) for var in loops] + [1 if active is None else active.size]
        if prod(sizes) > _COMBINATIONS or prod(sizes) == 0:
            return None
        variables = {
            var: np.asarray(self.loops[var]).reshape(-1, *(1,) * (len(loops) - axis))
            for axis, var in enumerate(loops)
        }
        registers: dict[str, Any] = {}
        if self.threads is not None and uses_threads:
            registers = {
                name: np.broadcast_to(each, self.threads.active.shape)[active]
                for name, each in self.threads.registers.items()
            }
        return Environment(variables, registers, self.bindings)

    def _dependencies(self, wanted: list[Expr]) -> tuple[list[Var], bool]:
        loops: dict[Var, None] = {}
        uses_threads = False
        pending = list(wanted)
        seen: set[Var] = set()
        while pending:
            for each in walk_expressions(pending.pop()):
                uses_threads |= isinstance(each, SpecialRegister)
                if not isinstance(each, Var) or each in seen:
                    continue
                seen.add(each)
                if each in self.loops:
                    loops[each] = None
                elif each in self.bindings:
                    pending.append(self.bindings[each])
        return list(loops), uses_threads
