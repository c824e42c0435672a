"""What must be seen to when a process is forked: locks, what is not for children, that it happened.

Imports nothing from this package. A child has only the thread that forked it: a lock that another
thread held stays held there, and what the lock guards stays half done.

    _lock = held_over_forks(threading.RLock())
    _plans = cleared_in_children(Plans())
    was_forked()    # False, but in a child
"""

from __future__ import annotations

import os
import weakref
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

Lock = TypeVar("Lock", bound=AbstractContextManager[Any])


class Clearable(Protocol):
    """What can forget all that it holds."""

    def clear(self) -> None:
        """Forget."""
        ...


Holder = TypeVar("Holder", bound=Clearable)
_cleared: weakref.WeakSet[Any] = weakref.WeakSet()
_forked = False


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


def cleared_in_children(holder: Holder) -> Holder:
    """Have children of the process begin without what an object holds, if it lives; give it."""
    _cleared.add(holder)
    return holder


def was_forked() -> bool:
    """Tell whether this process was forked from one that had imported this package."""
    return _forked


def _begin_in_child() -> None:
    global _forked
    _forked = True
    for holder in list(_cleared):
        holder.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
