"""The loops of the tile dialect: `T.Parallel`, `T.Pipelined`, `T.Persistent` and plain ones.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import INT32
from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.frames import Binding
from tilewright.frontend.markers import Loop
from tilewright.frontend.tile.frames import TileLoop
from tilewright.frontend.values import as_tuple, constant_int, lift_index, wrap
from tilewright.ir.expressions import Expr, Var, as_constant, binary, cast, int32
from tilewright.ir.statements import Block, Break, For, If, Stmt
from tilewright.ir.tile import ParallelTile, PipelinedTile
from tilewright.ir.types import ScalarType


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
    sync: Any = None,
    group: Any = None,
    annotations: Any = None,
) -> Loop:
    """Count, with the copies of later turns under way while a turn computes."""
    first, last = (0, start) if stop is None else (start, stop)
    ranges = ((lift_index(first), lift_index(last), int32(1)),)
    stages = constant_int(num_stages, "a number of stages")
    if stages < 0:
        raise FrontendError(
            "a loop has no negative number of stages",
            code="bad-call",
            location=argument_place("num_stages", 2),
            found=str(stages),
        )

    def finish(loop: For) -> Stmt:
        return PipelinedTile(
            loop.var,
            loop.start,
            loop.stop,
            loop.body,
            stages,
            _numbers(stage),
            _numbers(order),
            location=loop.location,
        )

    return Loop(ranges, finish=finish)


def _numbers(given: Any) -> tuple[int, ...] | None:
    """Read a schedule that is given by hand, by statement; an empty one is none."""
    return tuple(int(each) for each in given) if given else None


def _counted(kind: str, start: Any, stop: Any, step: Any) -> Loop:
    first, last = (0, start) if stop is None else (start, stop)
    by = lift_index(1 if step is None else step)
    if as_constant(by) == 0:
        raise FrontendError(
            "the step of a loop is not zero", code="bad-call", location=argument_place("step", 2)
        )
    bounds = lift_index(first, "the bound of a loop"), lift_index(last, "the bound of a loop")
    return Loop(((*bounds, by),), kind)


def serial(start: Any, stop: Any = None, step: Any = None, annotations: Any = None) -> Loop:
    """Count from 0 or a start up to a stop, exclusive."""
    return _counted("serial", start, stop, step)


def unroll(
    start: Any,
    stop: Any = None,
    step: Any = None,
    *,
    explicit: bool = False,
    unroll_factor: int | None = None,
    annotations: Any = None,
) -> Loop:
    """Count, in a loop that the compiler is to unroll."""
    return _counted("unroll", start, stop, step)


def vectorized(start: Any, stop: Any = None, annotations: Any = None) -> Loop:
    """Count, in a loop that may become vector operations."""
    return _counted("vectorized", start, stop, None)


def loop_break() -> None:
    """Leave the innermost loop."""
    current().emit(Break(location=here()))


# ---------------------------------------------------------------------------- persistent kernels


@dataclass(frozen=True)
class Persistent(TileLoop):
    """The tiles of a domain that a worker gets, one each wave: `for bx, by in T.Persistent(…)`.

    Tiles are numbered in panels of `group` along the last axis.
    """

    domain: tuple[Expr, ...]
    wave: Expr
    index: Expr
    group: Expr

    def read(self, reader: Any, node: ast.For) -> None:
        """Read the loop over waves; a turn beyond the domain does nothing."""
        builder, where = current(), reader.frame.place(node)
        builder.where = where
        targets = reader.loop_targets(node.target, len(self.domain))
        last = self.domain[-1]
        group = builder.bind("group", binary("max", int32(1), binary("min", self.group, last)))
        panels = _ceildiv(last, group)
        grouped = [panels, *self.domain[:-1], group]
        total: Expr = int32(1)
        for each in grouped:
            total = binary("mul", total, each)
        var = builder.variable("wave", ScalarType(INT32))

        def begin() -> None:
            number: Expr = binary("add", binary("mul", var, self.wave), self.index)
            digits: list[Expr] = []
            for each in reversed(grouped[1:]):
                digits.insert(0, binary("mod", number, each))
                number = binary("floordiv", number, each)
            digits[-1] = binary("add", binary("mul", number, group), digits[-1])
            for target, digit in zip(targets, digits, strict=True):
                bound = wrap(builder.bind(target.id, digit))
                reader.frame.bind(target.id, Binding(bound, reader.frame.place(target)))
            within = binary("lt", number, panels)
            within = binary(
                "logical_and", within, binary("lt", _value(reader, targets[-1]), last), where
            )
            body = reader.nested("branch", "it is bound for tiles of the domain", node.body)
            builder.emit(If(within, body, location=where))

        builder.counters.append(var)
        block = reader.nested("loop", "it is bound inside a loop", [], begin)
        builder.counters.pop()
        waves = _ceildiv(total, self.wave)
        builder.emit(For(var, int32(0), waves, int32(1), block, location=where))


def _value(reader: Any, target: ast.Name) -> Expr:
    return reader.frame.look_up(target.id, reader.frame.place(target)).value.expr


def _ceildiv(a: Expr, b: Expr) -> Expr:
    return binary("floordiv", binary("sub", binary("add", a, b), int32(1)), b)


def persistent(
    domain: Any, wave_size: Any, index: Any, group_size: Any = 8, num_stages: int = 0
) -> Persistent:
    """Divide the tiles of a domain among `wave_size` workers, of which this is the `index`th."""
    numbers = [cast(lift_index(each), INT32) for each in (*as_tuple(domain), wave_size, index)]
    *extents, wave, own = numbers
    return Persistent(tuple(extents), wave, own, cast(lift_index(group_size), INT32))


FUNCTIONS: dict[str, Any] = {
    "Parallel": parallel,
    "parallel": parallel,
    "Pipelined": pipelined,
    "Persistent": persistent,
    "serial": serial,
    "Serial": serial,
    "unroll": unroll,
    "Unroll": unroll,
    "vectorized": vectorized,
    "Vectorized": vectorized,
    "loop_break": loop_break,
}
