"""GPU kernels in Python, down to PTX: checked, simulated on the CPU, compiled to CUDA.

from tilewright import simt as T
import tilewright

ex = tilewright.compile(kernel)
ex(a, b, out)
"""

from tilewright import compat
from tilewright.base.errors import (
    CheckError,
    CompilerBug,
    DeadlockError,
    FrontendError,
    LaunchError,
    MemoryFault,
    SimulationError,
    StepLimit,
    TargetError,
    TileContractError,
    TilewrightError,
    VerifyError,
)
from tilewright.driver import Executable, compile
from tilewright.isa.tensor_map import TensorMap
from tilewright.view.notebook import show_layouts

show_layouts()

__version__ = "0.1.0"

__all__ = [
    "CheckError",
    "CompilerBug",
    "DeadlockError",
    "Executable",
    "FrontendError",
    "LaunchError",
    "MemoryFault",
    "SimulationError",
    "StepLimit",
    "TargetError",
    "TensorMap",
    "TileContractError",
    "TilewrightError",
    "VerifyError",
    "compat",
    "compile",
]
