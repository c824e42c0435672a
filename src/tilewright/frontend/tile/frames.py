"""What functions of the tile dialect give to the reader, for `with` and `for`.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from tilewright.ir.expressions import Expr


@dataclass(frozen=True)
class WarpGroups:
    """`with T.ws(…)`: the body is for threads in which the condition holds."""

    condition: Expr


class Ignored:
    """A frame that changes nothing of its body."""


class TileLoop(ABC):
    """A loop that finds what its target names in each turn."""

    @abstractmethod
    def read(self, reader: Any, node: ast.For) -> None:
        """Read the loop with its body."""
