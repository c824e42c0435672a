"""Refusals of tile operations point at the operand or the parameter that is at fault."""

from __future__ import annotations

import pytest

from tilewright.base.errors import TilewrightError
from tilewright.base.locations import Location
from tilewright.base.targets import target
from tilewright.frontend import parse_function
from tilewright.passes.pipeline import lower

SOURCE = """\
from tilewright import simt as T
from tilewright.layout import S, TileLayout, laneid

WORDS = TileLayout(S[(4, 8, 4) : (1, 4 @ laneid, 1 @ laneid)])
A = TileLayout(S[(1, 1, 2, 8, 2, 4) : (4, 4, 1, 4 @ laneid, 2, 1 @ laneid)])
B = TileLayout(S[(1, 1, 8, 2, 4) : (2, 2, 4 @ laneid, 1, 1 @ laneid)])
D = TileLayout(S[(1, 1, 2, 8, 4, 2) : (4, 4, 2, 4 @ laneid, 1 @ laneid, 1)])
LDMATRIX = T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"]
MMA = T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"]

@T.function
def k(X: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    s = T.alloc_shared((4, 8, 4), "uint32", layout="default", align=16)
    ar = T.alloc_local((4,), "uint32", layout="default")
    br = T.alloc_local((2,), "uint32", layout="default")
    dr = T.alloc_local((4,), "float32", layout="default")
    du = T.alloc_local((4,), "uint32", layout="default")
"""


def underlined(where: Location) -> str:
    return where.source_line()[where.column : where.end_column]


def refusal(call: str) -> TilewrightError:
    text = SOURCE + "".join(f"    {line}\n" for line in call.strip().splitlines())
    with pytest.raises(TilewrightError) as caught:
        lower(parse_function(text).program, target("sm_90a"))
    assert caught.value.location is not None
    return caught.value


PRODUCT = """
T.cuda.tile.apply(
    MMA,
    {d},
    {a},
    {b},
    {c}, scope="warp"{more},
)
"""
GOOD = {
    "d": "dr.view(1, 1, 16, 8, layout=D)",
    "a": "ar.view(1, 1, 16, 8, layout=A)",
    "b": "br.view(1, 1, 8, 8, layout=B)",
    "c": "T.float32(0)",
    "more": "",
}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"d": "du.view(1, 1, 16, 8, layout=D)"}, "tile-operand"),
        ({"c": "T.uint32(0)"}, "tile-operand"),
        ({"b": "br.view(1, 8, 8, layout=B)"}, "tile-shape"),
        ({"a": "ar.view(1, 1, 16, 8, layout=D)"}, "tile-ownership"),
        ({"a": "s.view(1, 1, 16, 8)"}, "tile-operand"),
        ({"more": ", chunk_bytes=7"}, "tile-operand"),
    ],
)
def test_the_operand_or_the_parameter_at_fault_is_underlined(
    changed: dict[str, str], code: str
) -> None:
    error = refusal(PRODUCT.format(**{**GOOD, **changed}))
    (wrong,) = changed.values()
    assert error.location is not None and error.code == code
    assert underlined(error.location) == wrong.removeprefix(", ").removeprefix("chunk_bytes=")


def test_the_elements_of_a_result_are_held_to_its_type_as_those_of_an_operand_are() -> None:
    error = refusal(PRODUCT.format(**{**GOOD, "d": "du.view(1, 1, 16, 8, layout=D)"}))
    assert error.expected == "float32, because of .f32" and error.found == "uint32"
    assert error.message == "operand d (du) has the wrong type"


def test_a_scope_is_the_fault_of_the_operation() -> None:
    error = refusal(
        'if T.cuda.lane_id() < 7:\n    T.cuda.tile.apply(LDMATRIX, ar, s, scope="warp")'
    )
    assert error.location is not None and error.code == "tile-scope"
    assert underlined(error.location).startswith("T.cuda.tile.apply(")


def test_an_operand_that_is_none_is_underlined() -> None:
    error = refusal(
        'T.cuda.tile.apply(LDMATRIX, ar.view(4, 8, 4, layout=WORDS), "s", scope="warp")'
    )
    assert error.location is not None and error.code == "operand-type"
    assert underlined(error.location) == '"s"'
