"""Whether what stands in the shadow of memory comes before an access, and is seen by it.

May import `sim.engine` and the modules of `sim.check` below it. A record of the shadow has four
entries: the last two writes, the last two reads (`state` has the fields of an entry).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.isa.machine import Lanes
from tilewright.sim.check import rows, state
from tilewright.sim.check.kinds import NUMBER
from tilewright.sim.check.lanes import are_all
from tilewright.sim.check.raw import SPACE_CODE
from tilewright.sim.check.rows import Routine, end_if, routine, run
from tilewright.sim.engine import context

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

# How an access is made: through the asynchronous proxy; of the words of an mbarrier; a write.
# Of cells of Tensor Memory; an access that frees them.
ASYNC, MBARRIER, WRITES, OLD_WRITES, CELLS, FREES = 1, 2, 4, 8, 16, 32
# A write that is atomic or ordered; a read that the write of the same access comes after.
# A write of a constant.
STRONG, UPDATES, ALIKE = 64, 128, 256
WORDS = 4
# Where in the shadow of Tensor Memory it says which cells were written: after the records.
WRITTEN_CELLS = 4 * 512 * 32
WHO = state.MOST_TICKS << state.TICK_SHIFT | 0xFF << state.OWNER_SHIFT
PATTERN = (1 << state.TICK_SHIFT) - (1 << state.STEP_SHIFT)


def tick_of(entry: Lanes) -> Lanes:
    """Give the tick of an entry, uint32."""
    m = entry.machine
    return m.cast(entry >> state.TICK_SHIFT, UINT32)


def owner_of(entry: Lanes) -> Lanes:
    """Give the owner of an entry, uint32."""
    return entry.machine.cast((entry >> state.OWNER_SHIFT) & 0xFF, UINT32)


def _lane_of(entry: Lanes) -> Lanes:
    return entry.machine.cast((entry >> state.LANE_SHIFT) & 31, UINT32)


def _step_of(entry: Lanes) -> Lanes:
    return entry.machine.cast((entry >> state.STEP_SHIFT) & 7, UINT32)


def is_strong(entry: Lanes) -> Lanes:
    """Tell whether an entry is of an access that is atomic or ordered."""
    return _step_of(entry) >= state.ATOMIC


def _is_of_many(entry: Lanes) -> Lanes:
    """Tell whether several lanes access the same bytes together."""
    return (_step_of(entry) & state.ANY_LANE) == state.ANY_LANE


def _site_of(entry: Lanes) -> Lanes:
    site = entry.machine.cast((entry >> state.SITE_SHIFT) & state.MOST_SITES, UINT32)
    m = entry.machine
    return m.select(site == state.MOST_SITES, m.constant(state.NO_SITE, UINT32), site)


def _lanes_of(f: NativeMachine, entry: Lanes, bytes: Lanes) -> Lanes:
    """Give the lanes that an entry is of, as far as some bytes go."""
    step = _step_of(entry)
    every = f.constant(-1, UINT32)
    first = f.lowest(f.cast(bytes, UINT32))
    last = 31 - f.cast(f.intrinsic("clz", f.cast(bytes, UINT32)), UINT32)
    low, high = _lane_of(entry) + (first >> step), _lane_of(entry) + (last >> step)
    run_of = (every << low) & (every >> (31 - (high & 31)))
    one = f.constant(1, UINT32) << _lane_of(entry)
    chosen = f.select(step < state.ONE_LANE, run_of, one)
    return f.select(_is_of_many(entry), every, chosen)


# ---------------------------------------------------------------------------- what is found


@routine(
    "check_found",
    "ptr %ctx, i32 %kind, i64 %old, i64 %new, i64 %bytes, i32 %space, i64 %address, i64 %size",
    seldom=True,
)
def found(f: NativeMachine) -> None:
    """Record a finding, or count it, if there is one of the same kind and places."""
    old, new, bytes = (f.lanes(UINT64, f"%{n}", 0) for n in ("old", "new", "bytes"))
    kind = f.cast(f.lanes(UINT32, "%kind", 0), UINT64)
    site = f.cast(_site_of(new), UINT64)
    none = f.constant(state.NO_SITE, UINT64)
    other = f.select(old == 0, none, f.cast(_site_of(old), UINT64))
    count = state.get(f, "found_count")
    words = len(state.FOUND_FIELDS)
    with f.function.loop(str(count.value)) as counter:
        row = state.at(f, "found", f.lanes(UINT64, counter, 0))
        one, two = f.get_word(row, 1), f.get_word(row, 2)
        same = ((one == site) & (two == other)) | ((one == other) & (two == site))
        same = same & (f.get_word(row, 0) == kind)
        with f.function.when(str(same.value)):
            f.set_word(row, words - 1, f.get_word(row, words - 1) + 1)
            f.function.emit("ret void")
            f.function.label(f.function.new_label("dead"))
    full = count >= state.FINDINGS
    with f.function.when(str(full.value)):
        state.put(f, "others", 0, state.get(f, "others") + 1)
    end_if(f, full)
    owner, before = owner_of(new), f.select(old == 0, f.constant(0, UINT32), owner_of(old))
    shared = before >= state.BARRIER_OWNER
    issuer = f.select(shared, state.get(f, "issuer", before & 31), before & 31)
    issuing = state.get(f, "issuer_lanes", before & 31)
    values: dict[str, Lanes | int] = {
        "kind": kind,
        "site": site,
        "other": other,
        "owner": owner,
        "other_owner": before,
        "warp": f.select(owner < state.BARRIER_OWNER, owner & 31, rows.warp(f)),
        "lanes": _lanes_of(f, new, bytes),
        "other_warp": issuer,
        "other_lanes": f.select(shared, issuing, _lanes_of(f, old, bytes)),
        "space": f.lanes(UINT32, "%space", 0),
        "address": f.lanes(UINT64, "%address", 0),
        "size": f.lanes(UINT64, "%size", 0),
        "acting": f.select(owner == rows.warp(f), state.get(f, "acting"), f.constant(0, UINT64)),
        "count": 1,
    }
    row = state.at(f, "found", count)
    for index, name in enumerate(state.FOUND_FIELDS):
        f.set_word(row, index, f.lift(values[name], UINT64))
    state.put(f, "found_count", 0, count + 1)


def report(
    f: NativeMachine,
    kind: str | Lanes,
    old: Lanes,
    new: Lanes,
    bytes: Lanes,
    number: Lanes,
    flags: Lanes | None = None,
) -> None:
    """Record a finding about bytes of a record of shared memory, or cells of Tensor Memory."""
    first = f.cast(f.lowest(f.cast(bytes, UINT32)), UINT64)
    size = f.cast(f.intrinsic("popcount", f.cast(bytes, UINT32)), UINT64)
    address = (number << 4) + (context.SHARED_START + first)
    chosen = f.constant(NUMBER[kind], UINT32) if isinstance(kind, str) else kind
    space = f.constant(SPACE_CODE[Space.SHARED], UINT32)
    if flags is not None:
        cells = (flags & CELLS) != 0
        lane = ((number & 3) << 5) + (first << 1)
        address = f.select(cells, (lane << 16) | (number >> 2), address)
        size = f.select(cells, size << 1, size)
        space = f.select(cells, f.constant(SPACE_CODE[Space.TMEM], UINT32), space)
    words = (("i32", chosen), ("i64", old), ("i64", new), ("i64", bytes))
    run(f, found, *words, ("i32", space), ("i64", address), ("i64", size))


def _kind(f: NativeMachine, name: str) -> Lanes:
    return f.constant(NUMBER[name], UINT32)


@routine(
    "check_judge", "ptr %ctx, i64 %old, i64 %new, i64 %number, i32 %flags, ptr %row", seldom=True
)
def _judge(f: NativeMachine) -> None:
    """Decide whether an entry comes before an access that has some of its bytes, and is seen."""
    old, new, number = (f.lanes(UINT64, f"%{n}", 0) for n in ("old", "new", "number"))
    flags = f.lanes(UINT32, "%flags", 0)
    bytes = old & new & state.BYTES
    end_if(f, bytes == 0)
    owner, actor, tick = owner_of(old), owner_of(new), tick_of(old)
    writes, wrote = (flags & WRITES) != 0, (flags & OLD_WRITES) != 0
    atomic = is_strong(old) & is_strong(new)
    known = rows.ask_known(f, "%row", owner, tick) | _known_of_lanes(f, old, bytes)
    known = known | _known_in_warp(f, old, new, bytes, wrote)
    at_once = ((old ^ new) & (WHO | state.MOST_SITES << state.SITE_SHIFT)) == 0
    # The tensor core keeps the order of a thread; in Tensor Memory products are in order anyway.
    core = (owner >> 5 == state.TENSOR >> 5) & (actor >> 5 == state.TENSOR >> 5)
    in_pipe = core & ((owner == actor) | ((flags & CELLS) != 0))
    ordered = (
        known | in_pipe | atomic | (writes & wrote & (at_once | _is_same_value(old, new, flags)))
    )
    with f.function.when(str((~ordered).value)):
        kind = _disorder(f, old, new, number, flags, wrote)
        # It is the wait that is to be mended, whatever it should have waited for.
        unmet = kind == NUMBER["mbarrier-phase/unmet"]
        other, here = old, f.select(unmet, old, new)
        for name, area, warp in (
            ("ignored-try-wait", "ignored_wait", rows.warp(f)),
            ("mbarrier-phase/unmet", "idle_wait", owner & 31),
            ("mbarrier-phase/idle", "idle_wait", rows.warp(f)),
        ):
            other = f.select(kind == NUMBER[name], state.get(f, area, warp), other)
        report(f, kind, other, here, bytes, number, flags)
        # From here on it counts as known, so that one fault is told once.
        for row in ("%row", state.at(f, "seen_row")):
            state.set_clock(f, row, owner, tick)
    end_if(f, ~ordered | atomic)
    of_cells = ((flags & (CELLS | FREES)) == CELLS) & ~in_pipe
    with f.function.when(str(of_cells.value)):
        _judge_fence(f, old, new, bytes, number, flags)
    end_if(f, (flags & ASYNC) == 0)
    group = owner >> 5
    end_if(f, (group != 0) & (group != state.COPIES >> 5))
    _judge_proxy(f, old, new, bytes, number, wrote)


def _is_of_lanes(owner: Lanes) -> Lanes:
    """Tell whether what an owner does is done by lanes, each for itself: accesses and copies."""
    return (owner < state.TENSOR) | (owner >> 5 == state.COPIES >> 5)


def _known_of_lanes(f: NativeMachine, old: Lanes, bytes: Lanes) -> Lanes:
    """Tell whether an entry is of lanes of which more is known than of their warp."""
    owner = owner_of(old)
    place = owner & 31
    lanes = state.clock(f, "%row", place + state.PART_LANES)
    every = _is_of_many(old)
    of = ((_lanes_of(f, old, bytes) & ~lanes) == 0) | (every & (lanes != 0))
    parts = (f.constant(part, UINT32) for part in (state.PART_COPIES, state.PART_TICK))
    part = f.select(owner >= state.TENSOR, *parts)
    return _is_of_lanes(owner) & of & rows.ask_known(f, "%row", place + part, tick_of(old))


def _known_in_warp(f: NativeMachine, old: Lanes, new: Lanes, bytes: Lanes, wrote: Lanes) -> Lanes:
    """Tell whether an entry is of the warp that acts, and its lanes know of it.

    These are the same, or have met since. A lane knows of its copies that it has waited for.
    """
    index, owner, tick = rows.warp(f), owner_of(old), tick_of(old)
    same = _same_lanes(f, old, new, bytes, wrote)
    before, after = (_lanes_of(f, each, bytes) for each in (old, new))
    met = f.constant(False, BOOL)
    for lanes, when in (("met_lanes", "met_tick"), ("more_lanes", "more_tick")):
        together = ((before | after) & ~state.get(f, lanes, index)) == 0
        met = met | (together & (tick <= state.get(f, when, index)))
    all_met = tick <= state.get(f, "sync_tick", index)
    done = (before & ~state.get(f, "copies_lanes", index)) == 0
    done = done & (tick <= state.get(f, "copies_tick", index))
    copies = (owner == index + state.COPIES) & done & (same | met)
    return ((owner == index) & (same | met | all_met)) | copies


def _same_lanes(f: NativeMachine, old: Lanes, new: Lanes, bytes: Lanes, wrote: Lanes) -> Lanes:
    """Tell whether bytes belong to one lane each in two entries of a warp, or to any.

    What many lanes have written together each has written; what they have read each has read.
    """
    many = [_is_of_many(each) for each in (old, new)]
    either = many[0] & (many[1] | wrote)
    lanes = [_lanes_of(f, each, bytes) for each in (old, new)]
    one = (lanes[0] & (lanes[0] - 1)) == 0
    return either | ((lanes[0] == lanes[1]) & (one | (_step_of(old) == _step_of(new))))


def _is_same_value(old: Lanes, new: Lanes, flags: Lanes) -> Lanes:
    """Tell whether two writes store the same constant, at one place of the kernel."""
    sites = [(each >> state.SITE_SHIFT) & state.MOST_SITES for each in (old, new)]
    return ((flags & ALIKE) != 0) & (sites[0] == sites[1]) & (sites[0] != state.MOST_SITES)


def _disorder(
    f: NativeMachine, old: Lanes, new: Lanes, number: Lanes, flags: Lanes, wrote: Lanes
) -> Lanes:
    """Name the kind of two accesses without order, by its number."""
    writes = (flags & WRITES) != 0
    owner, actor = owner_of(old), owner_of(new)
    agents = [each >= state.TENSOR for each in (owner, actor)]
    slot = owner & 31
    index = slot * state.WARPS + rows.warp(f)
    late = state.get(f, "waited", index) > state.get(f, "slot_issue", slot)
    bytes = old & new & state.BYTES
    of_others = _lanes_of(f, new, bytes) & ~state.get(f, "waiting_lanes", index)
    misled = (owner >= state.BARRIER_OWNER) & late & (of_others == 0)
    # Lanes that have waited as they should and know more than those with whom they act now.
    ahead = state.at(f, "ahead_row", rows.warp(f))
    told = rows.ask_known(f, ahead, owner, tick_of(old))
    misled = misled & ~(told & (state.get(f, "ahead_lanes", rows.warp(f)) != 0))
    lacking = f.select(misled, _kind(f, "mbarrier-phase"), _kind(f, "missing-wait"))
    brings = (agents[0] & wrote) | (agents[1] & writes)
    kind = f.select(brings, lacking, _kind(f, "race"))
    refills = agents[1] & writes
    # For what threads have written there is nothing to wait for.
    kind = f.select(refills & wrote & ~agents[0], _kind(f, "race"), kind)
    overwritten = agents[0] & ~wrote & writes
    record = f.select((flags & CELLS) != 0, f.constant(0, UINT64), number)
    kind = f.select(refills, _refilled(f, old, actor, record, wrote, kind), kind)
    kind = f.select(overwritten & ~refills, _kind(f, "stage-overwritten"), kind)
    kind = f.select((flags & CELLS) != 0, _kind(f, "missing-wait"), kind)
    ignored = state.get(f, "ignored", rows.warp(f)) != 0
    kind = f.select(ignored, _kind(f, "ignored-try-wait"), kind)
    return f.select((flags & FREES) != 0, _kind(f, "tmem-lifecycle/freed"), kind)


def _refilled(
    f: NativeMachine, old: Lanes, actor: Lanes, number: Lanes, wrote: Lanes, kind: Lanes
) -> Lanes:
    """Name the kind of an access before an agent writes, by its number; `kind` if by threads.

    What nobody had written was read too early; else what is there is written again too early.
    """
    owner = owner_of(old)
    at = f.op(f"getelementptr i8, ptr {f.pointer('check_shadow')}, i64 {(number << 5).value}")
    newest, older = (f.get_word(at, index) for index in range(WORDS // 2))
    read = ((newest | older) & old & state.BYTES) != 0
    idle = (state.get(f, "idle_wait", owner & 31) != 0) & (owner < state.BARRIER_OWNER)
    # It counts if it was for what the agent brings.
    there = state.get(f, "waited", (actor & 31) * state.WARPS + (owner & 31))
    idle = idle & (there != 0) & (actor >= state.BARRIER_OWNER)
    early = f.select(idle, _kind(f, "mbarrier-phase/unmet"), _kind(f, "missing-wait/first"))
    agent = owner >= state.TENSOR
    again = f.select(
        agent & ~wrote, _kind(f, "stage-overwritten"), _kind(f, "stage-overwritten/refill")
    )
    passed = state.get(f, "idle_wait", rows.warp(f)) != 0
    again = f.select(passed, _kind(f, "mbarrier-phase/idle"), again)
    return f.select(wrote & ~agent, kind, f.select(wrote | read, again, early))


def _judge_fence(
    f: NativeMachine, old: Lanes, new: Lanes, bytes: Lanes, number: Lanes, flags: Lanes
) -> None:
    """Decide whether an access of cells follows a fence that follows what other threads did."""
    owner, index = owner_of(old), rows.warp(f)
    fenced = state.at(f, "fenced_row", index)
    mine = (owner == index + state.CELL_LOADS) | (owner == index + state.CELL_STORES)
    good = mine | rows.ask_known(f, fenced, owner, tick_of(old))
    with f.function.when(str((~good).value)):
        report(f, "missing-wait/fence", old, new, bytes, number, flags)
        run(f, rows.join, ("ptr", fenced), ("ptr", "%row"))


def _judge_proxy(
    f: NativeMachine, old: Lanes, new: Lanes, bytes: Lanes, number: Lanes, wrote: Lanes
) -> None:
    """Decide whether the asynchronous proxy sees a generic access that comes before its own."""
    writer, tick = owner_of(old) & 31, tick_of(old)
    copied = owner_of(old) >> 5 == state.COPIES >> 5
    place = f.select(copied, *(f.constant(n, UINT32) for n in (state.SEEN_COPIES, state.SEEN)))
    seen = rows.ask_known(f, "%row", writer + place, tick)
    lanes = _lanes_of(f, old, bytes)
    part = (lanes & ~state.clock(f, "%row", writer + state.PART_LANES)) == 0
    seen = seen | (part & rows.ask_known(f, "%row", writer + state.PART_SEEN, tick))
    in_warp = _seen_in_warp(f, lanes, tick, copied, _lanes_of(f, new, bytes))
    seen = seen | ((writer == rows.warp(f)) & in_warp)
    elsewhere = rows.ask_known(f, "%row", writer + state.SEEN_LOOSELY, tick)
    # A fence before the wait for copies is none for them, whoever has it.
    elsewhere = f.select(copied, tick <= state.get(f, "part_copies", writer), elsewhere)
    kind = f.select(elsewhere, _kind(f, "misplaced-proxy-fence"), _kind(f, "missing-proxy-fence"))
    kind = f.select(wrote, kind, _kind(f, "missing-proxy-fence-war"))
    with f.function.when(str((~seen).value)):
        report(f, kind, old, new, bytes, number)
        # One fence would have been enough for all that the warp has done.
        done = state.get(f, "last", writer)
        state.set_clock(f, "%row", writer + state.SEEN, done)
        for owner in (writer, writer + state.COPIES):
            state.set_clock(f, state.at(f, "seen_row"), owner, done)


def _seen_in_warp(
    f: NativeMachine, lanes: Lanes, tick: Lanes, copied: Lanes, actors: Lanes
) -> Lanes:
    """Tell whether lanes of the warp that acts have fenced what they did, known to who acts."""
    index = rows.warp(f)
    last, copies, fenced_all, fenced_copies = (
        state.get(f, name, index)
        for name in ("part_tick", "part_copies", "fence_tick", "fence_copies")
    )
    fenced = (lanes & ~state.get(f, "part_lanes", index)) == 0
    told = ((lanes & ~actors) == 0) | (last <= state.get(f, "sync_tick", index))
    some = fenced & told & (tick <= f.select(copied, copies, last))
    return some | (are_all(f, actors) & (tick <= f.select(copied, fenced_copies, fenced_all)))


# ---------------------------------------------------------------------------- records


def _slow(writes: bool) -> Routine:
    """Give the function that judges all entries of a record, and looks for unwritten bytes."""
    name = "check_entries_" + ("write" if writes else "read")

    def body(f: NativeMachine) -> None:
        new, number = (f.lanes(UINT64, f"%{n}", 0) for n in ("new", "number"))
        flags = f.lanes(UINT32, "%flags", 0)
        for index in range(WORDS if writes else WORDS // 2):
            old = f.get_word("%record", index)
            how = (WRITES if writes else 0) | (OLD_WRITES if index < WORDS // 2 else 0)
            words = (("i64", old), ("i64", new), ("i64", number), ("i32", flags | how))
            run(f, _judge, *words, ("ptr", "%row"))
        if not writes:
            cells = f.op(f"getelementptr i8, ptr {f.pointer('check_cells')}, i64 {WRITTEN_CELLS}")
            some = ((flags & CELLS) != 0).value
            base = f.op(f"select i1 {some}, ptr {cells}, ptr {f.pointer('check_written')}")
            at = written_at(f, base, number)
            written = written_of(f, at)
            missing = new & ~written & state.BYTES
            none = f.constant(0, UINT64)
            bad = (missing != 0) & ((flags & MBARRIER) == 0)
            with f.function.when(str(bad.value)):
                # A wait that has ended at once explains it; who feeds an agent may begin with one.
                wait = state.get(f, "idle_wait", rows.warp(f))
                early = ((flags & (CELLS | ASYNC)) == 0) & (wait != 0)
                kinds = (_kind(f, n) for n in ("mbarrier-phase/unmet", "uninitialised"))
                before = f.select(early, wait, none)
                report(f, f.select(early, *kinds), before, new, missing, number, flags)
                set_written(f, at, written | missing)

    parameters = "ptr %ctx, ptr %record, i64 %new, i64 %number, i32 %flags, ptr %row"
    return routine(name, parameters, seldom=True)(body)


ENTRIES = {writes: _slow(writes) for writes in (False, True)}


def written_at(f: NativeMachine, base: str, number: Lanes) -> str:
    return f.op(f"getelementptr i16, ptr {base}, i64 {number.value}")


def written_of(f: NativeMachine, at: str) -> Lanes:
    return f.lanes(UINT64, f.op(f"zext i16 {f.op(f'load i16, ptr {at}')} to i64"), 0)


def set_written(f: NativeMachine, at: str, bytes: Lanes) -> None:
    f.function.emit(f"store i16 {f.op(f'trunc i64 {bytes.value} to i16')}, ptr {at}")
