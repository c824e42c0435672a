"""The simulator: lowered kernels as native code of the CPU, checked at every access.

May import everything up to `passes`.

    simulated = build(kernel, target("sm_80"), Options())
    simulated.launch(arguments, regions, grid=(1, 1, 1), output=print)
"""

from tilewright.sim.launch import SimulatedKernel, build, memory_needed
from tilewright.sim.options import Options, Region

__all__ = ["Options", "Region", "SimulatedKernel", "build", "memory_needed"]
