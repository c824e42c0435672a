"""Which findings are of one fault: the one that names its cause is told, and others go with it.

May import `base`, `isa`, `sim.engine` and the modules of `sim.check` below it. A wait, a barrier
or an election that is missing is met at several places: where data are used too early, where
mbarriers get out of step, at last where the launch hangs. It is mended at one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.base.findings import Finding
from tilewright.base.spaces import Space
from tilewright.isa import mbarrier, tensor_allocation
from tilewright.sim.check.kinds import BY_KEY
from tilewright.sim.check.raw import THREADS, UNWRITTEN, RawFinding
from tilewright.sim.engine.sites import Site

_FENCES = (
    *("missing-proxy-fence", "misplaced-proxy-fence", "missing-proxy-fence-war"),
    "missing-wait/fence",
)
# A wait that passes at once explains what is used too early; that explains what is out of step.
_WAITS = ("mbarrier-phase/unmet", "mbarrier-phase/idle")
_DISORDERS = (
    *("ignored-try-wait", "race", "stage-overwritten", "stage-overwritten/refill"),
    *("mbarrier-phase", "missing-wait", "missing-wait/first"),
)
# What makes mbarriers get out of step.
_ELECTED = "not-elected"
# Who comes to a barrier twice, and what lets the wrong warps meet: then nothing is in order.
_SURPLUS, _SHARED_BARRIER = "named-barrier", "named-barrier/shared"
_CAUSES = (_ELECTED, *_WAITS, *(kind for kind in _DISORDERS if kind != "race"))
_OUT_OF_STEP = (
    *("mbarrier-phase/ahead", "mbarrier-phase/early", "mbarrier-phase/overtaken"),
    *("mbarrier-arrival", "mbarrier-tx"),
)
# The kinds of faults that end a launch whose mbarriers are out of step.
_HANGS = (
    *("step-limit", "missing-wait"),
    *("mbarrier-arrival", "mbarrier-phase", "mbarrier-tx"),
)


@dataclass
class Cause:
    """A fault: what was found of it, all of one kind at one pair of places, and what goes with it.

    `alike` are of the same kind, and are mended with it; `effects` may come of it.
    """

    group: list[RawFinding]
    alike: list[RawFinding] = field(default_factory=list[RawFinding])
    effects: list[RawFinding] = field(default_factory=list[RawFinding])

    @property
    def first(self) -> RawFinding:
        """Give what was found first."""
        return self.group[0]


def causes(raw: Iterable[RawFinding]) -> list[Cause]:
    """List the faults of which findings tell, in the order in which they were met."""
    groups: dict[object, list[RawFinding]] = {}
    for each in raw:
        known = _turned(_named(each))
        groups.setdefault((known.kind, places(known)), []).append(known)
    told: list[Cause] = []
    by_mend: dict[object, Cause] = {}
    for group in _without_order(list(groups.values())):
        mends = _mends(group[0])
        known = next((by_mend[each] for each in mends if each in by_mend), None)
        if known is None:
            known = Cause(group)
            told.append(known)
        else:
            known.alike += group[:1]
        by_mend |= dict.fromkeys(mends, known)
    return _with_effects(told)


def places(each: RawFinding) -> frozenset[object]:
    """Say where a finding is, whichever side came first."""
    return frozenset((_place(each.site), _place(each.other)))


def _place(site: Site | None) -> object:
    return None if site is None else site.location or site.text


# What makes a thing that others must not use before: a race for it is of a kind of its own.
_MADE = ((tensor_allocation.alloc, "tmem-lifecycle/published"), (mbarrier.init, "mbarrier-init"))


def _named(each: RawFinding) -> RawFinding:
    """Give a race for an mbarrier, or for the address of Tensor Memory, the name that it has."""
    made = None if each.other is None else _made(each.site) or _made(each.other)
    return replace(each, kind=made) if made and each.kind in ("race", UNWRITTEN) else each


def _made(site: Site) -> str | None:
    for declaration, kind in _MADE:
        if site.text.startswith(f"{declaration.family}.{declaration.parts[0]}."):
            return kind
    return None


def _turned(each: RawFinding) -> RawFinding:
    """Let the guilty line of a race be the one that comes later in the program.

    Which of them is met first is chance, as nothing orders them; who uses what is made is guilty.
    """
    if each.kind not in _EITHER or each.other is None:
        return each
    if each.kind in ("race", "global-race", _SHARED_BARRIER):
        turns = _lines(each.site) < _lines(each.other)
    else:
        turns = _made(each.site) == each.kind and _made(each.other) != each.kind
    if not turns:
        return each
    return replace(
        each,
        **{name: getattr(each, f"other_{name}") for name in _SIDES},
        **{f"other_{name}": getattr(each, name) for name in _SIDES},
        site=each.other,
        other=each.site,
        acting=0,
    )


_NAMES = tuple(kind for _, kind in _MADE)
_EITHER = ("race", "global-race", _SHARED_BARRIER, *_NAMES)
_SIDES = ("owner", "warp", "lanes")


def _lines(site: Site) -> list[tuple[int, int]]:
    """Give the lines and columns that lead to a place, from the kernel's own on."""
    if site.location is None:
        return []
    return [(each.line, each.column) for each in reversed(site.location.chain())]


def _without_order(groups: Sequence[list[RawFinding]]) -> list[list[RawFinding]]:
    """Leave out what is asked of accesses in order only, where there is none.

    What a read meets too early for want of an order is not written yet; and a fence goes with a
    barrier, which lacks.
    """
    lacking = [group[0] for group in groups if group[0].kind in (*_DISORDERS, *_WAITS, *_NAMES)]
    pairs = {places(each) for each in lacking}
    early = {place for each in lacking for place in places(each)}
    waits = {place for each in lacking if each.kind in _WAITS for place in places(each)}
    return [
        group
        for group in groups
        if not (group[0].kind == UNWRITTEN and _place(group[0].site) in early)
        and not (group[0].kind in _FENCES and places(group[0]) in pairs)
        # What uses data although its wait has passed at once is told with that wait.
        and not (group[0].kind in _DISORDERS and places(group[0]) & waits - {None})
    ]


def _mends(each: RawFinding) -> list[object]:
    """Say what there is to mend: findings that have something of it in common are of one fault."""
    name = each.kind.removesuffix("/first").removesuffix("/refill")
    guilty = each.other if BY_KEY[each.kind].blames_earlier and each.other else each.site
    mends: list[object] = [(name, _place(guilty))]
    if each.kind == _ELECTED or (each.kind == "mbarrier-init" and len(places(each)) == 1):
        mends.append((name, each.warp))
    if each.kind in _NAMES and each.other and _made(each.other) == each.kind:
        mends.append((name, "made", each.other_warp))
    if name == "stage-overwritten" and each.owner != THREADS:
        # Who forgets to wait before it fills a stage forgets it for all copies.
        mends.append((name, "filled", each.warp))
    later = each.kind in ("missing-wait/first", "missing-wait/exit")
    awaited, owner = (each.site, each.owner) if later else (each.other, each.other_owner)
    if name in _UNAWAITED and awaited is not None and owner != THREADS:
        mends.append(("awaited", _place(awaited)))
    return mends


# Nobody has waited for an operation.
_UNAWAITED = ("missing-wait", "missing-wait/exit", "stage-overwritten", "tmem-lifecycle/freed")


def _with_effects(told: list[Cause]) -> list[Cause]:
    """Let what is out of step, or goes wrong as several threads act for one, go with its cause."""
    ranks = ((_SURPLUS,), (_SHARED_BARRIER,), (_ELECTED,), _CAUSES, (UNWRITTEN,), _OUT_OF_STEP)
    found = (each for rank in ranks for each in told if each.first.kind in rank)
    cause = next((each for each in found if each.first.space is not Space.LOCAL), None)
    if cause is None:
        return told
    later = _OUT_OF_STEP
    if cause.first.kind == _ELECTED:
        later = (*_OUT_OF_STEP, *_CAUSES, "missing-wait/exit")
    elif cause.first.kind == _SURPLUS:
        later = (*_OUT_OF_STEP, _SHARED_BARRIER)
    elif cause.first.kind == _SHARED_BARRIER:
        later = (*_OUT_OF_STEP, *_WAITS, *_DISORDERS, UNWRITTEN)
    effects = [each for each in told if each is not cause and each.first.kind in later]
    cause.effects += [one for each in effects for one in (each.first, *each.alike)]
    return [each for each in told if each not in effects]


def cause_of(fault: Finding, found: Sequence[Finding]) -> Finding | None:
    """Give what was found before a fault ended a launch, if the fault comes of it."""
    out_of_step = {key.partition("/")[0] for key in (*_CAUSES, *_OUT_OF_STEP, UNWRITTEN)}
    if fault.kind in _HANGS:
        return next((each for each in found if each.kind in out_of_step), None)
    shared = BY_KEY[_SHARED_BARRIER]
    if fault.kind in (shared.name, "divergent-collective"):
        return next((each for each in found if each.message == shared.title), None)
    published = BY_KEY["tmem-lifecycle/published"].title
    if fault.kind.startswith("tmem"):
        return next((each for each in found if each.message == published), None)
    return None
