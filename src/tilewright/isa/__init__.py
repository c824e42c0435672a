"""The PTX instructions, one declaration each, in files that follow the chapters of the PTX ISA.

May import `base`. Importing this package enters every declaration in the table
(`declaration.families`).
"""

from tilewright.isa import (
    approximations,
    arithmetic,
    async_copy,
    atomics,
    barriers,
    clusters,
    conversion,
    declaration,
    descriptors,
    fences,
    grids,
    logic,
    machine,
    matrix_moves,
    mbarrier,
    memory,
    tensor_allocation,
    tensor_copy,
    tensor_core,
    tensor_map,
    tensor_memory,
    warp_matrix,
    warp_ops,
)

__all__ = [
    "approximations",
    "arithmetic",
    "async_copy",
    "atomics",
    "barriers",
    "clusters",
    "conversion",
    "declaration",
    "descriptors",
    "fences",
    "grids",
    "logic",
    "machine",
    "matrix_moves",
    "mbarrier",
    "memory",
    "tensor_allocation",
    "tensor_copy",
    "tensor_core",
    "tensor_map",
    "tensor_memory",
    "warp_matrix",
    "warp_ops",
]
