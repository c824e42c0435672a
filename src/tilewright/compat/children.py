"""Processes that a program spawns: what holds in the program must hold in them.

Imports nothing from this package. A process that `multiprocessing` starts by "spawn" or by
"forkserver" is a new interpreter, which imports the program's main module before it runs
anything. It is prepared by a dictionary that its parent sends; that is where it is reached first.

    with children_begin_with(partial(install, replace=True)):
        script.run()
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing import spawn
from typing import Any

# The name by which the fork server asks for itself: it serves before any process has a name.
_SERVER = "ignore"
_MAIN = ("init_main_from_path", "init_main_from_name")


@contextmanager
def children_begin_with(action: Callable[[], None]) -> Generator[None]:
    """Let every process that is spawned meanwhile perform an action before all else.

    The action is pickled. Processes that those spawn in turn do not perform it, unless it
    arranges for that.
    """
    own = spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        data = own(name)
        if name == _SERVER:
            # Its children read the program themselves, when they have performed the action.
            return {key: value for key, value in data.items() if key not in _MAIN}
        return {"action": _Performed(action), **data}

    spawn.get_preparation_data = prepared
    try:
        yield
    finally:
        spawn.get_preparation_data = own


class _Performed:
    """An action that is performed by whoever unpickles it."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __reduce__(self) -> tuple[Any, ...]:
        return _perform, (self._action,)


def _perform(action: Callable[[], None]) -> None:
    action()
