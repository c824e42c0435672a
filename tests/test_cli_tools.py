"""The parts of the command line that tell: instructions, what is installed, code as text."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tilewright as package
from tilewright.compat.names import PACKAGES
from tilewright.isa.declaration import families
from tilewright.runtime import nvdisasm, progress
from tilewright.view.forms import instruction_tables

EXAMPLE = Path(__file__).parent.parent / "examples" / "vector_add.py"


def tilewright(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def on_terminal(*arguments: str | Path) -> str:
    """Run the command with a terminal for its output, and give what it writes there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        try:
            while data := os.read(ours, 1 << 16):
                written += data
        except OSError:
            pass  # the end of a terminal that nobody has open any more
        assert process.wait(timeout=120) == 0
    os.close(ours)
    return written.decode()


# ---------------------------------------------------------------------------- isa


def test_all_instructions_are_listed() -> None:
    done = tilewright("isa")
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split()[0] == "instruction" and "targets" in head and "what it does" in head
    assert len(rows) == sum(map(len, families().values()))
    assert "\x1b" not in done.stdout


def test_a_part_of_a_name_is_a_pattern() -> None:
    said = tilewright("isa", "ldmatrix").stdout
    # PTX ISA, "ldmatrix": .num is x1, x2 or x4; each lane's address is that of a 16-byte row.
    assert "reads 16 bytes" in said and "sm_75 or later" in said
    assert ".x1 .x2 .x4" in said and "a warp together" in said
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in said
    assert '"ldmatrix"' in said and "stmatrix" not in said


def test_a_pattern_may_have_stars() -> None:
    said = tilewright("isa", "fma.*16*").stdout
    forms = set(re.findall(r"^fma\.rn\.(\w+)", said, re.MULTILINE))
    assert forms == {"f16", "bf16", "f16x2", "bf16x2"}
    # PTX ISA, "fma": .f16 needs sm_53, .bf16 sm_80.
    assert re.search(r"fma\.rn\.bf16 +sm_80 or later", said)
    assert re.search(r"fma\.rn\.f16 +sm_75 or later", said)


def test_what_is_not_confirmed_is_said() -> None:
    rows = tilewright("isa").stdout.splitlines()[1:]
    unconfirmed = [d for group in families().values() for d in group if not d.exact]
    assert sum("not confirmed" in row for row in rows) == len(unconfirmed)


def test_long_lists_are_cut_and_say_so() -> None:
    said = tilewright("isa", "atom").stdout
    assert re.search(r"… and \d+ more: a longer pattern", said)


# Nothing is said of import names that are left alone.
KEEP = " ".join(f"--keep {name}" for name in PACKAGES)
PRINTING = {
    "isa": "isa '*'",
    "cache": "cache",
    "doctor": "doctor",
    "view": "view 'S[(8, 4) : (4, 1)]'",
    "source": f"source {KEEP} {EXAMPLE}",
    "run": f"run {KEEP} printing.py",
}


@pytest.fixture
def printing(tmp_path: Path) -> Path:
    (tmp_path / "printing.py").write_text("import sys\nprint('x' * 100000)\nsys.exit(0)")
    return tmp_path


@pytest.mark.parametrize("command", PRINTING.values(), ids=PRINTING)
def test_the_reader_of_the_output_may_stop(command: str, printing: Path) -> None:
    text = f"({sys.executable} -m tilewright {command}; echo $? >&2) | true"
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, timeout=120, cwd=printing
    )
    assert done.stderr == "0\n"


def test_a_pipe_of_the_programs_own_that_is_broken_is_told(printing: Path) -> None:
    (printing / "printing.py").write_text("raise BrokenPipeError('mine')")
    done = tilewright("run", printing / "printing.py")
    assert done.returncode == 1 and "BrokenPipeError: mine" in done.stderr


@pytest.mark.parametrize("command", PRINTING.values(), ids=PRINTING)
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_there_may_be_no_output(command: str, closed: str, printing: Path) -> None:
    text = f"{sys.executable} -m tilewright {command} {closed}"
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, timeout=120, cwd=printing
    )
    assert done.returncode == 0
    assert (done.stdout if closed == ">&-" else done.stderr) == ""
    assert "Error" not in done.stderr


@pytest.mark.parametrize("command", ["doctor", f"source --ptx {EXAMPLE}"])
def test_an_interrupt_has_no_traceback(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send one while NVRTC compiles: its binding has frames that are nobody's source."""
    pytest.importorskip("cuda.bindings.nvrtc")
    start = "import signal, sys; from tilewright import cli; from tilewright.runtime import nvrtc\n"
    end = "nvrtc._build = lambda *_: signal.raise_signal(signal.SIGINT)\n"
    words = [*command.split(), "--cache", "off"]
    done = subprocess.run(
        [sys.executable, "-c", f"{start}{end}sys.exit(cli.main({words!r}))"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "tilewright: interrupted"
    assert "Traceback" not in done.stderr


def test_a_pattern_that_matches_nothing_is_a_typed_error() -> None:
    done = tilewright("isa", "ldmatrx")
    assert done.returncode == 2 and "[bad-option]" in done.stderr
    assert "did you mean ldmatrix" in done.stderr


@pytest.mark.parametrize(
    ("written", "ptx"),
    [
        ("elect_sync", "elect.sync"),
        ("T.ptx.elect_sync", "elect.sync"),
        ("T.ptx.ldmatrix", "ldmatrix"),
        ("ptx.ldmatrix.sync", "ldmatrix.sync"),
        ("T.ptx['ldmatrix.sync']", "ldmatrix.sync"),
        ('T.ptx["ldmatrix.sync"](a, b)', "ldmatrix.sync"),
        ("expect_tx.shared__cta", "expect_tx.shared::cta"),
        ("T.ptx.cp.async_.bulk", "cp.async.bulk"),
        ("cp.async_", "cp.async"),
        ("ld.*global_*", "ld.*global*"),
        ("*shfl_sync.up*", "*shfl.sync.up*"),
    ],
)
def test_a_pattern_may_be_spelled_as_programs_do(written: str, ptx: str) -> None:
    assert list(instruction_tables(written)) == list(instruction_tables(ptx))


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("ldmatrx", "did you mean ldmatrix?"),
        ("mma sync", "did you mean '*mma*sync*'?"),
        ("shfl.up", "did you mean '*shfl*up*'?"),
        ("tanh", "tanh is an instruction of PTX that is not supported yet"),
        ("elect_snc", "did you mean elect?"),
        ("zzz", "`isa` alone lists them all"),
        ("mma.nothing", "`isa` alone lists them all"),
        ("][", "`isa` alone lists them all"),
    ],
)
def test_a_hint_is_sensible(pattern: str, hint: str) -> None:
    with pytest.raises(package.LaunchError) as caught:
        list(instruction_tables(pattern))
    assert caught.value.hint == hint


def test_a_terminal_is_drawn_on() -> None:
    said = on_terminal("isa", "ldmatrix")
    assert "\x1b[" in said and "sm_75 or later" in said


# ---------------------------------------------------------------------------- doctor


def test_the_doctor_tells_versions_and_tries_targets() -> None:
    done = tilewright("doctor")
    assert done.returncode == 0, done.stderr
    rows = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert package.__version__ in rows["tilewright"]
    for name in ("numpy", "llvmlite", "LLVM", "NVRTC", "cuda-bindings", "torch", "GPU", "cache"):
        assert name in rows
    assert os.environ["TILEWRIGHT_CACHE"] in rows["cache"]
    if "not installed" not in rows["NVRTC"]:
        assert "sm_90a (H100)" in rows["compiles"] and "sm_100a (B200)" in rows["compiles"]


# ---------------------------------------------------------------------------- source


def test_source_prints_ptx() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    done = tilewright("source", "--ptx", "--target", "sm_80", EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert ".target sm_80" in done.stdout and ".entry" in done.stdout


def test_source_prints_the_chips_instructions() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert nvdisasm.find(), "the extra `test` installs it"
    done = tilewright("source", "--sass", "--target", "sm_90", EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert re.search(r"/\*0000\*/ .*;", done.stdout) and "EXIT" in done.stdout


def test_without_nvdisasm_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvdisasm, "find", lambda: None)
    with pytest.raises(package.TargetError) as caught:
        nvdisasm.disassemble(b"")
    assert caught.value.code == "missing-tool"
    assert "pip install" in str(caught.value)


def test_one_form_at_a_time() -> None:
    assert tilewright("source", "--ptx", "--sass", EXAMPLE).returncode == 2


# ---------------------------------------------------------------------------- progress


class _Stream:
    """An output that says whether it is a terminal, and keeps what is written."""

    closed = False

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(("terminal", "seconds"), [(True, 1.0), (False, 1.0), (True, 0.0)])
def test_long_work_shows_itself_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, seconds: float
) -> None:
    stream = _Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    threads = threading.active_count()
    with progress.shown("k is compiled") as report:
        report(3, 12)
        time.sleep(seconds)
    assert threading.active_count() == threads
    if terminal and seconds:
        assert "tilewright: k is compiled, 3 of 12, 0 s" in stream.text
        # Nothing of it is left.
        assert stream.text.endswith("\r") and not stream.text.split("\r")[-2].strip()
    else:
        assert stream.text == ""


def test_work_that_reports_shows_itself_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    threads = threading.active_count()
    with progress.polled("k is simulated", "CTAs") as line:
        line.report(0, 9)
        assert stream.text == "" and threading.active_count() == threads
        time.sleep(1.1)
        line.report(4, 9)
        assert stream.text == "\rtilewright: k is simulated, 4 of 9 CTAs, 1 s"
        line.before(lambda text: stream.write(text))("printed\n")
    assert "".join(re.findall(r"[^\r]*\r([^\r]*)$", stream.text)) == "printed\n"


def test_there_is_one_line_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_AFTER_POLLED", 0.0)
    stream = _Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.polled("second", "") as second:
        with progress.polled("first", "") as first:
            first.report(1, 9)
            second.report(1, 9)
        assert "first" in stream.text and "second" not in stream.text
        time.sleep(0.3)
        second.report(2, 9)
        assert "second, 2 of 9" in stream.text
    assert not re.split("\r", stream.text)[-2].strip() and stream.text.endswith("\r")


LONG = """
import numpy as np
import tilewright
from tilewright import simt as T

@T.function
def long(A: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=100000, block=32))
    x: T.float32 = 1.0
    i: T.int32 = 0
    while i < 200000:
        x = x * T.float32(0.5) + T.float32(1)
        i = i + 1
    A[T.cuda.lane_id()] = x

executable = tilewright.compile(long, target="sm_90a", backend="sim")
executable(np.zeros(32, np.float32))
"""


@pytest.mark.parametrize("thread", [False, True], ids=["main", "thread"])
def test_a_long_launch_shows_how_far_it_is_and_an_interrupt_leaves_nothing_of_it(
    tmp_path: Path, thread: bool
) -> None:
    path = tmp_path / "long.py"
    text = LONG
    if thread:
        *start, call = text.strip().splitlines()
        waited = "import threading, time\nthreading.Thread(target=work, daemon=True).start()\n"
        text = "\n".join([*start, f"def work():\n    {call}", waited, "time.sleep(600)"])
    path.write_text(text)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tilewright", "run", str(path)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        while not re.search(rb"long\w* is simulated, [1-9]\d* of 100000 CTAs, \d+ s", written):
            written += os.read(ours, 1 << 16)
        process.send_signal(signal.SIGINT)
        try:
            while data := os.read(ours, 1 << 16):
                written += data
        except OSError:
            pass  # the end of a terminal that nobody has open any more
        assert process.wait(timeout=120) == 130
    os.close(ours)
    said = written.decode()
    assert "Traceback" not in said and "tilewright: interrupted" in said
    # What the terminal shows in the end is behind the last return of each line.
    left = [each.rstrip("\r").split("\r")[-1] for each in said.split("\n")]
    assert "tilewright: interrupted" in left and not any("CTAs" in each for each in left)
