"""The loops of the tile dialect: `T.Parallel`, `T.Pipelined` and plain ones.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import here
from tilewright.frontend.markers import Loop
from tilewright.frontend.values import constant_int, lift_index
from tilewright.ir.expressions import Expr, Var, int32
from tilewright.ir.statements import Block, For, Stmt
from tilewright.ir.tile import ParallelTile, PipelinedTile


def parallel(
    *extents: Any,
    coalesced_width: int | None = None,
    loop_layout: Any = None,
    prefer_async: bool | None = None,
    annotations: Any = None,
) -> Loop:
    """Run a body once for each point of a box, divided among the threads: `for i, j in …`."""
    if not extents:
        raise FrontendError(
            "a parallel loop has at least one extent", code="bad-call", location=here()
        )
    ranges = tuple((int32(0), lift_index(each), int32(1)) for each in extents)

    def finish(loop: For) -> Stmt:
        names: list[Var] = []
        sizes: list[Expr] = []
        body: Block = (loop,)
        for _ in ranges:
            inner = body[0]
            assert isinstance(inner, For)
            names.append(inner.var)
            sizes.append(inner.stop)
            body = inner.body
        match body:
            case (ParallelTile(layout=None, width=None) as nested,):
                names += nested.vars
                sizes += nested.extents
                body = nested.body
            case _:
                pass
        return ParallelTile(
            tuple(names), tuple(sizes), body, loop_layout, coalesced_width, location=loop.location
        )

    return Loop(ranges, "parallel", finish=finish)


def pipelined(
    start: Any,
    stop: Any = None,
    num_stages: Any = 0,
    order: Any = None,
    stage: Any = None,
    annotations: Any = None,
) -> Loop:
    """Count, with the copies of later turns under way while a turn computes."""
    first, last = (0, start) if stop is None else (start, stop)
    ranges = ((lift_index(first), lift_index(last), int32(1)),)
    stages = constant_int(num_stages, "a number of stages")

    def finish(loop: For) -> Stmt:
        return PipelinedTile(
            loop.var,
            loop.start,
            loop.stop,
            loop.body,
            stages,
            None if stage is None else tuple(stage),
            None if order is None else tuple(order),
            location=loop.location,
        )

    return Loop(ranges, finish=finish)
