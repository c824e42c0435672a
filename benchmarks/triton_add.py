"""The sum of `launch.py` in Triton."""

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]


@triton.jit
def add(a, b, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add two vectors, a block of elements per program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(a + at) + tl.load(b + at))
