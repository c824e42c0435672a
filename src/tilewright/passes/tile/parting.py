"""Which threads of a CTA may go another way than others, or have other values.

May import `base`, `ir`.
"""

from __future__ import annotations

from tilewright.base.spaces import Space
from tilewright.ir.expressions import AddressOf, Expr, SpecialRegister, Var
from tilewright.ir.statements import (
    Apply,
    Assign,
    Bind,
    Block,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Store,
    While,
)
from tilewright.ir.tile import (
    CopyTile,
    FillTile,
    ParallelTile,
    PipelinedTile,
    ReduceTile,
    ScanTile,
)
from tilewright.ir.types import TensorType
from tilewright.ir.visit import root, walk

# The registers that have one value in all threads of a CTA.
_UNIFORM = ("ctaid", "nctaid", "ntid", "clusterid", "cluster_ctaid", "cluster_ctarank")


def parts(stmt: If | For | While, names: set[str]) -> bool:
    """Tell whether some threads may go another way than others; `names` are the divergent ones."""
    match stmt:
        case For():
            deciding: tuple[Expr, ...] = (stmt.start, stmt.stop, stmt.step)
        case _:
            deciding = (stmt.condition,)
    return any(varies(each, names) for value in deciding for each in walk(value))


def varies(node: object, names: set[str]) -> bool:
    """Tell whether a node itself may have another value in some threads than in others.

    What all read at one place is one value: a barrier keeps those that write there away. Of arrays
    that each thread has, `names` are those whose elements may differ.
    """
    match node:
        case SpecialRegister():
            return node.name.split(".")[0] not in _UNIFORM
        case Var():
            return node.name in names
        case _:
            return False


def divergent(kernel: Kernel) -> set[str]:
    """List the names whose values may differ between the threads of a CTA."""
    found: set[str] = set()
    while True:
        before = len(found)
        _collect(kernel.body, found, False)
        if len(found) == before:
            return found


def _collect(block: Block, found: set[str], parted: bool) -> None:
    for stmt in block:
        match stmt:
            case Bind() | Declare() | Assign():
                own = stmt.value is not None and any(varies(e, found) for e in walk(stmt.value))
                if own or (parted and not isinstance(stmt, Bind)):
                    found.add(stmt.var.name)
            case Store():
                own = any(
                    varies(e, found) for part in (stmt.value, *stmt.indices) for e in walk(part)
                )
                if own or parted:
                    found |= _arrays(stmt.tensor)
            case Instruct():
                found |= {each.name for each in map(root, stmt.operands) if isinstance(each, Var)}
                addressed = (each for each in walk(stmt) if isinstance(each, AddressOf))
                found |= {name for each in addressed for name in _arrays(each.tensor)}
            case FillTile():
                if parted or any(varies(e, found) for e in walk(stmt.value)):
                    found |= _arrays(stmt.target)
            case CopyTile() | ReduceTile() | ScanTile():
                found |= _arrays(stmt.target)
            case Apply():
                found |= {name for each in stmt.operands for name in _arrays(each)}
            case If():
                here = parted or parts(stmt, found)
                _collect(stmt.then, found, here)
                _collect(stmt.orelse, found, here)
            case For():
                own = parts(stmt, found)
                if own:
                    found.add(stmt.var.name)
                _collect(stmt.body, found, parted or own)
            case While():
                here = parted or parts(stmt, found)
                _collect(stmt.body, found, here)
            case ParallelTile():
                found |= {each.name for each in stmt.vars}
                _collect(stmt.body, found, True)
            case PipelinedTile():
                own = any(varies(e, found) for part in (stmt.start, stmt.stop) for e in walk(part))
                if own:
                    found.add(stmt.var.name)
                _collect(stmt.body, found, parted or own)
            case _:
                continue


def _arrays(tile: Expr) -> set[str]:
    """Name the array that a tile is of, if each thread has one for itself."""
    buffer = root(tile)
    if not isinstance(buffer, Var) or not isinstance(buffer.type, TensorType):
        return set()
    return {buffer.name} if buffer.type.space is Space.LOCAL else set()
