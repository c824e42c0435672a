"""The tile dialect: `from tilewright import tile as T`.

Kernels say what a CTA does with tiles: copies, products, reductions, element-wise loops. Which
thread holds what, and who waits for whom, is the compiler's.
"""

from __future__ import annotations

import difflib
from typing import Any

from tilewright.frontend.tile_table import TABLE

__all__ = sorted(TABLE)  # pyright: ignore[reportUnsupportedDunderAll]

globals().update(TABLE)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    close = difflib.get_close_matches(name, __all__, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise AttributeError(f"the dialect tile has no name {name!r}{hint}")


def __dir__() -> list[str]:
    return __all__
