"""What compute-sanitizer finds of the faults that `tests/faults` makes, on a GPU of Hopper.

`pack` needs Tilewright and NVRTC; it writes cubins and inputs of mutants of the kernels for
Ampere and Hopper, and of those kernels themselves. `run` needs NumPy, `cuda.bindings`, a GPU and
compute-sanitizer; it runs each mutant under each tool, in a process of its own that is ended when
it hangs, and writes what `benchmarks/checker.py --sanitizer` reads.

    python tools/sanitizer.py pack build/faults [--each 2]
    python tools/sanitizer.py run build/faults --json sanitizer.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from device import MANIFEST, Device, Failure

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
TARGET = "sm_90a"
GENERATIONS = ("Ampere", "Hopper")
TIMEOUT = 20.0  # seconds until a process is said to hang
HANGS = "hangs"
_SAID = "said: "
_KEPT = ("kernel", "mutant", "group")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


# ---------------------------------------------------------------------------- run


def one(folder: Path, number: int) -> int:
    """Run a case, and say whether its arrays are as they must be."""
    case = json.loads((folder / MANIFEST).read_text())["cases"][number]
    try:
        wrong = Device().check(folder, case)
    except Failure as failure:
        wrong = str(failure)
    print(f"{_SAID}{json.dumps(wrong)}", flush=True)
    return 0


def _sanitized(sanitizer: str, folder: Path, number: int, tool: str) -> dict[str, Any]:
    """Run a case under a tool; give how many errors it reports, and what the kernel did."""
    script = [sys.executable, __file__, "one", str(folder), str(number)]
    process = subprocess.Popen(
        [sanitizer, "--tool", tool, *script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\n{_SAID}{json.dumps(HANGS)}\n"
    counts = [int(first or second) for first, second in _SUMMARY.findall(output)]
    said = re.findall(rf"^{_SAID}(.*)$", output, re.MULTILINE)
    return {
        "errors": sum(counts) if counts else None,
        "wrong": json.loads(said[-1]) if said else f"died: {output[-300:]}",
    }


def _brief(wrong: str) -> str:
    """Say how a run ended: "" is right, "wrong" are other values."""
    return "wrong" if wrong.startswith("array") else wrong


def _examined(sanitizer: str, folder: Path, number: int) -> dict[str, Any]:
    """Run a case under each tool, but one that hangs only once."""
    found_by: list[str] = []
    ends = ""
    for tool in TOOLS:
        result = _sanitized(sanitizer, folder, number, tool)
        ends = ends or _brief(result["wrong"])
        if result["errors"]:
            found_by.append(tool)
        if result["wrong"] == HANGS:
            break
    return {"found_by": found_by, "ends": ends}


def run(folder: Path, report: Path, workers: int) -> int:
    """Run every case under every tool, and write which of them had something to say.

    Cases that the report has already are not run again.
    """
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).exists():
        print("there is no compute-sanitizer here")
        return 1
    cases = json.loads((folder / MANIFEST).read_text())["cases"]
    done: list[dict[str, Any]] = json.loads(report.read_text()) if report.exists() else []
    rest = range(len(done), len(cases))
    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda number: _examined(sanitizer, folder, number), rest)
        for case, result in zip(cases[len(done) :], found, strict=True):
            done.append({**{key: case[key] for key in _KEPT}, **result})
            # Whoever ends this early has what there is so far.
            report.write_text("[" + ",\n ".join(map(json.dumps, done)) + "]\n")
    faults = [case for case in done if case["group"]]
    detected = sum(bool(case["found_by"]) for case in faults)
    alarms = [case["kernel"] for case in done if not case["group"] and case["found_by"]]
    print(f"{detected} of {len(faults)} mutants; {len(alarms)} alarms: {', '.join(alarms)}")
    return 0


# ---------------------------------------------------------------------------- pack


def _chosen(each: int) -> Iterator[tuple[Any, Any]]:
    """Yield the kernels, each followed by some mutants of every group, drawn by a seed."""
    from corpus import corpus
    from equivalent import reason_why
    from running import mutants

    for entry in corpus().values():
        if entry.generation not in GENERATIONS:
            continue
        yield entry, None
        groups: dict[str, list[Any]] = defaultdict(list)
        for mutant in mutants(entry):
            if reason_why(entry.name, mutant.name) is None:
                groups[mutant.group].append(mutant)
        draw = random.Random(entry.name)
        for group in groups.values():
            for mutant in draw.sample(group, min(each, len(group))):
                yield entry, mutant


def pack(folder: Path, each: int) -> int:
    """Write cubins and inputs, and what the sound kernels leave in the arrays."""
    root = Path(__file__).parent.parent
    sys.path[:0] = [str(root / "src"), str(root / "tests" / "faults")]
    import device_pack

    import tilewright

    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    sound: dict[str, Any] = {}
    for number, (kernel, mutant) in enumerate(_chosen(each)):
        case = kernel.make()
        program = case.program if mutant is None else mutant.change.program
        name = f"{number} {kernel.name}"
        packed = device_pack.Case(name, program, case.arguments)
        try:
            made = device_pack.entry(folder, TARGET, packed, simulated=mutant is None)
        except tilewright.TilewrightError:
            continue  # refused before anything runs
        made |= {"kernel": kernel.name, "mutant": "", "group": ""}
        if mutant is None:
            sound = made
        else:
            # Its inputs are the sound kernel's, and so is what it should leave.
            (folder / made["data"]).unlink()
            made |= {"mutant": mutant.name, "group": mutant.group, "data": sound["data"]}
        entries.append(made)
    (folder / MANIFEST).write_text(json.dumps({"target": TARGET, "cases": entries}) + "\n")
    print(f"{len(entries)} kernels and mutants for {TARGET} in {folder}")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="build mutants, on any machine")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--each", type=int, default=1, help="mutants of a group and a kernel")
    running = commands.add_parser("run", help="run them under the sanitizer's tools")
    running.add_argument("folder", type=Path)
    running.add_argument("--json", type=Path, default=Path("sanitizer.json"))
    running.add_argument("--workers", type=int, default=8)
    single = commands.add_parser("one")
    single.add_argument("folder", type=Path)
    single.add_argument("number", type=int)
    parsed = parser.parse_args()
    if parsed.command == "pack":
        return pack(parsed.folder, parsed.each)
    if parsed.command == "run":
        return run(parsed.folder, parsed.json, parsed.workers)
    return one(parsed.folder, parsed.number)


if __name__ == "__main__":
    sys.exit(main())
