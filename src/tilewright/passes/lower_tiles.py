"""Lower tile operations to the instructions that they stand for.

May import `base`, `layout`, `isa`, `ir` and `passes.analysis`. What is done, and what has to be
proven for it, is in `passes.tiles`; here the program is walked, and what is known of threads
and loop counters at each point is kept.

    T.cuda.tile.apply(T.ptx.ldmatrix…x4…, ar.view(4, 8, 4, layout=fragment), words, scope="warp")
    # -> one instruction with four registers of `ar` and the address of the lane's row of `words`
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.statements import (
    Apply,
    Bind,
    Block,
    Break,
    Continue,
    For,
    If,
    Kernel,
    Program,
    Return,
    Stmt,
    While,
)
from tilewright.passes.analysis.ranges import analyse_ranges
from tilewright.passes.analysis.threads import block_threads
from tilewright.passes.tiles.emission import emit
from tilewright.passes.tiles.scene import Scene


def lower_tiles(program: Program) -> Program:
    """Replace every `Apply` by instructions, one for each repetition of its operands.

    Raises `TileContractError`, at the place of the operation, where its operands or the threads
    that reach it do not meet the contract of the instruction.
    """
    return replace(program, kernels=tuple(map(_lower_kernel, program.kernels)))


def _lower_kernel(kernel: Kernel) -> Kernel:
    body, _ = _lower_block(kernel.body, Scene(block_threads(kernel), analyse_ranges(kernel)))
    return replace(kernel, body=body)


def _lower_block(block: Block, scene: Scene) -> tuple[Block, Scene]:
    """Lower a block; also give what is known of the threads at its end."""
    lowered: list[Stmt] = []
    for stmt in block:
        statements, scene = _lower(stmt, scene)
        lowered += statements
    return tuple(lowered), scene


def _lower(stmt: Stmt, scene: Scene) -> tuple[Block, Scene]:
    match stmt:
        case Apply():
            return emit(stmt, scene), scene
        case Bind():
            return (stmt,), scene.bound(stmt.var, stmt.value)
        case If():
            return _lower_if(stmt, scene)
        case For():
            body, _ = _lower_block(stmt.body, scene.counting(stmt))
            return (replace(stmt, body=body),), scene
        case While():
            body, _ = _lower_block(stmt.body, scene.guarded(stmt.condition, True))
            return (replace(stmt, body=body),), scene
        case Return() | Break() | Continue():
            return (stmt,), scene.without_threads()
        case _:
            return (stmt,), scene


def _lower_if(stmt: If, scene: Scene) -> tuple[Block, Scene]:
    then, after_then = _lower_block(stmt.then, scene.guarded(stmt.condition, True))
    orelse, after_else = _lower_block(stmt.orelse, scene.guarded(stmt.condition, False))
    if scene.threads is not None and after_then.threads and after_else.threads:
        scene = replace(scene, threads=after_then.threads.joined(after_else.threads))
    return (replace(stmt, then=then, orelse=orelse),), scene
