"""The loops of the tile dialect: `T.Parallel`, `T.Pipelined`, `T.Persistent` and plain ones.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import INT32
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.frames import Binding
from tilewright.frontend.markers import Loop
from tilewright.frontend.tile.annotations import loop_layout as layout_of
from tilewright.frontend.tile.frames import TileLoop
from tilewright.frontend.tile.options import check_width, hints, not_given
from tilewright.frontend.values import as_tuple, constant_int, lift_index, wrap
from tilewright.ir.expressions import Expr, Load, Var, as_constant, binary, cast, int32
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Bind, Block, Break, For, If, Stmt, Store
from tilewright.ir.tile import AnnotateTile, ParallelTile, PipelinedTile, TileStmt
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import variables, walk_kinds


def parallel(
    *extents: Any,
    coalesced_width: int | None = None,
    loop_layout: Any = None,
    prefer_async: bool | None = None,
    annotations: Any = None,
) -> Loop:
    """Run a body once for each point of a box, divided among the threads: `for i, j in …`."""
    hints(annotations)
    check_width(coalesced_width)
    if not extents:
        raise FrontendError(
            "a parallel loop has at least one extent", code="bad-call", location=here()
        )
    ranges = tuple((int32(0), lift_index(each), int32(1)) for each in extents)
    chosen = layout_of(loop_layout, [stop for _, stop, _ in ranges])

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
        _check_points(names, body)
        return ParallelTile(
            tuple(names), tuple(sizes), body, chosen, coalesced_width, location=loop.location
        )

    return Loop(ranges, "parallel", finish=finish)


def _check_points(names: Sequence[Var], body: Block) -> None:
    """Refuse what has no meaning in a loop that threads divide among them.

    That is what they carry out together, and the arrays of each by the numbers of points.
    """
    _check_arrays(names, body)
    for each in walk_kinds(body, TileStmt):
        if isinstance(each, AnnotateTile):
            continue
        nested = isinstance(each, ParallelTile)
        raise FrontendError(
            "a parallel loop holds another one, and more"
            if nested
            else "all threads carry this out together, and a parallel loop divides them",
            code="unsupported-statement",
            location=each.location,
            expected="loops with nothing between them, or T.Parallel(m, n)"
            if nested
            else "elements, as in c[i, j] = a[i, j] * 2",
            hint=None if nested else "take it out of the loop, or count by T.serial",
        )


def _check_arrays(names: Sequence[Var], body: Block) -> None:
    own = {each.name for each in names}
    for bound in walk_kinds(body, Bind):
        if any(each.name in own for each in variables(bound.value)):
            own.add(bound.var.name)
    for each in walk_kinds(body, Load, Store):
        by = [var.name for index in each.indices for var in variables(index) if var.name in own]
        if by and tensor_type(each.tensor).space is Space.LOCAL:
            raise FrontendError(
                f"each thread has an array of its own, and {by[0]} numbers points that others have",
                code="bad-index",
                location=each.location,
                expected="an index that does not depend on the point of a parallel loop",
                hint="hold it in T.alloc_fragment, or in T.alloc_shared, or count by T.serial",
            )


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
    """Count, with the copies of later turns under way while a turn computes.

    `stage` and `order` decide by hand, for each statement of the loop, how many turns late it does
    its work, and its rank among the statements. Raises `FrontendError` (`bad-call`,
    `not-supported`).
    """
    hints(annotations)
    for place, (name, value) in enumerate((("sync", sync), ("group", group)), 5):
        hint = "a schedule is stage= and order=, with an entry for each statement"
        not_given(name, value, hint, place)
    stages_by_hand, order_by_hand = _numbers("stage", stage), _numbers("order", order)
    if (stages_by_hand is None) != (order_by_hand is None):
        missing, given = ("order", "stage") if order_by_hand is None else ("stage", "order")
        raise FrontendError(
            f"a schedule has {missing}= where it has {given}=",
            code="bad-call",
            location=argument_place(given, 3 if given == "order" else 4),
            expected="stage= and order=, with an entry for each statement of the loop",
        )
    if order_by_hand is not None and len(set(order_by_hand)) < len(order_by_hand):
        raise FrontendError(
            "two statements of a schedule have the same rank",
            code="bad-call",
            location=argument_place("order", 3),
            found=str(list(order_by_hand)),
        )
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
            stages_by_hand,
            order_by_hand,
            location=loop.location,
        )

    return Loop(ranges, finish=finish)


def _numbers(name: str, given: Any) -> tuple[int, ...] | None:
    """Read one side of a schedule that is given by hand, by statement; an empty one is none."""
    if given is None or not as_tuple(given):
        return None
    found = tuple(constant_int(each, "a number of a schedule") for each in as_tuple(given))
    if min(found) < 0:
        raise FrontendError(
            f"{name} has numbers from 0 on",
            code="bad-call",
            location=argument_place(name, 3 if name == "order" else 4),
            found=str(list(found)),
        )
    return found


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
    hints(annotations)
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
    hints(annotations)
    return _counted("unroll", start, stop, step)


def vectorized(start: Any, stop: Any = None, annotations: Any = None) -> Loop:
    """Count, in a loop that may become vector operations."""
    hints(annotations)
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
