"""The CUDA driver and its GPUs: contexts, modules, copies, the order of streams.

May import `base`, `isa` and `runtime.faults`. NVIDIA's bindings are loaded where there is a driver,
for all but two functions that are called through ctypes: the launch, which then takes a third of
the time, and the encoding of tensor maps, which has to write to where a map is aligned.

    gpu = find_gpu()
    gpu.name, gpu.capability      # "NVIDIA H200", 90
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from tilewright.base.errors import LaunchError, TargetError
from tilewright.base.forks import was_forked
from tilewright.base.lazy import optional
from tilewright.base.locations import Location
from tilewright.base.targets import Target, known_targets
from tilewright.base.targets import target as target_named
from tilewright.isa.tensor_map import FORMATS, TensorMap
from tilewright.runtime import faults

# Makes a call of `cuLaunchKernelEx` ready, of a configuration, a function and its parameters, each
# by its address; the call gives a CUresult.
PrepareEntry = Callable[[int, int, int], Callable[[], int]]
# CUresult of `cuTensorMapEncodeTiled`: the map, the element type, the rank, the address; extents,
# strides, box and element strides; interleave, swizzle, L2 promotion and fill.
EncodeEntry = Callable[[int, int, int, int, Any, Any, Any, Any, int, int, int, int], int]
_LIBRARY = "libcuda.so.1"

# The default stream (CU_STREAM_LEGACY); DLPack and `__cuda_array_interface__` have the same number.
LEGACY_STREAM = 1


@dataclass(frozen=True)
class Gpu:
    """A GPU: `capability` is ten times the compute capability; `api` is the driver's bindings.

    `memory` are its bytes of memory, `process` is the process that may use it, `launched` the
    kernels that were launched on it, in the order of their first launch, and `told` the faults that
    were told.
    """

    api: Any = field(repr=False)
    ordinal: int
    name: str
    capability: int
    memory: int
    prepare: PrepareEntry = field(repr=False, compare=False)
    encode: EncodeEntry = field(repr=False, compare=False)
    process: int = field(default_factory=os.getpid, repr=False, compare=False)
    launched: dict[str, None] = field(default_factory=dict[str, None], repr=False, compare=False)

    told: set[int] = field(default_factory=set[int], repr=False, compare=False)

    def runs(self, target: Target) -> bool:
        """Tell whether a cubin for a target runs here.

        CUDA C++ Programming Guide, "Binary Compatibility": within a major version on what is
        newer; "Feature Set Compiler Targets": with `a` on exactly that chip, with `f` in its
        family.
        """
        if target.suffix == "a":
            return self.capability == target.capability
        same_major = self.capability // 10 == target.capability // 10
        return same_major and self.capability >= target.capability

    @property
    def target(self) -> Target | None:
        """Give the fullest target whose cubins run here."""
        targets = [target_named(name) for name in known_targets()]
        fitting = [each for each in targets if self.runs(each)]
        order = ("", "f", "a")
        return max(fitting, key=lambda t: (t.capability, order.index(t.suffix)), default=None)

    @contextmanager
    def current(self) -> Generator[None]:
        """Make the primary context the thread's own until the block ends."""
        self.require_process()
        self.check(self.api.cuCtxPushCurrent(_context(self)), "enter its context")
        try:
            yield
        finally:
            self.api.cuCtxPopCurrent()

    def ensure_context(self) -> None:
        """Make the primary context the thread's own if the thread has none."""
        self.require_process()
        (context,) = self.check(self.api.cuCtxGetCurrent(), "look for a context")
        if int(context) == 0:
            self.check(self.api.cuCtxSetCurrent(_context(self)), "enter its context")

    def require_process(self) -> None:
        """Refuse to go on in a process that was forked: CUDA does not work there."""
        if os.getpid() != self.process:
            raise faults.forked()

    def load(self, cubin: bytes) -> Any:
        """Load a cubin into the primary context."""
        with self.current():
            (module,) = self.check(self.api.cuModuleLoadData(cubin), "load the cubin")
        return module

    def function(self, module: Any, name: str) -> Any:
        """Find a kernel of a module."""
        (found,) = self.check(
            self.api.cuModuleGetFunction(module, name.encode()), f"find the kernel {name}"
        )
        return found

    def synchronize(self) -> None:
        """Wait for all work; raises `LaunchError` for what went wrong in it."""
        with self.current():
            self.check(self.api.cuCtxSynchronize(), "finish its work")

    def settle(self, seconds: float) -> None:
        """Wait for the default stream, at most so long; raises as `synchronize` does.

        Of other work only what has gone wrong by then is reported, and no fault a second time.
        """
        if self.told:
            return
        until = time.monotonic() + seconds
        with self.current():
            while (status := self._state()) == faults.NOT_READY and time.monotonic() < until:
                time.sleep(0.001)
        if status in faults.LOSES_CONTEXT:
            raise self.error(status, "the GPU cannot finish its work", None)

    def _state(self) -> int:
        return int(self.api.cuStreamQuery(LEGACY_STREAM)[0])

    def order(self, earlier: int, later: int) -> None:
        """Let a stream wait for what another one has been given so far; both by their handle.

        Raises `LaunchError` (`gpu-fault`) if one of them alone is captured, which then goes on.
        """
        with self.current():
            if self.is_capturing(earlier) != self.is_capturing(later):
                raise LaunchError(
                    "a stream that is being captured cannot wait for another, nor be waited for",
                    code="gpu-fault",
                    expected="arrays of the stream that is captured",
                    found="an array that another stream works with",
                    hint="capture on the stream of the array's library, or call with stream=…",
                )
            flags = self.api.CUevent_flags.CU_EVENT_DISABLE_TIMING
            (event,) = self.check(self.api.cuEventCreate(int(flags)), "make an event")
            try:
                self.check(self.api.cuEventRecord(event, earlier), "order two streams")
                self.check(self.api.cuStreamWaitEvent(later, event, 0), "order two streams")
            finally:
                self.api.cuEventDestroy(event)  # once it has happened

    def is_capturing(self, stream: int) -> bool:
        """Tell whether what a stream is given goes to a graph; the capture is not disturbed."""
        status, state = self.api.cuStreamIsCapturing(stream)
        return int(status) == faults.CAPTURE_IMPLICIT or (int(status) == 0 and int(state) != 0)

    @contextmanager
    def unguarded(self) -> Generator[None]:
        """Let a thread do until the block ends what would otherwise end a capture."""
        mode = self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        (before,) = self.check(self.api.cuThreadExchangeStreamCaptureMode(mode), "load a kernel")
        try:
            yield
        finally:
            self.api.cuThreadExchangeStreamCaptureMode(before)

    def ordinal_of(self, address: int) -> int | None:
        """Find the GPU whose memory an address is of; `None` for memory that CUDA does not know."""
        attribute = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        status, ordinal = self.api.cuPointerGetAttribute(attribute, address)
        return None if int(status) or int(ordinal) < 0 else int(ordinal)

    def allocate(self, size: int) -> int:
        """Allocate so many bytes, at least one, and give their address."""
        with self.current():
            (address,) = self.check(self.api.cuMemAlloc(size), f"allocate {size} bytes")
        return int(address)

    def free(self, address: int) -> None:
        """Free what was allocated; where the context is lost, it is free already."""
        with suppress(LaunchError), self.current():
            self.api.cuMemFree(address)

    def read(self, address: int, size: int, into: int) -> None:
        """Copy from the GPU to the host, after all work that was started."""
        self.synchronize()
        with self.current():
            self.check(self.api.cuMemcpyDtoH(into, address, size), "copy to the host")

    def write(self, address: int, size: int, source: int) -> None:
        """Copy from the host to the GPU, and wait until it has happened."""
        with self.current():
            self.check(self.api.cuMemcpyHtoD(address, source, size), "copy from the host")
        self.synchronize()

    def encode_tensor_map(
        self, name: str, made: TensorMap, into: int, location: Location | None
    ) -> None:
        """Write the bits of a tensor map to an address that is aligned to `tensor_map.ALIGN`."""
        rank = len(made.box)
        status = self.encode(
            into,
            tuple(FORMATS).index(made.format),
            rank,
            made.address,
            (ctypes.c_uint64 * rank)(*made.extents),
            (ctypes.c_uint64 * rank)(*made.strides),
            (ctypes.c_uint32 * rank)(*made.box),
            (ctypes.c_uint32 * rank)(*made.steps),
            made.interleave,
            made.swizzle,
            made.l2_promotion,
            made.oob_fill,
        )
        if status:
            problem = f"the driver does not make the tensor map {name!r} for {self.name}"
            raise self.error(status, problem, location)

    def check(self, result: tuple[Any, ...], what: str) -> tuple[Any, ...]:
        """Give the values of a call of the driver; raises `LaunchError` if it failed."""
        status, *values = result
        if int(status):
            raise self.error(int(status), f"the GPU cannot {what}", None)
        return tuple(values)

    def error(
        self, status: int, problem: str, location: Location | None, request: str | None = None
    ) -> LaunchError:
        """Make the error for a status of the driver; `request` says what was asked for."""
        if status in faults.LOSES_CONTEXT:
            self.told.add(status)
        if status == faults.NOT_INITIALIZED or os.getpid() != self.process:
            return faults.forked()
        found = self.spelled(status)
        return faults.fault(status, found, problem, location, request, tuple(self.launched))

    def spelled(self, status: int) -> str:
        """Name a status of the driver, and say what it means."""
        try:
            result = self.api.CUresult(status)
        except ValueError:
            return f"error {status}: an error that the bindings do not know"
        name, text = self.api.cuGetErrorName(result)[1], self.api.cuGetErrorString(result)[1]
        return f"{(name or b'').decode()}: {(text or b'').decode()}"


@cache
def find_gpu(ordinal: int = 0) -> Gpu | None:
    """Find a GPU by its number among the visible ones; `None` if there is none that is usable.

    Raises `LaunchError` (`gpu-fork`) where the process was forked from one that uses CUDA.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
        api = optional("cuda.bindings.driver", extra="cuda", purpose="launch on the GPU")
    except (OSError, TargetError):
        return None
    status = int(api.cuInit(0)[0])
    if status == faults.NOT_INITIALIZED and was_forked():
        raise faults.forked()
    if status:
        return None
    encode = library.cuTensorMapEncodeTiled
    numbers, arrays = (ctypes.c_int, ctypes.c_uint32), (ctypes.c_void_p,) * 4
    encode.argtypes = (ctypes.c_void_p, *numbers, ctypes.c_void_p, *arrays, *(ctypes.c_int,) * 4)
    return describe_gpu(api, ordinal, partial(prepare_launch, library.cuLaunchKernelEx), encode)


def prepare_launch(entry: Any, config: int, function: int, parameters: int) -> Callable[[], int]:
    """Make a call of a function of ctypes ready, with arguments that are converted once."""
    pointer = ctypes.c_void_p.from_param
    return partial(entry, pointer(config), pointer(function), pointer(parameters), None)


def describe_gpu(api: Any, ordinal: int, prepare: PrepareEntry, encode: EncodeEntry) -> Gpu | None:
    """Describe a GPU by the driver's bindings, once they are initialised."""
    status, device = api.cuDeviceGet(ordinal)
    if int(status):
        return None
    attribute = api.CUdevice_attribute
    prefix = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY"
    major = api.cuDeviceGetAttribute(getattr(attribute, f"{prefix}_MAJOR"), device)[1]
    minor = api.cuDeviceGetAttribute(getattr(attribute, f"{prefix}_MINOR"), device)[1]
    name = api.cuDeviceGetName(128, device)[1].split(b"\0")[0].decode()
    memory = int(api.cuDeviceTotalMem(device)[1])
    return Gpu(api, ordinal, name, 10 * int(major) + int(minor), memory, prepare, encode)


def require_gpu(ordinal: int = 0) -> Gpu:
    """Find a GPU, or raise `TargetError` (`missing-tool`)."""
    gpu = find_gpu(ordinal)
    if gpu is None:
        raise TargetError(
            "there is no GPU to launch on",
            code="missing-tool",
            expected="a GPU, its driver, and the extra `cuda` of this package",
            hint='backend="sim" runs kernels on the CPU',
        )
    return gpu


@cache
def _context(gpu: Gpu) -> Any:
    """Retain the primary context, which PyTorch and CUDA's runtime use too."""
    (device,) = gpu.check(gpu.api.cuDeviceGet(gpu.ordinal), "be found")
    (context,) = gpu.check(gpu.api.cuDevicePrimaryCtxRetain(device), "make a context")
    return context
