"""What a program of the tile dialect decides by itself: layouts, values beyond the end.

May import `base`, `layout`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tilewright.base.errors import FrontendError, TilewrightError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here, placed
from tilewright.frontend.entry import KernelAttributes
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.values import as_dtype, as_tuple, stored
from tilewright.ir.expressions import Expr, Var, as_constant
from tilewright.ir.tile import AnnotateTile
from tilewright.layout import SwizzleMode, default_layout, mma_shared_layout
from tilewright.layout.fragment import Fragment, replicated
from tilewright.layout.recognise import recognised, recognised_fragment


@dataclass(frozen=True)
class LayoutFunction:
    """`T.Layout(shape, function)`: where each element lies, in a box of extents of its own.

    `image` is the number of each element in that box, row by row.
    """

    shape: tuple[int, ...]
    function: Callable[..., Any]

    def map(self, *indices: Any) -> tuple[Any, ...]:
        """Give the place of an element."""
        return as_tuple(self.function(*indices))

    @property
    def image(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Number each element's place, row by row in the box that all places fill."""
        grids = np.meshgrid(*map(np.arange, self.shape), indexing="ij")
        places = [np.broadcast_to(each, self.shape) for each in self.map(*grids)]
        number = np.zeros(self.shape, dtype=np.int64)
        for each in places:
            number = number * (int(np.max(each)) + 1) + each
        return number


@dataclass(frozen=True)
class FragmentFunction:
    """`T.Fragment(shape, …)`: the thread that holds each element, and the register there.

    With `replicate` copies a thread is computed for each, from their number as a further argument.
    """

    shape: tuple[int, ...]
    thread: Callable[..., Any]
    index: Callable[..., Any] | None
    replicate: int = 1

    @property
    def image(self) -> tuple[Any, Any]:
        """Give the threads, with replicas along a first axis, and the registers."""
        grids = list(np.meshgrid(*map(np.arange, self.shape), indexing="ij"))
        threads = [
            np.broadcast_to(
                self.thread(*grids, *((copy,) if self.replicate > 1 else ())), self.shape
            )
            for copy in range(self.replicate)
        ]
        index = 0 if self.index is None else self.index(*grids)
        return np.stack(threads), np.broadcast_to(index, self.shape)


def layout(shape: Any, forward_fn: Any) -> LayoutFunction:
    """Describe where the elements of a buffer lie, by a function of their indices."""
    return LayoutFunction(_static(shape), forward_fn)


def fragment(
    shape: Any,
    forward_fn: Any = None,
    forward_thread_fn: Any = None,
    replicate: int = 1,
    forward_index_fn: Any = None,
) -> FragmentFunction:
    """Describe who holds the elements of a fragment, by functions of their indices."""
    extents = _static(shape)
    if forward_fn is not None:
        return FragmentFunction(
            extents,
            lambda *at: as_tuple(forward_fn(*at))[0],
            lambda *at: as_tuple(forward_fn(*at))[1],
            replicate,
        )
    if forward_thread_fn is None:
        raise FrontendError(
            "a fragment says which thread holds an element",
            code="bad-call",
            location=here(),
            expected="forward_fn=lambda i, j: (thread, register), or forward_thread_fn=",
        )
    return FragmentFunction(extents, forward_thread_fn, forward_index_fn, replicate)


def shared_layout(given: LayoutFunction, where: Location | None) -> Any:
    """Find the layout of a buffer that a function of indices describes.

    Raises `FrontendError` (`bad-layout`) where two elements have one address, or the function is
    none that counts addresses by the digits of indices, swizzled or not.
    """
    try:
        found = recognised(given.image)
    except TilewrightError as error:
        raise placed(error, where) from None
    if found is None:
        raise FrontendError(
            "the layout is of a kind that has no name here",
            code="bad-layout",
            location=where,
            expected="addresses that are sums over digits of the indices, XORed by a swizzle or "
            "not, such as lambda i, j: i * 40 + j",
            hint="T.make_swizzled_layout(buffer) avoids conflicts of banks",
        )
    return found


def fragment_layout(given: Any, where: Location | None) -> Any:
    """Find the fragment that functions of indices describe; what is none stays as it is.

    Raises `FrontendError` (`bad-layout`).
    """
    if not isinstance(given, FragmentFunction):
        return given
    try:
        found = recognised_fragment(*given.image)
    except TilewrightError as error:
        raise placed(error, where) from None
    if found is None:
        raise FrontendError(
            "the fragment is of a kind that has no name here",
            code="bad-layout",
            location=where,
            expected="threads and registers that are sums over digits of the indices, each digit "
            "counting one of them",
        )
    return found


def loop_layout(given: Any, extents: Sequence[Expr]) -> Fragment | None:
    """Read the option `loop_layout=` of what goes through a box: who does which of its points.

    Raises `FrontendError` (`bad-layout`).
    """
    where = argument_place("loop_layout")
    found = fragment_layout(given, where)
    shape = tuple(as_constant(each) for each in extents)
    if found is None or (isinstance(found, Fragment) and found.shape == shape):
        return found
    raise FrontendError(
        "the layout of a loop says which thread does each of its points",
        code="bad-layout",
        location=where,
        expected=f"T.Fragment({shape}, …)",
        found=f"one of the shape {found.shape}" if isinstance(found, Fragment) else repr(given),
    )


def _static(shape: Any) -> tuple[int, ...]:
    return tuple(int(each) for each in as_tuple(shape))


def swizzled_layout(
    buffer: Any, continuity: Any = None, k_major: bool = True, allow_pad: bool = True
) -> Any:
    """Give the layout in which rows of a shared buffer meet no bank twice, as wide as fits."""
    kind = as_dtype(buffer.dtype)
    extents = list(_static(buffer.shape))
    modes = (
        SwizzleMode.SWIZZLE_128B_ATOM,
        SwizzleMode.SWIZZLE_64B_ATOM,
        SwizzleMode.SWIZZLE_32B_ATOM,
    )
    for mode, width in zip(modes, (128, 64, 32), strict=True):
        if extents[-1] * kind.bits // 8 % width == 0 and len(extents) > 1 and extents[-2] % 8 == 0:
            return mma_shared_layout(kind, mode, extents)
    return default_layout(extents)


def linear_layout(buffer: Any) -> Any:
    """Give the layout of rows one after another."""
    return default_layout(_static(getattr(buffer, "shape", buffer)))


def whole_fragment(buffer: Any, threads: Any) -> Fragment:
    """Give the layout of a fragment all of which each thread holds."""
    return replicated(_static(getattr(buffer, "shape", buffer)), int(threads))


def _swizzled(mode: SwizzleMode) -> Callable[..., Any]:
    def make(buffer: Any) -> Any:
        return mma_shared_layout(as_dtype(buffer.dtype), mode, _static(buffer.shape))

    make.__doc__ = f"Give the layout {mode.name}."
    return make


def _named(values: Any, convert: Callable[[Tensor, Any], Any]) -> tuple[tuple[str, Any], ...]:
    """Read a dictionary of buffers."""
    if not isinstance(values, Mapping):
        raise FrontendError(
            "an annotation is a dictionary of buffers",
            code="bad-call",
            location=argument_place(0),
            expected="{buffer: …}",
            found=repr(values),
        )
    found: list[tuple[str, Any]] = []
    for buffer, value in cast("Mapping[Any, Any]", values).items():
        if not isinstance(buffer, Tensor) or not isinstance(buffer.expr, Var):
            raise FrontendError(
                "this is no buffer",
                code="operand-type",
                location=argument_place(0),
                expected="what T.alloc_shared(…) or T.alloc_fragment(…) has given, or a parameter",
                found=repr(buffer),
            )
        found.append((buffer.expr.name, convert(buffer, value)))
    return tuple(found)


def annotate_layout(layout_map: Any) -> None:
    """Decide how buffers are laid out, each by a layout or a function of indices."""

    def convert(buffer: Tensor, value: Any) -> Any:
        shape = tuple(as_constant(each) for each in buffer.type.shape)
        if inspect.isfunction(value):
            value = layout(shape, value)
        mine = getattr(value, "shape", None)
        known = None not in shape
        if isinstance(value, LayoutFunction | FragmentFunction) and known and mine != shape:
            raise FrontendError(
                "the layout is one of another shape than the buffer has",
                code="bad-layout",
                location=argument_place(0),
                expected=str(shape),
                found=str(mine),
            )
        is_fragment = buffer.type.space is Space.FRAGMENT
        where = argument_place(0)
        if isinstance(value, LayoutFunction) and is_fragment:
            raise FrontendError(
                "the elements of a fragment have threads, not addresses",
                code="bad-layout",
                location=where,
                expected="T.Fragment(shape, forward_fn=…)",
            )
        if isinstance(value, FragmentFunction) and not is_fragment:
            raise FrontendError(
                f"the elements of a buffer in {buffer.type.space} have addresses, not threads",
                code="bad-layout",
                location=where,
                expected="T.Layout(shape, lambda …: …)",
            )
        if isinstance(value, LayoutFunction) and buffer.type.space is Space.SHARED:
            return shared_layout(value, where)
        return fragment_layout(value, where)

    current().emit(AnnotateTile("layout", _named(layout_map, convert), location=here()))


def annotate_safe_value(safe_value_map: Any) -> None:
    """Decide what is read beyond the end of tensors, 0 otherwise."""

    def convert(buffer: Tensor, value: Any) -> Any:
        return stored(value, buffer.type.dtype)

    current().emit(AnnotateTile("outside", _named(safe_value_map, convert), location=here()))


def advise(*values: Any, **named: Any) -> None:
    """Take an advice that changes no result: which data stays in a cache, what does not alias."""
    del values, named


def annotate_min_blocks_per_sm(value: int) -> None:
    """Let the compiler keep to as few registers as so many blocks at a time leave, 1 to 32.

    Raises `LaunchError` (`launch-shape`) for another number.
    """
    current().attributes["bounds"] = KernelAttributes(min_blocks_per_sm=value).attributes()


def index_to_coordinates(index: Any, shape: Sequence[Any]) -> list[Any]:
    """Give the indices of the element of a number, counted row by row."""
    found: list[Any] = []
    for extent in reversed(list(shape)):
        found.insert(0, index % extent)
        index = index // extent
    return found


FUNCTIONS: dict[str, Any] = {
    "Layout": layout,
    "Fragment": fragment,
    "annotate_layout": annotate_layout,
    "annotate_safe_value": annotate_safe_value,
    "annotate_l2_hit_ratio": advise,
    "annotate_restrict_buffers": advise,
    "annotate_min_blocks_per_sm": annotate_min_blocks_per_sm,
    "index_to_coordinates": index_to_coordinates,
    "make_swizzled_layout": swizzled_layout,
    "make_linear_layout": linear_layout,
    "make_fully_replicated_layout_fragment": whole_fragment,
    "make_full_bank_swizzled_layout": _swizzled(SwizzleMode.SWIZZLE_128B_ATOM),
    "make_half_bank_swizzled_layout": _swizzled(SwizzleMode.SWIZZLE_64B_ATOM),
    "make_quarter_bank_swizzled_layout": _swizzled(SwizzleMode.SWIZZLE_32B_ATOM),
    "make_mma_swizzle_layout": swizzled_layout,
    "make_wgmma_swizzled_layout": swizzled_layout,
    "make_tcgen05mma_swizzled_layout": swizzled_layout,
}
