"""Mutants that are no faults, by the reason why: nothing that a kernel promises has changed.

A mutant that is listed here and is found all the same is a failure of the tests: the reason
would be wrong, or the report.
"""

from __future__ import annotations

# Reason: kernel: sites, each with its mutations.
EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "what stands before is waited for, or a commit makes it known: both fence by themselves": {
        "blackwell_product": (
            "tcgen05.fence::before_thread_sync: dropped, later, earlier",
            "tcgen05.fence::before_thread_sync #2: dropped, later, earlier",
        ),
        "blackwell_pipeline": (
            "tcgen05.fence::before_thread_sync: dropped, later, earlier",
            "tcgen05.fence::before_thread_sync #2: dropped, earlier",
        ),
        "product_by_hand": (
            "tcgen05.fence::before_thread_sync: dropped, later, earlier",
            "tcgen05.fence::before_thread_sync #2: dropped, later, earlier",
        ),
        "two_accumulators": (
            "tcgen05.fence::before_thread_sync: dropped, later, earlier",
            "tcgen05.fence::before_thread_sync #2: dropped, later, earlier",
        ),
        "two_products": ("tcgen05.fence::before_thread_sync: dropped, later, earlier",),
    },
    "no asynchronous operation of another thread comes before: an allocation, a copy, or a load "
    "that has been waited for": {
        "blackwell_product": (
            "tcgen05.fence::after_thread_sync: dropped, later, earlier",
            "tcgen05.fence::after_thread_sync #3: dropped, later",
        ),
        "blackwell_pipeline": (
            "tcgen05.fence::after_thread_sync: dropped, later, earlier",
            "tcgen05.fence::after_thread_sync #2: dropped, later, earlier",
            "tcgen05.fence::after_thread_sync #4: dropped, later",
        ),
        "product_by_hand": (
            "tcgen05.fence::after_thread_sync: dropped, later, earlier",
            "tcgen05.fence::after_thread_sync #3: dropped, later",
        ),
        "two_accumulators": ("tcgen05.fence::after_thread_sync: dropped, later, earlier",),
    },
    "warps that have exited are not waited for: the others go on when this one has ended": {
        "blackwell_pipeline": ("bar.sync #2: without warp 0",),
        "named_pipeline": ("bar.sync #2: without warp 0",),
        "barrier_spellings": ("barrier.sync #3: without warp 0",),
        "flag_in_the_cta": ("bar.sync: without warp 0",),
        "two_accumulators": ("bar.sync #2: without warp 0",),
        "named_barriers": ("bar.sync: without warp 0",),
    },
    "lane 1 is not among those that come here": {
        "lanes_meet_at_a_shuffle": ("shfl.sync.bfly.b32: without lane 1",),
    },
    "nothing that matters lies between: what it has to come before is further on": {
        "ampere_pipeline": ("cp.async.commit_group #2: later",),
        "copy_ring": ("cp.async.commit_group #2: later",),
        "mbarrier_copy": ("bar.sync: later",),
        "arrivals": ("bar.sync: later", "bar.sync #5: later", "bar.sync #6: earlier"),
        "warp_exchange": ("bar.warp.sync #4: earlier",),
        "last_block": ("fence.acq_rel.gpu #2: later",),
        "cells": ("bar.sync #2: earlier", "tcgen05.wait::st.sync.aligned #2: later"),
        "cluster_turns": ("barrier.cluster.arrive.aligned #2: earlier",),
        "blackwell_product": ("bar.sync #2: earlier",),
        "product_by_hand": ("bar.sync #3: earlier",),
        "through_tensor_memory": ("bar.sync #2: earlier",),
        "two_products": (
            "fence.proxy.async.shared::cta: later",
            "bar.sync: earlier",
            "bar.sync #3: earlier",
        ),
        "blackwell_matmul": ("bar.sync #2: earlier",),
        "odd_block": ("bar.sync: later",),
        "swizzled_box": ("bar.sync: later",),
        "named_barriers": ("bar.arrive: later",),
    },
    "the last barrier of the kernel orders nothing any more": {
        "producer_and_consumers": ("bar.sync #2: dropped, earlier, without warp 0",),
    },
    "reads, and then reads by the copy engine: no order and no fence is needed": {
        "swizzled_box": (
            "fence.proxy.async.shared::cta: dropped, later, earlier, another space",
            "bar.sync #2: dropped, later, earlier, without warp 0",
        ),
        "box_round_trip": ("bar.sync #2: dropped, later, earlier, without warp 0",),
    },
    "the initialising thread executes a proxy fence too, which is as good": {
        "product_by_hand": ("fence.mbarrier_init.release.cluster: dropped, earlier",),
        "two_accumulators": ("fence.mbarrier_init.release.cluster: dropped, earlier",),
    },
    "the groups have been read already, and results in global memory outlive the CTA": {
        "bulk_round_trip": ("cp.async.bulk.wait_group #2: dropped, count +1",),
    },
    "an arrival more is expected and comes": {
        "copies_counted": ("cp.async.mbarrier.arrive bar #2: twice",),
        "arrivals": ("if thread == 0 #3: by all lanes",),
    },
    "nothing that the barrier hands on is read behind it": {
        "lane_waits_for_the_other_arm": (
            "wait for bar: dropped, later, relaxed, flipped",
            "mbarrier.arrive.shared::cta.b64 bar: relaxed",
        ),
        "waits_in_a_divergent_loop": (
            "wait for bar: dropped, relaxed, flipped",
            "mbarrier.arrive.shared::cta.b64 bar: relaxed",
            "bar.warp.sync #2: dropped, later, earlier",
        ),
    },
    "other lanes arrive too, after the warp has met, and hand on what all have written": {
        "arrivals": (
            "bar.warp.sync: later",
            "mbarrier.arrive.shared::cta.b64 bar: relaxed",
        ),
    },
    "the arrivals that it kept apart come in the order of one warp's program anyway": {
        "arrivals": ("bar.sync #5: earlier",),
    },
    "all lanes store the same value": {
        "flag_in_the_cta": ("if thread == 0: by all lanes", "if lane == 0: by all lanes"),
        "flags_between_ctas": ("if lane == 0: by all lanes",),
        "flag_between_ctas": ("if lane == 0: by all lanes",),
        "last_block": ("if last[0] == T.uint32(3) and thread == 0: by all lanes",),
    },
    "the count is touched by atomic operations only, which need no order": {
        "spin_lock": (
            "atom.acquire.gpu.global Lock: relaxed",
            "atom.release.gpu.global Lock: relaxed",
        ),
    },
}


def _names(listed: tuple[str, ...]) -> list[str]:
    """Spell the names of mutants: `site: mutation, mutation` stands for one of each."""
    pairs = (text.rpartition(": ") for text in listed)
    return [f"{site}: {each}" for site, _, changes in pairs for each in changes.split(", ")]


REASONS = {
    (kernel, name): reason
    for reason, kernels in EQUIVALENT.items()
    for kernel, names in kernels.items()
    for name in _names(names)
}


def reason_why(kernel: str, name: str) -> str | None:
    """Give the reason why a mutant of a kernel is no fault; `None` if it is one."""
    return REASONS.get((kernel, name))
