"""The command `tilewright`: arguments in, calls of the other modules out.

tilewright run SCRIPT [ARGS…]
tilewright source SCRIPT[::NAME]
tilewright build SCRIPT[::NAME] --target sm_90a -o kernel.cubin
"""

from __future__ import annotations

import atexit
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tilewright import __version__, compat, driver
from tilewright.base.errors import LaunchError
from tilewright.compat.children import children_begin_with
from tilewright.compat.names import PACKAGES
from tilewright.compat.scripts import FirstCompile, Script, reported
from tilewright.driver import Defaults, Executable
from tilewright.runtime.files import write_whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit code."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is _run and not parsed.module and parsed.script in ([], ["--"]):
        parser.error("run needs a SCRIPT, or -m MODULE")
    try:
        return reported(lambda: parsed.command(parsed))
    finally:
        compat.uninstall()


def _run(parsed: Namespace) -> None:
    defaults = Defaults(
        target=parsed.target,
        backend=parsed.backend,
        schedule=parsed.schedule,
        on_compile=_Announcement(),
    )
    words = parsed.module or parsed.script
    name, *rest = words[1:] if words[0] == "--" else words
    _substitute(parsed)
    entered = partial(_enter_child, tuple(parsed.keep), defaults)
    with driver.session(defaults), children_begin_with(entered):
        Script(name, tuple(rest), is_module=bool(parsed.module)).run()


def _enter_child(keep: tuple[str, ...], defaults: Defaults) -> None:
    """Let the choices of the command line hold in a process that the program spawned."""
    compat.install(replace=True, keep=keep, target=defaults.target)
    session = ExitStack()
    session.enter_context(driver.session(defaults))
    session.enter_context(children_begin_with(partial(_enter_child, keep, defaults)))
    # Kept, and closed, at the very end.
    atexit.register(session.close)


def _source(parsed: Namespace) -> None:
    sys.stdout.write(_compiled(parsed).source)


def _build(parsed: Namespace) -> None:
    cubin = _compiled(parsed).cubin()
    try:
        write_whole(Path(parsed.output), cubin)
    except OSError as error:
        raise LaunchError(
            f"the file {parsed.output!r} cannot be written", code="bad-option", found=error.strerror
        ) from error


def _compiled(parsed: Namespace) -> Executable:
    path, _, name = parsed.script.partition("::")
    first: FirstCompile[Executable] = FirstCompile(name or None)
    _substitute(parsed)
    with driver.session(Defaults(target=parsed.target, on_compile=first)):
        return first.run(Script(path))


def _substitute(parsed: Namespace) -> None:
    names = compat.install(replace=True, keep=tuple(parsed.keep), target=parsed.target)
    if names:
        _say(f"{', '.join(names)} imports as tilewright (--keep NAME leaves a name alone)")


class _Announcement:
    """Says where a program runs and for which target, once for each."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, executable: Executable) -> None:
        gpu, target = executable.gpu, executable.target
        key = f"{executable.backend} {target}"
        if key not in self._said:
            self._said.add(key)
            if gpu is None:
                _say(f"no GPU is used: {executable.name} is simulated for {target}")
            else:
                _say(f"{executable.name} is compiled for {target} and runs on the {gpu.name}")


def _say(text: str) -> None:
    print(f"tilewright: {text}", file=sys.stderr, flush=True)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        "tilewright", description="GPU kernels in Python, simulated and compiled."
    )
    parser.add_argument("--version", action="version", version=f"tilewright {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run a program; its kernels run on the simulator",
        usage="tilewright run [OPTIONS] SCRIPT [ARGS…]\n"
        "       tilewright run [OPTIONS] -m MODULE [ARGS…]",
    )
    _common(run)
    run.add_argument("--backend", choices=driver.BACKENDS, help="where kernels run")
    run.add_argument(
        "--schedule",
        metavar="WHEN",
        help="when asynchronous operations land: late, eager, random or random:SEED",
    )
    run.add_argument(
        "-m", dest="module", nargs=REMAINDER, metavar="MODULE", help="run a module, not a file"
    )
    run.add_argument("script", nargs=REMAINDER, metavar="SCRIPT", help="and its arguments")
    run.set_defaults(command=_run)

    source = commands.add_parser("source", help="print the CUDA C++ text of a program's kernel")
    _common(source)
    source.add_argument("script", metavar="SCRIPT[::NAME]")
    source.set_defaults(command=_source)

    build = commands.add_parser("build", help="compile a program's kernel to a cubin")
    _common(build)
    build.add_argument("script", metavar="SCRIPT[::NAME]")
    build.add_argument("-o", dest="output", required=True, metavar="FILE")
    build.set_defaults(command=_build)
    return parser


def _common(parser: ArgumentParser) -> None:
    parser.add_argument("--target", metavar="ARCH", help="such as sm_90a; overrides the program's")
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="NAME",
        help=f"do not substitute this import name (of {', '.join(PACKAGES)})",
    )
