"""Tensor maps of launches on the GPU, against a driver that only writes down what it is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_gpu import FakeDriver, FakeTensor, FakeTorch, launcher, refused
from test_tensor_map_launches import expected_of_swizzled, swizzled

import tilewright
from tilewright import simt
from tilewright.base import lazy
from tilewright.isa.tensor_map import FORMATS, TensorMap
from tilewright.runtime import arrays
from tilewright.runtime.cuda_driver import find_gpu

T: Any = simt
n = T.dynamic("n")


@T.function
def prefetch(A: T.Tensor((n, 64), "float16"), Out: T.Tensor((32,), "int32"), first: T.int32):
    amap: T.let[T.Ptr(T.TensorMap)] = T.stack_alloca("tensormap", 1)
    T.cuda.tensormap_encode_tiled(
        amap,
        A.ptr_to([first, 0]),
        *(64, n - first, 128, 64, 8, 1, 1),
        descriptor_dtype="float16",
        rank=2,
        swizzle=3,
        l2_promotion=2,
    )
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    T.ptx.prefetch.tensormap(T.address_of(amap))
    Out[T.cuda.lane_id()] = 1


@T.function
def given(amap: T.TensorMap(), Out: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    T.ptx.prefetch.tensormap(T.address_of(amap))
    Out[T.cuda.lane_id()] = 1


@pytest.fixture
def fake() -> FakeDriver:
    return FakeDriver(count=4)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    made = FakeTorch()
    monkeypatch.setattr(lazy, "loaded", lambda name: made if name == "torch" else None)
    return made


def rows(count: int, skipped: int = 0) -> FakeTensor:
    """Make a tensor of rows of 64 float16, `skipped` bytes after an aligned address."""
    storage = arrays.aligned_empty(count * 128 + skipped)[skipped:]
    return FakeTensor(storage.view(np.float16).reshape(count, 64))


def vector() -> FakeTensor:
    return FakeTensor(arrays.aligned_empty(128).view(np.int32))


def passed(fake: FakeDriver) -> list[int]:
    """List the addresses in the tensor maps that launches were given."""
    return [launched.pointers[3] for launched in fake.launches]


def test_the_driver_is_told_what_the_program_says(fake: FakeDriver) -> None:
    a = rows(70)
    launcher(fake, prefetch).launch((a, vector(), 6))
    # CUDA Driver API: FLOAT16 is 6.
    address = a.data_ptr() + 6 * 128
    (encoded,) = fake.encoded
    assert encoded == (address, 6, 2, [64, 64], [128], [64, 8], [1, 1], 0, 3, 2, 0)
    assert passed(fake) == [address]


def test_formats_have_the_numbers_of_the_driver() -> None:
    bindings = pytest.importorskip("cuda.bindings.driver")
    kinds = bindings.CUtensorMapDataType
    numbers = [int(getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{e}")) for e in FORMATS.values()]
    assert numbers == list(range(len(FORMATS)))


def test_maps_are_kept_for_addresses_that_come_again(fake: FakeDriver) -> None:
    launch = launcher(fake, prefetch)
    one, two = rows(16), rows(16)
    for a in (one, two, one, two, two):
        launch.launch((a, vector(), 0))
    assert passed(fake) == [each.data_ptr() for each in (one, two, one, two, two)]
    assert [each[0] for each in fake.encoded] == [one.data_ptr(), two.data_ptr()]
    assert len(launch.local.plans) == 1


def test_other_numbers_make_other_maps(fake: FakeDriver) -> None:
    launch = launcher(fake, prefetch)
    a, longer = rows(16), rows(32)
    for tensor, first in ((a, 0), (a, 8), (longer, 8), (a, 0), (a, 8)):
        launch.launch((tensor, vector(), first))
    start, other = a.data_ptr(), longer.data_ptr()
    assert passed(fake) == [start, start + 1024, other + 1024, start, start + 1024]
    assert [each[3][1] for each in fake.encoded] == [16, 8, 24]


def test_maps_are_forgotten_when_there_are_many(fake: FakeDriver) -> None:
    launch = launcher(fake, prefetch)
    storage = arrays.aligned_empty(128 * 2000)
    for start in range(1500):
        part = storage[128 * start :][: 128 * 16].view(np.float16).reshape(16, 64)
        launch.launch((FakeTensor(part), vector(), 0))
    assert len(fake.encoded) == len(set(passed(fake))) == 1500
    for start, count in ((1499, 1500), (0, 1501)):  # the first one has to be made again
        part = storage[128 * start :][: 128 * 16].view(np.float16).reshape(16, 64)
        launch.launch((FakeTensor(part), vector(), 0))
        assert len(fake.encoded) == count


def test_an_address_that_a_map_cannot_have_is_refused_in_every_call(fake: FakeDriver) -> None:
    launch = launcher(fake, prefetch)
    good, bad = rows(16), rows(16, skipped=8)
    with_bad = refused(launch, bad, vector(), 0)
    launch.launch((good, vector(), 0))
    for error in (with_bad, refused(launch, bad, vector(), 0)):
        assert error.code == "tensor-map-shape" and error.location is not None
        assert "tensormap_encode_tiled" in (error.location.excerpt() or "")
        assert error.hint == "declare 'A' with align=16"
    launch.launch((good, vector(), 0))
    assert passed(fake) == [good.data_ptr()] * 2


def test_what_the_driver_refuses_is_shown(fake: FakeDriver) -> None:
    launch = launcher(fake, prefetch)
    a, other = rows(16), rows(16)
    launch.launch((a, vector(), 0))
    fake.statuses = [1]
    error = refused(launch, other, vector(), 0)
    assert error.code == "gpu-fault" and "'amap'" in error.message
    launch.launch((a, vector(), 0))
    launch.launch((other, vector(), 0))
    assert passed(fake) == [a.data_ptr(), a.data_ptr(), other.data_ptr()]


def test_several_launches_share_a_map(fake: FakeDriver) -> None:
    @T.function
    def twice(A: T.Tensor((n, 64), "float16"), Out: T.Tensor((32,), "int32")):
        amap = T.stack_alloca("tensormap", 1)
        T.cuda.tensormap_encode_tiled(
            amap, A.data, 64, n, 128, 64, 8, 1, 1, descriptor_dtype="float16", rank=2
        )
        with T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32)):
            T.ptx.prefetch.tensormap(T.address_of(amap))
        with T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32)):
            T.ptx.prefetch.tensormap(T.address_of(amap))

    fake.count = 3
    launch = launcher(fake, twice)
    tensors = [rows(16), rows(16)]
    for a in tensors:
        launch.launch((a, vector()))
    given = [launched.pointers[2] for launched in fake.launches]
    assert given == [each.data_ptr() for each in tensors for _ in range(2)]
    assert len(fake.encoded) == 2


def test_a_map_of_the_host_s_arrays_is_of_their_copy(fake: FakeDriver) -> None:
    a, out = np.zeros((16, 64), np.float16), np.zeros(32, np.int32)
    launcher(fake, prefetch).launch((a, out, 8))
    (launched,) = fake.launches
    assert launched.pointers[3] == launched.pointers[0] + 8 * 128 != a.ctypes.data + 8 * 128


def test_a_map_may_be_given(fake: FakeDriver) -> None:
    fake.count = 2
    launch = launcher(fake, given)
    a = rows(16)
    for first in (0, 8):
        address = a.data_ptr() + 128 * first
        made = TensorMap(address, "float16", (64, 16 - first), (128,), (64, 8), (1, 1))
        launch.launch((made, vector()))
    assert [launched.pointers[0] for launched in fake.launches] == [
        a.data_ptr(),
        a.data_ptr() + 1024,
    ]
    assert refused(launch, a, vector()).expected == "a tilewright.TensorMap"
    wrong = TensorMap(a.data_ptr() + 2, "float16", (64, 16), (128,), (64, 8), (1, 1))
    assert refused(launch, wrong, vector()).code == "tensor-map-shape"


# ---------------------------------------------------------------------------- a real driver

needs_hopper = pytest.mark.skipif(
    (gpu := find_gpu()) is None or gpu.capability < 90, reason="there is no GPU with tensor maps"
)


@needs_hopper
def test_real_maps_of_tensors_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(prefetch, backend="gpu")
    out = torch.zeros(32, dtype=torch.int32, device="cuda")
    for _ in range(3):
        a = torch.zeros((16, 64), dtype=torch.float16, device="cuda")
        for first in (0, 8):
            ex(a, out, first)
    torch.cuda.synchronize()
    assert int(out.sum()) == 32


@needs_hopper
def test_real_boxes_go_through_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(swizzled, backend="gpu")
    for number, row in enumerate((0, 8, 100, 8)):
        a = np.random.default_rng(number).standard_normal((140, 64)).astype(np.float16)
        given = torch.from_numpy(a).cuda()
        out = torch.zeros_like(given)
        image = torch.zeros(4096, dtype=torch.float16, device="cuda")
        ex(given, out, image, row)
        expected_out, expected_image = expected_of_swizzled(a, row)
        assert np.array_equal(out.cpu().numpy(), expected_out)
        assert np.array_equal(image.cpu().numpy(), expected_image)


@needs_hopper
def test_real_launches_with_maps_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(swizzled, backend="gpu")
    a = torch.randn((64, 64), dtype=torch.float16, device="cuda")
    outs = [torch.zeros_like(a) for _ in range(2)]
    image = torch.zeros(4096, dtype=torch.float16, device="cuda")
    ex(a, outs[0], image, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs:
            ex(a, out, image, 0)
    a.normal_()
    graph.replay()
    for out in outs:
        assert torch.equal(out, a)
