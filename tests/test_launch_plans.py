"""Plans of launches: what they see of tensors and numbers, which can differ at every call."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_gpu import FakeDriver, FakeTensor, FakeTorch, launcher, refused, scale, value, vector

from tilewright import simt
from tilewright.base import lazy
from tilewright.runtime import likeness as module
from tilewright.runtime.likeness import likeness, recognizer

T: Any = simt


@T.function
def numbers(
    Out: T.Tensor((32,), "float32"),
    boolean: T.bool,
    int8: T.int8,
    uint16: T.uint16,
    int32: T.int32,
    uint64: T.uint64,
    float16: T.float16,
    bfloat16: T.bfloat16,
    float32: T.float32,
    float64: T.float64,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    total: T.float32 = T.float32(int8) + T.float32(uint16) + T.float32(int32) + T.float32(uint64)
    total = total + T.float32(float16) + T.float32(bfloat16) + float32 + T.float32(float64)
    if boolean:
        Out[T.cuda.lane_id()] = total


@T.function
def sized(Out: T.Tensor((64,), "int32"), blocks: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=blocks, block=32))
    Out[T.cuda.lane_id()] = blocks


@T.function
def shaped_by_float(Out: T.Tensor((64,), "float32"), extent: T.float32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1 + T.int32(extent > 3.0), block=32))
    Out[T.cuda.lane_id()] = extent


@pytest.fixture
def fake() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    made = FakeTorch()
    monkeypatch.setattr(lazy, "loaded", lambda name: made if name == "torch" else None)
    return made


# ---------------------------------------------------------------------------- numbers


USUAL = {"boolean": True, "int8": -3, "uint16": 7, "int32": -70000, "uint64": 2**63}
USUAL |= dict.fromkeys(("float16", "bfloat16", "float32", "float64"), 0.1)


def held(name: str, number: Any) -> bytes:
    """Give the bytes of a number of a type that a parameter is named after."""
    kind = {"boolean": "bool", "bfloat16": ml_dtypes.bfloat16}.get(name, name)
    return np.asarray(number).astype(kind).tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"boolean": False, "int8": 127, "uint16": 65535, "int32": 2**31 - 1, "uint64": 2**64 - 1},
        {"int8": -128, "uint16": 0, "int32": -(2**31), "uint64": 0},
        {"float16": -0.0, "bfloat16": -0.0, "float32": -0.0, "float64": -0.0},
        {"float16": math.inf, "bfloat16": -math.inf, "float32": math.inf, "float64": math.nan},
        # Ties go to the even.
        {"float16": 2049.0, "bfloat16": 1 + 2**-8, "float32": 1 + 2**-24, "float64": 1e-320},
        # Numbers of another type of Python's.
        {"boolean": 0, "bfloat16": 1, "float32": 3, "float64": 2**53},
    ],
)
def test_later_calls_pass_numbers_as_their_types_hold_them(
    fake: FakeDriver, torch: FakeTorch, changes: dict[str, Any]
) -> None:
    launch, out = launcher(fake, numbers), vector(32)
    for given in (USUAL, USUAL, USUAL | changes, USUAL | changes, USUAL):
        launch.launch((out, *given.values()))
        address, *passed = fake.launches[-1].pointers
        assert address == out.data_ptr()
        for (name, number), found in zip(given.items(), passed, strict=True):
            expected = held(name, number)
            assert found.to_bytes(8, "little")[: len(expected)] == expected, name


@pytest.mark.parametrize(
    "changes",
    [
        *({"boolean": 2}, {"int8": 128}, {"int8": -129}, {"uint16": -1}, {"uint16": 65536}),
        *({"int32": 2**31}, {"uint64": -1}, {"uint64": 2**64}, {"float16": 65520.0}),
        *({"float32": 1e39}, {"bfloat16": 1e39}, {"int32": 1.0}, {"float32": "1"}, {"int8": None}),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_later_calls(
    fake: FakeDriver, torch: FakeTorch, changes: dict[str, Any]
) -> None:
    launch, out = launcher(fake, numbers), vector(32)
    for _ in range(2):
        for _ in range(2):
            launch.launch((out, *USUAL.values()))
        launched = len(fake.launches)
        error = refused(launch, out, *(USUAL | changes).values())
        assert error.code in ("argument-dtype", "argument-kind")
        assert repr(next(iter(changes))) in error.message and len(fake.launches) == launched


def test_a_number_that_shapes_the_launch_is_the_same_or_another_launch(
    fake: FakeDriver, torch: FakeTorch
) -> None:
    launch, out = launcher(fake, sized), vector(64, np.int32)
    for blocks in (1, 1, 2, 2, True, True, 1):
        launch.launch((out, blocks))
    assert [each.grid[0] for each in fake.launches] == [1, 1, 2, 2, 1, 1, 1]


@pytest.mark.parametrize(
    "numbers_in_turn",
    [
        (0.0, -0.0, 0.0, -0.0),
        (1.0, 1, True, 1.0, np.float32(1.0)),
        (0, -0.0, False, 0.0),
        (math.nan, -math.nan, math.nan),
        (2.0, 4.0, 2.0, 5e-324, 0.0, math.inf, -math.inf),
    ],
)
def test_a_float_that_shapes_the_launch_is_passed_bit_by_bit(
    fake: FakeDriver, torch: FakeTorch, numbers_in_turn: tuple[Any, ...]
) -> None:
    launch, out = launcher(fake, shaped_by_float), vector(64)
    for _ in range(2):
        for number in numbers_in_turn:
            launch.launch((out, number))
            launched = fake.launches[-1]
            assert launched.grid[0] == (2 if number > 3 else 1)
            bits = launched.pointers[1].to_bytes(8, "little")[:4]
            assert bits == np.float32(number).tobytes(), number


def test_a_nan_is_like_itself(fake: FakeDriver, torch: FakeTorch) -> None:
    launch, out = launcher(fake, shaped_by_float), vector(64)
    for _ in range(10):
        launch.launch((out, float("nan")))
    assert len(launch.local.plans) == 1


def test_numbers_of_numpy_are_taken_as_planned(fake: FakeDriver, torch: FakeTorch) -> None:
    launch, a, out = launcher(fake, scale), vector(64), vector(64)
    launch.launch((a, out, 1.0))
    prepared = len(fake.modes)
    kinds = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
    for number in (kind(each) for kind in kinds for each in (2.5, -0.0)):
        launch.launch((a, out, number))
        assert fake.launches[-1].pointers[2].to_bytes(8, "little")[:4] == (
            np.float32(number).tobytes()
        )
    assert len(fake.modes) == prepared
    assert refused(launch, a, out, np.float64(1e300)).code == "argument-dtype"


# ---------------------------------------------------------------------------- tensors


def test_a_tensor_that_lost_its_memory_is_refused(fake: FakeDriver, torch: FakeTorch) -> None:
    launch, a, out = launcher(fake, scale), vector(64), vector(64)
    for times in range(4):  # never launched, prepared, as planned
        for lost in (a, out):
            lost.freed = True
            error = refused(launch, a, out, 1.0)
            assert error.code == "argument-kind" and "lost its memory" in error.message
            lost.freed = False
        launch.launch((a, out, 1.0))
        assert len(fake.launches) == times + 1
        assert fake.launches[-1].pointers[:2] == [a.data_ptr(), out.data_ptr()]


def test_a_view_of_storage_that_was_freed_is_refused(fake: FakeDriver, torch: FakeTorch) -> None:
    class View(FakeTensor):
        def data_ptr(self) -> int:
            return 4096 if self.freed else super().data_ptr()

    View.__name__ = "Tensor"
    torch.Tensor = View  # type: ignore[assignment]
    launch, a, out = launcher(fake, scale), View(vector(64).array), View(vector(64).array)
    for _ in range(3):
        launch.launch((a, out, 1.0))
        a.freed = True
        assert "lost its memory" in refused(launch, a, out, 1.0).message
        a.freed = False
    assert len(fake.launches) == 3


def test_a_call_that_failed_half_way_leaves_no_address_behind(
    fake: FakeDriver, torch: FakeTorch
) -> None:
    launch, a, out = launcher(fake, scale), vector(64), vector(64)
    for _ in range(4):
        launch.launch((a, out, 1.0))
        assert fake.launches[-1].pointers[:2] == [a.data_ptr(), out.data_ptr()]
        lost = vector(64)
        lost.freed = True
        refused(launch, vector(64), lost, 1.0)
        refused(launch, vector(64), vector(64), "1")


def test_what_autograd_records_is_not_written(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale, written=frozenset({"Out"}))
    a, out = vector(64), vector(64)
    a.requires_grad = out.requires_grad = True
    for times in range(4):
        torch.recording = True
        error = refused(launch, a, out, 1.0)
        assert error.code == "argument-read-only" and "'Out'" in error.message
        launch.launch((a, vector(64), 1.0))
        torch.recording = False
        launch.launch((a, out, 1.0))
        assert len(fake.launches) == 2 * (times + 1)


def test_a_call_that_failed_leaves_the_next_one_right(fake: FakeDriver, torch: FakeTorch) -> None:
    launch, out = launcher(fake, numbers), vector(32)
    for _ in range(3):
        launch.launch((out, *USUAL.values()))
    other = vector(32)
    for wrong in ({"int8": 1000}, {"float64": "1"}):
        refused(launch, other, *(USUAL | {"uint64": 5} | wrong).values())
        launch.launch((out, *USUAL.values()))
        launched = fake.launches[-1]
        assert launched.pointers[0] == out.data_ptr() and launched.pointers[5] == USUAL["uint64"]


def test_a_tensor_that_changed_in_place_is_seen(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    a, out = vector(64), vector(64)
    for _ in range(3):
        launch.launch((a, out, 1.0))
    a.array = vector(64).array  # as `set_` and `.data =` do
    launch.launch((a, out, 1.0))
    assert fake.launches[-1].pointers[:2] == [a.data_ptr(), out.data_ptr()]
    for tensor in (a, out):  # as `resize_` does
        tensor.array = tensor.array[:32]
        tensor.shape = (32,)
    launch.launch((a, out, 1.0))
    assert fake.launches[-1].grid == (1, 1, 1)
    out.array = np.zeros(64, np.float32)[::2]
    assert refused(launch, a, out, 1.0).code == "argument-shape"
    out.array = vector(32).array
    launch.launch((a, out, 1.0))
    out.device = 1
    assert refused(launch, a, out, 1.0).code == "argument-device"
    out.device, out.dtype = 0, vector(32, np.int32).dtype
    assert refused(launch, a, out, 1.0).code == "argument-dtype"


def test_a_tensor_may_be_given_twice(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    a, out = vector(8), vector(8)
    pairs = [(a, a), (a, a), (a, out), (out, out), (a, out)]
    for first, second in pairs:
        launch.launch((first, second, 1.0))
    expected = [[first.data_ptr(), second.data_ptr()] for first, second in pairs]
    assert [each.pointers[:2] for each in fake.launches] == expected
    assert len(launch.local.plans) == 1


def test_sparse_tensors_are_refused(fake: FakeDriver, torch: FakeTorch) -> None:
    class Sparse(FakeTensor):
        layout = "sparse_coo"

        def stride(self) -> tuple[int, ...]:
            raise RuntimeError("sparse tensors do not have strides")

        data_ptr: Any = stride
        untyped_storage: Any = stride

    Sparse.__name__ = "Tensor"
    torch.Tensor = Sparse  # type: ignore[assignment]
    launch = launcher(fake, scale)
    error = refused(launch, Sparse(np.zeros(8, np.float32)), vector(8), 1.0)
    assert error.code == "argument-kind" and "sparse_coo" in (error.found or "")


def test_threads_launch_on_their_own_tensors(fake: FakeDriver, torch: FakeTorch) -> None:
    launch = launcher(fake, scale)
    own = {float(number): (vector(32), vector(32)) for number in range(4)}

    def run(number: float) -> None:
        for _ in range(300):
            launch.launch((*own[number], number))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in own]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(fake.launches) == 1200
    for launched in fake.launches:
        a, out = own[value(launched.pointers[2])]
        assert launched.pointers[:2] == [a.data_ptr(), out.data_ptr()]


# ---------------------------------------------------------------------------- PyTorch's own


@pytest.fixture(params=["PyTorch's check", "attributes"])
def real(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give PyTorch, whose tensors are compared in both ways."""
    found = pytest.importorskip("torch")
    if request.param == "attributes":
        monkeypatch.setattr(module, "_check_of", lambda torch: None)
    else:
        # Where this fails, launches take longer by the time of some ten attributes.
        assert module._check_of(found) is not None
    return found


def in_place(change: Callable[[Any, Any], object]) -> Callable[[Any], Any]:
    def changed(torch: Any) -> Any:
        tensor = torch.zeros(2, 3)
        change(torch, tensor)
        return tensor

    return changed


def negated(torch: Any) -> Any:
    """Give a tensor that is yet to be negated, without gaps."""
    return torch._neg_view(torch.zeros(2, 3))


def set_data(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return in_place(lambda torch, tensor: setattr(tensor, "data", make(torch)))


OTHERS: dict[str, Callable[[Any], Any]] = {
    "resize_": in_place(lambda torch, tensor: tensor.resize_(3, 2)),
    "more axes": in_place(lambda torch, tensor: tensor.unsqueeze_(0)),
    "t_": lambda torch: torch.zeros(3, 2).t_(),
    "as_strided_": in_place(lambda torch, tensor: tensor.as_strided_((2, 3), (1, 1))),
    "set_": in_place(lambda torch, tensor: tensor.set_(torch.zeros(9)[::1], 0, (2, 3), (4, 1))),
    "data of another type": set_data(lambda torch: torch.zeros(2, 3, dtype=torch.float16)),
    "data of another shape": set_data(lambda torch: torch.zeros(3, 2)),
    "data to be negated": set_data(negated),
    "to be negated": negated,
    "integers": lambda torch: torch.zeros(2, 3, dtype=torch.int32),
    "of another device": lambda torch: torch.zeros(2, 3, device="meta"),
    "sparse": lambda torch: torch.zeros(2, 3).to_sparse(),
    "parameter": lambda torch: torch.nn.Parameter(torch.zeros(2, 3)),
    "subclass": lambda torch: torch.zeros(2, 3).as_subclass(type("Own", (torch.Tensor,), {})),
    "with a gradient": lambda torch: torch.zeros(2, 3, requires_grad=True),
    "array": lambda torch: np.zeros((2, 3), np.float32),
    "number": lambda torch: 1,
    "nothing": lambda torch: None,
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_tensors_that_differ_are_told_apart(real: Any, other: Callable[[Any], Any]) -> None:
    one, two = real.zeros(2, 3), real.zeros(2, 3)
    recognizes = recognizer((one, two))
    assert recognizes(one, two) and recognizes(two, one) and recognizes(one, real.ones(2, 3))
    assert not recognizes(one, other(real)) and not recognizes(other(real), two)
    assert likeness(other(real)) != likeness(one)


def test_a_tensor_is_recognized_however_it_was_made(real: Any) -> None:
    one = real.zeros(2, 3)
    recognizes = recognizer((one,))
    one.set_(real.ones(20).untyped_storage(), 4, (2, 3), (3, 1))
    assert (
        recognizes(one)
        and recognizes(real.zeros(5, 3)[2:4])
        and recognizes(real.ones(6).view(2, 3))
    )
    with real.no_grad():
        assert recognizes(one)


def test_a_tensor_that_is_given_twice_is_recognized(real: Any) -> None:
    one, two = real.zeros(2, 3), real.zeros(2, 3)
    recognizes = recognizer((one, one))
    assert recognizes(one, one) and recognizes(two, two) and recognizes(one, two)
    assert not recognizes(one, real.zeros(3, 2)) and not recognizes(real.zeros(3, 2), one)


def test_tensors_are_not_kept(real: Any) -> None:
    one = real.zeros(2, 3)
    references = sys.getrefcount(one)
    recognizes = recognizer((one,))
    assert sys.getrefcount(one) == references and recognizes(one)


@pytest.mark.parametrize(
    "blind", ["sizes", "strides", "types", "device", "negated", "gradient", "everything"]
)
def test_a_check_that_misses_a_difference_is_not_used(blind: str) -> None:
    torch = pytest.importorskip("torch")

    class Guards:
        def __init__(self, *tensors: Any, **options: None) -> None:
            self.known = [self.seen(each) for each in tensors]

        def seen(self, tensor: Any) -> Any:
            if blind == "everything" or type(tensor) is not torch.Tensor:
                return None
            seen = {"sizes": tensor.shape, "types": tensor.dtype, "device": tensor.device}
            seen |= {"negated": tensor.is_neg(), "layout": tensor.layout}
            seen |= {"gradient": tensor.requires_grad}
            if not tensor.is_sparse:
                seen |= {"strides": tensor.stride()}
            return {name: each for name, each in seen.items() if name != blind}

        def check(self, *tensors: Any) -> bool:
            return self.known == [self.seen(each) for each in tensors]

    class Torch:
        _C = SimpleNamespace(_dynamo=SimpleNamespace(guards=SimpleNamespace(TensorGuards=Guards)))

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    assert module._check_of(Torch()) is None
    blind = "nothing"
    assert module._check_of(Torch()) is not None
