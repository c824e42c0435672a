"""Ranges: bounds and divisors that hold for every value, and are as tight as indexing needs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from integers import RANGES, VARIABLES, Undefined, environments, evaluate, expressions
from programs import in_kernel, scalar

from tilewright.base.dtypes import INT64
from tilewright.ir.expressions import Expr, SpecialRegister, binary, cast, int32, select
from tilewright.ir.statements import Bind, For
from tilewright.passes.analysis.ranges import Ranges, analyse_ranges

lane, warp, small, eights, odd = (VARIABLES[n] for n in ("lane", "warp", "small", "eights", "odd"))
anything, word = VARIABLES["any"], VARIABLES["word"]
CASES = [
    (lane * 4 + 3, (3, 127), 1),
    (lane * 4, (0, 124), 4),
    (lane + warp * 32, (0, 127), 1),
    (eights // 8, (-8, 15), 1),
    (eights + lane * 16, (-64, 616), 8),
    (lane % 8, (0, 7), 1),
    (anything % 8, (0, 7), 1),
    (anything & 7, (0, 7), 1),
    (small % 8, (0, 7), 1),
    (anything * 8 % 16, (0, 8), 8),
    (word >> 28, (0, 15), 1),
    (lane >> 3, (0, 3), 1),
    (lane << 2, (0, 124), 4),
    (lane ^ 5, (0, 31), 1),
    (binary("max", odd, 0), (0, 33), 1),
    (binary("truncmod", anything, 8), (-7, 7), 1),
    (select(binary("lt", lane, 4), small * 4, 8), (0, 28), 4),
    (cast(lane, INT64) * 1024, (0, 31744), 1024),
    (anything * 2, (-(2**31), 2**31 - 2), 2),
]


@pytest.mark.parametrize(("expr", "bounds", "divisor"), CASES, ids=range(len(CASES)))
def test_known_facts(expr: Expr, bounds: tuple[int, int], divisor: int) -> None:
    assert (RANGES.bounds(expr), RANGES.divisor(expr)) == (bounds, divisor)


def test_registers_of_a_launch() -> None:
    ranges = analyse_ranges(in_kernel(block=(64, 2, 1), grid=(5, 1, 1)))
    bounds = {
        name: ranges.bounds(SpecialRegister(name))
        for name in ("tid.x", "tid.y", "tid.z", "ntid.x", "ctaid.x", "laneid", "warp_id")
    }
    assert bounds == {
        "tid.x": (0, 63),
        "tid.y": (0, 1),
        "tid.z": (0, 0),
        "ntid.x": (64, 64),
        "ctaid.x": (0, 4),
        "laneid": (0, 31),
        "warp_id": (0, 3),
    }
    dynamic = analyse_ranges(in_kernel(grid=(scalar("n"), 1, 1)))
    assert dynamic.bounds(SpecialRegister("ctaid.x")) == (0, 2**31 - 2)


def test_bindings_loops_and_symbols() -> None:
    i, j, b, n = scalar("i"), scalar("j"), scalar("b"), scalar("n")
    inner = For(j, int32(9), int32(0), int32(-3), ())
    loop = For(i, int32(4), int32(20), int32(8), (Bind(b, i * 2 + n), inner))
    ranges = analyse_ranges(in_kernel(loop, symbols=(n,)))
    assert ranges.bounds(i) == (4, 12)
    assert ranges.divisor(i) == 4
    assert ranges.bounds(j) == (3, 9)
    assert ranges.bounds(n) == (0, 2**31 - 1)
    assert ranges.divisor(b) == 1


def test_assumptions() -> None:
    condition = binary("logical_and", binary("lt", lane, 8), binary("ge", lane, 2))
    assert RANGES.assuming(condition).bounds(lane) == (2, 7)
    assert RANGES.assuming(binary("lt", lane, 8), False).bounds(lane) == (8, 31)
    assert RANGES.assuming(binary("gt", int32(8), lane)).bounds(lane) == (0, 7)
    assert RANGES.assuming(binary("eq", lane, 3)).bounds(lane) == (3, 3)
    assert Ranges().assuming(binary("lt", scalar("cell"), 8)).known == {}


@settings(max_examples=600, deadline=None)
@given(expressions(), environments())
def test_facts_hold(expr: Expr, values: dict[str, int]) -> None:
    try:
        value = evaluate(expr, values)
    except Undefined:
        return
    fact = RANGES.fact(expr)
    assert fact is not None
    assert fact.low <= value <= fact.high
    remainder = value - fact.residue
    assert remainder % fact.modulus == 0 if fact.modulus else remainder == 0
