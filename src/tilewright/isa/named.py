"""Instruction forms by a name of their own, for those who issue them without a spelling.

May import the chapters of `isa`. `T.cuda` helpers and passes refer to these.

    >>> CTA_SYNC.text
    'bar.sync'
"""

from __future__ import annotations

from tilewright.isa import (
    arithmetic,
    async_copy,
    atomics,
    barriers,
    clusters,
    conversion,
    fences,
    mbarrier,
    memory,
    tensor_allocation,
    tensor_core,
    tensor_memory,
    warp_ops,
)
from tilewright.isa.declaration import Declaration, Form


def form(declaration: Declaration, **tokens: str) -> Form:
    """Complete a declaration by tokens, one for each slot; slots not named are left empty."""
    chosen = {slot.name: tokens.get(slot.name, "") for slot in declaration.slots}
    assert tokens.keys() <= chosen.keys(), f"{declaration.family} lacks a slot of {tokens}"
    complete = Form(declaration, tuple(chosen.items()))
    required = all(chosen[slot.name] in slot.choices for slot in declaration.slots)
    assert required and declaration.legal(complete) is None, complete.text
    return complete


# Operands are in PTX order; `[x]` is an address.
CTA_SYNC = form(barriers.bar_sync)  # barrier (u32: 0), [thread count]
BARRIER_SYNC = CTA_SYNC  # barrier, thread count
BARRIER_ARRIVE = form(barriers.bar_arrive)  # barrier, thread count
CTA_SYNC_AND = form(barriers.bar_red, op="and", type="pred")  # out bool, barrier, bool
CTA_SYNC_OR = form(barriers.bar_red, op="or", type="pred")  # out bool, barrier, bool
CTA_SYNC_COUNT = form(barriers.bar_red, op="popc", type="u32")  # out u32, barrier, bool
WARP_SYNC = form(barriers.bar_warp_sync)  # member mask
CLUSTER_ARRIVE = form(clusters.cluster_arrive_aligned)
CLUSTER_WAIT = form(clusters.cluster_wait_aligned)
COPY_16, COPY_FEW = (
    form(async_copy.copy, cop=cop, space="shared") for cop in ("cg", "ca")
)  # [target], [source], bytes (4, 8 or 16), bytes that are taken
COPIES_COMMIT = form(async_copy.commit_group)
COPIES_WAIT = form(async_copy.wait_group)  # how many groups may be under way
BULK_COMMIT = form(async_copy.bulk_commit_group)
BULK_WAIT, BULK_WAIT_READ = (
    form(async_copy.bulk_wait_group, read=read) for read in ("", "read")
)  # how many groups may be under way

_CTA = "shared::cta"
MBARRIER_INIT = form(mbarrier.init, space=_CTA)  # [barrier], count
MBARRIER_INVAL = form(mbarrier.inval, space=_CTA)  # [barrier]
MBARRIER_ARRIVE = form(mbarrier.arrive_sink, op="arrive", space=_CTA)  # [barrier]
MBARRIER_ARRIVE_COUNT = form(
    mbarrier.arrive_count_sink, op="arrive", space=_CTA
)  # [barrier], count
MBARRIER_ARRIVE_EXPECT_TX = form(
    mbarrier.arrive_expect_tx_sink, op="arrive", space=_CTA
)  # [barrier], bytes
MBARRIER_EXPECT_TX = form(mbarrier.expect_tx, space=_CTA)  # [barrier], bytes
MBARRIER_TRY_WAIT_PARITY = form(mbarrier.try_wait_parity, space=_CTA)  # out bool, [barrier], parity
MBARRIER_TRY_WAIT_PARITY_CLUSTER = form(
    mbarrier.try_wait_parity, sem="acquire", scope="cluster", space=_CTA
)  # out bool, [barrier], parity

ELECT = form(warp_ops.elect_sync_sink)  # out bool, member mask
ACTIVEMASK = form(warp_ops.activemask)  # out u32
SHFL_IDX, SHFL_UP, SHFL_DOWN, SHFL_BFLY = (
    form(warp_ops.shfl_sync, mode=mode) for mode in ("idx", "up", "down", "bfly")
)  # out b32, value, lane or offset, clamp and segment, member mask
VOTE_ANY, VOTE_ALL, VOTE_UNI = (
    form(warp_ops.vote_sync, mode=mode) for mode in ("any", "all", "uni")
)  # out bool, bool, member mask
VOTE_BALLOT = form(warp_ops.vote_sync_ballot)  # out u32, bool, member mask
REDUX_ADD_U32, REDUX_MIN_U32, REDUX_MAX_U32 = (
    form(warp_ops.redux_sync, op=op, type="u32") for op in ("add", "min", "max")
)  # out, value, member mask
REDUX_ADD_S32, REDUX_MIN_S32, REDUX_MAX_S32 = (
    form(warp_ops.redux_sync, op=op, type="s32") for op in ("add", "min", "max")
)  # out, value, member mask
NANOSLEEP = form(warp_ops.nanosleep)  # nanoseconds

THREAD_FENCE = form(fences.fence, sem="acq_rel", scope="gpu")
THREAD_FENCE_BLOCK = form(fences.fence, sem="acq_rel", scope="cta")
THREAD_FENCE_SYSTEM = form(fences.fence, sem="acq_rel", scope="sys")
FENCE_PROXY_ASYNC = form(fences.fence_proxy_async)
FENCE_PROXY_ASYNC_SHARED = form(fences.fence_proxy_async, space=_CTA)
FENCE_MBARRIER_INIT = form(fences.fence_mbarrier_init)

# out b32, the high half, the low half
PACK_F16X2, PACK_BF16X2 = (form(conversion.cvt_packed, type=type) for type in ("f16x2", "bf16x2"))
MIN_BF16X2, MAX_BF16X2 = (
    form(each, type="bf16x2") for each in (arithmetic.minimum, arithmetic.maximum)
)  # out b32, b32, b32

TMEM_ALLOC = form(tensor_allocation.alloc)  # [place in shared memory], columns
TMEM_DEALLOC = form(tensor_allocation.dealloc)  # address, columns
TMEM_RELINQUISH = form(tensor_allocation.relinquish_alloc_permit)
TMEM_WAIT_LOAD = form(tensor_memory.wait_ld)
TMEM_WAIT_STORE = form(tensor_memory.wait_st)
TENSOR_FENCE_BEFORE = form(tensor_memory.fence_before)
TENSOR_FENCE_AFTER = form(tensor_memory.fence_after)
# [D], A's descriptor (or [A]), B's descriptor, the instruction's, whether to add to D
MMA_F16, MMA_TF32 = (form(tensor_core.mma, kind=f"kind::{kind}") for kind in ("f16", "tf32"))
MMA_F16_TMEM, MMA_TF32_TMEM = (
    form(tensor_core.mma_tmem, kind=f"kind::{kind}") for kind in ("f16", "tf32")
)
TENSOR_COMMIT = form(tensor_core.commit)  # [barrier]


def load_word(order: str, scope: str, bits: int) -> Form:
    """Give `ld.relaxed` or `ld.acquire` of 32 or 64 bits of global memory: out, [place]."""
    return form(memory.ld, sem=order, scope=scope, space="global", type=f"b{bits}")


def atomic_add(space: str, type: str) -> Form:
    """Give `atom.add` on "global" or "shared" memory of a PTX type: out old, [place], value."""
    return form(atomics.atom, space=space, op="add", type=type)


def atomic_cas(space: str, type: str) -> Form:
    """Give `atom.cas`, type "b16", "b32" or "b64": out old, [place], expected, new."""
    return form(atomics.atom_cas, space=space, type=type)
