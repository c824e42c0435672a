"""Lower tile operations to the instructions that they stand for.

May import `base`, `layout`, `isa`, `ir` and `passes.analysis`. What is done, and what has to be
proven for it, is in `passes.tiles`; here the program is walked, and what is known of threads
and loop counters at each point is kept.

    T.cuda.tile.apply(T.ptx.ldmatrix…x4…, ar.view(4, 8, 4, layout=fragment), words, scope="warp")
    # -> one instruction with four registers of `ar` and the address of the lane's row of `words`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Declared, Relayout, Var
from tilewright.ir.rewrite import map_statements
from tilewright.ir.statements import (
    Allocate,
    Apply,
    Bind,
    Block,
    Break,
    Continue,
    For,
    If,
    Kernel,
    LaunchKernel,
    Program,
    Return,
    Stmt,
    While,
)
from tilewright.ir.visit import root, walk
from tilewright.isa.tile_forms import is_box_copy
from tilewright.passes.analysis.ranges import analyse_ranges
from tilewright.passes.analysis.threads import block_threads
from tilewright.passes.tiles.boxes import emit_copy
from tilewright.passes.tiles.emission import emit
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.tensor_maps import Maps, maps_of, names_of


def lower_tiles(program: Program) -> Program:
    """Replace every `Apply` by instructions, one for each repetition of its operands.

    Tensor maps that copies of boxes need become parameters of their kernels, and the host makes
    them right before the launch. Raises `TileContractError`, at the place of the operation, where
    its operands or the threads that reach it do not meet the contract of the instruction.
    """
    taken = names_of(program)
    kernels: list[Kernel] = []
    made: dict[str, Block] = {}
    for kernel in program.kernels:
        maps = maps_of(program, kernel, taken)
        kernels.append(_lower_kernel(kernel, maps))
        made[kernel.name] = maps.statements()

    def after_its_maps(stmt: Stmt) -> Block | None:
        return (*made[stmt.kernel], stmt) if isinstance(stmt, LaunchKernel) else None

    host = map_statements(program.host, after_its_maps)
    return replace(program, host=host, kernels=tuple(kernels))


def _lower_kernel(kernel: Kernel, maps: Maps) -> Kernel:
    scene = Scene(block_threads(kernel), analyse_ranges(kernel))
    body, _ = _Lowering(maps).block(kernel.body, scene)
    params = (*kernel.params, *maps.made.values())
    return replace(kernel, params=params, body=body, relaid=frozenset(_relaid(kernel)))


def _relaid(kernel: Kernel) -> Iterator[str]:
    """Name the buffers that are seen under another layout too; by a pointer it may be any."""
    nodes = list(walk(kernel.body))
    shared = [each.var for each in nodes if isinstance(each, Allocate)]
    for node in nodes:
        match node:
            case Relayout():
                found = root(node)
                yield from [found.name] if isinstance(found, Var) else []
            case Declared() if node.type.space is Space.SHARED:
                yield from (each.name for each in shared)
            case _:
                pass


@dataclass(frozen=True)
class _Lowering:
    """Walks a kernel with what is known at each point; `maps` are those that it comes to need."""

    maps: Maps

    def block(self, block: Block, scene: Scene) -> tuple[Block, Scene]:
        """Lower a block; also give what is known of the threads at its end."""
        lowered: list[Stmt] = []
        for stmt in block:
            statements, scene = self.statement(stmt, scene)
            lowered += statements
        return tuple(lowered), scene

    def statement(self, stmt: Stmt, scene: Scene) -> tuple[Block, Scene]:
        """Lower a statement, to one or several; also give what is known after it."""
        match stmt:
            case Apply() if is_box_copy(stmt.form):
                return emit_copy(stmt, scene, self.maps), scene
            case Apply():
                return emit(stmt, scene), scene
            case Bind():
                return (stmt,), scene.bound(stmt.var, stmt.value)
            case If():
                return self.branches(stmt, scene)
            case For():
                body, _ = self.block(stmt.body, scene.counting(stmt))
                return (replace(stmt, body=body),), scene
            case While():
                body, _ = self.block(stmt.body, scene.guarded(stmt.condition, True))
                return (replace(stmt, body=body),), scene
            case Return() | Break() | Continue():
                return (stmt,), scene.without_threads()
            case _:
                return (stmt,), scene

    def branches(self, stmt: If, scene: Scene) -> tuple[Block, Scene]:
        """Lower both arms; after them is who comes out of either."""
        then, after_then = self.block(stmt.then, scene.guarded(stmt.condition, True))
        orelse, after_else = self.block(stmt.orelse, scene.guarded(stmt.condition, False))
        if scene.threads is not None and after_then.threads and after_else.threads:
            scene = replace(scene, threads=after_then.threads.joined(after_else.threads))
        return (replace(stmt, then=then, orelse=orelse),), scene
