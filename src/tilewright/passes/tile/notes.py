"""What a program asks for and does not get, and why.

May import `base`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.locations import Location


@dataclass(frozen=True)
class Note:
    """Why something stays as the program has it; `what` and `reason` are parts of a sentence."""

    location: Location | None
    what: str
    reason: str

    def __str__(self) -> str:
        shown = [] if self.location is None else self.location.shown()
        return "\n".join([f"{self.what}: {self.reason}", *shown])
