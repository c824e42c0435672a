"""Where stages keep what took long to make, as they see it.

Imports nothing from this package. Whoever knows the order of the stages chooses the place; no
stage depends on finding again what it has kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol


class Store(Protocol):
    """Bytes by kind and recipe: a text that says all that the bytes depend on."""

    def get(self, kind: str, recipe: str) -> bytes | None:
        """Give what was made of a recipe, if it is there and whole."""
        ...

    def put(self, kind: str, recipe: str, data: bytes) -> None:
        """Keep what was made of a recipe, if there is room."""
        ...


class _Nowhere:
    """Keeps nothing."""

    def get(self, kind: str, recipe: str) -> bytes | None:
        """Give nothing."""
        return None

    def put(self, kind: str, recipe: str, data: bytes) -> None:
        """Keep nothing."""


NOWHERE: Store = _Nowhere()


def packed(facts: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    """Put facts, as JSON can hold them, and runs of bytes into one."""
    head = json.dumps({"facts": facts, "sizes": [len(each) for each in blobs]})
    return b"\n".join([head.encode(), b"".join(blobs)])


def unpacked(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Take apart what `packed` has made."""
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    blobs: list[bytes] = []
    start = 0
    for size in head["sizes"]:
        blobs.append(rest[start : start + size])
        start += size
    return head["facts"], blobs
