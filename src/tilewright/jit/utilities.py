"""What programs of the tile dialect find beside it: numbers, seeds, the chip's properties.

May import everything up to `driver`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import driver
from tilewright.base.lazy import loaded, optional
from tilewright.base.targets import DEFAULT_ORDER, requested_arch
from tilewright.base.targets import target as target_named
from tilewright.frontend.math import ceildiv
from tilewright.frontend.unsupported import Unsupported
from tilewright.runtime.cuda_driver import find_gpu

cdiv = ceildiv
# What proposes sizes of tiles for a chip; programs name it where they may tune.
carver = Unsupported(
    "tilelang.carver",
    "proposals of tile sizes are not there yet",
    "tilelang.autotune(configs=[…]) tries those that it is given",
)


def next_power_of_2(value: int) -> int:
    """Give the least power of two that is not smaller."""
    return 1 << max(int(value) - 1, 0).bit_length()


def set_random_seed(seed: int = 42) -> None:
    """Seed the random numbers of Python, NumPy and, if it is loaded, PyTorch."""
    random.seed(seed)
    np.random.seed(seed)
    torch = loaded("torch")
    if torch is not None:
        torch.manual_seed(seed)


def main() -> None:
    """Run the tests of the file that is being run."""
    pytest: Any = optional("pytest", extra="test", purpose="run tests")
    sys.exit(pytest.main([sys.argv[0], *sys.argv[1:]]))


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    """Leave a test as it is: what it asks for, the simulator has."""
    return function if callable(function) else _as_it_is


requires_cuda: Callable[..., Any] = _as_it_is
requires_cuda_compute_version: Callable[..., Any] = _as_it_is
requires_cuda_compute_version_ge: Callable[..., Any] = _as_it_is
requires_cuda_compute_version_eq: Callable[..., Any] = _as_it_is


def chip() -> Any:
    """Describe the chip that programs are run for: the GPU's, or that of the session's target."""
    gpu = find_gpu()
    own = None if gpu is None else gpu.target
    asked = requested_arch(driver.defaults().target)
    if asked is not None or own is None:
        return target_named(asked or DEFAULT_ORDER[0])
    return own


def get_target_compute_version(target: Any = None) -> str:
    """Give the capability of the chip that programs are run for, as "9.0"."""
    major, minor = divmod(chip().capability, 10)
    return f"{major}.{minor}"


def get_num_sms(device_id: int = 0) -> int:
    """Count the multiprocessors of the chip that programs are run for."""
    return chip().multiprocessors


def get_shared_memory_per_block(device_id: int = 0, format: str = "bytes") -> int:
    """Give the shared memory that a CTA may have, in "bytes", "kb" or "mb"."""
    return chip().shared_bytes // {"bytes": 1, "kb": 1 << 10, "mb": 1 << 20}[format]


def simplify_prim_func(function: Any) -> Any:
    """Leave a function as it is: it is simplified when it is compiled."""
    return function


def determine_fp8_type(fp8_format: str = "e4m3") -> str:
    """Name the 8-bit float of NVIDIA's chips."""
    return {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[fp8_format]


def determine_torch_fp8_type(fp8_format: str = "e4m3") -> Any:
    """Give PyTorch's type for the 8-bit float of NVIDIA's chips."""
    torch: Any = loaded("torch")
    return getattr(torch, determine_fp8_type(fp8_format))
