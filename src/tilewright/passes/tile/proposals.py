"""Where the elements of a fragment could be, by a loop that goes through them.

May import `base`, `layout`, `ir`, `passes.analysis` and the modules of this folder above.

    for i, j in T.Parallel(8, 64): y[j // 2] = …     # the digits of j, but for the last of 2
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.expressions import Binary, Expr, Var, as_constant
from tilewright.ir.rewrite import substitute
from tilewright.layout import TileLayout, m
from tilewright.layout.axes import tx
from tilewright.layout.fragment import Fragment
from tilewright.layout.spec import Iter
from tilewright.passes.analysis.facts import Fact
from tilewright.passes.analysis.linear import linear_of
from tilewright.passes.analysis.ranges import Ranges
from tilewright.passes.simplify import simplify_expression
from tilewright.passes.tile.division import Division, depends, inlined
from tilewright.passes.tile.points import Points


def proposed(points: Points, shape: Sequence[int], indices: Sequence[Expr]) -> Fragment | None:
    """Find where the elements of a fragment are if each thread has those of its points.

    `None` if the loop does not go through all of them, or does not say it.
    """
    division = points.division
    values = dict(zip((each.name for each in points.vars), division.values, strict=True))
    ranges = _ranges(points)
    shard: list[Iter] = []
    domain: list[int] = []
    for extent, index in zip(shape, indices, strict=True):
        known = substitute(inlined(index, points.scene.bindings), values)
        if not depends(known, division.axes):
            # A thread has all along an axis that its points do not tell apart.
            digits: tuple[Iter, ...] | None = (Iter(extent, 0, m),)
        else:
            digits = _digits(simplify_expression(known, ranges), division)
        if digits is None or prod(each.extent for each in digits) < extent:
            return None
        shard += digits
        domain.append(prod(each.extent for each in digits))
    copies = _left_over(division.box, shard)
    if copies is None:
        return None
    layout = TileLayout.from_iters(_renumbered(shard), copies)
    return Fragment(tuple(shape), layout, tuple(domain))


def _ranges(points: Points) -> Ranges:
    division = points.division
    pairs = zip(division.axes, division.box.shape, strict=True)
    facts = {axis.name: Fact(0, extent - 1) for axis, extent in pairs}
    return points.scene.ranges.with_facts(facts)


def _digits(index: Expr, division: Division) -> tuple[Iter, ...] | None:
    """List the digits of a box that an index counts, the outermost first."""
    match index:
        case Var() if index in division.axes:
            return division.box.groups[division.axes.index(index)]
        case Binary(op="floordiv" | "truncdiv", left=left, right=right):
            by, inner = as_constant(right), _digits(left, division)
            return None if by is None or inner is None else _outer(inner, int(by))
        case Binary(op="mod" | "truncmod", left=left, right=right):
            by, inner = as_constant(right), _digits(left, division)
            return None if by is None or inner is None else _inner(inner, int(by))
        case _:
            return _summed(index, division)


def _summed(index: Expr, division: Division) -> tuple[Iter, ...] | None:
    total = linear_of(index)
    if total.constant or list(total.terms) == [index]:
        return None
    reach = 1
    found: tuple[Iter, ...] = ()
    for term, step in sorted(total.terms.items(), key=lambda each: abs(each[1])):
        digits = _digits(term, division)
        if digits is None or step != reach:
            return None
        found = (*digits, *found)
        reach *= prod(each.extent for each in digits)
    return found


def _outer(digits: Sequence[Iter], by: int) -> tuple[Iter, ...] | None:
    """Drop the inner digits that count to a number."""
    kept = list(digits)
    while by > 1:
        if not kept:
            return None
        last = kept.pop()
        if by % last.extent == 0:
            by //= last.extent
        elif last.extent % by == 0:
            kept.append(Iter(last.extent // by, last.stride * by, last.axis))
            by = 1
        else:
            return None
    return tuple(kept) or (Iter(1, 0, m),)


def _inner(digits: Sequence[Iter], by: int) -> tuple[Iter, ...] | None:
    """Keep the inner digits that count to a number."""
    rest = list(digits)
    kept: list[Iter] = []
    while by > 1:
        if not rest:
            return None
        last = rest.pop()
        if by % last.extent == 0:
            kept.insert(0, last)
            by //= last.extent
        elif last.extent % by == 0:
            kept.insert(0, Iter(by, last.stride, last.axis))
            by = 1
        else:
            return None
    return tuple(kept) or (Iter(1, 0, m),)


def _left_over(box: Fragment, used: Sequence[Iter]) -> list[Iter] | None:
    """List what counts threads and is not used: replicas; `None` if something is used twice."""
    copies = [each for each in box.layout.replica if each.extent > 1]
    wanted = [each for each in used if each.axis == tx and each.extent > 1]
    for group in box.groups:
        for each in group:
            if each.axis != tx or each.extent == 1:
                continue
            mine = [e for e in wanted if each.stride <= e.stride < each.stride * each.extent]
            low = each.stride
            for part in sorted(mine, key=lambda e: e.stride):
                if part.stride % low or part.stride < low:
                    return None
                if part.stride > low:
                    copies.append(Iter(part.stride // low, low, tx))
                low = part.stride * part.extent
            if low < each.stride * each.extent:
                copies.append(Iter(each.stride * each.extent // low, low, tx))
    return copies


def _renumbered(shard: Sequence[Iter]) -> list[Iter]:
    """Number registers without gaps, in the order that they had."""
    own = sorted(
        (at for at, each in enumerate(shard) if each.axis == m), key=lambda at: shard[at].stride
    )
    strides: dict[int, int] = {}
    following = 1
    for at in own:
        strides[at] = following
        following *= shard[at].extent
    return [
        Iter(each.extent, strides[at], m) if each.axis == m else each
        for at, each in enumerate(shard)
    ]
