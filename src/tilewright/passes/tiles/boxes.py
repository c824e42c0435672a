"""Copies of boxes between tensors and shared memory: their contract, and what they become.

May import `base`, `isa`, `ir`, `layout`, NumPy and the modules of this folder above. One thread
issues the copy of a box; the chip finds the tensor by a tensor map, and the box by coordinates.

    T.cuda.tile.apply(load, a.view(2, 128, 64), A, box=(128, 64), coords=(128 * i, 0),
                      coord_steps=((0, 64),), mbar=full.ptr_to([0]), swizzle=3)
    # -> two instructions, at columns 0 and 64 of the map of A
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilewright.base.dtypes import INT32, UINT32, UINT64, DType
from tilewright.base.spaces import Space
from tilewright.ir.expressions import AddressOf, Bitcast, Expr, Var, as_constant, as_expr, cast
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply, Block, EncodeTensorMap, Instruct
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType
from tilewright.isa.async_copy import POLICY
from tilewright.isa.declaration import TileContract, TileOperand
from tilewright.isa.tensor_copy import BOX_ALIGN, rank
from tilewright.isa.tensor_map import FORMATS, GRANULE, format_of
from tilewright.isa.tile_forms import loads_boxes, tile_operands
from tilewright.passes.tiles.box_images import check_image
from tilewright.passes.tiles.groups import Group, group_of
from tilewright.passes.tiles.memory import address_at
from tilewright.passes.tiles.parameters import entries, flag, plain_parameters
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import Tile, read_operands, refuse
from tilewright.passes.tiles.tensor_maps import Box, Maps
from tilewright.passes.wide_views import require_whole_elements

_OPTIONS = ("swizzle", "interleave", "l2_promotion", "oob_fill")


@dataclass(frozen=True)
class _Copy:
    """A copy of boxes whose contract is proven.

    `starts_inside` says that a box may begin within what its swizzle permutes, so that its first
    element is not at its start.
    """

    apply: Apply
    contract: TileContract
    group: Group
    tile: Tile
    repetitions: list[dict[str, int]]
    map: Expr
    start: tuple[Expr, ...]
    steps: tuple[tuple[Expr, ...], ...]
    starts_inside: bool
    mbar: tuple[Expr, ...]
    policy: tuple[Expr, ...]

    def operands(self, step: dict[str, int]) -> tuple[Expr, ...]:
        """Give the IR operands at a repetition, in PTX order."""
        shared = address_at(self.contract, self.tile, self.group, step)
        if self.starts_inside:
            shared = Bitcast(shared, ScalarType(UINT32)) & ~(BOX_ALIGN - 1)
        place = (self.map, *reversed(self.coordinates(step)))
        if loads_boxes(self.apply.form):
            return (shared, *place, *self.mbar, *self.policy)
        return (*place, shared, *self.policy)

    def coordinates(self, step: dict[str, int]) -> list[Expr]:
        """Give the coordinates of the box at a repetition, outermost first."""
        at = [*self.group.coordinates, *(as_expr(step[axis]) for axis in self.tile.repeats)]
        found: list[Expr] = []
        for axis, first in enumerate(self.start):
            for number, vector in zip(at, self.steps, strict=True):
                first = first + number * vector[axis]
            found.append(first)
        return found


def emit_copy(apply: Apply, scene: Scene, maps: Maps) -> Block:
    """Prove the contract of a copy of boxes, and write it as instructions.

    `maps` collects the tensor maps that the host has to make. Raises `TileContractError` with
    the code of the rule that is broken.
    """
    copy = _proven(apply, scene, maps)
    predicate = dict(apply.parameters).get("pred")
    found: list[Instruct] = []
    for step in copy.repetitions:
        _check_place(apply, copy, step, scene)
        found.append(
            Instruct(
                apply.form,
                copy.operands(step),
                None if predicate is None else flag(predicate),
                location=apply.location,
            )
        )
    return tuple(found)


def _proven(apply: Apply, scene: Scene, maps: Maps) -> _Copy:
    parameters = plain_parameters(apply, _known(apply))
    shared, tensor = _sides(apply)
    box = _box(apply, parameters, _element(apply, shared, tensor))
    contract = _contract(apply, box)
    group = group_of(apply, contract.issuer, scene)
    operands = read_operands(replace(apply, operands=(shared,)), contract, group)
    (tile,) = operands.tiles.values()
    there = apply.at(tile.operand.operand)
    require_whole_elements(tile.view, scene.ranges, there.location)
    return _Copy(
        apply,
        contract,
        group,
        tile,
        operands.steps(),
        _map(apply, tensor, box, parameters, scene, maps),
        _vector(apply, "coords", parameters.get("coords")),
        _steps(apply, parameters, (*group.extents, *tile.repeat_shape())),
        check_image(there, tile, scene, box),
        _mbar(apply, parameters) if loads_boxes(apply.form) else (),
        _policy(apply, parameters),
    )


def _sides(apply: Apply) -> tuple[Expr, Expr]:
    """Tell the two operands apart: the tile in shared memory, and the tensor or its map."""
    first, second = apply.operands
    shared, tensor = (first, second) if loads_boxes(apply.form) else (second, first)
    shared_at, tensor_at = _places(apply)
    if not _lies_in(shared, Space.SHARED):
        message = f"the shared side of {apply.form.text} is of another kind"
        expected = "a tensor view in shared memory"
        raise refuse(shared_at, "tile-operand", message, expected, str(shared.type))
    if not _lies_in(tensor, Space.GLOBAL) and not isinstance(tensor.type, PointerType):
        message = f"the global side of {apply.form.text} is of another kind"
        expected = "a view of a tensor in global memory, or the address of a tensor map"
        raise refuse(tensor_at, "tile-operand", message, expected, str(tensor.type))
    return shared, tensor


def _places(apply: Apply) -> tuple[Apply, Apply]:
    """Give the operation as one that stands at the tile, and at the tensor."""
    first, second = map(apply.at, tile_operands(apply.form))
    return (first, second) if loads_boxes(apply.form) else (second, first)


def _lies_in(value: Expr, space: Space) -> bool:
    return isinstance(value.type, TensorType) and value.type.space is space


def _element(apply: Apply, shared: Expr, tensor: Expr) -> DType:
    """Give the type of the elements, which is the tensor's where there is one."""
    own = tensor_type(shared).dtype
    if not isinstance(tensor.type, TensorType):
        return own
    theirs = tensor.type.dtype
    if own.bits * own.lanes != theirs.bits * theirs.lanes:
        message = "the tile and the tensor have elements of different widths"
        expected = f"elements of {theirs.bits * theirs.lanes} bits in both, as {theirs}"
        hint = f'view one of them as the other is, as in .view("{theirs}")'
        raise refuse(_places(apply)[0], "tile-operand", message, expected, str(own), hint)
    return theirs


def _contract(apply: Apply, box: Box) -> TileContract:
    """State the tile contract: the tile is (*group, *repeat, *image of the box)."""
    name = next(each.name for each in apply.form.operands if each.space is Space.SHARED)
    bits = 8 * box.element_bytes
    tile = TileOperand(name, (Space.SHARED,), box.image, bits, align=BOX_ALIGN)
    return TileContract("thread", (tile,))


# ---------------------------------------------------------------------------- parameters


def _known(apply: Apply) -> tuple[str, ...]:
    """List the parameters of a copy."""
    known = ("box", "coords", "coord_steps", "format", "element_strides", *_OPTIONS)
    if loads_boxes(apply.form):
        known = (*known, "mbar")
    return (*known, "cache_policy", "pred")


# The parameters that the problems of a map come from, where that is not the box.
_PARAMETERS = {
    "element type of a tensor map": "format",
    "element strides": "element_strides",
    "interleave": "interleave",
    "swizzle": "swizzle",
    "L2 promotion": "l2_promotion",
    "fill of what is out of bounds": "oob_fill",
}


def _box(apply: Apply, parameters: dict[str, Any], kind: DType) -> Box:
    """Read what the parameters say of boxes, and hold it to the rules of tensor maps."""
    extents = _numbers(apply, "box", parameters.get("box"))
    ones = (1,) * len(extents)
    steps = _numbers(apply, "element_strides", parameters.get("element_strides", ones))
    options = {name: _number(apply, name, parameters.get(name, 0)) for name in _OPTIONS}
    format = str(parameters.get("format", format_of(kind)))
    box = Box(format, extents[::-1], steps[::-1], **options)
    if format in FORMATS and 8 * box.element_bytes != kind.bits * kind.lanes:
        message = f"elements of the format {format} have another width than the tile's"
        expected = f"a format of {kind.bits * kind.lanes} bits, for {kind}"
        found = f"{8 * box.element_bytes} bits"
        raise refuse(apply.at("format"), "tile-operand", message, expected, found)
    if problem := box.map_of().problem():
        what, expected, found = problem
        slabs = "copy a box for each span: a repeat axis of the tile, with coord_steps="
        hint = slabs if what.startswith("rows") and expected.startswith("at most") else None
        message = f"{apply.form.text} cannot copy such boxes, because of the {what}"
        at = apply.at(_PARAMETERS.get(what, "box"))
        raise refuse(at, "tile-operand", message, expected, found, hint)
    if steps[-1] != 1:
        expected = "1 on the last axis, whose elements are copied without gaps"
        message = "the element strides of a box leave out elements of its rows"
        at = apply.at("element_strides")
        raise refuse(at, "tile-operand", message, expected, str(steps))
    return box


def _numbers(apply: Apply, name: str, value: Any) -> tuple[int, ...]:
    found = entries(value)
    if len(found) == rank(apply.form) and all(type(each) is int for each in found):
        return found
    raise refuse(
        apply.at(name),
        "tile-operand",
        f"{apply.form.text} needs the {name} of its boxes",
        f"{name}= {rank(apply.form)} constants, outermost first",
        _spell(value),
    )


def _number(apply: Apply, name: str, value: Any) -> int:
    if type(value) is not int:
        message = f"{name} is written into a tensor map when the kernel is compiled"
        expected = f"{name}= a constant"
        raise refuse(apply.at(name), "tile-operand", message, expected, _spell(value))
    return value


def _vector(apply: Apply, name: str, value: Any) -> tuple[Expr, ...]:
    """Read coordinates, outermost first, as int32."""
    given = [as_expr(each) for each in entries(value) if isinstance(each, int | Expr)]
    if len(given) == len(entries(value)) == rank(apply.form) and all(map(_is_integer, given)):
        return tuple(cast(each, INT32) for each in given)
    message = f"{apply.form.text} needs the coordinates of its boxes"
    expected = f"{name}: {rank(apply.form)} integers, outermost first"
    raise refuse(apply.at(name), "tile-operand", message, expected, _spell(value))


def _is_integer(value: Expr) -> bool:
    kind = value.type
    return isinstance(kind, ScalarType) and kind.dtype.is_integer and kind.dtype.lanes == 1


def _steps(
    apply: Apply, parameters: dict[str, Any], extents: Sequence[int]
) -> tuple[tuple[Expr, ...], ...]:
    """Read how far apart in the tensor the boxes along each group and repeat axis are."""
    axes = rank(apply.form)
    given = parameters.get("coord_steps")
    vectors = entries(given)
    if not vectors and prod(extents) == 1:
        vectors = ((0,) * axes,) * len(extents)
    if len(vectors) != len(extents):
        raise refuse(
            apply.at("coord_steps"),
            "tile-operand",
            "it is not said where in the tensor the boxes along each axis of the tile lie",
            f"coord_steps= a vector of {axes} for each group and repeat axis; their extents are "
            f"{tuple(extents)}",
            _spell(given),
        )
    return tuple(_vector(apply, "coord_steps", each) for each in vectors)


def _mbar(apply: Apply, parameters: dict[str, Any]) -> tuple[Expr, ...]:
    match parameters.get("mbar"):
        case Expr(type=PointerType(space=Space.SHARED)) as pointer:
            return (pointer,)
        case given:
            expected = "mbar= the address of an mbarrier, as in full.ptr_to([0])"
            message = f"{apply.form.text} counts the bytes that have come by an mbarrier"
            raise refuse(apply.at("mbar"), "tile-operand", message, expected, _spell(given))


def _policy(apply: Apply, parameters: dict[str, Any]) -> tuple[Expr, ...]:
    """Read the cache policy, which is there if the instruction has a cache hint."""
    hinted = POLICY in apply.form.operands
    given = parameters.get("cache_policy")
    if hinted == (given is not None):
        return () if given is None else (cast(as_expr(given, UINT64), UINT64),)
    message = "a cache policy is given with the modifier .L2::cache_hint, and only with it"
    expected = "cache_policy=, a uint64" if hinted else "no cache_policy"
    raise refuse(apply.at("cache_policy"), "tile-operand", message, expected, _spell(given))


def _spell(value: Any) -> str:
    match value:
        case None:
            return "none given"
        case tuple():
            parts = [_spell(each) for each in entries(value)]
            return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
        case Expr():
            return str(value)
        case _:
            return repr(value)


# ---------------------------------------------------------------------------- the tensor


def _map(
    apply: Apply,
    tensor: Expr,
    box: Box,
    parameters: dict[str, Any],
    scene: Scene,
    maps: Maps,
) -> Expr:
    """Point at the tensor map of a copy."""
    match tensor:
        case AddressOf(tensor=Var(type=TensorMapType(), name=name)) if name in maps.visible:
            _check_same(apply, maps.visible[name], box, parameters)
            return tensor
        case _ if not isinstance(tensor.type, TensorType):
            return tensor
        case _:
            _, tensor_at = _places(apply)
            return maps.address(tensor_at, tensor, box, scene)


def _check_same(apply: Apply, made: EncodeTensorMap, box: Box, parameters: dict[str, Any]) -> None:
    """Hold the parameters of a copy to the map that the program has made."""
    stated: dict[str, tuple[Any, Any]] = {
        "box": (_constants(made.box), box.extents[::-1]),
        "element_strides": (_constants(made.steps), box.steps[::-1]),
        "swizzle": (made.swizzle, box.swizzle),
        "interleave": (made.interleave, box.interleave),
    }
    given: dict[str, tuple[Any, Any]] = {
        "format": (made.format, box.format),
        "l2_promotion": (made.l2_promotion, box.l2_promotion),
        "oob_fill": (made.oob_fill, box.oob_fill),
    }
    stated |= {name: pair for name, pair in given.items() if name in parameters}
    widths = (replace(box, format=made.format).element_bytes, box.element_bytes)
    stated["bytes of an element"] = widths
    for name, (theirs, own) in stated.items():
        if theirs is not None and theirs != own:
            raise refuse(
                apply.at(name),
                "tile-operand",
                f"the tensor map {made.var.name} has another {name} than the operation",
                f"{name} {theirs!r}, as the map",
                f"{own!r}",
                notes=(f"the map is made at {made.location.header()}",) if made.location else (),
            )


def _constants(numbers: Sequence[Expr]) -> tuple[int, ...] | None:
    """Give numbers of a map outermost first, `None` if they are not known when compiling."""
    found = [as_constant(each) for each in reversed(numbers)]
    known = [int(each) for each in found if each is not None]
    return tuple(known) if len(known) == len(found) else None


def _check_place(apply: Apply, copy: _Copy, step: dict[str, int], scene: Scene) -> None:
    """Refuse boxes whose coordinates are known to be such as the chip does not take."""
    coordinates = copy.coordinates(step)
    size = tensor_type(copy.tile.view).dtype.bytes
    unit = max(GRANULE // size, 1)
    inner = scene.ranges.fact(coordinates[-1])
    if inner is not None and inner.modulus % unit == 0 and inner.residue % unit:
        raise refuse(
            apply.at("coords"),
            "tile-alignment",
            f"a box begins between multiples of {GRANULE} bytes of a row",
            f"a last coordinate that is a multiple of {unit}",
            str(coordinates[-1]),
        )
    for coordinate in () if loads_boxes(apply.form) else coordinates:
        fact = scene.ranges.fact(coordinate)
        if fact is not None and fact.high < 0:
            message = "a box is stored before the start of the tensor"
            expected, found = "no negative coordinates", str(coordinate)
            raise refuse(apply.at("coords"), "tile-operand", message, expected, found)
