"""Products of tiles by the tensor core, and tiles in Tensor Memory: lowering and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tilewright
from tilewright.base.dtypes import FLOAT32, UINT32
from tilewright.base.errors import FrontendError, TargetError, TileContractError, VerifyError
from tilewright.base.spaces import Space
from tilewright.base.targets import target
from tilewright.frontend import KernelFunction, parse, parse_function
from tilewright.ir.expressions import Declared, Var, as_constant, constant, int32
from tilewright.ir.printer import print_program
from tilewright.ir.statements import Bind, Instruct, Program
from tilewright.ir.types import TensorType
from tilewright.ir.verify import verify
from tilewright.ir.visit import walk_statements
from tilewright.isa import tensor_core, tensor_memory
from tilewright.passes.pipeline import lower

SM_100A = target("sm_100a")
SEED = Path(__file__).parents[3] / "shared" / "seeds" / "blackwell_matmul.py"
HEAD = """\
from tilewright import simt as T
from tilewright.layout import *

"""
START = """
@T.function
def k(X: T.Tensor((128, 64), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    tid = T.cuda.thread_idx("x")
    warp = T.cuda.warp_id()
    address = T.alloc_shared((1,), "uint32", layout="default")
    a = T.alloc_shared((128, 64), "float16", layout=A_LAYOUT, align=A_ALIGN)
    b = T.alloc_shared((64, 64), "float16", layout=B_LAYOUT, align=1024)
    d = T.cuda.decl_tmem(
        address[0], ty_args=[T.Tensor(D_SHAPE, D_TYPE, scope="tmem", layout=D_LAYOUT)]
    )
    av = a.rearrange("m (kr k) -> kr m k", k=16).view(1, 4, 128, 16)
    bv = b.rearrange("n (kr k) -> kr n k", k=16).view(1, 4, 64, 16)
"""
NAMES = {
    "A_LAYOUT": 'mma_shared_layout("float16", 3, (128, 64))',
    "A_ALIGN": "1024",
    "B_LAYOUT": 'mma_shared_layout("float16", 3, (64, 64))',
    "D_SHAPE": "(128, 64)",
    "D_TYPE": '"float32"',
    "D_LAYOUT": 'tmem_mma_operand_layout("D", (128, 64), "float32", M=128, cta_group=1)',
}
MMA = 'T.ptx["tcgen05.mma.cta_group::1.kind::f16"]'
LD = 'T.ptx["tcgen05.ld.sync.aligned.32x32b.x64.b32"]'
D = "d.view(1, 1, 128, 64)"


def kernel(body: str, **names: str) -> KernelFunction:
    """Read a kernel with `body` after the usual buffers, some of them defined otherwise."""
    defined = "".join(f"{name} = {value}\n" for name, value in {**NAMES, **names}.items())
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    made = parse_function(HEAD + defined + START + lines)
    assert parse(made.script()) == made.program, made.script()
    return made


def lowered(body: str, **names: str) -> Program:
    program = lower(kernel(body, **names).program, SM_100A)
    assert parse(print_program(program)) == program
    return program


def issued(program: Program, declaration: object) -> list[Instruct]:
    found = (stmt for stmt in walk_statements(program) if isinstance(stmt, Instruct))
    return [stmt for stmt in found if stmt.form.declaration is declaration]


def product(more: str = "", d: str = D, a: str = "av", b: str = "bv", mma: str = MMA) -> str:
    return f"T.cuda.tile.apply({mma}, {d}, {a}, {b}, instruction_shape=(128, 64, 16){more})"


def refusal(body: str, **names: str) -> TileContractError:
    with pytest.raises(TileContractError) as caught:
        lowered(body, **names)
    error = caught.value
    assert error.location is not None and error.location.source_line()
    return error


# ---------------------------------------------------------------------------- products


def test_a_product_is_one_instruction_per_step() -> None:
    found = issued(lowered(product()), tensor_core.mma)
    assert len(found) == 4
    assert [as_constant(each.operands[3]) for each in found] == [135266320] * 4
    assert [as_constant(each.operands[4]) for each in found] == [False, True, True, True]
    words = [str(each.operands[1]) for each in found]
    assert all(str(1073758272 << 32 | 65536) in word for word in words)
    for step, word in enumerate(words):
        assert f"T.offset(a, {32 * step}" in word


def test_the_first_step_adds_if_the_program_says_so() -> None:
    found = issued(lowered(product(", accum=tid == 3")), tensor_core.mma)
    assert str(found[0].operands[4]) == "tid == 3"
    assert as_constant(found[1].operands[4]) is True


def test_parameters_reach_the_instruction() -> None:
    found = issued(lowered(product(", neg_b=True, pred=tid == 0")), tensor_core.mma)
    assert as_constant(found[0].operands[3]) == 135266320 | 1 << 14
    assert {str(each.predicate) for each in found} == {"tid == 0"}


def test_optional_operands_choose_the_form() -> None:
    masks = ", disable_output_lane=(1, 2, T.uint32(3), -1)"
    for more, names in (
        ("", []),
        (masks, ["disable_output_lane"]),
        (", scale_input_d=3", ["scale_input_d"]),
        (masks + ", scale_input_d=3", ["disable_output_lane", "scale_input_d"]),
        (", disable_output_lane=None, scale_input_d=None", []),
    ):
        program = lowered(product(more))
        found = [s for s in walk_statements(program) if isinstance(s, Instruct)]
        found = [each for each in found if tensor_core.is_product(each.form)]
        assert len(found) == 4
        for step, each in enumerate(found):
            own = [o.name for o in each.form.operands]
            assert [name for name in own if name in names] == names and len(own) == 5 + len(names)
            values = [as_constant(operand) for operand in each.operands[4:]]
            expected = [1, 2, 3, 0xFFFFFFFF] * ("disable_output_lane" in names) + [step > 0]
            # Only what is there before the first step is scaled.
            expected += [0 if step else 3] * ("scale_input_d" in names)
            assert values == expected


def test_a_scaled_product_is_refused_where_there_is_none() -> None:
    made = kernel(product(", accum=True, scale_input_d=1"))
    lower(made.program, target("sm_103a"))
    with pytest.raises(TargetError) as caught:
        lower(made.program, target("sm_110a"))
    assert caught.value.code == "missing-instruction"


def test_steps_go_row_by_row_and_k_innermost() -> None:
    layout = 'mma_shared_layout("float16", 3, (64, 64))'
    d = "d.rearrange('m (nr n) -> nr m n', n=32).view(1, 2, 128, 32)"
    b = "b.rearrange('(nr n) (kr k) -> nr kr n k', n=32, k=16)"
    text = f"T.cuda.tile.apply({MMA}, {d}, av, {b}, instruction_shape=(128, 32, 16))"
    found = issued(lowered(text, B_LAYOUT=layout), tensor_core.mma)
    assert [str(each.operands[0]) for each in found] == ["d"] * 4 + ["d + T.uint32(32)"] * 4
    assert "T.offset(b, 4096" in str(found[4].operands[2])


def test_a_stage_that_is_not_constant() -> None:
    text = """
stages = T.alloc_shared((3, 128, 64), "float16", layout=STAGES, align=1024)
for s in range(3):
    av_s = stages.sub[s].rearrange("m (kr k) -> kr m k", k=16).view(1, 4, 128, 16)
    T.cuda.tile.apply(MMA, d.view(1, 1, 128, 64), av_s, bv, instruction_shape=(128, 64, 16))
""".replace("MMA", MMA)
    layout = 'mma_shared_layout("float16", 3, (3, 128, 64))'
    found = issued(lowered(text, STAGES=layout), tensor_core.mma)
    assert "T.offset(stages, s * 16384 + 32, " in str(found[1].operands[1])


def test_a_step_that_is_not_constant() -> None:
    text = """
for s in range(4):
    T.cuda.tile.apply(
        MMA, d.view(1, 1, 128, 64), av.sub[:, s : s + 1], bv.sub[:, s : s + 1],
        instruction_shape=(128, 64, 16), accum=s > 0)
""".replace("MMA", MMA)
    (found,) = issued(lowered(text), tensor_core.mma)
    assert str(found.operands[4]) == "s > 0"


def test_no_descriptor_says_why_for_each_mode() -> None:
    error = refusal(product(), A_LAYOUT='"default"')
    assert error.code == "tile-layout"
    assert [note.split(":")[0] for note in error.notes] == [
        *("SWIZZLE_NONE", "SWIZZLE_32B_ATOM", "SWIZZLE_64B_ATOM", "SWIZZLE_128B_ATOM")
    ]


def test_the_base_must_be_aligned() -> None:
    error = refusal(product(), A_ALIGN="512")
    assert any("a multiple of 512 bytes, not of 1024" in note for note in error.notes)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (product().replace("(128, 64, 16)", "(128, 60, 16)"), "tile-shape", "(128, 60, 16)"),
        (product().replace("(128, 64, 16)", "(128, 64, 8)"), "tile-shape", "(128, 64, 8)"),
        (product().replace(", instruction_shape=(128, 64, 16)", ""), "tile-shape", "none given"),
        (product(", sat_d=True"), "tile-operand", "sat_d"),
        (product(", sat=True"), "tile-operand", "'sat'"),
        (product(", neg_a=tid == 0"), "tile-operand", "neg_a"),
        (product(", scale_input_d=16"), "tile-operand", "from 0 to 15"),
        (product(", scale_input_d=tid"), "tile-operand", "from 0 to 15"),
        (product(", disable_output_lane=(0, 0, 0)"), "tile-operand", "4 masks"),
        (product(", disable_output_lane=0"), "tile-operand", "4 masks"),
        (product(", disable_output_lane=(0, 0, 0, 1 << 32)"), "tile-operand", "4 masks"),
        (product(", disable_output_lane=(0, 0, 0, 1.5)"), "tile-operand", "4 masks"),
        (product(', a_major="m"'), "tile-operand", "'m'"),
        (product(', a_format="bfloat16"'), "tile-operand", "A bfloat16"),
        (product(', a_major="mn"'), "tile-layout", "no descriptor"),
        (product(d="av"), "tile-operand", "shared memory"),
        (product(b="d.view(1, 4, 64, 32)"), "tile-operand", "tmem memory"),
        (product(a="av.sub[:, 0:2]"), "tile-shape", "repeat"),
        (product(mma=MMA.replace("f16", "tf32")), "tile-shape", "(128, 64, 16)"),
    ],
)
def test_a_product_is_refused(body: str, code: str, says: str) -> None:
    error = refusal(body)
    assert error.code == code, error
    assert says in str(error)


def test_d_is_laid_out_as_the_core_writes_it() -> None:
    error = refusal(product(), D_LAYOUT="TileLayout(S[(128, 64) : (1 @ TLane, 2 @ TCol)])")
    assert error.code == "tile-layout"
    assert error.expected is not None
    assert error.expected.startswith("element [0, 1] in lane 0, column 1")
    assert error.found == "lane 0, column 2"


SMALL = """
d64 = T.cuda.decl_tmem(
    address[0], ty_args=[T.Tensor((64, 64), "float32", scope="tmem", layout=D64)]
)
a64 = T.cuda.decl_tmem(
    address[0] + T.uint32(128), ty_args=[T.Tensor((64, 16), "float16", scope="tmem", layout=A64)]
)
T.cuda.tile.apply(
    MMA, d64.view(1, 1, 64, 64), a64.view(1, 1, 64, 16), bv.sub[:, 0:1],
    instruction_shape=(64, 64, 16))
""".replace("MMA", MMA)
SPREAD = 'tmem_datapath_layout("F", 64, {}, sub_slab={})'


@pytest.mark.parametrize("half", [0, 1])
def test_a_in_tensor_memory_lies_in_the_lanes_of_d(half: int) -> None:
    names = {"D64": SPREAD.format(64, half), "A64": SPREAD.format(16, half)}
    (found,) = issued(lowered(SMALL, **names), tensor_core.mma_tmem)
    assert str(found.operands[0]) == ("d64 + T.uint32(1048576)" if half else "d64")
    names["A64"] = SPREAD.format(16, 1 - half)
    error = refusal(SMALL, **names)
    assert error.code == "tile-layout" and "same half of each 32 lanes" in str(error)
    assert error.found == f"D from lane {16 * half} on, A from lane {16 - 16 * half} on"


def test_a_of_64_rows_in_as_many_lanes_is_not_where_the_core_reads_it() -> None:
    plain = 'tmem_mma_operand_layout("A", (64, 16), "float16", M=64, cta_group=1)'
    error = refusal(SMALL, D64=SPREAD.format(64, 0), A64=plain)
    assert error.code == "tile-layout" and error.expected is not None
    assert error.expected.startswith("element [16, 0] in lane 32")
    assert error.found == "lane 16, column 0"
    assert error.hint == 'tmem_datapath_layout("F", 64, …) gives the layout of A'


@pytest.mark.parametrize("start", ["8", "32", "64"])
def test_d_begins_in_a_lane_that_it_may_begin_in(start: str) -> None:
    layout = f"TileLayout(S[(4, 16, 64) : (16 @ TLane, 1 @ TLane, 1 @ TCol)] + {start} @ TLane)"
    error = refusal(SMALL, D64=layout, A64=SPREAD.format(16, 0))
    assert error.code == "tile-layout"


def test_two_products_of_64_rows_fill_the_lanes() -> None:
    text = """
d2 = T.cuda.decl_tmem(
    address[0], ty_args=[T.Tensor((2, 64, 64), "float32", scope="tmem", layout=BOTH)]
)
T.cuda.tile.apply(
    MMA, d2.view(2, 1, 64, 64), a.rearrange("(mr m) (kr k) -> mr kr m k", m=64, k=16), bv,
    instruction_shape=(64, 64, 16))
""".replace("MMA", MMA)
    both = "TileLayout(S[(2, 4, 16, 64) : (16 @ TLane, 32 @ TLane, 1 @ TLane, 1 @ TCol)])"
    found = issued(lowered(text, BOTH=both), tensor_core.mma)
    assert [str(each.operands[0]) for each in found] == ["d2"] * 4 + ["d2 + T.uint32(1048576)"] * 4


def test_d_lies_within_the_columns() -> None:
    error = refusal(
        product(), D_LAYOUT="TileLayout(S[(128, 64) : (1 @ TLane, 1 @ TCol)] + 480 @ TCol)"
    )
    assert error.found == "columns 480 to 543"


# ---------------------------------------------------------------------------- loads, stores


def moved(registers: str, cells: str, instruction: str = LD, scope: str = "warpgroup") -> str:
    return f"""
f = T.alloc_local((128, 64), "float32", layout=FRAGMENT)
T.cuda.tile.apply({instruction}, {registers}, {cells}, scope="{scope}")
"""


FRAGMENT = "TileLayout(S[(128, 64) : (1 @ tid_in_wg, 1)])"
WHOLE = ("f.view(4, 32, 64)", "d.view(4, 32, 64)")


def test_each_warp_loads_its_own_lanes() -> None:
    (found,) = issued(lowered(moved(*WHOLE), FRAGMENT=FRAGMENT), tensor_memory.ld)
    assert [str(each) for each in found.operands[:2]] == ["f[0]", "f[1]"]
    assert "* 2097152" in str(found.operands[-1])


def test_a_part_of_the_columns() -> None:
    text = """
f = T.alloc_local((128, 16), "float32", layout=FRAGMENT)
for c in range(4):
    T.cuda.tile.apply(LD, f.view(4, 32, 16), d.view(4, 32, 64).sub[:, :, 16 * c : 16 * c + 16],
                      scope="warpgroup")
""".replace("LD", LD.replace("x64", "x16"))
    layout = "TileLayout(S[(128, 16) : (1 @ tid_in_wg, 1)])"
    (found,) = issued(lowered(text, FRAGMENT=layout), tensor_memory.ld)
    assert str(found.operands[-1]).count("c * 16") == 1


def test_one_selected_warp() -> None:
    text = """
if warp == 2:
    f = T.alloc_local((32, 64), "float32", layout=FRAGMENT)
    T.cuda.tile.apply(LD, f, d.sub[64:96], scope="warp")
""".replace("LD", LD)
    layout = "TileLayout(S[(32, 64) : (1 @ laneid, 1)])"
    (found,) = issued(lowered(text, FRAGMENT=layout), tensor_memory.ld)
    assert str(found.operands[-1]) == f"d + T.uint32({64 << 16})"
    error = refusal(text.replace("64:96", "32:64"), FRAGMENT=layout)
    assert error.code == "tile-layout"
    assert "from lane 32 on" in str(error)
    error = refusal(text.replace("warp == 2", "warp < 2"), FRAGMENT=layout)
    assert error.code == "tile-scope"


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (moved(WHOLE[0], "d.view(32, 4, 64).permute(1, 0, 2)"), "tile-layout", "element [1, 0]"),
        (moved("f.view(2, 64, 64)", "d.view(2, 64, 64)"), "tile-shape", "(4, *repeat, 32, 64)"),
        (moved("f", "d", scope="thread"), "tile-scope", "whole warps"),
        (moved(*WHOLE, LD.replace("x64", "x32")), "tile-shape", "(4, *repeat, 32, 32)"),
    ],
)
def test_a_load_is_refused(body: str, code: str, says: str) -> None:
    error = refusal(body, FRAGMENT=FRAGMENT)
    assert error.code == code, error
    assert says in str(error)


def halves(more: str = "", second: str = "32:64") -> str:
    return f"""
f = T.alloc_local((4, 2, 16, 32), "float32", layout=HALVES)
q = d.view(4, 2, 16, 64).sub[:, 0]
T.cuda.tile.apply(
    T.ptx["tcgen05.ld.sync.aligned.16x32bx2.x32.b32"],
    f, q.sub[:, :, 0:32], q.sub[:, :, {second}], scope="warpgroup"{more}
)
"""


HALVES = "TileLayout(S[(4, 2, 16, 32) : (1 @ wid_in_wg, 16 @ laneid, 1 @ laneid, 1)])"


def test_the_second_half_is_a_number_of_columns_away() -> None:
    for more in ("", ", imm_half_splitoff=32"):
        (found,) = issued(lowered(halves(more), HALVES=HALVES), tensor_memory.ld_halves)
        assert as_constant(found.operands[-1]) == 32
    error = refusal(halves(", imm_half_splitoff=16"), HALVES=HALVES)
    assert error.found == "one 32 columns after it"


@pytest.mark.parametrize(
    ("shape", "columns", "extents", "strides"),
    [
        ("16x64b", 2, "8, 32, 2", "64, 1 @ laneid, 4 @ laneid, 1, 2 @ laneid"),
        ("16x128b", 4, "8, 32, 4", "64, 1, 4 @ laneid, 2, 1 @ laneid"),
        ("16x256b", 8, "8, 32, 4, 2", "128, 2, 4 @ laneid, 4, 1 @ laneid, 1"),
    ],
)  # fmt: skip
def test_blocks_of_sixteen_lanes(shape: str, columns: int, extents: str, strides: str) -> None:
    text = f"""
f = T.alloc_local((128, {32 * columns}), "float32", layout=FRAGMENT)
T.cuda.tile.apply(
    T.ptx["tcgen05.ld.sync.aligned.{shape}.x32.b32"],
    f.view(4, 2, 16, {32 * columns}), d.view(4, 2, 16, {32 * columns}), scope="warpgroup"
)
"""
    found = issued(
        lowered(
            text,
            FRAGMENT=f"TileLayout(S[(4, 2, 2, {extents}) : (1 @ wid_in_wg, {strides})])",
            D_SHAPE=f"(128, {32 * columns})",
            D_LAYOUT=f'tmem_datapath_layout("D", 128, {32 * columns})',
        ),
        tensor_memory.ld,
    )
    assert len(found) == 2
    assert f"+ {16 << 16}" in str(found[1].operands[-1])


def test_warps_reach_no_other_quarter() -> None:
    turned = "TileLayout(S[(2, 2, 32, 64) : (32 @ TLane, 64 @ TLane, 1 @ TLane, 1 @ TCol)])"
    error = refusal(moved(*WHOLE), FRAGMENT=FRAGMENT, D_LAYOUT=turned)
    assert "the block [1] from lane 64 on" in str(error)


# ---------------------------------------------------------------------------- declarations


def test_an_address_is_evaluated_once() -> None:
    script = print_program(lowered("address[0] = T.uint32(7)\n" + product()))
    assert script.index("d = T.read(") < script.index("T.uint32(7)")


@pytest.mark.parametrize("body", ["d[0, 0] = 1.0", "X[0, 0] = d[tid, 0]"])
def test_tensor_memory_is_not_indexed(body: str) -> None:
    with pytest.raises(FrontendError) as caught:
        lowered(body)
    assert caught.value.code == "bad-index"


def test_an_address_may_be_taken() -> None:
    text = 'x: T.uint32\nT.ptx["tcgen05.ld.sync.aligned.32x32b.x1.b32"](x, d.ptr_to([32, 5]))'
    (found,) = issued(lowered(text), tensor_memory.ld)
    assert str(found.operands[-1]) == f"d + T.uint32({(32 << 16) + 5})"


def test_an_address_inside_a_cell_is_refused() -> None:
    text = 'x: T.uint32\nT.ptx["tcgen05.ld.sync.aligned.32x32b.x1.b32"](x, d.ptr_to([0, 1]))'
    layout = "TileLayout(S[(128, 64) : (1 @ TLane, 1 @ TCol)])"
    with pytest.raises(FrontendError) as caught:
        lowered(text, D_TYPE='"float16"', D_LAYOUT=layout)
    assert caught.value.code == "bad-view"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("T.tmem((128, 64), 'float32')", "bad-call"),
        ("T.alloc_tensor((128, 64), 'float32', scope='tmem')", "bad-call"),
        ("T.decl_tensor(1.5, ty_args=[T.Tensor((8,), 'int32', scope='tmem')])", "operand-type"),
        ("T.decl_tensor(a.data, ty_args=[T.Tensor((8,), 'float16')])", "operand-type"),
        ("d.view(128, 64, layout=D2)", "bad-view"),
        (
            "T.decl_tensor(address[0], ty_args=[T.Tensor((8, 8), 'float32', scope='tmem', "
            "layout=TileLayout(S[(8, 8)]))])",
            "bad-layout",
        ),
    ],
)  # fmt: skip
def test_a_declaration_is_refused(body: str, code: str) -> None:
    with pytest.raises(FrontendError) as caught:
        kernel(body, D2="TileLayout(S[(128, 64) : (1 @ TLane, 2 @ TCol)])")
    assert caught.value.code == code, caught.value


def test_the_verifier_knows_declared_tensors() -> None:
    type = TensorType((int32(8),), FLOAT32, Space.SHARED)
    wrong = Bind(Var("t", type), Declared(constant(0, UINT32), type))
    made = kernel("pass").program
    (only,) = made.kernels
    with pytest.raises(VerifyError, match="no address in shared memory"):
        verify(replace(made, kernels=(replace(only, body=(wrong,)),)))


def test_storage_behind_a_pointer() -> None:
    made = kernel(
        """
half = T.decl_tensor(a.ptr_to([8, 0]), ty_args=[T.Tensor((16,), "float16", scope="shared")])
half[3] = T.float16(1)
row = T.decl_tensor(X.ptr_to([tid, 0]), ty_args=[T.Tensor((64,), "uint32")])
row[1] = row[0]
one = T.decl_scalar(X.ptr_to([tid, 2]))
one = 2.0
"""
    )
    verify(made.program, "high")
    script = print_program(lower(made.program, SM_100A))
    assert 'half = T.offset(a, 1024, "float16", 1024)' not in script
    assert 'T.write(T.offset(half, 6, "float16", 2), T.float16(1.0))' in script
    assert 'T.write(T.offset(row, 4, "uint32", 4)' in script
    X = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    expected = X.copy()
    expected[:, 1], expected[:, 2] = X[:, 0], 2.0
    tilewright.compile(made, target="sm_100a")(X)
    assert np.array_equal(X, expected)


def test_addresses_are_moved_by_lanes_and_columns() -> None:
    script = print_program(lowered("x = T.cuda.get_tmem_addr(address[0], 32, 7)\nX[0, 0] = x"))
    assert f"+ T.uint32({(32 << 16) + 7})" in script


# ---------------------------------------------------------------------------- the seed


def seed() -> KernelFunction:
    text = SEED.read_text().split("import torch")[0]
    for old, new in (
        ("from tvm_tirx.script import tirx as T", "from tilewright import simt as T"),
        ("tvm_tirx.backend.cuda.axis", "tilewright.layout"),
        ("tvm_tirx.backend.cuda.layout", "tilewright.layout"),
        ("tvm_tirx.tirx.layout", "tilewright.layout"),
    ):
        text = text.replace(old, new)
    return parse_function(text)


@pytest.mark.skipif(not SEED.exists(), reason="the seed programs are not here")
def test_the_seed_reads_lowers_and_prints() -> None:
    made = seed()
    assert parse(made.script()) == made.program
    program = lower(made.program, SM_100A)
    assert parse(print_program(program)) == program
    assert len(issued(program, tensor_core.mma)) == 4
    with pytest.raises(TargetError) as caught:
        lower(made.program, target("sm_90a"))
    assert caught.value.code == "missing-instruction"
    assert caught.value.location is not None


# ---------------------------------------------------------------------------- results

PRODUCT = """
@T.function
def product(
    A: T.Tensor(A_SHAPE, ELEMENT),
    B: T.Tensor(B_SHAPE, ELEMENT),
    Before: T.Tensor((128, N), "uint32"),
    Out: T.Tensor((128, N), "uint32"),
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    tid = T.cuda.thread_idx("x")
    warp = T.cuda.warp_id()
    a = T.alloc_shared(A_SHAPE, ELEMENT, layout=A_LAYOUT, align=1024)
    b = T.alloc_shared(B_SHAPE, ELEMENT, layout=B_LAYOUT, align=1024)
    address = T.alloc_shared((1,), "uint32", layout="default")
    mbar = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if warp == 0:
        T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
            T.address_of(address), T.uint32(512)
        )
    if tid == 0:
        T.ptx.mbarrier.init.shared.b64(mbar.ptr_to([0]), T.uint32(1))
    if tid < A_SHAPE[0]:
        for j in range(A_SHAPE[1]):
            a[tid, j] = A[tid, j]
    if tid < B_SHAPE[0]:
        for j in range(B_SHAPE[1]):
            b[tid, j] = B[tid, j]
    T.ptx.fence.proxy.async_.shared__cta()
    T.cuda.cta_sync()
    d = T.cuda.decl_tmem(
        address[0], ty_args=[T.Tensor((M, N), D_TYPE, scope="tmem", layout=D_LAYOUT)]
    )
    every = T.cuda.decl_tmem(
        address[0], ty_args=[T.Tensor((128, N), "uint32", scope="tmem", layout=EVERY)]
    )
    frag = T.alloc_local((128, N), "uint32", layout=FRAGMENT)
    local = frag.view(N, layout="default")
    for j in range(N):
        local[j] = Before[tid, j]
    T.cuda.tile.apply(
        T.ptx["tcgen05.st.sync.aligned.32x32b.x" + str(N) + ".b32"],
        every.view(4, 32, N),
        frag.view(4, 32, N),
        scope="warpgroup",
    )
    T.ptx.tcgen05.wait__st.sync.aligned()
    T.ptx.tcgen05.fence__before_thread_sync()
    T.cuda.cta_sync()
    T.ptx.tcgen05.fence__after_thread_sync()
    left = a.rearrange(A_PATTERN, k=K, m=M)
    if IN_CELLS:
        words = T.alloc_local((128, 32), "uint32", layout=WORDS)
        own = words.view(32, layout="default")
        # The row of each lane; of 64, each half of 32 lanes gets the same sixteen.
        row = tid if M == 128 else 16 * (tid // 32) + tid % 16
        for j in range(32):
            own[j] = A.view("uint32")[row, j]
        lanes = T.cuda.decl_tmem(
            address[0] + T.uint32(256),
            ty_args=[T.Tensor((128, 32), "uint32", scope="tmem", layout=A_LANES)],
        )
        T.cuda.tile.apply(
            T.ptx["tcgen05.st.sync.aligned.32x32b.x32.b32"],
            lanes.view(4, 32, 32),
            words.view(4, 32, 32),
            scope="warpgroup",
        )
        cells = T.cuda.decl_tmem(
            address[0] + T.uint32(256),
            ty_args=[T.Tensor((M, DEPTH), ELEMENT, scope="tmem", layout=A_CELLS)],
        )
        T.ptx.tcgen05.wait__st.sync.aligned()
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        left = cells.rearrange(A_PATTERN, k=K, m=M)
    if tid == 0:
        T.cuda.tile.apply(
            T.ptx["tcgen05.mma.cta_group::1.kind::" + KIND],
            d.view(1, 1, M, N),
            left,
            b.rearrange(B_PATTERN, k=K, n=N),
            instruction_shape=(M, N, K),
            a_major=A_MAJOR,
            b_major=B_MAJOR,
            OPTIONS
        )
        T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
            mbar.ptr_to([0])
        )
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    T.ptx.tcgen05.fence__after_thread_sync()
    T.cuda.tile.apply(
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x" + str(N) + ".b32"],
        frag.view(4, 32, N),
        every.view(4, 32, N),
        scope="warpgroup",
    )
    T.ptx.tcgen05.wait__ld.sync.aligned()
    for j in range(N):
        Out[tid, j] = local[j]
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(address[0], T.uint32(512))
"""


def results(
    element: str = "float16",
    d_type: str = "float32",
    mode: int = 3,
    majors: tuple[str, str] = ("k", "k"),
    M: int = 128,
    N: int = 64,
    depth: int = 64,
    in_cells: bool = False,
    half: int = 0,
    more: str = "",
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Run a product on the simulator: give D before and after it, and the product by NumPy.

    `half` puts D, and A in Tensor Memory, into the upper 16 of each 32 lanes; `more` are further
    parameters.
    """
    shapes = [
        (r, depth) if major == "k" else (depth, r) for r, major in zip((M, N), majors, strict=True)
    ]
    patterns = [
        f"({x}r {x}) (kr k) -> {x}r kr {x} k"
        if major == "k"
        else f"(kr k) ({x}r {x}) -> {x}r kr {x} k"
        for x, major in zip("mn", majors, strict=True)
    ]
    d_layout = f'tmem_mma_operand_layout("D", {(M, N)}, {d_type!r}, M={M}, cta_group=1)'
    if half:
        d_layout = f'tmem_datapath_layout("F", 64, {N}, sub_slab=1)'
    cells = f'tmem_datapath_layout("{"D" if M == 128 else "F"}", {M}, {depth}, sub_slab={half})'
    names = {
        "M": M,
        "N": N,
        "K": 8 if element == "float32" else 16,
        "DEPTH": depth,
        "KIND": repr("tf32" if element == "float32" else "f16"),
        "ELEMENT": repr(element),
        "D_TYPE": repr(d_type),
        "A_SHAPE": shapes[0],
        "B_SHAPE": shapes[1],
        "A_PATTERN": repr(patterns[0]),
        "B_PATTERN": repr(patterns[1]),
        "A_MAJOR": repr(majors[0]),
        "B_MAJOR": repr(majors[1]),
        "IN_CELLS": in_cells,
        "A_LAYOUT": f"mma_shared_layout({element!r}, {mode}, {shapes[0]})",
        "B_LAYOUT": f"mma_shared_layout({element!r}, {mode}, {shapes[1]})",
        "D_LAYOUT": d_layout,
        "A_CELLS": cells,
        "A_LANES": "TileLayout(S[(128, 32) : (1 @ TLane, 1 @ TCol)])",
        "EVERY": f"TileLayout(S[(128, {N}) : (1 @ TLane, 1 @ TCol)])",
        "FRAGMENT": f"TileLayout(S[(128, {N}) : (1 @ tid_in_wg, 1)])",
        "WORDS": "TileLayout(S[(128, 32) : (1 @ tid_in_wg, 1)])",
    }
    defined = "".join(f"{name} = {value}\n" for name, value in names.items())
    made = parse_function(HEAD + defined + PRODUCT.replace("OPTIONS", more))
    assert parse(made.script()) == made.program
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (rows, depth)).astype(element) for rows in (M, N))
    given = [
        np.ascontiguousarray(x if c == "k" else x.T) for x, c in zip((a, b), majors, strict=True)
    ]
    before = (16 * random.integers(-8, 9, (128, N))).astype(d_type)
    words = before.view(f"uint{8 * before.itemsize}").astype(np.uint32)
    out = np.zeros_like(words)
    tilewright.compile(made, target="sm_100a")(*given, words, out)
    found = np.ascontiguousarray(out.astype(f"uint{8 * before.itemsize}")).view(d_type)
    lanes = np.arange(128)
    if M == 64:
        lanes = np.arange(64) // 16 * 32 + np.arange(64) % 16 + 16 * half
    others = np.setdiff1d(np.arange(128), lanes)
    assert np.array_equal(out[others], words[others])
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    return before[lanes].astype(np.float32), found[lanes].astype(np.float32), wanted


@pytest.mark.parametrize(
    "options",
    [
        *({"mode": mode} for mode in range(3)),
        *({"mode": mode, "majors": ("mn", "mn")} for mode in range(4)),
        {"majors": ("k", "mn")},
        {"M": 64, "N": 8},
        {"M": 64, "N": 32, "half": 1},
        {"M": 64, "N": 64, "mode": 1, "majors": ("mn", "mn")},
        {"M": 64, "N": 32, "in_cells": True},
        {"M": 64, "N": 32, "in_cells": True, "half": 1},
        {"N": 128, "element": "bfloat16", "in_cells": True, "majors": ("k", "mn")},
        {"M": 64, "N": 128, "element": "float32", "depth": 32, "in_cells": True},
        {"d_type": "float16"},
        {"d_type": "float16", "M": 64, "N": 16, "mode": 0},
        {"in_cells": True},
        {"element": "float32", "depth": 32},
        {"element": "float32", "depth": 32, "mode": 4, "majors": ("mn", "mn")},
        {"element": "float32", "depth": 32, "mode": 4, "majors": ("mn", "mn"), "M": 64},
    ],
    ids=str,
)
def test_products_are_right(options: dict[str, Any]) -> None:
    _, found, wanted = results(**options)
    assert np.array_equal(found, wanted)


def test_a_product_is_added_to_what_is_there() -> None:
    before, found, wanted = results(more="accum=True")
    assert np.array_equal(found, before + wanted)


@pytest.mark.parametrize(
    ("negated", "sign"), [(("neg_a",), -1), (("neg_b",), -1), (("neg_a", "neg_b"), 1)]
)
def test_matrices_are_negated(negated: tuple[str, ...], sign: int) -> None:
    more = "".join(f"{name}=True, " for name in negated)
    before, found, wanted = results(more=more + "accum=True, sat_d=False")
    assert np.array_equal(found, before + sign * wanted)


@pytest.mark.parametrize("shift", [0, 1, 4])
def test_what_is_there_is_scaled_once(shift: int) -> None:
    """Whatever the number of steps in K."""
    before, found, wanted = results(more=f"accum=True, scale_input_d={shift}")
    assert np.array_equal(found, before / 2**shift + wanted)
    _, found, wanted = results(more=f"scale_input_d={shift}", d_type="float16", mode=0)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("M", "in_cells"), [(128, False), (128, True), (64, False)])
def test_lanes_stay_that_are_masked(M: int, in_cells: bool) -> None:
    masks = (0xFFFF0000, 0, 0x12345678, 0xFFFFFFFF)
    more = f"disable_output_lane=({masks[0]}, T.uint32(0), {masks[2]}, -1)"
    before, found, wanted = results(M=M, in_cells=in_cells, more=more)
    lane = np.arange(128) if M == 128 else np.arange(64) // 16 * 32 + np.arange(64) % 16
    stays = [masks[each // 32] >> each % 32 & 1 for each in lane]
    assert np.array_equal(found, np.where(np.array(stays)[:, None], before, wanted))
