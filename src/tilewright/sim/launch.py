"""Building a kernel for the simulator, and running a launch of it on the cores at hand.

May import `base`, `isa`, `ir`, `passes` and the rest of `sim`.

CTAs run in parallel while they cannot see one another. Where they can (global atomics, acquire
loads, release stores), one thread runs them all, in the order of the schedule.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import as_constant
from tilewright.ir.operands import paired_operands
from tilewright.ir.statements import Instruct, Kernel, Print
from tilewright.ir.visit import walk_statements
from tilewright.sim import reports
from tilewright.sim.engine import context, flight, jit, schedule
from tilewright.sim.engine.context import FIELD
from tilewright.sim.engine.kernel import KernelCode, value_dtype
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine
from tilewright.sim.engine.plan import plan_kernel
from tilewright.sim.options import DEFAULT_STEP_LIMIT, Options, Region
from tilewright.sim.printing import format_records

Grid = tuple[int, int, int]
_PRINT_BYTES = 1 << 16
_DRAIN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


@dataclass(frozen=True)
class SimulatedKernel:
    """A kernel compiled for the simulator; launching is safe from several threads."""

    kernel: Kernel
    target: Target
    options: Options
    module: Module
    code: jit.Code
    path_words: int
    frame_bytes: int

    def launch(
        self,
        arguments: Sequence[int | float],
        regions: Sequence[Region],
        grid: Grid,
        output: Callable[[str], None],
        block: Grid | None = None,
        shared_bytes: int = 0,
    ) -> None:
        """Run a grid of CTAs.

        `arguments` are in the order of the kernel's parameters, then its shape symbols;
        pointers are numbers. `regions` are what it may touch. `output` takes what it prints,
        in CTA order. `block` and `shared_bytes` (of dynamic shared memory) are for kernels in
        which they are not constants.

        Raises `SimulationError` for a fault, `DeadlockError`, `StepLimit`.
        """
        shape = block or _static_block(self.kernel)
        assert shape is not None, "the block of this kernel must be given"
        _Launch(self, arguments, regions, grid, shape, shared_bytes, output).run()


def build(kernel: Kernel, target: Target, options: Options) -> SimulatedKernel:
    """Compile a lowered kernel for the CPU."""
    where = jit.machine(options.cpu)
    module = Module(where.present, NativeMachine)
    module.numerics = options.numerics
    module.block = _static_block(kernel)
    code = KernelCode(module, plan_kernel(kernel))
    code.emit()
    frame_bytes = -(-code.frame_bytes // 64) * 64
    schedule.emit(module, code.path_words, frame_bytes)
    native = jit.compile_text(module.text(), where)
    return SimulatedKernel(kernel, target, options, module, native, code.path_words, frame_bytes)


def memory_needed(simulated: SimulatedKernel, grid: Grid) -> int:
    """Estimate the bytes that a launch takes beside its arguments: those of the CTAs in flight."""
    live = _live_ctas(simulated, int(np.prod(grid)))
    return live * _cta_bytes(simulated, simulated.kernel.shared_bytes)


def _cta_bytes(simulated: SimulatedKernel, shared: int) -> int:
    paths = context.WARPS * context.PATHS * simulated.path_words * 8
    return shared + paths + context.WARPS * simulated.frame_bytes + 2 * _PRINT_BYTES


def _live_ctas(simulated: SimulatedKernel, count: int) -> int:
    if interacts(simulated.kernel):
        threads = int(np.prod(_static_block(simulated.kernel) or (1024, 1, 1)))
        resident = max(simulated.target.threads_per_multiprocessor // max(threads, 1), 1)
        resident = min(resident, simulated.target.ctas_per_multiprocessor)
        return min(count, simulated.target.multiprocessors * resident)
    return min(count, _workers(simulated.options))


def _workers(options: Options) -> int:
    return options.workers or os.cpu_count() or 1


def _static_block(kernel: Kernel) -> Grid | None:
    x, y, z = (as_constant(each) for each in kernel.launch.block)
    if x is None or y is None or z is None:
        return None
    return int(x), int(y), int(z)


def interacts(kernel: Kernel) -> bool:
    """Tell whether CTAs of a launch may see one another's writes while they run."""
    for stmt in walk_statements(kernel.body):
        if isinstance(stmt, Instruct) and _sees_others(stmt):
            return True
    return False


def uses_tensor_memory(kernel: Kernel) -> bool:
    """Tell whether a kernel has an instruction that touches Tensor Memory."""
    return any(
        isinstance(stmt, Instruct)
        and (
            stmt.form.time.completes in flight.GROUPS
            or any(each.space is Space.TMEM for each in stmt.form.operands)
        )
        for stmt in walk_statements(kernel.body)
    )


def _sees_others(stmt: Instruct) -> bool:
    order = stmt.form.order
    wide = order.scope in ("cluster", "gpu", "sys")
    if wide and (order.acquires or order.releases):
        return True
    for declared, _ in paired_operands(stmt.form, stmt.operands):
        shared = declared.space in (Space.SHARED, None)
        if declared.access == "update" and not shared:
            return True
        if declared.access == "read" and wide and not shared:
            return True
    return False


# ---------------------------------------------------------------------------- a launch


@dataclass(eq=False)
class _Cta:
    """The memory of one CTA in flight, and what it has printed."""

    words: np.ndarray
    shared: np.ndarray
    paths: np.ndarray
    frames: np.ndarray
    queue: np.ndarray
    dummy: np.ndarray
    prints: np.ndarray
    hints: np.ndarray
    index: int = -1
    text: list[str] = field(default_factory=list[str])
    tensor: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def get(self, name: str) -> int:
        """Read a field of the context."""
        return int(self.words[FIELD[name]])

    def put(self, name: str, value: int) -> None:
        """Write a field of the context."""
        self.words[FIELD[name]] = value & ((1 << 64) - 1)


def _aligned(size: int, kind: str = "u1", align: int = 1024) -> np.ndarray:
    raw = np.zeros(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + size].view(kind)


class _Launch:
    """One launch: its arguments, its CTAs, the text they print, the faults they meet."""

    def __init__(
        self,
        simulated: SimulatedKernel,
        arguments: Sequence[int | float],
        regions: Sequence[Region],
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        output: Callable[[str], None],
    ) -> None:
        self.simulated = simulated
        self.grid = grid
        self.block = block
        self.count = int(np.prod(grid))
        self.shared_bytes = max(simulated.kernel.shared_bytes, shared_bytes)
        self.output = output
        self.regions = regions
        self.stop = np.zeros(1, np.uint64)
        self.table = np.array(
            [(r.address, r.address + r.size, r.writable) for r in regions], np.uint64
        ).reshape(-1, 3)
        variables = (*simulated.kernel.params, *simulated.kernel.symbols)
        self.parameters = np.array(
            [_word(a, value_dtype(v)) for a, v in zip(arguments, variables, strict=True)],
            np.uint64,
        )
        self.entry = _RUN(simulated.code.address("run_cta"))
        self.lock = threading.Lock()
        self.pending: dict[int, str] = {}
        self.printed = 0
        self.failure: tuple[int, BaseException] | None = None
        self.drains: list[object] = []

    def run(self) -> None:
        """Run every CTA, print in order, and raise the fault of the first CTA that met one."""
        if self.count == 0:
            return
        together = interacts(self.simulated.kernel) and self.count > 1
        if together:
            self._run_together()
        else:
            self._run_apart()
        self._flush(final=True)
        if self.failure is not None:
            raise self.failure[1]

    # ---- CTAs that cannot see one another

    def _run_apart(self) -> None:
        workers = min(_workers(self.simulated.options), self.count)
        numbers = itertools.count()
        if workers == 1 and threading.current_thread() is not threading.main_thread():
            self._work(numbers)
            return
        threads = [
            threading.Thread(target=self._work, args=(numbers,), daemon=True)
            for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.05)
        except BaseException:
            self.stop[0] = 1
            for thread in threads:
                thread.join()
            raise

    def _work(self, numbers: Iterator[int]) -> None:
        cta = self._new_cta()
        while (index := next(numbers)) < self.count and not self.stop[0]:
            try:
                self._begin(cta, index)
                status = self.entry(cta.words.ctypes.data)
                self._end(cta, status)
            except BaseException as error:
                self._fail(index, error)
                return

    def _fail(self, index: int, error: BaseException) -> None:
        with self.lock:
            # Of several faults the first CTA's is told, whatever thread met it first.
            if self.failure is None or index < self.failure[0]:
                self.failure = (index, error)
            if self.failure[0] == 0 or self.simulated.options.workers == 1:
                self.stop[0] = 1

    # ---- CTAs that can

    def _run_together(self) -> None:
        thread = threading.Thread(target=self._work_together, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.05)
        except BaseException:
            self.stop[0] = 1
            thread.join()
            raise

    def _work_together(self) -> None:
        waiting = iter(range(self.count))
        live: list[_Cta] = []
        room = _live_ctas(self.simulated, self.count)
        spare: list[_Cta] = []
        idle = 0
        try:
            while True:
                for index in itertools.islice(waiting, room - len(live)):
                    cta = spare.pop() if spare else self._new_cta()
                    self._begin(cta, index, together=True)
                    live.append(cta)
                if not live:
                    return
                moved = False
                for cta in list(live):
                    before = cta.get("progress")
                    status = self.entry(cta.words.ctypes.data)
                    moved |= cta.get("progress") != before or status != context.STUCK
                    if status == context.STUCK:
                        continue
                    self._end(cta, status)
                    live.remove(cta)
                    spare.append(cta)
                idle = 0 if moved else idle + 1
                if idle > _IDLE_TURNS:
                    self._end(live[0], context.STUCK)
        except BaseException as error:
            self._fail(live[0].index if live else 0, error)

    # ---- one CTA

    def _new_cta(self) -> _Cta:
        simulated = self.simulated
        cta = _Cta(
            _aligned(8 * context.CONTEXT_WORDS, "u8"),
            _aligned(max(self.shared_bytes, 1)),
            _aligned(8 * context.WARPS * context.PATHS * simulated.path_words, "u8"),
            _aligned(max(context.WARPS * simulated.frame_bytes, 64)),
            _aligned(8 * context.QUEUE_RECORDS * context.RECORD_WORDS, "u8"),
            _aligned(context.DUMMY_BYTES),
            _aligned(_PRINT_BYTES if self._prints() else 64),
            _aligned(4 * max(len(simulated.module.sites), 1), "u4"),
        )

        def drain(_: int) -> None:
            cta.text.append(self._take_prints(cta))

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
            ("stop", self.stop),
            ("regions", self.table),
            ("parameters", self.parameters),
        ):
            cta.put(name, array.ctypes.data)
        if uses_tensor_memory(simulated.kernel):
            cta.tensor = {name: _aligned(size) for name, size in self._tensor_bytes().items()}
        for name, array in cta.tensor.items():
            cta.put(name, array.ctypes.data)
        cta.put("print_size", cta.prints.nbytes)
        cta.put("region_count", len(self.table))
        cta.put("shared_size", self.shared_bytes)
        for prefix, extents in (("nctaid", self.grid), ("ntid", self.block)):
            for axis, extent in zip("xyz", extents, strict=True):
                cta.put(f"{prefix}.{axis}", extent)
        for prefix in ("cluster_nctaid",):
            for axis in "xyz":
                cta.put(f"{prefix}.{axis}", 1)
        return cta

    def _tensor_bytes(self) -> dict[str, int]:
        warps = -(-int(np.prod(self.block)) // 32)
        return {
            "tmem": 4 * context.TMEM_LANES * context.TMEM_COLUMNS,
            "scratch": context.SCRATCH_BYTES,
            "flight": warps * len(flight.GROUPS) * flight.ARENA_BYTES,
        }

    def _prints(self) -> bool:
        return any(isinstance(s, Print) for s in walk_statements(self.simulated.kernel.body))

    def _begin(self, cta: _Cta, index: int, *, together: bool = False) -> None:
        options = self.simulated.options
        cta.index = index
        cta.text.clear()
        start = context.BARRIER_START
        cta.words[start : context.CONTEXT_WORDS] = 0
        for name in (
            "error",
            "progress",
            "give_up",
            "generous",
            "queue_head",
            "queue_tail",
            "idle_rounds",
            "passed_over",
            "tmem_columns",
            "tmem_permit",
        ):
            cta.put(name, 0)
        if cta.tensor:
            cta.tensor["tmem"][:] = 0xFF
            cta.tensor["flight"].reshape(-1, flight.ARENA_BYTES)[:, :8] = 0
        cta.put("print_used", 0)
        cta.put("steps", 1)
        limit = options.step_limit or DEFAULT_STEP_LIMIT
        cta.put("quanta", max(limit // context.STEP_QUANTUM, 1) + 1)
        cta.put("schedule", context.SCHEDULES[options.schedule])
        cta.put("random", (options.seed * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03) | 1)
        cta.put("together", int(together))
        rest = index
        for axis, extent in zip("xyz", self.grid, strict=True):
            cta.put(f"ctaid.{axis}", rest % extent)
            cta.put(f"clusterid.{axis}", rest % extent)
            cta.put(f"nclusterid.{axis}", extent)
            rest //= extent
        threads = int(np.prod(self.block))
        warps = -(-threads // 32)
        cta.put("live_warps", warps)
        cta.words[context.USED_START : context.USED_START + warps] = 1
        lanes = [(1 << min(32, threads - 32 * w)) - 1 for w in range(warps)]
        cta.words[context.LANES_START : context.LANES_START + warps] = lanes
        size = self.simulated.path_words
        for warp, mask in enumerate(lanes):
            record = cta.paths[warp * context.PATHS * size :][:size]
            record[:] = 0
            record[context.PATH["state"]] = context.READY
            record[context.PATH["lanes"]] = mask

    def _end(self, cta: _Cta, status: int) -> None:
        cta.text.append(self._take_prints(cta))
        with self.lock:
            self.pending[cta.index] = "".join(cta.text)
        self._flush()
        if status == context.DONE:
            # A fault may be met by what lands last.
            if cta.get("error"):
                raise reports.fault(self.simulated, cta, self.grid, self.regions)
            return
        if status == context.STUCK:
            raise reports.deadlock(self.simulated, cta, self.grid)
        if cta.get("error"):
            raise reports.fault(self.simulated, cta, self.grid, self.regions)

    # ---- printing

    def _take_prints(self, cta: _Cta) -> str:
        used = cta.get("print_used")
        cta.put("print_used", 0)
        if not used:
            return ""
        return format_records(self.simulated, cta.prints[:used].view(np.uint64))

    def _flush(self, *, final: bool = False) -> None:
        """Hand on what the CTAs have printed, as far as all before them have ended."""
        with self.lock:
            while self.printed in self.pending:
                text = self.pending.pop(self.printed)
                self.printed += 1
                if text:
                    self.output(text)
            if final:
                for index in sorted(self.pending):
                    self.output(self.pending.pop(index))


_IDLE_TURNS = 2000


def _word(value: int | float, dtype: DType) -> int:
    """Give the bits of an argument as a 64-bit word."""
    if dtype.is_integer or dtype.is_bool:
        return int(value) & ((1 << 64) - 1)
    bits = np.asarray(value, dtype.numpy)
    return int(bits.view(f"u{dtype.bytes}"))
