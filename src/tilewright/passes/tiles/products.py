"""Products of tiles by the tensor core: their contract, and the instructions they become.

May import `base`, `isa`, `ir`, `layout`, `passes.extract_descriptors` and the modules of this
folder above. Matrices in shared memory are given by descriptors: a constant, and the address of
the first element of each matrix.

    T.cuda.tile.apply(mma, d, a, b, instruction_shape=(128, 64, 16))
    # -> for each m, n and k one instruction, the first k adding to D only with `accum`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import BOOL, UINT32, UINT64
from tilewright.base.errors import TileContractError
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Bitcast,
    Constant,
    Expr,
    as_expr,
    cast,
    constant,
    truth,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply, Block, Instruct
from tilewright.ir.types import PointerType, ScalarType
from tilewright.isa.descriptors import encode_instruction
from tilewright.isa.tensor_core import (
    COMBINATIONS,
    contract,
    kind,
    left_space,
    product_tiles,
    shapes,
)
from tilewright.layout import tmem_mma_operand_layout
from tilewright.passes.allocate_shared import alignment_of
from tilewright.passes.extract_descriptors import SharedMatrix, Unfit, extract, modes
from tilewright.passes.places import laid_out_by, root_of
from tilewright.passes.tiles.cells import check_operand
from tilewright.passes.tiles.groups import Group, group_of
from tilewright.passes.tiles.images import image_of
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import Tile, read_operands, refuse
from tilewright.passes.wide_views import require_whole_elements

_PARAMETERS = (
    *("instruction_shape", "a_major", "b_major", "a_format", "b_format"),
    *("neg_a", "neg_b", "accum", "pred"),
)
_MAJORS = ("k", "mn")
# The bits of a descriptor that hold the start address, which is counted in 16 bytes.
_ADDRESS = (1 << 14) - 1
# What a float32 is called as an element of which 19 bits count.
_TF32 = "tf32"


@dataclass(frozen=True)
class _Product:
    """A product whose contract is proven."""

    group: Group
    tiles: dict[str, Tile]
    matrices: dict[str, SharedMatrix]
    descriptor: int
    accumulate: Expr

    def operands(self, step: dict[str, int]) -> tuple[Expr, ...]:
        """Give the IR operands at a repetition."""
        first = step["k"] == 0
        enable = self.accumulate if first else constant(True, BOOL)
        matrices = [self._matrix(name, step) for name in self.tiles]
        return (*matrices, constant(self.descriptor, UINT32), enable)

    def _matrix(self, name: str, step: dict[str, int]) -> Expr:
        tile = self.tiles[name]
        at = (*self.group.coordinates, *(as_expr(step[axis]) for axis in tile.repeats))
        where = (*at, *(as_expr(0) for _ in tile.operand.atom))
        view = tensor_type(tile.view)
        address = AddressOf(tile.view, where, PointerType(view.space, view.dtype, 16))
        if name not in self.matrices:
            return address
        number = Bitcast(address, ScalarType(UINT32)) >> 4 & _ADDRESS
        return constant(self.matrices[name].constant, UINT64) | cast(number, UINT64)


def emit_product(apply: Apply, scene: Scene) -> Block:
    """Prove the contract of a product of tiles, and write it as instructions.

    Raises `TileContractError` with the code of the rule that is broken.
    """
    parameters = _parameters(apply)
    shape = _shape(apply, parameters)
    d_bits = _element_bits(apply, 0)
    tiled = contract(apply.form, shape, d_bits)
    group = group_of(apply, tiled.issuer, scene)
    operands = read_operands(apply, tiled, group)
    for tile in operands.tiles.values():
        require_whole_elements(tile.view, scene.ranges, apply.location)
    majors = [_major(apply, parameters, name) for name in ("a_major", "b_major")]
    descriptor = _descriptor(apply, parameters, operands.tiles, shape, majors)
    product = _Product(
        group,
        operands.tiles,
        _matrices(apply, operands.tiles, scene, shape, majors),
        descriptor,
        _flag(parameters.get("accum", False)),
    )
    predicate = parameters.get("pred")
    return tuple(
        Instruct(
            apply.form,
            product.operands(step),
            None if predicate is None else _flag(predicate),
            location=apply.location,
        )
        for step in operands.steps()
    )


# ---------------------------------------------------------------------------- parameters


def _parameters(apply: Apply) -> dict[str, Any]:
    for name, _ in apply.parameters:
        if name not in _PARAMETERS:
            raise refuse(
                apply,
                "tile-operand",
                f"{apply.form.text} has no parameter {name!r} in its tile form",
                ", ".join(_PARAMETERS),
                name,
            )
    return {name: _plain(value) for name, value in apply.parameters}


def _plain(value: Any) -> Any:
    """Take constants as Python's values."""
    match value:
        case Constant():
            return value.value
        case tuple():
            return tuple(_plain(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def _flag(value: Any) -> Expr:
    return truth(value) if isinstance(value, Expr) else constant(bool(value), BOOL)


def _shape(apply: Apply, parameters: dict[str, Any]) -> tuple[int, int, int]:
    legal = shapes(kind(apply.form))
    match parameters.get("instruction_shape"):
        case (int() as M, int() as N, int() as K) if (M, N, K) in legal:
            return M, N, K
        case given:
            raise refuse(
                apply,
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
        raise refuse(apply, "tile-operand", f"there is no such {name}", expected, repr(major))
    if name == "a_major" and major == "mn" and left_space(apply.form) is Space.TMEM:
        raise refuse(
            apply,
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
    d, a, b = (tensor_type(tile.view).dtype.name for tile in tiles.values())
    given = tuple(
        parameters.get(name) or (_TF32 if own == "float32" else own)
        for name, own in (("a_format", a), ("b_format", b))
    )
    known = [each.formats for each in COMBINATIONS[kind(apply.form)]]
    if given[0] != given[1] or (given[0], d) not in known:
        raise refuse(
            apply,
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
        negate_a=bool(parameters.get("neg_a", False)),
        negate_b=bool(parameters.get("neg_b", False)),
    )


# ---------------------------------------------------------------------------- matrices


def _matrices(
    apply: Apply,
    tiles: dict[str, Tile],
    scene: Scene,
    shape: tuple[int, int, int],
    majors: list[str],
) -> dict[str, SharedMatrix]:
    """Prove where the matrices lie, and describe those in shared memory."""
    M, N, K = shape
    d, a, b = product_tiles(apply.form)
    wanted = {d: ("D", (M, N)), a: ("A", (M, K))}
    found: dict[str, SharedMatrix] = {}
    for name, major in ((d, ""), (a, majors[0]), (b, majors[1])):
        tile = tiles[name]
        view = tensor_type(tile.view)
        if view.space is Space.TMEM:
            operand, extents = wanted[name]
            layout = tmem_mma_operand_layout(operand, extents, view.dtype, M=M, cta_group=1)
            check_operand(apply, tile, scene, layout)
        else:
            found[name] = _shared(apply, tile, scene, major)
    return found


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
    align = _known_alignment(tile, image.divisor)
    size = tensor_type(tile.view).dtype.bytes
    tried = modes(laid_out_by(tile.view).layout, size, major)
    found = extract(image.bytes.reshape(-1, *tile.operand.atom), size, major, tried, align)
    if isinstance(found, Unfit):
        raise _refuse_matrix(apply, tile, major, found)
    return found


def _known_alignment(tile: Tile, divisor: int) -> int:
    """Give the bytes that the place from which addresses are counted is a multiple of."""
    declared = alignment_of(root_of(tile.view))
    known = divisor or declared
    return min(declared & -declared, known & -known)


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
