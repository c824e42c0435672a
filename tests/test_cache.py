"""The folder of compiled code: whole entries or none, bounded, and its owner's alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.runtime import cache as module
from tilewright.runtime.cache import Cache, Cleared, Entry, default_folder, opened

LIMIT = 256 * 1000  # 1000 bytes in each of 256 folders


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    found = opened(tmp_path / "cache", pytest.fail)
    assert found is not None
    return found


def only(cache: Cache) -> Entry:
    (entry,) = cache.entries()
    return entry


# ---------------------------------------------------------------------------- entries


@pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)) * 100])
def test_what_is_put_is_got(cache: Cache, data: bytes) -> None:
    cache.put("cubin", "a recipe", data)
    assert cache.get("cubin", "a recipe") == data


def test_another_kind_or_recipe_is_another_entry(cache: Cache) -> None:
    cache.put("cubin", "a recipe", b"data")
    assert cache.get("native", "a recipe") is None
    assert cache.get("cubin", "a recipe ") is None
    assert only(cache).kind == "cubin"


def damage(sealed: bytes) -> list[bytes]:
    flipped = bytes([*sealed[:-1], sealed[-1] ^ 1])
    return [b"", sealed[:3], sealed[:-1], sealed + b"\0", flipped, sealed[:20], b"x" + sealed[1:]]


@pytest.mark.parametrize("way", range(7))
def test_a_damaged_entry_is_none_and_is_removed(cache: Cache, way: int) -> None:
    cache.put("native", "recipe", b"code" * 100)
    path = only(cache).path
    path.write_bytes(damage(path.read_bytes())[way])
    assert cache.get("native", "recipe") is None
    assert not path.exists()
    cache.put("native", "recipe", b"new")
    assert cache.get("native", "recipe") == b"new"


def test_an_entry_under_the_name_of_another_is_none(cache: Cache) -> None:
    cache.put("native", "recipe", b"code")
    first = only(cache).path
    cache.put("native", "other", b"other code")
    (second,) = (each.path for each in cache.entries() if each.path != first)
    second.write_bytes(first.read_bytes())
    assert cache.get("native", "other") is None
    assert cache.get("native", "recipe") == b"code"


def test_a_write_that_fails_is_no_fault(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_whole", full)
    cache.put("native", "recipe", b"code")
    assert cache.get("native", "recipe") is None


# ---------------------------------------------------------------------------- many processes


WRITER = """
import sys
from pathlib import Path
from tilewright.runtime.cache import Cache

folder, limit, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
cache = Cache(folder, limit)
for turn in range(150):
    cache.put("native", "shared", bytes([seed]) * (100 + turn))
    data = cache.get("native", "shared")
    assert data is None or (len(set(data)) == 1 and len(data) >= 100), data
    cache.put("native", f"own {seed} {turn}", bytes(300))
"""


def test_processes_write_the_same_entry_at_once(cache: Cache) -> None:
    """What one reads is always a whole write of one of them, and the bound holds."""
    command = [sys.executable, "-c", WRITER, str(cache.folder), str(LIMIT)]
    writers = [subprocess.Popen([*command, str(seed)]) for seed in range(1, 5)]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 4
    data = cache.get("native", "shared")
    assert data is not None and len(set(data)) == 1
    assert not list(cache.folder.rglob(".*")), "no half-written files are left"
    assert sum(entry.size for entry in cache.entries()) <= LIMIT


# ---------------------------------------------------------------------------- the bound


def test_the_size_is_bounded(tmp_path: Path) -> None:
    cache = Cache(tmp_path, LIMIT)
    for number in range(3000):
        cache.put("native", str(number), bytes(200))
    sizes = [entry.size for entry in cache.entries()]
    assert LIMIT / 2 < sum(sizes) <= LIMIT


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, LIMIT)
    # Recipes of one folder, in which there is room for four of them.
    recipes = [name for name in map(str, range(4000)) if path(cache, name).parent.name == "7a"][:6]
    for age, name in enumerate(recipes[:4]):
        cache.put("native", name, bytes(200))
        os.utime(path(cache, name), (1e9 + age, 1e9 + age))
    assert cache.get("native", recipes[0]) is not None
    for name in recipes[4:]:
        cache.put("native", name, bytes(200))
    kept = [name for name in recipes if path(cache, name).exists()]
    assert kept == [recipes[0], recipes[3], *recipes[4:]]


def path(cache: Cache, recipe: str) -> Path:
    return cache._path("native", recipe)


def test_what_is_larger_than_its_share_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, LIMIT)
    cache.put("native", "large", bytes(1001))
    assert cache.get("native", "large") is None and not list(cache.entries())


def test_clearing_removes_entries_and_nothing_else(cache: Cache) -> None:
    for number in range(20):
        cache.put("native", str(number), b"code")
    size = sum(entry.size for entry in cache.entries())
    leftover = only_folder(cache) / f".{'0' * 62}.native.abc"
    leftover.write_bytes(b"half")
    mine = [cache.folder / "notes.txt", only_folder(cache) / "notes.txt"]
    for path in mine:
        path.write_text("mine")
    assert cache.clear() == Cleared(20, size)
    assert sorted(path for path in cache.folder.rglob("*") if path.is_file()) == sorted(mine)
    cache.put("native", "recipe", b"code")
    assert cache.get("native", "recipe") == b"code"


def test_what_cannot_be_removed_is_told(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        cache.put("native", str(number), b"code")
    gone, kept, other = (entry.path for entry in cache.entries())
    unlink = Path.unlink

    def removed(path: Path) -> None:
        if path == kept:
            raise PermissionError(1, "Operation not permitted")
        unlink(path)
        if path == gone:
            unlink(other)  # as another process does at the same time

    monkeypatch.setattr(Path, "unlink", removed)
    cleared = cache.clear()
    assert cleared.count == 1 and cleared.left == ((kept, "Operation not permitted"),)


def only_folder(cache: Cache) -> Path:
    return min(entry.path for entry in cache.entries()).parent


# ---------------------------------------------------------------------------- the folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = opened(tmp_path / "a" / "cache", pytest.fail)
        assert cache is not None
        cache.put("native", "recipe", b"code")
    finally:
        os.umask(before)
    entry = only(cache)
    assert mode(cache.folder) == 0o700
    assert mode(entry.path.parent) == 0o700
    assert mode(entry.path) == 0o600


@pytest.mark.parametrize("bits", [0o777, 0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, bits: int) -> None:
    told: list[str] = []
    tmp_path.chmod(bits)
    assert opened(tmp_path, told.append) is None
    assert len(told) == 1 and str(tmp_path) in told[0] and "others may write" in told[0]


def test_a_folder_that_others_may_read_is_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert opened(tmp_path, pytest.fail) is not None


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert opened(tmp_path, told.append) is None
    assert len(told) == 1 and "somebody else" in told[0]


def test_a_folder_that_cannot_be_made_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    for folder in (tmp_path / "file" / "cache", tmp_path / "file"):
        assert opened(folder, told.append) is None
        assert str(folder) in told[-1] and "cannot be made" in told[-1]


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"HOME": "/home/u"}, "/home/u/.cache/tilewright"),
        ("linux", {"HOME": "/home/u", "XDG_CACHE_HOME": "/fast"}, "/fast/tilewright"),
        # XDG Base Directory Specification: "must be absolute […], otherwise […] ignore it".
        ("linux", {"HOME": "/home/u", "XDG_CACHE_HOME": "fast"}, "/home/u/.cache/tilewright"),
        ("linux", {}, None),
        ("linux", {"HOME": "relative"}, None),
        ("darwin", {"HOME": "/Users/u"}, "/Users/u/Library/Caches/tilewright"),
        ("win32", {"LOCALAPPDATA": "/AppData/Local"}, "/AppData/Local/tilewright"),
        ("win32", {"HOME": "/home/u"}, None),
    ],
)
def test_the_default_folder(platform: str, variables: dict[str, str], folder: str | None) -> None:
    found = default_folder(variables, platform)
    assert (None if found is None else str(found)) == folder
