"""Places and messages that native code refers to by number.

May import `base`. A fault that native code records is shown at the user's line through them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.base.locations import Location


@dataclass(frozen=True)
class Site:
    """A place in the kernel that may fault or wait: where it is, and what stands there."""

    location: Location | None
    text: str


@dataclass(kw_only=True)
class Sites:
    """The places of a kernel, and the codes and texts of its faults, by number."""

    sites: list[Site] = field(default_factory=list[Site])
    messages: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _message_ids: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def site(self, location: Location | None, text: str) -> int:
        """Number a place."""
        self.sites.append(Site(location, text))
        return len(self.sites) - 1

    def message(self, code: str, text: str) -> int:
        """Number a fault's code and text; 0 is never given, it means no fault."""
        key = (code, text)
        if key not in self._message_ids:
            self.messages.append(key)
            self._message_ids[key] = len(self.messages)
        return self._message_ids[key]
