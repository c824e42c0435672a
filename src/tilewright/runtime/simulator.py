"""Launches on the simulator: native code per kernel, made once; memory held to a limit.

May import `base`, `ir`, `sim` and the rest of `runtime`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tilewright import sim
from tilewright.base.errors import LaunchError
from tilewright.base.store import NOWHERE, Store
from tilewright.base.targets import Target
from tilewright.ir.statements import Kernel, Program
from tilewright.runtime.arguments import Memory
from tilewright.runtime.host import Extents, Values, launch_shape
from tilewright.runtime.once import Once
from tilewright.runtime.progress import shown


@dataclass(frozen=True)
class Simulator:
    """The kernels of a lowered program, ready to run here as on a target.

    `memory_limit` is in bytes and bounds what the simulated chip takes, arguments excluded;
    `None` stands for three quarters of the machine's memory. Native code is found in `store`, or
    kept there.
    """

    program: Program
    target: Target
    options: sim.Options
    memory_limit: int | None = None
    store: Store = NOWHERE
    _built: dict[str, Once[sim.SimulatedKernel]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        built = {kernel.name: Once(partial(self._build, kernel)) for kernel in self.program.kernels}
        object.__setattr__(self, "_built", built)

    def _build(self, kernel: Kernel) -> sim.SimulatedKernel:
        with shown(f"{kernel.name} is compiled for the simulator") as report:
            return sim.build(kernel, self.target, self.options, self.store, report)

    def build(self) -> None:
        """Make the native code of every kernel now."""
        for kernel in self._built.values():
            kernel()

    def launch(
        self,
        kernel: Kernel,
        values: Values,
        memories: Sequence[Memory],
        output: Callable[[str], None],
    ) -> None:
        """Run one kernel on the values of its parameters.

        `output` is given what the kernel prints. Raises `LaunchError` for a shape or a need of
        memory that cannot be, `SimulationError` for what goes wrong in the kernel.
        """
        shape = launch_shape(kernel, values, self.target)
        simulated = self._built[kernel.name]()
        self._check_memory(simulated, shape.grid)
        simulated.launch(
            [values[var.name] for var in (*kernel.params, *kernel.symbols)],
            [sim.Region(m.name, m.address, m.size, m.writable) for m in memories],
            shape.grid,
            output,
            block=shape.block,
            cluster=shape.cluster,
            shared_bytes=kernel.shared_bytes + shape.dynamic_shared_bytes,
        )

    def _check_memory(self, simulated: sim.SimulatedKernel, grid: Extents) -> None:
        needed = sim.memory_needed(simulated, grid)
        limit = self.memory_limit if self.memory_limit is not None else _machine_memory() * 3 // 4
        if needed > limit:
            launch = simulated.kernel.launch
            raise LaunchError(
                f"a launch of {simulated.kernel.name} would take more memory than its limit",
                code="launch-memory",
                location=launch.location or simulated.kernel.location,
                expected=f"at most {limit} bytes",
                found=f"{needed} bytes",
                hint="compile with memory_limit=… in bytes, or launch a smaller grid",
            )


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
