"""Copies of boxes of tensors by the asynchronous proxy (PTX ISA 9.7.9.25.5).

May import `base`, `isa.declaration`, `isa.machine`, `isa.mbarrier`, `isa.async_copy`,
`isa.tensor_map` and `isa.tensor_memory`. A tensor map says where the tensor lies and what a box of
it is; coordinates, innermost first, say where a box begins. They are one operand in PTX.

    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r0], [%rd1, {%r2, %r3}], [%r4];
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r2, %r3}], [%r0];
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import INT32, UINT16, UINT32, UINT64
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.async_copy import HINT, policy, without_policy
from tilewright.isa.declaration import (
    Form,
    Operand,
    Order,
    Time,
    address,
    declare,
    register,
)
from tilewright.isa.machine import Box, Lanes, Machine, uint32
from tilewright.isa.mbarrier import complete_transaction
from tilewright.isa.tensor_map import ALIGN, BYTES, GRANULE, MAX_RANK, Fields, fields, require_map
from tilewright.isa.tensor_memory import TARGETS

_CODE = "tensor-map"
# What a box in shared memory is aligned to, under every swizzle (CUDA C++ Programming Guide,
# "Using TMA to Transfer Multi-Dimensional Arrays").
BOX_ALIGN = 128
_NAN = 0x7FF7  # fills what is out of bounds, over and over
_DIMS = tuple(f"{rank}d" for rank in range(1, MAX_RANK + 1))
_SPACES = ("shared::cta", "shared::cluster")
_MODE = ("", "tile")


def rank(form: Form) -> int:
    """Count the coordinates of a tensor copy."""
    return int(form["dim"][0])


def _map_operands(form: Form) -> tuple[Operand, ...]:
    tensor_map = address("tensorMap", Space.GENERIC, "read", BYTES, align=ALIGN)
    return tensor_map, register("coords", "s32", count=rank(form), grouped=True)


# ---------------------------------------------------------------------------- boxes


def _numbers(of: Fields, name: str, axes: range) -> tuple[Lanes, ...]:
    return tuple(of[f"{name}{axis}"] for axis in axes)


def _image(m: Machine, of: Fields, axes: int) -> tuple[Lanes, ...]:
    """Give the extents of a box in shared memory: every `step`-th element but on the innermost."""
    inner, *outer = _numbers(of, "box", range(axes))
    steps = _numbers(of, "step", range(1, axes))
    rounded = (
        m.binary("floordiv", extent + step - 1, step)
        for extent, step in zip(outer, steps, strict=True)
    )
    return (inner, *rounded)


def _product(m: Machine, factors: Sequence[Lanes]) -> Lanes:
    total = m.constant(1, UINT64)
    for each in factors:
        total = total * each
    return total


def _pitch(m: Machine, of: Fields) -> Lanes:
    """Count the bytes between rows: under a swizzle its whole span, uint64."""
    swizzle = of["swizzle"]
    row = of["box0"] * of["element_bytes"]
    return m.select(swizzle == 0, row, m.constant(GRANULE, UINT64) << swizzle)


def _box(m: Machine, of: Fields, origin: Sequence[Lanes], shared: Lanes) -> Box:
    axes = len(origin)
    swizzle = m.cast(of["swizzle"], UINT32)
    element = of["element_bytes"]
    return Box(
        address=of["address"],
        extents=_numbers(of, "extent", range(axes)),
        strides=(element, *_numbers(of, "stride", range(1, axes))),
        origin=tuple(origin),
        sizes=_image(m, of, axes),
        steps=(m.constant(1, UINT64), *_numbers(of, "step", range(1, axes))),
        shared=shared,
        pitch=m.cast(_pitch(m, of), UINT32),
        swizzle=(uint32(m, 1) << swizzle) - 1,
    )


def _require(m: Machine, tensor_map: Lanes, origin: Sequence[Lanes]) -> None:
    """Report a fault unless boxes of this map may begin there."""
    head = require_map(m, tensor_map, len(origin))
    start = origin[0] * m.cast(head["element_bytes"], INT32)
    text = "a box does not begin at a multiple of 16 bytes of a row of its tensor"
    m.require((start & (GRANULE - 1)) == 0, _CODE, text)


def _require_place(m: Machine, shared: Lanes) -> None:
    text = f"a box in shared memory is aligned to {BOX_ALIGN} bytes"
    m.require((shared & (BOX_ALIGN - 1)) == 0, "misaligned", text)


# ---------------------------------------------------------------------------- loads


def _start_load(m: Machine, form: Form, *operands: Lanes) -> None:
    def one(dst: Lanes, tensor_map: Lanes, *rest: Lanes) -> None:
        *origin, mbar = rest
        _require_place(m, dst)
        _require(m, tensor_map, origin)
        m.issue(form, (dst, tensor_map, *rest), mbar)

    m.each_lane(one, *without_policy(form, operands))


def _land_load(m: Machine, form: Form, dst: Lanes, tensor_map: Lanes, *rest: Lanes) -> None:
    *origin, mbar = rest
    of = fields(m, tensor_map)
    box = _box(m, of, origin, dst)
    nan = of["fill"] != 0
    fill = m.select(nan, m.constant(_NAN, UINT16), m.constant(0, UINT16))
    m.load_box(box, fill, m.cast(of["rounds"], UINT32))
    size = _product(m, box.sizes) * box.strides[0]
    complete_transaction(m, mbar, m.cast(size, UINT32))


def is_of_pair(form: Form) -> bool:
    """Tell the copies that may signal an mbarrier of the other CTA of a pair."""
    return dict(form.modifiers).get("group") == _PAIR


def _availability(form: Form) -> Availability:
    return TARGETS if form["group"] else since(90)


_PAIR = "cta_group::2"

tensor_load = declare(
    "cp",
    "async.bulk.tensor.{dim}{space}global{mode}mbarrier::complete_tx::bytes{group}{hint}",
    slots={
        "dim": _DIMS,
        "space": _SPACES,
        "mode": _MODE,
        "group": ("", "cta_group::1", _PAIR),
        "hint": HINT,
    },
    summary="Copy a box of a tensor from global to shared memory, counted by an mbarrier.",
    section='9.7.9.25.5.2 "cp.async.bulk.tensor"',
    targets=_availability,
    operands=lambda form: (
        address("dstMem", Space.SHARED, "write", 0, align=BOX_ALIGN),
        *_map_operands(form),
        address("mbar", Space.SHARED, "update", 8),
        *policy(form),
    ),
    compute=_start_load,
    order=Order(proxy="async"),
    time=Time(agent="bulk_copy", completes="mbarrier"),
    lands=_land_load,
    asm="[{dstMem}], [{tensorMap}, {coords}], [{mbar}], {cachePolicy}",
)

# ---------------------------------------------------------------------------- stores


def _start_store(m: Machine, form: Form, *operands: Lanes) -> None:
    def one(tensor_map: Lanes, *rest: Lanes) -> None:
        *origin, src, lane = rest
        _require_place(m, src)
        _require(m, tensor_map, origin)
        for each in origin:
            m.require(each >= 0, _CODE, "a box that is stored begins at a negative coordinate")
        m.issue(form, (tensor_map, *origin, src), lane=lane)

    m.each_lane(one, *without_policy(form, operands), m.lane_id())


def _land_store(m: Machine, form: Form, tensor_map: Lanes, *rest: Lanes) -> None:
    *origin, src = rest
    m.store_box(_box(m, fields(m, tensor_map), origin, src))


def _read_store(m: Machine, form: Form, tensor_map: Lanes, *rest: Lanes) -> tuple[Lanes, Lanes]:
    of = fields(m, tensor_map)
    rows = _product(m, _image(m, of, rank(form))[1:])
    return rest[-1], m.cast(rows * _pitch(m, of), UINT32)


tensor_store = declare(
    "cp",
    "async.bulk.tensor.{dim}global.shared::cta{mode}bulk_group{hint}",
    slots={"dim": _DIMS, "mode": _MODE, "hint": HINT},
    summary="Copy a box of a tensor from shared to global memory, as one of the thread's groups.",
    section='9.7.9.25.5.2 "cp.async.bulk.tensor"',
    targets=since(90),
    operands=lambda form: (
        *_map_operands(form),
        address("srcMem", Space.SHARED, "read", 0, align=BOX_ALIGN),
        *policy(form),
    ),
    compute=_start_store,
    order=Order(proxy="async"),
    time=Time(agent="bulk_copy", completes="bulk_group"),
    lands=_land_store,
    reads=_read_store,
    asm="[{tensorMap}, {coords}], [{srcMem}], {cachePolicy}",
)

# ---------------------------------------------------------------------------- hints


def _prefetch(m: Machine, form: Form, *operands: Lanes) -> None:
    def one(tensor_map: Lanes, *origin: Lanes) -> None:
        _require(m, tensor_map, origin)

    m.each_lane(one, *without_policy(form, operands))


tensor_prefetch = declare(
    "cp",
    "async.bulk.prefetch.tensor.{dim}L2.global{mode}{hint}",
    slots={"dim": _DIMS, "mode": _MODE, "hint": HINT},
    summary="Ask for a box of a tensor to be brought closer; it changes no values.",
    section='9.7.9.25.5.4 "cp.async.bulk.prefetch.tensor"',
    targets=since(90),
    operands=lambda form: (*_map_operands(form), *policy(form)),
    compute=_prefetch,
    order=Order(proxy="async"),
    asm="[{tensorMap}, {coords}], {cachePolicy}",
)


def _prefetch_map(m: Machine, form: Form, tensor_map: Lanes) -> None:
    def require(tensor_map: Lanes) -> None:
        require_map(m, tensor_map)

    m.each_lane(require, tensor_map)


prefetch_map = declare(
    "prefetch",
    "tensormap",
    summary="Ask for a tensor map to be brought closer; it changes no values.",
    section='9.7.9.15 "prefetch, prefetchu"',
    targets=since(90),
    operands=(address("a", Space.GENERIC, "read", BYTES, align=ALIGN),),
    compute=_prefetch_map,
    order=Order(proxy="tensormap"),
)
