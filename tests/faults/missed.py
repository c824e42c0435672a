"""Mutants that are faults and are not found yet, by what it would take to find them.

One that is listed here and found is a failure of the tests, so that the list stays true.
"""

from __future__ import annotations

from equivalent import by_mutant

MISSED: dict[str, dict[str, tuple[str, ...]]] = {
    "that a phase may end, and the next one too, before a waiter has looked is an order between "
    "a wait and the phase after the next, which no clock of an mbarrier holds": {
        "hopper_pipeline": ("mbarrier.arrive.shared::cta.b64 empty: next stage in addr",),
        "blackwell_pipeline": (
            "wait for empty: next stage in addr",
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one empty: next stage in mbar",
        ),
        "warps_apart": (
            "wait for empty: next stage in addr",
            "mbarrier.arrive.shared::cta.b64 empty: next stage in addr",
        ),
        "two_accumulators": (
            "wait for empty: next stage in addr",
            "wait for full: next stage in addr",
            "mbarrier.arrive.shared::cta.b64 empty: next stage in addr",
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one full: next stage in mbar",
        ),
        "producer_and_consumers": (
            "wait for empty: next stage in addr",
            "wait for full: next stage in addr",
            "mbarrier.arrive.shared::cta.b64 empty: next stage in addr",
            "mbarrier.arrive.shared::cta.b64 full: next stage in addr",
        ),
    },
    "lanes of the warp that initialises an mbarrier wait at it without having met: its words are "
    "no data": {
        "swizzled_box": ("bar.sync: dropped, later, earlier, without warp 0",),
        "arrivals": ("bar.sync #7: without warp 0",),
    },
    "a register that only some lanes or warps have left unset": {
        "warps_exit_before_a_barrier": ("bar.red.popc.u32: without lane 1, without warp 0",),
    },
    "the numbers are wrong, and no access is: a program may count like that": {
        "last_block": ("if thread == 0: by all lanes",),
    },
}

REASONS = by_mutant(MISSED)
