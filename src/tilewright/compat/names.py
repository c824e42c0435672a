"""The import names of other packages that this one answers to, and where each name is here.

Imports nothing: the table is text, and is resolved when a program imports a name.

A module's entries are "module:attribute", or "module" for a module itself.
"""

from __future__ import annotations

_AXES = (
    *("bx", "by", "bz", "cbx", "cby", "cbz", "tx", "warpid", "wgid", "laneid"),
    *("tid_in_wg", "wid_in_wg", "m", "TCol", "TLane"),
)
_LAYOUTS = ("S", "R", "TileLayout", "ComposeLayout", "Iter")
_FACTORIES = (
    *("SwizzleMode", "mma_shared_layout", "mma_atom_layout", "mma_atom_shape"),
    *("tmem_datapath_layout", "tmem_mma_operand_layout"),
)


def _from_layout(*names: str) -> dict[str, str]:
    return {name: f"tilewright.layout:{name}" for name in names}


def _from_utilities(*names: str) -> dict[str, str]:
    return {name: f"tilewright.jit.utilities:{name}" for name in names}


_JIT = {
    "jit": "tilewright.jit.functions:jit",
    **{
        name: f"tilewright.jit.kernels:{name}"
        for name in ("compile", "par_compile", "lower", "JITKernel", "enable_cache")
    },
    "disable_cache": "tilewright.jit.kernels:disable_cache",
}
_TUNING = {
    name: f"tilewright.jit.autotuner:{name}"
    for name in ("autotune", "AutoTuner", "set_autotune_inputs", "get_autotune_inputs")
}
_EXPRESSIONS = (
    *("reinterpret", "if_then_else", "Cast", "Select", "max", "min", "abs", "exp", "log", "sqrt"),
    *("floordiv", "floormod", "truncdiv", "truncmod", "bitwise_and", "bitwise_or", "bitwise_xor"),
)
_LAYOUT_FUNCTIONS = {
    "Layout": "tilewright.frontend.tile.annotations:layout",
    "Fragment": "tilewright.frontend.tile.annotations:fragment",
    "make_swizzled_layout": "tilewright.frontend.tile.annotations:swizzled_layout",
}

_CARVER = "tilewright.jit.utilities:carver"
_TEMPLATES = ("MatmulTemplate", "GEMVTemplate", "ConvTemplate", "FlashAttentionTemplate")

# import name: the names in it
MODULES: dict[str, dict[str, str]] = {
    "tvm_tirx": {"compile": "tilewright.driver:compile"},
    "tvm_tirx.script": {"tirx": "tilewright.simt"},
    "tvm_tirx.backend": {},
    "tvm_tirx.backend.cuda": {},
    "tvm_tirx.backend.cuda.axis": _from_layout(*_AXES),
    "tvm_tirx.backend.cuda.layout": _from_layout(*_FACTORIES),
    "tvm_tirx.backend.cuda.lang": {},
    "tvm_tirx.tirx": {"compile": "tilewright.driver:compile"},
    "tvm_tirx.tirx.layout": _from_layout(*_LAYOUTS, *_AXES),
    "tvm_tirx.target": {"Target": "tilewright.compat.requests:Target"},
    "tvm_tirx.testing": {"assert_allclose": "numpy.testing:assert_allclose"},
    "tilelang": {
        **_JIT,
        **_TUNING,
        "PassConfigKey": "tilewright.jit.configs:PassConfigKey",
        "TensorSupplyType": "tilewright.jit.profiler:TensorSupplyType",
        "Profiler": "tilewright.jit.profiler:Profiler",
        **_from_utilities("cdiv", "next_power_of_2"),
        **_LAYOUT_FUNCTIONS,
        "DataType": "tilewright.frontend.tile.types:dtype",
    },
    "tilelang.jit": _JIT,
    "tilelang.jit.kernel": {"JITKernel": "tilewright.jit.kernels:JITKernel"},
    "tilelang.autotuner": _TUNING,
    "tilelang.autotuner.tuner": _TUNING,
    "tilelang.profiler": {
        "do_bench": "tilewright.jit.profiler:do_bench",
        "Profiler": "tilewright.jit.profiler:Profiler",
        "TensorSupplyType": "tilewright.jit.profiler:TensorSupplyType",
    },
    "tilelang.profiler.bench": {"do_bench": "tilewright.jit.profiler:do_bench"},
    "tilelang.engine": {"lower": "tilewright.jit.kernels:lower"},
    "tilelang.env": {
        "enable_cache": "tilewright.jit.kernels:enable_cache",
        "disable_cache": "tilewright.jit.kernels:disable_cache",
    },
    "tilelang.transform": {
        "PassConfigKey": "tilewright.jit.configs:PassConfigKey",
        **_from_utilities("simplify_prim_func"),
    },
    "tilelang.layout": _LAYOUT_FUNCTIONS,
    "tilelang.math": _from_utilities("cdiv", "next_power_of_2"),
    "tilelang.utils": {
        "TensorSupplyType": "tilewright.jit.profiler:TensorSupplyType",
        **_from_utilities("determine_fp8_type", "determine_torch_fp8_type"),
    },
    "tilelang.utils.tensor": {
        "torch_assert_close": "tilewright.jit.profiler:assert_close",
        "TensorSupplyType": "tilewright.jit.profiler:TensorSupplyType",
    },
    "tilelang.utils.target": {"determine_target": "tilewright.compat.requests:determine_target"},
    "tilelang.testing": {
        "torch_assert_close": "tilewright.jit.profiler:assert_close",
        **_from_utilities("set_random_seed", "main", "requires_cuda"),
        **_from_utilities("requires_cuda_compute_version", "requires_cuda_compute_version_ge"),
        **_from_utilities("requires_cuda_compute_version_eq"),
    },
    "tilelang.contrib": {},
    "tilelang.contrib.nvcc": _from_utilities("get_target_compute_version"),
    "tilelang.carver": {},
    "tilelang.carver.arch": dict.fromkeys(("CUDA", "CDNA"), _CARVER),
    "tilelang.carver.template": dict.fromkeys(_TEMPLATES, _CARVER),
    "tilelang.carver.roller": {},
    "tilelang.carver.roller.rasterization": {"NoRasterization": _CARVER},
    "tilelang.carver.arch.driver": _from_utilities("get_num_sms", "get_shared_memory_per_block"),
    "tilelang.cuda": {},
    "tilelang.cuda.intrinsics": {
        "make_mma_swizzle_layout": "tilewright.frontend.tile.annotations:swizzled_layout",
    },
    "tilelang.intrinsics": {
        "make_mma_swizzle_layout": "tilewright.frontend.tile.annotations:swizzled_layout",
    },
    "tilelang.language.fp8": _from_utilities("determine_fp8_type", "determine_torch_fp8_type"),
    "tvm": {
        "DataType": "tilewright.frontend.tile.types:dtype",
    },
    "tvm.tirx": {
        "PrimExpr": "tilewright.frontend.values:Value",
        "const": "tilewright.frontend.tile.expressions:constant_of",
        **{name: f"tilewright.tile:{name}" for name in _EXPRESSIONS},
    },
    "tvm.target": {"Target": "tilewright.compat.requests:Target"},
}
# import name: the module that it stands for as a whole
ALIASES: dict[str, str] = {
    "tvm_tirx.script.tirx": "tilewright.simt",
    "tilelang.language": "tilewright.tile",
    "tilelang.tvm": "tvm",
}
PACKAGES: tuple[str, ...] = ("tvm_tirx", "tilelang", "tvm")


def submodules(name: str) -> tuple[str, ...]:
    """List the modules directly below a module, by their last names."""
    below = [each for each in (*MODULES, *ALIASES) if each.rpartition(".")[0] == name]
    return tuple(each.rpartition(".")[2] for each in below)
