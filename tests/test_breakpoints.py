"""Breakpoints show the state of a warp and go on; the command line puts them before lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import driver
from tilewright import simt as T
from tilewright.base.errors import FrontendError, LaunchError


@T.function
def sums(A: T.Tensor((64,), "float32"), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    s = T.alloc_shared((64,), "float32", layout="default")
    v = T.alloc_local((3,), "int32", layout="default")
    total: T.float32 = 0.0
    s[i] = A[i] * 2.0
    T.cuda.cta_sync()
    for j in range(3):
        v[j] = i * j * 1000000
        total += s[j]
    if i < 20:
        T.breakpoint()
    A[i] = A[i] + total


def run(kernel: Any, *arguments: Any, **options: Any) -> np.ndarray:
    values = np.arange(64, dtype=np.float32)
    tilewright.compile(kernel, target="sm_90a", backend="sim", **options)(values, *arguments)
    return values


def test_the_state_of_the_active_lanes_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # compiled, and found in the cache
        np.testing.assert_array_equal(run(sums, 5), np.arange(64) + 6)
        said = capsys.readouterr().out
        # Warp 1 has no lane below 20.
        assert said.count("breakpoint at") == 1
        assert re.search(
            r"test_breakpoints\.py:33:9 in .*CTA \(0, 0, 0\), warp 0, lanes 0-19", said
        )
        lines = [" ".join(line.split()) for line in said.splitlines()]
        assert "n = 5" in lines and "total = 6" in lines and "v[0] = 0" in lines
        assert "lanes 16-23 16 17 18 19 . . . ." in lines[lines.index("i =") :]
        row = " ".join(str(lane * 2000000) for lane in range(8))
        assert f"lanes 0- 7 {row}" in lines[lines.index("v[2] =") :]


def test_shared_memory_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    run(sums, 5)
    said = capsys.readouterr().out
    text = said[said.index("shared s: 64 x float32 at 1024") :]
    inside = text[text.index("[") + 1 : text.index("]")]
    np.testing.assert_array_equal(np.array(inside.split(), np.float32), np.arange(64) * 2)


@T.function
def chosen(A: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32))
    i = T.cuda.lane_id()
    s = T.alloc_shared((32,), "float32", layout="default")
    s[i] = A[i]
    T.breakpoint(T.cuda.block_idx("x") * 10, parts="regs", labels=("ten",))


def test_values_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    run(chosen)
    said = capsys.readouterr().out
    assert re.findall(r"CTA \((\d), 0, 0\).*\n  ten = (\d+)\n", said) == [("0", "0"), ("1", "10")]
    assert "shared" not in said and "  i =" not in said


@T.function
def allocated(A: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    address = T.alloc_shared((1,), "uint32", layout="default")
    T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
        T.address_of(address), T.uint32(64)
    )
    T.cuda.cta_sync()
    T.breakpoint(parts="tmem")
    T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(64))
    T.breakpoint(parts="tmem")


def test_tensor_memory_is_shown_where_it_is_allocated(capsys: pytest.CaptureFixture[str]) -> None:
    tilewright.compile(allocated, target="sm_100a", backend="sim")(np.zeros(64, np.float32))
    first, second = capsys.readouterr().out.split("breakpoint at")[1:]
    assert "columns 0-63 are allocated" in first
    assert "none is allocated" in second


def test_tensor_memory_is_shown_as_it_is() -> None:
    example = Path(__file__).parent.parent / "examples" / "blackwell_product.py"
    lines = example.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "wait__ld" in text)
    command = [sys.executable, "-m", "tilewright", "run", "--dump", f"tmem@{line}", str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # As the example makes its operands.
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    expected = a[0].astype(np.float64) @ b[0].astype(np.float64)
    assert "lanes 0-127, columns 0-127, as float32" in done.stdout
    first = re.search(r"\[\[ *(\S+)", done.stdout)
    assert first is not None and float(first[1]) == pytest.approx(expected, rel=1e-5)


def test_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(FrontendError) as caught:

        @T.function
        def wrong(A: T.Tensor((64,), "float32")):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            T.breakpoint(parts=("regs", "cache"))

        tilewright.compile(wrong, backend="sim")
    assert caught.value.code == "bad-call" and "'cache'" in caught.value.message


@pytest.mark.parametrize("form", ["program", "ir"])
def test_it_reads_back(form: str) -> None:
    executable = tilewright.compile(sums, target="sm_90a", backend="sim")
    text = str(getattr(executable, form))
    assert "T.breakpoint(" in text
    names: dict[str, Any] = {}
    path = Path("<read back>")
    import linecache

    linecache.cache[str(path)] = (len(text), None, text.splitlines(True), str(path))
    exec(compile(text, str(path), "exec"), names)
    assert str(names["sums"].program) == text


def test_on_a_gpu_it_is_nothing() -> None:
    source = tilewright.compile(sums, target="sm_90a", backend="sim").source
    body = source[source.index("__global__") :]
    assert "// a breakpoint" in body and "total" in body


@T.function
def products(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    i = T.cuda.thread_idx("x")
    product = A[i] * B[i]
    A[i] = product - T.float32(1)
    B[i] = A[i]


def test_looking_on_does_not_change_what_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    """The product is contracted with the difference, with one rounding."""

    def made() -> bytes:
        b = np.arange(64, dtype=np.float32) / 3 + 1
        return run(products, b).tobytes() + b.tobytes()

    plain = made()
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "B[i] = A[i]" in text and "*" not in text
    )
    with driver.session(driver.Defaults(dumps=(driver.dump(f"regs@{line}"),))):
        assert made() == plain
    assert capsys.readouterr().out.count("breakpoint at") == 2


@pytest.mark.parametrize(
    "text", ["regs", "regs@", "@3", "registers@3", "regs,@3", "regs@x", "regs@:3", "regs@f.py"]
)
def test_a_wish_that_is_none_is_a_typed_error(text: str) -> None:
    with pytest.raises(LaunchError) as caught:
        driver.dump(text)
    assert caught.value.code == "bad-option"


PROGRAM = """\
import numpy as np
import tilewright
from tilewright import simt as T

@T.function
def k(A: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    i = T.cuda.lane_id()
    x = A[i] * T.float32(3)
    for j in range(2):
        A[
            i
        ] = x + T.cast(j, "float32")

tilewright.compile(k, target="sm_90a")(np.arange(32, dtype=np.float32))
"""


def dumped(tmp_path: Path, *wishes: str, text: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(text)
    options = [word for wish in wishes for word in ("--dump", wish)]
    command = [sys.executable, "-m", "tilewright", "run", *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("line", "times"), [(9, 1), (10, 1), (11, 2), (12, 2)])
def test_the_command_line_asks_for_lines(tmp_path: Path, line: int, times: int) -> None:
    """A statement of several lines is each of them; a loop's body is shown in each turn."""
    done = dumped(tmp_path, f"regs@{line}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("breakpoint at") == times
    assert ("  x =" in done.stdout) == (line > 9)
    assert done.stdout.count("  j = ") == (2 if line > 10 else 0)


@pytest.mark.parametrize("end", ["", "import sys; sys.exit()"])
def test_a_line_without_a_statement_is_an_error_at_the_end(tmp_path: Path, end: str) -> None:
    done = dumped(tmp_path, "regs@9", "regs,shared@3", text=PROGRAM + end)
    assert done.returncode == 2 and done.stdout.count("breakpoint at") == 1
    assert "at line 3 [bad-option]" in done.stderr and "a statement of k" in done.stderr
    assert "line 9" not in done.stderr


def test_the_programs_own_code_goes_before_that_of_a_missing_line(tmp_path: Path) -> None:
    assert dumped(tmp_path, "regs@3", text=PROGRAM + "import sys; sys.exit(7)").returncode == 7


@pytest.mark.parametrize(("parts", "target"), [("tmem", "sm_90a"), ("tmem", "sm_100a")])
@pytest.mark.parametrize("more", ["", ",shared"])
def test_registers_are_shown_where_there_is_nothing_else(
    tmp_path: Path, parts: str, target: str, more: str
) -> None:
    text = PROGRAM.replace("sm_90a", target)
    done = dumped(tmp_path, f"{parts}{more}@10", text=text)
    assert done.returncode == 0, done.stderr
    assert "  x =" in done.stdout
    assert dumped(tmp_path, f"regs,{parts}{more}@10", text=text).stdout == done.stdout


def test_registers_are_not_shown_where_there_is_shared_memory(tmp_path: Path) -> None:
    shared = PROGRAM.replace(
        "    for j",
        "    s = T.alloc_shared((4,), 'float32', layout='default'); s[0] = x\n    for j",
    )
    said = dumped(tmp_path, "shared@11", text=shared).stdout
    assert "shared s" in said and "  x =" not in said


HELPER = """from tilewright import simt as T

@T.function(private=True)
def helped(
    x: T.float32,
    y: T.float32,
) -> T.float32:
    z = x + y
    return z * x
"""
# Its line 9 is a statement, and line 8 of the helper.
HELPED = """import numpy as np
import tilewright
from helper import helped
from tilewright import simt as T

@T.function
def k(A: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    A[0] = helped(T.float32(2), T.float32(3))

tilewright.compile(k, target="sm_90a")(np.arange(32, dtype=np.float32))
"""


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("9", "program.py:9"),
        ("program.py:9", "program.py:9"),
        ("helper.py:8", "helper.py:8"),
        ("8", None),
        ("other.py:9", None),
        ("elper.py:8", None),
    ],
)
def test_a_line_may_be_one_of_a_file(tmp_path: Path, place: str, shown: str | None) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    done = dumped(tmp_path, f"regs@{place}", text=HELPED)
    assert done.returncode == (2 if shown is None else 0), done.stderr
    found = re.findall(r"breakpoint at .*?(\w+\.py:\d+)", done.stdout)
    assert found == ([] if shown is None else [shown])
