"""Functions of the tile dialect that are compiled when they are called, measured and tuned.

What `import tilelang` gives beside the dialect is here; the dialect is `tilewright.tile`.

    from tilewright import tile as T
    from tilewright.jit import autotune, jit
"""

from __future__ import annotations

from tilewright.jit.autotuner import (
    AutoTuner,
    autotune,
    get_autotune_inputs,
    set_autotune_inputs,
)
from tilewright.jit.configs import PassConfigKey
from tilewright.jit.functions import JITFunction, jit
from tilewright.jit.kernels import (
    JITKernel,
    compile,
    disable_cache,
    enable_cache,
    lower,
    par_compile,
)
from tilewright.jit.profiler import Profiler, TensorSupplyType, do_bench
from tilewright.jit.utilities import cdiv, next_power_of_2

__all__ = [
    "AutoTuner",
    "JITFunction",
    "JITKernel",
    "PassConfigKey",
    "Profiler",
    "TensorSupplyType",
    "autotune",
    "cdiv",
    "compile",
    "disable_cache",
    "do_bench",
    "enable_cache",
    "get_autotune_inputs",
    "jit",
    "lower",
    "next_power_of_2",
    "par_compile",
    "set_autotune_inputs",
]
