"""Barriers, fences, and what the lanes of a warp do together, in the tile dialect.

May import `base`, `ir`, `isa` and the modules of `frontend`. Waits and arrivals are those of the
threads that come here, as in CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend import collectives, cuda
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.collectives import FULL_MASK
from tilewright.frontend.issuing import condition, issue, result, uint32
from tilewright.frontend.tensors import Tensor, address_of
from tilewright.frontend.tile.regions import element
from tilewright.frontend.values import constant_int, wrap
from tilewright.ir.expressions import (
    Expr,
    SpecialRegister,
    binary,
    cast,
    constant,
    int32,
    truth,
)
from tilewright.ir.statements import If
from tilewright.isa import named

WARP = 32


def sync_threads(barrier_id: Any = None, arrive_count: Any = None) -> None:
    """Wait for all threads of the CTA, or for a number of them at a barrier of a number."""
    number = constant(0, UINT32) if barrier_id is None else uint32(barrier_id)
    more = () if arrive_count is None else (uint32(arrive_count),)
    if more:
        issue(named.BARRIER_SYNC, number, *more)
    else:
        issue(named.CTA_SYNC, number)


def named_barrier_arrive(barrier_id: Any, thread_count: Any) -> None:
    """Arrive at a barrier of a number, and go on."""
    issue(named.BARRIER_ARRIVE, uint32(barrier_id), uint32(thread_count))


def sync_warp(mask: Any = None) -> None:
    """Wait for the lanes of a mask, all of the warp by default."""
    issue(named.WARP_SYNC, uint32(FULL_MASK if mask is None else mask))


def syncthreads_count(predicate: Any) -> Any:
    """Wait for all threads of the CTA, and count those in which a predicate holds; int32."""
    zero = constant(0, UINT32)
    found = result("count", UINT32, named.CTA_SYNC_COUNT, zero, condition(predicate))
    return wrap(cast(found.expr, int32(0).dtype, here()))


# ---------------------------------------------------------------------------- mbarriers


def barrier_address(value: Any) -> Any:
    """Point at a barrier: one of several, or the only one of a buffer."""
    place = element(value)
    if place is not None and _is_barrier(place.tensor):
        return wrap(address_of(place.tensor, place.indices))
    if isinstance(value, Tensor) and _is_barrier(value.expr) and value.shape == (1,):
        return value.ptr_to([0])
    raise FrontendError(
        "this is no barrier",
        code="operand-type",
        location=argument_place("mbarrier", 0),
        expected="one that T.alloc_barrier(…) has given",
        found=str(value.expr.type) if isinstance(value, Tensor) else repr(value),
    )


def _is_barrier(tensor: Expr) -> bool:
    type: Any = tensor.type
    return type.space is Space.SHARED and type.dtype == UINT64


def mbarrier_wait_parity(mbarrier: Any, parity: Any) -> None:
    """Wait until the phase of that parity of a barrier has completed."""
    cuda.mbarrier_wait(barrier_address(mbarrier), parity)


def mbarrier_arrive(mbarrier: Any, cta_id: Any = None) -> None:
    """Arrive once at a barrier."""
    if cta_id is not None:
        raise FrontendError(
            "barriers of other CTAs are not there yet in the tile dialect",
            code="not-supported",
            location=argument_place("cta_id", 1),
        )
    issue(named.MBARRIER_ARRIVE, barrier_address(mbarrier).expr)


def mbarrier_expect_tx(mbarrier: Any, tx: Any) -> None:
    """Let a barrier expect a number of bytes more."""
    issue(named.MBARRIER_EXPECT_TX, barrier_address(mbarrier).expr, uint32(tx))


def mbarrier_arrive_expect_tx(mbarrier: Any, tx: Any) -> None:
    """Let a barrier expect a number of bytes more, and arrive at it once."""
    issue(named.MBARRIER_ARRIVE_EXPECT_TX, barrier_address(mbarrier).expr, uint32(tx))


def products_arrive(mbar: Any, arrive_2cta: bool = False) -> None:
    """Let a barrier know when the products that were issued so far are complete.

    It is for the warp that has issued them: one of its lanes says so.
    """
    if arrive_2cta:
        raise FrontendError(
            "arrive_2cta is not supported: clusters of the tile dialect are not there yet",
            code="not-supported",
            location=argument_place("arrive_2cta", 1),
        )
    barrier = barrier_address(mbar).expr
    elected = result("elected", BOOL, named.ELECT, constant(FULL_MASK, UINT32))
    with current().block() as issued:
        issue(named.TENSOR_COMMIT, barrier)
    current().emit(If(elected.expr, tuple(issued), location=here()))


# ---------------------------------------------------------------------------- fences and hints


def _plain(name: str, form: Any, summary: str) -> Callable[[], None]:
    def act() -> None:
        issue(form)

    act.__name__, act.__doc__ = name, summary
    return act


def _hint(name: str, summary: str) -> Callable[..., None]:
    def accept(*args: Any, **kwargs: Any) -> None:
        del args, kwargs

    accept.__name__, accept.__doc__ = name, summary
    return accept


# ---------------------------------------------------------------------------- across a warp


def _exchange(name: str, function: Callable[..., Any], summary: str) -> Callable[..., Any]:
    def shuffle(value: Any, lane: Any, width: Any = WARP, mask: Any = FULL_MASK) -> Any:
        return function(mask, value, lane, width)

    shuffle.__name__, shuffle.__doc__ = name, summary
    return shuffle


def warp_shuffle(mask: Any, value: Any, lane: Any, width: Any = WARP, warp_size: Any = WARP) -> Any:
    """Read a value of a lane; the mask is named first."""
    return collectives.shfl_sync(mask, value, lane, width)


def any_sync(predicate: Any, mask: Any = FULL_MASK) -> Any:
    """Tell whether a predicate holds in any lane of a mask."""
    return collectives.any_sync(mask, predicate)


def all_sync(predicate: Any, mask: Any = FULL_MASK) -> Any:
    """Tell whether a predicate holds in every lane of a mask."""
    return collectives.all_sync(mask, predicate)


def ballot_sync(predicate: Any, mask: Any = FULL_MASK) -> Any:
    """Collect a predicate of the lanes of a mask into bits, uint32."""
    return collectives.ballot_sync(mask, predicate)


def _reduction(op: str) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        return collectives.warp_reduce(value, op)

    reduce.__name__, reduce.__doc__ = f"warp_reduce_{op}", f"Reduce over a warp's lanes by {op}."
    return reduce


def _linear() -> Any:
    return wrap(SpecialRegister("linear_tid", location=here()))


def get_lane_idx(warp_size: Any = None) -> Any:
    """Give a thread's number in its warp."""
    return _linear() % (WARP if warp_size is None else warp_size)


def get_warp_idx(warp_size: Any = None) -> Any:
    """Give the number of a thread's warp in the CTA."""
    return _linear() // (WARP if warp_size is None else warp_size)


def get_warp_group_idx(warp_size: Any = None, warps_per_group: Any = None) -> Any:
    """Give the number of a thread's warpgroup in the CTA."""
    warp = WARP if warp_size is None else warp_size
    return _linear() // (warp * (4 if warps_per_group is None else warps_per_group))


def shuffle_elect(thread_extent: Any) -> Any:
    """Choose one thread of each `thread_extent` threads; of all of the CTA if that is 0."""
    count = constant_int(thread_extent, "a number of threads")
    if count % WARP or count < 0:
        raise FrontendError(
            "threads are chosen among whole warps",
            code="bad-call",
            location=argument_place("thread_extent", 0),
            expected="a multiple of 32, or 0 for all threads",
            found=str(count),
        )
    elected = result("elected", BOOL, named.ELECT, constant(FULL_MASK, UINT32))
    warp = SpecialRegister("warp_id", location=here())
    within = warp if count == 0 else binary("mod", warp, count // WARP, here())
    first = binary("eq", within, 0, here())
    return wrap(binary("logical_and", truth(first, here()), elected.expr, here()))


def fns(mask: Any, base: Any, offset: Any) -> Any:
    """Refuse to search for the n-th bit."""
    raise FrontendError(
        "T.__fns is not supported: it is a subroutine, no instruction",
        code="not-supported",
        location=here(),
    )


def first_set(value: Any) -> Any:
    """Give the position of the lowest set bit, from 1, or 0 if none is set; int32."""
    return cuda.ffs_u32(value)


FUNCTIONS: dict[str, Any] = {
    **{
        each.__name__: each
        for each in (
            *(sync_threads, named_barrier_arrive, sync_warp, syncthreads_count),
            *(mbarrier_wait_parity, mbarrier_arrive, mbarrier_expect_tx),
            *(mbarrier_arrive_expect_tx, any_sync, all_sync, ballot_sync),
            *(get_lane_idx, get_warp_idx, get_warp_group_idx, shuffle_elect),
            *(_reduction(op) for op in ("sum", "max", "min")),
            _plain("fence_proxy_async", named.FENCE_PROXY_ASYNC, "Order accesses of both proxies."),
            _plain("tcgen05_before_thread_sync", named.TENSOR_FENCE_BEFORE, "Fence, to hand on."),
            _plain("tcgen05_after_thread_sync", named.TENSOR_FENCE_AFTER, "Fence, to take over."),
            _plain("cluster_arrive", named.CLUSTER_ARRIVE, "Arrive at the cluster's barrier."),
            _plain("cluster_wait", named.CLUSTER_WAIT, "Wait at the cluster's barrier."),
            _exchange("shfl_sync", collectives.shfl_sync, "Read a value of a lane."),
            _exchange("shfl_xor", collectives.shfl_xor_sync, "Read of the lane across some bits."),
            _exchange("shfl_up", collectives.shfl_up_sync, "Read of the lane some below."),
            _exchange("shfl_down", collectives.shfl_down_sync, "Read of the lane some above."),
            *(
                _hint(name, "Say how many registers threads need; a hint to an assembler.")
                for name in (
                    *("set_max_nreg", "inc_max_nreg", "dec_max_nreg", "no_set_max_nreg"),
                    *("disable_warp_group_reg_alloc", "annotate_producer_reg_dealloc"),
                    "annotate_consumer_reg_alloc",
                )
            ),
            *(
                _hint(name, "Order products of a warpgroup; they are complete when issued.")
                for name in ("warpgroup_arrive", "warpgroup_commit_batch")
            ),
            _hint("warpgroup_fence_operand", "Keep registers of a product where they are."),
        )
    },
    "tvm_warp_shuffle": warp_shuffle,
    "barrier_wait": mbarrier_wait_parity,
    "barrier_arrive": mbarrier_arrive,
    "tcgen05_mma_arrive": products_arrive,
    "ballot": ballot_sync,
    "activemask": collectives.active_mask,
    "syncthreads_and": cuda.syncthreads_and,
    "syncthreads_or": cuda.syncthreads_or,
    "cluster_sync": cuda.MEMBERS["cluster_sync"],
    "get_warp_idx_sync": get_warp_idx,
    "__ffs": first_set,
    "__fns": fns,
}
