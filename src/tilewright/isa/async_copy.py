"""Bulk copies by the asynchronous proxy (PTX ISA 9.7.9.25.4).

May import `base`, `isa.declaration`, `isa.machine` and `isa.mbarrier`.

    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%rd1], %r2, [%r3];
"""

from __future__ import annotations

from tilewright.base.spaces import Space
from tilewright.base.targets import since
from tilewright.isa.declaration import Form, Order, Time, address, declare, register
from tilewright.isa.machine import Lanes, Machine
from tilewright.isa.mbarrier import complete_transaction

_GRANULE = 16


def _issue(m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes, mbar: Lanes) -> None:
    last = _GRANULE - 1
    m.require((dst & last) == 0, "misaligned", "the target of a bulk copy is aligned to 16 bytes")
    m.require((src & last) == 0, "misaligned", "the source of a bulk copy is aligned to 16 bytes")
    m.require((size & last) == 0, "misaligned", "the size of a bulk copy is a multiple of 16 bytes")
    m.each_lane(lambda *operands: m.issue(form, operands, operands[3]), dst, src, size, mbar)


def _land(m: Machine, form: Form, dst: Lanes, src: Lanes, size: Lanes, mbar: Lanes) -> None:
    m.copy(Space.SHARED, dst, Space.GLOBAL, src, size)
    complete_transaction(m, mbar, size)


bulk_load = declare(
    "cp",
    "async.bulk.{space}global.mbarrier::complete_tx::bytes",
    slots={"space": ("shared::cta", "shared::cluster")},
    summary="Copy a run of bytes from global to shared memory, counted by an mbarrier.",
    section='9.7.9.25.4.1 "cp.async.bulk"',
    targets=since(90),
    operands=(
        address("dstMem", Space.SHARED, "write", 0, align=_GRANULE),
        address("srcMem", Space.GLOBAL, "read", 0, align=_GRANULE),
        register("size", "u32"),
        address("mbar", Space.SHARED, "update", 8),
    ),
    compute=_issue,
    order=Order(proxy="async"),
    time=Time(agent="bulk_copy", completes="mbarrier"),
    lands=_land,
)
