"""What is installed and what compiles, as tables.

May import `runtime` and the rest of this folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tilewright.runtime.cache import Cache
from tilewright.runtime.installed import installed, tried_targets
from tilewright.view.compiled import size_text
from tilewright.view.tables import Table


def doctor_tables(version: str, cache: Cache | None) -> Iterator[Table]:
    """Tell of this package's version and cache, of what is installed, and of the targets."""
    parts = [
        ("tilewright", version, ""),
        *((f.name, _there(f.version), f.use) for f in installed()),
    ]
    parts.append(("cache", "none" if cache is None else _place(cache), "compiled code"))
    yield Table("", ("part", "found", "for"), parts)
    rows = [
        (result, ", ".join(name for name, _ in group))
        for result, group in groupby(tried_targets(), key=lambda tried: tried[1])
    ]
    yield Table("", ("to a cubin", "targets that were tried"), rows)
    yield Table("", ("", ""), [("simulated", "every target, without a GPU")])


def _there(version: str | None) -> str:
    return "not installed" if version is None else version


def _place(cache: Cache) -> str:
    return f"{cache.folder}, at most {size_text(cache.limit)}"
