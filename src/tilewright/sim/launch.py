"""Building a kernel for the simulator, and running a launch of it on the cores at hand.

May import `base`, `isa`, `ir`, `passes` and the rest of `sim`.

CTAs run in parallel while they cannot see one another. Where they can (global atomics, acquire
loads, release stores), one thread runs them all, in the order of the schedule.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from tilewright.base import lazy
from tilewright.base.dtypes import DType
from tilewright.base.errors import SimulationError
from tilewright.base.spaces import Space
from tilewright.base.store import NOWHERE, Store
from tilewright.base.targets import MAX_THREADS, Target
from tilewright.ir.expressions import Expr, as_constant
from tilewright.ir.operands import paired_operands
from tilewright.ir.statements import Instruct, Kernel
from tilewright.ir.visit import walk_statements
from tilewright.isa.machine import WARP
from tilewright.isa.tensor_map import TensorMap
from tilewright.sim import approximations, kept, reports
from tilewright.sim.compiled import CompiledKernel
from tilewright.sim.engine import context, flight, jit, schedule
from tilewright.sim.engine.context import FIELD
from tilewright.sim.engine.frame import value_dtype
from tilewright.sim.engine.jit import Report
from tilewright.sim.engine.kernel import KernelCode
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.plan import plan_kernel
from tilewright.sim.engine.sites import Sites
from tilewright.sim.host_memory import (
    aligned,
    lines,
    place_tensor_maps,
    special_arrays,
    special_memory,
)
from tilewright.sim.options import DEFAULT_STEP_LIMIT, Options, Region
from tilewright.sim.printing import format_records, prints

if TYPE_CHECKING:
    from tilewright.sim.check import launches as checking
    from tilewright.sim.check.keeping import Keeper
    from tilewright.sim.check.raw import RawFinding
    from tilewright.sim.trace import events
    from tilewright.sim.trace import hooks as tracing
    from tilewright.sim.trace.recorder import Recorder, Recording
else:
    checking = lazy.module("tilewright.sim.check.launches")
    events = lazy.module("tilewright.sim.trace.events")
    tracing = lazy.module("tilewright.sim.trace.hooks")

Grid = tuple[int, int, int]
_PRINT_BYTES = 1 << 16
_DRAIN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


@dataclass(frozen=True)
class SimulatedKernel(CompiledKernel):
    """A kernel compiled for the simulator; launching is safe from several threads."""

    @cached_property
    def interacts(self) -> bool:
        """Tell whether CTAs of a launch may see one another's writes while they run."""
        return interacts(self.kernel)

    @cached_property
    def prints(self) -> bool:
        """Tell whether the kernel may print anything."""
        return prints(self)

    @cached_property
    def checked(self) -> checking.KernelFacts:
        """Find what launches ask that are checked."""
        return checking.facts(self.kernel)

    @cached_property
    def spare(self) -> list[_Cta]:
        """Keep the memory of CTAs of past launches."""
        return []

    def launch(
        self,
        arguments: Sequence[int | float | TensorMap],
        regions: Sequence[Region],
        grid: Grid,
        output: Callable[[str], None],
        block: Grid | None = None,
        shared_bytes: int = 0,
        cluster: Grid | None = None,
        recorder: Recorder | None = None,
        report: Report = lambda done, count: None,
    ) -> list[RawFinding]:
        """Run a grid of CTAs, and give what the checker has found, CTA by CTA.

        `arguments` are in the order of the kernel's parameters, then its shape symbols;
        pointers are numbers, tensor maps are given as they are. `regions` are what it may touch.
        `output` takes what it prints, in CTA order. `block`, `cluster` and `shared_bytes` (of
        dynamic shared memory) are for kernels in which they are not constants. `recorder` keeps
        what happens, if the kernel was compiled with `Options.trace`. `report` is told, several
        times a second, how many CTAs have ended, and of how many.

        Raises `SimulationError` for a fault, `DeadlockError`, `StepLimit`.
        """
        shape = block or _static_block(self.kernel)
        assert shape is not None, "the block of this kernel must be given"
        variables = (*self.kernel.params, *self.kernel.symbols)
        numbers, maps, kept = place_tensor_maps(arguments, variables)
        group = cluster or _static(self.kernel.launch.cluster)
        assert group is not None, "the cluster of this kernel must be given"
        touched = [*regions, *maps]
        launch = _Launch(self, numbers, touched, grid, shape, group, shared_bytes, output)
        launch.report = report
        if recorder is not None:
            launch.recording = recorder.begin(self, grid, group)
        launch.run()
        del kept  # not before the kernel has ended
        found = launch.noted()
        if launch.checking is not None:
            launch.checking.give_back()
        return found


def build(
    kernel: Kernel,
    target: Target,
    options: Options,
    store: Store = NOWHERE,
    report: Report = lambda done, count: None,
) -> SimulatedKernel:
    """Compile a lowered kernel for the CPU.

    What is in `store` is taken from there, what is not is kept there. `report` is told how many
    pieces of code are compiled, and of how many.
    """
    where = jit.machine(options.cpu)
    recipe = kept.recipe(kernel, target, options, where)
    made = None if recipe is None else kept.find(store, recipe)
    if made is None:
        made = _make(kernel, target, options, where, store, report)
        if recipe is not None:
            kept.keep(store, recipe, made)
    return SimulatedKernel(
        kernel=kernel,
        target=target,
        options=options,
        sites=made.sites,
        code=jit.link(made.objects, where),
        path_words=made.path_words,
        levels=made.levels,
        frame_bytes=made.frame_bytes,
        memories=made.memories,
    )


def _make(
    kernel: Kernel,
    target: Target,
    options: Options,
    where: jit.Machine,
    store: Store,
    report: Report,
) -> kept.Made:
    module = Module(cpu_features=where.present, new_machine=NativeMachine)
    if options.check:
        module.observer = checking.observer(module, kernel, interacts=interacts(kernel))
    elif options.trace:
        module.observer = tracing.Tracer(module)
    module.exact = target if options.numerics == "exact" else None
    module.block = _static_block(kernel)
    code = KernelCode(module, plan_kernel(kernel))
    code.emit()
    frame_bytes = -(-code.frame_bytes // 64) * 64
    schedule.emit(module)
    return kept.Made(
        objects=jit.compile_pieces(module.pieces(), where, store, report),
        sites=Sites(sites=module.sites, messages=module.messages),
        path_words=code.path_words,
        levels=code.plan.depth,
        frame_bytes=frame_bytes,
        memories=frozenset(module.memories),
    )


def memory_needed(simulated: SimulatedKernel, grid: Grid) -> int:
    """Estimate the bytes that a launch takes beside its arguments: those of the CTAs in flight."""
    live = _live_ctas(simulated, math.prod(grid))
    return live * _cta_bytes(simulated, simulated.kernel.shared_bytes)


def _cta_bytes(simulated: SimulatedKernel, shared: int) -> int:
    paths = context.WARPS * context.PATHS * simulated.path_words * 8
    frames = context.WARPS * simulated.frame_bytes
    warps = -(-_threads(simulated.kernel) // WARP)
    special = sum(special_memory(simulated, warps, shared).values())
    return shared + paths + frames + special + 2 * _PRINT_BYTES


def _live_ctas(simulated: SimulatedKernel, count: int) -> int:
    if simulated.interacts:
        threads = _threads(simulated.kernel)
        resident = max(simulated.target.threads_per_multiprocessor // max(threads, 1), 1)
        resident = min(resident, simulated.target.ctas_per_multiprocessor)
        return min(count, simulated.target.multiprocessors * resident)
    return min(count, _workers(simulated.options))


def _workers(options: Options) -> int:
    return options.workers or os.cpu_count() or 1


def _static_block(kernel: Kernel) -> Grid | None:
    return _static(kernel.launch.block)


def _threads(kernel: Kernel) -> int:
    return math.prod(_static_block(kernel) or (MAX_THREADS, 1, 1))


def _static(extents: tuple[Expr, Expr, Expr]) -> Grid | None:
    x, y, z = (as_constant(each) for each in extents)
    if x is None or y is None or z is None:
        return None
    return int(x), int(y), int(z)


def interacts(kernel: Kernel) -> bool:
    """Tell whether CTAs of a launch may see one another's writes while they run."""
    scopes, spaces = {"gpu", "sys"}, {Space.GLOBAL, Space.GENERIC}
    if _static(kernel.launch.cluster) != (1, 1, 1):
        # Where a cluster is one CTA, its scope and shared memory are the CTA's own.
        scopes.add("cluster")
        spaces.add(Space.SHARED_CLUSTER)
    return any(
        isinstance(stmt, Instruct) and _sees_others(stmt, scopes, spaces)
        for stmt in walk_statements(kernel.body)
    )


def _sees_others(stmt: Instruct, scopes: Set[str], spaces: Set[Space]) -> bool:
    order = stmt.form.order
    wide = order.scope in scopes
    if wide and (order.acquires or order.releases):
        return True
    for declared, _ in paired_operands(stmt.form, stmt.operands):
        sees = declared.access == "update" or (declared.access == "read" and wide)
        if sees and declared.space in spaces:
            return True
    return False


# ---------------------------------------------------------------------------- a launch


@dataclass(eq=False)
class _Cta:
    """The memory of one CTA in flight, and what it has printed.

    `sizes` are what its memory was made for: bytes of shared memory, and warps. `listed` is how
    many bytes the checker has listed in it at most.
    """

    sizes: tuple[int, int]
    words: np.ndarray
    shared: np.ndarray
    paths: np.ndarray
    frames: np.ndarray
    queue: np.ndarray
    dummy: np.ndarray
    prints: np.ndarray
    hints: np.ndarray
    stop: np.ndarray
    start: np.ndarray
    cluster: np.ndarray
    index: int = -1
    listed: int = 0
    text: list[str] = field(default_factory=list[str])
    special: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    keeper: Keeper | None = None

    def __post_init__(self) -> None:
        # Single words are read and written faster in this way than as elements of an array.
        self._view = self.words.data
        self.address = self.words.ctypes.data

    def get(self, name: str) -> int:
        """Read a field of the context."""
        return self._view[FIELD[name]]

    def put(self, name: str, value: int) -> None:
        """Write a field of the context."""
        self._view[FIELD[name]] = value & ((1 << 64) - 1)


class _Launch:
    """One launch: its arguments, its CTAs, the text they print, the faults they meet."""

    def __init__(
        self,
        simulated: SimulatedKernel,
        arguments: Sequence[int | float],
        regions: Sequence[Region],
        grid: Grid,
        block: Grid,
        cluster: Grid,
        shared_bytes: int,
        output: Callable[[str], None],
    ) -> None:
        self.simulated = simulated
        self.grid = grid
        self.cluster = cluster
        self.block = block
        self.count = math.prod(grid)
        threads = math.prod(block)
        self.lanes = [(1 << min(32, threads - at)) - 1 for at in range(0, threads, 32)]
        self.warps = len(self.lanes)
        self.shared_bytes = max(simulated.kernel.shared_bytes, shared_bytes)
        self.sizes = (self.shared_bytes, self.warps)
        self.first_paths = np.zeros((self.warps, simulated.path_words), np.uint64)
        self.first_paths[:, context.PATH["state"]] = context.READY
        self.first_paths[:, context.PATH["lanes"]] = self.lanes
        self.output = output
        self.regions = regions
        self.table = np.array(
            [(r.address, r.address + r.size, r.writable) for r in regions], np.uint64
        ).reshape(-1, 3)
        variables = (*simulated.kernel.params, *simulated.kernel.symbols)
        self.parameters = np.array(
            [_word(a, value_dtype(v)) for a, v in zip(arguments, variables, strict=True)],
            np.uint64,
        )
        self.tables = {
            where: approximations.table(name)
            for name, where in context.TABLES.items()
            if where in simulated.memories
        }
        self.entry = _RUN(simulated.code.address("run_cta"))
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.end = self.count  # CTAs with this and higher numbers are not needed any more
        self.ctas: list[_Cta] = []
        self.pending: dict[int, str] = {}
        self.checking: checking.Checking | None = None
        if simulated.options.check:
            self.checking = checking.Checking(
                simulated,
                simulated.checked,
                regions,
                grid,
                cluster,
                threads=threads,
                shared=self.shared_bytes,
            )
        self.recording: Recording | None = None
        self.report: Report = lambda done, count: None
        self.done = 0
        self.printed = 0
        self.failure: BaseException | None = None
        self.drains: list[object] = []
        self.first_cluster = np.zeros(len(context.CLUSTER_FIELDS), np.uint64)
        for name in ("threads", "expected"):
            self.first_cluster[context.CLUSTER[name]] = threads * math.prod(cluster)
        self.shared_words: WeakValueDictionary[tuple[int, ...], np.ndarray] = WeakValueDictionary()

    def run(self) -> None:
        """Run every CTA, print in order, and raise the fault of the first CTA that met one."""
        if self.count == 0:
            return
        workers = _workers(self.simulated.options)
        if self.simulated.interacts and self.count > 1:
            self._run_threads(self._work_together, 1)
        else:
            self._run_threads(self._work, min(workers, self.count))
            if self.recording is not None:
                # Those after a fault have been stopped anywhere.
                self.recording.forget_after(self.end)
        self.drains.clear()  # they refer to this launch
        spare = self.simulated.spare
        kept = self._worth_keeping(workers)
        spare.extend(kept[: max(len(kept) - len(spare), 0)])
        if isinstance(self.failure, SimulationError):
            self.failure.noted = self.noted()
        if self.failure is not None:
            raise self.failure

    def _worth_keeping(self, workers: int) -> list[_Cta]:
        """Give the CTAs whose memory serves the next launch.

        They are as many as run at a time on cores of their own. Where the checker watches, memory
        for what it may list costs more than it has listed, as a rule: that of more CTAs is kept.
        """
        if not self.simulated.options.check:
            return self.ctas[:workers]
        more = [cta for cta in self.ctas[workers:] if cta.listed <= _LITTLE]
        return [*self.ctas[:workers], *more][: max(workers, _MOST_SPARE)]

    def noted(self) -> list[RawFinding]:
        """List what the checker has found, CTA by CTA."""
        if self.checking is None:
            return []
        together = self.simulated.interacts and self.count > 1
        return self.checking.noted(self.end, together=together, failed=self.failure is not None)

    def _keeper(self) -> Keeper | None:
        """Give a thread what it keeps of its CTAs for the checker."""
        return None if self.checking is None else self.checking.keeper()

    def _run_threads(self, work: Callable[[], None], count: int) -> None:
        """Let threads do the work, so that the main one can be interrupted meanwhile."""
        if count == 1 and threading.current_thread() is not threading.main_thread():
            work()
            return
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        starting = iter(threads)
        interrupt: BaseException | None = None
        while True:
            try:
                for thread in starting:
                    thread.start()
                for thread in threads:
                    while thread.is_alive():
                        thread.join(0.05)
                        self.report(self.done, self.count)
                break
            except BaseException as error:
                # However often it is interrupted: no thread may outlive the caller's memory.
                interrupt = interrupt or error
                with self.lock:
                    self._stop_from(0)
        if interrupt is not None:
            raise interrupt

    def _fail(self, index: int, error: BaseException) -> None:
        """Note a fault; the first CTA's is told: those before it go on, those after it end."""
        with self.lock:
            if index < self.end:
                self.failure = error
                self._stop_from(index)

    def _stop_from(self, index: int) -> None:
        self.end = index
        for cta in self.ctas:
            if cta.index >= index:
                cta.stop[0] = 1

    # ---- CTAs that cannot see one another

    def _work(self) -> None:
        index = 0
        try:
            cta = self._new_cta(self._keeper())
            while (index := next(self.numbers)) < self.end:
                self._begin(cta, index)
                if cta.keeper is None:
                    self._finish(cta, self.entry(cta.address))
                else:
                    status, tells = cta.keeper.run(cta.address, index)
                    self._finish(cta, status, tells=tells)
        except BaseException as error:
            self._fail(index, error)

    # ---- CTAs that can

    def _work_together(self) -> None:
        room = max(_live_ctas(self.simulated, self.count), math.prod(self.cluster))
        live: list[_Cta] = []
        try:
            self._take_turns(live, room)
        except BaseException as error:
            self._fail(0, error)
        # They ran in one order, so what those after a fault have printed is always the same.
        for cta in live:
            self.pending[cta.index] = "".join([*cta.text, self._take_prints(cta)])
            self._take_events(cta)
        for index in sorted(self.pending):
            self.output(self.pending.pop(index))

    def _take_turns(self, live: list[_Cta], room: int) -> None:
        spare: list[_Cta] = []
        keeper = self._keeper()
        waiting = self._by_clusters()
        idle = 0
        while True:
            for index in itertools.islice(waiting, room - len(live)):
                if index < self.end:
                    live.append(spare.pop() if spare else self._new_cta(keeper))
                    self._begin(live[-1], index, together=True)
                    if keeper is not None:
                        keeper.start(live[-1].address)
            if not live:
                return
            moved = False
            for cta in list(live):
                before = cta.get("progress")
                status = self._turn(cta)
                moved |= cta.get("progress") != before or status != context.STUCK
                if status != context.STUCK:
                    live.remove(cta)
                    spare.append(cta)
                    self._finish_checked(cta, status)
                if self.failure is not None:
                    return
            idle = 0 if moved else idle + 1
            if idle > _IDLE_TURNS:
                self._finish_checked(live.pop(0), context.STUCK, live)
                return

    def _turn(self, cta: _Cta) -> int:
        """Let a CTA go on as far as it can, and tell how it stands."""
        if self.checking is not None:
            self.checking.number_turn(cta.special)
        if self.recording is not None:
            self.recording.resume(cta.index, cta.special["trace"])
        status = self.entry(cta.address)
        if self.recording is not None:
            self.recording.pause(cta.index, cta.special["trace"])
        return status

    def _by_clusters(self) -> Iterator[int]:
        """Number the CTAs so that those of a cluster begin together."""
        clusters = [range(0, g, c) for g, c in zip(self.grid, self.cluster, strict=True)]
        within = [range(each) for each in self.cluster]
        for first in itertools.product(*reversed(clusters)):
            for offset in itertools.product(*reversed(within)):
                z, y, x = (a + b for a, b in zip(first, offset, strict=True))
                yield x + self.grid[0] * (y + self.grid[1] * z)

    # ---- one CTA

    def _new_cta(self, keeper: Keeper | None) -> _Cta:
        """Give the memory of a CTA, made ready for this launch: what another has left, or new."""
        cta: _Cta | None = None
        while cta is None or cta.sizes != self.sizes:
            try:
                cta = self.simulated.spare.pop()
            except IndexError:
                cta = self._allocate()
        cta.keeper = keeper
        self._prepare(cta)
        return cta

    def _allocate(self) -> _Cta:
        simulated = self.simulated
        return _Cta(
            self.sizes,
            aligned(8 * context.CONTEXT_WORDS, "u8"),
            aligned(lines(max(self.shared_bytes, 1))),
            aligned(8 * context.WARPS * context.PATHS * simulated.path_words, "u8"),
            aligned(max(context.WARPS * simulated.frame_bytes, 64)),
            aligned(8 * context.QUEUE_RECORDS * context.RECORD_WORDS, "u8"),
            aligned(context.DUMMY_BYTES),
            aligned(_PRINT_BYTES if simulated.prints else 64),
            aligned(4 * max(len(simulated.sites.sites), 1), "u4"),
            np.zeros(1, np.uint64),
            np.zeros(context.CONTEXT_WORDS, np.uint64),
            np.zeros(0, np.uint64),
            special=special_arrays(simulated, self.warps, self.shared_bytes),
        )

    def _prepare(self, cta: _Cta) -> None:
        simulated = self.simulated
        # What the last launch has found need not be there in this one.
        cta.words[:] = 0
        cta.hints[:] = 0
        with self.lock:
            self.ctas.append(cta)

        def drain(_: int) -> None:
            cta.text.append(self._take_prints(cta))
            self._take_events(cta)

        callback = _DRAIN(drain)
        self.drains.append(callback)
        cta.put("drain", ctypes.cast(callback, ctypes.c_void_p).value or 0)
        for name, array in (
            ("shared", cta.shared),
            ("paths", cta.paths),
            ("frames", cta.frames),
            ("queue", cta.queue),
            ("dummy", cta.dummy),
            ("print_buffer", cta.prints),
            ("hints", cta.hints),
            ("stop", cta.stop),
            ("regions", self.table),
            ("parameters", self.parameters),
        ):
            cta.put(name, array.ctypes.data)
        for name, array in cta.special.items():
            cta.put(name, array.ctypes.data)
        if "staging" in cta.special:
            cta.put("staging_size", cta.special["staging"].nbytes)
        for name, array in self.tables.items():
            cta.put(name, array.ctypes.data)
        cta.put("print_size", cta.prints.nbytes)
        cta.put("region_count", len(self.table))
        cta.put("shared_size", self.shared_bytes)
        cta.put("path_words", simulated.path_words)
        cta.put("levels", simulated.levels)
        cta.put("frame_bytes", simulated.frame_bytes)
        limit = simulated.options.step_limit or DEFAULT_STEP_LIMIT
        cta.put("steps", 1)
        cta.put("turns", min(limit, 1 << 63))
        cta.put("schedule", context.SCHEDULES[simulated.options.schedule])
        cta.put("live_warps", self.warps)
        cta.words[context.USED_START :][: self.warps] = 1
        cta.words[context.LANES_START :][: self.warps] = self.lanes
        clusters = tuple(g // c for g, c in zip(self.grid, self.cluster, strict=True))
        sizes = (
            ("nctaid", self.grid),
            ("nclusterid", clusters),
            ("cluster_nctaid", self.cluster),
            ("ntid", self.block),
        )
        for prefix, extents in sizes:
            for axis, extent in zip("xyz", extents, strict=True):
                cta.put(f"{prefix}.{axis}", extent)
        cta.start[:] = cta.words

    def _begin(self, cta: _Cta, index: int, *, together: bool = False) -> None:
        with self.lock:
            cta.index = index
            cta.stop[0] = index >= self.end
        cta.text.clear()
        # Nothing may depend on which CTA these bytes have held before.
        cta.words[:] = cta.start
        cta.shared[:] = 0xFF
        cta.frames[: self.warps * self.simulated.frame_bytes] = 0xFF
        paths = cta.paths.reshape(context.WARPS, context.PATHS, -1)
        paths[: self.warps, 0] = self.first_paths
        if "groups" in cta.special:
            cta.special["groups"][:] = 0
        if "trace" in cta.special:
            recording = self.recording
            events.begin(cta.special["trace"], recording.limit_of(index) if recording else 0)
        if "flight" in cta.special:
            cta.special["flight"].reshape(-1, flight.ARENA_BYTES)[:, :8] = 0
        seed = self.simulated.options.seed
        cta.put("random", (seed * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03) | 1)
        cta.put("elections", (seed * 0x9E3779B97F4A7C15) >> 16 & 0xFFFFFFFF)
        cta.put("together", int(together))
        rest = index
        place: list[int] = []
        for axis, extent, size in zip("xyz", self.grid, self.cluster, strict=True):
            at = rest % extent
            cta.put(f"ctaid.{axis}", at)
            cta.put(f"clusterid.{axis}", at // size)
            cta.put(f"cluster_ctaid.{axis}", at % size)
            place.append(at // size)
            rest //= extent
        cta.cluster = self._cluster_words(tuple(place), together)
        cta.put("cluster", cta.cluster.ctypes.data)

    def _cluster_words(self, place: tuple[int, ...], together: bool) -> np.ndarray:
        """Give what the CTAs of a cluster share; of CTAs that run alone each has its own."""
        known = self.shared_words.get(place)
        if known is not None:
            return known
        words = self.first_cluster.copy()
        if together:
            self.shared_words[place] = words
        return words

    def _finish_checked(self, cta: _Cta, status: int, others: Sequence[_Cta] = ()) -> None:
        tells = cta.keeper is not None and cta.keeper.end(cta.address, cta.index)
        self._finish(cta, status, others, tells=tells)

    def _finish(
        self, cta: _Cta, status: int, others: Sequence[_Cta] = (), *, tells: bool = False
    ) -> None:
        """Take what a CTA leaves; the checker `tells` something of it, or may."""
        cta.text.append(self._take_prints(cta))
        self._take_events(cta)
        if self.checking is not None and cta.keeper is not None:
            if tells:
                kept = not (cta.get("tmem_permit") or cta.get("tmem_columns"))
                permit, stuck = kept and status == context.DONE, status == context.STUCK
                self.checking.judge(cta.keeper, cta.special, cta.index, permit=permit, stuck=stuck)
            cta.listed = max(cta.listed, cta.keeper.listed)
        # A fault may also be met by what lands last, after a CTA is done.
        if cta.get("error"):
            if self.checking is not None:
                self.checking.note_fault(cta.special, cta.index)
            self._fail(cta.index, reports.fault(self.simulated, cta, self.grid, self.regions))
        elif status == context.STUCK:
            self._fail(cta.index, reports.deadlock(self.simulated, cta, self.grid, others))
        elif status == context.DONE and cta.get("tmem_columns"):
            self._fail(cta.index, reports.unfreed(self.simulated, cta, self.grid))
        with self.lock:
            self.pending[cta.index] = "".join(cta.text)
            self.done += 1
        self.report(self.done, self.count)
        self._flush()

    # ---- printing

    def _take_prints(self, cta: _Cta) -> str:
        used = cta.get("print_used")
        cta.put("print_used", 0)
        if not used:
            return ""
        where = reports.cta_name(cta.index, self.grid)
        return format_records(self.simulated, cta, where, cta.prints[:used].view(np.uint64))

    def _take_events(self, cta: _Cta) -> None:
        if self.recording is not None:
            self.recording.take(cta.index, cta.special["trace"])

    def _flush(self) -> None:
        """Hand on what the CTAs have printed, as far as all before them have ended."""
        with self.lock:
            while self.printed in self.pending and self.printed <= self.end:
                text = self.pending.pop(self.printed)
                self.printed += 1
                if text:
                    self.output(text)


_IDLE_TURNS = 2000
_LITTLE = 1 << 20  # bytes that a CTA may have listed whose memory is kept for the next launch
_MOST_SPARE = 64  # CTAs whose memory is kept


def _word(value: int | float, dtype: DType) -> int:
    """Give the bits of an argument as a 64-bit word."""
    if dtype.is_integer or dtype.is_bool:
        return int(value) & ((1 << 64) - 1)
    bits = np.asarray(value, dtype.numpy)
    return int(bits.view(f"u{dtype.bytes}"))
