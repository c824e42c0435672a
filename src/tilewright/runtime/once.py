"""A value that is made when it is first asked for, and once.

Imports nothing from this package.

    >>> answer = Once(lambda: 6 * 7)
    >>> answer()
    42
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Make a value at most once, also with several threads asking for it.

    A process that was forked while another thread held the lock is not stopped by it: locks
    are kept per process. If making the value fails, the next call tries again.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._locks: dict[int, Lock] = {}

    @property
    def done(self) -> bool:
        """Tell whether the value has been made."""
        return bool(self._made)

    def __call__(self) -> T:
        if not self._made:
            with self._locks.setdefault(os.getpid(), Lock()):
                if not self._made:
                    self._made.append(self._make())
        return self._made[0]
