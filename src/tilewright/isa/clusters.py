"""The barrier of a cluster (PTX ISA 9.7.13.3).

May import `base`, `isa.declaration` and `isa.machine`. Threads arrive one by one. The barrier
completes when every thread of the cluster has arrived but those that have exited; a thread that
waits does so until the barrier at which it has arrived is complete. Arriving twice without waiting
in between, and waiting without having arrived, is undefined, and reported.

    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import UINT32
from tilewright.base.targets import since
from tilewright.isa.declaration import Declaration, Form, Order, Wait, declare
from tilewright.isa.machine import Lanes, Machine, uint32

_SECTION = '9.7.13.3 "barrier.cluster"'
_CODE = "barrier-protocol"


def _count(m: Machine, lanes: Lanes) -> Lanes:
    return m.cast(m.intrinsic("popcount", lanes), UINT32)


def _still_open(m: Machine) -> Lanes:
    """Give the lanes of the warp that have arrived at the barrier that is not complete yet."""
    odd = (m.cluster_state("generation") & 1) != 0
    parity = m.warp_state("cluster_parity")
    return m.warp_state("cluster_arrived") & m.select(odd, parity, ~parity)


def _complete_if_all_arrived(m: Machine) -> None:
    arrived, expected = m.cluster_state("arrived"), m.cluster_state("expected")
    complete = (arrived == expected) & (arrived != 0)
    generation = m.cluster_state("generation")
    present = m.cluster_state("threads") - m.cluster_state("exited")
    m.set_cluster_state("generation", m.select(complete, generation + 1, generation))
    m.set_cluster_state("arrived", m.select(complete, uint32(m, 0), arrived))
    m.set_cluster_state("expected", m.select(complete, present, expected))


def leave(m: Machine, lanes: Lanes) -> None:
    """Have nobody wait for lanes of the warp, which exit; where they have arrived, that counts."""
    missing = _count(m, lanes & ~_still_open(m))
    m.set_cluster_state("exited", m.cluster_state("exited") + _count(m, lanes))
    m.set_cluster_state("expected", m.cluster_state("expected") - missing)
    _complete_if_all_arrived(m)


# ---------------------------------------------------------------------------- arrive


def _arrive(m: Machine, form: Form) -> None:
    lanes, arrived = m.active(), m.warp_state("cluster_arrived")
    m.require(
        (arrived & lanes) == 0,
        _CODE,
        "a thread arrives at the cluster's barrier again before it has waited there",
    )
    parity = m.warp_state("cluster_parity")
    odd = (m.cluster_state("generation") & 1) != 0
    m.set_warp_state("cluster_parity", m.select(odd, parity | lanes, parity & ~lanes))
    m.set_warp_state("cluster_arrived", arrived | lanes)
    m.set_cluster_state("arrived", m.cluster_state("arrived") + _count(m, lanes))
    _complete_if_all_arrived(m)


def _order_of_arrival(form: Form) -> Order:
    return Order() if form["sem"] == "relaxed" else Order(releases=True, scope="cluster")


def _arrival(aligned: bool) -> Declaration:
    return declare(
        "barrier",
        "cluster.arrive.{sem}" + "aligned" * aligned,
        slots={"sem": ("", "release", "relaxed")},
        summary="Arrive at the barrier of the cluster without waiting.",
        section=_SECTION,
        targets=since(90),
        compute=_arrive,
        lanes="warp" if aligned else "any",
        aligned=aligned,
        excuses_exited=True,
        order=_order_of_arrival,
    )


cluster_arrive = _arrival(aligned=False)
cluster_arrive_aligned = _arrival(aligned=True)

# ---------------------------------------------------------------------------- wait


def _require_arrival(m: Machine, form: Form) -> Sequence[Lanes]:
    lanes = m.active()
    m.require(
        (m.warp_state("cluster_arrived") & lanes) == lanes,
        _CODE,
        "a thread waits at the cluster's barrier without having arrived there",
    )
    return ()


def _completed(m: Machine, form: Form) -> Lanes:
    return (_still_open(m) & m.active()) == 0


def _awaited(m: Machine, form: Form) -> tuple[str, Lanes]:
    return "cluster", m.cluster_state("generation")


def _pass(m: Machine, form: Form) -> None:
    m.set_warp_state("cluster_arrived", m.warp_state("cluster_arrived") & ~m.active())


def _waiting(aligned: bool) -> Declaration:
    return declare(
        "barrier",
        "cluster.wait.{sem}" + "aligned" * aligned,
        slots={"sem": ("", "acquire")},
        summary="Wait for the barrier of the cluster at which the thread has arrived.",
        section=_SECTION,
        targets=since(90),
        compute=_pass,
        lanes="warp" if aligned else "any",
        aligned=aligned,
        excuses_exited=True,
        order=Order(acquires=True, scope="cluster"),
        wait=Wait("cluster", poll=_completed, awaits=_awaited, arrive=_require_arrival),
    )


cluster_wait = _waiting(aligned=False)
cluster_wait_aligned = _waiting(aligned=True)
