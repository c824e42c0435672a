"""Places and messages that native code refers to by number.

May import `base`. A fault that native code records is shown at the user's line through them.
"""

from __future__ import annotations

import hashlib
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
    """What a fault says; `space` is that of the address that comes with it, if one does.

    `mbarrier` tells that it is the address of an mbarrier.
    """

    code: str
    text: str
    space: Space | None = None
    mbarrier: bool = False

    @property
    def number(self) -> int:
        """Number the message by what it says, so that code that reports it is any kernel's.

        0 is never given, it means no fault.
        """
        text = f"{self.code}\0{self.text}\0{self.space}\0{self.mbarrier}"
        return 1 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


@dataclass(kw_only=True)
class Sites:
    """The places of a kernel and the messages of its faults, by number."""

    sites: list[Site] = field(default_factory=list[Site])
    messages: dict[int, Message] = field(default_factory=dict[int, Message])
    _numbers: dict[Message, int] = field(default_factory=dict[Message, int])

    def site(self, location: Location | None, text: str) -> int:
        """Number a place."""
        self.sites.append(Site(location, text))
        return len(self.sites) - 1

    def message(self, message: Message) -> int:
        """Number a fault's message, and keep it."""
        if message not in self._numbers:
            self._numbers[message] = message.number
            self.messages[message.number] = message
        return self._numbers[message]
