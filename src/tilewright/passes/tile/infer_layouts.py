"""Infer where the elements of fragments are, and how parallel loops are divided.

May import `base`, `layout`, `ir` and the modules of this folder above.
"""

from __future__ import annotations

from tilewright.ir.expressions import Load, Var
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.statements import Store
from tilewright.ir.tile import ParallelTile
from tilewright.ir.visit import root, walk
from tilewright.layout.fragment import Fragment, divided
from tilewright.passes.tile.points import Points
from tilewright.passes.tile.scene import TileScene

_BYTES = 16  # that a thread moves at once


def accesses(stmt: ParallelTile) -> list[Load | Store]:
    """List the accesses of tensors in a parallel loop, writes first."""
    found = [each for each in walk(stmt.body) if isinstance(each, Load | Store)]
    return sorted(found, key=lambda each: isinstance(each, Load))


def loop_layout(stmt: ParallelTile, scene: TileScene) -> Fragment:
    """Choose how a parallel loop is divided: as a fragment that it goes through, or freely."""
    extents = static_shape(stmt.extents)
    assert extents is not None
    if isinstance(stmt.layout, Fragment):
        return stmt.layout
    for each in accesses(stmt):
        buffer = root(each.tensor)
        held = scene.fragments.get(buffer.name) if isinstance(buffer, Var) else None
        if held is not None and held.shape == extents and each.indices == stmt.vars:
            return held
    width = min(
        (_BYTES // tensor_type(each.tensor).dtype.bytes for each in accesses(stmt)), default=1
    )
    return divided(extents, scene.threads, max(min(width, stmt.width or width), 1))


def infer_fragment(stmt: ParallelTile, buffer: Var, scene: TileScene) -> Fragment | None:
    """Find where the elements of a fragment are by a loop that accesses it, if that says it."""
    layout = loop_layout(stmt, scene)
    shape = static_shape(tensor_type(buffer).shape)
    for each in accesses(stmt):
        if root(each.tensor) != buffer:
            continue
        dims = [stmt.vars.index(i) for i in each.indices if i in stmt.vars]
        found = layout
        for dim in sorted(set(range(len(stmt.vars))) - set(dims), reverse=True):
            found = found.without(dim)
        if found.shape == shape:
            counters = tuple(
                scene.names.variable("turn", stmt.vars[0].type) for _ in layout.digits[1]
            )
            if Points(stmt.vars, layout, counters).holds(found, each.indices, scene):
                return found
    return None
