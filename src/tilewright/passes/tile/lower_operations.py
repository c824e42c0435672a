"""Lower tile statements to what each thread does.

May import `base`, `layout`, `isa`, `ir` and the modules of this folder above.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.base.dtypes import UINT32
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import Expr, Var, constant
from tilewright.ir.rewrite import map_blocks, map_statements
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Allocate, Block, Instruct, Kernel, Program, Stmt
from tilewright.ir.tile import CopyTile, FillTile, ParallelTile, PipelinedTile, TileStmt
from tilewright.ir.statements import For
from tilewright.ir.expressions import int32
from tilewright.ir.types import TensorType
from tilewright.ir.visit import root, walk, walk_kinds
from tilewright.isa import named
from tilewright.layout import default_layout
from tilewright.layout.fragment import Fragment, divided, replicated
from tilewright.passes.tile.as_parallel import copy_as_parallel, fill_as_parallel
from tilewright.passes.tile.infer_layouts import infer_fragment, loop_layout
from tilewright.passes.tile.lower_parallel import lower_parallel
from tilewright.passes.tile.scene import Names, TileScene, thread_count


def lower_operations(program: Program, target: Target) -> Program:
    """Lower the tile statements of a program; a program without any stays as it is."""
    kernels = tuple(_kernel(each, target) for each in program.kernels)
    return replace(program, kernels=kernels)


def _kernel(kernel: Kernel, target: Target) -> Kernel:
    if not any(True for _ in walk_kinds(kernel, TileStmt)):
        return kernel
    names = Names(kernel)
    scene = TileScene(target, thread_count(kernel), names)
    body = map_statements(kernel.body, lambda stmt: _as_parallel(stmt, scene))
    buffers = [
        each.var
        for each in walk(body)
        if isinstance(each, Allocate) and tensor_type(each.var).space is Space.FRAGMENT
    ]
    while missing := [each for each in buffers if each.name not in scene.fragments]:
        scene = _with_fragment(scene, body, missing)
    registers = {each.name: _registers(each, scene) for each in buffers}
    scene = replace(scene, registers=registers)
    return replace(kernel, body=_lower(body, scene))


def _as_parallel(stmt: Stmt, scene: TileScene) -> Stmt | None:
    match stmt:
        case CopyTile():
            return copy_as_parallel(stmt, scene)
        case FillTile():
            return fill_as_parallel(stmt, scene)
        case _:
            return None


def _with_fragment(scene: TileScene, body: Block, missing: list[Var]) -> TileScene:
    for stmt in walk(body):
        if isinstance(stmt, ParallelTile):
            for buffer in missing:
                found = infer_fragment(stmt, buffer, scene)
                if found is not None:
                    return replace(scene, fragments={**scene.fragments, buffer.name: found})
    shape = static_shape(tensor_type(missing[0]).shape)
    assert shape is not None
    return replace(
        scene, fragments={**scene.fragments, missing[0].name: replicated(shape, scene.threads)}
    )


def _registers(buffer: Var, scene: TileScene) -> Var:
    count = scene.fragments[buffer.name].registers
    type = replace(
        tensor_type(buffer), shape=(int32(count),), space=Space.LOCAL, layout=default_layout((count,))
    )
    return Var(buffer.name, type, location=buffer.location)


def _lower(block: Block, scene: TileScene) -> Block:
    found: list[Stmt] = []
    for stmt in block:
        found += _statement(stmt, scene)
    return tuple(found)


def _statement(stmt: Stmt, scene: TileScene) -> Block:
    match stmt:
        case ParallelTile():
            sync = Instruct(named.CTA_SYNC, (constant(0, UINT32),), location=stmt.location)
            return (sync, *lower_parallel(stmt, loop_layout(stmt, scene), scene), sync)
        case Allocate() if stmt.var.name in scene.registers:
            return (replace(stmt, var=scene.registers[stmt.var.name]),)
        case Allocate() if tensor_type(stmt.var).layout is None:
            shape = static_shape(tensor_type(stmt.var).shape)
            assert shape is not None
            return (stmt,)
        case PipelinedTile():
            return (
                For(
                    stmt.var, stmt.start, stmt.stop, int32(1), _lower(stmt.body, scene),
                    location=stmt.location,
                ),
            )
        case _:
            return (map_blocks(stmt, lambda block: _lower(block, scene)),)
