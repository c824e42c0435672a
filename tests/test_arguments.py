"""Arguments against parameters: what is taken as it lies, what is copied, what is refused."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtypes import INT32, dtype
from tilewright.base.errors import LaunchError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr, Var, int32
from tilewright.ir.statements import Program
from tilewright.ir.types import PointerType, ScalarType, TensorType
from tilewright.layout import S, TileLayout
from tilewright.runtime.arguments import Bound, bind

N = Var("n", ScalarType(INT32))


def tensor(name: str, *shape: int | Expr, kind: str = "float32", **facts: Any) -> Var:
    extents = tuple(int32(e) if isinstance(e, int) else e for e in shape)
    where = Location("kernel.py", 7)
    return Var(name, TensorType(extents, dtype(kind), Space.GLOBAL, **facts), location=where)


def scalar(name: str, kind: str) -> Var:
    return Var(name, ScalarType(dtype(kind)))


def take(params: list[Var], *arguments: Any, written: str = "") -> Bound:
    return bind(Program("kernel", tuple(params), (), ()), arguments, frozenset(written.split()))


def refusal(params: list[Var], *arguments: Any, written: str = "") -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        take(params, *arguments, written=written)
    return caught.value


def memory(address: Any, count: int, kind: type = np.float32) -> np.ndarray:
    """See the memory at an address, as a kernel does."""
    import ctypes

    size = count * np.dtype(kind).itemsize
    return np.frombuffer(memoryview((ctypes.c_char * size).from_address(int(address))), kind)


# ---------------------------------------------------------------------------- arrays


def test_a_compact_array_is_taken_where_it_lies() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    bound = take([tensor("A", 2, 3)], a, written="A")
    assert bound.values["A"] == a.ctypes.data
    assert [(m.name, m.size, m.writable) for m in bound.memories] == [("A", 24, True)]


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_element_types_of_ml_dtypes_are_taken(kind: str) -> None:
    a = np.zeros(4, getattr(ml_dtypes, kind))
    assert take([tensor("A", 4, kind=kind)], a).values["A"] == a.ctypes.data


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(12, dtype=np.float32).reshape(3, 4).T,
        lambda: np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2],
        lambda: np.arange(12, dtype=np.float32).reshape(4, 3)[::-1],
        lambda: np.frombuffer(bytes(range(49)), np.uint8)[1:].copy().view(np.float32).reshape(4, 3),
    ],
    ids=["transposed", "stepped", "reversed", "compact"],
)
def test_the_kernel_sees_any_strides_as_compact_and_its_writes_come_back(make: Any) -> None:
    a = make()
    bound = take([tensor("A", 4, 3)], a, written="A")
    seen = memory(bound.values["A"], 12)
    assert np.array_equal(seen.reshape(4, 3), a)
    seen[:] = np.arange(12)
    bound.copy_back()
    assert np.array_equal(a, np.arange(12, dtype=np.float32).reshape(4, 3))


def test_an_unaligned_array_is_copied_to_aligned_memory_and_back() -> None:
    storage = np.zeros(33, np.uint8)
    a = storage[1:].view(np.float32)
    bound = take([tensor("A", 8)], a, written="A")
    assert bound.memories[0].address % 4 == 0
    memory(bound.memories[0].address, 8)[:] = 5
    bound.copy_back()
    assert a.tolist() == [5] * 8


def test_a_declared_alignment_is_kept() -> None:
    storage = np.zeros(512, np.uint8)
    start = -storage.ctypes.data % 128 + 16
    a = storage[start : start + 64].view(np.float32)
    assert take([tensor("A", 16, align=128)], a).memories[0].address % 128 == 0


def test_what_the_kernel_only_reads_is_not_copied_back() -> None:
    a = np.zeros((4, 4), np.float32)[:, ::2]
    bound = take([tensor("A", 4, 2)], a)
    memory(bound.values["A"], 8)[:] = 1
    bound.copy_back()
    assert not a.any()


def test_copies_live_as_long_as_what_is_bound() -> None:
    a = np.arange(64, dtype=np.float32)[::2]
    bound = take([tensor("A", 32)], a)
    others = [np.full(32 + 64, 7, np.float32) for _ in range(64)]
    assert np.array_equal(memory(bound.values["A"], 32), a) and len(others) == 64


def test_a_copied_array_given_twice_is_copied_once() -> None:
    a = np.arange(8, dtype=np.float32)[::2]
    bound = take([tensor("A", 4), tensor("B", 4)], a, a, written="B")
    assert bound.values["A"] == bound.values["B"]


def test_a_copied_array_must_not_overlap_another() -> None:
    a = np.arange(8, dtype=np.float32)
    error = refusal([tensor("A", 4), tensor("B", 4)], a[:4], a[::2], written="A")
    assert error.code == "argument-shape" and "'A'" in str(error) and "'B'" in str(error)


def test_elements_that_share_memory_are_refused_only_as_outputs() -> None:
    a = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (4,), (0,), writeable=True)
    assert take([tensor("A", 4)], a).memories[0].size == 16
    assert refusal([tensor("A", 4)], a, written="A").code == "argument-shape"


def test_read_only_arrays_are_refused_only_as_outputs() -> None:
    a = np.zeros(4, np.float32)
    a.flags.writeable = False
    assert not take([tensor("A", 4)], a).memories[0].writable
    error = refusal([tensor("A", 4)], a, written="A")
    assert error.code == "argument-read-only" and "'A'" in str(error)
    assert error.location == Location("kernel.py", 7)


def test_an_empty_array_has_no_memory() -> None:
    for a in (np.zeros(0, np.float32), np.zeros((0, 4), np.float32)):
        params = [tensor("A", N, *a.shape[1:])]
        assert take(params, a, written="A").memories[0].size == 0


def test_an_array_must_lie_as_its_parameters_layout_says() -> None:
    columns = tensor("A", 4, 8, layout=TileLayout(S[(4, 8) : (1, 4)]))
    a = np.zeros((8, 4), np.float32).T
    assert take([columns], a).values["A"] == a.ctypes.data
    assert refusal([columns], np.zeros((4, 16), np.float32)[:, ::2]).code == "argument-shape"


def test_storage_below_a_byte_is_given_as_packed_bytes() -> None:
    fp4 = tensor("A", 2, 8, kind="float4_e2m1fn")
    assert take([fp4], np.zeros((2, 4), np.uint8)).memories[0].size == 8
    assert refusal([fp4], np.zeros((2, 8), np.uint8)).code == "argument-shape"
    assert refusal([fp4], np.zeros((2, 4), np.float32)).code == "argument-dtype"


def test_packed_bytes_tell_a_symbol() -> None:
    fp4, fp6 = (tensor("A", N, kind=each) for each in ("float4_e2m1fn", "float6_e2m3fn"))
    assert take([fp4], np.zeros(4, np.uint8)).values["n"] == 8
    assert take([fp6], np.zeros(6, np.uint8)).values["n"] == 8
    error = refusal([fp6], np.zeros(4, np.uint8))
    assert error.code == "argument-shape"
    assert error.expected == "(n,) of float6_e2m3fn: 3 for 4 of them along the last axis"


@pytest.mark.parametrize("shape", [(8, 4), (32,)])
def test_the_lanes_of_vectors_lie_along_the_last_axis_or_have_one_of_their_own(shape: Any) -> None:
    a = np.arange(32, dtype=np.float32).reshape(shape)
    bound = take([tensor("A", N, kind="float32x4")], a, written="A")
    assert bound.values["n"] == 8
    assert memory(bound.values["A"], 32).tolist() == list(range(32))
    assert bound.memories[0].address % 16 == 0


def test_vectors_come_back_to_strided_arrays() -> None:
    a = np.zeros((4, 3), np.float16).T[::-1]
    bound = take([tensor("A", 3, 2, kind="float16x2")], a, written="A")
    memory(bound.values["A"], 12, np.float16)[:] = np.arange(12)
    bound.copy_back()
    assert np.array_equal(a, np.arange(12).reshape(3, 4))


@pytest.mark.parametrize("shape", [(8, 3), (30,), (8, 4, 1)])
def test_arrays_that_are_no_whole_vectors_are_refused(shape: Any) -> None:
    error = refusal([tensor("A", 8, kind="float32x4")], np.zeros(shape, np.float32))
    assert error.code == "argument-shape" and error.found == str(shape)
    assert error.expected == (
        "(8,) of float32x4: 4 for 1 of them along the last axis, or an axis of their own"
    )


def test_vectors_lie_as_their_layout_says() -> None:
    columns = tensor("A", 2, 8, kind="float32x2", layout=TileLayout(S[(2, 8) : (1, 2)]))
    a = np.zeros((8, 2, 2), np.float32).transpose(1, 0, 2)
    assert take([columns], a).values["A"] == a.ctypes.data
    apart = np.zeros((2, 8, 4), np.float32)[:, :, ::2]
    assert refusal([columns], apart).code == "argument-shape"


@pytest.mark.parametrize(
    ("kind", "numbers", "bytes"),
    [
        ("float4_e2m1fn", [0, 0.5, 1, 1.5, -6, 6, -0.5], [0x10, 0x32, 0x7F, 0x09]),
        ("float6_e2m3fn", [0.125, 0.25, 0.375, 7.5, -7.5], [0x81, 0x30, 0x7C, 0x3F]),
        ("float6_e3m2fn", [28, -28], [0xDF, 0x0F]),
    ],
)
def test_numbers_below_a_byte_are_packed_and_unpacked(
    kind: str, numbers: list[float], bytes: list[int]
) -> None:
    a = np.array(numbers, np.float32).astype(getattr(ml_dtypes, kind))
    before = a.copy()
    bound = take([tensor("A", len(numbers), kind=kind)], a, written="A")
    assert memory(bound.values["A"], len(bytes), np.uint8).tolist() == bytes
    a[:] = 0
    bound.copy_back()
    assert np.array_equal(a.view(np.uint8), before.view(np.uint8))


@pytest.mark.parametrize("kind", [np.float32, np.int16, np.complex64, ml_dtypes.bfloat16])
def test_a_pointer_to_bytes_takes_any_array(kind: Any) -> None:
    handle = Var("h", PointerType(Space.GLOBAL, dtype("uint8")))
    a = np.zeros((3, 5), kind)
    assert take([handle], a).values["h"] == a.ctypes.data


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (np.zeros(4, np.float64), "argument-dtype"),
        (np.zeros(4, ">f4"), "argument-dtype"),
        (np.zeros(4, np.complex64), "argument-dtype"),
        (np.zeros(4, "M8[s]"), "argument-dtype"),
        (np.zeros((4, 1), np.float32), "argument-shape"),
        (np.zeros(5, np.float32), "argument-shape"),
        ([0.0] * 4, "argument-kind"),
        (np.float32(0), "argument-kind"),
        (None, "argument-kind"),
    ],
)
def test_a_wrong_array_is_refused_by_name(value: Any, code: str) -> None:
    error = refusal([tensor("A", 4)], value)
    assert error.code == code
    assert "'A'" in error.message and error.expected and error.found


def test_the_number_of_arguments_is_checked() -> None:
    error = refusal([tensor("A", 4), tensor("B", 4)], np.zeros(4, np.float32))
    assert error.code == "argument-count" and error.expected == "2: A, B" and error.found == "1"


# ---------------------------------------------------------------------------- symbols


def test_shape_symbols_are_solved() -> None:
    params = [tensor("A", N * 2), tensor("B", N, 3)]
    bound = take(params, np.zeros(10, np.float32), np.zeros((5, 3), np.float32))
    assert bound.values["n"] == 5


def test_contradicting_symbols_name_both_places() -> None:
    params = [tensor("A", N), tensor("B", 3, N)]
    error = refusal(params, np.zeros(4, np.float32), np.zeros((3, 5), np.float32))
    assert error.code == "argument-shape"
    assert "'B'" in error.message and error.hint == "n is 4 by axis 0 of 'A'"


def test_a_scalar_parameter_decides_a_shape() -> None:
    params = [tensor("A", N), scalar("n", "int32")]
    assert take(params, np.zeros(4, np.float32), 4).values["n"] == 4
    assert refusal(params, np.zeros(4, np.float32), 5).hint == "n is 5 by argument 'n'"


@pytest.mark.parametrize(
    ("kind", "most"), [("int32", 2**31 - 1), ("uint32", 2**32 - 1), ("int8", 127), ("uint8", 255)]
)
def test_an_extent_that_its_symbol_cannot_hold_is_refused(kind: str, most: int) -> None:
    symbol = Var("n", ScalarType(dtype(kind)))
    params = [tensor("A", 2, symbol, kind="uint8")]
    long, fits = (np.broadcast_to(np.uint8(0), (2, count)) for count in (most + 1, most))
    error = refusal(params, long)
    assert error.code == "argument-shape" and "'A'" in error.message and "axis 1" in error.message
    assert error.expected is not None and str(most) in error.expected
    assert most > 255 or take(params, fits).values["n"] == most


def test_an_extent_beyond_32_bits_is_known_by_a_symbol_of_64() -> None:
    symbol = Var("n", ScalarType(dtype("int64")))
    a = np.zeros((1 << 40, 0), np.float32)
    assert take([tensor("A", symbol, 0)], a).values["n"] == 1 << 40


# ---------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("int32", -(2**31), -(2**31)),
        ("uint32", np.uint32(7), 7),
        ("int32", True, 1),
        ("bool", 1, True),
        ("float32", 3, 3.0),
        ("float32", 0.1, float(np.float32(0.1))),
        ("float16", np.float64(0.5), 0.5),
        ("bfloat16", 1.00001, 1.0),
        ("float32", float("inf"), float("inf")),
    ],
)
def test_numbers_are_brought_to_their_type(kind: str, given: Any, value: Any) -> None:
    assert take([scalar("x", kind)], given).values["x"] == value


@pytest.mark.parametrize(
    ("kind", "given", "code"),
    [
        ("int32", 2**31, "argument-dtype"),
        ("uint8", -1, "argument-dtype"),
        ("bool", 2, "argument-dtype"),
        ("float16", 1e6, "argument-dtype"),
        ("float32", 10**400, "argument-dtype"),
        ("int32", 1.0, "argument-kind"),
        ("int32", "1", "argument-kind"),
        ("int32", np.zeros(1, np.int32), "argument-kind"),
    ],
)
def test_a_number_that_does_not_fit_is_refused(kind: str, given: Any, code: str) -> None:
    error = refusal([scalar("x", kind)], given)
    assert error.code == code and "'x'" in error.message


# ---------------------------------------------------------------------------- DLPack


class Exported:
    """An array that only DLPack shows."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, stream: int | None = None, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_dlpack_shows_memory_without_a_copy() -> None:
    a = np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2]
    bound = take([tensor("A", 3, 2, kind="int16")], Exported(a), written="A")
    gc.collect()
    memory(bound.values["A"], 6, np.int16)[:] = 9
    bound.copy_back()
    assert a.tolist() == [[9, 9]] * 3


def test_the_read_only_flag_of_dlpack_is_kept() -> None:
    a = np.zeros(4, np.float32)
    a.flags.writeable = False
    assert not take([tensor("A", 4)], Exported(a)).memories[0].writable
    assert refusal([tensor("A", 4)], Exported(a), written="A").code == "argument-read-only"


def test_another_device_is_refused() -> None:
    error = refusal([tensor("A", 4)], Exported(np.zeros(4, np.float32), (2, 1)))
    assert error.code == "argument-device" and error.found == "memory of cuda:1"


def test_a_capsule_that_is_refused_is_reported() -> None:
    class Closed(Exported):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("not now")

    error = refusal([tensor("A", 4)], Closed(np.zeros(4, np.float32)))
    assert error.code == "argument-kind" and error.found == "a Closed: not now"
    assert "'A'" in error.message


def test_a_pointer_takes_any_shape() -> None:
    pointer = Var("p", PointerType(Space.GLOBAL, dtype("float32")))
    a = np.zeros((3, 5), np.float32)
    assert take([pointer], a).memories[0].size == 60


TORCH_KINDS = ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "bool"]


@pytest.mark.parametrize("kind", TORCH_KINDS)
def test_tensors_of_torch_are_taken(kind: str) -> None:
    torch = pytest.importorskip("torch")
    t = torch.zeros((2, 3), dtype=getattr(torch, kind))
    bound = take([tensor("A", 2, 3, kind=kind)], t, written="A")
    assert bound.values["A"] == t.data_ptr()


def test_a_strided_tensor_of_torch_is_copied_back() -> None:
    torch = pytest.importorskip("torch")
    t = torch.zeros((3, 2), dtype=torch.bfloat16).T
    bound = take([tensor("A", 2, 3, kind="bfloat16")], t, written="A")
    memory(bound.values["A"], 6, ml_dtypes.bfloat16)[:] = 2
    bound.copy_back()
    assert t.float().tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("make", ["leaf", "parameter", "result"])
def test_a_tensor_that_requires_grad_is_read_and_written_where_nothing_is_recorded(
    make: str,
) -> None:
    torch = pytest.importorskip("torch")
    t = torch.zeros(4, requires_grad=True)
    t = {"leaf": t, "parameter": torch.nn.Parameter(torch.zeros(4)), "result": t * 2}[make]
    assert take([tensor("A", 4)], t).values["A"] == t.data_ptr()
    error = refusal([tensor("A", 4)], t, written="A")
    assert error.code == "argument-read-only" and "torch.no_grad()" in (error.hint or "")
    assert take([tensor("A", 4)], t.detach(), written="A").values["A"] == t.data_ptr()
    with torch.no_grad():
        assert take([tensor("A", 4)], t, written="A").values["A"] == t.data_ptr()


def test_tensors_that_lost_their_memory_are_refused() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.zeros(1024)
    view, rest = whole[512:516], whole[:4]
    whole.untyped_storage().resize_(0)
    for lost in (view, rest):
        error = refusal([tensor("A", 4)], lost)
        assert error.code == "argument-kind" and "lost its memory" in error.message
        assert "storage of 0 bytes" in (error.found or "")
    whole.untyped_storage().resize_(20)
    assert take([tensor("A", 4)], rest).values["A"] == whole.data_ptr()
    assert "of 20 bytes" in (refusal([tensor("A", 4)], view).found or "")


def test_a_tensor_without_elements_needs_no_memory() -> None:
    torch = pytest.importorskip("torch")
    assert take([tensor("A", 0)], torch.zeros(0)).memories[0].size == 0


def test_tensors_without_memory_are_called_what_they_are() -> None:
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch._subclasses.fake_tensor")

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function: Any, *_: Any, **__: Any) -> Any:
            raise NotImplementedError(function)

    with fake.FakeTensorMode():
        imagined = torch.zeros(4, device="cuda")
    for tensor_of, name in (
        (imagined, "FakeTensor"),
        (torch.zeros(4, device="meta"), "Tensor that only stands for one"),
        (Wrapper(torch.zeros(4)), "Wrapper, which wraps others"),
        (torch.zeros(4).to_sparse(), "torch.sparse_coo"),
    ):
        error = refusal([tensor("A", 4)], tensor_of)
        assert error.code == "argument-kind" and name in (error.found or "")
        assert "CPU" not in str(error)


def test_tensors_of_transformations_are_refused() -> None:
    torch = pytest.importorskip("torch")

    def ask(t: Any) -> Any:
        error = refusal([tensor("A", 4)], t)
        assert error.code == "argument-kind" and "torch.vmap" in (error.found or "")
        assert "custom_op" in (error.hint or "")
        return t.sum()

    torch.vmap(ask)(torch.zeros(2, 4))
    torch.func.grad(ask)(torch.zeros(4))
    torch.func.functionalize(ask)(torch.zeros(4))


class Shown:
    """An array that CUDA's interface for Python shows."""

    def __init__(self, array: np.ndarray, **changes: Any) -> None:
        self.array = array
        found = {**array.__array_interface__, **changes}
        self.__cuda_array_interface__ = found


@pytest.mark.parametrize(
    ("array", "changes", "code", "text"),
    [
        (np.zeros(4, ">f4"), {}, "argument-dtype", "byte order"),
        (np.zeros(4, "f4"), {"mask": np.zeros(4, bool)}, "argument-kind", "a masked one"),
        (np.zeros(4, "f4"), {"strides": (6,)}, "argument-kind", "strides of (6,) bytes"),
        (np.zeros(4, "f4"), {"stream": 0}, "argument-kind", "1 is the default stream"),
        (np.zeros(4, "f4"), {"data": (0, False)}, "argument-kind", "has no memory"),
        (np.zeros(4, "f4"), {"typestr": "float"}, "argument-dtype", "float64"),
    ],
)
def test_what_cuda_s_interface_cannot_mean_is_refused(
    array: np.ndarray, changes: dict[str, Any], code: str, text: str
) -> None:
    program = Program("kernel", (tensor("A", 4),), (), ())
    with pytest.raises(LaunchError) as caught:
        bind(program, (Shown(array, **changes),), frozenset(), "cuda")
    assert caught.value.code == code and text in str(caught.value)


def test_arrays_without_memory_are_refused() -> None:
    torch = pytest.importorskip("torch")
    lost = torch.zeros(4)
    lost.untyped_storage().resize_(0)
    shown = Exported(np.zeros(4, np.float32))
    shown.array = lost
    assert "has no memory" in refusal([tensor("A", 4)], shown).message


def test_tensors_that_are_yet_to_be_negated_or_conjugated_are_refused() -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([1 + 2j, 3 - 4j])
    for pending, remedy in ((z.conj().imag, "resolve_neg"), (z.conj(), "resolve_conj")):
        error = refusal([tensor("A", 2)], pending)
        assert error.code == "argument-kind" and f"{remedy}()" in (error.hint or "")
    done = z.conj().imag.resolve_neg()
    bound = take([tensor("A", 2)], done)
    assert memory(bound.values["A"], 2).tolist() == [-2.0, 4.0]
    assert take([tensor("A", 2)], z.imag.contiguous())
