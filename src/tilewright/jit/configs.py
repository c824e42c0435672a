"""Configurations that programs of the tile dialect ask of their compiler.

May import `base`. One acts: see `kernels.compile`. What would add passes to another compiler is
refused. All others cannot change a result: they are hints, which docs/tiles.md lists.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from typing import Any

from tilewright.base.errors import LaunchError

_KEYS = (
    *("tl.Simplify", "tl.disable_buffer_init_check", "tl.disable_data_race_check"),
    *("tl.disable_prelower_semantic_check", "tl.disable_warp_specialized"),
    *("tl.enable_auto_schedule", "tl.enable_auto_warp_specialization", "tl.enable_fast_math"),
    *("tl.disable_fast_math", "tl.ptxas_register_usage_level", "tl.enable_ptxas_verbose_output"),
    *("tl.device_compile_flags", "tl.emit_line_directives", "tl.config_index_bitwidth"),
    *("tl.enable_reducer_plan_verbose", "tl.reducer_force_baseline", "tl.layout_cost_model"),
    *("tl.disable_tma_lower", "tl.disable_safe_memory_legalize", "tl.disable_vectorize_256"),
    *("tl.enable_fp32x2_reduction", "tl.enable_async_copy", "tl.enable_lower_ldgstg"),
    *("tl.enable_lower_ldgstg_predicated", "tl.enable_vectorize_planner_verbose"),
    *("tl.disable_wgmma", "tl.debug_merge_shared_memory_allocations"),
    *("tl.enable_aggressive_shared_memory_merge", "tl.disable_shared_memory_reuse"),
    *("tl.disable_shuffle_elect", "tl.disable_loop_unswitching"),
    *("tl.loop_unswitching_allow_non_trivial_else", "tl.disable_thread_storage_sync"),
    *("tl.if_stmt_binding_inline_replayable_binds", "tl.force_let_inline"),
    *("tl.ast_print_enable", "tl.layout_visualization_enable"),
    *("tl.layout_visualization_formats", "tl.storage_rewrite_detect_inplace"),
    *("tir.enable_equiv_terms_in_cse_tir", "tirx.disable_cse_tir", "tirx.Simplify"),
    *("tirx.disable_storage_rewrite", "tirx.disable_vectorize", "tirx.use_async_copy"),
    *("tirx.enable_debug", "tirx.merge_static_smem", "tirx.add_lower_pass", "tirx.noalias"),
    *("tir.disable_cse_tir", "tir.Simplify", "tir.disable_storage_rewrite"),
    *("tir.disable_vectorize", "tir.use_async_copy", "tir.enable_debug", "tir.merge_static_smem"),
    *("tir.add_lower_pass", "tir.noalias", "cuda.kernels_output_dir"),
    *("tl.disable_out_of_bound_warning", "tl.enable_dump_ir", "tl.dump_ir_path"),
    *("tl.pass_profile", "tl.pass_profile_threshold_ms", "tl.disable_dynamic_tail_split"),
    *("tl.dynamic_alignment",),
)

_REFUSED = ("tir.add_lower_pass", "tirx.add_lower_pass")

# Members are the keys in upper case, `TL_DISABLE_TMA_LOWER` for "tl.disable_tma_lower".
PassConfigKey: Any = Enum(
    "PassConfigKey",
    {key.replace(".", "_").upper(): key for key in _KEYS},
    type=str,
    module=__name__,
)


def configs(*given: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Join configurations, later ones first; keys are their texts.

    Raises `LaunchError` (`bad-option`) for a key that is none, or that nothing carries out.
    """
    found: dict[str, Any] = {}
    for each in given:
        for key, value in (each or {}).items():
            name = str(key.value) if isinstance(key, Enum) else str(key)
            if name not in _KEYS:
                close = difflib.get_close_matches(name, _KEYS, n=1)
                raise LaunchError(
                    f"there is no configuration {name!r}",
                    code="bad-option",
                    expected="a key of PassConfigKey",
                    hint=f"did you mean {close[0]!r}?" if close else None,
                )
            if name in _REFUSED and value:
                raise LaunchError(
                    f"the configuration {name!r} adds passes of another compiler",
                    code="bad-option",
                    expected="no passes: there is nothing here that they could work on",
                )
            found[name] = value
    return found
