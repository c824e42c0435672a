"""From a kernel to something that can be called: the one place that knows the whole order.

May import everything but `cli`. A program that runs under `tilewright run` meets the choices
of the command line as `Defaults`.

    ex = compile(kernel, target="sm_90a")
    ex(a, b, out)
    print(ex.source)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, runtime_checkable

from tilewright import codegen, sim
from tilewright.base.errors import LaunchError, TargetError
from tilewright.base.targets import Target, requested_arch
from tilewright.base.targets import target as target_named
from tilewright.codegen.read_only import read_only_pointers
from tilewright.ir.expressions import Constant
from tilewright.ir.statements import Kernel, Program
from tilewright.ir.types import PointerType
from tilewright.passes import pipeline
from tilewright.passes.check_target import choose_target
from tilewright.runtime import nvrtc
from tilewright.runtime.arguments import bind
from tilewright.runtime.host import HostRun
from tilewright.runtime.once import Once
from tilewright.runtime.simulator import Simulator

BACKENDS = ("auto", "gpu", "sim")
SCHEDULES = ("late", "eager", "random")
TargetLike = str | Target | Mapping[str, Any] | None


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

    `target`, `backend` and `schedule` override what the program asks for, `cpu` is LLVM's name
    of the processor to make code for; `on_compile` is called with every new executable.
    Raises `TilewrightError` for a value that is none.
    """

    target: str | None = None
    backend: str | None = None
    schedule: str | None = None
    cpu: str | None = None
    on_compile: Callable[[Executable], None] | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            requested_arch(self.target)
        if self.backend is not None:
            _backend(self.backend)
        if self.schedule is not None:
            _schedule(self.schedule)


_session = Defaults()


@contextmanager
def session(defaults: Defaults) -> Iterator[None]:
    """Let defaults hold, in all threads, until the block ends."""
    global _session
    before, _session = _session, defaults
    try:
        yield
    finally:
        _session = before


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
        backend: str,
        simulator: Simulator,
    ) -> None:
        self.program = program
        self.ir = lowered
        self.target = target
        self.backend = backend
        self._written = frozenset[str]().union(*map(_written, lowered.kernels))
        self._simulator = simulator
        self._source = Once(lambda: codegen.generate(lowered, target).text)
        self._built = Once(lambda: nvrtc.build(self.source, target, self.name))

    @property
    def name(self) -> str:
        """Give the name of the function."""
        return self.program.name

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

    @property
    def resources(self) -> dict[str, Resources]:
        """Tell what each kernel takes, by its name; registers once `cubin()` has been called."""
        usage = self._built().usage if self._built.done else {}
        return {kernel.name: _resources(kernel, usage) for kernel in self.ir.kernels}

    def __call__(self, *arguments: Any) -> None:
        """Run the program; arrays that it writes are changed in place.

        Raises `LaunchError` for arguments or a launch that cannot be, and `SimulationError` for
        what goes wrong in a kernel.
        """
        bound = bind(self.program, arguments, self._written)
        run = HostRun(
            self.ir,
            lambda kernel, values: self._simulator.launch(kernel, values, bound.memories, _print),
            _print,
        )
        run(bound.values)
        bound.copy_back()

    def __repr__(self) -> str:
        where = {"sim": "the simulator", "gpu": "the GPU"}[self.backend]
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
    **unknown: Any,
) -> Executable:
    """Compile a kernel for a target.

    `target` is a name such as "sm_90a"; `None` or "cuda" stand for the first usual target that
    has every instruction of the kernel. `backend` is "auto", "gpu" or "sim"; launches on a GPU
    do not exist yet, so that "auto" is the simulator and "gpu" is refused. `schedule` says when
    asynchronous operations land in the simulator: "late" (the default), "eager", "random" or
    "random:SEED". `numerics` is "fast". `workers` is the number of threads that simulate,
    `step_limit` bounds the turns of the kernel's loops, `memory_limit` the bytes that the
    simulated chip may take.

    Raises `TilewrightError`s for everything that is wrong with the program or the options.
    """
    if unknown:
        _refuse("an option", next(iter(unknown)), _OPTIONS)
    program = _program_of(kernel)
    chosen = _target(_session.target or target, program)
    place = _backend(_session.backend or backend or "auto")
    options = _options(_session.schedule or schedule, numerics, workers, step_limit)
    lowered = pipeline.lower(program, chosen, pipeline.Options())
    simulator = Simulator(lowered, chosen, options, memory_limit)
    executable = Executable(program, lowered, chosen, place, simulator)
    if _session.on_compile is not None:
        _session.on_compile(executable)
    return executable


_OPTIONS = (
    *("target", "backend", "schedule", "numerics", "workers", "step_limit", "memory_limit"),
)


def _program_of(kernel: HasProgram | Program) -> Program:
    if isinstance(kernel, Program):
        return kernel
    if isinstance(kernel, HasProgram):
        return kernel.program
    raise LaunchError(
        "there is nothing to compile",
        code="argument-kind",
        expected="a function decorated with @T.function, or a Program",
        found=f"{kernel!r} of type {type(kernel).__name__}",
    )


def _target(request: TargetLike, program: Program) -> Target:
    arch = requested_arch(request)
    return choose_target(program) if arch is None else target_named(arch)


def _backend(name: str) -> str:
    if name not in BACKENDS:
        _refuse("a backend", name, BACKENDS)
    if name == "gpu":
        raise TargetError(
            "a kernel cannot be launched on a GPU",
            code="missing-tool",
            expected='backend="sim", or "auto"',
            hint="this version compiles for GPUs (source, ptx, cubin) and runs on the simulator",
        )
    return "sim"


def _options(
    schedule: str | None, numerics: str | None, workers: int | None, step_limit: int | None
) -> sim.Options:
    name, seed = _schedule(schedule or "late")
    if numerics not in (None, "fast"):
        _refuse("a kind of numerics", numerics, ("fast",))
    for what, count in (("a number of workers", workers), ("a step limit", step_limit)):
        if count is not None and count < 1:
            _refuse(what, count, ("1 or more",))
    return sim.Options(
        schedule=name, seed=seed, workers=workers, step_limit=step_limit, cpu=_session.cpu
    )


def _schedule(text: str) -> tuple[str, int]:
    """Read a schedule and its seed."""
    name, colon, seed = text.partition(":")
    if name not in SCHEDULES or (colon and (name != "random" or not seed.isdecimal())):
        _refuse("a schedule", text, (*SCHEDULES, "random:SEED"))
    return name, int(seed or 0)


def _refuse(what: str, found: object, choices: tuple[str, ...]) -> NoReturn:
    raise LaunchError(
        f"{found!r} is not {what}", code="bad-option", expected="one of " + ", ".join(choices)
    )


def _written(kernel: Kernel) -> frozenset[str]:
    """Name the pointers that a kernel may write through."""
    pointers = {param.name for param in kernel.params if isinstance(param.type, PointerType)}
    return frozenset(pointers - read_only_pointers(kernel))


def _resources(kernel: Kernel, usage: Mapping[str, nvrtc.KernelUsage]) -> Resources:
    return Resources(_threads(kernel), _shared_bytes(kernel), usage.get(kernel.name))


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
    sys.stdout.write(text)
