"""Copies of boxes of tensors: the tensor maps and instructions they become, and their refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.base.dtypes import INT32
from tilewright.base.errors import TileContractError
from tilewright.base.targets import target
from tilewright.frontend import KernelFunction, parse, parse_function
from tilewright.ir.expressions import AddressOf, Expr, Offset, Var, as_constant
from tilewright.ir.printer import print_program
from tilewright.ir.rewrite import substitute
from tilewright.ir.statements import Apply, EncodeTensorMap, Instruct, LaunchKernel, Program
from tilewright.ir.types import ScalarType, TensorMapType
from tilewright.ir.verify import verify
from tilewright.ir.visit import variables, walk_statements
from tilewright.isa.tensor_copy import tensor_load, tensor_store
from tilewright.passes.lower_tiles import lower_tiles
from tilewright.passes.pipeline import lower
from tilewright.runtime.host import evaluate

SM_90A = target("sm_90a")
HEAD = """\
from tilewright import simt as T
from tilewright.layout import *

n = T.dynamic("n")
LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
LOAD_3D = LOAD.replace("2d", "3d")
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
PADDED = TileLayout(S[(16, 64) : (72, 1)])
"""
START = """
@T.function
def k(
    A: T.Tensor(A_SHAPE, A_TYPE, align=A_ALIGN),
    C: T.Tensor((4, n, 64), "float16"),
    P: T.Tensor((16, 64), "float32", layout=PADDED),
    i: T.int32,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=BLOCK))
    tid = T.cuda.thread_idx("x")
    lane = T.cuda.lane_id()
    warp = T.cuda.warp_id()
    row = T.cuda.block_idx("x") * 128
    a = T.alloc_shared(SHAPE, TYPE, layout=LAYOUT, align=ALIGN)
    full = T.alloc_shared((1,), "uint64", layout="default", align=8)
"""
NAMES = {
    "A_SHAPE": "(n, 256)",
    "A_TYPE": '"float16"',
    "A_ALIGN": "16",
    "BLOCK": "128",
    "SHAPE": "(128, 64)",
    "TYPE": '"float16"',
    "LAYOUT": 'mma_shared_layout("float16", 3, (128, 64))',
    "ALIGN": "1024",
}


def kernel(body: str, **names: str) -> KernelFunction:
    """Read a kernel with `body` after the usual buffers, some of them defined otherwise."""
    defined = "".join(f"{name} = {value}\n" for name, value in {**NAMES, **names}.items())
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    made = parse_function(HEAD + defined + START + lines)
    assert parse(made.script()) == made.program, made.script()
    return made


def tiled(body: str, **names: str) -> Program:
    """Lower tiles, and see that this and what all passes make of it print and read back."""
    program = kernel(body, **names).program
    verify(program, "high")
    for found in (lower_tiles(program), lower(program, SM_90A)):
        assert parse(print_program(found)) == found, print_program(found)
    return lower_tiles(program)


def issued(program: Program) -> list[Instruct]:
    found = (stmt for stmt in walk_statements(program) if isinstance(stmt, Instruct))
    return [stmt for stmt in found if stmt.form.declaration in (tensor_load, tensor_store)]


def maps(program: Program) -> list[EncodeTensorMap]:
    return [stmt for stmt in program.host if isinstance(stmt, EncodeTensorMap)]


def numbers(values: tuple[Expr, ...], **given: int) -> tuple[int, ...]:
    return tuple(int(evaluate(each, given)) for each in values)


def load(
    tile: str = "a",
    tensor: str = "A",
    more: str = "swizzle=3",
    *,
    box: str = "(128, 64)",
    coords: str = "(row, 0)",
    form: str = "LOAD",
) -> str:
    text = f"T.cuda.tile.apply({form}, {tile}, {tensor}, box={box}, coords={coords}, {more}"
    return text + ", mbar=full.ptr_to([0]))"


def store(tile: str = "a", tensor: str = "A", more: str = "swizzle=3", **options: str) -> str:
    return load(tensor, tile, more, form="STORE", **options).replace(", mbar=full.ptr_to([0])", "")


def refusal(body: str, **names: str) -> TileContractError:
    with pytest.raises(TileContractError) as caught:
        tiled(body, **names)
    error = caught.value
    assert error.location is not None
    assert "T.cuda.tile.apply" in error.location.excerpt()
    return error


# ---------------------------------------------------------------------------- instructions


def test_a_load_is_an_instruction_of_a_map_that_the_host_makes() -> None:
    program = tiled(load())
    (made,) = maps(program)
    assert isinstance(program.host[-1], LaunchKernel)
    assert made.var == Var("A_map", TensorMapType())
    assert program.kernels[0].params[-1] == made.var
    assert (made.format, made.swizzle, made.interleave) == ("float16", 3, 0)
    assert (made.l2_promotion, made.oob_fill) == (0, 0)
    assert numbers(made.box) == (64, 128)
    assert numbers(made.steps) == (1, 1)
    assert numbers(made.extents, n=1000) == (256, 1000)
    assert numbers(made.strides) == (512,)
    (found,) = issued(program)
    tile, tensor_map, column, line, mbar = map(str, found.operands)
    assert tile.startswith("a.ptr_to([0, 0]")
    assert tensor_map == "T.address_of(A_map)"
    assert (column, line) == ("0", "row")
    assert mbar == "full.ptr_to([0])"
    assert found.predicate is None
    # The map stands where the tensor is named, inside the call.
    assert made.location is not None and found.location is not None
    assert made.location.line == found.location.line
    assert made.location.column > found.location.column


def test_a_store_has_its_map_first() -> None:
    program = tiled(store(coords="(row, 64)"))
    (found,) = issued(program)
    assert found.form.declaration is tensor_store
    assert [str(each) for each in found.operands[:3]] == ["T.address_of(A_map)", "64", "row"]
    assert str(found.operands[3]).startswith("a.ptr_to([0, 0]")
    assert numbers(maps(program)[0].box) == (64, 128)


def test_repetitions_move_by_their_steps() -> None:
    body = load(
        "a.rearrange('(q m) (r k) -> q r m k', q=2, k=64)",
        "A",
        """
        swizzle=3, coord_steps=((64, 0), (0, 64))""",
        box="(64, 64)",
        coords="(row, 8 * i)",
    )
    layout = 'mma_shared_layout("float16", 3, (128, 128))'
    found = issued(tiled(body, SHAPE="(128, 128)", LAYOUT=layout))
    places = [(str(each.operands[3]), str(each.operands[2])) for each in found]
    assert places == [
        ("row", "8 * i"),
        ("row", "8 * i + 64"),
        ("row + 64", "8 * i"),
        ("row + 64", "8 * i + 64"),
    ]
    lowered = issued(lower(kernel(body, SHAPE="(128, 128)", LAYOUT=layout).program, SM_90A))
    starts = [str(each.operands[0]) for each in lowered]
    # A slab of 64 columns has all 128 rows; q is the upper or the lower 64 rows of each.
    for start, offset in zip(starts, (0, 16384, 8192, 24576), strict=True):
        assert start.startswith(f"T.offset(a, {offset},") or (start == "a" and not offset)


def test_a_stage_that_is_not_constant() -> None:
    body = f"""
for s in range(3):
    {load("a.sub[s]", coords="(row, 64 * s)")}
"""
    layout = 'mma_shared_layout("float16", 3, (3, 128, 64))'
    (found,) = issued(lower(kernel(body, SHAPE="(3, 128, 64)", LAYOUT=layout).program, SM_90A))
    assert str(found.operands[0]).startswith("T.offset(a, s * 16384,")
    assert str(found.operands[2]) == "s * 64"


def test_each_lane_issues_a_box_of_its_own() -> None:
    body = load(
        "a.view(32, 4, 64)", more='swizzle=3, coord_steps=((4, 0),), scope="warp"', box="(4, 64)"
    )
    (found,) = issued(tiled(body))
    assert str(found.operands[3]) == "row + T.cuda.lane_id() * 4"
    assert "ptr_to([T.cuda.lane_id(), 0, 0]" in str(found.operands[0])


def test_a_guard_leaves_one_thread_of_the_cta() -> None:
    body = f"""
if warp == 2 and lane == 5:
    {load("a.view(1, 1, 128, 64)", more='swizzle=3, scope="cta"')}
"""
    (found,) = issued(tiled(body))
    assert str(found.operands[3]) == "row"
    body = body.replace("lane == 5", "lane < 2").replace(
        "a.view(1, 1, 128, 64)", "a.view(1, 2, 64, 64)"
    )
    body = body.replace("(128, 64)", "(64, 64)").replace(
        "scope", "coord_steps=((0, 0), (64, 0)), scope"
    )
    (found,) = issued(tiled(body))
    assert str(found.operands[3]) == "row + T.cuda.lane_id() * 64"


def test_a_box_may_begin_within_what_its_swizzle_permutes() -> None:
    body = load("a.view(128, 1, 64)", more="swizzle=3, coord_steps=((1, 0),)", box="(1, 64)")
    found = issued(tiled(body))
    assert len(found) == 128
    # Row 1 begins at byte 128, where its second chunk of 16 bytes lies.
    assert all(str(each.operands[0]).endswith(f"& T.uint32({2**32 - 128})") for each in found)


def test_a_predicate_and_a_cache_policy() -> None:
    more = "swizzle=3, pred=tid == 3, cache_policy=T.uint64(7)"
    for text in (
        load(more=more, form='LOAD + ".L2::cache_hint"'),
        store(more=more).replace("STORE", 'STORE + ".L2::cache_hint"'),
    ):
        (found,) = issued(tiled(text))
        assert str(found.predicate) == "tid == 3"
        assert found.operands[-1].dtype.name == "uint64"
        assert as_constant(found.operands[-1]) == 7


def test_what_the_map_says_besides() -> None:
    more = 'swizzle=2, format="tf32", oob_fill=1, l2_promotion=2, element_strides=(4, 1)'
    program = tiled(
        load(more=more, box="(64, 16)"),
        A_TYPE='"float32"',
        TYPE='"float32"',
        SHAPE="(16, 16)",
        LAYOUT='mma_shared_layout("float32", 2, (16, 16))',
        ALIGN="512",
    )
    (made,) = maps(program)
    assert (made.format, made.oob_fill, made.l2_promotion, made.swizzle) == ("tf32", 1, 2, 2)
    assert numbers(made.box) == (16, 64)
    assert numbers(made.steps) == (1, 4)


def test_elements_of_other_types_are_numbers_of_their_width() -> None:
    program = tiled(
        load(box="(128, 128)"),
        A_TYPE='"float8_e4m3fn"',
        TYPE='"float8_e4m3fn"',
        SHAPE="(128, 128)",
        LAYOUT='mma_shared_layout("float8_e4m3fn", 3, (128, 128))',
    )
    assert maps(program)[0].format == "uint8"


# ---------------------------------------------------------------------------- tensors


def array_of(view: Any, root: np.ndarray) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Give the offset of a view in bytes, and its extents and strides, innermost first."""
    start = view.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return start, view.shape[::-1], view.strides[::-1]


def described(made: EncodeTensorMap, size: int, **given: int) -> Any:
    """Say the same of a map."""
    pointer = made.pointer
    offset = 0
    if isinstance(pointer, Offset):
        offset, pointer = int(evaluate(pointer.bytes, given)), pointer.pointer
    assert isinstance(pointer, AddressOf)
    assert all(as_constant(each) == 0 for each in pointer.indices)
    return offset, numbers(made.extents, **given), (size, *numbers(made.strides, **given))


@pytest.mark.parametrize(
    ("view", "same"),
    [
        ("A", lambda A, C, i: A),
        ("A.sub[8:, 64:192]", lambda A, C, i: A[8:, 64:192]),
        ("A[8:24, 64:192]", lambda A, C, i: A[8:24, 64:192]),
        ("A.sub[8 * i : 8 * i + 16]", lambda A, C, i: A[8 * i : 8 * i + 16]),
        ("A.sub[1::3]", lambda A, C, i: A[1::3]),
        ("C.sub[1]", lambda A, C, i: C[1]),
        ("C.sub[i]", lambda A, C, i: C[i]),
        ("C.sub[:, n // 2]", lambda A, C, i: C[:, 20]),
        ("C.permute(1, 0, 2).sub[3]", lambda A, C, i: C.transpose(1, 0, 2)[3]),
        ("A.view(n, 4, 64).sub[:, 2]", lambda A, C, i: A.reshape(-1, 4, 64)[:, 2]),
        ("A.view(1, n, 256).sub[0]", lambda A, C, i: A),
        ("A.view('uint32').view('float16')", lambda A, C, i: A),
        ("C.view(4 * n, 64)", lambda A, C, i: C.reshape(-1, 64)),
    ],
)
def test_a_map_describes_the_view_as_numpy_does(view: str, same: Any) -> None:
    (made,) = maps(tiled(load(tensor=view)))
    A, C = np.zeros((40, 256), np.float16), np.zeros((4, 40, 64), np.float16)
    seen = same(A, C, 2)
    root = C if view.startswith("C") else A
    assert described(made, 2, n=40, i=2) == array_of(seen, root)
    assert made.var.name == f"{view[0]}_map"


def test_a_tensor_with_three_axes() -> None:
    body = load(
        "a.view(2, 64, 64)",
        "C.permute(1, 0, 2)",
        box="(2, 64, 64)",
        coords="(row, 2, 0)",
        form="LOAD_3D",
    )
    program = tiled(body)
    C = np.zeros((4, 40, 64), np.float16)
    assert described(maps(program)[0], 2, n=40) == array_of(C.transpose(1, 0, 2), C)
    assert numbers(maps(program)[0].box) == (64, 64, 2)
    (found,) = issued(program)
    assert [str(each) for each in found.operands[2:5]] == ["0", "2", "row"]


def test_a_layout_with_strides() -> None:
    names = {
        "TYPE": '"float32"',
        "SHAPE": "(16, 32)",
        "LAYOUT": 'mma_shared_layout("float32", 3, (16, 32))',
    }
    (made,) = maps(tiled(load(tensor="P", box="(16, 32)"), **names))
    assert described(made, 4) == (0, (64, 16), (4, 288))
    assert str(made.pointer).startswith("P.")


def test_a_row_of_its_own_needs_no_stride() -> None:
    # One row of 100 elements is 200 bytes, of which no row follows another.
    (made,) = maps(tiled(load(box="(1, 64)", tile="a.sub[0:1]"), A_SHAPE="(1, 100)"))
    assert described(made, 2) == (0, (100, 1), (2, 208))


def test_names_that_the_kernel_gave_are_known_to_the_host() -> None:
    body = f"""
first = i * 64
last = first + 128
{load(tensor="A.sub[:, first:last]")}
"""
    (made,) = maps(tiled(body))
    assert described(made, 2, n=8, i=1) == (128, (128, 8), (2, 512))


def test_one_map_serves_all_copies_that_need_it() -> None:
    body = f"""
{load(coords="(row, 0)")}
{load(coords="(row, 64)")}
{load(tensor="A.sub[8:]")}
{load(more="swizzle=3, l2_promotion=1")}
"""
    program = tiled(body)
    assert [each.var.name for each in maps(program)] == ["A_map", "A_map_1", "A_map_2"]
    used = [str(each.operands[1]) for each in issued(program)]
    assert used == [f"T.address_of({name})" for name in ("A_map", "A_map", "A_map_1", "A_map_2")]


def test_a_map_gets_a_name_that_is_free() -> None:
    program = tiled("A_map = tid + 1\n" + load(coords="(A_map, 0)"))
    assert [each.var.name for each in maps(program)] == ["A_map_1"]


def test_each_kernel_has_its_maps_before_its_launch() -> None:
    region = f"""
    with T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32)):
        row = T.cuda.block_idx("x") * 128
        a = T.alloc_shared((128, 64), "float16", layout={NAMES["LAYOUT"]}, align=1024)
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        {load()}
"""
    text = f"{HEAD}\n@T.function\ndef k(A: T.Tensor((n, 256), 'float16')):{region}{region}"
    program = lower_tiles(parse(text))
    assert parse(print_program(program)) == program
    assert [type(each).__name__ for each in program.host] == [
        *("EncodeTensorMap", "LaunchKernel", "EncodeTensorMap", "LaunchKernel")
    ]
    assert [each.params[-1].name for each in program.kernels] == ["A_map", "A_map_1"]


def test_coordinates_that_the_host_computes() -> None:
    text = f"""{HEAD}
@T.function
def k(A: T.Tensor((n, 256), "float16")):
    half = n // 2
    with T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32)):
        a = T.alloc_shared((128, 64), "float16", layout={NAMES["LAYOUT"]}, align=1024)
        full = T.alloc_shared((1,), "uint64", layout="default", align=8)
        {load(coords="(half, 0)")}
"""
    program = parse(text)
    assert parse(print_program(program)) == program
    assert [each.name for each in program.kernels[0].params] == ["A", "half"]
    verify(lower(program, SM_90A), "lowered")
    (stmt,) = (each for each in walk_statements(program.kernels[0]) if isinstance(each, Apply))
    renamed = substitute(stmt, {"half": Var("quarter", ScalarType(INT32))})
    assert {each.name for each in variables(renamed)} == {"a", "A", "full", "quarter"}


# ---------------------------------------------------------------------------- maps of the program

OWN = """
def k(A: T.Tensor((n, 256), "float16"), other: T.TensorMap()):
    amap: T.let[T.Ptr(T.TensorMap)] = T.stack_alloca("tensormap", 1)
    T.cuda.tensormap_encode_tiled(
        amap, A.data, 256, n, 512, 64, BOX, 1, 1, descriptor_dtype="float16", rank=2, swizzle=3
    )
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    a = T.alloc_shared((128, 64), "float16", layout=LAYOUT, align=1024)
    full = T.alloc_shared((1,), "uint64", layout="default", align=8)
"""


def own(body: str, box: str = "128") -> Program:
    text = f"{HEAD}\nLAYOUT = {NAMES['LAYOUT']}\nBOX = {box}\n@T.function{OWN}    {body}\n"
    program = lower_tiles(parse(text))
    assert parse(print_program(program)) == program
    return program


def test_a_map_of_the_program_is_used_as_it_is() -> None:
    program = own(load(tensor="T.address_of(amap)", coords="(8, 0)"))
    assert len(maps(program)) == 1
    (found,) = issued(program)
    assert str(found.operands[1]) == "T.address_of(amap)"
    program = own(load(tensor="T.address_of(other)", coords="(8, 0)"))
    assert str(issued(program)[0].operands[1]) == "T.address_of(other)"


def test_what_is_not_known_of_a_map_is_not_checked() -> None:
    assert issued(own(load(tensor="T.address_of(amap)", coords="(8, 0)"), box="n"))


@pytest.mark.parametrize(
    ("more", "box", "says"),
    [
        ("swizzle=3", "64", "another box"),
        ("swizzle=3, element_strides=(2, 1)", "256", "another element_strides"),
        ("swizzle=3, format='bfloat16'", "128", "another format"),
        ("swizzle=3, oob_fill=1", "128", "another oob_fill"),
        ("swizzle=3, l2_promotion=1", "128", "another l2_promotion"),
    ],
)
def test_a_map_that_says_something_else(more: str, box: str, says: str) -> None:
    with pytest.raises(TileContractError) as caught:
        size = "(256, 64)" if "strides" in more else "(128, 64)"
        own(load(tensor="T.address_of(amap)", coords="(8, 0)", more=more, box=size), box)
    assert caught.value.code == "tile-operand"
    assert says in caught.value.message
    assert caught.value.notes[0].startswith("the map is made at")


def test_a_map_with_another_swizzle() -> None:
    layout = 'mma_shared_layout("float16", 2, (256, 32))'
    body = load(
        f"a.view(256, 32, layout={layout})",
        "T.address_of(amap)",
        "swizzle=2",
        box="(256, 32)",
        coords="(0, 0)",
    )
    with pytest.raises(TileContractError, match="another box"):
        own(body)
    with pytest.raises(TileContractError, match="another swizzle") as caught:
        own(
            body.replace("256, 32", "256, 64")
            .replace("swizzle=2", "swizzle=0")
            .replace(
                f"a.view(256, 64, layout={layout.replace('256, 32', '256, 64')})",
                'a.view(128, 64, layout="default")',
            )
            .replace("box=(256, 64)", "box=(128, 64)")
        )
    assert (caught.value.expected, caught.value.found) == ("swizzle 3, as the map", "0")


# ---------------------------------------------------------------------------- shared memory


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_the_layouts_of_boxes(swizzle: int, dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    span = (16, 32, 64, 128)[swizzle] // size
    layout = f'mma_shared_layout("{dtype}", {swizzle}, (32, {span}))' if swizzle else '"default"'
    names = {"TYPE": f'"{dtype}"', "A_TYPE": f'"{dtype}"', "SHAPE": f"(32, {span})"}
    body = load(box=f"(32, {span})", more=f"swizzle={swizzle}")
    period = str(128 << swizzle)
    assert issued(tiled(body, LAYOUT=layout, ALIGN=period, **names))
    error = refusal(body, LAYOUT=layout, ALIGN=str(64 << swizzle), **names)
    assert error.code == "tile-alignment"
    assert error.hint == f"declare it with align={period}"
    if swizzle:
        error = refusal(body, LAYOUT='"default"', ALIGN=period, **names)
        assert error.code == "tile-layout"
        assert error.hint is not None
        assert error.hint.startswith(layout)


def test_the_first_element_that_lies_elsewhere() -> None:
    error = refusal(load(), LAYOUT='"default"')
    # Row 1 is 128 bytes on; there the swizzle exchanges chunks 0 and 1 of 16 bytes.
    assert error.expected == "element [1, 0] at byte 144 of a, where its box has it"
    assert error.found == "it at byte 128 of a"
    assert error.hint == 'mma_shared_layout("float16", 3, (128, 64)) is such a layout'
    error = refusal(load(more="swizzle=0"))
    assert error.expected == "element [1, 0] at byte 128 of a, where its box has it"
    assert error.found == "it at byte 144 of a"
    assert "default" in str(error.hint)


@pytest.mark.parametrize(
    "parameter",
    [
        "swizzle=«4»",
        "swizzle=3, interleave=«1»",
        "swizzle=3, l2_promotion=«4»",
        "swizzle=3, oob_fill=«2»",
        "swizzle=3, element_strides=«(9, 1)»",
        "swizzle=3, format=«'float7'»",
    ],
)
def test_a_parameter_that_no_map_can_have_is_pointed_at(parameter: str) -> None:
    place = refusal(load(more=parameter.replace("«", "").replace("»", ""))).location
    assert place is not None
    wrong = parameter.split("«")[1].split("»")[0]
    assert place.source_line()[place.column : place.end_column] == wrong


def test_a_box_that_no_map_can_have_is_pointed_at() -> None:
    place = refusal(load(box="(257, 64)")).location
    assert place is not None
    assert place.source_line()[place.column : place.end_column] == "(257, 64)"


def test_a_box_that_is_narrower_than_its_span() -> None:
    # On the chip a row takes up the span, whatever the box has of it.
    layout = 'mma_shared_layout("float16", 3, (128, 64))'
    assert issued(tiled(load("a.sub[:, 0:32]", box="(128, 32)"), LAYOUT=layout))
    compact = 'mma_shared_layout("float16", 2, (128, 32))'
    error = refusal(load(box="(128, 32)"), LAYOUT=compact, SHAPE="(128, 32)")
    assert error.code == "tile-layout"
    assert error.expected == "element [1, 0] at byte 144 of a, where its box has it"
    assert error.found == "it at byte 64 of a"
    assert "a row of a box takes up 128 bytes" in str(error.hint)
    assert "allocate (128, 64)" in str(error.hint)
    assert layout in str(error.hint)


def test_a_box_is_not_wider_than_its_span() -> None:
    error = refusal(load(box="(128, 128)"), SHAPE="(128, 128)", LAYOUT='"default"')
    assert "at most 128 bytes" in str(error.expected)
    assert "coord_steps" in str(error.hint)


def test_boxes_without_a_swizzle_begin_at_128_bytes() -> None:
    body = load("a.view(32, 1, 32)", box="(1, 32)", more="coord_steps=((1, 0),)")
    error = refusal(body, SHAPE="(32, 32)", LAYOUT='"default"')
    assert error.code == "tile-alignment"
    assert error.found == "a box that begins at byte 64 of a"


def test_a_start_of_which_too_little_is_known() -> None:
    layout = 'mma_shared_layout("float16", 3, (256, 64))'
    names = {"SHAPE": "(256, 64)", "LAYOUT": layout}
    assert issued(tiled(load("a.sub[8 * i : 8 * i + 128]"), **names))
    error = refusal(load("a.sub[i : i + 128]"), **names)
    assert error.code == "tile-alignment"


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        # parameters
        (load(more="swizzle=3, gather4=(1, 2, 3, 4)"), "tile-operand", "element_strides"),
        (load(more="swizzle=3, cta_mask=3"), "tile-operand", "cta_mask"),
        (store(more="swizzle=3, mbar=full.data"), "tile-operand", "no parameter 'mbar'"),
        (load().replace("box=(128, 64), ", ""), "tile-operand", "2 constants, outermost first"),
        (load(box="(128, i)"), "tile-operand", "(128, i)"),
        (load(box="(2, 64, 64)"), "tile-operand", "2 constants"),
        (load(box="(257, 64)"), "tile-operand", "1 to 256"),
        (load(box="(128, 4)"), "tile-operand", "8 bytes"),
        (load(more="swizzle=4"), "tile-operand", "0, 1, 2 or 3"),
        (load(more="swizzle=i"), "tile-operand", "a constant"),
        (load(more="swizzle=3, interleave=1"), "tile-operand", "not supported"),
        (load(more="swizzle=3, l2_promotion=4"), "tile-operand", "0 to 3"),
        (load(more="swizzle=3, oob_fill=2"), "tile-operand", "(NaN)"),
        (load(more="swizzle=3, format='uint16', oob_fill=1"), "tile-operand", "(zeros)"),
        (load(more="swizzle=3, format='float7'"), "tile-operand", "float32_ftz"),
        (load(more="swizzle=3, format='tf32'"), "tile-operand", "16 bits"),
        (load(more="swizzle=3, element_strides=(9, 1)"), "tile-operand", "1 to 8"),
        (load(more="swizzle=3, element_strides=(1, 2)"), "tile-operand", "last axis"),
        (load(more="swizzle=3, cache_policy=T.uint64(0)"), "tile-operand", "L2::cache_hint"),
        (load(form='LOAD + ".L2::cache_hint"'), "tile-operand", "none given"),
        # coordinates
        (load(coords="(row,)"), "tile-operand", "coords: 2 integers"),
        (load(coords="(row, T.float32(0.0))"), "tile-operand", "coords: 2 integers"),
        (load().replace("coords=(row, 0), ", ""), "tile-operand", "none given"),
        (load(coords="(row, 4)"), "tile-alignment", "a multiple of 8"),
        (load(coords="(row, 16 * tid + 1)"), "tile-alignment", "a multiple of 8"),
        (store(coords="(0 - 8, 0)"), "tile-operand", "no negative coordinates"),
        (load("a.view(2, 64, 64)", box="(64, 64)"), "tile-operand", "(2,)"),
        (
            load("a.view(2, 64, 64)", box="(64, 64)", more="swizzle=3, coord_steps=((0, 1, 2),)"),
            "tile-operand",
            "coord_steps: 2 integers",
        ),
        (load().replace("full.ptr_to([0])", "3"), "tile-operand", "an mbarrier"),
        (load().replace(", mbar=full.ptr_to([0])", ""), "tile-operand", "an mbarrier"),
        # operands
        (load("A", "a"), "tile-operand", "shared side"),
        (load("a", "a"), "tile-operand", "global side"),
        (load("a", "tid"), "tile-operand", "global side"),
        (load("a.view('uint32')"), "tile-operand", "different widths"),
        (load(tensor="A.view('uint32')"), "tile-operand", "different widths"),
        (load(box="(64, 64)"), "tile-shape", "(*repeat, 64, 64)"),
        (load(more='swizzle=3, scope="warp"'), "tile-shape", "(32, *repeat, 128, 64)"),
        (load(more='swizzle=3, scope="cluster"'), "tile-scope", "cluster"),
        # the tensor
        (load(tensor="C"), "tile-shape", "2 axes"),
        (load(tensor="A.permute(1, 0)"), "tile-layout", "side by side"),
        (load(tensor="A.sub[:, ::2]"), "tile-layout", "4 bytes"),
        (load(tensor="A.sub[row:]"), "tile-layout", "only known to the kernel"),
        (load(tensor="A.sub[8 * tid : 8 * tid + 8]"), "tile-layout", "coords="),
        (load(tensor="A.sub[:, 4:]"), "tile-alignment", "a multiple of 16"),
        (load(tensor="A.view(n // 2, 512)"), "tile-layout", "known to have the same axes"),
        (load(tensor="C.permute(1, 0, 2).view(n * 4, 64)"), "tile-layout", "continue"),
    ],
)  # fmt: skip
def test_a_copy_is_refused(body: str, code: str, says: str) -> None:
    error = refusal(body)
    assert error.code == code, error
    assert says in str(error)


@pytest.mark.parametrize(
    ("names", "code", "says"),
    [
        ({"A_ALIGN": "8"}, "tile-alignment", "align=16"),
        ({"A_SHAPE": "(n, 100)"}, "tile-alignment", "multiples of 16 bytes"),
        ({"A_TYPE": '"float32"'}, "tile-operand", "different widths"),
    ],
)
def test_a_tensor_is_refused(names: dict[str, str], code: str, says: str) -> None:
    error = refusal(load(), **names)
    assert error.code == code, error
    assert says in str(error)


def test_a_tensor_of_a_terabyte() -> None:
    body = load("a.view(1, 128, 64)", box="(1, 128, 64)", coords="(0, row, 0)", form="LOAD_3D")
    error = refusal(body, A_SHAPE="(2, 1 << 19, 1 << 20)")
    assert error.code == "tile-alignment"
    assert "below 2^40" in str(error.expected)
    assert error.notes == ("a tensor map lists axes innermost first",)


def test_a_tensor_that_is_swizzled_itself() -> None:
    layout = 'mma_shared_layout("float16", 3, (128, 64))'
    body = load(tensor=f"A.view(128, 64, layout={layout})")
    error = refusal(body, A_SHAPE="(128, 256)")
    assert "swizzled" in str(error.found)


# ---------------------------------------------------------------------------- runs

RUN = """
@T.function
def k(A: T.Tensor(A_SHAPE, TYPE), Out: T.Tensor(OUT, TYPE)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    a = T.alloc_shared(SHAPE, TYPE, layout=LAYOUT, align=1024)
    full = T.alloc_shared((1,), "uint64", layout="default", align=8)
    if lane == 0:
        T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
    T.cuda.cta_sync()
    if lane == 0:
        T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
            T.ptx.SINK, full.ptr_to([0]), T.uint32(BYTES)
        )
"""
READ = """
T.cuda.mbarrier_wait(full.ptr_to([0]), 0)
flat = Out.view(COUNT)
elements = PART.view(COUNT)
for j in range((COUNT + 31) // 32):
    if 32 * j + lane < COUNT:
        flat[32 * j + lane] = elements[32 * j + lane]
"""
WRITE = """
T.cuda.mbarrier_wait(full.ptr_to([0]), 0)
if lane == 0:
    STORE_BOXES
    T.ptx.cp.async_.bulk.commit_group()
    T.ptx.cp.async_.bulk.wait_group(0)
"""


def run(body: str, source: np.ndarray, out: np.ndarray, size: int, **names: str) -> None:
    """Copy with a kernel on the simulator; `size` is of all boxes that are loaded, in bytes."""
    defined = {
        "A_SHAPE": str(source.shape),
        "OUT": str(out.shape),
        "TYPE": f'"{source.dtype}"',
        "COUNT": str(out.size),
        "BYTES": str(size),
        **names,
    }
    lines = "".join(f"{name} = {value}\n" for name, value in defined.items())
    lines += RUN + "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    made = parse_function(HEAD + lines)
    for schedule in ("late", "eager", "random:3"):
        out[...] = 0
        tilewright.compile(made, "sm_90a", backend="sim", schedule=schedule)(source, out)


def read_back(copy: str, part: str = "a") -> str:
    return f"if lane == 0:\n    {copy}" + READ.replace("PART", part)


def matrix(rows: int, columns: int, dtype: str = "float16") -> np.ndarray:
    return (np.arange(rows * columns) % 2039).reshape(rows, columns).astype(dtype)


@pytest.mark.parametrize("swizzle", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_a_swizzled_tile_is_read_by_ordinary_loads(swizzle: int, dtype: str) -> None:
    source = matrix(64, 512, dtype)
    span = (16, 32, 64, 128)[swizzle] // source.itemsize
    layout = f'mma_shared_layout("{dtype}", {swizzle}, (32, {2 * span}))'
    out = np.zeros((2, 32, span), dtype)
    copy = load(
        f"a.rearrange('m (r k) -> r m k', k={span})",
        box=f"(32, {span})",
        coords=f"(16, {span})",
        more=f"swizzle={swizzle}, coord_steps=((0, {span}),)",
    )
    names = {"SHAPE": f"(32, {2 * span})", "LAYOUT": layout}
    run(
        read_back(copy, f"a.rearrange('m (r k) -> r m k', k={span})"),
        source,
        out,
        out.nbytes,
        **names,
    )
    expected = source[16:48, span : 3 * span].reshape(32, 2, span).transpose(1, 0, 2)
    np.testing.assert_array_equal(out, expected)


def test_a_compact_tile() -> None:
    source, out = matrix(64, 64), np.zeros((16, 32), np.float16)
    copy = load("a", box="(16, 32)", coords="(8, 16)", more="swizzle=0")
    run(read_back(copy), source, out, out.nbytes, SHAPE="(16, 32)", LAYOUT='"default"')
    np.testing.assert_array_equal(out, source[8:24, 16:48])


def test_a_narrow_box_has_the_pitch_of_its_span() -> None:
    source, out = matrix(64, 64), np.zeros((32, 24), np.float16)
    copy = load("a.sub[:, 0:24]", box="(32, 24)", coords="(8, 16)", more="swizzle=3")
    layout = 'mma_shared_layout("float16", 3, (32, 64))'
    run(read_back(copy, "a.sub[:, 0:24]"), source, out, 32 * 48, SHAPE="(32, 64)", LAYOUT=layout)
    np.testing.assert_array_equal(out, source[8:40, 16:40])


def test_boxes_of_one_row_make_up_a_swizzled_tile() -> None:
    source, out = matrix(64, 64), np.zeros((32, 64), np.float16)
    copy = load(
        "a.view(32, 1, 64)",
        box="(1, 64)",
        coords="(62, 0)",
        more="swizzle=3, coord_steps=((-2, 0),)",
    )
    layout = 'mma_shared_layout("float16", 3, (32, 64))'
    run(read_back(copy), source, out, out.nbytes, SHAPE="(32, 64)", LAYOUT=layout)
    np.testing.assert_array_equal(out, source[62::-2][:32])


def test_what_is_out_of_bounds_is_filled() -> None:
    source, out = matrix(20, 64), np.zeros((32, 64), np.float16)
    names = {"SHAPE": "(32, 64)", "LAYOUT": 'mma_shared_layout("float16", 3, (32, 64))'}
    run(read_back(load(box="(32, 64)", coords="(-4, 8)")), source, out, out.nbytes, **names)
    expected = np.zeros_like(out)
    expected[4:24, :56] = source[:, 8:]
    np.testing.assert_array_equal(out, expected)
    copy = load(box="(32, 64)", coords="(-4, 8)", more="swizzle=3, oob_fill=1")
    run(read_back(copy), source, out, out.nbytes, **names)
    outside = np.ones(out.shape, np.bool_)
    outside[4:24, :56] = False
    assert (out.view(np.uint16)[outside] == 0x7FF7).all()
    np.testing.assert_array_equal(out[4:24, :56], source[:, 8:])


def test_element_strides_leave_rows_out() -> None:
    source, out = matrix(64, 64), np.zeros((16, 64), np.float16)
    copy = load(box="(46, 64)", coords="(3, 0)", more="swizzle=3, element_strides=(3, 1)")
    names = {"SHAPE": "(16, 64)", "LAYOUT": 'mma_shared_layout("float16", 3, (16, 64))'}
    run(read_back(copy), source, out, out.nbytes, **names)
    np.testing.assert_array_equal(out, source[3:49:3])


def test_a_view_is_what_coordinates_count_in() -> None:
    source, out = matrix(64, 128), np.zeros((16, 64), np.float16)
    copy = load(tensor="A.sub[8:20, 64:]", box="(16, 64)", coords="(2, 0)")
    names = {"SHAPE": "(16, 64)", "LAYOUT": 'mma_shared_layout("float16", 3, (16, 64))'}
    run(read_back(copy), source, out, out.nbytes, **names)
    expected = np.zeros_like(out)
    expected[:10] = source[10:20, 64:]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_a_tile_is_stored_back(swizzle: int) -> None:
    source, out = matrix(64, 64), np.zeros((40, 96), np.float16)
    span = (32, 16, 32, 64)[swizzle]
    shape = f"(32, {span})"
    layout = f'mma_shared_layout("float16", {swizzle}, {shape})' if swizzle else '"default"'
    options = {"box": shape, "more": f"swizzle={swizzle}"}
    body = f"if lane == 0:\n    {load(coords='(16, 0)', **options)}" + WRITE.replace(
        "STORE_BOXES", store(tensor="Out", coords="(16, 32)", **options)
    )
    run(body, source, out, 64 * span, SHAPE=shape, LAYOUT=layout)
    expected = np.zeros_like(out)
    expected[16:, 32 : 32 + span] = source[16:40, :span]
    np.testing.assert_array_equal(out, expected)


def test_every_lane_loads_a_box() -> None:
    source, out = matrix(64, 64), np.zeros((64, 64), np.float16)
    copy = load(
        "a.view(32, 2, 64)",
        box="(2, 64)",
        coords="(0, 0)",
        more='swizzle=3, coord_steps=((2, 0),), scope="warp"',
    )
    names = {"SHAPE": "(64, 64)", "LAYOUT": 'mma_shared_layout("float16", 3, (64, 64))'}
    body = read_back(copy).replace("if lane == 0:\n    T.cuda", "T.cuda")
    run(body, source, out, out.nbytes, **names)
    np.testing.assert_array_equal(out, source)
