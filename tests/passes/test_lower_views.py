"""Tensors and views: the accesses they become, and the law that no view changes an address."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_programs import (
    INT,
    body_of,
    box,
    form,
    kind_of,
    line,
    load,
    local,
    param,
    permute,
    program,
    reinterpret,
    relayout,
    reshape,
    scalar,
    shape_of,
    shared,
    warp_matmul,
)

from tilewright.base.dtypes import FLOAT16, FLOAT32, INT64, UINT8, UINT16, UINT32, UINT64, DType
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Bitcast,
    Cast,
    Constant,
    Expr,
    Load,
    Offset,
    Read,
    Unary,
    Var,
    constant,
    int32,
)
from tilewright.ir.printer import print_program, print_stmt
from tilewright.ir.shapes import static_shape
from tilewright.ir.statements import Allocate, Assign, Declare, Instruct, Stmt, Store, Write
from tilewright.ir.types import PointerType, ScalarType, TensorType
from tilewright.layout import (
    ComposeLayout,
    S,
    TileLayout,
    default_layout,
    image,
    laneid,
    mma_shared_layout,
)
from tilewright.passes.analysis.evaluation import Environment, evaluate
from tilewright.passes.lower_tiles import lower_tiles
from tilewright.passes.lower_views import lower_views
from tilewright.passes.places import root_of, storage_bytes

X = Var("x", ScalarType(FLOAT32))
ROW, COLUMN = scalar("i"), scalar("j")


def lowered(*body: Stmt, params: tuple[Var, ...] = ()) -> list[str]:
    found = lower_views(program(body, params))
    return [print_stmt(stmt) for stmt in body_of(found)]


def test_before_and_after() -> None:
    text = print_program(lower_views(lower_tiles(warp_matmul())))
    row = "((lane + 32 * q) // 16 * 16 + (lane + 32 * q) % 16) * 2"
    assert (
        f'T.write(T.offset(a.ptr_to([0, 0], align=16), {row}, "float16", 2), '
        f'T.read(T.offset(A, {row}, "float16", 2)))' in text
    )
    assert "T.kernel_params(A=T.Ptr(" in text and ".view(" not in text


def test_parameters_become_pointers_and_stay_tensors_of_the_host() -> None:
    a = param("A", (4, 4), FLOAT16, align=16)
    found = lower_views(program((Store(a, (ROW, COLUMN), load(a, COLUMN, ROW)),), (a, ROW, COLUMN)))
    assert found.params == (a, ROW, COLUMN)
    assert found.kernels[0].params[0].type == PointerType(Space.GLOBAL, FLOAT16, 16)
    assert found.kernels[0].params[1:] == (ROW, COLUMN)


# ---- addresses


def offset_of(view: Expr, indices: tuple[Expr, ...], variables: dict[Var, Any]) -> Any:
    """Lower a load, and evaluate the offset in bytes of what is read."""
    found = lower_views(program((Store(view, indices, load(view, *indices)),)))
    (write,) = body_of(found)
    assert isinstance(write, Write) and isinstance(write.value, Read)
    pointer = write.value.pointer
    if not isinstance(pointer, Offset):
        return 0
    assert not isinstance(pointer.pointer, Offset)
    return evaluate(pointer.bytes, Environment(variables))


DTYPES = {1: UINT8, 2: UINT16, 4: UINT32, 8: UINT64}


@st.composite
def chains(draw: st.DrawFn) -> tuple[Expr, np.ndarray]:
    """Draw a view of a shared buffer, and where its elements lie, found by NumPy alone."""
    extents = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3))
    extents[-1] = draw(st.sampled_from([4, 8, 16]))
    plain = default_layout(extents)
    order = draw(st.permutations(range(len(extents))))
    strides = [0] * len(extents)
    for axis in order:
        strides[axis] = prod(extents[other] for other in order[order.index(axis) + 1 :])
    layout = draw(
        st.sampled_from(
            [
                plain,
                TileLayout(S[tuple(extents) : tuple(strides)] + 5),
                ComposeLayout(3, 2, 2, plain),
            ]
        )
    )
    size = draw(st.sampled_from([2, 4]))
    view: Expr = shared("buffer", extents, DTYPES[size], layout=layout)
    address = size * image(layout, extents)["m"]
    for _ in range(draw(st.integers(0, 4))):
        view, address = draw(steps(view, address))
    return view, address


@st.composite
def steps(draw: st.DrawFn, view: Expr, address: np.ndarray) -> tuple[Expr, np.ndarray]:
    shape = address.shape
    kinds = ["reshape", "permute", "box", "narrower"]
    match draw(st.sampled_from(kinds)):
        case "reshape":
            new = draw(factorings(address.size))
            return reshape(view, *new), address.reshape(new)
        case "permute":
            axes = draw(st.permutations(range(len(shape))))
            return permute(view, *axes), address.transpose(axes)
        case "narrower" if kind_of(view).dtype.bytes > 1:
            size = kind_of(view).dtype.bytes // 2
            halves = address[..., None] + np.array([0, size])
            return reinterpret(view, DTYPES[size]), halves.reshape(*shape[:-1], -1)
        case _:
            parts: list[Any] = []
            slices: list[Any] = []
            for axis, extent in enumerate(shape):
                start = draw(st.integers(0, extent - 1))
                if axis < len(shape) - 1 and draw(st.booleans()):
                    parts.append(start)
                    slices.append(start)
                    continue
                step = draw(st.integers(1, 2))
                count = draw(st.integers(1, (extent - 1 - start) // step + 1))
                parts.append((start, count, step))
                slices.append(slice(start, start + (count - 1) * step + 1, step))
            return box(view, *parts), address[tuple(slices)]


@st.composite
def factorings(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    shape: list[int] = []
    while size > 1 and len(shape) < 3:
        factor = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        shape.append(factor)
        size //= factor
    return (*shape, size)


@settings(max_examples=150, deadline=None)
@given(chains())
def test_addresses_of_views_are_those_of_their_elements(chain: tuple[Expr, np.ndarray]) -> None:
    view, address = chain
    axes = [scalar(f"i{axis}") for axis in range(address.ndim)]
    grid = dict(zip(axes, np.indices(address.shape, sparse=True), strict=True))
    found = offset_of(view, tuple(axes), dict(grid))
    np.testing.assert_array_equal(np.broadcast_to(found, address.shape), address)


@settings(max_examples=150, deadline=None)
@given(chains(), st.data())
def test_an_index_out_of_range_leads_out_of_the_storage(
    chain: tuple[Expr, np.ndarray], data: st.DataObject
) -> None:
    """Whatever views are taken, and along axes of extent 1 too: the check of bounds must see it."""
    view, address = chain
    axes = [scalar(f"i{axis}") for axis in range(address.ndim)]
    at = dict.fromkeys(axes, 0)
    at[data.draw(st.sampled_from(axes))] = data.draw(st.sampled_from([-(1 << 16), 1 << 16]))
    assert not 0 <= offset_of(view, tuple(axes), at) < storage_bytes(kind_of(root_of(view)))


def test_wider_elements_begin_where_their_first_does() -> None:
    halves = shared("s", (4, 8), FLOAT16)
    view = reinterpret(halves, UINT32)
    grid = dict(zip((ROW, COLUMN), np.indices((4, 4), sparse=True), strict=True))
    expected = 16 * np.arange(4)[:, None] + 4 * np.arange(4)
    np.testing.assert_array_equal(offset_of(view, (ROW, COLUMN), dict(grid)), expected)


def test_a_relayout_begins_where_its_source_does() -> None:
    source = box(shared("s", (8, 16), FLOAT16), (2, 4), (8, 8))
    view = relayout(source, (4, 2), TileLayout(S[(4, 2) : (1, 16)]))
    expected = 2 * (2 * 16 + 8 + np.arange(4)[:, None] + 16 * np.arange(2))
    grid = dict(zip((ROW, COLUMN), np.indices((4, 2), sparse=True), strict=True))
    np.testing.assert_array_equal(offset_of(view, (ROW, COLUMN), dict(grid)), expected)


@pytest.mark.parametrize("layout", ["default", mma_shared_layout("float16", 3, (8, 64))])
def test_wider_elements_may_start_at_a_multiple_of_their_width(layout: object) -> None:
    halves = shared("s", (8, 64), FLOAT16, layout=layout)
    view = reinterpret(box(halves, ROW, (8 * COLUMN, 8)), UINT32)
    assert lowered(Store(view, (int32(1),), constant(0, UINT32)))


@pytest.mark.parametrize(
    ("narrow", "found"),
    [
        (permute(shared("s", (8, 4), FLOAT16), 1, 0), "elements that lie 8 bytes apart"),
        (box(shared("s", (16,), FLOAT16), (0, 4, 2)), "elements that lie 4 bytes apart"),
        (box(shared("s", (16,), FLOAT16), (1, 4)), "some that begin between multiples of 4 bytes"),
        (
            box(shared("s", (16,), FLOAT16), (ROW, 4)),
            "some that begin between multiples of 4 bytes",
        ),
        (
            shared("s", (4, 6), FLOAT16, layout=TileLayout(S[(4, 6) : (7, 1)])),
            "some that begin between multiples of 4 bytes",
        ),
    ],
)
def test_torn_elements_are_refused(narrow: Expr, found: str) -> None:
    view = reinterpret(narrow, UINT32)
    at = (int32(0),) * len(kind_of(view).shape)
    with pytest.raises(FrontendError) as caught:
        lowered(Store(view, at, constant(0, UINT32), location=line(6)))
    assert (caught.value.code, caught.value.location) == ("bad-view", line(6))
    assert caught.value.found == found


# ---- types of pointers and indices


def read_pointer(view: Expr, *indices: Expr, params: tuple[Var, ...] = ()) -> Offset:
    cell = Var("cell", ScalarType(view.dtype))
    found = lower_views(program((Assign(cell, load(view, *indices)),), params))
    (stmt,) = body_of(found)
    assert isinstance(stmt, Assign) and isinstance(stmt.value, Read)
    assert isinstance(stmt.value.pointer, Offset)
    return stmt.value.pointer


def test_alignment_is_what_is_declared_and_divides_the_offset() -> None:
    words = shared("s", (64,), UINT32, align=32)
    assert read_pointer(words, 4 * ROW).type.align == 16
    assert read_pointer(words, ROW).type.align == 4
    assert read_pointer(words, 1024 * ROW).type.align == 32


def test_large_tensors_are_addressed_by_64_bits() -> None:
    large = param("L", (1 << 15, 1 << 15), FLOAT32)
    small = param("S", (1 << 14, 1 << 14), FLOAT16)
    assert read_pointer(large, ROW, COLUMN, params=(large, ROW, COLUMN)).bytes.dtype == INT64
    assert read_pointer(small, ROW, COLUMN, params=(small, ROW, COLUMN)).bytes.dtype == INT.dtype
    whole = evaluate(
        read_pointer(large, ROW, COLUMN, params=(large, ROW, COLUMN)).bytes,
        Environment({ROW: 32767, COLUMN: 5}),
    )
    assert whole == 4 * (32767 * 32768 + 5)


def test_symbolic_shapes_are_row_major() -> None:
    n = scalar("n")
    kind = TensorType(shape_of(n, n), FLOAT32, Space.GLOBAL)
    pointer = read_pointer(Var("A", kind), ROW, COLUMN)
    assert pointer.bytes.dtype == INT64
    assert evaluate(pointer.bytes, Environment({ROW: 3, COLUMN: 4, n: 100_000})) == 4 * (
        300_000 + 4
    )


def test_addresses_keep_the_type_that_they_were_given() -> None:
    words = shared("s", (64,), UINT32, align=32)
    pointer = PointerType(Space.SHARED, UINT32, 16)
    (stmt,) = body_of(
        lower_views(program((Assign(Var("p", pointer), AddressOf(words, (4 * ROW,), pointer)),)))
    )
    assert isinstance(stmt, Assign) and stmt.value.type == pointer


# ---- local tensors


def test_local_tensors_become_arrays_of_one_axis() -> None:
    layout = TileLayout(S[(2, 3) : (1, 4)])
    tile = local("t", (2, 3), FLOAT32, layout=layout)
    assert lowered(Allocate(tile), Store(tile, (ROW, COLUMN), X)) == [
        't = T.alloc_local((10,), "float32", layout=None, align=0)',
        "t[i + j * 4] = x",
    ]


def test_local_elements_of_the_same_width_are_reinterpreted() -> None:
    tile = local("t", (4,), UINT32)
    view = reinterpret(tile, FLOAT32)
    (text,) = lowered(Store(view, (int32(1),), load(view, int32(2)) * X))
    assert "t[1] = T.reinterpret" in text and "t[2]" in text


def bits_of(value: Expr, array: list[int], environment: Environment) -> int:
    """Evaluate an expression over an array of integers."""
    match value:
        case Load():
            index = evaluate(value.indices[0], environment)
            assert index is not None
            return array[int(index)]
        case Bitcast():
            return bits_of(value.operand, array, environment)
        case Constant():
            return int(value.value)
        case Cast():
            return bits_of(value.operand, array, environment) & _mask(value)
        case Unary(op="invert"):
            return ~bits_of(value.operand, array, environment) & _mask(value)
        case Binary():
            left = bits_of(value.left, array, environment)
            right = bits_of(value.right, array, environment)
            return BITWISE[value.op](left, right) & _mask(value)
        case _:
            raise AssertionError(value)


BITWISE = {"and": int.__and__, "or": int.__or__, "shl": int.__lshift__, "shr": int.__rshift__}


def _mask(value: Expr) -> int:
    return (1 << value.dtype.bits) - 1


@pytest.mark.parametrize(
    ("own", "seen"), [(UINT32, UINT16), (UINT32, UINT8), (UINT8, UINT32), (UINT16, UINT64)]
)
def test_local_elements_of_another_width(own: DType, seen: DType) -> None:
    count = 8
    tile = local("t", (count,), own)
    view = reinterpret(tile, seen)
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, count * own.bytes, dtype=np.uint8)
    before = [int(each) for each in raw.view(own.numpy)]
    wanted = [int(each) for each in raw.view(seen.numpy)]
    for index in range(len(wanted)):
        (read,) = body_of(lower_views(program((Assign(scalar("c", seen), load(view, index)),))))
        assert isinstance(read, Assign)
        assert bits_of(read.value, before, Environment()) == wanted[index]
        new = int(rng.integers(0, 1 << min(8 * seen.bytes, 62)))
        written = body_of(
            lower_views(program((Store(view, shape_of(index), constant(new, seen)),)))
        )
        after = list(before)
        for stmt in written:
            assert isinstance(stmt, Store)
            at = static_shape(stmt.indices)
            assert at is not None
            after[at[0]] = bits_of(stmt.value, after, Environment())
        expected = raw.view(seen.numpy).copy()
        expected[index] = new
        assert after == [int(each) for each in expected.view(own.numpy)]


def test_registers_of_other_threads_are_not_indexed() -> None:
    view = relayout(local("t", (4,), UINT32), (32, 4), TileLayout(S[(32, 4) : (1 @ laneid, 1)]))
    with pytest.raises(FrontendError) as caught:
        lowered(Store(view, (ROW, COLUMN), constant(0, UINT32), location=line(8)))
    assert caught.value.code == "bad-index" and caught.value.location == line(8)
    assert 'layout="default"' in (caught.value.hint or "")


# ---- instructions


def test_outputs_are_written_in_place_where_they_can_be() -> None:
    words = local("w", (4,), UINT32)
    target = load(reinterpret(words, FLOAT32), 2)
    source = AddressOf(shared("s", (4,), FLOAT32), (ROW,), PointerType(Space.SHARED, FLOAT32, 4))
    (only,) = body_of(lower_views(program((Instruct(form("ld.shared.b32"), (target, source)),))))
    assert isinstance(only, Instruct)
    (place, _) = only.operands
    assert isinstance(place, Load) and place.dtype == UINT32


def test_other_outputs_go_through_a_cell() -> None:
    words = local("w", (4,), FLOAT16)
    target = load(reinterpret(words, UINT32), 1)
    source = AddressOf(shared("s", (4,), FLOAT32), (ROW,), PointerType(Space.SHARED, FLOAT32, 4))
    found = body_of(
        lower_views(program((Instruct(form("ld.shared.b32"), (target, source), location=line(3)),)))
    )
    assert [type(stmt) for stmt in found] == [Declare, Instruct, Store, Store]
    declare, issued = found[:2]
    assert isinstance(declare, Declare) and isinstance(issued, Instruct)
    assert issued.operands[0] == declare.var
    assert all(stmt.location == line(3) for stmt in found)
