"""Small correct kernels for Blackwell: Tensor Memory, the tensor core, and who waits for it."""

from __future__ import annotations

from typing import Any

from tilewright import simt
from tilewright.layout import mma_shared_layout

T: Any = simt
M, N, K = 128, 32, 16
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"
MMA = "tcgen05.mma.cta_group::1.kind::f16"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
QUARTER = 1 << 21  # 32 lanes of Tensor Memory, in an address
# Rows of 32 bytes, as the smallest swizzle has them; groups of eight rows are 256 bytes apart.
A_LAYOUT = mma_shared_layout("float16", 1, (M, K))
B_LAYOUT = mma_shared_layout("float16", 1, (N, K))


@T.inline
def quarter(address):
    """Give the address of the part of Tensor Memory that a warp of the first four reaches."""
    return address[0] + T.cast(T.cuda.warp_id() % 4, "uint32") * T.uint32(QUARTER)


@T.function
def cells(Out: T.Tensor((128, 4), "uint32")):
    """Put words into Tensor Memory, change some there, and take them out."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=128))
    thread = T.cuda.thread_idx("x")
    address = T.alloc_shared((1,), "uint32", layout="default")
    more = T.alloc_shared((1,), "uint32", layout="default")
    if T.cuda.warp_id() == 0:
        T.ptx[ALLOC](T.address_of(address), T.uint32(32))
        T.ptx[ALLOC](T.address_of(more), T.uint32(64))
        T.ptx[RELINQUISH]()
    T.cuda.cta_sync()
    base, other = quarter(address), quarter(more)
    words = T.alloc_local((4,), "uint32", layout="default")
    taken = T.alloc_local((4,), "uint32", layout="default")
    for j in range(4):
        words[j] = T.cast(thread * 10 + j, "uint32")
    T.ptx["tcgen05.st.sync.aligned.32x32b.x4.b32"](base, *[words[j] for j in range(4)])
    T.ptx["tcgen05.st.sync.aligned.32x32b.x4.b32"](other, *[words[j] for j in range(4)])
    T.ptx["tcgen05.wait::st.sync.aligned"]()
    T.ptx["tcgen05.ld.sync.aligned.32x32b.x4.b32"](*[taken[j] for j in range(4)], other)
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    for j in range(4):
        words[j] = taken[j] + T.uint32(1)
    T.ptx["tcgen05.st.sync.aligned.32x32b.x4.b32"](other, *[words[j] for j in range(4)])
    T.ptx["tcgen05.wait::st.sync.aligned"]()
    T.ptx["tcgen05.ld.sync.aligned.32x32b.x2.b32"](taken[0], taken[1], base)
    T.ptx["tcgen05.ld.sync.aligned.32x32b.x2.b32"](taken[2], taken[3], other + T.uint32(2))
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    if T.cuda.block_idx("x") == 0:
        for j in range(4):
            Out[thread, j] = taken[j]
    T.cuda.cta_sync()
    if T.cuda.warp_id() == 0:
        T.ptx[DEALLOC](address[0], T.uint32(32))
        T.ptx[DEALLOC](more[0], T.uint32(64))


@T.function
def product_by_hand(
    A: T.Tensor((2, M, K), "float16", align=16),
    B: T.Tensor((2, N, K), "float16", align=16),
    Out: T.Tensor((M, N), "float32"),
):
    """Add up two products whose descriptors are written by hand, in one pair of buffers.

    The first tiles are stored by threads, the second copied by them; either way the tensor core
    reads by another proxy.
    """
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    thread, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    leader = T.cuda.elect_sync()
    a = T.alloc_shared((M, K), "float16", layout=A_LAYOUT, align=1024)
    b = T.alloc_shared((N, K), "float16", layout=B_LAYOUT, align=1024)
    address = T.alloc_shared((1,), "uint32", layout="default")
    done = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if warp == 0:
        T.ptx[ALLOC](T.address_of(address), T.uint32(N))
        T.ptx[RELINQUISH]()
    if warp == 1 and leader:
        T.ptx["mbarrier.init.shared::cta.b64"](done.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    a_desc: T.uint64
    b_desc: T.uint64
    idesc: T.uint32
    T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(a_desc), a.ptr_to([0, 0]), 1, 16, 1)
    T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(b_desc), b.ptr_to([0, 0]), 1, 16, 1)
    T.cuda.tcgen05.encode_instr_descriptor(
        T.address_of(idesc), "float32", "float16", "float16", M, N, K, False, False
    )
    for j in range(K):
        a[thread, j] = A[0, thread, j]
        if thread < N:
            b[thread, j] = B[0, thread, j]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if warp == 1 and leader:
        T.ptx[MMA](address[0], a_desc, b_desc, idesc, False)
        T.ptx[COMMIT](done.ptr_to([0]))
    T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
    for half in range(2):
        T.ptx["cp.async.cg.shared.global"](
            a.ptr_to([thread, 8 * half]), A.ptr_to([1, thread, 8 * half]), 16
        )
        if thread < N:
            T.ptx["cp.async.cg.shared.global"](
                b.ptr_to([thread, 8 * half]), B.ptr_to([1, thread, 8 * half]), 16
            )
    T.ptx["cp.async.commit_group"]()
    T.ptx["cp.async.wait_group"](0)
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if warp == 1 and leader:
        T.ptx[MMA](address[0], a_desc, b_desc, idesc, True)
        T.ptx[COMMIT](done.ptr_to([0]))
    T.cuda.mbarrier_wait(done.ptr_to([0]), 1)
    T.ptx["tcgen05.fence::after_thread_sync"]()
    row = T.alloc_local((N,), "uint32", layout="default")
    T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"](*[row[j] for j in range(N)], quarter(address))
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    for j in range(N):
        Out[thread, j] = T.reinterpret(row[j], "float32")
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx["tcgen05.fence::after_thread_sync"]()
        T.ptx[DEALLOC](address[0], T.uint32(N))


@T.function
def two_accumulators(
    A: T.Tensor((M, K), "float16", align=16),
    B: T.Tensor((4, N, K), "float16", align=16),
    Out: T.Tensor((4, M, N), "float32"),
):
    """Multiply into two accumulators in turn, while a warpgroup carries out the other one."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=160))
    thread, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    leader = T.cuda.elect_sync()
    a = T.alloc_shared((M, K), "float16", layout=A_LAYOUT, align=1024)
    b = T.alloc_shared(
        (4, N, K), "float16", layout=mma_shared_layout("float16", 1, (4, N, K)), align=1024
    )
    address = T.alloc_shared((1,), "uint32", layout="default")
    full = T.alloc_shared((2,), "uint64", layout="default", align=8)
    empty = T.alloc_shared((2,), "uint64", layout="default", align=8)
    state: T.uint64 = 0
    if warp == 4:
        T.ptx[ALLOC](T.address_of(address), T.uint32(2 * N))
        if leader:
            for stage in range(2):
                T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([stage]), T.uint32(1))
                T.ptx["mbarrier.init.shared::cta.b64"](empty.ptr_to([stage]), T.uint32(128))
            T.ptx["fence.mbarrier_init.release.cluster"]()
    a_desc: T.uint64
    idesc: T.uint32
    T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(a_desc), a.ptr_to([0, 0]), 1, 16, 1)
    T.cuda.tcgen05.encode_instr_descriptor(
        T.address_of(idesc), "float32", "float16", "float16", M, N, K, False, False
    )
    if warp < 4:
        for j in range(K):
            a[thread, j] = A[thread, j]
            b[thread // N, thread % N, j] = B[thread // N, thread % N, j]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if warp == 4:
        if leader:
            for turn in range(4):
                stage = turn % 2
                T.cuda.mbarrier_wait(empty.ptr_to([stage]), (turn // 2 + 1) % 2)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                b_desc: T.uint64
                T.cuda.tcgen05.encode_matrix_descriptor(
                    T.address_of(b_desc), b.ptr_to([turn, 0, 0]), 1, 16, 1
                )
                T.ptx[MMA](address[0] + T.cast(stage * N, "uint32"), a_desc, b_desc, idesc, False)
                T.ptx[COMMIT](full.ptr_to([stage]))
    else:
        row = T.alloc_local((N,), "uint32", layout="default")
        for turn in range(4):
            stage = turn % 2
            T.cuda.mbarrier_wait(full.ptr_to([stage]), turn // 2)
            T.ptx["tcgen05.fence::after_thread_sync"]()
            T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"](
                *[row[j] for j in range(N)], quarter(address) + T.cast(stage * N, "uint32")
            )
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
            T.ptx["tcgen05.fence::before_thread_sync"]()
            T.ptx["mbarrier.arrive.shared::cta.b64"](state, empty.ptr_to([stage]))
            for j in range(N):
                Out[turn, thread, j] = T.reinterpret(row[j], "float32")
    T.cuda.cta_sync()
    if warp == 4:
        T.ptx[RELINQUISH]()
        T.ptx[DEALLOC](address[0], T.uint32(2 * N))
