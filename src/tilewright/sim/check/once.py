"""Stores that lanes of a warp make at once: of one place they must store the same value.

May import `isa`, `sim.engine` and the modules of `sim.check` below it. Which lane comes last is not
defined. Atomic stores may differ. Lanes mostly store to places of their own, in the order of their
numbers; values are compared only where two may have one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT8, UINT16, UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.check import protocols
from tilewright.sim.check.raw import SPACE_CODE
from tilewright.sim.check.rows import ask, each_bit, end_if, routine, run

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_SPACES = (Space.SHARED, Space.GLOBAL)
_WORDS = {each.bits: each for each in (UINT8, UINT16, UINT32, UINT64)}
_NUMBERS = f"<{WARP} x i32>"
_WIDE = f"<{WARP} x i64>"


@routine("check_at_once", "ptr %ctx, i32 %space, i64 %address, i64 %size, i32 %lanes, i32 %site")
def _differ(f: NativeMachine) -> None:
    address, size = (f.lanes(UINT64, f"%{n}", 0) for n in ("address", "size"))
    space, lanes, site = (f.lanes(UINT32, f"%{n}", 0) for n in ("space", "lanes", "site"))
    who = protocols.entry(f, lanes, site)
    protocols.tell(f, "race/lanes", f.constant(0, UINT64), who, address, size, space)


@routine("check_may_share", f"ptr %ctx, {_NUMBERS} %place, i32 %lanes", "i1")
def _may_share(f: NativeMachine) -> None:
    """Tell whether two lanes may store to one place; what addresses have above 32 bits is left."""
    place, lanes = f.lanes(UINT32, "%place", WARP), f.lanes(UINT32, "%lanes", 0)
    end_if(f, (lanes & (lanes - 1)) == 0, "i1 false")
    rising = f.bits(_turned(f, place, 1) > place) | (1 << (WARP - 1))
    end_if(f, rising == (1 << WARP) - 1, "i1 false")
    apart = f.select(f.unpack(lanes), place, ~f.lane_id())
    shared = _turned(f, apart, 1) == apart
    for turn in range(2, WARP // 2 + 1):
        shared = shared | (_turned(f, apart, turn) == apart)
    f.function.emit(f"ret i1 {(f.bits(shared) != 0).value}")


def _turned(f: NativeMachine, value: Lanes, turn: int) -> Lanes:
    """Give each lane the value of a later one, in a circle."""
    places = [(lane + turn) % WARP for lane in range(WARP)]
    return f.lanes(UINT32, f.permute(str(value.value), "i32", WARP, places), WARP)


@routine(
    "check_share",
    f"ptr %ctx, i32 %space, {_WIDE} %address, i64 %size, {_WIDE} %word, i32 %lanes, i32 %site",
    seldom=True,
)
def _compare(f: NativeMachine) -> None:
    """Compare what lanes store that have one place."""
    address, words = (f.lanes(UINT64, f"%{n}", WARP) for n in ("address", "word"))
    lanes = f.lanes(UINT32, "%lanes", 0)
    remaining = f.function.slot("i32", 4)
    f.function.emit(f"store i32 %lanes, ptr {remaining}")
    with each_bit(f, remaining) as lane:
        place = f.pick(address, lane)
        mine, word = (f.lanes(UINT64, f.spread(f.pick(v, lane)), WARP) for v in (address, words))
        together = f.bits(address == mine) & lanes
        with f.function.when(str(((f.bits(words != word) & together) != 0).value)):
            where = (("i32", "%space"), ("i64", place), ("i64", "%size"))
            run(f, _differ, *where, ("i32", together), ("i32", "%site"))
            f.function.emit("ret void")
            f.function.label(f.function.new_label("dead"))


def store(
    m: NativeMachine, space: Space, address: Lanes, values: Sequence[Lanes], site: Lanes | int
) -> None:
    """Watch the active lanes store values, one after another, at one address or at their own."""
    own = [(at, each) for at, each in _placed(values) if each.width]
    if space not in _SPACES or not own:
        return
    if not address.width:
        for at, each in own:
            _at_one_address(m, space, address + at, each, site)
        return
    lanes = m.active()
    may = ask(m, _may_share, "i1", (_NUMBERS, m.cast(address, UINT32)), ("i32", lanes))
    with m.function.when(str(m.lanes(BOOL, may, 0).value)):
        for at, each in own:
            for word in _words(m, each):
                place = m.cast(address, UINT64) + at
                where = (("i32", str(SPACE_CODE[space])), (_WIDE, place))
                what = (("i64", str(_bytes(each))), (_WIDE, word))
                who = (("i32", lanes), ("i32", m.lift(site, UINT32)))
                run(m, _compare, *where, *what, *who)


def _placed(values: Sequence[Lanes]) -> list[tuple[int, Lanes]]:
    """Give values of whole bytes with their distances from the first one."""
    placed: list[tuple[int, Lanes]] = []
    at = 0
    for each in values:
        if each.dtype.is_bool or each.dtype.bits % 8 == 0:
            placed.append((at, each))
        at += _bytes(each)
    return placed


def _bytes(value: Lanes) -> int:
    return 1 if value.dtype.is_bool else value.dtype.bits // 8


def _words(m: NativeMachine, value: Lanes) -> list[Lanes]:
    """Give the bits of a value in words of 64."""
    if value.dtype.is_bool:
        return [m.cast(value, UINT64)]
    if value.dtype.bits in _WORDS:
        return [m.cast(m.bitcast(value, _WORDS[value.dtype.bits]), UINT64)]
    # What is wider is an integer.
    return [m.cast(value >> low, UINT64) for low in range(0, value.dtype.bits, UINT64.bits)]


def _at_one_address(
    m: NativeMachine, space: Space, address: Lanes, value: Lanes, site: Lanes | int
) -> None:
    lanes = m.active()
    differs = m.constant(0, UINT32)
    for word in _words(m, value):
        differs = differs | (m.bits(word != m.pick(word, m.lowest(lanes) & 31)) & lanes)
    with m.function.when(str((differs != 0).value)):
        where = (("i32", str(SPACE_CODE[space])), ("i64", m.to_word(address)))
        size = ("i64", str(_bytes(value)))
        run(m, _differ, *where, size, ("i32", lanes), ("i32", m.lift(site, UINT32)))
