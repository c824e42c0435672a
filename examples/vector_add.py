"""Add two vectors of any length: one thread per element, the last block partly idle.

Run it by `python examples/vector_add.py`.
"""

import numpy as np

import tilewright
from tilewright import simt as T

n = T.dynamic("n")
THREADS = 128


@T.function
def vector_add(
    A: T.Tensor((n,), "float32"),
    B: T.Tensor((n,), "float32"),
    Out: T.Tensor((n,), "float32"),
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(n + THREADS - 1) // THREADS, block=THREADS))
    i = T.cuda.block_idx("x") * THREADS + T.cuda.thread_idx("x")
    if i < n:
        Out[i] = A[i] + B[i]


def main() -> None:
    """Run the kernel on the simulator and compare with NumPy."""
    a = np.arange(1000, dtype=np.float32)
    b = np.full(1000, 0.5, np.float32)
    out = np.zeros_like(a)
    compiled = tilewright.compile(vector_add)
    compiled(a, b, out)
    np.testing.assert_array_equal(out, a + b)
    print(f"{compiled!r}: {out[:3]} … {out[-1]}")


if __name__ == "__main__":
    main()
