"""Launches on the GPU: what the first call of a kind prepares, every later one only fills in.

May import `base`, `isa`, `ir`, `codegen` and the rest of `runtime`. The first call with tensors of
PyTorch leaves a plan (`plan.py`), which later calls with tensors that are like them start; tensor
maps are encoded for addresses that are new. A launch goes to PyTorch's current stream, and without
PyTorch to the default stream. Arrays of the CPU are copied for each launch, which then waits.

    launcher = Launcher(program, lowered, target, written, cubin, print, announce)
    launcher.launch((a, b, out))
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, cast

from tilewright.base.errors import LaunchError
from tilewright.base.targets import CLUSTER_SINCE, Target
from tilewright.codegen import kernel_symbols
from tilewright.ir.expressions import Expr, Var, as_constant
from tilewright.ir.statements import Kernel, Print, Program
from tilewright.ir.types import ScalarType, TensorMapType, TensorType
from tilewright.ir.visit import variables, walk_statements
from tilewright.isa.tensor_map import TensorMap
from tilewright.runtime.arguments import bind, flattened
from tilewright.runtime.cuda_driver import Gpu, require_gpu
from tilewright.runtime.host import HostRun, LaunchShape, Values, launch_shape, number
from tilewright.runtime.launch_attributes import Config, attributes, stream_handle
from tilewright.runtime.likeness import likeness
from tilewright.runtime.plan import MapCell, Plan, Start, parameter_cell
from tilewright.runtime.staging import moved

# A launch may use this much dynamic shared memory unasked (CUDA C++ Programming Guide).
_UNASKED_SHARED = 48 * 1024
# Plans of a thread beyond this number are forgotten: sizes that change at every call.
_MOST_PLANS = 64
# To ask so many plans whether arguments are theirs takes less than to describe the arguments.
_FEW_PLANS = 8


class _PerThread(threading.local):
    """The plans of one thread: the parameter buffers must not be shared."""

    def __init__(self) -> None:
        self.plans: dict[Hashable, Plan] = {}
        # That of the plan which was used last.
        self.start: Callable[[tuple[Any, ...]], bool] = lambda _: False


class Launcher:
    """The kernels of a program, ready for launches on the GPU that the arguments live on.

    `cubin` is called when a GPU is used first, `output` for what the host's part prints,
    `announce` before arrays of the CPU are copied.
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
        self._functions: dict[tuple[int, str], tuple[Any, int]] = {}
        self._local = _PerThread()
        scalars = {p.name for p in program.params if isinstance(p.type, ScalarType)}
        self._shaping = frozenset(scalars & _shaping_names(program, lowered))
        host = tuple(walk_statements(lowered.host))
        self._repeatable = not any(isinstance(stmt, Print) for stmt in host)

    def launch(self, arguments: tuple[Any, ...]) -> None:
        """Launch on the arguments; returns as soon as the launches are queued.

        With arrays of the CPU, returns when the kernels have run and what they wrote is back.
        """
        if not self._local.start(arguments):
            self._launch_unlike(flattened(arguments))

    def _launch_unlike(self, arguments: tuple[Any, ...]) -> None:
        """Launch on arguments that are not like those of the thread's last call."""
        local = self._local
        if len(local.plans) <= _FEW_PLANS:
            for plan in local.plans.values():
                if plan.start(arguments):
                    local.start = plan.start
                    return
        key = _key(arguments, self._shaping, self._program.params) if self._repeatable else None
        if key is not None:
            plan = local.plans.get(key)
            if plan is not None and plan.start_alike(arguments):
                local.start = plan.start
                return
        bound = bind(self._program, arguments, self._written, "cuda")
        gpu = self._find(int(bound.device.partition(":")[2] or 0))
        gpu.ensure_context()
        hosted = [memory for memory in bound.memories if memory.device == "cpu"]
        if hosted:
            self._announce()
            with moved(hosted, self._written, gpu) as addresses:
                values = {**bound.values, **addresses}
                self._prepare(gpu, arguments, values, bound.sizes).launch()
            bound.copy_back()
            return
        plan = self._prepare(gpu, arguments, bound.values, bound.sizes)
        plan.launch()
        if key is not None:
            if len(local.plans) >= _MOST_PLANS:
                local.plans.clear()
            local.plans[key] = plan

    # ---- preparing

    def _prepare(
        self, gpu: Gpu, arguments: tuple[Any, ...], values: Values, sizes: Mapping[str, int]
    ) -> Plan:
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
        params = self._program.params
        return Plan(gpu, tuple(starts), params, arguments, cells, self._shaping, moving)

    def _ready(self, gpu: Gpu, kernel: Kernel, values: Values, cells: Mapping[str, Any]) -> Start:
        shape = launch_shape(kernel, values, self._target)
        location = kernel.launch.location or kernel.location
        shared = kernel.shared_bytes + shape.dynamic_shared_bytes
        function = self._function(gpu, kernel, shape, shared)
        options = dict(kernel.launch.options)
        fixed = all(as_constant(extent) is not None for extent in kernel.launch.cluster)
        # A shape that is known when compiling is part of the kernel, and may not be given again.
        given = None if fixed or self._target.capability < CLUSTER_SINCE else shape.cluster
        made = attributes(options, given, values, location)
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

    def _function(self, gpu: Gpu, kernel: Kernel, shape: LaunchShape, shared: int) -> Any:
        """Find a kernel on a GPU, and allow it the shared memory and the cluster it asks for."""
        key = (gpu.ordinal, kernel.name)
        with self._lock:
            if gpu.ordinal not in self._modules:
                self._modules[gpu.ordinal] = gpu.load(self._cubin())
                if any(_prints(each) for each in self._lowered.kernels):
                    # What kernels printed comes out when the GPU is waited for.
                    atexit.register(partial(_flush, gpu))
            function, allowed = self._functions.get(key, (None, 0))
            if function is None:
                function = gpu.function(self._modules[gpu.ordinal], self._symbols[kernel.name])
                x, y, z = shape.cluster
                if x * y * z > 8:
                    self._allow(gpu, kernel, function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
            if shared > max(allowed, _UNASKED_SHARED):
                self._allow(gpu, kernel, function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", shared)
            self._functions[key] = (function, max(allowed, shared))
        return function

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


def _key(
    arguments: tuple[Any, ...], shaping: frozenset[str], params: tuple[Var, ...]
) -> Hashable | None:
    """Say what a plan depends on, or `None` if a plan cannot be used again."""
    if len(arguments) != len(params):
        return None
    parts: list[Hashable] = []
    for argument, param in zip(arguments, params, strict=True):
        if type(argument) in (bool, int, float):
            kind = cast(Any, type(argument))
            parts.append((kind, argument if param.name in shaping else None))
        elif (found := likeness(argument)) is not None:
            parts.append(found)
        else:
            return None
    return tuple(parts)


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


def _flush(gpu: Gpu) -> None:
    try:
        gpu.synchronize()
    except LaunchError as error:
        print(f"tilewright: {error}", file=sys.stderr)
