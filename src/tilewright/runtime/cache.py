"""The compile cache: what was compiled, kept in a folder between processes.

May import `runtime.files`. An entry is a file, named by a hash of its recipe, in one of 256
folders. It is written under another name and then given its own; it begins with a checksum, and
one that is not whole is removed. So any number of processes may read and write at once, without
a lock. Each of the folders is bounded by itself, so that a write looks at one of them only.

What is read is native code, among others. The folder must belong to the user, and nobody else may
be able to write to it.

    cache = opened(default_folder(os.environ, sys.platform), print)
    cache.put("cubin", source, cubin); cache.get("cubin", source)
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.files import write_whole

DEFAULT_LIMIT = 1 << 30
FOLDERS = 256
_MAGIC = b"tilewright\0"
_SEAL = len(_MAGIC) + hashlib.sha256().digest_size
_FOLDER = re.compile(r"[0-9a-f]{2}")
_ENTRY = re.compile(r"[0-9a-f]{62}\.(?P<kind>[a-z]+)")
# What a process that was killed has left of a write.
_LEFTOVER = re.compile(r"\.[0-9a-f]{62}\..*")
_LEFT_AFTER = 3600.0


@dataclass(frozen=True)
class Entry:
    """A file of the cache: its kind, its bytes, and when it was last used, in seconds."""

    kind: str
    size: int
    used: float
    path: Path


@dataclass(frozen=True)
class Cleared:
    """How many entries were removed, and their bytes; what could not be removed, and why."""

    count: int
    size: int
    left: tuple[tuple[Path, str], ...] = ()


@dataclass(frozen=True)
class Cache:
    """A folder of entries, bounded to `limit` bytes; those that were not used for long go first.

    An entry that is larger than its share of the 256 folders is not kept.
    """

    folder: Path
    limit: int = DEFAULT_LIMIT

    def get(self, kind: str, recipe: str) -> bytes | None:
        """Give what was made of a recipe; an entry that is damaged is removed."""
        path = self._path(kind, recipe)
        try:
            sealed = path.read_bytes()
        except OSError:
            return None
        data = sealed[_SEAL:]
        with suppress(OSError):
            if sealed == _seal(path, data) + data:
                os.utime(path)
                return data
            path.unlink()
        return None

    def put(self, kind: str, recipe: str, data: bytes) -> None:
        """Keep what was made of a recipe; where it cannot be written, that is no fault."""
        path = self._path(kind, recipe)
        if _SEAL + len(data) > self.limit // FOLDERS:
            return
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, _seal(path, data) + data, private=True)
            self._trim(path.parent)

    def entries(self) -> Iterator[Entry]:
        """List what is there, in no particular order."""
        for folder in _folders(self.folder):
            yield from _entries(folder)

    def clear(self) -> Cleared:
        """Remove every entry, and nothing else; what another process removes meanwhile is gone."""
        gone: list[Entry] = []
        left: list[tuple[Path, str]] = []
        for folder in _folders(self.folder):
            if not os.access(folder, os.R_OK | os.X_OK):
                left.append((folder, "it cannot be read"))
            for entry in _entries(folder):
                try:
                    entry.path.unlink()
                    gone.append(entry)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    left.append((entry.path, error.strerror or str(error)))
            _sweep(folder, 0.0)
            with suppress(OSError):
                folder.rmdir()
        return Cleared(len(gone), sum(entry.size for entry in gone), tuple(left))

    def _path(self, kind: str, recipe: str) -> Path:
        name = hashlib.sha256(f"{kind}\0{recipe}".encode()).hexdigest()
        return self.folder / name[:2] / f"{name[2:]}.{kind}"

    def _trim(self, folder: Path) -> None:
        """Remove what was not used for longest, until a folder is within its share."""
        entries = sorted(_entries(folder), key=lambda entry: entry.used)
        excess = sum(entry.size for entry in entries) - self.limit // FOLDERS
        for entry in entries:
            if excess <= 0:
                break
            with suppress(OSError):
                entry.path.unlink()
            excess -= entry.size
        _sweep(folder, _LEFT_AFTER)


def opened(folder: Path, warn: Callable[[str], None], limit: int = DEFAULT_LIMIT) -> Cache | None:
    """Open the cache in a folder, which is made if it is not there.

    Gives `None` where it cannot be made, and where it is not safe to read code from; `warn` is
    told why.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = _fault(folder.stat())
    except OSError as error:
        fault = f"it cannot be made ({error.strerror})"
    if fault is None:
        return Cache(folder, limit)
    warn(f"{folder} is not used as a cache: {fault}")
    return None


def _fault(found: os.stat_result) -> str | None:
    """Say why code in a folder is not to be trusted; where there are no users, it is."""
    if not hasattr(os, "getuid"):
        return None
    if found.st_uid != os.getuid():
        return "it belongs to somebody else"
    if stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it (chmod go-w makes it safe)"
    return None


def default_folder(variables: Mapping[str, str], platform: str) -> Path | None:
    """Say where a user's caches lie by the platform's custom; `None` if that cannot be told."""
    home = variables.get("HOME") or variables.get("USERPROFILE") or ""
    if platform == "win32":
        base = variables.get("LOCALAPPDATA", "")
    elif platform == "darwin":
        base = os.path.join(home, "Library", "Caches") if home else ""
    else:
        # XDG Base Directory Specification: a path that is not absolute is to be ignored.
        base = variables.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(base):
            base = os.path.join(home, ".cache") if home else ""
    return Path(base, "tilewright") if os.path.isabs(base) else None


# ---------------------------------------------------------------------------- files


def _seal(path: Path, data: bytes) -> bytes:
    """Make what an entry begins with: it holds for this entry and these bytes only."""
    return _MAGIC + hashlib.sha256(path.name.encode() + data).digest()


def _folders(root: Path) -> Iterator[Path]:
    with suppress(OSError):
        for each in os.scandir(root):
            if _FOLDER.fullmatch(each.name) and each.is_dir(follow_symlinks=False):
                yield Path(each.path)


def _entries(folder: Path) -> Iterator[Entry]:
    with suppress(OSError):
        for each in os.scandir(folder):
            match = _ENTRY.fullmatch(each.name)
            if match is None:
                continue
            # It may be gone by now: others remove entries too.
            with suppress(OSError):
                found = each.stat(follow_symlinks=False)
                yield Entry(match["kind"], found.st_size, found.st_mtime, Path(each.path))


def _sweep(folder: Path, age: float) -> None:
    """Remove what killed writes have left, if it is older than so many seconds."""
    before = time.time() - age
    with suppress(OSError):
        for each in os.scandir(folder):
            if _LEFTOVER.fullmatch(each.name) and each.stat().st_mtime <= before:
                os.unlink(each.path)
