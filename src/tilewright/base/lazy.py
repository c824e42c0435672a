"""Imports that are put off until they are needed: of optional packages, and of this one's parts.

Imports only `base.errors`. The only place where `torch`, `cuda.*` and the like may be imported.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from tilewright.base.errors import TargetError


def optional(name: str, *, extra: str | None = None, purpose: str) -> ModuleType:
    """Import a module that an extra of this package brings.

    `purpose` completes the sentence "… is needed to". Raises `TargetError` with the way to
    install it where it is absent.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        install = f"pip install 'tilewright[{extra}]'" if extra else f"pip install {name}"
        raise TargetError(
            f"the package {name!r} is needed to {purpose}",
            code="missing-tool",
            found=str(error),
            hint=install,
        ) from error


class _Later(ModuleType):
    """A module that is loaded when something of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # who looks at all modules does not use this one
        return getattr(importlib.import_module(self.__name__), name)


def module(name: str) -> ModuleType:
    """Give a module of this package that only some runs need; it is loaded when it is used.

    What is to know its types imports it where `TYPE_CHECKING` holds.
    """
    return _Later(name)


def loaded(name: str) -> ModuleType | None:
    """Give a module if the program itself has imported it already."""
    return sys.modules.get(name)
