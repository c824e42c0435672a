"""What is known of a kernel while its tile statements are lowered.

May import `base`, `layout`, `ir` and NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.base.targets import Target
from tilewright.ir.expressions import Expr, SpecialRegister, Var, as_constant, int32
from tilewright.ir.statements import Allocate, Kernel
from tilewright.ir.types import TensorType, Type
from tilewright.ir.visit import root, variables, walk
from tilewright.layout.fragment import Fragment

# The thread's number in its CTA, which fragments are divided by.
THREAD = SpecialRegister("linear_tid")


class Names:
    """Hands out names that a kernel does not have yet."""

    def __init__(self, kernel: Kernel) -> None:
        self.taken = {each.name for each in walk(kernel) if isinstance(each, Var)}
        self.taken |= {each.name for each in variables(kernel)} | {"T", "range", kernel.name}

    def variable(self, name: str, type: Type) -> Var:
        """Make a variable of a name that is not taken: the one wished for, or it with a number."""
        chosen, number = name, 0
        while chosen in self.taken:
            number += 1
            chosen = f"{name}_{number}"
        self.taken.add(chosen)
        return Var(chosen, type)


@dataclass(frozen=True)
class TileScene:
    """A kernel's target, its threads, and where the elements of its fragments are.

    `fragments` has the layout of each fragment, `registers` the local array that holds a
    thread's part of it, both by the buffer's name. `loops` are the counters that are constants'
    ranges, `bindings` the immutable names.
    """

    target: Target
    threads: int
    names: Names
    fragments: Mapping[str, Fragment] = field(default_factory=dict[str, Fragment])
    registers: Mapping[str, Var] = field(default_factory=dict[str, Var])
    bindings: Mapping[Var, Expr] = field(default_factory=dict[Var, Expr])
    loops: Mapping[Var, range] = field(default_factory=dict[Var, range])

    def bound(self, var: Var, value: Expr) -> TileScene:
        """Add an immutable name."""
        return replace(self, bindings={**self.bindings, var: value})

    def fragment(self, tile: Expr) -> Fragment | None:
        """Give the layout of the fragment that a tile is, or is a part of."""
        buffer = root(tile)
        return self.fragments.get(buffer.name) if isinstance(buffer, Var) else None


def thread_count(kernel: Kernel) -> int:
    """Count the threads of a CTA, which a kernel of the tile dialect states."""
    extents = [as_constant(each) for each in kernel.launch.block]
    return int(np.prod([int(each or 1) for each in extents]))


def flat(count: int, type: TensorType) -> TensorType:
    """Give the type of the registers that hold a thread's part of a fragment."""
    from_layout: Any = None
    return replace(type, shape=(int32(count),), layout=from_layout)


def allocations(kernel: Kernel) -> dict[str, Allocate]:
    """List the buffers of a kernel by name."""
    return {each.var.name: each for each in walk(kernel.body) if isinstance(each, Allocate)}
