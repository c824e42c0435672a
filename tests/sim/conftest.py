"""Let the tests of the simulator use what helpers make: random kernels, kernels over arrays."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def _processor(request: pytest.FixtureRequest) -> None:
    import elementwise

    elementwise.cpu = request.config.getoption("--cpu")
