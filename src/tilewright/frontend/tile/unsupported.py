"""Names of the tile dialect that this package does not support, and why.

May import `base` and `frontend`.
"""

from __future__ import annotations

from typing import Any

from tilewright.frontend.unsupported import Unsupported

_MACRO = "@T.macro expands a helper where it is called"


def _all(names: str, reason: str, instead: str | None = None) -> dict[str, Any]:
    return {each: Unsupported(f"T.{each}", reason, instead) for each in names.split()}


TOP: dict[str, Any] = {
    **_all(
        "call_extern call_pure_extern call_intrin call_packed import_source CUDASourceCodeKernel "
        "evaluate",
        "the simulator runs kernels of this dialect only, no CUDA text",
        _MACRO,
    ),
    **_all(
        "comm_reducer tvm_thread_allreduce",
        "it is an internal form of another compiler",
        "T.reduce_sum(…) reduces a tile, T.warp_reduce_sum(…) a number of each lane",
    ),
    **_all(
        "alloc_reducer reducer_init reducer_update finalize_reducer",
        "reducers are not there yet",
        "accumulate in a fragment, and T.reduce_sum(…, clear=False) it",
    ),
    **_all(
        "gemm_blockscaled tcgen05_gemm_blockscaled mma_gemm_blockscaled "
        "make_blockscaled_gemm_layout tcgen05_cp_warpx4 tcgen05_sf_warp_transpose",
        "products with scales are not there yet",
    ),
    **_all(
        "int4 uint4 int2 uint2 int1 tfloat32 float4_e2m1_unpacked",
        "the element type is not there yet",
        "take numbers of four bits out of uint8 by shifts",
    ),
    **_all("gemm_sp wgmma_gemm_sp tcgen05_gemm_sp", "sparse products are not there yet"),
    **_all("dp4a", "products of packed integers are not there yet", "T.gemm multiplies tiles"),
    **_all(
        "alloc_cluster_barrier copy_cluster ptx_arrive_cluster_barrier block_rank_in_cluster "
        "cluster_arrive_relaxed clc_try_cancel clc_try_cancel_multicast clc_is_canceled "
        "clc_get_first_ctaid_x clc_get_first_ctaid_y clc_get_first_ctaid_z tma_load_2sm",
        "clusters of the tile dialect are not there yet",
    ),
    **_all("tma_gather4 tma_scatter4", "this kind of bulk copy is not there yet"),
    **_all(
        "tma_load create_tma_descriptor alloc_descriptor alloc_wgmma_desc "
        "alloc_tcgen05_smem_desc alloc_tcgen05_instr_desc",
        "it addresses memory below the level of tiles",
        "T.async_copy(…) and T.tma_copy(…) copy tiles",
    ),
    **_all("make_tensor make_tensor_from_addr match_buffer", "tensors are parameters"),
    **_all("rng_init rng_rand rng_rand_float", "there are no random numbers in kernels yet"),
    **_all("pdl_trigger pdl_sync", "launches do not overlap"),
    **_all(
        "sync_grid sync_global",
        "a barrier of the grid needs memory that the driver lends cooperative launches",
    ),
    **_all("match_any_sync match_all_sync", "the instruction is not there yet"),
}
