"""What state this package's own code is in, for recipes of what its code has made.

Imports nothing from this package.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


@cache
def fingerprint() -> str | None:
    """Hash the package's source files by their status; `None` where they are no files.

    The status of a file changes whenever it is written or put in place, which its version
    number does not, and the time that an installer gives it need not.
    """
    try:
        status = sorted(_status(str(_PACKAGE)))
    except OSError:
        return None
    return hashlib.sha256(repr(status).encode()).hexdigest()


def _status(folder: str) -> Iterator[tuple[str, int, int, int]]:
    for each in os.scandir(folder):
        if each.is_dir():
            yield from _status(each.path)
        elif each.name.endswith(".py"):
            found = each.stat()
            yield each.path, found.st_size, found.st_mtime_ns, found.st_ctime_ns
