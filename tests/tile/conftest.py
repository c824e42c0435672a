"""Let the tests of this folder use what helps them, and hold the simulator against a GPU.

pytest tests/tile --on-gpu: what has run on the simulator, with exact numerics, runs on the GPU too,
and all arrays must be the same, byte by byte.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import driver
from tilewright.runtime.cuda_driver import require_gpu

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def on_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Repeat what the simulator does on the GPU, if that is asked for."""
    if not request.config.getoption("--on-gpu") or "without_gpu" in request.fixturenames:
        yield
        return
    generation = require_gpu().capability // 10
    call = tilewright.Executable.__call__

    def call_twice(executable: tilewright.Executable, *arguments: Any, **named: Any) -> None:
        is_simulated = executable.backend == "sim"
        # Exact numerics are those of the target's chips.
        is_of_it = executable.target.capability // 10 == generation
        is_plain = all(isinstance(each, np.ndarray | np.generic | float) for each in arguments)
        again = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
        call(executable, *arguments, **named)
        if is_simulated and is_of_it and is_plain and not named:
            with driver.session(driver.Defaults()):
                call(tilewright.compile(executable.program, backend="gpu"), *again)
            for simulated, computed in zip(arguments, again, strict=True):
                if isinstance(simulated, np.ndarray):
                    assert simulated.tobytes() == computed.tobytes(), "the GPU has other bytes"

    monkeypatch.setattr(tilewright.Executable, "__call__", call_twice)
    with driver.session(replace(driver.defaults(), numerics="exact")):
        yield
