"""Locks of libraries that must not be held by other threads when the process is forked.

Imports nothing from this package. A child has only the thread that forked it: a lock that another
thread held stays held there, and what the lock guards stays half done.

    _lock = held_over_forks(threading.RLock())
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any, TypeVar

Lock = TypeVar("Lock", bound=AbstractContextManager[Any])


def held_over_forks(lock: Lock) -> Lock:
    """Let every fork of the process wait for a lock; give the lock.

    A thread must be able to take it twice: what it runs meanwhile may fork.
    """

    def take() -> None:
        lock.__enter__()

    def leave() -> None:
        lock.__exit__(None, None, None)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=take, after_in_parent=leave, after_in_child=leave)
    return lock
