"""The command `tilewright`: arguments in, calls of the other modules out.

tilewright run SCRIPT [ARGS…]
tilewright source SCRIPT[::NAME]
tilewright build SCRIPT[::NAME] --target sm_90a -o kernel.cubin
tilewright view LAYOUT [-o layout.svg]
tilewright isa [PATTERN]
tilewright cache [clear]
tilewright doctor
"""

from __future__ import annotations

import atexit
import sys
import time
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shutil import get_terminal_size

from tilewright import __version__, compat, driver
from tilewright.base.errors import LaunchError
from tilewright.compat.children import children_begin_with
from tilewright.compat.names import PACKAGES
from tilewright.compat.scripts import FirstCompile, Script, reported
from tilewright.driver import Defaults, Executable
from tilewright.ir.statements import PARTS
from tilewright.passes.show_state import Dump
from tilewright.runtime.files import write_whole
from tilewright.view import tables
from tilewright.view.command import file_of, pictured
from tilewright.view.compiled import cache_tables, size_text
from tilewright.view.doctor import doctor_tables
from tilewright.view.forms import instruction_tables


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
    announcement = _Announcement({driver.dump(text) for text in parsed.dump})
    defaults = Defaults(
        target=parsed.target,
        backend=parsed.backend,
        schedule=parsed.schedule,
        numerics=parsed.numerics,
        cache=parsed.cache,
        dumps=tuple(announcement.missing),
        on_compile=announcement,
    )
    words = parsed.module or parsed.script
    name, *rest = words[1:] if words[0] == "--" else words
    _substitute(parsed)
    entered = partial(_enter_child, tuple(parsed.keep), defaults)
    with driver.session(defaults), children_begin_with(entered):
        Script(name, tuple(rest), is_module=bool(parsed.module)).run()
    for each in announcement.missing:
        _say(f"no kernel that was compiled has a statement at line {each.line}")


def _enter_child(keep: tuple[str, ...], defaults: Defaults) -> None:
    """Let the choices of the command line hold in a process that the program spawned."""
    compat.install(replace=True, keep=keep, target=defaults.target)
    session = ExitStack()
    session.enter_context(driver.session(defaults))
    session.enter_context(children_begin_with(partial(_enter_child, keep, defaults)))
    # Kept, and closed, at the very end.
    atexit.register(session.close)


def _source(parsed: Namespace) -> None:
    compiled = _compiled(parsed)
    match parsed.form:
        case "ptx":
            text = compiled.ptx()
        case "sass":
            text = compiled.sass()
        case _:
            text = compiled.source
    with tables.reader_may_leave():
        sys.stdout.write(text)


def _build(parsed: Namespace) -> None:
    _write(parsed.output, _compiled(parsed).cubin())


def _view(parsed: Namespace) -> None:
    if "::" in parsed.layout:
        _substitute(parsed)
    shown = pictured(parsed.layout, parsed.shape, parsed.dtype, lambda path: Script(path).names())
    if parsed.output:
        _write(parsed.output, file_of(shown, parsed.output))
    else:
        sys.stdout.write(shown.text(get_terminal_size((100, 0)).columns))


def _isa(parsed: Namespace) -> None:
    with tables.reader_may_leave():
        tables.write(instruction_tables(parsed.pattern), sys.stdout)


def _cache(parsed: Namespace) -> None:
    cache = driver.compile_cache(parsed.cache)
    if cache is None:
        _say("there is no cache: it is off, or its folder cannot be used")
    elif parsed.action == "clear":
        count, size = cache.clear()
        print(f"{count} entries removed, {size_text(size)}")
    else:
        tables.write(cache_tables(cache, time.time()), sys.stdout)


def _doctor(parsed: Namespace) -> None:
    cache = driver.compile_cache(parsed.cache)
    tables.write(doctor_tables(__version__, cache), sys.stdout)


def _write(name: str, data: bytes) -> None:
    try:
        write_whole(Path(name), data)
    except OSError as error:
        raise LaunchError(
            f"the file {name!r} cannot be written", code="bad-option", found=error.strerror
        ) from error


def _compiled(parsed: Namespace) -> Executable:
    path, _, name = parsed.script.partition("::")
    first: FirstCompile[Executable] = FirstCompile(name or None)
    _substitute(parsed)
    with driver.session(Defaults(target=parsed.target, cache=parsed.cache, on_compile=first)):
        return first.run(Script(path))


def _substitute(parsed: Namespace) -> None:
    names = compat.install(replace=True, keep=tuple(parsed.keep), target=parsed.target)
    if names:
        _say(f"{', '.join(names)} imports as tilewright (--keep NAME leaves a name alone)")


class _Announcement:
    """Says where a program runs and for which target, once for each.

    `missing` are the states to show whose lines have not been compiled by now.
    """

    def __init__(self, dumps: set[Dump]) -> None:
        self._said: set[str] = set()
        self.missing = dumps

    def __call__(self, executable: Executable) -> None:
        gpu, target = executable.gpu, executable.target
        self.missing = {d for d in self.missing if not executable.has_breakpoint(d.line)}
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
        "--numerics",
        choices=driver.NUMERICS,
        help="how the simulator rounds products and approximate functions",
    )
    run.add_argument(
        "--dump",
        action="append",
        default=[],
        metavar="PARTS@LINE",
        help=f"print the state before a line, such as {','.join(PARTS)}@12",
    )
    run.add_argument(
        "-m", dest="module", nargs=REMAINDER, metavar="MODULE", help="run a module, not a file"
    )
    run.add_argument(
        "script",
        nargs=REMAINDER,
        metavar="SCRIPT",
        help="and its arguments; or a folder with __main__.py",
    )
    run.set_defaults(command=_run)

    source = commands.add_parser("source", help="print the CUDA C++ text of a program's kernel")
    _common(source)
    form = source.add_mutually_exclusive_group()
    for name, what in (("ptx", "the PTX, by NVRTC"), ("sass", "the cubin's code, by nvdisasm")):
        form.add_argument(
            f"--{name}",
            dest="form",
            action="store_const",
            const=name,
            help=f"print {what}, instead",
        )
    source.add_argument("script", metavar="SCRIPT[::NAME]")
    source.set_defaults(command=_source)

    build = commands.add_parser("build", help="compile a program's kernel to a cubin")
    _common(build)
    build.add_argument("script", metavar="SCRIPT[::NAME]")
    build.add_argument("-o", dest="output", required=True, metavar="FILE")
    build.set_defaults(command=_build)

    view = commands.add_parser("view", help="show a layout as text, or as a picture (SVG)")
    view.add_argument(
        "layout",
        metavar="LAYOUT",
        help="""such as 'mma_shared_layout("float16", 3, (8, 64))', 'S[(8, 4) : (4, 1)]', """
        "or file.py::NAME",
    )
    view.add_argument("--shape", metavar="N,M", help="of the tensor, such as 8,64")
    view.add_argument("--dtype", metavar="TYPE", help="of its elements, such as float16")
    view.add_argument("-o", dest="output", metavar="FILE", help="ends in .svg or .txt")
    view.set_defaults(command=_view, keep=[], target=None)

    isa = commands.add_parser("isa", help="list the instructions there are, or describe some")
    isa.add_argument(
        "pattern", nargs="?", metavar="PATTERN", help="a part of names, or such as '*.x4.*b16'"
    )
    isa.set_defaults(command=_isa)

    cache = commands.add_parser("cache", help="show what compiled code is kept, or remove it")
    cache.add_argument("action", nargs="?", choices=("clear",), help="remove all of it")
    _cached(cache)
    cache.set_defaults(command=_cache)

    doctor = commands.add_parser("doctor", help="show what is installed and what compiles")
    _cached(doctor)
    doctor.set_defaults(command=_doctor)
    return parser


def _cached(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--cache", metavar="FOLDER", help="where compiled code is kept; off for nowhere"
    )


def _common(parser: ArgumentParser) -> None:
    _cached(parser)
    parser.add_argument("--target", metavar="ARCH", help="such as sm_90a; overrides the program's")
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="NAME",
        help=f"do not substitute this import name (of {', '.join(PACKAGES)})",
    )
