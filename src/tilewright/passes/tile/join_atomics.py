"""Add to neighbouring elements by one instruction, or by trying where the target has none.

May import `base`, `isa`, `ir`, `passes.analysis` and the modules of this folder above. Additions
that follow one another are joined where their place is proven to be aligned and inside its row;
each element stays atomic by itself, so nothing else can tell.

    red C[8 * i], a; red C[8 * i + 1], b     ->     red.v2 C[8 * i], {a, b}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.targets import Target
from tilewright.ir.expressions import AddressOf, Expr, Load, Shuffle
from tilewright.ir.rewrite import map_blocks
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Block, Instruct, Kernel, Stmt
from tilewright.ir.types import PointerType, ScalarType
from tilewright.ir.visit import root, walk
from tilewright.isa import atomics, named
from tilewright.isa.declaration import Form
from tilewright.passes.analysis.linear import linear_of
from tilewright.passes.analysis.ranges import Ranges, analyse_ranges
from tilewright.passes.tile.lower_atomic import by_exchange
from tilewright.passes.tile.scene import Names

_SCALARS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Elements that one instruction adds to: the most first.
_COUNTS = (4, 2)


def join_atomics(kernel: Kernel, target: Target) -> Kernel:
    """Write the additions of a kernel by instructions of the target."""
    if not any(_is_addition(each) for each in walk(kernel.body)):
        return kernel
    joining = _Joining(target, analyse_ranges(kernel), Names(kernel))
    return replace(kernel, body=joining.block(kernel.body))


def _is_addition(stmt: object) -> bool:
    """Tell an addition to one element of a floating type, whose old value nobody wants."""
    if not isinstance(stmt, Instruct) or len(stmt.operands) != 2:
        return False
    place = stmt.operands[0]
    if not isinstance(place, AddressOf):
        return False
    own = _SCALARS.get(tensor_type(place.tensor).dtype.name)
    form = stmt.form
    if form.declaration is atomics.red:
        return (form["op"], form["type"], form["sem"]) == ("add", own, "")
    return form.declaration is atomics.red_halves and (form["type"], form["vec"]) == (own, "")


class _Joining:
    """Goes through one kernel, with what is known of its numbers."""

    def __init__(self, target: Target, ranges: Ranges, names: Names) -> None:
        self.target, self.ranges, self.names = target, ranges, names

    def block(self, block: Block) -> Block:
        """Join what follows one another in a block."""
        found: list[Stmt] = []
        at = 0
        while at < len(block):
            stmt = block[at]
            if not _is_addition(stmt):
                found.append(map_blocks(stmt, self.block))
                at += 1
                continue
            run = self.run(block[at:])
            found += self.joined(run) if len(run) > 1 else self.single(run[0])
            at += len(run)
        return tuple(found)

    def run(self, rest: Block) -> list[Instruct]:
        """List the additions at the beginning of a block that one instruction can carry out."""
        for count in _COUNTS:
            run = [each for each in rest[:count] if isinstance(each, Instruct)]
            if len(run) == count and self.form(run) is not None:
                return run
        first = rest[0]
        assert isinstance(first, Instruct)
        return [first]

    def form(self, run: Sequence[Instruct]) -> Form | None:
        """Find the instruction for additions; `None` if there is none, or they do not fit."""
        first = run[0]
        place = first.operands[0]
        assert isinstance(place, AddressOf)
        kind, count = tensor_type(place.tensor), len(run)
        for number, each in enumerate(run):
            if not _is_addition(each) or each.form != first.form:
                return None
            if not _follows(place, each.operands[0], number) or _reads(each.operands[1], place):
                return None
        if kind.layout is not None or any(
            self.ranges.divisor(each) % count for each in (place.indices[-1], kind.shape[-1])
        ):
            return None
        size = count * kind.dtype.bytes
        if kind.align % size or place.type.space is not kind.space:
            return None
        try:
            found = _vector(first.form, kind.dtype.name, count)
        except AssertionError:
            return None
        return found if self.target in found.targets else None

    def joined(self, run: Sequence[Instruct]) -> Block:
        """Write additions as one."""
        form, place = self.form(run), run[0].operands[0]
        assert form is not None and isinstance(place, AddressOf)
        kind = tensor_type(place.tensor).dtype
        pointer = PointerType(place.type.space, kind, len(run) * kind.bytes)
        values = [each.operands[1] for each in run]
        if kind.bits == 16:
            values = [_pair(*values[at : at + 2]) for at in range(0, len(values), 2)]
        moved = replace(place, type=pointer)
        return (Instruct(form, (moved, *values), location=run[0].location),)

    def single(self, stmt: Instruct) -> Block:
        """Write an addition by itself; by trying, where the target has no instruction for it."""
        if self.target in stmt.form.targets:
            return (stmt,)
        place, value = stmt.operands
        assert isinstance(place, AddressOf)
        space = tensor_type(place.tensor).space
        return by_exchange("add", space, place, value, self.names, stmt.location)


def _vector(one: Form, kind: str, count: int) -> Form:
    """Give the form that adds to several elements; raises `AssertionError` if there is none."""
    scope, space = one["scope"], one["space"]
    if one.declaration is atomics.red:
        return named.form(atomics.red_vector, scope=scope, space=space, vec=f"v{count}")
    vec = "" if count == 2 else f"v{count // 2}"
    type = f"{_SCALARS[kind]}x2"
    return named.form(atomics.red_halves, scope=scope, space=space, vec=vec, type=type)


def _follows(first: AddressOf, other: Expr, number: int) -> bool:
    """Tell whether a place is so many elements after another, in the same row."""
    if not isinstance(other, AddressOf) or other.tensor != first.tensor:
        return False
    if other.indices[:-1] != first.indices[:-1]:
        return False
    gap = linear_of(other.indices[-1]).plus(linear_of(first.indices[-1]), -1)
    return not gap.terms and gap.constant == number


def _reads(value: Expr, place: AddressOf) -> bool:
    buffer = root(place.tensor)
    return any(isinstance(each, Load) and root(each.tensor) == buffer for each in walk(value))


def _pair(low: Expr, high: Expr) -> Expr:
    kind = ScalarType(low.dtype.vector(2))
    return Shuffle((low, high), (0, 1), kind, location=low.location)
