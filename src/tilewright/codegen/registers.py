"""Special registers: the builtins of CUDA C++, or functions that read them.

May import `isa`.

    >>> reader("laneid")
    'read_laneid'
"""

from __future__ import annotations

from tilewright.isa import conversion
from tilewright.isa.named import form

# The registers that CUDA C++ has names for; all are unsigned.
BUILTINS = {
    f"{register}.{axis}": f"{builtin}.{axis}"
    for register, builtin in (
        ("tid", "threadIdx"),
        ("ctaid", "blockIdx"),
        ("ntid", "blockDim"),
        ("nctaid", "gridDim"),
    )
    for axis in "xyz"
}

# Those that change while a thread runs, so that every read counts.
_CLOCKS = ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi")


def reader(name: str) -> str:
    """Name the function that reads a special register."""
    return "read_" + name.replace(".", "_")


def reader_text(name: str, bits: int) -> str:
    """Write the function that reads a special register of 32 or 64 bits."""
    kind, constraint = ("unsigned", "r") if bits == 32 else ("uint64_t", "l")
    volatile = " volatile" if name in _CLOCKS else ""
    move = form(conversion.mov, type=f"u{bits}").text
    return (
        f"__device__ __forceinline__ {kind} {reader(name)}() {{\n"
        f"  {kind} value;\n"
        f'  asm{volatile}("{move} %0, %%{name};" : "={constraint}"(value));\n'
        "  return value;\n"
        "}\n"
    )
