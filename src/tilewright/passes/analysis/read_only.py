"""Which pointers of a lowered kernel lead to memory that the kernel only reads.

May import `ir`. They are declared `const`. The answer errs on the side of "is written".
"""

from __future__ import annotations

from tilewright.ir.expressions import Bitcast, Expr, Offset, Read, Var
from tilewright.ir.operands import paired_operands
from tilewright.ir.statements import Bind, Instruct, Kernel, Stmt, Write
from tilewright.ir.types import PointerType
from tilewright.ir.visit import children, walk_statements


def base_pointer(pointer: Expr) -> str | None:
    """Name the variable that a pointer is computed from, `None` if it is not just one."""
    match pointer:
        case Var(name=name):
            return name
        case Offset(pointer=inner):
            return base_pointer(inner)
        case Bitcast(operand=inner) if isinstance(inner.type, PointerType):
            return base_pointer(inner)
        case _:
            return None


def read_only_pointers(kernel: Kernel) -> frozenset[str]:
    """Name the pointer parameters that nothing is written through, and the bindings of them."""
    body = tuple(walk_statements(kernel.body))
    bound = {
        stmt.var.name: base_pointer(stmt.value)
        for stmt in body
        if isinstance(stmt, Bind) and isinstance(stmt.var.type, PointerType)
    }
    pointers = {param.name for param in kernel.params if isinstance(param.type, PointerType)}
    written = {_origin(name, bound) for stmt in body for name in _escaping(stmt)}
    roots = pointers - written
    return frozenset(roots | {name for name in bound if _origin(name, bound) in roots})


def _origin(name: str | None, bound: dict[str, str | None]) -> str | None:
    while name in bound:
        name = bound[name]
    return name


def _escaping(stmt: Stmt) -> list[str]:
    """Name the pointers that a statement writes through, or uses in ways not followed here."""
    match stmt:
        case Write(pointer=pointer, value=value):
            return [*_named(pointer), *_unfollowed(pointer), *_unfollowed(value)]
        case Bind(var=var, value=value) if isinstance(var.type, PointerType):
            followed = base_pointer(value) is not None
            return _unfollowed(value, followed=followed)
        case Instruct(form=form, operands=operands, predicate=predicate):
            found = [] if predicate is None else _unfollowed(predicate)
            for declared, operand in paired_operands(form, operands):
                reads = declared.kind == "address" and declared.access == "read"
                found += _unfollowed(operand, followed=reads)
            return found
        case _:
            return [
                name
                for child in children(stmt)
                if isinstance(child, Expr)
                for name in _unfollowed(child)
            ]


def _named(pointer: Expr) -> list[str]:
    name = base_pointer(pointer)
    return [] if name is None else [name]


def _unfollowed(node: Expr, *, followed: bool = False) -> list[str]:
    """Name the pointers in an expression, but those that a read or a binding follows."""
    match node:
        case Var():
            return [node.name] if isinstance(node.type, PointerType) and not followed else []
        case Offset(pointer=pointer, bytes=distance):
            return [*_unfollowed(pointer, followed=followed), *_unfollowed(distance)]
        case Bitcast(operand=operand) if isinstance(operand.type, PointerType):
            into_pointer = isinstance(node.type, PointerType)
            return _unfollowed(operand, followed=followed and into_pointer)
        case Read(pointer=pointer):
            return _unfollowed(pointer, followed=True)
        case _:
            below = (child for child in children(node) if isinstance(child, Expr))
            return [name for child in below for name in _unfollowed(child)]
