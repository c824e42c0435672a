"""What statements read and write, of memory that the threads of a CTA share.

May import `base`, `isa` and `ir`. Registers, cells and fragments are nobody else's; barriers are
no data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tilewright.base.spaces import Space
from tilewright.ir.expressions import AddressOf, Expr, Load, Var
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply, Instruct, Stmt, Store
from tilewright.ir.tile import (
    AtomicTile,
    CopyTile,
    FillTile,
    GemmTile,
    ParallelTile,
    ReduceTile,
    ScanTile,
    TileStmt,
)
from tilewright.ir.types import ScalarType, TensorType
from tilewright.ir.visit import block_fields, children, root, walk

SHARED_BY_THREADS = (Space.SHARED, Space.GLOBAL, Space.TMEM)


@dataclass(frozen=True)
class Access:
    """An access of a buffer: by the threads themselves, or by an asynchronous agent of theirs.

    `tile` is what is accessed: a tile, an element (`Load`) or an address.
    """

    buffer: Var
    mode: Literal["read", "write"]
    tile: Expr
    by_agent: bool = False


def accesses(stmt: Stmt) -> list[Access]:
    """List what a statement itself accesses; blocks in it are left out, but for parallel loops."""
    return [each for each in _accesses(stmt) if _is_shared(each.buffer)]


def touched(stmt: Stmt) -> list[Access]:
    """List what a statement accesses as `accesses` does, registers and fragments too."""
    return list(_accesses(stmt))


def _accesses(stmt: Stmt) -> Iterator[Access]:
    match stmt:
        case CopyTile():
            # By `way` it is threads that read and write, or the copy engine.
            agent = stmt.way == "tma"
            yield from _tile(stmt.source, "read", agent)
            yield from _tile(stmt.target, "write", agent)
            if stmt.outside is not None:
                yield from _loads(stmt.outside)
        case GemmTile():
            agent = stmt.way == "tcgen05"
            yield from _tile(stmt.a, "read", agent)
            yield from _tile(stmt.b, "read", agent)
            yield from _tile(stmt.c, "write", agent)
        case FillTile():
            yield from _tile(stmt.target, "write")
        case ReduceTile() | ScanTile():
            yield from _tile(stmt.source, "read")
            yield from _tile(stmt.target, "write")
        case AtomicTile():
            yield from _tile(stmt.value, "read")
            yield from _tile(stmt.target, "write")
        case ParallelTile():
            for each in walk(stmt.body):
                if isinstance(each, Stmt):
                    yield from _accesses(each) if not isinstance(each, TileStmt) else ()
            return
        case Store():
            place = Load(stmt.tensor, stmt.indices, ScalarType(tensor_type(stmt.tensor).dtype))
            yield from _element(place, "write")
        case Instruct() | Apply():
            yield from _operands(stmt)
            return
        case _:
            pass
    blocks = block_fields(type(stmt))
    inside = {id(each) for name in blocks for each in getattr(stmt, name)}
    for child in children(stmt):
        if id(child) not in inside and isinstance(child, Expr):
            yield from _loads(child)


def _tile(tile: Expr, mode: Literal["read", "write"], by_agent: bool = False) -> Iterator[Access]:
    buffer = root(tile)
    if isinstance(buffer, Var):
        yield Access(buffer, mode, tile, by_agent)


def _loads(value: Expr) -> Iterator[Access]:
    for each in walk(value):
        if isinstance(each, Load):
            yield from _element(each, "read")


def _element(place: Load | AddressOf, mode: Literal["read", "write"]) -> Iterator[Access]:
    buffer = root(place.tensor)
    if isinstance(buffer, Var):
        yield Access(buffer, mode, place)


def _operands(stmt: Instruct | Apply) -> Iterator[Access]:
    """List what an instruction accesses through addresses, or tiles: as reads and as writes.

    Which of them it does, and when, the program that issues it by hand knows.
    """
    for each in stmt.operands:
        for node in walk(each):
            if isinstance(node, Load):
                yield from _element(node, "read")
            elif isinstance(node, AddressOf):
                yield from _element(node, "read")
                yield from _element(node, "write")


def _is_shared(buffer: Var) -> bool:
    type = buffer.type
    return isinstance(type, TensorType) and type.space in SHARED_BY_THREADS
