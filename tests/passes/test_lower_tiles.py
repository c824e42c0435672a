"""Tile operations: the instructions they become, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_programs import (
    A_LOAD,
    A_MMA,
    B_MMA,
    D_MMA,
    INT,
    MMA,
    ONE,
    body_of,
    box,
    form,
    line,
    local,
    param,
    permute,
    program,
    reinterpret,
    relayout,
    reshape,
    scalar,
    shared,
    warp_matmul,
)

from tilewright.base.dtypes import FLOAT16, FLOAT32, UINT32
from tilewright.base.errors import TileContractError
from tilewright.ir.expressions import (
    AddressOf,
    Expr,
    Load,
    SpecialRegister,
    Var,
    as_constant,
    as_expr,
    binary,
    constant,
    int32,
)
from tilewright.ir.printer import print_program
from tilewright.ir.statements import Allocate, Apply, Bind, For, If, Instruct, Program, Return, Stmt
from tilewright.ir.visit import walk_statements
from tilewright.layout import Axis, S, TileLayout, laneid, m, mma_shared_layout, tx, warpid
from tilewright.passes.analysis.evaluation import Environment, evaluate
from tilewright.passes.lower_tiles import lower_tiles
from tilewright.passes.places import locate

LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"


def instructions(found: Program) -> list[Instruct]:
    return [stmt for stmt in walk_statements(found) if isinstance(stmt, Instruct)]


def registers(operands: tuple[Expr, ...]) -> list[tuple[str, int]]:
    found = []
    for each in operands:
        assert isinstance(each, Load)
        root = locate(each.tensor, (0,)).root
        found.append((root.name, as_constant(each.indices[0])))
    return found


def lower(body: list[Stmt], **options: Any) -> list[Instruct]:
    return instructions(lower_tiles(program(body, **options)))


def refused(body: list[Stmt], code: str, at: int, **options: Any) -> TileContractError:
    with pytest.raises(TileContractError) as caught:
        lower(body, **options)
    assert caught.value.code == code, caught.value
    assert caught.value.location == line(at)
    return caught.value


# ---- the seed program


def test_before_and_after() -> None:
    text = print_program(lower_tiles(warp_matmul()))
    lane = "T.cuda.lane_id()"
    assert (
        f'T.ptx["{LDMATRIX}"](ar[0], ar[1], ar[2], ar[3], a.view("uint32").view(2, 8, 2, 4)'
        f".permute(2, 0, 1, 3).view(4, 8, 4).ptr_to([{lane} // 8 % 4, {lane} % 8, 0], align=16))"
        in text
    )
    zeros = ", ".join(["T.float32(0.0)"] * 4)
    assert (
        f'T.ptx["{MMA}"](dr[0], dr[1], dr[2], dr[3], ar[0], ar[1], ar[2], ar[3], '
        f"br[0], br[1], {zeros})" in text
    )
    assert "tile.apply" not in text


def test_instructions_keep_the_place_of_the_operation() -> None:
    found = instructions(lower_tiles(warp_matmul()))
    assert [each.location for each in found] == [line(9), line(10), line(11)]


# ---- repetition


def product_of(m_tiles: int, n_tiles: int, k_tiles: int, scalar_c: bool = False) -> list[Stmt]:
    d = local("d", (m_tiles * n_tiles * 4,), FLOAT32)
    c = local("c", (m_tiles * n_tiles * 4,), FLOAT32)
    a = local("a", (m_tiles * k_tiles * 4,), UINT32)
    b = local("b", (n_tiles * k_tiles * 2,), UINT32)

    def over(outer: tuple[int, int], count: int, atom: TileLayout) -> TileLayout:
        columns = outer[1]
        leading = TileLayout(S[outer : (columns * count, count)])
        return TileLayout.from_iters((*leading.shard, *atom.shard[2:]))

    d_layout = over((m_tiles, n_tiles), 4, D_MMA)
    operands: tuple[Expr, ...] = (
        relayout(d, (m_tiles, n_tiles, 16, 8), d_layout),
        relayout(a, (m_tiles, k_tiles, 16, 8), over((m_tiles, k_tiles), 4, A_MMA)),
        relayout(b, (n_tiles, k_tiles, 8, 8), over((n_tiles, k_tiles), 2, B_MMA)),
        constant(0.0, FLOAT32) if scalar_c else relayout(c, (m_tiles, n_tiles, 16, 8), d_layout),
    )
    return [*map(Allocate, (d, c, a, b)), Apply(form(MMA), operands, "warp", location=line(7))]


def test_repetitions_run_row_by_row_with_k_innermost() -> None:
    found = lower(product_of(2, 3, 2))
    steps = [(each.operands[0], each.operands[4], each.operands[8]) for each in found]
    starts = [tuple(number for _, number in registers(each)) for each in steps]
    assert starts == [
        (4 * (3 * i + j), 4 * (2 * i + k), 2 * (2 * j + k))
        for i in range(2)
        for j in range(3)
        for k in range(2)
    ]


@pytest.mark.parametrize("scalar_c", [False, True])
def test_products_are_chained_along_k(scalar_c: bool) -> None:
    first, second, third = lower(product_of(1, 1, 3, scalar_c))
    if scalar_c:
        assert first.operands[10:] == (constant(0.0, FLOAT32),) * 4
    else:
        assert registers(first.operands[10:]) == [("c", i) for i in range(4)]
    for later in (second, third):
        assert registers(later.operands[10:]) == [("d", i) for i in range(4)]


# ---- registers


def test_registers_may_lie_anywhere_in_the_thread() -> None:
    scattered = TileLayout(S[(4, 8, 4) : (3, 4 @ laneid, 1 @ laneid)] + 2)
    ar = local("ar", (12,), UINT32)
    body = [Allocate(ar), ldmatrix_into(relayout(ar, (4, 8, 4), scattered))]
    (found,) = lower(body)
    assert registers(found.operands[:4]) == [("ar", 2), ("ar", 5), ("ar", 8), ("ar", 11)]


def ldmatrix_into(registers: Expr, source: Expr | None = None, scope: str = "warp") -> Apply:
    words = shared("words", (4, 8, 4), UINT32, align=16) if source is None else source
    return Apply(form(LDMATRIX), (registers, words), scope, location=line(5))


def fragment(name: str = "ar", layout: TileLayout = A_LOAD) -> Expr:
    return relayout(local(name, (4,), UINT32), (4, 8, 4), layout)


@pytest.mark.parametrize("axis", [laneid, tx])
def test_equivalent_axes_own_the_same(axis: Axis) -> None:
    layout = TileLayout(S[(4, 8, 4) : (1, 4 @ axis, 1 @ axis)])
    (found,) = lower([ldmatrix_into(fragment(layout=layout))])
    assert registers(found.operands[:4]) == [("ar", i) for i in range(4)]


def test_wrong_lane_is_refused() -> None:
    layout = TileLayout(S[(4, 8, 4) : (1, 1 @ laneid, 8 @ laneid)])
    error = refused([ldmatrix_into(fragment(layout=layout))], "tile-ownership", 5)
    assert "ar" in error.message
    assert error.expected == "element [0, 0, 1] on lane 1"
    assert error.found == "it on lane 8"


def test_registers_that_differ_between_lanes_are_refused() -> None:
    layout = TileLayout(S[(2, 2, 8, 4) : (2, 1, 4 @ laneid, 1 @ laneid)])
    ar = local("ar", (8,), UINT32)
    skewed = relayout(ar, (4, 8, 4), TileLayout(S[(4, 8, 4) : (1, 4 @ laneid, 1 @ laneid)]))
    wrong = relayout(ar, (4, 8, 4), TileLayout(S[(4, 8, 4) : (1, 1, 1 @ laneid)]))
    assert lower([ldmatrix_into(skewed)]) and layout
    error = refused([ldmatrix_into(wrong)], "tile-ownership", 5)
    assert error.expected == "element [0, 1, 0] on lane 4"


def test_a_register_is_not_written_twice() -> None:
    layout = TileLayout(S[(4, 8, 4) : (0, 4 @ laneid, 1 @ laneid)])
    error = refused([ldmatrix_into(fragment(layout=layout))], "tile-ownership", 5)
    assert error.found == "elements [0, 0, 0] and [1, 0, 0] in one"


def test_a_register_tile_may_begin_at_a_loop_counter() -> None:
    i = scalar("i")
    ar = local("ar", (2, 4), UINT32)
    part = relayout(box(ar, i, (0, 4)), (4, 8, 4), A_LOAD)
    (found,) = lower([Allocate(ar), For(i, int32(0), int32(2), ONE, (ldmatrix_into(part),))])
    for at in (0, 1):
        numbers = [
            evaluate(each.indices[0], Environment({i: at}))
            for each in found.operands[:4]
            if isinstance(each, Load)
        ]
        assert numbers == [4 * at + r for r in range(4)]


# ---- shapes and operands


def test_wrong_atom_is_refused() -> None:
    words = shared("words", (4, 4, 8), UINT32, align=16)
    error = refused([ldmatrix_into(fragment(), words)], "tile-shape", 5)
    assert "words" in error.message
    assert (error.expected, error.found) == ("(*repeat, 4, 8, 4)", "(4, 4, 8)")


def test_repeats_must_agree() -> None:
    words = shared("words", (3, 4, 8, 4), UINT32, align=16)
    ar = relayout(
        local("ar", (8,), UINT32),
        (2, 4, 8, 4),
        TileLayout(S[(2, 4, 8, 4) : (4, 1, 4 @ laneid, 1 @ laneid)]),
    )
    error = refused([ldmatrix_into(ar, words)], "tile-shape", 5)
    assert "2" in (error.expected or "") and "3" in (error.found or "")


def test_wrong_space_is_refused() -> None:
    words = param("words", (4, 8, 4), UINT32, align=16)
    error = refused([ldmatrix_into(fragment(), words)], "tile-operand", 5)
    assert (error.expected, error.found) == ("shared memory", "global memory")


def test_wrong_width_is_refused() -> None:
    words = shared("words", (4, 8, 4), FLOAT16, align=16)
    error = refused([ldmatrix_into(fragment(), words)], "tile-operand", 5)
    assert error.expected == "elements of 32 bits"
    assert 'view("uint32")' in (error.hint or "")


def test_a_register_tile_needs_a_layout() -> None:
    error = refused([ldmatrix_into(local("ar", (4, 8, 4), UINT32, layout=None))], "tile-operand", 5)
    assert 'layout="default"' in (error.hint or "")


def test_an_instruction_without_a_tile_form_is_refused() -> None:
    body: list[Stmt] = [
        Apply(form("movmatrix.sync.aligned.m8n8.trans.b16"), (), "warp", location=line(5))
    ]
    refused(body, "tile-unsupported", 5)


def test_unknown_parameters_are_refused() -> None:
    apply = Apply(
        form(LDMATRIX),
        (fragment(), shared("words", (4, 8, 4), UINT32, align=16)),
        "warp",
        (("speed", 3),),
        location=line(5),
    )
    assert refused([apply], "tile-operand", 5).found == "speed"


# ---- alignment


def test_alignment_must_be_declared() -> None:
    words = shared("words", (4, 8, 4), UINT32, align=8)
    error = refused([ldmatrix_into(fragment(), words)], "tile-alignment", 5)
    assert error.expected == "addresses that are multiples of 16 bytes"
    assert error.found == "words is aligned to 8 bytes"
    assert error.hint == "declare it with align=16"


def test_rows_must_be_aligned() -> None:
    words = relayout(
        shared("words", (200,), UINT32, align=16), (4, 8, 4), TileLayout(S[(4, 8, 4) : (48, 6, 1)])
    )
    error = refused([ldmatrix_into(fragment(), words)], "tile-alignment", 5)
    assert error.found == "element [0, 1, 0] is 24 bytes after the start of words"


def test_words_of_a_row_must_be_consecutive() -> None:
    words = permute(shared("words", (4, 4, 8), UINT32, align=16), 0, 2, 1)
    refused([ldmatrix_into(fragment(), words)], "tile-alignment", 5)


def sliced(start: Expr) -> Expr:
    return box(shared("words", (4, 8, 64), UINT32, align=16), (0, 4), (0, 8), (start, 4))


def test_a_start_of_unknown_alignment_is_refused() -> None:
    error = refused(
        [
            Bind(scalar("s"), SpecialRegister("ctaid.x")),
            ldmatrix_into(fragment(), sliced(scalar("s"))),
        ],
        "tile-alignment",
        5,
        grid=60,
    )
    assert error.found == "it begins at a multiple of 4 bytes in words, as far as is known"


def test_a_start_that_is_a_multiple_is_taken() -> None:
    start = 4 * SpecialRegister("ctaid.x")
    (found,) = lower([ldmatrix_into(fragment(), sliced(start))], grid=16)
    address = found.operands[4]
    assert isinstance(address, AddressOf) and address.type.align == 16


def test_facts_are_proven_of_starts_in_range_and_addresses_count_the_others() -> None:
    stage, lane = scalar("stage"), scalar("column")
    words = shared("words", (1, 4, 8, 4, 1), UINT32, align=16)
    part = box(words, stage, (0, 4), (0, 8), (0, 4), lane)
    body = [Bind(stage, SpecialRegister("ctaid.x")), Bind(lane, SpecialRegister("ctaid.y"))]
    (found,) = lower([*body, ldmatrix_into(fragment(), part)])
    address = found.operands[4]
    assert isinstance(address, AddressOf)
    place = locate(address.tensor, (int32(0),) * 3)
    ((offset, scale),) = place.terms
    assert evaluate(as_expr(offset) * scale, Environment({stage: 1, lane: 0})) == 4 * 128
    assert evaluate(as_expr(offset) * scale, Environment({stage: -1, lane: 2})) == 4 * -126


def test_columns_of_a_swizzled_tile_are_proven_by_enumeration() -> None:
    layout = mma_shared_layout("float16", 3, (16, 64))
    rows = shared("rows", (16, 64), FLOAT16, layout=layout, align=1024)
    k = scalar("k")
    part = reinterpret(box(rows, (0, 16), (16 * k, 16)), UINT32)
    words = reshape(permute(reshape(part, 2, 8, 2, 4), 2, 0, 1, 3), 4, 8, 4)
    (found,) = lower([For(k, int32(0), int32(4), ONE, (ldmatrix_into(fragment(), words),))])
    assert isinstance(found.operands[4], AddressOf)


# ---- threads


def guarded(condition: Expr, apply: Apply) -> list[Stmt]:
    return [If(condition, (apply,))]


LANE, WARP_ID = SpecialRegister("laneid"), SpecialRegister("warp_id")
TID = SpecialRegister("tid.x")


def test_a_guard_on_lanes_is_refused() -> None:
    lane = scalar("lane")
    body = [Bind(lane, LANE), *guarded(binary("lt", lane, 3), ldmatrix_into(fragment()))]
    error = refused(body, "tile-scope", 5)
    assert error.expected == "all 32 lanes of every warp that comes here"
    assert error.found == "in warp 0 lanes 0-2"


def test_lanes_that_have_returned_are_not_active() -> None:
    body = [If(binary("ge", LANE, 16), (Return(),)), ldmatrix_into(fragment())]
    assert refused(body, "tile-scope", 5).found == "in warp 0 lanes 0-15"


def test_an_unknown_guard_lets_all_pass() -> None:
    flag = scalar("flag")
    assert len(lower(guarded(binary("eq", flag, 1), ldmatrix_into(fragment())))) == 1


def test_warp_instructions_are_not_issued_by_threads() -> None:
    refused([ldmatrix_into(fragment(), scope="thread")], "tile-scope", 5)


def cta_fragment(warps: int, first: int = 0) -> Expr:
    layout = TileLayout(
        S[(warps, 4, 8, 4) : (1 @ warpid, 1, 4 @ laneid, 1 @ laneid)] + first @ warpid
    )
    return relayout(local("ar", (4,), UINT32), (warps, 4, 8, 4), layout)


def cta_words(warps: int) -> Expr:
    return shared("words", (warps, 4, 8, 4), UINT32, align=16)


@pytest.mark.parametrize(
    ("condition", "warps", "first"),
    [
        (binary("lt", WARP_ID, 2), 2, 0),
        (binary("ge", TID, 64), 2, 2),
        (binary("eq", TID // 32, 2), 1, 2),
        (binary("logical_and", binary("ge", WARP_ID, 1), binary("lt", WARP_ID, 3)), 2, 1),
    ],
)
def test_guards_narrow_the_warps_of_a_cta(condition: Expr, warps: int, first: int) -> None:
    apply = ldmatrix_into(cta_fragment(warps, first), cta_words(warps), "cta")
    (found,) = lower(guarded(condition, apply), block=128)
    address = found.operands[4]
    assert isinstance(address, AddressOf)
    coordinates = [
        evaluate(address.indices[0], Environment(registers={"warp_id": warp}))
        for warp in range(first, first + warps)
    ]
    assert coordinates == list(range(warps))


def test_owners_are_counted_from_the_first_active_warp() -> None:
    apply = ldmatrix_into(cta_fragment(2, 0), cta_words(2), "cta")
    error = refused(guarded(binary("ge", WARP_ID, 2), apply), "tile-ownership", 5, block=128)
    assert error.expected == "element [0, 0, 0, 0] on warp 2 lane 0"
    assert error.found == "it on warp 0 lane 0"


def test_warps_with_gaps_are_refused() -> None:
    apply = ldmatrix_into(cta_fragment(2), cta_words(2), "cta")
    error = refused(guarded(binary("eq", WARP_ID % 2, 1), apply), "tile-scope", 5, block=128)
    assert error.found == "warps 1, 3"


def test_group_axes_must_match() -> None:
    apply = ldmatrix_into(cta_fragment(2), cta_words(2), "cta")
    error = refused([apply], "tile-shape", 5, block=128)
    assert (error.expected, error.found) == ("(4, *repeat, 4, 8, 4)", "(2, 4, 8, 4)")


# ---- thread-issued instructions


def test_vector_loads_of_a_thread() -> None:
    r = local("r", (2, 4), FLOAT32)
    source = box(shared("s", (64,), FLOAT32, align=16), (8 * scalar("i"), 8))
    apply = Apply(form("ld.shared.v4.f32"), (r, reshape(source, 2, 4)), "thread", location=line(5))
    i = scalar("i")
    found = lower([For(i, int32(0), int32(8), ONE, (apply,))])
    assert [registers(each.operands[:4]) for each in found] == [
        [("r", 4 * step + e) for e in range(4)] for step in range(2)
    ]


def test_vector_loads_of_a_warp_have_a_lane_axis() -> None:
    r = local("r", (4,), FLOAT32)
    held = relayout(r, (32, 4), TileLayout(S[(32, 4) : (1 @ laneid, 1 @ m)]))
    source = shared("s", (32, 4), FLOAT32, align=16)
    apply = Apply(form("ld.shared.v4.f32"), (held, source), "warp", location=line(5))
    (found,) = lower([apply])
    address = found.operands[4]
    assert isinstance(address, AddressOf) and address.indices[0] == LANE
    assert address.indices[1] == int32(0)


def test_predicates_are_passed_on() -> None:
    flag = Var("flag", INT)
    apply = Apply(
        form("ld.shared.v4.f32"),
        (local("r", (4,), FLOAT32), shared("s", (4,), FLOAT32, align=16)),
        "thread",
        (("pred", binary("eq", flag, 1)), ("preserve_dst", True)),
        location=line(5),
    )
    (found,) = lower([apply])
    assert found.predicate == binary("eq", flag, 1) and found.preserve


def test_lowering_is_quick() -> None:
    assert len(lower(product_of(4, 8, 4))) == 128
    assert np.prod((4, 8, 4)) == 128


def test_nothing_else_changes() -> None:
    before, after = warp_matmul(), lower_tiles(warp_matmul())
    kept = [stmt for stmt in body_of(before) if not isinstance(stmt, Apply)]
    assert kept == [stmt for stmt in body_of(after) if not isinstance(stmt, Instruct)]
