"""What is multiplied by what: the extents and types of a product, and what instructions take.

May import `base`, `isa`, `ir` and the modules of this folder above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, DType, dtype
from tilewright.base.errors import TileContractError
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import Expr, Subview, Var
from tilewright.ir.shapes import static_shape, tensor_type
from tilewright.ir.tile import GemmTile
from tilewright.ir.visit import root
from tilewright.isa import warp_matrix
from tilewright.isa.named import form
from tilewright.isa.tensor_core import COMBINATIONS, shapes
from tilewright.passes.tile.views import matrix
from tilewright.passes.tile.warp_grid import COLUMNS, ROWS, feasible_warps, warp_grid

_WARP = 32
_STEP = 256  # bits of K that an instruction takes
# What warps multiply by, by the types of A and B, and of C. Of a float32 the bits of a tf32 count.
INSTRUCTIONS = {
    (FLOAT16, FLOAT32): form(warp_matrix.mma_sync, shape="m16n8k16", type="f16", btype="f16"),
    (BFLOAT16, FLOAT32): form(warp_matrix.mma_sync, shape="m16n8k16", type="bf16", btype="bf16"),
    (FLOAT16, FLOAT16): form(warp_matrix.mma_half, shape="m16n8k16"),
    (FLOAT32, FLOAT32): form(warp_matrix.mma_tf32, shape="m16n8k8"),
    (dtype("int8"), INT32): form(
        warp_matrix.mma_integer, shape="m16n8k32", satfinite="", type="s8", btype="s8"
    ),
    (dtype("uint8"), INT32): form(
        warp_matrix.mma_integer, shape="m16n8k32", satfinite="", type="u8", btype="u8"
    ),
}
# The kind of a product of the tensor core, by its types; D of 16 bits is left out, as loads of it
# take the halves of cells apart.
_KINDS = {
    each.types: kind
    for kind, combinations in COMBINATIONS.items()
    for each in combinations
    if each.types[1] == FLOAT32
}


@dataclass(frozen=True)
class Problem:
    """A product's extents, and the types of A and B, and of C."""

    rows: int
    columns: int
    depth: int
    inputs: DType
    result: DType

    @property
    def step(self) -> int:
        """Count the elements of K that one instruction takes."""
        return _STEP // self.inputs.bits


def problem(stmt: GemmTile) -> Problem:
    """Read the extents of a product; raises `TileContractError` (tile-shape, tile-operand)."""
    a, b, c = (
        _matrix(stmt, name, each) for name, each in (("A", stmt.a), ("B", stmt.b), ("C", stmt.c))
    )
    rows, depth = reversed(a) if stmt.transpose_a else a
    inner, columns = reversed(b) if stmt.transpose_b else b
    if depth != inner or c != (rows, columns):
        raise TileContractError(
            "the tiles of a product do not fit one another",
            code="tile-shape",
            location=stmt.location,
            expected=f"A {_spell('MK', stmt.transpose_a)}, B {_spell('KN', stmt.transpose_b)}, "
            "C (M, N)",
            found=f"A {a}, B {b}, C {c}",
            hint="transpose_A=True and transpose_B=True say that a tile is stored the other way",
        )
    left, right, result = (tensor_type(each).dtype for each in (stmt.a, stmt.b, stmt.c))
    if left != right:
        raise TileContractError(
            "the operands of a product have different types",
            code="tile-operand",
            location=stmt.location,
            expected="A and B of one type",
            found=f"A {left}, B {right}",
        )
    return Problem(rows, columns, depth, left, result)


def _matrix(stmt: GemmTile, name: str, tile: Expr) -> tuple[int, int]:
    shape = static_shape(tensor_type(matrix(tile)).shape)
    if shape is None or len(shape) != 2:
        raise TileContractError(
            f"operand {name} of a product is no matrix of constant extents",
            code="tile-shape",
            location=stmt.location,
            expected="two axes, beside axes of extent 1",
            found=f"({', '.join(map(str, tensor_type(tile).shape))})",
        )
    return shape


def _spell(letters: str, transposed: bool) -> str:
    return f"({', '.join(reversed(letters) if transposed else letters)})"


# ---------------------------------------------------------------------------- mma.sync


def grid_of(stmt: GemmTile, threads: int) -> tuple[int, int]:
    """Give how many warps lie along the rows and the columns of C, if that was checked."""
    found = problem(stmt)
    grid = warp_grid(found.rows, found.columns, threads // _WARP, stmt.policy)
    assert grid is not None
    return grid


def check_mma(stmt: GemmTile, threads: int, target: Target) -> None:
    """Require that warps can multiply: types, spaces, extents, and a division among them."""
    found = problem(stmt)
    _require_types(stmt, found, [*INSTRUCTIONS], f"warps of {target}")
    for name, each in (("A", stmt.a), ("B", stmt.b)):
        _require_space(stmt, name, each, (Space.SHARED, Space.FRAGMENT))
    for name, each in (("A", stmt.a), ("B", stmt.b), ("C", stmt.c)):
        _require_itself(stmt, name, each)
    if not stmt.waits:
        raise TileContractError(
            "a product into registers is done by the threads themselves",
            code="tile-operand",
            location=stmt.location,
            expected="T.gemm, or C of T.alloc_tmem",
            found="an asynchronous product into a fragment",
        )
    _require_multiple(stmt, "M", found.rows, ROWS)
    _require_multiple(stmt, "N", found.columns, COLUMNS)
    _require_multiple(stmt, "K", found.depth, found.step)
    warps, rest = divmod(threads, _WARP)
    if not rest and warp_grid(found.rows, found.columns, warps, stmt.policy):
        return
    counts = [str(_WARP * each) for each in feasible_warps(found.rows, found.columns)]
    raise TileContractError(
        "the tile of a product cannot be divided among the warps of the kernel",
        code="tile-shape",
        location=stmt.location,
        expected=f"for C ({found.rows}, {found.columns}) threads={' or '.join(counts)}; "
        f"or M a multiple of {ROWS} and N of {COLUMNS} for each of {max(warps, 1)} warps",
        found=f"{threads} threads",
    )


# ---------------------------------------------------------------------------- tcgen05


def tensor_kind(found: Problem) -> str:
    """Name the kind of a product of the tensor core, such as "f16"."""
    return _KINDS[found.inputs, found.result]


def tensor_shape(found: Problem) -> tuple[int, int, int]:
    """Give the shape of the instructions that a product is made of: as large as they can be."""
    rows = 128 if found.rows % 128 == 0 else 64
    legal = shapes(tensor_kind(found)).columns[rows]
    columns = max((each for each in legal if found.columns % each == 0), default=0)
    return rows, columns, found.step


def check_tcgen05(stmt: GemmTile) -> None:
    """Require that the tensor core can multiply into Tensor Memory, and say when it has."""
    found = problem(stmt)
    _require_types(stmt, found, [*_KINDS], "the tensor core, into Tensor Memory,")
    _require_space(stmt, "A", stmt.a, (Space.SHARED, Space.TMEM))
    _require_space(stmt, "B", stmt.b, (Space.SHARED,))
    if tensor_type(stmt.a).space is Space.TMEM and stmt.transpose_a:
        raise TileContractError(
            "a matrix in Tensor Memory is multiplied row by row",
            code="tile-operand",
            location=stmt.location,
            expected="transpose_A=False, or A in shared memory",
            found="transpose_A=True",
        )
    _require_multiple(stmt, "M", found.rows, 64)
    _require_multiple(stmt, "N", found.columns, 16 if found.rows % 128 == 0 else 8)
    _require_multiple(stmt, "K", found.depth, found.step)
    if stmt.waits and stmt.barrier is None:
        raise TileContractError(
            "a product into Tensor Memory is done when an mbarrier says so",
            code="tile-operand",
            location=stmt.location,
            expected="mbar=, of T.alloc_barrier(1)",
            found="no mbar",
            hint="allocate mbar = T.alloc_barrier(1), and pass mbar=mbar",
        )


# ---------------------------------------------------------------------------- refusals


def _require_types(
    stmt: GemmTile, found: Problem, known: Sequence[tuple[DType, DType]], who: str
) -> None:
    if (found.inputs, found.result) in known:
        return
    raise TileContractError(
        f"{who} do not multiply these types"
        if who[0] == "w"
        else f"{who} multiplies no such types",
        code="tile-operand",
        location=stmt.location,
        expected="; ".join(f"A and B {inputs}, C {result}" for inputs, result in known),
        found=f"A and B {found.inputs}, C {found.result}",
        hint="convert the operands as they are copied: T.copy converts",
    )


def _require_space(stmt: GemmTile, name: str, tile: Expr, spaces: Sequence[Space]) -> None:
    kind = tensor_type(tile)
    if kind.space in spaces:
        return
    buffer = root(tile)
    raise TileContractError(
        f"operand {name} of this product is in the wrong memory",
        code="tile-operand",
        location=stmt.location,
        expected=" or ".join(each.value for each in spaces),
        found=f"{buffer.name if isinstance(buffer, Var) else name} in {kind.space.value} memory",
        hint="copy it to shared memory first",
    )


def _require_itself(stmt: GemmTile, name: str, tile: Expr) -> None:
    """Refuse a fragment under another shape or type: its registers are those of its elements."""
    view = tile
    while isinstance(view, Subview):
        view = view.source
    kind = tensor_type(view)
    if kind.space is not Space.FRAGMENT or isinstance(view, Var):
        return
    buffer = root(view)
    raise TileContractError(
        f"operand {name} of this product is a view of a fragment",
        code="tile-operand",
        location=stmt.location,
        expected="a fragment as T.alloc_fragment has given it",
        found=f"{kind}, of {buffer.name if isinstance(buffer, Var) else 'a fragment'}, "
        f"{tensor_type(buffer)}",
        hint="copy it to a fragment of its own: T.copy(view, fragment)",
    )


def _require_multiple(stmt: GemmTile, name: str, extent: int, unit: int) -> None:
    if extent % unit:
        raise TileContractError(
            f"{name} of a product is no multiple of what an instruction takes",
            code="tile-shape",
            location=stmt.location,
            expected=f"a multiple of {unit}",
            found=f"{name} = {extent}",
        )
