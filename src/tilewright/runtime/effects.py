"""Which parameters a lowered kernel may write through.

May import `ir`. An argument that cannot be written is refused only where this says that the
kernel may write it. The answer errs on the side of "may write".
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.expressions import Expr, Load, Read, Var
from tilewright.ir.operands import paired_operands, read_operands, written_places
from tilewright.ir.statements import Assign, Bind, Declare, Instruct, Kernel, Stmt, Store, Write
from tilewright.ir.visit import Node, children, walk_statements


def written_parameters(kernel: Kernel) -> frozenset[str]:
    """Name the parameters whose memory a kernel may write.

    A store writes every parameter that its address is computed from, directly or through
    bindings, cells and local arrays.
    """
    body = tuple(walk_statements(kernel.body))
    sources = _sources(body)
    addresses = (address for statement in body for address in _written_addresses(statement))
    written = _reach({name for each in addresses for name in _names(each)}, sources)
    return frozenset(written & {param.name for param in kernel.params})


def _written_addresses(statement: Stmt) -> Iterable[Expr]:
    match statement:
        case Write():
            return (statement.pointer,)
        case Instruct():
            return (
                operand
                for declared, operand in paired_operands(statement.form, statement.operands)
                if declared.access in ("write", "update")
            )
        case _:
            return ()


def _sources(body: Iterable[Stmt]) -> dict[str, set[str]]:
    """Map each name to the names that its values are computed from."""
    sources: dict[str, set[str]] = {}
    for statement in body:
        match statement:
            case Bind() | Assign() | Declare() if statement.value is not None:
                sources.setdefault(statement.var.name, set()).update(_names(statement.value))
            case Store():
                for name in _names(statement.tensor):
                    sources.setdefault(name, set()).update(_names(statement.value))
            case Instruct():
                inputs = {name for each in read_operands(statement) for name in _names(each)}
                for place in written_places(statement):
                    for name in _names(place):
                        sources.setdefault(name, set()).update(inputs)
            case _:
                pass
    return sources


def _reach(names: set[str], sources: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(sources.get(name, ()))
    return reached


def _names(node: Node) -> set[str]:
    """Name the variables that a value is computed from; what memory holds is not followed."""
    match node:
        case Var():
            return {node.name}
        case Read():
            return set()
        case Load():
            return _names(node.tensor)
        case _:
            return {name for child in children(node) for name in _names(child)}
