"""The benchmarks run as scripts, and what they say of other simulators is measured or quoted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
# A package of a peer's name, which multiplies by PyTorch.
STAND_IN = """
class MMA:
    def __init__(self, generation, form): pass
    def __call__(self, a, b, c): return a.float() @ b.float() + c{off}
TCGen05MMA = MMA
"""


def run(script: str, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a benchmark, which may import what lies at a path."""
    places = [str(each) for each in (path, os.environ.get("PYTHONPATH")) if each]
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=True,
    )


def stand_in(folder: Path, off: str = "") -> Path:
    """Write a package that stands in for mmasim."""
    package = folder / "mmasim"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nv_ptx.py").write_text(STAND_IN.format(off=off))
    return folder


def test_products_are_measured(tmp_path: Path) -> None:
    """A small product of one instruction is right, and not without its wait."""
    table = tmp_path / "table.json"
    options = ("--quick", "--size", "128", "--only", "mma.sync", "--numerics", "fast")
    run("simulator.py", *options, "--json", str(table))
    rows: list[dict[str, Any]] = json.loads(table.read_text())
    assert [row["name"] for row in rows] == ["mma.sync 128 fast"]
    assert rows[0]["result"] == "right" and rows[0]["of_numpy"] > 0
    assert rows[0]["without_wait_result"] != "right"
    assert rows[0]["peers"] == []  # their figures are for 1024


def test_compilation_of_tile_kernels_is_measured(tmp_path: Path) -> None:
    """Every stage takes time; the first text is what comes before the cubin."""
    pytest.importorskip("cuda.bindings.nvrtc")
    table = tmp_path / "table.json"
    done = run("tile_compile.py", "--repeats", "1", "--only", "product", "--json", str(table))
    rows = {row["compiler"]: row["seconds"] for row in json.loads(table.read_text())}
    assert set(rows["tilewright"]) == {"read", "lower", "text", "cubin", "first"}
    assert min(rows["tilewright"].values()) > 0
    assert re.search(r"^product \(sm_100a\) tilewright( +\d+\.\d){5}$", done.stdout, re.MULTILINE)


def test_a_peer_that_is_installed_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run("peers.py", "--only", "mma.sync exact", path=stand_in(tmp_path))
    assert re.fullmatch(r"mma\.sync exact  mmasim \S+ % \(measured at 128\)\n", done.stdout)


def test_a_peer_that_is_wrong_is_quoted(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run("peers.py", "--only", "mma.sync exact", path=stand_in(tmp_path, off=" + 1"))
    assert "mmasim 0.03 % (quoted)" in done.stdout
    assert "mmasim: ValueError: the product is wrong" in done.stderr


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("simulator.py", ("--only", "nothing")),
        ("simulator.py", ("--quick", "--cpu", "nosuch")),
        ("peers.py", ("--only", "nothing")),
        ("tile_compile.py", ("--only", "nothing")),
    ],
)
def test_an_option_that_names_nothing_is_refused(script: str, options: tuple[str, ...]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run(script, *options)
    assert refused.value.returncode == 2 and not refused.value.stdout
    assert refused.value.stderr.splitlines()[-1].startswith(f"{script}: error: {options[-2]}")
