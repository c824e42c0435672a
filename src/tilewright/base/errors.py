"""The public exceptions and their stable codes.

Imports only `base.locations` and `base.findings`. A user's mistake is one of these, with the
place, what was expected, what was found and what to do; `docs/errors.md` is written from `CODES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.findings import Finding, counted
from tilewright.base.locations import Location


class TilewrightError(Exception):
    """Report a mistake in a program or in the use of this package.

    `code` is stable and listed in `docs/errors.md`; `location` is the user's own line, where
    there is one.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        location: Location | None = None,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        assert code in CODES, f"undeclared error code {code!r}"
        self.message = message
        self.code = code
        self.location = location
        self.expected = expected
        self.found = found
        self.hint = hint
        self.notes = notes
        super().__init__(self.render())

    def render(self) -> str:
        """Lay the error out as text: message, place, excerpt, expected, found, hint, notes."""
        lines = [f"{self.message} [{self.code}]"]
        if self.location is not None:
            lines += self.location.shown()
        labelled = (("expected", self.expected), ("found", self.found), ("hint", self.hint))
        lines += [f"  {label}: {text}" for label, text in labelled if text]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


class FrontendError(TilewrightError):
    """Refuse source that is not a program of the dialect."""


class VerifyError(TilewrightError):
    """Refuse a program that breaks a rule of the IR or of an instruction."""


class TargetError(TilewrightError):
    """Refuse an instruction or a resource that the target does not have."""


class TileContractError(TilewrightError):
    """Refuse a tile operation whose operands do not meet the instruction's contract."""


class LaunchError(TilewrightError):
    """Refuse the arguments, the shape or the memory of a launch."""


class SimulationError(TilewrightError):
    """Report a fault met while a kernel ran on the simulator."""

    # Where it ended a launch, for the checker: who met it (a `sim.reports.Stopped`), and what was
    # noted before (`sim.check.raw.RawFinding`s).
    stopped: object = None
    noted: Sequence[object] = ()
    # What happened before, where a call was traced: a `Trace`.
    trace: Any = None


class DeadlockError(SimulationError):
    """Report that nothing can run and nothing is in flight."""


class MemoryFault(SimulationError):
    """Report an access outside its allocation, or misaligned, or to memory of no kind."""


class StepLimit(SimulationError):
    """Report that a kernel ran more loop iterations than the launch allows."""


class CheckError(TilewrightError):
    """Report what the checker found.

    `findings` are all there are, errors first; `kind` is that of the first one.
    """

    def __init__(self, findings: Sequence[Finding], program: str) -> None:
        self.findings = tuple(findings)
        self.kind = self.findings[0].kind
        self.program = program
        super().__init__(
            f"the checker found {counted(self.findings)} in {program}",
            code="check",
            location=self.findings[0].location,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return CheckError, (self.findings, self.program)

    def render(self) -> str:
        """Lay the error out as text: how much was found, then every finding."""
        return "\n\n".join([f"{self.message} [{self.code}]", *map(str, self.findings)])


class CompilerBug(TilewrightError):
    """Report a fault of Tilewright itself, with what is needed to file it."""


# Every code, with the class that carries it and what it means, in one sentence.
CODES: dict[str, tuple[type[TilewrightError], str]] = {
    # the language
    "missing-annotation": (FrontendError, "A kernel parameter has no type annotation."),
    "bad-annotation": (FrontendError, "A parameter's annotation is not a type of the dialect."),
    "no-source": (FrontendError, "The source text of a kernel cannot be read."),
    "unsupported-statement": (FrontendError, "A Python statement has no meaning in a kernel."),
    "unsupported-expression": (FrontendError, "A Python expression has no meaning in a kernel."),
    "unbound-name": (FrontendError, "A name is used that is not bound on every way to its use."),
    "type-mismatch": (FrontendError, "Operands or an assignment do not fit in type."),
    "bad-index": (FrontendError, "A tensor is indexed with too many, too few or wrong indices."),
    "bad-call": (FrontendError, "A function of the dialect is called with wrong arguments."),
    "unknown-name": (FrontendError, "The dialect has no such name."),
    "not-supported": (FrontendError, "The dialect has this name, but not in this package."),
    "unknown-modifier": (FrontendError, "The instruction has no such modifier at this point."),
    "incomplete-instruction": (FrontendError, "An instruction lacks modifiers that it requires."),
    "operand-count": (FrontendError, "An instruction has too many or too few operands."),
    "operand-type": (FrontendError, "An operand of an instruction has the wrong type or space."),
    "not-constant": (FrontendError, "A value must be known when the kernel is compiled."),
    "bad-view": (FrontendError, "A view does not fit the tensor it is taken of."),
    "bad-layout": (FrontendError, "A layout is malformed or does not fit its shape."),
    "layout-conflict": (FrontendError, "No layout of a fragment suits all statements that use it."),
    "no-entry": (FrontendError, "The function has no device entry."),
    "static-assertion": (FrontendError, "A static assertion does not hold."),
    "trace-error": (FrontendError, "Python code that runs while a kernel is read has failed."),
    # the IR
    "invalid-program": (VerifyError, "A program breaks a rule of its stage of compilation."),
    # targets
    "unknown-target": (TargetError, "There is no such target."),
    "missing-instruction": (TargetError, "The target does not have an instruction."),
    "no-target": (TargetError, "No target has every instruction of the kernel."),
    "resource-limit": (TargetError, "The kernel needs more of a resource than the target has."),
    "missing-tool": (TargetError, "An optional package or device that was asked for is absent."),
    # tiles
    "tile-shape": (TileContractError, "A tile operand's shape does not fit the instruction."),
    "tile-ownership": (TileContractError, "A register tile is not laid out over the threads."),
    "tile-layout": (
        TileContractError,
        "A tile operand in memory is not laid out as the instruction finds it.",
    ),
    "tile-alignment": (TileContractError, "A tile operand's address cannot be shown aligned."),
    "tile-operand": (TileContractError, "A tile operand's kind, space or element is wrong."),
    "tile-scope": (TileContractError, "A tile operation stands where its threads are not active."),
    "tile-unsupported": (TileContractError, "The instruction has no tile form."),
    # launches
    "argument-count": (LaunchError, "A kernel is called with too many or too few arguments."),
    "argument-dtype": (LaunchError, "An argument's element type differs from the parameter's."),
    "argument-shape": (LaunchError, "An argument's shape or strides do not fit the parameter."),
    "argument-device": (LaunchError, "An argument lives where the kernel cannot reach it."),
    "argument-kind": (LaunchError, "An argument is not of the kind that the parameter takes."),
    "argument-read-only": (LaunchError, "A read-only array is given where the kernel writes."),
    "launch-shape": (LaunchError, "A grid, block or cluster is not one that can be launched."),
    "launch-memory": (LaunchError, "A launch would take more memory than its limit allows."),
    "gpu-fault": (LaunchError, "The GPU refuses a launch, or reports that a kernel failed."),
    "gpu-fork": (LaunchError, "The GPU is used in a process forked from one that uses it."),
    "host-assertion": (LaunchError, "An assertion in the host's part of a program does not hold."),
    "tensor-map-shape": (LaunchError, "A tensor map cannot be made of the values it is given."),
    "bad-option": (LaunchError, "An option of a call or of the command line is unknown or bad."),
    "name-taken": (LaunchError, "An import name cannot be substituted by this package."),
    # simulation
    "out-of-bounds": (MemoryFault, "An access leaves every allocation of its space."),
    "misaligned": (MemoryFault, "An access is not aligned as its size requires."),
    "read-only": (MemoryFault, "A kernel writes to an array that is read-only."),
    "deadlock": (DeadlockError, "No thread can run and nothing is in flight."),
    "step-limit": (StepLimit, "A kernel ran more steps than the launch allows."),
    "divergent-collective": (
        SimulationError,
        "A collective instruction is executed by lanes that are not together.",
    ),
    "mbarrier-protocol": (SimulationError, "An mbarrier is used against its protocol."),
    "barrier-protocol": (SimulationError, "A named barrier is used against its protocol."),
    "tensor-memory": (
        SimulationError,
        "Tensor Memory is allocated, freed or accessed against its rules.",
    ),
    "tensor-map": (SimulationError, "A tensor copy breaks a rule of its tensor map."),
    "trap": (SimulationError, "A kernel trapped, or an assertion in it failed."),
    "undefined-operation": (SimulationError, "An instruction's operands have no defined result."),
    # the checker
    "check": (CheckError, "The checker found a fault; `findings` says which, each by its kind."),
    # the project's own faults
    "compiler-bug": (CompilerBug, "Tilewright itself is at fault."),
}
