"""Simplification: index arithmetic before and after, and the same values throughout."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from integers import RANGES, VARIABLES, Undefined, environments, evaluate, expressions
from programs import program, scalar

from tilewright.base.dtypes import INT32, INT64
from tilewright.ir.expressions import Expr, SpecialRegister, binary, cast, int32, select, unary
from tilewright.ir.printer import print_expr, print_kernel
from tilewright.ir.statements import Assert, Bind, For, If, Print
from tilewright.passes.simplify import simplify, simplify_expression

lane, warp, small = VARIABLES["lane"], VARIABLES["warp"], VARIABLES["small"]
anything, word, eights = VARIABLES["any"], VARIABLES["word"], VARIABLES["eights"]
CASES = [
    ((warp * 32 + lane) // 32, "warp"),
    ((warp * 32 + lane) % 32, "lane"),
    ((warp * 64 + lane) // 32, "warp * 2"),
    (warp * 8 // 4 % 2, "0"),
    ((lane * 4 + small) // 8, "(lane * 4 + small) // 8"),
    ((lane * 4 + 3) // 8, "lane // 2"),
    ((lane * 4 + 3) % 8, "lane % 2 * 4 + 3"),
    ((lane * 4 + 5) // 4, "lane + 1"),
    (lane // 4 // 2, "lane // 8"),
    (lane % 16 % 4, "lane % 4"),
    (lane // 8 * 8 + lane % 8, "lane"),
    (lane // 8 * 128 + lane % 8 * 16, "lane * 16"),
    (lane + lane * 3 - lane * 4, "0"),
    (lane + 3 + 4 + lane, "lane * 2 + 7"),
    (anything * 8 // 8, "any * 8 // 8"),
    (anything * 8 % 8, "0"),
    ((anything * 8 + lane) % 8, "lane % 8"),
    ((anything * 12 + lane) % 3, "(any * 12 + lane) % 3"),
    (binary("truncdiv", warp * 32 + lane, 32), "warp"),
    (binary("truncmod", warp * 32 + lane, 32), "lane"),
    ((warp * 32 + lane) >> 5, "warp"),
    ((warp * 32 + lane) & 31, "lane"),
    (lane % 32, "lane"),
    (lane // 32, "0"),
    (binary("min", lane, 64), "lane"),
    (binary("lt", warp * 32 + lane, warp * 32 + 4), "lane < 4"),
    (binary("lt", lane, 32), "True"),
    # The difference of the factors is no int32.
    (binary("lt", lane % 2 * -(1 << 31), lane % 2), "lane % 2 * -2147483648 < lane % 2"),
    (select(binary("lt", lane, 40), lane, small), "lane"),
    (select(binary("lt", lane, 8), lane % 8, small), "T.select(lane < 8, lane, small)"),
    (unary("not", binary("lt", lane, 8)), "lane >= 8"),
    (cast(cast(lane, INT64), INT32), "lane"),
    ((eights + small) // 8 * 8 + (eights + small) % 8, "eights + small"),
]


@pytest.mark.parametrize(("expr", "after"), CASES, ids=range(len(CASES)))
def test_before_and_after(expr: Expr, after: str) -> None:
    assert print_expr(simplify_expression(expr, RANGES)) == after


def test_what_is_simple_stays_the_same_object() -> None:
    expr = lane * 4 + warp
    assert simplify_expression(expr, RANGES) is expr


@settings(max_examples=1500, deadline=None)
@given(expressions(), environments())
def test_values_stay_the_same(expr: Expr, values: dict[str, int]) -> None:
    try:
        before = evaluate(expr, values)
    except Undefined:
        return
    after = simplify_expression(expr, RANGES)
    assert evaluate(after, values) == before
    assert after.type == expr.type


@settings(max_examples=300, deadline=None)
@given(expressions())
def test_twice_is_as_good_as_once(expr: Expr) -> None:
    once = simplify_expression(expr, RANGES)
    assert simplify_expression(simplify_expression(once, RANGES), RANGES) == simplify_expression(
        once, RANGES
    )


def test_pass() -> None:
    tid, i, b = SpecialRegister("tid.x"), scalar("i"), scalar("b")
    body = (
        For(
            i,
            int32(0),
            int32(8),
            int32(1),
            (
                Bind(b, (tid * 8 + i) // 8),
                If(binary("lt", i, 8), (Assert(binary("lt", i, 4), "four"),), (Print("no", ()),)),
                If(binary("lt", i, 4), (Print("%d", (i % 4,)),), (Print("%d", (i // 4,)),)),
            ),
        ),
        If(binary("ge", tid, 64), (Print("never", ()),)),
    )
    after = simplify(program(*body, block=(64, 1, 1)))
    assert print_kernel(after.kernels[0]) == (
        "for i in range(8):\n"
        '    b = T.cuda.thread_idx("x")\n'
        '    assert i < 4, "four"\n'
        "    if i < 4:\n"
        '        T.cuda.printf("%d", i)\n'
        "    else:\n"
        '        T.cuda.printf("%d", 1)'
    )
