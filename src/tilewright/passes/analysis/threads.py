"""Which threads of a block may be at a point of a kernel.

May import `base`, `ir`, NumPy and `analysis.evaluation`. All threads of a block are enumerated:
a guard that depends on thread ids only is evaluated for each of them, one that depends on
anything else lets all pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.expressions import Expr, Var, as_constant
from tilewright.ir.statements import Kernel
from tilewright.passes.analysis.evaluation import Bools, Environment, Values, possible

WARP = 32
WARPS_PER_WARPGROUP = 4


@dataclass(frozen=True)
class Threads:
    """The threads of a block, by their linear number: the ids of each, and which may be here."""

    registers: Mapping[str, Any]
    active: Bools

    @property
    def count(self) -> int:
        """Count the threads of the block."""
        return self.active.size

    def guarded(self, condition: Expr, holds: bool, bindings: Mapping[Var, Expr]) -> Threads:
        """Keep the threads in which a condition may hold, or may fail to."""
        found = possible(condition, Environment(registers=self.registers, bindings=bindings))
        passing = found.true if holds else found.false
        return Threads(self.registers, self.active & np.broadcast_to(passing, self.active.shape))

    def joined(self, other: Threads) -> Threads:
        """Keep the threads of either set."""
        return Threads(self.registers, self.active | other.active)

    def nobody(self) -> Threads:
        """Keep no thread."""
        return Threads(self.registers, np.zeros_like(self.active))

    def lanes_by_warp(self) -> Bools:
        """Give, as (warps, 32), which lanes may be active; lanes beyond the block are not."""
        warps = -(-self.count // WARP)
        lanes = np.zeros(warps * WARP, dtype=np.bool_)
        lanes[: self.count] = self.active
        return lanes.reshape(warps, WARP)


def block_threads(kernel: Kernel) -> Threads | None:
    """Enumerate the threads of a kernel's block; `None` if its shape is not constant."""
    shape = [as_constant(extent) for extent in kernel.launch.block]
    if not all(isinstance(extent, int) and extent > 0 for extent in shape):
        return None
    x, y, z = (int(extent or 1) for extent in shape)
    linear = np.arange(x * y * z, dtype=np.int64)
    return Threads(_registers(linear, (x, y, z)), np.ones(linear.size, dtype=np.bool_))


def _registers(linear: Values, block: tuple[int, int, int]) -> dict[str, Any]:
    x, y, z = block
    warpgroup = WARP * WARPS_PER_WARPGROUP
    return {
        "tid.x": linear % x,
        "tid.y": linear // x % y,
        "tid.z": linear // (x * y),
        "ntid.x": x,
        "ntid.y": y,
        "ntid.z": z,
        "linear_tid": linear,
        "laneid": linear % WARP,
        "warp_id": linear // WARP,
        "warpgroup_id": linear // warpgroup,
        "warp_in_warpgroup": linear // WARP % WARPS_PER_WARPGROUP,
        "thread_in_warpgroup": linear % warpgroup,
    }
