"""Banks of shared memory, and how often an access of a warp has to be repeated.

Imports nothing from this package. Shared memory has 32 banks; consecutive 32-bit words lie in
consecutive banks, and a bank gives one word at a time, to any number of lanes (CUDA C++
Programming Guide, "Shared Memory"). One pass gives up to 128 bytes: lanes that take 8 bytes
are served 16 together, lanes that take 16 bytes 8 together.

    >>> access(range(0, 4096, 128), 4).passes
    32
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

BANKS = 32
_WORD = 4
_PASS = 128


@dataclass(frozen=True)
class Access:
    """What lanes that are served together take: words of each bank, each word counted once."""

    lanes: int
    bytes: int
    words: tuple[int, ...]

    @property
    def passes(self) -> int:
        """Count how often memory is read for it."""
        return max(self.words)

    @property
    def least(self) -> int:
        """Count how often it would be read if the words were spread over all banks."""
        return -(-sum(self.words) // BANKS)

    @property
    def verdict(self) -> str:
        """Say whether banks conflict."""
        if self.passes <= self.least:
            return "no bank conflict"
        return f"{self.passes}-way bank conflict: {self.passes} passes, not {self.least}"


def lanes_together(bytes: int) -> int:
    """Count the lanes of a warp that are served together when each takes so many bytes."""
    return min(32, max(_PASS // bytes, 1))


def bank_of(byte: int) -> int:
    """Give the bank of a byte of shared memory."""
    return byte // _WORD % BANKS


def access(starts: Iterable[int], bytes: int) -> Access:
    """Count the words of each bank that lanes take, each so many bytes from its own start."""
    lanes = list(starts)
    words = {word for at in lanes for word in range(at // _WORD, (at + bytes - 1) // _WORD + 1)}
    counts = [0] * BANKS
    for word in words:
        counts[word % BANKS] += 1
    return Access(len(lanes), bytes, tuple(counts))
