"""What `apply` emits for symbolic coordinates: only the operations that change something."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tilewright.layout import (
    ComposeLayout,
    S,
    TCol,
    TileLayout,
    TLane,
    laneid,
    mma_shared_layout,
    tid_in_wg,
)


@dataclass(frozen=True, eq=False)
class Symbol:
    """An expression that can be built, but neither compared nor branched on."""

    text: str

    def _with(self, operator, other, flip=False):
        left, right = (str(other), self.text) if flip else (self.text, str(other))
        return Symbol(f"({left} {operator} {right})")

    def __str__(self):
        return self.text

    def __bool__(self):
        raise AssertionError("a symbolic coordinate has no truth value")

    __eq__ = __lt__ = __gt__ = lambda self, other: self.__bool__()


for name, sign in {
    "add": "+",
    "mul": "*",
    "floordiv": "//",
    "mod": "%",
    "and": "&",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}.items():
    setattr(Symbol, f"__{name}__", lambda self, o, sign=sign: self._with(sign, o))
    setattr(Symbol, f"__r{name}__", lambda self, o, sign=sign: self._with(sign, o, True))


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        (TileLayout(S[128, 64]), (128, 64), {"m": "((i * 64) + j)"}),
        (TileLayout(S[8192:1]), (128, 64), {"m": "((i * 64) + j)"}),
        (TileLayout(S[128, 64]), (8192,), {"m": "i"}),
        (
            TileLayout(S[(128, 64) : (1 @ tid_in_wg, 1)]),
            (128, 64),
            {"tid_in_wg": "i", "m": "j"},
        ),
        (
            TileLayout(S[(4, 16, 32) : (32 @ TLane, 1 @ TLane, 1 @ TCol)]),
            (64, 32),
            {"TLane": "(((i // 16) * 32) + (i % 16))", "TCol": "j"},
        ),
        (TileLayout(S[(2, 16) : (16, 1 @ laneid)]), (4, 8), None),
        (TileLayout(S[(4, 8) : (0, 1)] + 3), (4, 8), {"m": "(j + 3)"}),
        (TileLayout(S[(1, 8) : (1 @ laneid, 1)]), (1, 8), {"laneid": "0", "m": "j"}),
        # an axis of the shape ends inside a digit: the two axes are flattened, the third is not
        (
            TileLayout(S[(2, 3, 5) : (1, 2, 10)]),
            (3, 2, 5),
            {"m": "(((((i * 2) + j) // 3) + ((((i * 2) + j) % 3) * 2)) + (k * 10))"},
        ),
        (
            ComposeLayout(3, 3, 3, TileLayout(S[8192:1])),
            (8192,),
            {"m": "(i ^ ((i & 448) >> 3))"},
        ),
        (
            ComposeLayout(3, 2, 3, TileLayout(S[8192:1]), swizzle_inner=False),
            (8192,),
            {"m": "(i ^ ((i & 24) << 3))"},
        ),
        (ComposeLayout(3, 0, 3, TileLayout(S[8192:1])), (8192,), {"m": "i"}),
        (
            mma_shared_layout("float16", 0, (128, 64)),
            (128, 64),
            {"m": "(((i * 8) + ((j // 8) * 1024)) + (j % 8))"},
        ),
    ],
)
def test_apply_emits_only_operations_that_change_something(layout, shape, expected):
    values = layout.apply(*map(Symbol, "ijk"[: len(shape)]), shape=shape)
    if expected is None:
        expected = {"m": "((i // 2) * 16)", "laneid": "(((i % 2) * 8) + j)"}
    assert {k: str(v) for k, v in values.items()} == expected
