"""Stores that lanes of a warp make at once: of one place they must store the same value.

May import `isa`, `sim.engine` and the modules of `sim.check` below it. Which lane comes last is not
defined. Atomic stores may differ, and stores at addresses of the lanes' own are not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT8, UINT16, UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.isa.machine import Lanes
from tilewright.sim.check import protocols
from tilewright.sim.check.raw import SPACE_CODE
from tilewright.sim.check.rows import routine, run

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_SPACES = (Space.SHARED, Space.GLOBAL)
_WORDS = {each.bits: each for each in (UINT8, UINT16, UINT32, UINT64)}


@routine("check_at_once", "ptr %ctx, i32 %space, i64 %address, i64 %size, i32 %lanes, i32 %site")
def _differ(f: NativeMachine) -> None:
    address, size = (f.lanes(UINT64, f"%{n}", 0) for n in ("address", "size"))
    space, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("space", "lanes", "site"))
    who = protocols.entry(f, lanes, site)
    protocols.tell(f, "race/lanes", f.constant(0, UINT64), who, address, size, space)


def store(m: NativeMachine, space: Space, address: Lanes, value: Lanes, site: Lanes | int) -> None:
    """Watch the active lanes store their values at one address."""
    bits = UINT8.bits if value.dtype.is_bool else value.dtype.bits
    if space not in _SPACES or bits not in _WORDS:
        return
    lanes = m.active()
    cast = m.cast if value.dtype.is_bool else m.bitcast
    words = cast(value, _WORDS[bits])
    differs = m.bits(words != m.pick(words, m.lowest(lanes) & 31)) & lanes
    with m.function.when(str((differs != 0).value)):
        where = (("i32", str(SPACE_CODE[space])), ("i64", m.to_word(address)))
        size = ("i64", str(bits // 8))
        run(m, _differ, *where, size, ("i32", lanes), ("i32", m.lift(site, UINT32)))
