"""The frames that older programs have, and names that are refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest
from reading import HEAD, read_text, refused

import tilewright
from tilewright.base.errors import FrontendError
from tilewright.frontend import parse_function
from tilewright.frontend.cuda import MEMBERS
from tilewright.frontend.simt_table import TABLE

AXES = """
n = T.dynamic("n")

@T.function
def k(A: T.Tensor((n,), "float32"), m: T.int32):
    with T.device_context(2, 0):
        with T.launch_thread("blockIdx.x", (n + 63) // 64) as bx:
            with T.launch_thread("threadIdx.x", 64) as tx:
                i = bx * 64 + tx
                if i < n:
                    A[i] = A[i] + 1.0
    with T.compute_scope("second"), T.parallel_launch():
        with T.launch_thread("blockIdx.y", m), T.launch_thread("threadIdx.y", 4) as ty:
            with T.launch_thread("threadIdx.x", 2) as tx, T.launch_thread("threadIdx.y", 4) as t:
                A[2 * ty + tx] += 10.0
                A[0] = A[0] + T.cast(ty - t, "float32")
"""


def test_kernels_are_launched_along_the_axes_of_their_frames() -> None:
    made = read_text(AXES)
    shapes = [
        tuple(str(each) for each in (*kernel.launch.grid, *kernel.launch.block))
        for kernel in made.program.kernels
    ]
    assert shapes == [("(n + 63) // 64", "1", "1", "64", "1", "1"), ("1", "m", "1", "2", "4", "1")]
    a = np.zeros(100, np.float32)
    tilewright.compile(made, backend="sim")(a, 1)
    assert a[:8].tolist() == [11] * 8 and (a[8:] == 1).all()


def test_a_frame_may_stand_inside_an_entry_that_says_the_same() -> None:
    made = read_text("""
        @T.function
        def k(A: T.Tensor((64,), "int32")):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
            with T.launch_thread("threadIdx.x", 64) as t:
                A[t] = t
    """)
    a = np.zeros(64, np.int32)
    tilewright.compile(made, backend="sim")(a)
    assert np.array_equal(a, np.arange(64))


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ('with «T.launch_thread("threadIdx.x", 4096)» as t: pass', "launch-shape"),
        ('with T.launch_thread(«"threadIdx.w"», 4) as t: pass', "bad-call"),
        ('with «T.launch_thread("vthread", 4)» as t: pass', "not-supported"),
        ('«T.launch_thread("threadIdx.x", 4)»', "unsupported-statement"),
        ("«T.compute_scope('x')»", "unsupported-statement"),
        (
            'with T.launch_thread("threadIdx.x", 64) as t:\n'
            '    with «T.launch_thread("threadIdx.x", 32)» as u: pass',
            "launch-shape",
        ),
        (
            'with T.launch_thread("threadIdx.x", 64) as t:\n'
            '    with «T.launch_thread("threadIdx.y", 32)» as u: pass',
            "launch-shape",
        ),
        (
            'with T.launch_thread("threadIdx.x", 64) as t:\n    i = t + 1\n'
            '    with «T.launch_thread("blockIdx.y", i)» as u: pass',
            "unbound-name",
        ),
        (
            'with T.launch_thread("threadIdx.x", 64) as t:\n    «with T.compute_scope("x"): pass»',
            "unsupported-statement",
        ),
    ],
)
def test_frames_that_are_none(lines: str, code: str) -> None:
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    refused(f'@T.function\ndef k(A: T.Tensor((64,), "float32")):\n{body}', code, whole=True)


# ---------------------------------------------------------------------------- parameters


def test_a_tuple_is_a_parameter_for_each_of_its_fields() -> None:
    made = read_text("""
        @T.function
        def k(p: T.Tuple(T.int32, T.Tuple(T.ptr("float32"), T.float32)),
              Out: T.Tensor((32,), "float32"), q: T.ptr):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            count, (data, scale) = p
            i = T.cuda.lane_id()
            Out[i] = T.cast(p[0] + count, "float32") + data[i] * scale
            Out[i] += T.cast(q[0], "float32")
    """)
    assert list(made.params) == ["p_0", "p_1_0", "p_1_1", "Out", "q"]
    a, out, byte = np.arange(32, dtype=np.float32), np.zeros(32, np.float32), np.full(1, 7, "u1")
    ex = tilewright.compile(made, backend="sim")
    for given in (((3, (a, 2.0)), out, byte), (3, a, 2.0, out, byte), ((3,), (a, 2.0, out), byte)):
        out[:] = 0
        ex(*given)
        assert np.array_equal(out, 2 * a + 13)


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ("p: «T.Optional(T.int32)», A: T.Tensor((32,))", "bad-annotation"),
        ("p: «T.int32 | None», A: T.Tensor((32,))", "bad-annotation"),
        ("p_0: T.int32, p: «T.Tuple(T.int32)»", "bad-annotation"),
        ("p: «T.Tuple(3)»", "bad-annotation"),
    ],
)
def test_parameters_that_are_none(params: str, code: str) -> None:
    marked = "from __future__ import annotations\n" + HEAD
    body = "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))\n"
    text = f"{marked}@T.function\ndef k({params}):\n{body}"
    with pytest.raises(FrontendError) as caught:
        parse_function(text.replace("«", "").replace("»", ""))
    assert caught.value.code == code and caught.value.location is not None
    column = params.index("«") + len("def k(")
    assert caught.value.location.column == column


# ---------------------------------------------------------------------------- refused names

DIALECT = """
    thread_idx block_idx block_dim grid_dim cluster_id cluster_cta_id cluster_dim linear_thread_id
    thread_rank lane_id warp_id warpgroup_id warp_in_warpgroup thread_in_warpgroup cta_pair_id
    cta_sync warp_sync warpgroup_sync cluster_sync grid_sync syncthreads_and syncthreads_or
    thread_fence elect_sync mbarrier_wait mbarrier_wait_acquire_cluster wait_until
    cvta_generic_to_shared smem_addr_from_uint64 sm100_2sm_leader_smem_addr decl_tmem get_tmem_addr
    any_sync ballot_sync __shfl_sync __shfl_up_sync __shfl_down_sync __shfl_xor_sync __activemask
    reduce_add_sync_u32 reduce_min_sync_u32 warp_reduce warp_sum warp_max warp_min cta_reduce
    cta_sum cta_max cta_min atomic_add atomic_cas half2float bfloat162float bfloat1622float2
    float22half2 float22bfloat162_rn float22bfloat162_rn_from_float2 float8tohalf8 half8tofloat8
    fp8x4_e4m3_from_float4 make_float2 float2_x float2_y fadd2_rn fmul2_rn hmin2 hmax2 float_as_uint
    uint_as_float fdividef ffs_u32 wgmma tcgen05 runtime_instr_desc tensormap_encode_tiled printf
    trap_when_assert_failed nano_sleep clock64 mov_sreg func_call mma_store mma_fill bmma_sync iket
    timer_init timer_start timer_end timer_finalize tile LaunchConfig KernelAttributes
"""
TOP = """
    function jit inline macro ir_module meta_class meta_var constexpr static_assert Tensor handle
    Ptr ptr Tuple Optional dynamic Var device_entry device_context compute_scope parallel_launch
    launch_thread func_attr alloc_tensor alloc_shared alloc_local smem tmem alloc_scalar
    shared_scalar local_scalar decl_tensor decl_scalar address_of reinterpret cast serial unroll
    vectorized parallel grid let broadcast ramp shuffle vector_low vector_high vector_combine
    masked_load masked_store call_extern call_packed call_pure_extern call_ffi_kernel call_kernel
    external_kernel stack_alloca nvshmem ptx cuda bitwise_not
"""


def test_no_name_of_the_dialect_is_unknown() -> None:
    assert not set(DIALECT.split()) - MEMBERS.keys()
    assert not set(TOP.split()) - TABLE.keys()


@pytest.mark.parametrize(
    "call",
    [
        'T.call_extern("f", 1)',
        "T.nvshmem.my_pe()",
        "T.cuda.grid_sync()",
        'T.cuda.func_call("f", 1)',
        'T.cuda.iket.mark("x")',
        "T.cuda.timer_start(1)",
        "T.cuda.wgmma.noop_barrier(1)",
        "T.cuda.bmma_sync()",
        "T.cuda.tcgen05.encode_instr_descriptor_block_scaled(1)",
        "T.call_packed()",
        "T.external_kernel()",
    ],
)
def test_what_is_out_of_reach_is_refused_with_the_reason(call: str) -> None:
    name = call.partition("(")[0]
    error = refused(f"«{call}»", "not-supported")
    assert error.message.startswith(f"{name} is not supported: ")


def test_a_decorator_that_is_out_of_reach_is_refused_too() -> None:
    with pytest.raises(FrontendError) as caught:
        parse_function(f"{HEAD}\n@T.ir_module\nclass M:\n    pass\n")
    assert caught.value.code == "not-supported"
