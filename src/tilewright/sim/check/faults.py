"""Faults that end a launch, and deadlocks, as findings.

May import `base`, `isa`, `ir` and the rest of `sim`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.base.errors import SimulationError
from tilewright.base.findings import Finding
from tilewright.base.spaces import Space
from tilewright.sim.check.arrivals import arrivals_at, bytes_for
from tilewright.sim.check.kinds import BY_KEY, BY_NAME
from tilewright.sim.check.memory import Launched, memory_texts
from tilewright.sim.engine.sites import Site
from tilewright.sim.reports import Stopped, Waiting, lanes_text, runs_text

# The kind of a fault by the code of its error, and where a code has several by a part of its text.
BY_CODE: dict[str, str] = {
    "out-of-bounds": "out-of-bounds",
    "misaligned": "out-of-bounds",
    "read-only": "out-of-bounds",
    "deadlock": "deadlock",
    "step-limit": "step-limit",
    "divergent-collective": "divergent-collective",
    "mbarrier-protocol": "mbarrier-init",
    "barrier-protocol": "named-barrier",
    "tensor-memory": "tmem-lifecycle",
    "tensor-map": "tma-rules",
    "trap": "trap",
    "undefined-operation": "undefined-operation",
}
BY_TEXT: tuple[tuple[str, str, str], ...] = (
    ("mbarrier-protocol", "this was not done when its CTA ended", "missing-wait"),
    ("mbarrier-protocol", "the tx-count leaves its range", "mbarrier-tx"),
    ("mbarrier-protocol", "a transaction counts at most", "mbarrier-tx"),
    ("mbarrier-protocol", "an arrival counts at least 1", "mbarrier-arrival"),
    ("mbarrier-protocol", "an arrival beyond what the current phase expects", "mbarrier-arrival"),
    ("mbarrier-protocol", "the current phase waits for more than", "mbarrier-arrival"),
    ("mbarrier-protocol", "more arrivals are dropped than are expected", "mbarrier-arrival"),
    ("mbarrier-protocol", "a .noComplete arrival completes the phase", "mbarrier-arrival"),
    ("mbarrier-protocol", "the parity of a phase is 0 or 1", "mbarrier-phase"),
    ("barrier-protocol", "the cluster's barrier", "divergent-collective"),
    ("tensor-memory", "the lanes of a warp give different addresses", "tmem-access"),
    ("tensor-memory", "a warp reaches only its own quarter", "tmem-access"),
    ("tensor-memory", "begins at a multiple of", "tmem-access"),
    ("tensor-memory", "begins in lane 0 of Tensor Memory", "tmem-access"),
    ("tensor-memory", "begin in the same lane of Tensor Memory", "tmem-access"),
    ("tensor-memory", "in columns that are not allocated", "out-of-bounds"),
    ("tensor-memory", "to columns of Tensor Memory that are not allocated", "out-of-bounds"),
    ("undefined-operation", "descriptor", "descriptor"),
    ("undefined-operation", "a product", "descriptor"),
    ("undefined-operation", "-major matrix", "descriptor"),
    ("undefined-operation", "a matrix in Tensor Memory", "descriptor"),
    ("out-of-bounds", "a matrix descriptor leads outside", "descriptor"),
    ("misaligned", "a tensor map is aligned", "tma-rules"),
    ("misaligned", "a box in shared memory is aligned", "tma-rules"),
)


_SHARED = (Space.SHARED, Space.SHARED_CLUSTER)


def kind_of(error: SimulationError) -> str:
    """Give the kind of a fault that is no deadlock."""
    for code, text, kind in BY_TEXT:
        if error.code == code and text in error.message:
            return kind
    return BY_CODE[error.code]


def fault(error: SimulationError, launched: Launched) -> Finding:
    """Make the finding of a fault that ended a launch."""
    stopped = error.stopped
    assert isinstance(stopped, Stopped), error
    if stopped.waits and error.code == "deadlock":
        return _deadlock(error, stopped, launched)
    name, memory = "its memory", stopped.where
    if stopped.space in _SHARED:
        name, memory = memory_texts(stopped.space, stopped.address, 1, launched)
    who = f"warp {stopped.warp}, {lanes_text(stopped.lanes)}" if stopped.lanes else ""
    finding = _finding(kind_of(error), error, stopped, launched, now=who or "a warp", memory=name)
    site = "" if stopped.site is None else stopped.site.text
    return replace(
        finding,
        actor=", by ".join(part for part in (site, who) if part),
        memory=memory,
        warp=stopped.warp,
        lanes=stopped.lanes,
    )


def after_freeing(fault: Finding, error: SimulationError, freed: Site) -> Finding:
    """Tell of a fault that it uses Tensor Memory which was freed at a place, if it does."""
    if error.code != "tensor-memory" or "that are not allocated" not in error.message:
        return fault
    kind = BY_KEY["tmem-lifecycle/freed"]
    user = f"warp {fault.warp}, {lanes_text(fault.lanes)}"
    text = kind.missing.format(now="the deallocation", before=user, memory="these columns")
    return replace(
        fault,
        kind=kind.name,
        message=kind.title,
        location=freed.location,
        other_location=fault.location,
        actor=freed.text,
        other_actor=fault.actor,
        other_is_later=True,
        missing=text,
        hint=kind.mend,
    )


def _finding(
    name: str,
    error: SimulationError,
    stopped: Stopped,
    launched: Launched,
    *,
    now: str,
    memory: str,
) -> Finding:
    kind = BY_NAME[name]
    edge = kind.missing.format(now=now, before="what comes before", memory=memory)
    rest = (f"expected: {error.expected}",) if error.expected else ()
    return Finding(
        name,
        kind.severity,
        error.message,
        location=error.location,
        missing=edge,
        hint=kind.mend,
        notes=(*rest, *stopped.notes),
        kernel=launched.simulated.kernel.name,
        cta=stopped.cta,
    )


# ---------------------------------------------------------------------------- deadlocks


def _deadlock(error: SimulationError, stopped: Stopped, launched: Launched) -> Finding:
    """Say which wait is at the root of a deadlock, and who should have ended it."""
    kind, root = _root(stopped.waits)
    name = root.name or _what(root)
    finding = _finding(kind, error, stopped, launched, now=f"warp {root.warp}", memory=name)
    told = tuple(_who_should(root, stopped.waits, launched))
    own = f"warp {root.warp}, {lanes_text(root.lanes)}: {root.text}"
    others = (note for note in finding.notes if not note.startswith(own))
    return replace(
        finding,
        message=f"deadlock: {BY_NAME[kind].title}" if kind != "deadlock" else error.message,
        location=root.site.location,
        actor=own,
        memory=_mbarrier_memory(root, launched),
        cta=root.cta,
        warp=root.warp,
        lanes=root.lanes,
        notes=(*told, *others),
    )


def _mbarrier_memory(root: Waiting, launched: Launched) -> str:
    if root.state != "mbarrier":
        return ""
    return memory_texts(Space.SHARED, root.key, 8, launched)[1]


_SHARED_BY_ALL = {"cluster": "the cluster's barrier", "columns": "Tensor Memory"}


def _what(root: Waiting) -> str:
    if root.state == "barrier":
        return f"barrier {root.key}"
    return {"cluster": "the cluster's barrier", "columns": "Tensor Memory"}.get(
        root.state, "memory"
    )


def _root(waits: tuple[Waiting, ...]) -> tuple[str, Waiting]:
    """Choose the wait that explains the others, and the kind of what is wrong with it."""
    for kind, applies in _RULES:
        for wait in waits:
            if applies(wait, waits):
                return kind, wait
    return "deadlock", waits[0]


_Applies = Callable[[Waiting, tuple[Waiting, ...]], bool]


def _bytes_differ(wait: Waiting, waits: tuple[Waiting, ...]) -> bool:
    held = wait.contents
    return held is not None and held.expected_bytes != held.come_bytes


def _arrivals_lack(wait: Waiting, waits: tuple[Waiting, ...]) -> bool:
    held = wait.contents
    return held is not None and 0 < held.arrived < held.expected


def _nobody_comes(wait: Waiting, waits: tuple[Waiting, ...]) -> bool:
    """Tell a barrier of the CTA where all that still live are at this one, or at another."""
    return wait.state == "barrier" and all(
        each.state == "barrier" for each in waits if each.cta == wait.cta
    )


def _is_named(wait: Waiting) -> bool:
    """Tell a barrier that is told how many threads come to it."""
    return wait.threads is not None and wait.threads[2] != 0


def _fresh_circle(wait: Waiting, waits: tuple[Waiting, ...]) -> bool:
    """Tell mbarriers of which several are waited for, by different warps, and none has begun.

    Each would arrive at what another waits for: somebody had to pass without waiting.
    """
    held = [each for each in waits if each.contents is not None]
    fresh = all(each.contents and not each.contents.phase for each in held)
    circle = {(each.warp, each.key) for each in held}
    return (
        wait.contents is not None
        and fresh
        and len({warp for warp, _ in circle}) > 1
        and len({key for _, key in circle}) > 1
    )


def _nobody_came(wait: Waiting, waits: tuple[Waiting, ...]) -> bool:
    """Tell an mbarrier that nobody has ever arrived at, where others have got further."""
    return wait.contents is not None and not wait.came and any(each.came for each in waits)


def _waits_for(state: str) -> _Applies:
    return lambda wait, waits: wait.state == state


# What contradicts itself comes first: bytes that do not add up, a phase of which only some
# arrivals have come, a barrier to which nobody can come any more. Then what nobody has begun.
_RULES: tuple[tuple[str, _Applies], ...] = (
    ("mbarrier-tx", _bytes_differ),
    ("mbarrier-arrival", _arrivals_lack),
    ("mbarrier-phase", lambda wait, waits: wait.overtaken),
    ("named-barrier", lambda wait, waits: _nobody_comes(wait, waits) and _is_named(wait)),
    ("divergent-collective", _nobody_comes),
    ("named-barrier", lambda wait, waits: _is_named(wait)),
    ("tmem-lifecycle", _waits_for("columns")),
    ("mbarrier-phase", _fresh_circle),
    ("mbarrier-arrival", _nobody_came),
    ("mbarrier-arrival", _waits_for("mbarrier")),
    ("divergent-collective", _waits_for("gathering")),
    ("divergent-collective", _waits_for("barrier")),
    ("divergent-collective", _waits_for("cluster")),
)


def _who_should(root: Waiting, waits: tuple[Waiting, ...], launched: Launched) -> Iterator[str]:
    """Say who should have come, from which lines, and who has."""
    kernel = launched.simulated.kernel
    if root.contents is not None:
        held, name = root.contents, root.name.partition("[")[0]
        lines = arrivals_at(kernel, name)
        yield f"{root.name} has {held.arrived} of {held.expected} arrivals in phase {held.phase}"
        if root.overtaken:
            yield (
                f"warp {root.warp} does not know that the phase before has ended: the wait is "
                "meant for the one before that, or would have ended at once if it came earlier"
            )
        yield from _who_came(root, waits, launched)
        yield from (f"it is arrived at by {each}" for each in lines)
        if held.expected_bytes or held.come_bytes:
            yield from (f"bytes for it are counted by {each}" for each in bytes_for(kernel, name))
        if not lines:
            yield f"no line of {kernel.name} arrives at {name}"
    if root.state == "barrier":
        here = [w for w in waits if w.state == "barrier" and (w.cta, w.key) == (root.cta, root.key)]
        elsewhere = [w for w in waits if w.cta == root.cta and w not in here]
        yield f"at barrier {root.key} wait " + ", ".join(map(_warp_at, here))
        yield from (f"not there: {_warp_at(each)}" for each in elsewhere)
        yield from _who_came(root, waits, launched)


def _who_came(root: Waiting, waits: tuple[Waiting, ...], launched: Launched) -> Iterator[str]:
    """Say which warps have arrived, and which only before; those that wait there are known."""
    there = {w.warp for w in waits if w.state == "barrier" and w.key == root.key} - {root.warp}
    lines: dict[tuple[bool, int, int, str], list[int]] = {}
    for came in root.came:
        place = "" if came.now else _whereabouts(came.warp, root, waits)
        if root.state == "mbarrier" or not (came.now and came.warp in there | {root.warp}):
            lines.setdefault((not came.now, came.site, came.lanes, place), []).append(came.warp)
    for (late, number, mask, place), warps in sorted(lines.items()):
        site = launched.simulated.sites.sites[number]
        who = (
            f"{runs_text('warp', warps)}, {lanes_text(mask)}" if mask else runs_text("warp", warps)
        )
        at = "" if site.location is None else f" at {site.location.header()}"
        if late:
            yield f"{who} came before, by {site.text}{at}, and not again: {place}"
        else:
            yield f"{who} came, by {site.text}{at}"


def _whereabouts(warp: int, root: Waiting, waits: tuple[Waiting, ...]) -> str:
    """Say where a warp is that has not come: where it waits, if it is not over."""
    found = [each for each in waits if (each.cta, each.warp) == (root.cta, warp)]
    places = {each.site.location.header() for each in found if each.site.location is not None}
    if not found:
        return "it has ended"
    return f"it waits at {', '.join(sorted(places))}" if places else "it waits"


def _warp_at(wait: Waiting) -> str:
    place = wait.site.location
    where = "" if place is None else f" at {place.header()}"
    return f"warp {wait.warp}, {lanes_text(wait.lanes)}{where}"
