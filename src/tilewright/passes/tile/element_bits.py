"""Elements of views of another type as those of the buffer: the bits of one, or of several.

May import `base` and `ir`. Registers that threads hold of a buffer are those of its own elements,
so a view of another width is read and written by way of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.dtypes import DType, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.ir.expressions import (
    Bitcast,
    Expr,
    Load,
    Reinterpret,
    as_constant,
    binary,
    cast,
    constant,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Store
from tilewright.ir.types import ScalarType

_BYTE = 8
# Follows an index of a view to what it is a view of, as far as elements stay elements.
Through = Callable[[Expr, Sequence[Expr]], tuple[Expr, tuple[Expr, ...]]]


def load_element(
    tensor: Expr, indices: Sequence[Expr], through: Through, location: Location | None
) -> Expr:
    """Read an element of a view from the buffer that it is a view of.

    Raises `FrontendError` (`not-supported`) for elements of fewer than 8 bits.
    """
    view, at = through(tensor, indices)
    kind = tensor_type(view).dtype
    if not isinstance(view, Reinterpret):
        return Load(view, at, ScalarType(kind), location=location)
    held = _held(view, location)
    ratio, many = kind.bits // held.bits, held.bits // kind.bits

    def word(*index: Expr) -> Expr:
        return _bits(load_element(view.source, index, through, location))

    if many >= 1:
        found = word(*at[:-1], binary("floordiv", at[-1], many))
        return _as(_part(found, at[-1], many, kind), kind)
    whole = _unsigned(kind)
    total: Expr = constant(0, whole)
    for number in range(ratio):
        part = cast(word(*at[:-1], at[-1] * ratio + number), whole)
        total = binary("or", total, binary("shl", part, constant(number * held.bits, whole)))
    return _as(total, kind)


def store_element(
    tensor: Expr,
    indices: Sequence[Expr],
    value: Expr,
    through: Through,
    location: Location | None,
) -> tuple[Store, ...]:
    """Write an element of a view to the buffer that it is a view of.

    Raises `FrontendError` (`not-supported`) where it is a part of the buffer's element only.
    """
    view, at = through(tensor, indices)
    if not isinstance(view, Reinterpret):
        return (Store(view, at, value, location=location),)
    held, kind = _held(view, location), tensor_type(view).dtype
    if held.bits > kind.bits:
        raise FrontendError(
            f"elements of {kind} are written into a fragment of {held}",
            code="not-supported",
            location=location,
            expected=f"a view whose elements are whole ones of {held}",
            hint=f"allocate the fragment as {kind}, and view it as {held} where it is read",
        )
    ratio = kind.bits // held.bits
    found: list[Store] = []
    for number in range(ratio):
        part = _as(_part(_bits(value), constant(number, at[-1].dtype), ratio, held), held)
        index = (*at[:-1], at[-1] * ratio + number)
        found += store_element(view.source, index, part, through, location)
    return tuple(found)


def _held(view: Reinterpret, location: Location | None) -> DType:
    """Give the type of the elements that a view's bits are taken of."""
    held, kind = tensor_type(view.source).dtype, view.type.dtype
    if min(held.bits, kind.bits) < _BYTE or held.lanes * kind.lanes != 1:
        raise FrontendError(
            f"a fragment of {held} is seen as elements of {kind}",
            code="not-supported",
            location=location,
            expected="elements of 8, 16, 32 or 64 bits",
            hint="view the buffer in shared memory that the fragment is copied from",
        )
    return held


def _unsigned(kind: DType) -> DType:
    return dtype(f"uint{kind.bits}")


def _bits(value: Expr) -> Expr:
    return _as(value, _unsigned(value.dtype))


def _as(bits: Expr, kind: DType) -> Expr:
    return bits if bits.dtype == kind else Bitcast(bits, ScalarType(kind), location=bits.location)


def _part(word: Expr, number: Expr, parts: int, kind: DType) -> Expr:
    """Take one of the parts of a word, that of the lowest bits first."""
    if parts == 1:
        return word
    place = binary("mod", number, parts)
    shift = cast(place * kind.bits, word.dtype)
    return cast(word if as_constant(shift) == 0 else binary("shr", word, shift), _unsigned(kind))
