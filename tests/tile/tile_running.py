"""What the tests of element-wise work share: values, and runs under the checker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.base.errors import TargetError
from tilewright.base.targets import target
from tilewright.passes.pipeline import stages
from tilewright.runtime import nvrtc

TARGETS = ("sm_80", "sm_90a", "sm_100a")


def integers(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Give small integers, whose sums and products floats hold exactly."""
    return np.random.default_rng(seed).integers(-20, 21, shape).astype(dtype)


def run(kernel: Any, *arrays: np.ndarray | np.generic, arch: str = "sm_90a") -> Any:
    """Run a kernel under the checker, which must find nothing."""
    executable = tilewright.compile(kernel, target=arch, backend="sim", check=True)
    executable(*arrays)
    return executable


def lowered(kernel: Any, arch: str = "sm_90a") -> str:
    """Print what the statements about tiles have become."""
    return str(stages(kernel.program, target(arch))["lower_operations"])


def builds(kernel: Any, *archs: str) -> None:
    """Build cubins, where there is NVRTC."""
    try:
        nvrtc.version()
    except TargetError as error:
        pytest.skip(str(error))
    for arch in archs:
        executable = tilewright.compile(kernel, target=arch, backend="sim")
        assert executable.cubin().startswith(b"\x7fELF")
