"""Running kernels and their mutants, and saying what became of them.

python tests/faults/running.py [-k hopper] [--values] [--missed] [--texts]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import mutate_objects as _objects
import mutate_order as _order
import mutate_tiles as _tiles
import mutate_values as _values
from corpus import Case, Entry, corpus
from equivalent import reason_why
from mutations import Mutant, mutants_of

import tilewright
from tilewright import driver
from tilewright.base.findings import Finding
from tilewright.base.targets import target
from tilewright.ir.statements import Program
from tilewright.passes.check_target import has_instructions

MUTATORS = (_objects, _order, _tiles, _values)  # registered as they are imported
SCHEDULES = ("late", "eager", "random:1", "random:2")
# A mutant that spins for ever is stopped; no correct kernel of the corpus takes as many turns.
STEPS = 200_000
# The project's own faults are no detection.
BUGS = ("compiler-bug", "invalid-program")


@dataclass(frozen=True)
class Verdict:
    """What a checked run has shown: findings, and the error that ended it, if one did."""

    findings: tuple[Finding, ...] = ()
    error: tilewright.TilewrightError | None = None

    def beyond(self, other: Verdict) -> Verdict:
        """Leave out what another run has shown too, such as a warning of the correct kernel."""
        known = {each.fault for each in other.findings}
        new = tuple(each for each in self.findings if each.fault not in known)
        return replace(self, findings=new)

    @property
    def kind(self) -> str:
        """Name the first finding's kind, or the code of an error; empty if there is neither."""
        if self.findings:
            return self.findings[0].kind
        return "" if self.error is None else self.error.code

    @property
    def detected(self) -> bool:
        """Tell whether a fault of the program has been reported."""
        return bool(self.kind) and self.kind not in BUGS

    @property
    def text(self) -> str:
        """Give the reports as a user sees them."""
        shown = [str(each) for each in self.findings] or [str(self.error or "")]
        return "\n".join(shown)


def checked(entry: Entry, case: Case, program: Program, schedule: str = "late") -> Verdict:
    """Run a program under the checker, on the arguments of a case."""
    found: list[Finding] = []
    watched = replace(driver.defaults(), on_findings=found.extend)
    try:
        with driver.session(watched):
            tilewright.compile(
                program,
                target=entry.target,
                backend="sim",
                schedule=schedule,
                step_limit=STEPS,
                check=True,
            )(*case.arguments)
    except tilewright.CheckError as error:
        return Verdict(error.findings, error)
    except tilewright.TilewrightError as error:
        return Verdict((), error)
    return Verdict(tuple(found))


def effect(entry: Entry, program: Program, schedule: str) -> str:
    """Say what a program does without the checker: "right", "wrong", or the code of an error."""
    case = entry.make()
    options: Any = {"schedule": schedule, "step_limit": STEPS, "backend": "sim"}
    try:
        tilewright.compile(program, target=entry.target, **options)(*case.arguments)
    except tilewright.TilewrightError as error:
        return error.code
    return "wrong" if case.wrong() else "right"


def mutants(entry: Entry) -> Iterator[Mutant]:
    """Make every mutant of an entry that its target has the instructions for."""
    for mutant in mutants_of(entry.make().program):
        if has_instructions(mutant.change.program, target(entry.target)):
            yield mutant


def sound(entry: Entry) -> Verdict:
    """Run the correct kernel: what it shows is no fault of a mutant."""
    case = entry.make()
    return checked(entry, case, case.program)


def judged(entry: Entry, mutant: Mutant, known: Verdict) -> Verdict:
    """Run a mutant by the schedules, one after another until one shows its fault.

    What the correct kernel shows too does not count.
    """
    verdict = Verdict()
    for schedule in SCHEDULES:
        verdict = checked(entry, entry.make(), mutant.change.program, schedule).beyond(known)
        if verdict.kind:
            break
    return verdict


# ---------------------------------------------------------------------------- the table


def _line(entry: Entry, mutant: Mutant, verdict: Verdict, values: list[str]) -> str:
    listed = "equivalent" * (reason_why(entry.name, mutant.name) is not None)
    outcome = verdict.kind or listed or "MISSED"
    if verdict.detected and listed:
        outcome += f" (listed as {listed})"
    elif verdict.detected and verdict.kind not in mutant.change.kinds:
        outcome += " (another kind)"
    cells = [entry.name, mutant.name, mutant.group, outcome, " ".join(values)]
    return " | ".join(cell for cell in cells if cell)


def main() -> None:
    """Print a line for each mutant that is asked for, and how many are found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-k", default="", help="text of kernel, site, mutation or group")
    parser.add_argument("--values", action="store_true", help="also run without the checker")
    parser.add_argument("--missed", action="store_true", help="only what is not found")
    parser.add_argument("--texts", action="store_true", help="show the reports")
    given = parser.parse_args()
    found = equivalent = total = 0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache, driver.session(driver.Defaults(cache=cache)):
        for entry in corpus().values():
            chosen = [
                mutant
                for mutant in mutants(entry)
                if given.k in f"{entry.name} | {mutant.name} | {mutant.group}"
            ]
            if not chosen:
                continue
            known = sound(entry)
            if known.findings or known.error:
                print(f"{entry.name} | correct | {known.kind}")
            for mutant in chosen:
                verdict = judged(entry, mutant, known)
                total += 1
                found += verdict.detected
                equivalent += reason_why(entry.name, mutant.name) is not None
                if given.missed and verdict.detected:
                    continue
                program = mutant.change.program
                values = [effect(entry, program, each) for each in SCHEDULES * given.values]
                print(_line(entry, mutant, verdict, values), flush=True)
                if given.texts and verdict.kind:
                    print("    " + verdict.text.replace("\n", "\n    "))
    taken = time.perf_counter() - start
    print(f"{found} of {total} found, {equivalent} are equivalent; {taken:.1f} s")


if __name__ == "__main__":
    main()
