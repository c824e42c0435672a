"""Products of tiles by the tensor core: their contract, and the instructions they become.

May import `base`, `isa`, `ir`, `layout`, `passes.extract_descriptors` and the modules of this
folder above. Matrices in shared memory are given by descriptors: a constant, and the address of
the first element of each matrix.

    T.cuda.tile.apply(mma, d, a, b, instruction_shape=(128, 64, 16))
    # -> for each m, n and k one instruction, the first k adding to D only with `accum`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.base.dtypes import BOOL, UINT32, UINT64, DType
from tilewright.base.errors import TileContractError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Bitcast,
    Expr,
    cast,
    constant,
    int32,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply, Block, Instruct
from tilewright.ir.types import PointerType, ScalarType
from tilewright.isa.descriptors import encode_instruction
from tilewright.isa.tensor_core import (
    COMBINATIONS,
    KEPT_LANES,
    MASK_WORDS,
    SHIFT,
    SHIFTS,
    contract,
    kind,
    left_space,
    product_tiles,
    shapes,
)
from tilewright.layout import tmem_datapath_layout, tmem_mma_operand_layout
from tilewright.passes.analysis.evaluation import Values
from tilewright.passes.extract_descriptors import SharedMatrix, Unfit, extract, modes
from tilewright.passes.places import laid_out_by
from tilewright.passes.tiles.cells import check_operand
from tilewright.passes.tiles.groups import Group, group_of
from tilewright.passes.tiles.images import image_of
from tilewright.passes.tiles.memory import known_alignment
from tilewright.passes.tiles.parameters import entries, flag, plain_parameters
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import Tile, read_operands, refuse
from tilewright.passes.wide_views import require_whole_elements

_PARAMETERS = (
    *("instruction_shape", "a_major", "b_major", "a_format", "b_format"),
    *("neg_a", "neg_b", "sat_d", "accum", KEPT_LANES, SHIFT, "pred"),
)
_MAJORS = ("k", "mn")
# The bits of a descriptor that hold the start address, which is counted in 16 bytes.
_ADDRESS = (1 << 14) - 1
# What a float32 is called as an element of which 19 bits count.
_TF32 = "tf32"
# By M: the data path over whose lanes the rows of D lie, and the lanes in which it may begin.
_DATA_PATHS = {128: "D", 64: "F"}
_FIRST_LANES = {128: (0,), 64: (0, 16)}


@dataclass(frozen=True)
class _Product:
    """A product whose contract is proven.

    `matrices` has the descriptors of those in shared memory, as if they started at 0.
    """

    group: Group
    tiles: dict[str, Tile]
    matrices: dict[str, int]
    descriptor: int
    accumulate: Expr
    kept: tuple[Expr, ...]
    shift: tuple[Expr, ...]
    made: dict[tuple[str, tuple[int, ...]], Expr] = field(
        default_factory=dict[tuple[str, "tuple[int, ...]"], Expr]
    )

    def operands(self, step: dict[str, int]) -> tuple[Expr, ...]:
        """Give the IR operands at a repetition."""
        first = step["k"] == 0
        enable = self.accumulate if first else constant(True, BOOL)
        matrices = [self._operand(name, step) for name in self.tiles]
        # What was there before the first step is scaled, and sums of this operation are not.
        shift = self.shift if first else tuple(constant(0, UINT32) for _ in self.shift)
        return (*matrices, constant(self.descriptor, UINT32), *self.kept, enable, *shift)

    def _operand(self, name: str, step: dict[str, int]) -> Expr:
        """Give a matrix; there is one node for it, in however many steps it takes part."""
        at = tuple(step[axis] for axis in self.tiles[name].repeats)
        if (name, at) not in self.made:
            self.made[name, at] = self._matrix(name, at)
        return self.made[name, at]

    def _matrix(self, name: str, at: tuple[int, ...]) -> Expr:
        tile = self.tiles[name]
        where = (
            *self.group.coordinates,
            *map(int32, at),
            *map(int32, (0,) * len(tile.operand.atom)),
        )
        view = tensor_type(tile.view)
        address = AddressOf(tile.view, where, PointerType(view.space, view.dtype, 16))
        if name not in self.matrices:
            return address
        number = Bitcast(address, ScalarType(UINT32)) >> 4 & _ADDRESS
        return constant(self.matrices[name], UINT64) | cast(number, UINT64)


def emit_product(apply: Apply, scene: Scene) -> Block:
    """Prove the contract of a product of tiles, and write it as instructions.

    Raises `TileContractError` with the code of the rule that is broken.
    """
    parameters = plain_parameters(apply, _PARAMETERS)
    shape = _shape(apply, parameters)
    d_bits = _element_bits(apply, 0)
    tiled = contract(apply.form, shape, d_bits)
    group = group_of(apply, tiled.issuer, scene)
    operands = read_operands(apply, tiled, group)
    for name, tile in operands.tiles.items():
        require_whole_elements(tile.view, scene.ranges, apply.at(name).location)
    majors = [_major(apply, parameters, name) for name in ("a_major", "b_major")]
    descriptor = _descriptor(apply, parameters, operands.tiles, shape, majors)
    matrices = _matrices(apply, operands.tiles, scene, shape, majors)
    product = _Product(
        group,
        operands.tiles,
        {name: each.constant for name, each in matrices.items()},
        descriptor,
        flag(parameters.get("accum", False)),
        _kept(apply, parameters),
        _shift(apply, parameters),
    )
    predicate = parameters.get("pred")
    return tuple(
        Instruct(
            apply.form,
            product.operands(step),
            None if predicate is None else flag(predicate),
            location=apply.location,
        )
        for step in operands.steps()
    )


# ---------------------------------------------------------------------------- parameters


def _constant_flag(apply: Apply, parameters: dict[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if isinstance(value, Expr):
        message = f"{name} is a bit of the instruction's descriptor, which is a constant"
        raise refuse(apply.at(name), "tile-operand", message, f"{name}=True or False", str(value))
    return bool(value)


def _kept(apply: Apply, parameters: dict[str, Any]) -> tuple[Expr, ...]:
    """Take the masks of the lanes in which D stays as it is."""
    given = parameters.get(KEPT_LANES)
    if given is None:
        return ()
    masks = entries(given)
    if len(masks) == MASK_WORDS and all(map(_is_mask, masks)):
        return tuple(map(_mask, masks))
    expected, at = f"{MASK_WORDS} masks of 32 lanes, each a uint32", apply.at(KEPT_LANES)
    raise refuse(at, "tile-operand", f"{KEPT_LANES} does not fit", expected, str(given))


def _is_mask(value: Any) -> bool:
    if isinstance(value, Expr):
        kind = value.type
        return isinstance(kind, ScalarType) and kind.dtype.is_integer and kind.dtype.bits == 32
    return isinstance(value, int) and -(1 << 31) <= value < 1 << 32


def _mask(value: Expr | int) -> Expr:
    if isinstance(value, Expr):
        return Bitcast(value, ScalarType(UINT32))
    return constant(value & ((1 << 32) - 1), UINT32)


def _shift(apply: Apply, parameters: dict[str, Any]) -> tuple[Expr, ...]:
    """Take the power of two by which D is divided before it is added."""
    match parameters.get(SHIFT):
        case None:
            return ()
        case int() as given if given in SHIFTS:
            return (constant(given, UINT32),)
        case given:
            expected, at = f"a constant from {SHIFTS[0]} to {SHIFTS[-1]}", apply.at(SHIFT)
            raise refuse(at, "tile-operand", f"{SHIFT} does not fit", expected, str(given))


def _shape(apply: Apply, parameters: dict[str, Any]) -> tuple[int, int, int]:
    legal = shapes(kind(apply.form))
    match parameters.get("instruction_shape"):
        case (int() as M, int() as N, int() as K) if (M, N, K) in legal:
            return M, N, K
        case given:
            raise refuse(
                apply.at("instruction_shape"),
                "tile-shape",
                f"{apply.form.text} has no such shape",
                f"instruction_shape=(M, N, K), one of {legal}",
                "none given" if given is None else str(given),
            )


def _element_bits(apply: Apply, position: int) -> int:
    """Give the width of D's elements, of which there are two; any other is refused as 32."""
    if position >= len(apply.operands) or not hasattr(apply.operands[position].type, "dtype"):
        return 32
    found = apply.operands[position].dtype
    return 16 if found.bits * found.lanes == 16 else 32


def _major(apply: Apply, parameters: dict[str, Any], name: str) -> str:
    major = parameters.get(name, "k")
    if major not in _MAJORS:
        expected = f'{name}="k" or "mn"'
        message = f"there is no such {name}"
        raise refuse(apply.at(name), "tile-operand", message, expected, repr(major))
    if name == "a_major" and major == "mn" and left_space(apply.form) is Space.TMEM:
        raise refuse(
            apply.at(name),
            "tile-operand",
            "a matrix in Tensor Memory is K-major",
            'a_major="k", or A in shared memory',
            'a_major="mn"',
        )
    return major


def _descriptor(
    apply: Apply,
    parameters: dict[str, Any],
    tiles: dict[str, Tile],
    shape: tuple[int, int, int],
    majors: list[str],
) -> int:
    """Pack the instruction's descriptor from the formats of its operands."""
    if _constant_flag(apply, parameters, "sat_d"):
        message = f"{apply.form.text} does not saturate D"
        expected = "sat_d=False: only products of integers saturate"
        raise refuse(apply.at("sat_d"), "tile-operand", message, expected, "sat_d=True")
    d, a, b = (tensor_type(tile.view).dtype.name for tile in tiles.values())
    given = tuple(
        parameters.get(name) or (_TF32 if own == "float32" else own)
        for name, own in (("a_format", a), ("b_format", b))
    )
    known = [each.formats for each in COMBINATIONS[kind(apply.form)]]
    if given[0] != given[1] or (given[0], d) not in known:
        raise refuse(
            apply.at(_misfit(given, d, known, [*tiles])),
            "tile-operand",
            f"{apply.form.text} does not multiply these formats",
            "; or ".join(f"A and B {one}, D {other}" for one, other in known),
            f"A {given[0]}, B {given[1]}, D {d}",
            hint="a_format= and b_format= override what the element types say",
        )
    return encode_instruction(
        d,
        given[0],
        given[1],
        shape[0],
        shape[1],
        transpose_a=majors[0] == "mn",
        transpose_b=majors[1] == "mn",
        negate_a=_constant_flag(apply, parameters, "neg_a"),
        negate_b=_constant_flag(apply, parameters, "neg_b"),
    )


def _misfit(
    given: Sequence[str], d: str, known: Sequence[tuple[str, str]], names: Sequence[str]
) -> str:
    """Name the operand that does not fit the others: A, else B, else D."""
    if given[0] not in (each for each, _ in known):
        return names[1]
    return names[2] if given[0] != given[1] else names[0]


# ---------------------------------------------------------------------------- matrices


def _matrices(
    apply: Apply,
    tiles: dict[str, Tile],
    scene: Scene,
    shape: tuple[int, int, int],
    majors: list[str],
) -> dict[str, SharedMatrix]:
    """Prove where the matrices lie, and describe those in shared memory."""
    M = shape[0]
    d, a, b = product_tiles(apply.form)
    _, _, K = shape
    found: dict[str, SharedMatrix] = {}
    layout = tmem_mma_operand_layout("D", shape[:2], _dtype(tiles[d]), M=M, cta_group=1)
    hint = 'tmem_mma_operand_layout("D", …) gives the layout of D'
    lanes = check_operand(apply.at(d), tiles[d], scene, layout, _FIRST_LANES[M], hint)
    for name, major in ((a, majors[0]), (b, majors[1])):
        if tensor_type(tiles[name].view).space is not Space.TMEM:
            found[name] = _shared(apply.at(name), tiles[name], scene, major)
            continue
        # The data path that has a row of D reads that row of A, out of the same lane.
        letter = _DATA_PATHS[M]
        layout = tmem_datapath_layout(letter, M, K)
        hint = f'tmem_datapath_layout("{letter}", {M}, …) gives the layout of A'
        own = check_operand(apply.at(name), tiles[name], scene, layout, _FIRST_LANES[M], hint)
        _require_same_lanes(apply, tiles[name], lanes, own)
    return found


def _dtype(tile: Tile) -> DType:
    return tensor_type(tile.view).dtype


def _require_same_lanes(apply: Apply, tile: Tile, lanes: Values, own: Values) -> None:
    """Require that A begins in the lane of each D that it is multiplied into."""
    constant_lanes = all((each == each[:1]).all() for each in (lanes, own))
    # D has the repeat axes (…, m, n), A (…, m, k).
    if not constant_lanes or (lanes[0][..., :, None] != own[0][..., None, :]).any():
        raise refuse(
            apply.at(tile.operand.operand),
            "tile-layout",
            f"{tile.name} and D lie in different lanes of Tensor Memory",
            "A and D in the same half of each 32 lanes, at every step",
            f"D from lane {lanes.flat[0]} on, A from lane {own.flat[0]} on",
        )


def _shared(apply: Apply, tile: Tile, scene: Scene, major: str) -> SharedMatrix:
    image = image_of(tile, scene)
    if image is None:
        raise refuse(
            apply,
            "tile-alignment",
            f"the addresses of {tile.name} cannot be told",
            "starts with a constant range, or multiples of what the swizzle repeats after",
            "a start of which neither is known",
        )
    align = known_alignment(tile, image.divisor)
    size = tensor_type(tile.view).dtype.bytes
    tried = modes(laid_out_by(tile.view).layout, size, major)
    found = extract(image.bytes.reshape(-1, *tile.operand.atom), size, major, tried, align)
    if isinstance(found, Unfit):
        raise _refuse_matrix(apply, tile, major, found)
    return found


def _refuse_matrix(apply: Apply, tile: Tile, major: str, found: Unfit) -> TileContractError:
    atom = tile.operand.atom
    return refuse(
        apply,
        "tile-layout",
        f"no descriptor describes {tile.name} in shared memory",
        f"{major.upper()}-major matrices {atom}, as mma_shared_layout lays them out",
        f"{laid_out_by(tile.view).layout!r}",
        notes=tuple(f"{mode.name}: {reason}" for mode, reason in found.reasons),
    )
