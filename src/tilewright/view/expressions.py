"""Layouts as text: the notation of programs, read without running any of it as Python.

May import `base`, `layout`, and `frontend.failures` for the report of a wrong call. What may be
written is a closed list: numbers, strings, tuples, `S[…]`, `R[…]`, axes, `+`, `-`, `*`, `//`,
`@`, the constructors and factories of layouts, and a few methods that make one of another.

    >>> described('mma_shared_layout("float16", 3, (8, 64))').shape
    (8, 64)
"""

from __future__ import annotations

import ast
import inspect
import linecache
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

from tilewright.base.errors import FrontendError, TilewrightError
from tilewright.base.locations import Location
from tilewright.frontend.failures import python_failure
from tilewright.layout import (
    AXES,
    ComposeLayout,
    Layout,
    LayoutSpec,
    R,
    S,
    SwizzleMode,
    TileLayout,
    mma_atom_layout,
    mma_atom_shape,
    mma_shared_layout,
    tmem_datapath_layout,
    tmem_mma_operand_layout,
)
from tilewright.layout.spec import SpecBuilder

_FILE = "<layout>"


@dataclass(frozen=True)
class Described:
    """A layout, and what its expression tells of the tensor that it is for."""

    layout: Layout
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


Arguments = Mapping[str, Any]


def _shape_of_atom(given: Arguments) -> Any:
    return mma_atom_shape(given["dtype"], given["swizzle_mode"])


def _no_shape(given: Arguments) -> Any:
    return None


# The functions that make layouts, and how their arguments give the shape.
_FACTORIES: dict[str, tuple[Callable[..., Layout], Callable[[Arguments], Any]]] = {
    "TileLayout": (TileLayout, _no_shape),
    "ComposeLayout": (ComposeLayout, _no_shape),
    "mma_atom_layout": (mma_atom_layout, _shape_of_atom),
    "mma_shared_layout": (mma_shared_layout, lambda given: given["shape"]),
    "tmem_datapath_layout": (tmem_datapath_layout, lambda given: (given["rows"], given["cols"])),
    "tmem_mma_operand_layout": (tmem_mma_operand_layout, lambda given: given["shape"]),
}
# The methods that may be called, and what becomes of the shape.
_METHODS: dict[str, Callable[[Described, Arguments], Any]] = {
    "canonicalize": lambda of, given: of.shape,
    "direct_sum": lambda of, given: _times(given["left_shape"], given["right_shape"]),
    "group": lambda of, given: given["shape"],
    "pack": lambda of, given: _last(of, lambda last: last // given["count"]),
    "permute_dims": lambda of, given: _reordered(of, given["order"]),
    "shift": lambda of, given: of.shape,
    "slice": lambda of, given: tuple(end - begin for begin, end in given["region"]),
    "tile": lambda of, given: _times(given["outer_shape"], given["inner_shape"]),
    "tile_to": lambda of, given: given["to_shape"],
    "unpack": lambda of, given: _last(of, lambda last: last * given["count"]),
}
_OF_OTHER_ELEMENTS = ("pack", "unpack")


def _times(outer: Sequence[int], inner: Sequence[int]) -> tuple[int, ...]:
    return tuple(a * b for a, b in zip(outer, inner, strict=True))


def _last(of: Described, change: Callable[[int], int]) -> tuple[int, ...] | None:
    """Neighbours along the last axis become one, or one becomes several."""
    return None if of.shape is None else (*of.shape[:-1], change(of.shape[-1]))


def _reordered(of: Described, order: Sequence[int]) -> tuple[int, ...] | None:
    shape = of.layout.shard_shape
    # Otherwise the axes of the shape are not what is reordered.
    return tuple(shape[each] for each in order) if of.shape == shape else None


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.MatMult: lambda left, right: left @ right,
}
_NAMES: dict[str, Any] = {"S": S, "R": R, "SwizzleMode": SwizzleMode, **AXES}
_MODES = frozenset(mode.name for mode in SwizzleMode)


def read_layout(text: str) -> Layout:
    """Read a layout from its notation; see `described`."""
    return described(text).layout


def described(text: str) -> Described:
    """Read a layout, with the shape and the element type that a factory was given.

    Raises `FrontendError` with the place in the text: for what is no expression of a layout
    (unsupported-expression), for unknown names, wrong calls and malformed layouts.
    """
    text = text.strip()
    linecache.cache[_FILE] = (len(text), None, [text], _FILE)  # for the excerpt of an error
    try:
        node = ast.parse(text, _FILE, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refuse(None, "the text is not an expression", found=str(error)) from None
    value = _value(node)
    match value:
        case Described():
            return value
        case LayoutSpec():
            return Described(TileLayout(value))
        case _:
            raise _refuse(
                node, "the expression gives no layout", "a layout", _kind(value), code="bad-layout"
            )


def layout_among(names: Mapping[str, Any], name: str, file: str) -> Described:
    """Find a layout among the names of a file.

    Raises `FrontendError` (bad-layout), listing its layouts, if there is none of that name.
    """
    value = names.get(name)
    if isinstance(value, (TileLayout, ComposeLayout)):
        return Described(value)
    layouts = [
        each for each, kept in names.items() if isinstance(kept, (TileLayout, ComposeLayout))
    ]
    raise FrontendError(
        f"{file} has no layout {name!r}",
        code="bad-layout",
        expected="one of " + ", ".join(layouts) if layouts else "a layout under a global name",
        found=_kind(value) if name in names else None,
    )


# ---------------------------------------------------------------------------- evaluation


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | str()):
            return node.value
        case ast.Name(id=name):
            return _named(node, name)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(item) for item in items)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _apply(node, operator.neg, _number(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _apply(node, _OPERATORS[type(op)], _term(left), _term(right))
        case ast.Subscript(value=ast.Name(id="S" | "R" as name), slice=key):
            return _apply(node, cast(SpecBuilder, _NAMES[name]).__getitem__, _key(key))
        case ast.Attribute(value=ast.Name(id="SwizzleMode"), attr=mode) if mode in _MODES:
            return SwizzleMode[mode]
        case ast.Call():
            return _call(node)
        case _:
            raise _refuse(
                node,
                "this has no meaning in a layout",
                "numbers, tuples, S[…], R[…], axes, +, @ and calls of "
                + ", ".join((*_FACTORIES, *(f".{name}" for name in _METHODS))),
            )


def _named(node: ast.expr, name: str) -> Any:
    if name not in _NAMES:
        known = ", ".join((*_NAMES, *_FACTORIES))
        raise _refuse(node, f"there is no {name!r}", f"one of {known}", code="unknown-name")
    return _NAMES[name]


def _number(node: ast.expr) -> Any:
    value = _value(node)
    if not isinstance(value, int):
        raise _refuse(node, "this has to be a number", "an integer", _kind(value))
    return value


def _term(node: ast.expr) -> Any:
    """Give an operand; tuples and strings are none, as adding them would only make longer ones."""
    value = _value(node)
    if isinstance(value, (tuple, str)):
        raise _refuse(node, "this is not added up", "a number, a stride or S[…]", _kind(value))
    return value


def _key(node: ast.expr) -> Any:
    match node:
        case ast.Slice(lower=ast.expr() as lower, upper=ast.expr() as upper, step=None):
            return slice(_value(lower), _value(upper))
        case ast.Slice():
            raise _refuse(node, "a layout is written S[shape : strides]", "both of them")
        case _:
            return _value(node)


def _call(node: ast.Call) -> Any:
    arguments = [_plain(_value(each)) for each in node.args]
    named = {each.arg: _plain(_value(each.value)) for each in node.keywords if each.arg}
    if len(named) < len(node.keywords):
        raise _refuse(node, "arguments cannot be unpacked here", "them one by one")
    match node.func:
        case ast.Name(id=name) if name in _FACTORIES:
            factory, shape_of = _FACTORIES[name]
            made = _apply(node, factory, *arguments, **named)
            given = _bound(factory, arguments, named)
            return _describe(made, shape_of(given), given.get("dtype"))
        case ast.Attribute(value=value, attr=name) if name in _METHODS:
            of = _value(value)
            if not isinstance(of, Described):
                raise _refuse(value, f"this has no .{name}()", "a layout", _kind(of))
            method = getattr(of.layout, name)
            made = _apply(node, method, *arguments, **named)
            # `group` gives the separators too.
            made = cast(Layout, made[0] if isinstance(made, tuple) else made)
            shape = _METHODS[name](of, _bound(method, arguments, named))
            if shape is not None and prod(shape) != made.size():
                shape = None
            dtype = None if name in _OF_OTHER_ELEMENTS else of.dtype
            return replace(of, layout=made, shape=shape and tuple(shape), dtype=dtype)
        case called:
            known = ", ".join((*_FACTORIES, *(f".{name}" for name in _METHODS)))
            name = ast.unparse(called)
            raise _refuse(called, f"the notation of layouts has no call of {name}", known)


def _describe(layout: Layout, shape: Any, dtype: Any) -> Described:
    kept = tuple(cast("tuple[int, ...]", shape)) if shape else None
    return Described(layout, kept, None if dtype is None else str(dtype))


def _plain(value: Any) -> Any:
    """Give an argument as the factories take it."""
    return value.layout if isinstance(value, Described) else value


def _bound(function: Any, arguments: list[Any], named: dict[str, Any]) -> dict[str, Any]:
    return inspect.signature(function).bind(*arguments, **named).arguments


def _apply(node: ast.expr, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of ours; its errors get the place in the text."""
    try:
        return function(*args, **kwargs)
    except TilewrightError as error:
        raise FrontendError(
            error.message,
            code=error.code,
            location=_place(node),
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        ) from None
    except Exception as error:
        failure = python_failure(error, _place(node), function, args, kwargs)
        if failure.code == "bad-call":
            raise failure from None
        found = f"{type(error).__name__}: {error}"
        raise _refuse(node, "this has no value", found=found) from None


def _refuse(
    node: ast.expr | None,
    message: str,
    expected: str | None = None,
    found: str | None = None,
    *,
    code: str = "unsupported-expression",
) -> FrontendError:
    place = Location(_FILE, 1) if node is None else _place(node)
    return FrontendError(message, code=code, location=place, expected=expected, found=found)


def _place(node: ast.expr) -> Location:
    end = node.end_lineno or node.lineno, node.end_col_offset or 0
    return Location(_FILE, node.lineno, node.col_offset, *end)


def _kind(value: Any) -> str:
    return f"{value!r}, a {type(value).__name__}"
