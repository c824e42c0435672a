"""The notation of layouts: what is written, what it stands for, what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from tilewright.base.errors import FrontendError
from tilewright.layout import (
    AXES,
    ComposeLayout,
    Iter,
    R,
    S,
    TileLayout,
    axis_named,
    laneid,
    m,
    thread_index,
    tid_in_wg,
    tx,
    warpid,
    wgid,
)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (
            TileLayout(S[(4, 8, 4) : (1, 4 @ laneid, 1 @ laneid)]),
            "TileLayout(S[(4, 8, 4) : (1, 4 @ laneid, 1 @ laneid)])",
        ),
        (TileLayout(S[8192:1]), "TileLayout(S[8192 : 1])"),
        (
            TileLayout(S[8:1] + R[2 : 16 @ laneid] + 1 @ laneid + 5),
            "TileLayout(S[8 : 1] + R[2 : 16 @ laneid] + 1 @ laneid + 5)",
        ),
        (
            ComposeLayout(3, 2, 3, TileLayout(S[512]), swizzle_inner=False),
            "ComposeLayout(3, 2, 3, TileLayout(S[512 : 1]), swizzle_inner=False)",
        ),
    ],
)
def test_layouts_print_as_programs_write_them(layout, text):
    assert repr(layout) == text


def test_omitted_strides_are_compact_row_major():
    assert TileLayout(S[4, 3, 2]) == TileLayout(S[(4, 3, 2) : (6, 2, 1)])


def test_an_axis_alone_is_a_stride_of_one():
    assert TileLayout(S[(4, 8) : (1, laneid)]) == TileLayout(S[(4, 8) : (1, 1 @ laneid)])


def test_numpy_integers_are_strides():
    assert np.int64(4) @ laneid == 4 @ laneid
    assert TileLayout(S[np.int32(8) : np.int64(2)]) == TileLayout(S[8:2])


def test_offsets_add_up_and_zeros_vanish():
    left = TileLayout(S[8:1] + 1 @ laneid + 2 + 3 @ laneid)
    assert left == TileLayout(4 @ laneid + S[8:1] + 2)
    assert TileLayout(S[8:1] + 0) == TileLayout(S[8:1])


def test_layouts_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout: Any = TileLayout(S[8:1])
        layout.shard = ()


def test_every_axis_is_found_by_its_name():
    assert all(axis_named(name) is axis and repr(axis) == name for name, axis in AXES.items())
    assert len(AXES) == 15


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: axis_named("lane"), "no axis 'lane'"),
        (lambda: S[(4, 8) : (1,)], "one stride for each extent"),
        (lambda: S[(4, 0) : (1, 1)], "must be positive"),
        (lambda: S[4:"lane"], "no axis"),
        (lambda: S[4:1.5], "strides of a layout are constants"),
        (lambda: Iter(cast(Any, "4"), 1, m), "extents of a layout are constants"),
        (lambda: ComposeLayout(3, 3, 0, TileLayout(S[8:1])), "numbers of bits"),
        (lambda: ComposeLayout(3, -1, 3, TileLayout(S[8:1])), "numbers of bits"),
    ],
)
def test_malformed_layouts_are_refused(build, says):
    with pytest.raises(FrontendError, match=says) as error:
        build()
    assert error.value.code == "bad-layout"


@pytest.mark.parametrize(
    ("axes", "scope"),
    [
        ((), None),
        ((laneid,), ("thread", "warp")),
        ((laneid, warpid), ("thread", "cta")),
        ((warpid,), ("warp", "cta")),
        ((tid_in_wg, wgid), ("thread", "cta")),
        ((laneid, wgid), None),
        ((laneid, tx), None),
    ],
)
def test_scope_is_what_the_thread_axes_number_together(axes, scope):
    layout = TileLayout(S[(2,) * (len(axes) + 1) : (1, *(1 @ axis for axis in axes))])
    assert layout.get_scope() == scope
    if axes and scope is None:
        with pytest.raises(FrontendError, match="do not fit together"):
            layout.check_well_formed()
    else:
        layout.check_well_formed()


def test_threads_are_numbered_in_their_group():
    assert thread_index({"warpid": 2, "laneid": 5, "m": 7}) == 69
    assert thread_index({"wgid": 1, "wid_in_wg": 2, "laneid": 3}) == 128 + 64 + 3
    assert thread_index({"m": 7}) == 0


TILE = TileLayout(S[(4, 8) : (8, 1)])
SWIZZLED = ComposeLayout(3, 3, 3, TileLayout(S[512:1]))
# Calls of methods with what they do not take.
WRONG_CALLS: dict[str, list[tuple[Any, ...]]] = {
    "tile": [(1, 2, 3), (TILE, 2, 3), (TILE, "ab", (4, 8)), (None, (1, 1), (4, 8)), ()],
    "tile_to": [(1, 2), ((8, 8), 3), ("ab", "cd"), ((8, 8), (0, 8)), ((8.5, 8), (4, 8))],
    "direct_sum": [(1, 2, 3), (TILE, 2, 3), (TILE, (4, 8), 5)],
    "slice": [(1, 2), ((4, 8), 3), ((4, 8), (1, 2)), ((4, 8), ((0, 2), (0, "a")))],
    "pack": [("a",), (2.5,), (2, 3), (0,)],
    "unpack": [("a",), (2.5,), (2, 3), (0,)],
    "permute_dims": [(1,), ("ab",), ((0, "a"),)],
    "permute_by_groups": [(1, 2), ((0, 1, 2), 3), ((0, 1), ("a",))],
    "group": [(1,), ("ab",), ((2.5,),)],
    "shift": [("a",), (1.5,), ({"q": 1},)],
    "span": [(3,), ("zz",)],
    "size": [(3,), ("zz",), (1, 2)],
    "apply": [(1, 2, 3, 4)],
}


@pytest.mark.parametrize("layout", [TILE, SWIZZLED], ids=["tile", "swizzled"])
@pytest.mark.parametrize(
    ("method", "arguments"),
    [(name, each) for name, calls in WRONG_CALLS.items() for each in calls],
    ids=str,
)
def test_a_wrong_argument_is_named(
    method: str, arguments: tuple[Any, ...], layout: TileLayout | ComposeLayout
) -> None:
    with pytest.raises(FrontendError) as caught:
        getattr(layout, method)(*arguments)
    assert caught.value.code == "bad-layout"


@pytest.mark.parametrize("spec", [3, "S[4]", None, (4, 8)])
def test_a_layout_is_made_of_its_notation(spec: Any) -> None:
    with pytest.raises(FrontendError) as caught:
        TileLayout(spec)
    assert caught.value.expected == "S[…], R[…] and offsets, added up"


@pytest.mark.parametrize("offset", [3.5, None, "a"])
def test_an_offset_is_an_integer(offset: Any) -> None:
    with pytest.raises(FrontendError) as caught:
        _ = S[4:1] + offset
    assert caught.value.code == "bad-layout"
