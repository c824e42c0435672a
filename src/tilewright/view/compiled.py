"""What the compile cache holds, as tables.

May import `runtime` and the rest of this folder.
"""

from __future__ import annotations

from tilewright.runtime.cache import Cache, Entry
from tilewright.view.tables import Table

_KINDS = {
    "cubin": "cubins, with their PTX",
    "kernel": "kernels for the simulator",
    "native": "pieces of native code, which kernels share",
}


def cache_tables(cache: Cache, now: float) -> list[Table]:
    """Describe a cache at a time, in seconds: its place and bound, and what there is by kind."""
    entries = list(cache.entries())
    total = sum(entry.size for entry in entries)
    place = [
        ("folder", str(cache.folder)),
        ("limit", size_text(cache.limit)),
        ("used", f"{size_text(total)} in {len(entries)} entries"),
    ]
    kinds = sorted({entry.kind for entry in entries})
    rows = [_row(kind, [e for e in entries if e.kind == kind], now) for kind in kinds]
    columns = ("kind", "entries", "size", "last used", "longest unused", "what")
    return [Table("", ("", ""), place), *([Table("", columns, rows)] if rows else [])]


def _row(kind: str, entries: list[Entry], now: float) -> tuple[str, ...]:
    ages = [max(now - entry.used, 0.0) for entry in entries]
    size = size_text(sum(entry.size for entry in entries))
    what = _KINDS.get(kind, "")
    return kind, str(len(entries)), size, age_text(min(ages)), age_text(max(ages)), what


def size_text(size: int) -> str:
    """Write a number of bytes, such as `1.5 MiB`."""
    if size < 1024:
        return f"{size} bytes"
    value = float(size)
    for unit in ("KiB", "MiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} GiB"


def age_text(seconds: float) -> str:
    """Write how long ago something was, such as `3 h ago`."""
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name} ago"
    return f"{int(seconds // 86400)} days ago"
