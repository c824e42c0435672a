"""Values of a kernel as the Python code that is read meets them: wrappers of IR expressions.

May import `base`, `ir` and the modules of this folder below it. Operators build expressions,
at the place that is being read; nothing has a truth value, so Python code that needs one says
so at once.

    >>> wrap(x) + 1
    <int32 value x + 1>
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import INT32, DType, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend import views
from tilewright.frontend.builder import current, here
from tilewright.ir.expressions import (
    AddressOf,
    Constant,
    Expr,
    Intrinsic,
    Load,
    Offset,
    Operand,
    Read,
    as_constant,
    as_expr,
    binary,
    cast,
    int32,
    unary,
)
from tilewright.ir.statements import Store, Write
from tilewright.ir.types import PointerType, ScalarType, TensorType


class ScalarKind:
    """An element type as programs write it: `T.int32(x)`, `x: T.int32`, `v: T.float32[4]`."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, value: Any = 0) -> Value:
        if isinstance(value, str):
            return wrap(as_expr(float(value), self.dtype))
        return wrap(cast(lift(value, self.dtype), self.dtype, here()))

    def __getitem__(self, count: int | tuple[int, ...]) -> VectorKind:
        return VectorKind(self.dtype, count if isinstance(count, tuple) else (count,))

    def __eq__(self, other: object) -> bool:
        return as_dtype_or_none(other) == self.dtype

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"T.{self.dtype}"

    def __str__(self) -> str:
        return self.dtype.name


class VectorKind:
    """A local array as an annotation: `v: T.float32[4]`."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape


def as_dtype_or_none(value: object) -> DType | None:
    """Find the element type that a value names, or `None`."""
    match value:
        case ScalarKind():
            return value.dtype
        case DType():
            return value
        case str():
            try:
                return dtype(value)
            except FrontendError:
                return None
        case type() if value in (int, float, bool):
            return dtype(value.__name__)
        case _:
            return None


def as_dtype(value: object) -> DType:
    """Find the element type that a value names: text, `T.float16`, or a type itself.

    Raises `FrontendError` (`unknown-name`) if it names none.
    """
    found = as_dtype_or_none(value)
    return found if found is not None else dtype(str(value))


class Value:
    """A value of a kernel; see `Scalar`, `Pointer` and `Tensor`."""

    __slots__ = ("expr",)
    __hash__ = object.__hash__
    expr: Expr

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __repr__(self) -> str:
        return f"<{self.expr.type} value {self.expr}>"

    def __bool__(self) -> bool:
        raise not_constant(
            "the truth of this value is not known when the kernel is compiled",
            self.expr,
            hint="an `if` on it belongs into the kernel or a @T.inline function; "
            "in expressions use T.select, T.min, T.max, `and`, `or`",
        )

    def __iter__(self) -> Iterator[Any]:
        raise FrontendError(
            "a value of a kernel cannot be iterated over",
            code="unsupported-expression",
            location=here(),
            found=str(self.expr.type),
            hint="loop over its indices: `for i in range(n)`",
        )

    def __index__(self) -> int:
        value = as_constant(self.expr)
        if value is None:
            raise not_constant("a number is needed when the kernel is compiled", self.expr)
        return int(value)

    def __eq__(self, other: object) -> Any:
        return _compare("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _compare("ne", self, other)

    def __lt__(self, other: Any) -> Value:
        return operate("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return operate("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return operate("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return operate("ge", self, other)

    def __add__(self, other: Any) -> Value:
        return operate("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return operate("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return operate("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return operate("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return operate("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return operate("mul", other, self)

    def __floordiv__(self, other: Any) -> Value:
        return operate("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Value:
        return operate("floordiv", other, self)

    def __truediv__(self, other: Any) -> Value:
        return operate("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return operate("div", other, self)

    def __mod__(self, other: Any) -> Value:
        return operate("mod", self, other)

    def __rmod__(self, other: Any) -> Value:
        return operate("mod", other, self)

    def __and__(self, other: Any) -> Value:
        return operate("and", self, other)

    def __rand__(self, other: Any) -> Value:
        return operate("and", other, self)

    def __or__(self, other: Any) -> Value:
        return operate("or", self, other)

    def __ror__(self, other: Any) -> Value:
        return operate("or", other, self)

    def __xor__(self, other: Any) -> Value:
        return operate("xor", self, other)

    def __rxor__(self, other: Any) -> Value:
        return operate("xor", other, self)

    def __lshift__(self, other: Any) -> Value:
        return operate("shl", self, other)

    def __rlshift__(self, other: Any) -> Value:
        return operate("shl", other, self)

    def __rshift__(self, other: Any) -> Value:
        return operate("shr", self, other)

    def __rrshift__(self, other: Any) -> Value:
        return operate("shr", other, self)

    def __neg__(self) -> Value:
        return wrap(unary("neg", self.expr, here()))

    def __pos__(self) -> Value:
        return self

    def __invert__(self) -> Value:
        return wrap(unary("invert", self.expr, here()))

    def __abs__(self) -> Value:
        return wrap(Intrinsic("abs", (self.expr,), self.expr.type, location=here()))


class Scalar(Value):
    """A number, a vector of numbers or a truth value."""

    __slots__ = ()

    @property
    def dtype(self) -> str:
        """Name the element type."""
        return self.expr.dtype.name

    def astype(self, kind: Any) -> Value:
        """Convert to another element type."""
        return wrap(cast(self.expr, as_dtype(kind), here()))

    def __pow__(self, other: Any) -> Value:
        power = cast(lift(other, self.expr.dtype), self.expr.dtype)
        return wrap(Intrinsic("pow", (self.expr, power), self.expr.type, location=here()))


class Cell(Scalar):
    """A mutable cell, as the call gives it that declares it: an assignment names the cell."""

    __slots__ = ()


class Pointer(Value):
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

    def __getitem__(self, index: Any) -> Value:
        return wrap(Read(self._element(index), ScalarType(self.expr.dtype), location=here()))

    def __setitem__(self, index: Any, value: Any) -> None:
        stored = cast(lift(value, self.expr.dtype), self.expr.dtype)
        current().emit(Write(self._element(index), stored, location=here()))

    def _element(self, index: Any) -> Expr:
        return offset(self.expr, binary("mul", lift_index(index), self.expr.dtype.bytes))


class Tensor(Value):
    """A tensor or a view of one. `t[i, j]` is an element, `t[a:b, j]` a region."""

    __slots__ = ()

    @property
    def type(self) -> TensorType:
        """Give the IR type."""
        return views.tensor_type(self.expr)

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

    def ptr_to(self, indices: Sequence[Any]) -> Value:
        """Point at an element."""
        where = tuple(indices) if isinstance(indices, list | tuple) else (indices,)
        return wrap(address_of(self.expr, element_indices(self, where)))

    def view(self, *shape: Any, layout: Any = ...) -> Value:
        """View the storage under another shape, another layout, or as another element type."""
        if len(shape) == 1 and as_dtype_or_none(shape[0]) is not None:
            return wrap(views.reinterpret(self.expr, as_dtype(shape[0]), here()))
        if len(shape) == 1 and isinstance(shape[0], tuple | list):
            shape = tuple(shape[0])
        extents = [lift_index(extent) for extent in shape] or list(self.type.shape)
        if layout is ... or layout is None:
            return wrap(views.reshape(self.expr, extents, here()))
        return wrap(views.relayout(self.expr, extents, layout, here()))

    def permute(self, *axes: Any) -> Value:
        """View the axes in another order."""
        if len(axes) == 1 and isinstance(axes[0], tuple | list):
            axes = tuple(axes[0])
        return wrap(views.permute(self.expr, [int(axis) for axis in axes], here()))

    def rearrange(self, pattern: str, **sizes: int) -> Value:
        """Split, reorder and join axes as an einops pattern says."""
        known = {name: int(size) for name, size in sizes.items()}
        return wrap(views.rearrange(self.expr, pattern, known, here()))

    @property
    def sub(self) -> SubviewMaker:
        """View a part: an index drops an axis, a slice narrows it."""
        return SubviewMaker(self)

    def __getitem__(self, index: Any) -> Value:
        where = index if isinstance(index, tuple) else (index,)
        if any(isinstance(each, slice) for each in where):
            return Region(SubviewMaker(self)[where].expr)
        indices = element_indices(self, where)
        element = ScalarType(self.type.dtype)
        return wrap(Load(self.expr, indices, element, location=here()))

    def __setitem__(self, index: Any, value: Any) -> None:
        where = index if isinstance(index, tuple) else (index,)
        if any(isinstance(each, slice) for each in where) or isinstance(value, Tensor):
            raise FrontendError(
                "a region of a tensor cannot be assigned to, or assigned",
                code="type-mismatch",
                location=here(),
                hint="assign elements in a loop, or copy with T.cuda.tile.apply",
            )
        indices = element_indices(self, where)
        stored = cast(lift(value, self.type.dtype), self.type.dtype, here())
        current().emit(Store(self.expr, indices, stored, location=here()))


class Region(Tensor):
    """A box of a tensor, `t[a:b, c]`: an operand of tile operations only."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Value:
        raise _region_use("be indexed")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _region_use("be assigned to")


class CellTensor(Tensor):
    """A tensor of one element that programs read and assign to as a name."""

    __slots__ = ()

    def element(self) -> Value:
        """Give the one element."""
        return self[0]


class SubviewMaker:
    """What `t.sub` is: index it to narrow the tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, index: Any) -> Tensor:
        where = index if isinstance(index, tuple) else (index,)
        shape = self.tensor.type.shape
        if len(where) > len(shape):
            raise bad_arity(self.tensor, len(where))
        where += (slice(None),) * (len(shape) - len(where))
        axes = [_axis(each, whole) for each, whole in zip(where, shape, strict=True)]
        return Tensor(views.subview(self.tensor.expr, axes, here()))


def _axis(index: Any, whole: Expr) -> tuple[Expr, int, Expr | None]:
    """Read an index into a start, a step, and an extent or `None` for a dropped axis."""
    if not isinstance(index, slice):
        return lift_index(index), 1, None
    step = 1 if index.step is None else int(index.step)
    if step < 1:
        raise FrontendError(
            "the step of a view is positive", code="bad-index", location=here(), found=str(step)
        )
    start = int32(0) if index.start is None else lift_index(index.start)
    stop = whole if index.stop is None else lift_index(index.stop)
    length = difference(stop, start)
    extent = binary("floordiv", binary("add", length, step - 1, here()), step, here())
    found = as_constant(extent)
    if found is not None and found < 1:
        raise FrontendError("a view is empty", code="bad-index", location=here())
    return start, step, extent


def difference(stop: Expr, start: Expr) -> Expr:
    """Subtract, so that `x + n` minus `x` is `n` whatever `x` is."""
    terms = _terms(stop, 1)
    for atom, factor in _terms(start, -1).items():
        terms[atom] = terms.get(atom, 0) + factor
    terms = {atom: factor for atom, factor in terms.items() if factor}
    if len(terms) == 1 and None not in terms and set(terms.values()) == {1}:
        return next(atom for atom in terms if atom is not None)
    if not terms.keys() <= {None}:
        return binary("sub", stop, start, here())
    return int32(terms.get(None, 0))


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
    if op == "mul" and right is not None and isinstance(as_constant(right), int):
        return _terms(left, factor * int(as_constant(right) or 0))  # type: ignore[arg-type]
    return {value: factor}


def _region_use(what: str) -> FrontendError:
    return FrontendError(
        f"a region cannot {what}",
        code="bad-index",
        location=here(),
        hint="use t.sub[…] for a view, or t[i, j] for an element",
    )


# ---------------------------------------------------------------------------- lifting


def wrap(expr: Expr) -> Any:
    """Wrap an expression for Python code, by its type."""
    match expr.type:
        case TensorType():
            return Tensor(expr)
        case PointerType():
            return Pointer(expr)
        case ScalarType():
            return Scalar(expr)
        case _:
            return Value(expr)


def not_constant(message: str, expr: Expr, **more: Any) -> FrontendError:
    """Describe a value that should have been known when the kernel is compiled."""
    return FrontendError(
        message, code="not-constant", location=here(), found=f"{expr.type} {expr}", **more
    )


def operand(value: Any) -> Operand:
    """Give what the arithmetic of the IR takes: an expression or a Python number.

    Raises `FrontendError` (`type-mismatch`) for anything else.
    """
    match value:
        case Value():
            return value.expr
        case bool() | np.bool_():
            return bool(value)
        case numbers.Integral():
            return int(value)
        case numbers.Real():
            return float(value)
        case Expr():
            return value
        case _:
            raise FrontendError(
                "this is not a value of a kernel",
                code="type-mismatch",
                location=here(),
                expected="a number, or a value of a kernel",
                found=f"{type(value).__name__} {value!r}",
            )


def lift(value: Any, literal: DType | None = None) -> Expr:
    """Make an expression; a Python number gets the type `literal` if that holds its kind."""
    found = operand(value)
    if isinstance(found, Expr):
        return found
    if isinstance(found, float) and literal is not None and not literal.is_float:
        literal = None
    return as_expr(found, literal)


def lift_index(value: Any) -> Expr:
    """Make an integer expression, int32 where it is a literal.

    Raises `FrontendError` (`bad-index`) for what is no integer.
    """
    found = lift(value)
    if not isinstance(found.type, ScalarType) or not (
        found.dtype.is_integer or found.dtype.is_bool
    ):
        raise FrontendError(
            "an index is an integer",
            code="bad-index",
            location=here(),
            found=f"{found.type} {found}",
        )
    return cast(found, INT32) if found.dtype.is_bool else found


def operate(op: str, left: Any, right: Any) -> Any:
    """Build an operation of two values at the place that is being read."""
    return wrap(binary(op, operand(left), operand(right), here()))


def _compare(op: str, left: Any, right: Any) -> Any:
    if right is None or isinstance(right, str):
        return op == "ne"
    return operate(op, left, right)


def constant_int(value: Any, what: str) -> int:
    """Read a number that must be known when the kernel is compiled.

    Raises `FrontendError` (`not-constant`).
    """
    found = lift(value)
    number = as_constant(found)
    if number is None or not isinstance(found, Constant) or isinstance(number, float):
        raise not_constant(f"{what} is a constant integer", found)
    return int(number)


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


def address_of(tensor: Expr, indices: tuple[Expr, ...]) -> Expr:
    """Point at an element of a tensor."""
    type = views.tensor_type(tensor)
    pointer = PointerType(type.space, type.dtype, type.dtype.bytes)
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
