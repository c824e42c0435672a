"""What is written about the project agrees with it."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_reference_of_errors_is_up_to_date() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "write_error_reference.py"))
    assert (ROOT / "docs" / "errors.md").read_text() == tool["text"]()


def test_the_first_kernel_prints_what_the_readme_says(tmp_path: Path) -> None:
    program = tmp_path / "first.py"
    program.write_text(blocks("python")[0])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(program), run_name="__main__")
    assert printed.getvalue() == blocks("text")[0]


def test_the_first_kernel_is_short() -> None:
    assert len(blocks("python")[0].splitlines()) <= 30


def test_ci_runs_the_readmes_test_command() -> None:
    command = next(block.strip() for block in blocks("sh") if "pytest" in block)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(example: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_changelog_has_the_version() -> None:
    assert f"## {tilewright.__version__}" in (ROOT / "CHANGELOG.md").read_text()
