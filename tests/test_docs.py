"""What is written about the project agrees with it."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright import simt

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the text that is said to be its output."""

    language: str
    text: str
    output: str


def blocks_of(page: Path) -> list[Block]:
    """List the blocks of a page; a block `text` is the output of the one before it."""
    fences = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    outputs = [text if language == "text" else "" for language, text in fences[1:]] + [""]
    return [
        Block(language, text, output)
        for (language, text), output in zip(fences, outputs, strict=False)
    ]


def blocks(language: str) -> list[str]:
    return [each.text for each in blocks_of(ROOT / "README.md") if each.language == language]


def having(language: str) -> list[Any]:
    return [
        pytest.param(page, id=page.stem)
        for page in PAGES
        if any(each.language == language for each in blocks_of(page))
    ]


def tool(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / f"{name}.py"))


def test_the_reference_of_errors_is_up_to_date() -> None:
    assert (ROOT / "docs" / "errors.md").read_text() == tool("write_error_reference")["text"]()


def test_the_table_of_kinds_of_findings_is_up_to_date() -> None:
    written = (ROOT / "docs" / "check-kinds.md").read_text()
    assert written == tool("write_check_reference")["text"]()


def test_the_table_of_instructions_is_up_to_date() -> None:
    written = (ROOT / "docs" / "instruction-table.md").read_text()
    assert written == tool("write_instruction_reference")["text"]()


def test_the_table_of_functions_is_up_to_date_and_states_every_error() -> None:
    written = (ROOT / "docs" / "functions.md").read_text()
    assert written == tool("write_function_reference")["text"]()
    rows = re.findall(r"^\| `(.*?)` \| (.*?) \| (.*?) \|$", written, re.MULTILINE)
    for name, _, error in rows:
        assert re.match(r"\d ulp|exact|rounded once", error), name
        assert "T." not in name or hasattr(simt, name.removeprefix("T.")), name


def test_the_pictures_of_layouts_are_up_to_date_and_all_are_shown() -> None:
    drawings = tool("write_layout_pictures")["drawings"]()
    assert {path.name: path.read_text() for path in (ROOT / "docs/pictures").iterdir()} == drawings
    page = (ROOT / "docs" / "layouts.md").read_text()
    assert set(re.findall(r"\(pictures/(.*?)\)", page)) == drawings.keys()


@pytest.mark.parametrize("page", having("python"))
def test_snippets_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the blocks of a page one after another, each as a file of its own."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks_of(page)):
        if block.language != "python":
            continue
        program = tmp_path / str(number) / "kernel.py"
        program.parent.mkdir()
        program.write_text(block.text)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, str(program), "exec"), names)
        said = printed.getvalue().replace(f"{program.parent}/", "")
        assert re.sub(r"0x[0-9a-f]{8,}", "0x…", said) == block.output


@pytest.mark.parametrize("page", having("sh"))
def test_commands_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for block in blocks_of(page):
        if block.language == "sh" and block.output:
            first, *rest = shlex.split(block.text)
            assert first == "tilewright"
            command = [sys.executable, "-m", first, *rest]
            done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert done.stdout == block.output


@pytest.mark.parametrize("page", having("py"))
def test_quotations_are_of_the_examples(page: Path) -> None:
    """A block `py` does not run by itself: it is a run of lines of an example."""
    for block in blocks_of(page):
        if block.language == "py":
            quoted = textwrap.dedent(block.text)
            assert any(is_quoted(quoted, each.read_text()) for each in EXAMPLES), block.text


def is_quoted(lines: str, program: str) -> bool:
    depths = (" " * depth for depth in range(0, 17, 4))
    return any(textwrap.indent(lines, depth) in program for depth in depths)


@pytest.mark.parametrize(
    ("line", "instead", "code"),
    [
        ("        T.cuda.mbarrier_wait(bar, 0)\n", "", "mbarrier-protocol"),
        ("    T.cuda.mbarrier_wait(multiplied.ptr_to([0]), 0)\n", "", "mbarrier-protocol"),
        ("    T.ptx.tcgen05.wait__ld.sync.aligned()\n", "", None),
        (
            "T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(N))",
            "pass",
            "tensor-memory",
        ),
        ("swizzle=3, mbar", "swizzle=2, mbar", "tile-operand"),
        ("BYTES = ", "BYTES = 16 + ", "deadlock"),
    ],
    ids=["copies", "products", "registers", "allocation", "swizzle", "bytes"],
)
def test_the_walk_through_is_right_about_mistakes(
    line: str, instead: str, code: str | None, tmp_path: Path
) -> None:
    example = (ROOT / "examples" / "blackwell_product.py").read_text()
    assert line in example
    program = tmp_path / "product.py"
    program.write_text(example.replace(line, instead))
    with pytest.raises((tilewright.TilewrightError, AssertionError)) as raised:
        runpy.run_path(str(program), run_name="__main__")
    assert getattr(raised.value, "code", None) == code


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == [page.name for page in PAGES]


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


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(example: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_changelog_has_the_version() -> None:
    assert f"## {tilewright.__version__}" in (ROOT / "CHANGELOG.md").read_text()
