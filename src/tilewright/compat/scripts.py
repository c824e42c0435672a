"""Running a program's script as Python would, and choosing one of its kernels.

May import what is below this folder. The caller decides what `tilewright.compile` does meanwhile.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import runpy
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, Generic, Protocol, TypeVar

from tilewright.base.errors import LaunchError, TilewrightError
from tilewright.base.locations import Location
from tilewright.frontend.device_functions import DeviceFunction
from tilewright.frontend.functions import JitTemplate, KernelFunction
from tilewright.ir.statements import Program
from tilewright.runtime import progress


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
            main = ModuleType(Path(self.name).stem)
            _run_file(self.file, main)
            return main.__dict__

    def run(self, main: ModuleType | None = None) -> None:
        """Run it as `__main__`, with its own `sys.argv` and `sys.path`; its exceptions pass.

        The global names of a file are those of `main`. Returns when the threads that it started
        have ended, daemons apart. Raises `LaunchError` (`bad-option`) if there is no such file.
        """
        folder = os.getcwd() if self.is_module else str(Path(self.file).resolve().parent)
        with _as_program([self.name, *self.arguments], folder):
            if self.is_module:
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                _run_file(self.file, main or ModuleType("__main__"))
            _join_threads()


def _run_file(name: str, main: ModuleType) -> None:
    try:
        with io.open_code(str(Path(name).resolve())) as file:
            text = file.read()
    except OSError as error:
        raise LaunchError(
            f"the script {name!r} cannot be read", code="bad-option", found=str(error)
        ) from error
    main.__dict__.update(__file__=name, __builtins__=builtins, __spec__=None)
    # Restored by `_as_program`: whatever asks for the program finds this one.
    sys.modules["__main__"] = main
    exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)


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


class _Compiled(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def program(self) -> Program: ...


Found = TypeVar("Found", bound=_Compiled)


class _Stop(BaseException):
    """Ends a script from within; no `except Exception` of the script stops it."""


@dataclass
class Choice(Generic[Found]):
    """Chooses a kernel of a script: one that it compiles, or else one that it defines.

    `name` is that of the kernel, any if `None`. To be called with each executable, and its
    `before_call` before each call of one. `compile` makes an executable of what the script
    defines, `say` tells what a user may want to know.
    """

    name: str | None
    compile: Callable[[Any], Found]
    say: Callable[[str], None]
    _compiled: list[Found] = field(default_factory=list[Found])

    def __call__(self, executable: Found) -> None:
        """Take note of an executable."""
        self._compiled.append(executable)

    def before_call(self, executable: Found) -> None:
        """End the script, as nothing is to be launched, if a kernel that fits has been compiled."""
        if self._fitting():
            raise _Stop

    def run(self, script: Script) -> Found:
        """Run a script up to its first call, and give the executable.

        What the script prints goes to the error output. Raises `LaunchError` (`bad-option`) if
        there is no kernel that fits, or several are defined and none is compiled.
        """
        main = ModuleType("__main__")
        with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(_Stop, SystemExit):
            try:
                script.run(main)
            except Exception as error:
                if not self._fitting():
                    raise
                self.say(f"the program ends by {type(error).__name__}: {error}")
        if found := self._fitting():
            return self._of_compiled(found)
        return self._of_defined(script.name, main.__dict__)

    def _fitting(self) -> list[Found]:
        return [each for each in self._compiled if self.name in (None, each.name)]

    def _of_compiled(self, found: list[Found]) -> Found:
        """Give the first one, or of several programs that have the name the last."""
        programs = list({id(each.program): each for each in reversed(found)}.values())[::-1]
        names = dict.fromkeys(each.name for each in found)
        if len(names) > 1:
            self.say(f"{found[0].name} is the first of {', '.join(names)}: FILE::NAME chooses")
        elif len(programs) > 1:
            self.say(f"{len(programs)} kernels are called {found[0].name}: this is the last one")
            return programs[-1]
        return found[0]

    def _of_defined(self, file: str, names: dict[str, Any]) -> Found:
        named = names.get(self.name or "")
        if isinstance(named, KernelFunction | DeviceFunction | JitTemplate | Program):
            return self.compile(named)
        kernels = {name: each for name, each in names.items() if isinstance(each, KernelFunction)}
        if self.name is None:
            # What is imported is for others to use, where there is something of the file's own.
            own = {name: each for name, each in kernels.items() if each.__module__ == "__main__"}
            kernels = own or kernels
        fitting = {id(each): each for each in kernels.values() if self.name in (None, each.name)}
        if len(fitting) > 1 and self.name is None:
            raise self._refusal(f"{file} has {len(fitting)} kernels", kernels)
        if len(fitting) > 1:
            self.say(f"{len(fitting)} kernels are called {self.name}: this is the last one")
        if fitting:
            return self.compile(list(fitting.values())[-1])
        raise self._refusal(f"{file} has no kernel {self.name or ''}".strip(), kernels)

    def _refusal(self, message: str, kernels: Iterable[str]) -> LaunchError:
        listed = dict.fromkeys((*(each.name for each in self._compiled), *kernels))
        return LaunchError(
            message,
            code="bad-option",
            expected="FILE::NAME, with one of " + ", ".join(listed)
            if listed
            else "a kernel under a global name, or a call of tilewright.compile",
        )


# ---------------------------------------------------------------------------- errors


def reported(action: Callable[[], int | None]) -> int:
    """Run an action and give its exit code; report an exception as a user wants to see it.

    Typed errors are shown as their text, others with a traceback of the user's frames only, and
    an interruption by the user's line that it came to. A bad option is of the command line, which
    has a code of its own, unless a program gave it. `SystemExit` passes.
    """
    try:
        return action() or 0
    except TilewrightError as error:
        print(error, file=sys.stderr)
        if error.location is None:
            _print_place(caller_of(error))
        return USAGE if is_of_command_line(error) else 1
    except Exception as error:
        traceback.print_exception(error.with_traceback(_trimmed(error.__traceback__)))
        return 1
    except KeyboardInterrupt as error:
        progress.hide()
        print("tilewright: interrupted", file=sys.stderr)
        _print_place(_interrupted(error.__traceback__))
        return INTERRUPTED


def _print_place(place: Location | None) -> None:
    if place is not None:
        print(f"  --> {place.header()}\n{place.excerpt()}", file=sys.stderr)


# What commands give for wrong options, and a shell for a program that an interrupt has ended.
USAGE = 2
INTERRUPTED = 128 + signal.SIGINT


def is_of_command_line(error: BaseException | None) -> bool:
    """Tell whether an error is that of an option which no program gave."""
    return (
        isinstance(error, TilewrightError)
        and error.code == "bad-option"
        and (error.location or caller_of(error)) is None
    )


def caller_of(error: BaseException) -> Location | None:
    """Find the innermost line of the user's that an exception passed; Python's own are not."""
    passed = _frames(error.__traceback__)
    frames = [each for frame, each in passed if not _is_ours(frame) and not _is_pythons(frame)]
    return _place(frames[-1]) if frames else None


def _interrupted(trace: TracebackType | None) -> Location | None:
    """Find the innermost line of the script's own that was at work; libraries are not looked at."""
    own = takewhile(lambda each: not _is_ours(each[0]), _frames(_trimmed(trace)))
    found = [each for _, each in own if not each.filename.startswith(_LIBRARIES)]
    return _place(found[-1]) if found and found[-1].line else None


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def _frames(
    trace: TracebackType | None,
) -> Iterator[tuple[FrameType, traceback.FrameSummary]]:
    walked = (frame for frame, _ in traceback.walk_tb(trace))
    return zip(walked, traceback.extract_tb(trace), strict=True)


def _place(last: traceback.FrameSummary) -> Location:
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


def _is_pythons(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in sys.stdlib_module_names


def _is_ours(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in ("tilewright", "runpy") or frame.f_code.co_filename == "<frozen runpy>"
