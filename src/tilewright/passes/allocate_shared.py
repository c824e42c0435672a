"""Lay the shared buffers of a kernel out in its one block of shared memory.

May import `base` and `ir`. Buffers follow one another in the order of the program, each at its
alignment; one that may lie over others gets the first place where there are no more than these.

    a = T.alloc_shared((16, 16), "float16", align=16)   ->   a = <the block> + 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.dtypes import UINT8
from tilewright.base.errors import TargetError
from tilewright.base.spaces import Space
from tilewright.base.targets import Target, shared_problem
from tilewright.ir.expressions import (
    AddressOf,
    Expr,
    Offset,
    SharedBase,
    Var,
    as_constant,
    int32,
)
from tilewright.ir.rewrite import rewrite
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Allocate, Bind, Kernel, Program
from tilewright.ir.types import PointerType
from tilewright.ir.visit import walk_statements
from tilewright.passes.places import storage_bytes


def allocate_shared(program: Program, target: Target) -> Program:
    """Give every shared buffer its place, and its kernel the size of all.

    A buffer's variable becomes a pointer of the same name. Raises `TargetError`
    (resource-limit) where they exceed the target's limit: at the allocation that does not fit,
    or at the launch, if it is what the launch adds to them.
    """
    kernels = tuple(_allocate(kernel, target) for kernel in program.kernels)
    return replace(program, kernels=kernels)


def _allocate(kernel: Kernel, target: Target) -> Kernel:
    buffers = [stmt for stmt in walk_statements(kernel.body) if _is_shared(stmt)]
    offsets: dict[Var, int] = {}
    ends: dict[str, tuple[int, int]] = {}
    end = 0
    for stmt in buffers:
        assert isinstance(stmt, Allocate)
        below = {each.name for each in stmt.over}
        taken = sorted(place for name, place in ends.items() if name not in below)
        size, align = storage_bytes(tensor_type(stmt.var)), alignment_of(stmt.var)
        start = _first_gap(taken, size, align) if below else -(-end // align) * align
        offsets[stmt.var] = start
        ends[stmt.var.name] = (start, start + size)
        end = max(end, start + size)
        if end > target.shared_bytes:
            raise _too_much(stmt, target, start, end)
    _check_launch(kernel, target, end)
    largest = max((alignment_of(var) for var in offsets), default=1)

    def place(stmt: Allocate) -> Bind | None:
        if stmt.var not in offsets:
            return None
        base = SharedBase(PointerType(Space.SHARED, UINT8, largest))
        pointer = Offset(base, int32(offsets[stmt.var]), pointer_type(stmt.var))
        return Bind(pointer_to(stmt.var), pointer, location=stmt.location)

    def point(address: AddressOf) -> Expr | None:
        tensor = address.tensor
        return pointer_to(tensor) if isinstance(tensor, Var) and tensor in offsets else None

    body = rewrite(kernel.body, ((Allocate, place), (AddressOf, point)))
    placed = tuple((var.name, (start, tensor_type(var))) for var, start in offsets.items())
    return replace(kernel, body=body, shared_bytes=end, buffers=placed)


def _first_gap(taken: Sequence[tuple[int, int]], size: int, align: int) -> int:
    """Find the first place between those that are taken, which are in order."""
    start = 0
    for first, end in taken:
        if start + size <= first:
            break
        start = max(start, -(-end // align) * align)
    return start


def alignment_of(buffer: Var) -> int:
    """Give the alignment that a buffer is promised, in bytes."""
    kind = tensor_type(buffer)
    return kind.align or kind.dtype.bytes


def pointer_to(buffer: Var) -> Var:
    """Give the pointer that takes a buffer's place under its name."""
    return Var(buffer.name, pointer_type(buffer))


def pointer_type(buffer: Var) -> PointerType:
    """Give the type of the pointer that takes a buffer's place."""
    kind = tensor_type(buffer)
    return PointerType(kind.space, kind.dtype, alignment_of(buffer))


def _is_shared(stmt: object) -> bool:
    return isinstance(stmt, Allocate) and tensor_type(stmt.var).space is Space.SHARED


def _check_launch(kernel: Kernel, target: Target, buffers: int) -> None:
    asked = as_constant(kernel.launch.dynamic_shared_bytes)
    if asked is None:
        return
    if problem := shared_problem(buffers, int(asked), target):
        expected, found = problem
        raise TargetError(
            f"the shared memory of the kernel is more than {target} has",
            code="resource-limit",
            location=kernel.launch.location,
            expected=expected,
            found=found,
        )


def _too_much(stmt: Allocate, target: Target, start: int, end: int) -> TargetError:
    return TargetError(
        f"the shared buffers of the kernel do not fit in the shared memory of {target}",
        code="resource-limit",
        location=stmt.location,
        expected=f"at most {target.shared_bytes} bytes in all",
        found=f"{start} bytes before {stmt.var.name}, {end} with it",
    )
