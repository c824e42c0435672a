"""`tilewright run --trace` and `tilewright view` of what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy as np
import tilewright
from tilewright import simt as T

fails = len(sys.argv) > 1

@T.function
def meet(A: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64))
    T.cuda.cta_sync()
    A[T.cuda.thread_idx("x")] = 1.0
    if fails:
        A[T.cuda.thread_idx("x") + 64] = 1.0

a = np.zeros(64, np.float32)
executable = tilewright.compile(meet, target="sm_80", check=True)
executable(a)
executable(a)
print(a.sum())
"""


def tilewright(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def names(folder: Path, kind: str) -> list[str]:
    events = json.loads((folder / "out.json").read_text())["traceEvents"]
    return [each["args"]["name"] for each in events if each["name"] == kind]


def test_every_launch_is_recorded_and_drawn(folder: Path) -> None:
    done = tilewright("run", "--trace", "out.json", "program.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "64.0\n"
    assert "`tilewright view out.json` draws it" in done.stderr
    assert names(folder, "process_name") == [
        "1: meet_kernel, CTA (0, 0, 0)",
        "2: meet_kernel, CTA (0, 0, 0)",
    ]
    assert set(names(folder, "thread_name")) == {"warp 0", "warp 1"}
    done = tilewright("view", "out.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "out.html is written" in done.stderr
    assert "A[T.cuda" not in (folder / "out.html").read_text()
    assert "T.cuda.cta_sync()" in (folder / "out.html").read_text()


def test_ctas_are_chosen(folder: Path) -> None:
    options = ("--trace", "out.json", "--trace-cta", "1,0,0", "--trace-cta", "0,0,0")
    done = tilewright("run", *options, "program.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [each[-9:] for each in names(folder, "process_name")] == ["(0, 0, 0)", "(1, 0, 0)"] * 2


def test_a_run_that_ends_by_a_fault_is_written_too(folder: Path) -> None:
    done = tilewright("run", "--trace", "out.json", "program.py", "fail", cwd=folder)
    assert done.returncode == 1 and "[out-of-bounds]" in done.stderr
    assert len(names(folder, "process_name")) == 1


def test_a_file_without_any_launch_says_so(folder: Path) -> None:
    (folder / "nothing.py").write_text("print('nothing')\n")
    done = tilewright("run", "--trace", "out.json", "nothing.py", cwd=folder)
    assert done.returncode == 0 and "the timeline is empty" in done.stderr
    assert tilewright("view", "out.json", "-o", "page.html", cwd=folder).returncode == 0
    assert (folder / "page.html").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--trace", "out.json", "--check"), "one at a time"),
        (("--trace", "out.json", "--backend", "gpu"), "leave --backend gpu away"),
        (("--trace-cta", "0,0,0"), "goes with --trace"),
        (("--trace", "out.json", "--trace-cta", "1,2"), "three numbers, such as 1,0,0"),
    ],
)
def test_options_that_do_not_go_together(folder: Path, options: tuple[str], told: str) -> None:
    done = tilewright("run", *options, "program.py", cwd=folder)
    assert done.returncode == 2 and told in done.stderr
    assert not (folder / "out.json").exists()


def test_a_timeline_that_cannot_be_written_is_refused_before_the_run(folder: Path) -> None:
    done = tilewright("run", "--trace", "no/out.json", "program.py", cwd=folder)
    assert done.returncode == 2 and "cannot be written [bad-option]" in done.stderr
    assert "is simulated for" not in done.stderr


def test_what_is_no_trace_is_an_error(folder: Path) -> None:
    (folder / "other.json").write_text("{}")
    for name, told in (("other.json", "is not a trace"), ("none.json", "cannot be read")):
        done = tilewright("view", name, cwd=folder)
        assert done.returncode == 2 and told in done.stderr
