"""Findings as native code records them: numbers of places, owners and lanes.

May import `base`, `sim.engine` and the rest of `sim.check`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.spaces import Space
from tilewright.sim.check import state
from tilewright.sim.check.kinds import ALL
from tilewright.sim.engine import context
from tilewright.sim.engine.sites import Site

# Who makes accesses, by the number of the owner divided by 32.
OWNERS = (
    "warp",
    "tensor core",
    "copy group",
    "bulk copy",
    "bulk copy",
    "load of Tensor Memory",
    "store of Tensor Memory",
    "asynchronous copy",
)
_SPACES = (Space.SHARED, Space.TMEM, Space.GLOBAL, Space.LOCAL)
SPACE_CODE = {space: code for code, space in enumerate(_SPACES)}


@dataclass(frozen=True)
class RawFinding:
    """A finding of one CTA, not put into words yet.

    `site` is the access at which it was found, `other` the earlier one, if there is one. Owners
    are who made the accesses: "warp", or an asynchronous agent by its name in `OWNERS`. `lanes`
    and `other_lanes` are masks of lanes of `warp` and `other_warp`, who accessed or issued. The
    bytes are those from `address` on, `size` of them; in Tensor Memory the address is that of a
    cell, and the size counts lanes of its column. `acting` are all lanes of the access that is at
    `site`, where `lanes` are only those that access these bytes, else 0. `count` is how often it
    was found. What is about a place, and nobody in particular, has no owner. `beyond` is set in
    the last one of a CTA: how often something else was found that there was no room for.
    """

    kind: str
    cta: int
    site: Site
    other: Site | None
    owner: str
    other_owner: str
    warp: int
    lanes: int
    other_warp: int
    other_lanes: int
    space: Space
    address: int
    size: int
    count: int
    acting: int = 0
    beyond: int = 0


def collect(
    special: Mapping[str, np.ndarray], cta: int, sites: Sequence[Site], *, stuck: bool
) -> list[RawFinding]:
    """Read what a CTA has found out of its memory, in the order in which it was found.

    One that is `stuck` would have gone on.
    """
    memory = special["check"]
    if not state.number_of(memory, "found_count"):
        return []
    rows = state.found_rows(memory).astype(object).tolist()
    found = [_finding(row, cta, sites) for row in rows]
    found = _paired(found if stuck else [_known_now(each, special) for each in found])
    # What is read too early may be read before anybody has written it.
    early = {id(site) for each in found if each.other for site in (each.site, each.other)}
    told = [each for each in found if each.kind != UNWRITTEN or id(each.site) not in early]
    beyond = state.number_of(memory, "others")
    return [*told[:-1], replace(told[-1], beyond=beyond)] if beyond else told


def _known_now(each: RawFinding, special: Mapping[str, np.ndarray]) -> RawFinding:
    """Let no wait explain a read of shared memory that nothing has written afterwards either."""
    if each.kind != UNMET or each.space is not Space.SHARED or _is_written(each, special):
        return each
    return replace(each, kind=UNWRITTEN, other=None, other_owner="", other_warp=0, other_lanes=0)


def _is_written(each: RawFinding, special: Mapping[str, np.ndarray]) -> bool:
    first = each.address - context.SHARED_START
    number = first // state.RECORD_BYTES
    line = int(special["check_lines"].view(np.uint64)[number // state.LINE_RECORDS])
    if line != state.SETTLED:
        return line != state.EMPTY
    bytes = ((1 << each.size) - 1) << first % state.RECORD_BYTES & state.BYTES
    record = special["check_shadow"].view(np.uint64)[4 * number : 4 * number + 2]
    return any(int(entry) & bytes for entry in record)


def about(kind: str, cta: int, site: Site) -> RawFinding:
    """Make a finding about a place, and nobody in particular."""
    return RawFinding(kind, cta, site, None, "", "", 0, 0, 0, 0, Space.LOCAL, 0, 0, 1)


def freed(memory: np.ndarray, cta: int, sites: Sequence[Site]) -> list[RawFinding]:
    """Tell where a CTA that a fault has ended has last freed Tensor Memory, if it has."""
    number = state.number_of(memory, "freed")
    return [about(FREED, cta, sites[number - 1])] if number else []


THREADS = OWNERS[0]  # the owner that is a warp itself; the others act for one
UNWRITTEN = "uninitialised"
UNMET = "mbarrier-phase/unmet"
# No fault by itself: where Tensor Memory was freed, if what ends the launch uses it afterwards.
FREED = "freed"
# The kinds of two accesses without order. Which of them is met first is chance: of one pair of
# places the first of these kinds stands for all.
_DISORDERS = (
    *("ignored-try-wait", "race", "stage-overwritten", "stage-overwritten/refill"),
    *(UNMET, "mbarrier-phase/idle", "mbarrier-phase"),
    *("missing-wait", "missing-wait/first"),
)


def _paired(found: Sequence[RawFinding]) -> list[RawFinding]:
    """Make one finding of those about two places that lack an order."""
    kept: dict[object, RawFinding] = {}
    for number, each in enumerate(found):
        key: object = number
        if each.kind in _DISORDERS:
            key = frozenset((id(each.site), id(each.other)))
        first = kept.get(key)
        if first is None:
            kept[key] = each
            continue
        chosen = min(first, each, key=lambda one: _DISORDERS.index(one.kind))
        kept[key] = replace(chosen, count=first.count + each.count)
    return list(kept.values())


def _finding(row: Sequence[int], cta: int, sites: Sequence[Site]) -> RawFinding:
    named = dict(zip(state.FOUND_FIELDS, row, strict=True))
    other = sites[named["other"]] if named["other"] < len(sites) else None
    return RawFinding(
        kind=ALL[named["kind"]].key,
        cta=cta,
        site=sites[named["site"]],
        other=other,
        owner=OWNERS[named["owner"] >> 5],
        other_owner=OWNERS[named["other_owner"] >> 5],
        warp=named["warp"],
        lanes=named["lanes"],
        other_warp=named["other_warp"],
        other_lanes=named["other_lanes"],
        space=_SPACES[named["space"]],
        address=named["address"],
        size=named["size"],
        acting=named["acting"],
        count=named["count"],
    )
