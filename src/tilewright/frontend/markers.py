"""What dialect functions give to the reader so that it does something for them.

May import `ir` and `frontend.values`. A reader looks at what a statement or an assignment has
evaluated to: these objects say "loop over this", "leave it as it is", "bind it".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.ir.expressions import Expr
from tilewright.ir.statements import For, Stmt


@dataclass(frozen=True)
class Loop:
    """A loop of the kernel: what a `for` statement runs over.

    `finish` makes another statement of the nest of loops that the reader has read.
    """

    ranges: tuple[tuple[Expr, Expr, Expr], ...]
    kind: str = "serial"
    dtype: DType | None = None
    finish: Callable[[For], Stmt] | None = None


@dataclass(frozen=True)
class MetaValue:
    """A Python value that an assignment leaves as it is."""

    value: Any


class Expanded:
    """A function whose source is read where a kernel calls it; its arguments are values."""


@dataclass(frozen=True)
class Let:
    """The annotation of a binding that is made in the kernel whatever its value.

    `kind` is the annotation of the value's type, if it is given.
    """

    kind: Any = None

    def __getitem__(self, kind: Any) -> Let:
        return Let(kind)


@dataclass(frozen=True)
class Constexpr:
    """The annotation of a parameter or a name that is known when the kernel is compiled."""

    def __call__(self, value: Any) -> Any:
        return bool(value)

    def __getitem__(self, kind: Any) -> Constexpr:
        return self
