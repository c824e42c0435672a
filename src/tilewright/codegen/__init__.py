"""Lowered IR to CUDA C++ text and launch facts.

May import `base`, `layout`, `isa`, `ir` and `passes`. The text needs no header and compiles with
NVRTC alone; `-fmad=false` is assumed, since contraction is decided in the IR.

    generate(program, target("sm_80")).text
"""

from tilewright.codegen.generate import (
    KernelFacts,
    Parameter,
    Source,
    generate,
    kernel_symbols,
)

__all__ = ["KernelFacts", "Parameter", "Source", "generate", "kernel_symbols"]
