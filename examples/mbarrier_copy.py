"""Bring a tile to shared memory by the copy engine, wait for it at its barrier, and reverse it.

One thread announces how many bytes will come and starts the copy; every thread waits until they
have landed. Take the wait away, and the simulator says at the copy that its CTA ended before it was
done: on a GPU, threads may read what is not there yet.

Run it by `python examples/mbarrier_copy.py`.
"""

import numpy as np

import tilewright
from tilewright import simt as T

COUNT = 256
BYTES = COUNT * 4


@T.function
def reverse(A: T.Tensor((COUNT,), "float32", align=16), Out: T.Tensor((COUNT,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=COUNT))
    thread = T.cuda.thread_idx("x")
    tile = T.alloc_shared((COUNT,), "float32", layout="default", align=16)
    landed = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if thread == 0:
        T.ptx.mbarrier.init.shared__cta.b64(landed.ptr_to([0]), T.uint32(1))
        T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if thread == 0:
        T.ptx.mbarrier.arrive.expect_tx.shared__cta.b64(landed.ptr_to([0]), T.uint32(BYTES))
        T.ptx.cp.async_.bulk.shared__cta.global_.mbarrier__complete_tx__bytes(
            tile.ptr_to([0]), A.ptr_to([0]), T.uint32(BYTES), landed.ptr_to([0])
        )
    T.cuda.mbarrier_wait(landed.ptr_to([0]), 0)
    Out[thread] = tile[COUNT - 1 - thread]


def main() -> None:
    """Run the kernel under two schedules of its copy."""
    a = np.arange(COUNT, dtype=np.float32)
    for schedule in ("late", "eager"):
        out = np.zeros_like(a)
        tilewright.compile(reverse, target="sm_90a", schedule=schedule)(a, out)
        np.testing.assert_array_equal(out, a[::-1])
        print(f"{schedule}: {out[:4]} …")


if __name__ == "__main__":
    main()
