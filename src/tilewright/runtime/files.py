"""Files that are there whole or not at all.

Imports nothing from this package.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def require_writable(path: Path) -> None:
    """See that a file can be written, and leave what is there as it is. Raises `OSError`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file under another name in its folder, then give it its own.

    A private one is for its owner only. Raises `OSError`.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if not private:  # as it is while it is being written
            os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
