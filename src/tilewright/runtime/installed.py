"""What of the things that Tilewright uses is installed here, and what each is good for.

May import `base`, `sim` and the rest of `runtime`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from tilewright.base.errors import CompilerBug, TargetError
from tilewright.base.targets import known_targets, target
from tilewright.runtime import nvdisasm, nvrtc
from tilewright.runtime.cuda_driver import find_gpu
from tilewright.runtime.progress import shown
from tilewright.sim.engine import jit

_NOTHING = 'extern "C" __global__ void nothing() {}\n'
# Packages that are there or not, and what for.
_PACKAGES = (
    ("numpy", "arguments"),
    ("ml_dtypes", "bfloat16 and numbers of 8 bits and less"),
    ("llvmlite", "the simulator"),
    ("rich", "tables on a terminal"),
    ("cuda-bindings", "CUDA's compiler and driver"),
    ("nvidia-cuda-nvrtc", "the compiler to cubins"),
    ("torch", "programs that use it; not needed"),
)


@dataclass(frozen=True)
class Found:
    """Something that is there, with its version or its name, or that is not (`None`)."""

    name: str
    version: str | None
    use: str


def installed() -> Iterator[Found]:
    """List what is installed, and what is not."""
    yield Found("Python", f"{platform.python_version()}, {platform.system()}", "")
    for name, use in _PACKAGES:
        yield Found(name, _version(name), use)
    where = jit.host()
    yield Found(
        "LLVM", jit.version().partition(" LLVM ")[2], f"code for this processor, {where.cpu}"
    )
    yield Found("NVRTC", _nvrtc_version(), "the compiler's library itself")
    yield Found("nvdisasm", nvdisasm.find(), "the instructions of a cubin; not needed")
    gpu = find_gpu()
    name = "none" if gpu is None else f"{gpu.name}, for {gpu.target or 'no known target'}"
    yield Found("GPU", name, "runs kernels; the simulator needs none")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _nvrtc_version() -> str | None:
    try:
        return ".".join(map(str, nvrtc.version()))
    except TargetError:
        return None


def tried_targets() -> Iterator[tuple[str, str]]:
    """Compile a kernel for each target; say which chip the target is for, and what came of it."""
    names = known_targets()
    with shown("compiling for each target") as report:
        for number, name in enumerate(names):
            report(number, len(names))
            yield f"{name} ({target(name).chip})", _tried(name)


def _tried(name: str) -> str:
    try:
        nvrtc.build(_NOTHING, target(name), "nothing")
    except TargetError as error:
        return f"not tried: {error.message}"
    except CompilerBug as error:
        return f"NVRTC refuses it: {' '.join(error.notes).strip()}"
    return "compiles"
