"""A kernel compiled for the simulator: the code, and what reports need to know of it.

May import `base`, `ir` and `sim.engine`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.targets import Target
from tilewright.ir.statements import Kernel
from tilewright.sim.engine.jit import Code
from tilewright.sim.engine.sites import Sites
from tilewright.sim.options import Options


@dataclass(frozen=True)
class CompiledKernel:
    """Native code of a kernel; `path_words` and `frame_bytes` are what its paths and warps need.

    Of a path's words, `levels` are lanes that meet at the end of constructs. `memories` names the
    memory of a CTA that only some kernels need, as the context does.
    """

    kernel: Kernel
    target: Target
    options: Options
    sites: Sites
    code: Code
    path_words: int
    levels: int
    frame_bytes: int
    memories: frozenset[str] = frozenset()
