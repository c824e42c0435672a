"""How long kernels of the tile dialect take to compile, stage by stage; beside TileLang.

    python benchmarks/tile_compile.py [--json out.json] [--repeats 7] [--only attention]

Figures are CPU milliseconds of the process, all threads together: of reading the function, lowering
it for its target, writing the CUDA text and compiling that to a cubin by NVRTC, each as the median
of repetitions, and of the way to the text the first time in a process. No GPU is needed, nor is
anything taken from a cache. TileLang lowers the same functions where it is installed; what it does
between reading and the text is one figure.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tile_kernels

import tilewright
from tilewright import tile

# The functions of `tile_kernels`, and their targets.
KERNELS = {"product": "sm_100a", "attention": "sm_90a"}
STAGES = ("read", "lower", "text", "cubin")
REPEATS = 7
PEER = "tilelang"
_IN_A_PROCESS = "import json, tile_compile; print(json.dumps(tile_compile.{name}({arguments})))"


class Clock:
    """Measures what happens from one stage to the next, in CPU seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.process_time()

    def stop(self, stage: str) -> None:
        """End a stage; the next one begins."""
        now = time.process_time()
        self.seconds[stage] = now - self._last
        self._last = now


def tilewright_stages(kernel: str) -> dict[str, float]:
    """Compile a kernel anew, and give the seconds of each stage; without NVRTC there is no cubin.

    What is read is used up: a function keeps its program, and an executable its text.
    """
    clock = Clock()
    function = getattr(tile_kernels, kernel)(tile)
    _ = function.program
    clock.stop("read")
    executable = tilewright.compile(function, KERNELS[kernel], backend="sim", cache="off")
    clock.stop("lower")
    _ = executable.source
    clock.stop("text")
    try:
        executable.cubin()
    except tilewright.TargetError as error:
        print(f"cubin: {error}", file=sys.stderr)
        return clock.seconds
    clock.stop("cubin")
    return clock.seconds


def tilelang_stages(kernel: str) -> dict[str, float]:
    """Lower a kernel by TileLang, and give the seconds of reading and of all up to the text."""
    language = importlib.import_module("tilelang.language")
    lower = importlib.import_module("tilelang").lower
    target = importlib.import_module("tvm").target.Target  # TileLang's own
    clock = Clock()
    function = getattr(tile_kernels, kernel)(language)
    clock.stop("read")
    with target({"kind": "cuda", "arch": KERNELS[kernel]}):
        lower(function)
    clock.stop("text")
    return clock.seconds


def repeated(name: str, kernel: str, repeats: int) -> dict[str, float]:
    """Give medians over repetitions; `first` is what the first took up to the text."""
    stages: Callable[[str], dict[str, float]] = globals()[name]
    first, *others = (stages(kernel) for _ in range(repeats + 1))
    found = {each: statistics.median(one[each] for one in others) for each in first}
    return {**found, "first": sum(took for each, took in first.items() if each != "cubin")}


def measured(name: str, kernel: str, repeats: int) -> dict[str, float]:
    """Measure in a new process; its last line says what failed, as `RuntimeError`."""
    arguments = f"{name!r}, {kernel!r}, {repeats}"
    script = _IN_A_PROCESS.format(name="repeated", arguments=arguments)
    folder = Path(__file__).parent
    places = [str(folder), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    print(done.stderr, end="", file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def rows(only: str, repeats: int) -> list[dict[str, Any]]:
    """Measure the kernels whose names have `only` in them, by this compiler and by its peer."""
    found: list[dict[str, Any]] = []
    compilers = ["tilewright"]
    if importlib.util.find_spec(PEER) is not None:
        compilers.append(PEER)
    for kernel in (each for each in KERNELS if only in each):
        for compiler in compilers:
            try:
                seconds = measured(f"{compiler}_stages", kernel, repeats)
            except RuntimeError as error:
                print(f"{kernel}, {compiler}: {error}", file=sys.stderr)
                continue
            found.append({"kernel": kernel, "compiler": compiler, "seconds": seconds})
    return found


def show(table: list[dict[str, Any]]) -> None:
    """Print rows as a table."""
    heads = (*STAGES, "first text")
    print(f"{'CPU ms':32}" + "".join(f"{each:>12}" for each in heads))
    for row in table:
        seconds = [row["seconds"].get(each) for each in (*STAGES, "first")]
        cells = [f"{'' if each is None else f'{1e3 * each:.1f}':>12}" for each in seconds]
        name = f"{row['kernel']} ({KERNELS[row['kernel']]}) {row['compiler']}"
        print(f"{name:32}" + "".join(cells).rstrip())


def main() -> None:
    """Print the table, and write it as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--only", default="", metavar="NAME", help="part of a kernel's name")
    parsed = parser.parse_args()
    if not any(parsed.only in each for each in KERNELS):
        parser.error(f"--only {parsed.only}: the kernels are {', '.join(KERNELS)}")
    if parsed.repeats < 1:
        parser.error(f"--repeats {parsed.repeats}: at least one is needed")
    table = rows(parsed.only, parsed.repeats)
    show(table)
    if parsed.json is not None:
        parsed.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
