"""Running a program's script as Python would, and stopping it at a compile.

Imports `base`. The caller decides what `tilewright.compile` does meanwhile.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, Generic, Protocol, TypeVar

from tilewright.base.errors import LaunchError, TilewrightError
from tilewright.base.locations import Location


@dataclass(frozen=True)
class Script:
    """A program to run: a file, a folder with a `__main__.py`, or a module if `is_module`."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def file(self) -> str:
        """Give the file that is run."""
        path = Path(self.name)
        return str(path / "__main__.py") if path.is_dir() else self.name

    def names(self) -> dict[str, Any]:
        """Run a file as an import of it would, and give its global names; its exceptions pass.

        Raises `LaunchError` (`bad-option`) if there is no such file.
        """
        with _as_program([self.name, *self.arguments], str(Path(self.file).resolve().parent)):
            return _run_file(self.file, Path(self.name).stem)

    def run(self) -> None:
        """Run it as `__main__`, with its own `sys.argv` and `sys.path`; its exceptions pass.

        Returns when the threads that it started have ended, daemons apart. Raises `LaunchError`
        (`bad-option`) if there is no such file.
        """
        folder = os.getcwd() if self.is_module else str(Path(self.file).resolve().parent)
        with _as_program([self.name, *self.arguments], folder):
            if self.is_module:
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                _run_file(self.file)
            _join_threads()


def _run_file(name: str, module: str = "__main__") -> dict[str, Any]:
    try:
        with io.open_code(str(Path(name).resolve())) as file:
            text = file.read()
    except OSError as error:
        raise LaunchError(
            f"the script {name!r} cannot be read", code="bad-option", found=str(error)
        ) from error
    main = ModuleType(module)
    main.__dict__.update(__file__=name, __builtins__=builtins, __spec__=None)
    # Restored by `_as_program`: whatever asks for the program finds this one.
    sys.modules["__main__"] = main
    exec(compile(text, name, "exec"), main.__dict__)
    return main.__dict__


@contextlib.contextmanager
def _as_program(argv: list[str], folder: str) -> Generator[None]:
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv = argv
    sys.path[:1] = [folder]
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before


def _join_threads() -> None:
    apart = (threading.current_thread(), threading.main_thread())
    for thread in threading.enumerate():
        if thread not in apart and not thread.daemon:
            thread.join()


# ---------------------------------------------------------------------------- stopping


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Found = TypeVar("Found", bound=_Named)


class _Stop(BaseException):
    """Ends a script from within; no `except Exception` of the script stops it."""


@dataclass
class FirstCompile(Generic[Found]):
    """Waits for the first compile of a name (any, if `None`): to be called with each executable.

    `run` gives the executable; what the script prints goes to the error output.
    """

    name: str | None
    _found: list[Found] = field(default_factory=list[Found])
    _seen: list[str] = field(default_factory=list[str])

    def __call__(self, executable: Found) -> None:
        """Take note of an executable, and end the script if it is the one."""
        self._seen.append(executable.name)
        if self.name in (None, executable.name):
            self._found.append(executable)
            raise _Stop

    def run(self, script: Script) -> Found:
        """Run a script up to the compile.

        Raises `LaunchError` (`bad-option`) if it ends without it.
        """
        with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(_Stop, SystemExit):
            script.run()
        if self._found:
            return self._found[0]
        raise LaunchError(
            f"{script.name} does not compile {self.name or 'anything'}",
            code="bad-option",
            expected=f"a compile of {self.name or 'a kernel'}",
            found=", ".join(self._seen) or "none",
        )


# ---------------------------------------------------------------------------- errors


def reported(action: Callable[[], None]) -> int:
    """Run an action and give the exit code; report an exception as a user wants to see it.

    Typed errors are shown as their text, others, and an interruption, with a traceback of the
    user's frames only. `SystemExit` passes.
    """
    try:
        action()
    except TilewrightError as error:
        print(error, file=sys.stderr)
        if error.location is None and (caller := _caller(error.__traceback__)):
            print(f"  --> {caller.header()}\n{caller.excerpt()}", file=sys.stderr)
        return 1
    except Exception as error:
        traceback.print_exception(error.with_traceback(_trimmed(error.__traceback__)))
        return 1
    except KeyboardInterrupt as error:
        _cut(error.__traceback__)
        traceback.print_exception(error.with_traceback(_trimmed(error.__traceback__)))
        return INTERRUPTED
    return 0


# What a shell gives for a program that an interrupt has ended.
INTERRUPTED = 128 + signal.SIGINT


def _caller(trace: TracebackType | None) -> Location | None:
    """Find the innermost line of the user's that an exception passed."""
    passed = zip(traceback.walk_tb(trace), traceback.extract_tb(trace), strict=True)
    frames = [summary for (frame, _), summary in passed if not _is_ours(frame)]
    if not frames:
        return None
    last = frames[-1]
    return Location(
        last.filename,
        last.lineno or 0,
        last.colno or 0,
        last.end_lineno or 0,
        last.end_colno or 0,
    )


def _trimmed(trace: TracebackType | None) -> TracebackType | None:
    """Drop the frames that lead to the script."""
    while trace is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    return trace


def _cut(trace: TracebackType | None) -> None:
    """Drop the frames below the script's own."""
    own = _trimmed(trace)
    while own is not None and own.tb_next is not None:
        if _is_ours(own.tb_next.tb_frame):
            own.tb_next = None
        own = own.tb_next


def _is_ours(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in ("tilewright", "runpy") or frame.f_code.co_filename == "<frozen runpy>"
