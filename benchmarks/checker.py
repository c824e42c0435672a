"""What the checker finds, what it says of correct kernels, and what it costs.

    python benchmarks/checker.py [--json out.json] [--docs] [--size 512] [--only table costs edit]

Every fault that `tests/faults` makes of every correct kernel is run under the checker: the table
has the found ones of all, by kind of mutation and generation; faults that are none are left out.
Beside them stands what compute-sanitizer finds of some of them, as `tools/sanitizer.py` has seen
on an H200 (`benchmarks/sanitizer.json`), and what is found here of the same; with `--docs` the
table is written to `docs/checker.md`. Costs are those of checked calls beside unchecked ones, in
the median. An edit is one line left out of a product of 256³; the time is that of `tilewright
check` in a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tilewright
from tilewright import driver

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "faults"))

from corpus import GENERATIONS, Entry, corpus, integers, read  # noqa: E402
from equivalent import reason_why  # noqa: E402
from mutations import Mutant  # noqa: E402
from running import SCHEDULES, checked, judged, mutants, sound  # noqa: E402

REPEATS = 7  # at least, and calls that are short for so many seconds
SECONDS = 1.0
# Products whose checked run is to take at most 1.5 times as long; all others, 4 times.
PRODUCTS = ("ampere_pipeline", "hopper_pipeline", "blackwell_pipeline")
TARGETS = dict(zip(PRODUCTS, GENERATIONS, strict=True))
WAIT = "T.ptx.tcgen05.wait__ld.sync.aligned()"
SANITIZER = ROOT / "benchmarks" / "sanitizer.json"
# Columns of the table beside the generations: of the mutants that a GPU has run, one of each group
# and kernel, how many compute-sanitizer finds, and how many of the same are found here.
OTHER, SAME = "compute-sanitizer", "the same here"
COLUMNS = (*GENERATIONS.values(), OTHER, SAME)
PAGE = ROOT / "docs" / "checker.md"
BEGIN, END = "<!-- written by benchmarks/checker.py --docs -->", "<!-- up to here -->"

# ---------------------------------------------------------------------------- what is found


def table(sanitized: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run every mutant; give a row for each kind of mutation."""
    results: list[tuple[Entry, Mutant, bool]] = []
    reports: list[int] = []
    equivalent = 0
    for entry in corpus().values():
        known = sound(entry)
        for mutant in mutants(entry):
            if reason_why(entry.name, mutant.name) is not None:
                equivalent += 1
                continue
            verdict = judged(entry, mutant, known)
            results.append((entry, mutant, verdict.detected))
            if verdict.findings:
                reports.append(len(verdict.findings))
    rows = counted(results, sanitized)
    missed = [f"{entry.name}: {mutant.name}" for entry, mutant, found in results if not found]
    rows[-1] |= {"equivalent": equivalent, "missed": missed, "findings": Counter(reports)}
    return rows


def counted(
    results: list[tuple[Entry, Mutant, bool]], sanitized: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Count which mutants are found, in a row for each kind of mutation and one for all."""
    found: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    seen = {(case["kernel"], case["mutant"]): bool(case["found_by"]) for case in sanitized}
    for entry, mutant, detected in results:
        here = {entry.generation: detected}
        if (entry.name, mutant.name) in seen:
            here |= {OTHER: seen[entry.name, mutant.name], SAME: detected}
        for column, result in here.items():
            for group in (mutant.group, "all"):
                total[group, column] += 1
                found[group, column] += result
    groups = sorted({group for group, _ in total} - {"all"})
    return [
        {
            "group": group,
            **{
                column: [found[group, column], total[group, column]]
                for column in COLUMNS
                if total[group, column]
            },
        }
        for group in (*groups, "all")
    ]


def alarms(sanitized: list[dict[str, Any]]) -> dict[str, Any]:
    """Run every correct kernel by every schedule; list the findings, and compute-sanitizer's."""
    errors: list[str] = []
    warnings: Counter[str] = Counter()
    runs = 0
    for entry in corpus().values():
        for schedule in SCHEDULES:
            case = entry.make()
            verdict = checked(entry, case, case.program, schedule)
            runs += 1
            for each in verdict.findings:
                if each.severity == "error":
                    errors.append(f"{entry.name}, {schedule}: {each.kind}")
                else:
                    warnings[each.kind] += 1
            if verdict.error is not None and not verdict.findings:
                errors.append(f"{entry.name}, {schedule}: {verdict.error.code}")
    others = [case for case in sanitized if not case["mutant"]]
    return {
        "kernels": len(corpus()),
        "runs": runs,
        "errors": errors,
        "warnings": dict(warnings),
        OTHER: [f"{case['kernel']}: {case['found_by'][0]}" for case in others if case["found_by"]],
        f"{OTHER} of": len(others),
    }


# ---------------------------------------------------------------------------- what it costs


def _cost(
    name: str, program: Any, target: str, fresh: Callable[[], tuple[Any, ...]]
) -> dict[str, Any]:
    """Time calls with the checker and without, in turns, each with arguments of its own.

    The quotient is the median of those of calls that follow one another: what else a machine does
    disturbs that least.
    """
    with driver.session(replace(driver.defaults(), on_findings=lambda findings: None)):
        made = [
            tilewright.compile(program, target=target, backend="sim", check=check)
            for check in (False, True)
        ]
        taken: list[list[float]] = [[], []]
        end = time.perf_counter() + SECONDS
        while len(taken[0]) <= REPEATS or time.perf_counter() < end:
            for ex, times in zip(made, taken, strict=True):
                arguments = fresh()
                start = time.perf_counter()
                ex(*arguments)
                times.append(time.perf_counter() - start)
    pairs = list(zip(*taken, strict=True))[1:]
    plain, watched = (median(times) for times in zip(*pairs, strict=True))
    quotient = median(after / before for before, after in pairs)
    return {"name": name, "seconds": plain, "checked": watched, "times": quotient}


def costs(size: int) -> list[dict[str, Any]]:
    """Time products of matrices of a size, and every kernel of the corpus as it is."""
    rows: list[dict[str, Any]] = []
    for name in PRODUCTS:
        kernel = read(f"examples/{name}.py")["pipelined_product"](size, size, size)
        a, b = (integers(size, size, kind=np.float16, most=4, seed=seed) for seed in (1, 2))
        given = (a, b, np.zeros((size, size), np.float32))
        row = _cost(f"{name} {size}", kernel.program, TARGETS[name], lambda given=given: given)
        rows.append(row)
    for entry in corpus().values():
        program = entry.make().program
        row = _cost(entry.name, program, entry.target, lambda each=entry: each.make().arguments)
        rows.append(row)
    return rows


def edit() -> dict[str, Any]:
    """Time `tilewright check` of the Blackwell product after a wait has been left out of it.

    Python has compiled its modules, as an installer does; of that the first turn takes care.
    """
    source = (ROOT / "examples" / "blackwell_pipeline.py").read_text()
    assert WAIT in source
    times: dict[str, list[float]] = {"first": [], "edited": []}
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(REPEATS + 1):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "product.py"
            environment = {**inherited, "TILEWRIGHT_CACHE": str(Path(folder) / "cache")}
            for what, text in (("first", source), ("edited", source.replace(WAIT, "pass"))):
                script.write_text(text)
                start = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, "-m", "tilewright", "check", str(script), "256"],
                    capture_output=True,
                    text=True,
                    env=environment,
                )
                times[what].append(time.perf_counter() - start)
                if (done.returncode != 0) != (what == "edited"):
                    print(done.stderr[-2000:], file=sys.stderr)
    return {what: median(taken[1:]) for what, taken in times.items()}


# ---------------------------------------------------------------------------- showing it


def _share(pair: list[int] | None) -> str:
    return "" if pair is None else f"{pair[0]} of {pair[1]}"


def show(report: dict[str, Any]) -> None:
    """Print what has been measured."""
    if rows := report.get("table"):
        present = [name for name in COLUMNS if any(row.get(name) for row in rows)]
        print(f"{'mutation':24}" + "".join(f"{name:>18}" for name in present))
        for row in rows:
            cells = "".join(f"{_share(row.get(name)):>18}" for name in present)
            print(f"{row['group']:24}{cells}")
        print(f"not counted, as they are equivalent: {rows[-1]['equivalent']}")
        counts = sorted(rows[-1]["findings"].items())
        print("findings of a fault: " + ", ".join(f"{n} ({times})" for n, times in counts))
        for name in rows[-1]["missed"]:
            print(f"  missed: {name}")
    if found := report.get("alarms"):
        print(f"{found['kernels']} correct kernels, {found['runs']} runs: ", end="")
        print(f"{len(found['errors'])} false alarms; warnings {found['warnings'] or 'none'}")
        for text in found["errors"]:
            print(f"  {text}")
        print(f"{OTHER}: {len(found[OTHER])} of {found[f'{OTHER} of']}: {', '.join(found[OTHER])}")
    for row in report.get("costs", ()):
        before, after = 1e3 * row["seconds"], 1e3 * row["checked"]
        print(f"{row['name']:36}{before:10.2f} ms{after:10.2f} ms{row['times']:7.2f} times")
    if times := report.get("edit"):
        print(f"from an edit to the verdict: {times['edited']:.2f} s", end="")
        print(f"; with nothing in the cache, the first verdict: {times['first']:.2f} s")


def paragraph(rows: list[dict[str, Any]], sanitized: list[dict[str, Any]]) -> str:
    """Lay the table out as the page about the checker has it, and count what else a GPU has shown.

    What is no fault of a mutant does not count as not found.
    """
    head = ("a fault made by a change of", *COLUMNS)
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        name = "**all**" if row["group"] == "all" else row["group"]
        cells = (name, *(_share(row.get(column)) for column in COLUMNS))
        lines.append(f"| {' | '.join(cells)} |")
    faults = [each for each in sanitized if each["mutant"]]
    faults = [each for each in faults if reason_why(each["kernel"], each["mutant"]) is None]
    silent = Counter(each["ends"] for each in faults if not each["found_by"])
    correct = [each for each in sanitized if not each["mutant"]]
    alarms = sum(bool(each["found_by"]) for each in correct)
    lines += [
        "",
        f"Of the {silent.total()} faults that {OTHER} says nothing about, {silent['hangs']} hang, "
        f"{silent['wrong']} give wrong numbers and {silent['']} give right ones, on that day. It "
        f"reports errors in {alarms} of {len(correct)} correct kernels.",
    ]
    return "\n".join(lines)


def with_table(page: str, rows: list[dict[str, Any]], sanitized: list[dict[str, Any]]) -> str:
    """Put the table into the page, where it is marked."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{paragraph(rows, sanitized)}\n\n{END}{after}"


def main() -> None:
    """Print the figures, and write them as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--size", type=int, default=512, help="of the products that are timed")
    parser.add_argument("--only", nargs="*", default=["table", "alarms", "costs", "edit"])
    parser.add_argument("--sanitizer", type=Path, default=SANITIZER, help="see tools/sanitizer.py")
    parser.add_argument("--docs", action="store_true", help="write the table to its page, too")
    given = parser.parse_args()
    sanitized = json.loads(given.sanitizer.read_text())
    measures: dict[str, Callable[[], Any]] = {
        "table": lambda: table(sanitized),
        "alarms": lambda: alarms(sanitized),
        "costs": lambda: costs(given.size),
        "edit": edit,
    }
    with tempfile.TemporaryDirectory() as cache, driver.session(driver.Defaults(cache=cache)):
        report = {name: measure() for name, measure in measures.items() if name in given.only}
    show(report)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1))
    if given.docs and "table" in report:
        PAGE.write_text(with_table(PAGE.read_text(), report["table"], sanitized))


if __name__ == "__main__":
    main()
