"""What goes wrong on a GPU: what is said of it, and where."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_gpu import FakeDriver, FakeTorch, launcher, refused, scale, sized, vector

import tilewright
from tilewright import simt
from tilewright.base import lazy
from tilewright.base.errors import LaunchError
from tilewright.runtime import cuda_driver
from tilewright.runtime.cuda_driver import find_gpu

T: Any = simt


@pytest.fixture
def fake() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    made = FakeTorch()
    monkeypatch.setattr(lazy, "loaded", {"torch": made}.get)
    return made


# ---------------------------------------------------------------------------- launches


@pytest.mark.parametrize("status", [1, 701, 720, 912])
def test_a_launch_that_is_too_large_does_not_lose_the_context(
    fake: FakeDriver, torch: FakeTorch, status: int
) -> None:
    fake.statuses = [status]
    error = refused(launcher(fake, scale), vector(4), vector(4), 1.0)
    assert error.code == "launch-shape" and "grid (1, 1, 1)" in (error.found or "")
    assert "lost" not in str(error)


@pytest.mark.parametrize("status", [700, 716, 719, 721])
def test_a_fault_that_a_later_launch_meets_is_not_said_to_be_its_own(
    fake: FakeDriver, torch: FakeTorch, status: int
) -> None:
    gpu = fake.gpu()
    fake.gpu = lambda ordinal=0: gpu  # type: ignore[method-assign]
    launcher(fake, sized).launch((vector(64, np.int32), 1))
    launch = launcher(fake, scale)
    launch.launch((vector(4), vector(4), 1.0))
    fake.statuses = [status]
    error = refused(launch, vector(4), vector(4), 1.0)
    text = str(error)
    assert error.code == "gpu-fault" and "need not be at fault" in text
    possible = next(note for note in error.notes if "any launch" in note)
    assert "sized" in possible and "scale" in possible and "test_gpu.py:" in possible
    assert "start the program anew" in (error.hint or "")
    assert "CUDA_LAUNCH_BLOCKING=1" in (error.hint or "")


def test_a_fault_in_a_call_that_waits_is_told_at_its_kernel(fake: FakeDriver) -> None:
    a, out = np.zeros(4, np.float32), np.zeros(4, np.float32)
    fake.pending = [0, 0, 719]  # two copies in, then the kernel
    error = refused(launcher(fake, scale), a, out, 1.0)
    assert error.code == "gpu-fault" and error.message.startswith("scale_kernel failed")
    assert error.location is not None and "LaunchConfig" in (error.location.excerpt() or "")
    assert 'backend="sim"' in (error.hint or "") and "anew" in (error.hint or "")


# ---------------------------------------------------------------------------- forks


def in_a_child(run: Callable[[], str]) -> str:
    """Give what a function says in a process that is forked from this one."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            sending.send(run())
        except BaseException as error:
            sending.send(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    said = receiving.recv() if receiving.poll(60) else "nothing"
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_child_is_told_that_it_has_no_gpu(fake: FakeDriver, torch: FakeTorch) -> None:
    gpu = fake.gpu()
    fake.gpu = lambda ordinal=0: gpu  # type: ignore[method-assign]
    launch, a, out = launcher(fake, scale), vector(4), vector(4)
    host = np.zeros(4, np.float32)
    for _ in range(3):
        launch.launch((a, out, 1.0))
    for arguments in ((a, out, 1.0), (host, host.copy(), 1.0)):

        def run(arguments: Any = arguments) -> str:
            launched = len(fake.launches)
            try:
                launch.launch(arguments)
            except LaunchError as error:
                return f"{error.code} {len(fake.launches) - launched} {error.hint}"
            return "launched"

        said = in_a_child(run)
        assert said.startswith("gpu-fork 0 ") and "spawn" in said
    launch.launch((a, out, 1.0))
    assert len(fake.launches) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_child_of_a_process_that_used_cuda_does_not_find_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As another package may have initialised CUDA, of which only the driver knows.
    api = SimpleNamespace(cuInit=lambda flags: (3,))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    monkeypatch.setattr(cuda_driver, "optional", lambda *_, **__: api)
    find = cuda_driver.find_gpu.__wrapped__
    assert find() is None
    assert "gpu-fork" in in_a_child(lambda: str(find()))


# ---------------------------------------------------------------------------- the end

PROGRAM = """
import sys
from test_gpu import FakeDriver, launcher, scale
import numpy as np
fake = FakeDriver()
gpu = fake.gpu()
fake.gpu = lambda ordinal=0: gpu
a = np.ones(4, np.float32)
launcher(fake, scale).launch((a, a, 1.0))
fake.pending = {pending}
"""


def run(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(tilewright.__file__).parent.parent)
    environment |= {"TILEWRIGHT_CACHE": "off", "PYTHONPATH": source}
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("pending", [[700], [600, 600, 716]])
def test_a_fault_that_nothing_waited_for_is_told_at_the_end(pending: list[int]) -> None:
    ended = run(PROGRAM.format(pending=pending))
    assert ended.returncode == 0
    assert f"CUDA_ERROR_{pending[-1]}" in ended.stderr
    assert "scale_kernel (" in ended.stderr and "gpu-fault" in ended.stderr


def test_a_fault_is_told_once() -> None:
    later = "fake.statuses = [700]\nlauncher(fake, scale).launch((a, a, 1.0))"
    ended = run(PROGRAM.format(pending=[0, 0, 700, 700]) + later)
    assert ended.returncode == 1 and ended.stderr.count("CUDA_ERROR_700: ") == 1


@pytest.mark.parametrize("pending", [[], [600, 0], [1]])
def test_an_end_without_a_fault_is_silent(pending: list[int]) -> None:
    ended = run(PROGRAM.format(pending=pending))
    assert (ended.returncode, ended.stderr) == (0, "")


# ---------------------------------------------------------------------------- a real GPU

needs_gpu = pytest.mark.skipif(find_gpu() is None, reason="there is no GPU")


@T.function
def scattered(Out: T.Tensor((64,), "float32"), far: T.int64):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    Out[T.cuda.lane_id() + T.int32(far)] = T.float32(1)


@T.function
def together(Out: T.Tensor((64,), "float32"), blocks: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=blocks, block=1024, cooperative=True))
    if T.cuda.block_idx("x") == 0 and T.cuda.thread_idx("x") < 64:
        Out[T.cuda.thread_idx("x")] = T.float32(1)


@needs_gpu
def test_a_real_cooperative_grid_that_is_too_large_leaves_the_gpu_usable() -> None:
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(together, backend="gpu")
    out = torch.zeros(64, device="cuda")
    with pytest.raises(LaunchError) as caught:
        ex(out, 1_000_000)
    assert caught.value.code == "launch-shape"
    ex(out, 1)
    assert out.tolist() == [1.0] * 64


# A real fault loses the context: each has a process of its own.
FAULT = """
import numpy as np, sys, tilewright
from test_gpu_faults import scattered
ex = tilewright.compile(scattered, backend="gpu")
"""
IN_NUMPY = FAULT + "ex(np.zeros(64, np.float32), 2**30)"
IN_TORCH = (
    FAULT
    + """
import torch
out = torch.zeros(64, device="cuda")
ex(out, 2**30)
"""
)
LATER = IN_TORCH + "import time; time.sleep(1); ex(out, 0)"


@needs_gpu
@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        (IN_NUMPY, {}, "scattered_kernel failed while it ran"),
        (LATER, {}, "need not be at fault"),
        (IN_TORCH, {"CUDA_LAUNCH_BLOCKING": "1"}, "a kernel failed while it ran"),
        (IN_TORCH, {}, "cannot finish its work: a kernel failed"),
    ],
    ids=["NumPy", "later", "blocking", "at the end"],
)
def test_a_real_fault_is_told(text: str, environment: dict[str, str], said: str) -> None:
    if text is not IN_NUMPY:
        pytest.importorskip("torch")
    ended = run(text, **environment)
    assert said in ended.stderr and "gpu-fault" in ended.stderr
    assert "test_gpu_faults.py" in ended.stderr


@needs_gpu
def test_a_real_child_is_told_that_it_has_no_gpu() -> None:
    torch = pytest.importorskip("torch")
    ex = tilewright.compile(scale, backend="gpu")
    a, out = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    host = np.ones(64, np.float32)
    for _ in range(3):
        ex(a, out, 2.0)
    torch.cuda.synchronize()
    for arguments in ((a, out, 2.0), (host, host.copy(), 2.0)):
        assert "gpu-fork" in in_a_child(lambda arguments=arguments: str(ex(*arguments)))
    ex(a, out, 3.0)
    assert torch.equal(out, a * 3)
