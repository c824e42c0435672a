"""The PTX instructions, one declaration each, in files that follow the chapters of the PTX ISA.

May import `base`. Importing this package enters every declaration in the table
(`declaration.families`).
"""

from tilewright.isa import (
    async_copy,
    atomics,
    barriers,
    declaration,
    fences,
    machine,
    matrix_moves,
    mbarrier,
    memory,
    warp_matrix,
    warp_ops,
)

__all__ = [
    "async_copy",
    "atomics",
    "barriers",
    "declaration",
    "fences",
    "machine",
    "matrix_moves",
    "mbarrier",
    "memory",
    "warp_matrix",
    "warp_ops",
]
