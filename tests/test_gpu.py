"""Launches on the GPU, against a driver that only writes down what it is told."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import driver, simt
from tilewright.base import lazy
from tilewright.base.errors import LaunchError, TargetError, TilewrightError
from tilewright.base.targets import target
from tilewright.driver import Defaults, session
from tilewright.runtime import arrays, cuda_driver, staging
from tilewright.runtime.cuda_driver import Gpu, describe_gpu, find_gpu
from tilewright.runtime.gpu import Launcher
from tilewright.runtime.launch_attributes import Attribute, Config, attributes

T: Any = simt
n = T.dynamic("n")


@T.function
def scale(A: T.Tensor((n,), "float32"), Out: T.Tensor((n,), "float32"), factor: T.float32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(n + 31) // 32, block=32))
    i = T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")
    if i < n:
        Out[i] = A[i] * factor


@T.function
def sized(Out: T.Tensor((64,), "int32"), blocks: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=blocks, block=32, dynamic_smem_bytes=100_000))
    Out[T.cuda.lane_id()] = blocks


@T.function
def aligned_load(A: T.Tensor((64,), "float32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    A[T.cuda.lane_id()] = T.float32(1)


@T.function
def options(Out: T.Tensor((64,), "int32")):
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=8,
            block=32,
            cluster=2,
            cooperative=True,
            programmatic_stream_serialization=True,
            priority=-1,
            stream=77,
        )
    )
    Out[T.cuda.lane_id()] = 1


@T.function
def clustered(Out: T.Tensor((64,), "int32"), ctas: T.int32, room: T.int32):
    T.device_entry(
        launch=T.cuda.LaunchConfig(grid=16, block=32, cluster=ctas, dynamic_smem_bytes=room)
    )
    Out[T.cuda.lane_id()] = ctas


@T.function
def preferring(Out: T.Tensor((64,), "int32")):
    T.device_entry(
        launch=T.cuda.LaunchConfig(grid=16, block=32, cluster=2, preferred_cluster=(4, 4))
    )
    Out[T.cuda.lane_id()] = 1


# ---------------------------------------------------------------------------- a driver


class Status(int):
    """A `CUresult`."""


@dataclass
class Launched:
    """What a launch was told."""

    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int | None
    attributes: dict[int, bytes]
    pointers: list[int]


@dataclass(eq=False)
class FakeDriver:
    """The driver's bindings, as far as launches use them."""

    capability: int = 90
    context: int = 0
    statuses: list[int] = field(default_factory=list[int])
    launches: list[Launched] = field(default_factory=list[Launched])
    allowed: list[tuple[int, str, int]] = field(default_factory=list[Any])
    loaded: list[bytes] = field(default_factory=list[bytes])
    found: list[bytes] = field(default_factory=list[bytes])
    pushed: int = 0
    count: int = 3
    memory: dict[int, Any] = field(default_factory=dict[int, Any])
    encoded: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    free_bytes: int | None = None
    run: Callable[[Launched], None] | None = None
    # What streams were told, in order: ("launch", stream), ("record", stream), ("wait", stream).
    told: list[tuple[str, int | None]] = field(default_factory=list[Any])
    capturing: set[int] = field(default_factory=set[int])
    modes: list[str] = field(default_factory=list[str])
    pending: list[int] = field(default_factory=list[int])
    pointers: dict[int, int] = field(default_factory=dict[int, int])
    waits: int = 0
    CUresult = Status
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL="ordinal")
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
    )
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared",
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED="clusters",
    )

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return (0, ordinal) if ordinal < 2 else (101, 0)

    def cuDeviceGetName(self, length: int, device: int) -> tuple[int, bytes]:
        return 0, b"Fake H200\0\0\0"

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[int, int]:
        return 0, self.capability // 10 if attribute == "major" else self.capability % 10

    def cuDeviceTotalMem(self, device: int) -> tuple[int, int]:
        # Less than the addresses of the host that stand for the GPU's, wherever its heap begins.
        return 0, 1 << 20

    def cuEventCreate(self, flags: int) -> tuple[int, str]:
        return 0, "event"

    def cuEventRecord(self, event: str, stream: int) -> tuple[int]:
        self.told.append(("record", stream))
        return (0,)

    def cuStreamWaitEvent(self, stream: int, event: str, flags: int) -> tuple[int]:
        self.told.append(("wait", stream))
        return (0,)

    def cuEventDestroy(self, event: str) -> tuple[int]:
        return (0,)

    def cuStreamIsCapturing(self, stream: int) -> tuple[int, int]:
        return 0, int(stream in self.capturing)

    def cuThreadExchangeStreamCaptureMode(self, mode: str) -> tuple[int, str]:
        self.modes.append(mode)
        return 0, "global"

    def cuStreamQuery(self, stream: int) -> tuple[int]:
        return (self.pending.pop(0) if self.pending else 0,)

    def cuPointerGetAttribute(self, attribute: str, address: int) -> tuple[int, int]:
        return (0, self.pointers[address]) if address in self.pointers else (1, 0)

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int, int]:
        return 0, 1000 + device

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, self.context

    def cuCtxSetCurrent(self, context: int) -> tuple[int]:
        self.context = context
        return (0,)

    def cuCtxPushCurrent(self, context: int) -> tuple[int]:
        self.pushed += 1
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, int]:
        return 0, 0

    def cuCtxSynchronize(self) -> tuple[int]:
        self.waits += 1
        return (self.pending.pop(0) if self.pending else 0,)

    def cuModuleLoadData(self, cubin: bytes) -> tuple[int, int]:
        self.loaded.append(cubin)
        return 0, 5

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[int, int]:
        self.found.append(name)
        return 0, 0x400

    def cuFuncSetAttribute(self, function: int, attribute: str, value: int) -> tuple[int]:
        self.allowed.append((function, attribute, value))
        return (0,)

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        if self.free_bytes is not None and size > self.free_bytes:
            return 2, 0
        storage = arrays.aligned_empty(size)
        address = arrays.address_of(storage)
        self.memory[address] = storage
        return 0, address

    def cuMemFree(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (0,)

    def owns(self, address: int) -> bool:
        """Tell whether an address is in the GPU's own memory."""
        return any(at <= address < at + each.nbytes for at, each in self.memory.items())

    def cuMemcpyDtoH(self, into: int, address: int, size: int) -> tuple[int]:
        ctypes.memmove(into, address, size)
        return (0,)

    def cuMemcpyHtoD(self, address: int, source: int, size: int) -> tuple[int]:
        ctypes.memmove(address, source, size)
        return (0,)

    def cuGetErrorName(self, status: int) -> tuple[int, bytes]:
        return 0, f"CUDA_ERROR_{status}".encode()

    def cuGetErrorString(self, status: int) -> tuple[int, bytes]:
        return 0, b"something is wrong"

    def prepare(self, config: int, function: int, pointers: int) -> Callable[[], int]:
        return lambda: self.launch(config, function, pointers)

    def launch(self, config: int, function: int, pointers: int) -> int:
        if self.statuses and (status := self.statuses.pop(0)):
            return status
        read = Config.from_address(config)
        made = [read.attributes[i] for i in range(read.count)]
        slots = (ctypes.c_void_p * self.count).from_address(pointers)
        self.launches.append(
            Launched(
                function,
                tuple(read.grid),
                tuple(read.block),
                read.shared_bytes,
                read.stream,
                {each.id: bytes(each.value) for each in made},
                [ctypes.c_uint64.from_address(slot).value for slot in slots if slot],
            )
        )
        self.told.append(("launch", read.stream))
        if self.run is not None:
            self.run(self.launches[-1])
        return 0

    def encode(self, into: int, kind: int, rank: int, address: int, *fields: Any) -> int:
        """Write a tensor map as its address and how many were written before."""
        assert into % 64 == 0
        if self.statuses and (status := self.statuses.pop(0)):
            return status
        extents, strides, box, steps, *options = fields
        axes = (list(extents), list(strides)[: rank - 1], list(box), list(steps))
        bits = np.array([address, len(self.encoded), *[0] * 14], np.uint64)
        ctypes.memmove(into, bits.ctypes.data, 128)
        self.encoded.append((address, kind, rank, *axes, *options))
        return 0

    def gpu(self, ordinal: int = 0) -> Gpu:
        found = describe_gpu(self, ordinal, self.prepare, self.encode)
        assert found is not None
        return found


class FakeTensor:
    """A tensor of PyTorch on a GPU, whose memory is NumPy's."""

    is_cuda = True
    is_cpu = is_meta = False
    layout = "strided"
    negated = False
    requires_grad = False
    freed = False

    def __init__(self, array: Any, device: int = 0) -> None:
        self.array, self.device = array, device
        self.shape = array.shape
        self.dtype = DTYPES.setdefault(array.dtype.name, _TorchType(array.dtype.name))

    def data_ptr(self) -> int:
        return 0 if self.freed else self.array.__array_interface__["data"][0]

    def untyped_storage(self) -> Any:
        size = 0 if self.freed else self.array.nbytes * 8
        return SimpleNamespace(nbytes=lambda: size, device=SimpleNamespace(type="cuda"))

    def storage_offset(self) -> int:
        return 0

    def numel(self) -> int:
        return self.array.size

    def stride(self) -> tuple[int, ...]:
        return tuple(each // self.array.itemsize for each in self.array.strides)

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def get_device(self) -> int:
        return self.device

    def element_size(self) -> int:
        return self.array.itemsize

    def is_neg(self) -> bool:
        return self.negated

    def is_conj(self) -> bool:
        return False


class _TorchType:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


DTYPES: dict[str, _TorchType] = {}


@dataclass(eq=False)
class FakeTorch:
    """PyTorch with a GPU and a stream that can be changed, which has no check of its own."""

    stream: int = 7
    strided = "strided"
    Tensor = FakeTensor
    nn = SimpleNamespace(Parameter=type("Parameter", (FakeTensor,), {}))
    cuda = SimpleNamespace(is_available=lambda: True)
    recording: bool = True

    def is_grad_enabled(self) -> bool:
        return self.recording

    @property
    def _C(self) -> Any:
        return SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: self.stream)


@pytest.fixture
def fake() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    made = FakeTorch()
    monkeypatch.setattr(lazy, "loaded", lambda name: made if name == "torch" else None)
    return made


def launcher(fake: FakeDriver, kernel: Any, arch: str = "sm_90a", **changes: Any) -> Launcher:
    ex = tilewright.compile(kernel, target=arch, backend="sim")
    written = changes.get("written", frozenset({"Out", "A"}))
    cubin = changes.get("cubin", lambda: b"cubin")
    announce = changes.get("announce", lambda: None)
    fake.count = min(len(each.params) + len(each.symbols) for each in ex.ir.kernels)
    return Launcher(ex.program, ex.ir, ex.target, written, cubin, print, announce, fake.gpu)


def vector(size: int, dtype: Any = np.float32) -> FakeTensor:
    return FakeTensor(arrays.aligned_empty(size * 4).view(dtype))


def value(address_bits: int) -> float:
    return float(np.array([address_bits & 0xFFFFFFFF], np.uint32).view(np.float32)[0])


# ---------------------------------------------------------------------------- launches


def test_a_launch_passes_addresses_numbers_and_extents(fake: FakeDriver, torch: FakeTorch) -> None:
    a, out = vector(70), vector(70)
    launcher(fake, scale).launch((a, out, 2.5))
    (launched,) = fake.launches
    assert (launched.grid, launched.block, launched.shared) == ((3, 1, 1), (32, 1, 1), 0)
    assert launched.function == 0x400 and launched.stream == 7 and not launched.attributes
    first, second, factor, extent = launched.pointers
    assert (first, second) == (a.data_ptr(), out.data_ptr())
    assert value(factor) == 2.5 and extent & 0xFFFFFFFF == 70


@T.function
def größe(Out: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    Out[T.cuda.lane_id()] = 1


def test_a_kernel_is_found_by_its_symbol(fake: FakeDriver, torch: FakeTorch) -> None:
    launcher(fake, größe).launch((vector(32, np.int32),))
    assert fake.found == [b"gr_e_kernel"]


def test_later_calls_reuse_the_buffers(fake: FakeDriver, torch: FakeTorch) -> None:
    cubins: list[int] = []
    launch = launcher(fake, scale, cubin=lambda: cubins.append(1) or b"cubin")
    pairs = [(vector(70), vector(70)) for _ in range(3)]
    for number, (a, out) in enumerate(pairs):
        torch.stream = 100 + number
        launch.launch((a, out, float(number)))
    assert [each.pointers[:2] for each in fake.launches] == [
        [a.data_ptr(), out.data_ptr()] for a, out in pairs
    ]
    assert [value(each.pointers[2]) for each in fake.launches] == [0.0, 1.0, 2.0]
    assert [each.stream for each in fake.launches] == [100, 101, 102]
    assert cubins == [1] and len(launch.local.plans) == 1


def test_other_sizes_get_a_plan_of_their_own(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    for size in (32, 64, 32, 64):
        launch.launch((vector(size), vector(size), 1.0))
    assert [each.grid[0] for each in fake.launches] == [1, 2, 1, 2]
    assert len(launch.local.plans) == 2


def test_plans_are_forgotten_when_there_are_many(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    for size in range(1, 600):
        launch.launch((vector(size), vector(size), 1.0))
        launch.launch((vector(1000), vector(1000), 1.0))
    assert len(launch.local.plans) <= 512
    prepared = len(fake.modes)
    launch.launch((vector(599), vector(599), 1.0))
    launch.launch((vector(1000), vector(1000), 1.0))
    assert len(fake.modes) == prepared, "what was used lately is kept"


def test_a_number_that_shapes_the_launch_is_evaluated(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, sized)
    out = vector(64, np.int32)
    for blocks in (2, 5, 2):
        launch.launch((out, blocks))
    assert [each.grid[0] for each in fake.launches] == [2, 5, 2]
    assert [each.pointers[1] & 0xFF for each in fake.launches] == [2, 5, 2]
    assert fake.allowed == [(0x400, "shared", 100_000)]
    assert {each.shared for each in fake.launches} == {100_000}


def test_a_later_launch_may_need_more_than_those_before(fake: FakeDriver, torch: FakeTorch) -> None:
    launch, out = launcher(fake, clustered), vector(64, np.int32)
    needs = [(2, 0), (16, 0), (8, 60_000), (16, 50_000), (16, 70_000), (2, 0), (16, 70_000)]
    for _ in range(2):
        for ctas, room in needs:
            launch.launch((out, ctas, room))
    expected = [("clusters", 1), ("shared", 60_000), ("shared", 70_000)]
    assert fake.allowed == [(0x400, *each) for each in expected]
    assert len(fake.launches) == 14


def test_a_preferred_cluster_may_be_larger_than_is_portable(
    fake: FakeDriver, torch: FakeTorch
) -> None:
    launcher(fake, preferring).launch((vector(64, np.int32),))
    assert fake.allowed == [(0x400, "clusters", 1)]


def test_options_become_attributes(fake: FakeDriver, torch: FakeTorch) -> None:
    launcher(fake, options).launch((vector(64, np.int32),))
    (launched,) = fake.launches
    numbers = {
        key: int.from_bytes(data[:4], "little", signed=True)
        for key, data in launched.attributes.items()
    }
    # The cluster is part of the kernel. 2: cooperative, 6: programmatic, 8: priority.
    assert numbers == {2: 1, 6: 1, 8: -1} and launched.stream == 77


def test_every_thread_has_its_own_buffers(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    a, out = vector(32), vector(32)
    threads = [threading.Thread(target=launch.launch, args=((a, out, 1.0),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.launches) == 4 and len(fake.loaded) == 1


def test_without_torch_the_default_stream_is_used(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "loaded", lambda name: None)
    a, out = Interface(np.zeros(32, np.float32)), Interface(np.zeros(32, np.float32))
    fake.pointers = {each.array.ctypes.data: 0 for each in (a, out)}
    launcher(fake, scale).launch((a, out, 1.0))
    assert fake.launches[0].stream is None and fake.context == 1000
    assert fake.launches[0].pointers[:2] == [a.array.ctypes.data, out.array.ctypes.data]


class Interface:
    """An array of a CUDA package that has no DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__array_interface__, "strides": None}


# ---------------------------------------------------------------------------- the host's arrays


def seen(address: int, count: int) -> np.ndarray:
    """See float32s at an address."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def doubling(fake: FakeDriver, count: int) -> Callable[[Launched], None]:
    """Do what `scale` would, and see that it finds its arrays in the GPU's memory."""

    def run(launched: Launched) -> None:
        a, out = launched.pointers[:2]
        assert fake.owns(a) and fake.owns(out)
        seen(out, count)[:] = 2 * seen(a, count)

    return run


def test_arrays_of_the_host_are_copied_to_the_gpu_and_what_is_written_back(
    fake: FakeDriver,
) -> None:
    said: list[int] = []
    launch = launcher(fake, scale, announce=lambda: said.append(len(fake.launches)))
    fake.run = doubling(fake, 70)
    for start in (0, 100):
        a = np.arange(start, start + 70, dtype=np.float32)
        out = np.zeros(70, np.float32)
        launch.launch((a, out, 2.0))
        assert np.array_equal(out, 2 * a) and a[0] == start
    assert said == [0, 1] and not fake.memory


def test_what_is_only_read_is_not_copied_back(fake: FakeDriver) -> None:
    launch = launcher(fake, scale, written=frozenset({"Out"}))

    def run(launched: Launched) -> None:
        for address in launched.pointers[:2]:
            seen(address, 8)[:] = 5

    fake.run = run
    a, out = np.zeros(8, np.float32), np.zeros(8, np.float32)
    a.flags.writeable = False
    launch.launch((a, out, 1.0))
    assert not a.any() and (out == 5).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(32, dtype=np.float32)[::-4],
        lambda: np.arange(16, dtype=np.float32).reshape(8, 2)[:, 1],
        lambda: np.frombuffer(bytearray(range(33)), np.uint8)[1:].view(np.float32),
    ],
    ids=["reversed", "stepped", "unaligned"],
)
def test_arrays_of_the_host_may_be_strided_and_unaligned(fake: FakeDriver, make: Any) -> None:
    a, out = make(), make()
    fake.run = doubling(fake, 8)
    launcher(fake, scale).launch((a, out, 2.0))
    assert np.array_equal(out, 2 * make()) and np.array_equal(a, make())


def test_arrays_of_the_host_that_share_memory_share_their_copy(fake: FakeDriver) -> None:
    storage = np.arange(12, dtype=np.float32)

    def run(launched: Launched) -> None:
        a, out = launched.pointers[:2]
        assert out - a == 16 and len(fake.memory) == 1
        seen(out, 8)[:] = 2 * seen(a, 8)

    fake.run = run
    launcher(fake, scale).launch((storage[:8], storage[4:], 2.0))
    assert storage.tolist() == [0, 1, 2, 3, 0, 2, 4, 6, 8, 10, 12, 14]


def test_the_alignment_of_an_array_of_the_host_is_kept(fake: FakeDriver) -> None:
    a = arrays.aligned_empty(272)[16:].view(np.float32)
    launcher(fake, aligned_load).launch((a,))
    assert fake.launches[0].pointers[0] % 256 == 16


def test_arrays_of_the_host_go_to_the_gpu_of_the_others(fake: FakeDriver, torch: FakeTorch) -> None:
    out = FakeTensor(np.zeros(8, np.float32), device=1)
    a = np.arange(8, dtype=np.float32)

    def run(launched: Launched) -> None:
        assert launched.pointers[1] == out.data_ptr() and fake.owns(launched.pointers[0])
        out.array[:] = 2 * seen(launched.pointers[0], 8)

    fake.run = run
    launcher(fake, scale).launch((a, out, 2.0))
    assert fake.context == 1001 and np.array_equal(out.array, 2 * a)


def test_a_call_with_arrays_of_the_host_is_not_taken_for_another(
    fake: FakeDriver, torch: FakeTorch
) -> None:
    launch = launcher(fake, scale)
    a, out = vector(8), vector(8)
    for _ in range(2):
        launch.launch((a, out, 1.0))
        launch.launch((np.ones(8, np.float32), out, 1.0))
    addresses = [each.pointers[0] for each in fake.launches]
    assert addresses[0] == addresses[2] == a.data_ptr()
    assert a.data_ptr() not in (addresses[1], addresses[3])


def test_empty_arrays_of_the_host_take_no_memory(fake: FakeDriver) -> None:
    a, out = np.zeros(0, np.float32), np.zeros(0, np.float32)
    launcher(fake, scale).launch((a, out, 1.0))
    assert not fake.memory and not fake.launches


def test_the_memory_of_copies_is_freed_whatever_happens(fake: FakeDriver) -> None:
    launch = launcher(fake, scale)
    a, out = np.zeros(4, np.float32), np.zeros(4, np.float32)
    fake.statuses = [1]
    assert refused(launch, a, out, 1.0).code == "launch-shape" and not fake.memory
    fake.free_bytes = 1000
    large = np.zeros(1000, np.float32)
    error = refused(launch, large, large.copy(), 1.0)
    assert error.code == "launch-memory" and not fake.memory


# ---------------------------------------------------------------------------- refusals


def refused(launch: Launcher, *arguments: Any, stream: Any = None) -> TilewrightError:
    with pytest.raises(TilewrightError) as caught:
        launch.launch(arguments, stream)
    return caught.value


def test_arrays_of_other_devices_are_refused(fake: FakeDriver) -> None:
    class Metal:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 8, 0

        def __dlpack__(self) -> Any:
            raise AssertionError("what cannot be reached is not read")

    error = refused(launcher(fake, scale), np.zeros(4, np.float32), Metal(), 1.0)
    assert error.code == "argument-device" and error.found == "memory of metal:0"
    assert 'backend="sim"' in (error.hint or "")


def test_a_tensor_that_is_yet_to_be_negated_is_refused(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    pending = vector(4)
    launch.launch((pending, vector(4), 1.0))
    pending.negated = True
    error = refused(launch, pending, vector(4), 1.0)
    assert error.code == "argument-kind" and "resolve_neg()" in (error.hint or "")


def test_arrays_of_two_gpus_are_refused(fake: FakeDriver, torch: FakeTorch) -> None:
    other = FakeTensor(np.zeros(4, np.float32), device=1)
    error = refused(launcher(fake, scale), vector(4), other, 1.0)
    assert error.code == "argument-device" and error.found == "memory of cuda:1"


def test_what_lies_on_the_gpu_is_not_copied(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    strided = FakeTensor(np.zeros(8, np.float32)[::2])
    assert "contiguous" in (refused(launch, vector(4), strided, 1.0).hint or "")
    launch.launch((vector(4), vector(4), 1.0))
    assert refused(launch, vector(4), strided, 1.0).code == "argument-shape"
    load = launcher(fake, aligned_load)
    load.launch((vector(64),))
    shifted = FakeTensor(arrays.aligned_empty(260)[4:].view(np.float32))
    assert refused(load, shifted).code == "argument-shape"


@pytest.mark.parametrize("wrong", [(), (1,), ("x", "y", 1.0)])
def test_wrong_arguments_after_right_ones(
    fake: FakeDriver, torch: FakeTorch, wrong: tuple[Any, ...]
) -> None:
    launch = launcher(fake, scale)
    launch.launch((vector(4), vector(4), 1.0))
    assert refused(launch, *wrong).code in ("argument-count", "argument-kind")
    other = vector(4, np.int32)
    assert refused(launch, other, vector(4), 1.0).code == "argument-dtype"
    assert refused(launch, vector(4), vector(4), 1e300).code == "argument-dtype"


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (1, "launch-shape", "grid (1, 1, 1), block (32, 1, 1)"),
        (701, "launch-shape", "0 bytes of shared memory"),
        (2, "launch-memory", "something is wrong"),
        (700, "gpu-fault", "the GPU's context is lost"),
        (209, "gpu-fault", "CUDA_ERROR_209"),
    ],
)
def test_what_the_driver_says_is_shown_at_the_kernel(
    fake: FakeDriver, torch: FakeTorch, status: int, code: str, text: str
) -> None:
    fake.statuses = [status]
    error = refused(launcher(fake, scale), vector(4), vector(4), 1.0)
    assert isinstance(error, LaunchError) and error.code == code and text in str(error)
    assert error.location is not None and "LaunchConfig" in (error.location.excerpt() or "")


def test_another_current_context_is_left_for_the_launch(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    launch.launch((vector(4), vector(4), 1.0))
    before, fake.statuses = fake.pushed, [400, 0]
    launch.launch((vector(4), vector(4), 1.0))
    assert fake.pushed == before + 1 and len(fake.launches) == 2


# ---------------------------------------------------------------------------- attributes


def test_all_options_have_attributes() -> None:
    given = {
        "preferred_cluster": (4, 2),
        "cluster_scheduling_policy": "load_balancing",
        "mem_sync_domain": "remote",
        "mem_sync_domain_map": (1, 2),
        "preferred_shared_memory_carveout": 25,
        "programmatic_event": (0x99, 0, 1),
        "access_policy_window": {
            "base_ptr": 4096,
            "num_bytes": 512,
            "hit_ratio": 0.5,
            "hit_prop": "persisting",
            "miss_prop": "streaming",
        },
    }
    made = {each.id: each.value for each in attributes(given, (2, 1, 1), {}, None)}
    assert list(made[4].extents) == [2, 1, 1] and list(made[11].extents) == [4, 2, 1]
    assert (made[5].number, made[10].number, made[14].number) == (2, 1, 25)
    assert list(made[9].domains) == [1, 2]
    assert (made[7].event.event, made[7].event.trigger) == (0x99, 1)
    assert (made[1].window.num_bytes, made[1].window.hit_prop) == (512, 2)
    assert ctypes.sizeof(Attribute) == 72 and ctypes.sizeof(Config) == 56


@pytest.mark.parametrize("given", [{"mem_sync_domain": "far"}, {"programmatic_event": "e"}])
def test_options_that_cannot_be_read_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(LaunchError) as caught:
        attributes(given, None, {}, None)
    assert caught.value.code == "bad-option"


# ---------------------------------------------------------------------------- where it runs


@pytest.mark.parametrize(
    ("capability", "arch", "runs"),
    [
        (90, "sm_90a", True),
        (90, "sm_90", True),
        (90, "sm_80", False),
        (89, "sm_80", True),
        (80, "sm_89", False),
        (103, "sm_100a", False),
        (103, "sm_100f", True),
        (103, "sm_100", True),
        (120, "sm_100f", False),
    ],
)
def test_which_cubins_run(capability: int, arch: str, runs: bool) -> None:
    assert FakeDriver(capability).gpu().runs(target(arch)) is runs


@pytest.mark.parametrize(
    ("capability", "arch"),
    [(90, "sm_90a"), (100, "sm_100a"), (89, "sm_89"), (88, "sm_87"), (70, None)],
)
def test_the_target_of_a_gpu(capability: int, arch: str | None) -> None:
    own = FakeDriver(capability).gpu().target
    assert (None if own is None else own.arch) == arch


@pytest.fixture
def with_gpu(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    for name in ("find_gpu", "require_gpu"):
        monkeypatch.setattr(driver, name, lambda: fake.gpu())
    with session(Defaults()):
        yield fake


@pytest.mark.parametrize(
    ("given", "backend", "arch"),
    [
        ({}, "gpu", "sm_90a"),
        ({"target": "cuda"}, "gpu", "sm_90a"),
        ({"target": "sm_90"}, "gpu", "sm_90"),
        ({"target": "sm_100a"}, "sim", "sm_100a"),
        ({"backend": "sim"}, "sim", "sm_100a"),
        ({"backend": "gpu"}, "gpu", "sm_90a"),
        ({"schedule": "late"}, "sim", "sm_100a"),
        ({"numerics": "fast"}, "sim", "sm_100a"),
    ],
)
def test_auto_is_the_gpu_if_it_can_be(
    with_gpu: FakeDriver, given: dict[str, Any], backend: str, arch: str
) -> None:
    ex = tilewright.compile(scale, **given)
    assert (ex.backend, ex.target.arch) == (backend, arch)
    assert ("Fake H200" in repr(ex)) == (backend == "gpu")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"target": "sm_100a"}, "missing-tool"),
        ({"schedule": "eager"}, "bad-option"),
        ({"numerics": "fast"}, "bad-option"),
    ],
)
def test_gpu_is_refused_where_it_cannot_be(
    with_gpu: FakeDriver, given: dict[str, Any], code: str
) -> None:
    with pytest.raises(TilewrightError) as caught:
        tilewright.compile(scale, backend="gpu", **given)
    assert caught.value.code == code


def test_without_a_gpu(without_gpu: None) -> None:
    assert tilewright.compile(scale).backend == "sim"
    with pytest.raises(TargetError) as caught:
        tilewright.compile(scale, backend="gpu")
    assert caught.value.code == "missing-tool"


def test_the_simulator_copies_tensors_of_the_gpu(
    fake: FakeDriver,
    torch: FakeTorch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage = staging.stage
    monkeypatch.setattr(driver, "stage", lambda arguments: stage(arguments, fake.gpu))
    a = FakeTensor(np.arange(8, dtype=np.float32)[::-2])
    out = FakeTensor(np.zeros(4, np.float32))
    ex = tilewright.compile(scale, backend="sim")
    ex(a, out, 2.0)
    ex(out, out, 2.0)
    assert out.array.tolist() == [28.0, 20.0, 12.0, 4.0]
    assert capsys.readouterr().err.count("copies arrays of the GPU") == 1


def test_an_executable_of_the_gpu_says_once_that_it_copies(
    with_gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_driver, "find_gpu", lambda ordinal=0: with_gpu.gpu(ordinal))
    monkeypatch.setattr(tilewright.Executable, "cubin", lambda self: b"cubin")
    for backend in (None, "gpu"):
        ex = tilewright.compile(scale, backend=backend)
        with_gpu.run = doubling(with_gpu, 4)
        for _ in range(2):
            a, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
            ex(a, out, 2.0)
            assert np.array_equal(out, 2 * a)
        said = capsys.readouterr().err
        assert said.count("copies arrays of the CPU to the GPU and back") == 1


# ---------------------------------------------------------------------------- a real GPU

needs_gpu = pytest.mark.skipif(find_gpu() is None, reason="there is no GPU")


@needs_gpu
def test_a_real_launch_and_its_capture() -> None:
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(scale, backend="gpu")
    a = torch.arange(1000, dtype=torch.float32, device="cuda")
    out = torch.zeros_like(a)
    ex(a, out, 2.0)
    assert torch.equal(out, a * 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ex(a, out, 3.0)
        ex(out, out, 2.0)
    graph.replay()
    assert torch.equal(out, a * 6)


@T.function
def counting(Out: T.Tensor((1024,), "int32"), by: T.int32):
    T.device_entry(
        launch=T.cuda.LaunchConfig(grid=8, block=128, programmatic_stream_serialization=True)
    )
    i = T.cuda.block_idx("x") * 128 + T.cuda.thread_idx("x")
    T.ptx.griddepcontrol.launch_dependents()
    T.ptx.griddepcontrol.wait()
    Out[i] = Out[i] + by


@needs_gpu
def test_real_grids_that_depend_on_one_another_see_what_was_written() -> None:
    torch = pytest.importorskip("torch")
    gpu = find_gpu()
    if gpu is None or gpu.capability < 90:
        pytest.skip("there are no dependent launches")
    ex, out = tilewright.compile(counting, backend="gpu"), torch.zeros(1024, device="cuda").int()
    for by in range(1, 201):
        ex(out, by)
    assert out.tolist() == [200 * 201 // 2] * 1024


@needs_gpu
def test_real_clusters_and_shared_memory_may_grow() -> None:
    torch = pytest.importorskip("torch")
    gpu = find_gpu()
    if gpu is None or gpu.capability < 90:
        pytest.skip("there are no clusters")
    ex, out = tilewright.compile(clustered, backend="gpu"), torch.zeros(64, device="cuda").int()
    for ctas, room in ((2, 0), (16, 0), (4, 100_000), (16, 60_000), (1, 0)):
        ex(out, ctas, room)
        assert out[:32].tolist() == [ctas] * 32


@needs_gpu
def test_a_real_tensor_that_lost_its_memory_is_refused() -> None:
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(scale, backend="gpu")
    whole, out = torch.ones(1 << 20, device="cuda"), torch.zeros(1000, device="cuda")
    for view in (whole[:1000], whole[1000:2000]):
        for _ in range(3):
            ex(view, out, 2.0)
    views = whole[:1000], whole[1000:2000]
    whole.untyped_storage().resize_(0)
    for view in views:
        for _ in range(2):
            with pytest.raises(LaunchError) as caught:
                ex(view, out, 2.0)
            assert caught.value.code == "argument-kind"
    a = torch.ones(1000, device="cuda")
    ex(a, out, 3.0)
    assert torch.equal(out, a * 3)


@needs_gpu
def test_a_real_parameter_is_read_and_written_without_grad() -> None:
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(scale, backend="gpu")
    weight, out = torch.nn.Parameter(torch.ones(64, device="cuda")), torch.zeros(64, device="cuda")
    for _ in range(3):
        ex(weight, out, 2.0)
        assert torch.equal(out, torch.full_like(out, 2.0))
        with pytest.raises(LaunchError) as caught:
            ex(out, weight, 1.0)
        assert caught.value.code == "argument-read-only"
        with torch.no_grad():
            ex(out, weight, 0.5)
            assert torch.equal(weight, torch.ones_like(weight))


@needs_gpu
def test_real_tensors_of_transformations_are_refused() -> None:
    torch = pytest.importorskip("torch")
    ex, out = tilewright.compile(scale, backend="gpu"), torch.zeros(64, device="cuda")
    ex(torch.ones(64, device="cuda"), out, 1.0)

    def call(a: Any) -> Any:
        ex(a, out, 1.0)
        return a.sum()

    for transformed, shape in ((torch.vmap(call), (2, 64)), (torch.func.grad(call), (64,))):
        with pytest.raises(LaunchError) as caught:
            transformed(torch.ones(shape, device="cuda"))
        assert caught.value.code == "argument-kind"


@needs_gpu
def test_a_real_empty_tensor_is_nothing_to_do() -> None:
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(scale, backend="gpu")
    for _ in range(3):
        ex(torch.zeros(0, device="cuda"), torch.zeros(0, device="cuda"), 1.0)
        a, out = torch.ones(40, device="cuda"), torch.zeros(40, device="cuda")
        ex(a, out, np.float32(2.0))
        assert torch.equal(out, a * 2)


@needs_gpu
def test_a_simulated_kernel_takes_real_tensors() -> None:
    torch = pytest.importorskip("torch")
    a = torch.arange(100, dtype=torch.float32, device="cuda")[::2]
    out = torch.zeros(50, device="cuda")
    tilewright.compile(scale, backend="sim")(a, out, 2.0)
    assert torch.equal(out, a * 2)


@needs_gpu
@pytest.mark.parametrize("backend", ["auto", "gpu"])
def test_a_real_launch_on_arrays_of_the_host(backend: str) -> None:
    ex = tilewright.compile(scale, backend=backend)
    assert ex.backend == "gpu"
    a = np.arange(1000, dtype=np.float32)
    out = np.zeros(1000, np.float32)
    ex(a, out, 2.0)
    assert np.array_equal(out, 2 * a)
    ex(out, out, 2.0)
    assert np.array_equal(out, 4 * a)
    ex(a[::-2], out[1::2], 3.0)
    assert np.array_equal(out[1::2], 3 * a[::-2]) and np.array_equal(out[::2], 4 * a[::2])


@needs_gpu
def test_a_real_launch_on_arrays_of_both() -> None:
    torch = pytest.importorskip("torch")
    a = torch.arange(100, dtype=torch.float32, device="cuda")
    out = torch.zeros(100)
    ex = tilewright.compile(scale, backend="gpu")
    for factor in (2.0, 3.0):
        ex(a, out, factor)
        assert torch.equal(out, a.cpu() * factor)


@needs_gpu
def test_a_real_tensor_that_is_yet_to_be_negated_is_refused() -> None:
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(scale, backend="gpu")
    plain = torch.ones(8, device="cuda")
    pending = torch.imag(torch.full((8,), 1j, device="cuda").conj()).view(8)
    out = torch.zeros(8, device="cuda")
    ex(plain, out, 1.0)
    with pytest.raises(LaunchError):
        ex(pending, out, 1.0)
    ex(pending.resolve_neg(), out, 1.0)
    assert out.tolist() == [-1.0] * 8
