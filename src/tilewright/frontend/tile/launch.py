"""How a kernel of the tile dialect is launched: `with T.Kernel(…) as (bx, by):`.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.entry import Entry, LaunchConfig
from tilewright.frontend.tile.frames import Ignored, WarpGroups
from tilewright.frontend.tile.functions import reader
from tilewright.frontend.values import as_tuple, constant_int, wrap
from tilewright.ir.expressions import Expr, SpecialRegister, as_constant, binary
from tilewright.ir.statements import Launch
from tilewright.ir.tile import RasterizeTile

DEFAULT_THREADS = 128
WARPGROUP = 128
_AXES = ("x", "y", "z")


def kernel(
    *grid: Any, threads: Any = None, prelude: str | None = None, cluster_dims: Any = None
) -> Entry:
    """Enter a kernel: a grid of one to three extents, `threads` of each CTA (128 by default).

    Raises `FrontendError` (`bad-call`), `LaunchError` (`launch-shape`).
    """
    current()
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
    config = LaunchConfig(
        grid=grid,
        block=tuple(constant_int(each, "a number of threads") for each in as_tuple(block)),
        cluster=1 if cluster_dims is None else cluster_dims,
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
        if panel < 1:
            raise FrontendError(
                "a panel has at least one row or column of CTAs",
                code="bad-call",
                location=argument_place("panel_size", 0),
                expected="1, 2, 3, …",
                found=str(panel),
            )
        current().emit(RasterizeTile(panel, order, location=here()))


# ---------------------------------------------------------------------------- where we are


def _axis(dim: Any) -> str:
    axis = constant_int(dim, "an axis")
    if not 0 <= axis < len(_AXES):
        raise FrontendError(
            f"there is no axis {axis}",
            code="bad-call",
            location=argument_place("dim", 0),
            expected="0, 1 or 2",
        )
    return _AXES[axis]


def _register(name: str) -> Any:
    return wrap(SpecialRegister(name, location=here()))


def thread_binding(dim: Any = 0) -> Any:
    """Give a thread's index along an axis of its CTA."""
    return _register(f"tid.{_axis(dim)}")


def block_binding(dim: Any = 0) -> Any:
    """Give a CTA's index along an axis of the grid."""
    return _register(f"ctaid.{_axis(dim)}")


def thread_bindings() -> list[Any]:
    """Give a thread's indices along the axes of its CTA."""
    return [_register(f"tid.{axis}") for axis in _AXES]


def block_bindings() -> list[Any]:
    """Give a CTA's indices along the axes of the grid."""
    return [_register(f"ctaid.{axis}") for axis in _AXES]


def _launch() -> Launch:
    opened = reader().opened
    if opened is None:
        raise FrontendError(
            "this has a meaning only inside a kernel",
            code="bad-call",
            location=here(),
            hint="a kernel begins with `with T.Kernel(…):`",
        )
    return opened.entry.launch


def _number(extent: Expr) -> Any:
    known = as_constant(extent)
    return wrap(extent) if known is None else int(known)


def thread_extents() -> list[Any]:
    """Give the extents of a CTA."""
    return [_number(each) for each in _launch().block]


def block_extents() -> list[Any]:
    """Give the extents of the grid."""
    return [_number(each) for each in _launch().grid]


def cluster_extents() -> list[Any]:
    """Give the extents of a cluster."""
    return [_number(each) for each in _launch().cluster]


def thread_extent(dim: Any = 0) -> Any:
    """Give the extent of a CTA along an axis."""
    return thread_extents()[_AXES.index(_axis(dim))]


def block_extent(dim: Any = 0) -> Any:
    """Give the extent of the grid along an axis."""
    return block_extents()[_AXES.index(_axis(dim))]


def named_thread(*bounds: Any, thread: str | None = None) -> Any:
    """Give a thread's index by its name, `T.thread_binding(0, n, "threadIdx.x")`."""
    given = [each for each in bounds if isinstance(each, str)]
    name = thread or (given[0] if given else "")
    registers = {
        **{f"threadIdx.{axis}": f"tid.{axis}" for axis in _AXES},
        **{f"blockIdx.{axis}": f"ctaid.{axis}" for axis in _AXES},
    }
    if name not in registers:
        raise FrontendError(
            f"there is no index {name!r}",
            code="bad-call",
            location=argument_place("thread", 2),
            expected=", ".join(registers),
        )
    return _register(registers[name])


# ---------------------------------------------------------------------------- some threads only


def warpgroups(*groups: Any) -> WarpGroups:
    """Run the body of a `with` in some warpgroups, of 128 threads each, by their numbers."""
    if not groups:
        raise FrontendError(
            "no warpgroup is named",
            code="bad-call",
            location=here(),
            expected="T.ws(0), T.ws(0, 1)",
        )
    own = SpecialRegister("warpgroup_id", location=here())
    numbers = [constant_int(each, "the number of a warpgroup") for each in groups]
    known = [int(as_constant(each) or 1) for each in _launch().block]
    there = -(-prod(known) // WARPGROUP)
    if wrong := [each for each in numbers if not 0 <= each < there]:
        raise FrontendError(
            f"the CTA has no warpgroup {wrong[0]}",
            code="bad-call",
            location=here(),
            expected=f"0 … {there - 1}, of {prod(known)} threads",
            hint="give T.Kernel more threads=, 128 for each warpgroup",
        )
    condition = binary("eq", own, numbers[0], here())
    for each in numbers[1:]:
        condition = binary("logical_or", condition, binary("eq", own, each, here()), here())
    return WarpGroups(condition)


def attribute(node: Any = None, key: str = "", value: Any = None) -> Ignored:
    """Refuse an attribute of a compiler that is not this one, unless it only advises."""
    if key in ("pragma_unroll_explicit", "pragma_auto_unroll_max_step"):
        return Ignored()
    _no_attribute(key, argument_place("attr_key", 1))


def _no_attribute(key: str, where: Location | None) -> NoReturn:
    raise FrontendError(
        f"the attribute {key!r} has no meaning here",
        code="not-supported",
        location=where,
    )


FUNCTIONS: dict[str, Any] = {
    "Kernel": kernel,
    "ClusterKernel": kernel,
    "use_swizzle": use_swizzle,
    "get_thread_binding": thread_binding,
    "get_thread_bindings": thread_bindings,
    "get_block_binding": block_binding,
    "get_block_bindings": block_bindings,
    "get_thread_extent": thread_extent,
    "get_thread_extents": thread_extents,
    "get_block_extent": block_extent,
    "get_block_extents": block_extents,
    "get_cluster_dims": cluster_extents,
    "thread_binding": named_thread,
    "ws": warpgroups,
    "WarpSpecialize": warpgroups,
    "attr": attribute,
}
