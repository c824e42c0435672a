"""What all tests share: the seed programs, and the processor that the simulator makes code for.

pytest --cpu x86-64-v2
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright import driver

ROOT = Path(__file__).parent.parent
SEEDS = ROOT.parent / "shared" / "seeds"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", default=None, help="LLVM's name of the processor to make code for")


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
