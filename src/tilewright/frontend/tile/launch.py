"""How a kernel of the tile dialect is launched: `with T.Kernel(…) as (bx, by):`.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.entry import Entry, LaunchConfig
from tilewright.frontend.values import as_tuple, constant_int, wrap
from tilewright.ir.expressions import SpecialRegister
from tilewright.ir.tile import RasterizeTile

DEFAULT_THREADS = 128
_AXES = ("x", "y", "z")


def kernel(
    *grid: Any, threads: Any = None, prelude: str | None = None, cluster_dims: Any = None
) -> Entry:
    """Enter a kernel: a grid of one to three extents, `threads` of each CTA (128 by default).

    Raises `FrontendError` (`bad-call`), `LaunchError` (`launch-shape`).
    """
    if not 1 <= len(grid) <= 3:
        raise FrontendError(
            "a kernel is launched over one to three extents",
            code="bad-call",
            location=here(),
            expected="T.Kernel(x), T.Kernel(x, y) or T.Kernel(x, y, z)",
            found=f"{len(grid)} extents",
        )
    if prelude is not None:
        raise FrontendError(
            "T.Kernel(prelude=…) is not supported: the simulator runs no CUDA text",
            code="not-supported",
            location=argument_place("prelude"),
            hint="write the helper with @T.macro",
        )
    block = DEFAULT_THREADS if threads is None else threads
    cluster = 1 if cluster_dims is None else cluster_dims
    config = LaunchConfig(
        grid=grid, block=tuple(constant_int(each, "a number of threads") for each in as_tuple(block)),
        cluster=cluster,
    )
    indices = tuple(SpecialRegister(f"ctaid.{axis}") for axis in _AXES[: len(grid)])
    return Entry(config.launch(), (), here(), indices)


def use_swizzle(panel_size: Any, order: str = "row", enable: Any = True) -> None:
    """Number the CTAs by panels of some rows or columns, so that neighbours share what they read.

    Raises `FrontendError` (`bad-call`) for another order.
    """
    if order not in ("row", "column"):
        raise FrontendError(
            f"CTAs are not numbered by {order!r}",
            code="bad-call",
            location=argument_place("order", 1),
            expected='"row" or "column"',
        )
    if enable:
        panel = constant_int(panel_size, "the size of a panel")
        current().emit(RasterizeTile(panel, order, location=here()))


def thread_binding(dim: int = 0) -> Any:
    """Give a thread's index along an axis of its CTA."""
    return wrap(SpecialRegister(f"tid.{_AXES[dim]}"))


def block_binding(dim: int = 0) -> Any:
    """Give a CTA's index along an axis of the grid."""
    return wrap(SpecialRegister(f"ctaid.{_AXES[dim]}"))
