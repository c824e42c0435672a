"""What all tests share: the seed programs, and the processor that the simulator makes code for.

pytest --cpu x86-64-v2
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright import driver
from tilewright.jit import profiler, utilities
from tilewright.runtime import cuda_driver

ROOT = Path(__file__).parent.parent
SEEDS = ROOT.parent / "shared" / "seeds"
# Tests of several folders share helpers that lie beside this file.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", default=None, help="LLVM's name of the processor to make code for")
    parser.addoption(
        "--on-gpu", action="store_true", help="run kernels of tests/tile on the GPU, too"
    )
    parser.addoption(
        "--mutants", default="some", choices=("some", "all"), help="how many faults to try"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let all processes of a run share a compile cache of their own, which begins empty."""
    # A run in the background begins with interrupts ignored, and would hand that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        os.environ["TILEWRIGHT_CACHE"] = tempfile.mkdtemp(prefix="tilewright-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["TILEWRIGHT_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def processor(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let every compile of the session make code for the processor that was asked for."""
    with driver.session(driver.Defaults(cpu=request.config.getoption("--cpu"))):
        yield


@pytest.fixture
def seed() -> Path:
    """Give the folder of the seed programs; skip where they are not laid out."""
    if not SEEDS.is_dir():
        pytest.skip("the seed programs are not here")
    return SEEDS


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver find no GPU, whatever the machine has."""
    for module in (cuda_driver, driver, profiler, utilities):
        monkeypatch.setattr(module, "find_gpu", lambda ordinal=0: None)
