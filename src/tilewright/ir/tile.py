"""Statements of the tile dialect: frozen nodes, which `passes.tile` lowers to the rest of the IR.

May import `base`, `layout` and the nodes of `ir`. In all of them the threads of a CTA take part
together. A *tile* is a buffer or a `Subview` of one (steps of 1; axes of extent 1 may be dropped),
through views if need be: in global, shared or Tensor Memory, or a *fragment*, which the threads
hold in registers together and whose `Allocate` has a type in `Space.FRAGMENT`.

After each statement the next may use what it has written, but for copies and products that do
not wait: `waits` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilewright.base.locations import Location
from tilewright.ir.expressions import Expr, Var
from tilewright.ir.statements import Block, Stmt


def _where() -> Any:
    return field(default=None, compare=False, kw_only=True, repr=False)


class TileStmt(Stmt):
    """A statement of the tile dialect; it vanishes in `passes.tile`."""


# How a product's tile is divided among the warps; `square` balances rows and columns.
POLICIES = ("square", "full_row", "full_col")
# How a copy is carried out, where it is not left open.
WAYS = ("simt", "cp_async", "tma", "ldmatrix", "stmatrix", "tmem")
REDUCTIONS = ("sum", "max", "min", "abssum", "absmax", "bitand", "bitor", "bitxor")


@dataclass(frozen=True)
class Issuer:
    """Who issues what one thread does for all: a lane that the warp of thread `first` elects.

    Unless all of the warp come, and one is elected, it is that thread itself.
    """

    first: int = 0
    elected: bool = True


@dataclass(frozen=True)
class CopyTile(TileStmt):
    """Copy a tile to another of the same extents, but for axes of extent 1; types convert.

    `way` is one of `WAYS`, or `None` until one is chosen. Elements beyond a tensor's end are read
    as `outside` (0 if `None`) and not written. With a `barrier`, a bulk copy arrives there, and
    `issuer` and `phase` are as a product's. `options` are what a program asks for otherwise, such
    as an eviction policy.
    """

    source: Expr
    target: Expr
    way: str | None = None
    waits: bool = True
    barrier: Expr | None = None
    outside: Expr | None = None
    options: tuple[tuple[str, Any], ...] = ()
    phase: Expr | None = None
    issuer: Issuer | None = None
    location: Location | None = _where()


@dataclass(frozen=True)
class FillTile(TileStmt):
    """Set all elements of a tile to a value."""

    target: Expr
    value: Expr
    location: Location | None = _where()


@dataclass(frozen=True)
class GemmTile(TileStmt):
    """Add the product of two tiles to a third: C[m, n] += A[m, k] * B[k, n].

    A is (M, K), or (K, M) with `transpose_a`; B is (K, N), or (N, K) with `transpose_b`. Where
    `clear` holds C is taken as 0. `way` is "mma" or "tcgen05", `None` until one is chosen; the
    latter is issued by `issuer`, and its completion arrives at `barrier`. A product that waits
    knows by the cell `phase`, uint32, which parity comes next: a bit for each barrier.
    """

    a: Expr
    b: Expr
    c: Expr
    transpose_a: bool
    transpose_b: bool
    clear: Expr
    policy: str = "square"
    barrier: Expr | None = None
    waits: bool = True
    way: str | None = None
    phase: Expr | None = None
    issuer: Issuer | None = None
    location: Location | None = _where()


@dataclass(frozen=True)
class ReduceTile(TileStmt):
    """Reduce a tile along an axis, which the target lacks or has with extent 1.

    `op` is one of `REDUCTIONS`; without `clear`, what the target holds takes part.
    """

    op: str
    source: Expr
    target: Expr
    axis: int
    clear: bool = True
    nan_propagate: bool = False
    location: Location | None = _where()


@dataclass(frozen=True)
class ScanTile(TileStmt):
    """Write the running "sum" or "max" along an axis of a tile."""

    op: str
    source: Expr
    target: Expr
    axis: int
    reverse: bool = False
    location: Location | None = _where()


@dataclass(frozen=True)
class AtomicTile(TileStmt):
    """Combine each element of a tile with memory, atomically: "add", "max", "min" or "or"."""

    op: str
    target: Expr
    value: Expr
    order: str = "relaxed"
    location: Location | None = _where()


@dataclass(frozen=True)
class ParallelTile(TileStmt):
    """Run a body once for each point of a box, divided among the threads of the CTA.

    `layout` is the `Fragment` by which the program divides the points, if it does; `width` the
    greatest number of neighbouring points that a thread takes at once. One that `relays` may pass
    what it reads of fragments through shared memory, where other threads hold it.
    """

    vars: tuple[Var, ...]
    extents: tuple[Expr, ...]
    body: Block
    layout: Any = None
    width: int | None = None
    relays: bool = False
    location: Location | None = _where()


@dataclass(frozen=True)
class PipelinedTile(TileStmt):
    """Count `var` from `start` to `stop`, overlapping the copies of later turns with this one's.

    `stages` is how many versions of a copied buffer there are; 0 is a plain loop. `stage` and
    `order` are a schedule given by hand: by statement, the stage it belongs to and its rank.
    """

    var: Var
    start: Expr
    stop: Expr
    body: Block
    stages: int = 0
    stage: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    location: Location | None = _where()


@dataclass(frozen=True)
class AllocateBarriers(TileStmt):
    """Allocate mbarriers, and initialise each with a number of arrivals before all else.

    `var` is a tensor of uint64 in shared memory, of one axis.
    """

    var: Var
    counts: tuple[Expr, ...]
    location: Location | None = _where()


@dataclass(frozen=True)
class FreeTile(TileStmt):
    """Give back Tensor Memory before the end of the kernel, where it is given back otherwise."""

    buffer: Var
    location: Location | None = _where()


@dataclass(frozen=True)
class AnnotateTile(TileStmt):
    """Say of buffers, by their names, what the program has decided.

    `kind` is "layout" (values are layouts), or "outside" (what is read beyond the end).
    """

    kind: str
    values: tuple[tuple[str, Any], ...]
    location: Location | None = _where()


@dataclass(frozen=True)
class RasterizeTile(TileStmt):
    """Number the CTAs of a grid by panels of some rows ("row") or columns ("column")."""

    panel: int
    order: str = "row"
    location: Location | None = _where()
