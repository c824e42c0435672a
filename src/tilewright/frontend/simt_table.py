"""The simt dialect: every name of `T`, and what it stands for.

May import the modules of this folder. A call in a kernel is a call of what stands here.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import ALIASES, SCALARS, VECTOR_LANES, dtype
from tilewright.base.errors import FrontendError
from tilewright.frontend import (
    annotations,
    debugging,
    entry,
    functions,
    loops,
    math,
    older_frames,
    ptx,
    storage,
    tensor_maps,
    unsupported,
    vectors,
)
from tilewright.frontend.builder import here
from tilewright.frontend.cuda import CUDA
from tilewright.frontend.markers import Constexpr, Let, MetaValue
from tilewright.frontend.values import ScalarKind, Value
from tilewright.ir.expressions import Constant


def meta_var(value: Any) -> MetaValue:
    """Keep a value as it is when it is assigned: no binding is made in the kernel."""
    return MetaValue(value)


def static_assert(condition: Any, message: str = "") -> None:
    """Check a condition that is known when the kernel is compiled.

    Raises `FrontendError` (`static-assertion`) if it does not hold.
    """
    known = condition.expr.value if _is_constant(condition) else bool(condition)
    if not known:
        raise FrontendError(
            message or "the static assertion does not hold",
            code="static-assertion",
            location=here(),
        )


def _is_constant(value: Any) -> bool:
    return isinstance(value, Value) and isinstance(value.expr, Constant)


def optional(kind: Any) -> Any:
    """Describe a parameter that may be specialised away."""
    return annotations.Optional(kind)


KINDS: dict[str, ScalarKind] = {
    **{name: ScalarKind(kind) for name, kind in SCALARS.items()},
    **{
        f"{name}x{lanes}": ScalarKind(kind.vector(lanes))
        for name, kind in SCALARS.items()
        for lanes in VECTOR_LANES
    },
    **{alias: ScalarKind(dtype(name)) for alias, name in ALIASES.items()},
}

TABLE: dict[str, Any] = {
    **KINDS,
    **math.FUNCTIONS,
    **vectors.FUNCTIONS,
    **unsupported.TOP,
    **older_frames.FUNCTIONS,
    # forms of functions
    "function": functions.function,
    "prim_func": functions.function,
    "jit": functions.jit,
    "inline": functions.inline,
    "macro": functions.macro,
    "meta_class": functions.meta_class,
    "meta_var": meta_var,
    "constexpr": Constexpr(),
    "let": Let(),
    "static_assert": static_assert,
    "breakpoint": debugging.breakpoint,
    # parameters
    "Tensor": annotations.tensor,
    "Ptr": annotations.pointer,
    "ptr": annotations.pointer(),
    "handle": annotations.pointer(),
    "Tuple": annotations.tuple_of,
    "TensorMap": annotations.TensorMapKind(),
    "Optional": optional,
    "dynamic": annotations.dynamic,
    "Var": annotations.dynamic,
    # entry
    "device_entry": entry.device_entry,
    "func_attr": entry.func_attr,
    "kernel_params": entry.kernel_params,
    "cuda": CUDA,
    "ptx": ptx.Instructions(),
    # loops
    "serial": loops.serial,
    "unroll": loops.unroll,
    "vectorized": loops.vectorized,
    "parallel": loops.parallel,
    "grid": loops.grid,
    # storage
    "alloc_tensor": storage.alloc_tensor,
    "alloc_shared": storage.alloc_shared,
    "alloc_local": storage.alloc_local,
    "smem": storage.alloc_shared,
    "tmem": storage.tmem,
    "decl_tensor": storage.decl_tensor,
    "decl_scalar": storage.decl_scalar,
    "alloc_scalar": storage.alloc_scalar,
    "shared_scalar": storage.shared_scalar,
    "local_scalar": storage.local_scalar,
    "address_of": storage.address_of,
    "stack_alloca": tensor_maps.stack_alloca,
    # what lowering leaves
    "shared_base": storage.shared_base,
    "offset": storage.offset,
    "read": storage.read,
    "write": storage.write,
    "special_register": storage.special_register,
}
