"""Lower tile statements to what each thread does.

May import `base`, `layout`, `isa`, `ir` and the modules of this folder above. Copies, fills and
the ends of reductions become parallel loops first; then the layouts of all fragments are inferred,
and each statement is lowered on its own. The barriers between statements are there already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import Expr, Load, Var, as_expr, int32
from tilewright.ir.rewrite import map_blocks, rewrite
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Allocate, Block, For, If, Kernel, Program, Stmt, Store
from tilewright.ir.tile import (
    AnnotateTile,
    AtomicTile,
    CopyTile,
    FillTile,
    GemmTile,
    ParallelTile,
    PipelinedTile,
    ReduceTile,
    ScanTile,
    TileStmt,
)
from tilewright.ir.visit import root, walk_kinds
from tilewright.layout import ComposeLayout, TileLayout
from tilewright.passes.analysis.ranges import analyse_ranges
from tilewright.passes.tile.as_parallel import (
    by_each_thread,
    copy_as_parallel,
    elements_of_buffers,
    fill_as_parallel,
    in_blocks,
    is_own,
    of_buffers,
)
from tilewright.passes.tile.copy_async import copy_async, landed, no_runs, run_bytes
from tilewright.passes.tile.guard_accesses import guard_accesses
from tilewright.passes.tile.infer_layouts import Inference, fragments_of
from tilewright.passes.tile.join_atomics import join_atomics
from tilewright.passes.tile.lower_atomic import atomic_as_parallel
from tilewright.passes.tile.lower_gemm import lower_gemm, operands, shared_align
from tilewright.passes.tile.lower_matrix_copy import lower_matrix_copy, with_swizzles
from tilewright.passes.tile.lower_parallel import lower_parallel
from tilewright.passes.tile.lower_reduce import lower_reduce, reduce_as_parts
from tilewright.passes.tile.lower_scan import lower_scan, scan_in_shared
from tilewright.passes.tile.lower_tma import lower_tma
from tilewright.passes.tile.lower_tmem_copy import copied_fragment, lower_tmem_copy
from tilewright.passes.tile.scene import TileScene, narrowed, registers_of, scene_of
from tilewright.passes.tile.shared_layouts import fixed_buffers
from tilewright.passes.tile.vectorize_loops import vectorize_loops

# What vectors need of a buffer in shared memory.
_ALIGN = 16


def lower_operations(program: Program, target: Target) -> Program:
    """Lower the tile statements of a program; a program without any stays as it is."""
    kernels = tuple(_kernel(each, target) for each in program.kernels)
    return replace(program, kernels=kernels)


def _kernel(kernel: Kernel, target: Target) -> Kernel:
    if not any(True for _ in walk_kinds(kernel, TileStmt)):
        return kernel
    scene = replace(scene_of(kernel, target), ranges=analyse_ranges(kernel))
    body = _as_loops(elements_of_buffers(kernel.body), scene)
    scene = Inference(body, scene, _demands).solve()
    scene = with_swizzles(body, scene, fixed_buffers(kernel))
    buffers = fragments_of(body)
    registers = {name: registers_of(each, scene.fragments[name]) for name, each in buffers.items()}
    body = _laid_out(body, scene)
    body = _lower(body, replace(scene, registers=registers))
    lowered = join_atomics(replace(kernel, body=body), target)
    return vectorize_loops(guard_accesses(lowered, _outside(kernel)))


def _outside(kernel: Kernel) -> dict[str, Expr]:
    """Collect what the program says is read beyond the ends of tensors."""
    found: dict[str, Expr] = {}
    for stmt in walk_kinds(kernel.body, AnnotateTile):
        if stmt.kind == "outside":
            found |= dict(stmt.values)
    return found


# ---------------------------------------------------------------------------- as loops


def _as_loops(block: Block, scene: TileScene) -> Block:
    """Write what threads do element by element as parallel loops."""
    found: list[Stmt] = []
    for stmt in block:
        match stmt:
            case If():
                then = _as_loops(stmt.then, narrowed(scene, stmt.condition, True))
                orelse = _as_loops(stmt.orelse, narrowed(scene, stmt.condition, False))
                found.append(replace(stmt, then=then, orelse=orelse))
            case TileStmt() if not isinstance(stmt, PipelinedTile):
                found += _as_loop(stmt, scene)
            case _:
                found.append(map_blocks(stmt, lambda inner: _as_loops(inner, scene)))
    return tuple(found)


def _as_loop(stmt: TileStmt, scene: TileScene) -> Block:
    match stmt:
        case CopyTile(way="tmem" | "tma"):
            return (stmt,)
        case CopyTile() if is_own(stmt):
            return by_each_thread(of_buffers(copy_as_parallel(stmt, scene)))
        case FillTile() if is_own(stmt):
            return by_each_thread(of_buffers(fill_as_parallel(stmt, scene)))
        case CopyTile(way="cp_async"):
            size = run_bytes(stmt, scene.ranges)
            if size is None:
                raise no_runs(stmt)
            return (copy_async(stmt, size, scene), *landed(stmt))
        case CopyTile():
            return (in_blocks(of_buffers(copy_as_parallel(stmt, scene)), scene),)
        case FillTile():
            return (in_blocks(of_buffers(fill_as_parallel(stmt, scene)), scene),)
        case ReduceTile():
            return _of_buffers(reduce_as_parts(stmt, scene))
        case ScanTile():
            return _of_buffers(scan_in_shared(stmt, scene))
        case AtomicTile():
            return (in_blocks(of_buffers(atomic_as_parallel(stmt, scene)), scene),)
        case ParallelTile():
            return (in_blocks(of_buffers(stmt), scene),)
        case _:
            return (stmt,)


def _of_buffers(block: Block) -> Block:
    return tuple(of_buffers(each) if isinstance(each, ParallelTile) else each for each in block)


# ---------------------------------------------------------------------------- layouts


def _demands(stmt: TileStmt, scene: TileScene) -> Mapping[str, Any]:
    """Say what layouts a statement needs of its buffers."""
    match stmt:
        case GemmTile():
            return operands(stmt, scene)
        case CopyTile(way="tmem"):
            in_cells = tensor_type(stmt.source).space is Space.TMEM
            other = root(stmt.target if in_cells else stmt.source)
            assert isinstance(other, Var)
            if tensor_type(other).space is not Space.FRAGMENT:
                return {}
            return {other.name: copied_fragment(stmt, scene)}
        case AnnotateTile(kind="layout"):
            return dict(stmt.values)
        case _:
            return {}


def _laid_out(body: Block, scene: TileScene) -> Block:
    """Give shared buffers the layouts that were found for them."""
    found: dict[str, Var] = {}
    for each in walk_kinds(body, Allocate):
        kind = tensor_type(each.var)
        if kind.space is not Space.SHARED:
            continue
        layout = scene.layouts.get(each.var.name, kind.layout)
        align = max(kind.align, _ALIGN)
        if isinstance(layout, TileLayout | ComposeLayout):
            align = max(align, _align(layout, kind.dtype))
        new = replace(kind, layout=layout, align=align)
        found[each.var.name] = replace(each.var, type=new)
    return rewrite(body, ((Var, lambda var: found.get(var.name)),), top_down=True)


def _align(layout: TileLayout | ComposeLayout, dtype: DType) -> int:
    return shared_align(layout, dtype)


# ---------------------------------------------------------------------------- statements


def _lower(block: Block, scene: TileScene) -> Block:
    found: list[Stmt] = []
    for stmt in block:
        found += _statement(stmt, scene)
    return tuple(found)


def _statement(stmt: Stmt, scene: TileScene) -> Block:
    match stmt:
        case ParallelTile():
            return lower_matrix_copy(stmt, scene) or lower_parallel(stmt, scene)
        case ReduceTile():
            return lower_reduce(stmt, scene)
        case ScanTile():
            return lower_scan(stmt, scene)
        case GemmTile():
            return lower_gemm(stmt, scene)
        case CopyTile(way="tmem"):
            return lower_tmem_copy(stmt, scene)
        case CopyTile(way="tma"):
            return lower_tma(stmt, scene)
        case AnnotateTile():
            return ()
        case Allocate() if stmt.var.name in scene.registers:
            return (replace(stmt, var=scene.registers[stmt.var.name]),)
        case If():
            then = _lower(stmt.then, narrowed(scene, stmt.condition, True))
            orelse = _lower(stmt.orelse, narrowed(scene, stmt.condition, False))
            condition = _alone(stmt.condition, scene)
            return (replace(stmt, condition=condition, then=then, orelse=orelse),)
        case PipelinedTile():
            body = _lower(stmt.body, scene)
            one = int32(1)
            return (For(stmt.var, stmt.start, stmt.stop, one, body, location=stmt.location),)
        case TileStmt():
            return (stmt,)
        case _:
            lowered = map_blocks(stmt, lambda block: _lower(block, scene))
            return (_alone(lowered, scene),)


def _alone(node: Any, scene: TileScene) -> Any:
    """Replace elements of fragments that all threads access together by their registers."""

    def register(tensor: Expr, indices: tuple[Expr, ...], where: Any) -> tuple[Var, Expr] | None:
        buffer = root(tensor)
        if not isinstance(buffer, Var) or buffer.name not in scene.registers:
            return None
        if tensor_type(buffer).space is not Space.FRAGMENT:
            return None
        held = scene.fragments[buffer.name]
        if not all(map(held.is_whole, range(len(held.shape)))):
            raise FrontendError(
                f"an element of {buffer.name} is accessed outside of T.Parallel, and each is "
                "held by some threads only",
                code="layout-conflict",
                location=where,
                expected="an access in T.Parallel, or a fragment that no product divides",
                notes=(f"where it lies (thread:register):\n{held.drawn()}",),
            )
        return scene.registers[buffer.name], as_expr(held.place(indices)[1])

    def load(node: Load) -> Expr | None:
        found = register(node.tensor, node.indices, node.location)
        return found and Load(found[0], (found[1],), node.type, location=node.location)

    def store(node: Store) -> Store | None:
        found = register(node.tensor, node.indices, node.location)
        return found and Store(found[0], (found[1],), node.value, location=node.location)

    return rewrite(node, ((Load, load), (Store, store)))
