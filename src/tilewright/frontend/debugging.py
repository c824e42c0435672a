"""Looking on while a kernel runs.

May import `base`, `ir` and the modules of this folder.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.values import lift
from tilewright.ir.print_expressions import print_expr
from tilewright.ir.statements import PARTS, Breakpoint


def breakpoint(*values: Any, parts: Any = PARTS, labels: tuple[str, ...] = ()) -> None:
    """Print the state of the threads that are here, and go on.

    That is what the simulator does; on a GPU it is nothing. Without values all numbers that have
    names here are shown, and the first 16 elements of local arrays. `parts` is one or more of
    "regs", "shared" (the CTA's shared memory) and "tmem" (its Tensor Memory); `labels` are names
    for the values. Raises `FrontendError` (`bad-call`) for another part.
    """
    chosen = (parts,) if isinstance(parts, str) else tuple(parts)
    unknown = [each for each in chosen if each not in PARTS]
    if unknown:
        raise FrontendError(
            f"{unknown[0]!r} is no part of the state",
            code="bad-call",
            location=argument_place("parts"),
            expected=", ".join(PARTS),
        )
    operands = tuple(lift(each) for each in values)
    names = labels or tuple(map(print_expr, operands))
    current().emit(Breakpoint(names, operands, chosen, location=here()))
