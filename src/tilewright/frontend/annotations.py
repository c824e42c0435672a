"""Types as programs write them: of parameters, of allocations, and the symbols in shapes.

May import `base`, `ir` and `frontend.values`, `frontend.views`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import UINT8, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, here
from tilewright.frontend.tensors import space_named
from tilewright.frontend.values import ScalarKind, Value, as_dtype, as_tuple, lift_index, wrap
from tilewright.frontend.views import resolve_layout
from tilewright.ir.expressions import Expr, Var, as_constant
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType, Type
from tilewright.ir.visit import variables


@dataclass(frozen=True)
class TensorKind:
    """A tensor as an annotation: `T.Tensor(shape, dtype)`."""

    type: TensorType


@dataclass(frozen=True)
class PointerKind:
    """A pointer as an annotation: `T.Ptr(T.float16)`, `T.handle`."""

    type: PointerType

    def __call__(self, *args: Any, **kwargs: Any) -> PointerKind | TensorMapKind:
        return pointer(*args, **kwargs) if args or kwargs else self


@dataclass(frozen=True)
class TensorMapKind:
    """A tensor map as an annotation: `T.TensorMap()`, `T.Ptr(T.TensorMap)`."""

    type: TensorMapType = TensorMapType()

    def __call__(self) -> TensorMapKind:
        return self


@dataclass(frozen=True)
class TupleKind:
    """Several parameters under one name: `T.Tuple(T.int32, T.float32)`."""

    fields: tuple[Any, ...]


@dataclass(frozen=True)
class Optional:
    """A parameter that may be specialised away."""

    kind: Any


def tensor(
    shape: Sequence[Any],
    dtype: Any = "float32",
    scope: str = "global",
    align: int = 0,
    layout: Any = None,
    *,
    data: Any = None,
    data_alignment: int | None = None,
) -> TensorKind:
    """Describe a tensor: its extents, element type, scope, alignment in bytes and layout.

    Raises `FrontendError` (`bad-annotation`, `bad-layout`, `unknown-name`).
    """
    if data is not None:
        raise FrontendError(
            "a tensor over existing data is not an annotation",
            code="bad-annotation",
            location=here(),
        )
    alignment = align if data_alignment is None else data_alignment
    type = tensor_type(shape, dtype, space_named(scope), alignment, layout)
    return TensorKind(type)


def tensor_type(shape: Any, kind: Any, space: Space, align: int, layout: Any) -> TensorType:
    """Build the type of a tensor from what a program gives."""
    extents = as_tuple(shape)
    if not extents:
        raise FrontendError(
            "a tensor has at least one axis", code="bad-annotation", location=argument_place(0)
        )
    lifted = tuple(_extent(each) for each in extents)
    if align < 0 or align & (align - 1):
        raise FrontendError(
            "an alignment is a power of two",
            code="bad-annotation",
            location=argument_place("align"),
            found=str(align),
        )
    resolved = resolve_layout(layout, lifted, space, argument_place("layout"))
    return TensorType(lifted, as_dtype(kind), space, resolved, align)


def _extent(value: Any) -> Expr:
    if isinstance(value, str):
        raise FrontendError(
            "an extent is a number or a symbol, not text",
            code="bad-annotation",
            location=argument_place(0),
            found=repr(value),
            hint=f"declare the symbol before the kernel: {value} = T.dynamic({value!r})",
        )
    extent = lift_index(value, "an extent", argument_place(0))
    number = as_constant(extent)
    if number is not None and number < 1:
        raise FrontendError(
            "an extent is positive",
            code="bad-annotation",
            location=argument_place(0),
            found=str(number),
        )
    return extent


def pointer(
    kind: Any = UINT8, space: str = "global", align: int | None = None
) -> PointerKind | TensorMapKind:
    """Describe a pointer to an element type in a space; or to a tensor map, which is that map."""
    if isinstance(kind, TensorMapKind) or kind == "tensormap":
        return TensorMapKind()
    element = as_dtype(kind)
    return PointerKind(
        PointerType(space_named(space), element, element.bytes if align is None else align)
    )


def tuple_of(*fields: Any) -> TupleKind:
    """Describe a parameter that is a tuple: each field becomes a parameter of the program.

    The kernel has a Python tuple of them; a call is given a tuple, or the fields one by one.
    """
    return TupleKind(fields)


def dynamic(name: str, kind: Any = "int32") -> Value:
    """Make a symbol for an extent that is known when the kernel is launched."""
    return wrap(Var(name, ScalarType(as_dtype(kind))))


def parameter_type(annotation: Any, name: str, location: Location, anywhere: bool = False) -> Type:
    """Read a parameter's annotation; a helper's tensors may lie anywhere, a kernel's in global.

    Raises `FrontendError` (`bad-annotation`).
    """
    match annotation:
        case TensorKind(TensorType(space=space)) if not (anywhere or space is Space.GLOBAL):
            raise FrontendError(
                f"the tensor {name!r} is not in global memory, as parameters are",
                code="bad-annotation",
                location=location,
                expected='scope="global"',
                found=f'scope="{space.value}"',
            )
        case TensorKind() | PointerKind() | TensorMapKind():
            return annotation.type
        case ScalarKind():
            return ScalarType(annotation.dtype)
        case type() if annotation in (int, float, bool):
            return ScalarType(dtype(annotation.__name__))
        case Optional():
            return parameter_type(annotation.kind, name, location)
        case _:
            raise FrontendError(
                f"the annotation of {name!r} is not a type of a parameter",
                code="bad-annotation",
                location=location,
                expected="T.Tensor(shape, dtype), T.Ptr(dtype), T.handle, T.TensorMap(), or "
                "a scalar such as T.int32",
                found=repr(annotation),
            )


def check_symbols(params: Sequence[Var]) -> None:
    """Refuse parameters whose shapes have symbols that no argument tells.

    Raises `FrontendError` (`bad-annotation`): a symbol is told by an axis that is it alone, or by
    a parameter of its name.
    """
    shapes = [(each, each.type.shape) for each in params if isinstance(each.type, TensorType)]
    told = {extent.name for _, shape in shapes for extent in shape if isinstance(extent, Var)}
    told |= {each.name for each in params if isinstance(each.type, ScalarType)}
    for param, shape in shapes:
        for extent in shape:
            for symbol in variables(extent):
                if symbol.name not in told:
                    raise FrontendError(
                        f"no argument tells what {symbol.name} is",
                        code="bad-annotation",
                        location=param.location,
                        expected=f"an axis of a parameter that is {symbol.name} alone, "
                        f"or a parameter {symbol.name}",
                        found=f"{symbol.name} as a part of {extent}",
                        hint="give the whole extent a symbol of its own",
                    )


def symbols_of(types: Sequence[Type]) -> tuple[Var, ...]:
    """List the variables in the shapes of tensors, each once, in order of occurrence."""
    found: dict[str, Var] = {}
    for each in types:
        if isinstance(each, TensorType):
            for extent in each.shape:
                found.update({var.name: var for var in variables(extent)})
    return tuple(found.values())
