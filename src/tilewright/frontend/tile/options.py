"""Options of the dialect's functions that decide nothing here: which are taken, and which refused.

May import `base` and `frontend.builder`. An option that cannot change a result is a *hint*: it is
taken, and docs/tiles.md lists it. What would change one is refused where it is not carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import argument_place

# Keys of `annotations=`: names for a plan of warps, and copies that nobody waits for meanwhile.
OPERATION_NAME = "tl.ws_op_id"
_HINTS = (OPERATION_NAME, "parallel_async_without_async_commit_wait")


def hints(annotations: Any) -> None:
    """Take annotations that are hints.

    Raises `FrontendError` (`not-supported`, `bad-call`) for others.
    """
    if annotations is None:
        return
    where = argument_place("annotations")
    if not isinstance(annotations, Mapping):
        raise FrontendError(
            "annotations are a dictionary",
            code="bad-call",
            location=where,
            found=repr(annotations),
        )
    for key in cast("Mapping[Any, Any]", annotations):
        if str(key) not in _HINTS:
            raise FrontendError(
                f"the annotation {str(key)!r} has no meaning here",
                code="not-supported",
                location=where,
                expected=", ".join(map(repr, _HINTS)),
                hint="options of an operation are arguments: T.copy(…, coalesced_width=…)",
            )


def check_width(width: Any) -> None:
    """Require that `coalesced_width=` is a number of elements, if it is given.

    Raises `FrontendError` (`bad-call`).
    """
    if width is not None and (not isinstance(width, int) or width < 1):
        raise FrontendError(
            "coalesced_width= is no number of elements",
            code="bad-call",
            location=argument_place("coalesced_width"),
            expected="at most so many elements at once: 1, 2, 4, …",
            found=repr(width),
        )


def not_given(name: str, value: Any, hint: str, place: int | str | None = None) -> None:
    """Refuse an argument that nothing carries out.

    Raises `FrontendError` (`not-supported`).
    """
    if value is not None and value is not False:
        keys = (name,) if place is None else (name, place)
        raise FrontendError(
            f"{name}= has no meaning here",
            code="not-supported",
            location=argument_place(*keys),
            hint=hint,
        )


def only(name: str, value: Any, *known: Any, place: int | None = None) -> None:
    """Refuse an argument that is none of those that are known.

    Raises `FrontendError` (`bad-call`).
    """
    if value not in known:
        keys = (name,) if place is None else (name, place)
        raise FrontendError(
            f"{name}= is not {value!r}",
            code="bad-call",
            location=argument_place(*keys),
            expected=" or ".join(map(repr, known)),
        )
