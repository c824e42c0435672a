"""The tile dialect: every name of `T`, and what it stands for.

May import the modules of this folder.
"""

from __future__ import annotations

from typing import Any

from tilewright.frontend import annotations, functions, loops, math
from tilewright.frontend.simt_table import KINDS
from tilewright.frontend.tile import buffers, launch, operations
from tilewright.frontend.tile import loops as tile_loops
from tilewright.ir.tile import REDUCTIONS

TABLE: dict[str, Any] = {
    **KINDS,
    **math.FUNCTIONS,
    "prim_func": functions.function,
    "macro": functions.macro,
    "Tensor": annotations.tensor,
    "Buffer": annotations.tensor,
    "dynamic": annotations.dynamic,
    "symbolic": annotations.dynamic,
    "ptr": annotations.pointer,
    # the launch
    "Kernel": launch.kernel,
    "use_swizzle": launch.use_swizzle,
    "get_thread_binding": launch.thread_binding,
    "get_block_binding": launch.block_binding,
    # buffers
    "alloc_shared": buffers.alloc_shared,
    "alloc_fragment": buffers.alloc_fragment,
    "alloc_local": buffers.alloc_local,
    "alloc_tmem": buffers.alloc_tmem,
    "alloc_var": buffers.alloc_var,
    "alloc_barrier": buffers.alloc_barrier,
    # loops
    "Parallel": tile_loops.parallel,
    "Pipelined": tile_loops.pipelined,
    **{name: getattr(loops, name) for name in ("serial", "unroll", "vectorized", "grid")},
    **{name.capitalize(): getattr(loops, name) for name in ("serial", "unroll", "vectorized")},
    # operations
    "copy": operations.copy,
    "fill": operations.fill,
    "clear": operations.clear,
    "gemm": operations.gemm,
    "GemmWarpPolicy": operations.GemmWarpPolicy,
    **{f"reduce_{op}": operations.reduction(op) for op in REDUCTIONS},
}
