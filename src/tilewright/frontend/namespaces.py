"""Namespaces of the dialect, such as `T.cuda`: names and what they stand for.

May import `base` and `frontend.builder`.
"""

from __future__ import annotations

import difflib
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import here


class Namespace:
    """Names under a common prefix; asking for another is an error that lists them."""

    def __init__(self, prefix: str, members: dict[str, Any]) -> None:
        self.__dict__["_prefix"] = prefix
        self.__dict__.update(members)

    def __getattr__(self, name: str) -> Any:
        # Python's own protocols ask for such names; `__shfl_sync` and the like are CUDA's.
        if name.startswith("_") and (name.endswith("__") or not name.startswith("__")):
            raise AttributeError(name)
        raise unknown_name(self.__dict__["_prefix"], name, list(self))

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrontendError(
            f"{self.__dict__['_prefix']}.{name} cannot be assigned to",
            code="unsupported-statement",
            location=here(),
        )

    def __iter__(self) -> Any:
        return (name for name in self.__dict__ if name != "_prefix")

    def __dir__(self) -> list[str]:
        return sorted(self)

    def __repr__(self) -> str:
        return self.__dict__["_prefix"]


def unknown_name(prefix: str, name: str, known: list[str]) -> FrontendError:
    """Describe a name that a namespace does not have."""
    close = difflib.get_close_matches(name, known, n=1)
    return FrontendError(
        f"there is no {prefix}.{name}",
        code="unknown-name",
        location=here(),
        expected="one of " + ", ".join(sorted(known)),
        found=name,
        hint=f"did you mean {prefix}.{close[0]}?" if close else None,
    )
