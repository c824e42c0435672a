"""The command `tilewright`: arguments in, calls of the other modules out.

tilewright run SCRIPT [ARGS…]
tilewright check SCRIPT [ARGS…]
tilewright source SCRIPT[::NAME]
tilewright build SCRIPT[::NAME] --target sm_90a -o kernel.cubin
tilewright view LAYOUT [-o layout.svg]
tilewright view TRACE.json [-o timeline.html]
tilewright isa [PATTERN]
tilewright cache [clear]
tilewright doctor
"""

from __future__ import annotations

import atexit
import sys
import time
from argparse import REMAINDER, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from tilewright import __version__, compat, driver
from tilewright.base import lazy
from tilewright.base.errors import CheckError, LaunchError
from tilewright.base.findings import counted
from tilewright.compat.children import children_begin_with
from tilewright.compat.collected import Collected
from tilewright.compat.names import PACKAGES
from tilewright.compat.scripts import Choice, Script, caller_of, is_of_command_line, reported
from tilewright.driver import Defaults, Executable
from tilewright.ir.statements import PARTS
from tilewright.passes.show_state import Dump
from tilewright.runtime.checking import Checking
from tilewright.runtime.files import require_writable, write_whole
from tilewright.sim.check.kinds import BY_NAME
from tilewright.view import tables
from tilewright.view.command import file_of, pictured, timeline_of
from tilewright.view.compiled import cache_tables, size_text
from tilewright.view.doctor import doctor_tables
from tilewright.view.forms import instruction_tables

if TYPE_CHECKING:
    from tilewright.sim.check import report
    from tilewright.sim.trace import recorder as recording
    from tilewright.sim.trace import trace as tracing
else:
    report = lazy.module("tilewright.sim.check.report")
    recording = lazy.module("tilewright.sim.trace.recorder")
    tracing = lazy.module("tilewright.sim.trace.trace")

_STANDARD_OUTPUT = "-"  # in place of a file's name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit code."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is _run and (problem := _problem(parsed)):
        parser.error(problem)
    try:
        with tables.streams_there():
            return reported(lambda: _commanded(parsed))
    finally:
        compat.uninstall()


def _commanded(parsed: Namespace) -> int:
    with tables.reader_may_leave():
        return parsed.command(parsed) or 0
    return 0


def _problem(parsed: Namespace) -> str | None:
    """Say what is wrong with the options of a run, if something is."""
    if not parsed.module and parsed.script in ([], ["--"]):
        return f"{parsed.name} needs a SCRIPT, or -m MODULE"
    if parsed.trace and parsed.check:
        return "--trace and --check watch a kernel in different ways: one at a time"
    if parsed.trace and parsed.backend == "gpu":
        return "--trace runs kernels on the simulator: leave --backend gpu away"
    if parsed.trace_cta and not parsed.trace:
        return "--trace-cta goes with --trace"
    if not parsed.check:
        given = next((name for name in _CHECKING if getattr(parsed, name)), None)
        return f"--{given} goes with --check" if given else None
    if parsed.backend == "gpu":
        return "--check runs kernels on the simulator: leave --backend gpu away"
    return None


def _run(parsed: Namespace) -> int:
    for name in (parsed.trace, parsed.json, parsed.sarif):
        # Before the program runs, which may take long.
        if name is not None:
            _require_writable(name)
    if parsed.trace:
        _run_traced(parsed)
        return 0
    if not parsed.check:
        _run_program(parsed, Defaults())
        return 0
    checking = Checking(parsed.strict, frozenset(parsed.allow), parsed.schedules or 0)
    with Collected() as collected:
        ended: BaseException | None = None
        try:
            _run_program(
                parsed,
                Defaults(
                    check="strict" if checking.strict else True,
                    allow=checking.allow,
                    schedules=checking.schedules,
                    on_findings=collected,
                ),
            )
        except CheckError as fault:
            # It is among the findings. A program goes on after all others.
            if (caller := caller_of(fault)) is not None:
                _say(f"the program ends at {caller.header()}, by a fault that is told below")
        except SystemExit as stop:
            if stop.code:
                raise
        except BaseException as error:
            ended = error
            raise
        finally:
            # Without a program nothing was to be checked.
            if not is_of_command_line(ended):
                _report(parsed, collected, ended)
        return int(checking.fails(collected.findings()))


def _report(parsed: Namespace, collected: Collected, ended: BaseException | None) -> None:
    """Tell what the checker found, once, on the error output and in files that were asked for.

    `ended` is what the program ended by, before its time; a call that it ended is not counted.
    """
    findings, calls = collected.findings(), collected.calls()
    for each in findings:
        print(f"{each}\n", file=sys.stderr)
    if calls:
        found = f"the checker found {counted(findings)} in {calls} call{'s' * (calls != 1)}"
        _say(f"{found}, up to the interrupt" if isinstance(ended, KeyboardInterrupt) else found)
    elif ended is None:
        _say("no kernel was called, so nothing was checked")
    else:
        _say("no call of a kernel had come to its end, so nothing was checked")
    if parsed.json:
        _write(parsed.json, report.as_json(findings, calls, __version__).encode())
    if parsed.sarif:
        _write(parsed.sarif, report.as_sarif(findings, __version__, Path.cwd()).encode())


def _run_traced(parsed: Namespace) -> None:
    """Run a program, and write what its kernels did, also if one of them did not end well."""
    recorder = recording.Recorder(parsed.trace_cta or [(0, 0, 0)])
    try:
        _run_program(parsed, Defaults(recorder=recorder))
    finally:
        trace = tracing.trace_of(recorder)
        _write(parsed.trace, trace.json().encode())
        if not trace.timelines:
            _say("no kernel with such a CTA was simulated: the timeline is empty")
        elif trace.dropped:
            _say(f"the timeline ends early: it has room for {recorder.limit} events")
        if parsed.trace != _STANDARD_OUTPUT:
            _say(f"{parsed.trace} is written; `tilewright view {parsed.trace}` draws it")


def _run_program(parsed: Namespace, checking: Defaults) -> None:
    announcement = _Announcement({driver.dump(text) for text in parsed.dump}, parsed.explain)
    defaults = replace(
        checking,
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
    # Processes that the program starts record nothing.
    entered = partial(_enter_child, tuple(parsed.keep), replace(defaults, recorder=None))
    with driver.session(defaults), children_begin_with(entered):
        try:
            Script(name, tuple(rest), is_module=bool(parsed.module)).run()
        except SystemExit as stop:
            if stop.code or not announcement.missing:
                raise
    _require_shown(announcement)


def _require_shown(announcement: _Announcement) -> None:
    """End with 2 if a state was to be shown at a line that no kernel has."""
    missing = sorted(announcement.missing, key=lambda each: (each.file or "", each.line))
    if missing and not announcement.names:
        _say("no kernel was compiled in this process: no state was shown")
    elif missing:
        error = LaunchError(
            f"there is no state to show at {', '.join(each.place for each in missing)}",
            code="bad-option",
            expected=f"a line with a statement of {', '.join(announcement.names)}",
        )
        print(error, file=sys.stderr)
        raise SystemExit(2)


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
    sys.stdout.write(text)


def _build(parsed: Namespace) -> None:
    _write(parsed.output, _compiled(parsed).cubin())


def _view(parsed: Namespace) -> None:
    if parsed.layout.endswith(".json"):
        output = parsed.output or f"{parsed.layout.removesuffix('.json')}.html"
        _write(output, timeline_of(parsed.layout).encode())
        if output != _STANDARD_OUTPUT:
            _say(f"{output} is written: any browser opens it")
        return
    if "::" in parsed.layout:
        _substitute(parsed)
    shown = pictured(parsed.layout, parsed.shape, parsed.dtype, lambda path: Script(path).names())
    if parsed.output:
        _write(parsed.output, file_of(shown, parsed.output))
    else:
        sys.stdout.write(shown.text(get_terminal_size((100, 0)).columns))


def _isa(parsed: Namespace) -> None:
    tables.write(instruction_tables(parsed.pattern), sys.stdout)


def _cache(parsed: Namespace) -> int:
    cache = driver.compile_cache(parsed.cache)
    if cache is None and driver.cache_place(parsed.cache) == "off":
        _say("there is no cache: it is off")
    elif cache is None:
        _say("there is no cache")
        return 1
    elif parsed.action == "clear":
        cleared = cache.clear()
        print(f"{cleared.count} entries removed, {size_text(cleared.size)}")
        for path, reason in cleared.left[:1]:
            count = len(cleared.left)
            _say(f"{count} could not be removed; {path}: {reason}")
        return int(bool(cleared.left))
    else:
        tables.write(cache_tables(cache, time.time()), sys.stdout)
    return 0


def _doctor(parsed: Namespace) -> None:
    cache = driver.compile_cache(parsed.cache)
    tables.write(doctor_tables(__version__, cache), sys.stdout)


def _write(name: str, data: bytes) -> None:
    """Write a file as a whole, or to the standard output."""
    if name == _STANDARD_OUTPUT:
        sys.stdout.flush()  # what the program has printed comes first
        sys.stdout.buffer.write(data)
        return
    try:
        write_whole(Path(name), data)
    except OSError as error:
        raise _unwritable(name, error) from error


def _require_writable(name: str) -> None:
    if name == _STANDARD_OUTPUT:
        return
    try:
        require_writable(Path(name))
    except OSError as error:
        raise _unwritable(name, error) from error


def _unwritable(name: str, error: OSError) -> LaunchError:
    return LaunchError(
        f"the file {name!r} cannot be written", code="bad-option", found=error.strerror
    )


def _compiled(parsed: Namespace) -> Executable:
    path, _, name = parsed.script.partition("::")
    choice: Choice[Executable] = Choice(name or None, driver.compile, _say)
    _substitute(parsed)
    defaults = Defaults(
        target=parsed.target,
        cache=parsed.cache,
        on_compile=choice,
        on_call=choice.before_call,
    )
    with driver.session(defaults):
        return choice.run(Script(path))


def _substitute(parsed: Namespace) -> None:
    names = compat.install(replace=True, keep=tuple(parsed.keep), target=parsed.target)
    if names:
        _say(f"{', '.join(names)} imports as tilewright (--keep NAME leaves a name alone)")


class _Announcement:
    """Says where a program runs and for which target, once for each.

    `missing` are the states to show whose lines have not been compiled by now, `names` those of
    what has been. With `explains` it says what each program asks for and does not get.
    """

    def __init__(self, dumps: set[Dump], explains: bool) -> None:
        self._said: set[str] = set()
        self._explains = explains
        self.missing = dumps
        self.names: dict[str, None] = {}

    def __call__(self, executable: Executable) -> None:
        gpu, target = executable.gpu, executable.target
        self.names[executable.name] = None
        self.missing = {each for each in self.missing if not executable.has_breakpoint(each)}
        key = f"{executable.backend} {target}"
        if key not in self._said:
            self._said.add(key)
            if gpu is None:
                _say(f"no GPU is used: {executable.name} is simulated for {target}")
            else:
                _say(f"{executable.name} is compiled for {target} and runs on the {gpu.name}")
        for note in map(str, executable.notes if self._explains else ()):
            if note not in self._said:
                self._said.add(note)
                _say(note)


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
        allow_abbrev=False,  # what a program calls its own options is taken for none of these
        usage="tilewright run [OPTIONS] SCRIPT [ARGS…]\n"
        "       tilewright run [OPTIONS] -m MODULE [ARGS…]",
    )
    _common(run)
    run.add_argument("--backend", choices=driver.BACKENDS, help="where kernels run")
    _simulated(run)
    run.add_argument(
        "--dump",
        action="append",
        default=[],
        metavar="PARTS@[FILE:]LINE",
        help=f"print the state before a line, such as {','.join(PARTS)}@12",
    )
    run.add_argument(
        "--explain", action="store_true", help="say what a program asks for that is not done"
    )
    run.add_argument("--check", action="store_true", help="check every launch, as `check` does")
    _checking(run)
    _program(run)
    run.add_argument(
        "--trace", metavar="FILE", help="write a timeline of every launch, for `view` and Perfetto"
    )
    run.add_argument(
        "--trace-cta",
        action="append",
        default=[],
        type=_coordinates,
        metavar="X,Y,Z",
        help="record this CTA (0,0,0 if left out); may be given again",
    )
    run.set_defaults(command=_run, name="run")

    check = commands.add_parser(
        "check",
        help="run a program, and tell the races and other faults of its kernels",
        allow_abbrev=False,
        usage="tilewright check [OPTIONS] SCRIPT [ARGS…]\n"
        "       tilewright check [OPTIONS] -m MODULE [ARGS…]",
    )
    _common(check)
    _simulated(check)
    _checking(check)
    _program(check)
    check.set_defaults(command=_run, name="check", check=True, backend=None, dump=[])
    check.set_defaults(trace=None, trace_cta=[], explain=False)

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

    view = commands.add_parser(
        "view", help="show a layout as text or as a picture (SVG), or a timeline (HTML)"
    )
    view.add_argument(
        "layout",
        metavar="LAYOUT|TRACE.json",
        help="""such as 'mma_shared_layout("float16", 3, (8, 64))', 'S[(8, 4) : (4, 1)]', """
        "or file.py::NAME; or a file that `run --trace` has written",
    )
    view.add_argument("--shape", metavar="N,M", help="of the tensor, such as 8,64")
    view.add_argument("--dtype", metavar="TYPE", help="of its elements, such as float16")
    view.add_argument(
        "-o", dest="output", metavar="FILE", help="ends in .svg or .txt; of a trace in .html"
    )
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


def _simulated(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--schedule",
        metavar="WHEN",
        help="when asynchronous operations land: late, eager, random or random:SEED",
    )
    parser.add_argument(
        "--numerics",
        choices=driver.NUMERICS,
        help="how the simulator rounds products and approximate functions",
    )


# The options of a run that are the checker's.
_CHECKING = ("strict", "allow", "schedules", "json", "sarif")


def _checking(parser: ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="fail on warnings too")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=BY_NAME,
        metavar="KIND",
        help="do not tell findings of a kind, such as missing-proxy-fence-war",
    )
    parser.add_argument(
        "--schedules",
        type=_count,
        metavar="N",
        help="check by late, eager and N random orders besides",
    )
    for name, what in (("json", "JSON"), ("sarif", "SARIF 2.1.0")):
        parser.add_argument(
            f"--{name}",
            metavar="FILE",
            help=f"write the findings as {what}; - is the standard output",
        )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _coordinates(text: str) -> tuple[int, int, int]:
    numbers = text.split(",")
    if len(numbers) != 3 or not all(each.isdecimal() for each in numbers):
        raise ArgumentTypeError(f"{text!r} are not three numbers, such as 1,0,0")
    x, y, z = map(int, numbers)
    return x, y, z


def _program(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-m", dest="module", nargs=REMAINDER, metavar="MODULE", help="run a module, not a file"
    )
    parser.add_argument(
        "script",
        nargs=REMAINDER,
        metavar="SCRIPT",
        help="and its arguments; or a folder with __main__.py",
    )


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
