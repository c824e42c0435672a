"""Launches on the GPU: what the first call of a kind prepares, every later one only fills in.

May import `base`, `isa`, `ir`, `codegen` and the rest of `runtime`. A call with tensors of PyTorch
that are like those of an earlier call writes addresses into that call's parameter buffer and
starts it: nothing is allocated and nothing waits, so that launches can be captured in a CUDA
graph. Tensor maps are encoded for addresses that are new. A launch goes to PyTorch's current
stream, and without PyTorch to the default stream. Arrays of the CPU are copied for each launch,
which then waits.

    launcher = Launcher(program, lowered, target, written, cubin, print, announce)
    launcher.launch((a, b, out))
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from tilewright.base import lazy
from tilewright.base.dtypes import DType
from tilewright.base.errors import LaunchError
from tilewright.base.locations import Location
from tilewright.base.targets import CLUSTER_SINCE, Target
from tilewright.codegen import kernel_symbols
from tilewright.ir.expressions import Expr, Var, as_constant
from tilewright.ir.statements import Kernel, Print, Program
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType
from tilewright.ir.visit import variables, walk_statements
from tilewright.isa.tensor_map import ALIGN, BYTES, TensorMap
from tilewright.runtime.arguments import bind, fitted, flattened
from tilewright.runtime.cuda_driver import WRONG_CONTEXT, Gpu, require_gpu
from tilewright.runtime.host import HostRun, LaunchShape, Values, launch_shape, number
from tilewright.runtime.launch_attributes import Config, attributes, stream_handle
from tilewright.runtime.staging import moved
from tilewright.runtime.storage import alignment

# A launch may use this much dynamic shared memory unasked (CUDA C++ Programming Guide).
_UNASKED_SHARED = 48 * 1024
# Plans of a thread beyond this number are forgotten: sizes that change at every call.
_MOST_PLANS = 64
# So are the bits of a tensor map for addresses beyond this number.
_MOST_ADDRESSES = 1024
_ONES = (1, 1, 1)


@dataclass(frozen=True)
class _Start:
    """A launch that is ready: call `go`; the other fields keep its buffers, and tell of it."""

    go: Callable[[], int]
    config: Config
    kernel: Kernel
    shape: LaunchShape
    buffers: tuple[Any, ...]
    own_stream: bool


class _MapCell:
    """A tensor map of a plan: its bits, where launches find them, and those of earlier calls.

    `base` is the address of the argument in which the tensor lies.
    """

    def __init__(
        self, gpu: Gpu, name: str, made: TensorMap, base: int, location: Location | None
    ) -> None:
        self._gpu, self._name, self._made, self._location = gpu, name, made, location
        self._offset = made.address - base
        raw = ctypes.create_string_buffer(BYTES + ALIGN)
        self.bits = (ctypes.c_char * BYTES).from_buffer(raw, -ctypes.addressof(raw) % ALIGN)
        self._known: dict[int, bytes] = {}
        self._base: int | None = None
        self.point(base)

    def point(self, base: int) -> bool:
        """Let the map be of an argument at that address; `False` if there cannot be one."""
        if base == self._base:
            return True
        bits = self._known.get(base)
        if bits is None:
            made = replace(self._made, address=base + self._offset)
            if made.problem() is not None:
                return False
            self._base = None
            into = ctypes.addressof(self.bits)
            self._gpu.encode_tensor_map(self._name, made, into, self._location)
            if len(self._known) >= _MOST_ADDRESSES:
                self._known.clear()
            self._known[base] = self.bits.raw
        else:
            self.bits.raw = bits
        self._base = base
        return True


class _PerThread(threading.local):
    """The plans of one thread: the parameter buffers must not be shared."""

    def __init__(self) -> None:
        self.last: _Plan | None = None
        self.plans: dict[Hashable, _Plan] = {}


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
        local = self._local
        plan = local.last
        if plan is not None and plan.start(arguments):
            return
        arguments = flattened(arguments)
        key = _key(arguments, self._shaping, self._program.params) if self._repeatable else None
        if key is not None:
            plan = local.plans.get(key)
            if plan is not None and plan.start(arguments):
                local.last = plan
                return
        bound = bind(self._program, arguments, self._written, "cuda")
        gpu = self._find(int(bound.device.partition(":")[2] or 0))
        gpu.ensure_context()
        hosted = [memory for memory in bound.memories if memory.device == "cpu"]
        if hosted:
            self._announce()
            with moved(hosted, self._written, gpu) as addresses:
                values = {**bound.values, **addresses}
                self._prepare(gpu, arguments, values, bound.sizes).start_prepared()
            bound.copy_back()
            return
        plan = self._prepare(gpu, arguments, bound.values, bound.sizes)
        plan.start_prepared()
        if key is not None:
            if len(local.plans) >= _MOST_PLANS:
                local.plans.clear()
            local.plans[key] = local.last = plan

    # ---- preparing

    def _prepare(
        self, gpu: Gpu, arguments: tuple[Any, ...], values: Values, sizes: Mapping[str, int]
    ) -> _Plan:
        # What the host's part computes with, it may change: each launch has a cell of its own.
        cells = {
            param.name: _cell(param, values[param.name])
            for param in self._program.params
            if param.name not in self._shaping and not isinstance(param.type, TensorMapType)
        }
        maps: dict[tuple[str, TensorMap], _MapCell] = {}
        starts: list[_Start] = []

        def ready(kernel: Kernel, current: Values) -> None:
            bits: dict[str, Any] = {}
            for var in kernel.params:
                made = current[var.name]
                if not isinstance(made, TensorMap):
                    continue
                if (var.name, made) not in maps:
                    base = run.bases.get(var.name)
                    start = 0 if base is None else int(number(values, base))
                    cell = _MapCell(gpu, var.name, made, start, kernel.location)
                    maps[var.name, made] = cell
                bits[var.name] = maps[var.name, made].bits
            starts.append(self._ready(gpu, kernel, current, {**cells, **bits}))

        run = HostRun(self._lowered, ready, self._output, sizes)
        run(values)
        moving = tuple(
            (run.bases[name], cell) for (name, _), cell in maps.items() if name in run.bases
        )
        return _Plan(gpu, tuple(starts), self._program, arguments, cells, self._shaping, moving)

    def _ready(self, gpu: Gpu, kernel: Kernel, values: Values, cells: Mapping[str, Any]) -> _Start:
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
            cells[var.name] if var.name in cells else _cell(var, values[var.name]) for var in params
        ]
        pointers = (ctypes.c_void_p * len(slots))(*map(ctypes.addressof, slots))
        go = partial(
            gpu.launch,
            ctypes.addressof(config),
            int(function),
            ctypes.addressof(pointers),
            None,
        )
        buffers = (made, slots, pointers)
        return _Start(go, config, kernel, shape, buffers, stream is not None)

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


class _Plan:
    """The launches of a call, for arguments that are like those it was made with."""

    def __init__(
        self,
        gpu: Gpu,
        starts: tuple[_Start, ...],
        program: Program,
        arguments: tuple[Any, ...],
        cells: Mapping[str, Any],
        shaping: frozenset[str],
        maps: tuple[tuple[str, _MapCell], ...],
    ) -> None:
        self._gpu = gpu
        self._starts = starts
        self._count = len(arguments)
        self._stream_of = _stream_source(gpu.ordinal)
        self._stream: int | None = None
        tensors: list[tuple[Any, ...]] = []
        scalars: list[tuple[Any, ...]] = []
        pairs = zip(program.params, arguments, strict=True)
        for position, (param, argument) in enumerate(pairs):
            if isinstance(param.type, ScalarType):
                fixed = argument if param.name in shaping else None
                scalars.append((position, _class(argument), param, fixed, cells.get(param.name)))
            elif _is_plain_tensor(argument):
                tensors.append(_expected(position, param, argument, cells[param.name]))
        self._tensors = tuple(tensors)
        self._scalars = tuple(scalars)
        positions = {param.name: position for position, param in enumerate(program.params)}
        self._maps = tuple((positions[base], cell) for base, cell in maps)

    def start(self, arguments: tuple[Any, ...]) -> bool:
        """Launch on other arguments; `False` if they are not like those the plan is for."""
        if len(arguments) != self._count:
            return False
        ordinal = self._gpu.ordinal
        for position, kind, dtype, shape, strides, mask, cell in self._tensors:
            tensor = arguments[position]
            if (
                type(tensor) is not kind
                or tensor.dtype is not dtype
                or tensor.shape != shape
                or tensor.get_device() != ordinal
                or tensor.is_neg()
            ):
                return False
            if not tensor.is_contiguous() if strides is None else tensor.stride() != strides:
                return False
            address = tensor.data_ptr()
            if address & mask:
                return False
            cell.value = address
        for position, tensor_map in self._maps:
            if not tensor_map.point(arguments[position].data_ptr()):
                return False
        if self._scalars and not self._fill_scalars(arguments):
            return False
        self.start_prepared()
        return True

    def start_prepared(self) -> None:
        """Launch on what the buffers hold."""
        stream = self._stream_of()
        if stream != self._stream:
            for each in self._starts:
                if not each.own_stream:
                    each.config.stream = stream
            self._stream = stream
        for each in self._starts:
            status = each.go()
            if status:
                self._again(each, status)

    def _fill_scalars(self, arguments: tuple[Any, ...]) -> bool:
        for position, kind, param, fixed, cell in self._scalars:
            argument = arguments[position]
            if type(argument) is not kind:
                return False
            if fixed is not None:
                if argument != fixed:
                    return False
                continue
            value = fitted(argument, param.dtype)
            if value is None:
                return False
            _set_scalar(cell, value, param.dtype)
        return True

    def _again(self, start: _Start, status: int) -> None:
        """Try once more in the right context, if that was what was wrong; else raise."""
        gpu, kernel = self._gpu, start.kernel
        if status in WRONG_CONTEXT:
            with gpu.current():
                status = start.go()
        if status:
            shape = start.shape
            raise gpu.error(
                status,
                f"{kernel.name} cannot be launched on {gpu.name}",
                kernel.launch.location or kernel.location,
                f"grid {shape.grid}, block {shape.block}, cluster {shape.cluster}, "
                f"{start.config.shared_bytes} bytes of shared memory",
            )


# ---------------------------------------------------------------------------- arguments


def _is_plain_tensor(argument: Any) -> bool:
    """Tell tensors of PyTorch whose attributes cannot have another meaning."""
    torch = lazy.loaded("torch")
    return torch is not None and type(argument) in (torch.Tensor, torch.nn.Parameter)


def _class(argument: Any) -> Any:
    return cast(Any, type(argument))


def _key(
    arguments: tuple[Any, ...], shaping: frozenset[str], params: tuple[Var, ...]
) -> Hashable | None:
    """Say what a plan depends on, or `None` if a plan cannot be used again."""
    if len(arguments) != len(params):
        return None
    parts: list[Hashable] = []
    for argument, param in zip(arguments, params, strict=True):
        if type(argument) in (bool, int, float):
            parts.append((_class(argument), argument if param.name in shaping else None))
        elif _is_plain_tensor(argument):
            parts.append(
                (
                    _class(argument),
                    argument.dtype,
                    tuple(argument.shape),
                    argument.stride(),
                    argument.get_device(),
                )
            )
        else:
            return None
    return tuple(parts)


def _expected(position: int, param: Var, tensor: Any, cell: Any) -> tuple[Any, ...]:
    """Say what a tensor must be for a plan to fit: the fields that `_Plan.start` compares."""
    kind = param.type
    assert isinstance(kind, TensorType | PointerType)
    # Alignments are powers of two. An empty tensor has the address 0.
    mask = alignment(kind) - 1
    strides = None if tensor.is_contiguous() else tensor.stride()
    return position, _class(tensor), tensor.dtype, tensor.shape, strides, mask, cell


def _cell(var: Var, value: Any) -> Any:
    if not isinstance(var.type, ScalarType):
        return ctypes.c_uint64(int(value))
    # A union would do as well: the driver reads as many bytes as the parameter has.
    cell = (ctypes.c_uint64 * 2)()
    _set_scalar(cell, value, var.dtype)
    return cell


def _set_scalar(cell: Any, value: Any, dtype: DType) -> None:
    data = np.asarray(value, dtype.numpy).tobytes()
    ctypes.memmove(cell, data, len(data))


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


# ---------------------------------------------------------------------------- streams


def _stream_source(ordinal: int) -> Callable[[], int | None]:
    """Give the function that tells a GPU's current stream, `None` for the default stream."""
    torch = lazy.loaded("torch")
    if torch is None or not torch.cuda.is_available():
        return lambda: None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return partial(raw, ordinal)
    return lambda: torch.cuda.current_stream(ordinal).cuda_stream


def _prints(kernel: Kernel) -> bool:
    return any(isinstance(stmt, Print) for stmt in walk_statements(kernel.body))


def _flush(gpu: Gpu) -> None:
    try:
        gpu.synchronize()
    except LaunchError as error:
        print(f"tilewright: {error}", file=sys.stderr)
