"""Atomic operations on the elements of tiles.

May import `base`, `isa`, `ir` and the modules of this folder above. Each element is combined once,
by one thread; where no instruction does it, by trying until nobody else came between.

    T.atomic_add(C[by * 64, 0], c)   ->   for i, j in T.Parallel(64, 64): red of C[…] and c[i, j]
"""

from __future__ import annotations

from tilewright.base.dtypes import BOOL, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Bitcast,
    Expr,
    Load,
    binary,
    cast,
    constant,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Assign, Bind, Block, Declare, Instruct, While
from tilewright.ir.tile import AtomicTile, ParallelTile
from tilewright.ir.types import PointerType, ScalarType, TensorType
from tilewright.isa import atomics, named
from tilewright.isa.declaration import Form
from tilewright.passes.tile.as_parallel import counters, element
from tilewright.passes.tile.scene import Names, TileScene

_LETTERS = {"int": "s", "uint": "u", "float": "f"}
_OPERATIONS = {"add": "add", "max": "max", "min": "min", "or": "or"}
# What a reduction without a result cannot have of an order.
_RELEASING = {"relaxed": "", "release": "release", "acquire": "", "acq_rel": "release"}


def atomic_as_parallel(stmt: AtomicTile, scene: TileScene) -> ParallelTile:
    """Write an atomic operation on a tile as a loop over its elements.

    Raises `FrontendError` (operand-type) for elements on which there is none.
    """
    vars, extents = counters(stmt.target, scene)
    tensor, indices = element(stmt.target, vars)
    kind = tensor_type(tensor)
    value = stmt.value
    if isinstance(value.type, TensorType):
        value = Load(*element(value, vars), ScalarType(value.type.dtype), location=stmt.location)
    value = cast(value, kind.dtype)
    pointer = PointerType(kind.space, kind.dtype, kind.dtype.bytes)
    address = AddressOf(tensor, indices, pointer, location=stmt.location)
    form = _form(stmt, kind)
    if form is None:
        names = scene.names
        body = by_exchange(stmt.op, kind.space, address, value, names, stmt.location)
    else:
        bits = dtype(f"uint{kind.dtype.bits}")
        raw = value if stmt.op != "or" or value.dtype == bits else Bitcast(value, ScalarType(bits))
        body = (Instruct(form, (address, raw), location=stmt.location),)
    return ParallelTile(vars, extents, body, location=stmt.location)


def _form(stmt: AtomicTile, kind: TensorType) -> Form | None:
    sem = _RELEASING[stmt.order]
    space = "global" if kind.space is Space.GLOBAL else "shared"
    half = {"float16": "f16", "bfloat16": "bf16"}.get(kind.dtype.name)
    if half is not None and stmt.op == "add" and not sem:
        return named.form(atomics.red_halves, space=space, type=half)
    letter = "b" if stmt.op == "or" else _LETTERS.get(kind.dtype.kind, "b")
    name = "u64" if (stmt.op, kind.dtype.name) == ("add", "int64") else f"{letter}{kind.dtype.bits}"
    try:
        return named.form(atomics.red, sem=sem, space=space, op=_OPERATIONS[stmt.op], type=name)
    except AssertionError:
        return None


def by_exchange(
    op: str, where_to: Space, address: Expr, value: Expr, names: Names, where: Location | None
) -> Block:
    """Replace an element by the combined one until it is still what it was combined with.

    The first value is a guess: what is there an atomic operation tells, never a plain read.
    """
    kind = value.dtype
    if kind.bits not in (16, 32, 64):
        raise FrontendError(
            f"there is no atomic {op} on {kind}",
            code="operand-type",
            location=where,
            expected="elements of 16, 32 or 64 bits",
            found=str(kind),
        )
    bits = dtype(f"uint{kind.bits}")
    space = "global" if where_to is Space.GLOBAL else "shared"
    form = named.form(atomics.atom_cas, space=space, type=f"b{kind.bits}")
    variable = names.variable
    old, again = variable("old", ScalarType(bits)), variable("again", ScalarType(BOOL))
    expected, added = variable("expected", ScalarType(bits)), variable("value", value.type)
    combined = binary(_OPERATIONS[op], Bitcast(expected, value.type), added)
    new = Bitcast(cast(combined, kind), ScalarType(bits))
    body: Block = (
        Bind(expected, old),
        Instruct(form, (old, address, expected, new), location=where),
        Assign(again, binary("ne", old, expected)),
    )
    return (
        Bind(added, value, location=where),
        Declare(old, constant(0, bits), location=where),
        Declare(again, constant(True, BOOL)),
        While(again, body, location=where),
    )
