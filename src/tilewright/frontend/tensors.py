"""Tensors, views and pointers of a kernel as the Python code that is read meets them.

May import `base`, `ir` and `frontend.values`, `frontend.views`, `frontend.builder`.

    >>> t.view(4, 8).permute(1, 0)[i, j]
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend import views
from tilewright.frontend.builder import active, current, here
from tilewright.frontend.taking import taken
from tilewright.frontend.values import (
    Value,
    as_dtype,
    as_dtype_or_none,
    as_tuple,
    lift,
    lift_index,
    operate,
    stored,
    wrap,
)
from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Constant,
    Expr,
    Load,
    Offset,
    Read,
    Var,
    as_constant,
    binary,
    int32,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Store, Write
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType, Type


class Pointer(Value, of=PointerType):
    """An address in a space, with the element type there; indices count elements."""

    __slots__ = ()

    @property
    def dtype(self) -> str:
        """Name the type of the element that it points at."""
        return self.expr.dtype.name

    def scope(self) -> str:
        """Name the space that it points into."""
        return pointer_type(self.expr).space.value

    def __add__(self, other: Any) -> Value:
        return wrap(self._element(other))

    def __radd__(self, other: Any) -> Value:
        return wrap(self._element(other))

    def __sub__(self, other: Any) -> Value:
        if isinstance(other, Pointer):
            raise FrontendError(
                "the distance of two pointers is not computed",
                code="type-mismatch",
                location=here(),
                found=f"{self.expr.type} and {other.expr.type}",
                hint="keep the index, and point with t.ptr_to([i])",
            )
        return wrap(self._element(operate("sub", 0, lift(other))))

    def __getitem__(self, index: Any) -> Value:
        return taken(self.at(index))

    def at(self, index: Any) -> Value:
        """Give the element at an index, to be read where it is used."""
        return wrap(Read(self._element(index), ScalarType(self.expr.dtype), location=here()))

    def __setitem__(self, index: Any, value: Any) -> None:
        pointer, held = self._element(index), stored(value, self.expr.dtype)
        current().emit(Write(pointer, held, location=here()))

    def _element(self, index: Any) -> Expr:
        return offset(self.expr, binary("mul", lift_index(index), self.expr.dtype.bytes))


class Tensor(Value, of=TensorType):
    """A tensor or a view of one. `t[i, j]` is an element, `t[a:b, j]` a region."""

    __slots__ = ()

    @property
    def type(self) -> TensorType:
        """Give the IR type."""
        return tensor_type(self.expr)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Give the extents: numbers where they are known, else values."""
        return tuple(
            wrap(extent) if as_constant(extent) is None else as_constant(extent)
            for extent in self.type.shape
        )

    @property
    def ndim(self) -> int:
        """Count the axes."""
        return len(self.type.shape)

    @property
    def dtype(self) -> str:
        """Name the element type."""
        return self.type.dtype.name

    @property
    def layout(self) -> Any:
        """Give the layout, `None` where it is unspecified."""
        return self.type.layout

    @property
    def align(self) -> int:
        """Give the declared alignment of the storage in bytes."""
        return self.type.align

    def scope(self) -> str:
        """Name the space in which the tensor lies."""
        return self.type.space.value

    @property
    def data(self) -> Value:
        """Point at the first element."""
        return self.ptr_to([0] * self.ndim)

    def ptr_to(self, indices: Sequence[Any], align: int | None = None) -> Value:
        """Point at an element, which is known to be aligned to that many bytes."""
        where = as_tuple(indices)
        return wrap(address_of(self.expr, element_indices(self, where), align))

    def view(self, *shape: Any, layout: Any = ...) -> Value:
        """View the storage under another shape, another layout, or as another element type."""
        if len(shape) == 1 and (isinstance(shape[0], str) or as_dtype_or_none(shape[0])):
            return wrap(views.reinterpret(self.expr, as_dtype(shape[0]), here()))
        given = as_tuple(shape[0]) if len(shape) == 1 else shape
        extents = [lift_index(extent) for extent in given] or list(self.type.shape)
        if layout is ... or layout is None:
            return wrap(views.reshape(self.expr, extents, here()))
        return wrap(views.relayout(self.expr, extents, layout, here()))

    def permute(self, *axes: Any) -> Value:
        """View the axes in another order."""
        order = as_tuple(axes[0]) if len(axes) == 1 else axes
        return wrap(views.permute(self.expr, [int(axis) for axis in order], here()))

    def rearrange(self, pattern: str, **sizes: int) -> Value:
        """Split, reorder and join axes as an einops pattern says."""
        known = {name: int(size) for name, size in sizes.items()}
        return wrap(views.rearrange(self.expr, pattern, known, here()))

    @property
    def sub(self) -> SubviewMaker:
        """View a part: an index drops an axis, a slice narrows it."""
        return SubviewMaker(self)

    def __getitem__(self, index: Any) -> Value:
        return taken(self.at(index))

    def at(self, index: Any) -> Value:
        """Give an element, to be read where it is used, or a region."""
        where = as_tuple(index)
        if any(isinstance(each, slice) for each in where):
            return Region(SubviewMaker(self)[where].expr)
        indices = element_indices(self, where)
        element = ScalarType(self.type.dtype)
        return wrap(Load(self.expr, indices, element, location=here()))

    def __setitem__(self, index: Any, value: Any) -> None:
        where = as_tuple(index)
        if any(isinstance(each, slice) for each in where) or isinstance(value, Tensor):
            raise FrontendError(
                "a region of a tensor cannot be assigned to, or assigned",
                code="type-mismatch",
                location=here(),
                found=str(value.expr.type) if isinstance(value, Value) else None,
                hint="assign elements in a loop, or copy it: T.copy(…), in the simt dialect "
                "T.cuda.tile.apply(…)",
            )
        indices = element_indices(self, where)
        held = stored(value, self.type.dtype)
        current().emit(Store(self.expr, indices, held, location=here()))


class TensorMap(Value, of=TensorMapType):
    """A tensor map, or the room for one; a kernel points at it by `T.address_of`."""

    __slots__ = ()

    @property
    def var(self) -> Var:
        """Give the variable."""
        assert isinstance(self.expr, Var)
        return self.expr

    def __getitem__(self, index: Any) -> Any:
        raise FrontendError(
            "a tensor map has no elements: it describes those of its tensor",
            code="bad-index",
            location=here(),
            hint="copy by it: T.address_of(map) is the operand of a tensor copy",
        )


class Region(Tensor):
    """A box of a tensor, `t[a:b, c]`: an operand of tile operations only."""

    __slots__ = ()

    def at(self, index: Any) -> Value:
        raise _region_use("be indexed")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _region_use("be assigned to")


class CellTensor(Tensor):
    """A tensor of one element that programs read and assign to as a name."""

    __slots__ = ()

    def element(self) -> Value:
        """Give the one element."""
        return self.at(0)


class SubviewMaker:
    """What `t.sub` is: index it to narrow the tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, index: Any) -> Tensor:
        where = as_tuple(index)
        shape = self.tensor.type.shape
        if len(where) > len(shape):
            raise bad_arity(self.tensor, len(where))
        where += (slice(None),) * (len(shape) - len(where))
        builder = active()
        lenient = builder is not None and builder.lenient
        if lenient:
            where = tuple(map(_from_end, where, shape))
        axes = [_axis(each, whole) for each, whole in zip(where, shape, strict=True)]
        # What lies beyond the end of a tensor is not accessed there.
        inside = not lenient or self.tensor.type.space is not Space.GLOBAL
        return Tensor(views.subview(self.tensor.expr, axes, here(), inside))


def _from_end(index: Any, extent: Expr) -> Any:
    """Let constants that are negative count from the end, in an index or a slice."""
    if not isinstance(index, slice):
        return wrap(from_end(lift_index(index), extent))
    given = typing.cast("Any", index)
    start, stop = (
        None if each is None else wrap(from_end(lift_index(each), extent))
        for each in (given.start, given.stop)
    )
    step: Any = given.step
    return slice(start, stop, step)


def _axis(index: Any, whole: Expr) -> tuple[Expr, int, Expr | None]:
    """Read an index into a start, a step, and an extent or `None` for a dropped axis."""
    if not isinstance(index, slice):
        return lift_index(index), 1, None
    given = typing.cast("Any", index)
    step = 1 if given.step is None else int(given.step)
    if step < 1:
        raise FrontendError(
            "the step of a view is positive", code="bad-index", location=here(), found=str(step)
        )
    start = int32(0) if given.start is None else lift_index(given.start)
    stop = whole if given.stop is None else lift_index(given.stop)
    extent = _count(difference(stop, start), step)
    found = as_constant(extent)
    if found is not None and found < 1:
        raise FrontendError("a view is empty", code="bad-index", location=here())
    return start, step, extent


def _count(length: Expr, step: int) -> Expr:
    """Count the elements of a slice; `n` elements reach over `(n - 1) * step + 1`."""
    match length:
        case Binary(
            op="add",
            left=Binary(
                op="mul",
                left=Binary(op="sub", left=count, right=Constant(value=1)),
                right=Constant(value=by),
            ),
            right=Constant(value=1),
        ) if by == step:
            return count
        case _:
            return binary("floordiv", binary("add", length, step - 1, here()), step, here())


def difference(stop: Expr, start: Expr) -> Expr:
    """Subtract, so that `x + n` minus `x` is `n`, whatever `x` and `n` are, and by any names."""
    if isinstance(stop, Binary) and stop.op == "add" and stop.left == start:
        return stop.right
    terms = _terms(stop, 1)
    for atom, factor in _terms(start, -1).items():
        terms[atom] = terms.get(atom, 0) + factor
    terms = {atom: factor for atom, factor in terms.items() if factor}
    if len(terms) == 1 and None not in terms and set(terms.values()) == {1}:
        return next(atom for atom in terms if atom is not None)
    if terms.keys() <= {None}:
        return int32(terms.get(None, 0))
    builder = active()
    bound = {} if builder is None else builder.bound
    if any(isinstance(each, Var) and each.name in bound for each in terms):
        found = difference(substitute(stop, bound), substitute(start, bound))
        if as_constant(found) is not None:
            return found
    return binary("sub", stop, start, here())


def _terms(value: Expr, factor: int) -> dict[Expr | None, int]:
    """Write an expression as a sum of atoms with factors; `None` stands for 1."""
    from_constant = as_constant(value)
    if from_constant is not None:
        return {None: int(from_constant) * factor}
    op = getattr(value, "op", None)
    left, right = getattr(value, "left", None), getattr(value, "right", None)
    if op in ("add", "sub") and left is not None and right is not None:
        terms = _terms(left, factor)
        for atom, count in _terms(right, factor if op == "add" else -factor).items():
            terms[atom] = terms.get(atom, 0) + count
        return terms
    count = None if right is None else as_constant(right)
    if op == "mul" and left is not None and isinstance(count, int):
        return _terms(left, factor * int(count))
    return {value: factor}


def _region_use(what: str) -> FrontendError:
    return FrontendError(
        f"a region cannot {what}",
        code="bad-index",
        location=here(),
        hint="use t.sub[…] for a view, or t[i, j] for an element",
    )


# ---------------------------------------------------------------------------- places


def bad_arity(tensor: Tensor, count: int) -> FrontendError:
    """Describe a tensor indexed with too many or too few indices."""
    rank = tensor.ndim
    return FrontendError(
        f"a tensor of {rank} axes is indexed with {count}",
        code="bad-index",
        location=here(),
        expected=f"{rank} indices, for the shape {tensor.shape}",
        found=f"{count} indices",
        hint=f"t.sub[…] gives a view of the {rank - count} other axes" if count < rank else None,
    )


def element_indices(tensor: Tensor, where: tuple[Any, ...]) -> tuple[Expr, ...]:
    """Read the indices of one element.

    Raises `FrontendError` (`bad-index`) for the wrong number, or a constant out of range.
    """
    shape = tensor.type.shape
    if len(where) != len(shape):
        raise bad_arity(tensor, len(where))
    indices = tuple(lift_index(each) for each in where)
    builder = active()
    if builder is not None and builder.lenient:
        indices = tuple(map(from_end, indices, shape))
    for axis, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        number, bound = as_constant(index), as_constant(extent)
        if number is not None and (number < 0 or (bound is not None and number >= bound)):
            raise FrontendError(
                f"the index {number} leaves axis {axis} of the tensor",
                code="bad-index",
                location=here(),
                expected=f"0 … {int(bound) - 1}" if bound is not None else "0 or more",
                found=str(number),
            )
    return indices


def from_end(index: Expr, extent: Expr) -> Expr:
    """Give the index that a negative constant, which counts from the end, stands for."""
    number = as_constant(index)
    return binary("add", extent, index, here()) if number is not None and number < 0 else index


def address_of(tensor: Expr, indices: tuple[Expr, ...], align: int | None = None) -> Expr:
    """Point at an element of a tensor."""
    type = tensor_type(tensor)
    pointer = PointerType(type.space, type.dtype, type.dtype.bytes if align is None else align)
    return AddressOf(tensor, indices, pointer, location=here())


def pointer_type(pointer: Expr) -> PointerType:
    """Give the type of a pointer."""
    assert isinstance(pointer.type, PointerType)
    return pointer.type


def offset(pointer: Expr, count: Expr) -> Expr:
    """Move a pointer by a number of bytes."""
    number = as_constant(count)
    if number == 0:
        return pointer
    old = pointer_type(pointer)
    align = min(old.align, old.dtype.bytes)
    if number is not None:
        align = min(old.align, int(number) & -int(number))
    moved = PointerType(old.space, old.dtype, align)
    return Offset(pointer, count, moved, location=here())


def converted(value: Any, type: Type) -> Value:
    """Convert a value to a type: a number as an assignment does, a pointer to fewer alignments.

    A tensor may be laid out in any way where the type says nothing of it. Raises
    `FrontendError` (`type-mismatch`).
    """
    if isinstance(type, ScalarType):
        return wrap(stored(value, type.dtype))
    found = value.expr.type if isinstance(value, Value) else None
    match type, found:
        case PointerType(), PointerType():
            same = (type.space, type.dtype) == (found.space, found.dtype)
            if same and found.align > type.align:
                return wrap(Offset(value.expr, int32(0), type, location=here()))
        case TensorType(layout=layout), TensorType():
            known = found if layout is not None else replace(found, layout=None)
            found = replace(known, align=type.align) if type.align <= found.align else known
        case _:
            pass
    if isinstance(value, Value) and found == type:
        return value
    raise FrontendError(
        "this is of another type than is stated",
        code="type-mismatch",
        location=here(),
        expected=str(type),
        found=str(value.expr.type) if isinstance(value, Value) else repr(value),
    )


def space_named(scope: str) -> Space:
    """Find the space of a scope's name.

    Raises `FrontendError` (`unknown-name`).
    """
    aliases = {"shared.dyn": "shared", "shared::cta": "shared", "shared::cluster": "shared_cluster"}
    for space in Space:
        if space.value == aliases.get(scope, scope):
            return space
    raise FrontendError(
        f"there is no scope {scope!r}",
        code="unknown-name",
        location=here(),
        expected=", ".join(space.value for space in Space),
    )
