"""What one thread issues for all, and how all wait for its end at an mbarrier.

May import `base`, `isa`, `ir` and `passes.tile.scene`.
"""

from __future__ import annotations

from tilewright.base.dtypes import BOOL, UINT32
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Expr,
    Subview,
    Var,
    as_constant,
    binary,
    cast,
    constant,
    int32,
    unary,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Assign, Block, Declare, If, Instruct, While
from tilewright.ir.tile import Issuer
from tilewright.ir.types import PointerType, ScalarType
from tilewright.isa import named
from tilewright.passes.tile.scene import THREAD, TileScene

_WARP = 32
_ALL_LANES = (1 << _WARP) - 1


def by_issuer(
    issuer: Issuer | None, body: Block, scene: TileScene, where: Location | None
) -> Block:
    """Let one thread do something: the same one every time, which waits for what it has issued."""
    issuer = issuer or Issuer()
    if not issuer.elected:
        return (If(binary("eq", THREAD, issuer.first), body, location=where),)
    elected = scene.names.variable("elected", ScalarType(BOOL))
    chosen: Block = (
        Declare(elected, None, location=where),
        Instruct(named.ELECT, (elected, constant(_ALL_LANES, UINT32)), location=where),
        If(elected, body, location=where),
    )
    return (If(binary("eq", THREAD // _WARP, issuer.first // _WARP), chosen, location=where),)


def barrier_of(place: Expr, where: Location | None) -> tuple[Var, Expr]:
    """Read an mbarrier: the buffer, and which of its barriers it is.

    Raises `FrontendError` (bad-call) for several.
    """
    match place:
        case Var() if as_constant(tensor_type(place).shape[0]) == 1:
            return place, int32(0)
        case Subview(source=Var() as buffer, starts=(start,)) if _is_one(place):
            return buffer, start
        case _:
            raise FrontendError(
                "one mbarrier is expected",
                code="bad-call",
                location=place.location or where,
                expected="an mbarrier, as mbar[i] of several",
                found=str(place.type),
            )


def _is_one(place: Expr) -> bool:
    return all(as_constant(each) == 1 for each in tensor_type(place).shape)


def address_of(place: Expr, where: Location | None) -> AddressOf:
    """Give the address of an mbarrier."""
    buffer, index = barrier_of(place, where)
    return AddressOf(buffer, (index,), PointerType(Space.SHARED, buffer.dtype, 8))


def wait_for_phase(place: Expr, phase: Expr, scene: TileScene, where: Location | None) -> Block:
    """Wait until the phase of an mbarrier that its cell counts has ended."""
    _, index = barrier_of(place, where)
    done = scene.names.variable("done", ScalarType(BOOL))
    parity = phase >> cast(index, UINT32) & 1
    operands = (done, address_of(place, where), parity)
    attempt = Instruct(named.MBARRIER_TRY_WAIT_PARITY, operands, location=where)
    return (
        Declare(done, constant(False, BOOL), location=where),
        While(unary("not", done), (attempt,), location=where),
    )


def next_phase(place: Expr, phase: Expr, where: Location | None) -> Assign:
    """Count a phase of an mbarrier in its cell: a bit for each of a buffer's barriers."""
    assert isinstance(phase, Var)
    _, index = barrier_of(place, where)
    bit = binary("shl", constant(1, UINT32), cast(index, UINT32))
    return Assign(phase, binary("xor", phase, bit), location=where)
