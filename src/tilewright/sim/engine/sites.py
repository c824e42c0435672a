"""Places and messages that native code refers to by number.

May import `base`. A fault that native code records is shown at the user's line through them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.base.locations import Location
from tilewright.base.spaces import Space


@dataclass(frozen=True)
class Site:
    """A place in the kernel that may fault or wait: where it is, and what stands there."""

    location: Location | None
    text: str


@dataclass(frozen=True)
class Message:
    """What a fault says; `space` is that of the address that comes with it, if one does."""

    code: str
    text: str
    space: Space | None = None


@dataclass(kw_only=True)
class Sites:
    """The places of a kernel and the messages of its faults, by number."""

    sites: list[Site] = field(default_factory=list[Site])
    messages: list[Message] = field(default_factory=list[Message])
    _message_ids: dict[Message, int] = field(default_factory=dict[Message, int])

    def site(self, location: Location | None, text: str) -> int:
        """Number a place."""
        self.sites.append(Site(location, text))
        return len(self.sites) - 1

    def message(self, message: Message) -> int:
        """Number a fault's message; 0 is never given, it means no fault."""
        if message not in self._message_ids:
            self.messages.append(message)
            self._message_ids[message] = len(self.messages)
        return self._message_ids[message]
