"""What is compiled is kept between processes, and found again only where it is the same."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import cli, driver
from tilewright.base.errors import CompilerBug, MemoryFault
from tilewright.base.targets import target
from tilewright.runtime import nvrtc
from tilewright.runtime.cache import Cache
from tilewright.sim.engine import jit

HEAD = """\
from tilewright import simt as T
{lines}
@T.function
def k(A: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    i = T.cuda.lane_id()
"""
SCALE = "    A[i] = A[i] * T.float32({factor})\n"
SHUFFLE = "    A[i] = T.cuda.__shfl_xor_sync(0xFFFFFFFF, A[i], 16, 32)\n"


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def kernel(tmp_path: Path) -> Callable[..., Any]:
    """Give a function that writes a kernel of some statements to a file, and reads it."""
    count = 0

    def made(body: str, lines: str = "") -> Any:
        nonlocal count
        count += 1
        path = tmp_path / f"program{count}.py"
        path.write_text(HEAD.format(lines=lines) + body)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.k

    return made


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give a function after which nothing can be compiled any more."""

    def refuse(*arguments: object) -> Any:
        raise AssertionError("this was to be found in the cache")

    def take_away() -> None:
        monkeypatch.setattr(jit, "_object", refuse)
        monkeypatch.setattr(nvrtc, "_build", refuse)

    return take_away


def run(kernel: Any, cache: Cache, **options: Any) -> np.ndarray:
    values = np.arange(32, dtype=np.float32)
    tilewright.compile(kernel, backend="sim", cache=str(cache.folder), **options)(values)
    return values


def kinds(cache: Cache) -> Counter[str]:
    return Counter(entry.kind for entry in cache.entries())


# ---------------------------------------------------------------------------- kernels


def test_a_kernel_is_compiled_once(
    cache: Cache, kernel: Callable[..., Any], no_compiler: Callable[[], None]
) -> None:
    first = run(kernel(SCALE.format(factor=3)), cache)
    no_compiler()
    again = run(kernel(SCALE.format(factor=3)), cache)
    np.testing.assert_array_equal(first, np.arange(32) * 3)
    np.testing.assert_array_equal(again, first)


def test_kernels_share_all_but_their_own_function(cache: Cache, kernel: Callable[..., Any]) -> None:
    run(kernel(SCALE.format(factor=3) + SHUFFLE), cache)
    before = kinds(cache)
    run(kernel(SHUFFLE + SCALE.format(factor=5)), cache)
    assert kinds(cache) - before == {"kernel": 1, "native": 1}


@pytest.mark.parametrize(
    ("one", "other"), [("0.0", "-0.0"), ("3.0", "3.0000003"), ('"inf"', '"-inf"')]
)
def test_kernels_of_other_constants_are_others(
    cache: Cache, kernel: Callable[..., Any], one: str, other: str
) -> None:
    found = [
        run(kernel(f"    A[i] = T.float32({constant})\n"), cache).tobytes()
        for constant in (one, other, one)
    ]
    assert found[0] == found[2] != found[1]


def test_the_schedule_is_not_part_of_the_code_but_numerics_and_the_processor_are(
    cache: Cache, kernel: Callable[..., Any]
) -> None:
    program = kernel(SCALE.format(factor=3))
    run(program, cache)
    before = kinds(cache)
    run(program, cache, schedule="random:3")
    assert kinds(cache) == before
    run(program, cache, numerics="exact")
    assert kinds(cache)["kernel"] == before["kernel"] + 1
    with driver.session(driver.Defaults(cpu="x86-64")):
        run(program, cache)
    assert kinds(cache)["kernel"] == before["kernel"] + 2


# Lane 31 reads beyond the tensor.
FAULT = "    A[i] = A[i + 1]\n"


def test_a_fault_is_shown_where_the_line_is_now(
    cache: Cache, kernel: Callable[..., Any], no_compiler: Callable[[], None]
) -> None:
    for lines in ("", "\n\n# moved down\n\n"):
        program = kernel(FAULT, lines)
        with pytest.raises(MemoryFault) as caught:
            run(program, cache)
        location = caught.value.location
        assert location is not None
        assert location.source_line() == FAULT.rstrip("\n")
        assert location.line == 7 + lines.count("\n")
        assert Path(location.file).read_text().splitlines()[location.line - 1] in FAULT
        no_compiler()


def test_statements_of_one_line_and_of_several_are_told_apart(
    cache: Cache, kernel: Callable[..., Any]
) -> None:
    """The kernels are equal but for their lines: lane 31 writes beyond the tensor in the second."""
    store = "A[i + {}] = T.float32(1)\n"
    repeated = f"    for j in [*range(2)]:\n        {store.format('j')}"
    apart = f"    {store.format(0)}\n\n    {store.format(1)}"
    programs = [kernel(repeated), kernel(apart)]
    texts = {str(tilewright.compile(each, backend="sim").ir) for each in programs}
    assert len(texts) == 1
    for each, line in zip(programs, (8, 10), strict=True):
        with pytest.raises(MemoryFault) as caught:
            run(each, cache)
        assert caught.value.location is not None
        assert caught.value.location.line == line


def test_what_a_kernel_prints_is_printed(
    cache: Cache,
    kernel: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    no_compiler: Callable[[], None],
) -> None:
    program = kernel('    if i == 5:\n        T.cuda.printf("%d: %f\\n", i, A[i])\n')
    for _ in range(2):
        run(program, cache)
        assert capsys.readouterr().out == "5: 5.000000\n"
        no_compiler()


@pytest.mark.parametrize("kind", ["kernel", "native"])
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: pickle.dumps(data)])
def test_a_damaged_entry_is_made_again(
    cache: Cache,
    kernel: Callable[..., Any],
    kind: str,
    damage: Callable[[bytes], bytes],
) -> None:
    program = kernel(SCALE.format(factor=3))
    run(program, cache)
    before = kinds(cache)
    for entry in cache.entries():
        if kind == "native" or entry.kind == kind:
            entry.path.write_bytes(damage(entry.path.read_bytes()))
    np.testing.assert_array_equal(run(program, cache), np.arange(32) * 3)
    assert kinds(cache) == before


# ---------------------------------------------------------------------------- cubins


def test_a_cubin_is_compiled_once(
    cache: Cache, kernel: Callable[..., Any], no_compiler: Callable[[], None]
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")

    def made() -> tuple[bytes, str, Any]:
        program = kernel(SCALE.format(factor=3))
        executable = tilewright.compile(program, "sm_90a", "sim", cache=str(cache.folder))
        return executable.cubin(), executable.ptx(), executable.resources

    first = made()
    assert kinds(cache) == {"cubin": 1}
    no_compiler()
    assert made() == first
    with pytest.raises(AssertionError, match="to be found"):
        tilewright.compile(
            kernel(SCALE.format(factor=3)), "sm_80", "sim", cache=str(cache.folder)
        ).cubin()


def test_what_nvrtc_refuses_is_not_kept(cache: Cache) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    for _ in range(2):
        with pytest.raises(CompilerBug):
            nvrtc.build("no program", target("sm_90"), "k", cache)
    assert not kinds(cache)


# ---------------------------------------------------------------------------- the choice of it


def test_off_is_nowhere(cache: Cache, kernel: Callable[..., Any]) -> None:
    values = np.arange(32, dtype=np.float32)
    with driver.session(driver.Defaults(cache="off")):
        tilewright.compile(kernel(SCALE.format(factor=3)), cache=str(cache.folder))(values)
    assert values[2] == 6 and not cache.folder.exists()


PROGRAM = """
import numpy as np
import tilewright
from tilewright import simt as T

@T.function
def k(A: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    A[T.cuda.lane_id()] = A[T.cuda.lane_id()] * T.float32(2)

for _ in range(2):
    values = np.ones(32, np.float32)
    tilewright.compile(k, backend="sim")(values)
    assert values[0] == 2
"""


def program(
    tmp_path: Path, place: str, *options: str, command: str = "run"
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    words = [sys.executable, "-m", "tilewright", command, *options]
    return subprocess.run(
        [*words, str(path)] if command == "run" else words,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TILEWRIGHT_CACHE": place},
    )


def test_an_unsafe_folder_is_told_of_once_and_not_used(tmp_path: Path) -> None:
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    done = program(tmp_path, str(unsafe))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is not used as a cache") == 1
    assert not list(unsafe.iterdir())


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = program(tmp_path, str(tmp_path / "file" / "cache"))
    assert done.returncode == 0
    assert done.stderr.count("cache") == 2 and "it cannot be made (Not a directory)" in done.stderr


@pytest.mark.parametrize("action", [(), ("clear",)])
def test_the_command_says_which_folder_cannot_be_used_and_why(
    tmp_path: Path, action: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "cache")
    done = program(tmp_path, place, *action, command="cache")
    assert done.returncode == 1 and f"{place} is not used" in done.stderr
    assert "Not a directory" in done.stderr


def test_the_command_says_what_it_could_not_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = Cache(tmp_path)
    for number in range(3):
        cache.put("native", str(number), b"code")

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert cli.main(["cache", "clear", "--cache", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("0 entries removed")
    assert "3 could not be removed" in said.err and "Operation not permitted" in said.err


def test_the_command_line_goes_before_the_environment(tmp_path: Path) -> None:
    done = program(tmp_path, str(tmp_path / "unused"), "--cache", str(tmp_path / "used"))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "unused").exists()
    assert kinds(Cache(tmp_path / "used"))["kernel"] == 1


def test_the_command_shows_and_clears_the_cache(tmp_path: Path) -> None:
    place = str(tmp_path / "cache")
    assert program(tmp_path, place).returncode == 0
    count = sum(kinds(Cache(tmp_path / "cache")).values())
    shown = program(tmp_path, place, command="cache").stdout
    assert place in shown and f"in {count} entries" in shown and "1.0 GiB" in shown
    assert {line.split()[0] for line in shown.splitlines() if line} >= {"kernel", "native"}
    assert "\x1b" not in shown
    cleared = program(tmp_path, place, "clear", command="cache").stdout
    assert cleared.startswith(f"{count} entries removed")
    assert "0 bytes in 0 entries" in program(tmp_path, place, command="cache").stdout


def test_there_may_be_no_cache_to_show(tmp_path: Path) -> None:
    done = program(tmp_path, "off", command="cache")
    assert done.returncode == 0 and "no cache: it is off" in done.stderr
