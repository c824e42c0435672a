"""Before and after: lowered IR, and the C++ that is written for it."""

from __future__ import annotations

import pytest
from lowered import (
    CTA,
    TARGETS,
    TID,
    array,
    assemble,
    body,
    element,
    helpers,
    launch,
    pointer,
    program,
    read,
    scalar,
    source,
)

from tilewright.base.dtypes import BOOL, FLOAT16, FLOAT32, INT32, UINT32, dtype
from tilewright.base.errors import CompilerBug
from tilewright.base.spaces import Space
from tilewright.base.targets import target
from tilewright.codegen import generate
from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Bitcast,
    Cast,
    Expr,
    Intrinsic,
    Load,
    Offset,
    Read,
    SharedBase,
    SpecialRegister,
    Var,
    constant,
    int32,
    select,
)
from tilewright.ir.statements import (
    Allocate,
    Assert,
    Assign,
    Bind,
    Break,
    Continue,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Print,
    Program,
    Return,
    Store,
    While,
    Write,
)
from tilewright.ir.types import TENSOR_MAP_POINTER, PointerType, ScalarType, TensorMapType
from tilewright.isa import async_copy, matrix_moves, named, tensor_copy

A, B, OUT = pointer("a", "float32"), pointer("b", "float32"), pointer("out", "float32")
N = scalar("n")
I = scalar("i")  # noqa: E741


def less(left: Expr, right: Expr) -> Binary:
    return Binary("lt", left, right, ScalarType(BOOL))


def test_vector_add() -> None:
    built = program(
        (A, B, OUT, N),
        Bind(I, CTA * 128 + TID),
        If(less(I, N), (Write(element(OUT, I), read(A, I) + read(B, I)),)),
    )
    text = source(built).text
    assert (
        text[text.index('extern "C"') :]
        == """\
extern "C" __global__ void __launch_bounds__(128) kernel(
    const float *a,
    const float *b,
    float *out,
    int n) {
  const int i = int(blockIdx.x) * 128 + int(threadIdx.x);
  if (i < n) {
    out[i] = a[i] + b[i];
  }
}
"""
    )
    for arch in TARGETS:
        assert assemble(built, arch).cubin.startswith(b"\x7fELF")


def test_facts() -> None:
    facts = source(program((A, N), shared_bytes=512)).kernels[0]
    assert (facts.name, facts.shared_bytes, facts.block) == ("kernel", 512, (128, 1, 1))
    assert [(each.name, each.kind) for each in facts.params] == [("a", "pointer"), ("n", "scalar")]


def test_arithmetic_that_may_wrap_is_unsigned() -> None:
    text = body((OUT, N), Write(element(OUT, TID), Cast(N * N - N, ScalarType(FLOAT32))))
    assert text == "  out[int(threadIdx.x)] = float(int(unsigned(n) * unsigned(n) - unsigned(n)));"


def test_arithmetic_that_fits_is_plain() -> None:
    index = TID * 3 + 1
    assert body((OUT,), Write(element(OUT, index), read(OUT, index - 1))) == (
        "  out[int(threadIdx.x) * 3 + 1] = out[int(threadIdx.x) * 3 + 1 - 1];"
    )


def test_names_that_cpp_has_taken() -> None:
    double, twice = pointer("double", "float32"), scalar("x.1", "float32")
    text = body((double,), Bind(twice, read(double, 0)), Write(element(double, 1), twice))
    assert text == "  const float x_1 = double_1[0];\n  double_1[1] = x_1;"


def test_a_name_of_a_helper_is_not_hidden() -> None:
    bar_sync = scalar("bar_sync")
    built = program(
        (OUT,),
        Bind(bar_sync, TID),
        Instruct(named.CTA_SYNC, (constant(0, UINT32),)),
        Write(element(OUT, bar_sync), constant(1.0, FLOAT32)),
    )
    assert "const int bar_sync_1 = " in source(built).text
    assemble(built, "sm_80")


def test_byte_offsets_between_types() -> None:
    words = Offset(A, TID * 6 + 2, PointerType(Space.GLOBAL, FLOAT16, 2))
    text = body((A, OUT), Write(element(OUT, 0), Cast(Read(words, ScalarType(FLOAT16)), OUT.type)))
    assert "((const float16 *)a)[int(threadIdx.x) * 3 + 1]" in text
    odd = Offset(A, TID * 3, PointerType(Space.GLOBAL, FLOAT16, 1))
    value = Read(odd, ScalarType(FLOAT16))
    text = body((A, OUT), Write(element(OUT, 0), Cast(value, ScalarType(FLOAT32))))
    assert "*(const float16 *)((const char *)a + int(threadIdx.x) * 3)" in text


def test_loops() -> None:
    local, q, s = array("r", 4, "float32"), scalar("q"), scalar("s", "float32")
    text = body(
        (OUT, N),
        Allocate(local),
        Declare(s, constant(0.0, FLOAT32)),
        For(q, int32(0), int32(4), int32(1), (Store(local, (q,), Cast(q, ScalarType(FLOAT32))),)),
        For(q, int32(0), N, int32(1), (Assign(s, s + 1.0),)),
        For(q, N, int32(0), int32(-1), (Assign(s, s + 1.0),), kind="unroll"),
        For(q, TID, N, int32(128), (Assign(s, s + 1.0), Continue())),
        While(less(s, constant(4.0, FLOAT32)), (Assign(s, s + Load(local, (int32(1),), s.type)),)),
        Write(element(OUT, TID), s),
    )
    assert (
        text
        == """\
  float r[4];
  float s = 0.0f;
  #pragma unroll
  for (int q = 0; q < 4; ++q) {
    r[q] = float(q);
  }
  for (int q = 0; q < n; ++q) {
    s = s + 1.0f;
  }
  #pragma unroll
  for (int q = n; q > 0; --q) {
    s = s + 1.0f;
  }
  for (int q = int(threadIdx.x); q < n; q = advance(q, 128, n)) {
    s = s + 1.0f;
    continue;
  }
  while (s < 4.0f) {
    s = s + r[1];
  }
  out[int(threadIdx.x)] = s;"""
    )


def test_the_bound_of_a_loop_is_taken_once() -> None:
    q, limit = scalar("q"), scalar("limit")
    text = body(
        (OUT,),
        Declare(limit, int32(4)),
        For(q, int32(0), limit, int32(1), (Assign(limit, limit + 1),)),
    )
    assert "const int q_stop = limit;\n  for (int q = 0; q < q_stop; ++q) {" in text


def test_branches() -> None:
    text = body(
        (OUT, N),
        If(
            less(TID, int32(4)),
            (Return(),),
            (If(less(TID, int32(8)), (Write(element(OUT, 0), read(OUT, 1)),), (Return(),)),),
        ),
        While(less(TID, int32(9)), (Break(),)),
    )
    assert (
        text
        == """\
  if (int(threadIdx.x) < 4) {
    return;
  } else if (int(threadIdx.x) < 8) {
    out[0] = out[1];
  } else {
    return;
  }
  while (int(threadIdx.x) < 9) {
    break;
  }"""
    )


def test_print_and_assert() -> None:
    half = pointer("h", "float16")
    built = program(
        (half, N),
        Print('%d "%s" %f é\n', (N, read(half, 0))),
        Assert(less(N, int32(5)), "n is below 5, 100%"),
    )
    text = source(built).text
    assert r'printf("%d \"%s\" %f \303\251\n", n, widen(h[0]));' in text
    assert (
        r"""
  if (!(n < 5)) {
    printf("assertion failed: n is below 5, 100%%\n");
    __trap();
  }
"""
        in text
    )
    for arch in TARGETS:
        assemble(built, arch)


def test_shared_memory_and_an_instruction() -> None:
    shared = pointer("tile", "float16", Space.SHARED)
    registers = array("r", 2, "uint32")
    base = SharedBase(PointerType(Space.SHARED, FLOAT16, 1024))
    form = named.form(matrix_moves.ldmatrix, num="x2", trans="", space="shared")
    places = tuple(Load(registers, (int32(k),), ScalarType(UINT32)) for k in range(2))
    words = pointer("words", "uint32")
    built = program(
        (words,),
        Bind(shared, Offset(base, int32(64), base.type)),
        Allocate(registers),
        Write(element(shared, TID), constant(1.5, FLOAT16)),
        Instruct(named.CTA_SYNC, (constant(0, UINT32),)),
        Instruct(form, (*places, element(shared, TID * 8))),
        Write(element(words, TID), places[0] + places[1]),
        shared_bytes=2048,
    )
    text = source(built).text
    assert "extern __shared__ __align__(1024) unsigned char shared_memory[];" in text
    assert (
        """\
  float16 *tile = (float16 *)shared_memory + 32;
  unsigned r[2];
  tile[int(threadIdx.x)] = float16{0x3e00 /* 1.5 */};
  bar_sync(0u);
  ldmatrix_sync_aligned_m8n8_x2_shared_b16(r[0], r[1], shared_address(tile + int(threadIdx.x) * 8));
"""
        in text
    )
    assert (
        """\
__device__ __forceinline__ void ldmatrix_sync_aligned_m8n8_x2_shared_b16(
    unsigned &d0, unsigned &d1, unsigned p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(d0), "=r"(d1)
               : "r"(p)
               : "memory");
}
"""
        in text
    )
    for arch in TARGETS:
        assert assemble(built, arch).usage["kernel"].stack_bytes == 0


def test_a_predicate_guards_an_instruction_and_old_values_stay() -> None:
    mine = scalar("mine", BOOL)
    chosen = program(
        (OUT,),
        Declare(mine, constant(False, BOOL)),
        Instruct(
            named.ELECT,
            (mine, constant(0xFFFFFFFF, UINT32)),
            predicate=less(TID, int32(32)),
            preserve=True,
        ),
        If(mine, (Write(element(OUT, 0), constant(1.0, FLOAT32)),)),
    )
    assert (
        helpers(chosen)
        == """\
__device__ __forceinline__ void elect_sync_if_keep(bool condition, bool &p, unsigned membermask) {
  int p_bit = int(p);
  asm volatile("{\\n"
               ".reg .pred p_condition;\\n"
               "setp.ne.b32 p_condition, %1, 0;\\n"
               ".reg .pred p_p;\\n"
               "setp.ne.b32 p_p, %0, 0;\\n"
               "@p_condition elect.sync _|p_p, %2;\\n"
               "selp.b32 %0, 1, 0, p_p;\\n"
               "}"
               : "+r"(p_bit)
               : "r"(int(condition)), "r"(membermask)
               : "memory");
  p = p_bit != 0;
}"""
    )
    assemble(chosen, "sm_90")


def test_a_helper_for_each_combination_of_operand_types() -> None:
    x, y = scalar("x", "float32"), scalar("y", "uint32")
    operands = (constant(1, UINT32), constant(31, UINT32), constant(0xFFFFFFFF, UINT32))
    built = program(
        (OUT,),
        Declare(x, constant(1.0, FLOAT32)),
        Declare(y, constant(1, UINT32)),
        Instruct(named.SHFL_BFLY, (x, x, *operands)),
        Instruct(named.SHFL_BFLY, (y, y, *operands)),
        Write(element(OUT, TID), x + Cast(y, ScalarType(FLOAT32))),
    )
    text = source(built).text
    assert text.count("void shfl_sync_bfly_b32(") == 2
    assert '"r"(bit_cast<unsigned>(a))' in text
    for arch in TARGETS:
        assemble(built, arch)


def test_a_register_read_by_a_function() -> None:
    out = pointer("out", "int32")
    built = program((out,), Write(element(out, TID), SpecialRegister("laneid")))
    assert "out[int(threadIdx.x)] = int(read_laneid());" in source(built).text
    assert 'asm("mov.u32 %0, %%laneid;" : "=r"(value));' in source(built).text
    assemble(built, "sm_80")


def test_bulk_copy_takes_addresses_of_each_space() -> None:
    shared = SharedBase(PointerType(Space.SHARED, FLOAT32, 1024))
    form = named.form(async_copy.bulk_load, space="shared::cta")
    barrier = Offset(shared, int32(1024), PointerType(Space.SHARED, dtype("uint64"), 8))
    built = program(
        (A,), Instruct(form, (shared, A, constant(64, UINT32), barrier)), shared_bytes=2048
    )
    text = source(built, "sm_90").text
    assert "(shared_address((float *)shared_memory), global_address(a), 64u," in " ".join(
        text.split()
    ).replace("( shared", "(shared")
    assert "const float *a" in text
    assemble(built, "sm_90")


def test_coordinates_are_one_operand() -> None:
    tensor_map = Var("map", TensorMapType())
    address = AddressOf(tensor_map, (), TENSOR_MAP_POINTER)
    place = SharedBase(PointerType(Space.SHARED, FLOAT32, 1024))
    barrier = Offset(place, int32(1024), PointerType(Space.SHARED, dtype("uint64"), 8))
    space = "shared::cta"
    load = named.form(tensor_copy.tensor_load, dim="3d", space=space)
    hinted = named.form(tensor_copy.tensor_load, dim="1d", space=space, hint="L2::cache_hint")
    store = named.form(tensor_copy.tensor_store, dim="2d", mode="tile")
    built = program(
        (tensor_map,),
        Instruct(load, (place, address, TID, int32(4), int32(5), barrier)),
        Instruct(hinted, (place, address, TID, barrier, constant(7, dtype("uint64")))),
        Instruct(store, (address, TID, int32(0), place)),
        shared_bytes=2048,
    )
    text = source(built, "sm_90").text
    assert f"{load.text} [%0], [%1, {{%2, %3, %4}}], [%5];" in text
    assert f"{hinted.text} [%0], [%1, {{%2}}], [%3], %4;" in text
    assert f"{store.text} [%0, {{%1, %2}}], [%3];" in text
    assemble(built, "sm_90")


def test_a_tensor_map_is_a_grid_constant() -> None:

    map = Var("map", TensorMapType())
    words = pointer("words", "uint64")
    address = Var("x", ScalarType(dtype("uint64")))
    built = program((map, words), Bind(address, read(words, 0)), Write(element(words, 1), address))
    assert "const __grid_constant__ tensor_map map" in source(built, "sm_90").text
    assert source(built, "sm_90").kernels[0].params[0].kind == "tensor_map"
    assemble(built, "sm_90a")


def test_launch_bounds_and_clusters() -> None:
    kernel = Kernel(
        "kernel", (), launch((64, 2, 1), (2, 1, 1)), (), attributes=(("min_blocks_per_sm", 2),)
    )
    built = Program("kernel", (), (), (kernel,))
    head = "void __launch_bounds__(128, 2) __cluster_dims__(2, 1, 1) kernel()"
    assert head in generate(built, target("sm_90a")).text
    assemble(built, "sm_90a")


def test_vectors_are_moved_whole() -> None:
    kind = dtype("float32x4")
    value = scalar("v", kind)
    built = program(
        (A, OUT), Bind(value, read(A, TID, kind)), Write(element(OUT, TID, kind), value)
    )
    assert "const vector<float, 4> v = ((const vector<float, 4> *)a)[int(threadIdx.x)];" in (
        source(built).text
    )
    assert "v4" in assemble(built, "sm_80").ptx


def test_what_lowering_should_not_have_left() -> None:
    tensor = array("t", 2, "float32")
    address = AddressOf(tensor, (int32(0),), PointerType(Space.LOCAL, FLOAT32))
    with pytest.raises(CompilerBug, match="AddressOf was left"):
        body((OUT,), Bind(pointer("p", "float32", Space.LOCAL), address))
    with pytest.raises(CompilerBug, match="no function erf"):
        body((OUT,), Write(element(OUT, 0), Intrinsic("erf", (read(OUT, 0),), ScalarType(FLOAT32))))


def test_selection_and_bits() -> None:
    x = read(A, 0)
    bits = Bitcast(x, ScalarType(UINT32))
    value = select(less(x, constant(0.0, FLOAT32)), Cast(bits, ScalarType(INT32)), int32(0))
    out = pointer("out", "int32")
    assert body((A, out), Write(element(out, 0), value)) == (
        "  out[0] = a[0] < 0.0f ? int(bit_cast<unsigned>(a[0])) : 0;"
    )


def test_loops_over_registers_leave_no_stack() -> None:
    local, i, j = array("r", 16, "float32"), scalar("i"), scalar("j")
    row = scalar("row")
    built = program(
        (A, OUT),
        Allocate(local),
        For(
            i,
            int32(0),
            int32(4),
            int32(1),
            (
                Bind(row, i * 4),
                For(
                    j,
                    int32(0),
                    int32(4),
                    int32(1),
                    (Store(local, (row + j,), read(A, row + j)),),
                ),
            ),
        ),
        Instruct(named.WARP_SYNC, (constant(0xFFFFFFFF, UINT32),)),
        For(
            i,
            int32(0),
            int32(16),
            int32(1),
            (Write(element(OUT, i), Load(local, (15 - i,), ScalarType(FLOAT32))),),
        ),
    )
    assert source(built).text.count("#pragma unroll") == 3
    assert assemble(built, "sm_80").usage["kernel"].stack_bytes == 0
