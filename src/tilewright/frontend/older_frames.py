"""The frames of `with` that older programs have: regions of the host, and launches axis by axis.

May import `base`, `ir` and the modules of this folder below it.

    with T.launch_thread("blockIdx.x", n) as block, T.launch_thread("threadIdx.x", 128) as thread:
        A[block * 128 + thread] = T.float32(0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import INT32
from tilewright.base.errors import FrontendError, LaunchError
from tilewright.base.locations import Location
from tilewright.frontend.builder import argument_place, here
from tilewright.frontend.entry import Entry, LaunchConfig
from tilewright.frontend.unsupported import Unsupported
from tilewright.frontend.values import lift_index, wrap
from tilewright.ir.expressions import Expr, SpecialRegister, cast
from tilewright.ir.statements import Launch

_AXES = ("x", "y", "z")
# The tags of axes: which extent of a launch each is, and the register that counts along it.
_TAGS = {
    f"{tag}.{axis}": (extents, position, f"{register}.{axis}")
    for tag, extents, register in (
        ("blockIdx", "grid", "ctaid"),
        ("threadIdx", "block", "tid"),
    )
    for position, axis in enumerate(_AXES)
}


@dataclass(frozen=True)
class Region:
    """A part of the host's code of which nothing follows here."""

    name: str


@dataclass(frozen=True, repr=False)
class LaunchAxis:
    """An axis of a launch: the number of CTAs or threads along it, and the index there."""

    extents: str
    position: int
    extent: Expr
    index: SpecialRegister
    location: Location | None

    def __repr__(self) -> str:
        return "T.launch_thread(…) without `with`"

    @property
    def place(self) -> tuple[str, int]:
        """Say which extent of the launch it is."""
        return self.extents, self.position

    def entry(self) -> Entry:
        """Enter a kernel that is launched along this axis only, so far."""
        return Entry(self.joined(LaunchConfig().launch()), (), self.location)

    def joined(self, launch: Launch) -> Launch:
        """Give a launch this extent; raises `LaunchError` (`launch-shape`) where none can be."""
        shapes = {name: list(getattr(launch, name)) for name in ("grid", "block")}
        shapes[self.extents][self.position] = self.extent
        grid, block = (tuple(map(wrap, extents)) for extents in shapes.values())
        return LaunchConfig(grid=grid, block=block).launch()

    def check(self, launch: Launch) -> None:
        """Require that a launch has this extent.

        Raises `LaunchError` (`launch-shape`).
        """
        own = getattr(launch, self.extents)[self.position]
        if own != self.extent:
            raise LaunchError(
                f"the {self.extents} has two extents along {_AXES[self.position]}",
                code="launch-shape",
                location=self.location,
                expected=str(own),
                found=str(self.extent),
            )


def device_context(device_type: Any, device_id: Any) -> Region:
    """Say for which device the host's code is; kernels run where `compile` says."""
    return Region("T.device_context")


def compute_scope(name: str) -> Region:
    """Name a part of the host's code."""
    return Region("T.compute_scope")


def parallel_launch() -> Region:
    """Let workers share the host's loops; there is one, which does everything."""
    return Region("T.parallel_launch")


def launch_thread(thread_tag: str, extent: Any) -> LaunchAxis:
    """Launch along an axis, "blockIdx.x" to "threadIdx.z"; as a frame it gives the index there.

    The outermost frame of a kernel enters it. Raises `FrontendError` (`bad-call`,
    `not-supported`), `LaunchError` (`launch-shape`).
    """
    if thread_tag.startswith("vthread"):
        reason = "the threads of one axis are not dealt out to several indices"
        Unsupported(f"T.launch_thread({thread_tag!r}, …)", reason, "write a loop")()
    if thread_tag not in _TAGS:
        raise FrontendError(
            f"there is no axis {thread_tag!r} to launch along",
            code="bad-call",
            location=argument_place(0),
            expected=", ".join(_TAGS),
        )
    extents, position, register = _TAGS[thread_tag]
    count = cast(lift_index(extent, "an extent", argument_place(1)), INT32)
    index = SpecialRegister(register, location=here())
    return LaunchAxis(extents, position, count, index, here())


FRAMES = (device_context, compute_scope, parallel_launch, launch_thread)
FUNCTIONS: dict[str, Any] = {each.__name__: each for each in FRAMES}
