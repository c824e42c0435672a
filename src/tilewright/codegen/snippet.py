"""A piece of the C++ that generated kernels stand on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of the prelude, and the pieces that it needs before it.

    `older` replaces `text` on targets below the capability `since`.
    """

    text: str
    needs: tuple[str, ...] = ()
    since: int = 0
    older: str = ""

    def for_capability(self, capability: int) -> str:
        """Give the text for a target."""
        return self.text if capability >= self.since else self.older
