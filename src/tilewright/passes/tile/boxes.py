"""Which part of its buffer a tile is, and when two parts have no element in common.

May import `base`, `ir` and `passes.analysis`. A part is a box: a start and an extent along each
axis, of which some may be unknown. What was accessed in an earlier turn of a loop has a start
in which the loop's counter is another variable, that is known to have had another value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tilewright.ir.expressions import Binary, Expr, Load, Subview, Var, as_constant, binary, int32
from tilewright.ir.rewrite import substitute
from tilewright.ir.shapes import tensor_type
from tilewright.ir.visit import variables
from tilewright.passes.analysis.linear import linear_of

# No name of a program has a space.
_EARLIER = " earlier"


@dataclass(frozen=True)
class Span:
    """The elements along an axis; `None` for a start or an extent that is not known."""

    start: Expr | None
    extent: int | None


Box = tuple[Span, ...]


def box_of(tile: Expr, is_steady: Callable[[Expr], bool]) -> Box | None:
    """Give the part of its buffer that a tile or an element is; `None` if that is not known.

    `is_steady` tells the starts that are the same for all threads, and do not change in a turn.
    """
    match tile:
        case Var():
            return tuple(Span(int32(0), _number(each)) for each in tensor_type(tile).shape)
        case Subview(source=source) if all(step == 1 for step in tile.steps):
            kept = iter(tensor_type(tile).shape)
            extents = [1 if gone else _number(next(kept)) for gone in tile.dropped]
            return _within(source, tile.starts, extents, is_steady)
        case Load():
            return _within(tile.tensor, tile.indices, [1] * len(tile.indices), is_steady)
        case _:
            return None


def _within(
    source: Expr,
    starts: tuple[Expr, ...],
    extents: list[int | None],
    is_steady: Callable[[Expr], bool],
) -> Box | None:
    """Place a part of a part."""
    around = box_of(source, is_steady)
    if around is None:
        return None
    inner = iter([*zip(starts, extents, strict=True)])
    dropped = source.dropped if isinstance(source, Subview) else (False,) * len(around)
    found: list[Span] = []
    for span, gone in zip(around, dropped, strict=True):
        if gone:
            found.append(span)
            continue
        start, extent = next(inner)
        base = span.start if is_steady(start) else None
        found.append(Span(None if base is None else binary("add", base, start), extent))
    return tuple(found)


def _number(extent: Expr) -> int | None:
    value = as_constant(extent)
    return None if value is None else int(value)


# ---------------------------------------------------------------------------- turns of loops


def in_earlier_turn(box: Box | None, counter: Var) -> Box | None:
    """Give a part that was accessed in an earlier turn of a loop than the present one."""
    earlier = replace(counter, name=counter.name + _EARLIER)
    # What was earlier then is so now; but of two earlier turns nothing is known.
    return _mapped(box, counter, lambda start: substitute(start, {counter.name: earlier}))


def after_loop(box: Box | None, counter: Var) -> Box | None:
    """Forget the turns of a loop that has ended."""
    return _mapped(box, counter, lambda start: None)


def _mapped(box: Box | None, counter: Var, change: Callable[[Expr], Expr | None]) -> Box | None:
    if box is None:
        return None
    names = (counter.name, counter.name + _EARLIER)

    def mapped(span: Span) -> Span:
        if span.start is None or not any(v.name in names for v in variables(span.start)):
            return span
        return replace(span, start=change(span.start))

    return tuple(map(mapped, box))


# ---------------------------------------------------------------------------- apart


def apart(before: Box | None, now: Box | None) -> bool:
    """Tell whether two parts of a buffer, the first accessed before, have no element in common."""
    if before is None or now is None or len(before) != len(now):
        return False
    return any(_apart(*pair) for pair in zip(before, now, strict=True))


def _apart(before: Span, now: Span) -> bool:
    if before.start is None or now.start is None or None in (before.extent, now.extent):
        return False
    reach = max(before.extent or 1, now.extent or 1)
    for counter in _earlier(before.start):
        # The difference is at least one step of the counter, but for what is constant.
        then = substitute(before.start, {counter.name + _EARLIER: counter})
        distance = _distance(now.start, then)
        step = linear_of(now.start).terms.get(counter, 0)
        if distance is not None and abs(step) - abs(distance) >= reach:
            return True
    match before.start, now.start:
        case Binary(op="mod", left=one, right=n), Binary(op="mod", left=other, right=m) if n == m:
            distance, count = _distance(other, one), as_constant(n)
            return reach == 1 and distance is not None and bool(count) and distance % count != 0
        case _:
            distance = _distance(now.start, before.start)
            return distance is not None and abs(distance) >= reach


def _earlier(start: Expr) -> Iterator[Var]:
    for var in variables(start):
        if var.name.endswith(_EARLIER):
            yield replace(var, name=var.name.removesuffix(_EARLIER))


def _distance(one: Expr, other: Expr) -> int | None:
    """Subtract two numbers that differ by a constant, as far as is known."""
    difference = linear_of(binary("sub", one, other))
    return None if difference.terms else difference.constant
