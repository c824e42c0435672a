"""Arguments of the layouts' methods, looked at where a call has failed.

Imports `layout.axes`, `layout.refusal`. Methods trust their arguments; one that is of no use
shows as some error of Python's, which becomes one that names the argument.

    >>> TileLayout(S[4:1]).tile(1, 2, 3)
    FrontendError: tile(outer, outer_shape, inner_shape) takes another 'outer' [bad-layout]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, SupportsIndex, TypeVar, cast

from tilewright.base.errors import FrontendError
from tilewright.layout.axes import Axis, Offset, Term
from tilewright.layout.refusal import bad_layout

Kind = TypeVar("Kind", bound=type)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _is_integers(value: Any) -> bool:
    return _is_sequence(value) and all(isinstance(each, int) for each in value)


def _is_box(value: Any) -> bool:
    return _is_sequence(value) and all(_is_integers(each) and len(each) == 2 for each in value)


def _is_offset(value: Any) -> bool:
    return isinstance(value, Offset | Term | SupportsIndex | Mapping)


# Annotations of parameters: what is expected, and whether a value is that.
_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "TileLayout": ("a TileLayout", lambda value: hasattr(value, "shard")),
    "LayoutSpec": ("S[…], R[…] and offsets, added up", lambda value: hasattr(value, "shard")),
    "Sequence[int]": ("a tuple of integers", _is_integers),
    "Sequence[tuple[int, int]]": ("a tuple of (begin, end)", _is_box),
    "OffsetLike | OffsetMap": ("an integer, or one for each axis", _is_offset),
    "int": ("an integer", lambda value: isinstance(value, int)),
    "str | Axis": ("an axis", lambda value: isinstance(value, str | Axis)),
    "Any": ("an integer", lambda value: not isinstance(value, str | float | None)),
}


def checked(kind: Kind) -> Kind:
    """Let the methods of a class say which argument is wrong (a decorator)."""
    for name, member in list(vars(kind).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _checked(member))
    return kind


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except FrontendError:
            raise
        except Exception as error:
            wrong = _wrong(method, args, kwargs)
            if wrong is None:
                raise
            raise wrong from error

    return call


def _wrong(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FrontendError | None:
    """Describe the first argument that is not as its annotation says."""
    signature = inspect.signature(method)
    _, *names = signature.parameters
    call = f"{method.__name__.replace('__init__', 'a layout')}({', '.join(names)})"
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        return bad_layout(f"{call} is called otherwise", found=str(error))
    for name in names:
        text, holds = _EXPECTED.get(signature.parameters[name].annotation, ("", lambda _: True))
        given = bound.arguments.get(name, signature.parameters[name].default)
        values = cast("tuple[Any, ...]", given) if name == "coordinates" else (given,)
        if not all(map(holds, values)):
            return bad_layout(f"{call} takes another {name!r}", expected=text, found=repr(given))
    return None
