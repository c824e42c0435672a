"""Faults and deadlocks of a launch as typed errors at the user's line.

May import `base`, `ir` and the rest of `sim`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base import lazy
from tilewright.base.errors import CODES, DeadlockError, SimulationError, StepLimit, TilewrightError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Offset, Read, SharedBase, as_constant
from tilewright.ir.operands import paired_operands
from tilewright.ir.shapes import static_shape
from tilewright.ir.statements import Bind, Instruct, While
from tilewright.ir.types import PointerType
from tilewright.ir.visit import variables, walk_kinds, walk_statements
from tilewright.isa import mbarrier, tensor_allocation
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine import context
from tilewright.sim.engine.context import PATH, PATHS, RECORD
from tilewright.sim.engine.sites import Site
from tilewright.sim.options import DEFAULT_STEP_LIMIT, Options, Region
from tilewright.sim.places import element

if TYPE_CHECKING:
    from tilewright.sim.check import waiting as check_waiting
    from tilewright.sim.check.waiting import Came
else:
    check_waiting = lazy.module("tilewright.sim.check.waiting")

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Waiting:
    """Lanes of a warp that wait in a deadlock; `text` says for what, as its note does.

    `state` is a kind of wait of `context.WAITS`, or "gathering", "joining" or "polling"; `key` is
    what a wait of the kind is for, `name` the user's name of an mbarrier, `need` a mask of lanes.
    `contents` are those of an mbarrier, `threads` are (arrived, expected, told how many) of a
    barrier. In a run that is checked `came` has who has arrived there, and `overtaken` tells that
    the wait may be for a phase that has ended.
    """

    cta: Grid
    warp: int
    lanes: int
    site: Site
    state: str
    key: int
    need: int
    text: str
    name: str = ""
    contents: mbarrier.Contents | None = None
    threads: tuple[int, int, int] | None = None
    came: tuple[Came, ...] = ()
    overtaken: bool = False


@dataclass(frozen=True)
class Stopped:
    """Who ended a launch by a fault, and the memory that it is about; or who waits in a deadlock.

    Nothing in it depends on where the host has put memory, but the address.
    """

    cta: Grid
    site: Site | None = None
    warp: int = 0
    lanes: int = 0
    space: Space | None = None
    address: int = 0
    where: str = ""
    waits: tuple[Waiting, ...] = ()
    notes: tuple[str, ...] = ()


def coordinates(index: int, grid: Grid) -> Grid:
    """Give the coordinates of a CTA."""
    x, rest = index % grid[0], index // grid[0]
    return x, rest % grid[1], rest // grid[1]


def cta_name(index: int, grid: Grid) -> str:
    """Name a CTA by its coordinates."""
    return f"CTA {coordinates(index, grid)}"


def fault(
    simulated: CompiledKernel, cta: Any, grid: Grid, regions: Sequence[Region]
) -> TilewrightError:
    """Make the error for the fault that a CTA recorded."""
    message = simulated.sites.messages[int(cta.get("error"))]
    site = simulated.sites.sites[int(cta.get("error_site"))]
    kind, _ = CODES[message.code]
    lane, warp, address = (cta.get(f"error_{each}") for each in ("lane", "warp", "address"))
    thread = _thread(warp * 32 + lane, simulated)
    notes = [f"in {simulated.kernel.name}, {cta_name(cta.index, grid)}, {thread}", site.text]
    further: list[str] = []
    if message.mbarrier:
        further.append(
            f"its mbarrier is {shared_name(address, simulated)}: {_mbarrier(address, cta)}"
        )
    notes += further
    where = ""
    if message.space is not None:
        name, where = _where(message.space, address, simulated, regions)
        notes.append(f"{name}{where}")
    error = kind(
        message.text,
        code=message.code,
        location=site.location,
        notes=tuple(notes),
        **(_of_limit(simulated.options) if kind is StepLimit else {}),
    )
    space = Space.SHARED if message.mbarrier else message.space
    by = Stopped(
        *(coordinates(cta.index, grid), site, warp, 1 << lane, space, address),
        where=where.lstrip(":;, "),
        notes=tuple(further),
    )
    return _stopped(error, by)


def _of_limit(options: Options) -> dict[str, str]:
    limit = options.step_limit or DEFAULT_STEP_LIMIT
    return {
        "expected": f"at most {limit} turns of loops, by all warps of a CTA together",
        "found": "more, and the last of them here",
        "hint": "see that the loop ends, or compile with a larger step_limit=",
    }


def _stopped(error: TilewrightError, by: Stopped) -> TilewrightError:
    if isinstance(error, SimulationError):
        error.stopped = by
    return error


def _thread(linear: int, simulated: CompiledKernel) -> str:
    return f"thread {linear} (warp {linear // 32}, lane {linear % 32})"


def _where(
    space: Space, address: int, simulated: CompiledKernel, regions: Sequence[Region]
) -> tuple[str, str]:
    """Name an address, and say of which memory it is, or is near."""
    if space is not Space.GLOBAL:
        end = context.SHARED_START + simulated.kernel.shared_bytes
        near = f"; the kernel's shared memory is [{context.SHARED_START}, {end})"
        return f"shared address {address}", near
    name = f"global address {address:#x}"
    if 0 <= address < _FIRST_PAGE:
        return name, ", of a null pointer"
    if not regions:
        return name, "; the launch has no tensor"
    nearest = min(regions, key=lambda r: _distance(address, r))
    if _distance(address, nearest) > max(_NEAR, nearest.size):
        return name, ", nowhere near a tensor of the launch"
    offset = address - nearest.address
    return name, f": byte {offset} of {nearest.name}, which has {nearest.size} bytes"


# No tensor begins in the first page; an address this far from one was not computed from it.
_FIRST_PAGE = 4096
_NEAR = 1 << 30


def _distance(address: int, region: Region) -> int:
    return max(region.address - address, address - (region.address + region.size), 0)


def unfreed(simulated: CompiledKernel, cta: Any, grid: Grid) -> TilewrightError:
    """Make the error for a CTA that has ended without freeing its Tensor Memory."""
    statements = walk_statements(simulated.kernel.body)
    places = [
        stmt.location
        for stmt in statements
        if isinstance(stmt, Instruct) and stmt.form.declaration is tensor_allocation.alloc
    ]
    others = (f"memory is also allocated at {each.header()}" for each in places[1:] if each)
    error = SimulationError(
        "a CTA ends without freeing the Tensor Memory that it has allocated",
        code="tensor-memory",
        location=places[0] if places else None,
        expected="every allocation deallocated before the kernel ends",
        found=f"{columns_text(cta)} still allocated",
        notes=(f"in {simulated.kernel.name}, {cta_name(cta.index, grid)}", *others),
    )
    return _stopped(error, Stopped(coordinates(cta.index, grid), notes=error.notes[1:]))


def columns_text(cta: Any) -> str:
    """Name the columns of Tensor Memory that are allocated, such as `columns 0-63, 128-159 are`."""
    granules = [each for each in range(32) if cta.get("tmem_columns") >> each & 1]
    size = tensor_allocation.GRANULE
    columns = [column for each in granules for column in range(size * each, size * (each + 1))]
    return f"{runs_text('column', columns)} are" if columns else "none is"


# ---------------------------------------------------------------------------- deadlock


def deadlock(
    simulated: CompiledKernel, cta: Any, grid: Grid, others: Sequence[Any] = ()
) -> DeadlockError:
    """Make the error for a CTA that is stuck: who waits, where, for what.

    Of the `others` in flight those of its cluster are told of as well.
    """
    first, notes = _stuck(simulated, cta, grid)
    waits = list(_waiting(simulated, cta, grid))
    apart = _apart(simulated, cta)
    for other in others:
        if other.cluster is cta.cluster:
            notes += _stuck(simulated, other, grid)[1]
            waits += _waiting(simulated, other, grid)
    if apart is not None:
        error = DeadlockError(
            f"{apart.text} is executed in a branch by some lanes of a warp, and the others, which "
            "it waits for, wait elsewhere for these",
            code="divergent-collective",
            location=apart.location,
            expected="all lanes of the warp, or all that the member mask names, together",
            notes=tuple(notes),
        )
    else:
        error = DeadlockError(
            "deadlock: no thread can run and nothing in flight can complete a wait",
            code="deadlock",
            location=first,
            notes=tuple(notes),
        )
    place, told = coordinates(cta.index, grid), error.notes[1:]
    error.stopped = Stopped(place, apart, waits=tuple(waits), notes=told)
    return error


def _apart(simulated: CompiledKernel, cta: Any) -> Site | None:
    """Find a collective whose missing lanes are in others that wait for lanes of its own."""
    waiting = [
        (warp, *(int(record[PATH[name]]) for name in ("lanes", "need", "site")))
        for warp, record in _paths(simulated, cta)
        if record[PATH["state"]] == context.GATHERING
    ]
    for warp, lanes, need, site in waiting:
        crossed = 0
        for other, theirs, wanted, _ in waiting:
            if other == warp and theirs != lanes and wanted & lanes:
                crossed |= theirs
        exited = int(cta.words[context.EXITED_START + warp])
        if need & ~lanes & ~exited and not need & ~lanes & ~exited & ~crossed:
            return simulated.sites.sites[site]
    return None


def _stuck(simulated: CompiledKernel, cta: Any, grid: Grid) -> tuple[Location | None, list[str]]:
    """Say where a CTA is stuck first, and for what each of its warps waits."""
    notes: list[str] = [f"in {simulated.kernel.name}, {cta_name(cta.index, grid)}"]
    first: Location | None = None
    for each in _waiting(simulated, cta, grid):
        first = first or each.site.location
        notes.append(f"warp {each.warp}, {lanes_text(each.lanes)}: {each.text}")
        if each.site.location is not None:
            notes[-1] += f" at {_through(each.site.location)}"
    return first, notes + _in_flight(simulated, cta)


def _waiting(simulated: CompiledKernel, cta: Any, grid: Grid) -> Iterator[Waiting]:
    """List the paths of a CTA, which all wait."""
    place = coordinates(cta.index, grid)
    for warp, record in _paths(simulated, cta):
        state, key = _STATES.get(int(record[PATH["state"]])), int(record[PATH["key"]])
        state = state or context.WAITS[int(record[PATH["wait"]])]
        site = simulated.sites.sites[int(record[PATH["site"]])]
        text = _waits(record, site, cta, simulated)
        lanes, need = int(record[PATH["lanes"]]), int(record[PATH["need"]])
        on_mbarrier = state == "mbarrier"
        came, overtaken = _known(state, key, warp, cta)
        yield Waiting(
            *(place, warp, lanes, site, state, key, need, text),
            name=shared_name(key, simulated) if on_mbarrier else "",
            contents=_contents(key, cta) if on_mbarrier else None,
            threads=_threads_at(key, cta) if state == "barrier" else None,
            came=came,
            overtaken=overtaken,
        )


def _known(state: str, key: int, warp: int, cta: Any) -> tuple[tuple[Came, ...], bool]:
    """Give what the checker knows of a wait: who has arrived; whether it may be overtaken."""
    memory = cta.special.get("check")
    if memory is None or state not in ("mbarrier", "barrier"):
        return (), False
    if state == "mbarrier":
        overtaken = check_waiting.is_overtaken(memory, warp, key)
        return check_waiting.at_mbarrier(memory, key), overtaken
    turn = cta.words[_barrier_start(key) + context.BARRIER_FIELDS.index("generation")]
    return check_waiting.at_barrier(memory, key, int(turn)), False


_STATES = {context.GATHERING: "gathering", context.JOINING: "joining", context.POLLING: "polling"}


def _through(location: Location) -> str:
    """Name a place, and the calls that lead to it."""
    return ", called from ".join(each.header() for each in location.chain())


def _in_flight(simulated: CompiledKernel, cta: Any) -> list[str]:
    """List what is in flight and nobody waits for, by lines of the program."""
    counted: dict[str, int] = {}
    for number in range(cta.get("queue_head"), cta.get("queue_tail")):
        start = number % context.QUEUE_RECORDS * context.RECORD_WORDS
        record = cta.queue[start : start + context.RECORD_WORDS]
        if record[RECORD["agent"]]:
            site = simulated.sites.sites[int(record[RECORD["site"]])]
            where = "" if site.location is None else f" at {_through(site.location)}"
            text = f"{site.text}{where}, {_completion(record, cta, simulated)}"
            counted[text] = counted.get(text, 0) + 1
    total = sum(counted.values())
    listed = [f"{count} x {text}" for text, count in counted.items()]
    return [f"{total} asynchronous operation(s) in flight that nobody waits for", *listed]


def _completion(record: np.ndarray, cta: Any, simulated: CompiledKernel) -> str:
    """Say what tells that an operation is done: an mbarrier, or a group of its threads."""
    barrier, kind = int(record[RECORD["barrier"]]), int(record[RECORD["group"]])
    if barrier:
        return f"seen through {shared_name(barrier, simulated)}"
    if not kind:
        return "seen through what is issued after it"
    warp, lanes = int(record[RECORD["warp"]]), int(record[RECORD["lanes"]])
    made = cta.special["groups"].view(np.uint32).reshape(-1, context.WARPS, 32)[kind - 1, warp]
    lane = (lanes & -lanes).bit_length() - 1
    state = "committed" if record[RECORD["number"]] < made[lane] else "not committed to a group"
    return f"of warp {warp}, {lanes_text(lanes)}, {state}"


def _paths(simulated: CompiledKernel, cta: Any) -> Iterator[tuple[int, np.ndarray]]:
    size = simulated.path_words
    for warp in range(context.WARPS):
        used = int(cta.words[context.USED_START + warp])
        for slot in range(PATHS):
            if used >> slot & 1:
                start = (warp * PATHS + slot) * size
                yield warp, cta.paths[start : start + size]


def lanes_text(mask: int) -> str:
    """Name a set of lanes, such as `lanes 0, 4-7`."""
    return runs_text("lane", [lane for lane in range(32) if mask >> lane & 1])


def runs_text(unit: str, numbers: Sequence[int]) -> str:
    """Name ascending numbers of a unit, those that follow one another by their ends."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return f"{unit}{'s' * (len(numbers) != 1)} {', '.join(texts)}"


def _waits(record: np.ndarray, site: Site, cta: Any, simulated: CompiledKernel) -> str:
    state, kind = int(record[PATH["state"]]), context.WAITS[int(record[PATH["wait"]])]
    text = site.text
    need = lanes_text(int(record[PATH["need"]])) if record[PATH["need"]] else "nobody"
    if state == context.GATHERING:
        return f"{text} waits until {need} execute it together"
    if state == context.JOINING:
        return f"waits for {need} to come out of a branch"
    if state == context.POLLING:
        polled = ", ".join(_polled(site.location, simulated))
        return "polls memory that does not change" + (f" ({polled})" if polled else "")
    key = int(record[PATH["key"]])
    if kind == "time":
        return f"{text} sleeps in a loop that polls memory that does not change"
    if kind == "columns":
        return (
            f"{text} waits for {key} free columns of Tensor Memory; {columns_text(cta)} allocated"
        )
    if kind == "cluster":
        arrived, expected = (int(cta.cluster[context.CLUSTER[each]]) for each in _OF_CLUSTER)
        return f"{text} waits for its cluster: {arrived} of {expected} threads have arrived"
    if kind == "barrier":
        return f"{text} waits at barrier {key}: {_barrier(key, cta)}"
    if kind == "mbarrier":
        place = shared_name(key, simulated)
        state = f"{_mbarrier(key, cta)}{_exited(cta)}"
        return f"{text} waits for phase parity {_parity(record)} of {place}: {state}"
    return f"{text} waits"


def _polled(location: Location | None, simulated: CompiledKernel) -> list[str]:
    """Name the buffers that a loop at a place reads."""
    found: dict[str, None] = {}
    for loop in walk_statements(simulated.kernel.body):
        if isinstance(loop, While) and loop.location == location:
            pointers = [each.pointer for each in walk_kinds(loop, Read)]
            for stmt in walk_kinds(loop, Instruct):
                operands = paired_operands(stmt.form, stmt.operands)
                pointers += [place for declared, place in operands if declared.kind == "address"]
            names = (each.name for place in pointers for each in variables(place))
            buffers = {param.name for param in simulated.kernel.params}
            buffers |= {name for name, _, _ in shared_buffers(simulated)}
            found |= {name: None for name in names if name in buffers}
    return list(found)


_OF_CLUSTER = ("arrived", "expected")


def _parity(record: np.ndarray) -> int:
    return int(record[PATH["detail"]]) & 1


def shared_buffers(simulated: CompiledKernel) -> list[tuple[str, int, PointerType]]:
    """List the buffers of shared memory by the user's names, with their byte offsets."""
    found: list[tuple[str, int, PointerType]] = []
    for stmt in walk_statements(simulated.kernel.body):
        if isinstance(stmt, Bind) and isinstance(stmt.value, Offset | SharedBase):
            at = as_constant(stmt.value.bytes) if isinstance(stmt.value, Offset) else 0
            base = stmt.value.pointer if isinstance(stmt.value, Offset) else stmt.value
            if isinstance(base, SharedBase) and isinstance(at, int):
                found.append((stmt.var.name, at, stmt.value.type))
    return sorted(found, key=lambda each: each[1])


def shared_name(address: int, simulated: CompiledKernel) -> str:
    """Name the mbarrier at an address: an element of a buffer of such, else bytes of a buffer."""
    offset = address - context.SHARED_START
    before = [each for each in shared_buffers(simulated) if each[1] <= offset]
    if not before:
        return f"shared address {address}"
    name, start, kind = before[-1]
    index, within = divmod(offset - start, kind.dtype.bytes)
    if kind.dtype.bytes != mbarrier.BYTES or within:
        return f"byte {offset - start} of {name}"
    at: tuple[int, ...] | None = (index,)
    _, declared = dict(simulated.kernel.buffers).get(name, (start, None))
    if declared is not None:
        at = element(declared, static_shape(declared.shape) or (), offset - start)
    if at is None:
        return f"byte {offset - start} from the start of {name}"
    return f"{name}[{', '.join(map(str, at))}]"


def _threads_at(key: int, cta: Any) -> tuple[int, int, int]:
    """Count the threads at a barrier: arrived, expected, and whether it was told how many."""
    start = _barrier_start(key)
    arrived, expected, counted = (int(each) for each in cta.words[start : start + 3])
    return arrived, expected, counted


def _barrier_start(key: int) -> int:
    return context.BARRIER_START + key * len(context.BARRIER_FIELDS)


def _barrier(key: int, cta: Any) -> str:
    arrived, expected, counted = _threads_at(key, cta)
    exited = 32 * cta.get("exited_warps")
    text = f"{arrived} of {expected} threads have arrived"
    return text if counted or not exited else f"{text}, {exited} have exited"


def _exited(cta: Any) -> str:
    """Say how many threads can arrive nowhere any more, if there are some."""
    start = context.EXITED_START
    words = cta.words[start : start + context.WARPS]
    count = sum(int(each).bit_count() for each in words)
    return f", {count} thread{'s have' if count > 1 else ' has'} exited" if count else ""


def _mbarrier(key: int, cta: Any) -> str:
    if not _holds_mbarrier(key, cta):
        return "it lies outside shared memory"
    return str(_contents(key, cta) or "it is not initialised")


def _contents(key: int, cta: Any) -> mbarrier.Contents | None:
    if not _holds_mbarrier(key, cta):
        return None
    start = key - context.SHARED_START
    word = int(cta.shared[start : start + mbarrier.BYTES].view(np.uint64)[0])
    tally = cta.special["tally"].view(np.uint32).reshape(-1, 2)[start // mbarrier.BYTES]
    return mbarrier.contents(word, int(tally[0]), int(tally[1]))


def _holds_mbarrier(key: int, cta: Any) -> bool:
    return 0 <= key - context.SHARED_START <= cta.shared.nbytes - mbarrier.BYTES
