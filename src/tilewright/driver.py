"""From a kernel to something that can be called: the one place that knows the whole order.

May import everything but `cli`. A program that runs under `tilewright run` meets the choices
of the command line as `Defaults`.

    ex = compile(kernel, target="sm_90a")
    ex(a, b, out)
    print(ex.source)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache as cached
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, runtime_checkable

from tilewright import codegen, sim
from tilewright.base import lazy
from tilewright.base.errors import CheckError, LaunchError, SimulationError, TargetError
from tilewright.base.findings import Finding, counted
from tilewright.base.store import NOWHERE, Store
from tilewright.base.targets import Target, requested_arch
from tilewright.base.targets import target as target_named
from tilewright.compat.requests import Target as RequestedTarget
from tilewright.frontend.device_functions import DeviceFunction
from tilewright.frontend.functions import JitTemplate
from tilewright.ir.expressions import Constant
from tilewright.ir.statements import PARTS, Kernel, Program
from tilewright.ir.types import PointerType
from tilewright.passes import pipeline
from tilewright.passes.analysis.read_only import read_only_pointers
from tilewright.passes.analysis.tensor_maps import tensor_map_bases, written_tensor_maps
from tilewright.passes.check_target import choose_target, has_instructions
from tilewright.passes.show_state import Dump, has_breakpoint
from tilewright.runtime import nvrtc
from tilewright.runtime.arguments import Bound, bind, flattened
from tilewright.runtime.cache import Cache, default_folder, opened
from tilewright.runtime.checking import Checking, checked
from tilewright.runtime.cuda_driver import Gpu, find_gpu, require_gpu
from tilewright.runtime.gpu import Launcher, Local
from tilewright.runtime.host import HostRun, Values
from tilewright.runtime.nvdisasm import disassemble
from tilewright.runtime.once import Once
from tilewright.runtime.simulator import Simulator
from tilewright.runtime.staging import stage
from tilewright.runtime.streams import stream_handle
from tilewright.runtime.tracing import leave_untraced

if TYPE_CHECKING:
    from tilewright.sim.check import kinds
    from tilewright.sim.trace import recorder as recording
    from tilewright.sim.trace import trace as tracing
    from tilewright.sim.trace.recorder import Grid, Recorder
    from tilewright.sim.trace.trace import Trace
else:
    kinds = lazy.module("tilewright.sim.check.kinds")
    recording = lazy.module("tilewright.sim.trace.recorder")
    tracing = lazy.module("tilewright.sim.trace.trace")

BACKENDS = ("auto", "gpu", "sim")
SCHEDULES = ("late", "eager", "random")
NUMERICS = ("fast", "exact")
CHECKS = (False, True, "strict")
_CACHE = "TILEWRIGHT_CACHE"  # the environment variable
TargetLike = str | Target | Mapping[str, Any] | None
Check = bool | Literal["strict"]


@runtime_checkable
class HasProgram(Protocol):
    """What `compile` takes: a kernel function, or anything else that holds a program."""

    @property
    def program(self) -> Program:
        """Give the program in its high form."""
        ...


@dataclass(frozen=True)
class Defaults:
    """What holds for every `compile` of a session, such as a script under `tilewright run`.

    `target`, `backend`, `schedule`, `numerics`, `cache` and `check` override what the program asks
    for, `allow` adds to it; checked calls run by `schedules` seeds too. `cpu` is LLVM's name of the
    processor to make code for, `dumps` are states to show. `on_compile` is called with every new
    executable, `on_call` before every call of one, `on_findings` with what each checked call has
    found, which is then not raised, unless `raises_asked` and the program itself asks for its
    check. Where there is a `recorder`, calls run on the simulator and
    tell it what happens; none is checked. `plain` says that calls are left as they are.
    Raises `TilewrightError` for a value that is none.
    """

    target: str | None = None
    backend: str | None = None
    schedule: str | None = None
    numerics: str | None = None
    cpu: str | None = None
    cache: str | None = None
    dumps: tuple[Dump, ...] = ()
    on_compile: Callable[[Executable], None] | None = None
    on_call: Callable[[Executable], None] | None = None
    check: Check | None = None
    allow: frozenset[str] = frozenset()
    schedules: int = 0
    on_findings: Callable[[Sequence[Finding]], None] | None = None
    raises_asked: bool = False
    recorder: Recorder | None = None
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        plain = not self.check and self.recorder is None and self.on_call is None
        object.__setattr__(self, "plain", plain)
        if self.target is not None:
            requested_arch(self.target)
        if self.backend is not None:
            _backend(self.backend)
        if self.schedule is not None:
            _schedule(self.schedule)
        if self.numerics is not None:
            _numerics(self.numerics)
        if self.check is not None:
            _check(self.check)
        if self.allow:
            _kinds(self.allow)


_session = Defaults()


@contextmanager
def session(defaults: Defaults) -> Generator[None]:
    """Let defaults hold, in all threads, until the block ends."""
    global _session
    before, _session = _session, defaults
    try:
        yield
    finally:
        _session = before


def defaults() -> Defaults:
    """Give what holds now."""
    return _session


def keep_compiled(kept: bool) -> None:
    """Let compiled code be kept between processes, or not, from now on."""
    global _session
    if kept == (_session.cache == "off"):
        _session = replace(_session, cache=None if kept else "off")


@dataclass(frozen=True)
class Resources:
    """What a kernel takes: threads of a CTA, and bytes of the CTA's shared memory.

    `None` is what depends on arguments. All shared memory that a kernel lays out is one dynamic
    block. `compiled` is what the assembler reports (registers and bytes per thread), once there
    is a cubin.
    """

    threads: int | None
    dynamic_shared_bytes: int | None
    compiled: nvrtc.KernelUsage | None = None


class Executable:
    """A compiled program: call it with the arguments of the function it was made of.

    What is asked for is made when it is first asked for, once, with any number of threads.
    """

    def __init__(
        self,
        program: Program,
        lowered: Program,
        target: Target,
        gpu: Gpu | None,
        simulator: Simulator,
        store: Store,
        check: Check = False,
        allow: frozenset[str] = frozenset(),
    ) -> None:
        self.program = program
        self.ir = lowered
        self.target = target
        self.gpu = gpu
        self._written = _written(lowered)
        self._simulator = simulator
        self._check: Check = check
        self._allow = allow
        self._instrumented = Once(simulator.instrumented)
        self._traced = Once(simulator.traced)
        self._told: set[object] = set()
        self._said_that_copies_are_made = False
        self._source = Once(lambda: codegen.generate(lowered, target).text)
        self._built = Once(lambda: nvrtc.build(self.source, target, self.name, store))
        self._call = self._simulate
        self._plans = Local()
        if gpu is not None:
            announce = partial(self._say_that_copies_are_made, "the CPU to the GPU")
            launcher = Launcher(
                program, lowered, target, self._written, self.cubin, _print, announce
            )
            self._call = launcher.launch
            self._plans = launcher.local
        leave_untraced(Executable.__call__)

    @property
    def backend(self) -> str:
        """Say where calls run: "gpu" or "sim"."""
        return "sim" if self.gpu is None else "gpu"

    @property
    def name(self) -> str:
        """Give the name of the function."""
        return self.program.name

    @property
    def notes(self) -> tuple[pipeline.Note, ...]:
        """Say what the program asks for that is not done, such as overlapping copies, and why."""
        return pipeline.explain(self.program, self.target)

    @property
    def source(self) -> str:
        """Give the CUDA C++ text."""
        return self._source()

    def cubin(self) -> bytes:
        """Compile for the GPU, by NVRTC; neither a GPU nor a driver is needed.

        Raises `TargetError` (`missing-tool`) without the extra `cuda` of this package.
        """
        return self._built().cubin

    def ptx(self) -> str:
        """Compile to PTX, by NVRTC; raises as `cubin` does."""
        return self._built().ptx

    def sass(self) -> str:
        """Show the instructions of the cubin, by nvdisasm; raises as `cubin` does."""
        return disassemble(self.cubin())

    @property
    def resources(self) -> dict[str, Resources]:
        """Tell what each kernel takes, by its name; registers once `cubin()` has been called."""
        usage = self._built().usage if self._built.done else {}
        symbols = codegen.kernel_symbols(self.ir)
        return {
            kernel.name: _resources(kernel, usage.get(symbols[kernel.name]))
            for kernel in self.ir.kernels
        }

    def has_breakpoint(self, wish: Dump) -> bool:
        """Tell whether a call shows the state at a line of the program."""
        return has_breakpoint(self.ir, wish)

    def __call__(
        self,
        *arguments: Any,
        check: Check | None = None,
        allow: Iterable[str] | None = None,
        stream: Any = None,
        **named: Any,
    ) -> None:
        """Run the program, with arguments by position or name; arrays that it writes are changed.

        On a GPU it returns as soon as the launches are queued, unless arrays of the CPU are
        copied there and back. `stream` is where the launches go: a handle as a number, an object
        with `__cuda_stream__`, or a stream of PyTorch, CuPy or Numba; if it is left out, the
        current one of the library that the arrays are of. On the simulator a call has run when it
        returns. `check` and `allow` are as in `compile`, for this call: a checked call runs on the
        simulator. Raises `LaunchError` for arguments or a launch that cannot be,
        `SimulationError` for what goes wrong in a kernel, and `CheckError` for what the checker
        finds.
        """
        # As most calls are, and as quickly as can be told: what that takes, a launch takes.
        if (
            _session.plain
            and check is None
            and allow is None
            and stream is None
            and not (named or self._check)
        ):
            if not self._plans.start(arguments):
                self._call(arguments)
            return
        if _session.on_call is not None:
            _session.on_call(self)
        if stream is not None and any(param.name == "stream" for param in self.program.params):
            named["stream"], stream = stream, None
        checking = self._asked(check, allow, named)
        given = self._in_order(arguments, named) if named else arguments
        if _session.recorder is not None:
            self._record(given, _session.recorder)
        elif checking is None:
            self._call(given, stream)
        else:
            self._call_checked(given, checking)

    def trace(self, *arguments: Any, ctas: Iterable[Grid] | None = None, **named: Any) -> Trace:
        """Run the program on the simulator, and give a timeline of what it does.

        Arguments are those of a call. `ctas` are the coordinates (x, y, z) of the CTAs that are
        recorded in each launch, (0, 0, 0) alone if left out. Raises as a call does; a
        `SimulationError` then has the trace up to there as its `trace`.
        """
        if ctas is not None and "ctas" in {param.name for param in self.program.params}:
            named["ctas"], ctas = ctas, None
        if _session.on_call is not None:
            _session.on_call(self)
        recorder = recording.Recorder() if ctas is None else recording.Recorder(ctas)
        try:
            self._record(self._in_order(arguments, named) if named else arguments, recorder)
        except SimulationError as error:
            error.trace = tracing.trace_of(recorder)
            raise
        return tracing.trace_of(recorder)

    def _record(self, arguments: tuple[Any, ...], recorder: Recorder) -> None:
        with self._bound(arguments) as bound:
            self._run(self._traced(), bound, _print, recorder)

    def _asked(
        self, check: Check | None, allow: Iterable[str] | None, named: dict[str, Any]
    ) -> Checking | None:
        """Say how a call is checked; a parameter of the name of an option takes its argument."""
        own = {param.name for param in self.program.params}
        if check is not None and "check" in own:
            named["check"], check = check, None
        if allow is not None and "allow" in own:
            named["allow"], allow = allow, None
        asked = self._check if check is None else _check(check)
        return _checking(asked, self._allow | _kinds(allow or ()))

    def _in_order(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Put arguments that are named after those that are not."""
        names = [param.name for param in self.program.params]
        rest = names[len(arguments) :]
        if unknown := next((name for name in named if name not in rest), None):
            given = unknown in names
            raise LaunchError(
                f"the argument {unknown!r} is given twice"
                if given
                else f"{self.name} has no parameter {unknown!r}",
                code="argument-count",
                location=self.program.location,
                expected=f"{len(names)}: {', '.join(names)}",
                found=f"{len(arguments)} by position, {', '.join(named)} by name",
            )
        if missing := [name for name in rest if name not in named]:
            raise LaunchError(
                f"{self.name} is called without the argument {missing[0]!r}",
                code="argument-count",
                location=self.program.location,
                expected=f"{len(names)}: {', '.join(names)}",
                found=f"{len(arguments)} by position, {', '.join(named)} by name",
            )
        return (*arguments, *(named[name] for name in rest))

    def _simulate(self, arguments: tuple[Any, ...], stream: Any = None) -> None:
        if stream is not None:
            stream_handle(stream)  # is to be one, though here nothing is left to wait for
        with self._bound(arguments) as bound:
            self._run(self._simulator, bound, _print)

    @contextmanager
    def _bound(self, arguments: tuple[Any, ...]) -> Generator[Bound]:
        """Bind arguments to memory of the CPU; what was written is copied back at the end."""
        arguments = flattened(arguments)
        staged = stage(arguments)
        if staged is not None:
            self._say_that_copies_are_made("the GPU to the CPU")
        given = arguments if staged is None else staged.arguments
        bound = bind(self.program, given, self._written)
        yield bound
        bound.copy_back()
        if staged is not None:
            names = enumerate(param.name for param in self.program.params)
            staged.copy_back({position for position, name in names if name in self._written})

    def _run(
        self,
        simulator: Simulator,
        bound: Bound,
        output: Callable[[str], None],
        recorder: Recorder | None = None,
    ) -> tuple[Finding, ...]:
        """Run the host's part; give what the checker finds in all launches, if it is there."""
        found: list[Finding] = []

        def launch(kernel: Kernel, values: Values) -> None:
            found.extend(simulator.launch(kernel, values, bound.memories, output, recorder))

        try:
            HostRun(self.ir, launch, output, bound.sizes)(bound.values)
        except CheckError as fault:
            raise CheckError((*found, *fault.findings), self.name) from fault.__cause__
        return tuple(found)

    def _call_checked(self, arguments: tuple[Any, ...], checking: Checking) -> None:
        """Run under the checker; raise or tell what it finds when the outputs are there."""
        with self._bound(arguments) as bound:
            found, fault = checked(
                lambda simulator, prints: self._run(
                    simulator, bound, _print if prints else lambda text: None
                ),
                self._instrumented(),
                checking.schedules,
                [each for each in bound.memories if each.name in self._written],
            )
            found = checking.told(found)
            fails = checking.fails(found)
            collect = None if checking.raises and fails else _session.on_findings
            if collect is not None:
                collect(found)
            if fault is not None:
                raise self._ended(fault, found, checking)
        if collect is not None:
            return
        if fails:
            raise CheckError(found, self.name)
        self._tell(found)

    def _ended(
        self, fault: CheckError, found: tuple[Finding, ...], checking: Checking
    ) -> BaseException:
        """Give the error of a run that a fault ended: the fault itself, if its kind is allowed."""
        cause = fault.__cause__
        if cause is not None and not checking.fails(found):
            return cause
        error = CheckError(found, self.name)
        error.__cause__ = cause
        return error

    def _tell(self, found: tuple[Finding, ...]) -> None:
        """Tell findings that are not raised, each once."""
        new = [each for each in found if each.fault not in self._told]
        self._told |= {each.fault for each in new}
        if new:
            text = "\n\n".join(map(str, new))
            print(
                f"tilewright: the checker found {counted(new)} in {self.name}\n\n{text}",
                file=sys.stderr,
                flush=True,
            )

    def _say_that_copies_are_made(self, way: str) -> None:
        """Say once that arrays go from one memory to another, and back."""
        if not self._said_that_copies_are_made:
            self._said_that_copies_are_made = True
            text = f"tilewright: {self!r} copies arrays of {way} and back"
            print(text, file=sys.stderr, flush=True)

    def __repr__(self) -> str:
        where = "the simulator" if self.gpu is None else f"the GPU {self.gpu.name}"
        return f"<{self.name} for {self.target} on {where}>"


def compile(
    kernel: HasProgram | Program,
    target: TargetLike = None,
    backend: str | None = None,
    *,
    schedule: str | None = None,
    numerics: str | None = None,
    workers: int | None = None,
    step_limit: int | None = None,
    memory_limit: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    check: Check = False,
    allow: Iterable[str] = (),
    **unknown: Any,
) -> Executable:
    """Compile a kernel for a target.

    `target` is a name such as "sm_90a"; `None` or "cuda" stand for that of the GPU, and on the
    simulator for the first usual target that has every instruction of the kernel. `backend` is
    "gpu", "sim" or "auto": the GPU if there is one that runs what the target is compiled to, and
    none of `schedule`, `numerics` and `check` is asked for, else the simulator. `schedule` says
    when asynchronous operations land in the simulator: "late" (the default), "eager", "random" or
    "random:SEED". `numerics` says how it rounds products of matrices and approximate functions:
    "fast" (the default), or "exact" as on the target's chips. `workers` is the number of threads
    that simulate, `step_limit` bounds the turns of loops that the warps of a CTA take together,
    `memory_limit` the bytes that the simulated chip may take. `cache` is the folder in which
    compiled code is kept between processes, or "off"; without it the environment variable
    TILEWRIGHT_CACHE says the same, and without that it is the user's own cache folder.

    With `check` each call is watched by the checker, and raises `CheckError` at its end for the
    errors that it finds; warnings are told on the error output, or with "strict" raised as well.
    Kinds of findings that `allow` names are neither.

    Raises `TilewrightError`s for everything that is wrong with the program or the options.
    """
    if unknown:
        _refuse("an option", next(iter(unknown)), _OPTIONS)
    program = _program_of(kernel)
    place = _backend(_session.backend or ("auto" if backend is None else backend))
    schedule = _session.schedule or schedule
    numerics = _session.numerics or numerics
    options = _options(schedule, numerics, workers, step_limit)
    if memory_limit is not None and not _is_count(memory_limit):
        _refuse("a number of bytes", memory_limit, ("1 or more",))
    place_of_cache = _folder(cache)
    allowed = _kinds(allow)
    checking = _checking(_check(check), allowed)
    asked = (
        *(("check", checking), ("schedule", schedule)),
        *(("numerics", numerics), ("dump", _session.dumps), ("trace", _session.recorder)),
    )
    simulated = next((name for name, value in asked if value), None)
    asked_for = RequestedTarget.current() if target is None else target
    arch = requested_arch(_session.target or asked_for)
    gpu = _gpu(place, simulated, arch, program)
    chosen = _target(arch, gpu, program)
    lowered = pipeline.lower(program, chosen, pipeline.Options(dumps=_session.dumps))
    store = compile_cache(place_of_cache) or NOWHERE
    simulator = Simulator(lowered, chosen, options, memory_limit, store)
    executable = Executable(program, lowered, chosen, gpu, simulator, store, check, allowed)
    if _session.on_compile is not None:
        _session.on_compile(executable)
    return executable


_OPTIONS = (
    *("target", "backend", "schedule", "numerics", "workers", "step_limit", "memory_limit"),
    *("cache", "check", "allow"),
)


def compile_cache(place: str | None = None) -> Cache | None:
    """Open the cache of compiled code, where `cache_place` says that it is.

    Gives `None` where there is to be none ("off"), and where the folder cannot be made or is not
    safe to read code from: that is told once, on the error output.
    """
    place = cache_place(place)
    if place == "off":
        return None
    folder = default_folder(os.environ, sys.platform) if place is None else Path(place)
    return None if folder is None else _opened(Path(os.path.expanduser(folder)).absolute())


def cache_place(place: str | None = None) -> str | None:
    """Say where compiled code is to be kept: in a folder, "off", or `None` for the user's own.

    What the session says goes first, then `place`, then the environment.
    """
    return _session.cache or place or os.environ.get(_CACHE) or None


@cached
def _opened(folder: Path) -> Cache | None:
    return opened(folder, lambda text: print(f"tilewright: {text}", file=sys.stderr, flush=True))


def _folder(place: object) -> str | None:
    """Read where compiled code is to be kept."""
    if place is None:
        return None
    path: object = getattr(place, "__fspath__", lambda: place)()
    if not isinstance(path, str) or "\0" in path:
        _refuse("a place for compiled code", place, ("a folder", "off"))
    return path


def _program_of(kernel: object) -> Program:
    if isinstance(kernel, Program):
        return kernel
    if isinstance(kernel, HasProgram):
        return kernel.program
    raise LaunchError(
        "there is nothing to compile",
        code="argument-kind",
        expected="a function decorated with @T.function, or a Program",
        found=f"{kernel!r} of type {type(kernel).__name__}",
        hint=_ADVICE.get(type(kernel)),
    )


_ADVICE: dict[type, str] = {
    DeviceFunction: "a private function is a helper: compile the kernel that calls it",
    JitTemplate: "fill in its constants: compile(template.specialize(…))",
}


def _target(arch: str | None, gpu: Gpu | None, program: Program) -> Target:
    if arch is not None:
        return target_named(arch)
    own = None if gpu is None else gpu.target
    return choose_target(program) if own is None else own


def _backend(name: str) -> str:
    if name not in BACKENDS:
        _refuse("a backend", name, BACKENDS)
    return name


def _gpu(place: str, simulated: str | None, arch: str | None, program: Program) -> Gpu | None:
    """Choose the GPU to run on, or the simulator; `simulated` is an option only for the latter."""
    if place == "sim" or (place == "auto" and simulated is not None):
        return None
    if simulated is not None:
        raise LaunchError(
            f"the option {simulated!r} is one of the simulator's",
            code="bad-option",
            expected='backend="sim", or "auto"',
            found='backend="gpu"',
        )
    gpu = find_gpu() if place == "auto" else require_gpu()
    if gpu is None:
        return None
    target = gpu.target if arch is None else target_named(arch)
    if target is not None and gpu.runs(target) and (arch or has_instructions(program, target)):
        return gpu
    if place == "auto":
        return None
    raise TargetError(
        f"the GPU does not run {program.name}",
        code="missing-tool",
        expected="a GPU that runs cubins for "
        + (arch or "a target with every instruction of the kernel"),
        found=f"{gpu.name}, for {gpu.target}",
        hint='backend="sim" runs it on the CPU',
    )


def _options(
    schedule: str | None, numerics: str | None, workers: int | None, step_limit: int | None
) -> sim.Options:
    name, seed = _schedule("late" if schedule is None else schedule)
    numerics = _numerics("fast" if numerics is None else numerics)
    for what, count in (("a number of workers", workers), ("a step limit", step_limit)):
        if count is not None and not _is_count(count):
            _refuse(what, count, ("1 or more",))
    return sim.Options(
        schedule=name,
        seed=seed,
        numerics=numerics,
        workers=workers,
        step_limit=step_limit,
        cpu=_session.cpu,
    )


def _checking(check: Check, allow: frozenset[str]) -> Checking | None:
    """Say how calls are checked, if they are; what the session asks for comes first."""
    raises = bool(check) and _session.raises_asked
    if _session.check is not None and not raises:
        check = _session.check
    if not check:
        return None
    return Checking(check == "strict", allow | _session.allow, _session.schedules, raises)


def _check(check: Check) -> Check:
    if check not in CHECKS:
        _refuse("a way to check", check, tuple(map(repr, CHECKS)))
    return check


def _kinds(names: Iterable[str]) -> frozenset[str]:
    several = hasattr(names, "__iter__") and type(names) is not str
    listed: tuple[Any, ...] = tuple(names) if several else (names,)
    for name in listed:
        if name not in tuple(kinds.BY_NAME):
            _refuse("a kind of finding", name, tuple(kinds.BY_NAME))
    return frozenset(listed)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def dump(text: str) -> Dump:
    """Read a wish to see the state before a line, such as `shared,regs@12` or `regs@file.py:12`.

    Raises `LaunchError` (`bad-option`) if it is none.
    """
    names, _, place = text.partition("@")
    file, colon, line = place.rpartition(":")
    parts = tuple(names.split(","))
    if not set(parts) <= set(PARTS) or not line.isdecimal() or (colon and not file):
        forms = (f"{','.join(PARTS)}@LINE", *(f"{part}@FILE:LINE" for part in PARTS))
        _refuse("a state to show", text, forms)
    return Dump(parts, int(line), file or None)


def _numerics(name: str) -> str:
    if name not in NUMERICS:
        _refuse("a kind of numerics", name, NUMERICS)
    return name


def _schedule(text: object) -> tuple[str, int]:
    """Read a schedule and its seed."""
    name, colon, seed = str(text).partition(":")
    if name not in SCHEDULES or (colon and (name != "random" or not seed.isdecimal())):
        _refuse("a schedule", text, (*SCHEDULES, "random:SEED"))
    return name, int(seed or 0)


def _refuse(what: str, found: object, choices: tuple[str, ...]) -> NoReturn:
    raise LaunchError(
        f"{found!r} is not {what}", code="bad-option", expected="one of " + ", ".join(choices)
    )


def _written(program: Program) -> frozenset[str]:
    """Name the parameters whose memory a program may write, through pointers or tensor maps."""
    bases = tensor_map_bases(program.host)
    found: set[str] = set()
    for kernel in program.kernels:
        pointers = {param.name for param in kernel.params if isinstance(param.type, PointerType)}
        found |= pointers - read_only_pointers(kernel)
        found |= {bases[name] for name in written_tensor_maps(kernel) if name in bases}
    return frozenset(found)


def _resources(kernel: Kernel, usage: nvrtc.KernelUsage | None) -> Resources:
    return Resources(_threads(kernel), _shared_bytes(kernel), usage)


def _threads(kernel: Kernel) -> int | None:
    threads = 1
    for extent in kernel.launch.block:
        if not isinstance(extent, Constant):
            return None
        threads *= int(extent.value)
    return threads


def _shared_bytes(kernel: Kernel) -> int | None:
    asked = kernel.launch.dynamic_shared_bytes
    if not isinstance(asked, Constant):
        return None
    return kernel.shared_bytes + int(asked.value)


def _print(text: str) -> None:
    print(text, end="")  # there may be no output
