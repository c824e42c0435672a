"""Mutators of tile operations, as the source has them: what they are told beside their operands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from mutations import BOUNDS, HANGS, MBARRIER, UNORDERED, Change, everywhere, mutator
from sites import Site, Source

from tilewright.ir.statements import Apply, Stmt

_SWIZZLES = range(4)
_REFUSED = frozenset(("tile-layout", "tile-shape", "tile-operand", "tile-ownership"))


def _told(stmt: Stmt, name: str, value: Any) -> tuple[Stmt, ...]:
    """Give a tile operation another value for a parameter."""
    apply = cast(Apply, stmt)
    pairs = tuple((each, value if each == name else old) for each, old in apply.parameters)
    return (replace(apply, parameters=pairs),)


@mutator("swizzle", tiles=True)
def other_swizzle(source: Source, site: Site) -> Iterator[Change]:
    """Copy boxes by another swizzle than the tile's."""
    stmt = site.statement
    given = dict(stmt.parameters) if isinstance(stmt, Apply) else {}
    for mode in _SWIZZLES if "swizzle" in given else ():
        program = everywhere(source, site, lambda each, m=mode: _told(each, "swizzle", m))
        yield Change(f"swizzle={mode}", program, _REFUSED | {"descriptor"})


@mutator("bytes", tiles=True)
def other_box(source: Source, site: Site) -> Iterator[Change]:
    """Copy a row less."""
    stmt = site.statement
    given = dict(stmt.parameters) if isinstance(stmt, Apply) else {}
    if "box" in given:
        first, *rest = given["box"]
        program = everywhere(source, site, lambda each: _told(each, "box", (first - 1, *rest)))
        yield Change("a row less", program, _REFUSED | MBARRIER | HANGS | UNORDERED | BOUNDS)
