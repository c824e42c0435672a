"""Fences (PTX ISA 9.7.13.4, "membar, fence"): no data effect, only order.

May import `base` and `isa.declaration`.

    fence.proxy.async.shared::cta;
"""

from __future__ import annotations

from typing import cast

from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.declaration import Form, Order, Scope, declare
from tilewright.isa.machine import Machine

_SECTION = '9.7.13.4 "membar, fence"'


def _nothing(m: Machine, form: Form) -> None:
    """Do nothing to any data."""


def _thread_order(form: Form) -> Order:
    one_way = form["sem"] in ("acquire", "release")
    return Order(
        proxy="none",
        acquires=form["sem"] == "acquire" or not one_way,
        releases=form["sem"] == "release" or not one_way,
        scope=cast(Scope, form["scope"]),
        fence="memory",
    )


def _thread_availability(form: Form) -> Availability:
    one_way = form["sem"] in ("acquire", "release")
    return since(90 if one_way or form["scope"] == "cluster" else 75)


fence = declare(
    "fence",
    "{sem}{scope}",
    slots={
        "sem": ("", "sc", "acq_rel", "acquire", "release"),
        "scope": ("cta", "cluster", "gpu", "sys"),
    },
    summary="Order the thread's memory accesses before against those after, at a scope.",
    section=_SECTION,
    targets=_thread_availability,
    compute=_nothing,
    order=_thread_order,
)

_LEVELS: dict[str, Scope] = {"cta": "cta", "gl": "gpu", "sys": "sys"}

membar = declare(
    "membar",
    "{level}",
    slots={"level": tuple(_LEVELS)},
    summary="Order the thread's memory accesses before against those after (older spelling).",
    section=_SECTION,
    targets=since(75),
    compute=_nothing,
    order=lambda form: Order(
        proxy="none",
        acquires=True,
        releases=True,
        scope=_LEVELS[form["level"]],
        fence="memory",
    ),
)

_COVERS: dict[str, tuple[Space, ...]] = {
    "": (),
    "global": (Space.GLOBAL,),
    "shared::cta": (Space.SHARED,),
    "shared::cluster": (Space.SHARED, Space.SHARED_CLUSTER),
}

fence_proxy_async = declare(
    "fence",
    "proxy.async.{space}",
    slots={"space": tuple(_COVERS)},
    summary="Order accesses through the generic proxy against those through the async proxy.",
    section=_SECTION,
    targets=since(90),
    compute=_nothing,
    order=lambda form: Order(proxy="async", fence="proxy", spaces=_COVERS[form["space"]]),
)

fence_mbarrier_init = declare(
    "fence",
    "mbarrier_init.release.cluster",
    summary="Make the thread's mbarrier.init visible to the cluster and to the async proxy.",
    section=_SECTION,
    targets=since(90),
    compute=_nothing,
    order=Order(proxy="none", releases=True, scope="cluster", fence="mbarrier_init"),
)
