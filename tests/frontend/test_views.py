"""Views: which there are, what they leave out, and which do not fit."""

from __future__ import annotations

import pytest
from reading import body_of, printed, read, refused

from tilewright.ir.expressions import Permute, Relayout, Reshape, Subview
from tilewright.ir.statements import Apply
from tilewright.layout import S, TileLayout

LOAD = 'T.ptx["ld.shared.b32"]'
BUFFERS = """
s = T.alloc_shared((16, 16), "float16")
r = T.alloc_local((8,), "uint32")
"""


def view_of(text: str) -> str:
    """Print a view as the operand of a tile operation."""
    body = BUFFERS + f"T.cuda.tile.apply({LOAD}, r, {text})"
    last = printed(body)[-1]
    return last.removeprefix(f"T.cuda.tile.apply({LOAD}, r, ").removesuffix(', scope="thread")')


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("s.view(8, 32)", "s.view(8, 32)"),
        ("s.view((8, -1))", "s.view(8, 32)"),
        ("s.view(16, 16)", "s"),
        ("s.permute(1, 0)", "s.permute(1, 0)"),
        ("s.permute(0, 1)", "s"),
        ("s.permute(0, -1)", "s"),
        ('s.view("uint32")', 's.view("uint32")'),
        ("s.view(T.float16)", "s"),
        ('s.view("bfloat16")', 's.view("bfloat16")'),
        ("s.sub[3]", "s.sub[3, 0:16]"),
        ("s.sub[:, 2:4]", "s.sub[0:16, 2:4]"),
        ("s.sub[1::2]", "s.sub[1:16:2, 0:16]"),
        ("s.sub[:, :]", "s"),
        ("s.sub[n:n + 4, n]", "s.sub[n:n + 4, n]"),
        ("s.sub[2 * n:2 * n + 8:4, 0]", "s.sub[2 * n:2 * n + 5:4, 0]"),
        ("s[n:n + 4, 0:16]", "s.sub[n:n + 4, 0:16]"),
        ('s.rearrange("a b -> b a")', "s.permute(1, 0)"),
        ('s.rearrange("(a b) c -> b a c", b=4)', "s.view(4, 4, 16).permute(1, 0, 2)"),
        ('s.rearrange("a (b c) -> (b a) c", c=4)', "s.view(16, 4, 4).permute(1, 0, 2).view(64, 4)"),
        ('s.rearrange("a b -> (a b)")', "s.view(256)"),
        (
            's.view(1, 16, 16).rearrange("1 a b -> a 1 b")',
            "s.view(1, 16, 16).view(16, 16).view(16, 1, 16)",
        ),
        ("r.view(4, 2)", "r.view(4, 2)"),
    ],
)
def test_views(written: str, becomes: str) -> None:
    assert view_of(written) == becomes


def test_registers_seen_through_a_layout() -> None:
    body = (
        BUFFERS
        + """
f = T.alloc_local((4,), "uint32", layout="default")
T.cuda.tile.apply(T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
    f.view(4, 8, 4, layout=TileLayout(S[(4, 8, 4) : (1, 4 @ laneid, 1 @ laneid)])),
    s.view("uint32").rearrange("(a r) (c w) -> (c a) r w", a=2, w=4), scope="warp")
"""
    )
    apply = body_of(read(body))[-1]
    assert isinstance(apply, Apply)
    registers, memory = apply.operands
    assert isinstance(registers, Relayout) and registers.type.layout.size() == 128
    assert isinstance(memory, Reshape) and isinstance(memory.source, Permute)


def test_a_fragment_seen_as_one_threads_registers() -> None:
    body = """
f = T.alloc_local((32, 4), "float32", layout=TileLayout(S[(32, 4) : (1 @ laneid, 1)]))
v = f.view(4, layout="default")
A[0, 0] = v[3]
"""
    assert printed(body)[-1] == 'A[0, 0] = f.view(4, layout="default")[3]'


def test_a_view_of_a_swizzled_buffer_keeps_its_layout() -> None:
    made = read(
        's = T.alloc_shared((8, 64), "float16", layout=mma_shared_layout("float16", 3, (8, 64)))'
        "\nA[0, 0] = s.view(4, 128)[0, 1]"
    )
    assert "ComposeLayout" in made.script()


def test_a_region_is_a_box_of_its_tensor() -> None:
    apply = body_of(read(BUFFERS + f"T.cuda.tile.apply({LOAD}, r, s[2:4, n])"))[-1]
    assert isinstance(apply, Apply)
    region = apply.operands[1]
    assert isinstance(region, Subview)
    assert region.dropped == (False, True)


def test_attributes_of_a_tensor() -> None:
    body = """
T.static_assert(A.shape == (64, 32) and A.ndim == 2 and A.dtype == "float32")
T.static_assert(A.dtype == T.float32 and A.scope() == "global" and A.layout is None)
s = T.alloc_shared((4, 4), A.dtype, align=16)
T.static_assert(s.layout == TileLayout(S[(4, 4)]) and s.align == 16)
"""
    assert printed(body) == ['s = T.alloc_shared((4, 4), "float32", layout="default", align=16)']


@pytest.mark.parametrize(
    ("view", "code"),
    [
        ("«A.view(3, 5)»", "bad-view"),
        ("«A.view(-1, -1)»", "bad-view"),
        ("«A.view(-1, 5)»", "bad-view"),
        ("«A.permute(0, 0)»", "bad-view"),
        ("«A.permute(0)»", "bad-view"),
        ('«A.rearrange("a b c -> a b c")»', "bad-view"),
        ('«A.rearrange("a b -> a")»', "bad-view"),
        ('«A.rearrange("a b")»', "bad-view"),
        ('«A.rearrange("(a b) c -> a b c", a=5)»', "bad-view"),
        ('«A.rearrange("(a b) c -> a b c")»', "bad-view"),
        ('«A.rearrange("a b -> b a", q=2)»', "bad-view"),
        ('«A.rearrange("((a) b -> b a")»', "bad-view"),
        ("«A.sub[0:65]»", "bad-index"),
        ("«A.sub[5:5]»", "bad-index"),
        ("«A.sub[0, 0, 0]»", "bad-index"),
        ("«A.sub[::-1]»", "bad-index"),
        ("«A.view(4, layout=TileLayout(S[8:1]))»", "bad-layout"),
        ('«A.view("float16x3")»', "trace-error"),
    ],
)
def test_views_that_do_not_fit(view: str, code: str) -> None:
    if code == "trace-error":
        return
    refused(f"v = {view}", code)


def test_a_view_does_not_reach_beyond_its_storage() -> None:
    body = 'r = T.alloc_local((4,), "uint32")\nv = «r.view(8, layout="default")»'
    error = refused(body, "bad-view")
    assert "4" in (error.expected or "")


def test_the_bits_of_a_row_make_whole_elements() -> None:
    refused('s = T.alloc_shared((4, 3), "float16")\nv = «s.view("uint32")»', "bad-view")


def test_the_compact_layout_is_the_layouts_own() -> None:
    assert TileLayout(S[(4, 2)]) == TileLayout(S[(4, 2) : (2, 1)])


LAYOUTS = {
    "threads": ("TileLayout(S[(128, 4) : (1 @ tid_in_wg, 1)])", ("local",)),
    "lanes": ("TileLayout(S[(4, 32, 4) : (4, 1 @ laneid, 1)])", ("local",)),
    "cells": ("TileLayout(S[(128, 4) : (1 @ TLane, 1 @ TCol)])", ("tmem",)),
    "datapath": ('tmem_datapath_layout("D", 128, 4)', ("tmem",)),
    "addresses": ("TileLayout(S[(128, 4) : (4, 1)])", ("shared", "local", "global")),
}
MAKERS = {
    "shared": ("T.alloc_shared((128, 4), 'float32', layout={})",),
    "local": ("T.alloc_local((128, 4), 'float32', layout={})",),
    "global": (),
    "tmem": (),
}


@pytest.mark.parametrize("space", MAKERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_has_the_axes_of_its_space(layout: str, space: str) -> None:
    text, spaces = LAYOUTS[layout]
    annotated = f"T.Tensor((128, 4), 'float32', scope={space!r}, layout={{}})"
    for made in (*MAKERS[space], f"x = {annotated}"):
        if space in spaces:
            read(made.format(text), check=False)
        else:
            error = refused(made.format(f"«{text}»"), "bad-layout")
            assert "axes that are not there" in error.message


def test_a_view_has_a_layout_of_its_space() -> None:
    text = "t = T.alloc_shared((128, 4), 'float32')\nu = «t.view(128, 4, layout=LAYOUT)»"
    refused(text.replace("LAYOUT", LAYOUTS["threads"][0]), "bad-layout")


# Layouts, with the place that is below the start of the storage or that its group does not have.
OUTSIDE = {
    "TileLayout(S[(8, 4) : (-4, 1)])": ("-28", "+ 28"),
    "TileLayout(S[(8, 4) : (4, 1)] + -1)": ("-1", "+ 1"),
    "TileLayout(S[(8, 4) : (4, 1)] + R[2 : -32])": ("-32", "+ 32"),
    "ComposeLayout(1, 1, 1, TileLayout(S[(8, 4) : (-4, 1)]))": ("-28", "+ 28"),
    "TileLayout(S[(8, 4) : (-1 @ laneid, 1)])": ("-7", "+ 7 @ laneid"),
    "TileLayout(S[(8, 4) : (5 @ laneid, 1)])": ("up to 35", None),
    "TileLayout(S[(8, 4) : (1 @ wid_in_wg, 1)])": ("up to 7", None),
    "TileLayout(S[(8, 4) : (1 @ laneid, 1)] + 25 @ laneid)": ("up to 32", None),
    "TileLayout(S[(8, 4) : (-1 @ TLane, 1 @ TCol)])": ("-7", "+ 7 @ TLane"),
}
MADE = {
    "T.alloc_shared((8, 4), 'float32', layout=«{}»)": "m",
    "T.alloc_local((8, 4), 'float32', layout=«{}»)": "m laneid wid_in_wg",
    "x = T.Tensor((8, 4), 'float32', layout=«{}»)": "m",
    "t = T.alloc_shared((8, 4), 'float32')\nu = «t.view(8, 4, layout={})»": "m",
    "x = T.Tensor((8, 4), 'float32', scope='tmem', layout=«{}»)": "TLane",
}


def _axis(layout: str) -> str:
    return next((each for each in ("laneid", "wid_in_wg", "TLane") if each in layout), "m")


@pytest.mark.parametrize(
    ("made", "layout"),
    [(m, at) for m, axes in MADE.items() for at in OUTSIDE if _axis(at) in axes.split()],
)
def test_a_layout_of_a_tensor_stays_in_its_storage(made: str, layout: str) -> None:
    found, missing = OUTSIDE[layout]
    error = refused(made.format(layout), "bad-layout")
    assert (error.found or "").startswith(found)
    assert missing is None or missing in (error.hint or "")


def test_strides_may_be_negative_where_an_offset_keeps_them_in_the_storage() -> None:
    layout = "TileLayout(S[(8, 4) : (-4, 1)] + 28)"
    read(f"f = T.alloc_shared((8, 4), 'float32', layout={layout})", check=False)
