"""Tensor maps: the arguments whose memory they describe, and through which a kernel writes.

May import `base`, `isa` and `ir`.

    >>> tensor_map_bases(program.host), written_tensor_maps(kernel)
    ({'amap': 'A', 'cmap': 'C'}, frozenset({'cmap'}))
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.spaces import Space
from tilewright.ir.expressions import AddressOf, Bitcast, Expr, Offset, Var
from tilewright.ir.statements import Assign, Bind, Block, Declare, EncodeTensorMap, Instruct, Kernel
from tilewright.ir.types import TensorMapType
from tilewright.ir.visit import root, walk, walk_statements
from tilewright.isa.declaration import Form

_SHARED = (Space.SHARED, Space.SHARED_CLUSTER)


def tensor_map_bases(host: Block) -> dict[str, str]:
    """Name the parameter that each tensor map's pointer is computed from, by the map's name."""
    statements = tuple(walk_statements(host))
    bound = {stmt.var.name: stmt.value for stmt in statements if isinstance(stmt, Bind)}
    return {
        stmt.var.name: _base(stmt.pointer, bound)
        for stmt in statements
        if isinstance(stmt, EncodeTensorMap)
    }


def _base(pointer: Expr, bound: Mapping[str, Expr]) -> str:
    match pointer:
        case Offset(pointer=inner) | Bitcast(operand=inner):
            return _base(inner, bound)
        case AddressOf(tensor=tensor):
            return _base(root(tensor), bound)
        case Var(name=name):
            return _base(bound[name], bound) if name in bound else name
        case _:
            raise AssertionError(f"{pointer} is computed from no parameter")


def written_tensor_maps(kernel: Kernel) -> frozenset[str]:
    """Name the tensor maps through which a kernel may write: those that stores are given."""
    statements = tuple(walk_statements(kernel.body))
    holders = [stmt for stmt in statements if isinstance(stmt, Bind | Declare | Assign)]
    held: dict[str, frozenset[str]] = {}
    changed = True
    while changed:
        before = dict(held)
        for stmt in holders:
            known = held.get(stmt.var.name, frozenset[str]())
            held[stmt.var.name] = known | _maps_in(stmt.value, held)
        changed = held != before
    stores = [stmt for stmt in statements if isinstance(stmt, Instruct) and _stores(stmt.form)]
    operands = (operand for stmt in stores for operand in stmt.operands)
    return frozenset[str]().union(*(_maps_in(operand, held) for operand in operands))


def _maps_in(value: Expr | None, held: Mapping[str, frozenset[str]]) -> frozenset[str]:
    found = frozenset[str]()
    for each in () if value is None else walk(value):
        match each:
            case Var(name=name, type=TensorMapType()):
                found |= {name}
            case Var(name=name):
                found |= held.get(name, frozenset[str]())
            case _:
                continue
    return found


def _stores(form: Form) -> bool:
    """Tell whether an instruction may bring data out of shared memory."""
    return any(each.space in _SHARED and each.access == "read" for each in form.operands)
