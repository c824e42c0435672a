"""The operands of an instruction in the IR, matched with those that its form declares.

May import `base`, `isa` and the nodes of `ir`. A declared group of n registers takes n operands
of the IR; optional operands may be absent.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expressions import Expr
from tilewright.ir.statements import Instruct
from tilewright.isa.declaration import Form, Operand


def declared_operands(form: Form, count: int) -> tuple[Operand, ...] | None:
    """List the declared operand that each of `count` operands of the IR is (part of).

    Optional operands are left out, last first, until the number fits. `None` if it cannot fit.
    """
    present = list(form.operands)
    while sum(each.count for each in present) > count:
        optional = [index for index, each in enumerate(present) if each.optional]
        if not optional:
            return None
        present.pop(optional[-1])
    expanded = tuple(each for each in present for _ in range(each.count))
    return expanded if len(expanded) == count else None


def paired_operands(form: Form, operands: Sequence[Expr]) -> tuple[tuple[Operand, Expr], ...]:
    """Pair each operand of the IR with the declared operand that it is (part of)."""
    declared = declared_operands(form, len(operands))
    assert declared is not None, f"{form.text} does not take {len(operands)} operands"
    return tuple(zip(declared, operands, strict=True))


def written_places(stmt: Instruct) -> tuple[Expr, ...]:
    """List the places that an instruction writes: cells and elements of local arrays."""
    pairs = paired_operands(stmt.form, stmt.operands)
    return tuple(place for declared, place in pairs if declared.role != "in")


def read_operands(stmt: Instruct) -> tuple[Expr, ...]:
    """List what an instruction reads: inputs, addresses, and places that it updates."""
    pairs = paired_operands(stmt.form, stmt.operands)
    return tuple(operand for declared, operand in pairs if declared.role != "out")
