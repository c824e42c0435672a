"""How fast the simulator is: products of matrices beside NumPy's, and the times until a result.

    python benchmarks/simulator.py [--json out.json] [--size 1024] [--cpu x86-64-v3] [--quick]

A product is a kernel of `examples/`, compiled and launched as any other, under the schedule `late`;
without one of its waits the same kernel is as fast, and wrong or reported.
NumPy's float32 product of the same size runs in the same process on all cores. Figures are medians.
Other simulators (`peers.py`) run where they are installed, and are quoted elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import long_product
import numpy as np
import peers

import tilewright
from tilewright import driver

EXAMPLES = Path(__file__).parent.parent / "examples"
# Instruction: the example whose kernel issues it, its target, and a wait of it.
PRODUCTS = {
    "tcgen05": ("blackwell_pipeline", "sm_100a", "T.ptx.tcgen05.wait__ld.sync.aligned()"),
    "mma.sync": ("ampere_pipeline", "sm_80", 'T.ptx["cp.async.wait_group"](STAGES - 2)'),
}
STARTS = ("warp_product", "blackwell_product")
REPEATS = 7
# Levels of x86-64 that are measured too, and a feature that tells whether this CPU runs their code.
LEVELS = {"x86-64-v3": "avx2", "x86-64-v2": "sse4.2"}


def median_seconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Time a call, after one that is not counted."""
    call()
    taken: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def product_kernel(source: Path, size: int) -> Any:
    """Read a kernel for square matrices out of an example."""
    return runpy.run_path(str(source))["pipelined_product"](size, size, size)


def without(wait: str, source: Path, folder: Path) -> Path:
    """Write an example anew with one of its waits left out."""
    text = source.read_text()
    assert wait in text, f"{source} waits differently"
    changed = folder / source.name
    changed.write_text(text.replace(wait, "pass"))
    return changed


def products(size: int, numerics: str, only: str, level: str = "") -> list[dict[str, Any]]:
    """Measure each product beside NumPy's, and peers at their size where code is for this CPU.

    `level` is the name of the CPU that the session makes code for, if that is to stand in the rows.
    """
    random = np.random.default_rng(0)
    a, b = (random.integers(-8, 9, (size, size)).astype(np.float16) for _ in "ab")
    wide, other = a.astype(np.float32), b.astype(np.float32).T.copy()
    expected = wide @ other
    reference = median_seconds(lambda: wide @ other)
    operations = 2 * size**3 / 1e9
    rows: list[dict[str, Any]] = []
    for name, (example, target, wait) in PRODUCTS.items():
        if only not in name:
            continue
        d = np.zeros((size, size), np.float32)

        def run(source: Path, d: Any = d, target: str = target) -> tuple[float, str]:
            kernel = product_kernel(source, size)
            ex = tilewright.compile(kernel, target=target, backend="sim", numerics=numerics)
            try:
                seconds = median_seconds(lambda: ex(a, b, d))
            except tilewright.SimulationError as report:
                return float("nan"), report.code
            return seconds, "right" if np.array_equal(d, expected) else "wrong"

        source = EXAMPLES / f"{example}.py"
        seconds, result = run(source)
        with tempfile.TemporaryDirectory() as folder:
            hurried, hurried_result = run(without(wait, source, Path(folder)))
        rows.append(
            {
                "name": f"{name} {size} {numerics} {level}".rstrip(),
                "gflops": operations / seconds,
                "numpy_gflops": operations / reference,
                "of_numpy": reference / seconds,
                "result": result,
                "without_wait_gflops": operations / hurried,
                "without_wait_result": hurried_result,
                "peers": (
                    peers.beside(name, numerics, operations / reference)
                    if size == peers.QUOTED_SIZE and not level
                    else []
                ),
            }
        )
    return rows


_COLD = """
import time; start = time.perf_counter()
import tilewright; imported = time.perf_counter()
import runpy
from tilewright.runtime.cache import Cache

find = Cache.get
def without_kernels(cache, kind, recipe):
    own = kind == "kernel" or "define i32 @kernel(" in recipe
    return None if own else find(cache, kind, recipe)

Cache.get = without_kernels
main = runpy.run_path({path!r})["main"]
main(); first = time.perf_counter()
Cache.get = find
main(); print()
print(imported - start, first - start, time.perf_counter() - first)
"""


def starts() -> list[dict[str, Any]]:
    """Measure, in new processes, the time to import and to the first result of an example.

    Python has compiled its modules, as an installer does. The code of instructions may be in the
    cache, that of the kernel is not. A second result begins from the kernel's source as well.
    """
    rows: list[dict[str, Any]] = []
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for example in STARTS:
        script = _COLD.format(path=str(EXAMPLES / f"{example}.py"))
        taken: list[list[float]] = []
        for _ in range(REPEATS + 1):
            done = subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                text=True,
                check=True,
                env=environment,
            )
            taken.append([float(each) for each in done.stdout.splitlines()[-1].split()])
        imports, firsts, seconds = zip(*taken[1:], strict=True)
        rows.append(
            {
                "name": f"first result of {example}",
                "import_seconds": statistics.median(imports),
                "seconds": statistics.median(firsts),
                "again_seconds": statistics.median(seconds),
            }
        )
    return rows


def stages(size: int) -> list[dict[str, Any]]:
    """Measure the stages of compilation of the Blackwell pipeline, each on a new executable.

    A kernel that is longer when it is lowered is lowered too.
    """
    example, target, _ = PRODUCTS["tcgen05"]
    kernel = product_kernel(EXAMPLES / f"{example}.py", size)

    def executable(kernel: Any = kernel) -> tilewright.Executable:
        return tilewright.compile(kernel, target=target, backend="sim", cache="off")

    def after(prepare: Callable[[tilewright.Executable], object], stage: Callable[..., object]):
        taken: list[float] = []
        for _ in range(REPEATS):
            ex = executable()
            prepare(ex)
            start = time.perf_counter()
            stage(ex)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    rows = [
        {
            "name": "read the kernel",
            "seconds": median_seconds(lambda: product_kernel(EXAMPLES / f"{example}.py", size)),
        },
        {"name": "lower", "seconds": median_seconds(lambda: executable().ir)},
        {
            "name": f"lower, {long_product.NAME}",
            "seconds": median_seconds(lambda: executable(long_product.product).ir),
        },
        {"name": "CUDA text", "seconds": after(lambda ex: ex.ir, lambda ex: ex.source)},
    ]
    try:
        rows.append(
            {"name": "cubin", "seconds": after(lambda ex: ex.source, lambda ex: ex.cubin())}
        )
    except tilewright.TilewrightError as error:
        print(f"cubin: {error}", file=sys.stderr)
    return rows


def levels() -> list[str]:
    """Give the levels of x86-64 whose code this CPU runs."""
    features = llvmlite.binding.get_host_cpu_features()
    return [level for level, feature in LEVELS.items() if features.get(feature)]


def has_code_for(cpu: str) -> bool:
    """Tell whether LLVM makes code for a CPU; it ends the process where it does not."""
    text = (
        "import sys, llvmlite.binding as llvm\n"
        "llvm.initialize_native_target(); llvm.initialize_native_asmprinter()\n"
        "machine = llvm.Target.from_default_triple().create_target_machine(cpu=sys.argv[1])\n"
        "machine.emit_object(llvm.parse_assembly('define void @f() { ret void }'))\n"
    )
    done = subprocess.run([sys.executable, "-c", text, cpu], capture_output=True)
    return done.returncode == 0


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table."""
    for row in rows:
        cells = [f"{row['name']:38}"]
        if "gflops" in row:
            cells.append(f"{row['gflops']:7.1f} GFLOP/s  {100 * row['of_numpy']:5.1f} % of NumPy")
            cells.append(f"({row['numpy_gflops']:.0f}), {row['result']}; without a wait")
            cells.append(f"{row['without_wait_gflops']:.1f}, {row['without_wait_result']}")
            cells.append(peers.cell(row["peers"]))
        else:
            cells.append(f"{1e3 * row['seconds']:8.1f} ms")
            if "import_seconds" in row:
                cells.append(f"import {1e3 * row['import_seconds']:.0f} ms")
                cells.append(f"again {1e3 * row['again_seconds']:.0f} ms")
        print("  ".join(cells).rstrip())


def main() -> None:
    """Print the table, and write it as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--cpu", help="LLVM's name of the CPU to make code for")
    parser.add_argument("--only", default="", help="instructions whose name has this text")
    parser.add_argument("--numerics", nargs="*", default=["fast", "exact"])
    parser.add_argument("--quick", action="store_true", help="products only")
    given = parser.parse_args()
    if not any(given.only in name for name in PRODUCTS):
        parser.error(f"--only {given.only}: the instructions are {', '.join(PRODUCTS)}")
    if given.cpu and not has_code_for(given.cpu):
        parser.error(f"--cpu {given.cpu}: LLVM knows no such x86-64 processor")
    rows: list[dict[str, Any]] = []
    for level in ("", *([] if given.quick or given.cpu else levels())):
        with driver.session(driver.Defaults(cpu=level or given.cpu)):
            for numerics in given.numerics:
                rows += products(given.size, numerics, given.only, level)
    if not given.quick:
        rows += starts() + stages(given.size)
    show(rows)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
