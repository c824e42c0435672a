"""The scheduler as native code: paths, joins, what lands when, and the run of a CTA.

May import `base`, `isa` and the rest of `sim.engine`.

A warp is one or more paths. `run_cta` gives each path its turn until none can go on; then
what is waited for lands, then paths that wait at a join for others go on alone, and then the
CTA is stuck.
"""

from __future__ import annotations

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.isa import barriers, clusters
from tilewright.isa.machine import Lanes
from tilewright.sim.engine import context, flight, groups, landing
from tilewright.sim.engine.context import PATH, PATHS, RECORD
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.queue import each_pending


def emit(module: Module) -> None:
    """Emit the scheduler, which is the same for every kernel."""
    with module.together("scheduler"):
        flight.emit(module)
        _fault(module)
        _draw(module)
        _tick(module)
        _fork(module)
        _arrive(module)
        _finish(module)
        _leave(module)
        _release(module)
        landing.emit(module)
        _land_needed(module)
        _in_use(module)
        _run(module)


def _fault(module: Module) -> None:
    f = module.machine("fault", "%site")
    with f.function.when(str((f.field("error") == 0).value)):
        f.set_field("error", f.lanes(UINT64, "%number", 0))
        f.set_field("error_site", f.lanes(UINT32, "%site", 0))
        acting = f.field("acting")
        named = f.cast(f.lanes(UINT32, "%lane", 0), UINT64)
        f.set_field("error_lane", f.select(acting != 0, acting - 1, named))
        f.set_field("error_warp", f.field("warp"))
        f.set_field("error_address", f.lanes(UINT64, "%address", 0))
    f.set_field("steps", 1)
    f.function.emit("ret void")
    f.function.finish(
        "void", "ptr %ctx, i64 %number, i32 %site, i32 %lane, i64 %address", "noinline"
    )


def _draw(module: Module) -> None:
    """Draw 32 random bits: the high half of a 64-bit linear congruential generator."""
    f = module.machine("draw")
    state = f.field("random") * 6364136223846793005 + 1442695040888963407
    f.set_field("random", state)
    f.function.emit(f"ret i32 {f.cast(state >> 32, UINT32).value}")
    f.function.finish("i32", "ptr %ctx", "noinline")


def _tick(module: Module) -> None:
    """Look whether the launch must end: a fault, a wish to stop, or the step limit."""
    f = module.machine("tick", "%site")
    stop = f.op(f"load volatile i64, ptr {f.pointer('stop')}")
    ends = (f.field("error") != 0) | (f.lanes(UINT64, stop, 0) != 0)
    with f.function.when(str(ends.value)):
        f.function.emit("ret i1 true")
        f.function.label(f.function.new_label("dead"))
    left = f.field("turns")
    steps = f.binary("min", left, f.constant(context.STEP_QUANTUM, UINT64))
    f.set_field("steps", steps)
    f.set_field("turns", left - steps)
    exhausted = left == 0
    with f.function.when(str(exhausted.value)):
        zero = f.constant(0, UINT64)
        f.fault("step-limit", "the CTA ran more steps than the launch allows", zero32(f), zero)
    f.function.emit(f"ret i1 {exhausted.value}")
    f.function.finish("i1", "ptr %ctx, i32 %site", "noinline")


def zero32(f: NativeMachine) -> Lanes:
    """Give the uint32 zero."""
    return f.constant(0, UINT32)


def _path_pointer(f: NativeMachine, warp: Lanes, slot: Lanes) -> str:
    index = (warp * PATHS + f.cast(slot, UINT64)) * f.field("path_words")
    return f.op(f"getelementptr i64, ptr {f.pointer('paths')}, i64 {index.value}")


def _per_warp(f: NativeMachine, start: int, warp: Lanes) -> Lanes:
    return f.cast(f.get_word("%ctx", (warp + start).value), UINT32)


def _set_per_warp(f: NativeMachine, start: int, warp: Lanes, value: Lanes) -> None:
    f.set_word("%ctx", (warp + start).value, value)


def _bit(f: NativeMachine, slot: Lanes) -> Lanes:
    return f.constant(1, UINT32) << slot


def _fork(module: Module) -> None:
    """Make a path of some lanes of another one, to be resumed elsewhere."""
    f = module.machine("fork")
    warp = f.field("warp")
    used = _per_warp(f, context.USED_START, warp)
    slot = f.lowest(~used)
    new = _path_pointer(f, warp, slot)
    with f.function.loop(str(f.field("path_words").value)) as index:
        f.set_word(new, index, f.get_word("%path", index))
    lanes = f.lanes(UINT32, "%lanes", 0)
    f.set_word(new, PATH["lanes"], lanes)
    f.set_word(new, PATH["resume"], f.lanes(UINT64, "%resume", 0))
    f.set_word(new, PATH["state"], context.READY)
    _set_per_warp(f, context.USED_START, warp, used | _bit(f, slot))
    rest = f.cast(f.get_word("%path", PATH["lanes"]), UINT32) & ~lanes
    f.set_word("%path", PATH["lanes"], rest)
    f.bump("progress")
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, ptr %path, i32 %lanes, i64 %resume", "noinline")


def _arrive(module: Module) -> None:
    """Wait at a meeting point, merging with a path that waits there in the same state.

    Paths that went on from a join without each other may meet again in a collective: together
    they expect at the joins around it whom any of them expects.
    """
    f = module.machine("arrive")
    warp = f.field("warp")
    state = f.lanes(UINT64, "%state", 0)
    f.set_word("%path", PATH["state"], state)
    f.bump("progress")
    used = _per_warp(f, context.USED_START, warp)
    with f.function.loop(str(PATHS)) as index:
        slot = f.cast(f.lanes(UINT64, index, 0), UINT32)
        other = _path_pointer(f, warp, slot)
        same = f.function.slot("i1", 1)
        itself = f.lanes(BOOL, f.op(f"icmp eq ptr {other}, %path"), 0)
        candidate = ((used & _bit(f, slot)) != 0) & ~itself
        for word in ("state", "resume", "need"):
            here, there = f.get_word("%path", PATH[word]), f.get_word(other, PATH[word])
            candidate = candidate & (here == there)
        f.function.emit(f"store i1 {candidate.value}, ptr {same}")
        with f.function.when(str(candidate.value)):
            levels = f.field("levels")
            scalars = f.field("path_words") - context.PATH_HEAD - levels
            with f.function.loop(str(scalars.value)) as word:
                at = f.lanes(UINT64, word, 0) + context.PATH_HEAD + levels
                differs = f.get_word("%path", at.value) != f.get_word(other, at.value)
                with f.function.when(str(differs.value)):
                    f.function.emit(f"store i1 false, ptr {same}")
            with f.function.when(f.op(f"load i1, ptr {same}")):
                _unite(f, other, str(PATH["lanes"]))
                with f.function.loop(str(levels.value)) as level:
                    at = f.lanes(UINT64, level, 0) + context.PATH_HEAD
                    _unite(f, other, at.value)
                _drop(f, warp)
                f.function.emit("ret void")
                f.function.label(f.function.new_label("dead"))
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, ptr %path, i64 %state", "noinline")


def _unite(f: NativeMachine, other: str, word: str) -> None:
    """Add a set of lanes of the running path to that of another one."""
    f.set_word(other, word, f.get_word(other, word) | f.get_word("%path", word))


def _drop(f: NativeMachine, warp: Lanes) -> None:
    """Give the running path's record back."""
    start = f.op(f"ptrtoint ptr {_path_pointer(f, warp, zero32(f))} to i64")
    here = f.op("ptrtoint ptr %path to i64")
    distance = f.lanes(UINT64, here, 0) - f.lanes(UINT64, start, 0)
    slot = f.binary("floordiv", distance, f.field("path_words") * 8)
    used = _per_warp(f, context.USED_START, warp)
    _set_per_warp(f, context.USED_START, warp, used & ~_bit(f, f.cast(slot, UINT32)))
    f.set_word("%path", PATH["state"], 0)


def _finish(module: Module) -> None:
    """End the lanes of a path; the last path of a warp ends the warp."""
    f = module.machine("finish")
    warp = f.field("warp")
    lanes = f.cast(f.get_word("%path", PATH["lanes"]), UINT32)
    exited = _per_warp(f, context.EXITED_START, warp) | lanes
    f.module.observer.exits(f, lanes)
    _set_per_warp(f, context.EXITED_START, warp, exited)
    f.function.emit("call void @drop(ptr %ctx, ptr %path)")
    f.bump("progress")
    clusters.leave(f, lanes)
    left = _per_warp(f, context.LANES_START, warp) & ~exited
    with f.function.when(str((left == 0).value)):
        f.set_field("live_warps", f.field("live_warps") - 1)
        f.bump("exited_warps")
        # Nobody waits at a barrier for a warp that has exited.
        with f.function.loop(str(context.BARRIERS)) as barrier:
            barriers.complete_if_all_arrived(f, f.lanes(UINT64, barrier, 0))
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, ptr %path", "noinline")


def _leave(module: Module) -> None:
    """Have no path of the warp wait for this path's lanes at the meetings of some levels."""
    f = module.machine("leave")
    warp = f.field("warp")
    lanes = f.get_word("%path", PATH["lanes"])
    first, end = f.lanes(UINT64, "%first", 0), f.lanes(UINT64, "%end", 0)
    used = _per_warp(f, context.USED_START, warp)
    with f.function.loop(str(PATHS)) as index:
        slot = f.cast(f.lanes(UINT64, index, 0), UINT32)
        other = _path_pointer(f, warp, slot)
        itself = f.lanes(BOOL, f.op(f"icmp eq ptr {other}, %path"), 0)
        concerned = ((used & _bit(f, slot)) != 0) & ~itself
        with f.function.when(str(concerned.value)):
            with f.function.loop(str((end - first).value)) as step:
                word = (first + f.lanes(UINT64, step, 0)).value
                f.set_word(other, word, f.get_word(other, word) & ~lanes)
            key = f.get_word(other, PATH["key"])
            joining = f.get_word(other, PATH["state"]) == context.JOINING
            waits = joining & (key >= first) & (key < end)
            with f.function.when(str(waits.value)):
                f.set_word(other, PATH["need"], f.get_word(other, PATH["need"]) & ~lanes)
    f.bump("progress")
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, ptr %path, i64 %first, i64 %end", "noinline")


def _release(module: Module) -> None:
    """Let the first path that waits at a join go on without the others."""
    g = module.machine("drop")
    _drop(g, g.field("warp"))
    g.function.emit("ret void")
    g.function.finish("void", "ptr %ctx, ptr %path", "noinline")

    f = module.machine("release_join")
    with _each_path(f) as (path, warp):
        joining = f.get_word(path, PATH["state"]) == context.JOINING
        with f.function.when(str(joining.value)):
            f.set_word(path, PATH["state"], context.READY)
            f.set_field("warp", warp)
            level = f.get_word(path, PATH["key"])
            _pass_by(f, path, warp, level)
            words = f"i64 {level.value}, i64 {(level + 1).value}"
            f.function.emit(f"call void @leave(ptr %ctx, ptr {path}, {words})")
            f.function.emit("ret i1 true")
            f.function.label(f.function.new_label("dead"))
    f.function.emit("ret i1 false")
    f.function.finish("i1", "ptr %ctx", "noinline")


def _pass_by(f: NativeMachine, path: str, warp: Lanes, level: Lanes) -> None:
    """Note for collectives inside a construct the lanes of a path that goes on behind it."""
    lanes = f.get_word(path, PATH["lanes"])
    used = _per_warp(f, context.USED_START, warp)
    with f.function.loop(str(PATHS)) as index:
        slot = f.cast(f.lanes(UINT64, index, 0), UINT32)
        other = _path_pointer(f, warp, slot)
        gathers = f.get_word(other, PATH["state"]) == context.GATHERING
        inside = (f.get_word(other, level.value) & lanes) != 0
        with f.function.when(str((((used & _bit(f, slot)) != 0) & gathers & inside).value)):
            f.set_word(other, PATH["detail"], f.get_word(other, PATH["detail"]) | lanes)


class _each_path:
    """Loop over the paths in use, warp by warp; yields the record and the warp."""

    def __init__(self, f: NativeMachine) -> None:
        self.f = f

    def __enter__(self) -> tuple[str, Lanes]:
        f = self.f
        self.warps = f.function.loop(str(context.WARPS))
        warp = f.lanes(UINT64, self.warps.__enter__(), 0)
        self.remaining = f.function.slot("i32", 4)
        used = _per_warp(f, context.USED_START, warp)
        f.function.emit(f"store i32 {used.value}, ptr {self.remaining}")
        self.head, body, self.after = (f.function.new_label(s) for s in ("paths", "path", "done"))
        f.function.branch(self.head)
        f.function.label(self.head)
        left = f.lanes(UINT32, f.op(f"load i32, ptr {self.remaining}"), 0)
        f.function.branch_if(str((left != 0).value), body, self.after)
        f.function.label(body)
        f.function.emit(f"store i32 {(left & (left - 1)).value}, ptr {self.remaining}")
        return _path_pointer(f, warp, f.lowest(left)), warp

    def __exit__(self, *exception: object) -> None:
        self.f.function.branch(self.head)
        self.f.function.label(self.after)
        self.warps.__exit__(None, None, None)


def _land_needed(module: Module) -> None:
    """Land what the first waiter needs; for paths that poll, the oldest operation.

    That is an operation that its mbarrier sees, or those that its groups wait for.
    """
    f = module.machine("land_needed")
    polling = f.function.slot("i1", 1)
    f.function.emit(f"store i1 false, ptr {polling}")
    with _each_path(f) as (path, warp):
        state = f.get_word(path, PATH["state"])
        with f.function.when(str((state == context.POLLING).value)):
            f.function.emit(f"store i1 true, ptr {polling}")
        blocked = state == context.BLOCKED
        waits = f.get_word(path, PATH["wait"])
        key = f.get_word(path, PATH["key"])
        for_barrier = blocked & (waits == context.WAITS.index("mbarrier"))
        with f.function.when(str(for_barrier.value)), each_pending(f) as (number, record):
            barrier = f.get_word(record, RECORD["barrier"])
            with f.function.when(str((barrier == key).value)):
                f.function.emit(f"call void @land(ptr %ctx, i64 {number.value})")
                _found(f)
        for_group = blocked & (waits == context.WAITS.index("group"))
        with f.function.when(str(for_group.value)):
            lanes = f.get_word(path, PATH["lanes"])
            keep = f.get_word(path, PATH["detail"])
            landed = groups.pending(f, key, warp, lanes, keep, land=True)
            with f.function.when(str(landed.value)):
                _found(f)
    head = f.field("queue_head")
    waiting = f.lanes(BOOL, f.op(f"load i1, ptr {polling}"), 0) & (head != f.field("queue_tail"))
    with f.function.when(str(waiting.value)):
        f.function.emit(f"call void @land_record(ptr %ctx, i64 {head.value})")
    f.function.emit(f"ret i1 {waiting.value}")
    f.function.finish("i1", "ptr %ctx", "noinline")


def _in_use(module: Module) -> None:
    """Tell whether a path waits at an mbarrier, or an operation in flight is seen through it."""
    f = module.machine("mbarrier_in_use")
    barrier = f.cast(f.lanes(UINT32, "%barrier", 0), UINT64)
    with each_pending(f) as (_, record):
        seen = f.get_word(record, RECORD["barrier"]) == barrier
        with f.function.when(str(seen.value)):
            _found(f)
    with _each_path(f) as (path, _):
        waits = f.get_word(path, PATH["wait"]) == context.WAITS.index("mbarrier")
        waits = waits & (f.get_word(path, PATH["state"]) == context.BLOCKED)
        with f.function.when(str((waits & (f.get_word(path, PATH["key"]) == barrier)).value)):
            _found(f)
    f.function.emit("ret i1 false")
    f.function.finish("i1", "ptr %ctx, i32 %barrier", "noinline")


def _found(f: NativeMachine) -> None:
    f.function.emit("ret i1 true")
    f.function.label(f.function.new_label("dead"))


def random_bits(f: NativeMachine) -> Lanes:
    """Draw 32 random bits from the CTA's generator."""
    return f.lanes(UINT32, f.op("call i32 @draw(ptr %ctx)"), 0)


def _run(module: Module) -> None:
    f = module.machine("run_cta")
    random = f.field("schedule") == context.SCHEDULES["random"]
    again = f.function.new_label("again")
    f.function.branch(again)
    f.function.label(again)
    _look(f)
    before, budget = f.field("progress"), f.field("turns") + f.field("steps")
    skipped = f.function.slot("i1", 1)
    f.function.emit(f"store i1 false, ptr {skipped}")
    with f.function.when(str(random.value)):
        _land_at_random(f)
    with _each_path(f) as (path, warp):
        need = f.cast(f.get_word(path, PATH["need"]), UINT32)
        need = need & ~_per_warp(f, context.EXITED_START, warp)
        lanes = f.cast(f.get_word(path, PATH["lanes"]), UINT32)
        state = f.get_word(path, PATH["state"])
        runs = (state < context.JOINING) | ((lanes & need) == need)
        chance = random & ((random_bits(f) & 1) == 0)
        with f.function.when(str((runs & chance).value)):
            f.function.emit(f"store i1 true, ptr {skipped}")
        with f.function.when(str((runs & ~chance).value)):
            f.set_field("warp", warp)
            f.set_field("give_up", f.field("generous"))
            with f.function.when(str(random.value)):
                chosen = f.cast((random_bits(f) & 7) == 0, UINT64)
                f.set_field("give_up", f.field("generous") | chosen)
            offset = (warp * f.field("frame_bytes")).value
            frame = f.op(f"getelementptr i8, ptr {f.pointer('frames')}, i64 {offset}")
            narrow = f.cast(warp, UINT32)
            result = f.op(
                f"call i32 @kernel(ptr %ctx, ptr {path}, ptr {frame}, i32 {narrow.value})"
            )
            stopped = f.op(f"icmp eq i32 {result}, {context.STOPPED}")
            failed = f.lanes(BOOL, stopped, 0) | (f.field("error") != 0)
            with f.function.when(str(failed.value)):
                f.function.emit(f"ret i32 {context.FAULTED}")
                f.function.label(f.function.new_label("dead"))
    with f.function.when(str((f.field("live_warps") == 0).value)):
        _end(f)
    moved = f.field("progress") != before
    on, still, passed_over, stuck = (
        f.function.new_label(s) for s in ("on", "still", "passed_over", "stuck")
    )
    f.function.branch_if(str(moved.value), on, still)
    f.function.label(on)
    for name in ("idle_rounds", "generous", "passed_over"):
        f.set_field(name, 0)
    f.function.branch(again)
    f.function.label(still)
    _give_back(f, budget)
    # A path that chance passed over may yet go on; after many rounds it has had its turn.
    rounds = f.field("passed_over")
    patient = f.lanes(BOOL, f.op(f"load i1, ptr {skipped}"), 0) & (rounds < context.PATIENCE)
    f.function.branch_if(str(patient.value), passed_over, stuck)
    f.function.label(passed_over)
    f.set_field("passed_over", rounds + 1)
    f.function.branch(again)
    f.function.label(stuck)
    f.set_field("passed_over", 0)
    _unstick(f, again)
    f.function.finish("i32", "ptr %ctx", "noinline")


def _look(f: NativeMachine) -> None:
    """Count a round as a step, so that a CTA that only waits can be stopped, but as no turn."""
    f.set_field("turns", f.field("turns") + 1)
    left = f.field("steps") - 1
    f.set_field("steps", left)
    with f.function.when(str((left == 0).value)):
        ends = f.op("call i1 @tick(ptr %ctx, i32 0)")
        with f.function.when(ends):
            f.function.emit(f"ret i32 {context.FAULTED}")
            f.function.label(f.function.new_label("dead"))


def _give_back(f: NativeMachine, budget: Lanes) -> None:
    """Count no turn, one of each path, in a round of waits alone: whether they end is seen soon.

    Otherwise a small limit would hide what they wait for.
    """
    used = budget - f.field("turns") - f.field("steps")
    most = f.constant(context.WARPS * PATHS, UINT64)
    f.set_field("turns", f.field("turns") + f.binary("min", used, most))


def _land_at_random(f: NativeMachine) -> None:
    head, tail = f.field("queue_head"), f.field("queue_tail")
    draws = random_bits(f)
    with f.function.when(str(((tail != head) & ((draws & 3) == 0)).value)):
        landing.land_at_random(f, head + f.binary("mod", f.cast(draws >> 2, UINT64), tail - head))


def _end(f: NativeMachine) -> None:
    """End the CTA: its shared memory is gone before what nobody waited for lands."""
    landing.require_none_awaited(f)
    f.module.observer.ends(f)
    with f.function.when(str((f.field("error") != 0).value)):
        f.function.emit(f"ret i32 {context.FAULTED}")
        f.function.label(f.function.new_label("dead"))
    name = "llvm.memset.p0.i64"
    f.module.declare(name, f"declare void @{name}(ptr, i8, i64, i1)")
    size = f.field("shared_size")
    f.function.emit(
        f"call void @{name}(ptr {f.pointer('shared')}, i8 -1, i64 {size.value}, i1 false)"
    )
    f.function.emit("call void @land_all(ptr %ctx)")
    f.function.emit(f"ret i32 {context.DONE}")
    f.function.label(f.function.new_label("dead"))


def _unstick(f: NativeMachine, again: str) -> None:
    for name in ("land_needed", "release_join"):
        otherwise = f.function.new_label("otherwise")
        f.function.branch_if(f.op(f"call i1 @{name}(ptr %ctx)"), again, otherwise)
        f.function.label(otherwise)
    rounds = f.field("idle_rounds") + 1
    f.set_field("idle_rounds", rounds)
    f.set_field("generous", 1)
    limit = f.select(
        f.field("together") != 0, f.constant(2, UINT64), f.constant(context.IDLE_LIMIT, UINT64)
    )
    deadlocked = f.function.new_label("deadlocked")
    f.function.branch_if(str((rounds < limit).value), again, deadlocked)
    f.function.label(deadlocked)
    f.set_field("idle_rounds", 0)
    f.function.emit(f"ret i32 {context.STUCK}")
