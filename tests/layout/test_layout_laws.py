"""The laws of the layout algebra, each checked at every coordinate of layouts at random."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilewright import layout as package
from tilewright.base.errors import FrontendError
from tilewright.layout import (
    AXES,
    ComposeLayout,
    Iter,
    S,
    TileLayout,
    default_layout,
    image,
    images,
    is_injective,
    laneid,
    m,
    same_map,
    warpid,
)

NAMES = {name: getattr(package, name) for name in package.__all__}

law = settings(deadline=None)

# Layouts are drawn small enough to be evaluated at every coordinate.
axes = st.sampled_from([m, m, laneid, *AXES.values()])
extents = st.sampled_from([1, 2, 2, 3, 4, 6])
strides = st.integers(-3, 20)
iters = st.builds(Iter, extents, strides, axes)
offsets = st.dictionaries(axes, st.integers(-4, 40), max_size=2)

tile_layouts = st.builds(
    TileLayout.from_iters,
    st.lists(iters, max_size=4),
    st.lists(st.builds(Iter, st.sampled_from([1, 2, 3]), strides, axes), max_size=2),
    offsets,
)
memory_layouts = st.builds(
    TileLayout.from_iters,
    st.lists(st.builds(Iter, extents, st.integers(0, 40)), min_size=1, max_size=4),
    st.just(()),
    st.dictionaries(st.just(m), st.integers(0, 40), max_size=1),
)
bits = st.integers(0, 3)
compose_layouts = st.builds(
    ComposeLayout, bits, bits, st.integers(1, 3), memory_layouts, st.booleans()
)
layouts = st.one_of(tile_layouts, compose_layouts)


@st.composite
def factorings(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """Draw a shape of that many elements, extents of 1 included."""
    shape: list[int] = []
    while count > 1:
        extent = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        shape.append(extent)
        count //= extent
        if extent == 1 and len(shape) > 6:
            shape.append(count)
            break
    return tuple(shape)


def formula(layout, number):
    """The definition: digits of the element's number, times strides, plus the offset."""
    if isinstance(layout, ComposeLayout):
        values = formula(layout.tile_layout, number)
        x, mask = values["m"], (1 << layout.swizzle_len) - 1
        low, high = layout.per_element, layout.per_element + layout.atom_len
        if layout.swizzle_inner:
            return {"m": x ^ (((x >> high) & mask) << low)}
        return {"m": x ^ (((x >> low) & mask) << high)}
    values = {axis.name: 0 for axis in layout.axes}
    for each in reversed(layout.shard):
        values[each.axis.name] += number % each.extent * each.stride
        number //= each.extent
    return {k: v + layout.offset_map().get(k, 0) for k, v in values.items()}


def values_of(layout, *coordinate, shape):
    """Apply, without the axes that are 0."""
    return {k: v for k, v in layout.apply(*coordinate, shape=shape).items() if v}


def boxes(shape):
    return product(*map(range, shape))


@law
@given(layouts)
def test_the_text_of_a_layout_evaluates_to_the_layout(layout):
    again = eval(repr(layout), dict(NAMES))
    assert again == layout and hash(again) == hash(layout)


@law
@given(st.data(), layouts)
def test_apply_numbers_the_coordinate_in_any_shape_and_splits_it_over_the_shards(data, layout):
    shape = data.draw(factorings(layout.size()))
    for number, coordinate in enumerate(boxes(shape)):
        assert layout.apply(*coordinate, shape=shape) == formula(layout, number)


@law
@given(layouts)
def test_without_a_shape_one_coordinate_is_the_number_and_several_are_the_digits(layout):
    for number, digits in enumerate(boxes(layout.shard_shape)):
        assert layout.apply(number) == formula(layout, number)
        if len(digits) != 1:
            assert layout.apply(*digits) == formula(layout, number)


@law
@given(st.data(), layouts)
def test_the_image_holds_apply_at_every_coordinate(data, layout):
    shape = data.draw(factorings(layout.size()))
    values = image(layout, shape)
    assert all(v.shape == shape and v.dtype == np.int64 for v in values.values())
    for at in boxes(shape):
        assert {k: int(v[at]) for k, v in values.items()} == layout.apply(*at, shape=shape)


@law
@given(layouts)
def test_the_lowest_value_and_the_span_bound_every_place(layout):
    tile = getattr(layout, "tile_layout", layout)
    for axis in tile.axes_with_replica():
        none = np.zeros(layout.size(), dtype=np.int64)
        values = np.stack([v.get(axis.name, none) for v in images(layout, (layout.size(),))])
        assert layout.lowest(axis) <= values.min() and values.max() < layout.span(axis)
        if layout is tile:
            assert (layout.lowest(axis), layout.span(axis)) == (values.min(), values.max() + 1)


@law
@given(st.data(), layouts)
def test_canonical_layouts_map_alike_and_are_their_own_canonical_form(data, layout):
    plain = layout.canonicalize()
    assert same_map(plain, layout, (layout.size(),))
    assert plain.canonicalize() == plain
    places = [sorted(_rows(each, layout)) for each in (layout, plain)]
    assert {*places[0]} == {*places[1]}


def _rows(layout, like):
    names = sorted({axis.name for axis in (getattr(like, "tile_layout", like)).axes_with_replica()})
    for each in images(layout, (layout.size(),)):
        zero = np.zeros(layout.size(), dtype=np.int64)
        values = (each.get(n, zero).tolist() for n in names)
        yield from zip(range(layout.size()), *values, strict=True)


@law
@given(st.data(), layouts)
def test_grouping_keeps_the_map_and_multiplies_to_the_shape(data, layout):
    shape = data.draw(factorings(layout.size()))
    try:
        grouped, separators = layout.group(shape)
    except FrontendError:
        assume(False)
    extents = grouped.shard_shape
    assert [prod(extents[a:b]) for a, b in pairwise(separators)] == list(shape)
    assert same_map(grouped, layout, shape)


def test_grouping_refuses_a_shape_whose_axes_end_inside_digits():
    with pytest.raises(FrontendError, match="cannot be grouped"):
        TileLayout(S[(2, 3) : (1, 2)]).group((3, 2))


small = st.lists(st.sampled_from([1, 2, 3]), min_size=2, max_size=2).map(tuple)


@st.composite
def shaped(draw, shape):
    """Draw a layout with a shard for each axis of a shape, and an offset."""
    digits = [Iter(n, draw(st.integers(0, 12)), draw(st.sampled_from([m, laneid]))) for n in shape]
    return TileLayout.from_iters(digits, (), draw(st.dictionaries(st.just(m), st.integers(0, 9))))


@law
@given(st.data(), small, small)
def test_tiling_scales_the_outer_layout_by_the_width_of_the_inner(data, outer_shape, inner_shape):
    outer, inner = data.draw(shaped(outer_shape)), data.draw(shaped(inner_shape))
    tiled = inner.tile(outer, outer_shape, inner_shape)
    whole = tuple(a * b for a, b in zip(outer_shape, inner_shape, strict=True))
    for x, y in product(boxes(outer_shape), boxes(inner_shape)):
        at = [a * n + b for a, b, n in zip(x, y, inner_shape, strict=True)]
        far, near = values_of(outer, *x, shape=outer_shape), inner.apply(*y, shape=inner_shape)
        for axis in (m, laneid):
            expected = far.get(axis.name, 0) * inner.width(axis) + near.get(axis.name, 0)
            assert tiled.apply(*at, shape=whole).get(axis.name, 0) == expected


@law
@given(st.data(), small, small)
def test_a_direct_sum_adds_the_values_of_both_layouts(data, left_shape, right_shape):
    left, right = data.draw(shaped(left_shape)), data.draw(shaped(right_shape))
    both = right.direct_sum(left, left_shape, right_shape)
    whole = tuple(a * b for a, b in zip(left_shape, right_shape, strict=True))
    for x, y in product(boxes(left_shape), boxes(right_shape)):
        at = [a * n + b for a, b, n in zip(x, y, right_shape, strict=True)]
        far, near = left.apply(*x, shape=left_shape), right.apply(*y, shape=right_shape)
        values = both.apply(*at, shape=whole)
        assert values == {k: far.get(k, 0) + near.get(k, 0) for k in values}


def test_tiling_to_a_shape_repeats_the_layout_row_by_row():
    tiled = TileLayout(S[8, 8]).tile_to((16, 24), (8, 8))
    assert tiled == TileLayout(S[(2, 8, 3, 8) : (192, 8, 64, 1)])


@law
@given(st.data(), layouts)
def test_a_slice_maps_as_the_layout_does_at_the_box(data, layout):
    shape = data.draw(factorings(layout.size()))
    ends = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
    assume(all(a < b for a, b in ends))
    try:
        sliced = layout.slice(shape, ends)
    except FrontendError:
        assume(False)
    extents = tuple(b - a for a, b in ends)
    for at in boxes(extents):
        there = [a + c for (a, _), c in zip(ends, at, strict=True)]
        assert values_of(sliced, *at, shape=extents) == values_of(layout, *there, shape=shape)


def test_a_slice_that_wraps_inside_a_digit_is_refused():
    with pytest.raises(FrontendError, match="wraps around"):
        TileLayout(S[(4, 4) : (1, 8)]).slice((16,), [(3, 6)])
    with pytest.raises(FrontendError, match="does not lie in the shape"):
        TileLayout(S[4, 4]).slice((4, 4), [(0, 5), (0, 4)])


counts = st.sampled_from([1, 2, 4])


@law
@given(layouts, counts)
def test_unpacking_makes_each_element_that_many_neighbours(layout, count):
    wide = layout.unpack(count)
    for number, part in product(range(layout.size()), range(count)):
        values = layout.apply(number)
        expected = {**values, "m": values.get("m", 0) * count + part}
        found = wide.apply(number * count + part)
        assert found == expected


@law
@given(layouts, counts)
def test_packing_undoes_unpacking(layout, count):
    packed = layout.unpack(count).pack(count)
    assert same_map(packed, layout, (layout.size(),))
    assert packed.displacements() == layout.displacements()


@pytest.mark.parametrize(
    "refused",
    [
        lambda: TileLayout(S[(4, 4) : (1, 4)]).pack(2),
        lambda: TileLayout(S[(4, 6) : (6, 1)]).pack(4),
        lambda: TileLayout(S[(4, 4) : (5, 1)]).pack(2),
        lambda: TileLayout(S[4:1] + 1).pack(2),
        lambda: ComposeLayout(1, 1, 3, TileLayout(S[64:1])).pack(4),
        lambda: ComposeLayout(3, 1, 3, TileLayout(S[64:1])).unpack(3),
    ],
)
def test_packing_elements_that_are_not_neighbours_is_refused(refused):
    with pytest.raises(FrontendError) as error:
        refused()
    assert error.value.code == "bad-layout"


@law
@given(st.data(), layouts)
def test_permuting_reorders_the_digits_of_the_coordinate(data, layout):
    order = data.draw(st.permutations(range(len(layout.shard_shape))))
    permuted = layout.permute_dims(order)
    shape = layout.shard_shape
    new = tuple(shape[i] for i in order)
    for at in boxes(new):
        old = [at[order.index(i)] for i in range(len(shape))]
        assert permuted.apply(*at, shape=new) == layout.apply(*old, shape=shape)


def test_permuting_groups_transposes_a_view():
    layout = TileLayout(S[(2, 4, 8) : (64, 1, 4 @ laneid)])
    grouped, separators = layout.group((8, 8))
    turned = grouped.permute_by_groups(separators, [1, 0])
    for name, values in image(turned, (8, 8)).items():
        assert np.array_equal(values, image(layout, (8, 8))[name].T)
    with pytest.raises(FrontendError, match="not a permutation"):
        layout.permute_dims([0, 0, 1])


@law
@given(layouts)
def test_no_address_reaches_the_span(layout):
    places = images(layout, (layout.size(),))
    top = max(int(each["m"].max()) if "m" in each else 0 for each in places)
    if isinstance(layout, TileLayout):
        assert max(top, 0) + 1 == max(layout.span(), 1) or layout.span() <= 0
    else:
        assert top < layout.span() <= top + layout.block


@law
@given(layouts)
def test_size_is_the_product_of_the_sizes_of_the_axes(layout):
    assert layout.size() == prod(layout.size(axis) for axis in layout.axes)


@law
@given(memory_layouts)
def test_contiguous_layouts_fill_an_interval_once(layout):
    found = np.sort(image(layout)["m"].ravel())
    start = layout.offset_map().get("m", 0)
    filled = np.array_equal(found, np.arange(start, start + layout.size()))
    assert layout.is_contiguous() == filled


@law
@given(st.integers(0, 2), st.integers(0, 2), st.integers(1, 2), st.booleans(), memory_layouts)
def test_contiguous_swizzled_layouts_fill_an_interval_once(pe, sl, al, inner, tile):
    layout = ComposeLayout(pe, sl, al, tile, inner)
    found = np.sort(image(layout)["m"].ravel())
    if layout.is_contiguous():
        assert np.array_equal(found, np.arange(found[0], found[0] + layout.size()))


@law
@given(tile_layouts)
def test_a_trivial_layout_is_the_identity(layout):
    if layout.is_trivial():
        assert same_map(layout, default_layout((layout.size(),)), (layout.size(),))
        assert all(not any(moved.values()) for moved in layout.displacements())
    assert default_layout((layout.size(), 1)).is_trivial()


@law
@given(compose_layouts)
def test_a_swizzle_permutes_every_aligned_block(layout):
    block = np.arange(layout.block)
    for base in (0, layout.block * 5):
        assert sorted(layout.swizzle(block + base)) == list(block + base)
    later = layout.swizzle(np.arange(layout.period) + layout.period)
    assert np.array_equal(later, layout.swizzle(np.arange(layout.period)) + layout.period)


def test_tiling_a_swizzled_atom_keeps_the_atom():
    atom = ComposeLayout(3, 3, 3, TileLayout(S[512:1]))
    tiled = atom.tile_to((16, 64), (8, 64)).tile_to((16, 128), (16, 64))
    for x, y, row, column in product(range(2), range(2), (0, 5), (0, 33)):
        number = tiled.apply(x * 8 + row, y * 64 + column, shape=(16, 128))["m"]
        assert number == y * 1024 + x * 512 + atom.apply(row, column, shape=(8, 64))["m"]
    with pytest.raises(FrontendError, match="where the swizzle repeats"):
        ComposeLayout(3, 3, 3, TileLayout(S[64:1])).tile_to((2, 64), (1, 64))


def test_replicas_are_listed_and_count_for_injectivity():
    layout = TileLayout(S[(4, 2) : (1, 1 @ warpid)] + S[1:0]).shift({laneid: 3})
    assert is_injective(layout)
    twice = TileLayout.from_iters(layout.shard, [Iter(2, 4, m)], {laneid: 3})
    assert twice.displacements() == [{"m": 0}, {"m": 4}]
    assert is_injective(twice)
    assert not is_injective(TileLayout.from_iters(layout.shard, [Iter(2, 3, m)]))
    assert not is_injective(TileLayout(S[(4, 4) : (0, 1)]))


def test_a_shape_of_another_size_is_refused():
    with pytest.raises(FrontendError, match="does not fit the layout"):
        TileLayout(S[4, 4]).apply(0, 0, shape=(4, 5))
    with pytest.raises(FrontendError, match="2 coordinates"):
        TileLayout(S[4, 4]).apply(0, 0, 0)
