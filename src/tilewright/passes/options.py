"""What a compilation may choose, apart from its target.

May import `passes.show_state` and `passes.tile.notes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.show_state import Dump
from tilewright.passes.tile.notes import Note


@dataclass(frozen=True)
class Options:
    """The choices of a compilation.

    `contract` lets products be contracted with sums (`contract_products`). `dumps` are breakpoints
    to add (`show_state`), `notes` a list that gets what is not done, and why.
    """

    contract: bool = True
    dumps: tuple[Dump, ...] = ()
    notes: list[Note] | None = None
