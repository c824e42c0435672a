"""What the checker finds, what it says of correct kernels, and what it costs.

    python benchmarks/checker.py [--json out.json] [--size 512] [--only table costs edit]

Every fault that `tests/faults` makes of every correct kernel is run under the checker: the table
has the found ones of all, by kind of mutation and generation; faults that are none are left out.
Where `--sanitizer` names what `tools/sanitizer.py` wrote on a GPU, the table has a column of
compute-sanitizer's. Costs are medians of checked calls beside unchecked ones. An edit is one line
left out of a product of 256³; the time is that of `tilewright check` in a new process.
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

from corpus import GENERATIONS, corpus, integers, read  # noqa: E402
from equivalent import reason_why  # noqa: E402
from running import SCHEDULES, checked, judged, mutants, sound  # noqa: E402

REPEATS = 5
# Products whose checked run is to take at most 1.5 times as long; all others, 4 times.
PRODUCTS = ("ampere_pipeline", "hopper_pipeline", "blackwell_pipeline")
TARGETS = dict(zip(PRODUCTS, GENERATIONS, strict=True))
WAIT = "T.ptx.tcgen05.wait__ld.sync.aligned()"
# Where a sanitizer has looked: on generations that its machine runs.
Sanitized = dict[str, dict[str, list[int]]]

# ---------------------------------------------------------------------------- what is found


def table(sanitized: Sanitized | None) -> list[dict[str, Any]]:
    """Run every mutant; give a row for each kind of mutation."""
    found: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    missed: list[str] = []
    equivalent = 0
    for entry in corpus().values():
        known = sound(entry)
        for mutant in mutants(entry):
            if reason_why(entry.name, mutant.name) is not None:
                equivalent += 1
                continue
            where = mutant.group, entry.generation
            detected = judged(entry, mutant, known).detected
            total[where] += 1
            found[where] += detected
            if not detected:
                missed.append(f"{entry.name}: {mutant.name}")
    rows: list[dict[str, Any]] = []
    for group in sorted({group for group, _ in total}):
        row: dict[str, Any] = {"group": group}
        for generation in GENERATIONS.values():
            if total[group, generation]:
                row[generation] = [found[group, generation], total[group, generation]]
        if sanitized is not None:
            row["compute-sanitizer"] = sanitized.get(group)
        rows.append(row)
    every = {
        generation: [
            sum(found[group, generation] for group, each in total if each == generation),
            sum(total[group, generation] for group, each in total if each == generation),
        ]
        for generation in GENERATIONS.values()
    }
    rows.append({"group": "all", **every, "equivalent": equivalent, "missed": missed})
    return rows


def alarms() -> dict[str, Any]:
    """Run every correct kernel by every schedule; list the findings."""
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
    return {"kernels": len(corpus()), "runs": runs, "errors": errors, "warnings": dict(warnings)}


# ---------------------------------------------------------------------------- what it costs


def _seconds(call: Callable[[], object]) -> float:
    call()
    taken: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return median(taken)


def _cost(name: str, program: Any, target: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Time a kernel with the checker and without, by the same arguments."""
    taken: list[float] = []
    with driver.session(replace(driver.defaults(), on_findings=lambda findings: None)):
        for check in (False, True):
            ex = tilewright.compile(program, target=target, backend="sim", check=check)
            taken.append(_seconds(lambda ex=ex: ex(*arguments)))
    plain, watched = taken
    return {"name": name, "seconds": plain, "checked": watched, "times": watched / plain}


def costs(size: int) -> list[dict[str, Any]]:
    """Time products of matrices of a size, and every kernel of the corpus as it is."""
    rows: list[dict[str, Any]] = []
    for name in PRODUCTS:
        kernel = read(f"examples/{name}.py")["pipelined_product"](size, size, size)
        a, b = (integers(size, size, kind=np.float16, most=4, seed=seed) for seed in (1, 2))
        d = np.zeros((size, size), np.float32)
        rows.append(_cost(f"{name} {size}", kernel.program, TARGETS[name], (a, b, d)))
    for entry in corpus().values():
        case = entry.make()
        rows.append(_cost(entry.name, case.program, entry.target, case.arguments))
    return rows


def edit() -> dict[str, Any]:
    """Time `tilewright check` of the Blackwell product after a wait has been left out of it."""
    source = (ROOT / "examples" / "blackwell_pipeline.py").read_text()
    assert WAIT in source
    times: dict[str, list[float]] = {"first": [], "edited": []}
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "product.py"
            environment = {**os.environ, "TILEWRIGHT_CACHE": str(Path(folder) / "cache")}
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
    return {what: median(taken) for what, taken in times.items()}


# ---------------------------------------------------------------------------- showing it


def _share(pair: list[int] | None) -> str:
    return "" if pair is None else f"{pair[0]} of {pair[1]}"


def show(report: dict[str, Any]) -> None:
    """Print what has been measured."""
    columns = [*GENERATIONS.values(), "compute-sanitizer"]
    if rows := report.get("table"):
        present = [name for name in columns if any(row.get(name) for row in rows)]
        print(f"{'mutation':24}" + "".join(f"{name:>18}" for name in present))
        for row in rows:
            cells = "".join(f"{_share(row.get(name)):>18}" for name in present)
            print(f"{row['group']:24}{cells}")
        print(f"not counted, as they are equivalent: {rows[-1]['equivalent']}")
        for name in rows[-1]["missed"]:
            print(f"  missed: {name}")
    if found := report.get("alarms"):
        print(f"{found['kernels']} correct kernels, {found['runs']} runs: ", end="")
        print(f"{len(found['errors'])} false alarms; warnings {found['warnings'] or 'none'}")
        for text in found["errors"]:
            print(f"  {text}")
    for row in report.get("costs", ()):
        before, after = 1e3 * row["seconds"], 1e3 * row["checked"]
        print(f"{row['name']:36}{before:10.2f} ms{after:10.2f} ms{row['times']:7.2f} times")
    if times := report.get("edit"):
        print(f"from an edit to the verdict: {times['edited']:.2f} s", end="")
        print(f"; with nothing in the cache, the first verdict: {times['first']:.2f} s")


def main() -> None:
    """Print the figures, and write them as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--size", type=int, default=512, help="of the products that are timed")
    parser.add_argument("--only", nargs="*", default=["table", "alarms", "costs", "edit"])
    parser.add_argument("--sanitizer", type=Path, help="what tools/sanitizer.py wrote")
    given = parser.parse_args()
    sanitized = json.loads(given.sanitizer.read_text())["groups"] if given.sanitizer else None
    measures: dict[str, Callable[[], Any]] = {
        "table": lambda: table(sanitized),
        "alarms": alarms,
        "costs": lambda: costs(given.size),
        "edit": edit,
    }
    with tempfile.TemporaryDirectory() as cache, driver.session(driver.Defaults(cache=cache)):
        report = {name: measure() for name, measure in measures.items() if name in given.only}
    show(report)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
