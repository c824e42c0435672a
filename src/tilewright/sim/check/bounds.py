"""Which buffer of shared memory an address is computed from, and where that ends.

May import `ir`, `passes.places` and `sim.engine.context`. A buffer reaches to the next one that
does not lie over it.
"""

from __future__ import annotations

from collections import Counter

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Offset, Read, Var
from tilewright.ir.operands import paired_operands
from tilewright.ir.statements import Bind, Instruct, Kernel, Write
from tilewright.ir.visit import walk_statements
from tilewright.passes.places import storage_bytes
from tilewright.sim.engine.context import SHARED_START

Span = tuple[int, int]
ANYWHERE: Span = (0, (1 << 32) - 1)


class Buffers:
    """The shared buffers of a kernel, and which of them it accesses where."""

    def __init__(self, kernel: Kernel) -> None:
        binds = [each for each in walk_statements(kernel.body) if isinstance(each, Bind)]
        # What has a name that is given twice is not told from its namesake.
        once = {name for name, count in Counter(b.var.name for b in binds).items() if count == 1}
        self._values = {each.var.name: each.value for each in binds if each.var.name in once}
        self._spans: dict[str, Span] = {}
        starts = sorted({start for _, (start, _) in kernel.buffers})
        for name, (start, kind) in kernel.buffers:
            own = start + storage_bytes(kind)
            # What lies beyond the last one is refused by the engine.
            end = next((each for each in starts if each >= own), ANYWHERE[1] - SHARED_START)
            if name in once:
                self._spans[name] = (start + SHARED_START, end - start)

    def span(self, node: Instruct | Write | Read) -> Span:
        """Give the span that a read, a write, or the first address of an instruction is to keep."""
        if isinstance(node, Instruct):
            for declared, operand in paired_operands(node.form, node.operands):
                if declared.kind == "address" and declared.space is Space.SHARED:
                    return self._of(operand)
            return ANYWHERE
        return self._of(node.pointer)

    def _of(self, pointer: Expr) -> Span:
        while True:
            match pointer:
                case Offset():
                    pointer = pointer.pointer
                case Var() if pointer.name in self._spans:
                    return self._spans[pointer.name]
                case Var() if pointer.name in self._values:
                    pointer = self._values[pointer.name]
                case _:
                    return ANYWHERE
