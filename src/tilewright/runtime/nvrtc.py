"""CUDA C++ to PTX and cubins by NVRTC: no toolkit, driver or GPU is needed.

May import `base`. NVRTC comes with the extra `cuda` of this package and is loaded when it is
first used; any number of threads may ask for it, and it serves one at a time.

    cubin = build(source, target("sm_90a"), "kernel").cubin
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright.base.errors import CompilerBug, TargetError
from tilewright.base.forks import held_over_forks
from tilewright.base.lazy import optional
from tilewright.base.store import NOWHERE, Store, packed, unpacked
from tilewright.base.targets import Target
from tilewright.runtime.progress import shown

_KIND = "cubin"
# `-fmad=false`: what is contracted is decided in the IR. Flushing, fast division and fast square
# roots stay off. Unused pieces of the prelude are no news.
_OPTIONS = (
    "-std=c++17",
    "-fmad=false",
    "-device-int128",
    "-diag-suppress=177,186,550",
    "--ptxas-options=-v",
)
_EXCERPT = 3
# NVRTC has such a lock itself: two compilations at a time take as long as one after the other.
_lock = held_over_forks(threading.RLock())
# What ptxas says of an instruction or modifier that the target lacks.
_NOT_ON_TARGET = re.compile(
    r"not supported on \.target|requires \.target|requires .*\bsm_\d+|not supported .* target"
)
_SOURCE_LINE = re.compile(r"^[^\s(]+\((\d+)\): error", re.MULTILINE)
_PTX_LINE = re.compile(r"ptx input, line (\d+); (?:error|fatal)")


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """What ptxas reports of a kernel: registers per thread, and bytes per thread or CTA."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int
    barriers: int


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled translation unit: the cubin, the PTX it was made of, and the tools' log."""

    cubin: bytes
    ptx: str
    log: str

    @property
    def usage(self) -> dict[str, KernelUsage]:
        """Give what each kernel takes, by its name."""
        return read_usage(self.log)

    @property
    def warnings(self) -> tuple[str, ...]:
        """List the lines of the log that are not ptxas' account of resources."""
        return tuple(line for line in self.log.splitlines() if _is_news(line))


def build(source: str, target: Target, name: str, store: Store = NOWHERE) -> Build:
    """Compile CUDA C++ for exactly that target, or find in `store` what was made of it.

    `name` names the translation unit in messages. Raises `TargetError` if NVRTC is absent
    (`missing-tool`) or the target lacks an instruction (`missing-instruction`), `CompilerBug`
    with the log and the lines it names if NVRTC refuses the source.
    """
    major, minor = version()
    recipe = "\n".join([f"NVRTC {major}.{minor}", target.arch, *_OPTIONS, name, source])
    data = store.get(_KIND, recipe)
    if data is not None:
        _, (cubin, ptx, log) = unpacked(data)
        return Build(cubin, ptx.decode(), log.decode())
    with _lock, shown(f"NVRTC compiles {name} for {target}"):
        built = _build(_nvrtc(), source, target, name)
    blobs = (built.cubin, built.ptx.encode(), built.log.encode())
    store.put(_KIND, recipe, packed({}, blobs))
    return built


def _build(nvrtc: Any, source: str, target: Target, name: str) -> Build:
    program = _checked(
        nvrtc,
        nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []),
    )[0]
    try:
        options = [option.encode() for option in (f"-arch={target.arch}", *_OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            ptx = _partial_ptx(nvrtc, program)
            raise _refusal(source, ptx, log, target, name, status)
        cubin = _bytes(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        ptx = _text(nvrtc, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        return Build(cubin, ptx, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def version() -> tuple[int, int]:
    """Give the version of NVRTC; raises as `build` does where it is absent."""
    nvrtc = _nvrtc()
    major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    return int(major), int(minor)


# ---------------------------------------------------------------------------- the library


@cache
def _nvrtc() -> Any:
    module = optional("cuda.bindings.nvrtc", extra="cuda", purpose="compile for the GPU")
    try:
        module.nvrtcVersion()
    except Exception as error:
        # The bindings load the library at the first call, and raise errors of their own.
        raise TargetError(
            "the library NVRTC is needed to compile for the GPU",
            code="missing-tool",
            found=f"{type(error).__name__}: {error}",
            hint="pip install 'tilewright[cuda]'",
        ) from error
    return module


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompilerBug(f"NVRTC failed: {status.name}", code="compiler-bug")
    return tuple(values)


def _bytes(nvrtc: Any, size_of: Any, read: Any, program: Any) -> bytes:
    (size,) = _checked(nvrtc, size_of(program))
    # NVRTC writes in place. Python shares all byte strings of one byte, so that only one which
    # already holds the terminator may be given for an empty text.
    data = bytes(size)
    _checked(nvrtc, read(program, data))
    return data


def _text(nvrtc: Any, size_of: Any, read: Any, program: Any) -> str:
    return _bytes(nvrtc, size_of, read, program).decode(errors="replace").rstrip("\0 \n")


# ---------------------------------------------------------------------------- what went wrong


def _partial_ptx(nvrtc: Any, program: Any) -> str:
    """Give the PTX that ptxas refused, if compiling has come that far."""
    try:
        return _text(nvrtc, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    except CompilerBug:
        return ""


def _refusal(
    source: str, ptx: str, log: str, target: Target, name: str, status: Any
) -> CompilerBug | TargetError:
    if _NOT_ON_TARGET.search(log):
        return TargetError(
            f"the assembler refuses {name} for {target}",
            code="missing-instruction",
            found=next(line for line in log.splitlines() if _NOT_ON_TARGET.search(line)).strip(),
        )
    excerpts = [excerpt(source, int(line)) for line in _SOURCE_LINE.findall(log)]
    excerpts += [excerpt(ptx, int(line)) for line in _PTX_LINE.findall(log) if ptx]
    return CompilerBug(
        f"NVRTC refuses the source of {name} for {target}: {status.name}",
        code="compiler-bug",
        notes=(log, *dict.fromkeys(excerpts)),
    )


def excerpt(text: str, line: int) -> str:
    """Show numbered lines of a text around a 1-based line, which is marked."""
    lines = text.splitlines()
    first = max(line - _EXCERPT, 1)
    return "\n".join(
        f"{'>' if number == line else ' '}{number:>5} | {lines[number - 1]}"
        for number in range(first, min(line + _EXCERPT, len(lines)) + 1)
    )


# ---------------------------------------------------------------------------- the log

_PROPERTIES = re.compile(
    r"Function properties for (?P<name>\S+)\n"
    r"[^\n]*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\n"
    r"[^\n]*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)"
)


def read_usage(log: str) -> dict[str, KernelUsage]:
    """Read what each kernel takes out of ptxas' verbose log."""
    return {
        match["name"]: KernelUsage(
            registers=int(match["registers"]),
            stack_bytes=int(match["stack"]),
            spill_store_bytes=int(match["stores"]),
            spill_load_bytes=int(match["loads"]),
            static_shared_bytes=_amount(r"(\d+) bytes smem", match["rest"]),
            barriers=_amount(r"used (\d+) barriers", match["rest"]),
        )
        for match in _PROPERTIES.finditer(log)
    }


def _amount(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _is_news(line: str) -> bool:
    if not line.strip() or line.startswith("ptxas         ."):
        return False
    return not re.match(
        r"ptxas info\s*: (\d+ bytes gmem|Compiling|Function prop|Used|Compile time)",
        line,
    )
