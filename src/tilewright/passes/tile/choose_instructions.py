"""Choose what carries copies and products out, and lay Tensor Memory out for it.

May import `base`, `layout`, `isa`, `ir`, `passes.analysis` and the modules of this folder above.
What no instruction of the target does is refused here, at its place.

    T.gemm(a, b, c)      ->   way="mma", for a fragment c; "tcgen05", for one in Tensor Memory
    T.copy(c, fragment)  ->   way="tmem" where c is in Tensor Memory, else "simt"
    T.copy(shared, C)    ->   way="tma" where that is sure to work (`bulk_stores`)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.base.errors import TargetError, TileContractError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import Expr, Subview, Var, constant, int32
from tilewright.ir.rewrite import map_blocks, map_statements, substitute
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import (
    Allocate,
    Bind,
    Block,
    Declare,
    If,
    Kernel,
    Program,
    Stmt,
)
from tilewright.ir.tile import AllocateBarriers, AnnotateTile, CopyTile, GemmTile, Issuer, TileStmt
from tilewright.ir.types import ScalarType, TensorType
from tilewright.ir.visit import root, walk, walk_kinds
from tilewright.isa import tensor_memory as isa_tensor_memory
from tilewright.layout import ComposeLayout, TileLayout, default_layout
from tilewright.passes.analysis.threads import WARP, Threads, block_threads
from tilewright.passes.tile.bulk_stores import with_bulk_stores
from tilewright.passes.tile.gemm_shapes import check_mma, check_tcgen05
from tilewright.passes.tile.lower_tma import check_tma, sides
from tilewright.passes.tile.scene import Names, thread_count
from tilewright.passes.tile.shared_layouts import boxes_layout, shared_align
from tilewright.passes.tile.tensor_memory import WARPGROUP, buffer_layout, share


def choose_instructions(program: Program, target: Target) -> Program:
    """Fill in how copies and products are carried out on a target.

    Raises `TargetError` (missing-instruction), `TileContractError` (tile-shape, tile-operand) and
    `FrontendError` (bad-call) for what cannot be.
    """
    kernels = tuple(_kernel(each, target) for each in program.kernels)
    return replace(program, kernels=kernels)


def _kernel(kernel: Kernel, target: Target) -> Kernel:
    if not any(True for _ in walk_kinds(kernel.body, TileStmt)):
        return kernel
    kernel = with_bulk_stores(_with_tensor_memory(_as_annotated(kernel), target), target)
    kernel = _with_boxes(_with_barrier(kernel))
    choice = _Choice(target, thread_count(kernel), _phases(kernel))
    body = choice.block(kernel.body, block_threads(kernel), {})
    return replace(kernel, body=_with_phases(body, choice.phases))


def _as_annotated(kernel: Kernel) -> Kernel:
    """Lay shared buffers out as the program says."""
    said = {
        name: layout
        for each in walk_kinds(kernel.body, AnnotateTile)
        if each.kind == "layout"
        for name, layout in each.values
        if isinstance(layout, TileLayout | ComposeLayout)
    }
    laid: dict[str, Expr] = {
        each.var.name: replace(
            each.var, type=replace(tensor_type(each.var), layout=said[each.var.name])
        )
        for each in walk_kinds(kernel.body, Allocate)
        if each.var.name in said and tensor_type(each.var).space is Space.SHARED
    }
    return replace(kernel, body=substitute(kernel.body, laid)) if laid else kernel


# ---------------------------------------------------------------------------- Tensor Memory


def _with_tensor_memory(kernel: Kernel, target: Target) -> Kernel:
    """Give the buffers in Tensor Memory the layouts that products and copies find them in."""
    buffers = [
        each
        for each in walk(kernel.body)
        if isinstance(each, Allocate) and tensor_type(each.var).space is Space.TMEM
    ]
    if not buffers:
        return kernel
    if target not in isa_tensor_memory.TARGETS:
        hint = "allocate the accumulator by T.alloc_fragment, and leave out mbar= of T.gemm"
        raise _no_tensor_memory(target, buffers[0].location, hint)
    products = [each for each in walk(kernel.body) if isinstance(each, GemmTile)]
    accumulators = {_name(each.c) for each in products}
    laid: dict[str, Expr] = {}
    for each in buffers:
        kind = tensor_type(each.var)
        shape = static_shape(kind.shape)
        assert shape is not None
        layout = kind.layout or buffer_layout(
            shape, kind.dtype, each.var.name in accumulators, each.location
        )
        laid[each.var.name] = Var(
            each.var.name, replace(kind, layout=layout), location=each.var.location
        )
    return replace(kernel, body=substitute(kernel.body, laid))


def _no_tensor_memory(target: Target, where: Location | None, hint: str) -> TargetError:
    return TargetError(
        f"{target} has no Tensor Memory",
        code="missing-instruction",
        location=where,
        expected=str(isa_tensor_memory.TARGETS),
        found=str(target),
        hint=hint,
    )


def _name(tile: Expr) -> str:
    buffer = root(tile)
    assert isinstance(buffer, Var), tile
    return buffer.name


# ---------------------------------------------------------------------------- phases


def _with_boxes(kernel: Kernel) -> Kernel:
    """Lay out the shared buffers of bulk copies; a product may want them otherwise later."""
    laid: dict[str, Expr] = {}
    for each in walk(kernel.body):
        if isinstance(each, CopyTile) and each.way == "tma":
            buffer = root(sides(each)[0])
            kind = tensor_type(buffer)
            if isinstance(buffer, Var) and kind.space is Space.SHARED and kind.layout is None:
                layout = boxes_layout(buffer)
                align = max(kind.align, shared_align(layout, kind.dtype))
                laid[buffer.name] = Var(
                    buffer.name,
                    replace(kind, layout=layout, align=align),
                    location=buffer.location,
                )
    return replace(kernel, body=substitute(kernel.body, laid)) if laid else kernel


def _with_barrier(kernel: Kernel) -> Kernel:
    """Give each bulk load that waits an mbarrier of its own to arrive at."""

    def is_waiting(stmt: object) -> bool:
        return (
            isinstance(stmt, CopyTile)
            and (stmt.way, stmt.waits, stmt.barrier) == ("tma", True, None)
            and tensor_type(stmt.target).space is Space.SHARED
        )

    count = sum(map(is_waiting, walk(kernel.body)))
    if not count:
        return kernel
    layout = default_layout((count,))
    kind = TensorType((int32(count),), UINT64, Space.SHARED, layout, 8)
    barriers = Names(kernel).variable("copied", kind)
    numbers = iter(range(count))

    def with_own(stmt: Stmt) -> Stmt | None:
        if not is_waiting(stmt):
            return None
        one = replace(kind, shape=(int32(1),), layout=None)
        place = Subview(barriers, (int32(next(numbers)),), (1,), (False,), one)
        assert isinstance(stmt, CopyTile)
        return replace(stmt, barrier=place)

    body = map_statements(kernel.body, with_own)
    ones = (int32(1),) * count
    where = kernel.location
    return replace(kernel, body=(AllocateBarriers(barriers, ones, location=where), *body))


def _phases(kernel: Kernel) -> dict[str, Var]:
    """Make a cell for each buffer of mbarriers that statements wait at by themselves."""
    names = Names(kernel)
    found: dict[str, Var] = {}
    for each in walk(kernel.body):
        match each:
            case GemmTile(waits=True, barrier=Expr() as place) if _in_tensor_memory(each.c):
                pass
            case CopyTile(way="tma", waits=True, barrier=Expr() as place):
                pass
            case _:
                continue
        buffer = _name(place)
        if buffer not in found:
            found[buffer] = names.variable(f"{buffer}_phase", ScalarType(UINT32))
    return found


def _in_tensor_memory(tile: Expr) -> bool:
    return tensor_type(tile).space is Space.TMEM


def _with_phases(body: Block, phases: dict[str, Var]) -> Block:
    def declared(stmt: Stmt) -> Block | None:
        if isinstance(stmt, AllocateBarriers) and stmt.var.name in phases:
            cell = phases[stmt.var.name]
            return (stmt, Declare(cell, constant(0, UINT32), location=stmt.location))
        return None

    return map_statements(body, declared) if phases else body


# ---------------------------------------------------------------------------- statements


@dataclass(frozen=True)
class _Choice:
    """Goes through one kernel, with the threads that may come to each point."""

    target: Target
    threads: int
    phases: dict[str, Var]

    def block(self, block: Block, here: Threads | None, bindings: dict[Var, Expr]) -> Block:
        """Choose for the statements of a block, in order."""
        own = dict(bindings)
        found: list[Stmt] = []
        for stmt in block:
            found.append(self.statement(stmt, here, own))
            if isinstance(stmt, Bind):
                own[stmt.var] = stmt.value
        return tuple(found)

    def statement(self, stmt: Stmt, here: Threads | None, bindings: dict[Var, Expr]) -> Stmt:
        """Choose for a statement, and those in it."""
        match stmt:
            case GemmTile():
                return self.product(stmt, here)
            case CopyTile():
                return self.copy(stmt, here)
            case If() if here is not None:
                then, orelse = (here.guarded(stmt.condition, e, bindings) for e in (True, False))
                return replace(
                    stmt,
                    then=self.block(stmt.then, then, bindings),
                    orelse=self.block(stmt.orelse, orelse, bindings),
                )
            case _:
                return map_blocks(stmt, lambda inner: self.block(inner, here, bindings))

    def product(self, stmt: GemmTile, here: Threads | None) -> GemmTile:
        """Choose the instruction of a product by where its accumulator is."""
        if stmt.way == "tcgen05" and self.target not in isa_tensor_memory.TARGETS:
            raise _no_tensor_memory(
                self.target, stmt.location, "T.gemm takes a fragment: T.alloc_fragment"
            )
        match tensor_type(stmt.c).space:
            case Space.TMEM:
                check_tcgen05(stmt)
                phase = self.phase(stmt.barrier)
                return replace(stmt, way="tcgen05", phase=phase, issuer=_issuer(here))
            case Space.FRAGMENT if stmt.way is None:
                check_mma(stmt, _count(here, self.threads), self.target)
                return replace(stmt, way="mma")
            case space:
                asked, hint = "C of T.alloc_tmem", "T.gemm(A, B, C) takes a fragment too"
                if not stmt.way:
                    asked = "C of T.alloc_fragment or T.alloc_tmem"
                    hint = "copy it to a fragment first, and back afterwards"
                raise TileContractError(
                    "this product does not have its accumulator there",
                    code="tile-operand",
                    location=stmt.location,
                    expected=asked,
                    found=f"C, {_name(stmt.c)!r}, in {space.value} memory",
                    hint=hint,
                )

    def phase(self, barrier: Expr | None) -> Var | None:
        """Give the cell that counts the phases of an mbarrier, if there is one."""
        return None if barrier is None else self.phases.get(_name(barrier))

    def copy(self, stmt: CopyTile, here: Threads | None) -> CopyTile:
        """Choose the instruction of a copy by where its two sides are."""
        sides = [tensor_type(each).space for each in (stmt.source, stmt.target)]
        if Space.TMEM in sides:
            _check_tensor_copy(stmt, sides, here, _count(here, self.threads))
            return replace(stmt, way="tmem")
        if stmt.way == "tma":
            check_tma(stmt, self.target)
            return replace(stmt, phase=self.phase(stmt.barrier), issuer=_issuer(here))
        return replace(stmt, way=stmt.way or "simt")


def _check_tensor_copy(
    stmt: CopyTile, sides: list[Space], here: Threads | None, threads: int
) -> None:
    """Require that warpgroups can move a tile between Tensor Memory and a fragment."""
    if Space.FRAGMENT not in sides:
        other = next((each for each in sides if each is not Space.TMEM), Space.TMEM)
        raise TileContractError(
            "Tensor Memory is copied from and to registers only",
            code="tile-operand",
            location=stmt.location,
            expected="a fragment on the other side",
            found=f"a tile in {other.value} memory",
            hint="copy by way of a fragment: T.copy(C_tmem, C_local); T.copy(C_local, …)",
        )
    cells, held = stmt.source, stmt.target
    if tensor_type(held).space is Space.TMEM:
        cells, held = held, cells
    if threads < WARPGROUP or _issuer(here).first % WARPGROUP:
        raise TileContractError(
            "Tensor Memory is copied by whole warpgroups: a warp reaches a quarter of it",
            code="tile-scope",
            location=stmt.location,
            expected="128 threads or more, from a multiple of 128 on",
            found=f"{threads} threads, from thread {_issuer(here).first} on",
        )
    kind = tensor_type(cells)
    shape = static_shape(kind.shape)
    if kind.dtype.bits not in (16, 32) or shape is None or len(shape) < 2:
        raise TileContractError(
            "this tile is not copied from or to Tensor Memory",
            code="tile-operand",
            location=stmt.location,
            expected="a matrix of elements of 16 or 32 bits",
            found=str(kind),
        )
    if share(shape[-2:], kind.dtype, threads) is None:
        raise TileContractError(
            "warpgroups cannot divide this tile of Tensor Memory among them",
            code="tile-shape",
            location=stmt.location,
            expected="rows that are a multiple of 64, whole words of columns (8 of 64 rows)",
            found=f"a tile {shape} of {kind.dtype}",
        )


def _count(here: Threads | None, threads: int) -> int:
    """Count the threads from the first to the last that come here."""
    if here is None or not here.active.any():
        return threads
    coming = np.flatnonzero(here.active)
    return int(coming[-1] - coming[0]) + 1


def _issuer(here: Threads | None) -> Issuer:
    """Choose who issues for the threads that come here: in the first warp of them."""
    if here is None or not here.active.any():
        return Issuer()
    first = int(np.flatnonzero(here.active)[0])
    return Issuer(first, bool(here.lanes_by_warp()[first // WARP].all()))
