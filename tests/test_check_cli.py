"""`tilewright check`, `run --check` and the fixture of pytest, as a user meets them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAD = """\
import sys
import numpy as np
import tilewright
from tilewright import simt as T

@T.function
def turned(A: T.Tensor((64,), "float32"), Out: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    tile = T.alloc_shared((64,), "float32", layout="default")
    tile[i] = A[i]
    Out[i] = tile[63 - i]

@T.function
def orderly(A: T.Tensor((64,), "float32"), Out: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    tile = T.alloc_shared((64,), "float32", layout="default")
    tile[i] = A[i]
    T.cuda.cta_sync()
    Out[i] = tile[63 - i]

@T.function
def outside(A: T.Tensor((64,), "float32"), Out: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    Out[i + 8] = A[i]

a, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)

def run(kernel):
    tilewright.compile(kernel, target="sm_90a")(a, out)

"""


def command(
    *arguments: str | Path, cwd: Path | None = None, module: str = "tilewright"
) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, timeout=120)


def program(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(HEAD + text)
    return path


# ---------------------------------------------------------------------------- exit codes


def test_a_program_without_faults_succeeds(tmp_path: Path) -> None:
    done = command("check", program(tmp_path, "run(orderly); print(out[0])"))
    assert done.returncode == 0 and done.stdout == "63.0\n"
    assert done.stderr.endswith("tilewright: the checker found nothing in 1 call\n")


def test_the_program_goes_on_after_findings_and_they_are_told_once(tmp_path: Path) -> None:
    path = program(tmp_path, "run(turned); run(orderly); run(turned)\nprint(len(set(out)))")
    done = command("check", path)
    assert done.returncode == 1
    assert int(done.stdout) > 1, "the outputs are as computed"
    assert done.stderr.count("[race]") == 1 and "Traceback" not in done.stderr
    line = HEAD.splitlines().index("    Out[i] = tile[63 - i]") + 1
    assert f"{path}:{line}:" in done.stderr and "in 2 launches" in done.stderr
    assert done.stderr.endswith("tilewright: the checker found 1 error in 3 calls\n")


def test_run_checks_when_it_is_told_to(tmp_path: Path) -> None:
    path = program(tmp_path, "run(turned)")
    assert command("run", path).returncode == 0
    assert command("run", "--check", path).returncode == 1


def test_a_fault_ends_the_program_where_it_is_launched(tmp_path: Path) -> None:
    path = program(tmp_path, "run(turned)\nrun(outside)\nprint('never')")
    done = command("check", path)
    assert done.returncode == 1 and done.stdout == ""
    assert "[race]" in done.stderr and done.stderr.count("[out-of-bounds]") == 1
    assert re.search(rf"the program ends at {path}:\d+:\d+, by a fault", done.stderr)
    assert "Traceback" not in done.stderr


def test_a_program_may_catch_a_fault(tmp_path: Path) -> None:
    text = "try: run(outside)\nexcept tilewright.CheckError as e: print(e.kind)"
    done = command("check", program(tmp_path, text))
    assert done.returncode == 1 and done.stdout == "out-of-bounds\n"
    assert done.stderr.count("[out-of-bounds]") == 1


@pytest.mark.parametrize(("stop", "code"), [("sys.exit()", 1), ("sys.exit(7)", 7), ("1 / 0", 1)])
def test_findings_are_told_however_the_program_ends(tmp_path: Path, stop: str, code: int) -> None:
    done = command("check", program(tmp_path, f"run(turned); {stop}"))
    assert done.returncode == code and "[race]" in done.stderr


def test_kinds_may_be_allowed(tmp_path: Path) -> None:
    path = program(tmp_path, "run(turned)")
    assert command("check", "--allow", "race", path).returncode == 0
    assert command("check", "--allow", "deadlock", "--allow", "race", path).returncode == 0
    assert command("check", "--allow", "deadlock", path).returncode == 1


WARNING = """
from tilewright.base.findings import Finding
from tilewright.runtime.simulator import Simulator
finding = Finding("missing-proxy-fence-war", "warning", "a hazard", actor="warp 0")
Simulator.launch = lambda *arguments: (finding,)
run(orderly)
"""


def test_warnings_fail_only_if_strict(tmp_path: Path) -> None:
    path = program(tmp_path, WARNING)
    done = command("check", path)
    assert done.returncode == 0 and "warning: a hazard [missing-proxy-fence-war]" in done.stderr
    assert command("check", "--strict", path).returncode == 1
    assert command("run", "--check", "--strict", path).returncode == 1
    allowed = command("check", "--strict", "--allow", "missing-proxy-fence-war", path)
    assert allowed.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["check"],
        ["check", "--allow", "hazard", "program.py"],
        ["check", "--schedules", "0", "program.py"],
        ["check", "--backend", "gpu", "program.py"],
        ["run", "--check", "--backend", "gpu", "program.py"],
        ["run", "--strict", "program.py"],
        ["run", "--allow", "race", "program.py"],
        ["run", "--schedules", "2", "program.py"],
        ["run", "--json", "out.json", "program.py"],
        ["run", "--sarif", "out.sarif", "program.py"],
    ],
    ids=" ".join,
)
def test_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    program(tmp_path, "run(orderly)")
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("usage: tilewright")
    assert not done.stdout


def test_a_program_without_launches_is_told(tmp_path: Path) -> None:
    done = command("check", program(tmp_path, "print(1)"))
    assert done.returncode == 0 and "nothing was checked" in done.stderr


def test_a_program_that_is_not_there_is_a_wrong_option(tmp_path: Path) -> None:
    done = command("check", "--json", "a.json", "absent.py", cwd=tmp_path)
    assert done.returncode == 2 and "[bad-option]" in done.stderr
    assert "checked" not in done.stderr and not (tmp_path / "a.json").exists()


def test_a_program_that_fails_before_a_call_is_told(tmp_path: Path) -> None:
    done = command("check", program(tmp_path, "tilewright.compile(orderly)(a)"))
    assert done.returncode == 1 and "no kernel was called" not in done.stderr
    assert "no call of a kernel had come to its end, so nothing was checked" in done.stderr


ENDLESS = """
@T.function
def endless(A: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    while A[0] == 0:
        A[1] = A[1] + 1

{before}
print("ready", flush=True)
tilewright.compile(endless, target="sm_90a")(np.zeros(32, np.int32))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="interrupts are sent in another way there")
@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("", "no call of a kernel had come to its end, so nothing was checked"),
        ("run(turned)", "the checker found 1 error in 1 call, up to the interrupt"),
    ],
    ids=["first", "second"],
)
def test_an_interrupt_of_a_launch_is_told(tmp_path: Path, before: str, told: str) -> None:
    path = program(tmp_path, ENDLESS.format(before=before))
    line = [sys.executable, "-m", "tilewright", "check", str(path)]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, report = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"tilewright: {told}\n" in report and "tilewright: interrupted" in report
    assert "no kernel was called" not in report


def test_modules_are_checked(tmp_path: Path) -> None:
    program(tmp_path, "run(turned)\nprint(sys.argv[1:])")
    done = command("check", "-m", "program", "--json", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == "['--json']\n"


# ---------------------------------------------------------------------------- schedules, files


def test_schedules_run_on_copies_and_tell_how_to_replay(tmp_path: Path) -> None:
    text = "for _ in range(2): run(turned)\nprint(sorted(set(out))[:2])"
    path = program(tmp_path, text)
    done = command("check", "--schedules", "2", path)
    assert done.returncode == 1 and done.stderr.count("[race]") == 1
    assert "the schedule late shows it again" in done.stderr
    replayed = command("run", "--check", "--schedule", "late", path)
    assert "[race]" in replayed.stderr


def test_files_are_written_and_are_the_same_each_time(tmp_path: Path) -> None:
    path = program(tmp_path, "run(turned); run(orderly); run(outside)")
    made: set[tuple[bytes, bytes]] = set()
    for _ in range(2):
        done = command("check", "--json", "a.json", "--sarif", "a.sarif", path, cwd=tmp_path)
        assert done.returncode == 1
        made.add(((tmp_path / "a.json").read_bytes(), (tmp_path / "a.sarif").read_bytes()))
    assert len(made) == 1
    ((report, log),) = made
    assert [each["kind"] for each in json.loads(report)["findings"]] == ["race", "out-of-bounds"]
    assert {each["schedule"] for each in json.loads(report)["findings"]} == {"late"}
    assert json.loads(report)["calls"] == 3
    results = json.loads(log)["runs"][0]["results"]
    uris = {each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for each in results}
    assert uris == {"program.py"}


def test_findings_go_to_the_standard_output(tmp_path: Path) -> None:
    path = program(tmp_path, "print('ran'); run(turned)")
    done = command("check", "--json", "-", path, cwd=tmp_path)
    said, _, report = done.stdout.partition("\n")
    assert said == "ran" and done.returncode == 1, done.stderr
    assert [each["kind"] for each in json.loads(report)["findings"]] == ["race"]
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("option", ["--json", "--sarif"])
@pytest.mark.parametrize("name", ["no/a.json", ".", ""])
def test_files_that_cannot_be_written_are_refused_before_the_run(
    tmp_path: Path, option: str, name: str
) -> None:
    program(tmp_path, "print('ran')")
    done = command("check", option, name, "program.py", cwd=tmp_path)
    assert done.returncode == 2 and "cannot be written [bad-option]" in done.stderr
    assert not done.stdout and "checked" not in done.stderr


def test_a_file_that_is_there_stays_until_there_are_findings(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    path = program(tmp_path, "print(open('a.json').read(), sorted(os.listdir()))")
    path.write_text("import os\n" + path.read_text())
    done = command("check", "--json", "a.json", "program.py", cwd=tmp_path)
    assert done.stdout == "old ['a.json', 'program.py']\n", done.stderr
    assert json.loads((tmp_path / "a.json").read_text())["findings"] == []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_the_program_are_checked_too(tmp_path: Path, method: str) -> None:
    text = (
        "def run_named(name): run(globals()[name])\n"
        "if __name__ == '__main__':\n"
        "    import multiprocessing, warnings\n"
        "    warnings.simplefilter('ignore')\n"
        f"    processes = multiprocessing.get_context({method!r})\n"
        "    started = [processes.Process(target=run_named, args=(k,))"
        " for k in ('turned', 'orderly')]\n"
        "    for each in started: each.start()\n"
        "    for each in started: each.join()\n"
        "    print([each.exitcode for each in started])\n"
    )
    done = command("check", program(tmp_path, text))
    assert done.stdout == "[0, 0]\n", done.stderr
    assert done.returncode == 1 and done.stderr.count("[race]") == 1
    assert "1 error in 2 calls" in done.stderr


# ---------------------------------------------------------------------------- pytest

TESTS = """
import pytest
executable = tilewright.compile(turned)

def test_unchecked():
    executable(a, out)

def test_checked(tilewright_check):
    executable(a, out)

@pytest.mark.tilewright_allow("race")
def test_allowed(tilewright_check):
    executable(a, out)

def test_orderly(tilewright_check):
    run(orderly)
    assert not tilewright_check.findings()

def test_fault(tilewright_check):
    run(outside)

def test_expected(tilewright_check):
    checked = tilewright.compile(turned, check=True)
    with pytest.raises(tilewright.CheckError):
        checked(a, out)
    with pytest.raises(tilewright.CheckError):
        executable(a, out, check=True)
    assert not tilewright_check.findings()

def test_unexpected(tilewright_check):
    executable(a, out, check=True)

def test_expected_fault(tilewright_check):
    with pytest.raises(tilewright.CheckError):
        tilewright.compile(outside, check=True)(a, out)

@pytest.mark.tilewright_allow("hazard")
def test_no_kind(tilewright_check):
    pass
"""


def results_of(folder: Path, text: str, ini: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "test_kernels.py").write_text(HEAD + text)
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}")
    plugin = "tilewright.testing"
    return command("-q", "-rA", "-p", plugin, "--strict-markers", cwd=folder, module="pytest")


def outcome(done: subprocess.CompletedProcess[str], test: str) -> str:
    found = re.search(rf"^(\w+) test_kernels.py::{test}\b", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return found[1]


def test_the_fixture_fails_a_test_by_what_is_found(tmp_path: Path) -> None:
    done = results_of(tmp_path, TESTS)
    assert done.returncode == 1
    outcomes = {name: outcome(done, f"test_{name}") for name in ("unchecked", "checked", "allowed")}
    assert outcomes == {"unchecked": "PASSED", "checked": "FAILED", "allowed": "PASSED"}
    assert outcome(done, "test_orderly") == "PASSED" and outcome(done, "test_fault") == "FAILED"
    assert outcome(done, "test_expected") == outcome(done, "test_expected_fault") == "PASSED"
    assert outcome(done, "test_unexpected") == "FAILED"
    assert outcome(done, "test_no_kind") == "ERROR" and "'hazard' is not a kind" in done.stdout
    assert "error: two accesses to the same memory have no order" in done.stdout


def test_the_ini_file_allows_kinds_and_asks_for_strictness(tmp_path: Path) -> None:
    text = "def test_turned(tilewright_check): run(turned)\n"
    assert outcome(results_of(tmp_path, text, "tilewright_allow = race"), "test_turned") == "PASSED"
    warned = f"def test_warned(tilewright_check):\n{WARNING.replace(chr(10), chr(10) + '    ')}"
    assert outcome(results_of(tmp_path, warned), "test_warned") == "PASSED"
    assert (
        outcome(results_of(tmp_path, warned, "tilewright_strict = true"), "test_warned") == "FAILED"
    )


def test_the_plugin_is_announced_to_pytest() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\n"tilewright.testing" = "tilewright.testing"' in text
