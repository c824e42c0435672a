"""The parts of the command line that tell: instructions, what is installed, code as text."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tilewright as package
from tilewright.isa.declaration import families
from tilewright.runtime import nvdisasm, progress

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


def test_the_reader_of_a_list_may_stop() -> None:
    command = f"{sys.executable} -m tilewright isa '*' | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert done.stdout and done.stderr == ""


def test_a_pattern_that_matches_nothing_is_a_typed_error() -> None:
    done = tilewright("isa", "ldmatrx")
    assert done.returncode == 1 and "[bad-option]" in done.stderr
    assert "did you mean ldmatrix" in done.stderr


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
