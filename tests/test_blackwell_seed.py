"""The Blackwell product that others wrote runs as it stands, whenever asynchronous work lands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

NAME = "blackwell_matmul.py"
# Runs a program once per schedule, in one process; the program checks its own result.
RUNNER = """
import sys
from tilewright import compat, driver
from tilewright.compat.scripts import Script

compat.install(replace=True)
for schedule in sys.argv[2:]:
    with driver.session(driver.Defaults(schedule=schedule)):
        Script(sys.argv[1]).run()
    print(schedule)
"""


def tilewright(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("options", [(), ("--schedule", "eager"), ("--target", "sm_100a")])
def test_it_runs_from_the_command_line(seed: Path, options: tuple[str, ...]) -> None:
    done = tilewright("run", *options, seed / NAME)
    assert done.returncode == 0, done.stderr
    assert "simulated for sm_100a" in done.stderr


def test_it_is_right_under_late_eager_and_twenty_random_schedules(seed: Path) -> None:
    schedules = ["late", "eager", *(f"random:{number}" for number in range(20))]
    command = [sys.executable, "-c", RUNNER, str(seed / NAME), *schedules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == schedules


def test_its_cubin_is_built(seed: Path, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    output = tmp_path / "k.cubin"
    name = f"{seed / NAME}::blackwell_matmul"
    done = tilewright("build", name, "--target", "sm_100a", "-o", output)
    assert done.returncode == 0, done.stderr
    assert output.read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize("command", ["run", "build"])
def test_another_target_is_refused_at_the_programs_line(
    seed: Path, tmp_path: Path, command: str
) -> None:
    more = ("-o", tmp_path / "k.cubin") if command == "build" else ()
    done = tilewright(command, "--target", "sm_90a", *more, seed / NAME)
    assert done.returncode == 1
    lines = (seed / NAME).read_text().splitlines()
    first = next(n for n, line in enumerate(lines, 1) if "T.ptx.tcgen05.alloc" in line)
    assert "sm_90a does not have tcgen05.alloc" in done.stderr
    assert "[missing-instruction]" in done.stderr
    assert f"{seed / NAME}:{first}:" in done.stderr
    assert lines[first - 1] in done.stderr
