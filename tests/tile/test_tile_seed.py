"""The Blackwell product of tiles that others wrote runs as it stands, at its full size."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

NAME = "tcgen05_gemm.py"
PASSED = "Kernel output matches PyTorch reference."
# Runs the program at sizes that are given, once per schedule; it checks its own result.
RUNNER = """
import sys
from tilewright import compat, driver
from tilewright.compat.scripts import Script

compat.install(replace=True)
main = Script(sys.argv[1]).names()["main"]
for schedule in sys.argv[2:]:
    with driver.session(driver.Defaults(schedule=schedule)):
        main(256, 128, 512)
    print("under", schedule)
"""


def tilewright(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_it_runs_from_the_command_line(seed: Path) -> None:
    done = tilewright("run", seed / NAME)
    assert done.returncode == 0, done.stderr
    assert PASSED in done.stdout
    assert "simulated for sm_100a" in done.stderr
    # `do_bench` says that what it gives is no time of a GPU.
    assert re.search(r"[\d.]+ ms is the time of one simulated call, not of a GPU", done.stderr)


def test_the_checker_finds_nothing(seed: Path) -> None:
    done = tilewright("run", "--check", seed / NAME)
    assert done.returncode == 0, done.stderr
    assert PASSED in done.stdout
    assert "the checker found nothing in 2 calls" in done.stderr


def test_it_is_right_under_late_eager_and_random_schedules(seed: Path) -> None:
    schedules = ["late", "eager", *(f"random:{number}" for number in range(8))]
    command = [sys.executable, "-c", RUNNER, str(seed / NAME), *schedules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert re.findall("under (.*)", done.stdout) == schedules


def test_its_cubin_is_built(seed: Path, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    output = tmp_path / "k.cubin"
    name = f"{seed / NAME}::matmul_tcgen05"
    done = tilewright("build", name, "--target", "sm_100a", "-o", output)
    assert done.returncode == 0, done.stderr
    assert output.read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_tensor_memory_is_refused_where_there_is_none(seed: Path, target: str) -> None:
    done = tilewright("run", "--target", target, seed / NAME)
    assert done.returncode == 1
    lines = (seed / NAME).read_text().splitlines()
    first = next(n for n, line in enumerate(lines, 1) if "T.alloc_tmem" in line)
    assert f"{target} has no Tensor Memory [missing-instruction]" in done.stderr
    assert f"{seed / NAME}:{first}:" in done.stderr
    assert "T.alloc_fragment" in done.stderr
