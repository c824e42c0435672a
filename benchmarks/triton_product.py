"""The product of `peers.py` in Triton."""

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]


@triton.jit
def product(a, b, d, SIZE: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Multiply square matrices, a square tile of the result per program."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inner = tl.arange(0, STEP)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, SIZE, STEP):
        left = tl.load(a + row[:, None] * SIZE + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * SIZE + column[None, :])
        total = tl.dot(left, right, total)
    tl.store(d + row[:, None] * SIZE + column[None, :], total)
