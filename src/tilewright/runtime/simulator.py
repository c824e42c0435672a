"""Launches on the simulator: native code per kernel, made once; memory held to a limit.

May import `base`, `ir`, `sim` and the rest of `runtime`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tilewright import sim
from tilewright.base import lazy
from tilewright.base.errors import CheckError, LaunchError, SimulationError
from tilewright.base.findings import Finding
from tilewright.base.store import NOWHERE, Store
from tilewright.base.targets import Target
from tilewright.ir.statements import Kernel, Program
from tilewright.ir.types import TensorType
from tilewright.runtime.arguments import Memory
from tilewright.runtime.host import Extents, Values, evaluate, launch_shape
from tilewright.runtime.once import Once
from tilewright.runtime.progress import polled, shown

if TYPE_CHECKING:
    from tilewright.sim.check import findings as check_findings
    from tilewright.sim.check import memory as check_memory
    from tilewright.sim.trace.recorder import Recorder
else:
    check_findings = lazy.module("tilewright.sim.check.findings")
    check_memory = lazy.module("tilewright.sim.check.memory")


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

    def instrumented(self) -> Simulator:
        """Give the same kernels with the checker in their code."""
        options = replace(self.options, check=True)
        return Simulator(self.program, self.target, options, self.memory_limit, self.store)

    def traced(self) -> Simulator:
        """Give the same kernels with code that writes down what they do."""
        options = replace(self.options, trace=True)
        return Simulator(self.program, self.target, options, self.memory_limit, self.store)

    def by(self, schedule: str, seed: int) -> Simulator:
        """Give the same kernels, by another schedule; they share their native code."""
        options = replace(self.options, schedule=schedule, seed=seed)
        other = Simulator(self.program, self.target, options, self.memory_limit, self.store)

        def shared(name: str) -> sim.SimulatedKernel:
            return replace(self._built[name](), options=options)

        other._built.update({name: Once(partial(shared, name)) for name in self._built})
        return other

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
        recorder: Recorder | None = None,
    ) -> tuple[Finding, ...]:
        """Run one kernel on the values of its parameters; give what the checker has found.

        `output` is given what the kernel prints, `recorder` what happens in it, if it was compiled
        for that. Raises `LaunchError` for a shape or a need of
        memory that cannot be, `SimulationError` for what goes wrong in the kernel, or with the
        option `check` a `CheckError` because of it.
        """
        shape = launch_shape(kernel, values, self.target)
        simulated = self._built[kernel.name]()
        self._check_memory(simulated, shape.grid)
        regions = [sim.Region(m.name, m.address, m.size, m.writable) for m in memories]
        try:
            with polled(f"{kernel.name} is simulated", "CTAs") as line:
                raw = simulated.launch(
                    [values[var.name] for var in (*kernel.params, *kernel.symbols)],
                    regions,
                    shape.grid,
                    line.before(output),
                    block=shape.block,
                    cluster=shape.cluster,
                    shared_bytes=kernel.shared_bytes + shape.dynamic_shared_bytes,
                    recorder=recorder,
                    report=line.report,
                )
        except SimulationError as error:
            if not self.options.check:
                raise
            launched = check_memory.Launched(simulated, shape.grid, regions, self._tensors(values))
            raise CheckError(check_findings.ended(error, launched), kernel.name) from error
        if not raw:
            return ()
        launched = check_memory.Launched(simulated, shape.grid, regions, self._tensors(values))
        return check_findings.findings(raw, launched)

    def _tensors(self, values: Values) -> dict[str, tuple[TensorType, tuple[int, ...]]]:
        """Give the types and shapes of the arguments that are tensors."""
        return {
            param.name: (
                param.type,
                tuple(int(evaluate(extent, values)) for extent in param.type.shape),
            )
            for param in self.program.params
            if isinstance(param.type, TensorType)
        }

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
