"""The proof that elements which a view makes of several narrower ones are whole.

May import `ir`, NumPy, `passes.analysis` and `passes.places`. A view of wider elements is good
if the narrow ones that make one up lie side by side, and it begins where one of its width may.
One element is looked at for all: its coordinates are unknown, but for the last of them, which
is a multiple of the ratio of the widths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.ir.expressions import Expr, Reinterpret, SpecialRegister, as_constant
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.passes.analysis.ranges import Ranges
from tilewright.passes.analysis.separation import Inseparable, Separated
from tilewright.passes.places import chain, in_range, locate, root_of


def require_whole_elements(view: Expr, ranges: Ranges, location: Location | None) -> None:
    """Prove all elements of a view to be whole, for every change of width in its chain.

    Raises `FrontendError` (bad-view) where they are not, or cannot be shown to be.
    """
    for each in chain(view):
        if isinstance(each, Reinterpret):
            _require_whole(each, ranges, each.location or location)


def _require_whole(view: Reinterpret, ranges: Ranges, location: Location | None) -> None:
    source = tensor_type(view.source)
    ratio = tensor_type(view).dtype.bytes // source.dtype.bytes
    if ratio <= 1:
        return
    try:
        divisor, constants, axes = _one_element(view, ratio, ranges)
    except Inseparable:
        divisor, constants, axes = _every_element(view, ratio, location)
    size = source.dtype.bytes
    apart = constants - constants[..., :1]
    torn = (apart != size * np.arange(ratio)).any() or axes
    if torn:
        where = "other threads" if axes else f"{apart.ravel()[-1]} bytes apart"
        raise _refuse(view, ratio, location, f"elements that lie {where}")
    whole = size * ratio
    if divisor % whole or (constants[..., 0] % whole).any():
        raise _refuse(view, ratio, location, f"some that begin between multiples of {whole} bytes")


def _one_element(view: Reinterpret, ratio: int, ranges: Ranges) -> tuple[int, Any, bool]:
    """Give what divides an element's start, where its parts lie, whether lanes differ."""
    unknown = SpecialRegister("linear_tid")
    extents = tensor_type(view.source).shape
    outer = [0 if as_constant(each) == 1 else Separated(unknown, 1) for each in extents[:-1]]
    last = Separated(unknown, ratio, np.arange(ratio))

    def value_of(start: Expr) -> Any:
        constant = as_constant(start)
        return constant if constant is not None else Separated(start, ranges.divisor(start))

    place = locate(in_range(view.source), (*outer, last), value_of)
    total: Any = 0
    for value, scale in place.terms:
        total = value * scale + total
    constants: Any = total
    divisor = 0
    if isinstance(total, Separated):
        constants, divisor = total.constants, total.divisor
    constants = np.broadcast_to(np.asarray(constants), (ratio,))
    return divisor, constants, any(_differs(each) for each in place.axes.values())


def _every_element(
    view: Reinterpret, ratio: int, location: Location | None
) -> tuple[int, Any, bool]:
    shape = static_shape(tensor_type(view.source).shape)
    if shape is None:
        raise _refuse(view, ratio, location, "a shape that is not known")

    def value_of(start: Expr) -> Any:
        constant = as_constant(start)
        if constant is None:
            raise _refuse(view, ratio, location, "a start of which too little is known")
        return constant

    place = locate(in_range(view.source), list(np.indices(shape, sparse=True)), value_of)
    total: Any = sum((value * scale for value, scale in place.terms), np.zeros(shape, np.int64))
    parts = [np.broadcast_to(np.asarray(each), shape) for each in place.axes.values()]
    grouped = [each.reshape(-1, ratio) for each in parts]
    return 0, total.reshape(-1, ratio), any((each != each[:, :1]).any() for each in grouped)


def _differs(value: Any) -> bool:
    constants = value.constants if isinstance(value, Separated) else value
    return bool(np.ptp(np.asarray(constants)))


def _refuse(view: Reinterpret, ratio: int, location: Location | None, found: str) -> FrontendError:
    inner, outer = tensor_type(view.source).dtype, tensor_type(view).dtype
    return FrontendError(
        f"{root_of(view).name} cannot be viewed as {outer} here",
        code="bad-view",
        location=location,
        expected=f"each {ratio} elements of {inner} side by side, from a multiple of {ratio} on",
        found=found,
        hint="take the view of wider elements before axes are permuted or sliced",
    )
