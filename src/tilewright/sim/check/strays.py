"""Accesses to shared memory that leave their own buffer: they are told, and not entered.

May import `isa`, `sim.engine` and the modules of `sim.check` below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.isa.machine import Lanes
from tilewright.sim.check.protocols import entry, tell
from tilewright.sim.check.rows import routine, run
from tilewright.sim.engine import context

if TYPE_CHECKING:
    from tilewright.sim.check.watch import WatchMachine
    from tilewright.sim.engine.native import NativeMachine


@routine("check_stray", "ptr %ctx, i64 %address, i64 %size, i32 %lanes, i32 %site", seldom=True)
def _stray(f: NativeMachine) -> None:
    """Tell of an access that leaves its own buffer; what leaves shared memory is a fault anyway."""
    address, size = (f.lanes(UINT64, f"%{n}", 0) for n in ("address", "size"))
    lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("lanes", "site"))
    inside = (address >= context.SHARED_START) & (size <= f.field("shared_size"))
    inside = inside & (address - context.SHARED_START + size <= f.field("shared_size"))
    with f.function.when(str((inside & (f.field("error") == 0)).value)):
        tell(f, "out-of-bounds", f.constant(0, UINT64), entry(f, lanes, site), address, size)


def _leaves(
    m: NativeMachine, span: tuple[Lanes, Lanes], address: Lanes, size: Lanes | int
) -> Lanes:
    first, room = (m.cast(each, address.dtype) for each in span)
    most = m.lift(size, address.dtype)
    left = m.select(room < most, m.constant(0, address.dtype), room - most)
    return (address - first > left) | (room < most)


def keep_within(m: WatchMachine, address: Lanes, size: int, mask: Lanes | None) -> Lanes | None:
    """Tell of lanes that leave the buffer which they are to access, and give the mask of others."""
    if m.span is None or mask is None:
        return mask
    leaves = _leaves(m, m.span, address, size)
    # What is not aligned is a fault by itself.
    bad = m.bits(leaves & ((address & (size - 1)) == 0)) & m.active()
    with m.function.when(str((bad != 0).value)):
        where = m.cast(m.pick(address, m.lowest(bad) & 31), UINT64)
        length = m.constant(size, UINT64)
        words = (("i64", where), ("i64", length), ("i32", bad))
        run(m, _stray, *words, ("i32", m.lanes(UINT32, m.site, 0)))
    return mask & ~leaves


def is_within(
    m: NativeMachine,
    span: tuple[Lanes, Lanes],
    address: Lanes,
    size: Lanes,
    lanes: Lanes,
    site: Lanes,
    align: int = 1,
) -> Lanes:
    """Tell whether a run keeps to the buffer that it is to access, and report one that does not."""
    leaves = _leaves(m, span, address, size)
    with m.function.when(str((leaves & ((address & (align - 1)) == 0)).value)):
        words = (("i64", address), ("i64", size), ("i32", lanes))
        run(m, _stray, *words, ("i32", site))
    return ~leaves
