"""What programs written for other packages build to ask for a target.

Imports `base`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from tilewright.base.targets import requested_arch

# The targets whose `with` is being executed, innermost last.
_entered: ContextVar[tuple[Target, ...]] = ContextVar("entered", default=())


class Target(str):
    """A request for a target: its name, as `compile` takes it, or "cuda" for any.

    Inside of `with Target("sm_90a"):` it is what a compilation is for that names none. `host` is
    accepted and has no meaning here: host statements run in Python. Raises `TargetError`
    (`unknown-target`).
    """

    def __new__(cls, request: str | Mapping[str, Any], host: object = None) -> Target:
        del host
        arch = requested_arch(request) or "cuda"
        return super().__new__(cls, request if isinstance(request, str) else arch)

    @property
    def arch(self) -> str:
        """Give the name of the target, such as "sm_90a", or "cuda" for any."""
        return requested_arch(str(self)) or "cuda"

    def __enter__(self) -> Target:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _entered.set(_entered.get()[:-1])

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """Give the target whose `with` is being executed."""
        del allow_none
        return _entered.get()[-1] if _entered.get() else None


def determine_target(target: Any = "auto", return_object: bool = False) -> Target:
    """Read a target; "auto" is that of the `with` that is being executed, or any."""
    del return_object
    return (Target.current() or Target("cuda")) if target == "auto" else Target(target)
