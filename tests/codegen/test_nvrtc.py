"""NVRTC: what it makes, what it says, and how its refusals are told."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from lowered import require_nvrtc

from tilewright import driver
from tilewright.base.errors import CompilerBug, TargetError
from tilewright.base.targets import target
from tilewright.codegen import kernel_symbols
from tilewright.driver import Executable
from tilewright.frontend import parse_function
from tilewright.runtime import nvrtc
from tilewright.runtime.nvrtc import (
    KernelUsage,
    build,
    excerpt,
    read_usage,
)

SOURCE = """\
extern "C" __global__ void twice(float *x) {
  x[threadIdx.x] = x[threadIdx.x] * 2.0f;
}
"""
LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 1024 bytes smem
ptxas info    : Compile time = 1.136 ms
"""


@pytest.fixture(autouse=True)
def _nvrtc() -> None:
    require_nvrtc()


def test_cubin_and_ptx() -> None:
    assert build(SOURCE, target("sm_90a"), "twice").cubin.startswith(b"\x7fELF")
    ptx = build(SOURCE, target("sm_80"), "twice").ptx
    assert ".target sm_80" in ptx and ".entry twice" in ptx


def test_an_empty_text_does_not_overwrite_the_interpreters_byte_strings() -> None:
    # NVRTC writes into byte strings in place, and Python shares those of one byte.
    success = SimpleNamespace(name="NVRTC_SUCCESS")
    fake = SimpleNamespace(nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=success))

    def read(program: object, data: Any) -> tuple[object]:
        ctypes.memmove(data, b"\0", 1)
        return (success,)

    assert nvrtc._text(fake, lambda program: (success, 1), read, None) == ""
    assert [bytes([value])[0] for value in range(256)] == list(range(256))


def test_usage() -> None:
    assert read_usage(LOG) == {"k": KernelUsage(40, 16, 4, 8, 1024, 2)}
    usage = build(SOURCE, target("sm_100a"), "twice").usage["twice"]
    assert usage.registers > 0 and usage.spill_store_bytes == 0


def test_products_are_not_contracted() -> None:
    source = 'extern "C" __global__ void k(float *x) { x[0] = x[1] * x[2] + x[3]; }'
    assert "fma" not in build(source, target("sm_90a"), "k").ptx


def test_a_fault_shows_the_log_and_the_line() -> None:
    with pytest.raises(CompilerBug) as raised:
        build(SOURCE.replace("* 2.0f", "* y"), target("sm_80"), "twice")
    assert 'identifier "y" is undefined' in str(raised.value)
    assert ">    2 |   x[threadIdx.x] = x[threadIdx.x] * y;" in str(raised.value)


def test_a_fault_in_assembly() -> None:
    source = 'extern "C" __global__ void k() { asm volatile("nonsense.u32 1;"); }'
    with pytest.raises(CompilerBug, match="Not a name of any known instruction"):
        build(source, target("sm_80"), "k")


@pytest.mark.parametrize(
    ("instruction", "arch"),
    [
        ("fence.mbarrier_init.release.cluster;", "sm_80"),
        ("tcgen05.fence::before_thread_sync;", "sm_90a"),
        ("wgmma.fence.sync.aligned;", "sm_90"),
    ],
)
def test_an_instruction_that_the_target_lacks(instruction: str, arch: str) -> None:
    source = f'extern "C" __global__ void k() {{ asm volatile("{instruction}"); }}'
    with pytest.raises(TargetError) as raised:
        build(source, target(arch), "k")
    assert raised.value.code == "missing-instruction"


def test_threads() -> None:
    def compiled(_: int) -> bytes:
        return build(SOURCE, target("sm_80"), "twice").cubin

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(compiled, range(12)))
    assert len(set(made)) == 1


def test_warnings_leave_the_account_of_resources_out() -> None:
    assert build(SOURCE, target("sm_80"), "twice").warnings == ()


def test_excerpt() -> None:
    assert excerpt("a\nb\nc", 3) == "     1 | a\n     2 | b\n>    3 | c"


NAMES = ["ядро", "größe", "π2", "k__x", "__init", "int_", "double", "printf", "_"]


def named(*names: str) -> Executable:
    """Compile a program of kernels that have these names."""
    text = "from tilewright import simt as T\n@T.function\n"
    text += 'def ядро(Ö: T.Tensor((32,), "int32")):\n'
    for number, name in enumerate(names):
        text += "    with T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32)):\n"
        text += f'        T.func_attr({{"name": "{name}"}})\n'
        text += f"        ß = T.cuda.lane_id() + {number}\n"
        text += "        Ö[ß - ß] = 1\n"
    return driver.compile(parse_function(text), target="sm_90a", backend="sim")


@pytest.mark.parametrize("names", [*[(each,) for each in NAMES], ("яя", "юю", "__", "kernel")])
def test_kernels_may_have_any_names(names: tuple[str, ...]) -> None:
    made = named(*names)
    symbols = kernel_symbols(made.ir)
    assert list(symbols) == list(names) and len(set(symbols.values())) == len(names)
    cubin = made.cubin()
    for name, symbol in symbols.items():
        assert b"\0" + symbol.encode("ascii") + b"\0" in cubin
        assert made.resources[name].compiled is not None
