"""Launches on the GPU: what the first call of a kind prepares, every later one only fills in.

May import `base`, `isa`, `ir`, `codegen` and the rest of `runtime`. The first call with arrays of a
GPU leaves a plan (`plan.py`), which later calls with arrays that are like them start; tensor maps
are encoded for addresses that are new. Where launches go is said in `streams.py`. Arrays of the CPU
are copied for each launch, which then waits.

    launcher = Launcher(program, lowered, target, written, cubin, print, announce)
    launcher.local.start((a, b, out)) or launcher.launch((a, b, out))
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, cast

from tilewright.base.errors import LaunchError
from tilewright.base.forks import cleared_in_children
from tilewright.base.targets import CLUSTER_SINCE, PORTABLE_CLUSTER, Target
from tilewright.codegen import kernel_symbols
from tilewright.ir.expressions import Expr, as_constant
from tilewright.ir.statements import Kernel, Print, Program
from tilewright.ir.types import ScalarType, TensorMapType, TensorType
from tilewright.ir.visit import variables, walk_statements
from tilewright.isa.tensor_map import TensorMap
from tilewright.runtime.arguments import Memory, bind, flattened, plain_number
from tilewright.runtime.cuda_driver import Gpu, require_gpu
from tilewright.runtime.host import HostRun, LaunchShape, Values, launch_shape, number
from tilewright.runtime.launch_attributes import (
    PREFERRED_CLUSTER,
    Attribute,
    Config,
    attributes,
)
from tilewright.runtime.likeness import likeness
from tilewright.runtime.plan import Launches, MapCell, Plan, Start, StartEntry, bits, parameter_cell
from tilewright.runtime.staging import moved
from tilewright.runtime.streams import (
    Received,
    Source,
    constant,
    current_stream,
    exchanged,
    receive,
    stream_handle,
)

# Beyond this number the plans of a thread that were used least lately are forgotten.
_MOST_PLANS = 512
# To ask so many plans whether arguments are theirs takes less than to describe the arguments.
_FEW_PLANS = 8
# How long the end of a program waits for faults of launches that nothing has waited for.
_LAST_SECONDS = 2.0


class Local(threading.local):
    """The plans of one thread, by their kind: the parameter buffers must not be shared.

    `start` is that of the plan which was used last.
    """

    start: StartEntry

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the plans of this thread."""
        self.plans: dict[Hashable, Plan] = {}  # in the order of their use
        self._used: Hashable = None
        self.start = _start_nothing

    def start_any(self, arguments: tuple[Any, ...], *stream: Source) -> bool:
        """Start on arguments that are like those of one of the plans, if these are few."""
        if self.start(arguments, *stream):
            return True
        if len(self.plans) > _FEW_PLANS:
            return False
        for key, plan in self.plans.items():
            if plan.start(arguments, *stream):
                self._turn_to(key)
                return True
        return False

    def start_of_kind(self, key: Hashable, arguments: tuple[Any, ...], *stream: Source) -> bool:
        """Start the plan for arguments of a kind, if there is one."""
        plan = self.plans.get(key)
        if plan is None or not plan.start_alike(arguments, *stream):
            return False
        self._turn_to(key)
        return True

    def keep(self, key: Hashable, plan: Plan) -> None:
        """Keep a plan for arguments of a kind, in place of that which was not used for longest."""
        self.plans[key] = plan
        self._turn_to(key)
        if len(self.plans) > _MOST_PLANS:
            del self.plans[next(iter(self.plans))]

    def _turn_to(self, key: Hashable) -> None:
        for used in (self._used, key):  # until now, and from now on
            if used in self.plans:
                self.plans[used] = self.plans.pop(used)
        self._used, self.start = key, self.plans[key].start


def _start_nothing(arguments: tuple[Any, ...], stream_of: Source | None = None, /) -> bool:
    return False


class Launcher:
    """The kernels of a program, ready for launches on the GPU that the arguments live on.

    `cubin` is called when a GPU is used first, `output` for what the host's part prints,
    `announce` before arrays of the CPU are copied. `local.start(arguments)` launches on arguments
    like those of the thread's last call, and else gives `False`: `launch` does with all others.
    Launches raise `LaunchError` for arguments and launches that cannot be.
    """

    def __init__(
        self,
        program: Program,
        lowered: Program,
        target: Target,
        written: frozenset[str],
        cubin: Callable[[], bytes],
        output: Callable[[str], None],
        announce: Callable[[], None],
        find: Callable[[int], Gpu] = require_gpu,
    ) -> None:
        self._program = program
        self._lowered = lowered
        self._symbols = kernel_symbols(lowered)
        self._target = target
        self._written = written
        self._cubin = cubin
        self._output = output
        self._announce = announce
        self._find = find
        self._lock = threading.Lock()
        self._modules: dict[int, Any] = {}
        self._functions: dict[tuple[int, str], _Function] = {}
        self.local = cleared_in_children(Local())
        scalars = {p.name for p in program.params if isinstance(p.type, ScalarType)}
        self._shaping = frozenset(scalars & _shaping_names(program, lowered))
        host = tuple(walk_statements(lowered.host))
        self._repeatable = not any(isinstance(stmt, Print) for stmt in host)

    def launch(self, arguments: tuple[Any, ...], stream: Any = None) -> None:
        """Launch on the arguments; returns as soon as the launches are queued.

        With arrays of the CPU, returns when the kernels have run and what they wrote is back.
        `stream` is where the launches go, as `streams.stream_handle` reads it.
        """
        asked = None if stream is None else stream_handle(stream)
        given = tuple(map(plain_number, flattened(arguments)))
        if self._start(given, *(() if asked is None else (constant(asked),))):
            return
        received = receive(given, asked, self._locate)
        with received.ordered(self._find):
            self._launch_received(received)

    def _start(self, arguments: tuple[Any, ...], *stream: Source) -> bool:
        """Start a plan, if there is one for such arguments: tensors of PyTorch need no more."""
        if self.local.start_any(arguments, *stream):
            return True
        key = self._key(arguments)
        return key is not None and self.local.start_of_kind(key, arguments, *stream)

    def _locate(self, address: int) -> int | None:
        return self._find(0).ordinal_of(address)

    def _launch_received(self, received: Received) -> None:
        arguments, stream = received.arguments, received.stream
        key = self._key(arguments)
        if key is not None and self.local.start_of_kind(key, arguments, stream):
            return
        bound = bind(self._program, arguments, self._written, "cuda")
        gpu = self._find(int(bound.device.partition(":")[2] or 0))
        gpu.ensure_context()
        hosted = [memory for memory in bound.memories if memory.device == "cpu"]
        if hosted:
            self._require_no_capture(gpu, stream, hosted[0])
            self._announce()
            with moved(hosted, self._written, gpu) as addresses:
                prepared = self._prepare(gpu, {**bound.values, **addresses}, bound.sizes)
                prepared.launches.run(stream)
                prepared.launches.finish()
            bound.copy_back()
            return
        prepared = self._prepare(gpu, bound.values, bound.sizes)
        prepared.launches.run(stream)
        if key is not None:
            self.local.keep(key, self._plan(prepared, arguments))

    def _require_no_capture(self, gpu: Gpu, stream: Source, memory: Memory) -> None:
        """Refuse to copy and wait while a graph is captured: that would end the capture."""
        streams = {exchanged(stream()), exchanged(current_stream(gpu.ordinal)())}
        if not any(map(gpu.is_capturing, streams)):
            return
        param = next(each for each in self._program.params if each.name == memory.name)
        raise LaunchError(
            f"argument {memory.name!r} of {self._program.name} lies on the CPU, and a CUDA graph "
            "is being captured",
            code="argument-device",
            location=param.location,
            expected="arrays of the GPU: a graph cannot copy in, wait, and copy back",
            found="memory of the CPU",
            hint=f"move {memory.name} to the GPU before the capture",
        )

    def _key(self, arguments: tuple[Any, ...]) -> Hashable | None:
        """Say what a plan depends on, or `None` if a plan cannot be used again."""
        params = self._program.params
        if not self._repeatable or len(arguments) != len(params):
            return None
        parts: list[Hashable] = []
        for argument, param in zip(arguments, params, strict=True):
            if type(argument) in (bool, int, float):
                kind = cast(Any, type(argument))
                parts.append((kind, bits(argument) if param.name in self._shaping else None))
            elif (found := likeness(argument)) is not None:
                parts.append(found)
            else:
                return None
        return tuple(parts)

    # ---- preparing

    def _prepare(self, gpu: Gpu, values: Values, sizes: Mapping[str, int]) -> _Prepared:
        # What the host's part computes with, it may change: each launch has a cell of its own.
        cells = {
            param.name: parameter_cell(param, values[param.name])
            for param in self._program.params
            if param.name not in self._shaping and not isinstance(param.type, TensorMapType)
        }
        maps: dict[tuple[str, TensorMap], MapCell] = {}
        starts: list[Start] = []

        def ready(kernel: Kernel, current: Values) -> None:
            bits: dict[str, Any] = {}
            for var in kernel.params:
                made = current[var.name]
                if not isinstance(made, TensorMap):
                    continue
                if (var.name, made) not in maps:
                    base = run.bases.get(var.name)
                    start = 0 if base is None else int(number(values, base))
                    cell = MapCell(gpu, var.name, made, start, kernel.location)
                    maps[var.name, made] = cell
                bits[var.name] = maps[var.name, made].bits
            starts.append(self._ready(gpu, kernel, current, {**cells, **bits}))

        run = HostRun(self._lowered, ready, self._output, sizes)
        run(values)
        moving = tuple(
            (run.bases[name], cell) for (name, _), cell in maps.items() if name in run.bases
        )
        return _Prepared(Launches(gpu, tuple(starts)), cells, moving)

    def _plan(self, prepared: _Prepared, arguments: tuple[Any, ...]) -> Plan:
        return Plan(
            prepared.launches,
            self._program.params,
            arguments,
            prepared.cells,
            self._shaping,
            self._written,
            prepared.maps,
        )

    def _ready(self, gpu: Gpu, kernel: Kernel, values: Values, cells: Mapping[str, Any]) -> Start:
        shape = launch_shape(kernel, values, self._target)
        location = kernel.launch.location or kernel.location
        shared = kernel.shared_bytes + shape.dynamic_shared_bytes
        options = dict(kernel.launch.options)
        fixed = all(as_constant(extent) is not None for extent in kernel.launch.cluster)
        # A shape that is known when compiling is part of the kernel, and may not be given again.
        given = None if fixed or self._target.capability < CLUSTER_SINCE else shape.cluster
        made = attributes(options, given, values, location)
        function = self._function(gpu, kernel, _needs(shape, shared, made))
        place = "" if location is None else f" ({location.file}:{location.line})"
        gpu.launched.setdefault(f"{kernel.name}{place}")
        stream = options.get("stream")
        config = Config(
            shape.grid,
            shape.block,
            shared,
            None if stream is None else stream_handle(stream),
            made,
            len(made),
        )
        params = (*kernel.params, *kernel.symbols)
        slots = [
            cells[var.name] if var.name in cells else parameter_cell(var, values[var.name])
            for var in params
        ]
        pointers = (ctypes.c_void_p * len(slots))(*map(ctypes.addressof, slots))
        go = gpu.prepare(ctypes.addressof(config), int(function), ctypes.addressof(pointers))
        buffers = (made, slots, pointers)
        return Start(go, config, kernel, shape, buffers, stream is not None)

    def _function(self, gpu: Gpu, kernel: Kernel, needs: Mapping[str, int]) -> Any:
        """Find a kernel on a GPU, and allow it what its launch needs."""
        key = (gpu.ordinal, kernel.name)
        with self._lock, gpu.unguarded():
            if gpu.ordinal not in self._modules:
                self._modules[gpu.ordinal] = gpu.load(self._cubin())
                _watch(gpu)
                if any(_prints(each) for each in self._lowered.kernels):
                    _await_prints(gpu)
            if key not in self._functions:
                found = gpu.function(self._modules[gpu.ordinal], self._symbols[kernel.name])
                self._functions[key] = _Function(found, dict(_UNASKED))
            function = self._functions[key]
            # A later launch can need more than those before.
            for name, value in needs.items():
                if value > function.allowed[name]:
                    self._allow(gpu, kernel, function.handle, name, value)
                    function.allowed[name] = value
        return function.handle

    def _allow(self, gpu: Gpu, kernel: Kernel, function: Any, name: str, value: int) -> None:
        attribute = getattr(gpu.api.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        (status,) = gpu.api.cuFuncSetAttribute(function, attribute, value)
        if int(status):
            what = name.lower().replace("_", " ")
            raise gpu.error(
                int(status),
                f"{kernel.name} cannot be launched on {gpu.name}",
                kernel.launch.location or kernel.location,
                f"{what} = {value}",
            )


@dataclass(frozen=True)
class _Prepared:
    """What a call has prepared: its launches, and of a `Plan` the cells and tensor maps."""

    launches: Launches
    cells: Mapping[str, Any]
    maps: tuple[tuple[str, MapCell], ...]


@dataclass(frozen=True)
class _Function:
    """A kernel on a GPU, and what its launches may have: attributes of the driver, by name."""

    handle: Any
    allowed: dict[str, int]


# What a kernel has unasked (CUDA C++ Programming Guide, "Shared Memory", "Thread Block Clusters").
_SHARED, _CLUSTERS = "MAX_DYNAMIC_SHARED_SIZE_BYTES", "NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
_UNASKED = {_SHARED: 48 * 1024, _CLUSTERS: 0}


def _needs(shape: LaunchShape, shared: int, made: Iterable[Attribute]) -> dict[str, int]:
    """Say what a launch needs that a kernel must be allowed."""
    preferred = (each.value.extents for each in made if each.id == PREFERRED_CLUSTER)
    largest = max([prod(shape.cluster), *map(prod, preferred)])
    return {_SHARED: shared, _CLUSTERS: int(largest > PORTABLE_CLUSTER)}


def _shaping_names(program: Program, lowered: Program) -> set[str]:
    """Name what the host's part computes with: there, another value means another launch."""
    launches = [kernel.launch for kernel in lowered.kernels]
    exprs: list[Expr] = [
        each
        for launch in launches
        for each in (*launch.grid, *launch.block, *launch.cluster, launch.dynamic_shared_bytes)
    ]
    for given in (value for launch in launches for _, value in launch.options):
        parts = cast("tuple[Any, ...]", given if isinstance(given, tuple) else (given,))
        exprs += [each for each in parts if isinstance(each, Expr)]
    for param in program.params:
        if isinstance(param.type, TensorType):
            exprs += param.type.shape
    found = {var.name for var in variables(lowered.host)}
    return found.union(*({var.name for var in variables(each)} for each in exprs))


def _prints(kernel: Kernel) -> bool:
    return any(isinstance(stmt, Print) for stmt in walk_statements(kernel.body))


@cache
def _watch(gpu: Gpu) -> None:
    """Have the end of the program tell of a fault that nothing has waited for."""
    atexit.register(_tell_fault, gpu, lambda: gpu.settle(_LAST_SECONDS))


@cache
def _await_prints(gpu: Gpu) -> None:
    """Have the end of the program wait: what kernels print comes out when the GPU is waited for."""
    atexit.register(_tell_fault, gpu, gpu.synchronize)


def _tell_fault(gpu: Gpu, wait: Callable[[], None]) -> None:
    if os.getpid() != gpu.process:
        return
    try:
        wait()
    except LaunchError as error:
        print(f"tilewright: {error}", file=sys.stderr)
