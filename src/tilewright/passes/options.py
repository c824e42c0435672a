"""What a compilation may choose, apart from its target.

Imports nothing from this package.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The choices of a compilation.

    `contract` lets products be contracted with sums (`contract_products`); `fast_math` allows
    approximations of less accuracy for divisions, roots and elementary functions.
    """

    contract: bool = True
    fast_math: bool = False
