"""The command line, as a user meets it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from multiprocessing import spawn
from pathlib import Path

import pytest

from tilewright import cli
from tilewright.compat.children import children_begin_with

HEAD = """\
import sys
import numpy as np
import tvm_tirx
from tvm_tirx.script import tirx as T

@T.function
def double(A: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    A[T.cuda.lane_id()] = A[T.cuda.lane_id()] * T.float32(2)

@T.function
def negate(A: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    A[T.cuda.lane_id()] = -A[T.cuda.lane_id()]

a = np.arange(32, dtype=np.float32)
"""
RUN_BOTH = """
tvm_tirx.compile(double, target="cuda")(a)
tvm_tirx.compile(negate, target={"kind": "cuda", "arch": "sm_90a"})(a)
print(__name__, sys.argv[1:], a[3])
"""


def tilewright(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(HEAD + RUN_BOTH)
    return path


# ---------------------------------------------------------------------------- run


def test_run_is_the_scripts_own_process(script: Path) -> None:
    done = tilewright("run", script, "--target", "x", "y")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "__main__ ['--target', 'x', 'y'] -6.0\n"


def test_a_programs_option_may_begin_as_one_of_the_command_does(script: Path) -> None:
    done = tilewright("run", script, "--c", "64", "--target=x")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "__main__ ['--c', '64', '--target=x'] -6.0\n"


def test_run_says_that_it_simulates_and_for_what(script: Path) -> None:
    said = tilewright("run", script).stderr.splitlines()
    assert any("tvm_tirx" in line and "--keep" in line for line in said)
    assert sum("simulated for sm_100a" in line for line in said) == 1
    assert sum("simulated for sm_90a" in line for line in said) == 1


def test_the_target_of_the_command_line_wins(script: Path) -> None:
    said = tilewright("run", "--target", "sm_80", script).stderr
    assert said.count("simulated for sm_80") == 1 and "sm_90a" not in said


def test_run_takes_a_module(script: Path) -> None:
    done = tilewright("run", "-m", "program", "--flag", cwd=script.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "__main__ ['--flag'] -6.0\n"


def test_the_folder_of_the_script_is_first_on_the_path(script: Path) -> None:
    (script.parent / "beside.py").write_text("VALUE = 7")
    script.write_text("import beside, sys; print(beside.VALUE, sys.argv[0])")
    done = tilewright("run", "sub/../program.py", cwd=_with_folder(script.parent))
    assert done.stdout == "7 sub/../program.py\n", done.stderr


def _with_folder(path: Path) -> Path:
    (path / "sub").mkdir()
    return path


@pytest.mark.parametrize("schedule", ["late", "eager", "random", "random:9"])
def test_schedules(script: Path, schedule: str) -> None:
    assert tilewright("run", "--schedule", schedule, script).returncode == 0


@pytest.mark.parametrize(
    ("options", "found"), [((), "0x401837f0"), (("--numerics", "exact"), "0x401837f1")]
)
def test_numerics(tmp_path: Path, options: tuple[str, ...], found: str) -> None:
    """Of 2^1.25 a Hopper chip gives the neighbour of what is nearest."""
    path = tmp_path / "program.py"
    path.write_text(
        "import numpy as np\n"
        "import tilewright\n"
        "from tilewright import simt as T\n"
        "@T.function\n"
        'def power(A: T.Tensor((32,), "float32")):\n'
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))\n"
        "    found: T.float32 = 0\n"
        "    T.ptx.ex2.approx.ftz.f32(found, A[T.cuda.lane_id()])\n"
        "    A[T.cuda.lane_id()] = found\n"
        "a = np.full(32, 1.25, np.float32)\n"
        "tilewright.compile(power, target='sm_90a')(a)\n"
        "print(hex(a.view(np.uint32)[0]))\n"
    )
    done = tilewright("run", *options, path)
    assert done.stdout.strip() == found, done.stderr


@pytest.mark.parametrize(
    ("options", "code", "exit_code"),
    [
        (["--schedule", "sometimes"], "bad-option", 2),
        (["--schedule", "late:3"], "bad-option", 2),
        (["--target", "sm_1"], "unknown-target", 1),
        (["--backend", "gpu"], "missing-tool", 1),
        (["--keep", "numpy"], "bad-option", 2),
    ],
)
def test_wrong_options_are_typed_errors(
    script: Path, options: list[str], code: str, exit_code: int
) -> None:
    done = tilewright("run", *options, script)
    assert done.returncode == exit_code and f"[{code}]" in done.stderr
    assert "Traceback" not in done.stderr and "<string>" not in done.stderr


def test_a_bad_option_of_the_program_is_its_failure(script: Path) -> None:
    script.write_text(HEAD + "tvm_tirx.compile(double, backend='moon')\n")
    done = tilewright("run", script)
    assert done.returncode == 1 and "[bad-option]" in done.stderr and str(script) in done.stderr


def test_two_dashes_end_the_options(script: Path) -> None:
    done = tilewright("run", "--", script, "--", "x")
    assert done.stdout == "__main__ ['--', 'x'] -6.0\n", done.stderr


def test_the_version_is_told() -> None:
    assert tilewright("--version").stdout.startswith("tilewright ")


@pytest.mark.parametrize("output", ["missing/k.cubin", "."])
def test_an_output_that_cannot_be_written_is_a_typed_error(script: Path, output: str) -> None:
    done = tilewright("build", script, "-o", output, cwd=script.parent)
    assert done.returncode == 2 and "[bad-option]" in done.stderr
    assert "Traceback" not in done.stderr


def test_names_can_be_kept(script: Path) -> None:
    done = tilewright("run", "--keep", "tvm_tirx", script)
    assert done.returncode == 1 and "No module named 'tvm_tirx'" in done.stderr


def test_a_typed_error_is_shown_as_its_text_and_the_callers_line(script: Path) -> None:
    script.write_text(HEAD + "tvm_tirx.compile(double)(a, a)\n")
    done = tilewright("run", script)
    assert done.returncode == 1
    assert "[argument-count]" in done.stderr and "Traceback" not in done.stderr
    assert "program.py" in done.stderr


def test_other_errors_have_a_traceback_of_the_users_frames(script: Path) -> None:
    script.write_text("def f():\n    raise ValueError('mine')\nf()\n")
    done = tilewright("run", script)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    first = lines.index("Traceback (most recent call last):")
    assert "program.py" in lines[first + 1] and lines[-1] == "ValueError: mine"


@pytest.mark.parametrize(("leave", "code"), [("3", 3), ("", 0), ("'bye'", 1)])
def test_the_scripts_exit_code_passes(script: Path, leave: str, code: int) -> None:
    script.write_text(f"import sys; sys.exit({leave})")
    assert tilewright("run", script).returncode == code


def test_threads_end_before_the_session_does(script: Path) -> None:
    script.write_text(
        HEAD
        + "import threading, time\n"
        + "def late():\n"
        + "    time.sleep(0.3)\n"
        + "    import tvm_tirx.tirx\n"
        + "    tvm_tirx.tirx.compile(double)(a)\n"
        + "    print(a[1])\n"
        + "threading.Thread(target=late).start()\n"
    )
    done = tilewright("run", script)
    assert done.stdout == "2.0\n", done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("as_module", [False, True])
def test_processes_that_the_program_starts_are_like_it(
    script: Path, method: str, as_module: bool
) -> None:
    script.write_text(
        HEAD
        + "import multiprocessing\n"
        + "def work(depth):\n"
        + "    if depth:\n"
        + "        with context.Pool(1) as pool:\n"
        + "            return pool.apply(work, (depth - 1,))\n"
        + "    ex = tvm_tirx.compile(double)\n"
        + "    mine = a.copy()\n"
        + "    ex(mine)\n"
        + "    return float(mine[3]), str(ex.target)\n"
        + f"context = multiprocessing.get_context({method!r})\n"
        + "def report(queue):\n"
        + "    queue.put(work(0))\n"
        + "if __name__ == '__main__':\n"
        + "    with context.Pool(2) as pool:\n"
        + "        print(*pool.map(work, [0, 0]))\n"
        + "    queue = context.Queue()\n"
        + "    process = context.Process(target=report, args=(queue,))\n"
        + "    process.start()\n"
        + "    print(queue.get(timeout=60), process.join(), process.exitcode)\n"
        + "    from concurrent.futures import ProcessPoolExecutor\n"
        + "    with ProcessPoolExecutor(1, mp_context=context) as pool:\n"
        + "        print(pool.submit(work, 1).result())\n"
    )
    options = ("run", "--target", "sm_80", "--schedule", "random:3")
    named = ("-m", script.stem) if as_module else (script,)
    done = tilewright(*options, *named, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    one = (6.0, "sm_80")
    assert done.stdout == f"{one} {one}\n{one} None 0\n{one}\n"


def test_the_fork_server_does_not_read_the_program() -> None:
    before = spawn.get_preparation_data
    with children_begin_with(print):
        assert (
            not {"init_main_from_path", "init_main_from_name"}
            & spawn.get_preparation_data("ignore").keys()
        )
    assert spawn.get_preparation_data is before


def test_a_missing_script_is_reported(tmp_path: Path) -> None:
    done = tilewright("run", tmp_path / "absent.py")
    assert done.returncode == 2 and "[bad-option]" in done.stderr


def test_run_needs_something_to_run() -> None:
    assert tilewright("run").returncode == 2


# ---------------------------------------------------------------------------- source, build


def test_source_prints_only_the_text_and_launches_nothing(script: Path) -> None:
    script.write_text(HEAD + "print('noise')\n" + RUN_BOTH)
    done = tilewright("source", "--target", "sm_80", script)
    assert done.returncode == 0, done.stderr
    assert "noise" not in done.stdout and "noise" in done.stderr
    assert "double" in done.stdout and "__global__" in done.stdout and "__main__" not in done.stdout


def test_source_finds_a_kernel_by_name(script: Path) -> None:
    done = tilewright("source", f"{script}::negate", "--target", "sm_80")
    assert "negate" in done.stdout and "double" not in done.stdout


def test_a_name_that_is_never_compiled_is_reported(script: Path) -> None:
    done = tilewright("source", f"{script}::absent")
    assert done.returncode == 2
    assert "[bad-option]" in done.stderr and "double, negate" in done.stderr


# A file that makes two kernels of one name.
MADE = """
def made(factor):
    @T.function
    def scaled(A: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        A[T.cuda.lane_id()] = A[T.cuda.lane_id()] * T.float32(factor)
    return scaled
"""
DEFINED = HEAD.split("@T.function")[0] + MADE


@pytest.mark.parametrize(
    ("text", "name", "has", "said"),
    [
        # Kernels that are only defined.
        (DEFINED + "only = made(7)", "", "7.0", ""),
        (DEFINED + "only = again = made(7)", "", "7.0", ""),
        (DEFINED + "only = made(7)\nsys.exit()", "", "7.0", ""),
        (DEFINED + "a, b = made(5), made(7)", "::a", "5.0", ""),
        (DEFINED + "a, b = made(5), made(7)", "::b", "7.0", ""),
        (DEFINED + "a, b = made(5), made(7)", "::scaled", "7.0", "2 kernels are called scaled"),
        (HEAD, "::negate", "// negate", ""),
        # Kernels that are compiled, up to the first call.
        (DEFINED + "for x in 5, 7: tvm_tirx.compile(made(x))", "::scaled", "7.0", "2 kernels"),
        (DEFINED + "for x in 5, 7: tvm_tirx.compile(made(x))(None)", "::scaled", "5.0", ""),
        (HEAD + RUN_BOTH, "", "// double", ""),
        (
            HEAD + "for each in double, negate: tvm_tirx.compile(each)",
            "",
            "// double",
            "double is the first of double, negate",
        ),
        (HEAD + "tvm_tirx.compile(double); 1 / 0", "", "// double", "ends by ZeroDivisionError"),
        (HEAD + "tvm_tirx.compile(double)", "::negate", "// negate", ""),
    ],
)
def test_source_shows_what_a_file_compiles_or_else_defines(
    script: Path,
    text: str,
    name: str,
    has: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script.write_text(text)
    assert cli.main(["source", f"{script}{name}", "--target", "sm_80"]) == 0
    written = capsys.readouterr()
    assert has in written.out and said in written.err
    assert said or len(written.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "name", "message", "expected"),
    [
        (HEAD, "", "has 2 kernels", "FILE::NAME, with one of double, negate"),
        (HEAD, "::np", "has no kernel np", "double, negate"),
        ("x = 1", "", "has no kernel", "a kernel under a global name"),
        (DEFINED.replace("T.function", "T.jit"), "::made", "has no kernel made", "global name"),
    ],
)
def test_a_file_without_the_kernel_is_told_what_there_is(
    script: Path,
    text: str,
    name: str,
    message: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script.write_text(text)
    assert cli.main(["build", f"{script}{name}", "-o", str(script.parent / "k.cubin")]) == 2
    said = capsys.readouterr().err
    assert "[bad-option]" in said and message in said and expected in said


@pytest.mark.parametrize("first", [True, False], ids=["options first", "script first"])
def test_build_writes_a_cubin(script: Path, tmp_path: Path, first: bool) -> None:
    output = tmp_path / "k.cubin"
    options = ["--target", "sm_90a", "-o", str(output)]
    name = f"{script}::double"
    done = tilewright("build", *(options if first else ()), name, *(() if first else options))
    assert done.returncode == 0, done.stderr
    assert output.read_bytes()[:4] == b"\x7fELF"
    assert not done.stdout and sorted(p.name for p in tmp_path.iterdir()) == [
        "k.cubin",
        "program.py",
    ]


def test_a_build_that_fails_leaves_the_old_file(script: Path, tmp_path: Path) -> None:
    output = tmp_path / "k.cubin"
    output.write_bytes(b"old")
    assert tilewright("build", f"{script}::absent", "-o", output).returncode == 2
    assert output.read_bytes() == b"old"


# ---------------------------------------------------------------------------- seeds


@pytest.mark.parametrize("schedule", ["late", "eager", "random:1"])
def test_the_warp_product_runs_verbatim(seed: Path, schedule: str) -> None:
    pytest.importorskip("torch")
    done = tilewright("run", "--schedule", schedule, seed / "warp_matmul.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_the_warp_product_builds(seed: Path, tmp_path: Path, target: str) -> None:
    pytest.importorskip("torch")
    name = f"{seed / 'warp_matmul.py'}::warp_matmul"
    done = tilewright("build", name, "--target", target, "-o", tmp_path / "k.cubin")
    assert done.returncode == 0, done.stderr


def test_run_takes_a_folder_with_a_main_file(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "helper.py").write_text("factor = 5\n")
    (folder / "__main__.py").write_text(
        HEAD + RUN_BOTH + "from helper import factor\nprint(factor, __file__)\n"
    )
    done = tilewright("run", folder, "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"__main__ ['x'] -6.0\n5 {folder / '__main__.py'}\n"
    assert "__global__" in tilewright("source", f"{folder}::negate").stdout


def test_a_program_is_read_without_the_future_statements_of_this_package(tmp_path: Path) -> None:
    """Python evaluates annotations where they stand, so `shape` is known two functions further in.

    The function between is one that does not mention it otherwise.
    """
    path = tmp_path / "program.py"
    path.write_text(
        "import numpy as np\n"
        "import tilelang, tilelang.language as T\n"
        "@tilelang.jit(out_idx=[1])\n"
        "def outermost(n):\n"
        "    shape, kind = [n], T.float32\n"
        "    def between(threads):\n"
        "        @T.prim_func\n"
        "        def kernel(A: T.Tensor(shape, kind), B: T.Tensor(shape, kind)):\n"
        "            with T.Kernel(1, threads=threads):\n"
        "                for i in T.Parallel(n):\n"
        "                    B[i] = A[i] + 1\n"
        "        return kernel\n"
        "    return between(32)\n"
        "print(outermost(64)(np.zeros(64, np.float32)).sum())\n"
    )
    done = tilewright("run", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "64.0\n"


def test_run_says_that_a_folder_has_no_main_file(tmp_path: Path) -> None:
    done = tilewright("run", tmp_path)
    assert done.returncode == 2
    assert "__main__.py" in done.stderr and "[bad-option]" in done.stderr
    assert "Traceback" not in done.stderr


ENDLESS = """
import time
@T.function
def endless(A: T.Tensor((32,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    while A[0] == 0:
        A[1] = A[1] + 1

def main():
    executable = tvm_tirx.compile(endless)
    print("ready", flush=True)
    {action}
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="interrupts are sent in another way there")
@pytest.mark.parametrize(
    "action", ["executable(np.zeros(32, np.int32))", "time.sleep(100)"], ids=["kernel", "python"]
)
def test_an_interrupt_shows_the_users_line_only(tmp_path: Path, action: str) -> None:
    path = tmp_path / "endless.py"
    path.write_text(HEAD + ENDLESS.format(action=action))
    command = [sys.executable, "-m", "tilewright", "run", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, report = process.communicate(timeout=60)
    assert process.returncode == 130
    said, place, line, _ = report[report.index("tilewright: interrupted") :].splitlines()
    assert said == "tilewright: interrupted" and str(path) in place, report
    assert line.endswith(f"    {action}") and "Traceback" not in report
