"""The printer: what the text of a program looks like."""

from __future__ import annotations

from programs import program, scalar, tensor

from tilewright.base.spaces import Space
from tilewright.ir.expressions import SpecialRegister, binary, int32
from tilewright.ir.printer import print_expr, print_program, print_stmt
from tilewright.ir.statements import Allocate, For, If, Print
from tilewright.layout import S, TileLayout, laneid

n, i, layout_0 = scalar("n"), scalar("i"), scalar("layout_0")


def test_a_program() -> None:
    fragment = TileLayout(S[(8, 4) : (4 @ laneid, 1 @ laneid)])
    r = tensor("r", (8, 4), "float16", Space.LOCAL, fragment, 64)
    text = print_program(
        program(
            Allocate(r),
            For(i, int32(0), n, int32(1), (Print("%d\n", (i + layout_0,)),)),
            params=(tensor("A", (n, 4)), layout_0),
            symbols=(n,),
            grid=(n, 1, 1),
            shared_bytes=128,
        )
    )
    assert text == (
        "from tilewright import simt as T\n"
        "from tilewright.layout import S, TileLayout, laneid\n"
        "\n"
        "layout_1 = TileLayout(S[(8, 4) : (4 @ laneid, 1 @ laneid)])\n"
        'n = T.dynamic("n")\n'
        "\n"
        "\n"
        "@T.function\n"
        'def f(A: T.Tensor((n, 4), "float32"), layout_0: T.int32):\n'
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=n, block=32))\n"
        '    T.func_attr({"shared_bytes": 128})\n'
        '    r = T.alloc_local((8, 4), "float16", layout=layout_1)\n'
        "    for i in range(n):\n"
        '        T.cuda.printf("%d\\n", i + layout_0)\n'
    )


def test_statements_and_expressions_alone() -> None:
    condition = binary("lt", SpecialRegister("laneid"), 4)
    stmt = If(condition, (Print("yes", ()),), (Print('"no"', ()),))
    assert print_stmt(stmt) == (
        'if T.cuda.lane_id() < 4:\n    T.cuda.printf("yes")\nelse:\n    T.cuda.printf(\'"no"\')'
    )
    assert print_expr((n + 1) * 2 - (n - i)) == "(n + 1) * 2 - (n - i)"
