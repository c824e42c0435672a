"""The tile dialect: every name of `T`, and what it stands for.

May import the modules of this folder.
"""

from __future__ import annotations

from typing import Any

from tilewright.frontend import loops, math, vectors
from tilewright.frontend.simt_table import KINDS, static_assert
from tilewright.frontend.tile import (
    annotations,
    atomics,
    buffers,
    debugging,
    expressions,
    functions,
    im2col,
    launch,
    operations,
    pointers,
    schedulers,
    schedules,
    synchronisation,
    types,
    unsupported,
)
from tilewright.frontend.tile import loops as tile_loops
from tilewright.frontend.values import ScalarKind, Value, hardware_type

_SHORT = {"short": "int16", "long": "int64", "half": "float16", "double": "float64"}

TABLE: dict[str, Any] = {
    **{name: ScalarKind(hardware_type(kind.dtype)) for name, kind in KINDS.items()},
    **{name: KINDS[kind] for name, kind in _SHORT.items()},
    **math.FUNCTIONS,
    **expressions.FUNCTIONS,
    **unsupported.TOP,
    # forms of functions, and what they say of arguments and outputs
    "prim_func": functions.prim_func,
    "macro": functions.macro,
    "inline": functions.macro,
    "meta_class": functions.meta_class,
    "const": functions.const,
    "empty": functions.empty,
    "alloc_global": functions.alloc_global,
    "annotate_pass_configs": functions.annotate_pass_configs,
    "annotate_compile_flags": functions.annotate_compile_flags,
    "func_attr": functions.func_attr,
    "assume": functions.assume,
    "static_assert": static_assert,
    **types.TENSORS,
    "PrimExpr": Value,
    **launch.FUNCTIONS,
    **buffers.FUNCTIONS,
    **tile_loops.FUNCTIONS,
    "grid": loops.grid,
    "PersistentTileScheduler": schedulers.PersistentTileScheduler,
    **operations.FUNCTIONS,
    **im2col.FUNCTIONS,
    **atomics.FUNCTIONS,
    **pointers.FUNCTIONS,
    **synchronisation.FUNCTIONS,
    **annotations.FUNCTIONS,
    **debugging.FUNCTIONS,
    **schedules.FUNCTIONS,
    "Ramp": vectors.FUNCTIONS["ramp"],
    "Broadcast": vectors.FUNCTIONS["broadcast"],
    "Shuffle": vectors.FUNCTIONS["shuffle"],
}
