"""Vectors of the dialect: made of numbers, taken apart, read and written under a mask.

May import `base`, `ir` and the modules of this folder below it. Arithmetic on vectors is element
by element (`ir.expressions.lanewise`).

    pair = T.shuffle([x, y], [0, 1])
    T.vector_low(A[i]) + T.broadcast(2.0, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from tilewright.base.dtypes import VECTOR_LANES
from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.tensors import Tensor, element_indices
from tilewright.frontend.values import (
    Value,
    as_dtype,
    as_tuple,
    as_vector,
    constant_int,
    lift,
    wrap,
)
from tilewright.ir import expressions as ir
from tilewright.ir.expressions import Expr, Load, lanes_of
from tilewright.ir.statements import If
from tilewright.ir.types import ScalarType


def broadcast(value: Any, lanes: Any) -> Any:
    """Make a vector of equal elements, 2 to 64 of them.

    Raises `FrontendError` (`bad-call`) for another number of elements.
    """
    count = _length(lanes, 1)
    return wrap(ir.broadcast(_number(lift(value), 0), count, here()))


def ramp(base: Any, stride: Any, lanes: Any) -> Any:
    """Make the vector base, base + stride, base + 2·stride, …

    Raises as `broadcast` does.
    """
    count = _length(lanes, 2)
    first, step = (_number(lift(each), at) for at, each in enumerate((base, stride)))
    steps = [ir.binary("mul", step, lane, here()) for lane in range(count)]
    return wrap(ir.shuffle([ir.binary("add", first, each, here()) for each in steps], range(count)))


def shuffle(vectors: Sequence[Any], indices: Sequence[Any]) -> Any:
    """Take elements of vectors and numbers, laid end to end, by constant indices.

    One index gives a number, several a vector. Raises `FrontendError` (`bad-call`, `bad-index`,
    `type-mismatch`).
    """
    sources = [_vector(each) for each in as_tuple(vectors)]
    places = [constant_int(each, "a place in a shuffle") for each in as_tuple(indices)]
    kinds = {each.dtype.scalar for each in sources}
    count = sum(each.dtype.lanes for each in sources)
    if len(kinds) != 1:
        raise FrontendError(
            "the elements that are shuffled have one type",
            code="type-mismatch",
            location=argument_place(0),
            found=", ".join(sorted(map(str, kinds))) or "no vector",
        )
    if len(places) != 1 and len(places) not in VECTOR_LANES:
        raise _bad_length(len(places), 1)
    if wrong := [place for place in places if not 0 <= place < count]:
        raise FrontendError(
            f"there is no element {wrong[0]} to take",
            code="bad-index",
            location=argument_place(1),
            expected=f"0 … {count - 1}",
            found=str(wrong[0]),
        )
    ends = [*accumulate((each.dtype.lanes for each in sources), initial=0)]
    for at, source in enumerate(sources):
        if sum(ends[at] <= place < ends[at + 1] for place in places) > 1:
            sources[at] = as_vector(source)
    return wrap(ir.shuffle(sources, places, here()))


def vector_low(vec: Any, *, ty: Any = None) -> Any:
    """Take the first half of a vector."""
    return _half(vec, ty, 0)


def vector_high(vec: Any, *, ty: Any = None) -> Any:
    """Take the second half of a vector."""
    return _half(vec, ty, 1)


def vector_combine(low: Any, high: Any, *, ty: Any = None) -> Any:
    """Put two vectors, or two numbers, of one type after one another."""
    sources = [_settled(each) for each in (low, high)]
    if sources[0].type != sources[1].type:
        raise FrontendError(
            "the halves of a vector have one type",
            code="type-mismatch",
            location=argument_place(1),
            expected=str(sources[0].type),
            found=str(sources[1].type),
        )
    return _typed(ir.shuffle(sources, range(2 * sources[0].dtype.lanes), here()), ty)


def masked_load(tensor: Any, *where: Any, ty: Any = None) -> Any:
    """Read elements of a tensor where a mask holds, and 0 elsewhere, where nothing is read.

    `where` are the indices, then the mask, a vector of booleans. The last index is a vector, or
    the first of so many consecutive ones. Raises `FrontendError` (`operand-type`, `bad-index`).
    """
    places, mask = _masked(tensor, where, 1)
    zero = ir.constant(0, as_dtype(tensor.dtype))
    kind = ScalarType(zero.dtype)
    found: list[Expr] = []
    for place, holds in zip(places, mask, strict=True):
        element = Load(tensor.expr, element_indices(tensor, place), kind, location=here())
        found.append(ir.select(holds, element, zero, here()))
    return _typed(ir.shuffle(found, range(len(found)), here()), ty)


def masked_store(tensor: Any, value: Any, *where: Any) -> None:
    """Write the elements of a vector to a tensor where a mask holds; see `masked_load`."""
    places, mask = _masked(tensor, where, 2)
    kind = as_dtype(tensor.dtype).vector(len(mask))
    stored = _held(as_vector(ir.cast(as_vector(lift(value)), kind, here())))
    builder = current()
    for lane, (place, holds) in enumerate(zip(places, mask, strict=True)):
        with builder.block() as body:
            tensor[place] = wrap(ir.shuffle((stored,), (lane,)))
        builder.emit(If(holds, tuple(body), location=here()))


def _masked(
    tensor: Any, where: tuple[Any, ...], first: int
) -> tuple[list[tuple[Any, ...]], list[Expr]]:
    """Give the indices of each element, and the condition under which it is touched."""
    if not isinstance(tensor, Tensor):
        raise _wrong("a tensor is expected", 0, "a tensor or a view of one", tensor)
    if len(where) < 2:
        raise _wrong("the indices and a mask are expected", first, "t, i, mask", where)
    *outer, last, mask = where
    condition = _held(_settled(mask))
    count = condition.dtype.lanes
    if not condition.dtype.is_bool or count == 1:
        place = first + len(where) - 1
        raise _wrong("the mask is a vector of booleans", place, "as T.ramp(…) < n gives", mask)
    index = _held(_settled(last))
    if index.dtype.lanes == 1:
        index = ramp(last, 1, count).expr
    if index.dtype.lanes != count:
        place = first + len(where) - 2
        raise _wrong("there are as many indices as the mask has elements", place, str(count), last)
    lanes = range(count)
    columns, holds = (
        [ir.shuffle((each,), (lane,)) for lane in lanes] for each in (index, condition)
    )
    settled = [wrap(_held(lift(each))) for each in outer]
    return [(*settled, wrap(each)) for each in columns], holds


def _held(value: Expr) -> Expr:
    """Bind what a store between two evaluations could change."""
    builder = current()
    return builder.bind("held", value) if builder.reads_state(value) else value


def _half(vec: Any, ty: Any, half: int) -> Any:
    found = _settled(vec)
    count = found.dtype.lanes // 2
    if not count:
        raise _wrong("a number has no halves", 0, "a vector", vec)
    return _typed(ir.shuffle((found,), range(half * count, (half + 1) * count), here()), ty)


def _typed(value: Expr, ty: Any) -> Any:
    """Give a vector, whose type a program may state."""
    if ty is not None and as_dtype(ty) != value.dtype:
        raise FrontendError(
            "the result has another type than is stated",
            code="type-mismatch",
            location=argument_place("ty"),
            expected=str(value.dtype),
            found=str(as_dtype(ty)),
        )
    return wrap(value)


def _settled(value: Any) -> Expr:
    return as_vector(_vector(value))


def _vector(value: Any) -> Expr:
    found = lift(value)
    if not isinstance(found.type, ScalarType):
        raise _wrong("a number or a vector is expected", 0, "a number or a vector", value)
    return found


def _number(value: Expr, position: int) -> Expr:
    if not isinstance(value.type, ScalarType) or lanes_of(value) != 1:
        raise _wrong("a number is expected", position, "a number", wrap(value))
    return value


def _length(lanes: Any, position: int) -> int:
    count = constant_int(lanes, "the length of a vector")
    if count not in VECTOR_LANES:
        raise _bad_length(count, position)
    return count


def _bad_length(count: int, position: int) -> FrontendError:
    return FrontendError(
        f"there are no vectors of {count} elements",
        code="bad-call",
        location=argument_place(position),
        expected=", ".join(map(str, VECTOR_LANES)),
        found=str(count),
    )


def _wrong(message: str, position: int, expected: str, found: Any) -> FrontendError:
    return FrontendError(
        message,
        code="operand-type",
        location=argument_place(position),
        expected=expected,
        found=str(found.expr.type) if isinstance(found, Value) else repr(found),
    )


FUNCTIONS: dict[str, Any] = {
    each.__name__: each
    for each in (
        *(broadcast, ramp, shuffle, vector_low, vector_high, vector_combine),
        *(masked_load, masked_store),
    )
}
