"""Which lines of a kernel arrive at an mbarrier, and which count bytes there.

May import `base`, `isa` and `ir`. Told by the buffer that the address is computed from, whatever
the index: which one of a ring is meant is known only when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Expr
from tilewright.ir.operands import paired_operands
from tilewright.ir.statements import Bind, Instruct, Kernel
from tilewright.ir.visit import variables, walk_statements
from tilewright.isa import mbarrier
from tilewright.isa.declaration import Form, Operand

_SHARED = (Space.SHARED, Space.SHARED_CLUSTER)
ARRIVALS = frozenset(
    (
        mbarrier.arrive,
        mbarrier.arrive_count,
        mbarrier.arrive_sink,
        mbarrier.arrive_count_sink,
        mbarrier.arrive_expect_tx,
        mbarrier.arrive_expect_tx_sink,
        mbarrier.arrive_no_complete,
    )
)
_BYTES = frozenset(
    (
        mbarrier.arrive_expect_tx,
        mbarrier.arrive_expect_tx_sink,
        mbarrier.expect_tx,
        mbarrier.complete_tx,
    )
)
# Of what completes through an mbarrier, this agent counts bytes; the others arrive.
_COUNTING = "bulk_copy"


def arrivals_at(kernel: Kernel, buffer: str) -> list[str]:
    """List the lines that arrive at mbarriers of a buffer, and by what."""
    return _lines(kernel, buffer, arrives)


def bytes_for(kernel: Kernel, buffer: str) -> list[str]:
    """List the lines that announce or deliver bytes to mbarriers of a buffer."""
    return _lines(kernel, buffer, _counts)


def arrives(form: Form) -> bool:
    """Tell an arrival at an mbarrier, at once or by an agent later."""
    time = form.time
    later = time.completes == "mbarrier" and time.agent != _COUNTING
    return later or form.declaration in ARRIVALS


def _counts(form: Form) -> bool:
    time = form.time
    later = time.completes == "mbarrier" and time.agent == _COUNTING
    return later or form.declaration in _BYTES


def _lines(kernel: Kernel, buffer: str, wanted: Callable[[Form], bool]) -> list[str]:
    statements = list(walk_statements(kernel.body))
    values = {each.var.name: each.value for each in statements if isinstance(each, Bind)}
    found: dict[str, None] = {}
    for stmt in statements:
        if isinstance(stmt, Instruct) and wanted(stmt.form):
            names = {name for each in _mbarriers(stmt) for name in _names(each, values)}
            if buffer in names and stmt.location is not None:
                found[f"{stmt.form.text} at {stmt.location.header()}"] = None
    return list(found)


def _mbarriers(stmt: Instruct) -> Iterator[Expr]:
    for declared, operand in paired_operands(stmt.form, stmt.operands):
        if _is_mbarrier(declared):
            yield operand


def _is_mbarrier(declared: Operand) -> bool:
    return (
        declared.kind == "address"
        and declared.space in _SHARED
        and declared.access == "update"
        and declared.bytes == mbarrier.BYTES
    )


def _names(expr: Expr, values: dict[str, Expr]) -> set[str]:
    """Name all variables that an expression is computed from."""
    found: set[str] = set()
    rest: list[Expr] = [expr]
    while rest:
        for each in variables(rest.pop()):
            if each.name not in found:
                found.add(each.name)
                if each.name in values:
                    rest.append(values[each.name])
    return found
