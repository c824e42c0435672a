"""The simt dialect: `from tilewright import simt as T`.

Kernels are Python functions under `@T.function` that say what each thread does, with the
instructions of PTX (`T.ptx`), the ids and collectives of CUDA (`T.cuda`), and tile operations.
"""

from __future__ import annotations

import difflib
from typing import Any

from tilewright.frontend.simt_table import TABLE

__all__ = sorted(TABLE)  # pyright: ignore[reportUnsupportedDunderAll]

globals().update(TABLE)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    close = difflib.get_close_matches(name, __all__, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise AttributeError(f"the dialect simt has no name {name!r}{hint}")


def __dir__() -> list[str]:
    return __all__
