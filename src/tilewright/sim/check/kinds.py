"""The kinds of findings: stable names, how severe they are, what is missing, the usual mend.

May import `base` and `isa`. Native code refers to a kind by its place in `KINDS`;
`docs/check-kinds.md` is written from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.findings import Severity
from tilewright.isa import (
    async_copy,
    fences,
    mbarrier,
    tensor_allocation,
    tensor_core,
    tensor_memory,
    warp_ops,
)
from tilewright.isa.declaration import Declaration


@dataclass(frozen=True)
class Kind:
    """A kind of finding.

    `title` says what is wrong, `missing` what the program lacks, `effect` what a GPU does then,
    `mend` the usual remedy. In `missing`, `{now}` and `{before}` stand for who made the later
    access and the earlier one, and `{memory}` for what both touch. The guilty line is the later
    one, or where `blames_earlier` is set the earlier one: the mend belongs there. `reserved` ones
    are of instructions that are not there yet.
    """

    name: str
    title: str
    missing: str
    effect: str
    mend: str
    severity: Severity = "error"
    blames_earlier: bool = False
    case: str = ""
    reserved: bool = False

    @property
    def key(self) -> str:
        """Tell it from other cases of the same kind, which have words of their own."""
        return f"{self.name}/{self.case}" if self.case else self.name


def _name(declaration: Declaration, tokens: int = 1) -> str:
    """Name an instruction by its family and the first of its modifiers, which it always has."""
    return ".".join([declaration.family, *map(str, declaration.parts[:tokens])])


_PROXY_FENCE = _name(fences.fence_proxy_async, 2)
_INIT_FENCE = _name(fences.fence_mbarrier_init)
_INIT, _INVAL = _name(mbarrier.init), _name(mbarrier.inval)
_EXPECT = "arrive.expect_tx"
_ELECT = _name(warp_ops.elect_sync, 0)
_COMMIT = _name(tensor_core.commit)
_GROUP_COMMIT = _name(async_copy.commit_group, 2)
_BULK_COMMIT = _name(async_copy.bulk_commit_group, 3)
_BULK_WAIT = f"{_name(async_copy.bulk_wait_group, 3)}.read"
_WAITS = f"{_name(tensor_memory.wait_ld)} or {_name(tensor_memory.wait_st)}"

_RELINQUISH = _name(tensor_allocation.relinquish_alloc_permit)

KINDS = (
    Kind(
        "missing-proxy-fence",
        "what threads wrote is read by an asynchronous agent without a proxy fence",
        "{before} writes {memory} through the generic proxy, and executes no proxy fence before "
        "the synchronisation that lets {now} access it through the async proxy",
        "stale data, sometimes",
        f"let the threads that write execute {_PROXY_FENCE} after the write, and only then the "
        "barrier or the arrival",
        blames_earlier=True,
    ),
    Kind(
        "misplaced-proxy-fence",
        "a proxy fence is executed by another thread than the one that wrote, or too late",
        "a proxy fence stands between {before} and {now}, but not in the thread that writes "
        "{memory}, before it synchronises; the ISA promises nothing for a fence that only the "
        "reading side executes",
        "stale data, sometimes",
        f"move {_PROXY_FENCE} to the threads that write, before the barrier or the arrival",
        blames_earlier=True,
    ),
    Kind(
        "missing-proxy-fence-war",
        "what threads read is overwritten by an asynchronous agent without a proxy fence",
        "{before} reads {memory} through the generic proxy, and executes no proxy fence before "
        "the synchronisation that lets {now} overwrite it through the async proxy",
        "overwritten early, rarely",
        f"let the threads that read execute {_PROXY_FENCE} after their last read, before they "
        "arrive",
        severity="warning",
        blames_earlier=True,
    ),
    Kind(
        "mbarrier-init-visibility",
        "an mbarrier is initialised without a fence that makes it visible",
        "no fence stands between the initialisation of {memory} and its use by {now}",
        "a hang, or a phase that is garbage",
        f"let the thread that initialises execute {_INIT_FENCE} or, within a CTA, "
        f"{_PROXY_FENCE}, and then synchronise",
        severity="warning",
        blames_earlier=True,
    ),
    Kind(
        "mbarrier-init",
        "an mbarrier is initialised or used against its life",
        "{memory} is initialised once, by one thread, before it is used, and again only after "
        f"{_INVAL}",
        "undefined",
        "let one elected thread initialise each mbarrier, and synchronise before its first use",
    ),
    Kind(
        "mbarrier-arrival",
        "the arrivals at an mbarrier are not those that it counts",
        "each phase of {memory} gets as many arrivals as it was initialised with, from those who "
        "are meant to arrive",
        "an early release, or a hang",
        f"compare the count of {_INIT} with who arrives at this mbarrier, and at which stage",
    ),
    Kind(
        "mbarrier-tx",
        "the bytes that an mbarrier expects are not those that copies deliver to it",
        "the bytes that copies deliver to {memory} in a phase are those that are announced in it, "
        "along with an arrival",
        "a hang",
        f"let {_EXPECT} announce the sum of the bytes of all copies of the phase",
    ),
    Kind(
        "mbarrier-phase",
        "a wait sees another phase of an mbarrier than the one that it needs",
        "{now} waits for a phase of {memory} that is not the one that orders what it does",
        "a stage that is stale or overwritten, or a hang",
        "flip the parity whenever the ring of stages wraps; producers begin with parity 1",
    ),
    Kind(
        "missing-wait",
        "what an asynchronous operation does is used before it is known to be done",
        "{now} touches {memory} before it has seen that {before} is done",
        "wrong values, timing dependent",
        f"wait for the operation: at the mbarrier that it or {_COMMIT} arrives at, for the group "
        f"that {_GROUP_COMMIT} or {_BULK_COMMIT} makes of it, or by {_WAITS}; then synchronise "
        "with whoever has waited",
    ),
    Kind(
        "stage-overwritten",
        "memory is overwritten that an asynchronous operation may still read",
        "{now} overwrites {memory} before it has seen that {before} has read it",
        "wrong values",
        f"wait until the reader is done (by {_COMMIT} to an mbarrier, or by {_BULK_COMMIT} and "
        f"{_BULK_WAIT}), or let readers arrive after their last read, before the stage is filled "
        "again",
    ),
    Kind(
        "wgmma-fence",
        "registers of a wgmma are touched without its fence, or while it is in flight",
        "no fence of wgmma orders what {before} does to {memory} and what {now} does",
        "wrong values",
        "execute the fence of wgmma before the first one and after register writes; touch "
        "accumulators only after the wait for their group",
        reserved=True,
    ),
    Kind(
        "tmem-access",
        "Tensor Memory is accessed by a warp that cannot reach it",
        "a whole warp together reaches the 32 lanes of its own quadrant of Tensor Memory",
        "an illegal instruction, or garbage",
        "let warp w of a warpgroup access lanes 32·(w % 4) to 32·(w % 4) + 31, all lanes together",
    ),
    Kind(
        "tmem-lifecycle",
        "Tensor Memory is allocated, published, used or freed against its life",
        "columns of Tensor Memory are allocated before they are used, and freed, once, after "
        "their last use",
        "the launch fails, or the next CTA hangs",
        "allocate a power of two from 32 to 512 columns, publish the address by a barrier, free "
        "them when all are done, and relinquish the permit",
    ),
    Kind(
        "cta-group",
        "instructions of one kernel differ in cta_group",
        "allocation, products, commits and deallocation of a kernel name the same cta_group",
        "an illegal instruction",
        "write the same .cta_group everywhere",
    ),
    Kind(
        "not-elected",
        "an operation for one thread is issued by several",
        "one elected thread of {now} issues it",
        "its effects are repeated",
        f"issue it under {_ELECT}, or by one lane",
    ),
    Kind(
        "divergent-collective",
        "a collective is not executed by all lanes or threads that it needs, together",
        "all lanes or threads that a collective names come to it together",
        "a hang, or undefined",
        "move the collective out of the branch, or mend its member mask",
    ),
    Kind(
        "named-barrier",
        "a named barrier is used with a wrong number of threads, or by two groups at once",
        "the threads that come to a named barrier are as many as it is told",
        "a hang",
        "give each group of warps an id of its own, and the number of threads of all that come",
    ),
    Kind(
        "descriptor",
        "a descriptor does not describe the bytes that it is used for",
        "layout, strides and start of a descriptor are those of the tensor that it is used for",
        "wrong values",
        "make the descriptor of the tensor's own layout, with the swizzle that its copy has",
    ),
    Kind(
        "tma-rules",
        "a tensor copy breaks a rule of tensor maps",
        "box, strides, alignment and coordinates are as the tensor map requires",
        "a launch error",
        "mend what the rule names",
    ),
    Kind(
        "cluster-peer",
        "a CTA of the cluster is accessed that may have left, or at the wrong scope",
        "the peer stays until {now} is done, and what is signalled to it has cluster scope",
        "a fault, or stale reads",
        "end with a cluster barrier; arrive at a peer with .cluster scope",
        reserved=True,
    ),
    Kind(
        "out-of-bounds",
        "an access leaves its memory, or is misaligned",
        "every access lies in its memory, aligned as its size requires",
        "a fault",
        "mend the index, or guard it",
    ),
    Kind(
        "uninitialised",
        "memory is read that nobody has written",
        "nothing has written {memory} before {now} reads it",
        "garbage",
        "write all that is read, or read less; wait for what brings it",
    ),
    Kind(
        "global-race",
        "CTAs touch the same global memory without an order between them",
        "no release at gpu scope and acquire order {before} and {now} on {memory}",
        "wrong values",
        "give each CTA its own part, or release and acquire a flag at gpu scope",
    ),
    Kind(
        "race",
        "two accesses to the same memory have no order, and one of them writes",
        "no synchronisation orders {before} and {now} on {memory}",
        "wrong values",
        "put a barrier, or another synchronisation of their threads, between the two",
    ),
    Kind(
        "ignored-try-wait",
        "data is used though the result of try_wait or test_wait was not looked at",
        "{memory} is used whether the wait has succeeded or not",
        "wrong values",
        "loop until the wait says that the phase has completed",
        blames_earlier=True,
    ),
    Kind(
        "grid-dependency",
        "data of a preceding launch is read before the wait for that launch",
        "no wait for the preceding launch stands before {now} reads {memory}",
        "stale data",
        "wait for the grid dependency before the first access to what the launch before writes",
        reserved=True,
    ),
    Kind(
        "tensormap-fence",
        "a tensor map is modified and used without the fence of its proxy",
        "no fence of the tensormap proxy orders the change of {memory} and its use by {now}",
        "wrong copies",
        "release and acquire the tensor map by the fences of the tensormap proxy",
        blames_earlier=True,
        reserved=True,
    ),
    Kind(
        "setmaxnreg",
        "setmaxnreg is executed by a part of a warpgroup, or asks for more than there is",
        "all warps of a warpgroup execute setmaxnreg, and the sums fit the register file",
        "an illegal instruction, or a hang",
        "let whole warpgroups execute it, and mend the numbers",
        reserved=True,
    ),
    Kind(
        "read-only-load",
        "memory that the kernel writes is read through the read-only path",
        "{memory} is written by {before} in the launch in which {now} reads it as read-only",
        "stale data",
        "read it by a plain load",
    ),
    Kind(
        "trap",
        "the kernel trapped, or an assertion in it failed",
        "what the program asserts holds",
        "the launch fails",
        "see what the assertion says",
    ),
    Kind(
        "undefined-operation",
        "an instruction is given operands for which it has no result",
        "operands are as the ISA requires",
        "undefined",
        "mend what the rule names",
    ),
    Kind(
        "step-limit",
        "the kernel ran more steps than the launch allows",
        "the loops of the kernel end",
        "a hang",
        "see that each loop ends, or compile with a larger step_limit",
    ),
    Kind(
        "deadlock",
        "no thread can run and nothing in flight can complete a wait",
        "somebody does what the waiting threads wait for",
        "a hang",
        "see who waits for whom",
    ),
)
# Cases of these kinds that need other words.
CASES = (
    Kind(
        "missing-wait",
        "Tensor Memory is accessed after a synchronisation of threads without the fence for it",
        "{now} executes no fence after the synchronisation that tells it that {before} is done "
        "with {memory}",
        "wrong values, timing dependent",
        f"execute {_name(tensor_memory.fence_after)} between the wait or the barrier and the "
        "access",
        case="fence",
    ),
    Kind(
        "missing-wait",
        "what an asynchronous operation brings is read before it has been written",
        "{before} touches {memory} before it has seen that {now} is done",
        "wrong values, timing dependent",
        f"wait for the operation: at the mbarrier that it or {_COMMIT} arrives at, or for the "
        f"group that {_GROUP_COMMIT} or {_BULK_COMMIT} makes of it; then synchronise with whoever "
        "has waited",
        blames_earlier=True,
        case="first",
    ),
    Kind(
        "stage-overwritten",
        "memory is filled again before those are done that use what is there",
        "nothing lets {now}, which writes {memory} again, wait until {before} is done",
        "wrong values",
        "let readers arrive, or come to a barrier, after their last read, and wait for that before "
        "the stage is filled again",
        case="refill",
    ),
    Kind(
        "missing-wait",
        "a kernel ends before a copy out of its shared memory has read it",
        "nothing stands between {now} and the end of the kernel that waits until it has read "
        "{memory}; another CTA may have that memory then",
        "wrong values, timing dependent",
        f"let the thread that copies execute {_BULK_COMMIT} after its last copy, and {_BULK_WAIT} "
        "for all groups before the kernel ends",
        case="exit",
    ),
    Kind(
        "race",
        "lanes store different values to the same memory at once",
        "it is not defined which of {now} stores to {memory} after the others",
        "wrong values",
        "let one lane store, or give each its own place",
        case="lanes",
    ),
    Kind(
        "mbarrier-phase",
        "a wait may be overtaken: the next phase may end before it has looked",
        "no synchronisation orders the wait of {before} before {now} takes part in the next phase "
        "of {memory}, so that it may meet that one's end and wait for the one after",
        "a hang, or a stage that is overwritten",
        "let whoever completes the next phase hear first from all who wait for this one: compare "
        "the stages at which both sides wait and arrive",
        blames_earlier=True,
        case="overtaken",
    ),
    Kind(
        "mbarrier-phase",
        "a wait may return at once: nothing says that the phase before has ended",
        "{now} does not know that the phase of {memory} before the one that it waits for has "
        "ended; until it has, the wait sees the one before that, of the same parity",
        "a stage that is stale or overwritten",
        "wait for every phase, one after another, or hear from somebody who has",
        case="early",
    ),
    Kind(
        "mbarrier-phase",
        "a wait ends at once, and what it should have waited for comes later",
        "the wait of {before} is for a phase that had ended, or for the one before the first: it "
        "does not wait until {memory} has been written",
        "a stage that is stale or overwritten",
        "flip the parity whenever the ring of stages wraps; consumers begin with parity 0",
        blames_earlier=True,
        case="unmet",
    ),
    Kind(
        "mbarrier-phase",
        "a wait ends at once, and memory is filled again that is in use",
        "the wait of {before} tells it nothing that it has not known: it does not wait until those "
        "are done that use {memory}",
        "a stage that is overwritten",
        "flip the parity whenever the ring of stages wraps; producers begin with parity 1",
        blames_earlier=True,
        case="idle",
    ),
    Kind(
        "mbarrier-phase",
        "a thread arrives for a phase before it knows that the one before has ended",
        "nothing tells {now} that the phase of {memory} is over in which it has arrived before: it "
        "may be ahead of those who wait for that one, by a whole phase",
        "a stage that is overwritten, or a hang",
        "before it arrives again, let it wait for what says that the stage is free; if it does, "
        "flip the parity whenever the ring of stages wraps: producers begin with parity 1",
        blames_earlier=True,
        case="ahead",
    ),
    Kind(
        "undefined-operation",
        "a value is used that a shuffle has read from a lane which is not there",
        "what {memory} is in {now} comes of a lane that a shuffle reads, and that its member mask "
        "does not name: that gives no value",
        "any value",
        "let the mask name all lanes that are read, and those execute the shuffle; or use the "
        "value only in lanes that read such a one",
        case="lane",
    ),
    Kind(
        "divergent-collective",
        "lanes that a collective names pass it by",
        "the collective names {before} too, which go on behind the branch or the loop that it is "
        "in and return without it; {now} waits until they have",
        "undefined; a hang where those wait for anything",
        "move the collective out of the branch, or mend its member mask; a lane that is not needed "
        "may return before",
        case="passed",
    ),
    Kind(
        "named-barrier",
        "two groups of warps use one named barrier, and nothing keeps them apart",
        "nothing tells {now} that {before} and its group have met at this barrier before it comes "
        "there: with another timing it meets some of them in place of its own group",
        "threads go on too early, or a hang",
        "give each group of warps an id of its own, or put a barrier of all between their uses",
        case="shared",
    ),
    Kind(
        "descriptor",
        "a tensor map lays a box out otherwise than its buffer is declared",
        "the swizzle of the tensor map is that of the layout of {memory}",
        "wrong values",
        "give the tensor map and the layout of the buffer the same swizzle",
        case="map",
    ),
    Kind(
        "cta-group",
        "an instruction is told of a pair of CTAs that there is not",
        "clusters of this launch have no pairs of CTAs",
        "an illegal instruction",
        "launch clusters of an even number of CTAs, or write .cta_group::1",
        case="pair",
    ),
    Kind(
        "tmem-lifecycle",
        "Tensor Memory is freed while it is in use",
        "no synchronisation lets {now} wait until {before} is done with {memory}",
        "another CTA's columns are read or written, or the launch fails",
        "free columns after a barrier at which all come that use them, and after the wait for what "
        "the tensor core does there",
        case="freed",
    ),
    Kind(
        "tmem-lifecycle",
        "the address of Tensor Memory is read before it is published",
        "no synchronisation orders {before} and {now} on {memory}, which has the address that the "
        "allocation gives",
        "an access to any columns, or a fault",
        "put a barrier between the allocation and whoever reads the address",
        case="published",
    ),
    Kind(
        "tmem-lifecycle",
        "a CTA keeps the permit to allocate Tensor Memory",
        f"no {_RELINQUISH} stands between the last allocation and the end of the CTA, and another "
        "CTA finds room beside it",
        "the other CTA waits until this one has ended",
        f"execute {_RELINQUISH} after the last allocation",
        severity="warning",
        case="permit",
    ),
)
ALL = (*KINDS, *CASES)
NUMBER = {kind.key: number for number, kind in enumerate(ALL)}
BY_NAME = {kind.name: kind for kind in KINDS}
BY_KEY = {kind.key: kind for kind in ALL}
