"""The passes that are one rule each, and the order of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pass_programs import (
    ONE,
    body_of,
    form,
    line,
    load,
    local,
    param,
    program,
    scalar,
    shared,
    warp_matmul,
)

from tilewright.base.dtypes import FLOAT16, FLOAT32, FLOAT64, UINT8, UINT32
from tilewright.base.errors import LaunchError, TargetError
from tilewright.base.spaces import Space
from tilewright.base.targets import Target, target
from tilewright.frontend.functions import parse
from tilewright.ir.expressions import (
    Expr,
    Intrinsic,
    SpecialRegister,
    Var,
    binary,
    cast,
    constant,
    int32,
)
from tilewright.ir.printer import print_program, print_stmt
from tilewright.ir.statements import (
    Allocate,
    Apply,
    Assign,
    Bind,
    Declare,
    For,
    If,
    Instruct,
    Program,
    Stmt,
    Store,
)
from tilewright.ir.types import PointerType, TensorType
from tilewright.ir.verify import verify
from tilewright.isa import barriers
from tilewright.passes.allocate_shared import allocate_shared
from tilewright.passes.analysis.evaluation import Environment, evaluate
from tilewright.passes.analysis.threads import block_threads
from tilewright.passes.check_target import check_target, choose_target
from tilewright.passes.contract_products import allow_no_contraction, contract_products
from tilewright.passes.lower_division import lower_division
from tilewright.passes.lower_ids import lower_ids
from tilewright.passes.lower_views import lower_views
from tilewright.passes.pipeline import PASSES, TILE_PASSES, Options, lower, stages
from tilewright.runtime.host import launch_shape

assert barriers  # its declarations are in the table now
SM_80, SM_90A = target("sm_80"), target("sm_90a")


def texts(found: Program) -> list[str]:
    return [print_stmt(stmt) for stmt in body_of(found)]


# ---------------------------------------------------------------------------- lower_ids

CELL = scalar("cell")
IDS = ("linear_tid", "warp_id", "warpgroup_id", "warp_in_warpgroup", "thread_in_warpgroup")


def id_of(name: str, block: int | tuple[int, int, int]) -> Expr:
    (stmt,) = body_of(lower_ids(program((Assign(CELL, SpecialRegister(name)),), block=block)))
    assert isinstance(stmt, Assign)
    return stmt.value


def test_ids_before_and_after() -> None:
    stmt = Assign(CELL, SpecialRegister("warp_id") + SpecialRegister("laneid"))
    assert texts(lower_ids(program((stmt,), block=128))) == [
        'cell = T.cuda.thread_idx("x") // 32 + T.cuda.lane_id()'
    ]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("block", [128, (8, 1, 4), (1, 8, 4), (4, 8, 8), (1, 1, 64)])
def test_ids_number_threads_x_first(name: str, block: int | tuple[int, int, int]) -> None:
    threads = block_threads(program((), block=block).kernels[0])
    assert threads is not None
    machine = {key: each for key, each in threads.registers.items() if key.startswith("tid")}
    found = evaluate(id_of(name, block), Environment(registers=machine))
    np.testing.assert_array_equal(found, threads.registers[name])


def test_extents_of_the_block_fold() -> None:
    assert id_of("ntid.x", 96) == int32(96)
    assert id_of("tid.y", 96) == int32(0)


# ---------------------------------------------------------------------------- allocate_shared


def placed(*buffers: Var) -> Program:
    body = [Allocate(each, location=line(5 + n)) for n, each in enumerate(buffers)]
    uses = [Store(each, (int32(0),), constant(0, each.dtype)) for each in buffers]
    return lower_views(program((*body, *uses)))


def test_buffers_follow_one_another_at_their_alignment() -> None:
    buffers = (
        shared("a", (3,), UINT8),
        shared("b", (4,), FLOAT32, align=128),
        shared("c", (5,), FLOAT16),
    )
    found = allocate_shared(placed(*buffers), SM_80)
    assert texts(found)[:3] == [
        'a = T.offset(T.shared_base("uint8", 128), 0, "uint8", 1)',
        'b = T.offset(T.shared_base("uint8", 128), 128, "float32", 128)',
        'c = T.offset(T.shared_base("uint8", 128), 144, "float16", 2)',
    ]
    assert found.kernels[0].shared_bytes == 154
    first = body_of(found)[0]
    assert isinstance(first, Bind) and first.var.type == PointerType(Space.SHARED, UINT8, 1)
    assert first.location == line(5)


def test_too_much_shared_memory_is_refused_at_the_buffer_that_does_not_fit() -> None:
    buffers = (shared("a", (100 * 1024,), UINT8), shared("b", (100 * 1024,), UINT8))
    assert allocate_shared(placed(*buffers), SM_90A)
    with pytest.raises(TargetError) as caught:
        allocate_shared(placed(*buffers), SM_80)
    assert (caught.value.code, caught.value.location) == ("resource-limit", line(6))


# ---------------------------------------------------------------------------- contract_products

A, B, C, D = (scalar(name, FLOAT32) for name in "abcd")
OUT = param("Out", (8,), FLOAT32)


def put(value: Expr, at: int = 0) -> Store:
    return Store(OUT, (int32(at),), value)


def contracted(*body: Stmt) -> list[str]:
    return texts(contract_products(program(body, (OUT, A, B, C, D))))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (A * B + C, "T.fma(a, b, c)"),
        (C + A * B, "T.fma(a, b, c)"),
        (A * B - C, "T.fma(a, b, -c)"),
        (C - A * B, "T.fma(-a, b, c)"),
        (A * B + C * D, "T.fma(a, b, c * d)"),
        (A * B + C * D + A, "T.fma(a, b, c * d) + a"),
        ((A + B) * C, "(a + b) * c"),
        (cast(cast(A, FLOAT64) * cast(B, FLOAT64), FLOAT32) + C, None),
        (Intrinsic("no_contract", (A * B,), A.type) + C, "a * b + c"),
    ],
)
def test_products_in_sums(before: Expr, after: str | None) -> None:
    (found,) = contracted(put(before))
    assert found == (print_stmt(put(before)) if after is None else f"Out[0] = {after}")


def test_a_named_product_that_is_used_once() -> None:
    t = scalar("t", FLOAT32)
    assert contracted(Bind(t, A * B), put(t + C)) == ["Out[0] = T.fma(a, b, c)"]
    assert len(contracted(Bind(t, A * B), put(t + t))) == 2
    assert len(contracted(Bind(t, A * B), put(t))) == 2


def test_a_product_does_not_move_over_what_could_change_it() -> None:
    t, cell = scalar("t", FLOAT32), scalar("cell", FLOAT32)
    loaded = Bind(t, load(OUT, 1) * B)
    assert contracted(loaded, put(t + C)) == ["Out[0] = T.fma(Out[1], b, c)"]
    assert len(contracted(loaded, put(A, 1), put(t + C, 2))) == 3
    # What nothing can change moves over a store, but not over an instruction or a branch.
    assert len(contracted(Bind(t, A * B), put(A, 1), put(t + C, 2))) == 2
    barrier = Instruct(form("bar.warp.sync"), (constant(0, UINT32),))
    assert "a * b" in contracted(Bind(t, A * B), barrier, put(t + C))[0]
    assert "a * b" in contracted(Bind(t, A * B), If(binary("lt", A, B), (put(t + C),)))[0]
    mutable = (Declare(cell, A), Bind(t, cell * B), Assign(cell, B), put(t + C))
    assert "cell * b" in contracted(*mutable)[1]


def test_without_contraction_only_marks_vanish() -> None:
    before = program((put(Intrinsic("no_contract", (A * B,), A.type) + C), put(A * B + C, 1)))
    assert texts(allow_no_contraction(before)) == ["Out[0] = a * b + c", "Out[1] = a * b + c"]


# ---------------------------------------------------------------------------- lower_division


def test_divisions_of_what_is_not_negative() -> None:
    n, lane = scalar("n"), SpecialRegister("laneid")
    body = (Assign(CELL, lane // 4), Assign(CELL, n // 4), Assign(CELL, lane % 4 - n % 4))
    assert texts(lower_division(program(body, (n,)))) == [
        "cell = T.truncdiv(T.cuda.lane_id(), 4)",
        "cell = n // 4",
        "cell = T.truncmod(T.cuda.lane_id(), 4) - n % 4",
    ]


# ---------------------------------------------------------------------------- check_target

STMATRIX = "stmatrix.sync.aligned.m8n8.x4.shared.b16"


def test_an_instruction_that_the_target_lacks_is_refused() -> None:
    before = program((Apply(form(STMATRIX), (), "warp", location=line(8)),))
    assert check_target(before, SM_90A) is before
    with pytest.raises(TargetError) as caught:
        check_target(before, SM_80)
    error = caught.value
    assert (error.code, error.location) == ("missing-instruction", line(8))
    assert (error.expected, error.found) == ("sm_90 or later", "sm_80")


TOO_MUCH = [
    ({"grid": (1, 65536, 1)}, SM_90A, "each extent from 1 to (2147483647, 65535, 65535)"),
    ({"block": (2048, 1, 1)}, SM_90A, "each extent from 1 to (1024, 1024, 64)"),
    ({"block": (1, 1, 65)}, SM_90A, "each extent from 1 to (1024, 1024, 64)"),
    ({"block": (32, 32, 2)}, SM_90A, "at most 1024 threads"),
    ({"grid": (8, 1, 1), "cluster": (2, 1, 1)}, SM_80, "no cluster, or sm_90 or later"),
    ({"grid": (8, 4, 1), "cluster": (8, 4, 1)}, SM_90A, "at most 16 CTAs"),
    ({"grid": (3, 1, 1), "cluster": (2, 1, 1)}, SM_90A, "whole clusters of (2, 1, 1)"),
]


@pytest.mark.parametrize(("shape", "target", "expected"), TOO_MUCH)
def test_a_launch_that_cannot_be_is_refused_whether_its_shape_is_known_or_computed(
    shape: dict[str, tuple[int, int, int]], target: Target, expected: str
) -> None:
    known = {what: as_extents(extents) for what, extents in shape.items()}
    with pytest.raises(TargetError) as early:
        check_target(launched(program(()), **known), target)
    assert (early.value.code, early.value.location) == ("resource-limit", line(2))
    names = {what: tuple(scalar(f"{what}.{axis}") for axis in "xyz") for what in shape}
    computed = launched(program(()), **names)
    assert check_target(computed, target) is computed
    values = {
        var.name: extent
        for what, extents in shape.items()
        for var, extent in zip(names[what], extents, strict=True)
    }
    with pytest.raises(LaunchError) as late:
        launch_shape(computed.kernels[0], values, target)
    assert (late.value.code, late.value.location) == ("launch-shape", line(2))
    assert (early.value.expected, early.value.found) == (late.value.expected, late.value.found)
    assert early.value.expected == expected


def as_extents(extents: tuple[int, int, int]) -> tuple[Expr, Expr, Expr]:
    x, y, z = map(int32, extents)
    return x, y, z


def launched(found: Program, **shape: Any) -> Program:
    (kernel,) = found.kernels
    return replace(found, kernels=(replace(kernel, launch=replace(kernel.launch, **shape)),))


SHARED_LIMIT = {SM_80: 163 * 1024, SM_90A: 227 * 1024}  # of one CTA, CUDA's table of capabilities


@pytest.mark.parametrize("target", SHARED_LIMIT)
@pytest.mark.parametrize("buffers", [0, 80_000])
def test_shared_memory_that_a_launch_adds_counts_with_that_of_the_buffers(
    target: Target, buffers: int
) -> None:
    body = (Allocate(shared("a", (buffers,), UINT8), location=line(5)),) if buffers else ()
    size, room = scalar("size"), SHARED_LIMIT[target] - buffers

    def asking(amount: Expr) -> Program:
        return launched(lower_views(program(body)), dynamic_shared_bytes=amount)

    assert allocate_shared(asking(int32(room)), target).kernels[0].shared_bytes == buffers
    computed = allocate_shared(asking(size), target).kernels[0]
    assert launch_shape(computed, {"size": room}, target).dynamic_shared_bytes == room
    for wrong in (room + 1, 1 << 20, -1):
        with pytest.raises(TargetError) as early:
            allocate_shared(asking(int32(wrong)), target)
        assert (early.value.code, early.value.location) == ("resource-limit", line(2))
        with pytest.raises(LaunchError) as late:
            launch_shape(computed, {"size": wrong}, target)
        assert (late.value.code, late.value.location) == ("launch-shape", line(2))
        assert (early.value.expected, early.value.found) == (late.value.expected, late.value.found)


def test_an_alignment_that_no_memory_has_is_refused() -> None:
    def aligned(most: int, space: Space) -> Program:
        kind = TensorType((int32(64),), FLOAT32, space, align=most)
        buffer = Var("a", kind, location=line(5))
        if space is Space.GLOBAL:
            return program((), (buffer,))
        return program((Allocate(buffer, location=line(5)),))

    for space, most in ((Space.SHARED, 1024), (Space.GLOBAL, 256)):
        assert check_target(aligned(most, space), SM_90A)
        with pytest.raises(TargetError) as caught:
            check_target(aligned(2 * most, space), SM_90A)
        assert (caught.value.code, caught.value.location) == ("resource-limit", line(5))
        assert str(most) in str(caught.value.expected)


def test_the_largest_launch_is_taken() -> None:
    shape = {"grid": (2**31 - 16, 65535, 65535), "block": (4, 4, 64), "cluster": (16, 1, 1)}
    most = launched(program(()), **{what: as_extents(extents) for what, extents in shape.items()})
    assert check_target(most, SM_90A) is most


def test_the_first_usual_target_is_chosen() -> None:
    assert choose_target(warp_matmul()).arch == "sm_100a"


# ---------------------------------------------------------------------------- the pipeline


def test_names_of_passes_are_those_of_their_files() -> None:
    names = [name for name, _ in PASSES]
    assert names[0] == "check_target" and len(set(names)) == len(names)


def test_the_seed_program_lowers() -> None:
    found = lower(warp_matmul(), SM_80, Options())
    verify(found, "lowered")
    assert found.kernels[0].shared_bytes == 768
    text = print_program(found)
    assert "tile.apply" not in text and ".view(" not in text
    # Coordinates that were split and joined again are one index.
    assert 'T.read(T.offset(A, q * 64 + lane * 2, "float16", 2))' in text


def test_every_stage_of_the_seed_program_is_kept() -> None:
    assert list(stages(warp_matmul(), SM_80)) == [name for name, _ in (*TILE_PASSES, *PASSES)]


def test_every_stage_is_a_program_of_the_dialect() -> None:
    for name, stage in stages(warp_matmul(), SM_80).items():
        assert parse(print_program(stage)) == stage, name


def test_fragments_of_registers_survive() -> None:
    i, r = scalar("i"), local("r", (4,), UINT32)
    body = (Allocate(r), For(i, int32(0), int32(4), ONE, (Store(r, (i,), constant(1, UINT32)),)))
    assert texts(lower(program(body), SM_80))[0].startswith("r = T.alloc_local((4,)")
