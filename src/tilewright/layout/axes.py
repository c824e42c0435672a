"""The axes that layouts map to, and strides along them.

Imports only `layout.refusal` and `layout.split`. An axis is a memory axis (an address, a TMEM
lane or column) or a thread axis (the index of a unit in a group, such as the lane in its warp).

    >>> 4 @ laneid, laneid.unit, laneid.group
    (4 @ laneid, 'thread', 'warp')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import Any, ClassVar, SupportsIndex

from tilewright.layout.refusal import bad_layout
from tilewright.layout.split import add, scale

# The groups of threads, smallest first; a thread axis counts one of these in a larger one.
SCOPES = ("thread", "warp", "warpgroup", "cta", "cluster", "kernel")
# How many threads a group has, where that is fixed.
_THREADS = {"warp": 32, "warpgroup": 128}


@dataclass(frozen=True, slots=True, repr=False)
class Axis:
    """An axis of a layout's range.

    A thread axis numbers a `unit` within a `group` (both of `SCOPES`); a memory axis has
    neither. `threads` is how many threads one step is, where that is fixed, else 0.
    """

    # NumPy integers leave `4 @ axis` to `__rmatmul__`.
    __array_ufunc__: ClassVar[None] = None

    name: str
    unit: str | None = None
    group: str | None = None
    threads: int = 0

    @property
    def is_thread(self) -> bool:
        """Tell an axis that numbers threads, or groups of threads."""
        return self.unit is not None

    @property
    def is_memory(self) -> bool:
        """Tell an axis that numbers cells of memory."""
        return self.unit is None

    @property
    def extent(self) -> int:
        """Count its units in one group where that is fixed, 32 lanes in a warp, else 0."""
        return _THREADS.get(self.group or "", 0) // (self.threads or 1)

    @classmethod
    def get(cls, name: str | Axis) -> Axis:
        """Look an axis up by its name; raises `FrontendError` if there is none."""
        return axis_named(name)

    def __rmatmul__(self, stride: SupportsIndex) -> Term:
        return Term(index(stride), self)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class Term:
    """A constant along an axis, written `4 @ laneid`: a stride, or part of an offset."""

    value: int
    axis: Axis

    def __add__(self, other: OffsetLike) -> Offset:
        return Offset((self,)).__add__(other)

    def __radd__(self, other: OffsetLike) -> Offset:
        return as_offset(other) + self

    def __repr__(self) -> str:
        return f"{self.value} @ {self.axis}"


@dataclass(frozen=True, slots=True, repr=False)
class Offset:
    """A sum of constants along axes, written `1 @ laneid + 5`."""

    terms: tuple[Term, ...] = ()

    def __add__(self, other: object) -> Offset:
        if not isinstance(other, (Offset, Term, SupportsIndex)):
            return NotImplemented  # a `LayoutSpec` adds itself
        return Offset(self.terms + as_offset(other).terms)

    def __radd__(self, other: OffsetLike) -> Offset:
        return as_offset(other) + self

    def by_axis(self) -> dict[Axis, int]:
        """Sum the terms of each axis; axes whose sum is zero are left out."""
        sums: dict[Axis, int] = {}
        for term in self.terms:
            sums[term.axis] = sums.get(term.axis, 0) + term.value
        return {axis: value for axis, value in sums.items() if value}

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


OffsetLike = Offset | Term | SupportsIndex
OffsetMap = Mapping[str, int] | Mapping[Axis, int]

m = Axis("m")
TCol = Axis("TCol")
TLane = Axis("TLane")
bx = Axis("bx", "cta", "kernel")
by = Axis("by", "cta", "kernel")
bz = Axis("bz", "cta", "kernel")
cbx = Axis("cbx", "cta", "cluster")
cby = Axis("cby", "cta", "cluster")
cbz = Axis("cbz", "cta", "cluster")
tx = Axis("tx", "thread", "cta", 1)
warpid = Axis("warpid", "warp", "cta", 32)
wgid = Axis("wgid", "warpgroup", "cta", 128)
laneid = Axis("laneid", "thread", "warp", 1)
tid_in_wg = Axis("tid_in_wg", "thread", "warpgroup", 1)
wid_in_wg = Axis("wid_in_wg", "warp", "warpgroup", 32)

AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        *(m, TCol, TLane),
        *(bx, by, bz, cbx, cby, cbz),
        *(tx, warpid, wgid, laneid, tid_in_wg, wid_in_wg),
    )
}


def axis_named(name: str | Axis) -> Axis:
    """Look an axis up by its name; an axis stands for itself.

    Raises `FrontendError` if there is none of that name.
    """
    if isinstance(name, Axis):
        return name
    if name not in AXES:
        raise bad_layout(f"there is no axis {name!r}", expected="one of " + ", ".join(AXES))
    return AXES[name]


def scope_of(axes: Iterable[Axis]) -> tuple[str, str] | None:
    """Name the smallest unit and the largest group that the thread axes among these number.

    `None` where there are none, or where they leave a gap or number the same threads twice;
    axes with the same unit and group, such as `cbx` and `cby`, count as one.
    """
    steps = sorted({_step(axis) for axis in axes if axis.is_thread})
    if not steps or any(inner[1] != outer[0] for inner, outer in pairwise(steps)):
        return None
    return SCOPES[steps[0][0]], SCOPES[steps[-1][1]]


def _step(axis: Axis) -> tuple[int, int]:
    assert axis.unit is not None and axis.group is not None
    return SCOPES.index(axis.unit), SCOPES.index(axis.group)


def thread_index(values: Mapping[str, Any]) -> Any:
    """Number a thread in its group, from its values along thread axes that fit together.

    `{"warpid": 2, "laneid": 5}` is 69; other axes are left out. Values are integers, NumPy
    arrays or symbolic expressions.
    """
    number: Any = 0
    for name, value in values.items():
        if threads := AXES[name].threads:
            number = add(number, scale(value, threads))
    return number


def as_offset(value: OffsetLike | OffsetMap) -> Offset:
    """Read an offset; a bare integer lies on the memory axis `m`."""
    match value:
        case Offset():
            return value
        case Term():
            return Offset((value,))
        case Mapping():
            return Offset(tuple(Term(_whole(v), axis_named(k)) for k, v in value.items()))
        case _:
            return Offset((Term(_whole(value), m),))


def _whole(value: SupportsIndex) -> int:
    try:
        return index(value)
    except TypeError:
        raise bad_layout(
            "an offset is constant",
            expected="an integer, or one along an axis such as 4 @ laneid",
            found=repr(value),
        ) from None
