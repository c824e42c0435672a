"""Cubins as text: the instructions of the chip (SASS), by NVIDIA's `nvdisasm`.

May import `base`. It comes in a wheel of its own, and with every CUDA toolkit.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tilewright.base.errors import CompilerBug, TargetError
from tilewright.base.lazy import optional

_NAME = "nvdisasm"
_WHEEL = "nvidia-cuda-nvdisasm"


def find() -> str | None:
    """Find the program: among Python's packages, in a toolkit, or where the shell finds it."""
    try:
        finder = optional("cuda.pathfinder", extra="cuda", purpose=f"find {_NAME}")
        found = finder.find_nvidia_binary_utility(_NAME)
    except (TargetError, AttributeError, RuntimeError):
        found = None  # not installed, or a version that finds libraries only
    return found or shutil.which(_NAME)


def disassemble(cubin: bytes) -> str:
    """Write the instructions of a cubin as text.

    Raises `TargetError` (`missing-tool`) where the program is not installed.
    """
    program = find()
    if program is None:
        raise TargetError(
            f"{_NAME} is needed to show the instructions of a cubin",
            code="missing-tool",
            found="it is neither among Python's packages nor on the path",
            hint=f"pip install {_WHEEL}",
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([program, "-c", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise CompilerBug(f"{_NAME} refuses a cubin", code="compiler-bug", notes=(done.stderr,))
    return done.stdout
