"""The loops of the dialect beside `range`.

May import `ir` and the modules of this folder below it.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import argument_place, here
from tilewright.frontend.markers import Loop
from tilewright.frontend.values import as_dtype, lift_index
from tilewright.ir.expressions import as_constant, int32


def _loop(kind: str, bounds: tuple[Any, ...], step: Any, dtype: Any) -> Loop:
    if not 1 <= len(bounds) <= 2:
        raise FrontendError(
            "a loop has a stop, or a start and a stop", code="bad-call", location=here()
        )
    numbers = [lift_index(each, "the bound of a loop") for each in bounds]
    start, stop = (int32(0), numbers[0]) if len(numbers) == 1 else numbers
    by = lift_index(step)
    if as_constant(by) == 0:
        raise FrontendError(
            "the step of a loop is not zero", code="bad-call", location=argument_place("step")
        )
    element = as_dtype(dtype)
    if element.name not in ("int32", "uint32"):
        raise FrontendError(
            "a loop counts in int32 or uint32",
            code="bad-call",
            location=argument_place("dtype"),
            found=element.name,
        )
    return Loop(((start, stop, by),), kind, element)


def serial(*bounds: Any, step: Any = 1, unroll: bool | int = False, dtype: Any = "int32") -> Loop:
    """Count from 0 or a start up to a stop, exclusive."""
    return _loop("unroll" if unroll else "serial", bounds, step, dtype)


def unroll(*bounds: Any, step: Any = 1, dtype: Any = "int32") -> Loop:
    """Count, in a loop that the compiler is to unroll."""
    return _loop("unroll", bounds, step, dtype)


def vectorized(*bounds: Any, step: Any = 1, dtype: Any = "int32") -> Loop:
    """Count, in a loop that may become vector operations."""
    return _loop("vectorized", bounds, step, dtype)


def parallel(*bounds: Any, step: Any = 1, dtype: Any = "int32") -> Loop:
    """Count, in a loop whose turns are independent of each other."""
    return _loop("parallel", bounds, step, dtype)


def grid(*extents: Any) -> Loop:
    """Count through a box of extents, the last one fastest: `for i, j in T.grid(m, n)`."""
    if not extents:
        raise FrontendError("a grid has at least one extent", code="bad-call", location=here())
    return Loop(tuple((int32(0), lift_index(each), int32(1)) for each in extents))
