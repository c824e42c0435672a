"""Small correct kernels for Ampere: one for every way in which its threads wait for one another."""

from __future__ import annotations

from typing import Any

from tilewright import simt

T: Any = simt
STAGES, ROWS, THREADS = 3, 6, 64


@T.function
def copy_ring(A: T.Tensor((ROWS, 256), "int32", align=16), Out: T.Tensor((ROWS, THREADS), "int32")):
    """Copy ahead by groups, and read what other threads have copied."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=THREADS))
    thread = T.cuda.thread_idx("x")
    ring = T.alloc_shared((STAGES, 256), "int32", layout="default", align=16)
    for row in range(STAGES - 1):
        T.ptx["cp.async.cg.shared.global"](
            ring.ptr_to([row, 4 * thread]), A.ptr_to([row, 4 * thread]), 16
        )
        T.ptx["cp.async.commit_group"]()
    for row in range(ROWS):
        T.ptx["cp.async.wait_group"](STAGES - 2)
        T.cuda.cta_sync()
        if row + STAGES - 1 < ROWS:
            T.ptx["cp.async.cg.shared.global"](
                ring.ptr_to([(row + STAGES - 1) % STAGES, 4 * thread]),
                A.ptr_to([row + STAGES - 1, 4 * thread]),
                16,
            )
        T.ptx["cp.async.commit_group"]()
        Out[row, thread] = ring[row % STAGES, 255 - 4 * thread]


@T.function
def copies_of_a_warp(A: T.Tensor((32,), "int32"), Out: T.Tensor((32,), "int32")):
    """Copy word by word, wait for all, meet, and read a neighbour's."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    held = T.alloc_shared((32,), "int32", layout="default", align=16)
    T.ptx["cp.async.ca.shared.global"](held.ptr_to([lane]), A.ptr_to([lane]), 4)
    T.ptx["cp.async.wait_all"]()
    T.cuda.warp_sync()
    Out[lane] = held[31 - lane]


@T.function
def copies_counted(A: T.Tensor((2, 64), "int32"), Out: T.Tensor((2, 64), "int32")):
    """Have an mbarrier count the threads whose copies are done, in both ways that there are."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    thread = T.cuda.thread_idx("x")
    held = T.alloc_shared((64,), "int32", layout="default", align=16)
    bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
    state: T.uint64 = 0
    if thread == 0:
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(64))
    T.cuda.cta_sync()
    T.ptx["cp.async.ca.shared.global"](held.ptr_to([thread]), A.ptr_to([0, thread]), 4)
    T.ptx["cp.async.mbarrier.arrive.noinc.shared.b64"](bar.ptr_to([0]))
    come: T.bool = False
    while not come:
        T.ptx["mbarrier.test_wait.parity.shared.b64"](come, bar.ptr_to([0]), T.uint32(0))
    Out[0, thread] = held[63 - thread]
    T.cuda.cta_sync()
    T.ptx["cp.async.ca.shared.global"](held.ptr_to([thread]), A.ptr_to([1, thread]), 4)
    T.ptx["cp.async.mbarrier.arrive.shared.b64"](bar.ptr_to([0]))
    T.ptx["mbarrier.arrive.shared.b64"](state, bar.ptr_to([0]))
    again: T.bool = False
    while not again:
        T.ptx["mbarrier.test_wait.shared.b64"](again, bar.ptr_to([0]), state)
    Out[1, thread] = held[63 - thread]


@T.function
def named_pipeline(Out: T.Tensor((6, 32), "int32")):
    """Hand two stages to and fro between two warps by four named barriers."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    lane = T.cuda.lane_id()
    ring = T.alloc_shared((2, 32), "int32", layout="default", align=16)
    if T.cuda.warp_id() == 0:
        for row in range(6):
            if row >= 2:
                T.ptx["bar.sync"](T.cast(3 + row % 2, "uint32"), T.uint32(64))
            ring[row % 2, lane] = 100 * row + lane
            T.ptx["bar.arrive"](T.cast(1 + row % 2, "uint32"), T.uint32(64))
    else:
        for row in range(6):
            T.ptx["bar.sync"](T.cast(1 + row % 2, "uint32"), T.uint32(64))
            Out[row, lane] = ring[row % 2, 31 - lane]
            if row < 4:
                T.ptx["bar.arrive"](T.cast(3 + row % 2, "uint32"), T.uint32(64))


@T.function
def barrier_spellings(Out: T.Tensor((6, 64), "int32")):
    """Exchange values of two warps at barriers of every spelling."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    thread, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    held = T.alloc_shared((3, 64), "int32", layout="default", align=16)
    votes: T.uint32 = 0
    held[0, thread] = thread
    T.ptx["barrier.sync"](T.uint32(0))
    Out[0, thread] = held[0, 63 - thread]
    held[1, thread] = thread + 100
    T.ptx["barrier.sync.aligned"](T.uint32(2), T.uint32(64))
    Out[1, thread] = held[1, 63 - thread]
    if warp == 0:
        held[2, thread] = thread + 200
        T.ptx["barrier.arrive"](T.uint32(3), T.uint32(64))
        T.ptx["barrier.sync"](T.uint32(4), T.uint32(64))
        Out[2, thread] = held[2, 63 - thread]
    else:
        T.ptx["barrier.sync"](T.uint32(3), T.uint32(64))
        Out[2, thread] = held[2, 63 - thread]
        held[2, thread] = thread + 300
        T.ptx["barrier.arrive.aligned"](T.uint32(4), T.uint32(64))
    held[0, thread] = thread + 400
    T.ptx["barrier.red.popc.u32"](votes, T.uint32(0), thread < 5)
    Out[3, thread] = held[0, 63 - thread] + T.cast(votes, "int32")
    held[1, thread] = thread + 500
    T.ptx["barrier.red.popc.aligned.u32"](votes, T.uint32(0), thread < 7)
    Out[4, thread] = held[1, 63 - thread] + T.cast(votes, "int32")
    held[2, thread] = thread + 600
    T.ptx["bar.red.popc.u32"](votes, T.uint32(1), T.uint32(64), thread < 9)
    Out[5, thread] = held[2, 63 - thread] + T.cast(votes, "int32")


@T.function
def warp_exchange(A: T.Tensor((32,), "int32"), Out: T.Tensor((8, 32), "int32")):
    """Exchange values inside a warp: through memory, and by every collective."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    held = T.alloc_shared((32,), "int32", layout="default", align=16)
    held[lane] = A[lane]
    T.cuda.warp_sync()
    value = held[31 - lane]
    T.cuda.warp_sync()
    held[lane] = value + 1
    T.cuda.warp_sync()
    Out[0, lane] = held[lane ^ 1]
    Out[1, lane] = T.cuda.__shfl_xor_sync(T.uint32(0xFFFFFFFF), value, 3, 32)
    Out[2, lane] = T.cast(T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), value > 15), "int32")
    Out[3, lane] = T.select(T.cuda.all_sync(T.uint32(0xFFFFFFFF), value >= 0), 1, 0)
    total: T.int32
    T.ptx["redux.sync.add.s32"](total, value, T.uint32(0xFFFFFFFF))
    Out[4, lane] = total
    moved: T.uint32
    T.ptx["movmatrix.sync.aligned.m8n8.trans.b16"](moved, T.cast(value, "uint32"))
    Out[5, lane] = T.cast(moved, "int32")
    T.cuda.warp_sync()
    if lane < 16:
        held[lane] = value + 2
        T.cuda.warp_sync(T.uint32(0x0000FFFF))
        half: T.int32
        T.ptx["redux.sync.max.s32"](half, held[15 - lane], T.uint32(0x0000FFFF))
        Out[6, lane] = half + held[15 - lane]
    T.cuda.warp_sync()
    held[lane] = value + 3
    T.cuda.warp_sync()
    Out[7, lane] = held[31 - lane]


@T.function
def block_sum(A: T.Tensor((128,), "int32"), Out: T.Tensor((128,), "int32")):
    """Add up in a tree, halving the threads."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    thread = T.cuda.thread_idx("x")
    sums = T.alloc_shared((128,), "int32", layout="default", align=16)
    sums[thread] = A[thread]
    T.cuda.cta_sync()
    for level in range(7):
        half = 64 >> level
        if thread < half:
            sums[thread] = sums[thread] + sums[thread + half]
        T.cuda.cta_sync()
    Out[thread] = sums[0]


@T.function
def histogram(A: T.Tensor((256,), "uint32"), Out: T.Tensor((16,), "uint32")):
    """Count into shared memory by atomic additions."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=256))
    thread = T.cuda.thread_idx("x")
    counts = T.alloc_shared((16,), "uint32", layout="default", align=16)
    if thread < 16:
        counts[thread] = T.uint32(0)
    T.cuda.cta_sync()
    T.ptx["red.shared.add.u32"](counts.ptr_to([T.cast(A[thread] % 16, "int32")]), T.uint32(1))
    T.cuda.cta_sync()
    if thread < 16:
        Out[thread] = counts[thread]


@T.function
def flag_in_the_cta(Out: T.Tensor((32,), "int32")):
    """Hand data from one warp to another by a flag in shared memory."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    thread, lane = T.cuda.thread_idx("x"), T.cuda.lane_id()
    held = T.alloc_shared((32,), "int32", layout="default", align=16)
    flag = T.alloc_shared((1,), "uint32", layout="default", align=4)
    seen: T.uint32 = 0
    if thread == 0:
        flag[0] = T.uint32(0)
    T.cuda.cta_sync()
    if T.cuda.warp_id() == 0:
        held[lane] = 3 * lane
        T.cuda.warp_sync()
        if lane == 0:
            T.ptx["st.release.cta.shared.u32"](flag.ptr_to([0]), T.uint32(1))
    else:
        while seen == T.uint32(0):
            T.ptx["ld.acquire.cta.shared.u32"](seen, flag.ptr_to([0]))
        Out[lane] = held[31 - lane]


@T.function
def flag_between_ctas(
    Flag: T.Tensor((2,), "uint32"),
    Data: T.Tensor((2, 32), "int32"),
    Out: T.Tensor((2, 32), "int32"),
):
    """Hand data from CTA to CTA: by a release, and by a fence before an atomic operation."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32))
    lane = T.cuda.lane_id()
    seen: T.uint32 = 0
    if T.cuda.block_idx("x") == 0:
        while seen == T.uint32(0):
            T.ptx["ld.acquire.gpu.global.u32"](seen, Flag.ptr_to([0]))
        Out[0, lane] = Data[0, 31 - lane]
        Data[1, lane] = lane + 50
        T.ptx["fence.acq_rel.gpu"]()
        T.ptx["red.relaxed.gpu.global.add.u32"](Flag.ptr_to([1]), T.uint32(1))
    else:
        Data[0, lane] = lane + 7
        T.cuda.warp_sync()
        if lane == 0:
            T.ptx["st.release.gpu.global.u32"](Flag.ptr_to([0]), T.uint32(1))
        while seen != T.uint32(32):
            T.ptx["ld.relaxed.gpu.global.u32"](seen, Flag.ptr_to([1]))
        T.ptx["membar.gl"]()
        Out[1, lane] = Data[1, 31 - lane]


@T.function
def last_block(
    A: T.Tensor((4, 64), "int32"),
    Sums: T.Tensor((4,), "int32"),
    Count: T.Tensor((1,), "uint32"),
    Out: T.Tensor((1,), "int32"),
):
    """Add up in every CTA; the one that comes last adds up the sums."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=64))
    thread, block = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
    held = T.alloc_shared((64,), "int32", layout="default", align=16)
    last = T.alloc_shared((1,), "uint32", layout="default", align=4)
    held[thread] = A[block, thread]
    T.cuda.cta_sync()
    if thread == 0:
        total: T.int32 = 0
        for i in range(64):
            total += held[i]
        Sums[block] = total
        T.ptx["fence.acq_rel.gpu"]()
        before: T.uint32
        T.ptx["atom.relaxed.gpu.global.add.u32"](before, Count.ptr_to([0]), T.uint32(1))
        T.ptx["fence.acq_rel.gpu"]()
        last[0] = before
    T.cuda.cta_sync()
    if last[0] == T.uint32(3) and thread == 0:
        every: T.int32 = 0
        for i in range(4):
            every += Sums[i]
        Out[0] = every


@T.function
def read_only(A: T.Tensor((64,), "int32"), Out: T.Tensor((64,), "int32")):
    """Read by the read-only path what nobody writes."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    thread = T.cuda.thread_idx("x")
    word: T.int32
    T.ptx["ld.global.nc.s32"](word, A.ptr_to([63 - thread]))
    Out[thread] = word


@T.function
def products_of_other_types(
    Half: T.Tensor((32, 2), "uint32"),
    Bytes: T.Tensor((32, 4), "int32"),
    Single: T.Tensor((32, 4), "float32"),
    Double: T.Tensor((32, 2), "float64"),
):
    """Multiply matrices of ones: in half precision, of bytes, of tf32 and of doubles."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    one, few = T.uint32(0x3C003C00), T.uint32(0x01010101)
    half = T.alloc_local((2,), "uint32", layout="default")
    T.ptx["mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"](
        *(half[i] for i in range(2)), one, one, one, one, one, one, T.uint32(0), T.uint32(0)
    )
    whole = T.alloc_local((4,), "int32", layout="default")
    T.ptx["mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"](
        *(whole[i] for i in range(4)), few, few, few, few, few, few, *(T.int32(0) for i in range(4))
    )
    bits = T.uint32(0x3F800000)
    single = T.alloc_local((4,), "float32", layout="default")
    T.ptx["mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"](
        *(single[i] for i in range(4)),
        *(bits for i in range(6)),
        *(T.float32(0) for i in range(4)),
    )
    double = T.alloc_local((2,), "float64", layout="default")
    T.ptx["mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"](
        *(double[i] for i in range(2)), T.float64(1), T.float64(1), T.float64(0), T.float64(0)
    )
    for i in range(2):
        Half[lane, i] = half[i]
        Double[lane, i] = double[i]
    for i in range(4):
        Bytes[lane, i] = whole[i]
        Single[lane, i] = single[i]
