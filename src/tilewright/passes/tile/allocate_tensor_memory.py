"""Allocate Tensor Memory and mbarriers before all else, and give Tensor Memory back at the end.

May import `base`, `isa`, `ir` and the modules of this folder above. The buffers of a kernel share
one allocation, a power of two of columns; one that the program gives back earlier has its own. Warp
0 allocates and frees: after all threads have met, so that nobody uses what is gone.

    c = T.alloc_tmem(…)   ->   if warp 0: tcgen05.alloc, relinquish; barrier; c = decl_tmem(address)
                               …; barrier; if warp 0: tcgen05.dealloc
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.base.dtypes import UINT32
from tilewright.base.errors import FrontendError, TargetError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import (
    AddressOf,
    Declared,
    Expr,
    Load,
    Var,
    binary,
    cast,
    constant,
    int32,
)
from tilewright.ir.rewrite import map_statements
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import (
    Allocate,
    Bind,
    Block,
    If,
    Instruct,
    Kernel,
    Program,
    Return,
    Stmt,
)
from tilewright.ir.tile import AllocateBarriers, FreeTile
from tilewright.ir.types import PointerType, ScalarType, TensorType
from tilewright.ir.visit import walk
from tilewright.isa import named
from tilewright.isa.declaration import Form
from tilewright.isa.tensor_allocation import GRANULE
from tilewright.layout import default_layout
from tilewright.passes.tile.scene import THREAD, Names
from tilewright.passes.tile.tensor_memory import columns_of

_WARP = 32


def allocate_tensor_memory(program: Program, target: Target) -> Program:
    """Replace the allocations of Tensor Memory and of mbarriers in every kernel.

    Raises `TargetError` (resource-limit) for more columns than there are, `FrontendError`
    (not-supported) where it cannot be told that what is allocated is freed.
    """
    return replace(program, kernels=tuple(_kernel(each, target) for each in program.kernels))


@dataclass(frozen=True)
class _Group:
    """Buffers that share an allocation: each with its first column; `address` holds where it is."""

    address: Var
    buffers: tuple[tuple[Allocate, int], ...]
    columns: int


def _kernel(kernel: Kernel, target: Target) -> Kernel:
    nodes = list(walk(kernel.body))
    barriers = [each for each in nodes if isinstance(each, AllocateBarriers)]
    buffers = [
        each
        for each in nodes
        if isinstance(each, Allocate) and tensor_type(each.var).space is Space.TMEM
    ]
    if not barriers and not buffers:
        return kernel
    freed = {each.buffer.name for each in nodes if isinstance(each, FreeTile)}
    groups = _groups(kernel, buffers, freed, target)
    if buffers:
        _require_freed(kernel, nodes)
    before = _prologue(groups, barriers, target)
    body = map_statements(kernel.body, lambda stmt: _replaced(stmt, groups))
    kept = [group for group in groups if group.buffers[0][0].var.name not in freed]
    return replace(kernel, body=(*before, *body, *_epilogue(kept, kernel.location)))


def _groups(
    kernel: Kernel, buffers: Sequence[Allocate], freed: set[str], target: Target
) -> list[_Group]:
    """Pack buffers: those that live to the end into one allocation."""
    names = Names(kernel)
    together = [each for each in buffers if each.var.name not in freed]
    alone = [[each] for each in buffers if each.var.name in freed]
    found: list[_Group] = []
    total = 0
    for members in ([together] if together else []) + alone:
        placed: list[tuple[Allocate, int]] = []
        end = 0
        for each in members:
            kind = tensor_type(each.var)
            placed.append((each, end))
            end += columns_of(kind.layout, kind.dtype)
            if total + end > target.tensor_memory_columns:
                raise _too_much(each, end + total, target)
        columns = max(GRANULE, 1 << (end - 1).bit_length())
        kind = TensorType((int32(1),), UINT32, Space.SHARED, default_layout((1,)), 4)
        address = names.variable(f"{members[0].var.name}_address", kind)
        found.append(_Group(address, tuple(placed), columns))
        total += columns
        if total > target.tensor_memory_columns:
            raise _too_much(members[-1], total, target)
    return found


def _too_much(stmt: Allocate, columns: int, target: Target) -> TargetError:
    return TargetError(
        f"the buffers of the kernel do not fit in the Tensor Memory of {target}",
        code="resource-limit",
        location=stmt.location,
        expected=f"at most {target.tensor_memory_columns} columns in all",
        found=f"{columns} columns with {stmt.var.name}, as powers of two are allocated",
        hint="take narrower tiles, or give a buffer back by T.deallocate_tmem before the next",
    )


def _require_freed(kernel: Kernel, nodes: Sequence[object]) -> None:
    """Refuse what leaves the kernel before its end, or frees at a place that may be passed by."""
    top = {id(each) for each in kernel.body}
    for each in nodes:
        if isinstance(each, Return) or (isinstance(each, FreeTile) and id(each) not in top):
            what = "leaves a kernel" if isinstance(each, Return) else "gives Tensor Memory back"
            raise FrontendError(
                f"this {what} at a place that not every thread needs to come to",
                code="not-supported",
                location=each.location,
                expected="Tensor Memory given back at the end of the kernel, or outside any `if`",
                hint="put what follows into an `if`",
            )


# ---------------------------------------------------------------------------- statements


def _prologue(
    groups: Sequence[_Group], barriers: Sequence[AllocateBarriers], target: Target
) -> Block:
    where = groups[0].buffers[0][0].location if groups else barriers[0].location
    found: list[Stmt] = [Allocate(each.address, location=where) for each in groups]
    found += [Allocate(each.var, location=each.location) for each in barriers]
    if groups:
        found.append(_by_warp(_allocating(groups), where))
    if barriers:
        found.append(_by_thread(_initialising(barriers, target), where))
    found += [_issue(named.TENSOR_FENCE_BEFORE, where)] * bool(groups)
    found.append(_meeting(where))
    found += [_issue(named.TENSOR_FENCE_AFTER, where)] * bool(groups)
    for group in groups:
        found += _declared(group)
    return tuple(found)


def _allocating(groups: Sequence[_Group]) -> Block:
    found: list[Stmt] = []
    for group in groups:
        where = group.buffers[0][0].location
        operands = (_address(group.address, int32(0)), constant(group.columns, UINT32))
        found.append(Instruct(named.TMEM_ALLOC, operands, location=where))
    return (*found, _issue(named.TMEM_RELINQUISH, found[0].location))


def _initialising(barriers: Sequence[AllocateBarriers], target: Target) -> Block:
    found: list[Stmt] = []
    for each in barriers:
        for index, count in enumerate(each.counts):
            operands = (_address(each.var, int32(index)), cast(count, UINT32))
            found.append(Instruct(named.MBARRIER_INIT, operands, location=each.location))
    where = barriers[0].location
    fence = [_issue(named.FENCE_MBARRIER_INIT, where)]
    # Older targets have no asynchronous proxy that would need it.
    has_fence = target in named.FENCE_MBARRIER_INIT.targets
    return (*found, *(fence if has_fence else ()))


def _declared(group: _Group) -> Block:
    """Bind the buffers of an allocation to where they are."""
    found: list[Stmt] = []
    base = Load(group.address, (int32(0),), ScalarType(UINT32))
    for stmt, first in group.buffers:
        start: Expr = binary("add", base, first) if first else base
        declared = Declared(start, tensor_type(stmt.var), location=stmt.location)
        found.append(Bind(stmt.var, declared, location=stmt.location))
    return tuple(found)


def _replaced(stmt: Stmt, groups: Sequence[_Group]) -> Block | None:
    match stmt:
        case AllocateBarriers():
            return ()
        case Allocate() if tensor_type(stmt.var).space is Space.TMEM:
            return ()
        case FreeTile():
            own = [each for each in groups if each.buffers[0][0].var.name == stmt.buffer.name]
            return _epilogue(own, stmt.location)
        case _:
            return None


def _epilogue(groups: Sequence[_Group], where: Location | None) -> Block:
    """Let warp 0 free allocations once all threads have done what they do with them."""
    if not groups:
        return ()
    freeing: list[Stmt] = []
    for group in groups:
        base = Load(group.address, (int32(0),), ScalarType(UINT32))
        operands = (base, constant(group.columns, UINT32))
        freeing.append(Instruct(named.TMEM_DEALLOC, operands, location=where))
    return (
        _issue(named.TENSOR_FENCE_BEFORE, where),
        _meeting(where),
        _by_warp((_issue(named.TENSOR_FENCE_AFTER, where), *freeing), where),
    )


def _address(buffer: Var, index: Expr) -> AddressOf:
    kind = tensor_type(buffer)
    return AddressOf(buffer, (index,), PointerType(Space.SHARED, kind.dtype, kind.dtype.bytes))


def _by_warp(body: Block, where: Location | None) -> If:
    return If(binary("lt", THREAD, _WARP), body, location=where)


def _by_thread(body: Block, where: Location | None) -> If:
    return If(binary("eq", THREAD, 0), body, location=where)


def _issue(form: Form, where: Location | None) -> Instruct:
    return Instruct(form, (), location=where)


def _meeting(where: Location | None) -> Instruct:
    return Instruct(named.CTA_SYNC, (constant(0, UINT32),), location=where)
