"""Imports of optional packages, put off until they are needed.

Imports only `base.errors`. The only place where `torch`, `cuda.*` and the like may be imported.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

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


def loaded(name: str) -> ModuleType | None:
    """Give a module if the program itself has imported it already."""
    return sys.modules.get(name)
