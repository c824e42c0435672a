"""Streams: where launches go, and how they stand to what other libraries do with their arrays."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_gpu import FakeDriver, FakeTorch, launcher, refused, scale, vector

import tilewright
from tilewright.base import lazy
from tilewright.base.errors import LaunchError
from tilewright.runtime import arrays
from tilewright.runtime.cuda_driver import find_gpu
from tilewright.runtime.streams import stream_handle


@pytest.fixture
def fake() -> FakeDriver:
    return FakeDriver()


@pytest.fixture(params=["with PyTorch", "without PyTorch"])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """Give PyTorch, whose current stream is 7, where it is loaded; else 1 is the default one."""
    made = FakeTorch()
    is_there = request.param == "with PyTorch"
    made.stream = 7 if is_there else 1
    loaded = {"torch": made} if is_there else {}
    monkeypatch.setattr(lazy, "loaded", loaded.get)
    return made


def memory(size: int) -> Any:
    return arrays.aligned_empty(size * 4).view(np.float32)


class Shown:
    """An array of a GPU that `__cuda_array_interface__` shows."""

    def __init__(self, fake: FakeDriver, size: int, stream: int | None, ordinal: int = 0) -> None:
        self.array = memory(size)
        fake.pointers[self.data_ptr()] = ordinal
        shape, kind = self.array.shape, self.array.dtype.str
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": kind,
            "data": (self.data_ptr(), False),
            "strides": None,
            "stream": stream,
        }

    def data_ptr(self) -> int:
        return self.array.ctypes.data


class Exported:
    """An array of a GPU that DLPack shows, by a library as strict as JAX."""

    def __init__(self, size: int) -> None:
        self.array = memory(size)
        self.asked: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None) -> Any:
        if stream is None or stream == 0 or stream < 0:
            raise RuntimeError(f"{stream} is no stream")
        self.asked.append(stream)
        return self.array.__dlpack__(max_version=max_version)

    def data_ptr(self) -> int:
        return self.array.ctypes.data


def told(fake: FakeDriver) -> list[tuple[str, int]]:
    """List what streams were told, by the number that the default stream has elsewhere."""
    found = [(what, stream or 1) for what, stream in fake.told]
    fake.told.clear()
    return found


# ---------------------------------------------------------------------------- arrays that name one


def test_a_launch_goes_to_the_stream_that_its_arrays_name(
    fake: FakeDriver, torch: FakeTorch
) -> None:
    launch = launcher(fake, scale)
    for stream in (5, 5, 6):
        launch.launch((Shown(fake, 32, stream), Shown(fake, 32, stream), 1.0))
        assert told(fake) == [("launch", stream)]


def test_streams_that_arrays_name_are_ordered_before_and_after(
    fake: FakeDriver, torch: FakeTorch
) -> None:
    launch = launcher(fake, scale)
    for _ in range(3):
        launch.launch((Shown(fake, 32, 5), Shown(fake, 32, 6), 1.0))
        expected = [("record", 6), ("wait", 5), ("launch", 5), ("record", 5), ("wait", 6)]
        assert told(fake) == expected


def test_tensors_of_torch_keep_a_launch_on_its_stream(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "loaded", {"torch": FakeTorch()}.get)
    launch = launcher(fake, scale)
    for _ in range(3):
        launch.launch((Shown(fake, 32, 5), vector(32), 1.0))
        expected = [("record", 5), ("wait", 7), ("launch", 7), ("record", 7), ("wait", 5)]
        assert told(fake) == expected


def test_an_array_that_names_no_stream_needs_no_order(fake: FakeDriver, torch: FakeTorch) -> None:
    launcher(fake, scale).launch((Shown(fake, 32, None), Shown(fake, 32, None), 1.0))
    assert told(fake) == [("launch", torch.stream)]


def test_later_calls_with_arrays_that_are_alike_prepare_nothing(
    fake: FakeDriver, torch: FakeTorch
) -> None:
    launch = launcher(fake, scale)
    launch.launch((Shown(fake, 70, 5), Exported(70), 1.0))
    prepared = len(fake.modes)
    for factor in (2.0, np.float32(3.0), np.float64(4.0)):
        a, out = Shown(fake, 70, 5), Exported(70)
        launch.launch((a, out, factor))
        launched = fake.launches[-1]
        assert launched.pointers[:2] == [a.data_ptr(), out.data_ptr()]
        assert np.uint32(launched.pointers[2] & 0xFFFFFFFF).view(np.float32) == factor
    assert len(fake.modes) == prepared
    launch.launch((Shown(fake, 69, 5), Exported(69), 1.0))
    assert fake.launches[-1].grid == (3, 1, 1) and len(fake.modes) > prepared


def test_an_array_that_differs_from_an_earlier_one_is_looked_at(
    fake: FakeDriver, torch: FakeTorch
) -> None:
    launch = launcher(fake, scale)
    launch.launch((Shown(fake, 32, 5), Shown(fake, 32, 5), 1.0))
    for field, value, code in (
        ("typestr", "<i4", "argument-dtype"),
        ("data", None, "argument-read-only"),
        ("strides", (8,), "argument-shape"),
        ("mask", np.zeros(32, bool), "argument-kind"),
    ):
        out = Shown(fake, 32, 5)
        read_only = (out.data_ptr(), True)
        out.__cuda_array_interface__[field] = read_only if value is None else value
        assert refused(launch, Shown(fake, 32, 5), out, 1.0).code == code


def test_arrays_are_on_the_gpu_that_the_driver_says(fake: FakeDriver, torch: FakeTorch) -> None:
    launcher(fake, scale).launch((Shown(fake, 32, 5, 1), Shown(fake, 32, 5, 1), 1.0))
    assert fake.context == 1001
    error = refused(launcher(fake, scale), Shown(fake, 32, 5, 1), Shown(fake, 32, 5, 0), 1.0)
    assert error.code == "argument-device" and error.found == "memory of cuda:0"
    unknown = Shown(fake, 32, 5)
    fake.pointers.clear()
    error = refused(launcher(fake, scale), unknown, unknown, 1.0)
    assert error.code == "argument-kind" and "no address that CUDA knows" in (error.found or "")


# ---------------------------------------------------------------------------- DLPack


def test_exporters_are_told_where_their_array_is_used(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    for _ in range(2):
        a, out = Exported(32), Exported(32)
        launch.launch((a, out, 1.0))
        assert a.asked == out.asked == [torch.stream]
    a = Exported(32)
    launch.launch((a, Shown(fake, 32, 5), 1.0))
    assert a.asked == [5]
    a = Exported(32)
    launch.launch((a, Exported(32), 1.0), stream=9)
    assert a.asked == [9] and fake.launches[-1].stream == 9


def test_what_an_exporter_says_is_shown(fake: FakeDriver, torch: FakeTorch) -> None:
    class Deleted(Exported):
        def __dlpack__(self, **options: Any) -> Any:
            raise RuntimeError("the array was deleted")

    error = refused(launcher(fake, scale), Deleted(32), Exported(32), 1.0)
    assert error.code == "argument-kind" and "was deleted" in (error.found or "")
    assert not fake.launches


# ---------------------------------------------------------------------------- a call's own


def test_a_call_names_its_stream(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "loaded", {"torch": FakeTorch()}.get)
    launch, a, out = launcher(fake, scale), vector(32), vector(32)
    for stream in (9, None, 9, 11, None, None, 0):
        launch.launch((a, out, 1.0), stream)
    assert [each.stream or 0 for each in fake.launches] == [9, 7, 9, 11, 7, 7, 0]
    assert len(launch.local.plans) == 1


def test_a_call_s_own_stream_is_ordered_with_those_that_arrays_name(
    fake: FakeDriver, torch: FakeTorch
) -> None:
    launch = launcher(fake, scale)
    for _ in range(2):
        launch.launch((Shown(fake, 32, 5), Shown(fake, 32, 5), 1.0), SimpleNamespace(ptr=9))
        expected = [("record", 5), ("wait", 9), ("launch", 9), ("record", 9), ("wait", 5)]
        assert told(fake) == expected
    launch.launch((Shown(fake, 32, 1), Shown(fake, 32, 1), 1.0), 0)
    assert told(fake) == [("launch", 1)], "0 and 1 are the default stream"


def test_streams_of_many_kinds() -> None:
    class Method:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 5

    class Numba:
        handle = ctypes.c_void_p(5)

    class Bindings:
        def getPtr(self) -> int:
            raise AssertionError("where the handle lies")

        def __int__(self) -> int:
            return 5

    streams = (
        *(5, SimpleNamespace(cuda_stream=5), SimpleNamespace(ptr=5), Method(), Numba(), Bindings()),
        SimpleNamespace(__cuda_stream__=(0, 5)),
    )
    assert {stream_handle(each) for each in streams} == {5}
    assert stream_handle(SimpleNamespace(handle=ctypes.c_void_p(0))) == 0


@pytest.mark.parametrize("stream", ["main", -1, True, 1.5, object()])
def test_what_is_no_stream_is_refused(fake: FakeDriver, torch: FakeTorch, stream: Any) -> None:
    with pytest.raises(LaunchError) as caught:
        launcher(fake, scale).launch((Exported(32), Exported(32), 1.0), stream)
    assert caught.value.code == "bad-option" and not fake.launches


# ---------------------------------------------------------------------------- captures


def test_arrays_of_the_host_are_refused_in_a_capture(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "loaded", {"torch": FakeTorch()}.get)
    launch, host = launcher(fake, scale), np.zeros(32, np.float32)
    fake.capturing = {7}
    for stream in (None, 9):
        error = refused(launch, vector(32), host, 1.0, stream=stream)
        assert error.code == "argument-device" and "'Out'" in error.message
        assert "captured" in error.message and error.location is not None
    assert not (fake.memory or fake.waits or fake.launches or fake.loaded)
    launch.launch((vector(32), vector(32), 1.0))
    assert len(fake.launches) == 1
    assert fake.modes == ["relaxed", "global"], "to load a kernel must not end the capture"


def test_a_capture_is_not_ended_by_the_order_of_streams(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "loaded", {"torch": FakeTorch()}.get)
    launch = launcher(fake, scale)
    fake.capturing = {7}
    error = refused(launch, vector(32), Shown(fake, 32, 5), 1.0)
    assert error.code == "gpu-fault" and "captured" in error.message and not fake.told
    fake.capturing = {5, 7}  # two branches of one graph
    launch.launch((vector(32), Shown(fake, 32, 5), 1.0))
    assert len(told(fake)) == 5


# ---------------------------------------------------------------------------- a real GPU

needs_gpu = pytest.mark.skipif(find_gpu() is None, reason="there is no GPU")
SIZE = 1 << 20


class Lent:
    """A tensor of PyTorch that only `__cuda_array_interface__` shows."""

    def __init__(self, tensor: Any, stream: int | None) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            **tensor.__cuda_array_interface__,
            "version": 3,
            "stream": stream,
        }


@pytest.fixture
def late() -> Any:
    """Give PyTorch, and a function that has a stream do nothing for some ten milliseconds."""
    torch = pytest.importorskip("torch")
    torch.cuda.synchronize()
    yield torch, lambda: torch.cuda._sleep(50_000_000)
    torch.cuda.synchronize()


@needs_gpu
def test_a_real_launch_waits_for_the_stream_that_an_array_names(late: Any) -> None:
    torch, sleep = late
    ex = tilewright.compile(scale, backend="gpu")
    producer = torch.cuda.Stream()
    a, out = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    for value in (1.0, 2.0):  # prepared, then as planned
        with torch.cuda.stream(producer):
            sleep()
            a.fill_(value)
        ex(Lent(a, producer.cuda_stream), out, 3.0)
        assert torch.equal(out, torch.full_like(out, 3 * value))


@needs_gpu
def test_a_real_consumer_waits_for_the_launch(late: Any) -> None:
    torch, sleep = late
    ex = tilewright.compile(scale, backend="gpu")
    consumer = torch.cuda.Stream()
    a, out = torch.ones(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    for value in (2.0, 3.0):
        sleep()
        ex(a, Lent(out, consumer.cuda_stream), value)
        with torch.cuda.stream(consumer):
            seen = out.clone()
        consumer.synchronize()
        assert torch.equal(seen, torch.full_like(seen, value))


@needs_gpu
def test_a_real_launch_goes_to_the_stream_that_it_is_given(late: Any) -> None:
    torch, sleep = late
    ex = tilewright.compile(scale, backend="gpu")
    own = torch.cuda.Stream()
    a, out = torch.ones(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    ex(a, out, 1.0)  # what is compiled first would take as long as the stream sleeps
    torch.cuda.synchronize()
    for value, stream in ((2.0, own), (3.0, own.cuda_stream), (4.0, own)):
        with torch.cuda.stream(own):
            sleep()
        ex(a, out, value, stream=stream)
        done = torch.cuda.Event()
        done.record(own)
        assert not done.query(), "it waits for what its stream does"
        done.synchronize()
        assert torch.equal(out, torch.full_like(out, value))


@needs_gpu
def test_real_arrays_of_other_libraries_are_ordered(late: Any) -> None:
    cupy = pytest.importorskip("cupy")
    torch, sleep = late
    ex = tilewright.compile(scale, backend="gpu")
    own = cupy.cuda.Stream(non_blocking=True)
    with own:
        for value in (1.0, 2.0):
            with torch.cuda.stream(torch.cuda.ExternalStream(own.ptr)):
                sleep()
            a = cupy.full(SIZE, value, cupy.float32)
            out = cupy.zeros(SIZE, cupy.float32)
            ex(a, out, 3.0)
            assert (out + 0 == 3 * value).all()


@needs_gpu
def test_real_arrays_of_jax_are_taken() -> None:
    jax = pytest.importorskip("jax")
    torch = pytest.importorskip("torch")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX does not see the GPU")
    ex = tilewright.compile(scale, backend="gpu")
    out = torch.zeros(1000, device="cuda")
    for value in (2.0, 3.0):
        ex(jax.numpy.ones(1000, "float32") * value, out, 2.0)
        assert torch.equal(out, torch.full_like(out, 2 * value))


@needs_gpu
def test_a_real_capture_survives_arrays_of_the_host() -> None:
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(scale, backend="gpu")
    a, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(LaunchError) as caught:
            ex(np.ones(1000, np.float32), out, 2.0)
        ex(a, out, 3.0)  # the first launch of all: the kernel is loaded in the capture
    assert caught.value.code == "argument-device"
    graph.replay()
    assert torch.equal(out, a * 3)


@needs_gpu
def test_real_memory_tells_its_gpu() -> None:
    torch = pytest.importorskip("torch")
    gpu = find_gpu()
    assert gpu is not None
    for ordinal in range(torch.cuda.device_count()):
        tensor = torch.zeros(1000, device=f"cuda:{ordinal}")
        assert gpu.ordinal_of(tensor[500:].data_ptr()) == ordinal
    assert gpu.ordinal_of(np.zeros(4).ctypes.data) is None
