"""Small correct kernels for Hopper: mbarriers, the copy engine, its proxy, and clusters."""

from __future__ import annotations

from typing import Any

from tilewright import simt

T: Any = simt
TILES, WORDS = 3, 128
BYTES = 4 * WORDS
STEPS, STAGES, CONSUMERS = 5, 2, 2
BULK_LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
TENSOR_STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"


@T.function
def bulk_round_trip(
    A: T.Tensor((TILES, WORDS), "int32", align=16), Out: T.Tensor((TILES, WORDS), "int32", align=16)
):
    """Bring tile after tile to one buffer, change it there, and send it out again."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=WORDS))
    thread = T.cuda.thread_idx("x")
    held = T.alloc_shared((WORDS,), "int32", layout="default", align=128)
    landed = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if thread == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](landed.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cta_sync()
    for tile in range(TILES):
        if thread == 0:
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](landed.ptr_to([0]), T.uint32(BYTES))
            T.ptx[BULK_LOAD](
                held.ptr_to([0]), A.ptr_to([tile, 0]), T.uint32(BYTES), landed.ptr_to([0])
            )
            if tile + 1 < TILES:
                T.ptx["cp.async.bulk.prefetch.L2.global"](A.ptr_to([tile + 1, 0]), T.uint32(BYTES))
        T.cuda.mbarrier_wait(landed.ptr_to([0]), tile % 2)
        held[thread] = held[thread] + 1000
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if thread == 0:
            T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                Out.ptr_to([tile, 0]), held.ptr_to([0]), T.uint32(BYTES)
            )
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group.read"](0)
    if thread == 0:
        T.ptx["cp.async.bulk.wait_group"](0)


@T.function
def tensor_round_trip(
    A: T.Tensor((32, 32), "float32", align=16), Out: T.Tensor((32, 32), "float32", align=16)
):
    """Bring boxes of a matrix to two buffers in turn, change them, and send boxes out."""
    source = T.stack_alloca("tensormap", 1)
    target = T.stack_alloca("tensormap", 1)
    for made, tensor in ((source, A), (target, Out)):
        T.cuda.tensormap_encode_tiled(
            made, tensor.data, *(32, 32, 128, 32, 8, 1, 1), descriptor_dtype="float32", rank=2
        )
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    thread, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    leader = T.cuda.elect_sync()
    held = T.alloc_shared((2, 8, 32), "float32", layout="default", align=128)
    landed = T.alloc_shared((2,), "uint64", layout="default", align=8)
    if warp == 0 and leader:
        T.ptx["prefetch.tensormap"](T.address_of(source))
        for stage in range(2):
            T.ptx["mbarrier.init.shared::cta.b64"](landed.ptr_to([stage]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cta_sync()
    for step in range(4):
        stage = step % 2
        if warp == 0 and leader:
            # What the buffer held two steps ago has been read when one group is left.
            T.ptx["cp.async.bulk.wait_group.read"](1)
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
                landed.ptr_to([stage]), T.uint32(1024)
            )
            T.ptx[TENSOR_LOAD](
                held.ptr_to([stage, 0, 0]),
                T.address_of(source),
                *(0, 8 * step),
                landed.ptr_to([stage]),
            )
            if step < 3:
                T.ptx["cp.async.bulk.prefetch.tensor.2d.L2.global"](
                    T.address_of(source), 0, 8 * step + 8
                )
        T.cuda.mbarrier_wait(landed.ptr_to([stage]), step // 2)
        for turn in range(4):
            row = thread // 32 + 2 * turn
            held[stage, row, thread % 32] = held[stage, row, thread % 32] + T.float32(100)
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if warp == 0 and leader:
            T.ptx[TENSOR_STORE](T.address_of(target), 0, 8 * step, held.ptr_to([stage, 0, 0]))
            T.ptx["cp.async.bulk.commit_group"]()
    if warp == 0 and leader:
        T.ptx["cp.async.bulk.wait_group"](0)


@T.function
def warps_apart(
    A: T.Tensor((STEPS, WORDS), "int32", align=16), Out: T.Tensor((CONSUMERS, STEPS, 32), "int32")
):
    """Fill a ring by one warp for two others, who say when they have read, to the proxy too."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32 * (CONSUMERS + 1)))
    warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
    leader = T.cuda.elect_sync()
    ring = T.alloc_shared((STAGES, WORDS), "int32", layout="default", align=128)
    full = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
    empty = T.alloc_shared((STAGES,), "uint64", layout="default", align=8)
    state: T.uint64 = 0
    if warp == CONSUMERS and leader:
        for stage in range(STAGES):
            T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([stage]), T.uint32(1))
            T.ptx["mbarrier.init.shared::cta.b64"](empty.ptr_to([stage]), T.uint32(CONSUMERS))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cta_sync()
    if warp == CONSUMERS:
        if leader:
            for step in range(STEPS):
                stage = step % STAGES
                T.cuda.mbarrier_wait(empty.ptr_to([stage]), (step // STAGES + 1) % 2)
                T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
                    full.ptr_to([stage]), T.uint32(BYTES)
                )
                T.ptx[BULK_LOAD](
                    ring.ptr_to([stage, 0]),
                    A.ptr_to([step, 0]),
                    T.uint32(BYTES),
                    full.ptr_to([stage]),
                )
    else:
        for step in range(STEPS):
            stage = step % STAGES
            T.cuda.mbarrier_wait(full.ptr_to([stage]), step // STAGES % 2)
            Out[warp, step, lane] = ring[stage, 4 * lane + warp]
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.warp_sync()
            if lane == 0:
                T.ptx["mbarrier.arrive.shared::cta.b64"](state, empty.ptr_to([stage]))


@T.function
def arrivals(Out: T.Tensor((5, 64), "int32")):
    """Use an mbarrier in every way of arriving and of waiting, and its memory again after."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    thread = T.cuda.thread_idx("x")
    held = T.alloc_shared((64,), "int32", layout="default", align=16)
    bar = T.alloc_shared((1,), "uint64", layout="default", align=8)
    state: T.uint64 = 0
    if thread == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](bar.ptr_to([0]), T.uint32(64))
    T.cuda.cta_sync()
    held[thread] = thread
    T.ptx["mbarrier.arrive.release.cta.shared::cta.b64"](state, bar.ptr_to([0]))
    first: T.bool = False
    while not first:
        T.ptx["mbarrier.try_wait.shared::cta.b64"](first, bar.ptr_to([0]), state)
    Out[0, thread] = held[63 - thread]
    T.cuda.cta_sync()
    # Thread 0 arrives for two, thread 1 not at all.
    held[thread] = 100 + thread
    T.cuda.warp_sync()
    if thread == 0:
        T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([0]), T.uint32(2))
    if thread > 1:
        T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([0]))
    second: T.bool = False
    while not second:
        T.ptx["mbarrier.try_wait.parity.shared::cta.b64"](
            second, bar.ptr_to([0]), T.uint32(1), T.uint32(1000)
        )
        T.ptx["nanosleep.u32"](T.uint32(20))
    Out[1, thread] = held[63 - thread]
    T.cuda.cta_sync()
    # Half of the threads leave; thread 0 expects bytes and says itself that they have come.
    held[thread] = 200 + thread
    if thread == 0:
        T.ptx["mbarrier.expect_tx.relaxed.cta.shared::cta.b64"](bar.ptr_to([0]), T.uint32(16))
        T.ptx["mbarrier.complete_tx.relaxed.cta.shared::cta.b64"](bar.ptr_to([0]), T.uint32(16))
    if thread < 32:
        T.ptx["mbarrier.arrive.shared::cta.b64"](state, bar.ptr_to([0]))
    else:
        T.ptx["mbarrier.arrive_drop.shared::cta.b64"](state, bar.ptr_to([0]))
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    Out[2, thread] = held[63 - thread]
    T.cuda.cta_sync()
    if thread != 31:
        held[thread] = 300 + thread
    if thread < 31:
        T.ptx["mbarrier.arrive.noComplete.shared::cta.b64"](state, bar.ptr_to([0]), T.uint32(1))
    T.cuda.cta_sync()
    if thread == 31:
        held[31] = 331
        T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](bar.ptr_to([0]), T.uint32(16))
        T.ptx["mbarrier.complete_tx.relaxed.cta.shared::cta.b64"](bar.ptr_to([0]), T.uint32(16))
    fourth: T.bool = False
    while not fourth:
        T.ptx["mbarrier.test_wait.parity.shared::cta.b64"](fourth, bar.ptr_to([0]), T.uint32(1))
    Out[3, thread] = held[63 - thread]
    T.cuda.cta_sync()
    if thread == 0:
        T.ptx["mbarrier.inval.shared::cta.b64"](bar.ptr_to([0]))
        bar[0] = T.uint64(77)
    T.cuda.cta_sync()
    Out[4, thread] = T.cast(bar[0], "int32")


@T.function
def matrix_out(Out: T.Tensor((8, 32), "uint16", align=16)):
    """Store matrices of a warp's registers together, and send them out by the copy engine."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    held = T.alloc_shared((8, 32), "uint16", layout="default", align=128)
    words = T.alloc_local((4,), "uint32", layout="default")
    for r in range(4):
        low = lane // 4 * 32 + 8 * r + lane % 4 * 2
        words[r] = T.cast(low | (low + 1) << 16, "uint32")
    T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"](
        held.ptr_to([lane % 8, lane // 8 * 8]), *[words[r] for r in range(4)]
    )
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.warp_sync()
    if T.cuda.elect_sync():
        T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
            Out.ptr_to([0, 0]), held.ptr_to([0, 0]), T.uint32(512)
        )
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


@T.function
def cluster_exchange(G: T.Tensor((4, 32), "int32"), Out: T.Tensor((2, 4, 32), "int32")):
    """Exchange values in global memory inside clusters of two, by releases and by a fence."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32, cluster=2))
    lane, block = T.cuda.lane_id(), T.cuda.block_idx("x")
    G[block, lane] = 10 * block + lane
    T.ptx["barrier.cluster.arrive.release.aligned"]()
    T.ptx["barrier.cluster.wait.acquire.aligned"]()
    Out[0, block, lane] = G[block ^ 1, 31 - lane]
    T.ptx["barrier.cluster.arrive"]()
    T.ptx["barrier.cluster.wait"]()
    G[block, lane] = 100 * block + lane
    T.ptx["fence.acq_rel.cluster"]()
    T.ptx["barrier.cluster.arrive.relaxed"]()
    T.ptx["barrier.cluster.wait.acquire"]()
    Out[1, block, lane] = G[block ^ 1, 31 - lane]
